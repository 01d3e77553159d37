//! The model of a run and its fallbacks.

use std::sync::Arc;

use super::history::RunHistory;
use super::host::Host;
use super::lessons::{Learned, LedgerLessons};
use super::model_view::{facts_with, prices_with};
use super::spec::RunSpec;
use crate::agent::{Model as AgentModel, ModelFacts, ModelInUse};
use crate::catalogue::Effort;
use crate::config::{Model, Provider, Remote};
use crate::provider::{RemoteModel, ScriptContext, ScriptedModel};
use crate::text::redact::Redactor;

/// Returns the model of a job and its fallbacks, in order; empty if none is configured. `history` is
/// that of a resumed run.
pub(super) async fn models(
    spec: &RunSpec,
    host: &Host,
    history: Option<&RunHistory>,
) -> Vec<ModelInUse> {
    let Some(first) = spec.config.model_of(&spec.job) else { return Vec::new() };
    let others = first.fallback.iter().filter_map(|name| spec.config.models.get(name));
    let models: Vec<&Arc<Model>> = std::iter::once(first).chain(others).collect();
    let is_remote = |model: &&Arc<Model>| matches!(model.provider, Provider::Remote(_));
    let learned = if models.iter().any(is_remote) {
        Learned::read(host).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to read what is known of the models");
            // A parameter that a provider refuses then costs one request again.
            Learned::default()
        })
    } else {
        Learned::default()
    };
    models.into_iter().map(|model| in_use(model, &learned, spec, history, host)).collect()
}

fn in_use(
    model: &Model,
    learned: &Learned,
    spec: &RunSpec,
    history: Option<&RunHistory>,
    host: &Host,
) -> ModelInUse {
    let said = match &model.provider {
        Provider::Remote(remote) => learned.said_of(remote),
        Provider::Scripted(_) => None,
    };
    let (facts, prices) = (facts_with(model, said), prices_with(model, said));
    let context_window = facts.traits().most_input().unwrap_or(model.context_window());
    let prices = prices.map(|priced| priced.prices);
    let agent_model: Arc<dyn AgentModel> = match &model.provider {
        Provider::Scripted(script) => Arc::new(ScriptedModel::new(
            script.clone(),
            ScriptContext { job: spec.job.name.to_string(), vars: spec.vars.clone() },
        )),
        Provider::Remote(remote) => {
            let remote = Remote { traits: facts.traits().clone(), ..(**remote).clone() };
            let efforts = remote.traits.efforts.as_ref();
            let takes = |effort: &Effort| efforts.is_none_or(|of| of.contains(effort));
            // A fallback that does not take the effort of the run keeps its own.
            let effort = spec.job.reasoning_effort.filter(takes).or(remote.reasoning_effort);
            let remote = Remote { reasoning_effort: effort, ..remote };
            let redactor = Redactor::new(&spec.config.secrets);
            let (clients, clock) = (host.clients.clone(), host.clock.clone());
            let lessons = learned.lessons_of(&remote).map(|row| row.parameter.clone());
            // A resumed run repeats its requests as they were.
            let dropped = history.into_iter().flat_map(|history| history.dropped_by(&model.name));
            let refused: Vec<String> = lessons.chain(dropped).collect();
            let made = RemoteModel::new(remote, clients, clock, redactor);
            Arc::new(made.with_lessons(refused, LedgerLessons::of(host)))
        }
    };
    let access = match &model.provider {
        Provider::Remote(remote) => remote.access_digest(),
        Provider::Scripted(_) => String::new(),
    };
    ModelInUse {
        name: model.name.clone(),
        access,
        model: agent_model,
        max_retries: model.max_retries,
        facts: ModelFacts {
            price: prices.as_ref().and_then(|prices| prices.at(host.clock.now())),
            context_window,
            characters_per_token: facts.traits().characters_per_token,
        },
        prices,
        parallel_calls: model.profile.parallel_calls,
    }
}
