//! A snapshot of the process environment, and lookups in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A snapshot of environment variables. Omits variables whose name or value is not UTF-8.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Values may be secrets.
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Environment {
    /// Takes a snapshot of the environment of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
                .collect(),
        )
    }

    /// Returns the value of `name`; `None` if it is unset or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns this snapshot with another value of `name`, or without this variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => drop(self.0.insert(name.to_owned(), value.to_owned())),
            None => drop(self.0.remove(name)),
        }
        self
    }

    /// Returns the absolute entries of `PATH`; `None` if it has none (ENV-2). Empty and relative
    /// entries are dropped, because they depend on the working directory of a tool.
    #[must_use]
    pub fn search_path(&self) -> Option<String> {
        let entries: Vec<&str> =
            self.get("PATH")?.split(':').filter(|entry| entry.starts_with('/')).collect();
        (!entries.is_empty()).then(|| entries.join(":"))
    }

    /// Replaces a leading `~/` by the home directory, if `HOME` is set.
    #[must_use]
    pub fn expand_home(&self, path: &str) -> PathBuf {
        match (path.strip_prefix("~/"), self.get("HOME")) {
            (Some(rest), Some(home)) => Path::new(home).join(rest),
            _ => PathBuf::from(path),
        }
    }

    /// Returns the absolute path of `program`; `None` if it is not an executable file. Looks up a
    /// bare name in the absolute entries of `PATH` (ENV-2); rejects a relative path with a slash.
    #[must_use]
    pub fn find_program(&self, program: &str) -> Option<PathBuf> {
        if program.contains('/') {
            let path = self.expand_home(program);
            return (path.is_absolute() && is_program(&path)).then_some(path);
        }
        std::env::split_paths(self.get("PATH").unwrap_or_default())
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(program))
            .find(|path| is_program(path))
    }
}

/// The error for a literal `PATH` that [`is_absolute_search_path`] rejects.
pub(crate) const RELATIVE_PATH: &str = "every entry of PATH must be an absolute path: empty and relative entries depend on the working directory of the tool";

/// Tells whether every entry of `path`, a value of `PATH`, is absolute (ENV-2).
pub(crate) fn is_absolute_search_path(path: &str) -> bool {
    path.split(':').all(|entry| entry.starts_with('/'))
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(iter: T) -> Self {
        Self(iter.into_iter().collect())
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves ENV-2
    #[test]
    fn only_absolute_entries_of_path_reach_a_tool() {
        let path = |value: &str| {
            Environment::from_iter([("PATH".to_owned(), value.to_owned())]).search_path()
        };
        assert_eq!(path(":/bin::rel:.:/usr/bin:").as_deref(), Some("/bin:/usr/bin"));
        assert_eq!(path(".:x"), None);
    }

    // proves ENV-2
    #[test]
    fn programs_are_found_through_absolute_entries_only() {
        let dir = tempfile::tempdir().unwrap();
        let planted = dir.path().join("planted");
        std::fs::copy("/bin/true", &planted).unwrap();
        let with_path = |path: String| Environment::from_iter([("PATH".to_owned(), path)]);
        assert_eq!(
            with_path(dir.path().display().to_string()).find_program("planted"),
            Some(planted)
        );
        assert_eq!(with_path(":.:bin".to_owned()).find_program("true"), None);
        assert_eq!(with_path("/bin".to_owned()).find_program("./true"), None);
        assert!(with_path("/bin".to_owned()).find_program("true").is_some());
    }
}
