//! Sends a message to a destination: Slack, a webhook, e-mail, PagerDuty or a dead man's switch.
//!
//! Texts of a message come from models and tools. Each sender writes them as text of its format: JSON
//! strings, Slack's markup escaped, header fields of one line. A destination cannot hold a run up, and a
//! redirect is a failure: the secret of an address goes only to the configured host.

use std::collections::BTreeSet;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message as Mail};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use sha2::Sha256;
use url::Url;

use crate::config::Destination;
use crate::domain::Message;
use crate::provider::HttpClients;
use crate::text::escape::one_line;
use crate::text::truncate::shorten;

/// Timeout of one delivery.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Limit of the characters of a summary for PagerDuty, which takes 1,024.
const SUMMARY_CHARACTERS: usize = 1000;

/// Limit of the characters of a subject.
const SUBJECT_CHARACTERS: usize = 200;

/// Why a destination did not take a message, without a secret of the destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryError {
    pub reason: String,
    /// Whether the destination would refuse the same message again.
    pub is_permanent: bool,
}

impl DeliveryError {
    fn passing(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_permanent: false }
    }
}

/// The delivery of one message.
#[derive(Debug)]
pub struct Delivery<'a> {
    pub message: &'a Message,
    /// Identifies the message for receivers that drop repeated ones.
    pub key: String,
    /// The name of this host.
    pub host: &'a str,
    /// The recipients whose e-mail was accepted or refused for good.
    pub done: &'a mut BTreeSet<String>,
    /// Why recipients were refused for good, in all attempts.
    pub refused: &'a mut Vec<String>,
}

impl Delivery<'_> {
    /// Sends the message.
    ///
    /// *Errors*: [`DeliveryError`]. *Cancel*: the
    /// destination may have taken it.
    pub async fn send(
        &mut self,
        destination: &Destination,
        clients: &HttpClients,
    ) -> Result<(), DeliveryError> {
        let sent = async {
            match destination {
                Destination::Slack { url } => {
                    let text = format!("{}\n{}", self.message.summary, self.message.command);
                    let body = json!({"text": slack_text(&text), "mrkdwn": false});
                    deliver(self.post(url, clients, &body)?).await
                }
                Destination::Webhook { url, headers, secret } => {
                    self.webhook(url, headers, secret.as_deref(), clients).await
                }
                Destination::PagerDuty { url, routing_key } => {
                    let body = self.incident(routing_key);
                    deliver(self.post(url, clients, &body)?).await
                }
                Destination::Ping { url } => {
                    let url = ping_address(url, &self.message.event);
                    let client = clients
                        .get(url.as_str())
                        .map_err(|error| DeliveryError::passing(error.message))?;
                    deliver(client.get(url)).await
                }
                Destination::Email { smtp, from, to } => self.mail(smtp, from, to).await,
            }
        };
        match tokio::time::timeout(TIMEOUT, sent).await {
            Ok(sent) => sent,
            Err(_) => {
                Err(DeliveryError::passing(format!("no answer within {} s", TIMEOUT.as_secs())))
            }
        }
    }

    fn post(
        &self,
        url: &Url,
        clients: &HttpClients,
        body: &Value,
    ) -> Result<RequestBuilder, DeliveryError> {
        let client =
            clients.get(url.as_str()).map_err(|error| DeliveryError::passing(error.message))?;
        Ok(client.post(url.clone()).json(body))
    }

    async fn webhook(
        &self,
        url: &Url,
        headers: &[(String, String)],
        secret: Option<&str>,
        clients: &HttpClients,
    ) -> Result<(), DeliveryError> {
        let Message { event, job, run_id, outcome, verdict, summary, at, .. } = self.message;
        let body = json!({
            "event": event, "job": job, "run_id": run_id, "outcome": outcome, "verdict": verdict,
            "summary": summary, "url": null, "at": at,
        });
        let body = body.to_string();
        let client =
            clients.get(url.as_str()).map_err(|error| DeliveryError::passing(error.message))?;
        let mut request = client
            .post(url.clone())
            .header("Content-Type", "application/json")
            .header("Idempotency-Key", &self.key);
        if let Some(secret) = secret {
            let signed_at = at.timestamp().to_string();
            let signature = signature(secret, &signed_at, &body).map_err(DeliveryError::passing)?;
            request = request.header("Dutyd-Signature", format!("t={signed_at},v1={signature}"));
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        deliver(request.body(body)).await
    }

    /// Returns an event of the events API. The states of a job, of a model or of the daemon share one
    /// incident, which its recovery resolves.
    fn incident(&self, routing_key: &str) -> Value {
        let Message { event, job, model, run_id, summary, command, at, .. } = self.message;
        let is_state = matches!(event.as_str(), "failed" | "degraded" | "unavailable")
            || event.starts_with("status:");
        let incident = match (job, model) {
            (Some(job), _) => format!("dutyd/{}/{job}", self.host),
            // The name of a job has no space.
            (None, Some(model)) => format!("dutyd/{}/model {model}", self.host),
            (None, None) => format!("dutyd/{}", self.host),
        };
        if event == "recovered" {
            return json!({"routing_key": routing_key, "event_action": "resolve", "dedup_key": incident});
        }
        // Another event is an incident of its own.
        let key = if is_state { incident } else { format!("{incident}/{}", self.key) };
        json!({
            "routing_key": routing_key, "event_action": "trigger", "dedup_key": key,
            "payload": {
                "summary": shorten(summary, SUMMARY_CHARACTERS), "source": self.host, "component": job,
                "severity": if is_state { "critical" } else { "info" }, "timestamp": at,
                "custom_details": {"command": command, "run_id": run_id},
            },
        })
    }

    /// Sends one e-mail per recipient, so that a recipient that is refused does not cost the others
    /// theirs.
    async fn mail(&mut self, smtp: &str, from: &str, to: &[String]) -> Result<(), DeliveryError> {
        let shown = |error: &dyn std::fmt::Display| one_line(&error.to_string());
        let passing = |error: &dyn std::fmt::Display| DeliveryError::passing(shown(error));
        let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(smtp)
            .map_err(|error| passing(&error))?
            .timeout(Some(TIMEOUT))
            .build();
        let from: Mailbox = from.parse().map_err(|error| passing(&error))?;
        let Message { summary, command, at, event, job, .. } = self.message;
        let subject =
            shorten(&one_line(&format!("[dutyd {}] {summary}", self.host)), SUBJECT_CHARACTERS);
        let job = job.as_ref().map(|job| format!("Job:   {job}\n")).unwrap_or_default();
        let body = format!(
            "{summary}\n\n{job}Event: {event}\nTime:  {}\nHost:  {}\n\nMore:  {command}\n",
            at.format("%Y-%m-%d %H:%M:%S UTC"),
            self.host,
        );
        let mut failure = None;
        for recipient in to {
            if self.done.contains(recipient) {
                continue;
            }
            let mail = Mail::builder()
                .from(from.clone())
                .to(recipient.parse().map_err(|error| passing(&error))?)
                .subject(subject.clone())
                .message_id(Some(format!("<{}@{}>", self.key, self.host)))
                .header(ContentType::TEXT_PLAIN)
                .body(body.clone())
                .map_err(|error| passing(&error))?;
            match transport.send(mail).await {
                Ok(_) => _ = self.done.insert(recipient.clone()),
                Err(error) if error.is_permanent() => {
                    self.refused.push(format!("{recipient} was refused: {}", shown(&error)));
                    self.done.insert(recipient.clone());
                }
                Err(error) => failure = Some(passing(&error)),
            }
        }
        failure.map_or(Ok(()), Err)
    }
}

/// Sends a request; each status but 2xx is a failure.
async fn deliver(request: RequestBuilder) -> Result<(), DeliveryError> {
    // The address may be a secret.
    let response = request
        .send()
        .await
        .map_err(|error| DeliveryError::passing(causes(&error.without_url()).join(": ")))?;
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    // The body is not quoted: servers repeat the address or the headers of a request in it.
    Err(DeliveryError {
        reason: format!("HTTP {}", status.as_u16()),
        is_permanent: matches!(status.as_u16(), 400 | 405 | 406 | 411 | 413 | 415 | 422),
    })
}

/// Returns the texts of an error and its causes.
fn causes(error: &dyn std::error::Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        texts.push(cause.to_string());
        next = cause.source();
    }
    texts
}

/// Returns the HMAC-SHA256 of `TIME.BODY` in hex.
fn signature(secret: &str, time: &str, body: &str) -> Result<String, String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .map_err(|error| format!("the secret cannot be a key: {error}"))?;
    mac.update(format!("{time}.{body}").as_bytes());
    Ok(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Escapes what Slack reads as markup, such as `<!channel>`.
///
/// *Source*: Slack, "Formatting text for app surfaces", read 2026-11-26.
fn slack_text(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the address to ping: with `/start` or `/fail` appended to its path, as the servers of dead
/// man's switches expect.
fn ping_address(url: &Url, event: &str) -> Url {
    let word = match event {
        "started" => "start",
        "failed" => "fail",
        _ => return url.clone(),
    };
    let mut url = url.clone();
    let path = format!("{}/{word}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(event: &str) -> Message {
        Message {
            model: None,
            event: event.to_owned(),
            job: Some("web".into()),
            run_id: Some("r1".into()),
            outcome: None,
            verdict: None,
            summary: "web failed: <!channel> & \"x\"".into(),
            command: "dutyd show r1".into(),
            at: chrono::DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
        }
    }

    fn incident(event: &str) -> Value {
        let (message, mut done) = (message(event), BTreeSet::new());
        let key = "k".to_owned();
        let mut refused = Vec::new();
        let delivery = Delivery {
            message: &message,
            key,
            host: "web1",
            done: &mut done,
            refused: &mut refused,
        };
        delivery.incident("K")
    }

    #[test]
    fn one_incident_per_job_is_resolved_on_recovery() {
        let (failed, critical) = (incident("failed"), incident("status:critical"));
        let recovered = incident("recovered");
        assert_eq!(failed["dedup_key"], "dutyd/web1/web");
        assert_eq!(failed["dedup_key"], critical["dedup_key"]);
        assert_eq!(failed["dedup_key"], recovered["dedup_key"]);
        assert_eq!(
            (&failed["event_action"], &recovered["event_action"]),
            (&json!("trigger"), &json!("resolve"))
        );
        let planned = incident("planned");
        assert_ne!(planned["dedup_key"], failed["dedup_key"]);
        assert_eq!(planned["payload"]["severity"], "info");
    }

    #[test]
    fn markup_of_slack_is_text() {
        assert_eq!(
            slack_text("<!channel> & <http://x|y>"),
            "&lt;!channel&gt; &amp; &lt;http://x|y&gt;"
        );
    }

    /// The expected value is what `openssl dgst -sha256 -hmac key` prints for `1800000000.{}`.
    #[test]
    fn a_body_is_signed_with_its_time() {
        let expected = "7321475872b03ff21bdc2dfd86ea2d99ec29c479fbe4a77aa6acf4509505493f";
        assert_eq!(signature("key", "1800000000", "{}").unwrap(), expected);
    }

    #[test]
    fn the_address_of_a_ping_says_what_happened() {
        let url = Url::parse("https://hc.example/ping/abc?x=1").unwrap();
        assert_eq!(ping_address(&url, "started").as_str(), "https://hc.example/ping/abc/start?x=1");
        assert_eq!(ping_address(&url, "failed").as_str(), "https://hc.example/ping/abc/fail?x=1");
        assert_eq!(ping_address(&url, "succeeded").as_str(), url.as_str());
    }
}
