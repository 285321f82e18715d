//! What a file system may hold behind a power cut.
//!
//! Owns: [`Known`]: what is durable, and what else may be. Promises: what was acknowledged by fsync or
//! sync and is not there, or anything that never was, is refused. The rules: names, links and extended
//! attributes are those of one moment, not before the last checkpoint that was acknowledged, with files
//! whose fsync came later (each under the name that it had); each piece of a file, its size and its
//! permissions are one of those since its last fsync. Never: asks the file system anything.

use flashlane_parafs::ROOT;
use std::collections::BTreeMap;

/// Bytes of what is compared: a page on the medium has one or more.
pub const PIECE: usize = 4096;
/// Longest file, without what lies between its halves.
pub const BYTES: usize = 16 * PIECE;
/// The second half of a file may lie far behind the first, so that another node names it.
pub const HALF: usize = BYTES / 2;

/// What a file may be behind a cut.
#[derive(Clone, Debug)]
pub struct Versions {
    /// As it is now.
    pub now: Vec<u8>,
    /// Sizes since the last fsync, that one's first.
    sizes: Vec<usize>,
    /// Of each piece, contents since then. A piece that is not there is zeros.
    pieces: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Permissions since then.
    modes: Vec<u16>,
    /// It was there, with these names, when it was made durable by an fsync of its own.
    synced: bool,
}

impl Versions {
    /// An empty file of these permissions.
    pub fn new(mode: u16) -> Versions {
        let (sizes, pieces) = (vec![0], BTreeMap::new());
        Versions { now: Vec::new(), sizes, pieces, modes: vec![mode], synced: false }
    }

    fn found(content: Vec<u8>, mode: u16) -> Versions {
        Versions { sizes: vec![content.len()], now: content, ..Versions::new(mode) }
    }

    fn piece(content: &[u8], i: usize) -> Vec<u8> {
        let mut piece = content.get(i * PIECE..).unwrap_or(&[]).to_vec();
        piece.truncate(PIECE);
        piece.resize(PIECE, 0);
        piece
    }

    /// It becomes this, sooner or later.
    pub fn becomes(&mut self, content: Vec<u8>) {
        for i in 0..BYTES / PIECE {
            let (before, after) = (Self::piece(&self.now, i), Self::piece(&content, i));
            if before != after {
                let all = self.pieces.entry(i).or_insert_with(|| vec![before]);
                all.push(after);
            }
        }
        self.sizes.push(content.len());
        self.now = content;
    }

    /// Its permissions now.
    pub fn mode(&self) -> u16 {
        self.modes.last().copied().unwrap_or_default()
    }

    /// It gets these permissions, sooner or later.
    pub fn is_given(&mut self, mode: u16) {
        self.modes.push(mode);
    }

    /// The last permissions were refused.
    pub fn is_not_given(&mut self) {
        self.modes.pop();
        assert!(!self.modes.is_empty(), "what is durable is never taken back");
    }

    /// What it was at some moment is durable; with `data_only` its permissions may not be.
    pub fn durable(&mut self, data_only: bool) {
        self.sizes = vec![self.now.len()];
        self.pieces.clear();
        if !data_only {
            self.modes.drain(..self.modes.len() - 1);
        }
    }

    /// An fsync of its own has made it durable.
    pub fn is_synced(&mut self, data_only: bool) {
        self.synced = true;
        self.durable(data_only);
    }

    fn allows(&self, found: &[u8], mode: u16) -> Result<(), String> {
        if !self.sizes.contains(&found.len()) {
            return Err(format!("it has {} bytes, not one of {:?}", found.len(), self.sizes));
        }
        if !self.modes.contains(&mode) {
            return Err(format!("it has mode {mode}, not one of {:?}", self.modes));
        }
        for i in 0..BYTES / PIECE {
            let length = found.len().saturating_sub(i * PIECE).min(PIECE);
            let is = Self::piece(found, i);
            let only = vec![Self::piece(&self.now, i)];
            let all = self.pieces.get(&i).unwrap_or(&only);
            // A file that is shorter than it was then has only a part of the piece.
            let of = |wanted: &Vec<u8>| wanted[..length] == is[..length];
            if !all.iter().any(of) {
                let differ = |p: &Vec<u8>| (0..length).find(|at| p[*at] != is[*at]);
                let first: Vec<_> =
                    all.iter().map(|p| differ(p).map(|at| (at, is[at], p[at]))).collect();
                return Err(format!(
                    "piece {i} of {} bytes is none of {first:?} (place, found, wanted)",
                    found.len()
                ));
            }
        }
        Ok(())
    }
}

/// All names: path, and the file or directory.
pub type Names = BTreeMap<String, u32>;

/// Extended attributes of a file.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What there is: what an operation on names changes at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub names: Names,
    /// Of files that have any.
    pub xattrs: BTreeMap<u32, Xattrs>,
}

/// What kind of thing a number is; it never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Dir,
    /// A symbolic link, and where it leads.
    Link(Vec<u8>),
}

/// What somebody has found on the medium.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub moment: Moment,
    pub kinds: BTreeMap<u32, Kind>,
    /// Of each file: what it holds, and its permissions.
    pub files: BTreeMap<u32, (Vec<u8>, u16)>,
}

/// An fsync of a file, and the name that it had.
#[derive(Clone, Debug)]
struct Synced {
    /// When: a number of a moment.
    at: usize,
    ino: u32,
    /// The directory, and the name in it. Where the directory is, an fsync does not say.
    entry: (u32, String),
    /// It was acknowledged; before that it may have been done.
    acked: bool,
}

#[derive(Clone, Debug)]
pub struct Known {
    /// The first is the last that a checkpoint has, for all that is known.
    moments: Vec<Moment>,
    pub files: BTreeMap<u32, Versions>,
    pub kinds: BTreeMap<u32, Kind>,
    /// How many fsyncs were begun.
    pub fsyncs: u64,
    synced: Vec<Synced>,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            moments: vec![Moment::default()],
            files: BTreeMap::new(),
            kinds: BTreeMap::from([(ROOT, Kind::Dir)]),
            fsyncs: 0,
            synced: Vec::new(),
        }
    }
}

/// Where an entry of a directory is among these names.
fn path_of(names: &Names, (dir, name): &(u32, String)) -> Option<String> {
    if *dir == ROOT {
        return Some(format!("/{name}"));
    }
    let (path, _) = names.iter().find(|(_, ino)| **ino == *dir)?;
    Some(format!("{path}/{name}"))
}

fn has(names: &Names, entry: &(u32, String), ino: u32) -> bool {
    path_of(names, entry).is_some_and(|path| names.get(&path) == Some(&ino))
}

/// The directory of a path, and the name in it.
pub fn parts(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Known {
    pub fn now(&self) -> &Moment {
        self.moments.last().expect("one at least")
    }

    pub fn names(&self) -> &Names {
        &self.now().names
    }

    /// A file or directory, by its path; the root is the empty path.
    pub fn ino(&self, path: &str) -> Option<u32> {
        if path.is_empty() { Some(ROOT) } else { self.names().get(path).copied() }
    }

    pub fn is_dir(&self, ino: u32) -> bool {
        self.kinds.get(&ino) == Some(&Kind::Dir)
    }

    pub fn is_file(&self, ino: u32) -> bool {
        self.kinds.get(&ino) == Some(&Kind::File)
    }

    /// Something is below this path.
    pub fn has_below(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.names().range(below.clone()..).next().is_some_and(|(name, _)| name.starts_with(&below))
    }

    /// What there is becomes this, sooner or later.
    pub fn become_moment(&mut self, change: impl FnOnce(&mut Moment)) {
        let mut moment = self.now().clone();
        change(&mut moment);
        self.moments.push(moment);
    }

    /// The last change did not happen.
    pub fn take_back(&mut self) {
        self.moments.pop();
        assert!(!self.moments.is_empty(), "what is durable is never taken back");
    }

    /// Names below a directory that moves move with it.
    pub fn moved(names: &mut Names, from: &str, to: &str) {
        for (name, ino) in Self::cut_out(names, from) {
            names.insert(format!("{to}{name}"), ino);
        }
    }

    /// Both change places.
    pub fn exchanged(names: &mut Names, one: &str, other: &str) {
        let (ones, others) = (Self::cut_out(names, one), Self::cut_out(names, other));
        names.extend(ones.into_iter().map(|(name, ino)| (format!("{other}{name}"), ino)));
        names.extend(others.into_iter().map(|(name, ino)| (format!("{one}{name}"), ino)));
    }

    /// A name and all below it go: what comes behind the path, and what it is.
    fn cut_out(names: &mut Names, path: &str) -> Vec<(String, u32)> {
        let below = format!("{path}/");
        let of = |name: &String| *name == path || name.starts_with(&below);
        let all: Vec<String> = names.keys().filter(|name| of(name)).cloned().collect();
        let cut = |name: String| names.remove(&name).map(|ino| (name[path.len()..].into(), ino));
        all.into_iter().filter_map(cut).collect()
    }

    /// A mount has found this: nothing else can come any more.
    pub fn is_durable(&mut self, found: Found) {
        self.moments = vec![found.moment];
        self.synced.clear();
        self.kinds = found.kinds;
        let versions = |(content, mode)| Versions::found(content, mode);
        self.files = found.files.into_iter().map(|(ino, of)| (ino, versions(of))).collect();
    }

    /// All names of now are durable.
    pub fn checkpointed(&mut self) {
        self.moments.drain(..self.moments.len() - 1);
        self.synced.clear();
    }

    /// Everything of now is durable.
    pub fn all_durable(&mut self) {
        self.files.values_mut().for_each(|file| file.durable(false));
        self.checkpointed();
    }

    /// Directories and names that a file has in them.
    fn names_of(&self, ino: u32) -> Vec<(u32, String)> {
        let entry = |path: &String| {
            let (dir, name) = parts(path);
            (self.ino(dir).unwrap_or(ROOT), name.to_string())
        };
        self.names().iter().filter(|(_, i)| **i == ino).map(|(path, _)| entry(path)).collect()
    }

    /// An fsync of a file begins.
    pub fn begin_fsync(&mut self, ino: u32) {
        self.fsyncs += 1;
        let at = self.moments.len() - 1;
        let all = self.names_of(ino).into_iter();
        self.synced.extend(all.map(|entry| Synced { at, ino, entry, acked: false }));
    }

    /// It was acknowledged. Nothing else has happened meanwhile.
    pub fn end_fsync(&mut self, ino: u32, data_only: bool) {
        let at = self.moments.len() - 1;
        for synced in &mut self.synced {
            synced.acked |= (synced.at, synced.ino) == (at, ino);
        }
        if let Some(file) = self.files.get_mut(&ino) {
            file.is_synced(data_only);
        }
    }

    /// What was found may be.
    ///
    /// # Errors
    /// It may not, and why.
    pub fn allows(&self, found: &Found) -> Result<(), String> {
        for (ino, kind) in &found.kinds {
            match self.kinds.get(ino) {
                Some(wanted) if wanted == kind => {}
                wanted => return Err(format!("{ino} is {kind:?}, not {wanted:?}")),
            }
        }
        for (ino, (content, mode)) in &found.files {
            let versions = self.files.get(ino).ok_or(format!("there is a file {ino}"))?;
            versions
                .allows(content, *mode)
                .map_err(|why| format!("file {ino}: {why}; synced {}", versions.synced))?;
        }
        // The moment whose names these are, with files that an fsync has brought.
        let mut reasons = Vec::new();
        for (at, moment) in self.moments.iter().enumerate() {
            match self.is_moment(at, moment, &found.moment) {
                Ok(()) => return Ok(()),
                Err(why) => reasons.push(why),
            }
        }
        // The last ones say most.
        let (all, from) = (reasons.len(), reasons.len().saturating_sub(8));
        Err(format!("of {all} moments none is what was found, of late: {:?}", &reasons[from..]))
    }

    fn is_moment(&self, at: usize, moment: &Moment, found: &Moment) -> Result<(), String> {
        let mut wanted = moment.names.clone();
        let mut may = Vec::new();
        for Synced { at: when, ino, entry, acked } in &self.synced {
            if *when <= at {
                continue; // the checkpoint of that moment has it
            }
            let Some(path) = path_of(&moment.names, entry) else {
                // A directory that is new has taken a checkpoint, if this was acknowledged.
                match *acked {
                    true => return Err(format!("{ino} has no directory {}", entry.0)),
                    false => continue,
                }
            };
            // Since then it may have lost the name, or not, as far as it is known to the medium.
            let same = self.moments[*when..].iter().all(|moment| has(&moment.names, entry, *ino));
            match *acked && same {
                true => {
                    wanted.insert(path, *ino);
                }
                false => may.push((path, *ino)),
            }
        }
        for (name, ino) in &found.names {
            if wanted.get(name) != Some(ino) && !may.contains(&(name.clone(), *ino)) {
                return Err(format!("{name} is {ino}"));
            }
        }
        for (name, ino) in &wanted {
            let replaced = may.iter().any(|(n, _)| n == name);
            if found.names.get(name) != Some(ino) && !replaced {
                return Err(format!("{name} is not {ino}"));
            }
        }
        // No fsync by itself has any: where there are some it has taken a checkpoint.
        let none = Xattrs::new();
        for ino in found.names.values() {
            let acked = self.synced.iter().filter(|s| s.acked && s.ino == *ino).map(|s| s.at);
            let since = acked.max().unwrap_or(0).max(at);
            let of = |moment: &Moment| moment.xattrs.get(ino).unwrap_or(&none).clone();
            let (is, wanted) = (of(found), of(&self.moments[since]));
            if is != wanted {
                return Err(format!("{ino} has attributes {is:?}, not {wanted:?}"));
            }
        }
        Ok(())
    }
}
