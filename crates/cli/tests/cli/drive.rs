//! `flashlane drive`: images made, shown, checked, copied, refused.

use crate::harness::{Done, here};

#[test]
fn a_drive_is_made_and_shown() {
    let h = here();
    let made = h.run(&[
        "drive",
        "create",
        "a.img",
        "--preset",
        "tiny",
        "--set",
        "geometry.chunks_per_pu=8",
    ]);
    assert!(made.good().out.contains("8 MiB"), "2 x 2 PUs of 8 chunks of 256 KiB");
    assert_eq!(h.files(), ["a.img"]);
    let text = h.run(&["drive", "info", "a.img"]).good().out.clone();
    for part in ["tiny", "uuid", "32 free", "commits", "format              2.0"] {
        assert!(text.contains(part), "`{part}` is missing:\n{text}");
    }
    let json = h.run(&["drive", "info", "a.img", "--json", "-"]).good().json();
    assert_eq!(json["raw_bytes"], 8 << 20);
    assert_eq!(json["chunks"]["free"], 32);
    let smart = h.run(&["drive", "smart", "a.img", "--json", "-"]).good().json();
    assert_eq!(smart["avail_spare"], 100);
    assert!(smart["data_units_written"].is_string() && smart["unsafe_shutdowns"].is_string());
    assert_eq!(smart["ocp"]["Physical media units written"]["lo"], 0);
    assert!(h.run(&["drive", "smart", "a.img"]).good().out.contains("Media dies offline"));
    assert!(h.run(&["drive", "check", "a.img"]).good().out.ends_with("good\n"));
    let presets = h.run(&["drive", "info", "--presets"]).good().out.clone();
    assert!(presets.contains("westlake") && presets.contains("16 GiB"), "{presets}");
}

#[test]
fn a_snapshot_keeps_the_uuid_and_a_clone_does_not() {
    let h = here();
    h.run(&["drive", "create", "a.img", "--preset", "tiny"]).good();
    let uuid =
        |file: &str| h.run(&["drive", "info", file, "--json", "-"]).good().json()["uuid"].clone();
    h.run(&["drive", "snapshot", "a.img", "s.img"]).good();
    h.run(&["drive", "clone", "a.img", "c.img"]).good();
    assert_eq!(uuid("a.img"), uuid("s.img"));
    assert_ne!(uuid("a.img"), uuid("c.img"));
    h.run(&["drive", "clone", "a.img", "c.img"]).refused(2, &["c.img", "exists"]);
}

#[test]
fn what_can_t_be_done_is_said_and_leaves_nothing() {
    let h = here();
    let refused = |args: &[&str], says: &[&str]| {
        h.run(&[&["drive"], args].concat()).refused(2, says);
    };
    refused(&["create", "a.img", "--preset", "tinny"], &["tinny", "tiny"]);
    refused(&["create", "a.img", "--set", "geometry.chanels=4"], &["chanels"]);
    refused(&["create", "no/such/a.img", "--preset", "tiny"], &["no/such/a.img", "No such file"]);
    refused(&["info", "none.img"], &["none.img", "No such file"]);
    assert!(h.files().is_empty(), "{:?}", h.files());
    h.file("text.img", "hello");
    refused(&["info", "text.img"], &["text.img", "not a drive image"]);
    refused(&["check", "text.img"], &["not a drive image"]);
    let says = ["text.img: the file exists", "another name", "--force to replace it"];
    refused(&["create", "text.img", "--preset", "tiny"], &says);
    h.run(&["drive", "create", "text.img", "--preset", "tiny", "--force"]).good();
    refused(&["info", "text.img", "--json", "text.img"], &["replace"]);
    let mut bytes = std::fs::read(h.path("text.img")).unwrap();
    bytes[40_000] ^= 1;
    h.file("flipped.img", &bytes);
    refused(&["check", "flipped.img"], &["table row", "snapshot"]);
    bytes[40_000] ^= 1;
    bytes[30] ^= 1;
    h.file("header.img", &bytes);
    let Done { code, out, .. } = h.run(&["drive", "check", "header.img"]);
    assert!(code == 1 && out.contains("one of the two copies"), "{out}");
    assert_eq!(std::fs::read(h.path("header.img")).unwrap(), bytes, "untouched");
    let mended = h.run(&["drive", "upgrade", "header.img"]);
    assert!(mended.code == 0 && mended.out.contains("whole again"), "{}", mended.out);
    h.run(&["drive", "check", "header.img"]).good();
}
