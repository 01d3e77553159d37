//! Checks whether the caller may read or write dutyd's files, and names the remedy if not.
//!
//! A file that exists but is not readable is an error, never "absent".

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Access, access};

use super::error::CliError;
use super::output;
use crate::config::Dirs;
use crate::process::person;

/// Checks that the caller owns the state directory, if it exists.
///
/// *Errors*: another user owns it, and the hint is the `sudo` command that works; or its metadata
/// cannot be read.
pub(crate) fn check_state_owner(dirs: &Dirs) -> Result<(), CliError> {
    let state = &dirs.state;
    let meta = match std::fs::metadata(state) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(denied(state, &error)),
    };
    if meta.uid() == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    let owner = person(meta.uid()).user;
    Err(CliError::failed(format!(
        "{} belongs to {owner}, and only its owner may do this",
        state.display()
    ))
    .hint(sudo_command(dirs, &owner)))
}

/// Returns this command as a `sudo -u OWNER` line that names the directories in use.
fn sudo_command(dirs: &Dirs, owner: &str) -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| {
        args.iter().any(|arg| {
            arg.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    let mut words = vec!["sudo".to_owned(), "-u".to_owned(), owner.to_owned(), output::own_path()];
    let named = [("--config-dir", &dirs.config), ("--state-dir", &dirs.state)];
    for (flag, path) in named {
        if !has(flag) {
            words.extend([flag.to_owned(), path.display().to_string()]);
        }
    }
    words.extend(args);
    words.iter().map(|word| output::shell_word(word)).collect::<Vec<_>>().join(" ")
}

/// Tells whether `path` exists.
///
/// *Errors*: the caller cannot read `path`, or cannot tell whether it exists.
pub(crate) fn exists_and_readable(path: &Path) -> Result<bool, CliError> {
    let wanted = if path.is_dir() { Access::READ_OK | Access::EXEC_OK } else { Access::READ_OK };
    match access(path, wanted) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(false),
        Err(error) => Err(denied(path, &error.into())),
    }
}

/// Returns the error for an unusable path. If permission is denied, the error names the file or
/// directory that denies it, the owner of that and a remedy.
pub(crate) fn denied(path: &Path, error: &io::Error) -> CliError {
    let plain = CliError::failed(format!("cannot use {}", path.display())).because(error);
    // From `path` upwards, the first path whose metadata we can read is the one that denies access.
    let found = path.ancestors().find_map(|above| Some((above, std::fs::metadata(above).ok()?)));
    let Some((above, meta)) = found.filter(|_| error.kind() == io::ErrorKind::PermissionDenied)
    else {
        return plain;
    };
    let (owner, group) = (person(meta.uid()).user, group(meta.gid()));
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

fn group(gid: u32) -> String {
    let found = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(gid)).ok().flatten();
    found.map_or_else(|| format!("#{gid}"), |group| group.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_file_is_not_an_unreadable_file() {
        let temp = tempfile::tempdir().unwrap();
        assert!(!exists_and_readable(&temp.path().join("none")).unwrap());
        assert!(exists_and_readable(temp.path()).unwrap());
        let denied = denied(&temp.path().join("none/x"), &io::ErrorKind::PermissionDenied.into());
        assert!(denied.message.contains(&temp.path().display().to_string()), "{denied:?}");
        assert!(denied.message.contains("belongs to") && denied.hints[0].contains("sudo -u"));
        assert_eq!(denied.exit(), super::super::exit::Exit::Failed);
    }
}
