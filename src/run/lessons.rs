//! The refusals and answers of providers that the ledger keeps for this machine.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::host::Host;
use crate::agent::ModelError;
use crate::clock::Clock;
use crate::config::{Config, Remote};
use crate::provider::{Lesson, Lessons, Probe, RemoteModel};
use crate::store::{DbError, Ledger, LedgerReader, LessonRow, ModelKey, SaidRow, SharedLedger};
use crate::text::redact::Redactor;

/// The ledger's rows on models.
#[derive(Debug, Clone, Default)]
pub struct Learned {
    pub lessons: Vec<LessonRow>,
    pub said: Vec<SaidRow>,
}

impl Learned {
    /// Reads the ledger of this process.
    ///
    /// *Errors*: [`DbError`].
    pub async fn read(host: &Host) -> Result<Self, DbError> {
        host.ledger.get().await?.read(Self::of).await
    }

    /// Reads the ledger file of a state directory, whether or not a daemon is running; empty if there
    /// is no ledger yet. Blocks.
    ///
    /// *Errors*: [`DbError`].
    pub fn read_file(state: &Path) -> Result<Self, DbError> {
        Ok(Ledger::read_file(state, Self::of)?.unwrap_or_default())
    }

    fn of(reader: &LedgerReader<'_>) -> rusqlite::Result<Self> {
        Ok(Self { lessons: reader.lessons()?, said: reader.said_of_models()? })
    }

    /// Returns the lessons about a model with its present settings.
    pub fn lessons_of(&self, remote: &Remote) -> impl Iterator<Item = &LessonRow> {
        let key = key_of(remote);
        self.lessons.iter().filter(move |row| row.key == key)
    }

    /// Returns what the provider said of a model.
    #[must_use]
    pub fn said_of(&self, remote: &Remote) -> Option<&SaidRow> {
        let address = address_of(remote);
        self.said.iter().find(|row| row.address == address && row.model == remote.model)
    }
}

/// Returns the digest of the address of a model, which may contain a secret.
fn address_of(remote: &Remote) -> String {
    hex::encode(Sha256::digest(&remote.base_url))
}

/// Returns the key of a model. It changes with each setting that shapes a request.
fn key_of(remote: &Remote) -> ModelKey {
    let settings = json!([
        remote.format.as_str(),
        remote.stream,
        remote.max_output_tokens,
        remote.temperature,
        remote.reasoning_effort,
        remote.headers.keys().collect::<Vec<_>>(),
    ]);
    ModelKey {
        address: address_of(remote),
        model: remote.model.clone(),
        settings: hex::encode(Sha256::digest(settings.to_string())),
    }
}

/// Asks a provider what it says of a model.
///
/// *Errors*: as [`RemoteModel::probe`].
pub(super) async fn ask(
    config: &Config,
    remote: &Remote,
    host: &Host,
) -> Result<Probe, ModelError> {
    let redactor = Redactor::new(&config.secrets);
    let (clients, clock) = (host.clients.clone(), host.clock.clone());
    RemoteModel::new(remote.clone(), clients, clock, redactor).probe().await
}

/// Remembers what a provider said of a model.
///
/// *Errors*: [`DbError`].
pub(super) async fn remember(remote: &Remote, probe: &Probe, host: &Host) -> Result<(), DbError> {
    if *probe == Probe::default() || probe.is_known == Some(false) {
        // The answer before it may have said more.
        return Ok(());
    }
    let Ok(said) = serde_json::to_string(probe) else { return Ok(()) };
    let row = SaidRow {
        address: address_of(remote),
        model: remote.model.clone(),
        said,
        said_at: host.clock.now(),
    };
    host.ledger.get().await?.keep_said(row).await
}

/// Stores lessons in the ledger.
pub(super) struct LedgerLessons {
    ledger: SharedLedger,
    clock: Arc<dyn Clock>,
}

impl LedgerLessons {
    pub(super) fn of(host: &Host) -> Arc<Self> {
        Arc::new(Self { ledger: host.ledger.clone(), clock: host.clock.clone() })
    }
}

#[async_trait]
impl Lessons for LedgerLessons {
    async fn keep(&self, model: &Remote, lessons: Vec<Lesson>) {
        let key = key_of(model);
        let learned_at = self.clock.now();
        let rows = lessons.into_iter().map(|lesson| LessonRow {
            key: key.clone(),
            parameter: lesson.parameter,
            said: lesson.said,
            learned_at,
        });
        let rows = rows.collect();
        let kept = match self.ledger.get().await {
            Ok(ledger) => ledger.keep_lessons(rows).await,
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            tracing::warn!(%error, model = model.model, "failed to remember a refused parameter");
        }
    }
}
