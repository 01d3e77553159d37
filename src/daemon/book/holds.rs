//! The models on hold, and the runs that wait for them.
//!
//! A run waits while its model and every fallback of it are on hold. Once a hold is over, one run asks the
//! model again; the others follow when it has answered. Runs that people request do not wait.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::effect::{Change, Effect};
use super::{Admission, Book, Entry, Kind, Moment, Phase};
use crate::config::{Config, Job, Provider};
use crate::daemon::rules::window;
use crate::domain::{
    DaemonEvent, DaemonRule, Hold, JobName, Message, NoticeRule, Outage, RunId, StopReason, Trigger,
};
use crate::store::{EndedRuns, SlotState};

/// A model on hold, or one that has answered only a moment ago.
#[derive(Debug)]
struct OnHold {
    hold: Hold,
    /// Whether a run may ask the model again.
    is_over: bool,
    /// The run that asks it again.
    probe: Option<RunId>,
}

impl OnHold {
    fn new(hold: Hold) -> Self {
        Self { hold, is_over: false, probe: None }
    }

    /// Tells whether runs wait for the model.
    fn is_waited_for(&self) -> bool {
        self.hold.answered_at.is_none()
    }
}

/// The models on hold, by name.
#[derive(Debug, Default)]
pub(super) struct Holds {
    models: BTreeMap<String, OnHold>,
    /// When each waiting run has waited for too long. A run that has left the queue stays here until then.
    deadlines: BTreeSet<(DateTime<Utc>, RunId)>,
}

/// Returns the names of the model of a job and of its fallbacks, in order.
fn models_of<'a>(config: &'a Config, job: Option<&'a Job>) -> impl Iterator<Item = &'a str> {
    let model = job.and_then(|job| config.model_of(job));
    let fallbacks = model.into_iter().flat_map(|model| &model.fallback);
    let fallbacks = fallbacks.filter(|name| config.models.contains_key(*name));
    model.map(|model| model.name.as_str()).into_iter().chain(fallbacks.map(String::as_str))
}

/// Returns the models of a queued run.
fn models_of_run<'a>(config: &'a Config, run: &'a Entry) -> Vec<&'a str> {
    match &run.phase {
        Phase::Queued { resumed: Some(run), .. } => {
            models_of(&run.spec.config, Some(&run.spec.job)).collect()
        }
        Phase::Delayed { .. }
        | Phase::Queued { resumed: None, .. }
        | Phase::Active { .. }
        | Phase::Open { .. }
        | Phase::Settling(_) => {
            let job = run.job.as_ref().and_then(|job| config.jobs.get(job));
            models_of(config, job.map(AsRef::as_ref)).collect()
        }
    }
}

impl Holds {
    /// Returns the models with which a run begins; `None` if it waits.
    pub(super) fn admission(&self, config: &Config, run: &Entry) -> Option<Admission> {
        let models = models_of_run(config, run);
        let is_requested = run.origin.as_ref().is_some_and(|of| of.trigger == Trigger::Manual);
        if is_requested || !models.iter().any(|model| self.is_held(model)) {
            return Some(Admission::of_model(models.first().map_or("", |model| *model)));
        }
        let mut admission = Admission::default();
        for model in models {
            let of = self.models.get(model).filter(|of| of.is_waited_for());
            let may_ask = of.is_none_or(|of| of.is_over && of.probe.is_none());
            if !may_ask {
                admission.passed_over.push(model.to_owned());
            } else if admission.model.is_empty() {
                admission.asks_again = of.map(|_| model.to_owned());
                model.clone_into(&mut admission.model);
            }
        }
        (!admission.model.is_empty()).then_some(admission)
    }

    fn is_held(&self, model: &str) -> bool {
        self.models.get(model).is_some_and(OnHold::is_waited_for)
    }

    /// Notes that a run begins to ask a model again.
    pub(super) fn begin_probe(&mut self, admission: &Admission, run_id: &RunId) {
        let model = admission.asks_again.as_ref().and_then(|model| self.models.get_mut(model));
        if let Some(of) = model {
            of.probe = Some(run_id.clone());
        }
    }

    /// Returns who is told what of the end of a run of a job.
    pub(in crate::daemon) fn rules_for(
        &self,
        config: &Config,
        job: &JobName,
        stop_reason: StopReason,
    ) -> Vec<NoticeRule> {
        let Some(of_job) = config.jobs.get(job) else { return Vec::new() };
        let is_outage =
            matches!(stop_reason, StopReason::ProviderUnavailable | StopReason::ProviderAuth);
        let is_held =
            || models_of(config, Some(of_job)).any(|model| self.models.contains_key(model));
        let knows_outage = is_outage && is_held();
        let is_told = |to: &str| {
            let mut rules = config.settings.notify.iter();
            rules.any(|rule| rule.to == to && rule.on.contains(&DaemonEvent::Unavailable))
        };
        let rules = of_job.notify.iter().cloned();
        rules
            .map(|rule| NoticeRule { knows_outage: knows_outage && is_told(&rule.to), ..rule })
            .collect()
    }
}

impl Book {
    /// Takes the holds of an earlier daemon.
    pub(in crate::daemon) fn take_holds(&mut self, holds: Vec<Hold>) {
        let holds = holds.into_iter().map(|hold| (hold.model.clone(), OnHold::new(hold)));
        self.holds.models = holds.collect();
    }

    /// Returns the holds for whose end runs may wait.
    pub(in crate::daemon) fn held(&self) -> impl Iterator<Item = &Hold> {
        self.holds.models.values().filter(|of| of.is_waited_for()).map(|of| &of.hold)
    }

    /// Returns the models on hold, each with the number of runs that wait for it.
    pub(in crate::daemon) fn holds(&self, config: &Config) -> Vec<(&Hold, usize)> {
        let mut holds: Vec<(&Hold, usize)> = self.held().map(|hold| (hold, 0)).collect();
        if holds.is_empty() {
            return holds;
        }
        for (_, run) in self.of_kind(Kind::Queued) {
            if self.holds.admission(config, run).is_some() {
                continue;
            }
            let models = models_of_run(config, run);
            let own = holds.iter_mut().filter(|(hold, _)| models.contains(&hold.model.as_str()));
            own.for_each(|(_, waiting)| *waiting += 1);
        }
        holds
    }

    /// Returns the names of the models of which an answer ends the hold.
    pub(in crate::daemon) fn awaited_models(&self) -> BTreeSet<String> {
        self.held().map(|hold| hold.model.clone()).collect()
    }

    /// Returns the holds of a job that all its models are on; empty if one of them is not.
    pub(in crate::daemon) fn holds_of(&self, config: &Config, job: &Job) -> Vec<&Hold> {
        let held = |model| self.holds.models.get(model).filter(|of| of.is_waited_for());
        let models = || models_of(config, Some(job));
        if !models().all(|model| self.holds.is_held(model)) {
            return Vec::new();
        }
        models().filter_map(held).map(|of| &of.hold).collect()
    }

    /// Returns the models on hold for which a queued run waits.
    /// *Shape*: ``the model `main`, on hold until 03:12:00 UTC``.
    pub(in crate::daemon) fn hold_of_run(&self, config: &Config, run: &Entry) -> Option<String> {
        if self.holds.admission(config, run).is_some() {
            return None;
        }
        let held = |model| self.holds.models.get(model).filter(|of| of.is_waited_for());
        let holds = models_of_run(config, run).into_iter().filter_map(held);
        let tell = |of: &OnHold| {
            let until = of.hold.until.format("%H:%M:%S UTC");
            format!("the model `{}`, on hold until {until}", of.hold.model)
        };
        Some(holds.map(tell).collect::<Vec<_>>().join(" and "))
    }

    /// Returns when a hold is over next, or a run has waited for too long, or an outage is over.
    pub(in crate::daemon) fn next_hold_change(&self) -> Option<DateTime<Utc>> {
        let over = self.holds.models.values().filter(|of| of.is_waited_for() && !of.is_over);
        let over = over.map(|of| of.hold.until);
        over.chain(self.holds.deadlines.first().map(|(at, _)| *at)).min()
    }

    /// Sets until when these runs may wait for their models.
    pub(super) fn set_deadlines(&mut self, runs: Vec<RunId>, moment: &Moment<'_>) {
        for run_id in runs {
            let run = self.runs.get(&run_id).filter(|run| run.is_new_slot());
            let job = run.and_then(|run| run.job.as_ref());
            let Some(job) = job.and_then(|job| moment.config.jobs.get(job)) else { continue };
            let is_backfill = run.is_some_and(|run| {
                run.origin.as_ref().is_some_and(|of| of.trigger == Trigger::Backfill)
            });
            let begin = run_id.made_at().filter(|_| !is_backfill);
            let window = TimeDelta::from_std(window(job)).ok();
            let deadline = begin.zip(window).and_then(|(begin, of)| begin.checked_add_signed(of));
            self.holds.deadlines.extend(deadline.map(|deadline| (deadline, run_id)));
        }
    }

    /// Leaves the question to the next run, if this one was to ask a model again and has not.
    pub(super) fn end_probe(&mut self, run_id: &RunId) {
        let mut probes = self.holds.models.values_mut();
        if let Some(of) = probes.find(|of| of.probe.as_ref() == Some(run_id)) {
            of.probe = None;
            self.queue.release_held();
        }
    }

    /// Notes which models failed a run that has ended. `has_failed` tells whether the run failed for that.
    pub(super) fn note_outages(
        &mut self,
        run_id: &RunId,
        outages: Vec<Outage>,
        has_failed: bool,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for outage in outages {
            if settings_of(moment.config, &outage.model).as_ref() != Some(&outage.settings) {
                // The key or the address has changed since.
                continue;
            }
            let now = moment.now;
            let mut told = Vec::new();
            let hold = match self.holds.models.get_mut(&outage.model) {
                Some(of) if of.probe.as_ref() == Some(run_id) || !of.is_waited_for() => {
                    *of = OnHold::new(of.hold.again(outage, now));
                    of.hold.clone()
                }
                Some(of) => {
                    let extended = of.hold.extended(&outage, now);
                    if extended == of.hold {
                        continue;
                    }
                    of.is_over = false;
                    of.hold.clone_from(&extended);
                    extended
                }
                None if has_failed => {
                    let hold = Hold::begin(outage, now);
                    self.holds.models.insert(hold.model.clone(), OnHold::new(hold.clone()));
                    told =
                        messages(moment, DaemonEvent::Unavailable, &hold.model, &hold.describe());
                    hold
                }
                None => continue,
            };
            tracing::warn!(%run_id, "{}", hold.describe());
            effects.push(Effect::Keep(Change::Hold { hold, messages: told }));
        }
        effects
    }

    /// Lets the runs begin whose models have answered.
    pub(super) fn on_answers(
        &mut self,
        models: BTreeSet<String>,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for model in models {
            let Some(of) = self.holds.models.get_mut(&model).filter(|of| of.is_waited_for()) else {
                continue;
            };
            tracing::info!(model, "the model answers again");
            of.hold = of.hold.answered(moment.now);
            of.probe = None;
            let hold = of.hold.clone();
            effects.push(Effect::Keep(Change::Hold { hold, messages: Vec::new() }));
        }
        self.queue.release_held();
        effects
    }

    /// Opens the holds that are over, ends the outages that are over, and ends the slots that have waited
    /// for too long.
    pub(super) fn tick_holds(&mut self, moment: &Moment<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut is_changed = false;
        for of in self.holds.models.values_mut() {
            if of.is_waited_for() && !of.is_over && of.hold.is_over(moment.now) {
                of.is_over = true;
                is_changed = true;
            }
        }
        let recovered = self.holds.models.values().filter(|of| of.hold.has_recovered(moment.now));
        let recovered: Vec<Hold> = recovered.map(|of| of.hold.clone()).collect();
        for hold in recovered {
            self.holds.models.remove(&hold.model);
            let since = hold.since.format("%Y-%m-%d %H:%M UTC");
            let summary =
                format!("the model `{}` answers again; it was on hold since {since}", hold.model);
            let messages = messages(moment, DaemonEvent::Recovered, &hold.model, &summary);
            effects.push(Effect::Keep(Change::EndHold { model: hold.model, messages }));
        }
        if is_changed {
            self.queue.release_held();
        }
        effects.extend(self.miss_held(moment));
        effects
    }

    /// Ends the slots that have waited for longer than their jobs catch up.
    fn miss_held(&mut self, moment: &Moment<'_>) -> Vec<Effect> {
        let mut missed: BTreeMap<String, Vec<RunId>> = BTreeMap::new();
        while let Some((at, run_id)) = self.holds.deadlines.first().cloned()
            && at <= moment.now
        {
            self.holds.deadlines.pop_first();
            let run = self.runs.get(&run_id).filter(|run| run.is_new_slot());
            let Some(run) = run else { continue };
            let job = run.job.as_ref().and_then(|job| moment.config.jobs.get(job));
            let Some(job) = job.filter(|_| self.holds.admission(moment.config, run).is_none())
            else {
                continue;
            };
            let holds = self.holds_of(moment.config, job);
            let causes: Vec<String> = holds.into_iter().map(Hold::describe).collect();
            let window = humantime::format_duration(window(job));
            let reason = format!(
                "waited for longer than {window}, the catch-up window: {}",
                causes.join("; ")
            );
            missed.entry(reason).or_default().push(run_id);
        }
        let mut effects = Vec::new();
        for (reason, runs) in missed {
            for run_id in &runs {
                self.remove(run_id);
            }
            let (state, stop_reason) = (SlotState::Missed, StopReason::ProviderUnavailable);
            let ended = EndedRuns { runs, state, stop_reason, reason };
            effects.push(Effect::Keep(Change::EndWaiting(ended)));
        }
        effects
    }

    /// Opens the hold of each model whose key or address has changed, and ends that of a model that is
    /// gone.
    pub(super) fn renew_holds(&mut self, moment: &Moment<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let models: Vec<String> = self.holds.models.keys().cloned().collect();
        for model in models {
            let settings = settings_of(moment.config, &model);
            let Some(of) = self.holds.models.get_mut(&model) else { continue };
            match settings {
                Some(settings) if settings == of.hold.settings => {}
                Some(settings) => {
                    tracing::info!(
                        model,
                        "the settings of a model on hold have changed; a run asks it again"
                    );
                    let until = moment.now.min(of.hold.until);
                    of.hold = Hold { settings, until, failures: 0, ..of.hold.clone() };
                    (of.is_over, of.probe) = (true, None);
                    let hold = of.hold.clone();
                    effects.push(Effect::Keep(Change::Hold { hold, messages: Vec::new() }));
                }
                None => {
                    self.holds.models.remove(&model);
                    let summary = format!(
                        "the model `{model}` is gone from the configuration; its hold is over"
                    );
                    let messages = messages(moment, DaemonEvent::Recovered, &model, &summary);
                    effects.push(Effect::Keep(Change::EndHold { model, messages }));
                }
            }
        }
        // The models of the waiting runs may have changed too.
        self.queue.release_held();
        effects
    }

    /// Keeps the rest of each hold when the clock is set back from `before` to `now`.
    pub(super) fn move_holds(&mut self, before: DateTime<Utc>, now: DateTime<Utc>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for of in self.holds.models.values_mut() {
            let rest = (of.hold.until - before).max(TimeDelta::zero());
            of.hold.until = of.hold.until.min(now + rest);
            of.hold.answered_at = of.hold.answered_at.map(|at| at.min(now));
            let hold = of.hold.clone();
            effects.push(Effect::Keep(Change::Hold { hold, messages: Vec::new() }));
        }
        effects
    }
}

/// Returns the messages about a hold.
fn messages(
    moment: &Moment<'_>,
    event: DaemonEvent,
    model: &str,
    summary: &str,
) -> Vec<(String, Message)> {
    let (rules, of) = (&moment.config.settings.notify, DaemonEvent::Unavailable);
    DaemonRule::messages(rules, event, of, Some(model), summary, moment.now)
}

/// Returns the digest of what decides whether a model answers; `None` if there is no such model.
fn settings_of(config: &Config, model: &str) -> Option<String> {
    match &config.models.get(model)?.provider {
        Provider::Remote(remote) => Some(remote.access_digest()),
        Provider::Scripted(_) => None,
    }
}
