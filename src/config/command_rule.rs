//! The form of an entry of `blocked_commands` and `destructive_commands`: the name of a program and
//! words of its arguments. The gate compares words, so an entry with a pattern, a path or quotes
//! would match nothing (POL-11).

use crate::argv::Diagnostic;

/// Characters that no word of an entry may contain: patterns, quotes and operators of the shell.
const SPECIAL: [char; 17] =
    ['*', '?', '[', ']', '(', ')', '|', '^', '$', '\\', '\'', '"', '`', ';', '&', '<', '>'];

/// Returns why an entry can match no command; `None` if it can. `pointer` is its place.
pub(super) fn problem(pointer: &str, entry: &str) -> Option<Diagnostic> {
    let first = entry.split_whitespace().next();
    let Some(first) = first else {
        return Some(diagnostic(pointer, "a command must not be empty".to_owned(), None));
    };
    let why = if let Some(special) = entry.chars().find(|c| SPECIAL.contains(c)) {
        format!("it contains `{special}`, but an entry consists of plain words")
    } else if first.contains('/') {
        "it begins with a path, but programs are compared by name".to_owned()
    } else if first.starts_with(['-', '~']) || first.contains('=') {
        format!("`{first}` is not the name of a program")
    } else {
        return None;
    };
    let hint = plain(entry).map(|words| format!("write the words of the command: `{words}`"));
    Some(diagnostic(pointer, format!("`{entry}` can match no command: {why}"), hint))
}

fn diagnostic(pointer: &str, message: String, hint: Option<String>) -> Diagnostic {
    Diagnostic { pointer: pointer.to_owned(), message, hint }
}

/// Returns the words of an entry that could match: of `Bash(packer:*)`, `packer`.
fn plain(entry: &str) -> Option<String> {
    let inside = entry.strip_suffix(')').and_then(|entry| entry.split_once('('));
    let inside = inside.filter(|(tool, _)| !tool.contains(char::is_whitespace) && !tool.is_empty());
    let text =
        inside.map_or(entry, |(_, command)| command).replace(":*", " ").replace(['\'', '"'], "");
    let text = text.trim().trim_start_matches('^').trim_end_matches('$');
    let mut words = text.split_whitespace();
    let program = words.next()?.rsplit('/').next()?;
    let words = std::iter::once(program).chain(words).filter(|word| !word.contains(SPECIAL));
    let words: Vec<&str> = words.collect();
    let is_program =
        |word: &&str| !word.is_empty() && !word.starts_with('-') && !word.contains('=');
    words.first().filter(|word| is_program(word)).map(|_| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves POL-11
    #[test]
    fn an_entry_that_can_match_nothing_is_an_error() {
        let hint = |entry: &str| problem("/x", entry).map(|found| found.hint.unwrap_or_default());
        let says = |words: &str| Some(format!("write the words of the command: `{words}`"));
        assert_eq!(hint("flyctl deploy *"), says("flyctl deploy"));
        assert_eq!(hint("^doctl (apps|compute)"), says("doctl"));
        assert_eq!(hint("Bash(packer:*)"), says("packer"));
        assert_eq!(hint("Bash(git push:*)"), says("git push"));
        assert_eq!(hint("/usr/local/bin/flarectl dns"), says("flarectl dns"));
        assert_eq!(hint("helm *"), says("helm"));
        assert_eq!(hint("'terraform destroy'"), says("terraform destroy"));
        assert_eq!(hint("$X"), Some(String::new()));
        assert_eq!(hint(" "), Some(String::new()));
        assert_eq!(hint("-rf"), Some(String::new()));
        assert_eq!(hint("A=1 make"), Some(String::new()));
        for entry in ["terraform destroy", "Flyctl", "git push --force", "chmod 0777", "a.b @x"] {
            assert_eq!(hint(entry), None, "{entry}");
        }
    }
}
