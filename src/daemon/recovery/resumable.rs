//! Decides whether a run that was cut off continues.
//!
//! *Source*: `docs/design/loop.md`, "After a crash".

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::config::{Config, FileSet, RecordedFiles, SecretsMode, Trust, load};
use crate::domain::{Event, RunId, SessionStart, Trigger};
use crate::run::{Host, RunSpec, TriggerFacts};
use crate::store::{ReadLine, known};

/// How often a run is resumed after the daemon died. A stop of the daemon does not count.
const MAX_RESUMPTIONS: u64 = 3;

/// Returns the run as it began, if it may continue.
///
/// *Errors*: why it ends as interrupted, for people; the reason follows "the daemon stopped during
/// the run: ".
pub(super) fn resumable(
    host: &Host,
    run_id: &RunId,
    lines: &[ReadLine],
    last_seen: Option<DateTime<Utc>>,
) -> Result<RunSpec, String> {
    let Some(Event::SessionStart(start)) = lines.first().and_then(known) else {
        return Err("its transcript does not begin with `session_start`".to_owned());
    };
    if start.trigger == Trigger::Apply {
        return Err("a run of `apply` does not continue".to_owned());
    }
    if start.interactive {
        return Err("an interactive run does not continue".to_owned());
    }
    let config = config_of(host, start)?;
    let job = config.jobs.iter().find(|(name, _)| name.as_str() == start.job);
    let job = job.map(|(_, job)| job.clone()).ok_or("its configuration lacks its job")?;
    if !job.is_resumed {
        return Err("on_crash is `fail`".to_owned());
    }
    if deaths(lines) >= MAX_RESUMPTIONS {
        return Err(format!("it was already resumed {MAX_RESUMPTIONS} times"));
    }
    let stopped = lines.last().and_then(moment).max(last_seen);
    let down = stopped.map(|stopped| host.clock.now() - stopped).unwrap_or_default();
    if down > TimeDelta::from_std(job.catchup_window).unwrap_or(TimeDelta::MAX) {
        let (down, window) = (shown(down), humantime::format_duration(job.catchup_window));
        return Err(format!(
            "the daemon was down for {down}, longer than `catchup_window` ({window})"
        ));
    }
    let trigger = TriggerFacts {
        trigger: start.trigger,
        scheduled_for: start.scheduled_for,
        epoch: start.epoch,
        attempt: start.attempt,
        by: start.by.clone(),
    };
    let prompt = start.overrides.prompt.clone();
    let spec = RunSpec::new(run_id.clone(), config, job, trigger, &start.vars, prompt);
    let spec = spec.map_err(|error| error.to_string())?;
    Ok(RunSpec { is_queued: true, ..spec.with_plan(start.mode == "plan") })
}

/// Loads the configuration with which a run began.
fn config_of(host: &Host, start: &SessionStart) -> Result<Arc<Config>, String> {
    let digest = &start.config_digest;
    let cannot = |why: &dyn std::fmt::Display| format!("its configuration cannot be loaded: {why}");
    let kept = host.state.read_config(digest).map_err(|error| cannot(&error))?;
    let files: RecordedFiles = serde_json::from_slice(&kept).map_err(|error| cannot(&error))?;
    let set = FileSet::of_record(Arc::new(files));
    let (trust, secrets) = (Trust::Given, SecretsMode::Resolve);
    let loaded = load(&set, &host.environment, trust, secrets, 0, host.clock.now());
    let config = loaded.config.ok_or_else(|| cannot(&loaded.report.summary()))?;
    match config.digest == *digest {
        true => Ok(Arc::new(config)),
        false => Err(cannot(&"the kept files were changed")),
    }
}

/// Returns how often the run was resumed after the daemon died.
fn deaths(lines: &[ReadLine]) -> u64 {
    let resumed = |pair: &&[ReadLine]| match pair {
        [before, after] => {
            matches!(known(after), Some(Event::SessionResumed { .. }))
                && !matches!(known(before), Some(Event::SessionSuspended { .. }))
        }
        _ => false,
    };
    lines.windows(2).filter(resumed).count() as u64
}

/// Returns how often the run was resumed.
pub(super) fn resumptions(lines: &[ReadLine]) -> u64 {
    let is_resumed = |line: &&ReadLine| matches!(known(line), Some(Event::SessionResumed { .. }));
    lines.iter().filter(is_resumed).count() as u64
}

/// Returns how long a run worked, without the time in which the daemon was down: what its last reply
/// says, and the time from there to the last line. If the daemon died, also the time from there to
/// when the daemon was last seen.
pub(super) fn worked(lines: &[ReadLine], last_seen: Option<DateTime<Utc>>) -> Duration {
    let elapsed = |line: &ReadLine| match known(line) {
        Some(Event::AssistantTextEnd { elapsed_ms, model: Some(_), .. }) => Some(*elapsed_ms),
        _ => None,
    };
    let replied = lines.iter().enumerate().rev().find_map(|(at, line)| Some((at, elapsed(line)?)));
    let (from, mut worked) = match replied {
        Some((at, elapsed)) => (at, Duration::from_millis(elapsed)),
        None => (0, Duration::ZERO),
    };
    let between =
        |before: DateTime<Utc>, after: DateTime<Utc>| (after - before).to_std().unwrap_or_default();
    for pair in lines.get(from..).unwrap_or_default().windows(2) {
        if let [before, after] = pair
            && !matches!(known(after), Some(Event::SessionResumed { .. }))
            && let (Some(before), Some(after)) = (moment(before), moment(after))
        {
            worked += between(before, after);
        }
    }
    let last =
        lines.last().filter(|last| !matches!(known(last), Some(Event::SessionSuspended { .. })));
    let silent = last.and_then(moment).zip(last_seen);
    worked + silent.map_or(Duration::ZERO, |(last, seen)| between(last, seen))
}

fn moment(line: &ReadLine) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(&line.ts).ok().map(|at| at.to_utc())
}

fn shown(down: TimeDelta) -> String {
    humantime::format_duration(Duration::from_secs(down.num_seconds().unsigned_abs())).to_string()
}
