//! Fetches pages: resolves the host of each URL, judges its IP addresses, and connects only to
//! those addresses.
//!
//! *Source*: threat model, NET-1 to NET-7.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, redirect};

use crate::domain::{CallError, ErrorKind};
use crate::gate::{DomainRefusal, DomainRules, Target};
use crate::text::redact::Redactor;

/// Maximum bytes of a body, both as received and as unpacked.
pub(super) const MAX_BYTES: usize = 5 * 1024 * 1024;

/// Maximum redirects of one call.
const MAX_REDIRECTS: usize = 5;

/// The time limit for resolving a host, and also for establishing a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// The longest time without data before the connection is closed.
const IDLE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Fetched {
    /// The URL of the page, after redirects.
    pub(super) url: String,
    pub(super) status: reqwest::StatusCode,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// Bytes of the body as received.
    pub(super) bytes: usize,
}

/// How long a fetch may take, and how many bytes a response may have, packed or unpacked.
#[derive(Debug, Clone, Copy)]
pub(super) struct FetchLimits {
    pub(super) time: Duration,
    pub(super) bytes: usize,
}

/// Fetches a page and follows its redirects.
///
/// *Errors*: `denied` if a rule refuses a URL or an IP address, `timeout`, `limit`, `io`. *Cancel*:
/// drop the future.
pub(super) async fn fetch(
    rules: &DomainRules,
    url: &str,
    accept: &str,
    most: FetchLimits,
    redactor: &Redactor,
) -> Result<Fetched, CallError> {
    let followed = follow(rules, url, accept, redactor, most.bytes);
    let fetched = tokio::time::timeout(most.time, followed).await;
    fetched.unwrap_or_else(|_| {
        let message =
            format!("[ERROR: The response was not complete within {} s.]", most.time.as_secs());
        Err(CallError::new(ErrorKind::Timeout, message))
    })
}

async fn follow(
    rules: &DomainRules,
    url: &str,
    accept: &str,
    redactor: &Redactor,
    most: usize,
) -> Result<Fetched, CallError> {
    let mut url = url.to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let target = rules.target(&url).map_err(|refusal| denied(&url, &refusal, redactor))?;
        let response = request(&target, accept, redactor).await?;
        match next(&target, &response) {
            Some(next) => url = next,
            None => return read(&target, response, redactor, most).await,
        }
    }
    let message = format!("[ERROR: The page redirected more than {MAX_REDIRECTS} times.]");
    Err(CallError::new(ErrorKind::Limit, message))
}

/// Returns the URL to which a response redirects; `None` for any other response.
fn next(target: &Target, response: &Response) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    // Some servers send bytes that are not ASCII.
    let location = String::from_utf8_lossy(location.as_bytes());
    let joined = target.url.join(&location);
    // Return an invalid URL unchanged, so that the rules refuse it.
    Some(joined.map_or_else(|_| location.into_owned(), String::from))
}

fn denied(url: &str, refusal: &DomainRefusal, redactor: &Redactor) -> CallError {
    let clean = redactor.text(url);
    // The refusal quotes a part of the URL, which may be a part of a secret.
    let why = if clean == url {
        shortened(&refusal.to_string())
    } else {
        "the address contains a secret".to_owned()
    };
    let message =
        format!("Refused by the rule `domain`: {why}. `{}` was not fetched.", shortened(&clean));
    CallError::new(ErrorKind::Denied, message)
}

/// Resolves the host of a URL and judges each of its IP addresses.
///
/// *Errors*: `denied` if a rule refuses an address, `io` if the host is unknown, `timeout`.
pub(in crate::tools) async fn judged_addresses(
    target: &Target,
    redactor: &Redactor,
) -> Result<Vec<SocketAddr>, CallError> {
    let port = target.url.port_or_known_default().unwrap_or(80);
    let addresses: Vec<SocketAddr> = match target.literal() {
        Some(address) => vec![(address, port).into()],
        None => {
            let host = target.host.to_string();
            let looked_up = tokio::time::timeout(CONNECT, tokio::net::lookup_host((host, port)));
            let unknown = |kind, why: &str| {
                let message = format!("[ERROR: The host {} cannot be found: {why}.]", target.host);
                CallError::new(kind, message)
            };
            match looked_up.await {
                Ok(Ok(addresses)) => addresses.collect(),
                Ok(Err(error)) => return Err(unknown(ErrorKind::Io, &error.to_string())),
                Err(_) => return Err(unknown(ErrorKind::Timeout, "the lookup timed out")),
            }
        }
    };
    for address in &addresses {
        target
            .judge(address.ip())
            .map_err(|refusal| denied(target.url.as_str(), &refusal, redactor))?;
    }
    Ok(addresses)
}

/// Sends one request without cookies, credentials or a proxy, and keeps no state of the response
/// (NET-6).
async fn request(
    target: &Target,
    accept: &str,
    redactor: &Redactor,
) -> Result<Response, CallError> {
    let addresses = judged_addresses(target, redactor).await?;
    // Each request has its own client, which knows only the judged addresses.
    let builder = match target.url.scheme() {
        // Plain HTTP needs no certificates.
        "http" => Client::builder().tls_certs_only([]),
        _ => Client::builder(),
    };
    let client = builder
        .no_proxy()
        .redirect(redirect::Policy::none())
        .resolve_to_addrs(&target.host.to_string(), &addresses)
        .http1_only()
        .no_gzip()
        .connect_timeout(CONNECT)
        .read_timeout(IDLE)
        .user_agent(concat!("dutyd/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| failed(&error))?;
    let mut url = target.url.clone();
    url.set_fragment(None);
    client
        .get(url)
        .header(ACCEPT, accept)
        .header(ACCEPT_ENCODING, "gzip")
        .send()
        .await
        .map_err(|error| failed(&error))
}

async fn read(
    target: &Target,
    mut response: Response,
    redactor: &Redactor,
    most: usize,
) -> Result<Fetched, CallError> {
    let header = |name| {
        let value = response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    let (content_type, encoding) = (header(CONTENT_TYPE), header(CONTENT_ENCODING));
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| failed(&error))? {
        if body.len() + piece.len() > most {
            return Err(too_large(most));
        }
        body.extend_from_slice(&piece);
    }
    let bytes = body.len();
    let body = match encoding.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "identity") => body,
        Some("gzip" | "x-gzip") => unpacked(&body, most)?,
        Some(other) => {
            let message = format!(
                "[ERROR: The response has the encoding `{}`, which was not requested.]",
                shortened(&redactor.text(other))
            );
            return Err(CallError::new(ErrorKind::Io, message));
        }
    };
    Ok(Fetched {
        url: target.url.to_string(),
        status: response.status(),
        content_type,
        body,
        bytes,
    })
}

/// Unpacks a body of at most `most` bytes: a small body can unpack to a large one (NET-5).
fn unpacked(packed: &[u8], most: usize) -> Result<Vec<u8>, CallError> {
    let mut body = Vec::new();
    let read = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let mut reader = flate2::read::MultiGzDecoder::new(packed).take(read);
    reader.read_to_end(&mut body).map_err(|error| {
        CallError::new(ErrorKind::Io, format!("[ERROR: The response cannot be unpacked: {error}.]"))
    })?;
    if body.len() > most { Err(too_large(most)) } else { Ok(body) }
}

fn too_large(most: usize) -> CallError {
    let message = format!("[ERROR: The response is larger than {most} bytes.]");
    CallError::new(ErrorKind::Limit, message)
}

/// Returns the error for a failed request, with its innermost cause: the outermost message alone
/// says nothing.
pub(super) fn failed(error: &reqwest::Error) -> CallError {
    let kind = if error.is_timeout() { ErrorKind::Timeout } else { ErrorKind::Io };
    let mut text = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text = next.to_string();
        cause = next.source();
    }
    if text.is_empty() {
        text = error.to_string();
    }
    CallError::new(kind, format!("[ERROR: The request failed: {}.]", shortened(&text)))
}

/// Returns a text of a server or a model for use in an error: on one line, and cut to 200
/// characters.
pub(super) fn shortened(text: &str) -> String {
    crate::text::escape::one_line(text).chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    // proves SEC-2
    #[test]
    fn a_refused_address_is_cut_only_after_secrets_are_removed() {
        let secret =
            crate::text::redact::Secret { name: "K".into(), value: "hunter2hunter2".into() };
        let redactor = Redactor::new(&[secret]);
        let rules = DomainRules::default();
        for address in [
            format!("http://{}hunter2hunter2.example/", "x.".repeat(46)),
            format!("http://a.example/{}hunter2hunter2", "x".repeat(175)),
            format!("no address {}hunter2hunter2", "x".repeat(180)),
        ] {
            let refusal = rules.target(&address).unwrap_err();
            let message = denied(&address, &refusal, &redactor).message;
            assert!(!message.contains("hunt"), "{message}");
        }
    }

    // proves NET-5
    #[test]
    fn what_unpacks_to_much_is_refused() {
        let pack = |length: usize| {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(&vec![b'x'; length]).unwrap();
            packer.finish().unwrap()
        };
        assert_eq!(unpacked(&pack(MAX_BYTES), MAX_BYTES).unwrap().len(), MAX_BYTES);
        let bomb = pack(MAX_BYTES * 40);
        assert!(bomb.len() < MAX_BYTES / 2);
        assert_eq!(unpacked(&bomb, MAX_BYTES).unwrap_err().kind, ErrorKind::Limit);
        assert_eq!(unpacked(b"no gzip", MAX_BYTES).unwrap_err().kind, ErrorKind::Io);
    }
}
