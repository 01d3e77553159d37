//! Jitter computed from the job, the due time and the spread alone: a restart does not change it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};

/// Returns the delay after `due_at` at which a run of `job` starts, in whole milliseconds. The
/// delay is at least 0 and less than `spread`; it is 0 if `spread` is 0.
#[must_use]
pub fn jitter(job: &str, due_at: DateTime<Utc>, spread: Duration) -> Duration {
    let digest = Sha256::new()
        .chain_update(job)
        .chain_update(due_at.timestamp_millis().to_be_bytes())
        .finalize();
    let number = digest.iter().take(8).fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    let spread_ms = u64::try_from(spread.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(number.checked_rem(spread_ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_stable_and_bounded() {
        let spread = Duration::from_secs(30);
        let due = |second| DateTime::from_timestamp(second, 0).unwrap();
        assert_eq!(jitter("a", due(7), spread), jitter("a", due(7), spread));
        assert_eq!(jitter("a", due(7), Duration::ZERO), Duration::ZERO);
        let all: std::collections::BTreeSet<_> =
            (0..100).map(|s| jitter("a", due(s), spread)).collect();
        assert!(all.len() > 90 && all.iter().all(|d| *d < spread));
    }
}
