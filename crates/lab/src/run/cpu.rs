//! What the host's cores did between two moments.
//!
//! Owns: the difference of two looks at the cores. Promises: no core is busy for longer than the
//! span. Never: counts what is charged but not done yet.

use flashlane_base::Ns;
use flashlane_rt::{CoreTime, Cx};
use rustix::time::{ClockId, clock_gettime};

/// What each core of the host did in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSpan {
    pub time: Ns,
    pub cores: Vec<CoreTime>,
}

impl CpuSpan {
    /// From the beginning of the run to now. On the real clock the system says what this thread, the one core, has
    /// used.
    pub(crate) fn until_now(cx: &Cx) -> CpuSpan {
        let cores = match cx.is_virtual() {
            true => cx.core_times(),
            false => {
                let used = clock_gettime(ClockId::ThreadCPUTime);
                let ns = used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64;
                vec![CoreTime { busy: Ns::from_ns(ns), spun: Ns::ZERO }]
            }
        };
        CpuSpan { time: cx.now(), cores }
    }

    /// From the end of an earlier span to the end of this one, where both begin with the run.
    pub(crate) fn since(&self, earlier: &CpuSpan) -> CpuSpan {
        let pairs = self.cores.iter().zip(&earlier.cores);
        let each = |(to, from): (&CoreTime, &CoreTime)| CoreTime {
            busy: to.busy - from.busy,
            spun: to.spun - from.spun,
        };
        CpuSpan { time: self.time - earlier.time, cores: pairs.map(each).collect() }
    }
}
