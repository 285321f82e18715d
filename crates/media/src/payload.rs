//! Where content lies in the caller's memory.
//!
//! Owns: [`Sectors`] and [`SectorsMut`], the content of a request in one piece or in several;
//! [`Gather`] and [`Scatter`], that of a vector command. Promises: content moves once, between the
//! caller's memory and the medium's; of what a [`Gather`] lies in only its own sectors are looked at, so
//! other cores may write the rest meanwhile. Never: allocates.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Sectors in memory that is only read. Each piece holds whole sectors.
#[derive(Clone, Copy, Debug)]
pub enum Sectors<'a> {
    /// Side by side.
    One(&'a [u8]),
    /// In pieces, as the buffers of a guest or a socket lie.
    Many(&'a [IoSlice<'a>]),
}

impl<'a> Sectors<'a> {
    /// True when these are `n` sectors of `unit` bytes, and no piece ends within one.
    #[inline]
    pub fn are(&self, n: u32, unit: usize) -> bool {
        match self {
            Sectors::One(bytes) => bytes.len() == n as usize * unit,
            Sectors::Many(pieces) => are(pieces.iter().map(|p| p.len()), n, unit),
        }
    }

    /// The sectors from the `first` on, of `unit` bytes each.
    #[inline(always)]
    pub fn from(&self, first: u32, unit: usize) -> Each<'a> {
        let mut skip = first as usize * unit;
        let mut rest = match self {
            Sectors::One(bytes) => return Each { piece: &bytes[skip..], rest: &[], unit },
            Sectors::Many(pieces) => *pieces,
        };
        while let Some((piece, behind)) = rest.split_first() {
            rest = behind;
            if skip < piece.len() {
                return Each { piece: &piece[skip..], rest, unit };
            }
            skip -= piece.len();
        }
        Each { piece: &[], rest, unit }
    }
}

/// Sectors, one after the other.
#[derive(Clone)]
pub struct Each<'a> {
    piece: &'a [u8],
    rest: &'a [IoSlice<'a>],
    unit: usize,
}

impl<'a> Iterator for Each<'a> {
    type Item = &'a [u8];
    #[inline(always)]
    fn next(&mut self) -> Option<&'a [u8]> {
        while self.piece.is_empty() {
            let (piece, rest) = self.rest.split_first()?;
            (self.piece, self.rest) = (piece, rest);
        }
        let (sector, behind) = self.piece.split_at(self.unit);
        self.piece = behind;
        Some(sector)
    }
}

/// Room for sectors. Each piece holds whole sectors.
#[derive(Debug)]
pub enum SectorsMut<'a> {
    /// Side by side.
    One(&'a mut [u8]),
    /// In pieces.
    Many(&'a mut [IoSliceMut<'a>]),
}

impl SectorsMut<'_> {
    /// True when these are `n` sectors of `unit` bytes, and no piece ends within one.
    #[inline]
    pub fn are(&self, n: u32, unit: usize) -> bool {
        match self {
            SectorsMut::One(bytes) => bytes.len() == n as usize * unit,
            SectorsMut::Many(pieces) => are(pieces.iter().map(|p| p.len()), n, unit),
        }
    }

    /// Room of a sector of `unit` bytes.
    ///
    /// # Panics
    /// There are not so many.
    #[inline(always)]
    pub fn sector(&mut self, i: u32, unit: usize) -> &mut [u8] {
        let at = i as usize * unit;
        match self {
            SectorsMut::One(bytes) => &mut bytes[at..at + unit],
            SectorsMut::Many(pieces) => sector_of(pieces, at, unit),
        }
    }

    /// As the room of a vector read: address `i` goes to the `index[i]`-th of these sectors.
    #[inline(always)]
    pub fn scatter<'s>(&'s mut self, index: &'s [u32], unit: usize) -> Scatter<'s> {
        match self {
            SectorsMut::One(bytes) => Scatter::new(bytes, index, unit),
            SectorsMut::Many(_) => Scatter { to: To::many(self), index, unit },
        }
    }
}

fn are(lens: impl Iterator<Item = usize>, n: u32, unit: usize) -> bool {
    let mut left = n as usize * unit;
    for len in lens {
        if unit == 0 || len % unit != 0 || len > left {
            return false;
        }
        left -= len;
    }
    left == 0
}

fn sector_of<'s>(pieces: &'s mut [IoSliceMut<'_>], mut at: usize, unit: usize) -> &'s mut [u8] {
    for piece in pieces {
        if at < piece.len() {
            return &mut piece[at..at + unit];
        }
        at -= piece.len();
    }
    panic!("a sector beyond its memory");
}

/// Content of a vector write: sector `i` is the `index[i]`-th of a row of sectors in memory.
#[derive(Clone, Copy)]
pub struct Gather<'a> {
    /// No reference: other sectors of the row may be written by others.
    base: *const u8,
    bytes: usize,
    index: &'a [u32],
    unit: usize,
    content: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// The sectors of `base`, `unit` bytes each, that `index` names.
    ///
    /// `unit` is the store's content size (4096, or 8 under `stamps`), except for metadata, which is
    /// 4096 under every store (`Request::whole_sectors`).
    #[inline(always)]
    pub fn new(base: &'a [u8], index: &'a [u32], unit: usize) -> Gather<'a> {
        let (base, bytes) = (base.as_ptr(), base.len());
        Gather { base, bytes, index, unit, content: PhantomData }
    }

    /// As [`Gather::new`], of a row in which other sectors change meanwhile.
    ///
    /// # Safety
    /// For `'a`, `base` points to `bytes` bytes of one allocation, and nobody writes those sectors of them that
    /// `index` names.
    #[inline(always)]
    pub unsafe fn among_others(
        base: *const u8,
        bytes: usize,
        index: &'a [u32],
        unit: usize,
    ) -> Gather<'a> {
        Gather { base, bytes, index, unit, content: PhantomData }
    }

    /// Some of the same sectors.
    ///
    /// # Panics
    /// If it names others.
    pub fn with<'b>(&self, index: &'b [u32]) -> Gather<'b>
    where
        'a: 'b,
    {
        assert!(index.iter().all(|i| self.index.contains(i)), "others than it was given");
        Gather { base: self.base, bytes: self.bytes, index, unit: self.unit, content: PhantomData }
    }

    /// Which sector of the row each address takes.
    #[inline(always)]
    pub fn index(&self) -> &'a [u32] {
        self.index
    }

    /// Bytes per sector.
    #[inline(always)]
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Content of the `i`-th address.
    #[inline(always)]
    pub fn sector(&self, i: usize) -> &'a [u8] {
        self.row(self.index[i], 1)
    }

    /// Content of `n` addresses from the `first` on, where it lies side by side.
    pub fn side_by_side(&self, first: usize, n: usize) -> Option<&'a [u8]> {
        let index = &self.index[first..first + n];
        let together = index.windows(2).all(|w| w[0] + 1 == w[1]);
        together.then(|| index.first().map_or(&[][..], |at| self.row(*at, n)))
    }

    /// `n` sectors of the row, all of which are the command's.
    #[inline(always)]
    fn row(&self, at: u32, n: usize) -> &'a [u8] {
        let (at, bytes) = (at as usize * self.unit, n * self.unit);
        assert!(at <= self.bytes && bytes <= self.bytes - at, "a sector beyond its memory");
        // SAFETY: inside of `bytes`; these sectors are named by `index`, so nobody writes them.
        unsafe { std::slice::from_raw_parts(self.base.add(at), bytes) }
    }

    /// Content of `n` addresses from the `first` on, each of `N` bytes, which is its unit.
    #[inline(always)]
    pub fn arrays<const N: usize>(
        &self,
        first: usize,
        n: usize,
    ) -> impl ExactSizeIterator<Item = &'a [u8; N]> + use<'a, N> {
        assert_eq!(self.unit, N, "another kind of content");
        let (base, sectors) = (self.base.cast::<[u8; N]>(), self.bytes / N);
        self.index[first..first + n].iter().map(move |at| {
            assert!((*at as usize) < sectors, "a sector beyond its memory");
            // SAFETY: inside of `bytes`; this sector is named by `index`, so nobody writes it.
            unsafe { &*base.add(*at as usize) }
        })
    }

    /// True when the first `n` indices lie in its memory.
    #[inline]
    pub fn holds(&self, n: usize) -> bool {
        self.index.len() >= n && in_bounds(&self.index[..n], self.unit, self.bytes)
    }
}

/// Destination of a vector read, laid out like [`Gather`]: sector `i` goes to the `index[i]`-th of a row
/// of sectors.
pub struct Scatter<'a> {
    to: To<'a>,
    /// Which sector of the row each address goes to.
    pub index: &'a [u32],
    /// Bytes per sector.
    pub unit: usize,
}

enum To<'a> {
    One(&'a mut [u8]),
    /// A pointer in place of a reference: a view of a shorter life is as good (`&mut dyn` says no).
    Many(NonNull<dyn Row + 'a>, PhantomData<&'a mut ()>),
}

impl<'a> To<'a> {
    fn many(row: &'a mut (dyn Row + 'a)) -> To<'a> {
        To::Many(NonNull::from(row), PhantomData)
    }
}

/// Pieces, whose own lifetime is nobody's concern here.
trait Row {
    fn room(&mut self, at: u32, unit: usize) -> &mut [u8];
    fn bytes(&self) -> usize;
}

impl Row for SectorsMut<'_> {
    fn room(&mut self, at: u32, unit: usize) -> &mut [u8] {
        self.sector(at, unit)
    }
    fn bytes(&self) -> usize {
        match self {
            SectorsMut::One(bytes) => bytes.len(),
            SectorsMut::Many(pieces) => pieces.iter().map(|p| p.len()).sum(),
        }
    }
}

impl<'a> Scatter<'a> {
    /// Into the sectors of `base`, `unit` bytes each, that `index` names.
    #[inline(always)]
    pub fn new(base: &'a mut [u8], index: &'a [u32], unit: usize) -> Scatter<'a> {
        Scatter { to: To::One(base), index, unit }
    }

    /// All of the row, where it lies side by side.
    #[inline(always)]
    pub fn side_by_side(&mut self) -> Option<&mut [u8]> {
        match &mut self.to {
            To::One(base) => Some(base),
            To::Many(..) => None,
        }
    }

    /// Room of the `i`-th address.
    #[inline(always)]
    pub fn sector(&mut self, i: usize) -> &mut [u8] {
        let (at, unit) = (self.index[i], self.unit);
        match &mut self.to {
            To::One(base) => &mut base[at as usize * unit..][..unit],
            // SAFETY: borrowed from a `&mut` for the life of this view, of which there is one.
            To::Many(row, _) => unsafe { row.as_mut() }.room(at, unit),
        }
    }

    /// The same room, with other addresses in its sectors.
    pub fn with<'s>(&'s mut self, index: &'s [u32]) -> Scatter<'s> {
        let to = match &mut self.to {
            To::One(base) => To::One(base),
            // SAFETY: as in `sector`; this view is borrowed as long as the new one lives.
            To::Many(row, _) => To::many(unsafe { row.as_mut() }),
        };
        Scatter { to, index, unit: self.unit }
    }

    /// True when the first `n` indices lie in its memory.
    #[inline]
    pub fn holds(&self, n: usize) -> bool {
        let bytes = match &self.to {
            To::One(base) => base.len(),
            // SAFETY: as in `sector`.
            To::Many(row, _) => unsafe { row.as_ref() }.bytes(),
        };
        self.index.len() >= n && in_bounds(&self.index[..n], self.unit, bytes)
    }
}

/// One check for all. The bits of all indices together are no less than the largest of them, and
/// cheaper to find; only when they do not fit is the largest itself looked for.
#[inline]
fn in_bounds(index: &[u32], unit: usize, len: usize) -> bool {
    let fits = |largest: u32| (largest as u64 + 1) * unit as u64 <= len as u64;
    let bits = index.iter().fold(0, |m, i| m | i);
    fits(bits) || fits(index.iter().copied().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    /// A core programs two sectors of a row while others are written, also beside it (Miri has an eye on it).
    #[test]
    fn of_a_row_only_its_own_sectors_are_looked_at() {
        const UNIT: usize = 8;
        let row: Vec<UnsafeCell<u8>> = (0..4 * UNIT).map(|i| UnsafeCell::new(i as u8)).collect();
        let index = [1, 2];
        let base = row.as_ptr() as *mut u8;
        // SAFETY: sectors 0 and 3 alone are written below.
        let some = unsafe { Gather::among_others(base, row.len(), &index, UNIT) };
        let (first, both) = (some.sector(0), some.side_by_side(0, 2).expect("1 and 2"));
        let mut arrays = some.arrays::<UNIT>(0, 2);
        for other in [0, 3] {
            // SAFETY: nobody looks at these.
            unsafe { base.add(other * UNIT).write_bytes(0xff, UNIT) };
        }
        assert_eq!((first[0], both.len(), both[15]), (8, 16, 23));
        assert_eq!(arrays.next(), Some(&[8, 9, 10, 11, 12, 13, 14, 15]));
        assert!(some.holds(2) && !some.holds(3));
        assert_eq!(some.with(&[2]).sector(0)[0], 16);
    }

    /// Pieces of one, none and two sectors are a row of three.
    #[test]
    fn pieces_are_a_row() {
        let (a, b) = ([1u8; 8], [[2u8; 8], [3; 8]].concat());
        let pieces = [IoSlice::new(&a), IoSlice::new(&[]), IoSlice::new(&b)];
        let all = Sectors::Many(&pieces);
        assert!(all.are(3, 8) && !all.are(2, 8) && !all.are(4, 8));
        for first in 0..=3 {
            let got: Vec<u8> = all.from(first, 8).map(|sector| sector[0]).collect();
            assert_eq!(got, [1, 2, 3][first as usize..]);
        }
        assert!(!Sectors::Many(&[IoSlice::new(&a[..4]), IoSlice::new(&a[4..])]).are(1, 8));

        let (mut a, mut b) = ([0u8; 8], [0u8; 16]);
        let mut pieces = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        let mut room = SectorsMut::Many(&mut pieces);
        assert!(room.are(3, 8) && !room.are(2, 8));
        let index = [2, 0];
        let mut to = room.scatter(&index, 8);
        assert!(to.holds(2) && !to.holds(3) && to.side_by_side().is_none());
        (0..2).for_each(|i| to.sector(i).fill(1 + i as u8));
        to.with(&[1]).sector(0).fill(9);
        assert!(!to.with(&[3]).holds(1));
        assert_eq!((a[0], b[0], b[8]), (2, 9, 1));
    }

    #[test]
    #[should_panic(expected = "others than it was given")]
    fn what_was_given_is_all_there_is() {
        Gather::new(&[0; 32], &[1, 2], 8).with(&[3]);
    }

    #[test]
    #[should_panic(expected = "beyond its memory")]
    fn a_sector_beyond_the_row_is_refused() {
        Gather::new(&[0; 32], &[4], 8).sector(0);
    }
}
