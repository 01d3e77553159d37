//! Programs that run other programs: what they run is found and judged as well.

use super::code;
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

/// Programs whose first argument that is no option is the program they run, with their options that take a value in a word of its own.
const PREFIXES: &[(&str, &[&str])] = &[
    ("env", &["-u", "--unset", "-C", "--chdir"]),
    ("nice", &["-n", "--adjustment"]),
    ("nohup", &[]),
    ("setsid", &[]),
    ("time", &["-f", "--format", "-o", "--output"]),
    ("command", &[]),
    ("builtin", &[]),
    ("exec", &["-a"]),
    ("stdbuf", &["-i", "-o", "-e", "--input", "--output", "--error"]),
    ("ionice", &["-c", "-n", "--class", "--classdata"]),
    ("unbuffer", &[]),
    ("strace", &["-e", "-o", "-p", "-s", "-u", "-a", "-O", "-S", "-P", "-I", "-b", "-E", "-X"]),
    ("ltrace", &["-e", "-o", "-p", "-s", "-u", "-a", "-n", "-l", "-x"]),
    ("catchsegv", &[]),
    (
        "systemd-run",
        &[
            "-p",
            "--property",
            "-u",
            "--unit",
            "-M",
            "--machine",
            "-H",
            "--host",
            "-E",
            "--setenv",
            "--uid",
            "--gid",
            "--slice",
            "--description",
            "--working-directory",
            "--on-active",
            "--on-calendar",
        ],
    ),
    ("dbus-run-session", &[]),
    ("xvfb-run", &["-n", "-s", "-e", "-f", "-p", "-w"]),
    ("proxychains", &["-f"]),
    ("systemd-inhibit", &["--what", "--who", "--why", "--mode"]),
    ("setarch", &[]),
    ("linux64", &[]),
    ("linux32", &[]),
    ("cpulimit", &["-l", "-p", "-e", "-P"]),
    ("prlimit", &["-p", "-o"]),
    ("numactl", &["-N", "-m", "-C", "-i", "-p"]),
    (
        "parallel",
        &[
            "-j",
            "--jobs",
            "-n",
            "-N",
            "-I",
            "-L",
            "-a",
            "--arg-file",
            "--joblog",
            "--delay",
            "--timeout",
            "-d",
        ],
    ),
    (
        "xargs",
        &[
            "-n",
            "-P",
            "-I",
            "-i",
            "-L",
            "-l",
            "-s",
            "-d",
            "-a",
            "-E",
            "-e",
            "--max-args",
            "--max-procs",
            "--max-lines",
            "--max-chars",
            "--delimiter",
            "--arg-file",
            "--eof",
            "--replace",
            "--process-slot-var",
        ],
    ),
    ("busybox", &[]),
    ("toybox", &[]),
];

/// The same with a number of words of their own before the program.
const COUNTED: &[(&str, usize, &[&str])] = &[
    ("timeout", 1, &["-s", "--signal", "-k", "--kill-after"]),
    ("taskset", 1, &["-p", "-c", "--cpu-list"]),
    ("chrt", 1, &["-T", "-P", "-D"]),
    ("flock", 1, &["-w", "--timeout", "-E", "--conflict-exit-code", "-c", "--command"]),
];

/// Returns what `program` runs.
pub(super) fn inner(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    if let Some(inner) = code::inner(program, arguments, outer) {
        return inner;
    }
    if let Some((name, valued)) = PREFIXES.iter().find(|(name, _)| *name == program) {
        return prefixed(name, arguments, valued, 0);
    }
    if let Some((name, count, valued)) = COUNTED.iter().find(|(name, _, _)| *name == program) {
        return prefixed(name, arguments, valued, *count);
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
        "trap" => match arguments.first().map(Word::known) {
            None | Some(Some("-" | "" | "-p" | "-l" | "--")) => Vec::new(),
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
        "printf" if !has(arguments, &["-v"]) => Vec::new(),
        "printf" => names(arguments.get(..2).unwrap_or_default()),
        "read" | "getopts" | "mapfile" | "readarray" | "local" | "declare" | "typeset"
        | "export" | "readonly" | "let" => names(arguments),
        "watch" => {
            let words = after_options(arguments, &["-n", "--interval", "-d", "-q", "--equexit"]);
            let words: Option<Vec<&str>> = words.iter().map(|word| word.known()).collect();
            match words {
                Some(words) => vec![Inner::Script(words.join(" "))],
                None => unknown("runs what is made at run time"),
            }
        }
        "script" if has(arguments, &["-c", "--command"]) => unknown("runs text as code"),
        "find" => find(arguments),
        "ssh" => remote(after_options(
            arguments,
            &[
                "-b", "-c", "-D", "-E", "-e", "-F", "-I", "-i", "-J", "-L", "-l", "-m", "-O", "-o",
                "-p", "-Q", "-R", "-S", "-W", "-w",
            ],
        )),
        "docker" | "podman" | "nerdctl" | "kubectl" | "oc" => exec(arguments),
        "tmux" | "screen" | "dtach" if !arguments.is_empty() => unknown("runs a command elsewhere"),
        "nc" | "ncat" | "netcat" if has(arguments, &["-e", "-c", "--exec", "--sh-exec"]) => {
            unknown("gives a program to the network")
        }
        "socat" => unknown("can run programs"),
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
                word.known().is_none_or(begins)
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

/// Returns the words from the first that is no option on.
fn after_options<'a>(words: &'a [Word], valued: &[&str]) -> &'a [Word] {
    let mut at = 0;
    while let Some(word) = words.get(at).and_then(Word::known) {
        match word {
            "--" => return words.get(at + 1..).unwrap_or_default(),
            option if option.starts_with('-') && option.len() > 1 => {
                at += 1 + usize::from(valued.contains(&option));
            }
            _ => break,
        }
    }
    words.get(at..).unwrap_or_default()
}

fn prefixed(name: &str, arguments: &[Word], valued: &[&str], count: usize) -> Vec<Inner> {
    let mut inner = Vec::new();
    if name == "env" && has(arguments, &["-S", "--split-string"]) {
        inner.push(Inner::Unknown("`env` splits a text into a command".to_owned()));
    }
    if name == "command" && has(arguments, &["-v", "-V"]) {
        return inner;
    }
    if name == "flock" && has(arguments, &["-c", "--command"]) {
        inner.push(Inner::Unknown("`flock` runs text as code".to_owned()));
    }
    let mut rest = after_options(arguments, valued).get(count..).unwrap_or_default();
    rest = match rest.first().and_then(Word::known) {
        Some("--") => rest.get(1..).unwrap_or_default(),
        _ => rest,
    };
    if name == "env" || name == "systemd-run" {
        while let Some((set, _)) = rest.first().and_then(|word| word.text_before('=')) {
            inner.push(Inner::Assigned(set));
            rest = rest.get(1..).unwrap_or_default();
        }
    }
    let mut words = rest.to_vec();
    if words.is_empty() {
        return inner;
    }
    if matches!(name, "xargs" | "parallel") {
        // What it adds is known only when it runs.
        words.push(Word::unknown());
    }
    inner.push(Inner::Words(words));
    inner
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
                if word.known() == Some("{}") { Word::unknown() } else { word.clone() }
            });
            inner.push(Inner::Words(words.collect()));
            at += end;
        }
    }
    inner
}

/// A command for another host, which a shell reads there.
fn remote(arguments: &[Word]) -> Vec<Inner> {
    let words = arguments.get(1..).unwrap_or_default();
    if words.is_empty() {
        return Vec::new();
    }
    let words: Option<Vec<&str>> = words.iter().map(Word::known).collect();
    match words {
        Some(words) => vec![Inner::Script(words.join(" "))],
        None => vec![Inner::Unknown("a command for another host is made at run time".to_owned())],
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
            let valued = [
                "-e",
                "--env",
                "-u",
                "--user",
                "-w",
                "--workdir",
                "--env-file",
                "-n",
                "--namespace",
                "-c",
                "--container",
            ];
            after_options(rest, &valued).get(1..).unwrap_or_default()
        }
    };
    if words.is_empty() { Vec::new() } else { vec![Inner::Words(words.to_vec())] }
}

fn git(arguments: &[Word]) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`git` {why}"))];
    let rest = after_options(
        arguments,
        &["-C", "--git-dir", "--work-tree", "--namespace", "-c", "--config-env", "--exec-path"],
    );
    let before = arguments.len() - rest.len();
    let globals = arguments.get(..before).unwrap_or_default();
    if globals.iter().any(|word| {
        word.known().is_some_and(|text| {
            text.starts_with("-c")
                || text.starts_with("--exec-path")
                || text.starts_with("--config-env")
        })
    }) {
        return unknown("is given settings that may run commands");
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

impl Word {
    /// Returns what stands before and whether anything follows the first `mark`.
    fn text_before(&self, mark: char) -> Option<(String, ())> {
        let text = self.known().unwrap_or_else(|| self.beginning());
        text.split_once(mark).map(|(name, _)| (name.to_owned(), ()))
    }
}
