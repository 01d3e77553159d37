//! The request of a run as the ledger keeps it: complete, so that a missing part is not taken for a
//! default, which acts instead of planning (STATE-7).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::daemon::command::RunRequest;
use crate::domain::Person;

/// *Shape*: `{"vars":{},"prompt":null,"plan":true,"by":{"uid":1000,"user":"ann"}}`
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptRequest {
    vars: BTreeMap<String, String>,
    /// Without the attribute, serde reads a missing prompt as null.
    #[serde(deserialize_with = "Option::deserialize")]
    prompt: Option<String>,
    plan: bool,
    /// Missing in the ledger of an earlier version. It grants nothing, so it may be unknown.
    #[serde(default)]
    by: Option<Person>,
}

/// Returns the text that the ledger keeps of a request that `by` made.
pub(super) fn kept(request: &RunRequest, by: Option<&Person>) -> Option<String> {
    let RunRequest { vars, prompt, plan, .. } = request.clone();
    // A request that could not be written ends its run when it is read.
    serde_json::to_string(&KeptRequest { vars, prompt, plan, by: by.cloned() }).ok()
}

/// Returns the request that [`kept`] wrote.
///
/// *Errors*: why the request cannot be read.
pub(super) fn read(text: Option<&str>) -> Result<RunRequest, String> {
    let text = text.ok_or("the ledger lacks its request")?;
    let KeptRequest { vars, prompt, plan, by } = serde_json::from_str(text)
        .map_err(|error| format!("its request in the ledger cannot be read: {error}"))?;
    Ok(RunRequest { vars, prompt, plan, by, ..RunRequest::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    // proves STATE-7
    #[test]
    fn a_request_is_read_whole_or_not_at_all() {
        let by = Person { uid: 7, user: "ann".to_owned() };
        let request = RunRequest {
            vars: BTreeMap::from([("host".to_owned(), "a".to_owned())]),
            prompt: Some("p".to_owned()),
            plan: true,
            ..RunRequest::default()
        };
        let text = kept(&request, Some(&by)).unwrap();
        let found = read(Some(&text)).unwrap();
        assert_eq!((found.vars, found.prompt, found.plan), (request.vars, request.prompt, true));
        assert_eq!(found.by, Some(by));
        // Of an earlier version.
        let found = read(Some(r#"{"vars":{},"prompt":null,"plan":true}"#)).unwrap();
        assert!(found.plan && found.by.is_none());
        assert!(read(None).is_err());
        for cut in (0..text.len()).map(|end| text.get(..end).unwrap()) {
            assert!(read(Some(cut)).is_err(), "{cut}");
        }
        for (part, other) in [
            (r#""plan":true,"#, ""),
            (r#""prompt":"p","#, ""),
            (r#""vars":{"host":"a"},"#, ""),
            (r#""plan":true"#, r#""plan":null"#),
            (r#""plan":true"#, r#""plan":true,"of_a_newer_version":1"#),
        ] {
            let other = text.replacen(part, other, 1);
            assert!(other != text && read(Some(&other)).is_err(), "{other}");
        }
    }
}
