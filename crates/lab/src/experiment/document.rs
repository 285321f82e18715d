//! A TOML file with places, so that everything wrong with it can be said at once.
//!
//! Owns: parsing, changes of the command line, typed access to tables, the list of complaints.
//! Promises: a complaint has file, line and column (or the option it came from) and the line
//! itself; a key that nobody asked for is unknown. Never: stops at the first complaint, unless the
//! file is no TOML.

use crate::suggest;
use flashlane_stack::kinds;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use toml::de::{DeTable, DeValue};

/// Where something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// The file as a whole: it is no TOML, and stands for this.
    Whole,
    /// Byte offset in the file.
    File(usize),
    /// The n-th change of the command line.
    Change(usize),
}

/// What the command line changes about a file, in the order in which it is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `--device PRESET`: another device; how it is used (`store`, `queue`, ...) stays.
    Device(String),
    /// `--target KIND[:ACTIVE_PUS]`: these targets and no others, under what the targets of the first
    /// workload run.
    Targets(Vec<String>),
    /// `--drive`: a target of this type, and what stands on the first target.
    OnDrive(String),
    /// `--store KIND`.
    Store(String),
    /// `--seed N`.
    Seed(u64),
    /// `--scale-to-device`, for every trace.
    ScaleToDevice,
    /// `--set key=value`.
    Set(String),
    /// The same, written in the file itself.
    Written(String, At),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Device(preset) => write!(f, "--device {preset}"),
            Change::Targets(targets) => write!(f, "--target {}", targets.join(" --target ")),
            Change::OnDrive(kind) => write!(f, "--drive, on a target of type {kind}"),
            Change::Store(store) => write!(f, "--store {store}"),
            Change::Seed(seed) => write!(f, "--seed {seed}"),
            Change::ScaleToDevice => write!(f, "--scale-to-device"),
            Change::Set(set) => write!(f, "--set {set}"),
            Change::Written(set, _) => write!(f, "{set}"),
        }
    }
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub at: At,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    /// Integer.
    Int(i64),
    Float(f64),
    /// Boolean.
    Flag(bool),
    /// Array.
    List(Vec<Item>),
    Table(BTreeMap<String, Item>),
}

impl Value {
    /// A table of a document that is no file's text.
    pub fn table<const N: usize>(entries: [(&str, Value); N]) -> Value {
        Value::Table(Value::entries(entries))
    }

    /// The entries of such a table.
    pub fn entries<const N: usize>(entries: [(&str, Value); N]) -> BTreeMap<String, Item> {
        entries.map(|(key, value)| (key.to_string(), Item { at: At::Whole, value })).into()
    }

    /// Whole or not.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Value::Float(x) => Some(*x),
            Value::Int(n) => Some(*n as f64),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "a string",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Flag(_) => "true or false",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// As TOML itself, for handing a table on to another parser.
    pub fn to_toml(&self) -> toml::Value {
        match self {
            Value::Text(t) => toml::Value::String(t.clone()),
            Value::Int(n) => toml::Value::Integer(*n),
            Value::Float(x) => toml::Value::Float(*x),
            Value::Flag(b) => toml::Value::Boolean(*b),
            Value::List(l) => toml::Value::Array(l.iter().map(|i| i.value.to_toml()).collect()),
            Value::Table(t) => {
                toml::Value::Table(t.iter().map(|(k, i)| (k.clone(), i.value.to_toml())).collect())
            }
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// `file:line:column`, or the option of the command line.
    pub place: String,
    /// What is wrong and what would do.
    pub message: String,
    /// The line, if there is one.
    pub text: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)?;
        if !self.text.is_empty() {
            write!(f, "\n  {}", self.text)?;
        }
        Ok(())
    }
}

/// A file that was parsed.
#[derive(Debug)]
pub struct Document {
    file: String,
    text: String,
    changes: Vec<Change>,
    root: BTreeMap<String, Item>,
    /// Of the targets that `--target` has picked, their places in the file.
    picked: Option<Vec<usize>>,
    complaints: RefCell<Vec<(At, String)>>,
}

pub const FILE_BYTES_MAX: usize = 1 << 20;

impl Document {
    /// Parses a text and applies changes in order.
    pub fn parse(file: &str, text: &str, changes: &[Change]) -> Result<Document, Complaint> {
        let refuse =
            |message: String| Complaint { place: file.into(), message, text: String::new() };
        if text.len() > FILE_BYTES_MAX {
            return Err(refuse(format!(
                "too large for an experiment ({} bytes, {FILE_BYTES_MAX} at most)",
                text.len()
            )));
        }
        let mut document = Document::of(file, BTreeMap::new());
        document.text = text.into();
        let table = DeTable::parse(text).map_err(|e| {
            let at = At::File(e.span().map_or(0, |s| s.start));
            document.located(at, e.message().to_string())
        })?;
        document.root = table_of(table.get_ref(), &mut |offset| At::File(offset));
        document.changed(changes)
    }

    /// What a file stands for that is no TOML.
    pub fn of(file: &str, root: BTreeMap<String, Item>) -> Document {
        let (file, text) = (file.into(), String::new());
        let (changes, complaints) = (Vec::new(), RefCell::default());
        Document { file, text, changes, root, picked: None, complaints }
    }

    /// Applies changes in order.
    pub fn changed(mut self, changes: &[Change]) -> Result<Document, Complaint> {
        self.changes = changes.to_vec();
        for (index, change) in changes.iter().enumerate() {
            let at = match change {
                Change::Written(_, at) => *at,
                _ => At::Change(index),
            };
            if let Err(message) = self.apply(at, change) {
                return Err(self.located(at, message));
            }
        }
        Ok(self)
    }

    /// What lies under a key, as a file of its own, with changes applied in order.
    pub fn below(&self, key: &str, changes: &[Change]) -> Result<Document, Complaint> {
        let root = match self.root.get(key).map(|item| &item.value) {
            Some(Value::Table(table)) => table.clone(),
            _ => BTreeMap::new(),
        };
        let mut document = Document::of(&self.file, root);
        document.text.clone_from(&self.text);
        document.changed(changes)
    }

    pub fn root(&self) -> Section<'_> {
        let at = if self.text.is_empty() { At::Whole } else { At::File(0) };
        Section::new(self, String::new(), at, &self.root)
    }

    /// Whether `--target` has left out some of the targets that the file has.
    pub(super) fn is_picked(&self) -> bool {
        self.picked.is_some()
    }

    /// Notes a complaint.
    pub fn complain(&self, at: At, message: impl Into<String>) {
        self.complaints.borrow_mut().push((at, message.into()));
    }

    /// All complaints, in the order of the file; of one place, in the order in which they were
    /// made.
    pub fn complaints(&self) -> Vec<Complaint> {
        let mut all = self.complaints.borrow().clone();
        let mut said = BTreeSet::new();
        all.retain(|complaint| said.insert(complaint.clone()));
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(at, m)| self.located(at, m)).collect()
    }

    fn located(&self, at: At, message: String) -> Complaint {
        let whole = |place| Complaint { place, message: message.clone(), text: String::new() };
        let offset = match at {
            At::Change(index) => return whole(self.changes[index].to_string()),
            At::Whole => return whole(self.file.clone()),
            At::File(offset) => offset.min(self.text.len()),
        };
        let before = &self.text.as_bytes()[..offset];
        let line = before.iter().filter(|b| **b == b'\n').count() + 1;
        let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
        let text = self.text.lines().nth(line - 1).unwrap_or("");
        Complaint {
            place: format!("{}:{line}:{}", self.file, offset - start + 1),
            message,
            text: text.trim_end().chars().take(160).collect(),
        }
    }

    fn apply(&mut self, at: At, change: &Change) -> Result<(), String> {
        let text = |text: &str| Value::Text(text.into());
        match change {
            Change::Set(set) | Change::Written(set, _) => self.apply_set(at, set),
            Change::Device(preset) => {
                // Dimensions and times of another device mean nothing on this one.
                let kept = ["store", "queue", "null", "dulbe", "limited_retry", "faults"];
                let mut table = BTreeMap::new();
                if let Some(Value::Table(old)) = self.root.get("device").map(|i| &i.value) {
                    let kept = old.iter().filter(|(key, _)| kept.contains(&key.as_str()));
                    table.extend(kept.map(|(k, v)| (k.clone(), v.clone())));
                }
                table.insert("preset".into(), Item { at, value: text(preset) });
                let value = Value::Table(table);
                self.root.insert("device".into(), Item { at, value });
                Ok(())
            }
            Change::Targets(targets) => {
                if targets.iter().any(|t| t.trim().is_empty()) {
                    return Err("a target needs a name or a type: `--target pblk`".into());
                }
                let all = self.own_targets();
                let by_name = |t: &String| all.iter().any(|own| own.is_named && own.by == *t);
                let there = |t: &String| all.iter().any(|own| own.by == *t);
                if targets.iter().any(by_name) || targets.iter().all(there) {
                    return self.pick(targets);
                }
                let tables = targets.iter().map(|text| {
                    match all.iter().find(|own| own.by == *text).map(|own| &own.item.value) {
                        Some(Value::Table(table)) => Ok(table.clone()),
                        _ => known_target(text, &all).and_then(|()| target_of(at, text)),
                    }
                });
                let tables = tables.collect::<Result<_, _>>()?;
                self.run_on(at, tables);
                Ok(())
            }
            Change::OnDrive(kind) => {
                self.is_of_blocks()?;
                let mut table = self.filters();
                table.extend(target_of(at, kind)?);
                self.run_on(at, vec![table]);
                Ok(())
            }
            Change::Store(store) => self.insert(at, &["device"], "store", text(store)),
            Change::Seed(seed) => match i64::try_from(*seed) {
                Ok(seed) => self.insert(at, &["run"], "seed", Value::Int(seed)),
                Err(_) => Err("the seed must be below 2^63".into()),
            },
            Change::ScaleToDevice => self.scale(at),
        }
    }

    /// Workloads of files have no place on a drive's target.
    fn is_of_blocks(&self) -> Result<(), String> {
        let Some(Value::List(list)) = self.root.get("workload").map(|item| &item.value) else {
            return Ok(());
        };
        let is_files =
            |item: &Item| matches!(&item.value, Value::Table(t) if t.contains_key("files"));
        match list.iter().any(is_files) {
            false => Ok(()),
            true => Err("a workload of files (`files = ...`) makes a file system of its own on a fresh \
                         device, and a drive is kept as it is: leave --drive out, or use the drive by \
                         `flashlane mkfs` and `flashlane mount`"
                .into()),
        }
    }

    /// The targets of the experiment that `--target` can pick.
    fn own_targets(&self) -> Vec<OwnTarget> {
        let Some(Value::List(list)) = self.root.get("target").map(|item| &item.value) else {
            return Vec::new();
        };
        let own = list.iter().enumerate().filter_map(|(place, item)| {
            let Value::Table(table) = &item.value else { return None };
            let text = |key: &str| match &table.get(key)?.value {
                Value::Text(text) => Some(text.clone()),
                _ => None,
            };
            let (name, item) = (text("name"), item.clone());
            let is_named = name.is_some();
            Some(OwnTarget { is_named, by: name.or_else(|| text("kind"))?, place, item })
        });
        own.collect()
    }

    /// Of its own targets these, as they are, with the workloads that are for one of them.
    fn pick(&mut self, names: &[String]) -> Result<(), String> {
        let all = self.own_targets();
        let picked = names.iter().map(|name| {
            let found = all.iter().filter(|own| own.by == *name);
            let found: Vec<(usize, Item)> =
                found.map(|own| (own.place, own.item.clone())).collect();
            match found.is_empty() {
                true => {
                    let hint = suggest::hint(name, all.iter().map(|own| own.by.as_str()));
                    Err(format!("no target is called `{name}`; there are {}{hint}", listed(&all)))
                }
                false => Ok(found),
            }
        });
        let picked = picked.collect::<Result<Vec<_>, _>>()?.concat();
        let (places, picked) = picked.into_iter().unzip();
        self.picked = Some(places);
        if let Some(target) = self.root.get_mut("target") {
            target.value = Value::List(picked);
        }
        let is_left_out =
            |name: &String| all.iter().any(|own| own.by == *name) && !names.contains(name);
        if let Some(Value::List(list)) = self.root.get_mut("workload").map(|w| &mut w.value) {
            list.retain_mut(|item| {
                let Value::Table(table) = &mut item.value else { return true };
                let Some(Value::List(of)) = table.get_mut("targets").map(|t| &mut t.value) else {
                    return true;
                };
                let had = of.len();
                of.retain(|t| !matches!(&t.value, Value::Text(t) if is_left_out(t)));
                had == 0 || !of.is_empty()
            });
        }
        Ok(())
    }

    /// What stands on the first target.
    fn filters(&self) -> BTreeMap<String, Item> {
        let first = match self.root.get("target").map(|item| &item.value) {
            Some(Value::List(list)) => list.first().map(|item| &item.value),
            one => one,
        };
        let Some(Value::Table(table)) = first else { return BTreeMap::new() };
        let is_filter = |key: &String| kinds::filters().any(|kind| kind.name() == key);
        let filters = table.iter().filter(|(key, _)| is_filter(key));
        filters.map(|(key, item)| (key.clone(), item.clone())).collect()
    }

    /// On these targets: of the workloads the first, and those for the same targets as that; for all targets
    /// that there are.
    fn run_on(&mut self, at: At, targets: Vec<BTreeMap<String, Item>>) {
        let tables = targets.into_iter().map(|table| Item { at, value: Value::Table(table) });
        let value = Value::List(tables.collect());
        self.root.insert("target".into(), Item { at, value });
        let Some(Value::List(list)) = self.root.get_mut("workload").map(|w| &mut w.value) else {
            return;
        };
        let targets = |item: &Item| match &item.value {
            Value::Table(table) => table.get("targets").map(|t| t.value.clone()),
            _ => None,
        };
        let first = list.first().and_then(targets);
        list.retain(|item| targets(item).is_none_or(|t| Some(t) == first));
        for item in list {
            if let Value::Table(table) = &mut item.value {
                table.remove("targets");
            }
        }
    }

    /// Turns packing on for every trace.
    fn scale(&mut self, at: At) -> Result<(), String> {
        let Some(workload) = self.root.get_mut("workload") else {
            return Ok(()); // that it is missing is said anyway
        };
        let tables: Vec<&mut Value> = match &mut workload.value {
            Value::List(list) => list.iter_mut().map(|i| &mut i.value).collect(),
            one => vec![one],
        };
        let mut any = false;
        for table in tables {
            if let Value::Table(table) = table
                && table.contains_key("trace")
            {
                let value = Value::Flag(true);
                table.insert("scale_to_device".into(), Item { at, value });
                any = true;
            }
        }
        any.then_some(()).ok_or_else(|| "this is for traces, and the workload has none".into())
    }

    /// Applies `a.b.2.c=value`. A value that is no TOML is a string.
    fn apply_set(&mut self, at: At, set: &str) -> Result<(), String> {
        let usage = "write it `--set table.key=value`, for example `--set target.0.active_pus=4`";
        let (path, text) = set.split_once('=').ok_or_else(|| usage.to_string())?;
        let keys: Vec<&str> = path.trim().split('.').map(str::trim).collect();
        let (last, parents) = keys.split_last().expect("split gives at least one");
        if keys.iter().any(|k| k.is_empty()) || last.parse::<usize>().is_ok() {
            return Err(usage.into());
        }
        self.insert(at, parents, last, parse_value(text.trim(), at))
    }

    /// Puts a value under a path of tables; a number picks from a list.
    fn insert(
        &mut self,
        at: At,
        mut path: &[&str],
        last: &str,
        value: Value,
    ) -> Result<(), String> {
        // A target counts as in the file, whichever are picked.
        let mut places = self.picked.as_ref().filter(|_| path.first() == Some(&"target"));
        let mut table = &mut self.root;
        while let Some((key, deeper)) = path.split_first() {
            let item = table
                .entry((*key).to_string())
                .or_insert_with(|| Item { at, value: Value::Table(BTreeMap::new()) });
            path = deeper;
            table = match &mut item.value {
                Value::Table(t) => t,
                Value::List(list) => {
                    let n = list.len();
                    let Some((number, deeper)) = path.split_first() else {
                        return Err(format!("`{key}` is a list: say which, `{key}.0.{last}=...`"));
                    };
                    path = deeper;
                    let mut index: Option<usize> = number.parse().ok();
                    if let Some(places) = places.take() {
                        index = places.iter().position(|place| Some(*place) == index);
                        if index.is_none() {
                            let there: Vec<String> =
                                places.iter().map(|n| format!("`target.{n}`")).collect();
                            return Err(format!(
                                "`target.{number}` is none that --target picks: targets count as in \
                                 the file, and picked are {}",
                                there.join(", ")
                            ));
                        }
                    }
                    let picked = index.and_then(|i| list.get_mut(i));
                    match picked.map(|item| &mut item.value) {
                        Some(Value::Table(t)) => t,
                        _ => return Err(format!("`{key}` has the entries 0 to {}", n.max(1) - 1)),
                    }
                }
                other => return Err(format!("`{key}` is {}, not a table", other.kind())),
            };
        }
        table.insert(last.to_string(), Item { at, value });
        Ok(())
    }
}

/// A target of the experiment, and what `--target` picks it by: its name, or its type where it has none.
struct OwnTarget {
    by: String,
    is_named: bool,
    place: usize,
    item: Item,
}

fn listed(all: &[OwnTarget]) -> String {
    all.iter().map(|own| format!("`{}`", own.by)).collect::<Vec<_>>().join(", ")
}

/// Refuses what is neither a target of the experiment nor a type.
fn known_target(text: &str, all: &[OwnTarget]) -> Result<(), String> {
    let kind = text.split_once(':').map_or(text, |(kind, _)| kind);
    let types = kinds::targets().map(|kind| kind.name()).chain([super::PARAFS, kinds::RAW]);
    let types: Vec<&str> = types.collect();
    if types.contains(&kind) || all.is_empty() {
        return Ok(()); // what else is wrong with it is said where it is read
    }
    let own = all.iter().map(|own| own.by.as_str());
    let hint = suggest::hint(kind, own.chain(types.iter().copied()));
    Err(format!(
        "no target is called `{text}`: the experiment has {}, and a new one is of one of the types {}{hint}",
        listed(all),
        types.join(", ")
    ))
}

/// `pblk`, `pblk:4` or `pftl` as a table of [[target]].
fn target_of(at: At, text: &str) -> Result<BTreeMap<String, Item>, String> {
    let (kind, pus) = text.split_once(':').map_or((text, None), |(k, n)| (k, Some(n)));
    let mut table = BTreeMap::new();
    let value = Value::Text(kind.into());
    table.insert("kind".to_string(), Item { at, value });
    if let Some(pus) = pus {
        let number: Option<i64> = pus.parse().ok().filter(|n| *n > 0);
        let number = number.filter(|_| kind == "pblk").ok_or_else(|| {
            format!(
                "`{text}` is no target: write `pblk` (all PUs active), `pblk:4` (4 active PUs) or \
                 `pftl`"
            )
        })?;
        let value = Value::Int(number);
        table.insert("active_pus".to_string(), Item { at, value });
    }
    Ok(table)
}

/// The right side of a `--set`.
fn parse_value(text: &str, at: At) -> Value {
    match DeValue::parse(text) {
        Ok(value) => value_of(value.get_ref(), &mut |_| at),
        Err(_) => Value::Text(text.into()),
    }
}

fn table_of(table: &DeTable<'_>, at: &mut dyn FnMut(usize) -> At) -> BTreeMap<String, Item> {
    table
        .iter()
        .map(|(key, value)| {
            // A key's own place is the better one to show; implicit tables have none.
            let item = Item { at: at(key.span().start), value: value_of(value.get_ref(), at) };
            (key.get_ref().to_string(), item)
        })
        .collect()
}

fn value_of(value: &DeValue<'_>, at: &mut dyn FnMut(usize) -> At) -> Value {
    match value {
        DeValue::String(s) => Value::Text(s.to_string()),
        DeValue::Integer(n) => match i64::from_str_radix(&n.as_str().replace('_', ""), n.radix()) {
            Ok(n) => Value::Int(n),
            Err(_) => Value::Text(n.as_str().into()),
        },
        DeValue::Float(x) => match x.as_str().replace('_', "").parse() {
            Ok(x) => Value::Float(x),
            Err(_) => Value::Text(x.as_str().into()),
        },
        DeValue::Boolean(b) => Value::Flag(*b),
        DeValue::Datetime(d) => Value::Text(d.to_string()),
        DeValue::Array(list) => Value::List(
            list.iter()
                .map(|v| Item { at: at(v.span().start), value: value_of(v.get_ref(), at) })
                .collect(),
        ),
        DeValue::Table(t) => Value::Table(table_of(t, at)),
    }
}

/// A table being read: what was asked for is known, what is left over is not.
pub struct Section<'d> {
    document: &'d Document,
    path: String,
    at: At,
    table: &'d BTreeMap<String, Item>,
    asked: RefCell<BTreeSet<String>>,
    /// Keys that are known where another key has another value: the key and its values.
    elsewhere: RefCell<BTreeMap<String, (&'static str, Vec<String>)>>,
}

impl<'d> Section<'d> {
    fn new(
        document: &'d Document,
        path: String,
        at: At,
        table: &'d BTreeMap<String, Item>,
    ) -> Section<'d> {
        let (asked, elsewhere) = (RefCell::default(), RefCell::default());
        Section { document, path, at, table, asked, elsewhere }
    }

    /// Notes a complaint about a key, or about the table where the key is absent.
    pub fn complain(&self, key: &str, message: impl fmt::Display) {
        let at = self.table.get(key).map_or(self.at, |item| item.at);
        self.complain_at(at, message);
    }

    /// Notes a complaint about something in this table, with its place.
    pub(super) fn complain_at(&self, at: At, message: impl fmt::Display) {
        let message = match self.path.is_empty() {
            true => message.to_string(),
            false => format!("{}: {message}", self.path),
        };
        self.document.complain(at, message);
    }

    pub fn document(&self) -> &'d Document {
        self.document
    }

    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Keys that were asked for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().cloned().collect()
    }

    /// What this reads is known where `key` is `value`: a message about an unknown key says so.
    pub fn elsewhere<T>(
        &self,
        key: &'static str,
        value: &str,
        read: impl FnOnce(&Section<'_>) -> T,
    ) {
        let nothing = Document::of("", BTreeMap::new());
        let section = nothing.root();
        read(&section);
        let mut elsewhere = self.elsewhere.borrow_mut();
        for asked in section.asked() {
            elsewhere.entry(asked).or_insert((key, Vec::new())).1.push(value.into());
        }
    }

    /// Keys that are there, in order.
    pub fn keys(&self) -> impl Iterator<Item = &'d str> {
        self.table.keys().map(String::as_str)
    }

    /// A value as it is.
    pub fn item(&self, key: &str) -> Option<&'d Item> {
        self.asked.borrow_mut().insert(key.into());
        self.table.get(key)
    }

    fn wrong(&self, key: &str, wanted: &str, found: &Value) {
        self.complain(key, format!("`{key}` must be {wanted}, not {}", found.kind()));
    }

    /// A value of the kind that is wanted.
    fn pick<T>(&self, key: &str, wanted: &str, pick: impl Fn(&'d Item) -> Option<T>) -> Option<T> {
        let item = self.item(key)?;
        let picked = pick(item);
        if picked.is_none() {
            self.wrong(key, wanted, &item.value);
        }
        picked
    }

    pub fn text(&self, key: &str) -> Option<&'d str> {
        self.pick(key, "a string", |item| match &item.value {
            Value::Text(t) => Some(t.as_str()),
            _ => None,
        })
    }

    /// A string that parses, like `"16GiB"` or `"50us"`.
    pub fn parsed<T: std::str::FromStr<Err: fmt::Display>>(&self, key: &str) -> Option<T> {
        let parsed = self.text(key)?.parse();
        parsed.map_err(|e| self.complain(key, format!("`{key}`: {e}"))).ok()
    }

    /// A whole number in a range.
    pub fn number(&self, key: &str, least: u64, most: u64) -> Option<u64> {
        // More is no number in TOML.
        let most = most.min(i64::MAX as u64);
        let range = format!("a whole number from {least} to {most}");
        if let Some(Value::Text(digits)) = self.item(key).map(|item| &item.value)
            && digits.bytes().all(|b| b.is_ascii_digit())
            && digits.parse::<u128>().map_or(true, |n| n > u128::from(most))
            && !digits.is_empty()
        {
            self.complain(key, format!("`{key}` is {digits}, it must be {range}"));
            return None;
        }
        let number = self.pick(key, &range, |item| match item.value {
            Value::Int(n) => Some(n),
            _ => None,
        })?;
        let within = u64::try_from(number).ok().filter(|n| (least..=most).contains(n));
        if within.is_none() {
            self.complain(key, format!("`{key}` is {number}, it must be {range}"));
        }
        within
    }

    /// True or false.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.pick(key, "true or false", |item| match item.value {
            Value::Flag(b) => Some(b),
            _ => None,
        })
    }

    /// A number, whole or not.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.pick(key, "a number", |item| item.value.number())
    }

    /// A list of numbers.
    pub fn floats(&self, key: &str) -> Vec<f64> {
        self.list(key, "numbers", Value::number)
    }

    /// A list of strings, numbers and flags, each as TOML writes it.
    pub fn scalars(&self, key: &str) -> Vec<String> {
        self.list(key, "strings, numbers and flags", |value| match value {
            Value::Table(_) | Value::List(_) => None,
            scalar => Some(scalar.to_toml().to_string()),
        })
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Vec<String> {
        self.list(key, "strings", |value| match value {
            Value::Text(t) => Some(t.clone()),
            _ => None,
        })
    }

    /// Strings `key=value` that change an experiment, each with its place.
    pub fn changes(&self, key: &str) -> Vec<Change> {
        let places: Vec<At> = match self.item(key).map(|item| &item.value) {
            Some(Value::List(list)) => list.iter().map(|item| item.at).collect(),
            _ => Vec::new(),
        };
        // Whatever is no string among them is complained of.
        self.texts(key).into_iter().zip(places).map(|(set, at)| Change::Written(set, at)).collect()
    }

    fn list<T>(&self, key: &str, of: &str, pick: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let Some(item) = self.item(key) else {
            return Vec::new();
        };
        let Value::List(list) = &item.value else {
            self.wrong(key, &format!("a list of {of}"), &item.value);
            return Vec::new();
        };
        let picked: Vec<T> = list.iter().filter_map(|i| pick(&i.value)).collect();
        if picked.len() < list.len() {
            self.complain(key, format!("`{key}` must be a list of {of}"));
        }
        picked
    }

    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        let found = words.iter().find(|(w, _)| *w == text);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(w, _)| *w).collect();
            let hint = suggest::hint(text, known.iter().copied());
            self.complain(
                key,
                format!("`{key}` is `{text}`, it must be one of {}{hint}", known.join(", ")),
            );
        }
        found.map(|(_, value)| *value)
    }

    pub fn table(&self, key: &str) -> Option<Section<'d>> {
        self.pick(key, "a table", |item| match &item.value {
            Value::Table(t) => Some(self.below(key, item.at, t)),
            _ => None,
        })
    }

    fn below(&self, key: &str, at: At, table: &'d BTreeMap<String, Item>) -> Section<'d> {
        Section::new(self.document, format!("{}[{key}]", self.path), at, table)
    }

    /// Something that is there when its key is true, or a table of how it is to be.
    pub fn switched(&self, key: &str) -> Option<Section<'d>> {
        static NOTHING: BTreeMap<String, Item> = BTreeMap::new();
        self.pick(key, "true, false or a table", |item| match &item.value {
            Value::Table(t) => Some(Some(self.below(key, item.at, t))),
            Value::Flag(on) => Some(on.then(|| self.below(key, item.at, &NOTHING))),
            _ => None,
        })?
    }

    /// A list of tables, `[[key]]`; one table, `[key]`, is a list of one.
    pub fn tables(&self, key: &str) -> Vec<Section<'d>> {
        let Some(item) = self.item(key) else {
            return Vec::new();
        };
        let section = |path: String, at, t: &'d BTreeMap<String, Item>| {
            Section::new(self.document, path, at, t)
        };
        match &item.value {
            Value::Table(t) => vec![section(format!("[{key}]"), item.at, t)],
            Value::List(list) => {
                let mut sections = Vec::new();
                for (i, entry) in list.iter().enumerate() {
                    match &entry.value {
                        Value::Table(t) => {
                            sections.push(section(format!("[[{key}]] {i}"), entry.at, t));
                        }
                        other => self.wrong(key, "a list of tables", other),
                    }
                }
                sections
            }
            other => {
                self.wrong(key, "tables, written [[..]]", other);
                Vec::new()
            }
        }
    }

    /// Complains about keys that nobody asked for.
    pub fn finish(self) {
        let asked = self.asked.borrow();
        for key in self.table.keys().filter(|k| !asked.contains(*k)) {
            let known: Vec<&str> = asked.iter().map(String::as_str).collect();
            let known = format!("known: {}", known.join(", "));
            let says = match self.elsewhere.borrow().get(key) {
                Some((of, values)) => {
                    format!(
                        "unknown key `{key}`: it goes with {of} = {}; {known}",
                        values.join(", ")
                    )
                }
                None => match suggest::hint(key, asked.iter().map(String::as_str)) {
                    hint if hint.is_empty() => format!("unknown key `{key}` ({known})"),
                    hint => format!("unknown key `{key}`{hint}"),
                },
            };
            self.complain(key, says);
        }
    }
}
