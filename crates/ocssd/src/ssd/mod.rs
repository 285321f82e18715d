//! The emulated SSD: vector commands onto the channels of a NAND medium.
//!
//! Owns: the channels, the addresses' meaning, commands in flight. Promises: payload and state
//! change at submission, in the order of the address list; the outcome is handed out when the
//! medium's time for it is over. Never: waits, and never allocates per command in steady state.
//!
//! A command takes the short lock of each channel it touches, one after the other, never two. Its
//! share of a channel is a part; the part of the channel touched last keeps the command's outcome,
//! and its name is the ticket. Where there is a [`buffer`], its lock comes first. The stages are a file each: [`decode`] turns addresses into runs of
//! neighbouring sectors or parts of page rows, `write`, `read`, `reset` and `copy` check them
//! against the rules and turn them into row operations of a die, `finish` hands out.

mod admin;
mod buffer;
mod build;
mod copy;
pub mod decode;
mod durable;
mod finish;
mod hazards;
mod identify;
mod inject;
mod power;
mod read;
mod reset;
mod rows;
mod save;
pub mod spans;
mod write;

pub use admin::{
    BadBlockTable, DEVICE_RESERVED, Event, FACTORY_BAD, GROWN_BAD, HOST_RESERVED, MEDIA_MANAGER,
    Notice,
};
pub use durable::{ImageInfo, ImagePlace};
pub use identify::Identify;
pub use power::{Cut, PowerOn};

use crate::device::{
    Cause, CellMode, ChunkInfo, Data, Device, Op, Request, Status, Ticket, Traits,
};
use crate::pipe::Pipe;
use crate::rules::{FoundChunk, Rule, Violation, Violations};
use crate::spec::{DeviceSpec, SsdOptions};
use buffer::{Behind, Buffer};
use decode::{Decoder, Run};
use durable::Durable;
use flashlane_base::{
    FastDiv, Geometry, Ns, Ppa, PpaFormat, PpaStyle, Rng, SECTOR_BYTES, VECTOR_MAX,
};
use flashlane_media::cells::{Cells, LastOp};
use flashlane_media::compact::Pool;
use flashlane_media::counters::{Counters, SlcCount};
use flashlane_media::errors::ErrorModel;
use flashlane_media::fault::{FaultKind, Faults, Hit};
use flashlane_media::store::Trouble;
use flashlane_media::timing::{ArrayOp, Timing};
use flashlane_rt::Cx;
use flashlane_rt::sync::{Mutex, MutexGuard};
use rows::{Times, flush_read};
pub use save::SaveError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use write::Payload;

/// What a command keeps until it is finished, beside its part's times.
#[derive(Default)]
struct Extra {
    failed: u64,
    status: Vec<Status>,
    /// Parts on other channels: (channel, part).
    others: Vec<(u32, u32)>,
    /// Bytes that leave the device with the completion.
    bytes_out: u64,
    /// Time that the payload took to reach the device.
    link: Ns,
    sent: bool,
    /// What of the buffer must happen first, and since when what has happened is so.
    waits: Vec<u64>,
    since: Ns,
    /// The commit of the image that it waits for; 0 is none.
    commit: u64,
}

/// A channel: its times, its cells, what it counted.
struct Chan {
    time: Timing,
    cells: Cells,
    count: Counters,
    /// What of it was done in SLC mode.
    slc: SlcCount,
    extra: Vec<Extra>,
    /// Draws of the error model, per die: reads, and wear of programs and erases.
    read_rng: Vec<Rng>,
    wear_rng: Vec<Rng>,
    /// Dies that stopped working.
    dead: Vec<bool>,
}

impl Chan {
    /// Forgets old contents whose erase has begun.
    #[inline]
    fn sweep(&mut self) {
        while let Some(name) = self.time.take_destroyed() {
            self.cells.drop_shelved(name);
        }
    }
}

/// An emulated Open-Channel SSD.
pub struct Ssd {
    spec: DeviceSpec,
    options: SsdOptions,
    geo: Geometry,
    /// Write units in the native mode, and in SLC mode.
    ws_min: FastDiv,
    slc_ws_min: FastDiv,
    row: FastDiv,
    page: FastDiv,
    decoder: Decoder,
    traits: Traits,
    times: Times,
    command: Ns,
    channels: Vec<Mutex<Chan>>,
    write_pipe: Pipe,
    read_pipe: Pipe,
    /// Open chunks on the device, when they are limited.
    open: AtomicU64,
    violations: Mutex<Violations>,
    errors: Option<ErrorModel>,
    faults: Mutex<Faults>,
    armed: AtomicBool,
    /// Operations may fail by themselves: each gets a second look.
    fragile: bool,
    notices: admin::Notices,
    cuts: AtomicU64,
    marks: Mutex<admin::Marks>,
    /// Lists of parts, for commands over several channels.
    spare: Mutex<Vec<Vec<(u32, u32)>>>,
    /// Device time at which the present power-on began; callers count from zero after each.
    epoch: AtomicU64,
    /// Spans are kept: commands say for whom they are.
    watched: AtomicBool,
    /// What the host could not do last.
    trouble: Arc<Trouble>,
    /// Contents, with the compact store.
    pool: Option<Arc<std::sync::Mutex<Pool>>>,
    /// The file that the device lives in.
    image: Option<Box<Durable>>,
    /// Where writes are acknowledged, when they are before they are programmed.
    buffer: Option<Box<Buffer>>,
    /// What is under way, where commands are checked against each other.
    hazards: hazards::Hazards,
}

impl Ssd {
    /// The spec that this device was made from.
    pub fn spec(&self) -> &DeviceSpec {
        &self.spec
    }

    /// Device time: it goes on over power cycles, while callers start at zero.
    #[inline]
    fn device_time(&self, now: Ns) -> Ns {
        now + Ns::from_ns(self.epoch.load(Ordering::Relaxed))
    }

    /// Write unit in a cell mode, in sectors.
    #[inline]
    fn write_unit_in(&self, mode: CellMode) -> FastDiv {
        match mode {
            CellMode::Native => self.ws_min,
            CellMode::Slc => self.slc_ws_min,
        }
    }

    /// Refuses an address: the status, and a violation that says why.
    #[cold]
    fn refuse(&self, cmd: &mut Command<'_>, i: usize, rule: Rule, status: Status, at: Seen) {
        cmd.fail(i, status);
        self.violations.lock().note(Violation {
            rule,
            op: cmd.op,
            ppa: cmd.addrs[i],
            at: self.decoder.format().unpack(cmd.addrs[i]),
            found: at.0,
            last_op: at.1,
            submitted: self.device_time(cmd.now),
        });
    }

    /// Refuses an address that names nothing.
    #[cold]
    fn refuse_hole(&self, cmd: &mut Command<'_>, i: usize, status_2_0: Status) {
        // 2.0 has a status per operation for what does not exist; 1.2 just calls it an error.
        let status = match self.spec.ppa {
            PpaStyle::V12 => Status::InvalidAddress,
            PpaStyle::V20 => status_2_0,
        };
        self.refuse(cmd, i, Rule::Address, status, Seen::default());
    }

    /// What the fault plan has for an operation.
    fn strike(&self, hit: Hit, run: &Run, now: Ns) -> Option<FaultKind> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        let pu = run.channel * self.geo.pus_per_channel + run.die;
        let at = self.device_time(now);
        let mut faults = self.faults.lock();
        faults.strike(hit, pu, run.chunk, run.sector, run.n, at)
    }

    /// A command that is over at once, with one status for all addresses.
    fn answer(&self, cmd: &mut Command<'_>, status: Status) -> Ticket {
        for i in 0..cmd.answers() {
            cmd.fail(i, status);
        }
        self.seal(cmd)
    }

    /// The command is submitted: keeps its outcome in its home part and names it.
    fn seal(&self, cmd: &mut Command<'_>) -> Ticket {
        let (home, part) = match cmd.home {
            Some(home) => home,
            None => {
                let mut chan = self.channels[0].lock();
                (0, open_part(&mut chan, cmd.now + self.command))
            }
        };
        let mut chan = self.channels[home as usize].lock();
        self.seal_in(&mut chan, cmd, home, part)
    }

    /// As `seal`, with the home channel's lock held.
    #[inline]
    fn seal_in(&self, chan: &mut Chan, cmd: &mut Command<'_>, home: u32, part: u32) -> Ticket {
        flush_read(chan, cmd);
        let mut ask_at = chan.time.ask_at(part, cmd.now.saturating_sub(Ns::from_ns(1)));
        let extra = &mut chan.extra[part as usize];
        extra.failed = cmd.failed;
        if cmd.failed != 0 {
            extra.status = std::mem::take(&mut cmd.status);
        }
        extra.bytes_out = cmd.bytes_out;
        extra.link = cmd.link;
        extra.sent = false;
        extra.commit = cmd.commit;
        if !cmd.waits.is_empty() {
            extra.waits = std::mem::take(&mut cmd.waits);
            extra.since = Ns::ZERO;
        }
        if !cmd.others.is_empty() {
            extra.others = std::mem::take(&mut cmd.others);
            ask_at = ask_at.max(cmd.others_ask);
        }
        let generation = chan.time.part(part).generation;
        Ticket { id: (home as u64) << 48 | (generation as u64) << 32 | part as u64, ask_at }
    }

    /// The channel of a run, locked; [`Command::part`] is on it.
    #[inline]
    fn enter<'s>(
        &'s self,
        cmd: &mut Command<'_>,
        chan: Option<MutexGuard<'s, Chan>>,
        channel: u32,
    ) -> MutexGuard<'s, Chan> {
        if let (Some((home, part)), Some(mut chan)) = (cmd.home, chan) {
            if home == channel {
                return chan;
            }
            flush_read(&mut chan, cmd);
            cmd.others_ask = cmd.others_ask.max(chan.time.ask_at(part, cmd.now));
        }
        self.move_to(cmd, channel)
    }

    /// Leaves the present home channel and enters another.
    #[inline]
    fn move_to<'s>(&'s self, cmd: &mut Command<'_>, channel: u32) -> MutexGuard<'s, Chan> {
        let mut known = None;
        if let Some((home, part)) = cmd.home.take() {
            if home == channel {
                cmd.home = Some((home, part));
                return self.channels[home as usize].lock();
            }
            if cmd.others.capacity() == 0 {
                cmd.others = self.spare.lock().pop().unwrap_or_default();
            }
            known = cmd.others.iter().position(|(c, _)| *c == channel);
            cmd.others.push((home, part));
        }
        let mut chan = self.channels[channel as usize].lock();
        chan.time.settle(cmd.now);
        chan.sweep();
        let part = match known {
            Some(at) => cmd.others.swap_remove(at).1,
            None => open_part(&mut chan, cmd.now + self.command),
        };
        if chan.time.keeps_spans() {
            chan.time.set_cause(part, cmd.cause);
        }
        (cmd.home, cmd.part) = (Some((channel, part)), part);
        chan
    }
}

/// A command while it is being submitted.
struct Command<'a> {
    op: Op,
    now: Ns,
    addrs: &'a [Ppa],
    planes: u8,
    suspend: bool,
    /// For whom, while spans are kept.
    cause: Cause,
    failed: u64,
    /// Empty until an address fails.
    status: Vec<Status>,
    bytes_out: u64,
    link: Ns,
    /// Channel and part touched last.
    home: Option<(u32, u32)>,
    /// Its part on the channel that is entered; of a write that goes into the buffer, the one behind.
    part: u32,
    others: Vec<(u32, u32)>,
    /// Latest bound of the other parts when they were left.
    others_ask: Ns,
    /// A row that is being read, while its sectors are gathered.
    row: Option<ArrayOp>,
    /// A write that is acknowledged from the buffer: sectors that it still has room for.
    room: Option<u64>,
    behind: Vec<Behind>,
    waits: Vec<u64>,
    commit: u64,
    /// What is being read lies in the buffer, and how much did.
    in_buffer: bool,
    hits: u64,
}

impl<'a> Command<'a> {
    #[inline]
    fn new(now: Ns, request: &Request<'a>) -> Command<'a> {
        Command {
            op: request.op,
            now,
            addrs: request.addrs,
            planes: request.flags.planes,
            suspend: request.flags.suspend,
            cause: Cause::User,
            failed: 0,
            status: Vec::new(),
            bytes_out: 0,
            link: Ns::ZERO,
            home: None,
            part: 0,
            others: Vec::new(),
            others_ask: Ns::ZERO,
            row: None,
            room: None,
            behind: Vec::new(),
            commit: 0,
            waits: Vec::new(),
            in_buffer: false,
            hits: 0,
        }
    }

    #[cold]
    fn fail(&mut self, i: usize, status: Status) {
        if self.status.is_empty() {
            self.status = vec![Status::Ok; self.answers()];
        }
        self.failed |= 1 << i;
        self.status[i] = status;
    }

    /// Statuses that the completion carries: one for a command without addresses, too.
    fn answers(&self) -> usize {
        self.addrs.len().clamp(1, VECTOR_MAX)
    }
}

/// What a rule found at an address: the chunk, and what was done to it last.
type Seen = (Option<FoundChunk>, (LastOp, Ns));

#[inline]
fn open_part(chan: &mut Chan, at: Ns) -> u32 {
    let part = chan.time.open_part(at);
    if chan.extra.len() <= part as usize {
        chan.extra.resize_with(part as usize + 1, Extra::default);
    }
    part
}

#[cold]
fn describe(cells: &Cells, index: u32) -> Seen {
    let chunk = cells.chunk(index);
    let found = FoundChunk {
        state: chunk.state,
        write_pointer: chunk.wp,
        length: cells.length(index),
        erases: chunk.erases,
    };
    (Some(found), (chunk.last, chunk.last_at))
}

impl Device for Ssd {
    fn geometry(&self) -> &Geometry {
        &self.geo
    }

    fn format(&self) -> &PpaFormat {
        self.decoder.format()
    }

    fn traits(&self) -> &Traits {
        &self.traits
    }

    #[inline]
    fn submit_at(&self, cx: &Cx, request: Request<'_>, arrives: Ns) -> Ticket {
        self.accept(cx.now().max(arrives), request)
    }

    #[inline]
    fn finish(&self, cx: &Cx, ticket: &mut Ticket) -> Poll<crate::device::Completion> {
        let done = self.finish_command(cx, cx.now(), ticket);
        if let (Some(under_way), true) = (&self.hazards, done.is_ready()) {
            self.ended(under_way, ticket);
        }
        done
    }

    fn expect(&self, first: Ppa, n: u32) {
        let at = self.decoder.place(first);
        // Not worth a wait for others.
        let chan = at.as_ref().and_then(|at| self.channels[at.channel as usize].try_lock());
        if let (Some(at), Some(chan)) = (&at, &chan) {
            let index = chan.cells.index(at.die, at.chunk);
            chan.cells.prefetch(index, at.sector, n);
        }
    }

    fn chunk_report(&self, pu: u32, first: u32, count: u32) -> Vec<ChunkInfo> {
        self.report(pu, first, count)
    }
}

impl Ssd {
    /// A command that arrives at `now`, which may lie ahead of the caller's clock.
    #[inline]
    fn accept(&self, now: Ns, request: Request<'_>) -> Ticket {
        if let Some(image) = &self.image {
            return self.accept_durable(image, now, request);
        }
        self.carry_out(now, request)
    }

    #[inline]
    fn carry_out(&self, now: Ns, request: Request<'_>) -> Ticket {
        match &self.hazards {
            Some(under_way) => self.carry_out_alone(under_way, now, request),
            None => self.begin(now, request),
        }
    }

    #[inline]
    fn begin(&self, now: Ns, request: Request<'_>) -> Ticket {
        let mut cmd = Command::new(now, &request);
        if self.watched.load(Ordering::Relaxed) {
            cmd.cause = spans::cause_of(&request);
        }
        let planes_ok = matches!(cmd.planes, 0 | 1 | 2 | 4) && cmd.planes as u32 <= self.geo.planes;
        let n = cmd.addrs.len();
        let counted = (1..=VECTOR_MAX).contains(&n) || request.op == Op::Flush;
        if !counted || !planes_ok {
            return self.malformed(&mut cmd);
        }
        match (request.op, request.data) {
            (Op::Write, Data::Write { content, oob, cause }) => {
                let payload = Payload { content, oob, cause, whole: request.whole_sectors };
                self.write(&mut cmd, payload, request.flags.fua)
            }
            (Op::Read, Data::Read { content, oob }) => {
                let host_fails_fast =
                    self.options.limited_retry && request.flags.cause == Cause::User;
                let retry = !(request.flags.limited_retry || host_fails_fast);
                self.read(&mut cmd, content, oob, request.whole_sectors, retry)
            }
            (Op::Reset, _) => self.reset(&mut cmd, request.flags.cell),
            (Op::Copy, _) => self.copy(&mut cmd),
            (Op::Flush, _) => self.flush(&mut cmd),
            _ => self.malformed(&mut cmd),
        }
    }

    /// No payload, or not 1 to 64 addresses: every address gets the same answer.
    fn malformed(&self, cmd: &mut Command<'_>) -> Ticket {
        self.violations.lock().note(Violation {
            rule: Rule::Vector,
            op: cmd.op,
            ppa: cmd.addrs.first().copied().unwrap_or_default(),
            at: None,
            found: None,
            last_op: Default::default(),
            submitted: self.device_time(cmd.now),
        });
        self.answer(cmd, Status::InvalidField)
    }
}

/// Bytes of a number of sectors.
#[inline]
fn bytes(sectors: usize) -> u64 {
    sectors as u64 * SECTOR_BYTES as u64
}
