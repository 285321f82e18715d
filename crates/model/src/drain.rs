//! From the rings to the medium: draining, completions, failures, decay, and a line's opening and
//! closing.

use crate::config::Model;
use crate::rules::Rule;
use crate::state::{
    Addr, CELLS, Cell, CellKind, Entry, LINES, Line, LinePhase, Media, PAD, Record, SlotPhase,
    State,
};
use crate::step::{Step, Steps};

impl Model {
    /// Steps of the drainers, of commands under way, and of slots that reached the medium.
    pub(crate) fn drain_steps(&self, state: &State, out: &mut Steps) {
        (0..2).for_each(|ring| self.drain(state, ring, out));
        for (line, position) in self.addresses() {
            let at = (line, position);
            match state.cell(at).kind {
                CellKind::InFlight if self.completes_next(state, at) => {
                    self.complete(state, at, out);
                    self.fail(state, at, out);
                }
                CellKind::Good => self.decay(state, at, out),
                _ => {}
            }
        }
        self.pad(state, 0, out);
        if self.config.pools {
            self.pad(state, 1, out);
        }
    }

    /// The map gets the addresses of slots that are durable.
    pub(crate) fn map_steps(&self, state: &State, out: &mut Steps) {
        for id in 0..self.config.slots {
            let slot = &state.slots[id as usize];
            let durable = self.durable_at(state, slot);
            if let (Some(at), Entry::Slot(mapped)) = (durable, state.map[slot.lba as usize])
                && mapped == id
            {
                let mut next = state.clone();
                let lba = slot.lba as usize;
                self.leave(&mut next, lba);
                next.map[lba] = Entry::Media(at);
                out.push((
                    Step("slot {}: the map gets its address ({}, {})", [id, at.0, at.1]),
                    next,
                ));
            }
        }
    }

    fn addresses(&self) -> impl Iterator<Item = Addr> {
        let sectors = self.config.sectors;
        (0..LINES as u8).flat_map(move |line| (0..sectors).map(move |position| (line, position)))
    }

    /// Where the next program goes, if a line is open and the chunk there is idle.
    fn place(&self, state: &State, ring: usize) -> Option<Addr> {
        let line = (0..LINES).find(|line| {
            let line = &state.lines[*line];
            let ours = line.pool == self.pool(ring);
            ours && line.phase == LinePhase::Open && line.next < self.config.sectors
        })?;
        let next = state.lines[line].next;
        let busy = (0..next).any(|position| {
            position % self.config.width == next % self.config.width
                && state.media[line].cells[position as usize].kind == CellKind::InFlight
        });
        (!busy).then_some((line as u8, next))
    }

    fn pool(&self, ring: usize) -> u8 {
        if self.config.pools { ring as u8 } else { 0 }
    }

    /// Programs in one chunk complete in order.
    fn completes_next(&self, state: &State, (line, position): Addr) -> bool {
        let width = self.config.width;
        (0..position)
            .filter(|before| before % width == position % width)
            .all(|before| state.cell((line, before)).kind != CellKind::InFlight)
    }

    fn drain(&self, state: &State, ring: usize, out: &mut Steps) {
        let Some(&id) = state.rings[ring].first() else {
            return;
        };
        let slot = state.slots[id as usize];
        let mut next = state.clone();
        next.rings[ring].remove(0);
        let droppable = (slot.cover == 0 || !self.has(Rule::CoveredSlot))
            && (slot.pins == 0 || !self.has(Rule::DropEpoch));
        if self.is_dead(state, id) && droppable && self.has(Rule::Tombstone) {
            next.slots[id as usize].phase = SlotPhase::Dead;
            next.slots[id as usize].cover = 0;
            out.push((
                Step("ring {}: slot {} is dead, padding instead", [ring as u8, id, 0]),
                next,
            ));
            return;
        }
        let Some(at) = self.place(state, ring) else {
            return;
        };
        *next.cell_mut(at) =
            Cell { kind: CellKind::InFlight, lba: slot.lba, stamp: slot.stamp, value: slot.value };
        next.lines[at.0 as usize].next += 1;
        next.slots[id as usize].phase = SlotPhase::InFlight(at);
        out.push((Step("slot {}: program sent to ({}, {})", [id, at.0, at.1]), next));
    }

    /// Someone waits for a pair that no data is going to complete.
    fn pad(&self, state: &State, ring: usize, out: &mut Steps) {
        let waits = state.slots.iter().any(|slot| slot.cover != 0);
        let Some(at) = self.place(state, ring) else {
            return;
        };
        if !self.config.pairs || at.1 % 2 == 0 || !waits {
            return;
        }
        let mut next = state.clone();
        *next.cell_mut(at) = Cell { kind: CellKind::InFlight, ..Cell::ERASED };
        next.lines[at.0 as usize].next += 1;
        out.push((Step("padding sent to ({}, {})", [at.0, at.1, 0]), next));
    }

    fn complete(&self, state: &State, at: Addr, out: &mut Steps) {
        let mut next = state.clone();
        next.cell_mut(at).kind = CellKind::Good;
        for slot in next.slots.iter_mut().filter(|slot| slot.phase == SlotPhase::InFlight(at)) {
            slot.phase = SlotPhase::Done(at);
        }
        out.push((Step("program of ({}, {}) completes", [at.0, at.1, 0]), next));
    }

    /// A failed program closes the line; what is not safe yet is programmed elsewhere.
    fn fail(&self, state: &State, at: Addr, out: &mut Steps) {
        if state.left.fails == 0 {
            return;
        }
        let mut next = state.clone();
        next.left.fails -= 1;
        next.cell_mut(at).kind = CellKind::Torn;
        if self.config.pairs && at.1 % 2 == 1 {
            next.cell_mut((at.0, at.1 - 1)).kind = CellKind::Torn;
        }
        let line = &mut next.lines[at.0 as usize];
        (line.next, line.early) = (self.config.sectors, true);
        let mut again = Vec::new();
        for id in 0..self.config.slots {
            let slot = next.slots[id as usize];
            let back = match slot.phase {
                SlotPhase::InFlight(failed) => failed == at,
                SlotPhase::Done(done) => done.0 == at.0 && !self.pair_closed(&next, done),
                _ => false,
            };
            if back {
                again.push(id);
            }
        }
        // Another ring takes them, where there is one with a line of its own.
        let elsewhere = usize::from(self.config.pools && next.lines[at.0 as usize].pool == 0);
        for id in again.into_iter().rev() {
            next.slots[id as usize].phase = SlotPhase::Ring;
            next.rings[elsewhere].insert(0, id);
        }
        out.push((Step("program of ({}, {}) fails, the line closes early", [at.0, at.1, 0]), next));
    }

    /// Is this among the sectors that a cut may have torn: the last of its chunk, or its pair?
    pub(crate) fn at_frontier(&self, media: &Media, position: u8) -> bool {
        let width = self.config.width;
        let programmed = |at: u8| media.cells[at as usize].kind != CellKind::Erased;
        let chunk = (0..self.config.sectors).filter(|at| at % width == position % width);
        let last = chunk.filter(|at| programmed(*at)).max();
        let pair = self.config.pairs.then_some(position | 1);
        last.is_some_and(|last| last == position || Some(last) == pair)
    }

    /// A sector goes bad: not where a cut now would leave an open line's frontier, because there it
    /// could not be told from a tear.
    fn decay(&self, state: &State, at: Addr, out: &mut Steps) {
        let cell = state.cell(at);
        let Line { phase, seq, .. } = state.lines[at.0 as usize];
        let record = Record::Closed(at.0, seq);
        let closed =
            phase == LinePhase::Closed && state.log[..state.durable as usize].contains(&record);
        let mut media = state.media[at.0 as usize];
        for cell in media.cells.iter_mut().filter(|cell| cell.kind == CellKind::InFlight) {
            *cell = Cell::ERASED;
        }
        let frontier = !closed && self.at_frontier(&media, at.1);
        if state.left.decays == 0 || frontier || cell.lba == PAD {
            return;
        }
        let mut next = state.clone();
        next.left.decays -= 1;
        next.host.decayed |= 1 << cell.value;
        next.cell_mut(at).kind = CellKind::Decayed;
        out.push((Step("content of ({}, {}) goes bad", [at.0, at.1, 0]), next));
    }

    /// Opening the next line and closing full ones.
    pub(crate) fn line_steps(&self, state: &State, out: &mut Steps) {
        for pool in 0..=self.pool(1) {
            self.open(state, pool, out);
        }
        for line in 0..LINES {
            self.close(state, line, out);
        }
    }

    fn open(&self, state: &State, pool: u8, out: &mut Steps) {
        let usable = |line: &Line| match line.phase {
            LinePhase::Opening(_) => line.pool == pool,
            LinePhase::Open => line.pool == pool && line.next < self.config.sectors,
            _ => false,
        };
        let free = state.lines.iter().position(|line| line.phase == LinePhase::Free);
        let (Some(line), false) = (free, state.lines.iter().any(usable)) else {
            return;
        };
        let mut next = state.clone();
        let seq = next.next_seq;
        next.next_seq += 1;
        next.media[line] = Media::ERASED;
        let records = next.append(Record::Opened(line as u8, seq));
        let wait = self.has(Rule::OpenedFirst);
        let phase = if wait { LinePhase::Opening(records) } else { LinePhase::Open };
        next.lines[line] = Line { phase, seq, next: 0, early: false, pool };
        out.push((Step("line {}: opened as sequence {}", [line as u8, seq, 0]), next));
    }

    fn close(&self, state: &State, line: usize, out: &mut Steps) {
        let Media { cells, .. } = state.media[line];
        let full = state.lines[line].next == self.config.sectors;
        let in_flight = cells.iter().any(|cell| cell.kind == CellKind::InFlight);
        let open = state.lines[line].phase == LinePhase::Open;
        if !open || !full || (in_flight && self.has(Rule::ClosingLast)) {
            return;
        }
        let mut next = state.clone();
        let mut closing = [(PAD, 0); CELLS];
        for (entry, cell) in closing.iter_mut().zip(&cells) {
            if matches!(cell.kind, CellKind::Good | CellKind::InFlight | CellKind::Decayed) {
                *entry = (cell.lba, cell.stamp);
            }
        }
        next.media[line].closing = Some(closing);
        next.append(Record::Closed(line as u8, next.lines[line].seq));
        next.lines[line].phase = LinePhase::Closed;
        out.push((Step("line {}: closing metadata programmed", [line as u8, 0, 0]), next));
    }
}
