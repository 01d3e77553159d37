//! Tests which runs are green: a table of what a model answers, against the kinds of runs.

use std::io::Write as _;
use std::process::Stdio;

use axum::Router;
use nix::pty::{OpenptyResult, openpty};
use serde_json::{Value, json};

use crate::support::{Place, Served, serve_on_loopback, wait_until};

const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: 'true'}
  - {name: fails, description: Fails, category: read, cmd: 'false'}
  - {name: change, description: Changes, category: write, cmd: 'true'}
";

/// A kind of answer: its name, and the stop reason of an unattended run, and of a run that a
/// person watches or that only plans.
const ROWS: &[(&str, &str, &str)] = &[
    ("no-call", "nothing_done", "completed"),
    ("unknown-calls", "nothing_done", "completed"),
    ("refused-calls", "nothing_done", "completed"),
    ("failed-calls", "nothing_done", "completed"),
    ("one-read", "completed", "completed"),
    ("precheck-alone", "completed", "completed"),
    ("empty", "no_answer", "no_answer"),
    ("reasoning-only", "no_answer", "no_answer"),
    ("cut", "no_answer", "no_answer"),
    ("commentary-only", "no_answer", "no_answer"),
    ("call-of-hermes", "no_answer", "no_answer"),
    ("call-of-mistral", "no_answer", "no_answer"),
    ("call-of-llama", "no_answer", "no_answer"),
];

/// Returns what the model answers in a run of this row.
fn answer(row: &str, has_called: bool) -> Value {
    let says = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    let calls = |tool: &str| json!({"type": "function_call", "call_id": "c1", "name": tool, "arguments": "{}", "status": "completed"});
    let item = match row {
        "unknown-calls" if !has_called => calls("unheard_of"),
        "refused-calls" if !has_called => calls("change"),
        "failed-calls" if !has_called => calls("fails"),
        "one-read" if !has_called => calls("look"),
        "empty" => says(""),
        "reasoning-only" => {
            json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "I think."}]})
        }
        "commentary-only" => {
            let mut item = says("I look.");
            item["phase"] = "commentary".into();
            item
        }
        "call-of-hermes" => {
            says("<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>")
        }
        "call-of-mistral" => says("[TOOL_CALLS][{\"name\": \"look\", \"arguments\": {}}]"),
        "call-of-llama" => says("<function=look>{}</function>"),
        _ => says("All is well."),
    };
    let usage = json!({"input_tokens": 9, "output_tokens": 5});
    let answer = json!({"id": "r", "status": "completed", "output": [item], "usage": usage});
    match row {
        "cut" => {
            json!({"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [says("All is")], "usage": usage})
        }
        _ => answer,
    }
}

/// Starts a server that answers each run by the prompt of its job.
fn model() -> Served {
    serve_on_loopback(Router::new().fallback(|body: String| async move {
        let request: Value = serde_json::from_str(&body).unwrap();
        let input = request["input"].to_string();
        let row = ROWS.iter().find(|(row, ..)| input.contains(&format!("row {row}."))).unwrap().0;
        answer(row, input.contains("function_call")).to_string()
    }))
}

fn place(served: &Served, schedule: &str) -> Place {
    let config = format!(
        "models: {{m: {{provider: openai, model: x, base_url: 'http://{}/v1', max_retries: 0}}}}\n",
        served.address
    );
    let job = |row: &str| {
        let precheck = match row {
            "precheck-alone" => ", precheck: {tool: fails, run_when: exit_nonzero}",
            _ => "",
        };
        format!(
            "  - {{name: {row}, prompt: This is row {row}., double_confirmation: false{precheck}{schedule}}}\n"
        )
    };
    let jobs: String = ROWS.iter().map(|(row, ..)| job(row)).collect();
    let jobs = format!("version: 1\njobs:\n{jobs}");
    let place = Place::new(&[("config.yaml", &config), ("tools.yaml", TOOLS)]);
    place.write_as_is("jobs.yaml", &jobs);
    place
}

/// Returns the stop reason of the newest run of a job that is over; null if there is none.
fn last_of(place: &Place, job: &str) -> Value {
    let runs = place.json(&["runs", "--job", job, "--limit", "5"]);
    let mut reasons = runs.as_array().unwrap().iter().map(|run| run["stop_reason"].clone());
    reasons.find(Value::is_string).unwrap_or_default()
}

/// Runs a job with a person at a terminal, who refuses each request.
fn run_at_terminal(place: &Place, job: &str) {
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut command = place.command(&["run", job, "--interactive"]);
    command.stdin(slave).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    std::fs::File::from(master.try_clone().unwrap()).write_all(b"n\nn\n").unwrap();
    child.wait().unwrap();
    drop(master);
}

#[test]
fn only_a_run_that_looked_and_answered_is_green() {
    let served = model();
    let by_hand = place(&served, "");
    let mut wrong = Vec::new();
    let mut check = |kind: &str, row: &str, found: &Value, expected: &str| {
        if *found != expected {
            wrong.push(format!("{row}, {kind}: {found}, expected {expected}"));
        }
    };
    for (row, alone, watched) in ROWS {
        by_hand.dutyd(&["run", row]);
        check("manual", row, &last_of(&by_hand, row), alone);
        by_hand.dutyd(&["run", row, "--plan"]);
        check("plan", row, &last_of(&by_hand, row), watched);
        run_at_terminal(&by_hand, row);
        check("interactive", row, &last_of(&by_hand, row), watched);
    }
    let scheduled = place(&served, ", schedule: '* * * * * *', overlap: skip");
    let daemon = scheduled.serve();
    for (row, alone, _) in ROWS {
        wait_until(|| last_of(&scheduled, row).is_string(), || scheduled.log());
        check("scheduled", row, &last_of(&scheduled, row), alone);
    }
    drop(daemon);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
