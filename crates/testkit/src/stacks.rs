//! The table of stacks: everything that gives a block device and must stand the swarm.
//!
//! Owns: how each is built from a seed, what must hold when it is idle and when it has stopped.
//! Promises: a new stack is one row here, and every harness (tests, soak, canaries) runs it.
//! Never: decides what is asked of a stack.

use crate::aim::AimedDevice;
use crate::devices::{self, Size};
use crate::disk::{Disk, Loss, Trouble};
use crate::files::FILES;
use crate::harness::{Boot, Machine, Stack, Subject, Up};
use crate::hinting::Hinting;
use crate::moments::NotingDevice;
use crate::ram::{Keep, Ram};
use crate::swarm::{Boxed, Knob};
use crate::vanish::{Troubled, Vanishing};
use crate::witness::Witness;
use flashlane_base::{Geometry, Ns, Rng};
use flashlane_ftl::layer::{self, Find, Layer, MountHow, Refusal, Saved, Stop};
use flashlane_ftl::log::{
    ChannelChoice, Drain, Drainers, LimiterKind, LogConfig, MapAccess, PoolSet, RingSet, Scrub,
    ScrubConfig, WearConfig, WearLeveling,
};
use flashlane_ftl::pftl::{MapKind, PftlConfig, Victim};
use flashlane_ftl::slc::{Scheme, SlcConfig};
use flashlane_ocssd::device::{ChunkInfo, ChunkState};
use flashlane_ocssd::spec::{LinkSpec, SlcSpec};
use flashlane_ocssd::{
    CreateImage, Device, DeviceSpec, OpenImage, Partition, PowerOn, Ssd, SsdOptions, StoreKind,
};
use flashlane_stack::{LayerSpec, Layers, Make, Programmed, raise};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Every stack. Seeds are chosen so that the default test run stays within its minute.
pub const STACKS: &[Stack] = &[
    row("ram", 200, 1, ram),
    row("pftl", 60, 10, |seed, size| pftl(seed, size).machine()),
    row("pftl-faults", 60, 10, |seed, size| pftl(seed, size).faulty().machine()),
    row("pblk-faults", 40, 10, |seed, size| pblk(seed, size).faulty().machine()),
    row("pblk", 40, 10, |seed, size| pblk(seed, size).machine()),
    row("pblk-care-faults", 30, 10, pblk_care),
    row("pblk-buffer", 24, 10, |seed, size| pblk(seed, size).buffered().machine()),
    row("pblk-buffer-faults", 24, 10, |seed, size| pblk(seed, size).faulty().buffered().machine()),
    row("qblk", 40, 10, |seed, size| qblk(seed, size).machine()),
    row("qblk-faults", 40, 10, |seed, size| qblk(seed, size).faulty().machine()),
    row("qblk-buffer-faults", 16, 10, |seed, size| qblk(seed, size).faulty().buffered().machine()),
    row("pftl-buffer-faults", 16, 10, |seed, size| pftl(seed, size).faulty().buffered().machine()),
    row("pblk-image", 16, 3, |seed, _| qblk(seed, Size::Tight).imaged().machine()),
    row("pftl-image", 16, 5, pftl_image),
    row("slc-tlc", 60, 10, |seed, size| slc(seed, size).machine()),
    row("slc-tlc-faults", 60, 10, |seed, size| slc(seed, size).faulty().machine()),
    row("slc-tlc-image", 16, 5, |seed, _| slc(seed, Size::Tight).imaged().machine()),
    row("pftl-vanish", 24, 10, |seed, size| pftl(seed, size).vanishing()),
    row("pblk-vanish", 24, 10, |seed, size| telling(pblk(seed, size)).vanishing()),
    row("qblk-vanish", 24, 10, |seed, size| telling(qblk(seed, size)).vanishing()),
    row("slc-tlc-vanish", 24, 10, |seed, size| slc(seed, size).vanishing()),
    row("pftl-records", 24, 10, |seed, size| pftl_recorded(seed, size).vanishing()),
    row("slc-tlc-records", 24, 10, |seed, size| slc_recorded(seed, size).vanishing()),
    row("pblk-image-trouble", 8, 3, |seed, _| qblk(seed, Size::Tight).troubled()),
    row("pftl-image-trouble", 8, 5, |seed, _| pftl_imaged(seed).troubled()),
    row("slc-tlc-image-trouble", 8, 5, |seed, _| slc(seed, Size::Tight).troubled()),
];

const fn row(
    name: &'static str,
    seeds: u64,
    share: u64,
    machine: fn(u64, Size) -> Rc<dyn Machine>,
) -> Stack {
    Stack { name, seeds, lives: 4, share, machine }
}

pub fn find(name: &str) -> Option<&'static Stack> {
    STACKS.iter().find(|s| s.name == name)
}

/// Everything that can be tortured: stacks, and file systems.
pub fn subjects() -> impl Iterator<Item = &'static dyn Subject> {
    let stacks = STACKS.iter().map(|stack| stack as &dyn Subject);
    stacks.chain(FILES.iter().map(|files| files as &dyn Subject))
}

/// The subjects that a command line names: all of [`subjects`] for `all`, else the one of that
/// name; empty for an unknown name.
pub fn named(name: &str) -> Vec<&'static dyn Subject> {
    subjects().filter(|s| name == "all" || s.name() == name).collect()
}

struct RamMachine(Arc<Ram>);

fn ram(seed: u64, _: Size) -> Rc<dyn Machine> {
    let mut rng = Rng::stream(seed, "testkit.ram", 0);
    let capacity = devices::one_of(&mut rng, &[1, 2, 65, 1000, 4096]);
    let content = devices::one_of(&mut rng, &[8, 8, 4096]);
    let latency = devices::one_of(&mut rng, &[0, 1, 50, 2000]);
    Rc::new(RamMachine(Arc::new(Ram::new(capacity, content, Ns::from_us(latency), seed))))
}

impl Machine for RamMachine {
    fn up(self: Rc<Self>, _: Boot) -> Boxed<'static, Result<Up, String>> {
        Box::pin(async move {
            Ok(Up {
                dev: self.0.clone(),
                knob: None,
                check_idle: Box::new(|| Ok(())),
                may_give_up: false,
                reads_may_fail: false,
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

/// The emulated SSD of a machine.
pub(crate) struct OnSsd {
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
    /// Of the host's sectors, those that it calls a journal's, in 1/1000.
    pub(crate) journal: u64,
}

/// A device, and the settings of its one layer while they are drawn.
struct Drawn<C> {
    on: OnSsd,
    config: C,
}

/// A medium, and who watches it where things go wrong on it.
type Medium = (Arc<Ssd>, Option<Arc<Witness>>);

/// Chunks that a device may be enlarged to when a layer finds it too small; the shortest have 8 sectors.
const CHUNKS_MAX: u32 = 8192;

impl<C: Into<LayerSpec>> Drawn<C> {
    fn new(seed: u64, size: Size, config: C) -> Drawn<C> {
        let (spec, options) = devices::small(seed, size);
        let on = OnSsd {
            spec: RefCell::new(spec),
            options,
            faulty: false,
            tight: size == Size::Tight,
            aims: false,
            link: devices::link(seed),
            pus: None,
            chunks: None,
            fixed: false,
            disk: None,
            journal: 0,
        };
        Drawn { on, config }
    }

    fn faulty(mut self) -> Drawn<C> {
        self.on.options.faults = devices::faults(self.on.options.seed);
        (self.on.faulty, self.on.aims) = (true, true);
        self
    }

    /// The device lives in an image; best a small one, since a loss copies the whole file.
    fn imaged(mut self) -> Drawn<C> {
        self.on.disk = Some(RefCell::default());
        self
    }

    /// The device has a write buffer.
    fn buffered(mut self) -> Drawn<C> {
        devices::with_buffer(self.on.options.seed, self.on.spec.get_mut());
        self
    }

    /// With its one layer.
    fn machine(self) -> Rc<dyn Machine> {
        machine(self.on, vec![self.config.into()])
    }

    /// The stack in an image on a host's disk that fails now and then.
    fn troubled(mut self) -> Rc<dyn Machine> {
        self.on.disk = Some(RefCell::default());
        let (seed, specs) = (self.on.options.seed, vec![self.config.into()]);
        let inner = Layered { on: self.on, specs, kept: RefCell::default() };
        Troubled::over(Rc::new(inner), seed)
    }

    /// The stack on a medium of at least two PUs, of which whole failure units vanish.
    fn vanishing(mut self) -> Rc<dyn Machine> {
        let spec = self.on.spec.get_mut();
        if spec.geometry.channels * spec.geometry.pus_per_channel < 2 {
            spec.geometry.channels = 2;
        }
        self.on.options.faults = devices::never();
        let (seed, specs) = (self.on.options.seed, vec![self.config.into()]);
        let inner = Layered { on: self.on, specs, kept: RefCell::default() };
        Vanishing::over(Rc::new(inner), seed)
    }
}

impl OnSsd {
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
        let device: Arc<dyn Device> = match witness {
            Some(witness) => witness,
            None => ssd.clone(),
        };
        let device = watched(device, ssd, self.aims, boot);
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

/// A device, with whoever looks on in this life; faults may be aimed where it `aims`.
pub(crate) fn watched(
    mut device: Arc<dyn Device>,
    ssd: &Arc<Ssd>,
    aims: bool,
    boot: &Boot,
) -> Arc<dyn Device> {
    if let Some(moments) = &boot.moments {
        device = Arc::new(NotingDevice::new(device, moments.clone()));
    }
    if let Some(aim) = &boot.aim {
        let medium = aims.then(|| ssd.clone());
        // What was aimed at the life before and did not come.
        medium.iter().for_each(|ssd| ssd.forgive());
        device = Arc::new(AimedDevice::new(device, aim.clone(), medium));
    }
    boot.medium.put(ssd, &boot.moments);
    device
}

/// No rule of the medium was broken.
pub(crate) fn no_violations(ssd: &Ssd) -> Result<(), String> {
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

/// Layers as something that power cuts happen to.
pub(crate) fn machine(on: OnSsd, specs: Vec<LayerSpec>) -> Rc<dyn Machine> {
    Rc::new(Layered { on, specs, kept: RefCell::default() })
}

/// Why a stack did not come up.
pub(crate) struct Unmounted {
    /// The reason of the layer that refused its mount; `None` for any other defect.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) what: String,
}

impl From<String> for Unmounted {
    fn from(what: String) -> Unmounted {
        Unmounted { refusal: None, what }
    }
}

/// Layers on a device, and what is left of them while the power is off.
pub(crate) struct Layered {
    on: OnSsd,
    specs: Vec<LayerSpec>,
    kept: RefCell<Kept>,
}

#[derive(Default)]
struct Kept {
    medium: Option<Medium>,
    layers: Option<Layers>,
    saved: Vec<Option<Saved>>,
    /// The chunks that were closed early when the first mount began that has not ended.
    early_before: Option<BTreeSet<(u32, u32)>>,
}

impl Layered {
    /// Creates the layers in the first life, mounts them in a later one. Also says what the medium had
    /// counted before.
    async fn bring_up(
        &self,
        boot: &Boot,
        how: MountHow,
    ) -> Result<(Arc<Ssd>, Layers, Programmed), Unmounted> {
        let (specs, link) = (&self.specs, self.on.link.as_ref());
        let medium = self.on.found(&self.kept.borrow().medium)?;
        if let Some((ssd, witness)) = medium {
            self.kept.borrow_mut().medium = Some((ssd.clone(), witness.clone()));
            let (device, before) = (self.on.watched(&ssd, witness, boot), programmed(&ssd));
            let saved = self.kept.borrow().saved.clone();
            let make = Make::Mount { find: Find { how, ..Find::default() }, saved };
            match raise(&boot.cx, device, specs, link, &make).await {
                Ok(layers) => return Ok((ssd, layers, before)),
                // The first life was cut before the target was there.
                Err(e)
                    if matches!(e.refusal, Refusal::Nothing | Refusal::HalfMade)
                        && boot.oracle.get().is_none() => {}
                Err(e) => {
                    return Err(Unmounted { refusal: Some(e.refusal), what: e.to_string() });
                }
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
                Err(e) => return Err(e.to_string().into()),
            }
        }
    }

    /// True if a program of this mount, or of one before it that was cut, has failed and the device
    /// closed its chunk before the end.
    fn mount_closed_early(&self) -> bool {
        let before = self.kept.borrow().early_before.clone();
        before.is_some_and(|before| !self.closed_early().is_subset(&before))
    }

    /// The chunks that the device has closed before their end, (PU, chunk) each.
    fn closed_early(&self) -> BTreeSet<(u32, u32)> {
        let kept = self.kept.borrow();
        let Some((ssd, _)) = &kept.medium else { return BTreeSet::new() };
        let geo = *ssd.geometry();
        let is_early = |c: &ChunkInfo| c.state == ChunkState::Closed && c.write_pointer < c.length;
        let of_pu = |pu| {
            let report = (0..).zip(ssd.chunk_report(pu, 0, geo.chunks_per_pu));
            report.filter(|(_, c)| is_early(c)).map(move |(chunk, _)| (pu, chunk))
        };
        (0..geo.pus()).flat_map(of_pu).collect()
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

impl Layered {
    /// Brings the stack up: creates it in the first life, and mounts it as `how` says in a later
    /// one.
    pub(crate) async fn raised(&self, boot: &Boot, how: MountHow) -> Result<Up, Unmounted> {
        let cx = boot.cx.clone();
        let (ssd, layers, before) = self.bring_up(boot, how).await?;
        layers.walk().map_err(|e| format!("after bringing it up: {e}"))?;
        self.kept.borrow_mut().layers = Some(layers.clone());
        let (idle, stopping, stopped) = (layers.clone(), layers.clone(), layers.clone());
        let state = layers.clone();
        let mut dev = layers.block();
        if self.on.journal > 0 {
            let sectors = dev.info().capacity * self.on.journal / 1000;
            dev = Arc::new(Hinting::new(dev, sectors));
        }
        Ok(Up {
            dev,
            knob: knob(layers.target()),
            check_idle: Box::new(move || {
                idle.stats().check_host_law()?;
                idle.walk()
            }),
            may_give_up: self.on.faulty || self.on.tight && layers.cuts_take_room(),
            reads_may_fail: false,
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
    }

    /// The medium, once there is one.
    pub(crate) fn medium(&self) -> Option<Arc<Ssd>> {
        self.kept.borrow().medium.as_ref().map(|(ssd, _)| ssd.clone())
    }

    /// Sets how the host's disk below the image fails from now on; `None`: it works.
    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) {
        self.on.disk.iter().for_each(|disk| disk.borrow().set_trouble(trouble));
    }

    /// The process is killed and another one begins; the disk works.
    pub(crate) fn restart(&self, seed: u64) {
        self.kept.borrow_mut().layers = None;
        let Some(disk) = &self.on.disk else { return };
        let left = disk.borrow().after(Loss::Process, &mut Rng::new(seed));
        *disk.borrow_mut() = Arc::new(left);
    }

    /// The layers of the life that is under way, or of the last one until its power goes off.
    pub(crate) fn layers(&self) -> Option<Layers> {
        self.kept.borrow().layers.clone()
    }
}

impl Machine for Layered {
    fn up(self: Rc<Self>, boot: Boot) -> Boxed<'static, Result<Up, String>> {
        Box::pin(async move {
            if self.kept.borrow().early_before.is_none() {
                let early = self.closed_early();
                self.kept.borrow_mut().early_before = Some(early);
            }
            let up = match self.raised(&boot, MountHow::default()).await {
                // A chunk whose only unit was torn, and which a failed program of a mount then
                // closed, looks like one that went bad with what was flushed.
                Err(e) if e.refusal == Some(Refusal::Lost) && self.mount_closed_early() => {
                    boot.oracle.get().iter().for_each(|oracle| oracle.admit_any_error());
                    let how = MountHow { accept_lost: true, ..MountHow::default() };
                    self.raised(&boot, how).await
                }
                up => up,
            };
            self.kept.borrow_mut().early_before = None;
            up.map_err(|unmounted| unmounted.what)
        })
    }
    fn cut(&self, at: Ns, seed: u64) {
        self.power_off(|ssd| self.on.cut(ssd, at, seed));
    }
    fn off(&self, at: Ns) {
        self.power_off(|ssd| self.on.off(ssd, at));
    }
    fn describe(&self) -> String {
        let layers = self.specs.iter().map(|l| format!(", {:?} {}", l.kind, l.settings));
        format!("{}{}", self.on.describe_device(), layers.collect::<String>())
    }
}

fn pftl(seed: u64, size: Size) -> Drawn<PftlConfig> {
    let mut rng = Rng::stream(seed, "testkit.pftl", 0);
    let config = PftlConfig {
        over_provisioning_percent: devices::one_of(&mut rng, &[12, 20, 30, 50]),
        gc_low_water_lines: devices::one_of(&mut rng, &[2, 2, 3]),
        gc_reads: devices::one_of(&mut rng, &[None, Some(1), Some(3)]),
        dirty_pages: devices::one_of(&mut rng, &[None, None, Some(0)]),
        capacitors: devices::one_of(&mut rng, &[true, false]),
        victim: devices::one_of(&mut rng, &[Victim::Line, Victim::Block]),
        map: devices::one_of(&mut rng, &[MapKind::Whole, MapKind::Whole, MapKind::Cached]),
        map_cache: Some(devices::one_of(&mut rng, &[1, 20, 500])),
        ..PftlConfig::default()
    };
    let mut drawn = Drawn::new(seed, size, config);
    // Much is collected before anything is erased, where so much is asked for.
    let mut rng = Rng::stream(seed, "testkit.pftl.low-water", 0);
    if rng.below(8) == 0 {
        drawn.config.gc_low_water_lines = devices::one_of(&mut rng, &[4, 6, 8]);
    }
    if !drawn.config.capacitors {
        // A barrier pads a unit, or half of a small chunk.
        let least = if drawn.on.spec.get_mut().cells.pair_damage { 75 } else { 30 };
        drawn.config.over_provisioning_percent = drawn.config.over_provisioning_percent.max(least);
    }
    drawn
}

/// The SLC/TLC SSD, in both forms, on cells of two or three bits, seldom of one; a part of the host's sectors is a
/// journal's, which may be more than the journal region holds.
fn slc(seed: u64, size: Size) -> Drawn<SlcConfig> {
    let mut rng = Rng::stream(seed, "testkit.slc", 0);
    let r = &mut rng;
    let mut drawn = Drawn::new(seed, size, SlcConfig::default());
    let spec = drawn.on.spec.get_mut();
    let bits = devices::one_of(r, &[2, 3]);
    if Rng::stream(seed, "testkit.slc.one-bit", 0).below(8) > 0 {
        spec.cells.bits = spec.cells.bits.max(bits);
    }
    let page = spec.geometry.sectors_per_page;
    let row = page * spec.geometry.planes;
    let ws_min = devices::one_of(r, &[page, page, row]);
    spec.cells.slc = Some(SlcSpec {
        read: Ns::from_us(20),
        program: Ns::from_us(120),
        erase: Ns::from_ms(1),
        rated_erases: 0,
        ws_min: Some(ws_min),
    });
    spec.limits.reset_free = true;
    let pus = spec.geometry.channels * spec.geometry.pus_per_channel;
    let scheme = devices::one_of(r, &[Scheme::Conventional, Scheme::Journal, Scheme::Journal]);
    let journal = scheme == Scheme::Journal;
    let widths: Vec<u32> = (1..=pus).filter(|n| pus.is_multiple_of(*n)).collect();
    let width = devices::one_of(r, &widths);
    let lines = 2 + r.below(3 * (pus / width) as u64) as u32;
    let taken = if journal { lines.div_ceil(pus / width) } else { 0 };
    let slc_chunks = taken + 2 + r.below(3) as u32;
    if spec.geometry.chunks_per_pu < slc_chunks + 12 {
        *spec = spec.clone().with_chunks_per_pu(slc_chunks + 12);
    }
    drawn.config = SlcConfig {
        scheme,
        slc_chunks: Some(slc_chunks),
        journal_lines: journal.then_some(lines),
        journal_line_pus: journal.then_some(width),
        idle: devices::one_of(r, &[Ns::from_us(1), Ns::from_us(500), Ns::from_ms(5)]),
        migration_mib_per_s: devices::one_of(r, &[None, None, Some(1), Some(100)]),
        detect: r.below(2) == 0,
        // As for a block SSD without capacitors: a barrier pads a unit, or half of a small chunk.
        over_provisioning_percent: if drawn.on.spec.get_mut().cells.pair_damage { 75 } else { 30 },
        gc_low_water_lines: devices::one_of(r, &[2, 2, 3]),
        gc_reads: devices::one_of(r, &[None, Some(1), Some(3)]),
        ..SlcConfig::default()
    };
    drawn.on.journal = devices::one_of(r, &[0, 20, 100, 300]);
    drawn
}

/// A block SSD whose flushes leave records.
fn pftl_recorded(seed: u64, size: Size) -> Drawn<PftlConfig> {
    let mut drawn = pftl(seed, size);
    (drawn.config.capacitors, drawn.config.flush_records) = (false, true);
    let least = if drawn.on.spec.get_mut().cells.pair_damage { 76 } else { 35 };
    drawn.config.over_provisioning_percent = drawn.config.over_provisioning_percent.max(least);
    drawn
}

/// An SLC/TLC SSD whose flushes leave records.
fn slc_recorded(seed: u64, size: Size) -> Drawn<SlcConfig> {
    let mut drawn = slc(seed, size);
    drawn.config.flush_records = true;
    drawn.config.over_provisioning_percent += 3;
    drawn
}

/// A block SSD of the seed that keeps contents, with so many chunks of a PU at least; its flash.
pub(crate) fn block_ssd(
    seed: u64,
    size: Size,
    faulty: bool,
    chunks: u32,
) -> (Rc<dyn Machine>, Geometry) {
    let mut drawn = pftl(seed, size);
    if faulty {
        drawn = drawn.faulty();
    }
    drawn.on.options.store = StoreKind::Memory;
    let spec = drawn.on.spec.get_mut();
    let chunks = chunks.max(spec.geometry.chunks_per_pu);
    *spec = spec.clone().with_chunks_per_pu(chunks);
    let flash = spec.geometry();
    (drawn.machine(), flash)
}

fn pftl_image(seed: u64, _: Size) -> Rc<dyn Machine> {
    pftl_imaged(seed).machine()
}

fn pftl_imaged(seed: u64) -> Drawn<PftlConfig> {
    let mut drawn = pftl(seed, Size::Tight).imaged();
    // The capacitors of the emulated device save nothing of this process's memory.
    drawn.config.capacitors = false;
    drawn.config.over_provisioning_percent = drawn.config.over_provisioning_percent.max(75);
    drawn
}

/// Wear leveling and scrubbing, at a pace at which a short run sees them, on cells that decay as
/// fast; with the faults of the seed in every second one.
fn pblk_care(seed: u64, size: Size) -> Rc<dyn Machine> {
    let mut drawn = pblk(seed, size);
    if seed % 2 == 1 {
        drawn = drawn.faulty();
    }
    let mut rng = Rng::stream(seed, "testkit.care", 0);
    let r = &mut rng;
    use WearLeveling::{Off, Static};
    drawn.config.wear = WearConfig {
        leveling: devices::one_of(r, &[Off, Static, Static, Static]),
        spread: devices::one_of(r, &[1, 1, 3, 10]),
    };
    drawn.config.scrub = ScrubConfig {
        mode: devices::one_of(r, &[Scrub::Off, Scrub::Reads, Scrub::Patrol, Scrub::Patrol]),
        interval: devices::one_of(r, &[Ns::from_ms(1), Ns::from_ms(50), Ns::from_secs(2)]),
        sectors: devices::one_of(r, &[1, 1, 3]),
    };
    drawn.on.spec.get_mut().ecc = Some(devices::decaying(r));
    // What can't be corrected is excused.
    drawn.on.faulty = true;
    drawn.machine()
}

/// QBLK, or something between pblk and it: each switch by itself, all of them most of the time.
fn qblk(seed: u64, size: Size) -> Drawn<LogConfig> {
    let mut drawn = pblk(seed, size);
    let mut rng = Rng::stream(seed, "testkit.qblk", 0);
    let r = &mut rng;
    let c = &mut drawn.config;
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
    if r.below(3) == 0 {
        c.channel_choice = ChannelChoice::Turn;
    }
    c.borrow = r.below(3) == 0;
    c.limiter = devices::one_of(r, &[LimiterKind::ChannelStates, LimiterKind::Pid]);
    // Drawn last, so that the draws before them are what they were for a seed.
    if r.below(6) == 0 {
        c.channel_choice = ChannelChoice::Shared;
    }
    c.in_ring_order = r.below(4) == 0;
    c.full_ring_retry = r.below(8) == 0;
    c.drainers = devices::one_of(r, &[Drainers::Bound, Drainers::Bound, Drainers::Floating]);
    c.completion_cores = devices::one_of(r, &[0, 0, 0, 1]);
    drawn
}

/// Most of the time flushes tell what they have programmed, so that a lost die is told from what
/// was never durable.
fn telling(mut drawn: Drawn<LogConfig>) -> Drawn<LogConfig> {
    let mut rng = Rng::stream(drawn.on.options.seed, "testkit.telling", 0);
    drawn.config.flush_records = rng.below(4) > 0;
    drawn
}

fn pblk(seed: u64, size: Size) -> Drawn<LogConfig> {
    let mut rng = Rng::stream(seed, "testkit.pblk", 0);
    let config = LogConfig {
        over_provisioning_percent: devices::one_of(&mut rng, &[11, 20, 30, 50]),
        active_pus: devices::one_of(&mut rng, &[0, 0, 1]),
        ring_sectors: devices::one_of(&mut rng, &[None, Some(256)]),
        ..LogConfig::default()
    };
    let mut drawn = Drawn::new(seed, size, config);
    let (config, spec) = (&mut drawn.config, drawn.on.spec.get_mut());
    if spec.cells.pair_damage {
        // Collections pad, too: the least spare that covers it, at least the default's 11%.
        config.over_provisioning_percent = 0;
    }
    // As it is, a checkpoint of so small a target is one shard. Of small ones three times two copies take a
    // share of the device, however large that is.
    let small = [(0, 0), (0, 0), (64, 50), (128, 30)];
    let (units, spare) = devices::one_of(&mut Rng::stream(seed, "testkit.shards", 0), &small);
    config.shard_entries = units * spec.geometry.ws_min;
    if config.over_provisioning_percent > 0 {
        config.over_provisioning_percent = config.over_provisioning_percent.max(spare);
    }
    drawn
}
