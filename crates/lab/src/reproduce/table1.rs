//! LightNVM, Table 1: what one PU, the device and pblk can do.
//!
//! Owns: how each row is measured. Promises: raw rows go through vector commands on named PUs, pblk
//! rows through the block device; the steady row is taken after a ramp and only counts when the run
//! was steady; rows that an interrupt cut short or left out have no value. Never: tunes anything.

use super::{FigureFile, ReproduceError, Row, SEED, Size, Way};
use crate::execute::RunOutcome;
use crate::experiment::{DeviceChoice, Target};
use crate::raw::{Order, Raw, RawStream};
use crate::words::mb_per_s;
use crate::workload::{Amount, Job, Mix, Sizes};
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::log::{LimiterKind, LogConfig};
use flashlane_ocssd::Ssd;
use flashlane_rt::{CostTable, Virtual};
use std::collections::BTreeMap;

const FIGURE: &str = "lightnvm-table1";
/// 64 KiB, the paper's larger request: a page on each plane.
const LARGE: u32 = 16;

enum Measure {
    /// By vector commands.
    Raw(RawStream),
    /// Through pblk, on the device called so.
    Pblk(&'static str),
}

type Values = BTreeMap<String, f64>;

pub(super) fn measure(file: &FigureFile, way: &Way<'_>) -> Result<Vec<Row>, ReproduceError> {
    let device = file.device("westlake");
    let deep = file.parameter("depth_64k") as u32;
    let commands = file.parameter("commands");
    let one = |write, order, sectors, depth| RawStream {
        write,
        order,
        pus: vec![0],
        sectors,
        depth,
        first_chunk: 0,
        chunks: 1,
    };
    let (seq, random) = (Order::Sequential, Order::Random);
    let parts = [
        ("pu_write", Measure::Raw(one(true, seq, LARGE, 1))),
        ("pu_seq_read_4k", Measure::Raw(one(false, seq, 1, 1))),
        ("pu_seq_read_64k", Measure::Raw(one(false, seq, LARGE, deep))),
        ("pu_random_read_4k", Measure::Raw(one(false, random, 1, 1))),
        ("pu_random_read_64k", Measure::Raw(one(false, random, LARGE, deep))),
        ("device_write", Measure::Raw(over_all(device, one(true, seq, LARGE, 1)))),
        ("device_read", Measure::Raw(over_all(device, one(false, seq, LARGE, deep)))),
        // The long ones begin together.
        ("pblk_steady", Measure::Pblk("pblk")),
        (FAST_BUS, Measure::Pblk(FAST_BUS)),
        ("pblk_fresh", Measure::Pblk("pblk")),
    ];
    let all = way.each(&parts, |(id, how)| match how {
        Measure::Raw(stream) => {
            let monitor = (way.watch)(id);
            monitor.progress(id, 0, None);
            if monitor.interrupted() {
                return Ok(None);
            }
            let rate = raw_rate(device, stream.clone(), commands)?;
            Ok(Some(Values::from([(id.to_string(), rate)])))
        }
        Measure::Pblk(device) => {
            let Some(run) = pblk(file, file.device(device), way, id)? else { return Ok(None) };
            let mut values = Values::from([(id.to_string(), rate(&run))]);
            if *id == "pblk_steady" {
                details(&run, &mut values);
            }
            Ok(Some(values))
        }
    })?;
    let mut here: Values = all.into_iter().flatten().flatten().collect();
    if let (Some(steady), Some(fresh)) = (here.get("pblk_steady"), here.get("pblk_fresh")) {
        here.insert("steady_over_fresh".into(), steady / fresh);
    }
    Ok(file.fill(|id| here.get(id).copied()))
}

/// The steady run once more, on channels too fast to be what limits it.
const FAST_BUS: &str = "pblk_steady_fast_channels";

/// What the host wrote per second.
fn rate(run: &RunOutcome) -> f64 {
    let m = &run.measured.recorder;
    mb_per_s(m.sectors_written * SECTOR_BYTES as u64, (m.end - m.start).as_ns())
}

/// What is behind the steady row: amplification, occupancy, whether it was steady.
fn details(run: &RunOutcome, here: &mut Values) {
    let (m, media) = (&run.measured, &run.media);
    let programmed = m.after.programmed_total() - m.before.programmed_total();
    let written = m.after.host_written - m.before.host_written;
    here.insert("steady_amplification".into(), programmed as f64 / written.max(1) as f64);
    let bytes = programmed * SECTOR_BYTES as u64;
    here.insert("steady_programmed".into(), mb_per_s(bytes, media.time.as_ns()));
    let busy = |busy: Ns, of: u64| 100.0 * busy.as_ns() as f64 / (media.time.as_ns() * of) as f64;
    let [read, program, erase] = media.die_busy;
    here.insert("steady_channel_busy".into(), busy(media.channel_busy, media.channels));
    here.insert("steady_die_programming".into(), busy(program, media.dies));
    here.insert("steady_die_reading".into(), busy(read, media.dies));
    here.insert("steady_die_erasing".into(), busy(erase, media.dies));
    here.insert("is_steady".into(), m.steady.steady as u64 as f64);
}

/// The same on every PU at once.
fn over_all(device: &DeviceChoice, mut stream: RawStream) -> RawStream {
    stream.pus = (0..device.spec.geometry().pus()).collect();
    stream
}

fn raw_rate(
    device: &DeviceChoice,
    stream: RawStream,
    commands: u64,
) -> Result<f64, ReproduceError> {
    let ssd = Ssd::new(&device.spec, device.options.clone())?;
    let vm = Virtual::new(1, SEED, CostTable::zero());
    let (cx, target) = (vm.cx(), ssd.clone());
    // No more than the chunks hold: a second pass would be an erase beside what is measured.
    let fits = stream.chunks as u64 * device.spec.geometry().sectors_per_chunk() as u64
        / stream.sectors as u64;
    let commands = commands.min(fits);
    let result = vm.run(async move {
        let raw = Raw::new(target, stream.clone(), SEED);
        if !stream.write {
            raw.fill(&cx).await;
            // Programs that are still running would be waited for by the first reads.
            cx.sleep(Ns::from_ms(100)).await;
            raw.forget();
        }
        raw.run(&cx, commands).await;
        raw.result()
    })?;
    let violations = ssd.counters().violations;
    if result.failed + result.wrong + violations > 0 {
        let what = format!("{} commands failed, {violations} violations", result.failed);
        return Err(ReproduceError::Bad { figure: FIGURE, what });
    }
    Ok(result.mb_per_s())
}

/// pblk under random writes over a part of the device: from the factory, or after a ramp.
fn pblk(
    file: &FigureFile,
    device: &DeviceChoice,
    way: &Way<'_>,
    id: &str,
) -> Result<Option<RunOutcome>, ReproduceError> {
    let steady = id != "pblk_fresh";
    let mut job = Job::new(id);
    (job.rw, job.random, job.norandommap) = (Mix::Write, true, true);
    job.bs[1] = Sizes::fixed(LARGE);
    job.iodepth = file.parameter("iodepth") as u32;
    job.size = Some(Amount::Percent(file.parameter("fill_percent")));
    job.time_based = true;
    let seconds = |name| Ns::from_secs(file.parameter(name));
    let scale = if way.size == Size::Full { 4 } else { 1 };
    job.runtime = Some(seconds("measured_seconds").times(scale));
    let mut config = LogConfig::default();
    if steady {
        job.ramp_time = seconds("ramp_seconds").times(scale);
    } else {
        // LightNVM 5.1: factory state, with the rate limiter disabled.
        config.limiter = LimiterKind::Off;
    }
    super::run_one(FIGURE, way, Target::of(id, config, device.clone()), job)
}
