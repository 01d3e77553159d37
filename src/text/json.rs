//! Measures JSON text before it is parsed. A parsed value can take many times as many bytes as its
//! text (the two bytes `{}` become about a hundred bytes), so a limit on the text does not bound
//! the memory.

use serde_json::Value;

/// Measures JSON text byte by byte. For text that is not JSON, the counts are meaningless; the
/// parser rejects it later.
#[derive(Debug, Default, Clone)]
pub(crate) struct Measure {
    separators: usize,
    depth: usize,
    in_string: bool,
    after_backslash: bool,
}

impl Measure {
    pub(crate) fn take(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.after_backslash => self.after_backslash = false,
                b'\\' => self.after_backslash = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b',' => self.separators += 1,
            b'[' | b'{' => {
                self.separators += 1;
                self.depth += 1;
            }
            b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Returns an upper bound for the number of values so far, keys not counted.
    pub(crate) fn values(&self) -> usize {
        self.separators + 1
    }

    /// Tells whether a list, an object or a string is open.
    pub(crate) fn is_open(&self) -> bool {
        self.depth > 0 || self.in_string
    }
}

/// Returns an upper bound for the number of values in a JSON text.
pub(crate) fn values(text: &[u8]) -> usize {
    let mut measure = Measure::default();
    text.iter().for_each(|byte| measure.take(*byte));
    measure.values()
}

/// Bytes of memory that each value takes in addition to its text. Each object field takes as many
/// again for its name.
const VALUE_BYTES: usize = size_of::<Value>();

/// Estimates the bytes of memory that a value takes.
pub(crate) fn memory(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(memory).sum(),
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| VALUE_BYTES + key.len() + memory(value)).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Tells whether a value is empty: null, false, zero, white space, or a list or object of empty
/// values. Several servers write such an error beside every result.
pub(crate) fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_true) => !is_true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.iter().all(says_nothing),
        Value::Object(fields) => fields.values().all(says_nothing),
    }
}

/// Checks the number of values in a JSON text against a limit.
///
/// *Errors*: the upper bound that [`values`] returns is greater than `most`.
pub(crate) fn check_values(text: &[u8], most: usize) -> Result<(), String> {
    // Each value takes at least one byte, so a short text needs no count.
    if text.len() > most && values(text) > most {
        return Err(format!("it has more than {most} values"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn measured(text: &str) -> Measure {
        let mut measure = Measure::default();
        text.bytes().for_each(|byte| measure.take(byte));
        measure
    }

    fn count(value: &Value) -> usize {
        1 + match value {
            Value::Array(items) => items.iter().map(count).sum(),
            Value::Object(fields) => fields.values().map(count).sum(),
            _ => 0,
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[a\"\\\\,\\[{}\\] ]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[a\"\\\\,{]{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_is_at_most_twice_the_number(value in json()) {
            let measure = measured(&value.to_string());
            prop_assert!(measure.values() >= count(&value));
            prop_assert!(measure.values() <= 2 * count(&value));
            prop_assert!(!measure.is_open());
        }
    }

    // proves PROV-4
    #[test]
    fn many_small_values_are_refused_and_a_long_text_is_not() {
        assert!(check_values(format!("[{}{{}}]", "{},".repeat(1000)).as_bytes(), 1000).is_err());
        assert!(check_values(format!("[\"{}\"]", ",[{".repeat(1000)).as_bytes(), 1000).is_ok());
        assert!(measured("[[{}]").is_open() && measured("[]\"[").is_open());
    }
}
