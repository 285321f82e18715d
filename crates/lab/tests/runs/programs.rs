//! Postmark, Mobibench and YCSB on ParaFS, as `flashlane run` executes them.
//!
//! Owns: that their words mean what they say, in calls and bytes; the same seed gives the same
//! numbers; what can't be is refused, and with which remedy. Promises: small devices, seconds at
//! most. Never: looks into the file system.

use crate::files::{SMALL, good, parsed, ran, tried};
use flashlane_lab::execute::{How, execute};
use flashlane_lab::report::Report;
use flashlane_lab::run::{Monitor, Progress};
use std::cell::Cell;
use std::rc::Rc;

/// The small device of the other tests with this workload.
fn with(workload: &str) -> String {
    let device = SMALL.split("[[workload]]").next().expect("a head");
    format!("{device}[[workload]]\n{workload}")
}

const POSTMARK: &str = "files = \"postmark\"\nnumber = 500\ntransactions = 3000\n";
const MOBIBENCH: &str =
    "files = \"mobibench\"\nnthreads = 4\nfilesize = \"4MiB\"\nread_percent = 25\nops = 4000\n";
const YCSB: &str = "files = \"ycsb\"\nrecordcount = 10000\nnthreads = 8\n\
                    buffer_pool = \"4MiB\"\nredo_log = \"4MiB\"\nops = 12000\n";

const SQLITE: &str = "files = \"mobibench\"\nmode = \"sqlite\"\nnthreads = 4\nrows = 1000\n\
                      read_percent = 25\nops = 2000\n";

#[test]
fn the_same_seed_gives_the_same_run() {
    let deleted = format!("{SQLITE}journal_mode = \"delete\"\n");
    for text in [POSTMARK, MOBIBENCH, YCSB, SQLITE, &deleted] {
        let text = with(text);
        let (one, same) = (ran(&text, &[]), ran(&text, &[]));
        assert_eq!(one.to_json(), same.to_json());
        assert_eq!(one.to_csv(), same.to_csv());
        assert_ne!(one.fingerprint, ran(&text, &["run.seed=2"]).fingerprint);
    }
}

/// A transaction reads or appends, and makes or deletes, with the shares that the biases give.
#[test]
fn a_transaction_of_postmark_is_two_things() {
    let report = ran(&with(POSTMARK), &[]);
    let (run, files) = good(&report);
    let count = |word: &str| files.calls.get(word).map_or(0, |call| call.count);
    let skipped = files.calls["appendfilerand"].skipped;
    let (reads, appends) = (count("readwholefile"), count("appendfilerand"));
    let (made, deleted) = (count("createfile"), count("deletefile"));
    assert_eq!((reads + appends + skipped, made + deleted), (3_000, 3_000), "{:?}", files.calls);
    // 3 of 10, and 5 of 10.
    assert!((800..1_000).contains(&reads) && (1_400..1_600).contains(&made), "{reads} {made}");
    // What is written is durable before its file is closed.
    assert_eq!(count("writewholefile"), made);
    assert_eq!((count("fsync"), count("fsync")), (made + appends, files.file_system["fsyncs"]));
    assert_eq!(run.latency_ns.flush.count, made + appends);
    assert_eq!((count("openfile"), count("closefile")), (reads + appends, made + reads + appends));
    // Sizes: from 256 to 768 bytes, and no file is longer.
    let mean = files.calls["writewholefile"].bytes / made;
    assert!((490..535).contains(&mean), "{mean}");
    assert!(files.calls["readwholefile"].bytes <= 768 * reads);
    assert_eq!(files.prepared_files, 500);
    assert!((500 * 480..500 * 545).contains(&files.prepared_bytes), "{}", files.prepared_bytes);
    let checked = files.checked.expect("a check");
    assert_eq!(checked.files, 500 + made - deleted);
}

#[test]
fn each_word_of_postmark_counts() {
    let run = |sets: &[&str]| {
        let report = ran(&with(POSTMARK), sets);
        good(&report).1.clone()
    };
    let calls = run(&["workload.0.fsync=false", "workload.0.bias_read=10"]).calls;
    assert!(!calls.contains_key("fsync") && !calls.contains_key("appendfilerand"), "{calls:?}");
    assert_eq!(calls["readwholefile"].count, 3_000);
    let calls = run(&["workload.0.bias_create=10", "workload.0.bias_read=0"]).calls;
    assert!(!calls.contains_key("deletefile") && !calls.contains_key("readwholefile"));
    assert_eq!(calls["createfile"].count, 3_000);
    // In the end there is nothing left, and nothing to append to.
    let files = run(&["workload.0.bias_create=0", "workload.0.subdirectories=7"]);
    let calls = &files.calls;
    assert_eq!((calls["deletefile"].count, calls["deletefile"].skipped), (500, 2_500));
    assert!(calls["appendfilerand"].skipped > 1_000 && !calls.contains_key("createfile"));
    // The root, the job's own folder, and seven.
    let checked = files.checked.expect("a check");
    assert_eq!((checked.files, checked.directories), (0, 9));
    // As large as they get at first.
    let same = ["workload.0.size_low=3000B", "workload.0.size_high=3000B"];
    let calls = run(&same).calls;
    assert_eq!(calls["appendfilerand"].count, 0);
    assert_eq!(calls["writewholefile"].bytes, 3_000 * calls["writewholefile"].count);
    // A call that writes moves so much at once.
    let pieces = [&same[..], &["workload.0.write=3000B", "workload.0.read=3001B"]].concat();
    let mean = |sets: &[&str]| run(sets).calls["writewholefile"].latency_ns.mean;
    assert!(mean(&pieces) <= mean(&same));
    assert_eq!(run(&["workload.0.ops=100"]).calls.values().map(|c| c.count).sum::<u64>(), 100);
}

/// Reads and writes by the share that is asked for, of records that are there, and nothing else.
/// Several of one program at a time, each with files of its own: as the same tables one behind the other.
#[test]
fn copies_of_a_program_are_programs() {
    let one = "files = \"postmark\"\nnumber = 100\ntransactions = 200\n";
    let copies = ran(&with(&format!("{one}numjobs = 3\n")), &[]);
    let (run, files) = good(&copies);
    let names: Vec<&str> = run.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["postmark", "postmark.1", "postmark.2"]);
    let tables = ran(&with(&format!("{one}[[workload]]\n{one}[[workload]]\n{one}")), &[]);
    let (same, made) = (good(&tables), files.calls["createfile"].count);
    assert_eq!(run.runtime_ns, same.0.runtime_ns);
    assert_eq!(made, same.1.calls["createfile"].count);
    assert!(made > 2 * good(&ran(&with(one), &[])).1.calls["createfile"].count);
}

#[test]
fn mobibench_reads_and_writes_records() {
    let report = ran(&with(MOBIBENCH), &[]);
    let (run, files) = good(&report);
    let (read, write) = (files.calls["read"], files.calls["write"]);
    assert_eq!((read.count + write.count, files.calls.len()), (4_000, 2));
    assert!((900..1_100).contains(&read.count), "{}", read.count);
    assert_eq!((read.bytes, write.bytes), (read.count * 4_096, write.count * 4_096));
    assert_eq!((run.bytes_read, run.bytes_written), (read.bytes, write.bytes));
    assert_eq!((files.prepared_files, files.prepared_bytes), (4, 16 << 20));
    assert_eq!(files.file_system["fsyncs"], 0);
    assert_eq!(files.checked.expect("a check").files, 4);
    let synced = ran(&with(MOBIBENCH), &["workload.0.fsync=10", "workload.0.iosize=8KiB"]);
    let (_, files) = good(&synced);
    let (write, fsync) = (files.calls["write"], files.calls["fsync"]);
    // Four threads, each with its own count.
    assert!((write.count / 10 - 4..=write.count / 10).contains(&fsync.count), "{:?}", files.calls);
    assert_eq!(write.bytes, write.count * 8_192);
    assert_eq!(files.file_system["fsyncs"], fsync.count);
}

/// Twice the capacity, as the paper's Figure 8 has it: segments are cleaned.
#[test]
fn mobibench_writes_a_share_of_the_capacity() {
    let text = with(MOBIBENCH).replace("ops = 4000", "written = \"200%\"");
    let report = ran(&text, &["workload.0.filesize=10MiB"]);
    let (run, files) = good(&report);
    let capacity = run.fill.capacity_bytes;
    assert!(run.bytes_written >= 2 * capacity && run.bytes_written < 2 * capacity + (1 << 20));
    let fs = |name: &str| files.file_system[name];
    assert!(fs("foreground_victims") + fs("background_victims") > 0, "{:?}", files.file_system);
    assert!(report.to_text().contains("nothing wrong"), "{}", report.to_text());
}

/// Each update is a transaction that is durable before it is answered. The rows are in SQLite's
/// pages; each database is checked at the end, by SQLite and row by row.
#[test]
fn a_real_sqlite_updates_rows() {
    let report = ran(&with(SQLITE), &[]);
    let (run, files) = good(&report);
    let call = |word: &str| files.calls.get(word).copied().unwrap_or_default();
    let (read, update) = (call("read"), call("update"));
    assert_eq!((read.count + update.count, run.requests), (2_000, 2_000));
    assert!((430..570).contains(&read.count), "{}", read.count);
    assert_eq!((read.bytes, update.bytes), (read.count * 104, update.count * 104));
    // A commit is a frame of one page and its head, and a sync of the log. The log begins anew
    // behind 1,000 frames; that is written back, and synced once more.
    let (frames, syncs) = (call("journalwrite"), call("journalsync"));
    assert!(syncs.count >= update.count && syncs.count < update.count + 20, "{:?}", files.calls);
    assert!(frames.bytes >= update.count * (4_096 + 24), "{:?}", files.calls);
    assert!(update.latency_ns.mean > syncs.latency_ns.mean, "{:?}", files.calls);
    assert_eq!((files.prepared_files, files.checked.expect("a check").files), (4, 4));
    // 1,000 rows have 28 pages; those of preparation are written back by then, or not yet.
    let small = ran(&with(SQLITE), &["workload.0.iosize=1KiB"]);
    let bytes = good(&small).1.calls["journalwrite"].bytes;
    assert!(bytes < frames.bytes / 3, "{bytes}");
    let lax = ran(&with(SQLITE), &["workload.0.synchronous=normal"]);
    let (_, files) = good(&lax);
    let syncs = files.calls.get("journalsync").map_or(0, |call| call.count);
    assert!(syncs < 20, "{:?}", files.calls);
}

/// What each journal of SQLite's asks of the file system.
#[test]
fn each_journal_mode_of_sqlite_is_what_it_says() {
    for (mode, journaled, synced) in [
        ("delete", true, true),
        ("truncate", true, true),
        ("persist", true, true),
        ("memory", false, true),
        ("off", false, true),
    ] {
        let set = format!("workload.0.journal_mode={mode}");
        let report = ran(&with(SQLITE), &[&set, "workload.0.ops=400"]);
        let (_, files) = good(&report);
        let call = |word: &str| files.calls.get(word).copied().unwrap_or_default();
        let update = call("update").count;
        assert_eq!(call("journalwrite").count > update, journaled, "{mode}: {:?}", files.calls);
        assert_eq!(call("journalsync").count >= update, journaled, "{mode}: {:?}", files.calls);
        // Both leave the journal, empty or not.
        let left = if ["truncate", "persist"].contains(&mode) { 8 } else { 4 };
        // The page of the row, and the first one, which counts changes.
        assert_eq!(call("pagewrite").count, 2 * update, "{mode}: {:?}", files.calls);
        assert_eq!(call("pagesync").count == update, synced, "{mode}: {:?}", files.calls);
        assert_eq!(files.checked.expect("a check").files, left);
    }
}

/// Another job takes all room: what SQLite can't do is counted, and no database is damaged.
#[test]
fn a_database_on_a_full_file_system_stays_whole() {
    for mode in ["wal", "delete"] {
        let text = with(SQLITE).replace("ops = 2000", "runtime = \"8s\"")
            + &format!(
                "journal_mode = \"{mode}\"\n[[workload]]\nfiles = \"fileserver\"\n\
                nfiles = 400\nfilesize = \"96KiB\"\nmeanappendsize = \"1MiB\"\nprealloc = 100\n\
                nthreads = 2\nruntime = \"8s\"\n"
            );
        let outcome = tried(&text, &["run.allow_errors=true"]).unwrap_or_else(|e| panic!("{e}"));
        let report = Report::of(&outcome);
        let [run] = &report.runs[..] else { panic!("{} runs", report.runs.len()) };
        let files = run.files.as_ref().expect("it has files");
        assert_eq!(run.wrong_sectors, 0, "{mode}: {}", report.to_text());
        if mode == "delete" {
            // Its journal goes away behind each transaction, so there is room for the next one.
            continue;
        }
        assert!(files.calls["update"].failed > 0, "{mode}: {}", report.to_text());
        // The file, the statement, the cause; and without leave the run is a bad one.
        let words = files.refused.as_deref().unwrap_or_default();
        for part in ["/test.db", ": UPDATE ", ": database or disk is full"] {
            assert!(words.contains(part), "{mode}: {words}");
        }
        assert!(report.to_text().contains("no space left"), "{mode}: {}", report.to_text());
        assert!(!outcome.runs[0].bad_because(false).is_empty(), "{mode}");
    }
}

/// A file system that stays full ends the run: the file, the statement, the cause, the remedy.
#[test]
fn sqlite_on_a_file_system_that_stays_full_ends() {
    let text = with(SQLITE).replace("ops = 2000", "runtime = \"600s\"")
        + "[[workload]]\nfiles = \"fileserver\"\nnfiles = 400\nfilesize = \"96KiB\"\n\
           meanappendsize = \"1MiB\"\nprealloc = 100\nnthreads = 2\nops = 1000\n";
    let says = tried(&text, &[]).err().expect("no room").to_string();
    for part in ["/test.db", ": UPDATE ", ": database or disk is full: no space left)", "`rows`"] {
        assert!(says.contains(part), "{says}");
    }
}

/// Stops the run after so many looks.
struct Stops(Cell<u32>);

impl Progress for Stops {
    fn progress(&self, _: &str, _: u64, _: Option<u64>) {
        self.0.set(self.0.get().saturating_sub(1));
    }

    fn interrupted(&self) -> bool {
        self.0.get() == 0
    }
}

impl Monitor for Stops {}

/// Wherever it is stopped, it ends, and its threads with it.
#[test]
fn a_run_with_sqlite_can_be_stopped_anywhere() {
    let experiment = parsed(&with(SQLITE), &[]).unwrap_or_else(|e| panic!("{e}"));
    for looks in 1..12 {
        let watch = |_: &_| -> Rc<dyn Monitor> { Rc::new(Stops(Cell::new(looks))) };
        let outcome =
            execute(&experiment, How::default(), &watch).unwrap_or_else(|e| panic!("{e}"));
        let report = Report::of(&outcome);
        assert_eq!(report.runs[0].wrong_sectors, 0, "{looks}: {}", report.to_text());
    }
}

/// Half of the calls are updates, each durable before it is answered; the pool is a third of the
/// table, so pages come and go, and the log's ring is gone round.
#[test]
fn a_store_writes_as_innodb_does() {
    let report = ran(&with(YCSB), &[]);
    let (run, files) = good(&report);
    let call = |word: &str| files.calls.get(word).copied().unwrap_or_default();
    let (read, update) = (call("read"), call("update"));
    assert_eq!((read.count + update.count, run.requests), (12_000, 12_000));
    assert!((5_700..6_300).contains(&update.count), "{}", update.count);
    assert_eq!((read.bytes, update.bytes), (read.count << 10, update.count << 10));
    assert_eq!((run.bytes_read, run.bytes_written), (read.bytes, update.bytes));
    // Those that wait share an fsync, and nobody is answered without one.
    let syncs = call("redosync");
    assert!(syncs.count * 8 >= update.count && syncs.count < update.count, "{:?}", files.calls);
    assert!(update.latency_ns.mean > syncs.latency_ns.mean, "{:?}", files.calls);
    assert!(call("redowrite").bytes > update.bytes);
    // A batch is written twice, and each page once by itself.
    let (pages, double) = (call("pagewrite"), call("doublewrite"));
    assert!(pages.count > 0 && pages.bytes == pages.count << 14, "{:?}", files.calls);
    assert_eq!(double.bytes, pages.bytes);
    assert!(call("pageread").count > 100 && call("pageread").bytes == call("pageread").count << 14);
    // Each batch has an fsync of both files and one of the checkpoint.
    assert_eq!(files.file_system["fsyncs"], syncs.count + 3 * double.count);
    let inner: u64 = ["pageread", "pagewrite", "redowrite"].iter().map(|w| call(w).bytes).sum();
    assert!(inner > update.bytes);
    let rate = 12_000.0 * 1e9 / run.runtime_ns as f64;
    assert!((files.calls_per_second / rate - 1.0).abs() < 1e-6, "{}", files.calls_per_second);
    let single = ran(&with(YCSB), &["workload.0.doublewrite=false"]);
    let (_, files) = good(&single);
    assert!(!files.calls.contains_key("doublewrite") && files.calls["pagewrite"].count > 0);
    // All of it in memory: nothing is read twice.
    let large = ran(&with(YCSB), &["workload.0.buffer_pool=64MiB"]);
    assert!(good(&large).1.calls["pageread"].count <= 10_000 / 14 + 2);
}

/// The mixes of YCSB's core workloads.
#[test]
fn each_workload_of_ycsb_has_its_mix() {
    for (word, often, seldom, percent) in [
        ("b", "read", "update", 95),
        ("c", "read", "update", 100),
        ("d", "read", "insert", 95),
        ("e", "scan", "insert", 95),
        ("f", "read", "readmodifywrite", 50),
    ] {
        let set = format!("workload.0.workload={word}");
        let report = ran(&with(YCSB), &[&set, "workload.0.ops=3000"]);
        let (_, files) = good(&report);
        let count = |word: &str| files.calls.get(word).map_or(0, |call| call.count);
        assert_eq!(count(often) + count(seldom), 3_000, "{word}");
        assert!(count(often).abs_diff(30 * percent) < 100, "{word}: {:?}", files.calls);
        assert_eq!(count("redosync") > 0, percent < 100, "{word}");
        if word == "e" {
            // From 1 to 100 records, of which there are enough but at the end.
            let mean = files.calls["scan"].bytes / 1_024 / count("scan");
            assert!((45..56).contains(&mean), "{mean}");
        }
    }
    // Pages are divided, up to the root: what is read afterwards is checked.
    let sets = ["workload.0.workload=d", "workload.0.recordcount=200", "workload.0.ops=30000"];
    let report = ran(&with(YCSB), &sets);
    let (_, files) = good(&report);
    assert!(files.calls["insert"].count > 1_400 && files.calls["pagewrite"].count > 0);
}

#[test]
fn what_can_not_be_is_refused_with_a_remedy() {
    let refused = |text: &str, set: &str, parts: &[&str]| {
        let says = parsed(&with(text), &[set]).map(drop).expect_err("refused");
        assert!(parts.iter().all(|part| says.contains(part)), "{set}: {says}");
    };
    for (set, parts) in [
        ("workload.0.files=postmrk", &["postmrk", "postmark"][..]),
        ("workload.0.numbr=3", &["unknown key `numbr`", "number"]),
        ("workload.0.number=0", &["from 1 to 1000000"]),
        ("workload.0.bias_read=11", &["from 0 to 10"]),
        ("workload.0.size_low=800B", &["`size_low` is 800", "give both"]),
        ("workload.0.size_high=0", &["`size_high`"]),
        ("workload.0.nthreads=2", &["unknown key `nthreads`"]),
        ("workload.0.transactions=0", &["from 1"]),
        ("workload.0.numjobs=0", &["from 1 to 256"]),
        ("workload.0.ops=18446744073709551615", &["`ops` is 18446744073709551615", "from 1 to 9"]),
    ] {
        refused(POSTMARK, set, parts);
    }
    for (set, parts) in [
        ("workload.0.iosize=1000B", &["no multiple of 512"][..]),
        ("workload.0.iosize=1MiB", &["`iosize`", "64 KiB"]),
        ("workload.0.filesize=5000B", &["no multiple of `iosize`"]),
        ("workload.0.read_percent=101", &["from 0 to 100"]),
        ("workload.0.written=0%", &["from 1% to"]),
        ("workload.0.prealloc=3", &["unknown key `prealloc`"]),
    ] {
        refused(MOBIBENCH, set, parts);
    }
    for (set, parts) in [
        ("workload.0.mode=sql", &["`mode`", "file, sqlite"][..]),
        ("workload.0.nthreads=101", &["from 1 to 100"]),
        ("workload.0.iosize=5KiB", &["power of two"]),
        ("workload.0.iosize=128KiB", &["`iosize`", "64 KiB"]),
        ("workload.0.journal_mode=wall", &["`journal_mode`", "wal"]),
        ("workload.0.synchronous=2", &["`synchronous`"]),
        ("workload.0.filesize=1MiB", &["unknown key `filesize`"]),
    ] {
        refused(SQLITE, set, parts);
    }
    for (set, parts) in [
        ("workload.0.workload=g", &["`workload`", "a, b, c"][..]),
        ("workload.0.recordsize=5KiB", &["`recordsize`", "4 KiB"]),
        ("workload.0.recordsize=12B", &["no multiple of 8"]),
        ("workload.0.buffer_pool=1MiB", &["`buffer_pool`", "from 4 MiB"]),
        ("workload.0.nthreads=50", &["50 threads need 6.25 MiB", "8 pages each"]),
        ("workload.0.redo_log=1MiB", &["`redo_log`", "from 4 MiB"]),
        ("workload.0.zipfian_constant=1.0", &["from 0.001 to 0.999"]),
        ("workload.0.operationcount=1", &["unknown key `operationcount`"]),
    ] {
        refused(YCSB, set, parts);
    }
    refused("files = \"postmark\"\n", "run.seed=1", &["nothing says when it ends", "transactions"]);
    refused("files = \"mobibench\"\n", "run.seed=1", &["nothing says when it ends"]);
    for (text, set) in [
        (POSTMARK, "workload.0.number=100000"),
        (MOBIBENCH, "workload.0.filesize=60MiB"),
        (SQLITE, "workload.0.rows=200000"),
        (YCSB, "workload.0.recordcount=200000"),
    ] {
        let says = tried(&with(text), &[set]).err().expect("no room").to_string();
        assert!(says.contains("has room for"), "{says}");
    }
}
