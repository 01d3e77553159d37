//! Decides what happens to an open run next. Pure: [`super::evidence`] has read everything that
//! counts, and the caller carries the verdict out.
//!
//! *Source*: `docs/design/loop.md`, "After a crash".

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::RecoveryEnd;
use super::evidence::{DaemonTimes, Evidence, Record, RecordedConfig};
use crate::config::Mode;
use crate::domain::{Origin, Outcome, RunId, SessionStart, StopReason, Trigger};
use crate::run::{BrokenRecord, RecordRead, RunHistory, RunSpec, recorded_mode};
use crate::store::{GivenUp, RecordEnd, SlotState};

/// How often a run is resumed after the daemon died. A stop of the daemon does not count.
const MAX_RESUMPTIONS: u64 = 3;

/// Why no open run continues after a loss.
const CANCELLATIONS_LOST: &str = "guards.json is missing or cannot be read, so it is unknown whether a person had cancelled the run";

/// Why a run with a living process cannot continue yet.
const STILL_ALIVE: &str = "a process of its tools does not end, although it was killed";

/// What happens to an open run.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It had not begun. Forget it, so that its slot or its request is decided again, unless the run
    /// was given up.
    Forget { given_up: Option<GivenUp> },
    /// The run had begun, but its record cannot be trusted. Interrupt the run after its intact lines,
    /// and do not change the record.
    Interrupt(BrokenRecord),
    /// It has its last line. Fill in what the ledger and the index lack.
    Settle { history: Box<RunHistory>, end: RecordEnd },
    /// Write its end.
    End {
        history: Box<RunHistory>,
        end: RecoveryEnd,
        /// What the ledger keeps first, so that a later attempt comes to the same end.
        reason: Option<String>,
    },
    Resume {
        history: Box<RunHistory>,
        spec: Box<RunSpec>,
        /// How long the run has worked.
        worked: Duration,
    },
    /// It may continue, but not yet, for this reason.
    Wait(&'static str),
}

/// Returns the first line of a run that continues if its configuration allows it.
pub(super) fn start_to_continue(evidence: &Evidence) -> Option<&SessionStart> {
    match &evidence.record {
        Record::Whole { history, .. } if !history.has_ended() => {
            known_end(evidence).is_none().then_some(&*history.start)
        }
        Record::Whole { .. } | Record::Absent | Record::Empty { .. } | Record::Broken(_) => None,
    }
}

/// Decides what happens to an open run next.
pub(super) fn verdict(evidence: Evidence, now: DateTime<Utc>) -> Verdict {
    let has_begun = has_begun(&evidence);
    let known_end = known_end(&evidence);
    let Evidence { run_id, record, given_up, times, config, known, .. } = evidence;
    let history = match record {
        Record::Absent | Record::Empty { .. } if has_begun => {
            let why = "its transcript is missing or has no whole line".to_owned();
            return Verdict::Interrupt(BrokenRecord { intact: None, lines: 0, why });
        }
        Record::Absent | Record::Empty { .. } => return Verdict::Forget { given_up },
        Record::Broken(broken) => return Verdict::Interrupt(broken),
        Record::Whole { history, end } if history.has_ended() => {
            return Verdict::Settle { history, end };
        }
        Record::Whole { history, .. } => history,
    };
    if let Some(end) = known_end {
        return Verdict::End { history, end, reason: None };
    }
    match spec(run_id, config, &history, &times, now) {
        // A probe would answer before the effect of that process (PROC-11).
        Ok(_) if known.is_alive => Verdict::Wait(STILL_ALIVE),
        Ok(spec) => {
            // Do not count the time after `since` as work.
            let until = times.last_seen.into_iter().chain(known.since).min();
            let worked = worked(&history, &DaemonTimes { last_seen: until, ..times });
            Verdict::Resume { history, spec: Box::new(spec), worked }
        }
        // Without the reason in the ledger, a warning that is written without the end would hide how
        // old the run is.
        Err(why) => {
            Verdict::End { history, end: RecoveryEnd::interrupted(&why), reason: Some(why) }
        }
    }
}

/// Tells whether a run had begun although its transcript has no whole line, which means that its
/// lines were lost after they were written. A run without a directory counts as begun unless it is
/// queued: it must not vanish.
fn has_begun(evidence: &Evidence) -> bool {
    // A run leaves the queue only after its first line is on disk.
    let is_running = evidence.slot.as_ref().is_some_and(|slot| slot.state == SlotState::Running);
    let has_left = match evidence.record {
        Record::Absent => true,
        Record::Empty { has_outputs } => has_outputs,
        Record::Whole { .. } | Record::Broken(_) => return true,
    };
    !evidence.is_queued && (is_running || has_left)
}

/// Returns how a run ends for a reason that is known without its configuration.
fn known_end(evidence: &Evidence) -> Option<RecoveryEnd> {
    let decided = "its slot was decided in the meantime";
    match (&evidence.known.end, &evidence.given_up) {
        (Some(end), _) => Some(end.clone()),
        (None, Some(given_up)) => Some(RecoveryEnd::given_up(given_up.clone())),
        (None, None) if evidence.is_slot_decided => Some(RecoveryEnd::interrupted(decided)),
        (None, None) if evidence.are_cancellations_lost => {
            Some(RecoveryEnd::interrupted(CANCELLATIONS_LOST))
        }
        (None, None) => None,
    }
}

/// Returns the run as it began, if it may continue.
///
/// *Errors*: why it does not, for people; the text follows "the run was cut off and does not
/// continue: ".
fn spec(
    run_id: RunId,
    config: RecordedConfig,
    history: &RunHistory,
    times: &DaemonTimes,
    now: DateTime<Utc>,
) -> Result<RunSpec, String> {
    let start = &history.start;
    if start.origin.trigger == Trigger::Apply {
        return Err("a run of `apply` does not continue".to_owned());
    }
    if start.interactive {
        return Err("an interactive run does not continue".to_owned());
    }
    if let Some(name) = start.overrides.newer.keys().next() {
        return Err(format!(
            "its override `{name}` is unknown to this version; install a newer dutyd"
        ));
    }
    if let Some(name) = start.origin.unknown_part() {
        return Err(format!(
            "the part `{name}` of its request is unknown to this version; install a newer dutyd"
        ));
    }
    let config = match config {
        RecordedConfig::Loaded(config) => config,
        RecordedConfig::Unloadable(why) => return Err(why),
        RecordedConfig::NotNeeded => return Err("its configuration was not read".to_owned()),
    };
    if let Some(line) = history.first_unreadable {
        return Err(format!(
            "line {line} of its record cannot be read by this version; install a newer dutyd"
        ));
    }
    let job = config.jobs.get(start.job.as_str()).ok_or("its configuration lacks its job")?.clone();
    if !job.is_resumed {
        return Err("on_crash is `fail`".to_owned());
    }
    if history.deaths >= MAX_RESUMPTIONS && !history.is_suspended {
        return Err(format!("it was already resumed {MAX_RESUMPTIONS} times"));
    }
    let down = downtime(history.last_at, times, now);
    if down > TimeDelta::from_std(job.catchup_window).unwrap_or(TimeDelta::MAX) {
        let down = Duration::from_secs(down.num_seconds().unsigned_abs());
        let (down, window) =
            (humantime::format_duration(down), humantime::format_duration(job.catchup_window));
        return Err(format!(
            "the daemon was down for {down}, longer than `catchup_window` ({window})"
        ));
    }
    let spec = RunSpec::recorded(run_id, config, job, start, recorded_mode(start)?);
    spec.map_err(|error| error.to_string())
}

/// Returns why a run began, as its next attempt repeats it; `None` if that could act where the run
/// planned, or leave out a part of its request.
fn repeatable_origin(start: &SessionStart) -> Option<Origin> {
    let is_known = start.overrides.newer.is_empty() && start.origin.unknown_part().is_none();
    match recorded_mode(start) {
        Ok(Mode::Act) if is_known => Some(start.origin.clone()),
        Ok(Mode::Plan) if is_known => Some(start.origin.clone().planning()),
        Ok(_) | Err(_) => None,
    }
}

/// Returns the longest time in which no daemon ran since a run wrote its last line at `last`.
fn downtime(last: Option<DateTime<Utc>>, times: &DaemonTimes, now: DateTime<Utc>) -> TimeDelta {
    let newest = (times.last_seen.or(last).unwrap_or(now), now);
    let all = times.downtimes.iter().copied().chain([newest]);
    let lengths = all.map(|(from, to)| to - last.map_or(from, |last| last.max(from)));
    lengths.max().unwrap_or_default().max(TimeDelta::zero())
}

/// Returns how long a run worked. Downtime and the wait to continue do not count. If the daemon died
/// while it worked on the run, the time from the last line until the daemon was last seen counts too.
pub(super) fn worked(history: &RunHistory, times: &DaemonTimes) -> Duration {
    let last = history.last_at.filter(|_| !history.is_suspended);
    // A daemon that started after the last line never continued the run.
    let last = last.filter(|last| times.started.is_none_or(|started| started <= *last));
    let silent = last.zip(times.last_seen).map(|(last, seen)| seen - last);
    history.worked + silent.and_then(|silent| silent.to_std().ok()).unwrap_or_default()
}

/// How the run of an open slot ended, according to its record.
#[derive(Debug)]
pub(crate) struct RecordedEnd {
    pub(crate) outcome: Outcome,
    pub(crate) stop_reason: StopReason,
    /// The reason for the row of the slot.
    pub(crate) reason: String,
    /// When the run ended; `None` if its transcript is lost, unreadable or has no last line.
    pub(crate) ended_at: Option<DateTime<Utc>>,
    /// Why the run began, if its job may repeat it.
    pub(crate) repeatable: Option<Origin>,
}

impl RecordedEnd {
    /// Returns the end of a run whose record is this; `None` if the run had not begun.
    pub(super) fn of(record: std::io::Result<RecordRead>) -> Option<Self> {
        match record {
            Err(error) => Some(Self::unreadable(&error)),
            Ok(RecordRead::Empty) => None,
            Ok(RecordRead::Broken(broken)) => Some(match broken.intact {
                Some(history) => Self::of_history(&history),
                None => Self::unreadable(&broken.why),
            }),
            Ok(RecordRead::Whole(history)) => Some(Self::of_history(&history)),
        }
    }

    fn of_history(history: &RunHistory) -> Self {
        let row = history.summary();
        let outcome = row.outcome.unwrap_or(Outcome::Interrupted);
        let stop_reason = row.stop_reason.unwrap_or(StopReason::Interrupted);
        let is_repeatable = outcome == Outcome::Failed && !history.has_started_change;
        Self {
            outcome,
            stop_reason,
            reason: format!("{outcome} ({stop_reason})"),
            ended_at: row.ended_at.as_deref().and_then(|at| at.parse().ok()),
            repeatable: repeatable_origin(&history.start).filter(|_| is_repeatable),
        }
    }

    /// Returns the end of a run that had begun, and whose transcript is gone or empty.
    pub(crate) fn lost() -> Self {
        Self::interrupted(format!("{} (its transcript is gone)", Outcome::Interrupted))
    }

    fn unreadable(why: &dyn std::fmt::Display) -> Self {
        let interrupted = Outcome::Interrupted;
        Self::interrupted(format!("{interrupted} (its transcript cannot be read: {why})"))
    }

    fn interrupted(reason: String) -> Self {
        let (outcome, stop_reason) = (Outcome::Interrupted, StopReason::Interrupted);
        Self { outcome, stop_reason, reason, ended_at: None, repeatable: None }
    }
}

#[cfg(test)]
mod tests;
