//! Page pairs: flash on which a torn program takes pages along that were there before.
//!
//! Owns: which pages are still in reach of a later program, and the padding behind them. Promises:
//! when an fsync or a checkpoint is acknowledged, no power cut can take along what it names: so many
//! pages are programmed behind it as a pair reaches. Never: does anything where pages have no pairs;
//! pads for what nobody has asked to be durable.
//!
//! As in pblk: a flush pads behind what it covers. Nodes follow the pages that they name in two
//! steps: an fsync closes the pairs of its pages before it writes its nodes, then those of its nodes;
//! a checkpoint closes all pairs before its foot.
//!
//! Padding takes the next pages of the head, in their order, so who writes to the same head goes on
//! behind it. It reads as zeros, is no node, and nothing names it: a mount, a check and a cleaner see
//! a page without content. A segment that no head fills, as a write to it failed, is padded by S-FTL.

use crate::error::Result;
use crate::format::{Addr, Nid};
use crate::fs::Fs;
use crate::segments::Close;
use crate::state::State;
use flashlane_base::mutant;
use flashlane_rt::{Cx, Join};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a flush makes durable where pages have pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Covers<'a> {
    /// The in-place region.
    Nothing,
    /// The same, and what was written of a file: its pages, and nodes that fsyncs have written.
    File(Nid),
    /// The same, and these pages.
    Pages(&'a [Addr]),
    /// All that was written.
    All,
}

impl State {
    /// A page or a node of this file lies there.
    pub(crate) fn note_in_pairs(&mut self, ino: Nid, addr: Addr) {
        if self.segments.pair_pages == 0 {
            return;
        }
        let (segment, page) = self.layout.segment_of(addr);
        let end = self.in_pairs.entry(ino).or_default().entry(segment).or_default();
        *end = (*end).max(page + 1);
    }

    /// What was written of files before `since` is durable, if its pairs are closed.
    pub(crate) fn forget_closed(&mut self, since: u64) {
        let State { in_pairs, segments, unflushed, .. } = self;
        in_pairs.retain(|_, places| {
            places.retain(|segment, end| !segments.is_closed(*segment, *end));
            !places.is_empty()
        });
        unflushed.retain(|ino, written| *written > since || in_pairs.contains_key(ino));
    }

    /// Segments whose pairs a flush closes, and up to which page of each.
    fn covered(&self, covers: Covers<'_>) -> BTreeMap<u32, u32> {
        match covers {
            Covers::Nothing => BTreeMap::new(),
            Covers::All => self.segments.in_open_pairs(),
            Covers::File(ino) => self.in_pairs.get(&ino).cloned().unwrap_or_default(),
            Covers::Pages(addrs) => {
                let mut ends = BTreeMap::new();
                for addr in addrs {
                    let (segment, page) = self.layout.segment_of(*addr);
                    let end: &mut u32 = ends.entry(segment).or_default();
                    *end = (*end).max(page + 1);
                }
                ends
            }
        }
    }
}

impl Fs {
    /// A page was programmed, or could not be.
    pub(crate) fn note_programmed(&self, cx: &Cx, addr: Addr, well: bool) {
        if well {
            self.lock().segments.programmed(addr, 1, false);
        }
        self.changed.wake(cx);
    }

    /// Pads behind what this covers, in all segments at a time.
    pub(crate) async fn close_pairs(self: &Arc<Fs>, cx: &Cx, covers: Covers<'_>) -> Result<()> {
        if mutant!("parafs.pairs-open") {
            return Ok(());
        }
        let ends = self.lock().covered(covers);
        let closing: Vec<Join<Result<()>>> = ends
            .into_iter()
            .map(|(segment, end)| {
                let (fs, theirs) = (self.clone(), cx.clone());
                cx.spawn_join(async move { fs.close_segment(&theirs, segment, end).await })
            })
            .collect();
        let mut outcome = Ok(());
        for closed in closing {
            outcome = outcome.and(closed.await);
        }
        outcome
    }

    /// Has no torn program take a page along that lies before `end` in a segment.
    async fn close_segment(self: &Arc<Fs>, cx: &Cx, segment: u32, end: u32) -> Result<()> {
        let layout = &self.sb.layout;
        loop {
            let broken = self.medium.is_broken(layout, segment);
            let close = self.lock().segments.close_pairs(segment, end, broken);
            match close {
                Close::Nothing => return Ok(()),
                Close::Pad(addr, pages) => {
                    let turn = self.channels.write(cx, addr).await;
                    let padded = self.medium.pad(cx, layout, addr, pages).await;
                    self.channels.leave(cx, turn);
                    let mut s = self.lock();
                    s.stats.padding_pages += u64::from(pages);
                    if padded.is_ok() {
                        s.segments.programmed(addr, pages, true);
                    }
                    s.segments.arrived(addr);
                    drop(s);
                    self.changed.wake(cx);
                }
                Close::Seal => {
                    let sealed = self.medium.seal(cx, layout, segment).await;
                    self.lock().segments.sealed(segment, sealed.is_ok());
                    self.changed.wake(cx);
                    sealed?;
                }
                Close::Wait => {
                    let goes_on = || {
                        let broken = self.medium.is_broken(layout, segment);
                        self.lock().segments.goes_on(segment, end, broken)
                    };
                    self.changed.wait(cx, goes_on).await;
                }
            }
        }
    }
}
