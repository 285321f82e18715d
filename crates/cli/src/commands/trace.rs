//! `flashlane trace info`, `validate`, `convert` and `record`.

use crate::Ending;
use crate::args::{
    Contents, HowRead, Trace, TraceConvert, TraceIdiscard, TraceInfo, TraceRecord, TraceValidate,
};
use crate::output::{self, Results, Sink};
use crate::watch::{Interrupt, Terminal};
use anyhow::Result;
use flashlane_files::Bytes;
use flashlane_idiscard::recording::{AddError, Adding, Keeps, add_discards};
use flashlane_lab::control::{Ask, path_of};
use flashlane_lab::fits::fits_preset;
use flashlane_lab::report::plane;
use flashlane_lab::trace::convert::{Conversion, check_name, convert};
use flashlane_lab::trace::info::Info;
use flashlane_lab::trace::journals::Journals;
use flashlane_lab::trace::scan::{Scan, scan_kept, scan_watched};
use flashlane_lab::trace::truth::Truth;
use flashlane_lab::trace::{ConvertError, Format, Reading, TraceError, TraceSource};
use flashlane_lab::verbs::ask;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often somebody who wants a recording to end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) fn trace(command: &Trace) -> Result<Ending> {
    let interrupt = Interrupt::listen()?;
    let done = match command {
        Trace::Info(args) => info(args, &interrupt),
        Trace::Validate(args) => validate(args, &interrupt),
        Trace::Convert(args) => to_format(args, &interrupt),
        Trace::Idiscard(args) => with_discards(args, &interrupt),
        Trace::Record(args) => record(args, &interrupt),
    };
    match done {
        Err(error) if is_interrupt(&error) => {
            output::complain(&error);
            Ok(Ending::Interrupted)
        }
        other => other,
    }
}

fn is_interrupt(error: &anyhow::Error) -> bool {
    let read = matches!(error.downcast_ref(), Some(TraceError::Interrupted { .. }));
    let (convert, added) = (error.downcast_ref(), error.downcast_ref());
    let added = matches!(added, Some(AddError::Trace(TraceError::Interrupted { .. })));
    read || added || matches!(convert, Some(ConvertError::Trace(TraceError::Interrupted { .. })))
}

fn look(file: &Path, how: &HowRead, interrupt: &Interrupt) -> Result<Scan> {
    let watch = Terminal::new(interrupt, &file.display().to_string());
    Ok(scan_watched(&TraceSource::File(file.into()), &how.reading(), &watch)?)
}

fn info(args: &TraceInfo, interrupt: &Interrupt) -> Result<Ending> {
    let mut inputs = vec![args.file.clone()];
    inputs.extend(args.truth.clone());
    let wanted =
        output::given(&[("--json", args.out.json.as_ref()), ("--plot", args.plot.as_ref())]);
    output::all_apart(&wanted)?;
    output::keep_inputs(&inputs, &wanted)?;
    let (json, plot) = (args.out.open(&inputs)?, Sink::open(args.plot.as_deref())?);
    let truth = args.truth.as_deref().map(Truth::read).transpose()?;
    let watch = Terminal::new(interrupt, &args.file.display().to_string());
    let scan = scan_kept(&TraceSource::File(args.file.clone()), &args.how.reading(), &watch)?;
    let mut info = Info::of(&scan);
    info.journals = Journals::of(None, &scan, truth.as_ref(), &watch)?;
    let quiet = json.is_stdout() || plot.is_stdout();
    let mut results = Results::default();
    results.tried(json.put(&info.to_json()));
    if let Some(journals) = &info.journals {
        results.tried(plot.make(|| plane::svg(&journals.plane, &info.file)));
    }
    if !quiet {
        results.tried(output::print(&info.to_text()));
    }
    results.end(Ending::Good)
}

fn validate(args: &TraceValidate, interrupt: &Interrupt) -> Result<Ending> {
    let scan = look(&args.file, &args.how, interrupt)?;
    let mut text = Info::of(&scan).verdict();
    if let Some(preset) = &args.device {
        text += &fits_preset(&scan, preset)?;
    }
    output::done(text)
}

fn to_format(args: &TraceConvert, interrupt: &Interrupt) -> Result<Ending> {
    let wanted = output::given(&[("OUT", Some(&args.out)), ("--json", args.json.as_ref())]);
    output::all_apart(&wanted)?;
    output::keep_inputs(std::slice::from_ref(&args.file), &wanted)?;
    check_name(&args.out, args.to)?;
    let json = Sink::open(args.json.as_deref())?;
    let out = Sink::open(Some(&args.out))?;
    let (to_stdout, quiet) = (out.is_stdout(), json.is_stdout() || out.is_stdout());
    let scan = look(&args.file, &args.how, interrupt)?;
    let what = Conversion { to: args.to, device: args.device.as_deref(), lossy: args.lossy };
    let watch = Terminal::new(interrupt, &args.file.display().to_string());
    let (out, done) = match convert(&scan, &what, &watch, || Ok(out)) {
        // Nobody reads on: no more of it is wanted.
        Err(ConvertError::Write(e)) if to_stdout && e.kind() == std::io::ErrorKind::BrokenPipe => {
            return Ok(Ending::Good);
        }
        other => other?,
    };
    out.commit()?;
    let mut results = Results::default();
    results.tried(json.put(&done.to_json()));
    let text = done.to_text(&args.out.display().to_string());
    // Beside a trace on standard output, people read standard error.
    if to_stdout {
        output::remark(&text);
    } else if !quiet {
        results.tried(output::print(&text));
    }
    results.end(Ending::Good)
}

fn with_discards(args: &TraceIdiscard, interrupt: &Interrupt) -> Result<Ending> {
    let wanted = output::given(&[("OUT", Some(&args.out)), ("--json", args.json.json.as_ref())]);
    output::all_apart(&wanted)?;
    let inputs = std::slice::from_ref(&args.file);
    output::keep_inputs(inputs, &wanted)?;
    check_name(&args.out, Format::Parquet)?;
    let (json, out) = (args.json.open(inputs)?, Sink::open(Some(&args.out))?);
    let watch = Terminal::new(interrupt, &args.file.display().to_string());
    let source = TraceSource::File(args.file.clone());
    let scan = scan_watched(&source, &Reading::default(), &watch)?;
    let keeps = match args.content {
        Contents::Metadata => Keeps::Metadata,
        Contents::All => Keeps::All,
        Contents::None => Keeps::None,
    };
    let ghosts = args.ghosts.unwrap_or_default();
    let times = args.from.as_ns()..args.until.map_or(u64::MAX, |until| until.as_ns());
    let what = Adding { ghosts, device: args.device.as_deref(), keeps, times };
    let (out, added) = add_discards(&scan, &what, &watch, || Ok(out))?;
    out.commit()?;
    let counted: serde_json::Map<String, Value> =
        added.counted.iter().map(|c| (c.name.to_string(), c.value.into())).collect();
    let result = json!({
        "requests": added.records,
        "discards_added": added.discards,
        "discarded_sectors_added": added.sectors,
        "flushes_added": added.flushes,
        "writes_with_content": added.contents,
        "idiscard": counted,
        "said": added.said,
    });
    let name = args.out.display();
    let mut text = format!(
        "{name}: {} requests as they were, {} discards of {} added",
        added.records,
        added.discards,
        Bytes::new(added.sectors * 4096),
    );
    if added.flushes > 0 {
        text += &format!(", and {} flushes", added.flushes);
    }
    text += &format!("; {} writes have their content\n", added.contents);
    added.said.iter().for_each(|line| text += &format!("  {line}\n"));
    Results::of(json, &format!("{result:#}\n"), &text).end(Ending::Good)
}

fn record(args: &TraceRecord, interrupt: &Interrupt) -> Result<Ending> {
    let (drive, target) = (&args.drive, args.target.clone());
    if let Some(take) = args.take()? {
        let (to, target) = (take.to.clone(), target.clone());
        output::keep_inputs(std::slice::from_ref(drive), &[("OUT", &to)])?;
        ask(drive, &Ask::Record { target, take })?;
        if !wait(args, interrupt)? {
            let (drive, to) = (drive.display(), to.display());
            let what = "has ended; what it was asked until then is in";
            return output::done(format!("{drive}: who had it in use {what} {to}\n"));
        }
    }
    output::done(ask(drive, &Ask::StopRecording { target })?.text)
}

/// Waits until the recording is to end; false where whoever records has ended.
#[allow(clippy::disallowed_methods)] // for another process
fn wait(args: &TraceRecord, interrupt: &Interrupt) -> Result<bool> {
    let socket = path_of(&args.drive)?;
    let until = args.r#for.map(|time| Instant::now() + Duration::from_nanos(time.as_ns()));
    while !interrupt.happened() && until.is_none_or(|until| Instant::now() < until) {
        if !socket.exists() {
            return Ok(false);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}
