//! A run as it stands in lists: a fold over its transcript, so that the index can be made again from it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reader::ReadLine;

/// A run as `runs` prints it.
///
/// *Shape*: `{"run_id":"…","job":"…","trigger":"schedule","started_at":"…","ended_at":null,"outcome":null,…}`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The run.
    pub run_id: String,
    /// Its job.
    pub job: String,
    /// Why it ran.
    pub trigger: String,
    /// The slot.
    pub scheduled_for: Option<String>,
    /// When it began.
    pub started_at: String,
    /// When it ended; null while it runs.
    pub ended_at: Option<String>,
    /// How; null while it runs.
    pub outcome: Option<String>,
    /// Why it stopped.
    pub stop_reason: Option<String>,
    /// The status that its answer gave.
    pub verdict: Option<String>,
    /// The final answer.
    pub result: Option<Value>,
    /// 1, 2 …
    pub attempt: u64,
    /// Model responses.
    pub iterations: u64,
    /// Calls that were started.
    pub tool_calls: u64,
    /// Tokens.
    pub usage: Value,
    /// Cost, null while no price is known.
    pub cost_usd: Option<f64>,
    /// The model.
    pub model: String,
    /// What went wrong.
    pub error: Option<String>,
}

impl RunRow {
    /// Returns the row of a transcript; `None` if it does not begin as one.
    pub fn fold<'a>(lines: impl IntoIterator<Item = &'a ReadLine>) -> Option<Self> {
        let mut lines = lines.into_iter();
        let first = lines.next()?;
        let text = |event: &Value, field: &str| {
            event.get(field).and_then(Value::as_str).map(str::to_owned)
        };
        let number = |event: &Value, field: &str| {
            event.get(field).and_then(Value::as_u64).unwrap_or_default()
        };
        if text(&first.event, "type").as_deref() != Some("session_start") {
            return None;
        }
        let start = &first.event;
        let mut row = Self {
            run_id: first.run_id.to_string(),
            job: text(start, "job")?,
            trigger: text(start, "trigger").unwrap_or_default(),
            scheduled_for: text(start, "scheduled_for"),
            started_at: first.ts.clone(),
            ended_at: None,
            outcome: None,
            stop_reason: None,
            verdict: None,
            result: None,
            attempt: number(start, "attempt"),
            iterations: 0,
            tool_calls: 0,
            usage: serde_json::json!({"input_tokens": 0, "output_tokens": 0, "cached_input_tokens": 0, "reasoning_tokens": 0}),
            cost_usd: None,
            model: text(start, "model").unwrap_or_default(),
            error: None,
        };
        for line in lines {
            let event = &line.event;
            match event.get("type").and_then(Value::as_str) {
                Some("assistant_text_end") => row.iterations += 1,
                Some("tool_call_start") => row.tool_calls += 1,
                Some("session_end") => row.end(event, line.ts.clone()),
                _ => {}
            }
        }
        Some(row)
    }

    /// Takes the end of the run, as `session_end` tells it.
    pub fn end(&mut self, event: &Value, at: String) {
        let text = |field: &str| event.get(field).and_then(Value::as_str).map(str::to_owned);
        let number = |field: &str| event.get(field).and_then(Value::as_u64).unwrap_or_default();
        self.ended_at = Some(at);
        self.outcome = text("outcome");
        self.stop_reason = text("stop_reason");
        self.verdict = text("verdict");
        self.result = event.get("result").filter(|result| !result.is_null()).cloned();
        self.error = text("error");
        self.iterations = number("iterations");
        self.tool_calls = number("tool_calls");
        self.usage = event.get("usage").cloned().unwrap_or_default();
        self.cost_usd = event.get("cost_usd").and_then(Value::as_f64);
    }
}
