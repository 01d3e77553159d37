//! Tests the machine alone: `tests/machine/*.yaml` lists the events and the action that follow each
//! input.
//!
//! An event is written as its type, with its most telling field in parentheses. An action is
//! written as `ask` (call the model), as the list of calls with the action for each, or as `end`
//! with stop reason and result.

use std::path::Path;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::*;
use crate::agent::{
    AgentTool, CallAction, CallContext, CallOutput, PreparedCall, RequestedCall, ShownAs,
    ToolDefinition, ToolRunner, ToolSpec,
};
use crate::argv::Diagnostics;
use crate::config::{Autonomy, Limits, Listed, Mode, OutputSchema, Policy, ReadPolicy};
use crate::domain::{CallError, Category, TextKind, ToolName, Usage};
use crate::gate::{CommandRules, GateRules, PathRules};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    #[serde(default)]
    setup: Setup,
    steps: Vec<Row>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Setup {
    max_iterations: Option<u64>,
    max_tool_calls: Option<u64>,
    max_tokens: Option<u64>,
    max_cost_usd: Option<f64>,
    error_threshold: Option<u64>,
    loop_window: Option<usize>,
    context_window: Option<u64>,
    /// US dollars per million tokens, for input and output alike.
    price: Option<f64>,
    confirm: bool,
    needs_call: bool,
    plan: bool,
    approve: bool,
    output_schema: Option<Map<String, Value>>,
    checks: usize,
    verify_retries: u32,
    compacts: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    input: Value,
    /// The kinds of the texts that wait.
    #[serde(default)]
    waiting: Vec<TextKind>,
    events: Vec<String>,
    action: String,
}

/// A tool that is never run. There are three: `look` reads, `change` writes and is listed in the
/// policy, `other` writes and is not listed. Each rejects the argument `bad`.
struct Fake(ToolDefinition, Category);

impl ToolSpec for Fake {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }
    fn category(&self) -> Category {
        self.1
    }
    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        if arguments.contains_key("bad") {
            return Err(CallError::new(ErrorKind::InvalidArguments, "bad"));
        }
        Ok(PreparedCall {
            arguments: arguments.clone(),
            argv: vec![self.0.name.clone()],
            working_dir: "/".into(),
            stdin: None,
            sandboxed: false,
            resources: Vec::new(),
            lines: 0,
        })
    }
}

#[async_trait]
impl ToolRunner for Fake {
    async fn run(&self, _: &PreparedCall, _: &CallContext) -> CallOutput {
        unreachable!("the machine does not run tools")
    }
}

fn machine(setup: &Setup) -> Machine {
    let defaults = Limits::default();
    let limits = Limits {
        max_iterations: setup.max_iterations.unwrap_or(defaults.max_iterations),
        max_tool_calls: setup.max_tool_calls.unwrap_or(defaults.max_tool_calls),
        error_threshold: setup.error_threshold.unwrap_or(defaults.error_threshold),
        max_tokens: setup.max_tokens,
        max_cost_usd: setup.max_cost_usd,
        ..defaults
    };
    let listed = |tool: &str| Listed { tool: ToolName::parse(tool).unwrap(), args: None };
    let gate = GateRules {
        job: "j".into(),
        has_person: false,
        policy: Policy {
            autonomy: Autonomy::Supervised,
            read: ReadPolicy::All,
            write: vec![listed("change")],
            admin: vec![],
            approve: setup.approve.then(|| "change".to_owned()).into_iter().collect(),
            deny: [].into(),
            narrowed: Vec::new(),
        },
        paths: PathRules::default(),
        commands: CommandRules::default(),
        domains: Default::default(),
        rate: None,
        max_tool_calls: limits.max_tool_calls,
        max_files_modified: limits.max_files_modified,
        max_lines_changed: limits.max_lines_changed,
    };
    let tools = [("look", Category::Read), ("change", Category::Write), ("other", Category::Write)];
    let tools = tools.map(|(name, category)| {
        let definition =
            ToolDefinition { name: name.into(), description: name.into(), parameters: json!({}) };
        Arc::new(Fake(definition, category)) as Arc<dyn AgentTool>
    });
    let toolbox =
        Toolbox::new(tools.to_vec(), |tool| Some(ShownAs::itself(&tool.definition().name)));
    let rules = Rules {
        gate,
        mode: if setup.plan { Mode::Plan } else { Mode::Act },
        approval: crate::config::Approval::default(),
        limits,
        confirm: setup.confirm,
        needs_call: setup.needs_call,
        output_schema: setup.output_schema.as_ref().map(compiled),
        checks: setup.checks,
        verify_retries: setup.verify_retries,
        compacts: setup.compacts,
        loop_window: setup.loop_window,
    };
    let system = SystemPrompt { text: "system".into(), ..SystemPrompt::default() };
    Machine::new(rules, facts(setup), Arc::new(toolbox), system)
}

fn compiled(schema: &Map<String, Value>) -> OutputSchema {
    OutputSchema::compile(schema, "", &mut Diagnostics::default()).unwrap()
}

fn facts(setup: &Setup) -> ModelFacts {
    let price = setup.price.map(|usd| crate::catalogue::Price::flat(usd, usd));
    ModelFacts {
        price,
        context_window: setup.context_window.unwrap_or(100_000),
        characters_per_token: None,
    }
}

/// Reads `{start: …}`, `{follow_up: …}`, `{steer: …}`, `{reply: …}`, `{failed: …}`, `{results: […]}`, `{verified: […]}` or
/// `{stop: …}`.
fn input(row: &Value, setup: &Setup, asked: &[Dispatch]) -> Input {
    let (kind, value) = row.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "start" => Input::Submit(value.as_str().unwrap().into(), InputSource::Job),
        "follow_up" => Input::Submit(value.as_str().unwrap().into(), InputSource::FollowUp),
        "steer" => Input::Steer(value.as_str().unwrap().into()),
        "reply" => Input::Reply {
            reply: Box::new(reply(value)),
            latency_ms: 1,
            first_token_ms: None,
            model: facts(setup),
            model_name: "m".into(),
            recorded: None,
            elapsed: Duration::from_secs(value["after_s"].as_u64().unwrap_or(1)),
        },
        "failed" => {
            use crate::agent::ErrorClass::{Auth, BadToolGeneration, ContextLength, Overloaded};
            let classes = [Auth, BadToolGeneration, ContextLength, Overloaded];
            let class = classes.into_iter().find(|class| class.as_str() == value).unwrap();
            Input::ModelFailed(ModelError::new(class, "no"))
        }
        "results" => {
            let kinds = value.as_array().unwrap();
            assert_eq!(kinds.len(), asked.len());
            Input::Results(asked.iter().zip(kinds).map(outcome).collect())
        }
        "verified" => {
            let checks = value.as_array().unwrap().iter().enumerate();
            Input::Verified(
                checks.map(|(at, ok)| check(1, at + 1, ok.as_bool().unwrap())).collect(),
            )
        }
        "stop" => {
            let reason = StopReason::ALL.iter().find(|reason| reason.as_str() == value).unwrap();
            Input::Stop(*reason)
        }
        other => panic!("unknown input {other}"),
    }
}

fn reply(value: &Value) -> ModelReply {
    let calls = value["calls"].as_array().cloned().unwrap_or_default();
    let calls = calls.iter().enumerate().map(|(at, call)| RequestedCall {
        id: Some(format!("{}-{at}", value["id"].as_str().unwrap_or("c"))),
        name: call[0].as_str().unwrap().into(),
        arguments: call[1].as_str().unwrap_or("{}").into(),
    });
    let calls: Vec<RequestedCall> = calls.collect();
    let finish = match (value["finish"].as_str(), calls.is_empty()) {
        (Some(word), _) => serde_json::from_value(json!(word)).unwrap(),
        (None, true) => FinishReason::Stop,
        (None, false) => FinishReason::ToolCalls,
    };
    ModelReply {
        text: value["text"].as_str().unwrap_or_default().into(),
        reasoning: None,
        calls,
        finish_reason: finish,
        stop_reason: None,
        explanation: None,
        cache_writes: crate::catalogue::CacheWrites::default(),
        usage: value["tokens"].as_u64().map(|input_tokens| Usage {
            input_tokens,
            output_tokens: 1,
            ..Usage::default()
        }),
        response_id: None,
        provider_data: None,
    }
}

fn check(round: u32, step: usize, ok: bool) -> Check {
    let detail = if ok { "the result is as expected" } else { "the exit code is 1 instead of 0" };
    Check {
        call_id: CallId::verify(round, step),
        tool: format!("check_{step}"),
        ok,
        detail: detail.into(),
        shown: "output".into(),
    }
}

fn outcome((dispatch, kind): (&Dispatch, &Value)) -> CallOutcome {
    let kind = kind.as_str().unwrap();
    CallOutcome {
        call_id: dispatch.call_id.clone(),
        name: dispatch.name.clone(),
        content: kind.into(),
        images: Vec::new(),
        error_kind: (kind != "ok").then(|| serde_json::from_value(json!(kind)).unwrap()),
        modified: Vec::new(),
        lines_changed: 0,
        planned: Planned::Nothing,
    }
}

fn shown(event: &Event) -> String {
    let event = serde_json::to_value(event).unwrap();
    let keys = ["limit", "rule", "code", "source", "finish_reason", "count"];
    let kind = event["type"].as_str().unwrap().to_owned();
    match keys.iter().find_map(|key| event.get(*key)) {
        Some(Value::String(text)) => format!("{kind}({text})"),
        Some(other) => format!("{kind}({other})"),
        None => kind,
    }
}

fn shown_action(action: &Action) -> String {
    match action {
        Action::CallModel => "ask".into(),
        Action::NextInput => "next input".into(),
        Action::RunCalls(calls) => {
            let call = |call: &Dispatch| match &call.action {
                CallAction::Run(_) => format!("run {}", call.name),
                CallAction::Ask { .. } => format!("approve {}", call.name),
                CallAction::Propose { position, .. } => {
                    format!("propose {} as {}", call.name, position.step)
                }
                CallAction::Reject(error) => {
                    format!("reject {} as {}", call.name, error.kind.as_str())
                }
            };
            calls.iter().map(call).collect::<Vec<_>>().join(", ")
        }
        Action::Verify { round, .. } => format!("verify {round}"),
        Action::End(end) => {
            format!("end {}: {}", end.stop_reason.as_str(), end.result.clone().unwrap_or_default())
        }
    }
}

// conforms 000-5.1a, 000-5.1d, 000-S5.1, 001-X1, 003-2.9i, 003-5.5, 003-9.1c, 003-9.3c, 004-C18a
// conforms 004-C18b, 004-C18c, 004-8.4, 004-T1, 004-T12, 004-T13, 004-T26
#[test]
fn each_table_is_followed() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine");
    let mut count = 0;
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let tables: Vec<Table> = serde_yaml::from_str(&text).unwrap();
        for table in tables {
            count += 1;
            let mut machine = machine(&table.setup);
            let mut asked = Vec::new();
            for (at, row) in table.steps.iter().enumerate() {
                machine.set_waiting(WaitingTexts {
                    steering: row.waiting.contains(&TextKind::Steering),
                    follow_up: row.waiting.contains(&TextKind::FollowUp),
                });
                let step = machine.step(input(&row.input, &table.setup, &asked));
                let events: Vec<String> = step.events.iter().map(shown).collect();
                let action = shown_action(&step.action);
                if events != row.events || action != row.action {
                    let name = &table.name;
                    wrong.push(format!(
                        "{name}, step {at}:\n  events: {events:?}\n  action: {action}"
                    ));
                }
                if let Action::RunCalls(calls) = step.action {
                    asked = calls;
                }
            }
        }
    }
    assert!(wrong.is_empty() && count > 20, "{count} tables\n{}", wrong.join("\n"));
}

// conforms 003-2.4a, 003-9.6c
#[test]
fn each_part_of_a_run_is_a_turn_of_its_kind() {
    let setup = Setup { loop_window: Some(2), ..Setup::default() };
    let mut machine = machine(&setup);
    machine.step(Input::Submit("look".into(), InputSource::Job));
    let calls = json!({"reply": {"text": "I look.", "calls": [["look"], ["look"]]}});
    let Action::RunCalls(asked) = machine.step(input(&calls, &setup, &[])).action else {
        unreachable!()
    };
    machine.step(input(&json!({"results": ["ok", "ok"]}), &setup, &asked));
    let [Turn::User(_), Turn::Assistant(turn), Turn::ToolResults(results), Turn::Steering(_)] =
        machine.history()
    else {
        panic!("{:?}", machine.history())
    };
    assert_eq!((turn.text.as_str(), turn.tool_calls.len(), results.len()), ("I look.", 2, 2));
    machine.step(Input::Steer("wait".into()));
    assert_eq!(machine.history().last(), Some(&Turn::Steering("wait".into())));
}

#[test]
fn old_results_become_stubs_and_nothing_else_changes() {
    let setup = Setup { compacts: true, context_window: Some(2000), ..Setup::default() };
    let mut machine = machine(&setup);
    machine.step(Input::Submit("look".into(), InputSource::Job));
    let mut found = Vec::new();
    for at in 0..18 {
        let before = machine.history().to_vec();
        let calls = json!({"id": format!("c{at}"), "calls": [["look"], ["change"]]});
        let mut input = input(&json!({"reply": calls}), &setup, &[]);
        if let Input::Reply { reply, .. } = &mut input {
            reply.provider_data = Some(json!({"signature": at}));
        }
        let Action::RunCalls(calls) = machine.step(input).action else { unreachable!() };
        let results = calls
            .iter()
            .map(|call| CallOutcome { content: "x".repeat(400), ..outcome((call, &json!("ok"))) });
        let step = machine.step(Input::Results(results.collect()));
        assert!(matches!(step.action, Action::CallModel), "{:?}", step.action);
        let compaction = step.events.iter().find_map(|event| match event {
            Event::Compaction { call_ids, estimated_tokens } => Some((call_ids, estimated_tokens)),
            _ => None,
        });
        for (turn, (old, new)) in before.iter().zip(machine.history()).enumerate() {
            let (Turn::ToolResults(old), Turn::ToolResults(new)) = (old, new) else {
                assert_eq!(old, new, "turn {turn}");
                continue;
            };
            for (old, new) in old.iter().zip(new) {
                let is_now =
                    compaction.is_some_and(|(call_ids, _)| call_ids.contains(&old.call_id));
                assert_eq!(is_now, old.content != new.content);
                assert!(!is_now || new.content.contains(old.call_id.as_str()));
            }
        }
        let results = machine.history().iter().filter_map(|turn| match turn {
            Turn::ToolResults(results) => Some(results),
            _ => None,
        });
        let kept: Vec<_> = results.collect();
        let last = kept.iter().rev().take(2).flat_map(|results| results.iter());
        assert!(last.into_iter().all(|result| result.content.len() == 400));
        if let Some((call_ids, estimated)) = compaction {
            // Later, too few old results are left.
            let most = if found.is_empty() { 1200 } else { estimated.before };
            assert!(estimated.before > 1600 && estimated.after <= most, "{estimated:?}");
            // A notice about a budget may follow.
            assert!(machine.estimate() >= estimated.after);
            found.push(call_ids.clone());
        }
    }
    assert!(found.len() >= 2, "{found:?}");
    let all: Vec<&CallId> = found.iter().flatten().collect();
    assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "each result goes once");
}
