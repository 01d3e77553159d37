//! Reads a provider's metadata on a model: window, limits, efforts, prices, shutdown.
//!
//! The answers differ by server. A window counts only if the server serves it: the one that a model
//! was trained with may be larger. Everything here is a claim of a server, so a number counts only
//! within bounds, and an absent key says nothing.
//!
//! *Source*: the references and recorded answers of Anthropic, OpenAI, Gemini, Ollama, vLLM,
//! llama.cpp, OpenRouter, Mistral, Groq, xAI, Moonshot and LM Studio, read 2026-11-25.

use chrono::{DateTime, NaiveDate};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::format::{Probe, list, malformed, text};
use super::http;
use crate::agent::ModelError;
use crate::catalogue::{Effort, LongRow, LongScope, PriceRow, Traits};

/// The bounds of a window in tokens that we believe.
const WINDOW: std::ops::RangeInclusive<u64> = 256..=100_000_000;

/// The highest price in US dollars per million tokens that we believe.
const HIGHEST_PRICE: f64 = 10_000.0;

/// A list of models. The entries stay text, so that a long list takes no more memory than its bytes.
#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

/// Reads OpenAI's answer about one model.
pub(super) fn of_model(answer: &Value) -> Probe {
    Probe { is_known: Some(true), tools: Some(true), ..of_row(answer) }
}

/// Reads a list of models, of which one may be `model`.
///
/// *Errors*: the answer is not JSON.
pub(super) fn of_list(model: &str, body: &[u8]) -> Result<Probe, ModelError> {
    let entries: Vec<&RawValue> = match serde_json::from_slice::<List<'_>>(body) {
        Ok(list) => list.data,
        // Together answers with the bare list.
        Err(_) => match serde_json::from_slice(body) {
            Ok(entries) => entries,
            Err(error) if error.is_data() => return Ok(Probe::default()),
            Err(error) => {
                return Err(malformed(format!("the list of models is not JSON: {error}")));
            }
        },
    };
    if entries.is_empty() {
        return Ok(Probe::default());
    }
    let rows = || {
        // A name may be escaped.
        let may_be = |entry: &&&RawValue| entry.get().contains(model) || entry.get().contains('\\');
        let named = entries.iter().filter(may_be);
        named.filter_map(|entry| http::json(entry.get().as_bytes()).ok())
    };
    let is_it = |row: &Value| {
        text(row, "id") == model || list(row, "aliases").iter().any(|alias| alias == model)
    };
    let Some(row) = rows().find(|row| is_it(row)) else {
        return Ok(Probe { is_known: Some(false), ..Probe::default() });
    };
    let mut probe = Probe { is_known: Some(true), ..of_row(&row) };
    if probe.traits.context_window.is_none() {
        // A row of vLLM for an adapter has no window; its base has.
        let parent = text(&row, "parent");
        let base =
            entries.iter().filter(|entry| !parent.is_empty() && entry.get().contains(parent));
        let base = base.filter_map(|entry| http::json(entry.get().as_bytes()).ok());
        let base = base.into_iter().find(|row| text(row, "id") == parent);
        probe.traits.context_window = base.and_then(|row| of_row(&row).traits.context_window);
    }
    Ok(probe)
}

fn window(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer)?.as_u64().filter(|tokens| WINDOW.contains(tokens))
}

fn limit(value: &Value, pointer: &str) -> Option<u32> {
    let tokens = u32::try_from(value.pointer(pointer)?.as_u64()?).ok()?;
    (1..=10_000_000).contains(&tokens).then_some(tokens)
}

fn day(value: &Value, key: &str) -> Option<NaiveDate> {
    let text = value.get(key)?.as_str()?;
    let of_time = || DateTime::parse_from_rfc3339(text).ok().map(|time| time.date_naive());
    text.parse().ok().or_else(of_time)
}

/// Reads a row of a list of models, or the answer about one model.
fn of_row(row: &Value) -> Probe {
    const SERVED: &[&str] = &[
        "/max_model_len",
        "/meta/n_ctx",
        "/top_provider/context_length",
        "/context_length",
        "/context_window",
        "/max_context_length",
        "/loaded_context_length",
        "/metadata/context_length",
    ];
    const WRITTEN: &[&str] =
        &["/top_provider/max_completion_tokens", "/max_completion_tokens", "/max_output_tokens"];
    let supported = row.get("supported_parameters").and_then(Value::as_array);
    let supports = |name: &str| supported.map(|names| names.iter().any(|known| known == name));
    let modalities = row.pointer("/architecture/input_modalities").and_then(Value::as_array);
    let vision = row.pointer("/capabilities/vision").or_else(|| row.get("supports_image_in"));
    let efforts = row.pointer("/reasoning/supported_efforts");
    let traits = Traits {
        context_window: SERVED.iter().filter_map(|pointer| window(row, pointer)).min(),
        output_limit: WRITTEN.iter().filter_map(|pointer| limit(row, pointer)).min(),
        images: modalities
            .map(|known| known.iter().any(|word| word == "image"))
            .or_else(|| vision.and_then(Value::as_bool)),
        efforts: efforts.and_then(Value::as_array).map(|words| read_efforts(words)),
        ..Traits::default()
    };
    let calling = row.pointer("/capabilities/function_calling").and_then(Value::as_bool);
    Probe {
        is_known: None,
        tools: supports("tools").or(calling),
        traits,
        price: row.get("pricing").and_then(price_per_token),
        shutdown: day(row, "shutdown_date")
            .or_else(|| day(row, "expiration_date"))
            .or_else(|| day(row, "deprecation")),
    }
}

fn read_efforts(words: &[Value]) -> Vec<Effort> {
    let mut efforts: Vec<Effort> =
        words.iter().filter_map(|word| serde_json::from_value(word.clone()).ok()).collect();
    efforts.sort();
    efforts.dedup();
    efforts
}

/// Reads prices that are strings in US dollars per token, as OpenRouter writes them.
fn price_per_token(pricing: &Value) -> Option<PriceRow> {
    let rate = |of: &Value, key: &str| {
        let per_token: f64 = of.get(key)?.as_str()?.parse().ok()?;
        let rate = per_token * 1e6;
        (rate.is_finite() && (0.0..=HIGHEST_PRICE).contains(&rate)).then_some(rate)
    };
    let (input, output) = (rate(pricing, "prompt")?, rate(pricing, "completion")?);
    let over = list(pricing, "overrides").iter().find(|over| {
        over.get("min_prompt_tokens").is_some_and(Value::is_u64)
            && over.get("utc_start").is_none_or(Value::is_null)
    });
    let either = |over: &Value, key: &str| rate(over, key).or_else(|| rate(pricing, key));
    let long = over.and_then(|over| {
        Some(LongRow {
            above: over.get("min_prompt_tokens")?.as_u64()?,
            scope: LongScope::Request,
            input: either(over, "prompt")?,
            output: either(over, "completion")?,
            cached_input: either(over, "input_cache_read"),
            cache_write: either(over, "input_cache_write"),
            cache_write_long: either(over, "input_cache_write_1h"),
        })
    });
    Some(PriceRow {
        input,
        output,
        cached_input: rate(pricing, "input_cache_read"),
        cache_write: rate(pricing, "input_cache_write"),
        cache_write_long: rate(pricing, "input_cache_write_1h"),
        long,
        from: None,
        until: None,
        peak: None,
    })
}

pub(super) fn of_anthropic(answer: &Value) -> Probe {
    let supported = |pointer: &str| answer.pointer(pointer)?.get("supported")?.as_bool();
    let levels = ["low", "medium", "high", "xhigh", "max"];
    let mut efforts: Vec<Value> = levels
        .into_iter()
        .filter(|level| supported(&format!("/capabilities/effort/{level}")) == Some(true))
        .map(Value::from)
        .collect();
    if supported("/capabilities/thinking/types/disabled") == Some(true) && !efforts.is_empty() {
        efforts.push("none".into());
    }
    let efforts = Some(efforts).filter(|efforts| !efforts.is_empty());
    let traits = Traits {
        context_window: window(answer, "/max_input_tokens"),
        output_limit: limit(answer, "/max_tokens"),
        images: supported("/capabilities/image_input"),
        efforts: efforts.map(|efforts| read_efforts(&efforts)),
        ..Traits::default()
    };
    Probe {
        is_known: Some(true),
        tools: Some(true),
        traits,
        price: None,
        shutdown: day(answer, "retires_at"),
    }
}

pub(super) fn of_gemini(answer: &Value) -> Probe {
    let traits = Traits {
        context_window: window(answer, "/inputTokenLimit"),
        output_limit: limit(answer, "/outputTokenLimit"),
        ..Traits::default()
    };
    Probe { is_known: Some(true), tools: Some(true), traits, ..Probe::default() }
}

pub(super) fn of_ollama(answer: &Value) -> Probe {
    let capabilities = answer.get("capabilities").and_then(Value::as_array);
    let has = |word: &str| capabilities.map(|known| known.iter().any(|item| item == word));
    let info = answer.get("model_info").and_then(Value::as_object);
    let architecture = info
        .and_then(|info| info.get("general.architecture")?.as_str())
        .map(|name| format!("{name}.context_length"));
    let trained = info.zip(architecture).and_then(|(info, key)| info.get(&key)?.as_u64());
    // The operator of the server may have set less.
    let set = text(answer, "parameters")
        .lines()
        .find_map(|line| line.strip_prefix("num_ctx")?.trim().parse::<u64>().ok());
    let served = set.or(trained).filter(|tokens| WINDOW.contains(tokens));
    let traits = Traits {
        context_window: served,
        images: has("vision"),
        efforts: (has("thinking") == Some(false)).then(|| vec![Effort::None]),
        ..Traits::default()
    };
    Probe { is_known: Some(true), tools: has("tools"), traits, ..Probe::default() }
}

#[cfg(test)]
mod tests {
    use super::super::remote::of;
    use super::*;
    use crate::config::WireFormat;
    use serde_json::json;

    fn probe(format: WireFormat, model: &str, answer: &Value) -> Probe {
        of(format).read_metadata(model, answer.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn each_provider_is_read_in_its_own_words() {
        let anthropic = json!({"type": "model", "id": "claude-opus-5-5", "max_input_tokens": 1_000_000, "max_tokens": 128_000,
            "retires_at": "2027-09-22T00:00:00Z", "capabilities": {"image_input": {"supported": true},
            "effort": {"supported": true, "low": {"supported": true}, "max": {"supported": true}, "xhigh": null},
            "thinking": {"supported": true, "types": {"disabled": {"supported": false}}}}});
        let said = probe(WireFormat::Anthropic, "claude-opus-5-5", &anthropic);
        assert_eq!(said.traits.efforts, Some(vec![Effort::Low, Effort::Max]));
        assert_eq!(
            (said.traits.context_window, said.traits.output_limit),
            (Some(1_000_000), Some(128_000))
        );
        assert_eq!(said.shutdown, NaiveDate::from_ymd_opt(2027, 9, 22));
        let gemini = json!({"name": "models/gemini-3.7-flash", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536});
        let said = probe(WireFormat::Gemini, "gemini-3.7-flash", &gemini);
        assert_eq!(
            (said.traits.context_window, said.traits.output_limit),
            (Some(1_048_576), Some(65_536))
        );
        let openai = json!({"id": "o3", "object": "model", "shutdown_date": "2026-12-11"});
        let said = probe(WireFormat::Openai, "o3", &openai);
        assert_eq!(said.shutdown, NaiveDate::from_ymd_opt(2026, 12, 11));
        let ollama = json!({"parameters": "stop  \"x\"\nnum_ctx                4096", "capabilities": ["completion", "tools"],
            "model_info": {"general.architecture": "llama", "llama.context_length": 131_072, "llama.vision.context_length": 1}});
        let said = probe(WireFormat::Ollama, "llama3", &ollama);
        assert_eq!((said.traits.context_window, said.tools), (Some(4096), Some(true)));
        assert_eq!(said.traits.efforts, Some(vec![Effort::None]));
        let old = probe(WireFormat::Ollama, "x", &json!({"details": {}}));
        assert_eq!((old.tools, old.traits.efforts), (None, None));
    }

    #[test]
    fn a_row_of_a_list_is_found_by_its_id() {
        let vllm = json!({"object": "list", "data": [
            {"id": "base", "max_model_len": 65_536, "parent": null},
            {"id": "tuned", "max_model_len": null, "parent": "base"}]});
        let window =
            |model: &str| probe(WireFormat::OpenaiChat, model, &vllm).traits.context_window;
        assert_eq!((window("base"), window("tuned")), (Some(65_536), Some(65_536)));
        assert_eq!(probe(WireFormat::OpenaiChat, "none", &vllm).is_known, Some(false));
        let escaped = br#"{"data": [{"id": "openai\/x", "max_model_len": 4096}]}"#;
        let said = of(WireFormat::OpenaiChat).read_metadata("openai/x", escaped).unwrap();
        assert_eq!(said.traits.context_window, Some(4096));
        let llama =
            json!({"data": [{"id": "q", "meta": {"n_ctx": 32_768, "n_ctx_train": 262_144}}]});
        assert_eq!(probe(WireFormat::OpenaiChat, "q", &llama).traits.context_window, Some(32_768));
        let router = json!({"data": [{"id": "openai/gpt-6-astra", "context_length": 1_050_000,
            "top_provider": {"context_length": 400_000, "max_completion_tokens": 128_000},
            "supported_parameters": ["tools"], "reasoning": {"supported_efforts": ["high", "low", "odd"]},
            "pricing": {"prompt": "0.00001", "completion": "0.00005", "input_cache_read": "0.000001",
                "overrides": [{"min_prompt_tokens": 272_000, "prompt": "0.00002", "completion": "0.000075"}]}}]});
        let said = probe(WireFormat::OpenaiChat, "openai/gpt-6-astra", &router);
        assert_eq!((said.traits.context_window, said.tools), (Some(400_000), Some(true)));
        assert_eq!(said.traits.efforts, Some(vec![Effort::Low, Effort::High]));
        let price = said.price.unwrap();
        assert!((price.input - 10.0).abs() < 1e-9 && (price.output - 50.0).abs() < 1e-9);
        let long = price.long.unwrap();
        assert!((long.input - 20.0).abs() < 1e-9 && long.above == 272_000);
        assert_eq!(long.cached_input, price.cached_input);
    }

    #[test]
    fn odd_answers_say_nothing() {
        let many: Vec<Value> = (0..10_000)
            .map(|n| json!({"id": format!("model-{n}"), "permission": [{"a": 1, "b": 2}]}))
            .collect();
        let said = probe(WireFormat::OpenaiChat, "model-9999", &json!({"data": many}));
        assert_eq!(said.is_known, Some(true));
        for answer in [json!({}), json!([]), json!({"data": null}), json!(1), json!({"data": []})] {
            assert_eq!(probe(WireFormat::OpenaiChat, "m", &answer).is_known, None, "{answer}");
        }
        for row in [
            json!({"id": "m", "context_length": 0}),
            json!({"id": "m", "context_length": -1}),
            json!({"id": "m", "context_length": "131072"}),
            json!({"id": "m", "context_length": 1e30}),
            json!({"id": "m", "pricing": {"prompt": "-1", "completion": "-1"}}),
            json!({"id": "m", "pricing": {"prompt": "NaN", "completion": "inf"}}),
            json!({"id": "m", "shutdown_date": "soon"}),
        ] {
            let said = probe(WireFormat::OpenaiChat, "m", &json!({"data": [row]}));
            assert_eq!((said.traits, said.price, said.shutdown), Default::default());
        }
        assert!(of(WireFormat::OpenaiChat).read_metadata("m", b"<html>").is_err());
    }
}
