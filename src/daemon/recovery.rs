//! After a crash: what the dead daemon left is ended, and every run that it left open gets its last line.
//!
//! *Source*: `design/architecture.md`, "Crash". Resumption comes in a later version; until then such runs are `interrupted`.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use serde_json::Value;

use crate::clock::Clock;
use crate::domain::{Event, RunId, SessionEnd, Usage};
use crate::process::end_leftovers;
use crate::run::Ended;
use crate::store::{
    ReadLine, RunDir, RunRow, StateDir, Transcript, TranscriptFacts, read_lines, repair_tail,
};
use crate::text::redact::Redactor;

/// A run that was left open and is ended now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The run.
    pub run_id: RunId,
    /// Whether its transcript had begun.
    pub began: bool,
    /// Whether it had ended, and only its mark was left.
    pub had_ended: bool,
    /// Bytes of a torn last line that were cut off.
    pub cut_bytes: u64,
}

/// Ends every open run that no living process holds. Processes that the dead daemon left are gone when this returns.
///
/// *Errors*: the marks cannot be read. A transcript that cannot be ended is logged and stays open for the next start.
pub async fn recover(
    state: &StateDir,
    clock: Arc<dyn Clock>,
    redactor: &Redactor,
) -> io::Result<Vec<Recovered>> {
    let abandoned = state.abandoned()?;
    let marks: BTreeSet<String> = abandoned.iter().map(|(run_id, _)| run_id.to_string()).collect();
    let killed = tokio::task::spawn_blocking(move || end_leftovers(&marks)).await.unwrap_or(0);
    if killed > 0 {
        tracing::warn!(killed, "the daemon before this one left tools at work; they are ended");
    }
    if let Err(error) = state.clear_temporary() {
        tracing::warn!(%error, "what earlier runs left in their temporary directories cannot be taken away");
    }
    let mut recovered = Vec::new();
    for (run_id, mark) in abandoned {
        match end_run(state, &run_id, clock.clone(), redactor).await {
            Ok(run) => {
                recovered.push(run);
                if let Err(error) = mark.close() {
                    tracing::warn!(%run_id, %error, "the mark of an ended run cannot be taken away");
                }
            }
            Err(error) => tracing::error!(%run_id, %error, "an interrupted run cannot be ended"),
        }
    }
    Ok(recovered)
}

async fn end_run(
    state: &StateDir,
    run_id: &RunId,
    clock: Arc<dyn Clock>,
    redactor: &Redactor,
) -> Result<Recovered, String> {
    let nothing =
        Recovered { run_id: run_id.clone(), began: false, had_ended: false, cut_bytes: 0 };
    let Some(run) = state.find_run(run_id).filter(|run| run.transcript().exists()) else {
        return Ok(nothing);
    };
    let cut_bytes = repair_tail(&run.transcript()).map_err(|error| error.to_string())?;
    let lines = lines(&run)?;
    let Some(row) = RunRow::fold(&lines) else { return Ok(Recovered { cut_bytes, ..nothing }) };
    let recovered =
        Recovered { began: true, had_ended: row.ended_at.is_some(), cut_bytes, ..nothing };
    if recovered.had_ended {
        return Ok(recovered);
    }
    let facts = TranscriptFacts {
        run_id: run_id.clone(),
        session_id: run_id.to_string(),
        redactor: redactor.clone(),
        clock: clock.clone(),
    };
    let transcript =
        Transcript::open(&run.transcript(), facts, |_| {}).map_err(|error| error.to_string())?;
    if cut_bytes > 0 {
        transcript
            .append(Event::warning(
                "torn_tail",
                format!("{cut_bytes} bytes of a torn last line were cut off"),
            ))
            .await?;
    }
    for call_id in open_calls(&lines) {
        let message = format!(
            "the daemon stopped while the call {call_id} worked; whether it took effect is not known"
        );
        transcript.append(Event::warning("effect_unknown", message)).await?;
    }
    transcript.append(Event::SessionEnd(Box::new(session_end(&row, &lines, clock.now())))).await?;
    Ok(recovered)
}

fn lines(run: &RunDir) -> Result<Vec<ReadLine>, String> {
    read_lines(&run.transcript())
        .map_err(|error| error.to_string())?
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Returns the calls that began and have no result.
fn open_calls(lines: &[ReadLine]) -> BTreeSet<String> {
    let ids = |word: &str| {
        lines
            .iter()
            .filter(|line| line.event.get("type").and_then(Value::as_str) == Some(word))
            .filter_map(|line| line.event.get("call_id")?.as_str().map(str::to_owned))
            .collect::<BTreeSet<_>>()
    };
    ids("tool_call_start").difference(&ids("tool_call_end")).cloned().collect()
}

fn session_end(row: &RunRow, lines: &[ReadLine], now: chrono::DateTime<chrono::Utc>) -> SessionEnd {
    let mut usage = Usage::default();
    let mut tools = BTreeSet::new();
    for line in lines {
        if let Some(counted) = line
            .event
            .get("usage")
            .and_then(|usage| serde_json::from_value::<Usage>(usage.clone()).ok())
        {
            usage.add(&counted);
        }
        if line.event.get("type").and_then(Value::as_str) == Some("tool_call_start") {
            tools.extend(line.event.get("name").and_then(Value::as_str).map(str::to_owned));
        }
    }
    let began = chrono::DateTime::parse_from_rfc3339(&row.started_at)
        .map(|began| began.to_utc())
        .unwrap_or(now);
    SessionEnd {
        iterations: row.iterations,
        tool_calls: row.tool_calls,
        tools_used: tools.into_iter().collect(),
        usage,
        duration_ms: u64::try_from((now - began).num_milliseconds()).unwrap_or(0),
        ..Ended::interrupted_end("the daemon stopped while the run worked")
    }
}
