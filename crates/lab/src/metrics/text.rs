//! A snapshot as text for Prometheus (exposition format 0.0.4).
//!
//! Owns: names, types, labels, escapes. Promises: a family has one head and no series twice; times are
//! seconds, room is bytes, and what counts something else says so in its help; a counter that is declared
//! comes out without a line here. Never: takes a number that is not in the snapshot.

use super::{Latency, MountLost, Numbers, Snapshot, TargetSnapshot, Waits, bound_ns};
use flashlane_base::SECTOR_BYTES;
use flashlane_base::counters::{Combine, Counter, Counters};
use flashlane_ftl::contention::Exchanges;
use flashlane_ftl::stats::FtlStats;
use flashlane_media::counters::Counters as MediumCounters;
use flashlane_ocssd::{BufferCount, SlcCount};
use std::fmt::Write;

/// Counters that are several numbers: each comes out under a label of its own.
const EXPANDED: [&str; 2] = ["programmed", "read_breakdown"];

type Labels<'a> = &'a [(&'a str, &'a str)];

/// How a counter's number becomes a metric's.
#[derive(Clone, Copy)]
enum Scale {
    One,
    Bytes,
    Seconds,
}

impl Scale {
    fn value(self, n: u64) -> String {
        match self {
            Scale::One => n.to_string(),
            Scale::Bytes => (n * SECTOR_BYTES as u64).to_string(),
            Scale::Seconds => seconds(n),
        }
    }
}

/// Without a digit too many or too few.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// The name of a counter's metric, without what is before and behind it.
fn name_of(counter: &Counter) -> (String, Scale) {
    if let Some(word) = counter.called("metric") {
        return (word.into(), if word.ends_with("_bytes") { Scale::Bytes } else { Scale::One });
    }
    match counter.unit {
        "sectors" => (format!("{}_bytes", counter.name.trim_end_matches("_sectors")), Scale::Bytes),
        "ns" => (format!("{}_seconds", counter.name), Scale::Seconds),
        _ => (counter.name.into(), Scale::One),
    }
}

/// Where text is put together, family by family: what two targets have in common is one family.
#[derive(Default)]
struct Page {
    /// Names and texts, in the order in which they came up.
    families: Vec<(String, String)>,
    /// The family that samples go to.
    at: usize,
}

impl Page {
    /// Samples are of this family from here on.
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let known = self.families.iter().position(|(family, _)| family == name);
        self.at = known.unwrap_or_else(|| {
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            self.families.push((name.into(), head));
            self.families.len() - 1
        });
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl std::fmt::Display) {
        let Some((_, page)) = self.families.get_mut(self.at) else { return };
        *page += name;
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(page, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
        }
        let _ = writeln!(page, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// A family of one series.
    fn one(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        labels: Labels<'_>,
        value: impl std::fmt::Display,
    ) {
        self.head(name, kind, help);
        self.sample(name, labels, value);
    }

    /// A family with a series for each of some rows, told apart by one more label.
    fn each(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        labels: Labels<'_>,
        by: &str,
        rows: impl IntoIterator<Item = (String, String)>,
    ) {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_some() {
            self.head(name, kind, help);
        }
        for (row, value) in rows {
            self.sample(name, &[labels, &[(by, &row)]].concat(), value);
        }
    }

    /// All counters of a declaration.
    fn counters(
        &mut self,
        prefix: &str,
        schema: &[Counter],
        numbers: &Numbers,
        labels: Labels<'_>,
    ) {
        for counter in schema.iter().filter(|c| !EXPANDED.contains(&c.name)) {
            let Some(n) = numbers.get(counter.name) else { continue };
            let (name, scale) = name_of(counter);
            let (kind, end) = match counter.combine {
                Combine::Sum => ("counter", "_total"),
                Combine::Max | Combine::Last => ("gauge", ""),
            };
            let name = format!("flashlane_{prefix}{name}{end}");
            self.one(&name, kind, &help_of(counter, scale), labels, scale.value(*n));
        }
    }
}

/// What a counter counts, with its unit where the name does not say it.
fn help_of(counter: &Counter, scale: Scale) -> String {
    let doc = counter.doc.trim().replace(['[', ']', '`'], "");
    match (scale, counter.unit) {
        (Scale::One, "sectors") => format!("{doc} Unit: sectors of 4096 bytes."),
        (Scale::One, unit) => format!("{doc} Unit: {unit}."),
        _ => doc,
    }
}

fn as_bytes(sectors: &Numbers) -> impl Iterator<Item = (String, String)> {
    sectors.iter().map(|(name, n)| (name.clone(), Scale::Bytes.value(*n)))
}

fn as_they_are(numbers: &Numbers) -> impl Iterator<Item = (String, String)> {
    numbers.iter().map(|(name, n)| (name.clone(), n.to_string()))
}

pub(super) fn text(s: &Snapshot) -> String {
    let mut page = Page::default();
    let device: Labels<'_> = &[("device", &s.device)];
    let process = s.process.to_string();
    for t in &s.targets {
        let about = [
            device,
            &[("target", &*t.name), ("layer", &t.layer), ("model", &s.medium.name)],
            &[("process", &process), ("version", env!("CARGO_PKG_VERSION"))],
        ];
        page.one("flashlane_info", "gauge", "Who answers, and of what.", &about.concat(), 1);
    }
    let help = "Time of the run: virtual, or of the machine's clock.";
    page.one("flashlane_time_seconds", "gauge", help, device, seconds(s.time_ns));
    smart(&mut page, s, device);
    for t in &s.targets {
        let target: Labels<'_> = &[("device", &s.device), ("target", &t.name)];
        if !t.stats.is_empty() {
            of_target(&mut page, t, target);
        }
        if let Some(lost) = &t.lost {
            losses(&mut page, lost, target);
        }
        requests(&mut page, &t.requests, target);
    }
    medium(&mut page, s, device);
    page.families.into_iter().map(|(_, text)| text).collect()
}

/// By the names of node-exporter's `nvme_metrics.py`, as far as a drive has them.
fn smart(page: &mut Page, s: &Snapshot, device: Labels<'_>) {
    const RATIOS: [(&str, &str, &str); 3] = [
        ("avail_spare", "nvme_available_spare_ratio", "Device available spare ratio"),
        (
            "spare_thresh",
            "nvme_available_spare_threshold_ratio",
            "Device available spare threshold ratio",
        ),
        ("percent_used", "nvme_percentage_used_ratio", "Device percentage used ratio"),
    ];
    const COUNTS: [(&str, &str, &str); 6] = [
        (
            "data_units_read",
            "nvme_data_units_read_total",
            "Number of 512-byte data units read by host, reported in thousands",
        ),
        (
            "data_units_written",
            "nvme_data_units_written_total",
            "Number of 512-byte data units written by host, reported in thousands",
        ),
        ("media_errors", "nvme_media_errors_total", "Device media errors total"),
        ("power_cycles", "nvme_power_cycles_total", "Device number of power cycles"),
        ("power_on_hours", "nvme_power_on_hours_total", "Device power-on hours"),
        ("unsafe_shutdowns", "nvme_unsafe_shutdowns_total", "Device number of unsafe shutdowns"),
    ];
    if !s.smart.is_object() {
        return;
    }
    for (key, name, help) in RATIOS {
        let percent = s.smart[key].as_u64().unwrap_or(0);
        page.one(name, "gauge", help, device, percent as f64 / 100.0);
    }
    for (key, name, help) in COUNTS {
        page.one(name, "counter", help, device, s.smart[key].as_str().unwrap_or("0"));
    }
    let warning = s.smart["critical_warning"].as_u64().unwrap_or(0);
    let help = "Device critical warning bitmap field";
    page.one("nvme_critical_warning", "gauge", help, device, warning);
    let help = "Device size in bytes";
    page.one("nvme_physical_size_bytes", "gauge", help, device, s.medium.raw_bytes);
    let help = "Device sector size in bytes";
    page.one("nvme_sector_size_bytes", "gauge", help, device, SECTOR_BYTES);
}

fn of_target(page: &mut Page, s: &TargetSnapshot, target: Labels<'_>) {
    page.counters("", FtlStats::SCHEMA, &s.stats, target);
    let help = "Programmed by the target since its mount, by what it was programmed for.";
    let family = ("flashlane_nand_program_bytes_total", "counter", help);
    page.each(family, target, "reason", as_bytes(&s.programmed));
    let parts = s.read_time.iter().map(|(part, ns)| (part.clone(), seconds(*ns)));
    let help = "Where reads of the host spent their time on the device, by part.";
    page.each(("flashlane_read_time_seconds_total", "counter", help), target, "part", parts);
    if let Some(ratio) = s.write_amplification_ratio {
        let help = "Programmed over written by the host, since the mount.";
        page.one("flashlane_write_amplification_ratio", "gauge", help, target, ratio);
    }
    let help = "Size of the target.";
    page.one("flashlane_capacity_bytes", "gauge", help, target, s.capacity_bytes);
    let help = "1 where the target takes no writes any more.";
    page.one("flashlane_read_only", "gauge", help, target, u8::from(s.read_only.is_some()));
    let help = "Free for new data: chunks of a host FTL, lines of a block SSD.";
    page.one("flashlane_free_blocks", "gauge", help, target, s.room.free);
    let help = "What flashlane_free_blocks is of.";
    page.one("flashlane_blocks", "gauge", help, target, s.room.of);
    let family = ("flashlane_lines", "gauge", "Lines by state.");
    page.each(family, target, "state", as_they_are(&s.lines));
    if let Some((users, all)) = s.room.user_slots {
        let help = "Slots of the rings that the limiter gives to users.";
        page.one("flashlane_limiter_user_slots", "gauge", help, target, users);
        let help = "What flashlane_limiter_user_slots is of.";
        page.one("flashlane_limiter_slots", "gauge", help, target, all);
    }
    let family = ("flashlane_counted", "untyped", "What only this type of target counts.");
    page.each(family, target, "name", as_they_are(&s.counted));
    let of = |(layer, numbers): (&String, &Numbers)| {
        let layer = layer.clone();
        let each = numbers.iter();
        each.map(move |(name, n)| (format!("{layer}_{name}"), n.to_string())).collect::<Vec<_>>()
    };
    let family = ("flashlane_layer", "untyped", "What a layer counts that stands on the target.");
    page.each(family, target, "name", s.layers.iter().flat_map(of));
    let help = "Sectors that the target holds, by what they are to the file system on it.";
    let rows = s
        .pages
        .iter()
        .map(|(kind, n)| (kind.trim_end_matches("_sectors").to_string(), n.to_string()));
    page.each(("flashlane_page_sectors", "gauge", help), target, "holds", rows);
    queues(page, s, target);
    waits(page, s, target);
    page.counters("exchange_", Exchanges::SCHEMA, &s.exchanges, target);
}

fn losses(page: &mut Page, lost: &MountLost, target: Labels<'_>) {
    let help = "Logical sectors of 4096 bytes whose content the mount found lost, by cause.";
    let family = ("flashlane_mount_lost_sectors", "gauge", help);
    page.each(family, target, "cause", as_they_are(&lost.sectors));
    let help = "Sectors of the medium, 4096 bytes each, that the mount could not read.";
    let name = "flashlane_mount_unreadable_sectors";
    page.one(name, "gauge", help, target, lost.medium_sectors);
    let help = "Write units that the mount could not read and takes for torn by a power cut; of sftl, \
                chunks of which it is not known what they hold.";
    page.one("flashlane_mount_torn_units", "gauge", help, target, lost.torn_units);
}

fn queues(page: &mut Page, s: &TargetSnapshot, target: Labels<'_>) {
    let rings = || (0..).map(|ring: usize| format!("ring{ring}")).zip(&s.rings);
    let in_flight = s.requests.iter().map(|r| (r.op.clone(), r.in_flight.to_string()));
    let used = rings().map(|(name, ring)| (name, ring.used.to_string()));
    let help = "Slots of a ring in use; requests of an operation in flight.";
    let family = ("flashlane_queue_depth", "gauge", help);
    page.each(family, target, "queue", used.chain(in_flight));
    let slots = rings().map(|(name, ring)| (name, ring.slots.to_string()));
    page.each(("flashlane_queue_slots", "gauge", "Slots of a ring."), target, "queue", slots);
    let help = "Host writes that waited for room.";
    let full = rings().map(|(name, ring)| (name, ring.full_waits.to_string()));
    page.each(("flashlane_queue_full_waits_total", "counter", help), target, "queue", full);
    let help = "Time that host writes waited for room.";
    let full = rings().map(|(name, ring)| (name, seconds(ring.full_wait_ns)));
    page.each(("flashlane_queue_full_wait_seconds_total", "counter", help), target, "queue", full);
    let help = "Host writes that waited for a share of the limiter's.";
    let limited = rings().map(|(name, ring)| (name, ring.limited_waits.to_string()));
    page.each(("flashlane_queue_limited_waits_total", "counter", help), target, "queue", limited);
    let help = "Time that host writes waited for a share of the limiter's.";
    let limited = rings().map(|(name, ring)| (name, seconds(ring.limited_wait_ns)));
    let family = ("flashlane_queue_limited_wait_seconds_total", "counter", help);
    page.each(family, target, "queue", limited);
}

fn waits(page: &mut Page, s: &TargetSnapshot, target: Labels<'_>) {
    let rows = |number: fn(&Waits) -> String| {
        s.locks.iter().map(move |lock| (lock.name.clone(), number(lock)))
    };
    let family = ("flashlane_lock_taken_total", "counter", "Times a lock was taken, by kind.");
    page.each(family, target, "lock", rows(|lock| lock.taken.to_string()));
    let family = ("flashlane_lock_waits_total", "counter", "Times somebody else had it.");
    page.each(family, target, "lock", rows(|lock| lock.waits.to_string()));
    let family = ("flashlane_lock_wait_seconds_total", "counter", "Time until it was free.");
    page.each(family, target, "lock", rows(|lock| seconds(lock.wait_ns)));
    if s.locks.is_empty() {
        return;
    }
    let help = "Programs that waited for a semaphore of a PU.";
    page.one("flashlane_semaphore_waits_total", "counter", help, target, s.semaphores.waits);
    let (name, waited) = ("flashlane_semaphore_wait_seconds_total", seconds(s.semaphores.wait_ns));
    page.one(name, "counter", "Time that they waited.", target, waited);
    let help = "Busy channels that drainers passed by.";
    page.one("flashlane_channels_passed_total", "counter", help, target, s.channels_passed);
}

fn requests(page: &mut Page, requests: &[Latency], target: Labels<'_>) {
    if requests.is_empty() {
        return;
    }
    let name = "flashlane_request_duration_seconds";
    let help = "From the call at the target's top to its answer, errors included.";
    page.head(name, "histogram", help);
    for request in requests {
        let labels = [target, &[("op", &*request.op)]].concat();
        let mut so_far = 0;
        for (bucket, n) in request.buckets.iter().enumerate() {
            so_far += n;
            // Doublings are enough here: a series costs who keeps it.
            if let Some(bound) = bound_ns(bucket).filter(|bound| bound.is_power_of_two()) {
                let bound = seconds(bound);
                let labels = [&*labels, &[("le", &*bound)]].concat();
                page.sample(&format!("{name}_bucket"), &labels, so_far);
            }
        }
        let all = [&*labels, &[("le", "+Inf")]].concat();
        page.sample(&format!("{name}_bucket"), &all, so_far);
        page.sample(&format!("{name}_sum"), &labels, seconds(request.sum_ns));
        page.sample(&format!("{name}_count"), &labels, so_far);
    }
    let failed = requests.iter().map(|r| (r.op.clone(), r.failed.to_string()));
    let family = ("flashlane_request_errors_total", "counter", "Requests that failed.");
    page.each(family, target, "op", failed);
}

fn medium(page: &mut Page, s: &Snapshot, device: Labels<'_>) {
    let m = &s.medium;
    page.counters("media_", MediumCounters::SCHEMA, &m.counters, device);
    let help = "Programmed by the medium since it was made, for all targets, by reason.";
    let family = ("flashlane_media_program_bytes_total", "counter", help);
    page.each(family, device, "reason", as_bytes(&m.programmed));
    if let Some(buffer) = &m.buffer {
        page.counters("device_buffer_", BufferCount::SCHEMA, buffer, device);
    }
    if let Some(slc) = &m.slc {
        page.counters("media_slc_", SlcCount::SCHEMA, slc, device);
    }
    let channels: Vec<String> = (0..m.channels_ns.len()).map(|c| c.to_string()).collect();
    let pus: Vec<String> = (0..m.pus_per_channel).map(|pu| pu.to_string()).collect();
    // The labels of each PU, in their order.
    let places = || channels.iter().flat_map(|c| pus.iter().map(move |pu| (&**c, &**pu)));
    let name = "flashlane_nand_erases_total";
    page.head(name, "counter", "Erases of the chunks of a PU.");
    for ((channel, pu), n) in places().zip(&m.pu_erases) {
        page.sample(name, &[device, &[("channel", channel), ("pu", pu)]].concat(), n);
    }
    let name = "flashlane_die_busy_seconds_total";
    page.head(name, "counter", "Time that a die was held, by what held it.");
    for ((channel, pu), busy) in places().zip(&m.dies_ns) {
        for (by, ns) in ["read", "program", "erase"].into_iter().zip(busy) {
            let labels = [device, &[("channel", channel), ("pu", pu), ("by", by)]].concat();
            page.sample(name, &labels, seconds(*ns));
        }
    }
    let busy = channels.iter().cloned().zip(m.channels_ns.iter().map(|ns| seconds(*ns)));
    let help = "Time that a channel's bus was busy.";
    page.each(("flashlane_channel_busy_seconds_total", "counter", help), device, "channel", busy);
    let family = ("flashlane_chunks", "gauge", "Chunks of the device by state.");
    page.each(family, device, "state", as_they_are(&m.chunks));
    if let Some(n) = m.slc_chunks {
        page.one("flashlane_slc_chunks", "gauge", "Chunks in SLC mode.", device, n);
    }
    let wear = ["least", "mean", "most"].map(String::from).into_iter();
    let wear = wear.zip(m.wear.map(|n| n.to_string()));
    page.each(("flashlane_chunk_erases", "gauge", "Erases of a chunk."), device, "of", wear);
    if let Some(endurance) = &m.endurance {
        let name = "flashlane_endurance_used_ratio";
        page.head(
            name,
            "gauge",
            "Share of the rated erases of a cell mode that chunks have used up.",
        );
        for (mode, used) in endurance.modes() {
            for (of, ppm) in [("mean", used.mean_ppm), ("most", used.most_ppm)] {
                let labels = [device, &[("mode", mode), ("of", of)]].concat();
                page.sample(name, &labels, ppm as f64 / 1e6);
            }
        }
    }
    let help = "Broken rules of the medium.";
    page.one("flashlane_violations_total", "counter", help, device, m.violations);
    let help = "Memory of the process that contents take.";
    page.one("flashlane_store_bytes", "gauge", help, device, m.store_bytes);
    page.one("flashlane_faults", "gauge", "Lines of the fault plan.", device, m.faults);
    let help = "Times that lines of the fault plan happened.";
    page.one("flashlane_faults_happened_total", "counter", help, device, m.faults_happened);
}

#[cfg(test)]
mod tests;
