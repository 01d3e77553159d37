//! The checklist before the first model call: what would make the run fail at night is said before a token is spent.

use crate::agent::Toolbox;
use crate::config::{Config, Job, Listed};
use crate::domain::PreflightItem;

/// Returns the checklist of a job.
#[must_use]
pub fn preflight(
    config: &Config,
    job: &Job,
    working_dir: &std::path::Path,
    toolbox: &Toolbox,
) -> Vec<PreflightItem> {
    let item =
        |name: &str, ok: bool, detail: String| PreflightItem { name: name.to_owned(), ok, detail };
    let mut items = Vec::new();
    items.push(match config.model_of(job) {
        Some(model) => item("model", true, format!("{} ({})", model.name, model.provider_word())),
        None => {
            item("model", false, "no model is configured: add `models:` to config.yaml".to_owned())
        }
    });
    items.push(match std::fs::metadata(working_dir) {
        Ok(meta) if meta.is_dir() => item("working_dir", true, working_dir.display().to_string()),
        Ok(_) => item("working_dir", false, format!("{} is no directory", working_dir.display())),
        Err(error) => item("working_dir", false, format!("{}: {error}", working_dir.display())),
    });
    for Listed { tool, .. } in job.policy.write.iter().chain(&job.policy.admin) {
        let name = format!("program of {tool}");
        items.push(match config.tools.get(tool) {
            None => item(&name, false, "the tool is not declared".to_owned()),
            Some(declared) => match &declared.program.path {
                Some(path) => item(&name, true, path.display().to_string()),
                None => item(&name, false, format!("`{}` was not found", declared.program.written)),
            },
        });
    }
    let offered = toolbox.offered().len();
    items.push(item("tools", true, format!("{offered} offered to the model")));
    items
}
