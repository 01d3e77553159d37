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
