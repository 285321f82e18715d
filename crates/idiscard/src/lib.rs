//! iDiscard: a layer that discards the dead inode blocks of the ext4 file system above it.
//!
//! Owns: the layer [`IDISCARD`], which stands on logical sectors: it finds ext4 on the whole drive or in
//! partitions, follows it in what the host writes ("iDiscard: Enhanced Discard() Scheme for Flash Storage
//! Devices", section III, does the same in the kernel), and discards each block of inodes that is dead, and
//! what else is wanted ([`Ghosts`]). Promises: no request of the host is changed or refused; what is not
//! ext4, or is not understood, is left alone, and a sentence says why; a discard and a request at the same
//! sector never meet. Never: writes.
//!
//! The way through it: [`layer`] is the way of a request, `state.rs` what is followed and in which order,
//! [`flashlane_ext4::Shadow`] what is dead, `pending.rs` what else waits for its discard. `pages.rs` counts
//! what the drive holds, [`recording`] does the same for a recorded trace.

mod layer;
mod pages;
mod partitions;
mod pending;
pub mod recording;
mod state;
#[cfg(test)]
mod tests;

pub use layer::Idiscard;

pub use flashlane_ext4::Wanted;

use flashlane_ext4::SECTOR;
use flashlane_ftl::layer::{
    Asked, Built, Find, Kind, Later, Layer, LayerError, Needs, Pus, Refusal, Seam, Settings, Side,
    Stands,
};
use flashlane_rt::Cx;
use serde_json::Value;
use std::sync::Arc;

pub struct IdiscardKind;

/// Discards dead inode blocks.
pub static IDISCARD: IdiscardKind = IdiscardKind;

/// What is discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ghosts {
    /// Beside blocks of dead inodes.
    pub wanted: Wanted,
    /// Nothing is: it is counted only.
    pub watch: bool,
}

/// What can be chosen, by the key of a setting, and what it is.
type Choice = (&'static str, fn(&mut Ghosts) -> &mut bool);

impl Ghosts {
    const CHOICES: [Choice; 5] = [
        ("zeros", |g| &mut g.wanted.zeros),
        ("bitmaps", |g| &mut g.wanted.bitmaps),
        ("journal", |g| &mut g.wanted.journal),
        ("freed", |g| &mut g.wanted.freed),
        ("watch", |g| &mut g.watch),
    ];

    /// Every request may say something, not only those at metadata.
    pub(crate) fn follows_all(&self) -> bool {
        !self.watch && (self.wanted.bitmaps || self.wanted.journal || self.wanted.freed)
    }

    /// Keys of the settings, each true or false.
    pub fn keys() -> [&'static str; 5] {
        Ghosts::CHOICES.map(|(name, _)| name)
    }

    /// With a choice turned on or off; `None` if there is none of that name.
    pub fn with(mut self, key: &str, on: bool) -> Option<Ghosts> {
        let (_, of) = Ghosts::CHOICES.iter().find(|(name, _)| *name == key)?;
        *of(&mut self) = on;
        Some(self)
    }

    fn each(mut self) -> impl Iterator<Item = (&'static str, bool)> {
        Ghosts::CHOICES.iter().map(move |(name, of)| (*name, *of(&mut self)))
    }

    /// As a drive or a report keeps them.
    pub fn to_settings(self) -> Settings {
        Value::Object(self.each().map(|(name, on)| (name.to_string(), on.into())).collect())
    }

    fn from_settings(settings: &Settings) -> Ghosts {
        let on = |name: &str| settings[name].as_bool().unwrap_or(false);
        Ghosts::CHOICES.iter().fold(Ghosts::default(), |mut ghosts, (name, of)| {
            *of(&mut ghosts) = on(name);
            ghosts
        })
    }
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
        let base = Ghosts::from_settings(base);
        let asked = base.each().filter_map(|(name, _)| Some((name, asked.flag(name)?)));
        asked.fold(base, |ghosts, (name, on)| ghosts.with(name, on).unwrap_or(ghosts)).to_settings()
    }

    fn defaults(&self) -> Settings {
        Ghosts::default().to_settings()
    }

    fn on_image(&self, settings: Settings) -> Settings {
        settings
    }

    fn check(&self, settings: &Settings) -> Result<(), String> {
        let odd = settings.as_object().into_iter().flatten().find(|(_, value)| !value.is_boolean());
        odd.map_or(Ok(()), |(key, _)| Err(format!("its setting `{key}` is not true or false")))
    }

    fn described(&self, settings: &Settings) -> Value {
        let mut described = Ghosts::from_settings(settings).to_settings();
        described["kind"] = "idiscard".into();
        described
    }

    fn differs(
        &self,
        asked: &Settings,
        found: &Settings,
        _: u32,
    ) -> Option<(&'static str, String)> {
        let (asked, found) = (Ghosts::from_settings(asked), Ghosts::from_settings(found));
        let mut both = asked.each().zip(found.each());
        both.find(|(asked, found)| asked != found).map(|(_, (key, on))| (key, on.to_string()))
    }

    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built> {
        Box::pin(async move {
            let below = below.block();
            if below.info().content_bytes != SECTOR {
                let why = "`idiscard` reads what is written, and this store keeps no content: set \
                           `device.store` to \"memory\" or \"compact\"";
                return Err(LayerError::create(Refusal::Settings, why));
            }
            let layer = Idiscard::start_on(cx, below, Ghosts::from_settings(settings)).await;
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
