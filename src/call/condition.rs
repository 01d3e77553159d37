//! Conditions on arguments: `args: {replicas: {maximum: 10}}`, a JSON Schema for each named argument.
//!
//! Used where a job lists a tool only for certain arguments, and where a tool says which arguments make it an admin call.

use std::collections::BTreeMap;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Map, Value};

use super::parameters::{Parameters, build, check_applies, judged_formats, tighten};
use super::{Fault, pointer_segment};
use crate::text::near::nearest;

/// A compiled condition.
#[derive(Debug, Clone)]
pub struct ArgumentConditions {
    schemas: Map<String, Value>,
    validators: BTreeMap<String, Arc<Validator>>,
}

impl ArgumentConditions {
    /// Compiles a condition over the parameters of a tool; `None` where they are not known before the tool runs.
    ///
    /// *Errors*: every fault, with pointers relative to the condition.
    pub fn compile(
        conditions: &Map<String, Value>,
        parameters: Option<&Parameters>,
    ) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut validators = BTreeMap::new();
        if conditions.is_empty() {
            faults.push(Fault::new("", "a condition without any argument says nothing"));
        }
        for (name, schema) in conditions {
            let pointer = format!("/{}", pointer_segment(name));
            if let Some(parameters) = parameters.filter(|known| known.get(name).is_none()) {
                let fault = Fault::new(&pointer, format!("the tool has no parameter `{name}`"));
                faults.push(match nearest(name, parameters.iter().map(|(known, _)| known)) {
                    Some(known) => fault.hint(format!("did you mean `{known}`?")),
                    None => fault,
                });
                continue;
            }
            let Some(schema) = schema.as_object() else {
                faults.push(Fault::new(
                    &pointer,
                    "a condition on an argument must be a JSON Schema object",
                ));
                continue;
            };
            if judged_formats(schema) > 0 {
                let message = "the formats `path` and `url` are for parameters: as a condition they say nothing";
                faults.push(Fault::new(&pointer, message));
            }
            if let Some((kind, of_items)) = parameters.map(|known| known.type_of(name)) {
                check_applies(schema, kind, &pointer, &mut faults);
                if let (Some(items), Some(kind)) =
                    (schema.get("items").and_then(Value::as_object), of_items)
                {
                    check_applies(items, kind, &format!("{pointer}/items"), &mut faults);
                }
            }
            let tightened = Value::Object(tighten(schema, &pointer, &[], &mut faults));
            match build(&tightened) {
                Ok(validator) => drop(validators.insert(name.clone(), Arc::new(validator))),
                Err(message) => faults.push(Fault::new(&pointer, message)),
            }
        }
        if faults.is_empty() {
            Ok(Self { schemas: conditions.clone(), validators })
        } else {
            Err(faults)
        }
    }

    /// Returns the name of the first argument that is missing or does not match; `None` if all match.
    #[must_use]
    pub fn first_mismatch(&self, arguments: &Map<String, Value>) -> Option<&str> {
        self.validators
            .iter()
            .find(|(name, validator)| {
                !arguments.get(*name).is_some_and(|value| validator.is_valid(value))
            })
            .map(|(name, _)| name.as_str())
    }

    /// Returns the condition as it was written.
    #[must_use]
    pub fn as_written(&self) -> &Map<String, Value> {
        &self.schemas
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn every_named_argument_must_match() {
        let parameters = Parameters::compile(&object(json!({
            "replicas": {"type": "integer"}, "deployment": {"type": "string"}
        })))
        .0
        .unwrap();
        let conditions = ArgumentConditions::compile(
            &object(json!({"replicas": {"maximum": 10}, "deployment": {"pattern": "web-.*"}})),
            Some(&parameters),
        )
        .unwrap();
        let check = |arguments: Value, expected: Option<&str>| {
            assert_eq!(conditions.first_mismatch(&object(arguments)), expected);
        };
        check(json!({"replicas": 10, "deployment": "web-a"}), None);
        check(json!({"replicas": 11, "deployment": "web-a"}), Some("replicas"));
        check(json!({"replicas": 1, "deployment": "x-web-a"}), Some("deployment"));
        check(json!({"replicas": 1}), Some("deployment"));
        let faults =
            ArgumentConditions::compile(&object(json!({"replica": {}})), Some(&parameters))
                .unwrap_err();
        assert_eq!(faults[0].hint.as_deref(), Some("did you mean `replicas`?"));
        for fails_open in [
            json!({"replicas": {"pattern": "1"}}),
            json!({"deployment": {"maximum": 10}}),
            json!({"deployment": {"anyOf": [{"minItems": 1}]}}),
        ] {
            assert!(
                ArgumentConditions::compile(&object(fails_open), Some(&parameters)).is_err(),
                "a condition that cannot apply would always hold"
            );
        }
        assert!(
            ArgumentConditions::compile(
                &object(json!({"replicas": {"maxmum": 1}})),
                Some(&parameters)
            )
            .is_err()
        );
    }
}
