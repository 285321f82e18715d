//! SLC mode: a write unit, erases, wear and counters of its own, and what of it outlives the process.

use crate::common::*;
use flashlane_ocssd::image::Header;
use flashlane_ocssd::link::LinkedDevice;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_ocssd::wrap::{ScriptedDevice, TracingDevice};
use flashlane_ocssd::{Core, Pus, SlcCount, TargetSpec};

/// Two planes of two sectors a page and three bits per cell: 16 rows of 4 sectors, in SLC mode 5, which may be
/// written a plane at a time. 5 us on the bus per page, SLC programs take 200 us.
fn two_modes(change: impl FnOnce(&mut DeviceSpec)) -> DeviceSpec {
    tiny(|s| {
        (s.timing.channel_bandwidth, s.timing.page_transfer) = (None, Some(Ns::from_us(5)));
        (s.geometry.mw_cunits, s.cells.bits) = (0, 3);
        let slc = s.cells.slc.as_mut().expect("it has the mode");
        (slc.ws_min, slc.rated_erases) = (Some(2), 30_000);
        change(s);
    })
}

/// A code without errors: it has every program looked at twice.
fn ecc() -> EccSpec {
    EccSpec {
        codeword_bytes: 1024,
        correctable_bits: 40,
        high_bits: 20,
        rber_fresh: 0,
        rber_worn: 0,
        rber_per_day: 0,
        rber_per_1000_reads: 0,
        retries: 0,
        retry_gain: 2,
        program_fail_ppm: 0,
        erase_fail_ppm: 0,
    }
}

fn reset_to(b: &Bench, pu: u32, chunk: u32, mode: CellMode) -> Status {
    let flags = Flags { cell: mode, ..Flags::DEFAULT };
    b.plain(Op::Reset, b.at(&[(pu, chunk, 0, 1)]), flags).status(0)
}

/// Erases a chunk so often with data of each mode in it, and leaves it in one.
fn wear(b: &Bench, native: u32, slc: u32, leave: CellMode) {
    let last = if slc > 0 { CellMode::Slc } else { leave };
    for n in 1..=native {
        assert_eq!(reset_to(b, 0, 0, if n < native { CellMode::Native } else { last }), Status::Ok);
    }
    for n in 1..=slc {
        assert_eq!(reset_to(b, 0, 0, if n < slc { CellMode::Slc } else { leave }), Status::Ok);
    }
    let info = b.info(0, 0);
    assert_eq!((info.erases, info.slc_erases, info.cell), (native + slc, slc, leave));
}

/// Whole, aligned units of the mode that the chunk is in; a vector may carry several, and the whole ones in front
/// of a half one are written.
#[test]
fn a_half_slc_unit_is_refused() {
    let (b, ssd) = Bench::of(&two_modes(|_| {}), memory());
    assert_eq!(reset_to(&b, 0, 0, CellMode::Slc), Status::Ok);
    for (sector, n) in [(0, 1), (1, 2), (0, 1)] {
        let done = b.write(&[(0, 0, sector, n)], 1);
        assert!(done.status.iter().all(|s| *s == Status::InvalidField), "{done:?}");
        assert_eq!(b.info(0, 0).write_pointer, 0);
    }
    assert_eq!(b.write(&[(0, 0, 0, 2)], 1).failed, 0);
    assert!(b.read(&[(0, 0, 0, 2)]).holds(1, 1), "readable at once");
    let done = b.write(&[(0, 0, 2, 7)], 2);
    assert_eq!((done.failed, done.status(6)), (1 << 6, Status::InvalidField));
    assert_eq!(b.info(0, 0).write_pointer, 8);
    // 20 sectors: its last unit is a whole one.
    assert_eq!(b.write(&[(0, 0, 8, 12)], 3).failed, 0);
    assert_eq!((b.info(0, 0).state, b.info(0, 0).length), (ChunkState::Closed, 20));
    assert!(ssd.violations().iter().all(|v| v.rule == Rule::WriteUnit));
    // In the native mode, and without a unit of its own, it is the native one.
    let done = b.write(&[(0, 1, 0, 2)], 1);
    assert!(done.status.iter().all(|s| *s == Status::InvalidField), "{done:?}");
    let one_unit = two_modes(|s| s.cells.slc.as_mut().expect("it has the mode").ws_min = None);
    let b = Bench::new(crate::common::ssd(&one_unit, memory()));
    assert_eq!(reset_to(&b, 0, 0, CellMode::Slc), Status::Ok);
    assert_eq!(b.write(&[(0, 0, 0, 2)], 1).failed, 0b11);
    assert_eq!(b.write(&[(0, 0, 0, 4)], 1).failed, 0);
}

/// A page of one plane takes its transfer and its program; a row in one command takes two transfers and one
/// program, on devices too on which each unit is looked at by itself.
#[test]
fn a_row_in_one_command_is_one_program() {
    let plain = || Bench::new(ssd(&two_modes(|_| {}), memory()));
    let fragile = || Bench::new(ssd(&two_modes(|s| s.ecc = Some(ecc())), memory()));
    let in_image = || Bench::on(image_of(&two_modes(|_| {}))).0;
    let buffered = |s: &mut DeviceSpec| s.limits.write_buffer = Some(Bytes::new(1 << 20));
    let behind = || Bench::new(ssd(&two_modes(buffered), memory()));
    let fragile_behind = || {
        let spec = two_modes(|s| {
            buffered(s);
            s.ecc = Some(ecc());
        });
        Bench::new(ssd(&spec, memory()))
    };
    let benches: [&dyn Fn() -> Bench; 5] = [&plain, &fragile, &in_image, &behind, &fragile_behind];
    for (kind, bench) in (0..).zip(benches) {
        let b = bench();
        assert_eq!(reset_to(&b, 0, 0, CellMode::Slc), Status::Ok);
        let took = |writes: &[(u32, u32)]| {
            let from = b.now();
            for (sector, n) in writes {
                assert_eq!(b.write(&[(0, 0, *sector, *n)], 1).failed, 0);
                b.flush();
            }
            (b.now() - from).as_ns() / 1000
        };
        assert_eq!(took(&[(0, 2)]), 5 + 200, "{kind}: one plane");
        assert_eq!(took(&[(2, 2)]), 5 + 200, "{kind}: the other plane of that row");
        assert_eq!(took(&[(4, 4)]), 2 * 5 + 200, "{kind}: both at once");
        assert_eq!(took(&[(8, 2), (10, 2)]), 2 * (5 + 200), "{kind}: both, one by one");
        // The rest of a row, and the row behind it.
        assert_eq!(took(&[(12, 2), (14, 6)]), 5 + 200 + (5 + 200) + (2 * 5 + 200), "{kind}");
        assert!(b.read(&[(0, 0, 0, 20)]).holds(19, 1));
    }
}

/// A unit of the native mode that is smaller than a row is no other case.
#[test]
fn a_native_row_in_one_command_is_one_program() {
    let of_one_plane = |s: &mut DeviceSpec| s.geometry.ws_min = 2;
    let plain = two_modes(of_one_plane);
    let fragile = two_modes(|s| {
        of_one_plane(s);
        s.ecc = Some(ecc());
    });
    for spec in [plain, fragile] {
        let b = Bench::new(ssd(&spec, memory()));
        assert_eq!(b.write(&[(0, 0, 0, 8)], 1).failed, 0);
        assert_eq!(b.now().as_ns() / 1000, 2 * (2 * 5 + 500));
    }
}

/// A program that fails among others of its row takes the time of one of its own, and nothing else along.
#[test]
fn a_failed_unit_is_programmed_by_itself() {
    let plan = "[[fault]]\nkind = \"write_next_unit\"\nat = \"pu 0 chunk 0 sector 6\"";
    let (b, ssd) = Bench::of(&two_modes(|_| {}), failing(plan));
    assert_eq!(reset_to(&b, 0, 0, CellMode::Slc), Status::Ok);
    let from = b.now();
    let done = b.write(&[(0, 0, 0, 12)], 4);
    assert_eq!((done.failed, done.status(6)), (0b11 << 6, Status::WriteNextUnit));
    // Row 0, the first plane of row 1, the second one, row 2.
    assert_eq!((b.now() - from).as_ns() / 1000, 6 * 5 + 4 * 200);
    let got = b.read(&[(0, 0, 0, 12)]);
    assert!((0..12).all(|i| got.holds(i, 4) != (6..8).contains(&i)));
    let count = ssd.counters();
    assert_eq!(
        (count.slc, count.programmed_total()),
        (Some(SlcCount { programmed_sectors: 12, erases: 0 }), 12)
    );
}

/// What a cut tears is a unit of the mode: the page of the other plane of its row stays.
#[test]
fn a_cut_tears_one_slc_unit() {
    let (b, ssd) = Bench::of(&two_modes(|_| {}), memory());
    assert_eq!(reset_to(&b, 0, 0, CellMode::Slc), Status::Ok);
    assert_eq!(b.write(&[(0, 0, 0, 2)], 1).failed, 0);
    let (at, late, device) = (b.at(&[(0, 0, 2, 2)]), b.at(&[(0, 0, 4, 2)]), ssd.clone());
    let cut = b.run(|cx, dev| async move {
        let filled = Filled::new(2, 4096, 5);
        let _ = dev.submit(&cx, filled.request(&at, false));
        let _ = dev.submit(&cx, filled.request(&late, false));
        cx.sleep(Ns::from_us(100)).await;
        device.power_cut(cx.now(), PowerOn::ClockGoesOn)
    });
    assert_eq!((cut.torn_programs, cut.lost_programs), (1, 1));
    assert_eq!(b.info(0, 0).write_pointer, 4);
    let got = b.read(&[(0, 0, 0, 4)]);
    assert!(got.holds(0, 1) && got.holds(1, 1));
    assert!((2..4).all(|i| got.done.status(i) == Status::Uncorrectable));
    assert_eq!(b.write(&[(0, 0, 4, 2)], 6).failed, 0, "it goes on");
}

/// A copy into a chunk in SLC mode has its unit, too.
#[test]
fn a_copy_has_the_unit_of_its_destination() {
    let (b, _) = Bench::of(&two_modes(|_| {}), memory());
    b.write_up_to(1, 3, 8, 7);
    assert_eq!(reset_to(&b, 0, 0, CellMode::Slc), Status::Ok);
    let pairs = |from: Vec<Ppa>, to: Vec<Ppa>| -> Vec<Ppa> {
        std::iter::zip(from, to).flat_map(|(from, to)| [from, to]).collect()
    };
    let into_slc = pairs(b.at(&[(1, 3, 1, 6)]), b.at(&[(0, 0, 0, 6)]));
    assert_eq!(b.plain(Op::Copy, into_slc, Flags::DEFAULT).failed, 0);
    assert!((0..6).all(|i| b.read(&[(0, 0, 0, 6)]).holds(i, 7)));
    let back = pairs(b.at(&[(0, 0, 0, 6)]), b.at(&[(2, 0, 0, 6)]));
    assert_eq!(b.plain(Op::Copy, back, Flags::DEFAULT).failed, 0b1010 << 8, "half a native unit");
    assert_eq!(b.info(2, 0).write_pointer, 4);
}

/// What there is of it is among the promises of the device, behind whatever stands in front of it.
#[test]
fn the_mode_is_among_the_traits() {
    let told = |dev: &dyn Device| dev.traits().slc;
    let spec = two_modes(|_| {});
    let mode = Some(SlcMode { chunk_sectors: 20, ws_min: 2, ws_opt: 4 });
    let ssd = ssd(&spec, memory());
    assert_eq!(told(&*ssd), mode);
    let link = LinkSpec {
        to_device: Bytes::new(0),
        to_host: Bytes::new(0),
        command: Ns::ZERO,
        queue_depth: 0,
    };
    assert_eq!(told(&LinkedDevice::new(ssd.clone(), &link)), mode);
    let traced = Arc::new(TracingDevice::new(ssd.clone()));
    assert_eq!(told(&*traced), mode);
    let scripted = Arc::new(ScriptedDevice::new(traced));
    assert_eq!(told(&*scripted), mode);
    let part = Core::new(scripted).create(&TargetSpec::new("t", "raw", Pus::Any).on(1, 2)).unwrap();
    assert_eq!(told(&*part), mode);
    let without = crate::common::ssd(&tiny(|s| s.cells.slc = None), memory());
    assert_eq!((told(&*without), without.counters().slc), (None, None));
    let board = DeviceSpec::preset("slc-tlc").unwrap();
    let mode = SlcMode { chunk_sectors: 1024, ws_min: 4, ws_opt: 8 };
    assert_eq!(board.slc_mode(), Some(mode));
}

/// A unit that the mode can't have is refused with the key.
#[test]
fn a_wrong_unit_is_refused_with_its_key() {
    let text = DeviceSpec::preset_text("slc-tlc").unwrap();
    for unit in ["0", "2", "6", "12", "16"] {
        let wrong = text.replace("ws_min = 4 }", &format!("ws_min = {unit} }}"));
        assert_ne!(wrong, text);
        let said = DeviceSpec::from_toml(&wrong).expect_err(unit).to_string();
        let says = "whole pages (4 sectors) and divide a row of all planes (8 sectors)";
        assert!(said.contains("`cells.slc.ws_min`") && said.contains(says), "{unit}: {said}");
    }
    for unit in ["4", "8"] {
        let right = text.replace("ws_min = 4 }", &format!("ws_min = {unit} }}"));
        assert!(DeviceSpec::from_toml(&right).is_ok(), "{unit}");
    }
}

/// An erase counts for the mode of what it takes out: the first one into SLC mode is a native one, the first one
/// out of it is not. One that fails, that a cut takes back, or that the medium does not need, wears nothing.
#[test]
fn an_erase_counts_for_the_mode_that_it_ends() {
    let (b, ssd) = Bench::of(&two_modes(|_| {}), memory());
    let counts = || (b.info(0, 0).erases, b.info(0, 0).slc_erases);
    let mut seen = Vec::new();
    for mode in [CellMode::Slc, CellMode::Slc, CellMode::Native, CellMode::Native, CellMode::Slc] {
        assert_eq!(reset_to(&b, 0, 0, mode), Status::Ok);
        seen.push(counts());
    }
    assert_eq!(seen, [(1, 0), (2, 1), (3, 2), (4, 2), (5, 2)]);
    assert_eq!(ssd.counters().erases, 5);
    assert_eq!(ssd.counters().slc, Some(SlcCount { programmed_sectors: 0, erases: 2 }));
    // The erase waits for a program when the power goes.
    let (at, chunk, device) = (b.at(&[(0, 0, 0, 2)]), b.at(&[(0, 0, 0, 1)]), ssd.clone());
    b.run(|cx, dev| async move {
        let _ = dev.submit(&cx, Filled::new(2, 4096, 5).request(&at, false));
        let _ = dev.submit(&cx, Request::plain(Op::Reset, &chunk));
        device.power_cut(cx.now() + Ns::from_us(50), PowerOn::ClockGoesOn);
    });
    assert_eq!(counts(), (5, 2));
    assert_eq!(b.info(0, 0).cell, CellMode::Slc);
    let needless = two_modes(|s| s.limits.erase_ignored = true);
    let (b, ssd) = Bench::of(&needless, memory());
    for mode in [CellMode::Slc, CellMode::Slc, CellMode::Native] {
        assert_eq!(reset_to(&b, 0, 0, mode), Status::Ok);
    }
    assert_eq!((b.info(0, 0).erases, b.info(0, 0).slc_erases), (0, 0));
    assert_eq!(ssd.counters().slc, Some(SlcCount::default()));
}

/// Shares of both modes add up to the life that is used, for the wear index and for programs and erases that fail,
/// whichever mode the chunk is in.
#[test]
fn wear_adds_up_over_both_modes() {
    let rated = |s: &mut DeviceSpec| {
        s.cells.rated_erases = 100;
        s.cells.slc.as_mut().expect("it has the mode").rated_erases = 1000;
    };
    let failing = |program: u32, erase: u32| {
        let spec = two_modes(|s| {
            rated(s);
            s.ecc = Some(EccSpec { program_fail_ppm: program, erase_fail_ppm: erase, ..ecc() });
        });
        Bench::of(&spec, memory())
    };
    for leave in [CellMode::Native, CellMode::Slc] {
        let index = |native, slc| {
            let b = Bench::new(ssd(&two_modes(rated), memory()));
            wear(&b, native, slc, leave);
            b.info(0, 0).wear_index
        };
        let parts = [(20, 0), (50, 200), (50, 499), (50, 500), (1, 2000)];
        assert_eq!(parts.map(|(n, s)| index(n, s)), [51, 178, 254, 255, 255], "{leave:?}");
        for (slc, status) in [(499, Status::Ok), (500, Status::ChunkEarlyClose)] {
            let (b, _) = failing(1_000_000, 0);
            wear(&b, 50, slc, leave);
            assert_eq!(b.write(&[(0, 0, 0, 4)], 1).status(0), status, "{leave:?}, {slc}");
        }
        for (slc, status) in [(499, Status::Ok), (500, Status::OfflineChunk)] {
            let (b, ssd) = failing(0, 1_000_000);
            wear(&b, 50, slc, leave);
            assert_eq!(b.reset(0, 0), status, "{leave:?}, {slc}");
            assert_eq!(ssd.counters().erases, 51 + slc as u64);
        }
    }
}

/// A mode's erases, and the counters of both, are kept by an image and by bytes that a device is put out as.
#[test]
fn both_modes_are_kept() {
    let file = image_of(&two_modes(|_| {}));
    let spec = two_modes(|_| {});
    let play = |b: &Bench| {
        for chunk in 0..3 {
            assert_eq!(reset_to(b, 1, chunk, CellMode::Slc), Status::Ok);
            assert_eq!(reset_to(b, 1, chunk, CellMode::Slc), Status::Ok);
        }
        assert_eq!(b.reset(1, 2), Status::Ok);
        assert_eq!(b.write(&[(1, 0, 0, 6), (1, 1, 0, 2), (1, 2, 0, 8), (3, 0, 0, 4)], 9).failed, 0);
        assert_eq!(reset_to(b, 3, 0, CellMode::Slc), Status::Ok);
        assert_eq!(b.write(&[(3, 0, 0, 2)], 9).failed, 0);
    };
    let state = |ssd: &Ssd| {
        let report: Vec<_> = (0..4).flat_map(|pu| ssd.chunk_report(pu, 0, 16)).collect();
        (report, ssd.counters().slc, ssd.counters().programmed, ssd.counters().erases)
    };
    let (b, ssd) = Bench::on(file.clone());
    play(&b);
    let as_it_was = state(&ssd);
    assert_eq!(as_it_was.1, Some(SlcCount { programmed_sectors: 10, erases: 4 }));
    assert_eq!((as_it_was.2[0], as_it_was.3), (22, 8));
    assert_eq!(b.flush(), Status::Ok);
    drop((b, ssd));
    assert_eq!(state(&open_on(file)), as_it_was);
    let (b, ssd) = Bench::of(&spec, memory());
    play(&b);
    let mut bytes = Vec::new();
    ssd.save(b.now(), &mut bytes).expect("it can be saved");
    let again = Ssd::load(&spec, memory(), &mut &bytes[..]).expect("its own bytes");
    assert_eq!(state(&again), state(&ssd));
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    ssd.save(b.now(), &mut once).expect("it can be saved");
    again.save(Ns::ZERO, &mut twice).expect("it can be saved");
    assert!(once == twice);
}

/// An image of 2.1 keeps neither: all erases of a chunk count for the mode that it is in, as 2.1 counted them, and the
/// counters begin again with each use. An upgrade changes nothing of that, and keeps what comes then.
#[test]
fn an_image_of_2_1_counts_all_erases_for_the_present_mode() {
    let file = image_of(&two_modes(|_| {}));
    let older = Header { version: (2, 1), ..Header::read(&*file).unwrap() };
    file.write_at(0, &older.to_bytes().unwrap()).unwrap();
    let erases = |ssd: &Ssd| {
        let of = |chunk| ssd.chunk_report(0, chunk, 1)[0];
        [0, 1].map(|chunk| (of(chunk).erases, of(chunk).slc_erases, of(chunk).wear_index))
    };
    let (b, ssd) = Bench::on(file.clone());
    for n in 0..400 {
        let mode = if n < 299 { CellMode::Native } else { CellMode::Slc };
        assert_eq!(reset_to(&b, 0, 0, mode), Status::Ok);
    }
    assert_eq!(reset_to(&b, 0, 1, CellMode::Slc), Status::Ok);
    assert_eq!(b.reset(0, 1), Status::Ok);
    assert_eq!(b.write(&[(0, 0, 0, 2)], 3).failed, 0);
    let in_present_mode = [(400, 400, 3), (2, 0, 0)];
    assert_eq!(erases(&ssd), in_present_mode);
    assert_eq!(ssd.counters().slc, Some(SlcCount { programmed_sectors: 2, erases: 101 }));
    ssd.close().unwrap();
    let table = Header::read(&*file).unwrap().layout();
    let unused = |chunk: u32| {
        let mut four = [9; 4];
        let row = table.table_at() + table.chunk_row(chunk) as u64 * 64;
        file.read_at(row + 20, &mut four).unwrap();
        four
    };
    assert_eq!((unused(0), unused(1)), ([0; 4], [0; 4]), "its rows are those of 2.1");
    let again = open_on(file.clone());
    assert_eq!(again.image_info().unwrap().version, (2, 1));
    assert_eq!(
        (erases(&again), again.counters().slc),
        (in_present_mode, Some(SlcCount::default()))
    );
    again.close().unwrap();
    assert_eq!(Ssd::upgrade_on(file.clone()).unwrap(), ((2, 1), (2, 2)));
    let (b, upgraded) = Bench::on(file.clone());
    assert_eq!(erases(&upgraded), in_present_mode);
    assert_eq!(b.reset(0, 0), Status::Ok);
    assert_eq!(reset_to(&b, 0, 1, CellMode::Slc), Status::Ok);
    assert_eq!(b.reset(0, 0), Status::Ok);
    let kept = [(402, 401, 3), (3, 0, 0)];
    assert_eq!(erases(&upgraded), kept);
    upgraded.close().unwrap();
    let again = open_on(file);
    assert_eq!((erases(&again), again.counters().slc.map(|slc| slc.erases)), (kept, Some(1)));
}
