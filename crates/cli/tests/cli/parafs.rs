//! File systems as a person makes, mounts and checks them: what can't be is refused with what would do.

use crate::harness::{Folder, here, pause, says};
use crate::serve::{Client, SECTOR, pattern, stopped};
use flashlane_testkit::skip;

/// The number that a message says suffices.
fn number(text: &str, key: &str) -> u32 {
    let (_, from) = text.split_once(key).unwrap_or_else(|| panic!("no `{key}`: {text}"));
    let digits: String = from.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number behind `{key}`: {text}"))
}

/// A drive without room for a file system stays as it is, and the number of chunks that is said is the fewest
/// that do.
#[test]
fn a_drive_that_is_too_small_is_told_what_suffices() {
    let key = "geometry.chunks_per_pu=";
    for preset in ["parafs --set geometry.channels=8", "tiny"] {
        let h = here();
        let create = |image: &str, n: u32| {
            h.run(&format!("drive create {image} --preset {preset} --set {key}{n}")).good();
        };
        create("t.img", 8);
        let before = std::fs::read(h.path("t.img")).expect("it is there");
        let refused = h.run("mkfs t.img");
        refused.refused(2, &["t.img", "too small for a file system", "8 chunks per PU", key]);
        assert!(!refused.err.contains("-f"), "{}", refused.err);
        let enough = number(&refused.err, key);
        assert!(std::fs::read(h.path("t.img")).expect("it is there") == before, "{preset}");
        create("short.img", enough - 1);
        let short = h.run("mkfs short.img");
        short.refused(2, &["too small for a file system"]);
        assert_eq!(number(&short.err, key), enough);
        create("good.img", enough);
        says(&h.run("mkfs good.img").good().out, &["a file system of", "a new one"]);
        let fsck = h.run("fsck good.img").good();
        says(&fsck.out, &["nothing wrong found; contents of files are not read"]);
        // Nothing has been written there yet.
        let dump = h.run("dump good.img segment 3").good();
        says(&dump.out, &["segment 3 of region", "it was never written"]);
    }
}

/// What is written on a target is written over only where that is asked for, and it is said what it
/// is.
#[test]
fn mkfs_refuses_a_target_that_holds_something() {
    for kind in ["pblk", "sftl"] {
        let h = here();
        h.run("drive create t.img --preset tiny --set geometry.chunks_per_pu=400").good();
        h.run(&format!("lnvm create t.img -n db -t {kind}")).good();
        if kind == "pblk" {
            let server = h.hold_with("serve t.img --null-latency --nbd unix:s", "s");
            let mut c = Client::connect(&h.path("s"), "db");
            assert_eq!(c.write(0, 1 << 20, &pattern(1, 1)), 0);
            drop(c);
            stopped(server);
            let says = ["db holds data of no kind that is known", "4 KiB written", "--force"];
            h.run("mkfs t.img").refused(2, &says);
            let server = h.hold_with("serve t.img --null-latency --nbd unix:s", "s");
            let mut c = Client::connect(&h.path("s"), "db");
            let mut magic = vec![0; SECTOR];
            magic[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
            assert_eq!(c.write(0, 0, &magic), 0);
            assert_eq!(c.read(1 << 20, SECTOR), pattern(1, 1), "it is as it was");
            drop(c);
            stopped(server);
            h.run("mkfs t.img").refused(2, &["db holds an ext2, ext3 or ext4 file system"]);
            h.run("mkfs t.img --force").good();
        } else {
            h.run("mkfs t.img").good();
        }
        h.run("mkfs t.img").refused(2, &["has a ParaFS file system already", "--force"]);
        h.run("mkfs t.img --force").good();
    }
}

/// On a target that somebody made, too, which stays.
#[test]
fn a_target_that_is_too_small_stays_as_it_is() {
    let h = here();
    let of = "drive create t.img --preset tiny --set geometry.chunks_per_pu";
    h.run(&format!("{of}=128")).good();
    h.run("lnvm create t.img -n mine -t sftl").good();
    let refused = h.run("mkfs t.img");
    refused.refused(2, &["mine", "too small for a file system", "geometry.chunks_per_pu="]);
    let enough = number(&refused.err, "geometry.chunks_per_pu=");
    says(&h.run("lnvm list t.img").good().out, &["mine"]);
    h.run(&format!("{of}={enough} --force")).good();
    h.run("lnvm create t.img -n mine -t sftl").good();
    h.run("mkfs t.img").good();
}

const EXPERIMENT: &str = "name = \"small\"\n[device]\npreset = \"tiny\"\n[device.geometry]\n\
    chunks_per_pu = 128\n[[target]]\nkind = \"parafs\"\nmeta_percent = 12\nspare_segments = 3\n\
    [[target]]\nkind = \"pftl\"\nname = \"f2fs\"\n[target.parafs]\npolicy = \"f2fs\"\n\
    [[workload]]\nfiles = \"postmark\"\nnumber = 50\ntransactions = 100\n";

/// What an experiment can't have says which of its keys would do, and it does.
#[test]
fn an_experiment_is_told_which_key_would_do() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    let check = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", *set]);
        h.run(&["check", "e.toml"].into_iter().chain(sets).collect::<Vec<_>>())
    };
    let refused = |set: &str, says: &[&str]| {
        let done = check(&[set]);
        assert_eq!(done.code, 2, "{set}: {done:?}");
        crate::harness::says(&done.err, says);
        done.err
    };
    let key = "chunks_per_pu = ";
    let said = refused("device.geometry.chunks_per_pu=9", &["too small for a file system", key]);
    let enough = format!("device.geometry.chunks_per_pu={}", number(&said, key));
    let less = format!("device.geometry.chunks_per_pu={}", number(&said, key) - 1);
    let small = ["check", "e.toml", "--target", "parafs", "--set", "workload.0.number=2", "--set"];
    h.run(&[&small[..], &[&enough]].concat()).good();
    refused(&less, &["too small for a file system", key]);
    let said = refused("target.0.meta_percent=1", &["in-place region", "too small"]);
    check(&[&format!("target.0.meta_percent={}", number(&said, "meta_percent = "))]).good();
    let said = refused("target.0.spare_segments=100000", &["`spare_segments` is 100000"]);
    assert!(!said.contains("more chunks"), "{said}");
    let most = format!("target.0.spare_segments={}", number(&said, "at most "));
    check(&[&most, "workload.0.number=2"]).good();
    refused("device.geometry.pages_per_block=4", &["8 to 16384", "`geometry.pages_per_block`"]);
    let many = "workload.0.number=1000000";
    refused(many, &["the files of", "`number`", "`subdirectories`", "chunks_per_pu"]);
    let policy = refused("target.1.policy=f2fs", &["`policy` is a key of the file system"]);
    says(&policy, &["[target.parafs]", "target.NUMBER.parafs.policy"]);
    let tortured = h.run("torture e.toml --target parafs --seconds 1");
    tortured.refused(2, &["target `parafs` has a file system", "--target parafs", "--policy"]);
}

/// What is wrong is said in the words of whoever wrote it.
#[test]
fn what_is_refused_names_its_own_keys() {
    let h = here();
    let sized = |capacity: &str| {
        EXPERIMENT.replace(
            "[device.geometry]\nchunks_per_pu = 128",
            &format!("capacity = \"{capacity}\""),
        )
    };
    h.file("small.toml", sized("1MiB"));
    let done = h.run("check small.toml");
    assert_eq!(done.code, 2, "{done:?}");
    crate::harness::says(&done.err, &["`f2fs`", "too small for a file system", "capacity = \""]);
    assert!(!done.err.contains("gc_low_water_lines"), "{}", done.err);
    let (_, from) = done.err.split_once("capacity = \"").expect("the remedy is there");
    h.file("e.toml", sized(from.split('"').next().unwrap_or_default()));
    h.run("check e.toml --target parafs --set workload.0.number=2").good();
    h.file("e.toml", EXPERIMENT);
    let kind = h.run("check e.toml --set target.0.kind=pftl --set target.0.name=plain");
    assert!(kind.err.contains("meta_percent"), "{}", kind.err);
    h.file("e2.toml", EXPERIMENT.replace("spare_segments = 3\n", ""));
    let kind = h.run("check e2.toml --set target.0.kind=sftl");
    kind.refused(2, &["`files` needs a file system", "`parafs = true`"]);
    h.run("drive create d.img --preset tiny --set geometry.chunks_per_pu=64").good();
    h.run("lnvm create d.img -n mine -t pftl").good();
    h.run("run e.toml --drive d.img").refused(2, &["a workload of files", "leave --drive out"]);
    h.run("run e.toml --seed -1").refused(2, &["a whole number from 0 to 2^63 - 1"]);
    h.run("torture --target pblk --seed -1").refused(2, &["a whole number from 0 to 2^64 - 1"]);
    h.file("p.html", "<!doctype html>");
    h.run("compare p.html").refused(2, &["p.html", "this is a page", "--json"]);
}

/// Targets of the experiment are picked as they are: by name, or by type where they have none.
#[test]
fn a_target_without_a_name_is_picked_by_its_type() {
    let h = here();
    h.file("e.toml", EXPERIMENT);
    let run = |args: &str| h.run(&format!("run e.toml {args} --json -")).good().json();
    let one = run("--target parafs");
    assert_eq!(one["runs"].as_array().map(Vec::len), Some(1));
    assert!(one.to_string().contains("\"spare_segments\":3"), "{one:#}");
    assert_eq!(run("--target parafs --target f2fs")["runs"].as_array().map(Vec::len), Some(2));
    let slip = h.run("run e.toml --target f2sf");
    slip.refused(2, &["did you mean `f2fs`?", "has `parafs`, `f2fs`", "pblk"]);
}

/// A repair changes nothing while pages can't be read. With `--accept-lost` it gives them up.
#[test]
fn a_repair_gives_up_only_what_it_is_told_to() {
    let h = here();
    h.run("drive create t.img --preset tiny --set geometry.chunks_per_pu=24").good();
    h.run("mkfs t.img").good();
    let mut refused = 0;
    for pu in 0..4 {
        let times = "--times 1000000000";
        h.run(&format!("drive inject t.img read_uncorrectable --at 'pu {pu}' {times}")).good();
        let done = h.run("fsck t.img --repair");
        if done.code != 0 {
            assert_eq!(done.code, 2, "{done:?}");
            refused += u32::from(done.err.contains("`--accept-lost`"));
        }
        h.run("drive inject t.img --clear").good();
        says(&h.run("fsck t.img").good().out, &["1 directories", "nothing wrong found"]);
    }
    assert!(refused > 0, "the root lies somewhere");
    h.run("fsck t.img --accept-lost").refused(2, &["--repair"]);
}

/// What a mount leaves that is killed is cleared away by the next one, which says what it found.
#[test]
fn a_mount_that_was_killed_is_mounted_again() {
    let h = Folder::of(here());
    let create = "drive create t.img --preset tiny --set geometry.chunks_per_pu=24";
    h.run(create).good();
    h.run("mkfs t.img").good();
    std::fs::create_dir(h.path("mnt")).expect("a folder");
    let mount = "mount t.img mnt --null-latency";
    let is_mounted = || {
        let list = std::fs::read_to_string("/proc/self/mountinfo").expect("it is everywhere");
        let at = format!(" {} ", h.path("mnt").canonicalize().unwrap_or(h.path("mnt")).display());
        list.lines().any(|line| line.contains(&at))
    };
    let mut probe = h.hold_until(h.command(mount), || true);
    while !is_mounted() {
        if !probe.is_running() {
            skip("fuse", probe.output().err.trim());
            return;
        }
        pause();
    }
    std::fs::write(h.path("mnt/kept"), b"mine").expect("it is mounted");
    let kept = std::fs::File::open(h.path("mnt/kept")).expect("it is there");
    kept.sync_all().expect("it is durable");
    drop(kept);
    probe.kill();
    assert!(std::fs::metadata(h.path("mnt/kept")).is_err(), "nobody answers");
    let read = || std::fs::read(h.path("mnt/kept")).is_ok_and(|bytes| bytes == b"mine");
    let mut again = h.hold_until(h.command(mount), read);
    again.signal("-INT");
    let done = again.output().good();
    says(&done.err, &["it was not unmounted"]);
    h.run("fsck t.img").good();
}
