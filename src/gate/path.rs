//! Decides which files a run may access. The module is pure: the caller passes in the path as
//! written, and then the path that was actually opened.
//!
//! *Source*: `docs/design/gate.md`, "Paths"; threat model, FS-1 to FS-5.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// `PATH_MAX` of the kernel, in bytes.
const LONGEST: usize = 4096;

/// System trees: a write below one of them is an admin call.
const SYSTEM: &[&str] = &[
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/var/lib",
    "/var/log",
    "/var/spool",
];

/// The user database. Only the built-in file tools refuse it: every program needs this file, so the
/// sandbox cannot close it.
pub(crate) const HIDDEN: &str = "/etc/passwd";

/// How a call accesses a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads its content or its name.
    Read,
    /// Creates, changes or removes it.
    Write,
}

/// The trees that a run may access. All paths are absolute; in paths on this host, symlinks are
/// resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PathRules {
    /// The base of relative paths; also listed in `writable`.
    pub working_dir: PathBuf,
    /// Trees that may be read and written, including the working directory.
    pub writable: Vec<PathBuf>,
    /// Trees that may only be read.
    pub readable: Vec<PathBuf>,
    /// Trees that are closed even if another list allows them.
    pub denied: Vec<PathBuf>,
    /// Our own trees and files: closed, except for allowed trees below them. The first entry is the
    /// configuration directory.
    pub own: Vec<PathBuf>,
    /// Our program, log and systemd unit: no file tool may write them. Their owner and mode protect
    /// them from other programs.
    pub frozen: Vec<PathBuf>,
}

/// Why a path is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathRefusal {
    /// The path is closed, or the call would write a path of [`PathRules::frozen`].
    #[error("`{}` is closed to the tools of this job", shown(.0.as_os_str()))]
    Denied(PathBuf),
    /// The path is outside every allowed tree.
    #[error("`{}` is outside the paths that the job may use", shown(.0.as_os_str()))]
    Outside(PathBuf),
    /// The path is in a tree that may only be read.
    #[error("the job may only read `{}`", shown(.0.as_os_str()))]
    ReadOnly(PathBuf),
    /// The text is not a valid path; the string completes "a path must not …".
    #[error("a path must not {0}")]
    Spelling(&'static str),
}

impl PathRefusal {
    /// Returns the name of the rule that refuses the path.
    #[must_use]
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Denied(_) => "denied_path",
            Self::Outside(_) | Self::ReadOnly(_) | Self::Spelling(_) => "path",
        }
    }
}

impl PathRules {
    /// Returns the absolute path that `text` names, without accessing the disk.
    ///
    /// *Errors*: [`PathRefusal::Spelling`] if the text is empty or too long, contains `..` or NUL,
    /// is `~` or begins with `~/`. We do not expand anything (FS-3).
    pub fn absolute(&self, text: &str) -> Result<PathBuf, PathRefusal> {
        let refuse = |why| Err(PathRefusal::Spelling(why));
        if text.is_empty() {
            return refuse("be empty");
        }
        if text.len() > LONGEST {
            return refuse("be longer than 4096 bytes");
        }
        if text.contains('\0') {
            return refuse("contain a NUL character");
        }
        if text == "~" || text.starts_with("~/") {
            return refuse("begin with `~`: use an absolute path");
        }
        if Path::new(text).components().any(|part| part == Component::ParentDir) {
            return refuse("contain `..`: use an absolute path");
        }
        // Rebuilding the path from its components removes `//` and `/./`.
        Ok(self.working_dir.join(text).components().collect())
    }

    /// Checks whether the run may access an absolute path in this way.
    ///
    /// *Errors*: [`PathRefusal`]. A closed path is refused even if another list allows it.
    pub fn judge(&self, path: &Path, access: Access) -> Result<(), PathRefusal> {
        let refused = || path.to_path_buf();
        if path == Path::new(HIDDEN) || self.denied.iter().any(|denied| path.starts_with(denied)) {
            return Err(PathRefusal::Denied(refused()));
        }
        if access == Access::Write && self.frozen.iter().any(|frozen| path.starts_with(frozen)) {
            return Err(PathRefusal::Denied(refused()));
        }
        let is_in = |roots: &[PathBuf]| roots.iter().any(|root| path.starts_with(root));
        let mut allowed = self.writable.iter().chain(&self.readable);
        if self.own.iter().any(|own| {
            path.starts_with(own)
                && !allowed
                    .any(|root| root.starts_with(own) && root != own && path.starts_with(root))
        }) {
            return Err(PathRefusal::Denied(refused()));
        }
        match (is_in(&self.writable), is_in(&self.readable), access) {
            (true, _, _) | (false, true, Access::Read) => Ok(()),
            (false, true, Access::Write) => Err(PathRefusal::ReadOnly(refused())),
            (false, false, _) => Err(PathRefusal::Outside(refused())),
        }
    }

    /// Returns the innermost allowed tree that contains the path.
    #[must_use]
    pub fn root_of(&self, path: &Path) -> Option<&Path> {
        let roots = self.writable.iter().chain(&self.readable);
        roots
            .map(PathBuf::as_path)
            .filter(|root| path.starts_with(root))
            .max_by_key(|root| root.as_os_str().len())
    }

    /// Tells whether writing this file is an admin call: it is in a system tree, but not in the
    /// working directory.
    #[must_use]
    pub fn is_system(&self, path: &Path) -> bool {
        !path.starts_with(&self.working_dir) && SYSTEM.iter().any(|root| path.starts_with(root))
    }

    /// Returns the absolute path of a file that a command line names. Follows `..`, as the shell
    /// does, without accessing the disk.
    #[must_use]
    pub fn followed(&self, text: &str) -> PathBuf {
        let mut path = PathBuf::new();
        for part in self.working_dir.join(text).components() {
            if part == Component::ParentDir {
                path.pop();
            } else {
                path.push(part);
            }
        }
        path
    }

    /// Returns the absolute path of a file that a command line writes, if writing this file is an
    /// admin call. `gate/bash/devices.rs` judges devices.
    #[must_use]
    pub fn system_target(&self, text: &str) -> Option<PathBuf> {
        let path = self.followed(text);
        let is_device = ["/dev", "/proc"].iter().any(|tree| path.starts_with(tree));
        // A file that a command writes into the root may lie in any tree.
        let is_root = path.parent().is_none() && path != self.working_dir;
        (!is_device && (is_root || self.is_system(&path))).then_some(path)
    }

    /// Returns the first writable tree that contains a closed tree, and that closed tree. The
    /// sandbox cannot close a part of a tree that a process may write.
    #[must_use]
    pub fn closed_in_writable(&self) -> Option<(&Path, &Path)> {
        let closed = || self.denied.iter().chain(&self.own);
        self.writable.iter().find_map(|root| {
            closed()
                .find(|path| path.starts_with(root))
                .map(|path| (root.as_path(), path.as_path()))
        })
    }
}

/// Returns a name as people and models see it: control and invisible characters, and bytes that are
/// not UTF-8, are escaped (FS-9).
#[must_use]
pub fn shown(name: &OsStr) -> String {
    name.as_bytes()
        .utf8_chunks()
        .flat_map(|chunk| {
            let valid = crate::text::escape::one_line(chunk.valid());
            let invalid: String =
                chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")).collect();
            [valid.to_string(), invalid]
        })
        .collect()
}

/// Returns the name that [`shown`] renders as `text`; `None` if that name is `text` itself, or if
/// `shown` never renders a name as `text`.
///
/// `shown` does not escape backslashes, so a name that contains a backslash and an `n` looks like a
/// name with a newline. Callers must therefore look for a file with the name `text` first. No
/// escape stands for `/`, NUL or a visible character.
#[must_use]
pub fn unescaped(text: &OsStr) -> Option<OsString> {
    let mut rest = text.to_str()?;
    let mut name = Vec::new();
    while let Some((before, after)) = rest.split_once('\\') {
        name.extend(before.as_bytes());
        rest = match escape(after) {
            Some((bytes, left)) => {
                name.extend(bytes);
                left
            }
            None => {
                name.push(b'\\');
                after
            }
        };
    }
    name.extend(rest.as_bytes());
    let name = OsString::from_vec(name);
    let is_one = name != text && !name.as_bytes().contains(&0);
    (is_one && OsStr::new(&shown(&name)) == text).then_some(name)
}

/// Parses the escape after a backslash: `n`, `t`, `r`, `u{1b}`, `xff`. Returns its bytes and the
/// rest of the text.
fn escape(text: &str) -> Option<(Vec<u8>, &str)> {
    if let Some(rest) = text.strip_prefix("u{") {
        let (code, rest) = rest.split_once('}')?;
        let character = char::from_u32(u32::from_str_radix(code, 16).ok()?)?;
        return Some((character.to_string().into_bytes(), rest));
    }
    if let Some(rest) = text.strip_prefix('x') {
        let (code, rest) = rest.split_at_checked(2)?;
        return Some((vec![u8::from_str_radix(code, 16).ok()?], rest));
    }
    let letters = [('n', b'\n'), ('t', b'\t'), ('r', b'\r')];
    letters.into_iter().find_map(|(letter, byte)| Some((vec![byte], text.strip_prefix(letter)?)))
}

/// Tells whether a path can only name a directory: it ends with `/`, or its last component is `.`.
#[must_use]
pub fn names_directory(text: &str) -> bool {
    text == "." || text.ends_with('/') || text.ends_with("/.")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules() -> PathRules {
        let paths = |texts: &[&str]| texts.iter().map(PathBuf::from).collect();
        PathRules {
            working_dir: "/state/workspace/j".into(),
            writable: paths(&["/state/workspace/j", "/srv/app", "/etc/app"]),
            readable: paths(&["/state/runs/r/output"]),
            denied: paths(&["/srv/app/keys", "/home/u/.ssh"]),
            own: paths(&["/state", "/config"]),
            frozen: paths(&["/etc/app/dutyd.service"]),
        }
    }

    #[track_caller]
    fn check(text: &str, access: Access, expected: &str) {
        let rules = rules();
        let judged = rules.absolute(text).and_then(|path| rules.judge(&path, access));
        let rule = judged.as_ref().map_or_else(PathRefusal::rule, |()| "allowed");
        assert_eq!(rule, expected, "{text}: {judged:?}");
    }

    // proves FS-1, FS-3, FS-5
    #[test]
    fn deny_beats_allow_and_text_is_no_path() {
        use Access::{Read, Write};
        for text in
            ["a.txt", "./sub//a", "/srv/app", "/srv/app/x", "/state/workspace/j/./a", "..a", "~a"]
        {
            check(text, Write, "allowed");
        }
        check("/etc/app/dutyd.service", Read, "allowed");
        check("/etc/app/dutyd.service", Write, "denied_path");
        check("/state/runs/r/output/c.txt", Read, "allowed");
        check("/state/runs/r/output/c.txt", Write, "path");
        for text in [
            "/srv/app/keys",
            "/srv/app/keys/not-there-yet",
            "/srv/app//keys/./k",
            "/etc/passwd",
            "/state/ledger.db",
            "/state/workspace/other/x",
            "/state",
            "/config/jobs.yaml",
            "/home/u/.ssh/id",
        ] {
            check(text, Read, "denied_path");
        }
        for text in [
            "/srv/apple",
            "/srv/app/../x",
            "../x",
            "/",
            "/tmp",
            "~/x",
            "~",
            "",
            "a\0b",
            "/proc/self/root/srv",
        ] {
            check(text, Read, "path");
        }
        check(&"a/".repeat(3000), Read, "path");
    }

    #[test]
    fn a_write_to_the_system_is_known() {
        let rules = rules();
        assert!(rules.is_system(Path::new("/etc/app/x")) && rules.is_system(Path::new("/usr/x")));
        assert!(
            !rules.is_system(Path::new("/srv/app/x")) && !rules.is_system(Path::new("/etcetera"))
        );
        let inside = PathRules { working_dir: "/var/lib/dutyd/workspace/j".into(), ..rules };
        assert!(!inside.is_system(Path::new("/var/lib/dutyd/workspace/j/x")));
    }

    #[test]
    fn a_closed_tree_in_a_writable_one_is_found() {
        assert_eq!(
            rules().closed_in_writable(),
            Some((Path::new("/srv/app"), Path::new("/srv/app/keys")))
        );
    }

    // proves FS-9
    #[test]
    fn hostile_names_are_shown_escaped() {
        assert_eq!(shown(OsStr::new("plain name.txt")), "plain name.txt");
        assert_eq!(shown(OsStr::from_bytes(b"a\n\x1b[31m\xff")), "a\\n\\u{1b}[31m\\xff");
        let refusal = PathRefusal::Outside("/a\u{1b}".into()).to_string();
        assert!(refusal.contains("`/a\\u{1b}`"), "{refusal}");
    }

    // proves FS-9
    #[test]
    fn a_name_that_is_shown_escaped_is_understood() {
        let check = |text: &str, expected: Option<&[u8]>| {
            let name = unescaped(OsStr::new(text));
            assert_eq!(name.as_deref(), expected.map(OsStr::from_bytes), "{text}");
        };
        check("a\\n\\u{1b}[31m\\xff", Some(b"a\n\x1b[31m\xff"));
        check("a\\b\\t", Some(b"a\\b\t"));
        // Texts that `shown` never returns: escapes of visible characters, separators or NUL, other
        // spellings of an escape, and UTF-8 text as bytes.
        for text in [
            "plain",
            "a\\",
            "a\\q",
            "\\u{2f}x",
            "\\x2f",
            "\\u{2e}\\u{2e}",
            "\\u{61}",
            "\\x61",
            "\\u{0}",
            "\\u{a}",
            "\\u{1B}",
            "\\u{01b}",
            "\\u{d800}",
            "\\u{",
            "\\xc3\\xa9",
            "\\xF",
            "\\xFF",
        ] {
            check(text, None);
        }
    }

    #[test]
    fn a_path_with_a_slash_at_its_end_is_of_a_directory() {
        for text in ["a/", "a//", "a/.", ".", "./", "/"] {
            assert!(names_directory(text), "{text}");
        }
        for text in ["a", "a/b", "a.", "a/..b", ""] {
            assert!(!names_directory(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_name_without_a_backslash_is_read_back(name in proptest::collection::vec(any::<u8>(), 0..20)) {
            let name: Vec<u8> = name.into_iter().filter(|byte| !b"\\/\0".contains(byte)).collect();
            let name = OsStr::from_bytes(&name);
            let text = shown(name);
            let read = unescaped(OsStr::new(&text)).unwrap_or_else(|| text.clone().into());
            prop_assert_eq!(read, name, "{}", text);
        }

        #[test]
        fn what_is_allowed_lies_in_an_allowed_tree(text in "[a-z./~\0]{0,30}|/srv/app/[a-z./]{0,20}|/state/[a-z./]{0,20}") {
            let rules = rules();
            if let Ok(path) = rules.absolute(&text) {
                prop_assert!(path.is_absolute());
                if rules.judge(&path, Access::Write).is_ok() {
                    prop_assert!(rules.writable.iter().any(|root| path.starts_with(root)));
                    prop_assert!(!path.starts_with("/srv/app/keys") && !path.starts_with("/config"));
                }
            }
        }
    }
}
