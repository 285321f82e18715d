//! Who looks on while something runs: the terminal and Ctrl-C.
//!
//! Owns: the progress line on standard error, the flag that an interrupt sets. Promises: nothing is
//! drawn when standard error is no terminal; the first Ctrl-C ends a run with what is done, the
//! second one ends the program at once; a terminal that goes away ends it as the first one does.
//! Never: slows a run down by drawing.

use anyhow::{Context, Result};
use flashlane_lab::reproduce;
use flashlane_lab::run::{Contention, Monitor, Progress};
use flashlane_lab::sweep::Watcher;
use flashlane_testkit::{Failure, Tally, torture};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Set by Ctrl-C, SIGTERM and SIGHUP.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(crate) fn listen() -> Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        let early = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the second signal finds the flag set and ends the program. One that comes before the
            // flag is listening is noted apart, or it would be lost.
            flag::register(signal, early.clone())
                .and_then(|_| flag::register_conditional_shutdown(signal, 130, flag.clone()))
                .and_then(|_| flag::register(signal, flag.clone()))
                .context("cannot listen for Ctrl-C")?;
        }
        // A terminal that goes away says so more than once (the kernel, then the shell), so only the
        // flag is set. Whoever started this to outlive the terminal (`nohup`) has it ignored.
        if !is_ignored(SIGHUP) {
            flag::register(SIGHUP, flag.clone()).context("cannot listen for SIGHUP")?;
        }
        flag.fetch_or(early.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Interrupt(flag))
    }

    pub(crate) fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whether this process was started with a signal ignored. Without `/proc` that can't be told without
/// changing it, and it stays as it is.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

/// As often as the line is drawn.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A progress line for one run. Like every bar here it clears its line when it is dropped.
pub(crate) struct Terminal {
    interrupt: Interrupt,
    bar: Option<ProgressBar>,
    name: String,
    stage: RefCell<String>,
    /// When what its cores wait for was last shown.
    looked: Cell<Option<Instant>>,
}

/// What the progress line says of cores that may wait for each other; `None` where there is one ring.
fn waiting(c: &Contention) -> Option<String> {
    let deepest = c.queues.iter().max_by_key(|q| q.depth)?;
    (c.queues.len() > 1).then(|| {
        let locks: u64 = c.locks().iter().map(|l| l.contended).sum();
        format!(
            "ring {}/{}, waits: {} room, {} locks, {} PUs",
            deepest.depth,
            deepest.capacity,
            c.full().times,
            locks,
            c.semaphores().times
        )
    })
}

/// A progress line for each of several runs at a time.
pub(crate) struct Terminals {
    interrupt: Interrupt,
    bars: Option<MultiProgress>,
    unkept: Unkept,
}

impl Terminals {
    pub(crate) fn new(interrupt: &Interrupt) -> Terminals {
        let bars =
            std::io::stderr().is_terminal().then(|| MultiProgress::with_draw_target(target()));
        Terminals { interrupt: interrupt.clone(), bars, unkept: Unkept::default() }
    }

    /// A line for the figure `name`, above those of its parts, until it is dropped.
    pub(crate) fn figure(&self, name: &str) -> FigureLine<'_> {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(hidden());
            let template = "{prefix}: [{bar:30}] {pos} of {len} parts, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(name.to_string());
            bar
        });
        FigureLine { terminals: self, bar }
    }

    /// A line for the run `name`, below the others, until it is dropped.
    pub(crate) fn line(&self, name: &str) -> Terminal {
        let bar = self.bars.as_ref().map(|bars| bars.add(hidden()));
        Terminal::on(&self.interrupt, name, bar)
    }
}

/// How far a figure is, and the time that the rest will take if its parts go on as fast.
pub(crate) struct FigureLine<'a> {
    terminals: &'a Terminals,
    bar: Option<ProgressBar>,
}

impl reproduce::Watcher for FigureLine<'_> {
    fn part(&self, name: &str) -> Rc<dyn Monitor> {
        Rc::new(self.terminals.line(name))
    }

    fn done(&self, parts: usize, of: usize) {
        if let Some(bar) = &self.bar {
            if parts == 0 {
                bar.reset();
            }
            bar.set_length(of as u64);
            bar.set_position(parts as u64);
        }
    }

    fn trouble(&self, why: &str) {
        self.terminals.unkept.say(why, self.bar.as_ref());
    }
}

/// What is done could not be kept. That is said once: the next run will meet the same.
#[derive(Default)]
struct Unkept(AtomicBool);

impl Unkept {
    fn say(&self, why: &str, bar: Option<&ProgressBar>) {
        if !self.0.swap(true, Ordering::Relaxed) {
            let say = || {
                crate::output::remark(&format!("flashlane: {why}; its numbers are in the result\n"))
            };
            bar.map_or_else(say, |bar| bar.suspend(say));
        }
    }
}

/// A bar of several, which draw it.
fn hidden() -> ProgressBar {
    ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden())
}

/// Ten times a second is as fast as anybody reads.
fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

impl Terminal {
    /// Watches the run `name`.
    pub(crate) fn new(interrupt: &Interrupt, name: &str) -> Terminal {
        let bar = || ProgressBar::with_draw_target(Some(0), target());
        Terminal::on(interrupt, name, std::io::stderr().is_terminal().then(bar))
    }

    fn on(interrupt: &Interrupt, name: &str, bar: Option<ProgressBar>) -> Terminal {
        let (stage, looked) = (RefCell::default(), Cell::new(None));
        Terminal { interrupt: interrupt.clone(), bar, name: name.into(), stage, looked }
    }

    fn begin(&self, bar: &ProgressBar, stage: &str, total: Option<u64>) {
        *self.stage.borrow_mut() = stage.into();
        let template = match total {
            Some(_) => "{prefix}: {msg} [{bar:30}] {percent:>3}% {human_pos} requests",
            None => "{prefix}: {msg} {human_pos} requests",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_length(total.unwrap_or(0));
        bar.set_prefix(self.name.clone());
        bar.set_message(stage.to_string());
    }
}

impl Progress for Terminal {
    fn progress(&self, stage: &str, done: u64, total: Option<u64>) {
        let Some(bar) = &self.bar else {
            return;
        };
        if done == 0 || *self.stage.borrow() != stage {
            self.begin(bar, stage, total);
        }
        bar.set_position(total.map_or(done, |t| done.min(t)));
    }

    fn interrupted(&self) -> bool {
        self.interrupt.happened()
    }
}

impl Monitor for Terminal {
    fn contention(&self, look: &dyn Fn() -> Contention) {
        let Some(bar) = &self.bar else {
            return;
        };
        #[allow(clippy::disallowed_methods)] // how often is drawn; no result of a run is
        let now = Instant::now();
        let due = self.looked.get().is_none_or(|last| now - last >= LOOK_EVERY);
        if due {
            self.looked.set(Some(now));
            if let Some(said) = waiting(&look()) {
                bar.set_message(format!("{} ({said})", self.stage.borrow()));
            }
        }
    }
}

/// A progress line for one command that does one thing after the other.
pub(crate) struct Phases(Option<ProgressBar>);

impl Phases {
    pub(crate) fn new(name: &'static str) -> Phases {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), target());
            if let Ok(style) =
                ProgressStyle::with_template("{prefix}: {msg} [{bar:30}] {percent:>3}%")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(name);
            bar
        });
        Phases(bar)
    }

    /// So much of `of` is done of what it does now.
    pub(crate) fn at(&self, what: &'static str, done: u64, of: u64) {
        if let Some(bar) = &self.0 {
            bar.set_message(what);
            bar.set_length(of);
            bar.set_position(done.min(of));
        }
    }
}

/// A progress line for the points of a sweep, which end on any thread.
pub(crate) struct Points {
    interrupt: Interrupt,
    unkept: Unkept,
    bar: Option<ProgressBar>,
}

impl Points {
    pub(crate) fn new(interrupt: &Interrupt, points: usize) -> Points {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(points as u64), target());
            if let Ok(style) = ProgressStyle::with_template("[{bar:30}] {pos} of {len} points") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.tick();
            bar
        });
        Points { interrupt: interrupt.clone(), unkept: Unkept::default(), bar }
    }
}

impl Watcher for Points {
    fn done(&self, _: usize, _: bool) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    fn trouble(&self, why: &str) {
        self.unkept.say(why, self.bar.as_ref());
    }

    fn interrupted(&self) -> bool {
        self.interrupt.happened()
    }
}

/// CPU time of this process: no result but itself depends on it.
pub(crate) struct Cpu {
    /// Since somebody began to watch.
    pub(crate) used: Duration,
    /// Of that, when the first failure was seen.
    pub(crate) seen: Option<Duration>,
}

/// CPU time of the process so far.
fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// A line of counts while stacks are tortured; when it is over.
pub(crate) struct Torturer {
    began: Duration,
    seen: OnceLock<Duration>,
    interrupt: Interrupt,
    ends: Option<Instant>,
    bar: Option<ProgressBar>,
    say: fn(&Failure) -> String,
}

impl Torturer {
    /// Watches for so long; `None`: until it is done, or Ctrl-C.
    pub(crate) fn new(
        interrupt: &Interrupt,
        span: Option<Duration>,
        say: fn(&Failure) -> String,
    ) -> Torturer {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, target());
            if let Ok(style) = ProgressStyle::with_template("{elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        #[allow(clippy::disallowed_methods)] // `--seconds` is real time; no result of a seed is
        let ends = span.and_then(|span| Instant::now().checked_add(span));
        let (began, seen) = (cpu_time(), OnceLock::new());
        Torturer { began, seen, interrupt: interrupt.clone(), ends, bar, say }
    }

    /// What was spent until now.
    pub(crate) fn cpu(&self) -> Cpu {
        let since = |time: Duration| time.saturating_sub(self.began);
        Cpu { used: since(cpu_time()), seen: self.seen.get().copied().map(since) }
    }
}

impl torture::Watcher for Torturer {
    fn seen(&self) {
        self.seen.get_or_init(cpu_time);
    }

    fn progress(&self, tally: &Tally) {
        if let Some(bar) = &self.bar {
            let Tally { seeds, lives, cuts, faults, .. } = tally;
            let said = format!("{seeds} seeds, {lives} lives, {cuts} cuts, {faults} faults");
            bar.set_message(said);
            bar.tick();
        }
    }

    fn failed(&self, failure: &Failure) {
        // Whoever waits for hours wants to know now; elsewhere the result says it.
        if let Some(bar) = &self.bar {
            bar.suspend(|| crate::output::remark(&(self.say)(failure)));
        }
    }

    fn stop(&self) -> bool {
        #[allow(clippy::disallowed_methods)]
        let over = self.ends.is_some_and(|ends| Instant::now() >= ends);
        over || self.interrupt.happened()
    }
}
