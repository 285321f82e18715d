//! Real file systems by `mke2fs` and `debugfs`, with what these say of them beside it; bytes that are none.

use crate::*;
use flashlane_base::Rng;
use flashlane_testkit::skip;
use proptest::prelude::{any, prop, prop_assert, proptest};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

mod pages;

/// An image in a folder of its own.
struct Made {
    _folder: tempfile::TempDir,
    image: PathBuf,
}

impl Made {
    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.image).expect("an image")
    }

    /// Commands to `debugfs`, which writes without a journal.
    fn debugfs(&self, commands: &str) -> String {
        let script = self.image.with_extension("commands");
        fs::write(&script, commands).expect("a script");
        let script = script.to_str().expect("a path");
        output(Command::new("debugfs").args(["-w", "-f", script]).arg(&self.image))
    }
}

fn output(command: &mut Command) -> String {
    let done = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&done.stderr));
    text
}

/// The tools are not everywhere.
fn has_tools() -> bool {
    let has = |tool: &str| Command::new(tool).arg("-V").output().is_ok();
    let all = has("mke2fs") && has("debugfs") && has("e2fsck") && has("dumpe2fs");
    if !all {
        skip("e2fsprogs", "mke2fs, debugfs, dumpe2fs or e2fsck is not here");
    }
    all
}

fn made(options: &str, size: &str) -> Made {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("ext4.img");
    fs::File::create(&image).expect("a file");
    let options: Vec<&str> = options.split_whitespace().collect();
    output(
        Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).args(options).arg(&image).arg(size),
    );
    Made { _folder: folder, image }
}

/// All runs, by table.
fn runs(bytes: &[u8]) -> (Superblock, Vec<Run>, Counts) {
    let sb = Superblock::read(bytes).expect("a file system");
    let mut tables = Tables::new(bytes, &sb);
    let mut all = Vec::new();
    while let Some(group) = tables.group() {
        all.extend(group.expect("it can be read"));
    }
    (sb.clone(), all, tables.counts)
}

fn blocks(runs: &[Run], which: impl Fn(Table) -> bool) -> BTreeSet<u64> {
    let runs = runs.iter().filter(|run| which(run.table));
    runs.flat_map(|run| run.first..run.first + u64::from(run.blocks)).collect()
}

/// Where `dumpe2fs` says that inode tables are, and how many inodes are used.
fn told(image: &Path) -> (Vec<(u64, u64)>, u64) {
    let text = output(Command::new("dumpe2fs").arg(image));
    let number = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line[name.len()..].trim().parse().expect("a number")
    };
    let tables = text.lines().filter_map(|line| {
        let range = line.trim().strip_prefix("Inode table at ")?.split_whitespace().next()?;
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().expect("a number"), last.parse().expect("a number")))
    });
    (tables.collect(), number("Inode count:") - number("Free inodes:"))
}

/// Blocks of inodes that are dead by what `dumpe2fs` says is free, and by the image's bytes.
fn dead_by_dumpe2fs(image: &Path, bytes: &[u8]) -> BTreeSet<u64> {
    let text = output(Command::new("dumpe2fs").arg(image));
    let word = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line[name.len()..].trim().parse().expect("a number")
    };
    let (size, per_group) = (word("Block size:"), word("Inodes per group:"));
    let per_block = size / word("Inode size:");
    let mut free: BTreeSet<u64> = BTreeSet::new();
    for line in text.lines() {
        let Some(list) = line.trim().strip_prefix("Free inodes:") else { continue };
        for range in list.split(',').map(str::trim).filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            free.extend(first.parse::<u64>().expect("one")..=last.parse().expect("one"));
        }
    }
    let mut dead = BTreeSet::new();
    for (group, (first, last)) in (0..).zip(told(image).0) {
        for block in first..=last {
            let inode = 1 + group * per_group + (block - first) * per_block;
            let held = &bytes[(block * size) as usize..][..size as usize];
            if (inode..inode + per_block).all(|i| free.contains(&i)) && held.iter().any(|b| *b != 0)
            {
                dead.insert(block);
            }
        }
    }
    dead
}

/// Whatever is made and removed, over several groups.
#[test]
fn what_is_dead_is_what_dumpe2fs_says_is_free() {
    if !has_tools() {
        return;
    }
    for (seed, options) in (0..).zip([
        "-b 1024 -g 1024 -O ^has_journal",
        "-b 1024 -g 1024 -O ^has_journal,^flex_bg,^metadata_csum -I 128",
        "-b 4096 -g 2048 -O ^has_journal,uninit_bg,^metadata_csum -I 512",
    ]) {
        let mut rng = Rng::stream(seed, "ext4.made", 0);
        let made = made(options, "24M");
        // Folders go to groups of their own, and files to their folder's.
        let mut script = String::new();
        for folder in 0..6 {
            script += &format!("mkdir d{folder}\n");
            for file in 0..40 {
                script += &format!("symlink d{folder}/f{file} x\n");
            }
        }
        for folder in 0..6 {
            let share = [1, 2, 30, 1000][rng.below(4) as usize];
            for file in 0..40 {
                if rng.below(share) == 0 || share == 1 {
                    script += &format!("rm d{folder}/f{file}\n");
                }
            }
        }
        made.debugfs(&script);
        let bytes = made.bytes();
        let (_, found, counts) = runs(&bytes);
        let dead = blocks(&found, |table| table == Table::Dead);
        assert!(counts.dead > 0 && counts.doubtful == 0, "{options}: {counts:?}");
        assert_eq!(dead, dead_by_dumpe2fs(&made.image, &bytes), "{options}");
    }
}

/// Files of a folder, made or removed.
fn files(verb: &str, numbers: impl Iterator<Item = u32>) -> String {
    match verb {
        "make" => numbers.map(|n| format!("symlink f{n} x\n")).collect(),
        _ => numbers.map(|n| format!("rm f{n}\n")).collect(),
    }
}

#[test]
fn layouts_are_those_that_dumpe2fs_tells() {
    if !has_tools() {
        return;
    }
    for (options, size) in [
        ("", "64M"),
        ("-b 1024 -I 128 -O ^metadata_csum,^64bit", "40M"),
        ("-b 1024 -O meta_bg,^resize_inode", "300M"),
        ("-b 2048 -I 512 -O ^flex_bg", "100M"),
        ("-b 4096 -I 1024 -O ^has_journal -g 2048", "100M"),
        ("-b 4096 -O ^metadata_csum,uninit_bg,64bit -N 60000", "400M"),
        ("-b 1024 -O sparse_super2,^resize_inode -g 1024", "60M"),
        ("-b 1024 -O bigalloc -C 16384", "64M"),
        ("-b 4096 -O ^sparse_super,^resize_inode,metadata_csum_seed -g 1024", "64M"),
    ] {
        let made = made(options, size);
        let (sb, runs, counts) = runs(&made.bytes());
        let (tables, used) = told(&made.image);
        assert_eq!(counts.doubtful, 0, "{options}");
        assert_eq!(counts.all(), u64::from(sb.groups) * u64::from(sb.table_blocks()), "{options}");
        assert_eq!(
            (tables.len() as u64, counts.used_inodes),
            (u64::from(sb.groups), used),
            "{options}"
        );
        let mine = blocks(&runs, |_| true);
        let theirs: BTreeSet<u64> =
            tables.iter().flat_map(|(first, last)| *first..=*last).collect();
        assert!(mine == theirs, "{options}: {tables:?}, {runs:?}");
        assert_eq!(counts.dead, 0, "{options}");
    }
}

/// Section III: a block is dead when its last inode is, and not before (the paper's Figures 3 and 4).
#[test]
fn a_block_is_dead_when_all_its_inodes_are() {
    if !has_tools() {
        return;
    }
    for options in ["-b 4096 -O ^has_journal", "-b 1024 -I 256 -O ^metadata_csum,^has_journal"] {
        let made = made(options, "32M");
        made.debugfs(&files("make", 0..100));
        let (sb, before, counts) = runs(&made.bytes());
        let per_block = sb.inodes_per_block();
        assert_eq!(counts.dead, 0, "{options}: {before:?}");
        // The first file has the first inode behind `lost+found`; all but one of a block's go.
        let first = sb.first_inode + 1;
        let of_block = |inode: u32| (inode - 1) / per_block;
        let spared = 40;
        let block = of_block(first + spared);
        made.debugfs(&files("remove", (0..100).filter(|n| *n != spared)));
        let (_, found, counts) = runs(&made.bytes());
        let dead = blocks(&found, |table| table == Table::Dead);
        let touched: BTreeSet<u32> = (0..100).map(|n| of_block(first + n)).collect();
        let held = [block, of_block(first - 1)];
        let table = found[0].first;
        let want: BTreeSet<u64> =
            touched.iter().filter(|b| !held.contains(b)).map(|b| table + u64::from(*b)).collect();
        assert!(dead == want && counts.doubtful == 0, "{options}: {dead:?}, {want:?}");
        made.debugfs(&files("remove", [spared].into_iter()));
        let (_, found, _) = runs(&made.bytes());
        let more: Vec<u64> =
            blocks(&found, |table| table == Table::Dead).difference(&dead).copied().collect();
        assert_eq!(more, [table + u64::from(block)], "{options}");
        // Zeros in their place are no damage.
        let mut bytes = made.bytes();
        for block in blocks(&found, |table| table == Table::Dead) {
            let size = sb.block_bytes as usize;
            bytes[block as usize * size..][..size].fill(0);
        }
        fs::write(&made.image, &bytes).expect("it is written");
        output(Command::new("e2fsck").args(["-f", "-n"]).arg(&made.image));
        assert_eq!(runs(&bytes).2.dead, 0);
    }
}

#[test]
fn what_does_not_fit_together_is_in_doubt() {
    if !has_tools() {
        return;
    }
    let removed = made("-b 1024 -O ^has_journal -g 4096", "16M");
    removed.debugfs(&files("make", 0..60));
    removed.debugfs(&files("remove", 0..60));
    let good = removed.bytes();
    let (sb, found, counts) = runs(&good);
    assert!(counts.dead > 5 && counts.doubtful == 0, "{counts:?}");
    let doubts = |bytes: &[u8]| -> BTreeSet<String> {
        let doubt = |run: &Run| match run.table {
            Table::Doubtful(doubt) => Some(doubt.to_string()),
            _ => None,
        };
        runs(bytes).1.iter().filter_map(doubt).collect()
    };
    // An inode that is linked, and whose bit is clear.
    let dead = found.iter().find(|run| run.table == Table::Dead).expect("one");
    let mut bytes = good.clone();
    bytes[(dead.first * 1024) as usize + 0x1a] = 1;
    assert_eq!(doubts(&bytes), BTreeSet::from([Doubt::Links.to_string()]));
    // An open file that was removed: no link, and its bit is set.
    let open = made("-b 1024 -O ^has_journal -g 4096", "16M");
    open.debugfs(&files("make", 0..60));
    open.debugfs("set_inode_field f30 links_count 0\n");
    let held = open.bytes();
    assert_eq!(blocks(&runs(&held).1, |table| table == Table::Dead).len(), 0);
    // A bit that is clear, in a bitmap that is not this descriptor's.
    let group = Group::read(&good[..], &sb, 0).expect("it is read").expect("it is good");
    let mut bytes = good.clone();
    bytes[(group.inode_bitmap * 1024) as usize] ^= 4;
    assert_eq!(doubts(&bytes), BTreeSet::from([Doubt::Bitmap.to_string()]));
    assert_eq!(runs(&bytes).2.dead, 0);
    // A descriptor.
    let mut bytes = good.clone();
    bytes[2048 + 8] ^= 1;
    assert!(matches!(Group::read(&bytes[..], &sb, 0), Ok(Err(Doubt::Descriptor))));
    assert_eq!(runs(&bytes).2.dead, 0);
    // A file system that somebody uses, or used until the power went.
    assert_eq!(Tables::<[u8]>::refusal(&sb), None);
    for command in ["set_super_value state 0", "feature has_journal needs_recovery"] {
        let made = made("-b 1024 -O ^has_journal", "16M");
        made.debugfs(command);
        let sb = Superblock::read(&made.bytes()[..]).expect("a file system");
        assert!(Tables::<[u8]>::refusal(&sb).is_some(), "{command}");
    }
    // The superblock.
    let mut bytes = good.clone();
    bytes[1024] ^= 1;
    assert!(matches!(Superblock::read(&bytes[..]), Err(Ext4Error::Checksum)));
    // It is cut off.
    assert!(matches!(Superblock::read(&good[..8 << 20]), Err(Ext4Error::Superblock(_))));
}

/// Where `debugfs` says that the journal's blocks lie, its tree's among them.
#[test]
fn a_journal_lies_where_debugfs_says() {
    if !has_tools() {
        return;
    }
    for (options, size) in [
        ("-b 4096 -J size=16", "100M"),
        ("-b 1024 -J size=8", "64M"),
        ("-b 1024 -J size=4 -O ^extents,^metadata_csum,^64bit,^flex_bg", "64M"),
        ("-b 1024 -J size=12 -I 128 -O ^extents,^64bit", "64M"),
        ("-b 4096 -J size=8 -O fast_commit", "64M"),
    ] {
        let made = made(options, size);
        let bytes = made.bytes();
        let sb = Superblock::read(&bytes[..]).expect("a file system");
        let journal = Journal::read(&bytes[..], &sb).expect("it is read").expect("there is one");
        let journal = journal.expect("it is good");
        assert!(journal.is_empty, "{options}");
        let told = output(Command::new("debugfs").args(["-R", "blocks <8>"]).arg(&made.image));
        let told: BTreeSet<u64> =
            told.split_whitespace().map(|n| n.parse().expect("one")).collect();
        let of = |extents: &mut dyn Iterator<Item = Extent>| -> BTreeSet<u64> {
            extents.flat_map(|e| e.first..e.first + u64::from(e.blocks)).collect()
        };
        let mine = of(&mut journal.extents.iter().copied());
        // `debugfs` has the blocks of numbers beside them: one of 256, of 256 more a level.
        let trees = told.difference(&mine).count();
        assert!(mine.is_subset(&told) && trees < 60, "{options}: {mine:?}");
        let want: u64 = options
            .split("size=")
            .nth(1)
            .expect("a size")
            .split(' ')
            .next()
            .and_then(|size| size.parse().ok())
            .expect("a number");
        let blocks = (want << 20) / u64::from(sb.block_bytes);
        // A journal with fast commits has room for these beside.
        assert!((mine.len() as u64).abs_diff(blocks) <= blocks / 8, "{options}: {}", mine.len());
        let log = of(&mut journal.log());
        assert_eq!(log.len() + 1, mine.len());
        assert_eq!(
            bytes[mine.difference(&log).copied().min().expect("one") as usize
                * sb.block_bytes as usize..][..4],
            0xc03b_3998_u32.to_be_bytes(),
            "{options}"
        );
    }
    // No journal; one with something in it; one whose inode is damaged.
    let bytes = made("-O ^has_journal", "16M").bytes();
    let sb = Superblock::read(&bytes[..]).expect("a file system");
    assert_eq!(Journal::read(&bytes[..], &sb).expect("it is read"), None);
    let made = made("-b 1024 -J size=4", "32M");
    let good = made.bytes();
    let sb = Superblock::read(&good[..]).expect("a file system");
    let group = Group::read(&good[..], &sb, 0).expect("it is read").expect("it is good");
    let inode = (group.inode_table * 1024 + 7 * u64::from(sb.inode_bytes)) as usize;
    let mut bytes = good.clone();
    bytes[inode + 0x28 + 12 + 8] ^= 1;
    assert!(matches!(Journal::read(&bytes[..], &sb), Ok(Some(Err(Doubt::Journal)))));
    made.debugfs("journal_open\njournal_write -b 9000 /dev/zero\njournal_close\n");
    let bytes = made.bytes();
    let full = Journal::read(&bytes[..], &sb).expect("it is read").expect("there is one");
    assert!(!full.expect("it is good").is_empty);
}

/// A superblock's bytes without a checksum, so that what is changed in it is believed.
fn small(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 16];
    let mut put = |at: usize, value: u32, width: usize| {
        bytes[1024 + at..][..width].copy_from_slice(&value.to_le_bytes()[..width]);
    };
    for (at, value, width) in [
        (0x0, 32, 4), // inodes
        (0x4, 64, 4),
        (0x14, 1, 4),
        (0x20, 8192, 4),
        (0x28, 32, 4),
        (0x38, 0xef53, 2),
        (0x3a, 1, 2),
        (0x4c, 1, 4),
        (0x54, 11, 4),
        (0x58, 128, 2),
        (0x5c, 4, 4), // has_journal, inode 8
        (0xe0, 8, 4),
    ] {
        put(at, value, width);
    }
    put(1024 + 0x4, 3, 4);
    put(1024 + 0x8, 4, 4);
    let mut put = |at: usize, value: u32| bytes[at..][..4].copy_from_slice(&value.to_le_bytes());
    const JOURNAL: usize = 4 * 1024 + 7 * 128;
    // A tree of one level: its node is block 9, and has two extents.
    put(JOURNAL + 0x20, 0x8_0000);
    for (at, entries, depth) in [(JOURNAL + 0x28, 1, 1), (9 * 1024, 2, 0)] {
        put(at, 0xf30a | entries << 16);
        put(at + 4, 4 | depth << 16);
    }
    put(JOURNAL + 0x28 + 12 + 4, 9);
    for (i, first) in [(0, 20), (1, 40)] {
        let at = 9 * 1024 + 12 + 12 * i;
        put(at, 8 * i as u32);
        put(at + 4, 8);
        put(at + 8, first);
    }
    for (at, word) in [(0, 0xc03b_3998_u32), (4, 4), (0xc, 1024), (0x10, 16), (0x14, 1)] {
        put(20 * 1024 + at, word.swap_bytes());
    }
    for _ in 0..rng.below(6) {
        let places = [(1024, 1100), (JOURNAL, 128), (9 * 1024, 40), (20 * 1024, 64)];
        let (from, len) = places[rng.below(4) as usize];
        let at = from + rng.below(len) as usize;
        bytes[at] = rng.below(256) as u8;
    }
    bytes
}

#[test]
fn a_small_one_made_by_hand_is_read() {
    let mut rng = Rng::stream(0, "none", 0);
    let bytes = loop {
        let bytes = small(&mut rng);
        if let Ok(sb) = Superblock::read(&bytes[..])
            && sb.groups == 1
        {
            break bytes;
        }
    };
    assert_eq!(runs(&bytes).2.all(), 4);
    let found = (0..200).filter(|seed| {
        let bytes = small(&mut Rng::stream(*seed, "ext4", 0));
        let sb = Superblock::read(&bytes[..]);
        sb.is_ok_and(
            |sb| matches!(Journal::read(&bytes[..], &sb), Ok(Some(Ok(j))) if j.extents.len() == 2),
        )
    });
    let found = found.count();
    assert!((20..180).contains(&found), "{found} of 200 are still good");
}

/// Counts whose product is beyond 64 bits, on a sparse volume that is as large.
#[test]
fn counts_that_overflow_are_refused() {
    let mut bytes = [0; 1024];
    let mut put = |at: usize, value: u32| bytes[at..][..4].copy_from_slice(&value.to_le_bytes());
    // 2^48 - 1 blocks of 64 KiB in groups of 8, each of 2^19 inodes: 2^64.
    for (at, value) in [
        (0x4, u32::MAX),
        (0x18, 6),
        (0x20, 8),
        (0x28, 1 << 19),
        (0x38, 0xef53),
        (0x4c, 1),
        (0x54, 11),
        (0x58, 128),
        (0x60, 0x80), // 64bit
        (0x150, 0xffff),
    ] {
        put(at, value);
    }
    assert!(matches!(Superblock::parse(&bytes, u64::MAX), Err(Ext4Error::Superblock(_))));
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let _ = Superblock::read(&bytes[..]);
    }

    /// What is changed in a superblock or a descriptor is refused or read, and nothing outside of the volume.
    #[test]
    fn damaged_ones_never_panic(seed in any::<u64>()) {
        let bytes = small(&mut Rng::stream(seed, "ext4", 0));
        if let Ok(sb) = Superblock::read(&bytes[..]) {
            let mut tables = Tables::new(&bytes[..], &sb);
            let mut groups = 0;
            while let Some(group) = tables.group() {
                groups += 1;
                let Ok(runs) = group else { break };
                for run in runs {
                    prop_assert!(run.first + u64::from(run.blocks) <= sb.blocks);
                }
                if groups == 64 {
                    break;
                }
            }
            if let Ok(Some(Ok(journal))) = Journal::read(&bytes[..], &sb) {
                prop_assert!(journal.extents.iter().all(|e| e.first + u64::from(e.blocks) <= sb.blocks));
            }
        }
    }
}
