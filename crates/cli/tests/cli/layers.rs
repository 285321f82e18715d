//! A layer that stands on a target, wherever targets are.
//!
//! `meter` is named in its own file, in one row of the table of kinds, and here.

use crate::harness::{Here, here};

const RUN: &str = r#"
name = "meter"
[device]
preset = "tiny"
[device.geometry]
chunks_per_pu = 64
[[target]]
kind = "pblk"
name = "without"
[[target]]
kind = "pblk"
name = "with"
meter = true
[[target]]
kind = "pftl"
name = "block SSD"
[target.meter]
[[workload]]
rw = "randrw"
bs = "8KiB"
size = "1MiB"
fsync = 16
[run]
fill = "none"
"#;

fn with(text: &str) -> Here {
    let h = here();
    h.file("meter.toml", text);
    h
}

/// Results of the run as they are, but for what the layer adds.
fn alike(run: &serde_json::Value) -> serde_json::Value {
    let mut run = run.clone();
    let all = run.as_object_mut().expect("an object");
    all.remove("layers");
    all["timeline"].as_object_mut().expect("an object").remove("layers");
    all.remove("name");
    run
}

/// It counts every request of the host, and a run with it is the run without it.
#[test]
fn a_layer_that_counts_is_there_in_a_run_and_changes_nothing_of_it() {
    let h = with(RUN);
    let done = h.run("run meter.toml --json -").good();
    let json = done.json();
    let runs = json["runs"].as_array().expect("three runs");
    assert!(runs[0].get("layers").is_none(), "{}", runs[0]);
    assert_eq!(alike(&runs[0]), alike(&runs[1]));
    for run in &runs[1..] {
        let counted = &run["layers"]["meter"];
        let sectors = |key: &str| counted[key].as_u64().expect("a count") * 4096;
        assert_eq!(run["bytes_read"], sectors("read_sectors"), "{run}");
        assert_eq!(run["bytes_written"], sectors("written_sectors"), "{run}");
        assert_eq!(run["flushes"], counted["flushes"], "{run}");
        assert!(counted["reads"].as_u64() > Some(10), "{run}");
        assert_eq!(counted["discards"], 0);
    }
    let targets = &json["configuration"]["targets"];
    assert_eq!(targets[1]["filters"][0]["kind"], "meter");
    assert!(targets[0].get("filters").is_none());
    let text = h.run("run meter.toml").good().out;
    assert!(text.contains("with: meter: flushes"), "{text}");
}

/// Where no file system is, nothing is discarded, and nothing changes.
#[test]
fn a_layer_that_discards_finds_nothing_to_discard_in_other_data() {
    let text = RUN.replace("meter = true", "idiscard = true");
    let text = text.replace("[target.meter]", "[target.idiscard]\nzeros = true");
    let h = with(&text.replace("preset = \"tiny\"", "preset = \"tiny\"\nstore = \"memory\""));
    let json = h.run("run meter.toml --json -").good().json();
    let runs = json["runs"].as_array().expect("three runs");
    // It reads at the start, which takes its time; what the host does is the same.
    for key in ["bytes_read", "bytes_written", "bytes_discarded", "requests", "flushes"] {
        assert_eq!(runs[0][key], runs[1][key], "{key}");
    }
    let counted = &runs[2]["layers"]["idiscard"];
    assert_eq!((&counted["file_systems"], &counted["discards"]), (&0.into(), &0.into()));
    assert_eq!(json["configuration"]["targets"][2]["filters"][0]["zeros"], true);
    h.file(
        "meter.toml",
        text.replace("preset = \"tiny\"", "preset = \"tiny\"\nstore = \"stamps\""),
    );
    h.run("run meter.toml").refused(2, &["this store keeps no content", "device.store"]);
}

#[test]
fn what_a_layer_can_not_stand_on_or_does_not_know_is_said() {
    let h = here();
    let change = |from: &str, to: &str| h.file("meter.toml", RUN.replacen(from, to, 1));
    change("meter = true", "meter = 3");
    h.run("run meter.toml").refused(2, &["meter.toml:13:1", "true, false or a table"]);
    change("meter = true", "meter = { depth = 3 }");
    h.run("run meter.toml").refused(2, &["meter.toml:13", "unknown key `depth`"]);
    change("kind = \"pftl\"", "kind = \"raw\"");
    h.run("run meter.toml").refused(2, &["`meter` stands on a target with logical sectors"]);
    change("meter = true", "meters = true");
    h.run("run meter.toml").refused(2, &["unknown key `meters`", "`meter`"]);
    change("meter = true", "meter = false");
    h.run("run meter.toml").good();
}

/// The layer is the run's: what is on the drive knows nothing of it.
#[test]
fn the_layer_stands_on_a_target_of_a_drive() {
    let h = here();
    h.file("job.fio", "[w]\nrw=randwrite\nbs=4k\nsize=1m\nend_fsync=1\n");
    for kind in ["pblk", "pftl"] {
        let (image, sets) = (format!("{kind}.img"), "geometry.chunks_per_pu=128");
        h.run(&["drive", "create", &image, "--preset", "tiny", "--set", sets]).good();
        h.run(&["lnvm", "create", &image, "-n", "db", "-t", kind]).good();
        let drive = ["run", "job.fio", "--drive", &image, "--json", "-"];
        for _ in 0..2 {
            let done = h.run(&[&drive[..], &["--set", "target.0.meter=true"]].concat()).good();
            let json = done.json();
            let counted = &json["runs"][0]["layers"]["meter"];
            assert_eq!(
                (&counted["writes"], &counted["written_sectors"]),
                (&256.into(), &256.into())
            );
        }
        let json = h.run(&drive).good().json();
        assert!(json["runs"][0].get("layers").is_none());
        // What an experiment puts on its first target stands on the drive's, whatever that is.
        let first = RUN.replacen("name = \"without\"", "name = \"first\"\nmeter = true", 1);
        h.file("meter.toml", first);
        let done = h.run(&["run", "meter.toml", "--drive", &image, "--json", "-"]).good();
        let json = done.json();
        assert!(json["runs"][0]["layers"]["meter"]["reads"].as_u64() > Some(10), "{json}");
    }
}

/// Power cuts and faults with the layer on top.
#[test]
fn the_layer_stands_in_a_torture() {
    let h = with(RUN);
    for target in ["with", "block SSD"] {
        let json = h
            .run(&format!("torture meter.toml --target '{target}' --seeds 2 --json -"))
            .good()
            .json();
        assert!(json["cuts"].as_u64() > Some(5), "{json}");
        assert_eq!(json["failures"].as_array().map(Vec::len), Some(0));
    }
}

/// A workload costs the host the same, whether it is a job file or an experiment.
#[test]
fn a_job_file_and_an_experiment_pay_the_same_costs() {
    let h = here();
    h.file("w.fio", "[w]\nrw=randrw\nbs=4k\niodepth=8\nsize=8m\nend_fsync=1\n");
    let text = "name = \"w\"\n[device]\npreset = \"peers-16g\"\n[[target]]\nkind = \"pblk\"\n\
                [[workload]]\nname = \"w\"\nrw = \"randrw\"\nbs = \"4KiB\"\niodepth = 8\n\
                size = \"8MiB\"\nend_fsync = true\n";
    h.file("w.toml", text);
    let run = |file: &str, more: &[&str]| {
        h.run(&[&["run", file, "--json", "-"], more].concat()).good().json()["runs"][0].clone()
    };
    let (job, experiment) = (run("w.fio", &[]), run("w.toml", &[]));
    assert_eq!(job["fingerprint"], experiment["fingerprint"]);
    assert_eq!(job["cpu"]["costs"], "lightnvm-fast17");
    let free = ["--set", "run.costs=zero"];
    let (job, experiment) = (run("w.fio", &free), run("w.toml", &free));
    assert_eq!(job["fingerprint"], experiment["fingerprint"]);
    assert_eq!(experiment["cpu"]["costs"], "zero");
    assert!(experiment["runtime_ns"].as_u64() < run("w.toml", &[])["runtime_ns"].as_u64());
}

/// 2,000 files of 4 KiB, made and deleted, with the contents of the file system's metadata.
const FILES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/figures/ghosts-files.parquet");

/// Under a recording of a real ext4 the layer discards every block of dead inodes, and changes nothing else.
#[test]
fn the_layer_discards_under_a_recorded_file_system() {
    let h = here();
    let target = |kind: &str, name: &str, layer: &str| {
        format!(
            "[[target]]\nkind = \"{kind}\"\nname = \"{name}\"\nmeter = true\nidiscard = {layer}\n"
        )
    };
    let all = "{ zeros = true, bitmaps = true, journal = true, freed = true }";
    let mut text = "[device]\npreset = \"disksim\"\nstore = \"compact\"\n".to_string();
    text += &target("pftl", "watched", "{ watch = true }");
    text += &target("pftl", "drive", "true");
    text += &target("pblk", "host", all);
    text += "[[workload]]\ntrace = \"bundled:ghosts-files\"\nreplay = \"dependent\"\n";
    text += "max_pause = \"0ns\"\n";
    text += "[run]\nfill = \"none\"\ncosts = \"zero\"\n";
    h.file("files.toml", text);
    let done = h.run("run files.toml --json - --report page").good();
    let json = done.json();
    let of =
        |run: usize, of: &str, key: &str| json["runs"][run][of][key].as_u64().expect("a count");
    let layer = |run: usize, key: &str| {
        json["runs"][run]["layers"]["idiscard"][key].as_u64().expect("a count")
    };
    let dead = of(0, "pages", "dead_inodes_sectors");
    assert!((120..130).contains(&dead) && layer(0, "discards") == 0, "{dead}");
    for run in [1, 2] {
        assert_eq!(
            (of(run, "pages", "dead_inodes_sectors"), layer(run, "discarded_sectors")),
            (0, dead)
        );
        let metered = |run: usize, key: &str| json["runs"][run]["layers"]["meter"][key].clone();
        for key in ["reads", "writes"] {
            assert_eq!(metered(run, key), metered(0, key), "{key}");
        }
        // What is used stays, and nothing that was read was wrong.
        for key in ["superblock", "bitmap", "inodes", "directory", "tree", "unknown"] {
            let key = format!("{key}_sectors");
            assert_eq!(of(run, "pages", &key), of(0, "pages", &key), "{key}");
        }
        assert_eq!(json["runs"][run]["wrong_sectors"], 0);
    }
    assert_eq!(of(2, "pages", "ghost_sectors"), 0);
    assert!(of(1, "pages", "ghost_sectors") > 0 && layer(2, "discarded_freed_sectors") > 0);
    let text = h.run("run files.toml").good().out;
    assert!(text.contains("of them are ghost pages: dead inodes"), "{text}");
    let page = std::fs::read_to_string(h.path("page/report.html")).expect("a page");
    assert!(page.contains("What the valid pages hold"));
}

#[test]
fn discards_are_added_to_a_recording() {
    let h = here();
    let add = |more: &str| h.run(&format!("trace idiscard {FILES} with.parquet {more}"));
    let said = add("--json -").good().json();
    assert_eq!((&said["requests"], &said["writes_with_content"]), (&4117.into(), &20.into()));
    let dead = said["discarded_sectors_added"].as_u64().expect("a count");
    assert_eq!(&said["idiscard"]["discarded_sectors"], dead);
    assert!((120..130).contains(&dead), "{dead}");
    let info = h.run("trace info with.parquet --json -").good().json();
    assert_eq!(info["contents"], true);
    // Contents can be left out.
    let again = "trace idiscard with.parquet none.parquet --content none --ghosts watch --json -";
    let again = h.run(again).good();
    let again = again.json();
    assert_eq!((&again["discards_added"], &again["writes_with_content"]), (&0.into(), &0.into()));
    h.run("trace idiscard none.parquet again.parquet")
        .refused(2, &["no contents", "--content all"]);
    let text = add("--ghosts all --from 1s").good().out;
    assert!(text.contains("requests as they were"), "{text}");
    add("--ghosts watch").good();
    add("--ghosts ghosts").refused(2, &["`ghosts` is none of", "journal"]);
    add("--device sda").refused(2, &["has no device `sda`"]);
    h.run(&format!("trace idiscard {FILES} out.csv")).refused(2, &["out.csv", "out.parquet"]);
    h.run("trace idiscard nothing.parquet out.parquet").refused(2, &["nothing.parquet"]);
    h.run("trace idiscard with.parquet with.parquet").refused(2, &["with.parquet"]);
}
