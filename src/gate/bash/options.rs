//! Parses the options of a program by its row in the table of `argv/programs.rs`.

use super::word::Word;
use crate::argv::programs::{Reader, is_listed};

/// Returns the words from the first operand on. Returns `None` if an option runs something, is
/// unknown or is computed. Also returns `None` if bash may expand the value of an option to several
/// words or none.
pub(super) fn operands<'a>(reader: &Reader, words: &'a [Word]) -> Option<&'a [Word]> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let Some(text) = word.known() else {
            // A computed word ends the options if its literal prefix shows that it is not one;
            // otherwise, we cannot tell.
            return word.begins_known().then(|| words.get(at..)).flatten();
        };
        if text == "--" {
            return words.get(at + 1..);
        }
        match text.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            None => break,
            Some(letters) => {
                let values = own_words(reader, text, letters)?;
                at += 1;
                if words.iter().skip(at).take(values).any(|value| !value.is_one_word()) {
                    return None;
                }
                at += values;
            }
        }
    }
    words.get(at.min(words.len())..)
}

/// Returns how many of the words after an option are its values; `None` if the option runs
/// something or is unknown.
fn own_words(reader: &Reader, text: &str, letters: &str) -> Option<usize> {
    let name = text.split('=').next().unwrap_or(text);
    if is_listed(reader.long_valued, name) {
        return Some(usize::from(!text.contains('=')));
    }
    if is_listed(reader.long_flags, name) {
        return Some(0);
    }
    if text.starts_with("--") {
        return None;
    }
    let mut letters = letters.chars();
    while let Some(letter) = letters.next() {
        if reader.valued.contains(letter) {
            return Some(usize::from(letters.as_str().is_empty()));
        }
        if reader.attached.contains(letter) {
            return Some(0);
        }
        if !reader.flags.contains(letter) {
            return None;
        }
    }
    Some(0)
}

/// Returns the known beginnings of the words before `--`. An option shows there even if its value,
/// which is attached to it, is computed.
fn before_end(words: &[Word]) -> impl Iterator<Item = &str> {
    words.iter().take_while(|word| word.known() != Some("--")).map(Word::beginning)
}

/// Tells whether the words before `--` contain one of the options: alone, with a value, or in a
/// bundle of short options.
pub(super) fn has(words: &[Word], options: &[&str]) -> bool {
    before_end(words).any(|word| {
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

/// Tells whether the words before `--` contain one of the long options, also abbreviated.
pub(super) fn has_shortened(words: &[Word], options: &[&str]) -> bool {
    before_end(words).any(|word| {
        let name = word.split('=').next().unwrap_or(word);
        name.len() > 2 && name.starts_with("--") && options.iter().any(|o| o.starts_with(name))
    })
}

/// Tells whether the words before `--` contain an option whose value the program runs or takes as
/// code.
pub(super) fn runs_value(reader: &Reader, words: &[Word]) -> bool {
    let letters = [reader.runs, reader.code];
    let names = [reader.long_runs, reader.long_code];
    let long: Vec<&str> = names.iter().flat_map(|list| list.split_ascii_whitespace()).collect();
    let has_letter = |word: &str| {
        let bundle = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        bundle.is_some_and(|bundle| {
            let is_one = |letter| letters.iter().any(|set| set.contains(letter));
            bundle.chars().take_while(|letter| !reader.valued.contains(*letter)).any(is_one)
        })
    };
    has(words, &long) || has_shortened(words, &long) || before_end(words).any(has_letter)
}
