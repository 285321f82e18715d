//! The same FTL, naively: one thing after the other, whole-table scans, no queues, no time.
//!
//! Owns: what the policy *means*. Promises: on one PU with operations that take no time, the FTL
//! does exactly what this does: same programs, moves and erases. Never: fast.

use std::collections::VecDeque;

/// Where a logical sector is: nowhere, waiting in queue 0 (host) or 1 (GC), or at a physical place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    Waiting(usize),
    Medium(usize, usize),
}

#[derive(Clone, Default)]
struct Line {
    /// Owners of the sectors written so far.
    owners: Vec<u64>,
    erases: u64,
    opened: u64,
}

pub(crate) struct Naive {
    unit: usize,
    line_sectors: usize,
    low_water: usize,
    map: Vec<At>,
    lines: Vec<Line>,
    free: Vec<usize>,
    open: [Option<usize>; 2],
    waiting: [VecDeque<u64>; 2],
    opened: u64,
    pub(crate) programmed: u64,
    pub(crate) moved: u64,
    pub(crate) erases: u64,
    pub(crate) absorbed: u64,
}

impl Naive {
    pub(crate) fn new(
        capacity: u64,
        lines: usize,
        line_sectors: usize,
        unit: usize,
        low_water: usize,
    ) -> Naive {
        Naive {
            unit,
            line_sectors,
            low_water,
            map: vec![At::Nowhere; capacity as usize],
            lines: vec![Line::default(); lines],
            free: (0..lines).collect(),
            open: [None; 2],
            waiting: Default::default(),
            opened: 0,
            programmed: 0,
            moved: 0,
            erases: 0,
            absorbed: 0,
        }
    }

    pub(crate) fn write(&mut self, lba: u64) {
        match self.map[lba as usize] {
            At::Waiting(0) => self.absorbed += 1,
            At::Waiting(_) => {
                self.waiting[1].retain(|l| *l != lba);
                self.push(0, lba);
            }
            _ => self.push(0, lba),
        }
        self.drain();
    }

    fn push(&mut self, queue: usize, lba: u64) {
        self.waiting[queue].push_back(lba);
        self.map[lba as usize] = At::Waiting(queue);
    }

    fn drain(&mut self) {
        loop {
            let host_due = self.waiting[0].len() >= self.unit;
            if self.waiting[1].len() >= self.unit && self.has_room(1) {
                self.program(1);
            } else if host_due && self.host_may_go_on() && self.has_room(0) {
                self.program(0);
            } else if !self.collect(host_due) {
                break;
            }
        }
    }

    /// The host may open a line if GC keeps one, beside room for what waits to be moved.
    fn host_may_go_on(&self) -> bool {
        let rest = self.open[1].map_or(0, |l| self.line_sectors - self.lines[l].owners.len());
        let room = rest + self.free.len() * self.line_sectors;
        self.open[0].is_some() || room >= 2 * self.line_sectors + self.waiting[1].len()
    }

    fn has_room(&mut self, queue: usize) -> bool {
        if self.open[queue].is_none() && !self.free.is_empty() {
            let wear = |i: &usize| (self.lines[self.free[*i]].erases, self.free[*i]);
            let i = (0..self.free.len()).min_by_key(wear).unwrap();
            let line = self.free.remove(i);
            self.opened += 1;
            self.lines[line].opened = self.opened;
            self.open[queue] = Some(line);
        }
        self.open[queue].is_some()
    }

    fn program(&mut self, queue: usize) {
        let line = self.open[queue].unwrap();
        for _ in 0..self.unit {
            let lba = self.waiting[queue].pop_front().unwrap();
            self.map[lba as usize] = At::Medium(line, self.lines[line].owners.len());
            self.lines[line].owners.push(lba);
            self.programmed += 1;
        }
        if self.lines[line].owners.len() == self.line_sectors {
            self.open[queue] = None;
        }
    }

    fn is_valid(&self, line: usize, at: usize) -> bool {
        self.map[self.lines[line].owners[at] as usize] == At::Medium(line, at)
    }

    fn valid(&self, line: usize) -> usize {
        (0..self.lines[line].owners.len()).filter(|at| self.is_valid(line, *at)).count()
    }

    /// One victim, if lines are short and one is worth it.
    fn collect(&mut self, host_due: bool) -> bool {
        let starved = host_due && !self.host_may_go_on();
        if self.free.len() >= self.low_water && !starved {
            return false;
        }
        let closed = |l: &usize| self.lines[*l].owners.len() == self.line_sectors;
        let victim = (0..self.lines.len())
            .filter(closed)
            .min_by_key(|l| (self.valid(*l), self.lines[*l].opened))
            .filter(|l| self.valid(*l) < self.line_sectors);
        let Some(victim) = victim else {
            return false;
        };
        for at in 0..self.line_sectors {
            if !self.is_valid(victim, at) {
                continue;
            }
            let lba = self.lines[victim].owners[at];
            self.push(1, lba);
            self.moved += 1;
            if self.waiting[1].len() == self.unit && self.has_room(1) {
                self.program(1);
            }
        }
        self.lines[victim].owners.clear();
        self.lines[victim].erases += 1;
        self.erases += 1;
        self.free.push(victim);
        true
    }
}
