//! Why a run began: the trigger, the slot, the attempt, the request and the person.
//!
//! One type, from the row of the ledger to the first line of the transcript. Code that queues, retries
//! or resumes a run passes on the whole `Origin`.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::JobName;

/// What made a run begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// The slot came due.
    Schedule,
    /// A person started the run.
    Manual,
    /// The slot came due more than 10 s before its run could start, for example because the daemon was
    /// down.
    Catchup,
    /// A person requested the run for an earlier due time.
    Backfill,
    /// An earlier attempt to run the slot or the request failed.
    Retry,
    /// A person applied a change plan.
    Apply,
}

impl Trigger {
    /// Returns the word used in files.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Manual => "manual",
            Self::Catchup => "catchup",
            Self::Backfill => "backfill",
            Self::Retry => "retry",
            Self::Apply => "apply",
        }
    }
}

/// A user of this host, as the kernel identifies the peer of a socket or the owner of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Person {
    pub uid: u32,
    /// The user name; `#UID` if the user database has no entry.
    pub user: String,
}

/// The number of an epoch, from 0: how often the clock had been set back by more than 4 s.
///
/// *Source*: `docs/design/architecture.md`, "Slots".
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
pub struct Epoch(i64);

impl Epoch {
    /// The epoch of a state directory whose clock was never set back.
    pub const FIRST: Self = Self(0);

    /// Returns the epoch with this number, as files store it.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Returns the number of the epoch, as files store it.
    #[must_use]
    pub const fn number(self) -> i64 {
        self.0
    }

    /// Returns the epoch that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a slot of a known job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotTime {
    pub epoch: Epoch,
    pub due_at: DateTime<Utc>,
}

/// Identifies a slot of any job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    pub job: JobName,
    pub time: SlotTime,
}

impl SlotKey {
    /// Returns the key of the slot of `job` that was due at `due_at` in `epoch`.
    #[must_use]
    pub fn new(job: JobName, epoch: Epoch, due_at: DateTime<Utc>) -> Self {
        Self { job, time: SlotTime { epoch, due_at } }
    }
}

/// The parts of a run that a person chose.
///
/// *Shape*: `{"vars":{"host":"db1"},"prompt":null,"plan":true}`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunRequest {
    /// Replacements for entries of the job's `vars`.
    pub vars: BTreeMap<String, String>,
    /// Replaces the prompt of the job. Without the attribute, serde reads a missing prompt as null.
    #[serde(deserialize_with = "Option::deserialize")]
    pub prompt: Option<String>,
    /// Plan the changes instead of making them.
    pub plan: bool,
    /// Replaces the model of the job, by its name in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Replaces the reasoning effort of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// Replaces `limits.max_iterations` of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// The parts of a newer version. A run that has any neither continues nor is repeated under this
    /// one.
    #[serde(flatten)]
    #[schemars(skip)]
    pub newer: Map<String, Value>,
}

/// Why a run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OriginFields", into = "OriginFields")]
pub struct Origin {
    pub trigger: Trigger,
    /// The slot that the run is for.
    pub slot: Option<SlotTime>,
    /// The number of this attempt to run the slot or the request, from 1.
    pub attempt: u32,
    /// The parts of the run that a person chose, or a mode that its later attempts keep. `None` if
    /// there are none, and in a record of an earlier version.
    pub request: Option<RunRequest>,
    /// The person who started the run; `None` if the schedule did, or if the person is unknown.
    pub by: Option<Person>,
}

impl Origin {
    /// Returns the origin of the first run of a request.
    #[must_use]
    pub fn manual(request: RunRequest, by: Option<Person>) -> Self {
        Self { trigger: Trigger::Manual, slot: None, attempt: 1, request: Some(request), by }
    }

    /// Returns the origin of the first run of a slot.
    #[must_use]
    pub fn of_slot(trigger: Trigger, slot: SlotTime, by: Option<Person>) -> Self {
        Self { trigger, slot: Some(slot), attempt: 1, request: None, by }
    }

    /// Returns the origin of the attempt after this one.
    #[must_use]
    pub fn next_attempt(&self) -> Self {
        Self { trigger: Trigger::Retry, attempt: self.attempt + 1, ..self.clone() }
    }

    /// Returns the origin of a run that plans: its next attempt plans too, whatever the mode of the job
    /// is by then.
    #[must_use]
    pub fn planning(self) -> Self {
        let request = RunRequest { plan: true, ..self.request.unwrap_or_default() };
        Self { request: Some(request), ..self }
    }

    /// Returns a part of the request that this version does not know.
    #[must_use]
    pub fn unknown_part(&self) -> Option<&str> {
        self.request.as_ref()?.newer.keys().next().map(String::as_str)
    }

    /// Returns the due time of the slot.
    #[must_use]
    pub fn due_at(&self) -> Option<DateTime<Utc>> {
        self.slot.map(|slot| slot.due_at)
    }
}

/// The fields of an [`Origin`] in `session_start`.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct OriginFields {
    /// Why the run began.
    trigger: Trigger,
    /// The due time of the slot that started the run, if any.
    scheduled_for: Option<DateTime<Utc>>,
    /// The epoch of the slot that started the run, if any.
    #[serde(default)]
    epoch: Option<Epoch>,
    /// The number of this attempt to run the slot or the request, from 1.
    attempt: u32,
    /// What a person chose; null for the schedule, and in transcripts of earlier versions.
    #[serde(default)]
    request: Option<RunRequest>,
    /// The person who started the run; null for the schedule.
    #[serde(default)]
    by: Option<Person>,
}

impl From<OriginFields> for Origin {
    fn from(fields: OriginFields) -> Self {
        let OriginFields { trigger, scheduled_for, epoch, attempt, request, by } = fields;
        // A version without epochs wrote only slots of the first epoch.
        let epoch = epoch.unwrap_or(Epoch::FIRST);
        let slot = scheduled_for.map(|due_at| SlotTime { epoch, due_at });
        Self { trigger, slot, attempt, request, by }
    }
}

impl From<Origin> for OriginFields {
    fn from(origin: Origin) -> Self {
        let Origin { trigger, slot, attempt, request, by } = origin;
        let (scheduled_for, epoch) = slot.map(|slot| (slot.due_at, slot.epoch)).unzip();
        Self { trigger, scheduled_for, epoch, attempt, request, by }
    }
}

impl JsonSchema for Origin {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        OriginFields::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        OriginFields::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_origin_is_read_as_it_was_written() {
        let by = Some(Person { uid: 7, user: "ann".to_owned() });
        let slot = SlotTime { epoch: Epoch::new(2), due_at: DateTime::UNIX_EPOCH };
        let request = RunRequest { plan: true, ..RunRequest::default() };
        let origins = [
            Origin::manual(request, by.clone()),
            Origin::of_slot(Trigger::Backfill, slot, by),
            Origin::of_slot(Trigger::Schedule, slot, None).next_attempt(),
        ];
        for origin in origins {
            let written = serde_json::to_value(&origin).unwrap();
            assert_eq!(serde_json::from_value::<Origin>(written).unwrap(), origin);
        }
    }

    #[test]
    fn an_origin_of_an_earlier_version_is_in_the_first_epoch() {
        let read = |value: Value| serde_json::from_value::<Origin>(value).unwrap();
        let old =
            json!({"trigger": "schedule", "scheduled_for": "2025-11-01T03:00:00Z", "attempt": 2});
        let origin = read(old);
        assert_eq!(origin.slot.map(|slot| slot.epoch), Some(Epoch::FIRST));
        assert_eq!((origin.attempt, origin.request, origin.by), (2, None, None));
        assert_eq!(
            read(json!({"trigger": "manual", "scheduled_for": null, "attempt": 1})).slot,
            None
        );
    }
}
