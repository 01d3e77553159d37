//! What is derived from events. None of it can slow or fail a run.

mod observers;

pub use observers::{Observed, Observers};
