//! Requests with the latencies that their completions tell.
//!
//! Owns: finding the completion of a request in a trace of events. Promises: requests come in the
//! order of the trace, each once; at most [`WINDOW_MAX`] of them wait for their completions, then
//! the oldest goes on without. Never: changes anything but a latency.
//!
//! A completion belongs to the oldest open request of the same device, operation, place and length.
//! A request that was merged into another never completes under its own extent.

use crate::device::DeviceId;
use crate::reader::Reader;
use crate::record::Action;
use crate::record::{TraceError, TraceOp, TraceRecord};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Requests between issue and completion that are remembered.
pub const WINDOW_MAX: usize = 1 << 16;

type Key = (DeviceId, TraceOp, u64, u64);

fn key(r: &TraceRecord) -> Key {
    (r.device, r.op, r.offset_bytes, r.len_bytes)
}

/// Open requests, found by what their completion says.
#[derive(Default)]
pub struct Open {
    /// When each was made; of two alike the lower number comes first.
    made_ns: BTreeMap<(Key, u64), u64>,
}

impl Open {
    /// A request was made: its number, which grows, and is given back when it completes.
    pub fn made(&mut self, r: &TraceRecord, number: u64) {
        self.made_ns.insert((key(r), number), r.ts_ns);
    }

    /// A completion: number and latency of its request, if that is open.
    pub fn completed(&mut self, r: &TraceRecord) -> Option<(u64, u64)> {
        let key = key(r);
        let found = self.made_ns.range((key, 0)..=(key, u64::MAX)).next();
        let (number, made_ns) = found.map(|((_, number), ns)| (*number, *ns))?;
        self.forget(r, number);
        Some((number, r.ts_ns.saturating_sub(made_ns)))
    }

    pub fn len(&self) -> usize {
        self.made_ns.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.made_ns.is_empty()
    }

    fn forget(&mut self, r: &TraceRecord, number: u64) {
        self.made_ns.remove(&(key(r), number));
    }
}

/// Records of one action, with latencies.
pub struct Paired {
    reader: Reader,
    action: Action,
    device: Option<DeviceId>,
    open: Open,
    /// Requests that are not given out yet, and whether they still wait.
    window: VecDeque<(TraceRecord, bool)>,
    /// Number of the first one in the window.
    first: u64,
    ended: bool,
    /// What the record wrote that comes next, or was given out last.
    content: Option<Bytes>,
}

impl Paired {
    /// Records of `action`, of one device or all.
    pub fn new(reader: Reader, action: Action, device: Option<DeviceId>) -> Paired {
        Paired {
            reader,
            action,
            device,
            open: Open::default(),
            window: VecDeque::new(),
            first: 0,
            ended: false,
            content: None,
        }
    }

    /// What the record wrote that was given out last, where that is read and known.
    pub fn content(&mut self) -> Option<Bytes> {
        self.content.take()
    }

    /// The next record, `None` at the end.
    pub fn advance(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        loop {
            let go = self.window.front().is_some_and(|(_, waits)| !waits);
            if go || self.ended || self.window.len() > WINDOW_MAX {
                let Some((record, waits)) = self.window.pop_front() else {
                    return Ok(None);
                };
                if waits {
                    self.open.forget(&record, self.first);
                }
                self.first += 1;
                return Ok(Some(record));
            }
            match self.reader.next_event()? {
                None => self.ended = true,
                Some((Action::Completed, done)) => {
                    if let Some((number, latency)) = self.open.completed(&done) {
                        let at = (number - self.first) as usize;
                        self.window[at] =
                            (TraceRecord { latency_ns: Some(latency), ..self.window[at].0 }, false);
                    }
                }
                Some((action, r)) if action == self.action => {
                    if self.device.is_some_and(|d| d != r.device) {
                        continue;
                    }
                    // A format with a line per request has no completions to wait for.
                    let waits = action != Action::Only;
                    match waits {
                        true => self.open.made(&r, self.first + self.window.len() as u64),
                        // It is the next one that is given out.
                        false => self.content = self.reader.content(),
                    }
                    self.window.push_back((r, waits));
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Reading;
    use crate::source::TraceSource;

    fn paired(text: &'static str, action: Action) -> Vec<(u64, Option<u64>)> {
        let source = TraceSource::Bundled { name: "t", bytes: text.as_bytes() };
        let reader = Reader::open(&source, &Reading::default()).unwrap();
        let mut p = Paired::new(reader, action, None);
        let all = std::iter::from_fn(|| p.advance().unwrap());
        all.map(|r| (r.ts_ns, r.latency_ns)).collect()
    }

    #[test]
    fn completions_give_latencies_and_order_stays() {
        let text = "1 D read 0 4096 1.0\n1 D read 4096 4096 2.0\n1 C read 4096 4096 2.5\n\
                    1 D write 0 4096 3.0\n1 C read 0 4096 4.0\n";
        let s = 1_000_000_000;
        let want = [(s, Some(3 * s)), (2 * s, Some(s / 2)), (3 * s, None)];
        assert_eq!(paired(text, Action::Issued), want);
    }

    #[test]
    fn of_two_alike_the_older_completes_first_and_flushes_have_latencies() {
        let text = "8,0 0 1 0.1 9 D R 8 + 8 [a]\n8,0 0 1 0.2 9 D R 8 + 8 [a]\n\
                    8,0 0 1 0.3 9 C R 8 + 8 [0]\n8,0 0 1 0.4 9 D FN [a]\n8,0 0 1 0.6 9 C FN 0 [0]\n";
        let ms = 1_000_000;
        let want = [(100 * ms, Some(200 * ms)), (200 * ms, None), (400 * ms, Some(200 * ms))];
        assert_eq!(paired(text, Action::Issued), want);
    }

    #[test]
    fn a_format_with_a_line_per_request_passes_through() {
        assert_eq!(paired("5 0 0 8 0\n6 0 0 8 1\n", Action::Only), [(5, None), (6, None)]);
    }
}
