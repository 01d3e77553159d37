//! Reads the unit of the daemon, for the settings on which dutyd and systemd must agree.
//!
//! *Source*: `systemd.unit(5)`, `systemd.service(5)`, `systemd.time(7)`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::tool_context::UNIT_DIRECTORIES;

/// How long tools get to end, and the runs to record it, after the grace period.
const END: Duration = Duration::from_secs(5);

/// Returns a warning if systemd would kill the daemon before its runs have had their grace period;
/// `None` if it would not, or if no unit states a timeout.
#[must_use]
pub fn short_stop_timeout(grace: Duration) -> Option<String> {
    warning(grace, stop_timeout()?)
}

fn warning(grace: Duration, timeout: Duration) -> Option<String> {
    let needed = grace.saturating_add(END);
    (timeout < needed).then(|| {
        format!(
            "systemd kills the daemon {} s after a stop (TimeoutStopSec= of dutyd.service), but `shutdown_grace` is {} s: set TimeoutStopSec={}s in a drop-in",
            timeout.as_secs(),
            grace.as_secs(),
            needed.as_secs()
        )
    })
}

/// Returns the timeout that the unit and its drop-ins state. A file that cannot be read counts as
/// absent, because only a warning depends on it.
fn stop_timeout() -> Option<Duration> {
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    let unit = UNIT_DIRECTORIES
        .iter()
        .find_map(|directory| read(Path::new(directory).join("dutyd.service")))?;
    // A drop-in replaces one of the same name in a directory of lower precedence.
    let mut drop_ins = BTreeMap::<OsString, PathBuf>::new();
    for directory in UNIT_DIRECTORIES.iter().rev() {
        let entries = std::fs::read_dir(Path::new(directory).join("dutyd.service.d"));
        for entry in entries.into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "conf") {
                drop_ins.insert(entry.file_name(), path);
            }
        }
    }
    let texts = std::iter::once(unit).chain(drop_ins.into_values().filter_map(read));
    stated(texts)
}

/// Returns the last timeout that unit files state; `None` if they state none, or an infinite one.
fn stated(texts: impl IntoIterator<Item = String>) -> Option<Duration> {
    let mut timeout = None;
    for text in texts {
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            if matches!(key.trim(), "TimeoutStopSec" | "TimeoutSec") {
                timeout = span(value.trim());
            }
        }
    }
    timeout
}

/// Parses a time span such as `45s`, `1min 30s` or `90`; `None` if it is zero, infinite or not one.
fn span(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at_checked(end)?;
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let unit_ms: u64 = match unit {
            "ms" | "msec" => 1,
            "" | "s" | "sec" | "second" | "seconds" => 1000,
            "m" | "min" | "minute" | "minutes" => 60_000,
            "h" | "hr" | "hour" | "hours" => 3_600_000,
            _ => return None,
        };
        let span_ms = number.parse::<u64>().ok()?.checked_mul(unit_ms)?;
        total = total.checked_add(Duration::from_millis(span_ms))?;
        rest = after.trim_start();
    }
    (total > Duration::ZERO).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grace_period_beyond_the_timeout_of_the_unit_is_told() {
        let check = |files: &[&str], seconds: Option<u64>| {
            let found = stated(files.iter().map(|text| (*text).to_owned()));
            assert_eq!(found, seconds.map(Duration::from_secs), "{files:?}");
        };
        check(&["[Service]\nTimeoutStopSec=45s\n"], Some(45));
        check(&["TimeoutStopSec=45s\n", "TimeoutStopSec = 1min 30s\n"], Some(90));
        check(&["TimeoutSec=90"], Some(90));
        check(&["TimeoutStopSec=2h5m\n"], Some(7500));
        for none in ["# TimeoutStopSec=45s", "TimeoutStopSec=infinity", "TimeoutStopSec=0", ""] {
            check(&[none], None);
        }
        let seconds = Duration::from_secs;
        assert_eq!(warning(seconds(30), seconds(45)), None);
        let told = warning(seconds(600), seconds(45)).unwrap();
        assert!(told.contains("45 s") && told.contains("TimeoutStopSec=605s"), "{told}");
    }
}
