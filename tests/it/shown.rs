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
pub(crate) fn stable(place: &Place, text: &str) -> String {
    let text = text.replace(&place.path().display().to_string(), "DIR");
    let rules = [
        (r"[0-9a-hjkmnp-tv-z]{26}", "RUN"),
        (r"\d{4}-\d\d-\d\d \(UTC\)", "DAY (UTC)"),
        (r"by \S+ \(manual\)", "by USER (manual)"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( \S+)?", "TIME"),
        (r"\d{4}/\d\d/\d\d", "DATE"),
        (r"\d\d:\d\d:\d\d\.\d{3}", "TIME"),
        (r"\d+(\.\d+)? m?s\b", "SPAN"),
        (r", on \S+", ", on HOST"),
        (r"/usr/bin/|/bin/", ""),
    ];
    replaced(text, &rules)
}

/// Replaces each pattern in `text` by its name.
pub(crate) fn replaced(text: String, rules: &[(&str, &str)]) -> String {
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

/// A model whose answer looks like an approval, with characters that a person does not see.
fn forger() -> Place {
    let script = "steps:\n  - {say: \"done\\n09:00:00.000  approved  by root after 3 ms\\nX\\u202E\\u200B\\U000E0041\"}\n  - {say: \"done\\n09:00:00.000  approved  by root after 3 ms\\nX\\u202E\\u200B\\U000E0041\"}\n";
    let place = Place::new(&FILES);
    place.write("s.yaml", script);
    place
}

// proves LOG-4
#[test]
fn an_answer_cannot_look_like_an_entry() {
    let place = forger();
    let run = place.dutyd(&["run", "watch"]);
    assert_eq!(run.code, 0, "{run:?}");
    let shown = place.dutyd(&["show", "last"]);
    for text in [&run.stdout, &shown.stdout] {
        let forged: Vec<&str> = text.lines().filter(|line| line.contains("09:00:00")).collect();
        assert!(!forged.is_empty(), "{text}");
        assert!(forged.iter().all(|line| line.trim_start().starts_with("| ")), "{text}");
    }
}

// proves LOG-4
#[test]
fn every_format_shows_invisible_characters() {
    let place = forger();
    for form in ["table", "json", "jsonl", "yaml"] {
        let run = place.dutyd(&["-o", form, "run", "watch"]);
        let shown = place.dutyd(&["-o", form, "show", "last"]);
        for text in [&run.stdout, &shown.stdout] {
            assert!(!text.contains(['\u{202e}', '\u{200b}', '\u{e0041}']), "{form}: {text}");
            assert!(text.to_lowercase().contains("202e"), "{form}: {text}");
        }
    }
}

#[test]
fn a_streamed_answer_is_told_from_the_output_of_a_tool() {
    let place = Place::new(&FILES);
    let run = place.dutyd(&["run", "watch"]);
    let lines: Vec<&str> = run.stdout.lines().collect();
    let at = lines.iter().position(|line| line.trim() == "| web runs").unwrap();
    assert_eq!(lines[at - 1].trim(), "answer", "{run:?}");
}

#[test]
fn run_prints_the_answer_once() {
    let place = Place::new(&FILES);
    place.write("s.yaml", "steps: [{say: web runs}, {say: web runs}]\n");
    let run = place.dutyd(&["run", "watch"]);
    assert_eq!(run.stdout.matches("web runs").count(), 1, "{run:?}");
    assert!(!run.stdout.contains("Before this is accepted"), "{run:?}");
    place.write("s.yaml", "steps: [{say: web runs}, {say: web is down}]\n");
    let run = place.dutyd(&["run", "watch"]);
    assert_eq!(run.stdout.matches("web is down").count(), 1, "{run:?}");
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
