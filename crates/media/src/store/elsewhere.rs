//! Contents that are not in memory's records: in a pool that keeps equal ones once, or in an image.
//!
//! Owns: the way from a chunk's sectors to the pool's names or the image's slots. Promises: all of a
//! call's sectors are taken or none; what the host said is kept for people ([`Trouble`]).
//! Never: is called for the stores in memory, which ask once per call and go on.

use super::{Body, HostFailed, OOB_BYTES, SECTOR_BYTES, STAMP, Store, StoreKind, Unread, name_of};
use crate::compact::Pool;
use crate::image::Shared;
use crate::image::sectors::{is_sound, sealed};
use crate::payload::{Gather, Scatter};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The last thing that the host could not do.
#[derive(Debug, Default)]
pub struct Trouble {
    said: Mutex<Option<String>>,
}

impl Trouble {
    /// Notes it.
    pub fn note(&self, what: impl std::fmt::Display) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_string());
    }

    /// What it was.
    pub fn last(&self) -> Option<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where contents are.
#[derive(Debug)]
pub enum Elsewhere {
    /// In a pool that all channels share.
    Compact(Arc<Mutex<Pool>>, Arc<Trouble>),
    /// In an image.
    File(Arc<Shared>, Arc<Trouble>),
}

impl Elsewhere {
    fn trouble(&self) -> &Trouble {
        match self {
            Elsewhere::Compact(_, trouble) | Elsewhere::File(_, trouble) => trouble,
        }
    }
}

fn locked(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// A store whose contents are elsewhere, for chunks of that many sectors.
    pub fn elsewhere(place: Elsewhere, chunk_sectors: u32) -> Store {
        let kind = match place {
            Elsewhere::Compact(..) => StoreKind::Compact,
            Elsewhere::File(..) => StoreKind::File,
        };
        // A name and an out-of-band record, like a stamp and one.
        let store = Store::of(kind, STAMP + OOB_BYTES, chunk_sectors);
        Store { elsewhere: Some(Box::new(place)), ..store }
    }

    #[cold]
    pub(super) fn write_elsewhere(
        &mut self,
        body: &mut Body,
        sector: u32,
        content: &Gather<'_>,
        first: usize,
        oob: &[[u8; OOB_BYTES]],
    ) -> Result<(), HostFailed> {
        let done = match self.elsewhere.as_deref() {
            Some(Elsewhere::Compact(pool, _)) => {
                let pool = pool.clone();
                self.write_pool(&pool, body, sector, content, first, oob)
            }
            Some(Elsewhere::File(image, _)) => write_slot(image, body, sector, content, first, oob),
            None => Ok(()),
        };
        done.map_err(|e| {
            self.note(&format!("cannot keep what was written: {e}"));
            HostFailed
        })
    }

    fn note(&self, what: &str) {
        if let Some(place) = &self.elsewhere {
            place.trouble().note(what);
        }
    }

    fn write_pool(
        &mut self,
        pool: &Mutex<Pool>,
        body: &mut Body,
        sector: u32,
        content: &Gather<'_>,
        first: usize,
        oob: &[[u8; OOB_BYTES]],
    ) -> io::Result<()> {
        let mut names = Vec::with_capacity(oob.len());
        {
            let mut pool = locked(pool);
            for k in 0..oob.len() {
                let (bytes, _) = content.sector(first + k).as_chunks::<SECTOR_BYTES>();
                match pool.keep(&bytes[0]) {
                    Ok(name) => names.push(name),
                    Err(e) => {
                        names.iter().for_each(|name| pool.leave(*name));
                        return Err(e);
                    }
                }
            }
        }
        for ((name, oob), at) in names.iter().zip(oob).zip(sector..) {
            let (record, _) = self.span(body, at, 1);
            record[..STAMP].copy_from_slice(&name.to_le_bytes());
            record[STAMP..].copy_from_slice(oob);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn read_elsewhere(
        &self,
        body: &Body,
        sector: u32,
        content: &mut [u8],
        oob: &mut [u8; OOB_BYTES],
    ) -> Result<(), Unread> {
        let done = match self.elsewhere.as_deref() {
            Some(Elsewhere::Compact(pool, _)) => {
                let (name, kept_oob) = self.record(body, sector);
                oob.copy_from_slice(kept_oob);
                match content.is_empty() {
                    true => Ok(()),
                    false => locked(pool).get(name_of(name), content),
                }
            }
            Some(Elsewhere::File(image, _)) => read_slot(image, body, sector, content, oob),
            None => Ok(()),
        };
        done.map_err(|e| {
            self.note(&format!("cannot read what was kept: {e}"));
            Unread::Host
        })
    }

    /// Sectors of an image, neighbours at once; false when the host could not give them.
    #[cold]
    pub(super) fn read_file(
        &self,
        body: &Body,
        sector: u32,
        place: impl Fn(usize) -> usize,
        content: &mut Scatter<'_>,
        first: usize,
        oob: &mut [[u8; OOB_BYTES]],
    ) -> bool {
        let Some(Elsewhere::File(image, _)) = self.elsewhere.as_deref() else {
            return false;
        };
        let (unit, index) = (content.unit, &content.index[first..first + oob.len()]);
        let Some(row) = content.side_by_side() else {
            return false;
        };
        let mut k = 0;
        while k < oob.len() {
            let beside = |m: &usize| {
                place(*m) == place(k) + m - k && index[*m] as usize == index[k] as usize + m - k
            };
            let n = 1 + (k + 1..oob.len()).take_while(beside).count();
            let from = index[k] as usize * unit;
            let to = &mut row[from..from + n * unit];
            let oob = oob[k..k + n].as_flattened_mut();
            if read_slot(image, body, sector + place(k) as u32, to, oob).is_err() {
                return false;
            }
            k += n;
        }
        true
    }

    #[cold]
    pub(super) fn free_elsewhere(&mut self, body: &Body) {
        match self.elsewhere.as_deref() {
            Some(Elsewhere::Compact(pool, _)) => {
                let mut pool = locked(pool);
                for segment in 0..body.segments() {
                    let records = body.segment(segment).chunks_exact(self.record);
                    records.for_each(|record| pool.leave(name_of(record)));
                }
            }
            Some(Elsewhere::File(image, _)) => {
                if let Some(slot) = body.slot() {
                    image.slots.leave(slot);
                }
            }
            None => {}
        }
    }

    #[cold]
    pub(super) fn forget_elsewhere(&mut self, body: &mut Body, from: u32, end: u32) {
        let Some(Elsewhere::Compact(pool, _)) = self.elsewhere.as_deref() else {
            return; // what lies in a slot above the pointer is nobody's
        };
        let pool = pool.clone();
        for sector in from..end {
            let (record, _) = self.span(body, sector, 1);
            locked(&pool).leave(name_of(record));
            record.fill(0);
        }
    }
}

fn write_slot(
    image: &Shared,
    body: &mut Body,
    sector: u32,
    content: &Gather<'_>,
    first: usize,
    oob: &[[u8; OOB_BYTES]],
) -> io::Result<()> {
    if image.read_only {
        return Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
    }
    let slot = match body.slot() {
        Some(slot) => slot,
        None => {
            let slot = image.slots.take(&*image.file, &image.layout)?;
            body.set_slot(slot);
            slot
        }
    };
    let (data, records) = image.layout.sector_at(slot, sector);
    match content.side_by_side(first, oob.len()) {
        Some(all) => image.file.write_at(data, all)?,
        None => {
            let each = first..first + oob.len();
            let all: Vec<&[u8]> = each.map(|i| content.sector(i)).collect();
            image.file.write_parts(data, &all)?;
        }
    }
    if !image.layout.checked {
        return image.file.write_at(records, oob.as_flattened());
    }
    let sealed = |((oob, i), sector)| sealed(body.owner(), sector, oob, content.sector(i));
    let all: Vec<_> = oob.iter().zip(first..).zip(sector..).map(sealed).collect();
    image.file.write_at(records, all.as_flattened())
}

/// Sectors side by side; an empty `content` asks for the out-of-band records alone. What it leaves
/// there when it fails means nothing.
fn read_slot(
    image: &Shared,
    body: &Body,
    sector: u32,
    content: &mut [u8],
    oob: &mut [u8],
) -> io::Result<()> {
    let Some(slot) = body.slot() else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the chunk has no slot"));
    };
    let (data, records) = image.layout.sector_at(slot, sector);
    if !content.is_empty() {
        image.file.read_at(data, content)?;
    }
    if !image.layout.checked {
        return image.file.read_at(records, oob);
    }
    let bytes = image.layout.record_bytes();
    let mut all = vec![0; oob.len() / OOB_BYTES * bytes];
    image.file.read_at(records, &mut all)?;
    let mut contents = content.chunks_exact(SECTOR_BYTES);
    let sectors = all.chunks_exact(bytes).zip(oob.chunks_exact_mut(OOB_BYTES)).zip(sector..);
    for ((record, oob), sector) in sectors {
        oob.copy_from_slice(&record[..OOB_BYTES]);
        if !is_sound(body.owner(), sector, record, contents.next().unwrap_or(&[])) {
            return Err(io::Error::other(image.damaged(slot, body.owner(), sector)));
        }
    }
    Ok(())
}
