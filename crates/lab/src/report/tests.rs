//! Tests of what is written out, on small runs of real stacks.

use super::*;
use crate::execute::{How, Observe, execute};
use crate::experiment::{Base, Change, Experiment};
use crate::lnvm::show::contention_text;
use crate::run::Unwatched;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use flashlane_base::Ns;
use flashlane_base::counters::{Counter, Counters, Value};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::contention::Exchanges;
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::device::{Breakdown, Cause};
use flashlane_ocssd::{BufferCount, SlcCount};
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

/// Two jobs, one after the other, on pblk, on a part of the PUs, and on the block SSD.
const EXPERIMENT: &str = r#"
name = "small"
description = "<script>alert(1)</script> & more"
[device]
preset = "tiny"
[[target]]
kind = "pblk"
[[target]]
kind = "pftl"
name = "block, SSD"
over_provisioning_percent = 25
[[workload]]
name = "fill"
rw = "write"
bs = "64KiB"
size = "60%"
iodepth = 4
[[workload]]
name = "mixed"
stonewall = true
rw = "randrw"
bs = "4KiB"
size = "60%"
io_size = "24MiB"
norandommap = true
iodepth = 8
fsync = 64
[run]
seed = 5
"#;

fn outcome(observe: Observe) -> Outcome {
    outcome_of(EXPERIMENT, &[], observe)
}

fn outcome_of(text: &str, sets: &[&str], observe: Observe) -> Outcome {
    let sets: Vec<Change> = sets.iter().map(|s| Change::Set(s.to_string())).collect();
    let base = Base::of(Path::new(""));
    let e = Experiment::parse("small.toml", text, &base, &sets);
    let e = e.map_err(|e| e.to_string()).expect("a good experiment");
    let outcome = execute(&e, How { observe, ..How::default() }, &|_| Rc::new(Unwatched));
    outcome.map_err(|e| e.to_string()).expect("it runs")
}

fn report_of(text: &str, sets: &[&str]) -> Report {
    Report::of(&outcome_of(text, sets, Observe::default()))
}

const ALL: Observe = Observe { intervals: true, spans: 1 << 20 };

#[test]
fn looking_on_changes_nothing() {
    let (seen, unseen) = (outcome(ALL), outcome(Observe::default()));
    assert_eq!(seen.fingerprint, unseen.fingerprint);
    assert_eq!(Report::of(&seen).to_json(), Report::of(&unseen).to_json());
    assert_eq!(Report::of(&seen).to_html(), Report::of(&unseen).to_html());
    assert!(unseen.runs.iter().all(|r| r.spans.spans.is_empty()));
}

/// What a file system writes is the same over time and as a whole, cleaning apart; it is drawn where
/// there is one, and every timeline has its columns.
#[test]
fn what_a_file_system_writes_over_time_adds_up() {
    const FILES: &str = "[device]\npreset = \"parafs\"\n[device.geometry]\nchannels = 2\n\
        chunks_per_pu = 96\npages_per_block = 16\n\
        [[target]]\nkind = \"parafs\"\nmeta_percent = 20\ncache_pages = 256\ncache_nodes = 256\n\
        dirty_pages = 128\n\
        [[workload]]\nfiles = \"fileserver\"\nnfiles = 150\nfilesize = \"48KiB\"\nnthreads = 8\n\
        written = \"48MiB\"\n";
    let report = report_of(FILES, &[]);
    let r = &report.runs[0];
    let t = r.files.as_ref().expect("files").traffic_sectors;
    assert!(t.own > 0 && t.flash <= t.file_system + t.gc + t.own, "{t:?}");
    let course = &r.timeline.layers["file_system"];
    for (name, whole) in [
        ("data_sectors", t.data),
        ("node_sectors", t.nodes),
        ("cleaning_sectors", t.cleaning),
        ("in_place_sectors", t.in_place),
    ] {
        let each = course.get(name).unwrap_or_else(|| panic!("{name} in {course:?}"));
        assert_eq!(each.len(), r.timeline.operations.len(), "{name}");
        // What was in memory when the last call ended is in no span.
        let sum: u64 = each.iter().sum();
        assert!(sum > whole / 2 && sum <= whole, "{name}: {sum} of {whole}");
    }
    let drawn = "What the file system writes, by level";
    assert!(report.to_html().contains(drawn));
    let other = report_of(EXPERIMENT, &[]);
    assert!(!other.to_html().contains(drawn));
    for report in [report, other] {
        assert!(
            report.timeline_csv().lines().next().expect("a head").contains("fs_cleaning_sectors")
        );
    }
}

/// What a layer counts is the same over time and as a whole; it is drawn where it is.
#[test]
fn the_slc_part_over_time_adds_up() {
    const SLC: &str = "[device]\npreset = \"tiny\"\n[device.geometry]\nchunks_per_pu = 64\n\
        [[target]]\nkind = \"slc-tlc\"\nover_provisioning_percent = 40\nidle = \"50us\"\nslc_chunks = 12\n\
        journal_lines = 6\n\
        [[workload]]\nname = \"data\"\nrw = \"randwrite\"\nbs = \"16KiB\"\nio_size = \"12MiB\"\noffset = \"8MiB\"\n\
        size = \"16MiB\"\nfsync = 4\nthinktime = \"12ms\"\nthinktime_blocks = 32\n\
        [[workload]]\nname = \"journal\"\nrw = \"write\"\nbs = \"16KiB\"\nsize = \"3MiB\"\nloops = 5\nfsync = 1\n\
        [run]\nfill = \"none\"\n";
    let report = report_of(SLC, &[]);
    let r = &report.runs[0];
    let (whole, over_time) = (&r.layers["slc-tlc"], &r.timeline.layers["slc-tlc"]);
    for name in ["journal_sectors", "to_journal_sectors", "to_buffer_sectors", "migrated_sectors"] {
        let each = over_time.get(name).unwrap_or_else(|| panic!("{name} in {over_time:?}"));
        assert_eq!(each.len(), r.timeline.operations.len(), "{name}");
        let sum: u64 = each.iter().sum();
        // What leaves the buffer when the last request has ended is in no span.
        let rest = if name == "migrated_sectors" { 512 } else { 0 };
        assert!(
            sum > 0 && (sum..=sum + rest).contains(&whole[name]),
            "{name}: {sum} of {}",
            whole[name]
        );
    }
    let others: Vec<&str> =
        over_time.keys().copied().filter(|name| !whole.contains_key(name)).collect();
    assert!(others.is_empty(), "{others:?}");
    let html = report.to_html();
    for said in ["The SLC part over time", "journal region", "TLC, out of SLC"] {
        assert!(html.contains(said), "{said}");
    }
    assert!(!report_of(EXPERIMENT, &[]).to_html().contains("The SLC part over time"));
}

/// A device's write buffer is in the results and in words, and nowhere else.
#[test]
fn a_write_buffer_of_the_device_is_reported() {
    let run = |sets: &[&str]| report_of(EXPERIMENT, sets);
    let plain = run(&[]);
    assert!(plain.runs.iter().all(|r| r.device_buffer.is_none()));
    assert!(!plain.to_json().contains("device_buffer"));
    let safe = run(&["device.limits.write_buffer=64KiB", "device.limits.capacitors=true"]);
    let said = "acknowledged";
    for r in &safe.runs {
        let b = r.device_buffer.expect("it has one");
        // The rest were programmed before there was room.
        assert!((1_000..=r.programmed_sectors.total()).contains(&b.accepted), "{b:?}");
        assert!(b.waits > 0 && b.kept == 0 && r.counter_laws == "hold");
        assert!(r.write_amplification_ratio.is_some() && r.wrong_sectors == 0);
    }
    assert!(safe.to_text().contains(said) && !plain.to_text().contains(said));
    assert!(safe.runs[0].latency_ns.flush.mean < plain.runs[0].latency_ns.flush.mean);
    // Without capacitors the block SSD, a controller itself, writes through.
    let volatile = run(&["device.limits.write_buffer=64KiB"]);
    assert_eq!(volatile.runs[1].device_buffer.expect("it has one").accepted, 0);
}

/// What cores wait for is in the results, in words and on the page where they can meet; by ring it adds up to
/// the run's own sums, in every output.
#[test]
fn what_cores_wait_for_is_reported() {
    let experiment = r#"
        name = "shared"
        [device]
        preset = "tiny"
        geometry.chunks_per_pu = 400
        [[target]]
        kind = "qblk"
        [[target]]
        kind = "pblk"
        [[target]]
        kind = "pftl"
        [[workload]]
        name = "fought"
        rw = "randwrite"
        bs = "4KiB"
        size = "64KiB"
        io_size = "32MiB"
        norandommap = true
        iodepth = 40
        numjobs = 6
        [run]
        host_cores = 3
        costs = "linux-4.16-femu"
    "#;
    let run = |sets: &[&str]| report_of(experiment, sets);
    let report = run(&[]);
    let title = "Waiting inside the FTL";
    assert!(report.to_text().contains("waits (summed)") && report.to_html().contains(title));
    let [qblk, pblk, pftl] = &report.runs[..] else { panic!("three") };
    assert!(pftl.contention.is_none() && pftl.timeline.ring_depth_slots.is_empty());
    for r in [qblk, pblk] {
        let c = r.contention.as_ref().expect("a host FTL");
        assert_eq!(c.full_waits().1, r.wait_ns.ring_full.as_ns(), "{c:?}");
        assert_eq!(
            c.queues.iter().map(|q| q.limited_wait_ns).sum::<u64>(),
            r.wait_ns.limited.as_ns()
        );
        let pools = |of: fn(&PoolReport) -> u64| c.pools.iter().map(of).sum::<u64>();
        assert_eq!(pools(|p| p.semaphore_waits), c.semaphore_waits);
        assert_eq!(pools(|p| p.lock_wait_ns), c.locks[1].wait_ns);
        assert!(c.full_waits().0 > 0 && c.semaphore_waits > 0, "{c:?}");
        for q in &c.queues {
            assert!(q.depth_mean > 0.0 && q.depth_mean <= q.depth_max as f64, "{q:?}");
        }
        let deepest = &r.timeline.ring_depth_most_slots;
        assert_eq!(deepest.len(), r.timeline.operations.len());
        assert!(deepest.iter().all(|n| *n <= c.deepest()), "{deepest:?}, {}", c.deepest());
    }
    let waited = |r: &RunReport| r.contention.as_ref().expect("counted").lock_waits().1;
    assert!(waited(pblk) > 10 * waited(qblk), "{} and {}", waited(pblk), waited(qblk));
    let c = qblk.contention.as_ref().expect("counted");
    assert_eq!((c.queues.len(), c.locks[2].acquired), (3, 0));
    assert!(c.exchanges.user_retries > 0 && c.exchanges.drain_lost > 0, "{:?}", c.exchanges);
    let (columns, rows) = report.cells();
    let at = columns.iter().position(|c| c == "ring_full_wait_sum_ns").expect("a column");
    let cells: Vec<&str> = rows.iter().map(|row| &*row[at]).collect();
    let ring_full = |r: &RunReport| r.wait_ns.ring_full.as_ns().to_string();
    assert_eq!(cells, [&*ring_full(qblk), &*ring_full(pblk), ""], "a block SSD has no rings");
    // One core, nothing costs anything, one ring: nobody can meet, and nothing is said.
    let alone = run(&["run.host_cores=1", "run.costs=zero"]);
    let c = alone.runs[1].contention.as_ref().expect("counted all the same");
    assert_eq!((c.lock_waits(), c.exchanges.retries()), ((0, 0), 0));
    assert!(!alone.to_text().contains("waits (summed)") && !alone.to_html().contains(title));
}

/// A counter has its line where it is declared, and outputs walk that: with a number of its own each is found
/// under its name in JSON, CSV and Parquet, in tables and figures.
#[test]
fn every_counter_is_in_every_output() {
    let mut made = outcome(Observe::default());
    let run = &mut made.runs[0];
    run.measured.before = FtlStats::default();
    // Every counter has a number of its own, every wait some microseconds.
    let mut next = (1_001..).step_by(3);
    let mut stats = FtlStats::made(&mut || next.next().expect("a number"));
    for wait in [&mut stats.ring_full, &mut stats.limited, &mut stats.fua_wait] {
        *wait = wait.times(1_000);
    }
    stats.read_breakdown = Breakdown::made(&mut || next.next().expect("a number") * 1_000);
    let device = BufferCount::made(&mut || next.next().expect("a number"));
    (run.measured.after, run.media.erases) = (stats, stats.erases);
    run.media.buffer = Some(device);
    let slc = SlcCount::made(&mut || next.next().expect("a number"));
    run.media.slc = Some(slc);
    let exchanges = Exchanges::made(&mut || next.next().expect("a number"));
    run.measured.contention.as_mut().expect("a host FTL").exchanges = exchanges;

    let report = Report::of(&made);
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
    let run = &json["runs"][0];
    let (columns, rows) = report.cells();
    let cell = |name: &str| {
        let at = columns.iter().position(|c| c == name);
        &*rows[0][at.unwrap_or_else(|| panic!("no column {name}"))]
    };
    let parquet = String::from_utf8_lossy(&report.to_parquet()).into_owned();
    let (text, html) = (report.to_text(), report.to_html());
    let info = contention_text(report.runs[0].contention.as_ref().expect("a host FTL"));
    let mut places = 0;
    let mut look = |schema: &[Counter], numbers: Vec<u64>| {
        for (counter, n) in schema.iter().zip(numbers) {
            for (part, name) in counter.shown {
                places += 1;
                let found = match *part {
                    // A drive's, not a run's: `metrics/text/tests.rs` looks for it.
                    "metric" => continue,
                    "run" => run[*name] == n,
                    "reads" => run["latency_breakdown_ns"]["read"][*name] == n,
                    "writes" => run["latency_breakdown_ns"]["write"][*name] == n,
                    "csv" | "column" => cell(name) == n.to_string() && parquet.contains(*name),
                    "care" => run["care"][*name] == n && cell(name) == n.to_string(),
                    "head" => text.contains(*name) && html.contains(*name),
                    "what" => html.contains(*name),
                    "said" => text.split_whitespace().collect::<Vec<_>>().join(" ").contains(*name),
                    "info" => info.contains(&format!("{name}:{n}")),
                    group => run[group][*name] == n,
                };
                assert!(found, "{} ({n}) as {name} in {part}", counter.name);
            }
            if counter.called("reads").is_some() || counter.called("writes").is_some() {
                let side = if counter.called("reads").is_some() { "read" } else { "write" };
                let name = counter.called(&format!("{side}s")).expect("one of them");
                assert_eq!(cell(&format!("{side}_{name}_sum_ns")), n.to_string());
            }
        }
    };
    look(FtlStats::SCHEMA, stats.numbers());
    look(Breakdown::SCHEMA, stats.read_breakdown.numbers());
    look(BufferCount::SCHEMA, device.numbers());
    look(SlcCount::SCHEMA, slc.numbers());
    look(Exchanges::SCHEMA, exchanges.numbers());
    assert!(places > 60, "{places}");
    for (cause, n) in Cause::ALL.into_iter().zip(stats.programmed) {
        assert_eq!(run["programmed_sectors"][cause.name()], n);
        assert_eq!(cell(&format!("programmed_{}_sectors", cause.name())), n.to_string());
        assert!(text.contains(&cause.name().replace('_', " ")) && html.contains(cause.title()));
    }
    for counter in Exchanges::SCHEMA {
        assert!(run["contention"]["exchanges"][counter.name].is_u64(), "{}", counter.name);
    }
}

/// What jobs did adds up to what the run did, in every output that has both.
#[test]
fn parts_add_up_to_the_run() {
    let report = Report::of(&outcome(ALL));
    for r in &report.runs {
        let names: Vec<&str> = r.jobs.iter().map(|j| &*j.name).collect();
        assert_eq!(names, ["fill", "mixed"]);
        let sum = |of: &dyn Fn(&JobReport) -> u64| r.jobs.iter().map(of).sum::<u64>();
        assert_eq!(sum(&|j| j.read.bytes), r.bytes_read);
        assert_eq!(sum(&|j| j.write.bytes), r.bytes_written);
        assert_eq!(sum(&|j| j.flush.latency_ns.count), r.latency_ns.flush.count);
        assert_eq!((r.jobs[0].read.latency_ns.count, r.jobs[0].flush.latency_ns.count), (0, 0));
        assert!(r.jobs[1].read.latency_ns.count > 0 && r.jobs[1].flush.latency_ns.count > 0);
        assert!(sum(&|j| j.runtime_ns) <= r.runtime_ns, "one waits for the other");
        let t = &r.timeline;
        let total = |list: &[u64]| list.iter().sum::<u64>();
        assert_eq!(total(&t.write_bytes), r.bytes_written);
        assert_eq!(total(&t.host_written_sectors) * 4096, r.bytes_written);
        let causes: u64 = t.programmed_by_cause_sectors.values().map(|list| total(list)).sum();
        assert_eq!(causes, total(&t.programmed_sectors));
        assert!(t.free_ratio.iter().all(|f| (0.0..=1.0).contains(f)));
        assert_eq!(t.free_ratio.len(), t.operations.len());
        assert_eq!(total(&r.wear.channel_erases), r.work.erases);
    }
    assert_eq!(
        report.runs[0].timeline.user_share_ratio.len(),
        report.runs[0].timeline.operations.len()
    );
    assert!(report.runs[1].timeline.user_share_ratio.is_empty(), "the block SSD has no limiter");
}

/// Buses carry in the trace exactly what the medium counted; on a track nothing overlaps.
#[test]
fn a_trace_shows_everything_once() {
    let outcome = outcome(ALL);
    for run in &outcome.runs {
        assert!(run.spans.cut.is_none());
        let on_bus = run.spans.spans.iter().filter(|(_, s)| s.phase.on_bus());
        let carried = on_bus.fold(Ns::ZERO, |sum, (_, s)| sum + (s.to - s.from));
        assert_eq!(carried, run.media.channel_busy, "{}", run.target.name);
    }
    let trace = perfetto(&outcome);
    assert!(trace.cuts.is_empty());
    let json: serde_json::Value = serde_json::from_str(&trace.json).expect("JSON");
    let mut ends: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for event in json["traceEvents"].as_array().expect("a list") {
        if event["ph"] != "X" {
            continue;
        }
        let number = |key: &str| event[key].as_f64().expect("a number");
        let track = (number("pid") as u64, number("tid") as u64);
        let end = ends.entry(track).or_default();
        assert!(number("ts") >= *end - 1e-6, "{event} begins before {end}");
        *end = number("ts") + number("dur");
        *seen.entry(event["name"].as_str().expect("a name").into()).or_default() += 1;
    }
    let kinds: Vec<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["erase", "program", "read transfer", "sense", "write transfer"]);
    for name in ["die 0: GC", "die 0: user", "channel 1: GC", "channel 1: user", "pblk: dies"] {
        assert!(trace.json.contains(&format!("\"{name}\"")), "no track {name}");
    }
}

#[test]
fn a_trace_without_room_ends_at_one_moment_and_says_so() {
    let outcome = outcome(Observe { intervals: false, spans: 400 });
    let trace = perfetto(&outcome);
    assert_eq!(trace.cuts.len(), 2);
    assert!(trace.cuts[0].starts_with("pblk: the trace has the first "), "{}", trace.cuts[0]);
    for run in &outcome.runs {
        let cut = run.spans.cut.expect("there was no room");
        assert!(run.spans.spans.len() <= 400 && run.spans.spans.iter().all(|(_, s)| s.from < cut));
        assert!(!run.spans.spans.is_empty());
    }
    serde_json::from_str::<serde_json::Value>(&trace.json).expect("JSON");
}

/// The library's own reader finds every latency in the log.
#[test]
fn an_hdr_log_holds_the_whole_distribution() {
    let outcome = outcome(ALL);
    let log = hdr_log(&outcome);
    let mut found: BTreeMap<String, hdrhistogram::Histogram<u64>> = BTreeMap::new();
    let mut deserializer = Deserializer::new();
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.expect("a line of a log") else {
            continue;
        };
        let bytes = BASE64_STANDARD.decode(interval.encoded_histogram()).expect("base64");
        let part = deserializer.deserialize::<u64, _>(&mut bytes.as_slice()).expect("a histogram");
        let tag = interval.tag().expect("a tag").as_str().to_string();
        let all = found.entry(tag).or_insert_with(|| hdrhistogram::Histogram::new(3).unwrap());
        all.add(&part).expect("it grows");
    }
    let tags: Vec<&str> = found.keys().map(String::as_str).collect();
    let ops = ["flush", "read", "write"];
    let want: Vec<String> = ["block_SSD", "pblk"]
        .iter()
        .flat_map(|s| ops.iter().map(move |op| format!("{s}.{op}")))
        .collect();
    assert_eq!(tags, want);
    let read = outcome.runs[0].measured.recorder.latencies(BlockOp::Read);
    let logged = &found["pblk.read"];
    assert_eq!((logged.len(), logged.max() >= read.max_ns()), (read.count(), true));
    assert_eq!(logged.value_at_percentile(99.0), read.histogram().value_at_percentile(99.0));
}

#[test]
fn fio_json_has_each_job_of_each_stack() {
    let outcome = outcome(Observe::default());
    let json: serde_json::Value = serde_json::from_str(&fio_json(&outcome)).expect("JSON");
    let jobs = json["jobs"].as_array().expect("a list");
    let names: Vec<&str> = jobs.iter().map(|j| j["jobname"].as_str().expect("a name")).collect();
    assert_eq!(names, ["pblk: fill", "pblk: mixed", "block, SSD: fill", "block, SSD: mixed"]);
    let report = Report::of(&outcome);
    for (job, ours) in jobs.iter().zip(report.runs.iter().flat_map(|r| &r.jobs)) {
        for (side, ours) in [("read", &ours.read), ("write", &ours.write), ("trim", &ours.discard)]
        {
            let side = &job[side];
            assert_eq!(side["total_ios"], ours.latency_ns.count);
            assert_eq!(side["io_bytes"], ours.bytes);
            // fio's own script fails on empty bins: where nothing was done there are none.
            let bins = side["clat_ns"]["bins"].as_object();
            assert_eq!(bins.is_some(), ours.latency_ns.count > 0);
            let counts = bins.into_iter().flat_map(|bins| bins.values());
            let sum: u64 = counts.map(|n| n.as_u64().expect("a count")).sum();
            assert_eq!(sum, ours.latency_ns.count);
            if sum > 0 {
                assert_eq!(side["clat_ns"]["percentile"]["99.000000"], ours.latency_ns.p99);
            }
        }
        assert_eq!(job["sync"]["total_ios"], ours.flush.latency_ns.count);
    }
}

#[test]
fn a_page_says_what_was_run_and_never_that_it_was_steady_when_it_was_not() {
    let report = Report::of(&outcome(Observe::default()));
    assert!(report.runs.iter().all(|r| !r.steady), "this run is meant not to be");
    let page = report.to_html();
    for text in [
        "No run here was steady.",
        &report.fingerprint,
        &report.runs[1].steady_reason,
        "block, SSD",
        "5 (xoshiro256++/splitmix64)",
        "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more",
        "Figure 8.",
        "<h2>Jobs</h2>",
        "effective)",
    ] {
        assert!(page.contains(text), "no `{text}`");
    }
    assert!(!page.contains("alert(1)</script>"), "text of a user is text");
    assert_eq!(page.matches("<figure").count(), page.matches("<details class=\"data\">").count());
    // What was not measured is not drawn: no mark for it, and no number that is none.
    assert!(!page.contains("NaN") && !page.contains("inf"), "a number that is none");
}

/// An outcome without any run (interrupted at once) is still a report in every format.
#[test]
fn nothing_at_all_can_be_written_out() {
    let mut none = outcome(Observe::default());
    none.runs.clear();
    none.interrupted = true;
    let report = Report::of(&none);
    assert!(report.to_html().contains("<b>Interrupted:</b>"));
    assert_eq!((report.to_csv(), report.timeline_csv()), (String::new(), String::new()));
    assert!(report.to_parquet().starts_with(b"PAR1"));
    for json in [fio_json(&none), perfetto(&none).json] {
        serde_json::from_str::<serde_json::Value>(&json).expect("JSON");
    }
}

#[test]
fn lists_of_numbers_take_one_line_each() {
    let value = serde_json::json!({
        "a": [1, -2.5, 1e22], "b": [], "c": [[7], ["x", 8]], "d": [{ "e": 1 }], "f": "[\n1"
    });
    let text = short_lists(&serde_json::to_string_pretty(&value).unwrap());
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    assert!(text.contains("\"a\": [1, -2.5, 1e+22],\n"), "{text}");
}

/// What does not run the same is not compared: tables, sentences and figures are per group.
#[test]
fn runs_of_different_workloads_are_told_apart() {
    let both = format!(
        "{EXPERIMENT}\n[[workload]]\ntargets = [\"pblk\"]\nrw = \"randread\"\nbs = \"4KiB\"\nsize = \"1MiB\"\n"
    );
    for (text, groups) in [(EXPERIMENT, 1), (&both, 2)] {
        let report = report_of(text, &[]);
        assert_eq!(report.groups().len(), groups);
        let shown = report.to_text();
        assert_eq!(shown.matches("\n== job fill").count(), if groups == 1 { 0 } else { 2 });
        assert_eq!(shown.matches("stack  ").count(), groups, "{shown}");
        assert_eq!(shown.contains("Most written"), groups == 1, "{shown}");
        assert_eq!(report.runs[0].jobs.len(), if groups == 1 { 2 } else { 3 });
        assert_eq!(report.runs[1].jobs.len(), 2);
        let html = report.to_html();
        let ids: Vec<&str> =
            html.split(" id=\"").skip(1).filter_map(|s| s.split('"').next()).collect();
        let apart: std::collections::BTreeSet<&&str> = ids.iter().collect();
        assert_eq!(apart.len(), ids.len(), "no id twice: {ids:?}");
    }
}
