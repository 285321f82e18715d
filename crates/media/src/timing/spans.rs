//! What dies and buses did, one span each, for whoever wants to look at it.
//!
//! Owns: [`Span`], its phases, the list of one channel. Promises: every phase that begins while a
//! list is kept is in it, until the room that all channels share is used up; then the time of the
//! first one that is not is known; a suspended operation is one span for each piece that ran. Never: changes a time.

use crate::outcome::Cause;
use flashlane_base::Ns;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a die or a bus was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The die senses a page row, read retries included.
    Sense,
    /// The die programs.
    Program,
    /// The die erases.
    Erase,
    /// The bus carries data from the die.
    ReadTransfer,
    /// The bus carries data to the die.
    WriteTransfer,
}

impl Phase {
    /// Whether the bus does it; else the die.
    pub fn on_bus(self) -> bool {
        matches!(self, Phase::ReadTransfer | Phase::WriteTransfer)
    }
}

/// One phase of one array operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub phase: Phase,
    /// For whom: the most frequent cause of the command's sectors.
    pub cause: Cause,
    /// Die on the channel.
    pub die: u32,
    /// Chunk of the die.
    pub chunk: u32,
    /// First sector in the chunk.
    pub sector: u32,
    /// Sectors.
    pub count: u32,
    /// Begins.
    pub from: Ns,
    /// Ends.
    pub to: Ns,
}

/// The spans of a channel.
#[derive(Debug)]
pub(super) struct Spans {
    list: Vec<Span>,
    /// How many more there may be, on all channels together.
    room: Arc<AtomicUsize>,
    /// The earliest span that found no room.
    cut: Option<Ns>,
    /// Where the last array span of each die is, for a suspend; `NONE` when it was not kept.
    last: Vec<usize>,
}

const NONE: usize = usize::MAX;

impl Spans {
    pub(super) fn new(dies: u32, room: Arc<AtomicUsize>) -> Spans {
        Spans { list: Vec::new(), room, cut: None, last: vec![NONE; dies as usize] }
    }

    #[cold]
    pub(super) fn add(&mut self, span: Span) {
        let less = |room: usize| room.checked_sub(1);
        let room = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !span.phase.on_bus() {
            self.last[span.die as usize] = if room { self.list.len() } else { NONE };
        }
        match room {
            true => self.list.push(span),
            false => self.cut = Some(self.cut.map_or(span.from, |cut| cut.min(span.from))),
        }
    }

    /// The array operation that a die began last is halted at `at`.
    #[cold]
    pub(super) fn halt(&mut self, die: u32, at: Ns) {
        if let Some(span) = self.list.get_mut(self.last[die as usize]) {
            span.to = at.max(span.from);
        }
    }

    pub(super) fn into_parts(self) -> (Vec<Span>, Option<Ns>) {
        (self.list, self.cut)
    }
}
