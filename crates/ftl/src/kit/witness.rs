//! Records that bear witness of the other chunks of their line: how often these had been erased.
//!
//! Owns: which sector bears witness of which chunk, and the tag that it carries. Promises: a mount
//! can tell a chunk whose erase was torn from one that was lost, as long as it can read a sector in
//! another chunk of the line. Never: reads or programs.
//!
//! After a torn erase no sector of a chunk can be read; after the loss of a chunk none can, either.
//! A torn erase is no loss, because the FTL erases a chunk only when every sector in it is
//! superseded and durable elsewhere. The device's report tells the two apart: it counts erases,
//! torn ones too. So each record of a host's sector or of a page carries a tag in bits 32 .. 36 of
//! its lba field: 0, or 1 + the erases of another chunk of its line, modulo 14, as the report had
//! them when the line was opened. In a line of w chunks, sector `s` of the chunk in column `c`
//! speaks of the chunk in column (c + 1 + s mod (w - 1)) mod w. So a chunk with w - 1 sectors
//! speaks of all others. A tag of 15 would look like a type of sector.
//!
//! A tag of 0 says nothing. A record has it where the device does not count erases. The pages of
//! counts have the tag of a chunk that is the only good one of its line (`pages.rs`). With
//! capacitors no record has a tag: the dump says which chunks were being erased.

/// Erase counts that tags tell apart.
const COUNTS: u32 = 14;

/// The tag that says: so often erased.
pub(super) fn tag_of(erases: u32) -> u8 {
    1 + (erases % COUNTS) as u8
}

/// The columns of a line that the sectors of one of its chunks speak of, one after the other.
pub(super) struct Round {
    column: u32,
    width: u32,
    next: u32,
}

impl Round {
    /// From this sector on, in the chunk of this column of a line of `width` columns.
    pub(super) fn from(sector: u32, column: u32, width: u32) -> Round {
        let next = match width {
            0 | 1 => 0,
            _ => (column + 1 + sector % (width - 1)) % width,
        };
        Round { column, width, next }
    }
}

impl Iterator for Round {
    type Item = u32;

    /// The column that the next sector speaks of; none, in a line of one.
    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.width < 2 {
            return None;
        }
        let this = self.next;
        let step = |column: u32| if column + 1 == self.width { 0 } else { column + 1 };
        self.next = step(this);
        if self.next == self.column {
            self.next = step(self.next);
        }
        Some(this)
    }
}

/// Tags of a chunk that were found, a bit each.
#[derive(Clone, Copy, Default)]
pub(super) struct Heard(u16);

impl Heard {
    pub(super) fn note(&mut self, tag: u8) {
        self.0 |= 1 << tag & !1;
    }

    /// True if the chunk has been erased since what bears witness of it was written, false if it
    /// has not; `None`: nothing does. `erases`: as the device reports it now. Where sectors
    /// contradict each other it counts as not erased.
    pub(super) fn is_erased_since(self, erases: u32) -> Option<bool> {
        (self.0 != 0).then_some(self.0 >> tag_of(erases) & 1 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Heard, Round, tag_of};

    #[test]
    fn each_chunk_speaks_of_all_others_in_turn() {
        for width in 2..6 {
            for column in 0..width {
                let all: Vec<u32> =
                    Round::from(0, column, width).take(3 * width as usize).collect();
                for (sector, other) in (0u32..).zip(&all) {
                    assert_eq!(*other, (column + 1 + sector % (width - 1)) % width);
                    assert_eq!(Round::from(sector, column, width).next(), Some(*other));
                    assert_ne!(*other, column);
                }
            }
        }
        assert_eq!(Round::from(3, 0, 1).next(), None);
    }

    #[test]
    fn a_tag_tells_an_erase_from_none() {
        for erases in [0, 1, 12, 13, 14, 4000] {
            let mut heard = Heard::default();
            assert_eq!(heard.is_erased_since(erases), None);
            heard.note(0);
            assert_eq!(heard.is_erased_since(erases), None, "nobody knows");
            heard.note(tag_of(erases));
            assert_eq!(heard.is_erased_since(erases), Some(false));
            (1..14).for_each(|n| assert_eq!(heard.is_erased_since(erases + n), Some(true)));
            heard.note(tag_of(erases + 1));
            assert_eq!(
                heard.is_erased_since(erases + 1),
                Some(false),
                "they contradict each other"
            );
        }
    }
}
