//! The SLC/TLC SSD on the emulated SSD: where journals and other data go, what leaves SLC and when.

use crate::prelude::*;
use flashlane_ftl::block::{Hint, Payload};
use flashlane_ftl::slc::{Scheme, Slc, SlcConfig};
use flashlane_media::payload::Sectors;
use flashlane_ocssd::Device;
use std::future::poll_fn;
use std::task::Poll;

/// One die, one plane, a sector per page: a chunk has 12 pages in TLC mode and 4 in SLC mode.
const FIGURE: &str = "name = \"figure\"\nppa = \"2.0\"\n\
    [geometry]\nchannels = 1\npus_per_channel = 1\nplanes = 1\nchunks_per_pu = 40\n\
    pages_per_block = 12\nsectors_per_page = 1\nws_min = 1\nws_opt = 1\nmw_cunits = 0\n\
    [timing]\nread = [\"50us\"]\nprogram = [\"1ms\"]\nerase = \"3ms\"\nchannel_bandwidth = \"400MB\"\n\
    [cells]\nbits = 3\nslc = { read = \"20us\", program = \"200us\", erase = \"2ms\" }\n\
    [limits]\nreset_free = true\nreset_open = true\n";

/// Two channels of two dies of two planes; lines of SLC have 64 sectors, narrow ones 16.
const WIDE: &str = "name = \"wide\"\nppa = \"2.0\"\n\
    [geometry]\nchannels = 2\npus_per_channel = 2\nplanes = 2\nchunks_per_pu = 40\n\
    pages_per_block = 12\nsectors_per_page = 2\nws_min = 4\nws_opt = 4\nmw_cunits = 8\n\
    [timing]\nread = [\"50us\"]\nprogram = [\"1ms\"]\nerase = \"3ms\"\nchannel_bandwidth = \"400MB\"\n\
    [cells]\nbits = 3\nslc = { read = \"20us\", program = \"200us\", erase = \"2ms\", ws_min = 2 }\n\
    [limits]\nreset_free = true\nreset_open = true\n";

/// One bit per cell also without the mode, which differs in time and in what can be read at once.
const ONE_BIT: &str = "name = \"one bit\"\nppa = \"2.0\"\n\
    [geometry]\nchannels = 1\npus_per_channel = 2\nplanes = 1\nchunks_per_pu = 40\n\
    pages_per_block = 12\nsectors_per_page = 2\nws_min = 2\nws_opt = 2\nmw_cunits = 8\n\
    [timing]\nread = [\"50us\"]\nprogram = [\"1ms\"]\nerase = \"3ms\"\nchannel_bandwidth = \"400MB\"\n\
    [cells]\nslc = { read = \"20us\", program = \"200us\", erase = \"2ms\" }\n\
    [limits]\nreset_free = true\nreset_open = true\n";

const IDLE: Ns = Ns::from_ms(10);

fn config(scheme: Scheme, slc_chunks: u32, journal_lines: Option<u32>) -> SlcConfig {
    SlcConfig {
        scheme,
        slc_chunks: Some(slc_chunks),
        journal_lines,
        journal_line_pus: journal_lines.map(|_| 1),
        idle: IDLE,
        detect: false,
        over_provisioning_percent: 50,
        buffer_sectors: Some(16),
        ..SlcConfig::default()
    }
}

fn spec(text: &str) -> DeviceSpec {
    DeviceSpec::from_toml(text).expect("a device")
}

/// Runs `main` on a fresh drive, and checks what must always hold.
fn on_drive<T: 'static, F: Future<Output = T> + 'static>(
    text: &str,
    config: SlcConfig,
    main: impl FnOnce(Arc<Slc>, Cx) -> F + 'static,
) -> (T, Arc<Slc>, Arc<Ssd>) {
    let ssd = Ssd::new(&spec(text), SsdOptions::default()).expect("a device");
    let run = Virtual::new(1, 3, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let ended = run.run(async move {
        let ftl = Slc::create(&cx, device, config).expect("a drive");
        // The chunks of the SLC part come into their mode.
        cx.sleep(Ns::from_ms(100)).await;
        let value = main(ftl.clone(), cx.clone()).await;
        ftl.stop(&cx).await;
        (value, ftl)
    });
    let (value, ftl) = ended.expect("nobody waits for ever");
    check(&ftl, &ssd);
    (value, ftl, ssd)
}

/// Both counter laws, also by cell mode; no broken rule; tables that agree.
fn check(ftl: &Slc, ssd: &Ssd) {
    let (stats, medium) = (ftl.details(), ssd.counters());
    assert_eq!(medium.violations, 0, "{:?}", ssd.violations().first());
    stats.ftl.check_host_law().unwrap();
    stats.ftl.check_media_law(&medium.programmed).unwrap();
    let slc: u64 = stats.slc_programmed.iter().sum();
    assert_eq!(Some(slc), medium.slc.map(|count| count.programmed_sectors));
    // What went to TLC is what left SLC, went there directly, or was moved or padded there.
    let tlc = medium.programmed_total() - slc;
    let named = ["direct", "migrated", "gc", "padding", "other"];
    let parts = named.map(|name| counted(ftl, &format!("tlc_{name}_sectors")));
    assert_eq!(tlc, parts.iter().sum::<u64>(), "{parts:?}");
    ftl.walk().unwrap();
}

fn counted(ftl: &Slc, name: &str) -> u64 {
    let all = <Slc as flashlane_ftl::layer::Layer>::counted(ftl);
    all.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}")).value
}

/// Writes a sector, and says whether it is a journal's.
async fn write(ftl: &Slc, cx: &Cx, lba: u64, version: u64, journal: bool) {
    let bytes = (lba << 32 | version).to_le_bytes();
    assert_eq!(ftl.info().content_bytes, bytes.len());
    let payload = Payload::Write(Sectors::One(&bytes));
    let hint = Hint { journal, ..Hint::default() };
    let io = Io { op: BlockOp::Write, lba: Lba::new(lba), sectors: 1, fua: false, hint, payload };
    ftl.start(cx, io).await.expect("a write");
}

async fn flush(ftl: &Slc, cx: &Cx) {
    ftl.start(cx, Io::flush()).await.expect("a flush");
}

async fn read(ftl: &Slc, cx: &Cx, lba: u64) -> u64 {
    let mut word = [0; 8];
    ftl.start(cx, Io::read(Lba::new(lba), 1, &mut word)).await.expect("a read");
    u64::from_le_bytes(word)
}

/// What the paper's Figure 3 writes, in its order: J(0) to J(3) are the journal's, N its other data; a
/// line each is what fills a block of the baseline.
const FIGURE_3: [[&str; 4]; 4] = [
    ["J0", "J1", "N102", "N200"],
    ["J2", "J3", "N201", "N150"],
    ["J0", "J1", "N122", "N123"],
    ["J2", "J3", "N162", "N163"],
];

/// Replays it, and leaves the drive alone until its buffer is empty.
fn figure_3(config: SlcConfig) -> (Arc<Slc>, Arc<Ssd>) {
    let ((), ftl, ssd) = on_drive(FIGURE, config, |ftl, cx| async move {
        for (version, block) in (1..).zip(FIGURE_3) {
            for name in block {
                let (kind, lba) = name.split_at(1);
                let lba: u64 = lba.parse().expect("a number");
                write(&ftl, &cx, lba, version, kind == "J").await;
            }
            flush(&ftl, &cx).await;
        }
        cx.sleep(IDLE.times(50)).await;
        for (version, block) in (1..).zip(FIGURE_3) {
            for name in block {
                let lba: u64 = name[1..].parse().expect("a number");
                // The journal's sectors were written twice.
                let version =
                    if name.starts_with('J') && version < 3 { version + 2 } else { version };
                assert_eq!(read(&ftl, &cx, lba).await, lba << 32 | version);
            }
        }
    });
    (ftl, ssd)
}

/// "the baseline has to migrate all valid data in 12 pages included in 4 blocks … our scheme migrates
/// only N_data in 8 pages included in 2 blocks" (section III B), and "can reclaim a free block by
/// erasing PB10" (A).
#[test]
fn figure_3_of_the_paper() {
    let (ftl, _) = figure_3(config(Scheme::Conventional, 4, None));
    let of = |name: &str| counted(&ftl, name);
    assert_eq!((of("migrated_sectors"), of("migrated_lines")), (12, 4));
    assert_eq!((of("tlc_migrated_sectors"), of("empty_lines")), (12, 0));
    let (ftl, ssd) = figure_3(config(Scheme::Journal, 4, Some(2)));
    let of = |name: &str| counted(&ftl, name);
    assert_eq!((of("migrated_sectors"), of("migrated_lines")), (8, 2));
    assert_eq!((of("tlc_migrated_sectors"), of("journal_copied_sectors")), (8, 0));
    // PB10 is the first chunk of the journal region, the first of the drive.
    assert_eq!((of("empty_lines"), of("to_journal_sectors")), (1, 8));
    let erased = ssd.chunk_report(0, 0, 2);
    assert_eq!((erased[0].write_pointer, erased[1].write_pointer), (0, 4));
    assert_eq!((erased[0].erases, erased[1].erases), (2, 1), "once to bring them into their mode");
}

/// A journal that goes round and round in its region: nothing is copied, nothing goes to TLC, also
/// when the buffer is full.
/// A chunk in SLC mode can be read as soon as it is written: one that is as long in both modes comes into it,
/// too.
#[test]
fn chunks_of_one_bit_come_into_slc_mode() {
    let (_, ftl, ssd) =
        on_drive(ONE_BIT, config(Scheme::Conventional, 4, None), |ftl, cx| async move {
            for lba in 0..20 {
                write(&ftl, &cx, lba, 1, false).await;
            }
            flush(&ftl, &cx).await;
            for lba in 0..20 {
                assert_eq!(read(&ftl, &cx, lba).await, lba << 32 | 1);
            }
        });
    let slc = ssd.counters().slc.expect("it has the mode").programmed_sectors;
    assert_eq!(slc, ftl.details().slc_programmed.iter().sum::<u64>());
    assert!(slc >= 20, "{slc}");
}

#[test]
fn a_journal_wraps_without_a_copy() {
    let ((), ftl, _) = on_drive(WIDE, config(Scheme::Journal, 6, Some(6)), |ftl, cx| async move {
        // Three lines of journal, in a region of six; other data fills the buffer.
        let (journal, mut other) = (48, 1000);
        for round in 1..20u64 {
            for lba in (0..journal).step_by(8) {
                for i in 0..8 {
                    write(&ftl, &cx, lba + i, round, true).await;
                }
                write(&ftl, &cx, other, round, false).await;
                other += 1;
                flush(&ftl, &cx).await;
            }
        }
        for lba in 0..journal {
            assert_eq!(read(&ftl, &cx, lba).await, lba << 32 | 19);
        }
    });
    let of = |name: &str| counted(&ftl, name);
    assert_eq!(of("journal_sectors"), 19 * 48);
    assert_eq!((of("to_journal_sectors"), of("journal_overflow_sectors")), (19 * 48, 0));
    assert_eq!((of("journal_copied_sectors"), of("copied_lines")), (0, 0));
    assert!(of("empty_lines") > 40, "the region is reclaimed by wrapping");
}

/// A loop that stops after a part of a lap and begins elsewhere: what is still valid is copied.
#[test]
fn what_a_lap_left_is_copied_and_counted() {
    let ((), ftl, _) = on_drive(WIDE, config(Scheme::Journal, 6, Some(4)), |ftl, cx| async move {
        // Every other sector of a region's worth of sectors stays valid.
        for lba in 0..64 {
            write(&ftl, &cx, lba, 1, true).await;
        }
        flush(&ftl, &cx).await;
        for round in 2..12u64 {
            for lba in (0..64).step_by(2) {
                write(&ftl, &cx, lba, round, true).await;
            }
            flush(&ftl, &cx).await;
        }
        for lba in 0..64u64 {
            let version = if lba % 2 == 0 { 11 } else { 1 };
            assert_eq!(read(&ftl, &cx, lba).await, lba << 32 | version);
        }
    });
    let copied = counted(&ftl, "journal_copied_sectors");
    assert!(copied >= 8 && copied.is_multiple_of(8), "half of a line each: {copied}");
    assert!(counted(&ftl, "copied_lines") > 0);
}

/// A journal that found no room once has a line copied for it, and no more when there is room.
#[test]
fn a_denial_is_forgotten_when_there_is_room() {
    let ((), ftl, _) = on_drive(WIDE, config(Scheme::Journal, 6, Some(4)), |ftl, cx| async move {
        // Four lines of 16 sectors, all of them valid; one sector more finds no room.
        for lba in 0..64 {
            write(&ftl, &cx, lba, 1, true).await;
        }
        flush(&ftl, &cx).await;
        write(&ftl, &cx, 64, 1, true).await;
        flush(&ftl, &cx).await;
        cx.sleep(Ns::from_secs(1)).await;
    });
    let of = |name: &str| counted(&ftl, name);
    assert_eq!((of("journal_overflow_sectors"), of("copied_lines")), (1, 1));
}

/// When the buffer is full the host's data goes to TLC at once; in idle time the buffer is emptied, at
/// the rate that is set, and a request stops that.
#[test]
fn the_buffer_overflows_and_is_emptied_in_idle_time() {
    let capacity = 2 * 64;
    let filled = |rate: Option<u32>, pause: Ns| {
        let settings =
            SlcConfig { migration_mib_per_s: rate, ..config(Scheme::Conventional, 2, None) };
        let ((), ftl, _) = on_drive(WIDE, settings, move |ftl, cx| async move {
            for lba in 0..capacity + 64 {
                write(&ftl, &cx, lba, 1, false).await;
                if lba % 8 == 7 {
                    flush(&ftl, &cx).await;
                }
            }
            assert_eq!(counted(&ftl, "to_buffer_sectors"), capacity);
            assert_eq!(counted(&ftl, "direct_sectors"), 64);
            assert_eq!(counted(&ftl, "migrated_sectors"), 0);
            cx.sleep(pause).await;
            let _ = read(&ftl, &cx, 0).await;
        });
        (counted(&ftl, "migrated_sectors"), counted(&ftl, "migrated_lines"))
    };
    assert_eq!(filled(None, Ns::from_ms(9)), (0, 0), "it was not idle for long enough");
    assert_eq!(filled(None, Ns::from_secs(1)), (capacity, 2));
    // 64 sectors are a quarter of a second's work then; the last batch begins before that is over.
    let (slowly, _) = filled(Some(1), Ns::from_ms(300));
    assert!((64..=capacity).contains(&slowly), "{slowly}");
}

/// The power goes in the middle of a lap, again and again; what was flushed is there, and the journal
/// goes on in its region.
#[test]
fn a_mount_in_the_middle_of_a_lap() {
    let settings = config(Scheme::Journal, 6, Some(6));
    let ssd = Ssd::new(&spec(WIDE), SsdOptions::default()).expect("a device");
    let mut expected = BTreeMap::new();
    for life in 0..12u64 {
        let run = Virtual::new(1, life, CostTable::zero());
        let (cx, device, settings) = (run.cx(), ssd.clone(), settings.clone());
        let before = std::mem::take(&mut expected);
        let ended = run.run(async move {
            let mut held = before;
            let ftl = match life {
                0 => Slc::create(&cx, device, settings).expect("a drive"),
                _ => Slc::mount(&cx, device, settings, None).await.expect("a mount"),
            };
            for (lba, word) in &held {
                assert_eq!(read(&ftl, &cx, *lba).await, *word, "life {life}");
            }
            cx.sleep(Ns::from_ms(50)).await;
            for i in 0..40 + 7 * life {
                let lba = (life * 29 + i) % 48;
                write(&ftl, &cx, lba, life + 1, true).await;
                write(&ftl, &cx, 500 + i, life + 1, false).await;
                held.insert(lba, lba << 32 | (life + 1));
                held.insert(500 + i, (500 + i) << 32 | (life + 1));
            }
            flush(&ftl, &cx).await;
            if life > 1 {
                assert!(counted(&ftl, "to_journal_sectors") > 0, "life {life}");
            }
            ftl.walk().unwrap();
            held
        });
        expected = ended.expect("nobody waits for ever");
        ssd.power_cut(run.cx().now(), PowerOn::ClockRestarts);
    }
    assert_eq!(ssd.counters().violations, 0);
}

/// A line whose sectors are all overwritten is erased when what overwrote them is durable, not before.
#[test]
fn a_dead_line_waits_for_what_killed_it() {
    let settings = config(Scheme::Journal, 6, Some(6));
    let ssd = Ssd::new(&spec(WIDE), SsdOptions::default()).expect("a device");
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device, at_first) = (run.cx(), ssd.clone(), settings.clone());
    let ended = run.run(async move {
        let ftl = Slc::create(&cx, device, at_first).expect("a drive");
        cx.sleep(Ns::from_ms(50)).await;
        // A line of 16 sectors, and three of the next.
        for lba in 0..19 {
            write(&ftl, &cx, lba, 1, true).await;
        }
        flush(&ftl, &cx).await;
        // The last three are too few for a unit: they wait in the buffer.
        for lba in (16..19).chain(0..16) {
            write(&ftl, &cx, lba, 2, true).await;
        }
        cx.sleep(Ns::from_us(4_500)).await;
    });
    ended.expect("nobody waits for ever");
    ssd.power_cut(run.cx().now(), PowerOn::ClockRestarts);
    let run = Virtual::new(1, 2, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let ended = run.run(async move {
        let ftl = Slc::mount(&cx, device, settings, None).await.expect("a mount");
        for lba in 0..19 {
            let word = read(&ftl, &cx, lba).await;
            assert!([lba << 32 | 1, lba << 32 | 2].contains(&word), "{lba}: {word:x}");
        }
    });
    ended.expect("nobody waits for ever");
}

/// The drive finds a loop by itself and keeps it apart; one that is longer than the region is like other
/// data.
#[test]
fn a_loop_that_outgrows_its_region_is_normal_data() {
    let found = |lines: u32, slc: u32| {
        let detect = SlcConfig { detect: true, ..config(Scheme::Journal, slc, Some(lines)) };
        let text = WIDE.replace("chunks_per_pu = 40", "chunks_per_pu = 80");
        let ((), ftl, _) = on_drive(&text, detect, |ftl, cx| async move {
            for round in 1..5u64 {
                for lba in 0..600 {
                    write(&ftl, &cx, lba, round, false).await;
                    if lba % 8 == 7 {
                        // Other writes lie between those of a journal.
                        write(&ftl, &cx, 1000 + round * 7919 % 501 + lba, round, false).await;
                    }
                }
                flush(&ftl, &cx).await;
            }
        });
        let of = |name: &str| counted(&ftl, name);
        (of("journal_sectors"), of("to_journal_sectors"))
    };
    let (journal, kept) = found(44, 14);
    assert!(journal > 1000 && kept == journal, "{kept} of {journal} sectors");
    assert_eq!(found(4, 8), (0, 0));
}

/// A loop of a few blocks that is gone round beside a journal does not take the room that the journal needs.
#[test]
fn of_two_loops_the_one_that_is_written_most_has_the_room() {
    let detect = SlcConfig { detect: true, ..config(Scheme::Journal, 14, Some(44)) };
    let text = WIDE.replace("chunks_per_pu = 40", "chunks_per_pu = 80");
    let ((), ftl, _) = on_drive(&text, detect, |ftl, cx| async move {
        for round in 1..9u64 {
            for lba in 0..600 {
                write(&ftl, &cx, lba, round, false).await;
                // Each loop is in the region's room of 672 sectors by itself.
                if lba % 200 == 199 {
                    for small in 0..200 {
                        write(&ftl, &cx, 1500 + small, round, false).await;
                        if small % 8 == 7 {
                            write(&ftl, &cx, 1800 + (lba + small * 37) % 97, round, false).await;
                        }
                    }
                }
            }
            flush(&ftl, &cx).await;
        }
    });
    let of = |name: &str| counted(&ftl, name);
    let (journal, kept) = (of("journal_sectors"), of("to_journal_sectors"));
    assert!(journal > 4 * 600 && kept == journal, "{kept} of {journal} sectors");
    let loops =
        <Slc as flashlane_ftl::layer::Layer>::attribute(&ftl, "journals").expect("an attribute");
    assert!(loops.lines().count() == 2, "{loops}");
}

/// Long writes of a journal that wait for room together are told apart in the order in which they came.
#[test]
fn a_write_is_told_when_it_arrives() {
    let detect = SlcConfig { detect: true, ..config(Scheme::Journal, 14, Some(44)) };
    let text = WIDE.replace("chunks_per_pu = 40", "chunks_per_pu = 80");
    let ((), ftl, _) = on_drive(&text, detect, |ftl, cx| async move {
        for round in 1..6u64 {
            for at in 0..10 {
                let [first, second] = [at * 60, at * 60 + 30].map(|lba| long(&ftl, &cx, lba, 30));
                let (mut first, mut second) = (Box::pin(first), Box::pin(second));
                let (mut one, mut two) = (false, false);
                poll_fn(|context| {
                    one = one || first.as_mut().poll(context).is_ready();
                    two = two || second.as_mut().poll(context).is_ready();
                    if one && two { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                // Other writes lie between those of a journal.
                write(&ftl, &cx, 1000 + (round * 7919 + at * 211) % 501, round, false).await;
            }
            flush(&ftl, &cx).await;
        }
    });
    // The first two rounds show that long writes go round.
    let journal = counted(&ftl, "journal_sectors");
    assert!(journal > 2 * 600, "{journal} sectors");
}

/// Writes some sectors at once.
async fn long(ftl: &Slc, cx: &Cx, lba: u64, sectors: u32) {
    let bytes = vec![7; sectors as usize * ftl.info().content_bytes];
    let (lba, payload) = (Lba::new(lba), Payload::Write(Sectors::One(&bytes)));
    let (fua, hint) = (false, Hint::default());
    ftl.start(cx, Io { op: BlockOp::Write, lba, sectors, fua, hint, payload })
        .await
        .expect("a write");
}

/// The host writes data and a journal with a flush behind each transaction, until the first sector goes to
/// TLC: how many sectors that takes, and the share of the journal.
fn slc_period(scheme: Scheme, parts: (u64, u64)) -> (u64, f64) {
    let mut board = DeviceSpec::preset("slc-tlc").expect("a preset");
    (board.geometry.channels, board.geometry.pus_per_channel) = (2, 4);
    board.geometry.chunks_per_pu = 48;
    let ssd = Ssd::new(&board, SsdOptions::default()).expect("a device");
    let lines = (scheme == Scheme::Journal).then_some(4);
    let settings = SlcConfig {
        journal_line_pus: lines.map(|_| 4),
        buffer_sectors: None,
        over_provisioning_percent: 20,
        idle: Ns::from_secs(1000),
        ..config(scheme, 6, lines)
    };
    let run = Virtual::new(1, 7, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let ended = run.run(async move {
        let ftl = Slc::create(&cx, device, settings).expect("a drive");
        cx.sleep(Ns::from_ms(100)).await;
        let (data, journal) = parts;
        let (mut head, mut next, mut written) = (0, 0, 0);
        while counted(&ftl, "direct_sectors") == 0 {
            for _ in 0..data {
                write(&ftl, &cx, 20_000 + next, 1, false).await;
                next += 1;
            }
            for _ in 0..journal {
                // A journal of 32 MiB: two of the four lines of its region.
                write(&ftl, &cx, head, 1, true).await;
                head = (head + 1) % 8192;
            }
            flush(&ftl, &cx).await;
            written += data + journal;
        }
        assert_eq!(counted(&ftl, "journal_overflow_sectors"), 0);
        written
    });
    let (data, journal) = parts;
    (ended.expect("nobody waits for ever"), journal as f64 / (data + journal) as f64)
}

/// "our scheme can increase the SLC buffering period" (section IV B): by the share of the SLC part that
/// is the buffer, over the share of what is not a journal's.
#[test]
fn the_slc_period_follows_its_closed_form() {
    for parts in [(4, 8), (8, 8), (16, 4)] {
        let (conventional, share) = slc_period(Scheme::Conventional, parts);
        let (journal, _) = slc_period(Scheme::Journal, parts);
        // Six chunks of each PU; four lines on half of the PUs are two of them.
        let expected = (4.0 / 6.0) / (1.0 - share);
        let measured = journal as f64 / conventional as f64;
        assert!((measured / expected - 1.0).abs() < 0.15, "{parts:?}: {measured}, not {expected}");
    }
}

/// What does not fit is refused before anything runs, with the remedy.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    let refused_on = |spec: &DeviceSpec, config: SlcConfig| {
        let ssd = Ssd::new(spec, SsdOptions::default()).expect("a device");
        let run = Virtual::new(1, 1, CostTable::zero());
        let (cx, device) = (run.cx(), ssd.clone());
        let made = run.run(async move { Slc::create(&cx, device, config).err() });
        let error = made.expect("no wait").expect("a refusal");
        assert_eq!(ssd.counters().erases, 0, "nothing ran");
        error.to_string()
    };
    let refused = |text: &str, config: SlcConfig| refused_on(&spec(text), config);
    let journal = |slc, lines| config(Scheme::Journal, slc, Some(lines));
    let one = refused(WIDE, journal(6, 1));
    assert!(one.contains("journal_lines is 1") && one.contains("two lines more"), "{one}");
    let large = refused(WIDE, journal(4, 12));
    assert!(large.contains("raise slc_chunks or lower journal_lines"), "{large}");
    let all = refused(WIDE, journal(40, 4));
    assert!(all.contains("slc_chunks is 40"), "{all}");
    let most = refused(WIDE, journal(38, 4));
    assert!(most.contains("over_provisioning_percent"), "{most}");
    let odd = SlcConfig { journal_line_pus: Some(3), ..journal(6, 4) };
    assert!(refused(WIDE, odd).contains("it must divide the number of PUs"));
    let mut without = spec(WIDE);
    without.cells.slc = None;
    let none = refused_on(&without, journal(6, 4));
    assert!(none.contains("no SLC mode"), "{none}");
    let limit = WIDE.replace("reset_open = true", "reset_open = true\nmax_open_per_pu = 2");
    let limit = refused(&limit, journal(6, 4));
    assert!(limit.contains("open chunks"), "{limit}");
}

/// A drive that was created with other regions is not taken for this one.
/// What a drive keeps does not hang on the defaults of the program that opens it.
#[test]
fn sizes_that_nobody_said_are_kept() {
    let kept = |scheme: Scheme| {
        let config = SlcConfig { scheme, over_provisioning_percent: 50, ..SlcConfig::default() };
        let ((), ftl, _) = on_drive(WIDE, config, |_, _| async {});
        let settings = <Slc as flashlane_ftl::layer::Layer>::settings(&ftl);
        ["slc_chunks", "journal_lines", "journal_line_pus"].map(|key| settings[key].as_u64())
    };
    assert_eq!(kept(Scheme::Journal), [Some(4), Some(2), Some(4)]);
    assert_eq!(kept(Scheme::Conventional), [Some(2), None, None]);
}

#[test]
fn other_regions_are_not_mounted() {
    let ssd = Ssd::new(&spec(WIDE), SsdOptions::default()).expect("a device");
    let with = |slc: u32| config(Scheme::Conventional, slc, None);
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let made = run.run(async move {
        let ftl = Slc::create(&cx, device.clone(), with(4)).expect("a drive");
        cx.sleep(Ns::from_ms(100)).await;
        for lba in 0..400 {
            write(&ftl, &cx, lba, 1, false).await;
        }
        ftl.stop(&cx).await;
        let mount = |slc| Slc::mount(&cx, device.clone(), with(slc), None);
        let (fewer, more) = (mount(2).await.err(), mount(6).await.err());
        (fewer, more, mount(4).await.err())
    });
    let (fewer, more, same) = made.expect("nobody waits for ever");
    assert!(fewer.is_some_and(|e| e.to_string().contains("other regions")));
    assert!(more.is_some_and(|e| e.to_string().contains("other regions")));
    assert_eq!(same, None);
}
