//! Names the address in the error of a request that went to a wrong one.

use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{StatusCode, Url};

use crate::agent::ModelError;
use crate::config::WireFormat;

/// Adds the requested address to the error of a 404, and the target of a redirect to its error. We
/// do not follow redirects (SEC-6), so the operator must know where they lead.
pub(super) fn with_address(
    error: ModelError,
    requested: &Url,
    status: StatusCode,
    headers: &HeaderMap,
) -> ModelError {
    let message = if status == StatusCode::NOT_FOUND {
        format!("{requested}: {}", error.message)
    } else if status.is_redirection() {
        redirect_message(requested, status, target(requested, headers))
    } else {
        return error;
    };
    ModelError { message, ..error }
}

fn redirect_message(requested: &Url, status: StatusCode, target: Option<Url>) -> String {
    let code = status.as_u16();
    let Some(target) = target else {
        return format!(
            "HTTP {code}: {requested} redirects, but names no target: check `base_url`"
        );
    };
    let known = WireFormat::ALL.iter().map(|format| format.endpoint());
    let base_url = known
        .filter_map(|endpoint| target.as_str().rsplit_once(endpoint))
        .map(|(base_url, _)| base_url)
        .next()
        .unwrap_or(target.as_str());
    format!(
        "HTTP {code}: the server redirects to {target}, and dutyd follows no redirect: if the target is right, set `base_url: {base_url}`"
    )
}

/// Returns the target of a redirect, without the parts that may hold a secret.
fn target(requested: &Url, headers: &HeaderMap) -> Option<Url> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    let mut target = requested.join(location).ok()?;
    target.set_query(None);
    target.set_fragment(None);
    (target.username().is_empty() && target.password().is_none()).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::ErrorClass;

    #[track_caller]
    fn check(status: u16, location: Option<&str>, expected: &str) {
        let requested = Url::parse("http://127.0.0.1:8000/v1/chat/completions").unwrap();
        let mut headers = HeaderMap::new();
        if let Some(location) = location {
            headers.insert(LOCATION, location.parse().unwrap());
        }
        let error = ModelError::new(ErrorClass::BadRequest, "HTTP 404: no page");
        let status = StatusCode::from_u16(status).unwrap();
        let message = with_address(error, &requested, status, &headers).message;
        assert!(message.contains(expected), "{message}");
    }

    // proves PROV-5
    #[test]
    fn a_wrong_address_is_named_with_the_right_one() {
        let target = "https://llm.example.org/v1/chat/completions?key=x";
        check(308, Some(target), "redirects to https://llm.example.org/v1/chat/completions, and");
        check(308, Some(target), "set `base_url: https://llm.example.org/v1`");
        check(301, Some("/api/v1/chat/completions"), "base_url: http://127.0.0.1:8000/api/v1`");
        check(
            302,
            Some("https://llm.example.org/login"),
            "set `base_url: https://llm.example.org/login`",
        );
        check(307, None, "check `base_url`");
        check(404, None, "http://127.0.0.1:8000/v1/chat/completions: HTTP 404: no page");
    }
}
