//! What `flashlane top` shows.
//!
//! Owns: the four views, their lines, the heat map. Promises: what is drawn is a function of two looks at a
//! drive; it fits 80 columns and 24 lines, and says so where it leaves something out. Never: asks anybody,
//! touches a terminal.

use flashlane_lab::metrics::rates::{OpRate, Rates, rates};
use flashlane_lab::metrics::{Latency, Snapshot, TargetSnapshot, bound_ns, short};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// What may be looked at, in the order of the keys 1 to 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum View {
    #[default]
    Overview,
    Dies,
    Room,
    Latency,
}

impl View {
    pub(crate) const ALL: [(View, &'static str); 4] = [
        (View::Overview, "overview"),
        (View::Dies, "channels and dies"),
        (View::Room, "room and GC"),
        (View::Latency, "latencies"),
    ];

    /// The one so many places on, around the end.
    pub(crate) fn next(self, places: usize) -> View {
        let at = View::ALL.iter().position(|(view, _)| *view == self).unwrap_or(0);
        View::ALL[(at + places) % View::ALL.len()].0
    }
}

/// What is on the screen.
#[derive(Default)]
pub(crate) struct Screen {
    pub(crate) view: View,
    pub(crate) help: bool,
    pub(crate) paused: bool,
    /// How often is looked, in words.
    pub(crate) every: String,
    pub(crate) earlier: Option<Snapshot>,
    pub(crate) now: Snapshot,
    /// The target that is looked at; the first one where that is not in use.
    pub(crate) target: String,
}

/// A drive and one of its targets at one moment, and what happened before it.
struct Seen<'a> {
    drive: &'a Snapshot,
    target: &'a TargetSnapshot,
    rates: Rates,
}

impl Screen {
    /// Which of the targets is looked at, if there are any.
    fn at(&self) -> usize {
        self.now.targets.iter().position(|target| target.name == self.target).unwrap_or(0)
    }

    /// The next target is looked at.
    pub(crate) fn next_target(&mut self) {
        let all = &self.now.targets;
        if let Some(next) = all.get((self.at() + 1) % all.len().max(1)) {
            self.target = next.name.clone();
        }
    }
}

pub(crate) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let rows = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0)];
    let [head, tabs, body] = Layout::vertical(rows).areas(frame.area());
    let (s, none) = (&screen.now, TargetSnapshot::default());
    let target = s.targets.get(screen.at()).unwrap_or(&none);
    let of = match s.targets.len() {
        0 | 1 => String::new(),
        n => format!(", {} of {n}", screen.at() + 1),
    };
    let state = if screen.paused { "paused".into() } else { format!("every {}", screen.every) };
    let title = format!(
        " {}  target {} ({}{of})  run {}  {state}",
        s.device,
        target.name,
        target.kind(),
        short(s.time_ns),
    );
    frame.render_widget(Paragraph::new(title).reversed(), head);
    let mut names = Vec::new();
    for (i, (view, name)) in View::ALL.iter().enumerate() {
        let name = format!(" {} {name} ", i + 1);
        names.push(if *view == screen.view { name.bold().underlined() } else { name.into() });
    }
    names.push("  h help  q quit".dark_gray());
    frame.render_widget(Paragraph::new(Line::from(names)), tabs);
    let seen = Seen { drive: s, target, rates: rates(screen.earlier.as_ref(), s, target) };
    let mut lines = if screen.help { help() } else { lines_of(screen.view, &seen) };
    let room = usize::from(body.height);
    if lines.len() > room && room > 0 {
        let more = lines.len() - (room - 1);
        lines.truncate(room - 1);
        lines.push(Line::from(format!("... and {more} more lines: make the window taller")));
    }
    frame.render_widget(Paragraph::new(lines), body);
}

/// All views of all targets as text, for `--once`.
pub(crate) fn text(now: &Snapshot) -> String {
    let mut text = String::new();
    for (i, target) in now.targets.iter().enumerate() {
        let seen = Seen { drive: now, target, rates: rates(None, now, target) };
        text += &format!(
            "{}{}: target {} ({}), process {}; rates since the mount\n",
            if i == 0 { "" } else { "\n" },
            now.device,
            target.name,
            target.kind(),
            now.process
        );
        for (view, name) in View::ALL {
            text += &format!("\n{name}\n");
            for line in lines_of(view, &seen) {
                text += line.to_string().trim_end();
                text.push('\n');
            }
        }
    }
    text
}

fn lines_of(view: View, seen: &Seen<'_>) -> Vec<Line<'static>> {
    match view {
        View::Overview => overview(seen),
        View::Dies => dies(seen.drive, &seen.rates),
        View::Room => room(seen),
        View::Latency => latencies(&seen.rates),
    }
}

fn help() -> Vec<Line<'static>> {
    let keys = [
        ("1 2 3 4, Tab", "another view"),
        ("t", "the next target"),
        ("p", "hold the picture, or go on"),
        ("+  -", "look more often, less often"),
        ("h", "this page, or back"),
        ("q, Esc, Ctrl-C", "the end"),
    ];
    let lines = keys.map(|(key, what)| Line::from(format!("  {key:<16}{what}")));
    let more = [
        "",
        "  Rates and shares are of the time between the last two looks. At the first look",
        "  they are since the mount. WA is all that was programmed over what was written.",
        "  Latencies are from the call at the target's top to the answer.",
        "  Knobs are turned with `flashlane lnvm knobs`, also while this runs.",
    ];
    lines.into_iter().chain(more.map(Line::from)).collect()
}

/// Decimal, with three digits.
fn rate(n: f64) -> String {
    let (value, unit) = match n {
        n if n < 1e3 => (n, ""),
        n if n < 1e6 => (n / 1e3, "k"),
        n if n < 1e9 => (n / 1e6, "M"),
        n => (n / 1e9, "G"),
    };
    let places = if value >= 99.95 || (value == 0.0 && unit.is_empty()) {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.places$}{unit}")
}

fn time(ns: Option<u64>) -> String {
    ns.map_or("-".into(), short)
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// A quantity as a bar of so many places.
fn bar(share: f64, places: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * places as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(places - full))
}

fn row(name: &str, text: impl Into<String>) -> Line<'static> {
    Line::from(vec![format!("{name:<12}").bold(), Span::raw(text.into())])
}

fn overview(seen: &Seen<'_>) -> Vec<Line<'static>> {
    let Seen { drive, target: s, rates: r } = seen;
    let head = format!(
        "{:<9}{:>9}{:>10}{:>10}{:>11}{:>11}{:>11}{:>8}",
        "", "ops/s", "bytes/s", "in flight", "p50", "p99", "mean", "failed"
    );
    let mut lines = vec![Line::from(head.bold())];
    for OpRate { requests, bytes, latency: l } in &r.ops {
        lines.push(Line::from(format!(
            "{:<9}{:>9}{:>10}{:>10}{:>11}{:>11}{:>11}{:>8}",
            l.op,
            rate(*requests),
            bytes.map_or("-".into(), rate),
            l.in_flight,
            time(l.quantile_ns(0.5)),
            time(l.quantile_ns(0.99)),
            time(l.mean_ns()),
            l.failed
        )));
    }
    lines.push(Line::default());
    if let Some(why) = &s.read_only {
        lines.push(Line::from(format!("READ-ONLY: {why}").red().bold()));
    }
    let wa = |ratio: Option<f64>| ratio.map_or("-".into(), |wa| format!("{wa:.3}"));
    let (now, all) = (wa(r.write_amplification_ratio), wa(s.write_amplification_ratio));
    lines.push(row("WA", format!("{now} now, {all} since the mount")));
    lines.extend(s.rings.iter().enumerate().take(4).map(|(i, ring)| {
        let share = ring.used as f64 / ring.slots.max(1) as f64;
        let said = format!("{} {} of {} slots", bar(share, 30), ring.used, ring.slots);
        row(&format!("ring {i}"), said)
    }));
    let more = s.rings.len().saturating_sub(4);
    if more > 0 {
        lines.push(row("", format!("and {more} more rings")));
    }
    if let Some((users, of)) = s.room.user_slots {
        let share = users as f64 / of.max(1) as f64;
        lines.push(row("limiter", format!("{} users {users} of {of}", bar(share, 30))));
    }
    let share = s.room.free as f64 / s.room.of.max(1) as f64;
    lines.push(row("free", format!("{} {} of {}", bar(share, 30), s.room.free, s.room.of)));
    lines.push(row("lines", listed(&s.lines)));
    lines.push(row("GC", gc(r)));
    let mean =
        |part: usize| r.dies.iter().map(|die| die[part]).sum::<f64>() / r.dies.len().max(1) as f64;
    let most = r.dies.iter().map(|die| die.iter().sum::<f64>()).fold(0.0, f64::max).min(1.0);
    lines.push(row(
        "dies",
        format!(
            "reading {}, programming {}, erasing {}; the busiest {}",
            percent(mean(0)),
            percent(mean(1)),
            percent(mean(2)),
            percent(most)
        ),
    ));
    lines.push(row("wear", wear(drive)));
    if let (Some(held), Some(ghosts)) = (s.pages.get("held_sectors"), s.pages.get("ghost_sectors"))
    {
        lines.push(row("pages", format!("{held} valid, {ghosts} of them ghost pages")));
    }
    lines.extend(s.layers.iter().map(|(layer, numbers)| row(layer, listed(numbers))));
    let failed = |name: &str| s.stat(name);
    let (program, erase) = (failed("program_failures"), failed("erase_failures"));
    let uncorrectable = drive.medium.counters.get("uncorrectable").copied().unwrap_or(0);
    let faults = format!(
        "programs {program}, erases {erase}, reads {}; uncorrectable {uncorrectable}; planned {}",
        failed("read_failures"),
        drive.medium.faults
    );
    lines.push(row("faults", faults));
    lines
}

fn gc(r: &Rates) -> String {
    format!(
        "{} lines/s, moves {} bytes/s, {} erases/s",
        rate(r.gc_victims),
        rate(r.gc_moved),
        rate(r.erases)
    )
}

fn wear(s: &Snapshot) -> String {
    let [least, mean, most] = s.medium.wear;
    format!(
        "{least} to {most} erases of a chunk, mean {mean}; used {}%, spare {}%",
        s.smart["percent_used"], s.smart["avail_spare"]
    )
}

fn listed(numbers: &flashlane_lab::metrics::Numbers) -> String {
    let all: Vec<String> = numbers.iter().map(|(name, n)| format!("{name} {n}")).collect();
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

/// How busy something is, as a cell of two places.
fn cell(busy: f64) -> Span<'static> {
    let (shade, colour) = match busy {
        b if b < 0.02 => ("··", Color::DarkGray),
        b if b < 0.25 => ("░░", Color::Blue),
        b if b < 0.50 => ("▒▒", Color::Green),
        b if b < 0.75 => ("▓▓", Color::Yellow),
        _ => ("██", Color::Red),
    };
    Span::styled(shade, Style::new().fg(colour))
}

fn dies(s: &Snapshot, r: &Rates) -> Vec<Line<'static>> {
    // So many cells fit beside the words.
    const CELLS: usize = 30;
    let pus = (s.medium.pus_per_channel as usize).max(1);
    let mut lines = vec![Line::from(format!("{:<10}{:>5}  {}", "channel", "bus", "dies").bold())];
    for (channel, (bus, dies)) in r.channels.iter().zip(r.dies.chunks(pus)).enumerate() {
        let mut spans = vec![Span::raw(format!("{channel:<10}{:>5}  ", percent(*bus)))];
        spans.extend(dies.iter().take(CELLS).map(|die| cell(die.iter().sum())));
        if dies.len() > CELLS {
            spans.push(Span::raw("+"));
        }
        lines.push(Line::from(spans));
    }
    let mut key = vec![Span::raw("busy: ")];
    for (busy, said) in
        [(0.0, " <2%  "), (0.1, " <25%  "), (0.3, " <50%  "), (0.6, " <75%  "), (1.0, " more")]
    {
        key.extend([cell(busy), Span::raw(said)]);
    }
    lines.insert(1, Line::from(key));
    lines
}

fn room(seen: &Seen<'_>) -> Vec<Line<'static>> {
    let Seen { drive, target: s, rates: r } = seen;
    let mut lines = vec![
        row("lines", listed(&s.lines)),
        row("chunks", listed(&drive.medium.chunks)),
        row("free", format!("{} of {}", s.room.free, s.room.of)),
        row("GC", gc(r)),
        row("wear", wear(drive)),
    ];
    lines.extend(drive.medium.endurance.map(|used| row("endurance", format!("used: {used}"))));
    let programmed: Vec<String> = r
        .programmed
        .iter()
        .filter(|(_, n)| *n > 0.0)
        .map(|(cause, n)| format!("{} {}", cause.replace('_', " "), rate(*n)))
        .collect();
    for (i, some) in programmed.chunks(4).enumerate() {
        lines.push(row(if i == 0 { "bytes/s" } else { "" }, some.join(", ")));
    }
    let knobs: Vec<String> = s.knobs.iter().map(|(knob, v)| format!("{knob}={v}")).collect();
    for (i, some) in knobs.chunks(3).enumerate() {
        lines.push(row(if i == 0 { "knobs" } else { "" }, some.join("  ")));
    }
    for waits in s.locks.iter().chain((!s.locks.is_empty()).then_some(&s.semaphores)) {
        let said = format!("{} waits of {} in all", waits.waits, short(waits.wait_ns));
        lines.push(row(&waits.name, said));
    }
    lines.extend(s.rings.iter().enumerate().map(|(i, ring)| {
        let said = format!(
            "{} of {}; full {} times, {}; limited {} times, {}",
            ring.used,
            ring.slots,
            ring.full_waits,
            short(ring.full_wait_ns),
            ring.limited_waits,
            short(ring.limited_wait_ns)
        );
        row(&format!("ring {i}"), said)
    }));
    lines
}

fn latencies(r: &Rates) -> Vec<Line<'static>> {
    const SHARES: [(f64, &str); 5] =
        [(0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "most")];
    let mut head = format!("{:<9}{:>9}", "", "requests");
    SHARES.iter().for_each(|(_, name)| head += &format!("{name:>11}"));
    let mut lines = vec![Line::from(head.bold())];
    for OpRate { latency: l, .. } in &r.ops {
        let mut line = format!("{:<9}{:>9}", l.op, l.ended);
        SHARES
            .iter()
            .for_each(|(share, _)| line += &format!("{:>11}", time(l.quantile_ns(*share))));
        lines.push(Line::from(line));
    }
    lines.push(Line::default());
    let doublings: Vec<(String, Vec<u64>)> = doublings(&r.ops);
    let used = |(_, counts): &(String, Vec<u64>)| counts.iter().any(|n| *n > 0);
    let first = doublings.iter().position(used).unwrap_or(0);
    let last = doublings.iter().rposition(used).map_or(0, |last| last + 1);
    let most = doublings.iter().flat_map(|(_, counts)| counts).max().copied().unwrap_or(0).max(1);
    for (bound, counts) in &doublings[first..last.max(first)] {
        let mut line = format!("{bound:<12}");
        for n in counts {
            let full = (*n as f64 / most as f64 * 15.0).ceil() as usize;
            line += &format!(" {:<15}", "#".repeat(full));
        }
        lines.push(Line::from(line));
    }
    if last > first {
        let names = r.ops.iter().map(|op| format!(" {:<15}", op.latency.op));
        let names = format!("{:<12}{}", "within", names.collect::<String>());
        lines.insert(lines.len() - (last - first), Line::from(names.bold()));
    }
    lines
}

/// Requests of each operation by doublings of their time.
fn doublings(ops: &[OpRate]) -> Vec<(String, Vec<u64>)> {
    let buckets = ops.iter().map(|op| op.latency.buckets.len()).max().unwrap_or(0);
    let (mut all, mut counts) = (Vec::new(), vec![0; ops.len()]);
    let in_bucket = |l: &Latency, i: usize| l.buckets.get(i).copied().unwrap_or(0);
    for bucket in 0..buckets {
        for (count, op) in counts.iter_mut().zip(ops) {
            *count += in_bucket(&op.latency, bucket);
        }
        let bound = bound_ns(bucket);
        if bound.is_none_or(u64::is_power_of_two) {
            let name = bound.map_or("longer".into(), short);
            all.push((name, std::mem::replace(&mut counts, vec![0; ops.len()])));
        }
    }
    all
}

#[cfg(test)]
mod tests;
