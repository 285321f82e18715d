//! Records of a trace in memory, packed: some ten bytes each.
//!
//! Owns: [`Kept`] and its bytes. Promises: what comes out is what went in, in that order; memory is
//! bounded. Never: keeps a part of a trace that is too long.
//!
//! A record is its flags, four lengths, the device where it is another than before, and four numbers: the
//! time and the address as differences from the record before (a sign is the lowest bit), the length, the
//! latency. A number takes as many bytes as it needs, none for 0, the lowest first.

use crate::device::DeviceId;
use crate::record::{TraceOp, TraceRecord};

/// Bytes of a trace's records at most: some millions of them.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of a piece: no list that grows is ever copied.
const PIECE: usize = 1 << 20;
/// Bytes of a number at most, and zeros behind the last record of a piece: each is read as a whole word.
const WORD: usize = 8;
/// Bytes that a record takes at most.
const RECORD_MAX: usize = 1 + 2 + 2 + 4 * WORD;

/// The operations by their number.
const OP_BITS: u8 = 3;
const FUA: u8 = 1 << 2;
const PREFLUSH: u8 = 1 << 3;
const HAS_LATENCY: u8 = 1 << 4;
const HAS_DEVICE: u8 = 1 << 5;

#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// Whole records in each.
    pieces: Vec<Vec<u8>>,
    last: Last,
    is_over: bool,
}

/// What the next record is written against.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    ts_ns: u64,
    end_byte: u64,
    device: u16,
}

impl Last {
    fn of(r: &TraceRecord) -> Last {
        let end_byte = r.offset_bytes.wrapping_add(r.len_bytes);
        Last { ts_ns: r.ts_ns, end_byte, device: r.device.0 }
    }
}

/// The difference of two numbers, small where they are near each other.
fn difference(to: u64, from: u64) -> u64 {
    let by = to.wrapping_sub(from) as i64;
    (by << 1 ^ by >> 63) as u64
}

fn apart(difference: u64, from: u64) -> u64 {
    from.wrapping_add((difference >> 1) ^ (difference & 1).wrapping_neg())
}

/// A record while it is packed: whole words are put, each over the zeros of the one before.
struct Packing {
    bytes: [u8; RECORD_MAX + WORD],
    length: usize,
}

impl Packing {
    /// The lowest `length` bytes of a number that has no more.
    #[inline(always)]
    fn put(&mut self, number: u64, length: usize) {
        self.bytes[self.length..self.length + WORD].copy_from_slice(&number.to_le_bytes());
        self.length += length;
    }
}

impl Kept {
    /// Keeps one more; when there are too many, none.
    pub(super) fn push(&mut self, r: &TraceRecord) {
        if self.is_over {
            return;
        }
        let is_full = |piece: &Vec<u8>| piece.len() + RECORD_MAX > PIECE;
        if self.pieces.last().is_none_or(is_full) {
            if self.pieces.len() * PIECE >= BYTES_MAX {
                *self = Kept { is_over: true, ..Kept::default() };
                return;
            }
            let mut piece = Vec::with_capacity(if self.pieces.is_empty() { 0 } else { PIECE });
            piece.extend([0; WORD]);
            self.pieces.push(piece);
        }
        let Some(bytes) = self.pieces.last_mut() else { return };
        let op = r.op as u8;
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let other_device = r.device.0 != self.last.device;
        let flags = flag(r.fua, FUA)
            | flag(r.preflush, PREFLUSH)
            | flag(r.latency_ns.is_some(), HAS_LATENCY)
            | flag(other_device, HAS_DEVICE);
        let numbers = [
            difference(r.ts_ns, self.last.ts_ns),
            difference(r.offset_bytes, self.last.end_byte),
            r.len_bytes,
            r.latency_ns.unwrap_or(0),
        ];
        let lengths = numbers.map(|n| (u64::BITS - n.leading_zeros()).div_ceil(8) as u16);
        let all = lengths.iter().rev().fold(0, |all, length| all << 4 | length);
        let mut out = Packing { bytes: [0; RECORD_MAX + WORD], length: 0 };
        out.put(u64::from(op | flags), 1);
        out.put(u64::from(all), 2);
        if other_device {
            out.put(u64::from(r.device.0), 2);
        }
        for (n, length) in numbers.iter().zip(lengths) {
            out.put(*n, usize::from(length));
        }
        bytes.truncate(bytes.len() - WORD);
        bytes.extend(&out.bytes[..out.length + WORD]);
        self.last = Last::of(r);
    }

    /// All of them, if there were not too many.
    pub(super) fn complete(self) -> Option<Kept> {
        (!self.is_over).then_some(self)
    }

    /// From the first on.
    pub(super) fn iter(&self) -> Iter<'_> {
        Iter { bytes: &[], pieces: self.pieces.iter(), last: Last::default() }
    }
}

/// Records, one after the other.
pub(super) struct Iter<'a> {
    bytes: &'a [u8],
    pieces: std::slice::Iter<'a, Vec<u8>>,
    last: Last,
}

impl Iter<'_> {
    /// The next so many bytes, [`WORD`] at most.
    #[inline(always)]
    fn take(&mut self, length: usize) -> Option<u64> {
        let word = u64::from_le_bytes(*self.bytes.first_chunk::<WORD>()?);
        self.bytes = self.bytes.get(length..)?;
        Some(if length < WORD { word & !(u64::MAX << (8 * length)) } else { word })
    }
}

impl Iterator for Iter<'_> {
    type Item = TraceRecord;

    #[inline]
    fn next(&mut self) -> Option<TraceRecord> {
        if self.bytes.len() <= WORD {
            self.bytes = self.pieces.next()?;
        }
        let head = self.take(1)? as u8;
        let lengths = self.take(2)?;
        if head & HAS_DEVICE != 0 {
            self.last.device = self.take(2)? as u16;
        }
        let mut number = |i: u32| self.take((lengths >> (4 * i) & 0xf) as usize);
        let (ts, offset, len_bytes, latency) = (number(0)?, number(1)?, number(2)?, number(3)?);
        let record = TraceRecord {
            ts_ns: apart(ts, self.last.ts_ns),
            op: TraceOp::ALL[usize::from(head & OP_BITS)],
            device: DeviceId(self.last.device),
            offset_bytes: apart(offset, self.last.end_byte),
            len_bytes,
            fua: head & FUA != 0,
            preflush: head & PREFLUSH != 0,
            latency_ns: (head & HAS_LATENCY != 0).then_some(latency),
        };
        self.last = Last::of(&record);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers of all lengths.
    fn any_number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..64).prop_map(|(n, shift)| n >> shift)
    }

    prop_compose! {
        fn any_record()(
            ts_ns in any_number(), op in 0usize..4, device in any::<u16>(), offset_bytes in any_number(),
            len_bytes in any_number(), fua in any::<bool>(), preflush in any::<bool>(),
            latency_ns in prop::option::of(any_number()),
        ) -> TraceRecord {
            let (op, device) = (TraceOp::ALL[op], DeviceId(device));
            TraceRecord { ts_ns, op, device, offset_bytes, len_bytes, fua, preflush, latency_ns }
        }
    }

    proptest! {
        #[test]
        fn what_comes_out_is_what_went_in(records in prop::collection::vec(any_record(), 0..50)) {
            let mut kept = Kept::default();
            records.iter().for_each(|r| kept.push(r));
            let kept = kept.complete().expect("few");
            prop_assert_eq!(kept.iter().collect::<Vec<_>>(), records);
        }
    }

    #[test]
    fn records_are_small_and_too_many_are_none() {
        let record = |n: u64| TraceRecord {
            ts_ns: n * 500_000,
            offset_bytes: (n % 1000) << 30,
            len_bytes: 16384,
            ..TraceRecord::EMPTY
        };
        let mut kept = Kept::default();
        (0..1000).for_each(|n| kept.push(&record(n)));
        assert!(kept.pieces[0].len() < 1000 * 14, "{} bytes", kept.pieces[0].len());
        let mut n = 1000;
        while !kept.is_over {
            if n == 200_000 {
                assert!(kept.pieces.len() > 1);
                assert!(kept.iter().eq((0..n).map(record)), "over several pieces");
            }
            kept.push(&record(n));
            n += 1;
        }
        assert!(n > 4_000_000, "{n} records");
        assert!(kept.pieces.is_empty());
        kept.push(&record(0));
        assert!(kept.complete().is_none());
    }
}
