//! Programs that run other programs or code, and which of their arguments say what (ARG-13).
//!
//! One table for shells, interpreters, wrappers, and programs that take a command in an option. A program that is not in it counts as one that
//! runs nothing else.
//!
//! *Source*: the manual pages of the programs.

mod commands;
mod interpreters;
mod reader;
mod verbs;
mod wrappers;

pub(crate) use reader::{Kind, Reader, Stdin, Verb};

static READERS: [&[Reader]; 3] = [interpreters::READERS, wrappers::READERS, commands::READERS];

/// Returns how a program reads its arguments; `base` is its name without folders.
pub(crate) fn reader(base: &str) -> Option<&'static Reader> {
    let named = |name: &str| {
        let mut readers = READERS.iter().copied().flatten();
        readers.find(|reader| is_listed(reader.names, name))
    };
    let is_loader =
        ["ld-linux", "ld-musl", "ld.so", "ld64.so"].iter().any(|name| base.starts_with(name));
    let stem = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    named(base).or_else(|| named(if is_loader { "ld-linux" } else { stem }))
}

/// Returns the words after which a program runs another one.
pub(crate) fn verbs(base: &str) -> impl Iterator<Item = &'static Verb> {
    verbs::VERBS.iter().filter(move |verb| is_listed(verb.names, base))
}

/// Tells whether a word is in a list of words.
pub(crate) fn is_listed(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|known| known == word)
}
