//! `flashlane check`.

use crate::Ending;
use crate::args::What;
use crate::output;
use anyhow::Result;
use flashlane_lab::{check, input};

pub(crate) fn check(what: &What) -> Result<Ending> {
    let (_, experiment) = input::load(what.file.as_deref(), &what.changes())?;
    let findings = check::check(&experiment);
    output::print(&findings.summary)?;
    if findings.problems.is_empty() {
        return Ok(Ending::Good);
    }
    for problem in &findings.problems {
        output::complain(&anyhow::anyhow!("{problem}"));
    }
    Ok(Ending::Unusable)
}
