mod disk;
mod holds;
mod kills;
mod tables;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::agent::HeardOfModels;
use crate::daemon::tests::config;
use crate::domain::{Epoch, Outage, Outcome, RunRequest, SlotTime, StopReason};
use crate::run::{Ended, RunExit};
use crate::text::redact::Redactor;

/// What tests of the supervisor ask the book.
impl Book {
    /// Returns the queued runs that have not begun, oldest first.
    pub(in crate::daemon) fn waiting(&self) -> Vec<Waiting> {
        let queued = self.of_kind(Kind::Queued);
        queued.filter_map(|(run_id, run)| waiting_of(run_id, run)).collect()
    }

    /// Makes the oldest queued run active that may start.
    pub(in crate::daemon) fn start_oldest(&mut self) -> Option<Waiting> {
        let run_id = self.queue.next(|_| super::queue::Place::Free).0?;
        let run = self.runs.get(&run_id).and_then(|run| waiting_of(&run_id, run));
        self.start(run_id, Admission::default());
        run
    }

    /// Ends the oldest active run of a job and of this kind.
    pub(in crate::daemon) fn end_oldest(&mut self, job: &str, ignores_overlap: bool) {
        let is_it = |run: &Entry| {
            run.ignores_overlap == ignores_overlap && run.phase.kind() == Kind::Active
        };
        let run_id = self.of_job(job).find(|(_, run)| is_it(run)).unwrap().0.clone();
        self.remove(&run_id);
    }

    /// Makes a run of another job active.
    pub(in crate::daemon) fn add_active(&mut self, run_id: RunId, job: &str) {
        let (admission, is_resumed) = (Admission::default(), false);
        let origin = Origin::manual(RunRequest::default(), None);
        let (job, waits_for) = (JobName::parse(job).unwrap(), WaitsFor::Nothing);
        let run =
            Waiting { run_id: run_id.clone(), job, origin, waits_for, ignores_overlap: false };
        self.insert(run_id, Entry::new(run, Phase::Active { admission, is_resumed }));
    }

    /// Forgets a run.
    pub(in crate::daemon) fn forget(&mut self, run_id: &RunId) {
        self.remove(run_id);
    }
}

fn waiting_of(run_id: &RunId, run: &Entry) -> Option<Waiting> {
    let Phase::Queued { waits_for, .. } = run.phase else { return None };
    let (run_id, ignores_overlap) = (run_id.clone(), run.ignores_overlap);
    let (job, origin) = (run.job.clone()?, run.origin.clone()?);
    Some(Waiting { run_id, job, origin, waits_for, ignores_overlap })
}

fn ended(run_id: &RunId, outcome: Outcome, stop_reason: StopReason, exit: RunExit) -> Ended {
    let end = crate::domain::SessionEnd { outcome, stop_reason, ..Ended::interrupted_end("it") };
    let end = Redactor::default().clean(end, |_, _| {});
    let outages = Vec::new();
    Ended {
        run_id: run_id.clone(),
        end,
        exit,
        has_started_change: false,
        row: None,
        record_end: None,
        outages,
    }
}

fn outage(config: &Config, model: &str, at: DateTime<Utc>) -> Outage {
    let crate::config::Provider::Remote(remote) = &config.models[model].provider else { panic!() };
    let (settings, cause) = (remote.access_digest(), "HTTP 503".to_owned());
    Outage { model: model.to_owned(), settings, cause, retry_after: None, at }
}

/// Returns what the daemon hears when a model answers.
fn answer(model: &str) -> Input {
    let answers = BTreeSet::from([model.to_owned()]);
    Input::Heard(HeardOfModels { answers, failures: Vec::new() })
}

/// Returns what the daemon hears when a model fails a run.
fn failure(run_id: &RunId, outage: Outage) -> Input {
    let failures = vec![(run_id.to_string(), outage)];
    Input::Heard(HeardOfModels { answers: BTreeSet::new(), failures })
}

fn run_id(number: u64) -> RunId {
    RunId::from_ulid(ulid::Ulid::from_parts(number, 0))
}

fn run(number: u64, job: &str, waits_for: WaitsFor) -> Waiting {
    let time = SlotTime { epoch: Epoch::FIRST, due_at: DateTime::default() };
    // Some runs that wait for others are attempts of requested runs, which have no slot.
    let slot = (waits_for != WaitsFor::Nothing && number % 4 != 3).then_some(time);
    let origin = Origin { slot, ..Origin::manual(RunRequest::default(), None) };
    let (run_id, job) = (run_id(number), JobName::parse(job).unwrap());
    Waiting { run_id, job, origin, waits_for, ignores_overlap: waits_for == WaitsFor::CaughtUp }
}

/// A queue whose every operation searches the whole of it.
#[derive(Default)]
struct Model {
    waiting: Vec<(String, &'static str, WaitsFor)>,
    active: Vec<(&'static str, WaitsFor)>,
}

impl Model {
    fn start(&mut self) -> Option<String> {
        let may_start = |at: usize, (_, job, waits_for): &(String, &str, WaitsFor)| {
            let mut earlier = self.waiting[..at].iter();
            let waits_behind =
                |of: &(String, &str, WaitsFor)| of.1 == *job && of.2 != WaitsFor::Nothing;
            match waits_for {
                WaitsFor::Nothing => true,
                _ if earlier.any(waits_behind) => false,
                WaitsFor::CaughtUp => !self.active.contains(&(*job, WaitsFor::CaughtUp)),
                WaitsFor::AllRuns => !self.active.iter().any(|of| of.0 == *job),
            }
        };
        let mut waiting = self.waiting.iter().enumerate();
        let (at, _) = waiting.find(|(at, run)| may_start(*at, run))?;
        let (run_id, job, waits_for) = self.waiting.remove(at);
        self.active.push((job, waits_for));
        Some(run_id)
    }
}

static CONFIG: LazyLock<Arc<Config>> =
    LazyLock::new(|| config("version: 1\njobs: [{name: a, prompt: x}]\n"));

fn is_slot((id, _, waits_for): &(String, &str, WaitsFor)) -> bool {
    let ulid: ulid::Ulid = id.parse().unwrap();
    *waits_for != WaitsFor::Nothing && ulid.timestamp_ms() % 4 != 3
}

const KINDS: [WaitsFor; 3] = [WaitsFor::Nothing, WaitsFor::CaughtUp, WaitsFor::AllRuns];

proptest! {
    #[test]
    fn the_oldest_run_that_may_start_starts(
        steps in prop::collection::vec((0u8..7, 0usize..3, 0usize..3, any::<prop::sample::Index>()), 0..60),
    ) {
        const JOBS: [&str; 3] = ["a", "b", "c"];
        let config = CONFIG.clone();
        let (mut book, mut model) = (Book::default(), Model::default());
        for (number, (step, job, kind, at)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => {
                    let waiting = run(number as u64, JOBS[job], KINDS[kind]);
                    model.waiting.push((waiting.run_id.to_string(), JOBS[job], KINDS[kind]));
                    book.queue(waiting);
                }
                2 => {
                    let started = book.start_oldest().map(|waiting| waiting.run_id.to_string());
                    prop_assert_eq!(started, model.start());
                }
                3 if !model.active.is_empty() => {
                    let (job, kind) = model.active.remove(at.index(model.active.len()));
                    let is_it = |run: &Entry| match run.phase.kind() {
                        Kind::Active => run.ignores_overlap == (kind == WaitsFor::CaughtUp),
                        Kind::Open => kind == WaitsFor::CaughtUp,
                        _ => false,
                    };
                    let ended = book.of_job(job).find(|(_, run)| is_it(run)).unwrap().0.clone();
                    book.remove(&ended);
                }
                4 if !model.waiting.is_empty() => {
                    let (id, ..) = model.waiting.remove(at.index(model.waiting.len()));
                    prop_assert!(book.remove(&RunId::parse(&id).unwrap()).is_some());
                }
                // A reload puts the waiting slots back at their places.
                6 => book.renew_slots(|_| true, |_, waits_for| waits_for),
                5 => {
                    model.active.push((JOBS[job], WaitsFor::CaughtUp));
                    let job = JobName::parse(JOBS[job]).unwrap();
                    let now = DateTime::default();
                    let at = Instant::now();
                    let moment = Moment { config: &config, now, believed: now, at, is_stopping: false };
                    book.leave_open(&run_id(number as u64), Some(job), "full".into(), &moment);
                }
                _ => {}
            }
            prop_assert_eq!(book.count(Kind::Queued), model.waiting.len());
            for job in JOBS {
                let mut waiting = model.waiting.iter().filter(|run| run.1 == job);
                let is_busy = waiting.clone().count() > 0 || model.active.iter().any(|run| run.0 == job);
                let slots = waiting.by_ref().filter(|run| is_slot(run)).count();
                prop_assert_eq!((book.is_busy(job), book.slots_of(job)), (is_busy, slots));
            }
            prop_assert_eq!(book.waiting().len(), book.count(Kind::Queued));
        }
    }
}

fn moment_at(at: Instant) -> Moment<'static> {
    let now = DateTime::default();
    Moment { config: &CONFIG, now, believed: now, at, is_stopping: false }
}

// proves STATE-1
#[test]
fn pauses_grow_to_five_minutes_and_a_run_is_given_up_after_an_hour() {
    let (mut book, began) = (Book::default(), Instant::now());
    let (run_id, job) = (run_id(1), JobName::parse("a").unwrap());
    let mut pauses = Vec::new();
    let given_up = loop {
        book.leave_open(&run_id, Some(job.clone()), "full".into(), &moment_at(began));
        let Phase::Open { fault, .. } = &book.get(&run_id).unwrap().phase else { panic!() };
        let after = fault.after;
        pauses.push((after - began).as_secs());
        let early = book.step(Input::Recover, &moment_at(after - Duration::from_millis(1)));
        assert!(early.is_empty(), "{early:?}");
        let effects = book.step(Input::Recover, &moment_at(after));
        match effects.as_slice() {
            [Effect::Recover(_)] => assert!(book.is_busy("a")),
            [Effect::Keep(Change::GiveUp(..)), Effect::Recover(_)] => break !book.is_busy("a"),
            other => panic!("{other:?}"),
        }
    };
    assert!(given_up, "the job is free once the run does not continue");
    assert_eq!(pauses[..8], [5, 10, 20, 40, 80, 160, 300, 300]);
    assert_eq!(pauses.iter().sum::<u64>(), 3615);
}

// proves CRON-5
#[test]
fn a_newer_run_does_not_replace_the_first_attempt_of_a_backfill() {
    for (trigger, is_replaced) in [(Trigger::Backfill, false), (Trigger::Retry, true)] {
        let mut book = Book::default();
        let run = run(1, "a", WaitsFor::AllRuns);
        let run =
            Waiting { origin: Origin { trigger, ..run.origin }, ignores_overlap: true, ..run };
        let (run_id, job, moment) =
            (run.run_id.clone(), run.job.clone(), moment_at(Instant::now()));
        book.queue(run);
        book.start(run_id.clone(), Admission::default());
        let replace = || Input::Replace { job: job.clone(), at_once: false };
        assert_eq!(book.step(replace(), &moment).is_empty(), !is_replaced);
        // The same holds once no task works on it.
        book.runs.get_mut(&run_id).unwrap().stop = None;
        book.leave_open(&run_id, None, "full".into(), &moment);
        assert_eq!(book.step(replace(), &moment).is_empty(), !is_replaced);
    }
}
