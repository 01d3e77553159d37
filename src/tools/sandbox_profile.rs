//! The sandbox profiles of a run: one per set of rights, built on first use.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{SandboxMode, ToolSandbox};
use crate::domain::Category;
use crate::gate::PathRules;
use crate::process::{SandboxError, SandboxPolicy, SandboxProfile, resolved};

/// Builds the sandbox profiles of a run and keeps them for later calls. Clones share the profiles.
#[derive(Debug, Clone)]
pub struct SandboxProfiles {
    mode: SandboxMode,
    rules: PathRules,
    temporary: PathBuf,
    /// Whether the job has network access.
    network: bool,
    built: Arc<Mutex<Vec<(SandboxPolicy, SandboxProfile)>>>,
}

impl SandboxProfiles {
    /// Returns the profiles of a run. Every process of the run may write `temporary`.
    #[must_use]
    pub fn new(mode: SandboxMode, rules: PathRules, temporary: PathBuf, network: bool) -> Self {
        Self { mode, rules, temporary, network, built: Arc::default() }
    }

    /// Returns whether the sandbox is on.
    #[must_use]
    pub fn are_on(&self) -> bool {
        self.mode != SandboxMode::Off
    }

    /// Returns the private temporary directory of the run.
    #[must_use]
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Returns the sandbox profile of a tool; `None` if the sandbox is off.
    ///
    /// *Errors*: [`SandboxError`]; the caller must not start the tool.
    pub fn of(
        &self,
        category: Category,
        own: &ToolSandbox,
        working_dir: &Path,
    ) -> Result<Option<SandboxProfile>, SandboxError> {
        if self.mode == SandboxMode::Off {
            return Ok(None);
        }
        let wanted = self.policy(category, own, working_dir);
        let built = || self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, sandbox)) = built().iter().find(|(known, _)| *known == wanted) {
            return Ok(Some(sandbox.clone()));
        }
        // Hold no lock while a path is opened: its file system may give no answer.
        let sandbox = SandboxProfile::build(&wanted, self.mode == SandboxMode::Enforce)?;
        built().push((wanted, sandbox.clone()));
        Ok(Some(sandbox))
    }

    /// Returns whether the `sandbox.read` of a tool may open `path`: any path, even a denied one,
    /// but of dutyd's own paths only those below the configuration directory.
    fn may_open(&self, path: &Path) -> bool {
        let mut own = self.rules.own.iter();
        let is_below_config =
            own.next().is_some_and(|config| path.starts_with(config) && path != config);
        let is_ours = |own: &PathBuf| path.starts_with(own);
        !own.any(is_ours) && (is_below_config || !self.rules.own.iter().take(1).any(is_ours))
    }

    fn policy(&self, category: Category, own: &ToolSandbox, working_dir: &Path) -> SandboxPolicy {
        let real = |path: &PathBuf| resolved(path).unwrap_or_else(|_| path.clone());
        let opened: Vec<PathBuf> =
            own.read.iter().map(real).filter(|path| self.may_open(path)).collect();
        // Our own paths stay closed even if a tool opens a path above them.
        let denied = self.rules.denied.iter().filter(|path| !opened.contains(path));
        let closed: Vec<PathBuf> = denied.chain(&self.rules.own).cloned().collect();
        let is_denied =
            |path: &PathBuf| self.rules.denied.iter().any(|denied| path.starts_with(denied));
        let mut readable = self.rules.readable.clone();
        let mut writable = Vec::new();
        if category == Category::Read {
            readable.extend(self.rules.writable.iter().cloned());
        } else {
            writable.extend(self.rules.writable.iter().cloned());
            writable.push(real(&working_dir.to_path_buf()));
            writable.extend(own.write.iter().map(real));
        }
        // A denied tree stays closed even if the job allows a path inside it.
        readable.retain(|path| !is_denied(path));
        readable.extend(opened);
        writable.retain(|path| !is_denied(path));
        writable.push(self.temporary.clone());
        SandboxPolicy {
            closed,
            readable,
            writable,
            metadata: category != Category::Read,
            network: self.network && own.network,
            ipc: own.ipc,
            capabilities: own.capabilities,
        }
    }
}
