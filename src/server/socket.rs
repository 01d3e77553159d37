//! The socket file and its key, created at each start of the daemon and removed at its end. This
//! module also limits the number of connections, in total and per user.
//!
//! A client proves with `control.key`, which lies beside the socket, that it is not a tool: every
//! sandbox profile closes the directory of the key. As a second check, a peer that descends from
//! the daemon, the fork server or a shim is rejected when it connects.
//!
//! *Source*: `docs/design/gate.md`, "Control socket".

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::config::CONTROL_KEY;

/// How long open responses may take to finish at shutdown.
const GRACE: Duration = Duration::from_secs(1);

/// Open connections, in total.
const MAX_CONNECTIONS: usize = 64;

/// Open connections of one user, except root.
const MAX_OF_ONE_USER: usize = 8;

/// How long a connection may take until its first request with the key arrives.
const PATIENCE: Duration = Duration::from_secs(10);

/// Delay after a failed `accept`: file descriptors may be scarce for a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Random bytes in the key.
const KEY_BYTES: usize = 32;

/// Bytes of a path in the address of a socket, at most; the kernel's field also holds a NUL.
/// *Source*: `unix(7)`.
const ADDRESS_BYTES: usize = 107;

/// The header that carries the key.
pub const KEY_HEADER: &str = "dutyd-key";

/// Why the socket cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the control socket {path}: {error}")]
pub struct SocketError {
    path: PathBuf,
    error: io::Error,
}

/// Returns the path of the control socket: in systemd's runtime directory, else in the state
/// directory.
#[must_use]
pub fn socket_path(state: &Path, runtime_directory: Option<&str>) -> PathBuf {
    // systemd separates several directories by colons.
    let directory = runtime_directory.and_then(|paths| paths.split(':').next());
    directory.map_or(state, Path::new).join("control.sock")
}

/// Returns the path of the key for a socket.
#[must_use]
pub fn key_path(socket: &Path) -> PathBuf {
    socket.with_file_name(CONTROL_KEY)
}

/// A path that fits into the address of a socket, however long the path of its directory is. It is
/// valid in this process while this value lives.
#[derive(Debug)]
pub struct SocketAddress {
    path: PathBuf,
    /// The directory, if the path leads through its descriptor.
    _directory: Option<OwnedFd>,
}

impl SocketAddress {
    /// Returns the address of the socket at this path.
    ///
    /// *Errors*: the path is too long, and its directory cannot be opened.
    pub fn of(socket: &Path) -> io::Result<Self> {
        if socket.as_os_str().len() <= ADDRESS_BYTES {
            return Ok(Self { path: socket.to_path_buf(), _directory: None });
        }
        let (Some(directory), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let number = directory.as_raw_fd().to_string();
        let path = Path::new("/proc/self/fd").join(number).join(name);
        Ok(Self { path, _directory: Some(directory) })
    }

    /// Returns the path for `bind` and `connect`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The key that every request must carry.
#[derive(Clone)]
pub struct ControlKey(Arc<str>);

impl ControlKey {
    /// Creates a key, a new one at each start, and writes it beside `socket`.
    ///
    /// *Errors*: an I/O error.
    fn make(socket: &Path) -> io::Result<(Self, OwnFile)> {
        let mut random = [0; KEY_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let text = hex::encode(random);
        let path = key_path(socket);
        // Rename a complete file over the key of a dead daemon: the key has the right mode from the
        // start.
        let fresh = path.with_extension("key.new");
        remove_if_there(&fresh)?;
        let mut file = File::options().write(true).create_new(true).mode(0o640).open(&fresh)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o640))?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&fresh, &path)?;
        Ok((Self(text.into()), OwnFile::of(path)?))
    }

    /// Tells whether `given` is the key. The time of the comparison does not depend on where the
    /// two differ.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let differ = self.0.bytes().zip(given).fold(0, |all, (own, given)| all | (own ^ given));
        self.0.len() == given.len() && differ == 0
    }
}

/// A file that this daemon created. It is removed only if it is still the same file: another daemon
/// may have replaced it.
struct OwnFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl OwnFile {
    fn of(path: PathBuf) -> io::Result<Self> {
        let meta = std::fs::symlink_metadata(&path)?;
        Ok(Self { path, identity: (meta.dev(), meta.ino()) })
    }

    fn remove(&self) {
        let is_own = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == self.identity);
        if is_own {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    /// The user id of the peer; `None` if the kernel does not tell it.
    pub(super) uid: Option<u32>,
    /// Whether a request with the key has arrived.
    has_key: Arc<AtomicBool>,
}

impl Peer {
    pub(super) fn has_shown_key(&self) {
        self.has_key.store(true, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Guard>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Guard>) -> Self {
        stream.remote_addr().clone()
    }
}

/// The number of open connections, by user.
type Open = Arc<Mutex<BTreeMap<Option<u32>, usize>>>;

/// The listener. Rejects a peer before any part of the peer's request is read.
struct Guard {
    listener: UnixListener,
    open: Open,
}

impl Guard {
    /// Returns the connection of a peer, or `None` if the peer is rejected.
    fn admit(&self, stream: UnixStream) -> Option<(Connection, Peer)> {
        let credentials = match stream.peer_cred() {
            Ok(credentials) => credentials,
            Err(error) => {
                tracing::warn!(%error, "rejected a connection from an unknown process");
                return None;
            }
        };
        let (uid, pid) = (Some(credentials.uid()), credentials.pid());
        if pid.is_some_and(crate::process::is_tool) {
            tracing::warn!(uid, pid, "a tool of a run tried to use the control socket");
            return None;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user = open.get(&uid).copied().unwrap_or(0);
        let is_full = open.values().sum::<usize>() >= MAX_CONNECTIONS;
        if is_full || uid != Some(0) && of_user >= MAX_OF_ONE_USER {
            tracing::warn!(uid, of_user, "too many connections to the control socket");
            return None;
        }
        *open.entry(uid).or_default() += 1;
        let peer = Peer { uid, has_key: Arc::default() };
        let connection = Connection {
            stream,
            place: Place { open: self.open.clone(), uid },
            has_key: peer.has_key.clone(),
            deadline: Box::pin(tokio::time::sleep(PATIENCE)),
        };
        Some((connection, peer))
    }
}

impl axum::serve::Listener for Guard {
    type Io = Connection;
    type Addr = Peer;

    async fn accept(&mut self) -> (Connection, Peer) {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    if let Some(admitted) = self.admit(stream) {
                        return admitted;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to the control socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer { uid: None, has_key: Arc::default() })
    }
}

/// One open connection in the counts of [`Open`], removed from them on drop.
struct Place {
    open: Open,
    uid: Option<u32>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
        }
        open.retain(|_, count| *count > 0);
    }
}

/// A connection that times out if no request with the key arrives.
struct Connection {
    stream: UnixStream,
    #[expect(dead_code, reason = "held until the connection ends")]
    place: Place,
    has_key: Arc<AtomicBool>,
    deadline: Pin<Box<Sleep>>,
}

impl Connection {
    fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        !self.has_key.load(Ordering::Relaxed) && self.deadline.as_mut().poll(context).is_ready()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_overdue(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_overdue(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Serves the routes that `router` builds with the key, until `stop`. The caller holds the lock of
/// the state directory, so an existing socket is not in use.
///
/// *Errors*: [`SocketError`], before anything is served.
pub fn serve(
    path: &Path,
    router: impl FnOnce(ControlKey) -> Router,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, SocketError> {
    let failed = |error| SocketError { path: path.to_path_buf(), error };
    let (key, key_file) = ControlKey::make(path).map_err(failed)?;
    remove_if_there(path).map_err(failed)?;
    let address = SocketAddress::of(path).map_err(failed)?;
    let listener = UnixListener::bind(address.path()).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660)).map_err(failed)?;
    let socket_file = OwnFile::of(path.to_path_buf()).map_err(failed)?;
    let guard = Guard { listener, open: Open::default() };
    let service = router(key).into_make_service_with_connect_info::<Peer>();
    Ok(tokio::spawn(async move {
        let ended = stop.clone();
        let serving = axum::serve(guard, service).with_graceful_shutdown(stop.cancelled_owned());
        tokio::select! {
            result = async { serving.await } => {
                if let Err(error) = result {
                    tracing::error!(%error, "the control socket failed");
                }
            }
            () = async { ended.cancelled().await; tokio::time::sleep(GRACE).await } => {}
        }
        socket_file.remove();
        key_file.remove();
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_until_it_ends() {
        let open = Open::default();
        let uid = Some(1000);
        open.lock().unwrap().insert(uid, 2);
        let places = [(); 2].map(|()| Place { open: open.clone(), uid });
        let count = || open.lock().unwrap().get(&uid).copied();
        for (place, left) in places.into_iter().zip([Some(1), None]) {
            drop(place);
            assert_eq!(count(), left);
        }
    }

    // proves WEB-1
    #[test]
    fn the_key_is_compared_whole() {
        let key = ControlKey("0123abcd".into());
        assert!(key.is(b"0123abcd"));
        for other in ["", "0", "0123abc", "0123abce", "0123abcd0", "0123ABCD"] {
            assert!(!key.is(other.as_bytes()), "{other}");
        }
    }

    // proves SEC-3
    #[test]
    fn the_key_is_new_at_each_start_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let (first, file) = ControlKey::make(&socket).unwrap();
        let mode = std::fs::metadata(key_path(&socket)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o640);
        let (second, _) = ControlKey::make(&socket).unwrap();
        assert!(!second.is(first.0.as_bytes()));
        // The key of another daemon stays.
        file.remove();
        assert!(second.is(&std::fs::read(key_path(&socket)).unwrap()));
    }
}
