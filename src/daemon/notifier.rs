//! Delivers the messages of the ledger: one worker per destination that has messages, each in order.
//!
//! Nothing waits for it: a run or a slot leaves its messages in the ledger and goes on. A message stays
//! until its destination has taken it, or until delivery has been tried for a day.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::{Config, Destination};
use crate::domain::Message;
use crate::provider::HttpClients;
use crate::sinks::Delivery;
use crate::store::{Ledger, WaitingMessage};

/// The first pause between two attempts to deliver a message; each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause between two attempts to deliver a message.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The longest time since the last beat for which the daemon is pinged for.
const BEAT: Duration = Duration::from_secs(60);

/// How long the stop of the daemon waits for deliveries that are under way.
const GRACE: Duration = Duration::from_secs(5);

/// The number of attempts that each message gets, however old it is.
const LEAST_ATTEMPTS: u32 = 6;

/// How long delivery of a message is tried.
const TRIED_FOR: TimeDelta = TimeDelta::hours(24);

/// What the delivery needs. Clones share it.
#[derive(Clone)]
pub struct Notifier {
    pub ledger: Ledger,
    /// The configuration in effect, which has the destinations.
    pub config: watch::Receiver<Arc<Config>>,
    pub clients: HttpClients,
    pub clock: Arc<dyn Clock>,
    /// When the daemon last did all that was due.
    pub beat: watch::Receiver<Option<Instant>>,
    /// The name of this host.
    pub host: String,
}

impl Notifier {
    /// Delivers messages until `stop` is cancelled. What is not delivered then stays in the ledger.
    pub async fn run(self, stop: CancellationToken) {
        let heart = tokio::spawn(self.clone().beat(stop.clone()));
        let mut workers: JoinSet<String> = JoinSet::new();
        let mut busy: BTreeSet<String> = BTreeSet::new();
        loop {
            let mut is_read = true;
            match self.ledger.read(|reader| reader.waiting_destinations()).await {
                Ok(waiting) => {
                    for destination in waiting {
                        if busy.insert(destination.clone()) {
                            let (worker, stop) = (self.clone(), stop.clone());
                            workers.spawn(worker.deliver_to(destination, stop));
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "failed to read the messages that wait");
                    is_read = false;
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(FIRST_PAUSE), if !is_read => {}
                () = self.ledger.await_messages() => {}
                // A message may have been added after the worker looked for the last time.
                Some(ended) = workers.join_next(), if !workers.is_empty() => match ended {
                    Ok(destination) => _ = busy.remove(&destination),
                    Err(error) => {
                        tracing::error!(%error, "the delivery of messages panicked");
                        busy.clear();
                        workers.shutdown().await;
                    }
                },
            }
        }
        // A message that was sent and not recorded would be sent again.
        let ended = async { while workers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GRACE, ended).await;
        let _ = heart.await;
        workers.shutdown().await;
    }

    /// Pings the `heartbeat` of the configuration, as long as the daemon does what is due. A ping is not
    /// tried again: the next one follows soon.
    async fn beat(self, stop: CancellationToken) {
        let (mut config, mut beat) = (self.config.clone(), self.beat.clone());
        tokio::select! {
            () = stop.cancelled() => return,
            began = beat.wait_for(Option::is_some) => if began.is_err() { return },
        }
        loop {
            let settings = config.borrow_and_update().settings.clone();
            let every = settings.heartbeat.as_ref().map(|heartbeat| heartbeat.every);
            let target = settings.heartbeat.and_then(|heartbeat| {
                settings
                    .destinations
                    .get(&heartbeat.to)
                    .map(|target| (heartbeat.to, target.clone()))
            });
            let beats = self.beat.borrow().is_some_and(|beat| beat.elapsed() < BEAT);
            if let Some((to, target)) = target.filter(|_| beats) {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.ping(&to, &target) => {}
                }
            }
            let pause = async {
                match every {
                    Some(every) => tokio::time::sleep(every).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = pause => {}
                changed = config.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn ping(&self, to: &str, target: &Destination) {
        let message = Message {
            event: "alive".to_owned(),
            job: None,
            model: None,
            run_id: None,
            outcome: None,
            verdict: None,
            summary: "dutyd is alive".to_owned(),
            command: "dutyd status".to_owned(),
            at: self.clock.now(),
        };
        let (mut done, mut refused) = (BTreeSet::new(), Vec::new());
        let mut delivery = Delivery {
            message: &message,
            key: String::new(),
            host: &self.host,
            done: &mut done,
            refused: &mut refused,
        };
        if let Err(error) = delivery.send(target, &self.clients).await {
            tracing::warn!(destination = to, error = error.reason, "failed to ping");
        }
    }

    /// Delivers the messages for a destination, oldest first, until none waits or `stop` is cancelled.
    /// Returns its name.
    async fn deliver_to(self, destination: String, stop: CancellationToken) -> String {
        while !stop.is_cancelled() {
            let name = destination.clone();
            match self.ledger.read(move |reader| reader.next_message(&name)).await {
                Ok(Some(waiting)) => {
                    let id = waiting.id;
                    if let Some(end) = self.deliver(&destination, waiting, &stop).await {
                        self.record(&destination, id, end, &stop).await;
                    }
                }
                Ok(None) => return destination,
                Err(error) => {
                    tracing::error!(destination, %error, "failed to read a message that waits");
                    pause(FIRST_PAUSE, &stop).await;
                }
            }
        }
        destination
    }

    /// Records how the delivery of a message ended, until the ledger can be written or `stop` is
    /// cancelled. The message is not sent again meanwhile.
    async fn record(&self, destination: &str, id: i64, end: DeliveryEnd, stop: &CancellationToken) {
        let mut wait = FIRST_PAUSE;
        loop {
            let name = destination.to_owned();
            let recorded = match end.clone() {
                DeliveryEnd::Delivered => self.ledger.record_delivery(name, id).await,
                DeliveryEnd::GivenUp(reason) => {
                    self.ledger.give_up_message(name, id, reason, self.clock.now()).await
                }
            };
            match recorded {
                Ok(()) => return,
                Err(error) => {
                    tracing::error!(destination, %error, "failed to record the delivery of a message");
                }
            }
            if stop.is_cancelled() {
                return;
            }
            pause(wait, stop).await;
            wait = (wait * 2).min(LONGEST_PAUSE);
        }
    }

    /// Delivers one message, or gives it up: at once if the destination would refuse it again, else after
    /// [`TRIED_FOR`]. Once `stop` is cancelled, makes no further attempt and returns `None`.
    async fn deliver(
        &self,
        destination: &str,
        waiting: WaitingMessage,
        stop: &CancellationToken,
    ) -> Option<DeliveryEnd> {
        let WaitingMessage { id, created_at, message } = waiting;
        let give_up = |reason: String| {
            tracing::error!(destination, reason, "a message was not delivered");
            Some(DeliveryEnd::GivenUp(reason))
        };
        let message = match message {
            Ok(message) => message,
            Err(error) => return give_up(format!("the message cannot be read: {error}")),
        };
        let (mut wait, mut done, mut refused) = (FIRST_PAUSE, BTreeSet::new(), Vec::new());
        let (mut config, mut attempts) = (self.config.clone(), 0_u32);
        loop {
            let target = config.borrow_and_update().settings.destinations.get(destination).cloned();
            let mut delivery = Delivery {
                message: &message,
                key: format!("{}-{id}", created_at.timestamp_millis()),
                host: &self.host,
                done: &mut done,
                refused: &mut refused,
            };
            attempts += 1;
            let (error, is_permanent) = match &target {
                None => (
                    format!(
                        "unknown destination `{destination}`: add it to `notifications` in config.yaml"
                    ),
                    false,
                ),
                Some(target) => match delivery.send(target, &self.clients).await {
                    Err(error) => (error.reason, error.is_permanent),
                    Ok(()) if refused.is_empty() => {
                        let (event, job) = (&message.event, message.job.as_deref());
                        tracing::info!(destination, event, job, "message delivered");
                        return Some(DeliveryEnd::Delivered);
                    }
                    Ok(()) => return give_up(refused.join("; ")),
                },
            };
            // After a downtime, the network may come up later than the daemon.
            let is_too_old =
                self.clock.now() - created_at > TRIED_FOR && attempts >= LEAST_ATTEMPTS;
            if is_permanent || is_too_old {
                return give_up(error);
            }
            tracing::warn!(
                destination,
                event = message.event,
                error,
                pause_s = wait.as_secs(),
                "failed to deliver a message; dutyd tries again"
            );
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(wait) => wait = (wait * 2).min(LONGEST_PAUSE),
                // The destination may have another address now.
                changed = config.changed() => if changed.is_ok() { wait = FIRST_PAUSE } else {
                    return None;
                },
            }
        }
    }
}

/// How the delivery of a message ended.
#[derive(Debug, Clone)]
enum DeliveryEnd {
    Delivered,
    /// The destination will not get it, for this reason.
    GivenUp(String),
}

async fn pause(span: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = tokio::time::sleep(span) => {}
    }
}

/// Returns one sentence for each destination that did not get messages.
#[must_use]
pub fn undelivered_problems(undelivered: Vec<crate::store::Undelivered>) -> Vec<String> {
    let mut problems = BTreeMap::new();
    for of in undelivered {
        let count = of.count;
        let last = of.last_at.format("%Y-%m-%d %H:%M UTC");
        let problem = format!(
            "{count} message(s) to `{}` were not delivered, the last one at {last}: {}",
            of.destination, of.reason
        );
        problems.insert(of.destination, problem);
    }
    problems.into_values().collect()
}
