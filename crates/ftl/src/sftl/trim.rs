//! Trims: a segment gives its block back.
//!
//! Owns: the erase, and what becomes of the block. Promises: it completes when nothing of the segment
//! can ever be read again, whatever the power does; a block in which a program failed, or that could not
//! be erased, is not used again; who runs out of blocks hears of it here, never in an append. Never:
//! erases under a read or a program.
//!
//! A torn erase leaves a block that can't be read: it is erased again when it is known after a
//! mount that no data is missing (`unreadable.rs`). An erase that had not begun leaves the segment
//! as it was: the trim has not completed. Nothing takes a new block for the segment before the old
//! one is erased, so no older generation of it is ever left.

use super::ledger::Mark;
use super::map::{BlockState, Phase};
use super::mount::PADDED_BY_MOUNT;
use super::{Sftl, SftlError};
use crate::block::BlockResult;
use crate::log::format::{LBA_PADDING, Oob};
use flashlane_base::{Location, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, ChunkState, Flags, Gather, Op, Request, Status};
use flashlane_rt::Cx;
use std::future::Future;

/// How an erase ended.
pub(super) enum Erased {
    Well,
    /// The chunk is bad.
    Bad,
    /// The host failed, nothing has changed.
    Host,
}

impl Sftl {
    /// Erases a segment; completes when that is done. A segment without data needs nothing.
    ///
    /// # Errors
    /// [`SftlError::Gone`]: it is erased, and there is no block for it any more. [`SftlError::Host`]:
    /// it is as it was. [`SftlError::Ledger`]: it may come back with the next life.
    pub fn trim<'a>(
        &'a self,
        cx: &'a Cx,
        channel: u32,
        segment: u32,
    ) -> impl Future<Output = Result<(), SftlError>> + use<'a> {
        let begun = self.begin_trim((channel, segment));
        async move {
            match begun? {
                true => self.erase_segment(cx, (channel, segment)).await,
                false => Ok(()),
            }
        }
    }

    /// From now on the segment takes nothing; whether there is something to erase.
    fn begin_trim(&self, (channel, segment): (u32, u32)) -> Result<bool, SftlError> {
        let mut map = self.map.lock();
        let Some(s) = map.segment(channel, segment) else {
            return Err(self.invalid((channel, segment), 0, 0, "there is no such segment"));
        };
        match s.phase {
            Phase::Gone => return Err(SftlError::Gone { channel, segment }),
            Phase::Trimming => {
                return Err(self.invalid((channel, segment), 0, 0, "it is being erased"));
            }
            Phase::Usable if s.block.is_none() && map.doubts.is_empty() => return Ok(false),
            // An older block of it may be among those that can't be read.
            Phase::Usable if !map.doubts.is_empty() && !mutant!("sftl.trimmed-in-doubt") => {
                return Err(SftlError::InDoubt { channel, segment });
            }
            Phase::Usable if s.block.is_none() => return Ok(false),
            Phase::Usable => {}
        }
        let written = u64::from(s.written);
        map.stats.host_discarded += written;
        map.segment_mut(channel, segment).phase = Phase::Trimming;
        Ok(true)
    }

    async fn erase_segment(
        &self,
        cx: &Cx,
        (channel, segment): (u32, u32),
    ) -> Result<(), SftlError> {
        let still = || {
            let map = self.map.lock();
            map.segment(channel, segment).is_none_or(|s| s.flights.is_empty() && s.readers == 0)
        };
        if !mutant!("sftl.erase-under-readers") {
            self.changed.wait(cx, still).await;
        }
        let (place, failed) = {
            let map = self.map.lock();
            let block = map.block_of(channel, segment).1;
            let failed = map.segment(channel, segment).is_some_and(|s| s.failed);
            ((block.pu, block.chunk), failed)
        };
        // The append that failed may not have noted it yet.
        if failed && !mutant!("sftl.failed-block-used-again") {
            let noted = self.ledger.mark(cx, place, Mark::Failed).await;
            if let Err(error) = noted {
                return Err(self.give_up_trim(cx, (channel, segment), SftlError::Ledger(error)));
            }
        }
        let erased = match mutant!("sftl.trim-before-erase") {
            true => Erased::Well,
            false => self.erase(cx, place).await,
        };
        let mut noted = Ok(());
        let to = match erased {
            Erased::Host => {
                let error = SftlError::Host { channel, segment };
                return Err(self.give_up_trim(cx, (channel, segment), error));
            }
            Erased::Bad => {
                noted = self.forget(cx, place).await.map_err(SftlError::Ledger);
                BlockState::Retired
            }
            Erased::Well if failed && !mutant!("sftl.failed-block-used-again") => {
                BlockState::Retired
            }
            Erased::Well => BlockState::Free,
        };
        let is_backed = {
            let mut map = self.map.lock();
            let (at, _) = map.block_of(channel, segment);
            if matches!(erased, Erased::Well) {
                map.channels[channel as usize].blocks[at as usize].erases += 1;
            }
            let is_backed = map.let_go(channel, segment, to);
            if !is_backed {
                map.segment_mut(channel, segment).phase = Phase::Gone;
            }
            is_backed
        };
        self.changed.wake(cx);
        noted?;
        if is_backed {
            return Ok(());
        }
        self.ledger.mark_gone(cx, channel, segment).await.map_err(SftlError::Ledger)?;
        Err(SftlError::Gone { channel, segment })
    }

    /// The segment is as it was before the trim.
    fn give_up_trim(&self, cx: &Cx, (channel, segment): (u32, u32), why: SftlError) -> SftlError {
        self.map.lock().segment_mut(channel, segment).phase = Phase::Usable;
        self.changed.wake(cx);
        why
    }

    /// A chunk that could not be erased: where the device does not know that it is bad, the ledger has to.
    pub(super) async fn forget(&self, cx: &Cx, (pu, chunk): (u32, u32)) -> BlockResult {
        let info = self.device.chunk_report(pu, chunk, 1);
        match info.first().is_some_and(|i| i.state == ChunkState::Offline) {
            true => Ok(()),
            false => self.ledger.mark(cx, (pu, chunk), Mark::Void).await,
        }
    }

    /// Erases a chunk, which is not free.
    pub(super) async fn erase(&self, cx: &Cx, (pu, chunk): (u32, u32)) -> Erased {
        if !self.device.traits().reset_open {
            self.fill(cx, (pu, chunk)).await;
        }
        let device = self.device();
        let addr = [device.format().pack(Location { pu, chunk, sector: 0 })];
        let status = device.io(cx, Request::plain(Op::Reset, &addr)).await.status(0);
        let mut map = self.map.lock();
        match status {
            Status::HostFault => Erased::Host,
            status => {
                map.stats.erases += 1;
                map.stats.erase_failures += u64::from(!status.is_ok());
                if status.is_ok() { Erased::Well } else { Erased::Bad }
            }
        }
    }

    /// Fills an open chunk with padding: there are devices on which only a closed one can be erased.
    async fn fill(&self, cx: &Cx, (pu, chunk): (u32, u32)) {
        self.pad(cx, (pu, chunk), u32::MAX, Cause::PaddingGc).await;
    }

    /// Programs up to `n` sectors of padding, one command after the other; what a mount has to do behind a
    /// cut, too.
    pub(super) async fn pad(&self, cx: &Cx, (pu, chunk): (u32, u32), n: u32, cause: Cause) {
        let (device, unit) = (self.device(), self.info.content_bytes);
        let report = || self.device.chunk_report(pu, chunk, 1).first().copied();
        let Some(info) = report().filter(|i| i.state == ChunkState::Open) else { return };
        let end = info.write_pointer.saturating_add(n).min(self.info.segment_sectors);
        let most = VECTOR_MAX as u32 / self.info.page_sectors * self.info.page_sectors;
        let (zeros, index) = (vec![0; unit], [0; VECTOR_MAX]);
        let oob = Oob::encode_raw(LBA_PADDING, PADDED_BY_MOUNT, crate::kit::content_crc(&zeros));
        loop {
            // A program that fails may close the chunk, or leave it where it was.
            let Some(now) = report().filter(|i| i.state == ChunkState::Open) else { return };
            let from = now.write_pointer;
            let n = end.saturating_sub(from).min(most) as usize;
            if n == 0 {
                return;
            }
            let mut addrs = [Ppa(0); VECTOR_MAX];
            let first = device.format().pack(Location { pu, chunk, sector: 0 });
            (from..)
                .zip(&mut addrs[..n])
                .for_each(|(s, a)| *a = device.format().in_chunk(first, s));
            let (oob, causes): ([[u8; OOB_BYTES]; VECTOR_MAX], _) =
                ([oob; VECTOR_MAX], [cause; VECTOR_MAX]);
            let content = Gather::new(&zeros, &index[..n], unit);
            let request = Request::write(&addrs[..n], content, &oob[..n], &causes[..n]);
            let done = device.io(cx, request.with(Flags::DURABLE)).await;
            let moved = (0..n).filter(|i| done.status(*i).moved_pointer()).count() as u64;
            let mut map = self.map.lock();
            map.stats.programmed[cause as usize] += moved;
            let bad = (0..n).filter(|i| !done.status(*i).is_ok()).count() as u64;
            map.stats.program_failures += bad;
            if moved == 0 {
                return;
            }
        }
    }
}
