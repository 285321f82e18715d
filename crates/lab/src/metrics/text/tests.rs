//! Whether the text is what Prometheus reads, and whether everything is in it.

use super::*;
use crate::drive::Used;
use crate::metrics::look::{add_contention, add_stats, mount_lost};
use crate::metrics::{Endurance, Meters, Ring};
use flashlane_base::Ns;
use flashlane_base::counters::Value;
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::contention::{Contention, Queue};
use flashlane_ftl::layer::{LostCause, LostSectors, Recovered};
use flashlane_ocssd::device::{Breakdown, Cause};
use std::collections::{BTreeMap, BTreeSet};

/// A series: its name, its labels in order.
type Series = (String, Vec<(String, String)>);

/// What was read: types of families, and values of series.
#[derive(Default)]
struct Read {
    types: BTreeMap<String, String>,
    series: BTreeMap<Series, f64>,
}

/// A name and the labels behind it, with escapes taken back.
fn series_of(text: &str) -> (Series, &str) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c| !is_name(c)).expect("something behind the name");
    let (name, mut rest) = text.split_at(end);
    assert!(!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()), "{text}");
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"").expect("a label");
            assert!(label.chars().all(is_name) && !label.is_empty(), "{text}");
            let (mut unescaped, mut chars) = (String::new(), value.char_indices());
            let end = loop {
                match chars.next().expect("an end") {
                    (at, '"') => break at,
                    (_, '\\') => unescaped.push(match chars.next().expect("what is escaped").1 {
                        'n' => '\n',
                        c @ ('\\' | '"') => c,
                        other => panic!("{other} is no escape: {text}"),
                    }),
                    (_, c) => unescaped.push(c),
                }
            };
            labels.push((label.to_string(), unescaped));
            rest = &value[end + 1..];
            match rest.split_at(1) {
                (",", more) => rest = more,
                ("}", more) => break rest = more,
                _ => panic!("{text}"),
            }
        }
    }
    ((name.into(), labels), rest)
}

/// Reads a text as Prometheus does, and panics where it would refuse it.
fn read(text: &str) -> Read {
    let (mut read, mut family, mut helped) = (Read::default(), String::new(), BTreeSet::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("words");
            assert!(helped.insert(name.to_string()), "{name} is helped twice");
            assert!(help.ends_with('.') || name.starts_with("nvme_"), "{line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            assert!(["counter", "gauge", "histogram", "untyped"].contains(&kind), "{line}");
            assert!(helped.contains(name), "{name} has help");
            let before = read.types.insert(name.into(), kind.into());
            assert_eq!(before, None, "{name} comes twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            family = name.into();
        } else {
            let (series, value) = series_of(line);
            let kind = &*read.types[&family];
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| series.0.strip_suffix(end).filter(|_| kind == "histogram"));
            assert_eq!(base.unwrap_or(&series.0), family, "{line} is below its own head");
            let value: f64 = value.trim().parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let twice = read.series.insert(series, value);
            assert_eq!(twice, None, "{line} comes twice");
        }
    }
    histograms(&read);
    read
}

/// Buckets only grow, and the last one is the count.
fn histograms(read: &Read) {
    let mut groups: BTreeMap<Series, Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), value) in &read.series {
        let Some(base) = name.strip_suffix("_bucket") else { continue };
        let mut labels = labels.clone();
        let le = labels.iter().position(|(label, _)| label == "le").expect("a bound");
        let bound = labels.remove(le).1;
        let bound = bound.replace("+Inf", "inf").parse().expect("a bound");
        groups.entry((base.into(), labels)).or_default().push((bound, *value));
    }
    for ((base, labels), mut buckets) in groups {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1 && a.0 < b.0), "{base} {labels:?}");
        let (bound, all) = *buckets.last().expect("some");
        assert!(bound.is_infinite());
        assert_eq!(read.series[&(format!("{base}_count"), labels.clone())], all);
        assert!(read.series.contains_key(&(format!("{base}_sum"), labels)));
    }
}

/// A snapshot in which every counter has a number of its own, and what it was made from.
fn full() -> (Snapshot, FtlStats, MediumCounters, (BufferCount, SlcCount), Exchanges) {
    let mut last = 1_000;
    let mut next = || {
        last += 7;
        last
    };
    let stats = FtlStats::made(&mut next);
    let medium = MediumCounters::made(&mut next);
    let buffer = BufferCount::made(&mut next);
    let slc = SlcCount::made(&mut next);
    let exchanges = Exchanges::made(&mut next);
    let named = |schema: &[Counter], numbers: Vec<u64>| -> Numbers {
        schema.iter().map(|c| c.name.to_string()).zip(numbers).collect()
    };
    let mut s = Snapshot { device: "odd \"name\" \\ in\nlines.img".into(), ..Snapshot::default() };
    let mut t = TargetSnapshot { name: "db".into(), ..TargetSnapshot::default() };
    add_stats(&mut t, &stats);
    let queues = vec![Queue { capacity: 64, depth: 5, ..Queue::default() }; 2];
    add_contention(&mut t, &Contention { exchanges, queues, ..Contention::default() });
    t.lines = [("open".to_string(), 2), ("closed".to_string(), 9)].into();
    t.room.user_slots = Some((7, 64));
    let range = |first, count, cause| LostSectors { first, count, cause };
    t.lost = Some(mount_lost(Some(Recovered {
        lost_sectors: vec![
            range(7, 5, LostCause::DeadPu(1)),
            range(20, 1, LostCause::MayBeOlder),
            range(30, 2, LostCause::DeadPu(3)),
        ],
        lost: vec![(flashlane_base::Location { pu: 1, chunk: 2, sector: 4 }, 4)],
        torn_units: 3,
        ..Recovered::default()
    })));
    s.medium.counters = named(MediumCounters::SCHEMA, medium.numbers());
    s.medium.buffer = Some(named(BufferCount::SCHEMA, buffer.numbers()));
    s.medium.slc = Some(named(SlcCount::SCHEMA, slc.numbers()));
    let used = |mean_ppm| Used { mean_ppm, most_ppm: 2 * mean_ppm };
    s.medium.endurance = Some(Endurance { native: used(125_000), slc: used(500) });
    s.medium.pus_per_channel = 2;
    s.medium.channels_ns = vec![1_500_000_000, 2];
    s.medium.dies_ns = vec![[1, 2, 3]; 4];
    s.medium.pu_erases = vec![10, 11, 12, 13];
    let meters = Meters::new();
    for us in 0..2_000 {
        meters.begun(BlockOp::Read);
        meters.ended(BlockOp::Read, Ns::from_us(us * us), us > 3);
    }
    meters.begun(BlockOp::Flush);
    t.requests = meters.counted();
    s.targets.push(t);
    s.smart = serde_json::json!({
        "critical_warning": 0, "avail_spare": 99, "spare_thresh": 10, "percent_used": 3,
        "data_units_read": "5", "data_units_written": "6", "power_cycles": "7",
        "power_on_hours": "8", "unsafe_shutdowns": "9", "media_errors": "10",
    });
    (s, stats, medium, (buffer, slc), exchanges)
}

#[test]
fn every_declared_counter_is_in_the_text_and_in_the_json() {
    let (s, stats, medium, (buffer, slc), exchanges) = full();
    let found = read(&s.to_text());
    let json: serde_json::Value = serde_json::from_str(&s.to_json()).expect("JSON");
    let target = &json["targets"][0];
    let mut looked = 0;
    let mut look = |prefix: &str, schema: &[Counter], numbers: Vec<u64>, at: &serde_json::Value| {
        for (counter, n) in schema.iter().zip(numbers) {
            assert_eq!(at[counter.name], n, "{prefix}{}", counter.name);
            if EXPANDED.contains(&counter.name) {
                continue;
            }
            let (name, scale) = name_of(counter);
            let total = if counter.combine == Combine::Sum { "_total" } else { "" };
            let name = format!("flashlane_{prefix}{name}{total}");
            let values = found.series.iter().filter(|((series, _), _)| *series == name);
            let values: Vec<f64> = values.map(|(_, value)| *value).collect();
            let want = match scale {
                Scale::One => n as f64,
                Scale::Bytes => n as f64 * 4096.0,
                Scale::Seconds => n as f64 / 1e9,
            };
            assert!(values.len() == 1 && (values[0] - want).abs() < 1e-9, "{name}: {values:?}");
            looked += 1;
        }
    };
    look("", FtlStats::SCHEMA, stats.numbers(), &target["stats"]);
    look("media_", MediumCounters::SCHEMA, medium.numbers(), &json["medium"]["counters"]);
    look("device_buffer_", BufferCount::SCHEMA, buffer.numbers(), &json["medium"]["buffer"]);
    look("media_slc_", SlcCount::SCHEMA, slc.numbers(), &json["medium"]["slc"]);
    look("exchange_", Exchanges::SCHEMA, exchanges.numbers(), &target["exchanges"]);
    assert!(looked > 40, "{looked}");
    // Those that are several numbers.
    let of = |name: &str, label: &str, is: &str| {
        let has = |labels: &[(String, String)]| labels.iter().any(|(l, v)| l == label && v == is);
        let found = found.series.iter().find(|((n, labels), _)| n == name && has(labels));
        *found.unwrap_or_else(|| panic!("no {name} of {is}")).1
    };
    for (cause, n) in Cause::ALL.into_iter().zip(stats.programmed) {
        let name = "flashlane_nand_program_bytes_total";
        assert_eq!(of(name, "reason", cause.name()), n as f64 * 4096.0);
        assert_eq!(target["programmed"][cause.name()], n);
    }
    for (part, n) in Breakdown::SCHEMA.iter().zip(stats.read_breakdown.numbers()) {
        let found = of("flashlane_read_time_seconds_total", "part", part.name);
        assert!((found - n as f64 / 1e9).abs() < 1e-12, "{}", part.name);
        assert_eq!(target["read_time"][part.name], n);
    }
}

#[test]
fn names_are_those_that_others_know() {
    let (s, ..) = full();
    let text = s.to_text();
    let read = read(&text);
    for name in [
        "flashlane_host_write_bytes_total",
        "flashlane_host_read_bytes_total",
        "flashlane_host_discard_bytes_total",
        "flashlane_nand_program_bytes_total",
        "flashlane_nand_erases_total",
        "flashlane_gc_moved_pages_total",
        "flashlane_write_amplification_ratio",
        "flashlane_free_blocks",
        "flashlane_request_duration_seconds",
        "flashlane_lock_wait_seconds_total",
        "flashlane_queue_depth",
        "flashlane_mount_lost_sectors",
        "flashlane_mount_unreadable_sectors",
        "flashlane_mount_torn_units",
        "nvme_available_spare_ratio",
        "nvme_percentage_used_ratio",
        "nvme_data_units_written_total",
        "nvme_media_errors_total",
        "nvme_unsafe_shutdowns_total",
    ] {
        assert!(read.types.contains_key(name), "no {name}:\n{text}");
    }
    // Every series says of which drive it is, and escapes come back as they were.
    for (name, labels) in read.series.keys() {
        assert_eq!(labels[0], ("device".to_string(), s.device.clone()), "{name}");
    }
    assert!(text.contains(r#"{device="odd \"name\" \\ in\nlines.img",target="db"} "#), "{text}");
    assert!(text.contains("Live sectors found in victims and moved. Unit: sectors of 4096 bytes."));
    let erases = read.series.iter().filter(|((name, _), _)| name == "flashlane_nand_erases_total");
    let erases: Vec<String> =
        erases.map(|((_, l), n)| format!("{} {} {n}", l[1].1, l[2].1)).collect();
    assert_eq!(erases, ["0 0 10", "0 1 11", "1 0 12", "1 1 13"]);
    let used = read.series.iter().filter(|((name, _), _)| name == "flashlane_endurance_used_ratio");
    let used: Vec<String> = used.map(|((_, l), n)| format!("{} {} {n}", l[1].1, l[2].1)).collect();
    assert_eq!(
        used,
        ["native mean 0.125", "native most 0.25", "slc mean 0.0005", "slc most 0.001"]
    );
}

#[test]
fn a_drive_without_a_mounted_target_has_what_the_device_has() {
    let raw = TargetSnapshot { name: "raw".into(), ..TargetSnapshot::default() };
    let s = Snapshot { device: "a.img".into(), targets: vec![raw], ..Snapshot::default() };
    let read = read(&s.to_text());
    assert!(read.types.contains_key("flashlane_info"));
    assert!(!read.types.contains_key("flashlane_host_write_bytes_total"));
}

/// What `read` refuses is a family that comes twice, and a series that does.
#[test]
fn targets_side_by_side_share_families() {
    let (mut s, ..) = full();
    let one = read(&s.to_text());
    s.targets.push(TargetSnapshot { name: "log".into(), ..s.targets[0].clone() });
    let two = read(&s.to_text());
    assert_eq!(one.types, two.types);
    let of = |read: &Read, target: &str| {
        let label = ("target".to_string(), target.to_string());
        read.series.keys().filter(|(_, labels)| labels.contains(&label)).count()
    };
    assert!(of(&one, "db") > 100);
    assert_eq!((of(&two, "db"), of(&two, "log")), (of(&one, "db"), of(&one, "db")));
}

/// What a mount has lost is there by target and cause; every cause has a series, so that none is
/// missed by who waits for it.
#[test]
fn losses_of_a_mount_are_told_by_cause() {
    let (s, ..) = full();
    let read = read(&s.to_text());
    let of = |name: &str| {
        let all = read.series.iter().filter(|((series, _), _)| series == name);
        let all = all.map(|((_, labels), n)| (labels[1..].to_vec(), *n));
        let text = |labels: &[(String, String)]| {
            labels.iter().map(|(_, value)| value.clone()).collect::<Vec<_>>().join(" ")
        };
        all.map(|(labels, n)| format!("{} {n}", text(&labels))).collect::<Vec<_>>()
    };
    assert_eq!(
        of("flashlane_mount_lost_sectors"),
        [
            "db dead_pu 7",
            "db may_be_older 1",
            "db noted 0",
            "db offline_chunk 0",
            "db unreadable_chunk 0"
        ]
    );
    assert_eq!(of("flashlane_mount_unreadable_sectors"), ["db 4"]);
    assert_eq!(of("flashlane_mount_torn_units"), ["db 3"]);
    assert_eq!(mount_lost(None).sectors.values().sum::<u64>(), 0, "a target that is new");
}

#[test]
fn seconds_are_exact() {
    for (ns, text) in [
        (0, "0"),
        (1_024, "0.000001024"),
        (1 << 34, "17.179869184"),
        (10_000_000_000, "10"),
        (u64::MAX, "18446744073.709551615"),
    ] {
        assert_eq!(seconds(ns), text);
    }
}

#[test]
fn json_comes_back_as_it_was() {
    let (mut s, ..) = full();
    s.targets[0].rings.push(Ring::default());
    assert_eq!(Snapshot::from_json(&s.to_json()), Ok(s));
    assert!(Snapshot::from_json("7").is_err());
}
