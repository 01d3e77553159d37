//! Tests the real daemon under libfaketime: changes to and from summer time, a clock that is set
//! back.

use chrono::{DateTime, Utc};
use nix::sys::signal::Signal;

use crate::support::{Place, is_asleep, wait_until};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

const JOBS: &str = "version: 1
jobs:
  - {name: fixed, schedule: '30 2 * * *', timezone: Europe/Berlin, prompt: x}
  - {name: hourly, schedule: '0 * * * *', timezone: Europe/Berlin, prompt: x}
";

/// A place whose commands all read the clock of the place.
pub(crate) struct Clocked {
    pub(crate) place: Place,
}

impl Clocked {
    fn new(now: &str) -> Self {
        let files = [
            ("config.yaml", "models: {m: {provider: scripted, script: s.yaml}}\n"),
            ("s.yaml", "steps: [{say: done}]\n"),
            ("tools.yaml", "version: 1\ntools: []\n"),
            ("jobs.yaml", JOBS),
        ];
        Self::with_files(now, &files)
    }

    pub(crate) fn with_files(now: &str, files: &[(&str, &str)]) -> Self {
        assert!(std::path::Path::new(LIBRARY).exists(), "please install libfaketime");
        let place = Place::new(files);
        let file = place.path().join("clock").display().to_string();
        let place = place
            .with_env("LD_PRELOAD", LIBRARY)
            .with_env("FAKETIME_TIMESTAMP_FILE", &file)
            .with_env("FAKETIME_NO_CACHE", "1")
            .with_env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .with_env("NO_FAKE_STAT", "1");
        let clocked = Self { place };
        clocked.set(now);
        clocked
    }

    /// Sets the clock, which then goes on.
    pub(crate) fn set(&self, now: &str) {
        let now = DateTime::parse_from_rfc3339(now).unwrap().to_utc();
        let offset = (now - Utc::now()).num_milliseconds();
        let (seconds, milliseconds) = (offset.abs() / 1000, offset.abs() % 1000);
        let sign = if offset < 0 { '-' } else { '+' };
        let new = self.place.path().join("clock.new");
        std::fs::write(&new, format!("{sign}{seconds}.{milliseconds:03}\n")).unwrap();
        std::fs::rename(new, self.place.path().join("clock")).unwrap();
    }

    /// Returns the slots of a job as `EPOCH DUE STATE`, the oldest first.
    fn slots(&self, job: &str) -> Vec<String> {
        let rows = self.place.json(&["slots", job]);
        let row = |row: &serde_json::Value| {
            format!(
                "{} {} {}",
                row["epoch"],
                row["due_at"].as_str().unwrap(),
                row["state"].as_str().unwrap()
            )
        };
        let mut rows: Vec<String> = rows.as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    }

    /// Sets the clock to two seconds before `due` and waits for this slot of `job`.
    fn goes_to(&self, due: &str, (job, epoch, state): (&str, i64, &str)) {
        let before = DateTime::parse_from_rfc3339(due).unwrap() - chrono::TimeDelta::seconds(2);
        self.set(&before.to_rfc3339());
        let row = format!("{epoch} {due} {state}");
        wait_until(
            || self.slots(job).contains(&row),
            || format!("{row}: {:?}\n{}", self.slots(job), self.place.log()),
        );
    }

    /// Sets the clock back and waits until the daemon notices.
    fn set_back(&self, now: &str, epoch: i64) {
        self.set(now);
        let notice = format!("epoch={epoch} ");
        wait_until(|| self.place.log().contains(&notice), || self.place.log());
    }

    fn is_sound(&self) -> bool {
        self.place.json(&["audit"])["ok"] == true
    }
}

// proves CRON-2
#[test]
fn summer_time_begins_and_no_slot_is_lost_or_doubled() {
    let clocked = Clocked::new("2026-03-28T23:45:00Z");
    let _daemon = clocked.place.serve();
    clocked.goes_to("2026-03-29T00:00:00Z", ("hourly", 0, "ran"));
    // 02:00 does not exist on this day: 02:30 is due at 03:00, which is 01:00 UTC.
    clocked.goes_to("2026-03-29T01:00:00Z", ("hourly", 0, "ran"));
    clocked.goes_to("2026-03-29T02:00:00Z", ("hourly", 0, "ran"));
    clocked.goes_to("2026-03-30T00:30:00Z", ("fixed", 0, "ran"));
    let fixed = ["0 2026-03-29T01:00:00Z ran", "0 2026-03-30T00:30:00Z ran"];
    assert_eq!(clocked.slots("fixed"), fixed);
    let first =
        ["0 2026-03-29T00:00:00Z ran", "0 2026-03-29T01:00:00Z ran", "0 2026-03-29T02:00:00Z ran"];
    assert_eq!(clocked.slots("hourly")[..3], first);
    assert!(clocked.is_sound());
}

// proves CRON-2, CRON-3
#[test]
fn summer_time_ends_and_the_clock_is_set_back() {
    let clocked = Clocked::new("2026-10-24T23:45:00Z");
    let _daemon = clocked.place.serve();
    clocked.goes_to("2026-10-25T00:00:00Z", ("hourly", 0, "ran"));
    clocked.goes_to("2026-10-25T00:30:00Z", ("fixed", 0, "ran"));
    // 02:00 comes again. An hourly job runs at both, 02:30 is due once.
    clocked.goes_to("2026-10-25T01:00:00Z", ("hourly", 0, "ran"));
    clocked.goes_to("2026-10-25T02:00:00Z", ("hourly", 0, "ran"));
    assert_eq!(clocked.slots("fixed"), ["0 2026-10-25T00:30:00Z ran"]);
    // Two hours back: 02:30 does not run again, the hourly job continues at once.
    clocked.set_back("2026-10-25T00:00:01Z", 1);
    clocked.goes_to("2026-10-25T00:30:00Z", ("fixed", 1, "skipped"));
    clocked.goes_to("2026-10-25T01:00:00Z", ("hourly", 1, "ran"));
    clocked.goes_to("2026-10-25T05:00:00Z", ("hourly", 1, "ran"));
    // Five hours back: the new time counts.
    clocked.set_back("2026-10-25T00:00:01Z", 2);
    clocked.goes_to("2026-10-25T00:30:00Z", ("fixed", 2, "ran"));
    assert_eq!(clocked.slots("fixed").len(), 3);
    assert!(clocked.is_sound());
}

/// Kills the daemon during a call at 10:00, and sets the clock to 13:00. Returns the run.
fn left_for_three_hours(number: &str, category: &str) -> (Clocked, String) {
    let clocked = Clocked::new("2026-05-04T10:00:00Z");
    let place = &clocked.place;
    let config = "models: {m: {provider: scripted, script: s.yaml}}\nsecurity: {sandbox: off}\n";
    place.write("config.yaml", config);
    place.write("s.yaml", "steps: [{call: {tool: hang}}, {say: done}]\n");
    place.write("tools.yaml", &format!("version: 1\ntools: [{{name: hang, description: Hangs, category: {category}, cmd: sleep, args: ['{number}']}}]\n"));
    place.write("jobs.yaml", "version: 1\njobs: [{name: j, prompt: x, catchup_window: 1h, double_confirmation: false, tools: {write: [hang]}}]\n");
    let daemon = place.serve();
    let run_id = place.dutyd(&["trigger", "j"]).stdout.trim().to_owned();
    wait_until(|| is_asleep(number), || place.log());
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    clocked.set("2026-05-04T13:00:00Z");
    (clocked, run_id)
}

fn assert_ends_as_too_old(place: &Place, run_id: &str) {
    let run = || place.json(&["show", run_id])["run"].clone();
    wait_until(|| !run()["outcome"].is_null(), || place.log());
    let error = run()["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.contains("longer than `catchup_window` (1h)"), "{}", run());
}

// proves STATE-1
#[test]
fn a_run_that_could_not_be_read_at_the_start_is_still_too_old_to_continue() {
    let (clocked, run_id) = left_for_three_hours("7119.OWN", "read");
    let place = &clocked.place;
    let transcript = place.transcript(&run_id);
    let kept = place.path().join("kept.jsonl");
    std::fs::rename(&transcript, &kept).unwrap();
    std::fs::create_dir(&transcript).unwrap();
    let daemon = place.serve();
    let degraded = || place.json(&["status"])["degraded"].to_string();
    wait_until(|| degraded().contains("could neither continue nor end"), || place.log());
    std::fs::remove_dir(&transcript).unwrap();
    std::fs::rename(&kept, &transcript).unwrap();
    assert_ends_as_too_old(place, &run_id);
    drop(daemon);
}

// proves STATE-1
#[test]
fn a_run_with_only_a_part_of_its_end_is_still_too_old_to_continue() {
    let (clocked, run_id) = left_for_three_hours("7120.OWN", "write");
    let place = &clocked.place;
    // The warning is then the last line, three hours newer than the line before.
    let daemon = place.serve_with("DUTYD_FAULTS", "fail_line_once=session_end");
    assert_ends_as_too_old(place, &run_id);
    let shown = place.json(&["show", &run_id]);
    let warnings = shown["events"].as_array().unwrap().iter();
    assert_eq!(warnings.filter(|event| event["code"] == "effect_unknown").count(), 1, "{shown}");
    drop(daemon);
}
