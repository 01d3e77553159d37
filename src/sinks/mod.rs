//! Sinks derived from events. They can neither slow down nor fail a run.

mod observers;

pub use observers::{Observed, Observers};
