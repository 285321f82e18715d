//! Wear leveling: what each policy makes of a workload with hot and cold data (D9).
//!
//! Owns: one claim per test. Geometry: that of `tiny`, 4 PUs of 40 chunks, lines of 248 data sectors.

use crate::prelude::*;
use flashlane_ftl::log::WearConfig;
use flashlane_ocssd::Device;

const SPREAD: u32 = 12;

fn leveled(leveling: WearLeveling) -> Setup {
    tiny(40).op(40).untraced().with(|s| s.config.wear = WearConfig { leveling, spread: SPREAD })
}

/// Everything is written once, then a tenth of it over and over.
fn hot_and_cold(b: &Bench, writes: u64) {
    b.fill(1);
    let hot = b.capacity() / 10;
    let mut rng = Rng::stream(5, "hot", 0);
    for version in 0..writes {
        b.write(rng.below(hot - 32), 32, 2 + version);
    }
    b.drained();
}

/// Erases of all chunks, ascending.
fn erases(b: &Bench) -> Vec<u32> {
    let g = *b.ssd.geometry();
    let reports = (0..g.pus()).flat_map(|pu| b.ssd.chunk_report(pu, 0, g.chunks_per_pu));
    let mut all: Vec<u32> = reports.map(|c| c.erases).collect();
    all.sort_unstable();
    all
}

/// Without leveling some free chunks are hardly ever taken; `dynamic` takes them all, but none on
/// which cold data lies; `static` has those, too: nothing lags more than the threshold and what a
/// turn of the drive adds to it. What that moves is bounded: a line in eight at most.
#[test]
fn each_policy_levels_more_than_the_one_before() {
    let spread_of = |leveling| {
        let b = leveled(leveling).build();
        hot_and_cold(&b, 5000);
        let (all, stats) = (erases(&b), b.stats());
        let opened = stats.erases / 4;
        println!("{leveling:?}: {all:?}, {} of {opened} lines moved", stats.leveled_lines);
        assert!(stats.leveled_lines * 8 <= opened, "{} of {opened}", stats.leveled_lines);
        assert!(stats.gc_victims >= stats.leveled_lines && stats.scrubbed_lines == 0);
        b.settled();
        (all, stats)
    };
    let (off, _) = spread_of(WearLeveling::Off);
    let (dynamic, plain) = spread_of(WearLeveling::Dynamic);
    let (leveled, stats) = spread_of(WearLeveling::Static);
    let most = |all: &[u32]| all[all.len() - 1];
    assert!(most(&dynamic) < most(&off), "the most worn chunk is worn less");
    assert!(dynamic[0] <= 1 && off[0] <= 1, "cold data keeps its chunks");
    assert!(stats.leveled_lines > 10 && plain.leveled_lines == 0);
    // But for what metadata keeps: the anchor's chunks are not rewritten for their wear.
    let twentieth = leveled.len() / 20;
    let mean = leveled.iter().sum::<u32>() / leveled.len() as u32;
    assert!(leveled[twentieth] + SPREAD + 2 >= mean, "{mean} on average: {leveled:?}");
    assert_eq!(dynamic[twentieth * 10], 0, "half of the chunks have never been erased");
}

/// The same commands at the same times, whatever is drawn besides: a second run does the same.
#[test]
fn leveling_is_a_function_of_the_seed() {
    let run = || {
        let b = leveled(WearLeveling::Static).build();
        hot_and_cold(&b, 1500);
        (b.run.fingerprint(), erases(&b), b.stats())
    };
    assert_eq!(run(), run());
}

/// Erases belong to the medium: a later life, and another target on it, go on where the one before
/// was.
#[test]
fn wear_is_known_over_lives() {
    let medium = Medium::new(leveled(WearLeveling::Static));
    let b = medium.create();
    hot_and_cold(&b, 800);
    let first = b.attribute("wear_leveling");
    let range = |b: &Bench| {
        let all = erases(b);
        format!("erases:{}..{} ", all[0], all[all.len() - 1])
    };
    assert!(first.starts_with("static spread:12 ") && first.contains(&range(&b)), "{first}");
    b.shut_down();
    let b = medium.mounted();
    assert!(b.attribute("wear_leveling").contains(&range(&b)));
    b.read_all();
    b.shut_down();
    let b = medium.create();
    let fresh = b.attribute("wear_leveling");
    assert!(fresh.contains(&range(&b)) && !range(&b).contains("..1 "), "{fresh}");
    b.settled();
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let b = tiny(40).build();
    let refused = |config: LogConfig| {
        let (cx, device) = (b.cx.clone(), b.ssd.clone());
        let created = b.wait(async move { Pblk::create(&cx, device, config).await.map(|_| ()) });
        match created {
            Err(CreateError::Setting(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    let mut config = LogConfig::default();
    config.wear.spread = 0;
    assert!(refused(config).contains("at least 1"));
    let mut config = LogConfig::default();
    config.scrub.interval = flashlane_base::Ns::from_us(999);
    assert!(refused(config).contains("longer"));
    let mut config = LogConfig::default();
    config.scrub.sectors = 0;
    assert!(refused(config).contains("at least 1"));
}
