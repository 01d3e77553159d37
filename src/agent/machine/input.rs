//! Adds what people and the loop say to the history.

use super::{Action, Machine};
use crate::agent::stop::PERSON;
use crate::domain::{Event, InputSource, Turn};

impl Machine {
    /// Takes the task, which begins the history, or a follow-up.
    pub(super) fn on_submit(
        &mut self,
        text: String,
        source: InputSource,
        events: &mut Vec<Event>,
    ) -> Action {
        if !self.history.is_empty() {
            self.say(text, source, events);
            return self.ask_or_stop(events);
        }
        events.push(Event::SystemPrompt {
            text: self.system.text.clone(),
            stable_bytes: self.system.stable as u64,
        });
        // One turn, because some servers reject two user messages in a row.
        let mut turn = String::new();
        let repository = self.system.repository.take();
        let recall = self.system.recall.take();
        for (input, source) in
            [(repository, InputSource::Repository), (recall, InputSource::Recall)]
        {
            let Some(input) = input else { continue };
            turn.push_str(&input);
            turn.push_str("\n\n");
            events.push(Event::user_input(input, source));
        }
        events.push(Event::user_input(text.clone(), source));
        self.history.push(Turn::User(turn + &text));
        self.ask_or_stop(events)
    }

    /// Takes a steering text of a person.
    pub(super) fn on_steer(&mut self, text: String, events: &mut Vec<Event>) -> Action {
        self.steer(text, PERSON, events);
        self.ask_or_stop(events)
    }

    pub(super) fn say(&mut self, text: String, source: InputSource, events: &mut Vec<Event>) {
        events.push(Event::user_input(text.clone(), source));
        self.history.push(Turn::User(text));
    }

    pub(super) fn correct(
        &mut self,
        text: String,
        reason: Option<String>,
        events: &mut Vec<Event>,
    ) {
        let source = InputSource::Correction;
        events.push(Event::UserInput { text: text.clone(), source, reason });
        self.history.push(Turn::User(text));
    }

    pub(super) fn steer(&mut self, text: String, source: &str, events: &mut Vec<Event>) {
        events.push(Event::SteeringInjected { text: text.clone(), source: source.to_owned() });
        self.history.push(Turn::Steering(text));
    }
}
