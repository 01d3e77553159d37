//! Programs that run code: shells, interpreters, and the small languages that can start a command.

use super::syntax::{Simple, Word};
use super::wrapper::{Inner, has};

const SHELLS: &[&str] =
    &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "rbash", "fish", "csh", "tcsh"];

/// Interpreters, and the options after which their code stands in the command.
const INTERPRETERS: &[(&str, &[&str])] = &[
    ("python", &["-c"]),
    ("pypy", &["-c"]),
    ("perl", &["-e", "-E"]),
    ("ruby", &["-e"]),
    ("node", &["-e", "--eval", "-p", "--print", "-pe"]),
    ("nodejs", &["-e", "--eval", "-p", "--print", "-pe"]),
    ("deno", &["eval"]),
    ("bun", &["-e", "--eval"]),
    ("php", &["-r", "-R", "-B", "-E"]),
    ("lua", &["-e"]),
    ("luajit", &["-e"]),
    ("tclsh", &["-c"]),
    ("expect", &["-c"]),
    ("guile", &["-c"]),
    ("osascript", &["-e"]),
    ("Rscript", &["-e"]),
    ("julia", &["-e", "-E"]),
    ("gdb", &["-ex", "-eval-command", "--eval-command", "-x"]),
    ("vi", &["-c", "--cmd"]),
    ("vim", &["-c", "--cmd"]),
    ("nvim", &["-c", "--cmd"]),
    ("ex", &["-c", "--cmd"]),
    ("emacs", &["--eval", "-f", "--execute"]),
    ("psql", &["-c"]),
];

/// Returns what a shell or an interpreter runs; `None` if the program is neither.
pub(super) fn inner(program: &str, arguments: &[Word], outer: &Simple) -> Option<Vec<Inner>> {
    if SHELLS.contains(&program) {
        return Some(shell(program, arguments, outer));
    }
    let stem = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if let Some((_, code)) = INTERPRETERS.iter().find(|(name, _)| *name == stem) {
        return Some(interpreter(program, arguments, code, outer));
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

fn interpreter(program: &str, arguments: &[Word], code: &[&str], outer: &Simple) -> Vec<Inner> {
    /// Options with a value in a word of its own.
    const VALUED: &[&str] =
        &["-W", "-X", "-Q", "-I", "-r", "-C", "-E", "-d", "-z", "-l", "--require", "--import"];
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let is_code = |text: &str| {
        code.iter().any(|option| {
            text == *option
                || (option.starts_with("--")
                    && text.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')))
                || (option.len() == 2
                    && text.starts_with('-')
                    && !text.starts_with("--")
                    && text.contains(option.trim_start_matches('-')))
        })
    };
    let is_editor = matches!(program, "vi" | "vim" | "nvim" | "ex" | "view");
    let mut at = 0;
    let mut asks = false;
    while let Some(word) = arguments.get(at) {
        let Some(text) = word.known() else {
            if word.begins_known() {
                break;
            }
            return unknown("may be given code that is made at run time");
        };
        if is_code(text) || text == "eval" || (is_editor && text.starts_with('+')) {
            return unknown("runs code that stands in the command");
        }
        if text == "-" || !text.starts_with('-') {
            break;
        }
        // A module has a name, and what follows is its own.
        asks |= matches!(text, "-V" | "--version" | "-h" | "--help" | "-m");
        if text == "-m" {
            break;
        }
        at += 1 + usize::from(VALUED.contains(&text));
    }
    let script = arguments.get(at).and_then(Word::known);
    let reads = script.is_some_and(|text| {
        text == "-"
            || text.starts_with("/dev/stdin")
            || text.starts_with("/dev/fd")
            || text.starts_with("/proc/")
    });
    if reads || (arguments.get(at).is_none() && outer.piped && !asks) {
        return unknown("runs what is piped into it");
    }
    Vec::new()
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
    }
    let Some(word) = arguments.get(at) else { return Vec::new() };
    let Some(text) = word.known() else { return unknown() };
    let squeezed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let squeezed = squeezed.replace("||", "");
    let runs = ["system(", "|\"", "\"|", "|&", "getline", "@", ">\"/dev/", ">>\"/dev/"];
    // A pipe to something that has a name is one as well.
    let pipes = squeezed.contains('|') && squeezed.contains("print");
    if pipes || runs.iter().any(|part| squeezed.contains(part)) { unknown() } else { Vec::new() }
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
            Some(text) if text.starts_with("--") => {}
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
                    if matches!(command, 'b' | 't' | 'T') {
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
