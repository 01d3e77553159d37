//! Parses the text of a command into our own syntax tree, in time bounded by the length of the
//! text.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use crate::text::escape::is_deceptive;
use bumpalo::Bump;
use tree_sitter::{Language, ParseOptions, ParseState, Parser, TreeCursor};

/// The maximum depth of a syntax tree, and of the brackets in a text, inclusive.
const DEEPEST: usize = 150;

/// The parser may take one step (a hundred operations) per this many bytes of text. An ordinary
/// script needs half of these steps.
const BYTES_PER_STEP: usize = 20;

/// Steps that the parser may take in addition for any text, even a short one.
const FEWEST_STEPS: usize = 50;

/// If a text has more redirections (characters `<` and `>`) than this, parsing stops at its first
/// error.
const FEW_REDIRECTIONS: usize = 8;

/// The maximum number of `|&` in a text, inclusive: the parser's time grows with the square of this
/// number.
const MAX_PIPES: usize = 100;

static GRAMMAR: LazyLock<Language> = LazyLock::new(|| tree_sitter_bash::LANGUAGE.into());

/// The names of node kinds, indexed by their ids in the grammar.
static KINDS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let kinds = 0..u16::try_from(GRAMMAR.node_kind_count()).unwrap_or(u16::MAX);
    kinds.map(|id| GRAMMAR.node_kind_for_id(id).unwrap_or("ERROR")).collect()
});

/// The names of fields, indexed by their ids, which start at 1.
static FIELDS: LazyLock<Vec<Option<&str>>> = LazyLock::new(|| {
    let fields = 0..=u16::try_from(GRAMMAR.field_count()).unwrap_or(u16::MAX);
    fields.map(|id| GRAMMAR.field_name_for_id(id)).collect()
});

thread_local! {
    static PARSER: RefCell<Option<Parser>> = RefCell::new(new_parser());
}

fn new_parser() -> Option<Parser> {
    let mut parser = Parser::new();
    parser.set_language(&GRAMMAR).ok()?;
    Some(parser)
}

/// A node of the syntax tree; `start` and `end` are byte offsets into the text.
///
/// The nodes of a tree are in one arena, so that a tree needs few allocations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    /// The grammar's name for the node; `ERROR` also for a token that the parser inserted.
    pub(super) kind: &'static str,
    pub(super) field: Option<&'static str>,
    /// False for operators, brackets and reserved words, whose kind is their text.
    pub(super) is_named: bool,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) children: &'a [Self],
}

impl Node<'_> {
    pub(super) fn text<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn named(&self) -> impl Iterator<Item = &Self> {
        self.children.iter().filter(|child| child.is_named)
    }

    pub(super) fn child(&self, kind: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.kind == kind)
    }

    pub(super) fn fields<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'n Self> {
        self.children.iter().filter(move |child| child.field == Some(name))
    }

    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|child| child.field == Some(name))
    }
}

/// Returns the tree of a text, with its nodes in `arena`. If the text is not valid bash, the tree
/// contains `ERROR` nodes.
///
/// *Errors*: the reason why the text has no tree.
pub(super) fn tree<'a>(text: &str, arena: &'a Bump) -> Result<Node<'a>, &'static str> {
    let is_odd = |c: char| !matches!(c, ' '..='~' | '\n' | '\t') && is_deceptive(c);
    if text.chars().any(is_odd) {
        return Err("it contains control or invisible characters");
    }
    if text.matches("|&").count() > MAX_PIPES {
        return Err("it contains too many `|&`");
    }
    let mut depth = 0_usize;
    let is_deep = text.bytes().any(|byte| {
        match byte {
            b'(' | b'{' => depth += 1,
            b')' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > DEEPEST
    });
    if is_deep {
        return Err("it is nested too deeply");
    }
    PARSER
        .with_borrow_mut(|parser| {
            let parser = parser.as_mut()?;
            let tree = parse(parser, text)?;
            let root = convert(&mut tree.walk(), arena, 0);
            Some(root.ok_or("it is nested too deeply"))
        })
        .unwrap_or(Err("it is not valid bash, or takes too long to parse"))
}

/// Parses a text; `None` if that takes more steps than its length allows, or if a text with many
/// redirections contains an error.
///
/// After an error, the work of the parser's recovery can double with each redirection that follows.
/// All this work is part of a single step, so the limit on steps does not stop it. Only the
/// parser's log reports the error as soon as it is found. Logging costs as much as parsing, so we
/// enable it only for texts with many redirections.
fn parse(parser: &mut Parser, text: &str) -> Option<tree_sitter::Tree> {
    let most = FEWEST_STEPS + text.len() / BYTES_PER_STEP;
    let has_error = Arc::new(AtomicBool::new(false));
    let redirections = text.bytes().filter(|byte| matches!(byte, b'<' | b'>')).count();
    if redirections > FEW_REDIRECTIONS {
        let found = has_error.clone();
        parser.set_logger(Some(Box::new(move |_, message| {
            // With this message, the parser has lost its last interpretation of the text. Losing
            // one of several is normal.
            if message.starts_with("resume version") {
                found.store(true, Ordering::Relaxed);
            }
        })));
    }
    let mut steps = 0;
    let mut go_on = |_: &ParseState| {
        steps += 1;
        if steps > most || has_error.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let options = ParseOptions::new().progress_callback(&mut go_on);
    let mut read = |at: usize, _| text.as_bytes().get(at..).unwrap_or_default();
    let tree = parser.parse_with_options(&mut read, None, Some(options));
    parser.set_logger(None);
    // Otherwise, the next parse would continue where this one stopped.
    parser.reset();
    tree
}

/// Returns the node at the cursor with the nodes below it; `None` if they are too deep.
fn convert<'a>(cursor: &mut TreeCursor<'_>, arena: &'a Bump, depth: usize) -> Option<Node<'a>> {
    if depth > DEEPEST {
        return None;
    }
    let node = cursor.node();
    let mut children: &[Node<'a>] = &[];
    if cursor.goto_first_child() {
        let next = |at: usize| {
            if at == 0 || cursor.goto_next_sibling() {
                convert(cursor, arena, depth + 1).ok_or(())
            } else {
                Err(())
            }
        };
        children = arena.alloc_slice_try_fill_with(node.child_count() as usize, next).ok()?;
        cursor.goto_parent();
    }
    let range = node.byte_range();
    // The id of an error is not in the grammar. A token that the parser inserted is empty.
    let kind =
        KINDS.get(usize::from(node.kind_id())).filter(|_| !range.is_empty() || !node.is_missing());
    Some(Node {
        kind: kind.unwrap_or(&"ERROR"),
        field: cursor.field_id().and_then(|id| *FIELDS.get(usize::from(id.get()))?),
        is_named: node.is_named(),
        start: range.start,
        end: range.end,
        children,
    })
}
