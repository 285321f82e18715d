//! A device from its spec.
//!
//! Owns: the construction of an [`Ssd`]. Promises: a spec that passes its check makes a device;
//! nothing is allocated in proportion to its capacity but a word or ten per chunk.
//! Never: runs after construction.

use super::buffer::Buffer;
use super::decode::Decoder;
use super::rows::Times;
use super::{Chan, Ssd, admin};
use crate::device::{CellMode, Traits};
use crate::pipe::Pipe;
use crate::spec::{DeviceSpec, SpecError, SsdOptions, StoreKind};
use flashlane_base::{FastDiv, Ns, PpaFormat, Rng};
use flashlane_media::cells::{CellParams, Cells};
use flashlane_media::compact::Pool;
use flashlane_media::counters::{Counters, SlcCount};
use flashlane_media::errors::ErrorModel;
use flashlane_media::fault::Faults;
use flashlane_media::store::{Elsewhere, Store, Trouble};
use flashlane_media::timing::{DieQueue, Timing, TimingParams};
use flashlane_rt::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

impl Ssd {
    /// A new device, erased, with the factory bad blocks of its seed.
    ///
    /// # Errors
    /// The spec or the fault plan is impossible, or the store is `file`: that is an image's.
    pub fn new(spec: &DeviceSpec, options: SsdOptions) -> Result<Arc<Ssd>, SpecError> {
        let ssd = Ssd::in_memory(spec, options)?;
        ssd.mark_factory_bad();
        Ok(Arc::new(ssd))
    }

    /// A device without a history, not even bad blocks.
    pub(super) fn in_memory(spec: &DeviceSpec, options: SsdOptions) -> Result<Ssd, SpecError> {
        let trouble = Arc::new(Trouble::default());
        let sectors = spec.geometry().sectors_per_chunk();
        let pool = (options.store == StoreKind::Compact)
            .then(|| Pool::new(options.compact_cap, std::env::temp_dir()))
            .map(|pool| Arc::new(std::sync::Mutex::new(pool)));
        let ssd = match (options.store, &pool) {
            (StoreKind::File, _) => {
                return Err(SpecError::Value {
                    device: spec.name.clone(),
                    key: "store",
                    problem: "is `file`: create an image and open it".into(),
                });
            }
            (_, Some(pool)) => {
                let shared = || Elsewhere::Compact(pool.clone(), trouble.clone());
                Ssd::build(spec, options, || Store::elsewhere(shared(), sectors))?
            }
            (kind, None) => Ssd::build(spec, options, || Store::new(kind, sectors))?,
        };
        Ok(Ssd { trouble, pool, ..ssd })
    }

    /// A device without a history, each channel with a store of its own.
    pub(super) fn build(
        spec: &DeviceSpec,
        options: SsdOptions,
        store: impl Fn() -> Store,
    ) -> Result<Ssd, SpecError> {
        spec.check()?;
        let geo = spec.geometry();
        let format = PpaFormat::new(spec.ppa, &geo);
        let queue = options.queue.unwrap_or(spec.timing.queue);
        let faults = !options.faults.is_empty();
        options.faults.check(geo.pus(), geo.chunks_per_pu, geo.sectors_per_chunk())?;
        let command = if options.timing { spec.timing.command } else { Ns::ZERO };
        let hazards = options.hazards.then(Box::default);
        Ok(Ssd {
            traits: traits(spec, &options),
            times: Times::new(spec),
            command,
            channels: (0..geo.channels)
                .map(|c| Mutex::new(channel(spec, &options, queue, command, c, store())))
                .collect(),
            write_pipe: Pipe::new(limit(spec.timing.controller_write, &options)),
            read_pipe: Pipe::new(limit(spec.timing.controller_read, &options)),
            decoder: Decoder::new(format, &geo),
            open: AtomicU64::new(0),
            violations: Mutex::default(),
            errors: spec.ecc.map(ErrorModel::new),
            faults: Mutex::new(Faults::new(&options.faults, options.seed)),
            armed: AtomicBool::new(faults),
            fragile: faults
                || spec.ecc.is_some()
                || matches!(options.store, StoreKind::Compact | StoreKind::File),
            notices: admin::Notices::default(),
            cuts: AtomicU64::new(0),
            marks: Mutex::new(admin::Marks::new(&geo)),
            spare: Mutex::default(),
            epoch: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            spec: spec.clone(),
            options,
            ws_min: FastDiv::new(geo.ws_min),
            slc_ws_min: FastDiv::new(spec.slc_mode().map_or(geo.ws_min, |slc| slc.ws_min)),
            row: FastDiv::new(geo.sectors_per_row()),
            page: FastDiv::new(geo.sectors_per_page),
            geo,
            trouble: Arc::default(),
            pool: None,
            image: None,
            buffer: Buffer::of(spec),
            hazards,
        })
    }
}

fn limit(rate: Option<flashlane_base::Bytes>, options: &SsdOptions) -> u64 {
    match rate {
        Some(rate) if options.timing => rate.get(),
        _ => 0,
    }
}

fn traits(spec: &DeviceSpec, options: &SsdOptions) -> Traits {
    let geo = spec.geometry();
    let mean = |list: &[Ns]| {
        let sum: u64 = list.iter().map(|t| t.as_ns()).sum();
        Ns::from_ns(sum / list.len().max(1) as u64)
    };
    let unit = spec.transfer(geo.ws_min);
    let zero = !options.timing;
    let typical =
        (mean(&spec.timing.read) + unit, mean(&spec.timing.program) + unit, spec.timing.erase);
    Traits {
        pair_damage: spec.cells.pair_damage,
        pair_sectors: match (spec.cells.pair_damage, spec.page_map()) {
            (false, _) => 0,
            (true, Some(pages)) => (pages.reach() + 1) * geo.sectors_per_row(),
            (true, None) => geo.mw_cunits,
        },
        content_bytes: options.store.content_bytes(),
        max_open: (spec.limits.max_open, spec.limits.max_open_per_pu),
        dulbe: options.dulbe,
        volatile: options.store == StoreKind::File,
        buffered: spec.limits.write_buffer.is_some() && !spec.limits.capacitors,
        slc: spec.slc_mode(),
        reset_open: spec.limits.reset_open,
        typical: if zero { Default::default() } else { typical },
    }
}

fn channel(
    spec: &DeviceSpec,
    options: &SsdOptions,
    queue: DieQueue,
    command: Ns,
    number: u32,
    store: Store,
) -> Chan {
    let geo = spec.geometry();
    let time = Timing::new(TimingParams {
        dies: geo.pus_per_channel,
        planes: geo.planes,
        command,
        queue,
        read_burst: spec.timing.read_burst,
        suspend_cost: spec.timing.suspend_cost,
        cache_read: spec.timing.cache_read,
        cache_program: spec.timing.cache_program,
        max_in_flight: if options.timing { spec.timing.max_in_flight } else { 0 },
    });
    let cells = CellParams {
        first_chunk: number * geo.pus_per_channel * geo.chunks_per_pu,
        dies: geo.pus_per_channel,
        chunks_per_die: geo.chunks_per_pu,
        sectors: geo.sectors_per_chunk(),
        row: geo.sectors_per_row(),
        bits: spec.cells.bits,
        window: geo.mw_cunits,
        pairs: spec.page_map(),
        rated_erases: spec.cells.rated_erases_in(CellMode::Native),
        rated_erases_slc: spec.cells.rated_erases_in(CellMode::Slc),
    };
    let first = number * geo.pus_per_channel;
    let streams = |name| {
        (first..first + geo.pus_per_channel)
            .map(|pu| Rng::stream(options.seed, name, pu as u64))
            .collect()
    };
    Chan {
        time,
        cells: Cells::new(cells, store),
        count: Counters::default(),
        slc: SlcCount::default(),
        extra: Vec::new(),
        read_rng: streams("media.read"),
        wear_rng: streams("media.wear"),
        dead: vec![false; geo.pus_per_channel as usize],
    }
}
