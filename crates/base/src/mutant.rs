//! Mutants: switches that break one safety rule each, so that the tests can be tested.
//!
//! Owns: which mutant is alive in this process, and how often it struck. Promises: a build without
//! mutants pays nothing, [`is_alive`] is the constant `false` there; with them, nothing changes until
//! `FLASHLANE_MUTANT` or [`choose`] names one. Never: knows the rules. A mutant stands beside the rule
//! that it breaks, as `if mutant!("layer.what")`, and has a row in `docs/MUTANTS.md`.
//!
//! Builds with debug assertions have them, and builds with the feature `mutants`.

// Not a checker's atomics: which mutant is alive is no part of what is checked.
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether this build has mutants.
pub const ARE_BUILT: bool = cfg!(any(debug_assertions, feature = "mutants"));

/// The environment variable that names the one that is alive.
pub const VARIABLE: &str = "FLASHLANE_MUTANT";

/// No mutant is alive.
const NONE: u64 = 0;
/// Nobody has looked at the environment yet.
const UNKNOWN: u64 = u64::MAX;

static ALIVE: AtomicU64 = AtomicU64::new(UNKNOWN);
static STRUCK: AtomicU64 = AtomicU64::new(0);

/// The number of a name: FNV-1a, 64 bits.
pub const fn id(name: &str) -> u64 {
    let (bytes, mut hash, mut i) = (name.as_bytes(), 0xcbf2_9ce4_8422_2325u64, 0);
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

/// Is the mutant of this [`id`] alive? Called by [`mutant!`](crate::mutant!) alone. True counts as a strike.
#[inline(always)]
pub fn is_alive(id: u64) -> bool {
    ARE_BUILT && {
        let alive = ALIVE.load(Ordering::Relaxed);
        (alive == id || alive == UNKNOWN) && strike(id)
    }
}

#[cold]
#[expect(
    clippy::disallowed_methods,
    reason = "the choice is for a process, whatever program it runs"
)]
fn strike(id: u64) -> bool {
    if ALIVE.load(Ordering::Relaxed) == UNKNOWN {
        choose(std::env::var(VARIABLE).ok().as_deref());
    }
    let strikes = ALIVE.load(Ordering::Relaxed) == id;
    STRUCK.fetch_add(u64::from(strikes), Ordering::Relaxed);
    strikes
}

/// From now on the mutant of this name is alive, or none, in the whole process.
pub fn choose(name: Option<&str>) {
    let name = name.filter(|name| !name.is_empty());
    ALIVE.store(name.map_or(NONE, id), Ordering::Relaxed);
    STRUCK.store(0, Ordering::Relaxed);
}

/// How often the one that is alive came to break its rule since it was chosen.
pub fn strikes() -> u64 {
    STRUCK.load(Ordering::Relaxed)
}

/// Whether the mutant of this name is alive: then the rule beside it is to be broken. `false` at no
/// cost in a build without mutants.
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {{
        const ID: u64 = $crate::mutant::id($name);
        $crate::mutant::is_alive(ID)
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the choice is the process's.
    #[test]
    fn one_is_alive_at_a_time() {
        choose(None);
        assert!(!mutant!("base.first") && strikes() == 0);
        choose(Some("base.first"));
        assert!(mutant!("base.first") && !mutant!("base.second") && mutant!("base.first"));
        assert_eq!(strikes(), 2);
        choose(Some(""));
        assert!(!mutant!("base.first") && strikes() == 0);
    }
}
