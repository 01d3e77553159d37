//! The optional parameters of a request, and which of them a provider refuses.
//!
//! A provider that refuses a parameter usually names it in a 400. The request is then sent once more
//! without it. Each format lists its optional parameters; tools, messages, the system prompt and
//! limits are not among them, so they are never dropped.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::body::objects_mut;
use crate::agent::{Claim, ErrorClass, ModelError};

/// A parameter that a request can do without.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Optional {
    /// The name under which dutyd remembers the parameter and shows it.
    pub(super) name: &'static str,
    /// The names of the parameter in requests.
    words: &'static [&'static str],
    /// Other words with which errors name it.
    aliases: &'static [&'static str],
    place: Place,
}

/// Where a request has a parameter.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// At a JSON pointer.
    At(&'static str),
    /// At a field of the body that has another name at other servers.
    Renamed { from: &'static str, to: &'static str },
    /// In the turns of the model: its reasoning.
    History,
    /// At JSON pointers: the schema of the answer. The answer is checked in any case, so each rejection
    /// that speaks of the schema drops it, for the rest of the run.
    Schema(&'static [&'static str]),
    /// The turns of the model in `messages` that have none of these fields. They get the first one, with
    /// a blank.
    Without(&'static [&'static str]),
}

impl Optional {
    pub(super) const fn at(
        name: &'static str,
        pointer: &'static str,
        words: &'static [&'static str],
    ) -> Self {
        Self { name, words, aliases: &[], place: Place::At(pointer) }
    }

    pub(super) const fn renamed(
        name: &'static str,
        from: &'static str,
        to: &'static str,
        words: &'static [&'static str],
    ) -> Self {
        Self { name, words, aliases: &[], place: Place::Renamed { from, to } }
    }

    /// `words` are parts of the errors that speak of it, in lower case.
    pub(super) const fn schema(
        pointers: &'static [&'static str],
        words: &'static [&'static str],
    ) -> Self {
        Self { name: "output_schema", words, aliases: &[], place: Place::Schema(pointers) }
    }

    pub(super) const fn history(name: &'static str, words: &'static [&'static str]) -> Self {
        Self { name, words, aliases: &[], place: Place::History }
    }

    pub(super) const fn without(name: &'static str, fields: &'static [&'static str]) -> Self {
        Self { name, words: &[], aliases: &[], place: Place::Without(fields) }
    }

    /// Adds words with which errors name the parameter.
    pub(super) const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }

    /// Tells whether this is the parameter `name`, and its refusal holds for later runs too.
    pub(super) fn is_lasting(&self, name: &str) -> bool {
        self.name == name && !self.is_history() && !matches!(self.place, Place::Schema(_))
    }

    fn is_renamed(&self) -> bool {
        matches!(self.place, Place::Renamed { .. })
    }

    fn is_history(&self) -> bool {
        self.place == Place::History
    }

    /// Tells whether `word` is a name of the parameter, in any spelling.
    fn is_named(&self, word: &str) -> bool {
        self.words.iter().any(|known| normal(known) == normal(word))
    }

    fn is_alias(&self, word: &str) -> bool {
        self.aliases.iter().any(|known| normal(known) == normal(word))
    }

    /// Adapts a body to the refusal: removes or renames the parameter, or adds the missing reasoning as
    /// a blank. Returns whether the body changed. `strip_reasoning` removes the reasoning from the turns
    /// of the model.
    pub(super) fn adapt(
        &self,
        body: &mut Value,
        strip_reasoning: &dyn Fn(&mut Value) -> bool,
    ) -> bool {
        match self.place {
            Place::At(pointer) => remove(body, pointer),
            Place::Schema(pointers) => {
                let removed = pointers.iter().map(|pointer| remove(body, pointer));
                removed.filter(|had| *had).count() > 0
            }
            Place::Renamed { from, to } => {
                let Some(map) = body.as_object_mut() else { return false };
                let Some(value) = map.shift_remove(from) else { return false };
                map.insert(to.to_owned(), value);
                true
            }
            Place::History => strip_reasoning(body),
            Place::Without(fields) => {
                let Some(field) = fields.first() else { return false };
                let mut found = false;
                for message in turns_without(body, fields) {
                    // Some servers count an empty text as missing.
                    message.insert((*field).to_owned(), " ".into());
                    found = true;
                }
                found
            }
        }
    }

    /// Tells whether a body has the parameter.
    pub(super) fn is_in(&self, body: &Value, strip_reasoning: &dyn Fn(&mut Value) -> bool) -> bool {
        match self.place {
            Place::At(pointer) => body.pointer(pointer).is_some(),
            Place::Schema(pointers) => {
                pointers.iter().any(|pointer| body.pointer(pointer).is_some())
            }
            Place::Renamed { from, .. } => body.get(from).is_some(),
            Place::History => strip_reasoning(&mut body.clone()),
            Place::Without(fields) => turns_without(&mut body.clone(), fields).next().is_some(),
        }
    }
}

/// Returns the turns of the model that have none of these fields.
fn turns_without<'a>(
    body: &'a mut Value,
    fields: &'a [&str],
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    objects_mut(body, "messages").filter(|message| {
        let is_of_model = message.get("role").is_some_and(|role| role == "assistant");
        is_of_model && !fields.iter().any(|field| message.contains_key(*field))
    })
}

/// Removes the value at a pointer, and each object above it that is then empty.
fn remove(body: &mut Value, pointer: &str) -> bool {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return false };
    let Some(Value::Object(map)) = body.pointer_mut(parent) else { return false };
    let had = map.shift_remove(key).is_some();
    if had && map.is_empty() && !parent.is_empty() {
        remove(body, parent);
    }
    had
}

/// The parts of a request whose names begin the path of a parameter that cannot be dropped.
const REQUIRED: &[&str] = &[
    "messages",
    "input",
    "contents",
    "content",
    "tools",
    "functions",
    "system",
    "systemInstruction",
    "instructions",
    "model",
    "functionDeclarations",
    "inputSchema",
];

/// Codes of an error that refuses the parameter that it names.
const REFUSING_CODES: &[&str] = &[
    "unsupported_parameter",
    "unsupported_value",
    "unknown_parameter",
    "extra_forbidden",
    "literal_error",
    "enum",
];

/// Codes of an error about a value that is out of range, or about a part that is missing.
static VALUE_CODES: Pattern = Pattern::new(|| {
    regex::Regex::new(
        r"^(missing|missing_required_parameter|.*_(above_max|below_min)_(value|length)|greater_than.*|less_than.*|string_too_.*|context_length_exceeded|invalid_function_parameters|invalid_type|.*_parsing)$",
    )
});

/// The code of an error about encrypted reasoning in the history.
const BROKEN_HISTORY: &str = "invalid_encrypted_content";

/// Words with which a provider refuses what it names.
static REFUSING: Pattern = Pattern::new(|| {
    regex::Regex::new(
        r"unsupported|not support|n't support|not be supported|deprecated|unknown (?:parameter|name|field|argument)|invalid (?:parameter|argument|field)|unrecogni[sz]ed|unexpected (?:keyword|field|argument|parameter|property)|not permitted|not allowed|not enabled|may not be (?:enabled|set|used)|extra (?:inputs?|fields?)|extraneous key|additional propert|cannot find field|cannot both be|may only be set|only .{0,40}(?:is|are) (?:allowed|supported)|only enabled when|can(?:no|')t be disabled|must be one of|not one of the allowed|input should be '|any of the expected tags|\(allowed: |only works in|must be verified|could not be verified|invalid `?signature|cannot be modified|without its required following item",
    )
});

/// Words of an error about a value that is out of range, a part that is missing, or a schema. Such a
/// sentence refuses nothing.
static VETO: Pattern = Pattern::new(|| {
    regex::Regex::new(
        r"\bmissing\b|must be passed back|field required|\bis required\b|must be (?:greater|at least|less|positive|non-negative|smaller)|(?:greater|less) than|too (?:large|long|small|many)|exceed|at (?:most|least)|valid range|in range|out of range|(?:above|below) (?:maximum|minimum)|json schema|schema for function|must end with|prefill|non-negative|[<>]=? ?\d|\bup to\b|\bbetween\b|values? allowed",
    )
});

/// The words of an error about a history in which a turn of the model has no reasoning.
static WITHOUT_REASONING: Pattern = Pattern::new(|| {
    regex::Regex::new(
        r"(?i)reasoning_(content|text)\b.{0,60}\b(must be passed back|is missing)|(missing|requires) `?reasoning_(content|text)\b",
    )
});

/// Where an error begins to repeat the request.
static ECHO: Pattern = Pattern::new(|| {
    regex::Regex::new(r#"'input': ?[{\[]|\binput_value=|Received Model Group|\n\s*File ""#)
});

/// The ends of sentences.
static SENTENCES: Pattern =
    Pattern::new(|| regex::Regex::new(r#"([^.\s])\.+\s+([A-Z`'"(L])|; |\n(\S)"#));

/// Where a sentence begins to say what to write in place of a parameter.
static REMEDY: Pattern = Pattern::new(|| regex::Regex::new(r"did you mean|\. use |, use | use '"));

/// The maximum length of a message that is searched, in characters.
const SEARCHED_CHARACTERS: usize = 2000;

type Pattern = LazyLock<Result<regex::Regex, regex::Error>>;

/// Tells whether a pattern matches. A test makes sure that each pattern compiles.
fn matches(pattern: &Pattern, text: &str) -> bool {
    pattern.as_ref().is_ok_and(|pattern| pattern.is_match(text))
}

/// What the name in an error says.
enum Named<'a> {
    Parameter(&'a Optional),
    /// A part that no request can do without.
    Required,
    Nothing,
}

/// Returns the parameter that an error refuses, of those that the request to `model` had.
///
/// A refusal needs a name of such a parameter, a word or a code that refuses, and none that speaks
/// of a range or of something missing. The innermost error of nested ones comes first, and a field
/// that names a parameter before the words of a message.
pub(super) fn refused<'a>(
    error: &ModelError,
    sent: &[&'a Optional],
    model: &str,
) -> Option<&'a Optional> {
    if error.class != ErrorClass::BadRequest {
        return None;
    }
    let schema = sent.iter().find(|of| matches!(of.place, Place::Schema(_)));
    if let Some(schema) = schema {
        let speaks = |text: &str| {
            let text = text.to_lowercase();
            schema.words.iter().any(|word| text.contains(word))
        };
        let of_claim = |claim: &Claim| {
            claim.parameter.as_deref().is_some_and(speaks) || speaks(&claim.message)
        };
        if speaks(&error.message) || error.claims.iter().any(of_claim) {
            return Some(schema);
        }
    }
    let without = sent.iter().find(|of| matches!(of.place, Place::Without(_)));
    if error.claims.iter().any(|claim| matches(&WITHOUT_REASONING, &claim.message)) {
        return without.copied();
    }
    let history: Vec<&Optional> = sent.iter().copied().filter(|of| of.is_history()).collect();
    for claim in &error.claims {
        let Some(name) = &claim.parameter else { continue };
        let named = resolve(name, sent);
        if matches!(named, Named::Nothing) {
            continue;
        }
        if matches(&VALUE_CODES, &claim.code) {
            return None;
        }
        let message = claim.message.to_ascii_lowercase();
        return match named {
            // The whole input is blamed; the words may still say that it is the reasoning in it.
            Named::Required if is_whole(name) => by_words(&claim.message, &history, model),
            Named::Required | Named::Nothing => None,
            Named::Parameter(found) if REFUSING_CODES.contains(&claim.code.as_str()) => Some(found),
            // Under its other name, a limit that is only too high would have no effect.
            Named::Parameter(found) if found.is_renamed() => {
                (matches(&REFUSING, &message) && !matches(&VETO, &message)).then_some(found)
            }
            Named::Parameter(found) => (!matches(&VETO, &message)).then_some(found),
        };
    }
    for claim in &error.claims {
        if matches(&VALUE_CODES, &claim.code) {
            return None;
        }
        if claim.code == BROKEN_HISTORY {
            return history.first().copied();
        }
        if let Some(found) = by_words(&claim.message, sent, model) {
            return Some(found);
        }
    }
    None
}

/// Returns the parameter that the words of a message refuse.
fn by_words<'a>(message: &str, sent: &[&'a Optional], model: &str) -> Option<&'a Optional> {
    let message = without_model(message, model).replace('’', "'");
    let end = ECHO.as_ref().ok().and_then(|echo| echo.find(&message)).map(|found| found.start());
    let message = message.get(..end.unwrap_or(message.len())).unwrap_or_default();
    let message: String = message.chars().take(SEARCHED_CHARACTERS).collect();
    for sentence in sentences(&message) {
        let lower = sentence.to_ascii_lowercase();
        let remedy = REMEDY.as_ref().ok().and_then(|remedy| remedy.find(&lower));
        let end = remedy.map_or(lower.len(), |found| found.start());
        let (Some(lower), Some(sentence)) = (lower.get(..end), sentence.get(..end)) else {
            continue;
        };
        if matches(&VETO, lower) || !matches(&REFUSING, lower) {
            continue;
        }
        let words: Vec<&str> = identifiers(sentence).collect();
        let is_path = |word: &str| word.contains(['.', '[', '/']);
        let blames_required =
            |word: &&str| is_path(word) && matches!(resolve(word, sent), Named::Required);
        if words.iter().any(blames_required) {
            // Only the reasoning in the history can go.
            let names = |optional: &&&'a Optional| {
                optional.is_history() && words.iter().any(|word| optional.is_named(word))
            };
            return sent.iter().find(names).copied();
        }
        let single = words.iter().find_map(|word| parameter(resolve(word, sent)));
        let pairs = words.windows(2).map(<[&str]>::concat);
        let found =
            single.or_else(|| pairs.into_iter().find_map(|pair| parameter(resolve(&pair, sent))));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Removes the id of the model where it is a whole word: an id such as `x-reasoning` is not
/// a parameter.
fn without_model(message: &str, model: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut kept = String::with_capacity(message.len());
    let mut from = 0;
    for (at, found) in message.match_indices(model).filter(|(_, found)| !found.is_empty()) {
        let (before, after) = (message.get(..at), message.get(at + found.len()..));
        let is_word = !before.is_some_and(|before| before.ends_with(is_part))
            && !after.is_some_and(|after| after.starts_with(is_part));
        if is_word {
            kept.push_str(message.get(from..at).unwrap_or_default());
            from = at + found.len();
        }
    }
    kept.push_str(message.get(from..).unwrap_or_default());
    kept
}

fn parameter(named: Named<'_>) -> Option<&Optional> {
    match named {
        Named::Parameter(found) => Some(found),
        Named::Required | Named::Nothing => None,
    }
}

fn sentences(message: &str) -> Vec<&str> {
    let Ok(ends) = SENTENCES.as_ref() else { return vec![message] };
    let mut found = Vec::new();
    let mut from = 0;
    for groups in ends.captures_iter(message) {
        let Some(whole) = groups.get(0) else { continue };
        // The first letter of the next sentence belongs to it.
        let next = groups.get(2).or_else(|| groups.get(3)).map_or(whole.end(), |g| g.start());
        let end = groups.get(1).map_or(whole.start(), |letter| letter.end());
        found.extend(message.get(from..end));
        from = next;
    }
    found.extend(message.get(from..));
    found
}

/// Parts of a path that say nothing.
const BLANK: &[&str] = &[
    "body",
    "generationconfig",
    "additionalmodelrequestfields",
    "inferenceconfig",
    "options",
    "parameter",
    "parameters",
];

/// Returns a name without the marks in which its spellings differ.
fn normal(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn parts_of(name: &str) -> Vec<String> {
    let parts = name.split(['.', '[', ']', '/', '#']).map(normal);
    parts.filter(|part| !part.is_empty() && !BLANK.contains(&part.as_str())).collect()
}

fn is_whole(name: &str) -> bool {
    parts_of(name).len() == 1
}

/// Judges a name or a path. The last part is the most exact: `reasoning.summary` is not `reasoning`.
fn resolve<'a>(name: &str, sent: &[&'a Optional]) -> Named<'a> {
    let parts = parts_of(name);
    let Some(root) = parts.first() else { return Named::Nothing };
    if REQUIRED.iter().any(|required| normal(required) == *root) {
        let is_named = |optional: &&&'a Optional| {
            optional.is_history() && parts.iter().skip(1).any(|part| optional.is_named(part))
        };
        return sent.iter().find(is_named).map_or(Named::Required, |of| Named::Parameter(of));
    }
    // Fields of the body come before the history.
    let ordered = || {
        sent.iter().filter(|of| !of.is_history()).chain(sent.iter().filter(|of| of.is_history()))
    };
    for part in parts.iter().rev() {
        let exact = ordered().find(|of| of.is_named(part));
        if let Some(found) = exact.or_else(|| ordered().find(|of| of.is_alias(part))) {
            return Named::Parameter(found);
        }
    }
    Named::Nothing
}

/// Returns the words of a text that may be names: letters, digits, `_`, and the marks of a path.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '[' | ']' | '/' | '#' | '-');
    text.split(move |c: char| !is_part(c))
        .map(|word| word.trim_matches('.'))
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WireFormat;
    use crate::provider::{failure, remote};
    use serde_json::json;

    #[test]
    fn the_patterns_compile() {
        for pattern in
            [&VALUE_CODES, &REFUSING, &VETO, &WITHOUT_REASONING, &ECHO, &SENTENCES, &REMEDY]
        {
            assert!(pattern.is_ok());
        }
    }

    /// Answers of providers, as they were reported or recorded.
    #[test]
    fn the_parameter_that_a_provider_refuses_is_found() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/providers/refusals.jsonl");
        let mut wrong = Vec::new();
        let text = std::fs::read_to_string(path).unwrap();
        for line in text.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let word = case["format"].as_str().unwrap();
            let format = WireFormat::ALL.into_iter().find(|of| of.as_str() == word).unwrap();
            let status = u16::try_from(case["status"].as_u64().unwrap()).unwrap();
            let body = case["body"].as_str().unwrap();
            let now = chrono::DateTime::from_timestamp(0, 0).unwrap();
            let error = failure::of_response(status, &Default::default(), body, now);
            let format = remote::of(format);
            // The requests had no schema of an answer.
            let is_sent = |of: &&Optional| !matches!(of.place, Place::Schema(_));
            let sent: Vec<&Optional> = format.optional().iter().filter(is_sent).collect();
            let sent: Vec<&Optional> = match case["first_turn"].as_bool() {
                Some(true) => sent.into_iter().filter(|of| !of.is_history()).collect(),
                _ => sent,
            };
            let found = refused(&error, &sent, case["model"].as_str().unwrap_or_default());
            if found.map(|of| of.name) != case["expect"].as_str() {
                let found = found.map(|of| of.name);
                wrong
                    .push(format!("{} {found:?}, expected {}: {body}", case["id"], case["expect"]));
            }
        }
        assert!(text.lines().count() > 150);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn a_dropped_parameter_leaves_no_empty_object() {
        const EFFORT: Optional = Optional::at("reasoning_effort", "/reasoning/effort", &["effort"]);
        let keep = |_: &mut Value| false;
        let mut body = json!({"reasoning": {"effort": "low"}, "max_tokens": 5});
        assert!(EFFORT.is_in(&body, &keep));
        assert!(EFFORT.adapt(&mut body, &keep));
        assert_eq!(body, json!({"max_tokens": 5}));
        assert!(!EFFORT.adapt(&mut body, &keep));
        let without =
            Optional::without("history_without_reasoning", &["reasoning_content", "reasoning"]);
        let mut history = json!({"messages": [{"role": "user"}, {"role": "assistant", "reasoning": "r"},
            {"role": "assistant", "content": "x"}]});
        assert!(without.is_in(&history, &keep) && without.adapt(&mut history, &keep));
        assert!(!without.is_in(&history, &keep) && !without.adapt(&mut history, &keep));
        assert_eq!(history["messages"][2]["reasoning_content"], " ");
        assert_eq!(history["messages"][1].get("reasoning_content"), None);
        let name = Optional::renamed("max_tokens", "max_tokens", "max_completion_tokens", &[]);
        assert!(name.adapt(&mut body, &keep));
        assert_eq!(body, json!({"max_completion_tokens": 5}));
    }
}
