//! Decides whether a run that was cut off continues.
//!
//! *Source*: `docs/design/loop.md`, "After a crash".

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::{KnownFacts, RecoveryEnd, RecoveryError};
use crate::config::{Config, FileSet, Mode, RecordedFiles, SecretsMode, Trust, load};
use crate::domain::{Event, JobName, RunId, SessionStart, SlotKey, Trigger};
use crate::process::{HostWork, HostWorkError};
use crate::run::{Host, RunSpec};
use crate::store::{GivenUp, LedgerReader, ReadLine, known};

/// How often a run is resumed after the daemon died. A stop of the daemon does not count.
const MAX_RESUMPTIONS: u64 = 3;

/// Why no open run continues after a loss.
const CANCELLATIONS_LOST: &str = "guards.json is missing or cannot be read, so it is unknown whether a person had cancelled the run";

/// When daemons ran, according to the ledger. At the start, the newest of them is the previous daemon;
/// in a retry, it is this one.
#[derive(Debug, Clone, Default)]
pub(super) struct DaemonTimes {
    pub(super) last_seen: Option<DateTime<Utc>>,
    pub(super) started: Option<DateTime<Utc>>,
    /// The downtime before `started`. Also the earlier ones, if a run could not be recovered at a later
    /// start.
    pub(super) downtimes: Vec<(DateTime<Utc>, DateTime<Utc>)>,
}

impl DaemonTimes {
    /// *Errors*: SQLite's.
    pub(super) fn read(reader: &LedgerReader<'_>) -> rusqlite::Result<Self> {
        let time = |name| -> rusqlite::Result<_> {
            Ok(reader.meta(name)?.and_then(DateTime::from_timestamp_millis))
        };
        let (last_seen, started) = (time("last_seen")?, time("started")?);
        Ok(Self { last_seen, started, downtimes: reader.downtimes()? })
    }
}

/// The configurations that one recovery has loaded, by digest. Most runs began with the same one.
#[derive(Default)]
pub(super) struct RecordedConfigs(BTreeMap<String, Arc<Config>>);

impl RecordedConfigs {
    /// Returns the configuration with which a run began.
    ///
    /// *Errors*: a file system gives no answer. The inner error says why the configuration cannot be
    /// loaded; it is not kept, because the next attempt may succeed.
    async fn get(
        &mut self,
        host: &Host,
        start: &SessionStart,
    ) -> Result<Result<Arc<Config>, String>, HostWorkError> {
        if let Some(config) = self.0.get(&start.config_digest) {
            return Ok(Ok(config.clone()));
        }
        let (of_host, digest) = (host.clone(), start.config_digest.clone());
        let loaded = HostWork::of(&start.job).run(move || config_of(&of_host, &digest)).await?;
        if let Ok(config) = &loaded {
            self.0.insert(start.config_digest.clone(), config.clone());
        }
        Ok(loaded)
    }
}

/// Decides whether a run continues; returns the run as it began, and how long it has worked. If it does
/// not continue, keeps the reason in the ledger.
///
/// *Errors*: a later attempt may find out whether it continues. The inner error is how the run ends.
pub(super) async fn decide(
    host: &Host,
    run_id: &RunId,
    lines: &[ReadLine],
    KnownFacts { since, end, .. }: KnownFacts,
    configs: &mut RecordedConfigs,
) -> Result<Result<(RunSpec, Duration), RecoveryEnd>, RecoveryError> {
    let ledger = host.ledger.get().await?;
    let (id, slot) = (run_id.clone(), slot_of(lines));
    let facts = ledger.read(move |reader| {
        let known_end = match (reader.given_up(id.as_str())?, &slot) {
            (None, Some(slot)) if reader.is_decided(&id, slot)? => {
                Some(RecoveryEnd::interrupted("its slot was decided in the meantime"))
            }
            (given_up, _) => given_up.map(RecoveryEnd::given_up),
        };
        let known_end = match known_end {
            None if reader.are_cancellations_lost()? => {
                Some(RecoveryEnd::interrupted(CANCELLATIONS_LOST))
            }
            known_end => known_end,
        };
        Ok((DaemonTimes::read(reader)?, known_end))
    });
    let (times, known_end) = facts.await?;
    if let Some(end) = end.or(known_end) {
        return Ok(Err(end));
    }
    match resumable(host, run_id, lines, &times, configs).await? {
        Ok(spec) => {
            // Do not count the time after `since` as work.
            let until = times.last_seen.into_iter().chain(since).min();
            let of_work = DaemonTimes { last_seen: until, ..times };
            Ok(Ok((spec, worked(lines, &of_work))))
        }
        Err(why) => {
            // Otherwise, a warning that is written without the end would hide how old the run is.
            ledger.give_up(run_id.clone(), GivenUp::interrupted(why.clone())).await?;
            Ok(Err(RecoveryEnd::interrupted(&why)))
        }
    }
}

/// Returns the slot of a run; `None` if it has none.
fn slot_of(lines: &[ReadLine]) -> Option<SlotKey> {
    match lines.first().and_then(known) {
        Some(Event::SessionStart(start)) => {
            Some(SlotKey { job: JobName::parse(&start.job).ok()?, time: start.origin.slot? })
        }
        _ => None,
    }
}

/// Returns the run as it began, if it may continue.
///
/// *Errors*: a file system gives no answer, so a later attempt may find out. The inner error says, for
/// people, why the run ends as interrupted; it follows "the run was cut off and does not continue: ".
async fn resumable(
    host: &Host,
    run_id: &RunId,
    lines: &[ReadLine],
    times: &DaemonTimes,
    configs: &mut RecordedConfigs,
) -> Result<Result<RunSpec, String>, HostWorkError> {
    let start = match lines.first().and_then(known) {
        Some(Event::SessionStart(start)) => start.clone(),
        _ => return Ok(Err("its transcript does not begin with `session_start`".to_owned())),
    };
    let config = configs.get(host, &start).await?;
    Ok(spec_of(host, run_id, (&start, config), lines, times))
}

/// Returns the run as it began, if it may continue with this configuration.
fn spec_of(
    host: &Host,
    run_id: &RunId,
    (start, config): (&SessionStart, Result<Arc<Config>, String>),
    lines: &[ReadLine],
    times: &DaemonTimes,
) -> Result<RunSpec, String> {
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
    let config = config?;
    if let Some(line) = first_unreadable(lines) {
        return Err(format!(
            "line {line} of its record cannot be read by this version; install a newer dutyd"
        ));
    }
    let job = config.jobs.iter().find(|(name, _)| name.as_str() == start.job);
    let job = job.map(|(_, job)| job.clone()).ok_or("its configuration lacks its job")?;
    if !job.is_resumed {
        return Err("on_crash is `fail`".to_owned());
    }
    let was_stopped = lines
        .last()
        .and_then(known)
        .is_some_and(|last| matches!(last, Event::SessionSuspended { .. }));
    if deaths(lines) >= MAX_RESUMPTIONS && !was_stopped {
        return Err(format!("it was already resumed {MAX_RESUMPTIONS} times"));
    }
    let down = downtime(lines.last().and_then(moment), times, host.clock.now());
    if down > TimeDelta::from_std(job.catchup_window).unwrap_or(TimeDelta::MAX) {
        let (down, window) = (shown(down), humantime::format_duration(job.catchup_window));
        return Err(format!(
            "the daemon was down for {down}, longer than `catchup_window` ({window})"
        ));
    }
    let spec = RunSpec::recorded(run_id.clone(), config, job, start, mode_of(start)?);
    spec.map_err(|error| error.to_string())
}

/// Returns the mode in which a run began. The transcript of an earlier version lacks it.
///
/// *Errors*: the mode cannot be read, so the run must neither act nor pretend to plan.
fn mode_of(start: &SessionStart) -> Result<Mode, String> {
    match start.mode.as_str() {
        "" => Err("its first line does not say whether it acts or plans".to_owned()),
        word => Mode::parse(word).ok_or_else(|| {
            format!("its mode `{word}` is unknown to this version; install a newer dutyd")
        }),
    }
}

/// Returns the longest time in which no daemon ran since a run wrote its last line at `last`.
fn downtime(last: Option<DateTime<Utc>>, times: &DaemonTimes, now: DateTime<Utc>) -> TimeDelta {
    let newest = (times.last_seen.or(last).unwrap_or(now), now);
    let all = times.downtimes.iter().copied().chain([newest]);
    let lengths = all.map(|(from, to)| to - last.map_or(from, |last| last.max(from)));
    lengths.max().unwrap_or_default().max(TimeDelta::zero())
}

/// Loads the recorded configuration with this digest.
fn config_of(host: &Host, digest: &str) -> Result<Arc<Config>, String> {
    let kept = host.state.read_config(digest).map_err(|error| cannot_load(&error))?;
    let files: RecordedFiles =
        serde_json::from_slice(&kept).map_err(|error| cannot_load(&error))?;
    let set = FileSet::of_record(Arc::new(files));
    let (trust, secrets) = (Trust::Given, SecretsMode::Resolve);
    let loaded = load(&set, &host.environment, trust, secrets, 0, host.clock.now());
    let config = loaded.config.ok_or_else(|| cannot_load(&loaded.report.summary()))?;
    match config.digest == digest {
        true => Ok(Arc::new(config)),
        false => Err(cannot_load(&"the recorded files do not match their digest")),
    }
}

fn cannot_load(why: &dyn std::fmt::Display) -> String {
    format!("its configuration cannot be loaded: {why}")
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

/// Returns how long a run worked. Downtime and the wait to continue do not count. The result is the
/// time that the last reply or the last `session_resumed` states, plus the time from that line to
/// the last line. If the daemon died while it worked on the run, the time from the last line until
/// the daemon was last seen counts too.
pub(super) fn worked(lines: &[ReadLine], times: &DaemonTimes) -> Duration {
    let elapsed = |line: &ReadLine| match known(line) {
        Some(Event::AssistantTextEnd { elapsed_ms, model: Some(_), .. }) => Some(*elapsed_ms),
        Some(Event::SessionResumed { worked_ms, .. }) => *worked_ms,
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
    // A daemon that started after the last line never continued the run.
    let last = last.and_then(moment).filter(|last| times.started.is_none_or(|at| at <= *last));
    let silent = last.zip(times.last_seen);
    worked + silent.map_or(Duration::ZERO, |(last, seen)| between(last, seen))
}

/// Returns the number, from 1, of the first line that has an event of a later version or no valid time.
fn first_unreadable(lines: &[ReadLine]) -> Option<usize> {
    let at = lines.iter().position(|line| known(line).is_none() || moment(line).is_none());
    at.map(|at| at + 1)
}

fn moment(line: &ReadLine) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(&line.ts).ok().map(|at| at.to_utc())
}

fn shown(down: TimeDelta) -> String {
    humantime::format_duration(Duration::from_secs(down.num_seconds().unsigned_abs())).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn line(second: i64, event: &Value) -> ReadLine {
        let at = DateTime::from_timestamp(1_790_000_000 + second, 0).unwrap();
        let mut line = json!({"v": 1, "seq": 0, "ts": at.to_rfc3339(), "run_id": "01m8266a6bdtqp42bjvv982dj6", "session_id": "s", "prev": ""});
        line.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
        serde_json::from_value(line).unwrap()
    }

    fn at(second: i64) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp(1_790_000_000 + second, 0)
    }

    fn resumed(worked_ms: Option<u64>) -> Value {
        json!({"type": "session_resumed", "from_seq": 1, "count": 1, "killed": 0, "worked_ms": worked_ms})
    }

    fn suspended() -> Value {
        json!({"type": "session_suspended", "reason": "r"})
    }

    #[test]
    fn neither_downtime_nor_a_wait_to_continue_counts_as_work() {
        let warning = json!({"type": "warning", "code": "c", "message": "m"});
        let check = |lines: &[(i64, &Value)], seen: (i64, i64), expected: u64| {
            let lines: Vec<ReadLine> = lines.iter().map(|(at, event)| line(*at, event)).collect();
            let times = DaemonTimes {
                started: at(seen.0),
                last_seen: at(seen.1),
                ..DaemonTimes::default()
            };
            assert_eq!(
                worked(&lines, &times),
                Duration::from_secs(expected),
                "{lines:?} {times:?}"
            );
        };
        let (stopped, again) = (suspended(), resumed(None));
        check(&[(0, &warning), (10, &warning)], (-5, 15), 15);
        check(&[(0, &warning), (10, &stopped)], (-5, 15), 10);
        check(&[(0, &warning), (10, &warning), (100, &again), (107, &warning)], (90, 108), 18);
        // The daemon that started at 90 died before it continued the run.
        check(&[(0, &warning), (10, &warning)], (90, 7000), 10);
        // The silent work before the first death counts once the run has continued.
        check(&[(0, &warning), (100, &resumed(Some(60_000))), (107, &warning)], (90, 107), 67);
    }

    #[test]
    fn a_run_that_a_daemon_could_not_continue_keeps_its_downtime() {
        let check = |last: i64, (periods, seen): (&[(i64, i64)], i64), now: i64, expected: i64| {
            let downtimes = periods.iter().map(|(from, to)| (at(*from).unwrap(), at(*to).unwrap()));
            let times =
                DaemonTimes { downtimes: downtimes.collect(), started: None, last_seen: at(seen) };
            let found = downtime(at(last), &times, at(now).unwrap());
            assert_eq!(found, TimeDelta::seconds(expected), "{last} {times:?} {now}");
        };
        // Its own daemon died at 4000, during a call that began at 100.
        check(100, (&[(10, 20)], 4000), 4050, 50);
        // The next daemon tries again.
        check(100, (&[(4000, 4050)], 4053), 4055, 50);
        // The daemon before it died at 110, and the next one started at 5000.
        check(100, (&[(110, 5000)], 5003), 5005, 4890);
        // One more starts at 6010, after that one died at 6000.
        check(100, (&[(110, 5000)], 6000), 6010, 4890);
        // The run wrote a line meanwhile.
        check(5500, (&[(110, 5000)], 6000), 6010, 10);
        check(5500, (&[(110, 5000), (6000, 6100)], 6110), 6111, 100);
        let unknown = DaemonTimes::default();
        assert_eq!(downtime(at(100), &unknown, at(150).unwrap()), TimeDelta::seconds(50));
    }

    // proves STATE-7
    #[test]
    fn a_line_of_a_later_version_or_without_a_time_is_found() {
        let warning = line(0, &json!({"type": "warning", "code": "c", "message": "m"}));
        let later = line(0, &json!({"type": "of_a_later_version"}));
        let untimed = ReadLine { ts: "noon".to_owned(), ..warning.clone() };
        assert_eq!(first_unreadable(std::slice::from_ref(&warning)), None);
        for bad in [later, untimed] {
            assert_eq!(first_unreadable(&[warning.clone(), bad]), Some(2));
        }
    }

    #[test]
    fn a_stop_is_not_a_death() {
        let warning = json!({"type": "warning", "code": "c", "message": "m"});
        let again = resumed(None);
        let events = [&warning, &again, &warning, &suspended(), &again, &warning, &again];
        let lines: Vec<ReadLine> = events.iter().map(|event| line(0, event)).collect();
        assert_eq!((deaths(&lines), resumptions(&lines)), (2, 3));
    }
}
