//! The checked settings of `config.yaml`, except its models and MCP servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use chrono_tz::Tz;

use super::call_limits::CallLimits;
use super::destination::{Heartbeat, daemon_rules};
use super::raw::{RawLevel, RawLogFormat, RawRotate, RawSettings};
use super::{Destination, Environment, LocalZone, Security, WebSearch};
use crate::argv::Diagnostics;
use crate::domain::DaemonRule;
use crate::text::quantity;

/// Variables that every tool inherits from the daemon, if they are set.
const ENV_ALLOWLIST: &[&str] =
    &["PATH", "HOME", "USER", "LANG", "LC_ALL", "TERM", "SHELL", "TMPDIR", "TZ"];

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    /// One JSON object per line.
    Json,
}

/// How often the daemon starts a new log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRotation {
    /// At each hour, in UTC.
    Hourly,
    /// At midnight, in UTC.
    Daily,
}

/// Settings of the daemon's own log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// The format of a line.
    pub format: LogFormat,
    /// `error`, `warn`, `info` or `debug`.
    pub level: &'static str,
    /// Rotation of the log files and how many to keep; `None` means that the daemon does not write
    /// log files.
    pub files: Option<(LogRotation, u32)>,
}

/// The settings of the daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The time zone of schedules that do not name one.
    pub timezone: Tz,
    /// The zone that `local` stands for.
    pub local_zone: LocalZone,
    /// The number of runs of each job to keep.
    pub keep_runs: u32,
    /// The age of runs and slots to keep, in days.
    pub keep_days: u32,
    /// The maximum cost of all jobs together per day, in US dollars; `None` for no limit.
    pub max_cost_usd_per_day: Option<f64>,
    /// The maximum number of concurrent runs, inclusive; further runs wait.
    pub max_concurrent_runs: usize,
    /// How long runs may take to finish when the daemon stops.
    pub shutdown_grace: Duration,
    /// The model of jobs that do not name one.
    pub default_model: Option<String>,
    /// Variables that tools inherit from the daemon.
    pub env_allowlist: BTreeSet<String>,
    /// Security settings that apply to the tools of every job.
    pub security: Security,
    /// Limits of built-in tools by name.
    pub builtin_tools: BTreeMap<String, CallLimits>,
    /// The service behind `web_search`; `None` if the tool is unavailable.
    pub web_search: Option<WebSearch>,
    /// Destinations of notifications by name.
    pub destinations: BTreeMap<String, Destination>,
    /// Who is told of the daemon itself.
    pub notify: Vec<DaemonRule>,
    /// The ping of the daemon, if there is one.
    pub heartbeat: Option<Heartbeat>,
    /// Settings of the daemon's own log.
    pub log: LogSettings,
}

impl Settings {
    /// Checks `raw` and fills in the defaults.
    pub(crate) fn from_raw(
        raw: &RawSettings,
        environment: &Environment,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let local_zone = LocalZone::find(environment, Path::new("/"));
        let named = raw.timezone.as_deref().unwrap_or("local");
        let timezone = zone(named, &local_zone).unwrap_or_else(|message| {
            diagnostics.error("/timezone", message);
            Tz::UTC
        });
        let shutdown_grace = match raw.shutdown_grace.as_deref().map(quantity::duration) {
            Some(Ok(grace)) => grace,
            Some(Err(message)) => {
                diagnostics.error("/shutdown_grace", message);
                Duration::ZERO
            }
            None => Duration::from_secs(30),
        };
        let mut env_allowlist: BTreeSet<String> =
            ENV_ALLOWLIST.iter().map(|name| (*name).to_owned()).collect();
        for (at, name) in
            raw.security.iter().flat_map(|security| &security.env_allowlist).flatten().enumerate()
        {
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
                diagnostics.error(
                    &format!("/security/env_allowlist/{at}"),
                    format!("`{name}` is not a valid environment variable name"),
                );
            } else if is_hijacking(name) {
                diagnostics.error(
                    &format!("/security/env_allowlist/{at}"),
                    format!(
                        "`{name}` changes what programs load or run and is never inherited: set it in the `env` of a tool"
                    ),
                );
            }
            env_allowlist.insert(name.clone());
        }
        let destinations = Destination::all(raw.notifications.as_ref(), diagnostics);
        let log = raw.telemetry.as_ref().and_then(|telemetry| telemetry.log.as_ref());
        Self {
            timezone,
            local_zone,
            keep_runs: raw.retention.and_then(|retention| retention.keep_runs).unwrap_or(1000),
            keep_days: raw.retention.and_then(|retention| retention.keep_days).unwrap_or(90),
            max_cost_usd_per_day: raw.budget.and_then(|budget| budget.max_cost_usd_per_day),
            max_concurrent_runs: raw.max_concurrent_runs.unwrap_or(8) as usize,
            shutdown_grace,
            default_model: raw.default_model.clone(),
            env_allowlist,
            security: Security::from_raw(raw.security.as_ref(), environment, diagnostics),
            builtin_tools: CallLimits::of_builtins(raw.builtin_tools.as_ref(), diagnostics),
            web_search: raw
                .web_search
                .as_ref()
                .and_then(|raw| WebSearch::from_raw(raw, diagnostics)),
            notify: daemon_rules(raw, &destinations, diagnostics),
            heartbeat: Heartbeat::from_raw(raw.heartbeat.as_ref(), &destinations, diagnostics),
            destinations,
            log: LogSettings {
                format: match log.and_then(|log| log.format) {
                    Some(RawLogFormat::Json) => LogFormat::Json,
                    Some(RawLogFormat::Text) | None => LogFormat::Text,
                },
                level: match log.and_then(|log| log.level) {
                    Some(RawLevel::Error) => "error",
                    Some(RawLevel::Warn) => "warn",
                    Some(RawLevel::Info) | None => "info",
                    Some(RawLevel::Debug) => "debug",
                },
                files: log.and_then(|log| {
                    let rotation = match log.rotate? {
                        RawRotate::Hourly => LogRotation::Hourly,
                        RawRotate::Daily => LogRotation::Daily,
                    };
                    Some((rotation, log.keep.unwrap_or(14)))
                }),
            },
        }
    }
}

/// Tells whether a variable changes what programs load or run (ENV-5).
pub(crate) fn is_hijacking(name: &str) -> bool {
    const EXACT: &[&str] = &[
        "BASH_ENV",
        "ENV",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONHOME",
        "PERL5LIB",
        "PERL5OPT",
        "RUBYLIB",
        "RUBYOPT",
        "NODE_OPTIONS",
        "NODE_PATH",
        "JAVA_TOOL_OPTIONS",
        "PAGER",
        "EDITOR",
        "VISUAL",
        "BROWSER",
        "GIT_SSH",
        "GIT_SSH_COMMAND",
        "GIT_EDITOR",
        "GIT_PAGER",
        "GIT_EXTERNAL_DIFF",
        "GIT_ASKPASS",
        "SSH_ASKPASS",
        "IFS",
        "PS4",
        "PROMPT_COMMAND",
        "SYSTEMD_PAGER",
        "LESSOPEN",
        "LESSCLOSE",
        "MANPAGER",
        "TAR_OPTIONS",
        "RSYNC_RSH",
        "GIT_SEQUENCE_EDITOR",
        "GIT_EXEC_PATH",
        "GIT_PROXY_COMMAND",
        "GIT_TEMPLATE_DIR",
        "KUBE_EDITOR",
        "KUBECTL_EXTERNAL_DIFF",
        "SYSTEMD_EDITOR",
        "MAKEFLAGS",
        "GNUMAKEFLAGS",
        "MAKEFILES",
        "LUA_INIT",
        "LUA_PATH",
        "LUA_CPATH",
        "PERL5DB",
        "PYTHONBREAKPOINT",
        "GCONV_PATH",
        "PSQLRC",
        "PSQL_PAGER",
        "VIMINIT",
        "EXINIT",
        "RUSTC_WRAPPER",
        "JDK_JAVA_OPTIONS",
        "_JAVA_OPTIONS",
        "PHPRC",
        "OPENSSL_CONF",
    ];
    EXACT.contains(&name)
        || ["LD_", "DYLD_", "GIT_CONFIG", "BASH_FUNC_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// Returns the time zone `name`: an IANA name, or `local` for the zone of this host.
///
/// *Errors*: a message for the configuration report.
pub(crate) fn zone(name: &str, local: &LocalZone) -> Result<Tz, String> {
    if name == "local" {
        return Ok(local.zone);
    }
    name.parse().map_err(|_| {
        format!(
            "`{name}` is not a time zone: write an IANA name such as Europe/Berlin, UTC, or local"
        )
    })
}
