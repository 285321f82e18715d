//! Everything but times: those are the machine's.

use super::*;
use crate::reproduce::live::tests::{Impatient, tiny};
use crate::run::Unwatched;
use std::rc::Rc;

const TEXT: &str = include_str!("../../../../../../experiments/qblk/scaling.toml");

/// The figure with one short round on a device of an eighth.
fn small() -> FigureFile {
    let text = TEXT.replace("channels = 16", "channels = 4");
    assert_ne!(text, TEXT);
    tiny(FIGURE, &text, &[("rounds", 1), ("piece_ms", 2), ("set_mib", 16)])
}

fn figure(cores: u32) -> Measured {
    measure(&small(), Size::Small, &|_| Rc::new(Unwatched), cores).expect("measured")
}

/// More threads than this machine has, and a number that is no power of two.
#[test]
fn every_number_of_threads_has_its_rows() {
    assert_eq!(threads(1), [1]);
    assert_eq!(threads(8), [1, 2, 4, 8]);
    assert_eq!(threads(48), [1, 2, 4, 8, 16, 32, 48]);
    let found = figure(3);
    let named = |n: u32| {
        let name = format!("threads {n}:");
        found.rows.iter().filter(|r| r.what.starts_with(&name)).count()
    };
    assert_eq!((named(1), named(2), named(3)), (4, 9, 9));
    assert!(found.rows.iter().all(|r| r.here.is_some_and(|x| x > 0.0)), "{:?}", found.rows);
    assert_eq!(found.verdict, None);
}

#[test]
fn one_core_has_nothing_to_scale() {
    let found = figure(1);
    assert_eq!(found.verdict, Some(Verdict::NothingToScale));
    assert_eq!(found.rows.len(), 4);
}

/// Ctrl-C: what was not measured has no value, for every number of threads.
#[test]
fn an_interrupt_ends_it_early() {
    let mut file = small();
    file.parameters.iter_mut().for_each(|(name, value)| {
        if name == "rounds" {
            *value = u64::from(u32::MAX);
        }
    });
    let watch = |_: &str| Rc::new(Impatient::default()) as Rc<dyn crate::run::Monitor>;
    let found = measure(&file, Size::Small, &watch, 4).expect("ended");
    assert_eq!(found.rows.len(), 4 + 9 + 9);
    assert!(found.rows.iter().all(|r| r.here.is_none()));
    assert_eq!(found.verdict, None);
}

fn round(taken: f64) -> Round {
    KINDS.iter().map(|kind| ((*kind, true), Sum { rate: 1.0, busy: 1.0, taken })).collect()
}

/// Disturbed rounds are left out where enough others are there, and said in any case.
#[test]
fn rounds_that_others_disturbed_are_left_out() {
    let mut notes = Vec::new();
    assert_eq!(fair(2, &[round(0.0), round(0.01)], &mut notes).len(), 2);
    assert!(notes.is_empty());
    let rounds = [round(0.0), round(0.5), round(0.0), round(0.0)];
    assert_eq!(fair(2, &rounds, &mut notes).len(), 3);
    assert!(notes[0].contains("1 of 4 rounds") && notes[0].contains("50%"), "{notes:?}");
    assert_eq!(fair(2, &rounds[..3], &mut notes).len(), 3);
    assert!(notes[1].contains("idle machine"), "{notes:?}");
}

/// The most threads that a machine is asked for.
#[test]
fn sixty_four_threads_get_through() {
    let file = tiny(FIGURE, TEXT, &[("rounds", 1)]);
    let plan = Plan { set: 4096, ..Plan::of(FIGURE, &file, Size::Small) };
    let rounds = session(&plan, THREADS_MAX, Ns::from_ms(1), Arc::default()).expect("measured");
    assert_eq!((rounds.len(), rounds[0].len()), (1, 6));
}
