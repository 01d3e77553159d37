//! The one way to the web: each address is judged after its host was resolved, and the connection goes to the judged address.
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

/// Bytes of an answer, as it comes and as it is read.
pub(super) const MOST_BYTES: usize = 5 * 1024 * 1024;

/// Answers that lead elsewhere.
const MOST_REDIRECTS: usize = 5;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// No byte for this long ends it.
const IDLE: Duration = Duration::from_secs(20);

/// What was fetched.
#[derive(Debug)]
pub(super) struct Fetched {
    /// Where it came from at last.
    pub(super) url: String,
    pub(super) status: reqwest::StatusCode,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// Bytes that came over the network.
    pub(super) bytes: usize,
}

/// Fetches a page, and what it leads to.
///
/// *Errors*: `denied` where a rule refuses an address, `timeout`, `limit`, `io`. *Cancel*: drop it.
pub(super) async fn fetch(
    rules: &DomainRules,
    url: &str,
    accept: &str,
    total: Duration,
    redactor: &Redactor,
) -> Result<Fetched, CallError> {
    let fetched = tokio::time::timeout(total, follow(rules, url, accept, redactor)).await;
    fetched.unwrap_or_else(|_| {
        let message =
            format!("[ERROR: The whole answer did not come within {} s.]", total.as_secs());
        Err(CallError::new(ErrorKind::Timeout, message))
    })
}

async fn follow(
    rules: &DomainRules,
    url: &str,
    accept: &str,
    redactor: &Redactor,
) -> Result<Fetched, CallError> {
    let mut url = url.to_owned();
    for _ in 0..=MOST_REDIRECTS {
        let target = rules.target(&url).map_err(|refusal| denied(&url, &refusal, redactor))?;
        let response = request(&target, accept, redactor).await?;
        match next(&target, &response) {
            Some(next) => url = next,
            None => return read(&target, response, redactor).await,
        }
    }
    let message = format!("[ERROR: The page led elsewhere more than {MOST_REDIRECTS} times.]");
    Err(CallError::new(ErrorKind::Limit, message))
}

/// Returns where an answer leads to.
fn next(target: &Target, response: &Response) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    // Not all servers keep to ASCII.
    let location = String::from_utf8_lossy(location.as_bytes());
    let joined = target.url.join(&location);
    // One that is no URL is refused as what it is.
    Some(joined.map_or_else(|_| location.into_owned(), String::from))
}

fn denied(url: &str, refusal: &DomainRefusal, redactor: &Redactor) -> CallError {
    let clean = redactor.text(url);
    // The refusal quotes a part of the address, which may be a part of a secret.
    let why = match clean == url {
        true => shortened(&refusal.to_string()),
        false => "the address holds a secret".to_owned(),
    };
    let message =
        format!("Refused by the rule `domain`: {why}. `{}` was not fetched.", shortened(&clean));
    CallError::new(ErrorKind::Denied, message)
}

/// Returns the addresses of a host; all of them were judged.
///
/// *Errors*: `denied` where one of them is refused, `io` where the host is not known, `timeout`.
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
                let message = format!("[ERROR: The host {} is not known: {why}.]", target.host);
                CallError::new(kind, message)
            };
            match looked_up.await {
                Ok(Ok(addresses)) => addresses.collect(),
                Ok(Err(error)) => return Err(unknown(ErrorKind::Io, &error.to_string())),
                Err(_) => return Err(unknown(ErrorKind::Timeout, "nobody answered in time")),
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

/// Sends one request. Nothing goes along that would say who we are, and nothing is kept of what comes (NET-6).
async fn request(
    target: &Target,
    accept: &str,
    redactor: &Redactor,
) -> Result<Response, CallError> {
    let addresses = judged_addresses(target, redactor).await?;
    // A client of its own for each request: it knows the judged addresses and no others.
    let builder = match target.url.scheme() {
        // It speaks no TLS, and so needs no certificates either.
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
) -> Result<Fetched, CallError> {
    let header = |name| {
        let value = response.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    let (content_type, encoding) = (header(CONTENT_TYPE), header(CONTENT_ENCODING));
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| failed(&error))? {
        if body.len() + piece.len() > MOST_BYTES {
            return Err(too_large());
        }
        body.extend_from_slice(&piece);
    }
    let bytes = body.len();
    let body = match encoding.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "identity") => body,
        Some("gzip" | "x-gzip") => unpacked(&body)?,
        Some(other) => {
            let message = format!(
                "[ERROR: The answer is packed as `{}`, which was not asked for.]",
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

/// Returns what was packed, up to the most bytes: a small answer can hold a large one (NET-5).
fn unpacked(packed: &[u8]) -> Result<Vec<u8>, CallError> {
    let mut body = Vec::new();
    let most = u64::try_from(MOST_BYTES).unwrap_or(u64::MAX) + 1;
    let mut reader = flate2::read::MultiGzDecoder::new(packed).take(most);
    reader.read_to_end(&mut body).map_err(|error| {
        CallError::new(ErrorKind::Io, format!("[ERROR: The answer cannot be unpacked: {error}.]"))
    })?;
    if body.len() > MOST_BYTES { Err(too_large()) } else { Ok(body) }
}

fn too_large() -> CallError {
    let message = format!("[ERROR: The answer is larger than {} MB.]", MOST_BYTES >> 20);
    CallError::new(ErrorKind::Limit, message)
}

/// Returns what the call says of an error of the connection, with its causes: the first sentence alone says nothing.
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

/// Returns what a server or a model wrote as it may stand in an error: in one line, and no longer than errors are.
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
        assert_eq!(unpacked(&pack(MOST_BYTES)).unwrap().len(), MOST_BYTES);
        let bomb = pack(MOST_BYTES * 40);
        assert!(bomb.len() < MOST_BYTES / 2);
        assert_eq!(unpacked(&bomb).unwrap_err().kind, ErrorKind::Limit);
        assert_eq!(unpacked(b"no gzip").unwrap_err().kind, ErrorKind::Io);
    }
}
