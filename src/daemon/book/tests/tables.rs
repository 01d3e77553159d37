//! `tests/daemon/book.yaml` says what follows from each input of the book.
//!
//! Each step has one input: a word with the number of a run, of several runs, or the minutes that pass
//! before it. `active` makes runs active without effects; `written` takes the input of the last `try`.
//! `then` tells the phase of every run after the step, if it is given.

use std::time::Duration;

use serde::Deserialize;

use crate::config::Config;
use crate::daemon::recovery::{RecordedEnd, Recovered, Recovery};
use crate::domain::{Outcome, StopReason};
use crate::run::{RunError, RunExit};

use super::*;

static CONFIG: LazyLock<Arc<Config>> = LazyLock::new(|| {
    config(
        "version: 1
jobs:
  - {name: j, retry: {max_attempts: 2, backoff: 1m}, catchup_window: 1d, prompt: x}
  - {name: k, schedule: '* * * * *', overlap: cancel_other, prompt: x}
",
    )
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    steps: Vec<Step>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Step {
    queue: BTreeMap<u64, String>,
    active: BTreeMap<u64, String>,
    open: BTreeMap<u64, String>,
    cancel: Vec<u64>,
    replace: Option<String>,
    room: Option<u64>,
    tick: Option<u64>,
    stop: Option<u64>,
    written: Option<u64>,
    not_begun: Option<u64>,
    ended: Option<u64>,
    how: String,
    failed: Option<u64>,
    why: String,
    begun: bool,
    cleared: Option<u64>,
    not_cleared: Option<u64>,
    panic: Option<u64>,
    had_begun: Option<bool>,
    recovered: BTreeMap<u64, String>,
    slot: Option<u64>,
    end: String,
    effects: Vec<String>,
    then: Option<BTreeMap<u64, String>>,
}

/// The book of a case.
#[derive(Default)]
struct Bench {
    book: Book,
    minutes: u64,
    /// The input of the last `try`.
    pending: Option<Input>,
}

/// Returns the number of a run, for people.
fn number(run_id: &RunId) -> String {
    let ulid: ulid::Ulid = run_id.as_str().parse().unwrap();
    ulid.random().to_string()
}

fn id(number: u64) -> RunId {
    // The run was made in the first minute.
    RunId::from_ulid(ulid::Ulid::from_parts(0, number.into()))
}

fn waiting(number: u64, job: &str) -> Waiting {
    let time = SlotTime { epoch: Epoch::FIRST, due_at: DateTime::default() };
    let origin = Origin::of_slot(Trigger::Schedule, time, None);
    let (job, waits_for) = (JobName::parse(job).unwrap(), WaitsFor::AllRuns);
    Waiting { run_id: id(number), job, origin, waits_for, ignores_overlap: false }
}

impl Bench {
    fn step(&mut self, input: Input) -> Vec<Effect> {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let now = DateTime::UNIX_EPOCH + Duration::from_mins(self.minutes);
        let at = *BEGAN + Duration::from_mins(self.minutes);
        let moment = Moment { config: &CONFIG, now, believed: now, at, is_stopping: false };
        self.book.step(input, &moment)
    }

    fn take(&mut self, step: Step) -> Vec<Effect> {
        let Step { how, why, begun, had_begun, end, .. } = step;
        let full = || RunError::Record("the disk is full".to_owned());
        self.minutes += step.room.or(step.tick).unwrap_or(0);
        for (number, job) in step.active {
            let run = waiting(number, &job);
            let (run_id, origin) = (run.run_id.clone(), run.origin.clone());
            self.book.queue(run);
            self.book.start(run_id.clone(), Admission::default());
            self.step(Input::Begun { run_id, origin });
        }
        for (number, job) in step.open {
            let (job, why) = (JobName::parse(&job).ok(), "the disk is full".to_owned());
            self.step(Input::Open { run_id: id(number), job, why });
        }
        let inputs = [
            (!step.queue.is_empty()).then(|| {
                Input::Queued(
                    step.queue.iter().map(|(number, job)| waiting(*number, job)).collect(),
                )
            }),
            (!step.cancel.is_empty()).then(|| Input::Cancel {
                runs: step.cancel.iter().copied().map(id).collect(),
                stop: StopReason::Cancelled.into(),
                why: "a person had cancelled it".to_owned(),
            }),
            step.replace
                .map(|job| Input::Replace { job: JobName::parse(&job).unwrap(), at_once: false }),
            step.room.map(|_| Input::Room { waiting: BTreeSet::new() }),
            step.tick.map(|_| Input::Recover),
            step.tick.map(|_| Input::Tick),
            step.stop.map(|_| Input::StopAll(StopReason::Interrupted)),
            step.written.map(|_| self.pending.take().unwrap()),
            step.not_begun
                .map(|number| Input::NotBegun { run_id: id(number), reason: "gone".to_owned() }),
            step.ended.map(|number| Input::Ended {
                run_id: id(number),
                result: Ok(Box::new(ended_how(&id(number), &how))),
                has_begun: true,
                next: id(100),
            }),
            step.failed.map(|number| Input::Ended {
                run_id: id(number),
                result: Err(match why.as_str() {
                    "disk" => full(),
                    "budget" => RunError::OverBudget("spent".to_owned()),
                    "panic" => RunError::Panicked,
                    other => panic!("{other}"),
                }),
                has_begun: begun,
                next: id(100),
            }),
            step.cleared.map(|number| Input::ClearedAway {
                run_id: id(number),
                error: full(),
                is_gone: true,
            }),
            step.not_cleared.map(|number| Input::ClearedAway {
                run_id: id(number),
                error: full(),
                is_gone: false,
            }),
            step.panic.map(|number| Input::PanicSettled {
                run_id: id(number),
                had_begun: had_begun.ok_or_else(|| "the disk is full".to_owned()),
            }),
            (!step.recovered.is_empty()).then(|| Input::Recovered(recovery(&step.recovered))),
            step.slot.map(|number| {
                let (reason, ended_at, repeatable) = (end.clone(), None, None);
                let (outcome, stop_reason) = (Outcome::Failed, StopReason::MaxIterations);
                let end = RecordedEnd { outcome, stop_reason, reason, ended_at, repeatable };
                let job = JobName::parse("j").unwrap();
                let slot = Ok(Some(SlotEnd { job, end: Some(end) }));
                Input::SlotOfEnded { run_id: id(number), slot }
            }),
        ];
        inputs.into_iter().flatten().flat_map(|input| self.step(input)).collect()
    }

    /// Returns the words for an effect. Keeps the input of a `try`.
    fn words(&mut self, effect: Effect) -> String {
        match effect {
            Effect::Keep(change) => format!("keep {}", change_words(&change)),
            Effect::Try(change, input) => {
                self.pending = Some(*input);
                format!("try {}", change_words(&change))
            }
            Effect::DiskFailed(_) => "disk failed".to_owned(),
            Effect::Begin(run_id) => format!("begin {}", number(&run_id)),
            Effect::Continue { run, .. } => format!("continue {}", number(&run.spec.run_id)),
            Effect::Stop(run_id, stop) => {
                format!("stop {} {}", number(&run_id), stop.reason.as_str())
            }
            Effect::ClearAway { run_id, .. } => format!("clear away {}", number(&run_id)),
            Effect::EndPanicked(run_id) => format!("end panicked {}", number(&run_id)),
            Effect::Recover(runs) => {
                let runs: Vec<String> = runs.keys().map(number).collect();
                format!("recover {}", runs.join(" "))
            }
            Effect::FindSlot(run_id) => format!("find slot {}", number(&run_id)),
        }
    }
}

fn change_words(change: &Change) -> String {
    match change {
        Change::Running(run_id) => format!("running {}", number(run_id)),
        Change::WaitAgain(run_id, _) => format!("wait again {}", number(run_id)),
        Change::EndRun(end) => format!("end {} {}", number(&end.run_id), end.outcome),
        Change::EndWaiting(ended) => {
            let runs: Vec<String> = ended.runs.iter().map(number).collect();
            format!("end unbegun {} {}", runs.join(" "), ended.state.as_str())
        }
        Change::GiveUp(run_id, given_up) => {
            format!("give up {} {}", number(run_id), given_up.stop_reason.as_str())
        }
        Change::Retry(next) => {
            format!("retry {} as {}", number(&next.failed), number(&next.queued.run_id))
        }
        Change::Hold { hold, .. } => format!("hold {}", hold.model),
        Change::EndHold { model, .. } => format!("end hold {model}"),
        Change::Tell(messages) => format!("tell {}", messages.len()),
    }
}

fn ended_how(run_id: &RunId, how: &str) -> crate::run::Ended {
    let failed = |exit| ended(run_id, Outcome::Failed, StopReason::MaxIterations, exit);
    let succeeded = |exit| ended(run_id, Outcome::Succeeded, StopReason::Completed, exit);
    match how {
        "succeeded" => succeeded(RunExit::Complete),
        "end_unrecorded" => succeeded(RunExit::EndUnrecorded("the disk is full".to_owned())),
        "failed" => failed(RunExit::Complete),
        "failed_after_change" => {
            crate::run::Ended { has_started_change: true, ..failed(RunExit::Complete) }
        }
        "record_failed" => {
            ended(run_id, Outcome::Failed, StopReason::RecordFailed, RunExit::RecordFailed)
        }
        "suspended" => {
            ended(run_id, Outcome::Interrupted, StopReason::Interrupted, RunExit::Suspended)
        }
        other => panic!("{other}"),
    }
}

fn recovery(runs: &BTreeMap<u64, String>) -> Recovery {
    let mut recovery = Recovery::default();
    for (number, how) in runs {
        let (run_id, had_ended, cut_bytes) = (id(*number), false, 0);
        match how.as_str() {
            "failed" => drop(recovery.failed.insert(run_id, "the disk is full".to_owned())),
            how => {
                let began = how == "ended";
                assert!(began || how == "unbegun", "{how}");
                recovery.ended.push(Recovered { run_id, began, had_ended, cut_bytes });
            }
        }
    }
    recovery
}

// proves CRON-1, STATE-1
#[test]
fn each_input_has_the_effects_of_the_table() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/book.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<Case> = serde_yaml::from_str(&text).unwrap();
    for Case { name, steps } in cases {
        let mut bench = Bench::default();
        for (at, mut step) in steps.into_iter().enumerate() {
            let (expected, then) = (std::mem::take(&mut step.effects), step.then.take());
            let effects = bench.take(step);
            let effects: Vec<String> =
                effects.into_iter().map(|effect| bench.words(effect)).collect();
            assert_eq!(effects, expected, "{name}, step {}", at + 1);
            let phase = |(run_id, run): (&RunId, &Entry)| {
                (number(run_id).parse().unwrap(), format!("{:?}", run.phase.kind()).to_lowercase())
            };
            let phases: BTreeMap<u64, String> = bench.book.iter().map(phase).collect();
            if let Some(then) = then {
                assert_eq!(phases, then, "{name}, step {}", at + 1);
            }
        }
    }
}
