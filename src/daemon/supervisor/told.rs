//! What the daemon tells of itself without being asked: the line for systemd, the messages about its
//! problems, and whether its heart beats.

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Supervisor;
use crate::domain::{DaemonEvent, DaemonRule};

/// How long a problem, or the end of the last one, must last before destinations are told.
const SETTLED: TimeDelta = TimeDelta::seconds(60);

/// The longest time for which a slot may be undecided while the heart beats.
const UNDECIDED: TimeDelta = TimeDelta::seconds(60);

/// Limit of the characters of the problems in a message.
const PROBLEMS: usize = 600;

/// What was told.
pub(super) struct Told {
    /// The line that systemd was told last.
    pub(super) line: String,
    /// Since when the daemon is degraded, if destinations were told so.
    degraded_since: Option<DateTime<Utc>>,
    /// Since when that is not true any more.
    changed_at: Option<DateTime<Utc>>,
    /// When the daemon last did all that is due.
    beat: watch::Sender<Option<Instant>>,
}

impl Told {
    pub(super) fn new(degraded_since: Option<DateTime<Utc>>) -> Self {
        let line = String::new();
        Self { line, degraded_since, changed_at: None, beat: watch::Sender::new(None) }
    }

    /// Returns when the daemon last did all that was due.
    pub(super) fn beat(&self) -> watch::Receiver<Option<Instant>> {
        self.beat.subscribe()
    }
}

impl Supervisor {
    /// Notes that all that is due is done, unless a slot is undecided for too long.
    pub(super) fn beat(&self, now: DateTime<Utc>) {
        let is_late = self.due.next_start().is_some_and(|start| now - start > UNDECIDED);
        if self.outbox.fault().is_none() && !is_late {
            self.told.beat.send_replace(Some(Instant::now()));
        }
    }

    /// Tells destinations once the daemon has been degraded, or sound again, for a while. A message that
    /// cannot be kept is tried again.
    pub(super) async fn tell_of_daemon(&mut self, now: DateTime<Utc>) {
        // A message could not be kept now.
        if self.outbox.fault().is_some() {
            return;
        }
        let problems = self.problems();
        if problems.is_empty() == self.told.degraded_since.is_none() {
            self.told.changed_at = None;
            return;
        }
        let changed_at = *self.told.changed_at.get_or_insert(now);
        if now - changed_at < SETTLED {
            return;
        }
        let (event, since, summary) = match self.told.degraded_since {
            None => {
                let problems: String = problems.join("; ").chars().take(PROBLEMS).collect();
                (DaemonEvent::Degraded, Some(changed_at), format!("dutyd is degraded: {problems}"))
            }
            Some(since) => {
                let since = since.format("%Y-%m-%d %H:%M UTC");
                let summary = format!("dutyd has recovered; it was degraded since {since}");
                (DaemonEvent::Recovered, None, summary)
            }
        };
        let summary = crate::text::escape::one_line(&summary);
        let rules = &self.config.borrow().settings.notify.clone();
        let of = DaemonEvent::Degraded;
        let messages = DaemonRule::messages(rules, event, of, None, &summary, now);
        match self.parts.ledger.tell_of_daemon(since, messages).await {
            Ok(()) => (self.told.degraded_since, self.told.changed_at) = (since, None),
            Err(error) => tracing::debug!(%error, "failed to keep a message about the daemon"),
        }
    }
}
