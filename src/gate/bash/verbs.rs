//! The verbs that stop or destroy something, and the forms in which a word contains one. *Source*:
//! threat model, SH-6.

use crate::argv::programs::{Words, is_listed, words};

/// Verbs that stop or destroy something.
static VERBS: Words = Words::new(|| {
    words(
        "\
    delete del destroy drop purge prune stop kill killall pkill reset terminate remove rm rmi rmdir \
    unlink erase wipe zap nuke shred dd mkfs sudo uninstall undeploy unpublish decommission \
    deprovision teardown shutdown halt poweroff reboot down drain evict flush flushall flushdb \
    truncate undefine deallocate disable revoke rollback undo forget deregister detach disconnect \
    suspend quit fence failover expire expunge trash rimraf deletion rb rmr rmpool stopdaemon power-off \
    powerdown obliterate",
    )
});

/// Verbs that make an option such as `--delete` or `--prune-all` destroy something.
const OPTION_VERBS: &str =
    "delete del destroy drop purge prune remove uninstall wipe erase shutdown terminate off fence";

pub(super) fn is_verb(text: &str) -> bool {
    VERBS.contains(text.to_ascii_lowercase().as_str())
}

/// Tells whether a word is a verb that is joined to its object, as `removenode` and `deleteStack`
/// are. `deleted`, `deletedAt`, `destroyed` and `remover` are not.
fn is_joined(text: &str) -> bool {
    const JOINED: &str = "delete destroy remove terminate uninstall purge decommission unregister";
    const ENDINGS: &str = "ed er ers es ing ion";
    let lower = text.to_ascii_lowercase();
    let mut verbs = JOINED.split_ascii_whitespace().filter(|verb| lower.starts_with(*verb));
    verbs.any(|verb| {
        let object = text.get(verb.len()..).unwrap_or_default();
        let is_capital = object.starts_with(|c: char| c.is_ascii_uppercase())
            && object.contains(|c: char| c.is_ascii_lowercase());
        let is_inflection = object.is_empty()
            || object.to_ascii_lowercase().starts_with(['d', 's', 'r'])
            || is_listed(ENDINGS, &object.to_ascii_lowercase());
        is_capital || !is_inflection
    })
}

/// Tells whether the command line of a client begins with a verb, or one of its commands does, as
/// in `virsh 'list; destroy x'`. Routers remove a setting by `no`.
pub(super) fn begins_command(text: &str) -> bool {
    text.contains([' ', ';', '\n'])
        && text.split([';', '\n']).any(|command| {
            let verb = command.split_ascii_whitespace().next();
            verb.is_some_and(|verb| is_verb(verb) || is_listed("no clear conf configure", verb))
        })
}

/// Tells whether a bare word is a verb or begins with one, as `stop-instances`, `delete_user` and
/// `db:drop` do.
pub(super) fn begins_with_verb(text: &str) -> bool {
    let is_bare = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b':' | b'.');
    if text.starts_with('-') || !text.bytes().all(is_bare) {
        return false;
    }
    // In `vm.destroy`, the verb is the last part; `drop.txt` and `app.rb` are files.
    match text.rsplit_once('.') {
        Some((_, last)) => last != "rb" && is_verb(last),
        None => text.split(':').any(begins_or_ends_with_verb),
    }
}

/// Tells whether the first or the last part of a word is a verb, as in `stop-instances` and
/// `vol-delete`.
pub(super) fn begins_or_ends_with_verb(word: &str) -> bool {
    let mut parts = word.split(['-', '_']);
    let is_one = |part: &str| is_verb(part) || is_joined(part);
    parts.next().is_some_and(is_one) || parts.next_back().is_some_and(is_one)
}

/// Tells whether an option says that it destroys something: `--delete`, `-prune`,
/// `--remove-orphans`.
pub(super) fn is_destroying_option(text: &str) -> bool {
    let Some(name) = text.strip_prefix('-').map(|name| name.trim_start_matches('-')) else {
        return false;
    };
    let (name, value) = name.split_once('=').unwrap_or((name, "true"));
    let verb = name.split('-').next().unwrap_or(name);
    is_listed(OPTION_VERBS, verb) && !matches!(value, "false" | "no" | "0" | "never")
}
