//! Enforces house rules that the compiler does not check: import order, imports without cycles,
//! calls that only certain files may make, and rule ids with their tests.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a failing test should panic immediately"
)]

#[path = "tidy/cycles.rs"]
mod cycles;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each folder may import only from those before it. *Source*: `ARCHITECTURE.md`.
const ORDER: &[&str] = &[
    "domain",
    "text",
    "argv",
    "schedule",
    "catalogue",
    "config",
    "gate",
    "agent",
    "provider",
    "process",
    "tools",
    "store",
    "sinks",
    "run",
    "daemon",
    "server",
    "cli",
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
    assert!(found.len() > 50, "only {} source files found", found.len());
    found
}

/// Returns the numbered lines of a file, without its tests and comments.
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
                        "src/{}:{at} imports from {name}, which comes after {}",
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
fn imports_inside_a_folder_form_no_circle() {
    let join = |(path, text): (PathBuf, String)| {
        let lines: Vec<String> = code(&path, &text).into_iter().map(|(_, line)| line).collect();
        (path, lines.join("\n"))
    };
    let files: Vec<(PathBuf, String)> = sources().into_iter().map(join).collect();
    assert_eq!(cycles::cycles(&files), Vec::<String>::new());
}

#[test]
fn what_stands_in_one_place_stands_nowhere_else() {
    let rules: &[(&str, &[&str])] = &[
        ("Command::new(", &["process/exec_relay.rs", "process/fork_server.rs"]),
        ("Connection::open", &["store/db.rs"]),
        ("Utc::now(", &["clock.rs"]),
        ("SystemTime::now(", &["clock.rs"]),
        ("env::vars", &["config/environment.rs"]),
        (
            "unsafe ",
            &[
                "process/group_hold.rs",
                "process/fork_server.rs",
                "process/memory.rs",
                "process/sandbox.rs",
                "process/shim.rs",
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        for (at, line) in code(&path, &text) {
            for (word, places) in rules {
                if line.contains(word) && !places.iter().any(|place| path == Path::new(place)) {
                    wrong.push(format!(
                        "src/{}:{at} has `{word}`, which is allowed only in {places:?}",
                        path.display()
                    ));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Folders and files that read stored or received data.
const READERS: &[&str] =
    &["agent/rebuild.rs", "agent/rebuild", "cli", "daemon", "run", "server", "store"];

/// Checks that each default for data that could not be read is in `tests/tidy/defaults.txt`, a line
/// `FILE COUNT REASON` for each file. A default turns damage into a decision, and often into the wider
/// right (STATE-7).
#[test]
fn a_default_for_what_cannot_be_read_has_a_reason() {
    let pattern =
        regex::Regex::new(r"unwrap_or_default\(\)|\.ok\(\)|^\s*_ =>|unwrap_or\(").unwrap();
    let list = include_str!("tidy/defaults.txt").lines().map(|line| {
        let mut parts = line.splitn(3, ' ');
        let (file, count) = (parts.next().unwrap(), parts.next().unwrap().parse().unwrap());
        assert!(parts.next().is_some_and(|reason| !reason.is_empty()), "no reason: {line}");
        (file.to_owned(), count)
    });
    let listed: std::collections::BTreeMap<String, usize> = list.collect();
    let mut found = std::collections::BTreeMap::new();
    for (path, text) in sources() {
        let is_reader = READERS.iter().any(|reader| path.starts_with(reader));
        if !is_reader || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let count = code(&path, &text).iter().filter(|(_, line)| pattern.is_match(line)).count();
        if count > 0 {
            found.insert(path.display().to_string(), count);
        }
    }
    let files: BTreeSet<&String> = listed.keys().chain(found.keys()).collect();
    let wrong = files.into_iter().filter(|file| listed.get(*file) != found.get(*file));
    let wrong: Vec<String> = wrong
        .map(|file| {
            let (has, expected) = (found.get(file).unwrap_or(&0), listed.get(file).unwrap_or(&0));
            format!("src/{file} has {has} defaults, tests/tidy/defaults.txt has {expected}")
        })
        .collect();
    assert_eq!(wrong, Vec::<String>::new(), "end the thing with a reason, or give one in the list");
}

/// Files that look for events in a transcript: to continue a run, or to show it to people. The folder
/// `store` reads transcripts too.
const SEARCHERS: &[&str] =
    &["agent/rebuild.rs", "agent/recorded.rs", "cli/show.rs", "run/history.rs", "server/follow.rs"];

#[test]
fn a_transcript_is_searched_in_one_place() {
    let pattern = regex::Regex::new(
        r"\[Event\]|\[ReadLine\]|Vec<Event>|Vec<ReadLine>|read_lines|raw_lines|(filter_map|and_then)\(known\)|events\.iter\(\)",
    )
    .unwrap();
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let is_reader =
            ["cli", "daemon", "run", "server"].iter().any(|folder| path.starts_with(folder));
        let is_searcher = SEARCHERS.iter().any(|file| path == Path::new(file));
        if !is_reader || is_searcher || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let lines = code(&path, &text).into_iter().filter(|(_, line)| pattern.is_match(line));
        wrong.extend(
            lines.map(|(at, line)| format!("src/{}:{at}: {}", path.display(), line.trim())),
        );
    }
    assert_eq!(wrong, Vec::<String>::new(), "ask `RunHistory` instead");
}

/// Two values that travel together are a type with a name; two that do not are two parameters.
#[test]
fn a_parameter_is_not_a_tuple() {
    let regex = |pattern: &str| regex::Regex::new(pattern).unwrap();
    let tuple = regex(r"^\s*(mut )?(\([a-z_, ]+\)|[a-z_]+): &?(mut )?\((\w|&)");
    // A parenthesis around a type of a trait is not a tuple.
    let of_trait = regex(r": &?(mut )?\((dyn|impl)");
    let in_one_line = regex(r"fn \w+(<[^(]*>)?\([^)]*\([a-z_]+, [a-z_]+\): \(");
    let begin = regex(r"\bfn \w+(<.*>)?\($");
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let mut is_head = false;
        for (at, line) in code(&path, &text) {
            let is_tuple = tuple.is_match(&line) && !of_trait.is_match(&line);
            if is_head && is_tuple || in_one_line.is_match(&line) {
                wrong.push(format!("src/{}:{at}: {}", path.display(), line.trim()));
            }
            // The parameters end at the line with the return type or the body.
            is_head = begin.is_match(&line) || is_head && !line.trim_start().starts_with(')');
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "give the values a type, or two parameters");
}

#[test]
fn the_loop_and_the_book_have_no_io() {
    const IO: &[&str] = &[
        "std::fs",
        "tokio::fs",
        "std::net",
        "tokio::net",
        "std::process",
        "tokio::process",
        "rusqlite",
        "reqwest",
    ];
    // The book has no task, no clock and no ledger either.
    const PURE: &[&str] =
        &["async ", ".await", "spawn", "Ledger", "StateDir", "now()", "generate()"];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let is_book = path.starts_with("daemon/book") || path == Path::new("daemon/book.rs");
        let forbidden = match () {
            () if path.components().any(|part| part.as_os_str() == "tests") => continue,
            () if is_book => IO.iter().chain(PURE),
            () if path.starts_with("agent") => IO.iter().chain(&[]),
            () => continue,
        };
        for (at, line) in code(&path, &text) {
            let named = forbidden.clone().filter(|word| line.contains(**word));
            wrong.extend(named.map(|word| format!("src/{}:{at} names {word}", path.display())));
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
                "src/{} has {lines} lines without its tests; the limit is 500",
                path.display()
            ));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// Rules of the threat model that need a test, by family.
const PROVEN: &[(&str, &[u8])] = &[
    ("ARG", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
    ("CFG", &[1, 2, 3, 4, 5, 6, 7]),
    ("CRON", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("ENV", &[1, 2, 3, 4, 5, 6]),
    ("FS", &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ("LLM", &[1, 2, 3, 4, 5, 6]),
    ("LOG", &[1, 2, 3, 4, 5, 6]),
    ("MCP", &[1, 2, 3, 4, 5, 6]),
    ("NET", &[1, 2, 3, 4, 5, 6, 7]),
    ("POL", &[1, 2, 3, 4, 5, 6, 8, 9, 10, 11]),
    ("PROC", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ("PROV", &[1, 2, 3, 4, 5, 6, 8]),
    ("SEC", &[1, 2, 3, 4, 5, 6]),
    ("SH", &[1, 2, 3, 4, 5, 6]),
    ("STATE", &[1, 2, 3, 4, 5, 6, 7, 8]),
    ("UNIT", &[1, 2, 3, 4]),
    ("WEB", &[1, 6, 7, 8, 10]),
];

/// Rules without a test yet, by family, with the feature that they wait for.
const LATER: &[(&str, &[u8], &str)] =
    &[("POL", &[7], "subagents"), ("WEB", &[2, 3, 4, 5, 9], "web")];

fn ids<'a>(family: &'a str, numbers: &'a [u8]) -> impl Iterator<Item = String> + 'a {
    numbers.iter().map(move |n| format!("{family}-{n}"))
}

/// Checks that every rule cited in the code or listed above is in `docs/threat-model.md`.
#[test]
fn rules_that_are_cited_stand_in_the_threat_model() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/threat-model.md"))
            .unwrap();
    let families: Vec<&str> = PROVEN.iter().map(|(family, _)| *family).collect();
    let cited = regex::Regex::new(r"\b([A-Z]{2,5})-([0-9]{1,2})\b").unwrap();
    let rules_of = |text: &str| -> BTreeSet<String> {
        let rules = cited.captures_iter(text).filter(|rule| families.contains(&&rule[1]));
        rules.map(|rule| rule[0].to_owned()).collect()
    };
    let documented = rules_of(&page);
    let known = PROVEN.iter().copied().chain(LATER.iter().map(|(family, all, _)| (*family, *all)));
    let known: BTreeSet<String> =
        known.flat_map(|(family, numbers)| ids(family, numbers)).collect();
    assert_eq!(documented, known);
    for (path, text) in sources() {
        let missing: Vec<_> = rules_of(&text).difference(&documented).cloned().collect();
        assert!(missing.is_empty(), "src/{} cites {missing:?}", path.display());
    }
}

/// Checks that every page and heading cited in the code exists.
#[test]
fn pages_that_are_cited_are_there() {
    let cited = regex::Regex::new(r#"`((?:docs/)?design/[a-z]+\.md)`(?:, "([^"]+)")?"#).unwrap();
    let mut count = 0;
    for (path, text) in sources() {
        // A citation can span two lines of a comment.
        let text = text.lines().map(|line| line.trim().trim_start_matches('/')).collect::<String>();
        for citation in cited.captures_iter(&text) {
            let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(&citation[1]);
            let page = std::fs::read_to_string(page).unwrap_or_else(|error| {
                panic!("src/{} cites {}: {error}", path.display(), &citation[1])
            });
            if let Some(heading) = citation.get(2) {
                let is_heading =
                    |line: &str| line.trim_start_matches('#') == format!(" {}", heading.as_str());
                assert!(
                    page.lines().any(is_heading),
                    "src/{} cites {}",
                    path.display(),
                    &citation[0]
                );
            }
            count += 1;
        }
    }
    assert!(count > 20, "only {count} citations found");
}

/// Returns the tests below the comments `// TAG ID, ID`, by id.
fn tagged(tag: &str) -> std::collections::BTreeMap<String, Vec<String>> {
    let mut found = std::collections::BTreeMap::<String, Vec<String>>::new();
    let tag = format!("// {tag} ");
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let more = std::fs::read_dir(tests).unwrap().map(|entry| entry.unwrap().path());
    let more = more.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let more = more.map(|path| std::fs::read_to_string(path).unwrap());
    for text in sources().into_iter().map(|(_, text)| text).chain(more) {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(ids) = line.strip_prefix(&tag) else { continue };
            let test =
                lines[at..].iter().find_map(|line| line.split_once("fn ")?.1.split_once('('));
            for id in ids.split(", ") {
                // A comment without a test below it makes its id fail.
                let (test, _) = test.unwrap_or(("?", ""));
                found.entry(id.trim().to_owned()).or_default().push(test.to_owned());
            }
        }
    }
    found
}

/// The documents that asked for dutyd number 388 requirements. Their list is not part of this
/// repository.
const REQUIREMENTS: usize = 388;

/// Returns the rows of `docs/conformance.md`: the heading of the table, the id and the last cell.
fn conformance() -> Vec<(&'static str, &'static str, &'static str)> {
    let sections = include_str!("../docs/conformance.md").split("\n## ").skip(1);
    let rows = sections.flat_map(|section| {
        let heading = section.lines().next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.map(move |row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (heading, cells[1].trim_matches('`'), cells[3])
        })
    });
    rows.collect()
}

/// Checks that `docs/conformance.md` has each requirement once, and that its first table lists for each
/// requirement exactly the tests that name it.
#[test]
fn requirements_are_met_by_tests_that_name_them() {
    let rows = conformance();
    let mut known = BTreeSet::new();
    let twice: Vec<&str> =
        rows.iter().map(|(_, id, _)| *id).filter(|id| !known.insert(*id)).collect();
    assert_eq!(twice, [""; 0], "an id has one row");
    assert_eq!(known.len(), REQUIREMENTS);
    let mut named = tagged("conforms");
    let mut wrong = Vec::new();
    for (_, id, tests) in rows.iter().filter(|(heading, ..)| *heading == "Built, with its test") {
        let listed: BTreeSet<&str> = tests.split(", ").map(|test| test.trim_matches('`')).collect();
        let of_tags = named.remove(*id).unwrap_or_default();
        let of_tags: BTreeSet<&str> = of_tags.iter().map(String::as_str).collect();
        if listed != of_tags {
            wrong.push(format!("{id}: the page lists {listed:?}, tagged are {of_tags:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(named.is_empty(), "docs/conformance.md needs a row with a test for {named:?}");
}

/// Prints each rule with its tests. Every rule in [`PROVEN`] needs a test, and no rule in [`LATER`]
/// may have one.
#[test]
fn rules_are_proven_by_tests_that_name_them() {
    let proven = tagged("proves");
    for (rule, tests) in &proven {
        println!("{rule}: {}", tests.join(", "));
    }
    for (family, numbers, subject) in LATER {
        for rule in ids(family, numbers) {
            println!("{rule}: {subject}");
            assert!(!proven.contains_key(&rule), "{rule} has a test: move it to PROVEN");
        }
    }
    let expected: Vec<String> =
        PROVEN.iter().flat_map(|(family, numbers)| ids(family, numbers)).collect();
    for rule in proven.keys() {
        assert!(expected.contains(rule), "{rule} has a test: add it to PROVEN");
    }
    for rule in expected {
        assert!(proven.contains_key(&rule), "no test proves {rule}");
    }
}

/// Checks that public types and functions have a doc comment.
#[test]
fn public_types_and_functions_have_doc_comments() {
    const ITEMS: [&str; 8] = ["fn", "async", "const", "struct", "enum", "trait", "type", "unsafe"];
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let numbered = code(&path, &text);
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in &numbered {
            let item = line.trim_start().strip_prefix("pub ");
            let word = item.and_then(|item| item.split(' ').next());
            // A macro takes the doc comments of its items from its caller.
            if !word.is_some_and(|word| ITEMS.contains(&word)) || line.contains('$') {
                continue;
            }
            // Attributes may stand between the comment and the item.
            let above = lines[..number - 1].iter().rev();
            let mut above = above.skip_while(|line| {
                let line = line.trim();
                !line.is_empty() && !line.starts_with("//") && !line.ends_with(['{', '}', ';'])
            });
            if !above.next().is_some_and(|line| line.trim_start().starts_with("///")) {
                wrong.push(format!("src/{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
