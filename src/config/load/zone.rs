//! Warns if `local` is in effect and may not mean the zone that the operator expects.

use serde_json::Value;

use super::{Checked, Loader, entries};
use crate::config::{ConfigError, Settings};

impl Loader<'_> {
    /// Reports the problem of the host's zone, once, if any part of the files uses that zone.
    pub(super) fn check_local_zone(
        &self,
        settings: &Settings,
        config: Option<&Checked>,
        jobs: &[Checked],
    ) {
        let Some(problem) = settings.local_zone.problem() else { return };
        let is_local = |name: &Value| name.as_str() == Some("local");
        let default = config.and_then(|file| file.value.get("timezone"));
        let of_files = jobs.iter().filter_map(|file| file.value.pointer("/defaults/timezone"));
        let mut of_jobs = entries(jobs, "jobs").filter_map(|(_, _, job)| job.get("timezone"));
        let is_used = default.is_none_or(is_local)
            || of_files.into_iter().any(is_local)
            || of_jobs.any(is_local);
        if !is_used {
            return;
        }
        // Without the key, no line of the file is the cause.
        let warning = match config.filter(|_| default.is_some()) {
            Some(file) => file.document.error("/timezone", problem),
            None => ConfigError::of_file(self.set.directory.display().to_string(), problem),
        };
        let hint = "set `timezone:` in config.yaml to a name such as Asia/Shanghai, or correct TZ";
        self.warning(warning.with_hint(hint));
    }
}
