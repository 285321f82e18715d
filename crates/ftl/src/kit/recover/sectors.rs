//! Reading sectors of a device that is being mounted.
//!
//! Owns: the read commands of a mount and their repetition, at once ([`TRIES`]) and over time
//! ([`records_again`], [`Candidates`]). Promises: what it returns as good is what its record says;
//! a fault that comes and goes, or lasts less than a second, decides nothing; what the host could
//! not give is noted ([`Medium::host_failed`]). Never: judges what could not be read.

use flashlane_base::{OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, Completion, Device, Flags, Request};
use flashlane_ocssd::device::{Scatter, Status};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::sync::Arc;

use super::super::pages::PAGE_BYTES;
use super::super::place::Layout;
use super::super::read;
use crate::log::format::{LBA_SNAPSHOT, Oob};
use crate::patience::read_again;

/// Reads of a sector before it counts as unreadable: a fault that comes and goes must not decide
/// what a device holds.
const TRIES: u32 = 8;

/// Sectors that are tried as often in each round over time; of more, each is tried once in a round.
const FEW: usize = 1024;

/// What a mount reads from, and whether the host gave all of it.
#[derive(Clone)]
pub(super) struct Medium {
    pub(super) device: Arc<dyn Device>,
    pub(super) layout: Layout,
    /// The first sector that the host could not give, so no try says what it holds, or take as
    /// padding.
    host_failed: Arc<Mutex<Option<u32>>>,
}

impl Medium {
    pub(super) fn new(device: Arc<dyn Device>, layout: Layout) -> Medium {
        Medium { device, layout, host_failed: Arc::default() }
    }

    /// Notes the first physical sector of a command, `ats`, that the host could not give or take.
    pub(super) fn note_refusal(&self, done: &Completion, ats: &[u32]) {
        if done.failed == 0 {
            return;
        }
        let failed = (0..).zip(ats).find(|(k, _)| done.status(*k) == Status::HostFault);
        if let Some((_, at)) = failed {
            self.host_failed.lock().get_or_insert(*at);
        }
    }

    /// The first physical sector that the host could not give or take.
    pub(super) fn host_failed(&self) -> Option<u32> {
        *self.host_failed.lock()
    }
}

/// Reads up to a vector of physical sectors, `unit` bytes of content each (0: records alone), `whole` as
/// pages are kept: completion, contents, records.
async fn read_sectors(
    cx: &Cx,
    medium: &Medium,
    ats: impl Iterator<Item = u32>,
    (unit, whole): (usize, bool),
) -> (Completion, Vec<u8>, Vec<[u8; OOB_BYTES]>) {
    let (device, layout) = (&*medium.device, &medium.layout);
    let ats: Vec<u32> = ats.collect();
    let addrs: Vec<Ppa> = ats.iter().map(|at| device.format().pack(layout.location(*at))).collect();
    let index: Vec<u32> = (0..addrs.len() as u32).collect();
    let mut oob = vec![[0; OOB_BYTES]; addrs.len()];
    let mut bytes = vec![0; addrs.len() * unit];
    let content = Scatter::new(&mut bytes, &index, unit);
    let flags = Flags { cause: Cause::Metadata, ..Flags::default() };
    let request = Request::read(&addrs, content, &mut oob).with(flags).whole(whole);
    let done = device.io(cx, request).await;
    medium.note_refusal(&done, &ats);
    (done, bytes, oob)
}

/// A record that could be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// A logical sector, or a type.
    pub(super) lba: u64,
    pub(super) stamp: u64,
    /// What it says of another chunk ([`super::super::witness`]).
    pub(super) tag: u8,
}

/// Records of up to a vector of sectors, `None` where one can't be read.
pub(super) async fn read_records(cx: &Cx, medium: &Medium, ats: &[u32]) -> Vec<Option<Record>> {
    try_records(cx, medium, ats, TRIES).await
}

/// Reads the records of these sectors once more, which could not be read, and again after a while,
/// as long as a mount has patience. Returns what could be read: (physical sector, record).
pub(super) async fn records_again(
    cx: &Cx,
    medium: &Medium,
    failed: Vec<u32>,
) -> Vec<(u32, Record)> {
    let mut found = Vec::new();
    if mutant!("kit.mount-without-patience") {
        return found;
    }
    read_again(cx, failed, async |left: Vec<u32>| {
        let tries = if left.len() <= FEW { TRIES } else { 1 };
        let mut still = Vec::new();
        for part in left.chunks(VECTOR_MAX) {
            let records = try_records(cx, medium, part, tries).await;
            for (at, record) in part.iter().zip(records) {
                match record {
                    Some(record) => found.push((*at, record)),
                    None => still.push(*at),
                }
            }
        }
        still
    })
    .await;
    found
}

async fn try_records(cx: &Cx, medium: &Medium, ats: &[u32], tries: u32) -> Vec<Option<Record>> {
    let mut records = vec![None; ats.len()];
    let mut left: Vec<usize> = (0..ats.len()).collect();
    for _ in 0..tries {
        let now = left.iter().map(|i| ats[*i]);
        let (done, _, oob) = read_sectors(cx, medium, now, (0, false)).await;
        let mut again = Vec::new();
        for (k, i) in left.iter().enumerate() {
            let unwritten = oob[k] == [0xff; OOB_BYTES];
            match done.status(k).is_ok() && !unwritten {
                true => records[*i] = Some(record_of(&oob[k])),
                false if done.status(k) == Status::Uncorrectable => again.push(*i),
                false => {}
            }
        }
        left = again;
        if left.is_empty() || mutant!("kit.records-read-once") {
            break;
        }
    }
    records
}

fn record_of(oob: &[u8; OOB_BYTES]) -> Record {
    let (raw, stamp, _) = Oob::decode_raw(oob);
    let (lba, tag) = Oob::split_tag(raw);
    Record { lba, stamp, tag }
}

/// Which of these copies of host sectors, (logical, physical) each, are what their records say.
pub(super) async fn verify(
    cx: &Cx,
    medium: &Medium,
    content_bytes: usize,
    copies: &[(u32, u32)],
) -> Vec<bool> {
    let mut good = vec![false; copies.len()];
    for (part, good) in copies.chunks(VECTOR_MAX).zip(good.chunks_mut(VECTOR_MAX)) {
        for _ in 0..TRIES {
            let ats = part.iter().map(|(_, at)| *at);
            let unit = (content_bytes, false);
            let (done, bytes, oob) = read_sectors(cx, medium, ats, unit).await;
            for (i, (lba, _)) in part.iter().enumerate() {
                let content = &bytes[i * content_bytes..(i + 1) * content_bytes];
                good[i] |= done.status(i).is_ok() && read::is_of(&oob[i], *lba, content);
            }
            if good.iter().all(|good| *good) {
                break;
            }
        }
    }
    good
}

/// The bytes of a page, if they and its record are whole.
pub(super) async fn read_page(cx: &Cx, medium: &Medium, at: u32) -> Option<Vec<u8>> {
    for _ in 0..TRIES {
        let ats = std::iter::once(at);
        let (done, bytes, oob) = read_sectors(cx, medium, ats, (PAGE_BYTES, true)).await;
        if done.status(0).is_ok() && Oob::verify_crc(&oob[0], read::content_crc(&bytes)) {
            return Some(bytes);
        }
    }
    None
}

/// The same of up to a vector of pages, read at once.
pub(super) async fn read_pages(cx: &Cx, medium: &Medium, ats: &[u32]) -> Vec<Option<Vec<u8>>> {
    let of = ats.iter().copied();
    let (done, bytes, oob) = read_sectors(cx, medium, of, (PAGE_BYTES, true)).await;
    let page = |i: usize| {
        let bytes = &bytes[i * PAGE_BYTES..(i + 1) * PAGE_BYTES];
        let whole = done.status(i).is_ok() && Oob::verify_crc(&oob[i], read::content_crc(bytes));
        whole.then(|| bytes.to_vec())
    };
    (0..ats.len()).map(page).collect()
}

/// The bytes of up to a vector of a snapshot's sectors; `None` for what is no such sector, or not
/// whole.
pub(super) async fn read_snapshot(cx: &Cx, medium: &Medium, ats: &[u32]) -> Vec<Option<Vec<u8>>> {
    let mut found = vec![None; ats.len()];
    let mut left: Vec<usize> = (0..ats.len()).collect();
    for _ in 0..TRIES {
        if left.is_empty() {
            break;
        }
        let now = left.iter().map(|i| ats[*i]);
        let (done, bytes, oob) = read_sectors(cx, medium, now, (PAGE_BYTES, true)).await;
        let mut again = Vec::new();
        for (k, i) in left.iter().enumerate() {
            let sector = &bytes[k * PAGE_BYTES..(k + 1) * PAGE_BYTES];
            let typed = Oob::decode_raw(&oob[k]).0 == LBA_SNAPSHOT;
            match done.status(k).is_ok() {
                true if typed && Oob::verify_crc(&oob[k], read::content_crc(sector)) => {
                    found[*i] = Some(sector.to_vec());
                }
                true if typed => again.push(*i),
                true => {}
                false if done.status(k) == Status::Uncorrectable => again.push(*i),
                false => {}
            }
        }
        left = again;
    }
    found
}
