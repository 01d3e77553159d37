//! Private files and directories.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

/// Makes a directory and those above it, 0700 each; one that is there is left as it is.
///
/// *Errors*: what the kernel says.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Takes the rights of others from a directory that belongs to this user.
///
/// *Errors*: what the kernel says; the directory belongs to another user.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path)?;
    if meta.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        let message =
            format!("{} belongs to uid {} and is open to others", path.display(), meta.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    tracing::warn!(path = %path.display(), "the directory was open to others; it is private now");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}

/// Makes a new file for appending, 0600; one that is there is opened.
///
/// *Errors*: what the kernel says.
pub fn append_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
}

/// Replaces a file whole: written beside it, synced, renamed, the directory synced.
///
/// *Errors*: what the kernel says; the old content is then still there.
pub fn write_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let beside = directory.join(format!(".{name}.{}.new", std::process::id()));
    let write = || {
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(directory)?.sync_all()
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&beside)))
}
