//! `flashlane serve`.

use crate::Ending;
use crate::args::{Record, Serve};
use crate::output;
use crate::watch::{Interrupt, Terminal};
use anyhow::Result;
use flashlane_lab::lnvm;
use flashlane_lab::metrics::short;
use flashlane_lab::serve::{
    Lateness, Served, ServedTarget, Serving, TargetPath, idiscard, serve as serve_targets,
};
use std::fmt::Display;
use std::rc::Rc;

pub(crate) fn serve(args: Serve) -> Result<Ending> {
    // Of several targets a recording says which, as places of them do.
    let recording = args.recording.record.as_deref().map(TargetPath::from);
    let (of, to) = recording.map(|at| (at.target, at.path)).unzip();
    let wanted = output::given(&[("--record", to.as_ref())]);
    output::keep_inputs(std::slice::from_ref(&args.drive), &wanted)?;
    let record = Record { record: to, ..args.recording }.take()?;
    let record = record.map(|take| (of.flatten(), take));
    let on = lnvm::choose_all(&args.drive, &args.target, args.how.get().1)?;
    let on: Vec<_> = on.into_iter().map(|(on, _)| on).collect();
    let Serve { nbd, fuse_file: fuse, vhost_user, metrics, read_only, .. } = args;
    let sector_bytes = args.sector_size;
    let filters = args.idiscard.map(idiscard);
    let timing = !args.null_latency;
    let serving = Serving {
        on,
        nbd,
        fuse,
        vhost_user,
        metrics,
        sector_bytes,
        read_only,
        filters: filters.into_iter().collect(),
        timing,
        cores: args.cores,
        pinned: args.pin,
        record,
    };
    let interrupt = Interrupt::listen()?;
    let monitor = Rc::new(Terminal::new(&interrupt, &serving.on[0].name));
    let say = |what: &dyn Display| output::remark(&format!("flashlane: {what}\n"));
    let served = serve_targets(&serving, monitor, output::ready, say)?;
    let Served { targets, left, lateness, misplaced } = served;
    let mut bad: Vec<String> = misplaced.into_iter().collect();
    for target in targets {
        say(&target);
        let ServedTarget { name, recorded, read_only, laws, .. } = target;
        match recorded {
            Some(Ok(recorded)) => say(&recorded),
            Some(Err(why)) => bad.push(format!("{name}: not recorded: {why}")),
            None => {}
        }
        bad.extend(read_only.map(|why| format!("{name}: became read-only: {why}")));
        bad.extend(laws.err().map(|why| format!("{name}: counters disagree: {why}")));
    }
    if let Some(text) = lateness.as_ref().and_then(late) {
        say(&text);
    }
    left.iter().chain(&bad).for_each(|what| say(what));
    Ok(if bad.is_empty() { Ending::Good } else { Ending::Bad })
}

/// How late timers were: the error of the device's times.
fn late(late: &Lateness) -> Option<String> {
    let at = |share| late.quantile(share).map(|ns| short(ns.as_ns()));
    let (median, p99) = (at(0.5)?, at(0.99)?);
    let (timers, most) = (late.timers(), short(late.most.as_ns()));
    Some(format!(
        "timers: {timers}, half of them late by {median} at most, 99% by {p99}, all by {most}"
    ))
}
