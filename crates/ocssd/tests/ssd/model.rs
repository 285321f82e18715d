//! Random commands against a model that is too simple to be wrong: states, pointers, content.
//!
//! The model knows nothing of time. Commands are submitted without waiting, so queues, registers
//! and policies are exercised; whatever their order on the dies, the outcome must be that of the
//! order of submission.

use crate::common::*;
use proptest::prelude::*;

const PUS: u32 = 4;
const CHUNKS: u32 = 3;
const SECTORS: u32 = 64;
const UNIT: u32 = 4;
/// In SLC mode, in which a chunk of `tiny` has as many sectors.
const SLC_UNIT: u32 = 2;

#[derive(Clone, Debug)]
enum Step {
    /// Runs of (pu, chunk, sector or None for the pointer, sectors).
    Write(Vec<(u32, u32, Option<u32>, u32)>),
    Read(Vec<(u32, u32, u32, u32)>),
    /// Places; to SLC mode.
    Reset(Vec<(u32, u32)>, bool),
    Copy(u32, u32, u32, u32, u32),
    /// Lets time pass.
    Wait(u64),
    /// Waits for everything, then cuts the power.
    Cycle,
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..PUS, 0..CHUNKS);
    let n = prop_oneof![4 => Just(4u32), 2 => Just(8), 1 => 1u32..20];
    let at = prop_oneof![8 => Just(None), 1 => (0..SECTORS).prop_map(Some)];
    let write = (place(), at, n).prop_map(|((p, c), s, n)| (p, c, s, n));
    let read = (place(), 0..SECTORS, 1u32..9).prop_map(|((p, c), s, n)| (p, c, s, n));
    prop_oneof![
        8 => prop::collection::vec(write, 1..4).prop_map(Step::Write),
        4 => prop::collection::vec(read, 1..4).prop_map(Step::Read),
        2 => (prop::collection::vec(place(), 1..3), any::<bool>()).prop_map(|(p, slc)| Step::Reset(p, slc)),
        1 => (place(), place(), 0..SECTORS)
            .prop_map(|((p, c), (q, d), s)| Step::Copy(p, c, s / 4 * 4, q, d)),
        2 => (0u64..4000).prop_map(Step::Wait),
        1 => Just(Step::Cycle),
    ]
}

#[derive(Clone, Debug, Default)]
struct ModelChunk {
    data: Vec<u8>,
    closed: bool,
    slc: bool,
    erases: u32,
    slc_erases: u32,
}

impl ModelChunk {
    fn unit(&self) -> u32 {
        if self.slc { SLC_UNIT } else { UNIT }
    }
}

struct Model {
    chunks: Vec<ModelChunk>,
    window: u32,
    strict: bool,
}

impl Model {
    fn chunk(&mut self, pu: u32, chunk: u32) -> &mut ModelChunk {
        &mut self.chunks[(pu * CHUNKS + chunk) as usize]
    }

    /// Writes what fits, unit by unit; the status of each sector.
    fn write(&mut self, pu: u32, chunk: u32, sector: u32, n: u32, fill: u8) -> Vec<Status> {
        let c = self.chunk(pu, chunk);
        let mut all = Vec::new();
        let mut done = 0;
        while done < n {
            let (at, piece) = (sector + done, c.unit().min(n - done));
            done += piece;
            let status = if c.closed {
                Status::WriteFault
            } else if piece != c.unit() || !at.is_multiple_of(c.unit()) {
                Status::InvalidField
            } else if at != c.data.len() as u32 {
                Status::OutOfOrder
            } else {
                c.data.extend(vec![fill; piece as usize]);
                c.closed = c.data.len() as u32 == SECTORS;
                Status::Ok
            };
            all.extend(vec![status; piece as usize]);
        }
        all
    }

    fn read(&mut self, pu: u32, chunk: u32, sector: u32) -> Option<u8> {
        let window = self.window;
        let c = self.chunk(pu, chunk);
        let wp = c.data.len() as u32;
        let readable = if c.closed || c.slc { sector < wp } else { sector + window < wp };
        readable.then(|| c.data[sector as usize])
    }

    fn reset(&mut self, pu: u32, chunk: u32, slc: bool) -> Status {
        let strict = self.strict;
        let c = self.chunk(pu, chunk);
        if strict && !c.closed {
            return Status::InvalidReset;
        }
        c.data.clear();
        c.closed = false;
        c.erases += 1;
        c.slc_erases += u32::from(c.slc);
        c.slc = slc;
        Status::Ok
    }
}

/// One command with what the model says of it.
struct Expected {
    status: Vec<Status>,
    /// Reads: content per address, `None` for nothing.
    content: Vec<Option<u8>>,
}

/// What a submitted command gave at once: content is copied at submission.
struct Sent {
    ticket: Ticket,
    data: Vec<u8>,
    oob: Vec<[u8; 16]>,
}

struct Player {
    model: Model,
    fill: u8,
}

impl Player {
    /// Addresses, operation and expectation of a step.
    fn plan(&mut self, dev: &dyn Device, step: &Step) -> (Op, Vec<Ppa>, Expected) {
        let mut e = Expected { status: Vec::new(), content: Vec::new() };
        let mut at = Vec::new();
        let op = match step {
            Step::Write(runs) => {
                self.fill = self.fill % 200 + 1;
                // Neighbours in the list are one run, whoever asked for them.
                let mut merged: Vec<(u32, u32, u32, u32)> = Vec::new();
                for (pu, chunk, sector, n) in runs {
                    let wp = self.model.chunk(*pu, *chunk).data.len() as u32 % SECTORS;
                    let sector = sector.unwrap_or(wp);
                    let n = (*n).min(SECTORS - sector).min(64 - at.len() as u32);
                    at.extend(addrs(dev, &[(*pu, *chunk, sector, n)]));
                    match merged.last_mut() {
                        Some(l) if (l.0, l.1, l.2 + l.3) == (*pu, *chunk, sector) => l.3 += n,
                        _ => merged.push((*pu, *chunk, sector, n)),
                    }
                }
                let fill = self.fill;
                for (pu, chunk, sector, n) in merged {
                    e.status.extend(self.model.write(pu, chunk, sector, n, fill));
                }
                Op::Write
            }
            Step::Read(runs) => {
                for (pu, chunk, sector, n) in runs {
                    let n = (*n).min(SECTORS - sector);
                    at.extend(addrs(dev, &[(*pu, *chunk, *sector, n)]));
                    for s in *sector..sector + n {
                        e.status.push(Status::Ok);
                        e.content.push(self.model.read(*pu, *chunk, s));
                    }
                }
                Op::Read
            }
            Step::Reset(places, slc) => {
                for (pu, chunk) in places {
                    at.extend(addrs(dev, &[(*pu, *chunk, 0, 1)]));
                    e.status.push(self.model.reset(*pu, *chunk, *slc));
                }
                Op::Reset
            }
            Step::Copy(pu, chunk, sector, to_pu, to_chunk) => {
                self.plan_copy(dev, (*pu, *chunk, *sector), (*to_pu, *to_chunk), &mut at, &mut e);
                Op::Copy
            }
            Step::Wait(_) | Step::Cycle => Op::Flush,
        };
        (op, at, e)
    }

    fn plan_copy(
        &mut self,
        dev: &dyn Device,
        from: (u32, u32, u32),
        to: (u32, u32),
        at: &mut Vec<Ppa>,
        e: &mut Expected,
    ) {
        let wp = self.model.chunk(to.0, to.1).data.len() as u32 % SECTORS;
        let n = UNIT.min(SECTORS - wp);
        let sources = addrs(dev, &[(from.0, from.1, from.2, n)]);
        let places = addrs(dev, &[(to.0, to.1, wp, n)]);
        at.extend(sources.iter().zip(&places).flat_map(|(a, b)| [*a, *b]));
        e.status = vec![Status::Ok; 2 * n as usize];
        let unit = self.model.chunk(to.0, to.1).unit();
        for first in (0..n).step_by(unit as usize) {
            let unit = first..(first + unit).min(n);
            let data: Vec<Option<u8>> =
                unit.clone().map(|k| self.model.read(from.0, from.1, from.2 + k)).collect();
            let to_each = |e: &mut Expected, status: &[Status]| {
                unit.clone().zip(status).for_each(|(k, s)| e.status[2 * k as usize + 1] = *s);
            };
            if let Some(none) = data.iter().position(Option::is_none) {
                e.status[2 * (first as usize + none)] = Status::InvalidField;
                to_each(e, &vec![Status::InvalidField; data.len()]);
                continue;
            }
            let done = self.model.write(to.0, to.1, wp + first, data.len() as u32, 0);
            to_each(e, &done);
            if done[0] == Status::Ok {
                let c = self.model.chunk(to.0, to.1);
                let start = c.data.len() - data.len();
                c.data[start..].iter_mut().zip(data).for_each(|(to, from)| *to = from.unwrap());
            }
        }
    }
}

fn send(
    cx: &flashlane_rt::Cx,
    dev: &dyn Device,
    (op, cell): (Op, CellMode),
    at: &[Ppa],
    fill: u8,
) -> Sent {
    let unit = dev.traits().content_bytes;
    let mut data = vec![0x55; unit * at.len()];
    let mut oob = vec![[0x55; 16]; at.len()];
    let index: Vec<u32> = (0..at.len() as u32).collect();
    let flags = Flags { suspend: true, cell, ..Flags::default() };
    let filled = Filled::new(at.len(), unit, fill);
    let request = match op {
        Op::Write => filled.request(at, false),
        Op::Read => Request::read(at, Scatter::new(&mut data, &index, unit), &mut oob).with(flags),
        _ => Request::plain(op, at).with(flags),
    };
    let ticket = dev.submit(cx, request);
    Sent { ticket, data, oob }
}

fn check_read(sent: &Sent, e: &Expected, unit: usize) {
    for (i, want) in e.content.iter().enumerate() {
        let content = &sent.data[i * unit..(i + 1) * unit];
        match want {
            Some(fill) => {
                assert!(content.iter().all(|b| b == fill), "address {i}");
                assert_eq!(sent.oob[i], [*fill; 16]);
            }
            None => {
                assert!(content.iter().all(|b| *b == 0), "address {i}");
                assert_eq!(sent.oob[i], [0xff; 16]);
            }
        }
    }
}

fn check_done(done: &Completion, e: &Expected) {
    for (i, want) in e.status.iter().enumerate() {
        assert_eq!(done.status(i), *want, "address {i}");
        assert_eq!(done.failed >> i & 1 == 1, *want != Status::Ok);
    }
}

fn play(steps: Vec<Step>, queue: DieQueue, style: PpaStyle, store: StoreKind, strict: bool) {
    let spec = tiny(|s| {
        s.ppa = style;
        s.geometry.chunks_per_pu = CHUNKS;
        s.timing.queue = queue;
        s.cells.slc.as_mut().unwrap().ws_min = Some(SLC_UNIT);
        s.timing.suspend_cost = Ns::from_us(10);
        s.timing.cache_read = store == StoreKind::Memory;
        s.timing.max_in_flight = if strict { 3 } else { 0 };
        s.limits.reset_open = !strict;
        s.limits.reset_free = !strict;
    });
    let (b, ssd) = Bench::of(&spec, SsdOptions { store, ..SsdOptions::default() });
    let mut player = Player {
        model: Model {
            chunks: vec![ModelChunk::default(); (PUS * CHUNKS) as usize],
            window: 8,
            strict,
        },
        fill: 0,
    };
    let device = ssd.clone();
    let model = b.run(|cx, dev| async move {
        let unit = dev.traits().content_bytes;
        let mut waits = Vec::new();
        for step in &steps {
            let (op, at, e) = player.plan(&*dev, step);
            match step {
                Step::Wait(us) => cx.sleep(Ns::from_us(*us)).await,
                Step::Cycle => {
                    for w in waits.drain(..) {
                        settle(w).await;
                    }
                    let cut = device.power_cut(cx.now(), PowerOn::ClockGoesOn);
                    assert_eq!(cut, Default::default(), "nothing was under way");
                }
                _ if at.is_empty() => {}
                _ => {
                    let to_slc = matches!(step, Step::Reset(_, true));
                    let cell = if to_slc { CellMode::Slc } else { CellMode::Native };
                    let sent = send(&cx, &*dev, (op, cell), &at, player.fill);
                    check_read(&sent, &e, unit);
                    let (cx2, dev) = (cx.clone(), dev.clone());
                    waits.push(cx.spawn_join(async move {
                        let done = dev.wait(&cx2, sent.ticket).await;
                        check_done(&done, &e);
                        assert!(done.finished <= cx2.now());
                    }));
                }
            }
        }
        for w in waits {
            settle(w).await;
        }
        player.model
    });
    check_report(&b, &model);
}

async fn settle(wait: flashlane_rt::Join<()>) {
    wait.await;
}

fn check_report(b: &Bench, model: &Model) {
    for pu in 0..PUS {
        for (chunk, info) in b.dev.chunk_report(pu, 0, CHUNKS).iter().enumerate() {
            let c = &model.chunks[(pu * CHUNKS) as usize + chunk];
            let state = match (c.closed, c.data.is_empty()) {
                (true, _) => ChunkState::Closed,
                (false, true) => ChunkState::Free,
                (false, false) => ChunkState::Open,
            };
            assert_eq!(info.state, state);
            assert_eq!(info.write_pointer, c.data.len() as u32);
            assert_eq!((info.erases, info.slc_erases), (c.erases, c.slc_erases));
            assert_eq!(info.cell == CellMode::Slc, c.slc);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_device_agrees_with_the_model(
        steps in prop::collection::vec(step(), 1..60),
        queue in prop_oneof![
            Just(DieQueue::Fifo), Just(DieQueue::ReadFirst), Just(DieQueue::Suspend)
        ],
        style in prop_oneof![Just(PpaStyle::V12), Just(PpaStyle::V20)],
        memory in any::<bool>(),
        strict in any::<bool>(),
    ) {
        let store = if memory { StoreKind::Memory } else { StoreKind::Stamps };
        play(steps, queue, style, store, strict);
    }
}
