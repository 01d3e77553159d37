//! Selects the files of a configuration and checks whether other users could have written them
//! (CFG-6).

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ConfigError;
use super::document::FILE_BYTES_LIMIT;
use super::recorded::RecordedFiles;
use super::schema::SchemaName;

/// How to treat a file that other users could have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Reports an error; for verbs that act, such as `serve` and `run`, and for verbs that check
    /// the installed configuration, such as `doctor` and `validate` without a path.
    Required,
    /// Reports a warning; for verbs that only show something, such as `jobs`, and for `validate`
    /// with a path.
    Advised,
    /// Skips the check; used for files that we have just written.
    Given,
}

/// The files of a configuration, in the order in which the loader reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSet {
    /// The base of relative paths in the files.
    pub directory: PathBuf,
    pub(crate) config: Option<PathBuf>,
    pub(crate) jobs: Vec<PathBuf>,
    pub(crate) tools: Vec<PathBuf>,
    /// The files of `models.d`.
    pub(crate) models: Vec<PathBuf>,
    /// Files whose ending is almost `.yaml`. The loader refuses them, because to ignore one would
    /// drop the jobs, tools or limits in it.
    pub(crate) misnamed: Vec<PathBuf>,
    /// The texts of the files, if a run recorded them; the files themselves are then not read.
    pub(crate) recorded: Option<Arc<RecordedFiles>>,
    /// Whether the caller named single files instead of a directory. Files may then be missing, so
    /// a job without a model is not reported.
    pub(crate) is_partial: bool,
}

impl FileSet {
    /// Returns the files of a configuration directory: `config.yaml`, `jobs.yaml`, `jobs.d/*.yaml`,
    /// `tools.yaml`, `tools.d/*.yaml`.
    ///
    /// *Errors*: a directory cannot be read, or there is no jobs or tools file. A missing file never
    /// means "no jobs" (CFG-2).
    pub fn of_directory(directory: &Path) -> Result<Self, ConfigError> {
        let name = directory.display().to_string();
        if let Err(error) = std::fs::read_dir(directory) {
            let remedy = if error.kind() == std::io::ErrorKind::NotFound {
                "run `dutyd init` to write starter files"
            } else {
                "run this command as root or as the user of the daemon"
            };
            return Err(ConfigError::of_file(
                name,
                format!("the configuration directory cannot be read: {error}"),
            )
            .with_hint(format!("{remedy}, or name another directory with --config-dir")));
        }
        let named = |name: String| Some(directory.join(name)).filter(|path| is_present(path));
        let mut misnamed: Vec<PathBuf> = named("config.yml".to_owned()).into_iter().collect();
        let mut with_fragments = |kind: &str| -> Result<Vec<PathBuf>, ConfigError> {
            let mut files: Vec<PathBuf> = named(format!("{kind}.yaml")).into_iter().collect();
            misnamed.extend(named(format!("{kind}.yml")));
            let listing = list(&directory.join(format!("{kind}.d")))?;
            files.extend(listing.files);
            misnamed.extend(listing.misnamed);
            Ok(files)
        };
        let (jobs, tools) = (with_fragments("jobs")?, with_fragments("tools")?);
        for (files, kind) in [(&jobs, "jobs"), (&tools, "tools")] {
            // A misnamed file is reported with its own name.
            if files.is_empty() && misnamed.is_empty() {
                return Err(ConfigError::of_file(name, format!("neither {kind}.yaml nor {kind}.d/*.yaml exists"))
                    .with_hint(format!("run `dutyd init` to write starter files, or write a {kind}.yaml with `{kind}: []` to define none")));
            }
        }
        Ok(Self {
            directory: directory.to_path_buf(),
            config: named("config.yaml".to_owned()),
            jobs,
            tools,
            models: list_models(directory)?,
            misnamed,
            recorded: None,
            is_partial: false,
        })
    }

    /// Returns the files that a run recorded.
    #[must_use]
    pub fn of_record(recorded: Arc<RecordedFiles>) -> Self {
        let config = recorded.directory.join("config.yaml");
        Self {
            directory: recorded.directory.clone(),
            config: recorded.text(&config).is_some().then_some(config),
            jobs: recorded.of_kind("jobs"),
            tools: recorded.of_kind("tools"),
            models: recorded.models(),
            misnamed: Vec::new(),
            recorded: Some(recorded),
            is_partial: false,
        }
    }

    /// Returns the paths of the files, including those that the loader refuses for their names.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let files = self.config.iter().chain(&self.jobs).chain(&self.tools);
        files.chain(&self.models).chain(&self.misnamed).map(PathBuf::as_path)
    }

    /// Returns the text of a file of the set, or of a file that one of them names.
    ///
    /// *Errors*: the file cannot be read, is too large, or is not UTF-8.
    pub(crate) fn read(&self, path: &Path) -> Result<String, ConfigError> {
        let Some(recorded) = &self.recorded else { return read(path) };
        let missing =
            || ConfigError::of_file(path.display().to_string(), "the file was not recorded");
        recorded.text(path).map(str::to_owned).ok_or_else(missing)
    }

    /// Returns the named files. The kind of a file follows from its name or folder (such as
    /// `jobs.d`), else from its content.
    /// Adds files from the first file's directory: `config.yaml` if the caller named none, and the
    /// tools files if the caller named jobs files but no tools files.
    ///
    /// *Errors*: a file cannot be read.
    pub fn of_files(files: &[PathBuf]) -> Result<Self, ConfigError> {
        let directory = files
            .first()
            .and_then(|file| file.parent())
            .map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
            .unwrap_or(Path::new("."));
        let mut set = Self {
            directory: directory.to_path_buf(),
            config: None,
            jobs: Vec::new(),
            tools: Vec::new(),
            models: Vec::new(),
            misnamed: Vec::new(),
            recorded: None,
            is_partial: true,
        };
        for file in files {
            match kind_of(file)? {
                SchemaName::Jobs => set.jobs.push(file.clone()),
                SchemaName::Tools => set.tools.push(file.clone()),
                _ => set.config = Some(file.clone()),
            }
        }
        set.models = list_models(directory)?;
        let beside = |name: &str| Some(directory.join(name)).filter(|path| path.is_file());
        set.config = set.config.or_else(|| beside("config.yaml"));
        if set.tools.is_empty() && !set.jobs.is_empty() {
            set.tools.extend(beside("tools.yaml"));
            let listing = list(&directory.join("tools.d"))?;
            set.tools.extend(listing.files);
            set.misnamed.extend(listing.misnamed);
        }
        Ok(set)
    }
}

/// The files of one directory that look like configuration, by name.
#[derive(Default)]
struct Listing {
    files: Vec<PathBuf>,
    /// Files whose ending is almost `.yaml`.
    misnamed: Vec<PathBuf>,
}

/// Lists `jobs.d` or `tools.d`. A directory that does not exist is empty.
///
/// *Errors*: the directory cannot be read. Its files must not count as missing (CFG-2).
fn list(directory: &Path) -> Result<Listing, ConfigError> {
    let mut listing = Listing::default();
    for path in entries(directory)? {
        let is_like_yaml = path.extension().is_some_and(|ending| {
            ["yaml", "yml"].iter().any(|known| ending.eq_ignore_ascii_case(known))
        });
        if is_fragment(&path) {
            listing.files.push(path);
        } else if is_like_yaml && !is_hidden(&path) {
            listing.misnamed.push(path);
        }
    }
    Ok(listing)
}

/// Returns the entries of a directory, sorted. A directory that does not exist is empty.
///
/// *Errors*: the directory cannot be read. Its files must not count as missing (CFG-2).
fn entries(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    if !is_present(directory) {
        return Ok(Vec::new());
    }
    let failed = |error: std::io::Error| {
        let name = directory.display().to_string();
        ConfigError::of_file(name, format!("the directory cannot be read: {error}"))
    };
    let listed = std::fs::read_dir(directory).map_err(failed)?;
    let paths = listed.map(|entry| entry.map(|entry| entry.path()).map_err(failed));
    let mut paths = paths.collect::<Result<Vec<PathBuf>, ConfigError>>()?;
    paths.sort();
    Ok(paths)
}

/// Lists the files of `models.d`, which end in `.json`. A directory that does not exist is empty.
///
/// *Errors*: the directory cannot be read, or a file in it has another ending and would be ignored.
fn list_models(directory: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut files = entries(&directory.join("models.d"))?;
    files.retain(|path| !is_hidden(path) && !path.as_os_str().as_encoded_bytes().ends_with(b"~"));
    match files.iter().find(|path| path.extension().is_none_or(|ending| ending != "json")) {
        None => Ok(files),
        Some(path) => {
            let message = "dutyd reads only files that end in `.json` here";
            Err(ConfigError::of_file(path.display().to_string(), message)
                .with_hint("rename it, or remove it"))
        }
    }
}

/// Tells whether the loader reads a file of this name in `jobs.d` or `tools.d`. It skips names that
/// begin with a dot: editors and ConfigMaps give them to files of their own.
pub(crate) fn is_fragment(path: &Path) -> bool {
    !is_hidden(path) && path.extension().is_some_and(|ending| ending == "yaml")
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Tells whether something has this name, even a link to nothing, which must fail when it is read.
fn is_present(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    !found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn kind_of(file: &Path) -> Result<SchemaName, ConfigError> {
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let parent = file
        .parent()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    for (word, kind) in
        [("jobs", SchemaName::Jobs), ("tools", SchemaName::Tools), ("config", SchemaName::Config)]
    {
        if name.starts_with(word) || parent == format!("{word}.d") {
            return Ok(kind);
        }
    }
    let text = read(file)?;
    let has_key = |key: &str| {
        text.lines().any(|line| {
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with(':'))
        })
    };
    Ok(if has_key("jobs") {
        SchemaName::Jobs
    } else if has_key("tools") {
        SchemaName::Tools
    } else {
        SchemaName::Config
    })
}

/// Reads a configuration file of at most [`FILE_BYTES_LIMIT`] bytes.
///
/// *Errors*: the file cannot be read, is too large, or is not UTF-8.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    use std::io::Read as _;
    let name = path.display().to_string();
    let fail = |reason: String| ConfigError::of_file(name.clone(), reason);
    let meta = std::fs::metadata(path)
        .map_err(|error| fail(format!("the file cannot be read: {error}")))?;
    if !meta.is_file() {
        return Err(fail("not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)
        .map_err(|error| fail(format!("the file cannot be read: {error}")))?;
    file.take(FILE_BYTES_LIMIT as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| fail(format!("the file cannot be read: {error}")))?;
    if bytes.len() > FILE_BYTES_LIMIT {
        return Err(fail(format!("the file has more than {FILE_BYTES_LIMIT} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        fail(format!("invalid UTF-8 at byte offset {}", error.utf8_error().valid_up_to()))
    })
}

/// Only owners can rename or remove the entries of a directory with this bit.
const STICKY: u32 = 0o1000;

/// Returns an error if other users could have written `path`. The hint of the error is the command
/// that corrects the mode or the owner, or the way to mount a directory.
pub(crate) fn check_ownership(path: &Path, own_uid: u32) -> Option<ConfigError> {
    let name = path.display().to_string();
    let meta = std::fs::metadata(path).ok()?;
    if is_read_only_mount(path) {
        return None;
    }
    let mode = meta.mode() & 0o7777;
    // Others can add entries to a sticky directory, but the owner of such an entry is refused.
    if mode & 0o022 != 0 && !(meta.is_dir() && mode & STICKY != 0) {
        let who = if mode & 0o002 != 0 { "everybody" } else { "its group" };
        let mount = if meta.is_dir() {
            format!(
                ", or mount it read-only (Kubernetes: `readOnly: true` in `volumeMounts`; docker: `--volume SOURCE:{name}:ro`)"
            )
        } else {
            String::new()
        };
        return Some(
            ConfigError::of_file(
                &name,
                format!(
                    "{who} can write it (mode {mode:04o}) and could add rights that you did not grant"
                ),
            )
            .with_hint(format!("chmod go-w {name}{mount}")),
        );
    }
    if meta.uid() != 0 && meta.uid() != own_uid {
        return Some(
            ConfigError::of_file(
                &name,
                format!(
                    "it belongs to uid {}, which is neither root nor the user of this process",
                    meta.uid()
                ),
            )
            .with_hint(format!("chown {own_uid} {name}")),
        );
    }
    None
}

/// Returns an error if other users could replace the entries of the directory `above`. With the
/// sticky bit set, only owners can replace an entry.
pub(crate) fn check_ownership_above(above: &Path, own_uid: u32) -> Option<ConfigError> {
    let meta = std::fs::metadata(above).ok()?;
    let mode = meta.mode() & 0o7777;
    let name = above.display().to_string();
    let fail = |why: String, hint: String| {
        let message = format!("{why} and could replace the configuration");
        Some(ConfigError::of_file(&name, message).with_hint(hint))
    };
    if mode & 0o022 != 0 && mode & STICKY == 0 && !is_read_only_mount(above) {
        return fail(
            format!("others can write this directory (mode {mode:04o})"),
            format!("chmod go-w {name}"),
        );
    }
    if meta.uid() != 0 && meta.uid() != own_uid {
        let owner = meta.uid();
        return fail(
            format!(
                "uid {owner}, which is neither root nor the user of this process, owns this directory"
            ),
            format!("move the configuration, or chown {own_uid} {name}"),
        );
    }
    None
}

/// Returns an error if `path`, with symbolic links resolved, is outside `directory`.
pub(crate) fn leaves(path: &Path, directory: &Path) -> Option<ConfigError> {
    let name = path.display().to_string();
    let real = std::fs::canonicalize(path).ok()?;
    let inside = std::fs::canonicalize(directory).ok()?;
    (!real.starts_with(&inside)).then(|| {
        ConfigError::of_file(
            &name,
            format!("the path leaves the configuration directory and leads to {}", real.display()),
        )
        .with_hint("move the file into the configuration directory; do not use a symbolic link")
    })
}

/// Tells whether users other than the owner can change the entries of a directory, apart from what
/// the sticky bit prevents.
pub(super) fn is_shared(directory: &Path) -> bool {
    let mode = std::fs::metadata(directory).map(|meta| meta.mode());
    mode.is_ok_and(|mode| mode & 0o022 != 0) && !is_read_only_mount(directory)
}

fn is_read_only_mount(path: &Path) -> bool {
    rustix::fs::statvfs(path)
        .is_ok_and(|facts| facts.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    // proves CFG-6
    #[test]
    fn files_that_others_can_write_are_distrusted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("jobs.yaml");
        std::fs::write(&file, "x").unwrap();
        let uid = rustix::process::getuid().as_raw();
        let with_mode = |mode: u32| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            check_ownership(&file, uid)
        };
        assert_eq!(with_mode(0o644), None);
        assert!(with_mode(0o664).unwrap().message.contains("its group can write"));
        let error = with_mode(0o666).unwrap();
        assert!(error.message.contains("everybody"));
        assert_eq!(error.hint.unwrap(), format!("chmod go-w {}", file.display()));
        let link = dir.path().join("tools.yaml");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        assert!(
            leaves(&link, dir.path())
                .unwrap()
                .message
                .contains("leaves the configuration directory")
        );
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(leaves(&file, dir.path()), None);
        let set_mode = |mode: u32| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.path(), permissions).unwrap();
        };
        set_mode(0o1777);
        assert_eq!(check_ownership(dir.path(), uid), None);
        set_mode(0o777);
        let error = check_ownership(dir.path(), uid).unwrap();
        assert!(error.hint.unwrap().contains("mount it read-only"));
        let above = |mode: u32| {
            set_mode(mode);
            check_ownership_above(dir.path(), uid).is_some()
        };
        assert_eq!(
            [0o755, 0o1777, 0o700, 0o775, 0o777].map(above),
            [false, false, false, true, true]
        );
        assert!(check_ownership_above(dir.path(), uid + 1).is_some());
        assert!(check_ownership(&file, uid + 1).is_some() == (uid != 0));
    }

    // proves CFG-2
    #[test]
    fn a_file_is_never_left_out_in_silence() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["jobs.yaml", "tools.yaml", "jobs.d/a.yaml", "jobs.d/b.yml", "jobs.d/c.YAML"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
        };
        link("user@host.4711:1", "jobs.d/.#a.yaml");
        link("nothing", "config.yaml");
        let names = |paths: &[PathBuf]| -> Vec<String> {
            paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into()).collect()
        };
        let set = FileSet::of_directory(dir.path()).unwrap();
        assert_eq!(names(&set.jobs), ["jobs.yaml", "a.yaml"]);
        assert_eq!(names(&set.misnamed), ["b.yml", "c.YAML"]);
        let config = set.config.as_ref().unwrap();
        assert!(set.read(config).unwrap_err().message.contains("cannot be read"));
        // A file in place of `tools.d` cannot be listed.
        std::fs::write(dir.path().join("tools.d"), "x").unwrap();
        let error = FileSet::of_directory(dir.path()).unwrap_err();
        assert!(error.message.contains("the directory cannot be read"), "{error:?}");
    }

    #[test]
    fn only_a_missing_directory_is_answered_with_init() {
        let dir = tempfile::tempdir().unwrap();
        let hint = |name: &str| {
            let error = FileSet::of_directory(&dir.path().join(name)).unwrap_err();
            error.hint.unwrap_or_default()
        };
        assert!(hint("none").contains("dutyd init"));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(!hint("file").contains("dutyd init"));
    }
}
