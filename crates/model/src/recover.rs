//! A power cut, the recovery from it, and what the host is promised to find.
//!
//! Recovery itself is a function of the medium, the log's prefix and the checkpoints. It is asked
//! in every state for every outcome that a cut there could have; a cut that the exploration goes on
//! from is a step.

use crate::config::{Model, Op};
use crate::rules::Rule;
use crate::state::{
    CELLS, CellKind, Checkpoint, Core, Doing, Entry, Gc, LBAS, LINES, Line, LinePhase, Media, PAD,
    Phase, Record, SLOTS, Shard, ShardEntry, Slot, State, Writer,
};
use crate::step::{Step, Steps};

/// What a read gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Zeros,
    Content(u8),
    Error,
    Foreign(u8),
}

/// What a cut leaves.
#[derive(Clone)]
pub(crate) struct Image<'a> {
    media: [Media; LINES],
    log: &'a [Record],
    checkpoints: &'a [Checkpoint],
    /// The newest complete checkpoint can't be read.
    skip_newest: bool,
    /// In-flight programs that ended torn, for the trace.
    torn: u8,
}

/// What recovery finds, or the line that is missing though nothing went bad.
type Found = Result<[Entry; LBAS], u8>;

/// One claim on a sector: ordered by stamp; a tombstone also covers its own stamp; then whether it
/// can be read; then by place.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    stamp: u8,
    tombstone: bool,
    reads: bool,
    seq: u8,
    position: u8,
}

/// Lines as the log tells them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Open(u8),
    Closed(u8),
}

impl Model {
    /// Every outcome of a cut now, handed to `visit` until that returns something.
    pub(crate) fn outcomes<T>(
        &self,
        state: &State,
        mut visit: impl FnMut(&Image<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut media = vec![(state.media, 0)];
        for line in 0..LINES {
            for position in 0..CELLS {
                if state.media[line].cells[position].kind == CellKind::InFlight {
                    media = self.endings(&media, line, position);
                }
            }
        }
        let newest = if self.config.unreadable_checkpoint { 2 } else { 1 };
        for records in state.durable as usize..=state.log.len() {
            for (media, torn) in &media {
                for skip in 0..newest {
                    let image = Image {
                        media: *media,
                        log: &state.log[..records],
                        checkpoints: &state.checkpoints,
                        skip_newest: skip == 1,
                        torn: *torn,
                    };
                    if let Some(found) = visit(&image) {
                        return Some(found);
                    }
                }
            }
        }
        None
    }

    /// A program under way is not there, torn (with its pair where that can happen), or complete.
    fn endings(
        &self,
        media: &[([Media; LINES], u8)],
        line: usize,
        position: usize,
    ) -> Vec<([Media; LINES], u8)> {
        let mut out = Vec::new();
        for (before, torn) in media {
            let mut with = |kind: CellKind, lower: bool| {
                let mut after = *before;
                let cells = &mut after[line].cells;
                match kind {
                    CellKind::Erased => cells[position] = crate::state::Cell::ERASED,
                    kind => cells[position].kind = kind,
                }
                if lower && cells[position - 1].kind == CellKind::Good {
                    cells[position - 1].kind = CellKind::Torn;
                }
                out.push((after, torn + u8::from(kind == CellKind::Torn)));
            };
            with(CellKind::Erased, false);
            with(CellKind::Torn, false);
            with(CellKind::Good, false);
            if self.config.pairs && position % 2 == 1 {
                with(CellKind::Torn, true);
            }
        }
        out
    }

    /// Lines as the log tells them, and the index of the last `freed` of each.
    fn told(log: &[Record]) -> ([Told; LINES], [Option<usize>; LINES]) {
        let mut lines = [Told::Nothing; LINES];
        let mut freed = [None; LINES];
        for (index, record) in log.iter().enumerate() {
            match *record {
                Record::Opened(line, seq) => lines[line as usize] = Told::Open(seq),
                Record::Closed(line, seq) => lines[line as usize] = Told::Closed(seq),
                Record::Freed(line, _) => {
                    lines[line as usize] = Told::Nothing;
                    freed[line as usize] = Some(index);
                }
                _ => {}
            }
        }
        (lines, freed)
    }

    /// The map after a cut.
    fn recover(&self, image: &Image<'_>) -> Found {
        let (lines, freed) = Self::told(image.log);
        let complete = image.checkpoints.iter().rev();
        let mut complete = complete.filter(|made| (made.complete as usize) < image.log.len());
        let newest = complete.next();
        let base = if image.skip_newest { complete.next().or(newest) } else { newest };
        let shards = base.map_or([Shard::EMPTY; LBAS], |made| made.shards);
        let last = image.log.last();
        let marker = if self.has(Rule::StoppedRecord) { Record::Stopped } else { Record::Complete };
        let clean = base.is_some() && last == Some(&marker);
        for (line, told) in lines.iter().enumerate() {
            if matches!(told, Told::Closed(_)) && image.media[line].closing.is_none() {
                return Err(line as u8);
            }
        }
        let position = shards.iter().map(|shard| shard.position as usize).min().unwrap_or(0);
        let open = shards.iter().map(|shard| shard.open).min().unwrap_or(0);
        let mut map = [Entry::Unmapped; LBAS];
        for (lba, entry) in map.iter_mut().enumerate() {
            let mut best = (Claim::default(), Entry::Unmapped);
            self.claim_shard(image, &shards[lba], &freed, &mut best);
            if !clean {
                self.claim_lines(image, lba as u8, &lines, open, &mut best);
                Self::claim_records(image, lba as u8, position, &mut best);
            }
            *entry = best.1;
        }
        Ok(map)
    }

    fn claim_shard(
        &self,
        image: &Image<'_>,
        shard: &Shard,
        freed: &[Option<usize>; LINES],
        best: &mut (Claim, Entry),
    ) {
        let none = Claim { reads: true, ..Claim::default() };
        match shard.entry {
            ShardEntry::Tombstone(stamp) => {
                *best = (Claim { stamp, tombstone: true, ..none }, Entry::Unmapped);
            }
            ShardEntry::Poison(stamp) => *best = (Claim { stamp, ..none }, Entry::Poison(stamp)),
            ShardEntry::Media((line, position)) => {
                let after = freed[line as usize].is_some_and(|at| at >= shard.position as usize);
                let cell = image.media[line as usize].cells[position as usize];
                if !(after && self.has(Rule::VoidEntry)) {
                    let stamp = cell.stamp;
                    *best = (Claim { stamp, ..none }, Entry::Media((line, position)));
                }
            }
        }
    }

    fn claim_lines(
        &self,
        image: &Image<'_>,
        lba: u8,
        lines: &[Told; LINES],
        open: u8,
        best: &mut (Claim, Entry),
    ) {
        let ordered = self.has(Rule::ReplayStamps);
        for (line, told) in lines.iter().enumerate() {
            let (Told::Open(seq) | Told::Closed(seq)) = *told else {
                continue;
            };
            if seq < open {
                continue;
            }
            for (position, stamp) in self.copies(&image.media[line], *told, lba) {
                let reads = image.media[line].cells[position as usize].kind == CellKind::Good;
                let claim = Claim { stamp, tombstone: false, reads, seq, position };
                let later = (seq, position) >= (best.0.seq, best.0.position);
                let wins = if ordered { claim > best.0 } else { later };
                if wins {
                    *best = (claim, Entry::Media((line as u8, position)));
                }
            }
        }
    }

    fn claim_records(image: &Image<'_>, lba: u8, position: usize, best: &mut (Claim, Entry)) {
        for record in image.log.iter().skip(position) {
            match *record {
                Record::Discarded(mask, stamp) if mask & 1 << lba != 0 && stamp > best.0.stamp => {
                    best.0.stamp = stamp;
                    best.1 = Entry::Unmapped;
                }
                Record::Poisoned(of, stamp)
                    if of == lba
                        && (stamp > best.0.stamp || (stamp == best.0.stamp && !best.0.reads)) =>
                {
                    best.0.stamp = stamp;
                    best.1 = Entry::Poison(stamp);
                }
                _ => {}
            }
        }
    }

    /// (position, stamp) of a sector's copies in a line: by closing metadata, else by scanning.
    fn copies(&self, media: &Media, told: Told, lba: u8) -> Vec<(u8, u8)> {
        let mut out = Vec::new();
        for position in 0..self.config.sectors {
            let entry = match (told, media.closing) {
                (Told::Closed(_), Some(closing)) => closing[position as usize],
                _ => self.scanned(media, position),
            };
            if entry.0 == lba {
                out.push((position, entry.1));
            }
        }
        out
    }

    /// What a scan makes of a sector: torn at the frontier, decayed behind it.
    fn scanned(&self, media: &Media, position: u8) -> (u8, u8) {
        let cell = &media.cells[position as usize];
        let rule = if self.at_frontier(media, position) {
            !self.has(Rule::TornIsNone)
        } else {
            self.has(Rule::DecayTakesPart)
        };
        if cell.kind == CellKind::Good || (cell.is_bad() && rule) {
            (cell.lba, cell.stamp)
        } else {
            (PAD, 0)
        }
    }

    /// Cuts that the exploration goes on from.
    pub(crate) fn cut_steps(&self, state: &State, out: &mut Steps) {
        self.outcomes(state, |image| {
            let mut next = state.clone();
            next.left.cuts -= 1;
            next.media = image.media;
            next.log = image.log.to_vec();
            next.durable = next.log.len() as u8;
            next.checkpoints.retain(|made| made.complete < next.durable);
            for core in &mut next.cores {
                core.next += u8::from(core.doing != Doing::Nothing);
                core.doing = Doing::Nothing;
            }
            self.mount(&mut next, false);
            let step =
                Step("POWER CUT: {} programs torn, {} log records", [image.torn, next.durable, 0]);
            out.push((step, next));
            None::<()>
        });
    }

    /// Volatile state from durable state.
    pub(crate) fn mount(&self, state: &mut State, clean: bool) {
        let image = Image {
            media: state.media,
            log: &state.log,
            checkpoints: &state.checkpoints,
            skip_newest: false,
            torn: 0,
        };
        let map = self.recover(&image).unwrap_or([Entry::Unmapped; LBAS]);
        let (told, _) = Self::told(&state.log);
        state.next_seq = 1;
        for record in &state.log {
            if let Record::Opened(_, seq) = record {
                state.next_seq = state.next_seq.max(seq + 1);
            }
        }
        for (line, told) in told.into_iter().enumerate() {
            let cells = &state.media[line].cells;
            let written = cells.iter().rposition(|cell| cell.kind != CellKind::Erased);
            let next = written.map_or(0, |last| last as u8 + 1);
            let (phase, seq) = match told {
                Told::Nothing => (LinePhase::Free, 0),
                Told::Open(seq) => (LinePhase::Open, seq),
                Told::Closed(seq) => (LinePhase::Closed, seq),
            };
            state.lines[line] = Line { phase, seq, next, ..Line::FREE };
        }
        state.map = map;
        state.slots = [Slot::FREE; SLOTS];
        state.rings = [Vec::new(), Vec::new()];
        (state.gc, state.writer) = (Gc::Idle, Writer::Idle);
        state.work = [Shard::EMPTY; LBAS];
        let above = self.has(Rule::Ceiling);
        (state.floor, state.clock) = (if above { state.ceiling } else { 0 }, 0);
        state.ceiling += crate::config::LEASE;
        state.phase = if clean { Phase::Running } else { Phase::Recovering(0) };
    }

    /// Recovery's own durable steps, each followed by a state in which the power may fail again.
    pub(crate) fn recovery_step(&self, state: &State, stage: u8, out: &mut Steps) {
        let mut next = state.clone();
        next.phase = Phase::Recovering(stage + 1);
        let text = match stage {
            0 => {
                if self.has(Rule::Started) {
                    next.append(Record::Started);
                }
                "recovery: started"
            }
            1 => {
                if self.has(Rule::RecoveryCloses) {
                    self.close_open_lines(&mut next);
                }
                "recovery: open lines closed"
            }
            _ => {
                self.checkpoint_now(&mut next);
                next.phase = Phase::Running;
                self.pin(&mut next);
                "recovery: checkpoint, running"
            }
        };
        next.durable = next.log.len() as u8;
        out.push((Step(text, [0; 3]), next));
    }

    fn close_open_lines(&self, state: &mut State) {
        for line in 0..LINES {
            if state.lines[line].phase != LinePhase::Open {
                continue;
            }
            let mut closing = [(PAD, 0); CELLS];
            for position in 0..self.config.sectors {
                closing[position as usize] = self.scanned(&state.media[line], position);
            }
            state.media[line].closing = Some(closing);
            state.append(Record::Closed(line as u8, state.lines[line].seq));
            state.lines[line].phase = LinePhase::Closed;
            state.lines[line].next = self.config.sectors;
        }
    }

    /// From here on the host may rely on what recovery found.
    fn pin(&self, state: &mut State) {
        for lba in 0..LBAS {
            let got = self.resolve(state, lba as u8, state.map[lba]);
            let found = |number: &&u8| self.explains(state, [**number].into_iter(), got);
            let history = &state.host.applied[lba];
            if let Some(number) = history.iter().rfind(found) {
                state.host.applied[lba] = vec![*number];
            }
        }
    }

    pub(crate) fn resolve(&self, state: &State, lba: u8, entry: Entry) -> Got {
        match entry {
            Entry::Slot(id) => {
                let slot = &state.slots[id as usize];
                if slot.lba == lba && slot.value != 0 {
                    Got::Content(slot.value)
                } else {
                    Got::Foreign(slot.value)
                }
            }
            entry => Self::resolve_media(&state.media, lba, entry),
        }
    }

    fn resolve_media(media: &[Media; LINES], lba: u8, entry: Entry) -> Got {
        match entry {
            Entry::Unmapped => Got::Zeros,
            Entry::Poison(_) | Entry::Slot(_) => Got::Error,
            Entry::Media((line, position)) => {
                let cell = &media[line as usize].cells[position as usize];
                match cell.kind {
                    CellKind::Good if cell.lba == lba => Got::Content(cell.value),
                    // The lba in the out-of-band record differs: an error, never data.
                    _ => Got::Error,
                }
            }
        }
    }

    /// Does one of these operations explain what was read?
    pub(crate) fn explains(
        &self,
        state: &State,
        mut numbers: impl Iterator<Item = u8>,
        got: Got,
    ) -> bool {
        numbers.any(|number| match got {
            Got::Zeros => self.leaves_zeros(number),
            Got::Content(value) => value == number,
            Got::Error => state.host.decayed & 1 << number != 0,
            Got::Foreign(_) => false,
        })
    }

    /// Operations that have begun but not yet taken effect on a sector: a cut may leave them, too.
    fn under_way(&self, state: &State, lba: u8) -> impl Iterator<Item = u8> {
        let mut out = Vec::new();
        for (index, core) in state.cores.iter().enumerate() {
            let Core { next, doing } = *core;
            let of = match (doing, self.current(state, index)) {
                (Doing::Publish { .. }, Some(Op::Write(of))) => 1 << of,
                (Doing::Clear { todo, .. }, _) => todo,
                _ => 0,
            };
            if of & 1 << lba != 0 {
                out.push(self.number(index, next));
            }
        }
        out.into_iter()
    }

    /// The first promise broken in a state, or by a cut in it.
    pub fn violation(&self, state: &State) -> Option<String> {
        if let Phase::Misread(lba) = state.phase {
            return Some(format!("a read of sector {lba} returned what it never held meanwhile"));
        }
        if state.phase == Phase::Running {
            for lba in 0..LBAS as u8 {
                let got = self.resolve(state, lba, state.map[lba as usize]);
                let last = state.host.applied[lba as usize].last().copied();
                if !self.explains(state, last.into_iter(), got) {
                    return Some(format!("sector {lba} reads {got:?}, last operation {last:?}"));
                }
            }
        }
        self.outcomes(state, |image| self.broken_by(state, image))
    }

    fn broken_by(&self, state: &State, image: &Image<'_>) -> Option<String> {
        let cut = format_args!(
            "power cut ({} programs torn, {} of {} log records{})",
            image.torn,
            image.log.len(),
            state.log.len(),
            if image.skip_newest { ", newest checkpoint unreadable" } else { "" }
        );
        let map = match self.recover(image) {
            Ok(map) => map,
            Err(line) => return Some(format!("{cut}: line {line} is missing on the medium")),
        };
        for lba in 0..LBAS as u8 {
            let got = Self::resolve_media(&image.media, lba, map[lba as usize]);
            let history = &state.host.applied[lba as usize];
            let allowed = history.iter().copied().chain(self.under_way(state, lba));
            if !self.explains(state, allowed, got) {
                return Some(format!(
                    "{cut}: sector {lba} reads {got:?} from {:?}; promised: operation {history:?} \
                     (0: never written)",
                    map[lba as usize]
                ));
            }
        }
        None
    }
}
