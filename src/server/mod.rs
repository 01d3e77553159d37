//! The control socket: HTTP over a Unix socket, for the command line and for programs of the same host.
//!
//! Root, the service user and the socket's group may use it (mode 0660), with the key beside it, which tools cannot read. The peer's uid is logged
//! with everything that changes something.
//! What a verb does with an answer is not known here.

mod api;
mod follow;
mod inspect;
mod problem;
mod routes;
mod socket;

pub use api::Api;
pub use follow::EventsQuery;
pub use problem::Problem;
pub use routes::{RunsQuery, SlotsQuery, router};
pub use socket::{ControlKey, KEY_HEADER, SocketError, key_path, serve, socket_path};
