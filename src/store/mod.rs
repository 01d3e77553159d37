//! Persistent state: transcripts, their output files, run locks, the index and the ledger.
//!
//! The record of a run is its transcript with the output files beside it. The index is derived from
//! the transcripts, and the ledger is authoritative for what no transcript can tell. Files are
//! created private (SEC-3). This folder does not know who reads them.

mod again;
mod budgets;
mod cells;
mod claim;
mod db;
mod decided;
mod expired_runs;
#[cfg(feature = "faults")]
pub(crate) mod faults;
mod files;
mod given_up;
mod guards;
mod holds;
mod identity;
mod index;
mod ledger;
mod lessons;
mod lock;
mod losses;
mod lost;
mod lost_runs;
mod measure;
mod message_rows;
mod messages;
mod pauses;
mod plans;
mod queue;
mod queued_texts;
mod reader;
mod remove;
mod request;
mod reserve;
mod restore;
mod retention;
mod run_dir;
mod run_summary;
mod shared;
mod slot_rows;
mod tables;
mod text_rows;
mod texts;
mod transcript;
mod unreadable;
mod verify;

pub use again::{Again, SpanPlace};
pub use budgets::{DayBudget, Shortage};
pub use claim::{Claim, EndedRuns, Slot, SlotState, Span, StateWord};
pub use db::DbError;
pub use files::{append_private, create_private_dir, write_atomic};
pub use guards::{LedgerFound, Restrictions};
pub use identity::Displaced;
pub use index::{Index, RunFilter, all_runs};
pub use ledger::{Ledger, LedgerReader};
pub use lessons::{LessonRow, ModelKey, SaidRow};
pub use lock::{DaemonAddress, LockHolder, StateLock};
pub use lost_runs::{UnlockedRuns, first_id};
pub use messages::{Undelivered, WaitingMessage};
pub use pauses::{Pause, RunEnd};
pub use plans::{Plans, UnreadablePlan};
pub use queue::{EndFacts, GivenUp};
pub use queued_texts::KeptTexts;
pub use reader::{
    RawLine, ReadEvent, ReadLine, ReadProblem, known, parse_line, raw_lines, read_lines,
};
pub use retention::{PruneError, Pruned, Retention, prune};
pub use run_dir::{RunDir, RunLock, StateDir};
pub use run_summary::{QueuedRun, RunState, RunSummary, SummaryFold, moment};
pub use shared::{SharedIndex, SharedLedger};
pub use slot_rows::{AdoptedSchedule, OpenSlot, Period, SlotRow};
pub use texts::Recalled;
pub use transcript::{
    AppendError, Appended, Transcript, TranscriptExtent, TranscriptFacts, last_line,
};
pub use unreadable::Unreadable;
pub use verify::{
    HeadState, RecordEnd, RecordFacts, VerifyAllReport, VerifyReport, missing_record, verify,
    verify_each,
};
