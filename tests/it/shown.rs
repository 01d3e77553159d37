//! Snapshots of `show` and `explain`: the texts that an operator reads after an incident.

use regex::Regex;

use crate::support::Place;

const FILES: [(&str, &str); 4] = [
    ("config.yaml", "version: 1\nmodels: {main: {provider: scripted, script: s.yaml}}\n"),
    (
        "s.yaml",
        "steps:\n  - {call: {tool: look, args: {name: web}}}\n  - {call: {tool: change, args: {name: web}}}\n  - {call: {tool: look, args: {name: x}}}\n  - {say: web runs}\n",
    ),
    (
        "tools.yaml",
        "version: 1\ntools:\n  - {name: look, description: Looks, category: read, cmd: printf, args: ['%s: running\\n', '{{name}}'], parameters: {name: {type: string, enum: [web, db]}}}\n  - {name: change, description: Changes, category: write, cmd: touch, args: ['{{name}}'], parameters: {name: {type: string, enum: [web, db]}}}\n",
    ),
    (
        "jobs.yaml",
        "version: 1\njobs:\n  - {name: watch, prompt: Is web running?, tools: {write: [{tool: change, args: {name: {enum: [db]}}}], deny: [bash]}}\n",
    ),
];

/// Replaces what differs from run to run and from host to host.
fn stable(place: &Place, text: &str) -> String {
    let text = text.replace(&place.path().display().to_string(), "DIR");
    let rules = [
        (r"[0-9a-hjkmnp-tv-z]{26}", "RUN"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( \S+)?", "TIME"),
        (r"\d{4}/\d\d/\d\d", "DATE"),
        (r"\d\d:\d\d:\d\d\.\d{3}", "TIME"),
        (r"\d+(\.\d+)? m?s\b", "SPAN"),
        (r", on \S+", ", on HOST"),
        (r"/usr/bin/|/bin/", ""),
    ];
    rules.iter().fold(text, |text, (pattern, name)| {
        Regex::new(pattern).unwrap().replace_all(&text, *name).into_owned()
    })
}

#[test]
fn show_tells_what_a_run_did() {
    let place = Place::new(&FILES);
    assert_eq!(place.dutyd(&["run", "watch"]).code, 0);
    let shown = place.dutyd(&["show", "last"]);
    insta::assert_snapshot!(stable(&place, &shown.stdout));
}

#[test]
fn explain_names_the_rule_that_decides() {
    let place = Place::new(&FILES);
    let calls: [&[&str]; 6] = [
        &["look"],
        &["look", r#"{"name": "web"}"#],
        &["change", r#"{"name": "db"}"#],
        &["change", r#"{"name": "web"}"#],
        &["bash", r#"{"command": "ls"}"#],
        &["nothing"],
    ];
    let mut text = String::new();
    for call in calls {
        let done = place.dutyd(&[&["explain", "watch"], call].concat());
        text.push_str(&format!(
            "$ dutyd explain watch {}\n{}{}exit code {}\n\n",
            call.join(" "),
            done.stdout,
            done.stderr,
            done.code
        ));
    }
    insta::assert_snapshot!(stable(&place, &text));
}
