//! What a journal's frames say after whatever happened to the host, or to the file.
//!
//! Owns: the bytes of a frame and of the mark, which commits a journal holds, which frames a loss of
//! power can have left. Promises: a commit is taken in full or not at all; a frame that no loss, kill
//! or failed write leaves where it is means damage, and is named. Never: writes.
//!
//! Commits are made one after the other: commit *k* is durable before the first frame of the next
//! attempt is written. An attempt that failed is written over by the next one, which begins at the
//! same frame, or at the beginning of the other half. So, with the newest half's commits ending at
//! frame *e* with sequence *l*:
//!
//! - a frame newer than *l* is of an attempt that was cut off: number *i* of its commit lies at *e + i*,
//!   or at *i* in the other half;
//! - an older one behind *e*, not of an earlier round, is what a longer attempt has left behind the
//!   commit that took its place: it begins where that one does, and its sequence lies between that of
//!   the commit before and that one's;
//! - in the other half a frame as new as the newest half's first is of an attempt at its beginning.
//!
//! Anything else says that commits which were durable are gone. So does a frame that does not match
//! its checksum, with one exception: the mark names *l*, and the frame is after *e* or in the other
//! half. Then no commit was durable there, and a write that failed in its middle has left the
//! frame.

use super::table::{FRAME_BYTES, ROW_BYTES, ROWS_PER_FRAME, Row};
use super::{ImageFault, Layout, MARK_AT};
use crate::host::HostFile;
use flashlane_base::mutant;

const FRAME_HEAD: usize = 32;
const NUMBERED: usize = 4 + ROW_BYTES;
const _: () = assert!(FRAME_HEAD + ROWS_PER_FRAME * NUMBERED == FRAME_BYTES);
/// No sequence comes near it: a frame that says so is none of ours.
const SEQUENCE_MAX: u64 = 1 << 62;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) sequence: u64,
    /// Frames of this commit, and which of them this is.
    pub(super) count: u32,
    pub(super) index: u32,
    /// Rows in this frame.
    pub(super) rows: u32,
    /// Sum over the table after this commit; 0 where the format has none.
    pub(super) sum: u64,
}

/// What a frame is, but for its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Frame {
    Zero,
    Bad,
    Good(Head),
}

/// What a frame means that does not match its checksum.
#[derive(PartialEq, Eq)]
enum Bad {
    Counts,
    Ignored,
}

/// The commits of a half, from its beginning.
#[derive(Default)]
struct Chain {
    first: u64,
    last: u64,
    /// Frames of these commits.
    end: u64,
    /// The frame at which each of them begins, and its sequence.
    begins: Vec<(u64, u64)>,
    sum: u64,
    /// Every frame of the half.
    frames: Vec<Frame>,
}

/// What a journal holds.
pub(super) struct Journal {
    /// The newest half, and the frame behind its last commit.
    pub(super) half: u64,
    pub(super) next: u64,
    /// The frame at which the last commit begins.
    pub(super) begin: u64,
    /// Sequence of the last commit.
    pub(super) last: u64,
    /// Highest sequence seen in any frame.
    pub(super) used: u64,
    /// Sum over the table after the last commit; 0 where nothing says it.
    pub(super) sum: u64,
    /// Rows of the newest half's commits, in their order.
    pub(super) rows: Vec<(u32, Row)>,
    /// Places of frames that don't match their checksum and do no harm: they are in the older half,
    /// or a failed write tore them. They are zeroed before the next commit, since they would be
    /// taken for damage after it.
    pub(super) unsound: Vec<u64>,
}

/// How far the journal has come: a commit that was durable when this was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) sequence: u64,
    /// Sum over the table after it.
    pub(super) sum: u64,
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | *b as u32)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | *b as u64)
}

/// Writes the checksum of everything behind it.
fn seal(bytes: &mut [u8]) {
    let crc = flashlane_base::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// A row's part in the sum over the table: 64 bits of its number and its bytes. The sum is taken
/// modulo 2^64, so a commit subtracts what it replaces.
pub(super) fn part_of_sum(number: u32, row: &Row) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(ODD);
        hash ^ hash >> 32
    };
    (0..ROW_BYTES / 8).fold(mix(ODD, number as u64), |hash, i| mix(hash, le64(row, 8 * i)))
}

/// The sum as it is written: 0 says that there is none.
pub(super) fn written(sum: u64) -> u64 {
    sum.max(1)
}

impl Head {
    /// Seals a frame.
    pub(super) fn seal(&self, rows: &[(u32, Row)]) -> [u8; FRAME_BYTES] {
        let mut out = [0; FRAME_BYTES];
        out[4..8].copy_from_slice(&self.rows.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&self.count.to_le_bytes());
        out[20..24].copy_from_slice(&self.index.to_le_bytes());
        out[24..32].copy_from_slice(&self.sum.to_le_bytes());
        for (to, (number, row)) in out[FRAME_HEAD..].chunks_exact_mut(NUMBERED).zip(rows) {
            to[..4].copy_from_slice(&number.to_le_bytes());
            to[4..].copy_from_slice(row);
        }
        seal(&mut out);
        out
    }
}

impl Mark {
    pub(super) fn seal(&self) -> [u8; FRAME_BYTES] {
        let mut out = [0; FRAME_BYTES];
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..24].copy_from_slice(&self.sum.to_le_bytes());
        seal(&mut out);
        out
    }

    /// Reads the mark.
    pub(super) fn read(file: &dyn HostFile) -> Result<Mark, ImageFault> {
        let mut bytes = [0; FRAME_BYTES];
        file.read_at(MARK_AT, &mut bytes).map_err(ImageFault::io("read"))?;
        match le32(&bytes, 0) == flashlane_base::crc32c(&bytes[4..]) {
            true => Ok(Mark { sequence: le64(&bytes, 8), sum: le64(&bytes, 16) }),
            false => Err(ImageFault::Mark),
        }
    }
}

impl Frame {
    fn parse(bytes: &[u8]) -> Frame {
        if bytes.iter().all(|b| *b == 0) {
            return Frame::Zero;
        }
        let head = Head {
            rows: le32(bytes, 4),
            sequence: le64(bytes, 8),
            count: le32(bytes, 16),
            index: le32(bytes, 20),
            sum: le64(bytes, 24),
        };
        let checked = le32(bytes, 0) == flashlane_base::crc32c(&bytes[4..]);
        let sound = (checked || mutant!("image.frame-unchecked"))
            && head.rows as usize <= ROWS_PER_FRAME
            && (1..SEQUENCE_MAX).contains(&head.sequence)
            && head.index < head.count;
        if sound { Frame::Good(head) } else { Frame::Bad }
    }
}

impl Chain {
    /// The commits that a half holds, by its frames.
    fn of(frames: Vec<Frame>) -> Chain {
        let mut chain = Chain { frames, ..Chain::default() };
        while let Some(first) = chain.next() {
            if chain.first == 0 {
                chain.first = first.sequence;
            }
            chain.begins.push((chain.end, first.sequence));
            (chain.last, chain.sum) = (first.sequence, first.sum);
            chain.end += first.count as u64;
        }
        chain
    }

    /// The head of the commit at the chain's end, if there is a whole one.
    fn next(&self) -> Option<Head> {
        let at = self.end as usize;
        let Frame::Good(first) = *self.frames.get(at)? else { return None };
        if first.index != 0 || first.sequence <= self.last {
            return None; // of an earlier round, or of an attempt that failed
        }
        let all = self.frames.get(at..at.checked_add(first.count as usize)?)?;
        let is_next = |(frame, index): (&Frame, u32)| match frame {
            Frame::Good(head) => {
                *head == Head { index, rows: head.rows, ..first }
                    || mutant!("image.attempts-mix") && head.index == index
            }
            _ => false,
        };
        // Torn otherwise: this commit never was.
        let whole = all.iter().zip(0..).all(is_next) || mutant!("image.half-a-commit");
        whole.then_some(first)
    }

    /// The first frame after the end of the newest half that shows damage: neither a loss of power
    /// nor a failed write leaves it there. `marked` is the commit that the mark names.
    fn stray(&self, marked: Option<u64>) -> Option<u64> {
        let torn = marked == Some(self.last) && !mutant!("image.torn-frame-counts");
        let torn = torn || mutant!("image.torn-frame-never-counts");
        let bad = if torn { Bad::Ignored } else { Bad::Counts };
        self.strays(self.end, bad, |at, head| {
            let begins = at.checked_sub(head.index as u64);
            if head.sequence > self.last {
                return begins == Some(self.end);
            }
            // The commit that took the place of this one's attempt.
            let of = begins.and_then(|b| self.begins.binary_search_by_key(&b, |(at, _)| *at).ok());
            head.sequence < self.first
                || of.is_some_and(|i| {
                    let before = i.checked_sub(1).map_or(0, |i| self.begins[i].1);
                    before < head.sequence && head.sequence < self.begins[i].1
                })
        })
    }

    /// Where this is the other half: the first frame that no loss of power leaves beside a half that
    /// begins with this sequence.
    fn stray_beside(&self, first: u64, is_last_marked: bool) -> Option<u64> {
        // Damage in the older half is of no account, as long as a sound commit in front of it says
        // that it is the older one, or the mark says that no commit was durable after the newest.
        let is_known = self.first > 0 || is_last_marked && !mutant!("image.torn-frame-counts");
        let bad = if is_known { Bad::Ignored } else { Bad::Counts };
        self.strays(0, bad, |at, head| head.sequence < first || head.index as u64 == at)
    }

    fn strays(&self, from: u64, bad: Bad, explained: impl Fn(u64, Head) -> bool) -> Option<u64> {
        let behind = (from..).zip(&self.frames[from as usize..]);
        let is_stray = |at: u64, frame: &Frame| match frame {
            Frame::Zero => false,
            Frame::Bad => bad == Bad::Counts,
            Frame::Good(head) => !explained(at, *head),
        };
        behind.filter(|(at, frame)| is_stray(*at, frame)).map(|(at, _)| at).next()
    }
}

impl Journal {
    /// Reads both halves. `marked` is the sequence of the commit that the mark names; `None` for a
    /// format without a mark.
    ///
    /// # Errors
    /// The file can't be read, or holds frames that no loss of power leaves: commits are gone.
    pub(super) fn read(
        file: &dyn HostFile,
        layout: &Layout,
        marked: Option<u64>,
    ) -> Result<Journal, ImageFault> {
        let read = |half: u64| {
            let mut frames = Vec::new();
            each_frame(file, layout, half, layout.half_frames(), |bytes| {
                frames.push(Frame::parse(bytes));
            })?;
            Ok(Chain::of(frames))
        };
        let mut chains = [read(0)?, read(1)?];
        let newer = (chains[1].first > chains[0].first) as usize;
        let (chain, other) = (&chains[newer], &chains[1 - newer]);
        let half = newer as u64;
        let here = chain.stray(marked).map(|at| (half, at, chain));
        let is_marked = marked == Some(chain.last);
        let there = other.stray_beside(chain.first.max(1), is_marked);
        let there = || there.map(|at| (1 - half, at, other));
        if let Some((of, at, found)) = here.or_else(there)
            && !mutant!("image.stray-frames")
        {
            let frame = layout.frame_at(of, at);
            return Err(match found.frames[at as usize] {
                Frame::Bad => ImageFault::Frame { at: frame },
                _ => ImageFault::Stray { at: frame, end: layout.frame_at(half, chain.end) },
            });
        }
        let heads = chains.iter().flat_map(|chain| &chain.frames);
        let used = heads.filter_map(|frame| match frame {
            Frame::Good(head) => Some(head.sequence),
            _ => None,
        });
        let used = used.max().unwrap_or(0);
        let bad = |half: u64, from: u64, chain: &Chain| {
            let frames = (0..).zip(&chain.frames).skip(from as usize);
            let bad = frames.filter(|(_, frame)| **frame == Frame::Bad);
            bad.map(|(at, _)| layout.frame_at(half, at)).collect::<Vec<_>>()
        };
        let unsound = [bad(half, chain.end, chain), bad(1 - half, 0, other)].concat();
        let chain = std::mem::take(&mut chains[newer]);
        let mut rows = Vec::new();
        each_frame(file, layout, half, chain.end, |bytes| {
            let numbered = bytes[FRAME_HEAD..].chunks_exact(NUMBERED);
            rows.extend(numbered.take(le32(bytes, 4) as usize).map(|numbered| {
                let mut row = [0; ROW_BYTES];
                row.copy_from_slice(&numbered[4..]);
                (le32(numbered, 0), row)
            }));
        })?;
        let far = rows.iter().map(|(number, _)| *number).max();
        if let Some(far) = far.filter(|far| *far >= layout.rows()) {
            return Err(ImageFault::Value(format!("the journal names row {far}")));
        }
        Ok(Journal {
            half,
            next: chain.end,
            begin: chain.begins.last().map_or(0, |(at, _)| *at),
            last: chain.last,
            used,
            sum: chain.sum,
            rows,
            unsound,
        })
    }
}

/// The first `frames` frames of a half, one after the other.
fn each_frame(
    file: &dyn HostFile,
    layout: &Layout,
    half: u64,
    frames: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<(), ImageFault> {
    const BATCH: u64 = (1 << 20) / FRAME_BYTES as u64;
    let mut bytes = vec![0; BATCH.min(frames) as usize * FRAME_BYTES];
    for from in (0..frames).step_by(BATCH as usize) {
        let bytes = &mut bytes[..BATCH.min(frames - from) as usize * FRAME_BYTES];
        file.read_at(layout.frame_at(half, from), bytes)
            .map_err(ImageFault::io("read the journal of"))?;
        bytes.chunks_exact(FRAME_BYTES).for_each(&mut each);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryFile;

    const LAYOUT: Layout =
        Layout { channels: 1, dies: 1, chunks: 4, sectors: 4, checked: true, holes: false };

    /// A journal with these frames, (half, frame, sequence, frames of the commit, index) each.
    fn journal(frames: &[(u64, u64, u64, u32, u32)]) -> Result<u64, String> {
        journal_with(frames, None, None)
    }

    /// The same with a torn frame in this half and place, and a mark.
    fn journal_with(
        frames: &[(u64, u64, u64, u32, u32)],
        torn: Option<(u64, u64)>,
        marked: Option<u64>,
    ) -> Result<u64, String> {
        let file = MemoryFile::new(vec![0; LAYOUT.slots_at() as usize]);
        for (half, at, sequence, count, index) in frames {
            let head = Head { sequence: *sequence, count: *count, index: *index, rows: 0, sum: 0 };
            file.write_at(LAYOUT.frame_at(*half, *at), &head.seal(&[])).unwrap();
        }
        if let Some((half, at)) = torn {
            file.write_at(LAYOUT.frame_at(half, at), &[7; 170]).unwrap();
        }
        let read = Journal::read(&file, &LAYOUT, marked);
        if let (Ok(journal), Some((half, at))) = (&read, torn) {
            assert_eq!(journal.unsound, [LAYOUT.frame_at(half, at)]);
        }
        read.map(|j| j.last).map_err(|e| e.to_string())
    }

    /// A frame that a failed write tore is no damage where the mark says that no commit was durable
    /// there; else it may be one that was.
    #[test]
    fn a_torn_frame_is_damage_unless_the_mark_says_otherwise() {
        let frames = [(0, 0, 4, 1, 0), (0, 1, 5, 1, 0)];
        for torn in [(0, 2), (0, 5), (1, 0)] {
            assert_eq!(journal_with(&frames, Some(torn), Some(5)), Ok(5), "{torn:?}");
            for marked in [None, Some(4), Some(6)] {
                let said = journal_with(&frames, Some(torn), marked).expect_err("damaged");
                assert!(said.contains("checksum"), "{torn:?}, {marked:?}: {said}");
            }
        }
        // A commit that was durable.
        assert!(journal_with(&frames, Some((0, 0)), Some(5)).is_err());
        assert!(journal_with(&frames, Some((0, 1)), Some(5)).is_err());
    }

    /// What losses, kills and failed writes leave is taken for that.
    #[test]
    fn what_a_loss_leaves_is_no_damage() {
        for (last, frames) in [
            (0, vec![]),
            // An attempt without its beginning, then one without its end.
            (0, vec![(0, 1, 1, 2, 1)]),
            (4, vec![(0, 0, 4, 1, 0), (0, 1, 5, 2, 0)]),
            // A shorter commit over a longer attempt, and another attempt behind it.
            (6, vec![(0, 0, 4, 1, 0), (0, 1, 6, 1, 0), (0, 2, 5, 3, 1), (0, 3, 5, 3, 2)]),
            (6, vec![(0, 0, 6, 1, 0), (0, 1, 7, 2, 0), (0, 2, 5, 3, 2)]),
            // An earlier round behind the end, another one in the other half.
            (9, vec![(0, 0, 9, 1, 0), (0, 1, 2, 1, 0), (1, 0, 5, 1, 0), (1, 1, 6, 1, 0)]),
            // An attempt in the other half that was cut off, after which this one went on.
            (5, vec![(0, 0, 3, 1, 0), (1, 1, 4, 2, 1), (0, 1, 5, 1, 0)]),
            (5, vec![(0, 0, 5, 1, 0), (1, 0, 6, 2, 0), (1, 2, 2, 1, 0)]),
        ] {
            assert_eq!(journal(&frames), Ok(last), "{frames:?}");
        }
    }

    /// A commit that is gone in front of a newer one is damage, in whichever half they are.
    #[test]
    fn what_no_loss_leaves_is_damage() {
        for frames in [
            // The first, the second of three; the first frame of two.
            vec![(0, 1, 2, 1, 0), (0, 2, 3, 1, 0)],
            vec![(0, 0, 1, 1, 0), (0, 2, 3, 1, 0)],
            vec![(0, 0, 1, 1, 0), (0, 2, 2, 2, 1), (0, 3, 3, 1, 0)],
            // An earlier round's frame over a commit, in the middle and at the beginning of a half.
            vec![(0, 0, 8, 1, 0), (0, 1, 2, 1, 0), (0, 2, 10, 1, 0)],
            vec![(0, 0, 5, 1, 0), (1, 0, 2, 1, 0), (1, 1, 7, 1, 0)],
            vec![(0, 0, 5, 1, 0), (1, 1, 7, 1, 0)],
            // Two commits changed places.
            vec![(0, 0, 1, 1, 0), (0, 1, 3, 1, 0), (0, 2, 2, 1, 0)],
            vec![(0, 0, 5, 1, 0), (0, 1, 7, 1, 0), (0, 2, 6, 2, 0), (0, 3, 6, 2, 1)],
            // More frames than there is room for; behind the end of the newest half.
            vec![(0, 0, 1, 1, 0), (0, 63, 2, 2, 0)],
        ] {
            let said = journal(&frames).expect_err("damaged");
            assert!(said.contains("damaged") && said.contains("byte"), "{frames:?}: {said}");
        }
    }
}
