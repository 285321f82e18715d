//! Time, size and logical address as types, with the units a person writes in a file.
//!
//! Owns: [`Ns`], [`Bytes`], [`Lba`] and the parser of `"50us"` and `"16GiB"`.
//! Promises: parsing never rounds, never guesses a unit and never overflows silently.
//! Never: multiplies time by time; there is no `From<u64>`, a number is named when it enters.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

/// A point in time or a span of it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ns(u64);

impl Ns {
    /// Zero, and the time at which every simulation starts.
    pub const ZERO: Ns = Ns(0);
    /// Never.
    pub const MAX: Ns = Ns(u64::MAX);
    pub const fn from_ns(ns: u64) -> Ns {
        Ns(ns)
    }
    /// From microseconds.
    pub const fn from_us(us: u64) -> Ns {
        Ns(us * 1_000)
    }
    pub const fn from_ms(ms: u64) -> Ns {
        Ns(ms * 1_000_000)
    }
    pub const fn from_secs(s: u64) -> Ns {
        Ns(s * 1_000_000_000)
    }
    #[inline(always)]
    pub const fn as_ns(self) -> u64 {
        self.0
    }
    /// As seconds, for people and ratios only; the model stays in integers.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// `self - other`, or zero.
    #[inline(always)]
    pub const fn saturating_sub(self, other: Ns) -> Ns {
        Ns(self.0.saturating_sub(other.0))
    }
    /// This span `n` times, saturating.
    #[inline(always)]
    pub const fn times(self, n: u64) -> Ns {
        Ns(self.0.saturating_mul(n))
    }
    /// Time that `bytes` take at `bytes_per_sec`, rounded up; zero bandwidth means no limit.
    #[inline]
    pub const fn of_transfer(bytes: u64, bytes_per_sec: u64) -> Ns {
        if bytes_per_sec == 0 {
            return Ns(0);
        }
        Ns((bytes as u128 * 1_000_000_000).div_ceil(bytes_per_sec as u128) as u64)
    }
}

impl Add for Ns {
    type Output = Ns;
    #[inline(always)]
    fn add(self, o: Ns) -> Ns {
        Ns(self.0 + o.0)
    }
}
impl Sub for Ns {
    type Output = Ns;
    #[inline(always)]
    fn sub(self, o: Ns) -> Ns {
        Ns(self.0 - o.0)
    }
}
impl AddAssign for Ns {
    #[inline(always)]
    fn add_assign(&mut self, o: Ns) {
        self.0 += o.0;
    }
}
impl SubAssign for Ns {
    #[inline(always)]
    fn sub_assign(&mut self, o: Ns) {
        self.0 -= o.0;
    }
}
impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let scaled = |f: &mut fmt::Formatter<'_>, unit: u64, name: &str| {
            let tenths = n / (unit / 10) + (n % (unit / 10) >= unit / 20) as u64;
            if tenths.is_multiple_of(10) {
                write!(f, "{} {name}", tenths / 10)
            } else {
                write!(f, "{}.{} {name}", tenths / 10, tenths % 10)
            }
        };
        match n {
            0..1_000 => write!(f, "{n} ns"),
            1_000..1_000_000 => scaled(f, 1_000, "us"),
            1_000_000..1_000_000_000 => scaled(f, 1_000_000, "ms"),
            _ => scaled(f, 1_000_000_000, "s"),
        }
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    pub const fn new(bytes: u64) -> Bytes {
        Bytes(bytes)
    }
    /// From KiB.
    pub const fn from_kib(kib: u64) -> Bytes {
        Bytes(kib << 10)
    }
    /// From MiB.
    pub const fn from_mib(mib: u64) -> Bytes {
        Bytes(mib << 20)
    }
    /// From GiB.
    pub const fn from_gib(gib: u64) -> Bytes {
        Bytes(gib << 30)
    }
    /// As bytes.
    #[inline(always)]
    pub const fn get(self) -> u64 {
        self.0
    }
}
impl Add for Bytes {
    type Output = Bytes;
    fn add(self, o: Bytes) -> Bytes {
        Bytes(self.0 + o.0)
    }
}
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let (unit, name) = match n {
            0..1024 => return write!(f, "{n} B"),
            1024..0x10_0000 => (1u64 << 10, "KiB"),
            0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
            0x4000_0000..0x100_0000_0000 => (1 << 30, "GiB"),
            _ => (1 << 40, "TiB"),
        };
        if n.is_multiple_of(unit) {
            write!(f, "{} {name}", n / unit)
        } else {
            write!(f, "{:.2} {name}", n as f64 / unit as f64)
        }
    }
}

/// A logical sector of 4 KiB as the host addresses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(u64);

impl Lba {
    /// The `n`-th logical sector.
    #[inline(always)]
    pub const fn new(n: u64) -> Lba {
        Lba(n)
    }
    #[inline(always)]
    pub const fn get(self) -> u64 {
        self.0
    }
}
impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lba {}", self.0)
    }
}

/// Why a quantity could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    #[error("`{0}` is not a number with a unit (write it like {1})")]
    NoNumber(String, &'static str),
    #[error("unknown unit `{unit}` in `{text}` (known: {known})")]
    Unit { unit: String, text: String, known: &'static str },
    /// More than 64 bits, or a fraction that is no whole number of the base unit.
    #[error("`{0}` is too large, or not a whole number of the smallest unit")]
    Range(String),
}

const TIME_UNITS: &str = "ns, us, ms, s, min, h";
const SIZE_UNITS: &str = "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB";

/// Splits `"1.5 GiB"` and scales it exactly; `unit_of` names the units.
fn parse_scaled(
    text: &str,
    known: &'static str,
    example: &'static str,
    unit_of: impl Fn(&str) -> Option<u64>,
) -> Result<u64, UnitError> {
    let t = text.trim();
    let split = t.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(t.len());
    let number: String = t[..split].chars().filter(|c| *c != '_').collect();
    let unit = t[split..].trim();
    let (whole, frac) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() || frac.contains('.') || frac.len() > 12 {
        return Err(UnitError::NoNumber(text.into(), example));
    }
    let scale = unit_of(unit).ok_or_else(|| UnitError::Unit {
        unit: unit.into(),
        text: text.into(),
        known,
    })?;
    let range = || UnitError::Range(text.into());
    let whole: u128 = whole.parse().map_err(|_| range())?;
    let places = 10u128.pow(frac.len() as u32);
    let frac: u128 = if frac.is_empty() { 0 } else { frac.parse().map_err(|_| range())? };
    let scaled = whole
        .checked_mul(places)
        .and_then(|w| w.checked_add(frac))
        .and_then(|w| w.checked_mul(scale as u128))
        .ok_or_else(range)?;
    if scaled % places != 0 {
        return Err(range());
    }
    u64::try_from(scaled / places).map_err(|_| range())
}

impl FromStr for Ns {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Ns, UnitError> {
        parse_scaled(s, TIME_UNITS, "\"50us\"", |u| {
            Some(match u {
                "ns" => 1,
                "us" => 1_000,
                "ms" => 1_000_000,
                "s" => 1_000_000_000,
                "min" => 60_000_000_000,
                "h" => 3_600_000_000_000,
                _ => return None,
            })
        })
        .map(Ns)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(s: &str) -> Result<Bytes, UnitError> {
        parse_scaled(s, SIZE_UNITS, "\"16GiB\"", |u| {
            Some(match u {
                "B" => 1,
                "KiB" => 1 << 10,
                "MiB" => 1 << 20,
                "GiB" => 1 << 30,
                "TiB" => 1 << 40,
                "kB" | "KB" => 1_000,
                "MB" => 1_000_000,
                "GB" => 1_000_000_000,
                "TB" => 1_000_000_000_000,
                _ => return None,
            })
        })
        .map(Bytes)
    }
}

macro_rules! serde_by_text {
    ($t:ty) => {
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$t, D::Error> {
                let text = String::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
serde_by_text!(Ns);
serde_by_text!(Bytes);

impl Serialize for Ns {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}ns", self.0))
    }
}
impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What people write in files means what they think, and nothing is rounded.
    #[test]
    fn quantities_parse_exactly_or_not_at_all() {
        assert_eq!("52.433us".parse(), Ok(Ns::from_ns(52_433)));
        assert_eq!("1.5 GiB".parse(), Ok(Bytes::new(3 << 29)));
        assert_eq!("4.0GB".parse(), Ok(Bytes::new(4_000_000_000)));
        assert_eq!("1_000 ns".parse(), Ok(Ns::from_us(1)));
        for bad in ["", "us", "5", "5 parsecs", "1.2.3us", "0.5ns", "99999999999TiB", "-1us"] {
            assert!(bad.parse::<Ns>().is_err() && bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    /// Found by fuzzing traces: the last representable times are printed too.
    #[test]
    fn every_time_can_be_printed() {
        let shown = |ns| Ns::from_ns(ns).to_string();
        assert_eq!([shown(0), shown(1_049), shown(1_050)], ["0 ns", "1 us", "1.1 us"]);
        assert_eq!(shown(u64::MAX), "18446744073.7 s");
    }

    #[test]
    fn a_transfer_rounds_up_and_zero_bandwidth_is_no_limit() {
        assert_eq!(Ns::of_transfer(65536, 280_000_000), Ns::from_ns(234_058));
        assert_eq!(Ns::of_transfer(4096, 0), Ns::ZERO);
    }
}
