//! Finds the devices that a command may write: by their names, and by what programs do with them.

use super::word::Word;
use crate::argv::programs::{Words, is_listed, words};

/// Tells whether a path is a device or another kernel interface, except for the harmless ones.
pub(super) fn is_device(path: &str) -> bool {
    /// Prefixes of the names of disk and memory devices. A relative path such as `dev/sda` counts
    /// only if it names one of these.
    const DISKS: [&str; 11] =
        ["sd", "hd", "vd", "xvd", "nvme", "mmcblk", "dm-", "mapper", "md", "mem", "disk"];
    const HARMLESS: &[&str] = &["null", "zero", "full", "stdin", "stdout", "stderr", "tty"];
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if !path.starts_with('/') && !path.contains("..") {
        let is_disk = |name: &str| DISKS.iter().any(|disk| name.starts_with(disk));
        return matches!(parts.as_slice(), ["dev", name, ..] if is_disk(name));
    }
    match parts.as_slice() {
        ["dev", name] => !HARMLESS.contains(name),
        // These paths are not devices: bash opens a network connection for them.
        ["dev", "tcp" | "udp", ..] => parts.contains(&".."),
        ["dev", "fd" | "shm", ..] => parts.contains(&".."),
        ["dev", ..] | ["proc", "sysrq-trigger"] | ["proc", "sys", ..] | ["sys", ..] => true,
        // `/proc/PID/root`, `cwd` and `task` lead to other directories, which may contain devices.
        ["proc", _, "root" | "cwd" | "task", rest @ ..] => {
            ["dev", "sys", "proc", ".."].iter().any(|name| rest.contains(name))
        }
        // A path with `..` may lead into `/dev`.
        parts => parts.contains(&"..") && parts.contains(&"dev"),
    }
}

/// Programs that may be given a device, because they normally only read it.
pub(super) static READERS: Words = Words::new(|| {
    words(
        "cat ls stat file lsblk blkid df du head tail od hexdump wc grep test [ echo printf \
    readlink realpath findmnt smartctl md5sum sha256sum awk gawk mawk cut paste lsof iostat xfs_info udevadm",
    )
});

/// Tells whether an argument names a device, or may do so once bash has expanded it.
pub(super) fn may_name_device(word: &Word) -> bool {
    let text = word.beginning();
    let is_open = word.known().is_none() && text.starts_with("/dev/");
    is_open || names_device(text) || (text.starts_with('/') && word.may_become("/dev/"))
}

/// Tells whether an argument names a device or is an option with a device as its value.
fn names_device(text: &str) -> bool {
    let behind = text.split_once('=').map_or(text, |(_, value)| value);
    let attached =
        text.find("/dev/").and_then(|at| text.get(at..)).filter(|_| text.starts_with('-'));
    is_device(behind) || attached.is_some_and(is_device)
}

/// Tells whether a path is a directory of devices or of kernel settings.
pub(super) fn is_kernel_tree(text: &str) -> bool {
    let mut parts = text.split('/').filter(|part| !part.is_empty() && *part != ".");
    let tree = parts.next().filter(|_| text.starts_with('/'));
    // The files below `/proc/PID` describe a process and are not devices.
    let is_process = parts.next().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
    match tree {
        Some("proc") => !is_process,
        tree => matches!(tree, Some("dev" | "sys")),
    }
}

/// Tells whether an argument of `smartctl` may be an option that does not only read.
pub(super) fn changes_smart(word: &Word) -> bool {
    const READ: &str =
        "all xall info health attributes capabilities get log device scan json version help";
    let Some(text) = word.known() else { return !word.begins_known() };
    if text.contains("scterc,") {
        return true;
    }
    match (text.strip_prefix("--"), text.strip_prefix('-')) {
        (Some(name), _) => !is_listed(READ, name.split('=').next().unwrap_or(name)),
        // The options in the second list take a value, which may be attached.
        (None, Some(short)) => {
            !matches!(short, "a" | "x" | "i" | "H" | "A" | "c" | "j")
                && !short.starts_with(['l', 'd', 'n', 'q', 'g'])
        }
        (None, None) => false,
    }
}
