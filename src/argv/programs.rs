//! Programs that run other programs or code, and the arguments that name them.
//!
//! One table lists shells, interpreters, wrappers, and programs that take a command in an option.
//! The template check (ARG-13) and the bash classifier (SH-4) read it. The template check assumes
//! that a program outside the table does not run other programs or code; the classifier judges such
//! a program by the form of its arguments (`gate/bash/unknown.rs`).
//!
//! *Source*: the manual pages of the programs.

use std::sync::LazyLock;

use foldhash::{HashMap, HashMapExt as _, HashSet};

mod commands;
mod interpreters;
mod reader;
mod verbs;
mod wrappers;

pub(crate) use reader::{BLANK, Kind, Reader, Stdin, Verb};

static READERS: [&[Reader]; 3] = [interpreters::READERS, wrappers::READERS, commands::READERS];

static BY_NAME: LazyLock<HashMap<&str, &Reader>> = LazyLock::new(|| {
    let readers = READERS.iter().copied().flatten();
    readers.flat_map(|reader| reader.names.split(' ').map(move |name| (name, reader))).collect()
});

/// Returns how a program reads its arguments; `base` is its name without directories. Ignores a
/// version suffix, as in `python3.11`.
pub(crate) fn reader(base: &str) -> Option<&'static Reader> {
    let named = |name: &str| BY_NAME.get(name).copied();
    let is_loader =
        ["ld-linux", "ld-musl", "ld.so", "ld64.so"].iter().any(|name| base.starts_with(name));
    let stem = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    named(base).or_else(|| named(if is_loader { "ld-linux" } else { stem }))
}

static VERBS_BY_NAME: LazyLock<HashMap<&str, Vec<&Verb>>> = LazyLock::new(|| {
    let mut by_name: HashMap<&str, Vec<&Verb>> = HashMap::new();
    for verb in verbs::VERBS {
        verb.names.split(' ').for_each(|name| by_name.entry(name).or_default().push(verb));
    }
    by_name
});

/// Returns the subcommands with which a program runs another one.
pub(crate) fn verbs(base: &str) -> impl Iterator<Item = &'static Verb> {
    VERBS_BY_NAME.get(base).into_iter().flatten().copied()
}

/// Tells whether a word is in a list of words that are separated by spaces.
pub(crate) fn is_listed(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|known| known == word)
}

/// A set of words for frequent lookups. Its hash is fast, and not made for hostile keys, because the
/// keys are our own.
pub(crate) type Words = LazyLock<HashSet<&'static str>>;

/// A table by the name of a program, for frequent lookups.
pub(crate) type ByProgram<T> = LazyLock<HashMap<&'static str, T>>;

/// Splits a list of words at spaces.
pub(crate) fn words(list: &'static str) -> HashSet<&'static str> {
    list.split_ascii_whitespace().collect()
}
