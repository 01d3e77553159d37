//! What a transcript says about how its session began, and which model it used.

use crate::domain::{Event, InputSource};

/// What the transcript of a session says about its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedStart {
    /// The system prompt.
    pub system: String,
    /// Length in bytes of the prefix that is the same in every run of the job.
    pub stable: usize,
    /// The input about the repository, if there was one.
    pub repository: Option<String>,
    /// The results of earlier runs, if there were any.
    pub recall: Option<String>,
    /// The task; `None` if the transcript ends before it.
    pub task: Option<String>,
}

impl RecordedStart {
    /// Tells whether the transcript ends before the input about the repository, if there is to be
    /// one.
    #[must_use]
    pub fn lacks_repository(&self) -> bool {
        self.repository.is_none() && self.recall.is_none() && self.task.is_none()
    }

    /// Tells whether the transcript ends before the results of earlier runs, if there are to be any.
    #[must_use]
    pub fn lacks_recall(&self) -> bool {
        self.recall.is_none() && self.task.is_none()
    }

    /// Returns the start of the session in a transcript; `None` if the transcript ends before it.
    #[must_use]
    pub fn find(events: &[Event]) -> Option<Self> {
        let (system, stable) = events.iter().find_map(|event| match event {
            Event::SystemPrompt { text, stable_bytes } => Some((text.clone(), *stable_bytes)),
            _ => None,
        })?;
        let input = |wanted: InputSource| {
            events.iter().find_map(|event| match event {
                Event::UserInput { text, source, .. } if *source == wanted => Some(text.clone()),
                _ => None,
            })
        };
        Some(Self {
            system,
            stable: usize::try_from(stable).unwrap_or(0),
            repository: input(InputSource::Repository),
            recall: input(InputSource::Recall),
            task: input(InputSource::Job),
        })
    }
}

/// Returns the name of the model that a recorded session used last, or to which it fell back.
#[must_use]
pub fn last_model(events: &[Event]) -> Option<&str> {
    events.iter().rev().find_map(|event| match event {
        Event::AssistantTextEnd { model, .. } | Event::Warning { model, .. } => model.as_deref(),
        _ => None,
    })
}
