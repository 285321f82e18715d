//! What dies and buses do, kept for whoever looks on.
//!
//! Owns: beginning and ending that on all channels, the cause of a command. Promises: no effect on
//! outcomes or times, and no cost but one branch per command while nobody looks.
//! Never: formats a span.

use super::Ssd;
use crate::device::{Cause, Data, Request};
use flashlane_base::Ns;
pub use flashlane_media::timing::{Phase, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Channel and span, in the order of their beginning, then channel, phase and die.
    pub spans: Vec<(u32, Span)>,
    /// Nothing that began from here on is in it: the room was used up.
    pub cut: Option<Ns>,
}

impl Ssd {
    /// Keeps a span for every phase that begins from here on, `limit` on all channels together.
    pub fn keep_spans(&self, limit: usize) {
        let room = Arc::new(AtomicUsize::new(limit));
        self.channels.iter().for_each(|c| c.lock().time.keep_spans(room.clone()));
        self.watched.store(true, Ordering::Relaxed);
    }

    /// What was kept; from here on nothing is.
    pub fn take_spans(&self) -> Kept {
        self.watched.store(false, Ordering::Relaxed);
        let mut kept = Kept::default();
        for (channel, c) in self.channels.iter().enumerate() {
            let (spans, cut) = c.lock().time.take_spans();
            kept.spans.extend(spans.into_iter().map(|s| (channel as u32, s)));
            kept.cut = [kept.cut, cut].into_iter().flatten().min();
        }
        // All channels end at the same moment; a suspend may have left an empty span.
        let cut = kept.cut.unwrap_or(Ns::MAX);
        kept.spans.retain(|(_, s)| s.from < cut && s.from < s.to);
        kept.spans.sort_by_key(|(channel, s)| (s.from, *channel, s.phase, s.die));
        kept
    }
}

/// For whom a command is: of a write the most frequent cause, the first of equals.
pub(super) fn cause_of(request: &Request<'_>) -> Cause {
    let named = request.flags.cause;
    match &request.data {
        Data::Write { cause, .. } => {
            let count = |c: Cause| cause.iter().filter(|other| **other == c).count();
            let mut most = (0, named);
            for c in cause.iter() {
                let n = count(*c);
                if n > most.0 {
                    most = (n, *c);
                }
            }
            most.1
        }
        Data::Read { .. } if named == Cause::User && request.whole_sectors => Cause::Metadata,
        _ => named,
    }
}
