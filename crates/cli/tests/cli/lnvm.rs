//! `flashlane lnvm` and `flashlane run --drive`: targets made, shown, run on, found again, refused.

use crate::harness::{Here, drive, here, says};
use flashlane_ocssd::{OpenImage, Ssd};
use flashlane_stack::kinds;

fn bytes(h: &Here) -> Vec<u8> {
    std::fs::read(h.path("a.img")).unwrap()
}

const WRITE: &str = "[w]\nrw=write\nbs=64k\nsize=4m\n";
const READ: &str = "[r]\nrw=read\nbs=64k\nsize=4m\n";

#[test]
fn a_target_is_made_run_on_and_found_again() {
    let h = drive();
    h.file("w.fio", WRITE);
    h.file("r.fio", READ);
    let made = h.run("lnvm create -d a.img -n db -t pblk -f").good();
    assert!(made.out.contains("target db: pblk on LUNs 0 to 3"), "{}", made.out);
    let list = h.run("lnvm list a.img").good().out;
    says(
        &list,
        &["Number of devices: 1", "Block manager", "gennvm", "Number of targets: 1", "created"],
    );
    let run = |job: &str, more: &[&str]| {
        let args = [&["run", job, "--drive", "a.img", "--json", "-"], more].concat();
        h.run(&args).good().json()
    };
    let first = run("w.fio", &["--target", "db"]);
    let of = |json: &serde_json::Value, key: &str| json["runs"][0][key].clone();
    assert_eq!(of(&first, "mount")["recovery"]["clean"], true, "{first:#}");
    assert_eq!(of(&first, "counter_laws"), "hold");
    // Its only target need not be named. What the first run wrote is there: reads reach the medium.
    let second = run("r.fio", &[]);
    assert_eq!(of(&second, "mount")["recovery"]["clean"], true);
    assert_eq!(
        (of(&second, "wrong_sectors"), of(&second, "failed_requests")),
        (0.into(), 0.into())
    );
    assert_eq!(of(&second, "prepared")["filled_sectors"], 0);
    assert!(second["runs"][0]["latency_breakdown_ns"].to_string().contains("die"));
    let p50 = of(&second, "latency_ns")["read"]["p50"].as_u64().unwrap();
    assert!(p50 > 10_000, "read from the medium, not unmapped: {p50} ns");
    let text = h.run("run w.fio --drive a.img").good().out;
    assert!(text.contains("target `db` of a.img: it had been stopped cleanly"), "{text}");
    // Removed and created again without -f: the data is found.
    h.run("lnvm remove a.img -n db").good();
    let again = h.run("lnvm create a.img -n db2 -t pblk --json -").good();
    assert_eq!(again.json()["recovery"]["clean"], true);
    assert_eq!(of(&run("r.fio", &[]), "wrong_sectors"), 0);
    assert!(h.run("drive check a.img").good().out.ends_with("good\n"));
}

#[test]
fn two_targets_share_a_drive_and_not_a_pu() {
    let h = drive();
    let create = |args: &str| h.run(&format!("lnvm create a.img {args}"));
    create("-n a -t pblk -b 0 -e 1 -f").good();
    let refused = |args: &str, says: &[&str]| {
        let before = bytes(&h);
        create(args).refused(2, says);
        // But for the moment of its closing, which every opening moves.
        let targets = h.run("lnvm list a.img --json -").good().json();
        assert_eq!(targets["devices"][0]["targets"].as_array().unwrap().len(), 1);
        assert_eq!(bytes(&h).len(), before.len());
    };
    refused("-n b -t pblk -b 1 -e 3", &["PU 1 is busy", "`a`"]);
    refused("-n a -t raw -b 2", &["a.img: there is a target `a`", "lnvm remove"]);
    refused("-n b -t raw -b 2 -e 4", &["PUs 2 to 4", "0 to 3"]);
    refused("-n b -t raw -b 3 -e 2", &["PUs 3 to 2"]);
    refused("-n b/c -t raw -b 2", &["b/c", "no name"]);
    refused("-n Ünï -t raw -b 2", &["Ünï", "letters"]);
    refused("-n b -t pblkk -b 2", &["did you mean `pblk`"]);
    refused("-n b -t qblk -b 2 --cores 0", &["--cores", "1..=65535"]);
    refused("-n b -t pblk -b 2 --cores 2", &["--cores is for", "qblk"]);
    refused("-n b -t pftl -b 2", &["whole"]);
    refused("-n b -t raw -b 2 -o 81", &["81", "80"]);
    refused("-n b -t raw -b -2", &["-2"]);
    refused("-n b -t pblk -b 2 -f --active-pus 9", &["9 active PUs"]);
    create("-n b -t raw -b 2").good();
    let info = h.run("lnvm info a.img --json -").good().json();
    assert_eq!(info["targets"][1]["lun_end"], 3);
    assert!(info["targets"][0]["pblk"]["write_amp_mileage"].is_string(), "{info:#}");
    h.run("run --drive a.img").refused(2, &["--target", "a, b"]);
    h.run("run --drive a.img --target c").refused(2, &["no target `c`", "a, b"]);
    h.run("lnvm remove a.img -n aa").refused(2, &["no target `aa`"]);
    h.run("lnvm factory a.img").refused(2, &["`a`", "remove it first"]);
    h.run("lnvm remove a.img -n a").good();
    h.run("lnvm remove a.img -n b").good();
    let erased = h.run("lnvm factory a.img").good().out;
    assert!(!erased.starts_with("0 chunks"), "{erased}");
    let log = h.run("lnvm chunk-log a.img").good().out;
    assert!(
        log.starts_with("Total chunks in namespace: 256\n") && !log.contains("CLOSED"),
        "{log}"
    );
    h.run("lnvm create a.img -n s -t pftl").good();
    h.file("w.fio", WRITE);
    let run = h.run("run w.fio --drive a.img --json -").good().json();
    assert_eq!(run["runs"][0]["counter_laws"], "hold");
    h.file("r.fio", READ);
    let run = h.run("run r.fio --drive a.img --json -").good().json();
    assert_eq!(run["runs"][0]["wrong_sectors"], 0);
    assert!(run["runs"][0]["latency_ns"]["read"]["p50"].as_u64().unwrap() > 10_000);
}

/// Wear leveling and scrubbing are settings of the target: they are in its log, and shown.
#[test]
fn wear_leveling_and_scrubbing_stay_with_the_target() {
    let h = drive();
    let create = |name: &str, more: &str| {
        h.run(&format!("lnvm create a.img -n {name} -t pblk -o 30 {more}"))
    };
    create("x", "--wear-spread 3").refused(2, &["--wear-leveling static"]);
    create("x", "--scrub-interval 1h").refused(2, &["--scrub patrol"]);
    create("x", "--scrub always").refused(2, &["off, reads, patrol"]);
    create("x", "--scrub patrol --scrub-interval 1us").refused(2, &["longer"]);
    let wear = "--wear-leveling static --wear-spread 3";
    create("db", &format!("{wear} --scrub patrol --scrub-interval 2h")).good();
    h.file("w.fio", WRITE);
    h.run("run w.fio --drive a.img --target db --json -").good();
    let info = h.run("lnvm info a.img -n db").good().out;
    says(&info, &["static spread:3 erases:", "patrol interval_ms:7200000 sectors:1"]);
}

/// A pblk that was removed is still on its PUs. A target of another type does not take its data for
/// its own: it is refused, and the pblk is found again.
#[test]
fn another_type_takes_nothing_over() {
    let h = drive();
    let create = |kind: &str, more: &str| {
        h.run(&format!("lnvm create a.img -n db -t {kind} --flush-records false {more}"))
    };
    create("pblk", "").good();
    h.file("w.fio", WRITE);
    h.run("run w.fio --drive a.img --target db --json -").good();
    h.run("lnvm remove a.img -n db").good();
    create("pftl", "").refused(2, &["pblk or QBLK", "`-t`", "`-f`"]);
    create("pblk", "").good();
    h.run("lnvm remove a.img -n db").good();
    create("pftl", "-f").good();
}

/// A recording does not replace the drive that it is made from.
#[test]
fn a_recording_keeps_its_drive() {
    let h = drive();
    h.run("lnvm create a.img -n db -t pblk").good();
    h.file("w.fio", WRITE);
    let says = ["--record would replace", "a.img", "another file"];
    h.run("run w.fio --drive a.img --record a.img").refused(2, &says);
    h.run("serve a.img --nbd unix:a.sock --record a.img").refused(2, &says);
    h.run("lnvm info a.img -n db").good();
}

/// What is asked for of a pblk that is there, and that it does not have, is refused and not forgotten.
#[test]
fn a_target_that_is_found_has_the_settings_that_it_was_made_with() {
    let h = drive();
    let create = |more: &str| h.run(&format!("lnvm create a.img -n db -t pblk {more}"));
    let all = "--wear-leveling static --wear-spread 3 --scrub patrol --scrub-interval 2h \
               --limiter off --active-pus 2 -o 40";
    create(all).good();
    let remove = || h.run("lnvm remove a.img -n db").good();
    remove();
    for (more, says) in [
        ("--wear-leveling off", "--wear-leveling static"),
        ("--wear-leveling static --wear-spread 4", "--wear-spread 3"),
        ("--scrub reads", "--scrub patrol"),
        ("--scrub patrol --scrub-interval 1h", "--scrub-interval 7200s"),
        (
            "--limiter pid",
            "--limiter off: leave --limiter out to take it over (`flashlane lnvm knobs`",
        ),
        ("--active-pus 4", "--active-pus 2"),
        ("--flush-records false", "--flush-records true"),
    ] {
        create(more).refused(2, &["a.img: the target on these PUs has", says, "-f"]);
    }
    // Nothing asked for, what it has, or another one.
    create("--wear-leveling static").good();
    remove();
    create(all).good();
    let info = h.run("lnvm info a.img -n db").good().out;
    assert!(info.contains("static spread:3") && info.contains("patrol interval_ms:7200000"));
    remove();
    create("-f --wear-leveling off").good();
    remove();
    // Types that have none of it.
    for kind in ["raw", "pftl"] {
        h.run(&format!("lnvm create a.img -n r -t {kind} --scrub reads"))
            .refused(2, &["--scrub is for targets of type pblk or qblk", kind]);
    }
}

/// The image `to` is a copy of `a.img` in which a unit that was flushed can't be read, of those that
/// the `skip`-th half full chunk holds; none when there is no such chunk.
fn with_a_bad_unit(h: &Here, to: &str, skip: usize) -> Option<()> {
    let log = h.run("lnvm chunk-log a.img --json -").good().json();
    let half = |(_, c): &(usize, &serde_json::Value)| {
        c["state"] == "open" && c["wp"].as_u64().is_some_and(|wp| (36..60).contains(&wp))
    };
    let chunks = log["chunks"].as_array().expect("chunks").iter().enumerate();
    let (at, _) = chunks.filter(half).nth(skip)?;
    h.run(&["drive", "snapshot", "a.img", to]).good();
    // 64 chunks on each PU.
    let at = format!("pu {} chunk {} sector 16", at / 64, at % 64);
    let inject = format!("drive inject {to} read_uncorrectable --at '{at}'");
    h.run(&format!("{inject} --times 1000000")).good();
    Some(())
}

/// A unit that was flushed and can't be read: the mount is refused, and the option that the message names
/// mounts it all the same.
#[test]
fn a_target_with_a_lost_unit_is_mounted_when_asked() {
    let h = drive();
    h.run("lnvm create a.img -n db -t pblk").good();
    h.file("r.fio", READ);
    let run = |image: &str, more: &[&str]| {
        h.run(&[&["run", "r.fio", "--drive", image, "--json", "-"], more].concat())
    };
    // Chunks that are half full when the process is killed are data's, or the log's, which has two copies.
    let mut tried = 0;
    let (lost, accepted, read) = 'lost: loop {
        let holder = h.hold("a.img", "db", "a.img.ctl");
        (0..10).for_each(|_| crate::harness::pause());
        holder.kill();
        for skip in 0.. {
            tried += 1;
            assert!(tried < 200, "no chunk of data is half full");
            let copy = format!("{tried}.img");
            let Some(()) = with_a_bad_unit(&h, &copy, skip) else { break };
            if run(&copy, &[]).code == 0 {
                continue;
            }
            let accepted = format!("accepted-{copy}");
            h.run(&["drive", "snapshot", &copy, &accepted]).good();
            let read = run(&accepted, &["--accept-lost"]);
            if read.code < 2 {
                break 'lost (copy, accepted, read);
            }
        }
    };
    let says = ["`db`", "write units can't be read", "`--accept-lost`", "`run --drive`"];
    run(&lost, &[]).refused(2, &says);
    let read = read.json()["runs"][0].clone();
    assert!(read["mount"]["recovery"]["lost_units"].as_u64() > Some(0), "{}", read["mount"]);
    // Which sectors is said: those of one unit.
    let unit = &read["mount"]["lost"]["runs"][0];
    assert_eq!((&unit["sector"], &unit["sectors"]), (&16.into(), &4.into()), "{}", read["mount"]);
    assert_eq!(
        (&read["mount"]["lost"]["sectors"], read["mount"]["lost"]["runs_left_out"].as_u64()),
        (&4.into(), Some(0))
    );
    let place = format!("pu {} chunk {} sectors 16 to 19", unit["pu"], unit["chunk"]);
    assert_eq!(read["counter_laws"], "hold");
    let read_lost = read["mount"]["lost"].clone();
    // From then on it is sound: what was in that unit is gone, and reads of it fail.
    let again = run(&accepted, &[]).json()["runs"][0].clone();
    assert_eq!(again["failed_requests"], read["failed_requests"]);
    let read = again;
    assert_eq!(read["mount"]["recovery"]["clean"], true);
    // Also where it is to be taken over.
    h.run(&["lnvm", "remove", &lost, "-n", "db"]).good();
    let create = ["lnvm", "create", &lost, "-n", "db", "-t", "pblk"];
    h.run(&create).refused(2, &[&lost, "`--accept-lost`", "-f"]);
    h.run(&[&create[..], &["--accept-lost", "-f"]].concat()).refused(2, &["--accept-lost", "-f"]);
    h.run(&["drive", "snapshot", &lost, "again.img"]).good();
    let taken = h.run(&[&create[..], &["--accept-lost", "--json", "-"]].concat()).good().json();
    assert!(taken["recovery"]["lost_units"].as_u64() > Some(0), "{taken:#}");
    assert_eq!(taken["lost"], read_lost, "{taken:#}");
    let said = h.run("lnvm create again.img -n db -t pblk --accept-lost").good().out;
    let says = format!("LOST: 4 sectors can't be read ({place}); reads of all");
    assert!(said.contains(&says), "`{says}` is missing: {said}");
    assert_eq!(run(&lost, &[]).json()["runs"][0]["mount"]["recovery"]["clean"], true);
    // Where they mean nothing.
    h.run("run r.fio --accept-lost").refused(2, &["--accept-lost", "--drive"]);
    h.run(&["lnvm", "remove", &lost, "-n", "db"]).good();
    h.run(&["lnvm", "create", &lost, "-n", "db", "-t", "pftl", "-f"]).good();
    run(&lost, &["--undo-discards"]).refused(2, &["`--undo-discards` is for pblk", "pftl"]);
    // A qblk is recovered by the same engine, and takes what its messages name.
    h.run(&["lnvm", "remove", &lost, "-n", "db"]).good();
    h.run(&["lnvm", "create", &lost, "-n", "db", "-t", "qblk", "-f"]).good();
    let read = run(&lost, &["--accept-lost", "--undo-discards"]).good().json();
    assert!(read["runs"][0]["mount"]["lost"].is_null(), "{read}");
}

/// A run is told to accept what is lost, too.
#[test]
fn a_run_accepts_what_is_lost() {
    let h = drive();
    h.run("lnvm create a.img -n s -t pftl").good();
    h.file("w.fio", WRITE);
    h.file("r.fio", READ);
    h.run("run w.fio --drive a.img").good();
    // Killed, it leaves no snapshot: the next mount looks for the records.
    let holder = h.hold("a.img", "s", "a.img.ctl");
    // The socket is there before the mount has ended.
    let written = || {
        let top = h.run("top a.img --once --json -").good().json();
        top["targets"][0]["stats"]["host_written"].as_u64().unwrap_or(0)
    };
    while written() == 0 {
        crate::harness::pause();
    }
    holder.kill();
    let at = "drive inject a.img read_uncorrectable --at 'sector 9'";
    h.run(&format!("{at} --times 1000000")).good();
    let run = ["run", "r.fio", "--drive", "a.img", "--json", "-"];
    h.run(&run).refused(2, &["sectors are lost", "`--accept-lost`"]);
    // What those sectors may have held is an error now.
    let accepted = h.run(&[&run[..], &["--accept-lost"]].concat());
    assert_eq!(accepted.code, 1, "{accepted:?}");
    let mount = accepted.json()["runs"][0]["mount"].clone();
    let lost = mount["lost"]["runs"].as_array().expect("places");
    assert!(
        !lost.is_empty() && lost.iter().all(|run| run["sector"] == 9 && run["sectors"] == 1),
        "{mount:#}"
    );
    assert_eq!(mount["lost"]["sectors"], lost.len());
}

/// A create that is refused for want of room has erased and programmed nothing, with -f and
/// without.
#[test]
fn a_refused_create_leaves_the_drive_as_it_was() {
    let h = here();
    h.run("drive create a.img --preset tiny --set geometry.chunks_per_pu=40").good();
    let refused = |args: &str, says: &[&str]| {
        let before = bytes(&h);
        h.run(&format!("lnvm create a.img {args}")).refused(2, says);
        assert!(bytes(&h) == before, "the image has changed: {args}");
    };
    let too_small = ["so small a device", "geometry.chunks_per_pu=128"];
    for kind in ["slc-tlc", "pftl"] {
        refused(&format!("-n s -t {kind}"), &too_small);
        refused(&format!("-n s -t {kind} -f"), &["more chunks per PU"]);
    }
    // A refused -f keeps the data of an earlier target.
    h.run("lnvm create a.img -n db -t pblk").good();
    h.file("w.fio", WRITE);
    h.run("run w.fio --drive a.img").good();
    h.run("lnvm remove a.img -n db").good();
    refused("-n s -t pftl -f", &["more chunks per PU"]);
    refused("-n db -t pblk -o 60", &["over-provisioning of its default"]);
    let again = h.run("lnvm create a.img -n db -t pblk --json -").good();
    assert_eq!(again.json()["recovery"]["clean"], true);
}

/// `list` mounts nothing, so it does not call a target ready. `info` says what is wrong with it.
#[test]
fn a_target_that_can_t_be_mounted_is_listed_as_created() {
    let h = drive();
    h.run("lnvm create a.img -n db -t pblk").good();
    for pu in 0..4 {
        h.run(&["drive", "inject", "a.img", "die_fail", "--at", &format!("pu {pu}")]).good();
    }
    h.file("r.fio", READ);
    h.run("run r.fio --drive a.img").refused(2, &["db"]);
    let info = h.run("lnvm info a.img").good().out;
    says(&info, &["  problem  "]);
    for text in [info, h.run("lnvm list a.img").good().out] {
        assert!(text.contains("created\n") && !text.contains("ready"), "{text}");
    }
}

/// A drive too small for a block SSD is that, and not one whose chunks have failed.
#[test]
fn a_drive_without_spare_for_a_block_ssd_is_too_small() {
    let h = here();
    h.run("drive create a.img --preset tiny").good();
    let create = ["lnvm", "create", "a.img", "-n", "s", "-t", "pftl"];
    h.run(&create).refused(2, &["`s`", "so small a device", "geometry.chunks_per_pu=128"]);
    h.run(&[&create[..], &["-f"]].concat()).refused(2, &["`s`", "more chunks per PU"]);
    h.run("lnvm create a.img -n q -t qblk").refused(2, &["too small"]);
    // What the README says of it.
    let made = h.run("lnvm create a.img -n db -t pblk").good().out;
    assert!(made.contains("2.91 MiB"), "{made}");
    let job = |size: &str| format!("[w]\nrw=randwrite\nbs=4k\nsize={size}\n");
    h.file("large.fio", job("32m"));
    h.file("all.fio", job("100%"));
    let run = |file: &str| h.run(&["run", file, "--drive", "a.img"]);
    run("large.fio").refused(2, &["the device's 2.91 MiB", "`size=100%`"]);
    run("all.fio").good();
}

#[test]
fn looking_writes_nothing() {
    let h = drive();
    h.run("lnvm create a.img -n db -t pblk -o 20").good();
    let before = bytes(&h);
    let info = h.run("lnvm info a.img").good().out;
    says(
        &info,
        &[
            "6 target type(s) registered.",
            "Type\tVersion",
            "rate_limiter",
            "write_luns",
            "gc_state",
            "padding_dist",
            "cleanly",
        ],
    );
    assert!(info.contains("num_channels         2") || info.contains("groups               2"));
    let id = h.run("lnvm id-ns a.img -H").good().out;
    assert!(id.starts_with("ver"), "{id}");
    h.run("lnvm id-ns a.img -n 2").refused(2, &["namespace 2"]);
    h.run("lnvm chunk-log a.img --json -").good().json();
    h.run("lnvm list a.img").good();
    h.run("lnvm info a.img -n nobody").refused(2, &["nobody", "db"]);
    assert!(bytes(&h) == before, "something was written");
}

/// The pages of both interfaces, field by field against what `id-ns` says as JSON.
#[test]
fn identify_pages_are_those_of_the_specification() {
    let h = drive();
    h.run("drive create w.img --preset westlake --set geometry.chunks_per_pu=4").good();
    let page = |drive: &str| {
        let raw = h.command(&["lnvm", "id-ns", drive, "-b"]).output().unwrap().stdout;
        assert_eq!(raw.len(), 4096);
        let json = h.run(&["lnvm", "id-ns", drive, "--json", "-"]).good().json();
        (raw, json)
    };
    let number = |page: &[u8], at: usize, bytes: usize| {
        page[at..at + bytes].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b))
    };
    let mut seen = Vec::new();
    for drive in ["a.img", "w.img"] {
        let (raw, json) = page(drive);
        seen.push(raw[0]);
        // Where it lies, bytes, and sysfs's name.
        let fields: &[(usize, usize, &str)] = match raw[0] {
            1 => &[
                (256 + 4, 1, "num_channels"),
                (256 + 5, 1, "num_luns"),
                (256 + 6, 1, "num_planes"),
                (256 + 8, 2, "num_blocks"),
                (256 + 10, 2, "num_pages"),
                (256 + 12, 2, "page_size"),
                (256 + 14, 2, "hw_sector_size"),
                (256 + 16, 2, "oob_sector_size"),
                (256 + 20, 4, "read_typ"),
                (256 + 24, 4, "read_max"),
                (256 + 28, 4, "prog_typ"),
                (256 + 36, 4, "erase_typ"),
                (256 + 44, 4, "multiplane_modes"),
                (256 + 48, 4, "media_capabilities"),
            ],
            _ => &[
                (16, 4, "capabilities"),
                (64, 2, "groups"),
                (66, 2, "punits"),
                (68, 4, "chunks"),
                (72, 4, "clba"),
                (128, 4, "ws_min"),
                (132, 4, "ws_opt"),
                (136, 4, "mw_cunits"),
                (140, 4, "maxoc"),
                (144, 4, "maxocpu"),
                (192, 4, "read_typ"),
                (200, 4, "write_typ"),
                (208, 4, "reset_typ"),
                (212, 4, "reset_max"),
            ],
        };
        for (at, bytes, name) in fields {
            assert_eq!(Some(number(&raw, *at, *bytes)), json[*name].as_u64(), "{drive}: {name}");
        }
        if raw[0] == 1 {
            // Starts and lengths of the six address fields cover the bits once.
            let pairs: Vec<(u8, u8)> = raw[12..24].chunks(2).map(|p| (p[0], p[1])).collect();
            let mut by_start = pairs.clone();
            by_start.sort_unstable();
            let mut at = 0;
            for (start, bits) in by_start {
                assert_eq!(start, at, "{pairs:?}");
                at += bits;
            }
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [1, 2], "both interfaces");
    h.run("lnvm id-ns a.img -b -H").refused(2, &["--human-readable"]);
    let said = h.run("lnvm init -d a.img").good().out;
    assert_eq!(said, "Successfully initialized device: a.img (gennvm)\n");
    h.run("lnvm init a.img -m sysblk").refused(2, &["sysblk", "gennvm"]);
    h.run("lnvm init none.img").refused(2, &["none.img"]);
}

#[test]
fn blocks_are_marked_and_unmarked() {
    let h = drive();
    let mark = |args: &str| h.run(&format!("lnvm diag-set-bbtbl a.img {args}"));
    let said = mark("-c 1 -l 0 -b 7 -v 8").good().out;
    assert_eq!(said, "Updating: Ch.: 1 LUN: 0 Plane: 0 Block: 7 -> 8\n");
    let offline = || h.run("lnvm chunk-log a.img").good().out.matches("OFFLINE").count();
    assert_eq!(offline(), 1);
    mark("-c 2").refused(2, &["channel 2", "0 to 1"]);
    mark("-b 64").refused(2, &["block 64"]);
    mark("-v 32").refused(2, &["32", "no mark"]);
    h.run("lnvm factory a.img -e -s").good();
    assert_eq!(offline(), 0);
    h.run("lnvm create a.img -n r -t raw").good();
    mark("-v 8").refused(2, &["`r`"]);
}

#[test]
fn what_is_no_drive_or_not_ours_is_said() {
    let h = drive();
    h.file("text.img", "hello");
    let refused = |args: &str, says: &[&str]| h.run(args).refused(2, says);
    refused("lnvm list text.img", &["text.img", "not a drive image"]);
    refused("lnvm list none.img", &["none.img", "No such file"]);
    refused("lnvm create -n a -t raw", &["name the drive"]);
    refused("run --drive text.img", &["text.img", "not a drive image"]);
    refused("run --drive a.img", &["a.img", "lnvm create"]);
    refused("run --drive a.img --device tiny", &["--device"]);
    h.run("lnvm create a.img -n db -t pblk").good();
    refused("run --drive a.img --json a.img", &["replace"]);
    h.file("big.fio", "[w]\nrw=write\nbs=64k\nsize=400m\n");
    refused("run big.fio --drive a.img", &["db"]);
    // A run that could not be done leaves the target as it was.
    let info = h.run("lnvm info a.img").good().out;
    assert!(info.contains("stopped              cleanly"), "{info}");
    // Too small for a pblk.
    h.run("drive create s.img --preset tiny --set geometry.chunks_per_pu=2").good();
    refused("lnvm create s.img -n db -t pblk", &["db", "too small"]);
    let list = h.run("lnvm list s.img").good().out;
    assert!(list.contains("Number of targets: 0"), "{list}");
    // Who holds it is said.
    let _held = Ssd::open_image(&h.path("a.img"), &OpenImage::default()).unwrap();
    let me = format!("process {}", std::process::id());
    refused("lnvm create a.img -n x -t raw", &["in use by", &me]);
    refused("run --drive a.img", &["in use by"]);
}

/// QBLK on a drive: created for three cores, used, found again with what it was created with; what lies
/// there is not taken for the other kind.
#[test]
fn qblk_lives_on_a_drive() {
    let h = here();
    h.run("drive create q.img --preset tiny --set geometry.chunks_per_pu=64").good();
    let create = |kind: &str, more: &[&str]| {
        let mut args = vec!["lnvm", "create", "q.img", "-n", "q", "-t", kind];
        args.extend(more);
        h.run(&args)
    };
    create("qblk", &["-f", "--cores", "3"]).good();
    h.file("w.fio", "[w]\nrw=randwrite\nbs=4k\nsize=8M\nnumjobs=3\nfsync=64\nverify=crc32c\n");
    h.run("run w.fio --drive q.img --target q").good();
    let info = h.run("lnvm info q.img").good().out;
    assert!(info.contains("qblk"), "{info}");
    // A ring for each of the three cores, whoever looks.
    assert_eq!(info.matches("flush_point:").count(), 3, "{info}");
    h.run("lnvm remove q.img -n q").good();
    create("pblk", &[]).refused(2, &["PUs 0 to 3 is of type qblk", "-t qblk"]);
    create("qblk", &[]).good();
}

/// Every type of target that there is stands in the help, in what `info` lists and in the cookbook.
#[test]
fn every_type_of_target_is_shown() {
    let h = here();
    h.run("drive create a.img --preset tiny").good();
    let cookbook = include_str!("../../../../docs/COOKBOOK.md");
    let table = cookbook.split_once("| on a drive | |").expect("the table of types").1;
    let table = table.split_once("\n\n").expect("it ends").0;
    let help = h.run("lnvm create --help").good().out;
    let help = help.split_once("Types: ").expect("types are explained").1;
    let info = h.run("lnvm info a.img").good().out;
    let json = h.run("lnvm info a.img --json -").good().json();
    let types = json["types"].as_array().expect("a list");
    let says = ["raw, pblk, qblk, pftl, slc-tlc, sftl"];
    h.run("lnvm create a.img -n x -t pblck").refused(2, &says);
    for name in kinds::target_names() {
        assert!(table.contains(name), "{name} is not in the cookbook's table:\n{table}");
        assert!(help.contains(&format!("{name} (")), "{name} is not in the help:\n{help}");
        assert!(info.contains(&format!("\n{name}\t(1,0,0)\n")), "{name}:\n{info}");
        assert!(types.iter().any(|of| of["type"] == name), "{name}: {types:?}");
    }
}
