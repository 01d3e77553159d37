//! The rules of the gate, in the order in which they apply.
//!
//! *Source*: `docs/design/gate.md`, "Order of the rules": 1 deny of the job, 2 effective category,
//! 3 autonomy, 4 blocked commands and closed paths, 5 category and arguments, 6 skills, 7 paths and
//! domains, 8 rate and budgets.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::bash::{Classification, CommandRules, Severity};
use super::domain::DomainRules;
use super::path::{Access, PathRefusal, PathRules, shown};
use crate::argv::ArgumentConditions;
use crate::config::{Autonomy, Listed, Policy, Rate, ReadPolicy};
use crate::domain::{Category, DecisionKind};

/// The rules of one run, frozen at its start.
#[derive(Debug, Clone)]
pub struct GateRules {
    pub job: String,
    /// Whether a person is attached. The gate then allows unlisted write calls and asks about
    /// unlisted admin calls.
    pub has_person: bool,
    /// The tools that the job may use, and under which conditions.
    pub policy: Policy,
    /// The trees that the run may access.
    pub paths: PathRules,
    /// Blocked and destructive commands that the operator adds to the built-in lists.
    pub commands: CommandRules,
    /// The hosts from which the run may fetch.
    pub domains: DomainRules,
    /// The rate limit of calls; `None` is unlimited.
    pub rate: Option<Rate>,
    /// Tool calls per run, inclusive; the gate denies the next one (rule `budget`).
    pub max_tool_calls: u64,
    /// Distinct files that the run may change, inclusive.
    pub max_files_modified: u64,
    /// Lines that the run may change, inclusive.
    pub max_lines_changed: u64,
}

/// Something that a call accesses, as named in its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// A file or directory.
    File {
        /// The path as written in the arguments; untrusted.
        path: String,
        /// How the call accesses it.
        access: Access,
    },
    /// A command line for bash; untrusted.
    Command(String),
    /// A URL; untrusted.
    Url(String),
}

impl Resource {
    /// Returns a [`Resource::File`] for `path`.
    #[must_use]
    pub fn file(path: &str, access: Access) -> Self {
        Self::File { path: path.to_owned(), access }
    }
}

/// The usage of a run, counted against its budgets and its rate limit.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spent {
    /// Calls that were not denied.
    pub calls: u64,
    /// Files that the run changed.
    pub files: BTreeSet<PathBuf>,
    /// Lines that the run changed.
    pub lines: u64,
    bucket: Bucket,
}

/// The token bucket of the rate limit. It holds at most `Rate::burst` calls.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Bucket {
    /// Number of calls missing from a full bucket.
    lacking: f64,
    /// The time of the last refill, since the start of the run.
    looked_at: Duration,
}

impl Spent {
    /// Counts a call that was not denied, with the files that it may change and an estimate of the
    /// changed lines.
    pub fn count(&mut self, rules: &GateRules, resources: &[Resource], lines: u64) {
        self.count_call();
        self.lines += lines;
        self.files.extend(rules.written(resources));
    }

    /// Counts a call, but not its changes: the caller counts those when the call ends.
    pub fn count_call(&mut self) {
        self.calls += 1;
        self.bucket.lacking += 1.0;
    }

    /// Refills the bucket for the time since the last refill; `now` counts from the start of the
    /// run.
    pub fn refill(&mut self, rate: Option<Rate>, now: Duration) {
        let passed = now.saturating_sub(self.bucket.looked_at).as_secs_f64();
        let brought = rate.map_or(0.0, |rate| passed * per_second(rate));
        self.bucket = Bucket { lacking: (self.bucket.lacking - brought).max(0.0), looked_at: now };
    }
}

#[expect(clippy::cast_precision_loss, reason = "at most 100,000")]
fn per_second(rate: Rate) -> f64 {
    rate.per_minute as f64 / 60.0
}

impl GateRules {
    /// Returns the absolute paths that a call would write; skips paths that are not valid.
    pub fn written<'a>(&'a self, resources: &'a [Resource]) -> impl Iterator<Item = PathBuf> + 'a {
        resources.iter().filter_map(|resource| match resource {
            Resource::File { path, access: Access::Write } => self.paths.absolute(path).ok(),
            _ => None,
        })
    }
}

impl GateRules {
    /// Returns the absolute paths of the files that a call names as written, also those that a
    /// command line names.
    #[must_use]
    pub fn named(&self, resources: &[Resource]) -> BTreeSet<PathBuf> {
        let mut named: BTreeSet<PathBuf> = self.written(resources).collect();
        for resource in resources {
            if let Resource::Command(command) = resource {
                let writes = self.commands.classify(command).writes;
                named.extend(writes.iter().map(|path| self.paths.followed(path)));
            }
        }
        named
    }
}

/// The facts about a call that the gate judges.
#[derive(Debug, Clone, Copy)]
pub struct CallFacts<'a> {
    pub tool: &'a str,
    pub category: Category,
    /// Sets of conditions on the arguments; a call that meets every condition of one set is an
    /// admin call.
    pub destructive_when: &'a [ArgumentConditions],
    pub resources: &'a [Resource],
    /// Estimate of the number of lines that the call changes in files, from its arguments alone; 0
    /// for a tool whose changes are unknown, such as bash.
    pub lines: u64,
    /// The usage of the run so far.
    pub spent: &'a Spent,
}

/// The gate's decision about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub kind: DecisionKind,
    /// The name of the rule that decided; `allowed` if no rule denies or asks.
    pub rule: &'static str,
    /// The effective category of the call.
    pub category: Category,
    /// Why, in a sentence for people and for the model.
    pub reason: String,
}

/// The name of a rule that denies or asks, and its reason.
type Refusal = (&'static str, String);

/// Decides a call: applies the rules in order to its facts and arguments.
#[must_use]
pub fn decide(rules: &GateRules, facts: CallFacts<'_>, arguments: &Map<String, Value>) -> Decision {
    // Parse each command only once.
    let commands: Vec<Classification> = facts
        .resources
        .iter()
        .filter_map(|resource| match resource {
            Resource::Command(command) => Some(rules.commands.classify(command)),
            Resource::File { .. } | Resource::Url(_) => None,
        })
        .collect();
    let (category, raised) = effective_category(rules, facts, arguments, &commands);
    match refusal(rules, facts, arguments, category, &commands) {
        Err((rule, reason)) => {
            let why = raised.filter(|why| *why != reason);
            let why = why.map(|why| format!("; {why}")).unwrap_or_default();
            Decision { kind: DecisionKind::Deny, rule, category, reason: format!("{reason}{why}") }
        }
        Ok(Some((rule, reason))) => Decision { kind: DecisionKind::Ask, rule, category, reason },
        Ok(None) => Decision {
            kind: DecisionKind::Allow,
            rule: "allowed",
            category,
            reason: format!(
                "the job `{}` may use `{}` with these arguments",
                rules.job, facts.tool
            ),
        },
    }
}

/// Applies the rules in order. Returns the rule that requires a person's approval, if one does.
///
/// *Errors*: the first rule that denies.
fn refusal(
    rules: &GateRules,
    facts: CallFacts<'_>,
    arguments: &Map<String, Value>,
    category: Category,
    commands: &[Classification],
) -> Result<Option<Refusal>, Refusal> {
    let GateRules { job, policy, .. } = rules;
    let tool = facts.tool;
    if policy.deny.contains(tool) {
        return Err(("job_deny", format!("the job `{job}` denies `{tool}`")));
    }
    if policy.autonomy == Autonomy::ReadOnly && category != Category::Read {
        let reason = format!("the job `{job}` is read_only, but this call has category {category}");
        return Err(("autonomy", reason));
    }
    let paths = path_refusals(rules, facts);
    if let Some(reason) = commands.iter().find_map(|found| found.blocked.clone()) {
        return Err(("blocked_command", reason));
    }
    let closed = paths.iter().find(|refusal| matches!(refusal, PathRefusal::Denied(_)));
    if let Some(refusal) = closed {
        return Err((refusal.rule(), refusal.to_string()));
    }
    let mut ask = None;
    match category_rule(job, policy, tool, category, arguments) {
        Ok(()) if policy.approve.contains(tool) => {
            ask = Some(("approve", format!("the job `{job}` requires approval for `{tool}`")));
        }
        Ok(()) => {}
        Err(("category", _)) if rules.has_person && category == Category::Write => {
            if policy.approve.contains(tool) {
                ask = Some(("approve", format!("the job `{job}` requires approval for `{tool}`")));
            }
        }
        Err(("category", reason)) if rules.has_person && category == Category::Admin => {
            ask = Some(("category", reason));
        }
        Err(refusal) => return Err(refusal),
    }
    if let Some(skill) = policy.excluded_by_skill(tool) {
        let reason =
            format!("the active skill `{skill}` of the job `{job}` does not allow `{tool}`");
        return Err(("skill", reason));
    }
    if let Some(refusal) = paths.first() {
        return Err((refusal.rule(), refusal.to_string()));
    }
    for resource in facts.resources {
        if let Resource::Url(url) = resource {
            rules.domains.target(url).map_err(|refusal| ("domain", refusal.to_string()))?;
        }
    }
    rate(rules, facts.spent)?;
    budget(rules, facts)?;
    Ok(ask)
}

fn path_refusals(rules: &GateRules, facts: CallFacts<'_>) -> Vec<PathRefusal> {
    let files = facts.resources.iter().filter_map(|resource| match resource {
        Resource::File { path, access } => Some((path, *access)),
        Resource::Command(_) | Resource::Url(_) => None,
    });
    files
        .filter_map(|(path, access)| {
            let judged = rules.paths.absolute(path);
            judged.and_then(|path| rules.paths.judge(&path, access)).err()
        })
        .collect()
}

fn rate(rules: &GateRules, spent: &Spent) -> Result<(), Refusal> {
    let Some(rate) = rules.rate else { return Ok(()) };
    let Rate { per_minute, burst } = rate;
    #[expect(clippy::cast_precision_loss, reason = "at most 100,000")]
    let over = spent.bucket.lacking + 1.0 - burst as f64;
    if over <= 0.0 {
        return Ok(());
    }
    let wait = (over / per_second(rate)).max(0.1);
    Err((
        "rate",
        format!(
            "the rate limit is {burst} calls at once, then {per_minute} per minute; retry in {wait:.1} s"
        ),
    ))
}

fn budget(rules: &GateRules, facts: CallFacts<'_>) -> Result<(), Refusal> {
    let refused = |reason| Err(("budget", reason));
    let Spent { calls, files, lines, .. } = facts.spent;
    let most = rules.max_tool_calls;
    if *calls >= most {
        return refused(format!("the run has made {calls} of {most} tool calls"));
    }
    let more: BTreeSet<PathBuf> =
        rules.written(facts.resources).filter(|path| !files.contains(path)).collect();
    let (changed, most) = (files.len() as u64, rules.max_files_modified);
    if !more.is_empty() && changed + more.len() as u64 > most {
        return refused(format!(
            "the run has changed {changed} of {most} files, and this call would change {} more",
            more.len()
        ));
    }
    let most = rules.max_lines_changed;
    if facts.lines > 0 && lines.saturating_add(facts.lines) > most {
        return refused(format!(
            "the run has changed {lines} of {most} lines, and this call would change {} more",
            facts.lines
        ));
    }
    Ok(())
}

/// Tells whether a run with this policy could ever use the tool. The model sees only such tools.
#[must_use]
pub fn is_visible(policy: &Policy, tool: &str, category: Category, has_person: bool) -> bool {
    !policy.deny.contains(tool)
        && policy.excluded_by_skill(tool).is_none()
        && match category {
            Category::Read => match &policy.read {
                ReadPolicy::All => true,
                ReadPolicy::Only(names) => names.contains(tool),
            },
            _ if policy.autonomy == Autonomy::ReadOnly => false,
            _ if has_person => true,
            Category::Write => is_listed(&policy.write, tool) || is_listed(&policy.admin, tool),
            Category::Admin => is_listed(&policy.admin, tool),
        }
}

fn is_listed(list: &[Listed], tool: &str) -> bool {
    list.iter().any(|entry| entry.tool.as_str() == tool)
}

/// Returns the effective category of a call, never below the tool's own, and why the arguments or
/// resources make the call an admin call, if they do.
fn effective_category(
    rules: &GateRules,
    facts: CallFacts<'_>,
    arguments: &Map<String, Value>,
    commands: &[Classification],
) -> (Category, Option<String>) {
    let by_arguments = || {
        let mut conditions = facts.destructive_when.iter();
        conditions
            .any(|conditions| conditions.first_mismatch(arguments).is_none())
            .then(|| "these arguments make it an admin call".to_owned())
    };
    let by_resource = |resource: &Resource| match resource {
        Resource::File { path, access: Access::Write } => {
            let path = rules.paths.absolute(path).ok()?;
            let is_system = rules.paths.is_system(&path);
            is_system.then(|| format!("`{}` is a system path", path.display()))
        }
        _ => None,
    };
    let by_command = || {
        let mut destructive =
            commands.iter().filter(|found| found.severity == Severity::Destructive);
        destructive.find_map(|found| found.reason.clone())
    };
    let by_write = || {
        let mut written = commands.iter().flat_map(|found| &found.writes);
        let path = written.find_map(|path| rules.paths.system_target(path))?;
        Some(format!("`{}` is a system path", shown(path.as_os_str())))
    };
    let raised = by_arguments().or_else(by_command).or_else(by_write);
    match raised.or_else(|| facts.resources.iter().find_map(by_resource)) {
        Some(why) => (Category::Admin, Some(why)),
        None => (facts.category, None),
    }
}

fn category_rule(
    job: &str,
    policy: &Policy,
    tool: &str,
    category: Category,
    arguments: &Map<String, Value>,
) -> Result<(), (&'static str, String)> {
    let list = match category {
        Category::Read => {
            return match &policy.read {
                ReadPolicy::Only(names) if !names.contains(tool) => Err((
                    "category",
                    format!("the read tool `{tool}` is not listed under `read` of the job `{job}`"),
                )),
                _ => Ok(()),
            };
        }
        Category::Write => &policy.write,
        Category::Admin => &policy.admin,
    };
    let mut entries = list.iter().filter(|entry| entry.tool.as_str() == tool).peekable();
    if entries.peek().is_none() {
        return Err((
            "category",
            format!(
                "this call has category {category}, but the job `{job}` does not list `{tool}` under `{category}`"
            ),
        ));
    }
    let mut mismatches = Vec::new();
    for entry in entries {
        match entry.args.as_ref().map(|conditions| conditions.first_mismatch(arguments)) {
            None | Some(None) => return Ok(()),
            Some(Some(mismatch)) => mismatches.push(mismatch),
        }
    }
    let mismatches = mismatches.join("; or ");
    Err((
        "arguments",
        format!("the job `{job}` lists `{tool}` only for certain arguments: {mismatches}"),
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::argv::{CommandLine, Declaration};
    use crate::config::SkillTools;
    use crate::domain::ToolName;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    fn conditions(value: Value) -> ArgumentConditions {
        let declaration = Declaration {
            args: vec!["--".into(), "{{x}}".into(), "{{n}}".into()],
            parameters: object(json!({"x": {"type": "string"}, "n": {"type": "integer"}})),
            ..Declaration::default()
        };
        ArgumentConditions::compile(
            &object(value),
            Some(CommandLine::compile(&declaration).unwrap().parameters()),
        )
        .unwrap()
    }

    fn listed(names: &[&str]) -> Vec<Listed> {
        names
            .iter()
            .map(|name| Listed { tool: ToolName::parse(name).unwrap(), args: None })
            .collect()
    }

    fn policy() -> Policy {
        Policy {
            autonomy: Autonomy::Supervised,
            read: ReadPolicy::All,
            write: listed(&["scale"]),
            admin: listed(&["drain"]),
            approve: Default::default(),
            deny: BTreeSet::new(),
            narrowed: Vec::new(),
        }
    }

    fn rules(policy: &Policy) -> GateRules {
        GateRules {
            job: "j".to_owned(),
            has_person: false,
            policy: policy.clone(),
            paths: PathRules {
                working_dir: "/app".into(),
                writable: vec!["/app".into(), "/etc/app".into()],
                denied: vec!["/app/keys".into()],
                ..PathRules::default()
            },
            commands: CommandRules::default(),
            domains: Default::default(),
            rate: None,
            max_tool_calls: 10,
            max_files_modified: 2,
            max_lines_changed: 100,
        }
    }

    static NOTHING: Spent = Spent {
        calls: 0,
        files: BTreeSet::new(),
        lines: 0,
        bucket: Bucket { lacking: 0.0, looked_at: Duration::ZERO },
    };

    fn facts(tool: &str, category: Category) -> CallFacts<'_> {
        CallFacts {
            tool,
            category,
            destructive_when: &[],
            resources: &[],
            lines: 0,
            spent: &NOTHING,
        }
    }

    #[track_caller]
    fn check(policy: &Policy, facts: CallFacts<'_>, arguments: Value, expected: (&str, Category)) {
        let decision = decide(&rules(policy), facts, &object(arguments));
        assert_eq!((decision.rule, decision.category), expected, "{decision:?}");
        assert_eq!(decision.kind == DecisionKind::Allow, decision.rule == "allowed");
        assert_ne!(decision.kind, DecisionKind::Ask);
    }

    // proves POL-1, POL-2
    // conforms 000-6.1c, 000-6.1d, 000-6.1e, 000-S6.14
    #[test]
    fn what_is_not_listed_is_refused() {
        check(&policy(), facts("df", Category::Read), json!({}), ("allowed", Category::Read));
        check(&policy(), facts("scale", Category::Write), json!({}), ("allowed", Category::Write));
        check(&policy(), facts("apply", Category::Write), json!({}), ("category", Category::Write));
        check(&policy(), facts("drain", Category::Admin), json!({}), ("allowed", Category::Admin));
        check(
            &policy(),
            facts("reboot", Category::Admin),
            json!({}),
            ("category", Category::Admin),
        );
        let mut wild = policy();
        wild.admin = listed(&["admin", "all", "drai", "drain_all"]);
        check(&wild, facts("drain", Category::Admin), json!({}), ("category", Category::Admin));
        let mut some = policy();
        some.read = ReadPolicy::Only(["uptime".to_owned()].into());
        check(&some, facts("df", Category::Read), json!({}), ("category", Category::Read));
    }

    // proves POL-5
    #[test]
    fn the_first_rule_that_denies_decides() {
        let mut denied = policy();
        denied.deny = ["scale".to_owned(), "df".to_owned()].into();
        denied.autonomy = Autonomy::ReadOnly;
        check(&denied, facts("scale", Category::Write), json!({}), ("job_deny", Category::Write));
        check(&denied, facts("df", Category::Read), json!({}), ("job_deny", Category::Read));
        check(&denied, facts("drain", Category::Admin), json!({}), ("autonomy", Category::Admin));
        let spent = Spent { calls: 10, ..Spent::default() };
        let spent = CallFacts { spent: &spent, ..facts("df", Category::Read) };
        check(&policy(), spent, json!({}), ("budget", Category::Read));
    }

    #[test]
    fn a_destructive_call_is_an_admin_call() {
        let destructive = [conditions(json!({"x": {"const": "namespaces"}}))];
        let facts =
            |tool| CallFacts { destructive_when: &destructive, ..facts(tool, Category::Write) };
        check(&policy(), facts("scale"), json!({"x": "pods"}), ("allowed", Category::Write));
        check(&policy(), facts("scale"), json!({"x": "namespaces"}), ("category", Category::Admin));
        check(&policy(), facts("drain"), json!({"x": "namespaces"}), ("allowed", Category::Admin));
        check(&policy(), facts("drain"), json!({"x": "pods"}), ("category", Category::Write));
    }

    #[test]
    fn a_tool_listed_for_some_arguments_is_refused_with_others() {
        let mut some = policy();
        some.write[0].args = Some(conditions(json!({"n": {"maximum": 10}})));
        check(
            &some,
            facts("scale", Category::Write),
            json!({"n": 10}),
            ("allowed", Category::Write),
        );
        check(
            &some,
            facts("scale", Category::Write),
            json!({"n": 11}),
            ("arguments", Category::Write),
        );
        check(&some, facts("scale", Category::Write), json!({}), ("arguments", Category::Write));
    }

    // conforms 000-6.1c, 000-6.1d, 000-6.1e
    #[test]
    fn a_person_is_asked_for_what_is_not_listed_and_for_what_the_job_says() {
        let check = |rules: &GateRules, facts: CallFacts<'_>, expected: (&str, &str)| {
            let decision = decide(rules, facts, &Map::new());
            assert_eq!((decision.kind.as_str(), decision.rule), expected, "{decision:?}");
        };
        let mut asked = policy();
        asked.approve = ["scale".to_owned(), "apply".to_owned()].into();
        let mut rules = rules(&asked);
        check(&rules, facts("scale", Category::Write), ("ask", "approve"));
        check(&rules, facts("apply", Category::Write), ("deny", "category"));
        rules.has_person = true;
        check(&rules, facts("reboot", Category::Admin), ("ask", "category"));
        check(&rules, facts("drain", Category::Admin), ("allow", "allowed"));
        check(&rules, facts("apply", Category::Write), ("ask", "approve"));
        check(&rules, facts("copy", Category::Write), ("allow", "allowed"));
        check(&rules, facts("df", Category::Read), ("allow", "allowed"));
        // A later rule that denies wins.
        let spent = Spent { calls: 10, ..Spent::default() };
        check(
            &rules,
            CallFacts { spent: &spent, ..facts("reboot", Category::Admin) },
            ("deny", "budget"),
        );
        rules.policy.deny = ["reboot".to_owned()].into();
        check(&rules, facts("reboot", Category::Admin), ("deny", "job_deny"));
    }

    // conforms 004-1.5a, 004-1.5b
    #[test]
    fn skills_narrow() {
        let mut narrowed = policy();
        let set = |tools: &[&str]| tools.iter().map(|tool| (*tool).to_owned()).collect();
        let only = |tools| SkillTools { allowed: Some(set(tools)), ..SkillTools::default() };
        narrowed.narrowed = vec![("a".into(), only(&["df", "scale"])), ("b".into(), only(&["df"]))];
        check(&narrowed, facts("df", Category::Read), json!({}), ("allowed", Category::Read));
        check(&narrowed, facts("scale", Category::Write), json!({}), ("skill", Category::Write));
        check(&narrowed, facts("skill", Category::Read), json!({}), ("allowed", Category::Read));
        check(&narrowed, facts("apply", Category::Write), json!({}), ("category", Category::Write));
        assert!(!is_visible(&narrowed, "scale", Category::Write, false));
        let without = SkillTools { disallowed: set(&["df", "skill"]), ..SkillTools::default() };
        narrowed.narrowed = vec![("c".into(), without)];
        check(&narrowed, facts("df", Category::Read), json!({}), ("skill", Category::Read));
        check(&narrowed, facts("scale", Category::Write), json!({}), ("allowed", Category::Write));
        check(&narrowed, facts("skill", Category::Read), json!({}), ("allowed", Category::Read));
    }

    // proves FS-1
    // conforms 000-6.1f, 000-6.4j, 004-1.3e
    #[test]
    fn files_are_judged_before_anything_is_opened() {
        let check = |category, path: &str, access, expected| {
            let resources = [Resource::file(path, access)];
            let facts = CallFacts { resources: &resources, ..facts("scale", category) };
            check(&policy(), facts, json!({}), expected);
        };
        use Access::{Read, Write};
        check(Category::Write, "a", Write, ("allowed", Category::Write));
        check(Category::Read, "/app/keys/k", Read, ("denied_path", Category::Read));
        check(Category::Read, "/srv/x", Read, ("path", Category::Read));
        check(Category::Write, "../x", Write, ("path", Category::Write));
        // A write to a system path is an admin call, even if the path is writable. The job does not
        // list this tool under `admin`.
        check(Category::Write, "/etc/app/x", Write, ("category", Category::Admin));
        // A denied path is refused before the category rule applies.
        check(Category::Admin, "/app/keys/k", Write, ("denied_path", Category::Admin));
    }

    #[test]
    fn a_command_that_writes_to_the_system_is_an_admin_call() {
        let check = |command: &str, expected| {
            let resources = [Resource::Command(command.to_owned())];
            let facts = CallFacts { resources: &resources, ..facts("scale", Category::Write) };
            check(&policy(), facts, json!({}), expected);
        };
        for command in [
            "echo x > /etc/cron.d/x",
            "echo x >> \"/etc/cron.d/$name\"",
            "echo x | tee -a /etc/app/x",
            "cp a /usr/local/bin/a",
            "cp -t /etc/app a b",
            "install -m 644 a /etc/app/a",
            "ln -s a /etc/app/b",
            "sed -i 's/a/b/' /etc/app/x",
            "curl -so /etc/app/x http://h/x",
            "tar -xf a.tar -C /etc/app",
            "cd /etc && echo x > cron.d/x",
            "echo x > ../etc/app/x",
            "bash -c 'touch /etc/app/x'",
            "cd /etc; tar xf a",
            "curl -s u | tar xzC /etc",
            "tar -xf a -C /",
            "git -C /etc pull",
            "find . -fprint /etc/x",
            "split x /etc/y; uniq a /etc/b",
            "gzip /etc/x",
            "yq -i .a=1 /etc/x",
            "iconv -o /etc/x y",
            "/usr/bin/time -o /etc/x ls",
            "cd /etc && iconv -o x.conf y",
            "crudini --set /etc/x a b c",
            "xxd -r -l 64 a /etc/x; split -b 10M a /etc/x",
        ] {
            check(command, ("category", Category::Admin));
        }
        for command in [
            "echo x > a; echo x > /app/a 2> /dev/null; echo x > /tmp/a",
            "cp /etc/app/x .; tar -czf a.tgz /etc/app; cat < /etc/app/x",
            "sed -n 1p /etc/app/x; sed -i '/etc/d' a; curl -s http://h/x",
            "cd /app && touch a",
            "tar xf a; git pull",
            "grep -o /etc/x f; gzip -t /etc/x.gz; zcat /etc/x.gz; uniq /etc/x",
            "kubectl get pods -o yaml; sort -o out f; ps -o pid",
            "cd /etc && git log",
            "cd /etc && set -o pipefail && cat hosts | grep x",
            "cd /etc && kubectl get pods -o wide; helm list -o json; ip -o addr; lsblk -o NAME",
            "cd /etc && kubectl get pods -o jsonpath='{.items}'",
            "crudini --get /etc/x a b; xxd -l 64 /etc/x; uniq -f 1 /etc/x; split -l 9 /etc/x",
        ] {
            check(command, ("allowed", Category::Write));
        }
    }

    // conforms 004-1.6d
    #[test]
    fn changed_files_and_lines_are_budgets() {
        let spent = Spent {
            files: ["/app/a".into(), "/app/b".into()].into(),
            lines: 90,
            ..Spent::default()
        };
        let check = |path: &str, lines, expected| {
            let resources = [Resource::file(path, Access::Write)];
            let facts = CallFacts {
                resources: &resources,
                lines,
                spent: &spent,
                ..facts("scale", Category::Write)
            };
            check(&policy(), facts, json!({}), (expected, Category::Write));
        };
        check("a", 10, "allowed");
        check("c", 1, "budget");
        check("a", 11, "budget");
    }

    // conforms 004-1.3f, 004-1.6b
    #[test]
    fn addresses_are_judged_after_the_category() {
        let mut rules = rules(&policy());
        rules.domains.hosts = vec![crate::config::AllowedHost::new("good.example", false).unwrap()];
        let check = |category, url: &str, expected| {
            let resources = [Resource::Url(url.to_owned())];
            let facts = CallFacts { resources: &resources, ..facts("fetch", category) };
            assert_eq!(decide(&rules, facts, &Map::new()).rule, expected, "{url}");
        };
        check(Category::Read, "https://good.example/x", "allowed");
        check(Category::Read, "https://evil.test/x", "domain");
        check(Category::Write, "https://evil.test/x", "category");
    }

    // conforms 004-1.3a
    #[test]
    fn calls_follow_each_other_at_the_rate() {
        let rate = Rate { per_minute: 30, burst: 2 };
        let rules = GateRules { rate: Some(rate), ..rules(&policy()) };
        let mut spent = Spent::default();
        let mut call = |at: u64| {
            spent.refill(rules.rate, Duration::from_millis(at));
            let facts = CallFacts { spent: &spent, ..facts("df", Category::Read) };
            let decision = decide(&rules, facts, &Map::new());
            if decision.kind == DecisionKind::Allow {
                spent.count(&rules, &[], 0);
            }
            (decision.rule, decision.reason)
        };
        assert_eq!((call(0).0, call(0).0), ("allowed", "allowed"));
        let refused = call(500);
        assert!(refused.0 == "rate" && refused.1.ends_with("retry in 1.5 s"), "{refused:?}");
        assert_eq!((call(2000).0, call(2001).0, call(4000).0), ("allowed", "rate", "allowed"));
        // The bucket never holds more than `burst` calls, even after a long pause.
        assert_eq!(
            (call(900_000).0, call(900_000).0, call(900_000).0),
            ("allowed", "allowed", "rate")
        );
    }

    #[test]
    fn only_what_can_be_used_is_visible() {
        let visible = |tool, category| is_visible(&policy(), tool, category, false);
        assert!(
            visible("df", Category::Read)
                && visible("scale", Category::Write)
                && visible("drain", Category::Admin)
        );
        assert!(visible("drain", Category::Write), "the call may be raised to admin");
        assert!(!visible("apply", Category::Write) && !visible("scale", Category::Admin));
    }
}
