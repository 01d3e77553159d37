//! Reads everything that decides what happens to an open run next: its record, its rows in the ledger,
//! its configuration. Each record is read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::{RecoveryEnd, RecoveryError};
use crate::config::{Config, FileSet, RecordedFiles, SecretsMode, Trust, load};
use crate::domain::{JobName, RunId, SessionStart, SlotKey};
use crate::process::{HostWork, HostWorkError};
use crate::run::{BrokenRecord, HistoryFold, Host, RecordRead, RunHistory};
use crate::store::{
    GivenUp, LedgerReader, OpenSlot, RecordEnd, RecordFacts, RunDir, TranscriptExtent, parse_line,
    verify_each,
};

/// What is left of a run on disk.
#[derive(Debug)]
pub(super) enum Record {
    /// The run has no directory.
    Absent,
    /// The directory has no whole line of a transcript.
    Empty {
        /// Whether the directory has what a run creates after its first line.
        has_outputs: bool,
    },
    /// Every line verifies and can be read.
    Whole {
        history: Box<RunHistory>,
        /// The last line.
        end: RecordEnd,
    },
    Broken(BrokenRecord),
}

/// The configuration with which a run began.
#[derive(Debug)]
pub(super) enum RecordedConfig {
    /// The verdict does not depend on it.
    NotNeeded,
    Loaded(Arc<Config>),
    /// It is gone or cannot be loaded, for this reason.
    Unloadable(String),
}

/// What is known about a run that is not on disk.
#[derive(Debug, Default)]
pub(super) struct KnownFacts {
    /// When the task of the run ended, or when this daemon started if the run is older.
    pub(super) since: Option<DateTime<Utc>>,
    /// How the run ends; `None` if it may continue.
    pub(super) end: Option<RecoveryEnd>,
    /// Whether a process of the run is still alive.
    pub(super) is_alive: bool,
}

/// Everything that decides what happens to an open run next. The caller holds its lock.
#[derive(Debug)]
pub(super) struct Evidence {
    pub(super) run_id: RunId,
    pub(super) record: Record,
    /// Bytes of a torn last line. They are cut off already, unless the record has no other line.
    pub(super) torn_bytes: u64,
    /// Whether the run has a row in the queue. The row goes after the first line of the run is on disk.
    pub(super) is_queued: bool,
    /// The slot that waits for the run.
    pub(super) slot: Option<OpenSlot>,
    /// Whether the slot of the first line names the run and has a final state.
    pub(super) is_slot_decided: bool,
    /// Why the run is over although its record has no end.
    pub(super) given_up: Option<GivenUp>,
    /// Whether a person may have cancelled the run, and the cancellation is lost.
    pub(super) are_cancellations_lost: bool,
    pub(super) times: DaemonTimes,
    pub(super) config: RecordedConfig,
    pub(super) known: KnownFacts,
}

/// When daemons ran, according to the ledger. At the start, the newest of them is the previous daemon;
/// in a retry, it is this one.
#[derive(Debug, Clone, Default)]
pub(super) struct DaemonTimes {
    pub(super) last_seen: Option<DateTime<Utc>>,
    pub(super) started: Option<DateTime<Utc>>,
    /// The downtime before `started`. Also the earlier ones, if a run could not be recovered at a later
    /// start.
    pub(super) downtimes: Vec<(DateTime<Utc>, DateTime<Utc>)>,
}

impl DaemonTimes {
    /// *Errors*: SQLite's.
    fn read(reader: &LedgerReader<'_>) -> rusqlite::Result<Self> {
        let time = |name| -> rusqlite::Result<_> {
            Ok(reader.meta(name)?.and_then(DateTime::from_timestamp_millis))
        };
        let (last_seen, started) = (time("last_seen")?, time("started")?);
        Ok(Self { last_seen, started, downtimes: reader.downtimes()? })
    }
}

/// Reads the evidence about an open run. Cuts off a torn last line.
///
/// *Errors*: a part cannot be read; a later attempt may succeed.
pub(super) async fn gather(
    host: &Host,
    run_id: &RunId,
    known: KnownFacts,
) -> Result<Evidence, RecoveryError> {
    let run = host.state.find_run(run_id);
    let (record, torn_bytes) = read_record(run.as_ref())?;
    let (id, slot) = (run_id.clone(), slot_of(&record));
    let ledger = host.ledger.get().await?;
    let evidence = ledger.read(move |reader| {
        Ok(Evidence {
            is_queued: reader.is_queued(id.as_str())?,
            slot: reader.open_slot_of(&id)?,
            is_slot_decided: match &slot {
                Some(slot) => reader.is_decided(&id, slot)?,
                None => false,
            },
            given_up: reader.given_up(id.as_str())?,
            are_cancellations_lost: reader.are_cancellations_lost()?,
            times: DaemonTimes::read(reader)?,
            run_id: id,
            record,
            torn_bytes,
            config: RecordedConfig::NotNeeded,
            known,
        })
    });
    Ok(evidence.await?)
}

impl Evidence {
    /// Tells whether the run has a line of a transcript.
    pub(super) fn has_record(&self) -> bool {
        matches!(self.record, Record::Whole { .. } | Record::Broken(_))
    }
}

/// Verifies and reads the record of an open run in one pass; returns the number of bytes that it cut
/// off.
fn read_record(run: Option<&RunDir>) -> Result<(Record, u64), RecoveryError> {
    let Some(run) = run else { return Ok((Record::Absent, 0)) };
    let extent = match TranscriptExtent::measure(&run.transcript()) {
        Ok(extent) => extent,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => TranscriptExtent::default(),
        Err(error) => return Err(error.into()),
    };
    if extent.whole_bytes == 0 {
        return Ok((Record::Empty { has_outputs: run.outputs().exists() }, extent.torn_bytes));
    }
    extent.cut_torn(&run.transcript())?;
    let facts = RecordFacts { is_open: true, ..RecordFacts::default() };
    let (mut fold, mut unreadable) = (HistoryFold::default(), None);
    let (report, hash) = verify_each(run, &facts, |bytes| {
        if unreadable.is_none() {
            match parse_line(bytes) {
                Ok(line) => fold.push(line),
                Err(why) => unreadable = Some(why),
            }
        }
    })?;
    let lines = report.lines;
    let why = unreadable.or_else(|| report.reason.filter(|_| !report.ok));
    let record = match (why, fold) {
        (Some(why), fold) => Record::Broken(fold.broken(why)),
        (None, fold) => match fold.end() {
            RecordRead::Whole(history) => Record::Whole { history, end: RecordEnd { lines, hash } },
            RecordRead::Broken(broken) => Record::Broken(broken),
            RecordRead::Empty => Record::Empty { has_outputs: run.outputs().exists() },
        },
    };
    Ok((record, extent.torn_bytes))
}

/// Returns the slot of a run according to its first line; `None` if it has none.
fn slot_of(record: &Record) -> Option<SlotKey> {
    let Record::Whole { history, .. } = record else { return None };
    let start = &history.start;
    Some(SlotKey { job: JobName::parse(&start.job).ok()?, time: start.origin.slot? })
}

/// The configurations that one recovery has loaded, by digest. Most runs began with the same one.
#[derive(Default)]
pub(super) struct RecordedConfigs(BTreeMap<String, Arc<Config>>);

impl RecordedConfigs {
    /// Returns the configuration with which a run began. One that cannot be loaded is not kept, because
    /// the next attempt may succeed.
    ///
    /// *Errors*: a file system does not answer.
    pub(super) async fn get(
        &mut self,
        host: &Host,
        start: &SessionStart,
    ) -> Result<RecordedConfig, HostWorkError> {
        if let Some(config) = self.0.get(&start.config_digest) {
            return Ok(RecordedConfig::Loaded(config.clone()));
        }
        let (of_host, digest) = (host.clone(), start.config_digest.clone());
        let loaded = HostWork::of(&start.job).run(move || config_of(&of_host, &digest)).await?;
        Ok(match loaded {
            Ok(config) => {
                self.0.insert(start.config_digest.clone(), config.clone());
                RecordedConfig::Loaded(config)
            }
            Err(why) => RecordedConfig::Unloadable(why),
        })
    }
}

/// Loads the recorded configuration with this digest.
fn config_of(host: &Host, digest: &str) -> Result<Arc<Config>, String> {
    let kept = host.state.read_config(digest).map_err(|error| cannot_load(&error))?;
    let files: RecordedFiles =
        serde_json::from_slice(&kept).map_err(|error| cannot_load(&error))?;
    let set = FileSet::of_record(Arc::new(files));
    let (trust, secrets) = (Trust::Given, SecretsMode::Resolve);
    let loaded = load(&set, &host.environment, trust, secrets, 0, host.clock.now());
    let config = loaded.config.ok_or_else(|| cannot_load(&loaded.report.summary()))?;
    if config.digest == digest {
        Ok(Arc::new(config))
    } else {
        Err(cannot_load(&"the recorded files do not match their digest"))
    }
}

fn cannot_load(why: &dyn std::fmt::Display) -> String {
    format!("its configuration cannot be loaded: {why}")
}
