use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::*;
use crate::agent::{
    AgentTool, CallContext, CallState, Record, ShownAs, ToolDefinition, ToolRunner, ToolSpec,
};
use crate::config::{Autonomy, Listed, Policy, ReadPolicy};
use crate::domain::{Binding, PlanStep, ToolName};
use crate::gate::{CommandRules, PathRules};

/// The state that the tools read and change, and their calls in order.
#[derive(Default)]
struct World {
    values: Mutex<BTreeMap<String, String>>,
    calls: Mutex<Vec<String>>,
    /// If set, cancelled when a change starts.
    cancel: Mutex<Option<CancellationToken>>,
}

/// The tool `look` returns the value that its argument `at` names. The tool `change` sets that
/// value, or fails if it has an argument `fail`; its state is the value named `state`.
struct WorldTool {
    definition: ToolDefinition,
    category: Category,
    world: Arc<World>,
}

impl ToolSpec for WorldTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }
    fn category(&self) -> Category {
        self.category
    }
    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        Ok(PreparedCall {
            arguments: arguments.clone(),
            argv: vec![self.definition.name.clone()],
            working_dir: "/".into(),
            stdin: None,
            sandboxed: false,
            resources: Vec::new(),
            lines: 0,
        })
    }
}

#[async_trait]
impl ToolRunner for WorldTool {
    async fn state(&self, _: &PreparedCall) -> Result<CallState, CallError> {
        let found = self.world.values.lock().unwrap().get("state").cloned();
        Ok(state_with(&found.unwrap_or_default()))
    }
    async fn run(&self, call: &PreparedCall, _: &CallContext) -> CallOutput {
        let at = call.arguments["at"].as_str().unwrap().to_owned();
        self.world.calls.lock().unwrap().push(format!("{} {at}", self.definition.name));
        let mut values = self.world.values.lock().unwrap();
        if self.category == Category::Read {
            let output = values.get(&at).cloned().unwrap_or_default();
            return CallOutput { output: Some(output), ..CallOutput::default() };
        }
        if let Some(cancel) = &*self.world.cancel.lock().unwrap() {
            cancel.cancel();
        }
        if call.arguments.contains_key("fail") {
            let error_kind = Some(ErrorKind::ExitCode);
            return CallOutput { content: "no".into(), error_kind, ..CallOutput::default() };
        }
        values.insert(at, "changed".to_owned());
        CallOutput::default()
    }
}

/// The state of a call that depends on one file.
fn state_with(content: &str) -> CallState {
    let files = [("/state".to_owned(), content.to_owned())].into();
    CallState { identity: String::new(), binding: Binding { files, ..Binding::default() } }
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn call_id(text: &str) -> CallId {
    CallId::parse(text).unwrap()
}

/// A plan with one read (`look` at `a`) and one step for each given change, stored in a ledger, and
/// the [`Apply`] for the plan.
struct Bench {
    world: Arc<World>,
    record: Arc<Record>,
    ledger: SharedLedger,
    work: Apply,
    _temp: tempfile::TempDir,
}

impl Bench {
    async fn new(changes: &[Value]) -> Self {
        Self::with_record(changes, Record::default()).await
    }

    async fn with_record(changes: &[Value], record: Record) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let (world, record) = (Arc::new(World::default()), Arc::new(record));
        let tool = |name: &str, category| -> Arc<dyn AgentTool> {
            let definition = ToolDefinition {
                name: name.into(),
                description: String::new(),
                parameters: json!({}),
            };
            Arc::new(WorldTool { definition, category, world: world.clone() })
        };
        let change = tool("change", Category::Write);
        let steps = changes.iter().zip(1..).map(|(arguments, number)| {
            let prepared = change.prepare(&map(arguments.clone())).unwrap();
            let step = PlanStep {
                step: number,
                call_id: call_id(&format!("call-{number}")),
                name: "change".into(),
                category: Category::Write,
                argv: prepared.argv.clone(),
                digest: prepared.digest("change", &state_with("")),
                binding: state_with("").binding,
                arguments: prepared.arguments,
                working_dir: "/".into(),
                dry_run_output: None,
                rests_on: vec![call_id("read-1")],
                would_modify: Vec::new(),
                would_change_lines: 0,
            };
            KeptStep { step, state: PlanState::Waiting }
        });
        let read = PlanRead {
            call_id: call_id("read-1"),
            name: "look".into(),
            arguments: map(json!({"at": "a"})),
            digest: CallOutput { output: Some(String::new()), ..CallOutput::default() }
                .read_digest()
                .unwrap(),
        };
        let plan = Plan {
            plan_id: "p".into(),
            job: "j".into(),
            run_id: "p".into(),
            created_at: chrono::DateTime::UNIX_EPOCH,
            state: PlanState::Waiting,
            steps: steps.collect(),
            reads: vec![read],
        };
        let ledger = SharedLedger::of(temp.path());
        ledger.get().await.unwrap().keep_plan(plan.clone()).await.unwrap();
        let listed = Listed { tool: ToolName::parse("change").unwrap(), args: None };
        let rules = GateRules {
            job: "j".into(),
            has_person: false,
            policy: Policy {
                autonomy: Autonomy::Supervised,
                read: ReadPolicy::All,
                write: vec![listed],
                admin: Vec::new(),
                approve: [].into(),
                deny: [].into(),
                narrowed: Vec::new(),
            },
            paths: PathRules::default(),
            commands: CommandRules::default(),
            domains: Default::default(),
            rate: None,
            max_tool_calls: 100,
            max_files_modified: 100,
            max_lines_changed: 100,
        };
        let tools = vec![tool("look", Category::Read), change];
        let toolbox = Toolbox::new(tools, |tool| Some(ShownAs::itself(&tool.definition().name)));
        let work = Apply {
            rules,
            toolbox: Arc::new(toolbox),
            executor: CallExecutor::new(record.clone(), CancellationToken::new()),
            sink: record.clone(),
            spent: Spent::default(),
            changed: Changed::default(),
            plan,
        };
        Self { world, record, ledger, work, _temp: temp }
    }

    async fn run(&mut self, only: Option<u64>) -> Result<Done, RecordError> {
        self.work.run(&self.ledger, only).await
    }

    fn calls(&self) -> Vec<String> {
        self.world.calls.lock().unwrap().clone()
    }

    /// Returns the state of the plan and the states of its steps, as the ledger stores them.
    async fn states(&self) -> (PlanState, Vec<PlanState>) {
        let ledger = self.ledger.get().await.unwrap();
        let kept = ledger.read(|reader| reader.plan("p")).await.unwrap().unwrap();
        let steps: Vec<PlanState> = kept.steps.iter().map(|kept| kept.state).collect();
        (kept.state, steps)
    }

    fn events(&self) -> Vec<String> {
        let events = self.record.events.lock().unwrap();
        events.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

fn refused(done: Result<Done, RecordError>) -> String {
    match done.unwrap() {
        Done::Refused(why) => why,
        Done::Applied | Done::Failed(_) | Done::Cancelled => panic!("not refused"),
    }
}

use PlanState::{Applied as Made, Failed, Waiting};

#[tokio::test]
async fn the_reads_come_first_then_the_check_then_the_steps_in_order() {
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    assert!(matches!(bench.run(None).await.unwrap(), Done::Applied));
    assert_eq!(bench.calls(), ["look a", "change x", "change y"]);
    assert_eq!(bench.states().await, (Made, vec![Made, Made]));
    let call = ["policy_decision", "tool_call_start", "tool_call_end"];
    assert_eq!(bench.events(), [&call[..], &["preflight"], &call, &call].concat());
}

#[tokio::test]
async fn a_read_that_answers_differently_ends_it_before_any_step() {
    let mut bench = Bench::new(&[json!({"at": "x"})]).await;
    bench.world.values.lock().unwrap().insert("a".into(), "other".into());
    assert_eq!(refused(bench.run(None).await), "read read-1 (look): answers differently now");
    assert_eq!(bench.calls(), ["look a"]);
    assert_eq!(bench.states().await, (Waiting, vec![Waiting]));
}

#[tokio::test]
async fn a_changed_file_or_policy_ends_it_before_any_step() {
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    bench.world.values.lock().unwrap().insert("state".into(), "other".into());
    assert!(refused(bench.run(None).await).starts_with("step 1: "));
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    bench.work.rules.policy.deny = ["change".to_owned()].into();
    assert!(refused(bench.run(None).await).starts_with("step 1: "));
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    // The first step passes the check but the second does not, so no step is made.
    bench.work.plan.steps[1].step.category = Category::Read;
    assert!(refused(bench.run(None).await).starts_with("step 2: "));
    assert_eq!(bench.calls(), ["look a"]);
    assert_eq!(bench.states().await, (Waiting, vec![Waiting, Waiting]));
}

#[tokio::test]
async fn a_step_that_fails_leaves_the_later_ones_undone() {
    let steps = [json!({"at": "x"}), json!({"at": "y", "fail": true}), json!({"at": "z"})];
    let mut bench = Bench::new(&steps).await;
    let Done::Failed(why) = bench.run(None).await.unwrap() else { panic!("the plan did not fail") };
    assert_eq!(why, "step 2 (change): exit_code: no");
    assert_eq!(bench.calls(), ["look a", "change x", "change y"]);
    assert_eq!(bench.states().await, (Failed, vec![Made, Failed, Waiting]));
}

#[tokio::test]
async fn one_step_can_be_made_and_then_the_rest() {
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    assert!(matches!(bench.run(Some(2)).await.unwrap(), Done::Applied));
    assert_eq!(bench.states().await, (Waiting, vec![Waiting, Made]));
    assert_eq!(refused(bench.run(Some(2)).await), "no such step is waiting");
    assert_eq!(refused(bench.run(Some(3)).await), "no such step is waiting");
    assert!(matches!(bench.run(None).await.unwrap(), Done::Applied));
    assert_eq!(bench.states().await, (Made, vec![Made, Made]));
    assert_eq!(bench.calls(), ["look a", "change y", "look a", "change x"]);
}

#[tokio::test]
async fn a_plan_that_another_process_claimed_is_refused() {
    let mut bench = Bench::new(&[json!({"at": "x"})]).await;
    let ledger = bench.ledger.get().await.unwrap();
    ledger.claim_plan("p".into(), Failed).await.unwrap().unwrap();
    assert_eq!(refused(bench.run(None).await), "the plan is no longer waiting");
    assert_eq!(bench.calls(), ["look a"]);
}

#[tokio::test]
async fn a_plan_of_which_another_process_made_a_step_is_refused_and_waits_on() {
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    let mut other = bench.work.plan.clone();
    other.steps[0].state = Made;
    bench.ledger.get().await.unwrap().keep_plan(other).await.unwrap();
    assert_eq!(refused(bench.run(None).await), "the plan has changed in the meantime");
    assert_eq!(bench.states().await, (Waiting, vec![Made, Waiting]));
    assert_eq!(bench.calls(), ["look a"]);
}

#[tokio::test]
async fn a_stop_before_the_claim_leaves_the_plan_as_it_was() {
    let mut bench = Bench::new(&[json!({"at": "x"})]).await;
    bench.work.executor.cancel().cancel();
    assert!(matches!(bench.run(None).await.unwrap(), Done::Cancelled));
    assert_eq!(bench.states().await, (Waiting, vec![Waiting]));
}

#[tokio::test]
async fn a_stop_between_two_steps_leaves_the_later_ones_waiting() {
    let mut bench = Bench::new(&[json!({"at": "x"}), json!({"at": "y"})]).await;
    *bench.world.cancel.lock().unwrap() = Some(bench.work.executor.cancel().clone());
    assert!(matches!(bench.run(None).await.unwrap(), Done::Cancelled));
    assert_eq!(bench.calls(), ["look a", "change x"]);
    assert_eq!(bench.states().await, (Waiting, vec![Made, Waiting]));
}

/// The record can reject any event. A step whose end is not recorded counts as failed and is never
/// made again.
#[tokio::test]
async fn a_record_that_fails_ends_it_and_keeps_what_was_done() {
    for fail_at in 0..10 {
        let record = Record { fail_at: Some(fail_at), ..Record::default() };
        let steps = [json!({"at": "x"}), json!({"at": "y"})];
        let mut bench = Bench::with_record(&steps, record).await;
        assert!(bench.run(None).await.is_err(), "{fail_at}");
        let expected = match fail_at {
            0..4 => (Waiting, vec![Waiting, Waiting]),
            4..7 => (Failed, vec![Failed, Waiting]),
            _ => (Failed, vec![Made, Failed]),
        };
        assert_eq!(bench.states().await, expected, "{fail_at}");
        let changed = bench.calls().iter().filter(|call| call.starts_with("change")).count();
        // A call starts only after its `tool_call_start` is recorded.
        assert_eq!(changed, usize::from(fail_at >= 6) + usize::from(fail_at >= 9), "{fail_at}");
    }
}
