//! The requests of one copy of a job, one after the other.
//!
//! Owns: the region on the device, the position in it, what is left to do. Promises: a function of
//! (seed, job name, copy): two streams that differ in one of them are independent.
//! Never: looks at a clock; pauses, paces and `runtime` are the runner's.

use super::place::{Pareto, Permutation, Zipf};
use super::{Distribution, Job, JobError, Mix, Sizes};
use flashlane_base::{Bytes, Lba, Rng, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Read, write or discard.
    pub op: BlockOp,
    pub lba: Lba,
    /// Sectors, at least 1.
    pub sectors: u32,
    /// Durable when acknowledged.
    pub fua: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    Io(Request),
    /// A flush, once everything before it is acknowledged.
    Flush,
    /// Nothing; the job is done.
    End,
}

enum Order {
    Ascending,
    /// Every block once per pass.
    Shuffled(Permutation),
    Uniform,
    Zipf(Zipf, Permutation),
    Pareto(Pareto, Permutation),
}

/// The stream of one copy of a job.
pub struct Stream {
    mix: Mix,
    read_percent: u64,
    sizes: [Sizes; 3],
    start: u64,
    region: u64,
    /// Places are multiples of this many sectors within the region.
    align: u64,
    order: Order,
    percentage_random: u64,
    rng: Rng,
    /// Next ascending place, sectors within the region.
    cursor: u64,
    /// Next index of a shuffled pass.
    index: u64,
    /// Sectors still to move; `None` until the clock says so.
    left: Option<u64>,
    requests_left: u64,
    fua: bool,
    flush_every: u32,
    writes_since_flush: u32,
    flush_at_end: bool,
}

impl Stream {
    /// The stream of copy `copy` of a job on a device of `capacity` sectors.
    pub fn new(job: &Job, copy: u32, seed: u64, capacity: u64) -> Result<Stream, JobError> {
        if job.time_based && job.runtime.is_none() {
            return Err(JobError::Endless { job: job.name.clone() });
        }
        let (start, region) = region_of(job, copy, capacity)?;
        let used = used_sizes(job);
        let align = used.iter().map(|s| s.min()).min().unwrap_or(1) as u64;
        let fixed = used.iter().all(|s| s.min() == s.max() && s.min() as u64 == align);
        let mut rng = Rng::stream(job.randseed.unwrap_or(seed), &job.name, copy as u64);
        let blocks = region / align;
        let order = match job.random_distribution {
            _ if !job.random => Order::Ascending,
            Distribution::Zipf(s) => {
                Order::Zipf(Zipf::new(blocks, s), Permutation::new(blocks, &mut rng))
            }
            Distribution::Pareto(h) => {
                Order::Pareto(Pareto::new(blocks, h), Permutation::new(blocks, &mut rng))
            }
            // A map of visited places needs equal blocks; with mixed sizes places may repeat.
            Distribution::Uniform if job.norandommap || !fixed => Order::Uniform,
            Distribution::Uniform => Order::Shuffled(Permutation::new(blocks, &mut rng)),
        };
        let whole = job.io_size.map_or(region, |a| a.sectors(region));
        Ok(Stream {
            mix: job.rw,
            read_percent: job.rwmixread as u64,
            sizes: job.bs.clone(),
            start,
            region,
            align,
            order,
            percentage_random: job.percentage_random as u64,
            rng,
            cursor: 0,
            index: 0,
            left: (!job.time_based).then(|| whole.saturating_mul(job.loops as u64)),
            requests_left: job.number_ios.unwrap_or(u64::MAX),
            fua: job.sync,
            flush_every: job.fsync,
            writes_since_flush: 0,
            flush_at_end: job.end_fsync,
        })
    }

    /// Sectors that the stream will move, where that is known.
    pub fn sectors_total(&self) -> Option<u64> {
        self.left
    }

    /// Region on the device: first sector and length.
    pub fn region(&self) -> (u64, u64) {
        (self.start, self.region)
    }

    /// The next thing to do.
    pub fn plan(&mut self) -> Planned {
        if self.flush_every > 0 && self.writes_since_flush >= self.flush_every {
            self.writes_since_flush = 0;
            return Planned::Flush;
        }
        let op = match self.mix {
            Mix::Read => BlockOp::Read,
            Mix::Write => BlockOp::Write,
            Mix::Discard => BlockOp::Discard,
            Mix::Mixed if self.rng.below(100) < self.read_percent => BlockOp::Read,
            Mix::Mixed => BlockOp::Write,
        };
        let sectors = self.draw_size(op);
        let enough = self.left.is_none_or(|left| left >= sectors as u64);
        if !enough || self.requests_left == 0 {
            self.left = Some(0);
            let flush = std::mem::take(&mut self.flush_at_end);
            return if flush { Planned::Flush } else { Planned::End };
        }
        if let Some(left) = &mut self.left {
            *left -= sectors as u64;
        }
        self.requests_left -= 1;
        self.writes_since_flush += (op == BlockOp::Write) as u32;
        let place = self.draw_place(sectors as u64);
        Planned::Io(Request {
            op,
            lba: Lba::new(self.start + place),
            sectors,
            fua: self.fua && op == BlockOp::Write,
        })
    }

    fn draw_size(&mut self, op: BlockOp) -> u32 {
        let sizes = match op {
            BlockOp::Read => &self.sizes[0],
            BlockOp::Discard => &self.sizes[2],
            _ => &self.sizes[1],
        };
        if let [(sectors, _)] = sizes.0[..] {
            return sectors;
        }
        let total: u64 = sizes.0.iter().map(|(_, w)| *w as u64).sum();
        let mut at = self.rng.below(total.max(1));
        for (sectors, weight) in &sizes.0 {
            if at < *weight as u64 {
                return *sectors;
            }
            at -= *weight as u64;
        }
        sizes.max()
    }

    /// A place of `sectors` within the region.
    fn draw_place(&mut self, sectors: u64) -> u64 {
        let random = !matches!(self.order, Order::Ascending)
            && (self.percentage_random >= 100 || self.rng.below(100) < self.percentage_random);
        let blocks = self.region / self.align;
        let block = match &mut self.order {
            _ if !random => return self.ascend(sectors),
            Order::Ascending => return self.ascend(sectors),
            Order::Uniform => self.rng.below(blocks),
            Order::Zipf(zipf, scatter) => scatter.at(zipf.draw(&mut self.rng)),
            Order::Pareto(pareto, scatter) => scatter.at(pareto.draw(&mut self.rng)),
            Order::Shuffled(pass) => {
                if self.index == blocks {
                    self.index = 0;
                    *pass = Permutation::new(blocks, &mut self.rng);
                }
                self.index += 1;
                pass.at(self.index - 1)
            }
        };
        // A large request of a mixed job must not hang over the end.
        let place = (block * self.align).min(self.region - sectors);
        self.cursor = place + sectors;
        place
    }

    fn ascend(&mut self, sectors: u64) -> u64 {
        if self.cursor + sectors > self.region {
            self.cursor = 0;
        }
        self.cursor += sectors;
        self.cursor - sectors
    }
}

fn used_sizes(job: &Job) -> Vec<&Sizes> {
    let [read, write, discard] = &job.bs;
    match job.rw {
        Mix::Read => vec![read],
        Mix::Write => vec![write],
        Mix::Discard => vec![discard],
        Mix::Mixed => vec![read, write],
    }
}

fn region_of(job: &Job, copy: u32, capacity: u64) -> Result<(u64, u64), JobError> {
    let sector = SECTOR_BYTES as u64;
    let step = job.offset_increment.sectors(capacity).saturating_mul(copy as u64);
    let start = job.offset.sectors(capacity).saturating_add(step);
    let rest = capacity.saturating_sub(start);
    let region = job.size.map_or(rest, |a| a.sectors(capacity));
    if start.checked_add(region).is_none_or(|end| end > capacity) {
        return Err(JobError::Outside {
            job: job.name.clone(),
            offset: Bytes::new(start.saturating_mul(sector)),
            size: Bytes::new(region.saturating_mul(sector)),
            capacity: Bytes::new(capacity * sector),
        });
    }
    let largest = used_sizes(job).iter().map(|s| s.max()).max().unwrap_or(1) as u64;
    if region < largest {
        return Err(JobError::TooSmall {
            job: job.name.clone(),
            size: Bytes::new(region * sector),
            request: Bytes::new(largest * sector),
        });
    }
    Ok((start, region))
}

#[cfg(test)]
mod tests {
    use super::super::Amount;
    use super::*;
    use flashlane_base::Ns;
    use proptest::prelude::*;

    fn requests(job: &Job, capacity: u64, n: usize) -> Vec<Planned> {
        let mut stream = Stream::new(job, 0, 7, capacity).unwrap();
        let mut out = Vec::new();
        while out.len() < n {
            out.push(stream.plan());
            if out.last() == Some(&Planned::End) {
                break;
            }
        }
        out
    }

    fn places(planned: &[Planned]) -> Vec<u64> {
        planned
            .iter()
            .filter_map(|p| match p {
                Planned::Io(r) => Some(r.lba.get()),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn a_sequential_job_goes_through_its_region_once() {
        let mut job = Job::new("a");
        job.offset = Amount::Percent(50);
        job.size = Some(Amount::Bytes(5 * 4096));
        job.bs[0] = Sizes::fixed(2);
        assert_eq!(places(&requests(&job, 100, 99)), [50, 52]);
        job.loops = 2;
        assert_eq!(places(&requests(&job, 100, 99)), [50, 52, 50, 52, 50]);
    }

    #[test]
    fn a_random_job_visits_every_block_before_any_twice() {
        let mut job = Job::new("a");
        (job.rw, job.random) = (Mix::Write, true);
        job.loops = 2;
        let all = places(&requests(&job, 64, 999));
        assert_eq!(all.len(), 128);
        for pass in all.chunks(64) {
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..64));
        }
        assert_ne!(all[..64], all[64..]);
    }

    #[test]
    fn a_flush_follows_every_nth_write_and_the_end() {
        let mut job = Job::new("a");
        (job.rw, job.fsync, job.end_fsync) = (Mix::Write, 2, true);
        job.size = Some(Amount::Bytes(3 * 4096));
        let kinds: Vec<bool> =
            requests(&job, 64, 99).iter().map(|p| *p == Planned::Flush).collect();
        assert_eq!(kinds, [false, false, true, false, true, false]);
    }

    #[test]
    fn seeds_names_and_copies_give_different_streams() {
        let mut job = Job::new("a");
        job.random = true;
        let of = |job: &Job, copy, seed| {
            let mut s = Stream::new(job, copy, seed, 1 << 20).unwrap();
            (0..8).map(|_| s.plan()).collect::<Vec<_>>()
        };
        let mut other = job.clone();
        other.name = "b".into();
        let first = of(&job, 0, 1);
        assert_eq!(first, of(&job, 0, 1));
        for different in [of(&job, 1, 1), of(&job, 0, 2), of(&other, 0, 1)] {
            assert_ne!(first, different);
        }
    }

    #[test]
    fn what_does_not_fit_is_said_with_its_numbers() {
        let mut job = Job::new("big");
        job.size = Some(Amount::Bytes(1 << 30));
        let said = Stream::new(&job, 0, 1, 1000).map(|_| ()).unwrap_err().to_string();
        assert!(
            said.contains("big") && said.contains("1 GiB") && said.contains("size=100%"),
            "{said}"
        );
        job.size = Some(Amount::Bytes(4096));
        job.bs[0] = Sizes::fixed(16);
        assert!(matches!(Stream::new(&job, 0, 1, 1000), Err(JobError::TooSmall { .. })));
        job.time_based = true;
        assert!(matches!(Stream::new(&job, 0, 1, 1000), Err(JobError::Endless { .. })));
        job.runtime = Some(Ns::from_secs(1));
    }

    proptest! {
        /// No request leaves the region, whatever the mix of sizes and distributions.
        #[test]
        fn requests_stay_inside(
            capacity in 64u64..5000, offset in 0u64..32, percent in 0u8..=100,
            sizes in prop::collection::vec((1u32..16, 1u32..9), 1..4),
            kind in 0u8..4, seed in any::<u64>(), random in any::<bool>(), share in 0u8..=100,
        ) {
            let mut job = Job::new("p");
            (job.rw, job.rwmixread) = (Mix::Mixed, percent);
            job.random = random;
            job.percentage_random = share;
            job.bs = [Sizes(sizes.clone()), Sizes(sizes), Sizes::fixed(1)];
            job.offset = Amount::Bytes(offset * 4096);
            job.norandommap = kind == 1;
            job.random_distribution = match kind {
                2 => Distribution::Zipf(1.1),
                3 => Distribution::Pareto(0.3),
                _ => Distribution::Uniform,
            };
            let mut stream = Stream::new(&job, 0, seed, capacity).unwrap();
            for _ in 0..200 {
                if let Planned::Io(r) = stream.plan() {
                    prop_assert!(r.lba.get() >= offset);
                    prop_assert!(r.lba.get() + r.sectors as u64 <= capacity);
                }
            }
        }
    }
}
