//! Completes words in a real bash, with the script that `dutyd completions` prints.

use crate::support::Place;

const FILES: &[(&str, &str)] = &[
    ("config.yaml", "default_model: m\nmodels: {m: {provider: scripted, script: s.yaml}}\n"),
    ("s.yaml", "steps: [{say: done}]\n"),
    (
        "tools.yaml",
        "version: 1\ntools: [{name: disk_usage, description: Shows disks, category: read, cmd: df}]\n",
    ),
    (
        "jobs.yaml",
        "version: 1
jobs:
  - {name: disk-watch, prompt: x, allow_no_calls: true}
  - {name: morning-report, prompt: x, allow_no_calls: true}
",
    ),
];

/// Returns what bash offers for the last of `words`.
fn offered(place: &Place, words: &[&str]) -> Vec<String> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let (last, count) = (words.last().unwrap(), words.len() - 1);
    let script = format!(
        "dutyd() {{ {} \"$@\"; }}
. <(dutyd completions bash)
COMP_WORDS=({}) COMP_CWORD={count} COMP_TYPE=9
_clap_complete_dutyd dutyd '{last}' ''
printf '%s\\n' \"${{COMPREPLY[@]}}\"
",
        env!("CARGO_BIN_EXE_dutyd"),
        quoted.join(" "),
    );
    place.write("complete.bash", &script);
    let path = place.config().join("complete.bash");
    let done = place.shell(&format!("exec bash {}", path.display()));
    assert!(done.stderr.is_empty(), "{done:?}");
    done.stdout.lines().map(|word| word.trim().to_owned()).collect()
}

#[test]
fn bash_completes_the_names_of_jobs_and_tools_and_the_ids_of_runs() {
    let place = Place::new(FILES);
    assert_eq!(offered(&place, &["dutyd", "trigger", "d"]), ["disk-watch"]);
    assert_eq!(offered(&place, &["dutyd", "runs", "--job", "mor"]), ["morning-report"]);
    assert_eq!(offered(&place, &["dutyd", "explain", "disk-watch", "di"]), ["disk_usage"]);
    let run_id = place.json(&["run", "disk-watch"])["run_id"].as_str().unwrap().to_owned();
    assert_eq!(offered(&place, &["dutyd", "show", &run_id[..4]]), [run_id.as_str()]);
    assert_eq!(offered(&place, &["dutyd", "cancel", "mo"]), ["morning-report"]);
    // The command line names another configuration, which is not there.
    let other = place.path().join("other").display().to_string();
    assert_eq!(offered(&place, &["dutyd", "--config-dir", &other, "trigger", "d"]), [""; 1]);
    let flag = format!("--config-dir={other}");
    assert_eq!(offered(&place, &["dutyd", &flag, "trigger", "d"]), [""; 1]);
}

#[test]
fn a_configuration_that_cannot_be_read_offers_nothing_and_says_nothing() {
    let place = Place::new(FILES);
    place.write("jobs.yaml", "jobs: [");
    assert_eq!(offered(&place, &["dutyd", "trigger", "d"]), [""; 1]);
}
