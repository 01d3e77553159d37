//! Resolves `${NAME}`, `${credential:NAME}` and `${file:/path}` in string values, and collects the
//! values that are secrets.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::document::Document;
use super::web::suggests_credential;
use super::{Environment, Report};
use crate::argv::pointer_segment;
use crate::text::redact::{SHORTEST_SECRET, Secret};

/// How to treat `${…}` references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretsMode {
    /// Resolves references; a missing value is an error.
    Resolve,
    /// Like `Resolve`, but if this process cannot read a secret, keeps the reference as written and
    /// reports a warning. For verbs that do not use the secret.
    Tolerate,
    /// Keeps references as written, for a machine without secrets.
    Leave,
}

/// Keys below `tools[]` and `jobs[]` with values that are visible to models and to other users of
/// the host.
const SHOWN: &[&str] = &[
    "cmd",
    "args",
    "optional_args",
    "dry_run_args",
    "probe",
    "stdin",
    "prompt",
    "system_prompt",
    "vars",
    "parameters",
    "description",
];

/// Endings of variable names. In the `env` of tools and MCP servers, the value of such a variable
/// is a secret even if it is a literal.
const SECRET_ENDINGS: &[&str] =
    &["_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PASS", "_CREDENTIAL", "_CREDENTIALS"];

/// Tells whether the name of a variable suggests that its value is a secret.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    SECRET_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// A reference to a secret that this process cannot read, although the daemon may be able to read
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// The reference as written, such as `${credential:key}`; the configuration contains it in
    /// place of the value.
    pub reference: String,
    /// The reason, for the operator.
    pub message: String,
}

/// The reason why a reference has no value.
enum Unresolved {
    /// The reference is wrong for every process.
    Wrong(String),
    /// This process lacks the variable or the rights; another process may have them.
    Unread(String),
}

/// The findings of interpolation.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) secrets: Vec<Secret>,
    pub(crate) report: Report,
    /// References that this process cannot read, although another process may be able to.
    pub(crate) unread: Vec<Unread>,
    /// Files that `${file:…}` references name.
    pub(crate) secret_files: Vec<PathBuf>,
    /// File, line and column of values with an unresolved reference.
    pub(crate) unresolved: BTreeSet<(String, usize, usize)>,
}

/// Resolves the references of `document` in place, according to `mode`.
pub(crate) fn interpolate(
    document: &mut Document,
    kind: &str,
    environment: &Environment,
    mode: SecretsMode,
    found: &mut Found,
) {
    let mut value = std::mem::take(&mut document.value);
    walk(&mut value, "", &mut Walk { document, kind, environment, mode, found });
    document.value = value;
}

struct Walk<'a> {
    document: &'a Document,
    kind: &'a str,
    environment: &'a Environment,
    mode: SecretsMode,
    found: &'a mut Found,
}

fn walk(value: &mut Value, pointer: &str, context: &mut Walk<'_>) {
    match value {
        Value::String(text) => {
            if let Some(resolved) = context.string(text, pointer) {
                *text = resolved;
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                walk(item, &format!("{pointer}/{at}"), context);
            }
        }
        Value::Object(map) => {
            for (key, item) in map.iter_mut() {
                walk(item, &format!("{pointer}/{}", pointer_segment(key)), context);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Walk<'_> {
    /// Returns `text` with its references resolved; `None` if it does not change, or after an
    /// error, which this method reports.
    fn string(&mut self, text: &str, pointer: &str) -> Option<String> {
        let segments: Vec<&str> = pointer.split('/').skip(1).collect();
        let has_reference = text.replace("$${", "").contains("${");
        let shown = matches!(segments.as_slice(), [list, _, key, ..] if (*list == "tools" || *list == "jobs") && SHOWN.contains(key));
        if shown {
            if has_reference {
                self.found.report.add_error(
                    self.document
                        .error(
                            pointer,
                            "a `${…}` is not allowed here: models and other users of the host can see this value",
                        )
                        .with_hint("use the tool's `env`, or write `$${` for a literal `${`"),
                );
            }
            return text.contains("$${").then(|| text.replace("$${", "${"));
        }
        let tool_env = matches!(segments.as_slice(), ["tools" | "mcp_servers", _, "env", _]);
        let key = segments.last().copied().unwrap_or_default();
        self.warn_of_literal(text, key, pointer, &segments);
        let mut out = String::with_capacity(text.len());
        let mut secret = self.is_secret_field(&segments) || (tool_env && is_secret_name(key));
        let mut name = key.to_owned();
        let mut is_unread = false;
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = from.get(2..).unwrap_or_default();
                continue;
            }
            out.push_str(before);
            let Some((reference, tail)) = from.get(2..).and_then(|inside| inside.split_once('}'))
            else {
                self.found
                    .report
                    .add_error(self.document.error(pointer, "`${` is never closed by `}`"));
                return None;
            };
            rest = tail;
            if let Some(path) = reference.strip_prefix("file:") {
                self.found.secret_files.push(PathBuf::from(path));
            }
            match self.resolve(reference) {
                Ok(resolved) => {
                    if self.mode == SecretsMode::Leave {
                        let place = self.document.error(pointer, "");
                        self.found.unresolved.insert((place.file, place.line, place.column));
                    }
                    let is_file = reference.contains(':');
                    name = reference.rsplit([':', '/']).next().unwrap_or(reference).to_owned();
                    secret |= tool_env;
                    if is_file || secret {
                        self.keep(&name, &resolved, pointer);
                    }
                    out.push_str(&resolved);
                }
                Err(Unresolved::Unread(message))
                    if self.mode == SecretsMode::Tolerate
                        && (reference.contains(':') || secret || tool_env) =>
                {
                    let warning = self.document.error(pointer, message.clone());
                    let place = (warning.file.clone(), warning.line, warning.column);
                    self.found.unresolved.insert(place);
                    self.found.report.add_warning(warning);
                    let reference = format!("${{{reference}}}");
                    out.push_str(&reference);
                    self.found.unread.push(Unread { reference, message });
                    is_unread = true;
                }
                Err(Unresolved::Wrong(message) | Unresolved::Unread(message)) => {
                    let error = self.document.error(pointer, message);
                    self.found.unresolved.insert((error.file.clone(), error.line, error.column));
                    self.found.report.add_error(error);
                    return None;
                }
            }
        }
        out.push_str(rest);
        if secret && !is_unread {
            self.keep(&name, &out, pointer);
        }
        (out != text).then_some(out)
    }

    /// Warns about a credential that the file itself contains. Short values are placeholders, as
    /// local servers want them.
    fn warn_of_literal(&mut self, text: &str, key: &str, pointer: &str, segments: &[&str]) {
        let is_header = matches!(segments, [_, _, "headers", _]);
        if text.contains("${")
            || text.trim().len() < SHORTEST_SECRET
            || !self.is_secret_field(segments)
            || is_header && !suggests_credential(key)
        {
            return;
        }
        let message = format!(
            "the value of `{key}` is in the file itself, so each copy and backup of the file contains the secret"
        );
        let hint =
            format!("write `{key}: ${{credential:NAME}}`, `${{file:/path}}` or `${{VARIABLE}}`");
        self.found.report.add_warning(self.document.error(pointer, message).with_hint(hint));
    }

    fn is_secret_field(&self, segments: &[&str]) -> bool {
        self.kind == "config"
            && matches!(
                segments,
                ["models", _, "api_key"]
                    | ["web_search", "api_key"]
                    | ["models" | "mcp_servers" | "notifications", _, "headers", _]
                    | ["notifications", _, "url" | "smtp" | "secret" | "routing_key"]
                    | [.., "token"]
            )
    }

    fn keep(&mut self, name: &str, value: &str, pointer: &str) {
        // Without its value, a reference is not a secret; a literal still is.
        if self.mode == SecretsMode::Leave && value.contains("${") || value.is_empty() {
            return;
        }
        // The redactor ignores blanks around a secret.
        if value.trim().len() < SHORTEST_SECRET {
            self.found.report.add_warning(self.document.error(
                pointer,
                format!("the secret `{name}` is shorter than {SHORTEST_SECRET} bytes, so it is not redacted from outputs"),
            ));
        }
        let secret = |value: &str| Secret { name: name.to_owned(), value: value.to_owned() };
        if self.found.secrets.contains(&secret(value)) {
            return;
        }
        self.found.secrets.push(secret(value));
        let segments: Vec<&str> = pointer.split('/').skip(1).collect();
        if let Some(bare) = without_quotes(value).filter(|_| self.is_secret_field(&segments)) {
            self.found.report.add_warning(self.document.error(
                pointer,
                format!("the key `{name}` begins and ends with a quote, which is sent with it: remove the quotes where the key is set"),
            ));
            // A provider may quote the key without them.
            self.found.secrets.push(secret(bare));
        }
    }

    fn resolve(&self, reference: &str) -> Result<String, Unresolved> {
        let is_left = self.mode == SecretsMode::Leave;
        let whole = format!("${{{reference}}}");
        let path = match reference.split_once(':') {
            Some(("credential", name)) if !name.is_empty() && !name.contains('/') => {
                let directory = self.environment.get("CREDENTIALS_DIRECTORY");
                if is_left {
                    return Ok(whole);
                }
                let directory = directory.ok_or_else(|| Unresolved::Unread(format!("`{whole}`: CREDENTIALS_DIRECTORY is not set; systemd sets it for LoadCredential=")))?;
                Path::new(directory).join(name)
            }
            Some(("file", path)) if path.starts_with('/') => Path::new(path).to_path_buf(),
            None if is_variable(reference) => {
                let unset = || {
                    let message = format!("the environment variable {reference} is not set");
                    Unresolved::Unread(message)
                };
                let value = self.environment.get(reference).map(str::to_owned);
                return if is_left { Ok(whole) } else { value.ok_or_else(unset) };
            }
            _ => {
                return Err(Unresolved::Wrong(format!(
                    "`{whole}` is not a reference: write ${{NAME}}, ${{credential:NAME}} or ${{file:/path}}"
                )));
            }
        };
        if is_left {
            return Ok(whole);
        }
        read_secret(&path).map_err(|(is_closed, reason)| {
            let message = format!("`{whole}`: {reason}");
            if is_closed { Unresolved::Unread(message) } else { Unresolved::Wrong(message) }
        })
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Reads a secret file. Rejects a file that is readable by all users (SEC-5).
///
/// *Errors*: a pair of a flag and the reason. The flag is true if this process only lacks the right
/// to read the file.
fn read_secret(path: &Path) -> Result<String, (bool, String)> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let is_closed = error.kind() == std::io::ErrorKind::PermissionDenied;
        (is_closed, format!("{shown} cannot be read: {error}"))
    };
    let meta = std::fs::metadata(path).map_err(unreadable)?;
    if !meta.is_file() {
        return Err((false, format!("{shown} is not a regular file")));
    }
    if meta.permissions().mode() & 0o004 != 0 {
        return Err((false, format!("{shown} is readable by all users: run chmod o-r {shown}")));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    // An editor of Windows may begin a file with a byte order mark.
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).trim().to_owned())
}

/// Returns the text between the quotes around `value`; `None` if there are none.
fn without_quotes(value: &str) -> Option<&str> {
    let value = value.trim();
    let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).filter(|inner| !inner.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_yaml;

    fn run(kind: &str, text: &str, variables: &[(&str, &str)]) -> (Value, Found) {
        let mut document = parse_yaml("f.yaml", text).0.unwrap();
        let environment =
            variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut found = Found::default();
        interpolate(&mut document, kind, &environment, SecretsMode::Resolve, &mut found);
        (document.value, found)
    }

    // proves SEC-2
    #[test]
    fn a_literal_key_is_a_warning_and_a_secret() {
        let warnings = |text: &str| -> Vec<String> {
            let (_, found) = run("config", text, &[("KEY", "sk-1234567")]);
            found.report.warnings.into_iter().map(|warning| warning.field).collect()
        };
        assert_eq!(warnings("models: {m: {api_key: sk-literal-0}}\n"), ["models.m.api_key"]);
        let headers = "{Authorization: Bearer sk-literal-0, anthropic-beta: some-feature}";
        let text = format!("models: {{m: {{headers: {headers}}}}}\n");
        assert_eq!(warnings(&text), ["models.m.headers.Authorization"]);
        assert_eq!(warnings("models: {m: {api_key: '${KEY}'}}\n"), [""; 0]);
        let mut document =
            parse_yaml("f.yaml", "models: {m: {api_key: sk-literal-0}}\n").0.unwrap();
        let mut found = Found::default();
        let (environment, mode) = (Environment::default(), SecretsMode::Leave);
        interpolate(&mut document, "config", &environment, mode, &mut found);
        assert_eq!(found.secrets[0].value, "sk-literal-0");
    }

    #[test]
    fn references_are_resolved_and_secrets_are_known() {
        let (value, found) = run(
            "config",
            "timezone: ${ZONE}\nmodels:\n  m:\n    api_key: ${KEY}\n    headers: {x: 'Bearer ${KEY}'}\n    base_url: 'http://a/$${b}'\n",
            &[("ZONE", "Europe/Berlin"), ("KEY", "sk-1234567")],
        );
        assert_eq!(found.report.errors, []);
        assert_eq!(value["timezone"], "Europe/Berlin");
        assert_eq!(value["models"]["m"]["headers"]["x"], "Bearer sk-1234567");
        assert_eq!(value["models"]["m"]["base_url"], "http://a/${b}");
        let secrets: Vec<_> =
            found.secrets.iter().map(|s| (s.name.as_str(), s.value.as_str())).collect();
        assert_eq!(secrets, [("KEY", "sk-1234567"), ("KEY", "Bearer sk-1234567")]);
    }

    // proves SEC-1, ENV-4, SEC-5
    #[test]
    fn references_are_refused_where_they_would_be_seen_or_are_missing() {
        let (_, found) = run(
            "tools",
            "tools:\n  - args: ['${KEY}']\n    env: {A_TOKEN: literal1, B: '${KEY}', C: '${NONE}'}\n",
            &[("KEY", "secret-value")],
        );
        let messages: Vec<_> =
            found.report.errors.iter().map(|e| (e.line, e.message.as_str())).collect();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(messages[0].1.contains("not allowed here"));
        assert!(messages[1].1.contains("NONE is not set"));
        let names: Vec<_> = found.secrets.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["A_TOKEN", "KEY"]);

        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "file-secret\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!("models: {{m: {{api_key: '${{file:{}}}'}}}}\n", file.display());
        assert_eq!(run("config", &text, &[]).0["models"]["m"]["api_key"], "file-secret");
        std::fs::write(&file, "\u{feff}file-secret\r\n").unwrap();
        assert_eq!(run("config", &text, &[]).0["models"]["m"]["api_key"], "file-secret");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(run("config", &text, &[]).1.report.errors[0].message.contains("chmod o-r"));
    }

    // proves SEC-2
    #[test]
    fn a_key_in_quotes_is_a_warning_that_does_not_show_it() {
        let text = "models: {m: {api_key: '${KEY}', headers: {x: 'Bearer ${KEY}'}}}\n";
        let (_, found) = run("config", text, &[("KEY", "\"sk-field-0000\"")]);
        let [warning] = found.report.warnings.as_slice() else { panic!("{:?}", found.report) };
        assert!(warning.message.contains("`KEY` begins and ends with a quote"), "{warning:?}");
        assert!(!warning.message.contains("sk-field"), "{warning:?}");
        assert!(found.secrets.iter().any(|secret| secret.value == "sk-field-0000"));
    }
}
