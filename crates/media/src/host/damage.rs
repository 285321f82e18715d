//! What may happen to a file at rest, for tests: a bad disk, a lost or misdirected write, a copy that
//! went wrong.
//!
//! Owns: [`Damage`], one hurt at one place or between two. Promises: the same seed draws the same; most
//! of what it draws hits something that is in use. Never: touches more than it says.

use flashlane_base::Rng;
use std::fmt;
use std::ops::Range;

/// What happens to the bytes of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Some bits turn over, drawn from this seed.
    Flip(u64),
    /// They are zero.
    Zero,
    /// They change places with those at this offset.
    Swap(u64),
    /// Those at this offset are there as well.
    Copy(u64),
    /// They are as in this older copy of the file.
    Old(usize),
}

/// One hurt of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What happens.
    pub what: What,
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len: u64,
}

impl Damage {
    /// Draws a hurt for a file that was once as in `older`, somewhere in one of these regions.
    pub fn draw(rng: &mut Rng, now: &[u8], older: &[Vec<u8>], regions: &[Range<u64>]) -> Damage {
        let region = &regions[rng.below(regions.len() as u64) as usize];
        let unit = [1, 512, 512, 512, 4096, 4096][rng.below(6) as usize];
        let units = match rng.below(8) {
            0..6 => 1,
            6 => 1 + rng.below(8),
            _ => 1 + rng.below(64),
        };
        let place = |rng: &mut Rng, region: &Range<u64>| {
            let all = (region.end - region.start).div_ceil(unit);
            region.start + rng.below(all.max(1)) * unit
        };
        let mut damage = Damage { what: What::Zero, at: region.start, len: unit };
        // Most of a file is empty: some tries to hit what is not.
        for _ in 0..64 {
            damage.at = place(rng, region);
            damage.len = (units * unit).min(region.end - damage.at);
            let from = match rng.below(3) {
                0 => &regions[rng.below(regions.len() as u64) as usize],
                _ => region,
            };
            damage.what = match rng.below(6) {
                0 => What::Flip(rng.below(1 << 32)),
                1 => What::Zero,
                2 => What::Swap(place(rng, from)),
                3 => What::Copy(place(rng, from)),
                _ if older.is_empty() => What::Zero,
                _ => What::Old(rng.below(older.len() as u64) as usize),
            };
            let there = &now[damage.at as usize..(damage.at + damage.len) as usize];
            let used = matches!(damage.what, What::Old(_)) || there.iter().any(|b| *b != 0);
            if used && damage.changes(now, older) {
                break;
            }
        }
        damage
    }

    /// The bytes that it changes, in the order in which it does.
    fn writes(&self, bytes: &[u8], older: &[Vec<u8>]) -> Vec<(usize, Vec<u8>)> {
        let read = |from: &[u8], at: u64| -> Vec<u8> {
            let mut out = from.get(at as usize..).unwrap_or(&[]).to_vec();
            out.resize(self.len as usize, 0);
            out
        };
        let here = self.at as usize;
        let there = read(bytes, self.at);
        match self.what {
            What::Zero => vec![(here, vec![0; self.len as usize])],
            What::Old(copy) => vec![(here, read(&older[copy], self.at))],
            What::Copy(from) => vec![(here, read(bytes, from))],
            What::Swap(with) => vec![(with as usize, there), (here, read(bytes, with))],
            What::Flip(seed) => {
                let (mut there, mut rng) = (there, Rng::new(seed));
                for _ in 0..=rng.below(4) {
                    let bit = rng.below(8 * self.len);
                    there[bit as usize / 8] ^= 1 << (bit % 8);
                }
                vec![(here, there)]
            }
        }
    }

    fn changes(&self, bytes: &[u8], older: &[Vec<u8>]) -> bool {
        let mut after = self.writes(bytes, older).into_iter();
        after.any(|(at, new)| (at..).zip(new).any(|(at, b)| bytes.get(at).is_some_and(|o| *o != b)))
    }

    /// Does it to a file. Its length stays.
    pub fn apply(&self, bytes: &mut [u8], older: &[Vec<u8>]) {
        for (at, new) in self.writes(bytes, older) {
            bytes.iter_mut().skip(at).zip(new).for_each(|(to, b)| *to = b);
        }
    }

    /// Whether it writes to some of these bytes.
    pub fn hits(&self, range: &Range<u64>) -> bool {
        let with = match self.what {
            What::Swap(with) => with,
            _ => self.at,
        };
        [self.at, with].iter().any(|at| *at < range.end && range.start < at + self.len)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {}: {:?}", self.len, self.at, self.what)
    }
}
