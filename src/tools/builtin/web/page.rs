//! Turns the body of a response into text for the model.
//!
//! A hostile page can exhaust the stack or the memory of the process that parses it, so a separate
//! process, the converter, parses each page: this binary, started like a tool, in the sandbox of a
//! read tool without a network.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};

use super::super::super::ToolContext;
use super::Form;
use super::fetch::{Fetched, MAX_BYTES, shortened};
use crate::agent::CallContext;
use crate::config::ToolSandbox;
use crate::domain::{CallError, Category, ErrorKind};
use crate::process::ProcessSpec;
use crate::text::html;

/// The argument that starts this binary as the converter.
pub const CONVERTER_VERB: &str = "__convert";

/// The time limit for the conversion of a page; an ordinary page takes a few milliseconds.
const TIME: Duration = Duration::from_secs(10);

/// Maximum bytes of memory of the converter, including its stack.
const MEMORY: u64 = 1 << 30;

/// Maximum CPU seconds of the converter, which the kernel enforces.
const WORK: u64 = 20;

/// Bytes of the converter's stack: deeply nested pages need more than the default.
const STACK: usize = 256 << 20;

/// Bytes at the start of a body that we search for a NUL, which marks it as binary.
const SNIFFED: usize = 8192;

/// Media types of texts, in addition to `text/…`, `…+json` and `…+xml`.
const TEXTS: &[&str] = &[
    "application/json",
    "application/xml",
    "application/javascript",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/x-ndjson",
    "application/x-sh",
    "application/sql",
];

/// Returns the text of a response. Converts an HTML page to the requested form, and leaves other
/// text unchanged.
///
/// *Errors*: the response is not text; the page cannot be converted. *Cancel*: by `context.cancel`.
pub(super) async fn text(
    got: &Fetched,
    form: Form,
    ctx: &ToolContext,
    context: &CallContext,
) -> Result<String, CallError> {
    let stated = got.content_type.as_deref().unwrap_or_default();
    let (media, parameters) = stated.split_once(';').unwrap_or((stated, ""));
    let media = media.trim().to_ascii_lowercase();
    if !is_text(&media, &got.body) {
        let message = format!(
            "[ERROR: This is not text but {}, {} bytes.]",
            if media.is_empty() { "data of an unknown type".to_owned() } else { shortened(&media) },
            got.body.len()
        );
        return Err(CallError::new(ErrorKind::Tool, message));
    }
    let text = decoded(&got.body, parameters);
    let is_page = match media.as_str() {
        "text/html" | "application/xhtml+xml" => true,
        "" => is_page(&text),
        _ => false,
    };
    match form {
        Form::Markdown | Form::Text if is_page => convert(text, form, ctx, context).await,
        _ => Ok(text),
    }
}

fn is_text(media: &str, body: &[u8]) -> bool {
    let looks_like_text = || !body.iter().take(SNIFFED).any(|byte| *byte == 0);
    match media {
        "" | "application/octet-stream" => looks_like_text() && std::str::from_utf8(body).is_ok(),
        _ => {
            media.starts_with("text/")
                || media.ends_with("+json")
                || media.ends_with("+xml") && !media.starts_with("image/")
                || media == "image/svg+xml"
                || TEXTS.contains(&media)
        }
    }
}

fn is_page(text: &str) -> bool {
    let start: String = text.trim_start().chars().take(15).collect();
    let start = start.to_ascii_lowercase();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

/// Decodes the body by the first of these that is present and known: its byte-order mark, the
/// charset of the `Content-Type` header, the charset that the page declares. Otherwise, decodes it
/// as UTF-8.
fn decoded(body: &[u8], parameters: &str) -> String {
    let label = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    });
    let start = String::from_utf8_lossy(body.get(..body.len().min(1024)).unwrap_or_default());
    let own = start.to_ascii_lowercase();
    let own = own.split_once("charset=").map(|(_, rest)| {
        let rest = rest.trim_start_matches(['"', '\'']);
        rest.split(['"', '\'', ' ', ';', '>', '/']).next().unwrap_or_default().to_owned()
    });
    let encoding = label
        .and_then(|label| encoding_rs::Encoding::for_label(label.as_bytes()))
        .or_else(|| encoding_rs::Encoding::for_label(own?.as_bytes()))
        .unwrap_or(encoding_rs::UTF_8);
    // `decode` gives a byte-order mark precedence over `encoding`.
    encoding.decode(body).0.into_owned()
}

async fn convert(
    page: String,
    form: Form,
    ctx: &ToolContext,
    context: &CallContext,
) -> Result<String, CallError> {
    let failed = |why: &str| {
        let message = format!(
            "[ERROR: The page cannot be converted to {}: {why}. Call again with `format: html`.]",
            word(form)
        );
        CallError::new(ErrorKind::Tool, message)
    };
    let offline = ToolSandbox { network: false, ..ToolSandbox::default() };
    let temporary = ctx.programs.sandboxes.temporary().to_path_buf();
    let sandbox = ctx
        .programs
        .sandboxes
        .of(Category::Read, &offline, &temporary)
        .map_err(|error| failed(&format!("the process cannot be sandboxed: {error}")))?;
    let spec = ProcessSpec {
        // The kernel resolves this path in the process that executes it. That process runs our
        // binary, even after an upgrade replaced the file.
        program: PathBuf::from("/proc/self/exe"),
        argv: ["dutyd", CONVERTER_VERB, word(form)].map(str::to_owned).into(),
        env: Default::default(),
        working_dir: temporary,
        // Control characters have no meaning in a page.
        stdin: Some(page.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), " ")),
        timeout: TIME,
        sandbox,
    };
    let most = 4 * page.len().max(MAX_BYTES);
    let mut text = Vec::new();
    let mut keep = |chunk: &[u8]| {
        text.extend_from_slice(chunk);
        if text.len() > most {
            return Err(std::io::Error::other("the text is too large"));
        }
        Ok(())
    };
    let exit = ctx.programs.spawner.run(&spec, &context.cancel, &mut keep).await;
    let exit = exit.map_err(|error| failed(&error.to_string()))?;
    if exit.cancelled {
        return Err(CallError::new(ErrorKind::Interrupted, "The run was stopped."));
    }
    match (exit.timed_out, exit.code) {
        (true, _) => Err(failed("it took too long")),
        (false, Some(0)) => Ok(String::from_utf8_lossy(&text).into_owned()),
        (false, _) => Err(failed("it is nested too deeply, or needs too much memory")),
    }
}

fn word(form: Form) -> &'static str {
    match form {
        Form::Markdown => "markdown",
        Form::Text => "text",
        Form::Html => "html",
    }
}

/// Runs this process as the converter: reads a page from standard input and writes its text to
/// standard output.
#[must_use]
pub fn run_converter(form: Option<&str>) -> ExitCode {
    let is_text = match form {
        Some("markdown") => false,
        Some("text") => true,
        _ => return ExitCode::FAILURE,
    };
    // Without these limits, a page could take all memory of the host.
    let limits = [(Resource::RLIMIT_AS, MEMORY), (Resource::RLIMIT_CPU, WORK)];
    if limits.iter().any(|(resource, most)| setrlimit(*resource, *most, *most).is_err()) {
        return ExitCode::FAILURE;
    }
    let work = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let mut page = String::new();
        std::io::stdin().read_to_string(&mut page)?;
        let text = if is_text { html::words(&page) } else { html::markdown(&page) }?;
        std::io::stdout().write_all(text.as_bytes())?;
        std::io::stdout().flush()
    });
    match work.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(()))) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_by_what_is_said_of_them_and_else_by_their_bytes() {
        for (media, body, expected) in [
            ("text/plain", &b"x"[..], true),
            ("application/problem+json", b"{}", true),
            ("image/svg+xml", b"<svg/>", true),
            ("image/png", b"\x89PNG", false),
            ("application/pdf", b"%PDF", false),
            ("", b"plain", true),
            ("", b"\0\x01", false),
            ("application/octet-stream", b"\xff\xfe", false),
        ] {
            assert_eq!(is_text(media, body), expected, "{media}");
        }
        assert!(is_page("\n <!DOCTYPE HTML><p>") && is_page("<html>") && !is_page("a <html>"));
    }

    #[test]
    fn texts_are_read_in_their_encoding() {
        assert_eq!(decoded(b"caf\xe9", " charset=ISO-8859-1"), "café");
        assert_eq!(decoded(b"caf\xe9", "charset=\"latin1\""), "café");
        assert_eq!(decoded("café".as_bytes(), ""), "café");
        assert_eq!(
            decoded(b"<meta charset='windows-1252'>\x80", ""),
            "<meta charset='windows-1252'>€"
        );
        assert_eq!(decoded(b"\xef\xbb\xbfcaf\xc3\xa9", "charset=latin1"), "café");
        assert_eq!(decoded(b"a\xff", "charset=nonsense"), "a\u{fffd}");
    }
}
