//! The socket itself: made private, of this daemon alone, taken away at the end.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

/// How long open answers may finish at the end.
const GRACE: Duration = Duration::from_secs(1);

/// Why the socket cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("the control socket {path} cannot be made: {error}")]
pub struct SocketError {
    path: PathBuf,
    error: io::Error,
}

/// Returns where the socket of a state directory lies; systemd's runtime directory goes before.
#[must_use]
pub fn socket_path(state: &Path, runtime_directory: Option<&str>) -> PathBuf {
    runtime_directory.map_or(state, Path::new).join("control.sock")
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// The user.
    pub(super) uid: Option<u32>,
    /// Whether it descends from a shim, or nobody can say.
    pub(super) is_tool: bool,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let peer = stream.io().peer_cred().ok();
        let pid = peer.as_ref().and_then(tokio::net::unix::UCred::pid);
        Self {
            uid: peer.map(|peer| peer.uid()),
            is_tool: pid.is_none_or(crate::process::descends_from_shim),
        }
    }
}

/// Serves `router` until `stop`; the caller holds the lock of the state directory, so that a socket that is there is nobody's.
///
/// *Errors*: [`SocketError`], before anything is served.
pub fn serve(
    path: &Path,
    router: Router,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, SocketError> {
    let failed = |error| SocketError { path: path.to_path_buf(), error };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    let path = path.to_path_buf();
    Ok(tokio::spawn(async move {
        let ended = stop.clone();
        let serving = axum::serve(listener, router.into_make_service_with_connect_info::<Peer>())
            .with_graceful_shutdown(stop.cancelled_owned());
        tokio::select! {
            result = async { serving.await } => {
                if let Err(error) = result {
                    tracing::error!(%error, "the control socket has ended");
                }
            }
            () = async { ended.cancelled().await; tokio::time::sleep(GRACE).await } => {}
        }
        let _ = std::fs::remove_file(path);
    }))
}
