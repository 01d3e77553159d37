//! A read call that a job declares and dutyd itself makes: the precheck, or a check of `verify`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::JobChecker;
use crate::domain::{Category, ToolName};
use crate::text::template::Template;

/// A call of a declared read tool, with templates over `vars` in its arguments.
#[derive(Debug, Clone)]
pub struct DeclaredCall {
    pub tool: ToolName,
    arguments: BTreeMap<String, ArgumentTemplate>,
}

/// An argument. Each text in it is a template.
#[derive(Debug, Clone)]
enum ArgumentTemplate {
    Text(Template),
    List(Vec<ArgumentTemplate>),
    Mapping(BTreeMap<String, ArgumentTemplate>),
    Other(Value),
}

impl DeclaredCall {
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
    /// Checks a call, also with the values of `vars` in the job. `pointer` is its place in the job.
    /// Returns `None` if the call cannot be made.
    pub(super) fn declared_call(
        &mut self,
        pointer: &str,
        tool: Option<&str>,
        arguments: Option<&Map<String, Value>>,
        vars: &BTreeMap<String, String>,
    ) -> Option<DeclaredCall> {
        let name = tool?;
        let of_tool = format!("{pointer}/tool");
        let exists = self.tool_exists(&of_tool, name);
        let none = Map::new();
        let of_arguments = format!("{pointer}/args");
        let arguments = mapping(arguments.unwrap_or(&none), &of_arguments, vars);
        let arguments = arguments.map_err(|(pointer, message)| self.error(&pointer, message)).ok();
        let arguments = arguments.filter(|_| exists)?;
        let call = DeclaredCall { tool: ToolName::parse(name).ok()?, arguments };
        let tools = self.ctx.tools?;
        let Some(tool) = tools.get(name) else {
            let message =
                format!("`{name}` is not declared in tools.yaml: name a declared read tool");
            self.error(&of_tool, message);
            return None;
        };
        if tool.category != Category::Read {
            let message =
                format!("`{name}` is a {} tool: name a declared read tool", tool.category);
            self.error(&of_tool, message);
            return None;
        }
        let arguments = tool.command.validate(&call.arguments(vars));
        if let Err(error) = arguments.and_then(|arguments| tool.command.render(&arguments)) {
            self.error(&of_arguments, format!("the call would be rejected: {error}"));
        }
        Some(call)
    }
}
