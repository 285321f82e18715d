//! Faults put into a drive by hand.
//!
//! Owns: the lines of `drive inject`. Promises: what is refused has changed nothing; on a drive at rest a
//! fault is kept until it is cleared, also when it has happened, and the next who opens the drive meets
//! it. Never: knows the bytes of an image.

use super::DriveError;
use crate::control::{Answer, Ask, reach};
use crate::lnvm::open_to_change;
use crate::words::text_of;
use flashlane_base::Ns;
pub use flashlane_media::fault::FaultKind;
use flashlane_media::fault::kept::FaultState;
use flashlane_media::fault::{FaultError, FaultPlan};
use flashlane_ocssd::{ImageError, OpenImage, Ssd};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

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

/// Opens a drive, changes its faults, closes it.
fn change<T>(
    path: &Path,
    change: impl FnOnce(&Ssd) -> Result<T, DriveError>,
) -> Result<T, DriveError> {
    let ssd = open_to_change(path, &OpenImage::default())?;
    let done = change(&ssd);
    let closed = ssd.close().map_err(at(path));
    let done = done?; // why it could not be done matters more
    closed.map(|()| done)
}

/// Opens a drive for reading.
fn look(path: &Path) -> Result<Arc<Ssd>, DriveError> {
    Ok(Ssd::open_image(path, &OpenImage { read_only: true, ..OpenImage::default() })?)
}

/// `drive inject`: adds the lines of a plan.
///
/// # Errors
/// No such drive, a plan that makes no sense on it, an image of a format that keeps none, or the host
/// failed.
pub fn inject(path: &Path, plan: &str) -> Result<Answer, DriveError> {
    let lines = FaultPlan::from_toml(plan).map_err(ImageError::from)?;
    if lines.is_empty() {
        return Err(DriveError::NoFaults);
    }
    let ask = || Ok(Ask::Inject { plan: plan.into() });
    reach(path, ask, || {
        // Not opened for writing before it is known that it can be done.
        let ssd = look(path)?;
        let info = ssd.image_info().ok_or(ImageError::InMemory)?;
        if !ssd.keeps_faults() {
            return Err(at(path)(ImageError::Older { version: info.version, what: "faults" }));
        }
        drop(ssd);
        change(path, |ssd| inject_into(ssd, path, &lines, false))
    })
}

/// [`inject`] into a drive that is open.
pub(crate) fn inject_into(
    ssd: &Ssd,
    path: &Path,
    plan: &FaultPlan,
    in_use: bool,
) -> Result<Answer, DriveError> {
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

/// What [`power_cut`] is called where a fault has its kind.
pub const POWER_CUT: &str = "power_cut";

/// `drive inject power_cut`: the run on a drive in use ends as when its power is cut at this moment.
///
/// # Errors
/// No such drive, nobody uses it, or the host failed.
pub fn power_cut(path: &Path) -> Result<Answer, DriveError> {
    reach(
        path,
        || Ok(Ask::PowerCut),
        || match look(path) {
            Ok(_) => Err(DriveError::NoPower { path: path.into() }),
            Err(e) => Err(e),
        },
    )
}

/// `drive inject --list`.
///
/// # Errors
/// No such drive.
pub fn list_faults(path: &Path) -> Result<Answer, DriveError> {
    reach(path, || Ok(Ask::Faults), || look(path).map(|ssd| list_of(&ssd)))
}

/// [`list_faults`] of a drive that is open.
pub(crate) fn list_of(ssd: &Ssd) -> Answer {
    list(&ssd.faults())
}

/// `drive inject --clear`.
///
/// # Errors
/// No such drive, or the host failed.
pub fn clear_faults(path: &Path) -> Result<Answer, DriveError> {
    reach(path, || Ok(Ask::ClearFaults), || change(path, |ssd| clear_of(ssd, path)))
}

/// [`clear_faults`] of a drive that is open.
pub(crate) fn clear_of(ssd: &Ssd, path: &Path) -> Result<Answer, DriveError> {
    let gone = ssd.clear_faults().map_err(at(path))?;
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
