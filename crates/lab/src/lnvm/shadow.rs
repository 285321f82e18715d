//! A file that is written to in memory only.
//!
//! Owns: [`Shadow`]. Promises: the file below is never written; reads see what was written above it.
//! Never: outlives who looks.
//!
//! A target that was not stopped can be shown as a mount finds it only by mounting it, and a mount
//! writes: it pads what could not be read otherwise. Here that goes nowhere.

use flashlane_media::host::{DiskFile, HostFile};
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

const PAGE: u64 = 4096;

/// A file with what was written above it.
pub(super) struct Shadow {
    disk: DiskFile,
    state: Mutex<State>,
}

struct State {
    /// Pages that were written.
    pages: BTreeMap<u64, Box<[u8]>>,
    /// Ranges of pages that are zeros where `pages` has nothing: the first, and the first after
    /// them. No two ranges meet.
    holes: BTreeMap<u64, u64>,
    len: u64,
    /// From here on nothing of the file counts any more.
    disk_end: u64,
}

impl State {
    fn is_hole(&self, page: u64) -> bool {
        self.holes.range(..=page).next_back().is_some_and(|(_, end)| page < *end)
    }

    /// The pages of `first..end` are zeros.
    fn make_hole(&mut self, mut first: u64, mut end: u64) {
        let mut after = self.pages.split_off(&first);
        self.pages.append(&mut after.split_off(&end));
        while let Some((from, to)) = self.holes.range(..=end).next_back().map(|(f, t)| (*f, *t)) {
            if to < first {
                break;
            }
            self.holes.remove(&from);
            (first, end) = (first.min(from), end.max(to));
        }
        self.holes.insert(first, end);
    }
}

impl Shadow {
    /// Nothing is written above `path` yet.
    pub(super) fn of(path: &Path) -> io::Result<Shadow> {
        let disk = DiskFile::open(path, false)?;
        let len = disk.len()?;
        let state = State { pages: BTreeMap::new(), holes: BTreeMap::new(), len, disk_end: len };
        Ok(Shadow { disk, state: Mutex::new(state) })
    }

    fn page(&self, state: &State, number: u64) -> io::Result<Box<[u8]>> {
        if let Some(page) = state.pages.get(&number) {
            return Ok(page.clone());
        }
        let (mut page, at) = (vec![0; PAGE as usize].into_boxed_slice(), number * PAGE);
        if !state.is_hole(number) {
            let there = state.disk_end.saturating_sub(at).min(PAGE) as usize;
            self.disk.read_at(at, &mut page[..there])?;
        }
        Ok(page)
    }

    /// Calls `change` with each page of a range, and the part of it that lies in the range.
    fn each(
        &self,
        at: u64,
        len: u64,
        mut change: impl FnMut(&mut State, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut from = at;
        while from < at + len {
            let to = (at + len).min((from / PAGE + 1) * PAGE);
            let start = (from % PAGE) as usize;
            change(&mut state, from / PAGE, start..start + (to - from) as usize)?;
            from = to;
        }
        Ok(())
    }
}

impl HostFile for Shadow {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        if at + into.len() as u64 > self.state.lock().len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        self.each(at, into.len() as u64, |state, number, part| {
            let n = part.len();
            into[done..done + n].copy_from_slice(&self.page(state, number)?[part]);
            done += n;
            Ok(())
        })
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        self.each(at, bytes.len() as u64, |state, number, part| {
            let mut page = self.page(state, number)?;
            let n = part.len();
            page[part].copy_from_slice(&bytes[done..done + n]);
            done += n;
            state.pages.insert(number, page);
            Ok(())
        })?;
        let mut state = self.state.lock();
        state.len = state.len.max(at + bytes.len() as u64);
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let end = at + len;
        let zero = |state: &mut State, number: u64, part: std::ops::Range<usize>| {
            let mut page = self.page(state, number)?;
            page[part].fill(0);
            state.pages.insert(number, page);
            Ok(())
        };
        // Whole pages are one hole, however many they are.
        let (first, last) = (at.next_multiple_of(PAGE), end / PAGE * PAGE);
        if first >= last {
            return self.each(at, len, zero);
        }
        self.each(at, first - at, zero)?;
        self.each(last, end - last, zero)?;
        self.state.lock().make_hole(first / PAGE, last / PAGE);
        Ok(())
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        state.len = state.len.max(at + len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let old = self.state.lock().len;
        if len < old {
            self.punch(len, (len.next_multiple_of(PAGE) - len).min(old - len))?;
            let mut state = self.state.lock();
            let end = len.next_multiple_of(PAGE);
            state.pages.split_off(&(end / PAGE));
            state.disk_end = state.disk_end.min(end);
        }
        self.state.lock().len = len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_file_below_stays_as_it_is() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let below: Vec<u8> = (0..10_000u32).map(|i| i as u8 | 1).collect();
        file.write_all(&below).unwrap();
        let shadow = Shadow::of(file.path()).unwrap();
        let mut model = below.clone();
        let check = |model: &[u8]| {
            let mut read = vec![7; model.len()];
            shadow.read_at(0, &mut read).unwrap();
            assert!(read == model);
            assert_eq!(shadow.len().unwrap(), model.len() as u64);
            assert!(shadow.read_at(1, &mut read).is_err());
        };
        check(&model);
        shadow.write_at(4000, &[9; 200]).unwrap();
        model[4000..4200].fill(9);
        check(&model);
        shadow.write_at(9_990, &[8; 20]).unwrap();
        model.truncate(9_990);
        model.extend([8; 20]);
        check(&model);
        shadow.punch(100, 9_000).unwrap();
        model[100..9_100].fill(0);
        check(&model);
        shadow.write_at(4_500, &[6; 9]).unwrap();
        model[4_500..4_509].fill(6);
        check(&model);
        shadow.allocate(12_000, 1000).unwrap();
        model.resize(13_000, 0);
        check(&model);
        for len in [5_000, 9_000, 0, 10_000] {
            shadow.set_len(len).unwrap();
            model.resize(len as usize, 0);
            check(&model);
        }
        assert!(std::fs::read(file.path()).unwrap() == below);
    }
}
