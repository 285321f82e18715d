//! Where partitions lie, from the tables of MBR and GPT.
//!
//! Owns: what is believed of them. Promises: what is returned lies within the drive, and is bounded, whatever
//! the bytes say; with blocks of one size no two overlap. Never: reads; takes a partition for a file system.
//!
//! UEFI 2.10, 5.2 (MBR) and 5.3 (GPT). Addresses are in logical blocks, of 512 or 4,096 bytes, as the door
//! says that the host has. GPT's header says which; of an MBR both are taken, and a file system that begins
//! there says which is right.

use std::ops::Range;

/// Bytes of a drive that hold what is looked at of its tables: GPT's header, and 128 entries behind it.
pub(crate) const HEAD: usize = 16 * SECTOR;
const SECTOR: usize = 4096;
/// Partitions at most: as many as GPT's usual table has.
const MOST: usize = 128;

/// What the first sectors say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    /// Bytes of each partition, and of a logical block.
    pub(crate) parts: Vec<(Range<u64>, u64)>,
    /// The same of extended partitions, with a table at the start.
    pub(crate) extended: Vec<(Range<u64>, u64)>,
    /// There is a table, of whatever kind.
    pub(crate) any: bool,
}

fn le(bytes: &[u8], at: usize, n: usize) -> u64 {
    let found = bytes.get(at..at + n).unwrap_or_default();
    found.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// An MBR's four entries: type, first block, blocks.
fn entries(sector: &[u8]) -> Option<[(u8, u64, u64); 4]> {
    (le(sector, 510, 2) == 0xaa55).then(|| {
        std::array::from_fn(|i| {
            let at = 446 + 16 * i;
            (sector[at + 4], le(sector, at + 8, 4), le(sector, at + 12, 4))
        })
    })
}

/// Types of extended partitions.
fn is_extended(kind: u8) -> bool {
    matches!(kind, 0x5 | 0xf | 0x85)
}

/// From the first [`HEAD`] bytes of a drive of so many bytes, or from fewer where it has no more.
pub(crate) fn tables(head: &[u8], drive: u64) -> Tables {
    let mut found = Tables::default();
    let Some(mbr) = head.get(..512).and_then(entries) else { return found };
    found.any = true;
    if mbr.iter().any(|(kind, ..)| *kind == 0xee) {
        for block in [512, 4096] {
            if head.get(block..block + 8) == Some(b"EFI PART") {
                gpt(head, block, drive, &mut found);
                break;
            }
        }
    } else {
        for block in [512, 4096] {
            for (kind, first, blocks) in mbr.into_iter().filter(|(kind, ..)| *kind != 0) {
                let bytes = first * block..(first + blocks) * block;
                match is_extended(kind) {
                    true => found.extended.push((bytes, block)),
                    false => found.add(bytes, block, drive),
                }
            }
        }
    }
    found
}

fn gpt(head: &[u8], block: usize, drive: u64, found: &mut Tables) {
    let header = &head[block..];
    let (at, count, size) = (le(header, 72, 8), le(header, 80, 4), le(header, 84, 4) as usize);
    if !(128..=SECTOR).contains(&size) {
        return;
    }
    let Some(from) = usize::try_from(at).ok().and_then(|at| at.checked_mul(block)) else { return };
    for i in 0..(count as usize).min(MOST) {
        let Some(entry) = from.checked_add(i * size).and_then(|at| head.get(at..at + 128)) else {
            return;
        };
        let is_used = entry[..16].iter().any(|byte| *byte != 0);
        let (first, last) = (le(entry, 32, 8), le(entry, 40, 8));
        let bytes = |at: u64| at.checked_mul(block as u64);
        if is_used
            && let (Some(first), Some(end)) = (bytes(first), last.checked_add(1).and_then(bytes))
        {
            found.add(first..end, block as u64, drive);
        }
    }
}

impl Tables {
    /// Takes a partition that lies within the drive, and on no other one.
    fn add(&mut self, bytes: Range<u64>, block: u64, drive: u64) {
        let apart = |(other, of): &(Range<u64>, u64)| {
            *of != block || bytes.end <= other.start || other.end <= bytes.start
        };
        let fits =
            bytes.start >= SECTOR as u64 / 8 && bytes.start < bytes.end && bytes.end <= drive;
        if fits && self.parts.iter().all(apart) && self.parts.len() < MOST {
            self.parts.push((bytes, block));
        }
    }

    /// Takes the table at the byte `at` of an extended partition. Where the next one is, if there is one.
    pub(crate) fn add_logical(
        &mut self,
        (extended, block): (&Range<u64>, u64),
        at: u64,
        sector: &[u8],
        drive: u64,
    ) -> Option<u64> {
        let [one, next, ..] = entries(sector)?;
        if one.0 != 0 {
            let first = at + one.1 * block;
            self.add(first..first + one.2 * block, block, drive);
        }
        let follows = extended.start + next.1 * block;
        // The chain ascends, so it has an end.
        (is_extended(next.0) && follows > at && follows < extended.end.min(drive))
            .then_some(follows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVE: u64 = 1 << 30;

    fn mbr(entries: &[(u8, u32, u32)]) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        for (i, (kind, first, blocks)) in entries.iter().enumerate() {
            let at = 446 + 16 * i;
            head[at + 4] = *kind;
            head[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
            head[at + 12..at + 16].copy_from_slice(&blocks.to_le_bytes());
        }
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        head
    }

    #[test]
    fn an_mbr_and_its_logical_partitions() {
        let head =
            mbr(&[(0x83, 2048, 8192), (0xf, 16384, 65536), (0x83, 4096, 10), (0x83, 1, 9 << 26)]);
        let mut found = tables(&head, DRIVE);
        // The third lies in the first, the fourth beyond the end.
        let blocks = [512, 4096].map(|block| (2048 * block..10240 * block, block));
        assert_eq!(found.parts, blocks);
        assert_eq!(found.extended.len(), 2);
        let (extended, block) = found.extended[0].clone();
        let of = (&extended, block);
        let at = 16384 * 512;
        let table = mbr(&[(0x83, 2048, 4096), (0x5, 8192, 8192)]);
        assert_eq!(found.add_logical(of, at, &table, DRIVE), Some((16384 + 8192) * 512));
        let table = mbr(&[(0x83, 2048, 4096)]);
        assert_eq!(found.add_logical(of, (16384 + 8192) * 512, &table, DRIVE), None);
        assert_eq!(found.parts.len(), 4);
        assert_eq!(found.parts[3].0.start, (16384 + 8192 + 2048) * 512);
        // One that goes back has an end.
        assert_eq!(found.add_logical(of, at, &mbr(&[(0, 0, 0), (0x5, 0, 9)]), DRIVE), None);
    }

    #[test]
    fn a_gpt_of_either_block() {
        for block in [512usize, 4096] {
            let mut head = mbr(&[(0xee, 1, u32::MAX)]);
            head[block..block + 8].copy_from_slice(b"EFI PART");
            let mut put = |at: usize, value: u64, n: usize| {
                head[at..at + n].copy_from_slice(&value.to_le_bytes()[..n]);
            };
            put(block + 72, 2, 8);
            put(block + 80, 128, 4);
            put(block + 84, 128, 4);
            for (i, (first, last)) in
                [(256, 999), (1000, 2000), (u64::MAX - 1, u64::MAX)].iter().enumerate()
            {
                let at = 2 * block + 128 * i;
                put(at, 1, 8);
                put(at + 32, *first, 8);
                put(at + 40, *last, 8);
            }
            let found = tables(&head, DRIVE);
            let bytes = block as u64;
            let parts = [256 * bytes..1000 * bytes, 1000 * bytes..2001 * bytes];
            assert_eq!(found.parts, parts.map(|part| (part, bytes)));
        }
        assert_eq!(tables(&[0; HEAD], DRIVE), Tables::default());
        assert_eq!(tables(&[0; 100], DRIVE), Tables::default());
    }
}
