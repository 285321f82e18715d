//! `idiscard` as a person uses it: on an image by `mke2fs`, and on what is no ext4.

use crate::harness::{Here, here, says};
use flashlane_testkit::skip;
use std::fs;
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
