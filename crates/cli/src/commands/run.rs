//! `flashlane run`.

use crate::Ending;
use crate::args::Run;
use crate::output::{self, Sink};
use crate::watch::{Interrupt, Terminal};
use anyhow::Result;
use flashlane_lab::execute::{Outcome, execute};
use flashlane_lab::report::Report;
use flashlane_lab::{input, run::Monitor};
use std::rc::Rc;

pub(crate) fn run(args: Run) -> Result<Ending> {
    let (_, experiment) = input::load(args.what.file.as_deref(), &args.what.changes())?;
    if !experiment.vary.is_empty() {
        anyhow::bail!("this experiment varies parameters: `flashlane sweep` runs its points");
    }
    let json = Sink::open(args.json.as_deref())?;
    let csv = Sink::open(args.csv.as_deref())?;
    output::only_one_stdout(&[&json, &csv])?;
    let interrupt = Interrupt::listen()?;
    #[allow(clippy::disallowed_methods)] // how long it took is for people; no result depends on it
    let began = std::time::Instant::now();
    let outcome = execute(&experiment, &|target| -> Rc<dyn Monitor> {
        Rc::new(Terminal::new(&interrupt, &target.name))
    })?;
    let mut report = Report::of(&outcome);
    report.wall_seconds = began.elapsed().as_secs_f64();
    let quiet = json.is_stdout() || csv.is_stdout();
    json.write(&report.to_json())?;
    csv.write(&report.to_csv())?;
    if !quiet {
        let wall = format!("{:.1} s of real time\n", report.wall_seconds);
        output::print(&(report.to_text() + &wall))?;
    }
    Ok(ending(&outcome))
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
