//! `flashlane idiscard`: the blocks of an ext4 file system's inode tables in which nothing lives
//! any more, and what all of its blocks hold.
//!
//! Owns: the file or block device, the report. Promises: nothing is written without `--apply`; with
//! it a dead block is discarded so that it reads as zeros, and nobody else who asks the kernel has
//! the device meanwhile. Never: decides what is dead, or what a block is for (that does
//! `flashlane_ext4`).

use crate::Ending;
use crate::args::Idiscard;
use crate::output::Results;
use crate::watch::Interrupt;
use anyhow::{Context, Result, bail};
use flashlane_ext4::{
    Census, Doubt, Ext4Error, Extent, Journal, Pages, Run, Share, Superblock, Table, Tables, Volume,
};
use flashlane_files::Bytes;
use flashlane_ocssd::core::uuid_text;
use flashlane_ocssd::image::MAGIC;
use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, SeekFrom as Seek, fallocate, flock, seek,
};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file or a block device with a file system on it.
struct Medium {
    file: File,
    bytes: u64,
    is_device: bool,
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
        Ok(Medium { file, bytes, is_device })
    }

    /// Blocks that read as zeros from now on.
    fn discard(&self, sb: &Superblock, first: u64, blocks: u32) -> Result<()> {
        let (flags, size) =
            (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, u64::from(sb.block_bytes));
        fallocate(&self.file, flags, first * size, u64::from(blocks) * size)
            .with_context(|| format!("blocks {first} and on can't be discarded"))
    }

    /// Runs of an extent's blocks, and whether they are zeros.
    fn contents(&self, sb: &Superblock, extent: Extent) -> Result<Vec<(Extent, bool)>> {
        let (mut runs, mut block): (Vec<(Extent, bool)>, _) =
            (Vec::new(), vec![0; sb.block_bytes as usize]);
        for i in 0..extent.blocks {
            let first = extent.first + u64::from(i);
            let at = first * u64::from(sb.block_bytes);
            self.read_at(at, &mut block).with_context(|| format!("byte {at} can't be read"))?;
            let zeros = block.iter().all(|byte| *byte == 0);
            match runs.last_mut() {
                Some((run, same)) if *same == zeros => run.blocks += 1,
                _ => runs.push((Extent { logical: extent.logical + i, first, blocks: 1 }, zeros)),
            }
        }
        Ok(runs)
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
            () if head[..MAGIC.len()] == MAGIC[..] => Some(
                "it is a drive of flashlane: serve one of its targets by FUSE (`flashlane serve`), and put a \
                 loop device on that file",
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

/// Which bytes a file holds: the others are holes, which read as zeros and take no room.
struct Holes<'a> {
    file: &'a File,
    /// Bytes that were asked about last, and whether the file holds them.
    known: (Range<u64>, bool),
}

impl Holes<'_> {
    /// Bytes of these that the file holds.
    fn held(&mut self, bytes: Range<u64>) -> u64 {
        let (mut at, mut held) = (bytes.start, 0);
        while at < bytes.end {
            if !self.known.0.contains(&at) {
                self.known = self.look(at);
            }
            let end = bytes.end.min(self.known.0.end);
            held += if self.known.1 { end - at } else { 0 };
            at = end;
        }
        held
    }

    /// Bytes from here on that are all held, or all not. A file system that can't tell holds
    /// everything.
    fn look(&self, at: u64) -> (Range<u64>, bool) {
        let data = match seek(self.file, Seek::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return (at..u64::MAX, false),
            Err(_) => return (at..u64::MAX, true),
        };
        if data > at {
            return (at..data, false);
        }
        let hole = seek(self.file, Seek::Hole(at)).ok().filter(|hole| *hole > at);
        (at..hole.unwrap_or(u64::MAX), true)
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
    let json = args.json.open(std::slice::from_ref(&args.medium))?;
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
                // What reads as zeros does so behind it, too.
                Table::Zeros if args.apply && args.zeros => {
                    medium.discard(&sb, run.first, run.blocks).with_context(|| name.to_string())?;
                    found.zeros += u64::from(run.blocks);
                }
                Table::Dead if args.apply => {
                    medium.discard(&sb, run.first, run.blocks).with_context(|| name.to_string())?;
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
    if !found.partial {
        found.journal(args, &medium, &sb).with_context(|| name.to_string())?;
    }
    if found.discarded + found.zeros + found.log.discarded > 0 {
        medium.file.sync_all().with_context(|| format!("cannot sync {name}"))?;
    }
    if !found.partial {
        found.pages(&medium, &sb, &interrupt);
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
    /// Blocks of zeros that were discarded.
    zeros: u64,
    log: Log,
    /// What all blocks hold, after what was discarded; `None` if that was not counted to its end.
    pages: Option<Pages>,
    /// It is known which bytes the medium holds.
    has_held: bool,
    /// Ended by Ctrl-C.
    partial: bool,
}

/// Blocks of the journal, but for its superblock.
#[derive(Default)]
struct Log {
    /// They matter: the journal is to be replayed.
    live: u64,
    /// They hold what was written to its place long ago.
    dead: u64,
    zeros: u64,
    discarded: u64,
}

impl Found {
    /// Looks at the journal, and discards what it holds where that is wanted.
    fn journal(&mut self, args: &Idiscard, medium: &Medium, sb: &Superblock) -> Result<()> {
        let journal = match Journal::read(medium, sb)? {
            Some(Ok(journal)) => journal,
            Some(Err(doubt)) => {
                self.doubts.insert(doubt, 0);
                return Ok(());
            }
            None => return Ok(()),
        };
        for extent in journal.log() {
            if !journal.is_empty {
                self.log.live += u64::from(extent.blocks);
                continue;
            }
            for (run, zeros) in medium.contents(sb, extent)? {
                let blocks = u64::from(run.blocks);
                let discards = args.apply && if zeros { args.zeros } else { args.journal };
                if discards {
                    medium.discard(sb, run.first, run.blocks)?;
                }
                let (all, gone) = match zeros {
                    true => (&mut self.log.zeros, &mut self.zeros),
                    false => (&mut self.log.dead, &mut self.log.discarded),
                };
                *all += blocks;
                *gone += if discards { blocks } else { 0 };
            }
        }
        Ok(())
    }

    /// Counts what all blocks hold.
    fn pages(&mut self, medium: &Medium, sb: &Superblock, interrupt: &Interrupt) {
        let mut holes = Holes { file: &medium.file, known: (0..0, false) };
        self.has_held = !medium.is_device;
        let mut held = |bytes: Range<u64>| if medium.is_device { 0 } else { holes.held(bytes) };
        let mut census = Census::new(medium, sb);
        while census.group(&mut held) {
            if interrupt.happened() {
                self.partial = true;
                return;
            }
        }
        self.pages = Some(census.pages());
    }

    /// What all blocks hold, as a table: what the file system needs, and what it does not.
    fn pages_to_text(&self, pages: &Pages, sb: &Superblock) -> String {
        let size = u64::from(sb.block_bytes);
        let mut text = format!("\n{:<24}{:>12}{:>14}", "what the blocks hold", "blocks", "bytes");
        text += &if self.has_held { format!("{:>14}\n", "in the file") } else { "\n".into() };
        let mut row = |name: &str, share: Share, says: &str| {
            let bytes = Bytes::new(share.blocks * size).to_string();
            let held = match self.has_held {
                true => format!("{:>14}", Bytes::new(share.held).to_string()),
                false => String::new(),
            };
            let row = format!("{name:<24}{:>12}{bytes:>14}{held}  {says}", share.blocks);
            let _ = writeln!(text, "{}", row.trim_end());
        };
        let (all, ghosts) = (pages.all(), pages.ghosts());
        let needed = Share { blocks: all.blocks - ghosts.blocks, held: all.held - ghosts.held };
        for (are_ghosts, name, sum, says) in [
            (false, "needed", needed, "the file system reads what they hold"),
            (true, "ghosts", ghosts, "it needs nothing of what they hold"),
        ] {
            row(name, sum, says);
            for (kind, share) in pages.iter() {
                if kind.is_ghost() == are_ghosts && share.blocks > 0 {
                    row(&format!("  {}", kind.name().replace('_', " ")), share, kind.says());
                }
            }
        }
        if let Some(error) = &pages.error {
            let _ = writeln!(text, "{} reads failed, the first one: {error}", pages.unread);
        }
        text
    }

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
        let log = &self.log;
        if log.live + log.dead + log.zeros > 0 {
            row("journal", log.live + log.dead + log.zeros, "");
            row("  live", log.live, "to be replayed");
            row("  dead", log.dead, "written to its place, and still here");
            row("  zeros", log.zeros, "never written, or discarded");
        }
        for (doubt, blocks) in &self.doubts {
            let blocks = if *blocks > 0 { format!("{blocks} blocks: ") } else { String::new() };
            let _ = writeln!(text, "in doubt: {blocks}{doubt}");
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
            text += "interrupted: not all groups were looked at\n";
        }
        let dead = c.dead + if args.journal { log.dead } else { 0 };
        let gone = self.discarded + log.discarded;
        text += &match (args.apply, args.zeros) {
            (true, true) => {
                format!("{gone} blocks were discarded, and {} of zeros\n", self.zeros)
            }
            (true, false) => format!("{gone} blocks were discarded\n"),
            (false, _) if dead == 0 => "nothing is dead: there is nothing to discard\n".into(),
            (false, _) => "nothing was written: `--apply` discards the dead blocks\n".into(),
        };
        if log.dead > 0 && !args.journal {
            text += "the journal's stay: `--journal` is for these\n";
        }
        if let Some(pages) = &self.pages {
            text += &self.pages_to_text(pages, sb);
        }
        text
    }

    fn pages_to_json(&self, pages: &Pages) -> serde_json::Map<String, Value> {
        let kinds = pages.iter().map(|(kind, share)| {
            let held = self.has_held.then_some(share.held);
            (kind.name().to_owned(), json!({ "blocks": share.blocks, "held_bytes": held }))
        });
        kinds.collect()
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
                "uuid": uuid_text(&sb.uuid),
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
            "journal_blocks": {
                "all": self.log.live + self.log.dead + self.log.zeros,
                "live": self.log.live,
                "dead": self.log.dead,
                "zeros": self.log.zeros,
            },
            "pages": self.pages.as_ref().map(|pages| self.pages_to_json(pages)),
            "pages_unread": self.pages.as_ref().map(|pages| pages.unread),
            "doubts": doubts,
            "dead": dead.collect::<Vec<_>>(),
            "applied": args.apply,
            "discarded_blocks": self.discarded + self.log.discarded,
            "discarded_zeros": self.zeros,
            "partial": self.partial,
        });
        format!("{result:#}\n")
    }
}
