//! Programs that run other programs: finds the inner commands, which are then classified too.

use super::inner::Inner;
use super::options::{has, has_shortened, operands, runs_value};
use super::syntax::Simple;
use super::word::Word;
use super::{builtins, code, sql, unknown};
use crate::argv::programs::{self, BLANK, Kind, Reader, Stdin, is_listed};

/// The maximum number of words to try as the subcommand of a program, inclusive.
const MAX_TRIED: usize = 8;

/// Returns what `program` runs.
pub(super) fn inner(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    if let Some(inner) = builtins::inner(program, arguments) {
        return inner;
    }
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    match program {
        "find" => return find(arguments),
        "ssh" => return remote(arguments, outer),
        "tar" | "bsdtar" | "gtar" if tar_runs(arguments) => return unknown("may run a program"),
        "tar" | "bsdtar" | "gtar" => return Vec::new(),
        "git" => return super::git::inner(arguments),
        // `destructive.rs` covers every use of `crontab` that changes something.
        "crontab" => return Vec::new(),
        "psql" | "mysql" | "mariadb" => return database(program, arguments, outer),
        "sqlite3" if only_selects(arguments) => return Vec::new(),
        "make" | "gmake" | "bmake" | "remake" if arguments.iter().any(sets_code) => {
            return unknown("is given a variable that may hold code");
        }
        "sftp" if outer.piped => return unknown("executes the commands that it reads"),
        "rename" | "prename" | "file-rename" => {
            let is_code =
                |word: &Word| word.known().is_none_or(|text| text.contains(['/', '$', '`', '(']));
            return if arguments.iter().any(is_code) {
                unknown("may be given code")
            } else {
                Vec::new()
            };
        }
        _ => {}
    }
    let is_verb = |verbs: &str, word: &Word| word.known().is_some_and(|w| is_listed(verbs, w));
    let subcommand = |from: usize| {
        arguments.iter().enumerate().skip(from).find_map(|(at, word)| {
            let verb = programs::verbs(program).find(|verb| is_verb(verb.verbs, word))?;
            Some((at, &verb.reader))
        })
    };
    // The word after an option may be the value of that option. The subcommand then follows later.
    let may_be_value = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| arguments.get(before));
        before.is_some_and(|word| word.beginning().starts_with('-') && !word.text.contains('='))
    };
    let mut found = Vec::new();
    let mut next = subcommand(0);
    let mut tried = 0;
    while let Some((at, reader)) = next {
        if tried == MAX_TRIED {
            found.push(Inner::Unknown(format!("`{program}` may have one of many subcommands")));
            break;
        }
        tried += 1;
        found.extend(read(program, reader, arguments.get(at + 1..).unwrap_or_default(), outer));
        next = subcommand(at + 1).filter(|_| may_be_value(at));
    }
    if let Some(reader) = programs::reader(program) {
        found.extend(read(program, reader, arguments, outer));
    }
    found.extend(unknown::launched(program, arguments));
    found
}

/// The shells with which `make` runs its recipes anyway.
const PLAIN_SHELLS: &str = "/bin/sh /bin/bash /bin/dash /usr/bin/sh /usr/bin/bash /usr/bin/dash";

/// Tells whether an argument of `make` may set a variable to code: the program that runs the
/// recipes, a text that make or its shell expands, the name of a known program, or a word that is
/// known only at run time.
fn sets_code(word: &Word) -> bool {
    let (name, value) = word.beginning().split_once('=').unwrap_or_default();
    let name = name.trim_end_matches([':', '+', '?', '!']);
    if name == "SHELL" && word.known().is_some() && is_listed(PLAIN_SHELLS, value) {
        return false;
    }
    !word.beginning().starts_with('-')
        && (word.known().is_none()
            || is_listed("SHELL .SHELLFLAGS MAKE MAKEFLAGS MAKEFILES", name)
            || value.contains(['$', '`', ';', '|', '&', '<', '>'])
            || unknown::names_program(value))
}

/// Returns what a database client runs, apart from statements that only read.
fn database(program: &str, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let Some(reader) = programs::reader(program) else { return Vec::new() };
    let remaining = sql::without_reading(program, arguments);
    let unfed = Simple::default();
    let outer = if remaining.had_statement { &unfed } else { outer };
    read(program, reader, &remaining.words, outer)
}

/// Tells whether `sqlite3` is given only statements that read. It then reads no standard input.
fn only_selects(arguments: &[Word]) -> bool {
    let operands = programs::reader("sqlite").and_then(|reader| operands(reader, arguments));
    let statements = operands.and_then(|words| words.get(1..)).unwrap_or_default();
    let reads = |word: &Word| word.known().is_some_and(sql::only_reads);
    !statements.is_empty() && statements.iter().all(reads)
}

/// Returns what `program` runs; `reader` describes how the program reads its arguments.
fn read(program: &str, reader: &Reader, arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    // In a shell, `-v` and `-h` are settings. Some interpreters run their standard input even with
    // `-v`.
    let is_fed = outer.piped || outer.input.is_some();
    let asks = |word: &str| match word {
        "--version" | "--help" => true,
        "-V" | "-h" | "-v" => !is_fed && !matches!(reader.kind, Kind::Shell),
        _ => false,
    };
    if let [only] = arguments
        && only.known().is_some_and(asks)
    {
        return Vec::new();
    }
    match reader.kind {
        Kind::Program => wrapped(program, reader, arguments),
        Kind::Within => {
            let mut inner = unknown("runs a program elsewhere");
            inner.extend(wrapped(program, reader, arguments));
            inner
        }
        Kind::Shell => code::shell(program, reader, arguments, outer),
        Kind::Script | Kind::Permuted => code::interpreter(program, reader, arguments),
        Kind::Line if program == "watch" => match known_line(reader, arguments) {
            Some(line) => vec![Inner::Script(line)],
            None => unknown("runs a command that is computed"),
        },
        Kind::Line => {
            let operands = operands(reader, arguments);
            let is_given = operands.is_none_or(|words| words.len() > reader.before);
            if is_given || outer.piped { unknown("may be given code") } else { Vec::new() }
        }
        Kind::Options if runs_value(reader, arguments) => unknown("may run the value of an option"),
        Kind::Options if reader.stdin == Stdin::Unless && outer.piped => {
            unknown("runs what is piped into it")
        }
        Kind::Options => Vec::new(),
        Kind::Every if arguments.is_empty() && !outer.piped => Vec::new(),
        Kind::Every => {
            let mut inner = unknown("runs other programs or code in a way that is not analyzed");
            // A blocked command in a literal argument is still found.
            inner.extend(arguments.iter().filter_map(|word| {
                let word = word.known()?;
                let first = word.split_whitespace().next()?;
                super::destructive::is_program(first).then(|| Inner::Script(word.to_owned()))
            }));
            inner
        }
    }
}

/// Returns the command line that a program such as `watch` joins from its arguments and passes to a
/// shell; `None` if a word is computed or an option is unknown.
fn known_line(reader: &Reader, arguments: &[Word]) -> Option<String> {
    let words: Option<Vec<&str>> = operands(reader, arguments)?.iter().map(Word::known).collect();
    words.map(|words| words.join(" "))
}

/// Returns what a wrapper runs: the command after its options. For `env`, also returns the
/// variables that it sets.
fn wrapped(name: &str, reader: &Reader, arguments: &[Word]) -> Vec<Inner> {
    let mut inner = Vec::new();
    // A lone dash makes `env` start with an empty environment.
    let arguments = match arguments.first().and_then(Word::known) {
        Some("-") if name == "env" => arguments.get(1..).unwrap_or_default(),
        _ => arguments,
    };
    let behind_own = |rest: &'_ [Word]| {
        let rest = rest.get(reader.before..).unwrap_or_default();
        // `kubectl` also accepts its options behind the name of the pod.
        let behind = operands(reader, rest).filter(|_| is_listed("kubectl oc", name));
        let rest = behind.unwrap_or(rest);
        let is_end = rest.first().and_then(Word::known) == Some("--");
        rest.get(usize::from(is_end)..).unwrap_or_default().to_vec()
    };
    let operands = operands(reader, arguments);
    let rest = operands.map(behind_own);
    // Programs differ in how they read options after their own operands.
    let is_clear = |rest: &Vec<Word>| {
        rest.first().is_none_or(|word| reader.before == 0 || !word.beginning().starts_with('-'))
            && operands.iter().flat_map(|all| all.iter().take(reader.before)).all(Word::is_one_word)
    };
    let Some(mut words) = rest.filter(is_clear) else {
        inner.push(Inner::Unknown(format!("`{name}` is given an unknown option")));
        // Still look for a blocked command among the arguments.
        let at = arguments.iter().position(|word| {
            word.program().is_some_and(|program| super::destructive::is_program(&program))
        });
        let words = at.and_then(|at| arguments.get(at..)).unwrap_or_default();
        if !words.is_empty() {
            inner.push(Inner::Words(words.to_vec()));
        }
        return inner;
    };
    if name == "env" {
        let set = words.iter().take_while(|word| word.beginning().contains('=')).count();
        for word in words.drain(..set) {
            let name = word.beginning().split('=').next().unwrap_or_default();
            inner.push(Inner::Assigned(name.to_owned()));
            if !word.is_one_word() {
                inner.push(Inner::Unknown("`env` is given a value that bash may split".to_owned()));
            }
        }
    }
    if words.is_empty() {
        return inner;
    }
    if reader.stdin == Stdin::Words {
        let options = arguments.get(..arguments.len() - words.len()).unwrap_or_default();
        let mark = replaced(options);
        if has(options, &["-i", "--replace"]) {
            inner.push(Inner::Unknown(format!(
                "`{name}` inserts words that are known only at run time"
            )));
        }
        for word in &mut words {
            if mark.as_ref().is_some_and(|mark| word.beginning().contains(mark.as_str())) {
                *word = Word::unknown();
            }
        }
        // The program appends arguments that are known only at run time.
        words.push(Word { many: true, ..Word::unknown() });
    }
    inner.push(Inner::Words(words));
    inner
}

/// Returns the placeholder of `xargs -I`.
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

/// Compression programs, which run nothing else.
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
    // The word after `-f`, also in a bundle, names the archive.
    let is_archive = |at: usize, word: &Word| {
        let before = at.checked_sub(1).and_then(|before| arguments.get(before));
        word.is_one_word()
            && before.and_then(Word::known).is_some_and(|text| {
                !text.starts_with("--") && (at == 1 || text.starts_with('-')) && text.ends_with('f')
            })
    };
    // The first argument of tar is a bundle of options even without a dash.
    let first = arguments.first().and_then(Word::known);
    first.is_some_and(|first| !first.starts_with('-') && first.contains(['I', 'F']))
        || arguments.iter().enumerate().any(|(at, word)| {
            let one = std::slice::from_ref(word);
            match word.known() {
                None => !word.begins_known() && !is_archive(at, word),
                Some(_) if is_harmless(at) => false,
                Some(_) => has(one, RUN) || has_shortened(one, RUN),
            }
        })
}

fn find(arguments: &[Word]) -> Vec<Inner> {
    let mut inner = Vec::new();
    let mut at = 0;
    while let Some(word) = arguments.get(at) {
        at += 1;
        if matches!(word.known(), Some("-exec" | "-execdir" | "-ok" | "-okdir")) {
            let rest = arguments.get(at..).unwrap_or_default();
            let is_end = |at: usize| match rest.get(at).and_then(Word::known) {
                Some("+") => at > 0 && rest.get(at - 1).and_then(Word::known) == Some("{}"),
                word => word == Some(";"),
            };
            let end = (0..rest.len()).find(|at| is_end(*at)).unwrap_or(rest.len());
            let words = rest.get(..end).unwrap_or_default();
            // find replaces `{}` with a file name that we do not know. Before `+`, find replaces it
            // with several names.
            let many = rest.get(end).and_then(Word::known) == Some("+");
            let words = words.iter().map(|word| {
                if word.beginning().contains("{}") {
                    Word { many, ..Word::unknown() }
                } else {
                    word.clone()
                }
            });
            inner.push(Inner::Words(words.collect()));
            at += end;
        }
    }
    inner
}

/// The options of `ssh` that take no value.
const FLAGS: &str = "46AaCfGgKkMNnqsTtVvXxYy";

/// Settings of `ssh` that run and load nothing, in lower case.
const SETTINGS: &str = "\
    addressfamily batchmode bindaddress challengeresponseauthentication checkhostip ciphers \
    clearallforwardings compression connectionattempts connecttimeout controlmaster controlpath \
    controlpersist exitonforwardfailure forwardagent forwardx11 globalknownhostsfile \
    gssapiauthentication hashknownhosts hostkeyalgorithms hostkeyalias hostname identitiesonly \
    identityfile kbdinteractiveauthentication kexalgorithms localforward loglevel macs \
    numberofpasswordprompts passwordauthentication port preferredauthentications proxyjump \
    pubkeyacceptedalgorithms pubkeyacceptedkeytypes pubkeyauthentication requesttty sendenv \
    serveralivecountmax serveraliveinterval stricthostkeychecking tcpkeepalive updatehostkeys user \
    userknownhostsfile verifyhostkeydns visualhostkey";

/// Returns the values of `-o` among the options of `ssh`.
fn settings(options: &[Word]) -> impl Iterator<Item = &str> {
    options.iter().enumerate().filter_map(|(at, word)| {
        let bundle = word.known()?.strip_prefix('-')?;
        let (before, attached) = bundle.split_once('o')?;
        let is_option = before.chars().all(|letter| FLAGS.contains(letter));
        let next = || options.get(at + 1).and_then(Word::known).unwrap_or_default();
        is_option.then(|| if attached.is_empty() { next() } else { attached })
    })
}

/// Tells whether a setting of `ssh` runs and loads nothing.
fn is_harmless(setting: &str) -> bool {
    let name = setting.split(['=', ' ', '\t']).next().unwrap_or_default();
    is_listed(SETTINGS, &name.to_lowercase())
}

/// Returns what `ssh` runs: a shell on the remote host reads the command.
fn remote(arguments: &[Word], outer: &Simple) -> Vec<Inner> {
    // The row of `ssh` in `argv/programs/wrappers.rs` lists `-o` and `-S` as options that load
    // settings. This function accepts `-S`, and `-o` with a setting of `SETTINGS`.
    const OPTIONS: Reader = Reader { flags: FLAGS, valued: "BbcDEeiJLlmOopQRSWw", ..BLANK };
    let unknown = |why: &str| vec![Inner::Unknown(format!("`ssh` {why}"))];
    // ssh also accepts options after the host.
    let host = operands(&OPTIONS, arguments);
    let words = host.and_then(|rest| operands(&OPTIONS, rest.get(1..).unwrap_or_default()));
    let (Some(rest), Some(words)) = (host, words) else {
        return unknown("is given an unknown option");
    };
    let words = match words.first().and_then(Word::known) {
        Some("--") => words.get(1..).unwrap_or_default(),
        _ => words,
    };
    let host = arguments.len() - rest.len();
    let own = arguments.get(..arguments.len() - words.len()).unwrap_or_default();
    let is_computed = |(at, word): (usize, &Word)| {
        if at == host { !word.is_one_word() } else { word.known().is_none() }
    };
    if own.iter().enumerate().any(is_computed) || !settings(own).all(is_harmless) {
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
        None => unknown("runs a command that is computed"),
    }
}
