//! The demand-cached map: what it reads, what it writes, when the host waits for it.
//!
//! Owns: the claims of `cache.rs` in numbers of commands and in time. Promises: devices are small enough
//! to be reckoned by hand. Never: looks at what a cut leaves (the torture of `pftl` draws cached maps).

use super::*;
use crate::kit::cache::{MapStats, SPAN, pages_for};

/// Entries of the cache.
const ENTRIES: u32 = 128;

fn cached(percent: u32) -> PftlConfig {
    let (map, map_cache) = (MapKind::Cached, Some(ENTRIES));
    PftlConfig { map, map_cache, ..config(percent) }
}

/// 4 PUs of 60 chunks of 64 sectors.
fn device() -> Double {
    Double::new(geometry(2, 2, 60, 16), TIMES, Script::default())
}

fn map_stats(ftl: &DriveFtl) -> MapStats {
    ftl.controller.lock().cache.as_ref().expect("a cached map").stats()
}

fn entries(ftl: &DriveFtl) -> usize {
    ftl.controller.lock().cache.as_ref().expect("a cached map").len()
}

/// Long enough for all that is under way.
async fn settle(cx: &Cx) {
    cx.sleep(Ns::from_ms(500)).await;
}

/// Writes all sectors in order, and lets everything settle.
async fn fill(ftl: &DriveFtl, cx: &Cx) {
    for lba in 0..ftl.info().capacity {
        write(ftl, cx, lba, lba + 1).await;
    }
    settle(cx).await;
}

/// The host sees what it sees of a whole map; the translation pages come out of the spare.
#[test]
fn translation_pages_lie_behind_the_hosts_sectors() {
    let whole = with_ftl(device(), config(20), |ftl, _, _| async move { ftl.info().capacity }).0;
    with_ftl(device(), cached(20), move |ftl, _, cx| async move {
        assert_eq!(ftl.info().capacity, whole);
        let mapped = u64::from(ftl.controller.lock().map.capacity());
        assert_eq!(mapped, whole + pages_for(whole));
        let outside = start(&ftl, &cx, BlockOp::Read, whole, &mut [0]).await;
        assert!(matches!(outside, Err(BlockError::Invalid { .. })));
        let extent = ftl.extent(Lba::new(whole - 2), 100);
        assert_eq!((extent.sectors, extent.holds), (2, false));
    });
}

/// A sequential write changes a page's entries one behind the other: all that have changed in a page go
/// out together, and no more entries stay than the cache holds.
#[test]
fn what_has_changed_in_a_page_is_written_at_once() {
    let (stats, ftl, device, _) = with_ftl(device(), cached(20), |ftl, _, cx| async move {
        fill(&ftl, &cx).await;
        assert!(entries(&ftl) <= ENTRIES as usize, "{} entries", entries(&ftl));
        ftl.quiesce(&cx).await;
        map_stats(&ftl)
    });
    let capacity = ftl.info().capacity;
    let batch = stats.map_written_entries / stats.map_write_backs.max(1);
    assert!(stats.map_written_entries >= capacity - u64::from(ENTRIES), "{stats:?}");
    assert!(batch > 16, "{batch} entries per page: {stats:?}");
    assert!(stats.map_update_read_sectors > 0 && stats.map_read_sectors == 0, "{stats:?}");
    let programmed = device.seen(|seen| seen.programmed[Cause::Metadata as usize]);
    assert_eq!(stats.map_written_sectors, programmed);
    assert!(programmed > 0 && programmed <= stats.map_write_backs, "{stats:?}");
    assert_eq!(ftl.stats().host_written, capacity);
}

/// A read whose entry is not in the cache reads a translation page first, and takes twice as long; the
/// next one does not.
#[test]
fn a_miss_costs_a_read_and_a_hit_none() {
    with_ftl(device(), cached(20), |ftl, _, cx| async move {
        fill(&ftl, &cx).await;
        let mut took = Vec::new();
        for lba in [5, 5, 6, u64::from(SPAN) + 5, 6] {
            let (from, before) = (cx.now(), map_stats(&ftl));
            assert_eq!(read(&ftl, &cx, lba).await, Ok(lba + 1));
            let (after, took_now) = (map_stats(&ftl), cx.now() - from);
            let pages = after.map_read_sectors - before.map_read_sectors;
            let hits = after.map_hits - before.map_hits;
            assert_eq!(pages + hits, 1, "{lba}");
            took.push((pages, took_now.as_ns() / 1000));
        }
        assert_eq!(took, [(1, 100), (0, 50), (1, 100), (1, 100), (0, 50)]);
        // Of what was never written nothing is on flash; its page says so.
        let all = map_stats(&ftl);
        assert_eq!((all.map_misses, all.map_hits), (3, 2));
        ftl.stop(&cx).await;
    });
}

/// GC puts new places into the cache, reads no translation page for them, and moves translation pages
/// as it moves data.
#[test]
fn gc_changes_the_map_lazily() {
    for victim in [Victim::Line, Victim::Block] {
        // Large enough for pages that are not written again before GC comes to them.
        let config = PftlConfig { victim, map_cache: Some(8000), ..cached(20) };
        let (stats, ftl, ..) = with_ftl(device(), config, |ftl, _, cx| async move {
            fill(&ftl, &cx).await;
            let mut rng = Rng::new(8);
            // Of what is not written any more the pages are moved.
            let capacity = ftl.info().capacity;
            for (i, span) in [capacity, capacity / 2].into_iter().enumerate() {
                for _ in 0..2 * capacity {
                    write(&ftl, &cx, rng.below(span), i as u64).await;
                }
            }
            settle(&cx).await;
            assert!(entries(&ftl) <= 8000, "{} entries", entries(&ftl));
            let stats = map_stats(&ftl);
            ftl.stop(&cx).await;
            stats
        });
        let s = ftl.stats();
        assert!(s.gc_moved > 1000 && stats.map_moved_sectors > 0, "{victim:?}: {stats:?}");
        assert!(stats.map_lazy_entries > 1000, "{victim:?}: {stats:?}");
        assert!(stats.map_lazy_entries <= s.gc_moved, "{victim:?}: {stats:?}");
        assert_eq!(stats.map_read_sectors, 0, "{victim:?}: nobody reads");
        assert!(stats.map_update_read_sectors <= stats.map_write_backs, "{stats:?}");
    }
}

/// A trim changes as many entries at once as it has sectors: the next write waits until their pages are
/// written.
#[test]
fn the_host_waits_while_the_cache_is_far_behind() {
    with_ftl(device(), cached(20), |ftl, _, cx| async move {
        fill(&ftl, &cx).await;
        let before = map_stats(&ftl).map_write_backs;
        let mut all = vec![0; ftl.info().capacity as usize];
        start(&ftl, &cx, BlockOp::Discard, 0, &mut all).await.expect("a discard");
        assert!(ftl.map_is_behind() && entries(&ftl) == all.len());
        write(&ftl, &cx, 7, 70).await;
        let written = map_stats(&ftl).map_write_backs - before;
        assert!(!ftl.map_is_behind() && written > 0, "{written} pages");
        assert_eq!(read(&ftl, &cx, 7).await, Ok(70));
        assert_eq!(read(&ftl, &cx, 8).await, Ok(0));
        settle(&cx).await;
        assert!(entries(&ftl) <= ENTRIES as usize, "{} entries", entries(&ftl));
        ftl.stop(&cx).await;
    });
}

/// What reads have brought in leaves without a program, and whoever waits for that is told.
#[test]
fn entries_that_have_not_changed_leave_at_once() {
    with_ftl(device(), cached(20), |ftl, _, cx| async move {
        fill(&ftl, &cx).await;
        let before = map_stats(&ftl);
        let capacity = ftl.info().capacity;
        ftl.translate(&cx, 0, capacity as u32).await;
        assert!(ftl.map_is_behind(), "{} entries", entries(&ftl));
        write(&ftl, &cx, 7, 70).await;
        let after = map_stats(&ftl);
        assert!(!ftl.map_is_behind() && entries(&ftl) <= ENTRIES as usize + 64);
        let read = after.map_read_sectors - before.map_read_sectors;
        // The last page may have reached the cache only.
        assert!((1..=pages_for(capacity)).contains(&read), "{read} pages");
        ftl.stop(&cx).await;
    });
}
