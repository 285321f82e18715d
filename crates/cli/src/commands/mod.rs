//! One file per command.

mod bench;
mod check;
mod compare;
mod drive;
mod filebench;
mod files;
mod idiscard;
mod lnvm;
mod reproduce;
mod run;
mod serve;
mod sweep;
pub(crate) mod top;
mod torture;
mod trace;

use crate::Ending;
use crate::args::{Args, Command};
use anyhow::{Context, Result};
use clap::CommandFactory;
use flashlane_lab::execute::ExecuteError;
use flashlane_lab::kept::Kept;
use flashlane_lab::lnvm::LnvmError;
use flashlane_lab::reproduce::ReproduceError;
use flashlane_lab::serve::ServeError;
use flashlane_lab::verbs::VerbError;
use std::path::Path;

/// Runs what the command line says; without a command, `run`.
pub(crate) fn run(args: Args) -> Result<Ending> {
    match args.command {
        None => run::run(crate::args::Run::default()),
        Some(Command::Run(run)) => run::run(*run),
        Some(Command::Sweep(sweep)) => sweep::sweep(&sweep),
        Some(Command::Compare(compare)) => compare::compare(&compare),
        Some(Command::Check(check)) => check::check(&check),
        Some(Command::Reproduce(r)) => reproduce::reproduce(&r),
        Some(Command::Torture(torture)) => torture::torture(&torture),
        Some(Command::Bench(bench)) => bench::bench(&bench),
        Some(Command::Filebench(f)) => filebench::filebench(&f),
        Some(Command::Idiscard(i)) => idiscard::idiscard(&i),
        Some(Command::Trace(command)) => trace::trace(&command),
        Some(Command::Drive(command)) => drive::drive(&command),
        Some(Command::Serve(serve)) => serve::serve(serve),
        Some(Command::Mkfs(mkfs)) => files::mkfs(mkfs),
        Some(Command::Mount(mount)) => files::mount(mount),
        Some(Command::Fsck(fsck)) => files::fsck(&fsck),
        Some(Command::Dump(dump)) => files::dump(&dump),
        Some(Command::Top(top)) => top::top(&top),
        Some(Command::Lnvm(command)) => lnvm::lnvm(&command),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "flashlane", &mut script);
            crate::output::done(script)
        }
    }
}

/// Where `--keep` keeps what runs come to.
fn kept(folder: Option<&Path>) -> Result<Kept> {
    let Some(folder) = folder else { return Ok(Kept::nothing()) };
    Kept::in_folder(folder).with_context(|| {
        format!("cannot keep points in {}: is it a folder of yours?", folder.display())
    })
}

/// Points that run at a time: as many as asked for, else as there are cores.
fn jobs(wanted: Option<u16>) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
    wanted.map_or_else(cores, usize::from)
}

/// Whose fault an error is: a simulation that stalls or breaks rules is a bad result, anything else
/// could not be done as it was asked for.
pub(crate) fn blame(error: &anyhow::Error) -> Ending {
    let stalled = matches!(error.downcast_ref(), Some(ExecuteError::Stalled { .. }));
    let figure = match error.downcast_ref() {
        Some(ReproduceError::Stalled(_) | ReproduceError::Bad { .. }) => true,
        Some(ReproduceError::Execute(e)) => matches!(e, ExecuteError::Stalled { .. }),
        _ => false,
    };
    let target = matches!(error.downcast_ref(), Some(LnvmError::Stalled(_)))
        || matches!(error.downcast_ref(), Some(VerbError::Lnvm(LnvmError::Stalled(_))));
    if matches!(error.downcast_ref(), Some(ExecuteError::PowerCut { .. }))
        || matches!(error.downcast_ref(), Some(ServeError::PowerCut { .. }))
    {
        return Ending::Interrupted;
    }
    if stalled || figure || target { Ending::Bad } else { Ending::Unusable }
}
