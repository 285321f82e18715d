//! Everything but times: those are the machine's.

use super::*;
use crate::reproduce::live::tests::{Impatient, tiny};
use crate::reproduce::{Known, Watcher};
use crate::run::Unwatched;

const TEXT: &str = include_str!("../../../../../../experiments/qblk/scaling.toml");

/// The figure with one short round on a device of an eighth.
fn small() -> FigureFile {
    let text = TEXT.replace("channels = 16", "channels = 4");
    assert_ne!(text, TEXT);
    tiny(FIGURE, &text, &[("rounds", 1), ("piece_ms", 2), ("set_mib", 16)])
}

fn figure(cores: u32, file: &FigureFile, watch: &dyn Watcher) -> Measured {
    let machine = Machine { cores, ..Machine::default() };
    measure(file, &Way { jobs: 1, watch, known: &Known::default() }, &machine).expect("measured")
}

/// More threads than this machine has, and a number that is no power of two.
#[test]
fn every_number_of_threads_has_its_points() {
    assert_eq!(threads(1), [1]);
    assert_eq!(threads(8), [1, 2, 4, 8]);
    assert_eq!(threads(48), [1, 2, 4, 8, 16, 32, 48]);
    let file = small();
    let found = figure(3, &file, &Unwatched);
    assert_eq!(found.points.0.len(), 3 * 3);
    let rows = file.rows_of(&found.points).expect("good rows");
    assert!(rows.iter().all(|r| r.here.is_some_and(|x| x > 0.0)), "{rows:?}");
    assert_eq!(found.verdict, Some(Verdict::Inconclusive));
}

/// Few cores, and many of a machine whose own copies do not scale, say nothing of an FTL.
#[test]
fn a_machine_that_does_not_scale_shows_nothing() {
    let of = |cores: u32, gain: f64| {
        let copy = Point::new("copy", [("threads", cores.to_string())]).with("factor", gain);
        let mut notes = Vec::new();
        let verdict = cannot_show(cores, &Points(vec![copy]), &mut notes);
        assert_eq!(notes.len(), usize::from(verdict.is_some()));
        verdict.is_some()
    };
    assert!(of(1, 1.0) && of(2, 2.0) && of(4, 1.9) && of(16, 7.0));
    assert!(!of(4, 2.1) && !of(16, 12.0));
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
    let found = figure(4, &file, &Impatient::default());
    assert_eq!(found.points.0.len(), 3 * 3);
    assert!(found.points.0.iter().all(|point| point.values.is_empty()));
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
    let plan = Plan { set: 4096, ..Plan::of(FIGURE, &file) };
    let rounds = session(&plan, THREADS_MAX, Ns::from_ms(1), Arc::default()).expect("measured");
    assert_eq!((rounds.len(), rounds[0].len()), (1, 6));
}
