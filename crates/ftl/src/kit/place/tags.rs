//! The tags of chunks: how often each had been erased, and who says so.
//!
//! Owns: the tag of each chunk, the flag that a record in another chunk speaks of it ([`HEARD`]),
//! and which tags the pages of counts have. Promises: of each chunk that holds something a record
//! on the medium speaks, or the pages of counts have to ([`Place::has_untold_erases`]); a chunk
//! counts as spoken of once the record is programmed, and no longer than its chunk is there. Never:
//! chooses a place, or programs (`witness.rs` says which record speaks of which chunk).

use flashlane_base::mutant;

use super::super::buffer::NIL;
use super::super::witness::{Round, tag_of};
use super::{HEARD, LineState, Place, RETIRED, SUSPECT, WRITTEN};

impl Place {
    /// Returns the tags of a line's chunks, by column. Records in each chunk have those of the
    /// others.
    pub(in crate::kit) fn tags_of(&self, line: u32) -> &[u8] {
        let positions = self.layout.positions_of(line);
        let first = self.layout.chunk_index(line, positions.start);
        &self.tags[first..first + positions.len()]
    }

    /// The device reports so many erases of a chunk that was erased. One that is not counted can't
    /// be told from none.
    pub(in crate::kit) fn note_erases(&mut self, line: u32, position: u32, erases: u32) {
        let at = self.layout.chunk_index(line, position);
        self.erased_untold |= self.lines[line as usize].chunks == 1 || self.told[at] != 0;
        let tag = &mut self.tags[at];
        *tag = if *tag == tag_of(erases) { 0 } else { tag_of(erases) };
    }

    /// The pages of counts have to be written before what is in open chunks is durable.
    pub(in crate::kit) fn has_untold_erases(&self) -> bool {
        let differs = |at: usize| self.told[at] != self.tags[at];
        self.tells && (self.untold || self.without_witness().any(differs))
    }

    /// True if chunks were erased that will need new pages of counts when they are opened.
    pub(in crate::kit) fn will_need_counts(&self) -> bool {
        self.tells && self.erased_untold
    }

    /// Barriers write pages of counts where they are needed.
    pub(in crate::kit) fn set_tells_erases(&mut self, on: bool) {
        self.tells = on;
    }

    /// The tags that pages of counts are to have: those of chunks that hold something and of which
    /// no record in another chunk speaks, and those of the only good chunks of their lines.
    pub(in crate::kit) fn tell_erases(&mut self) -> &[u8] {
        (self.untold, self.erased_untold) = (false, false);
        for line in 0..self.layout.lines {
            let chunks = self.layout.positions_of(line).map(|p| self.layout.chunk_index(line, p));
            let bad = RETIRED | SUSPECT;
            let good = |at: &usize| self.chunks[*at] & bad == 0 && !self.is_offline(*at);
            let alone = chunks.clone().filter(good).count() == 1;
            for at in chunks {
                let due = self.tells && (alone || self.is_unheard(at));
                self.told[at] = if due { self.tags[at] } else { 0 };
            }
        }
        &self.told
    }

    /// Open chunks that hold something and that no record in another chunk of their line speaks of.
    fn without_witness(&self) -> impl Iterator<Item = usize> {
        let open = self.streams.iter().flat_map(|s| (0..).zip(&s.next).map(move |n| (s, n)));
        let open = open.map(|(s, (position, next))| (s.line_at(position), position, *next));
        let open = open.filter(|(line, position, next)| {
            *line != NIL && *next > 0 && self.layout.positions_of(*line).contains(position)
        });
        let open = open.map(|(line, position, _)| self.layout.chunk_index(line, position));
        open.filter(|at| self.chunks[*at] & HEARD == 0)
    }

    /// Barriers write pages of counts.
    pub(in crate::kit) fn tells_erases(&self) -> bool {
        self.tells
    }

    /// Clears, at the end of a mount, the tags of chunks in closed lines that hold nothing valid. The
    /// mount does not know how often they had been erased when they were written, and nothing in
    /// them is missed.
    pub(in crate::kit) fn forget_erases(&mut self) {
        for line in 0..self.layout.lines {
            let l = &self.lines[line as usize];
            if l.valid == 0 && !matches!(l.state, LineState::Free | LineState::Open) {
                for position in self.layout.positions_of(line) {
                    self.tags[self.layout.chunk_index(line, position)] = 0;
                }
            }
        }
    }

    /// A chunk of this line is lost, or what was programmed there last. It may have held the only
    /// record that speaks of another one.
    pub(in crate::kit) fn forget_heard(&mut self, line: u32) {
        if !mutant!("kit.witness-not-replaced") {
            for (line, position) in self.layout.chunks_of(line) {
                self.chunks[self.layout.chunk_index(line, position)] &= !HEARD;
            }
            self.lines[line as usize].heard = false;
            self.untold |= self.is_unheard_untold(self.layout.chunks_of(line));
        }
    }

    /// Marks the chunks of which a mount has found a readable record in another chunk, (line,
    /// position) each.
    pub(in crate::kit) fn note_heard(&mut self, chunks: &[(u32, u32)]) {
        for (line, position) in chunks {
            self.chunks[self.layout.chunk_index(*line, *position)] |= HEARD;
        }
        self.untold |= self.is_unheard_untold(self.layout.chunks());
    }

    /// True if the pages of counts lack the tag of one of these chunks, which holds something and of
    /// which no record in another chunk speaks.
    pub(super) fn is_unheard_untold(&self, mut chunks: impl Iterator<Item = (u32, u32)>) -> bool {
        let is_untold = |(line, position): (u32, u32)| {
            let at = self.layout.chunk_index(line, position);
            self.is_unheard(at) && self.told[at] != self.tags[at]
        };
        self.tells && chunks.any(is_untold) && !mutant!("kit.witness-not-replaced")
    }

    /// This chunk holds something, and no record in another chunk speaks of it.
    fn is_unheard(&self, at: usize) -> bool {
        self.chunks[at] & (WRITTEN | HEARD) == WRITTEN
    }

    /// Sectors were programmed from sector `from` on at a position of a line. Each for which `says`
    /// gives true has a record that speaks of another chunk; padding has none.
    #[inline]
    pub(in crate::kit) fn hear(
        &mut self,
        (line, position): (u32, u32),
        from: u32,
        says: impl Iterator<Item = bool>,
    ) {
        if self.tells && !self.lines[line as usize].heard {
            self.hear_more((line, position), from, says);
        }
    }

    #[cold]
    fn hear_more(
        &mut self,
        (line, position): (u32, u32),
        from: u32,
        says: impl Iterator<Item = bool>,
    ) {
        let columns = self.layout.positions_of(line);
        let first = self.layout.chunk_index(line, columns.start);
        let round = Round::from(from, position - columns.start, columns.len() as u32);
        for (column, _) in
            round.zip(says).filter(|(_, says)| *says || mutant!("kit.padding-speaks"))
        {
            self.chunks[first + column as usize] |= HEARD;
        }
        let of_line = &self.chunks[first..first + columns.len()];
        let is_heard = of_line.len() < 2 || of_line.iter().all(|flags| flags & HEARD != 0);
        self.lines[line as usize].heard = is_heard;
    }
}
