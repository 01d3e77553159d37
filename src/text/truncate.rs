//! The model's view of an output: cut by characters, then by lines, with a marker that says how
//! much is missing.
//!
//! The whole output is kept elsewhere. A view never splits a character, and a cut view always says
//! that it was cut.
//! *Source*: `docs/design/loop.md`, "Truncation".

use std::collections::VecDeque;

use crate::domain::Truncated;

/// How much of an output a model sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewLimit {
    /// Maximum number of characters (Unicode scalar values), not counting the markers.
    pub characters: usize,
    pub lines: usize,
    /// The part to keep if the output is too long.
    pub keep: Keep,
}

/// The part of an output that a cut view keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The beginning and the end.
    HeadAndTail,
    /// The beginning, cut after its last line end if it contains one.
    Head,
    Tail,
}

impl Keep {
    fn place(self) -> &'static str {
        match self {
            Self::HeadAndTail => "middle",
            Self::Head => "end",
            Self::Tail => "beginning",
        }
    }
}

/// Returns the view of `text` and the size of the part left out.
///
/// `whole` is the sentence in the marker that says where the whole output is.
#[must_use]
pub fn head_and_tail(text: &str, limit: ViewLimit, whole: &str) -> (String, Option<Truncated>) {
    let total = text.chars().count();
    match limit.keep {
        Keep::HeadAndTail => {}
        Keep::Head => return head(text, total.saturating_sub(limit.characters), limit, whole),
        Keep::Tail => return tail(text, total.saturating_sub(limit.characters), limit, whole),
    }
    let Some(removed) = total.checked_sub(limit.characters).filter(|removed| *removed > 0) else {
        let (view, lines) = cut_lines(text, limit, whole);
        let cut = (lines > 0).then_some(Truncated { characters: 0, lines: lines as u64 });
        return (view, cut);
    };
    let half = limit.characters / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(half + removed).collect();
    let (view, cut) = cut_middle(&head, &tail, removed as u64, limit, whole);
    (view, Some(cut))
}

/// Returns the marker that replaces `count` characters or lines.
#[must_use]
pub fn marker(count: u64, what: &str, keep: Keep, whole: &str) -> String {
    let place = keep.place();
    format!(
        "[WARNING: Tool output was truncated. {count} {what} were removed from the {place}. {whole}]"
    )
}

/// Collects the view of an output that may not fit into memory.
#[derive(Debug)]
pub struct ViewBuilder {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    capacity: usize,
    characters: u64,
    lines: u64,
    ends_line: bool,
    dropped: bool,
    utf8: Utf8Watch,
}

impl ViewBuilder {
    /// Returns a builder with bounded memory: for each end of the output, four bytes per character
    /// of the limit, and at least 1 KiB.
    #[must_use]
    pub fn new(limit: ViewLimit) -> Self {
        let capacity = limit.characters.saturating_mul(4).max(1024);
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            capacity,
            characters: 0,
            lines: 0,
            ends_line: true,
            dropped: false,
            utf8: Utf8Watch::default(),
        }
    }

    /// Adds a piece of the output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.utf8.push(bytes);
        // Every byte that does not continue a character begins one. This is close enough for
        // invalid UTF-8.
        self.characters += bytes.iter().filter(|byte| (**byte & 0xc0) != 0x80).count() as u64;
        self.lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.ends_line = bytes.last().map_or(self.ends_line, |last| *last == b'\n');
        let room = self.capacity.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at(room);
        self.head.extend_from_slice(first);
        let recent = rest.get(rest.len().saturating_sub(self.capacity)..).unwrap_or_default();
        let excess = (self.tail.len() + recent.len()).saturating_sub(self.capacity);
        self.dropped |= excess > 0 || recent.len() < rest.len();
        self.tail.drain(..excess.min(self.tail.len()));
        self.tail.extend(recent);
    }

    /// Tells whether the view of the output so far leaves anything out.
    #[must_use]
    pub fn is_cut(&self, limit: ViewLimit) -> bool {
        self.dropped
            || self.characters > limit.characters as u64
            || self.lines + u64::from(!self.ends_line) > limit.lines as u64
    }

    /// Tells whether the output contained invalid UTF-8.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.utf8.is_broken()
    }

    /// Returns the view and the size of the part left out. `whole` is the sentence in the marker
    /// that says where the whole output is.
    #[must_use]
    pub fn finish(mut self, limit: ViewLimit, whole: &str) -> (String, Option<Truncated>) {
        if !self.dropped {
            self.head.extend(self.tail.iter());
            return head_and_tail(&String::from_utf8_lossy(&self.head), limit, whole);
        }
        let tail_text = String::from_utf8_lossy(self.tail.make_contiguous()).into_owned();
        let head_text = String::from_utf8_lossy(&self.head);
        let removed = self.characters.saturating_sub(limit.characters as u64);
        let too_many = usize::try_from(removed).unwrap_or(usize::MAX);
        match limit.keep {
            Keep::HeadAndTail => {}
            Keep::Head => return head(&head_text, too_many, limit, whole),
            Keep::Tail => return tail(&tail_text, too_many, limit, whole),
        }
        let half = limit.characters / 2;
        let head: String = head_text.chars().take(half).collect();
        let skip = tail_text.chars().count().saturating_sub(limit.characters - half);
        let tail: String = tail_text.chars().skip(skip).collect();
        let (view, cut) = cut_middle(&head, &tail, removed, limit, whole);
        (view, Some(cut))
    }
}

/// Detects invalid UTF-8 in a stream.
#[derive(Debug, Default)]
struct Utf8Watch {
    carried: Vec<u8>,
    broken: bool,
}

impl Utf8Watch {
    fn push(&mut self, bytes: &[u8]) {
        if self.broken {
            return;
        }
        self.carried.extend_from_slice(bytes);
        match std::str::from_utf8(&self.carried) {
            Ok(_) => self.carried.clear(),
            Err(error) if error.error_len().is_some() => {
                self.broken = true;
                self.carried = Vec::new();
            }
            Err(error) => drop(self.carried.drain(..error.valid_up_to())),
        }
    }

    fn is_broken(&self) -> bool {
        self.broken || !self.carried.is_empty()
    }
}

/// Puts the marker between head and tail.
fn joined(head: &str, marker: &str, tail: &str, between: &str) -> String {
    format!("{head}{between}{marker}{between}{tail}")
}

/// Returns the beginning of a text that has `characters` characters too many, with the markers
/// after it.
///
/// Leaves out a line that does not fit completely: half a path would name another file.
fn head(
    text: &str,
    characters: usize,
    limit: ViewLimit,
    whole: &str,
) -> (String, Option<Truncated>) {
    let mut start: String = text.chars().take(limit.characters).collect();
    let mut removed = characters;
    if characters > 0
        && let Some(end) = start.rfind('\n')
    {
        let half_line = start.split_off(end + 1);
        removed = removed.saturating_add(half_line.chars().count());
    }
    let lines = start.lines().count().saturating_sub(limit.lines);
    let kept: Vec<&str> = start.lines().take(limit.lines).collect();
    let mut view = if lines > 0 { kept.join("\n") } else { start };
    if removed == 0 && lines == 0 {
        return (view, None);
    }
    for (count, what) in [(removed, "characters"), (lines, "lines")] {
        if count > 0 {
            if !view.is_empty() && !view.ends_with('\n') {
                view.push('\n');
            }
            view.push_str(&marker(count as u64, what, Keep::Head, whole));
        }
    }
    (view, Some(Truncated { characters: removed as u64, lines: lines as u64 }))
}

/// Returns the end of a text that has `characters` characters too many, with the markers before it.
fn tail(
    text: &str,
    characters: usize,
    limit: ViewLimit,
    whole: &str,
) -> (String, Option<Truncated>) {
    let count = text.chars().count();
    let end: String = text.chars().skip(count.saturating_sub(limit.characters)).collect();
    let lines = end.lines().count().saturating_sub(limit.lines);
    let cut: Vec<&str> = end.lines().skip(lines).collect();
    let shown = if lines > 0 { cut.join("\n") } else { end };
    if characters == 0 && lines == 0 {
        return (shown, None);
    }
    let mut view = String::new();
    for (count, what) in [(characters, "characters"), (lines, "lines")] {
        if count > 0 {
            view.push_str(&marker(count as u64, what, Keep::Tail, whole));
            view.push('\n');
        }
    }
    view.push_str(&shown);
    let removed = Truncated { characters: characters as u64, lines: lines as u64 };
    (view, Some(removed))
}

/// Joins head and tail, between which `removed` characters were cut, and cuts each to its share of
/// the lines.
fn cut_middle(
    head: &str,
    tail: &str,
    removed: u64,
    limit: ViewLimit,
    whole: &str,
) -> (String, Truncated) {
    let gap = marker(removed, "characters", limit.keep, whole);
    let (above, below) = (head.lines().count(), tail.lines().count());
    let lines = (above + below).saturating_sub(limit.lines);
    if lines == 0 {
        let view = joined(head, &gap, tail, "\n\n");
        return (view, Truncated { characters: removed, lines: 0 });
    }
    // Each half may use the lines that the other does not need.
    let first = above.min((limit.lines / 2).max(limit.lines.saturating_sub(below)));
    let last = limit.lines - first;
    let head: Vec<&str> = head.lines().take(first).collect();
    let tail: Vec<&str> = tail.lines().skip(below.saturating_sub(last)).collect();
    let gap = format!("{gap}\n{}", marker(lines as u64, "lines", limit.keep, whole));
    let view = joined(&head.join("\n"), &gap, &tail.join("\n"), "\n\n");
    (view, Truncated { characters: removed, lines: lines as u64 })
}

/// Cuts lines out of the middle. Returns the text and the number of lines cut.
fn cut_lines(text: &str, view: ViewLimit, whole: &str) -> (String, usize) {
    let limit = view.lines;
    let total = text.lines().count();
    if total <= limit {
        return (text.to_owned(), 0);
    }
    let half = limit / 2;
    let removed = total - limit;
    let head: Vec<&str> = text.lines().take(half).collect();
    let tail: Vec<&str> = text.lines().skip(half + removed).collect();
    let marker = marker(removed as u64, "lines", view.keep, whole);
    (joined(&head.join("\n"), &marker, &tail.join("\n"), "\n"), removed)
}

/// Returns a text of at most `most` characters, with an ellipsis for the rest.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or(text)),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limit(characters: usize, lines: usize) -> ViewLimit {
        ViewLimit { characters, lines, keep: Keep::HeadAndTail }
    }

    #[test]
    fn a_tail_is_the_end() {
        let limit = ViewLimit { keep: Keep::Tail, ..limit(10, 3) };
        let (view, cut) = head_and_tail("one\ntwo\nthree\n4\n5", limit, "f");
        assert_eq!(cut, Some(Truncated { characters: 7, lines: 1 }), "{view}");
        assert!(view.contains("from the beginning") && view.ends_with("\n4\n5"), "{view}");
        let mut builder = ViewBuilder::new(limit);
        builder.push("x".repeat(9000).as_bytes());
        let (view, cut) = builder.finish(ViewLimit { lines: 100, ..limit }, "f");
        assert_eq!(cut.unwrap().characters, 8990);
        assert!(view.starts_with("[WARNING") && view.ends_with("]\nxxxxxxxxxx"), "{view}");
    }

    #[test]
    fn a_head_is_the_beginning_in_whole_lines() {
        let limit = ViewLimit { keep: Keep::Head, ..limit(10, 2) };
        let (view, cut) = head_and_tail("one\ntwo\nthree\n4\n5", limit, "f");
        // "th" would be half a line.
        assert_eq!(cut, Some(Truncated { characters: 9, lines: 0 }), "{view}");
        assert!(view.starts_with("one\ntwo\n[WARNING") && view.contains("from the end"), "{view}");
        let (view, cut) = head_and_tail("1\n2\n3\n4\n5\n6\n7\n", limit, "f");
        assert_eq!(cut, Some(Truncated { characters: 4, lines: 3 }), "{view}");
        assert!(view.starts_with("1\n2\n[WARNING") && view.contains("\n[WARNING"), "{view}");
        assert_eq!(head_and_tail("1\n2\n", limit, "f"), ("1\n2\n".to_owned(), None));
        let text: String = (0..1000).map(|n| format!("{n:03}\n")).collect();
        let limit = ViewLimit { characters: 401, lines: 10, keep: Keep::Head };
        let (view, cut) = head_and_tail(&text, limit, "FILE");
        assert_eq!(cut, Some(Truncated { characters: 3600, lines: 90 }), "{view}");
        let mut builder = ViewBuilder::new(limit);
        builder.push(text.as_bytes());
        assert!(builder.dropped, "the builder drops the middle");
        assert_eq!(builder.finish(limit, "FILE"), (view, cut));
    }

    #[test]
    fn short_text_is_whole() {
        let limit = limit(10, 3);
        assert_eq!(head_and_tail("äöü\nx", limit, "f"), ("äöü\nx".to_owned(), None));
    }

    // conforms 000-S6.3, 003-5.1
    #[test]
    fn long_text_keeps_head_and_tail_and_counts() {
        let limit = limit(10, 100);
        let (view, cut) =
            head_and_tail(&format!("{}{}", "ä".repeat(50), "z".repeat(50)), limit, "output/c.txt");
        assert_eq!(cut, Some(Truncated { characters: 90, lines: 0 }));
        assert!(view.starts_with("äääää\n"), "{view}");
        assert!(view.ends_with("\nzzzzz"), "{view}");
        assert!(view.contains("90 characters") && view.contains("output/c.txt"));
    }

    // conforms 003-5.3a, 003-9.5a, 003-9.5b, 003-9.5c
    #[test]
    fn what_is_cut_twice_says_both() {
        let text: String = (0..1000).map(|n| format!("{n:03}\n")).collect();
        let (view, cut) = head_and_tail(&text, limit(400, 10), "FILE");
        // The character limit leaves 100 lines, of which the line limit leaves 10.
        assert_eq!(cut, Some(Truncated { characters: 3600, lines: 90 }));
        assert!(view.starts_with("000\n001\n002\n003\n004\n\n[WARNING"), "{view}");
        assert!(view.ends_with("]\n\n995\n996\n997\n998\n999"), "{view}");
        assert!(view.contains("3600 characters") && view.contains("90 lines"), "{view}");
        let mut builder = ViewBuilder::new(limit(400, 10));
        builder.push(text.as_bytes());
        assert!(builder.is_cut(limit(400, 10)));
        assert_eq!(builder.finish(limit(400, 10), "FILE"), (view, cut));
        let mut whole = ViewBuilder::new(limit(400, 10));
        whole.push("x\n".repeat(10).as_bytes());
        assert!(!whole.is_cut(limit(400, 10)));
        whole.push(b"y");
        assert!(whole.is_cut(limit(400, 10)));
    }

    #[test]
    fn many_lines_keep_head_and_tail() {
        let text: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let (view, cut) = head_and_tail(&text.join("\n"), limit(30_000, 256), "f");
        assert_eq!(cut, Some(Truncated { characters: 0, lines: 744 }));
        assert_eq!(view.lines().count(), 257);
        assert!(view.starts_with("0\n1\n") && view.ends_with("\n999"));
    }

    proptest! {
        #[test]
        fn a_view_never_passes_its_limit_by_more_than_the_marker(text in "(?s).{0,400}", characters in 1usize..100, lines in 1usize..20) {
            let (view, cut) = head_and_tail(&text, limit(characters, lines), "f");
            let markers = 2 * (marker(u64::MAX, "characters", Keep::HeadAndTail, "f").chars().count() + 4);
            prop_assert!(view.chars().count() <= characters + markers);
            prop_assert_eq!(cut.is_none(), view == text);
            for keep in [Keep::Head, Keep::Tail] {
                let limit = ViewLimit { keep, ..limit(characters, lines) };
                let (view, cut) = head_and_tail(&text, limit, "f");
                prop_assert!(view.chars().count() <= characters + markers);
                prop_assert_eq!(cut.is_none(), view == text);
            }
        }
    }
}
