//! The checks of a job: read calls that dutyd makes after the final answer, with the results that they
//! must have.

use std::collections::BTreeMap;

use super::{DeclaredCall, JobChecker};
use crate::config::expect::Expect;
use crate::config::raw::RawJob;

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
            let expect = step.expect.clone().unwrap_or_default();
            let of_expect = format!("{pointer}/expect");
            let expect = Expect::from_raw(&expect, &of_expect, &mut self.diagnostics);
            checks.extend(call.map(|call| VerifyStep { call, expect }));
        }
        checks
    }
}
