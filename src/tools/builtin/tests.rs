use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::edit::Files;
use super::*;
use crate::config::SandboxMode;
use crate::gate::PathRules;
use crate::process::{ForkServer, HostWork, Spawner};
use crate::text::redact::Redactor;
use crate::tools::{AccessRules, OutputContext, ProgramContext, SandboxProfiles};

fn context_in(directory: &Path) -> ToolContext {
    let working_dir = directory.canonicalize().unwrap();
    let paths = PathRules {
        working_dir: working_dir.clone(),
        writable: vec![working_dir.clone()],
        denied: vec![working_dir.join("closed")],
        ..PathRules::default()
    };
    ToolContext {
        builtins: Default::default(),
        programs: ProgramContext {
            spawner: Spawner::new(Arc::new(ForkServer::of_this_binary()), None, "test"),
            env: Default::default(),
            execution: Arc::new(crate::tools::Local),
            sandboxes: SandboxProfiles::new(
                SandboxMode::Off,
                paths.clone(),
                working_dir.clone(),
                true,
            ),
            shell: None,
        },
        host_work: HostWork::of("test"),
        outputs: OutputContext {
            store: None,
            max_bytes: 1 << 20,
            max_characters: None,
            max_lines: None,
        },
        access: AccessRules::new(paths, Default::default()),
        working_dir,
        timeout: Duration::from_secs(60),
        timeout_cap: None,
        redactor: Redactor::default(),
        web_search: None,
        glob_paths_are_relative: false,
        skills: Vec::new(),
        todos: Default::default(),
    }
}

fn call(ctx: &ToolContext, name: &str, arguments: Value) -> Result<Answer, CallError> {
    let arguments = prepare_builtin(name, arguments.as_object().unwrap())?.arguments;
    let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
    let until = Instant::now() + ctx.timeout;
    (kind.work)(
        &arguments,
        &Work { ctx, cancel: CancellationToken::new(), until, lines_left: u64::MAX },
    )
}

#[track_caller]
fn text(ctx: &ToolContext, name: &str, arguments: Value) -> String {
    match call(ctx, name, arguments) {
        Ok(answer) => answer.text + &answer.note,
        Err(error) => format!("{}: {}", error.kind.as_str(), error.message),
    }
}

#[test]
fn every_declared_tool_is_built() {
    let is_built = |name: &str| {
        name == bash::NAME || web::is_one(name) || KINDS.iter().any(|kind| kind.name == name)
    };
    for tool in Builtin::all() {
        assert!(is_built(tool.name), "{}", tool.name);
    }
    assert_eq!(Builtin::all().count(), KINDS.len() + 3);
}

// conforms 001-T1a, 003-3.3a, 003-3.6a, 003-B1
#[test]
fn lines_are_read_with_their_numbers() {
    let temp = tempfile::tempdir().unwrap();
    let ctx = context_in(temp.path());
    let lines: String = (1..=5000).map(|n| format!("line {n}\n")).collect();
    std::fs::write(temp.path().join("long"), lines).unwrap();
    std::fs::write(temp.path().join("cr"), "one\r\ntwo").unwrap();
    std::fs::write(temp.path().join("empty"), "").unwrap();
    std::fs::write(temp.path().join("binary"), b"\x7fELF\0\0").unwrap();
    std::fs::write(temp.path().join("odd"), b"a\xff\n").unwrap();
    let read = |arguments| text(&ctx, "read_file", arguments);
    let whole = read(json!({"file_path": "long"}));
    assert!(whole.starts_with("1 | line 1\n2 | line 2\n"), "{whole}");
    assert!(whole.ends_with("2000 | line 2000\n[more lines follow: continue with offset 2001]"));
    assert_eq!(
        read(json!({"file_path": "long", "offset": 4999, "limit": 5})),
        "4999 | line 4999\n5000 | line 5000"
    );
    assert!(read(json!({"file_path": "long", "offset": 5001})).contains("has 5000 lines"));
    assert_eq!(read(json!({"file_path": "cr"})), "1 | one\n2 | two");
    assert!(read(json!({"file_path": "cr", "offset": 9})).contains("has 2 lines"));
    assert!(read(json!({"file_path": "empty"})).contains("is empty"));
    assert!(read(json!({"file_path": "binary"})).starts_with("io: "));
    assert_eq!(read(json!({"file_path": "odd"})), "1 | a\u{fffd}");
    assert!(call(&ctx, "read_file", json!({"file_path": "odd"})).unwrap().lossy);
    assert!(!call(&ctx, "read_file", json!({"file_path": "cr"})).unwrap().lossy);
    assert!(read(json!({"file_path": "missing"})).starts_with("not_found: "));
    assert!(read(json!({"file_path": "."})).contains("use list_directory"));
    assert!(read(json!({"file_path": "cr", "offset": 0})).starts_with("invalid_arguments: "));
    assert!(read(json!({"path": "cr"})).starts_with("invalid_arguments: "));
    std::fs::write(temp.path().join("one-line"), "x".repeat(3 << 20)).unwrap();
    let cut = read(json!({"file_path": "one-line"}));
    assert!(cut.len() < 2 << 20 && cut.contains("longer than"), "{}", cut.len());
    let many = text(&ctx, "read_many_files", json!({"paths": ["cr", "missing", "odd"]}));
    assert!(many.starts_with("==> cr <==\n1 | one\n2 | two\n\n==> missing <==\n["), "{many}");
    assert!(text(&ctx, "read_many_files", json!({"paths": ["nope"]})).starts_with("not_found"));
    std::fs::write(temp.path().join("wide"), "x".repeat(60_000)).unwrap();
    let kind = KINDS.iter().find(|kind| kind.name == "read_file").unwrap();
    let call_id = crate::domain::CallId::parse("c").unwrap();
    let context = CallContext { call_id, cancel: CancellationToken::new(), lines_left: u64::MAX };
    let wide = call(&ctx, "read_file", json!({"file_path": "wide"})).unwrap();
    let shown = collected(&ctx, &context, kind.name, kind.view, wide);
    assert_eq!(shown.truncated.unwrap().characters, 10_004, "the number of the line counts too");
}

// conforms 000-6.2c, 001-T3a, 001-T3b, 001-T3c, 001-T4, 003-3.3b, 003-3.3c, 003-B2
#[test]
fn files_are_written_and_edited() {
    let temp = tempfile::tempdir().unwrap();
    let ctx = context_in(temp.path());
    let file = |name: &str| std::fs::read_to_string(temp.path().join(name)).unwrap();
    let written =
        call(&ctx, "write_file", json!({"file_path": "d/a", "content": "one\ntwo\none\n"}))
            .unwrap();
    assert!(written.text.starts_with("wrote 12 bytes to "), "{}", written.text);
    assert_eq!((written.modified.len(), written.lines_changed), (1, 3));
    let edit = |old: &str, new: &str, all: bool| {
        call(
            &ctx,
            "edit_file",
            json!({"file_path": "d/a", "old_string": old, "new_string": new, "replace_all": all}),
        )
    };
    let edited = edit("two", "2", false).unwrap();
    assert!(edited.text.contains("-two\n+2\n"), "{}", edited.text);
    assert_eq!(edited.details["first_changed_line"], 2);
    assert_eq!(file("d/a"), "one\n2\none\n");
    assert!(edit("one", "1", false).unwrap_err().message.contains("2 times"));
    edit("one", "1", true).unwrap();
    assert_eq!(file("d/a"), "1\n2\n1\n");
    assert!(edit("nope", "x", false).unwrap_err().message.contains("is not in"));
    assert!(edit("1", "1", true).is_err());
    std::fs::write(temp.path().join("d/a"), "say “hi” – now\nnext\n").unwrap();
    edit("say \"hi\" - now", "said", false).unwrap();
    assert_eq!(file("d/a"), "said\nnext\n");
    std::fs::write(temp.path().join("d/a"), "one\u{a0}two\u{2009}three").unwrap();
    edit("one two three", "said", false).unwrap();
    assert_eq!(file("d/a"), "said");
    assert_eq!(
        call(&ctx, "write_file", json!({"file_path": "closed/x", "content": ""})).unwrap_err().kind,
        ErrorKind::Denied
    );
    for outside in ["../x", "/etc/dutyd-new"] {
        let refused = call(&ctx, "write_file", json!({"file_path": outside, "content": ""}));
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Denied, "{outside}");
    }
}

/// Returns every file below `directory` with its bytes.
fn tree(directory: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().display().to_string();
                found.insert(name, std::fs::read(path).unwrap());
            }
        }
    }
    found
}

// conforms 003-A
#[test]
fn recorded_patches_give_the_expected_tree() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/apply_patch");
    let index = std::fs::read_to_string(fixtures.join("index.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&index).unwrap();
    for case in &cases {
        let folder = fixtures.join(case["folder"].as_str().unwrap());
        let temp = tempfile::tempdir().unwrap();
        for (name, bytes) in tree(&folder.join("input")) {
            let path = temp.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let ctx = context_in(temp.path());
        let patch = std::fs::read_to_string(folder.join("patch.txt")).unwrap();
        let done = call(&ctx, "apply_patch", json!({ "patch": patch }));
        let expected = case["expect"]["outcome"].as_str().unwrap();
        assert_eq!(done.is_ok(), expected == "applied", "{}: {done:?}", case["id"]);
        assert_eq!(tree(temp.path()), tree(&folder.join("expected")), "{}", case["id"]);
        let after: std::collections::BTreeMap<String, String> =
            serde_json::from_value(case["expect"]["files_after"].clone()).unwrap();
        let after = after.into_iter().map(|(name, text)| (name, text.into_bytes())).collect();
        assert_eq!(tree(temp.path()), after, "{}", case["id"]);
    }
    println!("apply_patch: {} of {} recorded patches", cases.len(), cases.len());
    assert!(cases.len() >= 15);
}

// proves FS-7
#[test]
fn a_patch_is_all_or_nothing() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("a"), "one\n").unwrap();
    std::fs::create_dir(temp.path().join("closed")).unwrap();
    std::fs::write(temp.path().join("closed/k"), "key\n").unwrap();
    let ctx = context_in(temp.path());
    let before = tree(temp.path());
    let part = "*** Update File: a\n@@\n-one\n+two\n*** Add File: new\n+x\n";
    for other in [
        "*** Update File: closed/k\n@@\n-key\n+mine\n",
        "*** Delete File: missing\n",
        "*** Update File: a\n@@\n-absent\n+x\n",
        "*** Add File: ../escaped\n+x\n",
        "*** Add File: /etc/escaped\n+x\n",
        "*** Update File: a\n*** Move to: closed/a\n@@\n-two\n+x\n",
        "*** Frobnicate: a\n",
    ] {
        let patch = format!("*** Begin Patch\n{part}{other}*** End Patch\n");
        let error = call(&ctx, "apply_patch", json!({ "patch": patch })).unwrap_err();
        assert!(error.message.starts_with("Nothing was changed"), "{other}: {}", error.message);
        assert_eq!(tree(temp.path()), before, "{other}");
    }
    let resources =
        patch_paths(&format!("*** Begin Patch\n{part}*** Delete File: gone\n*** End Patch"));
    assert_eq!(resources, ["a", "new", "gone"]);
    let twice = "*** Begin Patch\n*** Update File: a\n@@\n-one\n+two\n*** Update File: a\n@@\n-two\n+three\n*** End Patch";
    call(&ctx, "apply_patch", json!({ "patch": twice })).unwrap();
    assert_eq!(tree(temp.path())["a"], b"three\n");
}

fn patch_paths(patch: &str) -> Vec<String> {
    let patch = json!({ "patch": patch });
    prepare_builtin("apply_patch", patch.as_object().unwrap())
        .unwrap()
        .resources
        .into_iter()
        .map(|resource| match resource {
            Resource::File { path, access: Access::Write } => path,
            other => panic!("{other:?}"),
        })
        .collect()
}

// proves FS-8, FS-9
// conforms 000-6.2d, 001-T7, 001-D3, 003-3.6a
#[test]
fn directories_are_listed_sorted_and_escaped() {
    use std::os::unix::ffi::OsStrExt as _;
    let temp = tempfile::tempdir().unwrap();
    for name in ["b/c/d", "closed/k", ".hidden"] {
        let path = temp.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }
    std::fs::write(temp.path().join(std::ffi::OsStr::from_bytes(b"a\n\x1b\xff")), "").unwrap();
    std::os::unix::fs::symlink("/", temp.path().join("link")).unwrap();
    let ctx = context_in(temp.path());
    assert_eq!(text(&ctx, "list_directory", json!({})), ".hidden\na\\n\\u{1b}\\xff\nb/\nlink\n");
    assert_eq!(text(&ctx, "list_directory", json!({"path": "b", "depth": 3})), "c/\nc/d\n");
    let cut = call(&ctx, "list_directory", json!({"depth": 9, "limit": 2})).unwrap();
    assert!(cut.text.ends_with("more entries: raise `limit`]"), "{}", cut.text);
    assert_eq!(cut.details["entry_limit_reached"], 2);
    assert!(text(&ctx, "list_directory", json!({"path": "closed"})).starts_with("denied"));
    assert!(text(&ctx, "list_directory", json!({"path": ".hidden"})).contains("use read_file"));
    for outside in ["..", "/etc", "link"] {
        let refused = text(&ctx, "list_directory", json!({"path": outside}));
        assert!(refused.starts_with("denied"), "{outside}: {refused}");
    }
}

// proves SEC-2
#[test]
fn a_found_line_is_cut_only_after_secrets_are_removed() {
    let temp = tempfile::tempdir().unwrap();
    let line = format!("TODO {}hunter2hunter2 rest\n", "x".repeat(488));
    std::fs::write(temp.path().join("a"), line).unwrap();
    let secret = crate::text::redact::Secret { name: "K".into(), value: "hunter2hunter2".into() };
    let ctx = ToolContext { redactor: Redactor::new(&[secret]), ..context_in(temp.path()) };
    let found = text(&ctx, "grep", json!({"pattern": "TODO"}));
    assert!(!found.contains("hunter2") && found.ends_with("…\n"), "{found}");
}

#[test]
fn a_patch_names_only_the_files_that_it_left_changed() {
    let temp = tempfile::tempdir().unwrap();
    let ctx = context_in(temp.path());
    let work = Work {
        ctx: &ctx,
        cancel: CancellationToken::new(),
        until: Instant::now(),
        lines_left: u64::MAX,
    };
    let path = |name: &str| ctx.working_dir.join(name).display().to_string();
    let put_all = |before: &[(&str, Option<&str>)], break_it: &dyn Fn()| {
        let files = |text: &dyn Fn(Option<&str>) -> Option<String>| {
            before.iter().map(|(name, old)| (path(name), text(*old))).collect::<Files>()
        };
        let (old, new) = (files(&|old| old.map(str::to_owned)), files(&|_| Some("new".to_owned())));
        let places: Vec<_> = new.keys().map(|path| work.files().place(path).unwrap()).collect();
        break_it();
        edit::put(&work.files(), &places, &old, &new).unwrap_err().message
    };
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(temp.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(temp.path().join(name), text).unwrap();
    };
    let gone = || std::fs::remove_dir_all(temp.path().join("d")).unwrap();
    write("a", "old");
    write("d/x", "");
    // The directory of the new file disappears. The first file gets its text back.
    let message = put_all(&[("a", Some("old")), ("d/new", None)], &gone);
    assert!(message.starts_with("Nothing was changed: "), "{message}");
    assert_eq!(std::fs::read_to_string(temp.path().join("a")).unwrap(), "old");
    // A file that disappeared with its directory cannot be restored.
    write("d/b", "old");
    let message = put_all(&[("a", Some("old")), ("d/b", Some("old"))], &gone);
    assert!(message.starts_with("The patch failed: ") && message.contains("d/b"), "{message}");
    assert_eq!(
        message.matches("/d/b").count(),
        2,
        "once as the cause, once as the rest: {message}"
    );
}

// proves FS-4
#[test]
fn a_search_is_bounded_in_memory_and_says_what_it_left_out() {
    let temp = tempfile::tempdir().unwrap();
    // With the pattern below, only the NFA matcher, which is slow, can search such a line.
    let line = format!("{}\n", "ab".repeat(200));
    std::fs::write(temp.path().join("many"), line.repeat(50)).unwrap();
    std::fs::write(temp.path().join("one"), "ab".repeat(5 << 20)).unwrap();
    let ctx = context_in(temp.path());
    let before = peak_kib();
    let found = text(&ctx, "grep", json!({"pattern": "[ab]*a[ab]{300}c"}));
    assert!(found.starts_with("[nothing matches]\n[files not searched to the end: 1 "), "{found}");
    assert!(peak_kib() - before < 100 << 10, "{} KiB", peak_kib() - before);
    let groups = format!("{}{{500}}", "(a)".repeat(200));
    for pattern in ["\\w{1000}{1000}", "\\pL{900}", groups.as_str(), &"a|".repeat(10_000)] {
        let refused = text(&ctx, "grep", json!({"pattern": pattern}));
        assert!(refused.starts_with("invalid_arguments"), "{refused}");
    }
    assert_eq!(text(&ctx, "grep", json!({"pattern": "\\w{1,64}X"})).lines().count(), 2);
    for n in 0..12 {
        let directory = temp.path().join(format!("d{n:02}"));
        std::fs::create_dir(&directory).unwrap();
        let rules: String = (0..12_000).map(|at| format!("{at}?x\n")).collect();
        std::fs::write(directory.join(".gitignore"), rules + "hidden\n").unwrap();
        std::fs::write(directory.join("hidden"), "").unwrap();
    }
    let found = text(&ctx, "glob", json!({"pattern": "hidden"}));
    assert!(found.contains("[.gitignore files not applied (too large): 12]"), "{found}");
}

/// Returns the peak memory of this process in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

// proves FS-2, FS-4, FS-8
// conforms 001-T5a, 001-T5b, 001-D3
#[test]
fn contents_and_names_are_searched() {
    let temp = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("src/a.rs", "fn main() {}\n// TODO one\nlast\n"),
        ("src/b.txt", "todo two\n"),
        ("built/x.rs", "TODO built\n"),
        (".gitignore", "built/\n"),
        (".git/config", "TODO git\n"),
        ("closed/k.rs", "TODO SECRET\n"),
    ] {
        let path = temp.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    std::fs::write(temp.path().join("binary"), b"TODO\0").unwrap();
    std::fs::write(temp.path().join("long"), format!("TODO {}", "x".repeat(2000))).unwrap();
    // Create entries that lead elsewhere, or at which a reader would wait or read forever.
    std::os::unix::fs::symlink("/etc", temp.path().join("src/etc")).unwrap();
    std::os::unix::fs::symlink(temp.path().join("closed/k.rs"), temp.path().join("src/k.rs"))
        .unwrap();
    std::fs::hard_link(temp.path().join("closed/k.rs"), temp.path().join("src/h.rs")).unwrap();
    nix::unistd::mkfifo(&temp.path().join("src/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(temp.path().join("trap")).unwrap();
    nix::unistd::mkfifo(&temp.path().join("trap/.gitignore"), nix::sys::stat::Mode::S_IRWXU)
        .unwrap();
    std::fs::create_dir(temp.path().join("endless")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", temp.path().join("endless/.gitignore")).unwrap();
    let mut ctx = context_in(temp.path());
    ctx.access.paths.denied.push(ctx.working_dir.join("closed/k.rs"));
    let grep = |arguments| text(&ctx, "grep", arguments);
    assert_eq!(grep(json!({"pattern": "TODO", "glob": "*.rs"})), "src/a.rs:2: // TODO one\n");
    let all = grep(json!({"pattern": "todo", "case_insensitive": true}));
    assert!(
        all.contains("src/b.txt:1: todo two\n")
            && !all.contains("built")
            && !all.contains("SECRET")
            && !all.contains(".git/"),
        "{all}"
    );
    let long = all.lines().find(|line| line.starts_with("long:1: ")).unwrap();
    assert_eq!(long.chars().count(), "long:1: ".len() + 501, "500 characters and the dots");
    assert!(long.ends_with('…'));
    assert_eq!(
        grep(json!({"pattern": "TODO", "path": "src/a.rs", "context": 1})),
        "src/a.rs-1- fn main() {}\nsrc/a.rs:2: // TODO one\nsrc/a.rs-3- last\n"
    );
    assert_eq!(grep(json!({"pattern": "main(", "literal": true})), "src/a.rs:1: fn main() {}\n");
    assert!(grep(json!({"pattern": "main("})).starts_with("invalid_arguments"));
    assert_eq!(grep(json!({"pattern": "nowhere"})), "[nothing matches]");
    assert!(grep(json!({"pattern": "x", "path": "closed"})).starts_with("denied"));
    let limited = call(&ctx, "grep", json!({"pattern": ".", "max_results": 1})).unwrap();
    assert_eq!(limited.details["match_limit_reached"], 1);
    let glob = |arguments| text(&ctx, "glob", arguments);
    std::fs::File::open(temp.path().join("src/a.rs"))
        .unwrap()
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert_eq!(glob(json!({"pattern": "src/*.{rs,txt}"})), "src/b.txt\nsrc/a.rs\n");
    assert_eq!(glob(json!({"pattern": "*.rs"})), "src/a.rs\n");
    assert_eq!(glob(json!({"pattern": "**/*.txt"})), "src/b.txt\n");
    assert_eq!(glob(json!({"pattern": "*.none"})), "[no file matches]");
    assert!(glob(json!({"pattern": "[", "path": "src"})).starts_with("invalid_arguments"));
    let cut = call(&ctx, "grep", json!({"pattern": "x{9}"})).unwrap();
    assert_eq!(cut.details["lines_truncated"], 1);
    let limited = call(&ctx, "glob", json!({"pattern": "src/*.{rs,txt}", "limit": 1})).unwrap();
    assert_eq!(limited.details["match_limit_reached"], 1);
}

// conforms 001-T6a, 003-3.3g
#[test]
fn of_too_many_names_the_newest_stay_in_view() {
    let temp = tempfile::tempdir().unwrap();
    for n in 0..700 {
        let file = std::fs::File::create_new(temp.path().join(format!("f{n:03}"))).unwrap();
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + n);
        file.set_modified(time).unwrap();
    }
    let ctx = context_in(temp.path());
    let kind = KINDS.iter().find(|kind| kind.name == "glob").unwrap();
    let call_id = crate::domain::CallId::parse("c").unwrap();
    let context = CallContext { call_id, cancel: CancellationToken::new(), lines_left: u64::MAX };
    let answer = call(&ctx, "glob", json!({"pattern": "*", "limit": 600})).unwrap();
    let output = collected(&ctx, &context, kind.name, kind.view, answer);
    let lines: Vec<&str> = output.content.lines().collect();
    assert_eq!((lines[0], lines[499], lines.len()), ("f699", "f200", 502), "{}", output.content);
    assert!(lines[500].contains("100 lines were removed from the end"), "{}", lines[500]);
    assert_eq!(lines[501], "[100 more: raise `limit`]");
    assert_eq!(output.truncated.unwrap().lines, 100);
    let whole = output.output.unwrap();
    assert!(whole.contains("f100\n") && whole.ends_with("\n[100 more: raise `limit`]"), "{whole}");
    assert_eq!(output.output_bytes, whole.len() as u64);
    assert_eq!(output.digest.unwrap(), hex::encode(Sha256::digest(&whole)));
}

// conforms 001-T5a, 001-T6a, 001-T7, 003-3.3f
#[test]
fn without_a_limit_a_search_has_its_default() {
    let temp = tempfile::tempdir().unwrap();
    let ctx = context_in(temp.path());
    for n in 0..1001 {
        std::fs::write(temp.path().join(format!("f{n}")), "x").unwrap();
    }
    // `list_directory` and `grep` end with a line about the limit.
    for (name, arguments, key, most, lines) in [
        ("glob", json!({"pattern": "*"}), "match_limit_reached", 1000, 1000),
        ("list_directory", json!({}), "entry_limit_reached", 500, 501),
        ("grep", json!({"pattern": "x"}), "match_limit_reached", 100, 101),
    ] {
        let answer = call(&ctx, name, arguments).unwrap();
        assert_eq!(answer.details[key], most, "{name}");
        assert_eq!(answer.text.lines().count(), lines, "{name}");
    }
}

// conforms 003-5.2, 003-9.5b, 003-9.5e
#[test]
fn each_tool_has_the_limits_of_the_table() {
    for (name, characters, lines, keep) in [
        ("read_file", 50_000, EVERY, Keep::HeadAndTail),
        ("grep", 20_000, 200, Keep::Tail),
        ("glob", 20_000, 500, Keep::Head),
        ("edit_file", 10_000, EVERY, Keep::Tail),
        ("apply_patch", 10_000, EVERY, Keep::Tail),
        ("write_file", 1_000, EVERY, Keep::Tail),
    ] {
        let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
        assert_eq!(kind.view, view(characters, lines, keep), "{name}");
    }
    let of_programs = crate::tools::output::PROGRAM_VIEW;
    assert_eq!(of_programs, view(30_000, 256, Keep::HeadAndTail));
}

// proves FS-7
#[test]
fn a_patch_makes_no_file_with_the_name_of_a_directory() {
    let temp = tempfile::tempdir().unwrap();
    let ctx = context_in(temp.path());
    let patch = "*** Begin Patch\n*** Add File: new/\n+x\n*** End Patch\n";
    assert!(text(&ctx, "apply_patch", json!({ "patch": patch })).contains("a directory"));
    let written = text(&ctx, "write_file", json!({"file_path": "new/", "content": "x"}));
    assert!(written.starts_with("io: ") && written.contains("a directory"), "{written}");
    assert!(tree(temp.path()).is_empty());
}

// conforms 001-T9, 001-D4
#[test]
fn the_list_lives_with_the_run() {
    let temp = tempfile::tempdir().unwrap();
    let ctx = context_in(temp.path());
    assert_eq!(text(&ctx, "todo_read", json!({})), r#"{"todos":[],"open":0}"#);
    let todos = json!([
        {"content": "a", "status": "pending", "priority": "high"},
        {"content": "b", "status": "completed", "priority": "low"},
    ]);
    let written = text(&ctx, "todo_write", json!({ "todos": todos }));
    assert_eq!(written, text(&ctx, "todo_read", json!({})));
    assert!(written.ends_with(r#""open":1}"#), "{written}");
    let read = call(&ctx, "todo_read", json!({})).unwrap();
    assert_eq!((&read.details["todos"], &read.details["incomplete_count"]), (&todos, &json!(1)));
    assert!(text(&ctx, "todo_write", json!({"todos": [{"content": "a"}]})).starts_with("invalid"));
}

// conforms 001-U2
#[test]
fn a_call_ends_when_its_time_is_up_or_the_run_is_stopped() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("a"), "x\n").unwrap();
    let ctx = context_in(temp.path());
    let arguments = json!({"pattern": "x"});
    let kind = KINDS.iter().find(|kind| kind.name == "grep").unwrap();
    let cancel = CancellationToken::new();
    let work =
        Work { ctx: &ctx, cancel: cancel.clone(), until: Instant::now(), lines_left: u64::MAX };
    let late = (kind.work)(arguments.as_object().unwrap(), &work).unwrap_err();
    cancel.cancel();
    let stopped = (kind.work)(arguments.as_object().unwrap(), &work).unwrap_err();
    assert_eq!((late.kind, stopped.kind), (ErrorKind::Timeout, ErrorKind::Interrupted));
}

// conforms 001-U2
#[tokio::test]
async fn a_stopped_run_ends_a_call_to_the_web() {
    let temp = tempfile::tempdir().unwrap();
    let tool = WebFetchTool::new(&Arc::new(context_in(temp.path()))).unwrap();
    let arguments = json!({"url": "http://127.0.0.1:9/"});
    let call = tool.prepare(arguments.as_object().unwrap()).unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let call_id = crate::domain::CallId::parse("c").unwrap();
    let context = CallContext { call_id, cancel, lines_left: u64::MAX };
    assert_eq!(tool.run(&call, &context).await.error_kind, Some(ErrorKind::Interrupted));
}
