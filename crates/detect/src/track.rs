//! A place where writes go on.
//!
//! Owns: what is remembered of one, and what it looks like: a log's or a bulk's. Promises: fixed
//! size, nothing overflows. Never: decides what follows from that.

use crate::Config;
use flashlane_base::mutant;

/// How much is known of a track, from little to much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Nothing is remembered here.
    Free,
    /// Too little was written in order to say anything.
    Fresh,
    /// Long enough to be a log, and nobody was round it.
    Run,
    /// Somebody goes round it.
    Loop,
}

/// What was written since the start of the round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pass {
    /// First block of it.
    pub(crate) start: u64,
    /// Blocks by which the head went on.
    pub(crate) blocks: u64,
    pub(crate) requests: u64,
    /// Blocks in all requests: more than the head went on, where a last block is written again.
    pub(crate) written: u64,
    /// Requests that left a gap.
    pub(crate) holes: u64,
    /// Blocks in long requests.
    pub(crate) long: u64,
    /// Times that a very short request came after long ones: transactions.
    pub(crate) transactions: u64,
    /// There was a long request since.
    pub(crate) is_open: bool,
    /// When it began.
    pub(crate) began: u64,
}

impl Pass {
    /// One request of so many blocks at the first block.
    pub(crate) fn begin(first: u64, blocks: u64, now: u64, config: &Config) -> Pass {
        let mut pass = Pass { start: first, blocks, began: now, ..Pass::default() };
        pass.add(blocks, config);
        pass
    }

    /// Adds a request.
    pub(crate) fn add(&mut self, blocks: u64, config: &Config) {
        self.requests += 1;
        self.written += blocks;
        if blocks >= config.long {
            self.long += blocks;
            self.is_open = true;
        } else if blocks <= config.record {
            self.transactions += u64::from(self.is_open);
            self.is_open = false;
        }
    }

    /// Long requests make up most of it.
    pub(crate) fn is_long(&self) -> bool {
        self.long > self.written / 2
    }

    /// Long requests make up most of it, and no records of transactions lie between them: a bulk of data.
    pub(crate) fn is_bulk(&self, config: &Config) -> bool {
        self.is_long() && self.transactions < config.transactions && !mutant!("detect.bulk-is-log")
    }

    /// In order and without gaps, and no bulk.
    pub(crate) fn is_log(&self, config: &Config) -> bool {
        !self.is_bulk(config) && !self.is_sparse(config)
    }

    /// What begins like this at a place that is a log's goes on with it: a few transactions are enough.
    pub(crate) fn may_go_on(&self, config: &Config) -> bool {
        (!self.is_long() || self.transactions >= config.transactions / 4) && !self.is_sparse(config)
    }

    /// The same elsewhere in it.
    pub(crate) fn goes_on(&self, config: &Config) -> bool {
        self.blocks >= config.resync && self.requests > 1 && self.may_go_on(config)
    }

    /// It left gaps: pages of a table in order.
    pub(crate) fn is_sparse(&self, config: &Config) -> bool {
        self.holes.saturating_mul(config.hole_one_in) > self.requests
            && !mutant!("detect.gaps-are-log")
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Track {
    pub(crate) kind: Kind,
    /// First block.
    pub(crate) first: u64,
    /// Behind the last block that is known to belong to it.
    pub(crate) end: u64,
    /// Behind the last block of this round, and of the round before: the end of a log may move.
    pub(crate) reach: u64,
    pub(crate) reach_before: u64,
    pub(crate) pass: Pass,
    /// Rounds that looked like a log's.
    pub(crate) laps: u32,
    /// Rounds that looked like a bulk's.
    pub(crate) bulk_laps: u32,
    /// The rounds before this one make it a log.
    pub(crate) is_proven: bool,
    /// Blocks of other writes in it since the last round.
    pub(crate) stray: u64,
    /// Blocks written at its head since it is a loop.
    pub(crate) blocks: u64,
    /// When it was last written.
    pub(crate) touched: u64,
}

impl Track {
    pub(crate) const FREE: Track = Track {
        kind: Kind::Free,
        first: 0,
        end: 0,
        reach: 0,
        reach_before: 0,
        pass: Pass {
            start: 0,
            blocks: 0,
            requests: 0,
            written: 0,
            holes: 0,
            long: 0,
            transactions: 0,
            is_open: false,
            began: 0,
        },
        laps: 0,
        bulk_laps: 0,
        is_proven: false,
        stray: 0,
        blocks: 0,
        touched: 0,
    };

    /// Begins with one request.
    pub(crate) fn begin(first: u64, blocks: u64, now: u64, config: &Config) -> Track {
        let end = first + blocks;
        let pass = Pass::begin(first, blocks, now, config);
        let kind = Kind::Fresh;
        Track { kind, first, end, reach: end, reach_before: end, pass, touched: now, ..Track::FREE }
    }

    /// Long enough to be a log.
    pub(crate) fn is_known(&self) -> bool {
        matches!(self.kind, Kind::Run | Kind::Loop)
    }

    /// Whether this block, or header before it, is its own.
    pub(crate) fn holds(&self, block: u64, config: &Config) -> bool {
        block < self.end && block + config.header >= self.first
    }

    /// Whether this block lies where a round begins.
    pub(crate) fn is_start(&self, block: u64, config: &Config) -> bool {
        block <= self.first + config.gap && block + config.header >= self.first
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.first
    }

    /// The last round, as evidence for a loop: was it a log's, or a bulk's?
    pub(crate) fn judge(&mut self, config: &Config) {
        if self.pass.blocks < config.region_min || self.pass.is_sparse(config) {
            return;
        }
        match self.pass.is_bulk(config) {
            true => self.bulk_laps = self.bulk_laps.saturating_add(1),
            false => self.laps = self.laps.saturating_add(1),
        }
    }

    /// Whether the rounds so far make it a log, of which the next one begins after so many blocks elsewhere.
    pub(crate) fn prove(&mut self, pause: u64, config: &Config) {
        let soon = pause <= self.len().saturating_mul(config.small_pause);
        let is_large = self.len() >= config.small || mutant!("detect.small-is-large");
        self.is_proven = self.laps > 0 && (is_large || (self.laps > 1 && soon));
    }

    /// Another round begins, with what is known of it.
    pub(crate) fn next_pass(&mut self, pass: Pass, head: u64) {
        self.end = self.reach_before.max(self.reach).max(head);
        self.reach_before = self.reach;
        self.reach = head;
        self.first = self.first.min(pass.start);
        self.pass = pass;
        self.stray = 0;
    }
}
