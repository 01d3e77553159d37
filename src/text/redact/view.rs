//! Readings of a text in which an encoded or wrapped secret appears in its plain spelling.
//!
//! A [`View`] leaves out line ends and the indentation after them, undoes one [`Encoding`] and maps
//! every byte back to the text. The scanner searches views, never the text itself.
//!
//! Invariant: if a text is cut where no escape is split, then the view of the second part equals
//! the end of the view of the whole text, except for blanks at its beginning. Streams rely on this.

use std::borrow::Cow;
use std::ops::Range;

/// The longest run of line ends and indentation that a view leaves out, in characters, inclusive.
/// The bound keeps a stream from holding back an endless run.
const LONGEST_GAP: usize = 32;

/// Length in bytes of `\uXXXX`.
const UNIT_LEN: usize = 6;

/// An encoding that a view undoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The text without any decoding.
    Plain,
    /// The escapes of a JSON string, such as `\/`, `\n` and `\u0041`. *Source*: RFC 8259,
    /// section 7.
    Json,
    /// Percent escapes, such as `%4a` or `%4A`. *Source*: RFC 3986, section 2.1.
    Percent,
}

impl Encoding {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Json, Self::Percent];

    /// Returns the byte that begins every escape.
    fn mark(self) -> Option<u8> {
        match self {
            Self::Plain => None,
            Self::Json => Some(b'\\'),
            Self::Percent => Some(b'%'),
        }
    }
}

/// Whether a text is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The text is complete: half an escape at its end is plain text.
    End,
    /// More text follows: the view stops before half an escape.
    More,
}

/// One reading of a text.
pub(super) struct View<'a> {
    bytes: Cow<'a, [u8]>,
    pieces: Vec<Piece>,
    end: usize,
}

/// Bytes of a view, and the bytes of the text that they represent. The two ranges have the same
/// length in a plain piece, and different lengths in an escape.
struct Piece {
    view: Range<usize>,
    text: Range<usize>,
}

impl Piece {
    fn is_escape(&self) -> bool {
        self.view.len() != self.text.len()
    }
}

impl<'a> View<'a> {
    /// Returns the view of `text`; `None` if `text` does not contain the byte that begins every
    /// escape of `encoding`, because the view would equal the plain one.
    pub(super) fn new(text: &'a [u8], encoding: Encoding, stop: Stop) -> Option<Self> {
        match encoding.mark() {
            Some(mark) => memchr::memchr(mark, text)?,
            None if memchr::memchr2(b'\n', b'\r', text).is_none() => {
                let all = Piece { view: 0..text.len(), text: 0..text.len() };
                return Some(Self { bytes: text.into(), pieces: vec![all], end: text.len() });
            }
            None => 0,
        };
        let (bytes, pieces) = (Vec::new(), Vec::new());
        let mut reader = Reader { encoding, stop, bytes, pieces, at: 0, gap: 0 };
        reader.read(text);
        Some(Self { bytes: reader.bytes.into(), pieces: reader.pieces, end: reader.at })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the part of the text that corresponds to `found`, a part of the view.
    pub(super) fn text_range(&self, found: Range<usize>) -> Range<usize> {
        let start = self.text_start(found.start);
        let end = match found.end.checked_sub(1).and_then(|last| self.piece_at(last)) {
            Some(piece) if piece.is_escape() => piece.text.end,
            Some(piece) => piece.text.start + (found.end - piece.view.start),
            None => start,
        };
        start..end
    }

    /// Returns the position in the text of byte `at` of the view. For the end of the view, returns
    /// the position at which reading stopped.
    pub(super) fn text_start(&self, at: usize) -> usize {
        match self.piece_at(at) {
            Some(piece) if piece.is_escape() => piece.text.start,
            Some(piece) => piece.text.start + (at - piece.view.start),
            None => self.end,
        }
    }

    /// Returns `at`, or the start of the escape that a cut at `at` would split.
    pub(super) fn boundary(&self, at: usize) -> usize {
        let piece = self.pieces.partition_point(|piece| piece.text.end <= at);
        match self.pieces.get(piece) {
            Some(piece) if piece.is_escape() => at.min(piece.text.start),
            _ => at,
        }
    }

    fn piece_at(&self, at: usize) -> Option<&Piece> {
        self.pieces.get(self.pieces.partition_point(|piece| piece.view.end <= at))
    }
}

/// Returns `text` without line ends and indentation, as the plain view shows it.
pub(super) fn joined(text: &str) -> Vec<u8> {
    View::new(text.as_bytes(), Encoding::Plain, Stop::End)
        .map(|view| view.bytes.into_owned())
        .unwrap_or_default()
}

/// Builds a view from left to right.
struct Reader {
    encoding: Encoding,
    stop: Stop,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// The position in the text.
    at: usize,
    /// Number of characters left out since the last one that the view shows.
    gap: usize,
}

impl Reader {
    fn read(&mut self, text: &[u8]) {
        self.bytes.reserve(text.len());
        while let Some(rest) = text.get(self.at..).filter(|rest| !rest.is_empty()) {
            let special = match self.encoding.mark() {
                Some(mark) => memchr::memchr3(mark, b'\n', b'\r', rest),
                None => memchr::memchr2(b'\n', b'\r', rest),
            };
            let (plain, rest) = rest.split_at(special.unwrap_or(rest.len()));
            self.plain(plain);
            match Escape::read(self.encoding, rest) {
                Escape::Char(len, decoded) => {
                    self.escape(len, decoded.encode_utf8(&mut [0; 4]).as_bytes());
                }
                Escape::Byte(len, decoded) => self.escape(len, &[decoded]),
                Escape::Half if self.stop == Stop::More => return,
                Escape::Half | Escape::None => self.plain(rest.get(..1).unwrap_or_default()),
            }
        }
    }

    fn plain(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first()
            && self.leaves_out(*first)
        {
            self.at += 1;
            self.gap += 1;
            bytes = rest;
        }
        if !bytes.is_empty() {
            self.show(bytes.len(), bytes);
        }
    }

    fn escape(&mut self, len: usize, decoded: &[u8]) {
        match decoded {
            [byte] if self.leaves_out(*byte) => {
                let gap = self.gap + 1;
                // The empty piece keeps a stream from splitting the escape.
                self.show(len, &[]);
                self.gap = gap;
            }
            _ => self.show(len, decoded),
        }
    }

    /// Appends `shown`, which represents the next `len` bytes of the text.
    fn show(&mut self, len: usize, shown: &[u8]) {
        let view = self.bytes.len();
        self.bytes.extend_from_slice(shown);
        self.pieces.push(Piece { view: view..self.bytes.len(), text: self.at..self.at + len });
        self.at += len;
        self.gap = 0;
    }

    fn leaves_out(&self, byte: u8) -> bool {
        match byte {
            b'\n' | b'\r' => self.gap < LONGEST_GAP,
            b' ' | b'\t' => (1..LONGEST_GAP).contains(&self.gap),
            _ => false,
        }
    }
}

/// The escape at the start of a text.
enum Escape {
    None,
    /// The text is too short to tell.
    Half,
    /// The length of the escape, and the character.
    Char(usize, char),
    /// The length of the escape, and the byte.
    Byte(usize, u8),
}

impl Escape {
    fn read(encoding: Encoding, text: &[u8]) -> Self {
        match (encoding, text) {
            (Encoding::Json, [b'\\', rest @ ..]) => Self::json(rest).unwrap_or(Self::None),
            (Encoding::Percent, [b'%', rest @ ..]) if rest.len() < 2 => Self::Half,
            (Encoding::Percent, [b'%', rest @ ..]) => hex_number(rest, 2)
                .and_then(|byte| u8::try_from(byte).ok())
                .map_or(Self::None, |byte| Self::Byte(3, byte)),
            _ => Self::None,
        }
    }

    /// Reads what follows the backslash; `None` if it is not an escape.
    fn json(rest: &[u8]) -> Option<Self> {
        let byte = match rest.first() {
            None => return Some(Self::Half),
            Some(b'u') if rest.len() < UNIT_LEN - 1 => return Some(Self::Half),
            Some(b'u') => return Self::unicode(rest),
            Some(b'b') => b'\x08',
            Some(b'f') => b'\x0c',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(other @ (b'"' | b'\\' | b'/')) => *other,
            Some(_) => return None,
        };
        Some(Self::Byte(2, byte))
    }

    /// Reads `uXXXX`, or `uXXXX\uXXXX` for a surrogate pair.
    fn unicode(rest: &[u8]) -> Option<Self> {
        let first = u16::try_from(hex_number(rest.get(1..)?, 4)?).ok()?;
        if let Some(decoded) = char::from_u32(first.into()) {
            return Some(Self::Char(UNIT_LEN, decoded));
        }
        let low = rest.get(UNIT_LEN - 1..)?;
        if low.len() < UNIT_LEN {
            return Some(Self::Half);
        }
        let second = u16::try_from(hex_number(low.strip_prefix(b"\\u")?, 4)?).ok()?;
        let decoded = char::decode_utf16([first, second]).next()?.ok()?;
        Some(Self::Char(2 * UNIT_LEN, decoded))
    }
}

/// Returns the number that the first `digits` bytes spell.
fn hex_number(text: &[u8], digits: usize) -> Option<u32> {
    let number = |number, byte: &u8| Some(number * 16 + char::from(*byte).to_digit(16)?);
    text.get(..digits)?.iter().try_fold(0, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, encoding: Encoding, expected: &str) {
        let view = View::new(text.as_bytes(), encoding, Stop::End).unwrap();
        assert_eq!(String::from_utf8_lossy(view.bytes()), expected, "{text:?}");
    }

    #[test]
    fn views_undo_escapes_and_leave_out_line_ends() {
        check("a b\n\r\n  \tc d  \n", Encoding::Plain, "a bc d  ");
        check(
            r#"\"\\\/\b\f\t\u0041\u00e9\uD83d\ude00"#,
            Encoding::Json,
            "\"\\/\x08\x0c\tA\u{e9}\u{1f600}",
        );
        check(r"a\r\n \u0020\tb\\nc", Encoding::Json, r"ab\nc");
        check("%41%c3%A9%0A %09b+c", Encoding::Percent, "A\u{e9}b+c");
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        for text in
            [r"\", r"\q", r"\u00", r"\u00g1", r"\ud83d", r"\ud83dx", r"\ud83d\u0041", r"\udc00x"]
        {
            let expected = text.replace(r"\u0041", "A");
            check(text, Encoding::Json, &expected);
        }
        for text in ["%", "%4", "%4g", "%+1"] {
            check(text, Encoding::Percent, text);
        }
    }

    #[test]
    fn a_view_without_an_escape_is_not_made() {
        assert!(View::new(b"a\nb%41", Encoding::Json, Stop::End).is_none());
        assert!(View::new(b"a\nb\\n", Encoding::Percent, Stop::End).is_none());
    }

    #[test]
    fn a_gap_is_bounded() {
        let text = format!("a{}b", "\n".repeat(LONGEST_GAP));
        check(&text, Encoding::Plain, "ab");
        let text = format!("a\n{}b", " ".repeat(LONGEST_GAP));
        check(&text, Encoding::Plain, "a b");
    }

    #[test]
    fn parts_of_a_view_are_found_in_the_text() {
        let text = br"x\n \u0041bc\/\n y";
        let view = View::new(text, Encoding::Json, Stop::End).unwrap();
        assert_eq!(view.bytes(), b"xAbc/y");
        let part = |from: usize, to: usize| {
            String::from_utf8_lossy(&text[view.text_range(from..to)]).into_owned()
        };
        assert_eq!(part(0, 1), "x");
        assert_eq!(part(1, 2), r"\u0041");
        assert_eq!(part(1, 5), r"\u0041bc\/");
        assert_eq!(part(4, 6), r"\/\n y");
        assert_eq!([view.text_start(6), view.boundary(2), view.boundary(6)], [text.len(), 1, 4]);
    }

    #[test]
    fn half_an_escape_waits_for_more() {
        for (text, encoding, end) in [
            (r"ab\", Encoding::Json, 2),
            (r"ab\u004", Encoding::Json, 2),
            (r"ab\ud83d\ude0", Encoding::Json, 2),
            ("ab%4", Encoding::Percent, 2),
        ] {
            let view = View::new(text.as_bytes(), encoding, Stop::More).unwrap();
            assert_eq!((view.bytes(), view.text_start(2)), (&b"ab"[..], end), "{text}");
        }
    }
}
