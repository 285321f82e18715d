//! What reaches a chunk in which order (Q08 to Q11, Q21): semaphores, budgets, line switches, failures.
//!
//! Owns: the tests, over the traced commands ([`programs`]). The device itself counts a program that is out
//! of its chunk's order as a violation.

use crate::prelude::*;
use crate::qblk::cores::{made, qblk};
use flashlane_ocssd::device::Device;

/// A program of one unit.
struct Program {
    pu: u32,
    chunk: u32,
    sector: u32,
    from: Ns,
    to: Ns,
    is_data: bool,
}

/// Programs of all kinds in the order of their submission.
fn programs(b: &Bench) -> Vec<Program> {
    let unit = b.ssd.geometry().ws_opt as usize;
    let entries = b.trace.entries();
    let writes = entries.iter().filter(|e| e.op == Op::Write);
    let units = writes.flat_map(|e| e.addrs.iter().step_by(unit).map(move |addr| (e, *addr)));
    units
        .map(|(e, addr)| {
            let at = b.place(addr);
            let to = e.finished.expect("ended");
            let (from, is_data) = (e.submitted, is_data(e));
            Program { pu: at.pu, chunk: at.chunk, sector: at.sector, from, to, is_data }
        })
        .collect()
}

/// Most programs of data of one PU that were in flight at a time (the log has no semaphore).
fn most_in_flight(programs: &[Program]) -> usize {
    let data: Vec<&Program> = programs.iter().filter(|p| p.is_data).collect();
    let beside = |p: &Program, o: &Program| o.pu == p.pu && o.from <= p.from && o.to > p.from;
    let at = |p: &&Program| data.iter().filter(|o| beside(p, o)).count();
    data.iter().step_by(3).map(at).max().unwrap_or(0)
}

fn budget(mut setup: Setup, budget: u32) -> Setup {
    setup.config.pu_budget = budget;
    setup
}

/// Every PU's semaphore is free.
fn no_pu_taken(b: &Bench) {
    let luns = b.attribute("write_luns");
    assert!(luns.split(' ').all(|l| l.ends_with(":free")), "{luns}");
}

/// Q08: many drainers with requests over several PUs of few channels, at a budget of 1 as at 8, among
/// closing metadata that takes all of a PU's: everything ends, and every PU is free. (The paper's Figure 5
/// itself: `log/path/drain/tests.rs`.)
#[test]
fn q08_requests_over_several_pus_never_deadlock() {
    for per_pu in [1, 2, 8] {
        let b = budget(qblk(1, 4, 6), per_pu).op(70).untraced().build();
        b.fill_on_all(1);
        b.overwrite_on_all(3, 400, 2);
        b.drained();
        assert!(b.stats().gc_victims + b.stats().gc_free_rides > 10);
        no_pu_taken(&b);
        b.settled();
    }
}

/// Q04 of the paper (section II-D), Q09: requests carry up to a unit of each PU of their channel, no more
/// than the budget is in flight per PU, more than one where the budget allows it, and units reach a chunk
/// in its order whichever drainer took them.
#[test]
fn q09_units_reach_a_chunk_in_its_order_at_any_budget() {
    for per_pu in [1, 2, 8] {
        let b = budget(qblk(2, 2, 5), per_pu).build();
        b.fill_on_all(1);
        b.drained();
        let all = programs(&b);
        let mut next: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for p in &all {
            let next = next.entry((p.pu, p.chunk)).or_insert(0);
            // A chunk of the log may have been erased and begun again.
            assert!(p.sector == *next || p.sector == 0, "PU {} chunk {}", p.pu, p.chunk);
            *next = p.sector + 4;
        }
        let most = most_in_flight(&all);
        assert!(most <= per_pu as usize, "{most} in flight with a budget of {per_pu}");
        assert!(most > 1 || per_pu == 1, "the budget of {per_pu} is used");
        let units: Vec<usize> =
            (0..5).flat_map(|core| b.requests_of(core)).map(|r| r.len()).collect();
        assert_eq!(units.iter().max(), Some(&2), "a unit for each PU of a channel");
        b.settled();
    }
}

/// A plan of so many failures on their way.
fn failing(kind: &str, times: u32) -> String {
    format!("[[fault]]\nkind = \"{kind}\"\nprobability = \"0.02\"\ntimes = {times}\ncount = 40\n")
}

/// Q09, Q21: programs fail in the middle of chunks with several in flight behind them, in flight:
/// no hole is written, no PU stays taken, nothing is lost, and every ring goes on.
#[test]
fn q09_q21_failures_in_the_middle_leave_no_hole() {
    for kind in ["early_close", "write_next_unit"] {
        for per_pu in [1, 8] {
            let setup = budget(qblk(3, 2, 4), per_pu).op(70).untraced();
            let b = setup.faults(&failing(kind, 12)).build();
            b.fill_on_all(1);
            b.overwrite_on_all(2, 150, 2);
            b.set_gc(false);
            b.drained();
            b.drained(); // what was collected meanwhile
            assert_eq!(b.ssd.faults_happened(), [12], "{kind}");
            assert!(b.retired() >= 1);
            no_pu_taken(&b);
            let (mem, sync) = (b.of_rings("mem"), b.of_rings("sync"));
            assert_eq!(mem, sync, "each ring's order ends where it should");
            assert!(mem.iter().all(|n| *n > 500), "{mem:?}");
            b.settled();
        }
    }
}

/// Q21: what failed in one channel is sent again in another, for the pointer has moved on; meanwhile
/// another ring's writes end, and a flush waits for the retry.
#[test]
fn q21_a_failed_unit_goes_to_another_channel() {
    let b = qblk(4, 1, 2).build();
    b.write_on(1, 400, 4, 1);
    b.drained();
    b.trace.take();
    b.answer(Op::Write, 0, !0, flashlane_ocssd::device::Status::WriteFault, Ns::from_ms(4));
    b.write_on(0, 0, 4, 1);
    b.sleep(Ns::from_us(10));
    let from = b.run.now();
    b.fua_on(1, 100, 4, 1);
    assert!(b.run.now() < from + Ns::from_ms(2), "the other ring does not wait");
    b.flush_on(1);
    assert!(b.run.now() >= from + Ns::from_ms(4), "a flush does");
    let requests = b.requests_of(0);
    let channels: Vec<u32> = requests.iter().map(|r| b.channel_of(&r[0])).collect();
    assert_eq!(channels, [0, 1]);
    assert_eq!(b.count(Cause::Retry) + b.count(Cause::User), 12);
    no_pu_taken(&b);
    b.settled();
}

/// Q10: lines of a channel are switched while drainers of other cores take positions in them: no unit is
/// given twice (the device would refuse it) or left out, and closing metadata names every sector of its
/// line: after a power cut all of it is found.
#[test]
fn q10_a_line_switch_among_others_loses_no_unit() {
    for cores in [2, 7] {
        let b = made(qblk(2, 2, cores).manual_gc());
        let writes: Vec<_> =
            (0..60).map(|i| b.begin_write_on(i % cores, u64::from(i) * 15, 15, 1)).collect();
        for write in writes {
            b.wait(write).expect("a write");
        }
        b.flush();
        b.sleep(Ns::from_ms(5));
        assert!(b.lines(LineState::Closed) > 4);
        let b = b.cut().mounted();
        assert!(b.recovery().lines_replayed > 0, "{:?}", b.recovery());
        b.read_all();
        b.agrees();
    }
}

/// Q11: erases take long, so that channels wait for their next line: drainers go to others meanwhile, and
/// nobody spins (a loop that waits without virtual time passing would never end).
#[test]
fn q11_drainers_leave_a_channel_that_is_being_erased() {
    let b = qblk(3, 1, 3).op(70).with(|s| s.spec.timing.erase = Ns::from_ms(60)).build();
    for version in 1..4 {
        b.fill_on_all(version);
    }
    b.drained();
    let entries = b.trace.entries();
    let erases: Vec<_> = entries.iter().filter(|e| e.op == Op::Reset).collect();
    let channel = |e: &flashlane_ocssd::wrap::Traced| b.channel_of(&b.place(e.addrs[0]));
    let mut elsewhere = BTreeSet::new();
    for erase in &erases {
        let during = |e: &&&flashlane_ocssd::wrap::Traced| {
            e.submitted > erase.submitted && Some(e.submitted) < erase.finished
        };
        let data = entries.iter().filter(|e| is_data(e)).collect::<Vec<_>>();
        elsewhere.extend(
            data.iter()
                .filter(during)
                .map(|e| (channel(erase), channel(e)))
                .filter(|(a, b)| a != b),
        );
    }
    assert!(erases.len() > 20);
    assert_eq!(elsewhere.len(), 6, "during each channel's erases each other one was written");
    b.settled();
}
