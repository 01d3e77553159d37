//! Kills the daemon between any two effects. A ledger and records in memory stand for the disk; the
//! book of the next daemon is folded from them.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::config::Config;
use crate::daemon::recovery::{RecordedEnd, Recovery};
use crate::daemon::rules::waits_for;
use crate::domain::{Outcome, StopReason};
use crate::run::{Ended, RunError, RunExit};
use crate::store::SlotState;

use super::disk::{Disk, Record, Row};
use super::*;

static CONFIG: LazyLock<Arc<Config>> = LazyLock::new(|| {
    crate::daemon::tests::config_with(
        "models: {m: {provider: openai_chat, base_url: 'http://127.0.0.1:9/v1', model: m, context_window: 100000}}
notifications: {ops: {type: webhook, url: 'http://127.0.0.1:9/'}}
notify: [{to: ops, on: [unavailable, recovered]}]
",
        "version: 1
jobs:
  - {name: j, schedule: '* * * * *', overlap: buffer_all, catchup: all, catchup_window: 100d, retry: {max_attempts: 2, backoff: 1m}, prompt: x}
",
    )
});

/// A task of a run; `true` once its first line is written.
type Tasks = BTreeMap<RunId, bool>;

struct World {
    disk: Disk,
    config: Arc<Config>,
    began: Instant,
    minute: i64,
    made: u64,
    // The daemon; lost when it dies.
    book: Book,
    outbox: Vec<Change>,
    tasks: Tasks,
    /// The number of effects until the daemon dies.
    lives_for: usize,
}

impl World {
    fn new() -> Self {
        let (book, outbox, tasks) = (Book::default(), Vec::new(), Tasks::new());
        let (disk, began) = (Disk::default(), Instant::now());
        let config = CONFIG.clone();
        Self { disk, config, began, minute: 0, made: 0, book, outbox, tasks, lives_for: usize::MAX }
    }

    fn now(&self) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + chrono::TimeDelta::minutes(self.minute)
    }

    fn new_id(&mut self) -> RunId {
        self.made += 1;
        let time = u64::try_from(self.minute * 60_000).unwrap();
        RunId::from_ulid(ulid::Ulid::from_parts(time, self.made.into()))
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let (now, config) = (self.now(), self.config.clone());
        let at = self.began + Duration::from_mins(u64::try_from(self.minute).unwrap());
        let moment = Moment { config: &config, now, believed: now, at, is_stopping: false };
        self.book.step(input, &moment)
    }

    /// Takes an input and carries out what follows; returns whether everything was written that was to
    /// be written at once. `None` if the daemon died.
    fn act(&mut self, input: Input) -> Option<bool> {
        let mut left = std::collections::VecDeque::from(self.step(input));
        let mut is_written = true;
        while let Some(effect) = left.pop_front() {
            if self.lives_for == 0 {
                return None;
            }
            self.lives_for -= 1;
            let next = match effect {
                Effect::Keep(change) => {
                    self.outbox.push(change);
                    self.flush();
                    None
                }
                Effect::Try(change, input) => {
                    let can = self.flush() && !self.disk.is_full;
                    is_written &= can;
                    can.then(|| {
                        self.disk.write(&change);
                        *input
                    })
                }
                Effect::Begin(run_id) => {
                    assert!(self.tasks.insert(run_id.clone(), false).is_none());
                    let origin = self.book.get(&run_id).unwrap().origin.clone().unwrap();
                    Some(Input::Begun { run_id, origin })
                }
                Effect::ClearAway { run_id, error } => {
                    Some(Input::ClearedAway { run_id, error, is_gone: true })
                }
                Effect::EndPanicked(run_id) => {
                    let had_begun = self.disk.records.contains_key(&run_id);
                    if let Some(record) = self.disk.records.get_mut(&run_id) {
                        record.end = Some((Outcome::Failed, StopReason::InternalError));
                        record.is_complete = true;
                    }
                    Some(Input::PanicSettled { run_id, had_begun: Ok(had_begun) })
                }
                Effect::Recover(runs) if self.outbox.is_empty() => {
                    let recovery = self.recover(runs.into_keys().collect());
                    Some(Input::Recovered(recovery))
                }
                Effect::FindSlot(run_id) => {
                    let open =
                        self.disk.slots.values().find(|row| row.run_id == run_id && row.is_open());
                    let slot = open.map(|_| SlotEnd {
                        job: JobName::parse("j").unwrap(),
                        end: self.recorded_end(&run_id),
                    });
                    Some(Input::SlotOfEnded { run_id, slot: Ok(slot) })
                }
                Effect::Stop(..) | Effect::DiskFailed(_) | Effect::Recover(_) => None,
                Effect::Continue { .. } => unreachable!("no run continues here"),
            };
            let following = next.map(|input| self.step(input)).unwrap_or_default();
            following.into_iter().rev().for_each(|effect| left.push_front(effect));
        }
        Some(is_written)
    }

    fn flush(&mut self) -> bool {
        if !self.disk.is_full {
            for change in std::mem::take(&mut self.outbox) {
                self.disk.write(&change);
            }
        }
        self.outbox.is_empty()
    }

    /// Ends open runs as recovery does, if they do not continue.
    fn recover(&mut self, runs: Vec<RunId>) -> Recovery {
        let mut recovery = Recovery::default();
        for run_id in runs {
            if self.disk.is_full {
                recovery.failed.insert(run_id, "the disk is full".to_owned());
                continue;
            }
            let record = self.disk.records.get_mut(&run_id);
            let began = record.is_some();
            if let Some(record) = record {
                let given_up = self.disk.given_up.get(&run_id).map(|given_up| given_up.stop_reason);
                let stop_reason = given_up.unwrap_or(StopReason::Interrupted);
                record.end.get_or_insert((stop_reason.outcome(), stop_reason));
                record.is_complete = true;
            }
            let (had_ended, cut_bytes) = (false, 0);
            recovery.ended.push(crate::daemon::recovery::Recovered {
                run_id,
                began,
                had_ended,
                cut_bytes,
            });
        }
        recovery
    }

    fn recorded_end(&self, run_id: &RunId) -> Option<RecordedEnd> {
        let record = self.disk.records.get(run_id)?;
        let (outcome, stop_reason) = record.end?;
        let is_repeatable = outcome == Outcome::Failed && stop_reason != StopReason::InternalError;
        let repeatable = is_repeatable.then(|| record.origin.clone());
        let (reason, ended_at) = (format!("{outcome} ({stop_reason})"), Some(self.now()));
        Some(RecordedEnd { outcome, stop_reason, reason, ended_at, repeatable })
    }

    /// Starts the next daemon from the rows and the records. Each part is as in the supervisor, except
    /// that no run continues.
    fn restart(&mut self) {
        self.lives_for = usize::MAX;
        (self.book, self.outbox) = (Book::default(), Vec::new());
        self.tasks.clear();
        self.disk.is_full = false;
        let open = self.disk.records.iter().filter(|(_, record)| !record.is_complete);
        let open: Vec<RunId> = open.map(|(run_id, _)| run_id.clone()).collect();
        self.recover(open);
        let begun: Vec<RunId> = self.disk.records.keys().cloned().collect();
        begun.iter().for_each(|run_id| drop(self.disk.queue.remove(run_id)));
        self.book.take_holds(self.disk.holds.values().cloned().collect(), self.now());
        self.act(Input::Reloaded);
        for run in self.disk.queue.values().cloned().collect::<Vec<_>>() {
            if is_left(&run) {
                let input = input_of_left(run, &self.config.clone(), self.now()).unwrap();
                self.act(input).unwrap();
            }
        }
        let open = self.disk.slots.iter().filter(|(_, row)| row.is_open());
        for (minute, row) in open.map(|(minute, row)| (*minute, row.clone())).collect::<Vec<_>>() {
            let run_id = row.run_id.clone();
            if self.book.get(&run_id).is_some() {
                continue;
            }
            let has_begun =
                row.state == SlotState::Running && !self.disk.queue.contains_key(&run_id);
            let end = self.recorded_end(&run_id).or(has_begun.then(RecordedEnd::lost));
            match end {
                Some(end) => {
                    let (job, next) = (JobName::parse("j").unwrap(), self.new_id());
                    self.act(Input::FoundEnded { run_id, job, end, next }).unwrap();
                }
                None => self.claim(minute, run_id),
            }
        }
    }

    /// Claims a slot, and queues its run.
    fn claim(&mut self, minute: i64, run_id: RunId) {
        let due_at = DateTime::UNIX_EPOCH + chrono::TimeDelta::minutes(minute);
        let time = SlotTime { epoch: Epoch::FIRST, due_at };
        let origin = Origin::of_slot(Trigger::Schedule, time, None);
        let job = JobName::parse("j").unwrap();
        let waits_for = waits_for(&self.config.jobs[&job], Trigger::Schedule, false);
        let run =
            Waiting { run_id: run_id.clone(), job, origin, waits_for, ignores_overlap: false };
        self.disk.queue.insert(run_id.clone(), run.to_row(None));
        let row = Row { state: SlotState::Queued, run_id, reason: "due".to_owned() };
        self.disk.slots.insert(minute, row);
        self.act(Input::Queued(vec![run]));
    }

    fn request(&mut self) {
        let run_id = self.new_id();
        let origin = Origin::manual(RunRequest::default(), None);
        let (job, waits_for) = (JobName::parse("j").unwrap(), WaitsFor::Nothing);
        let run =
            Waiting { run_id: run_id.clone(), job, origin, waits_for, ignores_overlap: false };
        self.disk.queue.insert(run_id, run.to_row(Some(self.now())));
        self.act(Input::Queued(vec![run]));
    }

    fn fill(&mut self) {
        loop {
            let before = self.book.count(Kind::Active);
            let is_written = self.act(Input::Room { waiting: BTreeSet::new() });
            if is_written != Some(true) || self.book.count(Kind::Active) == before {
                return;
            }
        }
    }

    /// Writes the first line of a run. It leaves the queue after that.
    fn first_line(&mut self, run_id: &RunId) {
        let Some(has_begun) = self.tasks.get_mut(run_id) else { return };
        if *has_begun || self.disk.is_full {
            return;
        }
        *has_begun = true;
        assert!(!self.disk.cancelled.contains(run_id), "a cancelled run began");
        let origin = self.book.get(run_id).unwrap().origin.clone().unwrap();
        let record = Record { origin, end: None, is_complete: false };
        assert!(self.disk.records.insert(run_id.clone(), record).is_none(), "a run began twice");
        self.disk.queue.remove(run_id);
    }

    /// Ends the task of a run in one of several ways.
    fn end(&mut self, run_id: RunId, how: u8) {
        let Some(has_begun) = self.tasks.remove(&run_id) else { return };
        let next = self.new_id();
        let full = || RunError::Record("the disk is full".to_owned());
        let result = match (has_begun, how) {
            (false, 0) => Err(RunError::Panicked),
            (false, 1) => Err(RunError::OverBudget("spent".to_owned())),
            (false, _) => Err(full()),
            (true, 0) => Err(RunError::Panicked),
            (true, _) if self.disk.is_full => {
                Ok(ended(&run_id, Outcome::Failed, StopReason::RecordFailed, RunExit::RecordFailed))
            }
            (true, how) => {
                let (outcome, stop_reason) = match how {
                    1 | 2 => (Outcome::Failed, StopReason::MaxIterations),
                    4 => (Outcome::Failed, StopReason::ProviderUnavailable),
                    _ => (Outcome::Succeeded, StopReason::Completed),
                };
                let outage = (how == 4).then(|| outage(&CONFIG, "m", self.now()));
                let heard = match &outage {
                    Some(outage) => failure(&run_id, outage.clone()),
                    None => answer("m"),
                };
                self.act(heard);
                let owes = how == 3;
                let record = self.disk.records.get_mut(&run_id).unwrap();
                record.end = Some((outcome, stop_reason));
                record.is_complete = !owes;
                let exit = if owes {
                    RunExit::EndUnrecorded("full".to_owned())
                } else {
                    RunExit::Complete
                };
                let ended = ended(&run_id, outcome, stop_reason, exit);
                Ok(Ended { outages: outage.into_iter().collect(), ..ended })
            }
        };
        // The daemon may die between the end of a run and its own next step.
        if self.lives_for > 0 {
            self.act(Input::Ended { run_id, result: result.map(Box::new), has_begun, next });
        }
    }

    fn cancel(&mut self, run_id: RunId) {
        let is_waiting = match self.book.get(&run_id).map(|run| &run.phase) {
            Some(Phase::Queued { .. } | Phase::Delayed { .. }) => true,
            Some(Phase::Active { .. } | Phase::Open { .. } | Phase::Settling(_)) | None => false,
        };
        let (stop, why) = (StopReason::Cancelled.into(), "a person cancelled it".to_owned());
        let input = Input::Cancel { runs: vec![run_id.clone()], stop, why };
        if self.act(input) == Some(true) && is_waiting {
            self.disk.cancelled.insert(run_id);
        }
    }

    fn tick(&mut self) {
        self.flush();
        self.act(Input::Recover);
        if self.lives_for > 0 {
            self.act(Input::Tick);
        }
    }

    /// Lets the daemon work until nothing is left to do.
    fn drain(&mut self) {
        self.disk.is_full = false;
        for _ in 0..1000 {
            self.minute += 1;
            self.tick();
            self.fill();
            for run_id in self.tasks.keys().cloned().collect::<Vec<_>>() {
                self.first_line(&run_id);
                self.end(run_id, 9);
            }
            if self.book.iter().next().is_none() && self.outbox.is_empty() {
                return;
            }
        }
        panic!("the daemon still has runs: {:?}", self.book.iter().collect::<Vec<_>>());
    }

    /// Checks what must hold at any time.
    fn check(&self) {
        for run_id in self.tasks.keys() {
            assert_eq!(self.book.get(run_id).map(|run| run.phase.kind()), Some(Kind::Active));
        }
        assert_eq!(self.book.count(Kind::Active), self.tasks.len());
        if self.outbox.is_empty() {
            let waits = |kind| self.book.of_kind(kind).map(|(run_id, _)| run_id.clone());
            let waiting: BTreeSet<RunId> =
                waits(Kind::Queued).chain(waits(Kind::Delayed)).collect();
            let unbegun = self.tasks.iter().filter(|(_, begun)| !**begun).map(|(id, _)| id.clone());
            let in_book: BTreeSet<RunId> = waiting.into_iter().chain(unbegun).collect();
            let in_ledger: BTreeSet<RunId> = self.disk.queue.keys().cloned().collect();
            assert_eq!(in_book, in_ledger, "the queue of the ledger and the book differ");
            let on_hold = self.disk.holds.values().filter(|hold| hold.answered_at.is_none());
            assert!(on_hold.eq(self.book.held()), "the holds of the ledger and of the book differ");
        }
    }

    /// Checks that every slot has its end, that no slot ran twice, and that each outage is told once.
    fn check_ends(&self) {
        for (nth, message) in self.disk.messages.iter().enumerate() {
            let expected = ["unavailable", "recovered"][nth % 2];
            assert_eq!(message.event, expected, "{:?}", self.disk.messages);
        }
        for (minute, row) in &self.disk.slots {
            assert!(!row.is_open(), "slot {minute} is open: {row:?}");
            let is_of = |record: &&Record| {
                record.origin.due_at().is_some_and(|due_at| due_at.timestamp() == minute * 60)
            };
            let mut runs: Vec<&Record> = self.disk.records.values().filter(is_of).collect();
            runs.sort_by_key(|record| record.origin.attempt);
            for pair in runs.windows(2) {
                let [one, other] = pair else { continue };
                assert_eq!(
                    one.end.unwrap().0,
                    Outcome::Failed,
                    "slot {minute} ran twice: {runs:?}"
                );
                assert!(other.origin.attempt > one.origin.attempt, "slot {minute}: {runs:?}");
            }
            let has_run = row.state == SlotState::Ran;
            assert!(!has_run || self.disk.records.contains_key(&row.run_id), "{minute}: {row:?}");
        }
        assert!(self.disk.queue.is_empty(), "{:?}", self.disk.queue);
    }
}

/// What happens in a case.
#[derive(Debug, Clone)]
enum Event {
    Due,
    Request,
    Fill,
    FirstLine(prop::sample::Index),
    End(prop::sample::Index, u8),
    Cancel(prop::sample::Index),
    Tick(u8),
    DiskFull(bool),
    /// The daemon dies after this many effects.
    KillAfter(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => Just(Event::Due),
        2 => Just(Event::Request),
        4 => Just(Event::Fill),
        4 => any::<prop::sample::Index>().prop_map(Event::FirstLine),
        4 => (any::<prop::sample::Index>(), 0..6_u8).prop_map(|(at, how)| Event::End(at, how)),
        2 => any::<prop::sample::Index>().prop_map(Event::Cancel),
        3 => (1..5_u8).prop_map(Event::Tick),
        1 => any::<bool>().prop_map(Event::DiskFull),
        2 => (0..4_u8).prop_map(Event::KillAfter),
    ];
    prop::collection::vec(event, 0..40)
}

fn check_case(events: &[Event]) {
    let mut world = World::new();
    for event in events {
        let task = |at: &prop::sample::Index, world: &World| {
            let tasks: Vec<RunId> = world.tasks.keys().cloned().collect();
            (!tasks.is_empty()).then(|| at.get(&tasks).clone())
        };
        match event {
            // A claim is all or nothing: while the disk is full, the due time is held.
            Event::Due if world.disk.is_full => {}
            Event::Due => {
                world.minute += 1;
                let run_id = world.new_id();
                world.claim(world.minute, run_id);
            }
            Event::Request if world.disk.is_full => {}
            Event::Request => world.request(),
            Event::Fill if world.outbox.is_empty() => world.fill(),
            Event::Fill => {}
            Event::FirstLine(at) => {
                if let Some(run_id) = task(at, &world) {
                    world.first_line(&run_id);
                }
            }
            Event::End(at, how) => {
                if let Some(run_id) = task(at, &world) {
                    world.end(run_id, *how);
                }
            }
            Event::Cancel(at) => {
                let runs: Vec<RunId> =
                    world.book.iter().map(|(run_id, _)| run_id.clone()).collect();
                if !runs.is_empty() {
                    world.cancel(at.get(&runs).clone());
                }
            }
            Event::Tick(minutes) => {
                world.minute += i64::from(*minutes);
                world.tick();
            }
            Event::DiskFull(is_full) => world.disk.is_full = *is_full,
            Event::KillAfter(effects) => world.lives_for = usize::from(*effects),
        }
        if world.lives_for == 0 {
            world.restart();
        }
        world.check();
    }
    if world.lives_for != usize::MAX {
        world.restart();
    }
    world.drain();
    world.check_ends();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    // proves CRON-1, STATE-1, STATE-4
    #[test]
    fn a_kill_between_any_two_effects_loses_and_doubles_no_slot(events in events()) {
        check_case(&events);
    }
}
