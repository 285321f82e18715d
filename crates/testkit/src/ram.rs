//! A block device in memory that keeps every promise: the reference, and the harness's own test.
//!
//! Owns: durable content, and per sector the contents since the last flush. Promises: what
//! FORMAT.md promises and not a bit more: multi-sector requests tear, requests under way overlap, and a power
//! cut leaves of each unflushed sector whatever is admissible. Never: is fast.

use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::{
    BlockDev, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Started,
};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;

/// Contents of one sector that a cut may leave beside the durable one, at most.
const BUFFERED_MAX: usize = 8;

/// What a power cut leaves of an unflushed sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The flushed content.
    Oldest,
    /// Any content since, drawn per sector.
    Drawn(u64),
}

struct State {
    durable: Vec<u8>,
    /// Per sector: its contents since it was last flushed, oldest first, each with its number.
    buffered: BTreeMap<u64, Vec<(u64, Vec<u8>)>>,
    /// Contents that were put.
    puts: u64,
    rng: Rng,
}

pub struct Ram {
    info: BlockInfo,
    latency_max: Ns,
    state: Mutex<State>,
}

impl Ram {
    /// An empty device of `capacity` sectors of `content_bytes`; each step of a request takes a
    /// time drawn up to `latency_max`, so that requests overlap.
    pub fn new(capacity: u64, content_bytes: usize, latency_max: Ns, seed: u64) -> Ram {
        Ram {
            info: BlockInfo { capacity, content_bytes, layer: "ram" },
            latency_max,
            state: Mutex::new(State {
                durable: vec![0; capacity as usize * content_bytes],
                buffered: BTreeMap::new(),
                puts: 0,
                rng: Rng::stream(seed, "ram", 0),
            }),
        }
    }

    /// The power is cut. No request is under way afterwards: drop the run first.
    pub fn power_cut(&self, keep: Keep) {
        let mut s = self.state.lock();
        let mut rng = Rng::stream(if let Keep::Drawn(seed) = keep { seed } else { 0 }, "cut", 0);
        let bytes = self.info.content_bytes;
        for (at, contents) in std::mem::take(&mut s.buffered) {
            let which = match keep {
                Keep::Oldest => 0,
                Keep::Drawn(_) => rng.below(contents.len() as u64 + 1) as usize,
            };
            if which > 0 {
                let (_, content) = &contents[which - 1];
                s.durable[at as usize * bytes..][..bytes].copy_from_slice(content);
            }
        }
    }

    /// Sectors that were written since it was made.
    pub fn puts(&self) -> u64 {
        self.state.lock().puts
    }

    /// A sector is full of this byte.
    pub fn holds(&self, at: Lba, byte: u8) -> bool {
        self.content(at).iter().all(|b| *b == byte)
    }

    /// What a sector holds.
    pub fn content(&self, at: Lba) -> Vec<u8> {
        let mut content = vec![0; self.info.content_bytes];
        self.state.lock().read(at.get(), &mut content);
        content
    }

    async fn pause(&self, cx: &Cx) {
        let span = self.state.lock().rng.below(self.latency_max.as_ns() + 1);
        cx.sleep(Ns::from_ns(span)).await;
    }

    async fn serve(&self, cx: &Cx, mut io: Io<'_>) -> BlockResult {
        io.check(&self.info)?;
        let bytes = self.info.content_bytes;
        // A flush is of what was there when it was asked for.
        let there = self.state.lock().puts;
        self.pause(cx).await;
        for i in 0..io.sectors {
            let at = io.lba.get() + i as u64;
            let content = match &mut io.payload {
                Payload::Read(to) => {
                    self.state.lock().read(at, to.sector(i, bytes));
                    continue;
                }
                Payload::Write(from) => {
                    from.from(i, bytes).next().expect("as many as it says").to_vec()
                }
                Payload::None => vec![0; bytes],
            };
            self.state.lock().put(at, content);
            if i % 8 == 7 {
                self.pause(cx).await;
            }
        }
        if io.fua {
            let mut s = self.state.lock();
            (io.lba.get()..io.lba.get() + io.sectors as u64).for_each(|at| s.persist(at, u64::MAX));
        }
        self.pause(cx).await;
        if io.op == BlockOp::Flush {
            let mut s = self.state.lock();
            let all: Vec<u64> = s.buffered.keys().copied().collect();
            all.into_iter().for_each(|at| s.persist(at, there));
        }
        Ok(())
    }
}

impl State {
    fn read(&self, at: u64, out: &mut [u8]) {
        let bytes = out.len();
        match self.buffered.get(&at).and_then(|b| b.last()) {
            Some((_, content)) => out.copy_from_slice(content),
            None => out.copy_from_slice(&self.durable[at as usize * bytes..][..bytes]),
        }
    }

    fn put(&mut self, at: u64, content: Vec<u8>) {
        self.puts += 1;
        let contents = self.buffered.entry(at).or_default();
        if contents.len() == BUFFERED_MAX {
            // It may have become durable by itself, and a flush that is under way may want it.
            let (_, oldest) = contents.remove(0);
            self.durable[at as usize * oldest.len()..][..oldest.len()].copy_from_slice(&oldest);
        }
        contents.push((self.puts, content));
    }

    /// The newest of the first `puts` contents is durable.
    fn persist(&mut self, at: u64, puts: u64) {
        let Some(contents) = self.buffered.get_mut(&at) else { return };
        let count = contents.iter().take_while(|(number, _)| *number <= puts).count();
        if let Some((_, newest)) = contents.drain(..count).next_back() {
            let bytes = newest.len();
            self.durable[at as usize * bytes..][..bytes].copy_from_slice(&newest);
        }
        if contents.is_empty() {
            self.buffered.remove(&at);
        }
    }
}

pub(crate) fn range(lba: Lba, sectors: u32) -> std::ops::Range<u64> {
    lba.get()..lba.get() + sectors as u64
}

impl BlockDev for Ram {
    fn info(&self) -> &BlockInfo {
        &self.info
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(self.serve(cx, io))
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        Extent::of(&self.info, lba, most, |_| true)
    }
}
