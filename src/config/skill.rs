//! Skills: `skills/NAME/SKILL.md` of the configuration directory, in the public format.
//!
//! A skill is text for the model. It never grants rights: its `allowed-tools` and `disallowed-tools` only
//! take tools away.
//! *Source*: the Agent Skills specification (read 2026-11-22); `docs/design/config.md`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::document::parse as parse_yaml;

/// The maximum length of a name in characters, inclusive.
const NAME: usize = 64;

/// The maximum length of a description in characters, inclusive.
const DESCRIPTION: usize = 1024;

const ALLOWED: &str = "allowed-tools";
const DISALLOWED: &str = "disallowed-tools";

const KEYS: &[&str] =
    &["name", "description", "license", "compatibility", "metadata", ALLOWED, DISALLOWED];

/// The tools that no skill takes away: the model can always read a skill again, and keep its list.
const ALWAYS: &[&str] = &["skill", "todo_read", "todo_write"];

/// Names that other agents use for our tools, in lower case.
const OTHER_NAMES: &[(&str, &[&str])] = &[
    ("bash", &["bash", "shell", "run_shell_command"]),
    ("read_file", &["read", "view"]),
    ("write_file", &["write"]),
    ("edit_file", &["edit", "multiedit", "replace"]),
    ("list_directory", &["ls", "list_dir", "list"]),
    ("glob", &["find"]),
    ("todo_read", &["todoread"]),
    ("todo_write", &["todowrite"]),
    ("web_fetch", &["webfetch"]),
    ("web_search", &["websearch"]),
];

/// A skill that was read from its `SKILL.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// The name of its directory; jobs refer to the skill by this name.
    pub directory: String,
    /// The `name` in its frontmatter.
    pub name: Option<String>,
    /// The `description` in its frontmatter, trimmed.
    pub description: String,
    /// The text after the frontmatter, for the model.
    pub body: String,
    /// The tools that the skill leaves; `None` if it takes none away.
    pub tools: Option<SkillTools>,
    /// Deviations from the public format, which are warnings.
    pub problems: Vec<String>,
}

/// The tools that a skill leaves, by our names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SkillTools {
    /// Its `allowed-tools`; `None` allows all.
    pub allowed: Option<BTreeSet<String>>,
    /// Its `disallowed-tools`.
    pub disallowed: BTreeSet<String>,
}

impl SkillTools {
    /// Tells whether the skill takes this tool away.
    #[must_use]
    pub fn exclude(&self, tool: &str) -> bool {
        let is_left = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(tool));
        !ALWAYS.contains(&tool) && (!is_left || self.disallowed.contains(tool))
    }
}

impl Skill {
    /// Parses the text of a `SKILL.md`.
    ///
    /// *Errors*: the frontmatter is missing or cannot be read, lacks a description, or has an
    /// `allowed-tools` or `disallowed-tools` that is neither a string nor a list, or has an entry that is
    /// not a name.
    pub fn parse(directory: &str, text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        let rest = text.strip_prefix("---\n").ok_or("it does not begin with `---`")?;
        let (front, body) = rest
            .split_once("\n---\n")
            .or_else(|| rest.strip_suffix("\n---").map(|front| (front, "")))
            .ok_or("its frontmatter is not closed by `---`")?;
        let (document, errors) = parse_yaml("SKILL.md", front);
        if let Some(error) = errors.first() {
            return Err(format!("line {} of its frontmatter: {}", error.line, error.message));
        }
        let value = document.map(|document| document.value).unwrap_or_default();
        let fields = value.as_object().ok_or("its frontmatter is not a mapping")?;
        let text_of = |key: &str| fields.get(key).and_then(Value::as_str).map(str::trim);
        let description = text_of("description").filter(|text| !text.is_empty());
        let description = description.ok_or("it has no `description`")?.to_owned();
        let name = text_of("name").map(str::to_owned);
        let mut problems = name_problems(directory, name.as_deref());
        if description.chars().count() > DESCRIPTION {
            problems.push(format!("description longer than {DESCRIPTION}"));
        }
        let unknown: Vec<&str> =
            fields.keys().map(String::as_str).filter(|key| !KEYS.contains(key)).collect();
        if !unknown.is_empty() {
            problems.push(format!("unknown keys: {}", unknown.join(", ")));
        }
        if let Some(metadata) = fields.get("metadata") {
            let are_texts =
                metadata.as_object().is_some_and(|map| map.values().all(Value::is_string));
            if !are_texts {
                problems.push("metadata values are not all strings".to_owned());
            }
        }
        let allowed = tools(fields, ALLOWED, &mut problems)?;
        let disallowed = tools(fields, DISALLOWED, &mut problems)?;
        let takes_away = allowed.is_some() || disallowed.is_some();
        let tools =
            takes_away.then(|| SkillTools { allowed, disallowed: disallowed.unwrap_or_default() });
        let body = body.trim_start_matches('\n').to_owned();
        Ok(Self { directory: directory.to_owned(), name, description, body, tools, problems })
    }
}

/// Returns the tools that a key lists, by our names; `None` without the key.
///
/// *Errors*: the value is neither a string nor a list, or an entry is not a name.
fn tools(
    fields: &Map<String, Value>,
    key: &str,
    problems: &mut Vec<String>,
) -> Result<Option<BTreeSet<String>>, String> {
    let names: BTreeSet<String> = match fields.get(key) {
        None => return Ok(None),
        Some(Value::String(names)) => {
            names.split([' ', ',']).filter(|name| !name.is_empty()).map(own_name).collect()
        }
        Some(Value::Array(names)) => {
            problems.push(format!("{key} is a list, the spec says a space separated string"));
            let name = |name: &Value| name.as_str().map(own_name);
            let names: Option<_> = names.iter().map(name).collect();
            names.ok_or_else(|| format!("an entry of its `{key}` is not a name"))?
        }
        Some(_) => return Err(format!("its `{key}` is neither a string nor a list")),
    };
    if let Some(name) = names.iter().find(|name| is_pattern(name)) {
        return Err(format!(
            "`{name}` in its `{key}` is not the name of a tool: write the name without a pattern or arguments, such as `Bash`"
        ));
    }
    Ok(Some(names))
}

fn name_problems(directory: &str, name: Option<&str>) -> Vec<String> {
    let Some(name) = name else { return vec!["name missing".to_owned()] };
    let mut problems = Vec::new();
    if name != directory {
        problems.push("name differs from directory".to_owned());
    }
    if name.chars().count() > NAME {
        problems.push(format!("name longer than {NAME}"));
    }
    let is_plain = name.split('-').all(|part| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    });
    if !is_plain {
        problems.push("name has characters outside a-z 0-9 and single hyphens".to_owned());
    }
    problems
}

/// Tells whether an entry is not a name, but a pattern or a name with arguments, as `Bash(git:*)`.
/// We cannot keep such a restriction: dropping it would allow more than the skill means (POL-11).
fn is_pattern(name: &str) -> bool {
    name.contains(['(', ')', '*', '?', '[', ']'])
}

/// Returns our name of a tool; an unknown name stays as it is.
fn own_name(name: &str) -> String {
    let lower = name.to_lowercase();
    let known =
        OTHER_NAMES.iter().find(|(own, others)| *own == lower || others.contains(&lower.as_str()));
    known.map_or_else(|| name.to_owned(), |(own, _)| (*own).to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn recorded_skills_are_read_as_expected() {
        let fixtures =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/skills");
        let index = std::fs::read_to_string(fixtures.join("index.json")).unwrap();
        let cases: Vec<Value> = serde_json::from_str(&index).unwrap();
        for case in &cases {
            let expect = &case["expect"];
            let text =
                std::fs::read_to_string(fixtures.join(case["file"].as_str().unwrap())).unwrap();
            let skill = Skill::parse(expect["original_dir"].as_str().unwrap(), &text);
            assert_eq!(skill.is_ok(), expect["loadable"] == true, "{}", case["id"]);
            let Ok(skill) = skill else { continue };
            assert_eq!(skill.name.as_deref(), expect["name"].as_str(), "{}", case["id"]);
            assert_eq!(skill.description, expect["description"].as_str().unwrap().trim());
            assert!(
                skill.body.starts_with(expect["body_starts"].as_str().unwrap()),
                "{}",
                case["id"]
            );
            let mut problems: Vec<&str> = skill.problems.iter().map(String::as_str).collect();
            let mut expected: Vec<&str> = expect["spec_problems"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_str().unwrap())
                .collect();
            problems.sort_unstable();
            expected.sort_unstable();
            assert_eq!(problems, expected, "{}", case["id"]);
        }
        println!("skills: {} of {} recorded", cases.len(), cases.len());
        assert!(cases.len() >= 13);
    }

    #[test]
    fn tools_are_known_by_other_names() {
        let text = "---\nname: a\ndescription: b\nallowed-tools: Bash Read own_tool\n---\n";
        let tools = Skill::parse("a", text).unwrap().tools.unwrap();
        assert_eq!(
            tools.allowed.unwrap(),
            ["bash", "own_tool", "read_file"].map(str::to_owned).into()
        );
        for key in ["allowed-tools", "disallowed-tools"] {
            for wrong in
                ["Bash(git:*)", "Read, Bash(git add:*)", "[Bash(ls)]", "github__*", "[1]", "1"]
            {
                let text = format!("---\nname: a\ndescription: b\n{key}: {wrong}\n---\n");
                assert!(Skill::parse("a", &text).unwrap_err().contains(key), "{wrong}");
            }
        }
        let text = "---\nname: a\ndescription: b\ndisallowed-tools: Bash, todo_write\n---\n";
        let skill = Skill::parse("a", text).unwrap();
        let tools = skill.tools.unwrap();
        assert_eq!((tools.allowed.as_ref(), skill.problems.as_slice()), (None, [].as_slice()));
        assert!(
            tools.exclude("bash") && !tools.exclude("read_file") && !tools.exclude("todo_write")
        );
        for wrong in [
            "",
            "---\n",
            "---\nname: a\n---\n",
            "---\n- a\n---\n",
            "---\ndescription: {a: 1}\n---\n",
            "no",
        ] {
            assert!(Skill::parse("a", wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_skill_or_an_error(text in "(---\n)?((name|description|allowed-tools|x): [a-z\\[\\]{}'\"]{0,9}\n){0,4}(---\n)?\\PC{0,20}") {
            let _ = Skill::parse("a", &text);
        }
    }
}
