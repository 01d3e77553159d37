//! The feeder: starts a client of another host or container, gives it all of its own input, and then holds that input open.
//!
//! What runs over there takes the end of its input for the end of the call, so that nothing of it outlives the feeder, which dies with its shim.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// The argument by which this binary is started as the feeder; the client and its arguments follow.
pub const FEEDER_VERB: &str = "__feed";

/// The exit code of a client that could not be started.
const NOT_STARTED: i32 = 127;

/// Runs this process as the feeder; returns the exit code of the client.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "it runs below a shim, which leaves no orphan")]
pub fn run_feeder(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> i32 {
    let Some(client) = arguments.next() else { return NOT_STARTED };
    // A shim that is killed takes nothing along by itself.
    let parent = rustix::process::getppid();
    let with_shim =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if with_shim.is_err() || rustix::process::getppid() != parent {
        return NOT_STARTED;
    }
    let mut text = Vec::new();
    if std::io::stdin().read_to_end(&mut text).is_err() {
        return NOT_STARTED;
    }
    let started = Command::new(&client).args(arguments).stdin(Stdio::piped()).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}: {error}", client.to_string_lossy());
            return NOT_STARTED;
        }
    };
    let mut input = child.stdin.take();
    if let Some(input) = &mut input {
        // A client that has ended takes no more; its exit code says why.
        let _ = input.write_all(&text).and_then(|()| input.flush());
    }
    let code = child.wait().ok().and_then(|status| status.code());
    drop(input);
    // Ended by a signal, as shells say it for a hang-up.
    code.unwrap_or(129)
}
