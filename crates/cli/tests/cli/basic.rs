//! The program as a person uses it: what is printed, what is refused, exit codes.

use crate::harness::{Done, EXPERIMENT, JOB, MSR, TRACE, here, says};
use std::path::Path;
use std::process::Stdio;

#[test]
fn an_experiment_gives_a_table_and_the_promised_json() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    let table = h.run("run e.toml").good();
    says(&table.out, &["stack", "block SSD (pftl)", "WA", "not steady", "fingerprint", "seed 1"]);
    assert!(table.err.is_empty(), "nothing is drawn without a terminal: {}", table.err);
    let json = h.run("run e.toml --json -").good().json();
    assert!(json["fingerprint"].is_string() && json["wall_seconds"].is_number());
    let run = &json["runs"][0];
    for key in ["name", "requests", "bytes_read", "bytes_written", "runtime_ns"] {
        assert!(!run[key].is_null(), "{key}");
    }
    for op in ["read", "write"] {
        for p in ["mean", "p50", "p99", "p99_9", "max"] {
            assert!(run["latency_ns"][op][p].is_u64(), "{op} {p}");
        }
    }
    let causes = [
        "user",
        "gc",
        "fold",
        "padding_flush",
        "padding_pair",
        "padding_gc",
        "metadata",
        "log",
        "retry",
        "dead",
    ];
    for cause in causes {
        assert!(run["programmed_sectors"][cause].is_u64(), "{cause}");
    }
    assert!(run["write_amplification_ratio"].is_f64() && run["erases"].is_u64());
    // Where the time went; the parts of a mean are not more than the mean.
    for (op, parts) in [
        (
            "read",
            &["queue", "link", "channel", "die_read", "die_program", "die_erase", "retry"][..],
        ),
        ("write", &["queue", "ring_full", "limited", "rest"]),
    ] {
        let of = &run["latency_breakdown_ns"][op];
        for part in parts {
            assert!(of[part].is_u64(), "{op} {part}: {of}");
        }
        let sum: u64 = of.as_object().expect("parts").values().filter_map(|v| v.as_u64()).sum();
        let latency = &run["latency_ns"][op];
        let all = latency["mean"].as_u64().unwrap() * latency["count"].as_u64().unwrap();
        assert!(sum.abs_diff(all) <= all / 100, "{op}: {sum} of {all}");
    }
    for part in ["die_read", "die_program", "die_erase", "channel"] {
        assert!(run["busy_ratio"][part].as_f64() < Some(1.0), "{part}");
    }
    assert_eq!(run["violations"], 0);
    assert_eq!(run["wrong_sectors"], 0);
    assert_eq!(run["counter_laws"], "hold");
    assert!(run["steady"].is_boolean());
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    let of = |seed: &str| {
        let mut json = h.run(&["run", "e.toml", "--json", "-", "--seed", seed]).good().json();
        json["wall_seconds"] = 0.into();
        json
    };
    let (first, other) = (of("5"), of("6"));
    assert_eq!(first, of("5"));
    assert_ne!(first["fingerprint"], other["fingerprint"]);
    assert_ne!(first["runs"][0]["latency_ns"], other["runs"][0]["latency_ns"]);
    // The text too, but for its last line, which is how long it really took.
    let text = |seed: &str| {
        let out = h.run(&format!("run e.toml --seed {seed}")).good().out;
        let (rest, last) = out.trim_end().rsplit_once('\n').expect("lines");
        assert!(last.ends_with("s of real time"), "{last}");
        rest.to_string()
    };
    assert_eq!(text("5"), text("5"));
    assert_ne!(text("5"), text("6"));
    let csv = |seed| h.run(&["run", "e.toml", "--csv", "-", "--seed", seed]).good().out;
    assert_eq!(csv("5"), csv("5"));
    assert_ne!(csv("5"), csv("6"));
}

#[test]
fn a_job_file_and_a_trace_run_too() {
    let h = here();
    h.file("j.fio", JOB);
    h.file("t.txt", TRACE);
    let json = h.run("run j.fio --device peers-16g --target pblk --json -");
    let run = &json.good().json()["runs"][0];
    assert_eq!(run["name"], "pblk");
    assert_eq!(run["bytes_written"], 2 << 20);
    assert_eq!(run["latency_ns"]["flush"]["count"], 8);
    let json = h.run("run t.txt --target pftl --store memory --json -").good().json();
    assert_eq!(json["runs"][0]["requests"], 2);
    assert_eq!(json["configuration"]["targets"][0]["store"], "memory");
    let files = h.run("run t.txt --json r.json --csv r.csv").good();
    assert!(files.out.contains("stack"));
    assert_eq!(h.files(), ["j.fio", "r.csv", "r.json", "t.txt"], "nothing else is left behind");
    let csv = std::fs::read_to_string(h.path("r.csv")).unwrap();
    assert!(csv.starts_with("name,requests,read_bytes,") && csv.lines().count() == 2);
    let cells: Vec<usize> = csv.lines().map(|l| l.split(',').count()).collect();
    assert_eq!(cells[0], cells[1], "a cell for each column: {csv}");
    for column in ["write_p99_9_ns", "write_ring_full_sum_ns", "read_die_program_sum_ns", "steady"]
    {
        assert!(csv.lines().next().is_some_and(|h| h.split(',').any(|c| c == column)), "{column}");
    }
}

#[test]
fn a_trace_that_is_too_large_needs_to_be_told_to_shrink() {
    let h = here();
    h.file("t.txt", "0 0 0 8 0\n9 0 99999999992 8 1\n");
    let refused = h.run("run t.txt");
    refused.refused(2, &["--scale-to-device", "46.57 TiB"]);
    assert!(!refused.err.contains("one of its devices"), "it has one only: {}", refused.err);
    let packed = h.run("run t.txt --scale-to-device").good();
    assert!(packed.out.contains("packed: 2 touched places"), "{}", packed.out);
    h.file("e.toml", EXPERIMENT);
    h.run("run e.toml --scale-to-device").refused(2, &["for traces"]);
}

#[test]
fn wrong_input_is_answered_with_place_and_remedy() {
    let h = here();
    let run = |name: &str, text: &str, more: &[&str]| {
        h.file(name, text);
        h.run(&[&["run", name][..], more].concat())
    };
    run("key.toml", &EXPERIMENT.replace("iodepth", "io_depth"), &[])
        .refused(2, &["key.toml:11:1", "did you mean `iodepth`", "io_depth = 8"]);
    run("unit.toml", &format!("{EXPERIMENT}runtime = \"3 parsecs\"\n"), &[])
        .refused(2, &["unit.toml:12", "runtime"]);
    run("geo.toml", &EXPERIMENT.replace("= 64", "= 0"), &[])
        .refused(2, &["geo.toml:6", "chunks_per_pu", "at least 1"]);
    run("fit.toml", &EXPERIMENT.replace("= 64", "= 2"), &[])
        .refused(2, &["on device `tiny (changed)`"]);
    run("big.fio", "[a]\nrw=read\nsize=1t\n", &[]).refused(2, &["job `a`", "1 TiB", "size=100%"]);
    run("bad.fio", "[a]\nrw=read\nbs=512\n", &[]).refused(2, &["bad.fio:3", "4 KiB"]);
    run("bad.txt", "0 0 0 8 0\n0 0 zero 8 0\n", &[]).refused(2, &["bad.txt:2:5", "first sector"]);
    run("cut.txt", "0 0 0 8 0\n0 0 1", &[]).refused(2, &["cut.txt:2", "truncated"]);
    run("none.txt", "8,0 0 1 0.0 9 P N [x]\n", &[]).refused(2, &["0 of 1 lines matched"]);
    run("what.txt", "hello\n", &[]).refused(2, &["neither an experiment", "job file", "trace"]);
    run("e.toml", EXPERIMENT, &["--device", "p370"]).refused(2, &["did you mean `p3700`"]);
    run("e.toml", EXPERIMENT, &["--target", "zblk"]).refused(2, &["--target zblk", "qblk, pftl"]);
    run("e.toml", EXPERIMENT, &["--store", "disk"]).refused(2, &["--store disk", "stamps"]);
    run("e.toml", EXPERIMENT, &["--set", "run.sede=1"]).refused(2, &["did you mean `seed`"]);
    run("e.toml", EXPERIMENT, &["--seed=-1"]).refused(2, &["--seed"]);
    run("e.toml", EXPERIMENT, &["--json", "-", "--csv", "-"]).refused(2, &["standard output"]);
    run("e.toml", EXPERIMENT, &["--html", "x", "--hdr", "x"]).refused(2, &["--html and --hdr"]);
    run("e.toml", EXPERIMENT, &["--report", "r", "--html", "./r/report.html"])
        .refused(2, &["--report and --html both want"]);
    run("e.toml", EXPERIMENT, &["--report", "-"]).refused(2, &["name a folder"]);
    run("e.toml", EXPERIMENT, &["--report", "e.toml"]).refused(2, &["e.toml is no folder"]);
    h.run("run nowhere.toml").refused(2, &["cannot read nowhere.toml"]);
    h.run("run .").refused(2, &["cannot read ."]);
    h.run("chek").refused(2, &["check"]);
    h.run("reproduce lightnvm-table2").refused(2, &["did you mean `lightnvm-table1`"]);
}

/// A result that can't be written is known before anything runs, and nothing is left behind.
#[test]
fn places_that_cannot_be_written_are_refused_at_once() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    h.run("run e.toml --json no/such/folder/r.json")
        .refused(2, &["cannot write no/such/folder/r.json"]);
    h.run("run e.toml --json .").refused(2, &["cannot write ."]);
    h.run("run e.toml --report no/such/folder")
        .refused(2, &["cannot make the folder no/such/folder"]);
    // A folder made for a report that cannot be goes again.
    h.run("run e.toml --report new --target pblk:9999").refused(2, &["9999 active PUs"]);
    h.run("run e.toml --report new --set workload.0.size=\"1TiB\"")
        .refused(2, &["choose a larger device"]);
    h.file("old.json", "precious");
    h.file("bad.toml", "name = 3");
    h.run("run bad.toml --json old.json").refused(2, &["bad.toml:1:1"]);
    assert_eq!(std::fs::read_to_string(h.path("old.json")).unwrap(), "precious");
    assert_eq!(h.files(), ["bad.toml", "e.toml", "old.json"]);
}

/// A report is all its files, whole, and nothing else; the same seed gives the same bytes.
#[test]
fn a_report_is_a_folder_of_files_that_are_all_there() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    h.run("run e.toml --report one --perfetto one.json").good();
    h.run("run e.toml --report two --perfetto two.json").good();
    let mut names: Vec<String> = std::fs::read_dir(h.path("one"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let want = [
        "channels.csv",
        "channels.parquet",
        "fio.json",
        "latency.hlog",
        "report.html",
        "results.csv",
        "results.json",
        "results.parquet",
        "timeline.csv",
        "timeline.parquet",
    ];
    assert_eq!(names, want);
    assert_eq!(h.files(), ["e.toml", "one", "one.json", "two", "two.json"]);
    let read = |path: String| std::fs::read(h.path(&path)).unwrap();
    assert!(read("one.json".into()) == read("two.json".into()), "the trace differs");
    let channels = String::from_utf8(read("one/channels.csv".into())).unwrap();
    let (head, rows) = channels.split_once('\n').unwrap();
    assert_eq!(head, "name,start_ns,end_ns,channel,read_ratio,program_ratio,erase_ratio");
    let programmed: f64 = rows
        .lines()
        .map(|row| row.split(',').nth(5).unwrap())
        .map(|share| {
            let share: f64 = share.parse().unwrap();
            assert!((0.0..=1.0).contains(&share), "{share}");
            share
        })
        .sum();
    assert!(programmed > 0.0, "{rows}");
    for name in want.iter().filter(|name| **name != "results.json") {
        assert!(read(format!("one/{name}")) == read(format!("two/{name}")), "{name} differs");
    }
    let json = |path: &str| -> serde_json::Value {
        let mut json: serde_json::Value = serde_json::from_slice(&read(path.into())).unwrap();
        json["wall_seconds"] = 0.into();
        json
    };
    assert_eq!(json("one/results.json"), json("two/results.json"));
    // Into a folder that is there: its other files stay.
    h.file("two/mine.txt", "precious");
    h.run("run e.toml --report two").good();
    assert_eq!(read("two/mine.txt".into()), b"precious");
    let out = h.run("run e.toml --html -").good().out;
    assert!(out.starts_with("<!doctype html>") && out.ends_with("</html>\n"));
}

#[test]
fn check_says_everything_and_runs_nothing() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    let good = h.run("check e.toml").good();
    says(&good.out, &["64 MiB", "MB/s", "nothing wrong found"]);
    h.file("bad.toml", EXPERIMENT.replace("iodepth", "io_depth").replace("tiny", "tinny"));
    h.run("check bad.toml").refused(2, &["bad.toml:4", "bad.toml:11"]);
    h.file("fit.toml", format!("{EXPERIMENT}size = \"1GiB\"\n"));
    let fit = h.run("check fit.toml");
    assert!(fit.code == 2 && fit.err.contains("ends outside"), "{fit:?}");
}

#[test]
fn traces_are_looked_at_and_checked() {
    let h = here();
    h.file("t.txt", TRACE);
    let info = h.run("trace info t.txt").good();
    says(
        &info.out,
        &["blkparse text", "Q (queued)", "read", "write", "device 8,0", "in order of time"],
    );
    let json = h.run("trace info t.txt --json -").good().json();
    assert_eq!(json["actions"][0]["requests"], 2);
    let valid = h.run("trace validate t.txt --device tiny").good();
    assert!(valid.out.contains("good") && valid.out.contains("fits tiny"), "{}", valid.out);
    h.file("far.txt", "0 0 999999999 8 0\n");
    h.run("trace validate far.txt --device tiny").refused(2, &["addresses"]);
    h.file("bad.txt", "8,0 0 1 0.0 9 Q R 0 + eight [x]\n");
    h.run("trace validate bad.txt").refused(2, &["bad.txt:1:23", "sectors"]);
    h.file("bin.txt", b"\x08tae\0\0\0\0");
    h.run("trace info bin.txt").refused(2, &["blkparse -i"]);
    h.file("bin.txt", b"\x07tae\0\0\0\0");
    h.run("trace info bin.txt").refused(2, &["record 1 (byte 0)", "truncated"]);
}

/// A log of 4 MiB that is gone round three times, among other writes.
#[test]
fn journals_are_found_in_a_trace_and_compared_with_the_truth() {
    let h = here();
    let (mut trace, mut other) = (String::new(), 1u64);
    for at in (0..3 * 1024u64).step_by(4) {
        other = other * 48_271 % 0x7fff_ffff;
        let (log, other) = ((2048 + at % 1024) * 8, (8192 + other % 8192) * 8);
        trace += &format!("{0} 0 {log} 32 0\n{0} 0 {other} 8 0\n", at * 1_000_000);
    }
    h.file("t.trace", &trace);
    h.file("t.truth", "# blocks\n2048 + 1024 redo\n");
    // All of them are writes, which five numbers alone are not believed.
    let asked = h.run("trace info t.trace --truth t.truth");
    asked.refused(2, &["all its 1536 requests are writes", "--format mqsim", "--take-as-is"]);
    let command = "trace info t.trace --format mqsim --truth t.truth --plot t.svg --json t.json";
    let info = h.run(command).good();
    says(
        &info.out,
        &[
            "bytes 8388608 to 12582912 (4 MiB): 2 laps",
            "precision 1.000",
            "redo: 1024 blocks",
            "|",
            "#",
        ],
    );
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(h.path("t.json")).unwrap()).unwrap();
    let warm = &json["journals"]["judged"]["warm"];
    assert!(warm["hits"].as_u64() > Some(1900) && warm["false_alarms"] == 0, "{warm}");
    let svg = std::fs::read_to_string(h.path("t.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("class=\"journal\" d=\"M"), "{svg}");
    h.file("t.truth", "2048 + redo\n");
    h.run("trace info t.trace --truth t.truth").refused(2, &["t.truth:1", "FIRST + COUNT NAME"]);
    h.run("trace info t.trace --truth t.truth --plot t.trace").refused(2, &["would replace"]);
    h.run("trace info t.trace --plot t.svg --json t.svg").refused(2, &["t.svg"]);
    h.run("trace info t.trace --truth none").refused(2, &["cannot read none"]);
}

/// A trace in other formats: whole files or none, and what a format can't carry has to be allowed.
#[test]
fn traces_are_converted() {
    let h = here();
    h.file("t.csv", MSR);
    let done = h.run("trace convert t.csv t.parquet").good();
    assert_eq!(done.out, "t.parquet: Parquet, 2 requests from MSR Cambridge CSV\n");
    h.run("trace convert t.parquet back.csv --to msr").good();
    assert_eq!(std::fs::read_to_string(h.path("back.csv")).unwrap(), MSR);
    // Latencies are what these formats have no room for.
    let says = ["2 latencies left out", "--lossy"];
    h.run("trace convert t.csv - --to fio-iolog3").refused(2, &says);
    let log = h.run("trace convert t.csv - --to fio-iolog3 --lossy").good();
    let lines: Vec<&str> = log.out.lines().collect();
    assert_eq!(lines[0], "fio version 3 iolog");
    assert_eq!(lines[3..], ["0 web_0 write 4096 4096", "1000000 web_0 read 4096 4096"]);
    assert!(log.err.contains("2 latencies left out"), "{}", log.err);
    let json = h.run("trace convert t.csv t.txt --to ssdsim --lossy --json -");
    assert_eq!(json.good().json()["losses"]["latencies"], 2);
    assert_eq!(std::fs::read_to_string(h.path("t.txt")).unwrap().lines().next(), Some("0 0 8 8 0"));
    assert_eq!(h.files(), ["back.csv", "t.csv", "t.parquet", "t.txt"], "nothing else is left");
    for file in ["t.csv", "t.parquet", "t.txt"] {
        let run = h.run(&["run", file, "--target", "pftl", "--scale-to-device", "--json", "-"]);
        assert_eq!(run.good().json()["runs"][0]["requests"], 2, "{file}");
    }
}

#[test]
fn a_conversion_that_can_not_be_done_leaves_everything_as_it_was() {
    let h = here();
    h.file("t.csv", MSR);
    h.file("flush.txt", "8,0 0 1 0.0 9 Q FN [x]\n8,0 0 2 0.1 9 Q W 0 + 8 [x]\n");
    h.file("bad.csv", format!("{MSR}128166372003061629,web,0,Wrote,4096,4096,1331\n"));
    h.file("old", "precious");
    let convert = |args: &str| h.run(&format!("trace convert {args}"));
    convert("flush.txt old --to mqsim").refused(2, &["1 flushes left out", "--lossy"]);
    convert("bad.csv old").refused(2, &["bad.csv:3:26", "`Read` or `Write`"]);
    convert("t.csv old --device web_7").refused(2, &["no device `web_7`", "web_0"]);
    convert("t.csv old --to mqsin").refused(2, &["did you mean `mqsim`"]);
    convert("t.csv old --time-unit us").refused(2, &["t.csv:1:1", "the time"]);
    convert("t.csv old --format tencent").refused(2, &["t.csv:1:1", "seconds"]);
    let says = ["out.csv", "`.csv`, and Parquet", "--to` msr, systor17", "write out.parquet"];
    convert("t.csv out.csv").refused(2, &says);
    let says = ["`.parquet`, and MSR Cambridge CSV", "--to` parquet", "write out.csv"];
    convert("t.csv out.parquet --to msr").refused(2, &says);
    convert("t.csv out.iolog --to mqsim --lossy").refused(2, &["write out.txt"]);
    convert("t.csv no/such/old").refused(2, &["cannot write no/such/old"]);
    convert("t.csv - --json -").refused(2, &["standard output"]);
    assert_eq!(std::fs::read_to_string(h.path("old")).unwrap(), "precious");
    assert_eq!(h.files(), ["bad.csv", "flush.txt", "old", "t.csv"]);
    let lossy = convert("flush.txt new --to mqsim --lossy").good();
    assert!(lossy.out.contains("1 flushes left out"), "{}", lossy.out);
    let none = "8,0 0 1 0.0 9 Q FN [x]\n";
    h.file("none.txt", none);
    convert("none.txt new2 --to mqsim --lossy").refused(2, &["none of its 1"]);
    if Path::new("/dev/full").exists() {
        convert("t.csv /dev/full").refused(2, &["cannot write the converted trace"]);
    }
}

/// Where a trace tells when requests ended, the order of ends and beginnings can be kept.
#[test]
fn a_dependent_replay_keeps_what_waited_for_what() {
    let h = here();
    // The second was made 1 s after the first had ended; the device here is faster than 1 s.
    h.file("t.csv", "0,a,0,Write,0,4096,10000000\n20000000,a,0,Read,0,4096,100\n");
    let of = |replay: &str| {
        let set = format!("workload.0.replay={replay}");
        h.run(&format!("run t.csv --target pftl --json - --set {set}")).good().json()["runs"][0]["runtime_ns"].as_u64().expect("a time")
    };
    let (open, dependent, closed) = (of("open"), of("dependent"), of("closed"));
    let second = 1_000_000_000;
    assert!(open >= 2 * second, "{open}");
    assert!((second..second + second / 10).contains(&dependent), "{dependent}");
    assert!(closed < second / 10, "{closed}");
    h.file("m.txt", "0 0 0 8 0\n");
    h.run("run m.txt --target pftl --set workload.0.replay=dependent")
        .refused(2, &["no completions", "open"]);
}

/// MQSim/DiskSim ASCII: several devices, addresses far apart, 512-byte sectors, 0 is a write.
#[test]
fn an_mqsim_trace_of_several_devices_replays() {
    let h = here();
    let lines = (0..300u64).map(|i| {
        // Each device reads back what it wrote 30 requests ago; a third lies across 4 KiB.
        let (device, at) = (i % 3, 900_000_000 + (i / 6) * 2_000_000 + i % 3);
        format!("{} {device} {at} {} {}\n", i * 20_000, 8 + i % 2 * 8, i / 3 % 2)
    });
    h.file("t.trace", lines.collect::<String>());
    let info = h.run("trace info t.trace --json -").good().json();
    assert_eq!(info["actions"][0]["requests"], 300);
    assert_eq!(info["actions"][0]["devices"].as_array().map(Vec::len), Some(3));
    let says = ["on 3 devices", "--scale-to-device", "workload.0.device"];
    h.run("run t.trace --target pblk").refused(2, &says);
    let run =
        &h.run("run t.trace --target pblk --scale-to-device --json -").good().json()["runs"][0];
    assert_eq!(run["requests"], 300);
    assert_eq!(run["wrong_sectors"], 0);
    assert!(run["bytes_read"].as_u64() > Some(0) && run["bytes_written"].as_u64() > Some(0));
    assert!(run["replayed"][0]["widened"].as_u64() > Some(0), "{}", run["replayed"]);
    let only = "workload.0.device=\"1\"";
    assert_eq!(
        h.run(&format!("run t.trace --scale-to-device --json - --set {only}")).good().json()["runs"]
            [0]["requests"],
        100,
        "one device of three"
    );
}

#[test]
fn help_has_examples_and_completions_complete() {
    let h = here();
    for command in [
        &["run"][..],
        &["check"],
        &["reproduce"],
        &["trace", "info"],
        &["trace", "validate"],
        &["trace", "convert"],
        &["completions"],
    ] {
        let help = h.run(&[command, &["--help"]].concat()).good();
        assert!(help.out.contains("Examples:"), "{command:?}");
    }
    assert!(h.run("--help").good().out.contains("Exit codes:"));
    assert!(h.run("reproduce").good().out.contains("lightnvm-table1"));
    for shell in ["bash", "zsh", "fish"] {
        let script = h.run(&["completions", shell]).good();
        assert!(script.out.contains("scale-to-device"), "{shell}");
    }
}

/// `flashlane ... | head -1` must not end in a panic.
#[test]
fn a_reader_that_goes_away_is_no_error() {
    let h = here();
    let mut child = h
        .command("completions bash")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let done = Done::of(child.wait_with_output().expect("it ends"));
    assert_eq!((done.code, done.err.as_str()), (0, ""));
}

/// Ctrl-C: what is done so far is printed, marked, and the exit code says so.
#[test]
fn an_interrupted_run_prints_what_is_done() {
    let h = here();
    let endless = format!("{EXPERIMENT}time_based = true\nruntime = \"9000h\"\n");
    h.file("e.toml", endless);
    let done = h.interrupted("run e.toml --json -");
    assert_eq!(done.code, 130, "{done:?}");
    let json = done.json();
    assert_eq!(json["interrupted"], true);
    assert!(json["runs"][0]["requests"].as_u64() > Some(0));
    assert_eq!(json["runs"][0]["steady"], false);
}

/// The same for the table, and for a figure: rows that were not measured have no value.
#[test]
fn an_interrupted_table_or_figure_says_that_it_is_partial() {
    let h = here();
    h.file("e.toml", format!("{EXPERIMENT}time_based = true\nruntime = \"9000h\"\n"));
    let done = h.interrupted("run e.toml");
    assert_eq!(done.code, 130, "{done:?}");
    says(&done.out, &["stack", "block SSD (pftl)", "INTERRUPTED", "not steady: interrupted"]);
    let done = h.interrupted("reproduce lightnvm-table1 --full --json -");
    assert_eq!(done.code, 130, "{done:?}");
    let json = done.json();
    assert_eq!((&json["interrupted"], &json["verdict"]), (&true.into(), &"unfinished".into()));
    let rows = json["rows"].as_array().expect("rows");
    let steady = rows.iter().filter(|r| r["what"].as_str().is_some_and(|w| w.contains("steady")));
    // What was measured until then is of no use.
    assert!(steady.clone().count() > 5 && steady.clone().all(|r| r["here"].is_null()), "{json}");
}

/// Fill, spare and steadiness are said; a run that was cut short in its preparation says so.
#[test]
fn what_was_prepared_and_what_spare_there_is_are_said() {
    let h = here();
    // 256 lines of 1 MiB: 256 MiB raw.
    let text = EXPERIMENT
        .replace("chunks_per_pu = 64", "chunks_per_pu = 256")
        .replace("\"pftl\"", "\"pblk\"\nover_provisioning_percent = 30")
        .replace("randrw", "randwrite")
        + "norandommap = true\ntime_based = true\nruntime = \"4s\"\n"
        + "[run]\nfill = \"100%\"\noverwrite = \"steady\"\n";
    h.file("e.toml", &text);
    let table = h.run("run e.toml --json r.json").good().out;
    let json = std::fs::read_to_string(h.path("r.json")).expect("the result");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let run = &json["runs"][0];
    assert_eq!(
        (&run["steady"], &run["prepared"]["settled"]),
        (&true.into(), &true.into()),
        "{run}"
    );
    let f = &run["fill"];
    assert_eq!(f["at_start_ratio"], 1.0);
    let ratio = |of: &serde_json::Value| of.as_f64().expect("a ratio");
    let (spare, left) = (ratio(&f["spare_ratio"]), ratio(&f["lines"]["effective_spare_ratio"]));
    assert!(0.25 < left && left < spare && spare < 0.4, "{left} of {spare}");
    says(
        &table,
        &[
            "before measuring:",
            "at random",
            "settled at",
            "% spare",
            "100% to 100%",
            "steady: write amp",
        ],
    );
    h.file("long.toml", text.replace("4s", "9000h").replace("\"steady\"", "\"10000%\""));
    let cut = h.interrupted("run long.toml");
    assert!(cut.code == 130 && cut.out.contains("INTERRUPTED"), "{cut:?}");
    // What is said to have been written is what was written: here not all of 1 TiB.
    h.file("all.fio", "[j]\nrw=randread\nbs=4k\nsize=100%\n");
    let cut = h.interrupted("run all.fio --device tlc-modern");
    assert!(cut.code == 130 && cut.out.contains("interrupted before measuring"), "{cut:?}");
    assert!(!cut.out.contains("907.66 GiB written"), "{cut:?}");
}

/// Nobody needs a file: the program brings a trace and an experiment, from any folder. Its drives are
/// used ones: a first run shows garbage collection, write amplification and the limiter at work.
#[test]
fn without_a_file_the_bundled_trace_runs() {
    let h = here();
    let json = h.run("run --json - --set workload.0.loops=1").good().json();
    let runs = json["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 5);
    for run in runs {
        assert!(run["requests"].as_u64() > Some(50_000), "{}", run["requests"]);
        assert_eq!((&run["violations"], &run["wrong_sectors"]), (&0.into(), &0.into()));
    }
    // pblk, QBLK and the block SSD, full, under 32 threads.
    for run in &runs[2..] {
        let (name, why) = (&run["name"], &run["steady_reason"]);
        assert_eq!(run["steady"], true, "{name}: {why}");
        assert!(run["write_amplification_ratio"].as_f64() > Some(1.5), "{name}");
        assert!(run["gc_moved_sectors"].as_u64() > Some(10_000), "{name}");
    }
    let limited = |i: usize| runs[i]["latency_breakdown_ns"]["write"]["limited"].as_u64();
    assert!(limited(2) > Some(0) && limited(3) > Some(0), "the limiter holds writers back");
    let spinning = |i: usize| runs[i]["cpu"]["lock_ratio"].as_f64().expect("a number");
    assert!(spinning(2) > 100.0 * spinning(3), "pblk's cores spin on locks, QBLK's do not");
    // The same on a target of the command line: the trace alone.
    let json = h.run("run --target pftl --json - --set workload.0.loops=1").good().json();
    assert_eq!(json["runs"].as_array().expect("a list").len(), 1);
    assert_eq!(json["configuration"]["workloads"].as_array().expect("a list").len(), 1);
}

/// Streams on PUs of their own, no translation layer.
#[test]
fn raw_targets_take_jobs_that_name_their_pus() {
    let raw = "[device]\npreset = \"tiny\"\n[target]\nkind = \"raw\"\n[[workload]]\nname = \"r\"\nrw = \"randread\"\n\
               pus = \"0-0\"\nsize = \"512KiB\"\n[[workload]]\nname = \"w\"\nrw = \"write\"\nbs = \"16KiB\"\npus = \"2-3\"\n\
               size = \"1MiB\"\ntime_based = true\nruntime = \"20ms\"\n";
    let h = here();
    h.file("raw.toml", raw);
    let run = &h.run("run raw.toml --json -").good().json()["runs"][0];
    assert_eq!(run["bytes_read"], 512 << 10);
    assert!(run["erases"].as_u64() > Some(0), "the writer went round: {}", run["erases"]);
    let parts = &run["latency_breakdown_ns"]["read"];
    assert!(parts["array"].as_u64() > Some(0) && parts["rest"] == 0, "{parts}");
    assert_eq!((&run["violations"], &run["wrong_sectors"]), (&0.into(), &0.into()));
    assert!(h.run("check raw.toml").good().out.contains("nothing wrong"));
    let refused = |from: &str, to: &str, says: &str| {
        h.file("bad.toml", raw.replace(from, to));
        h.run("run bad.toml").refused(2, &[says]);
        let check = h.run("check bad.toml");
        assert!(check.code == 2 && check.err.contains(says), "{check:?}");
    };
    refused("pus = \"2-3\"\n", "", "name their PUs");
    refused("\"2-3\"", "\"0-3\"", "share PU 0");
    refused("\"2-3\"", "\"2-9\"", "needs 10 PUs, there are 4");
    refused("rw = \"write\"", "rw = \"randwrite\"", "written in order");
    refused("\"16KiB\"", "\"4KiB\"", "smallest write");
    refused("size = \"1MiB\"", "size = \"1GiB\"", "chunks per PU");
    refused("size = \"1MiB\"", "size = \"1MiB\"\nfsync = 3", "it understands");
    refused("\"raw\"", "\"pblk\"", "is for targets of");
    let on_raw = "has no effect on a target of type `raw`";
    refused("\"tiny\"", "\"tiny\"\nqueue = \"suspend\"", on_raw);
    refused("\"raw\"", "\"raw\"\nhost_cores = 2", on_raw);
}

/// Every example of the repository is good.
#[test]
fn the_examples_are_good() {
    let h = here();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).expect("examples/") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Parts of examples, named by them.
        if ["fault-plan.toml", "cost-table.toml"].contains(&name.as_str()) {
            continue;
        }
        seen += 1;
        h.run(&["check", &path.to_string_lossy()]).good();
    }
    assert!(seen >= 4, "{seen}");
}

/// The smallest of the figures; most others run with the cookbook's commands.
#[test]
fn a_figure_is_reproduced_with_its_verdict() {
    let h = here();
    let text = h.run("reproduce lightnvm-fig8 --json - --jobs 3").good().out;
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        h.run("reproduce lightnvm-fig8 --json - --jobs 1").good().out,
        text,
        "numbers depend on how many run at a time"
    );
    assert_eq!((&json["name"], &json["verdict"]), (&"lightnvm-fig8".into(), &"reproduced".into()));
    let rows = json["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|r| r["what"].is_string() && r["here"].is_number()));
    assert!(rows.iter().all(|r| r.get("paper").is_some()));
}

#[test]
fn a_time_of_another_century_is_a_damaged_line() {
    let h = here();
    h.file("t.csv", "128166372003061629,a,0,Write,4096,4096,9\n99,a,0,Write,4096,4096,9\n");
    for command in [&["trace", "validate", "t.csv"][..], &["run", "t.csv", "--target", "pftl"]] {
        h.run(command).refused(2, &["span 406 years", "a time in it is wrong"]);
    }
}
