//! What one job of a run did.
//!
//! Owns: latencies, bytes and times by operation. Promises: memory in proportion to the operations
//! that a job uses, not to how many it does. Never: knows a job's name; the plan does.

use crate::histogram::Latencies;
use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;

#[derive(Clone, Debug, Default)]
pub struct OpRecord {
    /// Latencies, from the request's issue to its end.
    pub latency: Latencies,
    /// Bytes; 0 for flushes.
    pub bytes: u64,
}

/// One job, over its copies; or everything that is no job's (replayed traces).
#[derive(Clone, Debug, Default)]
pub struct JobRecord {
    /// Read, write, discard, flush; `None` until the first.
    ops: [Option<Box<OpRecord>>; 4],
    /// When the first measured operation was issued; `None` before it.
    pub start: Option<Ns>,
    pub end: Ns,
}

/// All operations, in the order of reports.
pub const OPS: [BlockOp; 4] = [BlockOp::Read, BlockOp::Write, BlockOp::Discard, BlockOp::Flush];

fn index(op: BlockOp) -> usize {
    match op {
        BlockOp::Read => 0,
        BlockOp::Write => 1,
        BlockOp::Discard => 2,
        BlockOp::Flush => 3,
    }
}

impl JobRecord {
    /// What it did of one kind.
    pub fn op(&self, op: BlockOp) -> Option<&OpRecord> {
        self.ops[index(op)].as_deref()
    }

    #[inline]
    pub(super) fn record(&mut self, op: BlockOp, bytes: u64, start: Ns, now: Ns) {
        let record = self.ops[index(op)].get_or_insert_default();
        record.latency.record((now - start).as_ns());
        record.bytes += bytes;
        if self.start.is_none_or(|first| start < first) {
            self.start = Some(start);
        }
        self.end = self.end.max(now);
    }
}
