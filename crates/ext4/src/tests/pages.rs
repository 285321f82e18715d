//! What blocks hold, beside what `dumpe2fs` and `debugfs` say of each.

use super::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

type Kinds = BTreeMap<&'static str, BTreeSet<u64>>;

/// Bytes of a block that the medium is said to hold. They differ, so that a sum of them tells which
/// blocks it is of.
fn weight(block: u64, size: u64) -> u64 {
    Rng::stream(block, "weight", 0).below(size + 1)
}

fn held_by_weight(size: u64) -> impl FnMut(Range<u64>) -> u64 {
    move |bytes| {
        assert!(bytes.start % size == 0 && bytes.end % size == 0 && bytes.start < bytes.end);
        (bytes.start / size..bytes.end / size).map(|block| weight(block, size)).sum()
    }
}

fn count(bytes: &[u8]) -> Pages {
    let sb = Superblock::read(bytes).expect("a file system");
    Pages::count(bytes, &sb, &mut held_by_weight(sb.block_bytes.into()))
}

fn shares(pages: &Pages) -> BTreeMap<&'static str, (u64, u64)> {
    pages.iter().map(|(kind, share)| (kind.name(), (share.blocks, share.held))).collect()
}

/// `3-5, 7`, with anything behind it.
fn ranges(text: &str) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    for range in text.split([',', ' ']).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>()) else { break };
        found.extend(first..=last);
    }
    found
}

/// What each block holds, by the tools.
fn told_kinds(image: &Path, bytes: &[u8]) -> Kinds {
    let text = output(Command::new("dumpe2fs").arg(image));
    let word = |name: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line[name.len()..].split_whitespace().next()?.parse().ok()
    };
    let must = |name: &str| word(name).expect(name);
    let (size, all, inodes) = (must("Block size:"), must("Block count:"), must("Inode count:"));
    let cluster = word("Cluster size:").unwrap_or(size) / size;
    let is_zero =
        |block: u64| bytes[(block * size) as usize..][..size as usize].iter().all(|b| *b == 0);
    let mut kinds: Kinds =
        Holds::ALL.into_iter().map(|kind| (kind.name(), BTreeSet::new())).collect();
    let mut put = |kind: Holds, blocks: BTreeSet<u64>| {
        let set = kinds.get_mut(kind.name()).expect("a kind");
        set.extend(blocks);
    };
    let clusters = |blocks: BTreeSet<u64>| -> BTreeSet<u64> {
        let first = blocks.into_iter().map(|block| block / cluster * cluster);
        first.flat_map(|first| first..first + cluster).collect()
    };
    // With blocks of 1 KiB the first superblock is in block 1.
    put(Holds::Superblock, if size == 1024 { BTreeSet::from([0]) } else { BTreeSet::new() });
    if let Some(block) = word("MMP block number:") {
        put(Holds::Superblock, BTreeSet::from([block]));
    }
    let mut free_inodes = BTreeSet::new();
    let mut tables = Vec::new();
    for line in text.lines().map(str::trim).skip_while(|line| !line.starts_with("Group 0:")) {
        if let Some(list) = line.strip_prefix("Free blocks:") {
            // A range ends with the first block of its last cluster.
            put(Holds::Freed, clusters(ranges(list)));
        }
        if let Some(list) = line.strip_prefix("Free inodes:") {
            free_inodes.extend(ranges(list));
        }
        for part in line.split(", ") {
            for (name, kind) in [
                ("Primary superblock at ", Holds::Superblock),
                ("Backup superblock at ", Holds::Superblock),
                ("Group descriptors at ", Holds::Superblock),
                ("Group descriptor at ", Holds::Superblock),
                ("Reserved GDT blocks at ", Holds::Superblock),
                ("Block bitmap at ", Holds::Bitmap),
                ("Inode bitmap at ", Holds::Bitmap),
            ] {
                let Some(list) = part.strip_prefix(name) else { continue };
                for block in ranges(list) {
                    let zero = kind == Holds::Bitmap && is_zero(block);
                    let kind = if zero { Holds::ZeroBitmap } else { kind };
                    put(kind, BTreeSet::from([block]));
                }
            }
            if let Some(list) = part.strip_prefix("Inode table at ") {
                tables.push(ranges(list));
            }
        }
    }
    let per_block = size / must("Inode size:");
    let mut inode = 1;
    for block in tables.iter().flatten() {
        let free = (inode..inode + per_block).all(|i| free_inodes.contains(&i));
        put(
            match (free, is_zero(*block)) {
                (false, _) => Holds::Inodes,
                (true, true) => Holds::ZeroInodes,
                (true, false) => Holds::DeadInodes,
            },
            BTreeSet::from([*block]),
        );
        inode += per_block;
    }
    assert_eq!(inode, inodes + 1);

    let used = (1..=inodes).filter(|inode| !free_inodes.contains(inode));
    let script: String = used.map(|inode| format!("stat <{inode}>\n")).collect();
    let path = image.with_extension("stats");
    fs::write(&path, script).expect("a script");
    let path = path.to_str().expect("a path");
    let stats = output(Command::new("debugfs").args(["-f", path]).arg(image));
    let journal_start = word("Journal start:");
    let mut inode: (u64, &str) = (0, "");
    for line in stats.lines() {
        if let Some(rest) = line.strip_prefix("Inode: ") {
            let mut words = rest.split_whitespace();
            let number = words.next().and_then(|number| number.parse().ok());
            inode = (number.expect("a number"), words.nth(1).expect("a type"));
        }
        if let Some(block) = line.strip_prefix("File ACL: ") {
            let block: u64 = block.trim().parse().expect("a number");
            put(Holds::Tree, clusters((block > 0).then_some(block).into_iter().collect()));
        }
        for (i, entry) in line.split(", ").enumerate().filter(|(_, e)| e.starts_with('(')) {
            let (name, list) = entry.split_once("):").expect("a place");
            let blocks = clusters(ranges(list));
            let is_tree = ["(ETB", "(IND", "(DIND", "(TIND"].iter().any(|n| name.starts_with(n));
            match inode {
                // What the map leads to lies behind descriptors.
                (7, _) if !name.starts_with("(DIND") => put(Holds::Superblock, ranges(list)),
                (7, _) => put(Holds::Superblock, blocks),
                _ if is_tree => put(Holds::Tree, blocks),
                (8, _) => {
                    let is_dead = |block: &u64| {
                        journal_start == Some(0)
                            && (i > 0 || *block != ranges(list).first().copied().expect("one"))
                    };
                    let (dead, live) = blocks.into_iter().partition(is_dead);
                    put(Holds::DeadJournal, dead);
                    put(Holds::Journal, live);
                }
                (_, "directory") => put(Holds::Directory, blocks),
                _ => put(Holds::Data, blocks),
            }
        }
    }
    let mut rest: BTreeSet<u64> = (0..all).collect();
    for (kind, blocks) in &kinds {
        for block in blocks {
            assert!(
                rest.remove(block),
                "{image:?}, {kind}: block {block} is of two kinds, or of none"
            );
        }
    }
    assert!(rest.is_empty() || cluster > 1, "nothing says what these are for: {rest:?}");
    kinds.insert(Holds::Unknown.name(), rest);
    let free = must("Free blocks:");
    assert_eq!(kinds[Holds::Freed.name()].len() as u64, free);
    kinds
}

fn sums(kinds: &Kinds, size: u64) -> BTreeMap<&'static str, (u64, u64)> {
    let sum = |blocks: &BTreeSet<u64>| -> (u64, u64) {
        (blocks.len() as u64, blocks.iter().map(|block| weight(*block, size)).sum())
    };
    kinds.iter().map(|(kind, blocks)| (*kind, sum(blocks))).collect()
}

/// Fills a file system with what has blocks of each kind, and removes a part.
fn fill(made: &Made, seed: u64) {
    let mut rng = Rng::stream(seed, "ext4.filled", 0);
    let folder = made.image.parent().expect("a folder");
    let mut source = |name: &str, bytes: usize, at: u64| {
        use std::io::{Seek, SeekFrom, Write};
        let path = folder.join(name);
        let mut file = fs::File::create(&path).expect("a file");
        file.seek(SeekFrom::Start(at)).expect("it is made longer");
        let bytes: Vec<u8> = (0..bytes).map(|_| rng.below(255) as u8 + 1).collect();
        file.write_all(&bytes).expect("it is written");
        path.to_str().expect("a path").to_owned()
    };
    let (small, large) = (source("small", 3000, 0), source("large", 900_000, 0));
    let (sparse, far) = (source("sparse", 50_000, 400_000), source("far", 5000, 80 << 20));
    let mut script = String::new();
    for n in 0..4 {
        script += &format!("mkdir d{n}\n");
        for file in 0..40 {
            script += &format!("write {small} d{n}/s{file}\nsymlink d{n}/l{file} x\n");
        }
    }
    // What comes between small files is in many pieces.
    for n in 0..4 {
        for file in (0..40).filter(|file| file % 2 == n % 2) {
            script += &format!("rm d{n}/s{file}\n");
        }
        for file in 0..36 {
            script += &format!("rm d{n}/l{file}\n");
        }
    }
    for n in 0..2 {
        script +=
            &format!("write {large} large{n}\nwrite {sparse} sparse{n}\nwrite {far} far{n}\n");
    }
    script += &format!("rm large0\nsymlink long {}\nmknod pipe p\n", "y".repeat(200));
    script += &format!("mknod null c 1 3\nmknod disk b 8 {}\n", rng.below(200));
    for file in ["long", "far0", "d1"] {
        script += &format!("ea_set {file} user.x {}\n", "z".repeat(700));
    }
    // More than there are free inodes between those that are used.
    script += &files("make", 0..400);
    script += &files("remove", 0..400);
    made.debugfs(&script);
}

#[test]
fn each_block_counts_as_the_tools_say() {
    if !has_tools() {
        return;
    }
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let (mut uninit, mut zeros) = (0, 0);
    for (seed, (options, size)) in (0..).zip([
        ("-b 1024", "24M"),
        ("-b 4096", "64M"),
        ("-b 1024 -g 2048 -O ^flex_bg", "24M"),
        ("-b 1024 -g 2048 -O ^flex_bg,^metadata_csum,uninit_bg -I 128", "24M"),
        ("-b 1024 -g 2048 -O meta_bg,^resize_inode", "40M"),
        ("-b 2048 -g 2048 -O ^has_journal,^metadata_csum,^64bit", "32M"),
        ("-b 4096 -g 2048 -O ^sparse_super,^resize_inode,metadata_csum_seed", "64M"),
        ("-b 1024 -g 1024 -O sparse_super2,^resize_inode", "20M"),
        ("-b 1024 -O quota,mmp,inline_data,ea_inode", "24M"),
        // As ext2 and ext3 are.
        ("-b 1024 -O ^extents,^has_journal,^64bit,^metadata_csum,^flex_bg", "24M"),
        ("-b 4096 -O ^extents,^64bit,^metadata_csum -I 128", "64M"),
        ("-b 1024 -O bigalloc -C 16384", "64M"),
        ("-b 4096 -O bigalloc,^metadata_csum -C 65536", "128M"),
        // A bitmap without padding, of a group in which no inode is used.
        ("-b 1024 -O ^metadata_csum,^uninit_bg,^has_journal -N 24576 -I 128", "24M"),
    ]) {
        let made = made(options, size);
        fill(&made, seed);
        let bytes = made.bytes();
        let sb = Superblock::read(&bytes[..]).expect("a file system");
        let kinds = told_kinds(&made.image, &bytes);
        let pages = count(&bytes);
        assert_eq!(shares(&pages), sums(&kinds, sb.block_bytes.into()), "{options}");
        assert_eq!(pages.all().blocks, sb.blocks, "{options}");
        assert_eq!(pages.unread, 0, "{options}");
        seen.extend(pages.iter().filter(|(_, s)| s.blocks > 0).map(|(kind, _)| kind.name()));
        zeros += pages.of(Holds::ZeroBitmap).blocks;
        for group in 0..sb.groups {
            let group = Group::read(&bytes[..], &sb, group).expect("it is read").expect("good");
            uninit += u32::from(group.blocks_uninit);
        }
    }
    assert!(uninit > 0 && zeros > 0, "{uninit}, {zeros}");
    // Files are of a file system in use alone.
    assert_eq!(seen.len(), Holds::ALL.len() - 1, "{seen:?}");
}

#[test]
fn attributes_that_inodes_share_are_one_block() {
    if !has_tools() {
        return;
    }
    let made = made("-b 1024 -O ^has_journal,^metadata_csum", "8M");
    made.debugfs(&files("make", 0..3));
    made.debugfs(&format!("ea_set f0 user.x {}\n", "z".repeat(700)));
    let before = count(&made.bytes());
    assert_eq!(before.of(Holds::Tree).blocks, 1);
    let stat = made.debugfs("stat f0\n");
    let acl = stat.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next());
    let acl: u64 = acl.and_then(|acl| acl.parse().ok()).expect("a block");
    made.debugfs(&format!(
        "set_inode_field f1 file_acl {acl}\nset_inode_field f2 file_acl {acl}\n"
    ));
    let mut bytes = made.bytes();
    bytes[(acl * 1024) as usize + 4] = 3;
    assert_eq!(shares(&count(&bytes)), shares(&before));
    // What has no magic number is no such block.
    bytes[(acl * 1024) as usize] ^= 1;
    let pages = count(&bytes);
    assert_eq!((pages.of(Holds::Tree).blocks, pages.of(Holds::Unknown).blocks), (0, 1));
}

#[test]
fn a_journal_with_something_in_it_matters() {
    if !has_tools() {
        return;
    }
    let made = made("-b 1024 -J size=4", "32M");
    let pages = count(&made.bytes());
    let (live, dead) = (pages.of(Holds::Journal).blocks, pages.of(Holds::DeadJournal).blocks);
    assert_eq!((live, dead), (1, 4095));
    made.debugfs("journal_open\njournal_write -b 9000 /dev/zero\njournal_close\n");
    let pages = count(&made.bytes());
    let (live, dead) = (pages.of(Holds::Journal).blocks, pages.of(Holds::DeadJournal).blocks);
    assert_eq!((live, dead), (4096, 0));
}

/// A volume of which nothing is there until it was asked for once.
struct Cache<'a> {
    bytes: &'a [u8],
    has: RefCell<BTreeSet<u64>>,
    missed: RefCell<BTreeSet<u64>>,
}

impl Volume for Cache<'_> {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let sectors = at / 512..(at + buf.len() as u64).div_ceil(512);
        let missing: Vec<u64> =
            sectors.filter(|sector| !self.has.borrow().contains(sector)).collect();
        if !missing.is_empty() {
            self.missed.borrow_mut().extend(missing);
            return Err(io::Error::other("not there yet"));
        }
        self.bytes.read_at(at, buf)
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }
}

#[test]
fn what_cannot_be_read_is_unknown_and_the_rest_goes_on() {
    if !has_tools() {
        return;
    }
    for options in ["-b 1024 -g 2048", "-b 1024 -O ^extents,^64bit,^metadata_csum"] {
        let made = made(options, "24M");
        fill(&made, 0);
        let bytes = made.bytes();
        let sb = Superblock::read(&bytes[..]).expect("a file system");
        let cache = Cache { bytes: &bytes, has: RefCell::default(), missed: RefCell::default() };
        let (mut passes, mut unknown) = (0, u64::MAX);
        let last = loop {
            let pages = Pages::count(&cache, &sb, &mut held_by_weight(1024));
            assert_eq!(pages.all().blocks, sb.blocks, "{options}");
            assert_eq!(pages.unread > 0, pages.error.is_some(), "{options}");
            assert!(pages.of(Holds::Unknown).blocks <= unknown, "{options}");
            unknown = pages.of(Holds::Unknown).blocks;
            passes += 1;
            if pages.unread == 0 {
                break pages;
            }
            cache.has.borrow_mut().append(&mut cache.missed.borrow_mut());
        };
        // Descriptors, bitmaps, tables, and the levels of a tree.
        assert!(passes <= 8, "{options}: {passes} passes");
        assert_eq!(shares(&last), shares(&count(&bytes)), "{options}");
    }
}

/// A bitmap, a descriptor or an inode that is not as its checksum says.
#[test]
fn what_can_not_be_right_is_unknown() {
    if !has_tools() {
        return;
    }
    let made = made("-b 1024 -g 2048 -O ^has_journal", "8M");
    fill_small(&made);
    let good = made.bytes();
    let sb = Superblock::read(&good[..]).expect("a file system");
    let before = count(&good);
    assert_eq!(before.of(Holds::Unknown).blocks, 0);
    let group = Group::read(&good[..], &sb, 0).expect("it is read").expect("it is good");
    let flipped = |at: u64| {
        let mut bytes = good.clone();
        bytes[at as usize] ^= 1;
        count(&bytes)
    };
    // Of the first group's blocks nobody knows which ones are free.
    let bitmap = group.block_bitmap.expect("it is within") * 1024;
    let pages = flipped(bitmap + 100);
    let lost = before.of(Holds::Freed).blocks - pages.of(Holds::Freed).blocks;
    assert!(lost > 0 && pages.of(Holds::Unknown).blocks == lost, "{:?}", shares(&pages));
    assert_eq!(pages.of(Holds::Data), before.of(Holds::Data));
    assert_eq!(pages.all(), before.all());
    // Of a group of which nothing is known.
    let pages = flipped(2048 + 64 + 8);
    assert!(pages.of(Holds::Unknown).blocks > lost);
    assert_eq!(pages.all(), before.all());
    // Of a root directory that can't be right.
    let pages = flipped(group.inode_table * 1024 + u64::from(sb.inode_bytes) + 8);
    assert_eq!(pages.of(Holds::Unknown).blocks, 1);
    assert_eq!(pages.of(Holds::Directory).blocks, before.of(Holds::Directory).blocks - 1);
}

/// Some files with blocks.
fn fill_small(made: &Made) {
    let source = made.image.with_extension("source");
    fs::write(&source, [7; 9000]).expect("a file");
    let source = source.to_str().expect("a path");
    let script = (0..60).map(|n| format!("write {source} w{n}\n"));
    let removed = (0..60).filter(|n| n % 3 > 0).map(|n| format!("rm w{n}\n"));
    made.debugfs(&script.chain(removed).collect::<String>());
    made.debugfs(&format!(
        "write {source} last\nmkdir d\nea_set last user.x {}\n",
        "z".repeat(700)
    ));
}

/// Bytes that are changed anywhere in the metadata, and that no checksum gives away.
#[test]
fn damaged_file_systems_never_panic() {
    if !has_tools() {
        return;
    }
    for (seed, options) in (0..).zip([
        "-b 1024 -O ^metadata_csum,^64bit -N 64 -J size=1",
        "-b 1024 -O ^extents,^metadata_csum,^64bit,^has_journal -N 64",
        "-b 1024 -O bigalloc,^metadata_csum,^has_journal -C 4096 -N 64",
        "-b 1024 -O ^metadata_csum,uninit_bg,^has_journal -g 512 -N 128",
    ]) {
        let made = made(options, "3M");
        fill_small(&made);
        let good = made.bytes();
        let mut rng = Rng::stream(seed, "ext4.damaged", 0);
        let mut read = 0;
        let filled: Vec<usize> = (1024..good.len()).filter(|at| good[*at] != 0).collect();
        for _ in 0..400 {
            let mut bytes = good.clone();
            for _ in 0..1 + rng.below(30) {
                let at = match rng.below(3) {
                    0 => 1024 + rng.below(1024) as usize,
                    1 => filled[rng.below(filled.len() as u64) as usize],
                    _ => rng.below(300 << 10) as usize,
                };
                bytes[at] = [0, 0xff, rng.below(256) as u8][rng.below(3) as usize];
            }
            let Ok(sb) = Superblock::read(&bytes[..]) else { continue };
            read += 1;
            let mut census = Census::new(&bytes[..], &sb);
            let mut held = |range: Range<u64>| {
                assert!(range.start < range.end && range.end <= sb.bytes(), "{range:?}");
                range.end - range.start
            };
            for _ in 0..2000 {
                if !census.group(&mut held) {
                    break;
                }
            }
            let pages = census.pages();
            for (kind, share) in pages.iter() {
                assert_eq!(share.held, share.blocks * u64::from(sb.block_bytes), "{kind:?}");
            }
        }
        assert!(read > 100, "{options}: {read}");
    }
}

/// Inodes that all claim the same blocks make no more work than a file system has blocks.
#[test]
fn blocks_that_all_inodes_claim_are_no_more_work() {
    if !has_tools() {
        return;
    }
    let made = made("-b 1024 -O ^extents,^metadata_csum,^64bit,^has_journal -N 2048", "8M");
    made.debugfs(&files("make", 0..1500));
    let mut bytes = made.bytes();
    let sb = Superblock::read(&bytes[..]).expect("a file system");
    let group = Group::read(&bytes[..], &sb, 0).expect("it is read").expect("it is good");
    // A map of a thousand million blocks: one block leads to itself, and to itself again.
    let node = 7000_u32;
    for entry in bytes[node as usize * 1024..][..1024].chunks_exact_mut(4) {
        entry.copy_from_slice(&node.to_le_bytes());
    }
    for inode in 20..1500_usize {
        let at = (group.inode_table * 1024) as usize + inode * sb.inode_bytes as usize;
        bytes[at + 1] = 0x81;
        bytes[at + 0x28 + 14 * 4..][..4].copy_from_slice(&node.to_le_bytes());
    }
    let mut asked = 0_u64;
    let mut held = |range: Range<u64>| {
        asked += (range.end - range.start) / 1024;
        0
    };
    let pages = Pages::count(&bytes[..], &sb, &mut held);
    assert!(pages.of(Holds::Tree).blocks + pages.of(Holds::Data).blocks <= sb.blocks);
    assert!(asked < 4 * sb.blocks, "{asked}");
}
