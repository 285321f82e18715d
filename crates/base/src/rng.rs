//! The random numbers of a run: xoshiro256++, one generator per named stream.
//!
//! Owns: seeding by (seed, stream name, index), so that a new consumer of randomness never shifts
//! the numbers of the others. Promises: the same on every machine and in every version of this
//! program with the same `RNG_NAME`. Never: reads entropy.

/// Named in every run record; a change of algorithm changes the name.
pub const RNG_NAME: &str = "xoshiro256++/splitmix64";

/// xoshiro256++ 1.0 (Blackman and Vigna, "Scrambled linear pseudorandom number generators").
#[derive(Clone, Debug)]
pub struct Rng {
    s: [u64; 4],
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix64(*state)
}

/// Spreads a number over all 64 bits, no two to the same one: the output function of SplitMix64
/// (Steele et al., "Fast splittable pseudorandom number generators").
pub fn mix64(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator from a bare seed.
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng { s: std::array::from_fn(|_| splitmix64(&mut state)) }
    }

    /// Where the generator stands, to go on from later.
    pub fn state(&self) -> [u64; 4] {
        self.s
    }

    /// A generator that goes on where another stood; `None` for all zeros, which none ever is.
    pub fn from_state(s: [u64; 4]) -> Option<Rng> {
        (s != [0; 4]).then_some(Rng { s })
    }

    /// The stream `name`, `index` of the run `seed`. Different names give independent streams.
    pub fn stream(seed: u64, name: &str, index: u64) -> Rng {
        // FNV-1a over the name: any fixed hash would do, this one is a line.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
            (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut state = seed ^ hash.rotate_left(17);
        let mixed = splitmix64(&mut state) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Rng::new(mixed)
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.s;
        let out = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number below `n` (multiply-shift; its bias is below n / 2^64). `n` must not be 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0);
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }

    /// True with probability `parts` in 2^32.
    #[inline]
    pub fn chance_2_32(&mut self, parts: u64) -> bool {
        (self.next_u64() >> 32) < parts
    }

    /// Uniform in [0, 1), for workloads only; the model draws integers.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Shuffles in place (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published test vector of the algorithm: state {1, 2, 3, 4}.
    #[test]
    fn matches_the_reference_sequence() {
        let mut r = Rng { s: [1, 2, 3, 4] };
        let got: Vec<u64> = (0..4).map(|_| r.next_u64()).collect();
        assert_eq!(got, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    }

    #[test]
    fn streams_differ_by_name_and_index() {
        let first = |n: &str, i| Rng::stream(7, n, i).next_u64();
        assert_ne!(first("a", 0), first("b", 0));
        assert_ne!(first("a", 0), first("a", 1));
        assert_eq!(first("a", 1), first("a", 1));
    }
}
