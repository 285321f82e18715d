//! Where the areas lie, for a medium of some shape.
//!
//! Owns: [`Shape`], [`Layout`]. Promises: no two areas overlap, and all lie on the medium.
//! Never: changes once a file system is made.

use super::{SECTOR, areas::WINDOW_NUMBER_MAX};

/// What the file system is told of the medium below it (ParaFS paper, 3.1: "the number of flash
/// channels, the flash page size and the flash block size").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Regions: flash channels, or 1 where the medium says nothing of them.
    pub regions: u32,
    /// Segments of each region: flash blocks.
    pub region_segments: u32,
    /// Pages of a segment.
    pub segment_pages: u32,
    /// Sectors of 4 KiB of a page: what is programmed at once.
    pub page_sectors: u32,
    /// Sectors of the in-place region.
    pub meta_sectors: u64,
}

impl Shape {
    pub fn segments(&self) -> u32 {
        self.regions * self.region_segments
    }

    pub fn pages(&self) -> u64 {
        u64::from(self.segments()) * u64::from(self.segment_pages)
    }

    pub fn page_bytes(&self) -> usize {
        self.page_sectors as usize * SECTOR
    }
}

/// Entries of a sector of the node address table.
pub(crate) const NAT_ENTRIES: u32 = 508;
/// Entries of a sector of the summaries.
pub(crate) const SUMMARY_ENTRIES: u32 = 508;
/// Words of a sector of the window: segments that it names, mostly.
pub(crate) const WINDOW_WORDS: usize = 1000;
/// Bytes of a segment's entry beside its bitmap.
pub(crate) const SIT_ENTRY: usize = 16;
/// Files that are open and have no name, at most: what a checkpoint has room for.
pub(crate) const ORPHANS_MAX: u32 = 16_384;
/// Changed entries of the node address table that a checkpoint keeps beside the table.
pub(crate) const NAT_JOURNAL: u32 = 680;
/// The same of segments.
pub(crate) const SIT_JOURNAL: u32 = 64;
/// Sectors of the window.
const WINDOW_SECTORS: u64 = 64;
/// Segments that a head is given at a time (paper, 3.2), at most.
pub(crate) const ASSIGNED: u32 = 10;
/// Heads of a region: hot, warm and cold, for nodes and for data (paper, 3.2).
pub(crate) const HEADS: u32 = 6;

/// Segments that a head fills at a time, at most.
pub(crate) const LANES_MAX: u32 = 16;

/// The least that a file system works on: regions with room for all heads and for cleaning.
const REGION_SEGMENTS_MIN: u32 = 12;
const SEGMENTS_MIN: u32 = 24;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error(
        "the medium is too small: {segments} segments in {regions} regions, at least {needed} of \
         them are needed (each region {REGION_SEGMENTS_MIN})"
    )]
    Segments { regions: u32, segments: u32, needed: u32 },
    #[error(
        "the in-place region is too small: {found} sectors of 4 KiB, {needed} are needed for so \
         many segments"
    )]
    Meta { found: u64, needed: u64 },
    #[error("{0} pages are more than an address of 32 bits names: use larger pages")]
    Pages(u64),
    #[error("{0} segments are more than 28 bits name: use larger ones")]
    Many(u64),
    #[error("a page of {0} sectors: it must be 1 to 16, a power of two")]
    Page(u32),
    #[error("a segment of {0} pages: it must have 8 to 16384")]
    Segment(u32),
}

/// The areas of a file system. Places and lengths are in sectors of the in-place region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub shape: Shape,
    /// Small nodes share pages: the segment table has units of each page, and there are twice as
    /// many numbers of nodes.
    pub(crate) shared: bool,
    /// Nodes that there can be, the number 0 included.
    pub(crate) nids: u32,
    pub(crate) packs: [u64; 2],
    pub(crate) pack_sectors: u64,
    pub(crate) window: u64,
    pub(crate) window_sectors: u64,
    /// Two copies of each sector lie side by side.
    pub(crate) sit: u64,
    pub(crate) sit_sectors: u32,
    /// As `sit`.
    pub(crate) nat: u64,
    pub(crate) nat_sectors: u32,
    pub(crate) summaries: u64,
    /// Sectors of one segment's summary.
    pub(crate) summary_sectors: u32,
    /// Sectors of all areas.
    pub(crate) end: u64,
}

impl Layout {
    /// Places the areas.
    ///
    /// # Errors
    /// The medium has not the shape for a file system.
    pub fn plan(shape: Shape) -> Result<Layout, LayoutError> {
        Layout::plan_with(shape, false)
    }

    /// Whether nodes can share pages: the units of a segment's pages fit into a sector.
    pub(crate) fn can_share(shape: &Shape) -> bool {
        SIT_ENTRY + shape.segment_pages as usize <= SECTOR - super::areas::AREA_HEAD
            && shape.pages() < u64::from(super::pack::SHARED_NIDS)
    }

    /// As [`Layout::plan`], of a file system whose small nodes share pages, or not.
    pub(crate) fn plan_with(shape: Shape, shared: bool) -> Result<Layout, LayoutError> {
        let Shape { regions, region_segments, segment_pages, page_sectors, meta_sectors } = shape;
        if !(1..=16).contains(&page_sectors) || !page_sectors.is_power_of_two() {
            return Err(LayoutError::Page(page_sectors));
        }
        if !(8..=16_384).contains(&segment_pages) || shared && !Layout::can_share(&shape) {
            return Err(LayoutError::Segment(segment_pages));
        }
        let segments = u64::from(regions) * u64::from(region_segments);
        let needed = SEGMENTS_MIN.max(regions.saturating_mul(REGION_SEGMENTS_MIN));
        if regions == 0 || segments < u64::from(needed) {
            let segments = segments.min(u32::MAX.into()) as u32;
            return Err(LayoutError::Segments { regions, segments, needed });
        }
        let pages = segments * u64::from(segment_pages);
        if pages >= u64::from(u32::MAX) - 1 {
            return Err(LayoutError::Pages(pages));
        }
        if segments > u64::from(WINDOW_NUMBER_MAX) + 1 {
            return Err(LayoutError::Many(segments));
        }
        let segments = segments as u32;
        // A file takes a node and, where it is not tiny, a page: half of all pages can be nodes.
        let nids = if shared { pages } else { pages / 2 };
        let nids = nids.max(u64::from(NAT_ENTRIES)) as u32;
        let nat_sectors = nids.div_ceil(NAT_ENTRIES);
        let sit_sectors = segments.div_ceil(sit_entries(sit_entry(segment_pages, shared)));
        let summary_sectors = segment_pages.div_ceil(SUMMARY_ENTRIES);
        let entry = sit_entry(segment_pages, shared);
        let pack_sectors = pack_sectors(regions, nat_sectors, sit_sectors, entry);
        let mut end = 2; // the superblock, twice
        let mut area = |sectors: u64| {
            let at = end;
            end += sectors;
            at
        };
        let packs = [area(pack_sectors), area(pack_sectors)];
        let window = area(WINDOW_SECTORS);
        let sit = area(2 * u64::from(sit_sectors));
        let nat = area(2 * u64::from(nat_sectors));
        let summaries = area(u64::from(segments) * u64::from(summary_sectors));
        if end > meta_sectors {
            return Err(LayoutError::Meta { found: meta_sectors, needed: end });
        }
        Ok(Layout {
            shape,
            shared,
            nids,
            packs,
            pack_sectors,
            window,
            window_sectors: WINDOW_SECTORS,
            sit,
            sit_sectors,
            nat,
            nat_sectors,
            summaries,
            summary_sectors,
            end,
        })
    }

    /// The same for a block device without an in-place region of its own: the first sectors become
    /// it, and the rest is one region.
    ///
    /// # Errors
    /// As [`Layout::plan`].
    pub fn plan_linear(
        sectors: u64,
        page_sectors: u32,
        segment_pages: u32,
    ) -> Result<Layout, LayoutError> {
        Layout::plan_linear_with(sectors, page_sectors, segment_pages, false)
    }

    /// As [`Layout::plan_linear`], of a file system whose small nodes share pages where they can,
    /// or not.
    pub(crate) fn plan_linear_with(
        sectors: u64,
        page_sectors: u32,
        segment_pages: u32,
        shared: bool,
    ) -> Result<Layout, LayoutError> {
        let segment = u64::from(page_sectors) * u64::from(segment_pages);
        if segment == 0 {
            return Err(LayoutError::Segment(segment_pages));
        }
        let with = |segments: u64| {
            let region_segments = segments.min(u32::MAX.into()) as u32;
            let meta_sectors = u64::MAX;
            let shape =
                Shape { regions: 1, region_segments, segment_pages, page_sectors, meta_sectors };
            Layout::plan_with(shape, shared && Layout::can_share(&shape))
        };
        // The areas grow with the segments, and what is left for those shrinks.
        let mut segments = sectors / segment;
        loop {
            let layout = with(segments)?;
            // Segments begin at multiples of their size, as flash blocks do.
            let meta = layout.end.next_multiple_of(segment);
            let fit = sectors.saturating_sub(meta) / segment;
            if fit >= segments {
                let shape = Shape { meta_sectors: meta, ..layout.shape };
                return Ok(Layout { shape, ..layout });
            }
            segments = fit.min(segments - 1);
        }
    }

    pub(crate) fn segment_of(&self, page: super::Addr) -> (u32, u32) {
        let page = page.0.wrapping_sub(1);
        (page / self.shape.segment_pages, page % self.shape.segment_pages)
    }

    pub(crate) fn addr(&self, segment: u32, page: u32) -> super::Addr {
        super::Addr(1 + segment * self.shape.segment_pages + page)
    }

    /// It lies on the medium.
    pub(crate) fn has(&self, addr: super::Addr) -> bool {
        addr.is_page() && u64::from(addr.0) <= self.shape.pages()
    }

    pub(crate) fn region_of(&self, segment: u32) -> u32 {
        segment / self.shape.region_segments
    }

    /// Which sector of the in-place region has a copy of a sector of the segment table.
    pub(crate) fn sit_at(&self, sector: u32, copy: bool) -> u64 {
        self.sit + 2 * u64::from(sector) + u64::from(copy)
    }

    /// The same of the node address table.
    pub(crate) fn nat_at(&self, sector: u32, copy: bool) -> u64 {
        self.nat + 2 * u64::from(sector) + u64::from(copy)
    }

    pub(crate) fn summary_at(&self, segment: u32) -> u64 {
        self.summaries + u64::from(segment) * u64::from(self.summary_sectors)
    }

    /// Segments in a sector of the segment table.
    pub(crate) fn sit_entries(&self) -> u32 {
        sit_entries(self.sit_entry())
    }

    /// Bytes of a segment's entry.
    pub(crate) fn sit_entry(&self) -> usize {
        sit_entry(self.shape.segment_pages, self.shared)
    }

    /// Segments that a head is given at a time: ten (paper, 3.2), fewer where that would be more
    /// than a sixteenth of the region for all heads: with 256 blocks a channel ten would be 23%.
    pub(crate) fn assigned(&self) -> u32 {
        (self.shape.region_segments / (16 * HEADS)).clamp(1, ASSIGNED)
    }

    /// Segments that a head fills at a time where a channel has so many PUs: one on each, fewer on
    /// small devices.
    pub(crate) fn lanes(&self, channel_pus: u32) -> u32 {
        let most = (self.shape.region_segments / (16 * HEADS)).clamp(1, LANES_MAX);
        channel_pus.clamp(1, most)
    }
}

/// Bytes of a bitmap of a segment's pages.
pub(crate) fn bitmap_bytes(segment_pages: u32) -> usize {
    (segment_pages as usize).div_ceil(8)
}

fn sit_entry(segment_pages: u32, shared: bool) -> usize {
    SIT_ENTRY + if shared { segment_pages as usize } else { bitmap_bytes(segment_pages) }
}

fn sit_entries(entry: usize) -> u32 {
    // At least one: a bitmap of 16,384 pages has 2 KiB.
    ((SECTOR - super::areas::AREA_HEAD) / entry) as u32
}

/// What the largest checkpoint takes.
fn pack_sectors(regions: u32, nat_sectors: u32, sit_sectors: u32, entry: usize) -> u64 {
    let bitmaps = (nat_sectors as usize).div_ceil(8) + (sit_sectors as usize).div_ceil(8);
    let journals = NAT_JOURNAL as usize * 12 + SIT_JOURNAL as usize * (4 + entry);
    let heads = (regions * HEADS) as usize * (8 + 8 * (LANES_MAX + ASSIGNED) as usize);
    let body = bitmaps + journals + heads + ORPHANS_MAX as usize * 4 + 256;
    // A head and a foot around it.
    2 + body.div_ceil(SECTOR) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_and_fit() {
        for (sectors, page, pages) in [(16_384, 1, 64), (65_536, 2, 64), (4 << 20, 2, 256)] {
            let l = Layout::plan_linear(sectors, page, pages).expect("it fits");
            let order = [0, l.packs[0], l.packs[1], l.window, l.sit, l.nat, l.summaries, l.end];
            assert!(order.windows(2).all(|two| two[0] < two[1]), "{order:?}");
            assert!(l.end <= l.shape.meta_sectors);
            let segment = u64::from(page * pages);
            let all = l.shape.meta_sectors + u64::from(l.shape.segments()) * segment;
            assert!(all <= sectors && all + 2 * segment > sectors, "{all} of {sectors}");
        }
    }

    #[test]
    fn what_is_too_small_is_refused() {
        assert!(matches!(Layout::plan_linear(1500, 1, 64), Err(LayoutError::Segments { .. })));
        assert!(matches!(Layout::plan_linear(0, 1, 64), Err(LayoutError::Segments { .. })));
        assert_eq!(Layout::plan_linear(1 << 20, 3, 64), Err(LayoutError::Page(3)));
        assert_eq!(Layout::plan_linear(1 << 20, 1, 4), Err(LayoutError::Segment(4)));
        let shape = Shape {
            regions: 4,
            region_segments: 64,
            segment_pages: 256,
            page_sectors: 2,
            meta_sectors: 100,
        };
        assert!(matches!(Layout::plan(shape), Err(LayoutError::Meta { found: 100, .. })));
        let many = Shape { region_segments: u32::MAX / 256, meta_sectors: u64::MAX, ..shape };
        assert!(matches!(Layout::plan(many), Err(LayoutError::Pages(_))));
        let many = Shape { region_segments: (1 << 26) + 1, segment_pages: 8, ..many };
        assert_eq!(Layout::plan(many), Err(LayoutError::Many((1 << 28) + 4)));
    }
}
