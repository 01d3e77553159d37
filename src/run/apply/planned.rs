//! Compares a step of a plan with the call that would be made now, and restores the environment in
//! which the plan was made.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::agent::{CallState, PreparedCall};
use crate::config::Environment;
use crate::domain::{Binding, Plan, PlanStep, SetBy, Variable};

/// What the steps that were already made may have changed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// The files that they name.
    pub(super) files: BTreeSet<PathBuf>,
    /// Whether one of them may have written files that it does not name.
    pub(super) others: bool,
}

/// Returns what differs from the planned step; `None` if nothing does. The content of a file may
/// differ only if an earlier step names the file, or if the plan says that an earlier step may
/// create it.
pub(super) fn difference(
    step: &PlanStep,
    prepared: &PreparedCall,
    mut state: CallState,
    changed: &Changed,
) -> Option<String> {
    let may_be_new =
        |path: &&String| changed.others && step.binding.may_be_new.contains(path.as_str());
    for path in step.binding.files.keys().filter(may_be_new) {
        state.binding.files.insert(path.clone(), Binding::ABSENT.to_owned());
    }
    for path in &changed.files {
        let path = path.display().to_string();
        match step.binding.files.get(&path) {
            Some(planned) => drop(state.binding.files.insert(path, planned.clone())),
            None => drop(state.binding.files.remove(&path)),
        }
    }
    let (planned, found) = (&step.binding, &state.binding);
    if prepared.argv != step.argv {
        return Some("the program or one of its arguments".to_owned());
    }
    if let Some(name) = differing_variable(&planned.environment, &found.environment) {
        return Some(format!("the variable {name}"));
    }
    if planned.stdin != found.stdin {
        return Some("the standard input".to_owned());
    }
    let has_other_state =
        |(path, state): &(&String, &String)| planned.files.get(*path) != Some(*state);
    let is_gone = |path: &&String| !found.files.contains_key(*path);
    let file = found.files.iter().find(has_other_state).map(|(path, _)| path);
    if let Some(path) = file.or_else(|| planned.files.keys().find(is_gone)) {
        return Some(format!("the file {path}"));
    }
    (prepared.digest(&step.name, &state) != step.digest)
        .then(|| "the tool, its rights or a secret in its environment".to_owned())
}

fn differing_variable<'a>(planned: &'a [Variable], found: &'a [Variable]) -> Option<&'a str> {
    let mut differing = found
        .iter()
        .filter(|variable| !planned.contains(variable))
        .chain(planned.iter().filter(|variable| !found.contains(variable)));
    differing.next().map(|variable| variable.name.as_str())
}

/// Returns the environment in which the plan was made: an allowlisted variable has the value that
/// was shown. If the plan does not tell the value, because it may be a secret, the variable keeps
/// the value of this process, and the digest of the step covers it.
pub(super) fn planned_environment(
    now: &Environment,
    allowlist: &BTreeSet<String>,
    plan: &Plan,
) -> Environment {
    let of_host: Vec<&Variable> = plan
        .steps
        .iter()
        .flat_map(|kept| &kept.step.binding.environment)
        .filter(|variable| variable.set_by == SetBy::Host)
        .collect();
    if of_host.is_empty() {
        return now.clone();
    }
    // A step tells that a variable was absent only if it does not set it itself.
    let was_absent = |name: &String| {
        plan.steps.iter().map(|kept| &kept.step.binding.environment).any(|variables| {
            variables.iter().any(|variable| variable.set_by == SetBy::Host)
                && variables.iter().all(|variable| variable.name != *name)
        })
    };
    allowlist.iter().fold(now.clone(), |environment, name| {
        match of_host.iter().find(|variable| variable.name == *name) {
            Some(Variable { value: Some(value), .. }) => environment.with(name, Some(value)),
            Some(Variable { value: None, .. }) => environment,
            None if was_absent(name) => environment.with(name, None),
            None => environment,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::domain::{CallId, Category};

    fn call() -> PreparedCall {
        PreparedCall {
            arguments: Map::new(),
            argv: vec!["/bin/deploy".to_owned()],
            working_dir: "/".to_owned(),
            stdin: None,
            sandboxed: true,
            resources: Vec::new(),
            lines: 0,
        }
    }

    /// Returns the state of a call with two files, the value of a variable, and the rights.
    fn state(script: &str, target: &str, lang: &str, rights: &str) -> CallState {
        let files = [("/deploy.sh", script), ("/target", target)];
        let lang =
            Variable { name: "LANG".to_owned(), value: Some(lang.to_owned()), set_by: SetBy::Host };
        CallState {
            identity: rights.to_owned(),
            binding: Binding {
                environment: vec![lang],
                files: files.map(|(path, state)| (path.to_owned(), state.to_owned())).into(),
                ..Binding::default()
            },
        }
    }

    fn step(state: &CallState) -> PlanStep {
        let call = call();
        PlanStep {
            step: 2,
            call_id: CallId::parse("call-2").unwrap(),
            name: "deploy".to_owned(),
            category: Category::Write,
            digest: call.digest("deploy", state),
            argv: call.argv,
            arguments: call.arguments,
            working_dir: call.working_dir,
            binding: state.binding.clone(),
            dry_run_output: None,
            rests_on: Vec::new(),
            would_modify: Vec::new(),
            would_change_lines: 0,
        }
    }

    // proves POL-10, WEB-6
    #[test]
    fn only_the_content_of_a_file_that_an_earlier_step_writes_may_differ() {
        let planned = step(&state("script", "old", "C", "write"));
        let touched = Changed { files: ["/target".into()].into(), others: true };
        let compare =
            |now: CallState, changed: &Changed| difference(&planned, &call(), now, changed);
        let nothing = Changed::default();
        assert_eq!(compare(state("script", "old", "C", "write"), &nothing), None);
        assert_eq!(compare(state("script", "new", "C", "write"), &touched), None);
        for (now, touched, what) in [
            (state("script", "new", "C", "write"), &nothing, "the file /target"),
            (state("swapped", "new", "C", "write"), &touched, "the file /deploy.sh"),
            (state("script", "new", "de", "write"), &touched, "the variable LANG"),
            (
                state("script", "new", "C", "admin"),
                &touched,
                "the tool, its rights or a secret in its environment",
            ),
        ] {
            assert_eq!(compare(now, touched).as_deref(), Some(what));
        }
        let other = PreparedCall { argv: vec!["/bin/other".to_owned()], ..call() };
        let found = difference(&planned, &other, state("script", "new", "C", "write"), &touched);
        assert_eq!(found.as_deref(), Some("the program or one of its arguments"));
    }

    // proves POL-10, WEB-7
    #[test]
    fn a_file_may_be_created_while_applying_only_if_the_plan_says_so() {
        let absent = state("script", "absent", "C", "write");
        let mut told = step(&absent);
        told.binding.tell_new_files();
        assert_eq!(told.binding.unbound.len(), 1);
        let after = Changed { others: true, ..Changed::default() };
        let compare = |step: &PlanStep, changed: &Changed| {
            difference(step, &call(), state("script", "new", "C", "write"), changed)
        };
        assert_eq!(compare(&told, &after), None);
        let differs = Some("the file /target".to_owned());
        assert_eq!(compare(&told, &Changed::default()), differs);
        assert_eq!(compare(&step(&absent), &after), differs);
    }
}
