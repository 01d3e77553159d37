//! Skips the text in which no spelling of a secret begins, several bytes at a time. A spelling is
//! one form in which a secret can appear: plain, or in an encoding.
//!
//! The filter moves a window over the text. The window is at most as long as the shortest spelling.
//! A table tells, for the last three bytes of the window, how far the window can move without
//! passing the beginning of a spelling. The filter may stop too early, but never too late.
//! *Source*: S. Wu and U. Manber, "A fast algorithm for multi-pattern searching", 1994.

/// The longest window, in bytes. A longer window can move farther, but more entries of the table
/// shorten its moves.
const LONGEST_WINDOW: usize = 16;

/// The number of bytes at the end of the window that the filter looks up in the table.
const GRAM: usize = 3;

const TABLE: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Filter {
    window: usize,
    /// Maps the hash of the last three bytes of the window to the number of bytes by which the
    /// window can move. Zero means that a spelling can begin where the window begins.
    moves: Box<[u8; TABLE]>,
}

impl Filter {
    /// Returns a filter for spellings; `None` if there are none, or if one has fewer than [`GRAM`]
    /// bytes.
    pub(super) fn new(spellings: &[Vec<u8>]) -> Option<Self> {
        let shortest = spellings.iter().map(Vec::len).min()?;
        let window = shortest.min(LONGEST_WINDOW);
        let farthest = u8::try_from(window.checked_sub(GRAM)? + 1).ok()?;
        let mut moves = Box::new([farthest; TABLE]);
        for spelling in spellings {
            for (at, gram) in spelling.windows(GRAM).take(usize::from(farthest)).enumerate() {
                let after = u8::try_from(window - GRAM - at).ok()?;
                if let Some(far) = moves.get_mut(hash(gram)) {
                    *far = after.min(*far);
                }
            }
        }
        Some(Self { window, moves })
    }

    /// Returns a position before which no spelling begins.
    ///
    /// `begins` tells whether a spelling begins with the given window. If no window of `text` is
    /// the beginning of a spelling, returns the first position at which `text` is too short for a
    /// window.
    pub(super) fn skip(&self, text: &[u8], begins: impl Fn(&[u8]) -> bool) -> usize {
        let mut at = 0;
        while let Some(window) = text.get(at..at + self.window) {
            let gram = window.last_chunk::<GRAM>();
            match gram.and_then(|gram| self.moves.get(hash(gram))) {
                Some(0) | None if begins(window) => return at,
                Some(0) | None => at += 1,
                Some(far) => at += usize::from(*far),
            }
        }
        at.min((text.len() + 1).saturating_sub(self.window))
    }
}

/// Returns a number below [`TABLE`]. *Source*: D. Knuth, "The Art of Computer Programming", 6.4.
fn hash(gram: &[u8]) -> usize {
    let number = gram.iter().fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
    (number.wrapping_mul(0x9e37_79b1) >> 16) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_filter_stops_at_a_spelling_and_else_near_the_end() {
        let spellings = vec![b"hunter2".to_vec(), b"correct horse".to_vec()];
        let filter = Filter::new(&spellings).unwrap();
        let skip = |text: &[u8]| {
            filter.skip(text, |window| spellings.iter().any(|one| one.starts_with(window)))
        };
        assert_eq!(skip(b"is it hunter2?"), 6);
        assert_eq!(skip(b"a correct house"), 2);
        assert_eq!(skip(b"a text without one"), 12);
        assert_eq!([skip(b""), skip(b"hunter"), skip(b"xhunter")], [0, 0, 1]);
        assert!(Filter::new(&[b"ab".to_vec()]).is_none());
    }

    proptest! {
        #[test]
        fn the_filter_never_skips_a_beginning(spellings in prop::collection::vec("[ab]{3,20}", 1..6), text in "[abc]{0,80}") {
            let spellings: Vec<Vec<u8>> = spellings.into_iter().map(String::into_bytes).collect();
            let filter = Filter::new(&spellings).unwrap();
            let begins = |text: &[u8]| spellings.iter().any(|one| one.starts_with(text));
            let text = text.as_bytes();
            let window = filter.window;
            let expected = text.windows(window).position(begins);
            prop_assert_eq!(filter.skip(text, begins), expected.unwrap_or((text.len() + 1).saturating_sub(window)));
        }
    }
}
