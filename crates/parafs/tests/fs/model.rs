//! Many operations by a seed, on the file system and on a plain model of one.

use flashlane_base::{Rng, SECTOR_BYTES};
use flashlane_parafs::{Fallocate, Fs, FsError, ROOT, Rename};
use flashlane_rt::Cx;
use flashlane_testkit::files::{DIR, FILE, content, make, mount, new, now, ram, run, seeds, sound};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A file of the model: its names are where directories have it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Dir(BTreeMap<String, u32>),
    File(Vec<u8>),
}

/// What should be there, by the numbers that the file system gave.
#[derive(Clone, Debug)]
struct Model {
    nodes: BTreeMap<u32, Node>,
    links: BTreeMap<u32, u32>,
    parent: BTreeMap<u32, u32>,
}

impl Model {
    fn new() -> Model {
        Model {
            nodes: BTreeMap::from([(ROOT, Node::Dir(BTreeMap::new()))]),
            links: BTreeMap::new(),
            parent: BTreeMap::from([(ROOT, ROOT)]),
        }
    }

    fn dir(&mut self, ino: u32) -> &mut BTreeMap<String, u32> {
        match self.nodes.get_mut(&ino) {
            Some(Node::Dir(names)) => names,
            other => panic!("no directory {ino}: {other:?}"),
        }
    }

    fn is_dir(&self, ino: u32) -> bool {
        matches!(self.nodes[&ino], Node::Dir(_))
    }

    fn below(&self, mut dir: u32, of: u32) -> bool {
        while dir != of && dir != ROOT {
            dir = self.parent[&dir];
        }
        dir == of
    }

    fn lose(&mut self, ino: u32) {
        if self.is_dir(ino) {
            self.nodes.remove(&ino);
            return;
        }
        let links = self.links.get_mut(&ino).expect("it has some");
        *links -= 1;
        if *links == 0 {
            self.nodes.remove(&ino);
        }
    }
}

struct Actor {
    cx: Cx,
    fs: Arc<Fs>,
    rng: Rng,
    model: Model,
}

impl Actor {
    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n.max(1))
    }

    fn name(&mut self) -> String {
        let number = self.below(12);
        match self.below(4) {
            // Names of all lengths.
            0 => format!("{number}{}", "x".repeat(number as usize * 20)),
            _ => format!("n{number}"),
        }
    }

    fn pick(&mut self, dirs: bool) -> Option<u32> {
        let all: Vec<u32> = self
            .model
            .nodes
            .keys()
            .copied()
            .filter(|ino| self.model.is_dir(*ino) == dirs)
            .collect();
        let i = self.below(all.len() as u64) as usize;
        all.get(i).copied()
    }

    /// One operation; both must say the same.
    async fn step(&mut self) {
        let (cx, fs, t) = (self.cx.clone(), self.fs.clone(), now(&self.cx));
        let dir = self.pick(true).expect("the root");
        let name = self.name();
        let bytes = name.clone().into_bytes();
        let there = self.model.dir(dir).get(&name).copied();
        match self.below(20) {
            0..=3 => {
                let mode = if self.below(4) == 0 { DIR } else { FILE };
                match fs.create(&cx, dir, &bytes, &new(mode), t).await {
                    Ok(made) => {
                        assert_eq!(there, None);
                        self.model.dir(dir).insert(name, made.ino);
                        let node = match mode {
                            DIR => Node::Dir(BTreeMap::new()),
                            _ => Node::File(Vec::new()),
                        };
                        assert!(self.model.nodes.insert(made.ino, node).is_none());
                        self.model.links.insert(made.ino, 1);
                        self.model.parent.insert(made.ino, dir);
                    }
                    Err(FsError::Exists) => assert!(there.is_some()),
                    Err(e) => assert_eq!(e, FsError::NoSpace),
                }
            }
            4 | 5 => {
                let rmdir = self.below(2) == 0;
                let done = match rmdir {
                    true => fs.rmdir(&cx, dir, &bytes, t).await,
                    false => fs.unlink(&cx, dir, &bytes, t).await,
                };
                let wanted = match there {
                    None => Err(FsError::NotFound),
                    Some(ino) => match (&self.model.nodes[&ino], rmdir) {
                        (Node::Dir(_), false) => Err(FsError::IsDirectory),
                        (Node::File(_), true) => Err(FsError::NotDirectory),
                        (Node::Dir(names), true) if !names.is_empty() => Err(FsError::NotEmpty),
                        _ => Ok(()),
                    },
                };
                assert_eq!(done, wanted);
                if done.is_ok() {
                    self.model.dir(dir).remove(&name);
                    self.model.lose(there.expect("it is there"));
                }
            }
            6..=8 => {
                let to = self.pick(true).expect("the root");
                let to_name = self.name();
                let how =
                    [Rename::Replace, Rename::NoReplace, Rename::Exchange][self.below(3) as usize];
                let to_bytes = to_name.clone().into_bytes();
                let done = fs.rename(&cx, (dir, &bytes), (to, &to_bytes), how, t).await;
                self.renamed((dir, name), (to, to_name), how, done);
            }
            9 => {
                let Some(file) = self.pick(false) else { return };
                match fs.link(&cx, file, dir, &bytes, t).await {
                    Ok(_) => {
                        assert_eq!(there, None);
                        self.model.dir(dir).insert(name, file);
                        *self.model.links.get_mut(&file).expect("it has one") += 1;
                    }
                    Err(FsError::Exists) => assert!(there.is_some()),
                    Err(e) => assert_eq!(e, FsError::NoSpace),
                }
            }
            10..=13 => {
                let Some(file) = self.pick(false) else { return };
                let (at, fill) = (self.below(60_000), self.below(256) as u8);
                let most = if self.below(5) == 0 { 40_000 } else { 3_000 };
                let data = vec![fill; self.below(most) as usize];
                match fs.write(&cx, file, at, &data, t).await {
                    Ok(()) if data.is_empty() => {}
                    Ok(()) => self.file(file, |content| {
                        let end = at as usize + data.len();
                        content.resize(content.len().max(end), 0);
                        content[at as usize..end].copy_from_slice(&data);
                    }),
                    Err(e) => assert_eq!(e, FsError::NoSpace),
                }
            }
            14 | 15 => {
                let Some(file) = self.pick(false) else { return };
                let size = self.below(70_000);
                match fs.truncate(&cx, file, size, t).await {
                    Ok(()) => self.file(file, |content| content.resize(size as usize, 0)),
                    Err(e) => assert_eq!(e, FsError::NoSpace),
                }
            }
            16 => {
                let Some(file) = self.pick(false) else { return };
                let (at, bytes) = (self.below(60_000), 1 + self.below(30_000));
                let what =
                    [Fallocate::Keep, Fallocate::Punch, Fallocate::Zero][self.below(3) as usize];
                let keep_size = self.below(2) == 0 || what == Fallocate::Punch;
                match fs.fallocate(&cx, file, (at, bytes), what, keep_size, t).await {
                    Ok(()) => self.file(file, |content| {
                        let end = (at + bytes) as usize;
                        if !keep_size {
                            content.resize(content.len().max(end), 0);
                        }
                        let to = end.min(content.len());
                        if what != Fallocate::Keep && (at as usize) < to {
                            content[at as usize..to].fill(0);
                        }
                    }),
                    // A part may have been done.
                    Err(e) => {
                        assert_eq!(e, FsError::NoSpace);
                        let now = content(&cx, &fs, file).await;
                        self.file(file, |content| *content = now);
                    }
                }
            }
            17 => {
                let Some(file) = self.pick(false) else { return };
                let data_only = self.below(2) == 0;
                fs.fsync(&cx, file, data_only).await.expect("it is written");
            }
            18 => {
                let Some(file) = self.pick(false) else { return };
                let Node::File(wanted) = &self.model.nodes[&file] else { unreachable!() };
                assert!(content(&cx, &fs, file).await == *wanted, "file {file}");
            }
            _ => match self.below(4) {
                0 => fs.sync(&cx).await.expect("it is written"),
                1 => fs.checkpoint(&cx).await.expect("it is written"),
                _ => {
                    let found = fs.lookup(&cx, dir, &bytes).await.map(|f| f.ino);
                    assert_eq!(found, there.ok_or(FsError::NotFound));
                }
            },
        }
    }

    fn file(&mut self, ino: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let Some(Node::File(content)) = self.model.nodes.get_mut(&ino) else {
            panic!("no file {ino}")
        };
        change(content);
    }

    fn renamed(
        &mut self,
        (dir, name): (u32, String),
        (to, to_name): (u32, String),
        how: Rename,
        done: Result<(), FsError>,
    ) {
        let from = self.model.dir(dir).get(&name).copied();
        let there = self.model.dir(to).get(&to_name).copied();
        let m = &self.model;
        let wanted = (|| {
            let from = from.ok_or(FsError::NotFound)?;
            let invalid = FsError::Invalid("a directory below itself");
            if m.is_dir(from) && m.below(to, from) {
                return Err(invalid);
            }
            match (there, how) {
                (Some(_), Rename::NoReplace) => Err(FsError::Exists),
                (None, Rename::Exchange) => Err(FsError::NotFound),
                (Some(there), _) if there == from => Ok(()),
                (Some(there), Rename::Exchange) => match m.is_dir(there) && m.below(dir, there) {
                    true => Err(invalid),
                    false => Ok(()),
                },
                (Some(there), Rename::Replace) => match (m.is_dir(from), &m.nodes[&there]) {
                    (true, Node::File(_)) => Err(FsError::NotDirectory),
                    (false, Node::Dir(_)) => Err(FsError::IsDirectory),
                    (true, Node::Dir(names)) if !names.is_empty() => Err(FsError::NotEmpty),
                    _ => Ok(()),
                },
                _ => Ok(()),
            }
        })();
        if done == Err(FsError::NoSpace) {
            return;
        }
        assert_eq!(done, wanted, "{how:?} of {from:?} to {there:?}");
        let Some(from) = from.filter(|_| done.is_ok() && there != from) else { return };
        if how == Rename::Exchange {
            let there = there.expect("it is there");
            self.model.dir(dir).insert(name, there);
            self.model.parent.insert(there, dir);
        } else {
            self.model.dir(dir).remove(&name);
            if let Some(there) = there {
                self.model.lose(there);
            }
        }
        self.model.dir(to).insert(to_name, from);
        self.model.parent.insert(from, to);
    }

    /// All that is there is what should be.
    fn compare(&self, ino: u32) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            let (cx, fs) = (&self.cx, &self.fs);
            match &self.model.nodes[&ino] {
                Node::File(wanted) => {
                    assert!(content(cx, fs, ino).await == *wanted, "file {ino}");
                    let links = fs.attributes(cx, ino).await.expect("it is there").links;
                    assert_eq!(links, self.model.links[&ino]);
                }
                Node::Dir(names) => {
                    let entries = fs.read_dir(cx, ino, 0, 1000).await.expect("it is read");
                    let found: BTreeMap<String, u32> = entries
                        .into_iter()
                        .map(|e| (String::from_utf8(e.name).expect("text"), e.ino))
                        .collect();
                    assert_eq!(found, *names, "directory {ino}");
                    let inos: BTreeSet<u32> = names.values().copied().collect();
                    for child in inos {
                        self.compare(child).await;
                    }
                }
            }
        })
    }
}

async fn life(cx: Cx, seed: u64, steps: u32) {
    let mut rng = Rng::stream(seed, "life", 0);
    // Small ones are full now and then.
    let device = ram([7, 12, 24][rng.below(3) as usize], seed);
    assert_eq!(SECTOR_BYTES, 4096);
    make(&cx, &device, 1 << rng.below(2)).await;
    let fs = mount(&cx, &device).await;
    let mut actor = Actor { cx: cx.clone(), fs, rng, model: Model::new() };
    for _ in 0..steps {
        actor.step().await;
        if actor.below(150) == 0 {
            actor.fs.unmount(&cx).await.expect("it is written");
            sound(&cx, &device).await;
            actor.fs = mount(&cx, &device).await;
        }
    }
    actor.compare(ROOT).await;
    assert_eq!(actor.fs.walk(), Ok(()));
    actor.fs.unmount(&cx).await.expect("it is written");
    let report = sound(&cx, &device).await;
    let dirs = actor.model.nodes.keys().filter(|ino| actor.model.is_dir(**ino)).count();
    assert_eq!(report.directories, dirs as u64);
    assert_eq!(report.files, (actor.model.nodes.len() - dirs) as u64);
    actor.fs = mount(&cx, &device).await;
    actor.compare(ROOT).await;
}

#[test]
fn lives_are_those_of_the_model() {
    for seed in seeds(0..40) {
        println!("FLASHLANE_SEED={seed}: begins");
        run(seed, move |cx| life(cx, seed, 800));
    }
}
