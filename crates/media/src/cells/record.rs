//! A chunk as an image keeps it, and lost sectors beside it.
//!
//! Owns: the bytes of a chunk's row. Promises: what is read back behaves as what was written did;
//! a row that no chunk can have is refused with what is wrong. Never: knows where rows lie.
//!
//! Bytes are in `docs/IMAGE.md`, "Row of a chunk".

use super::{CellMode, Cells, Chunk, ChunkState, Found, LastOp};
use crate::image::sectors::Owner;
use crate::image::table::{ROW_BYTES, Row};
use crate::store::Unread;
use flashlane_base::{Ns, OOB_BYTES, SECTOR_BYTES};
use std::io::{self, Read, Write};

const STATES: [ChunkState; 4] =
    [ChunkState::Free, ChunkState::Open, ChunkState::Closed, ChunkState::Offline];
const LAST: [LastOp; 6] = [
    LastOp::Nothing,
    LastOp::Program,
    LastOp::Erase,
    LastOp::FailedProgram,
    LastOp::FailedErase,
    LastOp::PowerCut,
];
const DAMAGED: u8 = 1;
const FAILED: u8 = 2;
const DOOMED: u8 = 4;
const KEPT: u8 = 8;

/// Which of a list it is.
fn code<T: PartialEq>(list: &[T], of: &T) -> u8 {
    list.iter().position(|x| x == of).unwrap_or(0) as u8
}

/// Lost or kept sectors of a chunk: (chunk of the channel, first, end).
pub type Lost = (u32, u32, u32);

impl Chunk {
    /// Of its erases, those of the mode that it is not in now. Rows have this number: where one has a zero
    /// because it is of a format without, all erases count for the present mode, as that format counted them.
    fn other_erases(&self) -> u32 {
        match self.mode {
            CellMode::Native => self.slc_erases,
            CellMode::Slc => self.erases - self.slc_erases,
        }
    }

    fn to_row(&self) -> Row {
        let mut row = [0; ROW_BYTES];
        let slot = self.body.slot().map_or(0, |slot| slot + 1);
        for (at, word) in [self.wp, self.erases, self.reads, slot].into_iter().enumerate() {
            row[at * 4..at * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        row[16] = code(&STATES, &self.state);
        row[17] = (self.mode == CellMode::Slc) as u8;
        let flags = [
            (self.damaged, DAMAGED),
            (self.failed, FAILED),
            (self.doomed, DOOMED),
            (self.kept, KEPT),
        ];
        row[18] = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
        row[19] = code(&LAST, &self.last);
        row[20..24].copy_from_slice(&self.other_erases().to_le_bytes());
        row[24..32].copy_from_slice(&self.last_at.as_ns().to_le_bytes());
        row[32..40].copy_from_slice(&self.since.as_ns().to_le_bytes());
        row
    }

    fn from_row(row: &Row) -> Option<Chunk> {
        let word = |at: usize| row[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | *b as u32);
        let time = |at: usize| Ns::from_ns((word(at + 4) as u64) << 32 | word(at) as u64);
        let mut chunk = Chunk {
            wp: word(0),
            erases: word(4),
            reads: word(8),
            state: *STATES.get(row[16] as usize)?,
            mode: match row[17] {
                0 => CellMode::Native,
                1 => CellMode::Slc,
                _ => return None,
            },
            damaged: row[18] & DAMAGED != 0,
            failed: row[18] & FAILED != 0,
            doomed: row[18] & DOOMED != 0,
            kept: row[18] & KEPT != 0,
            last: *LAST.get(row[19] as usize)?,
            last_at: time(24),
            since: time(32),
            ..Chunk::new()
        };
        let rest = chunk.erases.checked_sub(word(20))?;
        chunk.slc_erases = if chunk.mode == CellMode::Slc { rest } else { word(20) };
        if let Some(slot) = word(12).checked_sub(1) {
            chunk.body.set_slot(slot);
        }
        Some(chunk)
    }
}

impl Cells {
    /// The row of a chunk.
    pub fn row(&self, index: u32) -> Row {
        self.chunks[index as usize].to_row()
    }

    /// Makes the chunk what a row says; gives its slot. To be done before anything else.
    ///
    /// # Errors
    /// What is wrong with the row.
    pub fn restore(&mut self, index: u32, row: &Row) -> Result<Option<u32>, String> {
        let chunk = Chunk::from_row(row).ok_or("it has a state or erases that there are not")?;
        let (state, wp, slot) = (chunk.state, chunk.wp, chunk.body.slot());
        let owner = Owner { chunk: self.p.first_chunk + index, erases: chunk.erases };
        self.chunks[index as usize] = Chunk { state: ChunkState::Free, ..chunk };
        if slot.is_some() {
            self.chunks[index as usize].body.set_owner(owner);
        }
        let length = self.length(index);
        if wp > length || state == ChunkState::Free && wp != 0 {
            return Err(format!("its write pointer is {wp}, its length {length}"));
        }
        if state == ChunkState::Open && (wp == 0 || wp == length) {
            return Err(format!("it is open with write pointer {wp} of {length}"));
        }
        self.set_state(index, state);
        Ok(slot)
    }

    /// Lost sectors of all chunks.
    pub fn lost(&self) -> impl Iterator<Item = Lost> + '_ {
        self.damage.iter().flat_map(|(index, list)| list.iter().map(|r| (*index, r.0, r.1)))
    }

    /// Takes back what [`Cells::lost`] gave, after the rows.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn restore_lost(&mut self, (index, from, end): Lost) -> Result<(), String> {
        let known = self.chunks.get(index as usize).is_some_and(|c| c.damaged);
        if !known || from > end || end > self.p.sectors {
            return Err(format!("sectors {from} to {end} of chunk {index} can't be lost"));
        }
        self.damage.entry(index).or_default().push((from, end));
        Ok(())
    }

    /// Whether the host gives what was written to a sector, readable yet or not, in an image. Nothing, or
    /// what the medium has lost, is as good as given.
    ///
    /// # Errors
    /// The host can't, or it is damaged.
    pub fn look_through(&self, index: u32, sector: u32) -> Result<(), Unread> {
        // What can't be read yet may be lost already.
        if self.look(index, sector) == Found::Nothing || self.has_lost(index, sector) {
            return Ok(());
        }
        let (mut content, mut oob) = ([0; SECTOR_BYTES], [0; OOB_BYTES]);
        self.copy_out(index, sector, false, &mut content, &mut oob)
    }

    /// Contents can be put out: they are in this process's memory.
    pub fn can_save(&self) -> bool {
        self.store.can_save()
    }

    /// Puts out the content of a chunk ([`Store::save`](crate::store::Store::save)).
    ///
    /// # Errors
    /// `out` does not take it.
    pub fn save_content(&self, index: u32, out: &mut dyn Write) -> io::Result<()> {
        let chunk = &self.chunks[index as usize];
        self.store.save(&chunk.body, chunk.wp, out)
    }

    /// Takes in what [`Cells::save_content`] put out, after the rows and once.
    ///
    /// # Errors
    /// `from` ends before, or it makes no sense.
    pub fn load_content(&mut self, index: u32, from: &mut dyn Read) -> io::Result<()> {
        let chunk = &mut self.chunks[index as usize];
        self.store.load(&mut chunk.body, chunk.wp, from)
    }

    /// Dies whose chunks changed since the last call, one flag each.
    pub fn take_touched(&mut self) -> Vec<bool> {
        let fresh = vec![false; self.touched.len()];
        std::mem::replace(&mut self.touched, fresh)
    }

    /// These dies changed, too.
    pub fn touch_again(&mut self, dies: &[bool]) {
        for (mine, theirs) in self.touched.iter_mut().zip(dies) {
            *mine |= theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CellParams;
    use super::*;
    use crate::store::{Store, StoreKind};

    /// Two chunks of two rows of four sectors, two bits per cell.
    fn cells() -> Cells {
        let p = CellParams {
            first_chunk: 0,
            dies: 1,
            chunks_per_die: 2,
            sectors: 8,
            row: 4,
            bits: 2,
            window: 0,
            pairs: None,
            rated_erases: 100,
            rated_erases_slc: 3000,
        };
        Cells::new(p, Store::new(StoreKind::Stamps, 8))
    }

    fn erase(cells: &mut Cells, mode: CellMode) {
        let name = cells.erase(0, mode, Ns::ZERO);
        cells.drop_shelved(name);
    }

    fn erases(cells: &Cells) -> (u32, u32, CellMode) {
        let chunk = cells.chunk(0);
        (chunk.erases, chunk.slc_erases, chunk.mode)
    }

    /// A row has erases of both modes. Where they are not kept apart all count for the mode that the chunk is in, and
    /// the row has a zero.
    #[test]
    fn a_row_has_erases_of_both_modes() {
        let (mut apart, mut together) = (cells(), cells());
        together.count_for_present_mode();
        let steps = [CellMode::Slc, CellMode::Slc, CellMode::Native, CellMode::Slc];
        for (mode, (n, slc)) in steps.into_iter().zip([(1, 0), (2, 1), (3, 2), (4, 2)]) {
            let in_one = if mode == CellMode::Slc { n } else { 0 };
            for (cells, slc) in [(&mut apart, slc), (&mut together, in_one)] {
                erase(cells, mode);
                let mut again = super::tests::cells();
                again.restore(0, &cells.row(0)).expect("a row of ours");
                assert_eq!((erases(cells), erases(&again)), ((n, slc, mode), (n, slc, mode)));
            }
            assert_eq!(together.row(0)[20..24], [0; 4]);
        }
        let mut row = apart.row(0);
        row[20] = 5;
        let refused = cells().restore(0, &row).expect_err("5 of 4 erases");
        assert!(refused.contains("erases that there are not"), "{refused}");
    }

    /// Counts at their ends are counts like others.
    #[test]
    fn wear_has_no_end() {
        let mut cells = cells();
        let mut worn = |erases, slc_erases, rated| {
            let chunk = cells.chunk_mut(0);
            (chunk.erases, chunk.slc_erases) = (erases, slc_erases);
            (cells.p.rated_erases, cells.p.rated_erases_slc) = rated;
            (cells.wear(0), cells.wear_index(0))
        };
        assert_eq!(worn(50, 0, (100, 3000)), ((50, 100), 127));
        assert_eq!(worn(1550, 1500, (100, 3000)), ((300_000, 300_000), 255));
        assert_eq!(worn(80, 30, (100, 100)), ((80, 100), 204));
        assert_eq!(worn(3, 1, (0, 0)), ((3, 1), 255));
        let most = u32::MAX;
        for slc in [1, most / 2, most] {
            for rated in [(1, most), (most, 1), (most, most - 1), (1, 2)] {
                let ((used, of), index) = worn(most, slc, rated);
                let share = (most - slc) as f64 / rated.0 as f64 + slc as f64 / rated.1 as f64;
                let found = used as f64 / of as f64;
                let within = (share + 1.0) / (1 << 30) as f64;
                assert!((found / share - 1.0).abs() <= within, "{slc} {rated:?}: {found}");
                assert_eq!(index, (share * 255.0).min(255.0) as u8);
            }
        }
        cells.chunk_mut(0).slc_erases = most;
        erase(&mut cells, CellMode::Slc);
        assert_eq!(erases(&cells), (most, most, CellMode::Slc));
    }
}
