//! The detector of journals: which of a drive's writes go round a log.
//!
//! Owns: the heuristic that tells writes of a journal from others by their addresses alone, as a
//! drive sees them ("An Advanced SLC-buffering for TLC NAND Flash-based Storage", section III C:
//! journal writes are *sequential large loops*), its thresholds ([`Config`]) and what it knows
//! ([`Region`]). Promises: no clock, no allocation after [`Detector::new`], a fixed number of
//! [tracks](Config::tracks); the same writes give the same answers; what it says is a hint, so
//! nothing may be lost when it is wrong. Never: knows a file system, or reads what is written.
//!
//! How it tells. A *track* is a place where writes go on where the last one ended. A track that is
//! long enough is a *run*. Somebody who writes a run again, in order, from its start, has gone
//! round: the run is a *loop*, and what is written at its head is a journal's. A log of several
//! extents is several loops. Other writes look alike in part:
//! - A file that is copied or appended to is a run, and nobody begins it again.
//! - A file that is written again as a whole is written in a few bursts of long requests. That takes
//!   one round more, and at once.
//! - A cache that writes back a table's pages goes over the same places in order, but with holes
//!   between them.
//! - A file that lies where a log was is written elsewhere than at the log's head. Such writes end
//!   the loop.

mod detector;
mod table;
mod track;

pub use detector::{Class, Detector, Region};

#[cfg(test)]
mod tests;

/// The thresholds. A block is a sector of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Places that are remembered: all the memory there is.
    pub tracks: usize,
    /// Of these, places where only a little was written so far. Random writes fight for half of
    /// them.
    pub fresh: usize,
    /// Loops at most; PostgreSQL's segments are one each.
    pub loops: usize,
    /// Blocks of the smallest run. A log that grows by small pieces has extents of some hundred KiB:
    /// SQLite's WAL on an aged file system.
    pub region_min: u64,
    /// Below so many blocks, 2.5 MiB, a loop is small: it needs a round more, and soon. InnoDB's undo
    /// pages and the small files of a mail spool are written again in order, too. ext4's smallest
    /// journal, InnoDB's smallest redo log and SQLite's usual WAL have 4 MiB.
    pub small: u64,
    /// A small loop's next round begins before this many times its size is written elsewhere.
    pub small_pause: u64,
    /// Blocks that a track may leave out at once, where requests overtake each other.
    pub gap: u64,
    /// Blocks behind its head that a run may write again: a last block that was not full, or a
    /// request that was overtaken (XFS has eight buffers of 32 KiB on their way).
    pub back: u64,
    /// Blocks at the start of a loop, and before it, that are written out of turn: the superblock
    /// of ext4's journal, the three blocks of InnoDB's header.
    pub header: u64,
    /// Blocks in order from the start of what is known until they count as another round: more than
    /// a header has.
    pub confirm: u64,
    /// The same elsewhere in a loop, where a lone file may lie: a log that goes on there after a
    /// power cut.
    pub resync: u64,
    /// A request of so many blocks is long: who reads ahead, copies or writes back a file has such.
    pub long: u64,
    /// A round of long requests is a bulk of data's, unless so many of them are followed by a
    /// very short one, of [`Config::record`]: the record that ends a transaction. Caches that write
    /// several files back in turn leave each at its end only.
    pub transactions: u64,
    /// Blocks of such a record at most: ext4's has one.
    pub record: u64,
    /// Rounds of a bulk until it is a loop, if less is written between them than in one: a file that
    /// is written, rewritten, and rewritten again has three.
    pub bulk_laps: u32,
    /// Of so many requests one may leave a gap. Pages that a cache writes back leave a gap before
    /// every other one.
    pub hole_one_in: u64,
    /// A loop ends when other writes in it, since its last round, reach its size divided by this.
    pub stray_part: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tracks: 128,
            fresh: 64,
            loops: 48,
            region_min: 192,
            small: 640,
            small_pause: 10,
            gap: 16,
            back: 64,
            header: 4,
            confirm: 8,
            resync: 32,
            long: 64,
            transactions: 8,
            record: 8,
            bulk_laps: 3,
            hole_one_in: 6,
            stray_part: 16,
        }
    }
}
