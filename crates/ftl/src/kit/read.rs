//! Host reads: from the buffer, from the medium, or zeros.
//!
//! Owns: looking up, pinning, reading, verifying. Promises: every sector read from the medium is
//! the one asked for, by its own record (logical address and CRC), or is reported as uncorrectable
//! and handed out as zeros; other sectors of the request are good. A line whose address a read
//! holds is not erased. Never: changes the map.

use flashlane_base::{Lba, Ns, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Breakdown, Completion, Flags, InFlight, Request, Status};
use flashlane_rt::Cx;
use smallvec::SmallVec;

use super::buffer::copy_sector;
use super::map::Entry;
use super::place::{LineState, MAIN};
use super::{Controller, DriveFtl};
use crate::block::{BlockError, BlockResult, SectorsMut, Started};
use crate::log::format::Oob;

/// CRC of a sector's content, of 4096 bytes or of the 8 that the `stamps` store keeps.
#[inline]
pub(crate) fn content_crc(content: &[u8]) -> u32 {
    match <[u8; 8]>::try_from(content) {
        Ok(word) => Oob::content_crc_word(u64::from_le_bytes(word)),
        Err(_) => Oob::content_crc(content),
    }
}

/// Is this the content of logical sector `lba`, as it was written?
#[inline]
pub(super) fn is_of(oob: &[u8; OOB_BYTES], lba: u32, content: &[u8]) -> bool {
    let (owner, _) = Oob::split_tag(Oob::decode_raw(oob).0);
    let named = owner == lba as u64 || mutant!("kit.record-of-another");
    named && (Oob::verify_crc(oob, content_crc(content)) || mutant!("kit.content-unverified"))
}

/// Where a sector of a read comes from.
enum Source {
    /// It is in the caller's memory already: from the buffer, or zeros.
    Here,
    /// It has to be read at this physical sector, whose line is pinned.
    Media(u32),
    /// GC lost it.
    Lost,
}

/// Sectors of a request that have to be read: (sector of the request, physical sector), in its order.
type Wanted = SmallVec<[(u32, u32); VECTOR_MAX]>;

/// A read command and what its memory said at submit.
struct Part<'a> {
    flight: InFlight<'a>,
    /// Bit `i`: the content of address `i` is not what its record says.
    mismatch: u64,
}

impl DriveFtl {
    /// A read, answered at once where nothing has to come from the medium.
    pub(super) fn read<'a>(
        &'a self,
        cx: &'a Cx,
        lba: u32,
        sectors: u32,
        mut to: SectorsMut<'a>,
    ) -> Started<'a> {
        if sectors == 1 {
            return self.read_one(cx, lba, to);
        }
        let mut lost = Vec::new();
        let mut wanted = Wanted::new();
        {
            let mut c = self.controller.lock();
            c.note_request(cx);
            for i in 0..sectors {
                match c.look_up(lba + i, to.sector(i, self.unit())) {
                    Source::Here => {}
                    Source::Media(at) => wanted.push((i, at)),
                    Source::Lost => lost.push(i),
                }
            }
        }
        if wanted.is_empty() {
            return Started::Done(outcome(lba, lost));
        }
        let parts: SmallVec<[Part<'a>; 1]> = wanted
            .chunks(VECTOR_MAX)
            .map(|part| self.submit_read::<VECTOR_MAX>(cx, lba, part, &mut to))
            .collect();
        Started::later(async move {
            for (part, wanted) in parts.into_iter().zip(wanted.chunks(VECTOR_MAX)) {
                let done = part.flight.await;
                let mut c = self.controller.lock();
                for (i, (sector, at)) in wanted.iter().enumerate() {
                    let good = c.judge(done.status(i), part.mismatch >> i & 1 == 0);
                    if !good {
                        to.sector(*sector, self.unit()).fill(0);
                        lost.push(*sector);
                    }
                    c.unpin(cx, *at);
                }
                c.note_read(&done);
            }
            lost.sort_unstable();
            outcome(lba, lost)
        })
    }

    /// The same for one sector, which is most of what a random reader does.
    fn read_one<'a>(&'a self, cx: &'a Cx, lba: u32, mut to: SectorsMut<'a>) -> Started<'a> {
        let source = {
            let mut c = self.controller.lock();
            c.note_request(cx);
            c.look_up(lba, to.sector(0, self.unit()))
        };
        let at = match source {
            Source::Here => return Started::Done(Ok(())),
            Source::Lost => return Started::Done(outcome(lba, vec![0])),
            Source::Media(at) => at,
        };
        let part = self.submit_read::<1>(cx, lba, &[(0, at)], &mut to);
        Started::later(async move {
            let done = part.flight.await;
            let mut c = self.controller.lock();
            let good = c.judge(done.status(0), part.mismatch == 0);
            c.unpin(cx, at);
            c.note_read(&done);
            drop(c);
            if good {
                return Ok(());
            }
            to.sector(0, self.unit()).fill(0);
            outcome(lba, vec![0])
        })
    }

    /// Submits a command of at most `N` addresses, (sector of the request, physical sector) each.
    #[inline]
    fn submit_read<'a, const N: usize>(
        &'a self,
        cx: &'a Cx,
        lba: u32,
        wanted: &[(u32, u32)],
        to: &mut SectorsMut<'_>,
    ) -> Part<'a> {
        let mut addrs = [Ppa(0); N];
        let mut index = [0; N];
        let mut oob = [[0; OOB_BYTES]; N];
        let n = wanted.len();
        for (i, (sector, at)) in wanted.iter().enumerate() {
            addrs[i] = self.device.format().pack(self.layout.location(*at));
            index[i] = *sector;
        }
        let unit = self.info.content_bytes;
        let content = to.scatter(&index[..n], unit);
        let request = Request::read(&addrs[..n], content, &mut oob[..n]);
        let flight = self.device.io(cx, request.with(Flags::READ));
        let mut mismatch = 0;
        for (i, (sector, _)) in wanted.iter().enumerate() {
            let good = is_of(&oob[i], lba + sector, to.sector(*sector, unit));
            mismatch |= (!good as u64) << i;
        }
        Part { flight, mismatch }
    }
}

impl Controller {
    /// Finds a sector; copies it if it is in the buffer, pins its line if it is on the medium.
    #[inline]
    fn look_up(&mut self, lba: u32, out: &mut [u8]) -> Source {
        self.stats.ftl.host_read += 1;
        match self.map.get(lba) {
            Entry::Unmapped => {
                self.stats.ftl.read_unmapped += 1;
                out.fill(0);
                Source::Here
            }
            Entry::Slot(slot) => {
                self.stats.ftl.read_from_buffer += 1;
                copy_sector(out, self.buffer.content(slot));
                Source::Here
            }
            Entry::Media(at) => {
                let line = self.place.layout.line_of(at);
                self.place.line_mut(line).readers += 1;
                if let Some(tier) = &mut self.tier {
                    tier.stats.slc_read_sectors +=
                        u64::from(self.place.layout.of(line).pool != MAIN);
                }
                Source::Media(at)
            }
            Entry::Poisoned => {
                self.stats.ftl.read_failures += 1;
                out.fill(0);
                Source::Lost
            }
        }
    }

    /// A read at `at` is over; the last one out lets the eraser in.
    #[inline]
    pub(super) fn unpin(&mut self, cx: &Cx, at: u32) {
        let line = self.place.layout.line_of(at);
        let l = self.place.line_mut(line);
        l.readers -= 1;
        if l.readers == 0 && l.state == LineState::Leaving {
            self.call_eraser(cx);
        }
    }

    /// Is a sector good, by what the medium said and by its record?
    #[inline]
    fn judge(&mut self, status: Status, matches: bool) -> bool {
        self.stats.ftl.high_ecc += (status == Status::HighEcc) as u64;
        let good = status.is_ok() && (matches || mutant!("kit.read-unverified"));
        self.stats.ftl.read_failures += !good as u64;
        good
    }

    #[inline]
    fn note_read(&mut self, done: &Completion) {
        add(&mut self.stats.ftl.read_breakdown, &done.breakdown);
    }
}

fn add(sum: &mut Breakdown, part: &Breakdown) {
    let pairs: [(&mut Ns, Ns); 9] = [
        (&mut sum.link, part.link),
        (&mut sum.command, part.command),
        (&mut sum.die_read, part.die_read),
        (&mut sum.die_program, part.die_program),
        (&mut sum.die_erase, part.die_erase),
        (&mut sum.channel, part.channel),
        (&mut sum.transfer, part.transfer),
        (&mut sum.array, part.array),
        (&mut sum.retry, part.retry),
    ];
    for (sum, part) in pairs {
        *sum += part;
    }
}

/// Of a read from `lba` that lost these of its sectors.
fn outcome(lba: u32, lost: Vec<u32>) -> BlockResult {
    if lost.is_empty() {
        return Ok(());
    }
    let lost = lost.into_iter().map(|i| Lba::new((lba + i).into())).collect();
    Err(BlockError::Uncorrectable(lost))
}
