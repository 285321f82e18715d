//! What each personality does per loop, to which files, and that all of it comes out on a real folder.

use crate::*;
use flashlane_base::Bytes;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a thread alone on a set does in its first loop, as words.
fn first_loop(personality: Personality) -> String {
    let settings = Settings { files: 6, ..Settings::of(personality) };
    let tree = Tree::draw(&settings);
    let mut files = Rotation::new([true, true, true, true, false, false]);
    let mut actor = Actor::new(&settings, 0);
    let mut words = Vec::new();
    while actor.loops == 0 {
        let call = actor.next(&tree, &mut files);
        words.push(match call {
            Call::Create(n) | Call::Open(n) | Call::Delete(n) | Call::Stat(n) => {
                format!("{} {n}", call.kind().word())
            }
            Call::Skip(kind) => format!("skip {}", kind.word()),
            _ => call.kind().word().to_string(),
        });
        actor.done(call, &mut files);
    }
    words.join(", ")
}

#[test]
fn loops_are_those_of_filebench() {
    let fileserver = "createfile 4, writewholefile, closefile, openfile 0, appendfilerand, closefile, \
                      openfile 1, readwholefile, closefile, deletefile 2, statfile 3";
    let varmail = "deletefile 0, createfile 0, appendfilerand, fsync, closefile, openfile 1, \
                   readwholefile, appendfilerand, fsync, closefile, openfile 2, readwholefile, closefile";
    let read = |n: usize| format!("openfile {n}, readwholefile, closefile");
    let reads = |all: &[usize]| all.iter().map(|n| read(*n)).collect::<Vec<_>>().join(", ");
    let webserver = reads(&[0, 1, 2, 3, 0, 1, 2, 3, 0, 1]) + ", appendlog";
    let proxied = reads(&[1, 2, 3, 0, 1]);
    let webproxy = format!("deletefile 0, createfile 0, appendfilerand, closefile, {proxied}");
    assert_eq!(first_loop(Personality::Fileserver), fileserver);
    assert_eq!(first_loop(Personality::Varmail), varmail);
    assert_eq!(first_loop(Personality::Webserver), webserver);
    assert_eq!(first_loop(Personality::Webproxy), webproxy);
}

#[test]
fn sizes_have_the_mean_and_the_spread_of_the_distribution() {
    let settings = Settings { files: 100_000, ..Settings::of(Personality::Fileserver) };
    let tree = Tree::draw(&settings);
    let sizes: Vec<f64> = tree.files.iter().map(|f| f.bytes as f64).collect();
    let mean = sizes.iter().sum::<f64>() / 1e5;
    let variance = sizes.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 1e5;
    let asked = settings.mean.get() as f64;
    assert!((mean / asked - 1.0).abs() < 0.01, "{mean}");
    // The variance of a gamma distribution is mean * mean / shape.
    assert!((variance / (asked * asked / 1.5) - 1.0).abs() < 0.03, "{variance}");
    let there = tree.files.iter().filter(|f| f.there).count();
    assert!((79_000..81_000).contains(&there), "{there}");
}

#[test]
fn a_tree_is_as_wide_as_asked_and_the_same_again() {
    let settings = Settings::of(Personality::Fileserver);
    let tree = Tree::draw(&settings);
    assert_eq!(tree, Tree::draw(&settings));
    assert_ne!(tree, Tree::draw(&Settings { seed: 1, ..settings.clone() }));
    let entries = tree.files.len() + tree.folders.len() - 1;
    // Folders of one entry count, the last ones are not full, and the root is wider.
    let width = entries as f64 / tree.folders.len() as f64;
    assert!((14.0..26.0).contains(&width), "{width}");
    let flat = Tree::draw(&Settings::of(Personality::Varmail));
    assert!(flat.folders.len() < 4, "{:?}", flat.folders);
    let mut paths: Vec<&str> = tree.files.iter().map(|f| f.path.as_str()).collect();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 10_000);
}

/// Some loops of a small set in a folder of its own: counts, and files that are there behind them.
fn done(personality: Personality, files: u64, threads: u32) -> (Counts, usize) {
    let folder = tempfile::tempdir().unwrap();
    let system = Directory::new(folder.path());
    let mean = Bytes::from_kib(4);
    let settings = Settings { files, threads, mean, ..Settings::of(personality) };
    let tree = Tree::draw(&settings);
    let go = AtomicBool::new(false);
    prepare(&system, &tree, &settings, &go).unwrap();
    let there: Vec<bool> = tree.files.iter().map(|f| f.there).collect();
    assert_eq!(found(&system, &tree).unwrap(), there);
    let counts = run(&system, &tree, &settings, there, Some(5), &go).unwrap();
    let left = match found(&system, &tree) {
        Ok(there) => there.into_iter().filter(|there| *there).count(),
        // The last threads deleted every file: such a set is none.
        Err(FilesError::NoSet) => 0,
        Err(error) => panic!("{error}"),
    };
    (counts, left)
}

#[test]
fn counts_are_what_was_done() {
    for personality in Personality::ALL {
        let (counts, left) = done(personality, 200, 4);
        assert_eq!(counts.loops, 20);
        for kind in Kind::ALL {
            let per_loop = personality.steps().iter().filter(|step| **step == kind).count();
            let count = counts.of(kind);
            assert_eq!(count.calls, 20 * per_loop as u64, "{personality:?} {kind:?}");
            assert_eq!(count.skipped, 0);
        }
        let wrote = counts.sum(&[Kind::WriteWhole, Kind::Append, Kind::AppendLog]);
        assert!(wrote.written_bytes > 0 && wrote.read_bytes == 0);
        assert!(counts.of(Kind::ReadWhole).read_bytes > 0);
        let settings = Settings { files: 200, ..Settings::of(personality) };
        let first = Tree::draw(&settings).files.iter().filter(|f| f.there).count();
        // As many are made as go.
        assert_eq!(left, first, "{personality:?}");
    }
}

#[test]
fn more_threads_than_files_skip_and_end() {
    let (counts, _) = done(Personality::Fileserver, 3, 8);
    assert_eq!(counts.loops, 40);
    // Whether threads meet is the machine's to say: here they take turns.
    let settings = Settings { files: 3, threads: 8, ..Settings::of(Personality::Fileserver) };
    let tree = Tree::draw(&settings);
    let mut files = Rotation::new(tree.files.iter().map(|f| f.there));
    let mut actors: Vec<Actor> = (0..8).map(|number| Actor::new(&settings, number)).collect();
    let steps = 5 * settings.personality.steps().len();
    let mut skipped = 0;
    for _ in 0..steps {
        for actor in &mut actors {
            let call = actor.next(&tree, &mut files);
            skipped += u32::from(matches!(call, Call::Skip(_)));
            actor.done(call, &mut files);
        }
    }
    assert!(skipped > 0 && actors.iter().all(|actor| actor.loops == 5));
}

/// A file that could not be made is not there, one that could not be deleted is, and nobody holds
/// one that could not be opened.
#[test]
fn what_fails_leaves_files_as_they_were() {
    let settings = Settings { files: 2, threads: 1, ..Settings::of(Personality::Fileserver) };
    let tree = Tree::draw(&settings);
    let mut files = Rotation::new([true, false]);
    let mut actor = Actor::new(&settings, 0);
    let mut calls = Vec::new();
    while actor.loops < 2 {
        let call = actor.next(&tree, &mut files);
        calls.push(call);
        match call {
            Call::Create(_) | Call::Open(_) | Call::Delete(_) => actor.failed(call, &mut files),
            _ => actor.done(call, &mut files),
        }
        assert_eq!(files.count(), 1, "{calls:?}");
    }
    let done: Vec<&Call> = calls.iter().filter(|call| !matches!(call, Call::Skip(_))).collect();
    let one_loop = [Call::Create(1), Call::Open(0), Call::Open(0), Call::Delete(0), Call::Stat(0)];
    assert_eq!(done, one_loop.iter().chain(&one_loop).collect::<Vec<_>>());
}

#[test]
fn a_stop_and_an_error_end_it() {
    let folder = tempfile::tempdir().unwrap();
    let system = Directory::new(folder.path());
    let settings = Settings { files: 20, threads: 2, ..Settings::of(Personality::Varmail) };
    let tree = Tree::draw(&settings);
    assert!(matches!(found(&system, &tree), Err(FilesError::NoSet)));
    let stop = AtomicBool::new(true);
    let there = vec![true; 20];
    let counts = run(&system, &tree, &settings, there.clone(), None, &stop).unwrap();
    assert_eq!(counts, Counts::default());
    stop.store(false, Ordering::Relaxed);
    // Nothing is there to delete.
    let said = run(&system, &tree, &settings, there, None, &stop).unwrap_err().to_string();
    assert!(said.starts_with("cannot do deletefile on bigfileset/"), "{said}");
}

#[test]
fn settings_without_sense_are_refused_with_their_option() {
    let good = Settings::of(Personality::Webproxy);
    good.check().unwrap();
    let said = |settings: Settings| settings.check().unwrap_err().to_string();
    let zero = Bytes::new(0);
    assert!(said(Settings { files: 0, ..good.clone() }).contains("--files"));
    assert!(said(Settings { files: FILES_MAX + 1, ..good.clone() }).contains("1000000 at most"));
    assert!(said(Settings { threads: 5000, ..good.clone() }).contains("--threads 5000"));
    assert!(said(Settings { mean: zero, ..good.clone() }).contains("--mean-size"));
    assert!(said(Settings { append: Bytes::from_gib(2), ..good }).contains("1 GiB at most"));
}

#[test]
fn words_name_personalities() {
    for personality in Personality::ALL {
        assert_eq!(Personality::named(personality.word()), Some(personality));
    }
    assert_eq!(Personality::named("proxyserver"), Some(Personality::Webproxy));
    assert_eq!(Personality::named("mailserver"), None);
}
