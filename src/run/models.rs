//! The model of a run and its fallbacks.

use std::sync::Arc;

use super::host::Host;
use super::spec::RunSpec;
use crate::agent::{Model as AgentModel, ModelFacts, ModelInUse};
use crate::config::{Model, Provider};
use crate::provider::{RemoteModel, ScriptContext, ScriptedModel};
use crate::text::redact::Redactor;

/// Returns the model of a job and its fallbacks, in order; empty if none is configured.
pub(super) fn models(spec: &RunSpec, host: &Host) -> Vec<ModelInUse> {
    let Some(first) = spec.config.model_of(&spec.job) else { return Vec::new() };
    let others = first.fallback.iter().filter_map(|name| spec.config.models.get(name));
    std::iter::once(first).chain(others).map(|model| in_use(model, spec, host)).collect()
}

fn in_use(model: &Model, spec: &RunSpec, host: &Host) -> ModelInUse {
    let agent_model: Arc<dyn AgentModel> = match &model.provider {
        Provider::Scripted(script) => Arc::new(ScriptedModel::new(
            script.clone(),
            ScriptContext { job: spec.job.name.to_string(), vars: spec.vars.clone() },
        )),
        Provider::Remote(remote) => {
            let redactor = Redactor::new(&spec.config.secrets);
            let (clients, clock) = (host.clients.clone(), host.clock.clone());
            Arc::new(RemoteModel::new(remote.clone(), clients, clock, redactor))
        }
    };
    ModelInUse {
        name: model.name.clone(),
        model: agent_model,
        max_retries: model.max_retries,
        facts: ModelFacts { price: model.price, context_window: model.context_window },
        parallel_calls: model.profile.parallel_calls,
    }
}
