//! The table of kinds of layers.
//!
//! Owns: which there are, under which names. Promises: whatever can stand in a stack is a row here,
//! and is named nowhere else. Never: knows what a layer does.

use crate::LayerSpec;
use flashlane_ftl::layer::{Kind, Needs};
use flashlane_ftl::log::{LogConfig, PBLK, QBLK};
use flashlane_ftl::meter::METER;
use flashlane_ftl::pftl::{PFTL, PftlConfig};
use flashlane_ftl::sftl::{SFTL, SftlConfig};
use flashlane_ftl::slc::{SLC, SlcConfig};
use flashlane_idiscard::IDISCARD;
pub use flashlane_idiscard::{Ghosts, Wanted};

/// Every kind. Filters stand on each other in this order, the first at the bottom.
pub static KINDS: [&dyn Kind; 7] = [&PBLK, &QBLK, &PFTL, &SLC, &SFTL, &METER, &IDISCARD];

/// What a target is called that has no layer: an application has its PUs.
pub const RAW: &str = "raw";

pub fn find(name: &str) -> Option<&'static dyn Kind> {
    KINDS.into_iter().find(|kind| kind.name() == name)
}

/// Kinds that stand on flash: each makes a target of its own.
pub fn targets() -> impl Iterator<Item = &'static dyn Kind> {
    KINDS.into_iter().filter(|kind| kind.stands().on == Needs::Device)
}

/// Kinds that stand on a target.
pub fn filters() -> impl Iterator<Item = &'static dyn Kind> {
    KINDS.into_iter().filter(|kind| kind.stands().on == Needs::Block)
}

/// Names of all types that a target can have.
pub fn target_names() -> Vec<&'static str> {
    std::iter::once(RAW).chain(targets().map(|kind| kind.name())).collect()
}

/// A layer that discards dead inode blocks of ext4, and what else is wanted.
pub fn idiscard(ghosts: Ghosts) -> LayerSpec {
    LayerSpec::with(&IDISCARD, ghosts.to_settings())
}

impl From<LogConfig> for LayerSpec {
    fn from(config: LogConfig) -> LayerSpec {
        LayerSpec::with(config.kind(), config.to_settings())
    }
}

impl From<PftlConfig> for LayerSpec {
    fn from(config: PftlConfig) -> LayerSpec {
        LayerSpec::with(&PFTL, config.to_settings())
    }
}

impl From<SftlConfig> for LayerSpec {
    fn from(config: SftlConfig) -> LayerSpec {
        LayerSpec::with(&SFTL, config.to_settings())
    }
}

impl From<SlcConfig> for LayerSpec {
    fn from(config: SlcConfig) -> LayerSpec {
        LayerSpec::with(&SLC, config.to_settings())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_has_a_name_of_its_own_and_reads_its_own_settings() {
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name()).collect();
        assert!(names.len() == KINDS.len() && !names.contains(RAW), "{names:?}");
        for kind in KINDS {
            assert_eq!(kind.check(&kind.defaults()), Ok(()), "{kind:?}");
            let on_image = kind.on_image(kind.defaults());
            assert_eq!(kind.check(&on_image), Ok(()), "{kind:?}");
            assert_eq!(kind.differs(&on_image, &on_image, 4), None, "{kind:?}");
        }
    }

    /// Filters stand on S-FTL's face, and what is written in order stays so.
    #[test]
    fn what_is_written_in_order_says_so_and_carries_filters() {
        use crate::{Description, DeviceChoice, layers};
        use flashlane_ftl::layer::Seam;
        use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
        use flashlane_rt::{CostTable, Virtual};

        let spec = DeviceSpec::preset("tiny").expect("a preset").with_chunks_per_pu(24);
        let options = SsdOptions::default();
        let ssd = Ssd::new(&spec, options.clone()).expect("a device");
        let choice = DeviceChoice { spec, options };
        let of = |kinds: &[&'static dyn Kind]| {
            let layers = kinds.iter().map(|kind| LayerSpec::new(*kind)).collect();
            Description::new(choice.clone(), layers)
        };
        let both = of(&[&SFTL, &METER]);
        assert!(of(&[&SFTL]).in_order() && both.in_order());
        assert!(!of(&[&PFTL, &METER]).in_order() && !of(&[]).in_order());
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        let made = run.run(async move {
            let make = layers::Make::Create;
            let up = layers::raise(&cx, ssd, &both.layers, None, &make).await.expect("both stand");
            let Seam::Segments(sftl) = up.target().clone().above() else { panic!("no segments") };
            assert_eq!(*up.block().info(), *flashlane_ftl::block::BlockDev::info(&*sftl.face()));
            up.walk().expect("its tables agree");
        });
        made.expect("it ends");
    }
}
