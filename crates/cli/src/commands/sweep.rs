//! `flashlane sweep`.

use crate::Ending;
use crate::args::Sweep;
use crate::output::{self, Results, Sink};
use crate::watch::{Interrupt, Points};
use anyhow::Result;
use flashlane_lab::sweep::{self, Plan, SweepResult, Watcher};
use std::sync::Arc;

pub(crate) fn sweep(args: &Sweep) -> Result<Ending> {
    let plan = Plan::new(args.what.file.as_deref(), args.what.changes(), &args.vary)?;
    let wanted = output::given(&[("--json", args.json.as_ref()), ("--csv", args.csv.as_ref())]);
    output::all_apart(&wanted)?;
    output::keep_inputs(args.what.file.as_slice(), &wanted)?;
    let json = Sink::open(args.json.as_deref())?;
    let csv = Sink::open(args.csv.as_deref())?;
    let kept = super::kept(args.keep.as_deref())?;
    let interrupt = Interrupt::listen()?;
    let watcher: Arc<dyn Watcher> = Arc::new(Points::new(&interrupt, plan.points()));
    let shelf = args.prepared.as_deref().map(super::run::shelf).transpose()?;
    let result = sweep::run(&plan, super::jobs(args.jobs), &kept, shelf.as_ref(), &watcher);
    drop(watcher);
    let (quiet, mut results) = (json.is_stdout() || csv.is_stdout(), Results::default());
    results.tried(json.put(&result.to_json()));
    results.tried(csv.put(&result.to_csv()));
    if !quiet {
        results.tried(output::print(&result.to_text()));
    }
    results.end(ending(&result))
}

fn ending(result: &SweepResult) -> Ending {
    match result {
        // As with a run: a bad result stays one when the rest was cut short.
        r if r.bad > 0 => Ending::Bad,
        // Points that failed are tried again by who goes on.
        r if r.missing > 0 => Ending::Interrupted,
        r if r.failed > 0 => Ending::Bad,
        _ => Ending::Good,
    }
}
