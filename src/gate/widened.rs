//! Finds the jobs that gained rights through a change of the configuration. A job gained rights if
//! some call that the old configuration refused could pass now.

use std::path::{Path, PathBuf};

use crate::config::{
    Autonomy, Builtin, Config, Job, Listed, MCP_SEPARATOR, Mode, Policy, ReadPolicy, SandboxMode,
};
use crate::domain::{Category, ToolName};

/// Returns the names of the jobs of `new` that gained rights, sorted. If this cannot be determined, for
/// example because the command line of a tool changed, the list contains the job.
#[must_use]
pub fn jobs_with_more_rights(old: &Config, new: &Config) -> Vec<String> {
    let is_wider = has_wider_settings(old, new);
    let jobs = new.jobs.iter().filter(|(name, job)| match old.jobs.get(name.as_str()) {
        // The old configuration refused each of its calls.
        None => true,
        Some(before) => is_wider || is_wider_job(before, job) || has_other_tools(old, new, job),
    });
    jobs.map(|(name, _)| name.to_string()).collect()
}

/// Tells whether the settings of all jobs allow more.
fn has_wider_settings(old: &Config, new: &Config) -> bool {
    let (before, after) = (&old.settings.security, &new.settings.security);
    let has_lost =
        |before: &[String], after: &[String]| !before.iter().all(|of| after.contains(of));
    !lie_within(&after.allowed_paths, &before.allowed_paths)
        || !lie_within(&before.denied_paths, &after.denied_paths)
        || !lie_within(&old.secret_files, &new.secret_files)
        || !after.allowed_domains.iter().all(|host| before.allowed_domains.contains(host))
        || has_lost(&before.blocked_commands, &after.blocked_commands)
        || has_lost(&before.destructive_commands, &after.destructive_commands)
        || !new.settings.env_allowlist.is_subset(&old.settings.env_allowlist)
}

/// Tells whether each of `paths` lies in one of `trees`.
fn lie_within(paths: &[PathBuf], trees: &[PathBuf]) -> bool {
    paths.iter().all(|path| trees.iter().any(|tree| path.starts_with(tree)))
}

fn is_wider_job(old: &Job, new: &Job) -> bool {
    let openness = |mode: SandboxMode| match mode {
        SandboxMode::Enforce => 0,
        SandboxMode::BestEffort => 1,
        SandboxMode::Off => 2,
    };
    let paths = |job: &Job| -> Vec<PathBuf> {
        job.allowed_paths.iter().chain(&job.working_dir).cloned().collect()
    };
    // A job without `working_dir` has a directory of its own.
    let has_other_directory = new.working_dir != old.working_dir
        && !new
            .working_dir
            .as_deref()
            .is_some_and(|path: &Path| old.allowed_paths.iter().any(|tree| path.starts_with(tree)));
    is_wider_policy(&old.policy, &new.policy)
        || has_other_directory
        || !lie_within(&paths(new), &paths(old))
        || !new.allowed_domains.iter().all(|host| old.allowed_domains.contains(host))
        || (new.network && !old.network)
        || openness(new.sandbox) > openness(old.sandbox)
        || new.environment != old.environment
        || (new.mode == Mode::Act && old.mode == Mode::Plan)
}

fn is_wider_policy(old: &Policy, new: &Policy) -> bool {
    let freedom = |autonomy: Autonomy| match autonomy {
        Autonomy::ReadOnly => 0,
        Autonomy::Supervised => 1,
        Autonomy::Full => 2,
    };
    let reads_more = match (&old.read, &new.read) {
        (ReadPolicy::All, _) => false,
        (ReadPolicy::Only(_), ReadPolicy::All) => true,
        (ReadPolicy::Only(before), ReadPolicy::Only(after)) => !after.is_subset(before),
    };
    reads_more
        || freedom(new.autonomy) > freedom(old.autonomy)
        || allows_more(&old.write, &new.write)
        || allows_more(&old.admin, &new.admin)
        || !old.approve.is_subset(&new.approve)
        || !old.deny.is_subset(&new.deny)
        || old.narrowed != new.narrowed
}

/// Tells whether a list of write or admin tools has an entry that the old list does not contain. An
/// entry with conditions is contained in one without.
fn allows_more(old: &[Listed], new: &[Listed]) -> bool {
    let contains = |old: &Listed, new: &Listed| {
        let conditions = |of: &Listed| of.args.as_ref().map(|args| args.schemas().clone());
        old.tool == new.tool && (old.args.is_none() || conditions(old) == conditions(new))
    };
    !new.iter().all(|entry| old.iter().any(|before| contains(before, entry)))
}

/// Tells whether a tool that the job may call is new or was declared differently.
fn has_other_tools(old: &Config, new: &Config, job: &Job) -> bool {
    let named = job.policy.named();
    let reads_all = job.policy.read == ReadPolicy::All;
    let tools = new.tools.iter().filter(|(name, tool)| {
        named.contains(name.as_str()) || (reads_all && tool.category == Category::Read)
    });
    let mut tools = tools.map(|(name, tool)| (old.tools.get(name), tool));
    let servers = new.mcp_servers.iter().filter(|(server, _)| {
        let prefix = format!("{server}{MCP_SEPARATOR}");
        reads_all || named.iter().any(|name| name.starts_with(&prefix))
    });
    let mut servers = servers.map(|(name, server)| (old.mcp_servers.get(name), server));
    // A declared tool hid the built-in tool of the same name.
    let may_read = |name: &str| {
        reads_all && Builtin::find(name).is_some_and(|tool| tool.category == Category::Read)
    };
    let mut gone = old.tools.keys().map(ToolName::as_str);
    let uncovers = gone.any(|name| {
        !new.tools.contains_key(name)
            && (may_read(name) || named.contains(name) && Builtin::find(name).is_some())
    });
    let searches = reads_all || named.contains("web_search");
    let service =
        |config: &Config| config.settings.web_search.as_ref().map(|of| of.base_url.clone());
    let has_other_search = service(new).is_some() && service(new) != service(old);
    tools.any(|(before, tool)| before.is_none_or(|before| !before.has_rights_of(tool)))
        || uncovers
        || searches && has_other_search
        || servers.any(|(before, server)| before != Some(server))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, FileSet, SecretsMode, Trust, load};

    const CONFIG: &str = "models: {m: {provider: scripted, script: s.yaml}}\n";
    const TOOLS: &str = "version: 1
tools:
  - {name: look, description: Looks, category: read, cmd: ls, args: ['{{path}}'], parameters: {path: {type: string}}}
  - {name: scale, description: Scales, category: write, cmd: 'true', args: ['{{n}}'], parameters: {n: {type: integer}}}
";

    fn config(settings: &str, tools: &str, jobs: &str) -> Config {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
        write("config.yaml", &format!("{CONFIG}{settings}"));
        write("tools.yaml", tools);
        write("s.yaml", "steps: [{say: done}]\n");
        write("jobs.yaml", &format!("version: 1\njobs:\n{jobs}"));
        let set = FileSet::of_directory(home.path()).unwrap();
        let (trust, secrets) = (Trust::Given, SecretsMode::Resolve);
        let loaded = load(&set, &Environment::default(), trust, secrets, 0, chrono::Utc::now());
        loaded.config.unwrap_or_else(|| panic!("{}", loaded.report.summary()))
    }

    fn job(keys: &str) -> String {
        format!("  - {{name: j, prompt: x, {keys}}}\n")
    }

    /// Tells whether the job gained rights from the first to the second, and the other way round.
    fn changed(old: (&str, &str, &str), new: (&str, &str, &str)) -> (bool, bool) {
        let load =
            |(settings, tools, keys): (&str, &str, &str)| config(settings, tools, &job(keys));
        let (old, new) = (load(old), load(new));
        assert!(
            jobs_with_more_rights(&old, &old).is_empty()
                && jobs_with_more_rights(&new, &new).is_empty()
        );
        (
            !jobs_with_more_rights(&old, &new).is_empty(),
            !jobs_with_more_rights(&new, &old).is_empty(),
        )
    }

    #[test]
    fn a_job_with_more_rights_is_named_and_one_with_fewer_is_not() {
        for (less, more) in [
            ("tools: {read: [look]}", "tools: {read: all}"),
            ("tools: {read: []}", "tools: {read: [look]}"),
            ("tools: {}", "tools: {write: [scale]}"),
            ("tools: {write: [{tool: scale, args: {n: {maximum: 3}}}]}", "tools: {write: [scale]}"),
            ("tools: {write: [scale], approve: [scale]}", "tools: {write: [scale]}"),
            ("tools: {deny: [look]}", "tools: {}"),
            ("autonomy: read_only", "autonomy: supervised"),
            ("autonomy: supervised", "autonomy: full"),
            ("network: false", "network: true"),
            ("sandbox: enforce", "sandbox: best_effort"),
            ("sandbox: best_effort", "sandbox: off"),
            ("mode: plan", "mode: act"),
            ("allowed_paths: []", "allowed_paths: [/srv]"),
            ("allowed_paths: [/srv/a]", "allowed_paths: [/srv]"),
            ("allowed_domains: []", "allowed_domains: [example.org]"),
        ] {
            let found = changed(("", TOOLS, less), ("", TOOLS, more));
            assert_eq!(found, (true, false), "{less} -> {more}");
        }
    }

    #[test]
    fn settings_and_tools_count_for_the_jobs_that_they_apply_to() {
        let keys = "tools: {write: [scale]}";
        for (less, more) in [
            ("security: {allowed_paths: [/srv/a]}\n", "security: {allowed_paths: [/srv]}\n"),
            ("security: {denied_paths: [/srv]}\n", ""),
            ("security: {blocked_commands: [reboot]}\n", ""),
            ("", "security: {env_allowlist: [KUBECONFIG]}\n"),
        ] {
            let found = changed((less, TOOLS, keys), (more, TOOLS, keys));
            assert_eq!(found, (true, false), "{less} -> {more}");
        }
        let search = "web_search: {base_url: 'https://search.example.org', api_key: k}\n";
        let found = changed(("", TOOLS, "network: true"), (search, TOOLS, "network: true"));
        assert_eq!(found, (true, false), "web_search");
        // Without the declared tool, the built-in one of the same name is there.
        let hidden = format!(
            "{TOOLS}  - {{name: bash, description: Nothing, category: write, cmd: 'true', override: true}}\n"
        );
        let keys = "tools: {write: [bash]}";
        assert!(changed(("", &hidden, keys), ("", TOOLS, keys)).0, "bash");
        let keys = "tools: {write: [scale]}";
        for (from, to) in [
            ("cmd: 'true'", "cmd: 'false'"),
            ("args: ['{{n}}']", "args: ['--force', '{{n}}']"),
            ("n: {type: integer}", "n: {type: integer, maximum: 3}"),
        ] {
            let other = TOOLS.replace(from, to);
            assert_ne!(other, TOOLS);
            assert_eq!(changed(("", TOOLS, keys), ("", &other, keys)), (true, true), "{to}");
            assert_eq!(
                changed(("", TOOLS, "tools: {}"), ("", &other, "tools: {}")),
                (false, false)
            );
        }
        let described = TOOLS.replace("Scales", "Scales it");
        assert_eq!(changed(("", TOOLS, keys), ("", &described, keys)), (false, false));
        let (old, new) =
            (config("", TOOLS, &job("")), config("", TOOLS, "  - {name: k, prompt: x}\n"));
        assert_eq!(jobs_with_more_rights(&old, &new), ["k"], "a new job");
    }
}
