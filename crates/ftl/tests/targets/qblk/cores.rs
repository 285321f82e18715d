//! Requests from several cores, and what each core's drainer sent.
//!
//! Owns: the target that these tests run on ([`qblk`]), the bench's requests on a core of choice, the
//! order of commands per drainer ([`Bench::requests_of`]). Never: asserts (that is the tests').

use crate::prelude::*;
use flashlane_ocssd::device::Device;

/// QBLK on `tiny` with so many channels of so many PUs, for a host of `cores` cores; enough chunks for that
/// many rings.
pub(crate) fn qblk(channels: u32, per_channel: u32, cores: u32) -> Setup {
    let pus = channels * per_channel;
    let mut setup = tiny(56 + 3 * 136 * cores / (pus * 50) + 60 / pus);
    setup.spec = setup.spec.with_parallelism(channels, per_channel);
    setup.config = LogConfig { over_provisioning_percent: 60, ..LogConfig::qblk() };
    setup.cores(cores)
}

/// A new target that can be switched off.
pub(crate) fn made(setup: Setup) -> Bench {
    Medium::new(setup).create()
}

impl Bench {
    pub(crate) fn at(&self, core: u32) -> Cx {
        self.cx.on_core(CoreId(core))
    }

    pub(crate) fn cores(&self) -> u32 {
        self.cx.cores()
    }

    pub(crate) fn write_on(&self, core: u32, lba: u64, sectors: u32, version: u64) {
        let write = self.begin_write_on(core, lba, sectors, version);
        self.wait(write).expect("a write");
    }

    /// Writes from a core, durable when it returns.
    pub(crate) fn fua_on(&self, core: u32, lba: u64, sectors: u32, version: u64) {
        self.note_write(lba, sectors, version);
        let buf = filled(lba, sectors, version, self.dev.info().content_bytes);
        let write = self.request(core, (BlockOp::Write, lba, sectors, true), buf);
        self.wait(write).0.expect("a write");
    }

    pub(crate) fn flush_on(&self, core: u32) {
        let flush = self.begin_flush_on(core);
        self.wait(flush).expect("a flush");
    }

    /// Writes every sector once, 32 at a time, all cores at once.
    pub(crate) fn fill_on_all(&self, version: u64) {
        let (capacity, cores) = (self.capacity(), self.cores());
        let pieces: Vec<u64> = (0..capacity).step_by(32).collect();
        let write = |(i, lba): (u32, u64)| {
            self.begin_write_on(i % cores, lba, 32.min(capacity - lba) as u32, version)
        };
        for done in self.wait_all((0..).zip(pieces).map(write).collect()) {
            done.expect("a write");
        }
    }

    /// `tasks` writers on each core, each with its own sectors, `each` writes of 1 to 4 sectors at random
    /// places.
    pub(crate) fn overwrite_on_all(&self, tasks: u32, each: u64, salt: u64) {
        let (bytes, capacity) = (self.dev.info().content_bytes, self.capacity());
        let all = u64::from(tasks * self.cores());
        let share = capacity / all;
        let mut joins = Vec::new();
        for task in 0..all {
            let cx = self.at(task as u32 % self.cores());
            let (dev, held) = (self.dev.clone(), self.held.clone());
            let mut rng = Rng::stream(salt, "overwrite", task);
            joins.push(cx.clone().spawn_join(async move {
                for i in 0..each {
                    let sectors = 1 + rng.below(4.min(share));
                    let lba = task * share + rng.below(share - sectors + 1);
                    let version = salt << 40 | task << 24 | i;
                    let range = lba..lba + sectors;
                    let buf = filled(lba, sectors as u32, version, bytes);
                    let write = Io::write(Lba::new(lba), sectors as u32, false, &buf);
                    dev.start(&cx, write).await.expect("a write");
                    held.borrow_mut().extend(range.map(|l| (l, version)));
                }
            }));
        }
        self.wait_all(joins);
    }

    /// Requests of data that a core's drainer sent: the places of their units.
    pub(crate) fn requests_of(&self, core: u32) -> Vec<Vec<Location>> {
        let unit = self.ssd.geometry().ws_opt as usize;
        let entries = self.trace.entries();
        let data = entries.iter().filter(|e| e.core == core && is_data(e));
        data.map(|e| e.addrs.iter().step_by(unit).map(|a| self.place(*a)).collect()).collect()
    }

    pub(crate) fn channel_of(&self, at: &Location) -> u32 {
        at.pu / self.ssd.geometry().pus_per_channel
    }

    /// A number of the `write_buffer` attribute, of each ring.
    pub(crate) fn of_rings(&self, name: &str) -> Vec<u64> {
        let (text, key) = (self.attribute("write_buffer"), format!("{name}:"));
        let number = |ring: &str| {
            let field = ring.split(' ').find_map(|f| f.strip_prefix(&key));
            field.and_then(|f| f.parse().ok()).expect("a number")
        };
        text.split("; ").map(number).collect()
    }
}
