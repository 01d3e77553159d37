//! Receivers of events other than the transcript. They can neither slow down a run nor make it
//! fail.

mod delivery;
mod observers;

pub use delivery::{Delivery, DeliveryError};
pub use observers::{Observed, Observers};
