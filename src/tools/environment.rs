//! Starts the programs of a run's tools: on this host, or on a remote target through a client
//! (`ssh`, `docker` or `kubectl`).
//!
//! On a remote target, a shell starts the program. The shell reads its script from the client's
//! standard input, so that the arguments and variables of the program do not appear in the process
//! list of this host. The shell ends the program's process group as soon as that input ends. After
//! the program's output, the script prints a mark and the exit code; our relay process, which
//! starts the client, removes both from the output.
//! *Source*: `ssh(1)`, `docker exec`, `kubectl exec`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::AsyncReadExt as _;

use crate::config::ExecutionTarget;
use crate::process::{MARK_START, Piped, ProcessSpec, RELAY_VERB, SpawnFailure, Spawner};
use crate::text::redact::Redactor;

/// The time limit for establishing a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(20);

/// The time that a client has to exit after its connection broke, so that we can report how it
/// exited.
const SOON: Duration = Duration::from_secs(1);

/// The command that the client runs on the target. The command reads a byte count and a script of
/// that length, and runs the script only if it arrived complete.
const LOADER: &str = "IFS= read -r n; s=$(head -c \"$n\"; echo .); case $s in *\"# end\"?.) eval \"${s%.}\";; *) exit 125;; esac";

/// Why the execution target did not answer.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error(transparent)]
    Spawn(#[from] SpawnFailure),
    /// A connection over ssh could not be opened. `ended` tells how the client ended.
    #[error(
        "{name} cannot be reached{}; run `ssh -o BatchMode=yes {} true` as the user of the daemon to see why",
        after_colon(.ended),
        .name.trim_start_matches("ssh:")
    )]
    Unreachable { name: String, ended: String },
    /// The run was stopped.
    #[error("the run was stopped")]
    Cancelled,
    #[error("the answer did not arrive in time")]
    Timeout,
    #[error("the connection ended before the answer was complete")]
    Incomplete,
    /// The client, or the shell on the target, printed this instead of an answer.
    #[error("{0}")]
    Message(String),
    #[error("the remote shell exited with code {0}")]
    ShellExit(i32),
}

fn after_colon(ended: &str) -> String {
    if ended.is_empty() { String::new() } else { format!(": {ended}") }
}

/// The target on which the programs of a run's tools start.
#[async_trait]
pub trait ExecutionEnvironment: Send + Sync {
    /// Returns the name of the target as the configuration and transcripts spell it.
    fn name(&self) -> String;

    /// Returns whether the target is this host.
    fn is_local(&self) -> bool;

    /// Returns the process to start on this host so that `spec` runs on the target. `own` holds the
    /// environment variables of the tool itself.
    fn process(&self, spec: ProcessSpec, own: &[(String, String)]) -> ProcessSpec;

    /// Connects to an SSH host. The calls of the run share the connection if [`Remote::new`] got a
    /// socket. Returns `None` for any other target.
    ///
    /// *Errors*: [`TargetError`].
    async fn connect(
        &self,
        spawner: &Spawner,
        env: &BTreeMap<String, String>,
        redactor: &Redactor,
    ) -> Result<Option<Connection>, TargetError>;
}

/// This host.
#[derive(Debug, Clone, Copy)]
pub struct Local;

#[async_trait]
impl ExecutionEnvironment for Local {
    fn name(&self) -> String {
        ExecutionTarget::Local.to_string()
    }

    fn is_local(&self) -> bool {
        true
    }

    fn process(&self, spec: ProcessSpec, own: &[(String, String)]) -> ProcessSpec {
        let mut spec = spec;
        spec.env.extend(own.iter().cloned());
        spec
    }

    async fn connect(
        &self,
        _: &Spawner,
        _: &BTreeMap<String, String>,
        _: &Redactor,
    ) -> Result<Option<Connection>, TargetError> {
        Ok(None)
    }
}

/// Another host, a container or a pod.
#[derive(Debug, Clone)]
pub struct Remote {
    target: ExecutionTarget,
    client: PathBuf,
    /// The socket of the shared connection; with `None`, each call opens its own connection.
    socket: Option<PathBuf>,
}

/// An open connection to an SSH host. Dropping this value closes the connection.
#[derive(Debug)]
pub struct Connection {
    process: Piped,
    _pipes: (tokio::net::unix::pipe::Receiver, tokio::net::unix::pipe::Sender),
}

impl Connection {
    /// Closes the connection and returns the number of processes that could not be killed.
    pub async fn end(self) -> u64 {
        self.process.end().await.survivors
    }
}

impl Remote {
    /// Returns the execution environment of a target other than this host. The path `socket` must
    /// belong to this run alone, and no tool may write to it. Without a socket, each call opens its
    /// own connection.
    #[must_use]
    pub fn new(target: ExecutionTarget, client: PathBuf, socket: Option<PathBuf>) -> Self {
        Self { target, client, socket }
    }

    /// Returns the client program for a target; `None` for this host.
    #[must_use]
    pub fn client_of(target: &ExecutionTarget) -> Option<&'static str> {
        match target {
            ExecutionTarget::Local => None,
            ExecutionTarget::Ssh(_) => Some("ssh"),
            ExecutionTarget::Docker(_) => Some("docker"),
            ExecutionTarget::Kubernetes { .. } => Some("kubectl"),
        }
    }

    /// Returns the client's arguments before the command. `is_first` is true for the connection
    /// that all later ones share.
    fn arguments(&self, is_first: bool) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match &self.target {
            ExecutionTarget::Local => Vec::new(),
            ExecutionTarget::Ssh(host) => {
                let mut all: Vec<String> = words(&[
                    "-T",
                    "-oBatchMode=yes",
                    "-oConnectTimeout=10",
                    "-oServerAliveInterval=15",
                    "-oServerAliveCountMax=2",
                    "-oControlPersist=no",
                    if is_first { "-oControlMaster=yes" } else { "-oControlMaster=no" },
                ]);
                all.push(match &self.socket {
                    Some(socket) => format!("-oControlPath={}", socket.display()),
                    None => "-oControlPath=none".to_owned(),
                });
                all.extend(words(&["--", host]));
                all
            }
            ExecutionTarget::Docker(container) => words(&["exec", "-i", container]),
            ExecutionTarget::Kubernetes { namespace, pod } => {
                words(&["exec", "-i", "-n", namespace, pod, "--"])
            }
        }
    }

    /// Returns the arguments that run `script`: `ssh` passes a command line to a shell, the other
    /// clients pass an argv.
    fn command(&self, script: &str) -> Vec<String> {
        match self.target {
            ExecutionTarget::Ssh(_) => vec![format!("exec sh -c {}", quoted(script))],
            _ => vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
        }
    }
}

#[async_trait]
impl ExecutionEnvironment for Remote {
    fn name(&self) -> String {
        self.target.to_string()
    }

    fn is_local(&self) -> bool {
        false
    }

    fn process(&self, spec: ProcessSpec, own: &[(String, String)]) -> ProcessSpec {
        let mark = nonce();
        let script = script(&spec, own, &mark);
        let client = self.client.display().to_string();
        let mut argv = vec!["dutyd".to_owned(), RELAY_VERB.to_owned(), mark, client];
        argv.extend(self.arguments(false));
        argv.extend(self.command(LOADER));
        ProcessSpec {
            // The kernel resolves this path in the process that executes it. That process runs our
            // binary.
            program: PathBuf::from("/proc/self/exe"),
            argv,
            working_dir: PathBuf::from("/"),
            stdin: Some(format!("{}\n{script}", script.len())),
            // A local sandbox cannot restrict a remote program.
            sandbox: None,
            ..spec
        }
    }

    async fn connect(
        &self,
        spawner: &Spawner,
        env: &BTreeMap<String, String>,
        redactor: &Redactor,
    ) -> Result<Option<Connection>, TargetError> {
        if !matches!(self.target, ExecutionTarget::Ssh(_)) {
            return Ok(None);
        }
        if let Some(socket) = &self.socket {
            // Remove the socket of a daemon that died.
            let _ = std::fs::remove_file(socket);
        }
        let client = self.client.display().to_string();
        let mut argv = vec![client];
        argv.extend(self.arguments(true));
        // The empty line shows that the connection works; `cat` keeps the connection open until we
        // close the input.
        argv.push("echo; exec cat".to_owned());
        let spec = ProcessSpec {
            program: self.client.clone(),
            argv,
            env: env.clone(),
            working_dir: PathBuf::from("/"),
            stdin: None,
            timeout: Duration::from_secs(24 * 3600),
            sandbox: None,
        };
        let started = spawner.start_piped(&spec, redactor).await;
        let (process, mut output, input) = started?;
        let mut byte = [0];
        match tokio::time::timeout(CONNECT, output.read(&mut byte)).await {
            Ok(Ok(1)) => Ok(Some(Connection { process, _pipes: (output, input) })),
            read => {
                if read.is_ok() {
                    // Let the client exit by itself first, so that we can report how it exited.
                    process.ending().within(SOON).await;
                }
                let ended = process.end().await.words();
                Err(TargetError::Unreachable { name: self.name(), ended })
            }
        }
    }
}

/// Returns a word that cannot be guessed, from the random numbers of the kernel.
pub(super) fn nonce() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Returns the script for the shell on the target. The script runs the program until the program or
/// the input ends, and finally prints `mark` and the exit code. The program runs in its own Unix
/// session if the target has `setsid`.
fn script(spec: &ProcessSpec, own: &[(String, String)], mark: &str) -> String {
    // Merge standard output and error, to keep their order.
    let mut text = format!(
        "exec 2>&1\nsay() {{ printf '\\{:03o}%s %s\\n' {mark} \"$1\"; exit \"$1\"; }}\n",
        u32::from(MARK_START)
    );
    for (name, value) in own {
        let _ = writeln!(text, "export {name}={}", quoted(value));
    }
    let directory = quoted(&spec.working_dir.display().to_string());
    let _ = writeln!(text, "cd {directory} || say 125");
    let words: Vec<String> = std::iter::once(spec.program.display().to_string())
        .chain(spec.argv.iter().skip(1).cloned())
        .map(|word| quoted(&word))
        .collect();
    // The shell's built-in `printf` does not limit the length of an argument. `$!` is the last
    // process of a pipeline: the program.
    let (feed, input) = match &spec.stdin {
        None => (String::new(), " </dev/null"),
        Some(input) => (format!("printf %s {} | ", quoted(input)), ""),
    };
    let program = words.join(" ");
    // If the target has no `setsid`, the `kill` commands reach only the program itself.
    let _ = write!(
        text,
        "exec 3<&0
s=
command -v setsid >/dev/null 2>&1 && s=setsid
{feed}$s {program}{input} 3<&- &
p=$!
{{ cat; kill -TERM -\"$p\" || kill -TERM \"$p\"; sleep 2; kill -KILL -\"$p\" || kill -KILL \"$p\"; pkill -KILL -s \"$p\"; }} <&3 >/dev/null 2>&1 &
w=$!
exec 3<&- 2>/dev/null
wait \"$p\"
c=$?
kill \"$w\" 2>/dev/null
kill -KILL -\"$p\"
command -v pkill >/dev/null && pkill -KILL -s \"$p\"
say \"$c\"
# end
"
    );
    text
}

/// Quotes a text as one word for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> Remote {
        let target = ExecutionTarget::parse(text).unwrap();
        Remote::new(target, "/usr/bin/client".into(), Some("/run/x/ssh".into()))
    }

    fn spec(argv: &[&str]) -> ProcessSpec {
        ProcessSpec {
            program: argv[0].into(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            working_dir: "/srv/it's".into(),
            stdin: None,
            timeout: CONNECT,
            sandbox: None,
        }
    }

    #[test]
    fn clients_are_given_constants_and_a_name() {
        let words = |text: &str| {
            let spec = remote(text)
                .process(spec(&["uptime", "-h; rm x"]), &[("K".into(), "s3cret".into())]);
            assert!(
                !spec.argv.iter().any(|word| word.contains("uptime") || word.contains("s3cret"))
            );
            assert!(spec.stdin.unwrap().contains("'uptime' '-h; rm x'"));
            assert_eq!(spec.argv[..2], ["dutyd", RELAY_VERB]);
            assert_eq!(spec.argv[3], "/usr/bin/client");
            spec.argv[4..].join(" ")
        };
        let docker = words("docker:db");
        assert!(docker.starts_with("exec -i db sh -c IFS= read"), "{docker}");
        let kubectl = words("kubernetes:shop/web-0");
        assert!(kubectl.starts_with("exec -i -n shop web-0 -- sh -c IFS= read"), "{kubectl}");
        let ssh = words("ssh:ops@web1");
        assert!(
            ssh.contains("-oControlPath=/run/x/ssh -- ops@web1 exec sh -c 'IFS= read"),
            "{ssh}"
        );
    }
}
