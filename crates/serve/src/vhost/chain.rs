//! The pieces of a request in the memory of a guest.
//!
//! Owns: the walk along a chain of descriptors (virtio 1.2, section 2.7), copies from and to its pieces. Promises:
//! a walk ends, whatever the guest has written; a piece that does not lie in the guest's memory is never touched,
//! and one that the guest changes or takes away meanwhile fails a copy at worst. Never: keeps a reference into
//! that memory, trusts a length twice read.

use super::Memory;
use super::config::DATA_PIECES;
use std::io;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, GuestMemoryError, Permissions};

/// Pieces of a chain at most, also where a guest cuts its head in two.
const PIECES: usize = DATA_PIECES as usize + 8;
const DESCRIPTOR_BYTES: u64 = 16;

/// Some bytes of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: GuestAddress,
    bytes: u32,
}

/// What a guest lets the device read, and then what it lets it write.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    pieces: Vec<Piece>,
    /// How many of them are read.
    read: usize,
    /// Bytes of them.
    pub(super) readable: u64,
    pub(super) writable: u64,
    /// Each of them lies in the guest's memory.
    pub(super) is_inside: bool,
}

/// What hangs together in no way that can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no chain of descriptors")]
pub(super) struct Malformed;

impl Chain {
    /// The chain that begins with descriptor `head` of a table.
    pub(super) fn walk(
        memory: &Memory,
        table: GuestAddress,
        size: u16,
        head: u16,
    ) -> Result<Chain, Malformed> {
        let mut chain = Chain { is_inside: true, ..Chain::default() };
        let (mut table, mut size, mut next, mut is_indirect) = (table, size, head, false);
        // A chain that comes back to where it was has more pieces than a chain may have.
        loop {
            if next >= size {
                return Err(Malformed);
            }
            let at = u64::from(next) * DESCRIPTOR_BYTES;
            let at = table.checked_add(at).ok_or(Malformed)?;
            let found: Descriptor = memory.read_obj(at).map_err(|_| Malformed)?;
            if found.refers_to_indirect_table() {
                let entries = u64::from(found.len()) / DESCRIPTOR_BYTES;
                let is_whole = u64::from(found.len()).is_multiple_of(DESCRIPTOR_BYTES);
                if is_indirect || found.has_next() || !is_whole {
                    return Err(Malformed);
                }
                size = entries.try_into().map_err(|_| Malformed)?;
                (table, next, is_indirect) = (found.addr(), 0, true);
                continue;
            }
            if memory.is_lost() {
                return Err(Malformed);
            }
            chain.add(memory, &found)?;
            if !found.has_next() {
                return Ok(chain);
            }
            next = found.next();
        }
    }

    fn add(&mut self, memory: &Memory, found: &Descriptor) -> Result<(), Malformed> {
        let piece = Piece { at: found.addr(), bytes: found.len() };
        let (all, needs) = match found.is_write_only() {
            true => (&mut self.writable, Permissions::Write),
            // What is read comes before what is written.
            false if self.read < self.pieces.len() => return Err(Malformed),
            false => {
                self.read += 1;
                (&mut self.readable, Permissions::Read)
            }
        };
        if self.pieces.len() == PIECES {
            return Err(Malformed);
        }
        *all += u64::from(piece.bytes);
        self.is_inside &= memory.check_range(piece.at, piece.bytes as usize, needs);
        self.pieces.push(piece);
        Ok(())
    }

    /// Copies what the guest lets be read, from its byte `from` on.
    pub(super) fn get(&self, memory: &Memory, from: u64, to: &mut [u8]) -> Copied {
        let pieces = &self.pieces[..self.read];
        each(pieces, from, to.len(), |at, range| memory.read_slice(&mut to[range], at))?;
        is_still_there(memory)
    }

    /// Copies to where the guest lets be written, from its byte `from` on.
    pub(super) fn put(&self, memory: &Memory, from: u64, bytes: &[u8]) -> Copied {
        let pieces = &self.pieces[self.read..];
        each(pieces, from, bytes.len(), |at, range| memory.write_slice(&bytes[range], at))?;
        is_still_there(memory)
    }
}

/// A copy counts only where all memory was there until its end.
fn is_still_there(memory: &Memory) -> Copied {
    match memory.is_lost() {
        true => Err(GuestMemoryError::IOError(io::ErrorKind::NotFound.into())),
        false => Ok(()),
    }
}

/// What came of a copy.
pub(super) type Copied = Result<(), GuestMemoryError>;

/// Calls `copy` for every part of `bytes` bytes from byte `from` of these pieces on: where it is, and which
/// of those bytes.
fn each(
    pieces: &[Piece],
    mut from: u64,
    bytes: usize,
    mut copy: impl FnMut(GuestAddress, std::ops::Range<usize>) -> Copied,
) -> Copied {
    let mut done = 0;
    for piece in pieces {
        let has = u64::from(piece.bytes);
        if from >= has {
            from -= has;
            continue;
        }
        let part = (has - from).min((bytes - done) as u64) as usize;
        if part > 0 {
            let at = piece.at.checked_add(from);
            let at = at.ok_or(GuestMemoryError::GuestAddressOverflow)?;
            copy(at, done..done + part)?;
        }
        (from, done) = (0, done + part);
    }
    match done == bytes {
        true => Ok(()),
        false => Err(GuestMemoryError::PartialBuffer { expected: bytes, completed: done }),
    }
}
