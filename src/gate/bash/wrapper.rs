//! Programs that run other programs: what they run is found and judged as well.

use super::code;
use super::options::{OPAQUE, Options, PREFIXES, RUNNERS, RUNNING, options};
use super::syntax::{Simple, Word};

/// Something that a command runs or does besides itself.
pub(super) enum Inner {
    /// A command as words.
    Words(Vec<Word>),
    /// A command as text for a shell.
    Script(String),
    /// A variable that is set for what follows.
    Assigned(String),
    /// Nobody can tell what.
    Unknown(String),
}

/// Returns what `program` runs.
pub(super) fn inner(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    if let Some(inner) = code::inner(program, arguments, outer) {
        return inner;
    }
    if let Some((name, options)) = PREFIXES.iter().find(|(name, _)| *name == program) {
        return prefixed(name, arguments, options);
    }
    if OPAQUE.contains(&program) {
        let mut inner = unknown("runs other programs in a way that is not followed");
        // So that what is blocked is found where it stands openly.
        inner.extend((0..arguments.len()).filter_map(|at| {
            let word = arguments.get(at)?.known()?;
            let first = word.split_whitespace().next()?;
            super::destructive::is_program(first).then(|| Inner::Script(word.to_owned()))
        }));
        return inner;
    }
    if program.starts_with("ld-linux") || program.starts_with("ld-musl") || program == "ld.so" {
        return unknown("loads a program of its own choice");
    }
    match program {
        "eval" => {
            let words: Option<Vec<&str>> = arguments.iter().map(Word::known).collect();
            let mut inner = unknown("runs text as code");
            inner.extend(words.map(|words| Inner::Script(words.join(" "))));
            inner
        }
        "source" | "." => unknown("runs a file as code"),
        "alias"
            if arguments
                .iter()
                .all(|word| word.known().is_some_and(|word| !word.contains('='))) =>
        {
            Vec::new()
        }
        "alias" => unknown("keeps code for later"),
        "trap" if arguments.first().and_then(Word::known) == Some("--") => {
            inner("trap", arguments.get(1..).unwrap_or_default(), outer)
        }
        "trap" => match arguments.first().map(Word::known) {
            None | Some(Some("-" | "" | "-p" | "-l")) => Vec::new(),
            _ => unknown("keeps code for later"),
        },
        "coproc" => vec![
            Inner::Words(arguments.to_vec()),
            Inner::Unknown("`coproc` runs a command beside the others".to_owned()),
        ],
        "hash" | "enable" | "complete" | "bind" | "fc" | "compgen" if !arguments.is_empty() => {
            unknown("changes which code runs")
        }
        "mapfile" | "readarray" if has(arguments, &["-C"]) => unknown("runs code for each line"),
        "jobs" if has(arguments, &["-x"]) => unknown("runs a command"),
        "printf" => match arguments.first().and_then(Word::known) {
            Some("-v") => names(arguments.get(1..2).unwrap_or_default()),
            Some(first) if first.starts_with("-v") => {
                vec![Inner::Assigned(first.trim_start_matches("-v").to_owned())]
            }
            _ => Vec::new(),
        },
        "declare" | "typeset" | "local" if has(arguments, &["-n"]) => {
            unknown("makes another name for a variable")
        }
        // What its options take names no variable; with others all of its words count.
        "read" => names(options("ers", "dinNptu").rest(arguments).unwrap_or(arguments)),
        "getopts" | "mapfile" | "readarray" | "local" | "declare" | "typeset" | "export"
        | "readonly" | "let" => names(arguments),
        "watch" => {
            let words = options("bcdegtxwr", "nq").rest(arguments);
            let words = words
                .and_then(|words| words.iter().map(Word::known).collect::<Option<Vec<&str>>>());
            match words {
                Some(words) => vec![Inner::Script(words.join(" "))],
                None => unknown("runs what is made at run time"),
            }
        }
        _ => program_of(program, arguments, outer),
    }
}

/// Returns what a program runs that is no builtin of the shell.
fn program_of(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    if let Some((_, words)) = RUNNING.iter().find(|(name, _)| *name == program)
        && arguments.iter().filter_map(Word::known).any(|word| words.contains(&word))
    {
        return unknown("runs another program");
    }
    if let Some((_, options)) = RUNNERS.iter().find(|(name, _)| *name == program)
        && (has(arguments, options) || has_shortened(arguments, options))
    {
        return unknown("may run another program");
    }
    match program {
        "sftp" if outer.piped => unknown("does what it reads"),
        "rename" | "prename" | "file-rename"
            if arguments.iter().any(|word| {
                word.known().is_none_or(|text| text.contains(['/', '$', '`', '(']))
            }) =>
        {
            unknown("may be given code")
        }
        "find" => find(arguments),
        "ssh" => remote(arguments, outer),
        "docker" | "podman" | "nerdctl"
            if arguments.iter().any(|word| word.known() == Some("run")) =>
        {
            unknown("runs a container that may hold the host's files")
        }
        "docker" | "podman" | "nerdctl" | "kubectl" | "oc" => exec(arguments),
        "tmux" | "screen" | "dtach" if !arguments.is_empty() => unknown("runs a command elsewhere"),
        "tar" | "bsdtar" if tar_runs(arguments) => unknown("may run a program"),
        "git" => super::git::inner(arguments),
        _ => Vec::new(),
    }
}

/// Tells whether one of the long options stands among the words, shortened as far as it can be.
pub(super) fn has_shortened(words: &[Word], options: &[&str]) -> bool {
    words.iter().filter_map(Word::known).take_while(|word| *word != "--").any(|word| {
        let name = word.split('=').next().unwrap_or(word);
        name.len() > 3 && name.starts_with("--") && options.iter().any(|o| o.starts_with(name))
    })
}

/// Compressors that do no more than that.
const COMPRESSORS: &[&str] =
    &["gzip", "pigz", "bzip2", "pbzip2", "xz", "pixz", "zstd", "lz4", "lzop"];

fn tar_runs(arguments: &[Word]) -> bool {
    const RUN: &[&str] = &[
        "--checkpoint-action",
        "--to-command",
        "--use-compress-program",
        "--rsh-command",
        "--info-script",
        "--new-volume-script",
        "-F",
        "-I",
    ];
    let is_harmless = |at: usize| {
        let text = |at: usize| arguments.get(at).and_then(Word::known);
        match text(at) {
            Some("-I") => text(at + 1).is_some_and(|next| COMPRESSORS.contains(&next)),
            Some(text) => text
                .strip_prefix("--use-compress-program=")
                .is_some_and(|program| COMPRESSORS.contains(&program)),
            None => false,
        }
    };
    // The first word is a bundle also without a dash.
    let first = arguments.first().and_then(Word::known);
    first.is_some_and(|first| !first.starts_with('-') && first.contains(['I', 'F']))
        || arguments.iter().enumerate().any(|(at, word)| {
            let one = std::slice::from_ref(word);
            match word.known() {
                None => !word.begins_known(),
                Some(_) if is_harmless(at) => false,
                Some(_) => has(one, RUN) || has_shortened(one, RUN),
            }
        })
}

/// Tells whether one of the options stands among the words, alone, with a value, or in a bundle of short ones.
pub(super) fn has(words: &[Word], options: &[&str]) -> bool {
    words.iter().filter_map(Word::known).take_while(|word| *word != "--").any(|word| {
        options.iter().any(|option| {
            word == *option
                || (option.starts_with("--")
                    && word.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')))
                || (option.len() == 2
                    && word.starts_with('-')
                    && !word.starts_with("--")
                    && word.contains(option.trim_start_matches('-')))
        })
    })
}

fn prefixed(name: &str, arguments: &[Word], options: &Options) -> Vec<Inner> {
    let first = arguments.first().and_then(Word::known);
    if name == "command"
        && first.is_some_and(|first| first.starts_with('-') && first.contains(['v', 'V']))
    {
        return Vec::new();
    }
    let mut inner = Vec::new();
    let pipes = |word: &Word| word.beginning().contains(['|', '!']);
    if name == "strace" && arguments.iter().any(pipes) {
        inner.push(Inner::Unknown("`strace` may run commands".to_owned()));
    }
    // A lone dash empties the environment.
    let arguments = match first {
        Some("-") if name == "env" => arguments.get(1..).unwrap_or_default(),
        _ => arguments,
    };
    let Some(rest) = options.rest(arguments) else {
        inner.push(Inner::Unknown(format!("`{name}` is given an option that is not known here")));
        // What is blocked is looked for all the same.
        let words = arguments.iter().position(|word| {
            word.program().is_some_and(|program| super::destructive::is_program(&program))
        });
        let words = words.and_then(|at| arguments.get(at..)).unwrap_or_default();
        if !words.is_empty() {
            inner.push(Inner::Words(words.to_vec()));
        }
        return inner;
    };
    let mut rest = rest.get(options.own_words..).unwrap_or_default();
    if rest.first().and_then(Word::known) == Some("--") {
        rest = rest.get(1..).unwrap_or_default();
    }
    if name == "flock"
        && rest.first().and_then(Word::known).is_some_and(|word| matches!(word, "-c" | "--command"))
    {
        inner.push(Inner::Unknown("`flock` runs text as code".to_owned()));
    }
    if name == "env" {
        while let Some(set) = rest.first().and_then(Word::name_set) {
            inner.push(Inner::Assigned(set));
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    let mut words = rest.to_vec();
    if words.is_empty() {
        return inner;
    }
    if name == "xargs" {
        let before = arguments.len() - rest.len();
        let mark = replaced(arguments.get(..before).unwrap_or_default());
        for word in &mut words {
            if mark.as_ref().is_some_and(|mark| word.beginning().contains(mark.as_str())) {
                *word = Word::unknown();
            }
        }
        // What it adds is known only when it runs.
        words.push(Word::unknown());
    }
    inner.push(Inner::Words(words));
    inner
}

/// Returns what `xargs -I` replaces.
fn replaced(options: &[Word]) -> Option<String> {
    let at = options.iter().position(|word| {
        word.known().is_some_and(|text| {
            text.starts_with('-') && !text.starts_with("--") && text.contains('I')
        })
    })?;
    let text = options.get(at)?.known()?;
    let attached = text.split_once('I').map(|(_, mark)| mark).filter(|mark| !mark.is_empty());
    attached.map(str::to_owned).or_else(|| options.get(at + 1)?.known().map(str::to_owned))
}

/// Variables that a builtin sets.
fn names(arguments: &[Word]) -> Vec<Inner> {
    arguments
        .iter()
        .map(|word| match word.known().or_else(|| word.begins_known().then(|| word.beginning())) {
            Some(text) => {
                Inner::Assigned(text.split(['=', '[', '+']).next().unwrap_or(text).to_owned())
            }
            None => Inner::Assigned(String::new()),
        })
        .collect()
}

fn find(arguments: &[Word]) -> Vec<Inner> {
    let mut inner = Vec::new();
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        at += 1;
        if matches!(word.known(), Some("-exec" | "-execdir" | "-ok" | "-okdir")) {
            let rest = arguments.get(at..).unwrap_or_default();
            let end = rest
                .iter()
                .position(|word| matches!(word.known(), Some(";" | "+")))
                .unwrap_or(rest.len());
            let words = rest.get(..end).unwrap_or_default();
            // `{}` becomes a name that nobody knows yet.
            let words = words.iter().map(|word| {
                if word.beginning().contains("{}") { Word::unknown() } else { word.clone() }
            });
            inner.push(Inner::Words(words.collect()));
            at += end;
        }
    }
    inner
}

/// A command for another host, which a shell reads there.
fn remote(arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`ssh` {why}"))];
    let runs = |word: &Word| {
        word.known()
            .is_none_or(|text| text.to_lowercase().contains("command") || text.starts_with("-F"))
    };
    let options = options("46AaCfGgKkMNnqsTtVvXxYy", "BbcDEeIiJLlmOopQRSWw");
    let Some(rest) = options.rest(arguments) else {
        return unknown("is given an option that is not known here");
    };
    // It takes options behind the host as well.
    let Some(words) = options.rest(rest.get(1..).unwrap_or_default()) else {
        return unknown("is given an option that is not known here");
    };
    let words = match words.first().and_then(Word::known) {
        Some("--") => words.get(1..).unwrap_or_default(),
        _ => words,
    };
    let host = arguments.len() - rest.len();
    let own = arguments.get(..arguments.len() - words.len()).unwrap_or_default();
    if own.iter().enumerate().any(|(at, word)| at != host && runs(word)) {
        return unknown("is given settings that may run commands");
    }
    if words.is_empty() {
        return match (&outer.input, outer.piped) {
            (Some(text), _) => vec![Inner::Script(text.clone())],
            (None, true) => unknown("runs what is piped into it"),
            (None, false) => Vec::new(),
        };
    }
    let words: Option<Vec<&str>> = words.iter().map(Word::known).collect();
    match words {
        Some(words) => vec![Inner::Script(words.join(" "))],
        None => unknown("runs what is made at run time"),
    }
}

/// `exec` in a container: what follows `--`, or the name of the container.
fn exec(arguments: &[Word]) -> Vec<Inner> {
    let Some(at) = arguments.iter().position(|word| word.known() == Some("exec")) else {
        return Vec::new();
    };
    let rest = arguments.get(at + 1..).unwrap_or_default();
    let words = match rest.iter().position(|word| word.known() == Some("--")) {
        Some(at) => rest.get(at + 1..).unwrap_or_default(),
        None => {
            let known = Options {
                long_flags: &["--interactive", "--tty", "--detach", "--privileged", "--stdin"],
                long_valued: &[
                    "--env",
                    "--user",
                    "--workdir",
                    "--env-file",
                    "--namespace",
                    "--container",
                ],
                ..options("itdT", "euwnc")
            };
            match known.rest(rest) {
                Some(rest) => rest.get(1..).unwrap_or_default(),
                None => {
                    return vec![Inner::Unknown(
                        "an option of `exec` is not known here".to_owned(),
                    )];
                }
            }
        }
    };
    if words.is_empty() { Vec::new() } else { vec![Inner::Words(words.to_vec())] }
}

impl Word {
    /// Returns the name that a word such as `NAME=value` sets.
    fn name_set(&self) -> Option<String> {
        self.beginning().split_once('=').map(|(name, _)| name.to_owned())
    }
}
