//! What a guest asks for.
//!
//! Owns: the layout of requests and their answers (virtio 1.2, section 5.2.6), what they do to the device. Promises:
//! what a request is, is read once; data is copied into memory of our own before the device sees it, and out of it
//! when the device has done; the status is written behind the data. Never: says that a request has ended.

use super::chain::{Chain, Copied};
use super::config::{DISCARD_BYTES, RANGES, UNIT, ZERO_BYTES};
use super::{BUDGET, BYTES_MAX, Memory};
use crate::Export;
use crate::buffers::Buffers;
use flashlane_base::mutant;
use flashlane_rt::Cx;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
    VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};

/// Type, a reserved word, sector.
const HEAD_BYTES: u64 = 16;
/// Sector, sectors, flags.
const RANGE_BYTES: u64 = 16;
/// The status, the last byte that the device writes.
const STATUS_BYTES: u64 = 1;
/// Bytes of the name of a disk.
pub(super) const NAME_BYTES: usize = 20;

/// Why a request is not done, as guests are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It failed, or makes no sense.
    Failed,
    /// There is no such thing here.
    Unknown,
}

impl From<Refused> for u8 {
    fn from(refused: Refused) -> u8 {
        match refused {
            Refused::Failed => VIRTIO_BLK_S_IOERR as u8,
            Refused::Unknown => VIRTIO_BLK_S_UNSUPP as u8,
        }
    }
}

/// Bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    offset: u64,
    bytes: u64,
}

/// A request that can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Read(Range),
    Write(Range),
    Flush,
    Discard(Vec<Range>),
    /// Those with true need no place on the medium.
    Zero(Vec<(Range, bool)>),
    Name {
        room: u64,
    },
}

impl Request {
    /// What a chain asks for.
    ///
    /// # Errors
    /// It can't be done.
    pub(super) fn of(chain: &Chain, memory: &Memory, export: &Export) -> Result<Request, Refused> {
        let mut head = [0; HEAD_BYTES as usize];
        if !chain.is_inside || chain.writable < STATUS_BYTES {
            return Err(Refused::Failed);
        }
        chain.get(memory, 0, &mut head).map_err(failed)?;
        let kind = u32::from_le_bytes(*head.first_chunk().expect("four bytes"));
        let sector = u64::from_le_bytes(*head.last_chunk().expect("eight bytes"));
        let (given, room) = (chain.readable - HEAD_BYTES, chain.writable - STATUS_BYTES);
        let range = |sector: u64, bytes: u64| {
            let offset = sector.checked_mul(UNIT).ok_or(Refused::Failed)?;
            export.check(offset, bytes).map_err(failed)?;
            Ok(Range { offset, bytes })
        };
        let data = |bytes: u64| match bytes {
            1..=BYTES_MAX => range(sector, bytes),
            _ => Err(Refused::Failed),
        };
        let changes =
            matches!(kind, VIRTIO_BLK_T_OUT | VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES);
        if changes && export.is_read_only() {
            return Err(Refused::Failed);
        }
        match kind {
            VIRTIO_BLK_T_IN => Ok(Request::Read(data(room)?)),
            VIRTIO_BLK_T_OUT => Ok(Request::Write(data(given)?)),
            VIRTIO_BLK_T_FLUSH => Ok(Request::Flush),
            VIRTIO_BLK_T_GET_ID => Ok(Request::Name { room }),
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => {
                let is_discard = kind == VIRTIO_BLK_T_DISCARD;
                let mut ranges = Vec::new();
                if given == 0
                    || !given.is_multiple_of(RANGE_BYTES)
                    || given > RANGE_BYTES * u64::from(RANGES)
                {
                    return Err(Refused::Failed);
                }
                for at in (HEAD_BYTES..chain.readable).step_by(RANGE_BYTES as usize) {
                    let mut words = [0; RANGE_BYTES as usize];
                    chain.get(memory, at, &mut words).map_err(failed)?;
                    let word = |at: usize| {
                        u32::from_le_bytes(*words[at..].first_chunk().expect("four bytes"))
                    };
                    let sector = u64::from_le_bytes(*words.first_chunk().expect("eight bytes"));
                    let (bytes, flags) = (u64::from(word(8)) * UNIT, word(12));
                    let known = if is_discard { 0 } else { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP };
                    if flags & !known != 0 {
                        return Err(Refused::Unknown);
                    }
                    if bytes > if is_discard { DISCARD_BYTES } else { ZERO_BYTES } {
                        return Err(Refused::Failed);
                    }
                    ranges.push((range(sector, bytes)?, flags != 0));
                }
                Ok(match is_discard {
                    true => Request::Discard(ranges.into_iter().map(|(range, _)| range).collect()),
                    false => Request::Zero(ranges),
                })
            }
            _ => Err(Refused::Unknown),
        }
    }

    /// Bytes that it takes of what its front end may have in flight: its data, or as much work.
    pub(super) fn room(&self) -> u64 {
        let bytes = match self {
            Request::Read(range) | Request::Write(range) => range.bytes,
            Request::Zero(ranges) => {
                ranges.iter().filter(|(_, unmap)| !unmap).map(|(range, _)| range.bytes).sum()
            }
            _ => 0,
        };
        bytes.min(BUDGET)
    }

    /// Does it, but for the status. With `through` a write is durable when it is answered. Returns the bytes that
    /// the guest has got.
    pub(super) async fn perform(
        &self,
        cx: &Cx,
        chain: &Chain,
        memory: &Memory,
        export: &Export,
        through: bool,
        buffers: &Buffers,
    ) -> Result<u64, Refused> {
        match self {
            Request::Read(Range { offset, bytes }) => {
                let mut buffer = buffers.take(*bytes as usize);
                export.read(cx, *offset, &mut buffer).await.map_err(failed)?;
                chain.put(memory, 0, &buffer).map_err(failed)?;
                buffers.keep(buffer);
                return Ok(*bytes);
            }
            Request::Write(Range { offset, bytes }) => {
                // The guest may change its memory meanwhile: the device must not see two contents.
                let mut buffer = buffers.take(*bytes as usize);
                chain.get(memory, HEAD_BYTES, &mut buffer).map_err(failed)?;
                let through = through && !mutant!("serve.write-through-forgotten");
                export.write(cx, *offset, &buffer, through).await.map_err(failed)?;
                buffers.keep(buffer);
            }
            Request::Flush if mutant!("serve.ring-flush-at-once") => {}
            Request::Flush => export.flush(cx).await.map_err(failed)?,
            Request::Discard(ranges) => {
                for Range { offset, bytes } in ranges {
                    export.discard(cx, *offset, *bytes).await.map_err(failed)?;
                }
                self.settle(cx, export, through).await?;
            }
            Request::Zero(ranges) => {
                for (Range { offset, bytes }, unmap) in ranges {
                    let done = match unmap {
                        true => export.discard(cx, *offset, *bytes).await,
                        false => export.write_zeros(cx, *offset, *bytes).await,
                    };
                    done.map_err(failed)?;
                }
                self.settle(cx, export, through).await?;
            }
            Request::Name { room } => {
                let mut name = [0; NAME_BYTES];
                let bytes = export.name.len().min(NAME_BYTES);
                name[..bytes].copy_from_slice(&export.name.as_bytes()[..bytes]);
                let bytes = (*room).min(NAME_BYTES as u64);
                chain.put(memory, 0, &name[..bytes as usize]).map_err(failed)?;
                return Ok(bytes);
            }
        }
        Ok(0)
    }

    /// Only a write below can be durable by itself.
    async fn settle(&self, cx: &Cx, export: &Export, through: bool) -> Result<(), Refused> {
        match through && !mutant!("serve.ring-trim-not-through") {
            true => export.flush(cx).await.map_err(failed),
            false => Ok(()),
        }
    }
}

/// Writes the status, where there is a place for it. Returns the bytes that the guest has got with it.
pub(super) fn answer(chain: &Chain, memory: &Memory, done: Result<u64, Refused>) -> u32 {
    let status = done.map_or_else(u8::from, |_| VIRTIO_BLK_S_OK as u8);
    let put = |at| -> Copied { chain.put(memory, at, &[status]) };
    match chain.writable.checked_sub(STATUS_BYTES).map(put) {
        // At most as long as a chain may be.
        Some(Ok(())) => (done.unwrap_or(0) + STATUS_BYTES).try_into().unwrap_or(u32::MAX),
        _ => 0,
    }
}

fn failed<E>(_: E) -> Refused {
    Refused::Failed
}
