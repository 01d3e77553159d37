//! Classifies a bash command from its syntax, without running any part of it.
//!
//! The classifier parses the command with a full grammar and finds every simple command in it, also
//! those that a program such as `env` or `xargs` starts. It looks up each one by the name of its
//! program. Text that the classifier cannot read counts as destructive. So does a computed word
//! that could make the command destructive, such as the name of the program. The classifier catches
//! accidents, not adversaries: the sandbox is the security boundary (SH-1).
//!
//! *Source*: `docs/design/gate.md`, "Commands (bash)"; threat model, SH-1 to SH-6.

mod abbreviated;
mod awk;
mod bracket;
mod builtins;
mod code;
mod destructive;
mod devices;
mod git;
mod http;
mod inner;
mod lexical;
mod options;
mod sed;
mod sql;
mod subcommands;
mod syntax;
mod tree;
mod unknown;
mod variables;
mod verbs;
mod word;
mod wrapper;
mod writers;

use std::collections::HashSet;

use devices::is_device;
use inner::Inner;
use syntax::{Shell, Simple};
use word::Word;

use crate::argv::programs::{Words, words};

/// The maximum number of simple commands in a command line, inclusive; a line with more counts as
/// destructive (SH-3). Commands inside commands count too, and a command that uses a loop variable
/// counts again for each known value.
const MAX_COMMANDS: usize = 50;

/// The maximum length of a text in bytes, inclusive; a longer text is not parsed and counts as
/// destructive.
const MAX_BYTES: usize = 64 * 1024;

/// The maximum depth of commands inside commands, as in `bash -c 'nice ls'`, inclusive; a deeper
/// command counts as destructive.
const DEEPEST: usize = 8;

/// Commands that never run, whatever the job lists. A command matches an entry if its program is
/// the first word of the entry and its arguments contain the other words.
const BLOCKED: &[&str] = &["rm", "sudo", "shutdown", "reboot", "mkfs", "dd", "chmod 777"];

/// Reserved words of bash, which the grammar sometimes parses as the name of a program.
static RESERVED: Words = Words::new(|| {
    words("! { } if then elif else fi for while until do done case esac select function in [[ ]]")
});

/// How much damage a command may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Severity {
    /// No more than any write tool may do.
    #[default]
    Plain,
    /// The command destroys something, or we cannot tell what it does.
    Destructive,
}

/// The classification of a command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Classification {
    /// How much damage the command may do.
    pub severity: Severity,
    /// The first reason found why the command is destructive; `None` if it is plain.
    pub reason: Option<String>,
    /// Why the command must never run; `None` if it is not blocked.
    pub blocked: Option<String>,
    /// The files that the command writes, as far as its text names them: a redirection, or an
    /// argument of a well-known program. Of a computed name, only the known beginning.
    pub writes: Vec<String>,
}

/// Commands that the operator adds to the built-in lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandRules {
    pub blocked: Vec<String>,
    pub destructive: Vec<String>,
}

impl CommandRules {
    /// Classifies a command line. The severity is the highest among its commands.
    #[must_use]
    pub fn classify(&self, command: &str) -> Classification {
        let mut classifier = Classifier {
            rules: self,
            found: Classification::default(),
            commands: 0,
            functions: Vec::new(),
            directory: String::new(),
            counts: false,
            holds_code: false,
        };
        classifier.script(command, Shell::default(), 0);
        if classifier.counts && classifier.holds_code {
            classifier.destructive("cannot be read: bash may run code in a text that it evaluates");
        }
        classifier.found
    }

    /// Tells whether an entry of the operator begins with this word.
    fn begin_with(&self, word: &str) -> bool {
        let mut entries = self.blocked.iter().chain(&self.destructive);
        entries.any(|entry| {
            let first = entry.split_whitespace().next();
            first.is_some_and(|first| first.eq_ignore_ascii_case(word))
        })
    }
}

/// Collects the findings about a command line; of several reasons, it keeps the first.
struct Classifier<'a> {
    rules: &'a CommandRules,
    found: Classification,
    commands: usize,
    /// Names of the functions that the text defines.
    functions: Vec<String>,
    /// The directory of the last `cd`; empty before the first.
    directory: String,
    /// Whether bash evaluates an expression (arithmetic, a test or a subscript), and so runs code
    /// in the values of its variables.
    counts: bool,
    /// Whether a literal that may become such a value may contain code.
    holds_code: bool,
}

impl Classifier<'_> {
    fn destructive(&mut self, reason: impl Into<String>) {
        self.found.severity = Severity::Destructive;
        self.found.reason.get_or_insert_with(|| reason.into());
    }

    fn script(&mut self, text: &str, shell: Shell, depth: usize) {
        if depth > DEEPEST || text.len() > MAX_BYTES {
            return self.destructive("the command is too long or nested too deeply");
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
            self.destructive(format!("the command both creates and runs `{made}`"));
        }
    }

    fn simple(&mut self, command: &Simple, depth: usize) {
        self.commands += 1;
        if self.commands > MAX_COMMANDS || depth > DEEPEST {
            return self.destructive(format!(
                "the command line has more than {MAX_COMMANDS} commands, or nests them too deeply"
            ));
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
        // The grammar parses some assignments as the name of a program.
        if let Some(name) = word.assigned() {
            if name.contains('[') {
                self.destructive("an assignment before the program sets an array element");
            }
            self.assigned(&name);
            self.holds_code |= word.holds_code;
            let words = arguments.to_vec();
            return self.simple(&Simple { words, ..command.without_words() }, depth + 1);
        }
        let Some(mut program) = word.program() else {
            return self
                .destructive("cannot be read: the name of a program is computed at run time");
        };
        self.evaluated(&program, arguments);
        if ["/etc/init.d/", "/etc/rc.d/"].iter().any(|tree| word.beginning().starts_with(tree)) {
            "service".clone_into(&mut program);
        }
        let is_reserved = RESERVED.contains(program.as_str());
        if is_reserved || word.beginning().starts_with('{') {
            return self.destructive("a reserved word of bash stands in place of a program");
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
        let is_fed = command.piped || command.input.is_some();
        let rules = self.rules;
        let is_ruled = |word: &str| rules.begin_with(word);
        if let Some(reason) = unknown::reason(&program, arguments, is_fed, &is_ruled) {
            self.destructive(reason);
        }
        self.record_writes(&program, arguments);
        self.unwrap(&program, arguments, command, depth);
    }

    /// Classifies the commands that this command runs.
    fn unwrap(&mut self, program: &str, arguments: &[Word], outer: &Simple, depth: usize) {
        for inner in wrapper::inner(program, arguments, outer) {
            match inner {
                Inner::Words(words) => {
                    let inner = Simple { words, ..outer.without_words() };
                    self.simple(&inner, depth + 1);
                }
                Inner::Script(text) => {
                    self.script(&text, Shell { piped: outer.piped, is_inner: true }, depth + 1);
                }
                Inner::Assigned(name) => self.assigned(&name),
                Inner::Unknown(why) => self.destructive(why),
            }
        }
    }

    /// Records whether the arguments of a builtin or function may contain code, and whether bash
    /// evaluates the arguments of a builtin.
    fn evaluated(&mut self, program: &str, arguments: &[Word]) {
        let is_builtin = builtins::NAMES.contains(program);
        if is_builtin || self.functions.iter().any(|name| name == program) {
            self.holds_code |= arguments.iter().any(|word| word.holds_code);
        }
        self.counts |= builtins::evaluates(program, arguments);
    }

    /// Checks whether setting a variable changes which program runs or what it loads, or evaluates
    /// the value.
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
            "SHELL",
            "AWS_CONFIG_FILE",
            "AWS_PAGER",
            "CURL_HOME",
            "GH_PAGER",
            "GOFLAGS",
            "PHP_INI_SCAN_DIR",
            "POSIXLY_CORRECT",
            "RIPGREP_CONFIG_PATH",
            "RSYNC_CONNECT_PROG",
            "RSYNC_RSH",
            "SVN_SSH",
            "WGETRC",
            "XDG_CONFIG_HOME",
            "npm_config_script_shell",
        ];
        // bash evaluates the value as arithmetic, which can run a command.
        self.counts |= variables::is_integer(name);
        // git reads many of its settings from `GIT_…` variables. The variables of the author and
        // the committer cannot make it run a program.
        let is_git = name.starts_with("GIT_")
            && !name.starts_with("GIT_AUTHOR_")
            && !name.starts_with("GIT_COMMITTER_");
        if name.is_empty() {
            self.destructive("the command sets a variable whose name is computed at run time");
        } else if EXECUTION.contains(&name)
            || is_git
            || name.starts_with("LUA_INIT")
            || crate::config::is_hijacking(name)
        {
            self.destructive(format!("the variable `{name}` changes what other commands run"));
        }
    }

    /// Records the files that a well-known program writes, and where `cd` goes.
    fn record_writes(&mut self, program: &str, arguments: &[Word]) {
        for word in writers::written(program, arguments) {
            let path = writers::path(word);
            self.home(path);
            // Without a `cd`, the current directory is the working directory.
            if path != "." || !self.directory.is_empty() {
                self.record_write(path);
            }
        }
        if matches!(program, "cd" | "pushd") {
            let mut directories = arguments.iter().map(Word::beginning);
            let directory = directories.find(|text| !text.starts_with('-')).unwrap_or_default();
            self.directory = self.resolve(directory);
        }
    }

    fn record_write(&mut self, path: &str) {
        if !path.is_empty() {
            let path = self.resolve(path);
            self.found.writes.push(path);
        }
    }

    /// Returns a path from the directory of the last `cd` on.
    fn resolve(&self, path: &str) -> String {
        if path.starts_with('/') || self.directory.is_empty() {
            return path.to_owned();
        }
        format!("{}/{path}", self.directory)
    }

    /// Checks whether bash replaces the beginning of a path by a home directory, which we do not
    /// know, as with `$HOME`.
    fn home(&mut self, path: &str) {
        if path.starts_with('~') {
            self.destructive(format!("`{path}` is below a home directory"));
        }
    }

    /// Checks a file that a redirection writes.
    fn written(&mut self, target: &Word) {
        self.home(target.beginning());
        self.record_write(target.beginning());
        match target.known() {
            Some(path) if is_device(path) || target.may_become("/dev/") => {
                self.destructive(format!("`{path}` is a device"));
            }
            Some(path) if runs_later(path) => {
                self.destructive(format!("git runs commands from `{path}`"));
            }
            Some(_) => {}
            None if target.begins_known() => {}
            None => {
                self.destructive("the file to which output is redirected is computed at run time")
            }
        }
    }
}

/// Tells whether git takes commands from this file.
fn runs_later(path: &str) -> bool {
    path.ends_with(".git/config") || path.contains(".git/hooks/") || path.ends_with("/.gitconfig")
}

/// Programs that can create a file with the base name of one of their arguments.
const MAKERS: [&str; 11] =
    ["cp", "mv", "ln", "install", "tee", "curl", "wget", "dd", "tar", "unzip", "git"];

/// Returns the base name of a program that the commands both create (or replace) and run by a path
/// such as `./x`.
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

/// Tells whether the first word of `entry` is the program and the other words of `entry` are among
/// the arguments, without regard to case. `mkfs` also stands for `mkfs.ext4` and the like, and a
/// mode of `chmod` for equivalent modes.
fn is_meant(entry: &str, program: &str, arguments: &[Word]) -> bool {
    // Most entries are about another program.
    let initial = |text: &str| text.chars().next().map(|c| c.to_ascii_lowercase());
    if initial(entry.trim_start()) != initial(program) {
        return false;
    }
    let mut words = entry.split_whitespace();
    let Some(name) = words.next() else { return false };
    let is_program =
        name.eq_ignore_ascii_case(program) || (name == "mkfs" && program.starts_with("mkfs."));
    is_program
        && words.all(|word| {
            arguments.iter().any(|argument| match argument.known() {
                Some(known) if name == "chmod" => destructive::same_mode(word, known),
                // Options differ by case.
                Some(known) if word.starts_with('-') => known == word,
                Some(known) => known.eq_ignore_ascii_case(word),
                None => false,
            })
        })
}

#[cfg(test)]
mod tests;
