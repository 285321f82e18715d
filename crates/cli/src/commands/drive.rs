//! `flashlane drive create`, `info`, `smart`, `check`, `snapshot`, `clone`, `inject` and `upgrade`.

use crate::Ending;
use crate::args::{Drive, DriveCopy, DriveCreate, DriveInfo, DriveInject};
use crate::output::{self, give};
use anyhow::{Context, Result, bail};
use flashlane_lab::bounded;
use flashlane_lab::control::ASK_MAX;
use flashlane_lab::drive::faults::{self, FaultWords};
use flashlane_lab::drive::{self, CopyKind};
use std::path::Path;
use std::slice::from_ref;

pub(crate) fn drive(command: &Drive) -> Result<Ending> {
    match command {
        Drive::Create(args) => create(args),
        Drive::Info(args) => info(args),
        Drive::Smart(args) => {
            give(from_ref(&args.file), args.out.json.as_ref(), || Ok(drive::smart(&args.file)?))
        }
        Drive::Check(args) => {
            let checked = drive::check(&args.file)?;
            output::print(&checked.to_text())?;
            Ok(if checked.is_good() { Ending::Good } else { Ending::Bad })
        }
        Drive::Snapshot(args) => copy(args, CopyKind::Snapshot),
        Drive::Clone(args) => copy(args, CopyKind::Clone),
        Drive::Inject(args) => inject(args),
        Drive::Upgrade(args) => {
            output::print(&drive::upgrade(&args.file)?)?;
            Ok(Ending::Good)
        }
    }
}

fn create(args: &DriveCreate) -> Result<Ending> {
    let spec = drive::device(&args.preset, &args.set)?;
    output::print(&drive::create(&args.file, &spec, args.seed, args.force)?)?;
    Ok(Ending::Good)
}

fn info(args: &DriveInfo) -> Result<Ending> {
    match &args.file {
        Some(file) => give(from_ref(file), args.out.json.as_ref(), || Ok(drive::info(file)?)),
        None => {
            output::print(&drive::presets())?;
            Ok(Ending::Good)
        }
    }
}

fn copy(args: &DriveCopy, kind: CopyKind) -> Result<Ending> {
    output::print(&drive::copy(&args.from, &args.to, kind)?)?;
    Ok(Ending::Good)
}

fn inject(args: &DriveInject) -> Result<Ending> {
    let mut inputs = vec![args.file.clone()];
    inputs.extend(args.plan.clone());
    give(&inputs, args.json.as_ref(), || {
        if args.list {
            return Ok(faults::list_faults(&args.file)?);
        }
        if args.clear {
            return Ok(faults::clear_faults(&args.file)?);
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
            return Ok(faults::power_cut(&args.file)?);
        }
        if let Some(plan) = &args.plan {
            let text = read_plan(plan)?;
            let why = || format!("cannot inject the plan {}", plan.display());
            return faults::inject(&args.file, &text).with_context(why);
        }
        let words = FaultWords {
            kind: args.kind.clone().unwrap_or_default(),
            at: args.at.clone(),
            count: args.count,
            after: args.after.clone(),
            probability: args.probability.clone(),
            times: args.times,
        };
        Ok(faults::inject(&args.file, &words.checked()?)?)
    })
}

/// A plan that is no longer than a plan can be.
fn read_plan(path: &Path) -> Result<String> {
    let text = bounded::text(path, ASK_MAX as u64 / 2);
    text.with_context(|| format!("cannot read the fault plan {}", path.display()))
}
