//! The limits of a job, with their defaults filled in.

use super::{JobChecker, LEAST_OUTPUT_BYTES, Limits, Rate};
use crate::config::raw::{RawJob, RawLimits};
use crate::text::quantity;

/// The smallest `max_tmp_bytes`.
const LEAST_TMP_BYTES: u64 = 1 << 20;

/// Returns how many of the last calls to check for repetitions; `None` if that is off.
pub(super) fn loop_window(raw: &RawJob) -> Option<usize> {
    let detection = raw.loop_detection.as_ref();
    let window = detection.and_then(|detection| detection.window);
    let is_on = detection.and_then(|detection| detection.enabled).unwrap_or(true);
    is_on.then(|| window.and_then(|window| usize::try_from(window).ok()).unwrap_or(10))
}

impl JobChecker<'_> {
    pub(super) fn limits(&mut self, raw: Option<&RawLimits>) -> Limits {
        let empty = RawLimits::default();
        let raw = raw.unwrap_or(&empty);
        let defaults = Limits::default();
        let max_output_bytes = self.size(
            "/limits/max_output_bytes",
            raw.max_output_bytes.as_deref(),
            LEAST_OUTPUT_BYTES,
            "`max_output_bytes` must be at least 4KiB",
            defaults.max_output_bytes,
        );
        let max_tmp_bytes = self.size(
            "/limits/max_tmp_bytes",
            raw.max_tmp_bytes.as_deref(),
            LEAST_TMP_BYTES,
            "`max_tmp_bytes` must be at least 1MiB",
            defaults.max_tmp_bytes,
        );
        let count = |value: Option<u64>, default: usize| {
            value.and_then(|v| usize::try_from(v).ok()).unwrap_or(default)
        };
        let tool_timeout = self.positive(
            "/limits/tool_timeout",
            raw.tool_timeout.as_deref(),
            defaults.tool_timeout,
        );
        Limits {
            max_iterations: raw.max_iterations.unwrap_or(defaults.max_iterations),
            max_tool_calls: raw.max_tool_calls.unwrap_or(defaults.max_tool_calls),
            max_tool_calls_per_turn: count(
                raw.max_tool_calls_per_turn,
                defaults.max_tool_calls_per_turn,
            ),
            max_duration: self.positive(
                "/limits/max_duration",
                raw.max_duration.as_deref(),
                defaults.max_duration,
            ),
            max_tokens: raw.max_tokens,
            max_cost_usd: raw.max_cost_usd,
            max_files_modified: raw.max_files_modified.unwrap_or(defaults.max_files_modified),
            max_lines_changed: raw.max_lines_changed.unwrap_or(defaults.max_lines_changed),
            error_threshold: raw.error_threshold.unwrap_or(defaults.error_threshold),
            tool_timeout,
            tool_timeout_cap: raw.tool_timeout.is_some().then_some(tool_timeout),
            output_limit: raw.output_limit.and_then(|limit| usize::try_from(limit).ok()),
            output_lines: raw.output_lines.and_then(|limit| usize::try_from(limit).ok()),
            max_output_bytes,
            max_tmp_bytes,
            parallel_reads: count(raw.parallel_reads, defaults.parallel_reads),
            rate: raw.rate.and_then(|rate| {
                Some(Rate { per_minute: rate.per_minute?, burst: rate.burst.unwrap_or(10) })
            }),
        }
    }

    fn size(
        &mut self,
        pointer: &str,
        text: Option<&str>,
        least: u64,
        too_small: &str,
        default: u64,
    ) -> u64 {
        match text.map(quantity::size) {
            None => default,
            Some(Ok(bytes)) if bytes >= least => bytes,
            Some(Ok(_)) => {
                self.error(pointer, too_small);
                default
            }
            Some(Err(message)) => {
                self.error(pointer, message);
                default
            }
        }
    }
}
