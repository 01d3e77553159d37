//! Receivers of events other than the transcript. They can neither slow down a run nor make it
//! fail.

mod observers;

pub use observers::{Observed, Observers};
