//! `flashlane reproduce`.

use crate::Ending;
use crate::args::Reproduce;
use crate::machine;
use crate::output::{self, Folder, Results, Sink};
use crate::watch::{Interrupt, Terminals};
use anyhow::{Result, anyhow, bail};
use flashlane_lab::experiment::Vary;
use flashlane_lab::reproduce::{self, FigureResult, Known, Size, Way};
use std::path::PathBuf;

/// The page, where nobody names another.
const PAGE: &str = "figures.html";

/// Writes one file of a folder.
fn put(folder: &Folder, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    Sink::open(Some(&folder.place(name)))?.make(|| bytes)
}

/// The plots and points of a figure.
fn keep(folder: &Folder, result: &FigureResult) -> Result<()> {
    for drawing in result.drawings() {
        put(folder, &format!("{}.svg", drawing.name), &drawing.svg)?;
        put(folder, &format!("{}.png", drawing.name), drawing.png()?)?;
    }
    let name = result.short_name();
    put(folder, &format!("{name}.csv"), result.to_csv())?;
    put(folder, &format!("{name}.parquet"), result.to_parquet())
}

pub(crate) fn reproduce(args: &Reproduce) -> Result<Ending> {
    let Some(name) = &args.name else {
        return output::done(reproduce::list());
    };
    let mut figures = reproduce::find(name)?;
    let several = figures.len() > 1;
    let usage = "write it `--only channels=8,32`";
    let only = args.only.iter().map(|text| Vary::parse(text, usage));
    let only = only.collect::<Result<Vec<_>, _>>().map_err(|why| anyhow!("--only: {why}"))?;
    match (only.is_empty(), several) {
        (true, _) => {}
        (false, true) => bail!("--only is of the axes of one figure: name it in place of `{name}`"),
        (false, false) => figures = figures.into_iter().map(|f| f.part(only.clone())).collect(),
    }
    let page = match (&args.html, &args.report) {
        (None, None) if several => Some(PathBuf::from(PAGE)),
        (html, _) => html.clone(),
    };
    let wanted = output::given(&[("--json", args.json.as_ref()), ("--html", page.as_ref())]);
    output::all_apart(&wanted)?;
    output::keep_inputs(&[PathBuf::from(name)], &wanted)?;
    let folder = args.report.as_deref().map(Folder::open).transpose()?;
    let (json, html) = (Sink::open(args.json.as_deref())?, Sink::open(page.as_deref())?);
    let interrupt = Interrupt::listen()?;
    let size = match (args.full, args.ci) {
        (true, _) => Size::Full,
        (_, true) => Size::Ci,
        _ => Size::Small,
    };
    let (machine, jobs) = (machine::this(), super::jobs(args.jobs));
    let terminals = Terminals::new(&interrupt);
    let (mut results, known) = (Vec::new(), Known::kept(super::kept(args.keep.as_deref())?));
    let mut written = Results::default();
    let mut ending = Ending::Good;
    for (i, figure) in figures.iter().enumerate() {
        let name = match figures.len() {
            1 => figure.name.to_string(),
            n => format!("{} (figure {} of {n})", figure.name, i + 1),
        };
        let watch = terminals.figure(&name);
        let result = figure.run(size, &Way { jobs, watch: &watch, known: &known }, &machine)?;
        if !json.is_stdout() && !html.is_stdout() {
            written.tried(output::print(&result.to_text()));
        }
        let cut = result.interrupted;
        // What a live figure gives is about the machine and its other work as well: it is said, no more.
        if !cut && !result.is_live() && !result.as_expected() {
            ending = Ending::Bad;
        }
        if let Some(folder) = &folder {
            written.tried(keep(folder, &result));
        }
        results.push(result);
        if written.lack_one() && !json.is_wanted() && !html.is_wanted() {
            break; // nobody would hear of the rest
        }
        if cut || interrupt.happened() {
            // A verdict that changed stays one when the rest was cut short.
            ending = if ending == Ending::Bad { ending } else { Ending::Interrupted };
            break;
        }
    }
    written.tried(json.put(&reproduce::to_json(&results, several)));
    let drawn = reproduce::to_html(&results);
    written.tried(html.put(&drawn));
    if let Some(folder) = &folder {
        written.tried(put(folder, PAGE, &drawn));
    }
    if args.html.is_none()
        && let Some(page) = &page
    {
        output::remark(&format!("flashlane: plots and verdicts are in {}\n", page.display()));
    }
    written.end(ending)
}
