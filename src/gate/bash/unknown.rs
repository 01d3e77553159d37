//! Programs that no table describes: finds the words that say that such a program destroys
//! something, and the form of a launcher, which runs the program that its arguments name.
//!
//! The rules hold for every program; the lists here only make exceptions. *Source*: threat model,
//! SH-6.

use super::inner::Inner;
use super::options::has;
use super::verbs::{
    begins_command, begins_or_ends_with_verb, begins_with_verb, is_destroying_option, is_verb,
};
use super::word::Word;
use super::{abbreviated, builtins, destructive, subcommands};
use crate::argv::programs::{self, Kind, Words, is_listed, words};

/// Options of unknown programs whose value is a command or code.
const CODE: &str = "--eval --exec --execute --command --cmd";

/// Programs whose words are data: text, file names, or names of other things.
static HARMLESS: Words = Words::new(|| {
    words(
        "\
    ack ag apropos apt-cache apt-file arch awk b2sum base32 base64 basename bat batcat bc blkid \
    bsdtar bunzip2 bzip2 cal cat cheat checkrestart cksum clear cmp colordiff column comm cp cpio \
    csplit curl cut date debsums df diff diff3 dig dir dirname dmesg dpkg-deb dpkg-query du \
    egrep envsubst exiftool expand expr factor fgrep file findmnt fmt fold free fzf gawk getcap \
    getent getfacl grep groups gsed gtar gunzip gzip head hexdump hexyl host hostname \
    hostid http httpie https iconv id info install iostat ip6calc ipcalc jc join journalctl jq \
    last lastb lastlog ldd less link ln locale locate logger look ls lsattr lsb_release \
    lsblk lscpu lshw lsipc lsmem lsmod lsns lsof lspci lsusb lz4 mail mailx man mapfile mawk \
    md5sum mkdir mkfifo mktemp mlocate modinfo more mpstat msmtp mtr mv mysql mariadb namei nawk nc \
    ncat netcat netstat nl nmap nm notify-send nproc nslookup numfmt objdump od openssl paste patch \
    pathchk pgrep pidof pidstat ping ping6 plocate pr printenv ps psql pstree ptx readelf readlink \
    realpath rename rev rg rsync sar scp sdiff sed sendmail seq sftp sha1sum sha224sum sha256sum \
    sha384sum sha512sum shasum shuf size sleep sort split sponge sqlite ss stat strings stty sum \
    sync tac tail tar tcpdump tee tldr touch tput tr tracepath traceroute tree truncate tsort tty \
    type uname unexpand uniq unxz unzip unzstd uptime users vdir vmstat w wc wget whatis whereis \
    which who whoami whois xmllint xmlstarlet xh xhs xxd xz xzcat xzgrep yes yq zcat zdiff zgrep \
    zip zipinfo zless zstd zstdcat zstdgrep",
    )
});

/// Programs whose words may name other programs that they do not run.
const NAMING: &str = "cargo fail2ban-client gradle mvn nvm pyenv pytest rbenv rustup tox";

/// Programs that pass the words after the name of a tool, as in `k3s kubectl get pods`, to it.
const BUNDLES: &str = "k3s k0s microk8s minikube";

const BUNDLED: &str = "kubectl crictl ctr helm";

/// Known programs whose names are also common subcommands or nouns.
const NOUNS: &str = "alternatives at batch command consul eject env eval exec ex emerge go i386 init ip ipset julia \
    linux32 linux64 m4 mc mount multipath node passwd perf R red screen script sg skill snap tc time view watch wipe x86_64";

/// Further programs that a launcher may run.
const LAUNCHED: &str = "systemctl loginctl git chmod chown chgrp curl wget rsync scp make";

/// Clients whose operands are a command. Without one, they read commands from their standard input.
const CONSOLES: &str = "redis-cli valkey-cli virsh birdc rabbitmqadmin";

/// Clients whose operands name a database or a host: they read commands from their standard input,
/// unless an option gives the statement.
const SHELLS: &str = "arangosh beeline clickhouse-client cqlsh duckdb hive influx presto snowsql sqlcmd sqlplus \
    smbclient trino vtysh";

/// Options of such clients that give a statement, and those that name a file of statements.
const STATEMENT: &str = "-c -e -q -Q --query --command --execute -execute";
const STATEMENTS: &str = "-f -i --file --queries-file --input-file";

/// Returns why a command destroys something as far as its words say; `None` if they do not.
/// `is_ruled` tells whether the operator's rules begin with a word.
pub(super) fn reason(
    program: &str,
    arguments: &[Word],
    is_fed: bool,
    is_ruled: &dyn Fn(&str) -> bool,
) -> Option<String> {
    if HARMLESS.contains(program) {
        return None;
    }
    if let Some(why) = abbreviated::reason(program, arguments) {
        return Some(why);
    }
    if is_judged(program) {
        return None;
    }
    let said = |what: &str| Some(format!("`{program}` {what}"));
    if reads_commands(program, arguments, is_fed) {
        return said("runs the commands that it reads");
    }
    if scales_to_zero(arguments) {
        return said("would stop every instance");
    }
    let own = own_arguments(program, arguments);
    let is_described = subcommands::is_described(program);
    let first = own.first().and_then(Word::known);
    if is_described && subcommands::only_reads(program, arguments) {
        return None;
    }
    if !is_described && program.split('.').next().is_some_and(begins_or_ends_with_verb) {
        return said("is named after what it destroys");
    }
    // `sysctl net.ipv6.conf.all.disable_ipv6` only reads.
    if is_described && first.is_some_and(|first| !first.contains('.') && begins_with_verb(first)) {
        return said("is given a subcommand that destroys something");
    }
    // In `aws ec2 stop-instances`, the verb is the part before the dash.
    let has_heads = !is_described || is_listed("aws gcloud az", program);
    let names_verb = |text: &str| {
        is_verb(text)
            || has_heads && begins_with_verb(text)
            || !is_described && (is_ruled(text) || is_statement(text))
    };
    let is_client = is_listed(CONSOLES, program) || is_listed(SHELLS, program);
    for text in own.iter().filter_map(Word::known) {
        let value = text.split_once('=').filter(|(name, _)| name.starts_with('-'));
        let holds_statement = !is_described && value.is_some_and(|(_, value)| is_statement(value));
        let is_line = is_client && begins_command(text);
        if names_verb(text) || is_destroying_option(text) || holds_statement || is_line {
            return Some(format!("`{program} {text}` says that it destroys something"));
        }
    }
    let mut options = own.iter().map(Word::beginning);
    let is_code = |text: &str| is_listed(CODE, text.split('=').next().unwrap_or(text));
    if !is_described && programs::reader(program).is_none() && options.any(is_code) {
        return said("may run the value of an option");
    }
    None
}

/// Returns what a program runs if no table describes it and its arguments have the form of a
/// launcher: a program after `--`, the name of a known program, or the word `exec`.
pub(super) fn launched(program: &str, arguments: &[Word]) -> Vec<Inner> {
    if HARMLESS.contains(program) {
        return Vec::new();
    }
    if is_listed(BUNDLES, program) {
        let is_tool = |word: &Word| word.known().is_some_and(|text| is_listed(BUNDLED, text));
        let at = arguments.iter().position(is_tool);
        let words = at.and_then(|at| arguments.get(at..));
        return words.map(without_end).map(Inner::Words).into_iter().collect();
    }
    let has_row = programs::reader(program).is_some()
        || programs::verbs(program).next().is_some()
        || subcommands::is_described(program);
    if has_row || is_judged(program) || is_listed(NAMING, program) {
        return Vec::new();
    }
    let runs =
        || Inner::Unknown(format!("`{program}` may run the program that its arguments name"));
    let end = arguments.iter().position(|word| word.known() == Some("--"));
    let inner = end.and_then(|end| arguments.get(end + 1..)).unwrap_or_default();
    if inner.first().is_some_and(|word| !word.beginning().starts_with('-')) {
        return vec![runs(), Inner::Words(inner.to_vec())];
    }
    let own = arguments.get(..end.unwrap_or(arguments.len())).unwrap_or_default();
    let is_completion = own.first().is_some_and(|word| word.beginning().starts_with("completion"));
    if !is_completion && own.iter().filter_map(Word::known).any(names_program) {
        return vec![runs()];
    }
    Vec::new()
}

/// Returns the words of a bundled tool without the `--` that separates it from its arguments.
fn without_end(words: &[Word]) -> Vec<Word> {
    let is_end = |at: usize, word: &Word| at == 1 && word.known() == Some("--");
    words
        .iter()
        .enumerate()
        .filter(|(at, word)| !is_end(*at, word))
        .map(|(_, w)| w.clone())
        .collect()
}

/// Tells whether other rules judge all arguments of a program, or its arguments are data.
fn is_judged(program: &str) -> bool {
    let runs_inner = |kind: Kind| {
        matches!(kind, Kind::Program | Kind::Within | Kind::Line | Kind::Every | Kind::Shell)
    };
    HARMLESS.contains(program)
        || builtins::NAMES.contains(program)
        || destructive::judges_all(program)
        || programs::reader(program).is_some_and(|reader| runs_inner(reader.kind))
}

/// Returns the arguments before a subcommand such as `exec` after which another command follows;
/// that command is judged by itself.
fn own_arguments<'a>(program: &str, arguments: &'a [Word]) -> &'a [Word] {
    let runs = |text: &str| {
        let mut verbs = programs::verbs(program);
        verbs.any(|verb| verb.reader.kind == Kind::Program && is_listed(verb.verbs, text))
    };
    let is_bundle = is_listed(BUNDLES, program);
    let is_end = |text: &str| if is_bundle { is_listed(BUNDLED, text) } else { runs(text) };
    let end = arguments.iter().position(|word| word.known().is_some_and(is_end));
    arguments.get(..end.unwrap_or(arguments.len())).unwrap_or_default()
}

/// Tells whether a text begins with a statement of a database that destroys something.
fn is_statement(text: &str) -> bool {
    const OBJECTS: &str = "database table schema keyspace index view user role from series measurement collection \
        bucket topic queue";
    text.split(';').any(|statement| {
        let statement = statement.to_ascii_lowercase();
        let mut words = statement.split_ascii_whitespace();
        let verb = words.next().unwrap_or_default();
        let noun = words.next().unwrap_or_default();
        let more: Vec<&str> = words.collect();
        is_listed("drop delete truncate", verb) && is_listed(OBJECTS, noun)
            || verb == "truncate" && !noun.is_empty() && more.is_empty()
            || verb == "alter" && more.iter().any(|word| is_listed("drop delete", word))
    })
}

/// Tells whether a client reads commands from its standard input or from a file.
fn reads_commands(program: &str, arguments: &[Word], is_fed: bool) -> bool {
    let known = || arguments.iter().filter_map(Word::known);
    if is_listed(CONSOLES, program) || program.ends_with("-cli") {
        return is_fed && !has_operand(arguments) || has(arguments, &["--eval", "--pipe"]);
    }
    let starts_shell = |words: &str| {
        known().find(|text| !text.starts_with('-')).is_some_and(|first| is_listed(words, first))
    };
    let is_shell = is_listed(SHELLS, program)
        || program.ends_with("sql")
        || program.ends_with("-shell")
        || starts_shell("sql");
    let has_one_of = |options: &str| {
        known().any(|text| is_listed(options, text.split('=').next().unwrap_or(text)))
    };
    if has_one_of(STATEMENT) {
        return false;
    }
    let is_file = is_shell && (has_one_of(STATEMENTS) || known().any(|text| text.starts_with('@')));
    is_file || is_fed && (is_shell || starts_shell("client console repl shell"))
}

/// Tells whether arguments such as `--replicas=0` or `scale web=0` stop all instances of something.
fn scales_to_zero(arguments: &[Word]) -> bool {
    const COUNTS: &str = "--replicas --desired-count --desired-capacity --num-nodes --node-count";
    let known: Vec<&str> = arguments.iter().filter_map(Word::known).collect();
    let is_zero = |text: &str| text.parse::<u64>() == Ok(0);
    let counts = known.iter().enumerate().any(|(at, text)| match text.split_once('=') {
        Some((name, value)) => is_listed(COUNTS, name) && is_zero(value),
        None => is_listed(COUNTS, text) && known.get(at + 1).copied().is_some_and(is_zero),
    });
    let scales = known
        .iter()
        .any(|text| is_listed("scale ps:scale --scale", text) || text.starts_with("--scale="));
    let has_none = |text: &&str| {
        let is_operand = !text.starts_with('-') || text.starts_with("--scale=");
        is_operand && is_zero(text.rsplit('=').next().unwrap_or(text))
    };
    let patches = arguments.iter().map(Word::beginning).any(patches_to_zero);
    counts || patches || scales && known.iter().any(has_none)
}

/// Tells whether a patch, in JSON or YAML, sets the number of replicas to zero.
fn patches_to_zero(text: &str) -> bool {
    let is_kept = |c: &char| !c.is_ascii_whitespace() && *c != '"' && *c != '\'';
    let text: String = text.chars().filter(is_kept).collect();
    let is_zero = |rest: &str| {
        let rest = rest.strip_prefix('0');
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    ["replicas:", "/replicas,value:"].iter().any(|key| text.split(key).skip(1).any(is_zero))
}

/// Tells whether the arguments of a console contain a command, so that it reads none.
fn has_operand(arguments: &[Word]) -> bool {
    let is_option = |word: &Word| word.beginning().starts_with('-');
    let mut before = None;
    arguments.iter().any(|word| {
        let is_value = before.replace(word).is_some_and(is_option);
        !is_option(word) && !is_value
    })
}

/// Tells whether a word is the name of a known program, or a command line that begins with one.
pub(super) fn names_program(text: &str) -> bool {
    if text == "exec" || text.starts_with("exec-") {
        return true;
    }
    if !text.contains(char::is_whitespace) {
        return is_runnable(text);
    }
    text.split([';', '&', '|', '\n']).any(|command| {
        let mut words = command.split_ascii_whitespace();
        words.find(|word| !word.contains('=')).is_some_and(is_runnable)
    })
}

/// Tells whether a word is the name of a known program.
fn is_runnable(word: &str) -> bool {
    let (directory, name) = word.rsplit_once('/').unwrap_or(("", word));
    let is_found =
        directory.is_empty() || directory.ends_with("/bin") || directory.ends_with("/sbin");
    let is_runner = |reader: &programs::Reader| reader.kind != Kind::Options;
    is_found
        && !name.starts_with('-')
        && !is_listed(NOUNS, name)
        && (programs::reader(name).is_some_and(is_runner)
            || destructive::is_listed_program(name)
            || subcommands::is_described(name)
            || is_listed(LAUNCHED, name))
}
