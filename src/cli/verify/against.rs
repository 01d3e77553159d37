//! The ends of records in the log of the daemon, which may have left the machine.
//!
//! A line is read only in the form that the daemon writes: the first `run_id` after the message, and
//! `lines` and `head` at its end. Texts of models and tools stand between them, in quotes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::cli::error::CliError;
use crate::domain::RunId;
use crate::store::RecordEnd;

/// The message of the line.
const MESSAGE: &str = "run ended";

/// A line as text, without colours.
static LINE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let line = r#"^[^"]*run ended (?:job="[a-z0-9_-]+" )?run_id=([0-9a-z]{26}) .*\blines=([0-9]{1,18}) head=([0-9a-f]{64})\s*$"#;
    Regex::new(line).ok()
});

/// Reads the ends of records from a log: text or JSON, as a file or as `journalctl` prints it.
///
/// *Errors*: the file cannot be read, or two lines tell different ends of a run.
pub(super) fn read_ends(path: &Path) -> Result<BTreeMap<RunId, RecordEnd>, CliError> {
    let shown = path.display();
    let unreadable =
        |error: std::io::Error| CliError::failed(format!("cannot read {shown}")).because(&error);
    let reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(BufReader::new(std::fs::File::open(path).map_err(unreadable)?))
    };
    let mut ends = BTreeMap::new();
    for (at, line) in reader.split(b'\n').enumerate() {
        let line = line.map_err(unreadable)?;
        let Some((run_id, end)) = parse(&String::from_utf8_lossy(&line)) else { continue };
        if let Some(other) = ends.insert(run_id.clone(), end.clone())
            && other != end
        {
            let line = at + 1;
            return Err(CliError::failed(format!(
                "{shown}:{line} tells another end of the run {run_id} than an earlier line"
            )));
        }
    }
    Ok(ends)
}

/// Returns the run and the end of its record that a line of the log tells.
fn parse(line: &str) -> Option<(RunId, RecordEnd)> {
    if !line.contains(MESSAGE) {
        return None;
    }
    match serde_json::from_str::<Value>(line) {
        Ok(Value::Object(entry)) => match entry.get("MESSAGE").and_then(Value::as_str) {
            Some(message) => parse(message),
            None => {
                let text = |key: &str| entry.get(key).and_then(Value::as_str);
                let lines = entry.get("lines").and_then(Value::as_u64)?;
                let hash = text("head").filter(|_| text("message") == Some(MESSAGE))?.to_owned();
                Some((RunId::parse(text("run_id")?).ok()?, RecordEnd { lines, hash }))
            }
        },
        _ => {
            let found = LINE.as_ref()?.captures(line)?;
            let part = |nth| found.get(nth).map(|part| part.as_str());
            let (lines, hash) = (part(2)?.parse().ok()?, part(3)?.to_owned());
            Some((RunId::parse(part(1)?).ok()?, RecordEnd { lines, hash }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "01m8cecwwbbwfkd3rt17n518tg";

    fn line(error: &str) -> String {
        let head = "ab".repeat(32);
        format!(
            "2026-11-26T03:00:00.000000Z  WARN run ended job=\"web\" run_id={RUN} outcome=failed stop_reason=no_answer duration_ms=3 error={error:?} lines=12 head={head}"
        )
    }

    #[test]
    fn a_line_of_the_log_is_read_in_every_form() {
        let end = RecordEnd { lines: 12, hash: "ab".repeat(32) };
        let expected = Some((RunId::parse(RUN).unwrap(), end));
        let text = line("it failed");
        let journal = format!("Nov 26 03:00:00 web1 dutyd[71]: {text}");
        let export = serde_json::json!({"MESSAGE": text, "PRIORITY": "4"}).to_string();
        let json = serde_json::json!({
            "level": "WARN", "message": "run ended", "run_id": RUN, "lines": 12, "head": "ab".repeat(32)
        });
        for line in [text, journal, export, json.to_string()] {
            assert_eq!(parse(&line), expected, "{line}");
        }
    }

    #[test]
    fn a_text_of_a_model_forges_no_end() {
        let other = "01m8cecwwbbwfkd3rt17n518th";
        let forged = format!("run ended run_id={other} x lines=1 head={}", "cd".repeat(32));
        let expected = RecordEnd { lines: 12, hash: "ab".repeat(32) };
        assert_eq!(parse(&line(&forged)).unwrap(), (RunId::parse(RUN).unwrap(), expected));
        let quoted = format!("2026-11-26T03:00:00Z  WARN a warning detail={forged:?}");
        assert_eq!(parse(&quoted), None);
        let json = serde_json::json!({"message": "a warning", "detail": forged, "run_id": other});
        assert_eq!(parse(&json.to_string()), None);
    }
}
