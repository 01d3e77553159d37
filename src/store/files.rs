//! Private files and directories.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Creates a directory and its missing parents with mode 0700. Existing directories are left
/// unchanged.
///
/// *Errors*: any I/O error.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Removes the permissions of group and others from a directory of this user.
///
/// *Errors*: any I/O error; another user owns the directory and others can access it.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path)?;
    if meta.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        let message = format!(
            "{} is owned by uid {} and open to other users; change its owner to the user of dutyd",
            path.display(),
            meta.uid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
    tracing::warn!(path = %path.display(), "removed the permissions of other users from the directory");
    Ok(())
}

/// Opens a file for reading and appending; creates it with mode 0600 if it is missing. Does not
/// follow a symlink.
///
/// *Errors*: any I/O error.
pub fn append_private(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(path)
}

/// Replaces a file atomically: writes a temporary file beside it, syncs and renames it, and syncs
/// the directory.
///
/// *Errors*: any I/O error; unless only the last sync failed, the old content is still in place.
pub fn write_atomic(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    // Several threads may write the same file.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = directory.join(format!(".{name}.{}.{number}.new", std::process::id()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_replace_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::thread::scope(|scope| {
            for byte in 0..8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        write_atomic(path, &[byte; 1000]).unwrap();
                    }
                });
            }
        });
        let content = std::fs::read(&path).unwrap();
        assert!(content.len() == 1000 && content.iter().all(|byte| *byte == content[0]));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
