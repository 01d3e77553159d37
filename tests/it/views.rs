//! Tests what listings look like at a terminal, and what they say of a run without a daemon.

use std::io::Read as _;
use std::process::Stdio;

use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::signal::Signal;
use unicode_width::UnicodeWidthStr as _;

use crate::support::{Daemon, Place, wait_until};

const JOB: &str = "configuration-of-the-web-server";

fn place() -> Place {
    let jobs = format!(
        "version: 1\njobs:\n  - {{name: {JOB}, schedule: '0 3 * * *', timezone: UTC, prompt: x, double_confirmation: false, approval: {{timeout: 5m}}, tools: {{write: [change_the_configuration], approve: [change_the_configuration]}}}}\n"
    );
    Place::new(&[
        (
            "config.yaml",
            "models: {main: {provider: scripted, script: s.yaml}}\nshutdown_grace: 1s\nsecurity: {sandbox: off}\n",
        ),
        (
            "tools.yaml",
            "version: 1\ntools: [{name: change_the_configuration, description: Changes the configuration of the web server and reloads it, category: write, cmd: 'true', args: [--, '{{path}}'], parameters: {path: {type: string}}}]\n",
        ),
        (
            "s.yaml",
            "steps: [{call: {tool: change_the_configuration, args: {path: /etc/nginx/sites-enabled/default.conf}}}, {say: done}]\n",
        ),
        ("jobs.yaml", &jobs),
    ])
}

/// Starts a daemon with a run of a slot that waits for approval; returns the id of the run.
fn waiting(place: &Place) -> (Daemon, String) {
    let daemon = place.serve();
    let slot = "2025-11-01T03:00:00Z";
    assert_eq!(place.dutyd(&["backfill", JOB, "--from", slot, "--to", slot]).stdout, "1\n");
    let runs = || place.json(&["approvals"]);
    wait_until(|| runs()[0]["run_id"].is_string(), || place.log());
    let run_id = runs()[0]["run_id"].as_str().unwrap().to_owned();
    (daemon, run_id)
}

/// Returns what a verb writes to a terminal with this number of columns; 0 stands for a terminal that
/// does not report its width.
fn at_terminal(place: &Place, columns: u16, args: &[&str]) -> String {
    let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
    let mut command = place.command(args);
    command.arg("--no-color").stdout(slave).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The reader sees the end once no process has the other side open.
    drop(command);
    let mut written = Vec::new();
    // Linux reports that end as an error, after everything that was written.
    let _ = std::fs::File::from(master).read_to_end(&mut written);
    child.wait().unwrap();
    String::from_utf8(written).unwrap().replace("\r\n", "\n")
}

#[test]
fn listings_fit_a_terminal_of_80_columns() {
    let place = place();
    let (daemon, run_id) = waiting(&place);
    let verbs: [&[&str]; 10] = [
        &["runs"],
        &["slots"],
        &["jobs"],
        &["tools"],
        &["approvals"],
        &["approvals", "--full"],
        &["show", "last"],
        &["doctor"],
        &["check", JOB],
        &["explain", JOB, "change_the_configuration"],
    ];
    for columns in [80, 0] {
        for verb in verbs {
            let text = at_terminal(&place, columns, verb);
            assert!(text.lines().count() > 1, "{verb:?}: {text}");
            assert!(text.lines().all(|line| line.width() <= 80), "{verb:?} at {columns}:\n{text}");
        }
        for verb in ["runs", "slots"] {
            let text = at_terminal(&place, columns, &[verb]);
            assert!(text.contains(&run_id), "an id stays whole: {text}");
        }
    }
    let piped = place.dutyd(&["slots"]).stdout;
    assert_eq!(piped.lines().count(), 2, "a row is a line in a pipe: {piped}");
    drop(daemon);
}

#[test]
fn a_run_that_was_suspended_is_shown_as_suspended() {
    let place = place();
    let (daemon, run_id) = waiting(&place);
    assert!(place.dutyd(&["slots"]).stdout.contains("  running  "));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let shown = place.dutyd(&["show", &run_id]).stdout;
    let state = shown.lines().nth(1);
    assert_eq!(state, Some("suspended until the next start of the daemon"), "{shown}");
    for verb in ["runs", "slots"] {
        let listed = place.dutyd(&[verb]).stdout;
        assert!(listed.contains("  suspended  ") && !listed.contains("running"), "{listed}");
    }
}
