//! Words, assignments and redirections of a simple command.

use super::super::lexical::may_hold_code;
use super::super::tree::Node;
use super::super::variables::is_integer;
use super::super::word::{Word, bare, unescape_ansi, unescape_quoted};
use super::{Reader, Simple};

impl Reader<'_> {
    /// Returns the name that an assignment sets; `None` for a pager variable whose value only shows
    /// text, and for an integer variable of bash that is set to a number.
    pub(super) fn name_of(&self, assignment: &Node) -> Option<String> {
        let value = assignment.field("value").map_or("", |value| self.of(value));
        let name = self.of(assignment.field("name")?);
        let shows = name.ends_with("PAGER") && matches!(value, "" | "''" | "\"\"" | "cat");
        let is_number = is_integer(name) && value.bytes().all(|byte| byte.is_ascii_digit());
        (!shows && !is_number).then(|| name.split('[').next().unwrap_or_default().to_owned())
    }

    /// Adds a redirection to the command and returns the words after the redirection. These words
    /// belong to the command, but the grammar counts them among the files of the redirection.
    pub(super) fn redirect(&self, node: &Node, simple: &mut Simple) -> Vec<Word> {
        match node.kind {
            "herestring_redirect" => {
                let word = node.named().last().map(|word| self.word(word));
                simple.piped = true;
                simple.input = word.and_then(|word| word.known().map(str::to_owned));
                Vec::new()
            }
            "heredoc_redirect" => {
                simple.piped = true;
                let quoted =
                    node.child("heredoc_start").is_some_and(|s| self.of(s).contains(['\'', '"']));
                simple.input = node
                    .child("heredoc_body")
                    // bash first removes backslashes from the body of an unquoted here-document.
                    .filter(|body| quoted || !self.of(body).contains(['\\', '`']))
                    .filter(|body| body.named().all(|child| child.kind == "heredoc_content"))
                    .map(|body| self.of(body).to_owned());
                node.fields("argument").map(|word| self.word(word)).collect()
            }
            _ => {
                let is_input = self.of(node).trim_start_matches(|c: char| c.is_ascii_digit());
                let is_input = is_input.starts_with('<') && !is_input.starts_with("<>");
                let mut words = node.fields("destination").map(|word| self.word(word));
                match words.next() {
                    Some(_) if is_input => simple.piped = true,
                    Some(target) => simple.writes.push(target),
                    None => {}
                }
                words.collect()
            }
        }
    }

    /// Returns a word after quote removal.
    pub(super) fn word(&self, node: &Node) -> Word {
        let text = self.of(node);
        let inner = |from: usize| text.get(from..text.len().saturating_sub(1)).unwrap_or_default();
        let holding = |word: Word| Word { holds_code: may_hold_code(text), ..word };
        match node.kind {
            "word" | "number" | "test_operator" | "variable_name" | "special_variable_name" => {
                holding(bare(text))
            }
            "raw_string" => holding(Word::literal(inner(1))),
            "ansi_c_string" => {
                let word = unescape_ansi(inner(2)).map(|text| Word::literal(&text));
                let word = word.unwrap_or_else(Word::unknown);
                Word { holds_code: may_hold_code(inner(2)), ..word }
            }
            "string" => {
                if let [_, only, _] = node.children
                    && only.kind == "simple_expansion"
                    && only.end - only.start + 2 == text.len()
                {
                    let value = self.variables.value(self.of(only));
                    let inert = self.variables.is_inert(self.of(only));
                    return Word { many: self.of(only) == "$@", inert, ..value };
                }
                if node.named().all(|child| child.kind == "string_content") {
                    holding(Word::literal(&unescape_quoted(inner(1))))
                } else {
                    self.parts(node)
                }
            }
            "concatenation" | "command_name" | "translated_string" => self.parts(node),
            "variable_assignment" => {
                let name = bare(text.split('=').next().unwrap_or(text));
                Word { whole: false, is_assignment: true, ..name }
            }
            "simple_expansion" => {
                let value = self.variables.value(text);
                Word { many: value.values.is_none(), ..value }
            }
            "arithmetic_expansion" | "process_substitution" => Word::unknown(),
            _ => Word { many: true, ..Word::unknown() },
        }
    }

    /// Returns a word that consists of several parts.
    fn parts(&self, node: &Node) -> Word {
        let mut out = Word::literal("");
        let mut is_first = true;
        for child in node.children {
            let part = match child.kind {
                "\"" => continue,
                "$" if node.kind == "translated_string" => continue,
                "string_content" => Word {
                    holds_code: may_hold_code(self.of(child)),
                    ..Word::literal(&unescape_quoted(self.of(child)))
                },
                _ if child.is_named => self.word(child),
                _ => bare(self.of(child)),
            };
            if out.whole {
                out.text.push_str(&part.text);
            }
            out.whole &= part.whole;
            out.pattern |= part.pattern;
            out.holds_code |= part.holds_code;
            let expanded = self.of(child);
            let is_expansion = matches!(child.kind, "simple_expansion" | "expansion");
            let splits = match node.kind {
                // `"$@"` and `"${a[@]}"` become one word for each value.
                "string" => is_expansion && expanded.contains('@'),
                _ if is_expansion => self.variables.may_split(expanded),
                _ => part.splits,
            };
            if std::mem::take(&mut is_first) {
                out.inert = match node.kind {
                    "string" => is_expansion && self.variables.is_inert(expanded),
                    _ => part.inert,
                };
            }
            out.splits |= splits;
            out.many |= splits
                || match child.kind {
                    "command_substitution" => node.kind != "string",
                    "string" | "concatenation" => part.many,
                    _ => false,
                };
        }
        // A brace expansion turns one word into several. Quotes end its effect.
        let is_quoted = |kind: &str| {
            matches!(kind, "raw_string" | "string" | "ansi_c_string" | "translated_string")
        };
        let unquoted = node.children.iter().filter(|child| !is_quoted(child.kind));
        let braces: String = unquoted.map(|child| self.of(child)).collect();
        if node.kind == "concatenation"
            && braces.contains('{')
            && (braces.contains(',') || braces.contains(".."))
        {
            out.whole = false;
            out.many = true;
            out.text.truncate(out.text.find('{').unwrap_or(out.text.len()));
        }
        out.inert &= !out.many && !out.splits;
        out
    }
}
