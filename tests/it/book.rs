//! Tests the README and the book: each YAML block loads, each shell block that does not change the host runs, each
//! link leads somewhere, and each page is in the table of contents.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::Place;

/// A model, a tool and a job that the blocks need but do not define.
const CONFIG: &str = "version: 1\nmodels:\n  main: {provider: scripted, script: s.yaml}\n";
/// A destination that the blocks name but do not define.
const DESTINATION: &str =
    "notifications: {ops: {type: slack, url: 'https://hooks.slack.example/services/T0/B0/xyz'}}\n";
const TOOLS: &str = "version: 1\ntools:\n  - {name: restart_unit, description: Restarts, category: write, cmd: 'true', parameters: {unit: {type: string}}, args: ['{{unit}}']}\n  - {name: unit_state, description: Prints a state, category: read, cmd: echo, parameters: {unit: {type: string}}, args: ['{{unit}}']}\n";
const JOB: &str = "version: 1\njobs:\n  - name: other\n    prompt: look\n";

/// Programs whose effect is on the whole system. A block that names one is not run.
const SYSTEM_PROGRAMS: &[&str] = &["systemctl", "runuser", "curl", "install", "useradd"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the README and every page of the book, with their paths from the root of the repository.
fn pages() -> Vec<(PathBuf, String)> {
    let mut pages = vec![PathBuf::from("README.md")];
    let mut open = vec![PathBuf::from("docs")];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(root().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    assert!(pages.len() > 30, "{pages:?}");
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        (path, text)
    };
    pages.into_iter().map(read).collect()
}

/// Returns the blocks of a language, without their indentation.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        if line.trim_start().strip_prefix("```") == Some(language) {
            let block = lines.by_ref().take_while(|line| line.trim() != "```");
            let block = block.map(|line| format!("{}\n", line.get(indent..).unwrap_or_default()));
            blocks.push(block.collect());
        }
    }
    blocks
}

#[test]
fn each_yaml_block_loads() {
    let mut count = 0;
    for (path, text) in pages().iter().filter(|(path, _)| !path.starts_with("docs/design")) {
        for block in blocks(text, "yaml") {
            let (mut config, mut tools, mut jobs) =
                (CONFIG.to_owned(), TOOLS.to_owned(), JOB.to_owned());
            match block.split_once('\n').unwrap().0 {
                "version: 1" if block.contains("\njobs:\n") => jobs = block.clone(),
                "models:" => config = format!("version: 1\ndefault_model: main\n{block}"),
                first if first.starts_with("  - name: ") => tools.push_str(&block),
                // Indented keys belong to a job, others to config.yaml.
                first if first.starts_with("    ") => jobs.push_str(&block),
                _ => config.push_str(&block),
            }
            if block.contains("to: ops") && !config.contains("notifications:") {
                config.push_str(DESTINATION);
            }
            let place = Place::new(&[
                ("config.yaml", &config),
                ("tools.yaml", &tools),
                ("jobs.yaml", &jobs),
            ]);
            place.write("s.yaml", "steps: [{say: done}]\n");
            let done = place.dutyd(&["validate"]);
            assert_eq!(done.code, 0, "{}:\n{block}\n{done:?}", path.display());
            count += 1;
        }
    }
    assert!(count >= 10, "{count} blocks");
}

#[test]
fn each_shell_block_that_does_not_change_the_host_runs() {
    let mut verbs = 0;
    for (path, text) in pages() {
        for block in blocks(&text, "sh") {
            if block.split_whitespace().any(|word| SYSTEM_PROGRAMS.contains(&word)) {
                continue;
            }
            let place = Place::new(&[]);
            for line in block.lines() {
                let command = line.split('#').next().unwrap().trim();
                let words: Vec<&str> = command.split_whitespace().collect();
                match words.as_slice() {
                    // The script may itself run this test.
                    [script] if script.starts_with("scripts/") => {
                        use std::os::unix::fs::PermissionsExt as _;
                        let mode = root().join(script).metadata().unwrap().permissions().mode();
                        assert_eq!(mode & 0o111, 0o111, "{script} is not executable");
                    }
                    ["dutyd", arguments @ ..] => {
                        let done = place.dutyd(arguments);
                        assert_eq!(done.code, 0, "{}: {line}\n{done:?}", path.display());
                        verbs += 1;
                    }
                    _ => panic!("{}: the test cannot run this line: {line}", path.display()),
                }
            }
        }
    }
    assert!(verbs >= 10, "{verbs} verbs ran");
}

/// Returns the anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the lines that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let link = regex::Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let code = regex::Regex::new(r"`[^`]*`").unwrap();
    let mut count = 0;
    for (path, text) in pages() {
        let text: String = prose(&text).map(|line| format!("{line}\n")).collect();
        for found in link.captures_iter(&code.replace_all(&text, "")) {
            let target = &found[1];
            if target.starts_with("https://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let directory = root().join(&path);
            let file = match file {
                "" => directory,
                file => directory.parent().unwrap().join(file),
            };
            assert!(file.exists(), "{} links to {target}", path.display());
            if !heading.is_empty() {
                let text = std::fs::read_to_string(&file).unwrap();
                let mut headings = prose(&text).filter(|line| line.starts_with('#'));
                let is_there = headings.any(|line| anchor(line) == heading);
                assert!(is_there, "{} links to {target}", path.display());
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count} links");
}

#[test]
fn each_page_is_in_the_table_of_contents() {
    let summary = std::fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let link = regex::Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let listed: BTreeSet<PathBuf> =
        link.captures_iter(&summary).map(|found| Path::new("docs").join(&found[1])).collect();
    let pages = pages().into_iter().map(|(path, _)| path);
    let pages: BTreeSet<PathBuf> =
        pages.filter(|path| path.starts_with("docs") && !path.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed, pages);
}

#[test]
fn the_readme_fits_a_screen_of_ninety_columns() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let long: Vec<&str> = readme.lines().filter(|line| line.chars().count() > 90).collect();
    assert!(long.is_empty(), "{long:?}");
    assert!(readme.lines().count() <= 160, "{} lines", readme.lines().count());
}
