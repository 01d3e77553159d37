//! What `security:` of `config.yaml` means: paths, and how the kernel holds tools.

use std::path::{Path, PathBuf};

use super::raw::{RawSandbox, RawSecurity, RawToolSandbox};
use super::web::hosts;
use super::{AllowedHost, Environment};
use crate::call::Fault;

/// Closed to every tool, where the operator says nothing. `~` is the daemon's home.
const DENIED: &[&str] = &[
    "~/.ssh",
    "~/.gnupg",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/security/opasswd",
];

/// How the kernel holds the tools of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// A run does not start where it cannot.
    Enforce,
    /// As far as it can; every transcript says how far.
    BestEffort,
    /// Not at all.
    Off,
}

impl SandboxMode {
    pub(crate) fn of(raw: RawSandbox) -> Self {
        match raw {
            RawSandbox::Enforce => Self::Enforce,
            RawSandbox::BestEffort => Self::BestEffort,
            RawSandbox::Off => Self::Off,
        }
    }

    /// Returns the word in files and transcripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::BestEffort => "best_effort",
            Self::Off => "off",
        }
    }
}

/// What holds for the tools of every job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Security {
    /// Trees that jobs may use besides their own.
    pub allowed_paths: Vec<PathBuf>,
    /// Trees that are closed whatever allows them.
    pub denied_paths: Vec<PathBuf>,
    /// Commands that bash never runs.
    pub blocked_commands: Vec<String>,
    /// Commands that make a call of bash an admin call.
    pub destructive_commands: Vec<String>,
    /// Hosts that jobs may reach.
    pub allowed_domains: Vec<AllowedHost>,
    /// How tools are held where a job says nothing.
    pub sandbox: SandboxMode,
}

impl Security {
    pub(crate) fn from_raw(
        raw: Option<&RawSecurity>,
        environment: &Environment,
        complain: &mut impl FnMut(&str, String),
    ) -> Self {
        let mut list = |key: &str, texts: Option<&Vec<String>>| {
            let (paths, faults) = paths(&format!("/security/{key}"), texts, environment);
            faults.into_iter().for_each(|fault| complain(&fault.pointer, fault.message));
            paths
        };
        let allowed_paths =
            list("allowed_paths", raw.and_then(|security| security.allowed_paths.as_ref()));
        let more = list("denied_paths", raw.and_then(|security| security.denied_paths.as_ref()));
        let denied_paths = DENIED
            .iter()
            .map(|text| environment.expand_home(text))
            .chain(environment.get("CREDENTIALS_DIRECTORY").map(PathBuf::from))
            .filter(|path| path.is_absolute())
            .chain(more)
            .collect();
        let mut commands = |key: &str, texts: Option<&Vec<String>>| {
            let texts = texts.cloned().unwrap_or_default();
            for (at, _) in texts.iter().enumerate().filter(|(_, text)| text.trim().is_empty()) {
                complain(
                    &format!("/security/{key}/{at}"),
                    "an empty command says nothing".to_owned(),
                );
            }
            texts
        };
        let blocked_commands =
            commands("blocked_commands", raw.and_then(|raw| raw.blocked_commands.as_ref()));
        let destructive_commands =
            commands("destructive_commands", raw.and_then(|raw| raw.destructive_commands.as_ref()));
        let raw_domains = raw.and_then(|raw| raw.allowed_domains.as_ref());
        let (allowed_domains, faults) = hosts("/security/allowed_domains", raw_domains);
        faults.into_iter().for_each(|fault| complain(&fault.pointer, fault.message));
        let sandbox = raw.and_then(|security| security.sandbox);
        Self {
            allowed_paths,
            denied_paths,
            blocked_commands,
            destructive_commands,
            allowed_domains,
            sandbox: sandbox.map_or(SandboxMode::Enforce, SandboxMode::of),
        }
    }
}

/// What the kernel leaves to the processes of one tool besides what the job does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSandbox {
    /// Whether there is a network.
    pub network: bool,
    /// Closed trees that it may read.
    pub read: Vec<PathBuf>,
    /// Further trees that it may write.
    pub write: Vec<PathBuf>,
}

impl Default for ToolSandbox {
    fn default() -> Self {
        Self { network: true, read: Vec::new(), write: Vec::new() }
    }
}

impl ToolSandbox {
    pub(crate) fn from_raw(
        raw: Option<&RawToolSandbox>,
        environment: &Environment,
        faults: &mut Vec<Fault>,
    ) -> Self {
        let Some(raw) = raw else { return Self::default() };
        let mut list = |key: &str, texts: Option<&Vec<String>>| {
            let (paths, wrong) = paths(&format!("/sandbox/{key}"), texts, environment);
            faults.extend(wrong);
            paths
        };
        Self {
            network: raw.network.unwrap_or(true),
            read: list("read", raw.read.as_ref()),
            write: list("write", raw.write.as_ref()),
        }
    }
}

/// Returns absolute paths, and what is wrong with those that are not.
pub(crate) fn paths(
    pointer: &str,
    texts: Option<&Vec<String>>,
    environment: &Environment,
) -> (Vec<PathBuf>, Vec<Fault>) {
    let mut faults = Vec::new();
    let paths = texts.into_iter().flatten().enumerate().filter_map(|(at, text)| {
        let path = environment.expand_home(text);
        let problem = if !path.is_absolute() {
            "must be absolute, or begin with `~/`"
        } else if path.components().any(|part| part == std::path::Component::ParentDir) {
            "must not hold `..`"
        } else {
            return Some(path);
        };
        faults.push(Fault {
            pointer: format!("{pointer}/{at}"),
            message: format!("the path `{text}` {problem}"),
            hint: None,
        });
        None
    });
    (paths.collect(), faults)
}

/// Returns the first closed path that lies in `root` or is it.
pub(crate) fn closed_within<'a>(
    root: &Path,
    mut closed: impl Iterator<Item = &'a PathBuf>,
) -> Option<&'a PathBuf> {
    closed.find(|path| path.starts_with(root))
}
