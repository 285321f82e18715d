//! What lies together in a flash block when a run on files is over.
//!
//! Owns: [`Together`]: for each flash block of a file system's log whose pages are in it; a sample of blocks to
//! draw. Promises: a block of S-FTL is a segment; on any other FTL each sector is where the FTL says that its newest
//! content lies; nothing is counted where a device is too large to look at each sector. Never: asks the medium.
//!
//! A log on a log mixes: the FTL below writes in the order of arrival what several segments of the file system above
//! send (ParaFS paper, 2.2 and Figure 3).

use crate::stack::Stack;
use flashlane_parafs::{Layout, UsedPage};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Blocks that are drawn at most.
const SAMPLE_BLOCKS: usize = 32;
/// Sectors of a block that are drawn at most.
const SAMPLE_SECTORS: u32 = 128;

/// What flash blocks hold of a file system's log.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Together {
    /// Flash blocks in which something of the log is in use.
    pub blocks: u64,
    /// Different segments of the log in such a block, mean.
    pub segments_mean: f64,
    /// Different files whose pages and nodes are in such a block, mean.
    pub files_mean: f64,
    /// Sectors of these blocks that neither the log nor the sectors in place use, over all their sectors:
    /// garbage, and what open blocks have free.
    pub unused_ratio: f64,
    /// Some of them, evenly spread over the device, a cell for each sector, or for every n-th.
    #[serde(skip)]
    pub sample: Vec<Vec<Held>>,
}

/// What a sector of a flash block is to the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Held {
    #[default]
    Unused,
    /// Of the sectors that are written in place.
    InPlace,
    /// Of this segment of the log.
    Segment(u32),
}

/// A sector in use: the sector in its block, what it is, the file.
type Used = (u32, Held, u32);

impl Together {
    /// Of the pages in use on a stack, with the areas of its file system; nothing of devices that are too large, or
    /// whose FTL does not say where sectors lie.
    pub(crate) fn of(layout: &Layout, pages: &[UsedPage], stack: &Stack) -> Option<Together> {
        if !stack.may_be_looked_through() {
            return None;
        }
        let mut blocks: BTreeMap<(u32, u32), Vec<Used>> = BTreeMap::new();
        let sectors = layout.shape.page_sectors;
        if stack.is_in_order() {
            for page in pages {
                let block = blocks.entry((0, page.segment)).or_default();
                let first = page.page * sectors;
                let held = Held::Segment(page.segment);
                block.extend((first..first + sectors).map(|at| (at, held, page.file)));
            }
        } else {
            let mut put = |lba: u64, held: Held, file: u32| {
                if let Some(at) = stack.locate(lba) {
                    blocks.entry((at.pu, at.chunk)).or_default().push((at.sector, held, file));
                }
            };
            (0..layout.shape.meta_sectors).for_each(|lba| put(lba, Held::InPlace, 0));
            for page in pages {
                let held = Held::Segment(page.segment);
                let lbas = page.sector..page.sector + u64::from(sectors);
                lbas.for_each(|lba| put(lba, held, page.file));
            }
        }
        Together::of_blocks(blocks.into_values().collect(), stack.block_sectors())
    }

    fn of_blocks(mut blocks: Vec<Vec<Used>>, sectors: u32) -> Option<Together> {
        // Segment and file of what is of the log.
        let of_log = |block: &[Used]| -> Vec<(u32, u32)> {
            let of = |(_, held, file): &Used| match held {
                Held::Segment(segment) => Some((*segment, *file)),
                Held::InPlace | Held::Unused => None,
            };
            block.iter().filter_map(of).collect()
        };
        blocks.retain(|block| !of_log(block).is_empty());
        let n = blocks.len();
        let mean = |of: fn(&(u32, u32)) -> u32| {
            let different =
                |block: &Vec<Used>| of_log(block).iter().map(of).collect::<BTreeSet<u32>>().len();
            blocks.iter().map(different).sum::<usize>() as f64 / n as f64
        };
        let used: usize = blocks.iter().map(Vec::len).sum();
        let shown = n.min(SAMPLE_BLOCKS);
        (n > 0).then(|| Together {
            blocks: n as u64,
            segments_mean: mean(|(segment, _)| *segment),
            files_mean: mean(|(_, file)| *file),
            unused_ratio: 1.0 - used as f64 / (n as f64 * f64::from(sectors)),
            sample: (0..shown).map(|i| cells(&blocks[i * n / shown], sectors)).collect(),
        })
    }
}

/// A cell for each sector of a block, or for every n-th where they are many.
fn cells(block: &[Used], sectors: u32) -> Vec<Held> {
    let every = sectors.div_ceil(SAMPLE_SECTORS).max(1);
    let mut cells = vec![Held::Unused; sectors.div_ceil(every) as usize];
    for (at, held, _) in block.iter().filter(|(at, ..)| at.is_multiple_of(every)) {
        if let Some(cell) = cells.get_mut((at / every) as usize) {
            *cell = *held;
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_and_files_of_a_block_are_counted_and_drawn() {
        let (a, b) = (Held::Segment(1), Held::Segment(2));
        let mixed = vec![(0, a, 7), (1, b, 8), (2, Held::InPlace, 0), (3, b, 7)];
        let pure = vec![(0, a, 7)];
        let in_place = vec![(0, Held::InPlace, 0)];
        let t = Together::of_blocks(vec![mixed, pure, in_place], 4).expect("there are some");
        assert_eq!((t.blocks, t.segments_mean, t.files_mean), (2, 1.5, 1.5));
        assert_eq!(t.unused_ratio, 1.0 - 5.0 / 8.0);
        let none = Held::Unused;
        assert_eq!(t.sample, [vec![a, b, Held::InPlace, b], vec![a, none, none, none]]);
        assert_eq!(Together::of_blocks(Vec::new(), 4), None);
        // Every second sector of 256 is drawn, and 32 blocks of 64.
        let blocks = vec![vec![(255, a, 1), (254, b, 1)]; 64];
        let t = Together::of_blocks(blocks, 256).expect("there are some");
        assert_eq!((t.sample.len(), t.sample[0].len()), (SAMPLE_BLOCKS, 128));
        assert_eq!(t.sample[0][126..], [none, b]);
    }
}
