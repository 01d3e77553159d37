//! Destinations of notifications (`notifications` in config.yaml), and who is told what of a job.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use url::Url;

use super::raw::{RawDestination, RawDestinationType, RawHeartbeat, RawNotify, RawSettings};
use super::web::{is_exposed, web_address};
use crate::argv::{Diagnostic, Diagnostics, pointer_segment};
use crate::domain::{DaemonEvent, DaemonRule, NoticeEvent, NoticeEvents, NoticeRule};
use crate::text::quantity;
use crate::text::suggest::nearest;

/// The address of the PagerDuty events API.
const PAGERDUTY: &str = "https://events.pagerduty.com/v2/enqueue";

/// A destination of notifications. Its `Debug` output omits what is secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Destination {
    /// An incoming webhook of Slack, or of a server that takes the same messages.
    Slack {
        url: Url,
    },
    Webhook {
        url: Url,
        headers: Vec<(String, String)>,
        /// The key of the signature.
        secret: Option<String>,
    },
    /// `smtp` is an address of the form `smtp://`, `smtps://` or `smtp://…?tls=required`.
    Email {
        smtp: String,
        from: String,
        to: Vec<String>,
    },
    PagerDuty {
        url: Url,
        routing_key: String,
    },
    /// A dead man's switch.
    Ping {
        url: Url,
    },
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl Destination {
    /// Returns the word of its `type`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Slack { .. } => "slack",
            Self::Webhook { .. } => "webhook",
            Self::Email { .. } => "email",
            Self::PagerDuty { .. } => "pagerduty",
            Self::Ping { .. } => "ping",
        }
    }

    /// Checks the destinations of config.yaml. Leaves out those whose type, address or key is
    /// missing or cannot be parsed.
    pub(crate) fn all(
        raw: Option<&BTreeMap<String, RawDestination>>,
        diagnostics: &mut Diagnostics,
    ) -> BTreeMap<String, Self> {
        let mut destinations = BTreeMap::new();
        for (name, raw) in raw.into_iter().flatten() {
            let pointer = format!("/notifications/{}", pointer_segment(name));
            let mut check = Check { raw, pointer, diagnostics };
            check.keys();
            destinations.extend(check.destination().map(|destination| (name.clone(), destination)));
        }
        destinations
    }
}

struct Check<'a> {
    raw: &'a RawDestination,
    pointer: String,
    diagnostics: &'a mut Diagnostics,
}

impl Check<'_> {
    fn error(&mut self, key: &str, message: impl Into<String>) {
        self.diagnostics.error(&format!("{}/{key}", self.pointer), message);
    }

    /// Reports each key that the type does not have.
    fn keys(&mut self) {
        let RawDestination { r#type, url, headers, secret, smtp, from, to, routing_key } = self.raw;
        let Some(kind) = r#type else { return };
        let own: &[&str] = match kind {
            RawDestinationType::Slack | RawDestinationType::Ping => &["url"],
            RawDestinationType::Webhook => &["url", "headers", "secret"],
            RawDestinationType::Email => &["smtp", "from", "to"],
            RawDestinationType::Pagerduty => &["url", "routing_key"],
        };
        let set = [
            ("url", url.is_some()),
            ("headers", headers.is_some()),
            ("secret", secret.is_some()),
            ("smtp", smtp.is_some()),
            ("from", from.is_some()),
            ("to", to.is_some()),
            ("routing_key", routing_key.is_some()),
        ];
        for (key, _) in set.iter().filter(|(key, is_set)| *is_set && !own.contains(key)) {
            self.error(key, format!("`{key}` is not a key of this type: use {}", own.join(", ")));
        }
    }

    fn destination(&mut self) -> Option<Destination> {
        let raw = self.raw;
        Some(match raw.r#type? {
            RawDestinationType::Slack => {
                Destination::Slack { url: self.secret_url(raw.url.as_deref())? }
            }
            RawDestinationType::Ping => Destination::Ping { url: self.url(raw.url.as_deref())? },
            RawDestinationType::Webhook => {
                let url = self.url(raw.url.as_deref())?;
                let headers: Vec<(String, String)> = raw
                    .headers
                    .iter()
                    .flatten()
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect();
                if !headers.is_empty() && is_exposed(&url) {
                    self.error("url", "the headers would be sent over plain HTTP to a host that is not loopback: use https://");
                }
                for (name, value) in &headers {
                    self.check_header(name, value);
                }
                Destination::Webhook { url, headers, secret: raw.secret.clone() }
            }
            RawDestinationType::Pagerduty => {
                let url = self.secret_url(Some(raw.url.as_deref().unwrap_or(PAGERDUTY)))?;
                let key = self.required("routing_key", raw.routing_key.as_deref())?;
                Destination::PagerDuty { url, routing_key: key.to_owned() }
            }
            RawDestinationType::Email => self.email()?,
        })
    }

    fn email(&mut self) -> Option<Destination> {
        let raw = self.raw;
        let smtp = self.required("smtp", raw.smtp.as_deref())?;
        let from = self.required("from", raw.from.as_deref())?;
        let to = raw.to.clone().unwrap_or_default();
        if to.is_empty() {
            self.error("to", "an e-mail needs at least one recipient");
        }
        let is_reference = smtp.contains("${");
        let is_smtp = Url::parse(smtp)
            .is_ok_and(|url| matches!(url.scheme(), "smtp" | "smtps") && url.host().is_some());
        if !is_reference && !is_smtp {
            self.error("smtp", "`smtp` is not the address of a mail server: write smtps://USER:PASSWORD@HOST:465 or smtp://HOST:25");
        } else if let Ok(url) = Url::parse(smtp)
            && url.password().is_some()
            && url.scheme() == "smtp"
            && !url.query().is_some_and(|query| query.contains("tls=required"))
            && !is_loopback(&url)
        {
            self.error(
                "smtp",
                "the password could be sent without TLS: use smtps://, or add `?tls=required`",
            );
        }
        let all = std::iter::once(("from".to_owned(), from.to_owned()))
            .chain(to.iter().enumerate().map(|(at, to)| (format!("to/{at}"), to.clone())));
        for (key, address) in all.filter(|(_, address)| !address.contains("${")) {
            if address.parse::<lettre::message::Mailbox>().is_err() {
                self.error(&key, format!("`{address}` is not an e-mail address"));
            }
        }
        Some(Destination::Email { smtp: smtp.to_owned(), from: from.to_owned(), to })
    }

    fn check_header(&mut self, name: &str, value: &str) {
        let is_name = reqwest::header::HeaderName::try_from(name).is_ok();
        if !is_name || reqwest::header::HeaderValue::try_from(value).is_err() {
            let key = format!("headers/{}", pointer_segment(name));
            self.error(&key, format!("`{name}` or its value cannot be an HTTP header"));
        }
    }

    fn required<'a>(&mut self, key: &str, value: Option<&'a str>) -> Option<&'a str> {
        if value.is_none() {
            let pointer = self.pointer.clone();
            self.diagnostics.error(&pointer, format!("`{key}` is missing"));
        }
        value
    }

    fn url(&mut self, text: Option<&str>) -> Option<Url> {
        let text = self.required("url", text)?;
        // A reference that is left as written has no address yet.
        if text.contains("${") {
            return Url::parse("http://127.0.0.1/").ok();
        }
        web_address(text, "with its path").map_err(|message| self.error("url", message)).ok()
    }

    /// Like `url`, but reports plain HTTP to a host that is not loopback: the address is a secret,
    /// or a key is sent to it.
    fn secret_url(&mut self, text: Option<&str>) -> Option<Url> {
        let url = self.url(text)?;
        if is_exposed(&url) {
            self.error("url", "a secret would be sent over plain HTTP to a host that is not loopback: use https://");
        }
        Some(url)
    }
}

fn is_loopback(url: &Url) -> bool {
    let plain = Url::parse(&format!("http://{}/", url.host_str().unwrap_or_default()));
    plain.is_ok_and(|plain| !is_exposed(&plain))
}

/// The ping of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The name of the destination.
    pub to: String,
    /// Time between two pings.
    pub every: Duration,
}

/// The shortest time between two pings.
const LEAST_EVERY: Duration = Duration::from_secs(10);

impl Heartbeat {
    pub(crate) fn from_raw(
        raw: Option<&RawHeartbeat>,
        destinations: &BTreeMap<String, Destination>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Self> {
        let raw = raw?;
        let to = raw.to.clone()?;
        match destinations.get(&to) {
            Some(Destination::Ping { .. }) => {}
            Some(other) => {
                let message =
                    format!("`{to}` is a {}: name a destination of type ping", other.kind());
                diagnostics.error("/heartbeat/to", message);
            }
            None => unknown("/heartbeat/to", &to, destinations, diagnostics),
        }
        let every = match raw.every.as_deref().map(quantity::duration) {
            None => Duration::from_secs(60),
            Some(Ok(every)) if every >= LEAST_EVERY => every,
            Some(Ok(_)) => {
                diagnostics.error("/heartbeat/every", "`every` must be at least 10s");
                LEAST_EVERY
            }
            Some(Err(message)) => {
                diagnostics.error("/heartbeat/every", message);
                LEAST_EVERY
            }
        };
        Some(Self { to, every })
    }
}

/// Reports a destination that config.yaml does not have, or that has errors.
fn unknown(
    pointer: &str,
    to: &str,
    destinations: &BTreeMap<String, Destination>,
    diagnostics: &mut Diagnostics,
) {
    let message = format!("unknown destination `{to}`: add it to `notifications` in config.yaml");
    let mut error = Diagnostic::new(pointer, message);
    if let Some(near) = nearest(to, destinations.keys().map(String::as_str)) {
        error = error.with_hint(format!("did you mean `{near}`?"));
    }
    diagnostics.errors.push(error);
}

/// Checks `notify` of config.yaml: who is told of the daemon itself.
pub(crate) fn daemon_rules(
    raw: &RawSettings,
    destinations: &BTreeMap<String, Destination>,
    diagnostics: &mut Diagnostics,
) -> Vec<DaemonRule> {
    let mut rules = Vec::new();
    for (at, raw) in raw.notify.iter().flatten().enumerate() {
        let here = format!("/notify/{at}");
        let Some(to) = raw.to.clone() else { continue };
        match destinations.get(&to) {
            None => unknown(&format!("{here}/to"), &to, destinations, diagnostics),
            Some(Destination::Ping { .. }) => {
                let message = "a ping tells nothing of the daemon here: use `heartbeat`";
                diagnostics.error(&format!("{here}/to"), message);
            }
            Some(_) => {}
        }
        let Some(words) = &raw.on else {
            diagnostics.error(
                &here,
                "`on` is missing: list the events, such as [unavailable, degraded, recovered]",
            );
            continue;
        };
        let mut on = Vec::new();
        for (nth, word) in words.iter().enumerate() {
            let pointer = format!("{here}/on/{nth}");
            match DaemonEvent::ALL.iter().find(|event| event.as_str() == word) {
                Some(event) => on.push(*event),
                None => {
                    let message =
                        format!("unknown event `{word}`: use unavailable, degraded or recovered");
                    diagnostics.error(&pointer, message);
                }
            }
        }
        if on == [DaemonEvent::Recovered] {
            let message = "`recovered` is sent only after `unavailable` or `degraded`: list one of them as well";
            diagnostics.error(&format!("{here}/on"), message);
        }
        rules.push(DaemonRule { to, on });
    }
    rules
}

/// Checks `notify`: whom to tell which events. `destinations` is `None` if config.yaml cannot be read.
pub(crate) fn notice_rules(
    raw: &[RawNotify],
    pointer: &str,
    destinations: Option<&BTreeMap<String, Destination>>,
    diagnostics: &mut Diagnostics,
) -> Vec<NoticeRule> {
    let mut rules = Vec::new();
    let mut named = BTreeSet::new();
    for (at, raw) in raw.iter().enumerate() {
        let here = format!("{pointer}/{at}");
        let Some(to) = raw.to.as_deref() else { continue };
        let destination = destinations.and_then(|known| known.get(to));
        if let (Some(known), None) = (destinations, destination) {
            unknown(&format!("{here}/to"), to, known, diagnostics);
        }
        if !named.insert(to) {
            diagnostics.error(
                &format!("{here}/to"),
                format!("duplicate destination `{to}`: list its events in one entry"),
            );
        }
        let is_ping = matches!(destination, Some(Destination::Ping { .. }));
        let on = match (&raw.on, is_ping) {
            (None, true) => NoticeEvents::EachRun,
            (Some(_), true) => {
                let message = "a ping is sent at the start, the success and the failure of each run: leave `on` out";
                diagnostics.error(&format!("{here}/on"), message);
                continue;
            }
            (None, false) => {
                if destination.is_some() {
                    diagnostics.error(
                        &here,
                        "`on` is missing: list the events, such as [failed, recovered]",
                    );
                }
                continue;
            }
            (Some(words), false) => {
                let mut events = Vec::new();
                for (nth, word) in words.iter().enumerate() {
                    match NoticeEvent::parse(word) {
                        Some(event) => events.push(event),
                        None => {
                            let known = NoticeEvent::WORDS.join(", ");
                            let message =
                                format!("unknown event `{word}`: use {known} or status:VALUE");
                            diagnostics.error(&format!("{here}/on/{nth}"), message);
                        }
                    }
                }
                let is_state = |event: &NoticeEvent| {
                    matches!(event, NoticeEvent::Failed | NoticeEvent::Status(_))
                };
                if words.is_empty() {
                    diagnostics.error(
                        &format!("{here}/on"),
                        "`on` lists no event, so nothing would be sent",
                    );
                } else if events.contains(&NoticeEvent::Recovered) && !events.iter().any(is_state) {
                    let message = "`recovered` is sent only after `failed` or `status:VALUE`: list one of them as well";
                    diagnostics.error(&format!("{here}/on"), message);
                }
                NoticeEvents::Listed(events)
            }
        };
        rules.push(NoticeRule { to: to.to_owned(), on, knows_outage: false });
    }
    rules
}
