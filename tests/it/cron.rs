//! Checks `next --from` against every cron vector. Where independent implementations differ, the
//! expected times are those of croner.

use serde_json::{Value, json};

use crate::support::{Place, wait_until};

#[test]
fn every_vector_gives_the_expected_times() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cron/vectors.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = 0;
    for vector in all["vectors"].as_array().unwrap() {
        let job = serde_json::json!({"version": 1, "jobs": [{"name": "v", "schedule": vector["expr"], "timezone": vector["tz"], "prompt": "x"}]});
        // JSON is YAML.
        let place = Place::new(&[
            ("jobs.yaml", &job.to_string()),
            ("tools.yaml", "version: 1\ntools: []\n"),
        ]);
        let count = vector["n"].to_string();
        let done = place.dutyd(&[
            "-o",
            "json",
            "next",
            "v",
            "-n",
            &count,
            "--from",
            vector["from"].as_str().unwrap(),
        ]);
        let id = &vector["id"];
        match vector["expect"]["outcome"].as_str().unwrap() {
            // croner rejects an expression that only one other implementation accepts.
            _ if vector["status"] == "single_implementation" => {
                assert_eq!(done.code, 2, "{id}: {done:?}");
            }
            "fires" => {
                let rows: Value =
                    serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{id}: {done:?}"));
                let found: Vec<&str> = rows
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|row| row["local"].as_str().unwrap())
                    .collect();
                let expected: Vec<&str> = vector["expect"]["next"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|at| at.as_str().unwrap())
                    .collect();
                assert_eq!(found, expected, "{id}");
            }
            "never" => {
                assert!(done.code == 2 && done.stderr.contains("never comes due"), "{id}: {done:?}")
            }
            "expired" => assert_eq!((done.code, done.stdout.trim()), (0, "[]"), "{id}: {done:?}"),
            _ => assert_eq!(done.code, 2, "{id}: {done:?}"),
        }
        seen += 1;
    }
    assert_eq!(seen, 49);
}

// proves CRON-6
#[test]
fn ten_thousand_jobs_that_come_due_in_one_second_all_run() {
    const COUNT: usize = 10_000;
    let place = Place::new(&[
        (
            "config.yaml",
            "models: {m: {provider: scripted, script: s.yaml}}\nmax_concurrent_runs: 32\nsecurity: {sandbox: off}\n",
        ),
        ("s.yaml", "steps: [{say: done}]\n"),
        ("tools.yaml", "version: 1\ntools: []\n"),
    ]);
    // Late enough for the daemon to be ready.
    let due_at = chrono::Utc::now() + chrono::TimeDelta::seconds(12);
    let schedule = due_at.format("%S %M %H %d %m *").to_string();
    for file in 0..10 {
        let job = |number: usize| json!({"name": format!("j{number}"), "schedule": schedule, "timezone": "UTC", "prompt": "x"});
        let jobs: Vec<Value> = (file * 1000..(file + 1) * 1000).map(job).collect();
        // JSON is YAML.
        place.write(
            &format!("jobs.d/{file}.yaml"),
            &json!({"version": 1, "jobs": jobs}).to_string(),
        );
    }
    let daemon = place.serve();
    let ran = || {
        let path = place.state().join("ledger.db");
        let ledger =
            rusqlite::Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)
                .unwrap();
        let query = "SELECT count(*) FROM slots WHERE state = 'ran'";
        ledger.query_row(query, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    wait_until(|| chrono::Utc::now() > due_at, || place.log());
    wait_until(|| ran() > 0, || place.log());
    let mut before = 0;
    while before < i64::try_from(COUNT).unwrap() {
        // The queue drains.
        wait_until(|| ran() > before, || format!("{before} ran\n{}", place.log()));
        before = ran();
    }
    daemon.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(daemon.wait(), Some(0));
    let audit = place.json(&["audit"]);
    let count = json!(COUNT);
    assert_eq!(
        (&audit["holes"], &audit["extras"], &audit["slots"]),
        (&json!([]), &json!([]), &count)
    );
    let slots = place.json(&["slots"]);
    let runs = slots.as_array().unwrap().iter().map(|slot| slot["run_id"].as_str().unwrap());
    assert_eq!(runs.collect::<std::collections::BTreeSet<_>>().len(), COUNT);
}
