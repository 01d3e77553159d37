//! People who give texts to a session, for the sessions that are cut off and resumed.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::agent::{GivenText, WaitingTexts};
use crate::domain::{QueuedText, TextKind};

/// The people who give texts to a session, each text once.
#[derive(Clone)]
pub(super) struct People {
    pub(super) texts: Vec<(Moment, TextKind)>,
    /// The ids of the texts that they have given.
    pub(super) given: Arc<Mutex<BTreeSet<String>>>,
    pub(super) inbox: Inbox,
}

/// When a text comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// While the model answers after this number of replies.
    Request(usize),
    /// While a call with this argument `n` or `at` runs.
    Call(u64),
}

impl People {
    /// Returns the people after these events, and which texts wait.
    pub(super) async fn after(
        before: &[Event],
        texts: &[(Moment, TextKind)],
        record: Arc<Record>,
    ) -> (Self, WaitingTexts) {
        let (mut given, mut waiting) = (BTreeSet::new(), Vec::new());
        for event in before {
            match event {
                Event::InputQueued { kind, text, by, text_id } => {
                    given.insert(text_id.clone());
                    let (text_id, text, by) = (text_id.clone(), text.clone(), by.clone());
                    waiting.push(QueuedText { text_id, kind: *kind, text, by });
                }
                Event::SteeringInjected { text, .. } | Event::UserInput { text, .. } => {
                    waiting.retain(|waiting| waiting.text != *text);
                }
                _ => {}
            }
        }
        let (kinds, inbox) = (WaitingTexts::of(&waiting), Inbox::default());
        inbox.open(record, waiting, Vec::new()).await.unwrap();
        let (texts, given) = (texts.to_vec(), Arc::new(Mutex::new(given)));
        (Self { texts, given, inbox }, kinds)
    }

    async fn give_one(&self, text: QueuedText) {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let answer = Box::new(move |given| drop(answer.send(given)));
        let (sender, given) = tokio::sync::mpsc::channel(1);
        assert!(sender.try_send(GivenText { text, answer }).is_ok());
        tokio::select! {
            never = self.inbox.serve(given) => match never {},
            answer = answered => answer.unwrap().unwrap(),
        }
    }

    /// Gives the texts of this moment.
    pub(super) async fn give(&self, moment: Moment) {
        for (at, (of, kind)) in self.texts.iter().enumerate() {
            let text_id = format!("text {at}");
            if *of == moment && self.given.lock().unwrap().insert(text_id.clone()) {
                let text = format!("{kind:?} {at}");
                let text = QueuedText::new(text_id, *kind, text, None).unwrap();
                self.give_one(text).await;
            }
        }
    }
}

pub(super) fn texts() -> impl Strategy<Value = Vec<(Moment, TextKind)>> {
    let moment = prop_oneof![
        3 => (0usize..5).prop_map(Moment::Request),
        1 => prop::sample::select(vec![1, 2]).prop_map(Moment::Call),
    ];
    let kind = prop::sample::select(vec![TextKind::Steering, TextKind::FollowUp]);
    prop_oneof![1 => Just(Vec::new()), 2 => prop::collection::vec((moment, kind), 1..4)]
}
