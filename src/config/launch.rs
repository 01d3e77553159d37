//! Tells why an executable file that exists cannot be started: the kernel reads its first line to
//! find the interpreter.
//!
//! *Source*: execve(2).

use std::io::Read as _;
use std::path::Path;

/// The kernel reads this many bytes to find the interpreter.
const FIRST_BYTES: u64 = 256;

/// Returns why the kernel does not start `path`, for people; `None` if it is not a script, or if we
/// see no obstacle. Reads the beginning of the file.
#[must_use]
pub(crate) fn launch_problem(path: &Path) -> Option<String> {
    let mut begin = Vec::new();
    std::fs::File::open(path).ok()?.take(FIRST_BYTES).read_to_end(&mut begin).ok()?;
    let Some(line) = begin.strip_prefix(b"#!") else {
        // The kernel knows several binary formats, and a host can add more.
        let is_text = begin.iter().all(|b| !b.is_ascii_control() || b.is_ascii_whitespace());
        return is_text.then(|| {
            "its first line does not name an interpreter: begin it with a line such as `#!/bin/sh`"
                .to_owned()
        });
    };
    let line = line.split(|b| *b == b'\n').next()?;
    let text = String::from_utf8_lossy(line);
    let interpreter = text.split_ascii_whitespace().next()?;
    if line.ends_with(b"\r") {
        let last = text.trim_end().rsplit(' ').next()?;
        return Some(format!(
            "its lines end as in Windows (CR LF), so the kernel looks for `{last}\\r`: convert it, for example with `sed -i 's/\\r$//' {}`",
            path.display()
        ));
    }
    let is_missing = !Path::new(interpreter).exists();
    is_missing.then(|| format!("its interpreter `{interpreter}` does not exist"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_obstacle_of_a_script_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("script");
        let problem = |content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            launch_problem(&file).unwrap_or_default()
        };
        assert!(problem(b"#!/bin/sh\r\nuptime\r\n").contains("looks for `/bin/sh\\r`"));
        assert!(problem(b"#!/usr/bin/env bash\r\n").contains("looks for `bash\\r`"));
        assert!(problem(b"uptime\n").contains("does not name an interpreter"));
        assert!(problem(b"").contains("does not name an interpreter"));
        assert!(problem(b"#!/usr/bin/python9\n").contains("`/usr/bin/python9` does not exist"));
        for right in
            [&b"#!/bin/sh\n"[..], b"#! /bin/sh -e\n", b"\x7fELF\x02\x01\x01\x00", b"MZ\x90\x00"]
        {
            assert_eq!(problem(right), "", "{right:?}");
        }
        assert_eq!(launch_problem(&dir.path().join("gone")), None);
    }
}
