//! Hazards: commands that clash while they are under way, and those that do not.

use crate::common::*;

fn bench(hazards: bool) -> (Bench, Arc<Ssd>) {
    Bench::of(&tiny(|_| {}), SsdOptions { hazards, ..memory() })
}

/// What the second command does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Read,
    Write,
    Reset,
}

/// On chunk 3 of PU 1, 32 of its 64 sectors written: a first command, and behind its submission, or its
/// end, a second. How many hazards there were, and how both ended.
fn pair(
    hazards: bool,
    (first, from): (Then, u32),
    (second, to): (Then, u32),
    waits: bool,
) -> (usize, u64, u64) {
    let (b, ssd) = bench(hazards);
    b.write_up_to(1, 3, 32, 1);
    let ended = b.run(move |cx, dev| async move {
        let send = async |op: Then, sector: u32| {
            let at = addrs(&*dev, &[(1, 3, sector, 4)]);
            match op {
                Then::Read => read(&cx, &*dev, &at, Flags::default()).await.done,
                Then::Write => write(&cx, &*dev, &at, 2).await,
                Then::Reset => dev.io(&cx, Request::plain(Op::Reset, &at[..1])).await,
            }
        };
        if waits {
            let done = send(first, from).await;
            return (done.failed, send(second, to).await.failed);
        }
        // Polled in turn: both are submitted before either is over.
        let (mut a, mut b) = (Box::pin(send(first, from)), Box::pin(send(second, to)));
        let (mut done_a, mut done_b) = (None, None);
        std::future::poll_fn(|context| {
            use std::task::Poll;
            if done_a.is_none()
                && let Poll::Ready(done) = a.as_mut().poll(context)
            {
                done_a = Some(done.failed);
            }
            if done_b.is_none()
                && let Poll::Ready(done) = b.as_mut().poll(context)
            {
                done_b = Some(done.failed);
            }
            match (done_a, done_b) {
                (Some(a), Some(b)) => Poll::Ready((a, b)),
                _ => Poll::Pending,
            }
        })
        .await
    });
    let broken = ssd.violations();
    assert!(broken.iter().all(|v| v.rule == Rule::Hazard), "{broken:?}");
    (broken.len(), ended.0, ended.1)
}

/// A reset clashes with everything at its chunk, a read with a write of the same sectors; who waits for
/// the first to end breaks nothing; and whether anybody looks changes no outcome.
#[test]
fn commands_that_clash_are_told_and_nothing_else_changes() {
    use Then::*;
    for (first, second, clash) in [
        ((Read, 0), (Reset, 0), true),
        ((Write, 32), (Reset, 0), true),
        ((Reset, 0), (Read, 0), true),
        ((Reset, 0), (Write, 0), true),
        ((Write, 32), (Read, 32), true),
        ((Write, 32), (Read, 0), false),
        ((Read, 0), (Write, 32), false),
        ((Read, 0), (Read, 0), false),
        ((Write, 32), (Write, 36), false),
    ] {
        let what = format!("{first:?}, then {second:?}");
        let (found, ..) = pair(true, first, second, false);
        assert_eq!(found > 0, clash, "{what}");
        let (_, a, b) = pair(true, first, second, false);
        assert_eq!(pair(false, first, second, false), (0, a, b), "{what}: unseen");
        assert_eq!(pair(true, first, second, true).0, 0, "{what}: one after the other");
    }
}

/// A violation names what was sent and where; a power cut leaves nothing under way.
#[test]
fn a_hazard_explains_itself_and_ends_with_the_power() {
    let (b, ssd) = bench(true);
    b.write_up_to(0, 2, 64, 1);
    let at = b.at(&[(0, 2, 0, 1)]);
    b.run(|cx, dev| async move {
        for _ in 0..2 {
            let _ = dev.submit(&cx, Request::plain(Op::Reset, &at));
        }
    });
    let said = ssd.violations()[0].to_string();
    assert!(said.contains("reset at") && said.contains("pu 0 chunk 2"), "{said}");
    assert!(said.contains("waits for those under way"), "{said}");
    let before = ssd.counters().violations;
    ssd.power_cut(b.now(), PowerOn::ClockGoesOn);
    b.reset(0, 2);
    assert_eq!(ssd.counters().violations, before);
}
