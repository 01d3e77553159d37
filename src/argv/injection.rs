//! Finds templates that would let a model choose what runs (ARG-13).
//!
//! The walk reads the arguments as the program would, by the table in `programs.rs`. After an
//! option that is not in the table, the walk cannot tell what the later arguments mean, so it
//! counts them as dangerous. It reads on in two cases: after a literal `--name=value`, and if only
//! the known options of a program run something ([`Kind::Options`]).

use super::programs::{self, Kind, Reader, Stdin, is_listed};
use crate::text::template::{Piece, Template};

/// The parts of a program's arguments and standard input that the program would run.
#[derive(Debug, Default)]
pub(crate) struct Reading<'a> {
    /// Positions of the arguments in which a placeholder names what runs, ascending.
    pub(crate) positions: Vec<usize>,
    /// Whether standard input is code, or may be.
    pub(crate) runs_stdin: bool,
    /// The script of an interpreter, if every call uses the same one.
    pub(crate) script: Option<&'a str>,
}

/// Reads arguments as the program would.
pub(crate) fn read<'a>(program: &str, args: &[&'a Template]) -> Reading<'a> {
    let mut walk = Walk { args, found: Reading::default() };
    walk.program(program, 0);
    walk.found.positions.sort_unstable();
    walk.found.positions.dedup();
    walk.found
}

struct Walk<'w, 'a> {
    args: &'w [&'a Template],
    found: Reading<'a>,
}

/// How one argument is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Positional,
    /// `--`.
    End,
    Flag,
    Valued,
    /// The first positional is code (`sh -c`).
    Text,
    /// Standard input is the script (`sh -s`).
    Stdin,
    Code(Value),
    Last(Value),
    Loads(Value),
    Unclear,
}

/// Where the value of an option is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Attached,
    Next,
}

impl<'a> Walk<'_, 'a> {
    fn program(&mut self, program: &str, start: usize) {
        let base = base_name(program);
        if matches!(base, "find" | "gfind" | "fd" | "fdfind") {
            self.find(start);
        }
        for verb in programs::verbs(base) {
            let is_verb =
                |at: &usize| self.literal(*at).is_some_and(|word| is_listed(verb.verbs, word));
            // The word after an option may be the value of that option. The subcommand then
            // follows later.
            let may_be_value = |at: usize| {
                let before = at.checked_sub(1).and_then(|before| self.literal(before));
                before.is_some_and(|word| word.starts_with('-') && !word.contains('='))
            };
            let mut places = Vec::new();
            for at in (start..self.args.len()).filter(is_verb) {
                places.push(at);
                if !may_be_value(at) {
                    break;
                }
            }
            for at in places {
                self.walk(base, &verb.reader, at + 1);
            }
        }
        if let Some(reader) = programs::reader(base) {
            self.walk(base, reader, start);
        }
    }

    fn walk(&mut self, base: &str, reader: &Reader, start: usize) {
        let args = self.args;
        let (mut at, mut before) = (start, reader.before);
        let (mut is_open, mut is_given, mut is_text) = (true, false, false);
        self.found.runs_stdin |= reader.stdin == Stdin::Always;
        if reader.kind == Kind::Every || (base.ends_with("tar") && self.has_bare_bundle(start)) {
            return self.rest(start);
        }
        while let Some(arg) = args.get(at) {
            let read = if is_open { option(reader, arg) } else { Read::Positional };
            match read {
                Read::Code(_)
                    if matches!(reader.kind, Kind::Program | Kind::Within | Kind::Line) =>
                {
                    return self.rest(at);
                }
                Read::Code(value) | Read::Last(value) | Read::Loads(value) => {
                    self.code(at, value);
                    is_given |= !matches!(read, Read::Loads(_));
                    if matches!(read, Read::Last(_)) {
                        return;
                    }
                }
                Read::End => is_open = false,
                Read::Text => is_text = true,
                Read::Stdin => self.found.runs_stdin = true,
                Read::Unclear if reader.kind == Kind::Options => self.mark(at),
                Read::Unclear => return self.rest(at),
                Read::Flag | Read::Valued => {}
                Read::Positional if before > 0 => {
                    before -= 1;
                    if reader.kind == Kind::Within {
                        self.mark(at);
                    }
                }
                Read::Positional if is_assignment(base, arg) => {}
                Read::Positional if reader.kind == Kind::Options => self.mark_command(at),
                Read::Positional if reader.kind == Kind::Permuted && is_given => {}
                Read::Positional if is_given => return,
                Read::Positional => {
                    self.positional(reader, at, is_text);
                    is_given = true;
                    if reader.kind != Kind::Permuted {
                        return;
                    }
                }
            }
            at = self.behind(at, read);
        }
        self.found.runs_stdin |= reader.stdin == Stdin::Unless && !is_given;
    }

    /// Handles the first positional: a script, a program or a shell line.
    fn positional(&mut self, reader: &Reader, at: usize, is_text: bool) {
        let text = self.literal(at);
        self.mark(at);
        match (reader.kind, text) {
            (Kind::Script | Kind::Shell | Kind::Permuted, Some(text)) => {
                self.found.runs_stdin |= is_stdin(text);
                self.found.script = Some(text).filter(|_| !is_text);
            }
            (Kind::Script | Kind::Shell | Kind::Permuted, None) => {}
            (Kind::Line, Some(line)) if line.contains(char::is_whitespace) => {
                let first = line.split_whitespace().next().unwrap_or_default();
                let reader = programs::reader(base_name(first));
                self.found.runs_stdin |= reader.is_some_and(|reader| reader.stdin != Stdin::Data);
                self.marks(at);
            }
            (Kind::Line, Some(program)) => {
                self.program(program, at + 1);
                self.marks(at);
                self.found.script = None;
            }
            (_, Some(program)) => {
                let is_known = programs::reader(base_name(program)).is_some();
                self.found.runs_stdin |= reader.stdin == Stdin::Words && is_known;
                self.program(program, at + 1);
            }
            (_, None) => self.rest(at),
        }
    }

    /// Marks the programs that `find` and `fd` run for each file.
    fn find(&mut self, start: usize) {
        const RUN: &str = "-exec -execdir -ok -okdir -x -X --exec --exec-batch";
        for at in start..self.args.len() {
            if self.literal(at).is_some_and(|word| is_listed(RUN, word)) {
                self.mark(at + 1);
                if let Some(next) = self.literal(at + 1) {
                    self.program(next, at + 2);
                }
            }
        }
    }

    fn code(&mut self, at: usize, value: Value) {
        let at = if value == Value::Next { at + 1 } else { at };
        self.mark(at);
        self.found.runs_stdin |= self.literal(at).is_some_and(is_stdin);
    }

    /// Marks an argument that begins with `+`, which some programs read as a command, as in
    /// `less +{{command}}`.
    fn mark_command(&mut self, at: usize) {
        let first = self.args.get(at).and_then(|arg| arg.pieces().first());
        if matches!(first, Some(Piece::Literal(text)) if text.starts_with('+')) {
            self.mark(at);
        }
    }

    /// Marks everything from `at` on, because any of it may run.
    fn rest(&mut self, at: usize) {
        self.marks(at);
        self.found.runs_stdin = true;
    }

    fn marks(&mut self, at: usize) {
        (at..self.args.len()).for_each(|at| self.mark(at));
    }

    fn mark(&mut self, at: usize) {
        if self.args.get(at).is_some_and(|arg| arg.placeholders().next().is_some()) {
            self.found.positions.push(at);
        }
    }

    fn literal(&self, at: usize) -> Option<&'a str> {
        self.args.get(at).copied().and_then(Template::literal)
    }

    /// Detects options without a dash, as in `tar cIf PROGRAM a.tar`. Their values follow in the
    /// order of the letters.
    fn has_bare_bundle(&self, start: usize) -> bool {
        self.literal(start)
            .is_some_and(|text| !text.starts_with('-') && text.contains(['F', 'I', 'T']))
    }

    /// Returns the position after an argument and its value. The walk also reads a value as an
    /// option if it looks like one.
    fn behind(&self, at: usize, read: Read) -> usize {
        let takes_next = matches!(
            read,
            Read::Valued
                | Read::Code(Value::Next)
                | Read::Last(Value::Next)
                | Read::Loads(Value::Next)
        );
        let is_option =
            self.literal(at + 1).is_some_and(|text| text.starts_with('-') && text.len() > 1);
        at + if takes_next && !is_option { 2 } else { 1 }
    }
}

fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Tells whether a word names standard input, alone or as the value of an option.
fn is_stdin(text: &str) -> bool {
    let value = match text.strip_prefix('-') {
        Some(option) => option.split_once('=').map_or(option, |(_, value)| value),
        None => text,
    };
    let is_short = text.len() == 3 && text.starts_with('-') && text.ends_with('-');
    text == "-"
        || is_short
        || ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"].contains(&value)
        || (text.starts_with('-') && text.ends_with("/dev/stdin"))
}

/// Tells whether an argument is an assignment, as in `env A=b PROGRAM`.
fn is_assignment(base: &str, arg: &Template) -> bool {
    matches!(base, "env" | "sudo" | "doas")
        && matches!(arg.pieces().first(), Some(Piece::Literal(text)) if text.contains('='))
}

fn option(reader: &Reader, arg: &Template) -> Read {
    let Some(Piece::Literal(head)) = arg.pieces().first() else { return Read::Positional };
    let is_whole = arg.literal().is_some();
    let is_option = head.starts_with('-') || (head.starts_with('+') && !reader.text.is_empty());
    match head.as_str() {
        "-" if is_whole => Read::Positional,
        "--" if is_whole => Read::End,
        _ if !is_option => Read::Positional,
        head => long(reader, head, is_whole).unwrap_or_else(|| bundle(reader, head, is_whole)),
    }
}

/// Reads a long option; `None` if it is a bundle of short ones.
fn long(reader: &Reader, head: &str, is_whole: bool) -> Option<Read> {
    let (name, value) = match head.split_once('=') {
        Some((name, _)) => (name, Value::Attached),
        None if is_whole => (head, Value::Next),
        None => return head.starts_with("--").then_some(Read::Unclear),
    };
    let plain = if value == Value::Next { Read::Valued } else { Read::Flag };
    let lists = [
        (reader.long_flags, Read::Flag),
        (reader.long_valued, plain),
        (reader.long_code, Read::Code(value)),
        (reader.long_loads, Read::Loads(value)),
        (reader.long_runs, Read::Loads(value)),
    ];
    let exact = lists.iter().find(|(list, _)| is_listed(list, name));
    // An abbreviation that matches several options counts as the most dangerous of them.
    let found = exact.or_else(|| lists.iter().rev().find(|(list, _)| is_short_form(name, list)));
    match found {
        Some((_, read)) => Some(*read),
        None if !name.starts_with("--") => None,
        None if reader.kind == Kind::Options => Some(Read::Flag),
        None if is_whole && value == Value::Attached => Some(Read::Flag),
        None => Some(Read::Unclear),
    }
}

/// Tells whether `name` abbreviates a long option in `list`.
fn is_short_form(name: &str, list: &str) -> bool {
    let is_long = name.len() > 3 && name.starts_with("--");
    is_long && list.split_ascii_whitespace().any(|known| known.starts_with(name))
}

/// Reads a bundle of short options such as `-lc`, or a short option with its value such as `-n5`.
fn bundle(reader: &Reader, head: &str, is_whole: bool) -> Read {
    let mut read = Read::Flag;
    let mut is_known = true;
    let mut letters = head.chars();
    letters.next();
    while let Some(letter) = letters.next() {
        let is = |set: &str| set.contains(letter);
        let is_last = is_whole && letters.as_str().is_empty();
        let value = if is_last { Value::Next } else { Value::Attached };
        if is(reader.last) {
            return Read::Last(value);
        } else if is(reader.code) {
            return Read::Code(value);
        } else if is(reader.loads) || is(reader.runs) {
            return Read::Loads(value);
        } else if is(reader.valued) {
            return if is_last { Read::Valued } else { Read::Flag };
        } else if is(reader.attached) {
            return read;
        } else if is(reader.text) {
            read = Read::Text;
        } else if is(reader.reads) {
            read = if read == Read::Text { read } else { Read::Stdin };
        } else if !is(reader.flags) {
            if reader.kind != Kind::Options {
                return Read::Unclear;
            }
            is_known = false;
        }
    }
    // A placeholder after known letters can add unknown ones.
    if is_whole || !is_known { read } else { Read::Unclear }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(program: &str, args: &[&str], look: impl FnOnce(Reading<'_>) -> T) -> T {
        let args: Vec<Template> = args.iter().map(|arg| Template::parse(arg).unwrap()).collect();
        look(read(program, &args.iter().collect::<Vec<_>>()))
    }

    // proves ARG-13
    #[test]
    fn the_position_that_names_what_runs_is_found() {
        let check = |program: &str, args: &[&str], expected: &[usize]| {
            let found = with(program, args, |reading| reading.positions);
            assert_eq!(found, expected, "{program} {args:?}");
        };
        check("sh", &["-c", "{{x}}"], &[1]);
        check("/bin/bash", &["-lc", "echo {{x}}"], &[1]);
        check("bash", &["-c", "echo \"$1\"", "_", "{{x}}"], &[]);
        check("bash", &["{{script}}"], &[0]);
        check("bash", &["/srv/check.sh", "{{x}}"], &[]);
        check("python3.11", &["-c", "{{x}}"], &[1]);
        check("python3", &["-c{{x}}"], &[0]);
        check("python3", &["scripts/{{x}}.py"], &[0]);
        check("node", &["--eval={{x}}"], &[0]);
        check("env", &["A={{a}}", "{{x}}"], &[1]);
        check("env", &["sh", "-c", "{{x}}"], &[2]);
        check("timeout", &["{{seconds}}", "{{x}}"], &[1]);
        check("timeout", &["5", "df", "{{x}}"], &[]);
        check("sudo", &["-u", "root", "{{x}}"], &[2]);
        check("busybox", &["sh", "-c", "{{x}}"], &[2]);
        check("xargs", &["-n", "1", "{{x}}"], &[2]);
        check("nice", &["-n", "5", "perl", "-e", "{{x}}"], &[4]);
        check("ssh", &["{{host}}", "uptime", "{{x}}"], &[2]);
        check("ssh", &["-o{{x}}", "host"], &[0]);
        check("find", &["/srv", "-name", "{{x}}", "-exec", "{{y}}", "{}", ";"], &[4]);
        check("kubectl", &["exec", "{{pod}}", "--", "{{x}}"], &[3]);
        check("kubectl", &["get", "--", "{{x}}"], &[]);
        check("kubectl", &["exec", "{{pod}}", "{{x}}"], &[2]);
        check("kubectl", &["-n", "exec", "exec", "web-1", "--", "{{x}}"], &[5]);
        check("kubectl", &["get", "pods", "{{x}}"], &[]);
        check("docker", &["exec", "web", "{{x}}"], &[2]);
        check("docker", &["exec", "-it", "{{container}}", "sh", "-c", "{{x}}"], &[5]);
        check("docker", &["exec", "web", "df", "{{x}}"], &[]);
        check("docker", &["logs", "{{x}}"], &[]);
        check("df", &["-h", "{{x}}"], &[]);
        check("awk", &["-F", ":", "{{x}}"], &[2]);
        check("bash", &["-c", "-x", "{{x}}"], &[2]);
        check("bash", &["+x", "{{x}}"], &[1]);
        check("bash", &["--rcfile", "/r", "-c", "{{x}}"], &[3]);
        check("bash", &["-l{{x}}", "ls"], &[0]);
        check("perl", &["-MFoo", "-e", "{{x}}"], &[2]);
        check("perl", &["-lne", "print", "{{file}}"], &[]);
        check("ruby", &["-r", "json", "-e", "{{x}}"], &[3]);
        check("python3", &["-m", "http.server", "--bind", "{{x}}"], &[]);
        check("sed", &["-n", "1,5p", "{{file}}"], &[]);
        check("sed", &["-ne", "p", "{{file}}"], &[]);
        check("sed", &["-n", "p", "-e", "{{x}}"], &[3]);
        check("sed", &["-n", "{{from}},{{to}}p", "/x"], &[1]);
        check("sed", &["-f", "{{x}}"], &[1]);
        check("git", &["-c", "{{x}}", "log"], &[1]);
        check("git", &["submodule", "foreach", "{{x}}"], &[2]);
        check("git", &["log", "--", "{{x}}"], &[]);
        check("tar", &["-cI", "{{x}}", "-f", "a"], &[1]);
        check("tar", &["cIf", "{{x}}", "a"], &[1]);
        check("tar", &["--checkpoint-action={{x}}", "-xf", "a"], &[0]);
        check("tar", &["--to-comm={{x}}", "-xf", "a"], &[0]);
        check("tar", &["-xf", "{{file}}", "--file={{file}}"], &[]);
        check("rsync", &["-ave", "{{x}}", "a", "b"], &[1]);
        check("npx", &["{{x}}"], &[0]);
        check("npm", &["run", "{{x}}"], &[1]);
        check("make", &["-f", "{{x}}"], &[1]);
        check("make", &["-j", "{{n}}"], &[]);
        check("vim", &["-c", "{{x}}"], &[1]);
        check("taskset", &["-c", "0", "{{x}}"], &[2]);
        check("prlimit", &["--nofile=10", "{{x}}"], &[1]);
        check("setpriv", &["--reuid", "1000", "{{x}}"], &[2]);
        check("strace", &["-o", "{{x}}", "ls"], &[1]);
        check("/lib64/ld-linux-x86-64.so.2", &["{{x}}"], &[0]);
        check("/lib64/ld-linux-x86-64.so.2", &["--preload", "{{x}}", "/bin/ls"], &[1]);
        check("socat", &["-", "EXEC:{{x}}"], &[1]);
        check("timeout", &["--foreground", "5", "df", "{{x}}"], &[]);
        check("timeout", &["--unheard-of", "5", "df", "{{x}}"], &[3]);
        check("env", &["-S", "sh -c", "{{x}}"], &[2]);
        check("ssh", &["-o", "BatchMode=yes", "web", "{{x}}"], &[3]);
        check("docker", &["run", "--name", "web", "alpine", "{{x}}"], &[4]);
        check("docker", &["run", "{{image}}"], &[1]);
        check("psql", &["-h", "{{host}}", "-c", "select 1"], &[]);
        check("psql", &["-c", "{{x}}"], &[1]);
        check("sqlite3", &["/x.db", "{{x}}"], &[1]);
        check("kubectl", &["--kubeconfig={{x}}", "get", "pods"], &[0]);
    }

    // proves ARG-13
    #[test]
    fn standard_input_is_code_where_nothing_else_is() {
        let check = |program: &str, args: &[&str], expected: bool| {
            let found = with(program, args, |reading| reading.runs_stdin);
            assert_eq!(found, expected, "{program} {args:?}");
        };
        check("bash", &[], true);
        check("bash", &["-s", "x"], true);
        check("bash", &["/dev/stdin"], true);
        check("bash", &["-c", "wc -l; cat"], false);
        check("bash", &["/x.sh"], false);
        check("python3", &["-"], true);
        check("python3", &["-m", "json.tool"], false);
        check("env", &["A=b", "sh"], true);
        check("nice", &["-n", "5", "bash"], true);
        check("busybox", &["sh"], true);
        check("sudo", &["-u", "root", "python3"], true);
        check("ssh", &["web"], true);
        check("ssh", &["web", "bash -s"], true);
        check("ssh", &["web", "uptime"], false);
        check("docker", &["exec", "-i", "web", "sh"], true);
        check("docker", &["exec", "-i", "web", "cat"], false);
        check("kubectl", &["apply", "--filename=-"], false);
        check("xargs", &["-n", "1", "df"], false);
        check("xargs", &["sh", "-c"], true);
        check("sed", &["-f", "-", "/x"], true);
        check("make", &["-f", "-"], true);
        check("awk", &["{print}"], false);
        check("psql", &["shop"], true);
        check("psql", &["-c", "select 1"], false);
        check("at", &["now"], true);
        check("vim", &["-"], true);
        check("cat", &[], false);
    }

    #[test]
    fn the_script_that_is_the_same_in_every_call_is_found() {
        let check = |program: &str, args: &[&str], expected: Option<&str>| {
            let found = with(program, args, |reading| reading.script.map(str::to_owned));
            assert_eq!(found.as_deref(), expected, "{program} {args:?}");
        };
        check("sh", &["/x.sh", "{{a}}"], Some("/x.sh"));
        check("/usr/bin/python3", &["-X", "dev", "/x.py"], Some("/x.py"));
        check("env", &["A=1", "bash", "-e", "/x"], Some("/x"));
        check("timeout", &["5", "sh", "/x.sh"], Some("/x.sh"));
        check("sh", &["-c", "/x"], None);
        check("sh", &["{{x}}"], None);
        check("df", &["/x"], None);
    }
}
