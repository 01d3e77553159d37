//! Tests `precheck`: a read call that decides, without a model, whether a run has anything to do.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Place, wait_until};

const CONFIG: &str = "default_model: m
models: {m: {provider: scripted, script: s.yaml}}
security: {sandbox: off}
";
const TOOLS: &str = "version: 1
tools:
  - name: units
    description: Prints a file
    category: read
    cmd: sh
    args: [-c, 'cat \"ROOT/$1\" || exit 3', sh, '{{file}}']
    parameters: {file: {type: string}}
  - {name: slow, description: Sleeps, category: read, cmd: sleep, args: ['60'], timeout: 100ms}
  - {name: change, description: Changes, category: write, cmd: 'true'}
";

/// Returns a place with the job `j`, whose precheck is `precheck`.
fn place(precheck: &str) -> Place {
    let jobs = format!(
        "version: 1
jobs:
  - name: j
    schedule: '0 3 * * *'
    timezone: UTC
    prompt: Look at the units
    vars: {{file: units}}
    double_confirmation: false
    precheck: {precheck}
"
    );
    let place = Place::new(&[
        ("config.yaml", CONFIG),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("jobs.yaml", &jobs),
    ]);
    place.write("tools.yaml", &TOOLS.replace("ROOT", &place.path().display().to_string()));
    place
}

fn set(place: &Place, text: &str) {
    std::fs::write(place.path().join("units"), text).unwrap();
}

/// Runs the job; returns its stop reason and its events.
fn run(place: &Place) -> (String, Vec<Value>) {
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap().clone();
    (shown["run"]["stop_reason"].as_str().unwrap().to_owned(), events)
}

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[test]
fn a_run_whose_answer_is_that_of_the_last_good_run_is_not_needed() {
    let place = place("{tool: units, args: {file: '{{file}}'}, run_when: changed}");
    set(&place, "web failed\n");
    let (stop_reason, events) = run(&place);
    assert_eq!(stop_reason, "completed", "there is no earlier answer");
    let precheck = of_type(&events, "precheck")[0];
    assert_eq!((&precheck["ok"], &precheck["tool"]), (&json!(true), &json!("units")));
    assert_eq!(precheck["arguments"], json!({"file": "units"}));
    for kind in ["policy_decision", "tool_call_start", "tool_call_end", "precheck"] {
        assert_eq!(of_type(&events, kind)[0]["call_id"], "precheck_1", "{kind}");
    }
    let input = of_type(&events, "user_input")[0]["text"].as_str().unwrap();
    let (task, output) = input.split_once("\n\n").unwrap();
    assert_eq!(task, "Look at the units");
    assert!(output.contains("<tool_output ") && output.contains("web failed"), "{output}");
    let end = events.last().unwrap();
    assert_eq!(end["tool_calls"], 0, "the precheck does not count");

    let (stop_reason, events) = run(&place);
    assert_eq!(stop_reason, "not_needed");
    assert_eq!(of_type(&events, "precheck")[0]["ok"], false);
    assert!(of_type(&events, "assistant_text_end").is_empty(), "no model is called");
    let row = place.json(&["show", "last"])["run"].clone();
    assert_eq!((&row["outcome"], &row["error"]), (&json!("skipped"), &Value::Null));

    set(&place, "web failed\ndb failed\n");
    let before = place.json(&["runs"])[1]["run_id"].as_str().unwrap().to_owned();
    let (stop_reason, events) = run(&place);
    assert_eq!(stop_reason, "completed");
    let input = of_type(&events, "user_input")[0]["text"].as_str().unwrap();
    let (output, difference) = input.split_once("Difference from its output in the run ").unwrap();
    assert!(output.contains("web failed\ndb failed"), "{input}");
    assert!(difference.starts_with(&before), "{difference}");
    assert!(difference.contains("<tool_output ") && difference.contains("\n+db failed"), "{input}");
    assert!(!difference.contains("-web failed"), "{difference}");
    std::fs::remove_file(place.path().join("units")).unwrap();
    assert_eq!(run(&place).0, "completed", "the exit code is another one");
    assert_eq!(run(&place).0, "not_needed");
    assert_eq!(place.json(&["runs", "--outcome", "skipped"]).as_array().unwrap().len(), 2);
    assert_eq!(place.json(&["verify", "--all"])["ok"], true);
}

#[test]
fn a_failed_run_is_needed_again() {
    let place = place("{tool: units, args: {file: units}, run_when: changed}");
    set(&place, "web failed\n");
    place.write("s.yaml", "steps: [{call: {tool: change}}, {call: {tool: change}}, {call: {tool: change}}, {say: done}]\n");
    assert_eq!(place.dutyd(&["run", "j"]).code, 1);
    place.write("s.yaml", "steps: [{say: done}]\n");
    assert_eq!(run(&place).0, "completed", "the failed run does not count");
    assert_eq!(run(&place).0, "not_needed");
}

#[test]
fn each_condition_looks_at_what_it_says() {
    let units = |when: &str| format!("{{tool: units, args: {{file: units}}, run_when: {when}}}");
    for (when, text, needed) in [
        ("exit_nonzero", Some("x"), false),
        ("exit_nonzero", None, true),
        ("nonempty", Some("x"), true),
        ("nonempty", Some(" \n"), false),
        ("{matches: 'web +failed'}", Some("a\nweb  failed\n"), true),
        ("{matches: 'web +failed'}", Some("web is up"), false),
    ] {
        let place = place(&units(when));
        text.into_iter().for_each(|text| set(&place, text));
        let expected = if needed { "completed" } else { "not_needed" };
        assert_eq!(run(&place).0, expected, "{when} {text:?}");
    }
    let place = place(&units("{matches: END}"));
    set(&place, &format!("{}END", "x".repeat(200_000)));
    assert_eq!(run(&place).0, "completed", "a large output is looked at in its file");
}

#[test]
fn a_precheck_without_an_answer_lets_the_run_continue() {
    let place = place("{tool: slow, run_when: nonempty}");
    let (stop_reason, events) = run(&place);
    assert_eq!(stop_reason, "completed");
    let warnings = of_type(&events, "warning");
    assert!(warnings.iter().any(|warning| warning["code"] == "precheck"), "{warnings:?}");
    assert!(of_type(&events, "precheck").is_empty());
}

// proves POL-1
#[test]
fn the_gate_decides_about_a_precheck_too() {
    let place = place("{tool: units, args: {file: units}, run_when: nonempty}");
    set(&place, "x");
    let jobs = std::fs::read_to_string(place.config().join("jobs.yaml")).unwrap();
    place.write("jobs.yaml", &format!("{jobs}    tools: {{deny: [units]}}\n"));
    let (stop_reason, events) = run(&place);
    assert_eq!(stop_reason, "completed");
    assert_eq!(of_type(&events, "policy_decision")[0]["decision"], "deny");
    assert!(of_type(&events, "tool_call_start").is_empty(), "nothing was started");
}

#[test]
fn the_slot_of_a_run_without_work_says_so() {
    let place = place("{tool: units, args: {file: units}, run_when: nonempty}");
    set(&place, "");
    let daemon = place.serve();
    let period =
        ["backfill", "j", "--from", "2025-11-01T03:00:00Z", "--to", "2025-11-01T03:00:00Z"];
    assert_eq!(place.dutyd(&period).code, 0);
    let slot = || place.json(&["slots", "j", "--until", "2025-11-02"])[0].clone();
    wait_until(|| slot()["state"] == "not_needed", || slot().to_string());
    assert_eq!(slot()["reason"], "skipped (not_needed)");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
}
