//! Keeps a library's panic on damaged input from being ours.
//!
//! Owns: the border around calls into the Parquet library, which asserts and indexes where a damaged
//! file makes it wrong (found by fuzzing: version 60, pages without their dictionary, a split stream
//! that is too short). Promises: inside it a panic becomes an error and prints nothing; outside,
//! panics are what they were. Never: is used around our own code: there a panic is a defect.

use ::parquet::errors::{ParquetError, Result};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Makes the program's panic hook silent for threads that are inside.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                before(info);
            }
        }));
    });
}

/// A call into the library.
///
/// # Errors
/// What the library said, or that it gave up. What it worked on must not be used again then.
pub(super) fn contained<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    silence();
    INSIDE.set(true);
    // Nothing that the call has changed is looked at after a panic.
    let done = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(false);
    done.unwrap_or_else(|_| Err(ParquetError::General("a damaged page or footer".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_is_an_error_and_outside_a_panic() {
        assert!(contained(|| Ok(1)).is_ok_and(|n| n == 1));
        let said = contained::<()>(|| panic!("the library")).unwrap_err().to_string();
        assert!(said.contains("damaged"), "{said}");
        assert!(catch_unwind(|| panic!("ours (this one is printed)")).is_err());
    }
}
