//! Decides which URLs a run may fetch. The module is pure: the caller passes in the URL as written,
//! and then each address to which its host resolves.
//!
//! *Source*: threat model, NET-1 to NET-4, NET-7. `text/address.rs` knows which addresses are public.

use std::net::IpAddr;

use url::{Host, Url};

use crate::config::AllowedHost;
use crate::text::address::{AddressKind, kind};

/// The hosts from which a run may fetch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DomainRules {
    /// The allowed hosts; an empty list allows none.
    pub hosts: Vec<AllowedHost>,
    /// Whether the job may not use the network.
    pub is_offline: bool,
}

/// A URL whose host is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub url: Url,
    pub host: Host,
    /// Whether the host may have a non-public address.
    internal: bool,
}

/// Why a URL is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DomainRefusal {
    #[error("`{0}` is not a URL")]
    Malformed(String),
    /// The scheme is neither `http` nor `https`.
    #[error("only http:// and https:// URLs can be fetched, not {0}:")]
    Scheme(String),
    /// The URL contains a user name or a password.
    #[error("a URL must not contain a user name or a password")]
    UserInfo,
    /// The job has no network.
    #[error("the job has no network")]
    Offline,
    /// The host is not listed.
    #[error("`{0}` is not among the allowed_domains of the job or of `security`")]
    NotListed(String),
    /// The host has a non-public address, but is not listed as internal.
    #[error("`{host}` is not listed as internal, but its address {address} is not public")]
    Internal {
        host: String,
        /// Its non-public address.
        address: IpAddr,
    },
    /// The host has an address that no host can have, such as a multicast address.
    #[error("`{host}` has the address {address}, which is not a valid host address")]
    Impossible {
        host: String,
        /// The invalid address.
        address: IpAddr,
    },
}

impl DomainRules {
    /// Returns the target that `text` names, if the run may fetch it. This does not access the
    /// network: the caller must check each address of a named host with [`Target::judge`].
    ///
    /// *Errors*: [`DomainRefusal`].
    pub fn target(&self, text: &str) -> Result<Target, DomainRefusal> {
        let shown = || crate::text::escape::one_line(text).chars().take(200).collect();
        let url = Url::parse(text).map_err(|_| DomainRefusal::Malformed(shown()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(DomainRefusal::Scheme(url.scheme().chars().take(20).collect()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(DomainRefusal::UserInfo);
        }
        let host = url.host().ok_or_else(|| DomainRefusal::Malformed(shown()))?.to_owned();
        if self.is_offline {
            return Err(DomainRefusal::Offline);
        }
        let mut naming = self.hosts.iter().filter(|allowed| allowed.names(&host)).peekable();
        if naming.peek().is_none() {
            // Limit the length, because a server can choose the host through a redirect.
            return Err(DomainRefusal::NotListed(host.to_string().chars().take(100).collect()));
        }
        let internal = naming.any(|allowed| allowed.internal);
        let target = Target { url, host, internal };
        if let Some(address) = target.literal() {
            target.judge(address)?;
        }
        Ok(target)
    }
}

impl Target {
    /// Returns the address if the host is an IP address.
    #[must_use]
    pub fn literal(&self) -> Option<IpAddr> {
        match self.host {
            Host::Ipv4(address) => Some(address.into()),
            Host::Ipv6(address) => Some(address.into()),
            Host::Domain(_) => None,
        }
    }

    /// Checks one address of the host. The caller must refuse the host if any of its addresses is
    /// refused (NET-2).
    ///
    /// *Errors*: [`DomainRefusal`].
    pub fn judge(&self, address: IpAddr) -> Result<(), DomainRefusal> {
        let host = self.host.to_string();
        match kind(address) {
            AddressKind::Public => Ok(()),
            AddressKind::Internal if self.internal => Ok(()),
            AddressKind::Internal => Err(DomainRefusal::Internal { host, address }),
            AddressKind::Impossible => Err(DomainRefusal::Impossible { host, address }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules() -> DomainRules {
        let public = ["good.example", "8.8.8.8", "10.0.0.7"].map(|host| (host, false));
        let internal = ["127.0.0.1", "wiki.corp", "::1"].map(|host| (host, true));
        let hosts = public.into_iter().chain(internal);
        DomainRules {
            hosts: hosts
                .map(|(host, internal)| AllowedHost::new(host, internal).unwrap())
                .collect(),
            is_offline: false,
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let judged = rules().target(text);
        let said = judged.as_ref().map_or_else(ToString::to_string, |_| "allowed".to_owned());
        assert!(said.contains(expected), "{text}: {said}");
    }

    // proves NET-1, NET-2, NET-4, NET-7
    #[test]
    fn urls_are_judged_as_they_are_parsed() {
        for text in [
            "http://good.example",
            "https://GOOD.example:8443/a?b#c",
            "http://8.8.8.8/",
            "http://127.0.0.1:9/",
            "http://2130706433/",
            "http://127。0。0。1/",
            "http://[::1]/",
            "http://wiki.corp./",
        ] {
            check(text, "allowed");
        }
        for text in [
            "file:///etc/shadow",
            "ftp://good.example/",
            "gopher://good.example/",
            "data:text/html,x",
            "javascript:1",
        ] {
            check(text, "only http");
        }
        for text in
            ["http://u@good.example/", "http://good.example:x@evil.test/", "http://:p@good.example"]
        {
            check(text, "user name");
        }
        for text in [
            "http://evil.test/",
            "http://good.example.evil.test/",
            "http://notgood.example/",
            "http://www.good.example/",
            "http://good.example%2eevil.test/",
            "http://169.254.169.254/latest/meta-data/",
            "http://127.0.0.2/",
            "http://[::ffff:127.0.0.1]/",
            "http://0/",
        ] {
            check(text, "not among");
        }
        // The host is listed, but only an internal host may have this address.
        check("http://10.0.0.7/", "not public");
        check("http:/\\good.example\\@evil.test/", "allowed");
        for text in ["", "good.example", "//good.example", "http://", "http://a b/"] {
            check(text, "not a URL");
        }
        let offline = DomainRules { is_offline: true, ..rules() };
        assert_eq!(offline.target("http://good.example"), Err(DomainRefusal::Offline));
        assert!(DomainRules::default().target("http://good.example").is_err());
    }

    // proves NET-2
    #[test]
    fn every_address_that_is_not_public_is_known() {
        let good = rules().target("http://good.example").unwrap();
        let corp = rules().target("http://wiki.corp").unwrap();
        for text in [
            "8.8.8.8",
            "1.1.1.1",
            "172.32.0.1",
            "2606:4700::1111",
            "64:ff9b::808:808",
            "::ffff:8.8.8.8",
        ] {
            let address = text.parse().unwrap();
            assert!(good.judge(address).is_ok() && corp.judge(address).is_ok(), "{text}");
        }
        for text in [
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "2001:db8::1",
            "2001:0:1::1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::7f00:1",
            "100::1",
            "5f00::1",
            "3fff::1",
        ] {
            let address = text.parse().unwrap();
            assert!(good.judge(address).is_err() && corp.judge(address).is_ok(), "{text}");
        }
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.1.1.1",
            "255.255.255.255",
            "240.0.0.1",
            "::",
            "ff02::1",
            "::ffff:0.0.0.0",
        ] {
            let address = text.parse().unwrap();
            assert!(good.judge(address).is_err() && corp.judge(address).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_listed_hosts_gets_through(text in "(https?|ftp)://[a-z0-9.@:/\\\\%\\[\\]。]{0,30}|.{0,40}") {
            if let Ok(target) = rules().target(&text) {
                prop_assert!(matches!(target.url.scheme(), "http" | "https"));
                prop_assert!(rules().hosts.iter().any(|host| host.names(&target.host)));
                prop_assert!(target.url.username().is_empty());
            }
        }
    }
}
