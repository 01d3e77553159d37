//! Programs that run another one only with a subcommand such as `exec` or `run`.

use super::reader::{BLANK, EVERY, Kind, PROGRAM, Reader, Verb};

const WITHIN: Reader = Reader { kind: Kind::Within, ..BLANK };

pub(super) const VERBS: &[Verb] = &[
    Verb {
        names: "docker podman nerdctl docker-compose",
        verbs: "exec",
        reader: Reader {
            flags: "diTt",
            valued: "euw",
            long_flags: "--detach --interactive --tty --no-TTY --privileged",
            long_valued: "--env --env-file --user --workdir --index --detach-keys",
            before: 1,
            ..PROGRAM
        },
    },
    Verb {
        names: "docker podman nerdctl docker-compose",
        verbs: "run create",
        reader: Reader {
            flags: "diTt",
            valued: "ehlmpuvw",
            long_flags: "--detach --interactive --tty --rm --init --read-only --no-deps",
            long_valued: "--env --env-file --user --workdir --name --network --volume --memory --cpus --label",
            long_loads: "--entrypoint --mount --runtime --device",
            before: 1,
            kind: Kind::Within,
            ..BLANK
        },
    },
    Verb {
        names: "kubectl oc",
        verbs: "exec",
        reader: Reader {
            flags: "iqt",
            valued: "cn",
            long_flags: "--stdin --tty --quiet",
            long_valued: "--container --namespace --context --cluster --user --pod-running-timeout --request-timeout",
            long_loads: "--kubeconfig --filename",
            before: 1,
            ..PROGRAM
        },
    },
    Verb { names: "kubectl oc", verbs: "debug run rsh", reader: EVERY },
    Verb {
        names: "lxc incus crictl machinectl ip",
        verbs: "exec shell",
        reader: Reader { flags: "ist", before: 1, kind: Kind::Within, ..BLANK },
    },
    Verb { names: "podman buildah", verbs: "unshare", reader: WITHIN },
    Verb { names: "npm pnpm yarn", verbs: "exec x dlx", reader: WITHIN },
    Verb { names: "npm pnpm yarn", verbs: "run run-script", reader: PROGRAM },
    Verb { names: "bundle poetry uv pipenv conda pipx mise", verbs: "exec run", reader: WITHIN },
    Verb { names: "go", verbs: "run generate", reader: EVERY },
    Verb { names: "nix", verbs: "run shell develop", reader: EVERY },
    Verb { names: "gcloud vagrant minikube", verbs: "ssh", reader: EVERY },
    Verb { names: "aws", verbs: "send-command execute-command start-session", reader: EVERY },
    Verb { names: "az", verbs: "run-command command exec", reader: EVERY },
    Verb { names: "virsh", verbs: "qemu-agent-command qemu-monitor-command", reader: EVERY },
    Verb {
        names: "git",
        verbs: "bisect submodule filter-branch difftool mergetool config",
        reader: EVERY,
    },
];
