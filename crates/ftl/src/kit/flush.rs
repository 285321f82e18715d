//! Pages on their way to the medium: when they go, the unit that carries them, what came of it.
//!
//! Owns: the programs of [`super::pages`]. Promises: a page says what is true when it is submitted,
//! at a stamp of its own; its former copy is garbage when the new one is programmed, not before.
//! Never: chooses a place (`place.rs`).
//!
//! A device with capacitors keeps up to `dirty_pages` pages unwritten, because the capacitors save
//! them; then a unit of them goes out at a time. When the device stops, all go.

use flashlane_base::mutant;
use flashlane_ocssd::device::{Cause, Completion, Device, Flags, Gather, InFlight};
use flashlane_ocssd::device::{Request, Status};
use flashlane_rt::Cx;

use super::buffer::{Kind, NIL};
use super::drain::{Job, Load};
use super::pages::PAGE_BYTES;
use super::place::MAIN;
use super::sync::SECOND;
use super::tier::BUFFER;
use super::{Controller, Phase, read};
use crate::log::format::{LBA_PADDING, LBA_SNAPSHOT, Oob};

impl Controller {
    /// A unit of pages is due and has a place.
    #[cold]
    pub(super) fn next_pages(&mut self) -> Option<(Load, usize, u32)> {
        let most = match self.phase {
            Phase::Running => self.dirty_pages,
            Phase::Mounting | Phase::Draining | Phase::Stopped => 0,
        };
        // Pages of a barrier go where GC goes: it waits for them.
        let (due, as_if) = match self.capacitors {
            true => (self.pages.dirty() > most && self.pages.flying() == 0, Kind::User),
            false => (self.held_pages_wait(), Kind::Gc),
        };
        if !due {
            return None;
        }
        let moving = self.moving();
        if let Some(first) = self.position_to_avoid() {
            return self.place_of_second(first);
        }
        let place = match as_if {
            // Its padding is least in SLC, and it dies with the next page.
            // They die with the next line that is opened, but take no room of the SLC buffer.
            Kind::Gc if self.twofold_is_next() => self.place.next_of_gc(MAIN),
            Kind::Gc if self.buffer_has_room() => self.place.next_of_host(BUFFER, 0),
            Kind::Gc => self.place.next_of_gc(MAIN),
            _ => self.place.next_of_host(MAIN, moving),
        };
        match place {
            Some((stream, position)) => return Some((Load::Pages, stream, position)),
            None => self.check_room(as_if),
        }
        None
    }

    /// The place of a page's second copy: on another channel than the first copy. If there is none,
    /// not even when a program ends: on another PU, else anywhere. Pages of stamps need another PU.
    fn place_of_second(&mut self, first_copy: u32) -> Option<(Load, usize, u32)> {
        let next = self.place.next_of_gc(MAIN);
        let layout = &self.place.layout;
        let elsewhere = |p: u32| !layout.share_channel(p, first_copy);
        let any = (0..layout.positions).any(|p| elsewhere(p) && !self.place.is_dead(p));
        // Records are believed if one PU is lost, not if a channel is.
        let on_channel = any && !self.stamps_are_next();
        let apart = |p: u32| match on_channel {
            true => elsewhere(p) && !mutant!("kit.notes-on-one-channel"),
            false => p != first_copy,
        };
        let open = |fits: &dyn Fn(u32) -> bool| {
            next.filter(|(_, p)| fits(*p)).or_else(|| self.place.next_open_that(fits))
        };
        let last = || open(&|p| p != first_copy).or(next).filter(|_| self.no_program_flies());
        match open(&apart).or_else(last) {
            Some((stream, position)) => Some((Load::Pages, stream, position)),
            None => {
                self.check_room(Kind::Gc);
                None
            }
        }
    }

    /// Makes the pages of a job and submits them.
    #[cold]
    pub(super) fn submit_pages<'a>(
        &mut self,
        cx: &'a Cx,
        device: &'a (dyn Device + 'static),
        position: u32,
        job: Job,
    ) -> InFlight<'a> {
        let unit = job.n as usize;
        let pages = std::mem::take(&mut self.workers[position as usize].pages);
        let format = device.format();
        let chunk = format.pack(self.place.layout.chunk(job.line, position));
        let mut bytes = vec![0; unit * PAGE_BYTES];
        let fill = match job.load {
            Load::Padding => Cause::PaddingPair,
            _ => Cause::PaddingFlush,
        };
        self.stamp += 1;
        for (i, sector) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            let snapshot = match job.load {
                Load::Snapshot => self.snapshot_sector(position, i, sector),
                _ => None,
            };
            let (lba, stamp, cause) = match (pages.get(i), snapshot) {
                (Some(page), _) => {
                    let stamp = self.make_page(*page, sector);
                    (self.pages.lba(*page & !SECOND) as u64, stamp, Cause::Metadata)
                }
                (None, Some(stamp)) => (LBA_SNAPSHOT, stamp, Cause::Metadata),
                (None, None) => (LBA_PADDING, self.place.opened(), fill),
            };
            self.scratch.addrs[i] = format.in_chunk(chunk, job.from + i as u32);
            self.scratch.oob[i] = Oob::encode_raw(lba, stamp, read::content_crc(sector));
            self.scratch.cause[i] = cause;
            self.stats.count(cause, self.place.layout.is_slc(job.line));
        }
        if !self.capacitors {
            self.bear_witness(position, job, |i| i < pages.len());
        }
        let index: Vec<u32> = (0..unit as u32).collect();
        let content = Gather::new(&bytes, &index, PAGE_BYTES);
        let (oob, cause) = (&self.scratch.oob[..unit], &self.scratch.cause[..unit]);
        let flags = Flags { fua: !mutant!("kit.page-not-fua"), ..Flags::DEFAULT };
        let request = Request::write(&self.scratch.addrs[..unit], content, oob, cause);
        let flight = device.io(cx, request.with(flags).whole(true));
        self.workers[position as usize].pages = pages;
        flight
    }

    /// The bytes of a page, and the stamp at which they are true: now, or when a barrier began.
    fn make_page(&self, page: u32, sector: &mut [u8]) -> u64 {
        if let Some(held) = self.barriers.held.iter().find(|h| h.page == page) {
            sector.copy_from_slice(&held.bytes);
            return held.stamp;
        }
        self.build_page(page, sector);
        self.stamp
    }

    /// Takes in the result of a job of pages, whose place in the window holds no slots. Returns
    /// whether the chunk is over.
    #[cold]
    pub(super) fn settle_pages(
        &mut self,
        slots: &mut Vec<u32>,
        position: u32,
        job: Job,
        done: &Completion,
    ) -> bool {
        slots.clear();
        slots.resize(job.n as usize, NIL);
        let pages = std::mem::take(&mut self.workers[position as usize].pages);
        let base = self.place.layout.sector_at(job.line, position, job.from);
        let held = match job.load {
            Load::Snapshot => self.settle_snapshot(position, base, done),
            _ => pages.len(),
        };
        let mut over = false;
        for i in (0..job.n).rev() {
            let (page, status) = (pages.get(i as usize), done.status(i as usize));
            if status.is_ok() {
                if let Some(page) = page {
                    self.page_landed(*page, base + i);
                }
                continue;
            }
            over |= self.note_failure(position, job, status);
            let cause = match job.load {
                _ if (i as usize) < held => Cause::Metadata,
                Load::Padding => Cause::PaddingPair,
                _ => Cause::PaddingFlush,
            };
            let programmed = status == Status::WriteNextUnit;
            if !programmed {
                self.stats.uncount(cause, self.place.layout.is_slc(job.line));
            }
            match page {
                Some(page) if self.capacitors => self.pages.failed(*page),
                Some(page) => self.held_page_ended(*page, false),
                None => {}
            }
        }
        let says = (0..pages.len()).map(|i| done.status(i).is_ok());
        self.place.hear((job.line, position), job.from, says);
        if done.failed != 0 {
            self.check_spare();
        }
        over
    }

    fn page_landed(&mut self, page: u32, at: u32) {
        if self.is_held_again(page, at) {
            return;
        }
        self.held_page_ended(page, true);
        let (page, is_second) = (page & !SECOND, page & SECOND != 0);
        let is_stamps = self.pages.is_stamps(page);
        let before = match is_second {
            // If nobody kept the second copy, GC could leave the notes on one PU.
            true if !is_stamps && mutant!("kit.second-notes-garbage") => return,
            true => self.pages.set_second(page, at),
            false => self.pages.landed(page, at),
        };
        match is_stamps {
            true => {
                self.pages.keep_before(page, before);
                if self.barriers.has_kept(page) || mutant!("kit.records-replaced-early") {
                    self.pages.take_before(page).into_iter().for_each(|at| self.forget_copy(at));
                }
            }
            false => before.into_iter().for_each(|at| self.forget_copy(at)),
        }
        self.map.take(at, self.pages.lba(page));
        let line = self.place.layout.line_of(at);
        self.place.line_mut(line).valid += 1;
    }

    /// A chunk is over before it can give back what was programmed last: pages in it are written
    /// again, like sectors.
    #[cold]
    pub(super) fn pages_in_lost_chunk(&mut self, line: u32, position: u32) {
        for page in 0..self.pages.count() {
            let in_it = |at: u32| {
                let (l, p, _) = self.place.layout.in_chunk(at);
                (l, p) == (line, position)
            };
            let copies = [self.pages.at(page), self.pages.second(page)];
            if copies.into_iter().flatten().any(in_it) {
                self.pages.touch(page);
                // A flush must not end with one copy.
                self.barriers.lacks_second |=
                    self.pages.is_stamps(page) && self.barrier_is_active();
            }
        }
    }

    /// The copy of a page lies in a victim: it is garbage, and a new one is due.
    pub(super) fn lose_page_copy(&mut self, page: u32, at: u32) {
        self.forget_copy(at);
        self.pages.lose_copy(page, at);
    }

    /// Units of chunks that were erased are not void any more.
    pub(super) fn forget_voids(&mut self, line: u32, positions: &[u32]) {
        if !self.pages.any_void() {
            return;
        }
        for position in positions {
            let pages = &mut self.pages;
            self.place.layout.each_grain(line, *position, |grain| pages.set_void(grain, false));
        }
    }
}
