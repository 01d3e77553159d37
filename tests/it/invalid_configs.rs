//! Checks the report of `validate` for each invalid configuration.
//!
//! `tests/fixtures/config/invalid/NN_name.FILE.yaml` is one file of a configuration, and
//! `NN_name.FILE.txt` is the expected report. With `DUTYD_WRITE_EXPECTED=1` the test writes the
//! reports; read them before you commit them.

use std::path::Path;

use crate::support::Place;

/// The default files; the invalid file replaces one of them.
const REST: &[(&str, &str)] = &[
    ("config.yaml", "version: 1\nmodels:\n  default: {provider: scripted, script: script.yaml}\n"),
    ("tools.yaml", "version: 1\ntools: []\n"),
    ("jobs.yaml", "version: 1\njobs: []\n"),
    ("script.yaml", "steps: [{say: done}]\n"),
];

#[test]
fn each_invalid_configuration_has_its_report() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config/invalid");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "yaml")).collect();
    files.sort();
    assert!(files.len() >= 30);
    let mut wrong = Vec::new();
    for path in files {
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let name = format!("{}.yaml", stem.rsplit('.').next().unwrap());
        let place = Place::new(REST);
        place.write_as_is(&name, &std::fs::read_to_string(&path).unwrap());
        let done = place.dutyd(&["validate"]);
        let root = place.path().display().to_string();
        let report = format!("{}{}", done.stdout, done.stderr).replace(&root, "DIR");
        let expected = path.with_extension("txt");
        if std::env::var_os("DUTYD_WRITE_EXPECTED").is_some() {
            std::fs::write(&expected, &report).unwrap();
        }
        if done.code != 2 || std::fs::read_to_string(&expected).ok() != Some(report.clone()) {
            wrong.push(format!("{stem} exits with {}:\n{report}", done.code));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
