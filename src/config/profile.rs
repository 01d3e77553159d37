//! Profiles of model families: the prompt, project documents and defaults that suit a family, and
//! the tool names that its models were trained on. A profile is data plus a prompt file.

use std::time::Duration;

use super::raw::RawProfile;

/// The prompt, tools and defaults for a family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// The value of `profile` in `config.yaml`.
    pub name: &'static str,
    /// The beginning of the system prompt.
    pub prompt: &'static str,
    /// Project documents to read in addition to `AGENTS.md`.
    pub documents: &'static [&'static str],
    /// Whether the model may make several calls in one response.
    pub parallel_calls: bool,
    /// Default context window in tokens.
    pub context_window: u64,
    /// Whether the models accept images.
    pub sees_images: bool,
    /// Default timeout of a shell command.
    pub shell_timeout: Duration,
    /// Built-in tools to show to the model.
    pub tools: &'static [ToolAlias],
}

/// A built-in tool as a family of models knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolAlias {
    /// Our name of the tool, as in policies and transcripts.
    pub own: &'static str,
    /// The name that the model sees.
    pub name: &'static str,
    /// Renamed parameters, as pairs of our name and the model's name.
    pub parameters: &'static [(&'static str, &'static str)],
}

/// Returns a tool that keeps its name.
const fn same(own: &'static str) -> ToolAlias {
    called(own, own)
}

/// Returns a tool that the model sees under another name.
const fn called(own: &'static str, name: &'static str) -> ToolAlias {
    ToolAlias { own, name, parameters: &[] }
}

/// `grep` of the families that know its filter of files under another name than `glob`.
const GREP: ToolAlias =
    ToolAlias { own: "grep", name: "grep", parameters: &[("glob", "glob_filter")] };

const ANTHROPIC: Profile = Profile {
    name: "anthropic",
    prompt: include_str!("profile/anthropic.md"),
    documents: &["CLAUDE.md"],
    parallel_calls: true,
    context_window: 200_000,
    sees_images: true,
    shell_timeout: Duration::from_secs(120),
    tools: &[
        same("bash"),
        same("read_file"),
        same("write_file"),
        same("edit_file"),
        same("list_directory"),
        GREP,
        same("glob"),
        same("todo_read"),
        same("todo_write"),
        same("web_fetch"),
        same("web_search"),
        same("skill"),
        same("spawn_agent"),
        same("send_input"),
        same("wait"),
        same("close_agent"),
        same("task"),
    ],
};

const OPENAI: Profile = Profile {
    name: "openai",
    prompt: include_str!("profile/openai.md"),
    documents: &[".codex/instructions.md"],
    parallel_calls: true,
    context_window: 272_000,
    sees_images: true,
    shell_timeout: Duration::from_secs(10),
    tools: &[
        called("bash", "shell"),
        same("read_file"),
        same("write_file"),
        same("apply_patch"),
        called("list_directory", "list_dir"),
        GREP,
        same("glob"),
        same("todo_read"),
        same("todo_write"),
        same("web_fetch"),
        same("web_search"),
        same("skill"),
        same("spawn_agent"),
        same("send_input"),
        same("wait"),
        same("close_agent"),
        same("task"),
    ],
};

const GEMINI: Profile = Profile {
    name: "gemini",
    prompt: include_str!("profile/gemini.md"),
    documents: &["GEMINI.md"],
    parallel_calls: true,
    context_window: 1_000_000,
    sees_images: true,
    shell_timeout: Duration::from_secs(10),
    tools: &[
        called("bash", "shell"),
        same("read_file"),
        same("read_many_files"),
        same("write_file"),
        same("edit_file"),
        called("list_directory", "list_dir"),
        GREP,
        same("glob"),
        same("todo_read"),
        same("todo_write"),
        same("web_fetch"),
        same("web_search"),
        same("skill"),
        same("spawn_agent"),
        same("send_input"),
        same("wait"),
        same("close_agent"),
        same("task"),
    ],
};

const GENERIC: Profile = Profile {
    name: "generic",
    prompt: include_str!("profile/generic.md"),
    documents: &[],
    parallel_calls: true,
    context_window: 128_000,
    sees_images: false,
    shell_timeout: Duration::from_secs(10),
    // The tool names of the open-source coding agents that such models were trained with.
    tools: &[
        ToolAlias { own: "bash", name: "bash", parameters: &[("timeout_ms", "timeout")] },
        ToolAlias { own: "read_file", name: "read", parameters: &[("file_path", "path")] },
        ToolAlias { own: "write_file", name: "write", parameters: &[("file_path", "path")] },
        ToolAlias {
            own: "edit_file",
            name: "edit",
            parameters: &[
                ("file_path", "path"),
                ("old_string", "oldText"),
                ("new_string", "newText"),
                ("replace_all", "replaceAll"),
            ],
        },
        called("list_directory", "ls"),
        ToolAlias {
            own: "grep",
            name: "grep",
            parameters: &[("case_insensitive", "ignoreCase"), ("max_results", "limit")],
        },
        called("glob", "find"),
        called("todo_read", "todoread"),
        called("todo_write", "todowrite"),
        called("web_fetch", "webfetch"),
        ToolAlias {
            own: "web_search",
            name: "websearch",
            parameters: &[
                ("num_results", "numResults"),
                ("context_max_characters", "contextMaxCharacters"),
            ],
        },
        same("skill"),
        same("spawn_agent"),
        same("send_input"),
        same("wait"),
        same("close_agent"),
        same("task"),
    ],
};

impl Profile {
    pub(crate) fn of(raw: RawProfile) -> &'static Self {
        match raw {
            RawProfile::Anthropic => &ANTHROPIC,
            RawProfile::Openai => &OPENAI,
            RawProfile::Gemini => &GEMINI,
            RawProfile::Generic => &GENERIC,
        }
    }

    /// Returns the profile for models of an unknown family.
    #[must_use]
    pub fn generic() -> &'static Self {
        &GENERIC
    }

    /// Returns how the model sees the built-in tool `own`; `None` if the profile does not show it.
    #[must_use]
    pub fn shown(&self, own: &str) -> Option<&'static ToolAlias> {
        self.tools.iter().find(|shown| shown.own == own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // conforms 003-2.2b, 003-3.3f, 003-3.4a, 003-3.4b, 003-3.5a, 003-6.2, 003-9.2a, 003-9.2d
    #[test]
    fn each_family_has_the_tools_that_it_was_trained_on() {
        let name = |profile: Profile, own| profile.shown(own).map(|shown| shown.name);
        assert_eq!(name(ANTHROPIC, "bash"), Some("bash"));
        assert_eq!(name(OPENAI, "bash"), Some("shell"));
        for (profile, guide) in [
            (ANTHROPIC, "`edit_file` replaces `old_string`"),
            (OPENAI, "`*** Begin Patch`"),
            (GEMINI, "`edit_file` replaces `old_string`"),
        ] {
            let has = |words: &str| profile.prompt.contains(words);
            assert!(
                has(guide) && has("In code, ") && has("failed call says what"),
                "{}",
                profile.name
            );
        }
        for profile in [ANTHROPIC, OPENAI, GEMINI] {
            let grep = profile.shown("grep").unwrap();
            assert!(grep.parameters.contains(&("glob", "glob_filter")), "{}", profile.name);
        }
        assert_eq!(name(GENERIC, "glob"), Some("find"));
        assert_eq!(name(OPENAI, "edit_file"), None);
        assert!(OPENAI.shown("apply_patch").is_some() && ANTHROPIC.shown("apply_patch").is_none());
        assert_eq!(name(ANTHROPIC, "edit_file"), Some("edit_file"));
        for tool in ["read_file", "apply_patch", "write_file", "shell", "grep", "glob"] {
            assert!(OPENAI.tools.iter().any(|shown| shown.name == tool), "{tool}");
        }
        let timeout = |profile: Profile| profile.shell_timeout.as_secs();
        assert_eq!([ANTHROPIC, OPENAI, GEMINI, GENERIC].map(timeout), [120, 10, 10, 10]);
        for profile in [ANTHROPIC, OPENAI, GEMINI, GENERIC] {
            let mut names: Vec<_> = profile.tools.iter().map(|shown| shown.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), profile.tools.len(), "{}: duplicate tool name", profile.name);
            for shown in profile.tools.iter().filter(|shown| !shown.parameters.is_empty()) {
                let schema = crate::config::Builtin::find(shown.own).unwrap().parameters.schema();
                for (own, theirs) in shown.parameters {
                    let known = |name: &str| schema["properties"].get(name).is_some();
                    assert!(known(own) && !known(theirs), "{}: {own}, {theirs}", shown.own);
                }
            }
        }
    }
}
