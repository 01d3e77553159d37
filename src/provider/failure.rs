//! Classifies error responses and reads how long to wait before a retry.
//!
//! Providers agree on little beyond the status code, so we also inspect the codes, types and words
//! in the body. An unknown error with a failure status is retryable only if the status says so.
//! Without a failure status, it counts as an error of the server and is retryable.
//!
//! Messages are returned uncut: [`super::remote`] removes secrets before it truncates.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::Value;

use super::claims;
use crate::agent::{ErrorClass, ModelError};
use crate::text::json::says_nothing;

/// Returns the error that a response with a failure status describes.
pub(super) fn of_response(
    status: u16,
    headers: &HeaderMap,
    body: &str,
    now: DateTime<Utc>,
) -> ModelError {
    let parsed: Value = serde_json::from_str(body).unwrap_or(Value::Null);
    let mut error = of_body(Some(status), &parsed, body);
    error.retry_after = retry_after(headers, now).or(error.retry_after);
    error
}

/// Returns the error that a body describes. Without a failure status, the error's own code is used
/// as the status. `body`, the unparsed text, becomes the message if `parsed` does not have one.
pub(super) fn of_body(status: Option<u16>, parsed: &Value, body: &str) -> ModelError {
    // A server that streams a list wraps its error in a list.
    let parsed = parsed.get(0).unwrap_or(parsed);
    let error = parsed.get("error").filter(|error| !error.is_null()).unwrap_or(parsed);
    let text = |field: &str| error.get(field).and_then(Value::as_str).unwrap_or_default();
    let number = |field: &str| {
        error.get(field).and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok())
    };
    let inner =
        number("status_code").or_else(|| number("code")).or_else(|| text("code").parse().ok());
    let status =
        status.filter(|status| *status >= 300).or(inner.filter(|code| (300..600).contains(code)));
    let message = match (error.as_str(), text("message"), parsed.get("detail")) {
        (Some(bare), ..) => bare.to_owned(),
        (None, message, _) if !message.is_empty() => message.to_owned(),
        (.., Some(detail)) => detail.as_str().map_or_else(|| detail.to_string(), str::to_owned),
        _ => plain(body),
    };
    // A server may put a `code` beside the error, and a proxy may add the raw error of its upstream
    // provider.
    let outer = parsed.get("code").and_then(Value::as_str).unwrap_or_default();
    let raw = error.pointer("/metadata/raw").and_then(Value::as_str).unwrap_or_default();
    // `details` is a list, an object or a string, inside the error or beside it.
    let details = [error, parsed].map(|holder| holder.get("details").unwrap_or(&Value::Null));
    let details = details.map(Value::to_string).join(" ");
    let words = format!(
        "{} {} {} {outer} {message} {raw} {details}",
        text("code"),
        text("type"),
        text("status")
    );
    if error.get("failed_generation").is_some() {
        return ModelError::new(ErrorClass::BadToolGeneration, message);
    }
    let retry_after = error.get("details").and_then(retry_delay);
    let class = classify(status, &words.to_lowercase(), retry_after.is_some());
    let prefix = status.map(|status| format!("HTTP {status}: ")).unwrap_or_default();
    let claims = claims::of_body(parsed, body);
    ModelError { retry_after, claims, ..ModelError::new(class, format!("{prefix}{message}")) }
}

/// Tells whether a part of an answer reports an error. Several servers write an error that says
/// nothing beside every answer.
pub(super) fn has_error(part: &Value) -> bool {
    part.get("error").is_some_and(|error| !says_nothing(error))
}

/// Returns the delay that Google's error details request: `"retryDelay": "48s"`.
fn retry_delay(details: &Value) -> Option<Duration> {
    let delay = details.as_array()?.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

/// Phrases that report a prompt that is too long.
const OVERFLOW: &[&str] = &[
    "context_length",
    "exceed_context_size",
    "context length",
    "context window",
    "context size",
    "context limit",
    "exceeds the context",
    "exceeds the maximum number of tokens",
    "but model only supports up to",
    "prompt is too long",
    "too many tokens",
    "maximum prompt length",
    "input is too long",
    "reduce the length",
    "request_too_large",
    "`inputs` tokens + `max_new_tokens`",
    "exceeded model token limit",
    "exceeds max length",
    "range of input length",
    "prompt token count of",
];

/// Phrases that report an exhausted quota, which waiting does not restore.
const SPENT: &[&str] = &[
    "insufficient_quota",
    "exceeded your current quota",
    "quota_exceeded",
    "credit balance",
    "insufficient credits",
    "insufficient balance",
    "insufficient funds",
    "used all available credits",
    "billing_error",
    "billing_hard_limit",
    "billing_not_active",
    "usage_limit_reached",
    "api usage limits",
];

/// Phrases that report a limit of a day or longer. They count even if the provider also names a
/// short delay.
const LASTING: &[&str] = &["perday", "spend_limit", "spend limit", "spending limit"];

/// Phrases that report a short-lived limit.
const SOON: &[&str] =
    &["rate_limit", "rate limit", "per minute", "per_minute", "perminute", "per second"];

/// Phrases of a server that still loads its model (llama.cpp, TGI).
const LOADING: &[&str] =
    &["loading model", "model is loading", "currently loading", "still loading"];

/// Phrases that report a tool call that the model generated and the server could not parse.
const MALFORMED: &[&str] = &[
    "tool_use_failed",
    "output_parse_failed",
    "tool call validation failed",
    "failed to parse tool call",
    "error parsing tool call",
];

/// Phrases that report a model or a server that takes no tools: Ollama, OpenRouter, vLLM, Groq, OpenAI,
/// Gemini, Bedrock.
const NO_TOOLS: &[&str] = &[
    "does not support tools",
    "does not support tool use",
    "does not support tool calling",
    "does not support function call",
    "doesn't support tool use",
    "endpoints found that support tool use",
    "tool choice requires --enable-auto-tool-choice",
    "tool calling` is not supported",
    "tool calling is not supported",
    "tool use is not supported",
    "tools are not supported",
    "'tools' is not supported",
    "function calling is not supported",
    "function calling is not enabled",
];

fn classify(status: Option<u16>, words: &str, names_delay: bool) -> ErrorClass {
    let has = |list: &[&str]| list.iter().any(|word| words.contains(word));
    if has(MALFORMED) {
        return ErrorClass::BadToolGeneration;
    }
    // A limit is short-lived if the error says so or names a delay, and does not name a lasting
    // limit. Some providers call even a short-lived limit a quota.
    let by_the_minute = !has(LASTING) && (has(SOON) || names_delay);
    match status {
        Some(400 | 404 | 422) if has(NO_TOOLS) => ErrorClass::ToolsRejected,
        None | Some(400 | 422 | 500) if has(OVERFLOW) => ErrorClass::ContextLength,
        Some(413) if !by_the_minute => ErrorClass::ContextLength,
        Some(402) => ErrorClass::QuotaExhausted,
        None | Some(400 | 403 | 412 | 429) if has(LASTING) || has(SPENT) && !by_the_minute => {
            ErrorClass::QuotaExhausted
        }
        Some(400 | 403 | 404) if has(&["model_not_found"]) => ErrorClass::NotFound,
        Some(401 | 403) => ErrorClass::Auth,
        Some(400) if has(&["api key", "api_key", "apikey", "authentication", "unauthorized"]) => {
            ErrorClass::Auth
        }
        Some(413 | 429) => ErrorClass::RateLimit,
        Some(404) => ErrorClass::NotFound,
        Some(503) if has(LOADING) => ErrorClass::Loading,
        Some(498 | 503 | 529) => ErrorClass::Overloaded,
        Some(408 | 409 | 425) => ErrorClass::Server,
        Some(code) if code >= 500 => ErrorClass::Server,
        Some(_) => ErrorClass::BadRequest,
        None if has(&["overloaded", "capacity", "unavailable"]) => ErrorClass::Overloaded,
        None if by_the_minute || has(&["too many requests", "resource_exhausted"]) => {
            ErrorClass::RateLimit
        }
        None if has(&[
            "authentication_error",
            "permission_error",
            "invalid_api_key",
            "api key",
        ]) =>
        {
            ErrorClass::Auth
        }
        None if has(&["not_found", "not found"]) => ErrorClass::NotFound,
        None if has(&["invalid_request", "invalid_prompt", "invalid_argument", "bad_request"]) => {
            ErrorClass::BadRequest
        }
        // Without a failure status, the server accepted the request and failed later.
        None => ErrorClass::Server,
    }
}

/// Returns the whole body as one line; for an HTML page, only its title.
fn plain(body: &str) -> String {
    let title = body
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"))
        .map(|(title, _)| title);
    let text = title.unwrap_or(body).split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() { "the response is empty".to_owned() } else { text }
}

/// Returns the requested delay: `retry-after-ms`, or `Retry-After` in seconds or as a date
/// (PROV-1).
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = DateTime::parse_from_rfc2822(value).ok()?;
    (at.to_utc() - now).to_std().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, expected: ErrorClass) {
        let now = DateTime::from_timestamp(0, 0).unwrap();
        assert_eq!(
            of_response(status, &HeaderMap::new(), body, now).class,
            expected,
            "{status} {body}"
        );
    }

    // proves PROV-1, PROV-5
    // conforms 003-9.11b, 003-B8
    #[test]
    fn errors_are_told_apart() {
        check(401, r#"{"error":{"message":"bad key"}}"#, ErrorClass::Auth);
        check(
            400,
            r#"{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}"#,
            ErrorClass::Auth,
        );
        check(
            400,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens"}}"#,
            ErrorClass::ContextLength,
        );
        check(400, r#"{"error":{"message":"unknown field"}}"#, ErrorClass::BadRequest);
        for (status, said) in [
            (400, "registry.ollama.ai/library/gemma:2b does not support tools"),
            (404, "No endpoints found that support tool use. Try disabling one."),
            (
                400,
                r#""auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set"#,
            ),
            (400, "`tool calling` is not supported with this model"),
            (400, "'tools' is not supported with this model."),
            (400, "Function calling is not enabled for models/gemma-3-27b-it"),
            (400, "This model doesn't support tool use in streaming mode."),
        ] {
            let body = serde_json::json!({"error": {"message": said}}).to_string();
            check(status, &body, ErrorClass::ToolsRejected);
        }
        check(
            400,
            r#"{"error":{"message":"does not support tool_choice"}}"#,
            ErrorClass::BadRequest,
        );
        check(404, "404 page not found", ErrorClass::NotFound);
        check(
            429,
            r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota"}}"#,
            ErrorClass::QuotaExhausted,
        );
        check(429, r#"{"error":"slow down"}"#, ErrorClass::RateLimit);
        let groq = r#"{"error":{"message":"Rate limit reached. Upgrade at https://console.example/settings/billing","code":"rate_limit_exceeded"}}"#;
        check(429, groq, ErrorClass::RateLimit);
        check(502, "<html><head><title>Bad Gateway</title></head></html>", ErrorClass::Server);
        check(500, "{}", ErrorClass::Server);
        check(501, "{}", ErrorClass::Server);
        check(503, "", ErrorClass::Overloaded);
        let loading =
            r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
        check(503, loading, ErrorClass::Loading);
        check(529, "{}", ErrorClass::Overloaded);
        check(302, "", ErrorClass::BadRequest);
        check(408, "", ErrorClass::Server);
        check(504, "<html></html>", ErrorClass::Server);
        check(
            429,
            r#"{"error":{"message":"Requests per minute limit exceeded","code":"request_quota_exceeded"}}"#,
            ErrorClass::RateLimit,
        );
        check(
            400,
            r#"{"error":{"message":"Your credit balance is too low to access the API"}}"#,
            ErrorClass::QuotaExhausted,
        );
        check(
            400,
            r#"{"error":{"message":"input length and `max_tokens` exceed context limit: 1 + 2 > 2"}}"#,
            ErrorClass::ContextLength,
        );
        check(
            400,
            r#"{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}"#,
            ErrorClass::NotFound,
        );
        check(
            400,
            r#"{"error":{"message":"Provider returned error","metadata":{"raw":"prompt is too long"}}}"#,
            ErrorClass::ContextLength,
        );
        check(
            400,
            r#"{"error":{"message":"x","failed_generation":"y"}}"#,
            ErrorClass::BadToolGeneration,
        );
        let spend = r#"{"error":{"message":"Too many requests","details":{"error_code":"enforced_spend_limit_reached"}}}"#;
        check(429, spend, ErrorClass::QuotaExhausted);
        let monthly =
            r#"{"error":{"message":"slow down","details":"monthly spend limit; rate_limit"}}"#;
        check(429, monthly, ErrorClass::QuotaExhausted);
        let beside = r#"{"error":"slow down","details":["PerDay"]}"#;
        check(429, beside, ErrorClass::QuotaExhausted);
        let minute = r#"{"error":{"message":"You exceeded your current quota","details":{"quotaId":"RequestsPerMinute"}}}"#;
        check(429, minute, ErrorClass::RateLimit);
        let day = r#"[{"error":{"code":429,"message":"You exceeded your current quota","details":[{"quotaId":"RequestsPerDayPerProject"},{"retryDelay":"48s"}]}}]"#;
        check(429, day, ErrorClass::QuotaExhausted);
        check(
            400,
            r#"{"error":{"code":"tool_use_failed","message":"x"}}"#,
            ErrorClass::BadToolGeneration,
        );
    }

    #[test]
    fn the_time_to_wait_is_read_in_every_spelling() {
        let now = DateTime::parse_from_rfc2822("Wed, 21 Oct 2026 07:28:00 GMT").unwrap().to_utc();
        let wait = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(wait("retry-after", "20"), Some(Duration::from_secs(20)));
        assert_eq!(wait("retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
        assert_eq!(
            wait("retry-after", "Wed, 21 Oct 2026 07:28:30 GMT"),
            Some(Duration::from_secs(30))
        );
        assert_eq!(wait("retry-after", "Wed, 21 Oct 2026 07:27:00 GMT"), None);
        assert_eq!(wait("retry-after", "soon"), None);
    }
}
