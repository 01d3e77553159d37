//! Who is told what of a job.

use super::JobChecker;
use crate::argv::Diagnostics;
use crate::config::destination::notice_rules;
use crate::config::raw::RawJob;
use crate::domain::{NoticeEvent, NoticeEvents, NoticeRule};

impl JobChecker<'_> {
    /// Returns who is told what of the job: its own list, else that of the defaults.
    pub(super) fn notify(&mut self, raw: &RawJob) -> Vec<NoticeRule> {
        // Without a readable config.yaml, the destinations are not known.
        let known = self.ctx.models.map(|_| &self.ctx.settings.destinations);
        match (&raw.notify, &self.ctx.defaults.notify) {
            (Some(own), _) => notice_rules(own, "/notify", known, &mut self.diagnostics),
            // The loader reports the errors of the defaults once.
            (None, Some(defaults)) => {
                notice_rules(defaults, "", known, &mut Diagnostics::default())
            }
            (None, None) => Vec::new(),
        }
    }

    /// Reports each `status:VALUE` that the schema of the answer excludes.
    pub(super) fn verdicts(&mut self, raw: &RawJob, notify: &[NoticeRule]) {
        let status = raw
            .output_schema
            .as_ref()
            .and_then(|schema| schema.get("properties")?.get("status")?.get("enum")?.as_array());
        // A list of the defaults is for jobs with and without this schema.
        let Some(values) = status.filter(|_| raw.notify.is_some()) else { return };
        for (at, rule) in notify.iter().enumerate() {
            let NoticeEvents::Listed(events) = &rule.on else { continue };
            for event in events {
                let NoticeEvent::Status(value) = event else { continue };
                if values.iter().all(|known| known.as_str() != Some(value)) {
                    let message = format!(
                        "`output_schema` has no status `{value}`, so `status:{value}` would never be sent"
                    );
                    self.error(&format!("/notify/{at}/on"), message);
                }
            }
        }
    }
}
