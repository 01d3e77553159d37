//! Detects repetitions among the last calls of a run.
//!
//! *Source*: `docs/design/loop.md`, "Loop detection".

use std::collections::VecDeque;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::domain::{Arguments, ToolCall};

const LONGEST_PATTERN: usize = 3;

/// SHA-256 of a call's name and canonical arguments. Calls with equal signatures count as the same.
pub(crate) type Signature = [u8; 32];

pub(crate) fn signature(call: &ToolCall) -> Signature {
    let arguments = match &call.arguments {
        Arguments::Parsed(map) => canonical(&Value::Object(map.clone())),
        Arguments::Invalid { text, .. } => text.clone(),
    };
    Sha256::new()
        .chain_update(call.name.len().to_be_bytes())
        .chain_update(&call.name)
        .chain_update(arguments)
        .finalize()
        .into()
}

/// Serializes JSON with the keys of every object sorted.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let inner: Vec<String> = entries
                .into_iter()
                .map(|(key, item)| format!("{}:{}", Value::from(key.as_str()), canonical(item)))
                .collect();
            format!("{{{}}}", inner.join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// The signatures of the last `size` calls.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    size: usize,
    last: VecDeque<Signature>,
}

impl Window {
    pub(crate) fn new(size: usize) -> Self {
        Self { size, last: VecDeque::with_capacity(size) }
    }

    /// Adds a call. If the window is full and its calls repeat a pattern, empties the window and
    /// returns the number of calls in the pattern.
    pub(crate) fn push(&mut self, signature: Signature) -> Option<usize> {
        if self.last.len() == self.size {
            self.last.pop_front();
        }
        self.last.push_back(signature);
        let found = (self.last.len() == self.size)
            .then(|| (1..=LONGEST_PATTERN).find(|length| self.repeats(*length)))
            .flatten();
        if found.is_some() {
            self.last.clear();
        }
        found
    }

    /// Tells whether the last calls of a full window consist of a pattern of `length` calls, two or
    /// more times in a row. Ignores the oldest calls if the window size is not a multiple of
    /// `length`.
    fn repeats(&self, length: usize) -> bool {
        let span = self.size / length * length;
        if span < 2 * length {
            return false;
        }
        let tail: Vec<_> = self.last.iter().skip(self.size - span).collect();
        tail.iter().zip(tail.iter().skip(length)).all(|(earlier, later)| earlier == later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_detection(size: usize, calls: impl IntoIterator<Item = u8>) -> Option<(usize, usize)> {
        let mut window = Window::new(size);
        calls
            .into_iter()
            .enumerate()
            .find_map(|(at, call)| window.push([call; 32]).map(|length| (at + 1, length)))
    }

    // conforms 003-2.10
    #[test]
    fn patterns_of_up_to_three_are_found_once_the_window_is_full() {
        assert_eq!(first_detection(10, [1; 20]), Some((10, 1)));
        assert_eq!(first_detection(10, [1, 2].repeat(10)), Some((10, 2)));
        assert_eq!(
            first_detection(10, [1, 2, 3].repeat(10)),
            Some((10, 3)),
            "the last nine calls are 2, 3, 1 three times"
        );
        assert_eq!(first_detection(10, [1, 2, 3, 4].repeat(10)), None);
        assert_eq!(
            first_detection(10, [9, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
            Some((10, 3)),
            "the last nine calls are 1, 1, 1 three times"
        );
        assert_eq!(first_detection(10, [1, 1, 1, 1, 1, 1, 1, 1, 1, 9]), None);
        assert_eq!(first_detection(2, [1, 2, 3, 4]), None);
        assert_eq!(first_detection(2, [1, 1]), Some((2, 1)));
    }

    #[test]
    fn the_window_starts_empty_after_a_detection() {
        let mut window = Window::new(4);
        let found: Vec<_> = (0..12).filter_map(|at| window.push([1; 32]).map(|_| at)).collect();
        assert_eq!(found, [3, 7, 11]);
    }

    // conforms 003-2.10
    #[test]
    fn the_order_of_keys_does_not_matter() {
        let call = |text: &str| ToolCall {
            call_id: crate::domain::CallId::parse("c").unwrap(),
            name: "t".into(),
            arguments: Arguments::Parsed(serde_json::from_str(text).unwrap()),
        };
        assert_eq!(
            signature(&call(r#"{"a":1,"b":{"x":1,"y":2}}"#)),
            signature(&call(r#"{"b":{"y":2,"x":1},"a":1}"#))
        );
        assert_ne!(signature(&call(r#"{"a":1}"#)), signature(&call(r#"{"a":2}"#)));
    }
}
