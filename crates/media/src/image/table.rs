//! Rows with atomic commits: a table in place, and a journal of what changed since.
//!
//! Owns: [`Table`], its rows as of the last commit, the bytes of rows and frames. Promises: a commit
//! is there in full or not at all, whatever a loss of power leaves of the writes that were not
//! synced; it is durable when [`Table::commit`] returns; a flipped bit in anything that is still
//! needed is an error, not another state. Never: knows what a row means.
//!
//! A commit syncs what it depends on, writes frames of 512 bytes behind those of the last commit,
//! and syncs again. When a half of the journal is full, the rows that its commits changed are written
//! in place and synced before the first frame of the other half; so a row torn in place is in the
//! half that is still the newest, and recovery is the table overlaid with that half. A frame is a
//! unit of tearing: it is old, new or zero, and anything else is damage. A commit that failed never
//! gives its sequence number to another one, so frames of two attempts do not mix.

use super::{ImageFault, Layout};
use crate::host::HostFile;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a row.
pub const ROW_BYTES: usize = 56;
/// Bytes of a row in the table: the row, its checksum, four zeros.
pub const STORED_ROW_BYTES: usize = 64;
/// Bytes of a frame of the journal.
pub const FRAME_BYTES: usize = 512;
/// Rows in a frame, each behind its number.
pub const ROWS_PER_FRAME: usize = 8;
const FRAME_HEAD: usize = 32;
const NUMBERED: usize = 4 + ROW_BYTES;
const _: () = assert!(FRAME_HEAD + ROWS_PER_FRAME * NUMBERED == FRAME_BYTES);
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
    /// Sequence of the last commit.
    last: u64,
    /// Highest sequence ever used, by commits that failed too.
    used: u64,
    /// The half that commits go to, and its next frame.
    half: u64,
    next: u64,
    /// Rows that commits in this half changed: not yet in place.
    behind: BTreeSet<u32>,
    broken: bool,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    sequence: u64,
    /// Frames of this commit, and which of them this is.
    count: u32,
    index: u32,
    /// Rows in this frame.
    rows: u32,
}

/// A frame as it lies in the file.
enum Frame<'a> {
    Zero,
    Bad,
    Good(Head, &'a [u8]),
}

/// Recovered commits of a half.
#[derive(Default)]
struct Chain {
    first: u64,
    last: u64,
    frames: u64,
    rows: Vec<(u32, Row)>,
    /// The frame that ended it is damaged.
    damaged: bool,
    /// Highest sequence seen anywhere in the half.
    seen: u64,
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | *b as u32)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | *b as u64)
}

/// A row as the table keeps it. The checksum covers its number: a row in another's place is damage.
fn store_row(number: u32, row: &Row) -> [u8; STORED_ROW_BYTES] {
    let mut out = [0; STORED_ROW_BYTES];
    out[..ROW_BYTES].copy_from_slice(row);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), row);
    out[ROW_BYTES..ROW_BYTES + 4].copy_from_slice(&crc.to_le_bytes());
    out
}

impl Head {
    /// Seals a frame.
    fn seal(&self, rows: &[(u32, Row)]) -> [u8; FRAME_BYTES] {
        let mut out = [0; FRAME_BYTES];
        out[4..8].copy_from_slice(&self.rows.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&self.count.to_le_bytes());
        out[20..24].copy_from_slice(&self.index.to_le_bytes());
        for (to, (number, row)) in out[FRAME_HEAD..].chunks_exact_mut(NUMBERED).zip(rows) {
            to[..4].copy_from_slice(&number.to_le_bytes());
            to[4..].copy_from_slice(row);
        }
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }
}

impl Frame<'_> {
    fn parse(bytes: &[u8]) -> Frame<'_> {
        if bytes.iter().all(|b| *b == 0) {
            return Frame::Zero;
        }
        let head = Head {
            rows: le32(bytes, 4),
            sequence: le64(bytes, 8),
            count: le32(bytes, 16),
            index: le32(bytes, 20),
        };
        let sound = le32(bytes, 0) == crc32c::crc32c(&bytes[4..])
            && head.rows as usize <= ROWS_PER_FRAME
            && head.sequence > 0
            && head.index < head.count;
        match sound {
            true => {
                Frame::Good(head, &bytes[FRAME_HEAD..FRAME_HEAD + head.rows as usize * NUMBERED])
            }
            false => Frame::Bad,
        }
    }
}

impl Chain {
    /// The commits that a half holds, from its beginning.
    fn read(half: &[u8]) -> Chain {
        let frames: Vec<Frame<'_>> = half.chunks_exact(FRAME_BYTES).map(Frame::parse).collect();
        let mut chain = Chain::default();
        for frame in &frames {
            if let Frame::Good(head, _) = frame {
                chain.seen = chain.seen.max(head.sequence);
            }
        }
        loop {
            let at = chain.frames as usize;
            let first = match frames.get(at) {
                Some(Frame::Good(head, _)) => *head,
                Some(Frame::Bad) => {
                    chain.damaged = true;
                    return chain;
                }
                Some(Frame::Zero) | None => return chain,
            };
            if first.index != 0 || first.sequence <= chain.last {
                return chain; // of an earlier round
            }
            let Some(all) = frames.get(at..at.saturating_add(first.count as usize)) else {
                chain.damaged = true;
                return chain;
            };
            let mut rows = Vec::new();
            for (frame, index) in all.iter().zip(0..) {
                match frame {
                    Frame::Good(head, bytes)
                        if *head == (Head { index, rows: head.rows, ..first }) =>
                    {
                        rows.extend(bytes.chunks_exact(NUMBERED).map(|numbered| {
                            let mut row = [0; ROW_BYTES];
                            row.copy_from_slice(&numbered[4..]);
                            (le32(numbered, 0), row)
                        }));
                    }
                    Frame::Bad => {
                        chain.damaged = true;
                        return chain;
                    }
                    // Torn: this commit never was.
                    _ => return chain,
                }
            }
            if chain.first == 0 {
                chain.first = first.sequence;
            }
            chain.last = first.sequence;
            chain.frames += first.count as u64;
            chain.rows.append(&mut rows);
        }
    }
}

impl Table {
    /// Writes the table of a new image; nothing is synced. Rows that are not named are zero.
    pub fn create(
        file: Arc<dyn HostFile>,
        layout: Layout,
        named: impl IntoIterator<Item = (u32, Row)>,
    ) -> Result<Table, ImageFault> {
        let mut rows = vec![[0; ROW_BYTES]; layout.rows() as usize];
        for (number, row) in named {
            rows[number as usize] = row;
        }
        let mut table = Table {
            file,
            layout,
            rows,
            last: 0,
            used: 0,
            half: 0,
            next: 0,
            behind: BTreeSet::new(),
            broken: false,
        };
        let reserve = layout.slots_at() - layout.table_at();
        table.file.allocate(layout.table_at(), reserve).map_err(ImageFault::io("make room for"))?;
        table.behind.extend(0..layout.rows());
        table.write_in_place()?;
        table.behind.clear();
        Ok(table)
    }

    /// Reads the table as of the last commit.
    ///
    /// # Errors
    /// The file is too short, cannot be read, or something that is needed does not match its
    /// checksum.
    pub fn open(file: Arc<dyn HostFile>, layout: Layout) -> Result<Table, ImageFault> {
        let len = file.len().map_err(ImageFault::io("measure"))?;
        if len < layout.slots_at() {
            return Err(ImageFault::Short { len, needed: layout.slots_at() });
        }
        let half_bytes = layout.half_frames() as usize * FRAME_BYTES;
        let mut bytes = vec![0; half_bytes];
        let mut chains = Vec::new();
        for half in 0..2 {
            let at = layout.journal_at() + half * half_bytes as u64;
            file.read_at(at, &mut bytes).map_err(ImageFault::io("read the journal of"))?;
            chains.push(Chain::read(&bytes));
        }
        drop(bytes);
        let newer = (chains[1].first > chains[0].first) as usize;
        for (half, chain) in chains.iter().enumerate() {
            // The older half is all in the table; damage there is of no account, as long as a sound
            // frame in front of it says that it is the older one.
            if chain.damaged && (half == newer || chain.first == 0) {
                let frame = half as u64 * layout.half_frames() + chain.frames;
                return Err(ImageFault::Frame { at: layout.journal_at() + frame * 512 });
            }
        }
        let used = chains[0].seen.max(chains[1].seen);
        let chain = chains.swap_remove(newer);
        let mut table = Table {
            rows: Vec::new(),
            last: chain.last,
            used,
            half: newer as u64,
            next: chain.frames,
            behind: chain.rows.iter().map(|(number, _)| *number).collect(),
            broken: false,
            file,
            layout,
        };
        if let Some(far) = table.behind.last().filter(|n| **n >= layout.rows()) {
            return Err(ImageFault::Value(format!("the journal names row {far}")));
        }
        table.read_rows()?;
        for (number, row) in chain.rows {
            table.rows[number as usize] = row;
        }
        Ok(table)
    }

    /// The rows in place; those that the journal has need not be sound.
    fn read_rows(&mut self) -> Result<(), ImageFault> {
        let all = self.layout.rows();
        self.rows.reserve_exact(all as usize);
        let mut bytes = vec![0; BATCH];
        while self.rows.len() < all as usize {
            let from = self.rows.len() as u32;
            let n = (all - from).min((BATCH / STORED_ROW_BYTES) as u32);
            let bytes = &mut bytes[..n as usize * STORED_ROW_BYTES];
            self.file
                .read_at(self.row_at(from), bytes)
                .map_err(ImageFault::io("read the table of"))?;
            for (stored, number) in bytes.chunks_exact(STORED_ROW_BYTES).zip(from..) {
                let mut row = [0; ROW_BYTES];
                row.copy_from_slice(&stored[..ROW_BYTES]);
                if stored != store_row(number, &row) && !self.behind.contains(&number) {
                    return Err(ImageFault::Row { row: number, at: self.row_at(number) });
                }
                self.rows.push(row);
            }
        }
        Ok(())
    }

    fn row_at(&self, number: u32) -> u64 {
        self.layout.table_at() + number as u64 * STORED_ROW_BYTES as u64
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

    /// Makes everything written so far durable, then these rows, all or none.
    ///
    /// # Errors
    /// The host failed: the table is as before. After a failed sync it can't be used any more.
    pub fn commit(&mut self, rows: Vec<(u32, Row)>) -> Result<(), ImageFault> {
        if self.broken {
            return Err(ImageFault::Broken);
        }
        self.sync()?;
        let count = rows.len().div_ceil(ROWS_PER_FRAME).max(1) as u64;
        assert!(count <= self.layout.half_frames(), "more rows than there are");
        if self.next + count > self.layout.half_frames() {
            self.write_in_place()?;
            self.sync()?;
            self.behind.clear();
            (self.half, self.next) = (1 - self.half, 0);
        }
        self.used += 1;
        let head = Head { sequence: self.used, count: count as u32, index: 0, rows: 0 };
        let mut bytes = Vec::with_capacity(count as usize * FRAME_BYTES);
        for index in 0..count as usize {
            let rest = rows.get(index * ROWS_PER_FRAME..).unwrap_or(&[]);
            let part = &rest[..rest.len().min(ROWS_PER_FRAME)];
            let head = Head { index: index as u32, rows: part.len() as u32, ..head };
            bytes.extend(head.seal(part));
        }
        let frame = self.half * self.layout.half_frames() + self.next;
        let at = self.layout.journal_at() + frame * FRAME_BYTES as u64;
        self.file.write_at(at, &bytes).map_err(ImageFault::io("write the journal of"))?;
        self.sync()?;
        self.last = self.used;
        self.next += count;
        for (number, row) in rows {
            self.rows[number as usize] = row;
            self.behind.insert(number);
        }
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
        self.broken = synced.is_err();
        synced.map_err(ImageFault::io("sync"))
    }

    /// Writes the rows that the journal has into their places.
    fn write_in_place(&mut self) -> Result<(), ImageFault> {
        let numbers: Vec<u32> = self.behind.iter().copied().collect();
        let side_by_side = numbers.chunk_by(|a, b| a + 1 == *b);
        for run in side_by_side.flat_map(|run| run.chunks(BATCH / STORED_ROW_BYTES)) {
            let bytes: Vec<u8> =
                run.iter().flat_map(|n| store_row(*n, &self.rows[*n as usize])).collect();
            let at = self.row_at(run[0]);
            self.file.write_at(at, &bytes).map_err(ImageFault::io("write the table of"))?;
        }
        Ok(())
    }
}
