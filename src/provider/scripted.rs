//! The scripted model: replays a file, for demos, dry runs and tests. No language model is
//! involved, and every transcript of such a run says so.

use std::collections::BTreeMap;

use async_trait::async_trait;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, context};
use serde_json::{Map, Value};

use crate::agent::{
    DeltaSink, ErrorClass, Model, ModelError, ModelReply, ModelRequest, RequestedCall, unmarked,
};
use crate::catalogue::CacheWrites;
use crate::config::{Script, ScriptStep};
use crate::domain::{FinishReason, Turn, Usage};

/// The answer after a script that has no text.
const NOTHING_LEFT: &str = "The script has no further step.";

/// Values that the templates of a script can use, in addition to `results`, the tool results so
/// far.
#[derive(Debug, Clone, Default)]
pub struct ScriptContext {
    /// The name of the job.
    pub job: String,
    /// The variables of the job.
    pub vars: BTreeMap<String, String>,
}

/// Replays a script: the number of assistant turns in the history selects the step. After the last
/// step, the model repeats the last text of the script.
#[derive(Debug, Clone)]
pub struct ScriptedModel {
    script: Script,
    context: ScriptContext,
}

impl ScriptedModel {
    /// Returns a model that replays `script`.
    #[must_use]
    pub fn new(script: Script, context: ScriptContext) -> Self {
        Self { script, context }
    }

    fn answer(&self, history: &[Turn]) -> Result<ModelReply, minijinja::Error> {
        let answered = history.iter().filter(|turn| matches!(turn, Turn::Assistant(_))).count();
        let last_text = self.script.steps.iter().rev().find_map(|step| step.say.clone());
        let last = ScriptStep {
            calls: Vec::new(),
            say: Some(last_text.unwrap_or_else(|| NOTHING_LEFT.to_owned())),
        };
        let step = self.script.steps.get(answered).unwrap_or(&last);
        let results: Vec<String> = history
            .iter()
            .filter_map(|turn| match turn {
                Turn::ToolResults(results) => {
                    Some(results.iter().map(|result| unmarked(&result.content).to_owned()))
                }
                _ => None,
            })
            .flatten()
            .collect();
        let mut environment = Environment::new();
        // Keep the final line break of a text; by default, a template drops it.
        let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build();
        environment.set_syntax(syntax?);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        let ScriptContext { job, vars, .. } = self.context.clone();
        let seen = context! { job, vars, results };
        let render = |text: &str| environment.render_str(text, &seen);
        let mut calls = Vec::new();
        for call in &step.calls {
            let mut arguments = Map::new();
            for (name, value) in &call.arguments {
                let value = match value {
                    Value::String(text) => Value::String(render(text)?),
                    other => other.clone(),
                };
                arguments.insert(name.clone(), value);
            }
            calls.push(RequestedCall {
                id: None,
                name: call.tool.clone(),
                arguments: Value::Object(arguments).to_string(),
            });
        }
        Ok(ModelReply {
            text: step.say.as_deref().map(render).transpose()?.unwrap_or_default(),
            reasoning: None,
            finish_reason: if calls.is_empty() {
                FinishReason::Stop
            } else {
                FinishReason::ToolCalls
            },
            calls,
            stop_reason: None,
            explanation: None,
            cache_writes: CacheWrites::default(),
            usage: Some(Usage::default()),
            response_id: None,
            provider_data: None,
        })
    }
}

#[async_trait]
impl Model for ScriptedModel {
    async fn call(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        let reply = self.answer(request.history).map_err(|error| {
            ModelError::new(ErrorClass::BadRequest, format!("failed to render the script: {error}"))
        })?;
        if !reply.text.is_empty() {
            deltas.delta(&reply.text);
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ScriptCall;
    use crate::domain::{CallId, ToolResult};

    struct DiscardDeltas;
    impl DeltaSink for DiscardDeltas {
        fn delta(&self, _: &str) {}
    }

    #[tokio::test]
    async fn a_script_is_played_step_by_step_and_its_last_text_repeated() {
        let call = ScriptCall {
            tool: "get".into(),
            arguments: Map::from_iter([
                ("ns".into(), "{{ vars.ns }}".into()),
                ("n".into(), 3.into()),
            ]),
        };
        let script = Script {
            steps: vec![
                ScriptStep { calls: vec![call], say: None },
                ScriptStep { calls: vec![], say: Some("{{ job }} saw {{ results[-1] }}".into()) },
            ],
        };
        let model = ScriptedModel::new(
            script,
            ScriptContext { job: "j".into(), vars: BTreeMap::from([("ns".into(), "shop".into())]) },
        );
        let mut history = vec![Turn::User("go".into())];
        let mut said = Vec::new();
        for _ in 0..3 {
            let reply = model
                .call(
                    ModelRequest {
                        system: "",
                        stable: 0,
                        parallel_calls: true,
                        history: &history,
                        tools: &[],
                        max_output_tokens: None,
                        follows_cut: false,
                        output_schema: None,
                        input_tokens: 0,
                    },
                    &DiscardDeltas,
                )
                .await
                .unwrap();
            said.push((reply.text.clone(), reply.calls.first().map(|c| c.arguments.clone())));
            history.push(Turn::Assistant(Box::new(crate::domain::AssistantTurn {
                text: reply.text,
                reasoning: None,
                tool_calls: vec![],
                finish_reason: reply.finish_reason,
                stop_reason: None,
                usage: None,
                response_id: None,
                provider_data: None,
            })));
            let result = ToolResult {
                images: Vec::new(),
                call_id: CallId::parse("c").unwrap(),
                name: "get".into(),
                content: "{{ vars.ns }} fine".into(),
                is_error: false,
            };
            history.push(Turn::ToolResults(vec![result]));
        }
        assert_eq!(said[0], (String::new(), Some(r#"{"ns":"shop","n":3}"#.into())));
        assert_eq!(said[1].0, "j saw {{ vars.ns }} fine", "tool output is not a template");
        assert_eq!(said[2].0, said[1].0);
    }
}
