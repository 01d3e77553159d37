//! Warns about entries of a job's `read` and `approve` lists that have no effect. `check.rs` does the
//! same for `write` and `admin`, whose entries may have conditions.

use super::JobChecker;
use crate::argv::Diagnostic;
use crate::config::raw::{RawJob, RawListed, RawPolicy, RawRead};
use crate::config::{Builtin, MCP_SEPARATOR};
use crate::domain::Category;

impl JobChecker<'_> {
    /// Warns about a tool under `read` that is not a read tool, and about a tool under `approve` that
    /// no other list admits: its calls are denied before a person is asked.
    pub(super) fn lists_without_effect(&mut self, raw: &RawJob) {
        let Some(lists) = raw.tools.as_ref() else { return };
        if let Some(RawRead::Names(names)) = &lists.read {
            for (at, name) in names.iter().enumerate() {
                let category = self.category(name).filter(|of| *of != Category::Read);
                let Some(category) = category else { continue };
                let message = format!(
                    "`{name}` has category {category}: an entry under `read` does not admit it"
                );
                self.warn_at(&format!("/tools/read/{at}"), message, name, category);
            }
        }
        for (at, name) in lists.approve.iter().flatten().enumerate() {
            let Some(category) = self.category(name) else { continue };
            if is_admitted(lists, name, category) {
                continue;
            }
            let message = format!(
                "`{name}` is not listed under `{category}`, so its calls are denied and never wait for approval"
            );
            self.warn_at(&format!("/tools/approve/{at}"), message, name, category);
        }
    }

    fn warn_at(&mut self, pointer: &str, message: String, name: &str, category: Category) {
        let hint = format!("write `{category}: [{name}]` under `tools`");
        self.diagnostics.warnings.push(Diagnostic::new(pointer, message).with_hint(hint));
    }

    /// Returns the category of a tool; `None` if the tool is unknown, which is an error elsewhere.
    fn category(&self, name: &str) -> Option<Category> {
        let declared = self.ctx.tools.and_then(|tools| tools.get(name)).map(|tool| tool.category);
        let of_server = || {
            let (server, tool) = name.split_once(MCP_SEPARATOR)?;
            Some(self.ctx.mcp_servers.get(server)?.category_of(tool))
        };
        let builtin = || Builtin::find(name).map(|tool| tool.category);
        declared.or_else(builtin).or_else(of_server)
    }
}

/// Tells whether the lists other than `approve` admit calls of a tool.
fn is_admitted(lists: &RawPolicy, name: &str, category: Category) -> bool {
    let is_listed = |entries: &Option<Vec<RawListed>>| {
        entries.iter().flatten().any(|entry| match entry {
            RawListed::Name(listed) => listed == name,
            RawListed::Conditional(entry) => entry.tool == name,
        })
    };
    let is_read = match &lists.read {
        None | Some(RawRead::All(_)) => true,
        Some(RawRead::Names(names)) => names.iter().any(|listed| listed == name),
    };
    // The gate raises a call by its arguments, so an entry in a higher list may admit it.
    is_listed(&lists.write) || is_listed(&lists.admin) || category == Category::Read && is_read
}
