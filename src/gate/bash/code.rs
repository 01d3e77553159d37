//! Programs that run code: shells, interpreters, and small languages that can start a command.

use super::inner::Inner;
use super::options::operands;
use super::syntax::Simple;
use super::word::Word;
use super::{awk, sed};
use crate::argv::programs::{Reader, is_listed};

/// Python modules that do only what their names say.
const MODULES: &str = "json.tool http.server venv pytest unittest zipfile tarfile base64 calendar platform \
    sysconfig site py_compile compileall mypy black ruff flake8 isort this";

/// Returns what a shell runs: the text of `-c`, a file, or its standard input.
pub(super) fn shell(
    program: &str,
    reader: &Reader,
    arguments: &[Word],
    outer: &Simple,
) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let mut at = 0;
    let mut takes_text = false;
    while let Some(word) = arguments.get(at) {
        let Some(text) = word.known() else {
            return unknown("is given a word that is computed at run time");
        };
        at += 1;
        match text {
            "-" | "--" => break,
            text if is_listed(reader.long_flags, text) => {}
            text if text.starts_with("--") => {
                return unknown("is given an unknown option");
            }
            text if text.starts_with(['-', '+']) && text.len() > 1 => {
                if text.contains(['o', 'O']) {
                    return unknown("is given an option that takes a value");
                }
                takes_text |= text.starts_with('-') && text.contains('c');
            }
            _ => {
                at -= 1;
                break;
            }
        }
    }
    match (takes_text, arguments.get(at).map(Word::known)) {
        (true, Some(Some(text))) => vec![Inner::Script(text.to_owned())],
        (true, _) => unknown("runs text that is computed at run time"),
        (false, Some(_)) => unknown("runs a file as code"),
        (false, None) => match &outer.input {
            Some(text) => vec![Inner::Script(text.clone())],
            None => unknown("runs its standard input"),
        },
    }
}

/// Returns what an interpreter runs; nothing if it runs only a script file that its arguments name.
pub(super) fn interpreter(program: &str, reader: &Reader, arguments: &[Word]) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    if is_listed("awk gawk mawk nawk original-awk", program) {
        return language(program, reader, arguments, awk::only_prints);
    }
    if is_listed("sed gsed ssed", program) {
        return sed(program, reader, arguments);
    }
    // `-m` takes the name of a module, and the arguments after that belong to the module.
    let module = arguments.iter().position(|word| word.known() == Some("-m"));
    let module = module.filter(|_| program.starts_with("py"));
    let before = arguments.get(..module.unwrap_or(arguments.len())).unwrap_or_default();
    let Some(rest) = operands(reader, before) else {
        return unknown("may be given code, or an unknown option");
    };
    if let (true, Some(at)) = (rest.is_empty(), module) {
        return match arguments.get(at + 1).and_then(Word::known) {
            Some("pip") => {
                vec![Inner::Words(arguments.get(at + 1..).unwrap_or_default().to_vec())]
            }
            Some(name) if is_listed(MODULES, name) => Vec::new(),
            _ => unknown("runs an unknown module"),
        };
    }
    match rest.first() {
        None => unknown("runs its standard input"),
        Some(word) => match word.known() {
            Some("-" | "eval" | "repl") => {
                unknown("runs its standard input or an argument as code")
            }
            Some(text) if text.starts_with("/dev/") || text.starts_with("/proc/") => {
                unknown("may run its standard input")
            }
            Some(_) => Vec::new(),
            None if word.begins_known() => Vec::new(),
            None => unknown("may be given code that is computed at run time"),
        },
    }
}

/// Classifies the script that is the first operand of a program with its own language.
fn language(
    program: &str,
    reader: &Reader,
    arguments: &[Word],
    is_harmless: fn(&str) -> bool,
) -> Vec<Inner> {
    let operands = operands(reader, arguments);
    let script =
        operands.map(|words| words.first().map(|word| word.known().is_some_and(is_harmless)));
    match script {
        Some(None | Some(true)) => Vec::new(),
        _ => vec![Inner::Unknown(format!("`{program}` may run commands or write files"))],
    }
}

/// Classifies the scripts of sed: each value of `-e`, or else the first operand. Options may follow
/// that operand.
fn sed(program: &str, reader: &Reader, arguments: &[Word]) -> Vec<Inner> {
    let mut scripts = Vec::new();
    let mut rest = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let text = word.known().unwrap_or_default();
        if text == "--" {
            // An `-e` after it is an operand.
            return vec![Inner::Unknown(format!("`{program}` is given `--`"))];
        }
        let bundle = text.strip_prefix('-').filter(|bundle| !bundle.starts_with(['-', 'i']));
        let attached = text.strip_prefix("--expression=");
        // The script follows a bundle such as `-ne`.
        let script = bundle.and_then(|bundle| bundle.split_once('e'));
        match script.filter(|(flags, _)| flags.chars().all(|flag| reader.flags.contains(flag))) {
            Some((_, "")) => scripts.push(words.next().and_then(Word::known)),
            Some((_, script)) => scripts.push(Some(script)),
            None if attached.is_some() => scripts.push(attached),
            None if text == "--expression" => scripts.push(words.next().and_then(Word::known)),
            None => rest.push(word.clone()),
        }
    }
    // Options may follow the operands.
    let (options, others): (Vec<Word>, Vec<Word>) = rest
        .into_iter()
        .partition(|word| word.beginning().starts_with('-') && word.beginning() != "-");
    if scripts.is_empty() {
        scripts.extend(others.first().map(Word::known));
    }
    let is_harmless = |script: &Option<&str>| script.is_some_and(sed::only_edits);
    if operands(reader, &options).is_some() && scripts.iter().all(is_harmless) {
        Vec::new()
    } else {
        vec![Inner::Unknown(format!("`{program}` may run commands or write files"))]
    }
}
