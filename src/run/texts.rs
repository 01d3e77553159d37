//! The texts that people give to a run.

use super::history::RunHistory;
use super::host::RunError;
use super::scope::RunScope;
use crate::domain::Event;

impl RunScope {
    /// Lets the run accept texts: those that its record has and that it has not taken, and those that
    /// came before it began, which are recorded now. Call it once the run has its first line, or the line
    /// with which it continues.
    ///
    /// *Errors*: [`RunError::Record`].
    pub(super) async fn accept_texts(&self, history: Option<&RunHistory>) -> Result<(), RunError> {
        if !self.spec.is_queued {
            return Ok(());
        }
        let run_id = &self.spec.run_id;
        let ledger = self.host.ledger.get().await;
        let kept = match &ledger {
            Ok(ledger) => ledger.texts_of(run_id.clone()).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let (mut new, unreadable) = match kept {
            Ok(kept) => (kept.texts, kept.unreadable),
            Err(error) => (Vec::new(), vec![error]),
        };
        for why in unreadable {
            let message = format!("a text that a person gave to this run cannot be read: {why}");
            self.record(Event::warning("queued_text", message)).await?;
        }
        // A crash may have come between the record and the ledger.
        new.retain(|text| history.is_none_or(|history| !history.text_ids.contains(&text.text_id)));
        let waiting = history.map(|history| history.waiting_texts.clone()).unwrap_or_default();
        let opened = self.inbox.open(self.sink.clone(), waiting, new).await;
        opened.map_err(|error| RunError::Record(error.0))?;
        if let Ok(ledger) = ledger
            && let Err(error) = ledger.forget_texts(run_id.clone()).await
        {
            tracing::warn!(%run_id, %error, "failed to remove the texts of a started run from the ledger");
        }
        Ok(())
    }

    /// Accepts no further text. Returns a warning if there are texts that the run has not taken.
    pub(super) async fn refuse_texts(&self) -> Option<Event> {
        let message = match self.inbox.close().await {
            0 => return None,
            1 => "the run ended before it took a text that a person had given".to_owned(),
            left => format!("the run ended before it took {left} texts that people had given"),
        };
        Some(Event::warning("texts_not_taken", message))
    }
}
