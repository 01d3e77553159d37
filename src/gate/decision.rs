//! The rules, in their order.
//!
//! *Source*: `design/gate.md`, "Order of the rules": 1 deny of the job, 2 effective category, 3 autonomy, 5 category and arguments, 8 budgets.
//! The others come with the tools that need them.

use serde_json::{Map, Value};

use crate::call::ArgumentConditions;
use crate::config::{Autonomy, Listed, Policy, ReadPolicy};
use crate::domain::{Category, DecisionKind};

/// What is known of a tool and of the run.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The tool.
    pub tool: &'a str,
    /// Its own category.
    pub category: Category,
    /// Any of these makes the call an admin call.
    pub destructive_when: &'a [ArgumentConditions],
    /// Calls that the run has made so far, and how many it may make.
    pub calls: (u64, u64),
}

/// What the gate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Yes or no.
    pub kind: DecisionKind,
    /// The rule that decided.
    pub rule: &'static str,
    /// The category that was judged.
    pub category: Category,
    /// A sentence for people and for the model.
    pub reason: String,
}

/// Decides a call of a scheduled run.
#[must_use]
pub fn decide(
    job: &str,
    policy: &Policy,
    facts: Facts<'_>,
    arguments: &Map<String, Value>,
) -> Decision {
    let tool = facts.tool;
    let category = effective_category(facts, arguments);
    let deny = |rule: &'static str, reason: String| Decision {
        kind: DecisionKind::Deny,
        rule,
        category,
        reason,
    };
    if policy.deny.contains(tool) {
        return deny("job_deny", format!("the job `{job}` denies `{tool}`"));
    }
    if policy.autonomy == Autonomy::ReadOnly && category != Category::Read {
        return deny(
            "autonomy",
            format!("the job `{job}` is read_only and this is a call of category {category}"),
        );
    }
    if let Err((rule, reason)) = category_rule(job, policy, tool, category, arguments) {
        return deny(rule, reason);
    }
    let (made, most) = facts.calls;
    if made >= most {
        return deny("budget", format!("the run has made {made} of {most} tool calls"));
    }
    Decision {
        kind: DecisionKind::Allow,
        rule: "allowed",
        category,
        reason: format!("the job `{job}` may use `{tool}` so"),
    }
}

/// Tells whether a run of this policy could ever use the tool, so that its model is shown it.
#[must_use]
pub fn is_visible(policy: &Policy, tool: &str, category: Category) -> bool {
    !policy.deny.contains(tool)
        && match category {
            Category::Read => match &policy.read {
                ReadPolicy::All => true,
                ReadPolicy::Only(names) => names.contains(tool),
            },
            _ if policy.autonomy == Autonomy::ReadOnly => false,
            Category::Write => is_listed(&policy.write, tool) || is_listed(&policy.admin, tool),
            Category::Admin => is_listed(&policy.admin, tool),
        }
}

fn is_listed(list: &[Listed], tool: &str) -> bool {
    list.iter().any(|entry| entry.tool.as_str() == tool)
}

fn effective_category(facts: Facts<'_>, arguments: &Map<String, Value>) -> Category {
    let destructive = facts
        .destructive_when
        .iter()
        .any(|conditions| conditions.first_mismatch(arguments).is_none());
    if destructive { Category::Admin } else { facts.category }
}

fn category_rule(
    job: &str,
    policy: &Policy,
    tool: &str,
    category: Category,
    arguments: &Map<String, Value>,
) -> Result<(), (&'static str, String)> {
    let list = match category {
        Category::Read => {
            return match &policy.read {
                ReadPolicy::Only(names) if !names.contains(tool) => Err((
                    "category",
                    format!("the read tool `{tool}` is not listed under `read` of the job `{job}`"),
                )),
                _ => Ok(()),
            };
        }
        Category::Write => &policy.write,
        Category::Admin => &policy.admin,
    };
    let mut entries = list.iter().filter(|entry| entry.tool.as_str() == tool).peekable();
    if entries.peek().is_none() {
        return Err((
            "category",
            format!(
                "this is a call of category {category}, and `{tool}` is not listed under `{category}` of the job `{job}`"
            ),
        ));
    }
    let mut mismatch = None;
    for entry in entries {
        match entry.args.as_ref().map(|conditions| conditions.first_mismatch(arguments)) {
            None | Some(None) => return Ok(()),
            Some(Some(name)) => mismatch = Some(name),
        }
    }
    let name = mismatch.unwrap_or_default();
    Err((
        "arguments",
        format!(
            "the job `{job}` lists `{tool}` only for certain arguments, and `{name}` does not match"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::call::{CommandLine, Declaration};
    use crate::domain::ToolName;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn conditions(value: Value) -> ArgumentConditions {
        let declaration = Declaration {
            args: vec!["--".into(), "{{x}}".into(), "{{n}}".into()],
            parameters: object(json!({"x": {"type": "string"}, "n": {"type": "integer"}})),
            ..Declaration::default()
        };
        ArgumentConditions::compile(
            &object(value),
            CommandLine::compile(&declaration).unwrap().parameters(),
        )
        .unwrap()
    }

    fn listed(names: &[&str]) -> Vec<Listed> {
        names
            .iter()
            .map(|name| Listed { tool: ToolName::parse(name).unwrap(), args: None })
            .collect()
    }

    fn policy() -> Policy {
        Policy {
            autonomy: Autonomy::Supervised,
            read: ReadPolicy::All,
            write: listed(&["scale"]),
            admin: listed(&["drain"]),
            deny: BTreeSet::new(),
        }
    }

    fn facts(tool: &str, category: Category) -> Facts<'_> {
        Facts { tool, category, destructive_when: &[], calls: (0, 10) }
    }

    #[track_caller]
    fn check(policy: &Policy, facts: Facts<'_>, arguments: Value, expected: (&str, Category)) {
        let decision = decide("j", policy, facts, &object(arguments));
        assert_eq!((decision.rule, decision.category), expected, "{decision:?}");
        assert_eq!(decision.kind == DecisionKind::Allow, decision.rule == "allowed");
    }

    // proves POL-1, POL-2
    #[test]
    fn what_is_not_listed_is_refused() {
        check(&policy(), facts("df", Category::Read), json!({}), ("allowed", Category::Read));
        check(&policy(), facts("scale", Category::Write), json!({}), ("allowed", Category::Write));
        check(&policy(), facts("apply", Category::Write), json!({}), ("category", Category::Write));
        check(&policy(), facts("drain", Category::Admin), json!({}), ("allowed", Category::Admin));
        check(
            &policy(),
            facts("reboot", Category::Admin),
            json!({}),
            ("category", Category::Admin),
        );
        let mut wild = policy();
        wild.admin = listed(&["admin", "all", "drai", "drain_all"]);
        check(&wild, facts("drain", Category::Admin), json!({}), ("category", Category::Admin));
        let mut some = policy();
        some.read = ReadPolicy::Only(["uptime".to_owned()].into());
        check(&some, facts("df", Category::Read), json!({}), ("category", Category::Read));
    }

    // proves POL-5
    #[test]
    fn the_first_rule_that_denies_decides() {
        let mut denied = policy();
        denied.deny = ["scale".to_owned(), "df".to_owned()].into();
        denied.autonomy = Autonomy::ReadOnly;
        check(&denied, facts("scale", Category::Write), json!({}), ("job_deny", Category::Write));
        check(&denied, facts("df", Category::Read), json!({}), ("job_deny", Category::Read));
        check(&denied, facts("drain", Category::Admin), json!({}), ("autonomy", Category::Admin));
        let spent = Facts { calls: (10, 10), ..facts("df", Category::Read) };
        check(&policy(), spent, json!({}), ("budget", Category::Read));
    }

    #[test]
    fn a_destructive_call_is_an_admin_call() {
        let destructive = [conditions(json!({"x": {"const": "namespaces"}}))];
        let facts = |tool| Facts { destructive_when: &destructive, ..facts(tool, Category::Write) };
        check(&policy(), facts("scale"), json!({"x": "pods"}), ("allowed", Category::Write));
        check(&policy(), facts("scale"), json!({"x": "namespaces"}), ("category", Category::Admin));
        check(&policy(), facts("drain"), json!({"x": "namespaces"}), ("allowed", Category::Admin));
        check(&policy(), facts("drain"), json!({"x": "pods"}), ("category", Category::Write));
    }

    #[test]
    fn a_tool_listed_for_some_arguments_is_refused_with_others() {
        let mut some = policy();
        some.write[0].args = Some(conditions(json!({"n": {"maximum": 10}})));
        check(
            &some,
            facts("scale", Category::Write),
            json!({"n": 10}),
            ("allowed", Category::Write),
        );
        check(
            &some,
            facts("scale", Category::Write),
            json!({"n": 11}),
            ("arguments", Category::Write),
        );
        check(&some, facts("scale", Category::Write), json!({}), ("arguments", Category::Write));
    }

    #[test]
    fn only_what_can_be_used_is_visible() {
        let visible = |tool, category| is_visible(&policy(), tool, category);
        assert!(
            visible("df", Category::Read)
                && visible("scale", Category::Write)
                && visible("drain", Category::Admin)
        );
        assert!(visible("drain", Category::Write), "it may be raised to admin");
        assert!(!visible("apply", Category::Write) && !visible("scale", Category::Admin));
    }
}
