use std::sync::Mutex;

use super::*;
use crate::clock::Clock;
use crate::config::{Environment, FileSet, SecretsMode, Trust, load};
use crate::domain::Trigger;
use crate::sinks::Observers;
use crate::store::{SharedLedger, StateDir};

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
    let files = [
        ("config.yaml", "timezone: UTC\nmodels: {m: {provider: scripted, script: s.yaml}}\n"),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("jobs.yaml", jobs),
    ];
    for (name, text) in files {
        std::fs::write(temp.path().join(name), text).unwrap();
    }
    let set = FileSet::of_directory(temp.path()).unwrap();
    let loaded =
        load(&set, &Environment::default(), Trust::Given, SecretsMode::Resolve, 0, clock.now());
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
    let ledger = Ledger::open(&state).unwrap().0;
    host.ledger = SharedLedger::opened(&state, ledger.clone());
    let parts = Parts {
        host,
        config: Arc::new(loaded.config.unwrap()),
        ledger,
        reload: Box::new(|| Loaded { config: None, report: Default::default() }),
        degraded: Vec::new(),
        watchdog: None,
    };
    Bench { clock, supervisor: Supervisor::new(parts).await.unwrap().0, temp }
}

impl Bench {
    /// Sets the clock and processes what is due, then drains the queue as if each run had ended.
    async fn goes(&mut self, now: &str) {
        *self.clock.0.lock().unwrap() = at(now);
        let now = at(now);
        self.supervisor.look_at_clock(now).await.unwrap();
        for due in self.supervisor.ticker.take(now) {
            self.supervisor.hold(due);
        }
        self.supervisor.begin_due(now).await;
        for waiting in std::mem::take(&mut self.supervisor.queue) {
            self.supervisor.decide(waiting.run_id, SlotState::Ran, "ran".into(), now).await;
        }
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
                    row.epoch,
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
    let facts = second
        .supervisor
        .queue
        .front()
        .map(|waiting| (waiting.facts.trigger, waiting.facts.scheduled_for));
    assert_eq!(facts, Some((Trigger::Catchup, Some(at("2026-05-04T04:00:00Z")))));
    let states: Vec<String> = second.slots().await.into_iter().map(|(_, _, state)| state).collect();
    assert_eq!(states, ["ran", "missed", "missed", "queued"]);
    assert!(second.is_sound().await);
    drop(second);
    // The daemon dies before the queued run starts: the slot of this run never runs.
    let third = bench(HOURLY, "2026-05-04T04:20:00Z", temp).await;
    assert!(third.supervisor.queue.is_empty());
    let states: Vec<String> = third.slots().await.into_iter().map(|(_, _, state)| state).collect();
    assert_eq!(states, ["ran", "missed", "missed", "missed"]);
    assert!(third.is_sound().await && third.temp.path().exists());
}

#[tokio::test]
async fn a_reload_drops_nothing_of_a_job_that_stays_as_it_is() {
    let jobs = "version: 1\njobs:\n  - {name: spread, schedule: '0 12 * * *', jitter: 30m, prompt: x}\n  - {name: gone, schedule: '0 12 * * *', jitter: 30m, prompt: x}\n";
    let mut bench = bench(jobs, "2026-05-04T11:00:00Z", temp()).await;
    bench.goes("2026-05-04T12:00:00Z").await;
    assert_eq!(bench.supervisor.held.len(), 2, "both wait for their jitter");
    let mut config = Config::clone(&bench.supervisor.parts.config);
    config.jobs.retain(|name, _| name.as_str() == "spread");
    config.digest = "new".to_owned();
    bench.supervisor.reload =
        Arc::new(move || Loaded { config: Some(config.clone()), report: Default::default() });
    let (reply, _answer) = tokio::sync::oneshot::channel();
    bench.supervisor.on_command(Command::Reload(reply)).await;
    bench.goes("2026-05-04T12:31:00Z").await;
    assert_eq!(
        bench.slots().await,
        expected(&[(0, "04 12:00", "superseded"), (0, "04 12:00", "ran")])
    );
    assert!(bench.is_sound().await);
}
