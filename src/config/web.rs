//! The hosts and services that web tools may reach: `allowed_domains` and `web_search`. Also checks
//! the addresses of models and MCP servers.

use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use super::raw::{RawHost, RawInternalHost, RawWebSearch};
use crate::argv::{Diagnostic, Diagnostics};
use crate::text::address::{AddressKind, kind};

/// The default base URL of `web_search`.
const SEARCH: &str = "https://api.exa.ai";

/// The service behind `web_search`. Its `Debug` output omits the key.
#[derive(Clone, PartialEq, Eq)]
pub struct WebSearch {
    pub api_key: String,
    /// The base URL, without `/search` and without a trailing slash.
    pub base_url: String,
}

impl fmt::Debug for WebSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSearch").field("base_url", &self.base_url).finish_non_exhaustive()
    }
}

impl WebSearch {
    /// Checks `raw` and fills in the defaults.
    pub(crate) fn from_raw(raw: &RawWebSearch, diagnostics: &mut Diagnostics) -> Option<Self> {
        let base_url = raw.base_url.as_deref().unwrap_or(SEARCH);
        match service_address(base_url, &format!("up to /search, such as {SEARCH}")) {
            Err(message) => diagnostics.error("/web_search/base_url", message),
            Ok(url) if is_exposed(&url) => diagnostics.error(
                "/web_search/base_url",
                "the key would be sent over plain HTTP to a host that is not loopback: use https://"
                    .to_owned(),
            ),
            Ok(_) => {}
        }
        let api_key = raw.api_key.clone()?;
        if reqwest::header::HeaderValue::try_from(&api_key).is_err() {
            let message = "the key contains a line break or another control character";
            diagnostics.error("/web_search/api_key", message.to_owned());
        }
        Some(Self { api_key, base_url: base_url.trim_end_matches('/').to_owned() })
    }
}

/// The hosts that an entry matches.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    /// This name or address.
    Exactly(Host),
    /// Every name below this domain, but not the domain itself.
    Below(String),
}

/// An entry of `allowed_domains`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    named: Named,
    /// Whether the host may have non-public addresses (NET-7).
    pub internal: bool,
}

impl AllowedHost {
    /// Tells whether this entry matches `host`. Names are compared in their parsed form: lower-case
    /// ASCII, by whole labels (NET-4).
    #[must_use]
    pub fn names(&self, host: &Host) -> bool {
        match (&self.named, host) {
            (Named::Below(name), Host::Domain(host)) => undotted(host)
                .strip_suffix(name.as_str())
                .is_some_and(|front| front.len() > 1 && front.ends_with('.')),
            (Named::Exactly(Host::Domain(name)), Host::Domain(host)) => *name == undotted(host),
            (Named::Exactly(name), host) => name == host,
            (Named::Below(_), _) => false,
        }
    }

    /// Returns why a valid entry opens nothing, and the entry to write; `None` if it opens
    /// something.
    fn opens_nothing(&self) -> Option<Diagnostic> {
        if let Named::Exactly(Host::Domain(name)) = &self.named
            && name == "localhost"
            && !self.internal
        {
            let message = "`localhost` is this host, which a plain entry does not open";
            let hint = "write `{host: localhost, internal: true}`";
            return Some(Diagnostic::new("", message).with_hint(hint));
        }
        let address = match &self.named {
            Named::Exactly(Host::Ipv4(address)) => IpAddr::from(*address),
            Named::Exactly(Host::Ipv6(address)) => IpAddr::from(*address),
            Named::Exactly(Host::Domain(_)) | Named::Below(_) => return None,
        };
        match kind(address) {
            AddressKind::Internal if !self.internal => {
                let message = format!(
                    "`{address}` is an internal address, which a plain entry does not open"
                );
                let hint = format!("write `{{host: \"{address}\", internal: true}}`");
                Some(Diagnostic::new("", message).with_hint(hint))
            }
            AddressKind::Impossible => {
                let message =
                    format!("`{address}` is not the address of a host, so the entry opens nothing");
                Some(Diagnostic::new("", message))
            }
            AddressKind::Public | AddressKind::Internal => None,
        }
    }

    /// Parses an entry of `allowed_domains`.
    ///
    /// *Errors*: a message for the configuration report.
    pub fn new(text: &str, internal: bool) -> Result<Self, String> {
        let refused = || {
            format!(
                "`{text}` is not a host: write a name such as status.example.org, `*.example.org` for every name below it, or an IP address, without scheme, port or path"
            )
        };
        if let Some(name) = text.strip_prefix("*.") {
            if internal {
                return Err(format!("`{text}` cannot be internal: list internal hosts one by one"));
            }
            return match host(name) {
                Some(Host::Domain(name)) => Ok(Self { named: Named::Below(name), internal }),
                _ => Err(refused()),
            };
        }
        let named = host(text).map(Named::Exactly).ok_or_else(refused)?;
        Ok(Self { named, internal })
    }
}

/// Tells whether the name of a header suggests that its value is a credential.
pub(super) fn suggests_credential(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    ["auth", "key", "token", "secret", "cookie"].iter().any(|word| name.contains(word))
}

/// Parses an http or https URL; `how` describes the expected form for the error.
///
/// *Errors*: a message for the configuration report.
pub(super) fn web_address(text: &str, how: &str) -> Result<Url, String> {
    // The parser silently drops line breaks and tabs.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err("an address must not contain white space or control characters".to_owned());
    }
    let url = Url::parse(text)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        .ok_or_else(|| format!("`{text}` is not an address: write an http or https URL {how}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "an address must not contain a user name or a password, because addresses are shown"
                .to_owned(),
        );
    }
    Ok(url)
}

/// Parses the base URL of a service, to which requests append their paths.
///
/// *Errors*: a message for the configuration report.
pub(super) fn service_address(text: &str, how: &str) -> Result<Url, String> {
    let url = web_address(text, how)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(
            "an address must not contain a query or a fragment, because requests append paths to it".to_owned()
        );
    }
    Ok(url)
}

/// Tells whether others can read the traffic: plain HTTP to a host that is not loopback.
pub(super) fn is_exposed(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => undotted(name) == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "http" && !is_loopback
}

fn undotted(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Parses a host name or IP address into the form that [`AllowedHost::names`] compares.
fn host(text: &str) -> Option<Host> {
    if let Ok(address) = text.parse::<std::net::Ipv6Addr>() {
        return Some(Host::Ipv6(address));
    }
    match Host::parse(text).ok()? {
        Host::Domain(name) => {
            let name = undotted(&name);
            // The URL parser also accepts text that is not a host name; allow only valid labels.
            let is_name = name.len() <= 253
                && name.split('.').all(|label| {
                    !label.is_empty()
                        && label
                            .bytes()
                            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
                });
            is_name.then(|| Host::Domain(name.to_owned()))
        }
        address => Some(address),
    }
}

/// Returns the valid hosts of a list. Reports an error for each invalid entry, and a warning for each
/// entry that opens nothing. The pointers are below `pointer`.
pub(crate) fn hosts(
    pointer: &str,
    raw: Option<&Vec<RawHost>>,
    diagnostics: &mut Diagnostics,
) -> Vec<AllowedHost> {
    let hosts = raw.into_iter().flatten().enumerate().filter_map(|(at, raw)| {
        let parsed = match raw {
            RawHost::Name(name) => AllowedHost::new(name, false),
            RawHost::Internal(RawInternalHost { host, internal }) => {
                AllowedHost::new(host, internal.unwrap_or(false))
            }
        };
        let pointer = format!("{pointer}/{at}");
        let host = parsed.map_err(|message| diagnostics.error(&pointer, message)).ok()?;
        let warning = host.opens_nothing().map(|warning| Diagnostic { pointer, ..warning });
        diagnostics.warnings.extend(warning);
        Some(host)
    });
    hosts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(entry: &str, yes: &[&str], no: &[&str]) {
        let entry = AllowedHost::new(entry, false).unwrap();
        for (hosts, expected) in [(yes, true), (no, false)] {
            for host in hosts {
                let host = Host::parse(host).unwrap();
                assert_eq!(entry.names(&host), expected, "{entry:?} {host}");
            }
        }
    }

    // proves NET-4
    #[test]
    fn hosts_are_compared_by_labels() {
        check(
            "Good.Example.",
            &["good.example", "GOOD.example", "good.example.", "ｇood.example"],
            &["good.example.evil.test", "notgood.example", "www.good.example", "good-example"],
        );
        check(
            "*.good.example",
            &["www.good.example", "a.b.good.example"],
            &["good.example", "notgood.example", "www.good.example.evil.test"],
        );
        check("bücher.example", &["xn--bcher-kva.example", "BÜCHER.example"], &["bucher.example"]);
        check("127.0.0.1", &["127.0.0.1", "127.1", "0x7f.1", "2130706433"], &["127.0.0.2"]);
        check("::1", &["[::1]", "[0:0::1]"], &["[::2]"]);
    }

    // proves NET-7
    #[test]
    fn an_entry_that_opens_nothing_is_a_warning() {
        let hint = |text: &str, internal: bool| {
            AllowedHost::new(text, internal).unwrap().opens_nothing().map(|found| found.hint)
        };
        let write =
            |host: &str| Some(Some(format!("write `{{host: \"{host}\", internal: true}}`")));
        assert_eq!(hint("10.0.0.5", false), write("10.0.0.5"));
        assert_eq!(hint("0x7f.1", false), write("127.0.0.1"));
        assert_eq!(hint("::1", false), write("::1"));
        assert_eq!(hint("0.0.0.0", true), Some(None));
        let local = "write `{host: localhost, internal: true}`".to_owned();
        assert_eq!(hint("localhost", false), Some(Some(local)));
        assert_eq!(hint("localhost", true), None);
        for (text, internal) in [("10.0.0.5", true), ("8.8.8.8", false), ("a.example", false)] {
            assert_eq!(hint(text, internal), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "https://a.example",
            "a.example/x",
            "a.example:80",
            "u@a.example",
            "a..example",
            "*.10.0.0.1",
            "a b",
            "*.*.example",
        ] {
            let entry = AllowedHost::new(text, false);
            assert!(entry.is_err(), "{text}: {entry:?}");
        }
        assert!(AllowedHost::new("*.corp", true).is_err());
    }
}
