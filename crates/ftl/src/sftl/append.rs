//! Programs: what is appended, and padding.
//!
//! Owns: the order of a segment's sectors, pieces of vectors, what becomes of a failed program. Promises:
//! sectors are reserved and sent in the call, so appends of one segment go to the device in the order
//! of the calls; one that has completed well is on the medium (behind its pair, where pages are paired);
//! no program is sent behind one that the device did not take. Never: writes on behind a failed program,
//! but padding that closes the pairs of what was there.
//!
//! A failed program leaves the segment as full: what is there can be read. Its block is noted in the ledger
//! before the append says so, since the device would give it out again as good.

use super::ledger::Mark;
use super::map::{Map, NoBlock, Phase, Segment};
use super::{Sftl, SftlError};
use crate::block::Sectors;
use crate::kit;
use crate::log::format::{LBA_PADDING, Oob};
use flashlane_base::{Location, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{
    Cause, ChunkState, Completion, Flags, Gather, InFlight, Request, Status,
};
use flashlane_rt::Cx;
use smallvec::SmallVec;
use std::future::Future;

/// A program under way.
struct Part<'a> {
    flight: InFlight<'a>,
    from: u32,
    n: u32,
}

/// What an append has sent.
struct Sent<'a> {
    channel: u32,
    segment: u32,
    /// The chunk that it went to; the segment may have another one when the end is told.
    block: (u32, u32),
    cause: Cause,
    parts: SmallVec<[Part<'a>; 2]>,
    /// From here on nothing was sent: the device did not take a program before.
    unsent: Option<u32>,
}

/// Where content comes from.
#[derive(Clone, Copy)]
enum Load<'c> {
    Content(Sectors<'c>, bool),
    Padding,
}

impl Sftl {
    /// Programs whole pages at the write pointer, which is `first_sector`, and moves it in the call. With
    /// `whole` each sector has 4096 bytes under every store, as metadata has; else `content_bytes`.
    ///
    /// # Errors
    /// [`SftlError::Invalid`], [`SftlError::Failed`], [`SftlError::Gone`] and [`SftlError::TooManyOpen`]:
    /// nothing has happened. [`SftlError::ProgramFailed`]: from that sector on nothing is there for
    /// certain. [`SftlError::Host`]: the write pointer is where the host failed.
    pub fn append<'a>(
        &'a self,
        cx: &'a Cx,
        channel: u32,
        segment: u32,
        first_sector: u32,
        content: Sectors<'_>,
        cause: Cause,
        whole: bool,
    ) -> impl Future<Output = Result<(), SftlError>> + use<'a> {
        let unit = if whole { flashlane_base::SECTOR_BYTES } else { self.info.content_bytes };
        let bytes: usize = match content {
            Sectors::One(bytes) => bytes.len(),
            Sectors::Many(pieces) => pieces.iter().map(|p| p.len()).sum(),
        };
        let n = (bytes / unit) as u32;
        let sent = match content.are(n, unit) {
            false => Err("its content is no whole sectors"),
            true => Ok(()),
        };
        let sent = sent
            .map_err(|why| self.invalid((channel, segment), first_sector, n, why))
            .and_then(|()| {
                let mut map = self.map.lock();
                self.begin(&mut map, (channel, segment), first_sector, n)?;
                let load = Load::Content(content, whole);
                Ok(self.send(cx, &mut map, (channel, segment), n, load, cause))
            });
        async move { self.landed(cx, sent?).await }
    }

    /// Programs padding over `n` sectors from the write pointer on, which is `first_sector`, and moves
    /// it in the call: they read as zeros. It is for a file system that knows how far its pairs are open.
    ///
    /// # Errors
    /// As [`Sftl::append`].
    pub fn append_padding<'a>(
        &'a self,
        cx: &'a Cx,
        channel: u32,
        segment: u32,
        first_sector: u32,
        n: u32,
    ) -> impl Future<Output = Result<(), SftlError>> + use<'a> {
        let (at, cause) = ((channel, segment), Cause::PaddingPair);
        let mut map = self.map.lock();
        let sent = self.begin(&mut map, at, first_sector, n);
        let sent = sent.map(|()| self.send(cx, &mut map, at, n, Load::Padding, cause));
        drop(map);
        async move { self.landed(cx, sent?).await }
    }

    /// Pads the segment until the pairs of what it holds are closed, where pages are paired; the write
    /// pointer then.
    ///
    /// # Errors
    /// As [`Sftl::append`].
    pub fn close_pairs<'a>(
        &'a self,
        cx: &'a Cx,
        channel: u32,
        segment: u32,
    ) -> impl Future<Output = Result<u32, SftlError>> + use<'a> {
        let (mut sent, mut end) = (Ok(None), 0);
        if self.info.pair_sectors > 0 {
            let mut map = self.map.lock();
            let usable = |s: &&Segment| s.phase == Phase::Usable && s.block.is_some();
            let held = map.segment(channel, segment).filter(usable);
            if held.is_some_and(|s| s.failed) {
                sent = Err(SftlError::Failed { channel, segment });
            } else if let Some(s) = held {
                let behind = s.data_end + self.info.pair_sectors;
                end =
                    behind.next_multiple_of(self.info.page_sectors).min(self.info.segment_sectors);
                end = if s.data_end == 0 { 0 } else { end };
                let n = end.saturating_sub(s.written);
                if n > 0 && !mutant!("sftl.pairs-open") {
                    let (at, cause) = ((channel, segment), Cause::PaddingPair);
                    sent = Ok(Some(self.send(cx, &mut map, at, n, Load::Padding, cause)));
                }
            }
        }
        async move {
            if let Some(sent) = sent? {
                self.landed(cx, sent).await?;
            }
            // Others may have begun to close them.
            let landed = || {
                let map = self.map.lock();
                map.segment(channel, segment).is_none_or(|s| !s.is_flying(0, end))
            };
            self.changed.wait(cx, landed).await;
            let map = self.map.lock();
            match map.segment(channel, segment) {
                Some(s) if s.failed && self.info.pair_sectors > 0 => {
                    Err(SftlError::Failed { channel, segment })
                }
                Some(s) => Ok(s.pointer()),
                None => Ok(0),
            }
        }
    }

    /// Closes the pairs of a segment that nobody appends to any more, also where a program has failed:
    /// its chunk is padded behind that then, unless the device has closed it.
    ///
    /// # Errors
    /// The medium, or the host, took too little padding.
    pub async fn seal(&self, cx: &Cx, channel: u32, segment: u32) -> Result<(), SftlError> {
        let still = || {
            let map = self.map.lock();
            map.segment(channel, segment).is_none_or(|s| s.flights.is_empty())
        };
        self.changed.wait(cx, still).await;
        let block = {
            let mut map = self.map.lock();
            let usable = |s: &&Segment| s.phase == Phase::Usable && s.block.is_some();
            let held = map.segment(channel, segment).filter(usable);
            match held.is_some_and(|s| s.failed) && self.info.pair_sectors > 0 {
                true => {
                    // A trim waits as for a read.
                    map.segment_mut(channel, segment).readers += 1;
                    Some(map.block_of(channel, segment).1)
                }
                false => None,
            }
        };
        let Some(block) = block else {
            return self.close_pairs(cx, channel, segment).await.map(drop);
        };
        let (place, behind) = ((block.pu, block.chunk), self.info.pair_sectors);
        let is = || self.device.chunk_report(block.pu, block.chunk, 1).first().copied();
        let end = is().map_or(0, |info| info.write_pointer.saturating_add(behind));
        if !mutant!("sftl.failed-pairs-open") {
            self.pad(cx, place, behind, Cause::PaddingPair).await;
        }
        self.map.lock().segment_mut(channel, segment).readers -= 1;
        self.changed.wake(cx);
        match is() {
            Some(info) if info.state == ChunkState::Open && info.write_pointer < end => {
                Err(SftlError::Failed { channel, segment })
            }
            _ => Ok(()),
        }
    }

    /// Refuses an append that can't be, and gives the segment a block.
    fn begin(
        &self,
        map: &mut Map,
        (channel, segment): (u32, u32),
        first: u32,
        n: u32,
    ) -> Result<(), SftlError> {
        let invalid = |why| Err(self.invalid((channel, segment), first, n, why));
        let Some(s) = map.segment(channel, segment) else {
            return invalid("there is no such segment");
        };
        match s.phase {
            Phase::Gone => return Err(SftlError::Gone { channel, segment }),
            Phase::Trimming => return invalid("it is being erased: wait for the trim"),
            Phase::Usable if s.failed => return Err(SftlError::Failed { channel, segment }),
            Phase::Usable => {}
        }
        if first != s.written && !mutant!("sftl.order-unchecked") {
            return invalid("an append begins at the write pointer");
        }
        if n == 0 || !n.is_multiple_of(self.info.page_sectors) {
            return invalid("an append is whole pages, one or more");
        }
        if n > self.info.segment_sectors - s.written {
            return invalid("the segment has no room for so many");
        }
        if s.block.is_none() {
            map.take_block(channel, segment).map_err(|why| match why {
                NoBlock::None => SftlError::Gone { channel, segment },
                NoBlock::TooManyOpen => SftlError::TooManyOpen { channel },
                NoBlock::InDoubt => SftlError::InDoubt { channel, segment },
            })?;
        }
        Ok(())
    }

    /// Sends the next `n` sectors of a segment, all of which fit.
    fn send<'a>(
        &'a self,
        cx: &'a Cx,
        map: &mut Map,
        (channel, segment): (u32, u32),
        n: u32,
        load: Load<'_>,
        cause: Cause,
    ) -> Sent<'a> {
        let (_, block) = map.block_of(channel, segment);
        let place = (block.pu, block.chunk);
        let parts = SmallVec::new();
        let mut sent = Sent { channel, segment, block: place, cause, parts, unsent: None };
        let first = map.segment_mut(channel, segment).written;
        let page = self.info.page_sectors;
        let most = VECTOR_MAX as u32 / page * page;
        let mut done = 0;
        while done < n {
            let (from, count) = (first + done, (n - done).min(most));
            let s = map.segment_mut(channel, segment);
            if !s.flights.is_empty() {
                // The controller knows how the programs before it went: behind one that failed nothing
                // is sent.
                let info = self.device.chunk_report(block.pu, block.chunk, 1);
                let ready = info.first().is_some_and(|i| {
                    i.write_pointer == from
                        && matches!(i.state, ChunkState::Free | ChunkState::Open)
                });
                if !ready {
                    sent.unsent = Some(from);
                    break;
                }
            }
            let place = Location { pu: block.pu, chunk: block.chunk, sector: 0 };
            let flight =
                self.program(cx, s, (channel, segment), place, (from, count, done), load, cause);
            s.flights.push((from, from + count));
            s.written = from + count;
            match load {
                Load::Content(..) => s.data_end = s.written,
                Load::Padding => s.note_padding(from..from + count),
            }
            sent.parts.push(Part { flight, from, n: count });
            map.stats.programmed[cause as usize] += u64::from(count);
            if cause == Cause::User {
                map.stats.host_written += u64::from(count);
            }
            done += count;
        }
        sent
    }

    /// Sends one vector: `n` sectors from `from` on, whose content begins `skip` sectors into the load.
    fn program<'a>(
        &'a self,
        cx: &'a Cx,
        s: &mut Segment,
        (channel, segment): (u32, u32),
        chunk: Location,
        (from, n, skip): (u32, u32, u32),
        load: Load<'_>,
        cause: Cause,
    ) -> InFlight<'a> {
        let device = self.device();
        let format = device.format();
        let chunk = format.pack(chunk);
        let index: [u32; VECTOR_MAX] = std::array::from_fn(|i| i as u32);
        let causes = [cause; VECTOR_MAX];
        let mut addrs = [Ppa(0); VECTOR_MAX];
        let mut oob = [[0; OOB_BYTES]; VECTOR_MAX];
        let (unit, whole) = match load {
            Load::Content(_, true) => (flashlane_base::SECTOR_BYTES, true),
            Load::Content(_, false) | Load::Padding => (self.info.content_bytes, false),
        };
        let keeps = self.device.geometry().mw_cunits > 0;
        let base = self.info.number(channel, segment) * u64::from(self.info.segment_sectors);
        let mut copied = Vec::new();
        let zeros = match load {
            Load::Padding => vec![0; unit],
            Load::Content(..) => Vec::new(),
        };
        let mut each = match load {
            Load::Content(content, _) => Some(content.from(skip, unit)),
            Load::Padding => None,
        };
        let copies = !matches!(load, Load::Content(Sectors::One(_), _));
        for i in 0..n {
            let sector = from + i;
            let content = each.as_mut().and_then(Iterator::next).unwrap_or(&zeros);
            let crc = kit::content_crc(content);
            let lba = if each.is_some() { base + u64::from(sector) } else { LBA_PADDING };
            addrs[i as usize] = format.in_chunk(chunk, sector);
            oob[i as usize] = Oob::encode_raw(lba, s.generation, crc);
            if keeps {
                s.window.push(sector, if each.is_some() { content } else { &[] });
            }
            if copies {
                copied.extend_from_slice(content);
            }
        }
        let side_by_side = match load {
            Load::Content(Sectors::One(bytes), _) => &bytes[skip as usize * unit..],
            _ => &copied[..],
        };
        let n = n as usize;
        let content = Gather::new(side_by_side, &index[..n], unit);
        let request = Request::write(&addrs[..n], content, &oob[..n], &causes[..n]);
        let flags = match mutant!("sftl.program-not-fua") {
            true => Flags::DEFAULT,
            false => Flags::DURABLE,
        };
        device.io(cx, request.with(flags).whole(whole))
    }

    /// Waits for what was sent, and takes in what came of it.
    async fn landed(&self, cx: &Cx, sent: Sent<'_>) -> Result<(), SftlError> {
        let Sent { channel, segment, block, cause, parts, unsent } = sent;
        // The first sector that is not there, and whether the medium is to blame.
        let mut failed: Option<u32> = None;
        let mut host: Option<u32> = None;
        for Part { flight, from, n } in parts {
            let done = flight.await;
            let mut map = self.map.lock();
            let s = map.segment_mut(channel, segment);
            s.flights.retain(|f| f.0 != from);
            if done.failed != 0 && !mutant!("sftl.failure-ignored") {
                let bad = self.note_failures(&mut map, (channel, segment), &done, (from, n), cause);
                failed = failed.or(bad.program);
                host = host.or(bad.host);
            }
            let (window, full) = (self.device.geometry().mw_cunits, self.info.segment_sectors);
            map.segment_mut(channel, segment).advance_window(window, full);
            drop(map);
            self.changed.wake(cx);
        }
        if let Some(unsent) = unsent {
            // Whoever sent the program before it waits for its end; it is told there what happened.
            let clear = || {
                let map = self.map.lock();
                map.segment(channel, segment).is_none_or(|s| s.flights.is_empty())
            };
            self.changed.wait(cx, clear).await;
            let is_failed = self.map.lock().segment(channel, segment).is_some_and(|s| s.failed);
            match is_failed {
                true => failed = failed.or(Some(unsent)),
                false => host = host.or(Some(unsent)),
            }
        }
        if let Some(sector) = failed {
            self.ledger.mark(cx, block, Mark::Failed).await.map_err(SftlError::Ledger)?;
            return Err(SftlError::ProgramFailed { channel, segment, sector });
        }
        match host {
            Some(_) => Err(SftlError::Host { channel, segment }),
            None => Ok(()),
        }
    }

    /// Takes in the failed sectors of a program.
    #[cold]
    fn note_failures(
        &self,
        map: &mut Map,
        (channel, segment): (u32, u32),
        done: &Completion,
        (from, n): (u32, u32),
        cause: Cause,
    ) -> Bad {
        let mut bad = Bad::default();
        for i in 0..n {
            let (sector, status) = (from + i, done.status(i as usize));
            if status.is_ok() {
                continue;
            }
            if !status.moved_pointer() {
                map.stats.programmed[cause as usize] -= 1;
                map.stats.host_written -= u64::from(cause == Cause::User);
                map.segment_mut(channel, segment).cut(sector);
            }
            if status == Status::HostFault {
                bad.host.get_or_insert(sector);
                continue;
            }
            map.stats.program_failures += 1;
            bad.program.get_or_insert(sector);
            map.segment_mut(channel, segment).failed = true;
        }
        bad
    }

    pub(super) fn invalid(
        &self,
        (channel, segment): (u32, u32),
        sector: u32,
        sectors: u32,
        why: &'static str,
    ) -> SftlError {
        SftlError::Invalid { channel, segment, sector, sectors, why }
    }
}

/// First sectors of a program that failed.
#[derive(Default)]
struct Bad {
    /// The medium did not take it.
    program: Option<u32>,
    /// The host did not.
    host: Option<u32>,
}
