//! Which programs destroy, and which do with such arguments. *Source*: threat model, SH-5.

use super::syntax::Word;
use super::wrapper::has;

/// Destructive whatever follows.
const ALWAYS: &str = "\
    rm rmdir unlink shred dd wipefs mke2fs mkswap fdisk sfdisk cfdisk gdisk sgdisk parted \
    blkdiscard cryptsetup mdadm lvremove vgremove pvremove lvreduce zpool zfs umount swapoff \
    swapon losetup shutdown reboot halt poweroff telinit init kexec killall killall5 pkill skill \
    sudo su doas pkexec runuser sudoedit chroot unshare nsenter setpriv capsh at batch visudo \
    vipw vigr passwd chpasswd useradd userdel usermod adduser deluser groupadd groupdel groupmod \
    chsh chfn insmod rmmod modprobe chattr iptables-restore ip6tables-restore ipset ebtables \
    arptables hdparm nvme fsck e2fsck xfs_repair tune2fs resize2fs debugfs badblocks update-grub \
    grub-install add-apt-repository aptitude synaptic yum dnf zypper pacman apk snap flatpak \
    emerge portage dpkg-reconfigure debconf-set-selections update-rc.d chkconfig alternatives \
    update-alternatives srm wipe fstrim pivot_root switch_root fusermount fusermount3 dmsetup \
    lvm";

/// Destructive but for these first words, which only look.
const BUT_FOR: &[(&str, &[&str])] = &[
    ("mount", &["-l", "--show-labels", "-V", "--version", "-h", "--help"]),
    ("crontab", &["-l"]),
    ("apt", &["list", "show", "search", "policy", "depends", "rdepends", "--version"]),
    ("apt-get", &["--version", "-v", "--help"]),
    (
        "dpkg",
        &[
            "-l",
            "-L",
            "-s",
            "-S",
            "-p",
            "-V",
            "-C",
            "--list",
            "--listfiles",
            "--status",
            "--search",
            "--verify",
            "--audit",
            "--get-selections",
            "--print-architecture",
            "--version",
        ],
    ),
    (
        "rpm",
        &[
            "-q",
            "-qa",
            "-qi",
            "-ql",
            "-qf",
            "-qc",
            "-qd",
            "-V",
            "-Va",
            "--query",
            "--verify",
            "--version",
        ],
    ),
    ("iptables", &["-L", "-S", "-nL", "-nvL", "-vnL", "-V", "--list", "--list-rules", "--version"]),
    (
        "ip6tables",
        &["-L", "-S", "-nL", "-nvL", "-vnL", "-V", "--list", "--list-rules", "--version"],
    ),
    ("nft", &["list", "-v", "--version"]),
    ("ufw", &["status", "version", "--version"]),
    (
        "firewall-cmd",
        &[
            "--state",
            "--list-all",
            "--list-services",
            "--list-ports",
            "--get-zones",
            "--get-default-zone",
            "--get-active-zones",
            "--version",
        ],
    ),
];

/// Names that a function must not take: those above, the common ones, and what a script is made of.
const COMMON: &str = "\
    alias awk basename bash bg builtin cat cd chgrp chmod chown cmp command cp curl cut date \
    declare df diff dirname docker du echo env eval exec exit export false fg find git grep \
    gunzip gzip hash head hostname id ip jobs journalctl kill kubectl ln local ls make mkdir mv \
    node perl ping printf ps pwd python python3 read readlink return rsync sed service set sh \
    shift sleep sort source ssh stat systemctl tail tar tee test timeout touch tr trap true type \
    uname uniq unset wait wc wget which xargs";

fn is_listed(table: &str, name: &str) -> bool {
    table.split_ascii_whitespace().any(|known| known == name)
}

/// Tells whether this is the name of a well-known program.
pub(super) fn is_program(name: &str) -> bool {
    is_listed(COMMON, name)
        || is_listed(ALWAYS, name)
        || BUT_FOR.iter().any(|(known, _)| *known == name)
        || name.contains('/')
        || name.starts_with("mkfs")
}

/// Returns why a command destroys.
pub(super) fn reason(program: &str, arguments: &[Word]) -> Option<String> {
    let said = |what: &str| Some(format!("`{program}` {what}"));
    if is_listed(ALWAYS, program) || program.starts_with("mkfs") {
        return Some(format!("`{program}` is a destructive command"));
    }
    let tables = ["iptables", "ip6tables"].into_iter().find(|name| {
        program.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && rest != "-save")
    });
    let looked_up = tables.unwrap_or(program);
    if let Some((_, harmless)) = BUT_FOR.iter().find(|(name, _)| *name == looked_up) {
        let first = arguments.first().map(Word::known);
        let is_harmless = match first {
            None => program == "mount",
            Some(word) => word.is_some_and(|word| harmless.contains(&word)),
        };
        return if is_harmless { None } else { said("changes the system") };
    }
    match program {
        "systemctl" | "loginctl" => verb(
            program,
            arguments,
            &[
                "stop",
                "disable",
                "mask",
                "kill",
                "isolate",
                "poweroff",
                "reboot",
                "halt",
                "kexec",
                "suspend",
                "hibernate",
                "hybrid-sleep",
                "suspend-then-hibernate",
                "rescue",
                "emergency",
                "default",
                "exit",
                "switch-root",
                "soft-reboot",
                "revert",
                "set-default",
                "terminate-session",
                "terminate-user",
                "kill-session",
                "kill-user",
            ],
        ),
        "service" | "rc-service" | "invoke-rc.d" => verb(program, arguments, &["stop", "disable"]),
        "kill" => kill(arguments),
        "chmod" | "chown" | "chgrp" => permissions(program, arguments),
        "find" | "fd" | "fdfind" => find(arguments),
        "git" => git(arguments),
        "fuser" if has(arguments, &["-k", "--kill"]) => said("kills"),
        "setfacl" if has(arguments, &["-R", "--recursive"]) => {
            said("changes rights in a whole tree")
        }
        "rsync"
            if arguments.iter().any(|word| match word.known() {
                None => !word.begins_known(),
                Some(word) => word.starts_with("--del") || word.starts_with("--remove-source"),
            }) =>
        {
            said("may delete")
        }
        "cp" | "mv" | "tee" | "install" | "ln" | "truncate" | "sponge" | "pv"
            if arguments.iter().any(|word| word.known().is_none() && word.is_open()) =>
        {
            said("is given a name that is made at run time")
        }
        "cd" | "pushd" if arguments.iter().filter_map(Word::known).any(is_kernel_tree) => {
            said("goes where names are devices")
        }
        program if is_listed(READERS, program) => None,
        _ if arguments.iter().filter_map(Word::known).any(names_device) => {
            said("is given a device")
        }
        _ => None,
    }
}

fn verb(program: &str, arguments: &[Word], verbs: &[&str]) -> Option<String> {
    for word in arguments {
        match word.known() {
            None if !word.begins_known() => {
                return Some(format!("`{program}` is given words that are made at run time"));
            }
            Some(known) if verbs.contains(&known.strip_suffix(".target").unwrap_or(known)) => {
                return Some(format!("`{program} {known}` is destructive"));
            }
            _ => {}
        }
    }
    None
}

fn kill(arguments: &[Word]) -> Option<String> {
    let everything = || Some("`kill` of everything, or of what is not known".to_owned());
    let mut at = 0;
    let mut signal_given = false;
    while let Some(word) = arguments.get(at) {
        at += 1;
        let Some(text) = word.known() else { return everything() };
        match text {
            "-l" | "-L" | "--list" | "--table" => return None,
            "-s" | "-n" | "--signal" => {
                at += 1;
                signal_given = true;
            }
            "--" => signal_given = true,
            text if text.starts_with('-') && !signal_given => signal_given = true,
            text => match text.parse::<i64>() {
                Ok(pid) if pid > 1 => {}
                // A group that is named is not everything.
                Ok(pid) if pid < -1 => {}
                Err(_) if text.starts_with('%') => {}
                _ => return everything(),
            },
        }
    }
    None
}

fn permissions(program: &str, arguments: &[Word]) -> Option<String> {
    let shortened = |word: &Word| {
        word.known().is_some_and(|text| text.len() > 3 && "--recursive".starts_with(text))
    };
    if has(arguments, &["-R", "--recursive"]) || arguments.iter().any(shortened) {
        return Some(format!("`{program}` changes a whole tree"));
    }
    let mut options =
        arguments.iter().take_while(|word| word.known().is_none_or(|text| text.starts_with('-')));
    if options.any(|word| word.known().is_none()) {
        return Some(format!("`{program}` is given words that are made at run time"));
    }
    let mode = arguments.iter().filter_map(Word::known).find(|word| !word.starts_with('-'));
    if program == "chmod" && mode.is_some_and(lets_everybody_write) {
        return Some("`chmod` lets everybody write".to_owned());
    }
    None
}

/// Tells whether two octal modes are the same, however many zeros they begin with; other words are compared as they are.
pub(super) fn same_mode(one: &str, other: &str) -> bool {
    let octal = |text: &str| u32::from_str_radix(text.trim_start_matches('='), 8).ok();
    match (octal(one), octal(other)) {
        (Some(a), Some(b)) => a & 0o777 == b & 0o777 && b & 0o777 == 0o777,
        _ if one == "777" => lets_everybody_write(other) && other.contains('r'),
        _ => one == other,
    }
}

fn lets_everybody_write(mode: &str) -> bool {
    if let Ok(octal) = u32::from_str_radix(mode.trim_start_matches(['=', '+']), 8) {
        return octal & 0o002 != 0;
    }
    mode.split(',').any(|clause| {
        let Some(at) = clause.find(['+', '=']) else { return false };
        let (who, what) = clause.split_at(at);
        // Rights that are copied from the owner or the group may hold it.
        (who.is_empty() || who.contains(['o', 'a'])) && what.contains(['w', 'u', 'g'])
    })
}

fn find(arguments: &[Word]) -> Option<String> {
    for word in arguments {
        match word.known() {
            None if !word.begins_known() => {
                return Some("`find` is given words that are made at run time".to_owned());
            }
            Some("-delete") => return Some("`find -delete` removes files".to_owned()),
            Some("-x" | "-X" | "--exec" | "--exec-batch") => {
                return Some("it runs a command for each file".to_owned());
            }
            _ => {}
        }
    }
    None
}

fn git(arguments: &[Word]) -> Option<String> {
    let rest = super::wrapper::git_command(arguments)?;
    let (command, rest) = rest.split_first()?;
    let is_unknown = rest.iter().any(|word| word.known().is_none() && !word.begins_known());
    let begins = |text: &str, option: &str| text.len() > 4 && option.starts_with(text);
    let any = |test: &dyn Fn(&str) -> bool| rest.iter().filter_map(Word::known).any(test);
    let said = |what: &str| Some(format!("`git {what}"));
    let forces = |text: &str| {
        text.starts_with("--forc")
            || ["--mirror", "--delete", "--prune"].iter().any(|option| begins(text, option))
            || text.starts_with(['+', ':'])
            || (text.starts_with('-') && !text.starts_with("--") && text.contains(['f', 'd']))
    };
    match command.known()? {
        "clean" => {
            // In `-enode_modules` the letters are a pattern.
            let only_shows = any(&|text| {
                let letters = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
                begins(text, "--dry-run")
                    || letters.is_some_and(|l| l.split('e').next().is_some_and(|l| l.contains('n')))
            });
            if only_shows && !is_unknown { None } else { said("clean` removes files") }
        }
        "reset" if is_unknown || any(&|text| begins(text, "--hard") || begins(text, "--merge")) => {
            said("reset --hard` throws changes away")
        }
        "push" if is_unknown || any(&forces) => said("push --force` overwrites a branch"),
        _ => None,
    }
}

/// Programs that only read what they are given.
const READERS: &str = "cat ls stat file lsblk blkid df du head tail od hexdump xxd wc grep test [ echo printf \
    readlink realpath find findmnt smartctl md5sum sha256sum";

/// Tells whether an argument is a device, also behind an option.
fn names_device(text: &str) -> bool {
    let behind = text.split_once('=').map_or(text, |(_, value)| value);
    let attached =
        text.find("/dev/").and_then(|at| text.get(at..)).filter(|_| text.starts_with('-'));
    super::is_device(behind) || attached.is_some_and(super::is_device)
}

fn is_kernel_tree(text: &str) -> bool {
    let mut parts = text.split('/').filter(|part| !part.is_empty() && *part != ".");
    text.starts_with('/') && matches!(parts.next(), Some("dev" | "sys" | "proc"))
}
