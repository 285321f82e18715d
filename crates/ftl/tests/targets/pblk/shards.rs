//! Shards that have not changed since an older checkpoint wrote them (FORMAT.md, rule 24).
//!
//! Owns: what of that shows on the medium and in a mount; what other cores do meanwhile, and what is
//! pinned, is in `log/durable/checkpoint.rs`. Geometry: that of `damage`, with shards of 64 entries.

use super::damage::{intact, small};
use crate::prelude::*;

/// So many sectors are in use.
const WRITTEN: u64 = 1000;
const PER_SHARD: u64 = 64;

fn in_small_shards() -> Setup {
    // Three times two copies of so small shards take as much as they map.
    small().op(70).with(|s| {
        s.spec.geometry.chunks_per_pu = 160;
        s.config.shard_entries = PER_SHARD as u32;
    })
}

/// A shard of a checkpoint, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    written: u64,
    places: [Extent; 2],
    open_sequence: u64,
}

/// The newest complete checkpoint and its shards.
fn newest(medium: &Medium) -> (u64, BTreeMap<u32, Named>) {
    let id = medium.checkpoints().first().expect("a checkpoint").0;
    let of =
        |record| match record {
            Record::CheckpointShard {
                checkpoint, written, shard, places, open_sequence, ..
            } if checkpoint == id => Some((shard, Named { written, places, open_sequence })),
            _ => None,
        };
    (id, medium.records().into_iter().filter_map(|e| of(e.record)).collect())
}

/// Written once, checkpoints since, and lines that are closed behind them: what a checkpoint leaves out no
/// replay would find.
fn lived_in() -> Bench {
    let bench = Medium::new(in_small_shards()).create();
    for lba in (0..WRITTEN).step_by(50) {
        bench.write(lba, 50, 1);
    }
    bench.drained();
    checkpoints(&bench, 2);
    bench
}

/// Goes on until so many more are complete, in the last shard that is in use.
fn checkpoints(bench: &Bench, more: u64) {
    let newest = || bench.medium.checkpoints().first().map_or(0, |c| c.0);
    let before = newest();
    for version in 1000.. {
        for n in 0..25 {
            bench.write(WRITTEN + n % 20, 1, version);
            bench.flush();
        }
        if newest() >= before + more {
            return;
        }
    }
}

/// A checkpoint names what has not changed where it is; the shard itself says who wrote it, and a mount finds
/// all there is, after a cut and after a stop. The first checkpoint of a life writes everything.
#[test]
fn what_has_not_changed_is_named_where_it_is() {
    let bench = lived_in();
    let (before, shards_before) = newest(&bench.medium);
    checkpoints(&bench, 3);
    let (id, shards) = newest(&bench.medium);
    assert!(id >= before + 3);
    let (changed, stays): (Vec<_>, Vec<_>) = shards.iter().partition(|s| s.1.written == id);
    assert!(changed.len() <= 3 && stays.len() > 20, "{} changed", changed.len());
    let written: BTreeMap<_, _> = bench.medium.typed(LBA_CHECKPOINT).into_iter().collect();
    for (shard, named) in stays {
        let same = (named.written, named.places);
        assert_eq!(same, (shards_before[shard].written, shards_before[shard].places));
        assert!(named.open_sequence > shards_before[shard].open_sequence, "as it is now");
        for place in named.places {
            let bytes: Vec<u8> =
                spots(&place).iter().flat_map(|at| written[at].bytes.clone()).collect();
            let view = ShardView::decode(&bytes).expect("a shard");
            assert_eq!((view.header().checkpoint, view.header().shard), (named.written, *shard));
        }
    }
    let mounted = bench.cut().mounted();
    intact(&mounted);
    let (id, shards) = newest(&mounted.medium);
    assert!(shards.values().all(|named| named.written == id), "the first of a life");
    checkpoints(&mounted, 2);
    let mounted = mounted.shut_down().mounted();
    assert!(mounted.recovery().clean);
    intact(&mounted);
    mounted.shut_down();
}

/// Rule 24a: what is written, discarded or moved makes its shard be written again. The lines that say so
/// are closed before the checkpoint, so nothing but that has it.
#[test]
fn what_has_changed_is_written_again() {
    type Change = fn(&Bench);
    let changes: [(&str, Change); 3] = [
        ("written", |bench| bench.write(5, 1, 77)),
        ("discarded", |bench| bench.discard(5, 1)),
        ("moved", |bench| while bench.gc_once() {}),
    ];
    for (what, change) in changes {
        let bench = lived_in();
        bench.discard(200, 600);
        change(&bench);
        bench.flush();
        bench.write(200, 300, 78);
        bench.drained();
        checkpoints(&bench, 3);
        let (id, shards) = newest(&bench.medium);
        assert!(shards[&0].written < id, "{what}: two checkpoints ago");
        let mounted = bench.cut().mounted();
        intact(&mounted);
        assert_eq!(mounted.recovery().astray, 0, "{what}");
        mounted.shut_down();
    }
}

/// Rule 24d: a replay begins where the newest checkpoint does, not where the shards that it names were written.
#[test]
fn a_replay_begins_where_the_newest_checkpoint_does() {
    let bench = lived_in();
    bench.discard(200, 600);
    for version in 0..6 {
        bench.write(200, 600, 80 + version);
        bench.drained();
    }
    checkpoints(&bench, 2);
    let (id, shards) = newest(&bench.medium);
    assert!(shards[&0].written + 2 < id && shards[&0].written > 0, "{shards:?}");
    let lines = bench.medium.lines().len() as u64;
    let mounted = bench.cut().mounted();
    let did = mounted.recovery();
    assert!(did.lines_replayed + did.lines_scanned < lines / 2, "{lines} lines, {did:?}");
    intact(&mounted);
    mounted.shut_down();
}
