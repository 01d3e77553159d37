//! Programs that run other programs: what they run is found and judged as well.

use super::code;
use super::options::{Options, PREFIXES, options};
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

/// Programs that run another one in a way that is not followed here.
const OPAQUE: &[&str] = &[
    "parallel",
    "setarch",
    "numactl",
    "prlimit",
    "cpulimit",
    "proxychains",
    "proxychains4",
    "gosu",
    "su-exec",
    "fakeroot",
    "bwrap",
    "firejail",
    "runcon",
    "faketime",
    "torsocks",
    "socat",
    "unlinkat",
    "entr",
    "rlwrap",
    "start-stop-daemon",
    "daemonize",
    "npx",
    "bunx",
    "pipx",
    "uvx",
];

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
        "read" | "getopts" | "mapfile" | "readarray" | "local" | "declare" | "typeset"
        | "export" | "readonly" | "let" => names(arguments),
        "watch" => {
            let words = options("bcdegtxwr", "nq").rest(arguments);
            let words = words
                .and_then(|words| words.iter().map(Word::known).collect::<Option<Vec<&str>>>());
            match words {
                Some(words) => vec![Inner::Script(words.join(" "))],
                None => unknown("runs what is made at run time"),
            }
        }
        "script" if has(arguments, &["-c", "--command"]) => unknown("runs text as code"),
        _ => program_of(program, arguments, outer),
    }
}

/// Returns what a program runs that is no builtin of the shell.
fn program_of(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    match program {
        "find" => find(arguments),
        "ssh" => remote(arguments, outer),
        "rsync"
            if arguments.iter().any(|word| {
                word.known().is_some_and(|text| {
                    text.starts_with("-e")
                        || text.starts_with("--rsh")
                        || text.starts_with("--rsync-path")
                })
            }) =>
        {
            unknown("is told how to reach other hosts")
        }
        "split" | "sort"
            if arguments.iter().any(|word| {
                word.known().is_some_and(|text| {
                    text.starts_with("--filter") || text.starts_with("--compress-program")
                })
            }) =>
        {
            unknown("runs a program for its output")
        }
        "docker" | "podman" | "nerdctl"
            if arguments.iter().any(|word| word.known() == Some("run")) =>
        {
            unknown("runs a container that may hold the host's files")
        }
        "docker" | "podman" | "nerdctl" | "kubectl" | "oc" => exec(arguments),
        "tmux" | "screen" | "dtach" if !arguments.is_empty() => unknown("runs a command elsewhere"),
        "nc" | "ncat" | "netcat" if has(arguments, &["-e", "-c", "--exec", "--sh-exec"]) => {
            unknown("gives a program to the network")
        }
        "tar" | "bsdtar"
            if arguments.iter().any(|word| {
                let begins = |text: &str| {
                    [
                        "--checkpoint-action",
                        "--to-command",
                        "--use-compress-program",
                        "--rsh-command",
                        "-I",
                        "--info-script",
                        "--new-volume-script",
                        "-F",
                    ]
                    .iter()
                    .any(|option| text.starts_with(option))
                };
                word.known().map_or(!word.begins_known(), begins)
            }) =>
        {
            unknown("may run a program")
        }
        "git" => git(arguments),
        _ => Vec::new(),
    }
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
    let before = arguments.get(..arguments.len() - rest.len()).unwrap_or_default();
    if before.iter().any(runs) {
        return unknown("is given settings that may run commands");
    }
    let words = rest.get(1..).unwrap_or_default();
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
                ..options("itd", "euwnc")
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

fn git(arguments: &[Word]) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`git` {why}"))];
    let Some(rest) = git_command(arguments) else {
        return unknown("is given settings that may run commands");
    };
    if rest.iter().any(|word| word.known().is_some_and(|text| text.starts_with("ext::"))) {
        return unknown("is given an address that runs a command");
    }
    match rest.first().map(Word::known) {
        None => Vec::new(),
        Some(None) => unknown("is given a command that is made at run time"),
        Some(Some(
            "filter-branch" | "bisect" | "config" | "daemon" | "difftool" | "mergetool"
            | "credential",
        )) if rest.len() > 1 && !has(rest, &["--get", "--list", "-l", "--get-all"]) => {
            unknown("may keep or run commands")
        }
        Some(Some("submodule")) if rest.iter().any(|word| word.known() == Some("foreach")) => {
            unknown("runs commands")
        }
        Some(Some("rebase")) if has(rest, &["-x", "--exec"]) => unknown("runs commands"),
        Some(Some(_)) => Vec::new(),
    }
}

/// Returns git's command with its arguments; `None` where the options before it may run something.
pub(super) fn git_command(arguments: &[Word]) -> Option<&[Word]> {
    let known = Options {
        long_flags: &[
            "--no-pager",
            "--bare",
            "--no-optional-locks",
            "--literal-pathspecs",
            "--version",
            "--help",
        ],
        long_valued: &["--git-dir", "--work-tree", "--namespace"],
        ..options("Pp", "C")
    };
    known.rest(arguments)
}

impl Word {
    /// Returns the name that a word such as `NAME=value` sets.
    fn name_set(&self) -> Option<String> {
        self.beginning().split_once('=').map(|(name, _)| name.to_owned())
    }
}
