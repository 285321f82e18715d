//! The machine that this program runs on, for results that depend on it.
//!
//! Owns: what the system says of itself, today's date. Promises: a word for everything, `unknown` kinds
//! included. Never: measures.

use flashlane_lab::calibrate::Machine;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// What Linux says of itself; less elsewhere.
pub(crate) fn this() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let models = ["model name", "Model", "cpu model", "Hardware"];
    let line = models.iter().find_map(|m| cpu.lines().find(|line| line.starts_with(m)));
    let model = line.and_then(|line| line.split_once(':')).map(|(_, model)| model.trim());
    let release = read("/proc/sys/kernel/osrelease");
    let kernel = match release.trim() {
        "" => std::env::consts::OS.to_string(),
        release => format!("Linux {release}"),
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let build = if cfg!(debug_assertions) { "development" } else { "release" };
    Machine {
        cpu: model.unwrap_or(std::env::consts::ARCH).to_string(),
        cores,
        kernel,
        date: today(),
        build: format!("flashlane {}, {build} build", env!("CARGO_PKG_VERSION")),
    }
}

/// Today's date in UTC.
fn today() -> String {
    #[allow(clippy::disallowed_methods)] // here, above the simulation, there is a calendar
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The day that begins so many days after 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> String {
    // Years that begin in March have their leap day at the end; 719,468 days lie between the first
    // of March of the year 0 and 1970. 146,097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, from_january) = (day - (153 * month + 2) / 5 + 1, month >= 10);
    let month = if from_january { month - 9 } else { month + 3 };
    format!("{:04}-{month:02}-{day:02}", year + era * 400 + u64::from(from_january))
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_have_dates() {
        for (days, text) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_779, "2026-11-22"),
            (20_818, "2026-12-31"),
            (20_819, "2027-01-01"),
        ] {
            assert_eq!(date(days), text);
        }
    }
}
