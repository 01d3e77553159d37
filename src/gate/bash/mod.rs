//! What a command for bash would do, found from its syntax: nothing of it is run.
//!
//! The command is parsed with a real grammar, every simple command in it is found and unwrapped, and each is looked up by the name of its
//! program. What cannot be read or is made at run time counts as destructive. This catches accidents, not adversaries: the fence is the
//! sandbox (SH-1).
//!
//! *Source*: `docs/design/gate.md`, "Commands (bash)"; threat model, SH-1 to SH-5.

mod awk;
mod builtins;
mod code;
mod destructive;
mod git;
mod inner;
mod lexical;
mod options;
mod sed;
mod syntax;
mod tree;
mod variables;
mod word;
mod wrapper;

use std::collections::HashSet;

use inner::Inner;
use syntax::{Shell, Simple};
use word::Word;

use crate::argv::programs::{Words, words};

/// Simple commands of one command that are looked at; more are too much to be known (SH-3).
const MOST_COMMANDS: usize = 50;

/// Bytes of one command that are looked at.
const MOST_BYTES: usize = 64 * 1024;

/// Commands within texts within commands.
const DEEPEST: usize = 8;

/// Never run, whatever the job lists: the words of each must all stand in the command.
const BLOCKED: &[&str] = &["rm", "sudo", "shutdown", "reboot", "mkfs", "dd", "chmod 777"];

/// What bash reads as the beginning or end of something else, and the grammar, in places, as a program.
static RESERVED: Words = Words::new(|| {
    words("! { } if then elif else fi for while until do done case esac select function in [[ ]]")
});

/// How much a command may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Severity {
    /// What any write tool may do.
    #[default]
    Plain,
    /// It destroys, or nobody can tell.
    Destructive,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Classification {
    /// How much it may do.
    pub severity: Severity,
    /// Why it is destructive.
    pub reason: Option<String>,
    /// Why it is never run, if it is not.
    pub blocked: Option<String>,
}

/// What the operator adds to the built-in lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandRules {
    /// Never run.
    pub blocked: Vec<String>,
    /// Admin.
    pub destructive: Vec<String>,
}

impl CommandRules {
    /// Classifies a command.
    #[must_use]
    pub fn classify(&self, command: &str) -> Classification {
        let mut classifier = Classifier {
            rules: self,
            found: Classification::default(),
            commands: 0,
            functions: Vec::new(),
            counts: false,
            holds_code: false,
        };
        classifier.script(command, Shell::default(), 0);
        if classifier.counts && classifier.holds_code {
            classifier.destructive("cannot be read: bash may run a text that it evaluates");
        }
        classifier.found
    }
}

/// Collects what is found; the first reason stays.
struct Classifier<'a> {
    rules: &'a CommandRules,
    found: Classification,
    commands: usize,
    /// Names of the functions that the text makes.
    functions: Vec<String>,
    /// Whether bash evaluates an expression.
    counts: bool,
    /// Whether a literal that may reach an expression may hold code.
    holds_code: bool,
}

impl Classifier<'_> {
    fn destructive(&mut self, reason: impl Into<String>) {
        self.found.severity = Severity::Destructive;
        self.found.reason.get_or_insert_with(|| reason.into());
    }

    fn script(&mut self, text: &str, shell: Shell, depth: usize) {
        if depth > DEEPEST || text.len() > MOST_BYTES {
            return self.destructive("the command is too long or too deep to be found");
        }
        let script = syntax::parse(text, shell);
        self.counts |= script.counts;
        self.holds_code |= script.holds_code;
        self.functions.extend(script.functions);
        for reason in script.reasons {
            self.destructive(reason);
        }
        for command in &script.commands {
            self.simple(command, depth);
        }
        if let Some(made) = made_and_run(&script.commands) {
            self.destructive(format!("`{made}` is made and run by the same text"));
        }
    }

    fn simple(&mut self, command: &Simple, depth: usize) {
        self.commands += 1;
        if self.commands > MOST_COMMANDS || depth > DEEPEST {
            return self.destructive(format!("more than {MOST_COMMANDS} commands"));
        }
        let each = command.for_each_value();
        if !each.is_empty() {
            return each.iter().for_each(|command| self.simple(command, depth));
        }
        for name in &command.assignments {
            self.assigned(name);
        }
        for target in &command.writes {
            self.written(target);
        }
        let Some((word, arguments)) = command.words.split_first() else { return };
        // The grammar takes some assignments for the name of a program.
        if let Some(name) = word.assigned() {
            if name.contains('[') {
                self.destructive("a word before the program sets an element of an array");
            }
            self.assigned(&name);
            let words = arguments.to_vec();
            return self.simple(&Simple { words, ..command.without_words() }, depth + 1);
        }
        let Some(mut program) = word.program() else {
            return self.destructive("cannot be read: the name of a program is computed");
        };
        self.evaluated(&program, arguments);
        if ["/etc/init.d/", "/etc/rc.d/"].iter().any(|tree| word.beginning().starts_with(tree)) {
            "service".clone_into(&mut program);
        }
        let is_reserved = RESERVED.contains(program.as_str());
        if is_reserved || word.beginning().starts_with('{') {
            return self.destructive("a reserved word stands where a program should");
        }
        for entry in BLOCKED.iter().copied().chain(self.rules.blocked.iter().map(String::as_str)) {
            if is_meant(entry, &program, arguments) {
                let reason = format!("`{entry}` is a blocked command");
                self.found.blocked.get_or_insert(reason.clone());
                self.destructive(reason);
            }
        }
        for entry in &self.rules.destructive {
            if is_meant(entry, &program, arguments) {
                self.destructive(format!("`{entry}` is a destructive command"));
            }
        }
        if let Some(reason) = destructive::reason(&program, arguments) {
            self.destructive(reason);
        }
        self.unwrap(&program, arguments, command, depth);
    }

    /// Judges what the command runs in its turn.
    fn unwrap(&mut self, program: &str, arguments: &[Word], outer: &Simple, depth: usize) {
        for inner in wrapper::inner(program, arguments, outer) {
            match inner {
                Inner::Words(words) => {
                    let inner = Simple { words, ..outer.without_words() };
                    self.simple(&inner, depth + 1);
                }
                Inner::Script(text) => {
                    self.script(&text, Shell { piped: outer.piped }, depth + 1);
                }
                Inner::Assigned(name) => self.assigned(&name),
                Inner::Unknown(why) => self.destructive(why),
            }
        }
    }

    /// Notes whether bash evaluates the arguments of a builtin, and whether they may reach an expression with code in them.
    fn evaluated(&mut self, program: &str, arguments: &[Word]) {
        let is_builtin = builtins::NAMES.contains(program);
        if is_builtin || self.functions.iter().any(|name| name == program) {
            self.holds_code |= arguments.iter().any(|word| word.holds_code);
        }
        self.counts |= builtins::evaluates(program, arguments);
    }

    /// A variable that changes which program runs or what it loads.
    fn assigned(&mut self, name: &str) {
        const EXECUTION: &[&str] = &[
            "PATH",
            "SHELLOPTS",
            "BASHOPTS",
            "CDPATH",
            "GLOBIGNORE",
            "HOME",
            "BASH_CMDS",
            "BASH_ALIASES",
        ];
        if name.is_empty() {
            self.destructive("a variable is set whose name is made at run time");
        } else if EXECUTION.contains(&name) || crate::config::is_hijacking(name) {
            self.destructive(format!("`{name}` changes what other commands run"));
        }
    }

    /// A file that is written by redirection.
    fn written(&mut self, target: &Word) {
        match target.known() {
            Some(path) if is_device(path) || target.may_become("/dev/") => {
                self.destructive(format!("`{path}` is a device"));
            }
            Some(path) if runs_later(path) => {
                self.destructive(format!("what stands in `{path}` is run by git"));
            }
            Some(_) => {}
            None if target.begins_known() => {}
            None => self.destructive("where output is written to is made at run time"),
        }
    }
}

/// Tells whether a file is one that git takes commands from.
fn runs_later(path: &str) -> bool {
    path.ends_with(".git/config") || path.contains(".git/hooks/") || path.ends_with("/.gitconfig")
}

/// Programs that make the files that they are given.
const MAKERS: [&str; 11] =
    ["cp", "mv", "ln", "install", "tee", "curl", "wget", "dd", "tar", "unzip", "git"];

/// Returns the program of a text that the text itself makes or replaces.
fn made_and_run(commands: &[Simple]) -> Option<String> {
    let base = |word: &Word| word.known()?.rsplit('/').next().map(str::to_owned);
    let path = |command: &Simple| {
        let word = command.words.first().filter(|word| word.beginning().contains('/'))?;
        base(word)
    };
    if commands.iter().all(|command| path(command).is_none()) {
        return None;
    }
    let mut made = HashSet::new();
    for command in commands {
        let program = command.words.first().and_then(Word::program);
        let makes = program.is_some_and(|program| MAKERS.contains(&program.as_str()));
        let named = command.words.iter().skip(1).filter(|_| makes).chain(&command.writes);
        made.extend(named.filter_map(base));
    }
    commands.iter().filter_map(path).find(|name| made.contains(name))
}

/// Tells whether a path is below `/dev` and is not one of the harmless entries.
fn is_device(path: &str) -> bool {
    if !path.starts_with('/') && !path.contains("..") {
        return false;
    }
    const HARMLESS: &[&str] = &["null", "zero", "full", "stdin", "stdout", "stderr", "tty"];
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    match parts.as_slice() {
        ["dev", name] => !HARMLESS.contains(name),
        // The network, which bash speaks itself.
        ["dev", "tcp" | "udp", ..] => parts.contains(&".."),
        ["dev", "fd" | "shm", ..] => parts.contains(&".."),
        ["dev", ..] | ["proc", "sysrq-trigger"] | ["proc", "sys", ..] | ["sys", ..] => true,
        // A process's view of the root is the root.
        ["proc", _, "root", rest @ ..] => is_device(&format!("/{}", rest.join("/"))),
        // A way round that ends there.
        parts => parts.contains(&"..") && parts.contains(&"dev"),
    }
}

/// Tells whether the words of `entry` are the program and some of the arguments.
fn is_meant(entry: &str, program: &str, arguments: &[Word]) -> bool {
    let mut words = entry.split_whitespace();
    let Some(name) = words.next() else { return false };
    let is_program = name == program || (name == "mkfs" && program.starts_with("mkfs."));
    is_program
        && words.all(|word| {
            arguments.iter().any(|argument| match argument.known() {
                Some(known) if name == "chmod" => destructive::same_mode(word, known),
                Some(known) => known == word,
                None => false,
            })
        })
}

#[cfg(test)]
mod tests;
