//! Where the places of a trace lie on a device of ours.
//!
//! Owns: the two layouts. *Linear*: addresses as recorded, several devices one behind the other.
//! *Packed* (`--scale-to-device`): only touched places, in order, close together; what was adjacent
//! within a place stays adjacent, what was overwritten is overwritten as often. If even that is too
//! large the places wrap around, and the description says so.
//! Promises: every piece lies inside the capacity; reads and writes are widened to whole sectors,
//! discards shrunk to them (a discard must not take a neighbour's data along), and it is counted.
//! Never: changes the order or the number of requests.

use super::scan::Scan;
use crate::device::DeviceId;
use crate::record::{TraceOp, TraceRecord};
use flashlane_base::{Bytes, Lba, SECTOR_BYTES};
use smallvec::SmallVec;

/// Devices of a trace start at multiples of this on ours, so that no two share a sector.
const DEVICE_ALIGN_SECTORS: u64 = 256;
/// Packing starts with places of 1 MiB (2^8 sectors) and goes finer only when they don't fit.
const COARSE_SHIFT: u32 = 20;
/// log2 of a sector.
const SECTOR_SHIFT: u32 = SECTOR_BYTES.trailing_zeros();

/// Sectors of our device that a request, or a part of it, covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub lba: Lba,
    /// Number of sectors, at least 1.
    pub sectors: u32,
}

/// What a request covers: nearly always one piece.
pub type Pieces = SmallVec<[Piece; 1]>;

/// Longest piece: keeps sums of sectors far from overflow.
const PIECE_SECTORS_MAX: u64 = 1 << 30;

/// Why a trace does not go onto a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error(
        "trace {trace} addresses {needs}{}, the device under test has {has}: `flashlane run \
         --scale-to-device` packs what it touches, {}or choose a larger device",
        if *devices > 1 { format!(" on {devices} devices") } else { String::new() },
        if *devices > 1 {
            format!("`--set 'workload.0.device=\"{example}\"'` replays one of its devices, ")
        } else {
            String::new()
        }
    )]
    TooLarge {
        trace: String,
        /// Bytes addressed.
        needs: Bytes,
        devices: usize,
        has: Bytes,
        example: String,
    },
    /// The device that was asked for is not in it.
    #[error("trace {trace} has no device `{wanted}` (it has: {known})")]
    NoSuchDevice { trace: String, wanted: String, known: String },
    /// It could be read before, and can't be now.
    #[error("what the trace touches can't be packed, since it can't be read once more: {0}")]
    Unread(String),
}

#[derive(Clone, Debug)]
enum Kind {
    Linear {
        /// First sector of each device, by its number.
        base: Vec<u64>,
    },
    Packed {
        /// log2 of a place in sectors.
        shift: u32,
        places: Packed,
        /// Places that the device has room for.
        room: u64,
    },
}

/// Touched places in order, device by device; the index of one is where it lies. The tables are small, as every
/// request looks into them.
#[derive(Clone, Debug)]
struct Packed {
    places: Vec<u64>,
    /// By device.
    shortcuts: Vec<Shortcuts>,
}

/// Where in the places of a device to look, as marks at the edge of a dictionary.
#[derive(Clone, Debug, Default)]
struct Shortcuts {
    first: u64,
    /// log2 of the numbers between two marks.
    shift: u32,
    /// Index of the first place from each mark on, and of the one behind the last.
    marks: Vec<u32>,
}

impl Packed {
    fn new(all: &[(DeviceId, u64)]) -> Packed {
        let mut shortcuts = Vec::new();
        let mut behind = 0;
        for some in all.chunk_by(|a, b| a.0 == b.0) {
            let (device, first) = some[0];
            let span = some[some.len() - 1].1 - first;
            // About one place between two marks, where they are evenly spread.
            let shift = (span / some.len() as u64).checked_ilog2().map_or(0, |log| log + 1);
            let mut marks = Vec::new();
            for (index, (_, place)) in (behind..).zip(some) {
                let mark = (place - first) >> shift;
                marks.resize((mark + 1) as usize, index);
            }
            behind += some.len() as u32;
            marks.push(behind);
            shortcuts.resize(device.index(), Shortcuts::default());
            shortcuts.push(Shortcuts { first, shift, marks });
        }
        Packed { places: all.iter().map(|(_, place)| *place).collect(), shortcuts }
    }

    /// The places of a device from this one on, and the index of the first.
    fn from(&self, device: DeviceId, place: u64) -> (usize, &[u64]) {
        let of = self.shortcuts.get(device.index());
        let mark = of.map_or(0, |of| place.saturating_sub(of.first) >> of.shift) as usize;
        let Some((of, from)) = of.and_then(|of| Some((of, *of.marks.get(mark)? as usize))) else {
            return (0, &[]);
        };
        let end = of.marks[of.marks.len() - 1] as usize;
        let to = of.marks.get(mark + 1).map_or(end, |to| *to as usize);
        let index = from + self.places[from..to].partition_point(|p| *p < place);
        (index, &self.places[index..end])
    }
}

/// What happened to a request on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fitted {
    /// A read or write was widened to whole sectors.
    pub widened: bool,
    /// A discard was shrunk to whole sectors.
    pub shrunk: bool,
}

/// A trace's places on a device.
#[derive(Clone, Debug)]
pub struct Layout {
    kind: Kind,
    capacity: u64,
    device: Option<DeviceId>,
    description: String,
}

impl Layout {
    /// Lays a trace (or one of its devices) out on `capacity` sectors. `scale` allows packing.
    pub fn plan(
        scan: &Scan,
        capacity: u64,
        device: Option<&str>,
        scale: bool,
    ) -> Result<Layout, LayoutError> {
        let devices = &scan.chosen().devices;
        let device = match device {
            None => None,
            Some(name) => Some(find_device(scan, name)?),
        };
        let (mut base, mut used) = (Vec::new(), 0);
        let mut end = 0u64;
        for (id, d) in devices.iter().filter(|(id, _)| device.is_none_or(|want| want == **id)) {
            let start = end.checked_next_multiple_of(DEVICE_ALIGN_SECTORS).unwrap_or(u64::MAX);
            base.resize(id.index(), 0);
            base.push(start);
            used += 1;
            end = start.saturating_add(d.end_byte.div_ceil(SECTOR_BYTES as u64));
        }
        if end <= capacity {
            let description = match used {
                1 => "addresses as recorded".to_string(),
                n => format!("{n} devices one behind the other"),
            };
            return Ok(Layout { kind: Kind::Linear { base }, capacity, device, description });
        }
        if !scale {
            return Err(LayoutError::TooLarge {
                trace: scan.source.name(),
                needs: Bytes::new(end.saturating_mul(SECTOR_BYTES as u64)),
                devices: used,
                has: Bytes::new(capacity * SECTOR_BYTES as u64),
                example: devices.keys().next().map(|d| scan.devices.name(*d)).unwrap_or_default(),
            });
        }
        Layout::packed(scan, capacity, device)
    }

    fn packed(scan: &Scan, capacity: u64, device: Option<DeviceId>) -> Result<Layout, LayoutError> {
        let fine = scan.places().map_err(|why| LayoutError::Unread(why.to_string()))?;
        let mut shift = COARSE_SHIFT.max(fine.shift());
        let places = loop {
            let mut places: Vec<(DeviceId, u64)> = fine
                .iter()
                .filter(|(d, _)| device.is_none_or(|want| want == *d))
                .map(|(d, unit)| (d, unit >> (shift - fine.shift())))
                .collect();
            places.dedup();
            let sectors = (places.len() as u64) << (shift - SECTOR_SHIFT);
            if sectors <= capacity || shift == fine.shift() {
                break places;
            }
            shift = shift.saturating_sub(4).max(fine.shift());
        };
        let shift = shift - SECTOR_SHIFT;
        let room = (capacity >> shift).max(1);
        let used = places.len() as u64;
        let place = Bytes::new((SECTOR_BYTES as u64) << shift);
        let total = Bytes::new(used.saturating_mul(place.get()));
        let description = if used <= room {
            format!("packed: {used} touched places of {place} ({total}) close together")
        } else {
            format!(
                "packed and FOLDED: {used} touched places of {place} ({total}) wrap around {room}; \
                 sectors are overwritten more often than in the trace"
            )
        };
        let places = Packed::new(&places);
        Ok(Layout { kind: Kind::Packed { shift, places, room }, capacity, device, description })
    }

    /// What was done, for reports.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// It is one device, whose sectors lie where the trace has them.
    pub fn keeps_addresses(&self) -> bool {
        match &self.kind {
            Kind::Linear { base } => base.iter().all(|base| *base == 0),
            Kind::Packed { .. } => false,
        }
    }

    /// The one device of the trace that is replayed, if it is one.
    pub fn device(&self) -> Option<DeviceId> {
        self.device
    }

    /// Appends the sectors that a record covers on our device; none for a flush and for a discard
    /// that covers no whole sector.
    pub fn map(&self, record: &TraceRecord, out: &mut Pieces) -> Fitted {
        if record.op == TraceOp::Flush {
            return Fitted::default();
        }
        let sector = SECTOR_BYTES as u64;
        let end_byte = record.offset_bytes + record.len_bytes;
        let inward = record.op == TraceOp::Discard;
        let (first, end) = if inward {
            (record.offset_bytes.div_ceil(sector), end_byte / sector)
        } else {
            (record.offset_bytes / sector, end_byte.div_ceil(sector))
        };
        let exact = record.offset_bytes.is_multiple_of(sector) && end_byte.is_multiple_of(sector);
        if first < end {
            match &self.kind {
                Kind::Linear { base } => {
                    // Every device of the trace has a base; one of an action that is not replayed
                    // never comes here.
                    let base = base.get(record.device.index()).copied().unwrap_or(0);
                    self.push(base + first, end - first, out);
                }
                Kind::Packed { shift, places, room } => {
                    self.push_packed(record.device, first..end, *shift, places, *room, out);
                }
            }
        }
        Fitted { widened: !exact && !inward, shrunk: !exact && inward }
    }

    fn push_packed(
        &self,
        device: DeviceId,
        sectors: std::ops::Range<u64>,
        shift: u32,
        places: &Packed,
        room: u64,
        out: &mut Pieces,
    ) {
        let (first, all) = places.from(device, sectors.start >> shift);
        for (index, place) in (first as u64..).zip(all) {
            let start = (place << shift).max(sectors.start);
            let end = ((place + 1) << shift).min(sectors.end);
            if start >= end {
                break;
            }
            let index = if index < room { index } else { index % room };
            self.push((index << shift) + (start - (place << shift)), end - start, out);
        }
    }

    /// Appends `sectors` at `at`, clipped to the device, joined to a piece that ends there.
    fn push(&self, at: u64, sectors: u64, out: &mut Pieces) {
        let (mut at, end) = (at, (at + sectors).min(self.capacity));
        // Nearly all of them are one short piece.
        if out.is_empty() && at < end && end - at <= PIECE_SECTORS_MAX {
            out.push(Piece { lba: Lba::new(at), sectors: (end - at) as u32 });
            return;
        }
        while at < end {
            let n = (end - at).min(PIECE_SECTORS_MAX);
            match out.last_mut() {
                Some(last)
                    if last.lba.get() + last.sectors as u64 == at
                        && last.sectors as u64 + n <= PIECE_SECTORS_MAX =>
                {
                    last.sectors += n as u32;
                }
                _ => out.push(Piece { lba: Lba::new(at), sectors: n as u32 }),
            }
            at += n;
        }
    }
}

/// The device of this name among those that are replayed.
///
/// # Errors
/// [`LayoutError::NoSuchDevice`], which lists those that there are.
pub fn find_device(scan: &Scan, name: &str) -> Result<DeviceId, LayoutError> {
    let found = scan.devices.find(name).filter(|d| scan.chosen().devices.contains_key(d));
    found.ok_or_else(|| LayoutError::NoSuchDevice {
        trace: scan.source.name(),
        wanted: name.into(),
        known: known_devices(scan),
    })
}

fn known_devices(scan: &Scan) -> String {
    const SHOWN: usize = 20;
    let devices = &scan.chosen().devices;
    let name = |id: &DeviceId| scan.devices.name(*id);
    let mut names: Vec<String> = devices.keys().take(SHOWN).map(name).collect();
    if devices.len() > SHOWN {
        names.push("...".into());
    }
    names.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Reading;
    use crate::scan::scan;
    use crate::source::TraceSource;

    fn trace(text: &'static str) -> Scan {
        let bytes = text.as_bytes();
        scan(&TraceSource::Bundled { name: "t", bytes }, &Reading::default()).unwrap()
    }

    /// `device` in the order of first appearance.
    fn record(op: TraceOp, device: u16, offset_bytes: u64, len_bytes: u64) -> TraceRecord {
        TraceRecord { op, device: DeviceId(device), offset_bytes, len_bytes, ..TraceRecord::EMPTY }
    }

    fn mapped(layout: &Layout, record: &TraceRecord) -> Vec<(u64, u32)> {
        let mut out = Pieces::new();
        layout.map(record, &mut out);
        out.iter().map(|p| (p.lba.get(), p.sectors)).collect()
    }

    #[test]
    fn one_device_lies_as_recorded_and_several_behind_each_other() {
        let one = trace("0 3 800 8 0\n");
        let layout = Layout::plan(&one, 101, None, false).unwrap();
        assert_eq!(mapped(&layout, &record(TraceOp::Read, 0, 800 * 512, 4096)), [(100, 1)]);
        let two = trace("0 3 800 8 0\n0 9 8 8 0\n");
        let layout = Layout::plan(&two, 258, None, false).unwrap();
        assert_eq!(mapped(&layout, &record(TraceOp::Read, 1, 4096, 4096)), [(257, 1)]);
        let only = Layout::plan(&two, 2, Some("9"), false).unwrap();
        assert_eq!(mapped(&only, &record(TraceOp::Read, 1, 4096, 4096)), [(1, 1)]);
    }

    #[test]
    fn reads_and_writes_widen_and_discards_shrink() {
        let t = trace("0 0 0 4096 0\n");
        let layout = Layout::plan(&t, 512, None, false).unwrap();
        let odd = |op| record(op, 0, 512, 8192);
        assert_eq!(mapped(&layout, &odd(TraceOp::Write)), [(0, 3)]);
        assert_eq!(mapped(&layout, &odd(TraceOp::Discard)), [(1, 1)]);
        assert_eq!(mapped(&layout, &record(TraceOp::Discard, 0, 512, 512)), []);
        let fitted = layout.map(&odd(TraceOp::Discard), &mut Pieces::new());
        assert!(fitted.shrunk && !fitted.widened);
    }

    #[test]
    fn too_large_is_an_error_with_the_remedy_unless_packing_is_allowed() {
        let t = trace("0 1 0 8 0\n0 1 2000000 16 0\n0 2 77777777 8 1\n");
        let error = Layout::plan(&t, 1000, None, false).unwrap_err();
        assert!(error.to_string().contains("--scale-to-device"), "{error}");
        let layout = Layout::plan(&t, 1000, None, true).unwrap();
        // Three places of 1 MiB (256 sectors) each, in order of device and address.
        assert_eq!(mapped(&layout, &record(TraceOp::Write, 0, 0, 4096)), [(0, 1)]);
        let second = mapped(&layout, &record(TraceOp::Write, 0, 2000000 * 512, 8192));
        assert_eq!(second, [(256 + 2000000 / 8 % 256, 2)]);
        assert!(layout.description().starts_with("packed: 3"), "{}", layout.description());
        let error = Layout::plan(&t, 1000, Some("7"), true).unwrap_err();
        assert!(error.to_string().contains("1; 2"), "{error}");
    }

    #[test]
    fn packing_goes_finer_before_it_folds() {
        let t = trace("0 1 0 8 0\n0 1 2000000 16 0\n0 2 77777777 8 1\n");
        let layout = Layout::plan(&t, 60, None, true).unwrap();
        assert!(layout.description().contains("3 touched places of 64 KiB"), "{layout:?}");
        let layout = Layout::plan(&t, 3, None, true).unwrap();
        assert!(layout.description().contains("FOLDED"), "{layout:?}");
        for offset in [0, 2000000 * 512, 2000008 * 512] {
            for (lba, n) in mapped(&layout, &record(TraceOp::Write, 0, offset, 4096)) {
                assert!(lba + n as u64 <= 3);
            }
        }
    }

    proptest::proptest! {
        /// Shortcuts lead where a search of all places leads.
        #[test]
        fn a_place_is_found_as_in_all_of_them(
            all in proptest::collection::btree_set((0u16..4, 0u64..1 << 40), 1..60),
            shift in 0u32..40, from in (0u16..5, 0u64..1 << 41),
        ) {
            let all: std::collections::BTreeSet<_> = all.iter().map(|(d, p)| (*d, p >> shift)).collect();
            let all: Vec<_> = all.iter().map(|(d, p)| (DeviceId(*d), *p)).collect();
            let places = Packed::new(&all);
            for (device, place) in all.iter().copied().chain([(DeviceId(from.0), from.1 >> shift)]) {
                let first = all.iter().position(|p| *p >= (device, place));
                let theirs = all.iter().filter(|p| p.0 == device && p.1 >= place).map(|p| p.1);
                let (index, found) = places.from(device, place);
                proptest::prop_assert_eq!(found, theirs.collect::<Vec<_>>());
                proptest::prop_assert!(found.is_empty() || first == Some(index));
            }
        }
    }

    /// A discard covers only what is there of its range.
    #[test]
    fn a_discard_of_untouched_places_disappears_when_packed() {
        let t = trace("0 1 0 8 0\n0 1 4096000 8 0\n");
        let layout = Layout::plan(&t, 600, None, true).unwrap();
        let whole = record(TraceOp::Discard, 0, 0, 1 << 40);
        assert_eq!(mapped(&layout, &whole), [(0, 512)]);
    }
}
