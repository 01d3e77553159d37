//! The files of a configuration as a run recorded them, so that the run can continue with them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The text of every file that the digest of a configuration covers, with references unresolved.
///
/// *Shape*: `{"directory":"/etc/dutyd","files":{"jobs.yaml":"version: 1\n…","jobs.d/web.yaml":"…"}}`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedFiles {
    /// The base of relative paths in the files.
    pub directory: PathBuf,
    /// The files by their path relative to `directory`; a file elsewhere by its full path.
    pub files: BTreeMap<String, String>,
}

impl RecordedFiles {
    /// Adds a file that was read.
    pub(super) fn add(&mut self, path: &Path, text: &str) {
        self.files.insert(self.name_of(path), text.to_owned());
    }

    /// Returns the text of a file, if it was recorded.
    pub(super) fn text(&self, path: &Path) -> Option<&str> {
        self.files.get(&self.name_of(path)).map(String::as_str)
    }

    fn name_of(&self, path: &Path) -> String {
        path.strip_prefix(&self.directory).unwrap_or(path).display().to_string()
    }

    /// Returns the paths of the files of `models.d`.
    pub(super) fn models(&self) -> Vec<PathBuf> {
        let is_own = |name: &&String| name.starts_with("models.d/") && name.ends_with(".json");
        self.files.keys().filter(is_own).map(|name| self.directory.join(name)).collect()
    }

    /// Returns the paths of the files of a kind (`jobs`, `tools`) in the order in which the loader
    /// reads them.
    pub(super) fn of_kind(&self, kind: &str) -> Vec<PathBuf> {
        let (main, fragments) = (format!("{kind}.yaml"), format!("{kind}.d/"));
        let is_fragment = |name: &&String| {
            name.strip_prefix(&fragments)
                .is_some_and(|rest| !rest.contains('/') && rest.ends_with(".yaml"))
        };
        let names = self.files.keys().filter(|name| **name == main);
        names.chain(self.files.keys().filter(is_fragment)).map(|n| self.directory.join(n)).collect()
    }
}
