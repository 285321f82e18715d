//! The header of an image: what device it is, and where its regions lie.
//!
//! Owns: [`Header`] and its bytes. Promises: the whole device spec is in it, so presets may change;
//! one of its two copies is enough; only an intact header can say that it is newer. Never: opens a
//! file.
//!
//! Bytes are in `docs/IMAGE.md`, "Header".

use super::ImageError;
use crate::spec::DeviceSpec;
use flashlane_media::host::HostFile;
use flashlane_media::image::{HEADER_BYTES, ImageFault, Layout};

/// First bytes of an image.
pub const MAGIC: [u8; 8] = *b"FLdrive\n";
/// Newest version that this program writes. It refuses a newer major one and only reads a newer
/// minor one.
pub const VERSION: (u16, u16) = (3, 0);
/// The last version whose tables have no holes: what a new image is whose room is reserved at once.
pub const WHOLE: (u16, u16) = (2, 2);
/// The last version whose slots have no checksums: what an image of such a one is upgraded to.
pub const UNCHECKED: (u16, u16) = (1, 2);
/// From this version on sectors have checksums.
const HAS_CHECKS: (u16, u16) = (2, 0);
/// From this version on a row of zeros need not be written.
const HAS_HOLES: (u16, u16) = (3, 0);
/// From this version on commits carry a sum over the table, and a mark says how far the journal came.
pub(crate) const HAS_MARK: (u16, u16) = (1, 2);
const FIXED: usize = 128;

/// What an image says of itself.
#[derive(Clone, Debug)]
pub struct Header {
    /// Format version, (major, minor).
    pub version: (u16, u16),
    /// Drawn at create; a clone has its own, a snapshot that of the original.
    pub uuid: [u8; 16],
    /// Seed of the device's factory marks and errors.
    pub seed: u64,
    pub spec: DeviceSpec,
}

/// The version of a new image of such a device: the oldest that says all there is to say, so that
/// older programs can use what they can.
pub fn version_for(spec: &DeviceSpec) -> (u16, u16) {
    if layout_of(spec, WHOLE).is_reserved() { WHOLE } else { VERSION }
}

/// The newest version with the major number of this one, as far as this program knows.
pub(super) fn latest_of(version: (u16, u16)) -> (u16, u16) {
    match version.0 {
        0 | 1 => UNCHECKED,
        2 => WHOLE,
        _ => VERSION,
    }
}

/// The regions of a new image of such a device.
pub fn layout(spec: &DeviceSpec) -> Layout {
    layout_of(spec, version_for(spec))
}

fn layout_of(spec: &DeviceSpec, version: (u16, u16)) -> Layout {
    let geo = spec.geometry();
    Layout {
        channels: geo.channels,
        dies: geo.pus(),
        chunks: geo.pus() * geo.chunks_per_pu,
        sectors: geo.sectors_per_chunk(),
        checked: version >= HAS_CHECKS,
        holes: version >= HAS_HOLES,
    }
}

/// Regions as numbers: table, rows, journal, frames of a half, slots, bytes of a slot.
fn regions(layout: &Layout) -> [u64; 6] {
    [
        layout.table_at(),
        layout.rows() as u64,
        layout.journal_at(),
        layout.half_frames(),
        layout.slots_at(),
        layout.slot_bytes(),
    ]
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | *b as u64)
}

impl Header {
    /// The regions of the image.
    pub fn layout(&self) -> Layout {
        layout_of(&self.spec, self.version)
    }

    /// It was written by a newer program: it may only be read.
    pub fn is_newer(&self) -> bool {
        self.version > latest_of(self.version)
    }

    /// Both copies.
    ///
    /// # Errors
    /// The spec's text is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ImageError> {
        let text = toml::to_string(&self.spec)
            .map_err(|e| ImageError::Text { problem: format!("cannot be written: {e}") })?;
        let room = HEADER_BYTES as usize - FIXED;
        if text.len() > room {
            let problem = format!("is {} bytes long; an image has room for {room}", text.len());
            return Err(ImageError::Text { problem });
        }
        let mut out = vec![0; HEADER_BYTES as usize];
        let end = FIXED + text.len();
        out[..8].copy_from_slice(&MAGIC);
        out[12..16].copy_from_slice(&(end as u32).to_le_bytes());
        out[16..18].copy_from_slice(&self.version.0.to_le_bytes());
        out[18..20].copy_from_slice(&self.version.1.to_le_bytes());
        out[24..40].copy_from_slice(&self.uuid);
        out[40..48].copy_from_slice(&self.seed.to_le_bytes());
        for (to, number) in out[48..96].chunks_exact_mut(8).zip(regions(&self.layout())) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        out[FIXED..end].copy_from_slice(text.as_bytes());
        let crc = flashlane_base::crc32c(&out[12..end]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out.extend_from_within(..);
        Ok(out)
    }

    /// Reads the first copy that is intact.
    ///
    /// # Errors
    /// It is no image, of a newer major version, damaged, or describes an impossible device.
    pub fn read(file: &dyn HostFile) -> Result<Header, ImageError> {
        let len = file.len().map_err(ImageFault::io("measure"))?;
        let mut bytes = vec![0; 2 * HEADER_BYTES as usize];
        let there = len.min(bytes.len() as u64) as usize;
        file.read_at(0, &mut bytes[..there]).map_err(ImageFault::io("read"))?;
        let (first, second) = bytes.split_at(HEADER_BYTES as usize);
        let copies = [first, second];
        let Some(sound) = copies.iter().find_map(|copy| intact(copy)) else {
            return Err(match copies.iter().any(|copy| copy[..8] == MAGIC) {
                true => ImageError::Header,
                false => ImageError::NotAnImage { len },
            });
        };
        Header::parse(sound)
    }

    /// Reads an intact copy.
    ///
    /// # Errors
    /// As [`Header::read`].
    fn parse(bytes: &[u8]) -> Result<Header, ImageError> {
        let number = |at: usize, n: usize| le(&bytes[at..at + n]);
        let version = (number(16, 2) as u16, number(18, 2) as u16);
        if version.0 > VERSION.0 {
            return Err(ImageError::Newer { version });
        }
        let wrong = |what: &str| ImageFault::Value(format!("its header {what}"));
        let text = std::str::from_utf8(&bytes[FIXED..])
            .map_err(|_| wrong("has a device spec that is no text"))?;
        let spec = DeviceSpec::from_toml(text)?;
        let said: Vec<u64> = (0..6).map(|i| number(48 + 8 * i, 8)).collect();
        if said != regions(&layout_of(&spec, version)) {
            return Err(wrong("and its device do not agree on its regions").into());
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[24..40]);
        Ok(Header { version, uuid, seed: number(40, 8), spec })
    }
}

/// A copy without its unused room, when its checksum is right.
pub(super) fn intact(copy: &[u8]) -> Option<&[u8]> {
    let end = le(&copy[12..16]) as usize;
    let sound = copy[..8] == MAGIC
        && (FIXED..=copy.len()).contains(&end)
        && le(&copy[8..12]) as u32 == flashlane_base::crc32c(&copy[12..end]);
    sound.then(|| &copy[..end])
}
