//! The n-th place of a job: in order, in a random order, or by a skewed distribution.
//!
//! Owns: a permutation that needs no table, Zipf and Pareto draws. Promises: the permutation visits
//! every place exactly once; draws lie in range. Never: allocates.

use flashlane_base::Rng;

/// A pseudo-random permutation of `0..n`: a Feistel network over the next power of four, walked
/// until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains"). Fewer than
/// four steps on average.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    /// A permutation of `0..n`; `n` must not be 0.
    pub fn new(n: u64, rng: &mut Rng) -> Permutation {
        assert!(n > 0, "a permutation of nothing");
        let bits = 64 - (n - 1).leading_zeros();
        Permutation {
            n,
            half_bits: bits.div_ceil(2).max(1),
            keys: std::array::from_fn(|_| rng.next_u64()),
        }
    }

    /// Where `i` goes; `i` must be below `n`.
    #[inline]
    pub fn at(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        let mut x = self.step(i);
        while x >= self.n {
            x = self.step(x);
        }
        x
    }

    #[inline]
    fn step(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (x >> self.half_bits, x & mask);
        for key in self.keys {
            let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ (mixed >> 33 & mask));
        }
        left << self.half_bits | right
    }
}

/// Zipf ranks by rejection-inversion (Hörmann and Derflinger 1996): no table, whatever `n`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    exponent: f64,
    h_first: f64,
    h_last: f64,
    threshold: f64,
}

impl Zipf {
    /// Ranks `0..n` with probability proportional to `1 / (rank + 1)^exponent`.
    pub fn new(n: u64, exponent: f64) -> Zipf {
        let mut z = Zipf { n: n as f64, exponent, h_first: 0.0, h_last: 0.0, threshold: 0.0 };
        z.h_first = z.h_integral(1.5) - 1.0;
        z.h_last = z.h_integral(z.n + 0.5);
        z.threshold = 2.0 - z.h_integral_inverse(z.h_integral(2.5) - z.h(2.0));
        z
    }

    fn h(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    fn h_integral(&self, x: f64) -> f64 {
        let log = x.ln();
        expm1_over((1.0 - self.exponent) * log) * log
    }

    fn h_integral_inverse(&self, x: f64) -> f64 {
        let t = (x * (1.0 - self.exponent)).max(-1.0);
        (log1p_over(t) * x).exp()
    }

    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.h_last + rng.unit_f64() * (self.h_first - self.h_last);
            let x = self.h_integral_inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.threshold || u >= self.h_integral(k + 0.5) - self.h(k) {
                return k as u64 - 1;
            }
        }
    }
}

/// (e^x - 1) / x, also near 0.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 * (1.0 + x / 3.0) }
}

/// ln(1 + x) / x, also near 0.
fn log1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x * (0.5 - x / 3.0) }
}

/// Pareto ranks as fio draws them: `n × u^(ln h / ln(1-h))`.
#[derive(Clone, Debug)]
pub struct Pareto {
    n: f64,
    power: f64,
}

impl Pareto {
    /// Ranks `0..n` with input `h`, 0 < h < 1.
    pub fn new(n: u64, h: f64) -> Pareto {
        Pareto { n: n as f64, power: h.ln() / (1.0 - h).ln() }
    }

    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let x = self.n * rng.unit_f64().powf(self.power);
        x.min(self.n - 1.0).max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    proptest! {
        /// Every place is visited exactly once, whatever the number of places.
        #[test]
        fn a_permutation_is_one(n in 1u64..3000, seed in any::<u64>()) {
            let p = Permutation::new(n, &mut Rng::new(seed));
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let at = p.at(i) as usize;
                prop_assert!(!seen[at]);
                seen[at] = true;
            }
        }

        #[test]
        fn skewed_ranks_lie_in_range(n in 1u64..1 << 40, seed in any::<u64>(), k in 1u32..24) {
            let mut rng = Rng::new(seed);
            let zipf = Zipf::new(n, k as f64 / 10.0);
            let pareto = Pareto::new(n, k as f64 / 25.0);
            for _ in 0..50 {
                prop_assert!(zipf.draw(&mut rng) < n);
                prop_assert!(pareto.draw(&mut rng) < n);
            }
        }
    }

    /// The two hottest of 1000 ranks come up as often as the formula says.
    #[test]
    fn zipf_has_its_probabilities() {
        let (n, s, draws) = (1000u64, 1.2f64, 200_000u64);
        let norm: f64 = (1..=n).map(|k| (k as f64).powf(-s)).sum();
        let zipf = Zipf::new(n, s);
        let mut rng = Rng::new(5);
        let mut hits = [0u64; 2];
        for _ in 0..draws {
            let rank = zipf.draw(&mut rng) as usize;
            if rank < 2 {
                hits[rank] += 1;
            }
        }
        for (rank, hit) in hits.iter().enumerate() {
            let want = draws as f64 * ((rank + 1) as f64).powf(-s) / norm;
            assert!((*hit as f64 - want).abs() < want * 0.02, "rank {rank}: {hit}, want {want}");
        }
    }

    /// fio's manual: with h = 0.2 80% of the draws fall into 20% of the places.
    #[test]
    fn pareto_is_eighty_twenty() {
        let pareto = Pareto::new(1_000_000, 0.2);
        let mut rng = Rng::new(5);
        let hot = (0..100_000).filter(|_| pareto.draw(&mut rng) < 200_000).count();
        assert!((79_000..81_000).contains(&hot), "{hot}");
    }
}
