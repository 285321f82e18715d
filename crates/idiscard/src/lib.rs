//! iDiscard: a layer that discards the dead inode blocks of the ext4 file system above it.
//!
//! Owns: the layer [`IDISCARD`], which stands on logical sectors: it finds ext4 on the whole drive or in
//! partitions, follows it in what the host writes ("iDiscard: Enhanced Discard() Scheme for Flash Storage
//! Devices", section III, does the same in the kernel), and discards each block of inodes that is dead. Promises: no
//! request of the host is changed, refused or added; what is not ext4, or is not understood, is left
//! alone, and a sentence says why; a discard and a request at the same sector never meet. Never: writes.
//!
//! The way through it: [`layer`] is the way of a request, `state.rs` what is followed and in which order,
//! [`flashlane_ext4::Shadow`] what is dead.

mod layer;
mod partitions;
mod state;
#[cfg(test)]
mod tests;

pub use layer::Idiscard;

use flashlane_ext4::SECTOR;
use flashlane_ftl::layer::{
    Asked, Built, Find, Kind, Later, Layer, LayerError, Needs, Pus, Refusal, Seam, Settings, Side,
    Stands,
};
use flashlane_rt::Cx;
use serde_json::{Value, json};
use std::sync::Arc;

pub struct IdiscardKind;

/// Discards dead inode blocks.
pub static IDISCARD: IdiscardKind = IdiscardKind;

impl IdiscardKind {
    /// Settings, of which `zeros` says that blocks of zeros in inode tables are discarded, too.
    pub fn with(zeros: bool) -> Settings {
        json!({ "zeros": zeros })
    }
}

fn zeros(settings: &Settings) -> bool {
    settings["zeros"].as_bool().unwrap_or(false)
}

impl Kind for IdiscardKind {
    fn name(&self) -> &'static str {
        "idiscard"
    }

    fn stands(&self) -> Stands {
        let (on, side, pus) = (Needs::Block, Side::Host, Pus::Balanced);
        Stands { on, side, pus, needs_blank: false }
    }

    fn settings(&self, asked: &dyn Asked, base: &Settings) -> Settings {
        IdiscardKind::with(asked.flag("zeros").unwrap_or(zeros(base)))
    }

    fn defaults(&self) -> Settings {
        IdiscardKind::with(false)
    }

    fn on_image(&self, settings: Settings) -> Settings {
        settings
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        let known = settings["zeros"].is_boolean();
        known.then_some(()).ok_or_else(|| "its setting `zeros` is not true or false".into())
    }

    fn described(&self, settings: &Settings) -> Value {
        json!({ "kind": "idiscard", "zeros": zeros(settings) })
    }

    fn differs(
        &self,
        asked: &Settings,
        found: &Settings,
        _: u32,
    ) -> Option<(&'static str, String)> {
        let (asked, found) = (zeros(asked), zeros(found));
        (asked != found).then(|| ("zeros", found.to_string()))
    }

    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built> {
        Box::pin(async move {
            let below = below.block();
            if below.info().content_bytes != SECTOR {
                let why = "`idiscard` reads what is written, and this store keeps no content: set \
                           `device.store` to \"memory\" or \"compact\"";
                return Err(LayerError::create(Refusal::Settings, why));
            }
            let layer = Idiscard::start_on(cx, below, zeros(settings)).await;
            Ok(layer as Arc<dyn Layer>)
        })
    }

    /// There is nothing of it on the medium.
    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        _: &'a Find,
    ) -> Later<'a, Built> {
        self.create(cx, below, settings)
    }
}
