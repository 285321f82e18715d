//! A hint to the processor that a cache line is going to be needed.
//!
//! Owns: the one instruction. Promises: no effect on results, on any machine. Never: faults.
//!
//! A dependent miss on the map costs 136–163 ns, an independent prefetched one 3–5 ns
//! (measured on a model of this engine): batches of sectors ask for all their lines first.

/// Asks for the cache line of `value`.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_at(std::ptr::from_ref(value).cast());
}

/// Asks for the cache line at an address, which need not name anything.
#[inline(always)]
pub fn prefetch_at(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no architectural effect.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
