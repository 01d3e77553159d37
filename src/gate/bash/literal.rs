//! Texts that the grammar takes as a whole, held against how bash reads them.

use tree_sitter::Node;

fn text_of<'t>(node: Node<'_>, text: &'t str) -> &'t str {
    text.get(node.byte_range()).unwrap_or_default()
}

/// Tells whether a text holds a substitution, were it expanded.
fn substitutes(text: &str) -> bool {
    text.contains("$(") || text.contains('`')
}

pub(super) fn has_backtick(text: &str) -> bool {
    let mut escaped = false;
    text.chars().any(|c| {
        let found = c == '`' && !escaped;
        escaped = c == '\\' && !escaped;
        found
    })
}

/// Tells whether the body of a here-document that is expanded runs a command which the grammar does not show.
pub(super) fn runs_in_body(body: Node<'_>, text: &str) -> bool {
    let own = text_of(body, text);
    if has_backtick(own) {
        return true;
    }
    // What the grammar shows is judged where it stands.
    let (mut at, mut hidden) = (body.start_byte(), String::new());
    let mut cursor = body.walk();
    for child in body.named_children(&mut cursor).filter(|c| c.kind() != "heredoc_content") {
        hidden.push_str(text.get(at..child.start_byte()).unwrap_or_default());
        hidden.push('\n');
        at = child.end_byte();
    }
    hidden.push_str(text.get(at..body.end_byte()).unwrap_or_default());
    let mut escaped = false;
    hidden.char_indices().any(|(at, c)| {
        let rest = hidden.get(at..).unwrap_or_default();
        let found = !escaped && (rest.starts_with("$(") || rest.starts_with("${"));
        escaped = c == '\\' && !escaped;
        found
    })
}

/// Tells whether a literal can run a command where bash takes it for a number: as the value of a variable, in a subscript or an expression, or where
/// a builtin counts.
pub(super) fn may_be_counted(node: Node<'_>, text: &str, has_functions: bool) -> bool {
    /// Builtins that take a word for a number, or keep it for later, and what runs builtins.
    const COUNTING: &str = "set read let declare typeset local export readonly unset printf wait \
        mapfile readarray test [ shift return exit eval getopts command builtin time";
    let own = match node.kind() {
        "word" => text_of(node, text).replace('\\', ""),
        _ => text_of(node, text).to_owned(),
    };
    let runs = substitutes(&own);
    let in_subscript = || own.split_once('[').is_some_and(|(_, subscript)| substitutes(subscript));
    let (mut at, mut is_part) = (node, false);
    while let Some(parent) = at.parent() {
        is_part |= parent.kind() == "concatenation";
        match parent.kind() {
            // It may be put together with others before it is taken for one.
            "variable_assignment" => return runs || is_encoded(node, &own),
            "subscript" | "arithmetic_expansion" | "expansion" => return runs,
            "command" => {
                let name = parent.child_by_field_name("name").map(|name| text_of(name, text));
                let is_other = |name: &str| {
                    !has_functions
                        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
                        && !COUNTING.split_whitespace().any(|known| known == name)
                };
                // A part of a word may stand behind the bracket of another.
                let may_run = if is_part { runs } else { in_subscript() };
                return may_run && !name.is_some_and(is_other);
            }
            "command_substitution" | "process_substitution" => break,
            _ => at = parent,
        }
    }
    in_subscript()
}

/// Tells whether a text in `$'…'` holds characters by their numbers.
fn is_encoded(node: Node<'_>, text: &str) -> bool {
    let mut characters = text.chars();
    let mut escapes = std::iter::from_fn(|| {
        characters.find(|c| *c == '\\')?;
        characters.next()
    });
    node.kind() == "ansi_c_string"
        && escapes.any(|c| matches!(c, 'x' | 'u' | 'U' | 'c') || c.is_ascii_digit())
}

/// Tells whether bash reads a pattern to where the grammar does.
pub(super) fn is_simple_pattern(node: Node<'_>, text: &str) -> bool {
    let own = text_of(node, text);
    let in_braces = node.parent().is_some_and(|parent| parent.kind() == "expansion");
    let is_odd =
        |c: char| c.is_whitespace() || ";&<>\"'`".contains(c) || (in_braces && "{}".contains(c));
    !own.contains(is_odd) && !own.contains("$(")
}

/// Tells whether a text in `$'…'` ends before its node does.
pub(super) fn ends_early(own: &str) -> bool {
    let inner = own.get(2..own.len().saturating_sub(1)).unwrap_or_default();
    let mut characters = inner.chars();
    while let Some(c) = characters.next() {
        match c {
            // The quote behind it is none.
            '\\' if characters.next().is_none() => return true,
            '\'' => return true,
            _ => {}
        }
    }
    false
}

/// Tells whether a node stands in a substitution between backticks.
pub(super) fn stands_in_backticks(node: Node<'_>, text: &str) -> bool {
    let mut at = node;
    while let Some(parent) = at.parent() {
        if parent.kind() == "command_substitution" && text_of(parent, text).starts_with('`') {
            return true;
        }
        at = parent;
    }
    false
}

/// Tells whether a here-document ends at the first line that is its word, as it does for bash.
pub(super) fn ends_where_bash_ends_it(node: Node<'_>, text: &str) -> bool {
    let mut cursor = node.walk();
    let children: Vec<Node<'_>> = node.children(&mut cursor).collect();
    let of = |kind: &str| children.iter().find(|child| child.kind() == kind).copied();
    let (Some(start), Some(end)) = (of("heredoc_start"), of("heredoc_end")) else { return false };
    let written = text_of(start, text);
    let unquoted = ['\'', '"']
        .into_iter()
        .find_map(|quote| written.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)));
    let word = unquoted.or_else(|| written.strip_prefix('\\')).unwrap_or(written);
    if word.is_empty() || !word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return false;
    }
    let strips_tabs = children.first().is_some_and(|first| text_of(*first, text) == "<<-");
    let rest = text.get(start.end_byte()..).unwrap_or_default();
    let (line, _) = rest.split_once('\n').unwrap_or((rest, ""));
    // Two on one line are read one after the other.
    if line.contains("<<") {
        return false;
    }
    let mut at = start.end_byte() + line.len() + 1;
    for line in text.get(at..).unwrap_or_default().split('\n') {
        let shown = if strips_tabs { line.trim_start_matches('\t') } else { line };
        if shown == word {
            return at + (line.len() - shown.len()) == end.start_byte();
        }
        at += line.len() + 1;
    }
    false
}
