//! Tests of experiment files: what is accepted, and what is said about the rest.

use super::*;
use crate::workload::{Amount, Sizes};
use flashlane_base::Ns;
use proptest::prelude::{prop, prop_assert, proptest};

fn base() -> Base {
    Base { folder: PathBuf::new() }
}

fn parse(text: &str, sets: &[&str]) -> Result<Experiment, String> {
    let sets: Vec<Change> = sets.iter().map(|s| Change::Set(s.to_string())).collect();
    changed(text, &sets)
}

fn changed(text: &str, changes: &[Change]) -> Result<Experiment, String> {
    Experiment::parse("e.toml", text, &base(), changes).map_err(|e| e.to_string())
}

const GOOD: &str = r#"
name = "x"
[device]
preset = "tiny"
queue = "read_first"
[device.geometry]
chunks_per_pu = 99
[[target]]
kind = "pblk"
active_pus = 2
[[target]]
kind = "pftl"
over_provisioning_percent = 20
[[workload]]
rw = "randwrite"
bs = "8KiB"
size = "50%"
runtime = "2s"
[[workload]]
trace = "bundled:ext4-sqlite-git"
replay = "closed"
[run]
seed = 7
fill = "80%"
overwrite = "steady"
"#;

#[test]
fn an_experiment_is_read_with_its_overrides() {
    let e = parse(GOOD, &[]).unwrap();
    assert_eq!((e.name.as_str(), e.run.seed), ("x", 7));
    assert_eq!(e.targets[0].stack.device.spec.geometry.chunks_per_pu, 99);
    assert_eq!(e.targets[0].stack.device.spec.geometry.channels, 2, "the rest is the preset's");
    assert_eq!(e.targets[0].name, "pblk, 2 active PUs");
    let Workload::Job(job) = &e.workloads[0] else { panic!("{:?}", e.workloads[0]) };
    assert_eq!((job.bs[1].clone(), job.size), (Sizes::fixed(2), Some(Amount::Percent(50))));
    assert_eq!(job.runtime, Some(Ns::from_secs(2)));
    assert_eq!((e.run.fill, e.run.overwrite), (Fill::Percent(80), Overwrite::Steady));
}

#[test]
fn sets_change_what_the_file_says() {
    let sets =
        ["run.seed=9", "target.1.name=ssd", "workload.0.bs=64KiB", "device.geometry.channels=4"];
    let e = parse(GOOD, &sets).unwrap();
    assert_eq!((e.run.seed, e.targets[1].name.as_str()), (9, "ssd"));
    assert_eq!(e.targets[0].stack.device.spec.geometry.channels, 4);
    for (set, says) in [
        ("run.sede=9", "did you mean `seed`"),
        ("target.name=x", "a list: say which"),
        ("target.7.name=x", "entries 0 to 1"),
        ("nonsense", "write it"),
        ("name.x=1", "not a table"),
        ("run.seed=many", "whole number"),
    ] {
        let said = parse(GOOD, &[set]).unwrap_err();
        assert!(said.contains(&format!("--set {set}")) && said.contains(says), "{said}");
    }
}

#[test]
fn options_of_the_command_line_change_it_too() {
    let changes = [
        Change::Device("peers-16g".into()),
        Change::Targets(vec!["pblk:4".into(), "pftl".into()]),
        Change::Store("memory".into()),
        Change::Seed(12),
        Change::ScaleToDevice,
    ];
    let e = changed(GOOD, &changes).unwrap();
    let d = &e.targets[0].stack.device;
    assert_eq!(d.spec.name, "peers-16g");
    assert_ne!(d.spec.geometry.chunks_per_pu, 99, "the old dimensions are gone");
    assert!(d.options.queue.is_some(), "how it is used stays");
    assert_eq!(
        e.targets.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(),
        ["pblk, 4 active PUs", "block SSD (pftl)"]
    );
    assert!(matches!(&e.workloads[1], Workload::Trace(t) if t.scale_to_device));
    for (change, says) in [
        (
            Change::Device("p37000".into()),
            "--device p37000: [device]: no device preset `p37000`; did you mean `p3700`?",
        ),
        (Change::Targets(vec!["pftl:4".into()]), "is no target"),
        (Change::Targets(vec!["pbkl".into()]), "did you mean `pblk`"),
        (Change::Targets(vec![String::new()]), "needs a name or a type"),
        (Change::Set("target.0.name=".into()), "`name` is empty"),
        (Change::Store("disk".into()), "stamps, memory"),
        (Change::Seed(u64::MAX), "2^63"),
    ] {
        let said = changed(GOOD, &[change]).map(|_| ()).unwrap_err();
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_key_of_another_kind_or_program_is_known_as_such() {
    let text = "[device]\npreset = \"tiny\"\n[[target]]\nkind = \"pblk\"\npolicy = \"parafs\"\n\
                [[workload]]\nfiles = \"ycsb\"\nnfiles = 4\nnumber = 5\nnthread = 2\n\
                [[workload]]\nfiles = \"mobibench\"\nrows = 9\n";
    let said = parse(text, &[]).unwrap_err();
    for part in [
        "e.toml:5:1: [[target]] 0: unknown key `policy`: it goes with kind = parafs; known: ",
        "unknown key `nfiles`: it goes with files = fileserver, varmail, webserver, webproxy,",
        "unknown key `number`: it goes with files = postmark; known: ",
        "unknown key `nthread`; did you mean `nthreads`?",
        "unknown key `rows`: it goes with mode = sqlite; known: ",
    ] {
        assert!(said.contains(part), "{part}\n---\n{said}");
    }
}

/// What is wrong with a device is said where the value comes from.
#[test]
fn a_change_of_a_device_is_what_is_wrong_with_it() {
    for (set, place) in [
        ("device.geometry.channels=0", "--set device.geometry.channels=0: [device][geometry]: "),
        ("device.geometry.planes=64", "--set device.geometry.planes=64: [device][geometry]: "),
        ("device.geometry.ws_opt=7", "[device][geometry]: device `tiny`, [geometry]: write sizes"),
        ("device.cells.bits=9", "--set device.cells.bits=9: [device][cells]: "),
    ] {
        let said = parse(GOOD, &[set]).map(|_| ()).unwrap_err();
        assert!(said.contains(place), "{set}: {said}");
    }
}

#[test]
fn everything_wrong_is_said_at_once_with_its_place() {
    let text = "name = 3\n[device]\npreset = \"tinny\"\nstor = \"stamps\"\n[[target]]\nkind = \"pblk\"\n\
                active_pu = 2\n[[workload]]\nrw = \"randwrite\"\nbs = \"512B\"\nio_depth = 3\n\
                [run]\nfill = \"lots\"\n[extra]\n";
    let said = parse(text, &[]).unwrap_err();
    for part in [
        "e.toml:1:1: `name` must be a string",
        "e.toml:3:1: [device]: no device preset `tinny`; did you mean `tiny`?",
        "e.toml:4:1: [device]: unknown key `stor`; did you mean `store`?",
        "  stor = \"stamps\"",
        "e.toml:7:1: [[target]] 0: unknown key `active_pu`; did you mean `active_pus`?",
        "e.toml:10:1: [[workload]] 0: `bs` takes a multiple of 4 KiB",
        "did you mean `iodepth`?",
        "e.toml:13:1: [run]: `fill` is",
        "e.toml:14:2: unknown key `extra`",
    ] {
        assert!(said.contains(part), "{part}\n---\n{said}");
    }
    assert!(parse("a = [", &[]).unwrap_err().contains("e.toml:1:"));
    let nothing = parse("", &[]).unwrap_err();
    for part in ["no [device]", "no [[target]]", "no [[workload]]"] {
        assert!(nothing.contains(part), "{nothing}");
    }
}

/// What follows from a mistake is not counted as another one.
#[test]
fn a_wrong_name_does_not_make_the_other_keys_unknown() {
    let text = "[device]\npreset = \"tinny\"\n[device.geometry]\nchannels = 2\n[[target]]\n\
                kind = \"pbkl\"\nactive_pus = 2\n[[workload]]\nrw = \"randwrite\"\n";
    let said = parse(text, &[]).unwrap_err();
    assert!(said.contains("`tiny`") && said.contains("`pblk`"), "{said}");
    assert!(!said.contains("unknown key"), "{said}");
}

/// `k` is 1000 here and 1024 in a job file: the message must not recommend what it refuses.
#[test]
fn sizes_say_what_their_units_are() {
    let said = parse(GOOD, &["workload.0.bs=4k"]).unwrap_err();
    assert!(said.contains("`4KiB` is 4096 bytes, `4k` 4000"), "{said}");
    assert!(parse(GOOD, &["workload.0.bs=4KiB"]).is_ok());
}

#[test]
fn a_wrong_unit_and_an_impossible_geometry_are_named() {
    let said = parse(GOOD, &["device.timing.erase=\"5 parsecs\""]).unwrap_err();
    assert!(said.contains("parsecs") && said.contains("known: ns, us"), "{said}");
    let said = parse(GOOD, &["device.geometry.planes=0"]).unwrap_err();
    assert!(said.contains("planes") && said.contains("at least 1"), "{said}");
    let said = parse(GOOD, &["device.geometry.channels=-4"]).unwrap_err();
    assert!(said.contains("`geometry.channels`") && said.contains("-4"), "{said}");
    let said = parse(GOOD, &["device.timing.erasse=\"5us\""]).unwrap_err();
    assert!(said.contains("erasse"), "{said}");
    let said = parse(GOOD, &["workload.0.runtime=5parsecs"]).unwrap_err();
    assert!(said.contains("runtime"), "{said}");
    let said = parse(GOOD, &["workload.0.direct=1"]).unwrap_err();
    assert!(said.contains("means nothing"), "{said}");
    let said = parse(GOOD, &["workload.0.trace=x"]).unwrap_err();
    assert!(said.contains("give one"), "{said}");
    let said = parse(GOOD, &["run.fill=none"]).unwrap_err();
    assert!(said.contains("needs `fill`"), "{said}");
    let said = parse(GOOD, &["target.0.name=a", "target.1.name=a"]).unwrap_err();
    assert!(said.contains("two targets"), "{said}");
}

#[test]
fn a_capacity_says_how_many_chunks_a_pu_has() {
    let sized = GOOD.replace("chunks_per_pu = 99", "channels = 2");
    let of = |set: &str| parse(&sized, &[set]);
    let geometry = |set: &str| of(set).unwrap().targets[0].stack.device.spec.geometry();
    let geo = geometry("run.seed=1");
    let one = u64::from(geo.pus()) * u64::from(geo.sectors_per_chunk()) * 4096;
    let capacity = geometry(&format!("device.capacity={}B", 77 * one));
    assert_eq!((capacity.channels, capacity.chunks_per_pu), (2, 77));
    for wrong in [one / 2, 77 * one + 4096] {
        let says = of(&format!("device.capacity={wrong}B")).unwrap_err();
        assert!(says.contains("no whole number of chunks for each PU"), "{says}");
    }
    let both = parse(GOOD, &["device.capacity=64MiB"]).unwrap_err();
    assert!(both.contains("`geometry.chunks_per_pu` says it already"), "{both}");
}

/// Targets may have workloads and hosts of their own; others have what all have.
#[test]
fn workloads_are_for_all_targets_or_for_those_that_they_name() {
    const PARTS: &str = "[device]\npreset = \"tiny\"\n\
        [[target]]\nname = \"a\"\nkind = \"pblk\"\n\
        [[target]]\nname = \"b\"\nkind = \"qblk\"\nhost_cores = 4\ncosts = \"linux-4.16-femu\"\n\
        [[workload]]\ntargets = [\"a\"]\nname = \"one\"\nrw = \"write\"\n\
        [[workload]]\nname = \"both\"\nrw = \"write\"\n\
        [[workload]]\ntargets = [\"b\"]\nname = \"other\"\nrw = \"write\"\n\
        [run]\nhost_cores = 2\n";
    let names = |e: &Experiment, i: usize| {
        let name = |(_, w): (usize, &Workload)| match w {
            Workload::Job(job) => job.name.clone(),
            Workload::Trace(_) | Workload::Files(_) => panic!("none here"),
        };
        e.workloads_of(&e.targets[i]).map(name).collect::<Vec<_>>()
    };
    let e = parse(PARTS, &[]).unwrap();
    assert_eq!(
        (names(&e, 0), names(&e, 1)),
        (vec!["one".into(), "both".into()], vec!["both".into(), "other".into()])
    );
    let host = |i: usize| (e.targets[i].host.cores, e.targets[i].host.costs.name().to_string());
    assert_eq!((host(0), host(1)), ((2, "lightnvm-fast17".into()), (4, "linux-4.16-femu".into())));
    // Targets of the command line take the place of those of the first workload.
    let e = changed(PARTS, &[Change::Targets(vec!["pftl".into()])]).unwrap();
    assert_eq!(names(&e, 0), ["one", "both"]);
    // Or some of its own are picked by their names.
    let e = changed(PARTS, &[Change::Targets(vec!["b".into()])]).unwrap();
    assert_eq!((e.targets.len(), names(&e, 0)), (1, vec!["both".into(), "other".into()]));
    assert_eq!(e.targets[0].host.cores, 4);
    // They count as in the file then.
    let with = |set: &str| {
        let changes = [Change::Targets(vec!["b".into()]), Change::Set(set.into())];
        changed(PARTS, &changes)
    };
    assert_eq!(with("target.1.host_cores=3").unwrap().targets[0].host.cores, 3);
    let said = with("target.0.host_cores=3").map(|_| ()).unwrap_err();
    assert!(said.contains("`target.0` is none that --target picks"), "{said}");
    let said = changed(PARTS, &[Change::Targets(vec!["b".into(), "pftl".into()])]);
    assert!(
        said.map(|_| ()).unwrap_err().contains("no target is called `pftl`; there are `a`, `b`")
    );
    for (set, says) in [
        ("workload.0.targets=[\"c\"]", "no target is called `c`; there are `a`, `b`"),
        ("workload.0.targets=[]", "names the targets that it is for"),
        ("workload.0.targets=3", "must be a list of strings"),
        ("workload.1.targets=[\"b\"]", ""),
        ("target.1.host_cores=0", "1 to 1024"),
        ("target.1.costs=nowhere.toml", "cannot read nowhere.toml"),
        ("target.1.handoff_per_waiter=20ns", ""),
        ("target.1.handoff_per_waiter=fast", "`handoff_per_waiter`"),
    ] {
        match parse(PARTS, &[set]) {
            Err(said) => assert!(!says.is_empty() && said.contains(says), "{set}: {said}"),
            Ok(_) => assert!(says.is_empty(), "{set}"),
        }
    }
    let e = parse(PARTS, &["target.1.handoff_per_waiter=20ns"]).unwrap();
    assert_eq!(e.targets[1].host.costs.handoff(3), Ns::from_ns(60));
    assert_eq!(e.targets[1].host.costs.name(), "linux-4.16-femu, hand-over 20 ns per waiter");
    assert_eq!(e.targets[0].host.costs, parse(PARTS, &[]).unwrap().targets[0].host.costs);
    let said = parse(PARTS, &["workload.0.targets=[\"b\"]", "workload.1.targets=[\"b\"]"]);
    assert!(said.unwrap_err().contains("no [[workload]] is for the target `a`"));
}

#[test]
fn faults_and_ranges_of_pus_are_checked_with_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, "[[fault]]\nkind = \"program_fail\"\ntimes = 2\n").unwrap();
    let set = format!("device.faults=\"{}\"", plan.display());
    let e = parse(GOOD, &[&set, "target.0.pus=\"0-1\""]).unwrap();
    assert_eq!(e.targets[0].stack.device.options.faults.faults.len(), 1);
    assert_eq!((e.targets[0].stack.pus, e.targets[1].stack.pus), (Some((0, 1)), None));
    std::fs::write(&plan, "[[fault]]\nkind = \"gremlin\"\n").unwrap();
    let said = parse(GOOD, &[&set]).unwrap_err();
    assert!(said.contains("gremlin") && said.contains("plan.toml"), "{said}");
    let said = parse(GOOD, &["device.faults=\"nowhere.toml\""]).unwrap_err();
    assert!(said.contains("cannot read fault plan"), "{said}");
    let said = parse(GOOD, &["target.0.pus=\"3-1\""]).unwrap_err();
    assert!(said.contains("range of PUs"), "{said}");
}

proptest! {
    /// Whatever a file holds, the answer is an experiment or complaints with a place.
    #[test]
    fn arbitrary_text_never_panics(
        lines in prop::collection::vec("(\\[\\[?[a-z.]*\\]?\\]?|[a-z_.]{1,9} ?= ?(\"[0-9a-zA-Z%]{0,9}\"|[0-9.e-]{1,22}|\\[.{0,9}\\]|true)|.{0,20})", 0..14),
        set in "[a-z0-9.]{0,16}=?.{0,10}",
    ) {
        let text = lines.join("\n");
        for sets in [&[][..], &[set.as_str()][..]] {
            if let Err(said) = parse(&text, sets) {
                prop_assert!(!said.is_empty());
            }
        }
        let _ = parse(GOOD, &[&set]);
    }
}
