//! `flashlane drive create`, `info`, `smart`, `check`, `snapshot` and `clone`.

use crate::Ending;
use crate::args::{Drive, DriveCopy, DriveCreate, DriveInfo};
use crate::output::{self, Sink};
use anyhow::Result;
use flashlane_lab::drive::{self, CopyKind, Look};
use std::path::{Path, PathBuf};

pub(crate) fn drive(command: &Drive) -> Result<Ending> {
    match command {
        Drive::Create(args) => create(args),
        Drive::Info(args) => info(args),
        Drive::Smart(args) => {
            show(&args.file, args.out.json.as_ref(), Look::smart_text, Look::smart_json)
        }
        Drive::Check(args) => {
            let checked = Look::at(&args.file)?.check(&args.file);
            output::print(&checked.to_text())?;
            Ok(if checked.is_good() { Ending::Good } else { Ending::Bad })
        }
        Drive::Snapshot(args) => copy(args, CopyKind::Snapshot),
        Drive::Clone(args) => copy(args, CopyKind::Clone),
    }
}

fn create(args: &DriveCreate) -> Result<Ending> {
    let spec = drive::device(&args.preset, &args.set)?;
    output::print(&drive::create(&args.file, &spec, args.seed, args.force)?)?;
    Ok(Ending::Good)
}

fn info(args: &DriveInfo) -> Result<Ending> {
    match &args.file {
        Some(file) => show(file, args.out.json.as_ref(), Look::to_text, Look::to_json),
        None => {
            output::print(&drive::presets())?;
            Ok(Ending::Good)
        }
    }
}

fn show(
    file: &Path,
    json: Option<&PathBuf>,
    text: impl Fn(&Look) -> String,
    of_json: impl Fn(&Look) -> String,
) -> Result<Ending> {
    output::keep_inputs(&[file.into()], &output::given(&[("--json", json)]))?;
    let json = Sink::open(json.map(PathBuf::as_path))?;
    let look = Look::at(file)?;
    let quiet = json.is_stdout();
    json.make(|| of_json(&look))?;
    if !quiet {
        output::print(&text(&look))?;
    }
    Ok(Ending::Good)
}

fn copy(args: &DriveCopy, kind: CopyKind) -> Result<Ending> {
    drive::copy_image(&args.from, &args.to, kind)?;
    output::print(&Look::at(&args.to)?.to_text())?;
    Ok(Ending::Good)
}
