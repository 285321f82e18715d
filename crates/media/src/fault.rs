//! What goes wrong on purpose, and where.
//!
//! Owns: the fault plan, its TOML form, what of it has happened; lines that a drive keeps are in
//! [`kept`]. Promises: the same plan, seed and
//! commands fail at the same places; an unknown key or a value that cannot be is an error that
//! names the fault by its number. Never: fails an operation that no line of the plan names.
//!
//! ```toml
//! [[fault]]
//! kind = "early_close"
//! at = "pu 3 chunk 17 sector 32"   # or pu = 3, chunk = 17, sector = 32; what is left out matches
//! count = 5                        # the fifth operation that matches, and what comes after
//! after = "3ms"                    # not before this device time
//! probability = "1e-4"             # of each match
//! times = 2                        # then no more; 1 when nothing is said, no end with probability
//! ```

pub mod kept;

use flashlane_base::{Ns, Rng};
use kept::FaultState;
use serde::Deserialize;
use std::fmt;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A program fails as the medium reports it by default: as `early_close`.
    ProgramFail,
    /// A program fails softly: data lost, the write pointer moves on (F0h).
    WriteNextUnit,
    /// A program fails hard: nothing written, the chunk is closed (F1h).
    EarlyClose,
    /// An erase fails; the chunk is offline.
    EraseFail,
    /// A read has more errors than the code corrects (81h).
    ReadUncorrectable,
    /// A read is corrected with effort (D0h).
    ReadHighEcc,
    /// A read returns wrong bits and says that all is well: what checksums are for.
    BitFlip,
    /// The die stops working; the operation that meets this is the first to fail.
    DieFail,
}

/// The kind of operation that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    /// A program of one write unit.
    Program,
    /// An erase.
    Erase,
    /// A read of one sector.
    Read,
}

impl FaultKind {
    /// All kinds with their names in a plan. The place in this list, from 1, is a kind's code in an
    /// image: new ones go to the end.
    pub const ALL: [(&'static str, FaultKind); 8] = [
        ("program_fail", FaultKind::ProgramFail),
        ("write_next_unit", FaultKind::WriteNextUnit),
        ("early_close", FaultKind::EarlyClose),
        ("erase_fail", FaultKind::EraseFail),
        ("read_uncorrectable", FaultKind::ReadUncorrectable),
        ("read_high_ecc", FaultKind::ReadHighEcc),
        ("bit_flip", FaultKind::BitFlip),
        ("die_fail", FaultKind::DieFail),
    ];

    /// Its name in a plan.
    pub fn name(self) -> &'static str {
        FaultKind::ALL[self.code() as usize - 1].0
    }

    fn code(self) -> u8 {
        let at = FaultKind::ALL.iter().position(|(_, kind)| *kind == self);
        at.map_or(0, |at| at as u8 + 1)
    }

    fn of_code(code: u8) -> Option<FaultKind> {
        FaultKind::ALL.get((code as usize).checked_sub(1)?).map(|(_, kind)| *kind)
    }

    fn hits(self, hit: Hit) -> bool {
        match self {
            FaultKind::ProgramFail | FaultKind::WriteNextUnit | FaultKind::EarlyClose => {
                hit == Hit::Program
            }
            FaultKind::EraseFail => hit == Hit::Erase,
            FaultKind::ReadUncorrectable | FaultKind::ReadHighEcc | FaultKind::BitFlip => {
                hit == Hit::Read
            }
            FaultKind::DieFail => true,
        }
    }
}

/// A line of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// On this PU only.
    pub pu: Option<u32>,
    /// On this chunk of each PU named.
    pub chunk: Option<u32>,
    /// On operations over this sector.
    pub sector: Option<u32>,
    /// From the n-th match on, counted from 1.
    pub count: u64,
    /// Not before this device time.
    pub after: Ns,
    /// Chance of each match in 2^32; `None` is certainty.
    pub chance: Option<u64>,
    /// How often at most.
    pub times: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        for (name, at) in [("pu", self.pu), ("chunk", self.chunk), ("sector", self.sector)] {
            if let Some(at) = at {
                write!(f, " {name} {at}")?;
            }
        }
        if self.count > 1 {
            write!(f, ", from match {} on", self.count)?;
        }
        if self.after > Ns::ZERO {
            write!(f, ", not before {} of device time", self.after)?;
        }
        if let Some(parts) = self.chance {
            // As it is written in a plan.
            let text = format!("{:.3e}", parts as f64 / (1u64 << 32) as f64);
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            write!(f, ", probability {digits}e{exponent}")?;
        }
        match self.times {
            u64::MAX => f.write_str(", without end"),
            1 => f.write_str(", once"),
            n => write!(f, ", {n} times"),
        }
    }
}

/// Faults to be injected. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// All lines, in order: the first that matches happens.
    pub faults: Vec<Fault>,
}

/// Why a plan was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// Not TOML, or an unknown key.
    #[error("fault plan: {0}")]
    Syntax(String),
    /// A line with a value that cannot be.
    #[error("fault plan, [[fault]] number {number}{}: `{key}` {problem}", of_line(.line))]
    Value {
        /// Which, counted from 1.
        number: usize,
        /// The line of the file in which it begins, counted from 1, as far as that is known.
        line: Option<usize>,
        /// Which key.
        key: &'static str,
        /// What is wrong and what would do.
        problem: String,
    },
}

fn of_line(line: &Option<usize>) -> String {
    line.map_or(String::new(), |line| format!(" (line {line})"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    fault: Vec<toml::Spanned<Line>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kind: FaultKind,
    at: Option<String>,
    pu: Option<u32>,
    chunk: Option<u32>,
    sector: Option<u32>,
    count: Option<u64>,
    after: Option<Ns>,
    probability: Option<String>,
    times: Option<u64>,
}

impl FaultPlan {
    /// Reads a plan.
    pub fn from_toml(text: &str) -> Result<FaultPlan, FaultError> {
        let file: File = toml::from_str(text).map_err(|e| FaultError::Syntax(e.to_string()))?;
        let lines = file.fault.into_iter().enumerate();
        let fault = |(i, line): (usize, toml::Spanned<Line>)| {
            let before = text.get(..line.span().start).unwrap_or_default();
            let at = 1 + before.bytes().filter(|b| *b == b'\n').count();
            line.into_inner().into_fault(i + 1, at)
        };
        let faults = lines.map(fault).collect::<Result<_, _>>()?;
        Ok(FaultPlan { faults })
    }

    /// True when nothing will happen.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Checks places against a device's dimensions.
    pub fn check(&self, pus: u32, chunks: u32, sectors: u32) -> Result<(), FaultError> {
        for (i, f) in self.faults.iter().enumerate() {
            let places =
                [("pu", f.pu, pus), ("chunk", f.chunk, chunks), ("sector", f.sector, sectors)];
            for (key, at, limit) in places {
                if let Some(at) = at.filter(|at| *at >= limit) {
                    return Err(FaultError::Value {
                        number: i + 1,
                        line: None,
                        key,
                        problem: format!("is {at}, the device has 0 to {}", limit - 1),
                    });
                }
            }
        }
        Ok(())
    }
}

impl Line {
    fn into_fault(self, number: usize, line: usize) -> Result<Fault, FaultError> {
        let line = Some(line);
        let wrong = |key, problem: String| FaultError::Value { number, line, key, problem };
        let (mut pu, mut chunk, mut sector) = (self.pu, self.chunk, self.sector);
        if let Some(at) = &self.at {
            if pu.is_some() || chunk.is_some() || sector.is_some() {
                let says = "and `pu`, `chunk`, `sector` say the same thing; give one".into();
                return Err(wrong("at", says));
            }
            (pu, chunk, sector) = place(at).map_err(|p| wrong("at", p))?;
        }
        if let Some(n) = sector.filter(|_| self.kind == FaultKind::EraseFail) {
            let key = if self.at.is_some() { "at" } else { "sector" };
            let says =
                format!("names sector {n}, but an erase takes a whole chunk: leave the sector out");
            return Err(wrong(key, says));
        }
        let chance = match &self.probability {
            None => None,
            Some(text) => Some(chance(text).map_err(|p| wrong("probability", p))?),
        };
        if self.count == Some(0) || self.times == Some(0) {
            let key = if self.count == Some(0) { "count" } else { "times" };
            return Err(wrong(key, "is counted from 1".into()));
        }
        Ok(Fault {
            kind: self.kind,
            pu,
            chunk,
            sector,
            count: self.count.unwrap_or(1),
            after: self.after.unwrap_or(Ns::ZERO),
            times: self.times.unwrap_or(if chance.is_some() { u64::MAX } else { 1 }),
            chance,
        })
    }
}

type Place = (Option<u32>, Option<u32>, Option<u32>);

/// `"pu 3 chunk 17 sector 32"`, any part of it left out.
fn place(text: &str) -> Result<Place, String> {
    let mut place = (None, None, None);
    let mut words = text.split_whitespace();
    if text.trim().is_empty() {
        let says =
            "names no place: write `pu 3 chunk 17 sector 32`, or leave `at` out for all places";
        return Err(says.into());
    }
    while let Some(name) = words.next() {
        let slot = match name {
            "pu" => &mut place.0,
            "chunk" => &mut place.1,
            "sector" => &mut place.2,
            _ => return Err(format!("has `{name}`; write `pu 3 chunk 17 sector 32`")),
        };
        let number = words.next().and_then(|n| n.parse().ok());
        if number.is_none() || slot.is_some() {
            return Err(format!("needs one number after `{name}`"));
        }
        *slot = number;
    }
    Ok(place)
}

/// A decimal like `"1e-4"` or `"0.25"`, in parts of 2^32, rounded to the nearest.
fn chance(text: &str) -> Result<u64, String> {
    let wrong = || format!("is `{text}`; write a number from 0 to 1 like \"1e-4\"");
    let lower = text.trim().to_ascii_lowercase();
    let (digits, exponent) = lower.split_once('e').unwrap_or((&lower, "0"));
    let exponent: i32 = exponent.parse().map_err(|_| wrong())?;
    let (whole, frac) = digits.split_once('.').unwrap_or((digits, ""));
    let all = format!("{whole}{frac}");
    let plain = !all.is_empty() && all.len() <= 18 && all.bytes().all(|b| b.is_ascii_digit());
    if !plain || !(-30..=18).contains(&exponent) {
        return Err(wrong());
    }
    let value: u128 = all.parse().map_err(|_| wrong())?;
    let scale = frac.len() as i32 - exponent; // value / 10^scale
    let parts = match scale {
        0.. => {
            let unit = 10u128.checked_pow(scale as u32).unwrap_or(u128::MAX);
            ((value << 32) + unit / 2) / unit
        }
        _ => match value {
            0 => 0,
            _ => u128::MAX, // a whole number times ten is above one
        },
    };
    if parts > 1 << 32 {
        return Err(wrong());
    }
    Ok(parts as u64)
}

/// A plan at work: how often each line has matched and happened.
#[derive(Clone, Debug)]
pub struct Faults {
    lines: Vec<Live>,
}

#[derive(Clone, Debug)]
struct Live {
    state: FaultState,
    rng: Rng,
}

impl Live {
    fn new(fault: &Fault, rng: Rng, injected: bool) -> Live {
        let fault = fault.clone();
        Live { state: FaultState { fault, matched: 0, happened: 0, injected }, rng }
    }
}

impl Faults {
    /// A plan at its start.
    pub fn new(plan: &FaultPlan, seed: u64) -> Faults {
        let live = |(i, f)| Live::new(f, Rng::stream(seed, "media.faults", i), false);
        Faults { lines: (0..).zip(&plan.faults).map(live).collect() }
    }

    /// What happens to an operation on `n` sectors from `sector` on. Every line that names it
    /// counts it; the first whose time has come happens.
    pub fn strike(
        &mut self,
        hit: Hit,
        pu: u32,
        chunk: u32,
        sector: u32,
        n: u32,
        now: Ns,
    ) -> Option<FaultKind> {
        let mut struck = None;
        for Live { state: line, rng } in &mut self.lines {
            let f = &line.fault;
            let covers = |s: u32| s >= sector && s - sector < n;
            let named = f.kind.hits(hit)
                && f.pu.is_none_or(|p| p == pu)
                && f.chunk.is_none_or(|c| c == chunk)
                && (hit == Hit::Erase || f.sector.is_none_or(covers))
                && now >= f.after;
            if !named {
                continue;
            }
            line.matched = line.matched.saturating_add(1);
            let due = line.matched >= f.count && line.happened < f.times;
            if struck.is_none() && due && f.chance.is_none_or(|c| rng.chance_2_32(c)) {
                line.happened += 1;
                struck = Some(f.kind);
            }
        }
        struck
    }

    /// How often each line has happened.
    pub fn happened(&self) -> Vec<u64> {
        self.lines.iter().map(|l| l.state.happened).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"
        [[fault]]
        kind = "early_close"
        at = "pu 3 chunk 17 sector 32"
        count = 2
        [[fault]]
        kind = "read_uncorrectable"
        chunk = 1
        probability = "0.5"
        after = "3ms"
    "#;

    #[test]
    fn a_plan_says_what_happens_where_and_when() {
        let plan = FaultPlan::from_toml(EXAMPLE).unwrap();
        let mut live = Faults::new(&plan, 7);
        let mut strike =
            |hit, chunk, sector, ms| live.strike(hit, 3, chunk, sector, 4, Ns::from_ms(ms));
        assert_eq!(strike(Hit::Program, 17, 28, 0), None, "sectors 28..32");
        assert_eq!(strike(Hit::Program, 17, 32, 0), None, "the first match");
        assert_eq!(strike(Hit::Program, 17, 30, 0), Some(FaultKind::EarlyClose));
        assert_eq!(strike(Hit::Program, 17, 32, 0), None, "once");
        let early = (0..100).filter(|_| strike(Hit::Read, 1, 0, 1).is_some()).count();
        let late = (0..1000).filter(|_| strike(Hit::Read, 1, 0, 4).is_some()).count();
        assert_eq!(early, 0);
        assert!((400..600).contains(&late), "{late}");
    }

    #[test]
    fn a_line_is_said_in_words() {
        let plan = FaultPlan::from_toml(EXAMPLE).unwrap();
        let said = plan.faults.iter().map(Fault::to_string).collect::<Vec<_>>();
        assert_eq!(said[0], "early_close pu 3 chunk 17 sector 32, from match 2 on, once");
        assert!(said[1].starts_with("read_uncorrectable chunk 1, not before 3"), "{}", said[1]);
        assert!(said[1].ends_with("probability 5e-1, without end"), "{}", said[1]);
        for (name, kind) in FaultKind::ALL {
            let line = format!("[[fault]]\nkind = \"{name}\"");
            assert_eq!(FaultPlan::from_toml(&line).unwrap().faults[0].kind, kind);
            assert_eq!((kind.name(), FaultKind::of_code(kind.code())), (name, Some(kind)));
        }
    }

    #[test]
    fn a_wrong_plan_is_refused_with_its_place() {
        let cases = [
            ("[[fault]]\nkind = \"early_closed\"", "early_closed"),
            ("[[fault]]\nkind = \"bit_flip\"\npuu = 1", "puu"),
            ("[[fault]]\nkind = \"bit_flip\"\nat = \"plane 1\"", "plane"),
            ("[[fault]]\nkind = \"bit_flip\"\nat = \"pu\"", "number 1"),
            ("[[fault]]\nkind = \"bit_flip\"\nat = \" \"", "`at` names no place"),
            ("[[fault]]\nkind = \"erase_fail\"\nat = \"pu 1 sector 5\"", "`at` names sector 5"),
            ("[[fault]]\nkind = \"erase_fail\"\nsector = 5", "`sector` names sector 5"),
            ("[[fault]]\nkind = \"bit_flip\"\nat = \"pu 1\"\npu = 1", "give one"),
            ("[[fault]]\nkind = \"bit_flip\"\nprobability = \"2\"", "`2`"),
            ("[[fault]]\nkind = \"bit_flip\"\nprobability = \"\"", "probability"),
            ("[[fault]]\nkind = \"bit_flip\"\ncount = 0", "count"),
            (
                "# a comment\n[[fault]]\nkind = \"bit_flip\"\n\n[[fault]]\nkind = \"bit_flip\"\ncount = 0",
                "number 2 (line 5): `count`",
            ),
        ];
        for (text, says) in cases {
            let said = FaultPlan::from_toml(text).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        let plan = FaultPlan::from_toml("[[fault]]\nkind = \"bit_flip\"\npu = 9").unwrap();
        let said = plan.check(4, 16, 64).unwrap_err().to_string();
        assert!(said.contains("0 to 3"), "{said}");
    }

    #[test]
    fn chances_are_read_without_floats() {
        for (text, parts) in [
            ("1", 1 << 32),
            ("0", 0),
            ("0.5", 1 << 31),
            ("1e-4", 429_497),
            ("2.5E-1", 1 << 30),
            ("10e-1", 1 << 32),
        ] {
            assert_eq!(chance(text), Ok(parts), "{text}");
        }
        for bad in ["1.1", "-1", "1e1", "e", ".", "1e", "nan", "1e-99"] {
            assert!(chance(bad).is_err(), "{bad}");
        }
    }
}
