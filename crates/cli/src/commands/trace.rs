//! `flashlane trace info` and `flashlane trace validate`.

use crate::Ending;
use crate::args::{Trace, TraceInfo, TraceValidate};
use crate::output::{self, Sink};
use anyhow::Result;
use flashlane_lab::trace::info::{Info, fits_preset};
use flashlane_lab::trace::{TraceSource, scan};

pub(crate) fn trace(command: &Trace) -> Result<Ending> {
    match command {
        Trace::Info(args) => info(args),
        Trace::Validate(args) => validate(args),
    }
}

fn info(args: &TraceInfo) -> Result<Ending> {
    let json = Sink::open(args.json.as_deref())?;
    let info = Info::of(&scan(&TraceSource::File(args.file.clone()), None)?);
    let quiet = json.is_stdout();
    json.write(&info.to_json())?;
    if !quiet {
        output::print(&info.to_text())?;
    }
    Ok(Ending::Good)
}

fn validate(args: &TraceValidate) -> Result<Ending> {
    let scan = scan(&TraceSource::File(args.file.clone()), None)?;
    let mut text = Info::of(&scan).verdict();
    if let Some(preset) = &args.device {
        text += &fits_preset(&scan, preset)?;
    }
    output::print(&text)?;
    Ok(Ending::Good)
}
