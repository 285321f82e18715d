//! Runs with errors: what the terminal, the JSON and the exit code say. And files without an end.

use crate::harness::{EXPERIMENT, Here, here, says};
use serde_json::Value;
use std::process::Command;

/// A device of which some reads of the host fail.
fn failing() -> Here {
    let h = here();
    let plan = "[[fault]]\nkind = \"read_uncorrectable\"\nprobability = \"5e-3\"\n";
    h.file("faults.toml", plan);
    let text = EXPERIMENT
        .replace("[device]\n", "[device]\nfaults = \"faults.toml\"\n")
        .replace("rw = \"randrw\"", "rw = \"randread\"\nio_size = \"4MiB\"");
    h.file("e.toml", text + "[run]\nfill = \"50%\"\n");
    h
}

fn reasons(json: &Value) -> String {
    json["runs"][0]["bad"].to_string()
}

/// As with fio a run with failed requests ends with 1, and says why in each place, unless the experiment
/// says that errors are what it is about: then it is the same run, and good.
#[test]
fn failed_requests_make_a_result_bad_unless_they_are_allowed() {
    let h = failing();
    let done = h.run("run e.toml");
    assert_eq!(done.code, 1, "{done:?}");
    says(
        &done.err,
        &["block SSD (pftl): bad result: ", " failed requests; ", "allow_errors = true"],
    );
    let bad = h.run("run e.toml --json -");
    assert_eq!(bad.code, 1);
    let bad = bad.json();
    assert!(reasons(&bad).contains("failed requests"), "{bad:#}");
    // It stays a bad one where it can't be written.
    let full = h.run("run e.toml --json /dev/full");
    assert!(full.code == 1 && full.err.contains("/dev/full"), "{full:?}");
    assert!(full.err.contains("bad result") && full.out.contains("fingerprint"), "{full:?}");
    let allow = ["--set", "run.allow_errors=true"];
    let good = h.run(&[&["run", "e.toml", "--json", "-"], &allow[..]].concat());
    assert!(!good.err.contains("bad result"), "{}", good.err);
    let good = good.good().json();
    assert_eq!(
        (reasons(&good).as_str(), &good["configuration"]["allow_errors"]),
        ("[]", &true.into())
    );
    assert_eq!(good["fingerprint"], bad["fingerprint"]);
    assert_eq!(good["runs"][0]["failed_requests"], bad["runs"][0]["failed_requests"]);
    let sweep = ["sweep", "e.toml", "--vary", "run.seed=1,2", "--json", "-"];
    let swept = h.run(&sweep);
    assert_eq!((swept.code, &swept.json()["bad"]), (1, &2.into()), "{swept:?}");
    assert_eq!(h.run(&[&sweep[..], &allow].concat()).good().json()["bad"], 0);
}

/// A full disk under an image: the layer takes no more writes, and that is no good run.
#[test]
fn a_full_disk_under_a_drive_makes_a_result_bad() {
    for kind in ["pblk", "pftl"] {
        let h = here();
        let set = ["--set", "geometry.chunks_per_pu=64"];
        h.run(&[&["drive", "create", "a.img", "--preset", "tiny"], &set[..]].concat()).good();
        h.run(&["lnvm", "create", "a.img", "-n", "db", "-t", kind]).good();
        h.file("w.fio", "[w]\nrw=randwrite\nbs=64k\nsize=12m\nfsync=16\n");
        let before = std::fs::metadata(h.path("a.img")).expect("an image").len();
        // What the shell limits is files of the program: a few MiB behind the present end, enough for a start.
        let script = format!(
            "trap '' XFSZ; ulimit -f {}; exec \"$0\" run w.fio --drive a.img --json -",
            (before + (4 << 20)) / 512
        );
        let program = env!("CARGO_BIN_EXE_flashlane");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, program]).current_dir(h.path(""));
        let done = crate::harness::Done::of(shell.output().expect("a shell"));
        assert_eq!(done.code, 1, "{kind}: {done:?}");
        assert!(done.err.contains("read-only") && done.err.contains("too large"), "{}", done.err);
        assert!(reasons(&done.json()).contains("became read-only"), "{kind}: {done:?}");
    }
}

/// Whatever file an experiment names is read up to a limit, and no pipe or device is waited for.
#[test]
fn files_without_an_end_are_refused() {
    let h = here();
    let large = h.file("large.toml", "#");
    let large = std::fs::OpenOptions::new().write(true).open(large).expect("made above");
    large.set_len(1 << 40).expect("a hole");
    let made = Command::new("mkfifo").arg(h.path("pipe")).status().expect("mkfifo is everywhere");
    assert!(made.success());
    h.file("e.toml", EXPERIMENT);
    for (file, says) in [
        ("large.toml", "longer than 1048576 bytes"),
        ("pipe", "no regular file"),
        ("/dev/zero", "no regular file"),
    ] {
        let quoted = |key: &str| format!("{key}=\"{file}\"");
        for key in ["device.faults", "run.costs"] {
            h.run(&["check", "e.toml", "--set", &quoted(key)]).refused(2, &[file, says]);
        }
        let spec = format!("device={{spec=\"{file}\"}}");
        h.run(&["run", "e.toml", "--set", &spec]).refused(2, &[file, says]);
        let job = format!("workload=[{{fio=\"{file}\"}}]");
        h.run(&["run", "e.toml", "--set", &job]).refused(2, &[file, says]);
        h.run(&["run", file]).refused(2, &[file]);
        h.run(&format!("drive inject a.img --plan {file}")).refused(2, &[file]);
    }
}
