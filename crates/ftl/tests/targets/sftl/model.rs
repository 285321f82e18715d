//! Random lives against an oracle, with the power going off at any command.
//!
//! Owns: what a segment may hold ([`Held`]). Promises: what was acknowledged is asked for exactly, sector by
//! sector; what was under way is there or not, never something else. Never: forgives a read.

use super::*;

/// A sector as the oracle has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sector {
    /// It was acknowledged, and no cut can take it.
    Durable,
    /// It may be there: it was sent, or its pair is open.
    Sent,
    /// Padding.
    Zeros,
    /// Nobody knows: its program failed, or was torn. Content as sent, or an error.
    Lost,
}

#[derive(Clone, Debug, Default)]
struct Held {
    /// Which content: counts trims.
    life: u64,
    whole: bool,
    sectors: Vec<Sector>,
    /// A trim is under way.
    trimming: bool,
    /// A program failed, and it was said.
    failed: bool,
    gone: bool,
}

type All = Rc<RefCell<BTreeMap<(u32, u32), Held>>>;

/// Requests of one life, of one task, on its own segments.
async fn play(cx: Cx, ftl: Arc<Sftl>, all: All, mine: Vec<(u32, u32)>, seed: u64, count: u32) {
    let mut rng = Rng::stream(seed, "sftl.play", mine[0].0 as u64 * 1000 + mine[0].1 as u64);
    for _ in 0..count {
        let at = mine[rng.below(mine.len() as u64) as usize];
        let held = all.borrow().get(&at).cloned().unwrap_or_default();
        if held.gone {
            let refused = put(&ftl, &cx, at, 0, ftl.info().page_sectors).await;
            assert!(matches!(refused, Err(SftlError::Gone { .. })), "{refused:?}");
            continue;
        }
        let pointer = ftl.write_pointer(at.0, at.1);
        let room = ftl.info().segment_sectors - pointer;
        assert_eq!(pointer as usize, held.sectors.len(), "{at:?}");
        match rng.below(20) {
            0..9 if room > 0 && !held.failed => append(&cx, &ftl, &all, at, &mut rng).await,
            0..2 => trim(&cx, &ftl, &all, at).await,
            9 => trim(&cx, &ftl, &all, at).await,
            10..12 => close(&cx, &ftl, &all, at).await,
            12 => assert!(ftl.flush(&cx).await),
            13 => cx.sleep(Ns::from_us(rng.below(2000))).await,
            14 => meta(&cx, &ftl, &mut rng).await,
            _ if pointer > 0 => {
                let first = rng.below(u64::from(pointer)) as u32;
                let n = 1 + rng.below(u64::from(pointer - first)) as u32;
                check(&cx, &ftl, &all, at, first, n).await;
            }
            _ => {}
        }
    }
}

/// Something in the page-mapped region.
async fn meta(cx: &Cx, ftl: &Sftl, rng: &mut Rng) {
    let meta = ftl.meta();
    let (lba, unit) = (rng.below(meta.info().capacity), meta.info().content_bytes);
    let bytes = content(lba, rng.below(100), unit);
    meta.start(cx, Io::write(Lba::new(lba), 1, rng.below(4) == 0, &bytes)).await.expect("a write");
}

/// One append or two, the second sent before the first is over.
async fn append(cx: &Cx, ftl: &Arc<Sftl>, all: &All, at: (u32, u32), rng: &mut Rng) {
    let page = ftl.info().page_sectors;
    let mut under_way = Vec::new();
    for _ in 0..1 + rng.below(5) / 4 {
        let first = ftl.write_pointer(at.0, at.1);
        let room = (ftl.info().segment_sectors - first) / page;
        if room == 0 {
            break;
        }
        let n = (1 + rng.below(6).min(u64::from(room) - 1) as u32) * page;
        let mut map = all.borrow_mut();
        let held = map.entry(at).or_default();
        if first == 0 {
            held.whole = rng.below(3) == 0;
        }
        let whole = held.whole;
        let unit = if whole { 4096 } else { ftl.info().content_bytes };
        held.sectors.resize((first + n) as usize, Sector::Sent);
        let bytes = run_of(at, held.life, first, n, unit);
        drop(map);
        let content = Sectors::One(&bytes);
        let sent = ftl.append(cx, at.0, at.1, first, content, Cause::User, whole);
        under_way.push((first, n, sent));
    }
    for (first, n, sent) in under_way {
        settle(ftl, all, at, (first, n), sent.await);
    }
}

/// What an append that was sent has come to.
fn settle(
    ftl: &Sftl,
    all: &All,
    at: (u32, u32),
    (first, n): (u32, u32),
    result: Result<(), SftlError>,
) {
    let mut map = all.borrow_mut();
    let held = map.get_mut(&at).expect("it was sent");
    let durable = if ftl.info().pair_sectors > 0 { Sector::Sent } else { Sector::Durable };
    // The pointer went back, if an append before this one failed.
    let end = held.sectors.len();
    let range = end.min(first as usize)..end.min((first + n) as usize);
    match result {
        Ok(()) => held.sectors[range].fill(durable),
        Err(SftlError::ProgramFailed { .. }) => {
            held.failed = true;
            held.sectors[range].fill(Sector::Lost);
            assert_eq!(ftl.state(at.0, at.1), SegmentState::Failed);
        }
        Err(SftlError::Failed { .. }) => held.failed = true,
        Err(other) => panic!("{other}"),
    }
    if held.failed {
        held.sectors.truncate(ftl.write_pointer(at.0, at.1) as usize);
    }
}

async fn trim(cx: &Cx, ftl: &Sftl, all: &All, at: (u32, u32)) {
    if let Some(held) = all.borrow_mut().get_mut(&at) {
        held.trimming = true;
    }
    let result = ftl.trim(cx, at.0, at.1).await;
    let mut map = all.borrow_mut();
    let held = map.entry(at).or_default();
    *held = Held { life: held.life + 1, ..Held::default() };
    match result {
        Ok(()) => assert_eq!(ftl.state(at.0, at.1), SegmentState::Empty),
        Err(SftlError::Gone { .. }) => held.gone = true,
        Err(other) => panic!("{other}"),
    }
}

async fn close(cx: &Cx, ftl: &Sftl, all: &All, at: (u32, u32)) {
    let result = ftl.close_pairs(cx, at.0, at.1).await;
    let mut map = all.borrow_mut();
    let Some(held) = map.get_mut(&at) else { return };
    match result {
        Ok(end) => {
            let sent = held.sectors.iter_mut().filter(|s| **s == Sector::Sent);
            sent.for_each(|s| *s = Sector::Durable);
            held.sectors.resize(end as usize, Sector::Zeros);
        }
        Err(SftlError::ProgramFailed { .. } | SftlError::Failed { .. }) => {
            held.failed = true;
            let end = ftl.write_pointer(at.0, at.1) as usize;
            held.sectors.truncate(end);
            held.sectors.resize(end, Sector::Lost);
        }
        Err(other) => panic!("{other}"),
    }
}

/// Reads part of a segment, and compares it with what it may be. What was read as lost, or as there, is that
/// from now on.
async fn check(cx: &Cx, ftl: &Sftl, all: &All, at: (u32, u32), first: u32, n: u32) {
    let held = all.borrow().get(&at).cloned().unwrap_or_default();
    let unit = if held.whole { 4096 } else { ftl.info().content_bytes };
    let mut bytes = vec![0xa5; n as usize * unit];
    let read = ftl.read(cx, at.0, at.1, first, SectorsMut::One(&mut bytes), held.whole).await;
    let lost: BTreeSet<u32> = match read {
        Ok(()) => BTreeSet::new(),
        Err(SftlError::Uncorrectable { sectors, .. }) => sectors.into_iter().flatten().collect(),
        Err(other) => panic!("{at:?}: {other}"),
    };
    let padding = ftl.padding(at.0, at.1);
    for (sector, got) in (first..).zip(bytes.chunks(unit)) {
        let is_zeros = got.iter().all(|b| *b == 0);
        let is_padding = padding.iter().any(|r| r.contains(&sector));
        let is_ours = got == data(at, held.life, sector, unit);
        let says =
            format!("{at:?} sector {sector} of {held:?}: lost {lost:?}, padding {padding:?}");
        if lost.contains(&sector) {
            assert!(is_zeros, "what is lost is handed out as zeros: {says}");
        }
        match held.sectors[sector as usize] {
            Sector::Durable => assert!(is_ours && !lost.contains(&sector), "{says}"),
            Sector::Sent => assert!(is_ours && !lost.contains(&sector), "{says}"),
            Sector::Zeros => assert!(is_zeros && is_padding && !lost.contains(&sector), "{says}"),
            Sector::Lost => {
                assert!(lost.contains(&sector) || is_padding && is_zeros || is_ours, "{says}");
            }
        }
    }
}

/// What a mount behind a cut has found is what may be there; from now on it has to be.
async fn adopt(cx: &Cx, ftl: &Sftl, all: &All) {
    let info = *ftl.info();
    let names = (0..info.channels).flat_map(|c| (0..info.segments).map(move |s| (c, s)));
    for at in names {
        let before = all.borrow().get(&at).cloned().unwrap_or_default();
        let state = ftl.state(at.0, at.1);
        let pointer = ftl.write_pointer(at.0, at.1);
        let durable = before.sectors.iter().rposition(|s| *s == Sector::Durable);
        let durable = durable.map_or(0, |last| last + 1);
        if before.gone || state == SegmentState::Gone {
            // It held nothing that was acknowledged, and the failed block is no more.
            let left_one = before.trimming || durable == 0;
            assert!(state == SegmentState::Gone && left_one, "{at:?}: {before:?}, {state:?}");
            all.borrow_mut().insert(at, Held { gone: true, ..Held::default() });
            continue;
        }
        if pointer == 0 && (before.trimming || durable == 0) {
            let failed = state == SegmentState::Failed;
            let life = before.life + 1;
            all.borrow_mut().insert(at, Held { life, failed, ..Held::default() });
            continue;
        }
        assert!(pointer as usize >= durable, "{at:?}: {pointer} of {before:?}");
        let failed = state == SegmentState::Failed;
        assert!(failed || !before.failed, "{at:?} takes more: {before:?}");
        let unit = if before.whole { 4096 } else { info.content_bytes };
        let padding = ftl.padding(at.0, at.1);
        let mut sectors = Vec::new();
        for sector in 0..pointer {
            let mut got = vec![0xa5; unit];
            let into = SectorsMut::One(&mut got);
            let read = ftl.read(cx, at.0, at.1, sector, into, before.whole).await;
            let is_padding = padding.iter().any(|r| r.contains(&sector));
            let was = before.sectors.get(sector as usize).copied();
            let says = format!("{at:?} sector {sector} was {was:?}, reads {read:?}: {before:?}");
            let is_ours = got == data(at, before.life, sector, unit);
            let now = match (read.is_ok(), is_padding) {
                (true, true) => Sector::Zeros,
                (true, false) => {
                    assert!(is_ours, "{says}");
                    Sector::Durable
                }
                (false, _) => Sector::Lost,
            };
            match was {
                Some(Sector::Durable) => assert_eq!(now, Sector::Durable, "{says}"),
                // Torn, or taken along by its pair.
                Some(Sector::Sent | Sector::Lost) => {}
                Some(Sector::Zeros) | None => assert_ne!(now, Sector::Durable, "{says}"),
            }
            sectors.push(now);
        }
        let (life, whole) = (before.life, before.whole);
        let held = Held { life, whole, sectors, trimming: false, failed, gone: false };
        all.borrow_mut().insert(at, held);
    }
}

/// Lives on one device, cut at random; how many cuts there were.
fn lives(spec: &DeviceSpec, faults: &str, seed: u64, lives: u64) -> u64 {
    let drive = Drive::new(spec, faults);
    let all = All::default();
    let mut rng = Rng::stream(seed, "sftl.lives", 0);
    let mut cuts = 0;
    drive.created(|_, _| async {});
    for life in 0..lives {
        let (at, within) = (rng.below(160), rng.below(3) > 0);
        let stop = if within { Stop::Within(at) } else { Stop::Before(at) };
        let stop = (rng.below(8) > 0).then_some(stop);
        let before = drive.ssd.counters();
        let (ours, seed) = (all.clone(), seed << 16 | life);
        let ended = drive.mounted_until(stop, move |cx, ftl| async move {
            adopt(&cx, &ftl, &ours).await;
            let info = *ftl.info();
            let tasks: Vec<_> = (0..3)
                .map(|task| {
                    let names =
                        (0..info.channels).flat_map(|c| (0..info.segments).map(move |s| (c, s)));
                    let mine = names.filter(|(c, s)| (c + s) % 3 == task).collect();
                    let work = play(cx.clone(), ftl.clone(), ours.clone(), mine, seed, 40);
                    cx.spawn_join(work)
                })
                .collect();
            for task in tasks {
                task.await;
            }
            ftl.walk().unwrap();
            cx.sleep(Ns::from_ms(100)).await;
            (ftl.stats(), ftl.read_only())
        });
        match ended {
            None => cuts += 1,
            Some((stats, read_only)) => {
                assert_eq!(read_only, None);
                stats.check_host_law().unwrap();
                let mut programmed = drive.ssd.counters().programmed;
                programmed.iter_mut().zip(before.programmed).for_each(|(now, then)| *now -= then);
                stats.check_media_law(&programmed).unwrap();
                // At the end of a life everything that was acknowledged is on the medium; pairs may be
                // open, but no program is under way that could take anything along.
            }
        }
    }
    cuts
}

/// Some programs, erases and reads fail.
const FAULTS: &str = r#"
    [[fault]]
    kind = "write_next_unit"
    probability = "3e-3"
    times = 3
    [[fault]]
    kind = "early_close"
    probability = "2e-3"
    times = 2
    [[fault]]
    kind = "erase_fail"
    probability = "1e-2"
    times = 1
    [[fault]]
    kind = "read_uncorrectable"
    probability = "5e-3"
    [[fault]]
    kind = "bit_flip"
    probability = "5e-3"
    [[fault]]
    kind = "read_high_ecc"
    probability = "1e-2"
"#;

fn swarm(spec: &DeviceSpec, seeds: std::ops::Range<u64>) -> u64 {
    let each = seeds.map(|seed| {
        let faults = if seed.is_multiple_of(2) { "" } else { FAULTS };
        lives(spec, faults, seed, 24)
    });
    each.sum()
}

#[test]
fn what_was_acknowledged_survives_any_cut() {
    let cuts = swarm(&plain(), 0..20);
    assert!(cuts > 300, "{cuts} cuts");
}

#[test]
fn behind_a_read_back_window_too() {
    let cuts = swarm(&windowed(), 100..120);
    assert!(cuts > 300, "{cuts} cuts");
}

#[test]
fn and_where_pages_take_each_other_along() {
    let cuts = swarm(&paired(), 200..220);
    assert!(cuts > 300, "{cuts} cuts");
}

#[test]
fn and_where_a_buffer_acknowledges() {
    let cuts = swarm(&buffered(), 300..310);
    assert!(cuts > 150, "{cuts} cuts");
}

/// The same for longer, by hand.
#[test]
#[ignore = "minutes"]
fn many_lives() {
    for seed in (0..4000).step_by(10) {
        let cuts: Vec<u64> = [plain(), windowed(), paired(), buffered()]
            .iter()
            .map(|d| swarm(d, seed..seed + 10))
            .collect();
        println!("seeds from {seed}: {cuts:?} cuts");
    }
}
