//! Tests what dutyd knows of models, and what it learns, against loopback servers that answer as
//! providers do.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use crate::support::{Place, Served, serve_on_loopback};

const FORMATS: [&str; 5] = ["anthropic", "openai", "openai_chat", "gemini", "ollama"];

const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: 'true'}
  - {name: fails, description: Fails, category: read, cmd: 'false'}
  - {name: change, description: Changes, category: write, cmd: 'true'}
";

/// A server of a provider: an answer for each request, by its number and its body.
struct Provider {
    _served: Served,
    address: String,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl Provider {
    fn new(answer: impl Fn(usize, &Value) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        let router = Router::new().fallback(move |body: String| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let request: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
                let number = seen.lock().unwrap().len();
                let (code, body) = answer(number, &request);
                seen.lock().unwrap().push(request);
                reply(code, &body)
            }
        });
        let served = serve_on_loopback(router);
        Self { address: served.address.to_string(), _served: served, requests }
    }

    fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns a place with one model of this server and one job.
    fn place(&self, format: &str, model: &str, job: &str) -> Place {
        let config = format!(
            "models: {{m: {{provider: {format}, base_url: 'http://{}/v1', max_retries: 0, {model}}}}}\n",
            self.address
        );
        let jobs = format!("version: 1\njobs: [{{name: j, prompt: Look., {job}}}]\n");
        Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", &jobs)])
    }
}

fn reply(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).unwrap();
    match body {
        Value::String(html) => (code, html.clone()).into_response(),
        body => (code, body.to_string()).into_response(),
    }
}

/// Returns an answer with a text.
fn says(format: &str, text: &str) -> Value {
    match format {
        "anthropic" => {
            json!({"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 5}})
        }
        "openai" => {
            json!({"id": "r", "status": "completed", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}], "usage": {"input_tokens": 9, "output_tokens": 5}})
        }
        "openai_chat" => {
            json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})
        }
        "gemini" => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}]})
        }
        _ => {
            json!({"model": "m", "message": {"role": "assistant", "content": text}, "done": true, "done_reason": "stop"})
        }
    }
}

/// Returns an answer with one call.
fn calls(format: &str, tool: &str) -> Value {
    match format {
        "anthropic" => {
            json!({"type": "message", "role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": tool, "input": {}}], "stop_reason": "tool_use", "usage": {"input_tokens": 9, "output_tokens": 5}})
        }
        "openai" => {
            json!({"id": "r", "status": "completed", "output": [{"type": "function_call", "call_id": "c1", "name": tool, "arguments": "{}", "status": "completed"}]})
        }
        "openai_chat" => {
            json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": tool, "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]})
        }
        "gemini" => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": tool, "args": {}}}]}, "finishReason": "STOP"}]})
        }
        _ => {
            json!({"model": "m", "message": {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": tool, "arguments": {}}}]}, "done": true, "done_reason": "stop"})
        }
    }
}

/// Returns the temperature of a request.
fn temperature(request: &Value) -> Option<&Value> {
    let places = ["/temperature", "/generationConfig/temperature", "/options/temperature"];
    places.iter().find_map(|place| request.pointer(place))
}

fn error(message: &str) -> Value {
    json!({"error": {"type": "invalid_request_error", "message": message}})
}

fn warnings(place: &Place, code: &str) -> usize {
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap().clone();
    events.iter().filter(|event| event["type"] == "warning" && event["code"] == code).count()
}

#[test]
fn a_refused_parameter_costs_one_request_and_is_remembered() {
    for format in FORMATS {
        let provider = Provider::new(move |_, request| match temperature(request) {
            Some(_) => (400, error("`temperature` is deprecated for this model")),
            None => (200, says(format, "All is well.")),
        });
        let place = provider.place(
            format,
            "model: x, api_key: k123456, temperature: 0.2",
            "double_confirmation: false, allow_no_calls: true",
        );
        let done = place.dutyd(&["run", "j"]);
        assert_eq!(done.code, 0, "{format}: {done:?}");
        assert_eq!(warnings(&place, "parameter_dropped"), 1, "{format}");
        assert_eq!(provider.requests().len(), 2, "{format}");
        assert_eq!(place.dutyd(&["run", "j"]).code, 0, "{format}");
        assert_eq!(warnings(&place, "parameter_dropped"), 0, "{format}");
        let requests = provider.requests();
        assert_eq!(requests.len(), 3, "{format}: the next run does not send it");
        // The two requests differ in the parameter alone.
        let (mut first, second) = (requests[0].clone(), &requests[1]);
        for place in ["", "/generationConfig", "/options"] {
            if let Some(Value::Object(map)) = first.pointer_mut(place) {
                map.remove("temperature");
            }
        }
        if first["generationConfig"] == json!({}) {
            first.as_object_mut().unwrap().remove("generationConfig");
        }
        assert_eq!(&first, second, "{format}");
        // A changed configuration sends it again.
        let config = std::fs::read_to_string(place.config().join("config.yaml")).unwrap();
        place.write("config.yaml", &config.replace("0.2", "0.3"));
        assert_eq!(place.dutyd(&["run", "j"]).code, 0, "{format}");
        assert_eq!(provider.requests().len(), 5, "{format}");
    }
}

// conforms 003-2.7a
#[test]
fn each_refused_parameter_is_dropped_once_and_then_the_error_stays() {
    let job = "double_confirmation: false, allow_no_calls: true";
    let refuse = |words: &'static [(&'static str, &'static str)]| {
        move |_: usize, request: &Value| {
            let found = words.iter().find(|(place, _)| request.pointer(place).is_some());
            match found {
                Some((_, word)) => (400, error(&format!("Unsupported parameter: '{word}'"))),
                None => (200, says("openai_chat", "All is well.")),
            }
        }
    };
    let words = &[
        ("/temperature", "temperature"),
        ("/reasoning_effort", "reasoning_effort"),
        ("/stream_options", "stream_options"),
        ("/max_tokens", "max_tokens"),
    ];
    let provider = Provider::new(refuse(words));
    let model = "model: x, temperature: 1, reasoning_effort: low, max_output_tokens: 500";
    let place = provider.place("openai_chat", model, job);
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(warnings(&place, "parameter_dropped"), 4);
    let requests = provider.requests();
    let last = requests.last().unwrap();
    assert_eq!((requests.len(), &last["max_completion_tokens"]), (5, &json!(500)));
    assert!(last["messages"].is_array() && last["tools"].is_array());

    for (message, requests) in [
        (json!({"error": {"message": "`temperature` is deprecated"}}), 2),
        (json!({"error": {"message": "no such thing", "param": "messages"}}), 1),
        (json!({"error": {"message": "tools.0.function.parameters: temperature is no type"}}), 1),
        (json!("<html><title>400 Bad Request</title></html>"), 1),
    ] {
        let provider = Provider::new(move |_, _| (400, message.clone()));
        let place = provider.place("openai_chat", "model: x, temperature: 1", job);
        let done = place.dutyd(&["-o", "json", "run", "j"]);
        let run: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(run["stop_reason"], "provider_rejected", "{done:?}");
        assert_eq!(provider.requests().len(), requests, "{done:?}");
    }
}

/// Returns an answer that the limit of tokens cut off, with reasoning and `text`.
fn cut(format: &str, text: &str) -> Value {
    match format {
        "anthropic" => {
            json!({"type": "message", "role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}, {"type": "text", "text": text}], "stop_reason": "max_tokens", "usage": {"input_tokens": 9, "output_tokens": 5}})
        }
        "openai" => {
            json!({"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]})
        }
        "openai_chat" => {
            json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": text, "reasoning_content": "hm"}, "finish_reason": "length"}]})
        }
        "gemini" => {
            json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "hm", "thought": true}, {"text": text}]}, "finishReason": "MAX_TOKENS"}]})
        }
        _ => {
            json!({"model": "m", "message": {"role": "assistant", "content": text, "thinking": "hm"}, "done": true, "done_reason": "length"})
        }
    }
}

/// Returns the limit of output tokens of a request.
fn output_limit(request: &Value) -> Option<u64> {
    let places = [
        "/max_tokens",
        "/max_output_tokens",
        "/max_completion_tokens",
        "/generationConfig/maxOutputTokens",
        "/options/num_predict",
    ];
    places.iter().find_map(|place| request.pointer(place)?.as_u64())
}

#[test]
fn an_answer_that_was_cut_off_is_asked_for_once_more_with_a_larger_limit() {
    for format in FORMATS {
        for text in ["", "Half of"] {
            let provider = Provider::new(move |_, _| (200, cut(format, text)));
            let place = provider.place(
                format,
                "model: x, api_key: k123456, max_output_tokens: 1000",
                "double_confirmation: false, allow_no_calls: true",
            );
            let done = place.dutyd(&["-o", "json", "run", "j"]);
            let run: Value = serde_json::from_str(&done.stdout).unwrap();
            assert_eq!((done.code, &run["stop_reason"]), (1, &json!("no_answer")), "{format}");
            let limits: Vec<_> = provider.requests().iter().map(output_limit).collect();
            assert_eq!(limits, [Some(1000), Some(4000)], "{format} {text:?}");
        }
        // Without a limit of its own, the second request sets one.
        let answers = move |number, _: &Value| match number {
            0 => (200, cut(format, "")),
            _ => (200, says(format, "All is well.")),
        };
        let provider = Provider::new(answers);
        let job = "double_confirmation: false, allow_no_calls: true";
        let done = provider.place(format, "model: x, api_key: k123456", job).dutyd(&["run", "j"]);
        assert_eq!(done.code, 0, "{format}: {done:?}");
        let limits: Vec<_> = provider.requests().iter().map(output_limit).collect();
        assert!(limits[1] > limits[0], "{format}: {limits:?}");
    }
}

// conforms 003-2.7a
#[test]
fn the_limit_by_default_leaves_room_for_reasoning() {
    let provider = Provider::new(|_, _| (200, says("anthropic", "All is well.")));
    let limit = |model: &str| {
        let place = provider.place(
            "anthropic",
            &format!("api_key: k123456, {model}"),
            "double_confirmation: false, allow_no_calls: true",
        );
        assert_eq!(place.dutyd(&["run", "j"]).code, 0);
        provider.requests().pop().unwrap()
    };
    let high = limit("model: claude-opus-4-8, reasoning_effort: high");
    assert_eq!(high["max_tokens"], 64_000);
    assert_eq!(high["thinking"], json!({"type": "adaptive", "display": "summarized"}));
    assert_eq!(high["output_config"], json!({"effort": "high"}));
    assert_eq!(limit("model: claude-opus-4-8")["max_tokens"], 32_000);
    assert_eq!(limit("model: claude-3-5-haiku-20241022")["max_tokens"], 8192);
    let off = limit("model: claude-opus-5, reasoning_effort: none");
    assert_eq!(off["thinking"], json!({"type": "disabled"}));
}

/// What a run of each kind makes of calls that did not work, and of none.
// conforms 004-3a
#[test]
fn a_run_in_which_no_call_worked_is_not_green() {
    let script =
        |steps: &str| format!("steps: [{steps}{{say: All is well.}}, {{say: All is well.}}]\n");
    let look = "{call: {tool: look}}, ";
    for (steps, expected) in [
        ("", "nothing_done"),
        ("{call: {tool: unheard_of}}, ", "nothing_done"),
        ("{call: {tool: change}}, ", "nothing_done"),
        ("{call: {tool: fails}}, ", "nothing_done"),
        ("{call: {tool: todo_write, args: {todos: []}}}, ", "nothing_done"),
        (look, "completed"),
    ] {
        let run = |job: &str, arguments: &[&str]| {
            let jobs = format!("version: 1\njobs: [{{name: j, prompt: Look., {job}}}]\n");
            let place = Place::new(&[
                ("config.yaml", "models: {m: {provider: scripted, script: s.yaml}}\n"),
                ("s.yaml", &script(steps)),
                ("tools.yaml", TOOLS),
            ]);
            place.write_as_is("jobs.yaml", &jobs);
            let done = place.dutyd(&[&["-o", "json", "run", "j"], arguments].concat());
            let run: Value =
                serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{done:?}"));
            if job == "tools: {read: []}" && steps.is_empty() {
                assert_eq!(run["iterations"], 1, "a run without tools is not asked to confirm");
            }
            run["stop_reason"].as_str().unwrap().to_owned()
        };
        assert_eq!(run("double_confirmation: true", &[]), expected, "{steps}");
        assert_eq!(run("double_confirmation: false", &[]), expected, "{steps}");
        assert_eq!(run("allow_no_calls: true", &[]), "completed", "{steps}");
        assert_eq!(run("double_confirmation: true", &["--plan"]), "completed", "{steps}");
        assert_eq!(run("double_confirmation: true", &["--prompt", "Say."]), "completed", "{steps}");
        let precheck = "precheck: {tool: fails, run_when: exit_nonzero}";
        assert_eq!(run(precheck, &[]), "completed", "a precheck looked, {steps}");
        // A job without tools has nothing to look with.
        assert_eq!(run("tools: {read: []}", &[]), "completed", "{steps}");
    }
}

#[test]
fn commentary_is_not_the_answer() {
    let message = |phase: &str, text: &str| json!({"type": "message", "role": "assistant", "phase": phase, "content": [{"type": "output_text", "text": text}]});
    let answer = |items: Vec<Value>| json!({"id": "r", "status": "completed", "output": items});
    let both = answer(vec![
        message("commentary", "I look."),
        message("final_answer", "{\"status\": \"ok\"}"),
    ]);
    let alone = answer(vec![message("commentary", "I look.")]);
    let job = "double_confirmation: false, allow_no_calls: true";
    let provider = Provider::new(move |_, _| (200, both.clone()));
    let place = provider.place("openai", "model: gpt-6-sol, api_key: k123456", job);
    let done = place.dutyd(&["-o", "json", "run", "j"]);
    let run: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!((&run["result"], &run["verdict"]), (&json!({"status": "ok"}), &json!("ok")));
    let provider = Provider::new(move |_, _| (200, alone.clone()));
    let place = provider.place("openai", "model: gpt-6-sol, api_key: k123456", job);
    let done = place.dutyd(&["-o", "json", "run", "j"]);
    let run: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(run["stop_reason"], "no_answer", "{run}");
    let requests = provider.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1]["input"][1]["phase"], "commentary", "it goes back as it came");
}

#[test]
fn reasoning_goes_back_in_the_field_in_which_it_came() {
    for field in ["reasoning_content", "reasoning"] {
        let provider = Provider::new(move |number, _| {
            let mut answer = match number {
                0 => calls("openai_chat", "look"),
                1 => calls("openai_chat", "look"),
                _ => says("openai_chat", "All is well."),
            };
            if number != 1 {
                answer["choices"][0]["message"][field] = "I think.".into();
            }
            (200, answer)
        });
        let place = provider.place("openai_chat", "model: x", "double_confirmation: true");
        assert_eq!(place.dutyd(&["run", "j"]).code, 0);
        let last = provider.requests().pop().unwrap();
        let turns: Vec<&Value> = last["messages"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|message| message["role"] == "assistant")
            .collect();
        let reasoning: Vec<&Value> = turns.iter().map(|turn| &turn[field]).collect();
        assert_eq!(reasoning, [&json!("I think."), &Value::Null, &json!("I think.")], "{field}");
        assert!(!turns[1].as_object().unwrap().contains_key(field), "left out, not null");
        let other = if field == "reasoning" { "reasoning_content" } else { "reasoning" };
        assert!(turns.iter().all(|turn| turn.get(other).is_none()), "{field}");
    }
}

#[test]
fn an_unknown_stop_reason_is_a_warning() {
    let provider = Provider::new(|_, _| {
        let mut answer = says("openai_chat", "All is well.");
        answer["choices"][0]["finish_reason"] = "tired".into();
        (200, answer)
    });
    let place = provider.place(
        "openai_chat",
        "model: x",
        "double_confirmation: false, allow_no_calls: true",
    );
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!(warnings(&place, "stop_reason"), 1);
}

#[test]
fn models_shows_each_value_with_its_source() {
    let provider = Provider::new(|_, request| match (request.is_null(), temperature(request)) {
        (true, _) => (200, json!({"data": [{"id": "kimi-k3", "max_model_len": 5000}]})),
        (false, Some(_)) => (400, error("temperature: only 1 is allowed")),
        (false, None) => (200, says("openai_chat", "All is well.")),
    });
    let job = "double_confirmation: false, allow_no_calls: true, limits: {max_cost_usd: 1}";
    let place = provider.place("openai_chat", "model: kimi-k3, temperature: 0.2", job);
    let validated = place.dutyd(&["validate"]);
    assert!(validated.stdout.contains("takes only the temperature 1"), "{validated:?}");
    assert!(
        validated.stdout.contains("is an estimate, the highest known for it or its family"),
        "{validated:?}"
    );
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.stdout.contains("estimated"), "{done:?}");
    let shown = place.json(&["show", "last"]);
    assert_eq!(shown["events"].as_array().unwrap().last().unwrap()["cost_estimated"], true);
    let models = place.json(&["models"]);
    let values = &models[0]["values"];
    assert_eq!(models[0]["known"], true);
    assert_eq!(values["context_window"]["source"], "catalogue");
    assert_eq!(
        (&values["refused"]["value"], &values["refused"]["source"]),
        (&json!(["temperature"]), &json!("learned"))
    );
    assert_eq!(values["price"]["value"]["estimated"], true);
    let asked = place.json(&["models", "--online"]);
    let window = &asked[0]["values"]["context_window"];
    assert_eq!((&window["value"], &window["source"]), (&json!(5000), &json!("provider")));
    // It is kept.
    assert_eq!(place.json(&["models"])[0]["values"]["context_window"]["value"], 5000);
    let shown = place.dutyd(&["models", "m"]);
    assert!(shown.stdout.contains("refused"), "{shown:?}");
    assert_eq!(place.dutyd(&["models", "none"]).code, 3);
}

#[test]
fn validate_shows_each_mistake_with_its_line() {
    let config = "models:
  a: {provider: anthropic, model: claude-opsu-9, api_key: '${K}'}
  b: {provider: anthropic, model: claude-opus-4-1, api_key: '${K}', max_output_tokens: 500000}
  c: {provider: anthropic, model: claude-opus-5, api_key: '${K}', temperature: 0.2}
  d: {provider: openai, model: gpt-5.4, api_key: '${K}', reasoning_effort: max}
  e: {provider: openai_chat, model: gpt-5.4, api_key: '${K}'}
  f: {provider: ollama, model: unheard-of}
default_model: a
";
    let jobs =
        "version: 1\njobs: [{name: j, prompt: Look., model: f, limits: {max_cost_usd: 1}}]\n";
    let place = Place::new(&[("config.yaml", config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)])
        .with_env("K", "k123456");
    let done = place.dutyd(&["validate"]);
    assert_eq!(done.code, 2, "{done:?}");
    let report = place.dutyd(&["-o", "json", "validate"]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let all = |key: &str| -> Vec<(u64, String)> {
        let list = report[key].as_array().unwrap().iter();
        list.map(|item| {
            (item["line"].as_u64().unwrap(), item["message"].as_str().unwrap().to_owned())
        })
        .collect()
    };
    let has = |key: &str, line: u64, part: &str| {
        let found = all(key);
        assert!(
            found.iter().any(|(at, message)| *at == line && message.contains(part)),
            "{part}: {found:#?}"
        );
    };
    has("warnings", 2, "`claude-opsu-9` is not in the catalogue");
    has("warnings", 3, "has not served `claude-opus-4-1` since 2026-08-05");
    has("warnings", 3, "writes at most 32000 tokens");
    has("warnings", 4, "refuses `temperature`");
    has("errors", 5, "takes only none, low, medium, high, xhigh");
    has("errors", 6, "use `provider: openai`");
    has("errors", 2, "the price of the model `f` is unknown");
    let told = place.dutyd(&["models"]).stderr;
    for place in [
        "config.yaml:2:",
        "config.yaml:3:",
        "config.yaml:4:",
        "config.yaml:5:",
        "config.yaml:6:",
        "jobs.yaml:2:",
    ] {
        assert!(told.contains(place), "{place}: {told}");
    }
    let whole =
        config.lines().filter(|line| !line.starts_with("  d:") && !line.starts_with("  e:"));
    place.write("config.yaml", &whole.map(|line| format!("{line}\n")).collect::<String>());
    place.write("jobs.yaml", "version: 1\njobs: []\n");
    let models = place.json(&["models"]);
    let warning = models[2]["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("config.yaml:4: `claude-opus-5` refuses"), "{warning}");
}

/// Returns the answer of a server that enforces `rule`: what is wrong with a request, else two calls
/// and then a text.
fn enforcing(
    format: &'static str,
    first: Value,
    rule: impl Fn(&Value) -> Option<&'static str> + Send + Sync + 'static,
) -> Provider {
    let accepted = std::sync::atomic::AtomicUsize::new(0);
    Provider::new(move |_, request| {
        if let Some(message) = rule(request) {
            return (400, error(message));
        }
        match accepted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => (200, first.clone()),
            1 => (200, calls(format, "look")),
            _ => (200, says(format, "All is well.")),
        }
    })
}

/// Makes a run of two calls against a server that enforces a rule. Returns its requests.
fn run_of_two_calls(
    (format, model): (&'static str, &str),
    first: Value,
    rule: impl Fn(&Value) -> Option<&'static str> + Send + Sync + 'static,
) -> Vec<Value> {
    let provider = enforcing(format, first, rule);
    let place =
        provider.place(format, &format!("api_key: k123456, {model}"), "double_confirmation: false");
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{model}: {done:?}");
    assert_eq!(warnings(&place, "parameter_dropped"), 0, "{model}");
    provider.requests()
}

// conforms 003-2.7a, 003-3.4b, 003-9.7a, 003-9.7c
#[test]
fn each_family_is_asked_by_its_rules() {
    let last_is_user = |request: &Value| {
        let last = request["messages"].as_array().and_then(|all| all.last().cloned());
        last.is_some_and(|last| last["role"] == "user")
    };
    for model in ["claude-opus-4-8", "claude-sonnet-5", "claude-haiku-5-5", "claude-opus-9"] {
        let model = format!("model: {model}, reasoning_effort: high");
        run_of_two_calls(("anthropic", &model), calls("anthropic", "look"), move |request| {
            let thinking = &request["thinking"];
            match () {
                () if request.get("temperature").is_some() => Some("`temperature` is deprecated"),
                () if thinking["type"] != "adaptive" || thinking.get("budget_tokens").is_some() => {
                    Some("\"thinking.type.enabled\" is not supported for this model")
                }
                () if thinking["display"] != "summarized" => Some("the test wants a summary"),
                () if !last_is_user(request) => {
                    Some("The conversation must end with a user message.")
                }
                () => None,
            }
        });
    }
    let old = "model: claude-sonnet-4-5, reasoning_effort: high";
    run_of_two_calls(("anthropic", old), calls("anthropic", "look"), |request| {
        let budget = request["thinking"]["budget_tokens"].as_u64();
        let most = request["max_tokens"].as_u64();
        (budget.is_some() && budget >= most)
            .then_some("`max_tokens` must be greater than `thinking.budget_tokens`")
    });
    for model in ["gpt-5.5", "gpt-5.6-sol", "gpt-6.2-sol", "gpt-7-nova"] {
        let model = format!("model: {model}, reasoning_effort: low");
        run_of_two_calls(("openai", &model), calls("openai", "look"), |request| {
            if request["reasoning"] == json!({"effort": "low", "summary": "auto"}) {
                None
            } else {
                Some("the test wants an effort and a summary")
            }
        });
    }
    for effort in ["low", "medium", "high", "xhigh"] {
        let model = format!("model: gpt-5.5, reasoning_effort: {effort}");
        run_of_two_calls(("openai", &model), calls("openai", "look"), move |request| {
            (request["reasoning"]["effort"] != effort).then_some("the test wants this effort")
        });
    }
    run_of_two_calls(("openai", "model: gpt-5.5"), calls("openai", "look"), |request| {
        (!request["reasoning"]["effort"].is_null()).then_some("the test wants no effort")
    });
    run_of_two_calls(("openai", "model: gpt-4o"), calls("openai", "look"), |request| {
        request.get("reasoning").map(|_| "Unsupported parameter: 'reasoning'")
    });
    run_of_two_calls(
        ("gemini", "model: gemini-4-argon, reasoning_effort: low"),
        calls("gemini", "look"),
        |request| {
            let thinking = &request["generationConfig"]["thinkingConfig"];
            (thinking.get("thinkingBudget").is_some() || thinking["thinkingLevel"] != "low")
                .then_some("thinking_budget is not supported for this model")
        },
    );
    run_of_two_calls(
        ("gemini", "model: gemini-2.5-flash, reasoning_effort: none"),
        calls("gemini", "look"),
        |request| {
            let thinking = &request["generationConfig"]["thinkingConfig"];
            (thinking["thinkingBudget"] != 0)
                .then_some("Thinking level is not supported for this model.")
        },
    );
    for (model, think) in [("gpt-oss:20b", json!("low")), ("qwen3:8b", json!(true))] {
        let model = format!("model: \"{model}\", reasoning_effort: low");
        run_of_two_calls(("ollama", &model), calls("ollama", "look"), move |request| {
            (request["think"] != think).then_some("the test wants another value")
        });
    }
}

#[test]
fn a_history_goes_back_as_it_came_where_its_model_checks_it() {
    let blocks = json!([
        {"type": "thinking", "thinking": "", "signature": "sig"},
        {"type": "text", "text": "\n\n"},
        {"type": "tool_use", "id": "c9", "name": "look", "input": {}, "caller": {"type": "direct"}}
    ]);
    let first = json!({"type": "message", "role": "assistant", "content": blocks, "stop_reason": "tool_use"});
    run_of_two_calls(("anthropic", "model: claude-opus-5-5"), first, move |request| {
        let turn = request["messages"].as_array()?.iter().find(|m| m["role"] == "assistant")?;
        (turn["content"] != blocks)
            .then_some("messages.1.content.0: Invalid `signature` in `thinking` block")
    });
    // Deepseek wants the reasoning on each earlier turn of a request with tools.
    let mut first = calls("openai_chat", "look");
    first["choices"][0]["message"]["reasoning_content"] = "I think.".into();
    run_of_two_calls(("openai_chat", "model: deepseek-v4-pro"), first, |request| {
        let turn = request["messages"].as_array()?.iter().find(|m| m["role"] == "assistant")?;
        (turn["reasoning_content"] != "I think.").then_some(
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
        )
    });
    // MiniMax writes its reasoning into the text.
    let raw = "<think>\nI look – first.\n\n</think>\n\n";
    let mut first = calls("openai_chat", "look");
    first["choices"][0]["message"]["content"] = raw.into();
    run_of_two_calls(("openai_chat", "model: MiniMax-M3"), first, move |request| {
        let turn = request["messages"].as_array()?.iter().find(|m| m["role"] == "assistant")?;
        (turn["content"] != raw).then_some("the test wants the text as it came")
    });
}

#[test]
fn a_price_that_the_provider_states_counts_from_the_first_request() {
    let provider = Provider::new(|_, request| match request {
        Value::Null => {
            let price = json!({"prompt": "0.001", "completion": "0.001"});
            (200, json!({"data": [{"id": "claude-opus-5", "pricing": price}]}))
        }
        _ => (200, says("openai_chat", "All is well.")),
    });
    let job = "double_confirmation: false, allow_no_calls: true, limits: {max_cost_usd: 0.05}";
    let place = provider.place("openai_chat", "model: claude-opus-5", job);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!(place.dutyd(&["models", "--online"]).code, 0);
    let before = provider.requests().len();
    place.dutyd(&["run", "j"]);
    assert_eq!(place.json(&["runs"])[0]["stop_reason"], "budget_exceeded");
    assert_eq!(provider.requests().len(), before, "the request was not made");
}

/// What a provider said stays until it says more, and a price next to nothing is not believed.
#[test]
fn a_worse_answer_of_a_provider_replaces_nothing() {
    let provider = Provider::new(|number, _| {
        let row = |fields: Value| (200, json!({"data": [fields]}));
        match number {
            0 => row(json!({"id": "claude-opus-5", "max_model_len": 8192})),
            1 => row(json!({"id": "another"})),
            2 => (200, json!({})),
            3 => row(json!({"id": "claude-opus-5", "max_model_len": 4096,
                "pricing": {"prompt": "0", "completion": "0.0000000000001"}})),
            _ => row(
                json!({"id": "claude-opus-5", "pricing": {"prompt": "0.000001", "completion": "0.000002"}}),
            ),
        }
    });
    let place = provider.place("openai_chat", "model: claude-opus-5", "");
    drop(place.serve());
    let ask = || {
        let done = place.dutyd(&["-o", "json", "models", "--online"]);
        let models: Value = serde_json::from_str(&done.stdout).unwrap();
        let of = |key: &str| models[0]["values"][key].clone();
        (done.code, of("context_window")["value"].clone(), of("price")["source"].clone())
    };
    assert_eq!(ask(), (0, json!(8192), json!("family")));
    assert_eq!(ask(), (1, json!(8192), json!("family")), "a list without the model");
    assert_eq!(ask(), (1, json!(8192), json!("family")), "an answer without facts");
    assert_eq!(ask(), (0, json!(4096), json!("family")), "a price next to nothing");
    assert_eq!(ask().2, json!("provider"));
}

/// Models of unknown limit get one that keeps the budget.
#[test]
fn a_daily_budget_limits_each_reply() {
    let provider = Provider::new(|_, _| (200, says("openai_chat", "All is well.")));
    let job = "double_confirmation: false, allow_no_calls: true, limits: {max_cost_usd: 0.5}, budget: {max_cost_usd_per_day: 0.5}";
    let place = provider.place("openai_chat", "model: x, price: {input: 1, output: 10}", job);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!(provider.requests()[0]["max_tokens"], 8192);
}

/// The turn of a fallback, or of a model that did not think, has no reasoning that could go back.
#[test]
fn a_turn_without_reasoning_gets_a_blank_where_the_server_wants_one() {
    let wants = |request: &Value| {
        let messages = request["messages"].as_array().unwrap();
        let mut turns = messages.iter().filter(|message| message["role"] == "assistant");
        turns.any(|turn| turn["reasoning_content"].as_str().unwrap_or_default().is_empty()).then_some(
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        )
    };
    let provider = enforcing("openai_chat", calls("openai_chat", "look"), wants);
    let place = provider.place("openai_chat", "model: x", "double_confirmation: false");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!((warnings(&place, "parameter_dropped"), provider.requests().len()), (1, 4));
    let shown = place.dutyd(&["models", "-o", "json"]);
    assert!(shown.stdout.contains("history_without_reasoning"), "{shown:?}");
}

#[test]
fn a_history_that_is_refused_says_nothing_about_the_next_run() {
    let refused = std::sync::atomic::AtomicBool::new(false);
    let provider = Provider::new(move |_, request| {
        let messages = request["messages"].as_array().unwrap();
        let is_first = messages.iter().all(|message| message["role"] != "assistant");
        let has_thoughts = request["messages"].to_string().contains("I think.");
        if has_thoughts && !refused.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let message = "messages.1.reasoning_content: Extra inputs are not permitted";
            return (400, error(message));
        }
        let mut answer = if is_first {
            calls("openai_chat", "look")
        } else {
            says("openai_chat", "All is well.")
        };
        answer["choices"][0]["message"]["reasoning_content"] = "I think.".into();
        (200, answer)
    });
    let place = provider.place("openai_chat", "model: x", "double_confirmation: false");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!((warnings(&place, "parameter_dropped"), provider.requests().len()), (1, 3));
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let last = provider.requests().pop().unwrap();
    assert!(last.to_string().contains("I think."), "the next run sends it: {last}");
}

#[test]
fn a_model_of_ollama_that_cannot_think_is_asked_without_it() {
    let provider = Provider::new(|_, request| match request.get("think") {
        Some(_) => (400, json!({"error": "\"x\" does not support thinking"})),
        None => (200, says("ollama", "All is well.")),
    });
    let job = "double_confirmation: false, allow_no_calls: true";
    let place = provider.place("ollama", "model: x, reasoning_effort: low", job);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!((warnings(&place, "parameter_dropped"), provider.requests().len()), (1, 2));
}

/// Kills the daemon while it waits for the answer to the request with the number `cut`, and starts it
/// again; returns all requests. `before` answers the earlier ones.
fn requests_around_a_kill(cut: usize, before: fn(usize) -> (u16, Value)) -> Vec<Value> {
    let (asked, waits) = std::sync::mpsc::channel();
    let release: Arc<(Mutex<bool>, std::sync::Condvar)> = Arc::default();
    let released = release.clone();
    let asked = Mutex::new(asked);
    let provider = Provider::new(move |number, _| {
        if number < cut {
            return before(number);
        }
        if number > cut {
            return (200, says("openai_chat", "All is well."));
        }
        asked.lock().unwrap().send(()).unwrap();
        let is_free = released.0.lock().unwrap();
        drop(released.1.wait_while(is_free, |is_free| !*is_free).unwrap());
        (500, json!({}))
    });
    let place =
        provider.place("openai_chat", "model: x, temperature: 0.2", "double_confirmation: false");
    let daemon = place.serve();
    assert_eq!(place.dutyd(&["trigger", "j"]).code, 0);
    waits.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    daemon.signal(nix::sys::signal::Signal::SIGKILL);
    daemon.wait();
    *release.0.lock().unwrap() = true;
    release.1.notify_all();
    let _daemon = place.serve();
    crate::support::wait_until(
        || place.json(&["runs"])[0]["outcome"] == "succeeded",
        || place.log(),
    );
    provider.requests()
}

fn thoughtful_call() -> Value {
    let mut answer = calls("openai_chat", "look");
    answer["choices"][0]["message"]["reasoning_content"] = "I think.".into();
    answer
}

#[test]
fn a_request_after_a_kill_is_the_request_before_it() {
    let requests = requests_around_a_kill(1, |_| (200, thoughtful_call()));
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[1], requests[2], "the same request again");
    let (first, then) = (&requests[0]["messages"], &requests[1]["messages"]);
    let first = first.as_array().unwrap();
    assert_eq!(&then.as_array().unwrap()[..first.len()], first.as_slice(), "the same prefix");
}

#[test]
fn a_request_after_a_kill_leaves_out_what_the_run_has_seen_refused() {
    let requests = requests_around_a_kill(2, |number| match number {
        0 => (200, thoughtful_call()),
        _ => (400, error("messages.1.reasoning_content: Extra inputs are not permitted")),
    });
    assert_eq!(requests.len(), 4);
    assert!(requests[1].to_string().contains("I think."), "{}", requests[1]);
    assert!(!requests[2].to_string().contains("I think."), "{}", requests[2]);
    assert_eq!(requests[2], requests[3], "the same request again");
}
