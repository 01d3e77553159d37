//! Accepts SQL statements that only read, in the arguments of `psql` and `mysql`. Any other
//! statement may change the database, or run a command through the client or the server.

use super::word::Word;
use crate::argv::programs::is_listed;

/// Words with which an accepted statement begins.
const READING: &str = "select show explain describe desc";

/// Words that make a statement change something, wherever they stand.
const CHANGING: &str = "into insert update delete drop alter create grant revoke copy call do truncate merge \
    analyze outfile dumpfile lock replace set reset load exec execute";

/// Functions that only compute.
const FUNCTIONS: &str = "count sum min max avg now coalesce lower upper length substr substring round abs cast \
    concat date date_trunc extract to_char age greatest least string_agg array_agg json_agg row_number rank \
    version current_database pg_size_pretty pg_database_size pg_relation_size pg_total_relation_size \
    pg_is_in_recovery group_concat database user";

/// Words that may precede a parenthesis although they are not functions.
const GROUPING: &str = "in and or not on where from as exists over any all values select join by having when then \
    else using like between union";

/// Commands of the client `mysql`, which may stand at the beginning of a line.
const CLIENT: &str = "system source pager tee edit connect delimiter";

/// Tells whether a text is a command of `psql` that describes or lists something: `\dt`, `\d+ t`.
fn describes(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.*+ ".contains(c);
    let command = text.strip_prefix('\\').filter(|rest| rest.chars().all(is_plain));
    command.is_some_and(|command| {
        let name = command.split(' ').next().unwrap_or_default();
        name.starts_with('d') || matches!(name, "l" | "l+" | "conninfo")
    })
}

/// Tells whether a text is one statement that only reads.
pub(super) fn only_reads(statement: &str) -> bool {
    const PLAIN: &str = "_.,*()=<>!+-/%'";
    let text = statement.trim();
    if describes(text) {
        return true;
    }
    let text = text.strip_suffix("\\G").unwrap_or(text);
    let text = text.trim_end_matches(';').to_ascii_lowercase();
    let mut later = text.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    if later.any(|first| is_listed(CLIENT, first)) {
        return false;
    }
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || c.is_ascii_whitespace() || PLAIN.contains(c);
    if !text.chars().all(is_plain) || text.contains("--") || text.contains("/*") {
        return false;
    }
    // Every second part lies between quotes.
    let parts: Vec<&str> = text.split('\'').collect();
    let mut words = Vec::new();
    for part in parts.iter().step_by(2) {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let mut rest = *part;
        while let Some(at) = rest.find(is_word) {
            let from = rest.get(at..).unwrap_or_default();
            let end = from.find(|c| !is_word(c)).unwrap_or(from.len());
            let (word, behind) = from.split_at_checked(end).unwrap_or_default();
            words.push((word, behind.trim_start().starts_with('(')));
            rest = behind;
        }
    }
    parts.len() % 2 == 1
        && words.first().is_some_and(|(word, _)| is_listed(READING, word))
        && words.iter().all(|(word, is_called)| {
            !is_listed(CHANGING, word)
                && (!is_called || is_listed(FUNCTIONS, word) || is_listed(GROUPING, word))
        })
}

/// The arguments of a database client without the statements that only read.
pub(super) struct Remaining {
    pub(super) words: Vec<Word>,
    /// Whether a statement was among them. The client then reads none from its standard input.
    pub(super) had_statement: bool,
}

/// Takes the statements that only read out of the arguments of `psql` or `mysql`.
pub(super) fn without_reading(program: &str, arguments: &[Word]) -> Remaining {
    let (letter, long, flags) = match program {
        "psql" => ('c', "--command", "aAbeEnqsStwWxXz01"),
        _ => ('e', "--execute", "BNqstvEHXrfA"),
    };
    let mut found = Remaining { words: Vec::new(), had_statement: false };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let text = word.known().unwrap_or_default();
        let bundle = text.strip_prefix('-').and_then(|bundle| bundle.split_once(letter));
        let bundle = bundle.filter(|(before, _)| before.chars().all(|flag| flags.contains(flag)));
        let attached = text.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
        let statement = match (bundle, attached) {
            (Some((_, "")), _) => words.clone().next().and_then(Word::known),
            (Some((_, statement)), _) | (None, Some(statement)) => Some(statement),
            (None, None) if text == long => words.clone().next().and_then(Word::known),
            (None, None) => None,
        };
        if !statement.is_some_and(only_reads) {
            found.words.push(word.clone());
            continue;
        }
        found.had_statement = true;
        let is_next = text == long || bundle.is_some_and(|(_, attached)| attached.is_empty());
        if is_next {
            words.next();
        }
    }
    found
}
