//! The price of a model: of the configuration, of the catalogue, or of a relative.

use chrono::{DateTime, Utc};

use super::raw::RawPrice;
use super::remote::Remote;
use crate::argv::Diagnostics;
use crate::catalogue::{
    Catalogue, Found, LongRow, LongScope, Origin, PriceRow, Prices, SourceKind,
};

/// The prices of a model and where they come from.
#[derive(Debug, Clone, PartialEq)]
pub struct Priced {
    pub prices: Prices,
    pub origin: Origin,
}

impl Priced {
    /// Returns a price of zero.
    #[must_use]
    pub fn free() -> Self {
        let origin = Origin { source: SourceKind::Default, as_of: None };
        Self { prices: Prices::free(), origin }
    }
}

/// Returns the prices of a model, and reports a `like` without a price. `None` if the price is
/// unknown for the model and for its family.
///
/// A price of the catalogue applies at the hosts of its provider. At another server, the same name
/// may mean another price, so there it is an estimate, like the price of a relative.
pub(super) fn price_of(
    raw: Option<&RawPrice>,
    remote: &Remote,
    found: &Found,
    catalogue: &Catalogue,
    now: DateTime<Utc>,
    diagnostics: &mut Diagnostics,
) -> Option<Priced> {
    let own = Origin { source: SourceKind::Config, as_of: None };
    if let Some(raw) = raw {
        return configured(raw, catalogue, now, diagnostics)
            .map(|prices| Priced { prices, origin: own });
    }
    if let Some((prices, origin)) = found.prices(now) {
        return Some(Priced { prices, origin });
    }
    if remote.format.is_self_hosted() {
        // Its operator pays for a machine: the price that a provider has for the model says nothing.
        return None;
    }
    let anywhere = found.prices_anywhere(now).map(|prices| prices.estimated());
    let estimate = anywhere.or_else(|| catalogue.dearest_relative(found, now));
    let origin = Origin { source: SourceKind::Family, as_of: catalogue.as_of() };
    estimate.map(|prices| Priced { prices, origin })
}

fn configured(
    raw: &RawPrice,
    catalogue: &Catalogue,
    now: DateTime<Utc>,
    diagnostics: &mut Diagnostics,
) -> Option<Prices> {
    if let Some(like) = &raw.like {
        if raw.has_rates() {
            let message = "`like` takes the whole price of another model: remove the other keys";
            diagnostics.error("/price/like", message);
        }
        let prices = catalogue.find(like, None).prices_anywhere(now);
        if prices.is_none() {
            let near = catalogue.nearest(like).filter(|near| near != like);
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            diagnostics.error("/price/like", format!("the price of `{like}` is unknown{near}"));
        }
        return prices;
    }
    for (key, is_set) in [("input", raw.input.is_some()), ("output", raw.output.is_some())] {
        if !is_set {
            diagnostics.error("/price", format!("`{key}` is missing: add it, or use `like: ID`"));
        }
    }
    let long = raw.long.as_ref().map(|long| LongRow {
        above: long.from.saturating_sub(1),
        scope: LongScope::Request,
        input: long.input,
        output: long.output,
        cached_input: long.cached_input,
        cache_write: long.cache_write,
        cache_write_long: None,
    });
    Some(Prices::new(vec![PriceRow {
        input: raw.input?,
        output: raw.output?,
        cached_input: raw.cached_input,
        cache_write: raw.cache_write,
        cache_write_long: None,
        long,
        from: None,
        until: None,
        peak: None,
    }]))
}
