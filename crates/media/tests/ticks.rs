//! The channel's event engine against a simulation that walks through time in steps of one
//! microsecond and knows no shortcuts. They must agree on every end.

use flashlane_base::Ns;
use flashlane_media::timing::{ArrayOp, DieQueue, Kind, Timing, TimingParams};
use proptest::prelude::*;

const DIES: u32 = 3;

#[derive(Clone, Copy, Debug)]
struct Job {
    /// Submitted at this microsecond.
    at: u64,
    kind: Kind,
    die: u32,
    /// Reads: row of one plane; equal rows meet the page register.
    row: u64,
    transfer: u64,
    array: u64,
}

#[derive(Clone, Copy, Debug)]
struct Rules {
    command: u64,
    read_first: bool,
    cache_read: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Waiting,
    Sensing(u64),
    /// Wants the bus since.
    Asking(u64),
    Sending(u64),
    Array(u64),
    Over(u64),
}

/// One microsecond at a time.
fn walk(jobs: &[Job], rules: Rules) -> Vec<u64> {
    let mut phase = vec![Phase::Waiting; jobs.len()];
    let mut register = [u64::MAX; DIES as usize];
    let mut t = 0;
    while phase.iter().any(|p| !matches!(p, Phase::Over(_))) {
        loop {
            let mut changed = end_phases(jobs, &mut phase, t);
            changed |= begin_jobs(jobs, &mut phase, &mut register, rules, t);
            if !changed {
                break;
            }
        }
        // Later requests of this microsecond cannot overtake: the bus is given at its end.
        give_bus(jobs, &mut phase, t);
        t += 1;
        assert!(t < 1_000_000, "{phase:?}");
    }
    phase
        .iter()
        .map(|p| match p {
            Phase::Over(t) => *t,
            _ => unreachable!(),
        })
        .collect()
}

fn end_phases(jobs: &[Job], phase: &mut [Phase], t: u64) -> bool {
    let mut changed = false;
    for (job, p) in jobs.iter().zip(phase) {
        let next = match *p {
            Phase::Sensing(end) if end <= t => Phase::Asking(end),
            Phase::Sending(end) if end <= t && job.kind == Kind::Read => Phase::Over(end),
            Phase::Sending(end) if end <= t => Phase::Array(end + job.array),
            Phase::Array(end) if end <= t => Phase::Over(end),
            same => same,
        };
        changed |= next != *p;
        *p = next;
    }
    changed
}

fn begin_jobs(
    jobs: &[Job],
    phase: &mut [Phase],
    register: &mut [u64; DIES as usize],
    rules: Rules,
    t: u64,
) -> bool {
    let mut changed = false;
    for die in 0..DIES {
        let on = |i: &usize| jobs[*i].die == die;
        let held = |i: usize, kind: Kind, phase: &[Phase]| match phase[i] {
            Phase::Waiting | Phase::Over(_) => false,
            // With a cache register a row being sent leaves the array to the next read; one that
            // waits for the bus does so once the row before it has been sent.
            Phase::Asking(_) | Phase::Sending(_) if jobs[i].kind == Kind::Read => {
                let sending_before = (0..i).any(|j| {
                    jobs[j].die == jobs[i].die
                        && jobs[j].kind == Kind::Read
                        && matches!(phase[j], Phase::Asking(_) | Phase::Sending(_))
                });
                !(rules.cache_read && kind == Kind::Read) || sending_before
            }
            _ => true,
        };
        let waiting: Vec<usize> = (0..jobs.len())
            .filter(on)
            .filter(|i| phase[*i] == Phase::Waiting && jobs[*i].at + rules.command <= t)
            .collect();
        let first = waiting.first().copied();
        let free = |i: &usize| {
            let on = (0..jobs.len()).filter(on);
            !on.clone().any(|j| held(j, jobs[*i].kind, phase))
        };
        // A read that becomes ready in the very moment in which another operation can start comes
        // too late to pass it.
        let reads = || waiting.iter().copied().filter(|i| jobs[*i].kind == Kind::Read);
        let early = reads().find(|i| jobs[*i].at + rules.command < t);
        let order = match rules.read_first {
            true => [early, first, reads().next()],
            false => [first, None, None],
        };
        let Some(i) = order.into_iter().flatten().find(free) else {
            continue;
        };
        changed = true;
        phase[i] = match jobs[i].kind {
            Kind::Read if register[die as usize] == jobs[i].row => Phase::Asking(t),
            Kind::Read => {
                register[die as usize] = jobs[i].row;
                Phase::Sensing(t + jobs[i].array)
            }
            Kind::Program => {
                register[die as usize] = u64::MAX;
                Phase::Asking(t)
            }
            Kind::Erase => {
                register[die as usize] = u64::MAX;
                Phase::Array(t + jobs[i].array)
            }
        };
    }
    changed
}

fn give_bus(jobs: &[Job], phase: &mut [Phase], t: u64) {
    let busy = phase.iter().any(|p| matches!(p, Phase::Sending(end) if *end > t));
    let asking = (0..jobs.len()).filter_map(|i| match phase[i] {
        Phase::Asking(since) => Some((since, i)),
        _ => None,
    });
    if let Some((_, i)) = asking.min().filter(|_| !busy) {
        phase[i] = Phase::Sending(t + jobs[i].transfer);
    }
}

fn us(n: u64) -> Ns {
    Ns::from_us(n)
}

/// The engine, asked only when it says so, like a caller would.
fn engine(jobs: &[Job], rules: Rules) -> Vec<u64> {
    run(jobs, rules, params(rules))
}

fn params(rules: Rules) -> TimingParams {
    TimingParams {
        dies: DIES,
        planes: 1,
        command: us(rules.command),
        queue: if rules.read_first { DieQueue::ReadFirst } else { DieQueue::Fifo },
        read_burst: u32::MAX,
        suspend_cost: Ns::ZERO,
        cache_read: rules.cache_read,
        cache_program: false,
        max_in_flight: 0,
    }
}

fn run(jobs: &[Job], rules: Rules, params: TimingParams) -> Vec<u64> {
    run_commands(&jobs.iter().map(|j| vec![*j]).collect::<Vec<_>>(), rules, params)
}

/// Commands of several operations each, in the order of their times. Submissions and questions
/// happen in the order of time, as under a real executor; nobody may hear late.
fn run_commands(commands: &[Vec<Job>], rules: Rules, params: TimingParams) -> Vec<u64> {
    let mut time = Timing::new(params);
    let mut ends = vec![0; commands.len()];
    let mut asks: std::collections::BTreeSet<(Ns, usize, u32)> = Default::default();
    let mut next = 0;
    for _ in 0..100_000 {
        let submit = commands.get(next).map(|c| us(c[0].at));
        let ask = asks.first().map(|(at, ..)| *at);
        match (submit, ask) {
            (None, None) => return ends,
            (Some(at), ask) if ask.is_none_or(|ask| at < ask) => {
                let part = submit_command(&mut time, &commands[next], next, rules);
                asks.insert((time.ask_at(part, at), next, part));
                next += 1;
            }
            _ => {
                let Some((now, i, part)) = asks.pop_first() else { unreachable!() };
                time.settle(now);
                let p = time.part(part);
                if p.left == 0 && p.end <= now {
                    assert_eq!(p.end, now, "heard late");
                    ends[i] = now.as_ns() / 1000;
                    time.close_part(part);
                } else {
                    let later = time.ask_at(part, now);
                    assert!(later > now, "asked to ask again at once");
                    asks.insert((later, i, part));
                }
            }
        }
    }
    panic!("never over");
}

fn submit_command(time: &mut Timing, jobs: &[Job], number: usize, rules: Rules) -> u32 {
    let at = us(jobs[0].at);
    time.settle(at);
    let part = time.open_part(at + us(rules.command));
    for (k, job) in jobs.iter().enumerate() {
        let op = ArrayOp {
            kind: job.kind,
            suspend: true,
            die: job.die,
            part,
            // Chunks of their own: nothing depends on anything.
            chunk: (number * 100 + k) as u32,
            sector: 0,
            count: 1,
            row: job.row,
            planes: 1,
            token: 0,
            ready: at + us(rules.command),
            transfer: us(job.transfer),
            array: us(job.array),
            retry: Ns::ZERO,
        };
        time.submit(&op, at);
    }
    part
}

fn job() -> impl Strategy<Value = Job> {
    let kind = prop_oneof![5 => Just(Kind::Read), 3 => Just(Kind::Program), 1 => Just(Kind::Erase)];
    (0u64..40, kind, 0..DIES, 0u64..3, 1u64..30, 1u64..60).prop_map(
        |(at, kind, die, row, transfer, array)| Job {
            at,
            kind,
            die,
            row,
            transfer: if kind == Kind::Erase { 0 } else { transfer },
            array,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn events_agree_with_ticks(
        mut jobs in prop::collection::vec(job(), 1..25),
        command in 0u64..5,
        read_first in any::<bool>(),
        cache_read in any::<bool>(),
    ) {
        jobs.sort_by_key(|j| j.at);
        let rules = Rules { command, read_first, cache_read };
        prop_assert_eq!(engine(&jobs, rules), walk(&jobs, rules));
    }

    /// Commands of several operations end with the last of them, as the ticks have it.
    #[test]
    fn commands_end_with_their_last_operation(
        mut commands in prop::collection::vec(prop::collection::vec(job(), 1..5), 1..10),
        command in 0u64..5,
        read_first in any::<bool>(),
        cache_read in any::<bool>(),
    ) {
        commands.sort_by_key(|c| c[0].at);
        for c in &mut commands {
            let at = c[0].at;
            c.iter_mut().for_each(|j| j.at = at);
        }
        let rules = Rules { command, read_first, cache_read };
        let each = walk(&commands.concat(), rules);
        let mut each = each.iter();
        let want: Vec<u64> = commands
            .iter()
            .map(|c| each.by_ref().take(c.len()).copied().max().unwrap_or(0))
            .collect();
        prop_assert_eq!(run_commands(&commands, rules, params(rules)), want);
    }

    /// Every policy and limit: everything ends, not before it was announced and not before it
    /// could, and nothing takes longer than all of it one after the other.
    #[test]
    fn everything_ends(
        mut commands in prop::collection::vec(prop::collection::vec(job(), 1..5), 1..15),
        command in 0u64..5,
        queue in 0usize..3,
        burst in 0u32..4,
        limit in 0u32..5,
        cache in any::<bool>(),
        cost in 0u64..20,
    ) {
        commands.sort_by_key(|c| c[0].at);
        let rules = Rules { command, read_first: false, cache_read: cache };
        let params = TimingParams {
            queue: [DieQueue::Fifo, DieQueue::ReadFirst, DieQueue::Suspend][queue],
            read_burst: burst,
            suspend_cost: us(cost),
            cache_program: cache,
            max_in_flight: limit,
            ..params(rules)
        };
        let ends = run_commands(&commands, rules, params);
        let jobs = commands.concat();
        let all: u64 = jobs.iter().map(|j| j.transfer + j.array + cost * burst as u64).sum();
        let last = commands.last().map_or(0, |c| c[0].at) + command;
        for (c, end) in commands.iter().zip(&ends) {
            for job in c {
                let least = if job.kind == Kind::Read { 0 } else { job.array };
                prop_assert!(*end >= c[0].at + command + job.transfer + least);
            }
            prop_assert!(*end <= last + all);
        }
    }
}
