//! Processes: the only place that starts one, and the one that leaves none alive.
//!
//! Every tool runs below a shim, a small single-threaded copy of this binary (`dutyd __exec`). The shim is the subreaper of everything the
//! tool starts and holds one end of a lifeline socket: when the call ends, the deadline passes, the run is cancelled or the daemon dies, it
//! ends the whole tree. It knows neither models nor policies. The kernel sandbox of a later version is applied in the shim's child, at the
//! place that `shim.rs` names.

mod leftover;
mod shim;
mod spawner;
mod tree;
mod wire;

pub use leftover::end_leftovers;
pub use shim::run_shim;
pub use spawner::{Exit, ProcessSpec, SpawnFailure, Spawner, prepare_daemon};

/// The argument by which this binary is started as a shim.
pub const SHIM_VERB: &str = "__exec";

/// The variable that names the run of a shim; the tool never sees it.
pub(crate) const SHIM_MARK: &str = "DUTYD_SHIM";

/// Between SIGTERM and SIGKILL.
pub(crate) const GRACE: std::time::Duration = std::time::Duration::from_secs(2);
