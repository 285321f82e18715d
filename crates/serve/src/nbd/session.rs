//! A client's requests.
//!
//! Owns: the order of things on a connection: handshake, requests, the end. Promises: requests are
//! done side by side, and answered as they end; what a client has in flight is bounded
//! ([`crate::room`]), and so is what it may do before others have their turn; where its door is
//! short of memory a long request is done alone, in pieces. Never: gives up a request that has
//! begun, but for zeros that are written for nobody.

use super::handshake::{self, Agreed};
use super::input::Input;
use super::output::Output;
use super::wire::{self, Piece, Request, command, error, flag};
use super::{BYTES_MAX, HANDSHAKE_MAX, PARTING};
use crate::export::zero_pieces;
use crate::room::{Grant, MOST, Pool};
use crate::seats::Seat;
use crate::stop::first;
use crate::{Client, Export, Failure, Stop};
use flashlane_base::{Ns, SECTOR_BYTES, mutant};
use flashlane_ftl::block::Extent;
use flashlane_rt::Cx;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Requests of a client in a row before others have their turn.
const IN_A_ROW: u32 = 16;
/// Extents in a reply at most, and bytes that are looked at for it: others wait meanwhile.
const EXTENTS: usize = 1 << 10;
const LOOKED_AT: u32 = 1 << 30;
/// Bytes of that reply at most.
const STATUS_BYTES: usize = 24 + 8 * EXTENTS;
/// So many bytes are discarded with the work of one that is read or written.
const DISCARDED: u64 = 256;

struct Session {
    export: Arc<Export>,
    structured: bool,
    allocation: bool,
    output: Output,
}

/// Serves a client to its end.
///
/// # Errors
/// The connection failed.
pub(super) async fn run(
    cx: &Cx,
    client: Client,
    exports: &[Arc<Export>],
    stop: &Arc<Stop>,
    pool: Arc<Pool>,
    seat: Option<&Seat>,
) -> io::Result<()> {
    let socket = Rc::new(cx.watch(client)?);
    let mut input = Input::new(socket.clone());
    let patience = if mutant!("serve.handshake-endless") { Ns::MAX } else { HANDSHAKE_MAX };
    let talk = first(handshake::agree(&mut input, exports), cx.sleep(patience));
    let Some(Ok(agreed)) = stop.unless_up(cx, unless_wanted(seat, talk)).await else {
        return Ok(());
    };
    let Ok(agreed) = agreed else { return Ok(()) };
    let Some(Agreed { export, structured, allocation }) = agreed? else { return Ok(()) };
    seat.iter().for_each(|seat| seat.settles());
    let output = Output::new(socket, pool);
    let session = Rc::new(Session { export, structured, allocation, output });
    let (theirs, writer_cx) = (session.clone(), cx.clone());
    let writer = cx.spawn_join(async move {
        let _ = theirs.output.write(&writer_cx).await;
        // Whoever still has a reply for it drops that.
        theirs.output.end(&writer_cx);
    });
    let requests = unless_wanted(seat, session.take_requests(cx, &mut input, seat));
    let ended = stop.unless_up(cx, requests).await.and_then(Result::ok);
    // Every request that has begun ends, and has its reply sent while there is somebody to take it.
    while first(session.output.all_room(cx), cx.sleep(PARTING)).await.is_err() {
        session.output.hurry();
        // The device may take its time. A client that does not take what is there is not waited for.
        if session.output.has_waiting() {
            session.output.end(cx);
            session.output.all_room(cx).await;
            break;
        }
    }
    session.output.end(cx);
    writer.await;
    ended.unwrap_or(Ok(()))
}

/// What `work` comes to, unless the seat is another's before.
async fn unless_wanted<T>(seat: Option<&Seat>, work: impl Future<Output = T>) -> Result<T, ()> {
    match seat {
        Some(seat) => first(work, seat.is_wanted()).await,
        None => Ok(work.await),
    }
}

/// Tells a client that there is no seat for it.
pub(super) async fn refuse(cx: &Cx, client: Client) -> io::Result<()> {
    let mut input = Input::new(Rc::new(cx.watch(client)?));
    handshake::refuse(&mut input).await
}

impl Session {
    /// Takes requests and begins them, until the client ends.
    async fn take_requests(
        self: &Rc<Self>,
        cx: &Cx,
        input: &mut Input,
        seat: Option<&Seat>,
    ) -> io::Result<()> {
        let mut in_a_row = 0;
        let is_idle = Cell::new(true);
        let idles = |to: bool| {
            if let Some(seat) = seat
                && is_idle.replace(to) != to
            {
                seat.idles(to);
            }
        };
        loop {
            idles(!input.has(Request::BYTES));
            let Some(head) = input.take(Request::BYTES).await? else { return Ok(()) };
            // Behind another magic nothing can be made sense of.
            let Some(request) = Request::decode(head) else { return Ok(()) };
            idles(false);
            if request.command == command::DISCONNECT {
                return Ok(());
            }
            if request.command == command::WRITE && request.bytes > BYTES_MAX {
                return Ok(()); // nobody reads so much to throw it away
            }
            // A client that takes no replies lets the door wait.
            idles(self.output.has_waiting());
            let wants = room_of(&request, copies(&self.export));
            let room = match wants {
                Wants::Data(sectors) => self.output.take_room(cx, sectors).await,
                Wants::Work(sectors) => self.output.take_work(cx, sectors).await,
            };
            let is_short = matches!(wants, Wants::Data(sectors) if room.sectors() < sectors);
            if is_short && !mutant!("serve.room-unbounded") {
                let bytes = room.sectors() * SECTOR_BYTES as u64 / copies(&self.export);
                let long =
                    Long { of: self.clone(), cx: cx.clone(), room: Some(room.keep()), bytes };
                idles(true);
                self.output.alone(cx).await;
                match request.command {
                    command::WRITE => long.take_write(cx, &request, input).await?,
                    _ => cx.spawn_join(long.answer_read(request)).await,
                }
                if self.output.is_over() {
                    return Ok(());
                }
                continue;
            }
            let mut buffer = Vec::new();
            if request.command == command::WRITE {
                buffer = self.output.buffers().take(request.bytes as usize);
                if !input.fill(&mut buffer).await? {
                    return Ok(());
                }
            }
            let (me, theirs, room) = (self.clone(), cx.clone(), room.keep());
            cx.spawn(async move { me.answer(&theirs, request, buffer, room).await });
            in_a_row += 1;
            if in_a_row >= IN_A_ROW && input.has(Request::BYTES) {
                in_a_row = 0;
                cx.yield_now().await;
            }
        }
    }

    /// Does a request and sends the reply. `buffer` has the data of a write.
    async fn answer(&self, cx: &Cx, request: Request, mut buffer: Vec<u8>, room: Grant) {
        let done = match self.check(&request) {
            Ok(()) => self.perform(cx, &request, &mut buffer).await,
            refused => refused,
        };
        let gives = matches!(request.command, command::READ | command::BLOCK_STATUS);
        if !gives || done.is_err() {
            // The data of a write keeps its length for the next one.
            self.output.buffers().keep(std::mem::take(&mut buffer));
            match done {
                Ok(()) => wire::put_done(&mut buffer, request.cookie),
                Err((number, why)) => {
                    let structured = self.structured;
                    wire::put_error(&mut buffer, request.cookie, number, &why, structured);
                }
            }
        }
        self.output.send(cx, buffer, room);
    }

    /// Whether a request makes sense.
    fn check(&self, request: &Request) -> Result<(), (u32, String)> {
        let Request { flags, command, offset, bytes, .. } = *request;
        let known = match command {
            command::READ if self.structured => flag::FUA | flag::DF,
            command::BLOCK_STATUS => flag::FUA | flag::REQ_ONE,
            command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            _ => flag::FUA,
        };
        if flags & !known != 0 {
            return Err((error::INVALID, format!("flags {flags:#x} make no sense here")));
        }
        if command == command::FLUSH {
            return Ok(());
        }
        let changes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if changes && self.export.is_read_only() {
            return Err((error::NOT_PERMITTED, "this disk is served read-only".into()));
        }
        self.export.check(offset, bytes.into()).map_err(|failure| {
            // Only where data would have needed room is it room that lacks.
            let needs_room = matches!(command, command::WRITE | command::WRITE_ZEROES)
                || command == command::TRIM && mutant!("serve.trim-no-space");
            let is_beyond = failure == Failure::Beyond && needs_room;
            let number = if is_beyond { error::NO_SPACE } else { error::INVALID };
            (number, format!("{bytes} bytes at {offset}: {failure}"))
        })?;
        match command {
            _ if bytes == 0 => Err((error::INVALID, "no bytes".into())),
            command::READ if bytes > BYTES_MAX => {
                Err((error::INVALID, format!("longer than {BYTES_MAX} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// What a request that makes sense comes to; `buffer` is the whole reply then to one that gives
    /// something.
    async fn perform(
        &self,
        cx: &Cx,
        request: &Request,
        buffer: &mut Vec<u8>,
    ) -> Result<(), (u32, String)> {
        let Request { flags, command, offset, bytes, .. } = *request;
        let export = &*self.export;
        let fua = flags & flag::FUA != 0;
        let done = match command {
            command::FLUSH => return export.flush(cx).await.map_err(failed),
            command::READ => {
                let head = wire::read_head_bytes(self.structured);
                *buffer = self.output.buffers().take(head + bytes as usize);
                let read = export.read(cx, offset, &mut buffer[head..]).await;
                let piece = Piece { offset, bytes, is_last: true };
                wire::put_read_head(buffer, request, self.structured, piece);
                read
            }
            command::BLOCK_STATUS if !self.allocation => {
                return Err((error::INVALID, "no context was agreed on".into()));
            }
            command::BLOCK_STATUS => {
                let one = flags & flag::REQ_ONE != 0;
                let extents = extents(export, offset, bytes, if one { 1 } else { EXTENTS });
                wire::put_block_status(buffer, request.cookie, &extents);
                Ok(())
            }
            command::WRITE => return export.write(cx, offset, buffer, fua).await.map_err(failed),
            command::TRIM => export.discard(cx, offset, bytes.into()).await,
            command::WRITE_ZEROES if flags & flag::NO_HOLE == 0 => {
                export.discard(cx, offset, bytes.into()).await
            }
            command::WRITE_ZEROES if flags & flag::FAST_ZERO != 0 => {
                let why = "zeros that have a place on the medium are not written fast";
                return Err((error::NOT_SUPPORTED, why.into()));
            }
            command::WRITE_ZEROES => return self.write_zeros(cx, offset, bytes.into(), fua).await,
            _ => return Err((error::INVALID, format!("command {command} is not known here"))),
        };
        done.map_err(failed)?;
        // A discard with FUA is durable when it is answered; only writes below have a FUA of their own.
        let changes = matches!(command, command::TRIM | command::WRITE_ZEROES);
        let fua = fua && !mutant!("serve.trim-fua-ignored");
        if fua && changes { export.flush(cx).await.map_err(failed) } else { Ok(()) }
    }

    /// Zeros may be as long as the device: where nobody waits for them any more they end early.
    async fn write_zeros(
        &self,
        cx: &Cx,
        offset: u64,
        bytes: u64,
        fua: bool,
    ) -> Result<(), (u32, String)> {
        for piece in zero_pieces(offset, bytes) {
            if self.output.is_in_vain() {
                return Err((error::SHUTDOWN, "given up".into()));
            }
            let bytes = piece.end - piece.start;
            self.export.write_zeros(cx, piece.start, bytes).await.map_err(failed)?;
        }
        let fua = fua && !mutant!("serve.zeros-fua-ignored");
        if fua { self.export.flush(cx).await.map_err(failed) } else { Ok(()) }
    }
}

/// A read or write that there is no memory for but a piece at a time. It is its client's only
/// request.
struct Long {
    of: Rc<Session>,
    cx: Cx,
    /// What it has of its door's memory, until it is answered.
    room: Option<Grant>,
    /// Bytes of a piece.
    bytes: u64,
}

impl Drop for Long {
    fn drop(&mut self) {
        if let Some(room) = self.room.take() {
            self.of.output.drop_room(&self.cx, room);
        }
    }
}

impl Long {
    /// Replies, or fails.
    fn reply(mut self, request: &Request, done: Result<(), (u32, String)>) {
        let mut reply = Vec::new();
        match done {
            Ok(()) => wire::put_done(&mut reply, request.cookie),
            Err((number, why)) => {
                wire::put_error(&mut reply, request.cookie, number, &why, self.of.structured);
            }
        }
        let room = self.room.take().unwrap_or_default();
        self.of.output.send(&self.cx, reply, room);
    }

    /// The parts of a request: where each begins in it, and its bytes.
    fn parts(&self, request: &Request) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (all, each) = (u64::from(request.bytes), self.bytes);
        (0..all).step_by(each as usize).map(move |at| (at, each.min(all - at)))
    }

    /// Takes the data of a write off the socket, has each piece of it written before the next
    /// comes, and replies.
    async fn take_write(self, cx: &Cx, request: &Request, input: &mut Input) -> io::Result<()> {
        let mut done = self.of.check(request);
        let fua = request.flags & flag::FUA != 0;
        let me = Rc::new(self);
        for (at, bytes) in me.parts(request) {
            let mut buffer = me.of.output.buffers().take(bytes as usize);
            if !input.fill(&mut buffer).await? {
                return Ok(());
            }
            if done.is_err() {
                continue;
            }
            let (theirs, offset) = (me.clone(), request.offset + at);
            // A write that has begun ends, also where the client is given up meanwhile.
            let write = cx.spawn_join(async move {
                let Long { of, cx, .. } = &*theirs;
                let written = of.export.write(cx, offset, &buffer, fua).await.map_err(failed);
                of.output.buffers().keep(buffer);
                written
            });
            done = write.await;
        }
        if let Some(me) = Rc::into_inner(me) {
            me.reply(request, done);
        }
        Ok(())
    }

    /// Reads and sends a piece after another. Where one can't be read and the head of the reply is
    /// sent already, there is no way to say so but to end the connection; replies in chunks have
    /// one.
    async fn answer_read(mut self, request: Request) {
        if let Err(refused) = self.of.check(&request) {
            return self.reply(&request, Err(refused));
        }
        let (of, cx) = (self.of.clone(), self.cx.clone());
        let in_chunks = of.structured && request.flags & flag::DF == 0;
        for (at, bytes) in self.parts(&request) {
            let has_head = in_chunks || at == 0;
            let head = if has_head { wire::read_head_bytes(of.structured) } else { 0 };
            let mut buffer = of.output.buffers().take(head + bytes as usize);
            let offset = request.offset + at;
            let read = of.export.read(&cx, offset, &mut buffer[head..]).await;
            match read.map_err(failed) {
                Err(failure) if has_head => return self.reply(&request, Err(failure)),
                Err(_) => return of.output.end(&cx),
                Ok(()) => {}
            }
            let is_last = at + bytes == u64::from(request.bytes);
            if has_head {
                let announced = if in_chunks { bytes as u32 } else { request.bytes };
                let piece = Piece { offset, bytes: announced, is_last: is_last || !in_chunks };
                wire::put_read_head(&mut buffer, &request, of.structured, piece);
            }
            if is_last {
                let room = self.room.take().unwrap_or_default();
                of.output.send(&cx, buffer, room);
            } else if !of.output.send_piece(&cx, buffer).await {
                return;
            }
        }
    }
}

/// What a request takes of its client's room, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    /// Memory for its data or its reply.
    Data(u64),
    /// As much work as that.
    Work(u64),
}

/// A request that begins or ends within a sector is copied on its way.
fn copies(export: &Export) -> u64 {
    if export.sector_bytes() as usize == SECTOR_BYTES { 1 } else { 2 }
}

fn room_of(request: &Request, copies: u64) -> Wants {
    let bytes = u64::from(request.bytes.min(BYTES_MAX));
    let sectors = |bytes: u64| bytes.div_ceil(SECTOR_BYTES as u64).clamp(1, MOST);
    match request.command {
        command::READ | command::WRITE => Wants::Data(sectors(bytes * copies)),
        command::WRITE_ZEROES if request.flags & flag::NO_HOLE != 0 => Wants::Work(sectors(bytes)),
        command::TRIM | command::WRITE_ZEROES => {
            Wants::Work(sectors(u64::from(request.bytes) / DISCARDED))
        }
        command::BLOCK_STATUS if request.flags & flag::REQ_ONE == 0 => {
            Wants::Data(sectors(STATUS_BYTES as u64))
        }
        _ => Wants::Data(1),
    }
}

/// Extents from the first of these bytes on, so many at most.
fn extents(export: &Export, offset: u64, bytes: u32, most: usize) -> Vec<(u32, bool)> {
    let end = offset + u64::from(bytes.min(LOOKED_AT));
    let (mut at, mut extents) = (offset, Vec::new());
    while at < end && extents.len() < most {
        let (lba, last) = (at / SECTOR_BYTES as u64, end.div_ceil(SECTOR_BYTES as u64));
        let Extent { sectors, holds } = export.extent(lba, last - lba);
        let to = ((lba + sectors) * SECTOR_BYTES as u64).min(end);
        extents.push(((to - at) as u32, holds));
        at = to;
    }
    extents
}

fn failed(e: flashlane_ftl::block::BlockError) -> (u32, String) {
    (error::IO, Failure::Device(e).to_string())
}
