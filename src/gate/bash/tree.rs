//! From the text of a command to its syntax tree, in a time that grows with the text alone.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tree_sitter::{ParseOptions, ParseState, Parser, Tree};

use super::syntax::DEEPEST;

/// Hundreds of steps that the parser may take: an ordinary script of the largest size needs some 1,500.
const MOST_STEPS: u32 = 10_000;

/// Separators of commands that an error may stand among without harm.
const FEW: usize = 12;

thread_local! {
    static PARSER: RefCell<Option<Parser>> = RefCell::new(new_parser());
}

fn new_parser() -> Option<Parser> {
    let mut parser = Parser::new();
    parser.set_language(&tree_sitter_bash::LANGUAGE.into()).ok()?;
    Some(parser)
}

/// Returns the tree of a text that is bash from its beginning to its end.
///
/// *Errors*: why it cannot be read.
pub(super) fn tree(text: &str) -> Result<Tree, String> {
    if text.chars().any(|c| c != '\n' && c != '\t' && crate::text::escape::is_deceptive(c)) {
        return Err("it holds control or invisible characters".to_owned());
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
        return Err("it is too deep to be judged".to_owned());
    }
    let joins_words = |(at, _): (usize, &str)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        before.is_some_and(|c| !c.is_whitespace() && !matches!(c, '|' | '&' | ';' | '(' | '{'))
    };
    if text.match_indices("\\\n").any(joins_words) {
        return Err("a line is continued in the middle of a word".to_owned());
    }
    let tree = PARSER.with_borrow_mut(|parser| tree_of(parser.as_mut()?, text));
    let tree = tree.ok_or_else(|| "it cannot be parsed as bash".to_owned())?;
    if text.contains('\\') && skips_escapes(&tree, text) {
        return Err("it holds an escaped blank that is read in two ways".to_owned());
    }
    Ok(tree)
}

/// Tells whether a backslash stands between two tokens but for the end of a line: the grammar skips an escaped blank, which is a word for bash.
fn skips_escapes(tree: &Tree, text: &str) -> bool {
    let mut cursor = tree.walk();
    let mut end = 0;
    loop {
        if !cursor.goto_first_child() {
            let leaf = cursor.node();
            let gap = text.get(end..leaf.start_byte()).unwrap_or_default();
            if gap.replace("\\\n", "").contains('\\') {
                return true;
            }
            end = end.max(leaf.end_byte());
            while !cursor.goto_next_sibling() {
                if !cursor.goto_parent() {
                    return text
                        .get(end..)
                        .is_some_and(|gap| gap.replace("\\\n", "").contains('\\'));
                }
            }
        }
    }
}

/// Returns the tree of a text without an error; `None` if it has one, or can be read in more ways than can be followed.
///
/// What the parser does to go on after an error doubles with each command that follows, and is of no use here. Its log alone tells an error as
/// it is found, and costs as much as the parsing, so that short texts do without.
fn tree_of(parser: &mut Parser, text: &str) -> Option<Tree> {
    let has_error = Arc::new(AtomicBool::new(false));
    let separators = text.bytes().filter(|byte| matches!(byte, b'|' | b'&' | b';' | b'\n'));
    if separators.count() > FEW {
        let found = has_error.clone();
        parser.set_logger(Some(Box::new(move |_, message| {
            // Every way of reading it has ended; that one has is ordinary.
            if message.starts_with("resume version") {
                found.store(true, Ordering::Relaxed);
            }
        })));
    }
    let mut steps = 0;
    let mut go_on = |_: &ParseState| {
        steps += 1;
        match has_error.load(Ordering::Relaxed) || steps > MOST_STEPS {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let options = ParseOptions::new().progress_callback(&mut go_on);
    let mut read = |at: usize, _| text.as_bytes().get(at..).unwrap_or_default();
    let tree = parser.parse_with_options(&mut read, None, Some(options));
    parser.set_logger(None);
    // It would go on where it stopped.
    parser.reset();
    tree.filter(|tree| !tree.root_node().has_error())
}
