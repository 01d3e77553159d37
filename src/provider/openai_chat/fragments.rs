//! The arguments of a call, assembled from the fragments of a stream.
//!
//! Most servers send each piece once, and the pieces are appended. Some send all arguments so far
//! with every fragment, and some send the whole arguments again at the end. The appended pieces win
//! if they are valid: nested objects may look like a repetition.

use crate::argv::parse_arguments;

/// After this many fragments that each repeat the one before, the fragments are cumulative for
/// certain, and we stop appending them.
const CERTAIN: usize = 3;

#[derive(Debug, Default)]
pub(super) struct Fragments {
    appended: String,
    /// The newest fragment, as long as each one begins with the one before.
    newest: Option<String>,
    repetitions: usize,
    /// Whether something other than a repetition followed arguments that looked complete. A second
    /// comparison would be as futile, and hostile fragments could request many.
    is_broken: bool,
}

impl Fragments {
    pub(super) fn push(&mut self, fragment: &str) {
        if fragment.is_empty() || self.is_whole_again(fragment) {
            return;
        }
        if self.appended.is_empty() {
            fragment.clone_into(&mut self.appended);
            self.newest = fragment.trim_start().starts_with('{').then(|| fragment.to_owned());
            return;
        }
        let before = self.newest.take();
        self.newest = before
            .filter(|before| fragment.starts_with(before.as_str()))
            .map(|_| fragment.to_owned());
        self.repetitions = if self.newest.is_some() { self.repetitions + 1 } else { 0 };
        if self.repetitions >= CERTAIN {
            fragment.clone_into(&mut self.appended);
        } else {
            self.appended.push_str(fragment);
        }
    }

    /// Tells whether the arguments are complete and `fragment` repeats them.
    fn is_whole_again(&mut self, fragment: &str) -> bool {
        let is_object = |text: &str| {
            let text = text.trim();
            text.starts_with('{') && text.ends_with('}')
        };
        if self.is_broken || !is_object(&self.appended) || !is_object(fragment) {
            return false;
        }
        let is_same = parse_arguments(&self.appended)
            .is_ok_and(|known| parse_arguments(fragment).is_ok_and(|new| new == known));
        self.is_broken = !is_same;
        is_same
    }

    /// Tells whether the arguments so far are a complete JSON object.
    pub(super) fn are_complete(&self) -> bool {
        let is_complete =
            |text: &str| text.trim_end().ends_with('}') && parse_arguments(text).is_ok();
        is_complete(&self.appended) || self.newest.as_deref().is_some_and(is_complete)
    }

    /// Returns roughly how many bytes of memory the arguments take.
    pub(super) fn size(&self) -> usize {
        self.appended.len() + self.newest.as_ref().map_or(0, String::len)
    }

    /// Returns the text of the arguments. It is not valid JSON if the stream was cut.
    pub(super) fn into_text(self) -> String {
        match self.newest {
            Some(newest)
                if parse_arguments(&self.appended).is_err() && parse_arguments(&newest).is_ok() =>
            {
                newest
            }
            _ => self.appended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(fragments: &[&str], expected: &str) {
        let mut arguments = Fragments::default();
        fragments.iter().for_each(|fragment| arguments.push(fragment));
        assert_eq!(arguments.into_text(), expected, "{fragments:?}");
    }

    #[test]
    fn arguments_that_are_sent_again_count_once() {
        check(&["{\"x\"", ": \"B\"}"], "{\"x\": \"B\"}");
        check(&["{\"x\": \"B\"}", "{\"x\": \"B\"}"], "{\"x\": \"B\"}");
        check(&["{\"x\"", ": \"B\"}", "", "{\"x\":\"B\"}"], "{\"x\": \"B\"}");
        check(&["{\"x\"", "{\"x\": \"B\"", "{\"x\": \"B\"}"], "{\"x\": \"B\"}");
        let all = "{\"x\": \"0123456789\"}";
        let cumulative: Vec<&str> = (1..=all.len()).map(|end| all.get(..end).unwrap()).collect();
        check(&cumulative, all);
        // A nested object may begin as the whole does.
        check(&["{\"x\":", "{\"x\":1}", "}"], "{\"x\":{\"x\":1}}");
        check(&["{}", "{}"], "{}");
        check(&["{\"x\": 1}", "{\"x\": 2}"], "{\"x\": 1}{\"x\": 2}");
        check(&["{\"x\": ", "{\"x\": \"B"], "{\"x\": {\"x\": \"B");
    }
}
