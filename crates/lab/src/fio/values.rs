//! fio's numbers: sizes whose prefixes depend on `kb_base`, times with a default unit, lists.
//!
//! Owns: the units of fio's manual. Promises: no rounding, no overflow, no value is guessed.
//! Never: accepts a size that is no whole number of 4 KiB sectors where a request needs one.

use crate::workload::{Amount, Sizes};
use flashlane_base::{Ns, SECTOR_BYTES};

/// `kb_base`: with 1024 (fio's default) `k` is 1024 and `ki` is 1000; with 1000 the other way
/// round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// 1024 or 1000.
    pub kb_base: u64,
}

impl Default for Units {
    fn default() -> Units {
        Units { kb_base: 1024 }
    }
}

/// Largest request: what a stream may allocate per request in flight.
const REQUEST_SECTORS_MAX: u64 = (64 << 20) / SECTOR_BYTES as u64;

impl Units {
    /// A size in bytes.
    pub fn bytes(self, text: &str) -> Option<u64> {
        let (number, unit) = split(text)?;
        let unit = unit.to_ascii_lowercase();
        let (prefix, base) = match unit.strip_suffix("ib") {
            Some(prefix) => (prefix, self.other_base()),
            None => match unit.strip_suffix('i') {
                Some(prefix) => (prefix, self.other_base()),
                None => (unit.strip_suffix('b').unwrap_or(&unit), self.kb_base),
            },
        };
        let power = match prefix {
            "" => 0,
            "k" => 1,
            "m" => 2,
            "g" => 3,
            "t" => 4,
            "p" => 5,
            _ => return None,
        };
        number.checked_mul(base.checked_pow(power)?)
    }

    fn other_base(self) -> u64 {
        if self.kb_base == 1024 { 1000 } else { 1024 }
    }

    /// A size of whole sectors or a percentage up to 100.
    pub fn amount(self, text: &str) -> Option<Amount> {
        self.amount_up_to(text, 100)
    }

    /// A size of whole sectors or a percentage: more than all of it is what `io_size` may be.
    pub fn amount_up_to(self, text: &str, most: u64) -> Option<Amount> {
        if let Some(percent) = text.strip_suffix('%') {
            let percent: u64 = percent.trim().parse().ok()?;
            return (percent <= most).then_some(Amount::Percent(percent));
        }
        let bytes = self.bytes(text)?;
        (bytes.is_multiple_of(SECTOR_BYTES as u64)).then_some(Amount::Bytes(bytes))
    }

    /// A request size in sectors.
    pub fn request(self, text: &str) -> Option<u32> {
        let bytes = self.bytes(text)?;
        let sectors = bytes / SECTOR_BYTES as u64;
        let whole = bytes.is_multiple_of(SECTOR_BYTES as u64);
        (whole && (1..=REQUEST_SECTORS_MAX).contains(&sectors)).then_some(sectors as u32)
    }

    /// `4k-64k`: every multiple of the smaller size, all alike likely.
    pub fn range(self, text: &str) -> Option<Sizes> {
        let (low, high) = text.split_once('-').or_else(|| text.split_once(':'))?;
        let (low, high) = (self.request(low.trim())?, self.request(high.trim())?);
        let steps = (high.checked_sub(low)? / low) as usize;
        // More steps than this differ by less than a thousandth.
        (steps <= 1024).then(|| Sizes((0..=steps as u32).map(|i| (low * (i + 1), 1)).collect()))
    }

    /// `4k/10:64k/50:32k/40`: sizes with their share in percent; an empty share takes the rest.
    pub fn split(self, text: &str) -> Option<Sizes> {
        let mut sizes = Vec::new();
        let (mut sum, mut open) = (0u32, 0u32);
        for part in text.split(':') {
            let (size, share) = part.split_once('/').unwrap_or((part, ""));
            let share: Option<u32> = match share.trim() {
                "" => None,
                s => Some(s.parse().ok().filter(|s| *s <= 100)?),
            };
            sum += share.unwrap_or(0);
            open += share.is_none() as u32;
            sizes.push((self.request(size.trim())?, share));
            if sizes.len() > 64 {
                return None;
            }
        }
        let rest = 100u32.checked_sub(sum)?;
        // Weights are scaled by the number of open shares, so that the rest divides exactly.
        let scale = open.max(1);
        let weighted = sizes.iter().map(|(s, w)| (*s, w.map_or(rest, |w| w * scale)));
        let weighted: Vec<(u32, u32)> = weighted.collect();
        let complete = open > 0 || sum == 100;
        (complete && weighted.iter().any(|(_, w)| *w > 0)).then_some(Sizes(weighted))
    }
}

/// A time whose bare number is in `default` units.
pub fn time(text: &str, default: Ns) -> Option<Ns> {
    let (number, unit) = split(text)?;
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => default,
        "us" | "usec" => Ns::from_us(1),
        "ms" | "msec" => Ns::from_ms(1),
        "s" => Ns::from_secs(1),
        "m" | "min" => Ns::from_secs(60),
        "h" => Ns::from_secs(3600),
        "d" => Ns::from_secs(86_400),
        _ => return None,
    };
    number.checked_mul(unit.as_ns()).map(Ns::from_ns)
}

/// `a`, `a,b` or `a,b,c` for read, write and trim: what is left out is like what is before it.
pub fn three<T: Clone>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<[T; 3]> {
    let mut values = Vec::new();
    for part in text.split(',') {
        let part = part.trim();
        // `,8k` leaves the reads at their default: not worth a case of its own, but no guess
        // either.
        values.push(parse(part)?);
    }
    let (first, last) = (values.first()?.clone(), values.last()?.clone());
    let second = values.get(1).cloned().unwrap_or_else(|| first.clone());
    (values.len() <= 3).then_some([first, second, last])
}

/// Digits, then a unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok().map(|n| (n, ""));
    }
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_fill_up_from_the_left() {
        let u = Units::default();
        assert_eq!(three("4k", |t| u.request(t)), Some([1, 1, 1]));
        assert_eq!(three("4k,8k", |t| u.request(t)), Some([1, 2, 2]));
        assert_eq!(three("4k,8k,12k", |t| u.request(t)), Some([1, 2, 3]));
        assert_eq!(three("4k,,", |t| u.request(t)), None);
        assert_eq!(three("4k,4k,4k,4k", |t| u.request(t)), None);
    }

    #[test]
    fn splits_and_ranges_have_weights() {
        let u = Units::default();
        assert_eq!(u.split("4k/10:64k/90"), Some(Sizes(vec![(1, 10), (16, 90)])));
        assert_eq!(u.split("4k/40:8k:16k"), Some(Sizes(vec![(1, 80), (2, 60), (4, 60)])));
        assert_eq!(u.split("4k/40:8k/40"), None, "shares must add up");
        assert_eq!(u.split("4k/140"), None);
        assert_eq!(u.range("4k-16k"), Some(Sizes(vec![(1, 1), (2, 1), (3, 1), (4, 1)])));
        assert_eq!(u.range("16k-4k"), None);
    }

    #[test]
    fn nothing_overflows() {
        let u = Units::default();
        for text in ["18446744073709551615p", "99999999999999999999", "k", "", "-4k", "4 k k"] {
            assert_eq!(u.bytes(text), None, "{text}");
        }
        assert_eq!(time("18446744073709551615", Ns::from_secs(1)), None);
        assert_eq!(u.bytes("0x1000"), Some(4096));
    }
}
