//! Programs whose subcommands and options say what they destroy.
//!
//! `destructive.rs` judges the programs that have rules of their own, and `unknown.rs` finds verbs
//! that these tables lack. *Source*: the manual pages of the programs; threat model, SH-5.

use super::options::{has, has_shortened};
use super::verbs::is_verb;
use super::word::Word;
use crate::argv::programs::{ByProgram, is_listed};

/// Subcommands that destroy or change something, of programs that otherwise mostly read or create.
/// Any argument that is not an option may be the subcommand.
const WORDS_OF: &[(&str, &str)] = &[
    ("kubectl", "delete drain evict"),
    ("oc", "delete drain evict"),
    ("argocd", "delete rollback terminate-op"),
    ("docker", CONTAINERS),
    ("podman", CONTAINERS),
    ("nerdctl", CONTAINERS),
    ("docker-compose", CONTAINERS),
    ("crictl", "rm rmi rmp stop stopp"),
    ("helm", "uninstall un delete rollback"),
    ("terraform", "destroy apply"),
    ("tofu", "destroy apply"),
    ("terragrunt", "destroy apply"),
    ("pulumi", "destroy up"),
    ("aws", "rm rb delete terminate"),
    ("gcloud", "delete reset stop"),
    ("az", "delete purge stop deallocate"),
    ("gsutil", "rm rb"),
    ("gh", "delete"),
    ("glab", "delete"),
    ("virsh", "destroy undefine shutdown reset managedsave-remove"),
    ("valkey-cli", REDIS),
    ("redis-cli", REDIS),
    ("etcdctl", "del remove"),
    ("rabbitmqctl", "reset force_reset stop stop_app delete_vhost delete_user purge_queue eval"),
    ("vault", "delete destroy seal revoke"),
    ("consul", "delete force-leave leave"),
    ("nomad", "stop purge drain"),
    ("rclone", "purge delete deletefile rmdir rmdirs sync move cleanup"),
    ("mc", "rm rb"),
    ("btrfs", "delete"),
    ("supervisorctl", "stop shutdown remove"),
    ("machinectl", "poweroff reboot terminate kill remove"),
    ("monit", "stop unmonitor quit"),
    ("pm2", "stop delete kill"),
    ("pip", "install uninstall"),
    ("gem", "install uninstall"),
    ("brew", "install uninstall remove"),
    ("npm", "uninstall unpublish"),
    ("ip", "set del delete flush add replace change"),
    ("tc", "add del change replace"),
    ("nmcli", "delete down up modify off"),
    ("ifconfig", "down up"),
    ("timedatectl", "set"),
    ("hostnamectl", "set hostname"),
    ("localectl", "set"),
    ("busctl", "call set-property"),
];

const REDIS: &str =
    "flushall flushdb shutdown del unlink eval evalsha fcall debug replicaof slaveof migrate";

const CONTAINERS: &str = "rm rmi stop kill prune down leave reset pause";

/// Options that destroy or change something, of programs that otherwise mostly read or create.
const OPTIONS_OF: &[(&str, &[&str])] = &[
    ("journalctl", &["--vacuum-size", "--vacuum-time", "--vacuum-files", "--rotate"]),
    ("logrotate", &["-f", "--force"]),
    ("dmesg", &["-C", "-c", "--clear", "--read-clear"]),
    ("systemd-tmpfiles", &["--remove", "--clean", "--purge"]),
    ("sysctl", &["-w", "--write", "-p", "--load", "--system"]),
    ("conntrack", &["-F", "-D", "--flush", "--delete"]),
    ("tar", &["--remove-files"]),
    ("zip", &["-m", "--move"]),
    ("curl", &["--unix-socket", "--abstract-unix-socket"]),
    ("fuser", &["-k", "--kill"]),
    ("setfacl", &["-R", "--recursive"]),
    ("dbus-send", &["--system"]),
    ("ss", &["-K", "--kill"]),
    ("pg_restore", &["-c", "--clean"]),
];

/// Options of such programs that certainly take the next word as their value.
const VALUED: &[(&str, &str)] = &[
    ("kubectl", KUBECTL),
    ("oc", KUBECTL),
    ("helm", "-n --namespace --kube-context"),
    ("docker", "-H --host -c --context"),
    ("aws", "--profile --region --output --endpoint-url"),
    ("gcloud", "--project --account --configuration --zone --region"),
    ("az", "-g --resource-group -n --name --subscription"),
    ("redis-cli", "-h -p -n -a -u -s"),
];

/// Subcommands after which the other words only name things.
const READING: &str = "get describe logs log list ls show status ps top images inspect history info version events \
    explain diff search help plan preview validate view";

/// The first parts of the operations of `aws` that only read.
const READING_HEADS: &str = "describe get list lookup filter search tail head ls wait";

const KUBECTL: &str = "-n --namespace --context --cluster --user -s --server --request-timeout";

static WORDS: ByProgram<&str> = ByProgram::new(|| WORDS_OF.iter().copied().collect());

static OPTIONS: ByProgram<&[&str]> = ByProgram::new(|| OPTIONS_OF.iter().copied().collect());

/// Returns why a command is destructive, if one of its arguments is in [`OPTIONS`] or [`WORDS`].
pub(super) fn reason(program: &str, arguments: &[Word]) -> Option<String> {
    let stem = stem(program);
    if let Some(options) = OPTIONS.get(program)
        && (has(arguments, options) || has_shortened(arguments, options))
    {
        return Some(format!("`{program}` would remove or change something"));
    }
    let verbs = WORDS.get(stem).or_else(|| WORDS.get(program))?;
    if only_reads(program, arguments) {
        return None;
    }
    if stem == "gsutil"
        && arguments.iter().any(|word| word.known() == Some("rsync"))
        && has(arguments, &["-d"])
    {
        return Some(format!("`{program}` would remove or change something"));
    }
    let first = without_options(stem, arguments);
    let is_computed = |word: &&Word| word.known().is_none() && !word.begins_known();
    // Either list may contain the subcommand: our list of options may be wrong.
    let certain = without_values(stem, arguments);
    // In `aws ec2 $operation`, the operation is the second word.
    let at = usize::from(stem == "aws");
    let subcommands = [first.first(), certain.first(), certain.get(at)];
    if subcommands.into_iter().flatten().any(is_computed) {
        return Some(format!("`{program}` is given a word that is computed at run time"));
    }
    if is_listed("kubectl oc", stem) && arguments.iter().filter_map(Word::known).any(replaces) {
        return Some(format!("`{program}` would replace or evict what runs"));
    }
    let destroys = |word: &Word| {
        let text = word.known()?.to_lowercase();
        // In `terminate-instances` or `set-time`, the verb is the part before the dash.
        let head = text.split('-').next().unwrap_or_default();
        let is_one = |verb: &str| {
            verb == text
                || (verb == head
                    && is_listed("aws gcloud az timedatectl hostnamectl localectl", stem))
        };
        verbs.split_ascii_whitespace().any(is_one).then_some(text)
    };
    first.into_iter().find_map(destroys).map(|verb| format!("`{program} {verb}` is destructive"))
}

/// Tells whether the subcommand of a described program only reads: the first word, or the second
/// one behind the name of an object, as in `docker image ls`. An option before the subcommand may
/// take the next word as its value, so there we cannot tell.
pub(super) fn only_reads(program: &str, arguments: &[Word]) -> bool {
    let stem = stem(program);
    let word = |at: usize| {
        let text = arguments.get(at).and_then(Word::known);
        text.filter(|text| !text.starts_with('-'))
    };
    let Some(first) = word(0) else { return false };
    let second = word(1).unwrap_or_default();
    match stem {
        "aws" => is_listed(READING_HEADS, second.split('-').next().unwrap_or(second)),
        // Their subcommand stands last: `gcloud compute images delete x`.
        "gcloud" | "az" => false,
        "kubectl" | "oc" if first == "auth" => second == "can-i",
        // In `docker stop ps`, `ps` is the name of a container.
        _ if WORDS.get(stem).is_some_and(|verbs| is_listed(verbs, first)) => false,
        _ => {
            is_listed(READING, first)
                || !is_listed("exec run rsh debug", first)
                    && !is_verb(first)
                    && is_listed(READING, second)
        }
    }
}

/// Tells whether the tables describe the subcommands or options of a program.
pub(super) fn is_described(program: &str) -> bool {
    let stem = stem(program);
    WORDS.contains_key(stem) || WORDS.contains_key(program) || OPTIONS.contains_key(program)
}

/// Returns the name of a program without a version suffix.
fn stem(program: &str) -> &str {
    program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// Returns the arguments that are neither options nor, as far as we know the options of the
/// program, their values. A value that bash may split stays.
fn without_options<'a>(stem: &str, arguments: &'a [Word]) -> Vec<&'a Word> {
    let valued = VALUED.iter().find(|(name, _)| *name == stem).map_or("", |(_, valued)| valued);
    let mut found = Vec::new();
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        match word.known().filter(|text| text.starts_with('-')) {
            None if word.is_valued_option() => {}
            None => found.push(word),
            // A literal value may be a subcommand if our list of options is wrong.
            Some(option) if is_listed(valued, option) => {
                words.next_if(|value| value.known().is_none() && value.is_one_word());
            }
            Some(_) => {}
        }
    }
    found
}

/// Returns the arguments that are neither options nor the values of options that we know.
fn without_values<'a>(stem: &str, arguments: &'a [Word]) -> Vec<&'a Word> {
    let valued = VALUED.iter().find(|(name, _)| *name == stem).map_or("", |(_, valued)| valued);
    let mut found = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.known().filter(|text| text.starts_with('-')) {
            None if word.beginning().starts_with('-') => {}
            None => found.push(word),
            Some(option) if is_listed(valued, option) => drop(words.next()),
            Some(_) => {}
        }
    }
    found
}

/// Tells whether an argument of `kubectl` makes it delete what it replaces, or evict the pods of a
/// node.
fn replaces(text: &str) -> bool {
    let is_forced = text.strip_prefix("--force").is_some_and(|rest| matches!(rest, "" | "=true"));
    is_forced || text.ends_with(":NoExecute")
}
