//! `idiscard` as a person uses it: on an image by `mke2fs`, and on what is no ext4.

use crate::harness::{Here, here, says};
use flashlane_testkit::skip;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fs;
use std::path::Path;
use std::process::Command;

fn tool(h: &Here, name: &str, args: &[&str]) -> Option<String> {
    let done = Command::new(name).args(args).current_dir(h.path("")).output().ok()?;
    Some(String::from_utf8_lossy(&done.stdout).into_owned()).filter(|_| done.status.success())
}

/// An image of which 60 files were removed and one is left, if there are the tools for one.
fn made(h: &Here) -> Option<()> {
    fs::File::create(h.path("disk.img")).expect("a file");
    let options = "-q -F -t ext4 -b 1024 -O ^has_journal -L data disk.img 16M";
    let made = tool(h, "mke2fs", &options.split(' ').collect::<Vec<_>>());
    let mut script: String = (0..61).map(|n| format!("symlink f{n} x\n")).collect();
    script.extend((0..60).map(|n| format!("rm f{n}\n")));
    fs::write(h.path("script"), script).expect("a script");
    let made = made.and_then(|_| tool(h, "debugfs", &["-w", "-f", "script", "disk.img"]));
    if made.is_none() {
        skip("e2fsprogs", "mke2fs and debugfs are not here");
    }
    made.map(|_| ())
}

#[test]
fn dead_blocks_are_found_and_discarded() {
    let h = here();
    let Some(()) = made(&h) else { return };
    let before = fs::read(h.path("disk.img")).expect("an image");
    // Four inodes in a block: 1 to 12 are used, or with others that are; so is the last file's.
    let found = h.run("idiscard disk.img --list").good().out;
    says(&found, &["ext4 `data`", "  dead                14 ", "  in doubt             0 "]);
    says(&found, &["first inode", "`--apply` discards the dead blocks"]);
    let json = h.run("idiscard disk.img --json -").good().json();
    assert_eq!(json["inode_blocks"]["dead"], 14, "{json:#}");
    assert_eq!(json["dead"][0]["first_inode"], 13);
    assert_eq!((&json["applied"], &json["discarded_blocks"]), (&false.into(), &0.into()));
    assert!(fs::read(h.path("disk.img")).expect("an image") == before, "nothing was written");

    let done = h.run("idiscard disk.img --apply").good().out;
    says(&done, &["14 blocks were discarded"]);
    let (first, size) = (json["dead"][0]["first_block"].as_u64().expect("a number") as usize, 1024);
    let mut want = before;
    want[first * size..][..14 * size].fill(0);
    assert!(
        fs::read(h.path("disk.img")).expect("an image") == want,
        "they are zeros, all else is as it was"
    );
    tool(&h, "e2fsck", &["-f", "-n", "disk.img"]).expect("it is sound");
    says(&h.run("idiscard disk.img").good().out, &["nothing is dead"]);
    says(&h.run("idiscard disk.img --apply").good().out, &["0 blocks were discarded"]);
    // Zeros stay zeros, and take no room any more.
    let zeros = h.run("idiscard disk.img --json -").good().json()["inode_blocks"]["zeros"].clone();
    let done = h.run("idiscard disk.img --apply --zeros").good().out;
    says(&done, &[&format!("0 blocks were discarded, and {zeros} of zeros")]);
    assert!(fs::read(h.path("disk.img")).expect("an image") == want);
}

/// What a journal holds behind an unmount is dead; its superblock is not, and neither is what is to be replayed.
#[test]
fn an_empty_journal_is_discarded_where_that_is_wanted() {
    let h = here();
    fs::File::create(h.path("disk.img")).expect("a file");
    let options = "-q -F -t ext4 -b 1024 -J size=4 disk.img 32M";
    let Some(_) = tool(&h, "mke2fs", &options.split(' ').collect::<Vec<_>>()) else {
        skip("e2fsprogs", "mke2fs and debugfs are not here");
        return;
    };
    let write = "journal_open\njournal_write -b 9000,9001,9002 /dev/urandom\njournal_close\n";
    fs::write(h.path("script"), write).expect("a script");
    tool(&h, "debugfs", &["-w", "-f", "script", "disk.img"]).expect("it is written");
    h.run("idiscard disk.img --apply --journal").refused(2, &["journal has to be replayed first"]);
    // The replay leaves it empty, and its blocks as they are.
    Command::new("e2fsck")
        .args(["-f", "-y", "disk.img"])
        .current_dir(h.path(""))
        .output()
        .expect("it runs");
    let json = h.run("idiscard disk.img --json -").good().json();
    let of = |json: &serde_json::Value, key: &str| {
        json["journal_blocks"][key].as_u64().expect("a number")
    };
    assert_eq!((of(&json, "all"), of(&json, "live")), (4095, 0), "{json:#}");
    let dead = of(&json, "dead");
    assert!(dead > 2, "{json:#}");
    says(
        &h.run("idiscard disk.img --apply").good().out,
        &["0 blocks were discarded", "`--journal`"],
    );
    let done = h.run("idiscard disk.img --apply --journal").good().out;
    says(&done, &[&format!("{dead} blocks were discarded")]);
    let json = h.run("idiscard disk.img --json -").good().json();
    assert_eq!((of(&json, "dead"), of(&json, "zeros")), (0, 4095));
    tool(&h, "e2fsck", &["-f", "-n", "disk.img"]).expect("it is sound");
}

/// Bytes of a file that are no holes.
fn held_by(path: &Path) -> u64 {
    let file = fs::File::open(path).expect("a file");
    let (mut at, mut held) = (0, 0);
    while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(data)).expect("there is one at the end");
        held += at - data;
    }
    held
}

/// What each block is for, and what of it the file holds: a removed file's blocks until they are discarded.
#[test]
fn what_the_blocks_hold_is_counted_and_what_the_file_holds_of_it() {
    let h = here();
    fs::File::create(h.path("disk.img")).expect("a file");
    // Blocks of a page, by which files have holes.
    let options = "-q -F -t ext4 -b 4096 -N 512 -O ^has_journal disk.img 16M";
    if tool(&h, "mke2fs", &options.split(' ').collect::<Vec<_>>()).is_none() {
        skip("e2fsprogs", "mke2fs and debugfs are not here");
        return;
    }
    let debugfs = |script: &str| {
        fs::write(h.path("script"), script).expect("a script");
        tool(&h, "debugfs", &["-w", "-f", "script", "disk.img"]).expect("it runs")
    };
    let pages = |options: &str| {
        let json = h.run(&format!("idiscard disk.img {options} --json -")).good().json();
        assert_eq!(json["pages_unread"], 0, "{json:#}");
        let kinds = json["pages"].as_object().expect("kinds").clone();
        let sum = |key: &str| -> u64 {
            kinds.values().map(|kind| kind[key].as_u64().expect("a number")).sum()
        };
        assert_eq!(sum("blocks"), 4096, "{json:#}");
        assert_eq!(sum("held_bytes"), held_by(&h.path("disk.img")), "{json:#}");
        move |kind: &str| {
            let of = |key: &str| kinds[kind][key].as_u64().expect("a number");
            (of("blocks"), of("held_bytes"))
        }
    };
    let empty = pages("");
    fs::write(h.path("source"), [7; 40 * 4096]).expect("a file");
    let source = h.path("source").display().to_string();
    debugfs(&format!("write {source} stays\nwrite {source} goes\n"));
    let both = pages("");
    assert_eq!(both("data"), (80, 80 * 4096));
    assert_eq!(both("freed"), (empty("freed").0 - 80, empty("freed").1));
    let goes = debugfs("blocks goes\nrm goes\n");
    let first = goes.lines().nth(1).and_then(|line| line.split_whitespace().next());
    let first: u64 = first.and_then(|first| first.parse().ok()).expect("a block");
    let one = pages("");
    assert_eq!(one("data"), (40, 40 * 4096));
    assert_eq!(one("freed"), (empty("freed").0 - 40, empty("freed").1 + 40 * 4096));
    // Some of them are discarded.
    let file = fs::OpenOptions::new().write(true).open(h.path("disk.img")).expect("a file");
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, (first + 3) * 4096, 10 * 4096).expect("a hole");
    let less = pages("");
    assert_eq!(less("freed"), (one("freed").0, one("freed").1 - 10 * 4096));
    assert_eq!(less("data"), one("data"));
    let text = h.run("idiscard disk.img").good().out;
    says(
        &text,
        &["what the blocks hold", "in the file", "ghosts", "it needs nothing of what they hold"],
    );
    let row = text.lines().find(|line| line.starts_with("  freed ")).expect("a row");
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[1], less("freed").0.to_string(), "{row}");
    assert_eq!(words[4], (less("freed").1 >> 10).to_string(), "{row}");
    // What `--apply` discards is counted as what it is then.
    let script: String = (0..60).map(|n| format!("symlink f{n} x\n")).collect();
    debugfs(&(script + &(0..60).map(|n| format!("rm f{n}\n")).collect::<String>()));
    let (dead, _) = pages("")("dead_inodes");
    assert!(dead > 0);
    assert_eq!(pages("--apply")("dead_inodes"), (0, 0));
}

#[test]
fn a_file_system_that_is_in_use_is_refused() {
    let h = here();
    let Some(()) = made(&h) else { return };
    for (value, says) in [("0", "was not unmounted"), ("3", "errors were found")] {
        let set = format!("set_super_value state {value}");
        tool(&h, "debugfs", &["-w", "-R", &set, "disk.img"]).expect("it is set");
        let before = fs::read(h.path("disk.img")).expect("an image");
        h.run("idiscard disk.img --apply").refused(2, &["disk.img", says, "e2fsck"]);
        assert!(fs::read(h.path("disk.img")).expect("an image") == before);
    }
    tool(&h, "debugfs", &["-w", "-R", "feature has_journal needs_recovery", "disk.img"])
        .expect("it is set");
    h.run("idiscard disk.img --apply").refused(2, &["journal has to be replayed first"]);
}

#[test]
fn what_is_no_ext4_is_refused_and_left_alone() {
    let h = here();
    h.run("idiscard none.img").refused(2, &["none.img"]);
    h.run("drive create drive.img --preset tiny").good();
    h.run("idiscard drive.img")
        .refused(2, &["drive.img", "a drive of flashlane", "flashlane serve"]);
    h.run("idiscard . --apply").refused(2, &["neither a file nor a block device"]);
    let head = |bytes: &[(usize, &[u8])]| {
        let mut all = vec![0; 1 << 20];
        for (at, part) in bytes {
            all[*at..][..part.len()].copy_from_slice(part);
        }
        all
    };
    for (bytes, say) in [
        (Vec::new(), "shorter than a superblock"),
        (head(&[]), "no magic number of ext4"),
        (head(&[(510, &[0x55, 0xaa])]), "partition table"),
        (head(&[(512, b"EFI PART")]), "partition table"),
        (head(&[(0, b"LUKS\xba\xbe")]), "LUKS"),
        (head(&[(0, b"XFSB")]), "XFS"),
        (head(&[(1024 + 0x38, &[0x53, 0xef])]), "superblock can't be right"),
        (head(&[(1024 + 0x38, &[0x53, 0xef]), (1024 + 0x60, &[0x8])]), "`journal_dev`"),
    ] {
        fs::write(h.path("a.img"), &bytes).expect("a file");
        h.run("idiscard a.img --apply").refused(2, &["a.img", say]);
        assert!(fs::read(h.path("a.img")).expect("it is there") == bytes, "{say}");
    }
}
