//! Each promise of S-FTL by itself.
//!
//! Owns: scenes that the random lives meet rarely. Promises: a scene fails without its rule. Never: faults,
//! which are in `bad.rs`.

use super::*;
use flashlane_ftl::layer::Layer;
use flashlane_ocssd::device::{Data, Device, Gather, Request, Scatter};
use flashlane_ocssd::spec::LinkSpec;

const A: (u32, u32) = (0, 0);
const B: (u32, u32) = (0, 1);

#[test]
fn appends_of_a_segment_go_in_the_order_of_the_calls_and_fly_together() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        let unit = ftl.info().content_bytes;
        let all = run_of(A, 1, 0, 12, unit);
        let mut sent = Vec::new();
        for (first, n) in [(0, 4), (4, 2), (6, 6)] {
            let part = Sectors::One(&all[first as usize * unit..(first + n) as usize * unit]);
            sent.push(ftl.append(&cx, 0, 0, first, part, Cause::User, false));
            assert_eq!(ftl.write_pointer(0, 0), first + n, "it moves in the call");
        }
        // The last one first: it went behind the others all the same.
        for append in sent.into_iter().rev() {
            append.await.expect("an append");
        }
        holds(&ftl, &cx, A, 1, 12).await;
        assert_eq!(ftl.state(0, 0), SegmentState::Open);
    });
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        let unit = ftl.info().content_bytes;
        let full = ftl.info().segment_sectors;
        put(&ftl, &cx, A, 1, 4).await.expect("an append");
        let bytes = vec![7; (full + 2) as usize * unit];
        // Channel, segment, first sector, sectors.
        let wrong = [
            (0, 0, 2, 2),
            (0, 0, 6, 2),
            (0, 0, 4, 3),
            (0, 0, 4, 0),
            (0, 0, 4, full - 2),
            (0, ftl.info().segments, 0, 2),
            (ftl.info().channels, 0, 0, 2),
        ];
        for (channel, segment, first, n) in wrong {
            let part = Sectors::One(&bytes[..n as usize * unit]);
            let result = ftl.append(&cx, channel, segment, first, part, Cause::User, false).await;
            assert!(matches!(result, Err(SftlError::Invalid { .. })), "{result:?}");
        }
        let half = Sectors::One(&bytes[..unit + 1]);
        let result = ftl.append(&cx, 0, 0, 4, half, Cause::User, false).await;
        assert!(matches!(result, Err(SftlError::Invalid { .. })), "{result:?}");
        for (at, first, n) in [(A, 0, 5), (A, 4, 1), (B, 0, 1), ((9, 9), 0, 1)] {
            let read = get(&ftl, &cx, at, first, n).await;
            assert!(matches!(read, Err(SftlError::Invalid { .. })), "{read:?}");
        }
        let trim = ftl.trim(&cx, 9, 9).await;
        assert!(matches!(trim, Err(SftlError::Invalid { .. })));
        // While it is erased a segment takes nothing; the trim has begun in the call.
        let trim = ftl.trim(&cx, 0, 0);
        assert_eq!((ftl.state(0, 0), ftl.write_pointer(0, 0)), (SegmentState::Trimming, 0));
        assert!(put(&ftl, &cx, A, 2, 2).await.is_err());
        assert!(ftl.trim(&cx, 0, 0).await.is_err());
        trim.await.expect("a trim");
        ftl.trim(&cx, 0, 0).await.expect("an empty one needs nothing");
        put(&ftl, &cx, A, 2, 2).await.expect("an append");
        holds(&ftl, &cx, A, 2, 2).await;
    });
}

#[test]
fn what_is_longer_than_a_command_goes_in_pieces() {
    let spec = device((2, 2), 24, 100, 0, "", FREE);
    for store in [StoreKind::Stamps, StoreKind::Memory] {
        let options = SsdOptions { store, hazards: true, ..SsdOptions::default() };
        let drive = Drive::with(&spec, options);
        drive.created(|cx, ftl| async move {
            let full = ftl.info().segment_sectors;
            assert_eq!(full, 200);
            let began = cx.now();
            put(&ftl, &cx, A, 1, full).await.expect("an append");
            let took = cx.now() - began;
            holds(&ftl, &cx, A, 1, full).await;
            assert_eq!(ftl.state(0, 0), SegmentState::Full);
            // In pieces of memory, as a guest has them, and whole sectors.
            let bytes: Vec<Vec<u8>> = (0..100).map(|s| data(B, 2, s, 4096)).collect();
            let pieces: Vec<_> = bytes.iter().map(|b| std::io::IoSlice::new(b)).collect();
            let content = Sectors::Many(&pieces);
            ftl.append(&cx, 0, 1, 0, content, Cause::Metadata, true).await.expect("an append");
            let mut back = vec![0; 100 * 4096];
            let (one, two) = back.split_at_mut(30 * 4096);
            let mut into = [std::io::IoSliceMut::new(one), std::io::IoSliceMut::new(two)];
            let into = SectorsMut::Many(&mut into);
            ftl.read(&cx, 0, 1, 0, into, true).await.expect("a read");
            assert!(back == bytes.concat());
            // All channels at once take no longer than one.
            let began = cx.now();
            let (bytes, unit) = (run_of((0, 2), 1, 0, full, 8), ftl.info().content_bytes);
            if unit == 8 {
                let all: Vec<_> = [(0, 2), (1, 0)]
                    .map(|(c, s)| {
                        ftl.append(&cx, c, s, 0, Sectors::One(&bytes), Cause::User, false)
                    })
                    .into_iter()
                    .collect();
                for append in all {
                    append.await.expect("an append");
                }
                let both = cx.now() - began;
                assert!(both.as_ns() < took.as_ns() * 5 / 4, "{both} for two, {took} for one");
            }
        });
    }
}

/// Two segments with data, and a trim of the first that a cut tears.
fn torn_trim(drive: &Drive) {
    drive.created(|cx, ftl| async move {
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        put(&ftl, &cx, B, 1, 8).await.expect("an append");
    });
    drive.mounted(|cx, ftl| async move {
        let (theirs, its) = (cx.clone(), ftl.clone());
        cx.spawn(async move { drop(its.trim(&theirs, 0, 0).await) });
        cx.sleep(Ns::from_us(1000)).await;
        assert_eq!(ftl.state(0, 0), SegmentState::Trimming);
    });
}

/// A is empty, B is there, and every other block can be used.
fn trimmed(drive: &Drive) {
    drive.mounted(|cx, ftl| async move {
        assert_eq!(ftl.state(0, 0), SegmentState::Empty);
        holds(&ftl, &cx, B, 1, 8).await;
        // So often that the spare ones take their turn.
        for life in 2..6 {
            for segment in (0..ftl.info().segments).filter(|s| *s != 1) {
                put(&ftl, &cx, (0, segment), life, 4).await.expect("an append");
                holds(&ftl, &cx, (0, segment), life, 4).await;
                ftl.trim(&cx, 0, segment).await.expect("a trim");
            }
        }
        ftl.walk().unwrap();
    });
}

#[test]
fn a_trim_that_was_cut_is_repeated() {
    let drive = Drive::new(&plain(), "");
    torn_trim(&drive);
    trimmed(&drive);
}

/// An erase that waits behind a program has not begun: nothing has happened.
#[test]
fn a_trim_that_has_not_begun_never_was() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        put(&ftl, &cx, B, 1, 4).await.expect("an append");
        let (theirs, its) = (cx.clone(), ftl.clone());
        cx.spawn(async move {
            let more = put(&its, &theirs, B, 1, 4);
            more.await.expect("an append");
        });
        cx.sleep(Ns::from_us(10)).await;
        let (theirs, its) = (cx.clone(), ftl.clone());
        cx.spawn(async move { drop(its.trim(&theirs, 0, 0).await) });
        cx.sleep(Ns::from_us(400)).await;
    });
    drive.mounted(|cx, ftl| async move {
        holds(&ftl, &cx, A, 1, 8).await;
        assert_eq!(get(&ftl, &cx, B, 0, 4).await, Ok(run_of(B, 1, 0, 4, 8)));
    });
}

/// The mount that erases what a cut has torn is cut itself, at each of its commands.
#[test]
fn a_mount_that_is_cut_changes_nothing() {
    let mut cuts = 0;
    for n in 0.. {
        let drive = Drive::new(&plain(), "");
        torn_trim(&drive);
        let mut ended = false;
        for stop in [Stop::Before(n), Stop::Within(n)] {
            ended = drive.mounted_until(Some(stop), |_, _| async {}).is_some();
            cuts += u64::from(!ended);
        }
        trimmed(&drive);
        if ended {
            break;
        }
    }
    assert!(cuts > 20, "{cuts} cuts");
}

/// Programs a row of a chunk of the whole device, as S-FTL would have.
async fn raw(cx: &Cx, ssd: &Ssd, at: Location, lba: u64, generation: u64, content: &[u8]) {
    let n = content.len() / 8;
    let addrs: Vec<Ppa> = (0..n as u32)
        .map(|s| ssd.format().pack(Location { sector: at.sector + s, ..at }))
        .collect();
    let oob: Vec<_> = (0..n)
        .map(|i| {
            let word = content[i * 8..][..8].try_into().expect("eight bytes");
            let crc = Oob::content_crc_word(u64::from_le_bytes(word));
            Oob::encode_raw(lba + i as u64, generation, crc)
        })
        .collect();
    let index: Vec<u32> = (0..n as u32).collect();
    let causes = vec![Cause::User; n];
    let gather = Gather::new(content, &index, 8);
    let device: &dyn Device = ssd;
    let done = device.io(cx, Request::write(&addrs, gather, &oob, &causes)).await;
    assert_eq!(done.failed, 0);
}

/// Where a segment lies on the whole device, and the record of its first sector.
async fn place_of(cx: &Cx, ftl: &Sftl, ssd: &Ssd, at: (u32, u32)) -> (Location, u64, u64) {
    let lba = ftl_lba(ftl, at);
    let place = ftl.locate(lba).expect("it was written");
    let addr = [ssd.format().pack(place)];
    let (mut oob, mut bytes) = ([[0; 16]], [0; 8]);
    let scatter = Scatter::new(&mut bytes, &[0], 0);
    let request =
        Request { data: Data::Read { content: scatter, oob: &mut oob }, ..read_of(&addr) };
    let device: &dyn Device = ssd;
    assert_eq!(device.io(cx, request).await.failed, 0);
    let (number, generation, _) = Oob::decode_raw(&oob[0]);
    (place, number, generation)
}

fn read_of(addr: &[Ppa]) -> Request<'_> {
    Request::plain(Op::Read, addr)
}

fn ftl_lba(ftl: &Sftl, at: (u32, u32)) -> u64 {
    let info = ftl.info();
    let number = u64::from(at.1) * u64::from(info.channels) + u64::from(at.0);
    ftl.meta().info().capacity + number * u64::from(info.segment_sectors)
}

/// An older block of a segment that comes back, wherever it lies, does not count and is erased.
#[test]
fn the_highest_generation_counts() {
    for low in [true, false] {
        let drive = Drive::new(&plain(), "");
        let ssd = drive.ssd.clone();
        drive.created(move |cx, ftl| async move {
            // So that there are generations below, and blocks before and behind.
            for life in 1..6 {
                put(&ftl, &cx, A, life, 4).await.expect("an append");
                ftl.trim(&cx, 0, 0).await.expect("a trim");
            }
            put(&ftl, &cx, A, 9, 4).await.expect("an append");
            let (place, number, generation) = place_of(&cx, &ftl, &ssd, A).await;
            let report = ssd.chunk_report(place.pu, 0, ssd.geometry().chunks_per_pu);
            let first = place.chunk - 5;
            let free = |chunk: &u32| report[*chunk as usize].write_pointer == 0;
            let mut others = (first..report.len() as u32).filter(free);
            let chunk = if low { others.next() } else { others.next_back() };
            let chunk = chunk.expect("a free one");
            assert_eq!(chunk < place.chunk, low);
            let old = run_of(A, 3, 0, 4, 8);
            raw(&cx, &ssd, Location { chunk, ..place }, number, generation - 1, &old).await;
        });
        drive.mounted(|cx, ftl| async move {
            holds(&ftl, &cx, A, 9, 4).await;
            assert_eq!(ftl.recovery().expect("a mount").erased_chunks, 1);
            for segment in 1..ftl.info().segments {
                let full = ftl.info().segment_sectors;
                put(&ftl, &cx, (0, segment), 2, full).await.expect("an append");
            }
        });
    }
}

/// The first program is torn: nothing was there, and nothing is.
#[test]
fn a_torn_first_page_is_nothing() {
    for spec in [plain(), windowed(), paired()] {
        let drive = Drive::new(&spec, "");
        drive.created(|cx, ftl| async move {
            put(&ftl, &cx, B, 1, 4).await.expect("an append");
            ftl.close_pairs(&cx, 0, 1).await.expect("closed");
        });
        drive.mounted(|cx, ftl| async move {
            let (theirs, its) = (cx.clone(), ftl.clone());
            cx.spawn(async move { drop(put(&its, &theirs, A, 1, 2).await) });
            cx.sleep(Ns::from_us(200)).await;
            assert_eq!(ftl.write_pointer(0, 0), 2);
        });
        drive.mounted(|cx, ftl| async move {
            assert_eq!(ftl.state(0, 0), SegmentState::Empty);
            let unit = ftl.info().content_bytes;
            assert_eq!(get(&ftl, &cx, B, 0, 4).await, Ok(run_of(B, 1, 0, 4, unit)));
            put(&ftl, &cx, A, 2, 2).await.expect("an append");
            put(&ftl, &cx, A, 2, 2).await.expect("an append");
            holds(&ftl, &cx, A, 2, 4).await;
        });
    }
}

/// Where a sector of a segment lies, as the damage of a test names it.
fn spot(drive: &Drive, ftl: &Sftl, at: (u32, u32), sector: u32) -> Spot {
    let place = ftl.locate(ftl_lba(ftl, at) + u64::from(sector)).expect("it was written");
    (place.pu * drive.ssd.geometry().chunks_per_pu + place.chunk, place.sector)
}

#[test]
fn a_read_names_exactly_what_it_could_not_give() {
    for reads_before_mount in [true, false] {
        let drive = Drive::new(&plain(), "");
        let theirs = drive.clone();
        drive.created(move |cx, ftl| async move {
            put(&ftl, &cx, A, 1, 16).await.expect("an append");
            {
                let mut truth = theirs.truth.lock();
                truth.unreadable.extend([0, 1, 5].map(|s| spot(&theirs, &ftl, A, s)));
                truth.flipped.insert(spot(&theirs, &ftl, A, 9));
                truth.fails_once.extend([3, 12].map(|s| spot(&theirs, &ftl, A, s)));
            }
            if reads_before_mount {
                check_damage(&cx, &ftl).await;
            }
        });
        // Its first record can't be read: the next one that can tells whose it is.
        drive.mounted(|cx, ftl| async move { check_damage(&cx, &ftl).await });
    }
}

async fn check_damage(cx: &Cx, ftl: &Sftl) {
    assert_eq!(ftl.write_pointer(0, 0), 16);
    let unit = ftl.info().content_bytes;
    let mut bytes = vec![0xa5; 16 * unit];
    let into = SectorsMut::One(&mut bytes);
    let read = ftl.read(cx, 0, 0, 0, into, false).await;
    let sectors = vec![0..2, 5..6, 9..10];
    assert_eq!(read, Err(SftlError::Uncorrectable { channel: 0, segment: 0, sectors }));
    let message = read.expect_err("some are lost").to_string();
    assert!(message.contains("segment 0 of channel 0 at sectors 0 to 1, 5, 9"), "{message}");
    for (sector, got) in (0..).zip(bytes.chunks(unit)) {
        let want = match sector {
            0 | 1 | 5 | 9 => vec![0; unit],
            sector => data(A, 1, sector, unit),
        };
        assert!(got == want, "sector {sector}");
    }
}

/// A sector in the place of another is no sector of the segment, however whole it is.
#[test]
fn a_read_looks_whose_sector_it_got() {
    let drive = Drive::new(&plain(), "");
    let theirs = drive.clone();
    drive.created(move |cx, ftl| async move {
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        let (_, number, generation) = place_of(&cx, &ftl, &theirs.ssd, A).await;
        let bytes = data(A, 1, 3, 8);
        let crc = Oob::content_crc(&bytes);
        // Of another sector, and of another generation of this one.
        let wrong = [(3, number + 4, generation), (5, number + 5, generation + 1)];
        for (sector, lba, generation) in wrong {
            let oob = Oob::encode_raw(lba, generation, crc);
            let wrote = crate::face::Wrote { oob, bytes: bytes.clone() };
            theirs.truth.lock().replaced.insert(spot(&theirs, &ftl, A, sector), wrote);
        }
        let read = get(&ftl, &cx, A, 0, 8).await;
        let sectors = vec![3..4, 5..6];
        assert_eq!(read, Err(SftlError::Uncorrectable { channel: 0, segment: 0, sectors }));
    });
}

#[test]
fn a_segment_is_not_erased_under_a_read() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        put(&ftl, &cx, A, 1, 16).await.expect("an append");
        let (theirs, its) = (cx.clone(), ftl.clone());
        let read = cx.spawn_join(async move { get(&its, &theirs, A, 0, 16).await });
        cx.sleep(Ns::from_us(10)).await;
        ftl.trim(&cx, 0, 0).await.expect("a trim");
        assert_eq!(read.await, Ok(run_of(A, 1, 0, 16, ftl.info().content_bytes)));
    });
}

#[test]
fn wear_evens_out_over_the_free_blocks_and_cold_data_is_named() {
    let drive = Drive::new(&windowed(), "");
    drive.created(|cx, ftl| async move {
        let full = ftl.info().segment_sectors;
        for segment in 0..3 {
            put(&ftl, &cx, (0, segment), 1, full).await.expect("an append");
        }
        let cold = 3;
        let mut hint = None;
        for life in 0..40 * LAG as u64 {
            put(&ftl, &cx, (0, 5), life, 2).await.expect("an append");
            ftl.trim(&cx, 0, 5).await.expect("a trim");
            let wear = ftl.wear(0);
            // The least worn are the cold ones.
            let (least, most) = (wear[cold], wear[wear.len() - 1]);
            assert!(most - least <= 1, "{wear:?}");
            hint = ftl.lags(0);
            if hint.is_some() {
                assert!(least >= LAG, "{wear:?}");
                break;
            }
        }
        let named = hint.expect("cold data is named in the end");
        assert!(named < 3, "{named}");
        assert_eq!(get(&ftl, &cx, (0, named), 0, 2).await.map(|b| b.len()), Ok(16));
        ftl.trim(&cx, 0, named).await.expect("a trim");
        // Its block is the least worn free one now, and taken next.
        put(&ftl, &cx, (0, 6), 1, 2).await.expect("an append");
        assert!(ftl.lags(0).is_some_and(|other| other != named));
    });
}

#[test]
fn open_segments_lie_on_all_pus_of_their_channel() {
    let drive = Drive::new(&device((2, 4), 24, 16, 0, "", FREE), "");
    drive.created(|cx, ftl| async move {
        for channel in 0..2 {
            let mut pus = BTreeSet::new();
            for segment in 0..4 {
                put(&ftl, &cx, (channel, segment), 1, 2).await.expect("an append");
                let at = ftl.locate(ftl_lba(&ftl, (channel, segment))).expect("written");
                assert_eq!(at.pu / 4, channel);
                pus.insert(at.pu);
            }
            assert_eq!(pus.len(), 4, "{pus:?}");
        }
    });
}

fn try_create(spec: &DeviceSpec, config: SftlConfig) -> Result<Arc<Sftl>, CreateError> {
    let ssd = Ssd::new(spec, SsdOptions::default()).expect("a device");
    ran(1, |cx| async move { Sftl::create(&cx, ssd, config).await })
}

#[test]
fn too_small_a_device_is_refused_with_what_would_do() {
    let with = |chunks: u32| device((2, 1), chunks, 16, 0, "", FREE);
    for chunks in [1, 4, 8, 12] {
        let refused = try_create(&with(chunks), SftlConfig::default());
        let Err(CreateError::TooSmall { has, needed, capacity, .. }) = refused else {
            panic!("{chunks} chunks: {:?}", refused.map(|f| *f.info()));
        };
        let sectors = with(needed).geometry.sectors();
        assert_eq!(capacity, Some(Bytes::new(sectors * 4096)));
        assert_eq!(has, chunks);
        let ftl = try_create(&with(needed), SftlConfig::default()).expect("that is enough");
        assert!(ftl.info().segments >= 1);
        assert!(try_create(&with(needed - 1), SftlConfig::default()).is_err(), "{needed}");
    }
    for field in ["meta_percent", "over_provisioning_percent"] {
        let mut settings = SftlConfig::default().to_settings();
        settings[field] = 99.into();
        let config = SftlConfig::from_settings(&settings).expect("a number");
        let refused = try_create(&with(40), config).err();
        let Some(CreateError::Config { field: named, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(named, field);
    }
    // The paper's device: 5% of the chunks, three spare blocks in a hundred at most.
    let parafs = DeviceSpec::preset("parafs").expect("a preset");
    let ftl = try_create(&parafs, SftlConfig::default()).expect("it fits");
    let info = *ftl.info();
    assert_eq!((info.channels, info.segment_sectors, info.page_sectors), (32, 512, 2));
    assert_eq!((info.segments, info.pair_sectors), (256 - 13 - 5, 0));
    assert!(ftl.meta().info().capacity > 20_000, "{}", ftl.meta().info().capacity);
}

/// Presets of all shapes: what is written is there, in this life and the next.
#[test]
fn every_preset_will_do() {
    for name in DeviceSpec::preset_names() {
        let spec = DeviceSpec::preset(name).expect("a preset");
        let mut spec = spec.with_parallelism(2, 2).with_chunks_per_pu(40);
        spec.geometry.pages_per_block = spec.geometry.pages_per_block.min(96);
        let drive = Drive::new(&spec, "");
        let fill = |cx: Cx, ftl: Arc<Sftl>| async move {
            let page = ftl.info().page_sectors;
            for at in [A, B, (1, 0), (1, 3)] {
                put(&ftl, &cx, at, 1, 2 * page).await.expect("an append");
                put(&ftl, &cx, at, 1, page).await.expect("an append");
                let end = ftl.close_pairs(&cx, at.0, at.1).await.expect("closed");
                assert_eq!(end > 3 * page, ftl.info().pair_sectors > 0, "{end}");
                assert_eq!(ftl.close_pairs(&cx, at.0, at.1).await, Ok(end), "it pads once");
            }
            ftl.trim(&cx, 1, 3).await.expect("a trim");
        };
        drive.created(fill);
        drive.mounted(|cx, ftl| async move {
            let (page, unit) = (ftl.info().page_sectors, ftl.info().content_bytes);
            for at in [A, B, (1, 0)] {
                let want = run_of(at, 1, 0, 3 * page, unit);
                assert_eq!(get(&ftl, &cx, at, 0, 3 * page).await, Ok(want), "{at:?}");
            }
            assert_eq!(ftl.state(1, 3), SegmentState::Empty);
        });
    }
}

#[test]
fn what_the_page_mapped_region_has_under_way_is_known() {
    let drive = Drive::new(&device((2, 1), 40, 16, 0, "", FREE), "");
    drive.created(|cx, ftl| async move {
        let busy = |ftl: &Sftl| {
            let of = |channel| ftl.meta_busy(channel);
            [of(0), of(1)].map(|b| [b.reads, b.writes, b.erases])
        };
        let (meta, watch) = (ftl.meta(), ftl.clone());
        let (theirs, end) = (cx.clone(), meta.info().capacity);
        let work = cx.spawn_join(async move {
            // So often that the region has to erase.
            for i in 0..4 * end {
                let bytes = content(i % end, i, 8);
                let write = Io::write(Lba::new(i % end), 1, true, &bytes);
                meta.start(&theirs, write).await.expect("a write");
            }
        });
        let (mut wrote, mut erased) = ([false; 2], false);
        for _ in 0..20_000 {
            cx.sleep(Ns::from_us(50)).await;
            let now = busy(&watch);
            (0..2).for_each(|channel| wrote[channel] |= now[channel][1] > 0);
            erased |= now.iter().any(|channel| channel[2] > 0);
        }
        assert_eq!((wrote, erased), ([true; 2], true));
        work.await;
        cx.sleep(Ns::from_ms(100)).await;
        assert_eq!(busy(&watch), [[0; 3]; 2]);
    });
}

#[test]
fn the_page_mapped_region_is_the_file_systems_from_its_first_sector() {
    let drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        let meta = ftl.meta();
        assert!(meta.info().capacity >= 64);
        for lba in 0..meta.info().capacity {
            let bytes = content(lba, 1, 8);
            meta.start(&cx, Io::write(Lba::new(lba), 1, false, &bytes)).await.expect("a write");
        }
        meta.start(&cx, Io::flush()).await.expect("a flush");
        let beyond = Io::discard(Lba::new(meta.info().capacity), 1);
        assert!(matches!(meta.start(&cx, beyond).await, Err(BlockError::Invalid { .. })));
    });
    drive.mounted(|cx, ftl| async move {
        let meta = ftl.meta();
        let mut bytes = [0; 8];
        for lba in 0..meta.info().capacity {
            meta.start(&cx, Io::read(Lba::new(lba), 1, &mut bytes)).await.expect("a read");
            assert!(bytes[..] == content(lba, 1, 8));
        }
    });
}

#[test]
fn a_new_one_is_made_at_any_cut_of_its_making() {
    for n in 0.. {
        let drive = Drive::new(&plain(), "");
        let config = drive.config.clone();
        let made = drive.life(Some(Stop::Within(n)), |cx, device| async move {
            Sftl::create(&cx, device, config).await.map(drop).expect("a new one");
        });
        drive.mounted(|cx, ftl| async move {
            put(&ftl, &cx, A, 1, 2).await.expect("an append");
        });
        drive.mounted(|cx, ftl| async move { holds(&ftl, &cx, A, 1, 2).await });
        if made.is_some() {
            assert!(n > 4, "{n} commands");
            break;
        }
    }
}

#[test]
fn what_is_anothers_is_not_mounted() {
    let mut drive = Drive::new(&plain(), "");
    drive.created(|cx, ftl| async move {
        put(&ftl, &cx, A, 1, 2).await.expect("an append");
    });
    let ours = drive.config.clone();
    drive.config = SftlConfig { segments: Some(3), ..ours.clone() };
    assert_eq!(drive.refused(), MountError::Other);
    drive.config = SftlConfig { over_provisioning_percent: 20, ..ours };
    // What it came out as is on the medium.
    drive.mounted(|cx, ftl| async move { holds(&ftl, &cx, A, 1, 2).await });
    // Something in its blocks, and no ledger; then a record that no segment has.
    let drive = Drive::new(&plain(), "");
    let ssd = drive.ssd.clone();
    let last = ssd.geometry().chunks_per_pu - 1;
    let foreign = Location { pu: 0, chunk: last, sector: 0 };
    drive.life(None, {
        let ssd = ssd.clone();
        move |cx, _| async move { raw(&cx, &ssd, foreign, 77, 5, &[1; 16]).await }
    });
    assert_eq!(drive.refused(), MountError::Nothing { chunks: 1 });
    let drive = Drive::new(&plain(), "");
    let ssd = drive.ssd.clone();
    drive.created(move |cx, _| async move { raw(&cx, &ssd, foreign, 77, 5, &[1; 16]).await });
    let refused = drive.refused();
    let MountError::Foreign { chunk, lba: 77, .. } = refused else { panic!("{refused}") };
    assert_eq!(chunk, last);
}

#[test]
fn open_segments_are_as_many_as_the_device_allows() {
    let limits = format!("{STRICT}max_open_per_pu = 4\n");
    let drive = Drive::new(&device((2, 1), 24, 16, 0, "", &limits), "");
    drive.created(|cx, ftl| async move {
        assert_eq!(ftl.info().open_segments, 2);
        put(&ftl, &cx, A, 1, 2).await.expect("an append");
        put(&ftl, &cx, B, 1, 2).await.expect("an append");
        let refused = put(&ftl, &cx, (0, 2), 1, 2).await;
        assert_eq!(refused, Err(SftlError::TooManyOpen { channel: 0 }));
        put(&ftl, &cx, (1, 2), 1, 2).await.expect("another channel");
        let full = ftl.info().segment_sectors;
        put(&ftl, &cx, B, 1, full - 2).await.expect("an append");
        put(&ftl, &cx, (0, 2), 1, 2).await.expect("one is full");
        ftl.trim(&cx, 0, 0).await.expect("a trim");
        put(&ftl, &cx, (0, 3), 1, 2).await.expect("one is trimmed");
    });
    let tight = device((2, 1), 24, 16, 0, "", &format!("{FREE}max_open_per_pu = 2\n"));
    let refused = try_create(&tight, SftlConfig::default()).err();
    assert!(matches!(refused, Some(CreateError::OpenLimit { .. })), "{refused:?}");
}

#[test]
fn the_hosts_link_costs_time_and_keeps_the_order() {
    let took = |link: Option<LinkSpec>| {
        let ssd = Ssd::new(&plain(), SsdOptions::default()).expect("a device");
        ran(1, |cx| async move {
            let ftl = Sftl::create(&cx, ssd, SftlConfig::default()).await.expect("a new one");
            if let Some(link) = &link {
                ftl.behind_link(link);
            }
            let began = cx.now();
            put(&ftl, &cx, A, 1, 8).await.expect("an append");
            holds(&ftl, &cx, A, 1, 8).await;
            ftl.trim(&cx, 0, 0).await.expect("a trim");
            let bytes = [1; 8];
            let write = Io::write(Lba::new(0), 1, false, &bytes);
            ftl.meta().start(&cx, write).await.expect("a write");
            cx.now() - began
        })
    };
    let link = LinkSpec {
        to_device: Bytes::from_mib(100),
        to_host: Bytes::from_mib(100),
        command: Ns::from_us(20),
        queue_depth: 0,
    };
    let (near, far) = (took(None), took(Some(link)));
    assert!(far > near + Ns::from_us(500), "{near:?} and {far:?}");
}

/// On an image a flush is what a killed process needs; a full disk fails appends, and no more.
#[test]
fn an_image_keeps_what_was_flushed_and_a_full_disk_harms_nothing() {
    let spec = plain();
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &spec, &CreateImage::default()).expect("created");
    let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).expect("opened");
    let (theirs, disk) = (ssd.clone(), file.clone());
    let killed = ran(1, move |cx| async move {
        let ftl = Sftl::create(&cx, theirs, SftlConfig::default()).await.expect("a new one");
        put(&ftl, &cx, A, 1, 8).await.expect("an append");
        assert!(ftl.flush(&cx).await);
        let killed = disk.bytes();
        disk.limit(Some(disk.bytes().len() as u64));
        let mut failed = 0;
        for at in [A, B, (1, 0)] {
            for _ in 0..20 {
                let before = ftl.write_pointer(at.0, at.1);
                let first = put(&ftl, &cx, at, 1, 2);
                match first.await {
                    Ok(()) => {}
                    Err(SftlError::Host { .. }) => {
                        failed += 1;
                        assert_eq!(ftl.write_pointer(at.0, at.1), before);
                    }
                    Err(SftlError::Invalid { .. }) => break,
                    Err(other) => panic!("{other}"),
                }
            }
            // Two at once: the second is not sent behind the first.
            let (first, unit) = (ftl.write_pointer(at.0, at.1), ftl.info().content_bytes);
            if first + 4 <= ftl.info().segment_sectors {
                let bytes = run_of(at, 1, first, 2, unit);
                let content = Sectors::One(&bytes);
                let one = ftl.append(&cx, at.0, at.1, first, content, Cause::User, false);
                let next = ftl.write_pointer(at.0, at.1);
                let two = ftl.append(&cx, at.0, at.1, next, content, Cause::User, false);
                assert!(one.await.is_err() && two.await.is_err());
                assert_eq!(ftl.write_pointer(at.0, at.1), first);
            }
        }
        assert!(failed > 0, "the disk was full");
        disk.limit(None);
        for at in [A, B, (1, 0)] {
            let pointer = ftl.write_pointer(at.0, at.1);
            put(&ftl, &cx, at, 1, ftl.info().segment_sectors - pointer).await.ok();
            let n = ftl.write_pointer(at.0, at.1);
            holds(&ftl, &cx, at, 1, n).await;
        }
        killed
    });
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations().first());
    drop(ssd);
    let file = Arc::new(MemoryFile::new(killed));
    let ssd = Ssd::open_on(file, &OpenImage::default()).expect("opened");
    ran(2, move |cx| async move {
        let ftl = Sftl::mount(&cx, ssd, SftlConfig::default()).await.expect("a mount");
        holds(&ftl, &cx, A, 1, 8).await;
    });
}

/// On real threads each core has a channel of its own, and both the page-mapped region.
#[test]
fn real_threads_share_it() {
    let options = SsdOptions { timing: false, ..SsdOptions::default() };
    let ssd = Ssd::new(&plain(), options).expect("a device");
    let slot: Arc<std::sync::Mutex<Option<Arc<Sftl>>>> = Arc::default();
    let done = Arc::new(std::sync::atomic::AtomicU32::new(0));
    Threads::new(2, 1).run(|cx| {
        let (device, slot, done) = (ssd.clone(), slot.clone(), done.clone());
        async move {
            if cx.core().0 == 0 {
                let made = Sftl::create(&cx, device, SftlConfig::default()).await;
                *slot.lock().expect("nobody panics") = Some(made.expect("a new one"));
            }
            let ftl = loop {
                let made = slot.lock().expect("nobody panics").clone();
                if let Some(ftl) = made {
                    break ftl;
                }
                cx.yield_now().await;
            };
            let (channel, full) = (cx.core().0, ftl.info().segment_sectors);
            for life in 0..40 {
                let at = (channel, life as u32 % ftl.info().segments);
                put(&ftl, &cx, at, life, 4).await.expect("an append");
                put(&ftl, &cx, at, life, full - 4).await.expect("an append");
                holds(&ftl, &cx, at, life, full).await;
                let lba = u64::from(channel) * 16 + life % 16;
                let bytes = content(lba, life, 8);
                let write = Io::write(Lba::new(lba), 1, life % 4 == 0, &bytes);
                ftl.meta().start(&cx, write).await.expect("a write");
                ftl.trim(&cx, at.0, at.1).await.expect("a trim");
            }
            done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            while done.load(std::sync::atomic::Ordering::SeqCst) < 2 {
                cx.yield_now().await;
            }
            if channel == 0 {
                ftl.walk().expect("its tables agree");
                let layer: Arc<dyn Layer> = ftl;
                layer.stop(&cx, flashlane_ftl::layer::Stop::Quiet).await.expect("it stops");
            }
        }
    });
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations().first());
}
