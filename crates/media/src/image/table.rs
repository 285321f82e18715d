//! Rows with atomic commits: a table in place, and a journal of what changed since.
//!
//! Owns: [`Table`], its rows as of the last commit, the bytes of rows, frames and the mark. Promises:
//! a commit is there in full or not at all, whatever a loss of power leaves of the writes that were
//! not synced; it is durable when [`Table::commit`] returns; damage to anything that is still needed
//! is an error, not another state: no older commit either. Never: knows what a row means.
//!
//! A commit syncs what it depends on, writes frames of 512 bytes behind those of the last commit,
//! and syncs again. When a half of the journal is full, the rows that its commits changed are
//! written in place and synced before the first frame of the other half; so a row torn in place is
//! in the half that is still the newest, and recovery is the table overlaid with that half. A frame
//! is a unit of tearing: it is old, new or zero. Any other frame is damage, or a write that failed
//! in its middle has left it; the mark tells which (`journal.rs`). A commit that failed never gives
//! its sequence number to another one, so frames of two attempts do not mix.
//!
//! What tells damage from a loss of power: every frame must lie where an attempt could have put it
//! (`journal.rs`); a commit carries a sum over all rows as they are after it; and the mark, elsewhere,
//! names a commit that was durable.

use super::journal::{Head, Journal, Mark, part_of_sum, written};
use super::{ImageFault, Layout, MARK_AT};
use crate::host::HostFile;
use flashlane_base::mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of a row.
pub const ROW_BYTES: usize = 56;
/// Bytes of a row in the table: the row, its checksum, four zeros.
pub const STORED_ROW_BYTES: usize = 64;
/// Bytes of a frame of the journal.
pub const FRAME_BYTES: usize = 512;
/// Rows in a frame, each behind its number.
pub const ROWS_PER_FRAME: usize = 8;
/// Bytes read or written at once.
const BATCH: usize = 1 << 20;

/// A row.
pub type Row = [u8; ROW_BYTES];

/// The rows of an image.
pub struct Table {
    file: Arc<dyn HostFile>,
    layout: Layout,
    /// As of the last commit.
    rows: Vec<Row>,
    /// Sum over them, where the format has it.
    sum: Option<u64>,
    /// Sequence of the last commit.
    last: u64,
    /// Highest sequence ever used, by commits that failed too.
    used: u64,
    /// The half that commits go to, and its next frame.
    half: u64,
    next: u64,
    /// Rows that commits in this half changed: not yet in place.
    behind: BTreeSet<u32>,
    /// Where frames of the last commit lie that an earlier process wrote, and how many.
    unsure: (u64, u64),
    /// Places of frames that are damaged or torn and do no harm (`journal.rs`).
    unsound: Vec<u64>,
    /// The commit that the mark names.
    marked: u64,
    broken: bool,
}

/// A row as the table keeps it. The checksum covers its number: a row in another's place is damage.
fn store_row(number: u32, row: &Row) -> [u8; STORED_ROW_BYTES] {
    let mut out = [0; STORED_ROW_BYTES];
    out[..ROW_BYTES].copy_from_slice(row);
    let crc = flashlane_base::crc32c_append(flashlane_base::crc32c(&number.to_le_bytes()), row);
    out[ROW_BYTES..ROW_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Where a row lies.
fn row_at(layout: &Layout, number: u32) -> u64 {
    layout.table_at() + number as u64 * STORED_ROW_BYTES as u64
}

/// Writes rows into their places, with checksums. Numbers rise; what lies side by side goes in one
/// call.
fn write_rows(
    file: &dyn HostFile,
    layout: &Layout,
    numbers: impl Iterator<Item = u32>,
    row_of: impl Fn(u32) -> Row,
) -> Result<(), ImageFault> {
    let write = |first: u32, bytes: &[u8]| {
        let written = file.write_through(row_at(layout, first), bytes);
        written.map_err(ImageFault::io("write the table of"))
    };
    let (mut first, mut next, mut bytes) = (0, 0, Vec::new());
    for number in numbers {
        if !bytes.is_empty() && (number != next || bytes.len() >= BATCH) {
            write(first, &bytes)?;
            bytes.clear();
        }
        if bytes.is_empty() {
            first = number;
        }
        bytes.extend(store_row(number, &row_of(number)));
        next = number + 1;
    }
    if bytes.is_empty() { Ok(()) } else { write(first, &bytes) }
}

/// The sum over the rows of a table.
fn sum_of(rows: &[Row]) -> u64 {
    let parts = (0..).zip(rows).map(|(number, row)| part_of_sum(number, row));
    parts.fold(0, u64::wrapping_add)
}

impl Table {
    /// Writes the table of a new image, and its mark; nothing is synced. Rows that are not named
    /// are zero. Takes memory for the rows that are named and not zero.
    ///
    /// # Errors
    /// The host failed, or has no room for what is written.
    pub fn create(
        file: &dyn HostFile,
        layout: &Layout,
        named: impl IntoIterator<Item = (u32, Row)>,
    ) -> Result<(), ImageFault> {
        let named: BTreeMap<u32, Row> =
            named.into_iter().filter(|(_, row)| *row != [0; ROW_BYTES]).collect();
        let row_of = |number: u32| named.get(&number).copied().unwrap_or([0; ROW_BYTES]);
        let no_room = ImageFault::io("make room for");
        if layout.holes {
            file.set_len(layout.slots_at()).map_err(no_room)?;
            write_rows(file, layout, named.keys().copied(), row_of)?;
        } else {
            let reserve = layout.slots_at() - layout.table_at();
            file.allocate(layout.table_at(), reserve).map_err(no_room)?;
            write_rows(file, layout, 0..layout.rows(), row_of)?;
        }
        let parts = (0..layout.rows()).map(|number| part_of_sum(number, &row_of(number)));
        let sum = parts.fold(0, u64::wrapping_add);
        let mark = Mark { sequence: 0, sum: written(sum) };
        file.write_through(MARK_AT, &mark.seal()).map_err(ImageFault::io("mark"))
    }

    /// Reads the table as of the last commit. `marked` says that the format has sums and the mark.
    ///
    /// # Errors
    /// The file is too short, cannot be read, or is damaged where that counts.
    pub fn open(
        file: Arc<dyn HostFile>,
        layout: Layout,
        marked: bool,
    ) -> Result<Table, ImageFault> {
        let len = file.len().map_err(ImageFault::io("measure"))?;
        if len < layout.slots_at() {
            return Err(ImageFault::Short { len, needed: layout.slots_at() });
        }
        let mark = marked.then(|| Mark::read(&*file)).transpose()?;
        let journal = Journal::read(&*file, &layout, mark.map(|mark| mark.sequence))?;
        let mut table = Table {
            rows: Vec::new(),
            sum: None,
            last: journal.last,
            used: if mutant!("image.sequence-reused") { journal.last } else { journal.used },
            half: journal.half,
            next: journal.next,
            behind: journal.rows.iter().map(|(number, _)| *number).collect(),
            unsure: (layout.frame_at(journal.half, journal.begin), journal.next - journal.begin),
            unsound: journal.unsound,
            marked: mark.map_or(journal.last, |mark| mark.sequence),
            broken: false,
            file,
            layout,
        };
        table.read_rows()?;
        for (number, row) in journal.rows {
            table.rows[number as usize] = row;
        }
        if let Some(mark) = mark {
            table.check_sum(mark, journal.sum)?;
        }
        Ok(table)
    }

    /// Holds the mark, and the sum that the last commit carries, against what was read.
    fn check_sum(&mut self, mark: Mark, carried: u64) -> Result<(), ImageFault> {
        if mark.sequence > self.last && !mutant!("image.mark-ignored") {
            return Err(ImageFault::Lost { marked: mark.sequence, last: self.last });
        }
        let sum = sum_of(&self.rows);
        // Commits from before an upgrade carry none; the mark does.
        let marked = if mark.sequence == self.last { mark.sum } else { 0 };
        let differs = [carried, marked].iter().any(|said| ![0, written(sum)].contains(said));
        if differs && !mutant!("image.sum-ignored") {
            return Err(ImageFault::Sum { last: self.last });
        }
        self.sum = Some(sum);
        Ok(())
    }

    /// The rows in place; those that the journal has need not be sound. One that was never written
    /// is zero, where the format leaves such rows out: if it was lost, the sum says so.
    fn read_rows(&mut self) -> Result<(), ImageFault> {
        let all = self.layout.rows();
        let may_be_hole = self.layout.holes || mutant!("image.old-row-is-hole");
        // Memory is taken for rows that are not zero.
        self.rows = vec![[0; ROW_BYTES]; all as usize];
        let mut bytes = vec![0; BATCH];
        for from in (0..all).step_by(BATCH / STORED_ROW_BYTES) {
            let n = (all - from).min((BATCH / STORED_ROW_BYTES) as u32);
            let bytes = &mut bytes[..n as usize * STORED_ROW_BYTES];
            let read = self.file.read_at(row_at(&self.layout, from), bytes);
            read.map_err(ImageFault::io("read the table of"))?;
            for (stored, number) in bytes.chunks_exact(STORED_ROW_BYTES).zip(from..) {
                if may_be_hole && stored.iter().all(|b| *b == 0) {
                    continue;
                }
                let mut row = [0; ROW_BYTES];
                row.copy_from_slice(&stored[..ROW_BYTES]);
                let needed = !self.behind.contains(&number) || mutant!("image.covered-row-refused");
                let sound = stored == store_row(number, &row) || mutant!("image.row-unchecked");
                if needed && !sound {
                    let place = self.layout.place_of_row(number);
                    let at = row_at(&self.layout, number);
                    return Err(ImageFault::Row { row: number, place, at });
                }
                if row != [0; ROW_BYTES] {
                    self.rows[number as usize] = row;
                }
            }
        }
        Ok(())
    }

    /// A row as of the last commit. `number` is a row of the layout.
    pub fn row(&self, number: u32) -> &Row {
        &self.rows[number as usize]
    }

    /// All of them.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Sequence of the last commit; 0 in a new image.
    pub fn sequence(&self) -> u64 {
        self.last
    }

    /// Makes everything written so far durable, then these rows, all or none; no row is there twice.
    ///
    /// # Errors
    /// The host failed: the table is as before. After a failed sync it can't be used any more.
    pub fn commit(&mut self, rows: Vec<(u32, Row)>) -> Result<(), ImageFault> {
        if self.broken {
            return Err(ImageFault::Broken);
        }
        self.clear_unsound()?;
        // If this attempt fails and leaves a torn frame, the mark tells the frame from damage.
        if self.marked != self.last && !mutant!("image.mark-left-behind") {
            self.write_mark()?;
        }
        if !mutant!("image.content-unsynced") {
            self.sync()?;
        }
        let count = rows.len().div_ceil(ROWS_PER_FRAME).max(1) as u64;
        assert!(count <= self.layout.half_frames(), "more rows than there are");
        if self.next + count > self.layout.half_frames() {
            if !mutant!("image.turn-forgets-rows") {
                self.write_in_place()?;
            }
            if !mutant!("image.turn-unsynced") {
                self.sync()?;
            }
            self.behind.clear();
            (self.half, self.next) = (1 - self.half, 0);
        }
        self.used = if mutant!("image.sequence-reused") { self.last + 1 } else { self.used + 1 };
        let sum = self.sum.map(|sum| {
            rows.iter().fold(sum, |sum, (number, row)| {
                let old = part_of_sum(*number, &self.rows[*number as usize]);
                sum.wrapping_sub(old).wrapping_add(part_of_sum(*number, row))
            })
        });
        let carried = sum.map_or(0, written);
        let head =
            Head { sequence: self.used, count: count as u32, index: 0, rows: 0, sum: carried };
        let mut bytes = Vec::with_capacity(count as usize * FRAME_BYTES);
        for index in 0..count as usize {
            let rest = rows.get(index * ROWS_PER_FRAME..).unwrap_or(&[]);
            let part = &rest[..rest.len().min(ROWS_PER_FRAME)];
            let head = Head { index: index as u32, rows: part.len() as u32, ..head };
            bytes.extend(head.seal(part));
        }
        let at = self.layout.frame_at(self.half, self.next);
        if mutant!("image.mark-early") {
            let mark = Mark { sequence: self.used, sum: carried };
            let _ = self.file.write_through(MARK_AT, &mark.seal());
        }
        if let Err(e) = self.file.write_through(at, &bytes) {
            self.unsound.extend((0..count).map(|i| at + i * FRAME_BYTES as u64));
            return Err(ImageFault::io("write the journal of")(e));
        }
        if !mutant!("image.frames-unsynced") {
            self.sync()?;
        }
        (self.last, self.sum) = (self.used, sum);
        self.next += count;
        for (number, row) in rows {
            self.rows[number as usize] = row;
            self.behind.insert(number);
        }
        // A mark that lags says less, and never too much.
        let _ = self.write_mark();
        Ok(())
    }

    /// Notes that the last commit is durable. The next sync makes the note durable, so it costs none
    /// of its own, and is never ahead of what it names.
    fn write_mark(&mut self) -> Result<(), ImageFault> {
        if let Some(sum) = self.sum {
            let mark = Mark { sequence: self.last, sum: written(sum) };
            self.file.write_through(MARK_AT, &mark.seal()).map_err(ImageFault::io("mark"))?;
        }
        self.marked = self.last;
        Ok(())
    }

    /// Zeroes the frames that are damaged or torn and do no harm: after the next commit they would
    /// be taken for damage.
    fn clear_unsound(&mut self) -> Result<(), ImageFault> {
        while let Some(at) = self.unsound.last().copied() {
            if !mutant!("image.unsound-stays") {
                let gone = self.file.write_through(at, &[0; FRAME_BYTES]);
                gone.map_err(ImageFault::io("write the journal of"))?;
            }
            self.unsound.pop();
        }
        Ok(())
    }

    /// Has an image of a format without it get its mark, durable; the commit it names is.
    pub fn begin_marks(&mut self) -> Result<(), ImageFault> {
        self.sum = Some(sum_of(&self.rows));
        self.sync()?;
        self.write_mark()?;
        self.sync()
    }

    /// Makes what an earlier process has written durable: all that follows is built on it. What is
    /// damaged in the half that is written next, and of no account, goes.
    ///
    /// The last commit is written once more. Its own sync may have failed, and then the host still shows
    /// what it has given up to write: the next sync would say nothing about it. What came before that
    /// commit was durable before its frames were written.
    ///
    /// # Errors
    /// The host failed.
    pub fn settle(&mut self) -> Result<(), ImageFault> {
        if !mutant!("image.last-commit-not-again") {
            let (at, frames) = self.unsure;
            let mut bytes = vec![0; frames as usize * FRAME_BYTES];
            self.file.read_at(at, &mut bytes).map_err(ImageFault::io("read the journal of"))?;
            self.file.write_through(at, &bytes).map_err(ImageFault::io("write the journal of"))?;
        }
        if !mutant!("image.open-unsynced") {
            self.sync()?;
        }
        self.clear_unsound()?;
        let _ = self.write_mark();
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// A host that failed to sync may have dropped what it was to write and call the next sync a
    /// success: nothing is to be believed from then on.
    pub fn sync(&mut self) -> Result<(), ImageFault> {
        if self.broken {
            return Err(ImageFault::Broken);
        }
        let synced = self.file.sync();
        self.broken = synced.is_err() && !mutant!("image.failed-sync-forgotten");
        synced.map_err(ImageFault::io("sync"))
    }

    /// Writes the rows that the journal has into their places.
    fn write_in_place(&mut self) -> Result<(), ImageFault> {
        let behind = self.behind.iter().copied();
        write_rows(&*self.file, &self.layout, behind, |number| self.rows[number as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::{MemoryFile, Moment};

    const LAYOUT: Layout =
        Layout { channels: 1, dies: 1, chunks: 4, sectors: 4, checked: true, holes: false };

    fn open(bytes: Vec<u8>, marked: bool) -> Result<Table, ImageFault> {
        Table::open(Arc::new(MemoryFile::new(bytes)), LAYOUT, marked)
    }

    /// A table of some commits: two rows each, from 20 on; with sums and the mark, or as before 1.2.
    fn some_commits(marked: bool) -> Vec<u8> {
        let file = Arc::new(MemoryFile::default());
        Table::create(&*file, &LAYOUT, []).unwrap();
        let mut table = Table::open(file.clone(), LAYOUT, true).unwrap();
        table.sum = table.sum.filter(|_| marked);
        for n in 1..=5 {
            table.commit(vec![(20, [n; ROW_BYTES]), (20 + n as u32, [n; ROW_BYTES])]).unwrap();
        }
        file.bytes()
    }

    /// Every bit of a row in place and of a frame that counts, without sums and with them.
    #[test]
    fn a_flipped_bit_in_what_is_needed_is_refused() {
        for marked in [false, true] {
            let bytes = some_commits(marked);
            assert_eq!(open(bytes.clone(), marked).unwrap().last, 5);
            let rows = LAYOUT.table_at()..LAYOUT.table_at() + 20 * 64;
            let frames = LAYOUT.journal_at()..LAYOUT.journal_at() + 5 * 512;
            for at in rows.chain(frames).step_by(7) {
                let mut bytes = bytes.clone();
                bytes[at as usize] ^= 1 << (at % 8);
                let said = open(bytes, marked).err().expect("refused").to_string();
                assert!(said.contains("checksum"), "byte {at}: {said}");
            }
        }
    }

    /// A row in place that is sound and older, a last commit that is gone: the sum and the mark tell.
    #[test]
    fn sound_but_older_is_refused() {
        let bytes = some_commits(true);
        let mut stale = bytes.clone();
        let other = store_row(40, &[9; ROW_BYTES]);
        stale[LAYOUT.table_at() as usize + 40 * 64..][..64].copy_from_slice(&other);
        assert!(matches!(open(stale, true), Err(ImageFault::Sum { last: 5 })));
        let mut gone = bytes.clone();
        gone[LAYOUT.frame_at(0, 4) as usize..][..512].fill(0);
        assert!(matches!(open(gone, true), Err(ImageFault::Lost { marked: 5, last: 4 })));
        let mut unmarked = bytes;
        unmarked[MARK_AT as usize..][..512].fill(0);
        assert!(matches!(open(unmarked, true), Err(ImageFault::Mark)));
    }

    /// A format with holes: rows of zeros are not written at first, are read as zeros, and a row
    /// that was written and is gone is damage. In a format without, a hole is damage by itself.
    #[test]
    fn rows_of_zeros_need_not_be_written() {
        let layout = Layout { holes: true, ..LAYOUT };
        let place = |row: u64| (layout.table_at() + row * STORED_ROW_BYTES as u64) as usize;
        let file = Arc::new(MemoryFile::default());
        let named = [(30, [0; ROW_BYTES]), (7, [7; ROW_BYTES])];
        Table::create(&*file, &layout, named).unwrap();
        let bytes = file.bytes();
        assert!(bytes[place(8)..place(31)].iter().all(|b| *b == 0));
        assert!(bytes[place(7)] == 7 && bytes.len() as u64 == layout.slots_at());
        let mut table = Table::open(file.clone(), layout, true).unwrap();
        assert_eq!((table.row(7), table.row(30)), (&[7; ROW_BYTES], &[0; ROW_BYTES]));
        for n in 0..=layout.half_frames() as u8 {
            table.commit(vec![(20, [n + 1; ROW_BYTES])]).unwrap();
        }
        assert_eq!(table.half, 1, "row 20 is in its place");
        let mut bytes = file.bytes();
        assert!(bytes[place(20)] > 0 && bytes[place(30)] == 0);
        let open_with =
            |bytes: &[u8]| Table::open(Arc::new(MemoryFile::new(bytes.to_vec())), layout, true);
        let again = open_with(&bytes).unwrap();
        assert!(again.rows == table.rows && again.last == table.last);
        bytes[place(7)..place(8)].fill(0);
        let refused = open_with(&bytes).err();
        assert!(matches!(refused, Some(ImageFault::Sum { last }) if last == table.last));
        let mut old = some_commits(false);
        old[place(7)..place(8)].fill(0);
        assert!(matches!(open(old, false), Err(ImageFault::Row { row: 7, .. })));
    }

    /// A sync fails, and the host forgets what it was to write, but shows it. Who opens the image then
    /// finds that commit, and builds on it; it must not be gone when the power is.
    #[test]
    fn a_commit_whose_sync_failed_is_written_again_before_anything_builds_on_it() {
        for syncs in 0..2 {
            let start = some_commits(true);
            let file = Arc::new(MemoryFile::new(start.clone()));
            let mut table = Table::open(file.clone(), LAYOUT, true).unwrap();
            table.settle().unwrap();
            file.forget_at_sync(syncs);
            let rows = || vec![(20, [6; ROW_BYTES])];
            assert!(matches!(table.commit(rows()), Err(ImageFault::Io { .. })));
            assert!(matches!(table.commit(rows()), Err(ImageFault::Broken)));
            // Its frames are written when the second sync fails.
            let mut table = Table::open(file.clone(), LAYOUT, true).unwrap();
            assert_eq!(table.last, 5 + syncs);
            table.settle().unwrap();
            table.commit(vec![(30, [7; ROW_BYTES])]).unwrap();
            let (last, now) = (table.last, table.rows.clone());
            let left = Moment::new(&start, &file.log(), file.ops()).nth(0);
            let table = open(left, true).unwrap();
            assert!(table.last == last && table.rows == now);
        }
    }

    /// A row that is damaged in place and is in the journal is recovered; a damaged frame of the older
    /// half is of no account, and does not come to count when its half is used again.
    #[test]
    fn damage_of_no_account_is_recovered() {
        let mut bytes = some_commits(true);
        bytes[LAYOUT.table_at() as usize + 20 * 64] ^= 1;
        let file = Arc::new(MemoryFile::new(bytes));
        let mut table = Table::open(file.clone(), LAYOUT, true).unwrap();
        assert_eq!(table.row(20), &[5; ROW_BYTES]);
        let frames = LAYOUT.half_frames();
        for n in 0..=frames as u8 {
            table.commit(vec![(30, [n; ROW_BYTES])]).unwrap();
        }
        assert_eq!(table.half, 1);
        let mut bytes = file.bytes();
        bytes[LAYOUT.frame_at(0, frames - 1) as usize] ^= 1;
        let file = Arc::new(MemoryFile::new(bytes));
        let mut table = Table::open(file.clone(), LAYOUT, true).unwrap();
        table.settle().unwrap();
        for n in 0..=frames as u8 {
            table.commit(vec![(30, [n; ROW_BYTES])]).unwrap();
        }
        assert_eq!((table.half, open(file.bytes(), true).unwrap().last), (0, table.last));
    }

    /// A file of which some writes fail.
    struct Failing {
        inner: MemoryFile,
        /// Writes that will fail, each once: (offset, bytes that are written before it fails).
        fails: std::sync::Mutex<Vec<(u64, usize)>>,
    }

    impl HostFile for Failing {
        crate::host_file_as_below!(inner: read_at punch allocate sync len set_len);

        fn write_at(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
            let mut fails = self.fails.lock().unwrap();
            let Some(i) = fails.iter().position(|(of, _)| *of == at) else {
                return self.inner.write_at(at, bytes);
            };
            let (_, written) = fails.remove(i);
            self.inner.write_at(at, &bytes[..written])?;
            Err(std::io::Error::from(std::io::ErrorKind::StorageFull))
        }
    }

    /// A commit whose frames are written in part is no damage: the next process finds the commit
    /// before it, even if the mark of that commit could not be written at once.
    #[test]
    fn a_write_that_fails_in_its_middle_is_no_damage() {
        for is_mark_late in [false, true] {
            let inner = MemoryFile::new(some_commits(true));
            let file = Arc::new(Failing { inner, fails: Default::default() });
            let mut table = Table::open(file.clone(), LAYOUT, true).unwrap();
            table.settle().unwrap();
            if is_mark_late {
                file.fails.lock().unwrap().push((MARK_AT, 0));
            }
            table.commit(vec![(20, [6; ROW_BYTES])]).unwrap();
            file.fails.lock().unwrap().push((LAYOUT.frame_at(0, 6), 700));
            let many = || (20..40).map(|number| (number, [7; ROW_BYTES])).collect::<Vec<_>>();
            assert!(table.commit(many()).is_err());
            let found = open(file.inner.bytes(), true).unwrap();
            assert_eq!((found.last, found.rows), (6, table.rows.clone()));
            // This process goes on, with fewer frames than were torn.
            table.commit(vec![(20, [8; ROW_BYTES])]).unwrap();
            let found = open(file.inner.bytes(), true).unwrap();
            assert_eq!((found.last, found.rows), (table.last, table.rows));
            assert!(found.unsound.is_empty());
        }
    }
}
