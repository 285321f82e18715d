//! `flashlane bench`: a cost table that is complete, named, and can be used at once. No time is
//! looked at.

use crate::harness::{here, says};
use flashlane_rt::{CostTable, STAGES};

const JOB: &str = "[w]\nrw=randwrite\nbs=4k\nsize=2m\n";

#[test]
fn a_calibration_is_a_table_that_a_run_can_be_charged_with() {
    let h = here();
    let said = h.run("bench --calibrate --rounds 3 -o ours.toml").good();
    says(&said.out, &["cores", "ring.reserve", "lock"]);
    let text = std::fs::read_to_string(h.path("ours.toml")).expect("written");
    let table = CostTable::from_toml(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    assert!(table.name().starts_with("ours-"), "{}", table.name());
    assert_eq!(table.unsaid(), [""; 0], "{text}");
    assert!(table.source().contains(" cores, ") && table.source().contains("flashlane"), "{text}");
    for (stage, _) in STAGES {
        assert!(text.contains(&format!("\"{stage}\"")), "{stage}:\n{text}");
    }
    h.file("job.fio", JOB);
    let costs = "run.costs=ours.toml";
    let run = h.run(&["run", "job.fio", "--device", "tiny", "--set", costs, "--json", "-"]).good();
    let json = run.json();
    assert_eq!(json["configuration"]["targets"][0]["host"]["costs"], table.name());
    assert_eq!(json["configuration"]["targets"][0]["host"]["costs_source"], table.source());
    assert!(
        json["runs"][0]["cpu"]["busy_ratio"].as_f64() > Some(0.0),
        "{}",
        json["runs"][0]["cpu"]
    );
}

/// Standard output is the table and nothing else.
#[test]
fn a_table_can_go_into_a_pipe() {
    let h = here();
    for args in [
        &["bench", "--calibrate", "--rounds", "1"][..],
        &["bench", "--calibrate", "--rounds", "1", "-o", "-"],
    ] {
        let table = h.run(args).good().out;
        assert!(CostTable::from_toml(&table).is_ok(), "{table}");
    }
    assert!(h.files().is_empty(), "{:?}", h.files());
}

#[test]
fn bench_without_options_says_what_it_can_do_and_a_wrong_place_is_refused_first() {
    let h = here();
    assert!(h.run("bench").good().out.contains("--calibrate"));
    h.run("bench -o x.toml").refused(2, &["--calibrate"]);
    h.run("bench --calibrate --rounds 0").refused(2, &["--rounds", "1"]);
    h.run("bench --calibrate -o no/such/place.toml").refused(2, &["no/such/place.toml"]);
}
