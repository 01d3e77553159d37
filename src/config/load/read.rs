//! Checks whether other users could have written the configuration files, reads the files, and
//! validates each one with the schema of its kind.

use std::path::{Path, PathBuf};

use sha2::Digest as _;

use super::{Checked, Loader};
use crate::config::document;
use crate::config::files::{check_ownership, check_ownership_above, leaves};
use crate::config::interpolate::interpolate;
use crate::config::links::check_way;
use crate::config::schema::FileSchema;
use crate::config::{ConfigError, Trust};

impl Loader<'_> {
    /// Checks the configuration directory and every directory above it: a user who can write one of
    /// them can replace the configuration.
    pub(super) fn trust_directory(&self) {
        if !self.trust_path(&self.set.directory) || self.trust == Trust::Given {
            return;
        }
        // A user who can write a directory above a link to the configuration can replace the link.
        let ways =
            [std::fs::canonicalize(&self.set.directory), std::path::absolute(&self.set.directory)];
        let problem = ways.iter().flatten().find_map(|way| {
            way.ancestors().skip(1).find_map(|above| check_ownership_above(above, self.own_uid))
        });
        match problem {
            Some(problem) if self.trust == Trust::Required => self.error(problem),
            Some(problem) => self.warning(problem),
            None => {}
        }
    }

    /// Refuses the files whose names end almost like those that dutyd reads.
    pub(super) fn refuse_misnamed(&self) {
        for path in &self.set.misnamed {
            let ending = path.extension().unwrap_or_default().to_string_lossy();
            let message = format!(
                "the ending `.{ending}` is not read, so everything in this file would be missing"
            );
            let right = path.with_extension("yaml");
            self.error(
                ConfigError::of_file(path.display().to_string(), message)
                    .with_hint(format!("rename it to {}, or remove it", right.display())),
            );
        }
    }

    /// Tells whether a path may be read. Reports any problem, as an error or as a warning.
    #[must_use]
    fn trust_path(&self, path: &Path) -> bool {
        if self.trust == Trust::Given {
            return true;
        }
        if let Some(problem) = leaves(path, &self.set.directory) {
            self.error(problem);
            return false;
        }
        let way = check_way(path, &self.set.directory, self.own_uid);
        let Some(problem) = way.or_else(|| check_ownership(path, self.own_uid)) else {
            return true;
        };
        let is_refused = self.trust == Trust::Required;
        if is_refused {
            self.error(problem);
        } else {
            self.warning(problem);
        }
        !is_refused
    }

    pub(super) fn read(&self, path: &Path, schema: &FileSchema) -> Option<Checked> {
        let is_below = |folder: &&Path| {
            *folder != self.set.directory && folder.starts_with(&self.set.directory)
        };
        let folder = path.parent().filter(is_below);
        if !folder.is_none_or(|folder| self.trust_path(folder)) || !self.trust_path(path) {
            return None;
        }
        let name = path.display().to_string();
        let text = self.set.read(path).map_err(|error| self.error(error)).ok()?;
        self.add_to_digest(path, &text);
        let (document, errors) = document::parse(&name, &text);
        errors.into_iter().for_each(|error| self.error(error));
        let mut document = document?;
        let kind = schema.name().as_str();
        interpolate(
            &mut document,
            kind,
            self.environment,
            self.secrets,
            &mut self.found.borrow_mut(),
        );
        let (errors, value) = schema.check(&document);
        errors.into_iter().for_each(|error| self.error(error));
        Some(Checked { document, value })
    }

    /// Reads a file that a configuration file refers to, relative to the configuration directory.
    pub(super) fn beside(&self, path: &str) -> Result<(PathBuf, String), ConfigError> {
        let path = self.set.directory.join(self.environment.expand_home(path));
        // A user who can write a directory can replace the files in it.
        let above = path.ancestors().skip(1);
        for directory in above.take_while(|above| {
            above.starts_with(&self.set.directory) && **above != self.set.directory
        }) {
            if !self.trust_path(directory) {
                return Err(refused(directory));
            }
        }
        if !self.trust_path(&path) {
            return Err(refused(&path));
        }
        let text = self.set.read(&path)?;
        self.add_to_digest(&path, &text);
        Ok((path, text))
    }

    /// Adds the text of a file to the digest of the configuration. Its length comes first, so that
    /// text that moves from one file to the next changes the digest.
    fn add_to_digest(&self, path: &Path, text: &str) {
        self.files.borrow_mut().add(path, text);
        let mut digest = self.digest.borrow_mut();
        digest.update(text.len().to_be_bytes());
        digest.update(text);
    }
}

/// Returns the error for a value that refers to an untrusted file. The loader has already reported
/// why it does not trust the file.
fn refused(path: &Path) -> ConfigError {
    ConfigError::of_file(path.display().to_string(), "not read because it is not trusted")
}
