//! What the file system stands on: an in-place region, and segments that are written page by page.
//!
//! Owns: [`Medium`]. Promises: one face for a block device, whose first sectors are the in-place
//! region, and for flash with a simplified FTL; an acknowledged write is durable behind a flush.
//! Never: decides where something is written.

use crate::error::{FsError, Result};
use crate::format::{Addr, Layout, SECTOR, Shape};
use flashlane_base::Lba;
use flashlane_ftl::block::{BlockDev, BlockError, Io};
use flashlane_rt::Cx;
use std::sync::Arc;

/// The medium below a file system.
#[derive(Clone)]
pub enum Medium {
    /// A block device: one region. Its FTL places sectors as it likes.
    Linear(Arc<dyn BlockDev>),
}

fn said(e: &BlockError) -> FsError {
    match e {
        BlockError::ReadOnly(why) => FsError::ReadOnly((*why).into()),
        other => FsError::Io(other.to_string()),
    }
}

impl Medium {
    /// Bytes of content of a sector: 4096, or 8 where contents are stamps.
    pub(crate) fn content_bytes(&self) -> usize {
        match self {
            Medium::Linear(device) => device.info().content_bytes,
        }
    }

    /// The shape of a block device's file system, with pages of so many sectors and segments of so
    /// many pages.
    ///
    /// # Errors
    /// It is too small, or the numbers can't be.
    pub fn plan(
        &self,
        page_sectors: u32,
        segment_pages: u32,
    ) -> std::result::Result<Layout, crate::LayoutError> {
        match self {
            Medium::Linear(device) => {
                Layout::plan_linear(device.info().capacity, page_sectors, segment_pages)
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
        }
    }

    /// Reads sectors of the in-place region.
    pub(crate) async fn read_meta(&self, cx: &Cx, at: u64, into: &mut [u8]) -> Result<()> {
        match self {
            Medium::Linear(device) => read(cx, &**device, at, into).await,
        }
    }

    /// Writes sectors of the in-place region. Each is written whole or not at all.
    pub(crate) async fn write_meta(&self, cx: &Cx, at: u64, content: &[u8]) -> Result<()> {
        match self {
            Medium::Linear(device) => write(cx, &**device, at, content).await,
        }
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
        }
    }

    /// Says that a segment's content is not needed any more.
    pub(crate) async fn trim(&self, cx: &Cx, layout: &Layout, segment: u32) -> Result<()> {
        match self {
            Medium::Linear(device) => {
                let first = Lba::new(sector_of(layout, layout.addr(segment, 0)));
                let sectors = layout.shape.segment_pages * layout.shape.page_sectors;
                device.start(cx, Io::discard(first, sectors)).await.map_err(|e| said(&e))
            }
        }
    }

    /// Makes everything durable that was acknowledged.
    pub(crate) async fn flush(&self, cx: &Cx) -> Result<()> {
        match self {
            Medium::Linear(device) => device.start(cx, Io::flush()).await.map_err(|e| said(&e)),
        }
    }
}

fn sector_of(layout: &Layout, addr: Addr) -> u64 {
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
