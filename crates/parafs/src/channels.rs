//! The channels of the flash: what each has to do, and what it does next.
//!
//! Owns: a queue per channel, its slices, how busy each channel is. Promises: at most `window`
//! requests of a PU are under way; pages of a segment go out in the order in which they were placed;
//! every request goes out at some time, whatever else there is. Never: touches the medium, or
//! decides where a page goes: allocation asks here which channel has least to do.
//!
//! This is the parallelism-aware scheduling of the ParaFS paper (section 3.4). A page joins the
//! queue of its channel when it is placed, so the next page sees it (formula 1). What goes out next
//! is decided per channel: reads have a slice of time, then writes or erases have one of the same
//! length, by formula 2. A slice ends early when nothing of its kind is left.

use crate::format::{Addr, Layout};
use crate::medium::Medium;
use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
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
    /// Requests of a PU that are under way at most: with one, order is what this decides. The paper's
    /// device has one PU per channel. A block device takes as many as there are.
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
            window: 1,
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
    segment: u32,
    /// Among all, in order of arrival.
    number: u64,
    granted: AtomicBool,
    /// 1 + the PU that it went to, where that was known.
    pu: AtomicU32,
    woken: Notify,
}

/// A request whose turn it is.
pub(crate) struct Turn {
    ticket: Arc<Ticket>,
    since: Ns,
}

struct Channel {
    queues: [VecDeque<Arc<Ticket>>; 3],
    /// Under way, of each kind, and at each PU.
    out: [u32; 3],
    at_pu: Vec<u32>,
    /// Whose slice it is, and when that ends.
    slice: Kind,
    ends: Ns,
    /// Segments without content.
    free: u32,
}

impl Channel {
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

/// All channels of a mounted file system. A block device is one.
pub(crate) struct Channels {
    how: Schedule,
    layout: Layout,
    /// Asked where segments lie.
    medium: Medium,
    inner: Mutex<Inner>,
}

/// Before anything was measured: the paper's weights, in any unit.
const WEIGHTS: [u64; 2] = [1, 8];
/// Of the last so many requests the time is averaged.
const AVERAGED: u64 = 16;

impl Channels {
    pub(crate) fn new(how: Schedule, layout: Layout, medium: Medium) -> Channels {
        let pus = medium.channel_pus().unwrap_or(0);
        Channels::of_pus(how, layout, medium, pus)
    }

    /// Channels of so many PUs each; with none nothing waits.
    fn of_pus(how: Schedule, layout: Layout, medium: Medium, pus: u32) -> Channels {
        let channel = |_| Channel {
            queues: Default::default(),
            out: [0; 3],
            at_pu: vec![0; pus as usize],
            slice: Kind::Read,
            ends: Ns::ZERO,
            free: 0,
        };
        let how = Schedule { window: how.window.max(1), ..how };
        let inner = Inner {
            channels: (0..layout.shape.regions).map(channel).collect(),
            placed: BTreeMap::new(),
            count: 0,
            took: WEIGHTS,
        };
        Channels { how, layout, medium, inner: Mutex::new(inner) }
    }

    /// Segments without content that a channel has now.
    pub(crate) fn set_free(&self, region: u32, free: u32) {
        self.inner.lock().channels[region as usize].free = free;
    }

    /// A page has its place: it joins the queue of its channel.
    pub(crate) fn place(&self, addr: Addr) {
        if mutant!("parafs.pages-unplaced") {
            return;
        }
        let ticket = self.queue(Kind::Write, self.layout.segment_of(addr).0);
        self.inner.lock().placed.insert(addr, ticket);
    }

    fn queue(&self, kind: Kind, segment: u32) -> Arc<Ticket> {
        let mut inner = self.inner.lock();
        inner.count += 1;
        let ticket = Arc::new(Ticket {
            kind,
            segment,
            number: inner.count,
            granted: AtomicBool::new(false),
            pu: AtomicU32::new(0),
            woken: Notify::new(),
        });
        let region = self.layout.region_of(segment) as usize;
        inner.channels[region].queues[kind as usize].push_back(ticket.clone());
        ticket
    }

    /// What each channel has to do (formula 1): the sum over its queue of the weight of a read for
    /// each page that is to be read, and the weight of a write for each that is to be written.
    /// Erases do not count, "because the time, when they are sent to the device, is uncertain". What
    /// the page-mapped region has under way counts as well.
    /// Nothing where pages go over the channels in turn.
    pub(crate) fn loads(&self) -> Option<Vec<u64>> {
        if self.how.dispatch == Dispatch::Fifo {
            return None;
        }
        let inner = self.inner.lock();
        let (read, write) = self.how.weights.unwrap_or((inner.took[0], inner.took[1]));
        let load = |(region, c): (u32, &Channel)| {
            let ([meta_reads, meta_writes], _) = self.medium.meta_busy(&self.layout, region);
            let reads = read * (c.load(Kind::Read) + meta_reads);
            reads + write * (c.load(Kind::Write) + meta_writes)
        };
        Some((0..).zip(&inner.channels).map(load).collect())
    }

    /// Nothing is under way, and nobody waits.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = |c: &Channel| KINDS.iter().all(|kind| c.load(*kind) == 0);
        self.inner.lock().channels.iter().all(idle)
    }

    /// Waits until a page that was placed may be written.
    pub(crate) async fn write(&self, cx: &Cx, addr: Addr) -> Turn {
        let placed = self.inner.lock().placed.remove(&addr);
        let segment = self.layout.segment_of(addr).0;
        let ticket = placed.unwrap_or_else(|| self.queue(Kind::Write, segment));
        self.wait(cx, ticket).await
    }

    /// A page that was placed is not written: it leaves the queue of its channel.
    pub(crate) async fn pass(&self, cx: &Cx, addr: Addr) {
        let turn = self.write(cx, addr).await;
        self.leave(cx, turn);
    }

    /// Waits until a page of a segment may be read, or the segment erased.
    pub(crate) async fn enter(&self, cx: &Cx, kind: Kind, segment: u32) -> Turn {
        self.wait(cx, self.queue(kind, segment)).await
    }

    async fn wait(&self, cx: &Cx, ticket: Arc<Ticket>) -> Turn {
        self.dispatch(cx, self.layout.region_of(ticket.segment));
        ticket.woken.wait(cx, || ticket.granted.load(Ordering::Acquire)).await;
        Turn { ticket, since: cx.now() }
    }

    /// A request has ended.
    pub(crate) fn leave(&self, cx: &Cx, turn: Turn) {
        let Ticket { kind, segment, .. } = *turn.ticket;
        let region = self.layout.region_of(segment);
        let mut inner = self.inner.lock();
        let c = &mut inner.channels[region as usize];
        c.out[kind as usize] -= 1;
        if let Some(pu) = turn.ticket.pu.load(Ordering::Relaxed).checked_sub(1) {
            c.at_pu[pu as usize] -= 1;
        }
        let took = (cx.now() - turn.since).as_ns();
        if let Some(mean) = inner.took.get_mut(kind as usize)
            && took > 0
        {
            let is_first = *mean == WEIGHTS[kind as usize];
            *mean = if is_first { took } else { *mean - *mean / AVERAGED + took / AVERAGED };
        }
        drop(inner);
        self.dispatch(cx, region);
    }

    /// Lets out what may go.
    fn dispatch(&self, cx: &Cx, region: u32) {
        let mut granted = Vec::new();
        {
            let mut inner = self.inner.lock();
            while let Some((kind, at)) = self.next(&inner, region, cx.now()) {
                let c = &mut inner.channels[region as usize];
                if kind != c.slice || cx.now() >= c.ends {
                    (c.slice, c.ends) = (kind, cx.now() + self.how.slice);
                }
                let Some(ticket) = c.queues[kind as usize].remove(at) else { break };
                c.out[kind as usize] += 1;
                if let Some(pu) = self.medium.pu(&self.layout, ticket.segment) {
                    ticket.pu.store(pu + 1, Ordering::Relaxed);
                    c.at_pu[pu as usize] += 1;
                }
                granted.push(ticket);
            }
        }
        for ticket in granted {
            ticket.granted.store(true, Ordering::Release);
            ticket.woken.wake(cx);
        }
    }

    /// The request that goes out next: its kind, and its place in the queue of its kind. Nothing where
    /// none can go out.
    fn next(&self, inner: &Inner, region: u32, now: Ns) -> Option<(Kind, usize)> {
        let c = &inner.channels[region as usize];
        let window = self.how.window;
        let pus = c.at_pu.len() as u32;
        if pus > 0 && c.out.iter().sum::<u32>() >= window * pus {
            return None;
        }
        // The first of each kind whose PU has room.
        let has_room = |ticket: &Arc<Ticket>| {
            let pu = if pus > 1 { self.medium.pu(&self.layout, ticket.segment) } else { None };
            pu.is_none_or(|pu| c.at_pu[pu as usize] < window)
        };
        let first = KINDS.map(|kind| c.queues[kind as usize].iter().position(has_room));
        let can = |kind: Kind| first[kind as usize].is_some();
        let kind = match self.how.dispatch {
            Dispatch::Fifo => {
                let number = |kind: &Kind| {
                    let queue = &c.queues[*kind as usize];
                    first[*kind as usize].and_then(|at| queue.get(at)).map(|t| t.number)
                };
                KINDS.into_iter().filter(|kind| can(*kind)).min_by_key(number)
            }
            Dispatch::Aware => self.by_slice(inner, c, now, can),
        }?;
        Some((kind, first[kind as usize]?))
    }

    /// The kind that goes out next by slices, of those that can.
    fn by_slice(
        &self,
        inner: &Inner,
        c: &Channel,
        now: Ns,
        can: impl Fn(Kind) -> bool,
    ) -> Option<Kind> {
        if now < c.ends && can(c.slice) {
            return Some(c.slice);
        }
        let reads = can(Kind::Read).then_some(Kind::Read);
        if c.slice != Kind::Read && reads.is_some() && !mutant!("parafs.reads-starve") {
            return reads;
        }
        match (can(Kind::Write), can(Kind::Erase)) {
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
        let erases = |(region, c): (u32, &Channel)| {
            c.out[Kind::Erase as usize] > 0 || self.medium.meta_busy(&self.layout, region).1
        };
        let erasing = (0..).zip(&inner.channels).filter(|channel| erases(*channel)).count();
        let all = u64::from(self.layout.shape.region_segments);
        let free = u64::from(c.free);
        let (erasing, channels) = (erasing as u64, inner.channels.len() as u64);
        let of_free = u64::from(self.how.free_weight) * free * channels;
        let of_erasing = u64::from(self.how.erasing_weight) * erasing * all;
        of_free + of_erasing > all * channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Owner, Shape};
    use crate::segments::{Heat, Segments};
    use crate::state::{Need, Stop};
    use flashlane_rt::{CostTable, Virtual};
    use flashlane_testkit::Ram;
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    /// Four channels of one PU and 100 segments.
    fn channels(how: Schedule) -> Arc<Channels> {
        sized(how, 100)
    }

    fn sized(how: Schedule, region_segments: u32) -> Arc<Channels> {
        let layout = Layout::plan(Shape {
            regions: 4,
            region_segments,
            segment_pages: 16,
            page_sectors: 1,
            meta_sectors: 1 << 20,
        });
        let ram = Ram::new(16, flashlane_base::SECTOR_BYTES, Ns::ZERO, 0);
        let medium = Medium::Linear(Arc::new(ram));
        Arc::new(Channels::of_pus(how, layout.expect("it fits"), medium, 1))
    }

    /// What went out, in order: which request, and when.
    type Log = Rc<RefCell<Vec<(String, u64)>>>;

    /// Requests of channel 0 that come a nanosecond after each other, each as long as its kind takes;
    /// in which order they went out.
    fn order(how: Schedule, free: u32, asked: &[(Kind, &str)]) -> Vec<(String, u64)> {
        let clock = Virtual::new(1, 0, CostTable::zero());
        let (cx, all, log) = (clock.cx(), channels(how), Log::default());
        all.set_free(0, free);
        let asked: Vec<(Kind, String)> = asked.iter().map(|(k, n)| (*k, n.to_string())).collect();
        let seen = log.clone();
        clock
            .run(async move {
                let mut joins = Vec::new();
                for (i, (kind, name)) in asked.into_iter().enumerate() {
                    let (all, cx, log) = (all.clone(), cx.clone(), log.clone());
                    joins.push(cx.clone().spawn_join(async move {
                        cx.sleep(Ns::from_ns(i as u64)).await;
                        let turn = all.enter(&cx, kind, 0).await;
                        log.borrow_mut().push((name, cx.now().as_ns() / 1000));
                        cx.sleep(
                            [Ns::from_us(100), Ns::from_us(800), Ns::from_ms(3)][kind as usize],
                        )
                        .await;
                        all.leave(&cx, turn);
                    }));
                }
                for join in joins {
                    join.await;
                }
            })
            .expect("all go out");
        seen.take()
    }

    fn names(order: &[(String, u64)]) -> Vec<&str> {
        order.iter().map(|(name, _)| name.as_str()).collect()
    }

    const MIXED: [(Kind, &str); 8] = [
        (Kind::Write, "w1"),
        (Kind::Erase, "e1"),
        (Kind::Read, "r1"),
        (Kind::Write, "w2"),
        (Kind::Write, "w3"),
        (Kind::Read, "r2"),
        (Kind::Erase, "e2"),
        (Kind::Write, "w4"),
    ];

    #[test]
    fn fifo_is_the_order_of_arrival() {
        let how = Schedule { dispatch: Dispatch::Fifo, ..Schedule::default() };
        let found = order(how, 0, &MIXED);
        assert_eq!(names(&found), ["w1", "e1", "r1", "w2", "w3", "r2", "e2", "w4"]);
    }

    #[test]
    fn reads_and_writes_take_turns_and_erases_wait_for_need() {
        // Two writes fit a slice of 1 ms. The first one is alone when it comes.
        let how = Schedule { slice: Ns::from_ms(1), ..Schedule::default() };
        let plenty = order(how, 60, &MIXED);
        assert_eq!(names(&plenty), ["w1", "w2", "r1", "r2", "w3", "w4", "e1", "e2"]);
        let short = order(how, 10, &MIXED);
        assert_eq!(names(&short), ["w1", "w2", "r1", "r2", "e1", "e2", "w3", "w4"]);
    }

    #[test]
    fn a_read_waits_for_one_slice_of_writes_at_most() {
        let writes = (0..100).map(|i| format!("w{i}")).collect::<Vec<_>>();
        let mut asked: Vec<(Kind, &str)> = writes.iter().map(|w| (Kind::Write, &**w)).collect();
        asked.push((Kind::Read, "read"));
        let found = order(Schedule::default(), 90, &asked);
        let (_, at) = found.iter().find(|(name, _)| name == "read").expect("it went out");
        // A slice of 2 ms, and the write that was begun in it.
        assert!(*at <= 2800, "the read went out after {at} us");
    }

    #[test]
    fn erases_go_by_formula_2() {
        // (free segments of 100, channels of 4 that erase, what goes out): e = 2 f + Ne.
        for (free, erasing, wanted) in [
            (51, 0, Kind::Write), // 1.02
            (50, 0, Kind::Erase), // 1.00
            (38, 1, Kind::Write), // 0.76 + 0.25
            (37, 1, Kind::Erase), // 0.74 + 0.25
            (13, 3, Kind::Write), // 0.26 + 0.75
            (12, 3, Kind::Erase), // 0.24 + 0.75
            (0, 3, Kind::Erase),
        ] {
            let all = channels(Schedule::default());
            let mut inner = all.inner.lock();
            for c in 0..erasing {
                inner.channels[1 + c].out[Kind::Erase as usize] = 1;
            }
            inner.channels[0].free = free;
            drop(inner);
            let _ = all.queue(Kind::Write, 0);
            let _ = all.queue(Kind::Erase, 0);
            let found = all.next(&all.inner.lock(), 0, Ns::ZERO);
            assert_eq!(found, Some((wanted, 0)), "{free} free, {erasing} channels erase");
        }
    }

    #[test]
    fn a_pu_has_as_many_under_way_as_its_window() {
        for (window, wanted) in [(1, 4), (2, 2), (4, 1), (0, 4)] {
            let how = Schedule { window, ..Schedule::default() };
            let asked =
                [(Kind::Read, "a"), (Kind::Read, "b"), (Kind::Read, "c"), (Kind::Read, "d")];
            let mut times: Vec<u64> = order(how, 0, &asked).into_iter().map(|(_, at)| at).collect();
            times.dedup();
            assert_eq!(times.len(), wanted, "window {window}");
        }
    }

    #[test]
    fn what_a_channel_has_to_do_is_weighed() {
        let all = channels(Schedule { weights: Some((1, 8)), ..Schedule::default() });
        all.place(all.layout.addr(100, 0));
        for _ in 0..7 {
            let _ = all.queue(Kind::Read, 200);
        }
        let _ = all.queue(Kind::Erase, 300);
        // A write weighs more than seven reads, and an erase nothing.
        assert_eq!(all.loads(), Some(vec![0, 8, 7, 0]));
        let fifo = channels(Schedule { dispatch: Dispatch::Fifo, ..Schedule::default() });
        assert_eq!(fifo.loads(), None);
    }

    /// A head gets ten segments at a time, with those of its heat that have no next, where that
    /// leaves what cleaners want: they would take them back at once, and again. Else heads that have
    /// nearly run out get one each, as long as there is room to change anything.
    #[test]
    fn heads_leave_what_cleaners_would_take_back() {
        let all = sized(Schedule::default(), 1_000);
        let segments = Segments::new(all.layout, all.clone());
        let (free, many) = (segments.free(), 4 * all.layout.assigned());
        assert!(many == 40 && free > 1_000);
        let gets = |for_checkpoint, keep, least| {
            segments.choose((1, Heat::WarmData, 0), for_checkpoint, (keep, least)).len() as u32
        };
        assert_eq!((gets(false, 0, 0), gets(false, free - many, 0)), (many, many));
        assert_eq!((gets(false, free - many + 1, 0), gets(false, free + 1, free - 4)), (4, 4));
        assert_eq!(gets(false, free + 1, free - 3), 1);
        assert_eq!(gets(true, 0, 0), 1);
    }

    /// One write of the window names segments for all heads that fill their last, not for those that have one
    /// more.
    #[test]
    fn heads_get_their_next_segment_together() {
        let all = channels(Schedule { dispatch: Dispatch::Fifo, ..Schedule::default() });
        let mut segments = Segments::new(all.layout, all.clone());
        let heat = Heat::WarmData;
        let gets = |segments: &mut Segments, region: u32| -> BTreeSet<u32> {
            let chosen = segments.choose((region, heat, 0), false, (0, 0));
            segments.promise(&chosen);
            segments.assign(heat, &chosen, true);
            chosen.into_iter().map(|(_, region)| region).collect()
        };
        assert_eq!(gets(&mut segments, 0), (0..4).collect(), "none has anything");
        // A page for each of the first two: they fill their only segment now.
        (0..2).for_each(|_| drop(segments.allocate(heat, Owner::default(), 0)));
        assert_eq!(
            gets(&mut segments, 3),
            [0, 1, 3].into(),
            "the third has one that it has not begun"
        );
    }

    /// A page that has its place and is not written holds up nobody.
    #[test]
    fn a_page_that_is_not_written_leaves_its_turn() {
        let (clock, all) = (Virtual::new(1, 0, CostTable::zero()), channels(Schedule::default()));
        let (cx, of) = (clock.cx(), all.clone());
        let [first, second] = [0, 1].map(|page| all.layout.addr(0, page));
        all.place(first);
        all.place(second);
        let done = clock.run(async move {
            of.pass(&cx, first).await;
            let turn = of.write(&cx, second).await;
            of.leave(&cx, turn);
        });
        assert_eq!(done.map_err(|e| e.to_string()), Ok(()));
        assert!(all.is_idle());
    }

    #[test]
    fn a_page_goes_to_the_channel_with_least_to_do() {
        let places = |dispatch: Dispatch| {
            let how = Schedule { dispatch, weights: Some((1, 8)), ..Schedule::default() };
            let all = channels(how);
            let mut segments = Segments::new(all.layout, all.clone());
            let heat = Heat::WarmData;
            let chosen = segments.choose((0, heat, 0), false, (0, 0));
            segments.promise(&chosen);
            segments.assign(heat, &chosen, true);
            (0..16).for_each(|_| drop(all.queue(Kind::Read, 0)));
            let mut count = [0; 4];
            for _ in 0..10 {
                let addr = segments.allocate(heat, Owner::default(), 0).expect("there is room");
                count[all.layout.region_of(all.layout.segment_of(addr).0) as usize] += 1;
            }
            count
        };
        // Sixteen reads weigh as much as two writes.
        assert_eq!(places(Dispatch::Aware), [1, 3, 3, 3]);
        assert_eq!(places(Dispatch::Fifo), [3, 3, 2, 2]);
    }

    /// One head has as many pages as an fsync's nodes take. They go over all channels all the same, as
    /// long as there is room.
    #[test]
    fn nodes_of_fsyncs_go_over_all_channels() {
        let all = channels(Schedule { dispatch: Dispatch::Fifo, ..Schedule::default() });
        let mut segments = Segments::new(all.layout, all.clone());
        let (heat, free) = (Heat::WarmNode, segments.free());
        // What a checkpoint does without, and an fsync where room is short: one segment for all.
        let give = |segments: &mut Segments, need: Stop| {
            let Stop::Need(Need::Segments { region, .. }) = need else { panic!("{need:?}") };
            let chosen = segments.choose((region, heat, 0), true, (0, 0));
            segments.promise(&chosen);
            segments.assign(heat, &chosen, true);
        };
        let need = segments.reserve(heat, 2, free).expect_err("no head has anything");
        give(&mut segments, need);
        assert_eq!(segments.reserve(heat, 2, free), Ok(()), "all others are kept");
        let mut count = [0; 4];
        for _ in 0..16 {
            while let Err(need) = segments.reserve(heat, 1, free - 8) {
                give(&mut segments, need);
            }
            let addr = segments.allocate_reserved(heat, Owner::default());
            count[all.layout.region_of(all.layout.segment_of(addr).0) as usize] += 1;
        }
        assert_eq!(count, [4; 4]);
    }

    /// Nodes of a checkpoint go over all channels, though one head has room for all of them: none has
    /// more than its share. Where that would leave too few segments they go to heads that have pages.
    #[test]
    fn nodes_of_a_checkpoint_take_all_channels_as_long() {
        let spread = |kept: &dyn Fn(u32) -> u32| {
            let all = channels(Schedule { dispatch: Dispatch::Fifo, ..Schedule::default() });
            let mut segments = Segments::new(all.layout, all.clone());
            let (heat, pages) = (Heat::WarmNode, u64::from(all.layout.shape.segment_pages));
            let kept = kept(segments.free());
            loop {
                let lacks = segments.level(heat, pages, kept);
                let Err(need) = lacks.and_then(|()| segments.reserve(heat, pages, u32::MAX)) else {
                    break;
                };
                let Stop::Need(Need::Segments { region, each, .. }) = need else {
                    panic!("{need:?}")
                };
                let chosen = segments.choose((region, heat, each), true, (0, 0));
                segments.promise(&chosen);
                segments.assign(heat, &chosen, true);
            }
            let mut count = [0; 4];
            for _ in 0..pages {
                let addr = segments.allocate_reserved(heat, Owner::default());
                count[all.layout.region_of(all.layout.segment_of(addr).0) as usize] += 1;
            }
            (count, pages)
        };
        let (count, pages) = spread(&|_| 0);
        assert_eq!(count, [pages / 4; 4]);
        assert_eq!(spread(&|free| free - 3).0, [pages, 0, 0, 0]);
    }
}
