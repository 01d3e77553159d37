//! Decides for each call of an answer what is done about it: finds the tool, validates the arguments, asks the gate.
//!
//! Every call gets one [`Dispatch`], and so its one result, in its place, whatever the others get (POL-9).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::rules::Rules;
use super::tool::{AgentTool, PreparedCall, Toolbox};
use crate::config::{Autonomy, Mode, Policy};
use crate::domain::{
    Arguments, CallError, CallId, Category, DecisionKind, ErrorKind, Event, FinishReason, Image,
    PlanRead, PlanStep, PolicyDecision, ToolCall,
};
use crate::gate::{CallFacts, Spent, decide};
use crate::text::escape::one_line;

/// A call and what is done about it.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name, or what the model wrote if the tool is unknown.
    pub name: String,
    /// The name as the model wrote it.
    pub shown_as: String,
    /// What is done.
    pub action: CallAction,
}

impl Dispatch {
    /// Returns the call that is made or could be; `None` for one that is rejected.
    #[must_use]
    pub fn accepted(&self) -> Option<&AcceptedCall> {
        match &self.action {
            CallAction::Run(call)
            | CallAction::Ask { call, .. }
            | CallAction::Propose { call, .. } => Some(call),
            CallAction::Reject(_) => None,
        }
    }
}

/// What is done about a call.
#[derive(Debug, Clone)]
pub enum CallAction {
    /// The tool runs.
    Run(AcceptedCall),
    /// The tool runs if a person consents. If nobody answers, the call can become a step of a change plan.
    Ask {
        /// What would run.
        call: AcceptedCall,
        /// Why a person is asked.
        reason: String,
        /// Where the call would stand in a change plan.
        position: StepPosition,
    },
    /// The call becomes a step of a change plan.
    Propose {
        /// What would run.
        call: AcceptedCall,
        /// Where the call stands in the change plan.
        position: StepPosition,
    },
    /// The model gets this error.
    Reject(CallError),
}

/// A call that was validated and judged, with the tool that makes it.
#[derive(Clone)]
pub struct AcceptedCall {
    /// The tool.
    pub tool: Arc<dyn AgentTool>,
    /// The category that the gate gave the call.
    pub category: Category,
    /// What runs.
    pub prepared: PreparedCall,
}

impl fmt::Debug for AcceptedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptedCall")
            .field("tool", &self.tool.definition().name)
            .field("category", &self.category)
            .field("prepared", &self.prepared)
            .finish()
    }
}

/// Where a call stands in a change plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPosition {
    /// The number of the step, from 1.
    pub step: u64,
    /// The reads that the model has seen before it.
    pub rests_on: Vec<CallId>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallOutcome {
    /// The call.
    pub call_id: CallId,
    /// The name as the model wrote it.
    pub name: String,
    /// The model's view.
    pub content: String,
    /// Pictures that belong to it.
    pub images: Vec<Image>,
    /// How it failed, if it did.
    pub error_kind: Option<ErrorKind>,
    /// The files that it changed.
    pub modified: Vec<PathBuf>,
    /// Lines of them that went and lines that came.
    pub lines_changed: u64,
    /// What the call was for a plan.
    pub planned: Planned,
}

/// What a call was for a plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Planned {
    /// Nothing.
    #[default]
    Nothing,
    /// A read that later steps rest on.
    Read(PlanRead),
    /// Something was changed: what was read before may be otherwise now.
    Changed,
    /// A step.
    Step(Box<PlanStep>),
}

/// What a run in plan mode would change, so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// The steps.
    pub steps: Vec<PlanStep>,
    /// The reads before them.
    pub reads: Vec<PlanRead>,
}

/// Dispatches the calls of one answer. Also returns the gate's decisions, as events.
pub(super) fn dispatch_calls(
    calls: &[ToolCall],
    finish_reason: FinishReason,
    rules: &Rules,
    toolbox: &Toolbox,
    spent: &Spent,
    changes: &Changes,
) -> (Vec<Dispatch>, Vec<Event>) {
    let mut spent = spent.clone();
    let mut decisions = Vec::new();
    // Numbers are never used twice: a step that came to nothing leaves a gap.
    let mut steps = changes.steps.last().map_or(0, |step| step.step);
    let most = rules.limits.max_tool_calls_per_turn;
    let dispatches = calls
        .iter()
        .enumerate()
        .map(|(at, call)| {
            let decided = if at < most {
                decide_one(call, finish_reason, rules, toolbox, &spent, &mut decisions)
            } else {
                Err(CallError::new(
                    ErrorKind::Limit,
                    format!("Only {most} calls of one response are run (max_tool_calls_per_turn), and this was number {}. Call it again.", at + 1),
                ))
            };
            let mut position = || {
                steps += 1;
                let rests_on = changes.reads.iter().map(|read| read.call_id.clone()).collect();
                StepPosition { step: steps, rests_on }
            };
            let action = match decided {
                Err(error) => CallAction::Reject(error),
                // Applying the plan is the person's yes.
                Ok((call, reason))
                    if rules.mode == Mode::Plan
                        && (reason.is_some() || call.category != Category::Read) =>
                {
                    CallAction::Propose { call, position: position() }
                }
                Ok((call, Some(reason))) => {
                    CallAction::Ask { call, reason, position: position() }
                }
                Ok((call, None)) => CallAction::Run(call),
            };
            let dispatch = Dispatch {
                call_id: call.call_id.clone(),
                name: toolbox.canonical(&call.name).to_owned(),
                shown_as: call.name.clone(),
                action,
            };
            if let Some(call) = dispatch.accepted() {
                // What earlier calls of the same answer will use up counts for the later ones.
                spent.count(&rules.gate, &call.prepared.resources, call.prepared.lines);
            }
            dispatch
        })
        .collect();
    (dispatches, decisions)
}

/// Returns what is said of an admin call that is made, where the job is supervised.
pub(super) fn admin_warning(policy: &Policy, name: &str, category: Category) -> Option<Event> {
    let is_told = category == Category::Admin && policy.autonomy == Autonomy::Supervised;
    let message = format!("`{name}` is called with the rights of an administrator");
    is_told.then(|| Event::warning("admin_call", message))
}

/// Returns a call that may be made, with the reason if a person is to be asked first.
///
/// *Errors*: why it may not, for the model.
fn decide_one(
    call: &ToolCall,
    finish_reason: FinishReason,
    rules: &Rules,
    toolbox: &Toolbox,
    spent: &Spent,
    decisions: &mut Vec<Event>,
) -> Result<(AcceptedCall, Option<String>), CallError> {
    let arguments = match &call.arguments {
        Arguments::Parsed(arguments) => arguments,
        Arguments::Invalid { message, .. } => {
            let advice = match finish_reason {
                FinishReason::Length => {
                    "The answer was cut by the token limit in the middle of this call, so it was not run. Send it again, shorter"
                }
                _ => {
                    "Nothing was run. Send the call again with arguments that are one valid JSON object"
                }
            };
            return Err(CallError::new(
                ErrorKind::InvalidArguments,
                format!("The arguments are not valid JSON: {message}. {advice}."),
            ));
        }
    };
    let tool = toolbox.find(&call.name).ok_or_else(|| {
        let names: Vec<&str> = toolbox.offered().iter().map(|tool| tool.name.as_str()).collect();
        let known = if names.is_empty() {
            "There are none".to_owned()
        } else {
            format!("The tools are {}", names.join(", "))
        };
        let asked: String = one_line(&call.name).chars().take(80).collect();
        CallError::new(ErrorKind::UnknownTool, format!("There is no tool `{asked}`. {known}."))
    })?;
    let arguments = toolbox.own_arguments(&call.name, arguments);
    let prepared = tool.prepare(&arguments).map_err(|error| CallError {
        message: toolbox.in_shown_words(&call.name, &error.message),
        ..error
    })?;
    let name = toolbox.canonical(&call.name);
    let facts = CallFacts {
        tool: name,
        category: tool.category(),
        destructive_when: tool.destructive_when(),
        resources: &prepared.resources,
        lines: prepared.lines,
        spent,
    };
    let decision = decide(&rules.gate, facts, &prepared.arguments);
    decisions.push(Event::PolicyDecision(PolicyDecision {
        call_id: call.call_id.clone(),
        name: name.to_owned(),
        category: decision.category,
        decision: decision.kind,
        rule: decision.rule.to_owned(),
        reason: decision.reason.clone(),
    }));
    if decision.kind == DecisionKind::Allow {
        decisions.extend(admin_warning(&rules.gate.policy, name, decision.category));
    }
    let accepted = AcceptedCall { tool: tool.clone(), category: decision.category, prepared };
    match decision.kind {
        DecisionKind::Allow => Ok((accepted, None)),
        DecisionKind::Ask => Ok((accepted, Some(decision.reason))),
        DecisionKind::Deny => Err(CallError::new(
            ErrorKind::Denied,
            format!(
                "Refused by the rule `{}`: {} (category {}). {}",
                decision.rule,
                toolbox.in_shown_words(&call.name, &decision.reason),
                decision.category,
                match decision.rule {
                    "rate" => "Do something else first.",
                    _ =>
                        "Nobody is here to allow it: work without this call, or say in the answer that it was needed.",
                }
            ),
        )),
    }
}
