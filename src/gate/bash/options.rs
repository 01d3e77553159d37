//! The options of programs that run another program: which of them take a word of their own.

use super::syntax::Word;

/// The options of a wrapper that come before the program: letters without a value, letters with one, long ones without, long ones with.
pub(super) struct Options {
    pub(super) flags: &'static str,
    pub(super) valued: &'static str,
    pub(super) long_flags: &'static [&'static str],
    pub(super) long_valued: &'static [&'static str],
    /// Words of its own before the program.
    pub(super) own_words: usize,
}

pub(super) const fn options(flags: &'static str, valued: &'static str) -> Options {
    Options { flags, valued, long_flags: &[], long_valued: &[], own_words: 0 }
}

/// Programs whose first argument that is no option is the program they run. Where an option is not one of these, nobody can tell which.
pub(super) const PREFIXES: &[(&str, Options)] = &[
    (
        "env",
        Options {
            long_flags: &["--ignore-environment", "--null", "--debug"],
            long_valued: &["--unset", "--chdir"],
            ..options("i0v", "uC")
        },
    ),
    ("nice", Options { long_valued: &["--adjustment"], ..options("0123456789", "n") }),
    ("nohup", options("", "")),
    ("setsid", Options { long_flags: &["--ctty", "--fork", "--wait"], ..options("cfw", "") }),
    (
        "time",
        Options {
            long_flags: &["--portability", "--append", "--verbose"],
            ..options("apvq", "fo")
        },
    ),
    ("command", options("p", "")),
    ("builtin", options("", "")),
    ("exec", options("cl", "a")),
    ("stdbuf", Options { long_valued: &["--input", "--output", "--error"], ..options("", "ioe") }),
    ("ionice", Options { long_valued: &["--class", "--classdata"], ..options("t", "cn") }),
    ("strace", options("fqvtTxyckdiC", "eopsuaOSPIbEX")),
    ("ltrace", options("fqStTcCi", "eopsuanlx")),
    ("systemd-run", options("", "")),
    ("dbus-run-session", options("", "")),
    ("xvfb-run", options("a", "")),
    ("systemd-inhibit", options("", "")),
    ("linux64", options("", "")),
    ("linux32", options("", "")),
    ("catchsegv", options("", "")),
    ("unbuffer", options("p", "")),
    (
        "xargs",
        Options {
            long_flags: &[
                "--null",
                "--no-run-if-empty",
                "--verbose",
                "--interactive",
                "--exit",
                "--open-tty",
            ],
            long_valued: &["--max-args", "--max-procs", "--max-chars", "--delimiter", "--arg-file"],
            ..options("0oprtx", "adEILnPs")
        },
    ),
    ("busybox", options("", "")),
    ("toybox", options("", "")),
    (
        "timeout",
        Options {
            long_flags: &["--foreground", "--preserve-status", "--verbose"],
            long_valued: &["--signal", "--kill-after"],
            own_words: 1,
            ..options("v", "sk")
        },
    ),
    (
        "taskset",
        Options { own_words: 1, long_flags: &["--cpu-list", "--all-tasks"], ..options("ac", "") },
    ),
    ("chrt", Options { own_words: 1, ..options("bfiorR", "") }),
    (
        "flock",
        Options {
            own_words: 1,
            long_flags: &[
                "--exclusive",
                "--shared",
                "--nonblock",
                "--nb",
                "--close",
                "--no-fork",
                "--verbose",
            ],
            long_valued: &["--wait", "--timeout", "--conflict-exit-code"],
            ..options("exsnoF", "wE")
        },
    ),
];

/// Programs that run another one in a way that is not followed here.
pub(super) const OPAQUE: &[&str] = &[
    "parallel",
    "setarch",
    "numactl",
    "prlimit",
    "cpulimit",
    "proxychains",
    "proxychains4",
    "gosu",
    "su-exec",
    "fakeroot",
    "bwrap",
    "firejail",
    "runcon",
    "faketime",
    "torsocks",
    "socat",
    "unlinkat",
    "entr",
    "rlwrap",
    "start-stop-daemon",
    "daemonize",
    "npx",
    "bunx",
    "pipx",
    "uvx",
    "systemd-cat",
    "ssh-agent",
    "chronic",
    "pee",
    "ifne",
    "run-parts",
    "choom",
    "perf",
    "valgrind",
    "hyperfine",
    "i386",
    "x86_64",
    "eatmydata",
    "tini",
    "dumb-init",
    "direnv",
    "flatpak-spawn",
    "lftp",
    "sshpass",
    "pdsh",
    "pssh",
    "ansible",
    "ansible-console",
    "salt",
    "salt-call",
    "nix-shell",
    "script",
];

/// Words by which a program runs another one.
pub(super) const RUNNING: &[(&str, &[&str])] = &[
    ("npm", &["exec", "x"]),
    ("pnpm", &["exec", "dlx"]),
    ("yarn", &["exec", "dlx"]),
    ("poetry", &["run"]),
    ("uv", &["run"]),
    ("pipenv", &["run"]),
    ("conda", &["run"]),
    ("bundle", &["exec"]),
    ("ip", &["exec"]),
    ("podman", &["unshare"]),
    ("buildah", &["unshare", "run"]),
    ("oc", &["rsh", "debug", "run"]),
    ("kubectl", &["debug", "run"]),
    ("lxc", &["exec"]),
    ("incus", &["exec"]),
    ("crictl", &["exec"]),
    ("gcloud", &["ssh"]),
];

/// Options by which a program runs another one: of one letter, also in a bundle, and long ones, also shortened.
pub(super) const RUNNERS: &[(&str, &[&str])] = &[
    ("rsync", &["-e", "--rsh", "--rsync-path"]),
    ("split", &["--filter"]),
    ("sort", &["--compress-program"]),
    ("rg", &["--pre"]),
    ("wget", &["--use-askpass"]),
    ("zip", &["-T", "--unzip-command"]),
    ("make", &["-f", "--file", "--makefile", "--eval"]),
    ("gmake", &["-f", "--file", "--makefile", "--eval"]),
    ("nc", &["-e", "-c", "--exec", "--sh-exec"]),
    ("ncat", &["-e", "-c", "--exec", "--sh-exec", "--lua-exec"]),
    ("netcat", &["-e", "-c", "--exec", "--sh-exec"]),
    ("scp", &["-S", "-F", "-o", "-D"]),
    ("sftp", &["-S", "-F", "-o", "-D", "-b"]),
];

impl Options {
    /// Returns the words from the first that is no option on; `None` where an option is not known.
    pub(super) fn rest<'a>(&self, words: &'a [Word]) -> Option<&'a [Word]> {
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let Some(text) = word.known() else {
                // What is no option for sure ends them; what may be one is not known.
                return word.begins_known().then(|| words.get(at..)).flatten();
            };
            if text == "--" {
                return words.get(at + 1..);
            }
            if let Some(long) = text.strip_prefix("--") {
                let name = format!("--{}", long.split('=').next().unwrap_or(long));
                let valued = self.long_valued.contains(&name.as_str());
                if !valued && !self.long_flags.contains(&text) {
                    return None;
                }
                at += 1 + usize::from(valued && !long.contains('='));
            } else if let Some(bundle) = text.strip_prefix('-').filter(|bundle| !bundle.is_empty())
            {
                let mut letters = bundle.chars();
                at += 1;
                while let Some(letter) = letters.next() {
                    if self.valued.contains(letter) {
                        at += usize::from(letters.as_str().is_empty());
                        break;
                    }
                    if !self.flags.contains(letter) {
                        return None;
                    }
                }
            } else {
                break;
            }
        }
        words.get(at.min(words.len())..)
    }
}
