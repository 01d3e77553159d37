//! Programs that run the value of an option, and programs that may run any of their arguments.

use super::reader::{BLANK, EVERY, Reader, Stdin};

pub(super) const READERS: &[Reader] = &[
    Reader {
        names: "git",
        loads: "cuxO",
        long_loads: "--config-env --exec-path --upload-pack --receive-pack --exec --open-files-in-pager --extcmd --config --template",
        ..BLANK
    },
    Reader {
        names: "tar bsdtar gtar",
        flags: "AcdrtuxzjJaZhkmnOpPSvwWiBGlMRsUE",
        valued: "bCfgHKLNVX",
        long_valued: "--file --directory --exclude --exclude-from --strip-components",
        loads: "FIT",
        long_loads: "--use-compress-program --to-command --checkpoint-action --info-script --new-volume-script --rsh-command --rmt-command --files-from",
        ..BLANK
    },
    Reader { names: "rsync", runs: "eM", long_runs: "--rsh --rsync-path --remote-option", ..BLANK },
    Reader { names: "scp sftp", valued: "ciJlPX", runs: "bDFoS", ..BLANK },
    Reader {
        names: "make gmake bmake remake",
        loads: "CI",
        long_loads: "--include-dir --directory",
        runs: "Ef",
        long_runs: "--file --makefile --eval",
        ..BLANK
    },
    Reader {
        names: "ninja just rake cmake",
        loads: "CeEfPr",
        long_loads: "--justfile --rakefile --require",
        ..BLANK
    },
    Reader { names: "curl", loads: "K", long_loads: "--config --engine", ..BLANK },
    Reader {
        names: "wget",
        valued: "aABDIiOoPQRtTUwX",
        runs: "e",
        long_runs: "--execute --config --use-askpass",
        ..BLANK
    },
    Reader { names: "zip", long_runs: "-TT --unzip-command", ..BLANK },
    Reader { names: "cpio", long_runs: "--rsh-command", ..BLANK },
    Reader { names: "sort", long_runs: "--compress-program", ..BLANK },
    Reader { names: "split", long_runs: "--filter", ..BLANK },
    Reader { names: "rg", long_runs: "--pre --hostname-bin", ..BLANK },
    Reader { names: "man", runs: "HP", long_runs: "--pager --html", ..BLANK },
    Reader {
        names: "less more most",
        loads: "k",
        long_loads: "--lesskey-file --lesskey-src --lesskey-content",
        ..BLANK
    },
    Reader { names: "bat batcat ag", long_runs: "--pager", ..BLANK },
    Reader {
        names: "nc ncat netcat nc.traditional nc.openbsd",
        runs: "ce",
        long_runs: "--exec --sh-exec --lua-exec",
        ..BLANK
    },
    Reader { names: "tcpdump", runs: "z", ..BLANK },
    Reader { names: "openssl", long_loads: "-engine -provider -provider-path", ..BLANK },
    Reader { names: "nmap", long_loads: "--script --script-args --datadir", ..BLANK },
    Reader { names: "exiftool", long_loads: "-config -p", long_runs: "-if", ..BLANK },
    Reader {
        names: "restic borg rclone",
        valued: "r",
        runs: "o",
        long_runs: "--option --password-command --remote-path --rsh --stdin-from-command",
        ..BLANK
    },
    Reader {
        names: "kubectl oc helm",
        long_loads: "--kubeconfig",
        long_runs: "--post-renderer",
        ..BLANK
    },
    Reader {
        names: "docker podman nerdctl docker-compose",
        long_loads: "--config --runtime --hooks-dir --conmon",
        ..BLANK
    },
    Reader {
        names: "psql",
        valued: "dFhpPRTUv",
        code: "cf",
        loads: "L",
        long_code: "--command --file",
        long_loads: "--log-file",
        // A value with a leading `|` is a command.
        runs: "o",
        long_runs: "--output",
        stdin: Stdin::Unless,
        ..BLANK
    },
    Reader {
        names: "mysql mariadb",
        code: "e",
        long_code: "--execute",
        long_loads: "--plugin-dir --defaults-file --defaults-extra-file",
        long_runs: "--pager --init-command",
        stdin: Stdin::Unless,
        ..BLANK
    },
    Reader { names: "script", code: "c", long_code: "--command", stdin: Stdin::Unless, ..BLANK },
    Reader { names: "at batch", code: "f", stdin: Stdin::Unless, ..BLANK },
    // Programs with their own language, and programs that run arguments in a way we do not model.
    Reader {
        names: "vi vim vim.tiny vim.basic vim.nox nvim view vimdiff rvim editor ex ed red emacs emacsclient nano",
        ..EVERY
    },
    Reader { names: "gdb lldb cgdb socat dc m4 gnuplot mongo mongosh lftp ftp gs", ..EVERY },
    Reader {
        names: "deno bun guile julia octave scala groovy elixir erl escript ipython irb jshell R ghci pwsh nu elvish xonsh",
        ..EVERY
    },
    Reader {
        names: "screen tmux dtach abduco zellij xterm rxvt urxvt konsole gnome-terminal alacritty kitty",
        ..EVERY
    },
    Reader {
        names: "parallel entr pee ifne chronic perf hyperfine rlwrap direnv xvfb-run sshpass",
        ..EVERY
    },
    Reader {
        names: "rsh rlogin logsave uclampset lxc-attach runc ctr cgexec chpst run-one gdbserver msgexec prove systemd-socket-activate su runuser sg newgrp pkexec run0 capsh setarch numactl cpulimit choom runcon faketime",
        ..EVERY
    },
    Reader {
        names: "bwrap firejail fakeroot proxychains torsocks eatmydata flatpak-spawn systemd-nspawn",
        ..EVERY
    },
    Reader {
        names: "start-stop-daemon daemonize ssh-agent pdsh pssh clush dsh ansible ansible-playbook ansible-console salt salt-call nix-shell",
        ..EVERY
    },
];
