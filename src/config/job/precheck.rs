//! The precheck of a job: a read call that decides, without a model, whether a run has anything to
//! do.

use std::collections::BTreeMap;

use regex::Regex;

use super::{DeclaredCall, JobChecker};
use crate::config::raw::{RawPrecheck, RawRunWhen, RawRunWhenWord};

/// A call that decides whether a run has anything to do.
#[derive(Debug, Clone)]
pub struct Precheck {
    pub call: DeclaredCall,
    pub run_when: RunWhen,
}

/// The condition under which the answer of a precheck makes the run continue.
#[derive(Debug, Clone)]
pub enum RunWhen {
    /// The exit code or the output differs from that in the last run that succeeded or was planned.
    Changed,
    /// The exit code is not 0.
    ExitNonzero,
    /// The output is not blank.
    Nonempty,
    /// The output contains a match.
    Matches(Regex),
}

impl JobChecker<'_> {
    /// Checks the precheck of a job, and its call with the values of `vars` in the job.
    pub(super) fn precheck(
        &mut self,
        raw: Option<&RawPrecheck>,
        vars: &BTreeMap<String, String>,
    ) -> Option<Precheck> {
        let raw = raw?;
        let call = self.declared_call("/precheck", raw.tool.as_deref(), raw.args.as_ref(), vars);
        let run_when = match raw.run_when.as_ref()? {
            RawRunWhen::Word(RawRunWhenWord::Changed) => RunWhen::Changed,
            RawRunWhen::Word(RawRunWhenWord::ExitNonzero) => RunWhen::ExitNonzero,
            RawRunWhen::Word(RawRunWhenWord::Nonempty) => RunWhen::Nonempty,
            RawRunWhen::Matches(raw) => match Regex::new(&raw.matches) {
                Ok(regex) => RunWhen::Matches(regex),
                Err(error) => {
                    let message =
                        format!("not a regular expression that runs in linear time: {error}");
                    self.error("/precheck/run_when/matches", message);
                    return None;
                }
            },
        };
        Some(Precheck { call: call?, run_when })
    }
}
