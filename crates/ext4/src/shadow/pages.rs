//! What the medium holds of a file system in use.
//!
//! Owns: the count of each kind of block, by what writes have said ([`Pages`]). Promises: nothing is read; a
//! block counts once, where the places of metadata do not overlap; what nobody has seen is unknown. Never: tells
//! files from directories, as their inodes are not kept.

use super::{Piece, SECTOR, Shadow, joined};
use crate::pages::{Holds, Pages, Share};
use std::ops::Range;

impl Shadow {
    /// Blocks by what they hold, as they were written last. `held` says how many of these bytes of the file
    /// system the medium holds.
    pub fn pages(&self, held: &mut dyn FnMut(Range<u64>) -> u64) -> Pages {
        let size = u64::from(self.sb.block_bytes);
        let mut pages = Pages::default();
        let mut share = |blocks: Range<u64>| {
            let blocks = blocks.start..blocks.end.min(self.sb.blocks).max(blocks.start);
            let n = blocks.end - blocks.start;
            let held = if n == 0 { 0 } else { held(blocks.start * size..blocks.end * size) };
            Share { blocks: n, held: held.min(n * size) }
        };
        let (mut rest, mut hidden) = (share(0..self.sb.blocks), Share::default());
        let mut sum = Share::default();
        let mut add = |pages: &mut Pages, kind: Holds, share: Share| {
            pages.add(kind, share);
            sum.add(share);
        };
        add(&mut pages, Holds::Superblock, share(0..u64::from(self.sb.first_data_block)));
        for (number, known) in (0..).zip(&self.groups) {
            let all = self.sb.group_blocks(number);
            add(&mut pages, Holds::Superblock, share(self.sb.base_blocks(number)));
            let Some(group) = &known.group else {
                hidden.add(share(all));
                continue;
            };
            for bitmap in group.block_bitmap.into_iter().chain([group.inode_bitmap]) {
                let end = ((bitmap + 1) * size).div_ceil(SECTOR as u64);
                let mut sectors = bitmap * size / SECTOR as u64..end;
                let zeros = sectors.all(|sector| self.zeros.contains(&sector));
                let kind = if zeros { Holds::ZeroBitmap } else { Holds::Bitmap };
                add(&mut pages, kind, share(bitmap..bitmap + 1));
            }
            for (kind, run) in self.tables_of(number, group.inode_table) {
                add(&mut pages, kind, share(run));
            }
            match self.free_of(number) {
                Some(free) => {
                    free.into_iter().for_each(|run| add(&mut pages, Holds::Freed, share(run)))
                }
                None => hidden.add(share(all)),
            }
        }
        if let Some(log) = &self.log {
            let is_empty = log.head.is_some_and(|head| head.start == 0);
            for extent in &log.extents {
                let mut run = extent.first..extent.first + u64::from(extent.blocks);
                if extent.logical == 0 {
                    add(&mut pages, Holds::Journal, share(run.start..run.start + 1));
                    run.start += 1;
                }
                let kind = if is_empty { Holds::DeadJournal } else { Holds::Journal };
                add(&mut pages, kind, share(run));
            }
        }
        rest.sub(sum);
        // Of a group whose bitmap nobody has seen, what is none of its metadata.
        let unknown =
            Share { blocks: hidden.blocks.min(rest.blocks), held: hidden.held.min(rest.held) };
        pages.add(Holds::Unknown, unknown);
        rest.sub(unknown);
        pages.add(Holds::Files, rest);
        pages
    }

    /// Blocks of a group's table of inodes, in runs.
    fn tables_of(&self, group: u32, first: u64) -> Vec<(Holds, Range<u64>)> {
        let per_block = (self.sb.block_bytes / self.piece_bytes) as usize;
        let at = self.index(group, 0);
        let pieces = &self.pieces[at..at + self.per_table as usize];
        let mut runs: Vec<(Holds, Range<u64>)> = Vec::new();
        for (i, (block, number)) in pieces.chunks(per_block).zip(first..).enumerate() {
            let is_clear = || {
                let pieces = i * per_block..(i + 1) * per_block;
                pieces.into_iter().all(|piece| self.is_clear(group, piece as u32))
            };
            let is = |piece: Piece| block.contains(&piece);
            let kind = match () {
                () if is(Piece::Used) || is(Piece::Unknown) => Holds::Inodes,
                () if is(Piece::Freed) && is_clear() => Holds::DeadInodes,
                () if is(Piece::Freed) => Holds::Inodes,
                () => Holds::ZeroInodes,
            };
            match runs.last_mut() {
                Some((same, run)) if *same == kind => run.end = number + 1,
                _ => runs.push((kind, number..number + 1)),
            }
        }
        runs
    }

    /// Blocks of a group that are free; nothing if nobody knows.
    fn free_of(&self, number: u32) -> Option<Vec<Range<u64>>> {
        let known = &self.groups[number as usize];
        let all = self.sb.group_blocks(number);
        let group = known.group.as_ref()?;
        if let Some(used) = known.used.as_ref().filter(|used| used.missing == 0) {
            let mut free = Vec::new();
            for (i, byte) in (0..).zip(used.bits.iter()).filter(|(_, byte)| **byte != 0xff) {
                let first = all.start + i * 8;
                // Most are free, all eight of them.
                let runs = if *byte == 0 { 0..1 } else { 0..8 };
                for bit in runs.filter(|bit| byte >> bit & 1 == 0) {
                    let blocks = first + bit..first + bit + if *byte == 0 { 8 } else { 1 };
                    let blocks = blocks.start.min(all.end)..blocks.end.min(all.end);
                    free = if blocks.is_empty() { free } else { joined(free, blocks) };
                }
            }
            return Some(free);
        }
        if !group.blocks_uninit {
            return None;
        }
        // Its bitmap isn't on the medium: nothing is used but what is its own.
        let table = group.inode_table..group.inode_table + u64::from(self.sb.table_blocks());
        let bitmaps = group.block_bitmap.into_iter().chain([group.inode_bitmap]);
        let mut own: Vec<Range<u64>> = bitmaps.map(|block| block..block + 1).collect();
        own.extend([table, self.sb.base_blocks(number)]);
        own.sort_by_key(|run| run.start);
        let (mut at, mut free) = (all.start, Vec::new());
        for run in own.iter().filter(|run| run.end > all.start && run.start < all.end) {
            if run.start > at {
                free.push(at..run.start);
            }
            at = at.max(run.end);
        }
        free.extend((at < all.end).then_some(at..all.end));
        Some(free)
    }
}
