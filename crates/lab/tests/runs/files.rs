//! Personalities of Filebench on ParaFS, as `flashlane run` executes them.
//!
//! Owns: what a run on files promises: the same seed gives the same numbers, what is read is what
//! was written, a full file system is counted, nothing goes on for ever; what is refused, and with
//! which remedy. Promises: small devices, seconds at most. Never: looks into the file system.

use flashlane_lab::check;
use flashlane_lab::execute::{ExecuteError, How, Outcome, execute};
use flashlane_lab::experiment::{Base, Change, DriveTarget, Experiment};
use flashlane_lab::input;
use flashlane_lab::report::{CallReport, FilesReport, Report, RunReport};
use flashlane_lab::run::{Monitor, Unwatched};
use flashlane_lab::shelf::Shelf;
use flashlane_lab::stack::{MountHow, put_on_drive};
use flashlane_lab::together::Held;
use flashlane_lab::trace::{Format, Take};
use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

/// 96 MiB of flash, twice as much written as there is room for, and a host with little memory.
pub(crate) const SMALL: &str = r#"
[device]
preset = "parafs"
[device.geometry]
channels = 2
chunks_per_pu = 96
pages_per_block = 64
[[target]]
kind = "parafs"
cache_pages = 256
cache_nodes = 256
dirty_pages = 128
[[workload]]
files = "fileserver"
nfiles = 300
filesize = "64KiB"
nthreads = 8
written = "128MiB"
"#;

pub(crate) fn parsed(text: &str, sets: &[&str]) -> Result<Experiment, String> {
    let sets: Vec<Change> = sets.iter().map(|set| Change::Set((*set).into())).collect();
    let base = Base::of(Path::new(""));
    Experiment::parse("x.toml", text, &base, &sets).map_err(|e| e.to_string())
}

pub(crate) fn tried(text: &str, sets: &[&str]) -> Result<Outcome, ExecuteError> {
    let experiment = parsed(text, sets).unwrap_or_else(|e| panic!("{e}"));
    let watch = |_: &_| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    execute(&experiment, How::default(), &watch)
}

pub(crate) fn ran(text: &str, sets: &[&str]) -> Report {
    Report::of(&tried(text, sets).unwrap_or_else(|e| panic!("{sets:?}: {e}")))
}

/// The only run, which went well.
pub(crate) fn good(report: &Report) -> (&RunReport, &FilesReport) {
    let [run] = &report.runs[..] else { panic!("{} runs", report.runs.len()) };
    assert_eq!(run.bad, Vec::<String>::new(), "{}", report.to_text());
    (run, run.files.as_ref().expect("it has files"))
}

fn on_pftl() -> String {
    let flat = "kind = \"parafs\"\ncache_pages = 256\ncache_nodes = 256\ndirty_pages = 128\n";
    let below = "kind = \"pftl\"\n[target.parafs]\ncache_pages = 256\ndirty_pages = 128\n";
    SMALL.replace(flat, below)
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let sets = ["workload.0.written=16MiB"];
    for text in [SMALL, &on_pftl()] {
        let (one, same) = (ran(text, &sets), ran(text, &sets));
        assert_eq!(one.to_json(), same.to_json());
        assert_eq!(one.to_csv(), same.to_csv());
        let other = ran(text, &[sets[0], "run.seed=2"]);
        assert_ne!(one.fingerprint, other.fingerprint);
    }
}

/// Until segments are cleaned: whose pages those are, and what each layer says it did.
#[test]
fn what_the_layers_count_fits_together() {
    let report = ran(SMALL, &[]);
    let (run, files) = good(&report);
    let calls = |word: &str| files.calls[word];
    let count = |word: &str| calls(word).count;
    let all: u64 = files.calls.values().map(|call| call.count).sum();
    assert_eq!((run.requests, run.failed_requests), (all, 0));
    // The loop of fileserver.f, with what threads are in the middle of at the end.
    for word in ["writewholefile", "appendfilerand", "readwholefile", "deletefile", "statfile"] {
        assert!(count(word).abs_diff(count("createfile")) <= 8, "{word}: {:?}", files.calls);
    }
    assert!(count("openfile").abs_diff(2 * count("createfile")) <= 16);
    let written = calls("writewholefile").bytes + calls("appendfilerand").bytes;
    assert_eq!((run.bytes_written, run.bytes_read), (written, calls("readwholefile").bytes));
    assert!(written >= 128 << 20 && run.bytes_read > written / 2, "{written} {}", run.bytes_read);
    // The file system collects garbage, and S-FTL moves nothing.
    let fs = |name: &str| files.file_system[name];
    let cleaned = fs("foreground_victims") + fs("background_victims") + fs("wear_victims");
    assert!(cleaned > 0 && fs("checkpoints") > 0, "{:?}", files.file_system);
    assert!(fs("trims") > 0 && run.work.gc_moved == 0 && run.work.erases > 0);
    assert!(fs("moved_pages") <= fs("victim_valid_pages"));
    let of_pages =
        fs("data_pages") + fs("moved_pages") + fs("fsync_nodes") + fs("checkpoint_nodes");
    assert_eq!(files.written_below_sectors, 2 * of_pages + fs("meta_sectors"));
    // The same at each level, and what was garbage in what was cleaned and erased.
    let t = files.traffic_sectors;
    assert_eq!(t.data + t.nodes + t.cleaning + t.in_place, t.file_system);
    assert_eq!(t.file_system, files.written_below_sectors);
    assert!(t.users.abs_diff(written / 4096) <= 1, "{t:?}");
    assert_eq!((t.flash, t.gc), (run.programmed_sectors.total(), 0));
    assert_eq!(t.cleaning, 2 * (fs("moved_pages") + fs("moved_nodes")));
    assert!(t.cleaning > 0 && t.cleaning <= 2 * fs("victim_valid_pages"), "{t:?}");
    let (of_cleaned, of_erased) = (files.cleaned_invalid_ratio, files.erased_invalid_ratio);
    let pages = fs("victim_valid_pages") as f64 / 64.0;
    assert!((of_cleaned.unwrap() - (1.0 - pages / cleaned as f64)).abs() < 1e-9);
    assert!(of_cleaned <= of_erased && of_erased < Some(1.0), "{of_cleaned:?} {of_erased:?}");
    assert!(files.cleaning_began_ns.is_some_and(|began| began > 0 && began < run.runtime_ns));
    let both = files.amplification_ratio.unwrap() * files.amplification_below_ratio.unwrap();
    assert!((both - run.write_amplification_ratio.unwrap()).abs() < 1e-9, "{both}");
    // Behind it everything was looked at: what is there was made or is left of the first files.
    let checked = files.checked.expect("a check");
    let left = files.prepared_files + count("createfile") - count("deletefile");
    assert_eq!(checked.files, left, "{checked:?}");
    // And that is said to people, in each form.
    let (text, html, csv) = (report.to_text(), report.to_html(), report.to_csv());
    for part in ["writewholefile", "segments cleaned", "nothing wrong", "cleaning moved"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    assert!(html.contains("readwholefile") && html.contains("segments cleaned"));
    assert!(
        csv.lines().next().unwrap().contains("createfile_calls_p99_ns,openfile_calls"),
        "{csv}"
    );
    assert!(csv.contains("fs_data_pages"));
}

#[test]
fn each_personality_runs() {
    for (word, kind) in [
        ("varmail", "fsync"),
        ("webserver", "appendlog"),
        ("webproxy", "readwholefile"),
        ("proxyserver", "createfile"),
    ] {
        let set = format!("workload.0.files={word}");
        let sets = [&*set, "workload.0.ops=3000", "workload.0.written=1GiB"];
        let report = ran(SMALL, &sets);
        let (run, files) = good(&report);
        assert!(files.calls[kind].count > 0, "{word}: {:?}", files.calls);
        assert_eq!(run.requests, 3_000, "{word}");
        if word == "varmail" {
            let flushes = run.latency_ns.flush.count;
            assert_eq!(
                (files.calls["fsync"].count, files.file_system["fsyncs"]),
                (flushes, flushes)
            );
        }
    }
}

/// Two sets of files at a time, each with its own end.
#[test]
fn jobs_share_a_file_system() {
    let more = "[[workload]]\nfiles = \"varmail\"\nnfiles = 50\nruntime = \"500ms\"\n";
    let report = ran(&(SMALL.to_string() + more), &["workload.0.written=8MiB"]);
    let (run, files) = good(&report);
    let names: Vec<&str> = run.jobs.iter().map(|job| &*job.name).collect();
    assert_eq!(names, ["fileserver", "varmail1"]);
    assert!(run.jobs[0].write.bytes >= 8 << 20 && run.jobs[0].flush.latency_ns.count == 0);
    assert!(run.jobs[1].flush.latency_ns.count > 0 && run.jobs[1].runtime_ns < 2_000_000_000);
    assert_eq!(run.jobs.iter().map(|job| job.write.bytes).sum::<u64>(), run.bytes_written);
    assert!(files.calls["fsync"].count > 0);
}

/// Files that grow beyond what there is room for: calls fail, those that follow go on, and all of
/// it is sound at the end.
#[test]
fn a_full_file_system_is_a_counted_error() {
    let full = ["workload.0.nfiles=560", "workload.0.filesize=96KiB", "workload.0.prealloc=100"];
    let full = [&full[..], &["workload.0.meanappendsize=1MiB", "workload.0.ops=20000"]].concat();
    let outcome = tried(SMALL, &full).unwrap_or_else(|e| panic!("{e}"));
    assert!(outcome.is_bad());
    let report = Report::of(&outcome);
    let run = &report.runs[0];
    let files = run.files.as_ref().unwrap();
    let failed: u64 = files.calls.values().map(|call: &CallReport| call.failed).sum();
    assert!(failed > 0 && run.failed_requests == failed, "{}", report.to_text());
    let words = format!("{failed} failed requests, {failed} of which found the file system full");
    assert!(run.bad.len() == 1 && run.bad[0].starts_with(&words), "{:?}", run.bad);
    assert!(files.calls["deletefile"].count > 0 && files.checked.is_some());
    // Where that is what it is about, it is no bad result.
    let allowed = [&full[..], &["run.allow_errors=true"]].concat();
    assert!(!tried(SMALL, &allowed).unwrap().is_bad());
}

/// A run that could not end says so.
#[test]
fn a_run_without_an_end_is_an_error() {
    let free = [
        "workload.0.files=webserver",
        "workload.0.nfiles=5",
        "workload.0.runtime=1s",
        "workload.0.written=1GiB",
        "workload.0.meanappendsize=1B",
        "run.costs=zero",
        "target.0.dirty_pages=100000",
        "target.0.cache_pages=100000",
    ];
    let says = tried(SMALL, &free).err().expect("no time passes").to_string();
    assert!(says.contains("took no time at all") && says.contains("`costs`"), "{says}");
    // Threads hold all the files that there are, and none can be made.
    let few = [
        "workload.0.files=webproxy",
        "workload.0.nfiles=60",
        "workload.0.nthreads=100",
        "workload.0.written=16MiB",
    ];
    let says = tried(SMALL, &few).err().expect("nothing is written").to_string();
    assert!(says.contains("have written nothing") && says.contains("`nfiles`"), "{says}");
}

/// An interrupt ends it with what was done so far, and the file system is sound.
#[test]
fn an_interrupt_ends_it() {
    struct Soon(Cell<u32>);
    impl flashlane_lab::run::Progress for Soon {
        fn progress(&self, _: &str, _: u64, _: Option<u64>) {
            self.0.set(self.0.get() + 1);
        }
        fn interrupted(&self) -> bool {
            self.0.get() > 4
        }
    }
    impl Monitor for Soon {}
    let experiment = parsed(SMALL, &[]).unwrap();
    let watch = |_: &_| -> Rc<dyn Monitor> { Rc::new(Soon(Cell::new(0))) };
    let outcome = execute(&experiment, How::default(), &watch).unwrap();
    let report = Report::of(&outcome);
    let (run, files) = good(&report);
    assert!(outcome.interrupted && run.interrupted && files.checked.is_some());
    assert!(run.requests > 0 && run.bytes_written < 128 << 20);
}

/// What it asks of a block device can be recorded; S-FTL is none.
#[test]
fn what_it_asks_of_a_block_device_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("parafs.parquet");
    let take = Take { to: to.clone(), format: Format::Parquet, contents: Vec::new() };
    let run = |text: &str| {
        let experiment = parsed(text, &["workload.0.written=4MiB"]).unwrap();
        let watch = |_: &_| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
        execute(&experiment, How { record: Some(&take), ..How::default() }, &watch)
    };
    let outcome = run(&on_pftl()).unwrap_or_else(|e| panic!("{e}"));
    assert!(outcome.runs[0].recorded.is_some() && to.metadata().unwrap().len() > 1_000);
    let says = run(SMALL).err().expect("nothing to record").to_string();
    assert!(says.contains("has no block device"), "{says}");
}

#[test]
fn what_can_not_be_is_refused_with_a_remedy() {
    let refused = |text: &str, sets: &[&str], parts: &[&str]| {
        let says = parsed(text, sets).map(drop).expect_err("refused");
        assert!(parts.iter().all(|part| says.contains(part)), "{sets:?}: {says}");
    };
    for (set, parts) in [
        ("target.0.cache_page=100", &["unknown key `cache_page`", "cache_pages"][..]),
        ("target.0.cache_pages=1", &["from 64 to"]),
        ("target.0.journal=681", &["from 0 to 680"]),
        ("target.0.dispatch=aware2", &["`dispatch`", "fifo, aware"]),
        ("target.0.slice=0ns", &["`slice` must be from 1"]),
        ("target.0.read_weight=3", &["`write_weight`", "give both"]),
        ("target.0.page=4KiB", &["unknown key `page`"]),
        ("target.0.meter=true", &["`meter` counts", "leave it out"]),
        ("target.0.kind=raw", &["unknown key"]),
        ("workload.0.files=fileservr", &["fileservr", "fileserver"]),
        ("workload.0.nfile=3", &["unknown key `nfile`", "nfiles"]),
        ("workload.0.nfiles=0", &["from 1 to 1000000"]),
        ("workload.0.filesize=0", &["`filesize`"]),
        ("workload.0.nthreads=2000", &["from 1 to 1024"]),
        ("workload.0.rw=read", &["`files` and `rw`: give one"]),
        ("workload.0.written=0KiB", &["reached at once"]),
        ("device.store=stamps", &["store = \"compact\""]),
        ("run.fill=100%", &["`fill` and `overwrite` are for block devices", "nfiles"]),
    ] {
        refused(SMALL, &[set], parts);
    }
    refused(&SMALL.replace("written = \"128MiB\"\n", ""), &[], &["nothing says when it ends"]);
    // Keys of what the policy does not do.
    for key in ["slice=1ms", "free_weight=9", "erasing_weight=9"] {
        let set = format!("target.0.{key}");
        refused(SMALL, &["target.0.policy=mgc", &set], &["is for `dispatch = \"aware\"`"]);
    }
    refused(SMALL, &["target.0.victims=9"], &["`victims` is for `cleaners = \"one\"`"]);
    // The wrong kind of workload, either way.
    let job = SMALL[..SMALL.find("files =").unwrap()].to_string() + "rw = \"randwrite\"\n";
    refused(&job, &[], &["takes `files = \"fileserver\"`", "leave `parafs` out"]);
    let sectors = on_pftl().replace("[target.parafs]\ncache_pages = 256\ndirty_pages = 128\n", "");
    refused(&sectors, &[], &["needs a file system", "`parafs = true`"]);
    refused(&(SMALL.to_string() + "[[target]]\nkind = \"pftl\"\n"), &[], &["`targets`"]);
    let warm = "[[warm_up]]\nrw = \"write\"\n";
    refused(&(SMALL.to_string() + warm), &[], &["[[warm_up]] is for block devices"]);
    refused(&on_pftl().replace("cache_pages", "cache_page"), &[], &["unknown key `cache_page`"]);
    for page in ["4000B", "12KiB", "32KiB", "0KiB"] {
        let set = format!("target.0.parafs.page={page}");
        refused(&on_pftl(), &[&set], &["`page` must be 4, 8 or 16KiB"]);
    }
    let raw = on_pftl().replace("\"pftl\"", "\"raw\"");
    refused(&raw, &[], &["stands on a target that has a type"]);
    // A shelf and a drive keep what a run leaves.
    let mut experiment = parsed(SMALL, &[]).unwrap();
    let says = Shelf::check(&experiment).unwrap_err();
    assert!(says.contains("files are made by each run: leave --prepared out"), "{says}");
    let on = DriveTarget { image: "x.img".into(), name: "x".into(), how: MountHow::default() };
    let says = put_on_drive(&mut experiment, &on).unwrap_err().to_string();
    assert!(says.contains("leave --drive out"), "{says}");
}

/// Also what only the device says: by `check`, before anything runs, and by `run`.
#[test]
fn what_does_not_fit_is_found_by_check_and_by_run() {
    let small = |sets: &[&str], parts: &[&str]| {
        let found = check::check(&parsed(SMALL, sets).unwrap()).problems.join("\n");
        let says = tried(SMALL, sets).err().unwrap_or_else(|| panic!("{sets:?}")).to_string();
        for said in [found, says] {
            assert!(parts.iter().all(|part| said.contains(part)), "{sets:?}: {said}");
        }
    };
    small(&["device.geometry.chunks_per_pu=16"], &["too small", "chunks_per_pu"]);
    small(&["device.geometry.chunks_per_pu=2"], &["target"]);
    small(&["workload.0.nfiles=3000"], &["has room for", "`nfiles`"]);
    let found = check::check(&parsed(SMALL, &[]).unwrap());
    assert!(
        found.problems.is_empty() && found.summary.contains("nothing wrong"),
        "{:?}",
        found.problems
    );
}

/// The example that README names: a block SSD moves again what the file system has written, and
/// S-FTL does not.
#[test]
fn the_example_shows_what_two_cleaners_cost() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let (_, experiment) = input::load(Some(&folder.join("parafs/fileserver.toml")), &[]).unwrap();
    let watch = |_: &_| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    let outcome = execute(&experiment, How::default(), &watch).unwrap_or_else(|e| panic!("{e}"));
    let report = Report::of(&outcome);
    assert!(!outcome.is_bad(), "{}", report.to_text());
    let [alone, above] = &report.runs[..] else { panic!("{} runs", report.runs.len()) };
    assert_eq!((&*alone.name, &*above.name), ("parafs", "block SSD (pftl) + parafs"));
    let files = |run: &RunReport| run.files.clone().expect("it has files");
    let below = |run: &RunReport| files(run).amplification_below_ratio.expect("it wrote");
    assert!(alone.work.gc_moved == 0 && below(alone) < 1.01, "{}", below(alone));
    assert!(above.work.gc_moved > 0 && below(above) > 1.1, "{}", below(above));
    let faster = files(alone).calls_per_second / files(above).calls_per_second;
    assert!(faster > 1.1, "{faster}");
}

/// One cleaner empties several segments before a checkpoint frees them: none twice, though the nodes
/// that are valid there are written with that checkpoint only.
#[test]
fn one_cleaner_takes_a_victim_once() {
    let report = ran(SMALL, &["target.0.policy=base", "workload.0.nfiles=500"]);
    let (_, files) = good(&report);
    let fs = |name: &str| files.file_system[name];
    let (cleaned, freed) = (fs("foreground_victims"), fs("trims"));
    assert!(cleaned > 50 && cleaned * 10 <= freed * 11, "{cleaned} cleaned, {freed} freed");
}

/// 512 MiB in 8 channels, and fifty writers.
const MANY_WRITERS: [&str; 7] = [
    "device.geometry.channels=8",
    "device.geometry.chunks_per_pu=128",
    "target.0.cache_nodes=65536",
    "target.0.cache_pages=2048",
    "target.0.dirty_pages=1024",
    "workload.0.filesize=128KiB",
    "workload.0.nthreads=50",
];

fn many_writers(more: &[&str]) {
    let report = ran(SMALL, &[&MANY_WRITERS[..], more].concat());
    let (run, files) = good(&report);
    assert_eq!(run.failed_requests, 0, "{}", report.to_text());
    assert!(files.file_system["foreground_victims"] > 100, "{}", report.to_text());
}

/// Writers that each wait for writes before they take what was free: a checkpoint has room all the
/// same, so that cleaning goes on.
#[test]
fn writers_that_wait_leave_room_for_the_checkpoint() {
    many_writers(&["workload.0.nfiles=1000", "workload.0.written=700MiB"]);
}

/// Writers that could fill what heads have left: the only cleaner needs it.
#[test]
fn writers_leave_the_only_cleaner_what_heads_have() {
    let sets = ["target.0.policy=base", "workload.0.nfiles=1800", "workload.0.written=1GiB"];
    many_writers(&[&sets[..], &["run.seed=2"]].concat());
}

/// A log on flash has a flash block for each segment. On a block SSD the FTL mixes what several segments of the file
/// system are sent (ParaFS paper, Figure 3).
#[test]
fn a_log_on_a_log_mixes_segments_in_flash_blocks() {
    let above = SMALL.replace("kind = \"parafs\"\n", "kind = \"pftl\"\n[target.parafs]\n");
    let f2fs = ran(&above, &["target.0.parafs.policy=f2fs"]);
    let on_flash = ran(SMALL, &[]);
    let of = |report: &Report| good(report).1.together.clone().expect("its blocks are known");
    let (mixed, pure) = (of(&f2fs), of(&on_flash));
    assert_eq!(pure.segments_mean, 1.0);
    assert!(mixed.segments_mean > 2.0, "{mixed:?}");
    for t in [&mixed, &pure] {
        assert!(t.blocks > 50 && t.files_mean >= 1.0, "{t:?}");
        assert!(t.unused_ratio > 0.0 && t.unused_ratio < 1.0, "{t:?}");
        assert!(!t.sample.is_empty() && t.sample.iter().all(|row| row.len() == 128));
    }
    // What it draws: one colour in each row, or several.
    let colours = |row: &Vec<Held>| {
        let segments = row.iter().filter(|held| matches!(held, Held::Segment(_)));
        segments.map(|held| format!("{held:?}")).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert!(pure.sample.iter().all(|row| colours(row) <= 1));
    assert!(mixed.sample.iter().any(|row| colours(row) > 1));
    let page = on_flash.to_html();
    assert!(page.contains("What lies together in a flash block"), "the page has the picture");
    assert!(on_flash.to_text().contains("segments in each"));
}

/// Policies of the paper: what a segment is, and which target has which.
#[test]
fn a_policy_says_what_a_segment_is_and_stands_where_it_can() {
    let above = SMALL.replace("kind = \"parafs\"\n", "kind = \"pftl\"\n[target.parafs]\n");
    let pages = |text: &str, sets: &[&str]| {
        let experiment = parsed(text, sets).unwrap_or_else(|e| panic!("{e}"));
        experiment.targets[0].fs.clone().expect("it has one").segment_pages
    };
    // A flash block has 64 pages of 8 KiB, and there are two channels.
    assert_eq!(pages(&above, &["target.0.parafs.policy=f2fs"]), 64);
    assert_eq!(pages(&above, &["target.0.parafs.policy=f2fs-sb"]), 128);
    // A segment is as large with pages of any size.
    let small = ["target.0.parafs.policy=f2fs", "target.0.parafs.page=4KiB"];
    assert_eq!(pages(&above, &small), 128);
    let small = [&small[..], &["workload.0.written=4MiB"]].concat();
    assert!(good(&ran(&above, &small)).1.traffic_sectors.data > 0);
    let refused = |text: &str, set: &str, says: &str| {
        let why = parsed(text, &[set]).expect_err(set);
        assert!(why.contains("`policy`") && why.contains(says), "{why}");
    };
    refused(SMALL, "target.0.policy=f2fs", "stands on a block SSD");
    refused(&above, "target.0.parafs.policy=mgc", "needs flash blocks");
    for policy in ["f2fs", "f2fs-sb"] {
        let set = format!("target.0.parafs.policy={policy}");
        let report = ran(&above, &[&set, "workload.0.written=64MiB", "workload.0.nfiles=100"]);
        good(&report);
    }
}
