//! The messages between daemon and shim over the lifeline: one frame in each direction. A frame is
//! the length of the JSON that follows (4 bytes, big-endian), and the JSON.
//!
//! The daemon sends one [`Order`]. If the daemon then closes its side of the lifeline, the shim
//! ends the tool. If the daemon sends [`KILL_AT_ONCE`] first, the shim does so without a grace
//! period. The shim sends one [`Report`]. The descriptors that belong to an order travel in the
//! request to the fork server ([`super::fork_server`]).

use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;

use super::sandbox::Filter;

/// Bytes of the largest frame, without its length. The largest part of an order is the text for
/// standard input, for example a web page of at most 5 MiB.
pub(crate) const FRAME_LIMIT: usize = 16 * 1024 * 1024;

/// The byte that orders a shim to kill the tool without a grace period.
pub(crate) const KILL_AT_ONCE: u8 = b'k';

/// The order for a shim.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) program: String,
    /// The arguments, starting with the name of the program.
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) working_dir: String,
    /// The text of standard input; `None` is `/dev/null`. Not used if `piped`.
    pub(crate) stdin: Option<String>,
    pub(crate) timeout_ms: u64,
    /// The mark of the run's processes ([`super::limits`]).
    pub(crate) mark: u64,
    /// The seccomp filter; `None` means no sandbox.
    pub(crate) filter: Option<Filter>,
    /// Capabilities that a sandboxed tool keeps if it runs as root, as a bit mask.
    pub(crate) capabilities: u64,
    /// Whether the request carries a Landlock ruleset. If a ruleset is announced here but missing,
    /// the tool does not start.
    pub(crate) landlock: bool,
    /// Whether the request carries pipes for standard input and standard error.
    pub(crate) piped: bool,
    /// Whether the request carries a control group to join. If a group is announced here but
    /// missing, the tool does not start.
    pub(crate) grouped: bool,
}

/// How the call ended. All its processes are gone, except for `survivors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) end: Ending,
    pub(crate) timed_out: bool,
    /// Whether the shim ended the call because the lifeline closed or a signal arrived.
    pub(crate) stopped: bool,
    pub(crate) survivors: u64,
}

/// How the tool's own process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    Exited(i32),
    Signaled(i32),
    SpawnFailed { errno: i32, step: Step },
}

/// The step that failed before the program ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    WorkingDir,
    Prepare,
    Sandbox,
    Group,
    Exec,
}

impl Step {
    pub(crate) const ALL: [Self; 5] =
        [Self::WorkingDir, Self::Prepare, Self::Sandbox, Self::Group, Self::Exec];
}

pub(crate) fn frame<T: Serialize>(message: &T) -> Result<Vec<u8>, String> {
    let json = serde_json::to_vec(message).map_err(|error| error.to_string())?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() <= FRAME_LIMIT)
        .ok_or("the frame is too large")?;
    let mut out = length.to_be_bytes().to_vec();
    out.extend(json);
    Ok(out)
}

/// Reads the report of a shim; `None` if the shim ended without a valid report.
pub(super) async fn read_report(
    from_shim: &mut (impl tokio::io::AsyncRead + Unpin),
) -> Option<Report> {
    let length = usize::try_from(from_shim.read_u32().await.ok()?)
        .ok()
        .filter(|length| *length <= FRAME_LIMIT)?;
    let mut json = vec![0; length];
    from_shim.read_exact(&mut json).await.ok()?;
    serde_json::from_slice(&json).ok()
}
