//! Tells systemd in one line what the daemon does (`STATUS=`), for `systemctl status`.

use sd_notify::NotifyState;

use super::Supervisor;
use crate::text::escape::one_line;

impl Supervisor {
    /// Sends the line if it has changed. Without systemd, nothing is sent.
    pub(super) fn tell_systemd(&mut self) {
        let line = self.notice();
        if line != self.told {
            let _ = sd_notify::notify(&[NotifyState::Status(&line)]);
            self.told = line;
        }
    }

    /// *Shape*: `12 jobs (1 paused), 2 active and 3 queued runs; degraded: no run begins, because …`
    fn notice(&self) -> String {
        let what = format!(
            "{} jobs ({} paused), {} active and {} queued runs",
            self.config.borrow().jobs.len(),
            self.paused_jobs(),
            self.active.len(),
            self.queue.len() + self.retries.len(),
        );
        let stopping = if self.stopping.is_some() { "stopping; " } else { "" };
        let degraded = self.degraded();
        let faults = match degraded.as_slice() {
            [] => String::new(),
            [only] => format!("; degraded: {only}"),
            [first, others @ ..] => format!("; degraded: {first} (and {} more)", others.len()),
        };
        // A line end would begin another assignment of the message.
        one_line(&format!("{stopping}{what}{faults}"))
    }
}
