//! A client's requests.
//!
//! Owns: the order of things on a connection: handshake, requests, the end. Promises: requests are done side
//! by side, and answered as they end; what a client has in flight is bounded ([`super::BUDGET`]), and so is what it
//! may do before others have their turn. Never: gives up a request that has begun, but for zeros that are
//! written for nobody.

use super::handshake::{self, Agreed};
use super::input::Input;
use super::output::Output;
use super::wire::{self, Request, command, error, flag};
use super::{BUDGET, BYTES_MAX, HANDSHAKE_MAX, PARTING};
use crate::export::zero_pieces;
use crate::stop::first;
use crate::{Client, Export, Failure, Stop};
use flashlane_base::{Ns, SECTOR_BYTES, mutant};
use flashlane_ftl::block::Extent;
use flashlane_rt::Cx;
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
) -> io::Result<()> {
    let socket = Rc::new(cx.watch(client)?);
    let mut input = Input::new(socket.clone());
    let patience = if mutant!("serve.handshake-endless") { Ns::MAX } else { HANDSHAKE_MAX };
    let talk = first(handshake::agree(&mut input, exports), cx.sleep(patience));
    let Some(Ok(agreed)) = stop.unless_up(cx, talk).await else { return Ok(()) };
    let Some(Agreed { export, structured, allocation }) = agreed? else { return Ok(()) };
    let output = Output::new(socket);
    let session = Rc::new(Session { export, structured, allocation, output });
    let (theirs, writer_cx) = (session.clone(), cx.clone());
    let writer = cx.spawn_join(async move {
        let _ = theirs.output.write(&writer_cx).await;
        // Whoever still has a reply for it drops that.
        theirs.output.end(&writer_cx);
    });
    let ended = stop.unless_up(cx, session.take_requests(cx, &mut input)).await;
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

impl Session {
    /// Takes requests and begins them, until the client ends.
    async fn take_requests(self: &Rc<Self>, cx: &Cx, input: &mut Input) -> io::Result<()> {
        let mut in_a_row = 0;
        loop {
            let Some(head) = input.take(Request::BYTES).await? else { return Ok(()) };
            // Behind another magic nothing can be made sense of.
            let Some(request) = Request::decode(head) else { return Ok(()) };
            if request.command == command::DISCONNECT {
                return Ok(());
            }
            let data = request.bytes;
            if request.command == command::WRITE && data > BYTES_MAX {
                return Ok(()); // nobody reads so much to throw it away
            }
            let room = self.output.take_room(cx, room_of(&request)).await;
            let mut buffer = Vec::new();
            if request.command == command::WRITE {
                buffer = self.output.buffers().take(data as usize);
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
    async fn answer(&self, cx: &Cx, request: Request, mut buffer: Vec<u8>, room: u64) {
        let done = self.perform(cx, &request, &mut buffer).await;
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

    /// What a request comes to; `buffer` is the whole reply then to one that gives something.
    async fn perform(
        &self,
        cx: &Cx,
        request: &Request,
        buffer: &mut Vec<u8>,
    ) -> Result<(), (u32, String)> {
        let Request { flags, command, offset, bytes, .. } = *request;
        let export = &*self.export;
        let fua = flags & flag::FUA != 0;
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
            return export.flush(cx).await.map_err(failed);
        }
        let writes = !matches!(command, command::READ | command::BLOCK_STATUS);
        export.check(offset, bytes.into()).map_err(|failure| {
            let is_beyond = failure == Failure::Beyond && writes;
            let number = if is_beyond { error::NO_SPACE } else { error::INVALID };
            (number, format!("{bytes} bytes at {offset}: {failure}"))
        })?;
        if bytes == 0 {
            return Err((error::INVALID, "no bytes".into()));
        }
        let done = match command {
            command::READ if bytes > BYTES_MAX => {
                return Err((error::INVALID, format!("longer than {BYTES_MAX} bytes")));
            }
            command::READ => {
                let head = wire::read_head_bytes(self.structured);
                *buffer = self.output.buffers().take(head + bytes as usize);
                let read = export.read(cx, offset, &mut buffer[head..]).await;
                wire::put_read_head(buffer, request, self.structured);
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
        if fua && writes { export.flush(cx).await.map_err(failed) } else { Ok(()) }
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
        if fua { self.export.flush(cx).await.map_err(failed) } else { Ok(()) }
    }
}

/// What a request takes of its client's room, in sectors: its data or its reply, or as much work.
fn room_of(request: &Request) -> u64 {
    let bytes = u64::from(request.bytes.min(BYTES_MAX));
    let room = match request.command {
        command::READ | command::WRITE => bytes,
        command::WRITE_ZEROES if request.flags & flag::NO_HOLE != 0 => bytes,
        command::TRIM | command::WRITE_ZEROES => u64::from(request.bytes) / DISCARDED,
        command::BLOCK_STATUS if request.flags & flag::REQ_ONE == 0 => STATUS_BYTES as u64,
        _ => 0,
    };
    room.div_ceil(SECTOR_BYTES as u64).clamp(1, BUDGET)
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
