//! Tools as the loop sees them: in this version those that `tools.yaml` declares.
//!
//! A tool takes a prepared call and gives back content; a failure is content too. It knows neither schedules nor the database; where whole
//! outputs are kept is behind [`OutputStore`].

mod cages;
mod declared;
mod output;

pub use cages::Cages;
pub use declared::{DeclaredTool, ToolSurroundings};
pub use output::{Collected, Collector, INLINE_LIMIT, OutputStore};
