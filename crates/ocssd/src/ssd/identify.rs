//! What a device says of itself.
//!
//! Owns: [`Identify`], the fields of the 1.2 identify groups and the 2.0 geometry page (facts 1.2,
//! 2.2), with the names that sysfs gave them. Promises: values follow from the spec alone.
//! Never: changes.

use super::Ssd;
use flashlane_base::{Geometry, Ns, OOB_BYTES, PpaStyle, SECTOR_BYTES};
use flashlane_media::pairing::Pairing;

/// Identity of a device.
#[derive(Clone, Debug)]
pub struct Identify {
    /// Name of the preset or spec.
    pub name: String,
    /// 1.2 or 2.0.
    pub style: PpaStyle,
    pub geometry: Geometry,
    /// Address fields from the least significant: (name, bits).
    pub format: Vec<(&'static str, u32)>,
    /// `"slc"`, `"mlc"`, `"tlc"`, `"qlc"` or the number of bits.
    pub flash_media_type: String,
    /// Content bytes per sector.
    pub sector_bytes: usize,
    /// Out-of-band bytes per sector.
    pub oob_bytes: usize,
    /// Bytes per flash page of one plane.
    pub page_bytes: usize,
    /// Read time, typical and longest.
    pub read: (Ns, Ns),
    /// Program time, typical and longest.
    pub program: (Ns, Ns),
    /// Erase time, typical and longest.
    pub erase: (Ns, Ns),
    /// Plane modes: 1, 2, 4 planes at once.
    pub plane_modes: Vec<u8>,
    /// Pairs (lower page, page that completes its word line); empty when all pages are alike.
    pub page_pairs: Vec<(u32, u32)>,
    /// Open chunks on the device and per PU; 0 is no limit.
    pub max_open: (u32, u32),
    pub vector_copy: bool,
    /// A free chunk may be reset.
    pub reset_free: bool,
    /// An open chunk may be reset.
    pub reset_open: bool,
    /// A reset is accepted, but nothing is erased: the medium needs none.
    pub erase_ignored: bool,
    /// Chunks can be reset to one bit per cell.
    pub slc_mode: bool,
    /// Programs and erases can be suspended.
    pub suspend: bool,
    /// Bytes of writes that are acknowledged before they are programmed; 0 is none.
    pub write_buffer: u64,
    /// Addresses per vector command at most.
    pub vector_max: usize,
}

impl Ssd {
    /// Who this device is.
    pub fn identify(&self) -> Identify {
        let spec = &self.spec;
        let t = &spec.timing;
        let spread = |list: &[Ns]| {
            let sum: u64 = list.iter().map(|t| t.as_ns()).sum();
            let most = list.iter().copied().max().unwrap_or(Ns::ZERO);
            (Ns::from_ns(sum / list.len().max(1) as u64), most)
        };
        let (mut read, mut program) = (spread(&t.read), spread(&t.program));
        let mut erase = (t.erase, t.erase);
        if let Some(max) = t.max {
            (read.1, program.1, erase.1) = (max.read, max.program, max.erase);
        }
        let queue = self.options.queue.unwrap_or(t.queue);
        Identify {
            name: spec.name.clone(),
            style: spec.ppa,
            geometry: self.geo,
            format: self.decoder.format().fields(),
            flash_media_type: match spec.cells.bits {
                1 => "slc".into(),
                2 => "mlc".into(),
                3 => "tlc".into(),
                4 => "qlc".into(),
                bits => format!("{bits} bits"),
            },
            sector_bytes: SECTOR_BYTES,
            oob_bytes: OOB_BYTES,
            page_bytes: self.geo.sectors_per_page as usize * SECTOR_BYTES,
            read,
            program,
            erase,
            plane_modes: [1, 2, 4].into_iter().filter(|p| *p as u32 <= self.geo.planes).collect(),
            page_pairs: self.page_pairs(),
            max_open: self.traits.max_open,
            vector_copy: true,
            reset_free: spec.limits.reset_free,
            reset_open: spec.limits.reset_open,
            erase_ignored: spec.limits.erase_ignored,
            slc_mode: spec.cells.slc.is_some(),
            suspend: queue == crate::spec::DieQueue::Suspend,
            write_buffer: spec.limits.write_buffer.map_or(0, |size| size.get()),
            vector_max: flashlane_base::VECTOR_MAX,
        }
    }

    fn page_pairs(&self) -> Vec<(u32, u32)> {
        if self.spec.cells.pairing == Pairing::None {
            return Vec::new();
        }
        let Some(pages) = self.spec.page_map() else {
            return Vec::new();
        };
        (0..self.geo.pages_per_block)
            .map(|page| (page, pages.last_mate(page)))
            .filter(|(page, last)| page != last)
            .collect()
    }
}
