//! The variables that the text of a command sets: loop variables with known values, and all others,
//! whose values bash may split into several words.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::tree::Node;
use super::word::Word;
use crate::argv::programs::is_listed;

/// The maximum number of loop values to classify one by one, inclusive; if there are more, they
/// count as unknown.
const MAX_VALUES: usize = 50;

/// Variables that bash sets by itself.
const OF_BASH: [&str; 12] = [
    "_", "COPROC", "HISTCMD", "LINENO", "MAPFILE", "OPTARG", "OPTIND", "RANDOM", "REPLY",
    "SECONDS", "SHLVL", "SRANDOM",
];

/// Variables of bash whose values are integers, in some versions or in all: whatever sets one of
/// them evaluates the value as arithmetic. *Source*: bash(1), "Shell Variables"; `declare -pi`.
const INTEGERS: &str = "\
    BASHPID BASH_MONOSECONDS BASH_SUBSHELL EPOCHSECONDS EUID HISTCMD LINENO OPTIND PPID RANDOM \
    SECONDS SRANDOM UID";

/// Tells whether bash evaluates a value of this variable as arithmetic.
pub(super) fn is_integer(name: &str) -> bool {
    is_listed(INTEGERS, name)
}

#[derive(Debug, Default)]
pub(super) struct Variables<'t> {
    /// The words of each loop, by its variable. `None` if they are not known: a word is not plain,
    /// there are too many or none, or another loop or bash itself sets the variable.
    loops: BTreeMap<&'t str, Option<Vec<String>>>,
    /// Variables that are set in any other way, as far as their names are known.
    others: BTreeSet<Cow<'t, str>>,
    /// Those of `others` that may be set to a value that begins with a dash.
    changed: BTreeSet<Cow<'t, str>>,
    /// Whether a caller of the script may have set any variable.
    may_inherit: bool,
    /// The variables of the loops around the current position of the walk.
    entered: Vec<&'t str>,
}

impl<'t> Variables<'t> {
    pub(super) fn new(may_inherit: bool) -> Self {
        Self { may_inherit, ..Self::default() }
    }

    /// Collects the variables of a tree; `parent` is the kind of the parent node.
    pub(super) fn collect(&mut self, node: &Node, parent: &str, text: &'t str) {
        let name = || node.field("name").map_or("", |name| name.text(text));
        match node.kind {
            "variable_assignment" => {
                let value = node.field("value").map_or("", |value| value.text(text));
                if parent.ends_with("command") || name().contains('[') || !begins_plain(value) {
                    self.changed.insert(name().split('[').next().unwrap_or_default().into());
                }
                let name = name().split('[').next().unwrap_or_default();
                self.others.insert(name.into());
            }
            "for_statement" => {
                let variable = node.field("variable").map_or("", |name| name.text(text));
                let values = node.fields("value").map(|value| plain(value.kind, value.text(text)));
                let values: Option<Vec<String>> = values.collect();
                let values = values.filter(|values| (1..=MAX_VALUES).contains(&values.len()));
                let is_set_elsewhere =
                    self.loops.contains_key(variable) || OF_BASH.contains(&variable);
                self.loops.insert(variable, values.filter(|_| !is_set_elsewhere));
            }
            // A builtin such as `read` may set the variable that the word names. Collecting a word
            // that only looks like such a name does no harm.
            "word" | "variable_name" | "string" | "raw_string" | "ansi_c_string"
            | "translated_string" | "concatenation"
                if parent.ends_with("command") =>
            {
                let set = set_by_word(node.text(text));
                self.changed.extend(set.clone());
                self.others.extend(set);
            }
            "expansion" => {
                let sets = node.field("operator").map(|operator| operator.text(text));
                let name = node.named().next().map(|name| name.text(text));
                let set = name.filter(|_| matches!(sets, Some("=" | ":=")));
                self.changed.extend(set.map(Cow::from));
                self.others.extend(set.map(Cow::from));
            }
            _ => {}
        }
        for child in node.named() {
            self.collect(child, node.kind, text);
        }
    }

    /// Records that the walk enters the body of the loop over a variable.
    pub(super) fn enter(&mut self, variable: &'t str) {
        self.entered.push(variable);
    }

    /// Records that the walk leaves the innermost loop body.
    pub(super) fn leave(&mut self) {
        self.entered.pop();
    }

    /// Returns the word for `$NAME`. Its values are known inside a loop over plain words if nothing
    /// else sets the variable.
    pub(super) fn value(&self, variable: &str) -> Word {
        let name = variable.trim_start_matches('$');
        match self.loops.get(name) {
            Some(Some(values)) if self.entered.contains(&name) && !self.others.contains(name) => {
                Word::one_of(name, values.clone())
            }
            _ => Word::unknown(),
        }
    }

    /// Tells whether the value of `$NAME` or `${NAME}`, if it is quoted, is certainly not an option:
    /// a value of the environment, which the operator chooses, or one that this text sets.
    pub(super) fn is_inert(&self, expansion: &str) -> bool {
        let name = expansion.trim_start_matches('$');
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        let is_name = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        is_name
            && !self.may_inherit
            && !self.loops.contains_key(name)
            && !self.changed.contains(name)
            && !OF_BASH.contains(&name)
    }

    /// Tells whether an expansion may become several words, because the text, its caller or bash
    /// sets its variable to a value that we do not know.
    pub(super) fn may_split(&self, expansion: &str) -> bool {
        let own = expansion.trim_start_matches(['$', '{', '!', '#']);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, _) = own.split_at(own.find(|c| !is_name(c)).unwrap_or(own.len()));
        let is_unknown = match self.loops.get(name) {
            Some(values) => values.is_none(),
            None => self.may_inherit,
        };
        // `set`, a function call and a shell set positional parameters.
        let is_positional = own.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '@' | '*'));
        is_unknown || is_positional || self.others.contains(name) || OF_BASH.contains(&name)
    }
}

/// Returns the value of a word that bash always expands to this one value; `None` for any other
/// word.
fn plain(kind: &str, text: &str) -> Option<String> {
    let inner = match kind {
        "word" | "number" | "concatenation" => text,
        "raw_string" | "string" => text.get(1..text.len().saturating_sub(1))?,
        _ => return None,
    };
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:@%+".contains(&b);
    (!inner.is_empty() && inner.bytes().all(is_plain)).then(|| inner.to_owned())
}

/// Tells whether the value of an assignment begins with a literal character that no option begins
/// with.
fn begins_plain(value: &str) -> bool {
    let value = value.strip_prefix(['"', '\'']).unwrap_or(value);
    value.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_'))
}

/// Returns the variable that a builtin would set if it were given this word: `f`, `"f"`, `f=1`,
/// `f[0]`, `-vf`.
fn set_by_word(word: &str) -> Option<Cow<'_, str>> {
    let quoted = word.strip_prefix('$').filter(|rest| rest.starts_with(['\'', '"']));
    let word = quoted.unwrap_or(word);
    let is_quote = |c| matches!(c, '\'' | '"' | '\\');
    if word.contains(is_quote) {
        Some(set_by_bare(&word.replace(is_quote, ""))?.to_owned().into())
    } else {
        set_by_bare(word).map(Cow::from)
    }
}

fn set_by_bare(word: &str) -> Option<&str> {
    let word = ["-v", "-a"].iter().find_map(|option| word.strip_prefix(option)).unwrap_or(word);
    let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(word.len());
    let (name, rest) = word.split_at_checked(end)?;
    (rest.is_empty() || rest.starts_with(['=', '[', '+'])).then_some(name)
}
