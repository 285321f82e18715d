//! A naive pblk, for numbers that must agree exactly.
//!
//! Owns: [`Model`], a synchronous target in about a hundred lines: lines as lists of sectors, greedy
//! victims, padding by arithmetic. With one request at a time, no device time, GC by hand and a
//! flush behind each step, nothing that pblk does side by side can differ.
//! Lines have 14 units on 2 PUs, so that a victim is moved with one vector, in stripe order.

use crate::prelude::*;

const PUS: usize = 2;
const ROWS: usize = 8;
const UNIT: usize = 4;

/// Id of the spare line until it is known.
const UNNAMED: usize = usize::MAX;

/// A line: per chunk its units, each of up to four sectors; metadata is an empty unit.
#[derive(Clone, Default)]
struct Line {
    chunks: [Vec<Vec<u64>>; PUS],
    cursor: usize,
    closed: bool,
}

#[derive(Default)]
struct Model {
    lines: BTreeMap<usize, Line>,
    /// The line that takes data; none between lines, until the next unit comes.
    current: Option<usize>,
    spare: usize,
    /// Where a sector is: line. Its place within does not matter beyond order.
    map: Vec<Option<usize>>,
    user: u64,
    gc: u64,
    padding_flush: u64,
    padding_gc: u64,
    victims: u64,
    free_rides: u64,
    opened: u64,
    freed: u64,
}

impl Model {
    fn new(capacity: u64) -> Model {
        let mut m = Model { map: vec![None; capacity as usize], ..Model::default() };
        m.spare = m.open();
        m
    }

    fn open(&mut self) -> usize {
        self.opened += 1;
        let mut line = Line::default();
        line.chunks[0].push(Vec::new()); // first metadata
        self.lines.insert(UNNAMED, line);
        UNNAMED
    }

    /// Gives the spare line the id that the target gave it: whether that is the one just freed is a
    /// race of its opener with its freer, and decides only which of two equal victims goes first.
    fn name_spare(&mut self, id: usize) {
        if let Some(line) = self.lines.remove(&UNNAMED) {
            assert!(self.lines.insert(id, line).is_none(), "line {id} is in use");
            self.spare = id;
        }
        assert_eq!(self.spare, id);
    }

    fn take_line(&mut self) -> usize {
        let id = self.current.unwrap_or(self.spare);
        if self.current.replace(id).is_none() {
            self.spare = self.open();
        }
        id
    }

    /// Places sectors unit by unit; the last is padded. Returns the padding.
    fn program(&mut self, sectors: &[u64]) -> u64 {
        for unit in sectors.chunks(UNIT) {
            let id = self.take_line();
            let line = self.lines.get_mut(&id).expect("open");
            let with_room = |at: &usize| line.chunks[*at].len() < ROWS;
            let at = (0..PUS).map(|i| (line.cursor + i) % PUS).find(with_room);
            let at = at.expect("the closing unit is kept");
            line.chunks[at].push(unit.to_vec());
            line.cursor = (at + 1) % PUS;
            unit.iter().for_each(|lba| self.map[*lba as usize] = Some(id));
            let used: usize = line.chunks.iter().map(Vec::len).sum();
            if used == PUS * ROWS - 1 {
                line.closed = true;
                self.current = None;
            }
        }
        (sectors.len().next_multiple_of(UNIT) - sectors.len()) as u64
    }

    fn write(&mut self, lba: u64, n: u64) {
        let sectors: Vec<u64> = (lba..lba + n).collect();
        self.forget(lba, n);
        self.user += n;
        self.padding_flush += self.program(&sectors);
    }

    fn forget(&mut self, lba: u64, n: u64) {
        for lba in lba..lba + n {
            if let Some(line) = self.map[lba as usize].take() {
                let line = self.lines.get_mut(&line).expect("holds it");
                let units = line.chunks.iter_mut().flatten();
                units.for_each(|u| u.retain(|l| *l != lba));
            }
        }
    }

    /// The live sectors of a line, row by row over its chunks.
    fn live(&self, id: usize) -> Vec<u64> {
        let line = &self.lines[&id];
        let rows = (0..ROWS).flat_map(|row| (0..PUS).map(move |at| (row, at)));
        let unit = |(row, at): (usize, usize)| line.chunks[at].get(row).cloned();
        rows.filter_map(unit).flatten().collect()
    }

    /// The first empty line, else the first of those with the fewest live sectors.
    fn collect(&mut self) -> bool {
        let closed = self.lines.iter().filter(|(_, line)| line.closed);
        let full = (PUS * ROWS - 2) * UNIT;
        let counts = closed.map(|(id, _)| (self.live(*id).len(), *id));
        let Some((valid, victim)) = counts.filter(|(v, _)| *v < full).min() else {
            return false;
        };
        self.victims += 1;
        self.free_rides += (valid == 0) as u64;
        let live = self.live(victim);
        self.gc += valid as u64;
        self.padding_gc += self.program(&live);
        self.lines.remove(&victim);
        self.freed += 1;
        true
    }
}

/// (c): user, GC and padding programs, victims, free rides, lines and free chunks are exactly those
/// of the naive model, step by step.
#[test]
fn every_count_is_the_naive_models() {
    for seed in 0..8 {
        let setup = tiny(120).shape(1, PUS as u32, ROWS as u32).op(40);
        let b = setup.untimed().untraced().manual_gc().build();
        assert_eq!(b.dev.layout().line_data, ((PUS * ROWS - 2) * UNIT) as u64);
        let mut m = Model::new(b.capacity());
        m.name_spare(0);
        let free_at_start = b.free_chunks() + PUS as u64;
        let mut rng = Rng::stream(seed, "model", 0);
        // Of a third of the capacity, so that what is freed by hand is always enough.
        let range = b.capacity() / 3;
        // Fewer steps than fill half the log, where the oldest line is closed (FORMAT.md rule 20).
        for step in 0..300u64 {
            let lba = rng.below(range);
            let n = (1 + rng.below(40)).min(range - lba);
            match rng.below(10) {
                0 => {
                    b.discard(lba, n);
                    b.flush();
                    m.forget(lba, n);
                }
                1..5 => assert_eq!(b.gc_once(), m.collect(), "step {step}"),
                _ => {
                    b.write(lba, n as u32, step + 1);
                    b.drained();
                    m.write(lba, n);
                }
            }
            let info = b.attribute("lines_info");
            let next = info.split("next=").nth(1).and_then(|id| id.parse().ok());
            m.name_spare(next.expect("a spare is always ready"));
            let s = b.stats();
            let got = [
                s.programmed_for(Cause::User),
                s.programmed_for(Cause::Gc),
                s.programmed_for(Cause::PaddingFlush),
                s.programmed_for(Cause::PaddingGc),
                s.gc_victims,
                s.gc_free_rides,
                b.lines(LineState::Closed) as u64,
                b.free_chunks(),
            ];
            let closed = m.lines.values().filter(|l| l.closed).count();
            let want = [
                m.user,
                m.gc,
                m.padding_flush,
                m.padding_gc,
                m.victims,
                m.free_rides,
                closed as u64,
                free_at_start - PUS as u64 * (m.opened - m.freed),
            ];
            assert_eq!(got, want, "seed {seed}, step {step}: user, gc, paddings, gc counts, lines");
        }
        assert!(m.freed > 50 && m.gc > 500, "freed {}, moved {}", m.freed, m.gc);
        b.settled();
    }
}
