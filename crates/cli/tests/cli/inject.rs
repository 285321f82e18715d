//! `flashlane drive inject`, `drive upgrade` and `lnvm knobs`: on a drive at rest, and on one in use.

use crate::harness::{self, Done, Here, here, pause, says};
use flashlane_lab::drive::faults::FaultKind;
use serde_json::Value;
use std::io::Read;

fn drive() -> Here {
    let h = harness::drive();
    h.run("lnvm create a.img -n db -t pblk -o 30").good();
    h.file("w.fio", "[w]\nrw=write\nbs=64k\nsize=4m\n");
    h.file("r.fio", "[r]\nrw=read\nbs=64k\nsize=4m\n");
    h
}

fn run(h: &Here, job: &str) -> Value {
    h.run(&["run", job, "--drive", "a.img", "--json", "-"]).good().json()["runs"][0].clone()
}

fn inject(h: &Here, args: &str) -> Done {
    h.run(&format!("drive inject a.img {args}"))
}

fn faults(h: &Here) -> Vec<Value> {
    let json = inject(h, "--list --json -").good().json();
    json["faults"].as_array().expect("a list").clone()
}

fn knobs(h: &Here, args: &str) -> Done {
    h.run(&format!("lnvm knobs a.img -n db {args}"))
}

fn knob(h: &Here, name: &str) -> String {
    let json = knobs(h, "--json -").good().json();
    json["knobs"][name].as_str().expect("a knob").to_string()
}

/// An image as version 1.0 wrote it.
fn old_image() -> Vec<u8> {
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../ocssd/tests/data/image-v1.img.gz");
    let mut bytes = Vec::new();
    let packed = std::fs::File::open(kept).expect("a kept image");
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("an image");
    bytes
}

#[test]
fn a_fault_at_rest_is_met_by_the_next_run_and_not_again() {
    let h = drive();
    run(&h, "w.fio");
    assert_eq!(run(&h, "r.fio")["failed_requests"], 0);
    let said = inject(&h, "early_close --count 3").good().out;
    assert!(said.contains("early_close, from match 3 on, once; has not happened"), "{said}");
    assert!(said.contains("the next who opens the drive meets it"), "{said}");
    h.file("plan.toml", "[[fault]]\nkind = \"read_uncorrectable\"\nat = \"pu 1\"\ncount = 400\n");
    inject(&h, "--plan plan.toml").good();
    assert_eq!(h.run("drive info a.img --json -").good().json()["faults"], 2);
    // Looking does not meet them.
    h.run("drive check a.img").good();
    let happened =
        || faults(&h).iter().map(|f| f["happened"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(happened(), [0, 0]);
    let written = run(&h, "w.fio");
    assert_eq!((&written["counter_laws"], &written["wrong_sectors"]), (&"hold".into(), &0.into()));
    assert_eq!(happened()[0], 1);
    let mut tries = 0;
    while happened()[1] == 0 {
        tries += 1;
        assert!(tries < 10, "{:?}", faults(&h));
        // A request may meet it, or the mount.
        let done = h.run("run r.fio --drive a.img --json -");
        let failed = &done.json()["runs"][0]["failed_requests"];
        assert_eq!(done.code, i32::from(*failed != 0), "{done:?}");
    }
    // What has happened does not happen again.
    run(&h, "w.fio");
    assert_eq!(happened(), [1, 1]);
    let said = inject(&h, "--clear").good().out;
    assert_eq!(said, "2 faults cleared\n");
    assert!(faults(&h).is_empty());
    assert!(inject(&h, "--list").good().out.contains("no faults"));
}

#[test]
fn what_can_t_be_injected_is_said() {
    let h = drive();
    let refused = |args: &str, says: &[&str]| inject(&h, args).refused(2, says);
    refused("", &["KIND"]);
    refused("early_closed", &["did you mean `early_close`"]);
    refused("bit_flip --at 'plane 3'", &["`plane`", "pu 3 chunk 17"]);
    refused("bit_flip --at 'pu 4'", &["a.img", "0 to 3"]);
    refused("bit_flip --probability 2", &["probability"]);
    refused("bit_flip --after soon", &["--after is `soon`", "50us"]);
    refused("bit_flip --at pu", &["--at needs one number"]);
    refused("bit_flip --at ''", &["--at names no place", "pu 3 chunk 17", "leave"]);
    let erase = ["--at names sector 5", "whole chunk", "leave the sector out"];
    refused("erase_fail --at 'pu 1 chunk 2 sector 5'", &erase);
    refused("power_cut --at 'pu 1'", &["--at is not for power_cut"]);
    refused("power_cut", &["a.img", "nobody uses the drive"]);
    refused("bit_flip --times 0", &["counted from 1"]);
    refused("--at 'pu 3' --list", &["--list"]);
    refused("--at 'pu 3'", &["KIND"]);
    refused("bit_flip --clear", &["--clear"]);
    refused("--plan none.toml", &["none.toml", "No such file"]);
    // Of a plan: which file, which entry, which line.
    let second = "[[fault]]\nkind = \"bit_flip\"\n\n[[fault]]\nkind = \"bit_flip\"\n";
    h.file("plan.toml", format!("{second}count = 0\n"));
    refused("--plan plan.toml", &["plan.toml", "[[fault]] number 2 (line 4): `count`"]);
    h.file("plan.toml", format!("{second}pu = 9\n"));
    refused("--plan plan.toml", &["plan.toml", "a.img", "number 2: `pu` is 9"]);
    h.file("plan.toml", format!("{second}puu = 9\n"));
    refused("--plan plan.toml", &["plan.toml", "line 6", "puu"]);
    h.file("plan.toml", "");
    refused("--plan plan.toml", &["no [[fault]]"]);
    h.file("plan.toml", "[[fault]]\nkind = \"bit_flip\"\n".repeat(129));
    refused("--plan plan.toml", &["at most 128"]);
    h.file("plan.toml", "#".repeat(200 << 10));
    refused("--plan plan.toml", &["plan.toml", "longer than", "is it the right one"]);
    assert!(faults(&h).is_empty());
    // What can't be on any drive is refused before this one is opened for writing.
    let before = std::fs::read(h.path("a.img")).unwrap();
    for plan in ["", "[[fault]]\nkind = \"bit_flip\"\ncount = 0\n"] {
        h.file("plan.toml", plan);
        refused("--plan plan.toml", &["plan.toml"]);
    }
    assert!(std::fs::read(h.path("a.img")).unwrap() == before, "not touched");
    for (kind, _) in FaultKind::ALL {
        assert!(h.run("drive inject --help").good().out.contains(kind));
    }
}

/// The plan in the help text and the one in the cookbook are plans.
#[test]
fn the_help_has_a_plan_that_can_be_injected() {
    let h = drive();
    let help = h.run("drive inject --help").good().out;
    let cookbook = include_str!("../../../../docs/COOKBOOK.md");
    let in_book = cookbook.split_once("```toml\n[[fault]]").expect("a plan").1;
    let in_help = help.split_once("\n  [[fault]]").expect("a plan").1;
    let in_book = in_book.split_once("```").expect("its end").0;
    for plan in [in_help, in_book] {
        h.file("plan.toml", format!("[[fault]]{plan}"));
        let said = inject(&h, "--plan plan.toml").good().out;
        says(&said, &["1  read_uncorrectable pu 3 chunk 17, 2 times;"]);
        says(
            &said,
            &["2  early_close, from match 5 on, not before", "probability 1e-4, without end;"],
        );
    }
}

#[test]
fn an_old_image_works_as_it_is_and_is_upgraded_when_asked() {
    let h = here();
    let old = old_image();
    h.file("a.img", &old);
    let format = || h.run("drive info a.img --json -").good().json()["format"].clone();
    inject(&h, "bit_flip").refused(2, &["a.img", "1.0", "flashlane drive upgrade"]);
    assert!(std::fs::read(h.path("a.img")).unwrap() == old, "refused, and not touched");
    // Opened for writing it stays what it is.
    inject(&h, "--clear").good();
    assert_eq!(format(), "1.0");
    let before = h.run("drive smart a.img").good().out;
    let said = h.run("drive upgrade a.img").good().out;
    assert!(said.contains("format 1.0 is now 1.2") && said.contains("reading only"), "{said}");
    assert_eq!(format(), "1.2");
    assert_eq!(h.run("drive smart a.img").good().out, before);
    assert!(h.run("drive upgrade a.img").good().out.contains("nothing to do"));
    inject(&h, "bit_flip").good();
    assert_eq!(faults(&h).len(), 1);
    assert!(h.run("drive check a.img").good().out.ends_with("good\n"));
    h.file("text.img", "hello");
    h.run("drive upgrade text.img").refused(2, &["text.img", "not a drive image"]);
    let mut damaged = old.clone();
    damaged[40_000] ^= 1;
    h.file("bad.img", &damaged);
    h.run("drive upgrade bad.img").refused(2, &["bad.img", "table row"]);
    assert!(std::fs::read(h.path("bad.img")).unwrap() == damaged, "not touched");
}

#[test]
fn knobs_are_kept_and_count_at_the_next_mount() {
    let h = drive();
    assert_eq!((knob(&h, "active_pus"), knob(&h, "limiter")), ("4".into(), "pid".into()));
    let said = knobs(&h, "active_pus=2 limiter=kernel_table").good().out;
    assert!(said.contains("active_pus          kept          2\n"), "{said}");
    assert_eq!((knob(&h, "active_pus"), knob(&h, "limiter")), ("2".into(), "kernel_table".into()));
    // A run mounts the target as its knobs say; `info` shows it so.
    run(&h, "w.fio");
    let info = h.run("lnvm info a.img --json -").good().json();
    let target = &info["targets"][0];
    assert_eq!(target["pblk"]["active_pus"], "2");
    assert_eq!(target["settings"]["limiter"], "kernel_table");
    assert_eq!(target["stopped_cleanly"], true);
    knobs(&h, "active_pus=0").good();
    assert_eq!(knob(&h, "active_pus"), "4");
    // All or none, and in words.
    knobs(&h, "active_pus=1 limiter=none").refused(2, &["db", "limiter", "kernel_table"]);
    assert_eq!(knob(&h, "active_pus"), "4");
    let refused = |args: &str, says: &[&str]| knobs(&h, args).refused(2, says);
    refused("active_pus=9", &["a.img", "`db`", "4 PUs"]);
    refused("active_pus=1 active_pus=2", &["twice"]);
    refused("active_pus=-1", &["whole number"]);
    refused("write_luns=3", &["read-only"]);
    refused("active_puss=3", &["active_puss", "active_pus"]);
    refused("gc_force=1", &["once", "in use"]);
    refused("active_pus", &["KNOB=VALUE"]);
    h.run("lnvm knobs a.img -n bd").refused(2, &["no target `bd`", "db"]);
    h.run("lnvm remove a.img -n db").good();
    h.run("lnvm create a.img -n db -t raw").good();
    refused("active_pus=1", &["`db`", "raw", "no knobs"]);
}

/// Collection is off, and there is no room left: the run goes on, and says that the knob did not.
#[test]
fn gc_that_is_switched_off_does_not_hang_a_run() {
    let h = drive();
    knobs(&h, "gc_enabled=0").good();
    h.file("much.fio", "[w]\nrw=randwrite\nbs=4k\nsize=90%\nio_size=80m\niodepth=8\n");
    let off = run(&h, "much.fio");
    assert_eq!(off["counter_laws"], "hold");
    let notes = off["mount"]["notes"].to_string();
    assert!(notes.contains("gc_enabled=0 could not be kept up"), "{notes}");
    assert_eq!(knob(&h, "gc_enabled"), "0", "kept");
    knobs(&h, "gc_enabled=1").good();
    assert_eq!(run(&h, "much.fio")["mount"]["notes"], serde_json::json!([]));
}

fn until(what: &str, mut come_true: impl FnMut() -> bool) {
    for _ in 0..500 {
        if come_true() {
            return;
        }
        pause();
    }
    panic!("{what} does not come true");
}

/// What nobody but the mount could not read is in the drive's health, and in a line of the run.
#[test]
fn a_read_that_failed_in_the_mount_is_in_the_result() {
    let h = drive();
    run(&h, "w.fio");
    let errors = || {
        let smart = h.run("drive smart a.img --json -").good().json();
        smart["media_errors"].as_str().expect("a number").parse::<u64>().expect("a number")
    };
    let before = errors();
    inject(&h, "read_uncorrectable --count 1").good();
    let done = h.run("run r.fio --drive a.img").good();
    let met = errors() - before;
    assert_eq!(met, 1, "the mount's first read met it, and no request did");
    assert!(done.out.contains("1 in all reads, the mount's and the log's among them"), "{done:?}");
    // The next run meets nothing, and says nothing of the one before.
    let done = h.run("run r.fio --drive a.img").good();
    assert!(!done.out.contains("the medium failed"), "{done:?}");
}

#[test]
fn collection_that_is_switched_off_again_and_again_stops_no_run() {
    let h = drive();
    let holder = h.hold("a.img", "db", "a.img.ctl");
    until("the mount", || knobs(&h, "").code == 0);
    for knob_off in ["gc_enabled=0", "gc_force=0", "gc_enabled=0"] {
        knobs(&h, knob_off).good();
        until("collection", || knob(&h, "gc_enabled") == "1");
    }
    holder.interrupt();
    run(&h, "r.fio");
}

#[test]
fn faults_and_knobs_of_a_drive_in_use_count_at_once_and_are_kept() {
    let h = drive();
    let holder = h.hold("a.img", "db", "a.img.ctl");
    let said = inject(&h, "write_next_unit --at 'pu 2' --times 2").good().out;
    assert!(said.contains("from now on, and kept"), "{said}");
    until("the fault", || faults(&h)[0]["happened"] == 2);
    inject(&h, "die_fail --at 'pu 7'").refused(2, &["0 to 3"]);
    until("the mount", || knobs(&h, "").code == 0);
    let said = knobs(&h, "active_pus=2 gc_force=1 --json -").good().json();
    assert_eq!((&said["in_use"], &said["knobs"]["active_pus"]), (&true.into(), &"2".into()));
    let attribute = |name: &str| {
        let info = h.run("lnvm info a.img --json -").good().json();
        info["targets"][0]["pblk"][name].as_str().expect("an attribute").to_string()
    };
    let moved = || {
        let mileage = attribute("write_amp_mileage");
        let gc = mileage.split("gc:").nth(1).and_then(|t| t.split(' ').next()?.parse::<u64>().ok());
        gc.expect("a count")
    };
    let before = moved();
    until("a forced collection", || moved() > before);
    assert_eq!((knob(&h, "gc_force"), knob(&h, "gc_enabled")), ("1".into(), "1".into()));
    knobs(&h, "gc_force=0 limiter=channel_states").good();
    assert_eq!((knob(&h, "gc_force"), knob(&h, "gc_enabled")), ("0".into(), "0".into()));
    knobs(&h, "gc_enabled=1").good();
    knobs(&h, "active_pus=3 gc_force=1 limiter=nonsense").refused(2, &["limiter"]);
    // All or none: collection is neither forced, nor off since it is not.
    assert_eq!((knob(&h, "gc_force"), knob(&h, "gc_enabled")), ("0".into(), "1".into()));
    assert_eq!(attribute("active_pus"), "2");
    holder.interrupt();
    assert_eq!(
        (knob(&h, "active_pus"), knob(&h, "limiter")),
        ("2".into(), "channel_states".into())
    );
    assert_eq!(faults(&h)[0]["happened"], 2);
    let read = run(&h, "r.fio");
    assert_eq!((&read["wrong_sectors"], &read["failed_requests"]), (&0.into(), &0.into()));
}
