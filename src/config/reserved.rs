//! Keys that the design defines but this version does not implement yet.
//!
//! The loader rejects them by name; otherwise an operator could believe that a protection or a
//! limit is in effect when it is not.

/// `(path, keys)`: the path of an object and its reserved keys. A path begins with the kind of the
/// file; `[]` stands for any item of a list, and `*` for any key of `models` or `mcp_servers`.
const KEYS: &[(&str, &[&str])] = &[
    ("config", &["server", "fleet"]),
    ("config.telemetry", &["otlp_endpoint", "metrics"]),
    ("jobs", &["agents"]),
    ("jobs.jobs[]", &["subagents", "runs_on", "on_host_loss", "on"]),
];

/// A name that stands for all editing tools of a model's profile in a later version. This version
/// rejects it as a tool name and in jobs.
pub(crate) const EDITOR: &str = "editor";

/// Paths of values that may be a mapping in a later version.
const MAPPINGS: &[&str] = &["config.models.*.api_key", "jobs.jobs[].skills[]"];

/// Tells whether `key` of the object at `place` is reserved for a later version.
pub(crate) fn is_reserved_key(place: &str, key: &str) -> bool {
    KEYS.iter().any(|(known, keys)| *known == place && keys.contains(&key))
}

/// Tells whether a mapping at `place` is reserved for a later version.
pub(crate) fn is_reserved_mapping(place: &str) -> bool {
    MAPPINGS.contains(&place)
}

/// Converts a JSON pointer to a path in the notation of `KEYS`.
pub(crate) fn place_of(file_kind: &str, pointer: &str) -> String {
    let mut out = file_kind.to_owned();
    let mut parent = "";
    for segment in pointer.split('/').skip(1) {
        if segment.bytes().all(|b| b.is_ascii_digit()) && !segment.is_empty() {
            out.push_str("[]");
        } else if parent == "models" || parent == "mcp_servers" {
            out.push_str(".*");
        } else {
            out.push('.');
            out.push_str(segment);
        }
        parent = segment;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_lists_exactly_the_reserved_keys() {
        let page = include_str!("../../docs/reference/files.md");
        let (_, table) = page.split_once("## Not in this version").unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let mut listed: Vec<&str> =
            rows.flat_map(|row| row.split('`').skip(1).step_by(2).skip(1)).collect();
        let keys = KEYS.iter().flat_map(|(place, keys)| {
            let inner = place.rsplit('.').next().filter(|of| ["telemetry", "limits"].contains(of));
            keys.iter().map(move |key| match inner {
                Some(inner) => format!("{inner}.{key}"),
                None => (*key).to_owned(),
            })
        });
        let last =
            |place: &str| place.rsplit('.').next().unwrap().trim_end_matches("[]").to_owned();
        let mappings = MAPPINGS.iter().map(|place| last(place));
        let mut expected: Vec<String> = keys.chain(mappings).chain([EDITOR.to_owned()]).collect();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn places_are_found_by_pointer() {
        assert!(is_reserved_key(&place_of("jobs", "/jobs/3"), "subagents"));
        assert!(is_reserved_key(&place_of("config", ""), "server"));
        assert!(is_reserved_key(&place_of("config", ""), "fleet"));
        for key in ["runs_on", "on_host_loss", "on"] {
            assert!(is_reserved_key(&place_of("jobs", "/jobs/0"), key), "{key}");
        }
        assert!(!is_reserved_key(&place_of("jobs", "/jobs/0"), "colour"));
    }
}
