//! Snapshots of what people on call read: `status`, `doctor`, `slots`, `next`, `plan`, and the errors
//! that come with a hint.

use crate::shown::{replaced, stable};
use crate::support::{Place, wait_until};

const FILES: [(&str, &str); 4] = [
    ("config.yaml", "version: 1\nmodels: {main: {provider: scripted, script: s.yaml}}\n"),
    (
        "s.yaml",
        "steps:\n  - {call: {tool: look, args: {name: web}}}\n  - {call: {tool: change, args: {name: web}}}\n  - {say: web runs}\n",
    ),
    (
        "tools.yaml",
        "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: printf, args: ['%s: running\\n', '{{name}}'], parameters: {name: {type: string, enum: [web, db]}}}
  - {name: change, description: Changes, category: write, cmd: 'true', args: ['{{name}}'], parameters: {name: {type: string, enum: [web, db]}}}
",
    ),
    (
        "jobs.yaml",
        "version: 1
jobs:
  - {name: watch, prompt: Is web running?, tools: {write: [change]}, mode: plan, schedule: '0 0 1 1 *'}
  - {name: once, prompt: x, allow_no_calls: true}
",
    ),
];

/// Returns the outputs of commands, each with its exit code.
fn outputs(place: &Place, commands: &[&[&str]]) -> String {
    let mut text = String::new();
    for words in commands {
        let done = place.dutyd(words);
        let (words, code) = (words.join(" "), done.code);
        text.push_str(&format!("$ dutyd {words}\n{}{}", done.stdout, done.stderr));
        text.push_str(&format!("exit code {code}\n\n"));
    }
    let rules = [
        // What the host has.
        (r"(?m)^\S+ +(kernel|sandbox|control groups|unit|PATH|catalogue) +.*$", "HOST  $1"),
        (r"\((dev|sha256|digest)? ?[0-9a-f]{12,64}\)", "(DIGEST)"),
        (r"digest [0-9a-f]{12,64}", "digest DIGEST"),
        (r"sandbox +enforce, .*", "sandbox        HOST"),
        (r"\bpid \d+", "pid PID"),
        (r"process \d+", "process PID"),
        (r"daemon \d+", "daemon PID"),
    ];
    replaced(stable(place, &text), &rules)
}

#[test]
fn the_answers_about_last_night_are_readable() {
    let place = Place::new(&FILES);
    let daemon = place.serve();
    let due = "2026-01-01T00:00:00Z";
    assert_eq!(place.dutyd(&["backfill", "watch", "--from", due, "--to", due]).code, 0);
    let slots = || place.json(&["slots"]);
    wait_until(|| slots()[0]["state"] == "ran", || place.log());
    let plan = place.json(&["plans"])[0]["plan_id"].as_str().unwrap().to_owned();
    let commands: [&[&str]; 8] = [
        &["status"],
        &["slots"],
        &["runs"],
        &["jobs"],
        &["plans"],
        &["plan", &plan],
        &["next", "--from", "2026-03-01", "-n", "2"],
        &["doctor"],
    ];
    insta::assert_snapshot!(outputs(&place, &commands));
    drop(daemon);
}

#[test]
fn an_error_says_what_to_do_next() {
    let place = Place::new(&FILES);
    let config = place.config().display().to_string();
    let offline: [&[&str]; 8] = [
        &["status"],
        &["runs"],
        &["explain", "wach", "look"],
        &["explain", "watch", "loook"],
        &["demo", "--model", "gpt"],
        &["models", "--online"],
        &["mcp", "accept", "nobody"],
        &["init", &config],
    ];
    let text = outputs(&place, &offline);
    let daemon = place.serve();
    let running: [&[&str]; 4] =
        [&["serve"], &["trigger", "wach"], &["cancel", "last"], &["cancel", "wach"]];
    insta::assert_snapshot!(text + &outputs(&place, &running));
    drop(daemon);
}
