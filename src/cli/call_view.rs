//! Renders a call for the person who decides about it: everything that its digest covers, and what
//! the digest does not cover.
//!
//! A long value is folded in the middle and not pushed off the screen (WEB-7). Each further line of
//! a value is marked, so that a value cannot look like another part of the question.

use serde_json::{Map, Value};

use crate::domain::{Binding, SetBy};
use crate::text::escape::one_line;

/// Characters shown of a folded line.
const SHOWN: usize = 400;

/// Lines shown of a folded value with several lines.
const SHOWN_LINES: usize = 24;

/// Characters shown of a digest.
const DIGEST: usize = 12;

/// Variables that every program gets. The operator allowed each other one, so it may decide what
/// the call does.
const USUAL: [&str; 8] = ["HOME", "LANG", "LC_ALL", "PATH", "SHELL", "TERM", "TZ", "USER"];

/// The column in which a line of a call goes on if the terminal is too narrow for it: deeper than the
/// label of a value.
pub(crate) const MARGIN: usize = 6;

/// How much of a call is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Long values are folded, and variables that every program gets are left out.
    Folded,
    Full,
}

impl Extent {
    /// Returns the extent for the flag `--full`.
    pub(crate) fn of_flag(full: bool) -> Self {
        if full { Self::Full } else { Self::Folded }
    }
}

/// A call that would run.
pub(crate) struct CallView<'a> {
    pub(crate) argv: &'a [String],
    /// Shown if the call starts no program.
    pub(crate) arguments: &'a Map<String, Value>,
    pub(crate) working_dir: &'a str,
    pub(crate) binding: &'a Binding,
}

impl CallView<'_> {
    /// Renders the call; each line is indented.
    pub(crate) fn render(&self, extent: Extent) -> String {
        let mut lines = Lines { text: String::new(), extent, is_folded: false };
        for (at, word) in self.argv.iter().enumerate() {
            lines.value(&format!("argv[{at}]"), word);
        }
        if self.argv.is_empty() {
            for (name, value) in self.arguments {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                lines.value(&format!("{name} ="), &value);
            }
        }
        if let Some(stdin) = &self.binding.stdin {
            lines.value("stdin", stdin);
        }
        for variable in &self.binding.environment {
            let is_usual =
                variable.set_by == SetBy::Host && USUAL.contains(&variable.name.as_str());
            if is_usual && extent == Extent::Folded {
                lines.is_folded = true;
                continue;
            }
            let value = variable.value.as_deref().unwrap_or("(not shown: it may be a secret)");
            lines.value(&format!("env {} =", variable.name), value);
        }
        lines.value("in", self.working_dir);
        for (path, state) in &self.binding.files {
            let state = match extent {
                Extent::Full => state,
                Extent::Folded => state.get(..DIGEST).unwrap_or(state),
            };
            lines.value("file", &format!("{path} ({state})"));
        }
        for what in &self.binding.unbound {
            lines.value("not bound:", what);
        }
        if lines.is_folded {
            lines.line("(--full also shows the usual variables, and long values whole)");
        }
        lines.text
    }
}

struct Lines {
    text: String,
    extent: Extent,
    is_folded: bool,
}

impl Lines {
    fn line(&mut self, text: &str) {
        self.text.push_str("  ");
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn value(&mut self, label: &str, value: &str) {
        let label = one_line(label);
        let all: Vec<&str> = value.lines().collect();
        if all.len() < 2 {
            let value = self.folded(value.trim_end_matches('\n'));
            return self.line(&format!("{label} {value}"));
        }
        self.line(&label);
        let half = match self.extent {
            Extent::Folded if all.len() > SHOWN_LINES => SHOWN_LINES / 2,
            Extent::Folded | Extent::Full => all.len(),
        };
        let left_out = all.len().saturating_sub(2 * half);
        for (at, line) in all.iter().enumerate() {
            if at < half || at >= half + left_out {
                let line = self.folded(line);
                self.line(&format!("  | {line}"));
            } else if at == half {
                self.is_folded = true;
                self.line(&format!("  [… {left_out} lines …]"));
            }
        }
    }

    fn folded(&mut self, line: &str) -> String {
        let line = one_line(line);
        let count = line.chars().count();
        if count <= SHOWN || self.extent == Extent::Full {
            return line;
        }
        self.is_folded = true;
        let half = SHOWN / 2;
        let head: String = line.chars().take(half).collect();
        let tail: String = line.chars().skip(count - half).collect();
        format!("{head} [… {} characters …] {tail}", count - 2 * half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Variable;

    fn rendered(binding: &Binding, extent: Extent) -> String {
        let argv = ["/usr/bin/kubectl".to_owned(), "--filename=-".to_owned()];
        let view = CallView { argv: &argv, arguments: &Map::new(), working_dir: "/srv", binding };
        view.render(extent)
    }

    fn variable(name: &str, value: Option<&str>, set_by: SetBy) -> Variable {
        Variable { name: name.to_owned(), value: value.map(str::to_owned), set_by }
    }

    // proves WEB-7, POL-10
    #[test]
    fn a_person_sees_the_input_the_environment_and_what_is_not_bound() {
        let manifest: String = (1..=40).map(|n| format!("line {n}\n")).collect();
        let binding = Binding {
            stdin: Some(format!("kind: ClusterRoleBinding\n  argv[2] harmless\n{manifest}")),
            environment: vec![
                variable("LANG", Some("C"), SetBy::Host),
                variable("STAGE", Some("prod"), SetBy::Host),
                variable("KUBECONFIG", Some("/etc/k"), SetBy::Tool),
                variable("A_TOKEN", None, SetBy::Tool),
            ],
            files: [("/usr/bin/kubectl".to_owned(), "0123456789abcdef".to_owned())].into(),
            unbound: vec!["other files that kubectl reads".to_owned()],
            ..Binding::default()
        };
        let folded = rendered(&binding, Extent::Folded);
        for line in [
            "  argv[1] --filename=-",
            "  stdin",
            "    | kind: ClusterRoleBinding",
            "    |   argv[2] harmless",
            "    [… 18 lines …]",
            "  env STAGE = prod",
            "  env KUBECONFIG = /etc/k",
            "  env A_TOKEN = (not shown: it may be a secret)",
            "  file /usr/bin/kubectl (0123456789ab)",
            "  not bound: other files that kubectl reads",
            "  (--full also shows the usual variables, and long values whole)",
        ] {
            assert!(folded.lines().any(|shown| shown == line), "{line}\n{folded}");
        }
        assert!(!folded.contains("LANG"), "{folded}");
        let full = rendered(&binding, Extent::Full);
        assert!((1..=40).all(|n| full.contains(&format!("    | line {n}\n"))), "{full}");
        assert!(full.contains("  env LANG = C\n") && !full.contains("--full"), "{full}");
    }
}
