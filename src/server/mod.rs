//! The control socket: HTTP over a Unix socket, for the command line and other programs on this
//! host.
//!
//! Root, the service user and the group of the socket may use it (mode 0660). Each request must
//! carry the key from the file beside the socket, which a sandboxed tool cannot read. The log
//! records the peer's uid for every request that changes something. This module does not know what
//! a CLI verb does with a response.

mod api;
mod body;
mod commands;
mod follow;
mod inspect;
mod problem;
mod routes;
mod socket;

pub use api::Api;
pub use follow::EventsQuery;
pub use inspect::{DoctorQuery, ModelsAnswer, ModelsQuery};
pub use problem::Problem;
pub use routes::{AuditQuery, RunsQuery, SlotsQuery, router};
pub use socket::{
    ControlKey, KEY_HEADER, SocketAddress, SocketError, key_path, serve, socket_path,
};
