//! The two experiments about the medium's life: what wear leveling and scrubbing buy, measured.
//!
//! Owns: the claims of README and DECISIONS about `experiments/wear-leveling.toml` and
//! `experiments/scrub.toml`. Promises: runs the files as they are. Never: changes a number of theirs.

use flashlane_lab::execute::{How, execute};
use flashlane_lab::experiment::Change;
use flashlane_lab::input;
use flashlane_lab::report::{Report, RunReport};
use flashlane_lab::run::{Monitor, Unwatched};
use std::path::Path;
use std::rc::Rc;

/// The runs of an experiment, in the order of its targets; each with both laws and without a
/// violation or wrong data.
fn runs<const N: usize>(file: &str) -> [RunReport; N] {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let (_, experiment) = input::load(Some(&folder.join(file)), &[]).expect("a good file");
    let watch = |_: &_| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    let outcome = execute(&experiment, How::default(), &watch).expect("it runs");
    assert!(!outcome.is_bad());
    let runs = Report::of(&outcome).runs;
    for r in &runs {
        let (w, wa) = (&r.wear, r.write_amplification_ratio.unwrap_or_default());
        println!(
            "{}: erases {} / {} / {} / {}, WA {wa:.2}, {:?}, {} unreadable, {:?}",
            r.name, w.least, w.p50, w.p99, w.most, r.care, r.uncorrectable_sectors, r.faults
        );
        assert_eq!(r.counter_laws, "hold");
    }
    runs.try_into().expect("as many targets")
}

/// A setting without its policy would do nothing: it is a complaint with key and remedy.
#[test]
fn settings_that_do_nothing_are_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let refused = |file: &str, set: &str| {
        let changes = [Change::Set(set.into())];
        let error = input::load(Some(&folder.join(file)), &changes).expect_err(set);
        error.to_string()
    };
    for (file, set, parts) in [
        ("scrub.toml", "target.0.scrub_interval=\"1h\"", ["scrub_interval", "patrol"]),
        ("scrub.toml", "target.0.scrub_sectors=2", ["scrub_sectors", "patrol"]),
        ("scrub.toml", "target.0.scrub=\"patrl\"", ["patrl", "patrol"]),
        ("scrub.toml", "target.2.scrub_interval=\"soon\"", ["scrub_interval", "soon"]),
        ("wear-leveling.toml", "target.1.wear_spread=3", ["wear_spread", "static"]),
        ("wear-leveling.toml", "target.2.wear_spread=0", ["wear_spread", "1"]),
        ("wear-leveling.toml", "target.0.wear_leveling=\"statc\"", ["statc", "static"]),
    ] {
        let says = refused(file, set);
        assert!(parts.iter().all(|part| says.contains(part)), "{set}: {says}");
    }
}

#[test]
fn static_wear_leveling_uses_the_chunks_of_cold_data() {
    let [off, dynamic, leveled] = runs("wear-leveling.toml");
    // Most chunks hold cold data, and are never erased again.
    assert!(off.wear.p50 <= 1 && dynamic.wear.p50 <= 1);
    assert!(dynamic.wear.most < off.wear.most);
    assert!(leveled.wear.p99 < leveled.wear.p50 * 3 / 2, "within half of the median");
    assert!(leveled.wear.least > 8 && leveled.wear.p50 > 16 && leveled.care.leveled_lines > 0);
    // What it costs: cold data among hot, that collections move again.
    assert!(leveled.write_amplification_ratio > dynamic.write_amplification_ratio);
    assert!(!off.care.any() && !dynamic.care.any());
}

#[test]
fn scrubbing_keeps_what_decays() {
    let [off, reads, patrol] = runs("scrub.toml");
    assert!(off.uncorrectable_sectors > 10_000);
    assert_eq!((off.care.scrubbed_lines, off.care.patrol_reads), (0, 0));
    // Reads that are made anyway see what they read, and nothing of the rest.
    assert!(reads.care.scrubbed_lines > 0 && reads.uncorrectable_sectors > 10_000);
    assert_eq!((patrol.uncorrectable_sectors, patrol.failed_requests), (0, 0));
    assert_eq!((patrol.faults.layer.read_failures, patrol.faults.layer.gc_read_failures), (0, 0));
    assert!(patrol.care.scrubbed_lines > 0 && patrol.care.patrol_reads > 0);
}
