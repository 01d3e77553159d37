//! Checks the way to a configuration file: the symbolic links on it, and the directories between
//! the configuration directory and the file (CFG-6). In a ConfigMap, `jobs.yaml` is a link to
//! `..data/jobs.yaml`, and `..data` is a link to a directory. `files.rs` checks the file itself.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::ConfigError;
use super::files::{check_ownership, is_shared};

/// The most links on the way to a file; the kernel has the same limit.
const MAX_LINKS: usize = 40;

/// Returns an error if other users could lead `path`, which is below `directory`, to another file.
pub(crate) fn check_way(path: &Path, directory: &Path, own_uid: u32) -> Option<ConfigError> {
    let mut ways = vec![path.to_path_buf()];
    let mut links = 0;
    while let Some(way) = ways.pop() {
        let parts = way.ancestors().take_while(|part| *part != directory);
        for part in parts.filter(|part| part.starts_with(directory)) {
            let Ok(meta) = std::fs::symlink_metadata(part) else { continue };
            if meta.is_dir()
                && let Some(problem) = check_ownership(part, own_uid)
            {
                return Some(problem);
            }
            let Some(parent) = part.parent().filter(|_| meta.is_symlink()) else { continue };
            if meta.uid() != 0 && meta.uid() != own_uid && is_shared(parent) {
                return Some(foreign_link(part, parent, meta.uid()));
            }
            links += 1;
            if let Ok(target) = std::fs::read_link(part)
                && links <= MAX_LINKS
            {
                let target = parent.join(target);
                match way.strip_prefix(part) {
                    Ok(rest) if rest != Path::new("") => ways.push(target.join(rest)),
                    _ => ways.push(target),
                }
            }
        }
    }
    None
}

fn foreign_link(link: &Path, parent: &Path, owner: u32) -> ConfigError {
    let message = format!(
        "uid {owner}, which is neither root nor the user of this process, owns this link and could lead it elsewhere"
    );
    ConfigError::of_file(link.display().to_string(), message)
        .with_hint(format!("remove the link, then chmod go-w {}", parent.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    // proves CFG-6
    #[test]
    fn a_file_that_other_users_could_replace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (root, data) = (dir.path(), dir.path().join("..2026"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("jobs.yaml"), "x").unwrap();
        symlink("..2026", root.join("..data")).unwrap();
        symlink("..data/jobs.yaml", root.join("jobs.yaml")).unwrap();
        set_mode(root, 0o1777);
        set_mode(&data, 0o755);
        let uid = rustix::process::getuid().as_raw();
        let check = || check_way(&root.join("jobs.yaml"), root, uid).map(|error| error.message);
        assert_eq!(check(), None);
        set_mode(&data, 0o777);
        assert!(check().unwrap().contains("everybody can write it"));
        set_mode(&data, 0o755);
        // Only root can give a link away.
        if uid == 0 {
            lchown(root.join("..data"), Some(65534), None).unwrap();
            assert!(check().unwrap().contains("uid 65534"));
            set_mode(root, 0o755);
            assert_eq!(check(), None);
        }
        std::fs::remove_file(root.join("..data")).unwrap();
        symlink("..data", root.join("..data")).unwrap();
        assert_eq!(check(), None, "a circle of links ends");
    }
}
