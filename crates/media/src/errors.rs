//! Bit errors: how many a read meets, what the code makes of them, when cells wear out.
//!
//! Owns: [`ErrorModel`]. Promises: integers only; a draw depends on the die's stream and the
//! chunk's history, not on what other dies do. Never: decides what is reported to the host.
//!
//! Raw errors per 10^12 bits add up from four causes: a fresh level, wear (the square of the share
//! of rated erases used), age of the data, reads of the chunk since its erase. A sector's errors
//! are Poisson with that rate over its codewords; a codeword with more than the code corrects is lost.
//! Age counts from the chunk's first program and reads count for the whole chunk: an upper bound
//! per sector, for one word of memory per chunk instead of one per row.

use flashlane_base::{Ns, Rng, SECTOR_BYTES};
use serde::{Deserialize, Serialize};

/// Bit errors and the code that corrects them: `ecc` of a device spec.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EccSpec {
    /// Bytes per codeword.
    pub codeword_bytes: u32,
    /// Bit errors that a codeword survives.
    pub correctable_bits: u32,
    /// Bit errors from which on a read is reported as high ECC (D0h).
    pub high_bits: u32,
    /// Raw bit errors per 10^12 bits of a fresh chunk.
    pub rber_fresh: u64,
    /// Added when the rated erases are used up; grows with the square of the share used.
    pub rber_worn: u64,
    /// Added per day since the program.
    #[serde(default)]
    pub rber_per_day: u64,
    /// Added per thousand reads of the chunk since its erase.
    #[serde(default)]
    pub rber_per_1000_reads: u64,
    /// Retries with shifted voltages before a read is given up.
    #[serde(default)]
    pub retries: u32,
    /// A retry divides the raw errors by this.
    #[serde(default = "default_gain")]
    pub retry_gain: u32,
    /// Share of programs that fail at the rated erases, per million, growing beyond them.
    #[serde(default)]
    pub program_fail_ppm: u32,
    /// Share of erases that fail at the rated erases, per million, growing beyond them.
    #[serde(default)]
    pub erase_fail_ppm: u32,
}

fn default_gain() -> u32 {
    2
}

/// What a chunk has been through.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// Erases ...
    pub erases: u32,
    /// ... of so many that it is made for: what counts is the share ([`Cells::wear`](crate::cells::Cells::wear)).
    pub rated: u32,
    /// Age of its oldest data.
    pub age: Ns,
    /// Reads since its erase.
    pub reads: u32,
}

/// What a read of one sector met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sensed {
    /// Bits corrected.
    pub corrected: u32,
    /// Retries needed.
    pub retries: u32,
    /// Correction was heavy.
    pub heavy: bool,
    /// Wrong bits left, more than the code corrects.
    pub wrong: u32,
}

const DAY: u128 = 86_400 * 1_000_000_000;
/// Rates are per this many bits.
const PER: u128 = 1_000_000_000_000;
/// Fixed point of means: errors per sector times 2^32.
const ONE: u64 = 1 << 32;
/// Means beyond this are all the same: everything is wrong.
const MEAN_MAX: u64 = 4096 * ONE;

/// The model of a device.
#[derive(Clone, Copy, Debug)]
pub struct ErrorModel {
    p: EccSpec,
    codewords: u32,
}

impl ErrorModel {
    /// A model.
    pub fn new(p: EccSpec) -> ErrorModel {
        let codewords = (SECTOR_BYTES as u32 / p.codeword_bytes.max(1)).max(1);
        ErrorModel { p, codewords }
    }

    /// Mean raw errors of a sector of such a chunk, times 2^32.
    pub fn mean(&self, h: &History) -> u64 {
        let (erases, rated) = (h.erases as u128, h.rated.max(1) as u128);
        let rate = self.p.rber_fresh as u128
            + self.p.rber_worn as u128 * erases * erases / (rated * rated)
            + self.p.rber_per_day as u128 * h.age.as_ns() as u128 / DAY
            + self.p.rber_per_1000_reads as u128 * h.reads as u128 / 1000;
        let bits = SECTOR_BYTES as u128 * 8;
        let mean = rate.saturating_mul(bits).saturating_mul(ONE as u128) / PER;
        mean.min(MEAN_MAX as u128) as u64
    }

    /// Reads a sector with that mean: errors, correction, retries.
    #[inline]
    pub fn sense(&self, mean: u64, rng: &mut Rng, may_retry: bool) -> Sensed {
        if mean == 0 {
            return Sensed::default();
        }
        let first = self.attempt(mean, rng);
        if first.wrong == 0 || !may_retry {
            return first;
        }
        let mut mean = mean;
        for retry in 1..=self.p.retries {
            mean /= self.p.retry_gain.max(2) as u64;
            let again = self.attempt(mean, rng);
            if again.wrong == 0 {
                return Sensed { retries: retry, heavy: true, ..again };
            }
        }
        Sensed { retries: self.p.retries, ..first }
    }

    fn attempt(&self, mean: u64, rng: &mut Rng) -> Sensed {
        let errors = poisson(mean, rng);
        if errors <= self.p.high_bits {
            return Sensed { corrected: errors, ..Sensed::default() };
        }
        let worst = self.worst_codeword(errors, rng);
        if worst > self.p.correctable_bits {
            return Sensed { wrong: errors, ..Sensed::default() };
        }
        Sensed { corrected: errors, heavy: worst > self.p.high_bits, ..Sensed::default() }
    }

    /// Errors of the codeword that has most of them.
    fn worst_codeword(&self, errors: u32, rng: &mut Rng) -> u32 {
        if self.codewords == 1 {
            return errors;
        }
        // At most 64 codewords of 64 bytes.
        let mut count = [0u32; 64];
        for _ in 0..errors {
            count[rng.below(self.codewords.min(64) as u64) as usize] += 1;
        }
        count.iter().copied().max().unwrap_or(0)
    }

    /// True when a program on such a chunk fails for wear.
    #[inline]
    pub fn program_fails(&self, erases: u32, rated: u32, rng: &mut Rng) -> bool {
        worn_out(self.p.program_fail_ppm, erases, rated, rng)
    }

    /// True when an erase of such a chunk fails for wear.
    #[inline]
    pub fn erase_fails(&self, erases: u32, rated: u32, rng: &mut Rng) -> bool {
        worn_out(self.p.erase_fail_ppm, erases, rated, rng)
    }
}

/// Nothing before the rated erases; from there the given share, growing with the square.
fn worn_out(ppm: u32, erases: u32, rated: u32, rng: &mut Rng) -> bool {
    let (ppm, e, r) = (ppm as u128, erases as u128, rated.max(1) as u128);
    if ppm == 0 || e < r {
        return false;
    }
    let share = (ppm * e * e / (r * r)).min(1_000_000);
    rng.below(1_000_000) < share as u64
}

/// A Poisson number with mean `mean` / 2^32: sums of pieces small enough for fixed point.
fn poisson(mut mean: u64, rng: &mut Rng) -> u32 {
    const PIECE: u64 = 8 * ONE;
    let mut sum = 0;
    while mean > PIECE {
        sum += poisson_small(PIECE, rng);
        mean -= PIECE;
    }
    sum + poisson_small(mean, rng)
}

/// Inversion: walk up the cumulated probabilities until they pass a uniform number.
fn poisson_small(mean: u64, rng: &mut Rng) -> u32 {
    // 62 fractional bits: enough that e^-8 keeps 50.
    let draw = rng.next_u64() >> 2;
    let mut term = exp_minus(mean);
    let mut sum = term;
    let mut k = 0u32;
    while draw >= sum && k < 128 {
        k += 1;
        term = ((term as u128 * mean as u128) / (ONE as u128 * k as u128)) as u64;
        if term == 0 {
            break;
        }
        sum += term;
    }
    k
}

/// e^-(x / 2^32) with 62 fractional bits, for x up to 8: halved until small, squared back.
fn exp_minus(x: u64) -> u64 {
    const UNIT: u128 = 1 << 62;
    // x / 2^10 is below 2^-7: five terms of the series leave less than 2^-40.
    let small = (x as u128) << 20; // x / 2^10 in 62 fractional bits
    let mut sum = UNIT;
    let mut term = UNIT;
    for k in 1..=6u128 {
        term = ((term * small) >> 62) / k;
        if k % 2 == 1 {
            sum -= term;
        } else {
            sum += term;
        }
    }
    for _ in 0..10 {
        sum = (sum * sum) >> 62;
    }
    sum as u64
}

/// Turns over `n` bits of `bytes`, at least one. The first is never turned back by a later one, so
/// the bytes do change.
pub fn flip_bits(bytes: &mut [u8], n: u32, rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let first = rng.below(bytes.len() as u64 * 8);
    for k in 0..n.max(1) {
        let bit = if k == 0 { first } else { rng.below(bytes.len() as u64 * 8) };
        if k == 0 || bit != first {
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> EccSpec {
        EccSpec {
            codeword_bytes: 1024,
            correctable_bits: 40,
            high_bits: 20,
            rber_fresh: 0,
            rber_worn: 100_000_000, // 10^-4 at the rated erases
            rber_per_day: 0,
            rber_per_1000_reads: 0,
            retries: 3,
            retry_gain: 2,
            program_fail_ppm: 1000,
            erase_fail_ppm: 1000,
        }
    }

    /// e^-x against values of the exponential function (times 2^62, within 10^-9).
    #[test]
    fn the_fixed_point_exponential_is_right() {
        for (x, want) in [
            (0, 1.0),
            (ONE, 0.36787944117144233),
            (8 * ONE, 0.00033546262790251185),
            (ONE / 2, 0.6065306597126334),
        ] {
            let got = exp_minus(x) as f64 / (1u64 << 62) as f64;
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
    }

    /// Mean and variance of the draws are the mean asked for.
    #[test]
    fn draws_have_the_moments_of_a_poisson_distribution() {
        for mean in [0.05, 1.0, 7.5, 60.0] {
            let mut rng = Rng::new(3);
            let n = 20_000;
            let fixed = (mean * ONE as f64) as u64;
            let all: Vec<f64> = (0..n).map(|_| poisson(fixed, &mut rng) as f64).collect();
            let avg = all.iter().sum::<f64>() / n as f64;
            let var = all.iter().map(|x| (x - avg).powi(2)).sum::<f64>() / n as f64;
            assert!((avg - mean).abs() < 0.03 * mean + 0.01, "{avg} {mean}");
            assert!((var - mean).abs() < 0.06 * mean + 0.01, "{var} {mean}");
        }
    }

    /// A fresh chunk reads without error, a worn one with correction, a dead one not at all; a
    /// retry helps in between.
    #[test]
    fn errors_grow_with_wear() {
        let model = ErrorModel::new(params());
        let mut rng = Rng::new(5);
        let at = |erases| model.mean(&History { erases, rated: 1000, ..History::default() });
        assert_eq!(model.sense(at(0), &mut rng, true), Sensed::default());
        let worn = model.sense(at(1000), &mut rng, true);
        assert!(worn.corrected > 0 && worn.wrong == 0);
        let dead = model.sense(at(20_000), &mut rng, true);
        assert!(dead.wrong > 0 && dead.retries == 3);
        // A mean of 236 per sector, 59 per codeword of 40: a retry halves it.
        let helped = model.sense(at(8_500), &mut rng, true);
        assert!(helped.retries > 0 && helped.wrong == 0 && helped.heavy, "{helped:?}");
        let fast = model.sense(at(8_500), &mut rng, false);
        assert!(fast.wrong > 0 && fast.retries == 0);
    }

    #[test]
    fn programs_fail_only_beyond_the_rated_erases() {
        let model = ErrorModel::new(params());
        let mut rng = Rng::new(9);
        let mut fails =
            |erases| (0..100_000).filter(|_| model.program_fails(erases, 1000, &mut rng)).count();
        assert_eq!(fails(999), 0);
        let (rated, double) = (fails(1000), fails(2000));
        assert!((60..150).contains(&rated), "{rated}");
        assert!((320..480).contains(&double), "{double}");
    }
}
