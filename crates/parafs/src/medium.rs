//! What the file system stands on: an in-place region, and segments that are written page by page.
//!
//! Owns: [`Medium`]. Promises: one face for a block device, whose first sectors are the in-place
//! region, and for flash with a simplified FTL; pages of a segment go out in their order, whoever
//! writes them; an acknowledged write is durable behind a flush. Never: decides where something is
//! written.

use crate::LayoutError;
use crate::error::{FsError, Result};
use crate::format::{Addr, Layout, SECTOR, Shape};
use flashlane_base::{Lba, mutant};
use flashlane_ftl::block::{BlockDev, BlockError, Io, Sectors, SectorsMut};
use flashlane_ftl::patience;
use flashlane_ftl::sftl::{SegmentState, Settle, Sftl, SftlError, name_some};
use flashlane_ocssd::device::Cause;
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Cx, Notify};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The medium below a file system.
#[derive(Clone)]
pub enum Medium {
    /// A block device: one region. Its FTL places sectors as it likes.
    Linear(Arc<dyn BlockDev>),
    /// Flash with a simplified FTL: a region is a channel, a segment a flash block.
    Flash(Flash),
}

/// Flash with a simplified FTL.
#[derive(Clone)]
pub struct Flash {
    sftl: Arc<Sftl>,
    meta: Arc<dyn BlockDev>,
    shared: Arc<Order>,
}

/// What pages of a segment wait for.
#[derive(Default)]
struct Order {
    /// A page went out, or won't.
    moved: Notify,
    /// Segments of which a page could not be sent, so that none behind it can.
    broken: Mutex<BTreeSet<u32>>,
}

impl From<Arc<Sftl>> for Medium {
    fn from(sftl: Arc<Sftl>) -> Medium {
        let meta = sftl.meta();
        Medium::Flash(Flash { sftl, meta, shared: Arc::default() })
    }
}

fn said(e: &BlockError) -> FsError {
    match e {
        BlockError::ReadOnly(why) => FsError::ReadOnly((*why).into()),
        other => FsError::Io(other.to_string()),
    }
}

fn of_flash(e: &SftlError) -> FsError {
    FsError::Io(e.to_string())
}

impl Medium {
    /// A block device.
    pub(crate) fn is_linear(&self) -> bool {
        matches!(self, Medium::Linear(_))
    }

    /// Why it can't have a file system, if it can't.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let of = match self {
            Medium::Linear(device) => device.info().content_bytes,
            Medium::Flash(flash) => {
                let info = flash.sftl.info();
                if (1..=crate::format::HEADS).contains(&info.open_segments) {
                    return Some("the flash allows fewer open blocks of a channel than its heads");
                }
                info.content_bytes
            }
        };
        (of != SECTOR).then_some("the medium keeps stamps in place of contents; use another store")
    }

    /// The areas of a file system on it. A block device has pages of so many sectors, and segments of
    /// so many pages; flash has its own.
    ///
    /// # Errors
    /// It is too small, or the numbers can't be.
    pub fn plan(
        &self,
        page_sectors: u32,
        segment_pages: u32,
    ) -> std::result::Result<Layout, LayoutError> {
        self.plan_with(page_sectors, segment_pages, false)
    }

    /// As [`Medium::plan`]. If `shared`, small nodes share pages, unless segments have more than
    /// 4,048 pages.
    ///
    /// # Errors
    /// As [`Medium::plan`].
    pub fn plan_with(
        &self,
        page_sectors: u32,
        segment_pages: u32,
        shared: bool,
    ) -> std::result::Result<Layout, LayoutError> {
        match self {
            Medium::Linear(device) => {
                let capacity = device.info().capacity;
                Layout::plan_linear_with(capacity, page_sectors, segment_pages, shared)
            }
            Medium::Flash(flash) => {
                let shape = flash.shape();
                Layout::plan_with(shape, shared && Layout::can_share(&shape))
            }
        }
    }

    /// It has as many sectors as a file system of this shape takes.
    pub(crate) fn has(&self, shape: &Shape) -> bool {
        match self {
            Medium::Linear(device) => {
                let pages = shape.pages().checked_mul(shape.page_sectors.into());
                let all = pages.and_then(|sectors| sectors.checked_add(shape.meta_sectors));
                all.is_some_and(|sectors| sectors <= device.info().capacity)
            }
            Medium::Flash(flash) => *shape == flash.shape(),
        }
    }

    /// How many pages of a segment were written, where the medium knows: of a block device it does
    /// not.
    pub(crate) fn written(&self, layout: &Layout, segment: u32) -> Option<Written> {
        let Medium::Flash(flash) = self else { return None };
        let (channel, block) = place(layout, segment);
        let sectors = flash.sftl.write_pointer(channel, block);
        let pages = sectors.div_ceil(layout.shape.page_sectors);
        Some(match flash.sftl.state(channel, block) {
            SegmentState::Gone => Written::Gone,
            // Its first page may be the one that failed: it takes no other before a trim.
            SegmentState::Failed => Written::Pages(pages.max(1)),
            _ => Written::Pages(pages),
        })
    }

    /// How many pages of a segment there are, where the medium knows.
    pub(crate) fn pages_there(&self, layout: &Layout, segment: u32) -> Option<u32> {
        let Medium::Flash(flash) = self else { return None };
        let (channel, block) = place(layout, segment);
        Some(flash.sftl.write_pointer(channel, block) / layout.shape.page_sectors)
    }

    /// How many of a segment's pages that can't be read were written for sure. If a program has
    /// failed in the segment, one of them is its page: it was written again elsewhere.
    pub(crate) fn lost_pages(&self, layout: &Layout, segment: u32, unread: &[u32]) -> u64 {
        let written = self.pages_surely_written(layout, segment);
        let lost = unread.iter().filter(|page| **page < written).count() as u64;
        let (channel, block) = place(layout, segment);
        let has_failed = match self {
            Medium::Linear(_) => false,
            Medium::Flash(flash) => flash.sftl.state(channel, block) == SegmentState::Failed,
        };
        lost.saturating_sub(u64::from(has_failed && !mutant!("parafs.failed-page-is-lost")))
    }

    /// Number of pages at the start of a segment that no power cut can have torn. If one of them
    /// can't be read, it was written.
    fn pages_surely_written(&self, layout: &Layout, segment: u32) -> u32 {
        match self {
            Medium::Linear(device) if device.tears_to_errors() => 0,
            Medium::Linear(_) => layout.shape.segment_pages,
            Medium::Flash(flash) => {
                let (channel, block) = place(layout, segment);
                flash.sftl.surely_written(channel, block) / layout.shape.page_sectors
            }
        }
    }

    /// Flash blocks that were written and can't be read, in words; nothing where there are none. It
    /// is not known what they hold.
    pub(crate) fn doubts(&self) -> Option<String> {
        let Medium::Flash(flash) = self else { return None };
        flash.sftl.is_in_doubt().then(|| name_some(&flash.sftl.unreadable()))
    }

    /// The number of flash blocks in [`Medium::doubts`]; a dead die counts as one.
    pub(crate) fn in_doubt(&self) -> u64 {
        match self {
            Medium::Linear(_) => 0,
            Medium::Flash(flash) => flash.sftl.unreadable().len() as u64,
        }
    }

    /// More than a power cut can leave of them.
    pub(crate) fn has_lost_blocks(&self) -> bool {
        match self {
            Medium::Linear(_) => false,
            Medium::Flash(flash) => flash.sftl.is_in_doubt() && !flash.sftl.may_be_torn(),
        }
    }

    /// Ends the doubt about them.
    pub(crate) async fn settle(&self, cx: &Cx, how: Settle) -> Result<()> {
        let Medium::Flash(flash) = self else { return Ok(()) };
        flash.sftl.settle(cx, how).await.map(drop).map_err(|e| of_flash(&e))
    }

    /// How many pages must be programmed behind a page before no torn program can take it along; 0
    /// where none can at any time.
    pub(crate) fn pair_pages(&self) -> u32 {
        match self {
            Medium::Linear(_) => 0,
            Medium::Flash(flash) => {
                let info = flash.sftl.info();
                info.pair_sectors.div_ceil(info.page_sectors)
            }
        }
    }

    /// A page of the segment could not be written, so that none behind it can be.
    pub(crate) fn is_broken(&self, layout: &Layout, segment: u32) -> bool {
        let Medium::Flash(flash) = self else { return false };
        let (channel, block) = place(layout, segment);
        flash.sftl.state(channel, block) == SegmentState::Failed
            || flash.shared.broken.lock().contains(&segment)
    }

    /// Segments that a head fills at a time: each PU of a channel has one.
    pub(crate) fn lanes(&self, layout: &Layout) -> u32 {
        match self {
            Medium::Linear(_) => 1,
            Medium::Flash(flash) => {
                let info = flash.sftl.info();
                // The device may allow fewer open blocks of a channel than that.
                let allowed = match info.open_segments {
                    0 => u32::MAX,
                    open => open.saturating_sub(1) / crate::format::HEADS,
                };
                layout.lanes(info.channel_pus.min(allowed))
            }
        }
    }

    /// What the page-mapped region has under way on a channel: reads and writes, in pages, and whether
    /// it erases.
    pub(crate) fn meta_busy(&self, layout: &Layout, region: u32) -> ([u64; 2], bool) {
        let Medium::Flash(flash) = self else { return ([0; 2], false) };
        let busy = flash.sftl.meta_busy(region);
        let pages = |sectors: u32| u64::from(sectors.div_ceil(layout.shape.page_sectors));
        ([pages(busy.reads), pages(busy.writes)], busy.erases > 0)
    }

    /// The purposes of the sectors that belong to no segment: name, number of sectors.
    pub(crate) fn beside_segments(&self, layout: &Layout) -> Vec<(&'static str, u64)> {
        match self {
            Medium::Linear(device) => {
                let meta = layout.shape.meta_sectors;
                let log = layout.shape.pages() * u64::from(layout.shape.page_sectors);
                let rest = device.info().capacity.saturating_sub(meta + log);
                vec![("in-place region", meta), ("less than a segment, at the end", rest)]
            }
            Medium::Flash(flash) => {
                let shares = flash.sftl.shares();
                vec![
                    ("in-place region", shares.meta),
                    ("its over-provisioning and spare, in S-FTL", shares.meta_spare),
                    ("blocks that replace bad ones, in S-FTL", shares.spare),
                    ("bad blocks", shares.bad),
                ]
            }
        }
    }

    /// PUs of a channel; nothing of a block device, whose FTL knows.
    pub(crate) fn channel_pus(&self) -> Option<u32> {
        match self {
            Medium::Linear(_) => None,
            Medium::Flash(flash) => Some(flash.sftl.info().channel_pus),
        }
    }

    /// The PU of its channel that a segment lies on, if it has been written to.
    pub(crate) fn pu(&self, layout: &Layout, segment: u32) -> Option<u32> {
        let Medium::Flash(flash) = self else { return None };
        let (channel, block) = place(layout, segment);
        flash.sftl.pu(channel, block)
    }

    /// A segment of a region whose flash block has little wear: its content should move, so that the
    /// block is used more (S-FTL's hint of static wear leveling).
    pub(crate) fn lags(&self, layout: &Layout, region: u32) -> Option<u32> {
        let Medium::Flash(flash) = self else { return None };
        flash.sftl.lags(region).map(|block| region * layout.shape.region_segments + block)
    }

    fn meta(&self) -> &dyn BlockDev {
        match self {
            Medium::Linear(device) => &**device,
            Medium::Flash(flash) => &*flash.meta,
        }
    }

    /// Reads sectors of the in-place region.
    pub(crate) async fn read_meta(&self, cx: &Cx, at: u64, into: &mut [u8]) -> Result<()> {
        read(cx, self.meta(), at, into).await
    }

    /// The same, again over time where it fails: nothing is decided by a read that failed once.
    pub(crate) async fn read_meta_again(&self, cx: &Cx, at: u64, into: &mut [u8]) -> Result<()> {
        again(cx, async || self.read_meta(cx, at, into).await).await
    }

    /// Reads a page of the log, again over time where it fails.
    pub(crate) async fn read_again(
        &self,
        cx: &Cx,
        layout: &Layout,
        addr: Addr,
        into: &mut [u8],
    ) -> Result<()> {
        let (segment, page) = layout.segment_of(addr);
        match self.pages_there(layout, segment).is_some_and(|there| page >= there) {
            // Nothing is there to be read.
            true => self.read(cx, layout, addr, into).await,
            false => again(cx, async || self.read(cx, layout, addr, into).await).await,
        }
    }

    /// Writes sectors of the in-place region. Each is written whole or not at all.
    pub(crate) async fn write_meta(&self, cx: &Cx, at: u64, content: &[u8]) -> Result<()> {
        write(cx, self.meta(), at, content).await
    }

    /// Reads a page of the log.
    pub(crate) async fn read(
        &self,
        cx: &Cx,
        layout: &Layout,
        addr: Addr,
        into: &mut [u8],
    ) -> Result<()> {
        match self {
            Medium::Linear(device) => read(cx, &**device, sector_of(layout, addr), into).await,
            Medium::Flash(flash) => flash.read(cx, layout, addr, into).await,
        }
    }

    /// Writes a page of the log.
    pub(crate) async fn write(
        &self,
        cx: &Cx,
        layout: &Layout,
        addr: Addr,
        content: &[u8],
    ) -> Result<()> {
        match self {
            Medium::Linear(device) => write(cx, &**device, sector_of(layout, addr), content).await,
            Medium::Flash(flash) => flash.in_order(cx, layout, addr, Load::Page(content)).await,
        }
    }

    /// Writes padding over so many pages of the log, of one segment: they read as zeros. A block device
    /// needs none.
    pub(crate) async fn pad(&self, cx: &Cx, layout: &Layout, addr: Addr, pages: u32) -> Result<()> {
        let Medium::Flash(flash) = self else { return Ok(()) };
        let sectors = pages * layout.shape.page_sectors;
        flash.in_order(cx, layout, addr, Load::Padding(sectors)).await
    }

    /// Closes the page pairs of a segment that takes no more pages, also where one could not be
    /// written.
    pub(crate) async fn seal(&self, cx: &Cx, layout: &Layout, segment: u32) -> Result<()> {
        let Medium::Flash(flash) = self else { return Ok(()) };
        let (channel, block) = place(layout, segment);
        flash.sftl.seal(cx, channel, block).await.map_err(|e| of_flash(&e))
    }

    /// Says that a segment's content is not needed any more; on flash it is erased then.
    pub(crate) async fn trim(&self, cx: &Cx, layout: &Layout, segment: u32) -> Result<()> {
        match self {
            Medium::Linear(_) => self.trim_rest(cx, layout, segment, 0).await,
            Medium::Flash(flash) => flash.trim(cx, layout, segment).await,
        }
    }

    /// Says that nothing was written to the pages of a segment from `page` on. Flash knows.
    pub(crate) async fn trim_rest(
        &self,
        cx: &Cx,
        layout: &Layout,
        segment: u32,
        page: u32,
    ) -> Result<()> {
        let Medium::Linear(device) = self else { return Ok(()) };
        let pages = layout.shape.segment_pages - page;
        if pages == 0 {
            return Ok(());
        }
        let first = Lba::new(sector_of(layout, layout.addr(segment, page)));
        let trim = Io::discard(first, pages * layout.shape.page_sectors);
        device.start(cx, trim).await.map_err(|e| said(&e))
    }

    /// Makes everything durable that was acknowledged.
    pub(crate) async fn flush(&self, cx: &Cx) -> Result<()> {
        if let Medium::Flash(flash) = self
            && !flash.sftl.flush(cx).await
        {
            return Err(FsError::ReadOnly("the host could not keep what was written".into()));
        }
        self.meta().start(cx, Io::flush()).await.map_err(|e| said(&e))
    }
}

/// What goes to the next pages of a segment.
enum Load<'c> {
    Page(&'c [u8]),
    /// So many sectors.
    Padding(u32),
}

/// What was written to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Pages(u32),
    /// The medium has no block for it any more.
    Gone,
}

/// Channel of a segment, and its number there.
fn place(layout: &Layout, segment: u32) -> (u32, u32) {
    (layout.region_of(segment), segment % layout.shape.region_segments)
}

impl Flash {
    fn shape(&self) -> Shape {
        let info = self.sftl.info();
        Shape {
            regions: info.channels,
            region_segments: info.segments,
            segment_pages: info.segment_sectors / info.page_sectors,
            page_sectors: info.page_sectors,
            meta_sectors: self.meta.info().capacity,
        }
    }

    async fn read(&self, cx: &Cx, layout: &Layout, addr: Addr, into: &mut [u8]) -> Result<()> {
        let (segment, page) = layout.segment_of(addr);
        let (channel, block) = place(layout, segment);
        let first = page * layout.shape.page_sectors;
        let read = self.sftl.read(cx, channel, block, first, SectorsMut::One(into), true).await;
        read.map_err(|e| match e {
            SftlError::Invalid { .. } if self.sftl.is_in_doubt() => {
                let doubts = name_some(&self.sftl.unreadable());
                FsError::Io(format!("page {page} of segment {segment} can't be had: {doubts}"))
            }
            e => of_flash(&e),
        })
    }

    /// Flash is written in order: what goes to a page waits for those before it, which others send.
    async fn in_order(&self, cx: &Cx, layout: &Layout, addr: Addr, load: Load<'_>) -> Result<()> {
        let (segment, page) = layout.segment_of(addr);
        let (channel, block) = place(layout, segment);
        let first = page * layout.shape.page_sectors;
        let (sftl, order) = (&*self.sftl, &*self.shared);
        let ready = || {
            sftl.write_pointer(channel, block) >= first
                || sftl.state(channel, block) == SegmentState::Failed
                || order.broken.lock().contains(&segment)
        };
        order.moved.wait(cx, ready).await;
        if sftl.write_pointer(channel, block) != first {
            order.moved.wake(cx);
            return Err(FsError::Io(format!("segment {segment} takes no more pages")));
        }
        let done = match load {
            Load::Page(content) => {
                let content = Sectors::One(content);
                let append = sftl.append(cx, channel, block, first, content, Cause::User, true);
                order.moved.wake(cx);
                append.await
            }
            Load::Padding(sectors) => {
                let append = sftl.append_padding(cx, channel, block, first, sectors);
                order.moved.wake(cx);
                append.await
            }
        };
        if done.is_err() {
            order.broken.lock().insert(segment);
            order.moved.wake(cx);
        }
        done.map_err(|e| of_flash(&e))
    }

    async fn trim(&self, cx: &Cx, layout: &Layout, segment: u32) -> Result<()> {
        let (channel, block) = place(layout, segment);
        self.sftl.trim(cx, channel, block).await.map_err(|e| of_flash(&e))?;
        self.shared.broken.lock().remove(&segment);
        Ok(())
    }
}

/// Does a read, and where the medium could not give it does it again after longer and longer waits.
async fn again(cx: &Cx, mut read: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let mut outcome = read().await;
    let failed = |outcome: &Result<()>| matches!(outcome, Err(FsError::Io(_)));
    if failed(&outcome) && !mutant!("parafs.mount-has-no-patience") {
        patience::read_again(cx, vec![()], async |left: Vec<()>| {
            outcome = read().await;
            if failed(&outcome) { left } else { Vec::new() }
        })
        .await;
    }
    outcome
}

/// The first sector of a page on a block device.
pub(crate) fn sector_of(layout: &Layout, addr: Addr) -> u64 {
    let page = u64::from(addr.0) - 1;
    layout.shape.meta_sectors + page * u64::from(layout.shape.page_sectors)
}

async fn read(cx: &Cx, device: &dyn BlockDev, at: u64, into: &mut [u8]) -> Result<()> {
    let sectors = (into.len() / SECTOR) as u32;
    device.start(cx, Io::read(Lba::new(at), sectors, into)).await.map_err(|e| said(&e))
}

async fn write(cx: &Cx, device: &dyn BlockDev, at: u64, content: &[u8]) -> Result<()> {
    let sectors = (content.len() / SECTOR) as u32;
    device.start(cx, Io::write(Lba::new(at), sectors, false, content)).await.map_err(|e| said(&e))
}
