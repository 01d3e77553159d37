//! Programs that run code: shells, interpreters, and the small languages that can start a command.

use super::options::{Options, options};
use super::syntax::{Simple, Word};
use super::wrapper::{Inner, has};

const SHELLS: &[&str] = &[
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh", "yash",
    "lksh", "osh", "xonsh", "elvish", "nu", "pwsh",
];

/// Interpreters that run a file, with the letters of their options that neither hold code nor take a word of their own, and those that take
/// one. Whatever else stands before the file may be code.
const INTERPRETERS: &[(&str, &str, &str)] = &[
    ("python", "uBOsSEIqvbdiR", "WX"),
    ("pypy", "uBOsSEIqvbdi", "WX"),
    ("perl", "wWtTcsU", ""),
    ("ruby", "wWcsUv", ""),
    ("node", "c", ""),
    ("nodejs", "c", ""),
    ("deno", "", ""),
    ("bun", "", ""),
    ("php", "fnqlwims", ""),
    ("lua", "vWE", ""),
    ("luajit", "vE", ""),
    ("tclsh", "", ""),
    ("wish", "", ""),
    ("expect", "", ""),
    ("guile", "", ""),
    ("osascript", "", ""),
    ("Rscript", "", ""),
    ("julia", "q", ""),
    ("groovy", "", ""),
    ("scala", "", ""),
    ("elixir", "", ""),
    ("erl", "", ""),
    ("escript", "", ""),
    ("ipython", "", ""),
    ("irb", "", ""),
    ("jshell", "", ""),
    ("octave", "q", ""),
    ("gnuplot", "p", ""),
    ("m4", "P", ""),
    ("dc", "", ""),
];

/// Programs with a language of their own that take code anywhere in the command: with these options alone nothing runs.
const LANGUAGES: &[(&str, &[&str])] = &[
    ("gdb", &["-batch", "--batch", "-q", "-quiet", "-nx", "-n", "--version", "--help"]),
    ("lldb", &["--version", "--help"]),
    ("vi", &["-R"]),
    ("vim", &["-R", "--version"]),
    ("nvim", &["-R", "--version"]),
    ("view", &[]),
    ("vimdiff", &[]),
    ("ex", &[]),
    ("ed", &[]),
    ("emacs", &["--version"]),
    ("nano", &["--version"]),
    ("psql", &["-l", "--list", "-V", "--version"]),
    ("mysql", &["-V", "--version"]),
    ("mariadb", &["-V", "--version"]),
    ("mongosh", &["--version"]),
    ("mongo", &["--version"]),
    ("sqlite", &["-version"]),
    ("clickhouse-client", &["--version"]),
    ("cqlsh", &["--version"]),
    ("sqlplus", &["-V"]),
];

/// Modules of Python that do no more than their names say.
const MODULES: &[&str] = &[
    "json.tool",
    "http.server",
    "venv",
    "pytest",
    "unittest",
    "zipfile",
    "tarfile",
    "base64",
    "calendar",
    "platform",
    "sysconfig",
    "site",
    "py_compile",
    "compileall",
    "mypy",
    "black",
    "ruff",
    "flake8",
    "isort",
    "this",
];

/// Returns what a shell or an interpreter runs; `None` if the program is neither.
pub(super) fn inner(program: &str, arguments: &[Word], outer: &Simple) -> Option<Vec<Inner>> {
    if SHELLS.contains(&program) {
        return Some(shell(program, arguments, outer));
    }
    let stem = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if let Some((_, flags, valued)) = INTERPRETERS.iter().find(|(name, ..)| *name == stem) {
        return Some(interpreter(program, arguments, &options(flags, valued)));
    }
    if let Some((_, harmless)) = LANGUAGES.iter().find(|(name, _)| *name == stem) {
        return Some(language(program, arguments, harmless, outer));
    }
    match program {
        "awk" | "gawk" | "mawk" | "nawk" => Some(awk(program, arguments)),
        "sed" | "gsed" => Some(sed(arguments)),
        _ => None,
    }
}

fn shell(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    const HARMLESS: &[&str] = &["--login", "--norc", "--noprofile", "--posix", "--restricted"];
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let mut at = 0;
    let mut takes_text = false;
    while let Some(word) = arguments.get(at) {
        let Some(text) = word.known() else { return unknown("runs what is made at run time") };
        at += 1;
        match text {
            "--version" | "--help" => return Vec::new(),
            "-" | "--" => break,
            text if HARMLESS.contains(&text) => {}
            text if text.starts_with("--") => {
                return unknown("is given an option that is not known here");
            }
            text if text.starts_with(['-', '+']) && text.len() > 1 => {
                if text.contains(['o', 'O']) {
                    return unknown("is given an option that takes a word of its own");
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
        (true, _) => unknown("runs text that is made at run time"),
        (false, Some(_)) => unknown("runs a file as code"),
        (false, None) => match &outer.input {
            Some(text) => vec![Inner::Script(text.clone())],
            None => unknown("runs what it reads"),
        },
    }
}

fn interpreter(program: &str, arguments: &[Word], known: &Options) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let asks = ["-V", "--version", "-h", "--help", "-v"];
    if let [only] = arguments
        && only.known().is_some_and(|word| asks.contains(&word))
    {
        return Vec::new();
    }
    // A module has a name, and what follows is its own.
    let module = arguments.iter().position(|word| word.known() == Some("-m"));
    let before = arguments.get(..module.unwrap_or(arguments.len())).unwrap_or_default();
    let Some(rest) = known.rest(before) else {
        return unknown("may be given code, or an option that is not known here");
    };
    if let (true, Some(at)) = (rest.is_empty(), module) {
        let name = arguments.get(at + 1).and_then(Word::known);
        if program.starts_with("py") && name == Some("pip") {
            return vec![Inner::Words(arguments.get(at + 1..).unwrap_or_default().to_vec())];
        }
        return match name.is_some_and(|name| program.starts_with("py") && MODULES.contains(&name)) {
            true => Vec::new(),
            false => unknown("runs a module that is not known here"),
        };
    }
    match rest.first() {
        None => unknown("runs what it reads"),
        Some(word) => match word.known() {
            Some("-" | "eval" | "repl") => unknown("runs what it reads, or text"),
            Some(text) if text.starts_with("/dev/") || text.starts_with("/proc/") => {
                unknown("runs what it reads")
            }
            Some(_) => Vec::new(),
            None if word.begins_known() => Vec::new(),
            None => unknown("may be given code that is made at run time"),
        },
    }
}

fn language(program: &str, arguments: &[Word], harmless: &[&str], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let is_code = |word: &Word| match word.known() {
        Some(text) if text.starts_with(['-', '+', '.']) => !harmless.contains(&text),
        Some(text) => text.contains(char::is_whitespace),
        None => true,
    };
    if arguments.iter().any(is_code) {
        return unknown("may be given code");
    }
    let asks = arguments.iter().filter_map(Word::known).any(|word| {
        harmless.contains(&word) && !matches!(word, "-R" | "-q" | "-n" | "-nx" | "-quiet")
    });
    if outer.piped && !asks { unknown("runs what is piped into it") } else { Vec::new() }
}

fn awk(program: &str, arguments: &[Word]) -> Vec<Inner> {
    let unknown = || vec![Inner::Unknown(format!("`{program}` may run commands"))];
    if has(
        arguments,
        &["-f", "--file", "-E", "--exec", "-e", "--source", "-i", "--include", "-l", "--load"],
    ) {
        return unknown();
    }
    // The program is the first word that is neither an option nor its value.
    let mut at = 0;
    while let Some(text) =
        arguments.get(at).and_then(Word::known).filter(|text| text.starts_with('-'))
    {
        at += 1 + usize::from(matches!(text, "-F" | "-v"));
        if text == "--" {
            break;
        }
        let is_known = ["-F", "-v", "--version"].iter().any(|known| text.starts_with(known));
        if !is_known {
            return unknown();
        }
    }
    let Some(word) = arguments.get(at) else { return Vec::new() };
    let Some(text) = word.known() else { return unknown() };
    let whole: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    // What stands in texts and patterns is none of its words; a pipe that is left leads to a command.
    let pipes = without_literals(text).replace("||", "").contains('|');
    let runs = ["system(", "getline", "@", ">\"/dev/", ">>\"/dev/"];
    if pipes || runs.iter().any(|part| whole.contains(part)) { unknown() } else { Vec::new() }
}

/// Takes texts and patterns out of a program of awk. Where a slash may divide, everything behind it is left.
fn without_literals(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        let begins =
            |out: &str| out.is_empty() || out.ends_with(['(', ',', '!', '~', '{', ';', '&', '|']);
        let literal = c == '"' || (c == '/' && begins(&out));
        match end_of(rest, c).filter(|_| literal) {
            Some(end) => {
                rest = rest.get(end..).unwrap_or_default();
                out.push(c);
            }
            None if !c.is_whitespace() || c == '\n' => out.push(if c == '\n' { ';' } else { c }),
            None => {}
        }
    }
    out
}

/// Returns where the text behind the first unescaped `mark` begins.
fn end_of(text: &str, mark: char) -> Option<usize> {
    let mut escaped = false;
    let found = text.char_indices().find(|(_, c)| {
        let ends = *c == mark && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    found.map(|(at, c)| at + c.len_utf8())
}

/// `e` of GNU sed runs what it finds, and `w` writes anywhere.
fn sed(arguments: &[Word]) -> Vec<Inner> {
    let unknown = || vec![Inner::Unknown("`sed` may run commands".to_owned())];
    if has(arguments, &["-f", "--file"]) {
        return unknown();
    }
    let mut scripts = Vec::new();
    let mut first = None;
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        at += 1;
        match word.known() {
            Some("-e" | "--expression") => {
                scripts.push(arguments.get(at).and_then(Word::known));
                at += 1;
            }
            Some(text) if text.starts_with("--expression=") => {
                scripts.push(text.split_once('=').map(|(_, text)| text))
            }
            Some("-l" | "--line-length") => at += 1,
            Some(text) if text.starts_with("--") => {
                const KNOWN: &[&str] = &[
                    "--quiet",
                    "--silent",
                    "--in-place",
                    "--regexp-extended",
                    "--null-data",
                    "--separate",
                    "--unbuffered",
                    "--zero-terminated",
                    "--posix",
                    "--debug",
                    "--sandbox",
                    "--follow-symlinks",
                    "--version",
                    "--help",
                ];
                let name = text.split('=').next().unwrap_or(text);
                if !KNOWN.contains(&name) {
                    return unknown();
                }
            }
            Some(text) if text.starts_with('-') && text.len() > 1 => {
                // In a bundle such as `-ne`, the script follows.
                if let Some((_, attached)) =
                    text.split_once('e').filter(|(before, _)| !before.contains('i'))
                {
                    if attached.is_empty() {
                        scripts.push(arguments.get(at).and_then(Word::known));
                        at += 1;
                    } else {
                        scripts.push(Some(attached));
                    }
                }
            }
            other => {
                first.get_or_insert(other);
            }
        }
    }
    if scripts.is_empty() {
        scripts.extend(first);
    }
    let is_harmless =
        |script: &Option<&str>| script.is_some_and(|text| SedScript(text).reads_only());
    if scripts.iter().all(is_harmless) { Vec::new() } else { unknown() }
}

/// A script of sed, read command by command.
struct SedScript<'a>(&'a str);

impl SedScript<'_> {
    /// Tells whether every command is known and none runs anything or writes to a device.
    fn reads_only(mut self) -> bool {
        loop {
            self.0 = self.0.trim_start_matches([' ', '\t', '\n', ';', '{', '}']);
            let Some(command) = self.address() else { return false };
            let Some(command) = command else { return true };
            let is_good = match command {
                's' => self.substitution(),
                'y' => self.until_twice().is_some(),
                'w' | 'W' | 'r' | 'R' => !super::is_device(self.line().trim()),
                'a' | 'i' | 'c' | '#' | 'b' | 't' | 'T' | ':' => {
                    // Labels end at `;` for some and not for others; what follows is read as commands in the former case.
                    if matches!(command, 'b' | 't' | 'T' | ':') {
                        self.label()
                    } else {
                        self.line()
                    };
                    true
                }
                'd' | 'D' | 'p' | 'P' | 'h' | 'H' | 'g' | 'G' | 'n' | 'N' | 'x' | 'l' | 'q'
                | 'Q' | '=' | 'z' | 'F' => {
                    self.0 = self.0.trim_start_matches(|c: char| c.is_ascii_digit());
                    self.0.is_empty() || self.0.starts_with([' ', ';', '\n', '}', '\t'])
                }
                '{' | '}' => true,
                _ => false,
            };
            if !is_good {
                return false;
            }
        }
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.0.chars();
        let c = characters.next();
        self.0 = characters.as_str();
        c
    }

    /// Takes the addresses and returns the command; `None` outside if they cannot be read, inside if nothing follows.
    fn address(&mut self) -> Option<Option<char>> {
        loop {
            match self.next() {
                None => return Some(None),
                Some(c)
                    if c.is_ascii_digit()
                        || matches!(c, '$' | ',' | '~' | '+' | '!' | ' ' | 'I' | 'M') => {}
                Some('/') => self.until('/')?,
                Some('\\') => {
                    let mark = self.next()?;
                    self.until(mark)?;
                }
                Some(command) => return Some(Some(command)),
            }
        }
    }

    fn until(&mut self, mark: char) -> Option<()> {
        loop {
            match self.next()? {
                '\\' => drop(self.next()?),
                c if c == mark => return Some(()),
                // Between brackets some take the mark for itself.
                '[' => {
                    let set = self.0.split_once(']').map_or(self.0, |(set, _)| set);
                    if set.contains(mark) {
                        return None;
                    }
                }
                _ => {}
            }
        }
    }

    fn until_twice(&mut self) -> Option<()> {
        let mark = self.next().filter(|mark| !mark.is_alphanumeric() && *mark != '\\')?;
        self.until(mark)?;
        self.until(mark)
    }

    fn substitution(&mut self) -> bool {
        if self.until_twice().is_none() {
            return false;
        }
        loop {
            match self.0.chars().next() {
                Some('e') => return false,
                Some('w') => {
                    self.next();
                    return !super::is_device(self.line().trim());
                }
                Some(c) if c.is_ascii_digit() || matches!(c, 'g' | 'p' | 'i' | 'I' | 'm' | 'M') => {
                    self.next();
                }
                Some(c) => return matches!(c, ' ' | ';' | '\n' | '}' | '\t'),
                None => return true,
            }
        }
    }

    fn line(&mut self) -> &str {
        let (line, rest) = self.0.split_once('\n').unwrap_or((self.0, ""));
        self.0 = rest;
        line
    }

    fn label(&mut self) -> &str {
        let end = self.0.find([';', '\n', '}']).unwrap_or(self.0.len());
        let (label, rest) = self.0.split_at(end);
        self.0 = rest;
        label
    }
}
