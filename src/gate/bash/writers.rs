//! The files that well-known programs write, as far as their arguments name them. The gate raises a
//! command that writes to a system path, as it does for the file tools.

use std::sync::LazyLock;

use super::options::has;
use super::word::Word;

/// The current directory. A program writes there if its arguments name no other directory.
static HERE: LazyLock<Word> = LazyLock::new(|| Word::literal("."));

/// Subcommands of git that write files into its directory.
const CHECKOUTS: [&str; 11] = [
    "clone", "checkout", "switch", "pull", "merge", "rebase", "apply", "am", "revert", "restore",
    "init",
];

/// Returns the arguments that name a file or directory that the program writes.
pub(super) fn written<'a>(program: &str, arguments: &'a [Word]) -> Vec<&'a Word> {
    let operands = || {
        let is_option = |word: &&Word| word.beginning().starts_with('-');
        arguments.iter().filter(move |word| !is_option(word))
    };
    match program {
        "tee" | "touch" | "truncate" | "mkdir" | "mkfifo" | "mknod" | "sponge" | "mv" | "chmod"
        | "chown" | "chgrp" | "setfacl" => operands().collect(),
        "rsync" | "scp" => operands().next_back().into_iter().collect(),
        "cp" | "install" | "ln" => {
            let target = values(arguments, 't', "--target-directory");
            if target.is_empty() { operands().next_back().into_iter().collect() } else { target }
        }
        "sed" | "gsed" if has(arguments, &["-i", "--in-place"]) => {
            // The first operand is usually the script.
            let is_script = !has(arguments, &["-e", "--expression", "-f", "--file"]);
            operands().skip(usize::from(is_script)).collect()
        }
        "patch" => operands().collect(),
        "sort" => values(arguments, 'o', "--output"),
        "curl" => {
            let mut found = values(arguments, 'o', "--output");
            for (letter, long) in [
                ('D', "--dump-header"),
                ('c', "--cookie-jar"),
                ('\0', "--trace"),
                ('\0', "--stderr"),
            ] {
                found.extend(values(arguments, letter, long));
            }
            if has(arguments, &["-O", "--remote-name"]) {
                found.extend(or_here(values(arguments, '\0', "--output-dir")));
            }
            found
        }
        "wget" => {
            let mut found = values(arguments, 'O', "--output-document");
            found.extend(values(arguments, 'P', "--directory-prefix"));
            if found.is_empty() && !has(arguments, &["-O", "--output-document", "--spider"]) {
                found.push(&HERE);
            }
            found.extend(values(arguments, 'o', "--output-file"));
            found.extend(values(arguments, 'a', "--append-output"));
            found
        }
        "unzip" if has(arguments, &["-l", "-p", "-t", "-v", "-Z"]) => Vec::new(),
        "unzip" => or_here(values(arguments, 'd', "--directory")),
        "git" if operands().filter_map(Word::known).any(|text| CHECKOUTS.contains(&text)) => {
            let mut found = or_here(values(arguments, 'C', "--work-tree"));
            // `git clone URL DIRECTORY`
            found.extend(operands().skip_while(|word| word.known() != Some("clone")).nth(2));
            found
        }
        "find" => ["-fprint", "-fprint0", "-fprintf", "-fls"]
            .into_iter()
            .flat_map(|option| values(arguments, '\0', option))
            .collect(),
        "gzip" | "gunzip" | "bzip2" | "bunzip2" | "xz" | "unxz" | "lzma" | "unlzma" | "zstd"
        | "unzstd"
            if !has(arguments, &["-c", "-l", "-t", "--stdout", "--list", "--test"]) =>
        {
            operands().collect()
        }
        "crudini" if has(arguments, &["--get"]) => Vec::new(),
        "dos2unix" | "unix2dos" | "fallocate" | "script" | "crudini" => operands().collect(),
        "yq" if has(arguments, &["-i", "--inplace"]) => operands().skip(1).collect(),
        "split" | "uniq" | "xxd" => second_name(arguments),
        "tcpdump" => values(arguments, 'w', "--write"),
        "openssl" => values(arguments, '\0', "-out"),
        "gpg" | "gpg2" => values(arguments, 'o', "--output"),
        "tar" | "bsdtar" | "gtar" => archive(arguments),
        // Here, `-o` takes no file, or a file is read.
        "grep" | "egrep" | "fgrep" | "zgrep" | "rg" | "ag" | "ack" | "ls" | "ps" | "lsof"
        | "test" | "[" | "mount" => Vec::new(),
        _ => output(arguments),
    }
}

/// Returns the directory into which `tar` extracts, or the archive that it creates.
fn archive(arguments: &[Word]) -> Vec<&Word> {
    let is_mode = |letter: char, long: &str| {
        let is_bundle = |(at, word): (usize, &Word)| {
            let text = word.beginning();
            (at == 0 || text.starts_with('-')) && !text.starts_with("--") && text.contains(letter)
        };
        has(arguments, &[long]) || arguments.iter().enumerate().any(is_bundle)
    };
    if is_mode('x', "--extract") {
        // The values of a bundle without a dash follow in the order of its letters.
        let is_bare = arguments.first().is_some_and(|word| {
            !word.beginning().starts_with('-') && word.beginning().contains('C')
        });
        let mut found = values(arguments, 'C', "--directory");
        found.extend(arguments.iter().skip(1).filter(|_| is_bare));
        return or_here(found);
    }
    if !is_mode('c', "--create") {
        return Vec::new();
    }
    let mut found = values(arguments, 'f', "--file");
    // The first argument is a bundle even without a dash.
    let is_bare = arguments
        .first()
        .is_some_and(|word| !word.beginning().starts_with('-') && word.beginning().ends_with('f'));
    found.extend(arguments.get(1).filter(|_| is_bare));
    found
}

/// Returns the values of `-o` and `--output`, which most programs read as a file to write.
fn output(arguments: &[Word]) -> Vec<&Word> {
    let is_attached = |text: &str| text.starts_with("-o/") || text.starts_with("--output=");
    let mut found: Vec<&Word> =
        arguments.iter().filter(|word| is_attached(word.beginning())).collect();
    let pairs = arguments.iter().zip(arguments.iter().skip(1));
    let is_option = |word: &Word| matches!(word.known(), Some("-o" | "--output"));
    let files = pairs.filter(|(option, file)| is_option(option) && looks_like_file(file));
    found.extend(files.map(|(_, file)| file));
    found
}

/// Tells whether the value of `-o` looks like a file, and not like a format (`wide`,
/// `jsonpath={.items}`) or a setting (`pipefail`).
fn looks_like_file(word: &Word) -> bool {
    let text = word.beginning();
    text.starts_with('~') || text.contains('/') || text.contains('.') && !text.contains('=')
}

/// Returns the second name among the arguments. A number behind an option is its value, as in
/// `xxd -l 64`.
fn second_name(arguments: &[Word]) -> Vec<&Word> {
    let is_option = |word: &Word| word.beginning().starts_with('-');
    let is_name = |(at, word): &(usize, &Word)| {
        let before = at.checked_sub(1).and_then(|before| arguments.get(before));
        let is_number = word.beginning().starts_with(|c: char| c.is_ascii_digit());
        let is_value = is_number && before.is_some_and(is_option);
        !is_option(word) && !is_value
    };
    arguments.iter().enumerate().filter(is_name).map(|(_, word)| word).nth(1).into_iter().collect()
}

/// Returns the named directories, or the current one if none is named.
fn or_here(found: Vec<&Word>) -> Vec<&Word> {
    if found.is_empty() { vec![&*HERE] } else { found }
}

/// Returns the values of an option: in the next word, or attached to its own. An attached value is
/// the whole word, whose path begins at its first slash.
fn values<'a>(arguments: &'a [Word], letter: char, long: &str) -> Vec<&'a Word> {
    let mut found = Vec::new();
    for (at, word) in arguments.iter().enumerate() {
        let text = word.beginning();
        let is_bundle = text.starts_with('-') && !text.starts_with("--");
        let is_long = text.split('=').next() == Some(long);
        if (is_bundle && text.ends_with(letter)) || text == long {
            found.extend(arguments.get(at + 1));
        } else if is_long || is_bundle && text.contains(letter) && text.contains('/') {
            found.push(word);
        }
    }
    found
}

/// Returns the known beginning of the path in a word: the whole word, or what follows the option to
/// which it is attached.
pub(super) fn path(word: &Word) -> &str {
    let text = word.beginning();
    if text.starts_with('-') {
        text.find('/').and_then(|at| text.get(at..)).unwrap_or_default()
    } else {
        text
    }
}
