//! YAML for stdout, with the same escapes as JSON.
//!
//! serde_yaml writes bidirectional controls and invisible characters as they are, and only a
//! double-quoted scalar can hold an escape. We let it write a random word in place of each string
//! that needs one, and then replace the word.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::text::escape::{is_deceptive, yaml_string};

/// Serializes a value without deceptive characters, except line ends and tabs.
///
/// *Errors*: the value cannot be serialized.
pub(super) fn render(value: &impl Serialize) -> Result<String, String> {
    let direct = serde_yaml::to_string(value).map_err(|error| error.to_string())?;
    if !has_hidden(&direct) {
        return Ok(direct);
    }
    let value = serde_json::to_value(value).map_err(|error| error.to_string())?;
    // Begin with a letter and end the number with a letter: the word is never quoted, and no text
    // of the value can contain it.
    let mut words = Words { prefix: format!("x{:032x}", fastrand::u128(..)), texts: Vec::new() };
    let replaced = words.replace(value);
    let yaml = serde_yaml::to_string(&replaced).map_err(|error| error.to_string())?;
    Ok(words.restore(&yaml))
}

fn has_hidden(text: &str) -> bool {
    text.chars().any(|c| is_deceptive(c) && !matches!(c, '\n' | '\t'))
}

struct Words {
    prefix: String,
    /// The replaced strings, by number.
    texts: Vec<String>,
}

impl Words {
    fn replace(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.word(text)),
            Value::Array(items) => items.into_iter().map(|item| self.replace(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.into_iter();
                let fields: Map<String, Value> =
                    fields.map(|(key, value)| (self.word(key), self.replace(value))).collect();
                Value::Object(fields)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    fn word(&mut self, text: String) -> String {
        if !has_hidden(&text) {
            return text;
        }
        let word = format!("{}n{}n", self.prefix, self.texts.len());
        self.texts.push(text);
        word
    }

    fn restore(&self, yaml: &str) -> String {
        let mut parts = yaml.split(&self.prefix);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let number = part.strip_prefix('n').and_then(|rest| rest.split_once('n'));
            let text = number.and_then(|(number, rest)| {
                Some((self.texts.get(number.parse::<usize>().ok()?)?, rest))
            });
            if let Some((text, rest)) = text {
                out.push_str(&yaml_string(text));
                out.push_str(rest);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // proves LOG-4
    #[test]
    fn yaml_hides_nothing_and_reads_back_the_same() {
        for value in [
            json!({"a": "plain: text\nand more", "b": [1, null, true, "x\ty"]}),
            json!({"a": "\u{202e}evil\u{200b}\u{e0041}\u{1b}[2J \"q\" \\ \n end", "plain": "x"}),
            json!({"key\u{202e}": {"key\u{200b}": ["\u{feff}", "\u{9b}", "ok"]}}),
            json!("\u{2028}"),
        ] {
            let yaml = render(&value).unwrap();
            assert!(!has_hidden(&yaml), "{yaml:?}");
            assert_eq!(serde_yaml::from_str::<Value>(&yaml).unwrap(), value, "{yaml}");
        }
    }
}
