//! Tests MCP servers in runs: a well-behaved one, and misbehaving ones.

use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::post;
use serde_json::{Value, json};

use crate::support::{Place, Served, alive, serve_on_loopback};

const ECHO: &str = "{tool: small__echo, args: {text: hello}}";

/// Returns a place with one server `small`, whose tool `echo` is a read tool. `how` names the way
/// in which the server behaves; `plain` is correct behaviour.
fn place(how: &str, call: &str, job: &str) -> Place {
    let place = Place::new(&[
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("script.yaml", &format!("steps:\n  - call: {call}\n  - say: done\n  - say: done\n")),
        ("jobs.yaml", &format!("version: 1\njobs:\n  - name: j\n    prompt: Work\n{job}")),
    ]);
    std::fs::create_dir(place.path().join("bin")).unwrap();
    std::fs::write(place.path().join("bin/server.py"), include_str!("../fixtures/mcp/server.py"))
        .unwrap();
    set(&place, how);
    place
}

fn set(place: &Place, how: &str) {
    let path = place.path().join("bin").display().to_string();
    place.write(
        "config.yaml",
        &format!(
            "models: {{main: {{provider: scripted, script: script.yaml}}}}\nmcp_servers:\n  small:\n    command: [/usr/bin/python3, {path}/server.py, {how}]\n    categories: {{echo: read, huge: read, remote: read}}\n    env: {{ANSWERS: {path}/answers, A_TOKEN: secret-of-the-server}}\n    sandbox: {{write: [{path}]}}\n"
        ),
    );
}

fn events(place: &Place, kind: &str) -> Vec<Value> {
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap().iter();
    events.filter(|event| event["type"] == kind).cloned().collect()
}

fn warnings(place: &Place) -> Vec<String> {
    let found = events(place, "warning");
    found.iter().map(|event| format!("{}: {}", event["code"], event["message"])).collect()
}

// proves MCP-1, ENV-1
// conforms 002-17
#[test]
fn a_server_s_tools_are_used_by_our_categories() {
    let call = "[{tool: small__echo, args: {text: hello}}, {tool: small__destroy, args: {}}, {tool: small__echo, args: {}}]";
    let place = place("plain", call, "    limits: {error_threshold: 9}\n");
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let ends = events(&place, "tool_call_end");
    let of = |kind: Value| ends.iter().find(|end| end["error_kind"] == kind).unwrap();
    let output = of(Value::Null)["output"].as_str().unwrap();
    assert!(output.starts_with("<hello> ['ANSWERS', 'A_TOKEN', 'HOME'"), "{output}");
    assert!(!output.contains("DUTYD"), "{output}");
    let decisions = events(&place, "policy_decision");
    assert_eq!(
        (&decisions[1]["rule"], &decisions[1]["category"]),
        (&json!("category"), &json!("admin")),
        "the server's own read-only hint must not count"
    );
    assert_eq!(of(json!("invalid_arguments"))["name"], "small__echo");
    assert!(!place.path().join("bin/answers").exists());
    let start = &events(&place, "session_start")[0];
    assert!(!start["tools"].as_array().unwrap().contains(&json!("small__echo")));
    let starts = events(&place, "mcp_server_start");
    assert_eq!(starts.len(), 1);
    assert_eq!((&starts[0]["server"], &starts[0]["sandboxed"]), (&json!("small"), &json!(true)));
    assert!(starts[0]["argv"].as_array().unwrap().len() > 1, "{}", starts[0]);
    let ready = events(&place, "mcp_server_ready");
    assert_eq!((&ready[0]["server"], &ready[0]["error"]), (&json!("small"), &Value::Null));
    assert!(ready[0]["tools"].as_array().unwrap().contains(&json!("small__echo")));
    let shown = place.json(&["show", "last"])["events"].clone();
    let kinds = shown.as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap());
    let kinds: Vec<&str> = kinds.take(3).collect();
    assert_eq!(kinds, ["session_start", "mcp_server_start", "mcp_server_ready"]);
    assert_eq!(events(&place, "session_end")[0]["survivors"], 0);
    let marker = place.path().join("bin/server.py").display().to_string();
    assert_eq!(alive(&marker), Vec::<String>::new(), "the server must end with the run");
    let called = place.dutyd(&["call", "small__echo", "text=by hand"]);
    assert!(called.code == 0 && called.stdout.starts_with("<by hand>"), "{called:?}");
    assert_eq!(place.json(&["explain", "j", "small__destroy"])["category"], "admin");
    assert_eq!(place.dutyd(&["call", "small__nosuch"]).code, 3);
    let refused = place.dutyd(&["call", "small__destroy", "--job", "j"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert_eq!(place.dutyd(&["call", "small__destroy"]).code, 0, "an operator may call it");
    let listed = place.json(&["tools", "--job", "j"]);
    let listed = listed.as_array().unwrap();
    let of = |name: &str| listed.iter().find(|tool| tool["name"] == name).unwrap();
    let facts = |tool: &Value| json!([tool["category"], tool["source"], tool["allowed"]]);
    assert_eq!(facts(of("small__echo")), json!(["read", "mcp:small", true]));
    assert_eq!(facts(of("small__destroy")), json!(["admin", "mcp:small", false]));
    assert_eq!(facts(of("grep")), json!(["read", "builtin", true]));
}

// proves MCP-3
#[test]
fn a_tool_that_changed_is_not_there_until_it_is_accepted() {
    let place = place("plain", ECHO, "");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let pins = |place: &Place| {
        let listed = place.json(&["mcp"]);
        let tools = listed[0]["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["pin"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(pins(&place), ["accepted", "accepted"]);
    set(&place, "changed");
    assert_eq!(pins(&place), ["changed", "accepted"]);
    place.dutyd(&["run", "j"]);
    assert_eq!(events(&place, "tool_call_end")[0]["error_kind"], "unknown_tool");
    assert!(
        warnings(&place)[0].contains("`small__echo` is not what was accepted"),
        "{:?}",
        warnings(&place)
    );
    set(&place, "new");
    assert_eq!(pins(&place), ["accepted", "accepted", "new"]);
    set(&place, "changed");
    assert_eq!(place.dutyd(&["mcp", "accept", "small"]).code, 0);
    assert_eq!(pins(&place), ["accepted", "accepted"]);
    place.dutyd(&["run", "j"]);
    assert_eq!(events(&place, "tool_call_end")[0]["is_error"], false);
    assert_eq!(place.dutyd(&["mcp", "accept", "smal"]).code, 3);
}

// proves MCP-3, STATE-7
#[test]
fn no_tool_is_accepted_at_first_contact_after_its_pin_was_lost() {
    let place = place("plain", ECHO, "");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    for file in place.kept() {
        let name = file.file_name().unwrap().to_str().unwrap();
        if name.starts_with("ledger.db") || name == "guards.json" {
            std::fs::remove_file(file).unwrap();
        }
    }
    set(&place, "changed");
    drop(place.serve());
    place.dutyd(&["run", "j"]);
    assert_eq!(events(&place, "tool_call_end")[0]["error_kind"], "unknown_tool");
    let told = warnings(&place);
    assert!(told[0].contains("is not among the accepted tools"), "{told:?}");
    assert_eq!(place.dutyd(&["mcp", "accept", "small"]).code, 0);
    place.dutyd(&["run", "j"]);
    assert_eq!(events(&place, "tool_call_end")[0]["is_error"], false);
}

// proves MCP-2, CFG-5
#[test]
fn what_cannot_be_used_is_left_out_and_told() {
    let place = place("bad", ECHO, "");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let told = warnings(&place).join("\n");
    for part in [
        "small__no name!` has an invalid name",
        "small__deep` is left out: this is not JSON Schema",
        "MCP server `small`: the tool `list` has a schema that cannot be read",
        "small__text` is left out: its schema does not describe an object",
        "MCP server `small`: a tool without a name",
        "small__remote` is left out",
        "small__huge` has a schema",
        "hidden\\\\u{202e}",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(events(&place, "tool_call_end")[0]["is_error"], false);
}

// proves MCP-5
#[test]
fn a_tool_list_with_too_many_values_is_not_parsed() {
    let place = place("many", ECHO, "    double_confirmation: false\n");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let told = warnings(&place).join("\n");
    assert!(told.contains("it sent a message of more than 100,000 values"), "{told}");
}

// proves MCP-4
#[test]
fn what_a_server_asks_for_is_refused() {
    let place = place("asks", ECHO, "    tools: {admin: [small__destroy]}\n");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let answers = std::fs::read_to_string(place.path().join("bin/answers")).unwrap();
    let answers: Vec<Value> =
        answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for answer in &answers {
        let gave_nothing = answer.get("error").is_some()
            || answer["result"] == json!({"roots": []})
            || answer["result"]["action"] == "decline";
        assert!(gave_nothing, "{answer}");
    }
    assert_eq!(answers.len(), 3, "{answers:?}");
}

// proves MCP-5
#[test]
fn a_server_that_fails_takes_nothing_along() {
    for (how, kind) in [("dies", "unknown_tool"), ("crashes", "tool"), ("hangs", "timeout")] {
        let place = place(how, ECHO, "    limits: {tool_timeout: 1s}\n");
        let began = Instant::now();
        let done = place.dutyd(&["run", "j"]);
        assert!(began.elapsed() < Duration::from_secs(15), "{how}");
        assert_eq!(done.code, 0, "{how}: {done:?}");
        assert_eq!(events(&place, "tool_call_end")[0]["error_kind"], kind, "{how}");
        let marker = place.path().join("bin/server.py").display().to_string();
        assert_eq!(alive(&marker), Vec::<String>::new(), "{how}");
    }
    for how in ["rubbish", "floods"] {
        let place = place(how, ECHO, "");
        assert_eq!(place.dutyd(&["run", "j"]).code, 0, "{how}");
        let end = &events(&place, "tool_call_end")[0];
        assert_eq!(end["is_error"], false, "{how}: {end}");
        assert_eq!(how == "floods", end["truncated"] != Value::Null);
    }
}

// proves SEC-2
#[test]
fn a_server_that_dies_tells_why() {
    let place = place("explains", ECHO, "    double_confirmation: false\n");
    let why = "it exited with code 3; its standard error: line 11 | ";
    let end = "line 19 | no database for [redacted:A_TOKEN]";
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let warned = warnings(&place).join("\n");
    let checked = place.json(&["check", "j"]);
    let items = checked["items"].as_array().unwrap();
    let checked = items.iter().find(|item| item["name"] == "mcp_unavailable").unwrap();
    let listed = place.json(&["mcp"]);
    for told in [&warned, checked["detail"].as_str().unwrap(), listed[0]["error"].as_str().unwrap()]
    {
        assert!(told.contains(why) && told.contains(end), "{told}");
        assert!(!told.contains("line 10") && !told.contains("secret-of"), "{told}");
    }
    set(&place, "crashes");
    place.dutyd(&["run", "j"]);
    let end = &events(&place, "tool_call_end")[0];
    let output = end["output"].as_str().unwrap();
    assert!(output.contains("it exited with code 9; its standard error: out of cheese"), "{end}");
    // A server that writes much to stderr is not blocked.
    set(&place, "chatters");
    place.dutyd(&["run", "j"]);
    assert_eq!(events(&place, "tool_call_end")[0]["is_error"], false);
}

#[test]
fn a_server_s_pictures_are_attached_and_kept() {
    let place = place("paints", ECHO, "");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let end = &events(&place, "tool_call_end")[0];
    let images = end["images"].as_array().unwrap();
    assert_eq!(images.len(), 2, "{end}");
    for image in images {
        assert_eq!(image["media_type"], "image/png");
        let name = image["file"].as_str().unwrap();
        let path = place.kept().into_iter().find(|path| path.ends_with(name)).unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() < 100);
    }
    let output = end["output"].as_str().unwrap();
    assert!(output.contains("[picture 1]\n[picture 2]"), "{output}");
    assert!(output.contains("[picture 2: ") && output.contains("[picture 3: "), "{output}");
    assert!(output.contains("[image image/png"), "the fifth image must be named: {output}");
}

/// The time within which a call must end that could run for a minute.
const AT_ONCE: Duration = Duration::from_secs(20);

// proves MCP-6
#[test]
fn an_answer_that_is_not_perfect_ends_its_call_at_once() {
    let place =
        place("raw", ECHO, "    double_confirmation: false\n    limits: {tool_timeout: 60s}\n");
    let ok = r#"{"content":[{"type":"text","text":"ok"}]}"#;
    let of = |rest: &str| format!("{{\"jsonrpc\":\"2.0\",{rest}}}\n");
    for (answer, kind, part) in [
        (of(&format!(r#""id":@ID@,"result":{ok},"error":null"#)), Value::Null, "ok"),
        (format!("{{\"id\":@ID@,\"result\":{ok}}}\n"), Value::Null, "ok"),
        (format!("{{\n  \"id\": @ID@,\n  \"result\":\n{ok}\n}}\n"), Value::Null, "ok"),
        (format!("[{}]\n", of(&format!(r#""id":@ID@,"result":{ok}"#)).trim()), Value::Null, "ok"),
        (of(&format!(r#""id":null,"result":{ok}"#)), Value::Null, "ok"),
        (of(&format!(r#""id":99,"result":{ok}"#)), Value::Null, "ok"),
        (of(&format!(r#""id":@ID@,"method":"tools/call","result":{ok}"#)), Value::Null, "ok"),
        (
            of(&format!(r#""id":@ID@,"error":{{"code":0,"message":""}},"result":{ok}"#)),
            Value::Null,
            "ok",
        ),
        (format!("[INFO] {}", of(&format!(r#""id":@ID@,"result":{ok}"#))), Value::Null, "ok"),
        (format!("\u{feff}{{\n  \"id\": @ID@,\n  \"result\":\n{ok}\n}}\n"), Value::Null, "ok"),
        (
            of(r#""id":@ID@,"result":{"content":[{"type":"text","text":"a \ud83d b"}]}"#),
            Value::Null,
            "a \u{fffd} b",
        ),
        (
            of(
                r#""id":@ID@,"result":{"content":[{"type":"text","text":"ok"}],"structuredContent":{"mean":NaN}}"#,
            ),
            Value::Null,
            "ok",
        ),
        (
            of(
                r#""id":@ID@,"result":{"content":[{"type":"text","text":"ok"},{"type":"json","json":{"n":3}}]}"#,
            ),
            Value::Null,
            r#"{"type":"json","json":{"n":3}}"#,
        ),
        (
            of(r#""id":@ID@,"error":{"code":"E_FULL","message":"no space"}"#),
            json!("tool"),
            "the error E_FULL: no space",
        ),
        (
            of(r#""id":null,"error":{"code":-32700,"message":"bad"}"#),
            json!("tool"),
            "the error -32700: bad",
        ),
        (of(r#""id":@ID@"#), json!("tool"), "neither a `result` nor an `error`"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{\"content\":[\n".to_owned(),
            json!("tool"),
            "its answer cannot be read",
        ),
    ] {
        std::fs::write(place.path().join("bin/raw"), &answer).unwrap();
        let began = Instant::now();
        assert_eq!(place.dutyd(&["run", "j"]).code, 0, "{answer}");
        assert!(began.elapsed() < AT_ONCE, "{answer}");
        let end = &events(&place, "tool_call_end")[0];
        assert_eq!(end["error_kind"], kind, "{answer}: {end}");
        assert!(end["output"].as_str().unwrap().contains(part), "{answer}: {end}");
    }
    std::fs::write(
        place.path().join("bin/raw"),
        b"{\"id\":@ID@,\"result\":{\"content\":\"a\xff\"}}",
    )
    .unwrap();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!(events(&place, "tool_call_end")[0]["output"], "a\u{fffd}");
}

/// Starts a server over HTTP that answers a call with this status, type and body.
fn serve_http(status: u16, kind: &'static str, body: &'static str) -> (Served, Place) {
    let answer = move |message: axum::Json<Value>| async move {
        let result = match message["method"].as_str().unwrap() {
            "initialize" => json!({"protocolVersion": "2025-11-25"}),
            "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
            "tools/call" => {
                let body = body.replace("@ID@", &message["id"].to_string());
                let status = StatusCode::from_u16(status).unwrap();
                return (status, [(header::CONTENT_TYPE, kind)], body);
            }
            _ => {
                return (
                    StatusCode::ACCEPTED,
                    [(header::CONTENT_TYPE, "text/plain")],
                    String::new(),
                );
            }
        };
        let whole = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], whole.to_string())
    };
    let served = serve_on_loopback(Router::new().route("/mcp", post(answer)));
    let place =
        place("plain", ECHO, "    double_confirmation: false\n    limits: {tool_timeout: 60s}\n");
    set_url(&place, &format!("http://{}/mcp", served.address));
    (served, place)
}

fn set_url(place: &Place, url: &str) {
    place.write(
        "config.yaml",
        &format!(
            "models: {{main: {{provider: scripted, script: script.yaml}}}}\nmcp_servers: {{small: {{url: '{url}', category: read}}}}\n"
        ),
    );
}

// proves MCP-6
#[test]
fn an_answer_with_status_202_ends_its_call_at_once() {
    let answer = |message: axum::Json<Value>| async move {
        let (status, result) = match message["method"].as_str().unwrap() {
            "initialize" => (StatusCode::OK, json!({"protocolVersion": "2025-11-25"})),
            "tools/list" => {
                let tools = json!([{"name": "echo", "inputSchema": {"type": "object"}}]);
                (StatusCode::OK, json!({"tools": tools}))
            }
            _ => (StatusCode::ACCEPTED, json!({"content": "ok"})),
        };
        let whole = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let headers = [("content-type", "application/json"), ("mcp-session-id", "s")];
        (status, headers, whole.to_string())
    };
    let served = serve_on_loopback(Router::new().route("/mcp", post(answer)));
    let place =
        place("plain", ECHO, "    double_confirmation: false\n    limits: {tool_timeout: 60s}\n");
    set_url(&place, &format!("http://{}/mcp", served.address));
    let began = Instant::now();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert!(began.elapsed() < AT_ONCE);
    assert_eq!(events(&place, "tool_call_end")[0]["output"], "ok");
}

// proves MCP-6
#[test]
fn an_answer_over_http_ends_its_call_at_once() {
    const JSON: &str = "application/json";
    const EVENTS: &str = "text/event-stream";
    for (status, kind, body, expected) in [
        (
            200,
            JSON,
            r#"{"id":@ID@,"result":{"content":[{"type":"text","text":"ok"}]},"error":null}"#,
            "ok",
        ),
        (200, "text/plain", r#"[{"id":null,"result":{"content":"ok"}}]"#, "ok"),
        (
            200,
            EVENTS,
            "event: answer\ndata: {\ndata: \"id\": \"@ID@\", \"result\": {\"content\": \"ok\", \"n\": NaN}}",
            "ok",
        ),
        (
            400,
            JSON,
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":"E1","message":"no"}}"#,
            "it answered with the error E1: no",
        ),
        (
            500,
            JSON,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"no"}}"#,
            "it answered with the error -32603: no",
        ),
        (
            500,
            "text/html",
            "<p>no</p>",
            "it answered with HTTP 500 Internal Server Error: <p>no</p>",
        ),
        (200, JSON, "", "is not a message of the protocol: an empty body"),
        (202, JSON, "", "is not a message of the protocol: an empty body"),
        (
            200,
            EVENTS,
            "data: {\"jsonrpc\":\"2.0\",\"id\":@ID@,\"result\":{\n\n",
            "its answer cannot be read",
        ),
        (
            401,
            JSON,
            "{}",
            "wants a login (401): set what it expects, such as an `Authorization` header with a token, under `headers`",
        ),
        (308, JSON, "", "which is not followed"),
    ] {
        let (_served, place) = serve_http(status, kind, body);
        let began = Instant::now();
        assert_eq!(place.dutyd(&["run", "j"]).code, 0, "{status} {body}");
        assert!(began.elapsed() < AT_ONCE, "{status} {body}");
        let end = &events(&place, "tool_call_end")[0];
        assert!(end["output"].as_str().unwrap().contains(expected), "{status} {body}: {end}");
        assert_ne!(end["error_kind"], "timeout", "{status} {body}");
    }
}

#[test]
fn a_server_that_wants_a_login_says_so_in_words() {
    let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
    let login = move || async move { (StatusCode::UNAUTHORIZED, challenge, "{}") };
    let served = serve_on_loopback(Router::new().route("/mcp", post(login)));
    let place = place("plain", ECHO, "    double_confirmation: false\n");
    set_url(&place, &format!("http://{}/mcp?key=secret", served.address));
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let told = warnings(&place).join("\n");
    let wants = format!("the server at http://{}/mcp wants a login (401)", served.address);
    assert!(told.contains(&wants) && told.contains("`headers`"), "{told}");
    assert!(!told.contains("::") && !told.contains("Some("), "{told}");
    let shown = place.json(&["show", "last"])["events"].clone();
    let shown = shown.as_array().unwrap();
    let at = |kind: &str| shown.iter().position(|event| event["type"] == kind).unwrap();
    assert!(at("warning") < at("mcp_server_ready"), "the failure must come first");
}

#[test]
fn tools_with_unusual_names_and_schemas_are_used_under_aliases() {
    let call = "[{tool: small__admin.tools.list, args: {}}, {tool: small__tree, args: {of: {of: {}}, x: y}}]";
    let place = place(
        "names",
        call,
        "    double_confirmation: false\n    tools: {admin: [small__admin.tools.list, small__tree]}\n",
    );
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let ends = events(&place, "tool_call_end");
    assert_eq!(ends.len(), 2, "{ends:?}");
    for (end, name) in ends.iter().zip(["small__admin.tools.list", "small__tree"]) {
        assert_eq!((&end["name"], &end["is_error"]), (&json!(name), &json!(false)), "{end}");
    }
    let listed = place.dutyd(&["-o", "json", "mcp"]);
    assert_eq!(listed.code, 1, "a run leaves out a tool");
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let of = |name: &str| {
        let mut tools = listed[0]["tools"].as_array().unwrap().iter();
        tools.find(|tool| tool["name"] == name).unwrap().clone()
    };
    let alias = of("small__admin.tools.list")["alias"].as_str().unwrap().to_owned();
    assert!(alias.starts_with("small__admin_tools_list_") && alias.len() < 64, "{alias}");
    assert_eq!(of(&format!("small__{}", "a".repeat(70)))["alias"].as_str().unwrap().len(), 64);
    assert_eq!(of("small__echo")["alias"], Value::Null);
    assert!(of("small__broken")["left_out"].as_str().unwrap().contains("not JSON Schema"));
    assert!(place.dutyd(&["mcp"]).stdout.contains(&format!("for models: {alias}")));
    // A model calls the tool by its alias.
    let script = format!("steps:\n  - call: {{tool: {alias}, args: {{}}}}\n  - say: done\n");
    place.write("script.yaml", &script);
    place.dutyd(&["run", "j"]);
    assert_eq!(events(&place, "tool_call_end")[0]["name"], "small__admin.tools.list");
}

#[test]
fn a_list_of_tools_that_never_ends_is_read_once() {
    let place = place("pages", ECHO, "    double_confirmation: false\n");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let told = warnings(&place).join("\n");
    assert!(
        told.contains("MCP server `small`: its list of tools repeats the cursor `8`"),
        "{told}"
    );
    assert!(!told.contains("duplicate"), "{told}");
    assert_eq!(events(&place, "tool_call_end")[0]["is_error"], false);
    let listed = place.json(&["mcp"]);
    assert_eq!(listed[0]["tools"].as_array().unwrap().len(), 2);
    assert!(listed[0]["warnings"][0].as_str().unwrap().contains("cursor `8`"), "{listed}");
}
