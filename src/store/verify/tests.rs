use std::sync::Arc;

use super::*;
use crate::clock::SystemClock;
use crate::domain::Event;
use crate::store::transcript::{Transcript, TranscriptFacts};
use crate::text::redact::Redactor;

fn run_id() -> RunId {
    RunId::from_ulid(ulid::Ulid::from_parts(1, 1))
}

/// Writes a record with an output file; returns it with the end that the ledger would store.
async fn record(dir: &Path) -> (RunDir, RecordFacts) {
    let run = RunDir::at(dir, run_id());
    std::fs::create_dir_all(run.outputs()).unwrap();
    std::fs::write(run.outputs().join("c.txt"), "the whole output").unwrap();
    let facts = TranscriptFacts {
        run_id: run_id(),
        session_id: run_id().to_string(),
        redactor: Redactor::default(),
        clock: Arc::new(SystemClock),
    };
    let transcript = Transcript::open(&run.transcript(), facts, |_| {}).unwrap();
    let call_end = serde_json::json!({
        "type": "tool_call_end", "call_id": "c", "name": "t", "is_error": false, "error_kind": null,
        "output_file": "output/c.txt", "output_bytes": 16, "truncated": null, "exit_code": 0, "signal": null,
        "timed_out": false, "duration_ms": 1, "digest": hex::encode(Sha256::digest("the whole output")),
    });
    let end = serde_json::json!({
        "type": "session_end", "outcome": "succeeded", "stop_reason": "completed", "result": null, "verdict": null,
        "iterations": 1, "tool_calls": 1, "tools_used": ["t"], "usage": {}, "cost_usd": null, "duration_ms": 5,
        "survivors": 0, "error": null,
    });
    for text in ["one", "two"] {
        transcript.append(Event::warning("w", text)).await.unwrap();
    }
    transcript.append(serde_json::from_value(call_end).unwrap()).await.unwrap();
    let last = transcript.append(serde_json::from_value(end).unwrap()).await.unwrap();
    let end = RecordEnd { lines: last.seq + 1, hash: last.hash };
    (run, RecordFacts { end: Some(end), ..RecordFacts::default() })
}

/// An early version of `verify` did not notice these changes.
// proves LOG-2
#[tokio::test]
async fn what_was_cut_recomputed_or_changed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (run, facts) = record(dir.path()).await;
    let whole = std::fs::read(run.transcript()).unwrap();
    let report = verify(&run, &facts).unwrap();
    assert!(report.ok && report.head == HeadState::Match, "{report:?}");
    let without_end = RecordFacts { end: None, ..facts.clone() };
    let report = verify(&run, &without_end).unwrap();
    assert!(
        report.ok && report.head == HeadState::None,
        "an older version stored no end: {report:?}"
    );

    // Cut the file at every byte.
    for length in 0..whole.len() {
        std::fs::write(run.transcript(), &whole[..length]).unwrap();
        for facts in [&facts, &without_end] {
            let report = verify(&run, facts).unwrap();
            assert!(!report.ok && report.reason.is_some(), "{length}: {report:?}");
        }
        let waiting = RecordFacts { is_open: true, ..RecordFacts::default() };
        assert_eq!(verify(&run, &waiting).unwrap().ok, length == 0 || whole[length - 1] == b'\n');
    }
    // Write a new, consistent record in place of the first.
    std::fs::remove_file(run.transcript()).unwrap();
    let (_, other) = record(dir.path()).await;
    let report = verify(&run, &facts).unwrap();
    assert!(!report.ok && report.head == HeadState::Differs, "{report:?}");
    assert!(verify(&run, &other).unwrap().ok);
    // Remove the transcript.
    std::fs::remove_file(run.transcript()).unwrap();
    let report = verify(&run, &facts).unwrap();
    assert!(!report.ok && report.head == HeadState::Differs, "{report:?}");
    assert!(!missing_record(&run_id()).ok);
}

#[tokio::test]
async fn an_output_file_that_differs_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (run, facts) = record(dir.path()).await;
    let file = run.outputs().join("c.txt");
    let check = |what: &str| {
        let report = verify(&run, &facts).unwrap();
        assert!(!report.ok, "{what}: {report:?}");
        assert_eq!(report.file.as_deref(), Some("output/c.txt"), "{what}");
        assert_eq!(report.broken_at_seq, Some(2), "{what}");
    };
    std::fs::write(&file, "the whole outpuT").unwrap();
    check("edited");
    std::fs::remove_file(&file).unwrap();
    check("removed");
    std::fs::write(dir.path().join("elsewhere"), "the whole output").unwrap();
    std::os::unix::fs::symlink("../elsewhere", &file).unwrap();
    check("a link");
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    check("a pipe, which must not block");
}
