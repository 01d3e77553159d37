mod oracle;
mod years;

use std::sync::Mutex;

use super::carry_out::new_run_id;
use super::*;
use crate::clock::Clock;
use crate::config::{Environment, FileSet, SecretsMode, Trust, load};
use crate::daemon::book::{Change, Entry, Phase, Waiting};
use crate::daemon::command::{BackfillRequest, BackfillScope, CommandError, PauseRequest};
use crate::daemon::recovery::{RecordedEnd, Recovered, Recovery};
use crate::daemon::rules::{self, WaitsFor};
use crate::daemon::tests::config_in;
use crate::domain::{Epoch, JobName, Origin, Outcome, RunId, RunRequest, StopReason, Trigger};
use crate::run::Ended;
use crate::sinks::Observers;
use crate::store::{GivenUp, RunSummary, SharedLedger, SlotRow, SlotState, StateDir};

/// A clock that a test sets.
#[derive(Debug)]
struct SetClock(Mutex<DateTime<Utc>>);

impl Clock for SetClock {
    fn now(&self) -> DateTime<Utc> {
        *self.0.lock().unwrap()
    }
}

fn at(text: &str) -> DateTime<Utc> {
    DateTime::parse_from_rfc3339(text).unwrap().to_utc()
}

struct Bench {
    clock: Arc<SetClock>,
    supervisor: Supervisor,
    temp: Arc<tempfile::TempDir>,
}

async fn bench(jobs: &str, now: &str, temp: Arc<tempfile::TempDir>) -> Bench {
    let clock = Arc::new(SetClock(Mutex::new(at(now))));
    let config = config_in(temp.path(), jobs);
    let state = temp.path().join("state");
    let state_dir = StateDir::new(&state);
    state_dir.create().unwrap();
    let mut host = Host::new(
        state_dir,
        clock.clone(),
        Environment::default(),
        Observers::default(),
        Default::default(),
    );
    let ledger = Ledger::open(&state, None).unwrap().0;
    host.ledger = SharedLedger::opened(&state, ledger.clone());
    let parts = Parts {
        host,
        config,
        ledger,
        reload: Box::new(|| Loaded { config: None, report: Default::default() }),
        recovered: RecoveredState::default(),
        watchdog: None,
    };
    Bench { clock, supervisor: Supervisor::new(parts).await.unwrap().0, temp }
}

impl Bench {
    /// Claims what is due, then drains the queue as if each run had ended.
    async fn goes(&mut self, now: &str) {
        self.claims(now).await;
        let now = at(now);
        while let Some(waiting) = self.supervisor.book.start_oldest() {
            self.supervisor.book.forget(&waiting.run_id);
            let ledger = &self.supervisor.parts.ledger;
            ledger.decide(waiting.run_id, SlotState::Ran, "ran".into(), now).await.unwrap();
        }
    }

    /// Sets the clock and claims what is due; the runs stay in the queue.
    async fn claims(&mut self, now: &str) {
        *self.clock.0.lock().unwrap() = at(now);
        let now = at(now);
        self.supervisor.look_at_clock(now).await.unwrap();
        self.supervisor.take_due(now);
        self.supervisor.begin_due(Cause::MachineHeldUp, now).await;
        self.supervisor.end_pauses(now).await;
    }

    /// Reloads the configuration, and waits until it is in effect.
    async fn reloads(&mut self, config: Config) {
        self.supervisor.reloads.reads(config);
        let (reply, state) = tokio::sync::oneshot::channel();
        self.supervisor.on_command(Command::Reload(reply)).await;
        let loaded = self.supervisor.reloads.load.join_next().await.unwrap();
        self.supervisor.finish_reload(loaded).await;
        let state = state.await.unwrap();
        assert!(state.valid, "{:?}", state.errors);
    }

    /// Reloads while `max_concurrent_runs` runs are active, so that the reload does not start a queued
    /// run.
    async fn reloads_at_capacity(&mut self, config: Config) {
        let most = self.supervisor.config.borrow().settings.max_concurrent_runs;
        let others: Vec<RunId> = (0..most).map(|_| new_run_id()).collect();
        for run_id in &others {
            self.supervisor.book.add_active(run_id.clone(), "other");
        }
        self.reloads(config).await;
        others.iter().for_each(|run_id| self.supervisor.book.forget(run_id));
    }

    /// Returns the attempts that wait for their time, and when each begins.
    fn attempts(&self) -> Vec<(DateTime<Utc>, RunId)> {
        let delayed = self.supervisor.book.of_kind(Kind::Delayed);
        let attempt = |(run_id, run): (&RunId, &Entry)| match run.phase {
            Phase::Delayed { begins_at, .. } => (begins_at, run_id.clone()),
            _ => panic!("{run:?}"),
        };
        delayed.map(attempt).collect()
    }

    /// Ends a run as failed before it changed anything.
    async fn fails(&mut self, run: &Waiting, ended_at: DateTime<Utc>) {
        let (outcome, stop_reason) = (Outcome::Failed, StopReason::MaxIterations);
        let (repeatable, ended_at) = (Some(run.origin.clone()), Some(ended_at));
        let reason = "failed".to_owned();
        let end = RecordedEnd { outcome, stop_reason, reason, ended_at, repeatable };
        let (run_id, job, next) = (run.run_id.clone(), run.job.clone(), new_run_id());
        self.supervisor.act(Input::FoundEnded { run_id, job, end, next }).await;
    }

    /// Records the end of a run that is not repeated.
    async fn ends(&mut self, run_id: RunId, job: &str, outcome: Outcome, stop_reason: StopReason) {
        let (ended_at, repeatable) = (None, None);
        let reason = format!("{outcome} ({stop_reason})");
        let end = RecordedEnd { outcome, stop_reason, reason, ended_at, repeatable };
        let (job, next) = (name(job), new_run_id());
        self.supervisor.act(Input::FoundEnded { run_id, job, end, next }).await;
    }

    /// Makes every run stay in the queue.
    fn starts_nothing(&mut self) {
        let mut config = (*self.supervisor.parts.config).clone();
        config.settings.max_concurrent_runs = 0;
        self.supervisor.config.send_replace(Arc::new(config));
    }

    async fn slots(&self) -> Vec<(i64, String, String)> {
        let rows = self
            .supervisor
            .parts
            .ledger
            .read(|reader| reader.slots(None, None, None))
            .await
            .unwrap();
        rows.into_iter()
            .map(|row| {
                (
                    row.epoch.number(),
                    row.due_at.format("%d %H:%M").to_string(),
                    row.state.as_str().to_owned(),
                )
            })
            .collect()
    }

    async fn is_sound(&self) -> bool {
        let now = *self.clock.0.lock().unwrap();
        // The longest jitter of any job in these tests.
        let jitter = |_: &str| Duration::from_mins(30);
        let report = self
            .supervisor
            .parts
            .ledger
            .read(move |reader| crate::daemon::audit(reader, None, jitter, now))
            .await
            .unwrap();
        assert!(report.ok, "{report:?}");
        report.ok
    }
}

fn expected(rows: &[(i64, &str, &str)]) -> Vec<(i64, String, String)> {
    rows.iter()
        .map(|(epoch, due, state)| (*epoch, (*due).to_owned(), (*state).to_owned()))
        .collect()
}

const DAILY: &str = "version: 1\njobs: [{name: daily, schedule: '0 12 * * *', prompt: x}]\n";
const HOURLY: &str = "version: 1\njobs: [{name: hourly, schedule: '0 * * * *', prompt: x}]\n";

fn name(job: &str) -> JobName {
    JobName::parse(job).unwrap()
}

fn temp() -> Arc<tempfile::TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

// proves CRON-3
#[tokio::test]
async fn a_time_of_day_does_not_come_twice_when_the_clock_is_set_back_a_little() {
    let mut bench = bench(DAILY, "2026-05-04T11:00:00Z", temp()).await;
    bench.goes("2026-05-04T12:00:00Z").await;
    bench.goes("2026-05-04T12:30:00Z").await;
    bench.goes("2026-05-04T11:30:00Z").await;
    bench.goes("2026-05-04T12:00:00Z").await;
    bench.goes("2026-05-05T12:00:00Z").await;
    assert_eq!(
        bench.slots().await,
        expected(&[(0, "04 12:00", "ran"), (1, "04 12:00", "skipped"), (1, "05 12:00", "ran")])
    );
    assert!(bench.is_sound().await);
}

#[tokio::test]
async fn a_correction_of_the_clock_counts_and_intervals_go_on_at_once() {
    let mut daily = bench(DAILY, "2026-05-09T11:00:00Z", temp()).await;
    for now in [
        "2026-05-09T12:00:00Z",
        "2026-05-09T18:00:00Z",
        "2026-05-09T09:00:00Z",
        "2026-05-09T12:00:00Z",
    ] {
        daily.goes(now).await;
    }
    assert_eq!(daily.slots().await, expected(&[(0, "09 12:00", "ran"), (1, "09 12:00", "ran")]));
    assert!(daily.is_sound().await);

    let mut hourly = bench(HOURLY, "2026-05-04T09:30:00Z", temp()).await;
    for now in [
        "2026-05-04T10:00:00Z",
        "2026-05-04T10:30:00Z",
        "2026-05-04T09:30:00Z",
        "2026-05-04T10:00:00Z",
    ] {
        hourly.goes(now).await;
    }
    assert_eq!(hourly.slots().await, expected(&[(0, "04 10:00", "ran"), (1, "04 10:00", "ran")]));
    assert!(hourly.is_sound().await);
}

#[tokio::test]
async fn a_jump_forward_is_made_up_for_once() {
    let mut bench = bench(HOURLY, "2026-05-04T00:30:00Z", temp()).await;
    bench.goes("2026-05-04T05:30:00Z").await;
    assert_eq!(
        bench.slots().await,
        expected(&[
            (0, "04 01:00", "missed"),
            (0, "04 02:00", "missed"),
            (0, "04 03:00", "missed"),
            (0, "04 04:00", "missed"),
            (0, "04 05:00", "ran")
        ])
    );
    assert!(bench.is_sound().await);
}

// proves CRON-4
#[tokio::test]
async fn downtime_is_accounted_for_at_the_next_start() {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T00:30:00Z", temp.clone()).await;
    first.goes("2026-05-04T01:00:00Z").await;
    drop(first);
    let second = bench(HOURLY, "2026-05-04T04:10:00Z", temp.clone()).await;
    let queued = |bench: &Bench| -> Vec<(Trigger, Option<DateTime<Utc>>, RunId)> {
        let facts = |run: &Waiting| (run.origin.trigger, run.origin.due_at(), run.run_id.clone());
        bench.supervisor.book.waiting().iter().map(facts).collect()
    };
    let four = queued(&second);
    let [(Trigger::Catchup, Some(due_at), _)] = four.as_slice() else { panic!("{four:?}") };
    assert_eq!(*due_at, at("2026-05-04T04:00:00Z"));
    let states =
        async |bench: &Bench| bench.slots().await.into_iter().map(|row| row.2).collect::<Vec<_>>();
    assert_eq!(states(&second).await, ["ran", "missed", "missed", "queued"]);
    assert!(second.is_sound().await);
    drop(second);
    // The daemon dies before the queued run starts: the run starts later, under the same id.
    let third = bench(HOURLY, "2026-05-04T04:20:00Z", temp.clone()).await;
    assert_eq!(queued(&third), four);
    assert_eq!(states(&third).await, ["ran", "missed", "missed", "queued"]);
    assert!(third.is_sound().await);
    drop(third);
    // The run of a newer slot covers it.
    let fourth = bench(HOURLY, "2026-05-04T05:00:00Z", temp.clone()).await;
    let five = queued(&fourth);
    let [(Trigger::Schedule, Some(due_at), _)] = five.as_slice() else { panic!("{five:?}") };
    assert_eq!(*due_at, at("2026-05-04T05:00:00Z"));
    assert_eq!(states(&fourth).await, ["ran", "missed", "missed", "coalesced", "queued"]);
    drop(fourth);
    // The slot of 05:00 is too old now.
    let fifth = bench(HOURLY, "2026-05-04T06:30:00Z", temp.clone()).await;
    assert_eq!(states(&fifth).await, ["ran", "missed", "missed", "missed", "missed", "queued"]);
    drop(fifth);
    // The schedule of the waiting slot is gone.
    let sixth = bench(DAILY, "2026-05-04T06:40:00Z", temp).await;
    assert_eq!(states(&sixth).await.last().map(String::as_str), Some("superseded"));
    assert!(sixth.supervisor.book.count(Kind::Queued) == 0 && sixth.is_sound().await);
    assert!(sixth.temp.path().exists());
}

#[tokio::test]
async fn a_backfill_keeps_its_person_over_a_restart() {
    let temp = temp();
    let mut first = bench(DAILY, "2026-05-04T11:00:00Z", temp.clone()).await;
    first.starts_nothing();
    let by = Some(crate::domain::Person { uid: 7, user: "ann".to_owned() });
    let (from, to) = (at("2026-05-01T12:00:00Z"), at("2026-05-02T12:00:00Z"));
    let (job, scope) = ("daily".to_owned(), BackfillScope::WithoutSlot);
    let request = BackfillRequest { job, scope, from, to, by: by.clone() };
    assert_eq!(first.supervisor.backfill(request).await, Ok(2));
    drop(first);
    let second = bench(DAILY, "2026-05-04T11:01:00Z", temp).await;
    let people: Vec<_> =
        second.supervisor.book.waiting().iter().map(|run| run.origin.by.clone()).collect();
    assert_eq!(people, [by.clone(), by]);
}

// proves CRON-5
#[tokio::test]
async fn overlap_decides_which_slots_wait() {
    const JOBS: &str = "version: 1
jobs:
  - {name: skip, schedule: '* * * * *', prompt: x}
  - {name: one, schedule: '* * * * *', overlap: buffer_one, prompt: x}
  - {name: all, schedule: '* * * * *', overlap: buffer_all, prompt: x}
  - {name: cancel, schedule: '* * * * *', overlap: cancel_other, prompt: x}
  - {name: allow, schedule: '* * * * *', overlap: allow_all, prompt: x}
";
    let mut bench = bench(JOBS, "2026-05-04T00:00:30Z", temp()).await;
    let mut cancelled = Vec::new();
    for minute in 1..=4 {
        let now = format!("2026-05-04T00:0{minute}:00Z");
        bench.claims(&now).await;
        let supervisor = &mut bench.supervisor;
        while let Some(run) = supervisor.book.start_oldest() {
            supervisor.keep(Change::Running(run.run_id.clone())).await;
            assert!(supervisor.outbox.is_empty());
            if run.job.as_str() == "cancel" {
                cancelled.push(run.run_id);
            }
        }
    }
    let states = async |bench: &Bench, job: &'static str| {
        let ledger = &bench.supervisor.parts.ledger;
        let rows = ledger.read(move |reader| reader.slots(Some(job), None, None)).await.unwrap();
        rows.into_iter().map(|row| row.state.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(states(&bench, "skip").await, ["running", "skipped", "skipped", "skipped"]);
    assert_eq!(states(&bench, "one").await, ["running", "queued", "skipped", "skipped"]);
    assert_eq!(states(&bench, "all").await, ["running", "queued", "queued", "queued"]);
    assert_eq!(states(&bench, "cancel").await, ["running", "skipped", "skipped", "queued"]);
    assert_eq!(states(&bench, "allow").await, ["running", "running", "running", "running"]);
    let is_cancelled = |run_id: &RunId| {
        let stop = bench.supervisor.book.get(run_id).unwrap().stop.as_ref();
        stop.is_some_and(|stop| stop.reason == StopReason::Cancelled)
    };
    assert!(cancelled.len() == 1 && cancelled.iter().all(is_cancelled), "the first run only");
    // The waiting runs start one after another.
    let supervisor = &mut bench.supervisor;
    let mut started = Vec::new();
    for job in ["all", "all", "cancel", "one"] {
        supervisor.book.end_oldest(job, false);
        let run = supervisor.book.start_oldest().unwrap();
        assert!(supervisor.book.start_oldest().is_none());
        started.push((run.job.to_string(), run.origin.due_at().unwrap().format("%M").to_string()));
    }
    let expected = [("all", "02"), ("all", "03"), ("cancel", "04"), ("one", "02")];
    assert_eq!(started, expected.map(|(job, minute)| (job.to_owned(), minute.to_owned())));
    assert!(bench.is_sound().await);
}

/// Starts the run of a slot, writes `transcript` for it, and returns the row of the slot after the
/// next start of the daemon, with the id of the run.
async fn after_a_crash(transcript: Option<&str>) -> (SlotRow, RunId) {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T00:30:00Z", temp.clone()).await;
    first.claims("2026-05-04T01:00:00Z").await;
    let run = first.supervisor.book.start_oldest().unwrap();
    let ulid: ulid::Ulid = run.run_id.as_str().parse().unwrap();
    let state = &first.supervisor.parts.host.state;
    let directory = state.create_run(&run.run_id, DateTime::from(ulid.datetime())).unwrap();
    if let Some(text) = transcript {
        std::fs::write(directory.transcript(), text).unwrap();
    }
    drop(first);
    let second = bench(HOURLY, "2026-05-04T01:00:05Z", temp).await;
    let ledger = &second.supervisor.parts.ledger;
    let rows = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    let queued = usize::from(row.state == SlotState::Queued);
    assert_eq!(second.supervisor.book.count(Kind::Queued), queued);
    (row.clone(), run.run_id)
}

#[tokio::test]
async fn a_run_without_a_first_line_gets_another_directory() {
    for transcript in [None, Some(""), Some("{\"torn\": ")] {
        let (row, run_id) = after_a_crash(transcript).await;
        assert_eq!(row.state, SlotState::Queued);
        assert_ne!(row.run_id, Some(run_id.to_string()));
    }
}

#[tokio::test]
async fn a_transcript_that_cannot_be_read_counts_as_a_run() {
    let unknown = "{\"v\":1,\"seq\":0,\"ts\":\"2026-05-04T01:00:00Z\",\"run_id\":\"x\",\"session_id\":\"x\",\"type\":\"new\",\"prev\":\"\"}\n";
    for transcript in ["{\"not\": \"a line\"}\n", unknown] {
        let (row, run_id) = after_a_crash(Some(transcript)).await;
        assert!(row.state == SlotState::Ran && row.reason.contains("cannot be read"), "{row:?}");
        assert_eq!(row.run_id, Some(run_id.to_string()));
    }
}

// proves CRON-3
#[tokio::test]
async fn each_epoch_keeps_its_own_slots() {
    // Its due time comes again in the new epoch while it waits for its jitter.
    const SPREAD: &str =
        "version: 1\njobs: [{name: spread, schedule: '0 * * * *', jitter: 30m, prompt: x}]\n";
    let mut spread = bench(SPREAD, "2026-05-04T11:30:00Z", temp()).await;
    spread.goes("2026-05-04T12:00:00Z").await;
    assert_eq!(spread.supervisor.due.held.len(), 1, "it waits for its jitter");
    for now in ["09:30", "13:00", "13:31"] {
        spread.goes(&format!("2026-05-04T{now}:00Z")).await;
    }
    assert!(spread.is_sound().await);
    assert_eq!(spread.slots().await.iter().filter(|(_, due, _)| due == "04 12:00").count(), 2);
    // A slot of the earlier epoch waits in the queue when the daemon dies.
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T11:30:00Z", temp.clone()).await;
    first.claims("2026-05-04T12:00:00Z").await;
    first.claims("2026-05-04T09:30:00Z").await;
    drop(first);
    let mut second = bench(HOURLY, "2026-05-04T09:35:00Z", temp.clone()).await;
    assert_eq!(second.supervisor.book.count(Kind::Queued), 1);
    second.goes("2026-05-04T10:00:00Z").await;
    assert!(second.is_sound().await);
    drop(second);
    let third = bench(HOURLY, "2026-05-04T11:30:00Z", temp).await;
    assert!(third.is_sound().await);
}

// proves CRON-3
#[tokio::test]
async fn a_held_time_of_day_runs_once_when_the_clock_is_set_back() {
    const SPREAD: &str =
        "version: 1\njobs: [{name: spread, schedule: '0 12 * * *', jitter: 30m, prompt: x}]\n";
    let mut bench = bench(SPREAD, "2026-05-04T11:30:00Z", temp()).await;
    for now in ["12:00", "11:50", "12:00", "12:31"] {
        bench.goes(&format!("2026-05-04T{now}:00Z")).await;
    }
    let states = [(0, "04 12:00", "ran"), (1, "04 12:00", "skipped")];
    assert_eq!(bench.slots().await, expected(&states));
}

// proves CRON-4
#[tokio::test]
async fn caught_up_slots_run_one_after_another_beside_others() {
    const ALL: &str = "version: 1
jobs: [{name: busy, schedule: '* * * * *', overlap: allow_all, catchup: all, prompt: x}]
";
    let temp = temp();
    drop(bench(ALL, "2026-05-04T00:00:30Z", temp.clone()).await);
    let mut bench = bench(ALL, "2026-05-04T00:04:30Z", temp).await;
    let mut minutes = Vec::new();
    let mut start = |bench: &mut Bench| {
        while let Some(run) = bench.supervisor.book.start_oldest() {
            let minute = run.origin.due_at().unwrap().format("%M").to_string();
            minutes.push((minute, run.ignores_overlap));
        }
    };
    start(&mut bench);
    bench.claims("2026-05-04T00:05:00Z").await;
    start(&mut bench);
    // The slot of 00:05 is still active when the first of the caught-up runs ends.
    bench.supervisor.book.end_oldest("busy", true);
    start(&mut bench);
    let started = [("01", true), ("05", false), ("02", true)];
    assert_eq!(minutes, started.map(|(minute, caught_up)| (minute.to_owned(), caught_up)));
}

// proves CRON-1
#[tokio::test]
async fn a_restart_respects_jitter_and_decides_no_slot_twice() {
    // At 12:07, the slot of 12:05 has run and the slot of 12:00 is still held for its jitter.
    const SPREAD: &str =
        "version: 1\njobs: [{name: NAME, schedule: '*/5 * * * *', jitter: 10m, prompt: x}]\n";
    let name = (0..1000).map(|n| format!("j{n}")).find(|name| {
        let starts = |due: &str| {
            let due_at = at(due);
            due_at + crate::schedule::jitter(name, due_at, Duration::from_mins(10))
        };
        starts("2026-05-04T12:00:00Z") > at("2026-05-04T12:08:00Z")
            && starts("2026-05-04T12:05:00Z") < at("2026-05-04T12:07:00Z")
    });
    let jobs = SPREAD.replace("NAME", &name.unwrap());
    let temp = temp();
    let mut first = bench(&jobs, "2026-05-04T11:59:00Z", temp.clone()).await;
    first.goes("2026-05-04T12:07:00Z").await;
    assert_eq!(first.slots().await, expected(&[(0, "04 12:05", "ran")]));
    drop(first);
    let mut second = bench(&jobs, "2026-05-04T12:07:30Z", temp).await;
    assert_eq!(second.slots().await, expected(&[(0, "04 12:05", "ran")]), "the other still waits");
    second.goes("2026-05-04T12:10:00Z").await;
    second.goes("2026-05-04T12:10:01Z").await;
    let both: Vec<_> = second.slots().await.into_iter().take(2).collect();
    assert_eq!(both, expected(&[(0, "04 12:00", "ran"), (0, "04 12:05", "ran")]));
    assert!(second.is_sound().await);
}

// proves CRON-3
#[tokio::test]
async fn a_held_slot_of_an_earlier_epoch_is_missed_if_the_daemon_stops() {
    const SPREAD: &str =
        "version: 1\njobs: [{name: spread, schedule: '0 * * * *', jitter: 30m, prompt: x}]\n";
    let temp = temp();
    let mut first = bench(SPREAD, "2026-05-04T11:30:00Z", temp.clone()).await;
    first.goes("2026-05-04T12:00:00Z").await;
    first.goes("2026-05-04T09:30:00Z").await;
    assert_eq!(first.supervisor.due.held.len(), 1, "it waits for its jitter");
    drop(first);
    let second = bench(SPREAD, "2026-05-04T09:40:00Z", temp).await;
    assert_eq!(second.slots().await, expected(&[(0, "04 12:00", "missed")]));
    assert!(second.is_sound().await);
}

#[tokio::test]
async fn a_reload_supersedes_the_slots_that_wait() {
    let jobs = |schedule: &str, overlap: &str| {
        format!(
            "version: 1\njobs: [{{name: j, schedule: '{schedule}', overlap: {overlap}, prompt: x}}]\n"
        )
    };
    let mut bench = bench(&jobs("* * * * *", "buffer_all"), "2026-05-04T00:00:30Z", temp()).await;
    bench.claims("2026-05-04T00:01:00Z").await;
    let running = bench.supervisor.book.start_oldest().unwrap();
    bench.claims("2026-05-04T00:02:00Z").await;
    bench.claims("2026-05-04T00:03:00Z").await;
    assert!(bench.supervisor.book.start_oldest().is_none(), "they wait for the first run");
    let reload = async |bench: &mut Bench, jobs: String| {
        std::fs::write(bench.temp.path().join("jobs.yaml"), jobs).unwrap();
        let set = FileSet::of_directory(bench.temp.path()).unwrap();
        let now = bench.clock.now();
        let (trust, secrets) = (Trust::Given, SecretsMode::Resolve);
        let config = load(&set, &Environment::default(), trust, secrets, 0, now).config.unwrap();
        bench.reloads_at_capacity(config).await;
    };
    reload(&mut bench, jobs("* * * * *", "allow_all")).await;
    let second = bench.supervisor.book.start_oldest().unwrap();
    assert_eq!(second.origin.due_at(), Some(at("2026-05-04T00:02:00Z")));
    reload(&mut bench, jobs("30 * * * *", "skip")).await;
    assert_eq!(bench.supervisor.book.count(Kind::Queued), 0);
    let states: Vec<String> = bench.slots().await.into_iter().map(|row| row.2).collect();
    assert_eq!(states, ["queued", "queued", "superseded"]);
    assert!(bench.is_sound().await && running.run_id != second.run_id);
}

// proves CRON-6
#[tokio::test]
async fn many_jobs_that_come_due_at_one_moment_are_all_queued() {
    const COUNT: usize = 10_000;
    let jobs: Vec<String> = (0..COUNT)
        .map(|n| format!("  - {{name: j{n}, schedule: '0 * * * *', prompt: x}}\n"))
        .collect();
    let jobs = format!("version: 1\njobs:\n{}", jobs.concat());
    let mut bench = bench(&jobs, "2026-05-04T00:30:00Z", temp()).await;
    let mut queued = usize::MAX;
    while bench.supervisor.book.count(Kind::Queued) != queued {
        queued = bench.supervisor.book.count(Kind::Queued);
        bench.claims("2026-05-04T01:00:00Z").await;
    }
    assert_eq!(queued, COUNT);
    let slots = bench.slots().await;
    assert!(slots.len() == COUNT && slots.iter().all(|(_, _, state)| state == "queued"));
    while let Some(run) = bench.supervisor.book.start_oldest() {
        bench.supervisor.book.forget(&run.run_id);
    }
    assert_eq!(bench.supervisor.book.count(Kind::Queued), 0);
    assert!(bench.is_sound().await);
}

#[tokio::test]
async fn a_reload_drops_nothing_of_a_job_that_stays_as_it_is() {
    let jobs = "version: 1\njobs:\n  - {name: spread, schedule: '0 12 * * *', jitter: 30m, prompt: x}\n  - {name: gone, schedule: '0 12 * * *', jitter: 30m, prompt: x}\n";
    let mut bench = bench(jobs, "2026-05-04T11:00:00Z", temp()).await;
    bench.goes("2026-05-04T12:00:00Z").await;
    assert_eq!(bench.supervisor.due.held.len(), 2, "both wait for their jitter");
    let mut config = Config::clone(&bench.supervisor.parts.config);
    config.jobs.retain(|name, _| name.as_str() == "spread");
    config.digest = "new".to_owned();
    bench.reloads(config).await;
    bench.goes("2026-05-04T12:31:00Z").await;
    assert_eq!(
        bench.slots().await,
        expected(&[(0, "04 12:00", "superseded"), (0, "04 12:00", "ran")])
    );
    assert!(bench.is_sound().await);
}

// proves CRON-5
#[tokio::test]
async fn a_pause_stops_the_schedule_until_it_ends() {
    const MINUTES: &str =
        "version: 1\njobs: [{name: j, schedule: '* * * * *', overlap: buffer_all, prompt: x}]\n";
    let temp = temp();
    let mut first = bench(MINUTES, "2026-05-04T11:59:30Z", temp.clone()).await;
    first.starts_nothing();
    first.claims("2026-05-04T12:00:00Z").await;
    first.supervisor.pause(request("j", None)).await.unwrap();
    first.claims("2026-05-04T12:01:00Z").await;
    drop(first);
    let mut second = bench(MINUTES, "2026-05-04T12:02:30Z", temp).await;
    assert_eq!(
        second.supervisor.book.count(Kind::Queued),
        1,
        "a slot that waited before the pause still waits"
    );
    second.goes("2026-05-04T12:02:40Z").await;
    assert!(second.supervisor.unpause(Some("j".into())).await.unwrap());
    assert!(!second.supervisor.unpause(Some("j".into())).await.unwrap());
    second.goes("2026-05-04T12:03:00Z").await;
    let states = ["ran", "paused", "paused", "ran"];
    let rows: Vec<_> = second.slots().await.into_iter().map(|row| row.2).collect();
    assert_eq!(rows, states);
    assert!(second.is_sound().await);
    let unknown = second.supervisor.pause(request("nobody", None)).await;
    assert_eq!(unknown, Err(CommandError::NoJob("nobody".into())));
}

fn request(job: &str, until: Option<&str>) -> PauseRequest {
    PauseRequest { job: Some(job.to_owned()), note: Some("disk swap".into()), until: until.map(at) }
}

// proves CRON-5
#[tokio::test]
async fn a_pause_with_an_end_covers_the_slots_before_it_also_over_a_downtime() {
    const MINUTES: &str = "version: 1
jobs:
  - {name: j, schedule: '* * * * *', catchup: all, prompt: x}
  - {name: k, schedule: '*/2 * * * *', catchup: all, prompt: x}
";
    let temp = temp();
    let mut first = bench(MINUTES, "2026-05-04T11:59:30Z", temp.clone()).await;
    first.starts_nothing();
    first.goes("2026-05-04T12:00:00Z").await;
    let past = first.supervisor.pause(request("j", Some("2026-05-04T12:00:00Z"))).await;
    assert!(matches!(past, Err(CommandError::Invalid(_))), "{past:?}");
    first.supervisor.pause(request("j", Some("2026-05-04T12:03:00Z"))).await.unwrap();
    let all = PauseRequest { job: None, note: None, until: Some(at("2026-05-04T12:02:00Z")) };
    first.supervisor.pause(all).await.unwrap();
    assert_eq!(first.supervisor.paused_jobs(), 2);
    first.goes("2026-05-04T12:01:00Z").await;
    drop(first);
    // The daemon is down when both pauses end.
    let mut second = bench(MINUTES, "2026-05-04T12:04:30Z", temp).await;
    second.starts_nothing();
    second.goes("2026-05-04T12:04:40Z").await;
    let ledger = &second.supervisor.parts.ledger;
    let rows = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
    let states = |job: &str| -> Vec<String> {
        let rows = rows.iter().filter(|row| row.job == *job);
        rows.map(|row| format!("{} {}", row.due_at.format("%M"), row.state.as_str())).collect()
    };
    assert_eq!(states("j"), ["00 ran", "01 paused", "02 paused", "03 ran", "04 ran"]);
    assert_eq!(states("k"), ["00 ran", "02 ran", "04 ran"]);
    assert_eq!(second.supervisor.paused_jobs(), 0);
    assert!(second.supervisor.due.pauses.of("j").is_none() && second.is_sound().await);
}

// proves CRON-4
#[tokio::test]
async fn a_waiting_attempt_survives_a_restart_unless_it_is_too_late() {
    const JOBS: &str = "version: 1
jobs: [{name: j, schedule: '0 * * * *', retry: {max_attempts: 3, backoff: 10m}, prompt: x}]
";
    let temp = temp();
    let mut first = bench(JOBS, "2026-05-04T00:30:00Z", temp.clone()).await;
    first.claims("2026-05-04T01:00:00Z").await;
    let run = first.supervisor.book.start_oldest().unwrap();
    let now = at("2026-05-04T01:00:00Z");
    first.fails(&run, now).await;
    let begins_at = |bench: &Bench| -> Vec<String> {
        let attempts = bench.attempts().into_iter();
        attempts.map(|(at, _)| at.format("%H:%M").to_string()).collect()
    };
    assert_eq!(begins_at(&first), ["01:10"]);
    // The clock is set back by 50 minutes: the attempt waits for 10 minutes, not for an hour.
    first.claims("2026-05-04T00:10:00Z").await;
    assert_eq!(begins_at(&first), ["00:20"]);
    drop(first);
    let second = bench(JOBS, "2026-05-04T00:40:00Z", temp.clone()).await;
    assert_eq!(begins_at(&second), ["00:20"]);
    drop(second);
    let third = bench(JOBS, "2026-05-04T04:20:00Z", temp).await;
    assert!(third.attempts().is_empty());
    let slots = third.supervisor.parts.ledger.read(|reader| reader.slots(None, None, None)).await;
    let slot = slots.unwrap().into_iter().find(|slot| slot.epoch == Epoch::FIRST).unwrap();
    let reason = "attempt 2 did not begin: the daemon was down; decided 4h late, outside the catch-up window of 1h";
    assert_eq!((slot.state.as_str(), slot.reason.as_str()), ("missed", reason));
}

#[tokio::test]
async fn consecutive_failures_pause_a_job() {
    const LIMITED: &str = "version: 1\njobs: [{name: j, pause_after_failures: 2, prompt: x}]\n";
    let temp = temp();
    let mut first = bench(LIMITED, "2026-05-04T12:00:00Z", temp.clone()).await;
    let ended = async |bench: &mut Bench, outcome, stop_reason| {
        let run_id = RunId::from_ulid(ulid::Ulid::generate());
        bench.ends(run_id, "j", outcome, stop_reason).await;
        bench.supervisor.due.pauses.of("j").is_some()
    };
    use crate::domain::Outcome::{Failed, Interrupted, Succeeded};
    let failed = StopReason::MaxIterations;
    assert!(!ended(&mut first, Failed, failed).await);
    assert!(!ended(&mut first, Succeeded, StopReason::Completed).await);
    assert!(!ended(&mut first, Failed, failed).await);
    assert!(!ended(&mut first, Interrupted, StopReason::Interrupted).await);
    drop(first);
    let mut second = bench(LIMITED, "2026-05-04T12:00:00Z", temp).await;
    assert!(ended(&mut second, Failed, failed).await, "the count survives a restart");
    let pauses = second.supervisor.parts.ledger.read(|reader| reader.pauses()).await.unwrap();
    let note = pauses[0].note.clone().unwrap();
    assert!(note.starts_with("consecutive failures: 2; the last run was "), "{note}");
    assert!(note.ends_with("failed (max_iterations)"), "{note}");
    second.supervisor.unpause(Some("j".into())).await.unwrap();
    assert!(!ended(&mut second, Failed, failed).await, "the count begins again");
    assert!(ended(&mut second, Failed, failed).await);
}

// proves CRON-4
#[tokio::test]
async fn a_long_downtime_becomes_spans() {
    const SECONDS: &str =
        "version: 1\njobs: [{name: j, schedule: '* * * * * *', catchup_window: 5m, prompt: x}]\n";
    let temp = temp();
    let mut first = bench(SECONDS, "2026-05-04T12:00:00Z", temp.clone()).await;
    first.goes("2026-05-04T12:00:02Z").await;
    drop(first);
    let second = bench(SECONDS, "2026-05-05T12:00:02Z", temp.clone()).await;
    let ledger = second.supervisor.parts.ledger.clone();
    let all = async || ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
    let rows = all().await;
    let shown: Vec<_> = rows.iter().map(|row| (row.state.as_str(), row.count)).collect();
    let expected = [("coalesced", 1), ("ran", 1), ("missed", 86_099), ("coalesced", 300)];
    assert_eq!(shown[..4], expected);
    assert_eq!(rows[2].due_at, at("2026-05-04T12:00:03Z"));
    assert_eq!(rows[2].until, Some(at("2026-05-05T11:55:01Z")));
    let queued = rows.iter().find(|row| row.state == SlotState::Queued).unwrap();
    assert_eq!(rows[3].run_id, queued.run_id, "a span names the run that covers it");
    let around = ledger
        .read(|reader| {
            let inside = Some(at("2026-05-04T18:00:00Z"));
            reader.slots(Some("j"), inside, inside)
        })
        .await
        .unwrap();
    assert_eq!(around, rows[2..3], "a span is found by a time inside of it");
    assert!(second.is_sound().await);
    drop(second);
    // Another start finds every due time decided.
    let third = bench(SECONDS, "2026-05-05T12:00:02Z", temp).await;
    assert_eq!(all().await.len(), rows.len());
    assert!(third.is_sound().await);
}

// proves CRON-8
#[tokio::test]
async fn a_year_of_minutes_takes_no_longer_than_an_hour_of_them() {
    const CLOCK: [&str; 2] = ["2026-01-01T00:00:30Z", "2027-01-01T00:00:30Z"];
    let job = |n| {
        format!("  - {{name: j{n}, schedule: '* * * * *', timezone: Europe/Berlin, prompt: x}}\n")
    };
    let jobs = "version: 1\njobs:\n".to_owned() + &(0..5).map(job).collect::<String>();
    let check = async |bench: &Bench, began: Instant| {
        let ledger = &bench.supervisor.parts.ledger;
        let rows = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.count).sum::<u64>(), 5 * 365 * 24 * 60);
        // The last hour is within the catch-up window.
        assert_eq!(rows.len(), 5 * (1 + 60));
        assert_eq!(rows[0].state, SlotState::Missed);
        assert!(bench.is_sound().await);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    };
    let temp_dir = temp();
    let mut down = bench(&jobs, CLOCK[0], temp_dir.clone()).await;
    down.claims(CLOCK[0]).await;
    drop(down);
    let began = Instant::now();
    check(&bench(&jobs, CLOCK[1], temp_dir).await, began).await;
    let mut asleep = bench(&jobs, CLOCK[0], temp()).await;
    let began = Instant::now();
    asleep.claims(CLOCK[1]).await;
    check(&asleep, began).await;
}

// proves CRON-8
#[tokio::test]
async fn a_clock_that_is_wrong_for_a_moment_decides_nothing() {
    let mut bench = bench(HOURLY, "2026-05-04T00:30:00Z", temp()).await;
    bench.starts_nothing();
    for now in ["2026-05-04T00:31:00Z", "2038-05-04T00:31:00Z", "2026-05-04T00:32:00Z"] {
        *bench.clock.0.lock().unwrap() = at(now);
        bench.supervisor.tick().await;
        assert_eq!(bench.slots().await, []);
    }
    assert_eq!(bench.supervisor.due.epoch, Epoch::FIRST);
    assert_eq!(bench.supervisor.due.last_seen, at("2026-05-04T00:32:00Z"));
    bench.claims("2026-05-04T01:00:00Z").await;
    assert_eq!(bench.slots().await, expected(&[(0, "04 01:00", "queued")]));
    assert!(bench.is_sound().await);
}

async fn backfilled(bench: &mut Bench, from: &str, to: &str) -> Result<usize, CommandError> {
    let (scope, from, to) = (BackfillScope::WithoutSlot, at(from), at(to));
    let request = BackfillRequest { job: "hourly".into(), scope, from, to, by: None };
    bench.supervisor.backfill(request).await
}

async fn repeated(bench: &mut Bench, from: &str, to: &str) -> Result<usize, CommandError> {
    let (scope, from, to) = (BackfillScope::FailedOrMissed, at(from), at(to));
    let request = BackfillRequest { job: "hourly".into(), scope, from, to, by: None };
    bench.supervisor.backfill(request).await
}

// proves CRON-1
#[tokio::test]
async fn failed_and_missed_slots_run_again_on_request() {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T09:30:00Z", temp.clone()).await;
    for (due, outcome) in [("10", Outcome::Failed), ("11", Outcome::Succeeded)] {
        let due = format!("2026-05-04T{due}:00:00Z");
        first.claims(&due).await;
        let waiting = first.supervisor.book.waiting().remove(0);
        let (job, due_at) = (waiting.job.to_string(), waiting.origin.due_at());
        let run = RunSummary::queued(&waiting.run_id, job, waiting.origin.trigger, due_at, 1);
        let row = RunSummary { started_at: Some(due.clone()), outcome: Some(outcome), ..run };
        first.supervisor.parts.host.index.get().await.unwrap().take(row).await.unwrap();
        first.goes(&due).await;
    }
    first.goes("2026-05-04T14:30:00Z").await;
    let before =
        ["04 10:00 ran", "04 11:00 ran", "04 12:00 missed", "04 13:00 missed", "04 14:00 ran"];
    let states = async |bench: &Bench| {
        let rows = bench.slots().await.into_iter();
        rows.map(|(_, due, state)| format!("{due} {state}")).collect::<Vec<_>>()
    };
    assert_eq!(states(&first).await, before);
    first.starts_nothing();
    let all = ("2026-05-04T00:00:00Z", "2026-05-04T14:30:00Z");
    assert_eq!(repeated(&mut first, all.0, "2026-05-04T09:59:59Z").await, Ok(0));
    assert_eq!(repeated(&mut first, all.0, all.1).await, Ok(3));
    assert_eq!(repeated(&mut first, all.0, all.1).await, Ok(0), "they wait already");
    let again =
        ["04 10:00 queued", "04 11:00 ran", "04 12:00 queued", "04 13:00 queued", "04 14:00 ran"];
    assert_eq!(states(&first).await, again);
    assert!(
        first.supervisor.book.waiting().iter().all(|run| run.origin.trigger == Trigger::Backfill)
    );
    assert_eq!(first.supervisor.book.ready(), 1, "they run one after another");
    assert!(first.is_sound().await);
    drop(first);
    // Far outside of the catch-up window, and still in the queue.
    let mut second = bench(HOURLY, "2026-05-05T00:00:00Z", temp).await;
    second.goes("2026-05-05T00:00:01Z").await;
    let ran = ["04 10:00 ran", "04 11:00 ran", "04 12:00 ran", "04 13:00 ran", "04 14:00 ran"];
    assert_eq!(states(&second).await[..5], ran);
    assert!(second.is_sound().await);
}

// proves CRON-1
#[tokio::test]
async fn a_slot_within_a_span_runs_again() {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T00:30:00Z", temp.clone()).await;
    first.goes("2026-05-04T01:00:00Z").await;
    drop(first);
    let mut second = bench(HOURLY, "2026-05-14T00:30:00Z", temp).await;
    second.goes("2026-05-14T00:30:00Z").await;
    second.starts_nothing();
    let rows = async |bench: &Bench| {
        let ledger = &bench.supervisor.parts.ledger;
        let rows = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
        let row = |row: SlotRow| {
            let until = row.until.map(|until| until.format(" to %d %H:%M").to_string());
            let (due, until) = (row.due_at.format("%d %H:%M"), until.unwrap_or_default());
            format!("{due}{until} {} {}", row.count, row.state.as_str())
        };
        rows.into_iter().map(row).collect::<Vec<_>>()
    };
    let before = ["04 01:00 1 ran", "04 02:00 to 13 23:00 238 missed", "14 00:00 1 ran"];
    assert_eq!(rows(&second).await, before);
    // The first two of the span, two within it, and the last.
    for (from, to, count) in [
        ("2026-05-04T01:00:00Z", "2026-05-04T03:30:00Z", 2),
        ("2026-05-06T00:00:00Z", "2026-05-06T01:00:00Z", 2),
        ("2026-05-13T23:00:00Z", "2026-05-14T00:30:00Z", 1),
    ] {
        assert_eq!(repeated(&mut second, from, to).await, Ok(count), "{from}");
        assert_eq!(repeated(&mut second, from, to).await, Ok(0), "{from}");
    }
    let after = [
        "04 01:00 1 ran",
        "04 02:00 1 queued",
        "04 03:00 1 queued",
        "04 04:00 to 05 23:00 44 missed",
        "06 00:00 1 queued",
        "06 01:00 1 queued",
        "06 02:00 to 13 22:00 189 missed",
        "13 23:00 1 queued",
        "14 00:00 1 ran",
    ];
    assert_eq!(rows(&second).await, after);
    assert!(second.is_sound().await);
    let rest = ("2026-05-04T00:00:00Z", "2026-05-14T00:30:00Z");
    assert_eq!(repeated(&mut second, rest.0, rest.1).await, Ok(44 + 189));
    assert_eq!(rows(&second).await.len(), 240);
    assert!(second.is_sound().await);
}

// proves STATE-1
#[tokio::test]
async fn a_run_requested_for_later_begins_then_survives_a_restart_and_is_missed_like_a_slot() {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T11:10:00Z", temp.clone()).await;
    first.starts_nothing();
    let later = async |bench: &mut Bench, time: &str| {
        let origin = Origin::manual(RunRequest::default(), None);
        bench.supervisor.enqueue("hourly".into(), origin, Some(at(time))).await
    };
    let past = later(&mut first, "2026-05-04T11:00:00Z").await;
    assert!(matches!(past, Err(CommandError::Invalid(_))), "{past:?}");
    let mut run_ids = Vec::new();
    for time in ["2026-05-04T11:20:00Z", "2026-05-04T11:40:00Z", "2026-05-04T16:30:00Z"] {
        run_ids.push(later(&mut first, time).await.unwrap().run_id);
    }
    assert!(first.supervisor.book.waiting().is_empty());
    // The clock is set back: a requested run keeps its time of day.
    first.supervisor.book.move_attempts(at("2026-05-04T11:10:00Z"), at("2026-05-04T10:10:00Z"));
    drop(first);
    // The first one is too late by more than the window of an hour, and the second one is not.
    let mut second = bench(HOURLY, "2026-05-04T12:30:00Z", temp).await;
    second.starts_nothing();
    second.supervisor.act(Input::Tick).await;
    let waiting = second.supervisor.book.waiting();
    let requested: Vec<&RunId> =
        waiting.iter().filter(|run| run.origin.slot.is_none()).map(|run| &run.run_id).collect();
    assert_eq!(requested, [&run_ids[1]]);
    let ledger = &second.supervisor.parts.ledger;
    let rows = ledger.read(|reader| reader.queue_rows()).await.unwrap();
    let missed = rows.iter().find(|row| row.run_id == *run_ids[0].as_str()).unwrap();
    assert!(missed.error.as_ref().unwrap().contains("the daemon was down"), "{missed:?}");
    let now = at("2026-05-04T12:30:00Z");
    let left = ledger.read(move |reader| reader.runs_requested_for_later(now)).await.unwrap();
    assert_eq!(left.iter().map(|run| &run.run_id).collect::<Vec<_>>(), [&run_ids[2]]);
    let config = second.supervisor.config.borrow().clone();
    let rows = crate::daemon::next_rows(&config, None, left, now, 5);
    let listed: Vec<_> = rows.iter().filter(|row| row.run_id.is_some()).collect();
    assert_eq!((listed.len(), listed[0].due_at), (1, at("2026-05-04T16:30:00Z")));
    second.supervisor.cancel(&run_ids[2], None).await.unwrap();
    assert!(second.is_sound().await);
}

// proves STATE-1
#[tokio::test]
async fn a_requested_run_survives_a_restart_unless_it_is_too_late_or_cannot_be_read() {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T11:10:00Z", temp.clone()).await;
    first.starts_nothing();
    let by = Some(crate::domain::Person { uid: 7, user: "ann".to_owned() });
    let mut run_ids = Vec::new();
    for prompt in ["first", "second", "damaged"] {
        let prompt = Some(prompt.to_owned());
        let request = RunRequest { prompt, plan: true, ..RunRequest::default() };
        let origin = Origin::manual(request, by.clone());
        run_ids.push(first.supervisor.enqueue("hourly".into(), origin, None).await.unwrap().run_id);
    }
    let damaged = run_ids.pop().unwrap();
    run_ids.sort();
    drop(first);
    let other = rusqlite::Connection::open(temp.path().join("state/ledger.db")).unwrap();
    let cut = "UPDATE queue SET request = substr(request, 1, 9) WHERE run_id = ?1";
    other.execute(cut, [damaged.as_str()]).unwrap();
    drop(other);
    // The start of the daemon does this before it reads the queue.
    let state = temp.path().join("state");
    let ledger = Ledger::open(&state, None).unwrap().0;
    let now = at("2026-05-04T11:20:00Z");
    let found = ledger.set_unreadable_aside(StateDir::new(&state), now).await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    drop(ledger);
    let mut second = bench(HOURLY, "2026-05-04T11:20:00Z", temp.clone()).await;
    let waiting = second.supervisor.book.waiting();
    assert_eq!(waiting.iter().map(|run| run.run_id.clone()).collect::<Vec<_>>(), run_ids);
    let request = |run: &Waiting| run.origin.request.clone().unwrap();
    assert!(waiting.iter().map(request).all(|request| request.plan && request.prompt.is_some()));
    assert!(waiting.iter().all(|run| run.origin.by == by && run.origin.trigger == Trigger::Manual));
    let why = async |bench: &Bench, run_id: &RunId| {
        let queue = bench.supervisor.parts.ledger.read(|reader| reader.queue_rows()).await.unwrap();
        let run = queue.into_iter().find(|run| run.run_id == run_id.as_str()).unwrap();
        run.error.unwrap_or_default()
    };
    assert!(why(&second, &damaged).await.contains("cannot be read"));
    // A stop leaves them in the queue too.
    second.supervisor.begin_stop().await;
    drop(second);
    let third = bench(HOURLY, "2026-05-04T12:30:00Z", temp).await;
    assert!(third.supervisor.book.waiting().iter().all(|run| run.origin.slot.is_some()));
    for run_id in run_ids {
        assert!(why(&third, &run_id).await.contains("outside the catch-up window"));
    }
    assert!(third.is_sound().await);
}

// proves CRON-1
#[tokio::test]
async fn a_backfill_runs_each_due_time_once_and_survives_a_restart() {
    let temp = temp();
    let mut first = bench(HOURLY, "2026-05-04T11:30:00Z", temp.clone()).await;
    first.goes("2026-05-04T12:00:00Z").await;
    *first.clock.0.lock().unwrap() = at("2026-05-04T12:30:00Z");
    first.starts_nothing();
    let all = ("2026-05-04T09:00:00Z", "2026-05-04T12:30:00Z");
    assert_eq!(backfilled(&mut first, all.0, all.1).await, Ok(3), "12:00 has its slot");
    assert_eq!(backfilled(&mut first, all.0, all.1).await, Ok(0), "each due time runs once");
    let triggers: Vec<_> =
        first.supervisor.book.waiting().iter().map(|run| run.origin.trigger).collect();
    assert_eq!(triggers, [Trigger::Backfill; 3]);
    assert_eq!(first.supervisor.book.ready(), 1, "they run one after another");
    let invalid = |answer: Result<usize, CommandError>| match answer {
        Err(CommandError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    let future = backfilled(&mut first, all.0, "2026-05-04T12:30:01Z").await;
    assert!(invalid(future).contains("in the future"));
    let many = backfilled(&mut first, "2026-03-01T00:00:00Z", all.1).await;
    assert!(invalid(many).contains("due times without a slot"));
    let million = backfilled(&mut first, "1700-01-01T00:00:00Z", all.1).await;
    assert!(invalid(million).contains("more than 100000 due times"));
    let backwards = backfilled(&mut first, all.1, all.0).await;
    assert!(invalid(backwards).contains("before it begins"));
    drop(first);
    // Far outside of the catch-up window, and still in the queue.
    let mut second = bench(HOURLY, "2026-05-04T12:45:00Z", temp).await;
    assert_eq!(second.supervisor.book.count(Kind::Queued), 3);
    second.goes("2026-05-04T13:00:00Z").await;
    let rows: Vec<_> = second.slots().await.into_iter().map(|row| row.1 + " " + &row.2).collect();
    let expected =
        ["04 09:00 ran", "04 10:00 ran", "04 11:00 ran", "04 12:00 ran", "04 13:00 skipped"];
    assert_eq!(rows, expected);
    assert!(second.is_sound().await);
}

// proves CRON-1
#[tokio::test]
async fn a_changed_schedule_after_a_downtime_keeps_the_slots_that_have_rows() {
    // As above, 12:05 has run and 12:00 is held; the schedule changes while the daemon is down.
    const SPREAD: &str =
        "version: 1\njobs: [{name: NAME, schedule: '*/5 * * * *', jitter: 10m, prompt: x}]\n";
    let name = (0..1000).map(|n| format!("j{n}")).find(|name| {
        let starts = |due: &str| {
            let due_at = at(due);
            due_at + crate::schedule::jitter(name, due_at, Duration::from_mins(10))
        };
        starts("2026-05-04T12:00:00Z") > at("2026-05-04T12:08:00Z")
            && starts("2026-05-04T12:05:00Z") < at("2026-05-04T12:07:00Z")
    });
    let jobs = SPREAD.replace("NAME", &name.unwrap());
    let temp = temp();
    let mut first = bench(&jobs, "2026-05-04T11:59:00Z", temp.clone()).await;
    first.goes("2026-05-04T12:07:00Z").await;
    drop(first);
    let jobs = jobs.replace("*/5", "*/7");
    let second = bench(&jobs, "2026-05-06T12:00:00Z", temp).await;
    let rows = second.slots().await;
    assert_eq!(rows[..2], expected(&[(0, "04 12:00", "missed"), (0, "04 12:05", "ran")]));
    assert!(second.is_sound().await);
}

// proves CRON-3
#[tokio::test]
async fn a_slot_that_waits_for_its_jitter_survives_a_step_back_and_a_reload() {
    let jobs = "version: 1\njobs: [{name: j, schedule: '0 * * * *', jitter: 30m, prompt: x}]\n";
    let mut bench = bench(jobs, "2026-05-04T11:30:00Z", temp()).await;
    bench.goes("2026-05-04T12:00:00Z").await;
    assert_eq!(bench.supervisor.due.held.len(), 1, "it waits for its jitter");
    let waits = bench.supervisor.due.held.first().unwrap().starts_at - at("2026-05-04T12:00:00Z");
    assert!(waits > TimeDelta::minutes(1), "{waits}");
    bench.goes("2026-05-04T09:30:00Z").await;
    assert!(bench.is_sound().await, "the slot still has time");
    let config = Config::clone(&bench.supervisor.config.borrow());
    bench.reloads(config).await;
    assert_eq!(bench.supervisor.due.held.len(), 1);
    // It keeps its delay, and does not wait for the old time.
    bench.goes("2026-05-04T10:00:00Z").await;
    assert_eq!(bench.slots().await[0], (0, "04 12:00".to_owned(), "ran".to_owned()));
    assert!(bench.is_sound().await);
}

// proves CRON-3
#[tokio::test]
async fn a_small_step_back_after_a_large_one_does_not_hide_a_due_time() {
    let jobs = "version: 1\njobs: [{name: j, schedule: '0 12 * * *', prompt: x}]\n";
    let mut bench = bench(jobs, "2026-05-04T11:30:00Z", temp()).await;
    bench.goes("2026-05-04T12:00:00Z").await;
    bench.goes("2026-05-04T18:00:00Z").await;
    // More than three hours: the new time counts, so 12:00 comes again.
    bench.goes("2026-05-04T09:00:00Z").await;
    bench.goes("2026-05-04T09:30:00Z").await;
    bench.goes("2026-05-04T09:29:50Z").await;
    bench.goes("2026-05-04T12:00:00Z").await;
    let slots = bench.slots().await;
    assert_eq!(slots, expected(&[(0, "04 12:00", "ran"), (2, "04 12:00", "ran")]));
    // Less than three hours after the end of the epoch in which it ran.
    bench.goes("2026-05-04T11:58:00Z").await;
    bench.goes("2026-05-04T12:00:00Z").await;
    assert_eq!(bench.slots().await[2], (3, "04 12:00".to_owned(), "skipped".to_owned()));
    assert!(bench.is_sound().await);
}

#[tokio::test]
async fn the_oldest_slots_of_all_jobs_go_first_also_after_a_reload_and_a_restart() {
    let jobs = "version: 1
jobs:
  - {name: z, schedule: '30 10 * * *', prompt: x}
  - {name: a, schedule: '0 11 * * *', prompt: x}
  - {name: hand, prompt: x}
";
    let temp = temp();
    let mut first = bench(jobs, "2026-05-04T09:30:00Z", temp.clone()).await;
    first.starts_nothing();
    first.claims("2026-05-04T10:30:00Z").await;
    first.claims("2026-05-04T11:00:00Z").await;
    let origin = Origin::manual(RunRequest::default(), None);
    first.supervisor.enqueue("hand".into(), origin, None).await.unwrap();
    let config = Config::clone(&first.supervisor.config.borrow());
    first.reloads(config).await;
    let order = |bench: &mut Bench| {
        let started = std::iter::from_fn(|| bench.supervisor.book.start_oldest());
        started.map(|run| run.job.to_string()).collect::<Vec<String>>()
    };
    assert_eq!(order(&mut first), ["z", "a", "hand"]);
    drop(first);
    let mut second = bench(jobs, "2026-05-04T11:00:05Z", temp).await;
    // The runs that people requested enter the queue before the slots are decided.
    assert_eq!(order(&mut second), ["hand", "z", "a"]);
}

#[test]
fn a_retry_or_backfill_does_not_wait_for_scheduled_runs_under_allow_all() {
    let jobs = "version: 1\njobs: [{name: j, schedule: '* * * * *', overlap: allow_all, prompt: x}, {name: k, schedule: '* * * * *', prompt: x}]\n";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(bench(jobs, "2026-05-04T09:30:00Z", temp()));
    let waits = |job: &str, trigger| {
        rules::waits_for(&bench.supervisor.config.borrow().jobs[job], trigger, true)
    };
    for trigger in [Trigger::Retry, Trigger::Backfill] {
        assert_eq!(waits("j", trigger), WaitsFor::CaughtUp);
        assert_eq!(waits("k", trigger), WaitsFor::AllRuns);
    }
}

#[tokio::test]
async fn audit_accepts_slots_that_were_decided_out_of_order() {
    let jobs = "version: 1\njobs: [{name: j, schedule: '10-20/5 2 * * *', jitter: 30m, overlap: buffer_all, prompt: x}]\n";
    // Find a day on which the jitter changes the order of the slots.
    for day in 4..28 {
        let day = format!("2026-05-{day:02}");
        let mut bench = bench(jobs, &format!("{day}T02:00:00Z"), temp()).await;
        bench.goes(&format!("{day}T02:20:00Z")).await;
        let moments: Vec<_> = bench.supervisor.due.held.iter().map(|held| held.due_at).collect();
        let is_mixed = moments.windows(2).any(|pair| pair[0] > pair[1]);
        for minute in 21..60 {
            bench.goes(&format!("{day}T02:{minute}:00Z")).await;
        }
        assert!(bench.is_sound().await);
        bench.goes(&format!("{day}T09:00:00Z")).await;
        assert!(bench.is_sound().await);
        if is_mixed {
            return;
        }
    }
    panic!("the order of the slots is the same on each day");
}

// proves STATE-1
#[tokio::test]
async fn a_run_that_fails_during_a_recovery_is_not_forgotten_and_keeps_its_job_busy() {
    const JOBS: &str = "version: 1\njobs: [{name: j, every: 1h, prompt: x}]\n";
    let mut bench = bench(JOBS, "2026-05-04T00:30:00Z", temp()).await;
    let supervisor = &mut bench.supervisor;
    let state = supervisor.parts.host.state.clone();
    let [tried, added] = [1, 2].map(|number| RunId::from_ulid(ulid::Ulid::from_parts(number, 1)));
    let locks = [&tried, &added].map(|run_id| state.lock_run(run_id, "j").unwrap());
    let job = || Some(name("j"));
    for run_id in [&tried, &added, &added] {
        let (run_id, why) = (run_id.clone(), "the disk is full".to_owned());
        supervisor.act(Input::Open { run_id, job: job(), why }).await;
    }
    let ended = |run_id: &RunId| {
        let (run_id, began, had_ended) = (run_id.clone(), true, true);
        let ended = vec![Recovered { run_id, began, had_ended, cut_bytes: 0 }];
        Ok(Recovery { ended, ..Recovery::default() })
    };
    supervisor.on_recovered(ended(&tried)).await;
    assert_eq!(supervisor.book.iter().map(|(run_id, _)| run_id).collect::<Vec<_>>(), [&added]);
    assert!(supervisor.book.is_busy("j"));
    supervisor.act(Input::Replace { job: name("j"), at_once: false }).await;
    assert!(supervisor.book.get(&added).unwrap().stop.is_some(), "a newer run replaces it");
    supervisor.on_recovered(ended(&added)).await;
    assert!(supervisor.book.iter().next().is_none() && !supervisor.book.is_busy("j"));
    drop(locks);
}

// proves CRON-1, STATE-3
#[tokio::test]
async fn a_decision_that_cannot_be_written_to_the_ledger_is_written_later() {
    let temp = temp();
    let mut bench = bench(HOURLY, "2026-05-04T00:30:00Z", temp.clone()).await;
    bench.claims("2026-05-04T01:00:00Z").await;
    let run_id = bench.supervisor.book.start_oldest().unwrap().run_id;
    let other = rusqlite::Connection::open(temp.path().join("state/ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    bench.ends(run_id.clone(), "hourly", Outcome::Failed, StopReason::MaxIterations).await;
    let outbox = &bench.supervisor.outbox;
    assert!(outbox.has_end_of(&run_id) && outbox.fault().is_some());
    let manual = RunId::from_ulid(ulid::Ulid::from_parts(1, 1));
    let given_up = GivenUp::interrupted("a person had cancelled it".to_owned());
    bench.supervisor.keep(Change::GiveUp(manual.clone(), given_up)).await;
    other.execute_batch("ROLLBACK").unwrap();
    assert!(bench.supervisor.write_again().await && bench.supervisor.outbox.is_empty());
    assert_eq!(bench.slots().await, expected(&[(0, "04 01:00", "ran")]));
    let ledger = &bench.supervisor.parts.ledger;
    let given_up = ledger.read(move |reader| reader.given_up(manual.as_str())).await.unwrap();
    assert_eq!(given_up.unwrap().reason, "a person had cancelled it");
}

// proves STATE-3
#[tokio::test]
async fn an_attempt_that_cannot_be_queued_is_queued_later() {
    const JOBS: &str = "version: 1
jobs: [{name: j, schedule: '0 * * * *', retry: {max_attempts: 2, backoff: 10m}, prompt: x}]
";
    let temp = temp();
    let mut bench = bench(JOBS, "2026-05-04T00:30:00Z", temp.clone()).await;
    bench.claims("2026-05-04T01:00:00Z").await;
    let run = bench.supervisor.book.start_oldest().unwrap();
    let other = rusqlite::Connection::open(temp.path().join("state/ledger.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    bench.fails(&run, at("2026-05-04T01:00:00Z")).await;
    let next = bench.attempts().remove(0).1;
    let cancelled = bench.supervisor.cancel(&next, None).await;
    assert!(matches!(cancelled, Err(CommandError::NotCancelled(_))), "{cancelled:?}");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(
        bench.supervisor.outbox.has_end_of(&run.run_id) && bench.supervisor.write_again().await
    );
    let slots = bench.supervisor.parts.ledger.read(|reader| reader.open_slots()).await.unwrap();
    assert_eq!(slots[0].run_id, next);
}

#[tokio::test]
async fn a_run_that_was_cancelled_while_it_failed_is_not_repeated() {
    const JOBS: &str = "version: 1
jobs: [{name: j, schedule: '0 * * * *', retry: {max_attempts: 2, backoff: 10m}, prompt: x}]
";
    for (is_cancelled, attempts) in [(false, 1), (true, 0)] {
        let mut bench = bench(JOBS, "2026-05-04T00:30:00Z", temp()).await;
        bench.claims("2026-05-04T01:00:00Z").await;
        let supervisor = &mut bench.supervisor;
        let run_id = supervisor.book.start_oldest().unwrap().run_id;
        if is_cancelled {
            supervisor.cancel(&run_id, None).await.unwrap();
        }
        let end = crate::domain::SessionEnd {
            outcome: crate::domain::Outcome::Failed,
            stop_reason: StopReason::MaxIterations,
            ..Ended::interrupted_end("the limit of iterations")
        };
        let ended = Ended {
            run_id: run_id.clone(),
            end: crate::text::redact::Redactor::default().clean(end, |_, _| {}),
            exit: crate::run::RunExit::Complete,
            has_started_change: false,
            row: None,
            record_end: None,
            outages: Vec::new(),
        };
        supervisor.on_ended(Ok(tasks::TaskEnd { run_id, result: Ok(ended) })).await;
        assert_eq!(bench.attempts().len(), attempts);
    }
}

#[tokio::test]
async fn missed_slots_are_told_once_for_each_downtime() {
    use crate::domain::{NoticeEvent, NoticeEvents, NoticeRule};
    let mut bench = bench(HOURLY, "2026-05-04T00:30:00Z", temp()).await;
    bench.starts_nothing();
    bench.supervisor.config.send_modify(|config| {
        let config = Arc::make_mut(config);
        for job in config.jobs.values_mut() {
            let on = NoticeEvents::Listed(vec![NoticeEvent::Missed]);
            let rule = NoticeRule { to: "ops".into(), on, knows_outage: false };
            Arc::make_mut(job).notify = vec![rule];
        }
    });
    let told = async |bench: &Bench| {
        let ledger = bench.supervisor.parts.ledger.clone();
        let next = ledger.read(|reader| reader.next_message("ops")).await.unwrap()?;
        ledger.record_delivery("ops".into(), next.id).await.unwrap();
        Some(next.message.unwrap())
    };
    bench.goes("2026-05-04T01:00:00Z").await;
    assert_eq!(told(&bench).await, None);
    // The machine sleeps. The window is an hour.
    bench.goes("2026-05-04T06:30:00Z").await;
    let message = told(&bench).await.unwrap();
    let expected = "hourly has missed 4 slots from 2026-05-04 02:00 UTC to 2026-05-04 05:00 UTC: ";
    assert!(message.summary.starts_with(expected), "{message:?}");
    assert_eq!(
        (message.event.as_str(), message.command.as_str()),
        ("missed", "dutyd slots hourly")
    );
    assert_eq!(told(&bench).await, None);
    bench.goes("2026-05-04T09:00:00Z").await;
    let message = told(&bench).await.unwrap();
    assert!(message.summary.contains("its slot of 2026-05-04 07:00 UTC"), "{message:?}");
}

// proves CRON-8
#[tokio::test]
async fn a_clock_that_is_a_year_ahead_twice_costs_no_year_of_slots() {
    const RIGHT: &str = "2026-01-01T00:00:30Z";
    const WRONG: [&str; 2] = ["2027-01-01T00:00:30Z", "2027-01-02T00:00:30Z"];
    let job = |n| format!("  - {{name: j{n}, schedule: '* * * * *', timezone: UTC, prompt: x}}\n");
    let jobs = "version: 1\njobs:\n".to_owned() + &(0..5).map(job).collect::<String>();
    let check = async |bench: &Bench, began: Instant| {
        let ledger = &bench.supervisor.parts.ledger;
        let rows = ledger.read(|reader| reader.slots(None, None, None)).await.unwrap();
        assert!(rows.len() < 5 * 600, "{}", rows.len());
        assert!(bench.is_sound().await);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
    };
    let temp_dir = temp();
    for now in [WRONG[0], RIGHT] {
        drop(bench(&jobs, now, temp_dir.clone()).await);
    }
    let began = Instant::now();
    check(&bench(&jobs, WRONG[1], temp_dir).await, began).await;
    let mut asleep = bench(&jobs, WRONG[0], temp()).await;
    asleep.claims(RIGHT).await;
    let began = Instant::now();
    asleep.claims(WRONG[1]).await;
    check(&asleep, began).await;
}

// proves CRON-8
#[tokio::test]
async fn an_attempt_does_not_wait_for_a_time_that_a_wrong_clock_showed() {
    const JOBS: &str = "version: 1
jobs: [{name: j, schedule: '0 * * * *', retry: {max_attempts: 3, backoff: 10m}, prompt: x}]
";
    let mut bench = bench(JOBS, "2026-05-04T00:30:00Z", temp()).await;
    bench.claims("2026-05-04T01:00:00Z").await;
    let run = bench.supervisor.book.start_oldest().unwrap();
    *bench.clock.0.lock().unwrap() = at("2038-05-04T01:00:05Z");
    bench.fails(&run, bench.clock.now()).await;
    let begins_at = bench.attempts().remove(0).0;
    assert_eq!(begins_at, at("2026-05-04T01:10:00Z"));
}

/// Returns the events of the messages that wait, oldest first.
async fn waiting_events(supervisor: &Supervisor) -> Vec<String> {
    let mut events = Vec::new();
    while let Some(next) =
        supervisor.parts.ledger.read(|reader| reader.next_message("ops")).await.unwrap()
    {
        events.push(next.message.unwrap().event);
        supervisor.parts.ledger.record_delivery("ops".into(), next.id).await.unwrap();
    }
    events
}

#[tokio::test]
async fn a_problem_of_the_daemon_is_told_once_it_has_lasted_and_once_it_is_over() {
    let temp = Arc::new(tempfile::tempdir().unwrap());
    let mut bench = bench("version: 1\njobs: []\n", "2026-11-26T03:00:00Z", temp.clone()).await;
    let mut config = Config::clone(&bench.supervisor.config.borrow());
    let on = crate::domain::DaemonEvent::ALL.to_vec();
    config.settings.notify = vec![crate::domain::DaemonRule { to: "ops".into(), on }];
    bench.supervisor.config.send_replace(Arc::new(config.clone()));
    let problem = || vec!["the search path is gone".to_owned()];
    let mut told = Vec::new();
    for (minute, problems) in [
        (0, problem()),
        (0, Vec::new()),
        (1, problem()),
        (2, problem()),
        (3, problem()),
        (4, Vec::new()),
        (6, Vec::new()),
        (7, Vec::new()),
    ] {
        bench.supervisor.parts.recovered.problems = problems;
        let now = at(&format!("2026-11-26T03:0{minute}:00Z"));
        bench.supervisor.tell_of_daemon(now).await;
        told.extend(waiting_events(&bench.supervisor).await.into_iter().map(|e| (minute, e)));
    }
    let told: Vec<_> = told.iter().map(|(minute, event)| (*minute, event.as_str())).collect();
    assert_eq!(told, [(2, "degraded"), (6, "recovered")]);
    // A restart does not forget what was told.
    bench.supervisor.parts.recovered.problems = problem();
    for minute in [8, 9] {
        let now = at(&format!("2026-11-26T03:0{minute}:00Z"));
        bench.supervisor.tell_of_daemon(now).await;
    }
    assert_eq!(waiting_events(&bench.supervisor).await, ["degraded"]);
    drop(bench);
    let mut bench = self::bench("version: 1\njobs: []\n", "2026-11-26T03:10:00Z", temp).await;
    bench.supervisor.config.send_replace(Arc::new(config));
    for minute in [10, 12] {
        let now = at(&format!("2026-11-26T03:{minute}:00Z"));
        bench.supervisor.tell_of_daemon(now).await;
    }
    assert_eq!(waiting_events(&bench.supervisor).await, ["recovered"]);
}
