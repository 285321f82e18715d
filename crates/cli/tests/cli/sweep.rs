//! `sweep` and `compare` as a person uses them.

use crate::harness::{EXPERIMENT, here, says};

/// Six points of a fraction of a second each.
fn grid() -> String {
    let vary = |key: &str, values: &str| format!("[[vary]]\nkey = \"{key}\"\nvalues = {values}\n");
    EXPERIMENT.to_string()
        + "size = \"8MiB\"\n"
        + &vary("workload.0.iodepth", "[1, 8]")
        + &vary("run.seed", "[1, 2, 3]")
}

/// One core, two cores, kept points: the same bytes.
#[test]
fn a_sweep_is_the_same_however_it_is_run() {
    let h = here();
    h.file("s.toml", grid());
    let one = h.run("sweep s.toml --jobs 1 --csv -").good().out;
    let lines: Vec<&str> = one.lines().collect();
    assert_eq!(lines.len(), 7, "a header and six points:\n{one}");
    assert!(lines[0].starts_with("workload.0.iodepth,run.seed,error,name,requests"), "{one}");
    assert!(lines[1].starts_with("1,1,,") && lines[6].starts_with("8,3,,"), "{one}");
    let keep = &["sweep", "s.toml", "--jobs", "2", "--keep", "kept", "--csv", "-"];
    assert_eq!(h.run(keep).good().out, one);
    let names = || {
        let entries = std::fs::read_dir(h.path("kept")).expect("the folder of points");
        let mut all: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        all.sort();
        all
    };
    assert_eq!(names().len(), 6);
    // What is kept is taken, and what is damaged is run again.
    let text = std::fs::read_to_string(&names()[0]).expect("a point");
    std::fs::write(&names()[0], text.replace("\"requests\": ", "\"requests\": 7")).expect("ours");
    assert_ne!(h.run(keep).good().out, "", "a point that was kept is believed");
    std::fs::write(&names()[0], "{").expect("ours");
    assert_eq!(h.run(keep).good().out, one);
    let json = |jobs: &str| h.run(&["sweep", "s.toml", "--jobs", jobs, "--json", "-"]).good().out;
    assert_eq!(json("1"), json("2"));
    let table = h.run("sweep s.toml").good().out;
    assert!(table.contains("6 points") && table.contains("block SSD (pftl)"), "{table}");
}

/// A point that fails is a row with its error; the others are there.
#[test]
fn a_failed_point_is_a_row() {
    let h = here();
    h.file("e.toml", format!("{EXPERIMENT}size = \"8MiB\"\n"));
    let vary = "workload.0.size=8MiB,900GiB";
    let done = h.run(&["sweep", "e.toml", "--vary", vary, "--csv", "-"]);
    assert_eq!(done.code, 1, "{done:?}");
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(lines[1].starts_with("8MiB,,block SSD (pftl),"), "{done:?}");
    assert!(lines[2].starts_with("900GiB,\"target `block SSD (pftl)`"), "{done:?}");
    let table = h.run(&["sweep", "e.toml", "--vary", vary]);
    assert!(table.out.contains("FAILED") && table.out.contains("1 points: target"), "{table:?}");
    // What compares it says so, too, and does not call it good.
    h.run(&["sweep", "e.toml", "--vary", vary, "--json", "s.json"]);
    h.run("run e.toml --json r.json").good();
    let compared = h.run("compare r.json s.json");
    assert_eq!(compared.code, 1, "{compared:?}");
    assert!(compared.out.contains("s.json is part of a result: 1 points failed"), "{compared:?}");
    let json = h.run("compare r.json s.json --json -").json();
    assert_eq!(json["lacks"].as_array().map(Vec::len), Some(1), "{json}");
}

#[test]
fn what_can_not_be_swept_is_refused_before_anything_runs() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    h.file("s.toml", grid());
    h.run("sweep e.toml").refused(2, &["nothing to vary", "--vary"]);
    h.run("sweep e.toml --vary seed").refused(2, &["--vary", "target.0.active_pus"]);
    h.run("sweep e.toml --vary run.sed=1,2").refused(2, &["did you mean `seed`"]);
    h.run("run s.toml").refused(2, &["flashlane sweep"]);
    for (set, by) in [(["--set", "run.seed=3"], "--set run.seed=3"), (["--seed", "3"], "--seed 3")]
    {
        let args = [&["sweep", "e.toml", "--vary", "run.seed=1,2"], &set[..]].concat();
        h.run(&args).refused(2, &["`run.seed` is varied", by, "leave one of them out"]);
    }
    h.file("job.fio", "[w]\nrw=randwrite\nsize=1m\n");
    let says = ["unknown key `bs`", "of a job file itself can't be set or varied", "[[workload]]"];
    h.run("sweep job.fio --vary bs=4k,8k").refused(2, &says);
    h.run("sweep s.toml --keep s.toml").refused(2, &["cannot keep points in s.toml"]);
    let many: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let many = many.join(",");
    let vary = |key: &str| format!("{key}={many}");
    let (a, b) = (vary("run.seed"), vary("workload.0.iodepth"));
    h.run(&["sweep", "e.toml", "--vary", &a, "--vary", &b]).refused(2, &["90000 points"]);
    h.file("t.toml", grid() + "[[vary]]\nkey = \"run.seed\"\nvalues = [4]\n");
    h.run("sweep t.toml").refused(2, &["t.toml:20:1", "`run.seed` is varied twice"]);
    h.file("t.toml", grid() + "[[vary]]\nkey = \"run.fill\"\nvalues = [[1]]\n");
    h.run("sweep t.toml").refused(2, &["t.toml:21:1", "a list of strings"]);
    assert_eq!(h.files(), ["e.toml", "job.fio", "s.toml", "t.toml"]);
}

/// Interrupted and begun again, a sweep comes to what it would have come to at once.
#[test]
fn an_interrupted_sweep_goes_on() {
    let h = here();
    // The last point takes hours.
    let long = |hours: &str| {
        format!("{EXPERIMENT}time_based = true\nruntime = \"1ms\"\n")
            + &format!(
                "[[vary]]\nkey = \"workload.0.runtime\"\nvalues = [\"1ms\", \"2ms\", \"{hours}\"]\n"
            )
    };
    h.file("s.toml", long("9000h"));
    let args = &["sweep", "s.toml", "--keep", "kept", "--csv", "-"];
    let done = h.interrupted(args);
    assert_eq!(done.code, 130, "{done:?}");
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(lines[3].starts_with("9000h,not run: interrupted,"), "{done:?}");
    assert_eq!(std::fs::read_dir(h.path("kept")).expect("the folder").count(), 2);
    h.file("s.toml", long("3ms"));
    let whole = h.run(args).good().out;
    assert_eq!(whole, h.run("sweep s.toml --csv -").good().out);
    assert_eq!(std::fs::read_dir(h.path("kept")).expect("the folder").count(), 3);
}

/// A point that was not run has not failed: the table says which is which, and the exit code that it was
/// interrupted.
#[test]
fn a_point_that_was_not_run_has_not_failed() {
    let h = here();
    let vary = "[[vary]]\nkey = \"workload.0.runtime\"\n";
    let values = "values = [\"1ms\", \"soon\", \"9000h\", \"9001h\"]\n";
    h.file("s.toml", format!("{EXPERIMENT}time_based = true\nruntime = \"1ms\"\n{vary}{values}"));
    let done = h.interrupted("sweep s.toml --jobs 1 --csv s.csv");
    assert_eq!(done.code, 130, "{done:?}");
    let table: Vec<&str> = done.out.lines().filter(|line| line.contains("  ")).collect();
    let said = |value: &str| table.iter().find(|l| l.trim_start().starts_with(value)).copied();
    let said = ["soon", "9000h", "9001h"].map(|value| said(value).unwrap_or_default());
    assert!(said[0].contains("FAILED"), "{}", done.out);
    for line in &said[1..] {
        assert!(line.contains("not run: interrupted") && !line.contains("FAILED"), "{}", done.out);
    }
    assert!(done.out.contains("INTERRUPTED: 2 points were not run"), "{}", done.out);
    assert!(!done.out.contains("points: not run"), "{}", done.out);
    let csv = std::fs::read_to_string(h.path("s.csv")).expect("the result");
    for hours in ["9000h", "9001h"] {
        assert!(csv.contains(&format!("\n{hours},not run: interrupted,,")), "{csv}");
    }
}

#[test]
fn runs_are_compared_with_how_sure_that_is() {
    let h = here();
    h.file("job.fio", "[w]\nrw=randwrite\nsize=8m\nbs=4k\niodepth=4\n");
    let args = ["compare", "job.fio", "--device", "peers-16g", "--seeds", "3"];
    let two = [&args[..], &["--target", "pblk", "--target", "pftl"]].concat();
    let table = h.run(&two).good().out;
    says(&table, &["write mean us", "job.fio: pblk", "job.fio: block SSD (pftl)", "3 samples"]);
    let json = h.run(&[&two[..], &["--json", "-"]].concat()).good().json();
    let first = &json["series"][0]["metrics"][0];
    assert!(first["value"]["half_width"].is_number() && first["differs"].is_null());
    assert!(json["series"][1]["metrics"][0]["differs"].is_boolean());
    h.run(&args).refused(2, &["nothing to compare"]);
    // Results of earlier runs: one sample each, and that is said.
    let run = |name: &str, seed: &str| {
        h.run(&format!("run job.fio --device peers-16g --seed {seed} --json {name}")).good();
    };
    run("a.json", "1");
    run("b.json", "2");
    let table = h.run("compare a.json b.json").good().out;
    assert!(table.contains("no interval: one sample"), "{table}");
    assert!(!table.contains("another"), "{table}");
    h.file("other.fio", "[w]\nrw=randwrite\nsize=8m\nbs=8k\niodepth=4\n");
    h.run("run other.fio --device peers-16g --set run.fill=5% --json e.json").good();
    let table = h.run("compare a.json e.json").good().out;
    says(&table, &["e.json has another workload than a.json", "e.json has another fill"]);
    for (option, value) in [("--seeds", "3"), ("--device", "tiny"), ("--target", "pftl")] {
        let says = [option, "result of an earlier run"];
        h.run(&["compare", "a.json", "b.json", option, value]).refused(2, &says);
    }
    h.file("c.json", "{}");
    h.run("compare a.json c.json").refused(2, &["c.json: no result of"]);
    h.file("d.json", "{ no");
    h.run("compare a.json d.json").refused(2, &["d.json is no JSON result"]);
    h.run("compare a.json none").refused(2, &["cannot read none"]);
}
