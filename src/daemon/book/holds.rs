//! The models on hold, and the runs that wait for them.
//!
//! A run waits while its model and every fallback of it are on hold. Once a hold is over, one run asks the
//! model again; the others follow when it has answered. Runs that people request do not wait.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};

use super::effect::{Change, Effect};
use super::starts::job_of;
use super::{Admission, Book, Entry, Kind, Moment, Phase};
use crate::agent::{HeardOfModels, last_model};
use crate::config::{Config, Job, Provider};
use crate::daemon::rules::window;
use crate::domain::{
    DaemonEvent, DaemonRule, Hold, JobName, Message, NoticeRule, Outage, RunId, StopReason, Trigger,
};
use crate::store::{EndedRuns, SlotState};
use crate::text::escape::one_line;

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

    /// Makes the hold last after another failure.
    fn fail_again(&mut self, outage: Outage) {
        self.hold = self.hold.again(outage);
        (self.is_over, self.probe) = (false, None);
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
    /// When to look whether each waiting run has waited for too long. A run that has left the queue stays
    /// here until then.
    deadlines: BTreeSet<(DateTime<Utc>, RunId)>,
    /// The jobs of which a missed slot was told.
    missed: BTreeSet<JobName>,
}

/// Returns the names of the model of a job and of its fallbacks, in order.
fn models_of<'a>(config: &'a Config, job: Option<&'a Job>) -> impl Iterator<Item = &'a str> {
    let model = job.and_then(|job| config.model_of(job));
    let fallbacks = model.into_iter().flat_map(|model| &model.fallback);
    let fallbacks = fallbacks.filter(|name| config.models.contains_key(*name));
    model.map(|model| model.name.as_str()).into_iter().chain(fallbacks.map(String::as_str))
}

/// Returns the models that a queued run may ask, in order. One that continues begins with the model that
/// answered last or took over.
fn models_of_run<'a>(config: &'a Config, run: &'a Entry) -> Vec<&'a str> {
    let (config, job) = job_of(config, run);
    let models: Vec<&str> = models_of(config, job).collect();
    let Phase::Queued { resumed: Some(run), .. } = &run.phase else { return models };
    let last = last_model(&run.resumption.history.events);
    let at = models.iter().position(|model| Some(*model) == last);
    models.into_iter().skip(at.unwrap_or(0)).collect()
}

impl Holds {
    /// Returns the models with which a run begins; `None` if it waits.
    pub(super) fn admission(&self, config: &Config, run: &Entry) -> Option<Admission> {
        let models = models_of_run(config, run);
        let is_requested = run.origin.as_ref().is_some_and(|of| of.trigger == Trigger::Manual);
        if is_requested || !models.iter().any(|model| self.held(model).is_some()) {
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

    /// Returns the hold of a model for which runs wait.
    fn held(&self, model: &str) -> Option<&Hold> {
        self.models.get(model).filter(|of| of.is_waited_for()).map(|of| &of.hold)
    }

    /// Notes that a run begins to ask a model again.
    pub(super) fn begin_probe(&mut self, admission: &Admission, run_id: &RunId) {
        let model = admission.asks_again.as_ref().and_then(|model| self.models.get_mut(model));
        if let Some(of) = model {
            of.probe = Some(run_id.clone());
        }
    }

    /// Returns the holds that made a run of a job fail. `failed` are the models that failed the run;
    /// `None` if only its record is left.
    pub(super) fn of_failed(
        &self,
        config: &Config,
        job: &JobName,
        stop_reason: StopReason,
        failed: Option<&BTreeSet<String>>,
    ) -> Vec<&Hold> {
        let models: Vec<&str> = match (failed, stop_reason) {
            (Some(failed), _) => failed.iter().map(String::as_str).collect(),
            (None, StopReason::ProviderUnavailable | StopReason::ProviderAuth) => {
                models_of(config, config.jobs.get(job).map(AsRef::as_ref)).collect()
            }
            (None, _) => Vec::new(),
        };
        models.into_iter().filter_map(|model| self.held(model)).collect()
    }
}

/// Returns who is told what of the end of a run of a job, which failed for these holds.
pub(super) fn rules_for(config: &Config, job: &JobName, holds: &[&Hold]) -> Vec<NoticeRule> {
    let rules = config.jobs.get(job).into_iter().flat_map(|job| job.notify.clone());
    let is_told = |to: &String| holds.iter().any(|hold| hold.told.contains(to));
    rules.map(|rule| NoticeRule { knows_outage: is_told(&rule.to), ..rule }).collect()
}

impl Book {
    /// Takes the holds of an earlier daemon.
    pub(in crate::daemon) fn take_holds(&mut self, holds: Vec<Hold>, now: DateTime<Utc>) {
        let holds = holds.into_iter().map(|hold| hold.bounded(now));
        let holds = holds.map(|hold| Hold { cause: one_line(&hold.cause), ..hold });
        self.holds.models = holds.map(|hold| (hold.model.clone(), OnHold::new(hold))).collect();
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

    /// Returns the models of which an answer ends the hold, with the digests of their settings.
    pub(in crate::daemon) fn awaited_models(&self) -> BTreeMap<String, String> {
        self.held().map(|hold| (hold.model.clone(), hold.settings.clone())).collect()
    }

    /// Returns the holds of a job that all its models are on; empty if one of them is not.
    pub(in crate::daemon) fn holds_of(&self, config: &Config, job: &Job) -> Vec<&Hold> {
        let holds = models_of(config, Some(job)).map(|model| self.holds.held(model));
        let all: Option<Vec<&Hold>> = holds.collect();
        all.into_iter().flatten().collect()
    }

    /// Returns the models on hold for which a queued run waits.
    /// *Shape*: ``the model `main`, on hold until 03:12:00 UTC``.
    pub(in crate::daemon) fn hold_of_run(&self, config: &Config, run: &Entry) -> Option<String> {
        if self.holds.admission(config, run).is_some() {
            return None;
        }
        let models = models_of_run(config, run).into_iter();
        let holds = models.filter_map(|model| self.holds.held(model));
        let tell = |hold: &Hold| {
            let until = hold.until.format("%H:%M:%S UTC");
            format!("the model `{}`, on hold until {until}", hold.model)
        };
        Some(holds.map(tell).collect::<Vec<_>>().join(" and "))
    }

    /// Returns when a hold is over next, or a run has waited for too long, or an outage is over.
    pub(in crate::daemon) fn next_hold_change(&self) -> Option<DateTime<Utc>> {
        let over = self.holds.models.values().filter(|of| of.is_waited_for() && !of.is_over);
        let over = over.map(|of| of.hold.until);
        over.chain(self.holds.deadlines.first().map(|(at, _)| *at)).min()
    }

    /// Notes since when these runs wait for their models.
    pub(super) fn set_deadlines(&mut self, runs: Vec<RunId>, moment: &Moment<'_>) {
        for run_id in runs {
            let Some(run) = self.runs.get_mut(&run_id).filter(|run| run.is_new_slot()) else {
                continue;
            };
            run.held_since.get_or_insert(moment.now);
            let deadline = deadline(run, moment.config);
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

    /// Notes which models failed the last request of a run that has ended because of them.
    pub(super) fn note_outages(
        &mut self,
        run_id: &RunId,
        outages: Vec<Outage>,
        moment: &Moment<'_>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        for outage in outages {
            if settings_of(moment.config, &outage.model).as_ref() != Some(&outage.settings) {
                // The key or the address has changed since.
                continue;
            }
            let mut told = Vec::new();
            let hold = match self.holds.models.get_mut(&outage.model) {
                // The failure of the run that asked again is noted when it happens.
                Some(of) if of.is_waited_for() => {
                    let extended = of.hold.extended(&outage);
                    if extended == of.hold {
                        continue;
                    }
                    of.is_over = false;
                    of.hold.clone_from(&extended);
                    extended
                }
                Some(of) if of.hold.answered_at.is_some_and(|at| at > outage.at) => continue,
                Some(of) => {
                    of.fail_again(outage);
                    of.hold.clone()
                }
                None => {
                    let mut hold = Hold::begin(outage);
                    let summary = hold.describe(moment.now);
                    told = messages(moment, DaemonEvent::Unavailable, &hold, &summary);
                    hold.told = told.iter().map(|(to, _)| to.clone()).collect();
                    self.holds.models.insert(hold.model.clone(), OnHold::new(hold.clone()));
                    hold
                }
            };
            tracing::warn!(%run_id, "{}", hold.describe(moment.now));
            effects.push(Effect::Keep(Change::Hold { hold, messages: told }));
        }
        effects
    }

    /// Takes what has happened to the calls of models on hold: an answer lets the runs begin, and a failure
    /// of the run that asks again makes the hold last.
    pub(super) fn on_heard(&mut self, heard: HeardOfModels, moment: &Moment<'_>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let keep =
            |hold: &Hold| Effect::Keep(Change::Hold { hold: hold.clone(), messages: Vec::new() });
        for (run_id, outage) in heard.failures {
            let of = self.holds.models.get_mut(&outage.model);
            let of = of.filter(|of| of.hold.settings == outage.settings);
            let is_probe = |of: &OnHold| of.probe.as_ref().is_some_and(|id| id.as_str() == run_id);
            if let Some(of) = of.filter(|of| is_probe(of)) {
                of.fail_again(outage);
                tracing::warn!(run_id, "{}", of.hold.describe(moment.now));
                effects.push(keep(&of.hold));
            }
        }
        for model in heard.answers {
            let of = self.holds.models.get_mut(&model).filter(|of| of.is_waited_for());
            let Some(of) = of else { continue };
            tracing::info!(model, "the model answers again");
            of.hold = of.hold.answered(moment.now);
            of.probe = None;
            effects.push(keep(&of.hold));
            self.queue.release_held();
        }
        effects
    }

    /// Opens the holds that are over, ends the outages that are over, and ends the slots that have waited
    /// for too long.
    pub(super) fn tick_holds(&mut self, moment: &Moment<'_>) -> Vec<Effect> {
        if self.held().next().is_none() {
            self.holds.missed.clear();
        }
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
            let messages = messages(moment, DaemonEvent::Recovered, &hold, &summary);
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
        let mut told = Vec::new();
        while let Some((at, run_id)) = self.holds.deadlines.first().cloned()
            && at <= moment.now
        {
            self.holds.deadlines.pop_first();
            let run = self.runs.get(&run_id).filter(|run| run.is_new_slot());
            let Some(run) = run else { continue };
            // The window may be longer now.
            if let Some(later) = deadline(run, moment.config).filter(|later| *later > moment.now) {
                self.holds.deadlines.insert((later, run_id));
                continue;
            }
            let job = run.job.as_ref().and_then(|job| moment.config.jobs.get(job));
            let Some(job) = job.filter(|_| self.holds.admission(moment.config, run).is_none())
            else {
                continue;
            };
            let holds = self.holds_of(moment.config, job).into_iter();
            let causes: Vec<String> = holds.map(|hold| hold.describe(moment.now)).collect();
            let window = humantime::format_duration(window(job));
            let reason = format!(
                "waited for longer than {window}, the catch-up window: {}",
                causes.join("; ")
            );
            tracing::warn!(job = job.name.as_str(), %run_id, reason, "a slot is missed");
            // Of each job once, until no model is on hold.
            if self.holds.missed.insert(job.name.clone()) {
                let what = format!("has missed a slot: it {reason}");
                told.extend(NoticeRule::missed(&job.notify, &job.name, &what, moment.now));
            }
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
        if !told.is_empty() {
            effects.push(Effect::Keep(Change::Tell(told)));
        }
        effects
    }

    /// Ends the hold of each model whose key or address has changed, and of each model that is gone.
    pub(super) fn renew_holds(&mut self, moment: &Moment<'_>) -> Vec<Effect> {
        let is_other =
            |hold: &Hold| settings_of(moment.config, &hold.model).as_ref() != Some(&hold.settings);
        let ended = self.holds.models.extract_if(.., |_, of| is_other(&of.hold));
        let ended: Vec<Hold> = ended.map(|(_, of)| of.hold).collect();
        let end = |hold: Hold| {
            let summary = format!(
                "the settings of the model `{}` have changed; its hold is over",
                hold.model
            );
            tracing::info!("{summary}");
            let messages = messages(moment, DaemonEvent::Recovered, &hold, &summary);
            Effect::Keep(Change::EndHold { model: hold.model, messages })
        };
        // The models of the waiting runs may have changed too.
        self.queue.release_held();
        ended.into_iter().map(end).collect()
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

/// Returns until when a queued run may wait for its models; `None` if that has no end. A backfill waits for
/// as long as it takes.
fn deadline(run: &Entry, config: &Config) -> Option<DateTime<Utc>> {
    let job = run.job.as_ref().and_then(|job| config.jobs.get(job))?;
    let trigger = run.origin.as_ref().map(|origin| origin.trigger);
    let window = TimeDelta::from_std(window(job)).ok()?;
    let since = run.held_since.filter(|_| trigger != Some(Trigger::Backfill))?;
    since.checked_add_signed(window)
}

/// Returns the messages about a hold. Its end is told to those who were told of it.
fn messages(
    moment: &Moment<'_>,
    event: DaemonEvent,
    hold: &Hold,
    summary: &str,
) -> Vec<(String, Message)> {
    let rules = moment.config.settings.notify.iter();
    let rules =
        rules.filter(|rule| event != DaemonEvent::Recovered || hold.told.contains(&rule.to));
    let rules: Vec<DaemonRule> = rules.cloned().collect();
    DaemonRule::messages(&rules, event, event, Some(&hold.model), summary, moment.now)
}

/// Returns the digest of what decides whether a model answers; `None` if there is no such model.
fn settings_of(config: &Config, model: &str) -> Option<String> {
    match &config.models.get(model)?.provider {
        Provider::Remote(remote) => Some(remote.access_digest()),
        Provider::Scripted(_) => None,
    }
}
