//! `builtin_tools` of config.yaml: limits of single built-in tools, in place of their defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::builtin::Builtin;
use super::raw::RawCallLimits;
use crate::argv::{Diagnostic, Diagnostics, pointer_segment};
use crate::text::quantity;
use crate::text::suggest::nearest;

/// The tool that takes `max_bytes`, and the bounds of its value: the body is held in memory.
const FETCH: &str = "web_fetch";
const RESPONSE_BYTES: std::ops::RangeInclusive<u64> = 1024..=64 << 20;

/// The limits of the calls of a tool, as far as the operator sets them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallLimits {
    pub timeout: Option<Duration>,
    /// Characters of the output that the model sees.
    pub characters: Option<usize>,
    /// Lines of the output that the model sees.
    pub lines: Option<usize>,
    /// Bytes of a response of `web_fetch`, packed or unpacked.
    pub response_bytes: Option<usize>,
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
            let response_bytes = response_bytes(name, raw, &here, diagnostics);
            limits.insert(name.clone(), Self { timeout, characters, lines, response_bytes });
        }
        limits
    }
}

fn response_bytes(
    tool: &str,
    raw: &RawCallLimits,
    here: &str,
    diagnostics: &mut Diagnostics,
) -> Option<usize> {
    let here = format!("{here}/max_bytes");
    let text = raw.max_bytes.as_deref()?;
    if tool != FETCH {
        diagnostics.error(&here, format!("`max_bytes` applies only to `{FETCH}`"));
        return None;
    }
    match quantity::size(text) {
        Ok(bytes) if RESPONSE_BYTES.contains(&bytes) => usize::try_from(bytes).ok(),
        Ok(_) => {
            diagnostics.error(&here, "`max_bytes` must be from 1KiB to 64MiB");
            None
        }
        Err(message) => {
            diagnostics.error(&here, message);
            None
        }
    }
}
