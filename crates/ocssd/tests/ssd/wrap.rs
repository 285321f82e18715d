//! Wrappers, specs, and the device under real threads.

use crate::common::*;
use flashlane_ocssd::SpecError;
use flashlane_ocssd::wrap::{Script, ScriptedDevice, TracingDevice};
use proptest::prelude::*;

/// Every command is written down once, in order, as it came and as it went.
#[test]
fn a_trace_has_every_command() {
    let ssd = ssd(&tiny(|_| {}), memory());
    let trace = Arc::new(TracingDevice::new(ssd));
    let b = Bench::new(trace.clone());
    b.write(&[(0, 0, 0, 4)], 1);
    b.write(&[(0, 0, 0, 4)], 1);
    b.read(&[(0, 0, 0, 2), (1, 0, 0, 1)]);
    b.reset(2, 3);
    let all = trace.entries();
    let ops: Vec<Op> = all.iter().map(|t| t.op).collect();
    assert_eq!(ops, [Op::Write, Op::Write, Op::Read, Op::Reset]);
    assert_eq!((all[0].causes.len(), all[0].oob[0], all[2].addrs.len()), (4, [1; 16], 3));
    assert_eq!(all[1].failed, (0..4).map(|i| (i, Status::OutOfOrder)).collect::<Vec<_>>());
    assert!(all.windows(2).all(|w| w[0].finished.unwrap() <= w[1].submitted));
    assert!(all[1].to_string().contains("4 failed, [0] OutOfOrder"), "{}", all[1]);
    assert_eq!((trace.take().len(), trace.count(), trace.entries().len()), (4, 4, 0));
    b.reset(2, 3);
    assert_eq!(trace.entries()[0].number, 4);
}

/// A scripted answer replaces the medium's for the addresses it names; the rest goes through.
#[test]
fn a_script_lies_on_command() {
    let ssd = ssd(&tiny(|s| s.geometry.mw_cunits = 0), memory());
    let script = Arc::new(ScriptedDevice::new(ssd.clone()));
    let b = Bench::new(script.clone());
    script.add(Script {
        op: Op::Write,
        nth: 1,
        addrs: 0x0f,
        status: Status::ChunkEarlyClose,
        delay: Ns::from_ms(2),
    });
    script.add(Script {
        op: Op::Read,
        nth: 0,
        addrs: 0b10,
        status: Status::Uncorrectable,
        delay: Ns::ZERO,
    });
    assert_eq!(b.write(&[(0, 0, 0, 4)], 1).failed, 0);
    let from = b.now();
    let done = b.write(&[(0, 0, 4, 4), (1, 0, 0, 4)], 2);
    assert_eq!(
        (done.failed, done.status(0), done.status(4)),
        (0x0f, Status::ChunkEarlyClose, Status::Ok)
    );
    assert_eq!(b.now() - from, Ns::from_ms(2));
    assert_eq!((b.info(0, 0).write_pointer, b.info(1, 0).write_pointer), (4, 4));
    let got = b.read(&[(0, 0, 0, 2), (1, 0, 0, 2)]);
    assert_eq!(got.done.failed, 0b10);
    assert!(got.holds(0, 1) && got.holds(2, 2) && got.holds(3, 2));
    assert_eq!((script.answered(), script.seen(Op::Write)), (2, 2));
    assert_eq!(ssd.counters().violations, 0);
    script.add(Script {
        op: Op::Reset,
        nth: 0,
        addrs: 1,
        status: Status::OfflineChunk,
        delay: Ns::ZERO,
    });
    assert_eq!(b.reset(0, 0), Status::OfflineChunk);
    assert_eq!(b.reset(0, 0), Status::Ok);
}

/// Wrappers stack: a trace of a scripted device behind a core's partition.
#[test]
fn wrappers_stack() {
    let ssd = ssd(&tiny(|s| s.geometry.mw_cunits = 0), memory());
    let trace = Arc::new(TracingDevice::new(ssd));
    let script = Arc::new(ScriptedDevice::new(trace.clone()));
    let core = flashlane_ocssd::Core::new(script);
    let spec = flashlane_ocssd::TargetSpec::new("t", "raw", flashlane_ocssd::Pus::Any).on(2, 3);
    let b = Bench::new(core.create(&spec).unwrap());
    b.write_up_to(1, 0, 8, 1);
    assert!(b.read(&[(1, 0, 5, 1)]).holds(0, 1));
    let at = b.dev.format().unpack(trace.entries()[0].addrs[0]);
    assert_ne!(at.map(|a| a.pu), Some(1), "addresses below are the device's");
    assert_eq!(trace.count(), 3);
}

/// A wrong spec is refused with its key and what would do.
#[test]
fn a_wrong_spec_is_refused_with_its_place() {
    let text = DeviceSpec::preset_text("tiny").unwrap();
    let cases = [
        ("channels = 2", "channels = 0", "`channels` must be at least 1"),
        ("channels = 2", "chanels = 2", "chanels"),
        ("erase = \"3ms\"", "erase = \"3 parsecs\"", "parsecs"),
        ("erase = \"3ms\"", "erase = \"2h\"", "longer than an hour"),
        ("ws_min = 4", "ws_min = 3", "ws_min"),
        ("ws_min = 4", "ws_min = 1", "whole pages"),
        ("read = [\"50us\"]", "read = []", "timing.read"),
        ("read = [\"50us\"]", "read = [\"1us\", \"2us\"]", "one per page type"),
        ("channel_bandwidth = \"400MB\"", "channel_bandwidth = \"1kB\"", "64 kB"),
        ("[cells]", "[cells]\npairing = \"mlc\"", "geometry.mw_cunits"),
        ("[cells]", "[cells]\npairing = \"plc\"", "plc"),
        ("[cells]", "[cells]\nbits = 9", "cells.bits"),
        ("chunks_per_pu = 16", "chunks_per_pu = 4000000000", "geometry"),
        ("name = \"tiny\"", "", "name"),
    ];
    for (old, new, says) in cases {
        assert!(text.contains(old), "{old}");
        let said = match DeviceSpec::from_toml(&text.replacen(old, new, 1)) {
            Err(e) => e.to_string(),
            Ok(_) => panic!("{new} was taken"),
        };
        assert!(said.contains(says), "{said}");
    }
    let said = DeviceSpec::preset("westlaek").unwrap_err().to_string();
    assert!(said.contains("westlaek") && said.contains("westlake"), "{said}");
    let elsewhere = failing("[[fault]]\nkind = \"die_fail\"\npu = 77");
    let refused = Ssd::new(&tiny(|_| {}), elsewhere);
    assert!(matches!(refused, Err(SpecError::Fault(_))));
}

/// A spec built from every preset, with one number or word turned into another.
fn mutant(preset: usize, at: usize, with: &str) -> String {
    let names = DeviceSpec::preset_names();
    let text = DeviceSpec::preset_text(names[preset % names.len()]).unwrap();
    let is_token = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let mut tokens = Vec::new();
    let mut from = None;
    for (i, c) in text.char_indices() {
        match (is_token(c), from) {
            (true, None) => from = Some(i),
            (false, Some(f)) => {
                tokens.push((f, i));
                from = None;
            }
            _ => {}
        }
    }
    let (from, to) = tokens[at % tokens.len()];
    format!("{}{with}{}", &text[..from], &text[to..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever stands in a spec, the answer is a device or an error; a device takes commands.
    #[test]
    fn no_spec_panics(
        preset in any::<usize>(), at in any::<usize>(),
        with in prop_oneof![
            "[0-9]{1,12}", "[0-9]{1,4}(us|ms|MB|GB)", Just("true".to_string()),
            Just("\"tlc\"".to_string()), Just("18446744073709551615".to_string()), "[a-z]{0,6}",
        ],
    ) {
        let text = mutant(preset, at, &with);
        let Ok(spec) = DeviceSpec::from_toml(&text) else { return Ok(()) };
        if spec.geometry().chunks() > 1 << 20 {
            return Ok(()); // takes memory, not luck
        }
        let b = Bench::new(ssd(&spec, SsdOptions::default()));
        let unit = b.dev.geometry().ws_min;
        if unit <= 64 {
            prop_assert_eq!(b.write(&[(0, 0, 0, unit)], 1).failed & 1, 0);
            b.read(&[(0, 0, 0, 1)]);
            b.reset(0, 0);
        }
    }

    #[test]
    fn no_fault_plan_panics(text in "(\\[\\[fault\\]\\]\n(kind|at|pu|count|after|times) = [\"a-z0-9_ ]{0,20}\n){0,3}") {
        let _ = FaultPlan::from_toml(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever a command names, it completes, with as many statuses as it has addresses.
    #[test]
    fn no_command_panics(
        raw in prop::collection::vec(
            prop_oneof![any::<u64>(), 0u64..1 << 14, 0u64..64], 0..70
        ),
        op in 0usize..5, planes in any::<u8>(), slc in any::<bool>(), v12 in any::<bool>(),
        queue in 0usize..3, dulbe in any::<bool>(),
    ) {
        use flashlane_ocssd::DieQueue::{Fifo, ReadFirst, Suspend};
        let spec = tiny(|s| {
            if v12 { s.ppa = flashlane_base::PpaStyle::V12; }
            s.geometry.chunks_per_pu = 11;
        });
        let queue = Some([Fifo, ReadFirst, Suspend][queue]);
        let b = Bench::new(ssd(&spec, SsdOptions { dulbe, queue, ..SsdOptions::default() }));
        b.write_up_to(0, 0, 64, 1);
        let addrs: Vec<flashlane_base::Ppa> = raw.into_iter().map(flashlane_base::Ppa).collect();
        let n = addrs.len();
        let op = [Op::Read, Op::Write, Op::Reset, Op::Copy, Op::Flush][op];
        let cell = if slc { CellMode::Slc } else { CellMode::Native };
        let flags = Flags { planes, cell, suspend: true, ..Flags::default() };
        let done = b.run(|cx, dev| async move {
            let filled = Filled::new(n, 8, 1);
            let (mut data, mut oob) = (vec![0u8; 8 * n], vec![[0u8; 16]; n]);
            let index: Vec<u32> = (0..n as u32).collect();
            let request = match op {
                Op::Write => filled.request(&addrs, false),
                Op::Read => Request::read(&addrs, Scatter::new(&mut data, &index, 8), &mut oob),
                _ => Request::plain(op, &addrs),
            };
            dev.io(&cx, request.with(flags)).await
        });
        prop_assert!(done.failed == 0 || done.status.len() == n.clamp(1, 64));
    }
}

/// The presets are what their sources say (D11): raw capacity and the golden dimensions.
#[test]
fn presets_have_the_capacity_of_their_sources() {
    let raw = |name: &str| {
        let spec = DeviceSpec::preset(name).unwrap();
        Bytes::new(spec.geometry().sectors() * 4096)
    };
    assert_eq!(raw("femu-32ch"), Bytes::from_gib(64), "QBLK Table I");
    assert_eq!(raw("parafs"), Bytes::from_gib(16), "ParaFS 4.1");
    assert_eq!(raw("peers-16g"), Bytes::from_gib(16), "as the simulators compared with");
    assert_eq!(raw("peers-64g"), Bytes::from_gib(64));
    let westlake = DeviceSpec::preset("westlake").unwrap().geometry();
    assert_eq!((westlake.pus(), westlake.sectors_per_chunk()), (128, 4096));
    assert_eq!(raw("westlake").get() >> 30, 2134, "2 TB");
    let modern = raw("tlc-modern").get() >> 30;
    assert!((1000..1025).contains(&modern), "{modern}");
    for name in DeviceSpec::preset_names() {
        let spec = DeviceSpec::preset(name).unwrap();
        assert_eq!(spec.name, name);
        assert!(!spec.source.is_empty(), "{name} names its source");
        let text = DeviceSpec::preset_text(name).unwrap();
        assert!(text.starts_with('#'), "{name} says what it is");
    }
}

/// A 2 TB device costs almost nothing until it is written.
#[test]
fn a_large_device_is_made_at_once() {
    let spec = DeviceSpec::preset("westlake").unwrap();
    let ssd = ssd(&spec, memory());
    assert_eq!(ssd.counters().store_bytes, 0);
    let b = Bench::new(ssd.clone());
    b.write_up_to(77, 1000, 16, 1);
    assert!(ssd.counters().store_bytes < 1 << 20);
}

/// Memory: at most 40 bytes per programmed sector with stamps, everything counted, flat over time.
#[test]
fn stamps_cost_less_than_forty_bytes_per_sector() {
    let spec = tiny(|s| s.geometry.chunks_per_pu = 64);
    let (b, ssd) = Bench::of(&spec, SsdOptions::default());
    let fill = || {
        for pu in 0..4 {
            for chunk in 0..64 {
                b.reset(pu, chunk);
                b.write(&[(pu, chunk, 0, 64)], 1);
            }
        }
        ssd.counters().store_bytes
    };
    let first = fill();
    let sectors = spec.geometry().sectors();
    assert!(first <= 40 * sectors, "{} bytes per sector", first / sectors);
    assert_eq!(fill(), first);
    assert_eq!(fill(), first);
}

/// Real threads: four cores write, read and erase their own chunks of shared dies and channels.
#[test]
fn real_threads_share_a_device() {
    let spec = tiny(|s| {
        s.timing.program = vec![Ns::from_us(20)];
        s.timing.erase = Ns::from_us(50);
        s.timing.read = vec![Ns::from_us(5)];
        s.geometry.mw_cunits = 0;
    });
    for queue in [
        flashlane_ocssd::DieQueue::Fifo,
        flashlane_ocssd::DieQueue::ReadFirst,
        flashlane_ocssd::DieQueue::Suspend,
    ] {
        let ssd = ssd(&spec, SsdOptions { queue: Some(queue), ..SsdOptions::default() });
        let dev: Arc<dyn Device> = ssd.clone();
        Threads::new(4, 7).run(move |cx| {
            let dev = dev.clone();
            async move {
                let chunk = cx.core().0;
                for round in 0..3u8 {
                    for row in 0..16 {
                        let at: Vec<_> = (0..4).map(|pu| (pu, chunk, row * 4, 4)).collect();
                        let at = addrs(&*dev, &at);
                        assert_eq!(write(&cx, &*dev, &at, round + 1).await.failed, 0);
                        let got = read(&cx, &*dev, &at, Flags::default()).await;
                        assert!((0..16).all(|i| got.holds(i, round + 1)));
                    }
                    let at: Vec<_> = (0..4).map(|pu| (pu, chunk, 0, 1)).collect();
                    let at = addrs(&*dev, &at);
                    assert_eq!(dev.io(&cx, Request::plain(Op::Reset, &at)).await.failed, 0);
                }
            }
        });
        let c = ssd.counters();
        assert_eq!((c.violations, c.programmed_total()), (0, 4 * 3 * 16 * 16));
    }
}
