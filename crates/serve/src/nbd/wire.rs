//! The NBD protocol's numbers and layouts.
//!
//! Owns: every constant and every byte offset of the protocol ("The NBD protocol", doc/proto.md of the NBD
//! project); all numbers are big-endian. Promises: what comes from a client is decoded without trust: a
//! length is compared with what is there. Never: reads or writes a socket.

/// First words of a server: `NBDMAGIC`, `IHAVEOPT`.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags, of a server and of a client alike.
pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const NO_ZEROES: u16 = 1 << 1;

/// Options.
pub(super) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub(super) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub(crate) const INVALID: u32 = 1 << 31 | 3;
    pub(crate) const UNKNOWN: u32 = 1 << 31 | 6;
    pub(crate) const SHUTDOWN: u32 = 1 << 31 | 7;
    pub(crate) const TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub(super) mod can {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const FLUSH: u16 = 1 << 2;
    pub(crate) const FUA: u16 = 1 << 3;
    pub(crate) const TRIM: u16 = 1 << 5;
    pub(crate) const WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const DF: u16 = 1 << 7;
    pub(crate) const MULTI_CONN: u16 = 1 << 8;
    pub(crate) const FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub(super) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub(super) mod flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    /// Don't fragment: a read comes in one chunk, which it does anyway.
    pub(crate) const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// The context of which the status of blocks is known, and its number.
pub(super) const ALLOCATION: &str = "base:allocation";
pub(super) const ALLOCATION_ID: u32 = 1;
/// What it says of blocks that hold nothing: a hole, and zeros.
const HOLE_AND_ZERO: u32 = 3;

/// Errors, by their number on Linux.
pub(super) mod error {
    pub(crate) const NOT_PERMITTED: u32 = 1;
    pub(crate) const IO: u32 = 5;
    pub(crate) const INVALID: u32 = 22;
    pub(crate) const NO_SPACE: u32 = 28;
    pub(crate) const NOT_SUPPORTED: u32 = 95;
    pub(crate) const SHUTDOWN: u32 = 108;
}

/// Types of chunks of a structured reply.
const OFFSET_DATA: u16 = 1;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 1 << 15 | 1;
/// The last chunk of a reply.
const DONE: u16 = 1;

/// Bytes before the data of an option.
pub(super) const OPTION_BYTES: usize = 16;

/// An option of a client, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHead {
    pub(super) option: u32,
    pub(super) bytes: u32,
}

impl OptionHead {
    /// `None` where the magic is another.
    pub(super) fn decode(mut from: &[u8]) -> Option<OptionHead> {
        let magic = take_u64(&mut from)?;
        let head = OptionHead { option: take_u32(&mut from)?, bytes: take_u32(&mut from)? };
        (magic == OPTION_MAGIC).then_some(head)
    }
}

/// What INFO and GO ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    /// Kinds of information.
    pub(super) infos: Vec<u16>,
}

impl<'a> Wanted<'a> {
    /// `None` where lengths do not fit, or the name is no UTF-8.
    pub(super) fn decode(mut from: &'a [u8]) -> Option<Wanted<'a>> {
        let length = take_u32(&mut from)? as usize;
        let (name, mut from) = from.split_at_checked(length)?;
        let count = take_u16(&mut from)?;
        let infos = (0..count).map(|_| take_u16(&mut from)).collect::<Option<_>>()?;
        from.is_empty().then_some(Wanted { name: std::str::from_utf8(name).ok()?, infos })
    }
}

/// What LIST_META_CONTEXT and SET_META_CONTEXT ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contexts<'a> {
    pub(super) name: &'a str,
    pub(super) queries: Vec<&'a [u8]>,
}

impl<'a> Contexts<'a> {
    /// As [`Wanted::decode`].
    pub(super) fn decode(mut from: &'a [u8]) -> Option<Contexts<'a>> {
        let text = |from: &mut &'a [u8]| {
            let length = take_u32(from)? as usize;
            let (text, rest) = from.split_at_checked(length)?;
            *from = rest;
            Some(text)
        };
        let name = std::str::from_utf8(text(&mut from)?).ok()?;
        let count = take_u32(&mut from)?;
        // Each has a length at least, so a count that claims more ends early.
        let queries = (0..count).map(|_| text(&mut from)).collect::<Option<_>>()?;
        from.is_empty().then_some(Contexts { name, queries })
    }
}

/// A reply to an option.
pub(super) fn put_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// A request of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) flags: u16,
    pub(super) command: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

impl Request {
    /// Its length on the wire, without the data of a write.
    pub(super) const BYTES: usize = 28;

    /// `None` where the magic is another.
    pub(super) fn decode(mut from: &[u8]) -> Option<Request> {
        let magic = take_u32(&mut from)?;
        let request = Request {
            flags: take_u16(&mut from)?,
            command: take_u16(&mut from)?,
            cookie: take_u64(&mut from)?,
            offset: take_u64(&mut from)?,
            bytes: take_u32(&mut from)?,
        };
        (magic == REQUEST_MAGIC).then_some(request)
    }
}

/// Bytes before the data that a read gives.
pub(super) const fn read_head_bytes(structured: bool) -> usize {
    if structured { 28 } else { 16 }
}

/// What of a read a piece of data is: where it begins, how many bytes its head announces, and
/// whether nothing follows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) is_last: bool,
}

/// Puts the head of a read's reply before its data, into the first [`read_head_bytes`] of `whole`.
pub(super) fn put_read_head(whole: &mut [u8], request: &Request, structured: bool, piece: Piece) {
    if structured {
        let mut head = chunk_head(OFFSET_DATA, request.cookie, piece.bytes + 8);
        if !piece.is_last {
            head[4..6].fill(0);
        }
        whole[..20].copy_from_slice(&head);
        whole[20..28].copy_from_slice(&piece.offset.to_be_bytes());
    } else {
        whole[..16].copy_from_slice(&simple_head(0, request.cookie));
    }
}

/// The whole reply to BLOCK_STATUS: extents with their bytes, and whether they hold anything.
pub(super) fn put_block_status(out: &mut Vec<u8>, cookie: u64, extents: &[(u32, bool)]) {
    out.extend(chunk_head(BLOCK_STATUS, cookie, 4 + 8 * extents.len() as u32));
    out.extend(ALLOCATION_ID.to_be_bytes());
    for (bytes, holds) in extents {
        out.extend(bytes.to_be_bytes());
        out.extend(if *holds { 0 } else { HOLE_AND_ZERO }.to_be_bytes());
    }
}

/// The whole reply to what gives no data and went well.
pub(super) fn put_done(out: &mut Vec<u8>, cookie: u64) {
    out.extend(simple_head(0, cookie));
}

/// The whole reply to what failed; a structured one says why.
pub(super) fn put_error(out: &mut Vec<u8>, cookie: u64, number: u32, why: &str, structured: bool) {
    if !structured {
        return out.extend(simple_head(number, cookie));
    }
    // A message is 4096 bytes at most.
    let mut end = why.len().min(1024);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    let why = &why.as_bytes()[..end];
    out.extend(chunk_head(ERROR, cookie, 6 + why.len() as u32));
    out.extend(number.to_be_bytes());
    out.extend((why.len() as u16).to_be_bytes());
    out.extend(why);
}

fn simple_head(error: u32, cookie: u64) -> [u8; 16] {
    let mut head = [0; 16];
    head[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    head[4..8].copy_from_slice(&error.to_be_bytes());
    head[8..].copy_from_slice(&cookie.to_be_bytes());
    head
}

fn chunk_head(kind: u16, cookie: u64, bytes: u32) -> [u8; 20] {
    let mut head = [0; 20];
    head[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&DONE.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..].copy_from_slice(&bytes.to_be_bytes());
    head
}

fn take<const N: usize>(from: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*head)
}

fn take_u16(from: &mut &[u8]) -> Option<u16> {
    take(from).map(u16::from_be_bytes)
}

fn take_u32(from: &mut &[u8]) -> Option<u32> {
    take(from).map(u32::from_be_bytes)
}

fn take_u64(from: &mut &[u8]) -> Option<u64> {
    take(from).map(u64::from_be_bytes)
}
