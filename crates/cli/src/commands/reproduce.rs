//! `flashlane reproduce`.

use crate::Ending;
use crate::args::Reproduce;
use crate::machine;
use crate::output::{self, Results, Sink};
use crate::watch::{Interrupt, Terminals};
use anyhow::Result;
use flashlane_lab::reproduce::{self, Size, Way};
use flashlane_lab::run::Monitor;
use std::rc::Rc;

pub(crate) fn reproduce(args: &Reproduce) -> Result<Ending> {
    let Some(name) = &args.name else {
        return output::done(reproduce::list());
    };
    let figures = reproduce::find(name)?;
    let json = Sink::open(args.json.as_deref())?;
    let interrupt = Interrupt::listen()?;
    let size = if args.full { Size::Full } else { Size::Small };
    let (machine, jobs) = (machine::this(), super::jobs(args.jobs));
    let terminals = Terminals::new(&interrupt);
    let mut results = Vec::new();
    let mut written = Results::default();
    let mut ending = Ending::Good;
    for figure in &figures {
        let watch = |part: &str| -> Rc<dyn Monitor> {
            Rc::new(terminals.line(&format!("{} {part}", figure.name)))
        };
        let result = figure.run(&Way { size, jobs, watch: &watch }, &machine)?;
        if !json.is_stdout() {
            written.tried(output::print(&result.to_text()));
        }
        let cut = result.interrupted;
        // What a live figure gives is about the machine and its other work as well: it is said, no more.
        if !cut && !figure.is_live() && !result.as_expected() {
            ending = Ending::Bad;
        }
        results.push(result);
        if written.lack_one() && !json.is_wanted() {
            break; // nobody would hear of the rest
        }
        if cut || interrupt.happened() {
            // A verdict that changed stays one when the rest was cut short.
            ending = if ending == Ending::Bad { ending } else { Ending::Interrupted };
            break;
        }
    }
    let all = name == "all";
    written.tried(json.put(&reproduce::to_json(&results, all)));
    written.end(ending)
}
