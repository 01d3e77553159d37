//! Wraps text between words at the width of the terminal, and begins each new line with a margin.

use std::io::{self, IsTerminal as _};

use unicode_width::UnicodeWidthChar as _;

/// Columns between two tab stops of a terminal.
const TAB: usize = 8;

/// The width of a terminal that does not report one, as in a container or on a serial line.
const USUAL_WIDTH: usize = 80;

/// Returns the width of the terminal on stdout; `None` if stdout is not a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(&out).map_or(0, |size| usize::from(size.ws_col));
    Some(if columns > 0 { columns } else { USUAL_WIDTH })
}

/// Wraps the lines of a text at `width`. What does not fit goes on in column `margin`, or behind the
/// bar (`|`) with which its line begins. `None` disables wrapping.
pub(crate) fn hang(text: &str, margin: usize, width: Option<usize>) -> String {
    let Some(columns) = width else { return text.to_owned() };
    let hung = |line: &str| {
        let own = line.trim_start_matches(' ');
        let indent = line.len() - own.len();
        let margin = if own.starts_with("| ") {
            format!("{:indent$}| ", "")
        } else {
            " ".repeat(margin.min(columns / 2))
        };
        let margin_columns = margin.len();
        let mut wrap = Wrap { column: 0, ..Wrap::new(width, margin, margin_columns) };
        format!("{}\n", wrap.push(line))
    };
    text.lines().map(hung).collect()
}

/// Wraps a text that arrives in pieces.
pub(crate) struct Wrap {
    /// Columns of a line; `None` disables wrapping.
    width: Option<usize>,
    margin: String,
    margin_columns: usize,
    /// Columns used in the current line.
    column: usize,
}

impl Wrap {
    /// Starts in a line that already has `margin_columns` used. Each later line begins with
    /// `margin`, which must be that wide.
    pub(crate) fn new(width: Option<usize>, margin: String, margin_columns: usize) -> Self {
        Self { width, margin, margin_columns, column: margin_columns }
    }

    /// Returns the next piece, with a line end wherever the text or the width requires one.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        let mut out = String::with_capacity(piece.len());
        for word in piece.split_inclusive([' ', '\n']) {
            let text = word.trim_end_matches([' ', '\n']);
            let columns = text.chars().map(|c| self.columns(c)).sum::<usize>();
            if self.column > self.margin_columns && self.is_beyond(columns) {
                self.begin_line(&mut out);
            }
            for c in word.chars() {
                let columns = self.columns(c);
                match c {
                    '\n' => self.begin_line(&mut out),
                    // Drop a space at the end of a full line.
                    ' ' if self.is_beyond(columns) => {}
                    _ => {
                        if self.column > self.margin_columns && self.is_beyond(columns) {
                            self.begin_line(&mut out);
                        }
                        out.push(c);
                        self.column += columns;
                    }
                }
            }
        }
        out
    }

    fn is_beyond(&self, columns: usize) -> bool {
        self.width.is_some_and(|width| self.column + columns > width)
    }

    fn begin_line(&mut self, out: &mut String) {
        out.push('\n');
        out.push_str(&self.margin);
        self.column = self.margin_columns;
    }

    fn columns(&self, c: char) -> usize {
        match c {
            '\t' => TAB - self.column % TAB,
            c => c.width().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrapped(width: usize, pieces: &[&str]) -> String {
        let mut wrap = Wrap::new(Some(width), "| ".to_owned(), 2);
        pieces.iter().map(|piece| wrap.push(piece)).collect()
    }

    #[test]
    fn a_line_breaks_between_words() {
        assert_eq!(wrapped(10, &["one two three"]), "one two \n| three");
        assert_eq!(wrapped(10, &["one two", " three"]), "one two \n| three");
        assert_eq!(wrapped(10, &["12345678 9"]), "12345678\n| 9");
        assert_eq!(wrapped(10, &["a\nb"]), "a\n| b");
        assert_eq!(wrapped(10, &["a long/long/word"]), "a \n| long/lon\n| g/word");
        assert_eq!(wrapped(10, &["三三三三三"]), "三三三三\n| 三");
    }

    #[test]
    fn a_long_line_goes_on_below_what_it_began() {
        let hung = |text| hang(text, 6, Some(20));
        assert_eq!(hung("ok    fits into it"), "ok    fits into it\n");
        assert_eq!(hung("ok    goes on below it\nok"), "ok    goes on below \n      it\nok\n");
        assert_eq!(hung("  | a value of two words"), "  | a value of two \n  | words\n");
        assert_eq!(hung("a very long label  x"), "a very long label  x\n");
        assert_eq!(hang("ok  /long/path", 12, Some(8)), "ok  /lon\n    g/pa\n    th\n");
        assert_eq!(hang("as it is", 6, None), "as it is");
    }

    #[test]
    fn a_file_gets_the_lines_as_they_are() {
        let mut wrap = Wrap::new(None, "| ".to_owned(), 2);
        let line = "word ".repeat(100);
        assert_eq!(wrap.push(&line), line);
    }

    proptest! {
        #[test]
        fn nothing_but_spaces_is_lost(pieces in prop::collection::vec("[a-z \n]{0,12}", 0..12), width in 4usize..20) {
            let mut wrap = Wrap::new(Some(width), String::new(), 0);
            let out: String = pieces.iter().map(|piece| wrap.push(piece)).collect();
            let solid = |text: &str| text.replace([' ', '\n'], "");
            prop_assert_eq!(solid(&out), solid(&pieces.concat()));
            prop_assert!(out.lines().all(|line| line.len() <= width));
        }
    }
}
