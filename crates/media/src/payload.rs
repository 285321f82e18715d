//! Where the content of a vector command lies in the caller's memory.
//!
//! Owns: the two views [`Gather`] and [`Scatter`]. Promises: content moves once, between the
//! caller's memory and the medium's; of what a [`Gather`] lies in only its own sectors are looked at, so
//! other cores may write the rest meanwhile. Never: allocates.

use std::marker::PhantomData;

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

/// Destination of a vector read, laid out like [`Gather`]: sector `i` goes to
/// `base[index[i] * unit ..][.. unit]`.
pub struct Scatter<'a> {
    /// Memory that receives all sectors.
    pub base: &'a mut [u8],
    /// Which unit of `base` each address goes to.
    pub index: &'a [u32],
    /// Bytes per sector.
    pub unit: usize,
}

impl Scatter<'_> {
    /// Room of the `i`-th address.
    #[inline(always)]
    pub fn sector(&mut self, i: usize) -> &mut [u8] {
        let at = self.index[i] as usize * self.unit;
        &mut self.base[at..at + self.unit]
    }
}

impl Scatter<'_> {
    /// True when the first `n` indices lie in `base`.
    #[inline]
    pub fn holds(&self, n: usize) -> bool {
        self.index.len() >= n && in_bounds(&self.index[..n], self.unit, self.base.len())
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
