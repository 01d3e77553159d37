//! The house rules that a compiler does not know: who may import whom, and what stands in one place only.
#![expect(clippy::unwrap_used, reason = "a test that fails is to stop at once")]

use std::path::{Path, PathBuf};

/// Each folder may import only from those before it. *Source*: `ARCHITECTURE.md`.
const ORDER: &[&str] = &[
    "domain", "text", "call", "schedule", "config", "gate", "agent", "provider", "process",
    "tools", "store", "sinks", "run", "daemon", "server", "cli",
];

fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(&root).unwrap().to_path_buf(), text));
            }
        }
    }
    assert!(found.len() > 50, "the sources were found");
    found
}

/// The code of a file, without its tests and comments.
fn code(path: &Path, text: &str) -> Vec<(usize, String)> {
    if path.file_stem().is_some_and(|stem| stem == "tests") {
        return Vec::new();
    }
    let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]");
    lines
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(at, line)| (at + 1, line.to_owned()))
        .collect()
}

#[test]
fn a_folder_imports_only_from_those_before_it() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let Some(own) = ORDER.iter().position(|folder| path.starts_with(folder)) else { continue };
        for (at, line) in code(&path, &text) {
            for rest in line.split("crate::").skip(1) {
                let name: String =
                    rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if let Some(other) = ORDER.iter().position(|folder| *folder == name)
                    && other > own
                {
                    wrong.push(format!(
                        "src/{}:{at} imports from {name}, which stands below {}",
                        path.display(),
                        ORDER[own]
                    ));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn what_stands_in_one_place_stands_nowhere_else() {
    let rules: &[(&str, &[&str])] = &[
        ("Command::new(", &["process/fork_server.rs"]),
        ("Connection::open", &["store/db.rs"]),
        ("Utc::now(", &["clock.rs"]),
        ("SystemTime::now(", &["clock.rs"]),
        ("env::vars", &["config/environment.rs"]),
        ("unsafe ", &["process/fork_server.rs", "process/sandbox.rs", "process/shim.rs"]),
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for (at, line) in code(&path, &text) {
            for (word, places) in rules {
                if line.contains(word) && !places.iter().any(|place| path == Path::new(place)) {
                    wrong.push(format!(
                        "src/{}:{at} has `{word}`, which stands in {places:?} only",
                        path.display()
                    ));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn the_loop_has_no_io() {
    let forbidden = [
        "std::fs",
        "tokio::fs",
        "std::net",
        "tokio::net",
        "std::process",
        "tokio::process",
        "rusqlite",
        "reqwest",
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| path.starts_with("agent")) {
        for (at, line) in code(&path, &text) {
            wrong.extend(
                forbidden
                    .iter()
                    .filter(|word| line.contains(**word))
                    .map(|word| format!("src/{}:{at} names {word}", path.display())),
            );
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn every_file_says_what_it_owns_and_stays_readable() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if !text.starts_with("//!") {
            wrong.push(format!("src/{} does not open with //!", path.display()));
        }
        let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
        if lines > 500 {
            wrong.push(format!(
                "src/{} has {lines} lines without its tests, more than 500",
                path.display()
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Rule ids of the threat model that tests name.
#[test]
fn rules_are_proven_by_tests_that_name_them() {
    let mut proven = std::collections::BTreeMap::<String, usize>::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let more = std::fs::read_dir(tests)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
    for text in sources().into_iter().map(|(_, text)| text).chain(more) {
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("// proves ")) {
            for rule in line.split(", ") {
                *proven.entry(rule.trim().to_owned()).or_default() += 1;
            }
        }
    }
    for (rule, count) in &proven {
        println!("{rule}: {count} test(s)");
    }
    for rule in [
        "POL-1", "POL-2", "POL-3", "POL-4", "POL-5", "POL-8", "POL-9", "ARG-1", "ARG-2", "ARG-3",
        "ARG-4", "ARG-5", "ARG-6", "ARG-7", "ARG-8", "ARG-9", "ARG-10", "ARG-11", "ARG-13",
        "ARG-14", "ARG-15", "ENV-1", "ENV-2", "ENV-4", "ENV-6", "PROC-1", "PROC-2", "PROC-3",
        "PROC-4", "PROC-5", "PROC-6", "PROC-7", "CFG-2", "CFG-3", "CFG-4", "CFG-6", "LOG-1",
        "LOG-2", "LOG-3", "LOG-4", "LOG-6", "SEC-1", "SEC-2", "SEC-3", "SEC-5", "CRON-1", "CRON-2",
        "CRON-4", "CRON-6", "CRON-7", "LLM-1", "LLM-2", "LLM-3", "LLM-4", "LLM-5", "LLM-6",
        "PROV-1", "PROV-2", "PROV-4", "PROV-5", "STATE-3", "STATE-5",
    ] {
        assert!(proven.contains_key(rule), "no test proves {rule}");
    }
}
