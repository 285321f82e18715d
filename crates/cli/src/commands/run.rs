//! `flashlane run`.

use crate::Ending;
use crate::args::Run;
use crate::output::{self, Folder, Results, Sink, all_apart, keep_inputs};
use crate::watch::{Interrupt, Terminal};
use anyhow::{Context, Result};
use flashlane_lab::execute::{Observe, Outcome, execute_on};
use flashlane_lab::experiment::{Experiment, Target, Workload};
use flashlane_lab::report::{self, Report, SPANS_MAX};
use flashlane_lab::shelf::Shelf;
use flashlane_lab::trace::TraceSource;
use flashlane_lab::{input, lnvm, run::Monitor, stack};
use std::io::Write;
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
    let places = Places::open(&args, &inputs(&args, &experiment))?;
    let interrupt = Interrupt::listen()?;
    let observe = Observe {
        intervals: places.hdr.iter().any(Sink::is_wanted),
        spans: match places.perfetto.is_wanted() {
            true => SPANS_MAX / experiment.targets.len().max(1),
            false => 0,
        },
    };
    #[allow(clippy::disallowed_methods)] // how long it took is for people; no result depends on it
    let began = std::time::Instant::now();
    let watch =
        |target: &Target| -> Rc<dyn Monitor> { Rc::new(Terminal::new(&interrupt, &target.name)) };
    let outcome = execute_on(args.clock.into(), &experiment, observe, shelf.as_ref(), &watch)?;
    let mut report = Report::of(&outcome);
    report.wall_seconds = began.elapsed().as_secs_f64();
    let quiet = places.stdout;
    let mut results = places.write(&outcome, &report);
    if !quiet {
        let wall = format!("{:.1} s of real time\n", report.wall_seconds);
        results.tried(output::print(&(report.to_text() + &wall)));
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
    let traces = experiment.workloads.iter().filter_map(|w| match w {
        Workload::Trace(trace) => match &trace.source {
            TraceSource::File(path) => Some(path.clone()),
            TraceSource::Bundled { .. } | TraceSource::Memory { .. } => None,
        },
        Workload::Job(_) => None,
    });
    args.what.file.iter().chain(&args.drive).cloned().chain(traces).collect()
}

/// Where results go: known to be writable before anything runs. Of two, the first is the option's
/// own place and the second the folder's file.
struct Places {
    html: [Sink; 2],
    json: [Sink; 2],
    csv: [Sink; 2],
    parquet: [Sink; 2],
    fio: [Sink; 2],
    hdr: [Sink; 2],
    perfetto: Sink,
    timeline_csv: Sink,
    timeline_parquet: Sink,
    /// One of them is standard output.
    stdout: bool,
    /// Goes last: an empty one that was made for this run is removed.
    _folder: Option<Folder>,
}

impl Places {
    fn open(args: &Run, inputs: &[PathBuf]) -> Result<Places> {
        let folder = args.report.as_deref().map(Folder::open).transpose()?;
        // Options with their files' names in the folder; none, and no option, where there is none.
        let all: [(&str, Option<&PathBuf>, &str); 9] = [
            ("--json", args.json.as_ref(), "results.json"),
            ("--csv", args.csv.as_ref(), "results.csv"),
            ("--html", args.html.as_ref(), "report.html"),
            ("--parquet", args.parquet.as_ref(), "results.parquet"),
            ("--fio-json", args.fio_json.as_ref(), "fio.json"),
            ("--hdr", args.hdr.as_ref(), "latency.hlog"),
            ("--perfetto", args.perfetto.as_ref(), ""),
            ("", None, "timeline.csv"),
            ("", None, "timeline.parquet"),
        ];
        let inside = |name: &str| {
            folder.as_ref().filter(|_| !name.is_empty()).map(|folder| folder.place(name))
        };
        let places = all.map(|(option, own, name)| (option, own.cloned(), inside(name)));
        let mut wanted: Vec<(&str, &Path)> = Vec::new();
        for (option, own, inside) in &places {
            wanted.extend(inside.as_deref().map(|path| ("--report", path)));
            wanted.extend(own.as_deref().map(|path| (*option, path)));
        }
        all_apart(&wanted)?;
        keep_inputs(inputs, &wanted)?;
        let open = |(_, own, inside): &(&str, Option<PathBuf>, Option<PathBuf>)| {
            anyhow::Ok([Sink::open(own.as_deref())?, Sink::open(inside.as_deref())?])
        };
        let [json, csv, html, parquet, fio, hdr, perfetto, timeline, timeline_parquet] = &places;
        Ok(Places {
            json: open(json)?,
            csv: open(csv)?,
            html: open(html)?,
            parquet: open(parquet)?,
            fio: open(fio)?,
            hdr: open(hdr)?,
            perfetto: Sink::open(perfetto.1.as_deref())?,
            timeline_csv: Sink::open(timeline.2.as_deref())?,
            timeline_parquet: Sink::open(timeline_parquet.2.as_deref())?,
            stdout: wanted.iter().any(|(_, path)| *path == Path::new("-")),
            _folder: folder,
        })
    }

    fn write(self, outcome: &Outcome, report: &Report) -> Results {
        let mut results = Results::default();
        each(&mut results, self.json, || report.to_json());
        each(&mut results, self.csv, || report.to_csv());
        each(&mut results, self.html, || report.to_html());
        each(&mut results, self.parquet, || report.to_parquet());
        each(&mut results, self.fio, || report::fio_json(outcome));
        each(&mut results, self.hdr, || report::hdr_log(outcome));
        results.tried(self.timeline_csv.make(|| report.timeline_csv()));
        results.tried(self.timeline_parquet.make(|| report.timeline_parquet()));
        if self.perfetto.is_wanted() {
            let trace = report::perfetto(outcome);
            for cut in &trace.cuts {
                let _ = writeln!(std::io::stderr().lock(), "flashlane: --perfetto: {cut}");
            }
            results.tried(self.perfetto.write(&trace.json));
        }
        results
    }
}

fn each<T: AsRef<[u8]>>(results: &mut Results, sinks: [Sink; 2], result: impl Fn() -> T) {
    for sink in sinks {
        results.tried(sink.make(&result));
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
