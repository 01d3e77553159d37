//! Finds text that only a shell would interpret, in commands that dutyd starts without a shell, and
//! says what to write instead.

use serde_json::Value;

use super::Environment;
use crate::argv::{Diagnostic, programs};

/// Arguments that are operators of a shell.
const OPERATORS: &[&str] = &[
    "|", "|&", "||", "&", "&&", ";", "<", "<<", ">", ">>", ">&", "&>", "1>", "2>", "2>>", ">&2",
    "1>&2", "2>&1",
];

/// Characters that a line without a shell must not contain outside of quotes.
const SPECIAL: [char; 13] = ['|', '&', ';', '<', '>', '$', '`', '(', ')', '\\', '\n', '*', '?'];

/// Splits a command line into words as a shell would, and leaves placeholders whole. Returns `None`
/// if the line needs a shell.
pub(super) fn split(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if let Some((inside, tail)) = rest.strip_prefix("{{").and_then(|of| of.split_once("}}")) {
            let placeholder = format!("{{{{{}}}}}", inside.trim());
            word.get_or_insert_default().push_str(&placeholder);
            rest = tail;
            continue;
        }
        match quote {
            Some(open) if c == open => quote = None,
            Some('"') if matches!(c, '$' | '`' | '\\') => return None,
            Some(_) => word.get_or_insert_default().push(c),
            None if matches!(c, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == ' ' || c == '\t' => words.extend(word.take()),
            None if SPECIAL.contains(&c) => return None,
            None => word.get_or_insert_default().push(c),
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// Returns the keys of a tool that starts this command line.
pub(super) fn keys_for(line: &str) -> String {
    match split(line).as_deref() {
        Some([program, args @ ..]) if !program.contains('=') => {
            format!("write `cmd: {program}` and `args: {}`", list(args))
        }
        Some(_) | None => through_a_shell(line),
    }
}

fn through_a_shell(line: &str) -> String {
    let script = "write the line into a script and its path into `cmd`";
    // A parameter must not supply a part of the code that a shell runs (ARG-13).
    if line.contains("{{") {
        return format!("{script}, and its parameters into `args`");
    }
    let args = ["-c".to_owned(), line.to_owned()];
    format!("{script}, or write `cmd: bash` and `args: {}`", list(&args))
}

/// Tells whether an argument is a redirection, such as `2>/dev/null` or `>>out`.
fn is_redirection(arg: &str) -> bool {
    let rest = arg.trim_start_matches(|c: char| c.is_ascii_digit() || c == '&');
    let has_source = rest.len() < arg.len() && rest.starts_with('>');
    has_source || [">/", ">>", ">&", "</"].iter().any(|begin| rest.starts_with(begin))
}

/// Tells whether an argument is a path with a pattern that a shell would replace by names. Options
/// such as `--exclude` take a pattern, and `find` interprets it itself.
fn is_path_pattern(base: &str, before: Option<&String>, arg: &str) -> bool {
    let takes_pattern = base == "find" || before.is_some_and(|before| before.starts_with("--"));
    arg.starts_with('/') && arg.contains(['*', '?']) && !takes_pattern
}

/// Formats a list for YAML.
fn list(words: &[String]) -> String {
    let words: Vec<String> =
        words.iter().map(|word| Value::from(word.as_str()).to_string()).collect();
    format!("[{}]", words.join(", "))
}

/// Returns a warning for each literal argument that a shell would interpret. `place` is the pointer
/// of the argument with this number.
pub(super) fn problems(
    program: &str,
    args: &[String],
    place: impl Fn(usize) -> String,
    environment: &Environment,
) -> Vec<Diagnostic> {
    let base = program.rsplit('/').next().unwrap_or(program);
    // These programs interpret such text themselves, or hand it to a program that may.
    if programs::reader(base).is_some_and(|reader| reader.kind != programs::Kind::Options) {
        return Vec::new();
    }
    let of_find = ["-exec", "-execdir", "-ok", "-okdir"];
    let has_commands = args.iter().any(|arg| of_find.contains(&arg.as_str()));
    let line = || format!("{program} {}", args.join(" "));
    let literal = args.iter().take_while(|arg| !matches!(arg.as_str(), "-c" | "-lc" | "-ec"));
    let problem = |(at, arg): (usize, &String)| -> Option<Diagnostic> {
        let (message, hint) = if OPERATORS.contains(&arg.as_str()) {
            if arg == ";" && has_commands {
                return None;
            }
            (as_it_is(arg), through_a_shell(&line()))
        } else if arg.contains("{%") && arg.contains("%}") {
            (
                format!("`{arg}` is passed as it is: a template only replaces `{{{{name}}}}`"),
                "write arguments that depend on a parameter under `optional_args`".to_owned(),
            )
        } else if arg.contains("$(")
            || arg.matches('`').count() > 1
            || is_redirection(arg)
            || is_path_pattern(base, at.checked_sub(1).and_then(|before| args.get(before)), arg)
        {
            (as_it_is(arg), through_a_shell(&line()))
        } else {
            (as_it_is(arg), path_for(arg, environment)?)
        };
        Some(Diagnostic::new(place(at), message).with_hint(hint))
    };
    literal.enumerate().filter_map(problem).collect()
}

fn as_it_is(arg: &str) -> String {
    format!("the program gets `{arg}` as it is, because dutyd uses no shell")
}

/// Returns the remedy for a text with `~` or an environment variable; `None` if it has neither.
pub(super) fn path_for(text: &str, environment: &Environment) -> Option<String> {
    let (before, path) = match text.split_once("=~") {
        Some((option, rest)) if rest.is_empty() || rest.starts_with('/') => {
            (format!("{option}="), format!("~{rest}"))
        }
        _ => (String::new(), text.to_owned()),
    };
    let home = environment.get("HOME");
    let below_home = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Some(rest.to_owned()),
        _ if path.contains("$HOME") => None,
        _ => {
            return has_variable(text).then(|| {
                "write the value itself, or start a script that reads the variable".to_owned()
            });
        }
    };
    Some(match (home, below_home) {
        (None, _) => "write the whole path".to_owned(),
        (Some(home), Some(rest)) => format!("write the whole path, such as `{before}{home}{rest}`"),
        (Some(home), None) => {
            format!("write the whole path, such as `{}`", text.replace("$HOME", home))
        }
    })
}

/// Tells whether a text without blanks contains the name of an environment variable after `$`.
fn has_variable(text: &str) -> bool {
    let is_name = |rest: &str| rest.starts_with(|c: char| c.is_ascii_uppercase());
    !text.contains(char::is_whitespace) && text.split('$').skip(1).any(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        [("HOME".to_owned(), "/home/o".to_owned())].into_iter().collect()
    }

    #[test]
    fn a_line_becomes_the_keys_of_a_tool() {
        let check = |line: &str, expected: &str| assert_eq!(keys_for(line), expected, "{line}");
        check(
            "docker logs {{ container_id }} 'a b'",
            r#"write `cmd: docker` and `args: ["logs", "{{container_id}}", "a b"]`"#,
        );
        check(
            "df -h | grep x",
            r#"write the line into a script and its path into `cmd`, or write `cmd: bash` and `args: ["-c", "df -h | grep x"]`"#,
        );
        for line in ["echo $HOME", "a 'b", "a > b", "x \"$y\"", "", "ls *.log", "A=1 make"] {
            assert!(keys_for(line).contains("cmd: bash"), "{line}");
        }
        let with_parameter = keys_for("cat {{file}} | sort");
        assert!(with_parameter.contains("its parameters into `args`"), "{with_parameter}");
    }

    #[test]
    fn what_a_shell_would_interpret_is_reported() {
        let places = |program: &str, args: &[&str]| -> Vec<String> {
            let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
            let found = problems(program, &args, |at| format!("/args/{at}"), &environment());
            found.into_iter().map(|found| found.pointer).collect()
        };
        assert_eq!(places("kubectl", &["get", "pods", "|", "grep", "x"]), ["/args/2"]);
        assert_eq!(places("cat", &["$HOME/a", "~/b", "--file=~/c", "~", "$LOG_DIR/d"]).len(), 5);
        assert_eq!(places("touch", &["{% if x %}-v{% endif %}", "b-$(date +%F).tar"]).len(), 2);
        assert_eq!(places("cat", &["/var/log/*.log", "2>/dev/null", ">>/tmp/out"]).len(), 3);
        assert_eq!(places("du", &["-sh", "/srv/*"]), ["/args/1"]);
        for (program, args) in [
            ("bash", &["-c", "ls | wc -l"][..]),
            ("/usr/bin/awk", &["{print $NF}"]),
            ("kubectl", &["exec", "p", "--", "sh", "-c", "echo $HOME | cat"]),
            ("grep", &["a|b$", "file~"]),
            ("jq", &[".a | .b", "$x"]),
            ("git", &["show", "HEAD~1", "HEAD~"]),
            ("find", &["/srv", "-path", "/srv/*"]),
            ("rsync", &["--exclude", "/tmp/*", "a", "b"]),
            ("dpkg", &["--compare-versions", "1", "ge", ">2"]),
        ] {
            assert_eq!(places(program, args), [""; 0], "{program} {args:?}");
        }
        let arg = ["~/other.log".to_owned()];
        let found = problems("cat", &arg, |at| format!("/args/{at}"), &environment());
        assert!(found[0].hint.as_ref().unwrap().contains("`/home/o/other.log`"), "{found:?}");
    }
}
