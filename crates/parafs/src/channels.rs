//! The channels of the flash: what each has to do, and what it does next.
//!
//! Owns: a queue per channel, its slices, how busy each channel is. Promises: at most `window`
//! requests of a channel are under way; pages of a segment go out in the order in which they were
//! placed; every request goes out at some time, whatever else there is. Never: touches the medium,
//! or decides where a page goes: allocation asks here which channel has least to do.
//!
//! This is the parallelism-aware scheduling of the ParaFS paper (section 3.4). A page joins the
//! queue of its channel when it is placed, so the next page sees it (formula 1). What goes out next
//! is decided per channel: reads have a slice of time, then writes or erases have one of the same
//! length, by formula 2. A slice ends early when nothing of its kind is left.

use crate::format::Addr;
use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::{AtomicBool, Mutex, Ordering};
use flashlane_rt::{Cx, Notify};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Which request of a channel goes out next, and where pages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// In order of arrival; pages go over the channels in turn.
    Fifo,
    /// The paper's (3.4): pages go where least is to be done, reads and writes have slices, erases
    /// wait until they are needed.
    #[default]
    Aware,
}

/// How requests are scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    pub dispatch: Dispatch,
    /// Requests of a channel that are under way at most; 0 is one for each of its PUs. The paper's
    /// device has one PU per channel.
    pub window: u32,
    /// Time of reads, and as much of writes or erases. The paper says that both are equal, not how
    /// long they are.
    pub slice: Ns,
    /// What a page that is to be read weighs, and one that is to be written (the paper's 1 and 8);
    /// without them what both have taken so far on this medium.
    pub weights: Option<(u64, u64)>,
    /// The paper's `a` and `b`: weights of the free share, and of the share of channels that erase.
    pub free_weight: u32,
    pub erasing_weight: u32,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            dispatch: Dispatch::default(),
            window: 0,
            // Ours: an erase of present flash, or a few programs. A read waits so long at most.
            slice: Ns::from_ms(2),
            weights: None,
            free_weight: 2,
            erasing_weight: 1,
        }
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read = 0,
    Write = 1,
    Erase = 2,
}

const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Erase];

/// A request that waits for its turn.
pub(crate) struct Ticket {
    kind: Kind,
    region: u32,
    /// Among all, in order of arrival.
    number: u64,
    granted: AtomicBool,
    woken: Notify,
}

/// A request whose turn it is.
pub(crate) struct Turn {
    kind: Kind,
    region: u32,
    since: Ns,
}

struct Channel {
    queues: [VecDeque<Arc<Ticket>>; 3],
    /// Under way, of each kind.
    out: [u32; 3],
    /// Whose slice it is, and when that ends.
    slice: Kind,
    ends: Ns,
    /// Segments without content.
    free: u32,
}

impl Channel {
    fn has(&self, kind: Kind) -> bool {
        !self.queues[kind as usize].is_empty()
    }

    /// Requests of a kind, queued and under way.
    fn load(&self, kind: Kind) -> u64 {
        self.queues[kind as usize].len() as u64 + u64::from(self.out[kind as usize])
    }
}

struct Inner {
    channels: Vec<Channel>,
    /// Pages that were placed and are not on their way yet.
    placed: BTreeMap<Addr, Arc<Ticket>>,
    count: u64,
    /// What a page has taken to be read, and to be written, in nanoseconds: the mean of the last
    /// ones.
    took: [u64; 2],
}

/// All channels of a mounted file system. A block device has one, and as many requests as it likes.
pub(crate) struct Channels {
    how: Schedule,
    window: u32,
    segments: u32,
    inner: Mutex<Inner>,
}

/// Before anything was measured: the paper's weights, in any unit.
const WEIGHTS: [u64; 2] = [1, 8];
/// Of the last so many requests the time is averaged.
const AVERAGED: u64 = 16;

impl Channels {
    /// Channels of so many segments each. `window` is what the schedule leaves to the medium.
    pub(crate) fn new(how: Schedule, channels: u32, segments: u32, window: u32) -> Channels {
        let channel = |_| Channel {
            queues: Default::default(),
            out: [0; 3],
            slice: Kind::Read,
            ends: Ns::ZERO,
            free: 0,
        };
        let window = if how.window > 0 { how.window } else { window };
        let inner = Inner {
            channels: (0..channels).map(channel).collect(),
            placed: BTreeMap::new(),
            count: 0,
            took: WEIGHTS,
        };
        Channels { how, window, segments, inner: Mutex::new(inner) }
    }

    /// Segments without content that a channel has now.
    pub(crate) fn set_free(&self, region: u32, free: u32) {
        self.inner.lock().channels[region as usize].free = free;
    }

    /// A page has its place: it joins the queue of its channel.
    pub(crate) fn place(&self, region: u32, addr: Addr) {
        let mut inner = self.inner.lock();
        let ticket = inner.queue(Kind::Write, region);
        inner.placed.insert(addr, ticket);
    }

    /// What each channel has to do (formula 1): the sum over its queue of the weight of a read for
    /// each page that is to be read, and the weight of a write for each that is to be written.
    /// Erases do not count, "because the time, when they are sent to the device, is uncertain".
    /// Nothing where pages go over the channels in turn.
    pub(crate) fn loads(&self) -> Option<Vec<u64>> {
        if self.how.dispatch == Dispatch::Fifo {
            return None;
        }
        let inner = self.inner.lock();
        let (read, write) = self.how.weights.unwrap_or((inner.took[0], inner.took[1]));
        let load = |c: &Channel| read * c.load(Kind::Read) + write * c.load(Kind::Write);
        Some(inner.channels.iter().map(load).collect())
    }

    /// Waits until a page that was placed may be written.
    pub(crate) async fn write(&self, cx: &Cx, region: u32, addr: Addr) -> Turn {
        let ticket = {
            let mut inner = self.inner.lock();
            let placed = inner.placed.remove(&addr);
            placed.unwrap_or_else(|| inner.queue(Kind::Write, region))
        };
        self.wait(cx, ticket).await
    }

    /// Waits until a page of a channel may be read, or a segment erased.
    pub(crate) async fn enter(&self, cx: &Cx, kind: Kind, region: u32) -> Turn {
        let ticket = self.inner.lock().queue(kind, region);
        self.wait(cx, ticket).await
    }

    async fn wait(&self, cx: &Cx, ticket: Arc<Ticket>) -> Turn {
        self.dispatch(cx, ticket.region);
        let granted = || ticket.granted.load(Ordering::Acquire);
        ticket.woken.wait(cx, granted).await;
        Turn { kind: ticket.kind, region: ticket.region, since: cx.now() }
    }

    /// A request has ended.
    pub(crate) fn leave(&self, cx: &Cx, turn: Turn) {
        let mut inner = self.inner.lock();
        inner.channels[turn.region as usize].out[turn.kind as usize] -= 1;
        let took = (cx.now() - turn.since).as_ns();
        if let Some(mean) = inner.took.get_mut(turn.kind as usize)
            && took > 0
        {
            let is_first = *mean == WEIGHTS[turn.kind as usize];
            *mean = if is_first { took } else { *mean - *mean / AVERAGED + took / AVERAGED };
        }
        drop(inner);
        self.dispatch(cx, turn.region);
    }

    /// Lets out what may go.
    fn dispatch(&self, cx: &Cx, region: u32) {
        let mut granted = Vec::new();
        {
            let mut inner = self.inner.lock();
            while inner.channels[region as usize].out.iter().sum::<u32>() < self.window {
                let Some(kind) = self.next(&inner, region, cx.now()) else { break };
                let c = &mut inner.channels[region as usize];
                if kind != c.slice || cx.now() >= c.ends {
                    (c.slice, c.ends) = (kind, cx.now() + self.how.slice);
                }
                let Some(ticket) = c.queues[kind as usize].pop_front() else { break };
                c.out[kind as usize] += 1;
                granted.push(ticket);
            }
        }
        for ticket in granted {
            ticket.granted.store(true, Ordering::Release);
            ticket.woken.wake(cx);
        }
    }

    /// The kind of request that goes out next; nothing where there is none.
    fn next(&self, inner: &Inner, region: u32, now: Ns) -> Option<Kind> {
        let c = &inner.channels[region as usize];
        if self.how.dispatch == Dispatch::Fifo {
            let first = |kind: &Kind| c.queues[*kind as usize].front().map(|ticket| ticket.number);
            return KINDS.into_iter().filter(|kind| c.has(*kind)).min_by_key(first);
        }
        if now < c.ends && c.has(c.slice) {
            return Some(c.slice);
        }
        let reads = c.has(Kind::Read).then_some(Kind::Read);
        if c.slice != Kind::Read && reads.is_some() && !mutant!("parafs.reads-starve") {
            return reads;
        }
        match (c.has(Kind::Write), c.has(Kind::Erase)) {
            (true, false) => Some(Kind::Write),
            (true, true) if self.is_for_writes(inner, c) => Some(Kind::Write),
            // With enough free segments an erase waits until nothing else is to be done.
            (false, true) if self.is_for_writes(inner, c) => reads.or(Some(Kind::Erase)),
            (_, true) => Some(Kind::Erase),
            (false, false) => reads,
        }
    }

    /// Formula 2: `e = a f + b Ne` is more than 1, where `f` is the share of free segments of the
    /// channel and `Ne` the share of channels that are erasing.
    fn is_for_writes(&self, inner: &Inner, c: &Channel) -> bool {
        let erasing = inner.channels.iter().filter(|c| c.out[Kind::Erase as usize] > 0).count();
        let (free, all) = (u64::from(c.free), u64::from(self.segments.max(1)));
        let (erasing, channels) = (erasing as u64, inner.channels.len() as u64);
        let of_free = u64::from(self.how.free_weight) * free * channels;
        let of_erasing = u64::from(self.how.erasing_weight) * erasing * all;
        of_free + of_erasing > all * channels
    }
}

impl Inner {
    fn queue(&mut self, kind: Kind, region: u32) -> Arc<Ticket> {
        self.count += 1;
        let ticket = Arc::new(Ticket {
            kind,
            region,
            number: self.count,
            granted: AtomicBool::new(false),
            woken: Notify::new(),
        });
        self.channels[region as usize].queues[kind as usize].push_back(ticket.clone());
        ticket
    }
}
