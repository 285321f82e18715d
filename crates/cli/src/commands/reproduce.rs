//! `flashlane reproduce`.

use crate::Ending;
use crate::args::Reproduce;
use crate::output::{self, Sink};
use crate::watch::{Interrupt, Terminal};
use anyhow::Result;
use flashlane_lab::reproduce::{self, Figure, Size};
use flashlane_lab::run::Monitor;
use std::rc::Rc;

pub(crate) fn reproduce(args: &Reproduce) -> Result<Ending> {
    let Some(name) = &args.name else {
        output::print(&reproduce::list())?;
        return Ok(Ending::Good);
    };
    let figures = reproduce::find(name)?;
    let json = Sink::open(args.json.as_deref())?;
    let interrupt = Interrupt::listen()?;
    let size = if args.full { Size::Full } else { Size::Small };
    let mut results = Vec::new();
    let mut ending = Ending::Good;
    for figure in &figures {
        let Some(result) = one(figure, size, &interrupt)? else {
            ending = Ending::Interrupted;
            break;
        };
        if !json.is_stdout() {
            output::print(&result.to_text())?;
        }
        if !result.as_expected() {
            ending = Ending::Bad;
        }
        results.push(result);
    }
    let all = name == "all";
    json.write(&reproduce::to_json(&results, all))?;
    Ok(ending)
}

fn one(
    figure: &Figure,
    size: Size,
    interrupt: &Interrupt,
) -> Result<Option<reproduce::FigureResult>> {
    let watch = |part: &str| -> Rc<dyn Monitor> {
        Rc::new(Terminal::new(interrupt, &format!("{} {part}", figure.name)))
    };
    let result = figure.run(size, &watch)?;
    Ok((!interrupt.happened()).then_some(result))
}
