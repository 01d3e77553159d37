//! Fresh configuration and state directories, and the binary that runs in them.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The directories and the environment of one test.
pub(crate) struct Place {
    temp: tempfile::TempDir,
    env: Vec<(String, String)>,
    /// The user that runs the binary, if it is not the current one.
    user: Option<u32>,
}

impl Place {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let place = Self { temp: tempfile::tempdir().unwrap(), env: Vec::new(), user: None };
        std::fs::create_dir(place.config()).unwrap();
        for (name, text) in files {
            place.write(name, text);
        }
        place
    }

    pub(crate) fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Gives all files to user 65534 (nobody), who then runs the binary.
    pub(crate) fn given_to_nobody(self) -> Self {
        self.given_to(65534)
    }

    /// Gives all files to this user id, which then runs the binary.
    pub(crate) fn given_to(mut self, user: u32) -> Self {
        std::fs::copy(env!("CARGO_BIN_EXE_dutyd"), self.temp.path().join("dutyd")).unwrap();
        let mut open = vec![self.temp.path().to_path_buf()];
        while let Some(path) = open.pop() {
            std::os::unix::fs::chown(&path, Some(user), Some(user)).unwrap();
            open.extend(std::fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        }
        self.user = Some(user);
        self
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.temp.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        self.write_as_is(name, &without_look(name, text));
    }

    /// Writes a file without the change that [`Self::write`] makes to jobs.
    pub(crate) fn write_as_is(&self, name: &str, text: &str) {
        let path = self.config().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, own(text)).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(self.config(), std::fs::Permissions::from_mode(0o700)).unwrap();
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.temp.path().join("config")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.temp.path().join("state")
    }

    #[expect(clippy::disallowed_methods, reason = "runs the binary under test")]
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = if let Some(user) = self.user {
            let mut command = Command::new("/usr/bin/setpriv");
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.arg("--clear-groups");
            command.arg(self.temp.path().join("dutyd"));
            command
        } else {
            Command::new(env!("CARGO_BIN_EXE_dutyd"))
        };
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.temp.path())
            .env("DUTYD_CONFIG_DIR", self.config())
            .env("DUTYD_STATE_DIR", self.state())
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn dutyd(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap())
    }

    /// Runs a shell script that execs the binary.
    pub(crate) fn shell(&self, script: &str) -> Done {
        let command = self.command(&[]);
        let env: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        #[expect(clippy::disallowed_methods, reason = "runs the binary under test with a limit")]
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).env_clear().envs(env).stdin(Stdio::null());
        Done::of(shell.output().unwrap())
    }

    /// Runs a verb with `-o json` and returns its parsed output.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let mut all = vec!["-o", "json"];
        all.extend(args);
        let done = self.dutyd(&all);
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// Starts the daemon and waits until it is ready.
    pub(crate) fn serve(&self) -> Daemon {
        self.started(self.command(&["serve"]))
    }

    /// Starts the daemon with an environment variable and waits until it is ready.
    pub(crate) fn serve_with(&self, name: &str, value: &str) -> Daemon {
        let mut daemon = self.command(&["serve"]);
        daemon.env(name, value);
        self.started(daemon)
    }

    /// Starts the daemon with at most this number of open files and waits until it is ready.
    pub(crate) fn serve_with_files(&self, most: u32) -> Daemon {
        let daemon = self.command(&["serve"]);
        #[expect(clippy::disallowed_methods, reason = "runs the binary under test with a limit")]
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &format!("ulimit -n {most}; exec \"$@\""), "sh"]);
        shell.arg(daemon.get_program()).args(daemon.get_args()).env_clear();
        shell.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.started(shell)
    }

    /// Starts the daemon with this socket for its messages to systemd and waits until it is ready.
    pub(crate) fn serve_notifying(&self, socket: &std::path::Path) -> Daemon {
        let mut daemon = self.command(&["serve"]);
        daemon.env("NOTIFY_SOCKET", socket);
        self.started(daemon)
    }

    /// Starts the daemon in a control group and waits until it is ready.
    pub(crate) fn serve_in(&self, group: &std::path::Path) -> Daemon {
        let daemon = self.command(&["serve"]);
        #[expect(clippy::disallowed_methods, reason = "runs the binary in a control group")]
        let mut shell = Command::new("/bin/sh");
        // After an earlier daemon has enabled controllers in the group, only its leaf group
        // `daemon` accepts processes.
        shell.args([
            "-c",
            "for g in \"$0\" \"$0/daemon\"; do echo 0 >\"$g/cgroup.procs\" && exec \"$@\"; done",
        ]);
        shell.arg(group).arg(daemon.get_program()).args(daemon.get_args()).env_clear();
        shell.envs(daemon.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.started(shell)
    }

    /// Starts the daemon with this stderr and waits until it is ready.
    pub(crate) fn serve_onto(&self, stderr: impl Into<Stdio>) -> Daemon {
        self.started_onto(self.command(&["serve"]), stderr)
    }

    fn started(&self, daemon: Command) -> Daemon {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.temp.path().join("log"))
            .unwrap();
        self.started_onto(daemon, log)
    }

    fn started_onto(&self, daemon: Command, stderr: impl Into<Stdio>) -> Daemon {
        let daemon = Self::spawned(daemon, stderr);
        wait_until(|| self.answers(), || self.log());
        daemon
    }

    /// Tells whether a daemon answers, whatever its state is.
    pub(crate) fn answers(&self) -> bool {
        self.dutyd(&["status"]).stdout.starts_with("dutyd ")
    }

    /// Starts the daemon and does not wait until it is ready.
    pub(crate) fn serve_without_waiting(&self) -> Daemon {
        let path = self.temp.path().join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        Self::spawned(self.command(&["serve"]), log)
    }

    fn spawned(mut daemon: Command, stderr: impl Into<Stdio>) -> Daemon {
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Daemon { child: daemon.spawn().unwrap() }
    }

    /// Starts the daemon with this configuration directory and waits until it is ready.
    pub(crate) fn serve_from(&self, directory: &std::path::Path) -> Daemon {
        let directory = directory.display().to_string();
        self.started(self.command(&["--config-dir", &directory, "serve"]))
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.temp.path().join("log")).unwrap_or_default()
    }

    /// Returns the path of the transcript of a run.
    pub(crate) fn transcript(&self, run_id: &str) -> PathBuf {
        let mut own =
            self.kept().into_iter().filter(|path| path.parent().unwrap().ends_with(run_id));
        own.find(|path| path.ends_with("transcript.jsonl")).unwrap()
    }

    /// Returns every file below the state directory.
    pub(crate) fn kept(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut open = vec![self.state()];
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                if entry.path().is_dir() {
                    open.push(entry.path())
                } else {
                    files.push(entry.path())
                }
            }
        }
        files
    }

    /// Returns the contents of every file below the state directory, joined, except for the copies
    /// of the configuration files, which hold what the operator wrote.
    pub(crate) fn everything(&self) -> String {
        let configs = self.state().join("configs");
        let kept = self.kept().into_iter().filter(|path| !path.starts_with(&configs));
        let contents = kept.filter_map(|path| std::fs::read(path).ok());
        contents.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }
}

/// The exit code and the output of a command. The code is -1 if a signal killed the command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// A running daemon; killed on drop.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Waits up to 20 s for the daemon to exit; returns the exit code.
    pub(crate) fn wait(mut self) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "the daemon did not exit within 20 s");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on loopback; stopped on drop.
pub(crate) struct Served {
    pub(crate) address: std::net::SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

pub(crate) fn serve_on_loopback(router: axum::Router) -> Served {
    serve_at("127.0.0.1:0".parse().unwrap(), router)
}

/// Starts a server at an address of loopback, once the address is free.
pub(crate) fn serve_at(address: std::net::SocketAddr, router: axum::Router) -> Served {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut listener = None;
    let bind = || runtime.block_on(tokio::net::TcpListener::bind(address)).ok();
    wait_until(
        || {
            listener = bind();
            listener.is_some()
        },
        || format!("{address} is in use"),
    );
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move { axum::serve(listener, router).await });
    Served { address, runtime: Some(runtime) }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Sends a raw request as the current user; returns the status line of the response.
pub(crate) fn asked(socket: &std::path::Path, key: Option<&str>, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut client = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let key = key.map(|key| format!("Dutyd-Key: {key}\r\n")).unwrap_or_default();
    write!(
        client,
        "{request} HTTP/1.1\r\nHost: x\r\n{key}Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    )
    .unwrap();
    let mut answer = String::new();
    let _ = client.read_to_string(&mut answer);
    answer.lines().next().unwrap_or_default().to_owned()
}

#[track_caller]
pub(crate) fn wait_until(mut done: impl FnMut() -> bool, tell: impl Fn() -> String) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "timed out: {}", tell());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Replaces `.OWN` by the id of this process, so that `sleep 7003.OWN` is unique to one test, even
/// across checkouts.
pub(crate) fn own(text: &str) -> String {
    text.replace(".OWN", &format!(".{}", std::process::id()))
}

/// Lets each job be green without a call that worked, unless the test says otherwise: most scripts
/// only say something.
fn without_look(name: &str, text: &str) -> String {
    let is_jobs = name == "jobs.yaml" || name.starts_with("jobs.d/") && name.ends_with(".yaml");
    if !is_jobs || text.contains("allow_no_calls") {
        return text.to_owned();
    }
    let lines = text.split_inclusive('\n').map(|line| {
        let key = line.trim_start().trim_start_matches("- ");
        let indent = line.len() - key.len();
        if key.starts_with("prompt:") || key.starts_with("prompt_file:") {
            format!(
                "{}allow_no_calls: true\n{}{key}",
                line.get(..indent).unwrap_or_default(),
                " ".repeat(indent)
            )
        } else {
            let flow = line.replace(", prompt:", ", allow_no_calls: true, prompt:");
            flow.replace("{prompt:", "{allow_no_calls: true, prompt:")
                .replace("\"prompt\":", "\"allow_no_calls\": true, \"prompt\":")
        }
    });
    lines.collect()
}

/// Returns those command lines of running processes that contain `word`.
pub(crate) fn alive(word: &str) -> Vec<String> {
    let word = own(word);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(cmdline) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
        if cmdline.contains(&word) {
            found.push(cmdline);
        }
    }
    found
}

/// Tells whether a `sleep` of this length runs. The shell that becomes one does not count: it has not
/// done yet what stands before the `exec`.
pub(crate) fn is_asleep(length: &str) -> bool {
    let line = format!("sleep {length}");
    let is_it = |found: &String| found.split(' ').next().is_some_and(|cmd| cmd.ends_with("sleep"));
    alive(&line).iter().any(is_it)
}

/// Reports a test that cannot run on this machine. `scripts/test` prints these lines, so that a
/// skipped test does not look like a passed one.
pub(crate) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED {name}: {why}\n");
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("skipped");
    use std::io::Write as _;
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
}
