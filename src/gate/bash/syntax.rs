//! From the text of a command to its simple commands.

use tree_sitter::Node;

use super::literal::{
    ends_early, ends_where_bash_ends_it, has_backtick, is_simple_pattern, may_be_counted,
    runs_in_body, stands_in_backticks,
};
use super::tree::tree;
use super::variables::Settings;
pub(super) use super::word::Word;
use super::word::{bare, unescape_quoted};

/// Levels of a syntax tree that are looked at.
pub(super) const DEEPEST: usize = 150;

/// How a shell is fed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shell {
    /// Whether its standard input is the output of another command.
    pub(super) piped: bool,
}

/// A simple command.
#[derive(Debug, Clone, Default)]
pub(super) struct Simple {
    /// The program and its arguments.
    pub(super) words: Vec<Word>,
    /// Variables that are set for it, or by it.
    pub(super) assignments: Vec<String>,
    /// Files that its output is written to.
    pub(super) writes: Vec<Word>,
    /// Whether its standard input is the output of another command, or a file.
    pub(super) piped: bool,
    /// What its standard input is, where it stands in the command itself.
    pub(super) input: Option<String>,
}

/// What a text holds.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) commands: Vec<Simple>,
    /// What makes it destructive whatever the commands are.
    pub(super) odd: Vec<String>,
}

impl Simple {
    /// Returns the command once for each value of the first variable in it that goes through known ones; empty if there is none.
    pub(super) fn for_each_value(&self) -> Vec<Self> {
        let Some((variable, values)) = self.words.iter().find_map(|word| word.values.as_ref())
        else {
            return Vec::new();
        };
        let is_it = |word: &Word| word.values.as_ref().is_some_and(|(name, _)| name == variable);
        let with = |value: &String| {
            let word = |word: &Word| match is_it(word) {
                true => Word::literal(value),
                false => word.clone(),
            };
            Self { words: self.words.iter().map(word).collect(), ..self.clone() }
        };
        values.iter().map(with).collect()
    }

    /// Returns how the command is fed, without what it is.
    pub(super) fn without_words(&self) -> Self {
        Self { piped: self.piped, input: self.input.clone(), ..Self::default() }
    }
}

/// Finds the simple commands of a text.
///
/// *Errors*: why it cannot be read.
pub(super) fn parse(text: &str, shell: Shell) -> Result<Script, String> {
    let tree = tree(text)?;
    let mut reader = Reader { text, script: Script::default(), settings: Settings::default() };
    reader.settings.collect(tree.root_node(), text);
    reader.walk(
        tree.root_node(),
        WalkContext { piped: shell.piped, ..WalkContext::default() },
        0,
    )?;
    if let Some(why) = super::division::differs(tree.root_node(), text) {
        reader.odd(why);
    }
    Ok(reader.script)
}

/// What a command stands in.
#[derive(Debug, Clone, Default)]
struct WalkContext {
    piped: bool,
    input: Option<String>,
    /// Words of the command that stand behind its redirections.
    behind: Vec<Word>,
}

struct Reader<'a> {
    text: &'a str,
    script: Script,
    settings: Settings,
}

impl Reader<'_> {
    fn of(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    fn odd(&mut self, why: &str) {
        self.script.odd.push(why.to_owned());
    }

    fn walk(&mut self, node: Node<'_>, ctx: WalkContext, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err("it is too deep to be judged".to_owned());
        }
        match node.kind() {
            "command" | "declaration_command" | "unset_command" => {
                return self.command(node, ctx, depth);
            }
            "redirected_statement" => return self.redirected(node, ctx, depth),
            "pipeline" => {
                // In a here-document's redirection the first command is fed as well.
                let fed = node.parent().is_some_and(|parent| parent.kind() == "heredoc_redirect");
                let mut cursor = node.walk();
                for (at, child) in node.named_children(&mut cursor).enumerate() {
                    let inner = if at == 0 && !fed {
                        ctx.clone()
                    } else {
                        WalkContext { piped: true, ..WalkContext::default() }
                    };
                    self.walk(child, inner, depth + 1)?;
                }
                return Ok(());
            }
            "variable_assignment" => {
                let simple = Simple { assignments: self.name_of(node), ..Simple::default() };
                self.script.commands.push(simple);
            }
            "for_statement" | "select_statement" => {
                let name =
                    node.child_by_field_name("variable").map(|name| self.of(name).to_owned());
                let simple =
                    Simple { assignments: name.into_iter().collect(), ..Simple::default() };
                self.script.commands.push(simple);
            }
            "function_definition" => {
                let name = node.child_by_field_name("name").map(|name| self.of(name).to_owned());
                let body = node.child_by_field_name("body");
                let calls_itself = |name: &str| {
                    let body = body.map(|body| self.of(body)).unwrap_or_default();
                    let is_one = |c: char| c.is_whitespace() || ";|&(){}".contains(c);
                    body.split(is_one).any(|word| word == name)
                };
                match name {
                    Some(name) if calls_itself(&name) => self.odd("a function calls itself"),
                    Some(name) if !super::destructive::is_program(&name) => {}
                    _ => self.odd("a function takes the name of a program"),
                }
            }
            "file_redirect" => {
                let mut simple = Simple::default();
                if !self.redirect(node, &mut simple).is_empty() {
                    self.odd("words stand behind a redirection");
                }
                self.script.commands.push(simple);
            }
            "expansion" | "command_substitution" => self.walk_alone(node),
            // The grammar does not look into these; bash does.
            "regex" | "extglob_pattern" if !is_simple_pattern(node, self.text) => {
                self.odd("a pattern holds what bash may read as something else");
            }
            "ansi_c_string" if ends_early(self.of(node)) => {
                self.odd("a quoted text ends earlier than it seems");
            }
            "comment" if stands_in_backticks(node, self.text) => {
                self.odd("a comment stands between backticks");
            }
            "raw_string" | "string_content" | "ansi_c_string" | "word"
                if may_be_counted(node, self.text, self.settings.has_functions) =>
            {
                self.odd("a text can run a command where it is taken for a number");
            }
            "heredoc_redirect" => {
                if !ends_where_bash_ends_it(node, self.text) {
                    self.odd("a here-document may end elsewhere");
                }
                let mut cursor = node.walk();
                let quoted = node.named_children(&mut cursor).any(|child| {
                    child.kind() == "heredoc_start" && self.of(child).contains(['\'', '"', '\\'])
                });
                let mut cursor = node.walk();
                let body = node.named_children(&mut cursor).find(|c| c.kind() == "heredoc_body");
                if !quoted && body.is_some_and(|body| runs_in_body(body, self.text)) {
                    self.odd("a command stands in a here-document");
                }
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    self.walk(
                        child,
                        WalkContext { piped: true, ..WalkContext::default() },
                        depth + 1,
                    )?;
                }
                return Ok(());
            }
            _ => {}
        }
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            self.walk(child, ctx.clone(), depth + 1)?;
        }
        Ok(())
    }

    fn name_of(&self, assignment: Node<'_>) -> Vec<String> {
        let value = assignment.child_by_field_name("value").map_or("", |value| self.of(value));
        let name = assignment.child_by_field_name("name");
        // One that only shows.
        let name = name.filter(|name| {
            !(self.of(*name).ends_with("PAGER") && matches!(value, "" | "''" | "\"\"" | "cat"))
        });
        let name = name.map(|name| self.of(name).split('[').next().unwrap_or_default().to_owned());
        name.into_iter().collect()
    }

    fn command(&mut self, node: Node<'_>, ctx: WalkContext, depth: usize) -> Result<(), String> {
        let mut simple = Simple { piped: ctx.piped, input: ctx.input.clone(), ..Simple::default() };
        if node.kind() != "command" {
            let word = self.of(node).split_whitespace().next().unwrap_or_default().to_owned();
            simple.words.push(Word::literal(&word));
        }
        let mut cursor = node.walk();
        for child in node.children(&mut cursor) {
            match child.kind() {
                // Words that the grammar has no name for.
                "$" | "==" | "=~" | "=" if !child.is_named() => {
                    simple.words.push(Word::literal(self.of(child)));
                    continue;
                }
                _ if !child.is_named() => continue,
                "variable_assignment" => {
                    simple.assignments.extend(self.name_of(child));
                    if node.kind() != "command" {
                        simple.words.push(self.word(child));
                    }
                }
                "file_redirect" | "herestring_redirect" | "heredoc_redirect" => {
                    let behind = self.redirect(child, &mut simple);
                    simple.words.extend(behind);
                }
                "regex" => simple.words.push(Word::literal(self.of(child))),
                "comment" => {}
                _ => simple.words.push(self.word(child)),
            }
            // What stands within a word is run as well.
            self.within(child, &ctx, depth + 1)?;
        }
        simple.words.extend(ctx.behind);
        // Its own reading of what it reads.
        if simple
            .words
            .first()
            .and_then(Word::known)
            .is_some_and(|name| matches!(name, "read" | "mapfile" | "readarray"))
        {
            simple.assignments.retain(|name| name != "IFS");
        }
        self.script.commands.push(simple);
        Ok(())
    }

    /// Looks for commands within a word, an assignment or a redirection.
    fn within(&mut self, node: Node<'_>, ctx: &WalkContext, depth: usize) -> Result<(), String> {
        if node.kind() == "heredoc_redirect" {
            return self.walk(node, ctx.clone(), depth);
        }
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            self.walk(
                child,
                WalkContext { piped: ctx.piped, ..WalkContext::default() },
                depth + 1,
            )?;
        }
        match node.kind() {
            // Its oddities are told where it is visited itself.
            "command_substitution" | "process_substitution" | "expansion" => self.walk_alone(node),
            "raw_string" | "ansi_c_string" | "regex" | "extglob_pattern" | "word" => {
                // These have nothing in them that would be visited.
                self.walk(node, WalkContext::default(), depth + 1)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn walk_alone(&mut self, node: Node<'_>) {
        let text = self.of(node);
        if text.starts_with('`') && text.contains('\\') {
            self.odd("commands are quoted within a substitution");
        } else if node.kind() == "expansion" && text.contains('@') && text.ends_with("P}") {
            self.odd("the value of a variable is expanded as a prompt");
        } else if node.kind() == "expansion"
            && (has_backtick(text) || text.contains("<(") || text.contains(">("))
        {
            self.odd("a command stands in an expansion");
        }
        let operator = node.child_by_field_name("operator").map(|operator| self.of(operator));
        if node.kind() == "expansion" && matches!(operator, Some("=" | ":=")) {
            let mut cursor = node.walk();
            let name = node.named_children(&mut cursor).next().map(|name| self.of(name).to_owned());
            let assignments = name.into_iter().collect();
            self.script.commands.push(Simple { assignments, ..Simple::default() });
        }
    }

    fn redirected(&mut self, node: Node<'_>, ctx: WalkContext, depth: usize) -> Result<(), String> {
        let mut outer = Simple::default();
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.named_children(&mut cursor).collect();
        let mut behind = ctx.behind.clone();
        for child in &children {
            if child.kind().ends_with("_redirect") {
                behind.extend(self.redirect(*child, &mut outer));
                self.within(*child, &ctx, depth + 1)?;
            }
        }
        let body = children.iter().find(|child| !child.kind().ends_with("_redirect"));
        const TAKE_WORDS: [&str; 3] = ["command", "declaration_command", "unset_command"];
        if !behind.is_empty() && !body.is_some_and(|body| TAKE_WORDS.contains(&body.kind())) {
            self.odd("words stand behind a redirection");
            behind.clear();
        }
        let inner = if outer.piped || outer.input.is_some() {
            WalkContext { piped: outer.piped, input: outer.input.take(), behind }
        } else {
            WalkContext { behind, ..ctx }
        };
        if !outer.writes.is_empty() {
            self.script.commands.push(Simple { writes: outer.writes, ..Simple::default() });
        }
        for child in children.into_iter().filter(|child| !child.kind().ends_with("_redirect")) {
            self.walk(child, inner.clone(), depth + 1)?;
        }
        Ok(())
    }

    /// Takes a redirection; returns the words behind it, which are the command's: the grammar counts them among the files.
    fn redirect(&self, node: Node<'_>, simple: &mut Simple) -> Vec<Word> {
        let mut cursor = node.walk();
        let mut behind = Vec::new();
        match node.kind() {
            "herestring_redirect" => {
                let word = node.named_children(&mut cursor).last().map(|word| self.word(word));
                simple.piped = true;
                simple.input = word.and_then(|word| word.known().map(str::to_owned));
            }
            "heredoc_redirect" => {
                simple.piped = true;
                let mut body = None;
                for (at, child) in (0..).zip(node.children(&mut cursor)) {
                    if child.kind() == "heredoc_body" {
                        body = Some(child);
                    } else if node.field_name_for_child(at) == Some("argument") {
                        behind.push(self.word(child));
                    }
                }
                let mut cursor = node.walk();
                let quoted = node.named_children(&mut cursor).any(|child| {
                    child.kind() == "heredoc_start" && self.of(child).contains(['\'', '"', '\\'])
                });
                simple.input = body
                    // Unquoted, its backslashes go before it is read.
                    .filter(|body| quoted || !self.of(*body).contains(['\\', '`']))
                    .filter(|body| {
                        let mut cursor = body.walk();
                        body.named_children(&mut cursor)
                            .all(|child| child.kind() == "heredoc_content")
                    })
                    .map(|body| self.of(body).to_owned());
            }
            _ => {
                let is_input = self.of(node).trim_start_matches(|c: char| c.is_ascii_digit());
                let is_input = is_input.starts_with('<') && !is_input.starts_with("<>");
                let mut words = node.children_by_field_name("destination", &mut cursor);
                match words.next() {
                    Some(_) if is_input => simple.piped = true,
                    Some(target) => simple.writes.push(self.word(target)),
                    None => {}
                }
                behind.extend(words.map(|word| self.word(word)));
            }
        }
        behind
    }

    /// Returns a word after quote removal.
    fn word(&self, node: Node<'_>) -> Word {
        let text = self.of(node);
        let inner = |from: usize| text.get(from..text.len().saturating_sub(1)).unwrap_or_default();
        match node.kind() {
            "word" | "number" | "test_operator" | "variable_name" | "special_variable_name" => {
                bare(text)
            }
            "raw_string" => Word::literal(inner(1)),
            "ansi_c_string" if !text.contains('\\') => Word::literal(inner(2)),
            "string" => {
                if let (1, Some(only)) = (node.named_child_count(), node.named_child(0))
                    && only.kind() == "simple_expansion"
                    && only.byte_range().len() + 2 == node.byte_range().len()
                {
                    return self.settings.value(only, self.text);
                }
                let mut cursor = node.walk();
                let is_plain =
                    node.named_children(&mut cursor).all(|c| c.kind() == "string_content");
                if is_plain { Word::literal(&unescape_quoted(inner(1))) } else { self.parts(node) }
            }
            "concatenation" | "command_name" | "translated_string" => self.parts(node),
            "variable_assignment" => {
                Word { whole: false, ..bare(text.split('=').next().unwrap_or(text)) }
            }
            "simple_expansion" => self.settings.value(node, self.text),
            _ => Word::unknown(),
        }
    }

    /// Returns a word that is made of several.
    fn parts(&self, node: Node<'_>) -> Word {
        let mut out = Word::literal("");
        let mut cursor = node.walk();
        let mut at = node.start_byte() + usize::from(node.kind() == "string");
        for child in node.children(&mut cursor) {
            if matches!(self.of(child), "\"")
                || (node.kind() == "translated_string" && self.of(child) == "$")
            {
                at = child.end_byte();
                continue;
            }
            let part = match child.kind() {
                "``" => Word::unknown(),
                "string_content" => Word::literal(&unescape_quoted(self.of(child))),
                _ if child.is_named() => self.word(child),
                _ => bare(self.of(child)),
            };
            if child.start_byte() != at && node.kind() != "string" {
                out.whole = false;
            }
            at = child.end_byte();
            if out.whole {
                out.text.push_str(&part.text);
            }
            out.whole &= part.whole;
            out.pattern |= part.pattern;
            out.splits |=
                part.splits || node.kind() != "string" && self.settings.may_split(child, self.text);
        }
        // Braces make several words of one.
        let braces = self.of(node);
        if node.kind() == "concatenation"
            && braces.contains('{')
            && (braces.contains(',') || braces.contains(".."))
        {
            out.whole = false;
        }
        out
    }
}
