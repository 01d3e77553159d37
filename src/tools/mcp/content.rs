//! Reads the result of a call block by block, so that a block that we do not know does not hide the
//! others.

use serde_json::Value;

use super::error::McpError;

/// Maximum number of images of one answer that we look at.
const MAX_PICTURES: usize = 4;

/// The answer of a server to a call.
#[derive(Debug, PartialEq)]
pub(super) struct Answered {
    /// The text, in which `[picture N]` (from 1) replaces each image in `pictures`.
    pub(super) text: String,
    /// The images in base64, as the server sent them.
    pub(super) pictures: Vec<String>,
    /// Whether the server reports a failure.
    pub(super) has_failed: bool,
}

/// Reads the `result` of an answer to `tools/call`.
///
/// *Errors*: [`McpError::InputRequested`].
pub(super) fn read(result: &Value) -> Result<Answered, McpError> {
    // The server asks for input, or answers with a task to ask for (MCP-4).
    if matches!(result.get("resultType").and_then(Value::as_str), Some("input_required" | "task")) {
        return Err(McpError::InputRequested);
    }
    let mut pictures = Vec::new();
    let mut parts: Vec<String> = match result.get("content") {
        Some(Value::Array(blocks)) => {
            blocks.iter().map(|block| part(block, &mut pictures)).collect()
        }
        Some(Value::Null) | None => Vec::new(),
        Some(block) => vec![part(block, &mut pictures)],
    };
    if parts.is_empty() {
        let known = result.get("structuredContent");
        let is_known = ["content", "isError", "_meta"].iter().any(|key| result.get(key).is_some());
        // Show the model a result that is not of the protocol as JSON, unchanged.
        let whole = Some(result).filter(|result| !is_known && !result.is_null());
        parts.extend(known.or(whole).map(Value::to_string));
    }
    let has_failed = match result.get("isError") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(has_failed)) => *has_failed,
        // A failure that we cannot read is not a success.
        Some(other) => other != "false",
    };
    Ok(Answered { text: parts.join("\n"), pictures, has_failed })
}

/// Returns a content block as text.
fn part(block: &Value, pictures: &mut Vec<String>) -> String {
    let word = |key: &str| block.get(key).and_then(Value::as_str);
    let inner = |key: &str| block.get("resource")?.get(key)?.as_str();
    let data = word("data");
    match word("type").unwrap_or("text") {
        "text" if word("text").is_some() => word("text").unwrap_or_default().to_owned(),
        "image" if data.is_some() && pictures.len() < MAX_PICTURES => {
            pictures.push(data.unwrap_or_default().to_owned());
            format!("[picture {}]", pictures.len())
        }
        kind @ ("image" | "audio") if data.is_some() => {
            let bytes = data.map_or(0, str::len);
            format!("[{kind} {}, {bytes} bytes in base64]", word("mimeType").unwrap_or_default())
        }
        "resource" if inner("text").is_some() => inner("text").unwrap_or_default().to_owned(),
        "resource" if inner("uri").is_some() => {
            format!("[resource {}]", inner("uri").unwrap_or_default())
        }
        "resource_link" if word("uri").is_some() => {
            format!("[resource {}]", word("uri").unwrap_or_default())
        }
        _ => block.as_str().map_or_else(|| block.to_string(), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_block_that_is_not_known_is_told_and_hides_nothing() {
        let text = |result: Value| read(&result).unwrap().text;
        let block =
            |block: Value| text(json!({"content": [{"type": "text", "text": "ok"}, block]}));
        assert_eq!(
            block(json!({"type": "json", "json": {"n": 3}})),
            "ok\n{\"type\":\"json\",\"json\":{\"n\":3}}"
        );
        assert_eq!(
            block(json!({"type": "resource_link", "uri": "ui://x"})),
            "ok\n[resource ui://x]"
        );
        assert_eq!(block(json!({"text": "b", "annotations": {"audience": ["system"]}})), "ok\nb");
        assert_eq!(block(json!("b")), "ok\nb");
        assert_eq!(text(json!({"content": "b"})), "b");
        assert_eq!(text(json!({"structuredContent": {"n": null}})), "{\"n\":null}");
        assert_eq!(text(json!({"disks": 3})), "{\"disks\":3}");
        assert_eq!(text(json!("b")), "\"b\"");
        for empty in [json!({"content": []}), json!(null), json!({"isError": true})] {
            assert_eq!(text(empty), "");
        }
    }

    #[test]
    fn a_failure_is_not_taken_for_a_success() {
        for (written, has_failed) in [
            (json!(true), true),
            (json!("true"), true),
            (json!(1), true),
            (json!(false), false),
            (json!("false"), false),
            (json!(null), false),
        ] {
            let answered = read(&json!({"content": [], "isError": written})).unwrap();
            assert_eq!(answered.has_failed, has_failed, "{written}");
        }
        for kind in ["input_required", "task"] {
            assert!(matches!(read(&json!({"resultType": kind})), Err(McpError::InputRequested)));
        }
    }
}
