//! Where an answer comes from, and whether the caller may read it. A thing that exists and is not readable is an error here, never "absent".

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::error::CliError;

/// Returns the error for a thing that cannot be used: what it is, whose it is, what helps.
pub(crate) fn denied(path: &Path, error: &io::Error) -> CliError {
    let plain = CliError::failed(format!("{} cannot be used: {error}", path.display()));
    // The nearest path above that can be looked at is the one that is closed.
    let found = path.ancestors().find_map(|above| Some((above, std::fs::metadata(above).ok()?)));
    let Some((above, meta)) = found.filter(|_| error.kind() == io::ErrorKind::PermissionDenied)
    else {
        return plain;
    };
    let (owner, group) = (user(meta.uid()), group(meta.gid()));
    let denied = CliError::failed(format!(
        "{} cannot be read: {} belongs to {owner}:{group} (mode {:04o})",
        path.display(),
        above.display(),
        meta.mode() & 0o7777
    ))
    .hint(format!("run this command as {owner}: sudo -u {owner} dutyd …"));
    match meta.mode() & 0o040 {
        0 => denied,
        _ => denied.hint(format!("or join the group: usermod -aG {group} USER")),
    }
}

/// Returns the name of a user, or `#UID`.
pub(crate) fn user(uid: u32) -> String {
    let found = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    found.map_or_else(|| format!("#{uid}"), |user| user.name)
}

fn group(gid: u32) -> String {
    let found = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(gid)).ok().flatten();
    found.map_or_else(|| format!("#{gid}"), |group| group.name)
}
