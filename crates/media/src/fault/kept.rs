//! Lines of a fault plan that outlive the process: injected into a drive, and kept in its image.
//!
//! Owns: adding lines to a plan at work, their bytes. Promises: a line that comes back goes on where it
//! stood: what has matched and happened is counted, the random numbers go on; what makes no sense is no
//! line. Never: keeps a line that a plan given at open has.
//!
//! Bytes are in `docs/IMAGE.md`, "Faults".

use super::{Fault, FaultKind, Faults, Live};
use flashlane_base::{Ns, Rng};

/// Lines that a drive keeps at most.
pub const KEPT_MAX: usize = 128;
/// Bytes of a kept line.
pub const KEPT_BYTES: usize = 96;

/// A line of a plan at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultState {
    /// The line.
    pub fault: Fault,
    /// Operations that it has matched.
    pub matched: u64,
    /// How often it has happened.
    pub happened: u64,
    /// It was injected; otherwise it is of the plan that the device was opened with.
    pub injected: bool,
}

impl FaultState {
    /// Whether it can still happen.
    pub fn is_armed(&self) -> bool {
        self.happened < self.fault.times
    }
}

fn le(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

impl Live {
    fn encode(&self) -> Vec<u8> {
        let FaultState { fault: f, matched, happened, .. } = &self.state;
        let given = [f.pu.is_some(), f.chunk.is_some(), f.sector.is_some(), f.chance.is_some()];
        let bits = given.iter().rev().fold(0u8, |bits, given| bits << 1 | u8::from(*given));
        let places = [f.pu, f.chunk, f.sector].map(Option::unwrap_or_default);
        let numbers = [f.count, f.after.as_ns(), f.chance.unwrap_or(0), f.times];
        let mut out = vec![f.kind.code(), bits, 0, 0];
        out.extend(places.into_iter().flat_map(u32::to_le_bytes));
        let rest = numbers.into_iter().chain([*matched, *happened]);
        out.extend(rest.chain(self.rng.state()).flat_map(u64::to_le_bytes));
        out
    }

    fn decode(bytes: &[u8]) -> Option<Live> {
        let bits = *bytes.get(1).filter(|bits| **bits < 16)?;
        let place = |i: usize| {
            let at = le(&bytes[4 + 4 * i..8 + 4 * i]) as u32;
            (bits >> i & 1 == 1).then_some(at)
        };
        let number = |i: usize| le(&bytes[16 + 8 * i..24 + 8 * i]);
        let fault = Fault {
            kind: FaultKind::of_code(bytes[0])?,
            pu: place(0),
            chunk: place(1),
            sector: place(2),
            count: number(0),
            after: Ns::from_ns(number(1)),
            chance: (bits >> 3 & 1 == 1).then_some(number(2)),
            times: number(3),
        };
        let sound = fault.count > 0 && fault.times > 0 && fault.chance.is_none_or(|c| c <= 1 << 32);
        let rng = Rng::from_state(std::array::from_fn(|i| number(6 + i)))?;
        let (matched, happened) = (number(4), number(5));
        let state = FaultState { fault, matched, happened, injected: true };
        sound.then_some(Live { state, rng })
    }
}

impl Faults {
    /// Adds lines behind those there are. False, and nothing is added, when that is more than
    /// [`KEPT_MAX`].
    pub fn inject(&mut self, faults: &[Fault], seed: u64) -> bool {
        let there = self.lines.iter().filter(|l| l.state.injected).count();
        if there + faults.len() > KEPT_MAX {
            return false;
        }
        let live = |(i, f)| Live::new(f, Rng::stream(seed, "media.faults.injected", i), true);
        self.lines.extend((there as u64..).zip(faults).map(live));
        true
    }

    /// Takes all injected lines away, also those that have happened; how many.
    pub fn clear_injected(&mut self) -> usize {
        let before = self.lines.len();
        self.lines.retain(|l| !l.state.injected);
        before - self.lines.len()
    }

    /// All lines as they stand.
    pub fn states(&self) -> Vec<FaultState> {
        self.lines.iter().map(|l| l.state.clone()).collect()
    }

    /// The injected lines, [`KEPT_BYTES`] each.
    pub fn encode(&self) -> Vec<u8> {
        self.lines.iter().filter(|l| l.state.injected).flat_map(Live::encode).collect()
    }

    /// Has the lines of [`Faults::encode`] go on, behind those there are. `None`, and nothing is added,
    /// when the bytes are no lines.
    pub fn restore(&mut self, bytes: &[u8]) -> Option<()> {
        let whole = bytes.len().is_multiple_of(KEPT_BYTES);
        if !whole || bytes.len() > KEPT_MAX * KEPT_BYTES {
            return None;
        }
        let lines: Option<Vec<Live>> = bytes.chunks(KEPT_BYTES).map(Live::decode).collect();
        self.lines.extend(lines?);
        Some(())
    }

    /// True when nothing can happen, now or later.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FaultPlan, Hit};
    use super::*;

    fn injected(text: &str) -> Faults {
        let mut faults = Faults::new(&FaultPlan::default(), 7);
        assert!(faults.inject(&FaultPlan::from_toml(text).unwrap().faults, 7));
        faults
    }

    const PLAN: &str = "[[fault]]\nkind = \"bit_flip\"\nprobability = \"0.3\"\ncount = 3\n\
                        [[fault]]\nkind = \"die_fail\"\nat = \"pu 3 chunk 2 sector 9\"\nafter = \"3s\"";

    /// A line that was kept and comes back in the middle does what it would have done.
    #[test]
    fn a_kept_line_goes_on_where_it_stood() {
        let mut one = injected(PLAN);
        let mut hits = Vec::new();
        for i in 0..200u64 {
            if i % 17 == 5 {
                let mut back = Faults::new(&FaultPlan::default(), 99);
                back.restore(&one.encode()).unwrap();
                assert_eq!(back.states(), one.states());
                one = back;
            }
            hits.push(one.strike(Hit::Read, 0, 0, 0, 1, Ns::from_us(i)));
        }
        let mut other = injected(PLAN);
        let straight: Vec<_> =
            (0..200).map(|i| other.strike(Hit::Read, 0, 0, 0, 1, Ns::from_us(i))).collect();
        assert_eq!(hits, straight);
        let happened = straight.iter().flatten().count();
        assert!((30..90).contains(&happened), "{happened}");
        let states = one.states();
        assert_eq!(states[0].matched, 200);
        assert_eq!(states[1].fault.pu, Some(3));
        assert!(states.iter().all(FaultState::is_armed));
    }

    #[test]
    fn what_makes_no_sense_is_no_line() {
        let good = injected(PLAN).encode();
        assert_eq!(good.len(), 2 * KEPT_BYTES);
        let refused = |bytes: &[u8]| {
            let mut faults = Faults::new(&FaultPlan::default(), 1);
            faults.restore(bytes).is_none() && faults.is_empty()
        };
        assert!(!refused(&good));
        assert!(refused(&good[1..]), "a part of a line");
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(refused(&with(0, 0)) && refused(&with(0, 9)), "no such kind");
        assert!(refused(&with(1, 16)), "no such bit");
        assert!(refused(&with(16, 0)), "counted from 1");
        let mut no_random = good.clone();
        no_random[64..96].fill(0);
        assert!(refused(&no_random));
        assert!(refused(&good[..KEPT_BYTES].repeat(KEPT_MAX + 1)), "too many");
    }

    #[test]
    fn a_drive_keeps_so_many_lines_and_not_one_more() {
        let one = "[[fault]]\nkind = \"erase_fail\"\n";
        let mut faults = injected(&one.repeat(KEPT_MAX - 1));
        let two = FaultPlan::from_toml(&one.repeat(2)).unwrap().faults;
        assert!(!faults.inject(&two, 1));
        assert!(faults.inject(&two[..1], 1));
        assert_eq!(faults.clear_injected(), KEPT_MAX);
        assert!(faults.is_empty());
    }
}
