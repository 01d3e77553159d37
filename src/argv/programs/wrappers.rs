//! Programs that run the program named in their arguments, on this host or another.

use super::reader::{BLANK, Kind, LINE, PROGRAM, Reader, Stdin};

pub(super) const READERS: &[Reader] = &[
    Reader {
        names: "env",
        flags: "0iv",
        valued: "Cu",
        code: "S",
        long_flags: "--ignore-environment --null --debug",
        long_valued: "--unset --chdir",
        long_code: "--split-string",
        ..PROGRAM
    },
    Reader {
        names: "xargs",
        flags: "0oprtx",
        attached: "eil",
        valued: "adEILnPs",
        long_flags: "--null --no-run-if-empty --verbose --interactive --exit --open-tty",
        long_valued: "--max-args --max-procs --max-chars --max-lines --delimiter --arg-file",
        stdin: Stdin::Words,
        ..PROGRAM
    },
    Reader {
        names: "timeout",
        flags: "fpv",
        valued: "ks",
        long_flags: "--foreground --preserve-status --verbose",
        long_valued: "--signal --kill-after",
        before: 1,
        ..PROGRAM
    },
    Reader {
        names: "nice",
        flags: "0123456789",
        valued: "n",
        long_valued: "--adjustment",
        ..PROGRAM
    },
    Reader {
        names: "ionice",
        flags: "t",
        valued: "cnpPu",
        long_flags: "--ignore",
        long_valued: "--class --classdata --pid --pgid --uid",
        ..PROGRAM
    },
    Reader {
        names: "chrt",
        flags: "abdfimopRrv",
        valued: "DPT",
        long_flags: "--batch --deadline --fifo --idle --other --rr --reset-on-fork --all-tasks --max --pid --verbose",
        long_valued: "--sched-runtime --sched-period --sched-deadline",
        before: 1,
        ..PROGRAM
    },
    Reader {
        names: "taskset",
        flags: "acp",
        long_flags: "--all-tasks --cpu-list --pid",
        before: 1,
        ..PROGRAM
    },
    Reader {
        names: "prlimit",
        attached: "cdefilmnqrstuvxy",
        valued: "op",
        long_flags: "--noheadings --raw --verbose --as --core --cpu --data --fsize --locks --memlock --msgqueue --nice --nofile --nproc --rss --rtprio --rttime --sigpending --stack",
        long_valued: "--output --pid",
        ..PROGRAM
    },
    Reader {
        names: "sudo doas",
        flags: "AbBEeHiKklLnNPSsV",
        valued: "aCcDghpRrTtuU",
        long_flags: "--askpass --background --bell --preserve-env --edit --set-home --login --remove-timestamp --reset-timestamp --list --non-interactive --preserve-groups --stdin --shell",
        long_valued: "--user --group --host --prompt --chdir --chroot --close-from --role --type --other-user --command-timeout",
        stdin: Stdin::Unless,
        ..PROGRAM
    },
    Reader { names: "gosu su-exec setuidgid", before: 1, kind: Kind::Within, ..BLANK },
    Reader {
        names: "chroot",
        long_flags: "--skip-chdir",
        long_valued: "--userspec --groups",
        before: 1,
        kind: Kind::Within,
        stdin: Stdin::Unless,
        ..BLANK
    },
    Reader {
        names: "unshare",
        flags: "cfimnpruCTU",
        valued: "GSw",
        loads: "R",
        long_flags: "--mount --uts --ipc --net --pid --user --cgroup --time --fork --map-root-user --map-current-user --mount-proc --kill-child --keep-caps",
        long_valued: "--setuid --setgid --wd --propagation --map-user --map-group --setgroups",
        long_loads: "--root",
        stdin: Stdin::Unless,
        ..PROGRAM
    },
    Reader {
        names: "nsenter",
        flags: "aceFZ",
        attached: "imnpruwCTU",
        valued: "GSt",
        long_flags: "--all --mount --uts --ipc --net --pid --user --cgroup --time --no-fork --preserve-credentials --follow-context --env --join-cgroup",
        long_valued: "--target --setuid --setgid",
        long_loads: "--root --wd --wdns",
        stdin: Stdin::Unless,
        ..PROGRAM
    },
    Reader {
        names: "setpriv",
        flags: "d",
        long_flags: "--dump --nnp --no-new-privs --clear-groups --keep-groups --init-groups --reset-env",
        long_valued: "--ruid --euid --rgid --egid --reuid --regid --groups --inh-caps --ambient-caps --bounding-set --securebits --pdeathsig --ptracer --selinux-label --apparmor-profile --landlock-access --landlock-rule --seccomp-filter",
        ..PROGRAM
    },
    Reader { names: "stdbuf", valued: "eio", long_valued: "--input --output --error", ..PROGRAM },
    Reader {
        names: "flock",
        flags: "eFnosux",
        valued: "Ew",
        code: "c",
        long_flags: "--exclusive --shared --nonblock --nb --close --no-fork --unlock --verbose",
        long_valued: "--wait --timeout --conflict-exit-code",
        long_code: "--command",
        before: 1,
        ..PROGRAM
    },
    Reader {
        names: "nohup setsid catchsegv unbuffer linux32 linux64 i386 x86_64 busybox toybox dbus-run-session",
        flags: "cfpvwR",
        long_flags: "--ctty --fork --wait --addr-no-randomize",
        long_loads: "--config-file --dbus-daemon",
        ..PROGRAM
    },
    Reader {
        names: "time",
        flags: "apqv",
        valued: "fo",
        long_flags: "--append --portability --quiet --verbose",
        long_valued: "--format --output",
        ..PROGRAM
    },
    Reader { names: "exec", flags: "cl", valued: "a", ..PROGRAM },
    Reader { names: "command", flags: "pvV", ..PROGRAM },
    Reader { names: "builtin", ..PROGRAM },
    Reader {
        names: "strace ltrace",
        flags: "ACcdDFfhikLnNqrTtvVwxyYzZ",
        valued: "abeEIOpPsSuUX",
        loads: "lo",
        long_flags: "--follow-forks --seccomp-bpf --summary-only --summary --quiet --no-abbrev",
        long_valued: "--attach --trace --string-limit --user",
        long_loads: "--output",
        ..PROGRAM
    },
    Reader { names: "valgrind", flags: "qv", long_flags: "--quiet --verbose", ..PROGRAM },
    Reader {
        names: "systemd-run",
        flags: "dGPqrSt",
        valued: "EHMu",
        loads: "p",
        long_flags: "--user --system --scope --wait --pipe --pty --shell --quiet --collect --same-dir --no-block --no-ask-password --remain-after-exit --send-sighup",
        long_valued: "--unit --setenv --uid --gid --nice --description --slice --working-directory --host --machine --service-type --on-active --on-boot --on-calendar",
        long_loads: "--property --timer-property --path-property --socket-property",
        stdin: Stdin::Unless,
        kind: Kind::Within,
        ..BLANK
    },
    Reader {
        names: "systemd-inhibit systemd-cat",
        valued: "tp",
        long_valued: "--what --who --why --mode --identifier --priority --stderr-priority --level-prefix",
        stdin: Stdin::Data,
        ..PROGRAM
    },
    Reader { names: "tini dumb-init catatonit", flags: "cgPsvw", valued: "ep", ..PROGRAM },
    Reader {
        names: "ld-linux",
        long_flags: "--list --verify --inhibit-cache --list-diagnostics --list-tunables",
        long_valued: "--argv0 --inhibit-rpath --glibc-hwcaps-mask --glibc-hwcaps-prepend",
        long_loads: "--library-path --preload --audit",
        kind: Kind::Within,
        ..BLANK
    },
    Reader {
        names: "npx bunx pnpx uvx",
        flags: "qy",
        loads: "pc",
        long_flags: "--yes --no --no-install --quiet --prefer-offline",
        long_loads: "--call --package --from --with --node-options --registry --index-url",
        kind: Kind::Within,
        ..BLANK
    },
    Reader {
        names: "watch",
        flags: "bcCdegrtwx",
        valued: "nqs",
        long_flags: "--beep --color --no-color --differences --errexit --chgexit --precise --no-title --no-wrap --exec",
        long_valued: "--interval --equexit --shotsdir",
        ..LINE
    },
    Reader {
        names: "ssh slogin autossh dbclient",
        flags: "46AaCfGgKkMNnqsTtVvXxYy",
        valued: "BbcDEeiJLlmOpQRWw",
        loads: "FIoSP",
        before: 1,
        stdin: Stdin::Unless,
        ..LINE
    },
    Reader {
        names: "sqlite",
        long_flags: "-ascii -bail -batch -box -column -csv -echo -header -noheader -html -json -line -list -markdown -quote -readonly -safe -table -tabs -version",
        long_valued: "-separator -nullvalue -newline -maxsize -pagecache",
        long_loads: "-cmd -init",
        before: 1,
        stdin: Stdin::Unless,
        ..LINE
    },
    Reader { names: "eval", ..LINE },
];
