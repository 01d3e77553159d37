//! Our store behind tokio-cron-scheduler: the scheduler wakes us, our table says what is due
//! (CRON-6).
//!
//! The scheduler never sees an expression or a zone; its storage is our table of next due times.
//! When the scheduler lists what is due, we claim those entries: we remove them from the table,
//! insert the next due time of each of their jobs, and keep the removed due times until the
//! supervisor takes them.
//! Even if a channel of the scheduler is full, or the scheduler stops, no due time is lost, because
//! [`Ticker::take`] reads the table itself.
//! *Source*: `docs/design/architecture.md`, "The clock".

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::{Notify, RwLock};
use tokio_cron_scheduler::job::job_data::{JobAndNextTick, JobStoredData, JobType};
use tokio_cron_scheduler::store::{DataStore, InitStore, MetaDataStorage};
use tokio_cron_scheduler::{
    Context, JobCode, JobScheduler, JobSchedulerError, JobToRunAsync, PinnedGetFuture,
    SimpleNotificationCode, SimpleNotificationStore, ToCode,
};
use uuid::Uuid;

use super::fold::{Due, fold};
use crate::clock::Clock;
use crate::domain::JobName;
use crate::schedule::Schedule;
use crate::store::Span;

/// Due times are handed out up to this long in advance, because the scheduler looks only every half
/// second.
const LOOKAHEAD: TimeDelta = TimeDelta::milliseconds(1000);

/// Due times that one look at the table claims, at most; the next look claims the rest.
const PER_LOOK: usize = 1000;

/// [`Ticker::take`] takes no further job once this many due times are claimed. This bounds the memory
/// after a long suspend of many jobs.
const PER_TAKE: usize = 100_000;

/// Capacity of each channel of the scheduler. One look sends at most a few messages, about one job.
const CHANNEL: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DueTime {
    pub(super) job: JobName,
    pub(super) due_at: DateTime<Utc>,
    /// The due times that follow and are too late to run, like this one.
    pub(super) span: Option<Span>,
}

#[derive(Debug, Default)]
struct Table {
    /// A look later than this claims nothing, because the clock may be wrong; `None` if no time was
    /// set.
    trusted_until: Option<DateTime<Utc>>,
    /// The next due time of each job.
    due: BTreeSet<(DateTime<Utc>, JobName)>,
    schedules: BTreeMap<JobName, Schedule>,
    /// Claimed due times that the supervisor has not taken yet.
    due_times: Vec<DueTime>,
    closed: bool,
}

impl Table {
    /// Claims all due times up to `horizon` of the job that comes due first. Returns false if no job is
    /// due.
    ///
    /// The disposition of a due time depends on the later due times of its job, so the supervisor must
    /// get all of them together.
    fn claim_job(&mut self, horizon: DateTime<Utc>) -> bool {
        let Some((due_at, job)) = self.due.first().filter(|(at, _)| *at <= horizon).cloned() else {
            return false;
        };
        self.claim_all_of(&job, due_at, horizon);
        true
    }

    fn claim_all_of(&mut self, job: &JobName, first: DateTime<Utc>, horizon: DateTime<Utc>) {
        self.due.remove(&(first, job.clone()));
        let mut next = Some(first);
        while let Some(due_at) = next.filter(|at| *at <= horizon) {
            self.due_times.push(DueTime { job: job.clone(), due_at, span: None });
            next = self.schedules.get(job).and_then(|schedule| schedule.next_after(due_at));
        }
        self.due.extend(next.map(|at| (at, job.clone())));
    }

    /// Claims the due times of each job that are too late to run, as one span if they are many.
    /// `too_late` returns the time up to which those of a job are. Claims those in `repeats` one by one.
    fn fold(
        &mut self,
        now: DateTime<Utc>,
        repeats: &[(DateTime<Utc>, DateTime<Utc>)],
        too_late: impl Fn(&JobName) -> Option<DateTime<Utc>>,
    ) {
        if self.closed {
            return;
        }
        for (begin, end) in repeats {
            self.fold_until(*begin, &too_late);
            while self.claim_job(now.min(*end)) {}
        }
        self.fold_until(now, &too_late);
    }

    /// Does what [`Self::fold`] does up to `limit`, where no due time is a repeated one.
    fn fold_until(
        &mut self,
        limit: DateTime<Utc>,
        too_late: &impl Fn(&JobName) -> Option<DateTime<Utc>>,
    ) {
        let due: Vec<(DateTime<Utc>, JobName)> =
            self.due.iter().take_while(|(at, _)| *at < limit).cloned().collect();
        for (first, job) in due {
            let Some(schedule) = self.schedules.get(&job) else { continue };
            let before = first - TimeDelta::milliseconds(1);
            let folded = too_late(&job).and_then(|until| fold(schedule, before, until.min(limit)));
            let Some(Due { due_at, span: Some(span) }) = folded else { continue };
            let next = schedule.next_after(span.until).map(|at| (at, job.clone()));
            self.due.remove(&(first, job.clone()));
            self.due.extend(next);
            self.due_times.push(DueTime { job, due_at, span: Some(span) });
        }
    }

    /// Claims the remaining due times of each job of which a look has claimed only some.
    fn claim_rest(&mut self, horizon: DateTime<Utc>) {
        let begun: BTreeSet<&JobName> = self.due_times.iter().map(|due| &due.job).collect();
        let due = self.due.iter().take_while(|(at, _)| *at <= horizon);
        let rest = due.filter(|(_, job)| begun.contains(job));
        let rest: Vec<(DateTime<Utc>, JobName)> = rest.cloned().collect();
        for (first, job) in rest {
            self.claim_all_of(&job, first, horizon);
        }
    }

    /// Claims the entries that are due by `horizon`, at most [`PER_LOOK`]; returns them.
    fn claim(&mut self, horizon: DateTime<Utc>) -> Vec<DueTime> {
        let mut claimed = Vec::new();
        while claimed.len() < PER_LOOK
            && !self.closed
            && self.due.first().is_some_and(|(at, _)| *at <= horizon)
        {
            let Some((due_at, job)) = self.due.pop_first() else { break };
            // Compute the next due time from this one, not from the clock, so that a late look
            // skips none.
            if let Some(next) =
                self.schedules.get(&job).and_then(|schedule| schedule.next_after(due_at))
            {
                self.due.insert((next, job.clone()));
            }
            claimed.push(DueTime { job, due_at, span: None });
        }
        self.due_times.extend(claimed.iter().cloned());
        claimed
    }
}

/// The table, as the storage of the scheduler.
#[derive(Clone)]
struct Store {
    table: Arc<Mutex<Table>>,
    clock: Arc<dyn Clock>,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic elsewhere must not stop all schedules, so use a poisoned lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the supervisor and hands out due times.
pub(super) struct Ticker {
    store: Store,
    woken: Arc<Notify>,
    scheduler: JobScheduler,
}

impl Ticker {
    /// Starts the scheduler with an empty table.
    ///
    /// *Errors*: the scheduler does not start.
    pub(super) async fn start(clock: Arc<dyn Clock>) -> Result<Self, JobSchedulerError> {
        let store = Store { table: Arc::default(), clock };
        let woken = Arc::new(Notify::new());
        let wake = woken.clone();
        let run: Box<JobToRunAsync> = Box::new(move |_, _| {
            wake.notify_one();
            Box::pin(ready(()))
        });
        let scheduler = JobScheduler::new_with_storage_and_code(
            Box::new(store.clone()),
            Box::new(SimpleNotificationStore::default()),
            Box::new(Code(Arc::new(RwLock::new(run)))),
            Box::new(SimpleNotificationCode::default()),
            CHANNEL,
        )
        .await?;
        scheduler.start().await?;
        Ok(Self { store, woken, scheduler })
    }

    /// Replaces the whole table. Each schedule starts with its first due time after `from`.
    pub(super) fn set(&self, schedules: BTreeMap<JobName, Schedule>, from: DateTime<Utc>) {
        let due = schedules
            .iter()
            .filter_map(|(job, schedule)| Some((schedule.next_after(from)?, job.clone())))
            .collect();
        let mut table = self.store.lock();
        table.due = due;
        table.schedules = schedules;
        table.due_times.clear();
    }

    /// Claims as spans the due times that are too late to run ([`Table::fold`]), after a suspend or a
    /// step of the clock.
    pub(super) fn fold(
        &self,
        now: DateTime<Utc>,
        repeats: &[(DateTime<Utc>, DateTime<Utc>)],
        too_late: impl Fn(&JobName) -> Option<DateTime<Utc>>,
    ) {
        self.store.lock().fold(now, repeats, too_late);
    }

    /// Makes the scheduler claim nothing while the clock shows a time later than `until`.
    pub(super) fn trust(&self, until: DateTime<Utc>) {
        self.store.lock().trusted_until = Some(until);
    }

    /// Waits until something may be due.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    /// Takes the due times up to a second after `now`, all those of a job together. Once [`PER_TAKE`]
    /// are claimed, a later call returns those of the other jobs.
    pub(super) fn take(&self, now: DateTime<Utc>) -> Vec<DueTime> {
        let mut table = self.store.lock();
        let horizon = now + LOOKAHEAD;
        if !table.closed {
            table.claim_rest(horizon);
            while table.due_times.len() < PER_TAKE && table.claim_job(horizon) {}
        }
        if table.due_times.len() >= PER_TAKE {
            // More may be due. Wake the supervisor again, after it has processed these.
            self.woken.notify_one();
        }
        std::mem::take(&mut table.due_times)
    }

    /// Stops the scheduler; no due time is claimed afterwards.
    pub(super) async fn stop(&mut self) {
        self.store.lock().closed = true;
        let _ = self.scheduler.shutdown().await;
    }
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, JobSchedulerError>> + Send>>;

fn answer<T: Send + 'static>(value: T) -> Answer<T> {
    Box::pin(ready(Ok(value)))
}

impl InitStore for Store {
    fn init(&mut self) -> Answer<()> {
        answer(())
    }
    fn inited(&mut self) -> Answer<bool> {
        answer(true)
    }
}

impl DataStore<JobStoredData> for Store {
    fn get(&mut self, id: Uuid) -> Answer<Option<JobStoredData>> {
        answer(Some(JobStoredData {
            id: Some(id.into()),
            last_updated: None,
            last_tick: None,
            next_tick: 1,
            job_type: JobType::OneShot as i32,
            count: 0,
            extra: Vec::new(),
            ran: false,
            stopped: false,
            job: None,
            time_offset_seconds: 0,
        }))
    }
    fn add_or_update(&mut self, _: JobStoredData) -> Answer<()> {
        answer(())
    }
    fn delete(&mut self, _: Uuid) -> Answer<()> {
        answer(())
    }
}

impl MetaDataStorage for Store {
    fn list_next_ticks(&mut self) -> Answer<Vec<JobAndNextTick>> {
        let now = self.clock.now();
        let mut table = self.lock();
        let claimed = if table.trusted_until.is_none_or(|until| now <= until) {
            table.claim(now + LOOKAHEAD)
        } else {
            Vec::new()
        };
        drop(table);
        // One entry is enough: it only wakes the supervisor, which takes everything that is due.
        answer(
            claimed
                .first()
                .into_iter()
                .map(|due| JobAndNextTick {
                    id: Some(occurrence_id(due).into()),
                    job_type: JobType::OneShot as i32,
                    // Any past moment means "now", whatever the scheduler's clock says.
                    next_tick: 1,
                    last_tick: None,
                })
                .collect(),
        )
    }
    fn set_next_and_last_tick(
        &mut self,
        _: Uuid,
        _: Option<DateTime<Utc>>,
        _: Option<DateTime<Utc>>,
    ) -> Answer<()> {
        answer(())
    }
    fn time_till_next_job(&mut self) -> Answer<Option<Duration>> {
        answer(None)
    }
}

/// Returns a distinct id for each due time; the scheduler cannot tell apart two with the same id.
fn occurrence_id(due: &DueTime) -> Uuid {
    Uuid::new_v5(
        &Uuid::NAMESPACE_OID,
        format!("{}@{}", due.job, due.due_at.timestamp_millis()).as_bytes(),
    )
}

/// Gives the scheduler the same closure for every id.
struct Code(Arc<RwLock<Box<JobToRunAsync>>>);

impl ToCode<Box<JobToRunAsync>> for Code {
    fn init(&mut self, _: &Context) -> Answer<()> {
        answer(())
    }
    fn get(&mut self, _: Uuid) -> PinnedGetFuture<Box<JobToRunAsync>> {
        answer(Some(self.0.clone()))
    }
}

impl JobCode for Code {}

#[cfg(test)]
mod tests {
    use chrono_tz::Tz;
    use futures_util::FutureExt as _;

    use super::*;
    use crate::clock::SystemClock;

    fn every_second(count: usize) -> BTreeMap<JobName, Schedule> {
        let schedule = Schedule::every(Duration::from_secs(1), Tz::UTC).unwrap();
        (0..count)
            .map(|n| (JobName::parse(&format!("job-{n}")).unwrap(), schedule.clone()))
            .collect()
    }

    // proves CRON-6
    #[tokio::test(flavor = "multi_thread")]
    async fn a_burst_larger_than_every_channel_loses_nothing() {
        let ticker = Ticker::start(Arc::new(SystemClock)).await.unwrap();
        let from = DateTime::from_timestamp(SystemClock.now().timestamp() - 1, 0).unwrap();
        ticker.set(every_second(10_000), from);
        ticker.woken().await;
        let due_times = ticker.take(SystemClock.now());
        let first: BTreeSet<_> = due_times
            .iter()
            .filter(|due| due.due_at == from + TimeDelta::seconds(1))
            .map(|due| due.job.clone())
            .collect();
        assert_eq!(first.len(), 10_000);
        let unique: BTreeSet<_> =
            due_times.iter().map(|due| (due.due_at, due.job.clone())).collect();
        assert_eq!(unique.len(), due_times.len(), "no due time comes twice");
    }

    #[tokio::test]
    async fn a_long_sleep_yields_every_due_time_once() {
        let ticker = Ticker::start(Arc::new(SystemClock)).await.unwrap();
        let now = SystemClock.now();
        ticker.set(every_second(1), now - TimeDelta::seconds(5000));
        let due_times = ticker.take(now);
        assert!((5000..=5002).contains(&due_times.len()), "{}", due_times.len());
        assert!(
            due_times
                .windows(2)
                .all(|pair| pair[1].due_at - pair[0].due_at == TimeDelta::seconds(1))
        );
    }

    #[tokio::test]
    async fn the_due_times_of_a_job_are_taken_together() {
        let ticker = Ticker::start(Arc::new(SystemClock)).await.unwrap();
        let now = SystemClock.now();
        let each = PER_TAKE / 2 + 10;
        ticker.set(every_second(3), now - TimeDelta::seconds(i64::try_from(each).unwrap()));
        // A look of the scheduler claims some of each job.
        assert_eq!(ticker.store.lock().claim(now).len(), PER_LOOK);
        let mut jobs = BTreeMap::new();
        for take in 0..3 {
            for due in ticker.take(now) {
                let (first, count) = jobs.entry(due.job).or_insert((take, 0));
                assert_eq!(*first, take, "a job is split");
                *count += 1;
            }
        }
        assert!(jobs.len() == 3 && jobs.values().all(|(_, count)| *count >= each), "{jobs:?}");
    }

    #[tokio::test]
    async fn a_take_that_leaves_due_times_wakes_the_supervisor_again() {
        let mut ticker = Ticker::start(Arc::new(SystemClock)).await.unwrap();
        // From here on, only `take` wakes.
        ticker.scheduler.shutdown().await.unwrap();
        let _ = ticker.woken().now_or_never();
        let now = SystemClock.now();
        let slept = i64::try_from(PER_TAKE + PER_LOOK).unwrap();
        ticker.set(every_second(1), now - TimeDelta::seconds(slept));
        let first = ticker.take(now);
        assert!(first.len() >= PER_TAKE);
        assert!(ticker.woken().now_or_never().is_some());
        let rest = ticker.take(now);
        assert!(ticker.woken().now_or_never().is_none());
        assert!((slept..=slept + 2).contains(&((first.len() + rest.len()) as i64)));
    }
}
