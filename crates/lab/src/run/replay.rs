//! Replays a trace: at its own times, as fast as a depth allows, or keeping what waited for what.
//!
//! Owns: the clock of a replay, its slip, what was fitted. Promises: a record is one request,
//! whatever it becomes (a flush before it, several pieces); in open loop a request is issued at its
//! time or, when too many are in flight, late and counted; a dependent one is never issued before
//! those it waited for have ended ([`Waits`]); requests that are issued at one instant reach the device in
//! the order of the trace. Never: holds more of a trace than its scan kept, and
//! the requests that were in flight when it was recorded.

use super::{Host, RunError, Scratch};
use crate::trace::layout::Pieces;
use crate::trace::pair::{Paired, WINDOW_MAX};
use crate::trace::scan::Records;
use crate::trace::truth::Truth;
use crate::trace::{Fitted, Layout, Piece, Scan, TraceOp, TraceRecord};
use bytes::Bytes;
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_rt::{Credits, Cx, Notify};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

/// How the times of a trace are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// At the trace's times, `speed_percent` as fast; no more than `depth` in flight.
    Open {
        /// 100 is the trace's own pace, 200 twice as fast.
        speed_percent: u32,
        /// Requests in flight at most.
        depth: u32,
    },
    /// Times are ignored: `depth` requests in flight.
    Closed { depth: u32 },
    /// A request is issued when those have ended that had ended before it when the trace was
    /// recorded, and as long after the last of them as then; no more than `depth` in flight.
    Dependent {
        /// Requests in flight at most.
        depth: u32,
        /// A longer time between an end and what waited for it becomes as short as this: on a machine that
        /// was busy with others it was none of the program's.
        max_pause: Option<Ns>,
    },
}

impl Replay {
    /// Requests in flight at most.
    pub fn depth(&self) -> u32 {
        match self {
            Replay::Open { depth, .. }
            | Replay::Closed { depth }
            | Replay::Dependent { depth, .. } => *depth,
        }
    }
}

#[derive(Clone)]
pub struct TraceJob {
    pub scan: Rc<Scan>,
    /// Only the device of this name.
    pub device: Option<String>,
    /// May be packed to fit.
    pub scale: bool,
    pub replay: Replay,
    /// How often, one after the other.
    pub loops: u32,
    /// Where its journals lie.
    pub truth: Option<Arc<Truth>>,
    /// The device is told of writes to them.
    pub hint: bool,
}

/// A trace that fits the device.
pub(crate) struct PlannedTrace {
    job: TraceJob,
    pub(crate) layout: Layout,
}

impl PlannedTrace {
    pub(crate) fn new(job: &TraceJob, capacity: u64) -> Result<PlannedTrace, RunError> {
        if matches!(job.replay, Replay::Dependent { .. }) && job.scan.recorded.count() == 0 {
            return Err(RunError::NoCompletions { trace: job.scan.source.name() });
        }
        let layout = Layout::plan(&job.scan, capacity, job.device.as_deref(), job.scale)?;
        Ok(PlannedTrace { job: job.clone(), layout })
    }

    pub(crate) fn requests(&self) -> u64 {
        let summary = self.job.scan.chosen();
        let each = match self.layout.device() {
            Some(device) => summary.devices[&device].requests,
            None => summary.requests(),
        };
        each * self.job.loops as u64
    }

    /// What the trace says that was written is written: by addresses it says where things are, so they
    /// must be its own.
    fn writes_contents(&self, host: &Host) -> bool {
        host.keeps_contents() && self.layout.keeps_addresses()
    }

    /// With `contents` what they wrote can be had, too.
    pub(crate) fn records(&self, contents: bool) -> Result<Records<'_>, RunError> {
        Ok(self.job.scan.records(self.layout.device(), contents)?)
    }

    fn timed(&self, contents: bool) -> Result<Paired, RunError> {
        Ok(self.job.scan.timed(self.layout.device(), contents)?)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    pub trace: String,
    pub format: String,
    /// What to know about how it was read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Event of a request that was taken.
    pub action: String,
    /// Where its addresses lie.
    pub layout: String,
    pub requests: u64,
    /// Reads and writes widened to whole sectors.
    pub widened: u64,
    /// Discards shrunk to whole sectors.
    pub shrunk: u64,
    /// Records that came before their predecessor's time; issued at once.
    pub backwards: u64,
    /// Requests of a dependent replay that nobody waited for: the trace does not say when they
    /// ended.
    pub without_completion: u64,
    /// Pauses of a dependent replay that were cut short.
    pub pauses_cut: u64,
    /// Writes of what the trace says that was written; the others write stamps.
    pub with_content: u64,
}

pub(crate) async fn replay(
    cx: &Cx,
    host: &Rc<Host>,
    trace: &Rc<PlannedTrace>,
) -> Result<Replayed, RunError> {
    let scan = &trace.job.scan;
    let mut sums = Replayed {
        trace: scan.source.name(),
        format: scan.format.to_string(),
        remarks: scan.remarks(),
        action: scan.action.to_string(),
        layout: trace.layout.description().to_string(),
        ..Replayed::default()
    };
    let shared = Rc::new(Shared {
        host: host.clone(),
        credits: Credits::new(trace.job.replay.depth() as u64),
        scratch: RefCell::new(Vec::new()),
        issued: RefCell::new(VecDeque::new()),
        truth: trace.job.truth.clone(),
        hint: trace.job.hint,
        volatile: RefCell::new(Vec::new()),
    });
    for _ in 0..trace.job.loops {
        match trace.job.replay {
            Replay::Dependent { max_pause, .. } => {
                dependent_pass(cx, &shared, trace, max_pause, &mut sums).await?;
            }
            _ => one_pass(cx, &shared, trace, &mut sums).await?,
        }
    }
    // All credits back: everything in flight has ended.
    shared.credits.acquire(cx, trace.job.replay.depth() as u64).await;
    Ok(sums)
}

struct Shared {
    host: Rc<Host>,
    credits: Credits,
    /// Buffers of requests that ended.
    scratch: RefCell<Vec<Scratch>>,
    /// Issued, and not begun yet. The tasks that begin them are ready in any order, and each takes the first.
    issued: RefCell<VecDeque<Issued>>,
    truth: Option<Arc<Truth>>,
    hint: bool,
    /// When writes to a journal began that are acknowledged, and not durable yet.
    volatile: RefCell<Vec<Ns>>,
}

/// A request, and whom its end is told.
struct Issued {
    record: TraceRecord,
    pieces: Pieces,
    content: Option<Bytes>,
    ended: Option<Rc<Ended>>,
}

/// When a request has ended.
#[derive(Default)]
struct Ended {
    at: Cell<Option<Ns>>,
    told: Notify,
}

impl Ended {
    async fn wait(&self, cx: &Cx) -> Ns {
        self.told.wait(cx, || self.at.get().is_some()).await;
        self.at.get().unwrap_or_default()
    }
}

impl Shared {
    /// Has a request begun by a task of its own, which gives the credit back.
    fn issue(self: &Rc<Shared>, cx: &Cx, issued: Issued) {
        self.issued.borrow_mut().push_back(issued);
        let (task_cx, shared) = (cx.clone(), self.clone());
        cx.spawn(async move {
            let first = shared.issued.borrow_mut().pop_front();
            let Issued { record, pieces, content, ended } = first.expect("one for each task");
            request(&task_cx, &shared, &record, &pieces, content).await;
            shared.credits.release(&task_cx, 1);
            if let Some(ended) = ended {
                ended.at.set(Some(task_cx.now()));
                ended.told.wake(&task_cx);
            }
        });
    }

    fn is_journal(&self, record: &TraceRecord) -> bool {
        let sector = SECTOR_BYTES as u64;
        let end = record.offset_bytes.saturating_add(record.len_bytes).div_ceil(sector);
        let meets = |truth: &Arc<Truth>| truth.is_journal(record.offset_bytes / sector..end);
        record.op == TraceOp::Write && self.truth.as_ref().is_some_and(meets)
    }

    /// A flush makes durable what was acknowledged when it began.
    async fn flush(&self, cx: &Cx, scratch: &mut Scratch) -> bool {
        let began = std::mem::take(&mut *self.volatile.borrow_mut());
        let ok = self.host.operation(cx, BlockOp::Flush, 0, 0, false, scratch).await;
        match ok {
            true => {
                let mut recorder = self.host.recorder.borrow_mut();
                began.into_iter().for_each(|start| recorder.durable(start, cx.now()));
            }
            // The next one may do.
            false => self.volatile.borrow_mut().extend(began),
        }
        ok
    }
}

async fn one_pass(
    cx: &Cx,
    shared: &Rc<Shared>,
    trace: &PlannedTrace,
    sums: &mut Replayed,
) -> Result<(), RunError> {
    let records = trace.records(trace.writes_contents(&shared.host))?;
    let mut records = Ahead { records, known: VecDeque::new() };
    let (base, first) = (cx.now(), trace.job.scan.chosen().first_ns.unwrap_or(0));
    let (mut previous, mut latest_due) = (0, base);
    while let Some(placed) = records.advance(&shared.host, trace)? {
        if shared.host.stopped() {
            break;
        }
        let Placed { record, pieces, content, .. } = placed.counted(sums);
        sums.backwards += (record.ts_ns < previous) as u64;
        previous = record.ts_ns;
        let mut due = cx.now();
        if let Replay::Open { speed_percent, .. } = trace.job.replay {
            let since = match (record.ts_ns - first, speed_percent.max(1)) {
                (since, 100) => since, // a long division less
                (since, percent) => {
                    u64::try_from(since as u128 * 100 / percent as u128).unwrap_or(u64::MAX)
                }
            };
            due = base + Ns::from_ns(since.min(u64::MAX / 2));
            cx.sleep_until(due).await;
        }
        shared.credits.acquire(cx, 1).await;
        if matches!(trace.job.replay, Replay::Open { .. }) {
            // A record that the trace itself has late is due with the one before it.
            latest_due = latest_due.max(due);
            let late = cx.now().saturating_sub(latest_due);
            shared.host.recorder.borrow_mut().slipped(cx.now(), late);
        }
        shared.issue(cx, Issued { record, pieces, content, ended: None });
    }
    Ok(())
}

/// A record, and where it lies on the device.
struct Placed {
    record: TraceRecord,
    pieces: Pieces,
    /// What it writes: as many bytes as the sectors of its pieces have.
    content: Option<Bytes>,
    fitted: Fitted,
}

impl Placed {
    fn new(trace: &PlannedTrace, record: TraceRecord, content: Option<Bytes>) -> Placed {
        let mut pieces = Pieces::new();
        let fitted = trace.layout.map(&record, &mut pieces);
        // Of a sector that was written in part the rest is not known.
        let content = content.filter(|_| !fitted.widened);
        Placed { record, pieces, content, fitted }
    }

    /// It is issued: counts it, and what was done to it.
    fn counted(self, sums: &mut Replayed) -> Placed {
        sums.widened += self.fitted.widened as u64;
        sums.shrunk += self.fitted.shrunk as u64;
        sums.requests += 1;
        sums.with_content += u64::from(self.content.is_some());
        self
    }
}

/// Records that are read before they are issued: the stack hears of their sectors early, as a
/// request's own first look would be a wait for memory.
struct Ahead<'a> {
    records: Records<'a>,
    known: VecDeque<Placed>,
}

const AHEAD: usize = 16;

impl Ahead<'_> {
    fn advance(&mut self, host: &Host, trace: &PlannedTrace) -> Result<Option<Placed>, RunError> {
        while self.known.len() < AHEAD {
            let Some(record) = self.records.advance()? else { break };
            let placed = Placed::new(trace, record, self.records.content());
            if let Some(first) = placed.pieces.first() {
                let is_read = placed.record.op == TraceOp::Read;
                host.expect(if is_read { BlockOp::Read } else { BlockOp::Write }, first.lba);
            }
            self.known.push_back(placed);
        }
        Ok(self.known.pop_front())
    }
}

/// Requests that later ones wait for, by when they ended in the trace.
///
/// A request waited for all that had ended before it was made, as far as a trace can tell; what it
/// did then (thought, computed) took from the last of those ends until it was made.
struct Waits {
    /// Ended so late in the trace, and when they end here. Numbers keep equal times apart.
    later: BTreeMap<(u64, u64), Rc<Ended>>,
    number: u64,
    /// The last end in the trace among those that were waited for, and here.
    recorded_ns: u64,
    ended: Ns,
    /// Pauses are as long at most.
    max_pause: Ns,
    cut: u64,
}

impl Waits {
    fn new(first_ns: u64, now: Ns, max_pause: Option<Ns>) -> Waits {
        let max_pause = max_pause.unwrap_or(Ns::MAX);
        let (later, number, cut) = (BTreeMap::new(), 0, 0);
        Waits { later, number, recorded_ns: first_ns, ended: now, max_pause, cut }
    }

    /// Waits for what ended in the trace until `made_ns`, and says when a request that was made then
    /// is due.
    async fn due(&mut self, cx: &Cx, made_ns: u64) -> Ns {
        while let Some(first) = self.later.first_entry()
            && (first.key().0 <= made_ns || self.later.len() >= WINDOW_MAX)
        {
            let Some(((ended_ns, _), end)) = self.later.pop_first() else { break };
            self.recorded_ns = self.recorded_ns.max(ended_ns.min(made_ns));
            self.ended = self.ended.max(end.wait(cx).await);
        }
        // A trace may span centuries; the clock here must not wrap for it.
        let recorded = made_ns.saturating_sub(self.recorded_ns);
        let pause = recorded.min(self.max_pause.as_ns());
        self.cut += u64::from(pause < recorded);
        Ns::from_ns(self.ended.as_ns().saturating_add(pause).min(u64::MAX / 2))
    }

    fn add(&mut self, ended_ns: u64, ended: Rc<Ended>) {
        self.number += 1;
        self.later.insert((ended_ns, self.number), ended);
    }
}

async fn dependent_pass(
    cx: &Cx,
    shared: &Rc<Shared>,
    trace: &PlannedTrace,
    max_pause: Option<Ns>,
    sums: &mut Replayed,
) -> Result<(), RunError> {
    let mut records = trace.timed(trace.writes_contents(&shared.host))?;
    let first_ns = trace.job.scan.chosen().first_ns.unwrap_or(0);
    let mut waits = Waits::new(first_ns, cx.now(), max_pause);
    let mut previous = 0;
    while let Some(record) = records.advance()? {
        let content = records.content();
        if shared.host.stopped() {
            break;
        }
        sums.backwards += (record.ts_ns < previous) as u64;
        previous = record.ts_ns;
        cx.sleep_until(waits.due(cx, record.ts_ns).await).await;
        shared.credits.acquire(cx, 1).await;
        let placed = Placed::new(trace, record, content);
        let Placed { pieces, content, .. } = placed.counted(sums);
        let ended = record.latency_ns.map(|ns| {
            let ended = Rc::new(Ended::default());
            waits.add(record.ts_ns.saturating_add(ns), ended.clone());
            ended
        });
        // Nobody knows when it ended, so nobody waits for it.
        sums.without_completion += u64::from(ended.is_none());
        shared.issue(cx, Issued { record, pieces, content, ended });
    }
    sums.pauses_cut += waits.cut;
    Ok(())
}

/// A record's operations, in the order the block layer would do them.
async fn request(
    cx: &Cx,
    shared: &Shared,
    record: &TraceRecord,
    pieces: &[Piece],
    mut content: Option<Bytes>,
) {
    let host = &shared.host;
    let mut scratch = shared.scratch.borrow_mut().pop().unwrap_or_default();
    let start = cx.now();
    let mut ok = true;
    let is_journal = shared.is_journal(record);
    scratch.told_journal = shared.hint && is_journal;
    if record.preflush || record.op == TraceOp::Flush {
        ok &= shared.flush(cx, &mut scratch).await;
    }
    let op = match record.op {
        TraceOp::Read => Some(BlockOp::Read),
        TraceOp::Write => Some(BlockOp::Write),
        TraceOp::Discard => Some(BlockOp::Discard),
        TraceOp::Flush => None,
    };
    if let Some(op) = op {
        for piece in pieces {
            let (lba, n) = (piece.lba.get(), piece.sectors);
            scratch.given = content.as_mut().map(|rest| rest.split_to(n as usize * SECTOR_BYTES));
            ok &= host.operation(cx, op, lba, n, record.fua, &mut scratch).await;
        }
    }
    host.recorder.borrow_mut().request(None, start, ok);
    match is_journal && ok {
        true if record.fua => host.recorder.borrow_mut().durable(start, cx.now()),
        true => shared.volatile.borrow_mut().push(start),
        false => {}
    }
    shared.scratch.borrow_mut().push(scratch);
}
