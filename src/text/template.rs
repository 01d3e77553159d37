//! `{{name}}` templates: literal pieces and placeholders, parsed once, rendered in one pass.
//!
//! A value is never searched for braces (ARG-3), and nothing is split, globbed or expanded. Tool
//! arguments and prompts share this grammar. In a tool argument, a placeholder names a parameter.
//! In a prompt, it names an entry of `vars`. `{{{{` stands for a literal `{{`, so `{{{{.Names}}` is
//! the Go template `{{.Names}}`.

/// One piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Literal(String),
    /// A placeholder for the value with this name.
    Placeholder(String),
}

/// A parsed template.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

/// Why a text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{{` without a closing `}}`.
    #[error("`{{{{` is never closed by `}}}}`: write `{{{{{{{{` for a literal `{{{{`")]
    Unclosed,
    /// The text between the braces is not a name.
    #[error(
        "`{{{{{0}}}}}` does not contain a name: use letters, digits and `_` only, or write `{{{{{{{{` for a literal `{{{{`"
    )]
    NotAName(String),
    /// A single brace before a name and two after it.
    #[error("`{{{0}}}}}` opens with one brace and closes with two")]
    HalfOpen(String),
}

impl Template {
    /// Parses `text`.
    ///
    /// *Errors*: the first [`TemplateError`]. A single `{` is a literal.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            check_literal(before)?;
            push_literal(&mut pieces, before);
            if let Some(tail) = after.strip_prefix("{{") {
                push_literal(&mut pieces, "{{");
                rest = tail;
                continue;
            }
            let (inside, tail) = after.split_once("}}").ok_or(TemplateError::Unclosed)?;
            let name = inside.trim();
            if !is_name(name) {
                return Err(TemplateError::NotAName(inside.to_owned()));
            }
            pieces.push(Piece::Placeholder(name.to_owned()));
            rest = tail;
        }
        check_literal(rest)?;
        push_literal(&mut pieces, rest);
        Ok(Self { pieces })
    }

    /// Returns the pieces in order; none for an empty text.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns the names of all placeholders in order, including repetitions.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Placeholder(name) => Some(name.as_str()),
            Piece::Literal(_) => None,
        })
    }

    /// Returns the text if the template has no placeholder.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [] => Some(""),
            [Piece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the name if the template is a single placeholder and nothing else.
    #[must_use]
    pub fn lone_placeholder(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [Piece::Placeholder(name)] => Some(name),
            _ => None,
        }
    }

    /// Renders the template in one pass. Returns `None` if a placeholder has no value.
    pub fn render<'a>(&'a self, mut value: impl FnMut(&str) -> Option<&'a str>) -> Option<String> {
        let mut out = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Literal(text) => out.push_str(text),
                Piece::Placeholder(name) => out.push_str(value(name)?),
            }
        }
        Some(out)
    }
}

fn push_literal(pieces: &mut Vec<Piece>, text: &str) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(Piece::Literal(before)) => before.push_str(text),
        _ => pieces.push(Piece::Literal(text.to_owned())),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Rejects `{name}}`, which is a mistyped placeholder; `{"a":{"b":1}}` is a literal.
fn check_literal(text: &str) -> Result<(), TemplateError> {
    for (before, _) in text.match_indices("}}").map(|(at, _)| text.split_at(at)) {
        if let Some((_, inside)) = before.rsplit_once('{')
            && is_name(inside.trim())
        {
            return Err(TemplateError::HalfOpen(inside.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn templates_are_parsed_or_refused() {
        let placeholders = |text: &str| {
            Template::parse(text).map(|t| t.placeholders().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(placeholders("--from={{ since }}"), Ok(vec!["since".to_owned()]));
        assert_eq!(placeholders("{.items[*].name}"), Ok(vec![]));
        assert_eq!(placeholders(r#"{"spec":{"replicas":{{n}}}}"#), Ok(vec!["n".to_owned()]));
        assert_eq!(placeholders(r#"{"a":{"b":1}}"#), Ok(vec![]));
        // proves ARG-11
        assert_eq!(placeholders("{{name"), Err(TemplateError::Unclosed));
        assert_eq!(placeholders("{{name}"), Err(TemplateError::Unclosed));
        assert_eq!(placeholders("{{}}"), Err(TemplateError::NotAName(String::new())));
        assert_eq!(placeholders("{{.Names}}"), Err(TemplateError::NotAName(".Names".into())));
        assert_eq!(placeholders("{name}}"), Err(TemplateError::HalfOpen("name".into())));
    }

    #[test]
    fn doubled_braces_are_literal() {
        let check = |text: &str, literal: &str| {
            assert_eq!(Template::parse(text).unwrap().literal(), Some(literal), "{text}");
        };
        check("{{{{.Names}} {{{{.Status}}", "{{.Names}} {{.Status}}");
        check("a{{{{", "a{{");
        check("{{{{{{{{", "{{{{");
        check("{{{{x}}", "{{x}}");
        let mixed = Template::parse("{{{{.A}}{{x}}{{{{.B}}").unwrap();
        assert_eq!(mixed.render(|_| Some("1")), Some("{{.A}}1{{.B}}".to_owned()));
        let error = Template::parse("{{.Names}}").unwrap_err().to_string();
        assert!(error.ends_with("write `{{{{` for a literal `{{`"), "{error}");
    }

    proptest! {
        // proves ARG-3
        #[test]
        fn values_are_never_expanded(value in ".*") {
            let template = Template::parse("a{{x}}b{{x}}").unwrap();
            prop_assert_eq!(template.render(|_| Some(&value)), Some(format!("a{value}b{value}")));
        }

        #[test]
        fn any_text_parses_or_is_refused(text in ".*") {
            if let Ok(template) = Template::parse(&text) && template.literal().is_some() {
                let literal = text.replace("{{{{", "{{");
                prop_assert_eq!(template.literal(), Some(literal.as_str()));
            }
        }
    }
}
