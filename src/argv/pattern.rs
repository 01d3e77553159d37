//! Regular expressions of parameters. They always match the whole value, run in linear time, and
//! tell us whether a value can begin with a dash.

use regex_syntax::ast::{self, Ast};
use regex_syntax::hir::{Class, Hir, HirKind};

/// Wraps `pattern` so that it matches only whole values.
///
/// *Errors*: the pattern is invalid or too large, does not run in linear time (look-around,
/// back-references), or enables multi-line mode, which would defeat the wrapping (ARG-4, ARG-5).
pub(crate) fn whole(pattern: &str) -> Result<String, String> {
    let parsed = ast::parse::Parser::new().parse(pattern).map_err(|error| {
        format!(
            "`{pattern}` is not a regular expression that runs in linear time: {}",
            error.kind()
        )
    })?;
    if switches_multi_line(&parsed) {
        return Err(format!(
            "`{pattern}` enables multi-line mode, in which `^` and `$` match inside the value"
        ));
    }
    let wrapped = format!("^(?:{pattern})$");
    regex::Regex::new(&wrapped).map(|_| wrapped).map_err(|_| {
        format!("`{pattern}` is too large, or does not compile when wrapped as `^(?:…)$`")
    })
}

/// Tells whether a value that matches `pattern` as a whole can begin with `-`.
pub(crate) fn admits_leading_dash(pattern: &str) -> bool {
    regex_syntax::parse(pattern).map_or(true, |hir| first_can_be_dash(&hir))
}

fn switches_multi_line(pattern: &Ast) -> bool {
    struct Finder;
    impl ast::Visitor for Finder {
        type Output = ();
        type Err = ();
        fn finish(self) -> Result<(), ()> {
            Ok(())
        }
        fn visit_pre(&mut self, node: &Ast) -> Result<(), ()> {
            let flags = match node {
                Ast::Flags(set) => Some(&set.flags),
                Ast::Group(group) => group.flags(),
                _ => None,
            };
            match flags.and_then(|flags| flags.flag_state(ast::Flag::MultiLine)) {
                Some(true) => Err(()),
                _ => Ok(()),
            }
        }
    }
    ast::visit(pattern, Finder).is_err()
}

fn first_can_be_dash(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => literal.0.first() == Some(&b'-'),
        HirKind::Class(Class::Unicode(class)) => {
            class.iter().any(|r| r.start() <= '-' && '-' <= r.end())
        }
        HirKind::Class(Class::Bytes(class)) => {
            class.iter().any(|r| r.start() <= b'-' && b'-' <= r.end())
        }
        HirKind::Repetition(repetition) => first_can_be_dash(&repetition.sub),
        HirKind::Capture(capture) => first_can_be_dash(&capture.sub),
        HirKind::Alternation(parts) => parts.iter().any(first_can_be_dash),
        HirKind::Concat(parts) => {
            for part in parts {
                if first_can_be_dash(part) {
                    return true;
                }
                if part.properties().minimum_len() != Some(0) {
                    return false;
                }
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves ARG-4, ARG-5
    #[test]
    fn patterns_match_the_whole_value_or_are_refused() {
        let matches = |pattern: &str, value: &str| {
            regex::Regex::new(&whole(pattern).unwrap()).unwrap().is_match(value)
        };
        assert!(matches("a|b", "a"));
        assert!(!matches("a|b", "ab"));
        assert!(!matches("^[a-z]+$", "ok\n--evil"));
        assert!(!matches("[a-z]+", "ok; rm"));
        for refused in [
            "(?m)^a$",
            "(?im)^a$",
            "(?m:^a$)",
            "(a)\\1",
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "[",
            "(?x) a # c",
        ] {
            assert!(whole(refused).is_err(), "{refused}");
        }
        assert!(whole("(?i)a").is_ok());
        assert!(whole(r"\(?m").is_ok());
    }

    #[test]
    fn a_leading_dash_is_seen() {
        for (pattern, admits) in [
            ("^[a-z0-9-]+$", true),
            ("^[a-z0-9][a-z0-9-]*$", false),
            (".*", true),
            ("a|-b", true),
            ("(x)?-", true),
            ("^(pods|services)$", false),
            ("", false),
        ] {
            assert_eq!(admits_leading_dash(pattern), admits, "{pattern}");
        }
    }
}
