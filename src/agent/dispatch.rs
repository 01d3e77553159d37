//! Routes each call of a reply: finds the tool, validates the arguments, asks the gate.
//!
//! Every call gets exactly one [`Dispatch`], and therefore exactly one result, in call order.
//! Rejecting one call does not change what happens to the others (POL-9).

use std::collections::BTreeMap;
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

/// A call with the action that the session takes for it.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// The id of the call.
    pub call_id: CallId,
    /// The tool's own name, or what the model wrote if the tool is unknown.
    pub name: String,
    /// The name as the model wrote it.
    pub shown_as: String,
    /// The action that the session takes.
    pub action: CallAction,
}

impl Dispatch {
    /// Returns the call unless it was rejected.
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

/// The action that the session takes for a call.
#[derive(Debug, Clone)]
pub enum CallAction {
    Run(AcceptedCall),
    /// The tool runs if a person approves the call. If the request expires, the approval settings
    /// decide whether the call becomes a step of a change plan.
    Ask {
        /// The call that would run.
        call: AcceptedCall,
        /// Why the gate asks for approval.
        reason: String,
        /// The position that the call would take in a change plan.
        position: StepPosition,
    },
    /// The call becomes a step of a change plan.
    Propose {
        /// The call that would run.
        call: AcceptedCall,
        /// The position of the call in the change plan.
        position: StepPosition,
    },
    /// The model gets this error.
    Reject(CallError),
}

/// A call that was validated and not denied by the gate, with the tool that runs it.
#[derive(Clone)]
pub struct AcceptedCall {
    /// The tool that runs the call.
    pub tool: Arc<dyn AgentTool>,
    /// The category that the gate assigned to the call.
    pub category: Category,
    /// The validated and rendered call.
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

/// The position of a call in a change plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepPosition {
    /// The number of the step, from 1.
    pub step: u64,
    /// The ids of the reads in [`Changes::reads`] when the model requested this step.
    pub rests_on: Vec<CallId>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallOutcome {
    /// The id of the call.
    pub call_id: CallId,
    /// The name as the model wrote it.
    pub name: String,
    /// The content as the model sees it.
    pub content: String,
    /// Images that belong to the content.
    pub images: Vec<Image>,
    /// The kind of failure; `None` on success.
    pub error_kind: Option<ErrorKind>,
    /// The files that the call changed, or would change as a step of a plan.
    pub modified: Vec<PathBuf>,
    /// Lines removed plus lines added in these files.
    pub lines_changed: u64,
    /// The role of the call in a change plan.
    pub planned: Planned,
}

/// The role of a call in a change plan.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Planned {
    /// The call does not affect the plan.
    #[default]
    Nothing,
    /// A read that later steps may rest on.
    Read(PlanRead),
    /// A call that may have changed something, so that earlier reads may be stale.
    Changed,
    /// A step of the plan.
    Step(Box<PlanStep>),
}

/// The change plan of a run so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// The planned steps, in order.
    pub steps: Vec<PlanStep>,
    /// The reads since the last call that may have changed something. Later steps rest on them.
    pub reads: Vec<PlanRead>,
}

/// How a call was handled before the daemon died, so that it is not dispatched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Whether the gate accepted the call.
    pub is_accepted: bool,
    /// Whether the call took a step number of the change plan.
    pub has_number: bool,
}

/// Dispatches the calls of one reply, except those in `settled`. Also returns the gate's decisions
/// as events.
pub(super) fn dispatch_calls(
    calls: &[ToolCall],
    settled: &BTreeMap<CallId, Settled>,
    finish_reason: FinishReason,
    rules: &Rules,
    toolbox: &Toolbox,
    spent: &Spent,
    changes: &Changes,
) -> (Vec<Dispatch>, Vec<Event>) {
    let mut spent = spent.clone();
    let mut decisions = Vec::new();
    // Continue after the last recorded step. A call that does not become a step leaves its number
    // unused.
    let mut steps = changes.steps.last().map_or(0, |step| step.step);
    let most = rules.limits.max_tool_calls_per_turn;
    let dispatches = calls
        .iter()
        .enumerate()
        .filter_map(|(place, call)| {
            if let Some(settled) = settled.get(&call.call_id) {
                steps += u64::from(settled.has_number);
                if settled.is_accepted {
                    charge(call, rules, toolbox, &mut spent);
                }
                return None;
            }
            let decided = if place < most {
                decide_one(call, finish_reason, rules, toolbox, &spent, &mut decisions)
            } else {
                Err(CallError::new(
                    ErrorKind::Limit,
                    format!("Only {most} calls of one response are run (max_tool_calls_per_turn), and this was call {}. Send it again.", place + 1),
                ))
            };
            let mut position = || {
                steps += 1;
                let rests_on = changes.reads.iter().map(|read| read.call_id.clone()).collect();
                StepPosition { step: steps, rests_on }
            };
            let action = match decided {
                Err(error) => CallAction::Reject(error),
                // In plan mode, a person approves the call later, by applying the plan.
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
                // Charge this call to the budgets before the later calls of the reply are checked.
                spent.count(&rules.gate, &call.prepared.resources, call.prepared.lines);
            }
            Some(dispatch)
        })
        .collect();
    (dispatches, decisions)
}

/// Charges a call that was accepted before the daemon died to the budgets.
fn charge(call: &ToolCall, rules: &Rules, toolbox: &Toolbox, spent: &mut Spent) {
    let prepared = match (&call.arguments, toolbox.find(&call.name)) {
        (Arguments::Parsed(arguments), Some(tool)) => {
            tool.prepare(&toolbox.own_arguments(&call.name, arguments)).ok()
        }
        _ => None,
    };
    match prepared {
        Some(prepared) => spent.count(&rules.gate, &prepared.resources, prepared.lines),
        None => spent.count_call(),
    }
}

/// The code of the warning about an admin call.
pub const ADMIN_CALL: &str = "admin_call";

/// Returns a warning if the call is an admin call and the job is supervised.
pub(super) fn admin_warning(policy: &Policy, name: &str, category: Category) -> Option<Event> {
    let is_reported = category == Category::Admin && policy.autonomy == Autonomy::Supervised;
    let message = format!("`{name}` runs as a call of category admin");
    is_reported.then(|| Event::warning(ADMIN_CALL, message))
}

/// Returns the accepted call, with a reason if a person must approve it first.
///
/// *Errors*: why the call is rejected, for the model.
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
                    "The token limit cut the response in the middle of this call, so it was not run. Send it again, shorter"
                }
                _ => {
                    "The call was not run. Send it again with one valid JSON object as its arguments"
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
            "No tools are available".to_owned()
        } else {
            format!("Available tools: {}", names.join(", "))
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
                        "It cannot be approved now: continue without this call, or state in the final answer that it was needed.",
                }
            ),
        )),
    }
}
