//! Approvals that wait for an answer over the control socket.
//!
//! Each takes one answer. An answer that comes late, twice or for an unknown id is rejected
//! (WEB-8).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use tokio::sync::oneshot;

use crate::agent::{ApprovalAnswer, ApprovalRequest, Approver};
use crate::clock::Clock;

/// Ids of decided approvals that are kept, to tell a late answer from an unknown id.
const REMEMBERED: usize = 1000;

/// Why an answer is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// No pending or recently decided approval has this id.
    #[error("no such approval")]
    Unknown,
    /// The approval was already decided, it has expired, or its run no longer waits for it.
    #[error("the approval was already decided or has expired")]
    Decided,
}

/// The pending approvals of this process.
#[derive(Debug, Default)]
pub struct Approvals {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their arrival.
    waiting: Vec<Pending>,
    decided: VecDeque<String>,
}

#[derive(Debug)]
struct Pending {
    request: ApprovalRequest,
    sender: oneshot::Sender<ApprovalAnswer>,
}

impl State {
    /// Removes a pending request; `None` if none has this id.
    fn take(&mut self, id: &str) -> Option<Pending> {
        let at = self.waiting.iter().position(|pending| pending.request.approval_id == id)?;
        Some(self.waiting.remove(at))
    }

    fn decide(&mut self, id: &str) {
        self.decided.push_back(id.to_owned());
        while self.decided.len() > REMEMBERED {
            self.decided.pop_front();
        }
    }
}

impl Approvals {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pending requests, oldest first.
    #[must_use]
    pub fn waiting(&self) -> Vec<ApprovalRequest> {
        self.lock().waiting.iter().map(|pending| pending.request.clone()).collect()
    }

    /// Answers a pending request.
    ///
    /// *Errors*: [`AnswerError`].
    pub fn answer(&self, id: &str, answer: ApprovalAnswer) -> Result<(), AnswerError> {
        let mut state = self.lock();
        let Some(Pending { sender, .. }) = state.take(id) else {
            let is_known = state.decided.iter().any(|known| known == id);
            return Err(if is_known { AnswerError::Decided } else { AnswerError::Unknown });
        };
        state.decide(id);
        sender.send(answer).map_err(|_| AnswerError::Decided)
    }
}

/// Asks for approvals over the control socket.
pub struct SocketApprover {
    approvals: Arc<Approvals>,
    clock: Arc<dyn Clock>,
}

impl SocketApprover {
    /// Returns an approver that adds its requests to `approvals`.
    #[must_use]
    pub fn new(approvals: Arc<Approvals>, clock: Arc<dyn Clock>) -> Self {
        Self { approvals, clock }
    }
}

/// Removes a pending request when the future that waits for its answer is dropped.
struct PendingGuard<'a>(&'a Approvals, String);

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.take(&self.1).is_some() {
            state.decide(&self.1);
        }
    }
}

#[async_trait]
impl Approver for SocketApprover {
    fn expires_at(&self, timeout: Duration) -> DateTime<Utc> {
        self.clock.now() + timeout
    }

    async fn ask(&self, request: ApprovalRequest) -> ApprovalAnswer {
        let (sender, answer) = oneshot::channel();
        let id = request.approval_id.clone();
        self.approvals.lock().waiting.push(Pending { request, sender });
        let _pending = PendingGuard(&self.approvals, id);
        match answer.await {
            Ok(answer) => answer,
            // The sender is gone, so no answer can come. Wait for the caller's timeout.
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::clock::SystemClock;
    use crate::domain::{CallId, Category};

    // proves WEB-8
    #[tokio::test]
    async fn an_approval_is_good_for_one_answer() {
        let approvals = Arc::new(Approvals::default());
        let approver = SocketApprover::new(approvals.clone(), Arc::new(SystemClock));
        let request = |id: &str| ApprovalRequest {
            approval_id: id.to_owned(),
            run_id: "r".into(),
            job: "j".into(),
            call_id: CallId::parse("c").unwrap(),
            tool: "t".into(),
            category: Category::Admin,
            arguments: Map::new(),
            argv: Vec::new(),
            working_dir: "/".into(),
            binding: Default::default(),
            reason: "x".into(),
            expires_at: approver.expires_at(Duration::from_secs(60)),
        };
        let yes = || ApprovalAnswer { approved: true, by: "me".into(), reason: None };
        assert_eq!(approvals.answer("a", yes()), Err(AnswerError::Unknown));
        let asked = approver.ask(request("a"));
        tokio::pin!(asked);
        assert!(futures_util::poll!(&mut asked).is_pending());
        assert_eq!(approvals.waiting().len(), 1);
        assert_eq!(approvals.answer("a", yes()), Ok(()));
        assert_eq!(approvals.answer("a", yes()), Err(AnswerError::Decided));
        assert!(asked.await.approved);
        // A request whose asker is gone cannot be answered any more.
        {
            let late = approver.ask(request("b"));
            tokio::pin!(late);
            assert!(futures_util::poll!(&mut late).is_pending());
        }
        assert_eq!(approvals.answer("b", yes()), Err(AnswerError::Decided));
        assert!(approvals.waiting().is_empty());
        let (older, newer) = (approver.ask(request("d")), approver.ask(request("c")));
        tokio::pin!(older, newer);
        assert!(futures_util::poll!(&mut older).is_pending());
        assert!(futures_util::poll!(&mut newer).is_pending());
        let ids = approvals.waiting().into_iter().map(|request| request.approval_id);
        assert_eq!(ids.collect::<Vec<_>>(), ["d", "c"]);
    }
}
