//! The control socket: HTTP over a Unix socket, for the command line and for programs of the same host.
//!
//! Who may use it is the kernel's business: mode 0660 and the socket's group; the peer's uid is logged with everything that changes something.
//! What a verb does with an answer is not known here.

mod problem;
mod routes;
mod socket;

pub use problem::Problem;
pub use routes::{Api, EventsQuery, RunsQuery, SlotsQuery};
pub use socket::{SocketError, serve, socket_path};
