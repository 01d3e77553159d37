//! The agent loop: a pure machine and the thin driver around it.
//!
//! [`Machine::step`] decides. [`Session`] records each decision, then carries it out through the
//! traits [`Model`], [`ToolRunner`] and [`EventSink`]. Nothing here touches a disk, a database, a
//! socket or a process; the host program supplies those. This module does not know about schedules.

mod approval;
mod counters;
mod dispatch;
mod executor;
mod inbox;
mod machine;
mod model;
mod prompt;
mod rebuild;
mod recorded;
mod repetition;
mod rules;
mod session;
mod shown;
mod sink;
mod stop;
mod tool;
mod untrusted;
mod verify;
mod wait;

pub use approval::{ApprovalAnswer, ApprovalRequest, Approver};
pub use dispatch::{
    ADMIN_CALL, AcceptedCall, CallAction, CallOutcome, Changes, Dispatch, Planned, Settled,
    StepPosition,
};
pub use executor::{CallExecutor, OpenCall};
pub use inbox::{GivenText, Inbox, InboxError, WaitingTexts};
pub use machine::{Action, End, Input, Machine, Step};
pub use model::{
    Claim, DeltaSink, ErrorClass, Model, ModelError, ModelReply, ModelRequest, RequestedCall,
};
pub use prompt::{GitFacts, PromptFacts, SystemPrompt, ToolFacts, configured_part, system_prompt};
pub use rebuild::{RebuildError, Rebuilt, Sources, rebuild};
pub use recorded::{RecordedStart, last_model};
pub use rules::{ModelFacts, Rules};
pub use session::{ModelInUse, Session, SessionParts, SessionResult};
pub use shown::{ShownAs, ToolDefinition};
pub use sink::{EventSink, RecordError, Unrecorded};
pub(crate) use stop::PERSON;
pub use stop::{StopSignal, outer_limit};
pub use tool::{
    AgentTool, CallContext, CallOutput, CallState, PreparedCall, ToolRunner, ToolSpec, Toolbox,
};
pub use untrusted::{Marker, unwrap as unmarked};
pub use verify::{Check, Verifier};
pub use wait::{HeardOfModels, ModelWait, ModelWaits};

#[cfg(test)]
pub(crate) use sink::testing::Record;
