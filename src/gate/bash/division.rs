//! Where the grammar divides a text into other words than bash does.
//!
//! Words are judged as the grammar divides them. Bash ends a command at the end of its line, and divides words only at blanks and operators;
//! a text in which the grammar does otherwise cannot be read.
//!
//! *Source*: POSIX.1-2024, XCU 2.3 (Token Recognition); bash(1), REDIRECTION (`{varname}`).

use tree_sitter::Node;

/// Returns why bash reads other words than the grammar, if it does.
pub(super) fn differs(root: Node<'_>, text: &str) -> Option<&'static str> {
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        if let Some(why) = differs_in(node, text) {
            return Some(why);
        }
        let mut cursor = node.walk();
        open.extend(node.children(&mut cursor));
    }
    None
}

fn differs_in(node: Node<'_>, text: &str) -> Option<&'static str> {
    /// Nodes that are texts, not words.
    const TEXTS: [&str; 6] = [
        "string_content",
        "regex",
        "extglob_pattern",
        "heredoc_body",
        "heredoc_content",
        "heredoc_end",
    ];
    let own = text.get(node.byte_range()).unwrap_or_default();
    let is_token = node.child_count() == 0 && !TEXTS.contains(&node.kind());
    if is_token && own.starts_with(['\n', '\\']) && without_continuations(own).starts_with('\n') {
        return Some("a word begins on the line before it");
    }
    if node.kind().ends_with("_redirect") && names_descriptor(node, text) {
        return Some("a redirection has the name of a variable before it");
    }
    match node.kind() {
        "test_command" if !own.starts_with("[[") && without_continuations(own).contains('\n') => {
            Some("a line ends within a test")
        }
        "command"
        | "declaration_command"
        | "unset_command"
        | "file_redirect"
        | "herestring_redirect"
        | "heredoc_redirect" => divided(node, text),
        _ => None,
    }
}

/// Looks for words that are next to each other, and for the end of a line between two of them.
fn divided(node: Node<'_>, text: &str) -> Option<&'static str> {
    let mut cursor = node.walk();
    let mut before: Option<Node<'_>> = None;
    for child in node.children(&mut cursor).take_while(|child| child.kind() != "heredoc_body") {
        if let Some(before) = before.replace(child) {
            let gap = text.get(before.end_byte()..child.start_byte()).unwrap_or_default();
            if without_continuations(gap).contains('\n') {
                return Some("a line ends within a command");
            }
            let is_operator = !before.is_named() || before.kind() == "file_descriptor";
            if gap.is_empty() && !is_operator && !child.kind().ends_with("_redirect") {
                return Some("a word is divided where it has no blank");
            }
        }
    }
    None
}

/// `{name}>file`, which the grammar takes for a word and a redirection.
fn names_descriptor(redirect: Node<'_>, text: &str) -> bool {
    let before = text.get(..redirect.start_byte()).unwrap_or_default();
    let inside = before.strip_suffix('}').and_then(|before| before.rsplit_once('{'));
    inside.is_some_and(|(head, name)| {
        let name = name.split('[').next().unwrap_or_default();
        let begins_a_word = |c: char| c.is_whitespace() || ";|&()".contains(c);
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
            && head.chars().next_back().is_none_or(begins_a_word)
    })
}

fn without_continuations(text: &str) -> String {
    text.replace("\\\n", "")
}
