//! The due times that wait for their start times, and the epochs of the clock.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::doubt::Doubt;
use super::pauses::Pauses;
use super::slots::{DueFacts, Dues, JobEpoch, adopted, schedules};
use super::{Input, KEEP_CLOCK, Parts, STEP_BACK, Supervisor};
use crate::daemon::disposition::Cause;
use crate::daemon::ticker::{DueTime, Ticker};
use crate::daemon::views::starts_at;
use crate::domain::{Epoch, JobName};
use crate::store::{DbError, Span};

/// A due time that waits for its start time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    /// The due time plus jitter.
    pub(super) starts_at: DateTime<Utc>,
    pub(super) due_at: DateTime<Utc>,
    pub(super) job: JobName,
    /// The epoch in which the time came due.
    pub(super) epoch: Epoch,
    /// The due times that follow and are too late to run, like this one.
    pub(super) span: Option<Span>,
}

/// The due times that wait, the epochs, the pauses, and the doubt about the clock.
pub(super) struct DueTimes {
    pub(super) ticker: Ticker,
    /// Due times that wait for their start time.
    pub(super) held: BTreeSet<Held>,
    pub(super) pauses: Pauses,
    pub(super) epoch: Epoch,
    /// The last clock reading of each earlier epoch.
    pub(super) epoch_ends: BTreeMap<Epoch, DateTime<Utc>>,
    pub(super) last_seen: DateTime<Utc>,
    /// The last clock reading that was saved to the ledger.
    last_kept: DateTime<Utc>,
    pub(super) doubt: Doubt,
    pub(super) ticked_at: Instant,
}

impl DueTimes {
    /// Starts the ticker, and reads the epochs and the pauses.
    ///
    /// *Errors*: the ledger or the scheduler fails.
    pub(super) async fn of_ledger(
        parts: &Parts,
        now: DateTime<Utc>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let ticker = Ticker::start(parts.host.clock.clone()).await?;
        let (epoch, epoch_ends, last_seen, paused) = parts
            .ledger
            .read(|reader| {
                let meta = |name| reader.meta(name);
                Ok((meta("epoch")?, reader.epoch_ends()?, meta("last_seen")?, reader.pauses()?))
            })
            .await?;
        let last_seen = last_seen.and_then(DateTime::from_timestamp_millis);
        Ok(Self {
            ticker,
            held: BTreeSet::new(),
            pauses: Pauses::new(paused),
            epoch: epoch.map_or(Epoch::FIRST, Epoch::new),
            epoch_ends,
            last_seen: last_seen.unwrap_or(now),
            last_kept: last_seen.unwrap_or_default(),
            doubt: Doubt::default(),
            ticked_at: Instant::now(),
        })
    }

    /// Returns when the next held due time starts.
    pub(super) fn next_start(&self) -> Option<DateTime<Utc>> {
        self.held.first().map(|held| held.starts_at)
    }
}

impl Supervisor {
    /// Holds all due times up to a second after `now`.
    pub(super) fn hold_due(&mut self, now: DateTime<Utc>) {
        while self.take_due(now) > 0 {}
    }

    /// Holds due times up to a second after `now`, those of a job together; returns their number. Those
    /// that are too late to run count as one.
    pub(super) fn take_due(&mut self, now: DateTime<Utc>) -> usize {
        let repeats = self.may_repeat(DateTime::<Utc>::MIN_UTC, now);
        self.due.ticker.fold(now, &repeats, |job| self.too_late(job, now));
        let due_times = self.due.ticker.take(now);
        let count = due_times.len();
        due_times.into_iter().for_each(|due| self.hold(due));
        count
    }

    /// Holds a due time until its start time.
    pub(super) fn hold(&mut self, due: DueTime) {
        let config = self.config.borrow().clone();
        if let Some(job) = config.jobs.get(&due.job) {
            let starts_at = starts_at(job, due.due_at);
            self.due.held.insert(Held {
                starts_at,
                due_at: due.due_at,
                job: due.job,
                epoch: self.due.epoch,
                span: due.span,
            });
        }
    }

    /// Claims the held due times whose start time has come. If a claim fails, holds them again.
    pub(super) async fn begin_due(&mut self, cause: Cause, now: DateTime<Utc>) {
        let mut dues = Dues::new();
        let mut held = Vec::new();
        while self.due.held.first().is_some_and(|held| held.starts_at <= now) {
            let Some(first) = self.due.held.pop_first() else { break };
            dues.entry(JobEpoch { epoch: first.epoch, job: first.job.clone() })
                .or_default()
                .insert(first.due_at, DueFacts { span: first.span, ..DueFacts::default() });
            held.push(first);
        }
        if dues.is_empty() {
            return;
        }
        if let Err(error) = self.settle(&mut dues, cause, now).await {
            self.outbox.ledger_failed(&error);
            let is_left = |held: &Held| {
                let of_job = dues.get(&JobEpoch { epoch: held.epoch, job: held.job.clone() });
                of_job.is_some_and(|of_job| of_job.contains_key(&held.due_at))
            };
            self.due.held.extend(held.into_iter().filter(is_left));
        }
    }

    /// Starts a new epoch if the clock was set back by more than [`STEP_BACK`]; otherwise saves
    /// `now` to the ledger, at most once per [`KEEP_CLOCK`].
    pub(super) async fn look_at_clock(&mut self, now: DateTime<Utc>) -> Result<(), DbError> {
        if now < self.due.last_seen - STEP_BACK {
            let (ended, epoch) = (self.due.last_seen, self.due.epoch.next());
            tracing::warn!(%epoch, before = %ended, %now, "the clock was set back; schedules continue in a new epoch");
            // Due times from before the step stay due, in their own epoch.
            self.hold_due(ended);
            let schedules = schedules(&self.config.borrow());
            self.parts.ledger.begin_epoch(epoch, ended, adopted(&schedules), now).await?;
            // Each held slot keeps its remaining delay, so that it does not wait for the old time (CRON-3).
            let held = std::mem::take(&mut self.due.held).into_iter();
            // The ticker gives the due times of the next second too. Those after `ended` did not come due;
            // a slot of an earlier epoch did.
            let held = held.filter(|held| held.epoch < self.due.epoch || held.due_at <= ended);
            let moved = held.map(|held| {
                let delay = (held.starts_at - ended).max(TimeDelta::zero());
                Held { starts_at: held.starts_at.min(now + delay), ..held }
            });
            self.due.held = moved.collect();
            self.due.epoch_ends.insert(self.due.epoch, ended);
            self.due.epoch = epoch;
            self.due.last_seen = now;
            self.due.ticker.set(schedules, now);
            self.due.last_kept = now;
            let attempts = self.book.move_attempts(ended, now);
            self.parts.ledger.set_not_before(attempts).await?;
            self.act(Input::SetBack { before: ended }).await;
        } else {
            if (now - self.due.last_kept).abs() >= KEEP_CLOCK {
                self.parts.ledger.set_meta("last_seen", now.timestamp_millis()).await?;
                self.due.last_kept = now;
            }
            self.due.last_seen = now;
        }
        Ok(())
    }
}
