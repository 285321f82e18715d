//! `flashlane idiscard`: the blocks of an ext4 file system's inode tables in which nothing lives any more.
//!
//! Owns: the file or block device, the report. Promises: nothing is written without `--apply`; with it a
//! dead block is discarded so that it reads as zeros, and nobody else who asks the kernel has the device
//! meanwhile. Never: decides what is dead (that does `flashlane_ext4`).

use crate::Ending;
use crate::args::Idiscard;
use crate::output::Results;
use crate::watch::Interrupt;
use anyhow::{Context, Result, bail};
use flashlane_ext4::{Doubt, Ext4Error, Run, Superblock, Table, Tables, Volume};
use flashlane_files::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file or a block device with a file system on it.
struct Medium {
    file: File,
    bytes: u64,
}

impl Volume for Medium {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, at)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Medium {
    /// For writing, nobody else may have it.
    fn open(path: &Path, write: bool) -> Result<Medium> {
        let name = path.display();
        let kind = fs::metadata(path).with_context(|| format!("cannot open {name}"))?.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            bail!("{name} is neither a file nor a block device");
        }
        let mut options = OpenOptions::new();
        options.read(true).write(write);
        if write && is_device {
            // Of a block device: not while it is mounted, or a part of another device.
            options.custom_flags(OFlags::EXCL.bits() as i32);
        }
        let mut file = options.open(path).map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => {
                anyhow::anyhow!("{name} is in use: unmount it first (a mounted one has `fstrim`)")
            }
            _ => anyhow::Error::new(e).context(format!("cannot open {name}")),
        })?;
        if write && !is_device {
            if let Some(device) = loop_device_of(path) {
                bail!(
                    "{name} is behind {device}: unmount that and detach it first (`losetup -d {device}`)"
                );
            }
            flock(&file, FlockOperation::NonBlockingLockExclusive)
                .with_context(|| format!("{name} is in use by another program"))?;
        }
        let bytes =
            file.seek(SeekFrom::End(0)).with_context(|| format!("cannot look at {name}"))?;
        Ok(Medium { file, bytes })
    }

    fn discard(&self, at: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, at, bytes)?)
    }

    /// What may lie there in place of a file system, with what to do about it.
    fn other(&self) -> Option<&'static str> {
        let mut head = [0; 1024];
        self.read_at(0, &mut head).ok()?;
        match () {
            () if &head[512..520] == b"EFI PART" || head[510..512] == [0x55, 0xaa] => Some(
                "it looks like it has a partition table: name the partition (`losetup -P` makes a \
                 device of each of a file's)",
            ),
            () if &head[..6] == b"LUKS\xba\xbe" => {
                Some("it is encrypted (LUKS): name the open volume")
            }
            () if &head[..4] == b"XFSB" => {
                Some("it is XFS, whose inodes are made and freed in chunks")
            }
            () => None,
        }
    }
}

/// The loop device that has this file, if there is one.
fn loop_device_of(path: &Path) -> Option<String> {
    let of = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let this = of(path)?;
    let all = fs::read_dir("/sys/block").ok()?.flatten();
    all.into_iter().find_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let same = of(Path::new(backing.trim_end_matches('\n'))) == Some(this);
        same.then(|| format!("/dev/{}", entry.file_name().to_string_lossy()))
    })
}

pub(crate) fn idiscard(args: &Idiscard) -> Result<Ending> {
    let name = args.medium.display();
    let json = args.json.open(&[args.medium.clone()])?;
    let medium = Medium::open(&args.medium, args.apply)?;
    let sb = Superblock::read(&medium).map_err(|error| {
        let other = match &error {
            Ext4Error::None(_) => medium.other(),
            Ext4Error::Superblock(_) | Ext4Error::Checksum => Some("run `e2fsck` on it first"),
            _ => None,
        };
        let other = other.map_or(String::new(), |other| format!("; {other}"));
        anyhow::anyhow!("{name}: {error}{other}")
    })?;
    if let Some(why) = Tables::<Medium>::refusal(&sb) {
        bail!("{name}: {why}");
    }
    let interrupt = Interrupt::listen()?;
    let mut tables = Tables::new(&medium, &sb);
    let mut found = Found::default();
    let keeps = args.list || json.is_wanted();
    while let Some(group) = tables.group() {
        for run in group.with_context(|| name.to_string())? {
            match run.table {
                Table::Doubtful(doubt) => {
                    *found.doubts.entry(doubt).or_default() += u64::from(run.blocks);
                }
                Table::Dead if args.apply => {
                    let size = u64::from(sb.block_bytes);
                    medium.discard(run.first * size, u64::from(run.blocks) * size).map_err(
                        |error| {
                            anyhow::anyhow!(
                                "{name}: blocks {} and on can't be discarded: {error}; before them {} were",
                                run.first, found.discarded
                            )
                        },
                    )?;
                    found.discarded += u64::from(run.blocks);
                }
                _ => {}
            }
            if keeps && run.table == Table::Dead {
                found.dead.push(run);
            }
        }
        if interrupt.happened() {
            found.partial = true;
            break;
        }
    }
    if found.discarded > 0 {
        medium.file.sync_all().with_context(|| format!("cannot sync {name}"))?;
    }
    // A table whose place is not known makes no run.
    let placeless = tables.counts.doubtful - found.doubts.values().sum::<u64>();
    if placeless > 0 {
        *found.doubts.entry(Doubt::Descriptor).or_default() += placeless;
    }
    found.counts = tables.counts;
    let ending = if found.partial { Ending::Interrupted } else { Ending::Good };
    Results::of(json, &found.to_json(args, &sb), &found.to_text(args, &sb)).end(ending)
}

/// What was found, and done.
#[derive(Default)]
struct Found {
    counts: flashlane_ext4::Counts,
    dead: Vec<Run>,
    doubts: BTreeMap<Doubt, u64>,
    /// Blocks.
    discarded: u64,
    /// Ended by Ctrl-C.
    partial: bool,
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    parts.map(hex).join("-")
}

impl Found {
    fn to_text(&self, args: &Idiscard, sb: &Superblock) -> String {
        let (c, size) = (&self.counts, u64::from(sb.block_bytes));
        let label = if sb.label.is_empty() { String::new() } else { format!(" `{}`", sb.label) };
        let mut text = format!(
            "{}: ext4{label}, {} blocks of {}, {} groups, {} inodes of {} bytes, {} of them used\n\n",
            args.medium.display(),
            sb.blocks,
            Bytes::new(size),
            sb.groups,
            sb.inodes,
            sb.inode_bytes,
            c.used_inodes,
        );
        let mut row = |name: &str, blocks: u64, says: &str| {
            let bytes = Bytes::new(blocks * size).to_string();
            let row = format!("{name:<14}{blocks:>10}{bytes:>12}  {says}");
            let _ = writeln!(text, "{}", row.trim_end());
        };
        row("inode blocks", c.all(), "");
        row("  live", c.live, "an inode in it is used");
        row("  dead", c.dead, "no inode in it is used, and it holds what they were");
        row("  zeros", c.zeros, "never written, or discarded");
        row("  in doubt", c.doubtful, "left alone");
        for (doubt, blocks) in &self.doubts {
            let _ = writeln!(text, "              {blocks:>10}  {doubt}");
        }
        if args.list && !self.dead.is_empty() {
            let _ = writeln!(
                text,
                "\n{:>8}{:>14}{:>10}{:>14}",
                "group", "first block", "blocks", "first inode"
            );
            for run in &self.dead {
                let _ = writeln!(
                    text,
                    "{:>8}{:>14}{:>10}{:>14}",
                    run.group, run.first, run.blocks, run.inode
                );
            }
        }
        text += "\n";
        if self.partial {
            text += "interrupted: groups behind that were not looked at\n";
        }
        text += &match (args.apply, c.dead) {
            (true, _) => format!("{} blocks were discarded\n", self.discarded),
            (false, 0) => "nothing is dead: there is nothing to discard\n".to_string(),
            (false, _) => "nothing was written: `--apply` discards the dead blocks\n".to_string(),
        };
        text
    }

    fn to_json(&self, args: &Idiscard, sb: &Superblock) -> String {
        let dead = self.dead.iter().map(|run| {
            json!({
                "group": run.group,
                "first_block": run.first,
                "blocks": run.blocks,
                "first_inode": run.inode,
            })
        });
        let doubts: serde_json::Map<String, Value> =
            self.doubts.iter().map(|(doubt, blocks)| (doubt.to_string(), json!(blocks))).collect();
        let c = &self.counts;
        let result = json!({
            "medium": args.medium.display().to_string(),
            "file_system": {
                "label": sb.label,
                "uuid": uuid(&sb.uuid),
                "block_bytes": sb.block_bytes,
                "blocks": sb.blocks,
                "groups": sb.groups,
                "inodes": sb.inodes,
                "inode_bytes": sb.inode_bytes,
                "used_inodes": c.used_inodes,
            },
            "inode_blocks": {
                "all": c.all(),
                "live": c.live,
                "dead": c.dead,
                "zeros": c.zeros,
                "in_doubt": c.doubtful,
            },
            "doubts": doubts,
            "dead": dead.collect::<Vec<_>>(),
            "applied": args.apply,
            "discarded_blocks": self.discarded,
            "partial": self.partial,
        });
        format!("{result:#}\n")
    }
}
