//! Where the content of a vector command lies in the caller's memory.
//!
//! Owns: the two views [`Gather`] and [`Scatter`]. Promises: content moves once, between the
//! caller's memory and the medium's. Never: allocates.

/// Content of a vector write: sector `i` lies at `base[index[i] * unit ..][.. unit]`.
///
/// `unit` is the store's content size (4096, or 8 under `stamps`), except for metadata, which is
/// 4096 under every store (`Request::whole_sectors`).
#[derive(Clone, Copy)]
pub struct Gather<'a> {
    /// Memory that holds all sectors.
    pub base: &'a [u8],
    /// Which unit of `base` each address takes.
    pub index: &'a [u32],
    /// Bytes per sector.
    pub unit: usize,
}

impl<'a> Gather<'a> {
    /// Content of the `i`-th address.
    #[inline(always)]
    pub fn sector(&self, i: usize) -> &'a [u8] {
        let at = self.index[i] as usize * self.unit;
        &self.base[at..at + self.unit]
    }
}

/// Destination of a vector read, laid out like [`Gather`].
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

impl Gather<'_> {
    /// True when the first `n` indices lie in `base`.
    #[inline]
    pub fn holds(&self, n: usize) -> bool {
        self.index.len() >= n && in_bounds(&self.index[..n], self.unit, self.base.len())
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
