//! The table of stacks: everything that gives a block device and must stand the swarm.
//!
//! Owns: how each is built from a seed, what must hold when it is idle and when it has stopped.
//! Promises: a new stack is one row here, and every harness (tests, soak, canaries) runs it.
//! Never: decides what is asked of a stack.

use crate::aim::AimedDevice;
use crate::devices::{self, Size};
use crate::disk::{Disk, Loss};
use crate::harness::{Boot, Machine, Stack, Up};
use crate::moments::NotingDevice;
use crate::ram::{Keep, Ram};
use crate::swarm::{Boxed, Knob};
use crate::witness::Witness;
use flashlane_base::{Ns, Rng};
use flashlane_ftl::layer::{self, Find, Layer, Refusal, Saved, Stop};
use flashlane_ftl::log::{
    Drain, LimiterKind, LogConfig, MapAccess, PoolSet, RingSet, Scrub, ScrubConfig, WearConfig,
    WearLeveling,
};
use flashlane_ftl::pftl::PftlConfig;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_ocssd::{
    CreateImage, Device, DeviceSpec, OpenImage, Partition, PowerOn, Ssd, SsdOptions,
};
use flashlane_stack::{LayerSpec, Layers, Make, Programmed, raise};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Every stack. Seeds are chosen so that the default test run stays within its minute.
pub const STACKS: &[Stack] = &[
    Stack { name: "ram", seeds: 200, lives: 4, share: 1, machine: ram },
    Stack { name: "pftl", seeds: 60, lives: 4, share: 10, machine: pftl },
    Stack { name: "pftl-faults", seeds: 60, lives: 4, share: 10, machine: pftl_faults },
    Stack { name: "pblk-faults", seeds: 40, lives: 4, share: 10, machine: pblk_faults },
    Stack { name: "pblk", seeds: 40, lives: 4, share: 10, machine: pblk },
    Stack { name: "pblk-care-faults", seeds: 30, lives: 4, share: 10, machine: pblk_care },
    Stack { name: "pblk-buffer", seeds: 24, lives: 4, share: 10, machine: pblk_buffer },
    Stack {
        name: "pblk-buffer-faults",
        seeds: 24,
        lives: 4,
        share: 10,
        machine: pblk_buffer_faults,
    },
    Stack { name: "qblk", seeds: 40, lives: 4, share: 10, machine: qblk },
    Stack { name: "qblk-faults", seeds: 40, lives: 4, share: 10, machine: qblk_faults },
    Stack {
        name: "qblk-buffer-faults",
        seeds: 16,
        lives: 4,
        share: 10,
        machine: qblk_buffer_faults,
    },
    Stack {
        name: "pftl-buffer-faults",
        seeds: 16,
        lives: 4,
        share: 10,
        machine: pftl_buffer_faults,
    },
    Stack { name: "pblk-image", seeds: 16, lives: 4, share: 3, machine: pblk_image },
    Stack { name: "pftl-image", seeds: 16, lives: 4, share: 5, machine: pftl_image },
];

pub fn find(name: &str) -> Option<&'static Stack> {
    STACKS.iter().find(|s| s.name == name)
}

struct RamMachine(Arc<Ram>);

fn ram(seed: u64, _: Size) -> Result<Rc<dyn Machine>, String> {
    let mut rng = Rng::stream(seed, "testkit.ram", 0);
    let capacity = devices::one_of(&mut rng, &[1, 2, 65, 1000, 4096]);
    let content = devices::one_of(&mut rng, &[8, 8, 4096]);
    let latency = devices::one_of(&mut rng, &[0, 1, 50, 2000]);
    let ram = Ram::new(capacity, content, Ns::from_us(latency), seed);
    Ok(Rc::new(RamMachine(Arc::new(ram))))
}

impl Machine for RamMachine {
    fn up(self: Rc<Self>, _: Boot) -> Boxed<'static, Result<Up, String>> {
        Box::pin(async move {
            Ok(Up {
                dev: self.0.clone(),
                knob: None,
                check_idle: Box::new(|| Ok(())),
                may_give_up: false,
                ack_is_durable: false,
                state: Box::new(String::new),
                stop: Box::pin(async { Ok(()) }),
                check_stopped: Box::new(|| Ok(())),
            })
        })
    }
    fn cut(&self, _: Ns, seed: u64) {
        self.0.power_cut(if seed.is_multiple_of(3) { Keep::Oldest } else { Keep::Drawn(seed) });
    }
    fn describe(&self) -> String {
        "memory".into()
    }
}

/// Layers on an emulated SSD: those of a machine, or the settings of its one layer while they are drawn.
pub(crate) struct OnSsd<L> {
    pub(crate) spec: RefCell<DeviceSpec>,
    pub(crate) options: SsdOptions,
    /// Things go wrong on purpose: a witness tells the oracle what that excuses.
    pub(crate) faulty: bool,
    /// As small as can be: where there are no capacitors, power cuts in a row may take the room that the layer
    /// needs, and it says so.
    pub(crate) tight: bool,
    /// Faults may be aimed at commands.
    pub(crate) aims: bool,
    /// The host's link: below a host FTL, above a device FTL.
    pub(crate) link: Option<LinkSpec>,
    /// The PUs that the layer has, where not all.
    pub(crate) pus: Option<(u32, u32)>,
    pub(crate) chunks: Option<(u32, u32)>,
    /// The device is as somebody wants it: it does not grow.
    pub(crate) fixed: bool,
    /// The device lives in an image on this disk, where it has one.
    pub(crate) disk: Option<RefCell<Arc<Disk>>>,
    pub(crate) config: L,
}

/// A medium, and who watches it where things go wrong on it.
type Medium = (Arc<Ssd>, Option<Arc<Witness>>);

/// Chunks that a device may be enlarged to when a layer finds it too small; the shortest have 8 sectors.
const CHUNKS_MAX: u32 = 8192;

impl<C> OnSsd<C> {
    fn draw(seed: u64, size: Size, faulty: bool, config: C) -> OnSsd<C> {
        let (spec, mut options) = devices::small(seed, size);
        if faulty {
            options.faults = devices::faults(seed);
        }
        let (spec, link) = (RefCell::new(spec), devices::link(seed));
        let (aims, pus, chunks, fixed, disk) = (faulty, None, None, false, None);
        let tight = size == Size::Tight;
        OnSsd { spec, options, faulty, tight, aims, link, pus, chunks, fixed, disk, config }
    }

    /// The device lives in an image; best a small one, since a loss copies the whole file.
    fn imaged(self) -> OnSsd<C> {
        OnSsd { disk: Some(RefCell::default()), ..self }
    }

    /// The device has a write buffer.
    fn buffered(self, seed: u64) -> OnSsd<C> {
        devices::with_buffer(seed, &mut self.spec.borrow_mut());
        self
    }

    fn ssd(&self) -> Result<Arc<Ssd>, String> {
        let Some(disk) = &self.disk else {
            return Ssd::new(&self.spec.borrow(), self.options.clone()).map_err(|e| e.to_string());
        };
        *disk.borrow_mut() = Arc::default();
        let options = CreateImage { seed: self.options.seed, ..CreateImage::default() };
        let made = Ssd::create_on(disk.borrow().clone(), &self.spec.borrow(), &options);
        made.map_err(|e| e.to_string())?;
        self.opened(disk)
    }

    /// The device in the image that is on the disk.
    fn opened(&self, disk: &RefCell<Arc<Disk>>) -> Result<Arc<Ssd>, String> {
        let SsdOptions { queue, timing, dulbe, .. } = self.options;
        let options = OpenImage { queue, timing, dulbe, ..OpenImage::default() };
        let opened = Ssd::open_on(disk.borrow().clone(), &options);
        opened.map_err(|e| format!("the image that is left: {e}"))
    }

    /// The medium that this life begins with, if there was one before: opened anew where it is in an
    /// image.
    fn found(&self, medium: &Option<Medium>) -> Result<Option<Medium>, String> {
        match (&self.disk, medium) {
            (Some(disk), Some((_, witness))) => Ok(Some((self.opened(disk)?, witness.clone()))),
            (_, medium) => Ok(medium.clone()),
        }
    }

    /// The power goes off while the medium is in use: its own, or, under an image, that of the process or
    /// of the host.
    fn cut(&self, ssd: &Ssd, at: Ns, seed: u64) {
        let Some(disk) = &self.disk else {
            ssd.power_cut(at, PowerOn::ClockRestarts);
            return;
        };
        let mut rng = Rng::stream(seed, "testkit.disk", at.as_ns());
        let loss = devices::one_of(&mut rng, &[None, Some(Loss::Process), Some(Loss::Host)]);
        if loss.is_none() {
            ssd.power_cut(at, PowerOn::ClockRestarts);
        }
        let left = disk.borrow().after(loss.unwrap_or(Loss::Process), &mut rng);
        *disk.borrow_mut() = Arc::new(left);
    }

    /// The power goes off when nothing is under way.
    fn off(&self, ssd: &Ssd, at: Ns) {
        match &self.disk {
            // What a host that loses its power keeps is all that there is: closing syncs.
            Some(disk) => {
                let _ = ssd.close(); // what it does not keep the next life misses
                let left = disk.borrow().after(Loss::Host, &mut Rng::new(at.as_ns()));
                *disk.borrow_mut() = Arc::new(left);
            }
            None => drop(ssd.power_cut(at, PowerOn::ClockRestarts)),
        }
    }

    /// A witness for all lives of a device on which things go wrong.
    fn witness(&self, ssd: &Arc<Ssd>, boot: &Boot) -> Option<Arc<Witness>> {
        self.faulty.then(|| Arc::new(Witness::new(ssd.clone(), boot.oracle.clone())))
    }

    /// The device, with whoever looks on in this life.
    fn watched(
        &self,
        ssd: &Arc<Ssd>,
        witness: Option<Arc<Witness>>,
        boot: &Boot,
    ) -> Arc<dyn Device> {
        let mut device: Arc<dyn Device> = match witness {
            Some(witness) => witness,
            None => ssd.clone(),
        };
        if let Some(moments) = &boot.moments {
            device = Arc::new(NotingDevice::new(device, moments.clone()));
        }
        if let Some(aim) = &boot.aim {
            let medium = self.aims.then(|| ssd.clone());
            // What was aimed at the life before and did not come.
            medium.iter().for_each(|ssd| ssd.forgive());
            device = Arc::new(AimedDevice::new(device, aim.clone(), medium));
        }
        boot.medium.put(ssd, &boot.moments);
        let geo = *device.geometry();
        match (self.pus, self.chunks) {
            (None, None) => device,
            (pus, chunks) => {
                let pus = pus.unwrap_or((0, geo.pus() - 1));
                let chunks = chunks.unwrap_or((0, geo.chunks_per_pu - 1));
                Arc::new(Partition::of_chunks(device, pus, chunks))
            }
        }
    }

    /// Doubles the device; false when it is large enough for anything.
    fn enlarge(&self) -> bool {
        if self.fixed {
            return false;
        }
        let mut spec = self.spec.borrow_mut();
        let chunks = spec.geometry.chunks_per_pu * 2;
        *spec = spec.clone().with_chunks_per_pu(chunks);
        chunks <= CHUNKS_MAX
    }

    fn describe_device(&self) -> String {
        let mut text = devices::describe(&self.spec.borrow(), &self.options);
        if self.faulty {
            text = format!("{text}, faults {}", devices::describe_faults(&self.options));
        }
        match &self.link {
            Some(link) => format!("{text}, {link:?}"),
            None => text,
        }
    }
}

/// No rule of the medium was broken.
fn no_violations(ssd: &Ssd) -> Result<(), String> {
    let count = ssd.counters().violations;
    match ssd.violations().first() {
        None if count == 0 => Ok(()),
        first => Err(format!(
            "{count} violations, first: {}",
            first.map_or("?".into(), |v| v.to_string())
        )),
    }
}

fn programmed(ssd: &Ssd) -> Programmed {
    ssd.counters().programmed
}

impl<C: Into<LayerSpec>> OnSsd<C> {
    /// With its one layer.
    fn machine(self) -> Rc<dyn Machine> {
        let layers = vec![self.config.into()];
        machine(OnSsd {
            spec: self.spec,
            options: self.options,
            faulty: self.faulty,
            tight: self.tight,
            aims: self.aims,
            link: self.link,
            pus: self.pus,
            chunks: self.chunks,
            fixed: self.fixed,
            disk: self.disk,
            config: layers,
        })
    }
}

/// Layers as something that power cuts happen to.
pub(crate) fn machine(on: OnSsd<Vec<LayerSpec>>) -> Rc<dyn Machine> {
    Rc::new(Layered { on, kept: RefCell::default() })
}

/// Layers on a device, and what is left of them while the power is off.
struct Layered {
    on: OnSsd<Vec<LayerSpec>>,
    kept: RefCell<Kept>,
}

#[derive(Default)]
struct Kept {
    medium: Option<Medium>,
    layers: Option<Layers>,
    saved: Vec<Option<Saved>>,
}

impl Layered {
    /// Creates the layers in the first life, mounts them in a later one. Also says what the medium had
    /// counted before.
    async fn bring_up(&self, boot: &Boot) -> Result<(Arc<Ssd>, Layers, Programmed), String> {
        let (specs, link) = (&self.on.config, self.on.link.as_ref());
        let medium = self.on.found(&self.kept.borrow().medium)?;
        if let Some((ssd, witness)) = medium {
            self.kept.borrow_mut().medium = Some((ssd.clone(), witness.clone()));
            let (device, before) = (self.on.watched(&ssd, witness, boot), programmed(&ssd));
            let saved = self.kept.borrow().saved.clone();
            let make = Make::Mount { find: Find::default(), saved };
            match raise(&boot.cx, device, specs, link, &make).await {
                Ok(layers) => return Ok((ssd, layers, before)),
                // The first life was cut before the target was there.
                Err(e)
                    if matches!(e.refusal, Refusal::Nothing | Refusal::HalfMade)
                        && boot.oracle.get().is_none() => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        loop {
            let ssd = self.on.ssd()?;
            let witness = self.on.witness(&ssd, boot);
            let device = self.on.watched(&ssd, witness.clone(), boot);
            self.kept.borrow_mut().medium = Some((ssd.clone(), witness));
            match raise(&boot.cx, device, specs, link, &Make::Create).await {
                Ok(layers) => return Ok((ssd, layers, Programmed::default())),
                // Too small, or for these settings.
                Err(e)
                    if matches!(e.refusal, Refusal::TooSmall | Refusal::Settings)
                        && self.on.enlarge() => {}
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    fn power_off(&self, medium: impl FnOnce(&Ssd)) {
        let mut kept = self.kept.borrow_mut();
        if let Some(layers) = kept.layers.take() {
            kept.saved = layers.power_lost();
        }
        if let Some((ssd, _)) = &kept.medium {
            medium(ssd);
        }
    }
}

/// What may be done to a target in use, where it has knobs.
fn knob(target: &Arc<dyn Layer>) -> Option<Knob> {
    let attributes = target.kind().attributes();
    let target = target.clone();
    let turn = move |cx, draw| -> Boxed<'static, ()> {
        let target = target.clone();
        Box::pin(async move { target.meddle(&cx, draw).await })
    };
    attributes.iter().any(|a| a.knob != layer::Knob::No).then(|| Rc::new(turn) as Knob)
}

impl Machine for Layered {
    fn up(self: Rc<Self>, boot: Boot) -> Boxed<'static, Result<Up, String>> {
        Box::pin(async move {
            let cx = boot.cx.clone();
            let (ssd, layers, before) = self.bring_up(&boot).await?;
            layers.walk().map_err(|e| format!("after bringing it up: {e}"))?;
            self.kept.borrow_mut().layers = Some(layers.clone());
            let (idle, stopping, stopped) = (layers.clone(), layers.clone(), layers.clone());
            let state = layers.clone();
            Ok(Up {
                dev: layers.block(),
                knob: knob(layers.target()),
                check_idle: Box::new(move || {
                    idle.stats().check_host_law()?;
                    idle.walk()
                }),
                may_give_up: self.on.faulty || self.on.tight && layers.cuts_take_room(),
                ack_is_durable: layers.acks_are_durable(),
                state: Box::new(move || state.state()),
                stop: Box::pin(async move {
                    stopping.stop(&cx, Stop::Clean).await.map_err(|e| e.to_string())
                }),
                check_stopped: Box::new(move || {
                    no_violations(&ssd)?;
                    // Those of this life.
                    let mut medium = programmed(&ssd);
                    medium.iter_mut().zip(&before).for_each(|(now, before)| *now -= before);
                    stopped.check_laws(&medium)?;
                    stopped.walk()
                }),
            })
        })
    }
    fn cut(&self, at: Ns, seed: u64) {
        self.power_off(|ssd| self.on.cut(ssd, at, seed));
    }
    fn off(&self, at: Ns) {
        self.power_off(|ssd| self.on.off(ssd, at));
    }
    fn describe(&self) -> String {
        let layers = self.on.config.iter().map(|l| format!(", {:?} {}", l.kind, l.settings));
        format!("{}{}", self.on.describe_device(), layers.collect::<String>())
    }
}

fn pftl(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pftl_on(seed, size, false).machine())
}

fn pftl_faults(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pftl_on(seed, size, true).machine())
}

fn pftl_buffer_faults(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pftl_on(seed, size, true).buffered(seed).machine())
}

fn pftl_on(seed: u64, size: Size, faulty: bool) -> OnSsd<PftlConfig> {
    let mut rng = Rng::stream(seed, "testkit.pftl", 0);
    let config = PftlConfig {
        over_provisioning_percent: devices::one_of(&mut rng, &[12, 20, 30, 50]),
        gc_low_water_lines: devices::one_of(&mut rng, &[2, 2, 3]),
        gc_reads: devices::one_of(&mut rng, &[None, Some(1), Some(3)]),
        dirty_pages: devices::one_of(&mut rng, &[None, None, Some(0)]),
        capacitors: devices::one_of(&mut rng, &[true, false]),
        ..PftlConfig::default()
    };
    let mut on = OnSsd::draw(seed, size, faulty, config);
    if !on.config.capacitors {
        // A barrier pads a unit, or half of a small chunk.
        let least = if on.spec.borrow().cells.pair_damage { 75 } else { 30 };
        on.config.over_provisioning_percent = on.config.over_provisioning_percent.max(least);
    }
    on
}

fn pblk(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pblk_on(seed, size, false).machine())
}

fn pblk_faults(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pblk_on(seed, size, true).machine())
}

/// Wear leveling and scrubbing, at a pace at which a short run sees them, on cells that decay as
/// fast; with the faults of the seed in every second one.
fn pblk_care(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    let mut on = pblk_on(seed, size, seed % 2 == 1);
    let mut rng = Rng::stream(seed, "testkit.care", 0);
    let r = &mut rng;
    use WearLeveling::{Off, Static};
    on.config.wear = WearConfig {
        leveling: devices::one_of(r, &[Off, Static, Static, Static]),
        spread: devices::one_of(r, &[1, 1, 3, 10]),
    };
    on.config.scrub = ScrubConfig {
        mode: devices::one_of(r, &[Scrub::Off, Scrub::Reads, Scrub::Patrol, Scrub::Patrol]),
        interval: devices::one_of(r, &[Ns::from_ms(1), Ns::from_ms(50), Ns::from_secs(2)]),
        sectors: devices::one_of(r, &[1, 1, 3]),
    };
    on.spec.borrow_mut().ecc = Some(devices::decaying(r));
    // What can't be corrected is excused.
    on.faulty = true;
    Ok(on.machine())
}

fn pblk_buffer(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pblk_on(seed, size, false).buffered(seed).machine())
}

fn pblk_buffer_faults(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(pblk_on(seed, size, true).buffered(seed).machine())
}

fn qblk(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(qblk_on(seed, size, false).machine())
}

fn qblk_faults(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(qblk_on(seed, size, true).machine())
}

fn qblk_buffer_faults(seed: u64, size: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(qblk_on(seed, size, true).buffered(seed).machine())
}

fn pblk_image(seed: u64, _: Size) -> Result<Rc<dyn Machine>, String> {
    Ok(qblk_on(seed, Size::Tight, false).imaged().machine())
}

fn pftl_image(seed: u64, _: Size) -> Result<Rc<dyn Machine>, String> {
    let mut on = pftl_on(seed, Size::Tight, false).imaged();
    // The capacitors of the emulated device save nothing of this process's memory.
    on.config.capacitors = false;
    on.config.over_provisioning_percent = on.config.over_provisioning_percent.max(75);
    Ok(on.machine())
}

/// QBLK, or something between pblk and it: each switch by itself, all of them most of the time.
fn qblk_on(seed: u64, size: Size, faulty: bool) -> OnSsd<LogConfig> {
    let mut on = pblk_on(seed, size, faulty);
    let mut rng = Rng::stream(seed, "testkit.qblk", 0);
    let r = &mut rng;
    let c = &mut on.config;
    let all = r.below(2) == 0;
    let on_or = |r: &mut Rng| all || r.below(2) == 0;
    if on_or(r) {
        c.rings = RingSet::PerCore;
    }
    if on_or(r) {
        c.pools = PoolSet::PerChannel;
    }
    if on_or(r) {
        c.map = MapAccess::Atomic;
    }
    if on_or(r) {
        c.drain = Drain::Large;
    }
    c.cores = devices::one_of(r, &[1, 2, 3, 4]);
    c.pu_budget = devices::one_of(r, &[1, 2, 8, 8]);
    c.in_turn = r.below(3) == 0;
    c.borrow = r.below(3) == 0;
    c.limiter = devices::one_of(r, &[LimiterKind::ChannelStates, LimiterKind::Pid]);
    on
}

fn pblk_on(seed: u64, size: Size, faulty: bool) -> OnSsd<LogConfig> {
    let mut rng = Rng::stream(seed, "testkit.pblk", 0);
    let config = LogConfig {
        over_provisioning_percent: devices::one_of(&mut rng, &[11, 20, 30, 50]),
        active_pus: devices::one_of(&mut rng, &[0, 0, 1]),
        ring_sectors: devices::one_of(&mut rng, &[None, Some(256)]),
        ..LogConfig::default()
    };
    let mut on = OnSsd::draw(seed, size, faulty, config);
    if on.spec.borrow().cells.pair_damage {
        // Collections pad, too: the least spare that covers it, at least the default's 11%.
        on.config.over_provisioning_percent = 0;
    }
    // As it is, a checkpoint of so small a target is one shard. Of small ones three times two copies take a
    // share of the device, however large that is.
    let small = [(0, 0), (0, 0), (64, 50), (128, 30)];
    let (units, spare) = devices::one_of(&mut Rng::stream(seed, "testkit.shards", 0), &small);
    on.config.shard_entries = units * on.spec.borrow().geometry.ws_min;
    if on.config.over_provisioning_percent > 0 {
        on.config.over_provisioning_percent = on.config.over_provisioning_percent.max(spare);
    }
    on
}
