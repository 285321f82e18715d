//! What the command line says of a target that is to be created.
//!
//! Owns: [`TargetType`], [`Options`]. Promises: an option that the type does not have is found out,
//! none is ignored. Never: knows which options there are, or what they may say: the layer does.

use crate::suggest;
use flashlane_base::Ns;
use flashlane_ftl::layer::{Asked, Kind, Settings};
use flashlane_stack::kinds;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// A type of target: a kind of layer on flash, or raw PUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetType(Option<&'static dyn Kind>);

impl TargetType {
    /// Its layer; a raw target has none.
    pub fn kind(self) -> Option<&'static dyn Kind> {
        self.0
    }

    pub fn name(self) -> &'static str {
        self.0.map_or(kinds::RAW, |kind| kind.name())
    }

    /// The type of what an image's table says; one that this program does not have is none.
    pub fn of(name: &str) -> Option<TargetType> {
        match name {
            kinds::RAW => Some(TargetType(None)),
            name => kinds::targets().find(|k| k.name() == name).map(|k| TargetType(Some(k))),
        }
    }
}

impl FromStr for TargetType {
    type Err = String;

    fn from_str(word: &str) -> Result<TargetType, String> {
        TargetType::of(word).ok_or_else(|| {
            let names = kinds::target_names();
            let hint = suggest::hint(word, names.iter().copied());
            format!("no such target type{hint}; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for TargetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Given {
    Number(u64),
    Word(&'static str),
    Time(Ns),
    Switch(bool),
}

/// Settings of a target that somebody asked for, by their keys.
#[derive(Clone, Debug, Default)]
pub struct Options {
    given: BTreeMap<&'static str, Given>,
    /// Keys that the layer has asked for.
    asked: RefCell<BTreeSet<String>>,
    wrong: RefCell<Vec<String>>,
}

impl Options {
    pub fn number(mut self, key: &'static str, n: Option<u32>) -> Options {
        self.given.extend(n.map(|n| (key, Given::Number(n.into()))));
        self
    }

    /// With the word for something, if there is something.
    pub fn word<T: PartialEq>(
        mut self,
        key: &'static str,
        words: &[(&'static str, T)],
        of: Option<T>,
    ) -> Options {
        let word = of.and_then(|of| words.iter().find(|(_, value)| *value == of));
        self.given.extend(word.map(|(word, _)| (key, Given::Word(word))));
        self
    }

    pub fn time(mut self, key: &'static str, time: Option<Ns>) -> Options {
        self.given.extend(time.map(|time| (key, Given::Time(time))));
        self
    }

    pub fn switch(mut self, key: &'static str, on: Option<bool>) -> Options {
        self.given.extend(on.map(|on| (key, Given::Switch(on))));
        self
    }

    /// Settings of a layer that are as these options have them, and else like `base`.
    ///
    /// # Errors
    /// The layer has no such option, as it is given on the command line, or one says something wrong.
    pub(crate) fn settings(
        &self,
        kind: &dyn Kind,
        base: &Settings,
    ) -> Result<Settings, WrongOption> {
        let settings = kind.settings(self, base);
        if let Some(says) = self.wrong.borrow().first() {
            return Err(WrongOption::Says(says.clone()));
        }
        self.leftover().map_or(Ok(settings), |flag| Err(WrongOption::Misplaced(flag)))
    }

    /// The first option that nobody has asked for.
    pub(crate) fn leftover(&self) -> Option<String> {
        let asked = self.asked.borrow();
        self.given.keys().find(|key| !asked.contains(**key)).map(|key| flag(key))
    }

    fn get(&self, key: &str) -> Option<&Given> {
        self.asked.borrow_mut().insert(key.into());
        self.given.get(key)
    }
}

pub(crate) enum WrongOption {
    /// The type has no such option.
    Misplaced(String),
    /// What the layer says.
    Says(String),
}

/// The types of targets that have this option, as it is typed.
pub(crate) fn kinds_with(typed: &str) -> String {
    let has = |kind: &&dyn Kind| {
        let probe = Options::default();
        kind.settings(&probe, &kind.defaults());
        probe.asked.borrow().iter().any(|key| flag(key) == typed)
    };
    let names: Vec<&str> = kinds::targets().filter(has).map(|kind| kind.name()).collect();
    match names.split_last() {
        Some((last, [])) => (*last).into(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => "no target".into(),
    }
}

/// An option as it is typed.
pub(crate) fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

impl Asked for Options {
    fn has(&self, key: &str) -> bool {
        self.given.contains_key(key)
    }

    /// The owner of a target checks the bounds when it makes one, and says more than we could.
    fn number(&self, key: &str, _: u64, _: u64) -> Option<u64> {
        match self.get(key)? {
            Given::Number(n) => Some(*n),
            _ => None,
        }
    }

    fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Given::Switch(on) => Some(*on),
            _ => None,
        }
    }

    fn word(&self, key: &str, words: &[&'static str]) -> Option<usize> {
        match self.get(key)? {
            Given::Word(word) => words.iter().position(|known| known == word),
            _ => None,
        }
    }

    fn time(&self, key: &str) -> Option<Ns> {
        match self.get(key)? {
            Given::Time(time) => Some(*time),
            _ => None,
        }
    }

    fn complain(&self, _: &str, says: String) {
        self.wrong.borrow_mut().push(says);
    }
}
