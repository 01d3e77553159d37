//! The tools of a configuration without a run: their parameters, whether each is available on this
//! host, and how the gate decides on a call.

use std::sync::Arc;

use serde_json::{Map, Value};

use serde::{Deserialize, Serialize};

use super::host::Host;
use super::tool_context::{Links, gate_rules, path_rules, profile_of, shown_as};
use crate::agent::{ShownAs, ToolFacts};
use crate::argv::{ArgumentConditions, Parameters};
use crate::config::{
    Builtin, Config, Environment, Job, MCP_SEPARATOR, McpServer, McpTransport, SandboxMode, Tool,
};
use crate::domain::{CallError, Category, DecisionKind, ToolName};
use crate::gate::{CallFacts, Decision, GateRules, PathRules, Spent, decide, is_visible};
use crate::text::suggest::nearest;
use crate::tools::{JudgedCall, declared_resources, prepare_builtin};

/// No tool has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no tool `{name}`")]
pub struct UnknownTool {
    /// The name that was asked for.
    pub name: String,
    /// The nearest known name.
    pub near: Option<String>,
}

/// A tool outside of a run.
#[derive(Debug, Clone, Copy)]
pub enum KnownTool<'a> {
    /// Declared in `tools.yaml`.
    Declared(&'a Arc<Tool>),
    Builtin(&'static Builtin),
    /// Offered by an MCP server. Only its name is known until the server runs.
    Mcp {
        /// The full name, with the prefix of the server.
        name: &'a str,
        server: &'a Arc<McpServer>,
        /// Its category, according to the configuration.
        category: Category,
    },
}

impl<'a> KnownTool<'a> {
    /// Returns every tool of a configuration and the tools in `of_servers` (server, full name),
    /// sorted by name.
    pub fn all(config: &'a Config, of_servers: &'a [(Arc<McpServer>, String)]) -> Vec<Self> {
        let builtins = Builtin::all().filter(|tool| !config.tools.contains_key(tool.name));
        let declared = config.tools.values().map(Self::Declared);
        let of_servers = of_servers.iter().map(|(server, name)| {
            let tool = name.split_once(MCP_SEPARATOR).map_or("", |(_, tool)| tool);
            Self::Mcp { name, server, category: server.category_of(tool) }
        });
        let mut all: Vec<Self> =
            declared.chain(builtins.map(Self::Builtin)).chain(of_servers).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// Returns the tool of exactly this name. Any name with the prefix of a configured MCP server
    /// counts as a tool of that server, because the server is not asked.
    ///
    /// *Errors*: no tool has this name.
    pub fn find(config: &'a Config, name: &'a str) -> Result<Self, UnknownTool> {
        let builtin = || Builtin::find(name).map(Self::Builtin);
        let of_server = || {
            let (server, tool) = name.split_once(MCP_SEPARATOR)?;
            let server = config.mcp_servers.get(server)?;
            Some(Self::Mcp { name, server, category: server.category_of(tool) })
        };
        let found = config.tools.get(name).map(Self::Declared).or_else(builtin).or_else(of_server);
        found.ok_or_else(|| {
            let known = config.tools.keys().map(ToolName::as_str);
            let near = nearest(name, known.chain(Builtin::all().map(|tool| tool.name)));
            UnknownTool { name: name.to_owned(), near: near.map(str::to_owned) }
        })
    }

    /// Returns why the tool is not available on this host or, if `job` is given, to that job;
    /// `None` if the tool is available.
    #[must_use]
    pub fn unavailable(
        &self,
        config: &Config,
        job: Option<(&Job, &PathRules)>,
        environment: &Environment,
    ) -> Option<String> {
        let is_local = job.is_none_or(|(job, _)| job.environment.is_local());
        let program = match self {
            Self::Declared(tool) if is_local && tool.program.path.is_none() => {
                Some(tool.program.written.as_str())
            }
            Self::Builtin(tool)
                if tool.name == "bash"
                    && is_local
                    && environment.find_program("bash").is_none() =>
            {
                Some("bash")
            }
            Self::Mcp { server, .. } => match &server.transport {
                McpTransport::Stdio { program, .. } if program.path.is_none() => {
                    Some(program.written.as_str())
                }
                _ => None,
            },
            Self::Declared(_) | Self::Builtin(_) => None,
        };
        let missing = program.map(|program| format!("`{program}` was not found"));
        missing.or_else(|| self.withheld(config, job))
    }

    /// Returns why the configuration withholds the tool from the job, or from every job; `None` if it
    /// does not.
    pub(super) fn withheld(
        &self,
        config: &Config,
        job: Option<(&Job, &PathRules)>,
    ) -> Option<String> {
        let is_offline = job.is_some_and(|(job, _)| !job.network);
        match self {
            Self::Declared(tool) => {
                let (job, rules) = job.filter(|(job, _)| job.environment.is_local())?;
                let closed = rules.denied.iter().chain(&rules.own);
                let (file, folder) = tool.closed_file(closed, &rules.writable)?;
                let (file, folder) = (file.display(), folder.display());
                (job.sandbox != SandboxMode::Off)
                    .then(|| format!("`{file}` is inside `{folder}`, which is closed to tools"))
            }
            Self::Builtin(tool) => match tool.name {
                "web_fetch" | "web_search" if is_offline => {
                    Some("the job has no network".to_owned())
                }
                "web_search" if config.settings.web_search.is_none() => {
                    Some("set `web_search` in config.yaml".to_owned())
                }
                "web_fetch"
                    if config.settings.security.allowed_domains.is_empty()
                        && job.is_none_or(|(job, _)| job.allowed_domains.is_empty()) =>
                {
                    Some("set `allowed_domains`".to_owned())
                }
                "skill" if job.is_some_and(|(job, _)| job.skills.is_empty()) => {
                    Some("the job has no skills".to_owned())
                }
                _ => None,
            },
            Self::Mcp { server, .. } => match &server.transport {
                McpTransport::Http { .. } if is_offline => {
                    Some("the job has no network".to_owned())
                }
                _ => None,
            },
        }
    }

    /// Returns its name in the configuration; a model may see a built-in tool under another name.
    pub fn name(&self) -> &'a str {
        match self {
            Self::Declared(tool) => tool.name.as_str(),
            Self::Builtin(tool) => tool.name,
            Self::Mcp { name, .. } => name,
        }
    }

    /// Returns its category; the gate may raise the category of a single call.
    pub fn category(&self) -> Category {
        match self {
            Self::Declared(tool) => tool.category,
            Self::Builtin(tool) => tool.category,
            Self::Mcp { category, .. } => *category,
        }
    }

    /// Returns the description for the model; for an MCP tool, a hint how to see it.
    pub fn description(&self) -> &'a str {
        match self {
            Self::Declared(tool) => &tool.description,
            Self::Builtin(tool) => &tool.description,
            Self::Mcp { .. } => "run `dutyd mcp` to see how its server describes it",
        }
    }

    /// Returns the parameters, if they are known.
    #[must_use]
    pub fn parameters(&self) -> Option<&'a Parameters> {
        match self {
            Self::Declared(tool) => Some(tool.command.parameters()),
            Self::Builtin(tool) => Some(&tool.parameters),
            Self::Mcp { .. } => None,
        }
    }

    /// Returns `declared`, `builtin` or `mcp:SERVER`.
    pub fn source(&self) -> String {
        match self {
            Self::Declared(_) => "declared".to_owned(),
            Self::Builtin(_) => "builtin".to_owned(),
            Self::Mcp { server, .. } => format!("mcp:{}", server.name),
        }
    }

    fn destructive_when(&self) -> &'a [ArgumentConditions] {
        match self {
            Self::Declared(tool) => &tool.destructive_when,
            Self::Builtin(_) | Self::Mcp { .. } => &[],
        }
    }

    /// Returns a call in the form that the gate decides on.
    ///
    /// *Errors*: `invalid_arguments`.
    pub fn prepare(&self, arguments: &Map<String, Value>) -> Result<JudgedCall, CallError> {
        match self {
            Self::Declared(tool) => {
                let arguments = tool.command.validate(arguments)?;
                tool.command.render(&arguments)?;
                let resources = declared_resources(tool, &arguments)?;
                Ok(JudgedCall { arguments, resources, lines: 0 })
            }
            Self::Builtin(tool) => prepare_builtin(tool.name, arguments),
            Self::Mcp { .. } => {
                Ok(JudgedCall { arguments: arguments.clone(), ..JudgedCall::default() })
            }
        }
    }

    /// Returns the argv of a call; `None` if the tool declares no command line, or the arguments cannot
    /// be rendered.
    pub(super) fn argv(&self, job: &Job, call: &JudgedCall) -> Option<Vec<String>> {
        let Self::Declared(tool) = self else { return None };
        let rendered = tool.command.render(&call.arguments).ok()?;
        let path = tool.program.path.as_ref().filter(|_| job.environment.is_local());
        let program = match path {
            Some(path) => path.display().to_string(),
            None => tool.program.written.clone(),
        };
        Some(std::iter::once(program).chain(rendered.args).collect())
    }

    /// Returns the gate's decision on `call`, as if it were the first call of a run.
    pub fn decide(&self, rules: &GateRules, call: &JudgedCall) -> Decision {
        self.decide_after(&Spent::default(), rules, call)
    }

    /// Returns the gate's decision on `call` in a run that has used `spent`.
    pub(super) fn decide_after(
        &self,
        spent: &Spent,
        rules: &GateRules,
        call: &JudgedCall,
    ) -> Decision {
        let facts = CallFacts {
            tool: self.name(),
            category: self.category(),
            destructive_when: self.destructive_when(),
            resources: &call.resources,
            lines: call.lines,
            spent,
        };
        decide(rules, facts, &call.arguments)
    }
}

/// The gate's decision on a call, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub decision: DecisionKind,
    /// The deciding rule; `unavailable` if the tool is not available on this host or to the job.
    pub rule: String,
    /// The category that the gate decided on.
    pub category: Category,
    /// The reason, for people.
    pub reason: String,
}

/// Why a call cannot be explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// No tool has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownTool),
    /// The arguments are not valid.
    #[error(transparent)]
    Arguments(#[from] CallError),
}

/// Decides on a call as a run of `job` would. Without `arguments`, decides on a call without
/// arguments, even if the tool requires some.
///
/// *Errors*: [`ExplainError`].
pub fn explain(
    config: &Config,
    job: &Job,
    host: &Host,
    tool: &str,
    arguments: Option<&Map<String, Value>>,
) -> Result<Explanation, ExplainError> {
    let tool = KnownTool::find(config, tool)?;
    let call = match arguments {
        None => JudgedCall::default(),
        Some(arguments) => tool.prepare(arguments)?,
    };
    let rules = gate_rules(config, job, path_rules(config, job, host, None, Links::Resolved));
    let call = call.with_real_paths(job.environment.is_local(), &rules.paths);
    let decision = tool.decide(&rules, &call);
    let gone = tool.unavailable(config, Some((job, &rules.paths)), &host.environment);
    Ok(match gone.filter(|_| decision.kind != DecisionKind::Deny) {
        Some(reason) => Explanation {
            decision: DecisionKind::Deny,
            rule: "unavailable".to_owned(),
            category: decision.category,
            reason,
        },
        None => Explanation {
            decision: decision.kind,
            rule: decision.rule.to_owned(),
            category: decision.category,
            reason: decision.reason,
        },
    })
}

/// A tool as `dutyd tools` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolRow {
    pub name: String,
    pub category: Category,
    /// `builtin`, `declared` or `mcp:NAME`.
    pub source: String,
    pub description: String,
    /// The JSON Schema of its arguments; null for an MCP tool, whose schema only its server knows.
    pub parameters: Option<Value>,
    /// The path of the program that it starts; null if the program was not found or the tool is not
    /// declared.
    pub program: Option<String>,
    /// Why the tool is not available on this host or to the job; null if it is available.
    pub unavailable: Option<String>,
    /// Whether it is available and the job may use it; absent without a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<bool>,
}

/// Returns a row for each tool. `of_servers` lists the MCP tools (server, full name) whose pins the
/// ledger holds.
#[must_use]
pub fn tool_rows(
    config: &Config,
    job: Option<&Job>,
    host: &Host,
    of_servers: &[(Arc<McpServer>, String)],
) -> Vec<ToolRow> {
    let job = job.map(|job| (job, path_rules(config, job, host, None, Links::Resolved)));
    let row = |tool: KnownTool<'_>| {
        let of_job = job.as_ref().map(|(job, rules)| (*job, rules));
        let unavailable = tool.unavailable(config, of_job, &host.environment);
        let is_visible = |(job, _): (&Job, &PathRules)| {
            is_visible(&job.policy, tool.name(), tool.category(), false)
        };
        ToolRow {
            name: tool.name().to_owned(),
            category: tool.category(),
            source: tool.source(),
            description: tool.description().to_owned(),
            parameters: tool.parameters().map(|parameters| parameters.schema().clone()),
            program: match tool {
                KnownTool::Declared(tool) => {
                    tool.program.path.as_ref().map(|path| path.display().to_string())
                }
                KnownTool::Builtin(_) | KnownTool::Mcp { .. } => None,
            },
            allowed: of_job.map(|job| unavailable.is_none() && is_visible(job)),
            unavailable,
        }
    };
    KnownTool::all(config, of_servers).into_iter().map(row).collect()
}

/// Returns the tools that the model of a job sees, as the system prompt lists them. `of_servers` are the
/// MCP tools (server, full name).
pub(super) fn offered<'a>(
    config: &'a Config,
    job: &Job,
    paths: &PathRules,
    environment: &Environment,
    of_servers: &'a [(Arc<McpServer>, String)],
    has_person: bool,
) -> Vec<(KnownTool<'a>, ToolFacts)> {
    let profile = profile_of(config, job);
    let known = KnownTool::all(config, of_servers);
    let conditions = |tool: &KnownTool<'_>, shown: &ShownAs| {
        let mut listed = job.policy.write.iter().chain(&job.policy.admin);
        let args = listed.find(|entry| entry.tool.as_str() == tool.name())?.args.as_ref()?;
        Some(shown.conditions(args.as_written()).to_string())
    };
    let names: Vec<&str> = known.iter().map(KnownTool::name).collect();
    let mut offered: Vec<_> = known
        .iter()
        .filter(|tool| {
            tool.unavailable(config, Some((job, paths)), environment).is_none()
                && is_visible(&job.policy, tool.name(), tool.category(), has_person)
        })
        .filter_map(|tool| {
            let mut shown = shown_as(config, job, profile, tool.name())?;
            if shown.name != tool.name() && names.contains(&shown.name.as_str()) {
                // As in `Toolbox::new`.
                tool.name().clone_into(&mut shown.name);
            }
            let conditions = conditions(tool, &shown);
            let category = tool.category().to_string();
            let description = match tool {
                KnownTool::Mcp { .. } => None,
                KnownTool::Declared(_) | KnownTool::Builtin(_) => {
                    Some(ToolFacts::first_sentence(tool.description()))
                }
            };
            Some((*tool, ToolFacts { name: shown.name, category, description, conditions }))
        })
        .collect();
    offered.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
    offered
}

/// Returns the full names of `seen`, the tools of `server` that have a pin in the ledger. Leaves
/// out a tool whose full name is invalid or is the name of a declared tool, as a run does.
pub fn names_of_server<'a>(
    config: &'a Config,
    server: &'a Arc<McpServer>,
    seen: impl IntoIterator<Item = String> + 'a,
) -> impl Iterator<Item = (Arc<McpServer>, String)> + 'a {
    seen.into_iter().filter_map(move |tool| {
        let name = ToolName::parse(&format!("{}{MCP_SEPARATOR}{tool}", server.name)).ok()?;
        (!config.tools.contains_key(&name)).then(|| (server.clone(), name.to_string()))
    })
}
