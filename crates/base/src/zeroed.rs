//! Large tables that begin as zeros.
//!
//! Owns: [`Zeroed`], the memory of one table. Promises: what was never touched costs no memory; a
//! table of some megabytes asks the system for huge pages, because random access to tables of many
//! megabytes is half misses of the TLB (5 to 15% of a simulation's time, measured). Without them, or
//! on a system that has none, it is the same table.
//! Never: grows.

use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A type whose zero bytes are a value, and that needs no more than 8 bytes of alignment.
///
/// # Safety
///
/// Both must be true.
pub unsafe trait Zeroable {}
// SAFETY: any bytes are a value of these, and they are aligned to their size, 8 at most.
unsafe impl Zeroable for u8 {}
// SAFETY: as above; an atomic has the bit validity of its integer (documented in std).
unsafe impl Zeroable for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroable for AtomicU64 {}

/// From here on a table has pages of its own.
const MAPPED_FROM: usize = 4 << 20;

/// Who gives the memory back.
enum Memory {
    Heap { _words: Box<[u64]> },
    Mapped { _pages: MmapMut },
}

/// A table of zeros.
pub struct Zeroed<T> {
    at: NonNull<T>,
    len: usize,
    _memory: Memory,
}

// SAFETY: it owns its memory, as a boxed slice does.
unsafe impl<T: Send> Send for Zeroed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Zeroed<T> {}

impl<T: Zeroable> Zeroed<T> {
    /// A table of `len` zeros.
    pub fn new(len: usize) -> Zeroed<T> {
        const { assert!(align_of::<T>() <= 8) };
        let bytes = len.checked_mul(size_of::<T>()).expect("a table is smaller than memory");
        if bytes >= MAPPED_FROM
            && let Ok(mut pages) = MmapMut::map_anon(bytes)
        {
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            let at = NonNull::new(pages.as_mut_ptr().cast()).expect("a mapping has an address");
            return Zeroed { at, len, _memory: Memory::Mapped { _pages: pages } };
        }
        let mut words = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let at = NonNull::new(words.as_mut_ptr().cast()).expect("a slice has an address");
        Zeroed { at, len, _memory: Memory::Heap { _words: words } }
    }
}

impl<T> Deref for Zeroed<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` made `len` values there, which live as long as `_memory`, is not touched.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Zeroed<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> std::fmt::Debug for Zeroed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zeroed({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_table_of_any_size_is_zeros_and_keeps_what_is_stored() {
        for len in [0, 1, 7, 1000, MAPPED_FROM / 8 + 3] {
            let table = Zeroed::<AtomicU64>::new(len);
            assert_eq!(table.len(), len);
            assert!(table.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            table.iter().zip(1..).for_each(|(word, n)| word.store(n, Ordering::Relaxed));
            assert!(table.iter().zip(1..).all(|(word, n)| word.load(Ordering::Relaxed) == n));
        }
        let mut bytes = Zeroed::<u8>::new(MAPPED_FROM);
        bytes.fill(7);
        assert_eq!((bytes[0], bytes[MAPPED_FROM - 1]), (7, 7));
    }
}
