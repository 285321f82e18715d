//! Reads that a mount repeats over time, before it decides what a read that fails means.
//!
//! Owns: how often and after which waits ([`WAITS`]). Promises: the waits depend on nothing but
//! this list, so a mount in virtual time is repeatable. Never: decides what a sector is that can't
//! be read.

use flashlane_base::Ns;
use flashlane_rt::Cx;

/// Device time before each further round of reads. A medium that fails for less than their sum,
/// about a second, costs a mount time and nothing else.
const WAITS: [Ns; 4] = [Ns::from_ms(1), Ns::from_ms(10), Ns::from_ms(100), Ns::from_ms(1000)];

/// Has `read` try `left` again, after a longer wait each time. `read` returns what still can't be
/// read; so does this, after the last round.
pub async fn read_again<T>(
    cx: &Cx,
    mut left: Vec<T>,
    mut read: impl AsyncFnMut(Vec<T>) -> Vec<T>,
) -> Vec<T> {
    for wait in WAITS {
        if left.is_empty() {
            break;
        }
        cx.sleep(wait).await;
        left = read(left).await;
    }
    left
}
