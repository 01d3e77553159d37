//! What is kept: transcripts, their outputs, markers of open runs, the index and the ledger.
//!
//! The transcript is the record and everything else is derived from it or stands beside it. Files are private from birth (SEC-3). Who reads
//! them is not known here.

mod db;
mod files;
mod index;
mod ledger;
mod plans;
mod reader;
mod run_dir;
mod run_row;
mod transcript;

pub use db::DbError;
pub use files::{append_private, create_private_dir, write_atomic};
pub use index::{Index, RunFilter};
pub use ledger::{Ledger, LedgerReader, Period, Slot, SlotRow, SlotState};
pub use reader::{ReadLine, ReadProblem, VerifyReport, raw_lines, read_lines, verify};
pub use run_dir::{OpenMark, RunDir, StateDir};
pub use run_row::RunRow;
pub use transcript::{Appended, Transcript, TranscriptFacts, repair_tail};
