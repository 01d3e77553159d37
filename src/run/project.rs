//! Facts about the repository that contains the working directory.
//!
//! The repository is untrusted: we do not follow its links or execute its files. We run only git
//! commands that do not start a program that the repository can name.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::agent::GitFacts;
use crate::process::{HostWork, ProcessSpec, Spawner};
use crate::text::redact::Redactor;
use crate::tools::ToolContext;

/// Limit of a line of `git log` in the prompt, in characters; the rest of the line is cut off.
const SUBJECT_CHARACTERS: usize = 120;

/// Timeout of one git command.
const GIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of the output of one git command, in bytes, exclusive; longer output is discarded whole.
const GIT_BYTES: usize = 16 * 1024 * 1024;

/// How many commits the prompt lists, as an option of `git log`.
const COMMITS: &str = "-5";

/// Returns the root of the repository that `directory` is in: the nearest directory with a `.git`.
///
/// We trust three users: the owner of `directory`, our own user and root. One of them must own the
/// `.git`. The search goes up from `directory` and stops below a directory that is world-writable
/// or that none of them owns: a stranger's `/tmp/.git` is not our repository.
pub(super) fn git_root(directory: &Path) -> Option<PathBuf> {
    let owner = Owner::of(directory).ok()?;
    directory
        .ancestors()
        .take_while(|path| *path == directory || owner.trusts_directory(path))
        .find(|path| owner.trusts(&path.join(".git")))
        .map(Path::to_path_buf)
}

/// The owner of a working directory. Around that directory, we trust the files of this user, of our
/// own user and of root.
pub(super) struct Owner(u32);

impl Owner {
    pub(super) fn of(directory: &Path) -> std::io::Result<Self> {
        std::fs::metadata(directory).map(|meta| Self(meta.uid()))
    }

    pub(super) fn is_known(&self, uid: u32) -> bool {
        uid == self.0 || uid == 0 || uid == nix::unistd::geteuid().as_raw()
    }

    fn trusts(&self, path: &Path) -> bool {
        std::fs::symlink_metadata(path).is_ok_and(|meta| self.is_known(meta.uid()))
    }

    fn trusts_directory(&self, path: &Path) -> bool {
        std::fs::metadata(path)
            .is_ok_and(|meta| self.is_known(meta.uid()) && meta.mode() & 0o002 == 0)
    }
}

/// Returns the state of the repository at `root`; `None` if git cannot list its files.
pub(super) async fn git_facts(ctx: &ToolContext, git: &Path, root: &Path) -> Option<GitFacts> {
    let (spawner, redactor) = (&ctx.programs.spawner, &ctx.redactor);
    let ask = |args: &'static [&'static str]| git_answer(spawner, git, root, args);
    // Do not use `status` or `diff-files`: for a changed file, both run the filters that the
    // repository configures. We list the index and compare the files ourselves.
    let (branch, index, untracked, commits) = tokio::join!(
        ask(&["symbolic-ref", "--short", "-q", "HEAD"]),
        ask(&["ls-files", "--debug", "-z"]),
        ask(&["ls-files", "--others", "--exclude-standard", "-z"]),
        ask(&["log", COMMITS, "--format=%h %s", "--no-show-signature", "--no-notes"]),
    );
    let text = |bytes: Option<Vec<u8>>| {
        String::from_utf8_lossy(&bytes.unwrap_or_default()).trim().to_owned()
    };
    let names = untracked?;
    Some(GitFacts {
        branch: redactor.text(&text(branch)).into_owned(),
        modified: modified_files(&ctx.host_work, root, index?).await?,
        untracked: names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).count(),
        commits: subjects(&text(commits), redactor),
    })
}

/// Counts as [`modified`]; `None` if the files give no answer.
async fn modified_files(host_work: &HostWork, root: &Path, index: Vec<u8>) -> Option<usize> {
    let root = root.to_path_buf();
    host_work.run(move || modified(&root, &index)).await.ok()
}

/// Returns the lines of a log with secrets removed, each cut to [`SUBJECT_CHARACTERS`].
fn subjects(log: &str, redactor: &Redactor) -> Vec<String> {
    let clean = redactor.text(log);
    clean.lines().map(|line| line.chars().take(SUBJECT_CHARACTERS).collect()).collect()
}

/// Counts the files that are gone or differ from the index in time or size. `index` is the output
/// of `ls-files --debug -z`: for each file its path, a NUL, and indented lines with its fields.
fn modified(root: &Path, index: &[u8]) -> usize {
    let mut count = 0;
    let mut pieces = index.split(|byte| *byte == 0);
    let mut path = pieces.next().unwrap_or_default().to_vec();
    for piece in pieces {
        // The lines of this path are indented; after the last of them comes the next path.
        let known = String::from_utf8_lossy(piece);
        let field = |name: &str| {
            known.lines().find_map(|line| {
                line.strip_prefix("  ")?.split('\t').find_map(|part| part.strip_prefix(name))
            })
        };
        let time = field("mtime: ").and_then(|time| time.split_once(':'));
        let size = field("size: ");
        let meta = std::fs::symlink_metadata(root.join(OsStr::from_bytes(&path)));
        let is_same = meta.is_ok_and(|meta| {
            // A directory is a submodule, which has no size of its own.
            meta.is_dir()
                || size == Some(meta.len().to_string().as_str())
                    && time.is_some_and(|(seconds, nanos)| {
                        // Some builds of git do not store the nanoseconds.
                        seconds == meta.mtime().to_string()
                            && (nanos == "0" || nanos == meta.mtime_nsec().to_string())
                    })
        });
        count += usize::from(!is_same);
        let next = piece.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        path = next.to_vec();
    }
    count
}

/// Returns the output of one git command; `None` if the command fails or its output is too long.
/// The repository can name programs in its configuration; none of them runs.
async fn git_answer(spawner: &Spawner, git: &Path, root: &Path, args: &[&str]) -> Option<Vec<u8>> {
    const HARMLESS: &[&str] = &[
        "git",
        "--no-optional-locks",
        "--no-pager",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.untrackedCache=false",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.sshCommand=false",
        "-c",
        "core.alternateRefsCommand=false",
        "-c",
        "log.showSignature=false",
    ];
    let environment = [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_ALLOW_PROTOCOL", ""),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/nonexistent"),
        ("LC_ALL", "C.UTF-8"),
    ];
    let owned = |pair: (&str, &str)| (pair.0.to_owned(), pair.1.to_owned());
    let spec = ProcessSpec {
        program: git.to_path_buf(),
        argv: HARMLESS.iter().chain(args).map(|arg| (*arg).to_owned()).collect(),
        env: environment.into_iter().map(owned).collect(),
        working_dir: root.to_path_buf(),
        stdin: None,
        timeout: GIT_TIMEOUT,
        sandbox: None,
    };
    let mut output = Vec::new();
    let exit = spawner
        .run(&spec, &CancellationToken::new(), &mut |chunk| {
            let room = GIT_BYTES.saturating_sub(output.len());
            output.extend_from_slice(chunk.get(..room.min(chunk.len())).unwrap_or_default());
            Ok(())
        })
        .await
        .ok()?;
    // A truncated list would give a wrong count.
    (exit.code == Some(0) && output.len() < GIT_BYTES).then_some(output)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::text::redact::Secret;

    fn documents(root: Option<&Path>, directory: &Path, names: &[&str]) -> String {
        super::super::documents::documents(root, directory, names, &Redactor::default()).text
    }

    fn redactor() -> Redactor {
        Redactor::new(&[Secret { name: "KEY".into(), value: "hunter2hunter2".into() }])
    }

    // proves SEC-2
    #[test]
    fn a_commit_is_cut_only_after_secrets_are_removed() {
        let log = format!("abc {}hunter2hunter2 rest\nlast", "x".repeat(SUBJECT_CHARACTERS - 12));
        let found = subjects(&log, &redactor());
        assert!(!found[0].contains("hunter2"), "{found:?}");
        assert_eq!((found[0].chars().count(), found[1].as_str()), (SUBJECT_CHARACTERS, "last"));
    }

    pub(in crate::run) fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Every user can write to `/tmp`.
    #[test]
    fn a_repository_of_strangers_is_not_ours() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let work = temp.path().join("work");
        write(&temp.path().join(".git/HEAD"), "");
        write(&temp.path().join("AGENTS.md"), "evil");
        std::fs::create_dir(&work).unwrap();
        assert_eq!(git_root(&work).as_deref(), Some(temp.path()));
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(git_root(&work), None);
    }

    /// A document brings text into the prompt from a directory that tools can write to.
    // proves FS-2, FS-4
    #[test]
    fn a_link_does_not_lead_into_the_prompt() {
        let temp = tempfile::tempdir().unwrap();
        let secret = temp.path().join("secret");
        write(&secret, "hunter2");
        let work = temp.path().join("work");
        std::fs::create_dir(&work).unwrap();
        std::os::unix::fs::symlink(&secret, work.join("AGENTS.md")).unwrap();
        assert_eq!(documents(None, &work, &[]), "");
        std::fs::remove_file(work.join("AGENTS.md")).unwrap();
        std::fs::hard_link(&secret, work.join("AGENTS.md")).unwrap();
        assert_eq!(documents(None, &work, &[]), "");
        std::fs::create_dir(temp.path().join("dir")).unwrap();
        write(&temp.path().join("dir/instructions.md"), "hunter2");
        std::os::unix::fs::symlink(temp.path().join("dir"), work.join(".codex")).unwrap();
        assert_eq!(documents(None, &work, &[".codex/instructions.md"]), "");
        nix::unistd::mkfifo(&work.join("CLAUDE.md"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(documents(None, &work, &["CLAUDE.md"]), "", "reading does not wait for a FIFO");
    }
}
