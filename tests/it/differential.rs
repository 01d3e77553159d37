//! Tests the classifier of bash against bash itself: a script that is classified as plain must not
//! run a hidden destructive command.
//!
//! A generator hides the program `marker`, which is listed as destructive, in random scripts. Bash
//! runs the plain scripts as user 65534, in batches. Each batch has its own process, mount and
//! network namespace, where only the directory of the batch is writable. The scripts use only
//! builtins and the marker, and `PATH` contains only the marker. `scripts/judge` runs more scripts.
//!
//! *Source*: threat model, SH-2, SH-3 and 7.3.

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use dutyd::gate::{CommandRules, Severity};
use fastrand::Rng;

/// Scripts per namespace.
const BATCH: usize = 500;

/// Runs the scripts `0.bash`, `1.bash`, … of the directory `$1`. Each script has its own marker,
/// which writes a file when it runs.
const DRIVER: &str = r#"
set -u
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,ro,bind /
mount -t proc proc /proc
# Discard the output: the loop reports each script on which bash crashed.
exec setpriv --reuid=65534 --regid=65534 --clear-groups bash -c '
    for script in "$1"/*.bash; do
        (
            cd "${script%.bash}"
            ulimit -t 2 -f 100 -n 40 -c 0 -u 200
            exec -c timeout -s KILL 10 env PATH="${script%.bash}" /bin/bash "$script"
        )
    done
    : > "$1/0/done"
' loop "$1" < /dev/null > /dev/null 2>&1
"#;

/// The marker program: it writes `ran` beside itself.
const MARKER: &str = "#!/bin/sh\n: > \"${0%/*}/ran\"\n";

// proves SH-2, SH-3
#[test]
fn no_script_that_is_judged_plain_runs_a_destructive_command() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return crate::support::skipped("only root can create namespaces for bash");
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let count = number("DUTYD_JUDGE_SCRIPTS").unwrap_or(5_000) as usize;
    let seed = number("DUTYD_JUDGE_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}, {count} scripts");
    let rules = CommandRules { destructive: vec!["marker".into()], ..CommandRules::default() };
    let mut generator = Generator { rng: Rng::with_seed(seed) };
    let (mut plain, mut refused, mut of_all) = (Vec::new(), Vec::new(), 0_usize);
    while plain.len() < count {
        let script = generator.script();
        of_all += 1;
        match rules.classify(&script).severity {
            Severity::Plain => plain.push(script),
            Severity::Destructive if refused.len() < BATCH => refused.push(script),
            Severity::Destructive => {}
        }
    }
    let ran: Vec<&String> = plain.chunks(BATCH).flat_map(ran).collect();
    let control = ran_of_control(&refused);
    println!(
        "{} of {of_all} scripts are plain; {control} of {BATCH} refused ones ran the marker",
        plain.len()
    );
    assert!(control > BATCH / 50, "only {control} of the refused scripts ran the marker");
    let shown = ran.iter().take(20).fold(String::new(), |mut out, script| {
        let _ = writeln!(out, "{script:?}");
        out
    });
    assert!(ran.is_empty(), "seed {seed}: {} plain scripts ran the marker:\n{shown}", ran.len());
}

fn ran_of_control(refused: &[String]) -> usize {
    ran(refused).len()
}

/// Returns the scripts that ran the marker.
fn ran(scripts: &[String]) -> Vec<&String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(path.join("marker"), MARKER).unwrap();
    std::fs::set_permissions(path.join("marker"), std::fs::Permissions::from_mode(0o755)).unwrap();
    for (number, script) in scripts.iter().enumerate() {
        std::fs::write(path.join(format!("{number}.bash")), script).unwrap();
        let own = path.join(number.to_string());
        std::fs::create_dir(&own).unwrap();
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::hard_link(path.join("marker"), own.join("marker")).unwrap();
    }
    let output = Command::new("unshare")
        .args(["--pid", "--mount", "--net", "--ipc", "--fork", "--kill-child", "bash", "-c"])
        .args([DRIVER, "driver"])
        .arg(path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(path.join("0/done").exists(), "the scripts did not run: {said}");
    let has_run = |number: usize| Path::exists(&path.join(number.to_string()).join("ran"));
    scripts.iter().enumerate().filter(|(number, _)| has_run(*number)).map(|(_, s)| s).collect()
}

/// Generates scripts in which the marker is a command, is data, or is hard to classify.
struct Generator {
    rng: Rng,
}

impl Generator {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.rng.usize(..of.len())]
    }

    fn script(&mut self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            let command = self.command(3);
            lines.push(command);
        }
        let mut script = lines.join(self.one(&["\n", "; ", " && ", " || ", " & ", "\n\n", "|"]));
        for _ in 0..self.rng.usize(..3) {
            self.disturb(&mut script);
        }
        script
    }

    /// Inserts, removes or doubles a character, or hides the rest of a line behind a `#` that bash may
    /// not read as a comment, with a bracket on the next line that closes what was open.
    fn disturb(&mut self, script: &mut String) {
        let characters: Vec<char> = script.chars().collect();
        if characters.is_empty() {
            return;
        }
        let at = self.rng.usize(..characters.len());
        let mut out: Vec<char> = characters[..at].to_vec();
        let mut closing = "";
        match self.rng.u8(..5) {
            0 => {}
            1 => out.extend([characters[at], characters[at]]),
            2 => {
                out.extend([' ', '#', ' ', characters[at]]);
                closing = self.one(&["\n))", "\n)", "\n]", "\n}", "\n)); do :; done", "\nfi"]);
            }
            _ => {
                let noise = "'\"\\`$(){}[]<>|&;#\t\n =+-!~*?@:,/xE0";
                let noise: Vec<char> = noise.chars().collect();
                out.extend([noise[self.rng.usize(..noise.len())], characters[at]]);
            }
        }
        out.extend(&characters[at + 1..]);
        out.extend(closing.chars());
        *script = out.into_iter().collect();
    }

    fn name(&mut self) -> &'static str {
        self.one(&["x", "y", "a", "n", "x", "y", "a", "n", "RANDOM", "OPTIND"])
    }

    /// Returns text that runs the marker if bash takes the text for code.
    fn code(&mut self) -> &'static str {
        self.one(&[
            "marker",
            "$(marker)",
            "`marker`",
            "a[$(marker)]",
            "a[`marker`]",
            "; marker",
            "\nmarker",
            "& marker;",
            ")marker",
            "}marker",
            "|marker",
            "<(marker)",
            "x[$(marker)]=1",
            "\\$(marker)",
            "a[\\$(marker)]",
            "a['$(marker)']",
            "$((a[$(marker)]))",
            "a[\\x24(marker)]",
            "a[\\044(marker)]",
            "EOF\nmarker",
            "E\nmarker\n",
            "# marker",
            "*) marker;;",
            "marker #",
            "${x:-$(marker)}",
            "@(a|$(marker))",
            "{marker,a}",
        ])
    }

    fn bare(&mut self) -> String {
        match self.rng.u8(..12) {
            0 => "marker".to_owned(),
            1 => "m\\arker".to_owned(),
            2 => "a=b".to_owned(),
            3 => "{a,b}".to_owned(),
            4 => "a*[bc]?".to_owned(),
            5 => "-v".to_owned(),
            6 => "1".to_owned(),
            7 => "\\ ".to_owned(),
            8 => "\\$x".to_owned(),
            9 => "=".to_owned(),
            _ => self
                .one(&["a", "b", "-n", "x", "ab.c", "/a/b", "~", "==", "a[1]", "#a", "a#", "%"])
                .to_owned(),
        }
    }

    fn word(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.bare();
        }
        let (name, code) = (self.name(), self.code());
        match self.rng.u8(..26) {
            0..=3 => self.bare(),
            4 => format!("'{}'", code.replace('\'', "")),
            5 => format!("\"{}\"", code.replace(['"', '`', '$'], "")),
            6 => format!("\"{}\"", code.replace('$', "\\$").replace('`', "\\`")),
            7 => format!("$'{}'", code.replace('\'', "\\'")),
            8 => format!("$\"{}\"", code.replace(['"', '`', '$'], "")),
            9 => format!("${name}"),
            10 => format!("\"${name}\""),
            11 => format!("${{{name}}}"),
            12 => {
                let operator = self.one(&[
                    ":-", "-", ":=", "=", ":+", "+", "#", "##", "%", "%%", "/", "//", "^", ",,",
                    "@", ":", "?",
                ]);
                let word = self.word(depth - 1);
                format!("${{{name}{operator}{word}}}")
            }
            13 => {
                let word = self.word(depth - 1);
                format!("${{{name}/{word}/a}}")
            }
            14 => {
                let index = self.index(depth - 1);
                format!("${{{name}[{index}]}}")
            }
            15 => format!("${{{}{name}}}", self.one(&["#", "!"])),
            16 | 17 => format!("$({})", self.command(depth - 1)),
            18 => format!("`{}`", self.command(depth - 1)),
            19 => format!("$(({}))", self.arithmetic(depth - 1)),
            20 => format!("$[{}]", self.arithmetic(depth - 1)),
            21 => format!("<({})", self.command(depth - 1)),
            22 => format!("\"{}\"", self.word(depth - 1)),
            23 => format!("${{{name}:{}}}", self.arithmetic(depth - 1)),
            _ => {
                let (one, two) = (self.word(depth - 1), self.word(depth - 1));
                format!("{one}{two}")
            }
        }
    }

    fn index(&mut self, depth: usize) -> String {
        match self.rng.u8(..5) {
            0 => self.one(&["0", "@", "*", "x", "$x"]).to_owned(),
            1 => self.arithmetic(depth),
            2 => format!("'{}'", self.code().replace('\'', "")),
            _ => self.word(depth),
        }
    }

    fn arithmetic(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.one(&["1", "x", "$x", "a", "y+1", "0"]).to_owned();
        }
        let name = self.name();
        match self.rng.u8(..9) {
            0 => format!("{name}[{}]", self.index(depth - 1)),
            1 => format!("{}+{}", self.arithmetic(depth - 1), self.arithmetic(depth - 1)),
            2 => format!("({})", self.arithmetic(depth - 1)),
            3 => format!("{name}={}", self.arithmetic(depth - 1)),
            4 => self.word(depth - 1),
            5 => format!("{name}++"),
            _ => self.arithmetic(0),
        }
    }

    fn command(&mut self, depth: usize) -> String {
        if depth == 0 {
            let word = self.bare();
            return format!("{} {word}", self.one(&["echo", ":", "true", "test"]));
        }
        let next = depth - 1;
        let name = self.name();
        let (one, two) = (self.word(next), self.word(next));
        match self.rng.u8(..44) {
            0..=3 => format!("echo {one} {two}"),
            4 => format!(": {one} {two}"),
            5 => format!("printf {one} {two}"),
            6 => format!("printf -v {name} {one} {two}"),
            7 => format!("test {one} {} {two}", self.one(&["=", "-eq", "-gt", "!="])),
            8 => format!("[ {one} {} {two} ]", self.one(&["=", "-eq", "-gt", "==", "-a"])),
            9 => format!("[ {} {one} ]", self.one(&["-v", "-n", "-z", "-f"])),
            10 => format!("[[ {one} {} {two} ]]", self.one(&["=", "-eq", "-gt", "==", "=~", "<"])),
            11 => format!("[[ {} {one} ]]", self.one(&["-v", "-n", "-z", "!"])),
            12..=15 => format!("{name}={one}"),
            16 => format!("{name}+={one}"),
            17 => format!("{name}=({one} {two})"),
            18 => format!("{name}=([{}]={two})", self.index(next)),
            19 => format!("{name}[{}]={two}", self.index(next)),
            20 => format!("read {} {name} <<< {one}", self.one(&["-r", "-a", "", "-d ''"])),
            21 => format!("let {one}"),
            22 => format!(
                "{} {} {name}={one}",
                self.one(&["declare", "typeset", "export", "readonly"]),
                self.one(&["", "-i", "-a", "-x", "-A"])
            ),
            23 => format!("set -- {one} {two}"),
            24 => format!("unset {one}"),
            25 => format!("(({}))", self.arithmetic(next)),
            26 => format!("for {name} in {one} {two}; do {}; done", self.command(next)),
            27 => format!(
                "for (({}; 0; {})); do {}; done",
                self.arithmetic(next),
                self.arithmetic(next),
                self.command(next)
            ),
            28 => format!(
                "case {one} in {two}) {};; *) {} ;; esac",
                self.command(next),
                self.command(next)
            ),
            29 => format!(
                "if {}; then {}; else {}; fi",
                self.command(next),
                self.command(next),
                self.command(next)
            ),
            30 => format!("while false; do {}; done", self.command(next)),
            31 => format!("f() {{ {}; }}; f {one} {two}", self.command(next)),
            32 => format!("( {} )", self.command(next)),
            33 => format!("{{ {}; }}", self.command(next)),
            34 => format!("{} | {}", self.command(next), self.command(next)),
            35 => format!(
                "{} {} {}",
                self.command(next),
                self.one(&["&&", "||", ";", "\n"]),
                self.command(next)
            ),
            36 => format!("! {}", self.command(next)),
            37 => format!("time {}", self.command(next)),
            38 => format!(
                "{} {} {one}",
                self.command(next),
                self.one(&[">", ">>", "2>", "<", "&>", "<<<", ">|"])
            ),
            39 => format!("{}; echo $(({}))", self.command(next), self.arithmetic(next)),
            40 | 41 => self.here_document(next),
            42 => format!("{} # {}", self.command(next), self.code()),
            _ => format!("mapfile -t {name} < <({})", self.command(next)),
        }
    }

    fn here_document(&mut self, depth: usize) -> String {
        let start =
            self.one(&["<<E", "<<'E'", "<<\"E\"", "<<-E", "<<-'E'", "<<\\E", "<< E", "<<-\tE"]);
        let command = self.one(&["read x", "cat", ":", "read -r y", "mapfile a"]);
        let mut body = String::new();
        for _ in 0..self.rng.usize(..4) {
            let blank = self.one(&["", "", "\t", "  ", "\t\t", "\\"]);
            let line = match self.rng.u8(..4) {
                0 => self.code().to_owned(),
                1 => "E x".to_owned(),
                _ => self.word(depth),
            };
            let _ = writeln!(body, "{blank}{line}");
        }
        let end = self.one(&["E", "E", "E", "\tE", " E", "E "]);
        format!("{command} {start}\n{body}{end}\n{}", self.command(depth))
    }
}
