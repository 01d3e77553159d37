//! The checked `security` section of `config.yaml` and the sandbox settings of single tools.
//!
//! A closed path is one that tools cannot use even if a job allows it: a denied path, or one of our
//! own directories, such as the configuration directory.

use std::path::{Path, PathBuf};

use super::raw::{RawSandbox, RawSecurity, RawToolSandbox};
use super::web::hosts;
use super::{AllowedHost, Environment, command_rule};
use crate::argv::{Diagnostic, Diagnostics};
use crate::text::suggest::nearest;

/// Paths that are denied by default, in addition to those of [`user_keys`] and to
/// `$CREDENTIALS_DIRECTORY`. `~` stands for `$HOME`.
const DENIED: &[&str] = &[
    "~/.ssh",
    "~/.gnupg",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/security/opasswd",
    "/etc/ssh/ssh_host_dsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_rsa_key",
];

/// The user database. We cannot find the homes of users that are not in this file.
const USERS: &str = "/etc/passwd";

/// The first uid of people's accounts; lower uids belong to service accounts. Root (uid 0) counts
/// as a person too.
const FIRST_PERSON: u32 = 1000;

/// Returns the paths of `.ssh` and `.gnupg` in the home of each user whose home exists. For a
/// service account, omits paths that do not exist.
fn user_keys() -> Vec<PathBuf> {
    let users = std::fs::read_to_string(USERS).unwrap_or_default();
    let homes = users.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, uid, _, _, home, ..] = fields.as_slice() else { return None };
        let uid: u32 = uid.parse().ok()?;
        let home = Path::new(home);
        (home.is_absolute() && home.is_dir()).then(|| (home.to_path_buf(), uid))
    });
    let keys = homes.flat_map(|(home, uid)| {
        let is_person = uid == 0 || uid >= FIRST_PERSON && home != Path::new("/");
        [".ssh", ".gnupg"]
            .map(|name| home.join(name))
            .into_iter()
            .filter(move |path| is_person || path.exists())
    });
    keys.collect()
}

/// Capabilities that a tool may keep if it runs as root, with their numbers. Excludes those that
/// could bypass the sandbox. *Source*: `capabilities(7)`.
const CAPABILITIES: &[(&str, u8)] = &[
    ("CHOWN", 0),
    ("DAC_OVERRIDE", 1),
    ("DAC_READ_SEARCH", 2),
    ("FOWNER", 3),
    ("FSETID", 4),
    ("KILL", 5),
    ("SETGID", 6),
    ("SETUID", 7),
    ("SETPCAP", 8),
    ("LINUX_IMMUTABLE", 9),
    ("NET_BIND_SERVICE", 10),
    ("NET_BROADCAST", 11),
    ("NET_ADMIN", 12),
    ("NET_RAW", 13),
    ("IPC_LOCK", 14),
    ("IPC_OWNER", 15),
    ("SYS_CHROOT", 18),
    ("SYS_PACCT", 20),
    ("SYS_NICE", 23),
    ("SYS_RESOURCE", 24),
    ("SYS_TIME", 25),
    ("SYS_TTY_CONFIG", 26),
    ("MKNOD", 27),
    ("LEASE", 28),
    ("AUDIT_WRITE", 29),
    ("AUDIT_CONTROL", 30),
    ("SETFCAP", 31),
    ("MAC_OVERRIDE", 32),
    ("MAC_ADMIN", 33),
    ("SYSLOG", 34),
    ("WAKE_ALARM", 35),
    ("BLOCK_SUSPEND", 36),
    ("AUDIT_READ", 37),
    ("CHECKPOINT_RESTORE", 40),
];

/// Returns the number of a capability. Ignores case; the prefix `CAP_` is optional.
fn capability(text: &str) -> Option<u8> {
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    CAPABILITIES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// How strictly the kernel sandboxes the tools of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// A run does not start if the kernel cannot sandbox its tools.
    Enforce,
    /// The kernel sandboxes tools as far as it can; every transcript records how far.
    BestEffort,
    /// Tools run without a sandbox.
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

    /// Returns the value in files and transcripts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::BestEffort => "best_effort",
            Self::Off => "off",
        }
    }
}

/// Security settings that apply to the tools of every job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Security {
    /// Trees that jobs may use in addition to their own.
    pub allowed_paths: Vec<PathBuf>,
    /// Trees that are closed even if an allowed tree contains them, including the default ones;
    /// only [`ToolSandbox::read`] opens one.
    pub denied_paths: Vec<PathBuf>,
    /// Commands that bash never runs, in addition to the built-in ones.
    pub blocked_commands: Vec<String>,
    /// Commands that raise a bash call to admin, in addition to the built-in ones.
    pub destructive_commands: Vec<String>,
    /// Hosts that `web_fetch` and parameters of `format: url` may name in every job.
    pub allowed_domains: Vec<AllowedHost>,
    /// The sandbox mode of jobs that do not set one.
    pub sandbox: SandboxMode,
}

impl Security {
    pub(crate) fn from_raw(
        raw: Option<&RawSecurity>,
        environment: &Environment,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let mut list = |key: &str, texts: Option<&Vec<String>>| {
            let (paths, errors) = paths(&format!("/security/{key}"), texts, environment);
            diagnostics.errors.extend(errors);
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
            .chain(user_keys())
            .chain(more);
        let mut known = std::collections::BTreeSet::new();
        let denied_paths = denied_paths.filter(|path| known.insert(path.clone())).collect();
        let mut commands = |key: &str, texts: Option<&Vec<String>>| {
            let texts = texts.cloned().unwrap_or_default();
            let problems = texts.iter().enumerate().filter_map(|(at, text)| {
                command_rule::problem(&format!("/security/{key}/{at}"), text)
            });
            diagnostics.errors.extend(problems);
            texts
        };
        let blocked_commands =
            commands("blocked_commands", raw.and_then(|raw| raw.blocked_commands.as_ref()));
        let destructive_commands =
            commands("destructive_commands", raw.and_then(|raw| raw.destructive_commands.as_ref()));
        let raw_domains = raw.and_then(|raw| raw.allowed_domains.as_ref());
        let allowed_domains = hosts("/security/allowed_domains", raw_domains, diagnostics);
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

/// Sandbox settings of one tool, which add to those of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSandbox {
    /// Whether the tool may use the network; has no effect if the job disables the network.
    pub network: bool,
    /// Closed trees that the tool may read anyway.
    pub read: Vec<PathBuf>,
    /// Trees that the tool may write in addition to the job's.
    pub write: Vec<PathBuf>,
    /// Whether the tool may use System V IPC, POSIX message queues and kernel keyrings.
    pub ipc: bool,
    /// Capabilities that the tool keeps if it runs as root; bit n is capability number n.
    pub capabilities: u64,
}

impl Default for ToolSandbox {
    fn default() -> Self {
        Self { network: true, read: Vec::new(), write: Vec::new(), ipc: false, capabilities: 0 }
    }
}

impl ToolSandbox {
    pub(crate) fn from_raw(
        raw: Option<&RawToolSandbox>,
        environment: &Environment,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let Some(raw) = raw else { return Self::default() };
        let mut list = |key: &str, texts: Option<&Vec<String>>| {
            let (paths, wrong) = paths(&format!("/sandbox/{key}"), texts, environment);
            diagnostics.errors.extend(wrong);
            paths
        };
        let (read, write) = (list("read", raw.read.as_ref()), list("write", raw.write.as_ref()));
        let mut capabilities = 0;
        for (at, text) in raw.capabilities.iter().flatten().enumerate() {
            match capability(text) {
                Some(number) => capabilities |= 1 << number,
                None => diagnostics.errors.push(Diagnostic {
                    pointer: format!("/sandbox/capabilities/{at}"),
                    message: format!("`{text}` is not a capability that a tool can keep"),
                    hint: nearest(text, CAPABILITIES.iter().map(|(name, _)| *name))
                        .map(|near| format!("did you mean `{near}`?")),
                }),
            }
        }
        let (network, ipc) = (raw.network.unwrap_or(true), raw.ipc.unwrap_or(false));
        Self { network, read, write, ipc, capabilities }
    }
}

/// Returns the valid paths, and an error for each path that is not absolute, contains `..`, or is a
/// pattern.
pub(crate) fn paths(
    pointer: &str,
    texts: Option<&Vec<String>>,
    environment: &Environment,
) -> (Vec<PathBuf>, Vec<Diagnostic>) {
    let mut errors = Vec::new();
    let paths = texts.into_iter().flatten().enumerate().filter_map(|(at, text)| {
        let path = environment.expand_home(text);
        let problem = if !path.is_absolute() {
            "must be absolute, or begin with `~/`"
        } else if path.components().any(|part| part == std::path::Component::ParentDir) {
            "must not contain `..`"
        } else if text.contains(['*', '?', '[', '{']) && path.symlink_metadata().is_err() {
            // A path is not a pattern, so this one would match nothing (POL-11).
            "does not exist, and a pattern matches nothing here: name the directory"
        } else {
            return Some(path);
        };
        errors.push(Diagnostic {
            pointer: format!("{pointer}/{at}"),
            message: format!("the path `{text}` {problem}"),
            hint: None,
        });
        None
    });
    (paths.collect(), errors)
}

/// Returns the first closed path that is inside `root` or equal to it.
pub(crate) fn closed_within<'a>(
    root: &Path,
    mut closed: impl Iterator<Item = &'a PathBuf>,
) -> Option<&'a PathBuf> {
    closed.find(|path| path.starts_with(root))
}
