//! The parameters that a provider refuses for a model, and how they are remembered beyond the run.

use async_trait::async_trait;

use crate::config::Remote;

/// Why requests leave out a parameter.
pub(super) enum Dropped {
    /// The provider refused it with this message, and has not answered since.
    Tried(String),
    /// The provider has answered without it.
    Known,
}

/// A parameter that a provider refuses for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// The name of the parameter.
    pub parameter: String,
    /// The provider's message, without secrets.
    pub said: String,
}

/// Remembers the parameters that providers refuse.
#[async_trait]
pub trait Lessons: Send + Sync {
    /// Remembers lessons about a model. A failure to store them is logged: the lesson then costs
    /// one request again.
    async fn keep(&self, model: &Remote, lessons: Vec<Lesson>);
}
