//! Crash tests with debug assertions: power cuts over all stacks, and a few cases cut at every moment.
//! Many more cuts are in `tests/cuts.sh`, on the release binary.
//!
//! Owns: how many cuts are promised. Promises: prints how many there were, fails if they are fewer,
//! and prints the command that replays a failure. Never: depends on how fast the machine is.

use flashlane_ftl::log::LogConfig;
use flashlane_ocssd::{DeviceSpec, SsdOptions};
use flashlane_stack::{Description, DeviceChoice};
use flashlane_testkit::files::FILES;
use flashlane_testkit::stacks::STACKS;
use flashlane_testkit::torture::{Nobody, torture};
use flashlane_testkit::{How, Mode, Own, Plan, Seeds, Subject, Tally, run_seed};

/// On all cores. A test of this file waits for the others only where it shares these with them.
fn tortured(sources: &[&dyn Subject], how: How, from: u64, count: u64) -> Tally {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let outcome = torture(sources, &how, Seeds { from, count: Some(count) }, jobs, &Nobody);
    let failures = outcome.failures.iter().map(|f| {
        let replay = format!("cargo run --release -- torture {}", f.flags);
        format!("{}, seed {}: {}\n  replay: {replay}", f.target, f.seed, f.what)
    });
    let failures: Vec<String> = failures.collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let names: Vec<&str> = sources.iter().map(|s| s.name()).collect();
    println!("{}, {:?}: {:?}", names.join(", "), how, outcome.tally);
    outcome.tally
}

/// Evenly spread over short runs, with a second cut in the recovery from the first. `tests/cuts.sh` has those of
/// longer runs.
#[test]
fn power_cuts_lose_nothing_that_was_promised() {
    let rows: Vec<&dyn Subject> =
        STACKS.iter().filter(|s| s.lives > 1).map(|s| s as &dyn Subject).collect();
    let how = How { cuts: Some(2), effort: Some(2), ..How::default() };
    let cuts = tortured(&rows, How { mode: Mode::Linear, ..how }, 0, 1).cuts;
    println!("{cuts} power cuts over {} stacks", rows.len());
    assert!(cuts >= 1_000, "{cuts} power cuts");
}

/// A device of so few sectors that a run can be cut at each of its places.
fn smallest() -> Own {
    let text = |chunks: u32| {
        format!(
            "name = \"smallest\"\nppa = \"2.0\"\n\
             [geometry]\nchannels = 1\npus_per_channel = 2\nplanes = 1\nchunks_per_pu = {chunks}\n\
             pages_per_block = 8\nsectors_per_page = 2\nws_min = 2\nws_opt = 2\nmw_cunits = 4\n\
             [timing]\nread = [\"50us\"]\nprogram = [\"500us\"]\nerase = \"3ms\"\n\
             channel_bandwidth = \"400MB\"\n[limits]\nreset_free = true\nreset_open = true\n"
        )
    };
    for chunks in (16..1024).step_by(8) {
        let spec = DeviceSpec::from_toml(&text(chunks)).expect("a device that can be");
        let sectors = spec.geometry().sectors();
        let device = DeviceChoice { spec, options: SsdOptions::default() };
        let stack = Description::new(device, vec![LogConfig::default().into()]);
        let own = Own { name: "smallest".into(), stack };
        if let Ok(capacity) = own.try_out(0) {
            println!("{capacity} sectors on {sectors} of the device");
            return own;
        }
    }
    unreachable!("pblk fits no device");
}

/// As short runs as can be.
fn exhaustive() -> How {
    How { mode: Mode::Exhaustive, effort: Some(1), ..How::default() }
}

#[test]
fn a_small_device_is_cut_at_every_place_of_short_runs() {
    let own = smallest();
    let one = tortured(&[&own], How { cuts: Some(1), ..exhaustive() }, 0, 2);
    assert!(one.cuts > 1_000, "{} power cuts", one.cuts);
}

#[test]
fn a_small_device_is_cut_at_every_place_of_recoveries() {
    let own = smallest();
    // From every so-many-eth place of a run.
    let two = tortured(&[&own], How { cuts: Some(2), every: 320, ..exhaustive() }, 0, 1);
    assert!(two.cuts > 500, "{} power cuts", two.cuts);
}

/// Two runs of one seed are the same, also of file systems on flash whose failure units vanish.
#[test]
fn file_systems_that_lose_units_are_functions_of_their_seed() {
    for files in FILES.iter().filter(|files| files.vanishes) {
        let mut vanished = 0;
        for seed in 0..4 {
            let plan = Plan { lives: Some(8), effort: 25, ..Plan::default() };
            let run = || run_seed(files, seed, &plan).map_err(|failed| failed.what);
            let one = run();
            assert_eq!(one, run(), "{}, seed {seed}", files.name);
            vanished += one.map_or(1, |done| done.vanished);
        }
        assert!(vanished > 0, "{}: nothing happened", files.name);
    }
}

/// In a short run each `-vanish` stack loses units, and each `-trouble` stack meets faults of the
/// host's disk.
#[test]
fn stacks_of_which_units_vanish_lose_some() {
    let all = STACKS.iter().filter(|s| s.name.ends_with("-vanish") || s.name.ends_with("-trouble"));
    for stack in all {
        let plan = Plan { lives: Some(4), aimed: true, effort: 25, ..Plan::default() };
        let ran = (0..4).map(|seed| run_seed(stack, seed, &plan).unwrap_or_else(|f| panic!("{f}")));
        assert!(ran.map(|done| done.vanished).sum::<u64>() > 0, "{}", stack.name);
    }
}
