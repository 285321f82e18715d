//! Faults put into a drive by hand.
//!
//! Owns: the lines of `drive inject`. Promises: what is refused has changed nothing; on a drive at rest a
//! fault is kept until it is cleared, also when it has happened, and the next who opens the drive meets
//! it. Never: knows the bytes of an image.

use super::DriveError;
use crate::control::Answer;
use crate::lnvm::Drive;
use crate::words::text_of;
use flashlane_base::Ns;
pub use flashlane_media::fault::FaultKind;
use flashlane_media::fault::kept::FaultState;
use flashlane_media::fault::{FaultError, FaultPlan};
use flashlane_ocssd::{ImageError, Ssd};
use serde_json::{Value, json};
use std::path::Path;

/// A line of a plan, from words of a command line.
#[derive(Clone, Debug, Default)]
pub struct FaultWords {
    pub kind: String,
    /// Where, `pu 3 chunk 17 sector 32`.
    pub at: Option<String>,
    /// From which match on.
    pub count: Option<u64>,
    /// How long from now.
    pub after: Option<String>,
    /// Chance of each match.
    pub probability: Option<String>,
    pub times: Option<u64>,
}

impl FaultWords {
    pub fn to_plan(&self) -> String {
        let text = |t: &Option<String>| t.as_ref().map(|t| toml::Value::from(t.as_str()));
        // What is too large for TOML is as much as there is.
        let number = |n: Option<u64>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX).into());
        let keys = [
            ("kind", Some(toml::Value::from(self.kind.as_str()))),
            ("at", text(&self.at)),
            ("count", number(self.count)),
            ("after", text(&self.after)),
            ("probability", text(&self.probability)),
            ("times", number(self.times)),
        ];
        let given =
            keys.into_iter().filter_map(|(key, value)| Some(format!("{key} = {}\n", value?)));
        given.fold("[[fault]]\n".into(), |plan, line| plan + &line)
    }

    /// The line as a plan, if it can be one.
    ///
    /// # Errors
    /// An option whose value can't be, by its name.
    pub fn checked(&self) -> Result<String, DriveError> {
        let wrong = |key: &'static str, problem: String| DriveError::Word { key, problem };
        if let Some(after) = &self.after {
            after.parse::<Ns>().map_err(|e| wrong("after", format!("is `{after}`: {e}")))?;
        }
        let plan = self.to_plan();
        match FaultPlan::from_toml(&plan) {
            Ok(_) => Ok(plan),
            Err(FaultError::Value { key, problem, .. }) => Err(wrong(key, problem)),
            Err(e) => Err(ImageError::from(e).into()),
        }
    }
}

/// An error with the image's name in front.
fn at(path: &Path) -> impl Fn(ImageError) -> DriveError {
    move |e| DriveError::Image(ImageError::At { path: path.into(), problem: Box::new(e) })
}

/// A plan that is to be injected.
///
/// # Errors
/// It makes no sense, or is empty.
pub(crate) fn plan_of(text: &str) -> Result<FaultPlan, DriveError> {
    let plan = FaultPlan::from_toml(text).map_err(ImageError::from)?;
    if plan.is_empty() { Err(DriveError::NoFaults) } else { Ok(plan) }
}

/// Whether a drive at rest keeps faults.
///
/// # Errors
/// Its image has a format that keeps none.
pub(crate) fn check_kept(drive: &Drive) -> Result<(), DriveError> {
    let info = drive.ssd.image_info().ok_or(ImageError::InMemory)?;
    match drive.ssd.keeps_faults() {
        true => Ok(()),
        false => {
            let older = ImageError::Older { version: info.version, what: "faults" };
            Err(at(&drive.path)(older))
        }
    }
}

/// `drive inject`: adds the lines of a plan to a drive that is open.
///
/// # Errors
/// A plan that makes no sense on it, or the host failed.
pub(crate) fn inject_into(
    drive: &Drive,
    plan: &FaultPlan,
    in_use: bool,
) -> Result<Answer, DriveError> {
    let Drive { path, ssd, .. } = drive;
    let before = ssd.faults().len();
    ssd.inject(plan).map_err(at(path))?;
    let now = ssd.faults();
    let mut answer = list(now.get(before..).unwrap_or_default());
    answer.text += match (in_use, ssd.keeps_faults()) {
        (false, _) => "kept; the next who opens the drive meets it\n",
        (true, true) => "from now on, and kept\n",
        (true, false) => {
            "from now on, until the drive is closed: its image has format 1.0, which keeps no faults \
             (`flashlane drive upgrade`)\n"
        }
    };
    Ok(answer)
}

/// What a cut of the power is called where a fault has its kind.
pub const POWER_CUT: &str = "power_cut";

/// `drive inject --list`.
pub(crate) fn list_of(ssd: &Ssd) -> Answer {
    list(&ssd.faults())
}

/// `drive inject --clear`.
///
/// # Errors
/// The host failed.
pub(crate) fn clear_of(drive: &Drive) -> Result<Answer, DriveError> {
    let gone = drive.ssd.clear_faults().map_err(at(&drive.path))?;
    let text = format!("{gone} faults cleared\n");
    Ok(Answer::new((text, text_of(&json!({ "cleared": gone })))))
}

fn list(faults: &[FaultState]) -> Answer {
    let mut text = String::new();
    let mut all = Vec::new();
    for (i, state) in (1..).zip(faults) {
        let whose = if state.injected { "" } else { "; of this run's plan" };
        let happened = match (state.happened, state.is_armed()) {
            (0, _) => "has not happened".to_string(),
            (n, true) => format!("has happened {}", times(n)),
            (n, false) => format!("has happened {}, no more", times(n)),
        };
        text += &format!("{i:>3}  {}; {happened}{whose}\n", state.fault);
        all.push(fault_json(state));
    }
    if faults.is_empty() {
        text += "no faults\n";
    }
    Answer::new((text, text_of(&json!({ "faults": all }))))
}

fn times(n: u64) -> String {
    match n {
        1 => "once".into(),
        n => format!("{n} times"),
    }
}

fn fault_json(state: &FaultState) -> Value {
    let f = &state.fault;
    json!({
        "kind": f.kind.name(),
        "pu": f.pu,
        "chunk": f.chunk,
        "sector": f.sector,
        "count": f.count,
        "after_ns": f.after.as_ns(),
        "probability": f.chance.map(|parts| parts as f64 / (1u64 << 32) as f64),
        "times": (f.times < u64::MAX).then_some(f.times),
        "matched": state.matched,
        "happened": state.happened,
        "injected": state.injected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a person types comes through TOML as it was typed, whatever is in it.
    #[test]
    fn words_become_a_line() {
        let words = FaultWords {
            kind: "early_close".into(),
            at: Some("pu 3 chunk 17".into()),
            count: Some(5),
            after: Some("3ms".into()),
            probability: Some("1e-4".into()),
            times: Some(u64::MAX),
        };
        let plan = FaultPlan::from_toml(&words.to_plan()).unwrap();
        let f = &plan.faults[0];
        assert_eq!((f.pu, f.chunk, f.count, f.after.as_ns()), (Some(3), Some(17), 5, 3_000_000));
        let nasty = FaultWords { kind: "a\"\n[[fault]]\nkind = \"die_fail".into(), ..words };
        let said = FaultPlan::from_toml(&nasty.to_plan()).unwrap_err().to_string();
        assert!(said.contains("unknown variant"), "{said}");
    }
}
