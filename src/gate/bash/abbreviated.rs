//! Programs that accept the beginning of a verb for the verb, as in `ip r d default`, and those of
//! them that read a file of commands.
//!
//! *Source*: ip(8), tc(8), bridge(8), nmcli(1), btrfs(8); threat model, SH-6.

use super::word::Word;
use crate::argv::programs::is_listed;

struct Abbreviating {
    names: &'static str,
    /// Verbs that change something.
    verbs: &'static str,
    /// Options that take the next word as their value.
    valued: &'static str,
}

const PROGRAMS: &[Abbreviating] = &[
    Abbreviating {
        names: ROUTING,
        verbs: "set setdefault add append change chg replace restore prepend delete deleteall update flush exec \
            attach reload flash split unsplit",
        valued: "-n -netns -f -family -l -loops -rcvbuf",
    },
    Abbreviating {
        names: "tc",
        verbs: "add change replace link delete flush exec",
        valued: "-n -netns",
    },
    Abbreviating {
        names: "nmcli",
        verbs: "delete down up modify disconnect off set reapply connect edit",
        valued: "-f --fields -g --get-values -m --mode -c --colors -e --escape -w --wait",
    },
    Abbreviating {
        names: "btrfs",
        verbs: "delete destroy remove resize cancel disable set-default defragment",
        valued: "--format",
    },
];

const ROUTING: &str = "ip bridge rdma devlink";

/// Objects of `ip` whose verb is the third word.
const DEEPER: &[&str] = &["xfrm", "mptcp"];

/// Returns why a command changes something; `None` if it does not.
pub(super) fn reason(program: &str, arguments: &[Word]) -> Option<String> {
    let row = PROGRAMS.iter().find(|row| is_listed(row.names, program))?;
    let takes_batch = is_listed(ROUTING, program) || program == "tc";
    let mut bare = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.known().filter(|text| text.starts_with('-') && text.len() > 1) {
            Some(option) if takes_batch && "batch".starts_with(option.trim_start_matches('-')) => {
                return Some(format!("`{program}` reads commands from a file"));
            }
            Some(option) if takes_value(row, option) => {
                words.next();
            }
            Some(_) => {}
            None => bare.push(word),
        }
    }
    let object = bare.first().map_or("", |word| word.beginning());
    let is_deep =
        object.len() > 1 && DEEPER.iter().any(|name| name.starts_with(object)) || object == "x";
    let is_radio = program == "nmcli" && !object.is_empty() && "radio".starts_with(object);
    let depth = if program == "ip" && is_deep || is_radio { 2 } else { 1 };
    let changing = bare.iter().skip(1).take(depth).find_map(|word| {
        let Some(text) = word.known() else {
            return (!word.begins_known())
                .then(|| "a word that is computed at run time".to_owned());
        };
        // Here, `s` is short for `show`; only `ip link` and `bridge link` read it as `set`.
        let is_show =
            text == "s" && !(is_listed("ip bridge", program) && "link".starts_with(object));
        let is_verb = |verb: &str| !text.is_empty() && verb.starts_with(text);
        (row.verbs.split_ascii_whitespace().any(is_verb) && !is_show)
            .then(|| format!("`{text}`, which changes something"))
    });
    changing.map(|what| format!("`{program}` is given {what}"))
}

/// Tells whether an option, also an abbreviated one, takes the next word as its value.
fn takes_value(row: &Abbreviating, option: &str) -> bool {
    let is_it = |known: &str| known == option || option.len() > 2 && known.starts_with(option);
    row.valued.split_ascii_whitespace().any(is_it)
}
