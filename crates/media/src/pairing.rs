//! Which pages of a block share cells, and what kind of page each is.
//!
//! Owns: [`PageMap`], built from a [`Pairing`]. Promises: for every page row its type (index into
//! the preset's list of times) and the rows that share its word line, whatever the block's length.
//! Never: says what time that is.

use serde::{Deserialize, Serialize};

/// Order in which the pages of a block share word lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// All pages alike; readability follows `mw_cunits` alone.
    #[default]
    None,
    /// Two bits: lower pages 0, 1, 3, 5, ...; upper pages 2, 4, 6, ... and the last. Pairs (0, 2),
    /// (1, 4), (3, 6), ...: the shadow order of common MLC parts.
    Mlc,
    /// FEMU's profile of a 512-page Micron L95B block: first and last word lines hold one bit.
    MlcL95b,
    /// Three bits in shadow order: L0 L1 C0, then L2 C1 U0, L3 C2 U1, ... (the standard order of
    /// OCSSD 1.2).
    Tlc,
    /// Four bits, in the same way.
    Qlc,
}

/// Types and mates of all page rows of a block.
#[derive(Clone, Debug)]
pub struct PageMap {
    types: Vec<u8>,
    /// Last row of the word line.
    last: Vec<u32>,
    /// Word line of a row.
    line: Vec<u32>,
}

impl PageMap {
    /// The map of a block of `rows` page rows.
    pub fn new(pairing: Pairing, rows: u32) -> PageMap {
        let order: Vec<(u8, u32)> = match pairing {
            Pairing::None => (0..rows).map(|r| (0, r)).collect(),
            Pairing::Mlc => mlc(rows),
            Pairing::MlcL95b => l95b(rows),
            Pairing::Tlc => shadow(rows, 3),
            Pairing::Qlc => shadow(rows, 4),
        };
        let types = order.iter().map(|(t, _)| *t).collect();
        let line: Vec<u32> = order.iter().map(|(_, l)| *l).collect();
        let lines = line.iter().max().map_or(0, |l| *l as usize + 1);
        let mut end = vec![0; lines];
        for (row, l) in line.iter().enumerate() {
            end[*l as usize] = row as u32;
        }
        let last = line.iter().map(|l| end[*l as usize]).collect();
        PageMap { types, last, line }
    }

    /// Type of a row: 0 for the lowest page of its word line, then one more for each bit.
    #[inline]
    pub fn kind(&self, row: u32) -> u8 {
        self.types[row as usize]
    }

    /// The row whose program completes the word line: before it the others are not readable.
    #[inline]
    pub fn last_mate(&self, row: u32) -> u32 {
        self.last[row as usize]
    }

    /// Rows of the same word line that come before `row`.
    pub fn earlier_mates(&self, row: u32) -> impl Iterator<Item = u32> + '_ {
        let line = self.line[row as usize];
        // Mates are close: the largest distance of our orders is below 16 rows.
        (row.saturating_sub(16)..row).filter(move |r| self.line[*r as usize] == line)
    }

    /// Largest distance in rows from a page to the one that completes its word line.
    pub fn reach(&self) -> u32 {
        let spans = self.last.iter().enumerate().map(|(r, l)| l - r as u32);
        spans.max().unwrap_or(0)
    }

    /// Rows that must be programmed so that every word line below `rows` is complete.
    pub fn closed_at(&self, rows: u32) -> u32 {
        let mut end = rows;
        let mut row = rows.saturating_sub(16);
        while row < end {
            end = end.max(self.last[row as usize] + 1);
            row += 1;
        }
        end
    }
}

fn mlc(rows: u32) -> Vec<(u8, u32)> {
    let upper = |r: u32| match r {
        0 | 1 => false,
        r => r.is_multiple_of(2) || r == rows - 1,
    };
    pair_up(rows, &upper, 3)
}

fn l95b(rows: u32) -> Vec<(u8, u32)> {
    // FEMU nand.h (facts 7.1): upper pages {6, 9, 504, 505, 508, 511}; 10..=501 alternate in
    // pairs, a lower pair first. Which lower page an upper one belongs to is not in that table;
    // the oldest free one at most six rows back fits all of it and leaves eight single pages.
    let upper = |r: u32| match r {
        6 | 9 | 504 | 505 | 508 | 511 => true,
        10..=501 => (r - 10) % 4 >= 2,
        _ => false,
    };
    pair_up(rows, &upper, 6)
}

/// Word lines from page types: each upper page joins the oldest single lower page in reach.
fn pair_up(rows: u32, upper: &dyn Fn(u32) -> bool, reach: u32) -> Vec<(u8, u32)> {
    let mut out: Vec<(u8, u32)> = Vec::with_capacity(rows as usize);
    let mut single: std::collections::VecDeque<u32> = Default::default();
    for row in 0..rows {
        if !upper(row) {
            single.push_back(row);
            out.push((0, row));
            continue;
        }
        while single.front().is_some_and(|s| row - s > reach) {
            single.pop_front();
        }
        let line = single.pop_front().unwrap_or(row);
        out.push((1, line));
    }
    out
}

/// In each step the next lowest page, the second one of the word line behind it, and so on: no page
/// is programmed before its neighbours have taken the bits below it.
fn shadow(rows: u32, bits: u32) -> Vec<(u8, u32)> {
    let lines = rows / bits;
    let mut out = Vec::with_capacity(rows as usize);
    for step in 0..lines + bits - 1 {
        for bit in 0..bits {
            if let Some(line) = step.checked_sub(bit).filter(|l| *l < lines) {
                out.push((bit as u8, line));
            }
        }
    }
    // Rows that fill no word line are single pages.
    out.extend((lines..lines + rows % bits).map(|l| (0, l)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D22: the type of every page 0..=511 of FEMU's profile, 511 included (the old table ended
    /// one short of it).
    #[test]
    fn l95b_types_are_those_of_the_profile() {
        let map = PageMap::new(Pairing::MlcL95b, 512);
        let lower = [0, 1, 2, 3, 4, 5, 7, 8, 502, 503, 506, 507, 509, 510];
        for row in 0..512u32 {
            let want = match row {
                r if lower.contains(&r) => 0,
                6 | 9 | 504 | 505 | 508 | 511 => 1,
                r => u8::from((r - 10) / 2 % 2 == 1),
            };
            assert_eq!(map.kind(row), want, "page {row}");
        }
        assert_eq!(map.reach(), 6);
        assert_eq!((map.last_mate(10), map.last_mate(11)), (16, 17));
    }

    /// Every order pairs each upper page with earlier ones, never with a later one.
    #[test]
    fn a_word_line_ends_with_its_highest_page() {
        let all = [Pairing::None, Pairing::Mlc, Pairing::MlcL95b, Pairing::Tlc, Pairing::Qlc];
        for pairing in all {
            for rows in [1, 2, 3, 6, 64, 255, 256, 384, 512] {
                let map = PageMap::new(pairing, rows);
                for row in 0..rows {
                    let mates: Vec<u32> = map.earlier_mates(row).collect();
                    assert!(mates.len() <= map.kind(row) as usize);
                    assert!(map.last_mate(row) >= row);
                    assert!(map.closed_at(row) >= row && map.closed_at(rows) == rows);
                }
            }
        }
        let tlc = PageMap::new(Pairing::Tlc, 12);
        let kinds: Vec<u8> = (0..12).map(|r| tlc.kind(r)).collect();
        assert_eq!(kinds, [0, 0, 1, 0, 1, 2, 0, 1, 2, 1, 2, 2]);
        assert_eq!(tlc.last_mate(0), 5);
        assert_eq!(PageMap::new(Pairing::Tlc, 384).reach(), 8);
        assert_eq!(PageMap::new(Pairing::Qlc, 384).reach(), 15);
        let mlc = PageMap::new(Pairing::Mlc, 8);
        let last: Vec<u32> = (0..8).map(|r| mlc.last_mate(r)).collect();
        assert_eq!(last, [2, 4, 2, 6, 4, 7, 6, 7]);
    }
}
