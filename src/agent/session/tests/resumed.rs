//! A session that is cut off anywhere and resumed ends like one that was never cut off.

use proptest::prelude::*;

use super::checks::{FakeChecks, Green};
use super::people::{Moment, People, texts};
use super::*;
use crate::agent::{RebuildError, RecordedStart, Sources, last_model, rebuild};
use crate::argv::Diagnostics;
use crate::config::{Mode, OutputSchema};
use crate::domain::{Image, TextKind, Turn};

/// Answers by the number of replies in the history, so that it continues where the run was cut off.
/// The second model of a session is `spare`, which answers where the first is unavailable.
struct Steps {
    steps: Vec<Answer>,
    is_spare: bool,
    seen: Arc<Mutex<Vec<Turn>>>,
    people: People,
}

/// How the models answer a request.
#[derive(Debug, Clone)]
enum Answer {
    Says(&'static str),
    /// Calls: tool, arguments.
    Calls(Vec<(&'static str, &'static str)>),
    /// The first model is unavailable, and the spare one says this.
    FallsBack(&'static str),
    /// The stream of the first model breaks off, and the spare one says this.
    BreaksOff(&'static str),
    /// The provider cannot parse a call of the model.
    Malformed,
    /// The provider refuses.
    Refuses,
}

#[async_trait]
impl Model for Steps {
    async fn call(
        &self,
        request: ModelRequest<'_>,
        deltas: &dyn DeltaSink,
    ) -> Result<ModelReply, ModelError> {
        assert_paired(request);
        *self.seen.lock().unwrap() = request.history.to_vec();
        let asked = request.history.iter().filter(|turn| match turn {
            Turn::Assistant(_) => true,
            Turn::User(text) => text.starts_with("Your last tool call was malformed"),
            _ => false,
        });
        let asked = asked.count();
        self.people.give(Moment::Request(asked)).await;
        match self.steps.get(asked) {
            None => Ok(reply("finished", &[])),
            Some(Answer::Says(text)) => Ok(reply(text, &[])),
            Some(Answer::Calls(calls)) => Ok(ModelReply {
                reasoning: Some("think".into()),
                provider_data: Some(json!({"signature": calls.len()})),
                cache_writes: CacheWrites { all: 7, long: 2 },
                ..reply("calling", calls)
            }),
            Some(Answer::FallsBack(text) | Answer::BreaksOff(text)) if self.is_spare => {
                Ok(reply(text, &[]))
            }
            Some(Answer::BreaksOff(_)) => {
                deltas.delta("the part that arrived");
                Err(ModelError::new(ErrorClass::StreamInterrupted, "cut"))
            }
            Some(Answer::FallsBack(_)) => Err(ModelError::new(ErrorClass::QuotaExhausted, "gone")),
            Some(Answer::Malformed) => {
                Err(ModelError::new(ErrorClass::BadToolGeneration, "no {json}. Send it"))
            }
            Some(Answer::Refuses) => {
                Ok(ModelReply { finish_reason: FinishReason::Refusal, ..reply("", &[]) })
            }
        }
    }
}

/// Prints more than the model sees, and an image.
struct Printer(ToolDefinition, Category, People);

impl ToolSpec for Printer {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }
    fn category(&self) -> Category {
        self.1
    }
    fn prepare(&self, arguments: &Map<String, Value>) -> Result<PreparedCall, CallError> {
        sleeper(&self.0.name, self.1).prepare(arguments)
    }
    fn dry_run_of(&self, call: &PreparedCall) -> Option<PreparedCall> {
        call.arguments.contains_key("dry").then(|| call.clone())
    }
}

fn image() -> Image {
    Image { media_type: "image/png", width: 2, height: 1, base64: "QUJD".into() }
}

#[async_trait]
impl ToolRunner for Printer {
    async fn run(&self, call: &PreparedCall, _: &CallContext) -> CallOutput {
        for key in ["n", "at"] {
            if let Some(number) = call.arguments.get(key).and_then(Value::as_u64) {
                self.2.give(Moment::Call(number)).await;
            }
        }
        let has_failed = call.arguments.contains_key("fail");
        let shows = call.arguments.contains_key("image");
        CallOutput {
            content: format!("[start {} end] {}", "…".repeat(130), json!(call.arguments)),
            output_file: Some("output/x.txt".into()),
            digest: Some("d1".into()),
            error_kind: has_failed.then_some(ErrorKind::ExitCode),
            exit_code: Some(i32::from(has_failed)),
            modified: vec!["/srv/a".into()],
            lines_changed: 3,
            details: shows
                .then(|| ("images".to_owned(), json!([{"file": "a.png"}])))
                .into_iter()
                .collect(),
            images: shows.then(image).into_iter().collect(),
            ..CallOutput::default()
        }
    }
}

#[derive(Debug, Clone)]
struct Case {
    steps: Vec<Answer>,
    mode: Mode,
    approver: Person,
    approve: bool,
    confirm: bool,
    max_iterations: u64,
    error_threshold: u64,
    outcome: Green,
    compacts: bool,
    texts: Vec<(Moment, TextKind)>,
}

/// One session, from its start or from a cut; returns what it made.
struct Played {
    events: Vec<Event>,
    result: Result<SessionResult, RebuildError>,
    /// The history that the last request showed.
    seen: Vec<Turn>,
}

impl Case {
    fn rules(&self) -> Rules {
        let policy = Policy {
            autonomy: Autonomy::Supervised,
            read: ReadPolicy::All,
            write: vec![Listed { tool: ToolName::parse("change").unwrap(), args: None }],
            admin: vec![],
            approve: self.approve.then(|| "change".to_owned()).into_iter().collect(),
            deny: [].into(),
            narrowed: Vec::new(),
        };
        let limits = Limits {
            max_iterations: self.max_iterations,
            error_threshold: self.error_threshold,
            max_tool_calls: 6,
            max_cost_usd: Some(1000.0),
            ..limits()
        };
        let approval = crate::config::Approval {
            unanswered_is_planned: self.confirm,
            ..crate::config::Approval::default()
        };
        Rules {
            mode: self.mode,
            approval,
            gate: GateRules {
                job: "j".into(),
                has_person: false,
                policy,
                paths: PathRules::default(),
                commands: CommandRules::default(),
                domains: Default::default(),
                rate: None,
                max_tool_calls: limits.max_tool_calls,
                max_files_modified: limits.max_files_modified,
                max_lines_changed: limits.max_lines_changed,
            },
            limits,
            confirm: self.confirm,
            needs_call: false,
            output_schema: self.outcome.has_schema.then(|| {
                let schema = json!({"type": "object", "required": ["status"]});
                let schema = schema.as_object().unwrap();
                OutputSchema::compile(schema, "", &mut Diagnostics::default()).unwrap()
            }),
            checks: self.outcome.checks,
            verify_retries: self.outcome.retries,
            compacts: self.compacts,
            loop_window: Some(4),
        }
    }

    async fn play(&self, before: &[Event]) -> Played {
        // A price with which no run reaches a limit.
        self.play_knowing(before, &Prices::flat(1.0, 2.0), 1000).await
    }

    /// Plays the session with these prices and this context window.
    async fn play_knowing(&self, before: &[Event], prices: &Prices, window: u64) -> Played {
        let record = Arc::new(Record::default());
        let (_keep, stop) = watch::channel(None);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (people, waiting) = People::after(before, &self.texts, record.clone()).await;
        let print = |name: &str, category| {
            let name = name.to_owned();
            let definition =
                ToolDefinition { description: name.clone(), name, parameters: json!({}) };
            Arc::new(Printer(definition, category, people.clone())) as Arc<dyn AgentTool>
        };
        let tools = [print("look", Category::Read), print("change", Category::Write)];
        let shown = |tool: &dyn ToolSpec| match tool.definition().name.as_str() {
            "look" => Some(ShownAs { name: "peek".into(), parameters: &[("at", "where")] }),
            name => Some(ShownAs::itself(name)),
        };
        let price = prices.at(SystemClock.now());
        let facts = |times| ModelFacts {
            price,
            context_window: window * times,
            characters_per_token: None,
        };
        let model = |name: &str, is_spare, facts| ModelInUse {
            access: String::new(),
            name: name.into(),
            model: Arc::new(Steps {
                steps: self.steps.clone(),
                is_spare,
                seen: seen.clone(),
                people: people.clone(),
            }),
            max_retries: 0,
            prices: Some(prices.clone()),
            facts,
            parallel_calls: true,
        };
        // As a run does: what is recorded, or else what is there now.
        let now = || Some("branch main".to_owned());
        let repository = match RecordedStart::find(before) {
            Some(start) if !start.lacks_repository() => start.repository,
            Some(_) | None => now(),
        };
        let recalled = || Some("earlier result".to_owned());
        let recall = match RecordedStart::find(before) {
            Some(start) if !start.lacks_recall() => start.recall,
            Some(_) | None => recalled(),
        };
        let system = SystemPrompt { text: "system".into(), stable: 3, repository, recall };
        let toolbox = Arc::new(Toolbox::new(tools, shown));
        let mut machine = Machine::new(self.rules(), facts(1), toolbox, system);
        let marker = Marker::new([0; 32]);
        let sources = Sources {
            events: before,
            marker: &marker,
            model: &|name| facts(if name == Some("spare") { 2 } else { 1 }),
            image: &|_| Some(image()),
            task: "task".into(),
            waiting,
        };
        let rebuilt = (!before.is_empty()).then(|| rebuild(&mut machine, &sources));
        let of_model = last_model(before);
        let session = Session::new(SessionParts {
            passed_over: Vec::new(),
            run_id: "run".into(),
            approver: Arc::new(self.approver),
            clock: Arc::new(SystemClock),
            machine,
            models: vec![model("first", false, facts(1)), model("spare", true, facts(2))],
            verifier: Arc::new(FakeChecks {
                record: record.clone(),
                green: self.outcome,
                marker: marker.clone(),
            }),
            marker: marker.clone(),
            sink: record.clone(),
            inbox: people.inbox,
            stop: StopSignal::new(stop, Instant::now() + Duration::from_hours(1)),
            waits: ModelWaits::default(),
            worked: Duration::ZERO,
            may_suspend: false,
        });
        let result = match rebuilt {
            None => Ok(session.run("task".into()).await),
            Some(Ok(rebuilt)) => Ok(session.resume(rebuilt, of_model).await),
            Some(Err(error)) => Err(error),
        };
        let events = record.events.lock().unwrap().clone().into_iter();
        let events = events.map(|event| serde_json::from_value(event).unwrap()).collect();
        let seen = seen.lock().unwrap().clone();
        Played { events, result, seen }
    }
}

/// Returns the calls that started as write calls and have no result.
fn unknown(events: &[Event]) -> Vec<String> {
    let mut open = Vec::new();
    for event in events {
        match event {
            Event::ToolCallStart(start) if start.category != Category::Read => {
                open.push(start.call_id.to_string());
            }
            Event::ToolCallEnd(end) => open.retain(|id| *id != end.call_id.as_str()),
            _ => {}
        }
    }
    open
}

/// Returns what a session used, except for time.
fn used(result: &SessionResult) -> Value {
    let Counters { iterations, spent, tools_used, usage, cost, cached, .. } = &result.counters;
    json!([iterations, spent.calls, spent.files, spent.lines, tools_used, usage, cost, cached])
}

fn case() -> impl Strategy<Value = Case> {
    let calls = prop::sample::select(vec![
        ("peek", r#"{"where":1}"#),
        ("look", r#"{"at":2,"image":true}"#),
        ("peek", r#"{"fail":1}"#),
        ("change", r#"{"n":1}"#),
        ("change", r#"{"n":2,"dry":true}"#),
        ("change", r#"{"fail":1,"dry":true}"#),
        ("look", r#"{"bad":1}"#),
        ("look", "{not json"),
        ("nothing", "{}"),
    ]);
    let step = prop_oneof![
        2 => prop::sample::select(vec!["half", "status", r#"{"status": "ok"}"#, r#"It is {"status": 1}"#])
            .prop_map(Answer::Says),
        6 => prop::collection::vec(calls, 1..4).prop_map(Answer::Calls),
        1 => Just(Answer::FallsBack("spare says")),
        1 => Just(Answer::BreaksOff("spare says so too")),
        1 => Just(Answer::Malformed),
        1 => Just(Answer::Refuses),
    ];
    let people = prop::sample::select(vec![Person::SaysYes, Person::SaysNo, Person::IsAway]);
    let modes = prop::sample::select(vec![Mode::Act, Mode::Plan]);
    let outcomes = (any::<bool>(), 0usize..3, 0u32..3, 0u32..4).prop_map(
        |(has_schema, checks, retries, failing_rounds)| Green {
            has_schema,
            checks,
            retries,
            failing_rounds,
        },
    );
    (
        prop::collection::vec(step, 0..6),
        modes,
        people,
        any::<bool>(),
        any::<bool>(),
        2u64..8,
        1u64..4,
        (outcomes, any::<bool>(), texts()),
    )
        .prop_map(
            |(
                steps,
                mode,
                approver,
                approve,
                confirm,
                max_iterations,
                error_threshold,
                (outcome, compacts, texts),
            )| Case {
                steps,
                mode,
                approver,
                approve,
                confirm,
                max_iterations,
                error_threshold,
                outcome,
                compacts,
                texts,
            },
        )
}

/// Returns an event as earlier versions wrote it: without the facts that only its text told.
fn older(event: &Event) -> Event {
    let mut event = event.clone();
    match &mut event {
        Event::UserInput { reason, .. } | Event::Error { reason, .. } => *reason = None,
        Event::Warning { model, call_id, .. } => (*model, *call_id) = (None, None),
        _ => {}
    }
    event
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Each session is cut off after every event, resumed, cut off again at `twice`, and resumed.
    // conforms 000-5.2a
    #[test]
    fn a_resumed_session_ends_like_one_that_was_never_cut_off(case in case(), twice in 0usize..8) {
        let whole = runtime().block_on(case.play(&[]));
        let expected = whole.result.unwrap();
        for cut in 1..=whole.events.len() {
            let before = &whole.events[..cut];
            let first = runtime().block_on(case.play(before));
            let result = first.result.map_err(|error| TestCaseError::fail(format!("{cut}: {error}")))?;
            let mut events = before.to_vec();
            events.extend(first.events);
            let open = unknown(before);
            let reached = |seen: Vec<Turn>| (!seen.is_empty()).then_some(seen);
            if open.is_empty() {
                prop_assert_eq!(&result.end, &expected.end, "cut after {}", cut);
                prop_assert_eq!(used(&result), used(&expected), "cut after {}", cut);
                prop_assert_eq!(&result.changes, &expected.changes, "cut after {}", cut);
                if let Some(seen) = reached(first.seen) {
                    prop_assert_eq!(&seen, &whole.seen, "cut after {}", cut);
                }
            }
            let resumed = &events[cut..];
            let starts = resumed.iter().filter_map(|event| match event {
                Event::ToolCallStart(start) => Some(start.call_id.to_string()),
                _ => None,
            });
            let starts: Vec<String> = starts.collect();
            prop_assert!(open.iter().all(|id| !starts.contains(id)), "{open:?} ran again");
            // Cut off a second time, among the events of the first resumption.
            let again = (cut + twice).min(events.len());
            let Played { result: second, seen, .. } = runtime().block_on(case.play(&events[..again]));
            let second = second.map_err(|error| TestCaseError::fail(format!("{again}: {error}")))?;
            if unknown(&events[..again]).is_empty() {
                prop_assert_eq!(&second.end, &result.end, "cut after {} and {}", cut, again);
                prop_assert_eq!(used(&second), used(&result));
                // Neither cut leaves a trace in what the model sees.
                if let Some(seen) = reached(seen).filter(|_| open.is_empty()) {
                    prop_assert_eq!(&seen, &whole.seen, "cut after {} and {}", cut, again);
                }
            }
        }
    }

    /// What is known of a model may change while a session is cut off: the catalogue, a price of the
    /// night, an answer of the provider.
    #[test]
    fn a_session_resumes_although_its_model_has_another_price_and_window(
        case in case(),
        window in prop::sample::select(vec![1, 40, 1000, 1_000_000]),
        is_narrower in any::<bool>(),
    ) {
        let (cheap, dear) = (Prices::flat(1.0, 2.0), Prices::flat(1e9, 1e9));
        let first = if is_narrower { 1_000_000 } else { 1000 };
        let whole = runtime().block_on(case.play_knowing(&[], &cheap, first));
        for cut in 1..=whole.events.len() {
            let resumed = runtime().block_on(case.play_knowing(&whole.events[..cut], &dear, window));
            // A window that was full then ended the session.
            let was_full = whole.events[..cut].iter().any(|event| {
                matches!(event, Event::TurnLimit { limit, .. } if limit == "context_window")
            });
            let is_ok = resumed.result.is_ok();
            prop_assert!(is_ok || was_full, "cut after {}: {:?}", cut, resumed.result.err());
        }
    }

    #[test]
    fn a_session_that_an_earlier_version_recorded_resumes_with_the_same_history(case in case()) {
        // Earlier versions took no texts.
        let case = Case { texts: Vec::new(), ..case };
        let whole = runtime().block_on(case.play(&[]));
        let events: Vec<Event> = whole.events.iter().map(older).collect();
        for cut in 1..=events.len() {
            let Played { result, seen, .. } = runtime().block_on(case.play(&events[..cut]));
            prop_assert!(result.is_ok(), "cut after {}: {:?}", cut, result.err());
            if !seen.is_empty() && unknown(&events[..cut]).is_empty() {
                prop_assert_eq!(&seen, &whole.seen, "cut after {}", cut);
            }
        }
    }
}
