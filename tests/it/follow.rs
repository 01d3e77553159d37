//! Tests followers of a run over the control socket: a late one, a slow one and one that leaves.
//!
//! *Source*: `docs/design/interfaces.md`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::support::{Daemon, Place, wait_until};

const CONFIG: &str = "version: 1\nmodels:\n  main: {provider: scripted, script: s.yaml}\n";
const JOBS: &str =
    "version: 1\njobs:\n  - {name: hand, prompt: look, tools: {read: [wait, flood]}}\n";

/// Returns a place with a job whose first call waits for a write to `gate`, and whose next calls
/// print 200 KB each.
fn place() -> Place {
    let place = Place::new(&[("config.yaml", CONFIG), ("jobs.yaml", JOBS)]);
    let gate = place.path().join("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (here, gate) = (place.path().display(), gate.display());
    place.write(
        "tools.yaml",
        &format!(
            "version: 1\ntools:\n  - {{name: wait, description: Waits, category: read, cmd: cat, args: [{gate}], sandbox: {{read: [{here}]}}}}\n  - {{name: flood, description: Prints, category: read, cmd: seq, args: ['40000'], output_limit: 100000}}\n"
        ),
    );
    let flood = "{call: {tool: flood}}, ".repeat(5);
    place.write("s.yaml", &format!("steps: [{{call: {{tool: wait}}}}, {flood}{{say: done}}]\n"));
    place
}

fn start(place: &Place) -> String {
    let started = place.dutyd(&["-o", "json", "run", "hand", "--detach"]);
    assert_eq!(started.code, 0, "{started:?}");
    let id: Value = serde_json::from_str(&started.stdout).unwrap();
    id["run_id"].as_str().unwrap().to_owned()
}

/// Requests the events of a run from a line on, without reading yet.
fn follow(place: &Place, run: &str, from: u64) -> UnixStream {
    let mut client = UnixStream::connect(place.state().join("control.sock")).unwrap();
    let key = std::fs::read_to_string(place.state().join("control.key")).unwrap();
    let request = format!(
        "GET /api/v1/runs/{run}/events?from_seq={from} HTTP/1.1\r\nHost: x\r\nDutyd-Key: {}\r\nConnection: close\r\n\r\n",
        key.trim()
    );
    client.write_all(request.as_bytes()).unwrap();
    client
}

/// Reads a stream to its end; returns the transcript lines in it.
fn lines(client: UnixStream) -> Vec<Value> {
    let lines = BufReader::new(client).lines().map_while(Result::ok);
    let data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    let events = data.map(|text| serde_json::from_str::<Value>(&text).unwrap());
    events.filter(|event| event.get("seq").is_some()).collect()
}

fn open_gate(place: &Place) {
    std::fs::write(place.path().join("gate"), "go").unwrap();
}

fn is_ended(place: &Place, run: &str) -> bool {
    place.json(&["show", run])["run"]["ended_at"].is_string()
}

/// Returns the number of descriptors that the daemon has open.
fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

// conforms 003-9.10b
#[test]
fn a_late_follower_gets_every_line_and_the_end() {
    let place = place();
    let _daemon = place.serve();
    let run = start(&place);
    let early = follow(&place, &run, 0);
    open_gate(&place);
    let early = lines(early);
    assert_eq!(early.last().unwrap()["type"], "session_end");
    let sequence: Vec<u64> = early.iter().map(|line| line["seq"].as_u64().unwrap()).collect();
    assert_eq!(sequence, (0..sequence.len() as u64).collect::<Vec<_>>());
    // The run is over: the daemon streams its lines from the file, from any start, and closes the
    // stream.
    assert_eq!(lines(follow(&place, &run, 0)), early);
    assert_eq!(lines(follow(&place, &run, 3)), early[3..]);
    assert_eq!(lines(follow(&place, &run, 1_000_000)), Vec::<Value>::new());
}

#[test]
fn a_follower_that_reads_nothing_holds_no_run_up_and_misses_nothing() {
    let place = place();
    let _daemon = place.serve();
    let run = start(&place);
    let slow = follow(&place, &run, 0);
    open_gate(&place);
    wait_until(|| is_ended(&place, &run), || place.log());
    let lines = lines(slow);
    assert_eq!(lines.last().unwrap()["type"], "session_end");
    let floods = lines.iter().filter(|line| line["type"] == "tool_call_end").count();
    assert_eq!(floods, 6, "expected the wait and five floods");
}

#[test]
fn a_follower_that_leaves_leaves_nothing_behind() {
    let place = place();
    let daemon = place.serve();
    let run = start(&place);
    let mut clients: Vec<UnixStream> = (0..20).map(|_| follow(&place, &run, 0)).collect();
    for client in &clients {
        let mut first = String::new();
        BufReader::new(client).read_line(&mut first).unwrap();
        assert!(first.contains("200"), "{first}");
    }
    let with_all = descriptors(&daemon);
    clients.clear();
    // The run still waits, so only the disconnects can end the streams.
    let held = || format!("{} descriptors of {with_all}\n{}", descriptors(&daemon), place.log());
    // Meanwhile the run opens a few descriptors of its own.
    wait_until(|| descriptors(&daemon) + 15 <= with_all, held);
    open_gate(&place);
    wait_until(|| is_ended(&place, &run), || place.log());
}
