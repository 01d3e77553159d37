//! What a run gives its tools: where they work, what they may touch, and what they see of the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::execute::Host;
use crate::agent::{AgentTool, Toolbox};
use crate::config::{Config, Job};
use crate::domain::{CallId, RunId};
use crate::gate::{PathRules, is_visible};
use crate::process::{Spawner, resolved};
use crate::store::{RunDir, create_private_dir};
use crate::text::redact::Redactor;
use crate::tools::{Cages, DeclaredTool, OutputStore, ToolSurroundings};

/// Returns what the tools of a run are given. `outputs` is where whole outputs are kept.
///
/// *Errors*: the temporary directory cannot be made.
pub fn tool_surroundings(
    config: &Config,
    job: &Job,
    host: &Host,
    run_id: &RunId,
    outputs: Option<RunDir>,
    redactor: Redactor,
) -> io::Result<Arc<ToolSurroundings>> {
    let working_dir =
        job.working_dir.clone().unwrap_or_else(|| host.state.workspace(job.name.as_str()));
    if job.working_dir.is_none() {
        // If this fails, the preflight says so.
        let _ = create_private_dir(&working_dir);
    }
    let temporary = host.state.make_temporary(run_id)?;
    let mut env: BTreeMap<String, String> = config
        .settings
        .env_allowlist
        .iter()
        .filter_map(|name| Some((name.clone(), host.environment.get(name)?.to_owned())))
        .collect();
    env.insert("TMPDIR".to_owned(), temporary.display().to_string());
    let rules = path_rules(config, job, host, &working_dir, &temporary, outputs.as_ref());
    Ok(Arc::new(ToolSurroundings {
        spawner: Spawner::new(host.fork_server.clone(), run_id.as_str()),
        env,
        working_dir,
        timeout: job.limits.tool_timeout,
        output_limit: job.limits.output_limit,
        max_output_bytes: job.limits.max_output_bytes,
        outputs: outputs.map(|directory| Arc::new(RunOutputs(directory)) as Arc<dyn OutputStore>),
        redactor,
        cages: Cages::new(job.sandbox, rules.clone(), temporary, job.network),
        paths: rules,
    }))
}

fn path_rules(
    config: &Config,
    job: &Job,
    host: &Host,
    working_dir: &Path,
    temporary: &Path,
    outputs: Option<&RunDir>,
) -> PathRules {
    let real = |path: &Path| resolved(path).unwrap_or_else(|_| path.to_path_buf());
    let security = &config.settings.security;
    let allowed = job.allowed_paths.iter().chain(&security.allowed_paths).map(PathBuf::as_path);
    PathRules {
        working_dir: real(working_dir),
        writable: [working_dir, temporary].into_iter().chain(allowed).map(real).collect(),
        readable: outputs.map(|run| real(&run.outputs())).into_iter().collect(),
        denied: security.denied_paths.iter().map(|path| real(path)).collect(),
        own: vec![real(&config.directory), real(host.state.root())],
    }
}

/// Returns the tools of a run: all are known, so that a refusal can be told from an unknown name; the model is shown those that it could use.
#[must_use]
pub fn toolbox(config: &Config, job: &Job, around: Arc<ToolSurroundings>) -> Toolbox {
    let mut offered = BTreeSet::new();
    let tools: Vec<Arc<dyn AgentTool>> = config
        .tools
        .values()
        .map(|tool| {
            let declared = DeclaredTool::new(tool.clone(), around.clone());
            if declared.is_available() && is_visible(&job.policy, tool.name.as_str(), tool.category)
            {
                offered.insert(tool.name.to_string());
            }
            Arc::new(declared) as Arc<dyn AgentTool>
        })
        .collect();
    Toolbox::new(tools, |tool| offered.contains(&tool.definition().name))
}

struct RunOutputs(RunDir);

impl OutputStore for RunOutputs {
    fn create(&self, call_id: &CallId) -> io::Result<(String, Box<dyn io::Write + Send>)> {
        let (name, file) = self.0.create_output(call_id)?;
        Ok((name, Box::new(io::BufWriter::new(file))))
    }
}
