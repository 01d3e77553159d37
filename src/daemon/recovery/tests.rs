use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::clock::SystemClock;
use crate::config::Environment;
use crate::domain::{Epoch, JobName, Origin, Outcome, SlotKey, Trigger};
use crate::sinks::Observers;
use crate::store::{
    Claim, HeadState, QueuedRun, RecordFacts, RunFilter, Slot, SlotState, StateDir, verify,
};

/// The transcripts of ended runs, each with one or two calls.
fn recorded() -> Vec<PathBuf> {
    let day = "tests/fixtures/formats/v1/runs/2026/11/22";
    let runs = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(day)).unwrap();
    runs.map(|run| run.unwrap().path().join("transcript.jsonl")).collect()
}

/// A state directory with one run whose lock file no process holds.
struct Crashed {
    temp: tempfile::TempDir,
    run_id: RunId,
}

impl Crashed {
    fn new(path: &Path, transcript: &[u8]) -> Self {
        let run_id = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let crashed =
            Self { temp: tempfile::tempdir().unwrap(), run_id: RunId::parse(run_id).unwrap() };
        let state = crashed.state();
        state.create().unwrap();
        // A daemon makes the ledger before the first record.
        drop(crate::store::Ledger::open(crashed.temp.path(), None).unwrap());
        let began = chrono::DateTime::parse_from_rfc3339("2026-11-22T00:00:00Z").unwrap();
        let run = state.create_run(&crashed.run_id, began.to_utc()).unwrap();
        std::fs::write(run.transcript(), transcript).unwrap();
        drop(state.lock_run(&crashed.run_id, "j").unwrap());
        crashed
    }

    fn state(&self) -> StateDir {
        StateDir::new(self.temp.path())
    }

    fn transcript(&self) -> String {
        let run = self.state().find_run(&self.run_id).unwrap();
        std::fs::read_to_string(run.transcript()).unwrap()
    }

    fn host(&self) -> Host {
        Host::new(
            self.state(),
            std::sync::Arc::new(SystemClock),
            Environment::default(),
            Observers::default(),
            Default::default(),
        )
    }

    /// Recovers, then checks that no run stays open and that the record matches the ledger.
    async fn recover(&self) -> Recovered {
        let host = self.host();
        let recovered = recover(&host, &Redactor::default()).await.unwrap().ended;
        let [recovered] = recovered.try_into().unwrap();
        assert!(!self.state().is_open(&self.run_id));
        assert_eq!(recover(&host, &Redactor::default()).await.unwrap().ended, []);
        if recovered.began {
            let ledger = host.ledger.get().await.unwrap();
            let run_id = self.run_id.clone();
            let end = ledger.read(move |reader| reader.record_end(run_id.as_str())).await.unwrap();
            let facts = RecordFacts { end, ..RecordFacts::default() };
            let report = verify(&self.state().find_run(&self.run_id).unwrap(), &facts).unwrap();
            assert!(report.ok, "{report:?}");
            assert_eq!(report.head, HeadState::Match);
        }
        recovered
    }
}

/// Returns the lines with the hashes that belong to them.
fn rehashed(text: &str) -> String {
    use sha2::{Digest as _, Sha256};
    let (mut prev, mut lines) = (crate::domain::FIRST_PREV.to_owned(), String::new());
    for line in text.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value["prev"] = prev.into();
        let line = value.to_string();
        prev = hex::encode(Sha256::digest(&line));
        lines += &format!("{line}\n");
    }
    lines
}

fn values(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_run_cut_after_any_line_keeps_its_lines_and_gets_one_end() {
    for path in recorded() {
        let whole = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = whole.split_inclusive('\n').collect();
        for count in 1..lines.len() {
            let before = lines[..count].concat();
            let crashed = Crashed::new(&path, before.as_bytes());
            let recovered = crashed.recover().await;
            assert_eq!((recovered.began, recovered.had_ended), (true, false));
            let after = crashed.transcript();
            let added = values(after.strip_prefix(&before).unwrap());
            let (end, warnings) = added.split_last().unwrap();
            assert_eq!(end["type"], "session_end");
            assert_eq!(end["outcome"], "interrupted");
            let error = end["error"].as_str().unwrap();
            let why =
                "the run was cut off and does not continue: its configuration cannot be loaded";
            assert!(error.starts_with(why), "{error}");
            let of = |kind: &str| -> Vec<Value> {
                let lines = values(&before).into_iter().filter(|line| line["type"] == kind);
                lines.map(|line| line["call_id"].clone()).collect()
            };
            let ended = of("tool_call_end");
            let changes = values(&before)
                .into_iter()
                .filter(|line| line["type"] == "tool_call_start" && line["category"] != "read");
            let open: Vec<Value> = changes
                .map(|line| line["call_id"].clone())
                .filter(|id| !ended.contains(id))
                .collect();
            assert_eq!(warnings.len(), open.len(), "{warnings:?}");
            for (warning, call_id) in warnings.iter().zip(&open) {
                assert_eq!(warning["code"], "effect_unknown");
                let message = warning["message"].as_str().unwrap();
                assert!(message.contains(call_id.as_str().unwrap()), "{message}");
            }
            let used: Vec<Value> = values(&before)
                .into_iter()
                .filter(|line| line["type"] == "tool_call_start")
                .map(|line| line["name"].clone())
                .collect();
            assert_eq!(end["tools_used"].as_array().unwrap().len(), used.len());
            assert!(used.iter().all(|name| end["tools_used"].as_array().unwrap().contains(name)));
        }
    }
}

#[tokio::test]
async fn a_torn_last_line_is_cut_off_and_named() {
    let path = &recorded()[0];
    let whole = std::fs::read(path).unwrap();
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    for (line, last) in ends.iter().zip(&ends[1..]) {
        // After the first byte of the line, in its middle, and just before its newline.
        for at in [line + 2, usize::midpoint(*line, *last), *last] {
            let crashed = Crashed::new(path, &whole[..at]);
            let recovered = crashed.recover().await;
            assert_eq!(recovered.cut_bytes, (at - line - 1) as u64);
            let after = crashed.transcript();
            assert!(after.as_bytes().starts_with(&whole[..=*line]));
            let added = values(str::from_utf8(&after.as_bytes()[line + 1..]).unwrap());
            assert_eq!(added[0]["code"], "torn_tail");
            assert_eq!(added.last().unwrap()["type"], "session_end");
        }
    }
}

#[tokio::test]
async fn a_run_that_had_ended_gets_no_second_end() {
    for path in recorded() {
        let whole = std::fs::read(&path).unwrap();
        let crashed = Crashed::new(&path, &whole);
        let recovered = crashed.recover().await;
        assert!(recovered.had_ended);
        assert_eq!(crashed.transcript().as_bytes(), whole);
    }
}

#[tokio::test]
async fn a_run_whose_transcript_is_broken_keeps_it_as_it_is() {
    let path = &recorded()[0];
    let whole = std::fs::read_to_string(path).unwrap();
    let cut: String = whole.split_inclusive('\n').take(4).collect();
    let newer = cut.replace("\"v\":1", "\"v\":2");
    let unread = cut.replacen("\"source\":\"job\"", "\"source\":\"of a later version\"", 1);
    assert_ne!(unread, cut);
    // The second variant has valid hashes, as a later version would write them.
    for broken in [whole.replacen("\"type\"", "\"type", 3), rehashed(&unread), newer] {
        let crashed = Crashed::new(path, broken.as_bytes());
        let host = crashed.host();
        let [recovered] =
            recover(&host, &Redactor::default()).await.unwrap().ended.try_into().unwrap();
        assert!(recovered.began && !recovered.had_ended);
        assert!(!crashed.state().is_open(&crashed.run_id));
        assert_eq!(crashed.transcript(), broken);
        let rows =
            host.index.get().await.unwrap().runs(RunFilter { limit: 9, ..RunFilter::default() });
        let [row] = rows.await.unwrap().try_into().unwrap();
        assert_eq!(row.outcome, Some(Outcome::Interrupted));
    }
}

#[tokio::test]
async fn a_run_that_a_process_holds_is_left_alone() {
    let path = &recorded()[0];
    let whole = std::fs::read_to_string(path).unwrap();
    let before: String = whole.split_inclusive('\n').take(4).collect();
    let crashed = Crashed::new(path, before.as_bytes());
    let _held = crashed.state().lock_run(&crashed.run_id, "j").unwrap();
    assert_eq!(recover(&crashed.host(), &Redactor::default()).await.unwrap().ended, []);
    assert_eq!(crashed.transcript(), before);
}

// proves STATE-1
#[tokio::test]
async fn a_run_whose_lines_are_gone_is_interrupted_and_not_begun_again() {
    for transcript in [&b""[..], &[0; 4096]] {
        let crashed = Crashed::new(&recorded()[0], transcript);
        let run = crashed.state().find_run(&crashed.run_id).unwrap();
        std::fs::create_dir(run.outputs()).unwrap();
        let host = crashed.host();
        let [recovered] =
            recover(&host, &Redactor::default()).await.unwrap().ended.try_into().unwrap();
        assert!(recovered.began && !crashed.state().is_open(&crashed.run_id));
        assert_eq!(std::fs::read(run.transcript()).unwrap(), transcript);
        let index = host.index.get().await.unwrap();
        let filter = || RunFilter { limit: 9, ..RunFilter::default() };
        for _ in 0..2 {
            let [row] = index.runs(filter()).await.unwrap().try_into().unwrap();
            assert_eq!((row.job.as_str(), row.outcome), ("j", Some(Outcome::Interrupted)));
            index.rebuild(crashed.state()).await.unwrap();
        }
    }
}

// proves CRON-1
#[tokio::test]
async fn a_run_that_was_cancelled_before_it_began_does_not_run() {
    let crashed = Crashed::new(&recorded()[0], b"");
    let (host, run_id) = (crashed.host(), &crashed.run_id);
    let ledger = host.ledger.get().await.unwrap();
    let due_at = host.clock.now();
    let key = SlotKey::new(JobName::parse("j").unwrap(), Epoch::FIRST, due_at);
    let slot = Slot {
        key: key.clone(),
        span: None,
        is_backfill: false,
        state: SlotState::Running,
        run_id: Some(run_id.clone()),
        reason: "running".to_owned(),
        zone: "UTC".to_owned(),
        config_digest: String::new(),
        left: None,
        queued: None,
    };
    ledger.claim(Claim { slots: vec![slot], ..Claim::default() }, due_at).await.unwrap();
    let origin = Origin::of_slot(Trigger::Schedule, key.time, None);
    let queued = QueuedRun { run_id: run_id.clone(), job: key.job, origin, not_before: None };
    ledger.enqueue(queued).await.unwrap();
    let cancelled = GivenUp::cancelled("ann had cancelled it".to_owned(), None);
    ledger.give_up(run_id.clone(), cancelled).await.unwrap();
    let recovered = recover(&host, &Redactor::default()).await.unwrap().ended;
    assert!(!recovered[0].began);
    let id = run_id.clone();
    let rows = ledger.read(move |reader| {
        Ok((reader.slots(None, None, None)?, reader.queue_rows()?, reader.given_up(id.as_str())?))
    });
    let (slots, queue, given_up) = rows.await.unwrap();
    let reason = "ann had cancelled it before it began";
    assert_eq!((slots[0].state.as_str(), slots[0].reason.as_str()), ("skipped", reason));
    assert_eq!(queue[0].stop_reason, Some(StopReason::Cancelled));
    assert_eq!(given_up, None);
}

// proves STATE-1
#[tokio::test]
async fn a_run_that_was_cancelled_before_the_crash_ends_as_cancelled_by_its_person() {
    let path = &recorded()[0];
    let begun: String =
        std::fs::read_to_string(path).unwrap().split_inclusive('\n').take(4).collect();
    let person = Person { uid: 7, user: "ann".to_owned() };
    let given_up = |by: Option<&Person>| GivenUp::cancelled("it was cancelled".into(), by.cloned());
    let failed = GivenUp::interrupted("the disk was full".into());
    for (first, second, outcome, by) in [
        (given_up(Some(&person)), failed.clone(), "cancelled", serde_json::json!(person)),
        (given_up(None), given_up(Some(&person)), "cancelled", Value::Null),
        (failed, given_up(Some(&person)), "interrupted", Value::Null),
    ] {
        let crashed = Crashed::new(path, begun.as_bytes());
        let host = crashed.host();
        for each in [first, second] {
            let ledger = host.ledger.get().await.unwrap();
            ledger.give_up(crashed.run_id.clone(), each).await.unwrap();
        }
        crashed.recover().await;
        let end = values(&crashed.transcript()).pop().unwrap();
        let outcome = serde_json::json!(outcome);
        assert_eq!((&end["outcome"], &end["stop_reason"]), (&outcome, &outcome));
        assert_eq!(end["by"], by, "the first reason counts");
    }
}

// proves STATE-7
#[tokio::test]
async fn an_ended_run_that_a_blank_index_lacks_is_not_taken_for_an_open_one() {
    let path = &recorded()[0];
    let crashed = Crashed::new(path, &std::fs::read(path).unwrap());
    let lock = crashed.temp.path().join("runs/open").join(crashed.run_id.as_str());
    std::fs::remove_file(lock).unwrap();
    // Like the start of the daemon, which rebuilds a new index later.
    let index = crate::store::Index::open(crashed.temp.path(), None).unwrap().0;
    let index = crate::store::SharedIndex::opened(&crashed.state(), index);
    let host = Host { index, ..crashed.host() };
    let recovery = recover(&host, &Redactor::default()).await.unwrap();
    assert_eq!(recovery.ended, []);
    assert!(recovery.must_rebuild_index, "the index lacks the run");
}

#[tokio::test]
async fn a_run_of_the_first_day_before_the_bound_is_not_unknown() {
    let path = &recorded()[0];
    let crashed = Crashed::new(path, &std::fs::read(path).unwrap());
    crashed.recover().await;
    let host = crashed.host();
    let ulid: ulid::Ulid = crashed.run_id.as_str().parse().unwrap();
    let begun = DateTime::<Utc>::from(ulid.datetime());
    let bound = begun + chrono::TimeDelta::days(1) + chrono::TimeDelta::milliseconds(1);
    let ledger = host.ledger.get().await.unwrap();
    ledger.set_meta("clean_since", bound.timestamp_millis()).await.unwrap();
    let recovery = recover(&host, &Redactor::default()).await.unwrap();
    assert!(recovery.ended.is_empty() && !recovery.must_rebuild_index);
}

// proves STATE-8
#[tokio::test]
async fn a_plan_that_waits_although_its_run_is_gone_was_decided() {
    let crashed = Crashed::new(&recorded()[0], b"");
    let host = crashed.host();
    let plan = |run_id: &RunId| crate::domain::Plan {
        plan_id: run_id.to_string(),
        job: "j".to_owned(),
        run_id: run_id.to_string(),
        created_at: host.clock.now(),
        state: crate::domain::PlanState::Waiting,
        steps: Vec::new(),
        reads: Vec::new(),
    };
    let gone = RunId::from_ulid(ulid::Ulid::from_parts(1_600_000_000_000, 1));
    let ledger = host.ledger.get().await.unwrap();
    for run_id in [&crashed.run_id, &gone] {
        ledger.add_plan(plan(run_id)).await.unwrap();
    }
    assert_eq!(restored::pruned_plans(&host).await.unwrap(), [gone.to_string()]);
}

#[tokio::test]
async fn the_bound_is_the_oldest_run_that_is_not_over() {
    let crashed = Crashed::new(&recorded()[0], b"");
    let host = crashed.host();
    let kept = async || bound::read_bound(&host).await.unwrap() + chrono::TimeDelta::days(1);
    let begin = |run_id: &RunId| {
        let ulid: ulid::Ulid = run_id.as_str().parse().unwrap();
        DateTime::<Utc>::from(ulid.datetime())
    };
    store_bound(&host, None).await.unwrap();
    assert_eq!(kept().await, begin(&crashed.run_id), "it has a lock file");
    let older = RunId::from_ulid(ulid::Ulid::from_parts(1_600_000_000_000, 1));
    store_bound(&host, Some(older.clone())).await.unwrap();
    assert_eq!(kept().await, begin(&older), "it is active");
    recover(&host, &Redactor::default()).await.unwrap();
    let before = host.clock.now();
    store_bound(&host, None).await.unwrap();
    assert!(kept().await >= before - chrono::TimeDelta::milliseconds(1));
}

#[tokio::test]
async fn a_run_that_had_not_begun_leaves_no_directory() {
    for transcript in [&b""[..], b"{\"v\":1,\"seq\":0"] {
        let crashed = Crashed::new(&recorded()[0], transcript);
        let recovered = recover(&crashed.host(), &Redactor::default()).await.unwrap().ended;
        assert!(!recovered[0].began);
        assert_eq!(recovered[0].cut_bytes, transcript.len() as u64);
        assert!(crashed.state().abandoned().unwrap().is_empty());
        assert!(crashed.state().find_run(&crashed.run_id).is_none());
    }
}
