//! Edits the body of a request: the objects of its lists, and their fields.

use serde_json::{Map, Value};

/// Returns the objects of the list at `field` of a body.
pub(super) fn objects_mut<'a>(
    body: &'a mut Value,
    field: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let list = body.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Removes fields from the objects of the list at `list`. Returns whether one of them had any.
pub(super) fn remove_fields(body: &mut Value, list: &str, fields: &[&str]) -> bool {
    let mut had = false;
    for object in objects_mut(body, list) {
        for field in fields {
            had |= object.shift_remove(*field).is_some();
        }
    }
    had
}

/// Removes entries from the lists at `inner` of the objects of the list at `list`. Returns whether
/// there were any.
pub(super) fn remove_entries(
    body: &mut Value,
    list: &str,
    inner: &str,
    is_removed: impl Fn(&Value) -> bool,
) -> bool {
    let mut had = false;
    for object in objects_mut(body, list) {
        if let Some(entries) = object.get_mut(inner).and_then(Value::as_array_mut) {
            let count = entries.len();
            entries.retain(|entry| !is_removed(entry));
            had |= entries.len() < count;
        }
    }
    had
}
