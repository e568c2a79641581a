//! The fields that say how a reply is made, common to chat and completions,
//! and the refusal of fields that this server cannot honour.

use serde_json::Value;
use tensorfold_plugin_api::sampling::Sampling;

use super::error::ApiError;
use super::fields::{Fields, wanted};
use crate::engine::Priority;

/// How a reply is to be made and sent.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReplyFields {
    /// Limit of reply tokens; `None`: the server's default, as far as there is room.
    pub(super) max_tokens: Option<u32>,
    /// How tokens are drawn; its seed is 0 as long as the prompt is not known.
    pub(super) sampling: Sampling,
    /// `None`: derived from the prompt.
    pub(super) seed: Option<u64>,
    pub(super) stop: Vec<String>,
    pub(super) ignore_eos: bool,
    pub(super) stream: bool,
    /// Usage comes in an event of its own.
    pub(super) include_usage: bool,
    /// False: the serial reference.
    pub(super) drafts: bool,
    pub(super) priority: Priority,
    /// Tokens that may be spent on thinking; `None`: the server's default.
    pub(super) thinking_budget: Option<u32>,
}

impl ReplyFields {
    /// Reads and checks every field; `defaults` stand where sampling is not said.
    pub(super) fn read(fields: Fields<'_>, defaults: &Sampling) -> Result<Self, ApiError> {
        refuse_unsupported(fields)?;
        let max_tokens = match fields.count("max_tokens")? {
            None => fields.count("max_completion_tokens")?,
            // Checked although it does not count.
            set => fields.count("max_completion_tokens").map(|_| set)?,
        };
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = match fields.object("stream_options")? {
            None => false,
            Some(_) if !stream => {
                return Err(ApiError::bad_request("stream_options needs stream: true"));
            }
            Some(options) => {
                Fields::new(options)
                    .boolean("include_usage")
                    .map_err(|error| within("stream_options", error))?
                    == Some(true)
            }
        };
        let priority = match fields.text("priority")? {
            None | Some("foreground") => Priority::Foreground,
            Some("background") => Priority::Background,
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "priority must be \"foreground\" or \"background\", not {other:?}"
                )));
            }
        };
        Ok(ReplyFields {
            max_tokens,
            sampling: sampling(fields, defaults)?,
            seed: seed(fields)?,
            stop: stop(fields)?,
            ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
            stream,
            include_usage,
            drafts: fields.boolean("draft")?.unwrap_or(true),
            priority,
            thinking_budget: fields.count("thinking_budget")?,
        })
    }
}

/// A refusal from inside an object, with the object's name before it.
pub(super) fn within(object: &str, error: ApiError) -> ApiError {
    ApiError::bad_request(format!("{object}.{}", error.message))
}

fn sampling(fields: Fields<'_>, defaults: &Sampling) -> Result<Sampling, ApiError> {
    let share = |name: &str| match fields.number(name)? {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            Err(ApiError::bad_request(format!("{name} must be from 0 to 1, not {share}")))
        }
        share => Ok(share),
    };
    let top_k = match fields.integer("top_k")? {
        None => defaults.top_k,
        // 0 and below: no cut. More than 32 bits hold: more than any vocabulary.
        Some(top_k) => u32::try_from(top_k.max(0)).unwrap_or(0),
    };
    Ok(Sampling {
        temperature: fields.number("temperature")?.unwrap_or(defaults.temperature).max(0.0),
        top_p: share("top_p")?.unwrap_or(defaults.top_p),
        top_k,
        min_p: share("min_p")?.unwrap_or(defaults.min_p),
        seed: 0,
    })
}

fn seed(fields: Fields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(seed) = fields.integer("seed")? else { return Ok(None) };
    u64::try_from(seed)
        // A negative seed is the same 64 bits read without a sign.
        .or_else(|_| i64::try_from(seed).map(i64::cast_unsigned))
        .map(Some)
        .map_err(|_| ApiError::bad_request(format!("seed must fit 64 bits, and {seed} does not")))
}

fn stop(fields: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(value) = fields.get("stop") else { return Ok(Vec::new()) };
    let wrong = || wanted("stop", "a string or a list of strings", value);
    let stop: Vec<String> = match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(list) => list
            .iter()
            .map(|text| text.as_str().map(str::to_owned).ok_or_else(wrong))
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong()),
    };
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::bad_request("stop must not hold an empty string: it would match everywhere"));
    }
    let bytes: usize = stop.iter().map(String::len).sum();
    if stop.len() > STOPS_MAX || bytes > STOP_BYTES_MAX {
        return Err(ApiError::bad_request(format!(
            "stop holds {} strings of {bytes} bytes together; at most {STOPS_MAX} of {STOP_BYTES_MAX} bytes are taken",
            stop.len()
        )));
    }
    Ok(stop)
}

/// Stop strings are looked for at each token, on the thread that serves every reply.
const STOPS_MAX: usize = 1024;
const STOP_BYTES_MAX: usize = 64 << 10;

/// A value that asks for nothing.
type IsNeutral = fn(&Value) -> bool;

/// Fields that would change the reply and that nothing here can honour, the
/// values at which they ask for nothing, and why they are refused otherwise.
///
/// Fields that are not listed and not read change no reply (`user`,
/// `metadata`, `store`, ...) and are passed over, as every server of this
/// interface does.
const UNSUPPORTED: &[(&str, IsNeutral, &str)] = &[
    ("n", is_one, "this server makes one reply a request"),
    ("best_of", is_one, "this server makes one reply a request"),
    ("use_beam_search", is_off, "there is no beam search"),
    ("echo", is_off, "the prompt is not sent back"),
    ("suffix", is_empty, "there is no text insertion"),
    ("logprobs", is_off, "log probabilities are not given out yet"),
    ("top_logprobs", is_zero, "log probabilities are not given out yet"),
    ("prompt_logprobs", is_zero, "log probabilities are not given out yet"),
    ("logit_bias", is_empty, "logits are not changed by request"),
    ("allowed_token_ids", is_empty, "logits are not changed by request"),
    ("bad_words", is_empty, "logits are not changed by request"),
    (
        "frequency_penalty",
        is_zero,
        "there are no penalties; the sampling rule is temperature, top_k, top_p, min_p",
    ),
    (
        "presence_penalty",
        is_zero,
        "there are no penalties; the sampling rule is temperature, top_k, top_p, min_p",
    ),
    (
        "repetition_penalty",
        is_one,
        "there are no penalties; the sampling rule is temperature, top_k, top_p, min_p",
    ),
    (
        "repeat_penalty",
        is_one,
        "there are no penalties; the sampling rule is temperature, top_k, top_p, min_p",
    ),
    ("typical_p", is_one, "the sampling rule is temperature, top_k, top_p, min_p"),
    ("min_tokens", is_zero, "a reply's least length cannot be set"),
    ("stop_token_ids", is_empty, "use stop strings"),
    ("continue_final_message", is_off, "a reply always begins a new message"),
    ("response_format", is_plain_text, "this engine cannot enforce a grammar yet"),
    ("guided_json", is_never, "this engine cannot enforce a grammar yet"),
    ("guided_regex", is_never, "this engine cannot enforce a grammar yet"),
    ("guided_choice", is_never, "this engine cannot enforce a grammar yet"),
    ("guided_grammar", is_never, "this engine cannot enforce a grammar yet"),
    ("structured_outputs", is_never, "this engine cannot enforce a grammar yet"),
    ("grammar", is_never, "this engine cannot enforce a grammar yet"),
    ("json_schema", is_never, "this engine cannot enforce a grammar yet"),
    ("functions", is_empty, "functions are given as tools"),
    ("function_call", is_never, "functions are given as tools"),
    ("audio", is_never, "this engine makes text only"),
    ("modalities", is_text_only, "this engine makes text only"),
    ("web_search_options", is_never, "this server searches nothing"),
];

fn refuse_unsupported(fields: Fields<'_>) -> Result<(), ApiError> {
    for (name, is_neutral, reason) in UNSUPPORTED {
        if fields.get(name).is_some_and(|value| !is_neutral(value)) {
            return Err(ApiError::bad_request(format!("{name} is not supported with this value: {reason}")));
        }
    }
    Ok(())
}

fn is_never(_: &Value) -> bool {
    false
}

fn is_off(value: &Value) -> bool {
    *value == Value::Bool(false)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    }
}

fn is_plain_text(value: &Value) -> bool {
    value.get("type").and_then(Value::as_str) == Some("text")
}

fn is_text_only(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(|kind| kind == "text"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEFAULTS: Sampling = Sampling { temperature: 0.7, top_p: 0.9, top_k: 20, min_p: 0.1, seed: 0 };

    fn read(body: Value) -> Result<ReplyFields, String> {
        ReplyFields::read(Fields::new(body.as_object().unwrap()), &DEFAULTS).map_err(|error| error.message)
    }

    #[test]
    fn null_keeps_every_default() {
        let body = json!({
            "temperature": null, "top_p": null, "top_k": null, "min_p": null, "seed": null, "stop": null,
            "max_tokens": null, "stream": null, "stream_options": null, "ignore_eos": null, "draft": null,
            "n": null, "logprobs": null, "response_format": null, "priority": null, "thinking_budget": null,
        });
        let fields = read(body).unwrap();
        assert_eq!(fields, read(json!({})).unwrap());
        assert_eq!(fields.sampling, DEFAULTS);
        assert!(fields.drafts && !fields.stream && !fields.ignore_eos);
        assert_eq!((fields.max_tokens, fields.seed, fields.thinking_budget), (None, None, None));
    }

    #[test]
    fn the_first_limit_that_says_something_wins() {
        assert_eq!(read(json!({"max_tokens": 5, "max_completion_tokens": 9})).unwrap().max_tokens, Some(5));
        assert_eq!(read(json!({"max_tokens": 0, "max_completion_tokens": 9})).unwrap().max_tokens, Some(9));
        assert_eq!(read(json!({"max_tokens": 0})).unwrap().max_tokens, None);
        assert!(read(json!({"max_tokens": -1})).is_err());
        assert!(read(json!({"max_tokens": 5, "max_completion_tokens": "many"})).is_err());
        assert!(read(json!({"max_tokens": 1.5})).is_err());
    }

    #[test]
    fn sampling_is_checked_even_when_it_would_not_count() {
        let sampling =
            read(json!({"temperature": -1, "top_k": -5, "top_p": 1, "min_p": 0})).unwrap().sampling;
        assert_eq!(
            (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p),
            (0.0, 0, 1.0, 0.0)
        );
        for wrong in [
            json!({"temperature": 0, "top_k": 1.5}),
            json!({"temperature": 0, "seed": 0.5}),
            json!({"temperature": true}),
            json!({"temperature": "warm"}),
            json!({"temperature": "NaN"}),
            json!({"top_p": 1.5}),
            json!({"top_p": -0.1}),
            json!({"min_p": 1.01}),
            json!({"top_k": false}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seeds_are_64_bits_with_or_without_a_sign() {
        assert_eq!(read(json!({"seed": u64::MAX})).unwrap().seed, Some(u64::MAX));
        assert_eq!(read(json!({"seed": -1})).unwrap().seed, Some(u64::MAX));
        assert_eq!(read(json!({"seed": "1234"})).unwrap().seed, Some(1234));
        assert!(read(json!({"seed": "18446744073709551616"})).unwrap_err().contains("64 bits"));
    }

    #[test]
    fn stop_is_a_string_or_a_list_and_never_empty_text() {
        assert_eq!(read(json!({"stop": "END"})).unwrap().stop, ["END"]);
        assert_eq!(read(json!({"stop": ["a", "b"]})).unwrap().stop, ["a", "b"]);
        assert!(read(json!({"stop": []})).unwrap().stop.is_empty());
        for wrong in [json!(""), json!(["a", ""]), json!([1]), json!(7), json!({})] {
            assert!(read(json!({ "stop": wrong })).unwrap_err().starts_with("stop must"));
        }
    }

    #[test]
    fn stop_strings_are_bounded_in_number_and_length() {
        assert_eq!(read(json!({ "stop": vec!["x"; STOPS_MAX] })).unwrap().stop.len(), STOPS_MAX);
        let many = read(json!({ "stop": vec!["x"; STOPS_MAX + 1] })).unwrap_err();
        assert_eq!(
            many,
            "stop holds 1025 strings of 1025 bytes together; at most 1024 of 65536 bytes are taken"
        );
        assert!(read(json!({ "stop": "x".repeat(STOP_BYTES_MAX) })).is_ok());
        assert!(read(json!({ "stop": "x".repeat(STOP_BYTES_MAX + 1) })).is_err());
    }

    #[test]
    fn usage_in_its_own_event_needs_a_stream() {
        let body = json!({"stream": true, "stream_options": {"include_usage": true}});
        assert!(read(body).unwrap().include_usage);
        assert_eq!(read(json!({"stream_options": {}})).unwrap_err(), "stream_options needs stream: true");
        let wrong = json!({"stream": true, "stream_options": {"include_usage": 1}});
        assert_eq!(read(wrong).unwrap_err(), "stream_options.include_usage must be true or false, not 1");
        assert!(read(json!({"stream": true, "stream_options": []})).is_err());
    }

    #[test]
    fn priority_is_one_of_two_words() {
        assert_eq!(read(json!({"priority": "background"})).unwrap().priority, Priority::Background);
        assert_eq!(read(json!({"priority": "foreground"})).unwrap().priority, Priority::Foreground);
        assert!(read(json!({"priority": "high"})).unwrap_err().contains("\"background\""));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name_and_its_neutral_value_is_not() {
        for neutral in [
            json!({"n": 1}),
            json!({"logprobs": false, "top_logprobs": 0}),
            json!({"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1}),
            json!({"response_format": {"type": "text"}}),
            json!({"logit_bias": {}, "suffix": "", "echo": false}),
            json!({"modalities": ["text"]}),
            json!({"user": "somebody", "metadata": {"a": "b"}, "store": true}),
        ] {
            assert!(read(neutral.clone()).is_ok(), "{neutral}");
        }
        for (name, value) in [
            ("n", json!(2)),
            ("n", json!("1")),
            ("logprobs", json!(true)),
            ("top_logprobs", json!(5)),
            ("response_format", json!({"type": "json_object"})),
            ("guided_json", json!({})),
            ("guided_choice", json!([])),
            ("structured_outputs", json!({"choice": ["a"]})),
            ("frequency_penalty", json!(0.5)),
            ("repetition_penalty", json!(1.1)),
            ("logit_bias", json!({"5": -100})),
            ("echo", json!(true)),
            ("modalities", json!(["text", "audio"])),
        ] {
            let message = read(json!({ name: value })).unwrap_err();
            assert!(message.starts_with(&format!("{name} is not supported")), "{message}");
        }
    }
}
