//! `flashlane drive create`, `info`, `smart`, `check`, `snapshot`, `clone`, `inject` and `upgrade`.

use crate::Ending;
use crate::args::{Drive, DriveCopy, DriveCreate, DriveInfo, DriveInject};
use crate::output;
use anyhow::{Context, Result, bail};
use flashlane_lab::bounded;
use flashlane_lab::control::{ASK_MAX, Ask};
use flashlane_lab::drive::faults::{self, FaultWords};
use flashlane_lab::drive::{self, CopyKind};
use flashlane_lab::verbs::ask;
use std::path::Path;

pub(crate) fn drive(command: &Drive) -> Result<Ending> {
    match command {
        Drive::Create(args) => create(args),
        Drive::Info(args) => info(args),
        Drive::Smart(args) => args.out.ask(&args.on.file, &Ask::Smart),
        Drive::Check(args) => {
            let checked = drive::check(&args.file)?;
            output::print(&checked.to_text())?;
            Ok(if checked.is_good() { Ending::Good } else { Ending::Bad })
        }
        Drive::Snapshot(DriveCopy { from, to }) => {
            output::done(drive::copy(from, to, CopyKind::Snapshot)?)
        }
        Drive::Clone(DriveCopy { from, to }) => {
            output::done(drive::copy(from, to, CopyKind::Clone)?)
        }
        Drive::Inject(args) => inject(args),
        Drive::Upgrade(args) => output::done(drive::upgrade(&args.file)?),
    }
}

fn create(args: &DriveCreate) -> Result<Ending> {
    let spec = drive::device(&args.preset, &args.set)?;
    output::done(drive::create(&args.on.file, &spec, args.seed, args.force)?)
}

fn info(args: &DriveInfo) -> Result<Ending> {
    match &args.file {
        Some(file) => args.out.ask(file, &Ask::Info),
        None => output::done(drive::presets()),
    }
}

fn inject(args: &DriveInject) -> Result<Ending> {
    let mut inputs = vec![args.on.drive.clone()];
    inputs.extend(args.plan.clone());
    args.out.give(&inputs, || {
        let drive = &args.on.drive;
        if args.list {
            return Ok(ask(drive, &Ask::Faults)?);
        }
        if args.clear {
            return Ok(ask(drive, &Ask::ClearFaults)?);
        }
        if args.kind.as_deref() == Some(faults::POWER_CUT) {
            let given = [
                ("--at", args.at.is_some()),
                ("--count", args.count.is_some()),
                ("--after", args.after.is_some()),
                ("--probability", args.probability.is_some()),
                ("--times", args.times.is_some()),
            ];
            if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
                bail!("{option} is not for power_cut: the power goes now, and for the whole drive");
            }
            return Ok(ask(drive, &Ask::PowerCut)?);
        }
        if let Some(plan) = &args.plan {
            let text = read_plan(plan)?;
            let why = || format!("cannot inject the plan {}", plan.display());
            return ask(drive, &Ask::Inject { plan: text }).with_context(why);
        }
        let words = FaultWords {
            kind: args.kind.clone().unwrap_or_default(),
            at: args.at.clone(),
            count: args.count,
            after: args.after.clone(),
            probability: args.probability.clone(),
            times: args.times,
        };
        Ok(ask(drive, &Ask::Inject { plan: words.checked()? })?)
    })
}

/// A plan that is no longer than a plan can be.
fn read_plan(path: &Path) -> Result<String> {
    let text = bounded::text(path, ASK_MAX as u64 / 2);
    text.with_context(|| format!("cannot read the fault plan {}", path.display()))
}
