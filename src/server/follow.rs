//! Streams a run as server-sent events: first the lines already written, then new lines and live
//! events. A live event shows the start or a piece of the streamed answer and is never written.

use std::convert::Infallible;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::mpsc;

use super::api::Api;
use super::problem::Problem;
use crate::domain::{Event, LiveEvent, RunId};
use crate::sinks::Observed;
use crate::store::{StateDir, known, raw_lines};

/// How often a follower of a silent run checks whether the run is still alive.
const RECHECK: std::time::Duration = std::time::Duration::from_secs(2);

/// The position where a stream starts.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventsQuery {
    /// The number of the first line.
    pub from_seq: u64,
}

/// Streams the lines and live events of a run. Ends after the last line, or when no process works
/// on the run any more.
pub(super) async fn events(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: axum::http::HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>, Problem> {
    let run_id = api.run_id(&id)?;
    // The client already has the line with this number.
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse::<u64>().ok());
    let from = seen.map_or(query.from_seq, |seen| seen.saturating_add(1));
    // Watch before reading the file, so that no line is lost in between.
    let watcher = api.observers.watch();
    if api.state.find_run(&run_id).is_none() && !api.is_known(&run_id).await {
        return Err(Problem::new(StatusCode::NOT_FOUND, format!("there is no run `{id}`")));
    }
    let (sender, receiver) = mpsc::channel::<SseEvent>(64);
    tokio::spawn(async move {
        let stop = api.stop.clone();
        tokio::select! {
            () = follow(api, run_id, from, watcher, &sender) => {}
            () = stop.cancelled() => {}
            () = sender.closed() => {}
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok(event), receiver))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// Sends the lines of a run up to the last. Also ends when no process works on the run any more.
async fn follow(
    api: Api,
    run_id: RunId,
    from: u64,
    mut watcher: Receiver<Observed>,
    sender: &mpsc::Sender<SseEvent>,
) {
    let mut next = from;
    loop {
        // Check before reading: if the run is no longer at work, the read below returns everything
        // that it has written.
        let at_work = api.state.is_live(&run_id) || api.is_known(&run_id).await;
        let (state, id) = (api.state.clone(), run_id.clone());
        let lines = tokio::task::spawn_blocking(move || written(&state, &id, next))
            .await
            .unwrap_or_default();
        let ended = lines.last().is_some_and(|(_, _, last)| *last);
        // The last line ends the stream. Send the live events that still wait in the queue first.
        while ended && let Some(event) = next_observed(&mut watcher) {
            if let Observed::Live { run_id: other, event } = event
                && other == run_id
                && sender.send(live(&event)).await.is_err()
            {
                return;
            }
        }
        for (seq, line, _) in lines {
            next = seq + 1;
            if sender.send(SseEvent::default().id(seq.to_string()).data(line)).await.is_err() {
                return;
            }
        }
        if ended || !at_work {
            return;
        }
        // Send only lines that were read from the file: an observed line only tells that the file
        // has grown. Lines that arrive together are read together.
        let more = async {
            loop {
                match watcher.recv().await {
                    Ok(Observed::Line { run_id: other, seq, .. })
                        if other == run_id && seq >= next =>
                    {
                        return true;
                    }
                    // Send a live event as it happens: the file never contains live events.
                    Ok(Observed::Live { run_id: other, event }) if other == run_id => {
                        if sender.send(live(&event)).await.is_err() {
                            return false;
                        }
                    }
                    Ok(_) => {}
                    Err(_) => return true,
                }
            }
        };
        if tokio::time::timeout(RECHECK, more).await == Ok(false) {
            return;
        }
    }
}

/// Returns the next observed event that waits in the queue; `None` if the queue is empty.
fn next_observed(watcher: &mut Receiver<Observed>) -> Option<Observed> {
    loop {
        match watcher.try_recv() {
            Ok(event) => return Some(event),
            Err(TryRecvError::Lagged(_)) => {}
            Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
        }
    }
}

fn live(event: &LiveEvent) -> SseEvent {
    SseEvent::default().data(serde_json::to_string(event).unwrap_or_default())
}

/// Returns the lines of a transcript from `from` on, each with its number and whether it is the
/// last line of the run.
fn written(state: &StateDir, run_id: &RunId, from: u64) -> Vec<(u64, String, bool)> {
    let Some(lines) = state.find_run(run_id).and_then(|run| raw_lines(&run.transcript()).ok())
    else {
        return Vec::new();
    };
    lines
        .filter(|(_, line)| line.seq >= from)
        .map(|(text, line)| (line.seq, text, matches!(known(&line), Some(Event::SessionEnd(_)))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_on_from_any_line_and_learns_which_is_the_last() {
        let temp = tempfile::tempdir().unwrap();
        let state = StateDir::new(temp.path());
        state.create().unwrap();
        let run_id = RunId::from_ulid(ulid::Ulid::from_parts(1_790_000_000_000, 1));
        assert!(written(&state, &run_id, 0).is_empty(), "the run has not begun");
        let began = chrono::DateTime::from_timestamp_millis(1_790_000_000_000).unwrap();
        let run = state.create_run(&run_id, began).unwrap();
        let line = |seq: u64, event: &str| {
            format!(
                r#"{{"v":1,"seq":{seq},"ts":"2026-09-21T14:13:20Z","run_id":"{run_id}","session_id":"s",{event},"prev":""}}"#
            )
        };
        let warning = r#""type":"warning","code":"x","message":"m""#;
        let end = r#""type":"session_end","outcome":"failed","stop_reason":"max_iterations","result":null,"verdict":null,"iterations":1,"tool_calls":0,"tools_used":[],"usage":{"input_tokens":1,"output_tokens":1},"cost_usd":null,"duration_ms":1,"survivors":0,"error":"e""#;
        let lines = [line(0, warning), line(1, warning), line(2, end)].join("\n");
        std::fs::write(run.transcript(), format!("{lines}\n{{\"torn\": ")).unwrap();
        let found = |from| -> Vec<(u64, bool)> {
            let lines = written(&state, &run_id, from).into_iter();
            lines.map(|(seq, _, is_last)| (seq, is_last)).collect()
        };
        assert_eq!(found(0), [(0, false), (1, false), (2, true)]);
        assert_eq!(found(2), [(2, true)]);
        assert!(found(3).is_empty(), "a torn line is not sent");
    }
}
