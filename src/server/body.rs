//! The body of a request that may have none.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The JSON body of a request, or the default if the request has no body. Axum's `Option<Json<T>>`
/// ignores a body without a content type, and the request then means something else.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if request.headers().contains_key(header::CONTENT_TYPE) {
            let parsed = Json::<T>::from_request(request, state).await;
            let Json(body) =
                parsed.map_err(|error| Problem::new(error.status(), error.body_text()))?;
            return Ok(Self(body));
        }
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|error| Problem::new(error.status(), error.body_text()))?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body has no content type: send the header `Content-Type: application/json`",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Plan {
        plan: bool,
    }

    async fn read(content_type: Option<&str>, body: &str) -> Result<Plan, u16> {
        let mut request = axum::http::Request::post("/");
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(axum::body::Body::from(body.to_owned())).unwrap();
        let read = OptionalBody::<Plan>::from_request(request, &()).await;
        read.map(|OptionalBody(plan)| plan).map_err(|problem| problem.status)
    }

    /// A request that asks for a plan must never become one that acts.
    #[tokio::test]
    async fn a_body_is_read_or_refused_and_never_ignored() {
        const JSON: Option<&str> = Some("application/json");
        assert_eq!(read(None, "").await, Ok(Plan { plan: false }));
        assert_eq!(read(JSON, r#"{"plan": true}"#).await, Ok(Plan { plan: true }));
        assert_eq!(read(None, r#"{"plan": true}"#).await, Err(415));
        assert_eq!(read(Some("text/plain"), r#"{"plan": true}"#).await, Err(415));
        assert_eq!(read(JSON, r#"{"plans": true}"#).await, Err(422));
        assert_eq!(read(JSON, r#"{"plan": "#).await, Err(400));
        assert_eq!(read(JSON, "").await, Err(400));
    }
}
