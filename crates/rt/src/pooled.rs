//! Futures in memory that is kept for the next one.
//!
//! Owns: [`Pooled`], and per thread the free blocks of each size class. Promises: a future that is
//! no larger than one before it, of which not more are alive at once, allocates nothing; a thread's
//! blocks are given back when it ends. Never: more than a fixed number of free blocks per class.
//!
//! A request is a future per layer and lives for microseconds; a general allocator takes a good part
//! of what an answer from the buffer costs altogether.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::ptr::{NonNull, null_mut};
use std::task::{Context, Poll};

/// Bytes of a block, by class.
const CLASSES: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// Alignment of every block. A future that wants more is allocated.
const ALIGN: usize = 16;
/// Most free blocks that are kept of a class.
const FREE_MAX: u32 = 1024;

/// A future like `Pin<Box<dyn Future>>`, in memory that is used again.
pub struct Pooled<'a, T>(NonNull<dyn Future<Output = T> + 'a>);

impl<'a, T> Pooled<'a, T> {
    /// Moves a future there.
    #[inline]
    pub fn new<F: Future<Output = T> + 'a>(future: F) -> Pooled<'a, T> {
        let block = take(Layout::new::<F>()).cast::<F>();
        // SAFETY: the block is as large and as aligned as the layout says, and nobody else's.
        unsafe { block.write(future) };
        let unsized_: *mut (dyn Future<Output = T> + 'a) = block.as_ptr();
        // SAFETY: it comes from a `NonNull`.
        Pooled(unsafe { NonNull::new_unchecked(unsized_) })
    }
}

impl<T> Future for Pooled<'_, T> {
    type Output = T;
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // SAFETY: it is this one's alone, lives until this is dropped, and never moves.
        unsafe { Pin::new_unchecked(self.get_mut().0.as_mut()) }.poll(context)
    }
}

/// What it points to never moves, whatever this does.
impl<T> Unpin for Pooled<'_, T> {}

impl<T> Drop for Pooled<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `poll`; it is dropped once, its layout is that of `new`.
        unsafe {
            let layout = Layout::for_value(self.0.as_ref());
            self.0.drop_in_place();
            give_back(self.0.cast(), layout);
        }
    }
}

/// Free blocks of a class: each begins with the address of the next.
struct Free {
    first: Cell<*mut u8>,
    blocks: Cell<u32>,
}

/// One per class.
struct Pool([Free; CLASSES.len()]);

thread_local! {
    static POOL: Pool = const {
        Pool([const { Free { first: Cell::new(null_mut()), blocks: Cell::new(0) } }; CLASSES.len()])
    };
}

/// The class of a layout, if it is one for the pool.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let fits = |bytes: &usize| layout.size() <= *bytes && layout.align() <= ALIGN;
    CLASSES.iter().position(fits)
}

fn block_of(class: usize) -> Layout {
    Layout::from_size_align(CLASSES[class], ALIGN).expect("a power of two")
}

#[inline]
fn take(layout: Layout) -> NonNull<u8> {
    let Some(class) = class_of(layout) else { return allocate(layout) };
    let kept = POOL.try_with(|pool| {
        let free = &pool.0[class];
        let block = NonNull::new(free.first.get())?;
        // SAFETY: a free block, which begins with the address of the next.
        free.first.set(unsafe { block.cast::<*mut u8>().read() });
        free.blocks.set(free.blocks.get() - 1);
        Some(block)
    });
    kept.ok().flatten().unwrap_or_else(|| allocate(block_of(class)))
}

/// # Safety
/// `block` comes from [`take`] with the same layout, and nobody looks at it any more.
#[inline]
unsafe fn give_back(block: NonNull<u8>, layout: Layout) {
    let Some(class) = class_of(layout) else {
        // SAFETY: what the pool has no class for was allocated by its layout.
        return unsafe { free(block, layout) };
    };
    let kept = POOL.try_with(|pool| {
        let list = &pool.0[class];
        if list.blocks.get() >= FREE_MAX {
            return false;
        }
        // SAFETY: larger than an address, aligned for one, and free.
        unsafe { block.cast::<*mut u8>().write(list.first.get()) };
        list.first.set(block.as_ptr());
        list.blocks.set(list.blocks.get() + 1);
        true
    });
    // A thread that ends has no pool any more.
    if !kept.unwrap_or(false) {
        // SAFETY: blocks of a class are allocated by its layout.
        unsafe { free(block, block_of(class)) };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for (class, list) in self.0.iter().enumerate() {
            while let Some(block) = NonNull::new(list.first.get()) {
                // SAFETY: as in `take`; nobody has it.
                unsafe {
                    list.first.set(block.cast::<*mut u8>().read());
                    free(block, block_of(class));
                }
            }
        }
    }
}

#[cold]
fn allocate(layout: Layout) -> NonNull<u8> {
    if layout.size() == 0 {
        return NonNull::new(layout.align() as *mut u8).expect("an alignment is not 0");
    }
    // SAFETY: it has a size.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// # Safety
/// `block` comes from [`allocate`] with this layout.
#[cold]
unsafe fn free(block: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: as the caller says.
        unsafe { dealloc(block.as_ptr(), layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::task::Waker;

    fn polled<T>(future: &mut Pooled<'_, T>) -> Poll<T> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn address<T>(future: &Pooled<'_, T>) -> usize {
        future.0.cast::<u8>().as_ptr() as usize
    }

    /// What it borrows is used and dropped as in a box; its block is the next one's.
    #[test]
    fn a_block_is_used_again() {
        let (shared, text) = (Rc::new(()), String::from("borrowed"));
        let make = |n: usize| {
            let (held, text) = (shared.clone(), &text);
            Pooled::new(async move {
                let _held = held;
                let mut first = true;
                std::future::poll_fn(|_| match std::mem::take(&mut first) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                })
                .await;
                text.len() + n
            })
        };
        let mut one = make(1);
        let at = address(&one);
        assert!(polled(&mut one).is_pending());
        assert_eq!((polled(&mut one), Rc::strong_count(&shared)), (Poll::Ready(9), 1));
        drop(one);
        let two = make(2);
        assert_eq!((address(&two), Rc::strong_count(&shared)), (at, 2));
        let three = make(3);
        assert_ne!(address(&three), at, "two at a time");
        drop((two, three));
        assert_eq!(Rc::strong_count(&shared), 1, "dropped before they ended");
    }

    /// Of every size and alignment.
    #[test]
    fn what_fits_no_class_is_allocated() {
        #[repr(align(64))]
        struct Wide([u8; 64]);
        let wide = Wide([3; 64]);
        let mut aligned = Pooled::new(async move {
            let all = wide;
            all.0[63]
        });
        assert_eq!(address(&aligned) % 64, 0);
        assert_eq!(polled(&mut aligned), Poll::Ready(3));
        let large = [7u8; 5000];
        assert_eq!(polled(&mut Pooled::new(async move { large[4999] })), Poll::Ready(7));
        assert_eq!(polled(&mut Pooled::new(std::future::ready(()))), Poll::Ready(()));
        struct Nothing;
        impl Future for Nothing {
            type Output = u8;
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u8> {
                Poll::Ready(1)
            }
        }
        assert_eq!(polled(&mut Pooled::new(Nothing)), Poll::Ready(1));
    }

    /// Free blocks beyond a bound are given back.
    #[test]
    fn few_blocks_are_kept() {
        let many: Vec<_> = (0..2 * FREE_MAX).map(|n| Pooled::new(async move { n })).collect();
        drop(many);
        let class = class_of(Layout::new::<u64>()).expect("the smallest");
        assert_eq!(POOL.with(|pool| pool.0[class].blocks.get()), FREE_MAX);
    }
}
