//! Builds what a run gives its tools: a working directory, rights, and an environment.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;

use super::host::Host;
use crate::agent::{AgentTool, ShownAs, Toolbox};
use crate::config::{
    Builtin, Config, ExecutionTarget, Job, McpTransport, Profile, SYSTEM_RUNTIME_DIRECTORY,
    ToolAlias,
};
use crate::domain::{CallId, Image, RunId};
use crate::gate::{CommandRules, DomainRules, GateRules, PathRules, is_visible};
use crate::process::{HostWork, Spawner, resolved};
use crate::store::{RunDir, create_private_dir};
use crate::text::redact::Redactor;
use crate::tools::{
    AccessRules, BashTool, BuiltinTool, DeclaredTool, ExecutionEnvironment, KeptFile, Local,
    OutputContext, OutputStore, ProgramContext, Remote, SandboxProfiles, Shell, ToolContext,
    WebFetchTool, WebSearchTool, name_for_models,
};

/// What to do with the links in the paths of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    Resolved,
    /// Touches no path of the job, because its file system gives no answer. No tool may run.
    AsWritten,
}

/// Returns the context of the tools of a run. `outputs` is the directory of the run, which keeps
/// full outputs; `None` keeps none.
///
/// *Errors*: a directory of the run cannot be created.
pub fn tool_context(
    config: &Config,
    job: &Job,
    host: &Host,
    run_id: &RunId,
    outputs: Option<RunDir>,
    redactor: Redactor,
    links: Links,
) -> io::Result<Arc<ToolContext>> {
    let is_local = job.environment.is_local();
    let working_dir = working_dir(job, host);
    if job.working_dir.is_none() {
        // The preflight reports a failure.
        let _ = create_private_dir(&working_dir);
    }
    let is_resolved = is_local && links == Links::Resolved;
    let working_dir =
        if is_resolved { resolved(&working_dir).unwrap_or(working_dir) } else { working_dir };
    let temporary = host.state.make_temporary(run_id)?;
    if let Some(run) = &outputs {
        // Create the directory before the first sandbox is built: a sandbox allows only paths that
        // exist by then.
        create_private_dir(&run.outputs())?;
    }
    let mut env: BTreeMap<String, String> = config
        .settings
        .env_allowlist
        .iter()
        .filter_map(|name| Some((name.clone(), host.environment.get(name)?.to_owned())))
        .collect();
    // Pass only the absolute entries of `PATH`, whatever `env_allowlist` says: an empty or relative
    // entry would make a program search the working directory.
    env.remove("PATH");
    env.extend(host.environment.search_path().map(|path| ("PATH".to_owned(), path)));
    env.insert("TMPDIR".to_owned(), temporary.display().to_string());
    let rules = path_rules(config, job, host, Some((&temporary, outputs.as_ref())), links);
    // In a remote job, the processes on this host may write only to the temporary directory.
    let sandboxed = if is_local {
        rules.clone()
    } else {
        PathRules {
            working_dir: temporary.clone(),
            writable: vec![temporary.clone()],
            readable: Vec::new(),
            ..path_rules(
                config,
                &Job { environment: ExecutionTarget::Local, ..job.clone() },
                host,
                None,
                links,
            )
        }
    };
    let bash = match is_local {
        true if links == Links::AsWritten => None,
        true => host.environment.find_program("bash"),
        false => Some("bash".into()),
    };
    let profile = profile_of(config, job);
    let limits = &job.limits;
    let builtins = config.settings.builtin_tools.clone();
    let shell_timeout = builtins.get("bash").and_then(|limits| limits.timeout);
    let shell_timeout = match (shell_timeout, limits.tool_timeout_cap) {
        (Some(own), cap) => cap.map_or(own, |cap| cap.min(own)),
        (None, _) => profile.shell_timeout.min(limits.tool_timeout),
    };
    let shell = bash.map(|program| Shell { program, timeout: shell_timeout });
    Ok(Arc::new(ToolContext {
        working_dir,
        timeout: limits.tool_timeout,
        timeout_cap: limits.tool_timeout_cap,
        builtins,
        redactor,
        programs: ProgramContext {
            spawner: Spawner::new(
                host.fork_server.clone(),
                host.groups.as_deref(),
                run_id.as_str(),
            ),
            env,
            execution: execution(config, job, host, run_id)?,
            sandboxes: SandboxProfiles::new(job.sandbox, sandboxed, temporary, job.network),
            shell,
        },
        host_work: HostWork::of(job.name.as_str()),
        outputs: OutputContext {
            store: outputs.map(|directory| Arc::new(RunOutputs(directory)) as Arc<dyn OutputStore>),
            max_bytes: limits.max_output_bytes,
            max_characters: limits.output_limit,
            max_lines: limits.output_lines,
        },
        access: AccessRules::new(rules, domain_rules(config, job)),
        web_search: config.settings.web_search.clone(),
        glob_paths_are_relative: profile.shown("glob").is_some_and(|glob| glob.name == "find"),
        skills: job.skills.clone(),
        todos: Default::default(),
    }))
}

/// Returns the environment in which the programs of a run's tools start.
///
/// *Errors*: the directory for shared connections cannot be created.
fn execution(
    config: &Config,
    job: &Job,
    host: &Host,
    run_id: &RunId,
) -> io::Result<Arc<dyn ExecutionEnvironment>> {
    let Some(client) = Remote::client_of(&job.environment) else { return Ok(Arc::new(Local)) };
    // A client that is not installed fails when it starts; the error names it.
    let path = host.environment.find_program(client).unwrap_or_else(|| client.into());
    // An MCP server on this host could reach the remote host through a shared connection.
    let mut servers = config.mcp_servers.values();
    let is_alone = !servers.any(|server| matches!(server.transport, McpTransport::Stdio { .. }));
    let socket = if is_alone && matches!(job.environment, ExecutionTarget::Ssh(_)) {
        Some(host.state.make_connections()?.join(run_id.as_str()))
    } else {
        None
    };
    Ok(Arc::new(Remote::new(job.environment.clone(), path, socket)))
}

/// Returns the working directory of a job, with its links.
pub(super) fn working_dir(job: &Job, host: &Host) -> PathBuf {
    job.working_dir.clone().unwrap_or_else(|| host.state.workspace(job.name.as_str()))
}

/// Returns the rules for the paths that a run may access. `run` holds the temporary directory and
/// the directory of the run; `None` leaves both out of the rules.
#[must_use]
pub fn path_rules(
    config: &Config,
    job: &Job,
    host: &Host,
    run: Option<(&Path, Option<&RunDir>)>,
    links: Links,
) -> PathRules {
    let working_dir = working_dir(job, host);
    let is_local = job.environment.is_local();
    let real = |path: &Path| {
        if is_local && links == Links::Resolved {
            resolved(path).unwrap_or_else(|_| path.to_path_buf())
        } else {
            path.to_path_buf()
        }
    };
    let security = &config.settings.security;
    let allowed = job.allowed_paths.iter().chain(&security.allowed_paths).map(PathBuf::as_path);
    PathRules {
        working_dir: real(&working_dir),
        writable: std::iter::once(working_dir.as_path())
            .chain(run.map(|(temporary, _)| temporary))
            .chain(allowed)
            .map(real)
            .collect(),
        readable: run
            .and_then(|(_, run)| run)
            .map(|run| real(&run.outputs()))
            .into_iter()
            .collect(),
        denied: security.denied_paths.iter().map(|path| real(path)).collect(),
        own: own_paths(config, host).iter().map(|path| real(path)).collect(),
        frozen: if is_local {
            ourselves(host).iter().map(|path| real(path)).collect()
        } else {
            Vec::new()
        },
    }
}

/// Returns our own paths: configuration, state, the key of the control socket, credentials and key
/// files. They are closed to tools, except for trees below them that a run may access.
fn own_paths(config: &Config, host: &Host) -> Vec<PathBuf> {
    let of_systemd = ["RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY"]
        .into_iter()
        .filter_map(|name| host.environment.get(name))
        .flat_map(|paths| paths.split(':').filter(|path| path.starts_with('/')));
    // This process lacks these variables if the daemon is another process, so always add the
    // directory of the system daemon's socket.
    let of_systemd = of_systemd.chain([SYSTEM_RUNTIME_DIRECTORY]).map(PathBuf::from);
    [config.directory.clone(), host.state.root().to_path_buf()]
        .into_iter()
        .chain(of_systemd)
        .chain(config.secret_files.iter().cloned())
        .collect()
}

/// The directories where systemd looks for units, highest precedence first.
pub const UNIT_DIRECTORIES: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// Returns our log, program and unit, even if they do not exist yet (FS-5).
fn ourselves(host: &Host) -> Vec<PathBuf> {
    let logs = host.environment.get("LOGS_DIRECTORY").unwrap_or_default();
    let logs = logs.split(':').filter(|path| !path.is_empty()).map(PathBuf::from);
    let units = UNIT_DIRECTORIES.iter().flat_map(|directory| {
        ["dutyd.service", "dutyd.service.d"].map(|name| Path::new(directory).join(name))
    });
    logs.chain(std::env::current_exe()).chain(units).collect()
}

/// Returns the rules that the gate applies to a run without an attached person.
#[must_use]
pub fn gate_rules(config: &Config, job: &Job, paths: PathRules) -> GateRules {
    let security = &config.settings.security;
    GateRules {
        job: job.name.to_string(),
        has_person: false,
        policy: job.policy.clone(),
        paths,
        commands: CommandRules {
            blocked: security.blocked_commands.clone(),
            destructive: security.destructive_commands.clone(),
        },
        domains: domain_rules(config, job),
        rate: job.limits.rate,
        max_tool_calls: job.limits.max_tool_calls,
        max_files_modified: job.limits.max_files_modified,
        max_lines_changed: job.limits.max_lines_changed,
    }
}

/// Returns the hosts from which a run may fetch.
fn domain_rules(config: &Config, job: &Job) -> DomainRules {
    let general = &config.settings.security.allowed_domains;
    DomainRules {
        hosts: job.allowed_domains.iter().chain(general).cloned().collect(),
        is_offline: !job.network,
    }
}

/// Returns the profile of the model of a job.
pub(super) fn profile_of(config: &Config, job: &Job) -> &'static Profile {
    config.model_of(job).map_or_else(Profile::generic, |model| model.profile)
}

/// Returns every tool of a run, including those that it may not use: the refusal of a known tool
/// must differ from the error for an unknown name.
#[must_use]
pub fn tools(
    config: &Config,
    ctx: &Arc<ToolContext>,
    of_servers: Vec<Arc<dyn AgentTool>>,
) -> Vec<Arc<dyn AgentTool>> {
    let declared = config
        .tools
        .values()
        .map(|tool| Arc::new(DeclaredTool::new(tool.clone(), ctx.clone())) as Arc<dyn AgentTool>);
    let files = BuiltinTool::all(ctx).map(|tool| Arc::new(tool) as Arc<dyn AgentTool>);
    let bash = BashTool::new(ctx).map(|tool| Arc::new(tool) as Arc<dyn AgentTool>);
    let fetch = WebFetchTool::new(ctx).map(|tool| Arc::new(tool) as Arc<dyn AgentTool>);
    let search = WebSearchTool::new(ctx).map(|tool| Arc::new(tool) as Arc<dyn AgentTool>);
    // A declared tool replaces a built-in tool of the same name.
    let is_free =
        |tool: &Arc<dyn AgentTool>| !config.tools.contains_key(tool.definition().name.as_str());
    // The name of an MCP tool contains a separator, so no built-in tool has the same name. If a
    // declared tool has the same name, the declared tool replaces the MCP tool (MCP-2).
    declared
        .chain(files.chain(bash).chain(fetch).chain(search).chain(of_servers).filter(is_free))
        .collect()
}

/// Returns the tools of a run. The model sees those that it could use, under the names that its
/// family knows.
#[must_use]
pub fn toolbox(
    config: &Config,
    job: &Job,
    ctx: &Arc<ToolContext>,
    of_servers: Vec<Arc<dyn AgentTool>>,
    has_person: bool,
) -> Toolbox {
    toolbox_of(config, job, tools(config, ctx, of_servers), has_person)
}

/// Returns the toolbox of a run with these tools.
pub(super) fn toolbox_of(
    config: &Config,
    job: &Job,
    tools: Vec<Arc<dyn AgentTool>>,
    has_person: bool,
) -> Toolbox {
    let profile = profile_of(config, job);
    Toolbox::new(tools, |tool| {
        let name = tool.definition().name.as_str();
        if !tool.is_available() || !is_visible(&job.policy, name, tool.category(), has_person) {
            return None;
        }
        shown_as(config, job, profile, name)
    })
}

/// Returns how a model of this profile sees a tool that the job may use; `None` if it does not.
pub(super) fn shown_as(
    config: &Config,
    job: &Job,
    profile: &Profile,
    name: &str,
) -> Option<ShownAs> {
    if Builtin::find(name).is_none() || config.tools.contains_key(name) {
        // Providers reject some names that MCP allows.
        return Some(ShownAs::itself(&name_for_models(name)));
    }
    match profile.shown(name) {
        Some(ToolAlias { name, parameters, .. }) => {
            Some(ShownAs { name: (*name).to_owned(), parameters })
        }
        // A tool that the job names is shown to every model family.
        None => job.policy.names(name).then(|| ShownAs::itself(name)),
    }
}

struct RunOutputs(RunDir);

/// The file of an output. A flush also syncs the file to the disk, because the transcript line with
/// its digest must not reach the disk before the file does.
struct OutputFile(io::BufWriter<std::fs::File>);

impl io::Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()?;
        self.0.get_ref().sync_data()
    }
}

impl OutputStore for RunOutputs {
    fn create(&self, call_id: &CallId) -> io::Result<KeptFile> {
        let (name, file) = self.0.create_output(call_id)?;
        let path = resolved(&self.0.path().join(&name))?.display().to_string();
        Ok(KeptFile { name, path, file: Box::new(OutputFile(io::BufWriter::new(file))) })
    }

    fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        self.0.read_output(name, most)
    }

    fn keep_image(&self, call_id: &CallId, number: usize, image: &Image) -> io::Result<String> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&*image.base64);
        let extension = image.media_type.rsplit('/').next().unwrap_or("bin");
        self.0.keep_image(call_id, number, extension, &bytes.map_err(io::Error::other)?)
    }
}
