//! Programs that are destructive, always or with certain arguments. *Source*: threat model, SH-5.

use super::devices::{READERS, changes_smart, is_kernel_tree, may_name_device};
use super::options::has;
use super::subcommands;
use super::word::Word;
use crate::argv::programs::{ByProgram, Words, is_listed, words};

static ALWAYS: Words = Words::new(|| {
    words(
        "\
    rm rmdir unlink shred dd wipefs mke2fs mkswap sfdisk cfdisk gdisk sgdisk parted blkdiscard \
    cryptsetup lvremove vgremove pvremove lvreduce lvresize vgreduce pvresize umount swapoff \
    shutdown reboot halt poweroff telinit init kexec killall killall5 pkill skill sudo su doas \
    pkexec run0 sg runuser sudoedit chroot unshare nsenter setpriv capsh at batch atrm visudo vipw \
    vigr chpasswd useradd userdel usermod adduser deluser groupadd groupdel groupmod delgroup \
    addgroup newusers gpasswd chage chsh chfn insmod rmmod modprobe chattr iptables-restore \
    ip6tables-restore ebtables arptables hdparm fsck e2fsck xfs_repair tune2fs resize2fs \
    debugfs badblocks update-grub grub-install add-apt-repository aptitude synaptic microdnf dnf5 \
    rpm-ostree apt-mark zypper flatpak emerge portage dpkg-reconfigure debconf-set-selections \
    update-rc.d chkconfig alternatives update-alternatives srm wipe fstrim pivot_root switch_root \
    fusermount fusermount3 lvm udisksctl eject rtcwake ipmitool multipath pfctl ifdown ifup dropdb dropuser \
    nsupdate ldapdelete",
    )
});

const DNF: &[&str] =
    &["list", "info", "check-update", "repolist", "search", "history", "provides", "--version"];

/// Programs that are destructive, except with one of these first arguments, with which they only
/// read.
const BUT_FOR_OF: &[(&str, &[&str])] = &[
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
    ("ipset", &["list", "-L", "test", "--version"]),
    ("fdisk", &["-l", "--list", "-V"]),
    ("swapon", &["--show", "-s", "--summary"]),
    ("zpool", &["status", "list", "iostat", "get", "history", "events", "version"]),
    ("zfs", &["list", "get", "version"]),
    ("mdadm", &["--detail", "-D", "--examine", "-E", "--version"]),
    ("dnf", DNF),
    ("yum", DNF),
    ("snap", &["list", "info", "version", "services", "changes"]),
    ("nvme", &["list", "smart-log", "version"]),
    ("dmsetup", &["ls", "info", "status", "table", "deps"]),
    ("losetup", &["-a", "--all", "-l", "--list"]),
    ("pacman", &["-Q", "-Qi", "-Ql", "-Qs", "-Qu", "-Si", "-Ss"]),
    ("apk", &["info", "list", "version", "policy"]),
    ("passwd", &["-S", "--status"]),
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

/// Subcommands of `systemctl` and `loginctl` that stop something or change it permanently, and
/// units that do so.
const UNITS: &str = "\
    stop disable mask kill isolate poweroff reboot halt kexec suspend hibernate hybrid-sleep \
    suspend-then-hibernate rescue emergency default exit switch-root soft-reboot revert \
    set-default terminate-session terminate-user kill-session kill-user terminate-seat clean \
    freeze edit set-property set-environment import-environment shutdown runlevel0 runlevel6 \
    systemd-poweroff.service systemd-reboot.service systemd-halt.service systemd-kexec.service \
    systemd-suspend.service systemd-hibernate.service";

/// Further names that a function must not take: common programs, and builtins that scripts rely on.
static COMMON: Words = Words::new(|| {
    words(
        "\
    alias awk basename bash bg builtin cat cd chgrp chmod chown cmp command cp curl cut date \
    declare df diff dirname docker du echo env eval exec exit export false fg find git grep \
    gunzip gzip hash head hostname id ip jobs journalctl kill kubectl ln local ls make mkdir mv \
    node perl ping printf ps pwd python python3 read readlink return rsync sed service set sh \
    shift sleep sort source ssh stat systemctl tail tar tee test timeout touch tr trap true type \
    uname uniq unset wait wc wget which xargs",
    )
});

/// Tells whether this is the name of a well-known program.
pub(super) fn is_program(name: &str) -> bool {
    COMMON.contains(name)
        || ALWAYS.contains(name)
        || BUT_FOR.contains_key(name)
        || name.contains('/')
        || name.starts_with("mkfs")
}

static BUT_FOR: ByProgram<&[&str]> = ByProgram::new(|| BUT_FOR_OF.iter().copied().collect());

/// Tells whether a program is destructive, always or except with certain arguments.
pub(super) fn is_listed_program(name: &str) -> bool {
    ALWAYS.contains(name) || BUT_FOR.contains_key(name) || name.starts_with("mkfs")
}

/// Tells whether the rules for this program decide about all of its arguments: a verb among them
/// has no further meaning.
pub(super) fn judges_all(program: &str) -> bool {
    const RULED: &str = "systemctl loginctl service rc-service invoke-rc.d kill chmod chown chgrp find fd fdfind \
        git rsync 7z 7za 7zr";
    is_listed(RULED, program) || is_listed_program(program)
}

/// Returns why a command is destructive; `None` if it is not.
pub(super) fn reason(program: &str, arguments: &[Word]) -> Option<String> {
    let said = |what: &str| Some(format!("`{program}` {what}"));
    let families = ["mkfs", "mount.", "umount."];
    if ALWAYS.contains(program) || families.iter().any(|family| program.starts_with(family)) {
        return Some(format!("`{program}` is a destructive command"));
    }
    let tables = ["iptables", "ip6tables"].into_iter().find(|name| {
        program.strip_prefix(name).is_some_and(|rest| rest.starts_with('-') && rest != "-save")
    });
    let looked_up = tables.unwrap_or(program);
    if let Some(harmless) = BUT_FOR.get(looked_up) {
        return if only_looks(program, arguments, harmless) {
            None
        } else {
            said("changes the system")
        };
    }
    if let Some(said) = subcommands::reason(program, arguments) {
        return Some(said);
    }
    match program {
        "systemctl" | "loginctl" => verb(program, arguments, UNITS),
        "service" | "rc-service" | "invoke-rc.d" => verb(program, arguments, "stop disable"),
        "kill" => kill(arguments),
        "chmod" | "chown" | "chgrp" => permissions(program, arguments),
        "find" | "fd" | "fdfind" => find(arguments),
        "git" => super::git::reason(arguments),
        "curl" | "wget" | "gh" | "glab" | "http" | "https" | "xh" | "xhs"
            if super::http::asks_to_change(program, arguments) =>
        {
            said("asks a server to change something")
        }
        "date" if sets_clock(arguments) => said("sets the clock"),
        "7z" | "7za" | "7zr" if arguments.iter().any(|word| word.known() == Some("-sdel")) => {
            said("removes the files that it packs")
        }
        "sysctl" if arguments.iter().any(|word| word.beginning().contains('=')) => {
            said("changes a kernel setting")
        }
        "rsync"
            if arguments.iter().any(|word| {
                let is_named = |option| word.beginning().starts_with(option);
                let is_open = word.known().is_none() && !word.begins_known();
                is_named("--del")
                    || is_named("--remove-source")
                    || is_open && !word.is_valued_option()
            }) =>
        {
            said("may delete")
        }
        "cp" | "mv" | "tee" | "install" | "ln" | "truncate" | "sponge" | "pv"
            if arguments.iter().any(|word| word.known().is_none() && word.is_open()) =>
        {
            said("is given a file name that is computed at run time")
        }
        "awk" | "gawk" if arguments.iter().any(names_awk_output) => said("may write a file"),
        "smartctl" if arguments.iter().any(changes_smart) => said("changes a setting of a disk"),
        "cd" | "pushd" if arguments.iter().filter_map(Word::known).any(is_kernel_tree) => {
            said("enters a directory of devices or kernel settings")
        }
        program if READERS.contains(program) => None,
        _ if arguments.iter().any(may_name_device) => said("is given a device as an argument"),
        _ => None,
    }
}

/// Tells whether a program of [`BUT_FOR`] only reads something if it is given these arguments.
fn only_looks(program: &str, arguments: &[Word], harmless: &[&str]) -> bool {
    // Skip the option that selects the table or the user, with its value.
    let named = match program {
        "crontab" => Some("-u"),
        _ if program.contains("tables") => Some("-t"),
        _ => None,
    };
    let skipped = arguments.first().and_then(Word::known).filter(|first| Some(*first) == named);
    let arguments = arguments.get(if skipped.is_some() { 2 } else { 0 }..).unwrap_or_default();
    let simulates = ["-s", "--simulate", "--dry-run"];
    let changes = |text: &str| {
        is_listed("; undo redo rollback", text)
            || ["--pipe", "--exec", "--no-"].iter().any(|option| text.starts_with(option))
    };
    if arguments.iter().any(|word| takes_code(program, word)) {
        return false;
    }
    if arguments.iter().filter_map(Word::known).any(changes)
        || program == "mount" && arguments.len() > 1
    {
        return false;
    }
    if program.starts_with("apt")
        && arguments.first().and_then(Word::known).is_some_and(|w| simulates.contains(&w))
    {
        return true;
    }
    let first = arguments.first().map(Word::known);
    match first {
        None => program == "mount",
        Some(word) => word.is_some_and(|word| harmless.contains(&word)),
    }
}

/// Tells whether an argument of `nft` or `rpm` may hold further commands or name a file of them.
/// `nft` joins its arguments and reads them as a script; `rpm` runs commands in macros.
fn takes_code(program: &str, word: &Word) -> bool {
    const MACROS: [&str; 8] = [
        "--eval",
        "--define",
        "--undefine",
        "--predefine",
        "--load",
        "--macros",
        "--rcfile",
        "--specfile",
    ];
    let text = word.beginning();
    let is_bundle = text.starts_with('-') && !text.starts_with("--");
    match program {
        "nft" => {
            word.known().is_none()
                || text.contains([';', '\n'])
                || text.starts_with("--")
                || is_bundle && text.contains(['f', 'i', 'I', 'D'])
        }
        "rpm" => {
            MACROS.iter().any(|option| text.starts_with(option))
                || is_bundle && text.contains(['E', 'D'])
        }
        _ => false,
    }
}

/// Tells whether `date` sets the clock: with `-s`, or with a time that has no `+` before it.
fn sets_clock(arguments: &[Word]) -> bool {
    let mut words = arguments.iter().map(Word::known);
    while let Some(word) = words.next() {
        let Some(text) = word else { continue };
        if text.len() > 2 && text.starts_with("--") {
            let name = text.split('=').next().unwrap_or(text);
            if name.len() > 2 && "--set".starts_with(name) {
                return true;
            }
            if !text.contains('=') && is_listed("--date --file --reference", text) {
                words.next();
            }
            continue;
        }
        let Some(bundle) = text.strip_prefix('-') else {
            if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
                return true;
            }
            continue;
        };
        // The rest of the word is the value of these options.
        let end = bundle.find(['I', 'd', 'f', 'r']).unwrap_or(bundle.len());
        let (flags, value) = bundle.split_at_checked(end).unwrap_or_default();
        if flags.contains('s') {
            return true;
        }
        if value.len() == 1 && value != "I" {
            words.next();
        }
    }
    false
}

fn verb(program: &str, arguments: &[Word], verbs: &str) -> Option<String> {
    const READING: &str = "status show cat is-active is-enabled is-failed list-units list-timers \
        list-unit-files list-sockets list-jobs list-dependencies help session-status user-status";
    let mut options =
        arguments.iter().skip_while(|word| word.known().is_some_and(|text| text.starts_with('-')));
    if options.next().and_then(Word::known).is_some_and(|first| is_listed(READING, first)) {
        return None;
    }
    for word in arguments {
        match word.known() {
            _ if verbs.split_ascii_whitespace().any(|verb| word.may_become(verb)) => {
                return Some(format!(
                    "`{program}` is given a file name pattern that may match a destructive word"
                ));
            }
            None if !word.begins_known() => {
                return Some(format!("`{program}` is given words that are computed at run time"));
            }
            Some(known) if is_listed(verbs, known.strip_suffix(".target").unwrap_or(known)) => {
                return Some(format!("`{program} {known}` is destructive"));
            }
            _ => {}
        }
    }
    None
}

fn kill(arguments: &[Word]) -> Option<String> {
    let everything =
        || Some("`kill` may signal init, many processes, or an unknown process".to_owned());
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
                // A number below -1 names one process group.
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
        return Some(format!("`{program}` is given words that are computed at run time"));
    }
    let mode = arguments.iter().filter_map(Word::known).find(|word| !word.starts_with('-'));
    if program == "chmod" && mode.is_some_and(lets_everybody_write) {
        return Some("`chmod` lets everybody write".to_owned());
    }
    None
}

/// Tells whether `other` has the effect of the mode `one`. Only the last three digits of octal
/// modes count. `777` also matches a symbolic mode that lets everybody read and write.
pub(super) fn same_mode(one: &str, other: &str) -> bool {
    let octal = |text: &str| u32::from_str_radix(text.trim_start_matches('='), 8).ok();
    match (octal(one), octal(other)) {
        (Some(a), Some(b)) => a & 0o777 == b & 0o777,
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
        // Rights copied from the owner or the group may include write access.
        (who.is_empty() || who.contains(['o', 'a'])) && what.contains(['w', 'u', 'g'])
    })
}

/// Tells whether an argument of `gawk` is an option that may name a file to write.
fn names_awk_output(word: &Word) -> bool {
    ["-o", "-d", "-p", "--p", "--d"].iter().any(|option| word.beginning().starts_with(option))
}

/// Options of `find` that write to the file in the next argument.
const FIND_OUTPUTS: [&str; 4] = ["-fprint", "-fprint0", "-fprintf", "-fls"];

fn find(arguments: &[Word]) -> Option<String> {
    let writes = |word: &Word| word.known().is_some_and(|text| FIND_OUTPUTS.contains(&text));
    let mut pairs = arguments.iter().zip(arguments.iter().skip(1));
    if pairs.any(|(before, file)| writes(before) && may_name_device(file)) {
        return Some("`find` may write to a device".to_owned());
    }
    for word in arguments {
        match word.known() {
            None if !word.begins_known() && !word.inert => {
                return Some("`find` is given words that are computed at run time".to_owned());
            }
            Some("-delete") => return Some("`find -delete` removes files".to_owned()),
            Some(text)
                if text.starts_with("-x") && text != "-xdev" && text != "-xtype"
                    || text.starts_with("-X")
                    || text.starts_with("--exec") =>
            {
                return Some("the search runs a command for each file".to_owned());
            }
            _ if word.may_become("-delete")
                && !word.beginning().is_empty()
                && word.beginning().starts_with('-') =>
            {
                return Some(
                    "`find` is given a file name pattern that may match `-delete`".to_owned(),
                );
            }
            _ => {}
        }
    }
    None
}
