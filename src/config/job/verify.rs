//! The checks of a job: read calls that dutyd makes after the final answer, with the results that they
//! must have.

use std::collections::BTreeMap;

use super::{DeclaredCall, JobChecker};
use crate::config::expect::Expect;
use crate::config::raw::{RawJob, RawRead};

/// A read call, and the result that it must have.
#[derive(Debug, Clone)]
pub struct VerifyStep {
    pub call: DeclaredCall,
    pub expect: Expect,
}

impl JobChecker<'_> {
    /// Checks `verify` and `verify_retries` of a job.
    pub(super) fn verify(
        &mut self,
        raw: &RawJob,
        vars: &BTreeMap<String, String>,
    ) -> Vec<VerifyStep> {
        let steps = raw.verify.as_deref().unwrap_or_default();
        if steps.is_empty() && raw.verify_retries.is_some_and(|retries| retries > 0) {
            self.error("/verify_retries", "`verify_retries` has no effect without `verify`");
        }
        let mut checks = Vec::new();
        for (at, step) in steps.iter().enumerate() {
            let pointer = format!("/verify/{at}");
            let call = self.declared_call(&pointer, step.tool.as_deref(), step.args.as_ref(), vars);
            if let Some(tool) = step.tool.as_deref().filter(|tool| is_refused(raw, tool)) {
                let message = format!(
                    "the job may not use `{tool}`: list it under `tools.read`, and not under `tools.deny`"
                );
                self.error(&format!("{pointer}/tool"), message);
            }
            let expect = step.expect.clone().unwrap_or_default();
            let of_expect = format!("{pointer}/expect");
            let expect = Expect::from_raw(&expect, &of_expect, &mut self.diagnostics);
            checks.extend(call.map(|call| VerifyStep { call, expect }));
        }
        checks
    }
}

/// Tells whether the lists of a job refuse each call of a read tool.
fn is_refused(raw: &RawJob, tool: &str) -> bool {
    let Some(tools) = &raw.tools else { return false };
    let names = |list: &[String]| list.iter().any(|name| name == tool);
    let is_listed = match &tools.read {
        Some(RawRead::Names(list)) => names(list),
        Some(RawRead::All(_)) | None => true,
    };
    !is_listed || tools.deny.as_deref().is_some_and(names)
}
