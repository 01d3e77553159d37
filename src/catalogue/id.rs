//! Reads the id of a model, as vendors and gateways write it.
//!
//! Gateways add the vendor, a region, a date or a variant to an id, and write a version with a dash
//! or with a dot, before or after the other words. The canonical name, such as `claude-opus-4.8`,
//! is the words and then the version. We look models up by their ids, then by the name, and find the
//! rules of a family by words and version.

use std::borrow::Cow;

/// The longest id that is read, in bytes; of a longer one, the rest is ignored.
const MAX_ID_BYTES: usize = 200;

/// Words of an id that name a state of the same model.
const STATES: &[&str] = &["latest", "preview", "exp", "experimental"];

/// A version, such as 4.8. Missing numbers count as 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u32>);

impl Version {
    /// Parses a version such as `4` or `4.8`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        numbers.map(Self::of)
    }

    fn of(mut numbers: Vec<u32>) -> Self {
        // 5 and 5.0 are the same version.
        while numbers.len() > 1 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        Self(numbers)
    }
}

/// The id of a model without what gateways, dates and variants add to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// The id in lower case, without the vendor before it and a variant after it.
    pub bare: String,
    /// The canonical name, such as `claude-opus-4.8`.
    pub name: String,
    /// The words of the name, without its version.
    pub words: Vec<String>,
    /// `None` if the id has no version.
    pub version: Option<Version>,
    /// The digits of the date in the id; `None` if it has none.
    pub date: Option<String>,
    /// Whether the id names a fine-tuned model of a customer.
    pub is_tuned: bool,
}

impl ModelId {
    /// Reads an id. Any text gives a name, if need be one that no model has.
    #[must_use]
    pub fn parse(id: &str) -> Self {
        let (id, _) = id.split_at(id.floor_char_boundary(MAX_ID_BYTES));
        let id = id.trim().to_ascii_lowercase();
        let is_tuned = id.starts_with("ft:");
        let bare = &*without_vendor(without_variant(&id));
        let mut read = Read::default();
        let tokens: Vec<&str> = bare.split(['-', '_', ' ']).filter(|t| !t.is_empty()).collect();
        let mut after_year = 0;
        for (at, token) in tokens.iter().enumerate() {
            let is_number = token.bytes().all(|byte| byte.is_ascii_digit());
            // `10-2025` is a month, while the 5 of `5-2025-08-07` is a version.
            let before_year = token.len() == 2
                && tokens.get(at + 1).is_some_and(|next| is_year(next))
                && tokens.get(at + 2).is_none_or(|next| !is_two_digits(next));
            if is_number && token.len() > 2 {
                after_year = if is_year(token) { 2 } else { 0 };
                read.date.push_str(token);
                continue;
            }
            if is_number && (after_year > 0 || before_year || token.starts_with('0')) {
                // Some dates are a month and a day.
                after_year = if after_year > 0 { after_year - 1 } else { 1 };
                read.date.push_str(token);
                continue;
            }
            after_year = 0;
            read.take(token);
        }
        ModelId { is_tuned, ..read.end(bare) }
    }

    /// Tells whether the id has each of `words`.
    #[must_use]
    pub fn has(&self, words: &[String]) -> bool {
        words.iter().all(|word| self.words.contains(word))
    }

    /// Tells whether the version is `floor` or newer. An id without a version names the newest
    /// model.
    #[must_use]
    pub fn is_at_least(&self, floor: &Version) -> bool {
        self.version.as_ref().is_none_or(|version| version >= floor)
    }
}

#[derive(Default)]
struct Read {
    words: Vec<String>,
    version: Vec<u32>,
    date: String,
    /// Whether the last token was a part of the version.
    in_version: bool,
}

impl Read {
    fn take(&mut self, token: &str) {
        let digits = token.find(|c: char| c.is_ascii_digit()).unwrap_or(token.len());
        let (letters, rest) = token.split_at(digits);
        // Fireworks writes 5p3 for 5.3.
        let numbers: Option<Vec<u32>> =
            rest.split(['.', 'p']).map(|part| part.parse().ok()).collect();
        match (letters, numbers) {
            ("", Some(numbers)) if self.version.is_empty() || self.in_version => {
                let is_first = self.version.is_empty();
                self.version.extend(if is_first { with_dot(numbers) } else { numbers });
                self.in_version = true;
            }
            // Bedrock ends an id with `-v1`.
            ("v", Some(_)) if !self.version.is_empty() => {}
            (letters, Some(numbers)) if !letters.is_empty() && self.version.is_empty() => {
                if letters != "v" {
                    self.words.push(letters.to_owned());
                }
                self.version = with_dot(numbers);
                self.in_version = true;
            }
            _ => {
                if STATES.contains(&token) {
                    self.in_version = false;
                    return;
                }
                // The version of `gpt-4o` is 4.
                if self.version.is_empty()
                    && let Some(number) = token.strip_suffix('o').and_then(|t| t.parse().ok())
                {
                    self.version.push(number);
                }
                self.words.push(token.to_owned());
                self.in_version = false;
            }
        }
    }

    fn end(self, bare: &str) -> ModelId {
        let version = (!self.version.is_empty()).then(|| Version::of(self.version));
        let numbers = version.iter().flat_map(|version| &version.0).map(u32::to_string);
        let number = numbers.collect::<Vec<String>>().join(".");
        let parts = self.words.iter().chain(Some(&number).filter(|number| !number.is_empty()));
        let name = parts.map(String::as_str).collect::<Vec<&str>>().join("-");
        let date = Some(self.date).filter(|date| !date.is_empty());
        ModelId { bare: bare.to_owned(), name, words: self.words, version, date, is_tuned: false }
    }
}

/// Azure writes `gpt-35-turbo` for 3.5. No vendor has counted to 20 yet.
fn with_dot(numbers: Vec<u32>) -> Vec<u32> {
    match numbers.as_slice() {
        [number @ 20..=99] => vec![number / 10, number % 10],
        _ => numbers,
    }
}

/// Tells whether a token may be the year of a date.
fn is_year(token: &str) -> bool {
    token.len() == 4 && token.starts_with("20") && token.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_two_digits(token: &str) -> bool {
    token.len() == 2 && token.bytes().all(|byte| byte.is_ascii_digit())
}

/// Removes the path before the name, the marks of a fine-tuned model, and a variant or tag after it.
fn without_variant(id: &str) -> &str {
    let base = match id.strip_prefix("ft:") {
        Some(rest) => rest,
        None => id.trim_end_matches('/').rsplit_once('/').map_or(id, |(_, name)| name),
    };
    base.split([':', '@', '[']).next().unwrap_or(base)
}

/// Removes the region and the vendor that Bedrock writes before a name: `us.anthropic.claude-…`. In
/// `deepseek.r1`, the vendor is a part of the name.
fn without_vendor(mut name: &str) -> Cow<'_, str> {
    while let Some((first, rest)) = name.split_once('.') {
        let is_word = |c: char| c.is_ascii_lowercase() || c == '-';
        if first.is_empty() || !first.chars().all(is_word) || !rest.starts_with(is_word) {
            break;
        }
        if rest.chars().take_while(char::is_ascii_lowercase).count() < 2 {
            return Cow::Owned(format!("{first}-{rest}"));
        }
        name = rest;
    }
    Cow::Borrowed(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(id: &str, name: &str, version: &str) {
        let read = ModelId::parse(id);
        assert_eq!((read.name.as_str(), read.version), (name, Version::parse(version)), "{id}");
    }

    #[test]
    fn an_id_of_a_gateway_names_the_model_of_its_vendor() {
        for id in [
            "claude-opus-4-8",
            "claude-opus-4.8",
            "claude-opus-4-8-20260301",
            "claude-opus-4-8@20260301",
            "anthropic/claude-opus-4.8:thinking",
            "us.anthropic.claude-opus-4-8-20260301-v1:0",
            "us-gov.anthropic.claude-opus-4-8-v1:0",
            "bedrock/us.anthropic.claude-opus-4-8-v1:0",
            "openrouter/anthropic/claude-opus-4.8",
            " Claude-Opus-4-8-latest ",
        ] {
            check(id, "claude-opus-4.8", "4.8");
        }
        for (id, name, version) in [
            ("claude-3-7-sonnet-20250219", "claude-sonnet-3.7", "3.7"),
            ("claude-4.5-sonnet", "claude-sonnet-4.5", "4.5"),
            ("claude-sonnet-4-20250514", "claude-sonnet-4", "4"),
            ("claude-sonnet-4-0", "claude-sonnet-4", "4"),
            ("claude-sonnet-5[1m]", "claude-sonnet-5", "5"),
            (
                "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-5-v1:0",
                "claude-sonnet-5",
                "5",
            ),
            ("gpt-5.4-2026-03-05", "gpt-5.4", "5.4"),
            ("gpt-5.4-mini", "gpt-mini-5.4", "5.4"),
            ("gpt-5-2025-08-07", "gpt-5", "5"),
            ("gpt-10-2027-08-07", "gpt-10", "10"),
            ("gpt-35-turbo", "gpt-turbo-3.5", "3.5"),
            ("claude-sonnet-45", "claude-sonnet-4.5", "4.5"),
            ("openai/gpt-5-mini-2025-08-07", "gpt-mini-5", "5"),
            ("gpt-4o-2024-11-20", "gpt-4o-4", "4"),
            ("ft:gpt-4.1-2025-04-14:acme::b1", "gpt-4.1", "4.1"),
            ("o4-mini-2025-04-16", "o-mini-4", "4"),
            ("models/gemini-3.8-flash", "gemini-flash-3.8", "3.8"),
            ("publishers/google/models/gemini-2.5-pro-001", "gemini-pro-2.5", "2.5"),
            ("gemini-2.5-pro-preview-03-25", "gemini-pro-2.5", "2.5"),
            ("gemini-2.5-flash-lite-preview-09-2025", "gemini-flash-lite-2.5", "2.5"),
            ("gemini-2.5-flash-preview-10-2025", "gemini-flash-2.5", "2.5"),
            ("gemini-3-pro-preview", "gemini-pro-3", "3"),
            ("deepseek-v4-pro", "deepseek-pro-4", "4"),
            ("deepseek.v3.2", "deepseek-3.2", "3.2"),
            ("us.deepseek.r1-v1:0", "deepseek-r-1", "1"),
            ("accounts/fireworks/models/glm-5p3", "glm-5.3", "5.3"),
            ("kimi-k2-0905-preview", "kimi-k-2", "2"),
            ("moonshotai/kimi-k2.6", "kimi-k-2.6", "2.6"),
            ("MiniMax-M3", "minimax-m-3", "3"),
            ("qwen3.8-max", "qwen-max-3.8", "3.8"),
            ("qwen3:32b-q4_K_M", "qwen-3", "3"),
            ("llama3-3-70b-instruct", "llama-70b-instruct-3.3", "3.3"),
            (
                "meta-llama/llama-4-maverick-17b-128e-instruct",
                "llama-maverick-17b-128e-instruct-4",
                "4",
            ),
            ("mistral-large-2411", "mistral-large", ""),
            ("openai/gpt-oss-120b", "gpt-oss-120b", ""),
            ("claude-opus-latest", "claude-opus", ""),
        ] {
            check(id, name, version);
        }
        let long = format!("claude-opus-5-{}", "x".repeat(10_000));
        assert!(ModelId::parse(&long).name.len() <= MAX_ID_BYTES + 2);
        for id in ["", "-", ":", "@", "/", "é-ü", "ft:", "4", "0"] {
            assert!(ModelId::parse(id).name.len() <= id.len() + 2, "{id}");
        }
    }

    proptest! {
        #[test]
        fn case_and_blanks_around_an_id_mean_nothing(id in "[ -~é]{0,60}") {
            let read = ModelId::parse(&id);
            prop_assert_eq!(&ModelId::parse(&format!(" {}\n", id.to_ascii_uppercase())), &read);
            prop_assert!(read.name.len() <= id.len() + 2);
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(version("4.10") > version("4.8") && version("5") > version("4.10"));
        assert_eq!(version("5"), version("5.0"));
        let id = ModelId::parse("gpt-5.6-sol");
        assert!(id.is_at_least(&version("5.5")) && !id.is_at_least(&version("6")));
        assert!(id.has(&["gpt".to_owned()]) && !id.has(&["claude".to_owned()]));
        assert!(ModelId::parse("gpt-luna").is_at_least(&version("99")));
    }
}
