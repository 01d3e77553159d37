//! Finds the end of a bracket expression in a pattern of sed or awk.

/// Returns the text after a bracket expression, whose `[` precedes `text`. Implementations disagree
/// about the delimiter `mark` of the pattern and about an escaped bracket in it. Returns `None` for
/// both, and for an expression without an end.
pub(super) fn after_bracket(text: &str, mark: char) -> Option<&str> {
    let text = text.strip_prefix('^').unwrap_or(text);
    // The first bracket is a member.
    let mut rest = text.strip_prefix(']').unwrap_or(text);
    loop {
        let mut characters = rest.chars();
        let c = characters.next()?;
        rest = characters.as_str();
        match c {
            ']' => return Some(rest),
            c if c == mark || c == '\n' => return None,
            '\\' => {
                characters.next().filter(|c| !"[]\n".contains(*c))?;
                rest = characters.as_str();
            }
            '[' if rest.starts_with([':', '.', '=']) => {
                let kind = characters.next()?;
                let (name, after) = characters.as_str().split_once(&format!("{kind}]"))?;
                let is_name = |c: char| c.is_ascii_alphanumeric() && c != mark;
                (kind != mark && name.chars().all(is_name)).then_some(())?;
                rest = after;
            }
            _ => {}
        }
    }
}
