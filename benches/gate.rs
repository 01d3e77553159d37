//! Measures the gate: a decision on a write to a file, for a job that lists 21 tools, and the
//! classification of bash command lines.
#![expect(clippy::unwrap_used, reason = "a benchmark whose setup fails stops at once")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use dutyd::config::{Autonomy, Listed, Policy, ReadPolicy};
use dutyd::domain::{Category, DecisionKind, ToolName};
use dutyd::gate::{
    Access, CallFacts, CommandRules, GateRules, PathRules, Resource, Severity, Spent, decide,
};
use serde_json::{Map, json};

fn rules() -> GateRules {
    let listed = (0..20)
        .map(|n| Listed { tool: ToolName::parse(&format!("tool_{n}")).unwrap(), args: None })
        .chain([Listed { tool: ToolName::parse("edit_file").unwrap(), args: None }])
        .collect();
    GateRules {
        job: "j".to_owned(),
        has_person: false,
        policy: Policy {
            autonomy: Autonomy::Supervised,
            read: ReadPolicy::All,
            write: listed,
            admin: Vec::new(),
            approve: Default::default(),
            deny: ["reboot".to_owned()].into(),
            narrowed: Vec::new(),
        },
        paths: PathRules {
            working_dir: "/srv/app".into(),
            writable: vec!["/srv/app".into(), "/etc/app".into()],
            denied: ["/root/.ssh", "/root/.gnupg", "/etc/shadow", "/srv/app/keys"]
                .map(Into::into)
                .to_vec(),
            own: vec!["/etc/dutyd".into(), "/var/lib/dutyd".into()],
            ..PathRules::default()
        },
        commands: CommandRules::default(),
        domains: Default::default(),
        rate: None,
        max_tool_calls: 200,
        max_files_modified: 50,
        max_lines_changed: 5000,
    }
}

fn decision(criterion: &mut Criterion) {
    let (rules, spent) = (rules(), Spent::default());
    let resources = [Resource::file("src/deep/in/the/tree/main.rs", Access::Write)];
    let mut arguments = Map::new();
    arguments.insert("file_path".to_owned(), json!("src/deep/in/the/tree/main.rs"));
    let facts = CallFacts {
        tool: "edit_file",
        category: Category::Write,
        destructive_when: &[],
        resources: &resources,
        lines: 3,
        spent: &spent,
    };
    assert_eq!(decide(&rules, facts, &arguments).kind, DecisionKind::Allow);
    criterion.bench_function("a decision over a file", |bencher| {
        bencher.iter(|| decide(black_box(&rules), black_box(facts), &arguments));
    });
}

fn command(criterion: &mut Criterion) {
    let rules = CommandRules::default();
    let part = "grep -rn --include='*.log' 'connection reset' /var/log/app /srv/app/log | sort -u | head -n 20 && for f in a b; do wc -l \"/srv/app/$f.log\"; done; ";
    let line = part.repeat(1024 / part.len() + 1);
    assert_eq!(rules.classify(&line).severity, Severity::Plain);
    criterion.bench_function("a command line of 1 KB", |bencher| {
        bencher.iter(|| rules.classify(black_box(&line)));
    });
    let mut parser = tree_sitter::Parser::new();
    parser.set_language(&tree_sitter_bash::LANGUAGE.into()).unwrap();
    criterion.bench_function("the same line, parsed by the grammar alone", |bencher| {
        bencher.iter(|| parser.parse(black_box(&line), None));
    });
    let tangled =
        "ls | | d2>&1 |ls | tail tbuild |ls | tail ts |ls.| tail tbuild | d2>&1 |ls ".repeat(800);
    assert_eq!(rules.classify(&tangled).severity, Severity::Destructive);
    criterion.bench_function("a command line of 60 KB that is not bash", |bencher| {
        bencher.iter(|| rules.classify(black_box(&tangled)));
    });
}

criterion_group!(benches, decision, command);
criterion_main!(benches);
