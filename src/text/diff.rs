//! Unified diffs of two texts.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// Time limit for finding the shortest diff. After it, a longer diff is accepted.
const PATIENCE: Duration = Duration::from_millis(500);

/// The difference between two texts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Diff {
    /// The unified diff, with three lines of context; empty if nothing changed.
    pub(crate) unified: String,
    /// The first changed line of the new text, from 1.
    pub(crate) first_changed_line: Option<usize>,
    /// Lines removed plus lines added.
    pub(crate) lines_changed: u64,
}

impl Diff {
    /// Appends the diff of another file.
    pub(crate) fn append(&mut self, other: Self) {
        self.unified.push_str(&other.unified);
        self.first_changed_line = self.first_changed_line.or(other.first_changed_line);
        self.lines_changed += other.lines_changed;
    }
}

/// Compares two versions of the file `name`.
pub(crate) fn diff(name: &str, old: &str, new: &str) -> Diff {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let (mut lines_changed, mut first, mut at) = (0, None, 1);
    for change in diff.iter_all_changes() {
        if change.tag() != ChangeTag::Equal {
            lines_changed += 1;
            first.get_or_insert(at);
        }
        at += usize::from(change.tag() != ChangeTag::Delete);
    }
    let unified =
        diff.unified_diff().header(&format!("a/{name}"), &format!("b/{name}")).to_string();
    Diff { unified, first_changed_line: first, lines_changed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_says_what_changed() {
        let found = diff("x", "a\nb\nc\n", "a\nB\nc\nd\n");
        assert_eq!(found.unified, "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n+d\n");
        assert_eq!((found.first_changed_line, found.lines_changed), (Some(2), 3));
        assert_eq!(diff("x", "a\n", "a\n"), Diff::default());
    }
}
