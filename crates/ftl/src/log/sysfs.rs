//! What pblk showed under /sys/block/DISK/pblk, by the same names, and the knobs among it.
//!
//! Owns: the text of each attribute and the parsing of those that can be written.
//! Promises: names are the kernel's (facts: Linux 5.10 `pblk-sysfs.c`); a value that is refused
//! changes nothing and says what would do. Never: counts anything itself.

use super::limiter::{LimiterKind, Shares};
use super::{HostFtl, LineState, get};
use crate::layer::{Attribute, AttributeError, Knob};
use crate::stats::{FtlStats, Gauges};
use flashlane_ocssd::device::Cause;
use flashlane_rt::Cx;

/// Attributes that [`HostFtl::attribute`] knows.
pub const ATTRIBUTES: &[Attribute] = &[
    Attribute::shown("write_luns"),
    Attribute::shown("rate_limiter"),
    Attribute::shown("errors"),
    Attribute::shown("gc_state"),
    Attribute::knob("gc_force", Knob::Stays),
    Attribute::knob("max_sec_per_write", Knob::Acts),
    Attribute::shown("write_buffer"),
    Attribute::shown("ppa_format"),
    Attribute::shown("lines"),
    Attribute::shown("lines_info"),
    Attribute::shown("write_amp_mileage"),
    Attribute::knob("write_amp_trip", Knob::Acts),
    Attribute::knob("padding_dist", Knob::Acts),
    // Beyond the kernel: the paper's run-time knob (LightNVM 4.2.1) and the switch of GC.
    Attribute::knob("active_pus", Knob::Kept("active_pus")),
    Attribute::knob("gc_enabled", Knob::Kept("gc")),
    // Which controller shares the ring (LightNVM 4.2.4; the kernel has one).
    Attribute::knob("limiter", Knob::Kept("limiter")),
    Attribute::shown("wear_leveling"),
    Attribute::shown("scrub"),
];

/// user, GC and padding sectors, and their ratio to the first, as the kernel prints them.
fn write_amp(user: u64, gc: u64, pad: u64) -> String {
    let ratio = ((user + gc + pad) * 100_000).checked_div(user).unwrap_or(0);
    format!("user:{user} gc:{gc} pad:{pad} WA:{}.{:05}", ratio / 100_000, ratio % 100_000)
}

fn trip(s: &FtlStats) -> [u64; 3] {
    let padding = [Cause::PaddingFlush, Cause::PaddingPair, Cause::PaddingGc];
    // Retries carry sectors that were counted before; dead sectors count once, as padding.
    let pad = padding.iter().map(|c| s.programmed_for(*c)).sum::<u64>();
    [
        s.programmed_for(Cause::User),
        s.programmed_for(Cause::Gc),
        pad + s.programmed_for(Cause::Dead),
    ]
}

impl HostFtl {
    pub fn attribute(&self, name: &str) -> Result<String, AttributeError> {
        let s = self.stats();
        Ok(match name {
            "write_luns" => self.write_luns(),
            "rate_limiter" => self.rate_limiter_text(),
            "errors" => format!(
                "read_failed={} read_high_ecc={} read_empty=0 read_failed_gc={} write_failed={} \
                 erase_failed={}",
                s.read_failures,
                s.high_ecc,
                s.gc_read_failures,
                s.program_failures,
                s.erase_failures
            ),
            "gc_state" => format!(
                "gc_enabled={} gc_active={}",
                self.gc.enabled.load(std::sync::atomic::Ordering::Relaxed) as u8,
                self.shares().collect as u8
            ),
            // The kernel's can only be written; who can read a knob wants to see where it stands.
            "gc_force" => {
                (self.gc.forced.load(std::sync::atomic::Ordering::Relaxed) as u8).to_string()
            }
            "max_sec_per_write" => self.shape.unit.to_string(),
            "write_buffer" => self.write_buffer_text(),
            "ppa_format" => {
                let fields = self.flash.format.fields();
                let text: Vec<_> = fields.iter().map(|(n, b)| format!("{n}:{b}")).collect();
                text.join(" ")
            }
            "lines" => self.lines_text(),
            "lines_info" => {
                let show = |l: Option<u32>| l.map_or("none".into(), |l: u32| l.to_string());
                let pools = self.pools.iter().map(|pool| {
                    let p = pool.lock();
                    format!("current={} next={}", show(p.current), show(p.spare))
                });
                pools.collect::<Vec<_>>().join("; ")
            }
            "write_amp_mileage" => {
                let [user, gc, pad] = trip(&s);
                write_amp(user, gc, pad)
            }
            "write_amp_trip" => {
                let now = trip(&s);
                let from = *self.trip_start.lock();
                write_amp(now[0] - from[0], now[1] - from[1], now[2] - from[2])
            }
            "padding_dist" => self.padding_text(),
            "active_pus" => self.pools.sum(|p| u64::from(p.width())).to_string(),
            "gc_enabled" => {
                (self.gc.enabled.load(std::sync::atomic::Ordering::Relaxed) as u8).to_string()
            }
            "limiter" => self.pools.get(0).limiter.lock().name().into(),
            "wear_leveling" => self.wear_text(&s),
            "scrub" => self.scrub_text(&s),
            other => return Err(AttributeError::unknown(other, ATTRIBUTES)),
        })
    }

    fn wear_text(&self, s: &FtlStats) -> String {
        let wear = self.settings().wear;
        let [least, mean, most] = self.pools.wear_range();
        format!(
            "{} spread:{} erases:{least}..{most} mean:{mean} moved_lines:{}",
            wear.leveling.name(),
            wear.spread,
            s.leveled_lines
        )
    }

    fn scrub_text(&self, s: &FtlStats) -> String {
        let scrub = self.settings().scrub;
        format!(
            "{} interval_ms:{} sectors:{} moved_lines:{} patrol_sectors:{}",
            scrub.mode.name(),
            scrub.interval.as_ns() / 1_000_000,
            scrub.sectors,
            s.scrubbed_lines,
            s.patrol_reads
        )
    }

    pub fn set_attribute(&self, cx: &Cx, name: &str, value: &str) -> Result<(), AttributeError> {
        let Some(Attribute { name, knob }) = ATTRIBUTES.iter().find(|a| a.name == name) else {
            return Err(AttributeError::unknown(name, ATTRIBUTES));
        };
        if *knob == Knob::No {
            return Err(AttributeError::ReadOnly((*name).into()));
        }
        let refuse = |remedy: String| AttributeError::Value { name, value: value.into(), remedy };
        if *name == "limiter" {
            let names = || LimiterKind::ALL.map(|(name, _)| name).join(", ");
            let kind = LimiterKind::named(value.trim());
            let kind = kind.ok_or_else(|| refuse(format!("there are {}", names())))?;
            for pool in self.pools.iter() {
                pool.limiter.lock().set_kind(kind);
                *pool.shared.lock() = None;
            }
            self.pool_moved(cx);
            return Ok(());
        }
        let n: u32 = value.trim().parse().map_err(|_| refuse("write a whole number".into()))?;
        match *name {
            "gc_force" | "gc_enabled" => match n {
                0 | 1 => {
                    self.set_gc(cx, n == 1);
                    if *name == "gc_force" {
                        self.gc.force(n == 1);
                        self.pool_changed.wake(cx);
                        self.wake_collectors(cx);
                    }
                }
                _ => return Err(refuse("write 1 or 0".into())),
            },
            "max_sec_per_write" if n != self.shape.unit => {
                return Err(refuse(format!(
                    "pblk's requests are one write unit of {} sectors",
                    self.shape.unit
                )));
            }
            "max_sec_per_write" => {}
            "active_pus" if n > self.shape.pus => {
                return Err(refuse(format!("the target has {} PUs (0 is all)", self.shape.pus)));
            }
            "active_pus" => self.set_active_pus(cx, n).map_err(|missing| {
                refuse(format!("that width needs {missing} more spare lines than there are"))
            })?,
            _ if n != 0 => return Err(refuse("write 0 to reset it".into())),
            "write_amp_trip" => *self.trip_start.lock() = trip(&self.stats()),
            _ => self.padding_dist.iter().for_each(|p| p.store(0, super::Ordering::Relaxed)),
        }
        Ok(())
    }

    fn write_luns(&self) -> String {
        let mut pus = Vec::new();
        for pool in self.pools.iter() {
            let p = pool.lock();
            let Some(line) = p.current.or(p.spare) else { continue };
            pus.extend(p.line(line).chunks.iter().map(|c| {
                let pu = c / self.shape.chunks_per_pu;
                let busy = self.pu[pu as usize].free() == 0;
                format!("{pu}:{}", if busy { "busy" } else { "free" })
            }));
        }
        if pus.is_empty() { "none".into() } else { pus.join(" ") }
    }

    /// Shares as they stand, and what the limiter works between.
    fn rate_limiter_text(&self) -> String {
        let [user, gc] = self.rings.snapshot();
        let levels = self.pools.get(0).limiter.lock().levels();
        let pools = self.pools.len() as u64;
        let (_, free, _) = self.line_counts();
        format!(
            "u:{}/{},gc:{}/{}(stop:<{},start:<{},free:{})",
            user.0,
            user.1,
            gc.0,
            gc.1,
            levels.reserve * pools,
            levels.start * pools,
            free
        )
    }

    /// The limiter's present shares of the ring.
    pub fn shares(&self) -> Shares {
        let [user, gc] = self.rings.snapshot();
        let collect = self.pools.iter().any(|pool| pool.collector.is_wanted());
        Shares { users: user.1, gc: gc.1, collect }
    }

    /// Free chunks, of those that lines are made of, and the users' share of the ring.
    pub fn gauges(&self) -> Gauges {
        let ring = self.layout.ring_sectors;
        let users = self.shares().users.min(ring);
        let free = self.pools.sum(|p| p.free_chunks());
        let of = self.layout.lines * u64::from(self.pools.get(0).lock().width());
        let depth = |[user, gc]: [(u64, u64); 2]| user.0 + gc.0;
        let each = || self.rings.iter().map(|ring| depth(ring.admission.snapshot()));
        let ring_slots = Some((each().sum(), each().max().unwrap_or(0)));
        Gauges { free: free.min(of), of, user_slots: Some((users, ring)), ring_slots }
    }

    fn write_buffer_text(&self) -> String {
        let size = self.layout.ring_sectors / self.rings.len() as u64;
        let rings = self.rings.iter().map(|ring| {
            let (mem, subm, sync, flush, free) = ring.state.now(|r| r.pointers());
            format!("size:{size} mem:{mem} subm:{subm} sync:{sync} flush_point:{flush} free:{free}")
        });
        rings.collect::<Vec<_>>().join("; ")
    }

    fn lines_text(&self) -> String {
        let (counts, free, bad) = self.line_counts();
        let mut out: Vec<String> = counts
            .iter()
            .filter(|(s, _)| *s != LineState::Free)
            .map(|(s, n)| format!("{}:{n}", format!("{s:?}").to_lowercase()))
            .collect();
        out.push(format!("free_chunks:{free} retired_chunks:{bad}"));
        out.join(" ")
    }

    fn padding_text(&self) -> String {
        let counts: Vec<u64> = self.padding_dist.iter().map(get).collect();
        let total: u64 = counts.iter().sum();
        if total == 0 {
            return "no padding".into();
        }
        let share = |n: u64| format!("{}.{:02}%", n * 100 / total, n * 10_000 / total % 100);
        let used = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        used.map(|(i, n)| format!("{i}:{}", share(*n))).collect::<Vec<_>>().join(" ")
    }
}
