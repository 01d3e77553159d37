//! Tests the code blocks of the README: each YAML block loads, and each shell block without systemd
//! runs.

use crate::support::Place;

const README: &str = include_str!("../../README.md");

/// A model, a tool and a job that the blocks need but do not define.
const CONFIG: &str = "version: 1\nmodels:\n  main: {provider: scripted, script: s.yaml}\n";
const TOOLS: &str = "version: 1\ntools:\n  - {name: restart_unit, description: Restarts, category: write, cmd: 'true', parameters: {unit: {type: string}}, args: ['{{unit}}']}\n";
const JOB: &str = "version: 1\njobs:\n  - name: other\n    prompt: look\n";

/// Returns the blocks of a language, with their lines unchanged.
fn blocks(language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = README.lines();
    while let Some(line) = lines.next() {
        if line.strip_prefix("```") == Some(language) {
            let block = lines.by_ref().take_while(|line| *line != "```");
            blocks.push(block.map(|line| format!("{line}\n")).collect());
        }
    }
    assert!(!blocks.is_empty(), "the README has no {language} blocks");
    blocks
}

#[test]
fn each_yaml_block_loads() {
    for block in blocks("yaml") {
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
        let place =
            Place::new(&[("config.yaml", &config), ("tools.yaml", &tools), ("jobs.yaml", &jobs)]);
        place.write("s.yaml", "steps: [{say: done}]\n");
        let done = place.dutyd(&["validate"]);
        assert_eq!(done.code, 0, "{block}\n{done:?}");
    }
}

#[test]
fn each_shell_block_that_needs_no_systemd_runs() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut verbs = 0;
    for block in blocks("sh").iter().filter(|block| !block.contains("systemctl")) {
        let place = Place::new(&[]);
        for line in block.lines() {
            let command = line.split('#').next().unwrap().trim();
            let words: Vec<&str> = command.split_whitespace().collect();
            match words.as_slice() {
                // Run neither of the next two: the binary is already built, and a script may itself
                // run this test.
                ["cargo", "install", "--path", "."] => {}
                [script] if script.starts_with("scripts/") => {
                    use std::os::unix::fs::PermissionsExt as _;
                    let mode = root.join(script).metadata().unwrap().permissions().mode();
                    assert_eq!(mode & 0o111, 0o111, "{script} is not executable");
                }
                ["dutyd", "serve"] => drop(place.serve()),
                ["dutyd", arguments @ ..] => {
                    let done = place.dutyd(arguments);
                    assert_eq!(done.code, 0, "{line}\n{done:?}");
                    verbs += 1;
                }
                _ => panic!("the test does not know how to run this line: {line}"),
            }
        }
    }
    assert!(verbs >= 5, "{verbs} verbs ran");
}
