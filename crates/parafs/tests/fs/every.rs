//! All short sequences of operations, cut at every command (`testkit/src/files/every.rs`).
//!
//! `FLASHLANE_OPERATIONS=3` has sequences of up to three, `FLASHLANE_SEQUENCE=0.5.7` only that one.

use flashlane_testkit::files::every;

/// Of this name, from whoever runs a test.
fn asked(name: &str) -> Option<String> {
    // Tests are told by their environment what to repeat.
    #[allow(clippy::disallowed_methods)]
    std::env::var(name).ok()
}

#[test]
fn sequences_are_there_as_far_as_was_promised() {
    if let Some(numbers) = asked("FLASHLANE_SEQUENCE") {
        let number = |word: &str| word.parse().expect("numbers with dots between: 0.5.7");
        let numbers: Vec<usize> = numbers.split('.').map(number).collect();
        let done = every::replay(&numbers).unwrap_or_else(|why| panic!("{why}"));
        println!("{done:?}");
        return;
    }
    let number = |word: String| word.parse().expect("FLASHLANE_OPERATIONS is a number");
    let operations = asked("FLASHLANE_OPERATIONS").map_or(2, number);
    let jobs = asked("FLASHLANE_JOBS").map_or(1, number);
    let (tally, failures) = every::every(operations, jobs).unwrap_or_else(|why| panic!("{why}"));
    println!("{tally:?}");
    for failure in failures.iter().take(20) {
        println!("{failure}");
    }
    assert!(failures.is_empty(), "{} sequences failed", failures.len());
    assert!(operations < 2 || tally.cuts > 5_000, "{tally:?}");
}
