use std::sync::Mutex;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::super::{
    AgentTool, ApprovalAnswer, ApprovalRequest, CallContext, CallOutput, Check, DeltaSink,
    PreparedCall, Rules, ShownAs, SystemPrompt, ToolDefinition, ToolRunner, ToolSpec, Toolbox,
};
use super::*;
use crate::agent::Record;
use crate::catalogue::{CacheWrites, Prices};
use crate::clock::SystemClock;
use crate::config::{Autonomy, Limits, Listed, Policy, ReadPolicy};
use crate::domain::{CallError, Category, ErrorKind, Event, FinishReason, Stop, ToolName};
use crate::gate::{CommandRules, GateRules, PathRules};

/// Plays back replies and errors. Checks that every request pairs each call with its one result.
struct Script(Mutex<std::collections::VecDeque<Result<ModelReply, ModelError>>>);

#[async_trait]
impl Model for Script {
    async fn call(
        &self,
        request: ModelRequest<'_>,
        _: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        assert_paired(request);
        let next = self.0.lock().unwrap().pop_front();
        match next {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

/// The checks of a run that has none.
struct NoChecks;

#[async_trait]
impl Verifier for NoChecks {
    async fn verify(&self, _: u32, done: Vec<Check>) -> Result<Option<Vec<Check>>, RecordError> {
        Ok(Some(done))
    }
}

fn assert_paired(request: ModelRequest<'_>) {
    use crate::domain::Turn;
    let mut open: Vec<String> = Vec::new();
    for turn in request.history {
        match turn {
            Turn::Assistant(turn) => {
                assert!(open.is_empty());
                open = turn.tool_calls.iter().map(|call| call.call_id.to_string()).collect();
            }
            Turn::ToolResults(results) => {
                let ids: Vec<String> =
                    results.iter().map(|result| result.call_id.to_string()).collect();
                assert_eq!(std::mem::take(&mut open), ids);
            }
            _ => assert!(open.is_empty()),
        }
    }
    assert!(open.is_empty());
}

/// Sleeps for as many seconds as its argument `s` says, and counts how many calls run at once.
struct Sleeper {
    definition: ToolDefinition,
    category: Category,
    running: AtomicU64,
    most: AtomicU64,
}

impl ToolSpec for Sleeper {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }
    fn category(&self) -> Category {
        self.category
    }
    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        if arguments.contains_key("bad") {
            return Err(CallError::new(ErrorKind::InvalidArguments, "bad"));
        }
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
impl ToolRunner for Sleeper {
    async fn run(&self, call: &PreparedCall, context: &CallContext) -> CallOutput {
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let seconds = call.arguments.get("s").and_then(Value::as_u64).unwrap_or(0);
        let mut output = CallOutput { content: "ok".into(), ..CallOutput::default() };
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
            () = context.cancel.cancelled() => output.error_kind = Some(ErrorKind::Interrupted),
        }
        if call.arguments.contains_key("fail") {
            output.error_kind = Some(ErrorKind::ExitCode);
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        output
    }
}

fn sleeper(name: &str, category: Category) -> Arc<Sleeper> {
    let definition =
        ToolDefinition { name: name.into(), description: name.into(), parameters: json!({}) };
    Arc::new(Sleeper { definition, category, running: AtomicU64::new(0), most: AtomicU64::new(0) })
}

fn limits() -> Limits {
    Limits { max_output_bytes: 1 << 20, ..Limits::default() }
}

fn say(text: &str) -> Result<ModelReply, ModelError> {
    Ok(reply(text, &[]))
}

fn reply(text: &str, calls: &[(&str, &str)]) -> ModelReply {
    ModelReply {
        text: text.into(),
        reasoning: None,
        calls: calls
            .iter()
            .enumerate()
            .map(|(at, (name, arguments))| super::super::RequestedCall {
                id: Some(format!("id{at}")),
                name: (*name).into(),
                arguments: (*arguments).into(),
            })
            .collect(),
        finish_reason: if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls },
        stop_reason: None,
        explanation: None,
        cache_writes: CacheWrites::default(),
        usage: None,
        response_id: None,
        provider_data: None,
    }
}

fn call(calls: &[(&str, &str)]) -> Result<ModelReply, ModelError> {
    Ok(reply("", calls))
}

fn fail(class: ErrorClass) -> Result<ModelReply, ModelError> {
    Err(ModelError::new(class, "no"))
}

/// A person who answers, or one who is away.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Person {
    SaysYes,
    SaysNo,
    IsAway,
}

#[async_trait]
impl Approver for Person {
    fn expires_at(&self, _: Duration) -> chrono::DateTime<chrono::Utc> {
        chrono::DateTime::UNIX_EPOCH
    }

    async fn ask(&self, request: ApprovalRequest) -> ApprovalAnswer {
        assert_eq!(
            (request.tool.as_str(), request.argv.as_slice()),
            ("change", &["change".to_owned()][..])
        );
        if *self == Self::IsAway {
            std::future::pending::<()>().await;
        }
        ApprovalAnswer {
            approved: *self == Self::SaysYes,
            by: "me".into(),
            reason: Some("not now".into()),
        }
    }
}

struct Bench {
    approver: Person,
    approve: bool,
    approval: crate::config::Approval,
    limits: Limits,
    confirm: bool,
    record: Arc<Record>,
    read: Arc<Sleeper>,
    stop: watch::Sender<Option<Stop>>,
    prices: Option<Prices>,
    /// Whether a second model, which says `from the second`, can take over.
    has_second: bool,
    has_person: bool,
    passed_over: Vec<String>,
    inbox: Inbox,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            approver: Person::IsAway,
            approve: false,
            approval: crate::config::Approval::default(),
            limits: limits(),
            confirm: false,
            record: Arc::default(),
            read: sleeper("look", Category::Read),
            stop: watch::channel(None).0,
            prices: Some(Prices::free()),
            has_second: false,
            has_person: false,
            passed_over: Vec::new(),
            inbox: Inbox::default(),
        }
    }
}

impl Bench {
    fn models(
        &self,
        script: Vec<Result<ModelReply, ModelError>>,
        facts: ModelFacts,
    ) -> Vec<ModelInUse> {
        let of = |name: &str, script: Vec<Result<ModelReply, ModelError>>| ModelInUse {
            name: name.to_owned(),
            access: "key".to_owned(),
            model: Arc::new(Script(Mutex::new(script.into()))),
            max_retries: 2,
            prices: self.prices.clone(),
            facts,
            parallel_calls: true,
        };
        let second = self.has_second.then(|| of("second", vec![say("from the second")]));
        [of("first", script)].into_iter().chain(second).collect()
    }

    async fn run(&self, script: Vec<Result<ModelReply, ModelError>>) -> SessionResult {
        let tools: Vec<Arc<dyn AgentTool>> = vec![
            self.read.clone(),
            sleeper("change", Category::Write),
            sleeper("other", Category::Write),
        ];
        let policy = Policy {
            autonomy: Autonomy::Supervised,
            read: ReadPolicy::All,
            write: vec![Listed { tool: ToolName::parse("change").unwrap(), args: None }],
            admin: vec![],
            approve: self.approve.then(|| "change".to_owned()).into_iter().collect(),
            deny: [].into(),
            narrowed: Vec::new(),
        };
        let rules = Rules {
            mode: crate::config::Mode::Act,
            approval: self.approval,
            gate: GateRules {
                job: "j".into(),
                has_person: self.has_person,
                policy,
                paths: PathRules::default(),
                commands: CommandRules::default(),
                domains: Default::default(),
                rate: None,
                max_tool_calls: self.limits.max_tool_calls,
                max_files_modified: self.limits.max_files_modified,
                max_lines_changed: self.limits.max_lines_changed,
            },
            limits: self.limits.clone(),
            confirm: self.confirm,
            needs_call: false,
            output_schema: None,
            checks: 0,
            verify_retries: 0,
            compacts: false,
            loop_window: Some(10),
        };
        let price = self.prices.as_ref().and_then(|prices| prices.at(SystemClock.now()));
        let facts = ModelFacts { price, context_window: 100_000, characters_per_token: None };
        Session::new(SessionParts {
            passed_over: self.passed_over.clone(),
            run_id: "run".into(),
            approver: Arc::new(self.approver),
            verifier: Arc::new(NoChecks),
            clock: Arc::new(SystemClock),
            machine: Machine::new(
                rules,
                facts,
                Arc::new(Toolbox::new(tools, |tool| {
                    Some(ShownAs::itself(&tool.definition().name))
                })),
                SystemPrompt { text: "system".into(), ..SystemPrompt::default() },
            ),
            models: self.models(script, facts),
            marker: Marker::new([0; 32]),
            sink: self.record.clone(),
            inbox: self.inbox.clone(),
            stop: StopSignal::new(self.stop.subscribe(), Instant::now() + self.limits.max_duration),
            waits: ModelWaits::default(),
            worked: Duration::ZERO,
            may_suspend: false,
        })
        .run("task".into())
        .await
    }

    fn types(&self) -> Vec<String> {
        self.record
            .events
            .lock()
            .unwrap()
            .iter()
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect()
    }

    fn all(&self, kind: &str) -> Vec<Value> {
        self.record
            .events
            .lock()
            .unwrap()
            .iter()
            .filter(|event| event["type"] == kind)
            .cloned()
            .collect()
    }
}

// conforms 001-L2, 001-L4, 003-2.9b, 003-2.9d, 003-2.9e, 004-1.8a, 004-1.8c, 004-C8, 004-C9b
// conforms 004-C18a, 004-C18d, 004-T11, 004-T15, 004-T17, 004-T18
#[tokio::test]
async fn a_run_is_recorded_in_the_order_in_which_it_happens() {
    let bench = Bench { confirm: true, ..Bench::default() };
    let result = bench.run(vec![call(&[("look", "{}")]), say("done"), say("really done")]).await;
    assert_eq!(
        (result.end.stop_reason, result.end.result.as_deref()),
        (StopReason::Completed, Some("really done"))
    );
    assert_eq!(
        bench.types(),
        [
            "system_prompt",
            "user_input",
            "assistant_text_end",
            "policy_decision",
            "tool_call_start",
            "tool_call_end",
            "assistant_text_end",
            "user_input",
            "assistant_text_end",
            "processing_end"
        ]
    );
    let asked = &bench.all("user_input")[1];
    assert_eq!(asked["source"], "confirmation");
    let text = asked["text"].as_str().unwrap();
    for words in [
        "every part of the task is done",
        "the tool results support each claim",
        "keep working",
        "restate the final answer",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!((result.counters.iterations, result.counters.spent.calls), (3, 1));
    assert_eq!(result.counters.tools_used, std::collections::BTreeSet::from(["look".to_owned()]));
    assert!(result.counters.usage.total() > 0);
}

// proves POL-3, POL-9, ARG-15, LLM-6
// conforms 003-2.9e, 003-3.8b, 003-9.3b, 003-B6, 003-B7, 004-1.8c, 004-C7b, 004-T7, 004-T10
#[tokio::test]
async fn every_call_has_its_one_result() {
    let bench = Bench::default();
    let mut answer = reply(
        "",
        &[
            ("look", "{}"),
            ("Look", "{}"),
            ("other", "{}"),
            ("change", "{\"a\":1,\"a\":2}"),
            ("change", "{}"),
            ("look", "{}"),
        ],
    );
    for (at, id) in ["same", "same", "", "../x", "ok", "ok2"].iter().enumerate() {
        answer.calls[at].id = Some((*id).to_owned());
    }
    bench.run(vec![Ok(answer), say("done")]).await;
    let ends: Vec<_> = bench
        .all("tool_call_end")
        .iter()
        .map(|e| (e["call_id"].as_str().unwrap().to_owned(), e["error_kind"].clone()))
        .collect();
    let kinds: std::collections::BTreeMap<String, Value> = ends.iter().cloned().collect();
    assert_eq!(ends.len(), 6);
    assert_eq!(kinds.len(), 6, "six different ids: {ends:?}");
    assert_eq!(kinds["same"], Value::Null);
    assert_eq!(kinds["call_1_2"], "unknown_tool");
    assert_eq!(kinds["call_1_3"], "denied");
    assert_eq!(kinds["call_1_4"], "invalid_arguments");
    assert_eq!(kinds["ok"], Value::Null);
    assert_eq!(kinds["ok2"], "limit");
    assert_eq!(bench.all("tool_call_start").len(), 2);
    let decisions: Vec<_> = bench
        .all("policy_decision")
        .iter()
        .map(|e| (e["call_id"].clone(), e["rule"].clone()))
        .collect();
    assert_eq!(
        decisions,
        [
            (json!("same"), json!("allowed")),
            (json!("call_1_3"), json!("category")),
            (json!("ok"), json!("allowed"))
        ]
    );
}

// conforms 003-9.3e
#[tokio::test(start_paused = true)]
async fn reads_run_together_and_writes_alone() {
    let bench = Bench { limits: Limits { parallel_reads: 2, ..limits() }, ..Bench::default() };
    let started = Instant::now();
    let slow = "{\"s\":10}";
    bench
        .run(vec![
            call(&[
                ("look", slow),
                ("look", slow),
                ("look", slow),
                ("change", slow),
                ("look", slow),
            ]),
            say("done"),
        ])
        .await;
    assert_eq!(started.elapsed().as_secs(), 40, "two reads, one read, the write, one read");
    assert_eq!(bench.read.most.load(Ordering::SeqCst), 2);
}

// proves LLM-4
// conforms 000-5.1f, 000-S5.7, 002-2, 003-2.2f, 003-2.8, 003-2.9d, 003-2.9h, 003-9.1d, 003-9.1g
// conforms 004-1.6c, 004-C9a, 004-C9c, 004-T3, 004-T4, 004-T5
#[tokio::test]
async fn every_limit_has_its_own_stop_reason() {
    let check = |limits: Limits,
                 script: Vec<Result<ModelReply, ModelError>>,
                 expected: StopReason| async move {
        let bench = Bench { limits, ..Bench::default() };
        assert_eq!(bench.run(script).await.end.stop_reason, expected);
        bench
    };
    let looks = |count: usize| {
        (0..count).map(|n| call(&[("look", &format!("{{\"n\":{n}}}"))])).collect::<Vec<_>>()
    };
    let bench =
        check(Limits { max_iterations: 3, ..limits() }, looks(9), StopReason::MaxIterations).await;
    assert_eq!(
        bench.all("turn_limit")[0],
        json!({"type": "turn_limit", "limit": "max_iterations", "value": 3})
    );
    assert_eq!(
        bench.all("assistant_text_end").last().unwrap()["text"],
        "Stopped: maximum iteration limit reached."
    );
    let bench =
        check(Limits { max_tool_calls: 2, ..limits() }, looks(9), StopReason::MaxToolCalls).await;
    assert_eq!(bench.all("tool_call_start").len(), 2);
    assert_eq!(bench.all("policy_decision")[2]["rule"], "budget");
    check(Limits { max_tokens: Some(40), ..limits() }, looks(9), StopReason::BudgetExceeded).await;
    let fails: Vec<_> =
        (0..9).map(|n| call(&[("look", &format!("{{\"n\":{n},\"fail\":1}}"))])).collect();
    let bench = check(limits(), fails, StopReason::ErrorThreshold).await;
    assert_eq!(bench.all("tool_call_end").len(), 3);
    let denied: Vec<_> = (0..9).map(|n| call(&[("other", &format!("{{\"n\":{n}}}"))])).collect();
    check(limits(), denied, StopReason::ErrorThreshold).await;
    let same: Vec<_> = (0..40).map(|_| call(&[("look", "{}")])).collect();
    let bench =
        check(Limits { max_iterations: 100, ..limits() }, same, StopReason::LoopDetected).await;
    assert_eq!(
        bench
            .all("loop_detection")
            .iter()
            .map(|e| e["count"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert_eq!(bench.all("tool_call_start").len(), 30);
}

#[tokio::test]
async fn one_call_that_works_starts_the_count_of_errors_anew() {
    let fail = "{\"fail\":1}";
    let script = vec![
        call(&[("look", fail)]),
        call(&[("look", fail)]),
        call(&[("look", fail), ("look", "{}")]),
        call(&[("look", fail)]),
        call(&[("look", fail)]),
        say("done"),
    ];
    assert_eq!(Bench::default().run(script).await.end.stop_reason, StopReason::Completed);
}

// conforms 004-T21
#[tokio::test]
async fn a_cut_call_is_not_run_and_a_whole_one_beside_it_is() {
    let bench = Bench::default();
    let mut cut = reply("", &[("look", "{}"), ("change", "{\"summary\": ")]);
    cut.finish_reason = FinishReason::Length;
    let mut empty = reply("", &[("change", "")]);
    empty.finish_reason = FinishReason::Length;
    bench.run(vec![Ok(cut), Ok(empty), say("done")]).await;
    assert_eq!(bench.all("tool_call_start").len(), 1);
    let ends = bench.all("tool_call_end");
    let cut = ends.iter().find(|end| end["call_id"] == "id1").unwrap();
    assert!(cut["output"].as_str().unwrap().contains("shorter"), "{ends:?}");
    assert_eq!(ends[2]["error_kind"], "invalid_arguments");
    assert_eq!(
        bench.all("assistant_text_end")[0]["tool_calls"][1]["arguments_text"],
        "{\"summary\": "
    );
}

// conforms 001-X4, 003-2.8, 003-9.11b, 003-9.11c, 003-B8, 003-B9, 004-1.1e
#[tokio::test(start_paused = true)]
async fn failures_of_the_model_are_retried_or_end_the_run() {
    for (script, expected, retries) in [
        (
            vec![fail(ErrorClass::Overloaded), fail(ErrorClass::StreamInterrupted), say("ok")],
            StopReason::Completed,
            2,
        ),
        (
            vec![fail(ErrorClass::Server), fail(ErrorClass::Server), fail(ErrorClass::Server)],
            StopReason::ProviderUnavailable,
            2,
        ),
        (
            vec![fail(ErrorClass::Network), fail(ErrorClass::Timeout), say("ok")],
            StopReason::Completed,
            2,
        ),
        (vec![fail(ErrorClass::QuotaExhausted)], StopReason::ProviderUnavailable, 0),
        (vec![fail(ErrorClass::Auth)], StopReason::ProviderAuth, 0),
        (vec![fail(ErrorClass::BadRequest)], StopReason::ProviderRejected, 0),
        (vec![fail(ErrorClass::ContextLength)], StopReason::ContextOverflow, 0),
        (vec![fail(ErrorClass::BadToolGeneration), say("ok")], StopReason::Completed, 0),
        (
            vec![
                fail(ErrorClass::BadToolGeneration),
                fail(ErrorClass::BadToolGeneration),
                fail(ErrorClass::BadToolGeneration),
            ],
            StopReason::ProviderUnavailable,
            0,
        ),
    ] {
        let bench = Bench::default();
        let result = bench.run(script).await;
        assert_eq!(result.end.stop_reason, expected);
        assert_eq!(bench.all("warning").len(), retries);
    }
    let mut waits = ModelError::new(ErrorClass::RateLimit, "slow down");
    waits.retry_after = Some(Duration::from_secs(40));
    let started = Instant::now();
    Bench::default().run(vec![Err(waits), say("ok")]).await;
    assert_eq!(started.elapsed().as_secs(), 40);
    let mut spent = ModelError::new(ErrorClass::RateLimit, "slow down");
    spent.retry_after = Some(Duration::from_secs(7200));
    let started = Instant::now();
    let result = Bench::default().run(vec![Err(spent)]).await;
    assert_eq!(result.end.stop_reason, StopReason::ProviderUnavailable);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

// proves PROV-1
#[tokio::test(start_paused = true)]
async fn a_server_that_loads_its_model_is_awaited_with_one_warning() {
    let loading = |count: usize| (0..count).map(|_| fail(ErrorClass::Loading));
    let bench = Bench::default();
    let result = bench.run(loading(30).chain([say("ok")]).collect()).await;
    assert_eq!(result.end.stop_reason, StopReason::Completed);
    let codes: Vec<Value> = bench.all("warning").iter().map(|w| w["code"].clone()).collect();
    assert_eq!(codes, ["model_loading"]);
    let started = Instant::now();
    let result = Bench::default().run(loading(100).collect()).await;
    assert_eq!(result.end.stop_reason, StopReason::ProviderUnavailable);
    assert_eq!(started.elapsed().as_secs(), 120);
}

/// If the whole pause were random, the second pause of one run in four would be shorter than the
/// first.
// proves PROV-1
// conforms 003-9.11b
#[tokio::test(start_paused = true)]
async fn a_provider_in_trouble_is_given_more_time_with_each_retry() {
    for _ in 0..100 {
        let bench = Bench::default();
        let busy = || fail(ErrorClass::Overloaded);
        bench.run(vec![busy(), busy(), say("ok")]).await;
        let pauses: Vec<u64> = bench
            .all("warning")
            .iter()
            .filter_map(|warning| {
                let message = warning["message"].as_str()?;
                message.strip_suffix(" ms")?.rsplit_once(' ')?.1.parse().ok()
            })
            .collect();
        let [first, second] = pauses[..] else { panic!("{pauses:?}") };
        assert!((250..=500).contains(&first) && (500..=1000).contains(&second), "{pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_broke_off_counts_with_its_input() {
    let used = async |script| Bench::default().run(script).await.counters.usage.input_tokens;
    let input = used(vec![say("ok")]).await;
    assert!(input > 0);
    let failures = [ErrorClass::StreamInterrupted, ErrorClass::Timeout, ErrorClass::Overloaded];
    for (class, count) in failures.into_iter().zip([2, 2, 1]) {
        assert_eq!(used(vec![fail(class), say("ok")]).await, count * input, "{class:?}");
    }
}

/// A call that the provider reports as invalid must not stay in the history without a result. The
/// calls of a reply with the finish reason `Pause` are run.
#[tokio::test]
async fn no_call_is_left_without_its_result() {
    let with = |finish_reason| {
        Ok(ModelReply { finish_reason, ..reply("", &[("look", "{}"), ("look", "{}")]) })
    };
    let bench = Bench::default();
    let result = bench.run(vec![with(FinishReason::InvalidToolCall), say("done")]).await;
    assert_eq!(result.end.stop_reason, StopReason::Completed);
    assert_eq!(bench.all("tool_call_start").len(), 0);
    let bench = Bench::default();
    let result = bench.run(vec![with(FinishReason::Pause), say("done")]).await;
    assert_eq!(result.end.stop_reason, StopReason::Completed);
    assert_eq!(bench.all("tool_call_end").len(), 2);
}

#[tokio::test]
async fn a_fallback_replaces_a_model_that_takes_no_tools() {
    let bench = Bench { has_second: true, ..Bench::default() };
    let result = bench.run(vec![fail(ErrorClass::ToolsRejected)]).await;
    assert_eq!(result.end.result.as_deref(), Some("from the second"));
    assert_eq!(bench.all("warning")[0]["code"], "model_fallback");
    assert_eq!(result.outages, []);

    let bench = Bench::default();
    let result = bench.run(vec![fail(ErrorClass::ToolsRejected), say("never")]).await;
    assert_eq!(result.end.stop_reason, StopReason::ProviderRejected);
    assert!(result.end.error.unwrap().starts_with("`first` takes no tools ("));

    let bench = Bench { has_person: true, ..Bench::default() };
    let result = bench.run(vec![fail(ErrorClass::ToolsRejected), say("from the task")]).await;
    assert_eq!(
        (result.end.stop_reason, result.end.result.as_deref()),
        (StopReason::Completed, Some("from the task"))
    );
    assert_eq!(bench.all("warning")[0]["code"], "tools_rejected");
}

// proves LLM-4
#[tokio::test]
async fn a_limit_of_cost_ends_a_run_before_the_request_that_passes_it() {
    let used = |input_tokens, output_tokens| {
        Some(crate::domain::Usage { input_tokens, output_tokens, ..Default::default() })
    };
    let bench = |most| Bench {
        limits: Limits { max_cost_usd: Some(most), ..limits() },
        prices: Some(Prices::flat(3.0, 15.0)),
        ..Bench::default()
    };
    // The price is 3 USD per million input tokens and 15 USD per million output tokens. The first
    // reply costs 0.003 + 0.0015 USD, and the second request at least 0.003 USD.
    let looked = || Ok(ModelReply { usage: used(1000, 100), ..reply("", &[("look", "{}")]) });
    let enough = bench(0.02);
    let result = enough.run(vec![looked(), say("done")]).await;
    assert_eq!(result.end.stop_reason, StopReason::Completed);
    assert!((result.counters.cost.unwrap() - 0.0045).abs() < 0.004, "{:?}", result.counters.cost);
    let scarce = bench(0.006);
    let result = scarce.run(vec![looked(), say("never")]).await;
    assert_eq!(result.end.stop_reason, StopReason::BudgetExceeded);
    assert_eq!(scarce.all("turn_limit")[0]["limit"], "max_cost_usd");
    assert_eq!(scarce.all("turn_limit")[0]["value"], 0.006);
    assert!(bench(0.004).run(vec![say("done")]).await.end.stop_reason == StopReason::Completed);
    // Token counts of zero do not make a reply free.
    let silent = bench(0.0004);
    let unsaid = || {
        Ok(ModelReply {
            usage: used(0, 0),
            stop_reason: Some("stop".into()),
            ..reply(&"word ".repeat(200), &[("look", "{}")])
        })
    };
    let result = silent.run(vec![unsaid(), unsaid(), say("never")]).await;
    assert_eq!(result.end.stop_reason, StopReason::BudgetExceeded, "{:?}", result.counters);
}

// conforms 000-5.1b, 000-S5.5, 000-S5.8, 001-X4, 003-2.8, 003-9.11e, 003-B12, 004-1.6c, 004-C9c
#[tokio::test(start_paused = true)]
async fn a_stop_ends_whatever_is_going_on() {
    let bench = Bench::default();
    bench.stop.send_replace(Some(StopReason::Cancelled.into()));
    assert_eq!(bench.run(vec![]).await.end.stop_reason, StopReason::Cancelled);

    let bench = Bench {
        limits: Limits { max_duration: Duration::from_secs(5), ..limits() },
        ..Bench::default()
    };
    let result = bench.run(vec![call(&[("change", "{\"s\":100}"), ("change", "{}")])]).await;
    assert_eq!(result.end.stop_reason, StopReason::MaxDuration);
    let kinds: Vec<_> =
        bench.all("tool_call_end").iter().map(|e| e["error_kind"].clone()).collect();
    assert_eq!(kinds, ["interrupted", "skipped"]);
    assert_eq!(bench.all("turn_limit")[0]["limit"], "max_duration");

    // A model that never answers, and a call that sleeps.
    for script in [vec![], vec![call(&[("change", "{\"s\":100}")])]] {
        let bench = Bench::default();
        let cancel = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            bench.stop.send_replace(Some(StopReason::Cancelled.into()));
        };
        let started = Instant::now();
        let (result, ()) = tokio::join!(bench.run(script), cancel);
        assert_eq!(result.end.stop_reason, StopReason::Cancelled);
        assert_eq!(started.elapsed().as_secs(), 3);
    }
}

// proves LOG-6
#[tokio::test]
async fn what_cannot_be_recorded_does_not_happen() {
    for at in 0..6 {
        let bench = Bench {
            record: Arc::new(Record { fail_at: Some(at), ..Record::default() }),
            ..Bench::default()
        };
        let result = bench.run(vec![call(&[("change", "{}")]), say("done")]).await;
        assert_eq!(result.end.stop_reason, StopReason::RecordFailed);
        assert_eq!(bench.types().len(), at);
    }
}

#[tokio::test]
async fn an_empty_answer_and_a_refusal_are_said() {
    let bench = Bench::default();
    let end = bench.run(vec![say(""), say(" ")]).await.end;
    assert_eq!((end.stop_reason, end.result), (StopReason::NoAnswer, None));
    assert_eq!(bench.all("user_input")[1]["source"], "correction");
    let mut refused = reply("I cannot.", &[]);
    refused.finish_reason = FinishReason::Refusal;
    assert_eq!(Bench::default().run(vec![Ok(refused)]).await.end.stop_reason, StopReason::Refused);
}

// conforms 003-2.9g
#[tokio::test]
async fn budgets_are_told_once_at_eighty_percent() {
    let bench = Bench { limits: Limits { max_iterations: 5, ..limits() }, ..Bench::default() };
    let looks =
        (0..4).map(|n| call(&[("look", &format!("{{\"n\":{n}}}"))])).chain([say("done")]).collect();
    assert_eq!(bench.run(looks).await.end.stop_reason, StopReason::Completed);
    let told = bench.all("steering_injected");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["source"], "budget");
}

// proves WEB-8
// conforms 002-9, 002-18
#[tokio::test(start_paused = true)]
async fn a_person_is_asked_and_nobody_is_no() {
    for (approver, planned, expected) in [
        (Person::SaysYes, false, None),
        (Person::SaysNo, false, Some("denied")),
        (Person::IsAway, false, Some("approval_timeout")),
        (Person::IsAway, true, None),
    ] {
        let approval = crate::config::Approval {
            unanswered_is_planned: planned,
            ..crate::config::Approval::default()
        };
        let bench = Bench { approver, approve: true, approval, ..Bench::default() };
        let started = Instant::now();
        let result = bench.run(vec![call(&[("change", "{}")]), say("done")]).await;
        let waited = if approver == Person::IsAway { 60 } else { 0 };
        assert_eq!(started.elapsed().as_secs(), waited, "{approver:?}");
        let events = bench.record.events.lock().unwrap().clone();
        let of = |kind: &str| events.iter().find(|event| event["type"] == kind);
        assert_eq!(of("policy_decision").unwrap()["decision"], "ask");
        assert_eq!(of("tool_call_end").unwrap()["error_kind"].as_str(), expected, "{approver:?}");
        let resolved = of("approval_resolved").unwrap();
        assert_eq!(resolved["approved"], approver == Person::SaysYes);
        assert_eq!(resolved["by"].is_null(), approver == Person::IsAway);
        assert_eq!(of("tool_call_start").is_some(), approver == Person::SaysYes);
        let reason = if planned { StopReason::Planned } else { StopReason::Completed };
        assert_eq!(
            (result.end.stop_reason, result.changes.steps.len()),
            (reason, usize::from(planned))
        );
    }
}

mod checks;
mod people;
mod resumed;

#[tokio::test(start_paused = true)]
async fn a_session_passes_over_models_on_hold_and_tells_which_models_failed() {
    let unavailable = || fail(ErrorClass::Overloaded);
    let bench = Bench { has_second: true, ..Bench::default() };
    let result = bench.run(vec![unavailable(), unavailable(), unavailable()]).await;
    assert_eq!(result.end.result.as_deref(), Some("from the second"));
    let failed: Vec<&str> = result.outages.iter().map(|of| of.model.as_str()).collect();
    assert_eq!(failed, ["first"]);
    assert_eq!(
        (result.outages[0].settings.as_str(), result.outages[0].cause.as_str()),
        ("key", "no")
    );
    let bench = Bench { passed_over: vec!["first".to_owned()], ..bench };
    let result = bench.run(vec![say("from the first")]).await;
    assert_eq!(result.end.result.as_deref(), Some("from the second"));
    assert!(result.outages.is_empty());
    let bench = Bench::default();
    let script = vec![fail(ErrorClass::BadToolGeneration), unavailable(), say("ok")];
    assert!(bench.run(script).await.outages.is_empty(), "it has answered since");
    // A run whose time is over while its model gives no answer.
    let bench =
        Bench { limits: Limits { max_duration: Duration::from_millis(200), ..limits() }, ..bench };
    let result = bench.run(vec![unavailable(), unavailable(), unavailable()]).await;
    assert_eq!(result.end.stop_reason, StopReason::MaxDuration);
    assert_eq!(result.outages.len(), 1);
}
