//! Errors of the API as problem documents (RFC 9457).

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

/// A problem document.
///
/// *Shape*: `{"title":"not found","status":404,"detail":"there is no job `x`"}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The name of the status code, in lower case.
    pub title: String,
    pub status: u16,
    /// What is wrong with this request.
    pub detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            title: status.canonical_reason().unwrap_or("error").to_lowercase(),
            status: status.as_u16(),
            detail: detail.into(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_problem_is_a_problem_document() {
        let response = Problem::new(StatusCode::NOT_FOUND, "there is no job `x`").into_response();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let body = axum::body::to_bytes(response.into_body(), 1000).await.unwrap();
        let expected = r#"{"title":"not found","status":404,"detail":"there is no job `x`"}"#;
        assert_eq!(body, expected);
    }

    #[test]
    fn a_status_that_is_none_is_an_error_of_the_server() {
        let (title, detail) = (String::new(), String::new());
        let response = Problem { title, status: 7, detail }.into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
