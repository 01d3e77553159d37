//! The `list_directory` tool.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::fs::FileType;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::remote_files::Contents;
use super::super::walk::{Next, Walk};
use super::{Answer, Work};
use crate::domain::{CallError, ErrorKind};
use crate::gate::shown;

/// Maximum number of entries that a call collects, regardless of `limit`: sorting needs all of
/// them.
const LOOKED_AT: usize = 200_000;

#[derive(Deserialize)]
struct ListDirectory {
    path: Option<String>,
    depth: Option<usize>,
    limit: Option<usize>,
}

pub(super) fn list_directory(
    arguments: &Map<String, Value>,
    work: &Work<'_>,
) -> Result<Answer, CallError> {
    let asked: ListDirectory = super::parsed(arguments)?;
    let (path, depth) = (asked.path.as_deref().unwrap_or("."), asked.depth.unwrap_or(1));
    let root = work.files().open_tree(path, depth, Contents::None, false)?;
    let name = shown(root.path.as_os_str());
    if !root.is_dir {
        let message = format!("`{name}` is not a directory: use read_file.");
        return Err(CallError::new(ErrorKind::Io, message));
    }
    let found: Mutex<Vec<(PathBuf, bool)>> = Mutex::default();
    let lock = || found.lock().unwrap_or_else(PoisonError::into_inner);
    let walk = Walk {
        rules: &work.ctx.access.paths,
        root: &root,
        ignores: false,
        depth,
        is_steady: false,
        is_over: &|| work.go_on().is_err(),
    };
    let left_out = walk.run(&|entry| {
        let mut found = lock();
        found.push((entry.relative.to_path_buf(), entry.kind == FileType::Directory));
        if found.len() > LOOKED_AT { Next::Stop } else { Next::GoOn }
    });
    work.go_on()?;
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    if found.len() > LOOKED_AT {
        let message = format!(
            "`{name}` holds more than {LOOKED_AT} entries: list a directory below it, or use glob."
        );
        return Err(CallError::new(ErrorKind::Limit, message));
    }
    found.sort_unstable();
    let limit = asked.limit.unwrap_or(500);
    let mut answer = Answer::default();
    for (path, is_dir) in found.iter().take(limit) {
        answer.text.push_str(&shown(path.as_os_str()));
        answer.text.push_str(if *is_dir { "/\n" } else { "\n" });
    }
    if found.is_empty() {
        answer.text = format!("[`{name}` is empty]");
    }
    if found.len() > limit {
        answer.text.push_str(&format!("[{} more entries: raise `limit`]", found.len() - limit));
        answer.details.insert("entry_limit_reached".to_owned(), Value::from(limit));
    }
    answer.add_note(&left_out.note());
    Ok(answer)
}
