//! From the text of a command to its simple commands.

use tree_sitter::Node;

use super::tree::tree;

/// Levels of a syntax tree that are looked at.
pub(super) const DEEPEST: usize = 150;

/// How a shell is fed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shell {
    /// Whether its standard input is the output of another command.
    pub(super) piped: bool,
}

/// A word of a command after quote removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    /// The beginning, as far as it is known.
    text: String,
    /// Whether all of it is.
    whole: bool,
    /// Whether it is a pattern of file names, so that it may become other words.
    pattern: bool,
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

impl Word {
    pub(super) fn literal(text: &str) -> Self {
        Self { text: text.to_owned(), whole: true, pattern: false }
    }

    pub(super) fn unknown() -> Self {
        Self { text: String::new(), whole: false, pattern: false }
    }

    /// Returns the text if all of it is known.
    pub(super) fn known(&self) -> Option<&str> {
        self.whole.then_some(self.text.as_str())
    }

    /// Returns the beginning, as far as it is known.
    pub(super) fn beginning(&self) -> &str {
        &self.text
    }

    /// Tells whether at least its beginning is known, so that it is neither an option nor a device.
    pub(super) fn begins_known(&self) -> bool {
        !self.text.is_empty()
            && !self.text.starts_with('-')
            && !"/dev/".starts_with(&self.text)
            && !self.text.starts_with("/dev/")
    }

    /// Tells whether not even the beginning is known.
    pub(super) fn is_open(&self) -> bool {
        self.text.is_empty() || "/dev/".starts_with(&self.text)
    }

    /// Returns the base name of the program that this word names.
    pub(super) fn program(&self) -> Option<String> {
        let text = self.known().filter(|text| !self.pattern && !text.is_empty())?;
        let name = text.rsplit('/').next().unwrap_or(text);
        (!name.is_empty()).then(|| name.to_owned())
    }
}

impl Simple {
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
    let mut reader = Reader { text, script: Script::default() };
    reader.walk(tree.root_node(), Around { piped: shell.piped, ..Around::default() }, 0)?;
    Ok(reader.script)
}

/// What a command stands in.
#[derive(Debug, Clone, Default)]
struct Around {
    piped: bool,
    input: Option<String>,
}

struct Reader<'a> {
    text: &'a str,
    script: Script,
}

impl Reader<'_> {
    fn of(&self, node: Node<'_>) -> &str {
        self.text.get(node.byte_range()).unwrap_or_default()
    }

    fn odd(&mut self, why: &str) {
        self.script.odd.push(why.to_owned());
    }

    fn walk(&mut self, node: Node<'_>, around: Around, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err("it is too deep to be judged".to_owned());
        }
        match node.kind() {
            "command" | "declaration_command" | "unset_command" => {
                return self.command(node, around, depth);
            }
            "redirected_statement" => return self.redirected(node, around, depth),
            "pipeline" => {
                // In a here-document's redirection the first command is fed as well.
                let fed = node.parent().is_some_and(|parent| parent.kind() == "heredoc_redirect");
                let mut cursor = node.walk();
                for (at, child) in node.named_children(&mut cursor).enumerate() {
                    let inner = if at == 0 && !fed {
                        around.clone()
                    } else {
                        Around { piped: true, input: None }
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
                if name.is_none_or(|name| super::destructive::is_program(&name)) {
                    self.odd("a function takes the name of a program");
                }
            }
            "file_redirect" => {
                let mut simple = Simple::default();
                self.redirect(node, &mut simple);
                self.script.commands.push(simple);
            }
            "expansion" | "command_substitution" => self.walk_alone(node),
            // The grammar does not look into these; bash does.
            "regex" | "extglob_pattern" if substitutes(self.of(node)) => {
                self.odd("a command stands in a pattern");
            }
            "raw_string" | "string" | "string_content" | "ansi_c_string"
                if subscript_runs(self.of(node)) =>
            {
                self.odd("a text can run a command where it is taken for a number");
            }
            "heredoc_redirect" => {
                let mut cursor = node.walk();
                let quoted = node.named_children(&mut cursor).any(|child| {
                    child.kind() == "heredoc_start" && self.of(child).contains(['\'', '"', '\\'])
                });
                let mut cursor = node.walk();
                let body = node.named_children(&mut cursor).find(|c| c.kind() == "heredoc_body");
                if !quoted && body.is_some_and(|body| has_backtick(self.of(body))) {
                    self.odd("a command stands in a here-document");
                }
                let mut cursor = node.walk();
                for child in node.named_children(&mut cursor) {
                    self.walk(child, Around { piped: true, input: None }, depth + 1)?;
                }
                return Ok(());
            }
            _ => {}
        }
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            self.walk(child, around.clone(), depth + 1)?;
        }
        Ok(())
    }

    fn name_of(&self, assignment: Node<'_>) -> Vec<String> {
        let name = assignment.child_by_field_name("name");
        let name = name.map(|name| self.of(name).split('[').next().unwrap_or_default().to_owned());
        name.into_iter().collect()
    }

    fn command(&mut self, node: Node<'_>, around: Around, depth: usize) -> Result<(), String> {
        let mut simple =
            Simple { piped: around.piped, input: around.input.clone(), ..Simple::default() };
        if node.kind() != "command" {
            let word = self.of(node).split_whitespace().next().unwrap_or_default().to_owned();
            simple.words.push(Word::literal(&word));
        }
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            match child.kind() {
                "variable_assignment" => {
                    simple.assignments.extend(self.name_of(child));
                    if node.kind() != "command" {
                        simple.words.push(self.word(child));
                    }
                }
                "file_redirect" | "herestring_redirect" | "heredoc_redirect" => {
                    self.redirect(child, &mut simple);
                }
                "command_name" => simple.words.push(self.word(child)),
                _ => simple.words.push(self.word(child)),
            }
            // What stands within a word is run as well.
            self.within(child, &around, depth + 1)?;
        }
        self.script.commands.push(simple);
        Ok(())
    }

    /// Looks for commands within a word, an assignment or a redirection.
    fn within(&mut self, node: Node<'_>, around: &Around, depth: usize) -> Result<(), String> {
        if node.kind() == "heredoc_redirect" {
            return self.walk(node, around.clone(), depth);
        }
        let mut cursor = node.walk();
        for child in node.named_children(&mut cursor) {
            self.walk(child, Around { piped: around.piped, input: None }, depth + 1)?;
        }
        if subscript_runs(self.of(node)) && !matches!(node.kind(), "command_substitution") {
            self.odd("a text can run a command where it is taken for a number");
        }
        if matches!(node.kind(), "command_substitution" | "process_substitution" | "expansion") {
            // Its oddities are told where it is visited itself.
            self.walk_alone(node);
        }
        Ok(())
    }

    fn walk_alone(&mut self, node: Node<'_>) {
        let text = self.of(node);
        if text.starts_with('`') && text.contains('\\') {
            self.odd("commands are quoted within a substitution");
        } else if node.kind() == "expansion" && text.contains('@') && text.ends_with("P}") {
            self.odd("the value of a variable is expanded as a prompt");
        } else if node.kind() == "expansion" && has_backtick(text) {
            self.odd("a command stands in an expansion");
        }
    }

    fn redirected(&mut self, node: Node<'_>, around: Around, depth: usize) -> Result<(), String> {
        let mut outer = Simple::default();
        let mut cursor = node.walk();
        let children: Vec<Node<'_>> = node.named_children(&mut cursor).collect();
        for child in &children {
            if child.kind().ends_with("_redirect") {
                self.redirect(*child, &mut outer);
                self.within(*child, &around, depth + 1)?;
            }
        }
        let inner = if outer.piped || outer.input.is_some() {
            Around { piped: outer.piped, input: outer.input.take() }
        } else {
            around
        };
        if !outer.writes.is_empty() {
            self.script.commands.push(Simple { writes: outer.writes, ..Simple::default() });
        }
        for child in children.into_iter().filter(|child| !child.kind().ends_with("_redirect")) {
            self.walk(child, inner.clone(), depth + 1)?;
        }
        Ok(())
    }

    fn redirect(&self, node: Node<'_>, simple: &mut Simple) {
        let mut cursor = node.walk();
        match node.kind() {
            "herestring_redirect" => {
                let word = node.named_children(&mut cursor).last().map(|word| self.word(word));
                simple.piped = true;
                simple.input = word.and_then(|word| word.known().map(str::to_owned));
            }
            "heredoc_redirect" => {
                simple.piped = true;
                let mut body = None;
                for child in node.named_children(&mut cursor) {
                    if child.kind() == "heredoc_body" {
                        body = Some(child);
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
                for target in node.children_by_field_name("destination", &mut cursor) {
                    if is_input {
                        simple.piped = true;
                    } else {
                        simple.writes.push(self.word(target));
                    }
                }
            }
        }
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
                let mut cursor = node.walk();
                let is_plain =
                    node.named_children(&mut cursor).all(|c| c.kind() == "string_content");
                if is_plain { Word::literal(&unescape_quoted(inner(1))) } else { self.parts(node) }
            }
            "concatenation" | "command_name" | "translated_string" => self.parts(node),
            "variable_assignment" => {
                Word { whole: false, ..bare(text.split('=').next().unwrap_or(text)) }
            }
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

/// Returns an unquoted word: backslashes go, patterns are noticed.
fn bare(text: &str) -> Word {
    let mut word = Word::literal("");
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('\n') | None => {}
                Some(escaped) => word.text.push(escaped),
            },
            '*' | '?' | '[' => {
                word.pattern = true;
                word.text.push(c);
            }
            '{' if text.contains(',') || text.contains("..") => {
                word.whole = false;
                return word;
            }
            c => word.text.push(c),
        }
    }
    word
}

/// Within double quotes only four characters can be escaped.
fn unescape_quoted(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match (c, characters.peek()) {
            ('\\', Some('"' | '\\' | '$' | '`')) => out.extend(characters.next()),
            ('\\', Some('\n')) => drop(characters.next()),
            (c, _) => out.push(c),
        }
    }
    out
}

/// Tells whether a text that the grammar takes as a whole holds a substitution.
fn substitutes(text: &str) -> bool {
    text.contains("$(") || has_backtick(text)
}

fn has_backtick(text: &str) -> bool {
    let mut escaped = false;
    text.chars().any(|c| {
        let found = c == '`' && !escaped;
        escaped = c == '\\' && !escaped;
        found
    })
}

/// Tells whether a text would run a command as the subscript of an array, wherever bash takes it for a number.
fn subscript_runs(text: &str) -> bool {
    text.find('[')
        .and_then(|at| text.get(at..))
        .is_some_and(|rest| rest.contains("$(") || rest.contains('`'))
}
