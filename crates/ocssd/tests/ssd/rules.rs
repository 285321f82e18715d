//! Hard cases D01 to D24 of the device model (facts sheet 8.1), one test or more each. Timing (D22)
//! is in `timing.rs`, power (D19, D21) in `power.rs`.

use crate::common::*;

fn bench(spec: &DeviceSpec) -> (Bench, Arc<Ssd>) {
    Bench::of(spec, memory())
}

fn rules_broken(ssd: &Ssd) -> Vec<Rule> {
    ssd.violations().iter().map(|v| v.rule).collect()
}

/// D01: geometry without powers of two: a hole is an error for its address and aliases nothing.
/// 1.2 calls it an invalid address; 2.0 has a code per operation, and reads give predefined data.
#[test]
fn d01_a_hole_is_an_error_for_its_address_alone() {
    for style in [PpaStyle::V12, PpaStyle::V20] {
        let spec = tiny(|s| {
            s.ppa = style;
            s.geometry.chunks_per_pu = 11;
        });
        let (b, ssd) = bench(&spec);
        b.write_up_to(0, 10, 64, 1);
        let chunk_bits = b.at(&[(0, 1, 0, 1)])[0].0;
        let hole = Ppa(chunk_bits * 11);
        assert_eq!(b.dev.format().unpack(hole), None);
        let mut list = b.at(&[(0, 10, 0, 4)]);
        list.push(hole);
        let got = b.read_from(list);
        assert!((0..4).all(|i| got.holds(i, 1)) && got.empty(4));
        let (read, wrote, reset) = match style {
            PpaStyle::V12 => (0b10000, Status::InvalidAddress, Status::InvalidAddress),
            PpaStyle::V20 => (0, Status::WriteFault, Status::InvalidReset),
        };
        assert_eq!(got.done.failed, read);
        assert_eq!(b.write_to(vec![hole; 4], 2).status, vec![wrote; 4]);
        assert_eq!(b.plain(Op::Reset, vec![hole], Flags::default()).status(0), reset);
        assert_eq!(ssd.counters().violations, 6, "each address is a broken rule");
        let beyond = Ppa(1 << 60);
        assert_eq!(b.write_to(vec![beyond; 4], 2).failed, 0xf);
    }
}

/// D01, the paper's example: 1067 blocks in 11 bits.
#[test]
fn d01_westlake_ends_at_block_1066() {
    let spec = DeviceSpec::preset("westlake").unwrap();
    let ssd = Ssd::new(&spec, SsdOptions::default()).unwrap();
    let block = ssd.identify().format.iter().find(|f| f.0 == "block").copied();
    assert_eq!(block, Some(("block", 11)));
    let b = Bench::new(ssd);
    let last = b.at(&[(127, 1066, 0, 16)]);
    let past: Vec<Ppa> = last.iter().map(|a| Ppa(a.0 + (b.at(&[(0, 1, 0, 1)])[0].0))).collect();
    assert_eq!(b.write_to(last, 1).failed, 0);
    assert_eq!(b.write_to(past, 1).status(0), Status::InvalidAddress);
}

/// D02: shorter than ws_min, no multiple, not aligned: rejected, pointer unchanged.
#[test]
fn d02_a_write_is_whole_aligned_units() {
    let (b, ssd) = bench(&tiny(|_| {}));
    for (sector, n) in [(0, 1), (0, 3), (2, 4), (1, 3)] {
        let done = b.write(&[(0, 0, sector, n)], 1);
        assert!(done.status.iter().all(|s| *s == Status::InvalidField), "{done:?}");
        assert_eq!(b.info(0, 0).state, ChunkState::Free);
    }
    // Six sectors: the first unit is whole and is written, the rest is not.
    let done = b.write(&[(0, 0, 0, 6)], 1);
    assert_eq!(done.failed, 0b110000);
    assert_eq!(b.info(0, 0).write_pointer, 4);
    assert!(rules_broken(&ssd).iter().all(|r| *r == Rule::WriteUnit));
}

/// D03: behind or ahead of the write pointer: out of order, nothing changes.
#[test]
fn d03_a_write_starts_at_the_pointer() {
    let (b, ssd) = bench(&tiny(|_| {}));
    b.write_up_to(1, 2, 8, 1);
    let before = b.info(1, 2);
    for sector in [0, 4, 12, 60] {
        let done = b.write(&[(1, 2, sector, 4)], 9);
        assert_eq!(done.status, vec![Status::OutOfOrder; 4]);
        assert_eq!(b.info(1, 2), before);
    }
    let v = &ssd.violations()[0];
    assert_eq!((v.rule, v.at.unwrap().chunk), (Rule::WriteOrder, 2));
    let said = v.to_string();
    for part in ["write at", "pu 1 chunk 2 sector 0", "open", "pointer 8 of 64", "programmed at"] {
        assert!(said.contains(part), "{said}");
    }
}

/// D04: our rule: addresses are taken in list order. Of two units in the wrong order the first is
/// out of order, the second is written.
#[test]
fn d04_units_in_the_wrong_order_are_taken_one_by_one() {
    let (b, _) = bench(&tiny(|_| {}));
    let done = b.write(&[(0, 0, 4, 4), (0, 0, 0, 4)], 1);
    assert_eq!(done.failed, 0x0f);
    assert_eq!(done.status(0), Status::OutOfOrder);
    assert_eq!(b.info(0, 0).write_pointer, 4);
}

/// D05: one chunk of a vector fails: exactly its addresses are named, the others are written.
#[test]
fn d05_a_failing_chunk_fails_alone() {
    let (b, _) = bench(&tiny(|_| {}));
    b.write_up_to(2, 5, 64, 1);
    let done = b.write(&[(0, 5, 0, 4), (2, 5, 0, 4), (3, 5, 0, 4), (1, 5, 4, 4)], 2);
    assert_eq!(done.failed, 0xf0f0);
    assert_eq!(done.status(4), Status::WriteFault);
    assert_eq!(done.status(12), Status::OutOfOrder);
    let wp: Vec<u32> = (0..4).map(|pu| b.info(pu, 5).write_pointer).collect();
    assert_eq!(wp, [4, 0, 64, 4]);
}

/// D06: the first write opens, the one that reaches the end closes, in one command even.
#[test]
fn d06_first_write_opens_last_write_closes() {
    let (b, _) = bench(&tiny(|_| {}));
    assert_eq!(b.write(&[(0, 0, 0, 4)], 1).failed, 0);
    assert_eq!(b.info(0, 0).state, ChunkState::Open);
    assert_eq!(b.write(&[(0, 0, 4, 60)], 1).failed, 0);
    assert_eq!(b.info(0, 0).state, ChunkState::Closed);
    assert_eq!(b.write(&[(0, 1, 0, 64)], 1).failed, 0, "from free to closed in one command");
    assert_eq!(b.info(0, 1).state, ChunkState::Closed);
}

/// D07: writes to closed, offline and nonexistent chunks fault; closed data is intact.
#[test]
fn d07_a_closed_chunk_is_not_written() {
    let (b, ssd) = bench(&tiny(|_| {}));
    b.write_up_to(0, 3, 64, 7);
    assert_eq!(b.write(&[(0, 3, 0, 4)], 8).status, vec![Status::WriteFault; 4]);
    assert!(b.read(&[(0, 3, 0, 4)]).holds(0, 7));
    assert!(ssd.set_bad_blocks(&b.at(&[(0, 4, 0, 1)]), 8));
    assert_eq!(b.info(0, 4).state, ChunkState::Offline);
    assert_eq!(b.write(&[(0, 4, 0, 4)], 8).status, vec![Status::WriteFault; 4]);
    assert_eq!(rules_broken(&ssd)[0], Rule::EraseFirst);
    assert_eq!(*rules_broken(&ssd).last().unwrap(), Rule::Offline);
}

/// D08: our rule: a write that crosses the end is split there. In a chunk made shorter by a
/// single-bit mode the units past the end fault; elsewhere the next address is another chunk's.
#[test]
fn d08_a_write_past_the_end_is_split_at_it() {
    let (b, _) = bench(&tiny(|s| s.cells.bits = 2));
    let slc = Flags { cell: CellMode::Slc, ..Flags::default() };
    assert_eq!(b.plain(Op::Reset, b.at(&[(0, 0, 0, 1)]), slc).failed, 0);
    assert_eq!(b.info(0, 0).length, 32);
    let done = b.write(&[(0, 0, 0, 40)], 1);
    assert_eq!(done.failed, 0xff << 32);
    assert_eq!(done.status(32), Status::WriteFault);
    let info = b.info(0, 0);
    assert_eq!((info.state, info.write_pointer), (ChunkState::Closed, 32));
    assert_eq!(b.reset(0, 0), Status::Ok);
    assert_eq!((b.info(0, 0).length, b.info(0, 0).cell), (64, CellMode::Native));
}

/// D09: reads of what is not there: predefined data, or with DULBE an error at those addresses.
#[test]
fn d09_reads_of_nothing() {
    for dulbe in [false, true] {
        let (b, ssd) = Bench::of(&tiny(|_| {}), SsdOptions { dulbe, ..memory() });
        b.write_up_to(0, 0, 20, 1);
        ssd.set_bad_blocks(&b.at(&[(1, 0, 0, 1)]), 2);
        // Readable, at and past the pointer, free chunk, offline chunk.
        let got = b.read(&[(0, 0, 0, 2), (0, 0, 20, 1), (0, 0, 63, 1), (0, 1, 0, 1), (1, 0, 5, 1)]);
        assert!(got.holds(0, 1) && got.holds(1, 1));
        assert!((2..6).all(|i| got.empty(i)));
        assert_eq!(got.done.failed, if dulbe { 0b111100 } else { 0 });
        if dulbe {
            assert_eq!(got.done.status(2), Status::Empty);
        }
        assert_eq!(ssd.counters().violations, 0, "looking is no crime");
    }
}

/// D10: the last mw_cunits sectors of an open chunk are not readable; both sides of the border;
/// everything once the chunk is closed; mw_cunits = 0.
#[test]
fn d10_the_readable_border_of_an_open_chunk() {
    let (b, ssd) = bench(&tiny(|_| {})); // mw_cunits 8
    b.write_up_to(0, 0, 20, 3);
    let got = b.read(&[(0, 0, 11, 2)]);
    assert!(got.holds(0, 3), "11 < 20 - 8");
    assert!(got.empty(1), "12 is not below 20 - 8");
    assert_eq!(ssd.counters().early_reads, 1);
    b.write_up_to(0, 0, 64, 3);
    assert!(b.read(&[(0, 0, 63, 1)]).holds(0, 3));
    let (b, _) = bench(&tiny(|s| s.geometry.mw_cunits = 0));
    b.write_up_to(0, 0, 4, 3);
    let got = b.read(&[(0, 0, 3, 2)]);
    assert!(got.holds(0, 3) && got.empty(1));
}

/// D10 with a pairing table: a page is readable exactly when its word line is complete.
#[test]
fn d10_pairs_make_pages_readable() {
    let (b, _) = bench(&tiny(|s| {
        s.cells.bits = 2;
        s.cells.pairing = flashlane_ocssd::spec::Pairing::Mlc;
        s.geometry.mw_cunits = 12;
    }));
    // Rows of four sectors; pairs (0, 2), (1, 4), (3, 6).
    let readable = |b: &Bench, row: u32| b.read(&[(0, 0, row * 4, 1)]).holds(0, 5);
    b.write_up_to(0, 0, 8, 5);
    assert!(!readable(&b, 0) && !readable(&b, 1));
    b.write_up_to(0, 0, 12, 5);
    assert!(readable(&b, 0) && !readable(&b, 1) && readable(&b, 2));
    b.write_up_to(0, 0, 20, 5);
    assert!(readable(&b, 1) && !readable(&b, 3) && readable(&b, 4));
}

/// D11: closing by padding makes the tail readable.
#[test]
fn d11_padding_makes_the_tail_readable() {
    let (b, _) = bench(&tiny(|_| {}));
    b.write_up_to(0, 0, 8, 1);
    assert!(b.read(&[(0, 0, 4, 1)]).empty(0));
    b.write_up_to(0, 0, 64, 0);
    assert!(b.read(&[(0, 0, 4, 1)]).holds(0, 1));
}

/// D12: the five results of a reset, with and without the abilities.
#[test]
fn d12_resets_by_state() {
    for able in [false, true] {
        let spec = tiny(|s| {
            s.limits.reset_free = able;
            s.limits.reset_open = able;
        });
        let (b, ssd) = bench(&spec);
        b.write_up_to(0, 0, 64, 1);
        b.write_up_to(0, 1, 4, 1);
        ssd.set_bad_blocks(&b.at(&[(0, 3, 0, 1)]), 1);
        let or = |s| if able { Status::Ok } else { s };
        assert_eq!(b.reset(0, 0), Status::Ok, "closed");
        assert_eq!(b.reset(0, 1), or(Status::InvalidReset), "open");
        assert_eq!(b.reset(0, 2), or(Status::InvalidReset), "free");
        assert_eq!(b.reset(0, 3), Status::OfflineChunk);
        let hole = Ppa(1 << 50);
        let done = b.plain(Op::Reset, vec![hole], Flags::default());
        assert_eq!(done.status(0), Status::InvalidReset, "nonexistent");
        let state = b.info(0, 1).state;
        assert_eq!(state, if able { ChunkState::Free } else { ChunkState::Open });
    }
}

/// D13: a reset clears data, records and pointer, and adds to the wear; a failed one leaves the
/// chunk offline for ever.
#[test]
fn d13_reset_clears_or_retires() {
    let spec = tiny(|s| s.cells.rated_erases = 255);
    let (b, ssd) = Bench::of(
        &spec,
        failing("[[fault]]\nkind = \"erase_fail\"\nat = \"pu 0 chunk 1\"\ncount = 3"),
    );
    b.write_up_to(0, 1, 64, 1);
    assert_eq!(b.reset(0, 1), Status::Ok);
    let info = b.info(0, 1);
    assert_eq!((info.state, info.write_pointer), (ChunkState::Free, 0));
    assert_eq!((info.wear_index, info.erases), (1, 1));
    assert!(b.read(&[(0, 1, 0, 1)]).empty(0));
    assert_eq!(b.reset(0, 1), Status::Ok);
    assert_eq!(b.reset(0, 1), Status::OfflineChunk);
    for _ in 0..3 {
        assert_eq!(b.info(0, 1).state, ChunkState::Offline);
        assert_eq!(b.reset(0, 1), Status::OfflineChunk);
        assert_eq!(b.write(&[(0, 1, 0, 4)], 1).status(0), Status::WriteFault);
    }
    assert_eq!(ssd.counters().erase_failures, 1);
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
    assert_eq!(ssd.bad_blocks(0).unwrap().grown_bad, 2, "both planes");
}

fn with_fault(text: &str) -> (Bench, Arc<Ssd>) {
    Bench::of(&tiny(|_| {}), failing(text))
}

/// D14: write next unit: the pointer moves on, the chunk stays open, the next unit is writable, the
/// failed one's data is lost.
#[test]
fn d14_write_next_unit() {
    let (b, ssd) = with_fault("[[fault]]\nkind = \"write_next_unit\"\nat = \"chunk 0 sector 4\"");
    assert_eq!(b.write(&[(0, 0, 0, 4)], 1).failed, 0);
    let done = b.write(&[(0, 0, 4, 8)], 2);
    assert_eq!(done.failed, 0x0f);
    assert_eq!(done.status(0), Status::WriteNextUnit);
    let info = b.info(0, 0);
    assert_eq!((info.state, info.write_pointer), (ChunkState::Open, 12));
    b.write_up_to(0, 0, 64, 3);
    let got = b.read(&[(0, 0, 0, 12)]);
    assert!(got.holds(0, 1) && got.holds(8, 2));
    assert_eq!(got.done.failed, 0x0f0);
    assert_eq!(got.done.status(4), Status::Uncorrectable);
    let c = ssd.counters();
    assert_eq!((c.violations, c.program_failures, c.programmed_total()), (0, 4, 64));
    // After an erase the place is as good as any other.
    b.reset(0, 0);
    b.write_up_to(0, 0, 64, 4);
    assert!(b.read(&[(0, 0, 4, 1)]).holds(0, 4));
}

/// D15: early close: pointer kept, chunk closed, what is below stays readable; writes that were on
/// their way are no one's fault; a free chunk closes with nothing in it; the next reset may fail.
#[test]
fn d15_early_close() {
    let (b, ssd) = with_fault(
        "[[fault]]\nkind = \"early_close\"\nat = \"chunk 0 sector 8\"\n\
         [[fault]]\nkind = \"program_fail\"\nat = \"chunk 1 sector 0\"",
    );
    let done = b.write(&[(0, 0, 0, 16)], 1);
    assert_eq!(done.failed, 0xff00);
    assert_eq!(done.status(8), Status::ChunkEarlyClose);
    assert_eq!(done.status(12), Status::WriteFault, "the chunk is closed by now");
    let info = b.info(0, 0);
    assert_eq!((info.state, info.write_pointer, info.length), (ChunkState::Closed, 8, 64));
    let got = b.read(&[(0, 0, 0, 10)]);
    assert!((0..8).all(|i| got.holds(i, 1)), "all below the pointer, closed");
    assert!(got.empty(8) && got.empty(9));
    assert_eq!(b.write(&[(0, 1, 0, 4)], 1).status(0), Status::ChunkEarlyClose);
    let info = b.info(0, 1);
    assert_eq!((info.state, info.write_pointer), (ChunkState::Closed, 0));
    assert_eq!(ssd.counters().violations, 0);
    assert_eq!(ssd.counters().programmed_total(), 8);
    assert_eq!(b.reset(0, 0), Status::Ok);
    let spec = tiny(|s| s.limits.early_close_offline_ppm = 1_000_000);
    let (b, _) = Bench::of(&spec, failing("[[fault]]\nkind = \"early_close\""));
    b.write(&[(0, 0, 0, 4)], 1);
    assert_eq!(b.reset(0, 0), Status::OfflineChunk);
}

/// D16: 1 and 64 addresses are a command, 0 and 65 are not.
#[test]
fn d16_one_to_sixty_four_addresses() {
    let (b, ssd) = bench(&tiny(|_| {}));
    assert_eq!(b.read(&[(0, 0, 0, 1)]).done.failed, 0);
    assert_eq!(b.write(&[(0, 0, 0, 64)], 1).failed, 0);
    let many = b.at(&[(0, 1, 0, 64), (0, 2, 0, 4)]);
    let done = b.write_to(many[..65].to_vec(), 1);
    assert_eq!(done.failed, u64::MAX);
    assert!(done.status.iter().all(|s| *s == Status::InvalidField));
    let done = b.plain(Op::Reset, Vec::new(), Flags::default());
    assert_eq!((done.failed, done.status(0)), (1, Status::InvalidField));
    assert_eq!(b.info(0, 1).write_pointer, 0);
    assert_eq!(rules_broken(&ssd), [Rule::Vector; 2]);
    assert_eq!(b.flush(), Status::Ok);
}

/// A payload that does not fit its addresses is refused; nothing is read beyond it.
#[test]
fn a_short_payload_is_refused() {
    let (b, _) = bench(&tiny(|_| {}));
    let at = b.at(&[(0, 0, 0, 4)]);
    let unit = b.dev.traits().content_bytes;
    for (n, unit) in [(3, unit), (4, unit - 1), (4, 8)] {
        let at = at.clone();
        let done = b.run(|cx, dev| async move {
            let filled = Filled::new(n, unit, 1);
            dev.io(&cx, filled.request(&at, false)).await
        });
        assert_eq!(done.status, vec![Status::InvalidField; 4]);
    }
    let done = b.plain(Op::Write, at.clone(), Flags::default());
    assert_eq!(done.status, vec![Status::InvalidField; 4]);
    let odd = Flags { planes: 3, ..Flags::default() };
    assert_eq!(b.plain(Op::Reset, at, odd).failed, 0xf);
}

/// D17: records travel in address order.
#[test]
fn d17_out_of_band_records_follow_their_addresses() {
    let (b, _) = bench(&tiny(|s| s.geometry.mw_cunits = 0));
    b.write(&[(0, 0, 0, 4), (3, 2, 0, 4)], 1);
    b.write(&[(0, 0, 4, 4), (3, 2, 4, 4)], 2);
    let got = b.read(&[(3, 2, 4, 1), (0, 0, 1, 1), (0, 0, 5, 1), (3, 2, 0, 1)]);
    let seen: Vec<u8> = (0..4).map(|i| got.at(i).2).collect();
    assert_eq!(seen, [2, 1, 2, 1]);
}

/// D18: open-chunk limits: the next opening write is refused, closing one frees a slot.
#[test]
fn d18_open_chunk_limits() {
    for (device, per_pu) in [(2, 0), (0, 2)] {
        let (b, ssd) = bench(&tiny(|s| {
            s.limits.max_open = device;
            s.limits.max_open_per_pu = per_pu;
        }));
        b.write(&[(0, 0, 0, 4), (0, 1, 0, 4)], 1);
        let done = b.write(&[(0, 0, 4, 4), (0, 2, 0, 4)], 1);
        assert_eq!(done.failed, 0xf0);
        assert_eq!(done.status(4), Status::TooManyOpen);
        b.write_up_to(0, 0, 64, 1);
        assert_eq!(b.write(&[(0, 2, 0, 4)], 1).failed, 0);
        assert_eq!(b.write(&[(0, 3, 0, 4)], 1).failed, 0xf);
        assert_eq!(b.reset(0, 2), Status::Ok);
        assert_eq!(b.write(&[(0, 3, 0, 4)], 1).failed, 0);
        assert_eq!(rules_broken(&ssd), [Rule::OpenLimit; 8]);
    }
}

/// D20: 1.2: plane mode resets name a block per plane; marks are kept, per plane, with counts.
#[test]
fn d20_plane_mode_and_bad_block_table() {
    let (b, ssd) = bench(&tiny(|s| {
        s.ppa = PpaStyle::V12;
        s.limits.reset_free = false;
    }));
    b.write_up_to(0, 0, 64, 1);
    let dual = Flags { planes: 2, ..Flags::default() };
    let blocks = b.at(&[(0, 0, 0, 1), (0, 0, 2, 1)]); // plane 0, plane 1
    assert_eq!(b.plain(Op::Reset, blocks.clone(), dual).failed, 0, "one erase");
    assert_eq!(b.info(0, 0).erases, 1);
    assert!(ssd.set_bad_blocks(&blocks[1..], 8));
    let table = ssd.bad_blocks(0).unwrap();
    assert_eq!(table.blocks[..4], [0, 8, 0, 0]);
    assert_eq!((table.blocks.len(), table.host_reserved, table.factory_bad), (32, 1, 0));
    assert_eq!(b.info(0, 0).state, ChunkState::Offline, "one bad plane is enough");
    assert!(ssd.set_bad_blocks(&blocks[1..], 0));
    assert_eq!(b.info(0, 0).state, ChunkState::Free);
    assert!(!ssd.set_bad_blocks(&[Ppa(1 << 60)], 1) && !ssd.set_bad_blocks(&blocks, 32));
    assert_eq!(ssd.bad_blocks(99), None);
}

/// Factory bad blocks come from the seed, and in about the number asked for.
#[test]
fn factory_bad_blocks_come_from_the_seed() {
    let spec = tiny(|s| {
        s.limits.factory_bad_ppm = 20_000;
        s.geometry.chunks_per_pu = 500;
    });
    let bad = |seed| {
        let ssd = ssd(&spec, SsdOptions { seed, ..memory() });
        let tables: Vec<_> = (0..4).map(|pu| ssd.bad_blocks(pu).unwrap()).collect();
        let offline: u32 = (0..4)
            .flat_map(|pu| ssd.chunk_report(pu, 0, 500))
            .map(|c| u32::from(c.state == ChunkState::Offline))
            .sum();
        assert_eq!(offline, tables.iter().map(|t| t.factory_bad).sum::<u32>());
        (tables, offline)
    };
    assert_eq!(bad(1), bad(1));
    assert_ne!(bad(1).0, bad(2).0);
    assert!((20..70).contains(&bad(3).1), "2 % of 2000");
}

/// D23: flags are accepted even where they change nothing.
#[test]
fn d23_flags_are_accepted() {
    let (b, _) = bench(&tiny(|s| s.geometry.mw_cunits = 0));
    b.write_up_to(0, 0, 64, 1);
    let at = b.at(&[(0, 0, 0, 4)]);
    for planes in [0, 1, 2] {
        let flags = Flags {
            planes,
            suspend: true,
            limited_retry: true,
            scramble: true,
            cell: CellMode::Native,
            ..Flags::default()
        };
        let at = at.clone();
        let got = b.run(|cx, dev| async move { read(&cx, &*dev, &at, flags).await });
        assert!(got.holds(3, 1));
    }
    let slc = Flags { cell: CellMode::Slc, ..Flags::default() };
    let (b, _) = bench(&tiny(|s| s.cells.slc = None));
    assert_eq!(b.plain(Op::Reset, at, slc).status(0), Status::InvalidField);
}

/// D24: heavy correction gives good data and a warning; a notice when the log is on.
#[test]
fn d24_high_ecc_gives_good_data_and_a_notice() {
    let (b, ssd) = with_fault(
        "[[fault]]\nkind = \"read_high_ecc\"\nat = \"pu 0 chunk 0 sector 2\"\ntimes = 2",
    );
    b.write_up_to(0, 0, 64, 1);
    let got = b.read(&[(0, 0, 0, 4)]);
    assert_eq!(got.done.failed, 0b0100);
    assert_eq!(got.done.status(2), Status::HighEcc);
    assert!(got.done.status(2).is_ok() && got.holds(2, 1));
    assert!(ssd.take_notices().is_empty(), "the log is off");
    ssd.set_notices(true);
    b.read(&[(0, 0, 2, 1)]);
    let notices = ssd.take_notices();
    assert_eq!(notices.len(), 1);
    let at = Location { pu: 0, chunk: 0, sector: 2 };
    assert_eq!((notices[0].event, notices[0].at), (Event::HighEcc, at));
    assert_eq!(ssd.faults_happened(), [2]);
}

/// Whole sectors under `stamps` come back as they went in, only as what they are.
#[test]
fn metadata_is_kept_whole_under_stamps() {
    let (b, ssd) = Bench::of(&tiny(|s| s.geometry.mw_cunits = 0), SsdOptions::default());
    let at = b.at(&[(0, 0, 0, 4)]);
    let done = b.run(|cx, dev| async move {
        let filled = Filled::new(4, 4096, 9);
        dev.io(&cx, filled.request(&at, true)).await
    });
    assert_eq!(done.failed, 0);
    let read = |whole: bool, unit: usize| {
        let at = b.at(&[(0, 0, 1, 1)]);
        b.run(|cx, dev| async move {
            let (mut base, mut oob) = (vec![0u8; unit.max(1)], [[0u8; 16]]);
            let content = Scatter::new(&mut base, &[0], unit);
            let done = dev.io(&cx, Request::read(&at, content, &mut oob).whole(whole)).await;
            (done.status(0), base[0], oob[0][0])
        })
    };
    assert_eq!(read(true, 4096), (Status::Ok, 9, 9));
    assert_eq!(read(false, 8), (Status::InvalidField, 0, 9), "the record is given all the same");
    assert_eq!(rules_broken(&ssd), [Rule::Content]);
    assert_eq!(read(false, 0), (Status::Ok, 0, 9), "records alone, of any sector");
    assert_eq!(read(true, 8).0, Status::InvalidField);
    // A metadata sector costs its bytes, and gives them back at the erase.
    let full = ssd.counters().store_bytes;
    b.reset(0, 0);
    assert!(ssd.counters().store_bytes + 4 * 4096 <= full);
}

/// Copy inside the device: content and records travel, rules hold, nothing crosses the link.
#[test]
fn a_copy_moves_sectors_inside_the_device() {
    let (b, ssd) = bench(&tiny(|s| s.geometry.mw_cunits = 0));
    b.write(&[(0, 0, 0, 4)], 1);
    b.write(&[(3, 0, 0, 4)], 2);
    let from = b.at(&[(0, 0, 0, 2), (3, 0, 0, 2), (3, 0, 2, 2), (0, 0, 2, 2)]);
    let to = b.at(&[(1, 4, 0, 8)]);
    let pairs = |from: &[Ppa], to: &[Ppa]| -> Vec<Ppa> {
        from.iter().zip(to).flat_map(|(f, t)| [*f, *t]).collect()
    };
    let sent = ssd.counters().host_read_bytes();
    assert_eq!(b.plain(Op::Copy, pairs(&from, &to), Flags::default()).failed, 0);
    assert_eq!(ssd.counters().host_read_bytes(), sent);
    let got = b.read(&[(1, 4, 0, 8)]);
    let seen: Vec<u8> = (0..8).map(|i| got.at(i).1).collect();
    assert_eq!(seen, [1, 1, 2, 2, 2, 2, 1, 1]);
    assert_eq!(ssd.counters().programmed[Cause::Gc as usize], 8);
    assert_eq!(ssd.counters().violations, 0);
    // A source without data fails its unit; a destination off its pointer fails alone.
    let bad = b.at(&[(0, 0, 0, 3), (0, 9, 0, 1)]);
    let done = b.plain(Op::Copy, pairs(&bad, &b.at(&[(1, 4, 8, 4)])), Flags::default());
    assert_eq!(done.status(6), Status::InvalidField);
    assert_eq!(b.info(1, 4).write_pointer, 8);
    let done = b.plain(Op::Copy, pairs(&from[..4], &b.at(&[(1, 4, 0, 4)])), Flags::default());
    assert_eq!(done.failed, 0b10101010);
    assert_eq!(done.status(1), Status::OutOfOrder);
    let odd = b.plain(Op::Copy, from[..3].to_vec(), Flags::default());
    assert_eq!(odd.status, vec![Status::InvalidField; 3]);
}

/// A null device answers at once and keeps everything else.
#[test]
fn a_null_device_takes_no_time() {
    let options = SsdOptions { timing: false, ..memory() };
    let (b, ssd) = Bench::of(&DeviceSpec::preset("westlake").unwrap(), options);
    b.write_up_to(5, 5, 256, 1);
    assert!(b.read(&[(5, 5, 0, 16)]).holds(0, 1));
    assert_eq!(b.reset(5, 5), Status::Ok);
    assert_eq!(b.now().as_ns(), 0);
    assert_eq!(ssd.counters().violations, 0);
}

/// What lay in a chunk that went bad is not to be had: it reads as unwritten.
#[test]
fn a_bad_chunk_gives_nothing() {
    let plan = "[[fault]]\nkind = \"erase_fail\"\n";
    let (b, _) = Bench::of(&tiny(|_| {}), failing(plan));
    b.write_up_to(1, 2, 64, 1);
    assert!(b.read(&[(1, 2, 0, 4)]).holds(0, 1));
    assert_eq!(b.reset(1, 2), Status::OfflineChunk);
    let got = b.read(&[(1, 2, 0, 4)]);
    assert!((0..4).all(|i| got.empty(i)), "{:?}", got.done);
}
