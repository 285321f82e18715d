//! Tries every mutant of `docs/MUTANTS.md`: is it caught, by what, and how soon?
//!
//! Owns: the list of tries, their processes, the results file, the table. Promises: each try is a process
//! of its own with one mutant alive; results are kept as they come, so that the next call goes on where this
//! one stopped; a way that fails without a mutant, or runs no test, counts as no way. Never: judges a mutant
//! by a clock on the wall; a try has so many seconds of CPU time, and ends when it uses next to none for long.
//!
//! Use: `make mutants`, or
//! `cargo run --profile mutants -p flashlane-testkit --features mutants --example mutants -- --help`

#![expect(clippy::disallowed_methods, reason = "a program that starts and watches processes")]

use clap::Parser;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// CPU time within which a mutant is quick to catch, seconds.
const QUICK: f64 = 2.0;
/// Between the seeds of two tries: a torture goes through the seeds in between.
const APART: u64 = 100_000;
/// How often a try's CPU time is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What `kill -9` sends, and the kernel where memory runs out.
const SIGKILL: i32 = 9;
/// Clock ticks of `/proc/PID/stat` in a second.
const TICKS: f64 = 100.0;
/// A process that uses next to no CPU time for so long does not go on.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Next to none, seconds: one that waits for ever may still look at a clock.
const STUCK_BELOW: f64 = 0.5;

fn main() {
    match run(&Options::parse()) {
        Ok(true) => {}
        Ok(false) => exit(1),
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ! {
    eprintln!("mutants: {why}");
    exit(2);
}

/// Tries every mutant of docs/MUTANTS.md.
#[derive(Clone, Debug, Parser)]
struct Options {
    /// The program with mutants
    #[arg(long, value_name = "FILE", default_value_os_t = target("mutants/flashlane"))]
    bin: PathBuf,
    /// Mutants whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only mutants that the list says nothing catches
    #[arg(long)]
    unknown: bool,
    /// Tries this, as the list writes it, in place of the first way of each
    #[arg(long, value_parser = Way::parse)]
    way: Option<Way>,
    /// So many seeds for torture
    #[arg(long, value_name = "N", default_value_t = 10)]
    seeds: u64,
    /// The first of them (default: that of the results file, else from the clock)
    #[arg(long, value_name = "SEED")]
    from: Option<u64>,
    /// CPU time of a try
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    limit: f64,
    /// Tries at a time
    #[arg(long, value_name = "N", default_value_t = cores())]
    jobs: usize,
    /// Results; goes on where they end
    #[arg(long, value_name = "FILE", default_value_os_t = target("mutants.tsv"))]
    results: PathBuf,
    /// Where the table goes (default: standard output)
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// The mutants that were caught in 2 CPU seconds, for --quick
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Only the mutants that this file names, from seed 0, once
    #[arg(long, value_name = "FILE")]
    quick: Option<PathBuf>,
}

/// A file in the folder that is built into.
fn target(file: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
        .join(file)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// A row of `docs/MUTANTS.md`.
#[derive(Clone, Debug)]
struct Mutant {
    name: String,
    rule: String,
    /// What catches it; the first is tried.
    ways: Vec<Way>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// `flashlane torture` with these options.
    Torture(String),
    /// Real threads: no two runs are alike, so these are tried by hand.
    Threads(String),
    Test {
        package: String,
        target: String,
        filter: String,
    },
}

impl Way {
    fn test(package: &str, target: &str, filter: &str) -> Way {
        Way::Test { package: package.into(), target: target.into(), filter: filter.into() }
    }

    fn parse(text: &str) -> Result<Way, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["torture", ref options @ ..] => Ok(Way::Torture(options.join(" "))),
            ["threads", ..] => Ok(Way::Threads(text.into())),
            ["test", package, target] => Ok(Way::test(package, target, "")),
            ["test", package, target, filter] => Ok(Way::test(package, target, filter)),
            ["interleave", filter] => Ok(Way::test("flashlane-testkit", "interleave", filter)),
            ["models", package, filter] => Ok(Way::test(package, "models", filter)),
            _ => Err(format!("`{text}` is no way to catch a mutant; they stand above the tables")),
        }
    }

    fn text(&self) -> String {
        match self {
            Way::Torture(options) => format!("torture {options}").trim_end().into(),
            Way::Threads(text) => text.clone(),
            Way::Test { package, target, filter } => {
                format!("test {package} {target} {filter}").trim_end().into()
            }
        }
    }
}

/// The rows of the list: `| layer.what | rule | what it does | ways |`.
fn catalogue(text: &str) -> Result<Vec<Mutant>, String> {
    let mut all = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        let is_row = line.starts_with("| ") && cells[0].contains('.') && !cells[0].contains(' ');
        if !is_row {
            continue;
        }
        let [name, rule, _, ways] = cells[..] else {
            return Err(format!("docs/MUTANTS.md:{number}: {} cells in a row, not 4", cells.len()));
        };
        // What `nothing` catches says why, in words.
        let ways = if ways.starts_with("nothing:") { "" } else { ways };
        let ways: Vec<&str> = ways.split('`').skip(1).step_by(2).collect();
        let ways = ways.iter().map(|way| Way::parse(way)).collect::<Result<Vec<_>, _>>();
        let ways = ways.map_err(|why| format!("docs/MUTANTS.md:{number}: {why}"))?;
        let name = name.trim_matches('`').to_string();
        all.push(Mutant { name, rule: rule.into(), ways });
    }
    let names: BTreeSet<&str> = all.iter().map(|mutant| mutant.name.as_str()).collect();
    match names.len() == all.len() {
        true => Ok(all),
        false => Err("docs/MUTANTS.md: a name stands in two rows".into()),
    }
}

/// One process to start.
#[derive(Clone, Debug)]
struct Try {
    mutant: String,
    way: Way,
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Caught,
    /// It ended, or its time was over, and nothing was found.
    Missed,
    /// As [`Verdict::Missed`], and the broken rule was never come to.
    Unreached,
    /// Its time was over; a test does not end by itself.
    Hung,
}

impl Verdict {
    const ALL: [(&str, Verdict); 4] = [
        ("caught", Verdict::Caught),
        ("missed", Verdict::Missed),
        ("unreached", Verdict::Unreached),
        ("hung", Verdict::Hung),
    ];

    fn name(self) -> &'static str {
        Verdict::ALL.iter().find(|(_, v)| *v == self).map_or("", |(name, _)| name)
    }
}

/// What came of a try.
#[derive(Clone, Debug)]
struct Found {
    verdict: Verdict,
    cpu: f64,
    what: String,
}

/// Program, mutant, way, seed.
type Key = (String, String, String, u64);

/// In place of a mutant's name: a test without any.
const NONE: &str = "none";

/// The results so far, in memory and in their file. Those of other programs don't count.
struct Results {
    file: fs::File,
    all: BTreeMap<Key, Found>,
}

impl Results {
    fn open(path: &Path) -> Result<Results, String> {
        let at = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = match fs::read_to_string(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.map_err(at)?,
        };
        let all = text.lines().filter_map(Results::read).collect();
        let file = fs::OpenOptions::new().append(true).create(true).open(path).map_err(at)?;
        Ok(Results { file, all })
    }

    /// A line: program, mutant, way, seed, verdict, CPU seconds, what was found.
    fn read(line: &str) -> Option<(Key, Found)> {
        let cells: Vec<&str> = line.split('\t').collect();
        let [program, mutant, way, seed, verdict, cpu, what] = cells[..] else { return None };
        let (_, verdict) = *Verdict::ALL.iter().find(|(name, _)| *name == verdict)?;
        let found = Found { verdict, cpu: cpu.parse().ok()?, what: what.into() };
        Some(((program.into(), mutant.into(), way.into(), seed.parse().ok()?), found))
    }

    fn add(&mut self, key: Key, found: Found) -> Result<(), String> {
        let Found { verdict, cpu, what } = &found;
        let (program, mutant, way, seed) = &key;
        let verdict = verdict.name();
        writeln!(self.file, "{program}\t{mutant}\t{way}\t{seed}\t{verdict}\t{cpu:.2}\t{what}")
            .map_err(|e| format!("results: {e}"))?;
        self.all.insert(key, found);
        Ok(())
    }
}

/// True when all that were tried are caught.
fn run(options: &Options) -> Result<bool, String> {
    let text =
        fs::read_to_string("docs/MUTANTS.md").map_err(|e| format!("docs/MUTANTS.md: {e}"))?;
    let mut mutants = catalogue(&text)?;
    let quick = match &options.quick {
        None => None,
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Some(text.lines().map(String::from).collect::<BTreeSet<_>>())
        }
    };
    for name in quick.iter().flatten() {
        if !mutants.iter().any(|m| m.name == *name) {
            return Err(format!(
                "docs/MUTANTS.md has no `{name}`, which the list of the quick names"
            ));
        }
    }
    let only = |m: &Mutant| options.only.as_ref().is_none_or(|only| m.name.contains(only));
    mutants.retain(|m| only(m) && quick.as_ref().is_none_or(|names| names.contains(&m.name)));
    mutants.retain(|m| !options.unknown || m.ways.is_empty());
    if mutants.is_empty() {
        return Err("no mutant is of that kind".into());
    }
    if let Some(way) = &options.way {
        mutants.iter_mut().for_each(|m| m.ways = vec![way.clone()]);
    }
    let mut results = match quick {
        None => Results::open(&options.results)?,
        Some(_) => Results { file: null()?, all: BTreeMap::new() },
    };
    let from = match (&quick, options.from) {
        (Some(_), _) => 0,
        (None, Some(from)) => from,
        (None, None) => first_seed(&results),
    };
    let seeds = if quick.is_some() { 1 } else { options.seeds.max(1) };
    let programs = Programs::build(options, &mutants)?;
    if quick.is_none() {
        programs.pass_alone(&mutants, &mut results)?;
    }
    let tries: Vec<Try> = tries(&mutants, from, seeds)
        .into_iter()
        .filter(|one| !results.all.contains_key(&programs.key(one)))
        .collect();
    eprintln!("mutants: {} tries to go, from seed {from}", tries.len());
    let (next, shared) = (AtomicUsize::new(0), Mutex::new(&mut results));
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(one) = tries.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let tried = attempt(one, options, &programs).and_then(|found| {
                        let Found { verdict, cpu, what } = &found;
                        let (name, way) = (verdict.name(), one.way.text());
                        eprintln!(
                            "{name:9} {cpu:6.2} s  {}  ({way}, {}) {what}",
                            one.mutant, one.seed
                        );
                        shared.lock().expect("results").add(programs.key(one), found)
                    });
                    if let Err(why) = tried {
                        failed.lock().expect("errors").get_or_insert(why);
                        next.store(tries.len(), Ordering::SeqCst);
                    }
                }
            });
        }
    });
    if let Some(why) = failed.into_inner().expect("errors") {
        return Err(why);
    }
    let rows: Vec<Row> = mutants.iter().map(|m| Row::of(m, &programs, &results)).collect();
    let table = table(&rows, seeds, options.limit);
    match &options.table {
        Some(path) => fs::write(path, table).map_err(|e| format!("{}: {e}", path.display()))?,
        None => print!("{table}"),
    }
    if let Some(path) = &options.list {
        let quick = rows.iter().filter(|row| row.is_quick());
        let list: String = quick.map(|row| format!("{}\n", row.name)).collect();
        fs::write(path, list).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(rows.iter().all(Row::is_caught))
}

fn null() -> Result<fs::File, String> {
    fs::OpenOptions::new().append(true).open("/dev/null").map_err(|e| format!("/dev/null: {e}"))
}

/// That of the results that are gone on with, else one that nobody has seen.
fn first_seed(results: &Results) -> u64 {
    let seeds = results.all.keys().map(|(_, _, _, seed)| *seed).filter(|seed| *seed > 0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    seeds.min().unwrap_or_else(|| now.map_or(1, |d| d.as_secs()) * APART)
}

/// Every mutant by its first way; tests once, since they draw their own seeds.
fn tries(mutants: &[Mutant], from: u64, seeds: u64) -> Vec<Try> {
    let mut all = Vec::new();
    for mutant in mutants {
        let Some(way) = mutant.ways.first() else { continue };
        let seeds: Vec<u64> = match way {
            Way::Torture(_) => (0..seeds).map(|i| from + i * APART).collect(),
            Way::Test { .. } => vec![0],
            Way::Threads(_) => vec![],
        };
        let one = |seed| Try { mutant: mutant.name.clone(), way: way.clone(), seed };
        all.extend(seeds.into_iter().map(one));
    }
    all
}

struct Program {
    path: PathBuf,
    /// Which very program it is, and how long it may run: results of others don't count.
    id: String,
    /// The folder that it runs in.
    folder: PathBuf,
}

/// All of them: `flashlane`, and test programs by package and target.
struct Programs {
    flashlane: Program,
    tests: BTreeMap<(String, String), Program>,
}

impl Program {
    fn new(path: PathBuf, folder: PathBuf, limit: f64) -> Result<Program, String> {
        let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        let id = format!("{:016x}-{limit}", hasher.finish());
        Ok(Program { path, id, folder })
    }
}

impl Programs {
    fn build(options: &Options, mutants: &[Mutant]) -> Result<Programs, String> {
        let flashlane = Program::new(options.bin.clone(), ".".into(), options.limit)?;
        let mut programs = Programs { flashlane, tests: BTreeMap::new() };
        for way in mutants.iter().filter_map(|m| m.ways.first()) {
            let Way::Test { package, target, .. } = way else { continue };
            if let Entry::Vacant(new) = programs.tests.entry((package.clone(), target.clone())) {
                let (path, folder) = build_test(package, target)?;
                new.insert(Program::new(path, folder, options.limit)?);
            }
        }
        Ok(programs)
    }

    fn of(&self, way: &Way) -> &Program {
        match way {
            Way::Test { package, target, .. } => &self.tests[&(package.clone(), target.clone())],
            Way::Torture(_) | Way::Threads(_) => &self.flashlane,
        }
    }

    fn key(&self, one: &Try) -> Key {
        (self.of(&one.way).id.clone(), one.mutant.clone(), one.way.text(), one.seed)
    }

    /// Makes sure that each test that is named exists, and passes without a mutant.
    fn pass_alone(&self, mutants: &[Mutant], results: &mut Results) -> Result<(), String> {
        let ways: BTreeSet<&Way> = mutants.iter().filter_map(|m| m.ways.first()).collect();
        for way in ways.into_iter().filter(|way| matches!(way, Way::Test { .. })) {
            let one = Try { mutant: NONE.into(), way: way.clone(), seed: 0 };
            if results.all.contains_key(&self.key(&one)) {
                continue;
            }
            let done = finish(self.command(way, 0, None), 600.0)?;
            let ran =
                done.output.contains("test result: ok.") && !done.output.contains(" 0 passed");
            if !ran {
                let (way, output) = (way.text(), done.output);
                return Err(format!("`{way}` does not pass without a mutant:\n{output}"));
            }
            let found = Found { verdict: Verdict::Missed, cpu: done.cpu, what: String::new() };
            results.add(self.key(&one), found)?;
        }
        Ok(())
    }

    fn command(&self, way: &Way, seed: u64, mutant: Option<&str>) -> Command {
        let Program { path, folder, .. } = self.of(way);
        let mut command = Command::new(path);
        command.current_dir(folder).env_remove("FLASHLANE_MUTANT");
        // What fails here is no case to keep beside the sources.
        command.env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        match way {
            Way::Torture(more) => {
                command.args(["torture", "--first", "--seconds", "0", "--jobs", "1"]);
                command.args(["--from", &seed.to_string()]).args(more.split_whitespace());
            }
            Way::Test { filter, .. } => drop(command.arg(filter)),
            Way::Threads(_) => {}
        }
        if let Some(mutant) = mutant {
            command.env("FLASHLANE_MUTANT", mutant);
        }
        command
    }
}

/// Builds a test program as `make test` does, so that nothing is built twice.
fn build_test(package: &str, target: &str) -> Result<(PathBuf, PathBuf), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--no-run", "--message-format=json"]);
    // The checkers of interleavings are features (docs/TESTING.md, "Interleavings").
    match target {
        "lib" => cargo.arg("--lib"),
        "interleave" => cargo.args(["--features", "flashlane-testkit/shuttle", "--test", target]),
        "models" => cargo.args(["--features", "flashlane-ftl/loom", "--test", target]),
        target => cargo.args(["--test", target]),
    };
    let built = cargo.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&built.stdout);
    let value = |line: &str, key: &str| {
        let from = line.split_once(&format!("\"{key}\":\""))?.1;
        Some(PathBuf::from(from.split('"').next()?))
    };
    let of = format!("#{package}@");
    let found = text.lines().filter(|line| line.contains(&of)).find_map(|line| {
        let manifest = value(line, "manifest_path")?;
        Some((value(line, "executable")?, manifest.parent()?.to_path_buf()))
    });
    found.ok_or(format!("package {package} has no test program {target}"))
}

struct Ended {
    /// None: it was told to, since its time was over. Below zero: by that signal.
    code: Option<i32>,
    cpu: f64,
    output: String,
}

/// Runs a process to its end, or for so many seconds of CPU time.
fn finish(mut command: Command, limit: f64) -> Result<Ended, String> {
    let shown = format!("{command:?}");
    let at = |e: std::io::Error| format!("{shown}: {e}");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(at)?;
    let readers = [read(child.stdout.take()), read(child.stderr.take())];
    let (mut cpu, mut seen, mut stopped) = (0.0, 0.0, false);
    let mut moved = Instant::now();
    loop {
        cpu = cpu_seconds(&child).unwrap_or(cpu);
        if cpu > seen + STUCK_BELOW {
            (seen, moved) = (cpu, Instant::now());
        }
        if has_ended(&child) {
            break;
        }
        if cpu > limit || moved.elapsed() > STUCK_AFTER {
            stopped = true;
            child.kill().map_err(at)?;
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let status = child.wait().map_err(at)?;
    let texts = readers.map(|reader| reader.join().unwrap_or_default());
    let by = |status: ExitStatus| status.code().unwrap_or(-status.signal().unwrap_or(SIGKILL));
    let code = (!stopped).then(|| by(status));
    Ok(Ended { code, cpu, output: texts.concat() })
}

fn read(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Of a process and its threads, also when it has ended and nobody has taken its status.
fn cpu_seconds(child: &Child) -> Option<f64> {
    let fields = stat(child)?;
    // utime and stime are fields 14 and 15 of proc(5), and the first here is the third.
    let ticks = |at: usize| fields.get(at - 3)?.parse::<f64>().ok();
    Some((ticks(14)? + ticks(15)?) / TICKS)
}

/// Its status is there to be taken.
fn has_ended(child: &Child) -> bool {
    stat(child).is_none_or(|fields| fields[0] == "Z")
}

/// What follows the name in `/proc/PID/stat`.
fn stat(child: &Child) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    Some(text.rsplit_once(") ")?.1.split_whitespace().map(String::from).collect())
}

fn attempt(one: &Try, options: &Options, programs: &Programs) -> Result<Found, String> {
    let ended = finish(programs.command(&one.way, one.seed, Some(&one.mutant)), options.limit)?;
    let reached = !ended.output.contains("struck 0 times");
    let is_torture = matches!(one.way, Way::Torture(_));
    let (verdict, what) = match ended.code {
        // Whoever did it, it was not the mutant.
        Some(code) if code == -SIGKILL => return Err(format!("{}: killed", one.mutant)),
        None if !is_torture => (Verdict::Hung, String::new()),
        Some(0) | None if reached => (Verdict::Missed, String::new()),
        Some(0) | None => (Verdict::Unreached, String::new()),
        Some(1) if is_torture => (Verdict::Caught, line_with(&ended.output, "FAILED ")),
        // A crash is caught, too: whoever plants it would see it.
        Some(code) if is_torture && code < 0 => (Verdict::Caught, "it crashed".into()),
        Some(code) if is_torture => {
            return Err(format!("torture ended with {code}:\n{}", ended.output));
        }
        Some(_) => (Verdict::Caught, line_with(&ended.output, "panicked at")),
    };
    if is_torture && verdict == Verdict::Caught {
        // The same seeds, for as long.
        let alone = finish(programs.command(&one.way, one.seed, None), 2.0 * ended.cpu + 1.0)?;
        if !reached || alone.code.is_some_and(|code| code != 0) {
            let output = if reached { alone.output } else { ended.output };
            return Err(format!("torture fails without a mutant:\n{output}"));
        }
    }
    Ok(Found { verdict, cpu: ended.cpu, what })
}

/// The first line with this text, in one piece of a results file.
fn line_with(output: &str, text: &str) -> String {
    let line = output.lines().find(|line| line.contains(text)).unwrap_or_default();
    let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.chars().take(300).collect()
}

/// A mutant with its results.
struct Row {
    name: String,
    rule: String,
    way: Option<Way>,
    tries: usize,
    caught: usize,
    /// CPU seconds of those that caught it, ascending.
    cpu: Vec<f64>,
    reached: bool,
}

impl Row {
    fn of(mutant: &Mutant, programs: &Programs, results: &Results) -> Row {
        let way = mutant.ways.first().cloned();
        let mut mine: Vec<&Found> = Vec::new();
        if let Some(way) = &way {
            let (id, text) = (&programs.of(way).id, way.text());
            let is_mine = |key: &Key| key.0 == *id && key.1 == mutant.name && key.2 == text;
            mine.extend(results.all.iter().filter(|(key, _)| is_mine(key)).map(|(_, found)| found));
        }
        let caught = mine.iter().filter(|found| found.verdict == Verdict::Caught);
        let mut cpu: Vec<f64> = caught.map(|found| found.cpu).collect();
        cpu.sort_by(f64::total_cmp);
        Row {
            name: mutant.name.clone(),
            rule: mutant.rule.clone(),
            way,
            tries: mine.len(),
            caught: cpu.len(),
            reached: mine.iter().any(|found| found.verdict != Verdict::Unreached),
            cpu,
        }
    }

    /// In nine of ten tries.
    fn is_caught(&self) -> bool {
        self.tries > 0 && self.caught * 10 >= self.tries * 9
    }

    fn median(&self) -> Option<f64> {
        self.cpu.get(self.cpu.len() / 2).copied()
    }

    fn is_quick(&self) -> bool {
        self.tries == self.caught && self.median().is_some_and(|median| median <= QUICK)
    }
}

fn table(rows: &[Row], seeds: u64, limit: f64) -> String {
    let count = |of: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| of(row)).count();
    let torture = |row: &Row| matches!(row.way, Some(Way::Torture(_)));
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} mutants: {} caught by `torture` in nine of ten tries ({seeds} seeds, {limit} s of CPU time each), {} \
         by a test, {} not caught.\n",
        rows.len(),
        count(&|row| torture(row) && row.is_caught()),
        count(&|row| !torture(row) && row.is_caught()),
        count(&|row| !row.is_caught()),
    );
    out += "| mutant | rule | way | caught | median CPU s | longest |\n|---|---|---|---|---|---|\n";
    for row in rows {
        let seconds = |s: Option<f64>| s.map_or("-".into(), |s| format!("{s:.1}"));
        let way = row.way.as_ref().map_or("nothing".into(), |way| format!("`{}`", way.text()));
        let note = if row.reached { "" } else { ", never reached" };
        let (median, longest) = (seconds(row.median()), seconds(row.cpu.last().copied()));
        let (name, rule, caught, tries) = (&row.name, &row.rule, row.caught, row.tries);
        let _ = writeln!(
            out,
            "| {name} | {rule} | {way} | {caught} of {tries}{note} | {median} | {longest} |"
        );
    }
    out
}
