//! Finds the simple commands in a text.
//!
//! The walk accepts a list of syntax nodes. Any other node, and any token whose form `lexical.rs`
//! does not list, makes the text unreadable, and so destructive. The walk continues nevertheless,
//! to find a blocked command in the rest.

use bumpalo::Bump;

use super::lexical::{
    TOKENS, is_divided_alike, is_lone_dash, is_plain_backtick, is_plain_heredoc, is_plain_token,
    joins_lines, literal_body, may_hold_code, opens_substitution,
};
use super::tree::{Node, tree};
use super::variables::Variables;
pub(super) use super::word::Word;
use crate::argv::programs::is_listed;

mod words;

/// The input of a shell.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shell {
    /// Whether its standard input is a file, a text or the output of another command.
    pub(super) piped: bool,
    /// Whether a command starts it, which may set any variable for it.
    pub(super) is_inner: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Simple {
    /// The program and its arguments.
    pub(super) words: Vec<Word>,
    /// Variables that the command sets, or that are set for it.
    pub(super) assignments: Vec<String>,
    /// Files to which it redirects its output.
    pub(super) writes: Vec<Word>,
    /// Whether its standard input is a file, a text or the output of another command.
    pub(super) piped: bool,
    /// The text of its standard input, if a here-document or here-string contains this text
    /// literally.
    pub(super) input: Option<String>,
}

/// The commands of a text, and other findings about it.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) commands: Vec<Simple>,
    /// Reasons why the text is destructive, whatever its commands are.
    pub(super) reasons: Vec<String>,
    /// Names of the functions that the text defines.
    pub(super) functions: Vec<String>,
    /// Whether bash evaluates an expression, which runs the substitutions in the values of its
    /// variables.
    pub(super) counts: bool,
    /// Whether a literal outside the words of a command may contain code.
    pub(super) holds_code: bool,
}

impl Simple {
    /// Returns the command once for each value of its first loop variable with known values; empty
    /// if it has no such variable.
    pub(super) fn for_each_value(&self) -> Vec<Self> {
        let Some((variable, values)) = self.words.iter().find_map(|word| word.values.as_ref())
        else {
            return Vec::new();
        };
        let is_it = |word: &Word| word.values.as_ref().is_some_and(|(name, _)| name == variable);
        let with = |value: &String| {
            let word = |word: &Word| if is_it(word) { Word::literal(value) } else { word.clone() };
            Self { words: self.words.iter().map(word).collect(), ..self.clone() }
        };
        values.iter().map(with).collect()
    }

    /// Returns a command with the same input, but without words, assignments and output files.
    pub(super) fn without_words(&self) -> Self {
        Self { piped: self.piped, input: self.input.clone(), ..Self::default() }
    }
}

/// Finds the simple commands of a text.
pub(super) fn parse(text: &str, shell: Shell) -> Script {
    let variables = Variables::new(shell.is_inner);
    let mut reader = Reader { text, script: Script::default(), variables };
    match tree(text, &Bump::new()) {
        Err(why) => reader.unreadable(why),
        Ok(root) => {
            if joins_lines(text) {
                reader.unreadable("a line is continued in the middle of a word");
            }
            reader.variables.collect(&root, "", text);
            reader.node(&root, &Context { piped: shell.piped, ..Context::default() });
        }
    }
    reader.script
}

/// Nodes whose parts `Reader::parts` joins into one word.
const MADE_OF_TEXTS: [&str; 4] = ["concatenation", "command_name", "string", "translated_string"];

#[derive(Debug, Clone, Copy, Default)]
struct Context<'c> {
    piped: bool,
    input: Option<&'c str>,
    /// Words of the command that follow its redirections.
    behind: &'c [Word],
    /// Whether the node is in a word of a command. The word itself records whether it may contain
    /// code.
    in_word: bool,
    in_substitution: bool,
    operators: Operators,
}

/// What bars, brackets and other operators mean in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Operators {
    /// They mean what the tree shows.
    #[default]
    Shown,
    /// They are parts of a pattern.
    Pattern,
    /// They end a command, although the tree shows a test: bash reads `[ a && b ]` as two commands.
    EndCommand,
}

impl Context<'_> {
    /// Returns a context without input.
    fn inside(&self) -> Self {
        Self { in_substitution: self.in_substitution, ..Self::default() }
    }
}

struct Reader<'a> {
    text: &'a str,
    script: Script,
    variables: Variables<'a>,
}

impl<'a> Reader<'a> {
    fn of(&self, node: &Node) -> &'a str {
        node.text(self.text)
    }

    fn unreadable(&mut self, what: &str) {
        self.script.reasons.push(format!("cannot be read: {what}"));
    }

    fn destructive(&mut self, what: &str) {
        self.script.reasons.push(what.to_owned());
    }

    fn node(&mut self, node: &Node, ctx: &Context) {
        match node.kind {
            _ if !node.children.is_empty() => {}
            _ if !node.is_named => return self.token(node, ctx),
            "word" | "string_content" | "variable_name" | "number" => return self.leaf(node, ctx),
            _ => {}
        }
        if !is_divided_alike(node, self.text) {
            self.unreadable("bash and our parser may find different words");
        }
        match node.kind {
            "command" | "declaration_command" | "unset_command" => return self.command(node, ctx),
            "redirected_statement" => return self.redirected(node, ctx),
            "pipeline" => return self.pipeline(node, ctx),
            "heredoc_redirect" => return self.heredoc(node, ctx),
            "for_statement" => return self.loop_over(node, ctx),
            "subshell" if self.of(node).starts_with("((") => {
                self.unreadable("bash may read two brackets as an expression");
            }
            "program"
            | "list"
            | "subshell"
            | "compound_statement"
            | "do_group"
            | "if_statement"
            | "elif_clause"
            | "else_clause"
            | "while_statement"
            | "case_statement"
            | "case_item"
            | "negated_command"
            | "variable_assignments"
            | "command_name"
            | "concatenation"
            | "string"
            | "translated_string"
            | "simple_expansion"
            | "brace_expression"
            | "process_substitution"
            | "herestring_redirect"
            | "heredoc_body"
            | "parenthesized_expression" => {}
            "arithmetic_expansion"
            | "c_style_for_statement"
            | "ternary_expression"
            | "postfix_expression"
            | "subscript" => self.script.counts = true,
            "binary_expression" | "unary_expression" | "test_command" => {
                self.script.counts |= self.evaluates(node)
            }
            "array" => {
                let names_index = |child: &Node| self.of(child).starts_with('[');
                self.script.counts |= node.children.iter().any(names_index);
            }
            "variable_assignment" => {
                let assignments = self.name_of(node).into_iter().collect();
                self.script.commands.push(Simple { assignments, ..Simple::default() });
            }
            "function_definition" => self.function(node),
            "file_redirect" => {
                let mut simple = Simple::default();
                if !self.redirect(node, &mut simple).is_empty() {
                    self.unreadable("words follow a redirection");
                }
                self.script.commands.push(simple);
            }
            "expansion" => return self.expansion(node, ctx),
            "command_substitution" => self.substitution(self.of(node)),
            _ => self.leaf(node, ctx),
        }
        self.script.counts |= node.kind == "compound_statement" && node.child("((").is_some();
        let is_substitution = matches!(node.kind, "command_substitution" | "process_substitution");
        let operators = match node.kind {
            "test_command" if self.of(node).starts_with("[[") => Operators::Pattern,
            "test_command" if self.of(node).starts_with('[') => Operators::EndCommand,
            "arithmetic_expansion" => Operators::Shown,
            _ => ctx.operators,
        };
        let inner = if is_substitution {
            Context { in_substitution: true, piped: ctx.piped, ..Context::default() }
        } else {
            Context {
                in_word: ctx.in_word && MADE_OF_TEXTS.contains(&node.kind),
                operators,
                ..*ctx
            }
        };
        let patterns_end = node.child(")").map_or(0, |bracket| bracket.start);
        for child in node.children {
            if node.kind == "case_item" && child.end <= patterns_end {
                self.node(child, &Context { operators: Operators::Pattern, ..inner })
            } else {
                self.node(child, &inner)
            }
        }
    }

    /// Checks the whole text of a command substitution.
    fn substitution(&mut self, own: &str) {
        if own.starts_with("$((") {
            self.unreadable("bash may read two brackets as an expression");
        }
        if own.starts_with('`') && !is_plain_backtick(own) {
            self.unreadable("text between backticks has a quote, an escape or a comment");
        }
    }

    /// Checks an operator, a bracket or a reserved word.
    fn token(&mut self, node: &Node, ctx: &Context) {
        let own = node.kind;
        if !TOKENS.contains(own)
            || opens_substitution(own, self.text.get(node.end..).unwrap_or_default())
        {
            self.unreadable("it contains an unknown token");
        } else if ctx.operators == Operators::EndCommand
            && own.contains(['|', '&', ';', '<', '>', '('])
        {
            self.unreadable("a test in single brackets contains an operator");
        }
    }

    fn leaf(&mut self, node: &Node, ctx: &Context) {
        let own = self.of(node);
        if node.kind == "ERROR" {
            self.unreadable("it is not valid bash");
        } else if !is_plain_token(node, own)
            || (ctx.operators != Operators::Pattern
                && matches!(node.kind, "regex" | "extglob_pattern")
                && own.contains(['|', '(', ')']))
        {
            self.unreadable("bash and our parser may read a word differently");
        } else if node.kind == "comment" && ctx.in_substitution {
            self.unreadable("a substitution contains a comment");
        }
        let is_literal = !matches!(node.kind, "comment" | "special_variable_name" | "regex");
        self.script.holds_code |= is_literal && !ctx.in_word && may_hold_code(own);
    }

    fn pipeline(&mut self, node: &Node, ctx: &Context) {
        for (at, child) in node.children.iter().enumerate() {
            match at {
                0 => self.node(child, ctx),
                _ => self.node(child, &Context { piped: true, ..ctx.inside() }),
            }
        }
    }

    fn heredoc(&mut self, node: &Node, ctx: &Context) {
        if !is_plain_heredoc(node, self.text) {
            self.unreadable("bash may end a here-document elsewhere, or run something in it");
        }
        self.script.holds_code |= may_hold_code(&literal_body(node, self.text));
        for child in node.children {
            self.node(child, &Context { piped: true, ..ctx.inside() });
        }
    }

    fn loop_over(&mut self, node: &Node, ctx: &Context) {
        let name = node.field("variable").map(|name| self.of(name));
        let assignments = name.into_iter().map(str::to_owned).collect();
        self.script.commands.push(Simple { assignments, ..Simple::default() });
        for child in node.children {
            let is_body = child.field == Some("body");
            if is_body {
                self.variables.enter(name.unwrap_or_default());
            }
            self.node(child, ctx);
            if is_body {
                self.variables.leave();
            }
        }
    }

    fn function(&mut self, node: &Node) {
        let name = node.field("name").map(|name| self.of(name)).unwrap_or_default();
        let body = node.field("body").map(|body| self.of(body)).unwrap_or_default();
        let is_end = |c: char| c.is_whitespace() || ";|&(){}".contains(c);
        if name.is_empty() || super::destructive::is_program(name) {
            self.destructive("a function has the name of a program");
        } else if body.split(is_end).any(|word| word == name) {
            self.destructive("a function calls itself");
        }
        self.script.functions.push(name.to_owned());
    }

    /// Tells whether an expression or a test evaluates its operands. Comparing texts or testing a
    /// file does not.
    fn evaluates(&self, node: &Node) -> bool {
        const TEXTS: &str = "= == != =~ < > && || ! -a -o -n -z -b -c -d -e -f -g -h -k -p -r -s -t -u -w -x -G \
            -L -N -O -S -nt -ot -ef";
        if node.kind == "test_command" {
            return self.of(node).starts_with("((");
        }
        let operator = node.field("operator").or_else(|| node.child("test_operator"));
        operator.is_none_or(|operator| !is_listed(TEXTS, self.of(operator)))
    }

    fn expansion(&mut self, node: &Node, ctx: &Context) {
        const OPERATORS: &str = "# ## % %% / // /# /% ^ ^^ , ,, - :- = := + :+ ? :? ! } ${ :";
        let own = self.of(node);
        let text = self.text;
        let tokens = || node.children.iter().filter(|child| !child.is_named).map(|c| c.text(text));
        // `${x@P}` expands the value as a prompt. `${!x}` and `${x:1}` evaluate an expression.
        let names_all = own.ends_with("[@]}") || own.ends_with("[*]}");
        if tokens().any(|token| !is_listed(OPERATORS, token)) {
            self.unreadable("an expansion changes the value of a variable in an unknown way");
        }
        self.script.counts |= tokens().any(|token| matches!(token, "!" | ":")) && !names_all;
        if matches!(node.field("operator").map(|operator| self.of(operator)), Some("=" | ":=")) {
            let name = node.named().next().map(|name| self.of(name).to_owned());
            let assignments = name.into_iter().collect();
            self.script.commands.push(Simple { assignments, ..Simple::default() });
        }
        const PARTS: &str = "variable_name special_variable_name subscript word number regex extglob_pattern \
            simple_expansion expansion command_substitution concatenation string";
        for child in node.children {
            let text = self.of(child);
            let is_literal = matches!(child.kind, "word" | "regex" | "extglob_pattern" | "string");
            if child.is_named
                && (!is_listed(PARTS, child.kind) || is_literal && text.contains(['{', '}']))
            {
                self.unreadable("bash and our parser may read an expansion differently");
            }
            if child.is_named {
                self.node(
                    child,
                    &Context { in_word: false, operators: Operators::Pattern, ..*ctx },
                );
            }
        }
    }

    fn command(&mut self, node: &Node, ctx: &Context) {
        let words = Vec::with_capacity(node.children.len() + ctx.behind.len());
        let (piped, input) = (ctx.piped, ctx.input.map(str::to_owned));
        let mut simple = Simple { words, piped, input, ..Simple::default() };
        if node.kind != "command" {
            let word = self.of(node).split_whitespace().next().unwrap_or_default();
            simple.words.push(Word::literal(word));
        }
        let word = Context { piped: ctx.piped, in_word: true, ..ctx.inside() };
        for child in node.children {
            match child.kind {
                // The grammar has no named node for these words.
                "$" | "==" | "=~" | "=" if !child.is_named => {
                    simple.words.push(Word::literal(self.of(child)));
                    continue;
                }
                _ if !child.is_named => {
                    self.token(child, ctx);
                    continue;
                }
                "variable_assignment" => {
                    simple.assignments.extend(self.name_of(child));
                    if node.kind != "command" {
                        simple.words.push(self.word(child));
                    }
                    let inner = Context { in_word: false, ..word };
                    child.children.iter().for_each(|part| self.node(part, &inner));
                    if !is_divided_alike(child, self.text) {
                        self.unreadable("bash and our parser may find different words");
                    }
                    continue;
                }
                "file_redirect" | "herestring_redirect" | "heredoc_redirect" => {
                    let behind = self.redirect(child, &mut simple);
                    simple.words.extend(behind);
                    self.parts_of_redirect(child, ctx);
                    continue;
                }
                "regex" => simple.words.push(Word::literal(self.of(child))),
                "comment" => {}
                "subshell" => self.unreadable("a command contains parentheses"),
                _ => simple.words.push(self.word(child)),
            }
            self.node(child, &word);
        }
        if !is_divided_alike(node, self.text) {
            self.unreadable("bash and our parser may find different words");
        }
        simple.words.extend_from_slice(ctx.behind);
        // For these builtins, `IFS` changes only how they split what they read.
        let first = simple.words.first().and_then(Word::known);
        if matches!(first, Some("read" | "mapfile" | "readarray")) {
            simple.assignments.retain(|name| name != "IFS");
        }
        self.script.commands.push(simple);
    }

    /// Walks a redirection whose files and words are already collected.
    fn parts_of_redirect(&mut self, node: &Node, ctx: &Context) {
        if node.kind == "heredoc_redirect" {
            return self.node(node, ctx);
        }
        if !is_divided_alike(node, self.text) {
            self.unreadable("bash and our parser may find different words");
        }
        let inner = Context { piped: ctx.piped, ..ctx.inside() };
        node.children.iter().for_each(|child| self.node(child, &inner));
    }

    fn redirected(&mut self, node: &Node, ctx: &Context) {
        let mut outer = Simple::default();
        let mut behind = ctx.behind.to_vec();
        let is_redirect = |child: &&Node| child.kind.ends_with("_redirect");
        let mut end = node.start;
        for child in node.children {
            let gap = self.text.get(end..child.start).unwrap_or_default();
            end = child.end;
            if !is_redirect(&child) {
                continue;
            }
            behind.extend(is_lone_dash(gap).then(|| Word::literal("-")));
            behind.extend(self.redirect(child, &mut outer));
            self.parts_of_redirect(child, ctx);
        }
        let body = node.named().find(|child| !is_redirect(child));
        const TAKE_WORDS: [&str; 3] = ["command", "declaration_command", "unset_command"];
        if !behind.is_empty() && !body.is_some_and(|body| TAKE_WORDS.contains(&body.kind)) {
            self.unreadable("words follow a redirection");
            behind.clear();
        }
        let inner = if outer.piped || outer.input.is_some() {
            let input = outer.input.as_deref();
            Context { piped: outer.piped, input, behind: &behind, ..ctx.inside() }
        } else {
            Context { behind: &behind, ..*ctx }
        };
        let written = (!outer.writes.is_empty())
            .then(|| Simple { writes: outer.writes, ..Simple::default() });
        // In `cd d && a > f`, the redirection belongs to the last command of the list, which runs after
        // the others.
        let (before, after) = if body.is_some_and(|body| body.kind == "list") {
            (None, written)
        } else {
            (written, None)
        };
        self.script.commands.extend(before);
        for child in node.children.iter().filter(|child| !is_redirect(child)) {
            self.node(child, &inner);
        }
        self.script.commands.extend(after);
    }
}
