//! What the stages of the cost model take on this machine, as a cost table.
//!
//! Owns: which stage is measured how ([`stages`], [`locks`]), the table's text. Promises: every
//! stage of [`STAGES`] is in the table, with how it was come by; the text is one that
//! [`CostTable`] reads. Never: looks at a clock but the executor's (`Cx::now` on real threads), or
//! claims more than a median: other programs on the machine are in it.
//!
//! Start reading at [`measure`].

mod locks;
mod stages;

use crate::words::{aligned, row};
use flashlane_base::Ns;
use flashlane_rt::{CostTable, STAGES};
use std::fmt;

/// The machine that is measured, for the table's source.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub cpu: String,
    /// Cores that this program may use.
    pub cores: u32,
    pub kernel: String,
    /// Day of the measurement, `2026-11-22`.
    pub date: String,
    /// Version of this program and whether it was built with optimizations.
    pub build: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel, date, build } = self;
        write!(f, "{cpu}, {cores} cores, {kernel}; {date}; {build}")
    }
}

impl Machine {
    /// A name for its table: `ours-amd-epyc-2c`.
    pub fn table_name(&self) -> String {
        let mut slug = String::new();
        for c in self.cpu.to_lowercase().replace("(r)", "").replace("(tm)", "").chars() {
            match c.is_ascii_alphanumeric() {
                true => slug.push(c),
                false if !slug.ends_with('-') => slug.push('-'),
                false => {}
            }
        }
        format!("ours-{}-{}c", slug.trim_matches('-'), self.cores)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Its name in [`STAGES`].
    pub name: &'static str,
    /// Nanoseconds, not negative.
    pub ns: f64,
    /// How it was come by.
    pub how: &'static str,
}

#[derive(Clone, Debug)]
pub struct Calibration {
    /// Every stage, in the order of [`STAGES`].
    pub stages: Vec<Stage>,
    /// Nanoseconds that each waiter adds to a hand-over of a contended lock; `None` where that could
    /// not be measured: one core, or others had the cores.
    pub handoff_ns: Option<f64>,
    /// Nanoseconds per section of a contended lock, by threads.
    pub by_threads: Vec<(u32, f64)>,
}

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds that a median is taken over.
    pub rounds: usize,
    /// Most threads that are put on one lock; never more than there are cores.
    pub threads: u32,
}

/// Measures this machine: the stages on one thread, the hand-over of a lock on several.
pub fn measure(effort: Effort) -> Calibration {
    let mut stages = stages::measure(effort.rounds);
    let place = |s: &Stage| STAGES.iter().position(|(name, _)| *name == s.name);
    stages.sort_by_key(place);
    let by_threads = locks::measure(effort);
    Calibration { stages, handoff_ns: locks::per_waiter(&by_threads), by_threads }
}

impl Calibration {
    /// The cost table as TOML.
    pub fn to_toml(&self, machine: &Machine) -> String {
        let Machine { cpu, cores, kernel, date, build } = machine;
        let mut text = format!(
            "# What the stages of Flashlane's own code take on one machine: `flashlane bench --calibrate`.\n\
             #\n# CPU: {cpu}, {cores} cores\n# Kernel: {kernel}\n# Date: {date}\n# Build: {build}\n#\n\
             # Medians; a difference of two measured times that came out below nothing is 0 ns. The\n\
             # emulated device's own work is subtracted: a real device would do it.\n"
        );
        let name = toml::Value::from(machine.table_name());
        let source = format!("measured on {cpu}, {cores} cores, {kernel}, {date}, {build}");
        text += &format!("name = {name}\nsource = {}\n", toml::Value::from(source));
        text += "\n# Each waiter's share of a hand-over: slope of the time per section of a ticket lock.\n";
        for (threads, ns) in &self.by_threads {
            text += &format!("#   {threads} threads: {ns:.0} ns per section\n");
        }
        text += &match self.handoff_ns {
            Some(ns) => format!("handoff_per_waiter = \"{}ns\"\n", whole(ns).as_ns()),
            None => {
                "# NOT MEASURED: that takes two cores that nobody else uses meanwhile.\n".into()
            }
        };
        text += "\n[stages]\n";
        let width = self.stages.iter().map(|s| s.name.len()).max().unwrap_or(0) + 2;
        for s in &self.stages {
            let key = format!("\"{}\"", s.name);
            text += &format!("{key:width$} = \"{}ns\" # {}\n", whole(s.ns).as_ns(), s.how);
        }
        text
    }

    /// The same for people.
    pub fn to_text(&self, machine: &Machine) -> String {
        let mut text = format!("{machine}\n\n");
        let mut rows = vec![row(["stage", "ns", "what"])];
        for s in &self.stages {
            let what = STAGES.iter().find(|(name, _)| *name == s.name).map_or("", |(_, what)| what);
            rows.push(vec![s.name.into(), format!("{:.0}", s.ns), what.into()]);
        }
        text += &aligned(&rows);
        for (threads, ns) in &self.by_threads {
            text += &format!("{threads} threads on one lock: {ns:.0} ns per section\n");
        }
        text + &match self.handoff_ns {
            Some(ns) => format!("each waiter adds {ns:.0} ns to a hand-over\n"),
            None => "the price of a hand-over could not be measured: that takes two cores that \
                     nobody else uses meanwhile\n"
                .into(),
        }
    }

    pub fn table(&self, machine: &Machine) -> CostTable {
        CostTable::from_toml(&self.to_toml(machine)).expect("a table of our own making")
    }
}

fn whole(ns: f64) -> Ns {
    Ns::from_ns(ns.round().max(0.0) as u64)
}

/// The middle one; 0 of none.
fn median(mut list: Vec<f64>) -> f64 {
    list.sort_by(f64::total_cmp);
    list.get(list.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpu: &str) -> Machine {
        let (kernel, date) = ("Linux 6.1".into(), "2026-11-22".into());
        Machine { cpu: cpu.into(), cores: 2, kernel, date, build: "flashlane 0".into() }
    }

    /// No time is looked at: only that every stage is there, and that the table is read back.
    #[test]
    fn a_measured_table_is_complete_and_can_be_used() {
        let machine = machine("Intel(R) Xeon(R) CPU \"E5\" @ 2.40GHz");
        let found = measure(Effort { rounds: 3, threads: 2 });
        let table = found.table(&machine);
        assert_eq!(table.name(), "ours-intel-xeon-cpu-e5-2-40ghz-2c");
        assert_eq!(table.unsaid(), [""; 0]);
        assert!(table.source().contains("2026-11-22") && table.source().contains("Linux 6.1"));
        for (name, _) in STAGES {
            let stage = found.stages.iter().filter(|s| s.name == *name).collect::<Vec<_>>();
            assert_eq!(stage.len(), 1, "{name}");
            assert_eq!(table.stage(name), whole(stage[0].ns), "{name}");
            assert!(found.to_text(&machine).contains(name));
        }
        // A difference of two measurements may be 0, on a busy machine, but not all of them.
        assert!(STAGES.iter().any(|(name, _)| table.stage(name) > Ns::ZERO));
    }

    #[test]
    fn a_hand_over_that_could_not_be_measured_is_said_and_costs_nothing() {
        let found = Calibration { stages: Vec::new(), handoff_ns: None, by_threads: Vec::new() };
        let text = found.to_toml(&machine("x"));
        assert!(text.contains("NOT MEASURED"), "{text}");
        assert_eq!(found.table(&machine("x")).handoff(5), Ns::ZERO);
    }
}
