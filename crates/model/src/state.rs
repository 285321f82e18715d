//! Everything a moment of the model consists of: what a power cut takes, what it leaves, and what
//! the host knows.
//!
//! Owns the types and the small questions they answer by themselves; never changes by itself (the
//! steps do). Fixed arrays and short vectors, so that a state is a few hundred bytes.

pub const LBAS: usize = 2;
/// Slots of the write buffer, at most.
pub const SLOTS: usize = 4;
pub const LINES: usize = 3;
/// Sectors of a line, at most.
pub const CELLS: usize = 4;
/// The lba field of padding.
pub const PAD: u8 = 0xfe;
pub const NONE: u8 = 0xff;

/// A place on the medium: (line, position in the line).
pub type Addr = (u8, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Reads as zeros.
    Unmapped,
    /// In the buffer.
    Slot(u8),
    /// On the medium.
    Media(Addr),
    /// Reads fail; the stamp orders it.
    Poison(u8),
}

/// What was durable below a slot when it was filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prev {
    /// Nothing.
    None,
    /// A copy.
    Media(Addr),
    /// A poisoned sector.
    Poison(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotPhase {
    /// Unused.
    Free,
    /// Filled by a writer or GC, not drainable.
    Filled,
    Ring,
    /// Its program was sent.
    InFlight(Addr),
    /// Its program completed; in the read-back window until its pair is.
    Done(Addr),
    /// Dropped; waits for the operations that may know it.
    Dead,
}

/// One slot: content, its order, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    pub phase: SlotPhase,
    pub lba: u8,
    pub stamp: u8,
    /// The host operation whose content it holds.
    pub value: u8,
    /// Was it ever in the map?
    pub published: bool,
    /// Last durable copy below it.
    pub prev: Prev,
    /// The slot it superseded, while that one isn't durable.
    pub under: u8,
    /// Flushes (bit per core) and the erase barrier (bit 2) that wait for it.
    pub cover: u8,
    /// Actors (bits as for `cover`) that were at work when it left the map.
    pub pins: u8,
}

impl Slot {
    pub const FREE: Slot = Slot {
        phase: SlotPhase::Free,
        lba: 0,
        stamp: 0,
        value: 0,
        published: false,
        prev: Prev::None,
        under: NONE,
        cover: 0,
        pins: 0,
    };
}

/// What is in a sector of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellKind {
    /// Nothing.
    Erased,
    /// A program is under way.
    InFlight,
    /// Content and OOB verify.
    Good,
    /// OOB readable, content bad: cut or failed while it was programmed.
    Torn,
    /// OOB readable, content bad: went bad later. Recovery cannot tell it from `Torn`.
    Decayed,
}

/// A sector of the medium with its out-of-band record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// State of the sector.
    pub kind: CellKind,
    /// Logical sector, or [`PAD`].
    pub lba: u8,
    pub stamp: u8,
    /// The host operation whose content it holds.
    pub value: u8,
}

impl Cell {
    pub const ERASED: Cell = Cell { kind: CellKind::Erased, lba: PAD, stamp: 0, value: 0 };

    /// Content that fails its CRC.
    pub fn is_bad(&self) -> bool {
        matches!(self.kind, CellKind::Torn | CellKind::Decayed)
    }
}

/// One line on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Media {
    pub cells: [Cell; CELLS],
    /// Closing metadata: (lba, stamp) per sector, [`PAD`] where there is no user data.
    pub closing: Option<[(u8, u8); CELLS]>,
}

impl Media {
    pub const ERASED: Media = Media { cells: [Cell::ERASED; CELLS], closing: None };
}

/// What the running FTL knows of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinePhase {
    /// Usable after an erase.
    Free,
    /// Its `opened` record, at this index of the log, is not yet durable.
    Opening(u8),
    /// Takes programs.
    Open,
    /// Has closing metadata.
    Closed,
}

/// Volatile state of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    pub phase: LinePhase,
    pub seq: u8,
    /// Next position to program.
    pub next: u8,
    /// Closed before it was full, because a program failed.
    pub early: bool,
    /// Which ring's slots it takes, where rings have lines of their own.
    pub pool: u8,
}

impl Line {
    /// A line that may be erased and opened.
    pub const FREE: Line = Line { phase: LinePhase::Free, seq: 0, next: 0, early: false, pool: 0 };
}

/// A log record. Those about lines are never cut: a real log carries them forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// The target runs.
    Started,
    /// (line, sequence)
    Opened(u8, u8),
    /// (line, sequence)
    Closed(u8, u8),
    /// (line, sequence)
    Freed(u8, u8),
    /// (mask of sectors, stamp)
    Discarded(u8, u8),
    /// (sector, stamp)
    Poisoned(u8, u8),
    /// A checkpoint's end.
    Complete,
    /// Clean stop.
    Stopped,
    /// A record that was cut away.
    Cut,
}

/// What a shard says of its sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardEntry {
    /// Nothing durable; copies up to this stamp are dead.
    Tombstone(u8),
    /// Durable copy.
    Media(Addr),
    /// Poisoned at this stamp.
    Poison(u8),
}

/// One shard: here, one logical sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Index of the first log record to replay.
    pub position: u8,
    /// Lowest line sequence to replay.
    pub open: u8,
    /// H, the discard floor.
    pub floor: u8,
    pub entry: ShardEntry,
}

impl Shard {
    /// A shard of an untouched sector, from before everything.
    pub const EMPTY: Shard =
        Shard { position: 0, open: 0, floor: 0, entry: ShardEntry::Tombstone(0) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checkpoint {
    /// A shard per logical sector.
    pub shards: [Shard; LBAS],
    /// Index of its `Complete` record.
    pub complete: u8,
}

/// A host operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// None.
    Nothing,
    /// Has loaded an entry and filled a slot; compare-exchange comes next. `own`: the slot this
    /// write published before, when it publishes anew.
    Publish {
        slot: u8,
        loaded: Entry,
        /// The slot published before, or [`NONE`].
        own: u8,
    },
    /// Published; re-reads the floor.
    Check { slot: u8 },
    /// Floor checked; goes into the ring.
    Insert { slot: u8 },
    /// Has loaded an entry; copies next. `seen`: operations whose content it may return.
    Copy {
        loaded: Entry,
        /// Bit per operation.
        seen: u16,
    },
    /// Clears entries one by one.
    Clear {
        stamp: u8,
        todo: u8,
        /// Own stamps of sectors whose predecessor bound was higher; 0: none.
        own: [u8; LBAS],
    },
    /// Waits for slots and records. `upto`: per sector, how much of its history must survive then.
    Wait {
        log: u8,
        /// Index into [`Host::applied`].
        upto: [u8; LBAS],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Core {
    /// Index of the current or next operation.
    pub next: u8,
    /// The operation under way.
    pub doing: Doing,
}

/// Garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gc {
    /// Nothing to do.
    Idle,
    /// Moves the live sectors of a line. `skipped`: sectors it could not read (without rule 14).
    Line {
        line: u8,
        /// Mask of sectors.
        skipped: u8,
    },
    /// Has read a sector into a slot; compare-exchange comes next.
    Copy {
        line: u8,
        /// Mask of sectors.
        skipped: u8,
        slot: u8,
        at: Addr,
    },
    /// Waits for the operations of the epoch.
    Epoch { line: u8, pins: u8 },
    /// Waits for the slots that carry the barrier's bit, and for the log.
    Barrier {
        line: u8,
        /// Log records to wait for.
        log: u8,
    },
    /// Waits for the `freed` record.
    Freed {
        line: u8,
        /// Log records to wait for.
        log: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    /// Nothing to do.
    Idle,
    /// Takes a shard: which, and which part of it comes next.
    Shard(u8, u8),
    /// All shards are taken; waits for the operations then at work.
    Epoch(u8),
    /// Waits for the `Complete` record at this index.
    Complete(u8),
}

/// Is the stack up?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Serves the host.
    Running,
    /// Mounts; the number counts recovery's own durable steps.
    Recovering(u8),
    /// A read of this sector returned what nothing explains; the check reports it.
    Misread(u8),
}

/// How often something may still happen: this bounds the exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Power cuts after which the stack goes on. One more is checked in every state.
    pub cuts: u8,
    pub fails: u8,
    /// Sectors that go bad.
    pub decays: u8,
    /// Lines that GC takes.
    pub gcs: u8,
    pub checkpoints: u8,
}

/// What the host may rely on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Per sector the operations in the order in which they took effect; the first is the oldest
    /// that may be seen after a cut. Operation 0 is the unwritten sector.
    pub applied: [Vec<u8>; LBAS],
    /// Operations whose content went bad: their reads may fail.
    pub decayed: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub map: [Entry; LBAS],
    pub slots: [Slot; SLOTS],
    /// Slot ids in order, per ring; GC uses the second.
    pub rings: [Vec<u8>; 2],
    pub cores: [Core; 2],
    /// Lines as the FTL knows them.
    pub lines: [Line; LINES],
    pub next_seq: u8,
    /// Largest discard stamp.
    pub floor: u8,
    pub clock: u8,
    /// Durable ceiling of stamps.
    pub ceiling: u8,
    /// Garbage collection.
    pub gc: Gc,
    pub writer: Writer,
    /// Shards of the checkpoint being written.
    pub work: [Shard; LBAS],
    pub phase: Phase,
    pub media: [Media; LINES],
    /// The log; the first `durable` records are.
    pub log: Vec<Record>,
    /// Durable records.
    pub durable: u8,
    /// Checkpoints, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// What may still happen.
    pub left: Budget,
    pub host: Host,
}

impl State {
    pub fn cell(&self, (line, position): Addr) -> &Cell {
        &self.media[line as usize].cells[position as usize]
    }

    /// The cell at an address, to change it.
    pub fn cell_mut(&mut self, (line, position): Addr) -> &mut Cell {
        &mut self.media[line as usize].cells[position as usize]
    }

    /// The lowest unused slot.
    pub fn free_slot(&self, slots: u8) -> Option<u8> {
        (0..slots).find(|id| self.slots[*id as usize].phase == SlotPhase::Free)
    }

    /// Largest stamp of user data in a line, in flight or not.
    pub fn stamp_max(&self, line: u8) -> u8 {
        let cells = self.media[line as usize].cells.iter().filter(|cell| cell.lba != PAD);
        cells.map(|cell| cell.stamp).max().unwrap_or(0)
    }

    /// A bound of the stamp behind an entry, as a writer or discarder knows it.
    pub fn bound(&self, entry: Entry) -> u8 {
        match entry {
            Entry::Unmapped => 0,
            Entry::Slot(id) => self.slots[id as usize].stamp,
            Entry::Media((line, _)) => self.stamp_max(line),
            Entry::Poison(stamp) => stamp,
        }
    }

    /// Stamp of a `prev`.
    pub fn prev_stamp(&self, prev: Prev) -> u8 {
        match prev {
            Prev::None => 0,
            Prev::Media(at) => self.cell(at).stamp,
            Prev::Poison(stamp) => stamp,
        }
    }

    /// Actors at work: a bit per core, bit 2 for a GC copy.
    pub fn active(&self) -> u8 {
        let core = |index: usize| u8::from(self.cores[index].doing != Doing::Nothing) << index;
        let gc = u8::from(matches!(self.gc, Gc::Copy { .. })) << 2;
        core(0) | core(1) | gc
    }

    /// Appends to the log and returns how many records there are then.
    pub fn append(&mut self, record: Record) -> u8 {
        self.log.push(record);
        self.log.len() as u8
    }
}
