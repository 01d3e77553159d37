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
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let mut at = 0;
    let mut takes_text = false;
    while let Some(word) = arguments.get(at) {
        let Some(text) = word.known() else { return unknown("runs what is made at run time") };
        if matches!(text, "-O" | "+O" | "-o" | "+o" | "--rcfile" | "--init-file") {
            at += 2;
        } else if matches!(text, "--version" | "--help") {
            return Vec::new();
        } else if text.starts_with("--")
            || ((text.starts_with('-') || text.starts_with('+')) && text.len() > 1)
        {
            takes_text |= text.starts_with('-') && !text.starts_with("--") && text.contains('c');
            at += 1;
        } else {
            break;
        }
    }
    match (takes_text, arguments.get(at).map(Word::known)) {
        (true, Some(Some(text))) => vec![Inner::Script(text.to_owned())],
        (true, _) => unknown("runs text that is made at run time"),
        (false, Some(_)) => unknown("runs a file as code"),
        (false, None) => match (&outer.input, outer.piped) {
            (Some(text), _) => vec![Inner::Script(text.clone())],
            (None, true) => unknown("runs what is piped into it"),
            // It reads nothing: its standard input is empty.
            (None, false) => Vec::new(),
        },
    }
}

fn interpreter(program: &str, arguments: &[Word], code: &[&str], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let is_code = |word: &Word| match word.known() {
        None => false,
        Some(text) => code.iter().any(|option| {
            text == *option
                || (option.len() == 2
                    && text.starts_with('-')
                    && !text.starts_with("--")
                    && text.contains(option.trim_start_matches('-')))
        }),
    };
    let options = arguments
        .iter()
        .take_while(|word| word.known().is_none_or(|text| text.starts_with('-') || text == "eval"));
    if options.clone().any(|word| word.known().is_none()) || options.clone().any(is_code) {
        return unknown("runs code that stands in the command");
    }
    let is_fed =
        arguments.iter().all(|word| word.known().is_some_and(|text| text.starts_with('-')));
    let asks = has(arguments, &["-V", "--version", "-h", "--help"])
        || arguments.iter().any(|word| word.known() == Some("-m"));
    if is_fed && outer.piped && !asks {
        return unknown("runs what is piped into it");
    }
    Vec::new()
}

fn awk(program: &str, arguments: &[Word]) -> Vec<Inner> {
    let runs =
        |text: &str| text.contains("system") || text.contains('|') || text.contains("getline");
    let is_unknown = arguments.iter().any(|word| word.known().is_none_or(runs))
        || has(arguments, &["-f", "--file", "-E"]);
    if is_unknown {
        vec![Inner::Unknown(format!("`{program}` may run commands"))]
    } else {
        Vec::new()
    }
}

/// `e` of GNU sed runs what it finds.
fn sed(arguments: &[Word]) -> Vec<Inner> {
    let runs = |text: &str| {
        let by_flag = text.starts_with('s')
            && text.chars().nth(1).is_some_and(|mark| {
                text.rsplit(mark)
                    .next()
                    .is_some_and(|flags| flags.len() <= 6 && flags.contains('e'))
            });
        let commands = text.split([';', '\n', '{', '}']);
        let by_command = commands.map(|part| {
            part.trim().trim_start_matches(|c: char| c.is_ascii_digit() || ",$ !".contains(c))
        });
        let mut by_command = by_command.filter(|part| !part.is_empty());
        by_flag
            || by_command.any(|part| {
                part == "e"
                    || part.starts_with("e ")
                    || (part.starts_with('/') && part.ends_with("/e"))
            })
    };
    let is_file = has(arguments, &["-f", "--file"]);
    let scripts = arguments.iter().filter(|word| {
        word.known().is_none_or(|text| {
            !text.starts_with('-') || text.starts_with("-e") || text.starts_with("--expression")
        })
    });
    let unknown = is_file
        || scripts.clone().take(2).any(|word| {
            word.known().is_none_or(|text| {
                runs(text.trim_start_matches("--expression=").trim_start_matches("-e"))
            })
        });
    if unknown { vec![Inner::Unknown("`sed` may run commands".to_owned())] } else { Vec::new() }
}
