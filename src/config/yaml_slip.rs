//! Explains slips of typing that the errors of the YAML parser do not name: a value that needs
//! quotes, and a blank that is not a space. Looks only at a text that the parser has rejected.

use serde_json::Value;

use super::location::Location;

/// Characters with which a value without quotes must not begin.
const NEED_QUOTES: [&str; 6] = ["*", "@", "`", "%", "{{", "{%"];

/// Returns the place and the description of the slip behind an error; `None` if we see no slip.
pub(super) fn explain(text: &str, noticed: Location) -> Option<(Location, String)> {
    blank(text, noticed).or_else(|| unquoted(text, noticed)).or_else(|| colon(text, noticed))
}

/// Finds a value without quotes in which a colon would begin another mapping.
fn colon(text: &str, noticed: Location) -> Option<(Location, String)> {
    let line = text.lines().nth(noticed.line.checked_sub(1)?)?;
    let (at, _) = line.char_indices().nth(noticed.column.checked_sub(1)?)?;
    let (before, rest) = line.split_at_checked(at)?;
    let (head, begin) = before.rsplit_once(": ")?;
    let key = head.rsplit([' ', '{', '[', ',']).next()?;
    let is_plain = !begin.trim_start().starts_with(['"', '\'', '[', '{', '|', '>', '&', '*', '!']);
    let is_key = !key.contains(['"', '\'']) && !head.contains('#');
    if !is_plain || !is_key || !(rest == ":" || rest.starts_with(": ")) {
        return None;
    }
    let value = of_value(line.get(head.len() + 2..)?, head.contains(['[', '{'])).trim_start();
    let place = Location { line: noticed.line, column: head.chars().count() + 3 };
    let written = quoted(value);
    Some((place, format!("a value with a colon needs quotes: write `{key}: {written}`")))
}

/// Returns a value in the quotes that need the fewest escapes.
fn quoted(value: &str) -> String {
    if value.contains(['"', '\\']) {
        format!("'{}'", value.replace('\'', "''"))
    } else {
        Value::from(value).to_string()
    }
}

/// Finds a blank other than a space before a key, or between a key and its value.
fn blank(text: &str, noticed: Location) -> Option<(Location, String)> {
    // The parser often notices a wrong indentation on the line that follows.
    let numbers = [noticed.line, noticed.line.saturating_sub(1)];
    numbers.into_iter().filter(|number| *number > 0).find_map(|number| {
        let line = text.lines().nth(number - 1)?;
        let is_wide = |c: char| c.is_whitespace() && !c.is_ascii();
        let of_key =
            line.find(':').map_or(0, |at| line.get(..=at).unwrap_or_default().chars().count());
        let indentation = line.chars().take_while(|c| c.is_whitespace()).count();
        let mut blanks = line.chars().enumerate().filter(|(_, c)| is_wide(*c));
        let (at, c) = blanks.find(|(at, _)| *at < indentation || *at == of_key && of_key > 0)?;
        let place = Location { line: number, column: at + 1 };
        let code = u32::from(c);
        Some((place, format!("U+{code:04X} looks like a space but is not one: write a space")))
    })
}

/// Finds a value that begins with a character which YAML reserves.
fn unquoted(text: &str, noticed: Location) -> Option<(Location, String)> {
    let line = text.lines().nth(noticed.line.checked_sub(1)?)?;
    let end =
        line.char_indices().nth(noticed.column.checked_sub(1)?).map_or(line.len(), |(at, _)| at);
    let before = line.get(..end)?;
    let starts = [": ", "- ", ", ", "[", "{"].into_iter().filter_map(|separator| {
        let start = before.rfind(separator)? + separator.len();
        let value = line.get(start..)?;
        NEED_QUOTES.iter().any(|begin| value.starts_with(begin)).then_some(start)
    });
    let start = starts.max()?;
    let (before, value) = line.split_at_checked(start)?;
    let value = of_value(value, before.contains(['[', '{']));
    // This is an alias: its anchor is missing, or there are too many of them.
    let is_alias = |name: &str| {
        name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-')) && !name.is_empty()
    };
    let first = value.split(',').next().unwrap_or(value);
    if first.strip_prefix('*').is_some_and(is_alias) {
        return None;
    }
    let quoted = quoted(value);
    let key = before.strip_suffix(": ").and_then(|key| key.rsplit([' ', '{', '[', ',']).next());
    let line = key.map_or(quoted.clone(), |key| format!("{key}: {quoted}"));
    let begin: String = value.chars().take(if value.starts_with('{') { 2 } else { 1 }).collect();
    let place = Location { line: noticed.line, column: before.chars().count() + 1 };
    Some((place, format!("a value that begins with `{begin}` needs quotes: write `{line}`")))
}

/// Returns the value at the beginning of `rest`, without a comment or further values behind it.
fn of_value(rest: &str, is_in_brackets: bool) -> &str {
    let value = match rest.split_once(" #") {
        Some((value, _)) => value,
        None => rest,
    };
    let end = if !is_in_brackets {
        None
    } else if value.starts_with('{') {
        value.find("}}").map(|at| at + 2)
    } else {
        value.find([']', '}']).into_iter().chain(value.find(", ")).min()
    };
    end.and_then(|end| value.get(..end)).unwrap_or(value).trim_end()
}

#[cfg(test)]
mod tests {
    use crate::config::parse_yaml;

    #[track_caller]
    fn check(text: &str, place: (usize, usize), expected: &str) {
        let errors = parse_yaml("f.yaml", text).1;
        let found: Vec<_> =
            errors.iter().map(|e| ((e.line, e.column), e.message.as_str())).collect();
        assert_eq!(found, [(place, expected)], "{text:?}");
    }

    #[test]
    fn a_value_without_its_quotes_is_answered_with_the_line() {
        let star = "a value that begins with `*` needs quotes: write `schedule: \"*/5 * * * *\"`";
        check("a:\n  schedule: */5 * * * *\n", (2, 13), star);
        check("a:\n  schedule: */5 * * * * # often\n", (2, 13), star);
        check("a: [{name: b, schedule: */5 * * * *}]\n", (1, 25), star);
        let list = "a value that begins with `*` needs quotes: write `\"* 5 * * *\"`";
        check("s: [\"1 * * * *\", * 5 * * *]\n", (1, 18), list);
        check("s:\n  - * 5 * * *\n", (2, 5), list);
        check(
            "s: @daily\n",
            (1, 4),
            "a value that begins with `@` needs quotes: write `s: \"@daily\"`",
        );
        check(
            "p: {{x}} hi\n",
            (1, 4),
            "a value that begins with `{{` needs quotes: write `p: \"{{x}} hi\"`",
        );
        check("a: *b\n", (1, 4), "while parsing node, found unknown anchor");
    }

    #[test]
    fn a_colon_in_a_value_without_quotes_is_answered_with_the_line() {
        let message = "a value with a colon needs quotes: write `p: \"Look: at it\"`";
        check("j:\n  p: Look: at it\n", (2, 6), message);
        check("j:\n  - p: Look: at it # now\n", (2, 8), message);
        let said = "a value with a colon needs quotes: write `p: 'Say \"a: b\"'`";
        check("p: Say \"a: b\"\n", (1, 4), said);
        let said = "a value with a colon needs quotes: write `p: \"c: d\"`";
        check("a: [{n: b, p: c: d}]\n", (1, 15), said);
    }

    #[test]
    fn a_blank_that_is_not_a_space_is_named() {
        let message = "U+00A0 looks like a space but is not one: write a space";
        check("j:\n  - n: a\n   \u{a0}p: hi\n    s: x\n", (3, 4), message);
        check("j:\n  - n: a\n\u{a0}   p: hi\n    s: x\n", (3, 1), message);
        check("j:\n  p:\u{a0}hi\n  s: x\n", (2, 5), message);
    }
}
