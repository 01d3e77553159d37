//! Checks `next --from` against every cron vector on which independent implementations agree.

use serde_json::Value;

use crate::support::Place;

#[test]
fn every_vector_of_consensus_gives_the_expected_times() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cron/vectors.json");
    let all: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = 0;
    for vector in
        all["vectors"].as_array().unwrap().iter().filter(|vector| vector["status"] == "consensus")
    {
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
    assert_eq!(seen, 38);
}
