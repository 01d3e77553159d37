//! The precheck of a job: a read call that decides, without a model, whether a run has anything to
//! do.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::JobChecker;
use crate::config::raw::{RawPrecheck, RawRunWhen, RawRunWhenWord};
use crate::domain::{Category, ToolName};
use crate::text::template::Template;

/// A call that decides whether a run has anything to do.
#[derive(Debug, Clone)]
pub struct Precheck {
    /// The declared read tool.
    pub tool: ToolName,
    arguments: BTreeMap<String, ArgumentTemplate>,
    pub run_when: RunWhen,
}

/// The condition under which the answer of a precheck makes the run continue.
#[derive(Debug, Clone)]
pub enum RunWhen {
    /// The exit code or the output differs from that in the last run that succeeded or was planned.
    Changed,
    /// The exit code is not 0.
    ExitNonzero,
    /// The output is not blank.
    Nonempty,
    /// The output contains a match.
    Matches(Regex),
}

/// An argument of a call that a job declares. Each text in it is a template.
#[derive(Debug, Clone)]
enum ArgumentTemplate {
    Text(Template),
    List(Vec<ArgumentTemplate>),
    Mapping(BTreeMap<String, ArgumentTemplate>),
    Other(Value),
}

impl Precheck {
    /// Returns the arguments of the call. `vars` holds the variables of the run.
    #[must_use]
    pub fn arguments(&self, vars: &BTreeMap<String, String>) -> Map<String, Value> {
        let rendered = self.arguments.iter().map(|(name, of)| (name.clone(), of.render(vars)));
        rendered.collect()
    }
}

impl ArgumentTemplate {
    /// Parses an argument. `pointer` is its place in the job.
    ///
    /// *Errors*: the place of a text that is not a template or that names an unknown variable, and
    /// what is wrong with it.
    fn parse(
        value: &Value,
        pointer: &str,
        vars: &BTreeMap<String, String>,
    ) -> Result<Self, (String, String)> {
        let failed = |message: String| (pointer.to_owned(), message);
        Ok(match value {
            Value::String(text) => {
                let template = Template::parse(text).map_err(|error| failed(error.to_string()))?;
                if let Some(name) = template.placeholders().find(|name| !vars.contains_key(*name)) {
                    return Err(failed(format!("`{{{{{name}}}}}` is not an entry of `vars`")));
                }
                Self::Text(template)
            }
            Value::Array(items) => {
                let items = items.iter().enumerate();
                let items =
                    items.map(|(at, item)| Self::parse(item, &format!("{pointer}/{at}"), vars));
                Self::List(items.collect::<Result<_, _>>()?)
            }
            Value::Object(entries) => Self::Mapping(mapping(entries, pointer, vars)?),
            other => Self::Other(other.clone()),
        })
    }

    fn render(&self, vars: &BTreeMap<String, String>) -> Value {
        match self {
            // Each name was found in `vars` when the configuration was loaded.
            Self::Text(template) => template
                .render(|name| vars.get(name).map(String::as_str))
                .map_or(Value::Null, Value::String),
            Self::List(items) => items.iter().map(|item| item.render(vars)).collect(),
            Self::Mapping(entries) => {
                entries.iter().map(|(name, of)| (name.clone(), of.render(vars))).collect()
            }
            Self::Other(value) => value.clone(),
        }
    }
}

fn mapping(
    entries: &Map<String, Value>,
    pointer: &str,
    vars: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, ArgumentTemplate>, (String, String)> {
    let parsed = entries.iter().map(|(name, value)| {
        let pointer = format!("{pointer}/{name}");
        Ok((name.clone(), ArgumentTemplate::parse(value, &pointer, vars)?))
    });
    parsed.collect()
}

impl JobChecker<'_> {
    /// Checks the precheck of a job, and its call with the values of `vars` in the job.
    pub(super) fn precheck(
        &mut self,
        raw: Option<&RawPrecheck>,
        vars: &BTreeMap<String, String>,
    ) -> Option<Precheck> {
        let raw = raw?;
        let name = raw.tool.as_deref()?;
        let exists = self.tool_exists("/precheck/tool", name);
        let none = Map::new();
        let arguments = mapping(raw.args.as_ref().unwrap_or(&none), "/precheck/args", vars);
        let arguments = arguments.map_err(|(pointer, message)| self.error(&pointer, message)).ok();
        let run_when = match raw.run_when.as_ref()? {
            RawRunWhen::Word(RawRunWhenWord::Changed) => RunWhen::Changed,
            RawRunWhen::Word(RawRunWhenWord::ExitNonzero) => RunWhen::ExitNonzero,
            RawRunWhen::Word(RawRunWhenWord::Nonempty) => RunWhen::Nonempty,
            RawRunWhen::Matches(raw) => match Regex::new(&raw.matches) {
                Ok(regex) => RunWhen::Matches(regex),
                Err(error) => {
                    let message =
                        format!("not a regular expression that runs in linear time: {error}");
                    self.error("/precheck/run_when/matches", message);
                    return None;
                }
            },
        };
        let arguments = arguments.filter(|_| exists)?;
        let precheck = Precheck { tool: ToolName::parse(name).ok()?, arguments, run_when };
        let tools = self.ctx.tools?;
        let Some(tool) = tools.get(name) else {
            let message =
                format!("`{name}` is not declared in tools.yaml: name a declared read tool");
            self.error("/precheck/tool", message);
            return None;
        };
        if tool.category != Category::Read {
            let message =
                format!("`{name}` is a {} tool: name a declared read tool", tool.category);
            self.error("/precheck/tool", message);
            return None;
        }
        let arguments = tool.command.validate(&precheck.arguments(vars));
        if let Err(error) = arguments.and_then(|arguments| tool.command.render(&arguments)) {
            self.error("/precheck/args", format!("the call would be rejected: {error}"));
        }
        Some(precheck)
    }
}
