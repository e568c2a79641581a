//! Whether and how hard a model is to think, from a request's fields.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, wanted};
use super::reply_fields::within;

/// Levels of effort from low to high.
const LEVELS: [&str; 6] = ["minimal", "low", "medium", "high", "xhigh", "max"];

/// What a request says of thinking, or the server's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thinking {
    pub(super) enabled: bool,
    /// A level that the template names.
    pub(super) effort: Option<String>,
}

impl Thinking {
    /// Reads `reasoning_effort` and `chat_template_kwargs`; `levels` are those
    /// that the template names. The second value holds the variables that are
    /// left for the template.
    pub(super) fn read(
        fields: Fields<'_>,
        defaults: &Thinking,
        levels: &[&str],
    ) -> Result<(Thinking, Map<String, Value>), ApiError> {
        let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
        let inner_effort = variables.remove("reasoning_effort").filter(|effort| !effort.is_null());
        let switch = [variables.remove("enable_thinking"), variables.remove("thinking")];
        let effort = match (fields.text("reasoning_effort")?, &inner_effort) {
            (Some(effort), _) => Some(effort),
            (None, Some(Value::String(effort))) => Some(effort.as_str()),
            (None, Some(other)) => {
                return Err(within("chat_template_kwargs", wanted("reasoning_effort", "a string", other)));
            }
            (None, None) => None,
        };
        let mut thinking = defaults.clone();
        match effort {
            None => {}
            Some("none") => thinking.enabled = false,
            Some(effort) => {
                let level = level_of(effort).ok_or_else(|| {
                    let known = LEVELS.join(", ");
                    ApiError::bad_request(format!(
                        "reasoning_effort must be one of none, {known}, not {effort:?}"
                    ))
                })?;
                thinking.enabled = true;
                thinking.effort = nearest(level, levels);
            }
        }
        // A switch is the plainer word: it decides where both are given.
        if let Some(enabled) = switch.iter().flatten().find_map(switch_of) {
            thinking.enabled = enabled;
        }
        Ok((thinking, variables))
    }

    /// The server's defaults, with the effort brought to a level that the template names.
    pub(super) fn default_for(enabled: bool, effort: Option<&str>, levels: &[&str]) -> Thinking {
        let effort = effort.and_then(level_of).and_then(|level| nearest(level, levels));
        Thinking { enabled, effort }
    }
}

/// A switch as a boolean or as `{"type": "enabled"}`; anything else says nothing.
fn switch_of(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(enabled) => Some(*enabled),
        Value::Object(object) => match object.get("type")?.as_str()? {
            "enabled" => Some(true),
            "disabled" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn level_of(effort: &str) -> Option<usize> {
    LEVELS.iter().position(|level| *level == effort)
}

/// The level among `levels` nearest to `wanted`; of two equally near the higher.
fn nearest(wanted: usize, levels: &[&str]) -> Option<String> {
    levels
        .iter()
        .filter_map(|name| level_of(name).map(|level| (level.abs_diff(wanted), usize::MAX - level, name)))
        .min()
        .map(|(_, _, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether thinking is on, the effort, and what is left for the template.
    type Outcome = (bool, Option<String>, Map<String, Value>);

    fn read(body: Value, levels: &[&str]) -> Result<Outcome, String> {
        let defaults = Thinking { enabled: true, effort: None };
        Thinking::read(Fields::new(body.as_object().unwrap()), &defaults, levels)
            .map(|(thinking, variables)| (thinking.enabled, thinking.effort, variables))
            .map_err(|error| error.message)
    }

    #[test]
    fn the_switch_is_a_boolean_or_an_object_and_other_types_say_nothing() {
        let enabled = |kwargs: Value| read(json!({ "chat_template_kwargs": kwargs }), &[]).unwrap().0;
        assert!(!enabled(json!({"enable_thinking": false})));
        assert!(!enabled(json!({"thinking": false})));
        assert!(!enabled(json!({"thinking": {"type": "disabled"}})));
        assert!(enabled(json!({"thinking": {"type": "enabled"}})));
        assert!(enabled(json!({"enable_thinking": "no", "thinking": 0})));
        assert!(enabled(json!({"thinking": {"type": "adaptive"}})));
        assert!(enabled(Value::Null));
        for wrong in [json!([]), json!("x"), json!(true)] {
            assert!(read(json!({ "chat_template_kwargs": wrong }), &[]).is_err());
        }
    }

    #[test]
    fn other_variables_are_left_for_the_template() {
        let body = json!({"chat_template_kwargs": {"enable_thinking": true, "preserve_thinking": false}});
        let (_, _, variables) = read(body, &[]).unwrap();
        assert_eq!(Value::Object(variables), json!({"preserve_thinking": false}));
    }

    #[test]
    fn effort_none_turns_thinking_off_and_the_top_level_wins() {
        assert!(!read(json!({"reasoning_effort": "none"}), &[]).unwrap().0);
        let body = json!({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "none"}});
        assert_eq!(read(body, &["low", "high"]).unwrap().1.as_deref(), Some("high"));
        let body = json!({"chat_template_kwargs": {"reasoning_effort": "low"}});
        assert_eq!(read(body, &["low", "high"]).unwrap().1.as_deref(), Some("low"));
    }

    #[test]
    fn an_effort_maps_to_the_nearest_level_that_the_template_names_ties_up() {
        let effort =
            |wanted: &str, levels: &[&str]| read(json!({ "reasoning_effort": wanted }), levels).unwrap().1;
        assert_eq!(effort("medium", &["low", "high"]).as_deref(), Some("high"));
        assert_eq!(effort("xhigh", &["low", "medium"]).as_deref(), Some("medium"));
        assert_eq!(effort("minimal", &["low", "high"]).as_deref(), Some("low"));
        assert_eq!(effort("medium", &[]), None);
    }

    #[test]
    fn an_unknown_effort_is_refused_with_the_known_ones() {
        let message = read(json!({"reasoning_effort": "hard"}), &[]).unwrap_err();
        assert!(message.contains("none, minimal, low, medium, high") && message.contains("\"hard\""));
        assert!(read(json!({"reasoning_effort": 3}), &[]).is_err());
    }
}
