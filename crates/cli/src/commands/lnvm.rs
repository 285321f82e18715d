//! `flashlane lnvm`: nvme-cli's lnvm verbs on drive images.

use crate::Ending;
use crate::args::{
    AsJson, Lnvm, LnvmCreate, LnvmInfo, LnvmKnobs, LnvmRemove, OfDrive, OneDrive, OneLun,
};
use crate::output;
use anyhow::{Result, bail};
use flashlane_lab::control::Ask;
use flashlane_lab::lnvm::{
    self, Create, Erased, Factory, LimiterKind, Options, Scrub, WearLeveling, show,
};
use flashlane_lab::verbs;
use std::path::{Path, PathBuf};

pub(crate) fn lnvm(command: &Lnvm) -> Result<Ending> {
    match command {
        Lnvm::List(args) => {
            let paths: Vec<&Path> = args.drives.iter().map(PathBuf::as_path).collect();
            args.out.give(&args.drives, || Ok(show::list(&paths)?))
        }
        Lnvm::Create(args) => create(args),
        Lnvm::Remove(LnvmRemove { on: OfDrive { drive }, target_name, out }) => {
            out.ask(drive, &Ask::Remove { target: target_name.clone() })
        }
        Lnvm::Info(LnvmInfo { on: OfDrive { drive }, target_name, out }) => {
            out.ask(drive, &Ask::LnvmInfo { target: target_name.clone() })
        }
        Lnvm::IdNs(args) => {
            let (namespace, human) = (args.ns.namespace_id, args.human_readable);
            page(&args.on, &args.out, args.raw_binary, &Ask::IdNs { namespace, human })
        }
        Lnvm::ChunkLog(args) => {
            page(&args.on, &args.out, args.output_format == "binary", &Ask::ChunkLog)
        }
        Lnvm::DiagBbtbl(args) => {
            let OneLun { channel_id: channel, lun_id: lun } = args.lun;
            let ask = Ask::BadBlocks { namespace: args.ns.namespace_id, channel, lun };
            page(&args.on, &args.out, args.raw_binary, &ask)
        }
        Lnvm::DiagSetBbtbl(args) => {
            if args.ns.namespace_id != 1 {
                bail!("there is no namespace {}: a drive has one, number 1", args.ns.namespace_id);
            }
            let OneLun { channel_id: channel, lun_id: lun } = args.lun;
            let (plane, block, mark) = (args.plane_id, args.block_id, args.value);
            let ask = Ask::SetBadBlock { channel, lun, plane, block, mark };
            output::done(verbs::ask(&args.on.drive, &ask)?.text)
        }
        Lnvm::Factory(args) => {
            let ask = Factory {
                only_marked: args.erase_only_marked,
                clear_host: args.clear_host_side_blks,
                clear_grown: args.clear_bb_blks,
            };
            let Erased { chunks, failed, unmarked } = lnvm::factory(args.drive.get()?, ask)?;
            output::print(&format!(
                "{chunks} chunks erased, {failed} could not be, marks taken off {unmarked}\n"
            ))?;
            Ok(if failed == 0 { Ending::Good } else { Ending::Bad })
        }
        Lnvm::Init(args) => output::done(lnvm::init(args.drive.get()?, &args.mediamgr_name)?.text),
        Lnvm::Knobs(LnvmKnobs { on: OfDrive { drive }, target_name, set, out }) => {
            out.ask(drive, &Ask::Knobs { target: target_name.clone(), set: set.clone() })
        }
    }
}

impl OneDrive {
    /// The drive, named in either way.
    fn get(&self) -> Result<&Path> {
        match (&self.drive, &self.device_name) {
            (Some(one), None) | (None, Some(one)) => Ok(one),
            _ => bail!("name the drive once: `flashlane lnvm ... my.img`, or with -d"),
        }
    }
}

fn create(args: &LnvmCreate) -> Result<Ending> {
    let drive = args.drive.get()?;
    let given = |n: i64| u32::try_from(n).ok();
    if args.wear_spread.is_some() && args.wear_leveling != Some(WearLeveling::Static) {
        bail!("--wear-spread is for --wear-leveling static");
    }
    if args.scrub_interval.is_some() && matches!(args.scrub, None | Some(Scrub::Off)) {
        bail!("--scrub-interval needs --scrub reads or --scrub patrol");
    }
    let (flag, how) = args.how.get();
    if let Some(flag) = flag.filter(|_| args.factory) {
        bail!("{flag} is about what is on the LUNs, and -f gives that up: give one of them");
    }
    let is_qblk = args.target_type.name() == "qblk";
    if args.cores.is_some() && !is_qblk {
        bail!("--cores is for targets of type qblk: others have one ring");
    }
    let here = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let ask = Create {
        name: args.target_name.clone(),
        kind: args.target_type,
        begin: given(args.lun_begin),
        end: given(args.lun_end),
        over_provisioning: given(args.over_prov),
        factory: args.factory,
        how,
        options: Options::default()
            .number("active_pus", args.active_pus)
            .number("cores", args.cores.or_else(|| is_qblk.then(here)))
            .word("limiter", &LimiterKind::ALL, args.limiter)
            .word("wear_leveling", &WearLeveling::NAMES, args.wear_leveling)
            .number("wear_spread", args.wear_spread)
            .word("scrub", &Scrub::NAMES, args.scrub)
            .time("scrub_interval", args.scrub_interval)
            .switch("flush_records", args.flush_records),
    };
    args.out.give(&[drive.into()], || Ok(show::created(&lnvm::create(drive, &ask)?)))
}

/// A page of the drive: its bytes as they are, or what they say.
fn page(on: &OfDrive, out: &AsJson, raw: bool, ask: &Ask) -> Result<Ending> {
    match raw {
        true => output::done(verbs::ask(&on.drive, ask)?.bytes),
        false => out.ask(&on.drive, ask),
    }
}
