//! `flashlane drive`: images made, shown, checked, copied, refused.

use crate::harness::{Done, Here, here, says};

#[test]
fn a_drive_is_made_and_shown() {
    let h = here();
    let made = h.run("drive create a.img --preset tiny --set geometry.chunks_per_pu=8");
    assert!(made.good().out.contains("8 MiB"), "2 x 2 PUs of 8 chunks of 256 KiB");
    assert_eq!(h.files(), ["a.img"]);
    let text = h.run("drive info a.img").good().out.clone();
    says(&text, &["tiny", "uuid", "32 free", "commits", "format              2.2"]);
    let json = h.run("drive info a.img --json -").good().json();
    assert_eq!(json["raw_bytes"], 8 << 20);
    assert_eq!(json["chunks"]["free"], 32);
    let smart = h.run("drive smart a.img --json -").good().json();
    assert_eq!(smart["avail_spare"], 100);
    assert!(smart["data_units_written"].is_string() && smart["unsafe_shutdowns"].is_string());
    assert_eq!(smart["ocp"]["Physical media units written"]["lo"], 0);
    assert!(h.run("drive smart a.img").good().out.contains("Media dies offline"));
    // It has SLC mode; the other one has not.
    says(&text, &["endurance used      native 0.00%, at most 0.00%; SLC 0.00%, at most 0.00%"]);
    assert_eq!(smart["cell_modes"]["slc_erases"], 0);
    h.run("drive create b.img --preset disksim --set geometry.chunks_per_pu=64").good();
    assert!(!h.run("drive info b.img").good().out.contains("endurance"));
    assert!(!h.run("drive smart b.img --json -").good().out.contains("cell_modes"));
    assert!(h.run("drive check a.img").good().out.ends_with("good\n"));
    let presets = h.run("drive info --presets").good().out.clone();
    assert!(presets.contains("westlake") && presets.contains("16 GiB"), "{presets}");
}

#[test]
fn a_snapshot_keeps_the_uuid_and_a_clone_does_not() {
    let h = here();
    h.run("drive create a.img --preset tiny").good();
    let uuid =
        |file: &str| h.run(&["drive", "info", file, "--json", "-"]).good().json()["uuid"].clone();
    h.run("drive snapshot a.img s.img").good();
    h.run("drive clone a.img c.img").good();
    assert_eq!(uuid("a.img"), uuid("s.img"));
    assert_ne!(uuid("a.img"), uuid("c.img"));
    h.run("drive clone a.img c.img").refused(2, &["c.img", "exists"]);
}

#[test]
fn what_can_t_be_done_is_said_and_leaves_nothing() {
    let h = here();
    let refused = |args: &str, says: &[&str]| {
        h.run(&format!("drive {args}")).refused(2, says);
    };
    refused("create a.img --preset tinny", &["tinny", "tiny"]);
    refused("create a.img --set geometry.chanels=4", &["chanels"]);
    refused("create no/such/a.img --preset tiny", &["no/such/a.img", "No such file"]);
    refused("info none.img", &["none.img", "No such file"]);
    assert!(h.files().is_empty(), "{:?}", h.files());
    h.file("text.img", "hello");
    refused("info text.img", &["text.img", "not a drive image"]);
    refused("check text.img", &["not a drive image"]);
    let says = ["text.img: the file exists", "another name", "--force to replace it"];
    refused("create text.img --preset tiny", &says);
    h.run("drive create text.img --preset tiny --force").good();
    refused("info text.img --json text.img", &["replace"]);
    let mut bytes = std::fs::read(h.path("text.img")).unwrap();
    bytes[40_000] ^= 1;
    h.file("flipped.img", &bytes);
    refused("check flipped.img", &["flipped.img: ", "table row 49 (chunk 2 on PU 2)", "snapshot"]);
    bytes[40_000] ^= 1;
    bytes[30] ^= 1;
    h.file("header.img", &bytes);
    let Done { code, out, .. } = h.run("drive check header.img");
    let says = "header.img: the header is damaged: one of the two copies of it, at byte 0; `flashlane drive upgrade`";
    assert!(code == 1 && out.contains(says), "{out}");
    assert_eq!(std::fs::read(h.path("header.img")).unwrap(), bytes, "untouched");
    let mended = h.run("drive upgrade header.img");
    assert!(mended.code == 0 && mended.out.contains("whole again"), "{}", mended.out);
    h.run("drive check header.img").good();
}

/// No option makes a drive take the place of a pipe or a link, so none is recommended.
#[test]
fn a_drive_on_a_pipe_or_a_link_is_refused_without_advice_to_force() {
    let h = here();
    rustix::fs::mkfifoat(rustix::fs::CWD, h.path("pipe"), 0o600.into()).expect("a pipe");
    std::os::unix::fs::symlink("nothing", h.path("link")).expect("a link");
    std::fs::create_dir(h.path("folder")).expect("a folder");
    for (name, kind) in [("pipe", "a pipe"), ("link", "a symbolic link"), ("folder", "a folder")] {
        for force in ["", "--force"] {
            let done = h.run(&format!("drive create {name} --preset tiny {force}"));
            done.refused(2, &[&format!("{name}: "), kind, "name a regular file"]);
            assert!(!done.err.contains("--force"), "{done:?}");
        }
    }
    assert_eq!(h.files(), ["folder", "link", "pipe"]);
}

/// With several `--set` options, the message names the wrong one as it was typed.
#[test]
fn the_set_that_is_wrong_is_named() {
    let h = here();
    for (wrong, why) in [
        ("geometry.chanels=4", "`geometry.chanels`: unknown field"),
        ("geometry.ws_min=3", "ws_min 3 must divide"),
        ("geometry.sectors_per_page=3", "whole pages (3 sectors)"),
        ("geometry=5", "expected struct Geometry"),
        ("cells.slc.wsmin=3", "`cells.slc.wsmin`: unknown field"),
        ("link.to_device=1GB", "missing field `to_host`"),
        ("timing.erase=x", "`x` is not a number with a unit"),
    ] {
        let sets = ["--set", "geometry.chunks_per_pu=40", "--set", wrong];
        let of = |sets: &[&str]| {
            let done = h.run(&[&["drive", "create", "a.img", "--preset", "tiny"], sets].concat());
            done.refused(2, &[&format!("flashlane: --set {wrong}: [device]"), why]);
        };
        of(&sets);
        if wrong != "geometry=5" {
            of(&[&sets[2..], &sets[..2]].concat());
        }
    }
    h.run("drive create a.img --preset tinny").refused(2, &["flashlane: --preset tinny: "]);
}

/// A drive with a target that was written to.
fn written(chunks: &str) -> Here {
    let h = here();
    h.run(&["drive", "create", "a.img", "--preset", "tiny", "--set", chunks]).good();
    h.run("lnvm create a.img -n db -t pblk").good();
    h.file("w.fio", "[w]\nrw=write\nbs=64k\nsize=4m\n");
    h
}

/// A dead die is no fault of the image, and who checks it hears of it.
#[test]
fn a_check_says_that_a_die_is_dead() {
    let h = written("geometry.chunks_per_pu=64");
    h.run("drive inject a.img die_fail --at 'pu 1' --count 20").good();
    assert!(h.run("drive check a.img").good().out.ends_with("\ngood\n"));
    h.run("run w.fio --drive a.img");
    let said = h.run("drive check a.img").good().out;
    let held = said.split_once("a.img: the die of pu 1 is dead, with ").expect(&said).1;
    let held: u64 = held.split_once(" sectors on it\n").expect(&said).0.parse().expect(&said);
    assert!(held > 0 && said.ends_with("\ngood, with a dead die\n"), "{said}");
}

/// Damage is named with the file and the place on the drive, and no more of it than somebody reads.
#[test]
fn a_check_names_what_is_damaged() {
    let h = written("geometry.chunks_per_pu=64");
    h.run("run w.fio --drive a.img").good();
    let whole = std::fs::read(h.path("a.img")).expect("the image");
    // Contents lie behind the journal, in whole pages.
    let full =
        |page: &usize| whole[page * 4096..][..4096].iter().filter(|b| **b != 0).count() > 2048;
    let pages: Vec<usize> = (64..whole.len() / 4096).filter(full).collect();
    assert!(pages.len() > 500, "{}", pages.len());
    let check = |damaged: &[usize]| {
        let mut bytes = whole.clone();
        damaged.iter().for_each(|page| bytes[page * 4096 + 99] ^= 8);
        h.file("bad.img", bytes);
        let done = h.run("drive check bad.img");
        assert_eq!(done.code, 1, "{done:?}");
        done.out
    };
    let one = &pages[pages.len() / 2..][..1];
    let said = check(one);
    let line = said.lines().find(|line| line.starts_with("bad.img: pu ")).expect(&said);
    for part in [" chunk ", " sector ", " on PU ", &format!("at byte {}", one[0] * 4096)] {
        assert!(line.contains(part), "`{part}` is missing: {said}");
    }
    assert!(
        said.contains("bad.img: 1 sectors are damaged, or the host can't read them: "),
        "{said}"
    );
    let said = check(&pages[pages.len() / 2..][..40]);
    assert_eq!(said.matches("bad.img: pu ").count(), 16, "{said}");
    assert!(said.contains(" (16 of them are named): ") && said.ends_with("NOT good\n"), "{said}");
}
