//! The state on which a call depends, for approvals and plans: the variables of its program, and
//! the content of the files that it names.
//!
//! An approval and a plan step are valid for this state only. A value that is missing here can
//! change between the question and the call.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::ToolContext;
use super::exec::digest_of_file;
use crate::config::is_secret_name;
use crate::domain::{CallError, ErrorKind, SetBy, Variable};
use crate::process::{HostWork, HostWorkError};

/// Maximum bytes of a file that we hash because an argument names it.
const DIGEST_BYTES: u64 = 16 << 20;

/// The state of a directory: its content is not bound.
pub(super) const DIRECTORY: &str = "directory";

/// The variable of the host that differs in every run: the path of the run's private directory.
const PRIVATE: &str = "TMPDIR";

/// Returns the variables of a program for a person. `own` holds those of its declaration.
pub(super) fn variables(ctx: &ToolContext, own: &BTreeMap<String, String>) -> Vec<Variable> {
    let variable = |name: &str, value: &str, set_by| {
        let is_secret = is_secret_name(name) || ctx.redactor.text(value) != value;
        Variable { name: name.to_owned(), value: (!is_secret).then(|| value.to_owned()), set_by }
    };
    let host = ctx.programs.env.iter();
    host.filter(|(name, _)| *name != PRIVATE && !own.contains_key(*name))
        .map(|(name, value)| variable(name, value, SetBy::Host))
        .chain(own.iter().map(|(name, value)| variable(name, value, SetBy::Tool)))
        .collect()
}

/// Returns the values of the same variables as one text, secrets included. Hash it, never show it.
pub(super) fn values(ctx: &ToolContext, own: &BTreeMap<String, String>) -> String {
    let host = ctx.programs.env.iter().filter(|(name, _)| *name != PRIVATE);
    let all: BTreeMap<&String, &String> = host.chain(own).collect();
    format!("{all:?}")
}

/// Returns the file that an argument names, such as the script of an interpreter. The name is the
/// whole argument, or the value of an option (`--file=name`). Returns `None` if there is no such
/// file.
pub(super) fn named_file(working_dir: &str, argument: &str) -> Option<PathBuf> {
    let value = match argument.split_once('=') {
        Some((option, value)) if option.starts_with('-') => value,
        _ => argument,
    };
    // Rebuilding the path from its components removes `//` and `/./`, as the gate does. A file that
    // an earlier step of a plan writes is then found by its path.
    let path: PathBuf = Path::new(working_dir).join(value).components().collect();
    std::fs::metadata(&path).is_ok_and(|found| found.is_file()).then_some(path)
}

/// Returns the states of files, by path.
///
/// *Errors*: `timeout` if a path gives no answer.
pub(super) async fn states(
    host_work: &HostWork,
    paths: Vec<PathBuf>,
) -> Result<BTreeMap<String, String>, CallError> {
    let mut states = BTreeMap::new();
    for path in paths {
        states.insert(path.display().to_string(), state_of(host_work, path).await?);
    }
    Ok(states)
}

/// Returns the state of a file, as [`crate::domain::Binding`] describes it.
async fn state_of(host_work: &HostWork, path: PathBuf) -> Result<String, CallError> {
    let named = path.clone();
    let meta = match host_work.run(move || std::fs::metadata(named)).await.map_err(late)? {
        Ok(meta) => meta,
        Err(error) => {
            let is_absent =
                matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
            return Ok(if is_absent { "absent" } else { "unreadable" }.to_owned());
        }
    };
    if meta.is_dir() {
        return Ok(DIRECTORY.to_owned());
    }
    if meta.is_file()
        && meta.len() <= DIGEST_BYTES
        && let Ok(digest) = digest_of_file(host_work, path).await
    {
        return Ok(digest);
    }
    let changed = (meta.ctime(), meta.ctime_nsec());
    Ok(format!("{}:{} {} bytes, {changed:?}", meta.dev(), meta.ino(), meta.len()))
}

/// Returns the error of a call whose paths give no answer.
pub(super) fn late(error: HostWorkError) -> CallError {
    CallError::new(ErrorKind::Timeout, format!("A path of the call gives no answer: {error}."))
}
