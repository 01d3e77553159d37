//! The files of another host, container or pod, with the interface of local files. A file is
//! fetched into memory and a tree into a directory of the run; a write replaces the whole file.
//!
//! The target is untrusted, like any tool output: names are parsed strictly and sizes are limited.
//! A path is checked as it is named, and again as `readlink` on the target resolves it. Before the
//! path is used, a process on the target could still replace a part of it with a link; only the
//! file permissions there prevent this.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use tokio_util::sync::CancellationToken;

use super::ToolContext;
use super::environment::TargetError;
use super::file_error::dangling_link;
use super::remote_script::{Asked, ask, said};
use crate::domain::{CallError, ErrorKind};
use crate::gate::{PathRules, shown};

/// Maximum bytes that we fetch of a single file, and of all files of a tree together.
const MAX_BYTES: usize = 64 << 20;

/// Maximum bytes that we fetch of one file of a tree, inclusive.
const FILE_BYTES: u64 = 4 << 20;

/// Maximum number of entries of a tree; each component of a name counts.
const MAX_ENTRIES: usize = 50_000;

/// Exit codes to which the scripts give a meaning, in addition to 0 and to 21, which stands for a
/// directory.
const ABSENT: i32 = 3;
const NO_FILE: i32 = 4;
const MOVED: i32 = 5;
const CUT: i32 = 6;
const DANGLING: i32 = 7;

/// Resolves the existing part of each argument, and prints each path with a NUL after it.
const REAL: &str = "for f do p=$f; r=; while [ ! -e \"$p\" ] && [ ! -L \"$p\" ]; do r=/$(basename -- \"$p\")$r; p=$(dirname -- \"$p\"); done; d=$(readlink -f -- \"$p\") || exit 5; [ \"$d\" = / ] && d=; d=$d$r; printf '%s\\0' \"${d:-/}\"; done";

/// Prints the first `$2` bytes of the file `$1`, or exits with a code that tells why it cannot.
const READ: &str = "[ \"$(readlink -f -- \"$1\")\" = \"$1\" ] || [ ! -e \"$1\" ] || exit 5; [ -e \"$1\" ] || exit 3; [ -d \"$1\" ] && exit 21; [ -f \"$1\" ] || exit 4; exec head -c \"$2\" -- \"$1\"";

/// Replaces the content of the file `$1` with the `$3` bytes of standard input, and creates missing
/// directories. `$2` ends the name of the temporary file. Keeps the mode without the set-id bits
/// (only the last three digits of the mode are kept) and, where permitted, the owner.
const WRITE: &str = "d=$(dirname -- \"$1\"); e=$d; while [ ! -e \"$e\" ] && [ ! -L \"$e\" ]; do e=$(dirname -- \"$e\"); done; [ \"$(readlink -f -- \"$e\")\" = \"$e\" ] || exit 5; mkdir -p -- \"$d\" || exit 1; [ \"$(readlink -f -- \"$d\")/$(basename -- \"$1\")\" = \"$1\" ] || [ \"$d\" = / ] || exit 5; [ -L \"$1\" ] && exit 5; [ -d \"$1\" ] && exit 21; t=$1.$2; trap 'rm -f -- \"$t\"' EXIT; m=; if [ -e \"$1\" ]; then m=$(stat -c %a -- \"$1\"); cp -p -- \"$1\" \"$t\" && chmod u+w,ug-s -- \"$t\" || exit 1; while [ ${#m} -gt 3 ]; do m=${m#?}; done; fi; cat > \"$t\" && [ \"$(wc -c < \"$t\")\" -eq \"$3\" ] || exit 6; [ -z \"$m\" ] || chmod \"$m\" -- \"$t\"; mv -f -- \"$t\" \"$1\"";

/// Exits with 0 if the resolved path `$1` exists. Otherwise, the exit code tells whether the named
/// path `$2` is a dangling link.
const IS_THERE: &str = "[ -e \"$1\" ] && exit 0; [ -L \"$2\" ] && exit 7; exit 3";

/// Removes a plain file; refuses a link.
const REMOVE: &str = "[ \"$(readlink -f -- \"$1\")\" = \"$1\" ] || [ ! -e \"$1\" ] || exit 5; [ -L \"$1\" ] && exit 5; [ -e \"$1\" ] || exit 3; [ -f \"$1\" ] || exit 4; exec rm -f -- \"$1\"";

/// Prints the tree below `$1`, at most `$2` levels deep: the type, time, size and name of each
/// entry, a NUL, and the content. Unless `$3` is 1, only `.gitignore` files have content. The types
/// are `d` (directory), `f` (file), `b` (file over the size limit), `l` (link) and `o` (other).
/// `$4` is an expression for `find` that leaves entries out, or empty.
const TREE: &str = "[ \"$(readlink -f -- \"$1\")\" = \"$1\" ] || exit 5; cd -- \"$1\" || exit 3; export W=$3; exec find . -mindepth 1 -maxdepth \"$2\" $4 -exec sh -c 'for f do w=$W; case $f in */.gitignore) w=1;; esac; if [ -L \"$f\" ]; then t=l; elif [ -d \"$f\" ]; then t=d; elif [ -f \"$f\" ]; then t=f; else t=o; fi; s=0; m=$(stat -c %Y -- \"$f\" 2>/dev/null || echo 0); if [ $t = f ] && [ \"$w\" = 1 ]; then s=$(wc -c 2>/dev/null <\"$f\" || echo 0); fi; if [ \"$s\" -gt \"$5\" ]; then t=b; s=0; fi; printf \"%s %s %s %s\\0\" $t \"$m\" \"$s\" \"$f\"; if [ \"$s\" -gt 0 ]; then head -c \"$s\" -- \"$f\"; fi; done' sh {} +";

/// An opened path on the target.
pub(super) enum Found {
    File(File),
    Directory,
}

/// The contents to fetch with a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// No contents, except those of `.gitignore` files.
    None,
    /// The contents of all files.
    All,
}

/// A fetched tree. Dropping it deletes the local copy.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) directory: tempfile::TempDir,
    /// The names of the files over the size limit; their local copies are empty.
    pub(super) skipped: Vec<String>,
}

/// The files of a remote execution target.
#[derive(Clone, Copy)]
pub(crate) struct RemoteFiles<'a> {
    ctx: &'a ToolContext,
    cancel: &'a CancellationToken,
}

impl<'a> RemoteFiles<'a> {
    pub(super) fn new(ctx: &'a ToolContext, cancel: &'a CancellationToken) -> Self {
        Self { ctx, cancel }
    }

    /// Runs a script on the target and returns its exit code and standard output. Blocks the
    /// thread.
    fn run(
        &self,
        script: &str,
        arguments: &[&str],
        stdin: Option<String>,
    ) -> Result<(i32, Vec<u8>), CallError> {
        let asked = Asked {
            script,
            arguments,
            stdin,
            working_dir: Path::new("/"),
            time: self.ctx.timeout,
            most: MAX_BYTES,
        };
        let work = ask(self.ctx, &asked, self.cancel);
        let answered = tokio::runtime::Handle::current().block_on(work);
        answered.map_err(|error| {
            let place = self.ctx.programs.execution.name();
            let kind = match error {
                TargetError::Cancelled => ErrorKind::Interrupted,
                // The client may also die because the run is being stopped.
                _ if self.cancel.is_cancelled() => ErrorKind::Interrupted,
                _ => ErrorKind::Io,
            };
            CallError::new(kind, format!("[ERROR: {place}: {error}.]"))
        })
    }

    fn refused(&self, path: &Path, code: i32, output: &[u8]) -> CallError {
        let name = shown(path.as_os_str());
        let (kind, message) = match code {
            ABSENT => (ErrorKind::NotFound, format!("`{name}` does not exist.")),
            NO_FILE => (ErrorKind::Denied, format!("`{name}` is neither a file nor a directory.")),
            MOVED => (ErrorKind::Denied, format!("`{name}` now leads elsewhere. Try again.")),
            CUT => (
                ErrorKind::Io,
                format!("`{name}` was not written: its content arrived incomplete."),
            ),
            DANGLING => (ErrorKind::Denied, dangling_link(&name)),
            21 => (ErrorKind::Io, format!("`{name}` is a directory.")),
            _ => {
                let said = said(&self.ctx.redactor, output, 200);
                (
                    ErrorKind::Io,
                    format!("`{name}` on {}: {said}", self.ctx.programs.execution.name()),
                )
            }
        };
        CallError::new(kind, message)
    }

    /// Returns the resolved path; the path itself need not exist.
    pub(super) fn real(&self, path: &Path) -> Result<PathBuf, CallError> {
        let found = self.all_real(&[path])?;
        found.into_iter().next().ok_or_else(|| self.refused(path, MOVED, b""))
    }

    fn all_real(&self, paths: &[&Path]) -> Result<Vec<PathBuf>, CallError> {
        let texts: Vec<&str> =
            paths.iter().map(|path| self.text(path)).collect::<Result<_, _>>()?;
        let (code, output) = self.run(REAL, &texts, None)?;
        let found = output.split(|byte| *byte == 0).filter(|real| real.starts_with(b"/"));
        let found: Vec<PathBuf> =
            found.map(|real| PathBuf::from(OsStr::from_bytes(real))).collect();
        match (code, paths.first()) {
            (0, _) if found.len() == paths.len() => Ok(found),
            (_, path) => Err(self.refused(path.unwrap_or(&Path::new("/")), code, &output)),
        }
    }

    /// Returns the path rules with the writable and denied trees as the target resolves them. The
    /// target is asked once per run. Denied trees also stay denied under their original names.
    pub(super) fn rules(&self) -> Result<&'a PathRules, CallError> {
        if let Some(known) = self.ctx.access.remote_paths.get() {
            return Ok(known);
        }
        let rules = &self.ctx.access.paths;
        let trees: Vec<&Path> =
            rules.writable.iter().chain(&rules.denied).map(PathBuf::as_path).collect();
        let mut real = self.all_real(&trees)?;
        let denied = real.split_off(rules.writable.len());
        let resolved = PathRules {
            working_dir: rules.working_dir.clone(),
            writable: real,
            readable: rules.readable.clone(),
            denied: denied.into_iter().chain(rules.denied.iter().cloned()).collect(),
            own: rules.own.clone(),
            frozen: Vec::new(),
        };
        Ok(self.ctx.access.remote_paths.get_or_init(|| resolved))
    }

    fn text<'p>(&self, path: &'p Path) -> Result<&'p str, CallError> {
        let name = || shown(path.as_os_str());
        path.to_str().ok_or_else(|| {
            CallError::new(ErrorKind::Io, format!("`{}` is not valid UTF-8.", name()))
        })
    }

    /// Fetches the file at a resolved path, or reports that it is a directory.
    pub(super) fn open(&self, real: &Path) -> Result<Found, CallError> {
        let most = (MAX_BYTES + 1).to_string();
        let (code, output) = self.run(READ, &[self.text(real)?, &most], None)?;
        match code {
            0 if output.len() > MAX_BYTES => Err(CallError::new(
                ErrorKind::Limit,
                format!(
                    "`{}` is larger than {} MiB, the limit for remote files: use bash to read it in parts.",
                    shown(real.as_os_str()),
                    MAX_BYTES >> 20
                ),
            )),
            0 => in_memory(&output).map(Found::File).map_err(|error| io(&error)),
            21 => Ok(Found::Directory),
            _ => Err(self.refused(real, code, &output)),
        }
    }

    /// Replaces a whole file, or creates it.
    pub(super) fn write(&self, real: &Path, content: &[u8]) -> Result<(), CallError> {
        // The loader on the target reads the script and its input into a variable, which cannot
        // hold a NUL.
        let text = String::from_utf8(content.to_vec()).ok().filter(|text| !text.contains('\0'));
        let Some(content) = text else {
            return Err(CallError::new(ErrorKind::Io, "Remote files must be UTF-8 without NUL."));
        };
        let name = format!("dutyd-{:016x}", fastrand::u64(..));
        let length = content.len().to_string();
        let arguments = [self.text(real)?, &name, &length];
        let (code, output) = self.run(WRITE, &arguments, Some(content))?;
        if code == 0 { Ok(()) } else { Err(self.refused(real, code, &output)) }
    }

    pub(super) fn remove(&self, real: &Path) -> Result<(), CallError> {
        let (code, output) = self.run(REMOVE, &[self.text(real)?], None)?;
        if code == 0 { Ok(()) } else { Err(self.refused(real, code, &output)) }
    }

    /// Returns whether something exists at `real`, the path to which `named` resolves.
    ///
    /// *Errors*: `denied` if `named` is a dangling link; `io`; `interrupted`.
    pub(super) fn is_there(&self, real: &Path, named: &Path) -> Result<bool, CallError> {
        let (code, output) = self.run(IS_THERE, &[self.text(real)?, self.text(named)?], None)?;
        match code {
            0 => Ok(true),
            ABSENT => Ok(false),
            _ => Err(self.refused(named, code, &output)),
        }
    }

    /// Returns whether a path exists; a dangling link counts.
    pub(super) fn has(&self, path: &Path) -> bool {
        let Ok(text) = self.text(path) else { return false };
        let asked = self.run("[ -e \"$1\" ] || [ -L \"$1\" ]", &[text], None);
        asked.is_ok_and(|(code, _)| code == 0)
    }

    /// Fetches a tree into a temporary directory of the run.
    pub(super) fn tree(
        &self,
        real: &Path,
        depth: usize,
        contents: Contents,
        leaves_out_git: bool,
    ) -> Result<Tree, CallError> {
        let depth = depth.min(200).to_string();
        let with = if contents == Contents::All { "1" } else { "0" };
        // The shell splits this argument into words, so it must be a constant.
        let prune = if leaves_out_git { "-name .git -prune -o" } else { "" };
        let most = FILE_BYTES.to_string();
        // The inner script does not see the arguments of the outer one, so replace its placeholder
        // `$5` with the limit.
        let script = TREE.replace("\"$5\"", &most);
        let arguments = [self.text(real)?, &depth, with, prune];
        let (code, output) = self.run(&script, &arguments, None)?;
        // `find` exits with 1 if it could not read an entry. Such entries are left out, as on this
        // host.
        if !matches!(code, 0 | 1) {
            return Err(self.refused(real, code, &output));
        }
        let mirror =
            tempfile::tempdir_in(self.ctx.programs.sandboxes.temporary()).map_err(|e| io(&e))?;
        let skipped = unpack(&self.ctx.programs.execution.name(), &output, mirror.path())?;
        Ok(Tree { directory: mirror, skipped })
    }
}

/// Creates the entries below `mirror` and returns the names of the files over the size limit.
fn unpack(place: &str, mut rest: &[u8], mirror: &Path) -> Result<Vec<String>, CallError> {
    let odd = || {
        let message = format!(
            "[ERROR: The files of {place} changed while they were fetched, or cannot be read. Try again, or with a smaller directory.]"
        );
        CallError::new(ErrorKind::Io, message)
    };
    let (mut entries, mut skipped) = (0, Vec::new());
    while !rest.is_empty() {
        let end = memchr::memchr(0, rest).ok_or_else(odd)?;
        let (head, tail) = rest.split_at(end);
        let mut fields = head.splitn(4, |byte| *byte == b' ');
        let mut field = || fields.next().ok_or_else(odd);
        let mut word = || std::str::from_utf8(field()?).map_err(|_| odd());
        let (kind, time) = (word()?, word()?.parse::<i64>().map_err(|_| odd())?);
        // Treat a time before 1970 as 1970.
        let time = u64::try_from(time).unwrap_or(0);
        let size = word()?.parse::<usize>().map_err(|_| odd())?;
        let name = field()?;
        let name = Path::new(OsStr::from_bytes(name.strip_prefix(b"./").unwrap_or(name)));
        // Count each component of the name, because each may create a directory.
        entries += name.components().count();
        if entries > MAX_ENTRIES {
            let message = format!("More than {MAX_ENTRIES} entries: choose a subdirectory.");
            return Err(CallError::new(ErrorKind::Limit, message));
        }
        let tail = tail.get(1..).unwrap_or_default();
        let content = tail.get(..size).ok_or_else(odd)?;
        rest = tail.get(size..).unwrap_or_default();
        // A name from the target must not lead out of the mirror.
        if name.components().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(odd());
        }
        let path = mirror.join(name);
        let made = match kind {
            "d" => std::fs::create_dir_all(&path),
            // Create a link that dangles, or leads at most to an entry `elsewhere` beside it: the
            // walk must neither follow the original link nor open a special file.
            "l" | "o" => std::os::unix::fs::symlink("elsewhere", &path),
            "f" => put(&path, content, time),
            "b" => {
                skipped.push(shown(name.as_os_str()));
                put(&path, b"", time)
            }
            _ => return Err(odd()),
        };
        made.map_err(|error| io(&error))?;
    }
    Ok(skipped)
}

fn put(path: &Path, content: &[u8], time: u64) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.set_modified(UNIX_EPOCH + Duration::from_secs(time.min(1 << 40)))
}

fn in_memory(content: &[u8]) -> std::io::Result<File> {
    let fd = rustix::fs::memfd_create("fetched", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

fn io(error: &std::io::Error) -> CallError {
    CallError::new(ErrorKind::Io, format!("The fetched files cannot be stored: {error}."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "the test runs the scripts as the target does")]
    fn script(script: &str, arguments: &[&Path], content: &str) -> Option<i32> {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, "sh"]).args(arguments).stdin(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child.stdin.take().unwrap().write_all(content.as_bytes()).unwrap();
        child.wait().unwrap().code()
    }

    // proves FS-6
    #[test]
    fn a_file_that_is_replaced_elsewhere_keeps_its_mode_without_set_id_bits() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().canonicalize().unwrap().join("f");
        for (before, after) in [(0o6755, 0o755), (0o1640, 0o640), (0o444, 0o444)] {
            std::fs::write(&path, "old").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(before)).unwrap();
            let arguments = [path.as_path(), Path::new("dutyd-0"), Path::new("3")];
            assert_eq!(script(WRITE, &arguments, "new"), Some(0), "{before:o}");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, after, "{before:o}");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_link_to_nothing_is_no_place() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        std::fs::write(at("f"), "").unwrap();
        std::os::unix::fs::symlink("gone", at("dangling")).unwrap();
        for (real, named, code) in
            [("f", "f", 0), ("gone", "gone", ABSENT), ("gone", "dangling", DANGLING)]
        {
            assert_eq!(script(IS_THERE, &[&at(real), &at(named)], ""), Some(code), "{named}");
        }
    }

    // proves FS-9
    #[test]
    fn a_tree_from_elsewhere_stays_in_its_directory() {
        let temp = tempfile::tempdir().unwrap();
        let mirror = temp.path().join("mirror");
        std::fs::create_dir(&mirror).unwrap();
        let good = b"d 5 0 ./a b\0f 7 3 ./a b/x\ny\0abcb 7 0 ./big\0l 7 0 ./link\0f 0 0 ./late/x\0";
        assert_eq!(unpack("p", good, &mirror).unwrap(), ["big"]);
        assert_eq!(std::fs::read(mirror.join("a b/x\ny")).unwrap(), b"abc");
        for bad in [
            &b"f 0 1 ./../escaped\0x"[..],
            b"f 0 1 /tmp/escaped\0x",
            b"f 0 1 ./link/../../escaped\0x",
            b"f 0 9 ./short\0x",
            b"f 0 x ./size\0",
            b"z 0 0 ./kind\0",
            b"f 0 0 no end",
            b"f 0 1 ./link\0x",
            b"f 0 1 ./link/x\0x",
            b"\0",
        ] {
            assert!(unpack("p", bad, &mirror).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    proptest! {
        #[test]
        fn no_tree_leads_out_of_its_directory(bytes in "([dflbo] [0-9]{1,2} [0-9]{1,2} [./a-c]{0,8}\0[a-z]{0,9}){0,4}") {
            let temp = tempfile::tempdir().unwrap();
            let mirror = temp.path().join("mirror");
            std::fs::create_dir(&mirror).unwrap();
            let _ = unpack("p", bytes.as_bytes(), &mirror);
            prop_assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
        }
    }
}
