//! What a text says of its own variables: those of a loop over plain words, and those that may be several words.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::Node;
use super::word::Word;

/// The variables that a text sets.
#[derive(Debug, Default)]
pub(super) struct Variables {
    /// The words of loops, by variable; `None` is not plain ones, or more than one loop.
    loops: BTreeMap<String, Option<Vec<String>>>,
    /// Variables that are set in any other way, as far as they are named.
    others: BTreeSet<String>,
    /// The loops in whose bodies the walk is.
    entered: Vec<String>,
}

impl Variables {
    /// Looks through a tree; `parent` is the kind of the node above it.
    pub(super) fn collect(&mut self, node: &Node, parent: &str, text: &str) {
        let name = || node.field("name").map_or("", |name| name.text(text));
        match node.kind {
            "variable_assignment" => {
                let name = name().split('[').next().unwrap_or_default();
                self.others.insert(name.to_owned());
            }
            "for_statement" => {
                let variable = node.field("variable").map_or("", |name| name.text(text));
                let values = node.fields("value").map(|value| plain(value.kind, value.text(text)));
                let values: Option<Vec<String>> = values.collect();
                let values = values.filter(|values| !values.is_empty());
                let seen = self.loops.contains_key(variable);
                self.loops.insert(variable.to_owned(), values.filter(|_| !seen));
            }
            // What a builtin such as `read` sets; a word that only looks like a variable does no harm.
            "word" | "variable_name" if parent.ends_with("command") => {
                self.others.insert(node.text(text).to_owned());
            }
            "expansion" => {
                let sets = node.field("operator").map(|operator| operator.text(text));
                let name = node.named().next().map(|name| name.text(text));
                let set = name.filter(|_| matches!(sets, Some("=" | ":=")));
                self.others.extend(set.map(str::to_owned));
            }
            _ => {}
        }
        for child in node.named() {
            self.collect(child, node.kind, text);
        }
    }

    /// Says that the walk enters the body of the loop over a variable.
    pub(super) fn enter(&mut self, variable: Option<String>) {
        self.entered.push(variable.unwrap_or_default());
    }

    /// Says that the walk leaves the body that it entered last.
    pub(super) fn leave(&mut self) {
        self.entered.pop();
    }

    /// Returns what is known of `$NAME`: what it goes through, where it stands in a loop over plain words and nothing else sets it.
    pub(super) fn value(&self, variable: &str) -> Word {
        let name = variable.trim_start_matches('$');
        match self.loops.get(name) {
            Some(Some(values))
                if self.entered.iter().any(|entered| entered == name)
                    && !self.others.contains(name) =>
            {
                Word::one_of(name, values.clone())
            }
            _ => Word::unknown(),
        }
    }

    /// Tells whether an expansion may become several words: the text itself sets its variable.
    pub(super) fn may_split(&self, expansion: &str) -> bool {
        let own = expansion.trim_start_matches(['$', '{', '!', '#']);
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let name: String = own.chars().take_while(is_name).collect();
        let is_plain = || self.loops.get(&name).is_none_or(Option::is_some);
        self.others.contains(&name) || !is_plain()
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
