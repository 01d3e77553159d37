//! The catalogue of models: data with dates and sources, not code.
//!
//! `catalogue.json` is built in; an operator adds files of the same form. A model that no row names
//! gets the rules of its family, from the newest version that is not newer than it. This folder
//! does not know how a request is written.
//!
//! *Source*: `docs/design/config.md`, "What dutyd knows of models".

mod facts;
mod id;
mod lookup;
mod price;
mod rows;

pub use facts::{Facts, Origin, SourceKind};
pub use id::{ModelId, Version};
pub use lookup::{Catalogue, Found};
pub use price::{CacheWrites, LongRow, LongScope, PeakRow, Price, PriceRow, Prices, Rates};
pub use rows::{
    CatalogueFile, ChatRules, Effort, FamilyRow, FamilyRule, ModelRow, ProviderRow, ReasoningForm,
    TemperatureRule, Traits,
};
