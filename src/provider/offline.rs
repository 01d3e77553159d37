//! Entry points for fuzzing and benchmarks: each reads what a server may send, without a request.

use bytes::Bytes;
use chrono::DateTime;
use futures_util::Stream;

use super::failure;
use super::format::Probe;
use super::refusal::{self, Optional};
use super::remote::{of, read};
use crate::agent::{DeltaSink, ModelError, ModelReply};
use crate::config::WireFormat;

/// Reads the answer of a provider about `model`, without a request.
///
/// *Errors*: the answer is not JSON.
#[doc(hidden)]
pub fn read_metadata(format: WireFormat, model: &str, body: &[u8]) -> Result<Probe, ModelError> {
    of(format).read_metadata(model, body)
}

/// Returns the name of the parameter that an error response refuses, as if a request had sent all that
/// its format can do without.
#[doc(hidden)]
#[must_use]
pub fn refused_parameter(format: WireFormat, status: u16, body: &str) -> Option<&'static str> {
    let error = failure::of_response(status, &Default::default(), body, DateTime::UNIX_EPOCH);
    let sent: Vec<&Optional> = of(format).optional().iter().collect();
    refusal::refused(&error, &sent, "m").map(|refused| refused.name)
}

/// Reads a response in the wire format `format`, without a request.
///
/// *Errors*: the response is cut off, too large or malformed, or reports an error.
#[doc(hidden)]
pub async fn read_as<E: std::fmt::Display>(
    format: WireFormat,
    pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<ModelReply, ModelError> {
    struct DiscardDeltas;
    impl DeltaSink for DiscardDeltas {
        fn delta(&self, _: &str) {}
    }
    read(true, pieces, of(format).as_ref(), &DiscardDeltas).await
}
