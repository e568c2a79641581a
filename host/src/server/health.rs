//! The document at `/health`.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::reply::proposers;
use crate::engine::{Counters, EngineHandle, EngineState};

/// Status code and document. Without `details` only the status is told, which
/// is all that somebody without a key may know.
pub(super) fn health(
    engine: &EngineHandle,
    connections: usize,
    fallback: Option<&str>,
    details: bool,
) -> (StatusCode, Value) {
    let state = engine.state();
    let (code, status) = match &state {
        EngineState::Serving => (StatusCode::OK, "ok"),
        EngineState::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
        EngineState::Failed(_) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let mut document = Map::new();
    document.insert("status".to_owned(), json!(status));
    if details {
        if let EngineState::Failed(message) = state {
            document.insert("error".to_owned(), json!(message));
        }
        add_counters(&mut document, &engine.counters(), connections);
        document.insert("streams".to_owned(), json!(engine.lanes()));
        document.insert("context_length".to_owned(), json!(engine.context()));
        document.insert("engine".to_owned(), json!(engine.facts().name));
        // Why the processor serves although an accelerator is there; null otherwise.
        document.insert("fallback".to_owned(), json!(fallback));
        document.insert("warming".to_owned(), json!(false));
    }
    (code, Value::Object(document))
}

fn add_counters(document: &mut Map<String, Value>, counters: &Counters, connections: usize) {
    let mut add = |name: &str, value: Value| document.insert(name.to_owned(), value);
    add("busy", json!(counters.requests_running > 0));
    add("requests_running", json!(counters.requests_running));
    add("requests_total", json!(counters.requests_total));
    add("completion_tokens_total", json!(counters.completion_tokens_total));
    add("prompt_tokens_total", json!(counters.prompt_tokens_total));
    add("cached_tokens_total", json!(counters.cached_tokens_total));
    add("prefill_seconds_total", json!(counters.prefill_seconds_total));
    add("decode_seconds_total", json!(counters.decode_seconds_total));
    add("rounds_total", json!(counters.rounds_total));
    // Only where they are counted: a missing count is no zero.
    if let Some(drafts) = &counters.drafts_total {
        add("drafted_total", json!(drafts.total().drafted));
        add("accepted_total", json!(drafts.total().accepted));
        add("proposers", proposers(drafts));
    }
    add(
        "live",
        json!({
            "decode_tokens_per_second": counters.decode_tokens_per_second,
            "prefill_tokens_per_second": counters.prefill_tokens_per_second,
            "connections": connections,
            "waiting": counters.requests_waiting,
        }),
    );
}
