//! Builtins of bash that run code, store code for later, or set variables.

use super::inner::Inner;
use super::options::{has, operands};
use super::word::Word;
use crate::argv::programs::{BLANK, Reader, Words, words};

/// The builtins of bash. Their arguments may become the values of variables.
pub(super) static NAMES: Words = Words::new(|| {
    words(
        "\
    : . [ alias bg bind break builtin caller cd command compgen complete compopt continue declare \
    dirs disown echo enable eval exec exit export false fc fg getopts hash help history jobs kill \
    let local logout mapfile popd printf pushd pwd read readarray readonly return set shift shopt \
    source suspend test times trap true type typeset ulimit umask unalias unset wait",
    )
});

const READ: Reader = Reader { flags: "ers", valued: "dinNptu", ..BLANK };

/// Returns what a builtin runs or sets; `None` if the program is another one, or the builtin has no
/// such effect with these arguments.
pub(super) fn inner(program: &str, arguments: &[Word]) -> Option<Vec<Inner>> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`{program}` {why}"))];
    let first = arguments.first().and_then(Word::known);
    Some(match program {
        "eval" => {
            let words: Option<Vec<&str>> = arguments.iter().map(Word::known).collect();
            let mut inner = unknown("runs text as code");
            inner.extend(words.map(|words| Inner::Script(words.join(" "))));
            inner
        }
        "source" | "." => unknown("runs a file as code"),
        "alias" => {
            let shows = |word: &Word| word.known().is_some_and(|word| !word.contains('='));
            if arguments.iter().all(shows) { Vec::new() } else { unknown("keeps code for later") }
        }
        "trap" if first == Some("--") => {
            return inner("trap", arguments.get(1..).unwrap_or_default());
        }
        "trap" => match arguments.first().map(Word::known) {
            None | Some(Some("-" | "" | "-p" | "-l")) => Vec::new(),
            _ => unknown("keeps code for later"),
        },
        "coproc" => vec![
            Inner::Words(arguments.to_vec()),
            Inner::Unknown("`coproc` runs a command in the background".to_owned()),
        ],
        "set" if !sets_plainly(arguments) => unknown("changes how bash reads what follows"),
        "history" if !arguments.iter().all(is_number) => unknown("keeps code for later"),
        "fc" => unknown("runs earlier commands"),
        "hash" | "enable" | "complete" | "bind" | "compgen" if !arguments.is_empty() => {
            unknown("changes which code runs")
        }
        "mapfile" | "readarray" if has(arguments, &["-C"]) => unknown("runs code for each line"),
        "jobs" if has(arguments, &["-x"]) => unknown("runs a command"),
        "command" if first.is_some_and(|f| f.starts_with('-') && f.contains(['v', 'V'])) => {
            Vec::new()
        }
        "printf" => match first {
            Some("-v") => names(arguments.get(1..2).unwrap_or_default()),
            Some(first) if first.starts_with("-v") => {
                vec![Inner::Assigned(first.trim_start_matches("-v").to_owned())]
            }
            None if arguments.first().is_some_and(|word| !word.begins_known()) => {
                unknown("may set a variable whose name is computed at run time")
            }
            _ => Vec::new(),
        },
        "declare" | "typeset" | "local" if has(arguments, &["-n"]) => {
            unknown("creates another name for a variable")
        }
        "declare" | "typeset" | "local" | "export" | "readonly" if sets_arrays(arguments) => {
            unknown("may expand the text of an array a second time")
        }
        // The values of options do not name variables. With an unknown option, every word counts as
        // a name.
        "read" => names(operands(&READ, arguments).unwrap_or(arguments)),
        "getopts" | "mapfile" | "readarray" | "local" | "declare" | "typeset" | "export"
        | "readonly" | "let" => names(arguments),
        _ => return None,
    })
}

fn is_number(word: &Word) -> bool {
    word.known().is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Tells whether `set` only changes options that do not change how bash reads a script, or sets
/// positional parameters after `--`.
fn sets_plainly(arguments: &[Word]) -> bool {
    const NAMES: [&str; 5] = ["errexit", "nounset", "xtrace", "pipefail", "verbose"];
    // `set -o` alone lists the options.
    let is_plain_name = |name: Option<Option<&str>>| {
        name.is_none_or(|name| name.is_some_and(|n| NAMES.contains(&n)))
    };
    let mut words = arguments.iter().map(Word::known);
    while let Some(word) = words.next() {
        let is_plain = match word {
            Some("--") => return true,
            Some(text) => {
                let letters = text.strip_prefix(['-', '+']);
                letters.is_some_and(|letters| {
                    let named = letters.contains('o');
                    letters.chars().all(|c| "euxvfnEo".contains(c))
                        && (!named || is_plain_name(words.next()))
                })
            }
            None => false,
        };
        if !is_plain {
            return false;
        }
    }
    true
}

/// Tells whether a declaration may set an array from the text of a word, as `declare -a "x=($y)"`
/// does. Bash expands such a text a second time.
fn sets_arrays(arguments: &[Word]) -> bool {
    let is_array = |word: &Word| {
        word.known().is_some_and(|text| text.starts_with('-') && text.contains(['a', 'A']))
    };
    let is_computed = |word: &Word| !word.is_assignment && word.known().is_none();
    arguments.iter().any(|word| word.beginning().contains('('))
        || arguments.iter().any(is_array) && arguments.iter().any(is_computed)
}

/// Returns the variables that a builtin sets.
fn names(arguments: &[Word]) -> Vec<Inner> {
    let name = |word: &Word| {
        let text = word.known().or_else(|| word.begins_known().then(|| word.beginning()));
        let name = text.and_then(|text| text.split(['=', '[', '+']).next());
        Inner::Assigned(name.unwrap_or_default().to_owned())
    };
    arguments.iter().map(name).collect()
}

/// Tells whether bash evaluates the arguments of a builtin as an expression or a subscript.
pub(super) fn evaluates(program: &str, arguments: &[Word]) -> bool {
    let has = |c: char| arguments.iter().any(|word| word.beginning().contains(c));
    let is_option = |word: &Word, letter: char| {
        word.known().is_none_or(|text| text.starts_with('-') && text.contains(letter))
    };
    match program {
        "let" => true,
        "test" | "[" => arguments.iter().any(|word| is_option(word, 'v')),
        "declare" | "typeset" | "local" | "export" | "readonly" => {
            has('[') || arguments.iter().any(|word| is_option(word, 'i'))
        }
        "printf" => {
            let first = arguments.first();
            first.is_some_and(|word| word.known().is_none_or(|text| text.starts_with("-v")))
        }
        "read" | "unset" | "wait" | "mapfile" | "readarray" | "getopts" => {
            has('[') || arguments.iter().any(|word| word.known().is_none())
        }
        _ => false,
    }
}
