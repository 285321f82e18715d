//! Which files there are, in which folders, and how large they are.
//!
//! Owns: the drawing of a set ([`Tree::draw`]) as Filebench's `fileset_populate` does it: sizes, widths and
//! depths are gamma distributed with shape 1.5 (its `sizegamma` and `dirgamma` of 1500). Promises: the
//! same settings give the same set. Never: touches a file system.

use crate::personality::{Personality, Settings};
use flashlane_base::Rng;

/// `sizegamma` and `dirgamma`, 1500 in thousandths.
const SHAPE: f64 = 1.5;

/// A file that there is room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Below the root, with `/` between folders.
    pub path: String,
    /// What it has when it is written whole.
    pub bytes: u64,
    /// It is there before the first operation.
    pub there: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Each after the one that it is in.
    pub folders: Vec<String>,
    /// In the order in which they are picked.
    pub files: Vec<Planned>,
    /// The order in which they are made at first.
    pub order: Vec<usize>,
    /// The web server's.
    pub log: Option<Planned>,
}

impl Tree {
    /// Draws the set of these settings, which make sense.
    pub fn draw(settings: &Settings) -> Tree {
        let mut rng = Rng::stream(settings.seed, "tree", 0);
        let mut folders = vec!["bigfileset".to_string()];
        let wide = (settings.width.max(2) as f64).ln();
        let mut draw = Draw {
            rng: &mut rng,
            depth: (settings.files as f64).ln() / wide,
            width: settings.width as f64,
            left: settings.files,
            paths: Vec::new(),
            folders: &mut folders,
        };
        // The root goes on until there are enough.
        let mut serial = 1;
        while draw.left > 0 {
            draw.folder("bigfileset", serial, 2);
            serial += 1;
        }
        let paths = draw.paths;
        let mean = settings.mean.get() as f64;
        let each = |path| Planned {
            path,
            bytes: gamma(&mut rng, mean) as u64,
            there: rng.below(100) < settings.there_percent,
        };
        let mut files: Vec<Planned> = paths.into_iter().map(each).collect();
        if !files.iter().any(|file| file.there) {
            files[0].there = true;
        }
        let mut order: Vec<usize> = (0..files.len()).collect();
        rng.shuffle(&mut order);
        let log = (settings.personality == Personality::Webserver).then(|| {
            folders.push("logfiles".into());
            let path = "logfiles/00000001".into();
            Planned { path, bytes: gamma(&mut rng, mean) as u64, there: true }
        });
        Tree { folders, files, order, log }
    }

    /// Bytes of the files that are there at first.
    pub fn bytes(&self) -> u64 {
        self.files.iter().chain(&self.log).filter(|file| file.there).map(|file| file.bytes).sum()
    }
}

struct Draw<'a> {
    rng: &'a mut Rng,
    /// Means.
    depth: f64,
    width: f64,
    /// Files that are not drawn yet.
    left: u64,
    paths: Vec<String>,
    folders: &'a mut Vec<String>,
}

impl Draw<'_> {
    /// A folder at this depth, the root's being 1: full of files if it is as deep as it was drawn to
    /// be, else of folders.
    fn folder(&mut self, parent: &str, serial: u64, depth: u32) {
        let path = format!("{parent}/{serial:08}");
        self.folders.push(path.clone());
        let deep = (gamma(self.rng, self.depth) as u32).max(1);
        let wide = gamma(self.rng, self.width);
        let mut serial = 1;
        while serial as f64 <= wide.max(1.0) && self.left > 0 {
            if depth >= deep {
                self.paths.push(format!("{path}/{serial:08}"));
                self.left -= 1;
            } else {
                self.folder(&path, serial, depth + 1);
            }
            serial += 1;
        }
    }
}

/// A gamma distributed number with this mean (Marsaglia and Tsang, "A simple method for generating gamma
/// variables", for shapes of 1 and more).
fn gamma(rng: &mut Rng, mean: f64) -> f64 {
    let d = SHAPE - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        // Never 0, which has no logarithm.
        let u = 1.0 - rng.unit_f64();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v * mean / SHAPE;
        }
    }
}

/// Box and Muller.
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit_f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit_f64()).cos()
}
