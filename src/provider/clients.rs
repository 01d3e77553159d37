//! The HTTP clients that all models of this process share.
//!
//! Each is built when a model first needs it: the one for `https://` reads the CA certificates of
//! the host, which takes time and fails on a host without any. A restart reads them again.

use std::sync::{Arc, OnceLock};

use super::http;
use crate::agent::ModelError;

/// The HTTP clients of this process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct HttpClients(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    tls: OnceLock<reqwest::Client>,
    plain: OnceLock<reqwest::Client>,
}

impl HttpClients {
    /// Checks whether the CA certificates of this host can be read.
    ///
    /// *Errors*: the reason, for the operator.
    pub fn check_certificates(&self) -> Result<(), ModelError> {
        self.get("https:").map(drop)
    }

    /// Returns the client for a base URL.
    ///
    /// *Errors*: the CA certificates cannot be read.
    pub(crate) fn get(&self, base_url: &str) -> Result<reqwest::Client, ModelError> {
        let is_plain = base_url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("http:"));
        let cell = if is_plain { &self.0.plain } else { &self.0.tls };
        if let Some(client) = cell.get() {
            return Ok(client.clone());
        }
        let client = if is_plain { http::plain_client()? } else { http::tls_client()? };
        Ok(cell.get_or_init(|| client).clone())
    }
}
