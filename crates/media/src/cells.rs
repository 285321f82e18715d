//! What: the chunks of a channel, their states, their write pointers, what can be read.
//!
//! Owns: [`Chunk`] and the effect of programs, erases and failures on it. Promises: states change
//! only as OCSSD 2.0 has them (free, open, closed, offline); content of a chunk is gone once its
//! erase has begun and not before, so a power cut can still give it back. Never: refuses anything
//! (the device's rule checker does), never looks at a clock.
//!
//! State and content change when a command is submitted, in the order of submission, although time
//! passes until it is done. That is sound because nobody can look in between: the result is handed
//! out at the end, operations on one chunk keep their order under every die policy, and a power cut
//! takes back what had not begun ([`Cells::undo_program`], [`Cells::undo_erase`]).

mod kept;
mod record;

pub use record::Lost;

use crate::image::sectors::Owner;
use crate::outcome::{CellMode, ChunkState};
use crate::pairing::PageMap;
use crate::payload::{Gather, Scatter};
use crate::store::{Body, HostFailed, Store, StoreKind, Unread};
use flashlane_base::{FastDiv, Ns, OOB_BYTES, SECTOR_BYTES, mutant};
use std::collections::BTreeMap;

/// Shape of a channel's chunks and when their pages can be read.
#[derive(Clone, Debug)]
pub struct CellParams {
    /// Number on the device of the first chunk.
    pub first_chunk: u32,
    /// Dies on the channel.
    pub dies: u32,
    /// Chunks per die.
    pub chunks_per_die: u32,
    /// Sectors per chunk in the native mode.
    pub sectors: u32,
    /// Sectors in one page row.
    pub row: u32,
    /// Bits per cell in the native mode.
    pub bits: u32,
    /// Sectors that must follow a sector of an open chunk before it can be read.
    pub window: u32,
    /// Page pairs; with a table, it says what is readable in place of `window`.
    pub pairs: Option<PageMap>,
    /// Erases a chunk is made for.
    pub rated_erases: u32,
    /// The same in SLC mode.
    pub rated_erases_slc: u32,
}

/// Sectors of a chunk in SLC mode, of so many in the native one: whole rows of a page per word line.
pub fn slc_sectors(sectors: u32, row: u32, bits: u32) -> u32 {
    sectors / row / bits.max(1) * row
}

/// What was done to a chunk last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastOp {
    /// Nothing since the device was made.
    #[default]
    Nothing,
    /// A program.
    Program,
    /// An erase.
    Erase,
    /// A program that failed.
    FailedProgram,
    /// An erase that failed.
    FailedErase,
    /// A power cut hit it.
    PowerCut,
}

/// A chunk: one cache line, since everything that touches a sector touches it first.
#[derive(Debug)]
#[repr(align(64))]
pub struct Chunk {
    /// Next sector to write.
    pub wp: u32,
    /// Erases so far.
    pub erases: u32,
    /// Of those, erases of what it held in SLC mode.
    pub slc_erases: u32,
    /// Sectors read since the last erase.
    pub reads: u32,
    /// State.
    pub state: ChunkState,
    /// Cell mode since the last erase.
    pub mode: CellMode,
    /// Some sectors hold nothing that could be read.
    damaged: bool,
    /// Closed or taken offline by a failure: commands that were under way then are no one's fault.
    pub failed: bool,
    /// The host did not take the program at the write pointer: programs that were on their way
    /// behind it are out of order, which is no one's fault.
    pub refused: bool,
    /// The next erase fails.
    pub doomed: bool,
    /// Some sectors are kept beside the medium: their program failed behind its acknowledgement.
    kept: bool,
    /// What was done last.
    pub last: LastOp,
    /// When.
    pub last_at: Ns,
    /// First program since the last erase: the age of its oldest data.
    pub since: Ns,
    body: Body,
}

const _: () = assert!(size_of::<Chunk>() == 64);

impl Chunk {
    fn new() -> Chunk {
        Chunk {
            wp: 0,
            erases: 0,
            slc_erases: 0,
            reads: 0,
            state: ChunkState::Free,
            mode: CellMode::Native,
            damaged: false,
            failed: false,
            refused: false,
            doomed: false,
            kept: false,
            last: LastOp::Nothing,
            last_at: Ns::ZERO,
            since: Ns::ZERO,
            body: Body::default(),
        }
    }
}

impl Chunk {
    #[inline]
    fn did(&mut self, last: LastOp, at: Ns) {
        (self.last, self.last_at) = (last, at);
    }
}

/// Ranges of sectors: (first, end).
type Ranges = Vec<(u32, u32)>;

/// Puts a range behind the others, or makes the last one longer.
fn append(ranges: &mut Ranges, from: u32, end: u32) {
    match ranges.last_mut() {
        Some(last) if last.1 == from => last.1 = end,
        _ => ranges.push((from, end)),
    }
}

fn hold(ranges: &Ranges, sector: u32) -> bool {
    ranges.iter().any(|r| (r.0..r.1).contains(&sector))
}

/// Leaves what is in front of a sector.
fn cut(ranges: &mut Ranges, end: u32) {
    ranges.retain(|r| r.0 < end);
    ranges.iter_mut().for_each(|r| r.1 = r.1.min(end));
}

/// What a read of one sector found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Data.
    Data,
    /// Nothing written, or offline.
    Nothing,
    /// Written, but its word line is not complete.
    Early,
    /// Written, and lost.
    Damaged,
}

/// A chunk as it was before an erase that has not begun.
#[derive(Debug)]
pub struct Shelved {
    /// Which chunk.
    pub index: u32,
    chunk: Chunk,
    damage: Option<Ranges>,
    kept: Option<Ranges>,
}

/// The chunks of one channel.
#[derive(Debug)]
pub struct Cells {
    p: CellParams,
    chunks: Vec<Chunk>,
    store: Store,
    /// Lost ranges (first, end) of damaged chunks.
    damage: BTreeMap<u32, Ranges>,
    /// Ranges (first, end) that the device keeps in place of the medium.
    kept: BTreeMap<u32, Ranges>,
    shelf: Vec<Option<Shelved>>,
    free_shelf: Vec<u32>,
    rows: FastDiv,
    slc_sectors: u32,
    /// All erases of a chunk count for the mode that it is in.
    one_mode: bool,
    /// Open chunks per die.
    open: Vec<u32>,
    /// Dies with chunks that changed since this was asked last. Programs are noted only where the
    /// contents outlive the process, reads never.
    touched: Vec<bool>,
}

impl Cells {
    /// Erased chunks. The store is one for chunks of `p.sectors`.
    pub fn new(p: CellParams, store: Store) -> Cells {
        let n = p.dies * p.chunks_per_die;
        Cells {
            chunks: (0..n).map(|_| Chunk::new()).collect(),
            store,
            damage: BTreeMap::new(),
            kept: BTreeMap::new(),
            shelf: Vec::new(),
            free_shelf: Vec::new(),
            rows: FastDiv::new(p.row),
            slc_sectors: slc_sectors(p.sectors, p.row, p.bits),
            one_mode: false,
            open: vec![0; p.dies as usize],
            touched: vec![false; p.dies as usize],
            p,
        }
    }

    /// Has all erases of a chunk count for the mode that it is in: so it is where they are not kept apart.
    pub fn count_for_present_mode(&mut self) {
        self.one_mode = true;
    }

    /// Index of a chunk of a die.
    #[inline]
    pub fn index(&self, die: u32, chunk: u32) -> u32 {
        die * self.p.chunks_per_die + chunk
    }

    /// A chunk.
    #[inline]
    pub fn chunk(&self, index: u32) -> &Chunk {
        &self.chunks[index as usize]
    }

    /// A chunk, to mark it.
    #[inline]
    pub fn chunk_mut(&mut self, index: u32) -> &mut Chunk {
        self.touch(index);
        &mut self.chunks[index as usize]
    }

    /// The content store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Shape.
    pub fn params(&self) -> &CellParams {
        &self.p
    }

    /// Open chunks of a die.
    #[inline]
    pub fn open_on(&self, die: u32) -> u32 {
        self.open[die as usize]
    }

    /// Sectors that the chunk holds in its present mode.
    #[inline]
    pub fn length(&self, index: u32) -> u32 {
        match self.chunks[index as usize].mode {
            CellMode::Native => self.p.sectors,
            CellMode::Slc => self.slc_sectors,
        }
    }

    /// Share of a chunk's life that is used up, as a fraction: the erases of each mode over those that it is
    /// made for in that mode, added up. Without erases in SLC mode that is erases over rated erases.
    pub fn wear(&self, index: u32) -> (u32, u32) {
        let chunk = &self.chunks[index as usize];
        let (rated, in_slc) = (self.p.rated_erases.max(1), self.p.rated_erases_slc.max(1));
        if mutant!("device.wear-of-one-mode") {
            return (chunk.erases, if chunk.mode == CellMode::Slc { in_slc } else { rated });
        }
        if chunk.slc_erases == 0 || rated == in_slc {
            return (chunk.erases, rated);
        }
        // Below 2^64: there are at most 2^32 erases of both modes together.
        let (slc, rated, in_slc) = (chunk.slc_erases as u64, rated as u64, in_slc as u64);
        let used = (chunk.erases as u64 - slc) * in_slc + slc * rated;
        let of = rated * in_slc;
        // Squares of both must have room in the error model. The share is then off by 2^-30 times itself at most, as
        // long as it is below one.
        let excess = (u64::BITS - (used | of).leading_zeros()).saturating_sub(u32::BITS);
        ((used >> excess) as u32, ((of >> excess) as u32).max(1))
    }

    /// Wear-level index of OCSSD 2.0: share of the rated erases used up, 255 at the end.
    pub fn wear_index(&self, index: u32) -> u8 {
        let (used, of) = self.wear(index);
        (used as u64 * 255 / of as u64).min(255) as u8
    }

    /// Page row of a sector.
    #[inline]
    pub fn row_of(&self, sector: u32) -> u32 {
        self.rows.div(sector)
    }

    /// The chunk's die holds something new.
    fn touch(&mut self, index: u32) {
        self.touched[(index / self.p.chunks_per_die) as usize] = true;
    }

    fn set_state(&mut self, index: u32, to: ChunkState) {
        let chunk = &mut self.chunks[index as usize];
        let die = (index / self.p.chunks_per_die) as usize;
        self.open[die] -= (chunk.state == ChunkState::Open) as u32;
        self.open[die] += (to == ChunkState::Open) as u32;
        self.touched[die] = true;
        chunk.state = to;
    }

    /// Moves the pointer over `n` sectors: free becomes open, full becomes closed.
    #[inline]
    fn move_pointer(&mut self, index: u32, n: u32, at: Ns) {
        let length = self.length(index);
        let chunk = &mut self.chunks[index as usize];
        debug_assert!(chunk.wp + n <= length, "program past the end");
        if chunk.wp == 0 {
            chunk.since = at;
        }
        chunk.wp += n;
        chunk.did(LastOp::Program, at);
        let (wp, state) = (chunk.wp, chunk.state);
        if wp == length {
            self.set_state(index, ChunkState::Closed);
        } else if state != ChunkState::Open {
            self.set_state(index, ChunkState::Open);
        }
    }

    /// Programs `oob.len()` sectors at the write pointer.
    ///
    /// # Errors
    /// The host did not take them; nothing changed. Never with a store in memory.
    #[inline]
    pub fn program(
        &mut self,
        index: u32,
        content: &Gather<'_>,
        first: usize,
        oob: &[[u8; OOB_BYTES]],
        whole: bool,
        at: Ns,
    ) -> Result<(), HostFailed> {
        let chunk = &mut self.chunks[index as usize];
        if self.store.kind() == StoreKind::File && chunk.body.slot().is_none() {
            let owner = Owner { chunk: self.p.first_chunk + index, erases: chunk.erases };
            chunk.body.set_owner(owner);
        }
        if whole {
            let body = &mut chunk.body;
            self.store.write_whole(body, chunk.wp, content, first, oob)?;
        } else {
            let body = &mut chunk.body;
            self.store.write(body, chunk.wp, content, first, oob)?;
        }
        // The next program of this chunk comes when all other open chunks have had theirs.
        let n = oob.len() as u32;
        self.store.prefetch(&chunk.body, chunk.wp + n, n);
        self.move_pointer(index, oob.len() as u32, at);
        if self.store.kind() == StoreKind::File {
            self.chunks[index as usize].refused = false;
            self.touch(index);
        }
        Ok(())
    }

    /// A program that failed softly: the pointer moves on, the data is lost.
    pub fn program_lost(&mut self, index: u32, n: u32, at: Ns) {
        let chunk = &mut self.chunks[index as usize];
        let from = chunk.wp;
        self.store.write_nothing(&mut chunk.body, from, n);
        if mutant!("device.lost-program-keeps-pointer") {
            return;
        }
        self.move_pointer(index, n, at);
        self.touch(index);
        self.chunks[index as usize].last = LastOp::FailedProgram;
        if !mutant!("device.lost-program-reads") {
            self.mark_damaged(index, from, from + n);
        }
    }

    /// A program that failed hard: nothing written, the chunk is closed where it is.
    pub fn close_early(&mut self, index: u32, at: Ns) {
        if !mutant!("device.early-close-stays-open") {
            self.set_state(index, ChunkState::Closed);
        }
        let chunk = &mut self.chunks[index as usize];
        chunk.failed = true;
        chunk.did(LastOp::FailedProgram, at);
    }

    /// The chunk is bad from now on; its content is not to be had.
    pub fn retire(&mut self, index: u32, at: Ns) {
        if !mutant!("device.failed-erase-not-offline") {
            self.set_state(index, ChunkState::Offline);
        }
        self.give_up_kept(index, 0);
        let chunk = &mut self.chunks[index as usize];
        chunk.failed = true;
        chunk.did(LastOp::FailedErase, at);
    }

    /// The host or the factory says that the chunk is bad.
    pub fn set_offline(&mut self, index: u32) {
        self.set_state(index, ChunkState::Offline);
    }

    /// The mark is taken back: the chunk is what its write pointer says.
    pub fn set_online(&mut self, index: u32) {
        let wp = self.chunks[index as usize].wp;
        let state = match wp {
            0 => ChunkState::Free,
            wp if wp == self.length(index) => ChunkState::Closed,
            _ => ChunkState::Open,
        };
        self.chunks[index as usize].failed = false;
        self.set_state(index, state);
    }

    /// Data of these sectors is lost.
    pub fn mark_damaged(&mut self, index: u32, from: u32, end: u32) {
        self.touch(index);
        self.chunks[index as usize].damaged = true;
        append(self.damage.entry(index).or_default(), from, end);
    }

    /// Erases a chunk. The old content stays on the shelf under the returned name until the erase
    /// begins ([`Cells::drop_shelved`]).
    pub fn erase(&mut self, index: u32, mode: CellMode, at: Ns) -> u32 {
        let state = self.chunks[index as usize].state;
        self.set_state(index, ChunkState::Free);
        let chunk = &mut self.chunks[index as usize];
        let counts = u32::from(!mutant!("device.erase-not-counted"));
        // It wears by what it takes out, not by what comes.
        let worn = if mutant!("device.erase-counts-for-next-mode") { mode } else { chunk.mode };
        let slc = counts * u32::from(worn == CellMode::Slc);
        let erases = chunk.erases.saturating_add(counts);
        let fresh = Chunk {
            erases,
            slc_erases: match self.one_mode {
                true if mode == CellMode::Slc => erases,
                true => 0,
                false => chunk.slc_erases.saturating_add(slc),
            },
            wp: if mutant!("device.erase-keeps-pointer") { chunk.wp } else { 0 },
            mode,
            last: LastOp::Erase,
            last_at: at,
            ..Chunk::new()
        };
        let mut old = std::mem::replace(chunk, fresh);
        if mutant!("image.content-left-early") {
            self.store.free(std::mem::take(&mut old.body));
        }
        old.state = state;
        let forgotten = old.damaged && !mutant!("device.erase-keeps-damage");
        self.chunks[index as usize].damaged = old.damaged && !forgotten;
        let damage = forgotten.then(|| self.damage.remove(&index)).flatten();
        let kept = old.kept.then(|| self.kept.remove(&index)).flatten();
        let shelved = Some(Shelved { index, chunk: old, damage, kept });
        match self.free_shelf.pop() {
            Some(name) => {
                self.shelf[name as usize] = shelved;
                name
            }
            None => {
                self.shelf.push(shelved);
                (self.shelf.len() - 1) as u32
            }
        }
    }

    /// The erase has begun: the old content is gone.
    pub fn drop_shelved(&mut self, name: u32) {
        if let Some(old) = self.shelf.get_mut(name as usize).and_then(Option::take) {
            self.free_shelf.push(name);
            self.store.free(old.chunk.body);
        }
    }

    /// Power cut: the program from `sector` on had not begun, nor anything behind it.
    pub fn undo_program(&mut self, index: u32, sector: u32, at: Ns) {
        let chunk = &mut self.chunks[index as usize];
        // A failure that closed the chunk here had not happened either.
        let closed_here = chunk.failed && chunk.wp == sector;
        if chunk.state == ChunkState::Offline || (chunk.wp <= sector && !closed_here) {
            return;
        }
        if mutant!("device.cut-keeps-waiting-program") {
            return;
        }
        self.store.forget(&mut chunk.body, sector, chunk.wp);
        chunk.wp = sector;
        chunk.did(LastOp::PowerCut, at);
        chunk.failed = false;
        self.set_state(index, if sector == 0 { ChunkState::Free } else { ChunkState::Open });
        if let Some(lost) = self.damage.get_mut(&index) {
            cut(lost, sector);
        }
        self.give_up_kept(index, sector);
    }

    /// Power cut: the program of `from..end` was under way; it holds nothing that could be read.
    /// With `pairs_too`, programmed pages of the same word line are lost with it.
    pub fn tear_program(&mut self, index: u32, from: u32, end: u32, pairs_too: bool, at: Ns) {
        self.touch(index);
        let chunk = &mut self.chunks[index as usize];
        chunk.did(LastOp::PowerCut, at);
        if from >= chunk.wp {
            return; // it failed, and left the chunk closed before it
        }
        self.give_up_kept(index, from);
        if !mutant!("device.torn-program-reads") {
            self.mark_damaged(index, from, end);
        }
        let chunk = &self.chunks[index as usize];
        if !pairs_too || chunk.mode == CellMode::Slc || mutant!("device.pairs-spared") {
            return;
        }
        let Some(pairs) = &self.p.pairs else { return };
        let row = self.p.row;
        let mates: Vec<u32> = pairs.earlier_mates(self.rows.div(from)).collect();
        for mate in mates {
            self.mark_damaged(index, mate * row, (mate + 1) * row);
        }
    }

    /// Power cut: the erase had not begun. The old content is back, whatever was sent after it.
    pub fn undo_erase(&mut self, name: u32) {
        if mutant!("device.cut-keeps-waiting-erase") {
            return self.drop_shelved(name);
        }
        let Some(old) = self.shelf.get_mut(name as usize).and_then(Option::take) else {
            return;
        };
        self.free_shelf.push(name);
        let state = old.chunk.state;
        self.set_state(old.index, ChunkState::Free);
        let fresh = std::mem::replace(&mut self.chunks[old.index as usize], old.chunk);
        self.store.free(fresh.body);
        self.damage.remove(&old.index);
        if let Some(damage) = old.damage {
            self.damage.insert(old.index, damage);
        }
        self.kept.remove(&old.index);
        if let Some(kept) = old.kept {
            self.kept.insert(old.index, kept);
        }
        self.chunks[old.index as usize].state = ChunkState::Free;
        self.set_state(old.index, state);
    }

    /// Power cut: the erase was under way. Nothing can be read or written until the next one.
    pub fn tear_erase(&mut self, index: u32, at: Ns) {
        let length = self.length(index);
        let chunk = &mut self.chunks[index as usize];
        if chunk.state == ChunkState::Offline || mutant!("device.torn-erase-is-whole") {
            return;
        }
        chunk.wp = length;
        chunk.did(LastOp::PowerCut, at);
        self.set_state(index, ChunkState::Closed);
        self.damage.remove(&index);
        self.give_up_kept(index, 0);
        self.mark_damaged(index, 0, length);
    }

    /// True when a sector below the pointer can be read.
    #[inline]
    fn readable(&self, chunk: &Chunk, sector: u32) -> bool {
        if chunk.state == ChunkState::Closed || chunk.mode == CellMode::Slc {
            return true;
        }
        match &self.p.pairs {
            _ if mutant!("device.early-read") => true,
            None => sector + self.p.window < chunk.wp,
            Some(pairs) => {
                let last = pairs.last_mate(self.rows.div(sector));
                chunk.wp >= (last + 1) * self.p.row
            }
        }
    }

    /// True when all sectors `from .. from + n` give data without a second look.
    #[inline]
    pub fn plain(&self, index: u32, from: u32, n: u32) -> bool {
        let chunk = &self.chunks[index as usize];
        let end = from + n;
        if chunk.state == ChunkState::Offline || chunk.damaged || end > chunk.wp {
            return false;
        }
        match &self.p.pairs {
            None => self.readable(chunk, end - 1),
            // A page's mates may lie behind those of a later page.
            Some(_) if chunk.state == ChunkState::Open => false,
            Some(_) => true,
        }
    }

    /// What lies at a sector, without reading it.
    pub fn look(&self, index: u32, sector: u32) -> Found {
        let chunk = &self.chunks[index as usize];
        let offline = chunk.state == ChunkState::Offline && !mutant!("device.bad-chunk-reads");
        if offline || sector >= chunk.wp {
            return Found::Nothing;
        }
        if !self.readable(chunk, sector) {
            return Found::Early;
        }
        if self.has_lost(index, sector) { Found::Damaged } else { Found::Data }
    }

    /// Whether what was written to a sector is lost, and not kept elsewhere.
    fn has_lost(&self, index: u32, sector: u32) -> bool {
        self.chunks[index as usize].damaged
            && self.damage.get(&index).is_some_and(|lost| hold(lost, sector))
            && !self.keeps(index, sector)
    }

    /// Copies out a sector that `look` or `plain` found to hold data.
    #[inline]
    pub fn copy_out(
        &self,
        index: u32,
        sector: u32,
        whole: bool,
        content: &mut [u8],
        oob: &mut [u8; OOB_BYTES],
    ) -> Result<(), Unread> {
        let body = &self.chunks[index as usize].body;
        self.store.read(body, sector, whole, content, oob)
    }

    /// Asks the memory for sectors that will be read soon.
    #[inline]
    pub fn prefetch(&self, index: u32, sector: u32, n: u32) {
        self.store.prefetch(&self.chunks[index as usize].body, sector, n);
    }

    /// Copies out `oob.len()` sectors that `plain` found to hold data, the `k`-th at `place(k)` of
    /// `span` (first sector, sectors), when they are user data read as such: false, and nothing
    /// done, otherwise.
    #[inline]
    pub fn copy_places(
        &self,
        index: u32,
        span: (u32, u32),
        place: impl Fn(usize) -> usize,
        content: &mut Scatter<'_>,
        first: usize,
        oob: &mut [[u8; OOB_BYTES]],
    ) -> bool {
        let body = &self.chunks[index as usize].body;
        self.store.read_places(body, span, place, content, first, oob)
    }

    /// Takes out a sector as it is kept, to program it elsewhere: bytes of content in `into`,
    /// whether they are a whole sector, out-of-band record.
    ///
    /// # Errors
    /// The host could not give it.
    pub fn extract(
        &self,
        index: u32,
        sector: u32,
        into: &mut [u8; SECTOR_BYTES],
    ) -> Result<(usize, bool, [u8; OOB_BYTES]), Unread> {
        self.store.extract(&self.chunks[index as usize].body, sector, into)
    }

    /// Notes sectors read, for read disturb.
    #[inline]
    pub fn note_reads(&mut self, index: u32, n: u32) {
        let chunk = &mut self.chunks[index as usize];
        chunk.reads =
            chunk.reads.saturating_add(if mutant!("device.reads-not-counted") { 0 } else { n });
    }
}
