//! `torture` as a person uses it.

use crate::harness::{Here, here};

/// 16 MiB with a fault plan beside it.
const OWN: &str = r#"
name = "mine"
[device]
preset = "tiny"
faults = "faults.toml"
[device.geometry]
chunks_per_pu = 64
[[target]]
kind = "pblk"
[[target]]
kind = "pblk"
name = "my pblk"
over_provisioning_percent = 30
[[workload]]
rw = "randwrite"
size = "1MiB"
"#;
const FAULTS: &str = "[[fault]]\nkind = \"early_close\"\nprobability = \"1e-2\"\ntimes = 3\n";

/// A folder with [`OWN`] as `mine.toml` and these faults.
fn own(faults: &str) -> Here {
    let h = here();
    h.file("mine.toml", OWN);
    h.file("faults.toml", faults);
    h
}

/// A result without the figures of this machine, which are there.
fn timeless(json: &serde_json::Value) -> serde_json::Value {
    let mut json = json.clone();
    let all = json.as_object_mut().expect("an object");
    for key in ["cpu_seconds", "cpu_seconds_to_failure", "cuts_per_cpu_second"] {
        assert!(all.remove(key).is_some(), "{key}");
    }
    json
}

/// What is promised about the JSON, and the same bytes on one core and on two.
#[test]
fn counts_are_the_same_on_any_number_of_cores() {
    let h = here();
    let args = ["torture", "--target", "pblk-faults", "--mode", "log", "--effort", "1"];
    let run = |jobs| {
        let more = ["--seeds", "3", "--cuts", "1", "--jobs", jobs, "--json", "-"];
        h.run(&[&args[..], &more[..]].concat()).good()
    };
    let json = run("1").json();
    assert_eq!(timeless(&json), timeless(&run("2").json()));
    assert_eq!(json["seeds"], 3);
    assert_eq!(json["failures"].as_array().map(Vec::len), Some(0));
    for key in ["cuts", "faults", "lives"] {
        assert!(json[key].as_u64() > Some(20), "{key}: {json}");
    }
    let none = h.run("torture --target pblk --seeds 1 --mode none").good();
    assert!(none.out.contains("1 lives, 0 power cuts") && none.out.contains("No failure"));
    assert!(h.files().is_empty(), "{:?}", h.files());
}

#[test]
fn time_is_a_limit_and_ctrl_c_is_one_too() {
    let h = here();
    let json = h.run("torture --seconds 1 --target pblk --json -").good().json();
    assert_eq!((&json["partial"], &json["targets"][0]), (&false.into(), &"pblk".into()));
    let done = h.interrupted("torture --target ram --seconds 0 --json -");
    assert_eq!(done.code, 130, "{done:?}");
    let json = done.json();
    assert!(json["partial"] == true && json["cuts"].as_u64() > Some(0), "{json}");
}

/// One run of minutes: what was left in its middle is neither a seed, nor a life, nor a failure.
#[test]
fn a_long_run_is_left_in_its_middle() {
    let h = own(FAULTS);
    let size = "device.geometry.chunks_per_pu=1024";
    let own = ["torture", "mine.toml", "--set", size, "--target", "pblk"];
    // Of the first seeds the one with most to do: some end within a second.
    let long = ["--effort", "10000", "--json", "-"];
    let none = |json: serde_json::Value| {
        assert_eq!((&json["seeds"], &json["lives"]), (&0.into(), &0.into()), "{json}");
        assert_eq!(json["failures"], serde_json::json!([]));
    };
    let over = h.run(
        &[&own[..], &["--seconds", "1", "--mode", "none", "--from", "3", "--jobs", "1"], &long]
            .concat(),
    );
    none(over.good().json());
    for way in [&["--mode", "none"][..], &["--lives", "1"]] {
        let done = h.interrupted(&[&own[..], &["--seed", "3"], way, &long].concat());
        assert_eq!(done.code, 130, "{done:?}");
        none(done.json());
    }
}

/// A device of one's own, its faults and its targets.
#[test]
fn an_experiment_brings_its_own_stacks() {
    let h = own(FAULTS);
    let json = h.run("torture mine.toml --seeds 1 --mode linear --json -").good().json();
    assert_eq!(json["targets"], serde_json::json!(["pblk", "my pblk"]));
    assert!(json["cuts"].as_u64() >= Some(40) && json["faults"].as_u64() > Some(0), "{json}");
    let replay = "torture mine.toml --target 'my pblk' --seed 7";
    let done = h.run(&format!("{replay} --effort 2 --cut 3000000")).good();
    assert!(done.out.contains("my pblk: 1 seeds, 2 lives, 1 power cuts"), "{done:?}");
}

/// What fails is exit code 1, and the command that is printed fails in the same way.
#[test]
fn a_failure_prints_the_command_that_replays_it() {
    // Nothing that pblk writes for itself comes back: it can't be mounted.
    let fault = "[[fault]]\nkind = \"read_uncorrectable\"\nafter = \"2ms\"\nprobability = \"1\"\n";
    let h = own(fault);
    let args = "torture mine.toml --target 'my pblk' --mode linear --seeds 1";
    let done = h.run(&format!("{args} --json -"));
    assert_eq!(done.code, 1, "{done:?}");
    let json = done.json();
    let failure = &json["failures"][0];
    assert!(failure["cuts"][0].is_u64() && failure["place"].is_u64(), "{failure}");
    let replay = failure["replay"].as_str().expect("a command");
    let (words, name) = (replay.replace("'my pblk'", "NAME"), "my pblk");
    let words: Vec<&str> = words.split(' ').map(|w| if w == "NAME" { name } else { w }).collect();
    assert_eq!(words[0], "flashlane");
    let again = h.run(&[&words[1..], &["--json", "-"]].concat());
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(again.json()["failures"][0]["what"], failure["what"]);
    let text = h.run(args);
    assert_eq!(text.code, 1);
    assert!(text.out.contains("FAILED my pblk") && text.out.contains(replay), "{text:?}");
}

#[test]
fn what_can_not_be_tortured_is_refused() {
    let h = own(FAULTS);
    let with = |from: &str, to: &str| h.file("other.toml", OWN.replace(from, to));
    h.run("torture --target pblkk").refused(2, &["did you mean `pblk`", "pftl-faults"]);
    h.run("torture --policy f2f").refused(2, &["did you mean `f2fs`", "block-stripe"]);
    h.run("torture --target pblk --policy f2fs").refused(2, &["--target parafs or parafs-faults"]);
    h.run("torture mine.toml --policy f2fs").refused(2, &["--policy"]);
    h.run("torture --mode linaer").refused(2, &["did you mean `linear`"]);
    h.run("torture --cuts 3").refused(2, &["--cuts"]);
    h.run("torture --cut 5").refused(2, &["--seed"]);
    h.run("torture --cut 5 --seeds 1").refused(2, &["--seeds"]);
    h.run("torture --lives 3 --seconds 2").refused(2, &["--seconds"]);
    h.run("torture --mode aimed --aimed").refused(2, &["--mode"]);
    h.run("torture --mode none --cuts 2").refused(2, &["--cuts"]);
    let last = u64::MAX.to_string();
    h.run(&["torture", "--from", &last, "--seeds", "2"]).refused(2, &["--from"]);
    h.run("torture --seeds 1 --seconds 1").refused(2, &["--seconds"]);
    h.run("torture --set run.seed=1").refused(2, &["EXPERIMENT"]);
    h.run("torture none.toml").refused(2, &["cannot read none.toml"]);
    h.run("torture mine.toml --target x").refused(2, &["no target `x`", "`my pblk`"]);
    h.run("torture mine.toml --json mine.toml").refused(2, &["would replace"]);
    h.run("torture mine.toml --json no/such/out.json").refused(2, &["no/such"]);
    with("chunks_per_pu = 64", "chunks_per_pu = 100000");
    let says = ["25600000 sectors", "--set device.geometry.chunks_per_pu=16384"];
    h.run("torture other.toml").refused(2, &says);
    let set = "device.geometry.chunks_per_pu=64";
    h.run(&["torture", "other.toml", "--set", set, "--seeds", "1", "--mode", "none"]).good();
    h.file("vary.toml", format!("{OWN}[[vary]]\nkey = \"run.seed\"\nvalues = [1, 2]\n"));
    h.run("torture vary.toml").refused(2, &["varies `run.seed`", "--set run.seed=VALUE"]);
    h.run("torture vary.toml --set run.seed=1 --seeds 1 --mode none").good();
    with("chunks_per_pu = 64", "chunks_per_pu = 4");
    h.run("torture other.toml").refused(2, &["target `pblk` can't be built"]);
    h.file("job.fio", "[w]\nrw=randwrite\nsize=2m\n");
    h.run("torture job.fio").refused(2, &["experiment", "job file"]);
    let raw = "[device]\npreset = \"tiny\"\n[[target]]\nkind = \"raw\"\n\
               [[workload]]\nrw = \"read\"\npus = \"0-1\"\nsize = \"64KiB\"\n";
    h.file("raw.toml", raw);
    h.run("torture raw.toml").refused(2, &["is raw", "pblk"]);
}
