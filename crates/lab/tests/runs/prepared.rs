//! Devices on the shelf: made or found, the results are the same; what is not what its name says is made
//! anew.

use flashlane_lab::execute::{How, execute};
use flashlane_lab::experiment::{Base, Change, Experiment, Target};
use flashlane_lab::report::Report;
use flashlane_lab::run::{Monitor, Progress, Unwatched};
use flashlane_lab::shelf::Shelf;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

const EXPERIMENT: &str = r#"
[device]
preset = "tiny"
geometry.chunks_per_pu = 400
[[target]]
kind = "pblk"
active_pus = 2
[[target]]
kind = "qblk"
host_cores = 3
[[target]]
kind = "pftl"
over_provisioning_percent = 25
[[workload]]
rw = "randrw"
bs = "4KiB"
iodepth = 8
number_ios = 800
[run]
seed = 3
fill = "90%"
overwrite = "60%"
"#;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("flashlane-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        let mut files: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn experiment(changes: &[&str]) -> Experiment {
    let base = Base::of(Path::new(""));
    let changes: Vec<Change> = changes.iter().map(|c| Change::Set((*c).into())).collect();
    let parsed = Experiment::parse("small.toml", EXPERIMENT, &base, &changes);
    parsed.map_err(|e| e.to_string()).expect("a good experiment")
}

/// The results as JSON without the word that says where the device came from, and those words.
fn run(
    e: &Experiment,
    shelf: Option<&Shelf>,
    monitor: fn() -> Rc<dyn Monitor>,
) -> (String, Vec<String>) {
    let watch = |_: &Target| monitor();
    let outcome = execute(e, How { shelf, ..How::default() }, &watch).expect("it runs");
    assert!(!outcome.is_bad(), "laws, rules and contents");
    let mut report = Report::of(&outcome);
    let take = |run: &mut flashlane_lab::report::RunReport| run.prepared.shelf.take();
    let words = report.runs.iter_mut().map(|run| take(run).unwrap_or_default()).collect();
    (report.to_json(), words)
}

fn quietly() -> Rc<dyn Monitor> {
    Rc::new(Unwatched)
}

/// Whoever makes a device has the results of those who find it, with every layer and either store; what
/// was prepared is said with its numbers, and without a shelf nothing is different from ever.
#[test]
fn made_or_found_the_results_are_the_same() {
    for store in ["stamps", "memory"] {
        let folder = Folder::new(&format!("shelf-{store}"));
        let e = experiment(&[&format!("device.store={store}")]);
        let shelf = Shelf::in_folder(&folder.0).expect("a shelf");
        let (made, words) = run(&e, Some(&shelf), quietly);
        assert_eq!(words, ["made"; 3], "{store}");
        assert_eq!(folder.files().len(), 3, "one for each target");
        for _ in 0..2 {
            let (found, words) = run(&e, Some(&shelf), quietly);
            assert_eq!(words, ["found"; 3], "{store}");
            assert_eq!(found, made, "{store}");
        }
        assert!(made.contains("\"filled_sectors\": ") && !made.contains("\"filled_sectors\": 0"));
        let (without, words) = run(&e, None, quietly);
        assert_eq!(words, [""; 3]);
        assert_eq!(run(&e, None, quietly).0, without);
    }
}

/// What decides about a prepared device decides about its file; what does not, does not.
#[test]
fn another_preparation_is_another_file() {
    let folder = Folder::new("shelf-names");
    let shelf = Shelf::in_folder(&folder.0).expect("a shelf");
    let one = "target=[{kind=\"pblk\"}]";
    let changes: [&[&str]; 7] = [
        &[],
        &["run.seed=4"],
        &["run.overwrite=70%"],
        &["run.fill=80%"],
        &["device.store=memory"],
        &["target.0.over_provisioning_percent=30"],
        &["device.timing.erase=\"9ms\""],
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let e = experiment(&[&[one], change].concat());
        assert_eq!(run(&e, Some(&shelf), quietly).1, ["made"], "{change:?}");
        assert_eq!(folder.files().len(), n + 1, "{change:?}");
    }
    let same: [&[&str]; 3] =
        [&["target.0.name=other"], &["name=other"], &["workload.0.number_ios=100"]];
    for change in same {
        let e = experiment(&[&[one], change].concat());
        assert_eq!(run(&e, Some(&shelf), quietly).1, ["found"], "{change:?}");
    }
    // Where the workload says what is filled, it decides, too.
    let auto = |n: &str| {
        run(&experiment(&[one, "run.fill=auto", "run.overwrite=none", n]), Some(&shelf), quietly).1
    };
    assert_eq!(auto("workload.0.size=1MiB"), ["made"]);
    assert_eq!(auto("workload.0.size=1MiB"), ["found"]);
    assert_eq!(auto("workload.0.size=2MiB"), ["made"]);
}

/// A file that is cut short, has a flipped bit anywhere, is another's, or no file of ours: as good as none.
#[test]
fn a_damaged_file_is_made_anew() {
    let folder = Folder::new("shelf-damage");
    let shelf = Shelf::in_folder(&folder.0).expect("a shelf");
    let e = experiment(&["target=[{kind=\"pblk\"}]", "device.geometry.chunks_per_pu=200"]);
    let (good, _) = run(&e, Some(&shelf), quietly);
    let path = folder.files().remove(0);
    let bytes = std::fs::read(&path).expect("readable");
    let flipped = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    // Head, version, name, length and text of the numbers, oracle, rows, contents, checksum.
    let mut damaged: Vec<Vec<u8>> = [0, 9, 20, 45, 60]
        .into_iter()
        .chain((1..16).map(|n| n * bytes.len() / 16))
        .map(flipped)
        .collect();
    damaged.push(flipped(bytes.len() - 1));
    for n in [0, 7, 44, 300, bytes.len() / 2, bytes.len() - 1] {
        damaged.push(bytes[..n].to_vec());
    }
    damaged.push([&bytes[..], b"more"].concat());
    damaged.push(vec![0xff; 1 << 16]);
    for (n, bytes) in damaged.into_iter().enumerate() {
        std::fs::write(&path, bytes).expect("writable");
        let (again, words) = run(&e, Some(&shelf), quietly);
        assert!(words[0].starts_with("made (what was there can't be used: "), "{words:?}");
        assert!(again == good, "damage {n}");
    }
    let other = folder.0.join("0123456789abcdef0123456789abcdef.device");
    std::fs::rename(&path, &other).expect("renamed");
    assert_eq!(run(&e, Some(&shelf), quietly).1, ["made"]);
    std::fs::rename(&other, &path).expect("renamed");
    assert_eq!(run(&e, Some(&shelf), quietly).1, ["found"]);
    assert_eq!(
        std::fs::read(&path).expect("readable"),
        bytes,
        "the same bytes each time it is made"
    );
}

/// Interrupts after some looks.
struct Hasty(Cell<u32>);

impl Progress for Hasty {
    fn progress(&self, _: &str, _: u64, _: Option<u64>) {}
    fn interrupted(&self) -> bool {
        self.0.set(self.0.get() + 1);
        self.0.get() > 3
    }
}
impl Monitor for Hasty {}

/// What was interrupted, or has nothing to prepare, is not kept, and says so.
#[test]
fn nothing_is_kept_of_what_was_not_prepared() {
    let folder = Folder::new("shelf-none");
    let shelf = Shelf::in_folder(&folder.0).expect("a shelf");
    let e = experiment(&["target=[{kind=\"pblk\"}]"]);
    let (_, words) = run(&e, Some(&shelf), || Rc::new(Hasty(Cell::new(0))));
    assert_eq!(words, ["not used: it was interrupted"]);
    let bare = ["target=[{kind=\"pblk\"}]", "run.fill=none", "run.overwrite=none"];
    let (_, words) = run(&experiment(&bare), Some(&shelf), quietly);
    assert_eq!(words, ["not used: there is nothing to prepare"]);
    assert_eq!(folder.files(), Vec::<PathBuf>::new());
    let raw = ["target=[{kind=\"raw\"}]", "workload.0.pus=0-3", "workload.0.rw=write"];
    let raw = experiment(&[&raw[..], &["run.fill=none", "run.overwrite=none"]].concat());
    let refused = Shelf::check(&raw).expect_err("nothing to prepare");
    assert!(refused.contains("raw") && refused.contains("leave --prepared out"), "{refused}");
    let compact = experiment(&["target=[{kind=\"pblk\"}]", "device.store=compact"]);
    assert!(Shelf::check(&compact).expect_err("elsewhere").contains("`compact`"));
    let buffer = experiment(&["target=[{kind=\"pblk\"}]", "device.limits.write_buffer=1MiB"]);
    assert!(Shelf::check(&buffer).expect_err("buffered").contains("write buffer"));
    let plan = folder.0.join("faults.toml");
    let fault = "[[fault]]\nkind = \"write_next_unit\"\nprobability = \"0.2\"\ntimes = 100000\n";
    std::fs::write(&plan, fault).expect("writable");
    let faults = format!("device.faults=\"{}\"", plan.display());
    let faulty = ["target=[{kind=\"pblk\"}]", &faults, "run.fill=none", "run.overwrite=none"];
    let more = ["workload.0.number_ios=60000", "run.allow_errors=true"];
    let faulty = experiment(&[&faulty[..], &more].concat());
    assert!(Shelf::check(&faulty).expect_err("faults").contains("faults"));
    assert_eq!(Shelf::check(&e), Ok(()));
    // The same device without a shelf: it ends read-only, with units that are being sent again, each of
    // whose sectors is counted once.
    let (json, _) = run(&faulty, None, quietly);
    assert!(json.contains("\"read_only\": \""), "the fault plan ends it");
}

/// Threads that want the same device make it once.
#[test]
fn who_comes_second_waits_for_who_makes() {
    let folder = Folder::new("shelf-twice");
    let shelf = Shelf::in_folder(&folder.0).expect("a shelf");
    let both = || {
        let shelf = shelf.clone();
        std::thread::spawn(move || {
            run(&experiment(&["target=[{kind=\"pblk\"}]"]), Some(&shelf), quietly)
        })
    };
    let [a, b] = [both(), both()].map(|t| t.join().expect("no panic"));
    assert_eq!(a.0, b.0);
    let mut words = [a.1.concat(), b.1.concat()];
    words.sort();
    assert_eq!(words, ["found", "made"]);
}
