//! Templates that would let a model name the program that runs (ARG-13).
//!
//! Shells, interpreters and wrappers take the program or its code as an argument. The position is found by walking the template as the
//! program would read it; where that is unclear the position counts as dangerous.

use crate::text::template::{Piece, Template};

/// Returns the positions in `args` at which a place names what runs.
pub(crate) fn program_positions(program: &str, args: &[Template]) -> Vec<usize> {
    let mut found = Vec::new();
    judge(program, args, 0, &mut found);
    found
}

/// Returns the script that an interpreter is given, if it is the same in every call.
pub(crate) fn script<'a>(program: &str, args: &'a [Template]) -> Option<&'a str> {
    let base = program.rsplit('/').next().unwrap_or(program);
    let reader = reader(base)?;
    let (mut at, mut before) = (0, reader.before);
    loop {
        let text = args.get(at)?.literal()?;
        if text == "--" || base == "env" && text.contains('=') {
            at += 1;
        } else if text.starts_with('-') {
            if is_code_option(base, reader.code, text) {
                return None;
            }
            at += if reader.valued.contains(&text) { 2 } else { 1 };
        } else if before > 0 {
            (before, at) = (before - 1, at + 1);
        } else {
            return match reader.kind {
                Kind::Script => Some(text),
                Kind::Program => script(text, args.get(at + 1..)?),
                Kind::Line => None,
            };
        }
    }
}

struct Reader {
    /// Options whose next argument is code.
    code: &'static [&'static str],
    /// Options that take a value as their next argument.
    valued: &'static [&'static str],
    /// Positional arguments before the program.
    before: usize,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The first positional is a script; what follows are its arguments.
    Script,
    /// The first positional is a program, which is read on in its turn.
    Program,
    /// Everything from the first positional on is joined and given to a shell.
    Line,
}

fn judge(program: &str, args: &[Template], start: usize, found: &mut Vec<usize>) {
    let base = program.rsplit('/').next().unwrap_or(program);
    if matches!(base, "find" | "kubectl" | "oc" | "docker" | "podman") {
        return judge_exec(base, args, start, found);
    }
    let Some(reader) = reader(base) else { return };
    let mut before = reader.before;
    let mut at = start;
    while let Some(arg) = args.get(at) {
        let head = match arg.pieces().first() {
            Some(Piece::Literal(text)) => text.as_str(),
            _ => "",
        };
        let whole = arg.literal();
        if whole == Some("--") {
            at += 1;
        } else if head.starts_with('-') {
            if is_code_option(base, reader.code, head) {
                mark(args, if whole.is_some() && !head.contains('=') { at + 1 } else { at }, found);
                return;
            }
            at += if whole.is_some_and(|option| reader.valued.contains(&option)) { 2 } else { 1 };
        } else if base == "env" && head.contains('=') {
            at += 1;
        } else if before > 0 {
            before -= 1;
            at += 1;
        } else {
            mark(args, at, found);
            match (reader.kind, whole) {
                (Kind::Program, Some(next)) => judge(next, args, at + 1, found),
                (Kind::Line, _) => (at + 1..args.len()).for_each(|rest| mark(args, rest, found)),
                _ => {}
            }
            return;
        }
    }
}

/// Programs that start another one only after a word that says so.
fn judge_exec(base: &str, args: &[Template], start: usize, found: &mut Vec<usize>) {
    let words: &[&str] = match base {
        "find" => &["-exec", "-execdir", "-ok", "-okdir"],
        _ => &["--"],
    };
    let enters = base == "find"
        || args
            .iter()
            .skip(start)
            .any(|arg| matches!(arg.literal(), Some("exec" | "run" | "debug")));
    if !enters {
        return;
    }
    let verbs: &[&str] = match base {
        "docker" | "podman" => &["exec", "run"],
        "kubectl" | "oc" => &["exec"],
        _ => &[],
    };
    if !verbs.is_empty() && !args.iter().any(|arg| arg.literal() == Some("--")) {
        return judge_container(verbs, args, start, found);
    }
    for (at, arg) in args.iter().enumerate().skip(start) {
        if arg.literal().is_some_and(|word| words.contains(&word)) {
            mark(args, at + 1, found);
            if let Some(next) = args.get(at + 1).and_then(Template::literal) {
                judge(next, args, at + 2, found);
            }
        }
    }
}

/// `docker exec [options] CONTAINER PROGRAM …`, and `kubectl exec` in its older form: an option that may take a value makes what follows unclear, which counts as dangerous.
fn judge_container(verbs: &[&str], args: &[Template], start: usize, found: &mut Vec<usize>) {
    let is_verb = |arg: &Template| arg.literal().is_some_and(|text| verbs.contains(&text));
    let Some(verb) = args.iter().skip(start).position(is_verb) else { return };
    let mut positionals = 0;
    for (at, arg) in args.iter().enumerate().skip(start + verb + 1) {
        if arg.literal().is_some_and(|text| text.starts_with('-')) {
            continue;
        }
        positionals += 1;
        if positionals >= 2 {
            mark(args, at, found);
            if let Some(program) = arg.literal() {
                return judge(program, args, at + 1, found);
            }
            return;
        }
    }
}

fn mark(args: &[Template], at: usize, found: &mut Vec<usize>) {
    if args.get(at).is_some_and(|arg| arg.places().next().is_some()) {
        found.push(at);
    }
}

fn is_code_option(base: &str, code: &[&str], head: &str) -> bool {
    let option = head.split('=').next().unwrap_or(head);
    if code.contains(&option) {
        return true;
    }
    // Short options can stand together or hold their value: `-lc`, `-e{{code}}`.
    !option.starts_with("--")
        && code.iter().filter(|flag| flag.len() == 2).any(|flag| match is_shell(base) {
            true => flag.chars().nth(1).is_some_and(|letter| option.contains(letter)),
            false => option.starts_with(flag),
        })
}

fn is_shell(base: &str) -> bool {
    matches!(
        base,
        "sh" | "bash"
            | "dash"
            | "ash"
            | "zsh"
            | "ksh"
            | "mksh"
            | "fish"
            | "csh"
            | "tcsh"
            | "su"
            | "runuser"
    )
}

fn reader(base: &str) -> Option<Reader> {
    let name = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let reader = |code, valued, before, kind| Some(Reader { code, valued, before, kind });
    match name {
        _ if is_shell(name) => reader(
            &["-c", "--command", "--rcfile", "--init-file"],
            &["-o", "-O", "+o"],
            0,
            Kind::Script,
        ),
        "python" | "pypy" => reader(&["-c", "-m"], &["-W", "-X"], 0, Kind::Script),
        "perl" => reader(&["-e", "-E", "-M", "-m"], &["-I"], 0, Kind::Script),
        "ruby" => reader(&["-e", "-r"], &["-I", "-C"], 0, Kind::Script),
        "node" | "nodejs" | "deno" | "bun" => reader(
            &["-e", "--eval", "-p", "--print", "-r", "--require", "--import"],
            &[],
            0,
            Kind::Script,
        ),
        "php" | "lua" | "luajit" | "tclsh" | "expect" | "osascript" | "pwsh" | "Rscript"
        | "groovy" => reader(&["-r", "-e", "-c", "-Command", "-B", "-E"], &["-l"], 0, Kind::Script),
        "awk" | "gawk" | "mawk" | "nawk" => {
            reader(&["-f", "-e", "--source", "--file"], &["-F", "-v"], 0, Kind::Script)
        }
        "env" => {
            reader(&["-S", "--split-string"], &["-u", "-C", "--unset", "--chdir"], 0, Kind::Program)
        }
        "xargs" => reader(&[], &["-I", "-n", "-P", "-L", "-d", "-E", "-a", "-s"], 0, Kind::Program),
        "timeout" => reader(&[], &["-s", "-k", "--signal", "--kill-after"], 1, Kind::Program),
        "nice" | "chrt" | "ionice" => {
            reader(&[], &["-n", "-c", "-p"], usize::from(name == "chrt"), Kind::Program)
        }
        "sudo" | "doas" => reader(
            &[],
            &["-u", "-g", "-h", "-p", "-C", "-r", "-t", "-T", "-U", "-D", "-R"],
            0,
            Kind::Program,
        ),
        "chroot" => reader(&[], &["--userspec", "--groups"], 1, Kind::Program),
        "stdbuf" | "unshare" | "nsenter" | "setpriv" | "systemd-run" | "flock" => reader(
            &["-c", "--command"],
            &["-i", "-o", "-e", "-t", "-u", "-p", "-w"],
            usize::from(name == "flock"),
            Kind::Program,
        ),
        "busybox" | "toybox" | "nohup" | "setsid" | "time" | "strace" | "ltrace" | "gdb"
        | "exec" | "command" | "builtin" => reader(&[], &["-o", "-e", "-p"], 0, Kind::Program),
        "watch" | "parallel" | "script" | "at" | "entr" | "eval" => {
            reader(&["-c"], &["-n", "-j", "--interval"], 0, Kind::Line)
        }
        "ssh" => reader(
            &["-o", "-F", "-S"],
            &["-p", "-i", "-l", "-L", "-R", "-D", "-J", "-c", "-m", "-b", "-e", "-w", "-W"],
            1,
            Kind::Line,
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves ARG-13
    #[test]
    fn the_position_that_names_what_runs_is_found() {
        let check = |program: &str, args: &[&str], expected: &[usize]| {
            let args: Vec<Template> =
                args.iter().map(|arg| Template::parse(arg).unwrap()).collect();
            assert_eq!(program_positions(program, &args), expected, "{program} {args:?}");
        };
        check("sh", &["-c", "{{x}}"], &[1]);
        check("/bin/bash", &["-lc", "echo {{x}}"], &[1]);
        check("bash", &["-c", "echo \"$1\"", "_", "{{x}}"], &[]);
        check("bash", &["{{script}}"], &[0]);
        check("bash", &["/srv/check.sh", "{{x}}"], &[]);
        check("python3.11", &["-c", "{{x}}"], &[1]);
        check("python3", &["-c{{x}}"], &[0]);
        check("python3", &["scripts/{{x}}.py"], &[0]);
        check("node", &["--eval={{x}}"], &[0]);
        check("env", &["A={{a}}", "{{x}}"], &[1]);
        check("env", &["sh", "-c", "{{x}}"], &[2]);
        check("timeout", &["{{seconds}}", "{{x}}"], &[1]);
        check("timeout", &["5", "df", "{{x}}"], &[]);
        check("sudo", &["-u", "root", "{{x}}"], &[2]);
        check("busybox", &["sh", "-c", "{{x}}"], &[2]);
        check("xargs", &["-n", "1", "{{x}}"], &[2]);
        check("nice", &["-n", "5", "perl", "-e", "{{x}}"], &[4]);
        check("ssh", &["{{host}}", "uptime", "{{x}}"], &[2]);
        check("ssh", &["-o{{x}}", "host"], &[0]);
        check("find", &["/srv", "-name", "{{x}}", "-exec", "{{y}}", "{}", ";"], &[4]);
        check("kubectl", &["exec", "{{pod}}", "--", "{{x}}"], &[3]);
        check("kubectl", &["get", "--", "{{x}}"], &[]);
        check("kubectl", &["exec", "{{pod}}", "{{x}}"], &[2]);
        check("kubectl", &["get", "pods", "{{x}}"], &[]);
        check("docker", &["exec", "web", "{{x}}"], &[2]);
        check("docker", &["exec", "-it", "{{container}}", "sh", "-c", "{{x}}"], &[5]);
        check("docker", &["exec", "web", "df", "{{x}}"], &[]);
        check("docker", &["logs", "{{x}}"], &[]);
        check("df", &["-h", "{{x}}"], &[]);
        check("awk", &["-F", ":", "{{x}}"], &[2]);
    }

    #[test]
    fn the_script_that_is_the_same_in_every_call_is_found() {
        let check = |program: &str, args: &[&str], expected: Option<&str>| {
            let args: Vec<Template> =
                args.iter().map(|arg| Template::parse(arg).unwrap()).collect();
            assert_eq!(script(program, &args), expected, "{program} {args:?}");
        };
        check("sh", &["/x.sh", "{{a}}"], Some("/x.sh"));
        check("/usr/bin/python3", &["-X", "dev", "/x.py"], Some("/x.py"));
        check("env", &["A=1", "bash", "-e", "/x"], Some("/x"));
        check("timeout", &["5", "sh", "/x.sh"], Some("/x.sh"));
        check("sh", &["-c", "/x"], None);
        check("sh", &["{{x}}"], None);
        check("df", &["/x"], None);
    }
}
