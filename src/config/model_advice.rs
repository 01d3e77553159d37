//! Warnings about a model: what its provider will refuse, and what is out of date.
//!
//! The program runs with all of it: it leaves out a parameter once the provider refuses it. These
//! warnings say so before the first run.

use chrono::{DateTime, TimeDelta, Utc};

use super::model_price::Priced;
use super::remote::{Remote, WireFormat, host_of};
use crate::argv::{Diagnostic, Diagnostics};
use crate::catalogue::{Catalogue, Found, ProviderRow, SourceKind, TemperatureRule};

/// How long before a shutdown we warn of it, in days.
const SHUTDOWN_NOTICE_DAYS: i64 = 60;

/// Adds the warnings about a model.
pub(super) fn advise(
    remote: &Remote,
    found: &Found,
    catalogue: &Catalogue,
    prices: Option<&Priced>,
    now: DateTime<Utc>,
    diagnostics: &mut Diagnostics,
) {
    let host = host_of(&remote.base_url);
    let provider = host.and_then(|host| catalogue.provider_at(&host));
    let mut warn = |pointer: &str, message: String, hint: Option<String>| {
        let warning = Diagnostic { pointer: pointer.to_owned(), message, hint };
        diagnostics.warnings.push(warning);
    };
    if let Some(provider) = provider {
        if let Some((message, hint)) = warn_of_unknown_id(remote, found, catalogue, provider) {
            warn("/model", message, hint);
        }
        if prices.is_none() {
            let message = format!(
                "the price of `{}` is unknown, so dutyd cannot state its cost",
                remote.model
            );
            warn("/model", message, Some("add `price:` to the model".to_owned()));
        }
    }
    if let Some(message) = warn_of_shutdown(remote, found, catalogue, now) {
        warn("/model", message, Some("choose another model".to_owned()));
    }
    if let Some(message) = warn_of_temperature(remote) {
        warn("/temperature", message, Some("remove `temperature`".to_owned()));
    }
    let limit = remote.traits.output_limit;
    if let (Some(own), Some(limit)) = (remote.max_output_tokens, limit)
        && own > limit
    {
        let message = format!("`{}` writes at most {limit} tokens", remote.model);
        warn("/max_output_tokens", message, Some(format!("set it to {limit} or less")));
    }
    let of_catalogue = prices.filter(|priced| priced.origin.source != SourceKind::Config);
    if let Some(day) = of_catalogue.and_then(|priced| priced.prices.expired(now)) {
        let message = format!("the price that is known for `{}` ended on {day}", remote.model);
        warn("/model", message, Some("add `price:` to the model".to_owned()));
    }
}

/// Warns of an id that no row names, at a provider whose models the catalogue lists.
fn warn_of_unknown_id(
    remote: &Remote,
    found: &Found,
    catalogue: &Catalogue,
    provider: &ProviderRow,
) -> Option<(String, Option<String>)> {
    if found.is_known() || !catalogue.has_models_of(&provider.name) {
        return None;
    }
    let as_of = catalogue.as_of().map(|day| format!(" of {day}")).unwrap_or_default();
    let rules = if found.has_family { "; the rules of its family apply" } else { "" };
    let message = format!("`{}` is not in the catalogue{as_of}{rules}", remote.model);
    let hint = catalogue.nearest(&remote.model).map(|near| format!("did you mean `{near}`?"));
    Some((message, hint))
}

/// Returns the name of the provider that the format is of; `None` if it is of no provider.
pub(super) fn vendor(format: WireFormat, catalogue: &Catalogue) -> Option<&str> {
    let provider = catalogue.provider_at(&host_of(format.base_url())?)?;
    Some(provider.name.as_str())
}

/// Warns of a model that its provider does not serve any more, or only for a few weeks.
fn warn_of_shutdown(
    remote: &Remote,
    found: &Found,
    catalogue: &Catalogue,
    now: DateTime<Utc>,
) -> Option<String> {
    let (day, routed_to, _) = found.shutdown(vendor(remote.format, catalogue))?;
    let today = now.date_naive();
    if day > today.checked_add_signed(TimeDelta::days(SHUTDOWN_NOTICE_DAYS))? {
        return None;
    }
    let model = &remote.model;
    let instead = routed_to
        .map(|id| format!("; from then on, it serves `{id}` in its place"))
        .unwrap_or_default();
    Some(if day <= today {
        format!("the provider has not served `{model}` since {day}{instead}")
    } else {
        format!("the provider serves `{model}` only until {day}{instead}")
    })
}

fn warn_of_temperature(remote: &Remote) -> Option<String> {
    let own = remote.temperature?;
    let model = &remote.model;
    let refused = |when: &str| {
        format!(
            "`{model}` refuses `temperature`{when}; dutyd repeats the first refused request without it"
        )
    };
    match remote.traits.temperature? {
        TemperatureRule::Taken => None,
        TemperatureRule::Refused => Some(refused("")),
        TemperatureRule::RefusedWhileReasoning => {
            (remote.reasons() == Some(true)).then(|| refused(" while it reasons"))
        }
        TemperatureRule::OnlyOne => ((own - 1.0).abs() > f64::EPSILON)
            .then(|| format!("`{model}` takes only the temperature 1")),
        TemperatureRule::Ignored => Some(format!("`{model}` ignores `temperature`")),
    }
}
