//! `git`: the commands that it runs and the changes that it discards.

use super::inner::Inner;
use super::options::{has, has_shortened, operands};
use super::word::Word;
use crate::argv::programs::{BLANK, Reader, is_listed};

/// Built-in subcommands that we know. Any other word counts as an alias: the settings of a
/// repository can define an alias that runs a program.
const COMMANDS: &str = "add am annotate apply archive bisect blame branch bundle cat-file \
    check-attr check-ignore check-mailmap check-ref-format cherry cherry-pick clean clone commit \
    config count-objects describe diff diff-files diff-index diff-tree fetch for-each-ref \
    format-patch fsck get-tar-commit-id grep hash-object help init log ls-files ls-remote ls-tree \
    maintenance merge merge-base merge-file mv name-rev notes pack-refs patch-id prune pull push \
    range-diff rebase reflog remote reset restore rev-list rev-parse revert rm shortlog show \
    show-branch show-ref sparse-checkout stash status submodule switch symbolic-ref tag update-ref \
    var verify-commit verify-tag version whatchanged worktree write-tree checkout";

/// Returns what git runs.
pub(super) fn inner(arguments: &[Word]) -> Vec<Inner> {
    let unknown = |why: &str| vec![Inner::Unknown(format!("`git` {why}"))];
    let Some(rest) = git_command(arguments) else {
        return unknown("is given settings that may run commands");
    };
    if rest.iter().any(|word| word.known().is_some_and(|text| text.starts_with("ext::"))) {
        return unknown("is given an address that runs a command");
    }
    let command = rest.first().and_then(Word::known).unwrap_or_default();
    let mut running = vec!["--upload-pack", "--receive-pack", "--exec", "--open-files-in-pager"];
    running.extend(match command {
        "clone" => &["-u", "-c", "--config", "--template"][..],
        "init" => &["--template"],
        "diff" | "log" | "show" | "format-patch" => &["--output"],
        "grep" => &["-O"],
        "rebase" => &["-x"],
        _ => &[],
    });
    if has(rest, &running) || has_shortened(rest, &running) {
        return unknown("is given an option that may make it run a program");
    }
    match rest.first().map(Word::known) {
        None => Vec::new(),
        Some(None) => unknown("is given a subcommand that is computed at run time"),
        Some(Some(
            "filter-branch" | "bisect" | "config" | "daemon" | "difftool" | "mergetool"
            | "credential",
        )) if rest.len() > 1 && !only_asks(rest) => unknown("may store or run commands"),
        Some(Some("submodule")) if rest.iter().any(|word| word.known() == Some("foreach")) => {
            unknown("runs commands")
        }
        Some(Some(command)) if is_listed(COMMANDS, command) => Vec::new(),
        Some(Some(_)) => unknown("is given a subcommand that may be an alias"),
    }
}

/// Tells whether git only reads a setting.
fn only_asks(words: &[Word]) -> bool {
    let config = words.first().and_then(Word::known) == Some("config");
    let asking = ["--get", "--list", "-l", "--get-all", "--get-regexp"];
    has(words, &asking) || (config && words.len() == 2)
}

/// Returns the subcommand of git with its arguments; `None` if the options before it may run
/// something.
fn git_command(arguments: &[Word]) -> Option<&[Word]> {
    const OWN: Reader = Reader {
        flags: "Pp",
        valued: "C",
        long_flags: "--no-pager --bare --no-optional-locks --literal-pathspecs --version --help",
        long_valued: "--git-dir --work-tree --namespace",
        ..BLANK
    };
    operands(&OWN, arguments)
}

/// Returns why git discards or overwrites something; `None` if it does neither.
pub(super) fn reason(arguments: &[Word]) -> Option<String> {
    let rest = git_command(arguments)?;
    let (command, rest) = rest.split_first()?;
    let is_unknown = rest.iter().any(|word| word.known().is_none() && !word.begins_known());
    let begins = |text: &str, option: &str| {
        text.len() > 2 && text.starts_with("--") && option.starts_with(text)
    };
    let any = |test: &dyn Fn(&str) -> bool| rest.iter().filter_map(Word::known).any(test);
    let said = |what: &str| Some(format!("`git {what}"));
    let forces = |text: &str| {
        text.starts_with("--forc")
            || ["--mirror", "--delete", "--prune"].iter().any(|option| begins(text, option))
            || text.starts_with(['+', ':'])
            || (text.starts_with('-') && !text.starts_with("--") && text.contains(['f', 'd']))
    };
    let is_letter = |text: &str, letter| {
        text.starts_with('-') && !text.starts_with("--") && text.contains(letter)
    };
    match command.known()? {
        "clean" => {
            // In `-enode_modules`, the letters after `e` are a pattern.
            let only_shows = any(&|text| {
                let letters = text.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
                begins(text, "--dry-run")
                    || letters.is_some_and(|l| l.split('e').next().is_some_and(|l| l.contains('n')))
            });
            if only_shows && !is_unknown { None } else { said("clean` removes files") }
        }
        "reset" if is_unknown || any(&|text| begins(text, "--hard") || begins(text, "--merge")) => {
            said("reset --hard` discards changes")
        }
        "push" if is_unknown || any(&forces) => said("push --force` overwrites a branch"),
        "rm" if !any(&|text| text == "--cached") => said("rm` removes files"),
        "checkout"
            if is_unknown
                || any(&|text| {
                    matches!(text, "." | "--") || begins(text, "--force") || is_letter(text, 'f')
                }) =>
        {
            said("checkout` discards changes")
        }
        "restore"
            if !any(&|text| begins(text, "--staged") || text == "-S")
                || any(&|text| begins(text, "--worktree") || is_letter(text, 'W')) =>
        {
            said("restore` discards changes")
        }
        "switch"
            if is_unknown
                || any(&|text| {
                    begins(text, "--force")
                        || begins(text, "--discard-changes")
                        || is_letter(text, 'f')
                        || is_letter(text, 'C')
                }) =>
        {
            said("switch` discards changes")
        }
        "prune" => said("prune` removes objects"),
        "stash" if any(&|text| matches!(text, "clear" | "drop")) => said("stash` discards changes"),
        "branch" | "tag"
            if any(&|text| {
                is_letter(text, 'D')
                    || is_letter(text, 'd')
                    || is_letter(text, 'f')
                    || begins(text, "--delete")
                    || begins(text, "--force")
            }) =>
        {
            said("branch` or `git tag` deletes or replaces a branch or tag")
        }
        "update-ref" | "reflog" if any(&|text| matches!(text, "-d" | "delete" | "expire")) => {
            said("update-ref` and `git reflog` can lose commits")
        }
        "worktree" if any(&|text| text == "remove") => said("worktree remove` removes files"),
        _ => None,
    }
}
