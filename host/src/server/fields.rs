//! Typed access to the fields of a request body.
//!
//! A field that is absent or null is not set. A field of the wrong type is a
//! refusal that names the field, what was wanted and what was found; nothing
//! is guessed, and nothing that would change the reply is passed over.

use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of one JSON object.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Self {
        Fields { object }
    }

    /// The value of a field that is set.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name)
            .map(|value| value.as_bool().ok_or_else(|| wanted(name, "true or false", value)))
            .transpose()
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.get(name).map(|value| value.as_str().ok_or_else(|| wanted(name, "a string", value))).transpose()
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        self.get(name)
            .map(|value| value.as_object().ok_or_else(|| wanted(name, "an object", value)))
            .transpose()
    }

    /// A finite number; a string that spells one counts.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.filter(|number| number.is_finite()).map(Some).ok_or_else(|| wanted(name, "a number", value))
    }

    /// A whole number; `2.0` and a string that spells one count.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i128>, ApiError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = match value {
            Value::Number(number) => number
                .as_i64()
                .map(i128::from)
                .or_else(|| number.as_u64().map(i128::from))
                .or_else(|| number.as_f64().and_then(whole_number)),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        whole.map(Some).ok_or_else(|| wanted(name, "a whole number", value))
    }

    /// A count of tokens; 0 is not set.
    pub(super) fn count(&self, name: &str) -> Result<Option<u32>, ApiError> {
        match self.integer(name)? {
            None | Some(0) => Ok(None),
            Some(count) if count < 0 => {
                Err(ApiError::bad_request(format!("{name} must be 0 or more, not {count}")))
            }
            // What does not fit 32 bits fits no context either.
            Some(count) => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
        }
    }
}

/// The refusal of a value of the wrong type.
pub(super) fn wanted(name: &str, wanted: &str, found: &Value) -> ApiError {
    ApiError::bad_request(format!("{name} must be {wanted}, not {}", describe(found)))
}

/// A value in a few words, for messages.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("the string {text:?}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn whole_number(number: f64) -> Option<i128> {
    // Above 2^53 a float no longer says which whole number was meant.
    (number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0).then_some(number as i128)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with<T>(body: Value, read: impl Fn(Fields<'_>) -> Result<T, ApiError>) -> Result<T, String> {
        read(Fields::new(body.as_object().unwrap())).map_err(|error| error.message)
    }

    #[test]
    fn null_and_absent_are_not_set() {
        for body in [json!({}), json!({"x": null})] {
            assert_eq!(with(body.clone(), |fields| fields.boolean("x")), Ok(None));
            assert_eq!(with(body.clone(), |fields| fields.number("x")), Ok(None));
            assert_eq!(with(body.clone(), |fields| fields.integer("x")), Ok(None));
            assert_eq!(with(body, |fields| fields.count("x")), Ok(None));
        }
    }

    #[test]
    fn numbers_may_be_spelt_in_strings_and_nothing_else_is_one() {
        assert_eq!(with(json!({"x": 1}), |fields| fields.number("x")), Ok(Some(1.0)));
        assert_eq!(with(json!({"x": " 0.5 "}), |fields| fields.number("x")), Ok(Some(0.5)));
        for wrong in [json!(true), json!("warm"), json!("NaN"), json!("inf"), json!([1]), json!({})] {
            let message = with(json!({ "x": wrong }), |fields| fields.number("x")).unwrap_err();
            assert!(message.starts_with("x must be a number, not "), "{message}");
        }
    }

    #[test]
    fn whole_numbers_have_no_fraction() {
        assert_eq!(with(json!({"x": 20.0}), |fields| fields.integer("x")), Ok(Some(20)));
        assert_eq!(with(json!({"x": u64::MAX}), |fields| fields.integer("x")), Ok(Some(u64::MAX.into())));
        assert_eq!(with(json!({"x": "-3"}), |fields| fields.integer("x")), Ok(Some(-3)));
        for wrong in [json!(0.5), json!(true), json!("1.5"), json!(1e300)] {
            assert!(with(json!({ "x": wrong }), |fields| fields.integer("x")).is_err());
        }
    }

    #[test]
    fn counts_are_not_negative_and_0_is_not_set() {
        assert_eq!(with(json!({"x": 0}), |fields| fields.count("x")), Ok(None));
        assert_eq!(with(json!({"x": 7}), |fields| fields.count("x")), Ok(Some(7)));
        assert_eq!(with(json!({"x": 1u64 << 40}), |fields| fields.count("x")), Ok(Some(u32::MAX)));
        let message = with(json!({"x": -1}), |fields| fields.count("x")).unwrap_err();
        assert_eq!(message, "x must be 0 or more, not -1");
    }

    #[test]
    fn a_wrong_type_is_named_with_what_was_wanted() {
        let message = with(json!({"stream": "yes"}), |fields| fields.boolean("stream")).unwrap_err();
        assert_eq!(message, "stream must be true or false, not the string \"yes\"");
    }
}
