use super::*;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_790_000_000, 0).unwrap()
}

fn environment() -> Environment {
    [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into_iter().collect()
}

fn load_texts(files: &[(&str, &str)]) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let set = FileSet::of_directory(dir.path()).unwrap();
    load(&set, &environment(), Trust::Given, SecretsMode::Resolve, 0, now())
}

const TOOLS: &str = "version: 1
tools:
  - {name: df, description: Disk use, category: read, cmd: df, args: [-h]}
  - name: scale
    description: Scale a deployment
    category: write
    cmd: 'true'
    args: ['{{deployment}}', '{{replicas}}']
    parameters:
      deployment: {type: string, pattern: '[a-z][a-z-]*'}
      replicas: {type: integer, minimum: 0}
";

const CONFIG: &str = "models:
  main: {provider: openai_chat, model: m, base_url: 'http://127.0.0.1:1/v1'}
";

// conforms 000-5.1a, 000-6.4d, 003-2.2f, 004-1.6f, 004-C7a, 004-C7c
#[test]
fn a_small_configuration_has_its_defaults() {
    let loaded = load_texts(&[
        ("config.yaml", CONFIG),
        ("tools.yaml", TOOLS),
        (
            "jobs.yaml",
            "version: 1\ndefaults: {timezone: Europe/Berlin}\njobs:\n  - {name: a, schedule: '0 9 * * *', prompt: Look.}\n",
        ),
        (
            "jobs.d/b.yaml",
            "version: 1\njobs:\n  - name: b\n    every: 10m\n    prompt: 'In {{ns}}'\n    vars: {ns: 5}\n    tools: {write: [{tool: scale, args: {replicas: {maximum: 3}}}]}\n",
        ),
    ]);
    assert_eq!(loaded.report.render(), "");
    let config = loaded.config.unwrap();
    let a = &config.jobs["a"];
    assert_eq!(a.schedule.as_ref().unwrap().as_written(), "0 9 * * *");
    assert_eq!(a.schedule.as_ref().unwrap().zone().name(), "Europe/Berlin");
    assert_eq!(
        (a.limits.max_iterations, a.limits.max_tool_calls, a.loop_window),
        (20, 200, Some(10))
    );
    assert_eq!((a.limits.max_files_modified, a.limits.max_lines_changed), (50, 5000));
    assert_eq!((a.limits.max_duration.as_secs(), a.limits.tool_timeout.as_secs()), (60 * 60, 120));
    assert!(a.double_confirmation && a.enabled);
    assert_eq!(config.model_of(a).unwrap().name, "main");
    let b = &config.jobs["b"];
    assert_eq!(b.vars["ns"], "5");
    assert_eq!(b.schedule.as_ref().unwrap().zone().name(), "Europe/Berlin");
    assert_eq!(b.policy.to_json()["write"][0]["tool"], "scale");
}

// proves CFG-3, POL-4, POL-8, CRON-7
// conforms 000-6.3g, 004-1.6f
#[test]
fn ten_mistakes_are_ten_errors_each_with_its_place() {
    let loaded = load_texts(&[
        ("config.yaml", CONFIG),
        (
            "tools.yaml",
            "version: 1
tools:
  - name: one
    description: No category
    cmd: df
  - name: two
    description: Wrong category
    category: reed
    cmd: df
    args: ['{{missing}}']
",
        ),
        (
            "jobs.yaml",
            "version: 1
jobs:
  - name: a
    shedule: '* * * * *'
    prompt: x
  - name: a
    schedule: '61 * * * *'
    prompt: x
    limits: {max_iterations: 101, max_duration: 5}
  - name: b
    timezone: Europe/Berln
    prompt: 'in {{space}}'
    compaction: atuo
    subagents: {}
    tools: {write: [nope], read: 5}
",
        ),
    ]);
    assert!(loaded.config.is_none());
    let found: Vec<String> = loaded
        .report
        .errors
        .iter()
        .map(|e| {
            format!("{}:{}:{} {}", e.file.rsplit('/').next().unwrap(), e.line, e.column, e.message)
        })
        .collect();
    let expected = [
        "jobs.yaml:4:5 unknown key `shedule`",
        "jobs.yaml:6:11 duplicate job `a`",
        "jobs.yaml:7:15 `61 * * * *` is not a cron expression",
        "jobs.yaml:9:30 101 is greater than the maximum of 100",
        "jobs.yaml:9:49 expected a string, found `5`",
        "jobs.yaml:11:15 `Europe/Berln` is not a time zone",
        "jobs.yaml:12:13 `{{space}}` is not an entry of `vars`",
        "jobs.yaml:13:17 expected `off` or `auto`, found the string `atuo`",
        "jobs.yaml:14:5 `subagents` is not in this version",
        "jobs.yaml:15:21 unknown tool `nope`",
        "jobs.yaml:15:34 expected `all` or a list, found `5`",
        "tools.yaml:3:5 `category` is missing",
        "tools.yaml:8:15 expected `read` or `write` or `admin`, found the string `reed`",
        "tools.yaml:10:12 `missing` is not a parameter",
    ];
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}\nis not\n{expected}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

/// Without a limit, each of many errors on one long line would repeat the line.
#[test]
fn a_file_full_of_errors_is_reported_in_part() {
    let entries: String = (0..10_000).map(|at| format!("x{at}: 1, ")).collect();
    let jobs = format!("version: 1\njobs:\n  - {{name: a, prompt: x, {entries}y: 2}}\n");
    let texts = ["jobs.yaml", "jobs.d/b.yaml", "jobs.d/c.yaml"].map(|name| (name, jobs.as_str()));
    let loaded = load_texts(&[("tools.yaml", TOOLS), texts[0], texts[1], texts[2]]);
    let errors = &loaded.report.errors;
    assert!(loaded.config.is_none() && errors.len() == 501, "{}", errors.len());
    assert!(errors[500].message.contains("more errors are not shown"), "{:?}", errors[500]);
    assert!(errors.iter().any(|error| error.message.contains("more than 200 errors")));
    let rendered = loaded.report.render();
    assert!(rendered.len() < 600_000, "{}", rendered.len());
}

#[test]
fn errors_are_counted_once_there_are_thousands() {
    let jobs = "- {name: 'A b', promt: x}\n".repeat(9000);
    let jobs = format!("version: 1\njobs:\n{jobs}");
    let loaded = load_texts(&[("tools.yaml", TOOLS), ("jobs.yaml", &jobs)]);
    let errors = &loaded.report.errors;
    // The report counts one error for each of 9,000 jobs, 200 schema errors, and the error that
    // there are more than 200.
    assert!(errors.len() == 501, "{}", errors.len());
    assert_eq!(errors[500].message, "8701 more errors are not shown: fix these first");
}

#[test]
fn a_later_key_is_never_read_and_ignored() {
    for (file, text, word) in [
        ("jobs.yaml", "version: 1\njobs:\n  - {name: a, prompt: x, subagents: {}}\n", "subagents"),
        ("config.yaml", "server: {}\n", "server"),
    ] {
        let mut files = vec![
            ("config.yaml", CONFIG),
            ("tools.yaml", TOOLS),
            ("jobs.yaml", "version: 1\njobs: []\n"),
        ];
        files.retain(|(name, _)| *name != file);
        files.push((file, text));
        let report = load_texts(&files).report;
        assert_eq!(report.errors.len(), 1, "{}", report.render());
        assert_eq!(report.errors[0].message, format!("`{word}` is not in this version"));
    }
}

// proves FS-5
#[test]
fn a_closed_path_in_a_writable_one_is_an_error() {
    let check = |job: &str, config: &str, expected: &[&str]| {
        let jobs = format!("version: 1\njobs:\n  - {{name: a, prompt: x, {job}}}\n");
        let config = format!("models: {{m: {{provider: ollama, model: x}}}}\n{config}");
        let files = [("config.yaml", config.as_str()), ("tools.yaml", TOOLS), ("jobs.yaml", &jobs)];
        let report = load_texts(&files).report;
        let found: Vec<&str> = report.errors.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(found, expected, "{job}");
    };
    let denied = "security: {denied_paths: [/srv/app/keys]}\n";
    check("allowed_paths: [/srv/app], tools: {write: [scale]}", "", &[]);
    check("allowed_paths: [/srv/app]", denied, &[]);
    check(
        "allowed_paths: [/srv/app], tools: {write: [scale]}",
        denied,
        &["`/srv/app` would be writable but contains the denied path `/srv/app/keys`"],
    );
    check(
        "working_dir: /srv/app/keys/x, tools: {write: [scale]}",
        denied,
        &["`/srv/app/keys/x` is inside the denied path `/srv/app/keys`"],
    );
    check(
        "working_dir: /etc, tools: {write: [scale]}",
        "",
        &["`/etc` would be writable but contains the denied path `/etc/shadow`"],
    );
    check(
        "allowed_paths: [srv, /a/../b]",
        "",
        &[
            "the path `srv` must be absolute, or begin with `~/`",
            "the path `/a/../b` must not contain `..`",
        ],
    );
}

#[test]
fn what_a_provider_would_refuse_at_night_is_refused_at_load() {
    let check = |model: &str, expected: &str| {
        let config = format!("models: {{m: {{{model}}}}}\n");
        let files = [
            ("config.yaml", config.as_str()),
            ("tools.yaml", TOOLS),
            ("jobs.yaml", "version: 1\njobs: []\n"),
        ];
        let report = load_texts(&files).report;
        match expected {
            "" => assert!(report.errors.is_empty(), "{model}: {}", report.render()),
            _ => assert!(
                report.errors.len() == 1 && report.errors[0].message.contains(expected),
                "{model}: {}",
                report.render()
            ),
        }
    };
    check("provider: anthropic, model: claude-sonnet-4-5, api_key: k, reasoning_effort: high", "");
    check("provider: anthropic, model: claude-sonnet-4-5", "`api_key` is missing");
    check("provider: anthropic, model: claude-sonnet-4-5, headers: {Authorization: Bearer x}", "");
    check("provider: anthropic, model: m, api_key: k, temperature: 1.5", "at most 1");
    check(
        "provider: anthropic, model: claude-3-5-sonnet, api_key: k, reasoning_effort: low",
        "does not reason",
    );
    check(
        "provider: openai, model: gpt-5.4, api_key: k, reasoning_effort: max",
        "takes only none, low",
    );
    check("provider: openai, model: unheard-of, api_key: k, reasoning_effort: max", "");
    check("provider: openai_chat, model: gpt-5.4, api_key: k", "use `provider: openai`");
    check(
        "provider: openai_chat, model: gpt-5.4, api_key: k, base_url: https://eu.api.openai.com/v1",
        "use `provider: openai`",
    );
    check("provider: openai_chat, model: gpt-5-2025-08-07, api_key: k", "");
    check("provider: openai_chat, model: gpt-5.4, api_key: k, reasoning_effort: none", "");
    check("provider: openai_chat, model: gpt-5.4, base_url: http://127.0.0.1:1/v1", "");
    check("provider: openai, model: gpt-4.1, api_key: k, reasoning_effort: low", "does not reason");
    check("provider: openai, model: o3, api_key: k, max_output_tokens: 8", "at least 16");
    check("provider: gemini, model: \"a/../../b?x\", api_key: k", "not a valid model name");
    check(
        "provider: gemini, model: gemini-3-pro-preview, api_key: k, reasoning_effort: medium",
        "takes only low, high",
    );
    check("provider: ollama, model: qwen3", "");
    check("provider: ollama, model: qwen3, base_url: nowhere", "not an address");
    check("provider: ollama, model: qwen3, profile: antropic", "antropic");
    check("provider: ollama, model: qwen3, fallback: [m]", "its own fallback");
    check("provider: ollama, model: qwen3, fallback: [n]", "unknown model `n`");
    check("provider: ollama, model: qwen3, price: {input: 1}", "output");
    check("provider: ollama, model: qwen3, price: {input: -1, output: 1}", "minimum");
    check("provider: anthropic, model: m, api_key: \"a\\nb\"", "line break");
}

#[test]
fn a_model_that_takes_no_tools_serves_jobs_without_any() {
    let errors = |tools: &str| {
        let config = "models: {m: {provider: openai_chat, model: gpt-5.4, api_key: k}}\n";
        let jobs = format!("version: 1\njobs: [{{name: a, prompt: x, tools: {tools}}}]\n");
        let files = [("config.yaml", config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs.as_str())];
        load_texts(&files).report.errors.len()
    };
    assert_eq!(errors("{read: []}"), 0);
    assert_eq!(errors("{read: all}"), 1);
    assert_eq!(errors("{read: [], write: [scale]}"), 1);
}

/// LLM-4: a cost limit needs a price.
#[test]
fn a_cost_limit_without_a_price_is_an_error() {
    let check = |config: &str, errors: usize| {
        let jobs =
            "version: 1\njobs:\n  - {name: a, prompt: x, model: m, limits: {max_cost_usd: 1.5}}\n";
        let report =
            load_texts(&[("config.yaml", config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)])
                .report;
        assert_eq!(report.errors.len(), errors, "{}", report.render());
        if errors > 0 {
            assert!(report.errors[0].message.contains("is unknown"), "{}", report.render());
        }
    };
    check("models: {m: {provider: ollama, model: x}}\n", 1);
    check("models: {m: {provider: ollama, model: x, price: {input: 0, output: 0}}}\n", 0);
    check("models: {m: {provider: openai, model: gpt-5-mini, api_key: k}}\n", 0);
    check(
        "models: {m: {provider: openai, model: gpt-5-mini, api_key: k, fallback: [l]}, l: {provider: ollama, model: x}}\n",
        1,
    );
}

/// Returns the warnings with their hints, one line each.
fn warnings(files: &[(&str, &str)]) -> Vec<String> {
    let report = load_texts(files).report;
    assert_eq!(report.errors, [], "{}", report.render());
    let line = |warning: ConfigError| {
        let hint = warning.hint.unwrap_or_default();
        format!("{}: {} | {hint}", warning.field, warning.message)
    };
    report.warnings.into_iter().map(line).collect()
}

#[test]
fn entries_of_lists_without_effect_are_reported_with_the_line_to_write() {
    let of = |tools: &str| {
        let jobs = format!("version: 1\njobs: [{{name: a, prompt: x, tools: {tools}}}]\n");
        warnings(&[("config.yaml", CONFIG), ("tools.yaml", TOOLS), ("jobs.yaml", &jobs)])
    };
    let found = of("{read: [df, scale]}");
    assert_eq!(
        found,
        [
            "jobs[0].tools.read[1]: `scale` has category write: an entry under `read` does not admit it | write `write: [scale]` under `tools`"
        ]
    );
    let found = of("{approve: [scale, df]}");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("denied and never wait for approval | write `write: [scale]`"));
    let found = of("{read: [], approve: [df]}");
    assert!(found[0].ends_with("write `read: [df]` under `tools`"), "{found:?}");
    for right in ["{write: [scale], approve: [scale]}", "{approve: [df]}", "{read: [df]}"] {
        assert_eq!(of(right), [""; 0], "{right}");
    }
}

#[test]
fn a_command_line_in_cmd_is_answered_with_the_keys_to_write() {
    let of = |tool: &str| {
        let tools =
            format!("version: 1\ntools: [{{name: t, description: d, category: read, {tool}}}]\n");
        let jobs = "version: 1\njobs: []\n";
        warnings(&[("config.yaml", CONFIG), ("tools.yaml", &tools), ("jobs.yaml", jobs)])
    };
    assert!(of("cmd: df -h")[0].contains("write `cmd: df` and `args: [\"-h\"]`"));
    assert!(of("cmd: 'df -h | grep x'")[0].contains("write `cmd: bash` and `args: [\"-c\", "));
    assert!(of("cmd: cat, args: ['|', wc]")[0].contains("tools[0].args[0]: the program gets `|`"));
    assert!(of("cmd: cat, env: {X: ~/x}")[0].contains("with its `~`"));
    assert_eq!(of("cmd: cat, args: [/etc/hostname]"), [""; 0]);
}

// proves SEC-2
#[test]
fn a_quoted_line_does_not_show_a_literal_key() {
    let config = "models: {m: {provider: openai, model: m, api_key: sk-literal-0, colour: 1}}\n";
    let jobs = "version: 1\njobs: []\n";
    let files = [("config.yaml", config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)];
    let rendered = load_texts(&files).report.render();
    assert!(rendered.contains("unknown key `colour`"), "{rendered}");
    assert!(!rendered.contains("sk-literal-0"), "{rendered}");
}

// proves CFG-2
#[test]
fn empty_and_missing_files_are_never_no_jobs() {
    assert!(
        load_texts(&[("tools.yaml", TOOLS), ("jobs.yaml", "")]).report.errors[0]
            .message
            .contains("empty")
    );
    let dir = tempfile::tempdir().unwrap();
    assert!(FileSet::of_directory(dir.path()).unwrap_err().message.contains("neither jobs.yaml"));
    assert!(
        FileSet::of_directory(&dir.path().join("x"))
            .unwrap_err()
            .hint
            .unwrap()
            .contains("dutyd init")
    );
}

#[test]
fn examples_of_a_tool_must_hold() {
    let tools = "version: 1
tools:
  - name: get
    description: d
    category: read
    cmd: 'true'
    args: ['--', '{{x}}']
    parameters: {x: {type: string, enum: [a, b]}}
    examples: {accept: [{x: a}, {x: c}], reject: [{x: '--evil'}, {x: b}]}
";
    let report =
        load_texts(&[("tools.yaml", tools), ("jobs.yaml", "version: 1\njobs: []\n")]).report;
    let messages: Vec<_> = report
        .errors
        .iter()
        .map(|e| (e.field.as_str(), e.message.split(':').next().unwrap()))
        .collect();
    assert_eq!(
        messages,
        [
            ("tools[0].examples.accept[1]", "this example must be accepted but is rejected"),
            ("tools[0].examples.reject[1]", "this example must be rejected but is accepted"),
        ]
    );
}

#[test]
fn secrets_are_never_in_a_report() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("config.yaml"),
        "models: {m: {provider: openai_chat, model: m, api_key: '${K}', base_url: '${K}'}}\n",
    )
    .unwrap();
    std::fs::write(dir.path().join("tools.yaml"), TOOLS).unwrap();
    std::fs::write(dir.path().join("jobs.yaml"), "version: 1\njobs: []\n").unwrap();
    let environment = [("K".to_owned(), "hunter2hunter2".to_owned())].into_iter().collect();
    let set = FileSet::of_directory(dir.path()).unwrap();
    let loaded = load(&set, &environment, Trust::Given, SecretsMode::Resolve, 0, now());
    assert_eq!(loaded.report.errors.len(), 1);
    assert!(!loaded.report.render().contains("hunter2"), "{}", loaded.report.render());
    let loaded = load(&set, &Environment::default(), Trust::Given, SecretsMode::Leave, 0, now());
    assert_eq!(loaded.report.errors, [], "validate --no-secrets must accept unresolved secrets");
}

#[test]
fn the_digest_is_of_the_files_as_they_are_typed() {
    let digest = |config: &str| {
        load_texts(&[
            ("config.yaml", config),
            ("tools.yaml", TOOLS),
            ("jobs.yaml", "version: 1\njobs: []\n"),
        ])
        .config
        .unwrap()
        .digest
    };
    assert_eq!(digest(CONFIG), digest(CONFIG));
    assert_ne!(digest(CONFIG), digest(&format!("{CONFIG}max_concurrent_runs: 2\n")));
}

#[test]
fn a_whole_number_with_a_point_is_a_whole_number() {
    let config = format!("{CONFIG}max_concurrent_runs: 2.0\n");
    let loaded = load_texts(&[
        ("config.yaml", &config),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", "version: 1\njobs: [{name: a, prompt: x, limits: {max_iterations: 5.0}}]\n"),
    ]);
    assert_eq!(loaded.report.render(), "");
    let config = loaded.config.unwrap();
    assert_eq!(
        (
            config.settings.max_concurrent_runs,
            config.models.len(),
            config.jobs["a"].limits.max_iterations
        ),
        (2, 1, 5)
    );
}

#[test]
fn one_mistake_neither_hides_nor_makes_another() {
    let messages = |files: &[(&str, &str)]| -> Vec<String> {
        load_texts(files)
            .report
            .errors
            .iter()
            .map(|e| format!("{}:{} {}", e.line, e.column, e.message))
            .collect()
    };
    let jobs = "version: 1
jobs:
  - 5
  - {name: a, prompt: '{{q}}', model: none}
  - {name: b, prompt: x, tools: {write: [5, nosuch, {tool: scale, arg: {}}]}}
";
    let found = messages(&[("config.yaml", CONFIG), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    for expected in [
        "3:5 expected a mapping",
        "4:23 `{{q}}`",
        "4:39 unknown model",
        "5:42 expected",
        "5:45 unknown tool `nosuch`",
        "5:67 unknown key `arg`",
    ] {
        assert!(
            found.iter().any(|message| message.starts_with(expected)),
            "{expected} in {found:#?}"
        );
    }
    assert_eq!(found.len(), 6, "{found:#?}");
    // An unreadable tools file does not make the tool names in jobs unknown.
    let found = messages(&[
        ("config.yaml", CONFIG),
        ("tools.yaml", "version: 1\ntools: [\n"),
        ("jobs.yaml", "version: 1\njobs: [{name: b, prompt: x, tools: {write: [scale]}}]\n"),
    ]);
    assert_eq!(found.len(), 1, "{found:#?}");
    // An unresolved reference is reported once, without the errors that follow from it.
    let found = messages(&[
        ("config.yaml", "timezone: '${NO_SUCH_ZONE}'\nshutdown_grace: '${NO_SUCH_GRACE}'\n"),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", "version: 1\njobs: []\n"),
    ]);
    assert_eq!(found.len(), 2, "{found:#?}");
    let found = messages(&[
        ("config.yaml", ""),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", "version: 1\njobs: []\n"),
    ]);
    assert_eq!(found, ["1:1 the file is empty"]);
    let found = messages(&[
        ("config.yaml", CONFIG),
        ("tools.yaml", TOOLS),
        (
            "jobs.yaml",
            "version: 1\njobs:\n  - &a {name: a, prompt: x}\n  - {<<: *a, name: b, prompt: y}\n",
        ),
    ]);
    assert_eq!(found.len(), 1, "{found:#?}");
}

#[test]
fn wrong_defaults_are_told_once_and_there() {
    let jobs = "version: 1\ndefaults: {model: none, timezone: Nowhere}\njobs: [{name: a, prompt: x}, {name: b, prompt: x}]\n";
    let report =
        load_texts(&[("config.yaml", CONFIG), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]).report;
    let fields: Vec<&str> = report.errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["defaults.model", "defaults.timezone"]);
}

// proves ENV-5
#[test]
fn variables_that_hijack_programs_are_never_inherited_and_warned_of() {
    let loaded = load_texts(&[
        ("config.yaml", "security: {env_allowlist: [LD_PRELOAD, GIT_SSH_COMMAND, KUBECONFIG]}\n"),
        (
            "tools.yaml",
            "version: 1\ntools:\n  - {name: df, description: d, category: read, cmd: df, env: {PYTHONPATH: /srv}}\n",
        ),
        ("jobs.yaml", "version: 1\njobs:\n  - {name: a, prompt: Look.}\n"),
    ]);
    let told = loaded.report.render();
    assert_eq!(loaded.report.errors.len(), 2, "{told}");
    assert_eq!(told.matches("never inherited").count(), 2, "{told}");
    assert!(told.contains("`PYTHONPATH` changes what the program loads"), "{told}");
}

// proves MCP-2
#[test]
fn conditions_on_tools_of_servers_hold_and_their_names_are_theirs() {
    let config = "mcp_servers: {gh: {command: [sh], category: write}}\nmodels: {m: {provider: ollama, model: x}}\n";
    let jobs = "version: 1\njobs:\n  - name: a\n    prompt: x\n    tools: {write: [{tool: gh__merge, args: {repo: {const: ours}}}]}\n";
    let loaded = load_texts(&[("config.yaml", config), ("tools.yaml", TOOLS), ("jobs.yaml", jobs)]);
    let config_of = loaded.config.unwrap();
    let listed = &config_of.jobs.values().next().unwrap().policy.write[0];
    let conditions = listed.args.as_ref().unwrap();
    let arguments = |repo: &str| serde_json::json!({"repo": repo}).as_object().unwrap().clone();
    let told = |found: &str| Some(format!("`repo` {found}, allowed: \"ours\""));
    assert_eq!(conditions.first_mismatch(&arguments("ours")), None);
    assert_eq!(conditions.first_mismatch(&arguments("theirs")), told("is \"theirs\""));
    assert_eq!(conditions.first_mismatch(&serde_json::Map::new()), told("is missing"));
    let shadow =
        "version: 1\ntools:\n  - {name: gh__merge, description: d, category: read, cmd: df}\n";
    let report =
        load_texts(&[("config.yaml", config), ("tools.yaml", shadow), ("jobs.yaml", jobs)]).report;
    assert!(
        report.render().contains("is reserved for tools of the MCP server `gh`"),
        "{}",
        report.render()
    );
}

/// Returns the warnings about one model.
fn warnings_of_model(model: &str) -> Vec<String> {
    let config = format!("models: {{m: {{{model}}}}}\n");
    let files = [
        ("config.yaml", config.as_str()),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", "version: 1\njobs: []\n"),
    ];
    let is_of_key = |warning: &String| warning.starts_with("models.m.api_key");
    warnings(&files).into_iter().filter(|warning| !is_of_key(warning)).collect()
}

#[test]
fn what_a_provider_refuses_of_a_model_is_a_warning() {
    let check = |model: &str, expected: &[&str]| {
        let warnings = warnings_of_model(model);
        let fits = warnings.len() == expected.len()
            && warnings.iter().zip(expected).all(|(warning, part)| warning.contains(part));
        assert!(fits, "{model}: {warnings:#?}");
    };
    for model in ["claude-opus-4-8", "claude-opus-5", "claude-sonnet-5"] {
        let model =
            format!("provider: anthropic, model: {model}, api_key: k123456, temperature: 0.2");
        check(&model, &["refuses `temperature`; dutyd repeats"]);
    }
    check(
        "provider: openai, model: gpt-5.5, api_key: k123456, temperature: 0.2",
        &["while it reasons"],
    );
    check(
        "provider: openai, model: gpt-5.5, api_key: k123456, temperature: 0.2, reasoning_effort: none",
        &[],
    );
    check("provider: openai, model: gpt-5.1, api_key: k123456, temperature: 0.5", &[]);
    check(
        "provider: anthropic, model: claude-opsu-9, api_key: k123456",
        &["`claude-opsu-9` is not in the catalogue of"],
    );
    check(
        "provider: anthropic, model: claude-opus-4-1, api_key: k123456, max_output_tokens: 500000",
        &["has not served `claude-opus-4-1` since 2026-08-05", "writes at most 32000 tokens"],
    );
    check("provider: openai_chat, model: anything, base_url: http://127.0.0.1:1/v1", &[]);
    check("provider: ollama, model: anything", &[]);
}

#[test]
fn a_file_of_models_that_cannot_be_right_is_an_error_with_its_place() {
    let check = |text: &str, expected: &str| {
        let files = [
            ("models.d/own.json", text),
            ("tools.yaml", TOOLS),
            ("jobs.yaml", "version: 1\njobs: []\n"),
        ];
        let report = load_texts(&files).report;
        match expected {
            "" => assert!(report.errors.is_empty(), "{text}: {}", report.render()),
            _ => {
                let error = report.errors.iter().find(|error| error.message.contains(expected));
                let error = error.unwrap_or_else(|| panic!("{text}: {}", report.render()));
                assert!(error.file.ends_with("models.d/own.json") && error.line > 0, "{error:?}");
            }
        }
    };
    let file = |models: &str| {
        format!("{{\n\t\"version\": 1, \"as_of\": \"2026-11-20\",\n\t\"models\": [{models}]}}")
    };
    let row = |id: &str, more: &str| {
        format!(
            "{{\"provider\": \"own\", \"id\": \"{id}\", \"as_of\": \"2026-11-20\", \"source\": \"s\"{more}}}"
        )
    };
    check(&file(&row("m-1", "")), "");
    check("{\"version\": 1", "unclosed bracket");
    check("{\"version\": 2, \"as_of\": \"2026-11-20\"}", "maximum of 1");
    check(&file(&row("m-1", ", \"prices\": [{\"input\": -1, \"output\": 1}]")), "minimum of 0");
    check(&file(&row("m-1", ", \"traits\": {\"context_window\": 0}")), "minimum of 256");
    check(&file(&format!("{}, {}", row("m-1", ""), row("m-1", ""))), "a second row for `m-1`");
    let alias = row("m-2", ", \"aliases\": [\"m-1\"]");
    check(&file(&format!("{}, {alias}", row("m-1", ""))), "names the same model");
    check(&file(&row("m-1", ", \"price\": 1")), "unknown key `price`");
    check(&file(&row("m-1", ", \"shutdown\": \"2026-02-31\"")), "is not a \"date\"");
    let twice = ", \"prices\": [{\"input\": 1, \"output\": 1}, {\"input\": 2, \"output\": 1}]";
    check(&file(&row("m-1", twice)), "two prices apply on the same day");
}

#[test]
fn a_model_of_the_operator_is_used_and_a_price_may_be_that_of_another_model() {
    let models = r#"{"version": 1, "as_of": "2026-11-20", "models": [{"provider": "own", "id": "tuned-1",
        "traits": {"context_window": 5000, "output_limit": 1000}, "prices": [{"input": 1, "output": 2}],
        "as_of": "2026-11-20", "source": "contract"}]}"#;
    let config = "models:
  m: {provider: openai_chat, model: tuned-1, base_url: http://127.0.0.1:1/v1}
  n: {provider: openai_chat, model: x, base_url: http://127.0.0.1:1/v1, price: {like: tuned-1}}
  o: {provider: openai_chat, model: x, base_url: http://127.0.0.1:1/v1, price: {input: 1, output: 2, long: {from: 1000, input: 2, output: 4}}}
";
    let files = [
        ("models.d/own.json", models),
        ("config.yaml", config),
        ("tools.yaml", TOOLS),
        ("jobs.yaml", "version: 1\njobs: []\n"),
    ];
    let loaded = load_texts(&files);
    let config = loaded.config.unwrap_or_else(|| panic!("{}", loaded.report.render()));
    assert_eq!(config.models["m"].context_window(), 5000);
    let price = |name: &str| config.models[name].price(now()).unwrap();
    assert_eq!(price("m"), price("n"));
    assert!(price("o").rank() == (4.0, 2.0));
    let wrong =
        "models: {m: {provider: openai, model: x, api_key: k, price: {like: claude-opsu-5-5}}}\n";
    let files =
        [("config.yaml", wrong), ("tools.yaml", TOOLS), ("jobs.yaml", "version: 1\njobs: []\n")];
    let report = load_texts(&files).report;
    assert!(
        report.errors[0].message.contains("did you mean `claude-opus-5-5`"),
        "{}",
        report.render()
    );
}

/// A job with a cost limit and a current model of the catalogue is taken without a warning.
#[test]
fn each_current_model_of_the_catalogue_is_taken_without_a_warning() {
    let file = include_str!("../../catalogue/catalogue.json");
    let file: serde_json::Value = serde_json::from_str(file).unwrap();
    let hosts: std::collections::BTreeMap<&str, &str> = file["providers"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| Some((row["name"].as_str()?, row["hosts"][0].as_str()?)))
        .collect();
    let at = "2026-11-25T12:00:00Z".parse().unwrap();
    let mut taken = Vec::new();
    for row in file["models"].as_array().unwrap() {
        let (provider, id) = (row["provider"].as_str().unwrap(), row["id"].as_str().unwrap());
        let is_ending = row["shutdown"].as_str().is_some_and(|day| day < "2027-01-25");
        let Some(host) = hosts.get(provider).filter(|_| !is_ending && row.get("prices").is_some())
        else {
            continue;
        };
        let server = match provider {
            "anthropic" | "openai" | "gemini" => format!("provider: {provider}"),
            _ => format!("provider: openai_chat, base_url: 'https://{host}/v1'"),
        };
        let config = format!("models: {{m: {{{server}, model: '{id}', api_key: '${{KEY}}'}}}}\n");
        let files = [
            ("config.yaml", config.as_str()),
            ("tools.yaml", TOOLS),
            ("jobs.yaml", "version: 1\njobs: [{name: a, prompt: x, limits: {max_cost_usd: 1}}]\n"),
        ];
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let set = FileSet::of_directory(dir.path()).unwrap();
        let environment = environment().with("KEY", Some("k123456"));
        let loaded = load(&set, &environment, Trust::Given, SecretsMode::Resolve, 0, at);
        let report = loaded.report;
        assert!(
            report.errors.is_empty() && report.warnings.is_empty(),
            "{id}: {}",
            report.render()
        );
        taken.push(id);
    }
    assert!(taken.len() > 80, "{}", taken.join(", "));
    println!("{}", taken.join(", "));
}
