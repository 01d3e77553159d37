//! Clients of HTTP that ask a server to change something: by the method, or by a verb in the path
//! to which they send data. *Source*: the manual pages of the programs; threat model, SH-5.

use super::options::has;
use super::verbs::begins_or_ends_with_verb;
use super::word::Word;
use crate::argv::programs::is_listed;

/// Options that send data, and so make the method POST.
const DATA: &[&str] = &[
    "-d",
    "-F",
    "--data",
    "--data-ascii",
    "--data-binary",
    "--data-raw",
    "--data-urlencode",
    "--form",
    "--json",
    "--post-data",
    "--post-file",
];

/// Tells whether the arguments of an HTTP client ask a server to change something.
pub(super) fn asks_to_change(program: &str, arguments: &[Word]) -> bool {
    let is_upload = |word: &Word| matches!(word.known(), Some("-T" | "--upload-file"));
    program == "curl" && arguments.iter().any(is_upload)
        || selects(program, arguments, &["DELETE", "PUT", "PATCH"])
        || posts(program, arguments)
            && arguments.iter().filter_map(Word::known).any(has_verb_in_path)
}

/// Tells whether the arguments send data. `gh` and `glab` name what they change by its path.
fn posts(program: &str, arguments: &[Word]) -> bool {
    is_listed("curl wget http https xh xhs", program)
        && !has(arguments, &["-G", "--get"])
        && (has(arguments, DATA) || selects(program, arguments, &["POST"]))
}

/// Tells whether a part of the path of an address begins or ends with a verb, as in
/// `http://es/index/_delete_by_query` and `http://h/-/quit`.
fn has_verb_in_path(text: &str) -> bool {
    if text.starts_with('-') || text.contains(['{', '"', ' ', '@']) {
        return false;
    }
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    let path = address.split(['?', '#']).next().unwrap_or(address);
    path.split('/').skip(1).any(|part| begins_or_ends_with_verb(part.trim_start_matches('_')))
}

/// Tells whether the arguments select one of the methods: as a word of its own, or in an option
/// such as `--request=DELETE` or `-sXDELETE`. A method that is computed may be any.
fn selects(program: &str, arguments: &[Word], methods: &[&str]) -> bool {
    const FLAGS: &str = "sSfLkvigI#0146";
    let is_one = |text: &str| methods.iter().any(|method| text.eq_ignore_ascii_case(method));
    let is_option = |name: &str| {
        name.len() > 2 && ["--request", "--method"].iter().any(|option| option.starts_with(name))
    };
    // Whether the next word may be a method.
    let mut is_awaited = false;
    arguments.iter().any(|word| {
        let text = word.beginning();
        let is_computed = word.known().is_none();
        let is_bundle = text.starts_with('-') && !text.starts_with("--");
        let attached = if is_bundle {
            text.split_once('X')
        } else {
            text.split_once('=').filter(|(name, _)| is_option(name))
        };
        let is_attached = attached.is_some_and(|(before, value)| {
            let are_flags = before.chars().skip(1).all(|letter| FLAGS.contains(letter));
            is_one(value.trim_start_matches('=')) || is_computed && (!is_bundle || are_flags)
        });
        let is_method = if is_computed {
            is_awaited
        } else {
            methods.contains(&text)
                || (is_awaited || is_listed("http https xh xhs", program)) && is_one(text)
        };
        is_awaited = !is_computed && (is_option(text) || is_bundle && text.ends_with('X'));
        is_method || is_attached
    })
}
