//! The lnvm core: hard cases L01 to L12 of the facts sheet (8.2), as far as they do not need the
//! command line, targets on an image, and placement by the application (L4).

use crate::common::*;
use flashlane_ocssd::core::{Core, CoreError, Partition, Stream, StreamError};
use flashlane_ocssd::core::{Pus, TargetSpec};
use proptest::prelude::*;

fn device() -> Arc<Ssd> {
    let spec = tiny(|s| {
        s.geometry.channels = 4;
        s.geometry.pus_per_channel = 4;
        s.geometry.mw_cunits = 0;
    });
    ssd(&spec, memory())
}

fn raw(name: &str, begin: u32, end: u32) -> TargetSpec {
    TargetSpec::new(name, "raw", Pus::Any).on(begin, end)
}

/// L01: overlapping ranges: the second is refused and leaves nothing; adjacent ranges both work.
#[test]
fn l01_targets_do_not_overlap() {
    let core = Core::new(device());
    core.create(&raw("a", 4, 7)).unwrap();
    for (begin, end, pu) in [(7, 9, 7), (0, 4, 4), (5, 6, 5), (0, 15, 4)] {
        let refused = core.create(&raw("b", begin, end)).err();
        let owner = "a".to_string();
        assert_eq!(refused, Some(CoreError::Busy { pu, owner }));
    }
    assert!((0..4).all(|pu| core.owner("flash0", pu, 0).is_none()), "no bit is left set");
    core.create(&raw("b", 8, 9)).unwrap();
    core.create(&raw("c", 0, 3)).unwrap();
    let names: Vec<String> = core.list().into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(core.owner("flash0", 9, 0).as_deref(), Some("b"));
}

/// L02: a range with half of one channel and all of another: refused by pblk and QBLK, usable raw,
/// with its channels told as they are.
#[test]
fn l02_unbalanced_ranges() {
    let core = Core::new(device());
    let refused = core.create(&TargetSpec::new("x", "pblk", Pus::Balanced).on(2, 7)).err();
    let (begin, end, kind) = (2, 7, "pblk".to_string());
    assert_eq!(refused, Some(CoreError::Unbalanced { begin, end, kind }));
    let part = core.create(&raw("x", 2, 7)).unwrap();
    assert_eq!(part.channels(), [vec![0, 1], vec![2, 3, 4, 5]]);
    let geo = part.geometry();
    assert_eq!((geo.channels, geo.pus_per_channel, part.balanced()), (1, 6, false));
    // Half of each of two channels is balanced, and so is any part of one.
    core.remove("x").unwrap();
    let halves = core.create(&TargetSpec::new("h", "pblk", Pus::Balanced).on(2, 5)).unwrap();
    let geo = halves.geometry();
    assert_eq!((geo.channels, geo.pus_per_channel), (2, 2));
    let part = core.create(&TargetSpec::new("p", "qblk", Pus::Balanced).on(8, 10)).unwrap();
    assert_eq!((part.geometry().channels, part.geometry().pus_per_channel), (1, 3));
}

/// L03: names, types, ranges, over-provisioning.
#[test]
fn l03_what_create_refuses() {
    let core = Core::new(device());
    core.add_device("flash1", device()).unwrap();
    assert_eq!(core.add_device("flash1", device()), Err(CoreError::DeviceTaken("flash1".into())));
    core.create(&raw("one", 0, 0)).unwrap();
    let on = |spec: TargetSpec, device: &str| TargetSpec { device: Some(device.into()), ..spec };
    let refused = |spec: TargetSpec| core.create(&spec).err().unwrap();
    let taken = refused(on(raw("one", 5, 5), "flash1"));
    assert!(taken.to_string().contains("flash0"), "{taken}");
    assert!(matches!(refused(on(raw("x", 0, 0), "flash2")), CoreError::Device { .. }));
    for (begin, end) in [(5, 4), (0, 16), (16, 16)] {
        let last = 15;
        assert_eq!(refused(raw("x", begin, end)), CoreError::Range { begin, end, last });
    }
    for bad in ["", ".", "..", "a b", "x/y", "a\0", "a\n", "\u{7f}", &"n".repeat(32)] {
        assert_eq!(refused(raw(bad, 1, 1)), CoreError::Name(bad.into()));
    }
    for op in [2, 81] {
        let mut spec = raw("x", 1, 1);
        spec.over_provisioning = Some(op);
        assert_eq!(refused(spec), CoreError::OverProvisioning(op));
    }
    for op in [3, 80] {
        let mut spec = raw(&format!("op{op}"), op / 40 + 1, op / 40 + 1);
        spec.over_provisioning = Some(op);
        core.create(&spec).unwrap();
    }
}

/// L04: a target that does not start leaves its PUs, its name and nothing else.
#[test]
fn l04_a_failed_start_leaves_nothing() {
    let core = Core::new(device());
    let mut kept = None;
    let refused = core.create_with(&raw("a", 0, 3), |part| {
        kept = Some(part.clone());
        Err("no superblock")
    });
    let said = refused.err().unwrap().to_string();
    assert!(said.contains("no superblock"), "{said}");
    assert!(core.list().is_empty() && core.owner("flash0", 0, 0).is_none());
    core.create(&raw("a", 0, 15)).unwrap();
    // A handle that someone kept reaches nothing.
    let b = Bench::new(kept.unwrap());
    assert_eq!(b.write(&[(0, 0, 0, 4)], 1).status, vec![Status::InvalidField; 4]);
    assert_eq!(core.open("a").unwrap().chunk_report(0, 0, 1)[0].write_pointer, 0);
}

/// L05: the caller's list is as it was; commands land on the right PUs and nowhere else.
#[test]
fn l05_commands_reach_their_pus() {
    let ssd = device();
    let core = Core::new(ssd.clone());
    let part = core.create(&raw("mid", 6, 9)).unwrap();
    let b = Bench::new(part.clone());
    let list = b.at(&[(0, 3, 0, 4), (3, 3, 0, 4), (1, 4, 0, 8)]);
    assert_eq!(b.write_to(list.clone(), 7).failed, 0);
    let got = b.read_from(list);
    assert!((0..16).all(|i| got.holds(i, 7)));
    let wp = |pu, chunk| ssd.chunk_report(pu, chunk, 1)[0].write_pointer;
    assert_eq!([wp(6, 3), wp(9, 3), wp(7, 4), wp(8, 3)], [4, 4, 8, 0]);
    assert_eq!(b.info(1, 4).write_pointer, 8);
    assert!(part.chunk_report(4, 0, 1).is_empty(), "there is no fifth PU");
    // An address past the target's PUs is a hole, even though the device has such a PU.
    let other = ssd.format().pack(Location { pu: 12, chunk: 0, sector: 0 });
    assert_eq!(b.plain(Op::Reset, vec![other], Flags::default()).status(0), Status::InvalidReset);
    assert_eq!(part.in_flight(), 0);
    assert_eq!(b.reset(0, 3), Status::Ok);
    assert_eq!(wp(6, 3), 0);
}

proptest! {
    /// L05: translation and its reverse are inverse for random ranges, and nothing outside the
    /// range comes back.
    #[test]
    fn l05_translation_is_its_own_inverse(
        begin in 0u32..16, len in 1u32..16, pu in 0u32..16, chunk in 0u32..16, sector in 0u32..64,
        first in 0u32..16, chunks in 1u32..17, v12 in any::<bool>(),
    ) {
        let end = (begin + len - 1).min(15);
        let spec = tiny(|s| {
            s.geometry.channels = 4;
            s.geometry.pus_per_channel = 4;
            if v12 { s.ppa = flashlane_base::PpaStyle::V12; }
        });
        let ssd: Arc<dyn Device> = ssd(&spec, SsdOptions::default());
        let last = (first + chunks - 1).min(15);
        let part = Partition::of_chunks(ssd.clone(), (begin, end), (first, last));
        prop_assert_eq!((part.range(), part.chunks()), ((begin, end), (first, last)));
        let there = ssd.format().pack(Location { pu, chunk, sector });
        match part.translate_back(there) {
            None => prop_assert!(pu < begin || pu > end || chunk < first || chunk > last),
            Some(here) => {
                prop_assert_eq!(part.translate(here), there);
                let at = part.format().unpack(here).unwrap();
                prop_assert_eq!(at, Location { pu: pu - begin, chunk: chunk - first, sector });
            }
        }
    }
}

/// Two targets on the same PUs, each with its own chunks: what one writes, reports and erases is its own.
#[test]
fn targets_share_pus_and_no_chunk() {
    let core = Core::new(device());
    let low = core.create(&raw("low", 2, 5).on_chunks(0, 5)).unwrap();
    let refused = core.create(&raw("x", 5, 7).on_chunks(5, 9)).err();
    assert_eq!(refused, Some(CoreError::Busy { pu: 5, owner: "low".into() }));
    for (begin, end) in [(9, 8), (0, 16)] {
        let refused = core.create(&raw("x", 0, 1).on_chunks(begin, end)).err();
        assert_eq!(refused, Some(CoreError::Chunks { begin, end, last: 15 }));
    }
    let whole = TargetSpec::new("x", "pftl", Pus::Whole).on_chunks(6, 15);
    assert!(matches!(Core::new(device()).create(&whole), Err(CoreError::Whole { .. })));
    let high = core.create(&raw("high", 2, 5).on_chunks(6, 15)).unwrap();
    assert_eq!((low.geometry().chunks_per_pu, high.geometry().chunks_per_pu), (6, 10));
    let owner = |chunk| core.owner("flash0", 5, chunk);
    assert_eq!((owner(5).as_deref(), owner(6).as_deref()), (Some("low"), Some("high")));
    let all = core.create(&raw("all", 8, 8).on_chunks(0, 15)).map(|part| part.chunks());
    assert!(all == Ok((0, 15)) && core.list()[2].chunks.is_none(), "which is no range");
    let (low, high) = (Bench::new(low), Bench::new(high));
    low.write_up_to(3, 5, 64, 1);
    high.write_up_to(3, 0, 64, 2);
    assert!(low.read(&[(3, 5, 0, 1)]).holds(0, 1) && high.read(&[(3, 0, 0, 1)]).holds(0, 2));
    // A vector over several of its chunks.
    high.write_up_to(3, 9, 64, 3);
    let both = high.read(&[(3, 0, 8, 1), (3, 9, 8, 1), (3, 0, 9, 1)]);
    assert!(both.holds(0, 2) && both.holds(1, 3) && both.holds(2, 2));
    let states = |b: &Bench| -> Vec<ChunkState> {
        b.dev.chunk_report(3, 0, u32::MAX).iter().map(|c| c.state).collect()
    };
    let used = |n: usize, at: &[usize]| -> Vec<ChunkState> {
        let state = |c| if at.contains(&c) { ChunkState::Closed } else { ChunkState::Free };
        (0..n).map(state).collect()
    };
    assert_eq!((states(&low), states(&high)), (used(6, &[5]), used(10, &[0, 9])));
    assert_eq!(high.dev.chunk_report(3, 8, 9).len(), 2);
    assert_eq!(high.reset(3, 0), Status::Ok);
    assert_eq!((states(&low), states(&high)), (used(6, &[5]), used(10, &[9])));
}

/// L06: removal with commands under way is refused; an unknown name is told; afterwards the PUs
/// are free and old handles are dead.
#[test]
fn l06_removal() {
    let core = Arc::new(Core::new(device()));
    let part = core.create(&raw("a", 0, 3)).unwrap();
    assert_eq!(core.remove("b"), Err(CoreError::NoTarget("b".into())));
    let b = Bench::new(part.clone());
    let (at, lnvm) = (b.at(&[(0, 0, 0, 4)]), core.clone());
    b.run(|cx, dev| async move {
        let filled = Filled::new(4, 4096, 1);
        let ticket = dev.submit(&cx, filled.request(&at, false));
        let refused = lnvm.remove("a").unwrap_err();
        let name = "a".to_string();
        assert_eq!(refused, CoreError::InFlight { name, commands: 1 });
        dev.wait(&cx, ticket).await;
        assert_eq!(lnvm.remove("a").unwrap().end, 3);
    });
    assert_eq!(b.read(&[(0, 0, 0, 1)]).done.status, [Status::InvalidField]);
    assert!(core.open("a").is_err());
    core.create(&raw("b", 0, 15)).unwrap();
}

/// L07, as far as it is the core's: what is on the medium survives the target, and the flag that
/// asks to ignore it reaches the target's start.
#[test]
fn l07_content_survives_the_target() {
    let core = Core::new(device());
    let b = Bench::new(core.create(&raw("a", 4, 7)).unwrap());
    b.write_up_to(2, 1, 64, 5);
    core.remove("a").unwrap();
    let again = TargetSpec { factory: true, ..raw("again", 4, 7) };
    let b = Bench::new(core.create(&again).unwrap());
    assert!(b.read(&[(2, 1, 0, 1)]).holds(0, 5));
    assert!(core.list()[0].factory);
}

/// L08 and L09: marks fold into the report through a target; a long report joins at any piece.
#[test]
fn l08_l09_the_report_of_a_target() {
    let ssd = device();
    let core = Core::new(ssd.clone());
    let part = core.create(&raw("a", 5, 6)).unwrap();
    let bad = ssd.format().pack(Location { pu: 6, chunk: 2, sector: 0 });
    ssd.set_bad_blocks(&[bad], 8);
    let all = part.chunk_report(1, 0, 16);
    assert_eq!(all[2].state, ChunkState::Offline);
    assert_eq!(all.iter().filter(|c| c.state == ChunkState::Offline).count(), 1);
    for piece in [1, 3, 5, 16, 100] {
        let mut joined = Vec::new();
        let mut first = 0;
        while first < 16 {
            joined.extend(part.chunk_report(1, first, piece));
            first += piece;
        }
        assert_eq!(joined, all, "pieces of {piece}");
    }
    assert!(part.chunk_report(1, 16, 1).is_empty() && part.chunk_report(1, 0, 0).is_empty());
}

/// L10 and L11: identify gives the fields of either version, derived values as Linux derives them.
#[test]
fn l10_l11_identify() {
    let spec = DeviceSpec::preset("westlake").unwrap();
    let id = Ssd::new(&spec, SsdOptions::default()).unwrap().identify();
    let names: Vec<&str> = id.format.iter().map(|f| f.0).collect();
    assert_eq!(names, ["sector", "plane", "page", "block", "pu", "channel"]);
    assert_eq!((id.page_bytes, id.sector_bytes, id.oob_bytes), (16384, 4096, 16));
    assert_eq!(id.geometry.mw_cunits, 8 * id.geometry.ws_min);
    assert_eq!((id.plane_modes.as_slice(), id.vector_max), ([1, 2, 4].as_slice(), 64));
    assert_eq!(id.flash_media_type, "mlc");
    assert!(id.page_pairs.is_empty());
    let spec = DeviceSpec::preset("femu-32ch").unwrap();
    let id = Ssd::new(&spec, SsdOptions::default()).unwrap().identify();
    assert_eq!((id.read, id.erase.0), ((Ns::from_us(56), Ns::from_us(64)), Ns::from_ms(5)));
    assert_eq!(id.page_pairs.len(), 252, "all upper pages of the profile");
    let spec = DeviceSpec::preset("tlc-modern").unwrap();
    let id = Ssd::new(&spec, SsdOptions::default()).unwrap().identify();
    let names: Vec<&str> = id.format.iter().map(|f| f.0).collect();
    assert_eq!(names, ["sector", "chunk", "pu", "group"]);
    assert!(id.slc_mode && !id.suspend);
}

/// L12: a target without a range has the whole device, at no cost in translation.
#[test]
fn l12_defaults_mean_the_whole_device() {
    let ssd = device();
    let core = Core::new(ssd.clone());
    let part = core.create(&TargetSpec::new("all", "pblk", Pus::Balanced)).unwrap();
    assert_eq!(part.geometry(), ssd.geometry());
    assert_eq!(part.translate(Ppa(12345)), Ppa(12345));
    let info = &core.list()[0];
    assert_eq!((info.begin, info.end, info.over_provisioning), (0, 15, None));
}

fn payload(units: usize) -> (Vec<u8>, Vec<u32>, Vec<[u8; 16]>, Vec<Cause>) {
    let n = units * 4;
    (vec![3; 4096], vec![0; n], vec![[3; 16]; n], vec![Cause::User; n])
}

/// L4: streams keep to their PUs, whatever fails, and say where everything is.
#[test]
fn streams_keep_to_their_pus() {
    let spec = tiny(|s| {
        s.geometry.channels = 4;
        s.geometry.mw_cunits = 0;
    });
    let plan = "[[fault]]\nkind = \"early_close\"\nat = \"pu 2\"\ncount = 3\n\
                [[fault]]\nkind = \"write_next_unit\"\nat = \"pu 3\"\ncount = 2";
    let ssd = ssd(&spec, failing(plan));
    let core = Core::new(ssd.clone());
    let part = core.create(&TargetSpec::new("raw", "raw", Pus::Any)).unwrap();
    let b = Bench::new(part);
    b.write_up_to(0, 0, 4, 9); // not free: left alone
    b.run(|cx, dev| async move {
        let mut log = Stream::on_channel(dev.clone(), 1).unwrap(); // PUs 2 and 3
        let mut data = Stream::on_pus(dev.clone(), &[0, 5]).unwrap();
        let (base, index, oob, cause) = payload(4);
        let content = Gather::new(&base, &index, 4096);
        for _ in 0..20 {
            for (stream, pus) in [(&mut log, [2, 3]), (&mut data, [0, 5])] {
                let places = stream.append(&cx, content, &oob, &cause).await.unwrap();
                for at in places {
                    let at = dev.format().unpack(at).unwrap();
                    assert!(pus.contains(&at.pu), "{at}");
                    assert!(at.pu != 0 || at.chunk != 0);
                    let ppa = [dev.format().pack(at)];
                    let got = read(&cx, &*dev, &ppa, Flags::default()).await;
                    assert!(got.holds(0, 3), "{at}");
                }
            }
        }
        assert_eq!(data.erase(&cx, 5, 99).await, Status::InvalidAddress);
    });
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
    assert!((0..4).all(|pu| {
        ssd.chunk_report([1, 4, 6, 7][pu], 0, 16)
            .iter()
            .all(|c| c.erases == 0 && c.write_pointer == 0)
    }));
}

/// L4: a full stream says so, and goes on with what is given back.
#[test]
fn a_full_stream_takes_back_erased_chunks() {
    let (b, _) = Bench::of(&tiny(|s| s.geometry.chunks_per_pu = 2), memory());
    b.run(|cx, dev| async move {
        let refused = |pus: &[u32]| Stream::on_pus(dev.clone(), pus).err();
        assert_eq!(refused(&[1, 1]), Some(StreamError::Pu(1)));
        assert_eq!(refused(&[4]), Some(StreamError::Pu(4)));
        let mut s = Stream::on_pus(dev.clone(), &[1]).unwrap();
        let (base, index, oob, cause) = payload(1);
        let content = Gather::new(&base, &index, 4096);
        for _ in 0..32 {
            s.append(&cx, content, &oob, &cause).await.unwrap();
        }
        let full = s.append(&cx, content, &oob, &cause).await;
        assert_eq!(full, Err(StreamError::Full { pus: 1 }));
        assert_eq!(s.erase(&cx, 1, 0).await, Status::Ok);
        s.append(&cx, content, &oob, &cause).await.unwrap();
        let short = content.with(&index[..3]);
        assert_eq!(s.append(&cx, short, &oob, &cause).await, Err(StreamError::Length(3)));
    });
}

mod on_an_image {
    use super::*;
    use flashlane_ocssd::TargetState;
    use flashlane_ocssd::core::TableError;

    fn image() -> Arc<MemoryFile> {
        image_of(&tiny(|_| ()))
    }

    fn open(file: &Arc<MemoryFile>) -> (Arc<Ssd>, Core) {
        let ssd = open_on(file.clone());
        let core = Core::on_image(ssd.clone()).unwrap();
        (ssd, core)
    }

    /// Dropped without a close, as a killed process leaves it: what a call returned from is there.
    #[test]
    fn every_step_of_a_create_is_there_after_a_kill() {
        let file = image();
        let settings = serde_json::json!({ "limiter": "off" });
        let uuid = [7; 16];
        open(&file).1.begin(&raw("a", 0, 1)).unwrap();
        {
            let (_, core) = open(&file);
            let list = core.list();
            assert_eq!((list.len(), list[0].state), (1, TargetState::BeingCreated));
            assert_eq!(core.owner("flash0", 1, 0).as_deref(), Some("a"));
            assert!(matches!(core.begin(&raw("b", 1, 2)), Err(CoreError::Busy { .. })));
            // Made again, elsewhere: what was left of the first try is gone.
            core.begin(&raw("a", 2, 3)).unwrap();
            assert!(matches!(core.begin(&raw("a", 2, 3)), Err(CoreError::Taken { .. })));
            core.complete("a", Some(uuid), settings.clone()).unwrap();
        }
        {
            let (_, core) = open(&file);
            let list = core.list();
            assert_eq!((list.len(), list[0].state), (1, TargetState::Ready));
            assert_eq!((list[0].begin, list[0].end, list[0].uuid), (2, 3, Some(uuid)));
            assert_eq!(list[0].settings, settings);
            assert!(core.open("a").is_ok());
            core.create(&raw("b", 0, 0)).unwrap();
            core.remove("a").unwrap();
        }
        let (_, core) = open(&file);
        assert_eq!(core.list().iter().map(|t| &*t.name).collect::<Vec<_>>(), ["b"]);
        let failed = core.create_with(&raw("c", 1, 1), |_| Err("no"));
        assert!(matches!(failed, Err(CoreError::Init { .. })));
        drop(core);
        assert_eq!(open(&file).1.list().len(), 1);
    }

    #[test]
    fn what_can_t_be_written_has_not_happened() {
        let file = image();
        open(&file).1.create(&raw("a", 0, 1)).unwrap();
        let how = OpenImage { read_only: true, ..OpenImage::default() };
        let core = Core::on_image(Ssd::open_on(file.clone(), &how).unwrap()).unwrap();
        assert!(matches!(core.remove("a"), Err(CoreError::Save { .. })));
        assert!(matches!(core.create(&raw("b", 2, 3)), Err(CoreError::Save { .. })));
        assert_eq!(core.list().len(), 1);
        assert!(core.open("a").is_ok());
    }

    #[test]
    fn a_table_that_is_none_is_refused() {
        let file = image();
        let (ssd, _) = open(&file);
        ssd.set_targets(b"something else").unwrap();
        let damaged = CoreError::Table(TableError::Damaged);
        assert_eq!(Core::on_image(ssd).map(|_| ()), Err(damaged));
    }

    #[test]
    fn a_block_ssd_takes_the_whole_device() {
        let (_, core) = open(&image());
        let part = TargetSpec::new("s", "pftl", Pus::Whole).on(0, 1);
        assert!(matches!(core.create(&part), Err(CoreError::Whole { .. })));
        core.create(&TargetSpec::new("s", "pftl", Pus::Whole)).unwrap();
    }
}
