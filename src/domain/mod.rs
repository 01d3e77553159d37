//! The nouns: ids, categories, turns, calls, events and outcomes.
//!
//! Plain data without I/O, clock or async. Every name and shape here is a contract with readers of
//! transcripts. This module depends on no other part of the program.

mod binding;
mod call;
mod category;
mod dropped_parameter;
mod event;
mod hold;
mod ids;
mod notice;
mod origin;
mod outcome;
mod plan;
mod queued_text;
mod session_end;
mod session_start;
mod turn;

pub use binding::{Binding, SetBy, Variable};
pub use call::{Arguments, CallError, ErrorKind, ToolCall, Truncated};
pub use category::Category;
pub use dropped_parameter::DroppedParameter;
pub use event::{
    CallEnd, CallStart, DecisionKind, EstimatedTokens, Event, FIRST_PREV, FORMAT_VERSION,
    InputSource, Line, LiveEvent, PolicyDecision, PreflightItem,
};
pub use hold::{Hold, Outage};
pub use ids::{CallId, IdError, JobName, RunId, ToolName};
pub use notice::{
    Acknowledgement, DaemonEvent, DaemonRule, JobState, Message, NoticeEvent, NoticeEvents,
    NoticeRule, RunNotice, ToldState,
};
pub use origin::{Epoch, Origin, OriginFields, Person, RunRequest, SlotKey, SlotTime, Trigger};
pub use outcome::{Outcome, Stop, StopReason};
pub use plan::{KeptStep, Plan, PlanRead, PlanState, PlanStep};
pub use queued_text::{QueuedText, TextError, TextKind};
pub use session_end::SessionEnd;
pub use session_start::{Overrides, ProjectDocument, SandboxFacts, SessionStart};
pub use turn::{AssistantTurn, FinishReason, Image, ToolResult, Turn, Usage};
