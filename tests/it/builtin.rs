//! Tests the built-in tools in runs: under their own names and under those that a profile shows to
//! the model, through the gate, and in the transcript.

use serde_json::{Value, json};

use crate::support::Place;

const CONFIG: &str = "models: {main: {provider: scripted, script: script.yaml}}\n";

fn place(script: &str, job: &str) -> Place {
    let script: String = script.lines().map(|line| format!("  - {line}\n")).collect();
    Place::new(&[
        ("config.yaml", CONFIG),
        ("tools.yaml", "version: 1\ntools: []\n"),
        ("script.yaml", &format!("steps:\n{script}  - say: done\n  - say: done\n")),
        ("jobs.yaml", &format!("version: 1\njobs:\n  - name: j\n    prompt: Work\n{job}")),
    ])
}

fn events(place: &Place, kind: &str) -> Vec<Value> {
    let shown = place.json(&["show", "last"]);
    let events = shown["events"].as_array().unwrap().iter();
    events.filter(|event| event["type"] == kind).cloned().collect()
}

// conforms 000-S5.6, 001-T2a, 001-D2, 003-9.4a, 004-1.3g, 004-T30
#[test]
fn files_and_commands_work_in_a_run_and_are_recorded() {
    let place = place(
        "call: {tool: write_file, args: {file_path: notes/a.txt, content: \"one\\ntwo\"}}
call: {tool: edit_file, args: {file_path: notes/a.txt, old_string: two, new_string: \"2\"}}
call: {tool: bash, args: {command: \"cat notes/a.txt; exit 3\"}}
call: {tool: grep, args: {pattern: one}}
call: {tool: todo_write, args: {todos: [{content: x, status: pending, priority: low}]}}
call: {tool: todo_read, args: {}}
call: {tool: read_file, args: {file_path: notes/a.txt}}
call: {tool: list_directory, args: {depth: 2}}
call: {tool: glob, args: {pattern: '**/a.txt'}}",
        "    tools: {write: [write_file, edit_file, bash]}\n",
    );
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let ends = events(&place, "tool_call_end");
    let output = |at: usize| ends[at]["output"].as_str().unwrap().to_owned();
    assert!(ends.iter().all(|end| end["is_error"] == false), "{ends:#?}");
    assert!(output(0).starts_with("wrote 7 bytes to "));
    assert_eq!((&ends[0]["files_modified"], &ends[0]["lines_changed"]), (&json!(1), &json!(2)));
    assert!(ends[1]["diff"].as_str().unwrap().contains("-two\n"));
    assert_eq!(ends[1]["first_changed_line"], 2);
    assert_eq!((output(2).as_str(), &ends[2]["exit_code"]), ("one\n2", &json!(3)));
    assert_eq!(output(3), "notes/a.txt:1: one\n");
    assert_eq!(output(4), output(5));
    assert_eq!(output(6), "1 | one\n2 | 2");
    assert_eq!(output(7), "notes/\nnotes/a.txt\n");
    assert_eq!(output(8), "notes/a.txt\n");
    let file = place.state().join("workspace/j/notes/a.txt");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "one\n2");
    let starts = events(&place, "tool_call_start");
    assert_eq!(starts.len(), ends.len());
    assert_eq!(
        (&starts[2]["name"], &starts[2]["arguments"]["command"]),
        (&json!("bash"), &json!("cat notes/a.txt; exit 3"))
    );
    assert!(starts.iter().chain(&ends).all(|line| line["ts"].is_string()), "{starts:#?}");
}

// proves POL-1, SH-2, FS-1, FS-5
// conforms 000-6.1f, 000-6.2b, 000-S6.5, 000-S6.10, 003-B5, 004-1.6a, 004-1.6b, 004-C9a, 004-T19
#[test]
fn what_the_gate_refuses_is_not_done_and_recorded_with_its_rule() {
    let place = place(
        "call: {tool: bash, args: {command: \"ls; rm -rf x\"}}
call: {tool: bash, args: {command: \"systemctl stop nginx\"}}
call: {tool: write_file, args: {file_path: a, content: b}}
call: {tool: read_file, args: {file_path: /etc/passwd}}
call: {tool: read_file, args: {file_path: /etc/hostname}}
call: {tool: bash, args: {command: \"echo made > made\"}}",
        "    tools: {write: [bash]}\n    limits: {error_threshold: 50}\n",
    );
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let rules: Vec<Value> = events(&place, "policy_decision")
        .into_iter()
        .map(|decision| json!([decision["decision"], decision["rule"], decision["category"]]))
        .collect();
    assert_eq!(
        rules,
        [
            json!(["deny", "blocked_command", "admin"]),
            json!(["deny", "category", "admin"]),
            json!(["deny", "category", "write"]),
            json!(["deny", "denied_path", "read"]),
            json!(["deny", "path", "read"]),
            json!(["allow", "allowed", "write"]),
        ]
    );
    assert_eq!(events(&place, "tool_call_start").len(), 1);
    let kinds: Vec<Value> =
        events(&place, "tool_call_end").iter().map(|end| end["error_kind"].clone()).collect();
    assert_eq!(kinds[..5], vec![json!("denied"); 5]);
    assert_eq!(place.json(&["runs", "--refused"]).as_array().unwrap().len(), 1);
    assert!(!place.state().join("workspace/j/a").exists());
    assert!(place.state().join("workspace/j/made").exists());
}

// conforms 000-6.1a, 000-6.4e, 003-3.3e, 004-C14
#[test]
fn verbs_judge_as_a_run_does() {
    let place = place("say: x", "    tools: {write: [bash], deny: [grep]}\n");
    let explained = |tool: &str, arguments: Value| {
        let decision = place.json(&["explain", "j", tool, &arguments.to_string()]);
        format!("{} {} {}", decision["decision"], decision["rule"], decision["category"])
            .replace('"', "")
    };
    assert_eq!(explained("bash", json!({"command": "ls"})), "allow allowed write");
    assert_eq!(explained("bash", json!({"command": "$X"})), "deny category admin");
    assert_eq!(explained("bash", json!({"command": "env sudo ls"})), "deny blocked_command admin");
    assert_eq!(explained("grep", json!({"pattern": "x"})), "deny job_deny read");
    assert_eq!(explained("read_file", json!({"file_path": "../x"})), "deny path read");
    assert_eq!(explained("read_file", json!({"file_path": "a"})), "allow allowed read");
    std::fs::create_dir_all(place.state().join("workspace/j")).unwrap();
    let link = place.state().join("workspace/j/link");
    std::os::unix::fs::symlink("/etc/shadow", link).unwrap();
    assert_eq!(explained("read_file", json!({"file_path": "link"})), "deny denied_path read");
    let security = "security: {allowed_paths: ['~/.agent/workspace', /tmp/agent], denied_paths: ['~/.ssh', '~/.gnupg', /etc/shadow, /etc/passwd, '~/own']}\n";
    place.write("config.yaml", &format!("{CONFIG}{security}"));
    let home = place.path().display().to_string();
    for (path, expected) in [
        (format!("{home}/.agent/workspace/a"), "allow allowed read"),
        ("/tmp/agent/a".to_owned(), "allow allowed read"),
        (format!("{home}/.agent/a"), "deny path read"),
        (format!("{home}/own/a"), "deny denied_path read"),
        ("/etc/passwd".to_owned(), "deny denied_path read"),
    ] {
        assert_eq!(explained("read_file", json!({"file_path": path})), expected, "{path}");
    }
    place.write("config.yaml", CONFIG);
    let declared = "version: 1\ntools:\n  - {name: get, description: Gets, category: read, cmd: 'true', args: ['{{x}}'], parameters: {x: {type: string}}}\n";
    place.write("tools.yaml", declared);
    for x in ["--server=evil", "a\u{7}"] {
        let done = place.dutyd(&["explain", "j", "get", &json!({ "x": x }).to_string()]);
        assert_eq!(done.code, 2, "a call that no run would make must not be explained: {done:?}");
    }
    let edited = place.json(&["call", "write_file", "file_path=new", "content=a"]);
    assert_eq!((&edited["files_modified"], &edited["lines_changed"]), (&json!(1), &json!(1)));
    let edited =
        place.json(&["call", "edit_file", "file_path=new", "old_string=a", "new_string=b"]);
    assert_eq!(edited["first_changed_line"], 1, "{edited}");
    assert!(edited["diff"].as_str().unwrap().contains("+b"), "{edited}");
    assert_eq!(place.dutyd(&["call", "grep", "pattern=("]).code, 2);
    let called = place.dutyd(&["call", "bash", "command=echo hi; exit 2"]);
    assert_eq!(called.code, 0, "{called:?}");
    assert!(called.stdout.starts_with("hi\n[exit code 2, "), "{called:?}");
    assert!(called.stdout.trim_end().ends_with(" ms]"), "{called:?}");
    assert_eq!(place.dutyd(&["call", "read_file", "file_path=/etc/shadow"]).code, 5);
    assert_eq!(place.dutyd(&["call", "read_file", "file_path=missing"]).code, 1);
    assert_eq!(place.dutyd(&["call", "bash", "command=sleep 9", "timeout_ms=200"]).code, 124);
    let listed = place.json(&["tools", "--job", "j"]);
    let bash = listed.as_array().unwrap().iter().find(|tool| tool["name"] == "bash").unwrap();
    assert_eq!((&bash["source"], &bash["allowed"]), (&json!("builtin"), &json!(true)));
    assert_eq!(
        (&bash["category"], &bash["parameters"]["required"]),
        (&json!("write"), &json!(["command"]))
    );
    assert!(!bash["description"].as_str().unwrap().is_empty(), "{bash}");
    assert_eq!(place.dutyd(&["call", "bahs"]).code, 3);
    assert_eq!(place.dutyd(&["call", "read_file", "offset=0"]).code, 2);
    let listed = place.json(&["tools", "--job", "j"]);
    let search = listed.as_array().unwrap().iter().find(|tool| tool["name"] == "web_search");
    let search = search.unwrap();
    assert_eq!(
        (search["unavailable"].as_str().unwrap().contains("web_search"), &search["allowed"]),
        (true, &json!(false)),
        "{search}"
    );
    let left = std::fs::read_dir(place.state().join("tmp")).unwrap().count();
    assert_eq!(left, 0, "calls left temporary directories");
}

// conforms 003-3.7, 003-9.2f
#[test]
fn a_tool_replaces_a_built_in_one_only_when_it_says_so() {
    let tool = |more: &str| {
        format!(
            "version: 1\ntools:\n  - {{name: grep, description: Ours, category: read, cmd: echo, args: [ours]{more}}}\n"
        )
    };
    let place = place("call: {tool: grep, args: {}}", "");
    place.write("tools.yaml", &tool(""));
    let done = place.dutyd(&["validate"]);
    assert!(done.code == 2 && (done.stdout + &done.stderr).contains("`grep` is a built-in tool"));
    place.write("tools.yaml", &tool(", override: true"));
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    assert_eq!(events(&place, "tool_call_end")[0]["output"], "ours\n");
}

// conforms 002-11, 002-20, 004-1.5a
#[test]
fn skills_are_in_the_prompt_and_narrow_what_may_be_used() {
    let skill = "---\nname: triage\ndescription: For pods that do not start\nallowed-tools: Read todo_read\n---\nLook at the events first.\n";
    let place = place(
        "call: [{tool: skill, args: {name: triage}}, {tool: skill, args: {name: other}}, {tool: grep, args: {pattern: x}}, {tool: todo_read, args: {}}]",
        "    skills: [triage]\n    limits: {error_threshold: 9}\n",
    );
    let done = place.dutyd(&["validate"]);
    assert!(done.code == 2 && (done.stdout + &done.stderr).contains("cannot use skill `triage`"));
    place.write("skills/triage/SKILL.md", skill);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(place.config().join("skills"), mode).unwrap();
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let prompt = events(&place, "system_prompt")[0]["text"].as_str().unwrap().to_owned();
    assert!(
        prompt.contains(
            "<skill name=\"triage\">\nFor pods that do not start\n\nLook at the events first."
        ),
        "{prompt}"
    );
    let ends = events(&place, "tool_call_end");
    // Reads of one response run in parallel and end in any order.
    let is = |name: &str, kind: Value| {
        ends.iter().find(|end| end["name"] == name && end["error_kind"] == kind)
    };
    assert_eq!(is("skill", Value::Null).unwrap()["output"], "Look at the events first.\n");
    assert!(is("skill", json!("not_found")).is_some(), "{ends:#?}");
    assert!(is("grep", json!("denied")).is_some(), "{ends:#?}");
    let shown = &events(&place, "session_start")[0]["tools"];
    assert_eq!(shown, &json!(["read_file", "skill", "todo_read", "todo_write"]));
    assert_eq!(place.json(&["explain", "j", "grep"])["rule"], "skill");
    assert_eq!(events(&place, "session_start")[0]["policy"]["skills"][0]["skill"], "triage");
}

// conforms 001-T1b
#[test]
fn a_picture_is_attached_and_kept_beside_the_transcript() {
    let place = place(
        "call: {tool: read_file, args: {file_path: a.png}}
call: {tool: read_file, args: {file_path: broken.png}}",
        "",
    );
    let work = place.state().join("workspace/j");
    std::fs::create_dir_all(&work).unwrap();
    image::RgbImage::new(2400, 12).save(work.join("a.png")).unwrap();
    std::fs::write(work.join("broken.png"), b"\x89PNG\r\n\x1a\nand no more").unwrap();
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let ends = events(&place, "tool_call_end");
    assert_eq!(ends[0]["output"], "[image/png, 2000 x 10 pixels]");
    let kept = &ends[0]["images"][0];
    assert_eq!(
        (&kept["media_type"], &kept["width"], &kept["height"]),
        (&json!("image/png"), &json!(2000), &json!(10))
    );
    let name = kept["file"].as_str().unwrap();
    let kept = place.kept().into_iter().filter(|path| path.ends_with(name));
    let found: Vec<_> = kept.map(|path| image::image_dimensions(path).unwrap()).collect();
    assert_eq!(found, [(2000, 10)]);
    assert_eq!(ends[1]["error_kind"], "tool", "{}", ends[1]);
}

/// In the `generic` profile, `bash` takes its timeout in seconds, and `find` prints paths relative
/// to the searched directory.
// conforms 001-T6a, 001-T6b, 003-2.2c, 003-9.4c, 003-B4
#[test]
fn times_and_paths_are_those_that_the_family_knows() {
    let place = place(
        "call: {tool: write, args: {path: deep/b.md, content: x}}
call: {tool: find, args: {pattern: '*.md', path: deep}}
call: {tool: bash, args: {command: 'sleep 60', timeout: 0.2}}
call: {tool: bash, args: {command: 'sleep 60', timeout: 700}}",
        "    tools: {write: [write_file, bash]}\n    limits: {error_threshold: 50}\n",
    );
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let ends = events(&place, "tool_call_end");
    assert_eq!(ends[1]["output"], "b.md\n");
    assert_eq!(ends[2]["error_kind"], "timeout");
    assert_eq!(ends[3]["error_kind"], "invalid_arguments");
    let said = events(&place, "assistant_text_end");
    assert_eq!(said[2]["tool_calls"][0]["arguments"]["timeout_ms"], 200);
}

// conforms 000-S6.2, 001-X1, 001-T3a, 003-9.3c, 004-1.2
#[test]
fn a_family_s_own_words_are_translated_and_ours_are_understood() {
    let place = place(
        "call: {tool: write, args: {path: a.txt, content: \"one\\nOne\"}}
call: {tool: edit, args: {path: a.txt, oldText: one, newText: two}}
call: {tool: edit, args: {path: a.txt, newText: two}}
call: {tool: edit_file, args: {file_path: a.txt, old_string: two, new_string: three}}
call: {tool: read, args: {path: a.txt, file_path: b.txt}}
call: {tool: grep, args: {pattern: ONE, ignoreCase: true, limit: 5}}
call: {tool: find, args: {pattern: '*.txt'}}
call: {tool: ls, args: {}}",
        "    tools: {write: [write_file, {tool: edit_file, args: {file_path: {const: a.txt}}}]}\n    limits: {error_threshold: 50}\n",
    );
    let done = place.dutyd(&["run", "j"]);
    assert_eq!(done.code, 0, "{done:?}");
    let ends = events(&place, "tool_call_end");
    let output = |at: usize| ends[at]["output"].as_str().unwrap();
    let names: Vec<&str> = ends.iter().filter_map(|end| end["name"].as_str()).collect();
    assert_eq!(names[1..4], ["edit_file"; 3]);
    assert_eq!(names[6..], ["glob", "list_directory"]);
    assert!(output(2).contains("\"oldText\" is a required property"), "{}", output(2));
    assert!(output(4).contains("'path' was unexpected"), "{}", output(4));
    assert_eq!((output(5), output(6)), ("a.txt:2: One\n", "a.txt\n"));
    assert_eq!(output(7), "a.txt\n");
    let file = place.state().join("workspace/j/a.txt");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "three\nOne");
    let said = events(&place, "assistant_text_end");
    let call = &said[1]["tool_calls"][0];
    assert_eq!((&call["name"], &call["shown_as"]), (&json!("edit_file"), &json!("edit")));
    let own = json!({"file_path": "a.txt", "old_string": "one", "new_string": "two"});
    assert_eq!(call["arguments"], own);
}

// proves SH-1
#[test]
fn a_shell_is_nobody_s_that_is_not_given_one() {
    let place = place("call: {tool: bash, args: {command: ls}}", "");
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let start = &events(&place, "session_start")[0];
    assert!(!start["tools"].as_array().unwrap().contains(&json!("bash")), "{start}");
    let end = &events(&place, "tool_call_end")[0];
    assert_eq!(end["error_kind"], "denied", "{end}");
    assert_eq!(events(&place, "policy_decision")[0]["rule"], "category");
    // A tool must not overwrite our own binary either.
    let itself = env!("CARGO_BIN_EXE_dutyd");
    place.write(
        "config.yaml",
        &format!(
            "{CONFIG}security: {{allowed_paths: [{}]}}\n",
            std::path::Path::new(itself).parent().unwrap().display()
        ),
    );
    place.write("script.yaml", &format!("steps:\n  - call: {{tool: write_file, args: {{file_path: {itself}, content: x}}}}\n  - say: done\n  - say: done\n"));
    place.write("jobs.yaml", "version: 1\njobs:\n  - {name: j, prompt: Work, sandbox: best_effort, tools: {admin: [write_file]}}\n");
    place.dutyd(&["run", "j"]);
    assert_eq!(
        events(&place, "policy_decision")[0]["rule"],
        "denied_path",
        "{:?}",
        events(&place, "policy_decision")
    );
}

// conforms 004-1.3b
#[test]
fn autonomy_refuses_an_admin_call_or_tells_of_it() {
    let tools =
        "version: 1\ntools: [{name: stop, description: Stops, category: admin, cmd: 'true'}]\n";
    for (autonomy, rule, is_told) in [
        ("read_only", "autonomy", false),
        ("supervised", "allowed", true),
        ("full", "allowed", false),
    ] {
        let job = format!("    autonomy: {autonomy}\n    tools: {{admin: [stop]}}\n");
        let place = place("call: {tool: stop}", &job);
        place.write("tools.yaml", tools);
        place.dutyd(&["run", "j"]);
        assert_eq!(events(&place, "policy_decision")[0]["rule"], rule, "{autonomy}");
        let told = events(&place, "warning").iter().any(|warning| warning["code"] == "admin_call");
        assert_eq!(told, is_told, "{autonomy}");
    }
}

// conforms 000-6.4d, 000-S6.4, 003-2.2c
#[test]
fn no_call_takes_longer_than_the_limit_of_its_job() {
    let place = place(
        "call: {tool: bash, args: {command: \"sleep 61\", timeout_ms: 60000}}
call: {tool: long, args: {}}
call: {tool: bash, args: {command: \"echo quick\", timeout_ms: 60000}}",
        "    tools: {write: [bash]}\n    limits: {tool_timeout: 300ms}\n",
    );
    place.write(
        "tools.yaml",
        "version: 1\ntools:\n  - {name: long, description: Sleeps, category: read, cmd: sleep, args: ['61'], timeout: 60s}\n",
    );
    assert_eq!(place.dutyd(&["run", "j"]).code, 0);
    let ends = events(&place, "tool_call_end");
    for end in &ends[..2] {
        assert_eq!((&end["error_kind"], &end["timed_out"]), (&json!("timeout"), &json!(true)));
        assert!(end["duration_ms"].as_u64().unwrap() < 10_000, "{end}");
    }
    let view = |at: usize| {
        let end: &Value = &ends[at];
        end["view"].as_str().or(end["output"].as_str()).unwrap().to_owned()
    };
    let note = "[this job limits the timeout of a call to 300 ms]";
    assert!(view(0).contains(note) && !view(0).contains("longer timeout"), "{}", view(0));
    assert!(view(2).contains("quick") && view(2).contains(note), "{}", view(2));
}

#[test]
fn overwritten_lines_count_before_the_call() {
    let place = place(
        "call: {tool: write_file, args: {file_path: long.txt, content: short}}
call: [{tool: write_file, args: {file_path: new.txt, content: \"1\\n2\\n3\\n\"}}, {tool: write_file, args: {file_path: mid.txt, content: x}}]
call: {tool: apply_patch, args: {patch: \"*** Begin Patch\\n*** Delete File: long.txt\\n*** End Patch\"}}",
        "    tools: {write: [write_file, apply_patch]}\n    limits: {max_lines_changed: 10, error_threshold: 9}\n",
    );
    let workspace = place.state().join("workspace/j");
    std::fs::create_dir_all(&workspace).unwrap();
    let lines = |count: usize| "line\n".repeat(count);
    std::fs::write(workspace.join("long.txt"), lines(50)).unwrap();
    std::fs::write(workspace.join("mid.txt"), lines(8)).unwrap();
    place.dutyd(&["run", "j"]);
    let ends = events(&place, "tool_call_end");
    let kinds: Vec<&Value> = ends.iter().map(|end| &end["error_kind"]).collect();
    let denied = json!("denied");
    assert_eq!(kinds, [&denied, &Value::Null, &denied, &denied], "{ends:#?}");
    let said = ends[2]["output"].as_str().unwrap();
    assert!(said.contains("9 lines") && said.contains("7 more"), "{said}");
    let text = |name: &str| std::fs::read_to_string(workspace.join(name)).unwrap();
    assert_eq!((text("long.txt"), text("mid.txt")), (lines(50), lines(8)));
}

// conforms 001-D1, 003-2.2b, 003-2.2d, 003-2.2e, 003-2.9k, 003-9.4b, 003-9.5f
#[test]
fn the_operator_sets_limits_of_built_in_tools_and_a_job_caps_them() {
    let place = place(
        "call: {tool: bash, args: {command: \"seq 100\"}}
call: {tool: look}
call: {tool: bash, args: {command: \"sleep 30\"}}",
        "    tools: {write: [bash]}\n",
    );
    let limits = "builtin_tools: {bash: {timeout: 1s, output_lines: 7}}\n";
    place.write("config.yaml", &format!("{CONFIG}{limits}"));
    place.write(
        "tools.yaml",
        "version: 1\ntools: [{name: look, description: Looks, category: read, cmd: seq, args: ['100'], output_lines: 9}]\n",
    );
    let cut = |nth: usize| {
        let end = &events(&place, "tool_call_end")[nth];
        (end["truncated"]["lines"].clone(), end["error_kind"].clone())
    };
    place.dutyd(&["run", "j"]);
    assert_eq!(cut(0), (json!(93), Value::Null));
    assert_eq!(cut(1), (json!(91), Value::Null));
    assert_eq!(cut(2).1, "timeout");
    let end = events(&place, "tool_call_end")[0].clone();
    let name = end["output_file"].as_str().unwrap();
    let file = place.kept().into_iter().find(|path| path.ends_with(name)).unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 100, "{end}");
    // `seq 100` prints 292 characters.
    let narrow = "builtin_tools: {bash: {timeout: 1s, output_limit: 100}}\n";
    place.write("config.yaml", &format!("{CONFIG}{narrow}"));
    place.dutyd(&["run", "j"]);
    let end = &events(&place, "tool_call_end")[0];
    assert_eq!(end["truncated"]["characters"], 192, "{end}");
    place.write("config.yaml", &format!("{CONFIG}{limits}"));
    let jobs = "version: 1\njobs: [{name: j, prompt: Work, tools: {write: [bash]}, limits: {output_lines: 5}}]\n";
    place.write("jobs.yaml", jobs);
    place.dutyd(&["run", "j"]);
    assert_eq!((cut(0).0, cut(1).0), (json!(95), json!(95)), "the job caps both");
    for (wrong, why) in [
        ("builtin_tools: {bsh: {timeout: 1s}}", "did you mean `bash`?"),
        ("builtin_tools: {bash: {timeout: 0s}}", "`timeout` must be positive"),
        ("builtin_tools: {bash: {output_lines: 0}}", "builtin_tools.bash.output_lines"),
        ("builtin_tools: {bash: {max_bytes: 1MB}}", "`max_bytes` applies only to `web_fetch`"),
        ("builtin_tools: {web_fetch: {max_bytes: 1GB}}", "`max_bytes` must be from 1KiB to 64MiB"),
    ] {
        place.write("config.yaml", &format!("{CONFIG}{wrong}\n"));
        let refused = place.dutyd(&["validate"]);
        assert!(refused.code == 2 && refused.stdout.contains(why), "{refused:?}");
    }
}
