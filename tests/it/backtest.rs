//! Tests `replay` and `backtest`: what a changed configuration decides otherwise about recorded runs.

use std::path::PathBuf;

use axum::routing::post;
use serde_json::{Value, json};

use crate::support::{Place, serve_on_loopback};

const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}}
security: {sandbox: off, allowed_domains: [status.invalid, wiki.invalid], allowed_paths: [ROOT/data]}
";
const TOOLS: &str = "version: 1
tools:
  - {name: status, description: Prints words, category: read, cmd: echo, args: ['{{unit}}'], parameters: {unit: {type: string}}}
  - {name: scale, description: Prints a number, category: write, cmd: echo, args: [--to, '{{n}}'], parameters: {n: {type: integer}}}
  - {name: restart, description: Prints a name, category: write, cmd: echo, args: ['{{unit}}'], parameters: {unit: {type: string}}}
";
const JOBS: &str = "version: 1
jobs:
  - name: j
    prompt: Look at the units
    system_prompt: Be brief.
    skills: [triage]
    double_confirmation: false
    limits: {error_threshold: 9, max_iterations: 9}
    tools: {write: [{tool: scale, args: {n: {maximum: 5}}}, write_file]}
  - {name: other, prompt: Look at something else}
";
const SKILL: &str = "---
name: triage
description: For units that do not start
allowed-tools: status scale restart write_file web_fetch nothing
---
Look at the log first.
";
const SCRIPT: &str = "steps:
  - call: [{tool: status, args: {unit: web}}, {tool: scale, args: {n: 3}}]
  - call: [{tool: scale, args: {n: 9}}, {tool: restart, args: {unit: web}}, {tool: nothing}]
  - call: [{tool: write_file, args: {file_path: ROOT/data/a, content: x}}]
  - call: [{tool: web_fetch, args: {url: 'http://wiki.invalid/a'}}, {tool: status, args: {unit: {}}}]
  - say: All is well
";

/// Returns a place with a recorded run of the job `j`.
fn recorded() -> Place {
    let place = Place::new(&[("jobs.yaml", JOBS), ("tools.yaml", TOOLS)]);
    let root = place.path().display().to_string();
    std::fs::create_dir(place.path().join("data")).unwrap();
    place.write("config.yaml", &CONFIG.replace("ROOT", &root));
    place.write("s.yaml", &SCRIPT.replace("ROOT", &root));
    place.write("skills/triage/SKILL.md", SKILL);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    place
}

/// Copies the configuration to another directory, with one text of one file replaced.
fn changed(place: &Place, file: &str, from: &str, to: &str) -> PathBuf {
    let copy = place.path().join("changed");
    let _ = std::fs::remove_dir_all(&copy);
    for name in ["config.yaml", "jobs.yaml", "tools.yaml", "s.yaml", "skills/triage/SKILL.md"] {
        let text = std::fs::read_to_string(place.config().join(name)).unwrap();
        let text = if name == file {
            assert!(text.contains(from), "{name} has no {from:?}:\n{text}");
            text.replace(from, to)
        } else {
            text
        };
        std::fs::create_dir_all(copy.join(name).parent().unwrap()).unwrap();
        std::fs::write(copy.join(name), text).unwrap();
    }
    copy
}

fn backtest(place: &Place, directory: &std::path::Path) -> Value {
    place.json(&["backtest", "--against", &directory.display().to_string()])
}

/// Returns the name, the kind and the sides of each difference.
fn found(report: &Value) -> Vec<(String, String, Value, Value)> {
    let differences = report["differences"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let each = differences.iter().map(|found| {
        (
            text(&found["name"]),
            text(&found["kind"]),
            found["recorded"].clone(),
            found["today"].clone(),
        )
    });
    each.collect()
}

/// A changed file, the text that is replaced, its replacement, and what must be found.
type Planted<'a> = (&'a str, String, &'a str, Vec<(&'a str, &'a str, Value, Value)>);

/// Returns changes of the configuration below `root`.
fn planted(root: &str) -> Vec<Planted<'_>> {
    let data = format!("allowed_paths: [{root}/data]");
    let refused = |name: &'static str| (name, "refused", json!("allow"), json!("deny"));
    let allowed = |name: &'static str| (name, "allowed", json!("deny"), json!("allow"));
    let gone = |name: &'static str| (name, "tool_gone", json!("allow"), json!("deny"));
    let argv = |name: &'static str, recorded: Value, today: Value| (name, "argv", recorded, today);
    let echo = |words: &[&str]| {
        let words = std::iter::once("/usr/bin/echo").chain(words.iter().copied());
        json!(words.collect::<Vec<_>>())
    };
    let cases = [
        // Narrowed and widened lists and conditions.
        ("jobs.yaml", ", write_file]", "]", vec![refused("write_file")]),
        ("jobs.yaml", "{write: [", "{write: [restart, ", vec![allowed("restart")]),
        ("jobs.yaml", "maximum: 5", "maximum: 2", vec![refused("scale")]),
        ("jobs.yaml", "maximum: 5", "maximum: 50", vec![allowed("scale")]),
        ("jobs.yaml", "{write: [", "{deny: [status], write: [", vec![refused("status")]),
        (
            "jobs.yaml",
            "{write: [",
            "{approve: [write_file], write: [",
            vec![("write_file", "refused", json!("allow"), json!("ask"))],
        ),
        (
            "jobs.yaml",
            "double_confirmation: false",
            "autonomy: read_only",
            vec![refused("scale"), refused("write_file")],
        ),
        // The command line and the parameters of a tool.
        (
            "tools.yaml",
            "[--to, ",
            "[--all, --to, ",
            vec![argv("scale", echo(&["--to", "3"]), echo(&["--all", "--to", "3"]))],
        ),
        (
            "tools.yaml",
            "cmd: echo, args: [--to",
            "cmd: printf, args: [--to",
            vec![argv("scale", echo(&["--to", "3"]), json!(["/usr/bin/printf", "--to", "3"]))],
        ),
        ("tools.yaml", "{type: integer}", "{type: integer, minimum: 4}", vec![refused("scale")]),
        // A tool that is gone, and one that a skill or the network withholds.
        (
            "tools.yaml",
            "{name: status, ",
            "{name: nothing, description: Prints, category: read, cmd: echo, args: []}\n  - {name: state, ",
            vec![gone("status"), allowed("nothing")],
        ),
        ("skills/triage/SKILL.md", "status scale", "status", vec![refused("scale")]),
        (
            "jobs.yaml",
            "double_confirmation",
            "network: false\n    double_confirmation",
            vec![refused("web_fetch")],
        ),
        // A raised category.
        (
            "tools.yaml",
            "category: write, cmd: echo, args: [--to",
            "category: admin, cmd: echo, args: [--to",
            vec![refused("scale")],
        ),
        (
            "tools.yaml",
            "parameters: {n: {type: integer}}",
            "parameters: {n: {type: integer}}, destructive_when: [{args: {n: {const: 3}}}]",
            vec![refused("scale")],
        ),
        // Paths, domains, rate and limits.
        ("config.yaml", &data, "allowed_paths: []", vec![refused("write_file")]),
        (
            "config.yaml",
            "[status.invalid, wiki.invalid]",
            "[status.invalid]",
            vec![refused("web_fetch")],
        ),
        (
            "jobs.yaml",
            "max_iterations: 9",
            "rate: {per_minute: 1, burst: 3}",
            vec![refused("web_fetch")],
        ),
        ("jobs.yaml", "max_iterations: 9", "max_tool_calls: 3", vec![refused("web_fetch")]),
        (
            "jobs.yaml",
            "max_iterations: 9",
            "max_iterations: 2",
            vec![refused("write_file"), refused("web_fetch")],
        ),
        ("jobs.yaml", "max_iterations: 9", "max_tool_calls_per_turn: 1", vec![refused("scale")]),
    ];
    cases.map(|(file, from, to, found)| (file, from.to_owned(), to, found)).to_vec()
}

#[test]
fn a_backtest_finds_each_planted_difference_and_no_other() {
    let place = recorded();
    let same = changed(&place, "jobs.yaml", "Be brief.", "Be very brief.");
    let report = backtest(&place, &same);
    assert_eq!(report["ok"], true, "{report:#}");
    assert_eq!((&report["runs"], &report["calls"]), (&json!(1), &json!(8)));
    for (file, from, to, planted) in planted(&place.path().display().to_string()) {
        let report = backtest(&place, &changed(&place, file, &from, to));
        let mut planted: Vec<_> = planted
            .into_iter()
            .map(|(name, kind, one, other)| (name.to_owned(), kind.to_owned(), one, other))
            .collect();
        let mut found = found(&report);
        planted.sort_by_key(|one| format!("{one:?}"));
        found.sort_by_key(|one| format!("{one:?}"));
        assert_eq!(found, planted, "{file}: {from} -> {to}\n{report:#}");
        assert_eq!(report["ok"], false);
    }
}

#[test]
fn a_backtest_says_why_it_did_not_compare_a_run() {
    let place = recorded();
    let run_id = place.json(&["runs"])[0]["run_id"].as_str().unwrap().to_owned();
    let gone = changed(&place, "jobs.yaml", "name: j\n", "name: k\n");
    let directory = gone.display().to_string();
    let report = backtest(&place, &gone);
    assert_eq!(report["ok"], false);
    assert_eq!(report["not_compared"][0]["reason"], "the configuration has no job `j`");
    let of_other = place.json(&["backtest", "--against", &directory, "--job", "other"]);
    assert_eq!((&of_other["ok"], &of_other["runs"]), (&json!(true), &json!(0)));
    let unknown = place.dutyd(&["backtest", "--against", &directory, "--job", "j"]);
    assert_eq!(unknown.code, 3, "{unknown:?}");

    let transcript = place.transcript(&run_id);
    let text = std::fs::read_to_string(&transcript).unwrap();
    std::fs::write(&transcript, text.replace("\"unit\":\"web\"", "\"unit\":\"db1\"")).unwrap();
    let same = changed(&place, "jobs.yaml", "Be brief.", "Be brief!");
    let report = backtest(&place, &same);
    let reason = report["not_compared"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("the record is broken at line "), "{report:#}");
    let (line, _) = text.split_at(text.len() - 20);
    std::fs::write(&transcript, line).unwrap();
    let done = place.dutyd(&["backtest", "--against", &same.display().to_string()]);
    assert_eq!(done.code, 1);
    assert!(done.stdout.contains(&format!("{run_id} was not compared: the record")), "{done:?}");
    let missing = place.dutyd(&["backtest", "--against", "/nonexistent"]);
    assert_eq!(missing.code, 2, "{missing:?}");
}

#[test]
fn a_replay_compares_the_prompt_and_the_tools() {
    let place = recorded();
    let replay = |file: &str, from: &str, to: &str| {
        let directory = changed(&place, file, from, to).display().to_string();
        place.json(&["--config-dir", &directory, "replay", "last"])
    };
    let report = replay("jobs.yaml", "name: other", "name: others");
    assert_eq!((&report["ok"], &report["calls"]), (&json!(true), &json!(8)), "{report:#}");
    let kinds = |report: &Value| -> Vec<_> {
        found(report).into_iter().map(|(name, kind, ..)| format!("{name} {kind}")).collect()
    };
    let report = replay("jobs.yaml", "Be brief.", "Be very brief.");
    assert_eq!(kinds(&report), ["system_prompt prompt"]);
    assert_eq!(report["differences"][0]["recorded"], "Be brief.");
    assert_eq!(report["differences"][0]["today"], "Be very brief.");
    let report = replay("jobs.yaml", "Look at the units", "Look at the disks");
    assert_eq!(kinds(&report), ["task prompt"]);
    let report = replay("jobs.yaml", "{write: [", "{write: [restart, ");
    assert_eq!(kinds(&report), ["restart allowed", "tools tools", "system_prompt prompt"]);
    let report = replay("tools.yaml", "name: status", "name: state");
    let expected = ["status tool_gone", "tools tools", "system_prompt prompt"];
    assert_eq!(kinds(&report), expected);
    let done = place.dutyd(&["replay", "last"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
}

#[test]
fn a_replay_reports_the_cost_at_current_prices() {
    let answer = |body: String| async move {
        let is_first = !body.contains("\"role\":\"tool\"");
        let call = json!([{"id": "c", "type": "function",
            "function": {"name": "status", "arguments": "{\"unit\":\"web\"}"}}]);
        let message = if is_first {
            json!({"role": "assistant", "content": "Looking", "tool_calls": call})
        } else {
            json!({"role": "assistant", "content": "All is well"})
        };
        axum::Json(json!({
            "choices": [{"index": 0, "message": message,
                "finish_reason": if is_first { "tool_calls" } else { "stop" }}],
            "usage": {"prompt_tokens": 100_000, "completion_tokens": 0},
        }))
    };
    let server = serve_on_loopback(axum::Router::new().fallback(post(answer)));
    let config = format!(
        "models: {{m: {{provider: openai_chat, model: test, api_key: sk-local-test, stream: false,
    base_url: 'http://{}/v1', price: {{input: 1, output: 0}}}}}}\nsecurity: {{sandbox: off}}\n",
        server.address
    );
    let jobs = "version: 1
jobs:
  - {name: j, prompt: Look., double_confirmation: false, limits: {max_cost_usd: 1}}
";
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let near = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-9;
    let replay = |from: &str, to: &str| {
        place.write("config.yaml", &config.replace(from, to));
        place.json(&["replay", "last"])
    };
    let report = replay("input: 1", "input: 3");
    assert_eq!(report["ok"], true, "{report:#}");
    assert!(near(&report["cost_usd"]["recorded"], 0.2) && near(&report["cost_usd"]["today"], 0.6));
    let report = replay("input: 1", "input: 20");
    assert!(near(&report["cost_usd"]["today"], 4.0), "{report:#}");
    let report = replay("m: {", "renamed: {");
    assert!(near(&report["cost_usd"]["today"], 0.2), "{report:#}");
}

/// Returns a place whose job `j` has a recorded run with the verdict `ok`.
fn tried(others: &str) -> Place {
    let config = "default_model: m
models:
  m: {provider: scripted, script: s.yaml}
  other: {provider: scripted, script: other.yaml}
security: {sandbox: off}
";
    let jobs = "version: 1
jobs:
  - name: j
    prompt: Look at {{unit}}
    vars: {unit: web}
    double_confirmation: false
    tools: {write: [scale]}
    verify: [{tool: seen, args: {}, expect: {exit_code: 0}}]
";
    let tools = TOOLS.to_owned()
        + "  - {name: seen, description: Leaves a trace, category: read, cmd: sh, args: [-c, 'echo x >> \"ROOT/trace\"; echo 2 of 3']}\n";
    let script = "steps:
  - call: [{tool: status, args: {unit: web}}, {tool: seen, args: {}}]
  - call: {tool: scale, args: {n: 3}}
  - say: '{\"status\": \"ok\", \"summary\": \"all is well\"}'
";
    let place = Place::new(&[("config.yaml", config), ("jobs.yaml", jobs), ("s.yaml", script)]);
    place.write("tools.yaml", &tools.replace("ROOT", &place.path().display().to_string()));
    place.write("other.yaml", others);
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    place
}

#[test]
fn a_trial_finds_another_verdict_and_starts_no_tool() {
    // It asks in another order, is refused a call, and concludes otherwise from the same output.
    let place = tried(
        "steps:
  - call: {tool: seen, args: {}}
  - call: [{tool: restart, args: {unit: web}}, {tool: status, args: {unit: web}}]
  - say: '{\"status\": \"critical\", \"summary\": \"{{ results[0] | trim }}\"}'
",
    );
    let trace = || std::fs::read_to_string(place.path().join("trace")).unwrap();
    assert_eq!(trace(), "x\nx\n", "the call and the check");
    let report = place.json(&["trial", "last", "--model", "other"]);
    assert_eq!(report["ok"], false, "{report:#}");
    let row = &report["runs"][0];
    assert_eq!(row["verdict"], json!({"recorded": "ok", "today": "critical"}));
    assert_eq!(row["outcome"], json!({"recorded": "succeeded", "today": "succeeded"}));
    assert_eq!(row["calls"], json!({"same": 2, "other": 1, "unanswered": 0}));
    assert_eq!(report["cost_usd"], 0.0);
    assert_eq!(trace(), "x\nx\n", "a trial starts no tool");
    assert_eq!(place.json(&["runs"]).as_array().unwrap().len(), 1, "a trial is not a run");
    let same = place.dutyd(&["trial", "--job", "j"]);
    assert_eq!(same.code, 0, "{same:?}");
    assert!(same.stdout.contains("ok -> ok"), "{same:?}");
    let tmp: Vec<_> = std::fs::read_dir(place.state().join("tmp")).unwrap().collect();
    assert!(tmp.is_empty(), "{tmp:?}");
}

#[test]
fn a_call_that_the_record_does_not_answer_ends_the_trial() {
    let place = tried(
        "steps:
  - call: {tool: status, args: {unit: db}}
  - say: '{\"status\": \"ok\"}'
",
    );
    let report = place.json(&["trial", "last", "--model", "other"]);
    assert_eq!(report["ok"], false);
    let row = &report["runs"][0];
    assert_eq!(row["calls"], json!({"same": 0, "other": 0, "unanswered": 1}), "{report:#}");
    assert_eq!(row["verdict"], json!({"recorded": "ok", "today": null}));
    assert_eq!(row["outcome"]["today"], Value::Null);
    let error = row["error"].as_str().unwrap();
    assert!(error.contains("status {\"unit\":\"db\"}"), "{error}");
    for (args, code) in [
        (vec!["trial", "last", "--model", "nothing"], 3),
        (vec!["trial", "--job", "nothing"], 3),
        (vec!["trial"], 2),
    ] {
        assert_eq!(place.dutyd(&args).code, code, "{args:?}");
    }
}

#[test]
fn a_trial_tells_its_cost_first_and_keeps_within_its_limit() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = asked.clone();
    let answer = move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let reply = json!({
            "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "{\"status\": \"ok\"}"}}],
            "usage": {"prompt_tokens": 100_000, "completion_tokens": 0},
        });
        async move { axum::Json(reply) }
    };
    let server = serve_on_loopback(axum::Router::new().fallback(post(answer)));
    let config = format!(
        "models: {{m: {{provider: openai_chat, model: test, api_key: sk-local-test, stream: false,
    base_url: 'http://{}/v1', price: {{input: 1, output: 0}}}}}}\nsecurity: {{sandbox: off}}\n",
        server.address
    );
    let jobs = "version: 1
jobs:
  - {name: j, prompt: Look., double_confirmation: false, allow_no_calls: true}
";
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    for _ in 0..3 {
        assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    }
    let requests = || asked.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(requests(), 3);
    let unasked = place.dutyd(&["trial", "--job", "j"]);
    assert_eq!((unasked.code, requests()), (2, 3), "{unasked:?}");
    assert!(unasked.stderr.contains("a trial of 3 runs costs about 0.3000 USD"), "{unasked:?}");
    let report = place.json(&["trial", "--job", "j", "--yes", "--max-cost-usd", "0.15"]);
    assert_eq!(report["ok"], false, "{report:#}");
    assert!(requests() < 6, "{report:#}");
    assert!(report["cost_usd"].as_f64().unwrap() <= 0.15, "{report:#}");
    let report = place.json(&["trial", "last", "--yes"]);
    assert_eq!(
        (&report["ok"], &report["runs"][0]["cost_usd"]["today"]),
        (&json!(true), &json!(0.1))
    );
}

/// The model calls tools that the job does not have and passes a secret, the job has a precheck, and the
/// caller has another PATH.
#[test]
fn an_unchanged_configuration_makes_no_difference() {
    let place = Place::new(&[
        (
            "jobs.yaml",
            "version: 1
jobs:
  - name: j
    prompt: Look
    double_confirmation: false
    allow_no_calls: true
    limits: {error_threshold: 9}
    precheck: {tool: status, args: {unit: web}, run_when: nonempty}
",
        ),
        (
            "config.yaml",
            "models: {m: {provider: scripted, script: s.yaml}}\nsecurity: {sandbox: off}\n",
        ),
        // The model calls tools that the job does not have, and passes a secret.
        (
            "s.yaml",
            "steps:
  - call: [{tool: skill, args: {name: x}}, {tool: web_search, args: {query: x}}]
  - call: [{tool: status, args: {unit: hunter2hunter2}}, {tool: web_fetch, args: {url: 'http://a.invalid'}}]
  - say: done
",
        ),
    ])
    .with_env("TOKEN", "hunter2hunter2");
    let tools = TOOLS.replace(
        "args: ['{{unit}}'], parameters",
        "args: ['{{unit}}'], env: {T: '${TOKEN}'}, parameters",
    );
    place.write("tools.yaml", &tools);
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    // A caller with another PATH finds the program elsewhere.
    let elsewhere = place.path().join("bin");
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink("/usr/bin/echo", elsewhere.join("echo")).unwrap();
    let place = place.with_env("PATH", &format!("{}:/usr/bin:/bin", elsewhere.display()));
    for verb in [vec!["replay", "last"], vec!["backtest", "--against", "CONFIG"]] {
        let config = place.config().display().to_string();
        let args: Vec<&str> = verb
            .iter()
            .map(|word| if *word == "CONFIG" { config.as_str() } else { word })
            .collect();
        let report = place.json(&args);
        assert_eq!((&report["ok"], &report["calls"]), (&json!(true), &json!(4)), "{report:#}");
        assert!(!report.to_string().contains("hunter2"), "{report}");
    }
    let missing = place.dutyd(&["--state-dir", "/nonexistent", "backtest", "--against", "/etc"]);
    assert_eq!(missing.code, 3, "{missing:?}");
}

#[test]
fn a_call_that_would_run_now_counts_towards_the_budgets() {
    let place = recorded();
    let root = place.path().display().to_string();
    // Neither call ran; today the first one would, and uses up the only file.
    let script = format!(
        "steps:
  - call: {{tool: write_file, args: {{file_path: {root}/data/a, content: x}}}}
  - call: {{tool: write_file, args: {{file_path: {root}/data/b, content: x}}}}
  - say: done
"
    );
    place.write("s.yaml", &script);
    let narrow =
        JOBS.replace(", write_file]", "]").replace("double_", "allow_no_calls: true\n    double_");
    place.write_as_is("jobs.yaml", &narrow);
    std::fs::remove_dir_all(place.state()).unwrap();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    place.write_as_is("jobs.yaml", &JOBS.replace("max_iterations: 9", "max_files_modified: 1"));
    let report = backtest(&place, &place.config());
    let kinds: Vec<_> = found(&report).into_iter().map(|(_, kind, ..)| kind).collect();
    assert_eq!(kinds, ["allowed"], "{report:#}");
}

#[test]
fn a_trial_with_a_model_that_fails_is_not_good() {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = asked.clone();
    let answer = move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { (axum::http::StatusCode::UNAUTHORIZED, "{\"error\":{\"message\":\"bad key\"}}") }
    };
    let server = serve_on_loopback(axum::Router::new().fallback(post(answer)));
    let config = format!(
        "default_model: m
models:
  m: {{provider: scripted, script: s.yaml}}
  dear: {{provider: openai_chat, model: test, api_key: sk-local-test, stream: false, base_url: 'http://{}/v1', price: {{input: 1000, output: 0}}}}
security: {{sandbox: off}}
",
        server.address
    );
    let jobs = "version: 1\njobs: [{name: j, prompt: Look., double_confirmation: false, allow_no_calls: true}]\n";
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    place.write("s.yaml", "steps: [{say: All is well}]\n");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let requests = || asked.load(std::sync::atomic::Ordering::SeqCst);
    // The recorded run has no tokens, so the trial cannot estimate its cost.
    let unasked = place.dutyd(&["trial", "last", "--model", "dear"]);
    assert_eq!((unasked.code, requests()), (2, 0), "{unasked:?}");
    for wrong in ["nan", "inf", "-1"] {
        let arg = format!("--max-cost-usd={wrong}");
        assert_eq!(place.dutyd(&["trial", "last", &arg]).code, 2, "{wrong}");
    }
    let done = place.dutyd(&["trial", "last", "--model", "dear", "--yes"]);
    assert_eq!((done.code, requests()), (1, 1), "{done:?}");
}

#[test]
fn a_trial_answers_each_round_of_checks_and_keeps_the_precheck_apart() {
    let count = |file: &str| {
        format!(
            "sh, args: [-c, 'n=$(cat \"ROOT/{file}\" 2>/dev/null || echo 0); n=$((n+1)); echo $n > \"ROOT/{file}\"; echo $n; test $n -gt 1']"
        )
    };
    let tools = format!(
        "version: 1
tools:
  - {{name: look, description: Counts, category: read, cmd: {}, success_codes: [0, 1]}}
  - {{name: check, description: Counts, category: read, cmd: {}}}
",
        count("looks"),
        count("checks")
    );
    let jobs = "version: 1
jobs:
  - name: j
    prompt: Look
    double_confirmation: false
    precheck: {tool: look, run_when: nonempty}
    verify: [{tool: check}]
    verify_retries: 1
";
    let script = "steps:
  - call: {tool: look}
  - say: '{\"status\": \"n{{ results[0] | trim }}\"}'
  - say: '{\"status\": \"second {{ results[0] | trim }}\"}'
";
    let place = Place::new(&[("config.yaml", CONFIG), ("jobs.yaml", jobs), ("s.yaml", script)]);
    let root = place.path().display().to_string();
    place.write("config.yaml", &CONFIG.replace("ROOT", &root));
    std::fs::create_dir(place.path().join("data")).unwrap();
    place.write("tools.yaml", &tools.replace("ROOT", &root));
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(place.json(&["runs"])[0]["verdict"], "second 2");
    let report = place.json(&["trial", "last"]);
    assert_eq!(report["ok"], true, "{report:#}");
}
