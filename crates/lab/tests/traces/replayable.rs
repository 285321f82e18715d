//! The samples replay, whatever their format.

use super::samples;
use flashlane_lab::experiment::Change;
use flashlane_lab::run::{Monitor, Unwatched};
use flashlane_lab::{execute, input};
use std::rc::Rc;

fn run(name: &str, set: &[&str]) -> Result<execute::Outcome, String> {
    let mut changes = vec![
        Change::Device("tiny".into()),
        Change::Targets(vec!["pftl".into()]),
        Change::ScaleToDevice,
        Change::Set("device.geometry.chunks_per_pu=64".into()),
    ];
    changes.extend(set.iter().map(|s| Change::Set(s.to_string())));
    let (_, e) = input::load(Some(&samples().join(name)), &changes).map_err(|e| e.to_string())?;
    execute::execute(&e, execute::How::default(), &|_| -> Rc<dyn Monitor> { Rc::new(Unwatched) })
        .map_err(|e| e.to_string())
}

#[test]
fn every_sample_replays_in_open_and_closed_loop() {
    for name in [
        "sample.alibaba.csv",
        "sample.blkparse.txt",
        "sample.blktrace.0",
        "sample.femu.csv",
        "sample.fio2.iolog",
        "sample.fio3.iolog",
        "sample.mqsim.txt",
        "sample.msr.csv",
        "sample.parquet",
        "sample.spc.csv",
        "sample.systor17.csv",
        "sample.tencent.csv",
        "sample.wiscsee.txt",
    ] {
        for replay in ["open", "closed"] {
            let outcome = run(name, &[&format!("workload.0.replay=\"{replay}\"")]).unwrap();
            let measured = &outcome.runs[0].measured;
            assert!(!outcome.is_bad(), "{name} {replay}");
            assert_eq!(
                measured.recorder.requests,
                outcome.scans.workloads[0].chosen().requests(),
                "{name}"
            );
            let open = (replay == "open") as u64 * measured.recorder.requests;
            assert_eq!(measured.recorder.slip.by.count(), open, "{name}: slip of every request");
        }
    }
}

/// Where completions are known, a request waits for those that it had waited for; elsewhere that is
/// refused.
#[test]
fn a_dependent_replay_needs_completions() {
    let dependent = ["workload.0.replay=\"dependent\""];
    for (name, without) in [
        ("sample.msr.csv", 0),
        ("sample.wiscsee.txt", 0),
        ("sample.blktrace.0", 0),
        ("sample.systor17.csv", 1),
    ] {
        let outcome = run(name, &dependent).unwrap();
        let replayed = &outcome.runs[0].measured.replayed[0];
        assert_eq!(replayed.requests, outcome.scans.workloads[0].chosen().requests(), "{name}");
        assert_eq!(replayed.without_completion, without, "{name}");
    }
    let refused = run("sample.mqsim.txt", &dependent).map(|_| ()).unwrap_err();
    assert!(refused.contains("no completions"), "{refused}");
}
