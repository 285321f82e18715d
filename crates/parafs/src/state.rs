//! Everything that a mounted file system has in memory.
//!
//! Owns: [`State`], and how an operation gets what is not there yet ([`Step`]). Promises: an
//! operation looks at all that it needs before it changes anything, so one that lacks something is
//! begun anew when that has come, and what it does is one step for everybody else; what is dirty, or
//! on its way to the medium, stays. Never: waits.
//!
//! The pieces: [`crate::segments`] says where there is room, [`crate::nat`] where nodes lie,
//! [`crate::nodes`] which node names which page, [`crate::pages`] has contents, [`crate::dir`] has
//! names. Operations on them are in [`crate::ops`].

use crate::error::FsError;
use crate::format::{Inode, Layout, NAT_JOURNAL, Nid, SIT_JOURNAL, Share, Slots, Superblock, Tree};
use crate::nat::Nat;
use crate::nodes::Node;
use crate::pages::Pages;
use crate::segments::{Heat, Segments};
use crate::stats::Stats;
use crate::write::FilePage;
use flashlane_base::{Ns, mutant};
use std::collections::{BTreeMap, BTreeSet};

/// What an operation lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A sector of the node address table.
    Nat(u32),
    Node(Nid),
    /// Pages of a file.
    Pages(Nid, Vec<u64>),
    /// Whose the pages of a segment are.
    Summary(u32),
    /// Segments for a head; others of its heat may lack `each` pages, too ([`Segments::level`]).
    Segments {
        region: u32,
        heat: Heat,
        each: u64,
    },
    /// A file that is being cut short.
    Cut(Nid),
    /// Numbers for nodes: a checkpoint gives back those of nodes that are gone.
    Numbers,
    /// More free segments than those that are kept for others: somebody has to clean.
    Room {
        kept: u32,
    },
    /// That nobody gives segments to a head, and that pages of directories have arrived.
    Quiet,
}

/// Why an operation ends here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It goes on when this is there.
    Need(Need),
    Fail(FsError),
}

impl From<FsError> for Stop {
    fn from(e: FsError) -> Stop {
        Stop::Fail(e)
    }
}

/// What an operation has come to.
pub(crate) type Step<T> = Result<T, Stop>;

pub(crate) struct State {
    pub(crate) layout: Layout,
    /// See [`Superblock::node_seed`].
    pub(crate) node_seed: u32,
    pub(crate) tree: Tree,
    pub(crate) slots: Slots,
    pub(crate) segments: Segments,
    pub(crate) nat: Nat,
    /// Nodes in memory.
    pub(crate) nodes: BTreeMap<Nid, Node>,
    /// Those of them that are not on the medium as they are: (file, number in its tree), node.
    pub(crate) dirty_nodes: BTreeMap<(Nid, u32), Nid>,
    pub(crate) pages: Pages,
    /// How often each file is open.
    pub(crate) opens: BTreeMap<Nid, u32>,
    /// Files without a name, and files that are being cut short: a mount goes on with them.
    pub(crate) orphans: BTreeSet<Nid>,
    /// Of those, the ones that are being cut short.
    pub(crate) cuts: BTreeSet<Nid>,
    /// Files of which a cut failed: they may have pages behind their ends, and are not changed.
    pub(crate) half_cut: BTreeSet<Nid>,
    /// Files that an fsync can't restore by itself: the next one takes a checkpoint.
    pub(crate) bound: BTreeSet<Nid>,
    /// Pages of files that go with the next checkpoint: first ones that have what was in the inode,
    /// and last ones behind whose new end there are zeros now.
    pub(crate) along: BTreeSet<(Nid, u64)>,
    /// Files that no checkpoint has seen.
    pub(crate) young: BTreeSet<Nid>,
    /// Files with pages that may not be durable yet, and when the last one was written.
    pub(crate) unflushed: BTreeMap<Nid, u64>,
    /// Where pages and fsynced nodes of files lie whose page pairs may be open: in which segments, and
    /// behind which page of each. Nothing where pages have no pairs.
    pub(crate) in_pairs: BTreeMap<Nid, BTreeMap<u32, u32>>,
    /// Files whose nodes are on their way to the medium for an fsync.
    pub(crate) syncing: BTreeSet<Nid>,
    /// The last checkpoint.
    pub(crate) version: u64,
    /// Which copy of each sector of the node address table is valid, and of the segment table.
    pub(crate) nat_copies: Vec<u8>,
    pub(crate) sit_copies: Vec<u8>,
    /// The next one is being written: what belongs to it is decided.
    pub(crate) checkpointing: bool,
    /// Somebody writes a checkpoint, or is about to.
    pub(crate) has_checkpointer: bool,
    /// Heads are being given segments.
    pub(crate) assigning: bool,
    /// The page that a checkpoint found under way last ([`State::is_quiet`]).
    pub(crate) waited_for: Option<FilePage>,
    /// Somebody cleans because room is short.
    pub(crate) cleaning: bool,
    /// Somebody cleans, or writes, in idle time.
    pub(crate) tidying: bool,
    /// It is being unmounted: nobody begins anything unasked.
    pub(crate) ending: bool,
    /// How often somebody has asked for something.
    pub(crate) asks: u64,
    /// Pages that writes and fsyncs were given, not those of cleaners and checkpoints.
    pub(crate) taken: u64,
    /// When it was mounted, and how old it was then, in seconds.
    pub(crate) mounted_at: Ns,
    pub(crate) age_before: u64,
    /// Nodes that idle cleaning moves: they are written as cold ones unless somebody changes them.
    pub(crate) cold_nodes: BTreeSet<Nid>,
    pub(crate) stats: Stats,
    /// Trims under way.
    pub(crate) trims: u32,
    /// fsyncs since then, and the nodes that they have written: a mount has to find them.
    pub(crate) batches: u32,
    pub(crate) batch_nodes: u64,
    /// Those nodes, each once: a mount that finds them makes all of them dirty.
    pub(crate) synced: BTreeSet<Nid>,
    /// Writes of nodes under way.
    pub(crate) nodes_in_flight: u32,
    /// Pages of files on their way: the node that names each is about to become dirty.
    pub(crate) pages_in_flight: u64,
    /// Pages that cleaners have taken out of segments and are about to write.
    pub(crate) pages_moving: usize,
    /// Writes of nodes that have failed.
    pub(crate) nodes_failed: u64,
    /// A mount is taking what it has found: it needs no room that was not there before.
    pub(crate) recovering: bool,
    /// A repair found none: who looks for nodes takes those that this one has written.
    pub(crate) no_checkpoint: bool,
    /// Units of pages that dirty nodes take when they are written next, and those that they take on
    /// the medium until then ([`Node::units`], [`Node::gives_back`]).
    pub(crate) dirty_units: u64,
    pub(crate) units_back: u64,
    /// Nodes that have changed since they were measured, where nodes share pages.
    pub(crate) unmeasured: Vec<Nid>,
    /// Pages of files for which room is kept: they were never written.
    pub(crate) kept: u64,
    pub(crate) files: u32,
    pub(crate) generation: u32,
    /// Changed nodes and segments that a checkpoint keeps beside the tables.
    pub(crate) journals: (usize, usize),
    /// Pages that files and nodes may have while no segment is lost.
    capacity: u64,
    /// Sectors of the window that are full, and what the next one names.
    pub(crate) window_used: u64,
    pub(crate) window: Vec<(u32, u8)>,
    /// It was unmounted.
    pub(crate) unmounted: bool,
    /// Why nothing may be written any more.
    pub(crate) read_only: Option<String>,
    /// Counts uses and changes.
    pub(crate) clock: u64,
    /// How often something was changed: an operation that lacks something has changed nothing.
    pub(crate) changes: u64,
}

impl State {
    pub(crate) fn new(sb: &Superblock, segments: Segments, nat: Nat) -> State {
        let layout = sb.layout;
        let shape = layout.shape;
        let data = u64::from(shape.segments() - sb.reserved_segments);
        State {
            node_seed: sb.node_seed(),
            tree: sb.tree(),
            slots: sb.slots(),
            segments,
            nat,
            nodes: BTreeMap::new(),
            dirty_nodes: BTreeMap::new(),
            pages: Pages::new(),
            opens: BTreeMap::new(),
            orphans: BTreeSet::new(),
            cuts: BTreeSet::new(),
            half_cut: BTreeSet::new(),
            bound: BTreeSet::new(),
            along: BTreeSet::new(),
            young: BTreeSet::new(),
            unflushed: BTreeMap::new(),
            in_pairs: BTreeMap::new(),
            syncing: BTreeSet::new(),
            version: 0,
            nat_copies: vec![0; (layout.nat_sectors as usize).div_ceil(8)],
            sit_copies: vec![0; (layout.sit_sectors as usize).div_ceil(8)],
            checkpointing: false,
            has_checkpointer: false,
            assigning: false,
            waited_for: None,
            cleaning: false,
            tidying: false,
            ending: false,
            asks: 0,
            taken: 0,
            mounted_at: Ns::ZERO,
            age_before: 0,
            cold_nodes: BTreeSet::new(),
            stats: Stats::default(),
            trims: 0,
            batches: 0,
            batch_nodes: 0,
            synced: BTreeSet::new(),
            nodes_in_flight: 0,
            pages_in_flight: 0,
            pages_moving: 0,
            nodes_failed: 0,
            recovering: false,
            no_checkpoint: false,
            dirty_units: 0,
            units_back: 0,
            unmeasured: Vec::new(),
            kept: 0,
            files: 0,
            generation: 1,
            journals: (NAT_JOURNAL as usize, SIT_JOURNAL as usize),
            capacity: data * u64::from(shape.segment_pages),
            window_used: 0,
            window: Vec::new(),
            unmounted: false,
            read_only: None,
            clock: 0,
            changes: 0,
            layout,
        }
    }

    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Pages that are spoken for: valid, or with a place to come.
    pub(crate) fn used(&self) -> u64 {
        let units = (self.segments.units() + self.dirty_units).saturating_sub(self.units_back);
        units.div_ceil(u64::from(Share::PAGE)) + self.kept
    }

    /// Pages that files and their nodes can have: what the medium has lost is nobody's.
    pub(crate) fn capacity(&self) -> u64 {
        let lost = match mutant!("parafs.dead-counts") {
            true => 0,
            false => u64::from(self.segments.dead()) * u64::from(self.layout.shape.segment_pages),
        };
        self.capacity.saturating_sub(lost)
    }

    /// Segments that files and their nodes can't have, whatever the medium loses; those that they
    /// have not, as long as every region has heads of its own.
    pub(crate) fn reserve(&self) -> u32 {
        let shape = &self.layout.shape;
        let least = shape.segments() - (self.capacity / u64::from(shape.segment_pages)) as u32;
        match self.segments.full_reserve {
            Some(full) if !self.segments.shares_heads() => least.max(full),
            _ => least,
        }
    }

    /// Why there is no room for what was promised.
    pub(crate) fn no_room(&self) -> FsError {
        match self.segments.unread() {
            0 => FsError::NoSpace,
            count => FsError::Io(format!(
                "no room is left, and {count} segments can't be cleaned: something in them can't be read"
            )),
        }
    }

    /// Whether there is room for so many pages more, of files or their nodes.
    pub(crate) fn room_for(&self, pages: u64) -> Step<()> {
        match self.used() + pages <= self.capacity() || self.recovering {
            true => Ok(()),
            false => Err(Stop::Fail(FsError::NoSpace)),
        }
    }

    /// Something is about to be changed.
    pub(crate) fn writable(&self) -> Step<()> {
        match &self.read_only {
            None => Ok(()),
            Some(why) => Err(Stop::Fail(FsError::ReadOnly(why.clone()))),
        }
    }

    /// The inode of a file.
    pub(crate) fn inode(&mut self, ino: Nid) -> Step<&Inode> {
        let node = self.node(ino)?;
        node.inode.as_deref().ok_or(Stop::Fail(FsError::Stale))
    }

    /// The same, to be changed.
    pub(crate) fn inode_mut(&mut self, ino: Nid) -> Step<&mut Inode> {
        self.inode(ino)?;
        let node = self.node_mut(ino)?;
        node.inode.as_deref_mut().ok_or(Stop::Fail(FsError::Stale))
    }

    /// Nobody cuts it short at the moment.
    pub(crate) fn uncut(&self, ino: Nid) -> Step<()> {
        match (self.cuts.contains(&ino), self.half_cut.contains(&ino)) {
            (true, _) => Err(Stop::Need(Need::Cut(ino))),
            (_, true) => {
                let why = "a node of it can't be read: it could not be cut short, and can only be deleted";
                Err(Stop::Fail(FsError::Io(why.into())))
            }
            _ => Ok(()),
        }
    }
}

impl State {
    /// Where it stands, in a line, for who looks at a hang.
    pub(crate) fn standing(&self) -> String {
        format!(
            "version {}, checkpointing {}, checkpointer {}, assigning {}, cleaning {}, trims {}, \
             syncing {:?}, unflushed {:?}, cuts {:?}, {} nodes in flight, {} dirty pages, {} free \
             segments",
            self.version,
            self.checkpointing,
            self.has_checkpointer,
            self.assigning,
            self.cleaning,
            self.trims,
            self.syncing,
            self.unflushed,
            self.cuts,
            self.nodes_in_flight,
            self.pages.dirty_count(),
            self.segments.free(),
        )
    }
}

impl crate::Fs {
    /// See [`State::standing`].
    pub fn standing(&self) -> String {
        self.lock().standing()
    }

    /// Looks through the tables in memory.
    ///
    /// # Errors
    /// They do not agree, and where.
    pub fn walk(&self) -> Result<(), String> {
        self.lock().segments.walk()
    }
}
