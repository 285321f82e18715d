//! `flashlane run`.

use crate::Ending;
use crate::args::Run;
use crate::output::{self, Folder, Results, Sink, all_apart, keep_inputs};
use crate::watch::{Interrupt, Terminal};
use anyhow::{Context, Result};
use flashlane_lab::execute::{How, Observe, Outcome, Watched, execute};
use flashlane_lab::experiment::{Experiment, Target, Workload};
use flashlane_lab::report::{self, Report, SPANS_MAX};
use flashlane_lab::shelf::Shelf;
use flashlane_lab::trace::TraceSource;
use flashlane_lab::{input, lnvm, run::Monitor, stack};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::rc::Rc;

pub(crate) fn run(args: Run) -> Result<Ending> {
    let experiment = load(&args)?;
    for remark in &experiment.remarks {
        output::remark(&format!("flashlane: {remark}\n"));
    }
    if !experiment.vary.is_empty() {
        anyhow::bail!("this experiment varies parameters: `flashlane sweep` runs its points");
    }
    if args.prepared.is_some() {
        Shelf::check(&experiment).map_err(anyhow::Error::msg)?;
    }
    let shelf = args.prepared.as_deref().map(shelf).transpose()?;
    let wanted = output::given(&[("--record", args.recording.record.as_ref())]);
    output::keep_inputs(&inputs(&args, &experiment), &wanted)?;
    let record = args.recording.take()?;
    let places = Places::open(&args, &inputs(&args, &experiment))?;
    let interrupt = Interrupt::listen()?;
    let observe = Observe {
        intervals: args.hdr.is_some() || args.report.is_some(),
        spans: match args.perfetto.is_some() {
            true => SPANS_MAX / experiment.targets.len().max(1),
            false => 0,
        },
    };
    #[allow(clippy::disallowed_methods)] // how long it took is for people; no result depends on it
    let began = std::time::Instant::now();
    let watch =
        |target: &Target| -> Rc<dyn Monitor> { Rc::new(Terminal::new(&interrupt, &target.name)) };
    let (clock, shelf) = (args.clock.into(), shelf.as_ref());
    let result_on_stdout = places.stdout;
    let ready = move |address: &dyn Display| match result_on_stdout {
        true => output::remark(&format!("flashlane: ready {address}\n")),
        false => output::ready(address),
    };
    let metrics = args.metrics.clone().map(|at| Watched { at, ready: Rc::new(ready) });
    let how = How { clock, observe, shelf, record: record.as_ref(), metrics: metrics.as_ref() };
    let outcome = execute(&experiment, how, &watch)?;
    let mut report = Report::of(&outcome);
    report.wall_seconds = began.elapsed().as_secs_f64();
    let quiet = places.stdout;
    let mut results = places.write(&outcome, &report);
    if !quiet {
        let wall = format!("{:.1} s of real time\n", report.wall_seconds);
        results.tried(output::print(&(report.to_text() + &wall)));
    }
    for recorded in outcome.runs.iter().filter_map(|run| run.recorded.as_ref()) {
        output::remark(&format!("flashlane: {recorded}\n"));
    }
    for run in report.runs.iter().filter(|run| !run.bad.is_empty()) {
        output::remark(&format!("flashlane: {}: bad result: {}\n", run.name, run.bad.join("; ")));
    }
    if report.runs.iter().any(|run| run.failed_requests > 0 || run.read_only.is_some())
        && !experiment.run.allow_errors
    {
        output::remark(
            "flashlane: where such errors are what is tried, say `allow_errors = true` under [run] \
             (`--set run.allow_errors=true`)\n",
        );
    }
    results.end(ending(&outcome))
}

/// Where devices are prepared.
pub(super) fn shelf(folder: &Path) -> Result<Shelf> {
    let made = Shelf::in_folder(folder);
    made.with_context(|| {
        format!("--prepared {}: prepared devices can't be kept there", folder.display())
    })
}

/// The experiment; with `--drive`, on that.
fn load(args: &Run) -> Result<Experiment> {
    let file = args.what.file.as_deref();
    let (flag, how) = args.how.get();
    let Some(drive) = &args.drive else {
        if let Some(flag) = flag {
            anyhow::bail!("{flag} is about a target of a drive: name the drive with --drive");
        }
        return Ok(input::load(file, &args.what.changes())?.1);
    };
    let (on, kind) = lnvm::choose(drive, args.what.targets(), how)?;
    let (_, mut experiment) = input::load(file, &args.what.changes_on(&kind.to_string()))?;
    stack::put_on_drive(&mut experiment, &on)?;
    Ok(experiment)
}

fn inputs(args: &Run, experiment: &Experiment) -> Vec<PathBuf> {
    let path = |source: &TraceSource| match source {
        TraceSource::File(path) => Some(path.clone()),
        TraceSource::Bundled { .. } | TraceSource::Memory { .. } => None,
    };
    let workloads = experiment.warm_up.iter().chain(&experiment.workloads);
    let traces = workloads.flat_map(|w| match w {
        Workload::Trace(trace) => [path(&trace.source), trace.truth_file.as_deref().and_then(path)],
        Workload::Job(_) | Workload::Files(_) => [None, None],
    });
    let traces = traces.flatten();
    args.what.file.iter().chain(&args.drive).cloned().chain(traces).collect()
}

/// How a result is made.
type Make = fn(&Outcome, &Report) -> Vec<u8>;

/// An option, the place that it has, its file's name in a folder of `--report`, what goes there. There is no
/// option or no name where it says none.
type Row = (&'static str, fn(&Run) -> Option<&PathBuf>, &'static str, Make);

const ROWS: [Row; 11] = [
    ("--json", |args| args.json.as_ref(), "results.json", |_, report| report.to_json().into()),
    ("--csv", |args| args.csv.as_ref(), "results.csv", |_, report| report.to_csv().into()),
    ("--html", |args| args.html.as_ref(), "report.html", |_, report| report.to_html().into()),
    ("--parquet", |args| args.parquet.as_ref(), "results.parquet", |_, report| report.to_parquet()),
    ("--fio-json", |args| args.fio_json.as_ref(), "fio.json", |o, _| report::fio_json(o).into()),
    ("--hdr", |args| args.hdr.as_ref(), "latency.hlog", |o, _| report::hdr_log(o)),
    ("", |_| None, "timeline.csv", |_, report| report.timeline_csv().into()),
    ("", |_| None, "timeline.parquet", |_, report| report.timeline_parquet()),
    ("", |_| None, "channels.csv", |_, report| report.channels_csv().into()),
    ("", |_| None, "channels.parquet", |_, report| report.channels_parquet()),
    (
        "--perfetto",
        |args| args.perfetto.as_ref(),
        "",
        |outcome, _| {
            let trace = report::perfetto(outcome);
            for cut in &trace.cuts {
                output::remark(&format!("flashlane: --perfetto: {cut}\n"));
            }
            trace.json.into()
        },
    ),
];

/// Where results go: known to be writable before anything runs.
struct Places {
    all: Vec<(Sink, Make)>,
    /// One of them is standard output.
    stdout: bool,
    /// Goes last: an empty one that was made for this run is removed.
    _folder: Option<Folder>,
}

impl Places {
    fn open(args: &Run, inputs: &[PathBuf]) -> Result<Places> {
        let folder = args.report.as_deref().map(Folder::open).transpose()?;
        let mut wanted: Vec<(&str, PathBuf, Make)> = Vec::new();
        for (option, own, name, make) in ROWS {
            let inside = folder.iter().filter(|_| !name.is_empty()).map(|f| f.place(name));
            wanted.extend(inside.map(|path| ("--report", path, make)));
            wanted.extend(own(args).map(|path| (option, path.clone(), make)));
        }
        let named: Vec<_> = wanted.iter().map(|(option, path, _)| (*option, &**path)).collect();
        all_apart(&named)?;
        keep_inputs(inputs, &named)?;
        let stdout = named.iter().any(|(_, path)| *path == Path::new("-"));
        let open = |(_, path, make): &(_, PathBuf, Make)| Ok((Sink::open(Some(path))?, *make));
        let all = wanted.iter().map(open).collect::<Result<_>>()?;
        Ok(Places { all, stdout, _folder: folder })
    }

    fn write(self, outcome: &Outcome, report: &Report) -> Results {
        let mut results = Results::default();
        for (sink, make) in self.all {
            results.tried(sink.make(|| make(outcome, report)));
        }
        results
    }
}

fn ending(outcome: &Outcome) -> Ending {
    // A bad result stays one when it was cut short.
    if outcome.is_bad() {
        Ending::Bad
    } else if outcome.interrupted {
        Ending::Interrupted
    } else {
        Ending::Good
    }
}
