//! A host that knows what it wrote: a block device together with its oracle.
//!
//! Owns: the order begin, request, end that the oracle needs. Promises: every read is checked,
//! every refusal judged; some requests have their memory in pieces. Never: decides what to ask for; that is the workload's part.

use crate::aim::Aim;
use crate::moments::Moments;
use crate::oracle::{Oracle, Wrong};
use flashlane_base::Lba;
use flashlane_ftl::block::{
    BlockDev, BlockError, BlockOp, BlockResult, Io, Payload, Sectors, SectorsMut,
};
use flashlane_rt::Cx;
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

pub struct Host {
    dev: Arc<dyn BlockDev>,
    oracle: Arc<Oracle>,
    /// A sector whose requests are printed: how a replay is read.
    watched: Option<Lba>,
    /// The device may say that it is read-only, as one does whose medium wears out.
    may_give_up: bool,
    gave_up: Cell<bool>,
    ended: Cell<u64>,
    under_way: RefCell<Vec<(BlockOp, Lba, u32)>>,
    doing: RefCell<String>,
    moments: Option<Moments>,
    aim: Option<Arc<Aim>>,
}

impl Host {
    /// A host over a device that the oracle has followed since it was empty. With `may_give_up` the
    /// device may refuse to change anything at some time; it must go on reading.
    pub fn new(
        dev: Arc<dyn BlockDev>,
        oracle: Arc<Oracle>,
        watched: Option<Lba>,
        may_give_up: bool,
    ) -> Host {
        assert_eq!(dev.info().capacity, oracle.capacity(), "an oracle of another device");
        Host {
            dev,
            oracle,
            watched,
            may_give_up,
            gave_up: Cell::new(false),
            ended: Cell::new(0),
            under_way: RefCell::default(),
            doing: RefCell::default(),
            moments: None,
            aim: None,
        }
    }

    /// Notes when requests begin and end.
    pub fn noting(self, moments: Option<Moments>) -> Host {
        Host { moments, ..self }
    }

    /// Tells an aim when requests begin and end.
    pub(crate) fn aimed(self, aim: Option<Arc<Aim>>) -> Host {
        Host { aim, ..self }
    }

    fn note(&self, cx: &Cx, op: BlockOp, fua: bool, answered: bool) {
        if let Some(moments) = &self.moments {
            moments.note(cx.now());
        }
        if let Some(aim) = &self.aim {
            aim.host(cx, op, fua, answered);
        }
    }

    pub fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    pub fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Says what the workload is doing, for messages.
    pub fn now_doing(&self, what: String) {
        *self.doing.borrow_mut() = what;
    }

    /// What the workload is doing, and some of the requests under way.
    pub fn state(&self) -> String {
        let under_way = self.under_way.borrow();
        let some: Vec<String> = under_way
            .iter()
            .take(4)
            .map(|(op, lba, sectors)| format!("{op:?} {lba} +{sectors}"))
            .collect();
        format!(
            "{}, {} requests ended, {} under way: {}",
            self.doing.borrow(),
            self.ended.get(),
            under_way.len(),
            some.join(", ")
        )
    }

    /// True when the device has become read-only.
    pub fn has_given_up(&self) -> bool {
        self.gave_up.get()
    }

    /// Writes new content to `sectors` sectors.
    pub async fn write(
        &self,
        cx: &Cx,
        lba: Lba,
        sectors: u32,
        fua: bool,
        buf: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        buf.resize(sectors as usize * self.oracle.content_bytes(), 0);
        let update = self.oracle.begin_write(lba, fua, buf);
        let result = self.ask(cx, BlockOp::Write, lba, sectors, fua, buf).await;
        self.oracle.end_update(update, result.is_ok());
        self.judge(BlockOp::Write, lba, sectors, result)
    }

    /// Discards `sectors` sectors.
    pub async fn discard(&self, cx: &Cx, lba: Lba, sectors: u32) -> Result<(), Wrong> {
        let update = self.oracle.begin_discard(lba, sectors);
        let result = self.ask(cx, BlockOp::Discard, lba, sectors, false, &mut []).await;
        self.oracle.end_update(update, result.is_ok());
        self.judge(BlockOp::Discard, lba, sectors, result)
    }

    /// Reads and checks `sectors` sectors.
    pub async fn read(
        &self,
        cx: &Cx,
        lba: Lba,
        sectors: u32,
        buf: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        buf.resize(sectors as usize * self.oracle.content_bytes(), 0);
        buf.fill(0xa5); // a device that leaves the buffer alone is found out
        let reading = self.oracle.begin_read(lba, sectors);
        let result = self.ask(cx, BlockOp::Read, lba, sectors, false, buf).await;
        self.oracle.check_read(reading, buf, &result)
    }

    pub async fn flush(&self, cx: &Cx) -> Result<(), Wrong> {
        let flushing = self.oracle.begin_flush();
        let result = self.ask(cx, BlockOp::Flush, Lba::new(0), 0, false, &mut []).await;
        self.oracle.end_flush(flushing, result.is_ok());
        self.judge(BlockOp::Flush, Lba::new(0), 0, result)
    }

    /// Asks for what must be refused: sectors past the end, or a buffer one byte too long (of a
    /// discard nobody looks at the buffer).
    pub async fn ask_nonsense(&self, cx: &Cx, op: BlockOp, past_end: bool) -> Result<(), Wrong> {
        let past_end = past_end || op == BlockOp::Discard;
        let capacity = self.oracle.capacity();
        let sectors = 2;
        let lba = Lba::new(if past_end { capacity - 1 } else { 0 });
        let bytes = match op {
            BlockOp::Read | BlockOp::Write => sectors as usize * self.oracle.content_bytes(),
            BlockOp::Discard | BlockOp::Flush => 0,
        };
        let mut buf = vec![0; bytes + !past_end as usize];
        let result = self.ask(cx, op, lba, sectors, false, &mut buf).await;
        match result {
            Err(BlockError::Invalid { .. }) => Ok(()),
            Ok(()) => Err(Wrong::Accepted { op, lba, sectors }),
            Err(error) => Err(Wrong::Failed { op, lba, sectors, error }),
        }
    }

    async fn ask(
        &self,
        cx: &Cx,
        op: BlockOp,
        lba: Lba,
        sectors: u32,
        fua: bool,
        buf: &mut [u8],
    ) -> BlockResult {
        let unit = self.oracle.content_bytes();
        let watched = self
            .watched
            .filter(|w| sectors == 0 || (lba.get()..lba.get() + sectors as u64).contains(&w.get()));
        let begin = cx.now();
        if watched.is_some() {
            eprintln!("{:>12} begin {op:?} {lba} +{sectors} fua {fua}", begin.as_ns());
        }
        let io = Io::of(op, lba, sectors, fua, buf);
        // Every third has its memory in pieces of one to three sectors, and one of none.
        let piece = self.ended.get() as usize;
        let (mut from, mut to) = (Vec::new(), Vec::new());
        let io = match io.payload {
            Payload::Write(Sectors::One(all)) if piece % 3 == 1 => {
                from.push(IoSlice::new(&[]));
                from.extend(all.chunks(unit * (1 + piece % 5 % 3)).map(IoSlice::new));
                Io { payload: Payload::Write(Sectors::Many(&from)), ..io }
            }
            Payload::Read(SectorsMut::One(all)) if piece % 3 == 1 => {
                to.push(IoSliceMut::new(&mut []));
                to.extend(all.chunks_mut(unit * (1 + piece % 5 % 3)).map(IoSliceMut::new));
                Io { payload: Payload::Read(SectorsMut::Many(&mut to)), ..io }
            }
            payload => Io { payload, ..io },
        };
        self.under_way.borrow_mut().push((op, lba, sectors));
        self.note(cx, op, fua, false);
        let result = self.dev.start(cx, io).await;
        self.note(cx, op, fua, true);
        let mut under_way = self.under_way.borrow_mut();
        if let Some(i) = under_way.iter().position(|r| *r == (op, lba, sectors)) {
            under_way.swap_remove(i);
        }
        drop(under_way);
        self.ended.set(self.ended.get() + 1);
        if let Some(w) = watched {
            let found = match op {
                BlockOp::Read | BlockOp::Write => {
                    let at = (w.get() - lba.get()) as usize * unit;
                    buf.get(at..at + unit).map(crate::content::name)
                }
                _ => None,
            };
            let now = cx.now().as_ns();
            let content = found.map(|f| f.to_string()).unwrap_or_default();
            let begin = begin.as_ns();
            eprintln!("{now:>12}   end {op:?} {lba} +{sectors} of {begin}: {result:?} {content}");
        }
        result
    }

    /// Whether a request that changes something may end like this.
    fn judge(&self, op: BlockOp, lba: Lba, sectors: u32, result: BlockResult) -> Result<(), Wrong> {
        match result {
            Ok(()) => Ok(()),
            Err(BlockError::ReadOnly(_)) if self.may_give_up => {
                self.gave_up.set(true);
                Ok(())
            }
            Err(error) => Err(Wrong::Failed { op, lba, sectors, error }),
        }
    }
}
