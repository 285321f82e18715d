//! Small devices of many shapes: what the layers are swarmed over.
//!
//! Owns: the draw of a geometry, its times and its store. Promises: a drawn spec passes its check;
//! a device has at most some ten thousand sectors, so that a run fills and collects it several times.
//! Never: draws what no layer supports (write units above one vector).

use flashlane_base::{Bytes, Ns, Rng};
use flashlane_media::fault::{Fault, FaultKind};
use flashlane_ocssd::spec::{EccSpec, LinkSpec};
use flashlane_ocssd::{DeviceSpec, FaultPlan, SsdOptions, StoreKind};

/// Draws from a list.
pub(crate) fn one_of<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// How large the devices are that a seed draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Some thousand sectors.
    Usual,
    /// As few as a layer can live on, of short chunks: lines close, logs end and lines are collected
    /// after some hundred sectors.
    Tight,
}

pub fn small(seed: u64, size: Size) -> (DeviceSpec, SsdOptions) {
    let mut rng = Rng::stream(seed, "testkit.device", 0);
    let r = &mut rng;
    let mut shape = one_of(r, &[(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 2), (2, 4)]);
    let mut planes = one_of(r, &[1u32, 2, 2, 4]);
    let mut page = one_of(r, &[1u32, 2, 4]);
    let mut drawn = one_of(r, &[8u32, 16, 24, 32]);
    let mut sectors = 6_000;
    if size == Size::Tight {
        let mut rng = Rng::stream(seed, "testkit.tight", 0);
        sectors = one_of(&mut rng, &[500, 1_000, 1_000, 2_000]);
        shape = one_of(&mut rng, &[(1, 1), (1, 2), (2, 1), (2, 1), (2, 2), (3, 1)]);
        (planes, page) = one_of(&mut rng, &[(1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (1, 4)]);
        drawn = one_of(&mut rng, &[8, 8, 16]);
    }
    let ((channels, pus), row) = (shape, planes * page);
    let smallest = channels as u64 * pus as u64 * 16 * (row * drawn) as u64;
    let pages = if smallest > 2 * sectors { 8 } else { drawn };
    let (pairing, reach, bits) =
        one_of(r, &[("none", 0, 1), ("none", 0, 1), ("none", 0, 1), ("mlc", 4, 2), ("tlc", 9, 3)]);
    let pages = match size {
        // As many as pages that take each other along need.
        Size::Tight if bits > 1 => u32::next_multiple_of(2 * (reach + 1), 8),
        _ => pages,
    };
    let ws_min = match pairing {
        "none" => one_of(r, &[page, row]),
        _ => row,
    };
    let window = match pairing {
        "none" => one_of(r, &[0, ws_min, row, 2 * row]),
        _ => (reach + 1) * row,
    };
    let chunk = row * pages;
    let window = window.min(chunk - ws_min);
    let chunks = (sectors / (channels * pus * chunk) as u64).max(16);
    let ppa = one_of(r, &["1.2", "2.0"]);
    let (reset_free, bad) = (r.below(2) == 0, one_of(r, &[0, 0, 20_000]));
    let queue = one_of(r, &["fifo", "read_first", "suspend"]);
    // Not where a flush pads most of a chunk: no spare covers that, and pblk refuses it.
    let quarters = if size == Size::Tight { 3 } else { 2 };
    let harmed = Rng::stream(seed, "testkit.pairs", 0).below(4) < quarters;
    let damage = bits > 1 && pages >= 2 * (reach + 1) && harmed;
    let text = format!(
        "name = \"small\"\nppa = \"{ppa}\"\n\
         [geometry]\nchannels = {channels}\npus_per_channel = {pus}\nplanes = {planes}\n\
         chunks_per_pu = {chunks}\npages_per_block = {pages}\nsectors_per_page = {page}\n\
         ws_min = {ws_min}\nws_opt = {row}\nmw_cunits = {window}\n\
         [timing]\nread = [\"50us\"]\nprogram = [\"500us\"]\nerase = \"3ms\"\n\
         channel_bandwidth = \"400MB\"\nqueue = \"{queue}\"\n\
         [cells]\nbits = {bits}\npairing = \"{pairing}\"\npair_damage = {damage}\n\
         [limits]\nreset_free = {reset_free}\nreset_open = true\nfactory_bad_ppm = {bad}\n"
    );
    let spec = match DeviceSpec::from_toml(&text) {
        Ok(spec) => spec,
        Err(error) => panic!("seed {seed} drew an impossible device: {error}\n{text}"),
    };
    let options = SsdOptions {
        store: match one_of(r, &[StoreKind::Stamps, StoreKind::Stamps, StoreKind::Memory]) {
            // Whole contents are most of what such a run costs.
            StoreKind::Memory if size == Size::Tight && !seed.is_multiple_of(4) => {
                StoreKind::Stamps
            }
            store => store,
        },
        seed,
        timing: r.below(8) != 0,
        dulbe: r.below(4) == 0,
        hazards: Rng::stream(seed, "testkit.hazards", 0).below(2) == 0,
        ..SsdOptions::default()
    };
    (spec, options)
}

/// The same device with a write buffer, from one unit to more than most seeds ever fill, with or without
/// capacitors.
pub fn with_buffer(seed: u64, spec: &mut DeviceSpec) {
    let mut rng = Rng::stream(seed, "testkit.buffer", 0);
    let units = one_of(&mut rng, &[1, 2, 4, 16, 64, 1024]);
    spec.limits.write_buffer = Some(Bytes::from_kib(4 * units * spec.geometry.ws_opt as u64));
    spec.limits.capacitors = rng.below(2) == 0;
}

/// The faults of a seed: each kind or not, rare, and few enough that the spare chunks outlast them.
pub fn faults(seed: u64) -> FaultPlan {
    let mut rng = Rng::stream(seed, "testkit.faults", 0);
    // Kind, chances, most.
    let kinds: [(&str, [&str; 3], u64); 6] = [
        ("write_next_unit", ["1e-3", "1e-2", "5e-2"], 40),
        ("early_close", ["1e-3", "1e-2", "5e-2"], 6),
        ("erase_fail", ["1e-3", "1e-2", "1e-1"], 3),
        ("read_uncorrectable", ["1e-4", "1e-3", "1e-2"], 200),
        ("bit_flip", ["1e-4", "1e-3", "1e-2"], 200),
        ("read_high_ecc", ["1e-3", "1e-2", "1e-1"], 1000),
    ];
    let mut text = String::new();
    for (kind, chances, most) in kinds {
        let (wanted, chance) = (rng.below(2) == 0, one_of(&mut rng, &chances));
        let times = 1 + rng.below(most);
        if wanted {
            let line = format!("kind = \"{kind}\"\nprobability = \"{chance}\"\ntimes = {times}");
            text.push_str(&format!("[[fault]]\n{line}\n"));
        }
    }
    match FaultPlan::from_toml(&text) {
        Ok(plan) => plan,
        Err(error) => panic!("seed {seed} drew an impossible plan: {error}\n{text}"),
    }
}

/// A plan whose one fault never happens. A device with a plan looks for faults at every command, so
/// it also meets those that are added later ([`flashlane_ocssd::Ssd::fail`]).
pub(crate) fn never() -> FaultPlan {
    let (kind, count) = (FaultKind::ReadUncorrectable, u64::MAX);
    let (pu, chunk, sector, chance) = (None, None, None, None);
    FaultPlan {
        faults: vec![Fault { kind, pu, chunk, sector, count, after: Ns::ZERO, chance, times: 1 }],
    }
}

/// Cells of which reads tell within milliseconds that they decay, by themselves, by age or by being
/// read, and whose code corrects far more than that.
pub(crate) fn decaying(rng: &mut Rng) -> EccSpec {
    EccSpec {
        codeword_bytes: 1024,
        correctable_bits: 250,
        high_bits: 8,
        rber_fresh: one_of(rng, &[0, 0, 400_000_000]),
        rber_worn: one_of(rng, &[0, 1_000_000_000]),
        rber_per_day: one_of(rng, &[0, 1_000_000_000_000]),
        rber_per_1000_reads: one_of(rng, &[0, 1_000_000_000]),
        retries: one_of(rng, &[0, 2]),
        retry_gain: 2,
        program_fail_ppm: 0,
        erase_fail_ppm: 0,
    }
}

/// The host's link of a seed, for one seed in four.
pub fn link(seed: u64) -> Option<LinkSpec> {
    let mut rng = Rng::stream(seed, "testkit.link", 0);
    let spec = LinkSpec {
        to_device: one_of(&mut rng, &[Bytes::new(0), Bytes::from_mib(500)]),
        to_host: one_of(&mut rng, &[Bytes::new(0), Bytes::from_mib(500)]),
        command: one_of(&mut rng, &[Ns::ZERO, Ns::from_us(2)]),
        queue_depth: one_of(&mut rng, &[0, 1, 4, 64]),
    };
    (rng.below(4) == 0).then_some(spec)
}

pub fn describe_faults(options: &SsdOptions) -> String {
    let each = options.faults.faults.iter();
    let each: Vec<String> = each
        .map(|f| {
            let chance = f.chance.map_or(1.0, |c| c as f64 / (1u64 << 32) as f64);
            format!("{:?} {chance:.0e} x{}", f.kind, f.times)
        })
        .collect();
    each.join(", ")
}

/// The device in a line, for messages.
pub fn describe(spec: &DeviceSpec, options: &SsdOptions) -> String {
    let g = &spec.geometry;
    let buffer = match (spec.limits.write_buffer, spec.limits.capacitors) {
        (None, _) => String::new(),
        (Some(size), false) => format!(", write buffer {size}"),
        (Some(size), true) => format!(", write buffer {size} on capacitors"),
    };
    format!(
        "{}x{} PUs, {} chunks of {} pages x {} planes x {} sectors, ws {}/{}, window {}, {:?}, \
         pair_damage {}, {:?}, timing {}, dulbe {}, hazards {}{buffer}",
        g.channels,
        g.pus_per_channel,
        g.chunks_per_pu,
        g.pages_per_block,
        g.planes,
        g.sectors_per_page,
        g.ws_min,
        g.ws_opt,
        g.mw_cunits,
        spec.cells.pairing,
        spec.cells.pair_damage,
        options.store,
        options.timing,
        options.dulbe,
        options.hazards
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_ocssd::Ssd;

    /// Every seed draws a device that can be built, of about the size asked for.
    #[test]
    fn every_seed_draws_a_possible_device() {
        for (seed, size) in (0..600).map(|i| (i / 2, [Size::Usual, Size::Tight][i as usize % 2])) {
            let (spec, options) = small(seed, size);
            let sectors = spec.geometry().sectors();
            let most = if size == Size::Tight { 10_000 } else { 60_000 };
            assert!((100..most).contains(&sectors), "seed {seed}, {size:?}: {sectors} sectors");
            if seed < 20 {
                Ssd::new(&spec, options).unwrap();
            }
        }
    }
}
