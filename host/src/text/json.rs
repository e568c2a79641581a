//! JSON as Python's `json.dumps` writes it, which is what models were trained
//! on: `", "` and `": "` between things, keys in their order, nothing escaped
//! for HTML.

use serde::Serialize as _;
use serde_json::Value;

/// How to lay it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Between items.
    pub(super) item: String,
    /// Between a key and its value.
    pub(super) key: String,
    /// Spaces by which each level is indented, one item a line; `None` is one line.
    pub(super) indent: Option<usize>,
    /// Write characters beyond ASCII as `\uXXXX`.
    pub(super) ascii: bool,
    /// Sort keys.
    pub(super) sort: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Layout { item: ", ".into(), key: ": ".into(), indent: None, ascii: false, sort: false }
    }
}

/// Writes a value.
pub(super) fn to_json(value: &Value, layout: &Layout) -> String {
    let mut out = String::new();
    write(&mut out, value, layout, 1);
    out
}

fn write(out: &mut String, value: &Value, layout: &Layout, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => out.push_str(&python_float(float)),
            None => out.push_str(&number.to_string()),
        },
        Value::String(text) => string(out, text, layout),
        Value::Array(values) => {
            container(out, '[', ']', values.iter(), layout, depth, |out, value| {
                write(out, value, layout, depth + 1);
            });
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if layout.sort {
                entries.sort_by_key(|(key, _)| *key);
            }
            container(out, '{', '}', entries.into_iter(), layout, depth, |out, (key, value)| {
                string(out, key, layout);
                out.push_str(&layout.key);
                write(out, value, layout, depth + 1);
            });
        }
    }
}

fn container<T>(
    out: &mut String,
    open: char,
    close: char,
    items: impl ExactSizeIterator<Item = T>,
    layout: &Layout,
    depth: usize,
    mut item: impl FnMut(&mut String, T),
) {
    out.push(open);
    let empty = items.len() == 0;
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = layout.indent.filter(|_| !empty) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    for (index, next) in items.enumerate() {
        if index > 0 {
            let separator = &layout.item;
            out.push_str(if layout.indent.is_some() { separator.trim_end() } else { separator });
        }
        line(out, depth);
        item(out, next);
    }
    line(out, depth - 1);
    out.push(close);
}

fn string(out: &mut String, text: &str, layout: &Layout) {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    let mut serializer = serde_json::Serializer::new(&mut quoted);
    text.serialize(&mut serializer).expect("a string is written to memory");
    let quoted = String::from_utf8_lossy(&quoted);
    if !layout.ascii {
        out.push_str(&quoted);
        return;
    }
    for character in quoted.chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

/// A finite float as Python's `repr` writes it: shortest digits, an exponent
/// below 1e-4 and from 1e16 up.
fn python_float(value: f64) -> String {
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return format!("{value:?}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumps(text: &str, layout: &Layout) -> String {
        to_json(&serde_json::from_str(text).unwrap(), layout)
    }

    #[test]
    fn the_default_is_one_line_with_spaces_and_nothing_escaped() {
        let text = r#"{"z":[1,true,null,{}],"a":"Köln <b>'\"\n\u0001&","e":[],"f":1.0}"#;
        let wanted = r#"{"z": [1, true, null, {}], "a": "Köln <b>'\"\n\u0001&", "e": [], "f": 1.0}"#;
        assert_eq!(dumps(text, &Layout::default()), wanted);
    }

    #[test]
    fn floats_are_pythons() {
        for (text, wanted) in [
            ("1e16", "1e+16"),
            ("123456789012345.5", "123456789012345.5"),
            ("0.0001", "0.0001"),
            ("0.00001", "1e-05"),
            ("0.00000015", "1.5e-07"),
            ("-2.50", "-2.5"),
            ("18446744073709551615", "18446744073709551615"),
        ] {
            assert_eq!(dumps(text, &Layout::default()), wanted);
        }
    }

    #[test]
    fn indent_ascii_sort_and_separators_are_honoured() {
        let indented = Layout { indent: Some(2), ..Layout::default() };
        assert_eq!(
            dumps(r#"{"a":[1,2],"b":{}}"#, &indented),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}"
        );
        let ascii = Layout { ascii: true, ..Layout::default() };
        assert_eq!(dumps(r#""ö🚀""#, &ascii), r#""\u00f6\ud83d\ude80""#);
        let compact = Layout { item: ",".into(), key: ":".into(), sort: true, ..Layout::default() };
        assert_eq!(dumps(r#"{"b":1,"a":2}"#, &compact), r#"{"a":2,"b":1}"#);
    }
}
