//! Finds import cycles between the modules of a folder.
//!
//! A file and the folder of the same name count as one module. Paths are read from the text, and
//! re-exports of a `mod.rs` resolve to the module that they come from. The caller removes tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Module = Vec<String>;

/// The modules of the program, with the paths that each one uses.
#[derive(Default)]
struct Program {
    children: BTreeMap<Module, BTreeSet<String>>,
    paths: BTreeMap<Module, Vec<Module>>,
}

/// Returns each cycle as `folder: a, b, c`.
pub(crate) fn cycles(files: &[(std::path::PathBuf, String)]) -> Vec<String> {
    let mut program = Program::default();
    let sources: Vec<(Module, String)> =
        files.iter().map(|(path, code)| (module_of(path), code.clone())).collect();
    for (module, _) in &sources {
        for depth in 0..module.len() {
            let children = program.children.entry(module[..depth].to_vec()).or_default();
            children.insert(module[depth].clone());
        }
    }
    for (module, code) in &sources {
        let named = paths_in(code).into_iter().filter_map(|path| program.resolve(module, &path));
        let named = named.collect();
        program.paths.insert(module.clone(), named);
    }
    let mut found = Vec::new();
    for folder in program.children.keys().filter(|folder| !folder.is_empty()) {
        let edges = program.edges(folder);
        let reached: BTreeMap<&String, BTreeSet<&String>> =
            edges.keys().map(|from| (from, reach(&edges, from))).collect();
        let circle: Vec<String> = reached
            .iter()
            .filter(|(from, reached)| reached.contains(*from))
            .map(|(from, _)| (*from).clone())
            .collect();
        if !circle.is_empty() {
            found.push(format!("{}: {}", folder.join("/"), circle.join(", ")));
        }
    }
    found
}

/// Returns every module that is reachable over at least one edge.
fn reach<'e>(edges: &'e BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'e String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = edges.get(from).into_iter().flatten().collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(edges.get(next).into_iter().flatten());
        }
    }
    found
}

fn module_of(path: &Path) -> Module {
    let path = path.with_extension("");
    let mut module: Module =
        path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib" || last == "main") {
        module.pop();
    }
    module
}

impl Program {
    /// Returns the path from the crate root; `None` if it leads outside of the crate.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Module> {
        let mut base = module.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => base.clear(),
            "super" | "self" => {}
            first if self.children.get(module)?.contains(first) => {}
            _ => return None,
        }
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "super" => drop(base.pop()),
                "self" | "crate" => {}
                _ => break,
            }
            rest = behind;
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// Returns, for each module of a folder, the sibling modules that it uses.
    fn edges(&self, folder: &[String]) -> BTreeMap<String, BTreeSet<String>> {
        let none = BTreeSet::new();
        let siblings = self.children.get(folder).unwrap_or(&none);
        let own = self.paths.get(folder).into_iter().flatten();
        let exported: BTreeMap<&String, &String> = own
            .filter(|path| path.len() > folder.len() + 1 && path.starts_with(folder))
            .filter_map(|path| Some((path.last()?, &path[folder.len()])))
            .collect();
        let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, paths) in self.paths.iter().filter(|(module, _)| module.starts_with(folder)) {
            let Some(from) = module.get(folder.len()) else { continue };
            for path in paths.iter().filter(|path| path.starts_with(folder)) {
                let Some(name) = path.get(folder.len()) else { continue };
                let to =
                    if siblings.contains(name) { Some(name) } else { exported.get(name).copied() };
                if let Some(to) = to.filter(|to| *to != from) {
                    edges.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        edges
    }
}

/// Returns the paths in imports, with braces resolved, and in the remaining code.
fn paths_in(code: &str) -> Vec<Module> {
    let mut found = Vec::new();
    let mut rest = String::new();
    let mut import: Option<String> = None;
    for line in code.lines() {
        let begins = line.trim_start().trim_start_matches("pub").trim_start();
        let begins = match begins.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            Some((_, behind)) => behind.trim_start(),
            None => begins,
        };
        match (&mut import, begins.strip_prefix("use ")) {
            (Some(open), _) => open.push_str(line),
            (None, Some(path)) => import = Some(path.to_owned()),
            (None, None) => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
        if let Some(whole) = import.take_if(|open| open.contains(';')) {
            resolve_braces("", whole.split(';').next().unwrap_or_default(), &mut found);
        }
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = rest.split(|c| !is_path(c)).filter(|word| word.contains("::"));
    found.extend(words.map(split));
    found
}

fn split(path: &str) -> Module {
    let path = path.split(" as ").next().unwrap_or_default();
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Resolves `a::{b, c::{d, e}}` to `a::b`, `a::c::d` and `a::c::e`.
fn resolve_braces(before: &str, tree: &str, found: &mut Vec<Module>) {
    let Some((head, inner)) = tree.split_once('{') else {
        return found.push(split(&format!("{before}{tree}")));
    };
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let before = format!("{before}{}", head.trim());
    let (mut depth, mut start) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[start..at].trim();
                if !part.is_empty() {
                    resolve_braces(&before, part, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Checks the checker: it finds a cycle through a re-export and a nested import.
#[test]
fn a_circle_is_found() {
    let file = |path: &str, code: &str| (path.into(), code.to_owned());
    let files = [
        file("run/mod.rs", "mod a;\npub use b::{\n    Thing,\n};\n"),
        file("run/a.rs", "use super::Thing;"),
        file("run/b.rs", "use std::fmt;"),
        file("run/b/inner.rs", "fn f() { super::super::a::g() }"),
    ];
    assert_eq!(cycles(&files[..3]), Vec::<String>::new());
    assert_eq!(cycles(&files), ["run: a, b"]);
}
