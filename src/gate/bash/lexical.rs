//! The forms of text that bash and the grammar split into the same tokens. Text in any other form
//! is unreadable.
//!
//! The functions accept only the forms that they list. So if bash and the grammar disagree about
//! another form, the text counts as unreadable, and no command is overlooked.
//!
//! *Source*: POSIX.1-2024, XCU 2.2 (Quoting), 2.3 (Token Recognition); bash(1), QUOTING and
//! REDIRECTION.

use super::tree::Node;
use crate::argv::programs::{Words, words};

/// Operators, brackets and reserved words that the walk accepts.
pub(super) static TOKENS: Words = Words::new(|| {
    let mut tokens = words(
        "\
        ; ;; ;& ;;& & && | || |& ( ) { } [ ] [[ ]] (( )) ! < > >> &> &>> <& >& >| <<< << <<- $( \
        ${ $(( $ <( >( ` \" = += == != =~ + - * / % ** ++ -- <= >= ? : , ^ ~ -= *= /= %= # ## %% \
        // ^^ ,, :- := :+ :? if then elif else fi for in do done while until case esac function \
        export declare typeset local readonly unset unsetenv /# /% ..",
    );
    tokens.insert("\n");
    tokens
});

/// Nodes whose parts touch each other, without blanks.
const GLUED: [&str; 5] = [
    "concatenation",
    "simple_expansion",
    "variable_assignment",
    "command_name",
    "translated_string",
];

/// Nodes that consist of words and end with their line.
const WORDS: [&str; 7] = [
    "redirected_statement",
    "command",
    "declaration_command",
    "unset_command",
    "file_redirect",
    "herestring_redirect",
    "heredoc_redirect",
];

/// Nodes in which bash reads a comment wherever the grammar does.
const COMMENTED: [&str; 11] = [
    "program",
    "list",
    "pipeline",
    "subshell",
    "do_group",
    "if_statement",
    "elif_clause",
    "else_clause",
    "while_statement",
    "case_statement",
    "case_item",
];

/// Tells whether bash reads a leaf of the tree as the same token as the grammar.
pub(super) fn is_plain_token(node: &Node, own: &str) -> bool {
    match node.kind {
        "word" => {
            !own.starts_with('#')
                && unescaped(own).all(|c| c.is_alphanumeric() || "_./:,+=%@^~*?[]!{}#-".contains(c))
        }
        "number" => own.chars().all(|c| c.is_ascii_alphanumeric() || "-#".contains(c)),
        // The grammar treats a parameter such as `$1` as a variable.
        "variable_name" => is_name(own) || own.bytes().all(|b| b.is_ascii_digit()),
        "special_variable_name" => {
            own.len() == 1 && own.chars().all(|c| c.is_ascii_digit() || "*@?!#$-_".contains(c))
        }
        "raw_string" => within(own, "'", "'").is_some_and(|inner| !inner.contains('\'')),
        // After an escaped backslash or quote, the grammar may end the text at a different place
        // than bash.
        "ansi_c_string" => within(own, "$'", "'").is_some_and(|inner| {
            !inner.contains('\'') && !inner.contains("\\\\") && !inner.ends_with('\\')
        }),
        "string_content" => unescaped(own).all(|c| !matches!(c, '"' | '`')) && !expands(own),
        "file_descriptor" => own.bytes().all(|b| b.is_ascii_digit()),
        "test_operator" => {
            own.strip_prefix('-').is_some_and(|name| name.bytes().all(|b| b.is_ascii_alphabetic()))
        }
        "comment" => own.starts_with('#') && !own.contains('\n'),
        "regex" | "extglob_pattern" => {
            let is_listed = |c: char| c.is_alphanumeric() || "_./:,+=%@^~*?[]!|()#$-".contains(c);
            unescaped(own).all(|c| is_listed(c) || matches!(c, '{' | '}')) && !expands(own)
        }
        "heredoc_content" | "heredoc_end" | "heredoc_start" => true,
        _ => false,
    }
}

/// Tells whether bash also reads the comments among the children of `node` as comments. Between
/// brackets of an expression or an array, a `#` can be text for bash; so can one that follows a word
/// without a space, as in `n=(a b)# ls`.
fn has_plain_comments(node: &Node, text: &str) -> bool {
    let may_comment = || match node.kind {
        "compound_statement" => node.text(text).starts_with('{'),
        kind => COMMENTED.contains(&kind),
    };
    let mut comments = node.children.iter().filter(|child| child.kind == "comment");
    comments.all(|comment| {
        let before = text.get(..comment.start).unwrap_or("?");
        let is_apart = match before.strip_suffix([' ', '\t', '\n', ';']) {
            Some(rest) => !rest.ends_with('\\'),
            None => before.is_empty(),
        };
        is_apart && may_comment()
    })
}

/// Tells whether bash reads the operator `own` and the text `after` it as the beginning of a process
/// substitution. The grammar does not if they follow a word in `[[ … ]]`.
pub(super) fn opens_substitution(own: &str, after: &str) -> bool {
    matches!(own, "<" | ">") && after.trim_start_matches("\\\n").starts_with('(')
}

/// Tells whether the brackets of a test are words of their own. Otherwise, bash reads a pattern, such as
/// `[ab]`, and runs the program that matches it.
fn has_own_brackets(test: &str) -> bool {
    let test = test.replace("\\\n", "");
    let inside = test.trim_start_matches('[').trim_end_matches(']');
    let is_blank = |c: char| c.is_ascii_whitespace();
    !test.starts_with('[') || inside.starts_with(is_blank) && inside.ends_with(is_blank)
}

/// Tells whether bash splits a node into the parts that the tree shows.
pub(super) fn is_divided_alike(node: &Node, text: &str) -> bool {
    let gap = |from: usize, to: usize| text.get(from..to).unwrap_or("?");
    if !has_plain_comments(node, text) {
        return false;
    }
    if node.children.len() < 2 && node.kind != "program" {
        return true;
    }
    if node.kind == "program" {
        let first = node.children.first().map_or(text.len(), |child| child.start);
        let last = node.children.last().map_or(text.len(), |child| child.end);
        if !is_blank(gap(0, first), true) || !is_blank(gap(last, text.len()), true) {
            return false;
        }
    }
    if node.kind == "test_command" && !has_own_brackets(node.text(text)) {
        return false;
    }
    // A test in single brackets is a command, which ends with its line.
    if node.kind == "test_command" && !node.text(text).starts_with("[[") {
        return !node.text(text).replace("\\\n", "").contains('\n');
    }
    let is_words = WORDS.contains(&node.kind);
    let is_glued = GLUED.contains(&node.kind);
    let pairs = node.children.iter().zip(node.children.iter().skip(1));
    let mut pairs = pairs.take_while(|(_, next)| next.kind != "heredoc_body");
    pairs.all(|(before, next)| {
        let gap = gap(before.end, next.start);
        let is_redirect = next.kind.ends_with("_redirect");
        match node.kind {
            "heredoc_body" => true,
            _ if is_glued => gap.is_empty(),
            _ if before.kind == "file_descriptor" => gap.is_empty(),
            _ if is_redirect && names_descriptor(text.get(..next.start).unwrap_or_default()) => {
                false
            }
            _ if next.kind == "heredoc_redirect" && is_lone_dash(gap) => true,
            _ if is_words || node.kind == "for_statement" || node.kind == "array" => {
                // `<<-` ends with a character that words can contain too.
                let is_operator = before.kind.starts_with(['<', '>']);
                let may_touch = is_redirect || is_operator || touch(text, next.start);
                is_blank(gap, !is_words) && (may_touch || !gap.is_empty())
            }
            "string"
            | "expansion"
            | "subscript"
            | "command_substitution"
            | "arithmetic_expansion"
            | "binary_expression"
            | "unary_expression"
            | "postfix_expression"
            | "ternary_expression"
            | "parenthesized_expression"
            | "brace_expression"
            | "variable_assignments" => is_blank(gap, true),
            // Elsewhere, two tokens may touch only if one is an operator: `]#` and `}x` are words.
            _ => is_blank(gap, true) && (!gap.is_empty() || touch(text, next.start)),
        }
    })
}

/// Tells whether the characters before and after the offset `at` certainly belong to different
/// tokens.
fn touch(text: &str, at: usize) -> bool {
    let is_operator = |c: char| c.is_whitespace() || ";|&()<>".contains(c);
    let (before, behind) = text.split_at_checked(at).unwrap_or_default();
    before.ends_with(is_operator) || behind.starts_with(is_operator)
}

/// Tells whether the text between two tokens consists of blanks, line continuations and, if
/// `ends_lines`, newlines.
fn is_blank(gap: &str, ends_lines: bool) -> bool {
    let mut characters = gap.chars();
    while let Some(c) = characters.next() {
        let is_accepted = match c {
            ' ' | '\t' => true,
            '\n' => ends_lines,
            '\\' => characters.next() == Some('\n'),
            _ => false,
        };
        if !is_accepted {
            return false;
        }
    }
    true
}

/// Tells whether the text between two tokens is the word `-`, which the grammar drops before a
/// here-document.
pub(super) fn is_lone_dash(gap: &str) -> bool {
    gap.len() > 2
        && gap.trim_matches([' ', '\t']) == "-"
        && !gap.starts_with('-')
        && !gap.ends_with('-')
}

/// Tells whether a text continues a line in the middle of a word.
pub(super) fn joins_lines(text: &str) -> bool {
    text.match_indices("\\\n").any(|(at, _)| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        before.is_some_and(|c| !c.is_whitespace() && !"|&;({".contains(c))
    })
}

/// Tells whether the text before a redirection ends with `{name}`. bash reads `{name}>file` as one
/// redirection, but the grammar reads it as a word and a redirection.
fn names_descriptor(before: &str) -> bool {
    let is_end = |c: char| c.is_whitespace() || ";|&()".contains(c);
    let word = before.rsplit(is_end).next().unwrap_or_default();
    let name = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
    name.is_some_and(|name| is_name(name.split('[').next().unwrap_or_default()))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !text.starts_with(|c: char| c.is_ascii_digit())
}

fn within<'t>(text: &'t str, open: &str, close: &str) -> Option<&'t str> {
    text.strip_prefix(open)?.strip_suffix(close)
}

/// Returns the characters that are not escaped. A backslash at the end of the text or of a line
/// stays a backslash.
fn unescaped(text: &str) -> impl Iterator<Item = char> {
    let mut characters = text.chars();
    std::iter::from_fn(move || {
        loop {
            match characters.next()? {
                '\\' => match characters.next() {
                    None | Some('\n') => return Some('\\'),
                    Some(_) => {}
                },
                c => return Some(c),
            }
        }
    })
}

/// Tells whether bash would expand something in a text that should be literal.
pub(super) fn expands(text: &str) -> bool {
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match (c, characters.peek()) {
            ('\\', _) => drop(characters.next()),
            ('`', _) => return true,
            ('$', Some(next)) if next.is_alphanumeric() || "_({['\"*@?!#$-".contains(*next) => {
                return true;
            }
            _ => {}
        }
    }
    false
}

/// Tells whether a literal may contain code that something runs later: a `$` or a backtick,
/// verbatim or in an escape that may be decoded.
pub(super) fn may_hold_code(text: &str) -> bool {
    const CODE: [u32; 3] = [b'$' as u32, b'`' as u32, b'\\' as u32];
    if text.contains(['$', '`']) {
        return true;
    }
    text.match_indices('\\').any(|(at, _)| {
        let rest = text.get(at + 1..).unwrap_or_default();
        let (digits, radix) = match rest.chars().next() {
            None | Some('c') => return true,
            Some('x' | 'u' | 'U') => (rest.get(1..).unwrap_or_default(), 16),
            Some('0'..='7') => (rest, 8),
            Some(_) => return false,
        };
        let own: String = digits.chars().take_while(|c| c.is_digit(radix)).take(8).collect();
        // The next part of the word may continue the digits.
        let is_open = own.len() == digits.len();
        let decoded = (1..=own.len()).any(|length| {
            let value = own.get(..length).and_then(|own| u32::from_str_radix(own, radix).ok());
            value.is_some_and(|value| CODE.contains(&value))
        });
        is_open || decoded
    })
}

/// Tells whether bash reads the text between backticks verbatim: it contains no quote, escape,
/// comment or line end.
pub(super) fn is_plain_backtick(own: &str) -> bool {
    within(own, "`", "`").is_some_and(|inner| !inner.contains(['`', '\\', '\'', '"', '#', '\n']))
}

/// Tells whether a here-document ends at the first line that equals its delimiter, and whether the
/// tree shows everything that bash expands in its body.
pub(super) fn is_plain_heredoc(node: &Node, text: &str) -> bool {
    let (Some(start), Some(end)) = (node.child("heredoc_start"), node.child("heredoc_end")) else {
        return false;
    };
    let written = start.text(text);
    let word = ['\'', '"'].iter().find_map(|quote| {
        within(written, quote.encode_utf8(&mut [0; 4]), quote.encode_utf8(&mut [0; 4]))
    });
    let is_quoted = word.is_some();
    let word = word.unwrap_or(written);
    let rest = text.get(start.end..).unwrap_or_default();
    let (line, _) = rest.split_once('\n').unwrap_or((rest, ""));
    // If a line begins two here-documents, the body of the second follows that of the first.
    if !is_name(word) || line.contains("<<") {
        return false;
    }
    let strips_tabs = node.children.iter().any(|child| child.kind == "<<-");
    let begins = start.end + line.len() + 1;
    let mut at = begins;
    for line in text.get(begins..).unwrap_or_default().split('\n') {
        let shown = if strips_tabs { line.trim_start_matches('\t') } else { line };
        if shown == word {
            let ends_alike = at + (line.len() - shown.len()) == end.start;
            return ends_alike && (is_quoted || shows_all(node, text, begins..at, strips_tabs));
        }
        at += line.len() + 1;
    }
    false
}

/// Returns a here-document without the `$` of the expansions in it.
pub(super) fn literal_body(node: &Node, text: &str) -> String {
    let own = node.text(text);
    if node.child("heredoc_start").is_some_and(|start| start.text(text).contains(['\'', '"'])) {
        return own.to_owned();
    }
    let mut escaped = false;
    let is_literal = |c: &char| {
        let stays = escaped || *c != '$';
        escaped = *c == '\\' && !escaped;
        stays
    };
    own.chars().filter(is_literal).collect()
}

/// Tells whether the tree shows everything that bash expands in the body of a here-document. The
/// grammar loses its position where bash strips leading tabs, so we accept only variables there.
fn shows_all(node: &Node, text: &str, body: std::ops::Range<usize>, strips_tabs: bool) -> bool {
    let own = text.get(body.clone()).unwrap_or_default();
    if strips_tabs && (own.contains("$(") || own.contains("$[") || own.contains('`')) {
        return false;
    }
    let Some(shown) = node.child("heredoc_body") else { return !runs(own) };
    let mut at = body.start;
    for child in shown.named().filter(|child| child.kind != "heredoc_content") {
        if child.start < at || runs(text.get(at..child.start).unwrap_or("$(")) {
            return false;
        }
        at = child.end;
    }
    !runs(text.get(at..body.end).unwrap_or("$("))
}

/// Tells whether bash expands anything but plain variables in a text.
fn runs(text: &str) -> bool {
    let mut escaped = false;
    text.char_indices().any(|(at, c)| {
        let rest = text.get(at + c.len_utf8()..).unwrap_or_default();
        let is_variable = || {
            let inner = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            inner.is_some_and(|(name, _)| is_name(name))
        };
        let is_found = !escaped
            && (c == '`' || c == '$' && rest.starts_with(['(', '[', '{']) && !is_variable());
        escaped = c == '\\' && !escaped;
        is_found
    })
}
