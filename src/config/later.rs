//! Keys and values that the design knows and this version does not build yet.
//!
//! They are refused by name, so that nobody believes a protection or a limit to be in force that is not.

/// `(where, key)`: where is the path of the object with `[]` for any item and `*` for any key.
const KEYS: &[(&str, &[&str])] = &[
    ("config", &["budget", "server", "retention", "notifications"]),
    ("config.telemetry", &["otlp_endpoint", "metrics"]),
    ("jobs", &["agents"]),
    ("jobs.defaults", &["notify"]),
    (
        "jobs.jobs[]",
        &[
            "retry",
            "pause_after_failures",
            "precheck",
            "recall",
            "budget",
            "subagents",
            "verify",
            "verify_retries",
            "output_schema",
            "notify",
        ],
    ),
    ("tools.tools[]", &["probe"]),
];

/// `(where, value)`: where is the path of the value.
const VALUES: &[(&str, &[&str])] = &[
    (
        "jobs.jobs[].overlap",
        &["buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"],
    ),
    ("jobs.jobs[].catchup", &["all"]),
    ("jobs.jobs[].on_crash", &["resume"]),
    ("jobs.jobs[].compaction", &["auto"]),
];

/// Tells whether `key` of the object at `place` is one of a later version.
pub(crate) fn is_later_key(place: &str, key: &str) -> bool {
    KEYS.iter().any(|(known, keys)| *known == place && keys.contains(&key))
}

/// Tells whether `value` at `place` is one of a later version.
pub(crate) fn is_later_value(place: &str, value: &str) -> bool {
    VALUES.iter().any(|(known, values)| *known == place && values.contains(&value))
}

/// Returns a JSON pointer in the form of these tables.
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
    fn places_are_found_by_pointer() {
        assert!(is_later_key(&place_of("jobs", "/jobs/3"), "verify"));
        assert!(is_later_key(&place_of("config", ""), "retention"));
        assert!(is_later_value(&place_of("jobs", "/jobs/0/overlap"), "buffer_all"));
        assert!(!is_later_key(&place_of("jobs", "/jobs/0"), "colour"));
    }
}
