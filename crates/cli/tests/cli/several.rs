//! `flashlane serve` of several targets of a drive, and on several cores.

use crate::harness::{Here, drive, says};
use crate::serve::{Client, FUA, SECTOR, TRIM, WRITE, pattern, stopped};
use flashlane_testkit::guest::{Guest, Shape};
use std::io::Read;
use std::time::Duration;

const SERVE: &str = "serve a.img --null-latency --target db --target log --target old --nbd unix:s";

/// A drive with two pblks and a QBLK on PUs of their own.
fn made() -> Here {
    let h = drive();
    for (name, kind, luns) in
        [("db", "pblk", "0 -e 1"), ("log", "qblk", "2 -e 2"), ("old", "pblk", "3 -e 3")]
    {
        h.run(&format!("lnvm create a.img -n {name} -t {kind} -b {luns}")).good();
    }
    h
}

#[test]
fn each_is_a_disk_of_its_own() {
    let h = made();
    let server = h.hold_with(
        &format!("{SERVE} --vhost-user log=v --metrics unix:m --record old=t.parquet"),
        "s",
    );
    // Nobody is guessed at.
    let mut names = Client::connect_all(&h.path("s"), &["db", "log", "old"]);
    let sizes: Vec<u64> = names.iter().map(|c| c.bytes).collect();
    assert!(sizes[0] > sizes[1], "{sizes:?}");
    for (i, c) in names.iter_mut().enumerate() {
        assert_eq!(c.write(FUA, 8192, &pattern(i as u8, 40)), 0);
    }
    for (i, c) in names.iter_mut().enumerate() {
        assert!(c.read(8192, 40 * SECTOR) == pattern(i as u8, 40), "{i}");
    }
    let mut guest = Guest::connected(&h.path("v"), Shape::default()).expect("it is taken in");
    assert!(guest.read(0, 8192, SECTOR as u32) == pattern(1, 1), "the same disk by another door");
    drop(guest);
    // Verbs name one, or are about all.
    let json = |line: &str| -> serde_json::Value {
        serde_json::from_str(&h.run(line).good().out).expect("JSON")
    };
    let pid = server.id();
    let info = json("drive info a.img --json -");
    assert_eq!(info["in_use"]["targets"], serde_json::json!(["db", "log", "old"]));
    says(&h.run("drive info a.img").good().out, &["targets `db`, `log`, `old`"]);
    let info = json("lnvm info a.img --json -");
    for target in info["targets"].as_array().expect("a list") {
        assert_eq!(target["in_use_by"], pid, "{target}");
    }
    for name in ["db", "log", "old"] {
        h.run(&format!("lnvm remove a.img -n {name}")).refused(2, &[name, "in use"]);
    }
    h.run("lnvm knobs a.img -n log gc_enabled=0").good();
    let knobs = json("lnvm knobs a.img -n db --json -");
    assert_eq!(knobs["knobs"]["gc_enabled"], "1", "each has its own");
    // So is what there is to be seen.
    let seen = json("top a.img --once --json -");
    for (i, (name, kind)) in [("db", "pblk"), ("log", "qblk"), ("old", "pblk")].iter().enumerate() {
        let target = &seen["targets"][i];
        assert_eq!((&target["name"], &target["layer"]), (&(*name).into(), &(*kind).into()));
        assert_eq!(target["stats"]["host_written"], 40, "{name}");
    }
    says(&h.run("top a.img --once").good().out, &["target db (pblk)", "target old (pblk)"]);
    let only = h.run("top a.img --once --target log").good().out;
    assert!(only.contains("target log (qblk)") && !only.contains("target db"), "{only}");
    h.run("top a.img --once --target other").refused(2, &["`other`", "in use: db, log, old"]);
    let text = h.run("top a.img --prometheus").good().out;
    let head = "# TYPE flashlane_host_write_bytes_total counter";
    assert_eq!(text.matches(head).count(), 1, "one family");
    for name in ["db", "log", "old"] {
        let series = "flashlane_host_write_bytes_total{device=\"a.img\",target=";
        says(&text, &[&format!("{series}\"{name}\"}} {}\n", 40 * SECTOR)]);
    }
    // One is recorded from the start, another one later.
    h.run("trace record a.img u.parquet").refused(2, &["--target", "db", "log", "old"]);
    h.run("trace record a.img u.parquet --target old").refused(2, &["`old`", "recorded already"]);
    let mut later = h.hold_making("trace record a.img u.parquet --target db", "u.parquet");
    assert_eq!(names[0].ask(TRIM, 0, 8192, 4096), 0);
    later.signal("-INT");
    says(&later.output().good().out, &["1 requests recorded"]);
    let said = stopped(server);
    says(&said, &["db: ", "log: ", "old: ", "t.parquet: 2 requests recorded"]);
    assert!(!said.contains("disagree"), "{said}");
    says(&h.run("drive check a.img").good().out, &["good"]);
}

#[test]
fn all_that_was_flushed_survives_a_kill_and_a_cut_of_the_power() {
    let h = made();
    for round in 0..2u8 {
        let mut server = h.hold_with(SERVE, "s");
        let mut all = Client::connect_all(&h.path("s"), &["db", "log", "old"]);
        for (i, c) in all.iter_mut().enumerate() {
            assert_eq!(c.write(0, 4096, &pattern(round * 3 + i as u8, 30)), 0);
            c.flush();
        }
        match round {
            0 => server.kill(),
            _ => {
                h.run("drive inject a.img power_cut").good();
                assert_eq!(server.output().code, 130);
            }
        }
        server = h.hold_with(SERVE, "s");
        for (i, c) in
            Client::connect_all(&h.path("s"), &["db", "log", "old"]).iter_mut().enumerate()
        {
            assert!(c.read(4096, 30 * SECTOR) == pattern(round * 3 + i as u8, 30), "{round} {i}");
        }
        stopped(server);
    }
}

#[test]
fn places_say_of_which_target_they_are() {
    let h = made();
    h.run("serve a.img --nbd unix:s").refused(2, &["db, log, old", "--target"]);
    h.run("serve a.img --target db --target db --nbd unix:s").refused(2, &["`db`", "twice"]);
    h.run("serve a.img --target db --target dba --nbd unix:s").refused(2, &["`dba`", "db"]);
    h.run(&format!("{SERVE} --fuse-file disk")).refused(2, &["TARGET=disk", "db, log, old"]);
    h.run(&format!("{SERVE} --vhost-user other=v")).refused(2, &["`other`", "db, log, old"]);
    h.run(&format!("{SERVE} --record t.parquet")).refused(2, &["t.parquet", "db, log, old"]);
    h.run(&format!("{SERVE} --record log=no/such/t.parquet")).refused(2, &["No such file"]);
    // A place for two doors, also behind a link to what does not exist yet.
    std::os::unix::fs::symlink("disk", h.path("link")).expect("a link");
    for doors in [
        "--fuse-file db=disk --fuse-file log=disk",
        "--fuse-file db=disk --fuse-file log=link",
        "--fuse-file db=disk --metrics unix:link",
        "--vhost-user db=v --vhost-user log=v",
        "--nbd unix:v",
    ] {
        h.run(&format!("{SERVE} --nbd unix:v {doors}")).refused(2, &["named twice"]);
    }
    std::fs::remove_file(h.path("link")).expect("it is there");
    assert_eq!(h.files(), ["a.img"], "nothing is left");
    // One of them has no block device.
    h.run("lnvm create a.img -n open -t raw -b 0 -e 0").refused(2, &["db"]);
    h.run("lnvm remove a.img -n old").good();
    h.run("lnvm create a.img -n open -t raw -b 3 -e 3").good();
    let line = "serve a.img --target db --target open --nbd unix:s";
    h.run(line).refused(2, &["open", "no block device"]);
    let info: serde_json::Value =
        serde_json::from_str(&h.run("lnvm info a.img --json -").good().out).expect("JSON");
    assert_eq!(info["targets"][0]["stopped_cleanly"], true);
    // One can't be mounted: those before it are left as they were found.
    h.run("drive inject a.img die_fail --at 'pu 2'").good();
    h.run("serve a.img --target db --target log --nbd unix:s").refused(2, &["log", "FTL log"]);
    assert_eq!(h.files(), ["a.img"], "nothing is left");
    h.run("drive inject a.img --clear").good();
    let info: serde_json::Value =
        serde_json::from_str(&h.run("lnvm info a.img --json -").good().out).expect("JSON");
    assert_eq!(info["targets"][0]["stopped_cleanly"], true);
    // With one target nothing need be said, and may be.
    let server = h.hold_with("serve a.img --target db --vhost-user db=v", "v");
    stopped(server);
}

/// Clients on all cores, that write beside each other and read what others wrote; some share sectors.
#[test]
fn clients_on_several_cores_see_one_disk() {
    for (kind, size) in
        [("pblk", 4096), ("qblk --cores 3", 4096), ("pftl", 4096), ("qblk --cores 2", 512)]
    {
        let h = crate::serve::made(kind);
        let line =
            format!("serve a.img --null-latency --cores 3 --sector-size {size} --nbd unix:s");
        let server = h.hold_with(&line, "s");
        let path = h.path("s");
        let client = || Client::connect(&path, "db");
        // More than the device has free, so that garbage collection goes on beside.
        let (all, each) = (8, 128 * size);
        let turns = client().bytes as usize / (all * each);
        std::thread::scope(|scope| {
            for me in 0..all {
                let client = &client;
                scope.spawn(move || {
                    let mut c = client();
                    for round in 0..2u8 {
                        for turn in 0..turns.min(6) {
                            // Neighbours in a sector are other clients', where sectors are cut.
                            let at = turn * all * each + me * size;
                            for part in 0..128 {
                                let (at, word) =
                                    (at + part * all * size, me as u8 ^ round ^ part as u8);
                                assert_eq!(c.write(0, at as u64, &vec![word; size]), 0, "{kind}");
                            }
                        }
                        c.flush();
                    }
                });
            }
        });
        server.kill();
        let server = h.hold_with(&line, "s");
        let mut c = client();
        for turn in 0..turns.min(6) {
            let whole = c.read((turn * all * each) as u64, all * each);
            for (i, piece) in whole.chunks(size).enumerate() {
                let word = (i % all) as u8 ^ 1 ^ (i / all) as u8;
                assert!(piece.iter().all(|b| *b == word), "{kind} {turn} {i}: {} {word}", piece[0]);
            }
        }
        drop(c);
        let said = stopped(server);
        assert!(!said.contains("disagree") && said.contains("db: "), "{said}");
        says(&h.run("drive check a.img").good().out, &["good"]);
    }
}

/// A target that stands still, because a knob says so and its room is full, does not keep the server.
#[test]
fn a_knob_that_holds_writes_up_does_not_hold_up_the_end() {
    for cores in [1, 2] {
        let h = crate::serve::made("pblk");
        let line = format!("serve a.img --null-latency --cores {cores} --nbd unix:s");
        let server = h.hold_with(&line, "s");
        // Somebody is let in when the target is mounted.
        let mut c = Client::connect(&h.path("s"), "db");
        h.run("lnvm knobs a.img -n db gc_enabled=0").good();
        let data = pattern(1, 256);
        c.socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time");
        let pieces = c.bytes / data.len() as u64;
        // All of it again and again, until no answer comes.
        let stands = (0..4 * pieces).any(|n| {
            c.send(WRITE, 0, n % pieces * data.len() as u64, data.len() as u32, &data);
            c.socket.read_exact(&mut [0; 16]).is_err()
        });
        assert!(stands, "it writes without garbage collection");
        assert!(stopped(server).contains("db: "));
        let info = h.run("lnvm info a.img --json -").good().out;
        assert!(info.contains("\"stopped_cleanly\": true"), "{info}");
    }
}

#[test]
fn cores_have_cpus_and_keep_the_devices_times() {
    let h = crate::serve::made("qblk --cores 2");
    h.run("serve a.img --cores 0 --nbd unix:s").refused(2, &["1 to 256"]);
    let many = h.run("serve a.img --cores 256 --pin --nbd unix:s");
    many.refused(2, &["--pin: 256 cores", "this process may use"]);
    let info = h.run("lnvm info a.img --json -").good().out;
    assert!(info.contains("\"stopped_cleanly\": true"), "{info}");
    let server = h.hold_with("serve a.img --pin --vhost-user v --nbd unix:s", "s");
    let mut c = Client::connect(&h.path("s"), "db");
    assert_eq!(c.write(FUA, 0, &pattern(1, 1)), 0);
    assert!(c.read(0, SECTOR) == pattern(1, 1));
    says(&stopped(server), &["timers: ", "half of them late by "]);
}
