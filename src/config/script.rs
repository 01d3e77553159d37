//! The script of a scripted model: the text and calls of each response.

use serde_json::{Map, Value};

use super::raw::{RawCalls, RawScript};
use crate::argv::Diagnostics;

/// A call in a script.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptCall {
    /// The name of the tool.
    pub tool: String,
    /// The arguments. One that is a string is a minijinja template over `vars`, `job` and `results`
    /// (the outputs so far); strings inside lists and mappings are not templates.
    pub arguments: Map<String, Value>,
}

/// One response of the scripted model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ScriptStep {
    /// The calls of the response; may be empty if `say` is set.
    pub calls: Vec<ScriptCall>,
    /// The text of the response, a minijinja template.
    pub say: Option<String>,
}

/// A checked script.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    /// The steps, at least one.
    pub steps: Vec<ScriptStep>,
}

impl Script {
    /// Checks `raw`; reports invalid templates and empty steps.
    pub(crate) fn from_raw(raw: &RawScript, diagnostics: &mut Diagnostics) -> Self {
        let mut steps = Vec::new();
        let environment = minijinja::Environment::new();
        for (at, step) in raw.steps.iter().enumerate() {
            let mut check = |pointer: String, text: &str| {
                if let Err(error) = environment.template_from_str(text) {
                    diagnostics.error(&pointer, format!("invalid template: {error}"));
                }
            };
            let calls: Vec<_> = match &step.call {
                None => Vec::new(),
                Some(RawCalls::One(call)) => vec![(format!("/steps/{at}/call/args"), call)],
                Some(RawCalls::Many(calls)) => calls
                    .iter()
                    .enumerate()
                    .map(|(nth, call)| (format!("/steps/{at}/call/{nth}/args"), call))
                    .collect(),
            };
            if let Some(text) = &step.say {
                check(format!("/steps/{at}/say"), text);
            }
            for (pointer, call) in &calls {
                for (name, value) in call.args.iter().flatten() {
                    if let Some(text) = value.as_str() {
                        check(format!("{pointer}/{}", crate::argv::pointer_segment(name)), text);
                    }
                }
            }
            if calls.is_empty() && step.say.is_none() {
                diagnostics
                    .error(&format!("/steps/{at}"), "a step needs `call:` or `say:`".to_owned());
            }
            steps.push(ScriptStep {
                calls: calls
                    .into_iter()
                    .map(|(_, call)| ScriptCall {
                        tool: call.tool.clone(),
                        arguments: call.args.clone().unwrap_or_default(),
                    })
                    .collect(),
                say: step.say.clone(),
            });
        }
        Self { steps }
    }
}
