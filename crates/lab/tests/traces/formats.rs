//! A sample of each format: read as its documentation says, converted to every other and back.
//!
//! What a format can't carry is written down here once more, by hand ([`limits`]), so that a mistake
//! in the formats' own descriptions is found.

use super::samples;
use flashlane_lab::run::Unwatched;
use flashlane_lab::trace::convert::{Conversion, Converted, convert};
use flashlane_lab::trace::{
    ConvertError, Format, Reading, Scan, TraceOp, TraceRecord, TraceSource, scan,
};
use flashlane_testkit::skip;

/// Format and sample and, counted by another program: reads, writes, discards, flushes; devices; bytes; and the
/// first request as time, operation, device, offset and length.
const SAMPLES: &str = "
    msr           sample.msr.csv      14 10 0 0 2     779776 12816637200307043000 read  web_0        12976128 4096
    systor17      sample.systor17.csv 13 10 0 0 3     258560  1455592765000202000 write 0             6483968 4096
    alibaba       sample.alibaba.csv   8 16 0 0 3     239104  1577808000000196000 write 3            10559488 4096
    tencent       sample.tencent.csv   8 16 0 0 2     319488  1538323200000000000 write 1283          7446528 4096
    mqsim         sample.mqsim.txt    10 14 0 0 3     351232            938911500 write 13            2666496 4096
    disksim       sample.disksim.ascii 10 14 0 0 3    351232            938911500 write 13            2666496 4096
    ssdsim        sample.ssdsim.txt    7 17 0 0 1     408576               414300 write 0             2277376 4096
    spc           sample.spc.csv       5 19 0 0 2     331264              2581000 write 1             2011136 4096
    femu-replayer sample.femu.csv     12 12 0 0 2     354304              2265000 read  1            10162176 4096
    fio-iolog2    sample.fio2.iolog    7 11 3 3 2     214528               689000 write /dev/nvme0n1 11620352 4096
    fio-iolog3    sample.fio3.iolog    9  9 3 3 1     187392               537000 write /dev/nvme0n1 12451840  512
    wiscsee       sample.wiscsee.txt   3 18 3 0 1     289792              2288100 write 0             2351104 4096
    blkparse      sample.blkparse.txt 22 28 3 7 1 2151022592                    0 flush 7,0                 0    0
    parquet       sample.parquet      22 28 3 7 1 2151022592                    0 flush 7,0                 0    0
";

/// The rows of [`SAMPLES`]: format, sample, what follows.
fn samples_of() -> impl Iterator<Item = (Format, &'static str, Vec<&'static str>)> {
    SAMPLES.lines().skip(1).map(|row| {
        let mut words = row.split_whitespace();
        let mut next = || words.next().expect("a word");
        (Format::named(next()).expect("a format"), next(), words.collect())
    })
}

fn read(name: &str, format: Option<Format>) -> Scan {
    let source = TraceSource::File(samples().join(name));
    let reading = Reading { format, ..Reading::default() };
    scan(&source, &reading).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn records(scan: &Scan) -> Vec<TraceRecord> {
    let mut timed = scan.timed(None, false).unwrap();
    std::iter::from_fn(|| timed.advance().unwrap()).collect()
}

fn in_memory(bytes: Vec<u8>, format: Format) -> Scan {
    let source = TraceSource::Memory { name: "converted".into(), bytes: bytes.into() };
    // A format of whole seconds leaves all of a short sample at one time.
    let reading = Reading { format: Some(format), take_as_is: true, ..Reading::default() };
    scan(&source, &reading).unwrap_or_else(|e| panic!("{format}: {e}"))
}

fn converted(scan: &Scan, to: Format, device: Option<&str>) -> (Vec<u8>, Converted) {
    let what = Conversion { to, device, lossy: true };
    convert(scan, &what, &Unwatched, || Ok(Vec::new())).unwrap_or_else(|e| panic!("{to}: {e}"))
}

#[test]
fn each_sample_is_recognized_and_means_what_its_documentation_says() {
    for (format, name, wanted) in samples_of() {
        // SSDSim's and DiskSim's five numbers are MQSim's; only their users know which it is.
        let named = matches!(format, Format::Ssdsim | Format::Disksim).then_some(format);
        let s = read(name, named);
        assert_eq!(s.format, format, "{name}");
        let sum = s.chosen();
        let r = records(&s)[0];
        let numbers = [sum.devices.len() as u64, sum.ops.iter().map(|o| o.bytes).sum(), r.ts_ns];
        let counted = sum.ops.iter().map(|o| o.requests).chain(numbers);
        let first = [format!("{:?}", r.op).to_lowercase(), s.devices.name(r.device)].into_iter();
        let place = [r.offset_bytes, r.len_bytes].map(|n| n.to_string());
        let got: Vec<String> = counted.map(|n| n.to_string()).chain(first).chain(place).collect();
        assert_eq!(got, wanted, "{name}");
    }
    let latencies = |name| records(&read(name, None)).iter().flat_map(|r| r.latency_ns).count();
    let counted = ["sample.msr.csv", "sample.systor17.csv", "sample.wiscsee.txt"].map(latencies);
    // One response of SYSTOR's is empty.
    assert_eq!(counted, [24, 22, 24]);
    assert_eq!(records(&read("sample.msr.csv", None))[0].latency_ns, Some(134_700));
}

/// blktrace's files belong together: either opens both, and the text of blkparse says the same.
#[test]
fn per_cpu_files_are_merged() {
    let [zero, one] = ["sample.blktrace.0", "sample.blktrace.1"].map(|n| read(n, None));
    assert_eq!((zero.files, zero.format), (2, Format::Blktrace));
    assert_eq!(records(&zero), records(&one));
    assert_eq!(zero.chosen().requests(), 24);
    assert_eq!(zero.chosen().backwards, 0, "merged by time");
    assert_eq!((zero.chosen().fua, zero.chosen().preflush), (1, 1));
    let notes: Vec<&str> = zero.notes.iter().map(|(_, t)| t.as_str()).collect();
    assert_eq!(notes, ["phase one", "phase two"]);
    assert_eq!(zero.recorded.count(), 24, "every completion found its request");
}

/// Who means a write by 0, and which unit: the same line is another request in another format.
#[test]
fn the_same_words_mean_other_things_elsewhere() {
    let one = |text: &str, reading: Reading| {
        let bytes = text.as_bytes().to_vec();
        let source = TraceSource::Memory { name: "t".into(), bytes: bytes.into() };
        let s = scan(&source, &reading).unwrap();
        let r = records(&s)[0];
        (r.op, r.ts_ns, r.offset_bytes, r.len_bytes)
    };
    let of = |text, format| one(text, Reading { format: Some(format), ..Reading::default() });
    let (r, w) = (TraceOp::Read, TraceOp::Write);
    let (sector, second, milli) = (512, 1_000_000_000, 1_000_000);
    assert_eq!(of("7 1 16 8 0", Format::Mqsim), (w, 7, 16 * sector, 8 * sector));
    assert_eq!(of("7 1 16 8 1", Format::Ssdsim), (r, 7, 16 * sector, 8 * sector));
    assert_eq!(of("7.5 1 16 8 10", Format::Disksim), (w, 7_500_000, 16 * sector, 8 * sector));
    assert_eq!(of("7 1 16 8 4001", Format::Disksim), (r, 7 * milli, 16 * sector, 8 * sector));
    assert_eq!(of("7,16,8,0,1", Format::Tencent), (r, 7 * second, 16 * sector, 8 * sector));
    assert_eq!(of("7,1,512,4096,0", Format::Femu), (w, 7 * milli, 512, 4096));
    assert_eq!(of("1,16,4096,R,7.5", Format::Spc), (r, 7 * second + second / 2, 8192, 4096));
    let unit = |u: &str| Reading {
        time_unit: flashlane_lab::trace::number::Clock::named(u),
        ..Reading::default()
    };
    assert_eq!(one("7000 1 16 8 0", unit("us")).1, 7 * milli);
    assert_eq!(one("7000 1 16 8 0", unit("ps")).1, 7);
    let log = "fio version 2 iolog\nf add\nf open\nf wait 500 0\nf read 0 512\nf wait 700 0\n\
               f write 0 512\nf close\n";
    let last = |wait_from_start| {
        let bytes = log.as_bytes().to_vec();
        let source = TraceSource::Memory { name: "t".into(), bytes: bytes.into() };
        let s = scan(&source, &Reading { wait_from_start, ..Reading::default() }).unwrap();
        s.chosen().last_ns
    };
    assert_eq!((last(false), last(true)), (1_200_000, 700_000));
}

/// What a format can't carry. Written by hand from the formats' documentation.
struct Limits {
    resolution_ns: u64,
    from_zero: bool,
    in_order: bool,
    ops: &'static [TraceOp],
    offset_unit: u64,
    len_unit: u64,
    latency_ns: Option<u64>,
    flags: bool,
    devices: bool,
}

const RW: &[TraceOp] = &[TraceOp::Read, TraceOp::Write];

fn limits(format: Format) -> Limits {
    let plain = Limits {
        resolution_ns: 1,
        from_zero: false,
        in_order: false,
        ops: RW,
        offset_unit: 1,
        len_unit: 1,
        latency_ns: None,
        flags: false,
        devices: true,
    };
    match format {
        Format::Parquet => Limits { ops: &TraceOp::ALL, latency_ns: Some(1), flags: true, ..plain },
        Format::Blkparse | Format::Blktrace => Limits {
            from_zero: true,
            ops: &TraceOp::ALL,
            offset_unit: 512,
            len_unit: 512,
            latency_ns: Some(1),
            flags: true,
            ..plain
        },
        Format::Mqsim | Format::Ssdsim | Format::Disksim => {
            Limits { from_zero: true, offset_unit: 512, len_unit: 512, ..plain }
        }
        Format::Msr => Limits { resolution_ns: 100, latency_ns: Some(100), ..plain },
        Format::Systor => Limits { latency_ns: Some(1), ..plain },
        Format::Alibaba => Limits { resolution_ns: 1_000, ..plain },
        Format::Tencent => {
            Limits { resolution_ns: 1_000_000_000, offset_unit: 512, len_unit: 512, ..plain }
        }
        Format::Spc => Limits { from_zero: true, offset_unit: 512, ..plain },
        Format::Fio2 => Limits {
            resolution_ns: 1_000,
            from_zero: true,
            in_order: true,
            ops: &TraceOp::ALL,
            ..plain
        },
        Format::Fio3 => {
            Limits { resolution_ns: 1_000, from_zero: true, ops: &TraceOp::ALL, ..plain }
        }
        Format::Wiscsee => Limits {
            from_zero: true,
            ops: &[TraceOp::Read, TraceOp::Write, TraceOp::Discard],
            latency_ns: Some(1),
            devices: false,
            ..plain
        },
        Format::Femu => Limits { from_zero: true, ..plain },
    }
}

/// What becomes of records in a format.
fn expected(records: &[TraceRecord], format: Format) -> Vec<TraceRecord> {
    let l = limits(format);
    let zero = if l.from_zero { records.iter().map(|r| r.ts_ns).min().unwrap() } else { 0 };
    let mut latest = 0;
    let kept = records.iter().filter(|r| l.ops.contains(&r.op)).map(|r| {
        let mut r = *r;
        r.ts_ns = (r.ts_ns - zero) / l.resolution_ns * l.resolution_ns;
        if l.in_order {
            latest = r.ts_ns.max(latest);
            r.ts_ns = latest;
        }
        r.latency_ns = l.latency_ns.and_then(|unit| r.latency_ns.map(|ns| ns / unit * unit));
        r.fua &= l.flags;
        r.preflush &= l.flags;
        // All samples lie on sectors; nothing has to be widened.
        assert_eq!((r.offset_bytes % l.offset_unit, r.len_bytes % l.len_unit), (0, 0));
        r
    });
    renumbered(kept.collect())
}

/// Devices by first appearance: a reader's numbers.
fn renumbered(mut records: Vec<TraceRecord>) -> Vec<TraceRecord> {
    let mut seen = Vec::new();
    for r in &mut records {
        let at = seen.iter().position(|d| *d == r.device).unwrap_or_else(|| {
            seen.push(r.device);
            seen.len() - 1
        });
        r.device.0 = at as u16;
    }
    records
}

fn all_samples() -> Vec<Scan> {
    let mut all: Vec<Scan> =
        samples_of().map(|(format, name, _)| read(name, Some(format))).collect();
    all.push(read("sample.blktrace.0", None));
    all
}

/// Every sample to every format and back: the same requests, but for exactly what the formats on
/// the way can't carry.
#[test]
fn samples_survive_every_other_format_and_the_way_back() {
    for sample in all_samples() {
        for there in Format::ALL {
            let many = sample.chosen().devices.len() > 1;
            let one = (!limits(there).devices && many)
                .then(|| sample.devices.name(records(&sample)[0].device));
            let mut before = records(&sample);
            if one.is_some() {
                let (zero, first) = (sample.chosen().first_ns.unwrap(), before[0].device);
                before.retain(|r| r.device == first);
                // The trace's own zero, not that of the device.
                before.iter_mut().for_each(|r| r.ts_ns -= zero);
                before.insert(0, TraceRecord { ts_ns: 0, ..before[0] });
            }
            let mut wanted = expected(&before, there);
            if one.is_some() {
                wanted.remove(0);
            }
            let (bytes, done) = converted(&sample, there, one.as_deref());
            let way = format!("{} to {there}", sample.format);
            let middle = in_memory(bytes, there);
            let got = renumbered(records(&middle));
            assert_eq!(got, wanted, "{way}");
            assert_eq!(done.written, wanted.len() as u64, "{way}");
            if sample.format == Format::Wiscsee
                || limits(sample.format).devices
                || middle.chosen().devices.len() < 2
            {
                let (bytes, _) = converted(&middle, sample.format, None);
                let back = renumbered(records(&in_memory(bytes, sample.format)));
                assert_eq!(back, expected(&got, sample.format), "{way} and back");
            }
        }
    }
}

/// Nothing is lost without being asked for, and what would be lost is named.
#[test]
fn a_lossy_conversion_has_to_be_allowed() {
    let sample = read("sample.blkparse.txt", None);
    let strict = |to| {
        let what = Conversion { to, device: None, lossy: false };
        convert(&sample, &what, &Unwatched, || -> std::io::Result<Vec<u8>> {
            panic!("the place is opened only when nothing is wrong")
        })
        .map(|_| ())
        .unwrap_err()
        .to_string()
    };
    let said = strict(Format::Mqsim);
    for part in ["7 flushes left out", "3 discards left out", "--lossy", "--to parquet"] {
        assert!(said.contains(part), "`{part}` is missing: {said}");
    }
    assert!(strict(Format::Fio3).contains("FUA"));
    let many = read("sample.mqsim.txt", None);
    let what = Conversion { to: Format::Wiscsee, device: None, lossy: true };
    let refused = convert(&many, &what, &Unwatched, || Ok(Vec::new())).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, ConvertError::Devices { devices: 3, .. }), "{refused}");
    let what = Conversion { to: Format::Wiscsee, device: Some("3"), lossy: true };
    let (_, done) = convert(&many, &what, &Unwatched, || Ok(Vec::new())).unwrap();
    assert_eq!((done.requests, done.written), (9, 9));
    let what = Conversion { to: Format::Parquet, device: Some("99"), lossy: true };
    let said = convert(&many, &what, &Unwatched, || Ok(Vec::new())).map(|_| ()).unwrap_err();
    assert!(said.to_string().contains("no device `99`"), "{said}");
}

#[test]
fn names_of_devices_survive_where_a_format_holds_them() {
    let names = |scan: &Scan| scan.devices.names().to_vec();
    let back = |name, to| names(&in_memory(converted(&read(name, None), to, None).0, to));
    assert_eq!(back("sample.fio2.iolog", Format::Parquet), ["/dev/nvme0n1", "/dev/nvme1n1"]);
    assert_eq!(back("sample.msr.csv", Format::Fio3), ["web_0", "web_1"]);
    assert_eq!(back("sample.msr.csv", Format::Parquet), ["web_0", "web_1"]);
    assert_eq!(back("sample.mqsim.txt", Format::Femu), ["13", "3", "4"]);
    assert_eq!(back("sample.msr.csv", Format::Mqsim), ["0", "1"], "numbers instead");
    assert_eq!(back("sample.fio3.iolog", Format::Blkparse), ["259,0"]);
}

/// The same requests are the same bytes, whenever they are written.
#[test]
fn conversion_is_deterministic() {
    for sample in all_samples().iter().filter(|s| s.chosen().devices.len() == 1) {
        for to in Format::ALL {
            assert_eq!(converted(sample, to, None).0, converted(sample, to, None).0, "{to}");
        }
    }
}

/// Public traces that are too large for the tree; skipped where they are not.
#[test]
fn a_public_trace_survives_the_own_format() {
    let path = samples().join("../../shared/traces/tpcc-small.mqsim.trace");
    if !path.exists() {
        skip(
            "public-trace",
            "the public trace of MQSim, which is no part of this tree, is not here",
        );
        return;
    }
    let s = scan(&TraceSource::File(path), &Reading::default()).unwrap();
    assert_eq!((s.chosen().requests(), s.chosen().devices.len()), (6_999, 16));
    let (bytes, done) = converted(&s, Format::Parquet, None);
    assert_eq!(done.written, 6_999);
    assert_eq!(records(&in_memory(bytes, Format::Parquet)), records(&s));
}
