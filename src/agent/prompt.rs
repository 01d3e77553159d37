//! The system prompt, in layers: the base, the surroundings, what is allowed, the job's own words last.
//!
//! What never changes stands first, so that providers can cache it.

use std::fmt::Write as _;

const BASE: &str = include_str!("prompts/base.md");

/// What the prompt says about a run.
#[derive(Debug, Clone)]
pub struct PromptFacts<'a> {
    /// The job.
    pub job: &'a str,
    /// Its description.
    pub description: Option<&'a str>,
    /// The host's name.
    pub host: &'a str,
    /// Today, as the job's zone has it.
    pub date: &'a str,
    /// Where tools start.
    pub working_dir: &'a str,
    /// The tools, by name and category.
    pub tools: &'a [(String, String)],
    /// The job's own words.
    pub system_prompt: Option<&'a str>,
}

/// Returns the system prompt of a run.
#[must_use]
pub fn system_prompt(facts: &PromptFacts<'_>) -> String {
    let mut prompt = BASE.to_owned();
    let _ = write!(prompt, "\n<environment>\njob: {}\n", facts.job);
    if let Some(description) = facts.description {
        let _ = writeln!(prompt, "about: {description}");
    }
    let _ = write!(
        prompt,
        "host: {}\ndate: {}\nworking directory: {}\n</environment>\n\n",
        facts.host, facts.date, facts.working_dir
    );
    if facts.tools.is_empty() {
        prompt.push_str("You have no tools in this run: answer from the task alone.\n");
    } else {
        prompt.push_str("You may use these tools and no others:\n");
        for (name, category) in facts.tools {
            let _ = writeln!(prompt, "- {name} ({category})");
        }
    }
    if let Some(text) = facts.system_prompt {
        let _ = write!(prompt, "\n{}\n", text.trim());
    }
    prompt
}
