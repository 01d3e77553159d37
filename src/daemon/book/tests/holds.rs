//! Outages of models: who waits, who asks again, and what is told.

use crate::daemon::tests::config_with;
use crate::domain::{Hold, Outcome, StopReason};
use crate::run::RunExit;
use crate::store::SlotState;

use super::*;

const SETTINGS: &str = "timezone: UTC
max_concurrent_runs: 100
default_model: a
models:
  a: {provider: openai_chat, base_url: 'http://127.0.0.1:9/v1', model: a, context_window: 100000}
  b: {provider: openai_chat, base_url: 'http://127.0.0.1:9/v1', model: b, context_window: 100000}
  ab: {provider: openai_chat, base_url: 'http://127.0.0.1:9/v1', model: ab, context_window: 100000, fallback: [b]}
notifications: {ops: {type: webhook, url: 'http://127.0.0.1:9/'}}
notify: [{to: ops, on: [unavailable, recovered]}]
";

const JOBS: &str = "version: 1
jobs:
  - {name: x, catchup_window: 30m, prompt: x, notify: [{to: ops, on: [missed]}]}
  - {name: y, catchup_window: 1d, prompt: x}
  - {name: z, model: ab, catchup_window: 1d, prompt: x, notify: [{to: ops, on: [failed]}]}
";

static CONFIG: LazyLock<Arc<Config>> = LazyLock::new(|| config_with(SETTINGS, JOBS));

/// A book and its disk, at a time in seconds.
struct Bench {
    book: Book,
    config: Arc<Config>,
    seconds: i64,
    made: u64,
    holds: BTreeMap<String, Hold>,
    told: Vec<String>,
    missed: Vec<String>,
}

impl Bench {
    fn new() -> Self {
        let (book, config) = (Book::default(), CONFIG.clone());
        let (holds, told, missed) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { book, config, seconds: 0, made: 0, holds, told, missed }
    }

    fn now(&self) -> DateTime<Utc> {
        DateTime::from_timestamp(self.seconds, 0).unwrap()
    }

    /// Takes an input; returns the runs that begin.
    fn act(&mut self, input: Input) -> Vec<RunId> {
        let config = self.config.clone();
        let (now, at) = (self.now(), Instant::now());
        let moment = Moment { config: &config, now, believed: now, at, is_stopping: false };
        let mut begun = Vec::new();
        let mut left = vec![input];
        while let Some(input) = left.pop() {
            for effect in self.book.step(input, &moment) {
                match effect {
                    Effect::Keep(change) => self.write(change),
                    Effect::Try(change, input) => {
                        self.write(change);
                        left.push(*input);
                    }
                    Effect::Begin(run_id) => begun.push(run_id),
                    other => panic!("{other:?}"),
                }
            }
        }
        begun
    }

    fn write(&mut self, change: Change) {
        match change {
            Change::Hold { hold, messages } => {
                self.told.extend(messages.into_iter().map(|(_, message)| message.event));
                self.holds.insert(hold.model.clone(), hold);
            }
            Change::EndHold { model, messages } => {
                self.told.extend(messages.into_iter().map(|(_, message)| message.event));
                self.holds.remove(&model);
            }
            Change::Tell(messages) => {
                self.told.extend(messages.into_iter().map(|(_, message)| message.event));
            }
            Change::EndWaiting(ended) => {
                assert_eq!(ended.state, SlotState::Missed);
                self.missed.push(ended.reason);
            }
            _ => {}
        }
    }

    /// Queues the run of a slot; returns its id.
    fn due(&mut self, job: &str) -> RunId {
        self.made += 1;
        let millis = u64::try_from(self.seconds * 1000).unwrap();
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(millis, self.made.into()));
        let time = SlotTime { epoch: Epoch::FIRST, due_at: self.now() };
        let origin = Origin::of_slot(Trigger::Schedule, time, None);
        let (job, waits_for) = (JobName::parse(job).unwrap(), WaitsFor::Nothing);
        let run =
            Waiting { run_id: run_id.clone(), job, origin, waits_for, ignores_overlap: false };
        self.act(Input::Queued(vec![run]));
        run_id
    }

    /// Lets time pass; returns the runs that begin.
    fn after(&mut self, seconds: i64) -> Vec<RunId> {
        self.seconds += seconds;
        self.act(Input::Tick);
        let mut begun = Vec::new();
        loop {
            let next = self.act(Input::Room { waiting: BTreeSet::new() });
            if next.is_empty() {
                return begun;
            }
            begun.extend(next);
        }
    }

    fn end(&mut self, run_id: &RunId, failed: &[&str]) {
        let (outcome, reason) = match failed {
            [] => (Outcome::Succeeded, StopReason::Completed),
            _ => (Outcome::Failed, StopReason::ProviderUnavailable),
        };
        let mut ended = ended(run_id, outcome, reason, RunExit::Complete);
        let outages = failed.iter().map(|model| outage(&self.config, model, self.now()));
        ended.outages = outages.collect();
        for outage in ended.outages.clone() {
            self.act(failure(run_id, outage));
        }
        let next = self.due_id();
        self.act(Input::Ended {
            run_id: run_id.clone(),
            result: Ok(Box::new(ended)),
            has_begun: true,
            next,
        });
    }

    fn due_id(&mut self) -> RunId {
        self.made += 1;
        RunId::from_ulid(ulid::Ulid::from_parts(0, self.made.into()))
    }

    fn answer(&mut self, model: &str) {
        self.act(answer(model));
    }

    /// The daemon dies and starts again.
    fn restart(&mut self) {
        self.book = Book::default();
        self.book.take_holds(self.holds.values().cloned().collect(), self.now());
        self.act(Input::Reloaded);
    }
}

// proves PROV-8
#[test]
fn an_outage_is_one_fact_and_one_run_asks_again() {
    let mut bench = Bench::new();
    let first = [bench.due("x"), bench.due("y")];
    assert_eq!(bench.after(0), first);
    bench.end(&first[0], &["a"]);
    bench.end(&first[1], &["a"]);
    assert_eq!(bench.told, ["unavailable"], "an outage is told once");
    let waiting: Vec<RunId> = (0..3).map(|_| bench.due("y")).collect();
    assert_eq!(bench.after(59), []);
    assert_eq!(bench.book.holds(&CONFIG)[0].1, 3);
    // One run asks again; the next hold is twice as long.
    assert_eq!(bench.after(1), waiting[..1]);
    assert_eq!(bench.after(300), []);
    bench.end(&waiting[0], &["a"]);
    assert_eq!(bench.after(119), []);
    assert_eq!(bench.after(1), waiting[1..2]);
    // The others follow once the model has answered.
    bench.answer("a");
    assert_eq!(bench.after(0), waiting[2..]);
    bench.end(&waiting[1], &[]);
    assert_eq!(bench.told, ["unavailable"]);
    bench.after(60);
    assert_eq!(
        (bench.told.as_slice(), bench.holds.len()),
        (["unavailable".into(), "recovered".into()].as_slice(), 0)
    );
}

#[test]
fn a_provider_that_flaps_has_one_outage() {
    let mut bench = Bench::new();
    for _ in 0..10 {
        let run = bench.due("y");
        let begun = bench.after(15 * 60);
        assert_eq!(begun, std::slice::from_ref(&run));
        bench.answer("a");
        bench.after(10);
        bench.end(&run, &["a"]);
    }
    assert_eq!(bench.told, ["unavailable"]);
    assert_eq!(bench.holds["a"].failures, 10);
}

#[test]
fn a_slot_that_waits_for_too_long_is_missed_with_the_model_and_the_cause() {
    let mut bench = Bench::new();
    let first = bench.due("x");
    bench.after(0);
    // It was made long before, but waited for something else.
    let late = bench.due("x");
    bench.seconds += 7200;
    bench.end(&first, &["a"]);
    // `x` catches up 30 minutes, `y` a day.
    let long = bench.due("y");
    assert_eq!(bench.after(0), []);
    assert_eq!(bench.after(59), []);
    bench.config = config_with(SETTINGS, &JOBS.replace("30m", "40m"));
    bench.act(Input::Reloaded);
    // The run that asks again hangs.
    assert_eq!(bench.after(1), std::slice::from_ref(&late));
    let other = bench.due("x");
    assert_eq!(bench.after(0), []);
    assert_eq!(bench.after(40 * 60 - 1), []);
    assert!(bench.missed.is_empty());
    bench.after(1);
    let [reason] = bench.missed.as_slice() else { panic!("{:?}", bench.missed) };
    assert!(
        reason.starts_with("waited for longer than 40m, the catch-up window: the model `a`"),
        "{reason}"
    );
    assert!(reason.ends_with(": HTTP 503"), "{reason}");
    assert!(bench.book.get(&other).is_none() && bench.book.get(&long).is_some());
    let third = bench.due("x");
    bench.after(0);
    bench.after(40 * 60);
    assert!(bench.book.get(&third).is_none());
    assert_eq!(bench.told, ["unavailable", "missed"], "of each job once in an outage");
}

#[test]
fn a_failure_of_long_ago_puts_no_model_on_hold() {
    let mut bench = Bench::new();
    let first = bench.due("z");
    bench.after(0);
    bench.end(&first, &["ab", "b"]);
    // The run that asks again falls back, and works on.
    let probe = bench.due("z");
    assert_eq!(bench.after(60), std::slice::from_ref(&probe));
    let failed = outage(&CONFIG, "ab", bench.now());
    bench.act(failure(&probe, failed.clone()));
    assert_eq!((bench.holds["ab"].failures, bench.holds["b"].failures), (2, 1));
    let next = bench.due("z");
    assert_eq!(bench.after(119), std::slice::from_ref(&next), "the fallback has another probe");
    assert_eq!(bench.book.holds(&CONFIG).len(), 2);
    bench.answer("ab");
    bench.after(1);
    // Its old failure comes with its end.
    let mut ended =
        ended(&probe, Outcome::Failed, StopReason::ProviderUnavailable, RunExit::Complete);
    ended.outages = vec![failed];
    let (result, id) = (Ok(Box::new(ended)), bench.due_id());
    bench.act(Input::Ended { run_id: probe, result, has_begun: true, next: id });
    assert!(bench.holds["ab"].answered_at.is_some(), "{:?}", bench.holds["ab"]);
}

#[test]
fn a_run_passes_over_a_model_on_hold_and_waits_if_all_are() {
    let mut bench = Bench::new();
    let first = bench.due("z");
    bench.after(0);
    // Its fallback answered: the next run still begins with the model.
    bench.end(&first, &[]);
    let second = bench.due("z");
    bench.after(0);
    bench.end(&second, &["ab", "b"]);
    assert_eq!(bench.holds.len(), 2);
    let third = bench.due("z");
    assert_eq!(bench.after(30), []);
    bench.answer("b");
    assert_eq!(bench.after(0), std::slice::from_ref(&third));
    let Phase::Active { admission, .. } = &bench.book.get(&third).unwrap().phase else { panic!() };
    assert_eq!(
        (admission.model.as_str(), admission.passed_over.as_slice()),
        ("b", ["ab".to_owned()].as_slice())
    );
    // Whoever was told of the outage is not told of the run that failed for it.
    let job = JobName::parse("z").unwrap();
    let knows = |bench: &Bench, reason| bench.book.rules_for(&CONFIG, &job, reason)[0].knows_outage;
    assert!(knows(&bench, StopReason::ProviderUnavailable));
    assert!(!knows(&bench, StopReason::VerifyFailed));
    let untold = bench.holds.values().map(|hold| Hold { told: Vec::new(), ..hold.clone() });
    bench.book.take_holds(untold.collect(), bench.now());
    assert!(!knows(&bench, StopReason::ProviderUnavailable), "the rule came after the message");
}

#[test]
fn a_restart_keeps_holds_and_a_new_key_ends_them() {
    let mut bench = Bench::new();
    let first = bench.due("y");
    bench.after(0);
    let mut failed =
        ended(&first, Outcome::Failed, StopReason::ProviderUnavailable, RunExit::Complete);
    let retry_after = Some(Duration::from_hours(2));
    failed.outages = vec![Outage { retry_after, ..outage(&CONFIG, "a", bench.now()) }];
    let (result, next) = (Ok(Box::new(failed)), bench.due_id());
    bench.act(Input::Ended { run_id: first, result, has_begun: true, next });
    bench.restart();
    let waiting = bench.due("y");
    let requested = {
        let run_id = bench.due_id();
        let origin = Origin::manual(RunRequest::default(), None);
        let (job, waits_for) = (JobName::parse("y").unwrap(), WaitsFor::Nothing);
        let run =
            Waiting { run_id: run_id.clone(), job, origin, waits_for, ignores_overlap: false };
        bench.act(Input::Queued(vec![run]));
        run_id
    };
    assert_eq!(bench.after(7199), [requested], "a person does not wait for a hold");
    // The clock is set back: the rest of the hold stays as long.
    let before = bench.now();
    bench.seconds -= 3600;
    bench.act(Input::SetBack { before });
    assert_eq!(bench.after(0), []);
    bench.config =
        config_with(&SETTINGS.replace("model: a,", "model: a, api_key: other-key-1,"), JOBS);
    bench.act(Input::Reloaded);
    assert_eq!(bench.after(0), std::slice::from_ref(&waiting));
    assert!(bench.holds.is_empty());
    assert_eq!(bench.told, ["unavailable", "recovered"]);
}

#[test]
fn ten_thousand_runs_wait_and_none_is_looked_at_twice() {
    let mut bench = Bench::new();
    let first = bench.due("y");
    bench.after(0);
    bench.end(&first, &["a"]);
    let waiting: Vec<RunId> = (0..10_000).map(|_| bench.due("y")).collect();
    assert_eq!(bench.after(0), []);
    assert_eq!(bench.book.ready(), 0, "they are set aside until the hold changes");
    assert_eq!(bench.after(60), waiting[..1]);
    assert_eq!(bench.book.ready(), 0);
}
