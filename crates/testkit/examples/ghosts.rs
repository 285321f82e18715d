//! A round of work in a folder, by seed: files are made, written, renamed, linked, removed, and held open without
//! a name; then what must be there is checked, or written down for the next round.
//!
//! Use: `ghosts FOLDER NOTES SEED work|crash|named|check`. `work` checks everything it did and syncs it; `crash` syncs
//! in the middle, goes on and ends as it is, or is killed with the drive, `named` the same without open files that
//! have no name; `check` compares the folder with the notes: what was synced and left
//! alone is there, whatever became of the rest, and takes it from there.

use flashlane_base::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const FOLDERS: u64 = 3;

/// What a file holds: its first words say it.
fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(len).collect()
}

/// Names, what they hold by seed and length, and whether that is synced.
#[derive(Default)]
struct Notes(BTreeMap<String, (u64, usize, bool)>);

/// Names that were touched since the notes were written: a line each, written first.
fn touched_at(notes: &Path) -> PathBuf {
    notes.with_extension("touched")
}

impl Notes {
    /// Without what was touched since.
    fn read(path: &Path) -> Notes {
        let mut notes = Notes::written(path);
        let touched = fs::read_to_string(touched_at(path)).unwrap_or_default();
        touched.lines().for_each(|name| _ = notes.0.remove(name));
        notes
    }

    fn written(path: &Path) -> Notes {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let mut next = || words.next().expect("a word").to_string();
            let (name, seed, len, synced) = (next(), next(), next(), next());
            let number = |text: String| text.parse().expect("a number");
            (name, (number(seed), number(len) as usize, synced == "true"))
        };
        Notes(text.lines().map(line).collect())
    }

    fn write(&self, path: &Path) {
        let line = |(name, (seed, len, synced)): (&String, &(u64, usize, bool))| {
            format!("{name} {seed} {len} {synced}\n")
        };
        fs::write(path, self.0.iter().map(line).collect::<String>()).expect("the notes");
        fs::write(touched_at(path), "").expect("the notes");
    }
}

struct Work {
    folder: PathBuf,
    notes: Notes,
    rng: Rng,
    /// Open, without a name.
    held: Vec<(File, u64, usize)>,
    /// There are none.
    is_named: bool,
    touched: File,
}

fn sync(folder: &Path) {
    let done = Command::new("sync").arg("-f").arg(folder).status().expect("sync");
    assert!(done.success());
}

impl Work {
    fn any(&mut self) -> Option<String> {
        let n = self.notes.0.len() as u64;
        (n > 0)
            .then(|| self.rng.below(n))
            .and_then(|i| self.notes.0.keys().nth(i as usize).cloned())
    }

    fn new_name(&mut self) -> String {
        format!("d{}/f{}", self.rng.below(FOLDERS), self.rng.below(1 << 30))
    }

    /// Whatever happens next, it may have happened to this file.
    fn touch(&mut self, name: &str) {
        self.touched.write_all(format!("{name}\n").as_bytes()).expect("the notes");
    }

    fn put(&mut self, name: &str) -> File {
        self.touch(name);
        let (seed, len) = (self.rng.next_u64(), self.rng.below(9000) as usize);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let mut file = options.open(self.folder.join(name)).expect("a file");
        file.write_all(&content(seed, len)).expect("room");
        self.notes.0.insert(name.into(), (seed, len, false));
        file
    }

    fn step(&mut self) {
        let (draw, name) = (self.rng.below(16), self.any());
        match (draw, name) {
            (0..=5, _) | (_, None) => {
                // Several at once, as a program leaves them.
                for _ in 0..1 + self.rng.below(12) {
                    let name = self.new_name();
                    self.put(&name);
                }
            }
            (6, Some(name)) => _ = self.put(&name),
            (7, Some(old)) => {
                let new = self.new_name();
                self.touch(&old);
                fs::rename(self.folder.join(&old), self.folder.join(&new)).expect("a rename");
                let what = self.notes.0.remove(&old).expect("it is known");
                self.notes.0.insert(new, (what.0, what.1, false));
            }
            (8, Some(old)) => {
                let new = self.new_name();
                self.touch(&old);
                // Another name of the same: whoever is written through one is not known by the other.
                fs::hard_link(self.folder.join(&old), self.folder.join(&new)).expect("a link");
                fs::remove_file(self.folder.join(&old)).expect("a removal");
                let what = self.notes.0.remove(&old).expect("it is known");
                self.notes.0.insert(new, (what.0, what.1, false));
            }
            (9, Some(name)) if !self.is_named => {
                let file = self.put(&name);
                let (seed, len, _) = self.notes.0.remove(&name).expect("it is known");
                fs::remove_file(self.folder.join(&name)).expect("a removal");
                self.held.push((file, seed, len));
            }
            (10, Some(name)) => {
                let file = File::open(self.folder.join(&name)).expect("a file");
                file.sync_all().expect("a sync");
            }
            (11, _) => self.held.clear(),
            // Most of what is there goes.
            (12, _) => {
                let names: Vec<String> = self.notes.0.keys().cloned().collect();
                for name in names {
                    if self.rng.below(8) > 0 {
                        self.touch(&name);
                        fs::remove_file(self.folder.join(&name)).expect("a removal");
                        self.notes.0.remove(&name);
                    }
                }
            }
            (_, Some(name)) => {
                self.touch(&name);
                fs::remove_file(self.folder.join(&name)).expect("a removal");
                self.notes.0.remove(&name);
            }
        }
    }

    fn sync(&mut self) {
        sync(&self.folder);
        self.notes.0.values_mut().for_each(|what| what.2 = true);
    }

    /// What is open is as it was written, whatever has happened to its name.
    fn check_held(&mut self) -> Result<(), String> {
        for (file, seed, len) in &mut self.held {
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0))
                .and_then(|_| file.read_to_end(&mut bytes))
                .map_err(text)?;
            if bytes != content(*seed, *len) {
                return Err("a file without a name is not as it was".into());
            }
        }
        Ok(())
    }
}

fn text(e: std::io::Error) -> String {
    e.to_string()
}

/// Names of files in the folders.
fn names(folder: &Path) -> BTreeSet<String> {
    let of = |d: u64| {
        let files = fs::read_dir(folder.join(format!("d{d}"))).expect("a folder");
        files.map(move |file| format!("d{d}/{}", file.expect("a name").file_name().display()))
    };
    (0..FOLDERS).flat_map(of).collect()
}

fn check(folder: &Path, notes: &Notes, all: bool) -> Result<(), String> {
    let there = names(folder);
    for (name, (seed, len, synced)) in &notes.0 {
        if !(all || *synced) {
            continue;
        }
        let bytes = fs::read(folder.join(name)).map_err(|e| format!("{name}: {e}"))?;
        if bytes != content(*seed, *len) {
            return Err(format!("{name} is not as it was written"));
        }
    }
    let known = |name: &&String| notes.0.contains_key(*name);
    match there.iter().find(|name| all && !known(name)) {
        Some(name) => Err(format!("{name} was removed, and is there")),
        None => Ok(()),
    }
}

fn round(folder: &Path, at: &Path, seed: u64, how: &str) -> Result<(), String> {
    for d in 0..FOLDERS {
        fs::create_dir_all(folder.join(format!("d{d}"))).map_err(text)?;
    }
    let rng = Rng::stream(seed, "ghosts", 0);
    let (notes, is_named) = (Notes::read(at), how == "named");
    let touched = File::options().append(true).create(true).open(touched_at(at)).map_err(text)?;
    let held = Vec::new();
    let mut work = Work { folder: folder.into(), notes, rng, held, is_named, touched };
    match how {
        "work" => {
            check(folder, &work.notes, true)?;
            (0..40).for_each(|_| work.step());
            work.sync();
            work.check_held()?;
            work.held.clear();
        }
        "crash" | "named" => {
            check(folder, &work.notes, true)?;
            (0..25).for_each(|_| work.step());
            work.sync();
            work.notes.write(at);
            (0..15).for_each(|_| work.step());
            work.check_held()?;
            return Ok(());
        }
        "check" => {
            check(folder, &work.notes, false)?;
            let known = std::mem::take(&mut work.notes.0);
            for name in names(folder) {
                match known.get(&name) {
                    Some(what) => _ = work.notes.0.insert(name, *what),
                    None => fs::remove_file(folder.join(&name)).map_err(text)?,
                }
            }
        }
        other => return Err(format!("what is {other}? work, crash, named or check")),
    }
    work.notes.write(at);
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, notes, seed, how] = &args[..] else {
        eprintln!("use: ghosts FOLDER NOTES SEED work|crash|named|check");
        return ExitCode::from(2);
    };
    let Ok(seed) = seed.parse() else {
        eprintln!("a seed is a number, not {seed}");
        return ExitCode::from(2);
    };
    match round(Path::new(folder), Path::new(notes), seed, how) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("seed {seed}, {how}: {why}");
            ExitCode::FAILURE
        }
    }
}
