//! A chunk's contents as bytes, for a device that is put away and taken out again.
//!
//! Owns: those bytes: number of records (4 bytes), the records, number of full contents (4), and for each
//! its sector (4), its length (2) and its bytes; numbers are little-endian. Promises: what is taken in behaves
//! as what was put out, and puts out the same bytes; nothing is allocated for a number that was not checked.
//! Never: knows whether a sector may be read.

use super::{Body, OOB_BYTES, SECTOR_BYTES, STAMP, Store, StoreKind, name_of};
use std::io::{self, Read, Write};

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn u32_of(from: &mut dyn Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

impl Store {
    /// Contents lie in this process's memory, as records: those of `memory` and `stamps`.
    pub fn can_save(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Puts out the first `written` sectors of a chunk, of a store that [`Store::can_save`].
    ///
    /// # Errors
    /// `out` does not take them.
    pub fn save(&self, body: &Body, written: u32, out: &mut dyn Write) -> io::Result<()> {
        debug_assert!(self.can_save());
        let records = written.min((body.segments() as u32) << self.shift);
        out.write_all(&records.to_le_bytes())?;
        let (mut full, mut buffer) = (Vec::new(), Vec::new());
        for (i, first) in (0..records).step_by(1 << self.shift).enumerate() {
            let n = (records - first).min(1 << self.shift) as usize;
            let segment = &body.segment(i)[..n * self.record];
            if !body.has_whole() {
                out.write_all(segment)?;
                continue;
            }
            // A full content's name is this store's own affair.
            buffer.clear();
            buffer.extend_from_slice(segment);
            for (sector, record) in (first..).zip(buffer.chunks_exact_mut(self.record)) {
                if body.is_whole(sector) {
                    full.push((sector, name_of(&record[..STAMP])));
                    record[..STAMP].fill(0);
                }
            }
            out.write_all(&buffer)?;
        }
        out.write_all(&(full.len() as u32).to_le_bytes())?;
        for (sector, name) in full {
            let content = &self.wholes[name as usize];
            out.write_all(&sector.to_le_bytes())?;
            out.write_all(&(content.len() as u16).to_le_bytes())?;
            out.write_all(content)?;
        }
        Ok(())
    }

    /// Takes in what [`Store::save`] put out, into a chunk that holds nothing.
    ///
    /// # Errors
    /// `from` ends before, or it makes no sense.
    pub fn load(&mut self, body: &mut Body, written: u32, from: &mut dyn Read) -> io::Result<()> {
        let records = u32_of(from)?;
        if records > written || written > self.chunk_sectors {
            return Err(wrong("a chunk has more records than were written"));
        }
        let mut at = 0;
        while at < records {
            let (memory, n) = self.span(body, at, (records - at) as usize);
            from.read_exact(memory)?;
            at += n as u32;
        }
        let full = u32_of(from)?;
        if full != 0 && self.kind != StoreKind::Stamps {
            return Err(wrong("full contents beside records that are full"));
        }
        for _ in 0..full {
            let sector = u32_of(from)?;
            let mut len = [0; 2];
            from.read_exact(&mut len)?;
            let len = u16::from_le_bytes(len) as usize;
            if sector >= records || len > SECTOR_BYTES || body.is_whole(sector) {
                return Err(wrong("a full content has no place"));
            }
            let mut content = [0; SECTOR_BYTES];
            from.read_exact(&mut content[..len])?;
            let (_, oob) = self.record(body, sector);
            let mut kept = [0; OOB_BYTES];
            kept.copy_from_slice(oob);
            self.put_whole(body, sector, &content, &kept);
        }
        Ok(())
    }
}
