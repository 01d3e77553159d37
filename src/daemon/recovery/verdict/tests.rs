//! Tests the verdict about an open run: `tests/daemon/verdicts.yaml` decides every combination of what
//! may be left of a run.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::super::evidence::KnownFacts;
use super::*;
use crate::config::Config;
use crate::daemon::book::{Book, Input, Moment};
use crate::daemon::recovery::Resumable;
use crate::daemon::tests::config;
use crate::domain::{Epoch, JobName, Person, SlotKey};
use crate::run::Resumption;
use crate::store::{OpenSlot, ReadLine, StateDir, StateWord};

const RUN_ID: &str = "01m8266a6bdtqp42bjvv982dj6";

fn at(second: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(1_790_000_000 + second, 0)
}

fn line(second: i64, event: &Value) -> ReadLine {
    let at = at(second).unwrap().to_rfc3339();
    let mut line =
        json!({"v": 1, "seq": 0, "ts": at, "run_id": RUN_ID, "session_id": "s", "prev": ""});
    line.as_object_mut().unwrap().extend(event.as_object().unwrap().clone());
    serde_json::from_value(line).unwrap()
}

fn start() -> Value {
    json!({
        "type": "session_start", "job": "j", "trigger": "manual", "scheduled_for": null, "attempt": 1,
        "mode": "act", "model": "m", "provider": "p", "profile": "generic", "tools": [], "policy": {},
        "config_digest": "d", "environment": "local",
        "sandbox": {"mode": "off", "landlock_abi": null, "cgroup": null}, "dutyd_version": "0", "host": "h",
    })
}

fn resumed(worked_ms: Option<u64>) -> Value {
    json!({"type": "session_resumed", "from_seq": 1, "count": 1, "killed": 0, "worked_ms": worked_ms})
}

fn warning() -> Value {
    json!({"type": "warning", "code": "c", "message": "m"})
}

fn history(lines: &[(i64, Value)]) -> RunHistory {
    let first = [(0, start())];
    let lines = first.iter().chain(lines).map(|(second, event)| line(*second, event));
    RunHistory::fold(lines).unwrap()
}

#[test]
fn neither_downtime_nor_a_wait_to_continue_counts_as_work() {
    let check = |lines: &[(i64, Value)], started: i64, last_seen: i64, expected: u64| {
        let (started, last_seen) = (at(started), at(last_seen));
        let times = DaemonTimes { started, last_seen, ..DaemonTimes::default() };
        let found = worked(&history(lines), &times);
        assert_eq!(found, Duration::from_secs(expected), "{lines:?} {times:?}");
    };
    let stopped = json!({"type": "session_suspended", "reason": "r"});
    check(&[(10, warning())], -5, 15, 15);
    check(&[(10, stopped)], -5, 15, 10);
    check(&[(10, warning()), (100, resumed(None)), (107, warning())], 90, 108, 18);
    // The daemon that started at 90 died before it continued the run.
    check(&[(10, warning())], 90, 7000, 10);
    // The silent work before the first death counts once the run has continued.
    check(&[(100, resumed(Some(60_000))), (107, warning())], 90, 107, 67);
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

/// A combination, or the values of one that a row matches.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    record: Option<Vec<String>>,
    queue: Option<bool>,
    slot: Option<Vec<String>>,
    given_up: Option<Vec<String>>,
    guards: Option<Vec<String>>,
    config: Option<Vec<String>>,
    process: Option<Vec<String>>,
    down: Option<Vec<String>>,
    verdict: String,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    record: &'static str,
    queue: bool,
    slot: &'static str,
    given_up: &'static str,
    guards: &'static str,
    config: &'static str,
    process: &'static str,
    down: &'static str,
}

const RECORDS: &[&str] = &[
    "absent",
    "empty",
    "outputs",
    "begun",
    "ended",
    "altered",
    "headless",
    "newer",
    "apply",
    "interactive",
    "override",
    "request",
    "mode",
    "often",
];

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for record in RECORDS {
        for queue in [false, true] {
            for slot in ["none", "queued", "running", "decided"] {
                for given_up in ["none", "cancelled", "interrupted"] {
                    for guards in ["kept", "lost"] {
                        for config in ["same", "fail", "without_job", "unloadable"] {
                            for process in ["gone", "alive"] {
                                for down in ["short", "long"] {
                                    cases.push(Case {
                                        record,
                                        queue,
                                        slot,
                                        given_up,
                                        guards,
                                        config,
                                        process,
                                        down,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    cases
}

impl Row {
    fn matches(&self, case: &Case) -> bool {
        let is = |values: &Option<Vec<String>>, value: &str| {
            values.as_ref().is_none_or(|values| values.iter().any(|of| of == value))
        };
        is(&self.record, case.record)
            && self.queue.is_none_or(|queue| queue == case.queue)
            && is(&self.slot, case.slot)
            && is(&self.given_up, case.given_up)
            && is(&self.guards, case.guards)
            && is(&self.config, case.config)
            && is(&self.process, case.process)
            && is(&self.down, case.down)
    }
}

/// The configurations of all cases.
struct Configs {
    same: Arc<Config>,
    fail: Arc<Config>,
    without_job: Arc<Config>,
}

fn record(word: &str) -> Record {
    let with = |key: &str, value: Value| {
        let mut start = start();
        start[key] = value;
        RunHistory::fold([line(0, &start), line(1, &warning())]).unwrap()
    };
    let found = match word {
        "absent" => return Record::Absent,
        "empty" => return Record::Empty { has_outputs: false },
        "outputs" => return Record::Empty { has_outputs: true },
        "altered" => {
            let why = "`prev` does not match the hash of the previous line".to_owned();
            let intact = Some(Box::new(history(&[(1, warning())])));
            return Record::Broken(BrokenRecord { intact, lines: 2, why });
        }
        "headless" => {
            let mut fold = crate::run::HistoryFold::default();
            fold.push(line(0, &warning()));
            let RecordRead::Broken(broken) = fold.end() else { panic!() };
            return Record::Broken(broken);
        }
        "begun" => history(&[(1, warning())]),
        "ended" => history(&[(
            1,
            json!({
                "type": "session_end", "outcome": "succeeded", "stop_reason": "completed", "result": "r",
                "verdict": null, "iterations": 1, "tool_calls": 0, "tools_used": [],
                "usage": {"input_tokens": 1, "output_tokens": 1}, "cost_usd": null, "duration_ms": 1,
                "survivors": 0, "error": null,
            }),
        )]),
        "newer" => history(&[(1, json!({"type": "of_a_later_version"}))]),
        "apply" => with("trigger", json!("apply")),
        "interactive" => with("interactive", json!(true)),
        "override" => with("overrides", json!({"temper": 1})),
        "request" => {
            let request = json!({"vars": {}, "prompt": null, "plan": false, "intent": "plan"});
            with("request", request)
        }
        "mode" => with("mode", json!("guess")),
        "often" => history(&[(1, resumed(None)), (1, resumed(None)), (1, resumed(None))]),
        _ => panic!("{word}"),
    };
    let end = RecordEnd { lines: found.lines, hash: "h".to_owned() };
    Record::Whole { history: Box::new(found), end }
}

fn evidence(case: &Case, configs: &Configs) -> Evidence {
    let person = Person { uid: 7, user: "ann".to_owned() };
    let given_up = match case.given_up {
        "cancelled" => Some(GivenUp::cancelled("ann had cancelled it".to_owned(), Some(person))),
        "interrupted" => Some(GivenUp::interrupted("a bug".to_owned())),
        _ => None,
    };
    let run_id = RunId::parse(RUN_ID).unwrap();
    let slot = matches!(case.slot, "queued" | "running").then(|| OpenSlot {
        key: SlotKey::new(JobName::parse("j").unwrap(), Epoch::FIRST, at(0).unwrap()),
        run_id: run_id.clone(),
        state: serde_json::from_value::<StateWord>(json!(case.slot)).unwrap(),
        is_backfill: false,
        zone: "UTC".to_owned(),
    });
    Evidence {
        run_id,
        record: record(case.record),
        torn_bytes: 0,
        is_queued: case.queue,
        slot,
        is_slot_decided: case.slot == "decided",
        given_up,
        are_cancellations_lost: case.guards == "lost",
        times: DaemonTimes { last_seen: at(2), started: at(-9), downtimes: Vec::new() },
        config: match case.config {
            "same" => RecordedConfig::Loaded(configs.same.clone()),
            "fail" => RecordedConfig::Loaded(configs.fail.clone()),
            "without_job" => RecordedConfig::Loaded(configs.without_job.clone()),
            _ => RecordedConfig::Unloadable("its configuration cannot be loaded".to_owned()),
        },
        known: KnownFacts { is_alive: case.process == "alive", ..KnownFacts::default() },
    }
}

/// Describes a verdict as the table does.
fn describe(verdict: Verdict) -> String {
    match verdict {
        Verdict::Forget { given_up: None } => "forget".to_owned(),
        Verdict::Forget { given_up: Some(given_up) } => {
            format!("forget as {}", given_up.stop_reason)
        }
        Verdict::Interrupt(BrokenRecord { lines, why, .. }) => {
            format!("interrupt after {lines}: {why}")
        }
        Verdict::Settle { .. } => "settle".to_owned(),
        Verdict::End { end, reason, .. } => {
            let by = end.by.map(|by| format!(" by {}", by.user)).unwrap_or_default();
            let kept = if reason.is_some() { ", kept" } else { "" };
            let prefix = "the run was cut off and does not continue: ";
            let why = end.error.strip_prefix(prefix).unwrap();
            assert!(reason.as_deref().is_none_or(|reason| reason == why), "{reason:?} {why}");
            format!("end as {}{by}{kept}: {why}", end.stop_reason)
        }
        Verdict::Resume { spec, worked, .. } => {
            assert!(spec.is_queued && worked == Duration::from_secs(2), "{worked:?}");
            "resume".to_owned()
        }
        Verdict::Wait(why) => format!("wait: {why}"),
    }
}

// proves STATE-7
#[test]
fn every_combination_of_what_is_left_of_a_run_has_its_verdict() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/verdicts.yaml");
    let rows: Vec<Row> = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let job = |rest: &str| {
        format!("version: 1\njobs: [{{name: j, prompt: x, catchup_window: 1h{rest}}}]\n")
    };
    let configs = Configs {
        same: config(&job("")),
        fail: config(&job(", on_crash: fail")),
        without_job: config("version: 1\njobs: [{name: other, prompt: x}]\n"),
    };
    let mut decides = vec![false; rows.len()];
    for case in cases() {
        let row = rows.iter().position(|row| row.matches(&case));
        let row = row.unwrap_or_else(|| panic!("no row decides {case:?}"));
        decides[row] = true;
        let now = at(if case.down == "long" { 2 * 3600 + 2 } else { 3 }).unwrap();
        let found = describe(verdict(evidence(&case, &configs), now));
        assert_eq!(found, rows[row].verdict, "{case:?}");
    }
    let idle: Vec<&Row> =
        rows.iter().zip(decides).filter(|(_, decides)| !decides).map(|(row, _)| row).collect();
    assert!(idle.is_empty(), "rows that decide nothing: {idle:?}");
}

// proves STATE-7
#[test]
fn the_next_attempt_of_a_run_that_planned_plans() {
    let end = json!({
        "type": "session_end", "outcome": "failed", "stop_reason": "max_iterations", "result": null,
        "verdict": null, "iterations": 1, "tool_calls": 0, "tools_used": [],
        "usage": {"input_tokens": 1, "output_tokens": 1}, "cost_usd": null, "duration_ms": 1,
        "survivors": 0, "error": "e",
    });
    let config = config("version: 1\njobs: [{name: j, prompt: x, mode: plan}]\n");
    let job = config.jobs.get("j").unwrap().clone();
    for request in [Value::Null, json!({"vars": {}, "prompt": null, "plan": false})] {
        let mut start = start();
        (start["mode"], start["request"]) = (json!("plan"), request);
        let history = || RunHistory::fold([line(0, &start), line(1, &end)]).unwrap();
        let run_id = RunId::parse(RUN_ID).unwrap();
        let (of_run, job) = (config.clone(), job.clone());
        let start = &history().start;
        let spec = RunSpec::recorded(run_id.clone(), of_run, job, start, Mode::Plan).unwrap();
        // The run continues.
        let temp = tempfile::tempdir().unwrap();
        let lock = StateDir::new(temp.path()).lock_run(&run_id, "j").unwrap();
        let (worked, killed, cut_bytes) = (Duration::ZERO, 0, 0);
        let resumption = Resumption { lock, history: history(), worked, killed, cut_bytes };
        let now = at(0).unwrap();
        let (at, is_stopping) = (tokio::time::Instant::now(), false);
        let moment = Moment { config: &config, now, believed: now, at, is_stopping };
        let mut book = Book::default();
        book.step(Input::Resumed(vec![Resumable { spec, resumption }]), &moment);
        let resumed = book.get(&run_id).unwrap().origin.clone().unwrap();
        // Recovery finds it ended.
        let ended = RecordedEnd::of(Ok(RecordRead::Whole(Box::new(history())))).unwrap();
        for origin in [resumed, ended.repeatable.unwrap()] {
            assert!(origin.next_attempt().request.unwrap().plan, "{start:?}");
        }
    }
    // A run that may have planned is not repeated.
    let mut start = start();
    start["mode"] = json!("guess");
    let history = RunHistory::fold([line(0, &start), line(1, &end)]).unwrap();
    let ended = RecordedEnd::of(Ok(RecordRead::Whole(Box::new(history)))).unwrap();
    assert!(ended.repeatable.is_none());
}
