//! The request of a queued run as the ledger keeps it: complete, so that a missing part is not taken
//! for a default, which acts instead of planning (STATE-7).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::{Origin, Person, RunRequest, Trigger};

/// *Shape*: `{"vars":{},"prompt":null,"plan":true,"by":{"uid":1000,"user":"ann"}}`
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRequest {
    vars: BTreeMap<String, String>,
    /// Without the attribute, serde reads a missing prompt as null.
    #[serde(deserialize_with = "Option::deserialize")]
    prompt: Option<String>,
    plan: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    effort: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_iterations: Option<u32>,
    /// Missing in the ledger of an earlier version. It grants nothing, so it may be unknown.
    #[serde(default)]
    by: Option<Person>,
}

/// What was requested, and who requested it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) request: Option<RunRequest>,
    pub(super) by: Option<Person>,
}

/// Why a request cannot be read; it follows the run's name and a colon.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the ledger lacks its request")]
    Missing,
    #[error("its request in the ledger cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Returns the value of the column; `None` if the schedule started the run, which requests nothing.
///
/// *Errors*: SQLite's, around that of `serde_json`.
pub(super) fn to_column(origin: &Origin) -> rusqlite::Result<Option<String>> {
    match origin.trigger {
        Trigger::Schedule | Trigger::Catchup => return Ok(None),
        Trigger::Manual | Trigger::Backfill | Trigger::Retry | Trigger::Apply => {}
    }
    let request = origin.request.clone().unwrap_or_default();
    let RunRequest { vars, prompt, plan, model, effort, max_iterations, newer: _ } = request;
    let by = origin.by.clone();
    let stored = StoredRequest { vars, prompt, plan, model, effort, max_iterations, by };
    let text = serde_json::to_string(&stored);
    text.map(Some).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// Reads the value that [`to_column`] wrote.
///
/// *Errors*: why the request cannot be read.
pub(super) fn of_column(trigger: Trigger, text: Option<&str>) -> Result<Asked, RequestError> {
    let text = match (trigger, text) {
        (Trigger::Schedule | Trigger::Catchup, _) => return Ok(Asked::default()),
        // An earlier version did not keep the person of a backfill, which requests nothing else.
        (Trigger::Backfill, None) => return Ok(Asked::default()),
        (_, text) => text.ok_or(RequestError::Missing)?,
    };
    let StoredRequest { vars, prompt, plan, model, effort, max_iterations, by } =
        serde_json::from_str(text)?;
    let newer = serde_json::Map::new();
    let request = RunRequest { vars, prompt, plan, model, effort, max_iterations, newer };
    Ok(Asked { request: Some(request), by })
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves STATE-7
    #[test]
    fn a_request_is_read_whole_or_not_at_all() {
        let by = Some(Person { uid: 7, user: "ann".to_owned() });
        let request = RunRequest {
            vars: BTreeMap::from([("host".to_owned(), "a".to_owned())]),
            prompt: Some("p".to_owned()),
            plan: true,
            model: Some("big".to_owned()),
            effort: Some("high".to_owned()),
            max_iterations: Some(3),
            ..RunRequest::default()
        };
        let origin = Origin::manual(request.clone(), by.clone());
        let text = to_column(&origin).unwrap();
        let read = of_column(Trigger::Manual, text.as_deref()).unwrap();
        assert_eq!(read, Asked { request: Some(request), by });
        let text = text.unwrap();
        for cut in (0..text.len()).map(|end| text.get(..end).unwrap()) {
            assert!(of_column(Trigger::Manual, Some(cut)).is_err(), "{cut}");
        }
        // Of an earlier version.
        let read = of_column(Trigger::Retry, Some(r#"{"vars":{},"prompt":null,"plan":true}"#));
        let Asked { request, by } = read.unwrap();
        assert!(request.unwrap().plan && by.is_none());
        let bad = [
            None,
            Some(""),
            Some("{}"),
            Some("null"),
            Some(r#"{"vars":{},"prompt":null}"#),
            Some(r#"{"vars":{},"plan":true}"#),
            Some(r#"{"prompt":null,"plan":true}"#),
            Some(r#"{"vars":{},"prompt":null,"plan":"true"}"#),
            Some(r#"{"vars":{},"prompt":null,"plan":true,"colour":"red"}"#),
        ];
        for text in bad {
            for trigger in [Trigger::Manual, Trigger::Retry] {
                assert!(of_column(trigger, text).is_err(), "{text:?}");
            }
        }
    }
}
