//! What a family of models was trained on: the prompt, the tools with their names, the documents, the numbers. Data, and a prompt file each.

use std::time::Duration;

use super::raw::RawProfile;

/// What a family of models is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// The word in files.
    pub name: &'static str,
    /// The beginning of the system prompt.
    pub prompt: &'static str,
    /// Documents of a project that are read besides `AGENTS.md`.
    pub documents: &'static [&'static str],
    /// Whether an answer may hold several calls.
    pub parallel_calls: bool,
    /// Tokens that the models take in, where the configuration says nothing.
    pub context_window: u64,
    /// Whether the models see pictures.
    pub sees_images: bool,
    /// Time of a shell command that asks for none.
    pub shell_timeout: Duration,
    /// Built-in tools that are shown: the canonical name and the one that the model sees.
    pub tools: &'static [(&'static str, &'static str)],
}

const ANTHROPIC: Profile = Profile {
    name: "anthropic",
    prompt: include_str!("profile/anthropic.md"),
    documents: &["CLAUDE.md"],
    parallel_calls: true,
    context_window: 200_000,
    sees_images: true,
    shell_timeout: Duration::from_secs(120),
    tools: &[
        ("bash", "bash"),
        ("read_file", "read_file"),
        ("write_file", "write_file"),
        ("edit_file", "edit_file"),
        ("list_directory", "list_directory"),
        ("grep", "grep"),
        ("glob", "glob"),
        ("todo_read", "todo_read"),
        ("todo_write", "todo_write"),
        ("web_fetch", "web_fetch"),
        ("web_search", "web_search"),
        ("skill", "skill"),
        ("spawn_agent", "spawn_agent"),
        ("send_input", "send_input"),
        ("wait", "wait"),
        ("close_agent", "close_agent"),
        ("task", "task"),
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
        ("bash", "shell"),
        ("read_file", "read_file"),
        ("write_file", "write_file"),
        ("apply_patch", "apply_patch"),
        ("list_directory", "list_dir"),
        ("grep", "grep"),
        ("glob", "glob"),
        ("todo_read", "todo_read"),
        ("todo_write", "todo_write"),
        ("web_fetch", "web_fetch"),
        ("web_search", "web_search"),
        ("skill", "skill"),
        ("spawn_agent", "spawn_agent"),
        ("send_input", "send_input"),
        ("wait", "wait"),
        ("close_agent", "close_agent"),
        ("task", "task"),
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
        ("bash", "shell"),
        ("read_file", "read_file"),
        ("read_many_files", "read_many_files"),
        ("write_file", "write_file"),
        ("edit_file", "edit_file"),
        ("list_directory", "list_dir"),
        ("grep", "grep"),
        ("glob", "glob"),
        ("todo_read", "todo_read"),
        ("todo_write", "todo_write"),
        ("web_fetch", "web_fetch"),
        ("web_search", "web_search"),
        ("skill", "skill"),
        ("spawn_agent", "spawn_agent"),
        ("send_input", "send_input"),
        ("wait", "wait"),
        ("close_agent", "close_agent"),
        ("task", "task"),
    ],
};

const GENERIC: Profile = Profile {
    name: "generic",
    prompt: include_str!("profile/generic.md"),
    documents: &[],
    context_window: 128_000,
    sees_images: false,
    shell_timeout: Duration::from_secs(10),
    ..ANTHROPIC
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

    /// Returns the profile of models that nothing is known of.
    #[must_use]
    pub fn generic() -> &'static Self {
        &GENERIC
    }

    /// Returns the name under which the built-in tool `canonical` is shown; `None` if it is not.
    #[must_use]
    pub fn shown(&self, canonical: &str) -> Option<&'static str> {
        self.tools.iter().find(|(known, _)| *known == canonical).map(|(_, shown)| *shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_the_tools_that_it_was_trained_on() {
        assert_eq!(ANTHROPIC.shown("bash"), Some("bash"));
        assert_eq!(OPENAI.shown("bash"), Some("shell"));
        assert_eq!(OPENAI.shown("edit_file"), None);
        assert!(OPENAI.shown("apply_patch").is_some() && ANTHROPIC.shown("apply_patch").is_none());
        for profile in [ANTHROPIC, OPENAI, GEMINI, GENERIC] {
            let mut shown: Vec<_> = profile.tools.iter().map(|(_, shown)| shown).collect();
            shown.sort_unstable();
            shown.dedup();
            assert_eq!(shown.len(), profile.tools.len(), "{}: two tools of one name", profile.name);
            assert!(profile.prompt.contains("Nobody"), "{}", profile.name);
        }
    }
}
