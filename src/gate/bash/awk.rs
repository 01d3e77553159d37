//! Accepts awk programs that only compute and print: a short list of tokens. Any other token may
//! run a command or write a file.
//!
//! *Source*: POSIX.1-2024, XCU awk, "Lexical Conventions" and "Output Statements".

use super::bracket::after_bracket;

/// Words that may precede a parenthesis: harmless functions, and statements.
const CALLED: &str = "atan2 cos exp gsub if for index int length log match print printf rand return sin \
    split sprintf sqrt srand strftime sub substr systime tolower toupper while in";

/// Words that are never accepted.
const REFUSED: &str = "getline system func function close fflush";

/// Words of [`CALLED`] that need no parenthesis.
const UNCALLED: &str = "if for in length print printf return while";

/// Words after which a slash begins a pattern, in addition to those that may be called.
const BEFORE_PATTERN: &str = "else do case exit";

/// Statements whose parentheses end before a statement, not with an operand.
const HEADED: &str = "if while for";

/// Tells whether a program consists of accepted tokens and prints only to standard output.
pub(super) fn only_prints(program: &str) -> bool {
    let mut rest = program;
    // Whether the previous token ends an operand, so that a slash means division.
    let mut after_operand = false;
    // Whether the statement continues on the next line.
    let mut continues = false;
    let mut prints = false;
    // For each open parenthesis, whether it belongs to the head of a statement.
    let mut open = Vec::new();
    let mut is_head = false;
    while let Some(c) = rest.chars().next() {
        let tail = rest.get(c.len_utf8()..).unwrap_or_default();
        if matches!(c, ' ' | '\t') || (c == '\n' && continues) {
            rest = tail;
            continue;
        }
        let was_head = std::mem::take(&mut is_head);
        continues = ",?:".contains(c) || rest.starts_with("&&") || rest.starts_with("||");
        match c {
            '\n' | ';' | '{' | '}' => {
                (prints, after_operand) = (false, false);
                rest = tail;
            }
            '"' => match literal(tail, '"') {
                Some(behind) => (rest, after_operand) = (behind, true),
                None => return false,
            },
            '/' if !after_operand => match literal(tail, '/') {
                Some(behind) => (rest, after_operand) = (behind, true),
                None => return false,
            },
            // A program follows a single bar; a file follows the `>` of a statement that prints.
            '|' | '&' => match tail.strip_prefix(c) {
                Some(behind) => (rest, after_operand) = (behind, false),
                None => return false,
            },
            '>' if prints => return false,
            // After an operand, `++` belongs to it.
            '+' | '-' if tail.starts_with(c) => rest = tail.get(1..).unwrap_or_default(),
            c if c.is_ascii_alphanumeric() || c == '_' || c == '.' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let (word, behind) = rest.split_at(end);
                let is_in = |list: &str| list.split_ascii_whitespace().any(|known| known == word);
                let is_called = behind.trim_start_matches([' ', '\t']).starts_with('(');
                if is_in(REFUSED) || (is_called && behind.starts_with('(') && !is_in(CALLED)) {
                    return false;
                }
                if is_in(CALLED) && !is_called && !is_in(UNCALLED) {
                    return false;
                }
                prints |= matches!(word, "print" | "printf");
                let is_operand = !is_in(CALLED) && !is_in(BEFORE_PATTERN);
                after_operand = is_operand || word == "length";
                is_head = is_in(HEADED);
                rest = behind;
            }
            '(' => {
                open.push(was_head);
                (rest, after_operand) = (tail, false);
            }
            ')' => (rest, after_operand) = (tail, open.pop() == Some(false)),
            ']' => (rest, after_operand) = (tail, true),
            '$' | '[' | ',' | '+' | '-' | '*' | '/' | '%' | '^' | '!' | '<' | '>' | '=' | '~'
            | '?' | ':' => (rest, after_operand) = (tail, false),
            _ => return false,
        }
    }
    true
}

/// Returns the text after a string or a pattern; `None` if it does not end, or if implementations of
/// awk disagree about its end.
fn literal(text: &str, mark: char) -> Option<&str> {
    let mut rest = text;
    loop {
        let mut characters = rest.chars();
        let c = characters.next()?;
        rest = characters.as_str();
        match c {
            '\n' => return None,
            '\\' => {
                characters.next().filter(|c| *c != '\n')?;
                rest = characters.as_str();
            }
            c if c == mark => return Some(rest),
            '[' if mark == '/' => rest = after_bracket(rest, mark)?,
            _ => {}
        }
    }
}
