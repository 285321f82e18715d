//! Recordings of what a target is asked: by a server from the start, and by somebody who comes later.

use super::harness::{Here, says};
use super::serve::{Client, FUA, SECTOR, TRIM, made, pattern, served, stopped};

/// What `trace info` says of a recording, as JSON.
fn info(h: &Here, name: &str) -> serde_json::Value {
    let said = h.run(&format!("trace info {name} --json -")).good().out;
    serde_json::from_str(&said).expect("JSON")
}

/// Requests by operation: reads, writes, discards, flushes.
fn requests(info: &serde_json::Value) -> Vec<u64> {
    let ops = info["actions"][0]["ops"].as_array().expect("a list");
    ops.iter().map(|op| op["requests"].as_u64().expect("a number")).collect()
}

#[test]
fn a_server_records_what_its_clients_ask() {
    for (name, format) in [("t.parquet", "parquet"), ("t.blkparse", "blkparse")] {
        let h = made("pblk");
        let serve = "serve a.img --null-latency --nbd unix:s";
        let server = h.hold_with(&format!("{serve} --record {name} --record-as {format}"), "s");
        let mut c = Client::connect(&h.path("s"), "db");
        let data = pattern(3, 4);
        for i in 0..10 {
            assert_eq!(c.write(if i == 0 { FUA } else { 0 }, i * 65536, &data), 0);
        }
        assert!(c.read(65536, data.len()) == data);
        assert_eq!(c.ask(TRIM, 0, 0, 16384), 0);
        c.flush();
        assert!(!h.path(name).exists(), "it is not whole yet");
        let said = stopped(server);
        assert!(said.contains(&format!("{name}: 13 requests recorded\n")), "{said}");
        let info = info(&h, name);
        assert_eq!(requests(&info), [1, 10, 1, 1], "{format}");
        assert_eq!(info["actions"][0]["fua_writes"], 1);
        assert_eq!(info["recorded_latency_ns"]["count"], 13, "each has its time");
        assert!(!h.files().iter().any(|name| name.contains(".flashlane-new-")));
        // What was recorded is a workload.
        let run = h.run(&format!("run {name} --device tiny --target pblk --scale-to-device"));
        assert!(run.good().out.contains("13"), "13 requests");
    }
}

#[test]
fn somebody_who_comes_later_records_what_is_asked_then() {
    let h = made("qblk");
    h.run("trace record a.img t.parquet").refused(2, &["nobody uses the drive", "--record"]);
    let server = served(&h);
    let mut c = Client::connect(&h.path("s"), "db");
    assert_eq!(c.write(0, 0, &pattern(1, 1)), 0);
    h.run("trace record a.img t.parquet --target other").refused(2, &["`db` is"]);
    h.run("trace record a.img t.csv").refused(2, &["t.parquet"]);
    h.run("trace record a.img no/such/t.parquet").refused(2, &["No such file"]);
    h.run("trace record a.img t.parquet --content 12").refused(2, &["OFFSET+LENGTH"]);
    h.run("trace record a.img --stop").refused(2, &["nothing is recorded"]);

    let mut recording =
        h.hold_making("trace record a.img t.parquet --content 4096B+4096B", "t.parquet");
    h.run("trace record a.img u.parquet").refused(2, &["recorded already", "--stop"]);
    for i in 0..3 {
        assert_eq!(c.write(0, i * SECTOR as u64, &pattern(2, 1)), 0);
    }
    let said = h.run("trace record a.img --stop").good().out;
    assert!(said.contains("3 requests recorded, 1 with their content"), "{said}");
    // Whoever began it finds it ended.
    recording.signal("-INT");
    recording.output().refused(2, &["nothing is recorded"]);
    let known = info(&h, "t.parquet");
    assert_eq!((requests(&known), &known["contents"]), (vec![0, 3, 0, 0], &true.into()));
    let converted = h.run("trace convert t.parquet t.txt --to blkparse").good().out;
    assert!(converted.contains("contents of writes are left out"), "{converted}");

    // With an end of its own; and one that the server's end ends.
    let short = h.run("trace record a.img v.parquet --for 50ms").good().out;
    assert!(short.contains("0 requests recorded"), "{short}");
    let mut last = h.hold_making("trace record a.img w.parquet", "w.parquet");
    c.flush();
    let said = stopped(server);
    assert!(said.contains("w.parquet: 1 requests recorded"), "{said}");
    assert!(last.output().good().out.contains("has ended"));
    assert_eq!(requests(&info(&h, "w.parquet")), [0, 0, 0, 1]);
}

/// A recording replaces nothing but a regular file, and what is in its place stays.
#[test]
fn a_recording_takes_the_place_of_no_node() {
    use std::os::unix::fs::symlink;
    let h = made("pblk");
    h.file("target", "keep");
    symlink("target", h.path("link")).expect("a link");
    rustix::fs::mkfifoat(rustix::fs::CWD, h.path("pipe"), 0o600.into()).expect("a pipe");
    symlink("/dev/null", h.path("null")).expect("a link");
    for (to, what) in [("link", "a symbolic link"), ("pipe", "a pipe"), ("null", "a symbolic link")]
    {
        let line = format!("serve a.img --null-latency --nbd unix:s --record {to}");
        h.run(&line).refused(2, &[to, what, "name a regular file"]);
        let there = std::fs::symlink_metadata(h.path(to)).expect("it is there");
        assert!(!there.is_file(), "{to} stays");
    }
    assert_eq!(std::fs::read(h.path("target")).expect("a file"), b"keep");
    assert!(!h.files().iter().any(|name| name.contains(".flashlane-new-")));
    h.file("old.parquet", "old");
    let line = "serve a.img --null-latency --nbd unix:s --record old.parquet";
    let server = h.hold_with(line, "s");
    says(&stopped(server), &["old.parquet: 0 requests recorded"]);
}
