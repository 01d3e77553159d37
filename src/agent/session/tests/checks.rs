//! Checks of a run that fail in its first rounds.

use tokio_util::sync::CancellationToken;

use super::*;
use crate::agent::CallExecutor;
use crate::domain::CallId;

/// What makes the run of a case succeed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Green {
    pub(super) has_schema: bool,
    /// The number of checks in a round.
    pub(super) checks: usize,
    pub(super) retries: u32,
    /// The rounds in which the last check fails.
    pub(super) failing_rounds: u32,
}

/// Makes checks of which the last one fails in the first rounds.
pub(super) struct FakeChecks {
    pub(super) record: Arc<Record>,
    pub(super) green: Green,
    pub(super) marker: Marker,
}

#[async_trait]
impl Verifier for FakeChecks {
    async fn verify(
        &self,
        round: u32,
        mut done: Vec<Check>,
    ) -> Result<Option<Vec<Check>>, RecordError> {
        for at in done.len()..self.green.checks {
            let call_id = CallId::verify(round, at + 1);
            let executor = CallExecutor::new(self.record.clone(), CancellationToken::new());
            let open = executor.open(&call_id, "peek");
            let text = format!("output of {call_id}");
            let output = CallOutput {
                content: text.clone(),
                output: Some(text.clone()),
                ..CallOutput::default()
            };
            open.end(output).await?;
            let ok = round > self.green.failing_rounds || at + 1 < self.green.checks;
            let (tool, detail) = ("peek".to_owned(), format!("it is {ok}"));
            self.record
                .record(Event::Verify {
                    call_id: call_id.clone(),
                    tool: tool.clone(),
                    arguments: Map::new(),
                    ok,
                    detail: detail.clone(),
                })
                .await?;
            let shown = self.marker.wrap(&call_id, &text);
            done.push(Check { call_id, tool, ok, detail, shown });
        }
        Ok(Some(done))
    }
}
