//! What a text says of its own variables: those of a loop over plain words, and those that may be several words.

use std::collections::{BTreeMap, BTreeSet};

use tree_sitter::Node;

use super::syntax::Word;

/// The variables that a text sets.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// The words of loops, by variable; `None` is not plain ones, or more than one loop.
    loops: BTreeMap<String, Option<Vec<String>>>,
    /// Variables that are set in any other way, as far as they are named.
    others: BTreeSet<String>,
    /// Whether the text makes functions.
    pub(super) has_functions: bool,
}

impl Settings {
    /// Looks through a tree.
    pub(super) fn collect(&mut self, root: Node<'_>, text: &str) {
        let of = |node: Node<'_>| text.get(node.byte_range()).unwrap_or_default();
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            let mut cursor = node.walk();
            open.extend(node.named_children(&mut cursor));
            let name = |field| node.child_by_field_name(field).map(of).unwrap_or_default();
            match node.kind() {
                "function_definition" => self.has_functions = true,
                "variable_assignment" => {
                    let name = name("name").split('[').next().unwrap_or_default();
                    self.others.insert(name.to_owned());
                }
                "for_statement" => {
                    let mut cursor = node.walk();
                    let values = node.children_by_field_name("value", &mut cursor);
                    let values: Option<Vec<String>> =
                        values.map(|value| plain(value.kind(), of(value))).collect();
                    let values = values.filter(|values| !values.is_empty());
                    let seen = self.loops.contains_key(name("variable"));
                    self.loops.insert(name("variable").to_owned(), values.filter(|_| !seen));
                }
                // What a builtin such as `read` sets; a word that only looks like a variable does no harm.
                "word" | "variable_name"
                    if node.parent().is_some_and(|parent| {
                        parent.kind().ends_with("command") || parent.kind() == "select_statement"
                    }) =>
                {
                    self.others.insert(of(node).to_owned());
                }
                "expansion" => {
                    let mut cursor = node.walk();
                    let sets = node.child_by_field_name("operator").map(of);
                    let name = node.named_children(&mut cursor).next().map(of);
                    let set = name.filter(|_| matches!(sets, Some("=" | ":=")));
                    self.others.extend(set.map(str::to_owned));
                }
                _ => {}
            }
        }
    }

    /// Returns what is known of `$NAME`: what it goes through, where it stands in a loop over plain words and nothing else sets it.
    pub(super) fn value(&self, node: Node<'_>, text: &str) -> Word {
        let of = |node: Node<'_>| text.get(node.byte_range()).unwrap_or_default();
        let name = of(node).trim_start_matches('$');
        let is_its_loop = |parent: Node<'_>| {
            parent.kind() == "for_statement"
                && parent.child_by_field_name("variable").is_some_and(|own| of(own) == name)
                && parent
                    .child_by_field_name("body")
                    .is_some_and(|body| body.start_byte() <= node.start_byte())
        };
        let mut at = node.parent();
        while let Some(parent) = at.filter(|parent| !is_its_loop(*parent)) {
            at = parent.parent();
        }
        match self.loops.get(name) {
            Some(Some(values)) if at.is_some() && !self.others.contains(name) => {
                Word::one_of(name, values.clone())
            }
            _ => Word::unknown(),
        }
    }

    /// Tells whether a part of a word may become several words: the text itself sets its variable.
    pub(super) fn may_split(&self, part: Node<'_>, text: &str) -> bool {
        let own = text.get(part.byte_range()).unwrap_or_default();
        let own = own.trim_start_matches(['$', '{', '!', '#']);
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let name: String = own.chars().take_while(is_name).collect();
        let is_plain = || self.loops.get(&name).is_none_or(Option::is_some);
        part.kind().ends_with("expansion") && (self.others.contains(&name) || !is_plain())
    }
}

/// Returns a word of a loop that is always one word, and itself.
fn plain(kind: &str, text: &str) -> Option<String> {
    let inner = match kind {
        "word" | "number" | "concatenation" => text,
        "raw_string" | "string" => text.get(1..text.len().saturating_sub(1))?,
        _ => return None,
    };
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:@%+".contains(&b);
    (!inner.is_empty() && inner.bytes().all(is_plain)).then(|| inner.to_owned())
}
