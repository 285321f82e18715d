//! `reproduce`: figures that come with the program, and one that a user wrote.
//!
//! All figures, at the smallest size, are run by tests/figures.sh.

use crate::harness::{Here, here, says};

/// A figure without a line of code: block SSD and pblk on a small device, over the depth of a queue.
const OWN: &str = r#"
title = "Random writes by depth"
paper = "nobody's"
expected = "reproduced"
[experiment]
name = "own"
[experiment.device]
preset = "tiny"
[experiment.device.geometry]
chunks_per_pu = 64
[[experiment.target]]
kind = "pblk"
name = "pblk"
[[experiment.target]]
kind = "pftl"
name = "ssd"
[[experiment.workload]]
rw = "randwrite"
bs = "4KiB"
iodepth = 1
number_ios = 4000
norandommap = true
[experiment.run]
costs = "zero"
fill = "none"
[[grid]]
axes = [{ name = "depth", key = "workload.0.iodepth", values = [1, 4, 8] }]
set_ci = ["workload.0.number_ios=1000"]
[size.ci]
set = ["workload.0.number_ios=2000"]
values = { depth = [1, 8] }
[[plot]]
title = "Throughput"
x = "depth"
y = "write_mb_per_s"
y_title = "MB/s"
lines = ["pblk: pblk", "ssd: block SSD"]
[[row]]
what = "pblk, depth {depth}"
each = ["depth"]
here = "pblk write_mb_per_s"
unit = "MB/s"
paper = { 8 = 1 }
at_least = 0.001
because = "it is a test"
[[row]]
what = "requests"
here = "pblk requests depth=1"
[[row]]
what = "pblk: least step"
here = { least_step = "pblk write_mb_per_s", along = "depth" }
unit = "ratio"
at_least = 0
order = true
"#;

fn with_own(change: impl Fn(&str) -> String) -> Here {
    let h = here();
    h.file("own.toml", change(OWN));
    h
}

/// Everything of a figure comes of its file, and the same bytes on any number of threads: plots, too.
#[test]
fn a_figure_is_a_file() {
    let h = with_own(str::to_string);
    let text = h.run("reproduce own.toml --report one --jobs 1").good().out;
    says(&text, &["pblk, depth 4", "verdict: reproduced (3 of 3 sizes hold, 1 of 1 orders"]);
    h.run("reproduce own.toml --report two --jobs 3").good();
    let files = ["figures.html", "own-1.svg", "own-1.png", "own.csv", "own.parquet"];
    for name in files {
        let read = |folder: &str| std::fs::read(h.path(folder).join(name)).expect(name);
        assert!(read("one") == read("two"), "{name} depends on how many run at a time");
    }
    let read = |name: &str| std::fs::read_to_string(h.path("one").join(name)).expect(name);
    let svg = read("own-1.svg");
    says(&svg, &["<svg xmlns=", "the paper: 1.00", "block SSD", "Throughput"]);
    assert_eq!(svg.matches("class=\"dot").count(), 6);
    assert_eq!(svg.matches("class=\"paper").count(), 1);
    says(&read("figures.html"), &["own.toml", "reproduced", "least step", "<svg class="]);
    let csv = read("own.csv");
    assert!(csv.starts_with("series,depth,") && csv.lines().count() == 1 + 6, "{csv}");
    // The smallest size leaves a depth out, and its grid has a change of its own over that of all grids.
    assert!(csv.contains(",4000,"), "{csv}");
    let text = h.run("reproduce own.toml --ci").good().out;
    let requests = text.lines().find(|line| line.starts_with("requests ")).expect("a row");
    assert!(requests.ends_with(" 1000"), "{text}");
    assert!(!text.contains("depth 4") && text.contains("depth 8"), "{text}");
}

/// A part of a figure is measured as in the whole, and has no verdict: a row about what is not there is
/// left out.
#[test]
fn a_part_of_a_figure_is_no_verdict() {
    let h = with_own(|own| own.replace("at_least = 0.001", "at_least = 1e9"));
    let part = "reproduce own.toml --jobs 1 --keep kept --only depth=4,8";
    let text = h.run(&format!("{part} --html page.html")).good().out;
    says(&text, &["small size, only depth=4,8\n", "pblk, depth 8", "verdict: none", "OFF"]);
    assert!(!text.contains("depth 1 ") && !text.contains("requests"), "{text}");
    assert!(!text.contains("EXPECTED"), "{text}");
    let page = std::fs::read_to_string(h.path("page.html")).expect("a page");
    says(&page, &["size small, only depth=4,8", "<svg class="]);
    let json = h.run(&format!("{part} --json -")).good().json();
    assert_eq!((&json["part"][0], &json["verdict"]), (&"depth=4,8".into(), &"inconclusive".into()));
    // The whole goes on with what was kept of it.
    let kept = || std::fs::read_dir(h.path("kept")).expect("the folder").count();
    assert_eq!(kept(), 4, "pblk and the block SSD at two depths");
    let whole = h.run("reproduce own.toml --keep kept");
    assert_eq!((whole.code, kept()), (1, 6));
    for (only, why) in [
        ("dept=4", "it has no axis `dept`; did you mean `depth`? (there are: depth)"),
        ("depth=5", "`depth` is nowhere 5 at the small size: there are 1, 4, 8"),
        ("depth", "write it `--only channels=8,32`"),
        ("depth=4,4", "takes the value 4 twice"),
    ] {
        h.run(&format!("reproduce own.toml --only {only}")).refused(2, &[why]);
    }
    h.run("reproduce own.toml --ci --only depth=4").refused(2, &["there are 1, 8"]);
    h.run("reproduce all --only depth=4").refused(2, &["the axes of one figure"]);
    h.run("reproduce lightnvm-fig8 --only depth=4").refused(2, &["it has no axes"]);
}

/// Interrupted and begun again, a figure comes to what it would have come to at once: what was done is kept.
#[test]
fn an_interrupted_figure_goes_on() {
    // The last points take hours.
    let long = |longest: &str| {
        let axis =
            format!("key = \"workload.0.runtime\", values = [\"1ms\", \"2ms\", \"{longest}\"]");
        OWN.replace("key = \"workload.0.iodepth\", values = [1, 4, 8]", &axis)
            .replace("number_ios = 4000", "time_based = true\nruntime = \"1ms\"")
            .replace("{ depth = [1, 8] }", "{ depth = [\"1ms\"] }")
            .replace("paper = { 8 = 1 }", "")
            .replace("requests depth=1", "requests depth=1ms")
    };
    let h = with_own(|_| long("9000h"));
    let args = "reproduce own.toml --jobs 1 --keep kept";
    let done = h.interrupted(args);
    assert_eq!(done.code, 130, "{done:?}");
    let kept = || std::fs::read_dir(h.path("kept")).expect("the folder").count();
    assert_eq!(kept(), 4, "pblk and the block SSD at two places");
    h.file("own.toml", long("3ms"));
    let whole = h.run(args).good().out;
    assert_eq!(whole, h.run("reproduce own.toml").good().out);
    assert_eq!(kept(), 6);
    // What is there is taken as it is.
    for entry in std::fs::read_dir(h.path("kept")).expect("the folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a run");
        std::fs::write(&path, text.replace("\"requests\": ", "\"requests\": 7")).expect("ours");
    }
    assert_ne!(h.run(args).good().out, whole);
    h.run("reproduce own.toml --keep own.toml").refused(2, &["cannot keep points in own.toml"]);
}

/// What was expected and what came out are both said, and the program's exit code is that of a bad result.
#[test]
fn another_verdict_than_expected_is_bad() {
    let h = with_own(|own| own.replace("at_least = 0\n", "at_least = 1e9\n"));
    let done = h.run("reproduce own.toml --html page.html");
    assert_eq!(done.code, 1, "{}", done.err);
    says(&done.out, &["verdict: differs", "EXPECTED: reproduced", "OFF"]);
    let page = std::fs::read_to_string(h.path("page.html")).expect("it is written all the same");
    says(&page, &["Expected was: reproduced"]);
    let h = with_own(|own| {
        own.replace("paper = { 8 = 1 }\nat_least = 0.001", "paper = { 8 = 1e9 }\nat_least = 1e9")
    });
    let done = h.run("reproduce own.toml");
    assert_eq!(done.code, 1);
    says(&done.out, &["verdict: shape only"]);
}

/// Wrong files say where; nothing runs, nothing is written.
#[test]
fn a_wrong_figure_is_refused() {
    let wrong = [
        (
            "metric, a typo",
            "here = \"pblk write_mb_per_s\"",
            "here = \"pblk\"",
            "no choice of points",
        ),
        ("key", "iodepth = 1\n", "iodepht = 1\n", "own.toml:20"),
        ("rule", "because = \"it is a test\"\n", "", "say `because`"),
        ("reducer", "least_step", "lest_step", "none of max"),
        ("grid", "[[grid]]", "[[gird]]", "did you mean `grid`"),
        ("axis", "key = \"workload.0.iodepth\"", "key = \"workload.7.iodepth\"", "own.toml:27:"),
    ];
    for (what, from, to, says_so) in wrong {
        let h = with_own(|own| {
            assert!(own.contains(from), "{what}");
            own.replacen(from, to, 1)
        });
        h.run("reproduce own.toml --html page.html --json out.json").refused(2, &[says_so]);
        assert_eq!(h.files(), ["own.toml"], "{what}");
    }
    let h = here();
    h.run("reproduce nothing.toml").refused(2, &["cannot read nothing.toml"]);
    h.file(
        "plain.toml",
        "[device]\npreset = \"tiny\"\n[[target]]\nkind = \"pblk\"\n[[workload]]\nrw = \"write\"\n",
    );
    let done = h.run("reproduce plain.toml");
    done.refused(2, &["this is an experiment, which `flashlane run` takes"]);
    assert_eq!(done.err.matches("plain.toml").count(), 1, "{done:?}");
    h.run("reproduce lightnvm-fig8 --ci --full").refused(2, &["cannot be used with"]);
    h.run("reproduce lightnvm-fig8 --html - --json -").refused(2, &["both want"]);
}

/// A choice of points that no grid has is a row without a value, which is said as what it is.
#[test]
fn a_row_about_points_that_are_not_there_is_refused() {
    let h = with_own(|own| {
        own.replacen("here = \"pblk write_mb_per_s\"", "here = \"pblk write_mb\"", 1)
    });
    h.run("reproduce own.toml").refused(2, &["no point has `pblk write_mb", "write_mb_per_s"]);
    // A series that no size has is misspelled, also at a size that leaves points out.
    let h = with_own(|own| own.replace("pblk requests depth=1", "plbk requests depth=1"));
    h.run("reproduce own.toml --ci").refused(2, &["no point has `plbk requests", "its series are"]);
    // One that several points have is no one point's.
    let h = with_own(|own| own.replace("pblk requests depth=1", "pblk requests"));
    let says = ["`requests`: `pblk requests` is several points", "depth=VALUE"];
    h.run("reproduce own.toml").refused(2, &says);
}
