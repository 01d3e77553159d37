//! A YAML file as a JSON value, with the location of every value.
//!
//! Plain scalars are converted by the YAML 1.2 core schema, so `yes` is a string. As an exception,
//! octal numbers, integers with a leading zero (`012`) and non-finite numbers stay strings too.
//! Duplicate keys, merge keys, tags, several documents and oversized or deeply nested files are
//! errors (CFG-3, CFG-4). Alias expansion is bounded.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};
use serde_yaml::granit_parser::{self as yaml, ErrorKind, Event, Marker, Parser, ScalarStyle};

use super::error::{ConfigError, LINE_CHARACTERS};
use super::location::Location;
use super::yaml_slip::explain;
use crate::argv::pointer_segment;

/// The number of errors at which the parser, and then the schema check, stops reporting on a file.
pub(super) const MAX_ERRORS: usize = 200;

/// The maximum length of an error message in characters; a longer one is cut.
const MESSAGE_CHARACTERS: usize = 1000;

/// The maximum size of a file in bytes, inclusive.
pub(crate) const FILE_BYTES_LIMIT: usize = 1024 * 1024;
const DEPTH_LIMIT: usize = 64;
/// The maximum number of values in a file after alias expansion, inclusive. A list of one-character
/// values stays below this limit even at the maximum file size.
const NODE_LIMIT: usize = 600_000;

#[derive(Debug, Clone, Copy)]
struct Spot {
    key: Option<Location>,
    value: Location,
}

/// A parsed YAML file with the location of every value.
#[derive(Debug, Clone)]
pub struct Document {
    /// The path of the file, for display.
    pub file: String,
    /// The content as JSON.
    pub value: Value,
    lines: Vec<String>,
    spots: HashMap<String, Spot>,
}

impl Document {
    /// Returns an error at the value of `pointer`, or at its nearest ancestor with a known
    /// location.
    pub(crate) fn error(&self, pointer: &str, message: impl Into<String>) -> ConfigError {
        self.error_at(pointer, self.nearest(pointer).map(|spot| spot.value), message)
    }

    /// Returns an error like [`error`](Self::error), but at the key of the value if it has one.
    pub(crate) fn key_error(&self, pointer: &str, message: impl Into<String>) -> ConfigError {
        self.error_at(
            pointer,
            self.nearest(pointer).map(|spot| spot.key.unwrap_or(spot.value)),
            message,
        )
    }

    fn nearest(&self, pointer: &str) -> Option<Spot> {
        let mut pointer = pointer;
        loop {
            if let Some(spot) = self.spots.get(pointer) {
                return Some(*spot);
            }
            pointer = pointer.rsplit_once('/')?.0;
        }
    }

    fn error_at(
        &self,
        pointer: &str,
        place: Option<Location>,
        message: impl Into<String>,
    ) -> ConfigError {
        let place = place.unwrap_or(Location { line: 1, column: 1 });
        error_in(&self.file, &self.lines, place, field_of(pointer), message.into())
    }
}

fn error_in(
    file: &str,
    lines: &[String],
    place: Location,
    field: String,
    message: String,
) -> ConfigError {
    ConfigError {
        file: file.to_owned(),
        line: place.line,
        column: place.column,
        field: shortened(&field, LINE_CHARACTERS),
        message: shortened(&message, MESSAGE_CHARACTERS),
        hint: None,
        source_line: lines
            .get(place.line.saturating_sub(1))
            .map(|line| shortened(line, LINE_CHARACTERS))
            .unwrap_or_default(),
    }
}

/// Returns the first `most` characters of `text`, followed by `…` if it is longer.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Returns a JSON pointer in the notation of the report: `/jobs/0/limits` becomes `jobs[0].limits`.
fn field_of(pointer: &str) -> String {
    let mut out = String::new();
    for segment in pointer.split('/').skip(1) {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        if segment.bytes().all(|b| b.is_ascii_digit()) && !segment.is_empty() {
            out.push_str(&format!("[{segment}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(&segment);
        }
    }
    out
}

/// Parses `text`; `file` is its name for errors.
///
/// *Errors*: the problems of the YAML text, at most 200. If parsing had to stop, or the file is
/// empty or too large, the document is `None`; otherwise it contains what could be read.
pub fn parse(file: &str, text: &str) -> (Option<Document>, Vec<ConfigError>) {
    if text.len() > FILE_BYTES_LIMIT {
        return (
            None,
            vec![ConfigError::of_file(
                file,
                format!("the file has {} bytes, and the limit is {FILE_BYTES_LIMIT}", text.len()),
            )],
        );
    }
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let (root, problems) = Builder::new().build(text);
    let mut errors: Vec<ConfigError> = problems
        .into_iter()
        .take(MAX_ERRORS)
        .map(|(place, message)| error_in(file, &lines, place, String::new(), message))
        .collect();
    let Some(root) = root.filter(|root| !matches!(root.kind, Kind::Scalar(Value::Null))) else {
        if errors.is_empty() {
            errors.push(error_in(
                file,
                &lines,
                Location { line: 1, column: 1 },
                String::new(),
                "the file is empty".to_owned(),
            ));
        }
        return (None, errors);
    };
    let mut spots = HashMap::new();
    let value = root.into_value(String::new(), None, &mut spots);
    (Some(Document { file: file.to_owned(), value, lines, spots }), errors)
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
    place: Location,
}

#[derive(Debug, Clone)]
enum Kind {
    Scalar(Value),
    Seq(Vec<Node>),
    Map(Vec<(String, Location, Node)>),
}

impl Node {
    fn into_value(
        self,
        pointer: String,
        key: Option<Location>,
        spots: &mut HashMap<String, Spot>,
    ) -> Value {
        let value = match self.kind {
            Kind::Scalar(value) => value,
            Kind::Seq(items) => items
                .into_iter()
                .enumerate()
                .map(|(at, item)| item.into_value(format!("{pointer}/{at}"), None, spots))
                .collect(),
            Kind::Map(entries) => {
                let mut map = Map::new();
                for (name, place, node) in entries {
                    let below = format!("{pointer}/{}", pointer_segment(&name));
                    let value = node.into_value(below, Some(place), spots);
                    map.insert(name, value);
                }
                Value::Object(map)
            }
        };
        spots.insert(pointer, Spot { key, value: self.place });
        value
    }

    fn size(&self) -> usize {
        1 + match &self.kind {
            Kind::Scalar(_) => 0,
            Kind::Seq(items) => items.iter().map(Self::size).sum(),
            Kind::Map(entries) => entries.iter().map(|(_, _, node)| node.size()).sum(),
        }
    }
}

enum Open {
    Seq {
        items: Vec<Node>,
        place: Location,
        anchor: usize,
    },
    Map {
        entries: Vec<(String, Location, Node)>,
        seen: HashMap<String, usize>,
        place: Location,
        key: Option<(String, Location)>,
        anchor: usize,
    },
}

/// Builds the tree of nodes from parser events.
struct Builder {
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
    nodes: usize,
    anchors: HashMap<usize, Node>,
    problems: Vec<(Location, String)>,
}

impl Builder {
    fn new() -> Self {
        Self {
            open: Vec::new(),
            root: None,
            documents: 0,
            nodes: 0,
            anchors: HashMap::new(),
            problems: Vec::new(),
        }
    }

    fn build(mut self, text: &str) -> (Option<Node>, Vec<(Location, String)>) {
        for item in Parser::new_from_str_with_options(text, options()) {
            let (event, span) = match item {
                Ok(item) => item,
                Err(error) => {
                    let problem = self.located(text, &error);
                    self.problems.push(problem);
                    return (None, self.problems);
                }
            };
            let at = location(span.start);
            if let Some(tag) = event.tag() {
                self.problems.push((at, format!("the tag {} is not allowed", tag.original())));
            }
            if let Err(message) = self.take(event, at, span.is_empty()) {
                self.problems.push(explain(text, at).unwrap_or((at, message)));
                return (None, self.problems);
            }
        }
        (self.root, self.problems)
    }

    /// Returns the location and the description of a syntax error. The parser may report a position
    /// before or after the mistake; if we can find the mistake, the result describes the mistake.
    fn located(&self, text: &str, error: &yaml::ScanError) -> (Location, String) {
        let noticed = location(*error.marker());
        let cause = match error.kind() {
            ErrorKind::TabInPlainScalar => self
                .tab_below(text, noticed)
                .map(|at| (at, "a tab cannot be used for indentation: use spaces".to_owned())),
            ErrorKind::InvalidQuotedScalarIndent
            | ErrorKind::InvalidTrailingSingleQuotedScalar
            | ErrorKind::InvalidTrailingDoubleQuotedScalar => {
                open_quote(text, noticed.line).map(|at| {
                    let line = noticed.line;
                    (at, format!("this quote is not closed before line {line}"))
                })
            }
            _ => None,
        };
        let cause = cause.or_else(|| explain(text, noticed));
        cause.unwrap_or_else(|| (noticed, error.info().to_string()))
    }

    /// Returns the location of a tab that indents a line after the plain scalar at `scalar`.
    fn tab_below(&self, text: &str, scalar: Location) -> Option<Location> {
        let indent = self.open.last().map_or(1, |open| match open {
            Open::Seq { place, .. } | Open::Map { place, .. } => place.column,
        });
        text.lines().enumerate().skip(scalar.line).find_map(|(at, line)| {
            let column = line.chars().position(|c| c != ' ').filter(|column| *column < indent)?;
            let content = line.trim_start();
            let is_tab = line.chars().nth(column) == Some('\t');
            (is_tab && !content.is_empty() && !content.starts_with('#'))
                .then_some(Location { line: at + 1, column: column + 1 })
        })
    }

    /// Processes one event.
    ///
    /// *Errors*: a problem that makes the rest of the file meaningless.
    fn take(&mut self, event: Event<'_>, at: Location, is_empty: bool) -> Result<(), String> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err("expected one document per file; this starts another".to_owned());
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain && tag.is_none();
                if self.expects_key() {
                    return self.take_key(
                        if is_empty { String::new() } else { text.into_owned() },
                        is_plain,
                        at,
                    );
                }
                let value =
                    if is_plain { plain_scalar(&text) } else { Value::String(text.into_owned()) };
                self.close(Node { kind: Kind::Scalar(value), place: at }, anchor)?;
            }
            Event::Alias(id) => {
                let node = self
                    .anchors
                    .get(&id)
                    .cloned()
                    .ok_or("this alias refers to a value that contains it")?;
                self.nodes += node.size();
                if self.expects_key() {
                    return Err("an alias cannot be a key".to_owned());
                }
                self.close(node, 0)?;
            }
            Event::SequenceStart(_, anchor, _) => {
                self.begin(Open::Seq { items: Vec::new(), place: at, anchor })?
            }
            Event::MappingStart(_, anchor, _) => {
                self.begin(Open::Map {
                    entries: Vec::new(),
                    seen: HashMap::new(),
                    place: at,
                    key: None,
                    anchor,
                })?;
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::Seq { items, place, anchor }) => {
                    self.close(Node { kind: Kind::Seq(items), place }, anchor)?
                }
                Some(Open::Map { entries, place, anchor, .. }) => {
                    self.close(Node { kind: Kind::Map(entries), place }, anchor)?
                }
                None => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open::Map { key: None, .. }))
    }

    fn take_key(&mut self, name: String, is_plain: bool, at: Location) -> Result<(), String> {
        if is_plain && name == "<<" {
            self.problems
                .push((at, "the merge key `<<` is not allowed: repeat the keys".to_owned()));
        } else if is_plain && plain_scalar(&name).is_null() {
            self.problems.push((at, "a key must not be empty or null".to_owned()));
        }
        if let Some(Open::Map { key, .. }) = self.open.last_mut() {
            *key = Some((name, at));
        }
        Ok(())
    }

    fn begin(&mut self, open: Open) -> Result<(), String> {
        if self.expects_key() {
            return Err("a key must be a string".to_owned());
        }
        self.open.push(open);
        if self.open.len() > DEPTH_LIMIT {
            return Err(format!("the file is nested more than {DEPTH_LIMIT} levels deep"));
        }
        Ok(())
    }

    fn close(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        self.nodes += 1;
        if self.nodes > NODE_LIMIT {
            return Err(format!(
                "the file has more than {NODE_LIMIT} values after its aliases are expanded"
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::Seq { items, .. }) => items.push(node),
            Some(Open::Map { entries, seen, key, .. }) => {
                let Some((name, at)) = key.take() else { return Ok(()) };
                if name == "<<" {
                    return Ok(());
                }
                match seen.get(&name) {
                    Some(line) => self.problems.push((
                        at,
                        format!("duplicate key `{name}` (first defined on line {line})"),
                    )),
                    None => {
                        seen.insert(name.clone(), at.line);
                        entries.push((name, at, node));
                    }
                }
            }
        }
        Ok(())
    }
}

fn options() -> yaml::Options {
    yaml::options! { emit_comments: false, disallow_directives: true, flow_nesting_limit: DEPTH_LIMIT, block_nesting_limit: DEPTH_LIMIT }
}

/// Returns the location of the opening quote of a string that is still open at the start of `line`;
/// `None` if no string is open there.
fn open_quote(text: &str, line: usize) -> Option<Location> {
    let before: String = text.split_inclusive('\n').take(line.saturating_sub(1)).collect();
    let error =
        Parser::new_from_str_with_options(before.trim_end(), options()).find_map(Result::err)?;
    (*error.kind() == ErrorKind::UnclosedQuotedScalar).then(|| location(*error.marker()))
}

fn location(marker: Marker) -> Location {
    Location { line: marker.line(), column: marker.col() + 1 }
}

/// Converts a plain scalar by the YAML 1.2 core schema, except that octal numbers, integers with a
/// leading zero and non-finite numbers remain strings.
fn plain_scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let starts_with_digit =
        unsigned.bytes().next().is_some_and(|b| b.is_ascii_digit() || b == b'.');
    let looks_octal = unsigned.len() > 1
        && unsigned.starts_with('0')
        && unsigned.bytes().all(|b| b.is_ascii_digit());
    if !starts_with_digit || looks_octal {
        return Value::String(text.to_owned());
    }
    if let Ok(integer) = text.parse::<i64>() {
        return integer.into();
    }
    if let Some(Ok(integer)) = text.strip_prefix("0x").map(|hex| i64::from_str_radix(hex, 16)) {
        return integer.into();
    }
    let is_float = unsigned
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    let Some(float) = text.parse::<f64>().ok().filter(|_| is_float) else {
        return Value::String(text.to_owned());
    };
    // JSON Schema accepts `2.0` as an integer, but serde rejects a float for an integer field.
    #[expect(clippy::cast_possible_truncation, reason = "whole and small enough to be exact")]
    if float.fract() == 0.0 && float.abs() < 9e15 {
        return (float as i64).into();
    }
    Number::from_f64(float).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn errors(text: &str) -> Vec<(usize, usize, String)> {
        parse("f.yaml", text).1.into_iter().map(|e| (e.line, e.column, e.message)).collect()
    }

    #[test]
    fn values_and_places_are_read() {
        let (document, errors) = parse(
            "f.yaml",
            "version: 1\njobs:\n  - name: a\n    on: yes\n    n: [012, 0x10, 1.5, ~, \"5\"]\n",
        );
        assert_eq!(errors, []);
        let document = document.unwrap();
        assert_eq!(
            document.value,
            json!({"version": 1, "jobs": [{"name": "a", "on": "yes", "n": ["012", 16, 1.5, null, "5"]}]})
        );
        let error = document.error("/jobs/0/name", "x");
        assert_eq!(
            (error.line, error.column, error.field.as_str(), error.source_line.as_str()),
            (3, 11, "jobs[0].name", "  - name: a")
        );
        let error = document.key_error("/jobs/0/on", "x");
        assert_eq!((error.line, error.column), (4, 5));
        let error = document.error("/jobs/0/missing/deep", "x");
        assert_eq!((error.line, error.column), (3, 5));
    }

    // proves CFG-3
    #[test]
    fn slips_of_typing_are_errors_with_their_place() {
        assert_eq!(
            errors("a: 1\na: 2\nb: 3\nb: 4\n").iter().map(|e| (e.0, e.1)).collect::<Vec<_>>(),
            [(2, 1), (4, 1)]
        );
        assert!(errors("a: &x {b: 1}\nc:\n  <<: *x\n")[0].2.contains("merge key"));
        assert!(errors("a: 1\n---\nb: 2\n")[0].2.contains("one document"));
        assert!(errors("a: !!str 1\n")[0].2.contains("tag"));
        assert!(errors("? [a]\n: 1\n")[0].2.contains("key must be a string"));
        assert_eq!(errors("a: [1, 2\nb: 3\n").len(), 1);
        assert!(errors("a:\n\tb: 1\n").len() == 1);
    }

    // proves CFG-2, CFG-4
    #[test]
    fn empty_files_and_bombs_are_errors() {
        for empty in ["", "\n\n", "# only a comment\n", "---\n", "~"] {
            assert!(errors(empty)[0].2.contains("empty"), "{empty:?}");
        }
        let bomb: String = (1..30)
            .map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(",")))
            .collect();
        assert!(errors(&format!("a0: &a0 [x]\n{bomb}"))[0].2.contains("aliases"));
        assert_eq!(errors(&"[".repeat(20_000)).len(), 1);
        assert!(errors(&"a".repeat(FILE_BYTES_LIMIT + 1))[0].2.contains("bytes"));
        assert!(errors("a: &a [*a]\n").len() == 1);
    }

    #[test]
    fn aliases_are_expanded() {
        let (document, errors) = parse("f", "a: &x {b: [1]}\nc: *x\n");
        assert_eq!(errors, []);
        assert_eq!(document.unwrap().value, json!({"a": {"b": [1]}, "c": {"b": [1]}}));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(?s)[ -~\\n\\t&*!<>|]{0,200}") {
            let _ = parse("f.yaml", &text);
        }
    }

    #[test]
    fn an_error_stands_where_the_mistake_is() {
        for (text, place, word) in [
            ("a: foo\n\tb: 1\n", (2, 1), "tab"),
            ("a: \"x\nb: 1\n", (1, 4), "not closed"),
            ("j:\n  - n: \"a\n    s: \"x\"\n", (2, 8), "not closed"),
            ("a: 'x\nb: 'y'\n", (1, 4), "not closed"),
        ] {
            let found = errors(text);
            assert_eq!((found[0].0, found[0].1), place, "{text:?} {found:?}");
            assert!(found[0].2.contains(word), "{found:?}");
        }
    }
}
