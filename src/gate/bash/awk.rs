//! Accepts awk programs that only compute and print: a short list of tokens. Any other token may
//! run a command or write a file.
//!
//! *Source*: POSIX.1-2024, XCU awk, "Lexical Conventions" and "Output Statements".

/// Words that may precede a parenthesis: harmless functions, and statements.
const CALLED: &str = "atan2 cos exp gsub if for index int length log match print printf rand return sin \
    split sprintf sqrt srand strftime sub substr systime tolower toupper while in";

/// Words that are never accepted.
const REFUSED: &str = "getline system func function close fflush";

/// Tells whether a program consists of accepted tokens and prints only to standard output.
pub(super) fn only_prints(program: &str) -> bool {
    let mut rest = program;
    // Whether the previous token ends an operand, so that a slash means division.
    let mut after_operand = false;
    let mut prints = false;
    while let Some(c) = rest.chars().next() {
        let tail = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            ' ' | '\t' => rest = tail,
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
            '|' => match tail.strip_prefix('|') {
                Some(behind) => (rest, after_operand) = (behind, false),
                None => return false,
            },
            '>' if prints => return false,
            c if c.is_ascii_alphanumeric() || c == '_' || c == '.' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let (word, behind) = rest.split_at(end);
                let is_in = |list: &str| list.split_ascii_whitespace().any(|known| known == word);
                let is_called = behind.trim_start_matches([' ', '\t']).starts_with('(');
                if is_in(REFUSED) || (is_called && behind.starts_with('(') && !is_in(CALLED)) {
                    return false;
                }
                prints |= matches!(word, "print" | "printf");
                after_operand = !is_in(CALLED);
                rest = behind;
            }
            ')' | ']' | '$' => (rest, after_operand) = (tail, c != '$'),
            '(' | '[' | ',' | '+' | '-' | '*' | '/' | '%' | '^' | '!' | '<' | '>' | '=' | '~'
            | '&' | '?' | ':' => (rest, after_operand) = (tail, false),
            _ => return false,
        }
    }
    true
}

/// Returns the text after a string or a pattern; `None` if it does not end. Implementations of awk
/// disagree about a slash in brackets, so it is rejected too.
fn literal(text: &str, mark: char) -> Option<&str> {
    let mut characters = text.chars();
    let mut in_brackets = false;
    loop {
        match characters.next()? {
            '\n' => return None,
            '\\' => drop(characters.next().filter(|c| *c != '\n')?),
            c if c == mark => return (!in_brackets).then_some(characters.as_str()),
            '[' if mark == '/' => in_brackets = true,
            ']' => in_brackets = false,
            _ => {}
        }
    }
}
