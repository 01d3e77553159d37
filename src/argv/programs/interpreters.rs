//! Shells and interpreters, and programs that take a file of commands.

use super::reader::{BLANK, Kind, Reader, SCRIPT, Stdin};

pub(super) const READERS: &[Reader] = &[
    Reader {
        names: "sh bash bash-static dash ash zsh ksh mksh lksh yash rbash posh",
        flags: "abefhiklmnprtuvxBCDEHPT",
        valued: "oO",
        long_flags: "--login --norc --noprofile --posix --restricted --verbose --noediting --debugger --version --help",
        long_loads: "--rcfile --init-file",
        text: "c",
        reads: "s",
        kind: Kind::Shell,
        ..SCRIPT
    },
    Reader {
        names: "fish csh tcsh",
        flags: "befilmnqtvVxXNP",
        long_flags: "--login --interactive --no-config --private",
        loads: "C",
        long_loads: "--init-command",
        code: "c",
        long_code: "--command",
        reads: "s",
        kind: Kind::Shell,
        ..SCRIPT
    },
    Reader {
        names: "python pypy",
        flags: "bBdEhiIOPqRsSuvVx",
        valued: "WX",
        long_flags: "--version --help",
        long_valued: "--check-hash-based-pycs",
        last: "cm",
        ..SCRIPT
    },
    Reader {
        names: "perl",
        flags: "0123456789acCDfglnpsStTuUvVwWX",
        attached: "ix",
        valued: "I",
        code: "eE",
        loads: "dMm",
        // The pattern of `-F` may contain code.
        runs: "F",
        ..SCRIPT
    },
    Reader {
        names: "ruby",
        flags: "0123456789acdlnpsSUvwy",
        attached: "FiKTWx",
        valued: "CEI",
        code: "e",
        loads: "r",
        long_flags: "--version --yjit --jit --verbose --debug",
        ..SCRIPT
    },
    Reader {
        names: "node nodejs",
        flags: "chiv",
        valued: "C",
        code: "ep",
        loads: "r",
        long_flags: "--check --interactive --version --no-warnings --trace-warnings --enable-source-maps --no-deprecation",
        long_valued: "--conditions --env-file --max-old-space-size",
        long_code: "--eval --print",
        long_loads: "--require --import --loader --experimental-loader --run --test-reporter",
        ..SCRIPT
    },
    Reader {
        names: "php",
        flags: "aChHilmnqsvw",
        code: "rfBEFR",
        loads: "cdtz",
        long_code: "--run --file --process-begin --process-code --process-file --process-end",
        long_loads: "--php-ini --define --docroot --zend-extension",
        ..SCRIPT
    },
    Reader { names: "lua luajit", flags: "ivEW", loads: "elj", ..SCRIPT },
    Reader { names: "tclsh wish", ..SCRIPT },
    Reader { names: "expect", flags: "bdinNv", valued: "D", code: "f", loads: "c", ..SCRIPT },
    Reader { names: "osascript", flags: "i", valued: "ls", code: "e", ..SCRIPT },
    Reader {
        names: "Rscript",
        code: "e",
        long_flags: "--vanilla --no-save --no-restore --verbose --no-environ --no-init-file --no-site-file",
        long_loads: "--default-packages",
        ..SCRIPT
    },
    Reader {
        names: "awk gawk mawk nawk original-awk",
        flags: "bcCghnNOPrsStVM",
        attached: "dDop",
        valued: "Fv",
        code: "feE",
        loads: "il",
        long_flags: "--posix --traditional --re-interval --sandbox --csv --version --characters-as-bytes",
        long_valued: "--field-separator --assign",
        long_code: "--file --source --exec",
        long_loads: "--include --load",
        stdin: Stdin::Data,
        ..SCRIPT
    },
    Reader {
        names: "sed gsed ssed",
        flags: "Enrsuz",
        attached: "i",
        valued: "l",
        code: "ef",
        long_flags: "--quiet --silent --regexp-extended --null-data --zero-terminated --separate --unbuffered --posix --debug --sandbox --follow-symlinks --in-place",
        long_valued: "--line-length",
        long_code: "--expression --file",
        kind: Kind::Permuted,
        ..BLANK
    },
    Reader { names: "crontab", flags: "eilr", valued: "u", ..SCRIPT },
    Reader {
        names: "logrotate",
        flags: "dfv",
        loads: "m",
        valued: "sl",
        long_flags: "--debug --force --verbose --skip-state-lock",
        long_valued: "--state --log",
        long_loads: "--mail",
        stdin: Stdin::Data,
        ..SCRIPT
    },
    Reader {
        names: "run-parts",
        long_flags: "--test --list --verbose --report --reverse --exit-on-error --new-session",
        long_valued: "--umask --arg --regex",
        valued: "au",
        kind: Kind::Within,
        ..BLANK
    },
];
