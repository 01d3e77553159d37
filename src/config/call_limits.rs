//! `builtin_tools` of config.yaml: limits of single built-in tools, in place of their defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::builtin::Builtin;
use super::raw::RawCallLimits;
use crate::argv::{Diagnostic, Diagnostics, pointer_segment};
use crate::text::quantity;
use crate::text::suggest::nearest;

/// The limits of the calls of a tool, as far as the operator sets them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallLimits {
    pub timeout: Option<Duration>,
    /// Characters of the output that the model sees.
    pub characters: Option<usize>,
    /// Lines of the output that the model sees.
    pub lines: Option<usize>,
}

impl CallLimits {
    /// Checks `builtin_tools`.
    pub(crate) fn of_builtins(
        raw: Option<&BTreeMap<String, RawCallLimits>>,
        diagnostics: &mut Diagnostics,
    ) -> BTreeMap<String, Self> {
        let mut limits = BTreeMap::new();
        for (name, raw) in raw.into_iter().flatten() {
            let here = format!("/builtin_tools/{}", pointer_segment(name));
            if Builtin::find(name).is_none() {
                let error = Diagnostic::new(&here, format!("unknown built-in tool `{name}`"));
                let near = nearest(name, Builtin::all().map(|tool| tool.name));
                diagnostics.errors.push(match near {
                    Some(near) => error.with_hint(format!("did you mean `{near}`?")),
                    None => error,
                });
                continue;
            }
            let timeout = match raw.timeout.as_deref().map(quantity::duration) {
                Some(Ok(timeout)) if timeout > Duration::ZERO => Some(timeout),
                Some(Ok(_)) => {
                    diagnostics.error(&format!("{here}/timeout"), "`timeout` must be positive");
                    None
                }
                Some(Err(message)) => {
                    diagnostics.error(&format!("{here}/timeout"), message);
                    None
                }
                None => None,
            };
            let count = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok());
            let (characters, lines) = (count(raw.output_limit), count(raw.output_lines));
            limits.insert(name.clone(), Self { timeout, characters, lines });
        }
        limits
    }
}
