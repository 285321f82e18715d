//! Numbers of trace lines with their units: times, sizes.
//!
//! Owns: decimal fractions of a unit as whole nanoseconds, and back. Promises: exact to the
//! nanosecond in both directions, nothing wraps. Never: reads an exponent, a sign or a locale.

use super::lines::decimal;

/// Digits behind a point that are looked at; what is finer than a nanosecond is cut off.
const FRACTION_DIGITS_MAX: usize = 18;

/// The unit of a column of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// For messages: "seconds", "100 ns ticks".
    pub name: &'static str,
    /// Nanoseconds in `per` units.
    pub ns: u64,
    /// See `ns`: 1 but for units below a nanosecond.
    pub per: u64,
    /// Digits behind the point when written; 0 for whole units. Read are both.
    pub digits: u32,
}

/// Picoseconds (MQSim's `PICOSECOND`).
pub const PS: Clock = Clock { name: "picoseconds", ns: 1, per: 1000, digits: 0 };
pub const NS: Clock = Clock { name: "nanoseconds", ns: 1, per: 1, digits: 0 };
pub const US: Clock = Clock { name: "microseconds", ns: 1_000, per: 1, digits: 0 };
/// Windows file time: ticks of 100 ns since 1601.
pub const TICKS: Clock = Clock { name: "100 ns ticks", ns: 100, per: 1, digits: 0 };
pub const MS: Clock = Clock { name: "milliseconds", ns: 1_000_000, per: 1, digits: 6 };
pub const WHOLE_S: Clock = Clock { name: "seconds", ns: 1_000_000_000, per: 1, digits: 0 };
/// Seconds with nine decimals.
pub const S: Clock = Clock { name: "seconds", ns: 1_000_000_000, per: 1, digits: 9 };

impl Clock {
    /// Nanoseconds of a field; `None` when it is no number or leaves 64 bits.
    #[inline]
    pub fn read(&self, field: &[u8]) -> Option<u64> {
        let Some(dot) = field.iter().position(|b| *b == b'.') else {
            let whole = decimal(field)?;
            if self.per == 1 {
                return whole.checked_mul(self.ns);
            }
            return u64::try_from(whole as u128 * self.ns as u128 / self.per as u128).ok();
        };
        let (whole, mut fraction) = (decimal(&field[..dot])?, &field[dot + 1..]);
        if fraction.is_empty() || !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        fraction = &fraction[..fraction.len().min(FRACTION_DIGITS_MAX)];
        let scale = 10u128.pow(fraction.len() as u32);
        // 2^64 x 10^9 and 10^18 x 10^9 both fit 128 bits.
        let part = decimal(fraction)? as u128 * self.ns as u128 / (scale * self.per as u128);
        let ns = whole as u128 * self.ns as u128 / self.per as u128 + part;
        u64::try_from(ns).ok()
    }

    /// Times in it have no fraction.
    pub fn is_whole(&self) -> bool {
        self.digits == 0
    }

    /// What whole numbers of this unit tell apart, in ns.
    pub fn resolution_of_integers_ns(&self) -> u64 {
        (self.ns / self.per).max(1)
    }

    /// The finest time that is written, in ns.
    pub fn resolution_ns(&self) -> u64 {
        (self.ns / self.per / 10u64.pow(self.digits)).max(1)
    }

    /// Appends a time in this unit, rounded down to what is written of it.
    pub fn write(&self, ns: u64, out: &mut Vec<u8>) {
        use std::io::Write;
        let units = ns as u128 * self.per as u128;
        let (whole, rest) = (units / self.ns as u128, units % self.ns as u128);
        // A vector takes everything.
        let _ = write!(out, "{whole}");
        if self.digits > 0 {
            let fraction = rest * 10u128.pow(self.digits) / self.ns as u128;
            let _ = write!(out, ".{fraction:0width$}", width = self.digits as usize);
        }
    }

    /// The unit that a user names: `ps`, `ns`, `us`, `ms`, `s`.
    pub fn named(text: &str) -> Option<Clock> {
        Some(match text {
            "ps" => PS,
            "ns" => NS,
            "us" => US,
            "ms" => MS,
            "s" => S,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_what_they_say() {
        assert_eq!(TICKS.read(b"128166372003061629"), Some(12_816_637_200_306_162_900));
        assert_eq!(S.read(b"1455592765.004252000"), Some(1_455_592_765_004_252_000));
        assert_eq!(S.read(b"0.026214"), Some(26_214_000));
        assert_eq!(US.read(b"1577808000000046"), Some(1_577_808_000_000_046_000));
        assert_eq!(PS.read(b"1999"), Some(1));
        assert_eq!(MS.read(b"1.5"), Some(1_500_000));
        assert_eq!(S.read(b"0.9999999999999999999999"), Some(999_999_999));
    }

    #[test]
    fn what_is_no_number_or_too_large_is_none() {
        for bad in [&b""[..], b".", b"1.", b".5", b"-1", b"1e5", b"1.2.3", b"0x1", b" 1"] {
            assert_eq!(S.read(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(S.read(b"18446744074"), None);
        assert_eq!(S.read(b"18446744073.709551616"), None);
        assert_eq!(S.read(b"18446744073.709551615"), Some(u64::MAX));
    }

    proptest! {
        /// What is written is read back, to the resolution of the unit.
        #[test]
        fn times_survive(ns in any::<u64>(), unit in 0usize..6) {
            let clock = [NS, US, TICKS, MS, WHOLE_S, S][unit];
            let mut text = Vec::new();
            clock.write(ns, &mut text);
            let kept = ns - ns % clock.resolution_ns();
            prop_assert_eq!(clock.read(&text), Some(kept));
        }
    }
}
