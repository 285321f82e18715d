//! Barriers of a device without capacitors: everything accepted so far becomes durable.
//!
//! Owns: what a flush and an erase wait for, and the task that does it. Promises: when a barrier
//! has ended, every sector, trim and loss that was accepted before it began is on the medium, or
//! something younger is; a power cut in the middle of one leaves each sector as it was before, or
//! younger. Never: runs where there are capacitors.
//!
//! 1. All buffered sectors are *covered*, in one section of the controller, and the pages that have
//!    changed are made. A covered slot is programmed even if its sector is overwritten or discarded
//!    meanwhile: what follows it is not covered.
//! 2. Covered sectors go out, the last unit of each queue filled with padding. With `pair_damage`
//!    open pairs are padded, too.
//! 3. Only now the pages go out: one that no longer says "trimmed" of a sector must not be found
//!    before the sector's new content is there, else the content before the trim would be.
//!    So do pages of stamps, if a flush has asked: each says which versions the barrier covers.
//! 4. Last, if chunks have become bad, or were opened without a page of counts that covers them,
//!    the notes (`pages.rs`) go out, twice: by then all that a bad chunk held is elsewhere on the
//!    medium. Counts of chunks that were erased before need no order, and go out in step 2.
//!
//! Who asks: a flush or FUA write, and the eraser. A line may be erased when a barrier that began
//! after it was empty has ended: what was moved out of it is programmed then, what replaced its
//! garbage is too, and the trims that made garbage of it are on the medium.
//!
//! Lines wait for an erase while the host waits for lines, so a barrier for an erase must not wait
//! for the host: its sectors may take the room of GC, which keeps a reserve for that
//! ([`reserve`]), and the host gets no room in the buffer for them until it may go on by itself.

use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::MutexGuard;
use flashlane_rt::{Cx, Waiter};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::buffer::{Kind, Sizes};
use super::map::Entry;
use super::pages::{COUNT_SPAN, Pages};
use super::place::{Layout, MAIN};
use super::stamps::STAMP_SPAN;
use super::{Controller, DriveFtl, Phase, Room};
use crate::patience::read_again;

/// In a unit's list of pages: this is the second copy.
pub(super) const SECOND: u32 = 1 << 31;

/// The device asks for a barrier that writes the changed pages of stamps when there are so many: a
/// barrier holds them all in memory, 4 KiB each.
const BEHIND_MOST: u32 = 2048;

/// How long a barrier waits whose pages of stamps found no place on a second PU: an erase takes as
/// long.
const ROOM_ELSEWHERE: Ns = Ns::from_ms(10);

/// Barriers in a row that wait for that.
const IN_VAIN_MOST: u32 = 4;

/// Why a device that finds no room on a second PU takes no writes.
const NO_SECOND: &str = "the records of a flush find room on one PU only: too many chunks failed";

/// A page that a barrier has made and that is not yet programmed.
pub(super) struct Held {
    /// With [`SECOND`], its second copy.
    pub(super) page: u32,
    pub(super) stamp: u64,
    pub(super) bytes: Arc<[u8]>,
    sent: bool,
    /// The position of its other copy, as far as that is known: this one goes elsewhere.
    apart_from: Option<u32>,
    /// Programs that have put it where the other copy is.
    in_vain: u32,
}

impl Held {
    fn new(page: u32, stamp: u64, bytes: Arc<[u8]>) -> Held {
        Held { page, stamp, bytes, sent: false, apart_from: None, in_vain: 0 }
    }

    /// True if it can be programmed now: it was not sent, and pages may go. Counts need no order,
    /// because they are true whatever else is on the medium.
    fn is_due(&self, pages_go: bool, pages: &Pages) -> bool {
        !self.sent && (pages_go || pages.is_counts(self.page & !SECOND))
    }
}

#[derive(Default)]
pub(super) struct Barriers {
    /// Number of the last one that somebody wants.
    asked: u64,
    /// Number of the last one that has ended.
    done: u64,
    /// Number of the last barrier whose pages of stamps are on two PUs: flushes wait for it.
    kept: u64,
    /// This barrier has left a page of stamps without copies on two PUs: it programmed both on one
    /// PU, or one copy was lost.
    pub(super) lacks_second: bool,
    /// How many of the last barriers in a row ended with `lacks_second`.
    in_vain: u32,
    active: bool,
    pub(super) held: Vec<Held>,
    /// The sectors are out, pages may go.
    pages_go: bool,
    /// Notes need not wait for the other pages of the next barrier.
    pub(super) notes_along: bool,
    /// The next barrier must write all changed pages of stamps: a flush, or their number, asks so.
    records_due: bool,
    /// Room of the host that it does not get yet.
    withheld: u32,
    /// Room that it has got as far as the SLC buffer has some, and has not used yet.
    granted: u32,
    /// Room for sectors of the host that no write has taken and that nothing withholds.
    free: u32,
    syncer: Option<Waiter>,
    /// Sectors of the host that the buffer holds at most.
    user_room: u32,
    /// With `pair_damage`: per stream × position, what stands in open pairs.
    pairs: Vec<Pairs>,
    /// Sectors behind one that close its pairs, in whole units.
    pair_sectors: u32,
    /// What a barrier pads: (stream × position, line, sector that closes it).
    closing: Vec<(usize, u32, u32)>,
    /// A program failed during this barrier, in a chunk that held content in open pairs: that is to
    /// be written again elsewhere, and this barrier does not wait for it.
    left_pairs: bool,
}

/// The open chunk of a stream at a position.
#[derive(Clone, Copy, Default)]
struct Pairs {
    line: u32,
    /// Sectors programmed.
    end: u32,
    /// With so many programmed, everything in it that is not padding is in closed pairs.
    closed_at: u32,
}

impl Barriers {
    /// For a device whose units have open pairs until `pair_sectors` more are programmed, 0 for none.
    pub(super) fn new(windows: usize, pair_sectors: u32, user_room: u32) -> Barriers {
        let windows = if pair_sectors == 0 { 0 } else { windows };
        let pairs = vec![Pairs::default(); windows];
        Barriers { pairs, pair_sectors, user_room, free: user_room, ..Barriers::default() }
    }

    /// A torn program may take others along.
    #[inline]
    pub(super) fn has_pairs(&self) -> bool {
        self.pair_sectors > 0
    }

    /// A page that a barrier has made is not programmed yet; of notes maybe only the second copy.
    #[inline]
    pub(super) fn holds_pages(&self) -> bool {
        !self.held.is_empty() && !mutant!("kit.second-copy-forgotten")
    }

    /// Both copies of this page of stamps are programmed, on two PUs if there are two.
    pub(super) fn has_kept(&self, page: u32) -> bool {
        !self.lacks_second && !self.held.iter().any(|held| held.page & !SECOND == page)
    }

    /// Pairs are being padded.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }
}

/// Sectors that GC keeps beyond a line where there are no capacitors: the buffer, which a barrier
/// may put into GC's room once, and three lines. A power cut costs the rest of GC's open line where
/// chunks are short for their windows (recovery pads them), and may be followed by others.
///
/// Where flushes leave records of so many logical sectors, a barrier may write all pages of stamps,
/// and a unit on each PU until both copies are on two.
pub(super) fn reserve(layout: &Layout, sizes: &Sizes, recorded: u32) -> u32 {
    if mutant!("kit.no-reserve") {
        return 0;
    }
    let stamps = match recorded {
        0 => 0,
        _ => spare_for_stamps(layout, recorded) as u32 + units_apart(layout),
    };
    sizes.user_room + 3 * layout.main().stripe_sectors() + stamps
}

/// Sectors of programs that may put a page of stamps where its other copy is.
fn units_apart(layout: &Layout) -> u32 {
    layout.main().unit * layout.main().positions()
}

/// Spare that a device needs beside all that, in sectors: a barrier for erases pads the last units
/// and, with `pair_damage`, the pairs of GC's open line; its victims must win more.
pub(super) fn spare_for_padding(layout: &Layout) -> u64 {
    let main = layout.main();
    let padded = (main.pairs * main.positions()).clamp(main.unit, main.stripe_sectors());
    u64::from(padded) * u64::from(main.stripes())
}

/// What pages of stamps of so many logical sectors take of the spare, in sectors: two copies of
/// each.
pub(super) fn spare_for_stamps(layout: &Layout, recorded: u32) -> u64 {
    u64::from((2 * recorded.div_ceil(STAMP_SPAN)).next_multiple_of(layout.main().unit))
}

/// Sectors that the pages of counts of one barrier may take, all copies.
fn counts_room(layout: &Layout) -> u32 {
    let pages = layout.chunk_count().div_ceil(COUNT_SPAN);
    let copies = layout.positions.min(2);
    copies * pages.next_multiple_of(layout.main().unit)
}

impl DriveFtl {
    /// Waits for a barrier that begins from now on; returns early when the device is read-only.
    pub(super) async fn sync(&self, cx: &Cx) {
        let mine = {
            let mut c = self.controller.lock();
            c.barriers.asked += 1;
            c.barriers.records_due = true;
            c.call_syncer(cx);
            c.barriers.asked
        };
        let over = || {
            let c = self.controller.lock();
            c.barriers.kept >= mine || c.read_only.is_some() || c.phase == Phase::Stopped
        };
        self.settled.wait(cx, over).await;
    }

    /// Where a stop has left no snapshot: notes the chunks that have gone offline in this life, and
    /// what was in them as lost. Else the next mount could not tell, and would be refused.
    pub(super) async fn note_offline(&self, cx: &Cx) {
        {
            let mut c = self.controller.lock();
            if c.capacitors || c.at_rest || mutant!("kit.stop-notes-nothing") {
                return;
            }
            let numbers = c.place.layout.chunk_numbers();
            let report = |pu: u32| self.device.chunk_report(pu, 0, numbers);
            let report = c.place.layout.by_number(report);
            if !c.place.take_offline(&report) {
                return;
            }
            c.touch_gone();
        }
        self.sync(cx).await;
        self.rest_without_spare(cx).await;
    }

    /// Waits until all covered slots are programmed, or no more can be.
    async fn wait_for(&self, cx: &Cx, ready: impl Fn(&Controller) -> bool) {
        let over = || {
            let c = self.controller.lock();
            ready(&c) || c.phase == Phase::Stopped
        };
        self.settled.wait(cx, over).await;
    }

    async fn run_barrier(&self, cx: &Cx) {
        if self.controller.lock().barriers.in_vain > 0 {
            cx.sleep(ROOM_ELSEWHERE).await;
        }
        let number = {
            let mut c = self.with_stamps_read(cx).await;
            let number = c.begin_barrier();
            c.make_counts();
            if std::mem::take(&mut c.barriers.notes_along) {
                c.make_notes();
            }
            self.go_on(cx, c, None, Room::default());
            number
        };
        if mutant!("kit.pages-before-sectors") {
            self.let_pages_go(cx);
        }
        self.wait_for(cx, |c| c.buffer.covered() == 0).await;
        self.close_pairs(cx).await;
        if self.let_pages_go(cx) {
            if !mutant!("kit.pages-not-awaited") {
                self.wait_for(cx, |c| c.barriers.held.is_empty()).await;
            }
            if !mutant!("kit.pairs-of-pages-open") {
                self.close_pairs(cx).await;
            }
        }
        let notes = self.controller.lock().make_notes();
        if notes && self.let_pages_go(cx) {
            self.wait_for(cx, |c| c.barriers.held.is_empty()).await;
            self.close_pairs(cx).await;
        }
        let mut c = self.controller.lock();
        if c.phase == Phase::Stopped || c.has_host_failed() {
            return;
        }
        (c.barriers.active, c.barriers.pages_go, c.place.lend) = (false, false, false);
        if c.barriers.left_pairs && !mutant!("kit.left-pairs-uncovered") {
            // The syncer runs it again, with changed pages of stamps: a flush may wait for them.
            c.barriers.records_due = true;
            return;
        }
        c.barriers.done = number;
        c.keep_records(number);
        c.call_eraser(cx);
        self.go_on(cx, c, None, Room::default());
    }

    /// Reads the pages of stamps that the next barrier will write and that no one has read since
    /// the mount. Returns the controller as it is when none is left.
    async fn with_stamps_read(&self, cx: &Cx) -> MutexGuard<'_, Controller> {
        loop {
            let unread = {
                let c = self.controller.lock();
                match c.pages.unread_stamps(c.barriers.records_due) {
                    unread if unread.is_empty() => return c,
                    unread => unread,
                }
            };
            let mut left = self.read_stamps(cx, unread).await;
            if !left.is_empty() {
                left = read_again(cx, left, async |left| self.read_stamps(cx, left).await).await;
            }
            for (page, _) in left {
                self.controller.lock().pages.read_stamps(page, None);
            }
        }
    }

    /// Reads these pages of stamps, each from one of its copies. Returns those that can't be read.
    async fn read_stamps(&self, cx: &Cx, pages: Vec<(u32, Vec<u32>)>) -> Vec<(u32, Vec<u32>)> {
        let mut left = Vec::new();
        for (page, copies) in pages {
            match self.read_page_copy(cx, page, &copies).await {
                Some(copy) => self.controller.lock().pages.read_stamps(page, Some(&copy)),
                None => left.push((page, copies)),
            }
        }
        left
    }

    /// Sends the pages of a barrier out; false if it has none.
    fn let_pages_go(&self, cx: &Cx) -> bool {
        let mut c = self.controller.lock();
        let any = !c.barriers.held.is_empty();
        c.barriers.pages_go = any;
        self.go_on(cx, c, None, Room::default());
        any
    }

    /// Pads open pairs, so that no program to come can take what is in them along.
    async fn close_pairs(&self, cx: &Cx) {
        {
            let mut c = self.controller.lock();
            if !c.barriers.has_pairs() || mutant!("kit.pairs-open") {
                return;
            }
            c.begin_closing();
            self.go_on(cx, c, None, Room::default());
        }
        self.wait_for(cx, |c| c.pairs_are_closed()).await;
        self.controller.lock().barriers.closing.clear();
    }
}

/// Runs barriers as they are asked for, one at a time, until the device stops.
pub(super) async fn syncer(ftl: Arc<DriveFtl>, cx: Cx) {
    loop {
        let due = poll_fn(|_| {
            let mut c = ftl.controller.lock();
            c.barriers.syncer = Some(cx.waiter());
            match c.phase {
                Phase::Stopped => Poll::Ready(false),
                _ if c.has_host_failed() => Poll::Pending,
                _ if c.barriers.asked > c.barriers.done => Poll::Ready(true),
                _ => Poll::Pending,
            }
        });
        if !due.await {
            return;
        }
        ftl.run_barrier(&cx).await;
    }
}

impl Controller {
    /// The host did not take a program: pairs in its chunk stay open, so no barrier ends any more,
    /// and nothing is erased behind one.
    fn has_host_failed(&self) -> bool {
        self.read_only == Some(super::HOST_TROUBLE) && !mutant!("kit.barrier-despite-host")
    }

    /// A barrier has ended: lets the flushes that wait for it end. If a page of stamps lacks a copy
    /// on a second PU, asks for another barrier first: erases may make room on other PUs. After
    /// [`IN_VAIN_MOST`] of these in a row the device takes no more writes.
    fn keep_records(&mut self, number: u64) {
        let b = &mut self.barriers;
        if !std::mem::take(&mut b.lacks_second) {
            (b.in_vain, b.kept) = (0, number);
        } else if b.in_vain < IN_VAIN_MOST {
            b.in_vain += 1;
            b.asked += 1;
        } else {
            self.read_only.get_or_insert(NO_SECOND);
        }
    }

    fn begin_barrier(&mut self) -> u64 {
        (self.barriers.active, self.place.lend) = (true, true);
        self.barriers.left_pairs = false;
        let flying = self.workers.iter().flat_map(|w| w.flying()).collect::<Vec<_>>();
        let flying = flying.into_iter().filter(|_| !mutant!("kit.flying-not-covered"));
        self.buffer.cover(flying);
        self.stamp += 1;
        for page in self.pages.take(u32::MAX) {
            self.hold(page);
        }
        let changed = std::mem::take(&mut self.barriers.records_due);
        for page in self.pages.take_stamps(changed) {
            self.hold_twice(page);
            self.pages.stamps_made(page);
        }
        self.barriers.asked
    }

    /// Marks for rewriting the pages with a lost copy, and the pages of trims that must name lost
    /// sectors.
    pub(super) fn touch_gone(&mut self) {
        for page in 0..self.pages.count() {
            let copies = [self.pages.at(page), self.pages.second(page)];
            if copies.into_iter().flatten().any(|at| self.place.is_gone(at))
                && !mutant!("kit.gone-page-forgotten")
            {
                self.pages.touch(page);
            }
        }
        for lba in 0..self.map.capacity() {
            if let Entry::Media(at) = self.map.get(lba)
                && self.place.is_gone(at)
            {
                self.pages.touch_trims(lba, lba + 1);
            }
        }
    }

    /// Makes new pages of counts if chunks were erased after the last ones. This barrier may open
    /// such chunks itself, and then it needs no further pages at its end.
    fn make_counts(&mut self) {
        let due = self.place.will_need_counts() && !mutant!("kit.opened-untold");
        if !due || self.phase == Phase::Stopped || mutant!("kit.chunks-unnoted") {
            return;
        }
        self.pages.set_tags(self.place.tell_erases());
        for page in self.pages.take_counts() {
            self.hold_twice(page);
        }
    }

    /// Makes a page that the barrier that is under way will program on two PUs.
    fn hold_twice(&mut self, page: u32) {
        self.hold(page);
        let once = match self.pages.is_stamps(page) {
            true => mutant!("kit.stamps-written-once"),
            false => mutant!("kit.notes-written-once"),
        };
        if let Some(first) = self.barriers.held.last()
            && self.workers.len() > 1
            && !once
        {
            let (stamp, bytes) = (first.stamp, first.bytes.clone());
            self.barriers.held.push(Held::new(page | SECOND, stamp, bytes));
        }
    }

    /// Makes the pages of notes that differ from what is on the medium; false if none does.
    fn make_notes(&mut self) -> bool {
        let untold = self.place.has_untold_erases() && !mutant!("kit.opened-untold");
        let any = self.place.stock_changed() || untold || self.pages.notes_wait();
        if !any || self.phase == Phase::Stopped || mutant!("kit.chunks-unnoted") {
            return false;
        }
        let bits = self.place.bad_chunks();
        self.pages.set_notes(bits);
        self.pages.set_tags(self.place.tell_erases());
        self.stamp += 1;
        for page in self.pages.take_notes() {
            self.hold_twice(page);
        }
        !self.barriers.held.is_empty()
    }

    /// Makes a page, which the barrier that is under way will program.
    fn hold(&mut self, page: u32) {
        let mut bytes = vec![0; super::pages::PAGE_BYTES];
        self.build_page(page, &mut bytes);
        self.barriers.held.push(Held::new(page, self.stamp, bytes.into()));
    }

    /// The bytes of a page as it would be now.
    pub(super) fn build_page(&self, page: u32, bytes: &mut [u8]) {
        let is_gone = |at: u32| self.place.is_gone(at);
        self.pages.build(page, &self.map, self.stamp, is_gone, bytes);
    }

    /// Number of a barrier that begins from now on.
    pub(super) fn barrier_after_now(&self) -> u64 {
        self.barriers.asked + u64::from(!mutant!("kit.erase-behind-older-barrier"))
    }

    /// Number of the last barrier that has ended; on capacitors nobody needs one.
    pub(super) fn barriers_done(&self) -> u64 {
        let none = self.capacitors || mutant!("kit.erase-before-barrier");
        if none { u64::MAX } else { self.barriers.done }
    }

    /// Sectors that barriers may program at most before anything is erased behind one that begins from
    /// now on: what the host may have in the buffer when that begins, the last units, pages, pairs; before
    /// it the rest of the one that is under way.
    pub(super) fn room_for_barriers(&self) -> u32 {
        let main = self.place.layout.main();
        let pairs = (self.barriers.pair_sectors * main.positions()).min(main.stripe_sectors());
        let pages = self.pages.waiting().next_multiple_of(main.unit);
        let counts = match self.place.tells_erases() {
            true => counts_room(&self.place.layout),
            false => 0,
        };
        let stamps = self.pages.stamps_room().next_multiple_of(main.unit)
            + if self.pages.has_stamps() { units_apart(&self.place.layout) } else { 0 };
        let next = self.barriers.user_room + 2 * main.unit + pages + counts + stamps + pairs;
        if !self.barriers.active || mutant!("kit.room-for-one-barrier") {
            return next;
        }
        let host = [Kind::User, Kind::Journal];
        let covered: u32 = host.iter().map(|kind| self.buffer.covered_waiting(*kind)).sum();
        let held = self.pages_to_send().next_multiple_of(main.unit);
        next + covered + 2 * main.unit + held + pairs
    }

    pub(super) fn barrier_is_active(&self) -> bool {
        self.barriers.active
    }

    /// A barrier is asked for that has not begun.
    pub(super) fn is_barrier_asked(&self) -> bool {
        self.barriers.asked > self.barriers.done
    }

    /// Lines wait for a barrier that nobody has asked for.
    pub(super) fn wants_barrier(&self) -> bool {
        self.place.leaving() > 0 && self.place.barrier_wanted() > self.barriers.asked
    }

    /// Sectors of the host take the room of GC: covered ones when a line can be erased behind them; when
    /// GC is over, those of a flush or a stop, which are all that its reserve can still serve.
    pub(super) fn barrier_needs_room(&self) -> bool {
        let host = [Kind::User, Kind::Journal];
        let covered = host.iter().any(|kind| self.buffer.covered_waiting(*kind) > 0);
        if covered && self.place.leaving() > 0 {
            return true;
        }
        let stops = self.phase == Phase::Draining && !self.capacitors;
        let waiting = || host.iter().any(|kind| self.buffer.waiting(*kind) > 0);
        let last = covered || stops && waiting();
        last && self.is_gc_over() && !mutant!("kit.reserve-kept-in-vain")
    }

    /// Sectors up to `end` of a chunk are on the medium; `over`: no more will follow.
    #[cold]
    pub(super) fn note_pairs(
        &mut self,
        window: usize,
        line: u32,
        (first, end): (u32, u32),
        padding: bool,
        over: bool,
    ) {
        let region = self.place.layout.of(line);
        let ahead = region.pairs.next_multiple_of(region.unit);
        let full = region.chunk_sectors;
        let pairs = &mut self.barriers.pairs[window];
        if pairs.line != line || first == 0 {
            *pairs = Pairs { line, end: 0, closed_at: 0 };
        }
        pairs.end = end;
        if !padding {
            pairs.closed_at = (end + ahead).min(full);
        }
        if over {
            self.barriers.left_pairs |= pairs.end < pairs.closed_at;
            pairs.closed_at = pairs.closed_at.min(end);
        }
    }

    fn begin_closing(&mut self) {
        let pairs = self.barriers.pairs.iter().enumerate();
        let open = pairs.filter(|(_, p)| p.end < p.closed_at);
        self.barriers.closing = open.map(|(w, p)| (w, p.line, p.closed_at)).collect();
    }

    fn is_closed(&self, (window, line, end): (usize, u32, u32)) -> bool {
        let pairs = &self.barriers.pairs[window];
        pairs.line != line || pairs.end >= end || pairs.end >= pairs.closed_at
    }

    fn pairs_are_closed(&self) -> bool {
        self.barriers.closing.iter().all(|pair| self.is_closed(*pair))
    }

    /// Where a unit of padding is due to close pairs.
    #[cold]
    pub(super) fn next_padding(&self) -> Option<(usize, u32)> {
        let positions = self.workers.len();
        let due = self.barriers.closing.iter().filter(|pair| !self.is_closed(**pair));
        let mut at = due.map(|(window, line, _)| (window / positions, window % positions, *line));
        let ready = at.find(|(s, p, line)| self.place.is_ready(*s, *line, *p as u32));
        ready.map(|(stream, position, _)| (stream, position as u32))
    }

    /// GC has nothing better to do than to wait for a barrier, or nothing else to do.
    pub(super) fn has_time_for_erases(&self) -> bool {
        self.gc.is_quiet() || self.gc_rests_for_host() || self.place.is_short_of_lines()
    }

    /// Asks for a barrier that writes pages of stamps where very many have changed: a barrier holds
    /// all of them in memory.
    pub(super) fn ask_for_records(&mut self, cx: &Cx) {
        let many = self.pages.stamps().behind() >= BEHIND_MOST;
        if many && !self.barriers.records_due && self.phase == Phase::Running {
            self.barriers.records_due = true;
            self.barriers.asked += 1;
            self.call_syncer(cx);
        }
    }

    /// Asks for the barrier that lines to be erased wait for, when GC has nothing better to do.
    pub(super) fn ask_for_erases(&mut self, cx: &Cx) {
        if self.capacitors || self.place.leaving() == 0 {
            return;
        }
        let wanted = self.place.barrier_wanted();
        if wanted > self.barriers.asked && self.has_time_for_erases() {
            self.barriers.asked = wanted;
            self.call_syncer(cx);
        }
    }

    /// The host has put so many sectors into the buffer.
    #[inline]
    pub(super) fn note_admitted(&mut self, sectors: u32) {
        self.barriers.granted = self.barriers.granted.saturating_sub(sectors);
        self.barriers.free = self.barriers.free.saturating_sub(sectors);
    }

    /// True if the largest write that waits has its room, or the next call of
    /// [`Controller::ration`] gives it some. If this is false and GC is over, that write would wait
    /// for ever, and so would all writes after it.
    pub(super) fn hosts_get_room(&self) -> bool {
        let Barriers { withheld, granted, free, .. } = self.barriers;
        let left = self.room_in_buffer();
        if mutant!("kit.rest-of-buffer-is-hope") && left > 0 {
            return true;
        }
        let largest = self.hosts_wait.iter().max().copied().unwrap_or(0);
        largest <= free + withheld.min(left.saturating_sub(granted))
    }

    /// Pages that wait for a program.
    pub(super) fn pages_to_send(&self) -> u32 {
        match self.capacitors {
            true => self.pages.dirty(),
            false => self.barriers.held.iter().filter(|held| !held.sent).count() as u32,
        }
    }

    /// Wakes the task that runs barriers.
    pub(super) fn call_syncer(&self, cx: &Cx) {
        if let Some(waiter) = self.barriers.syncer {
            cx.wake(waiter);
        }
    }

    /// What the host gets of the room that became free: nothing while its sectors take GC's. When
    /// the device stops it gets all: who waits is to be refused.
    pub(super) fn ration(&mut self, user: u32) -> u32 {
        let given = self.share(user);
        self.barriers.free += given;
        given
    }

    fn share(&mut self, user: u32) -> u32 {
        let moving = self.moving();
        self.barriers.withheld += user;
        let stops = matches!(self.phase, Phase::Draining | Phase::Stopped);
        let stops = stops && !mutant!("kit.stop-withholds-room");
        let any = self.barriers.withheld > 0;
        let denied =
            any && self.place.is_host_denied(MAIN) && !self.place.host_has_room(MAIN, moving);
        let freely = mutant!("slc.host-goes-on-beside-the-buffer") && self.buffer_has_room();
        if !denied || stops || freely {
            self.barriers.granted = 0;
            return std::mem::take(&mut self.barriers.withheld);
        }
        let room = self.room_in_buffer().saturating_sub(self.barriers.granted);
        let granted = self.barriers.withheld.min(room);
        self.barriers.withheld -= granted;
        self.barriers.granted += granted;
        granted
    }

    /// Pages for a unit: those that a barrier has made, or those that have changed.
    pub(super) fn take_pages(&mut self, unit: u32) -> Vec<u32> {
        if self.capacitors {
            return self.pages.take(unit);
        }
        let mut taken: Vec<u32> = Vec::new();
        let mut apart_from = None;
        let (go, pages) = (self.barriers.pages_go, &self.pages);
        for held in self.barriers.held.iter_mut().filter(|held| held.is_due(go, pages)) {
            let alike = taken.first().is_none_or(|page| {
                page & SECOND == held.page & SECOND && apart_from == held.apart_from
            });
            if alike {
                apart_from = held.apart_from;
                held.sent = true;
                taken.push(held.page);
            }
            if taken.len() == unit as usize {
                break;
            }
        }
        taken
    }

    /// Pages go to this position: their other copies go elsewhere.
    pub(super) fn note_pages_at(&mut self, position: u32, pages: &[u32]) {
        for held in &mut self.barriers.held {
            if pages.contains(&(held.page ^ SECOND)) {
                held.apart_from = Some(position);
            }
        }
    }

    /// The page of a barrier that is programmed next.
    fn next_held(&self) -> Option<&Held> {
        let go = self.barriers.pages_go;
        self.barriers.held.iter().find(|held| held.is_due(go, &self.pages))
    }

    /// The next pages of a barrier are of stamps.
    pub(super) fn stamps_are_next(&self) -> bool {
        self.next_held().is_some_and(|held| self.pages.is_stamps(held.page & !SECOND))
    }

    /// The next pages of a barrier are on two PUs.
    pub(super) fn twofold_is_next(&self) -> bool {
        self.next_held().is_some_and(|held| self.pages.is_twofold(held.page & !SECOND))
    }

    /// The position where the next pages of a barrier should not go: their other copies are there.
    pub(super) fn position_to_avoid(&self) -> Option<u32> {
        self.next_held()?.apart_from.filter(|_| !mutant!("kit.notes-on-one-die"))
    }

    /// Whether a barrier is under way, and the pages that it holds, for who looks at a hang.
    pub(super) fn barrier_standing(&self) -> String {
        let b = &self.barriers;
        let held = b.held.iter().map(|h| (h.page & !SECOND, h.sent, h.apart_from, h.in_vain));
        let held: Vec<_> = held.take(8).collect();
        format!("{} (pages go {}, first held {held:?})", b.active, b.pages_go)
    }

    /// Pages of a barrier wait for a program.
    pub(super) fn held_pages_wait(&self) -> bool {
        self.next_held().is_some()
    }

    /// True if this copy of a page of stamps must be programmed again: nothing else was open, so
    /// it went to `at`, on the PU of the other copy. If that die fails both are lost, and a mount
    /// believes older pages. Gives up after as many tries as open the next line.
    pub(super) fn is_held_again(&mut self, page: u32, at: u32) -> bool {
        let (line, here, _) = self.place.layout.in_chunk(at);
        let alive = |p: u32| p != here && !self.place.is_dead(p);
        let is_alone = !self.pages.is_stamps(page & !SECOND)
            || !(0..self.place.layout.positions).any(alive)
            || mutant!("kit.stamps-on-one-die");
        let region = self.place.layout.of(line);
        let most = if region.width > 1 { region.chunk_sectors / region.unit } else { 0 };
        let held = self.barriers.held.iter_mut().find(|h| h.page == page);
        let Some(held) = held.filter(|h| !is_alone && h.apart_from == Some(here)) else {
            return false;
        };
        held.in_vain += 1;
        if held.in_vain <= most {
            held.sent = false;
            return true;
        }
        self.barriers.lacks_second = true;
        self.pages.touch(page & !SECOND);
        false
    }

    pub(super) fn held_page_ended(&mut self, page: u32, well: bool) {
        match well {
            true => self.barriers.held.retain(|h| h.page != page),
            false if mutant!("kit.failed-page-not-again") => self.held_page_ended(page, true),
            false => {
                let held = self.barriers.held.iter_mut().filter(|h| h.page == page);
                held.for_each(|h| h.sent = false);
            }
        }
    }
}
