//! A parameter that requests leave out, as the transcript records it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A parameter that a model refused during a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DroppedParameter {
    /// The name of the model in `config.yaml`.
    pub model: String,
    /// The name of the parameter, as `dutyd models` shows it.
    pub parameter: String,
}
