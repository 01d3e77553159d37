//! From the calls of an answer to what is done about each: lookup, validate, gate.
//!
//! Every call gets a plan and so its one result, in its place, whatever the others get (POL-9).

use super::machine::Rules;
use super::tool::{PreparedCall, Toolbox};
use crate::config::{Autonomy, Mode, Policy};
use crate::domain::{
    Arguments, CallError, CallId, Category, DecisionKind, ErrorKind, Event, FinishReason, PlanRead,
    PlanStep, PolicyDecision, ToolCall,
};
use crate::gate::{CallFacts, Spent, decide};
use crate::text::escape::one_line;

/// A call and what is done about it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCall {
    /// The call.
    pub call_id: CallId,
    /// The tool's own name, or what the model wrote where there is no such tool.
    pub name: String,
    /// The name as the model wrote it.
    pub shown_as: String,
    /// Run it, or answer it.
    pub work: Work,
}

/// What is done about a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// It is run.
    Run {
        /// The category that was judged.
        category: Category,
        /// What is run.
        prepared: PreparedCall,
    },
    /// It is run if a person says so.
    Ask {
        /// The category that was judged.
        category: Category,
        /// What would be run.
        prepared: PreparedCall,
        /// Why it is asked.
        reason: String,
        /// What it would be as a step of a plan, if nobody answers.
        step: u64,
        /// The reads that the model has seen.
        rests_on: Vec<CallId>,
    },
    /// It becomes a step of a change plan.
    Plan {
        /// Its number.
        step: u64,
        /// The category that was judged.
        category: Category,
        /// What would be run.
        prepared: PreparedCall,
        /// The reads that the model has seen.
        rests_on: Vec<CallId>,
    },
    /// It is answered with this.
    Reject(CallError),
}

/// What a run in plan mode would change, so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Changes {
    /// The steps.
    pub steps: Vec<PlanStep>,
    /// The reads before them.
    pub reads: Vec<PlanRead>,
}

/// Plans the calls of one answer; returns the plans and the gate's decisions.
pub(super) fn plan_calls(
    calls: &[ToolCall],
    finish_reason: FinishReason,
    rules: &Rules,
    toolbox: &Toolbox,
    spent: &Spent,
    changes: &Changes,
) -> (Vec<PlannedCall>, Vec<Event>) {
    let mut spent = spent.clone();
    let mut decisions = Vec::new();
    // Numbers are never used twice: a step that came to nothing leaves a gap.
    let mut steps = changes.steps.last().map_or(0, |step| step.step);
    let plans = calls
        .iter()
        .enumerate()
        .map(|(at, call)| {
            let most = rules.limits.max_tool_calls_per_turn;
            let work = if at >= most {
                Work::Reject(CallError::new(
                    ErrorKind::Limit,
                    format!("Only {most} calls of one response are run (max_tool_calls_per_turn), and this was number {}. Call it again.", at + 1),
                ))
            } else {
                plan_one(call, finish_reason, rules, toolbox, &spent, &mut decisions).unwrap_or_else(Work::Reject)
            };
            let rests_on = || changes.reads.iter().map(|read| read.call_id.clone()).collect();
            let work = match work {
                Work::Ask { category, prepared, .. } if rules.mode == Mode::Plan => {
                    // Applying the plan is the person's yes.
                    steps += 1;
                    Work::Plan { step: steps, category, prepared, rests_on: rests_on() }
                }
                Work::Ask { category, prepared, reason, .. } => {
                    steps += 1;
                    Work::Ask { category, prepared, reason, step: steps, rests_on: rests_on() }
                }
                Work::Run { category, prepared }
                    if rules.mode == Mode::Plan && category != Category::Read =>
                {
                    steps += 1;
                    Work::Plan { step: steps, category, prepared, rests_on: rests_on() }
                }
                other => other,
            };
            if let Work::Run { prepared, .. }
            | Work::Plan { prepared, .. }
            | Work::Ask { prepared, .. } = &work
            {
                // What earlier calls of the same answer will use up counts for the later ones.
                spent.count(&rules.gate, &prepared.resources, prepared.lines);
            }
            PlannedCall {
                call_id: call.call_id.clone(),
                name: toolbox.canonical(&call.name).to_owned(),
                shown_as: call.name.clone(),
                work,
            }
        })
        .collect();
    (plans, decisions)
}

/// Returns what is said of an admin call that is made, where the job is supervised.
pub(super) fn admin_warning(policy: &Policy, name: &str, category: Category) -> Option<Event> {
    let is_told = category == Category::Admin && policy.autonomy == Autonomy::Supervised;
    let message = format!("`{name}` is called with the rights of an administrator");
    is_told.then(|| Event::warning("admin_call", message))
}

fn plan_one(
    call: &ToolCall,
    finish_reason: FinishReason,
    rules: &Rules,
    toolbox: &Toolbox,
    spent: &Spent,
    decisions: &mut Vec<Event>,
) -> Result<Work, CallError> {
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
    match decision.kind {
        DecisionKind::Allow => Ok(Work::Run { category: decision.category, prepared }),
        DecisionKind::Ask => Ok(Work::Ask {
            category: decision.category,
            prepared,
            reason: decision.reason,
            step: 0,
            rests_on: Vec::new(),
        }),
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
