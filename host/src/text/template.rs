//! Chat templates: Jinja, as `transformers` renders it.
//!
//! A template is a stranger's program. It runs with a budget of steps, sees
//! only what it is given, and can reach no file; its faults become messages.
//! What bounds it, and what does not, is said in `budget`.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use super::budget;
use super::json::{Layout, to_json};

const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    variables: BTreeSet<String>,
    source: String,
}

/// Why a template gave no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TemplateFault {
    /// The template itself refused what it was given.
    #[error("{0}")]
    Raised(String),
    /// The template failed.
    #[error("{0}")]
    Failed(String),
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// The message says where the syntax is at fault.
    pub(super) fn compile(source: &str) -> Result<ChatTemplate, String> {
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|e| describe(&e))?,
        );
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(budget::write_value);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        let source = without_generation_tags(source);
        environment.add_template_owned(NAME, source.clone()).map_err(|error| describe(&error))?;
        let variables = match environment.get_template(NAME) {
            Ok(template) => template.undeclared_variables(false).into_iter().collect(),
            Err(error) => return Err(describe(&error)),
        };
        Ok(ChatTemplate { environment, variables, source })
    }

    /// Renders with these variables.
    pub(super) fn render(
        &self,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TemplateFault> {
        let steps = budget::steps(variables);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(steps));
        // Everything that the template makes also ends in there.
        let render = || {
            let rendered = environment
                .get_template(NAME)
                .and_then(|template| template.render(Value::from(Serde(variables))));
            rendered.map_err(|error| match raised(&error) {
                Some(message) => TemplateFault::Raised(message),
                None => TemplateFault::Failed(describe(&error)),
            })
        };
        budget::on_deep_stack(steps, render)
            .map_err(|error| TemplateFault::Failed(format!("no thread can be started for it: {error}")))?
    }

    /// Whether the template looks at a variable that it is given.
    pub(super) fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// Whether the text of the template holds a string literal.
    pub(super) fn has_literal(&self, text: &str) -> bool {
        ['\'', '"'].iter().any(|quote| self.source.contains(&format!("{quote}{text}{quote}")))
    }
}

/// `{% generation %}` marks a model's own words for training; for rendering
/// the marks mean nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // What ends the tag stands after what begins it: `{%}` is no tag.
        let (before, inner) = rest.split_at(start + 2);
        let Some(length) = inner.find("%}") else { break };
        let tag = &inner[..length];
        let replacement = match tag.trim_matches(['-', '+']).trim() {
            "generation" => Some(("generation", "if true")),
            "endgeneration" => Some(("endgeneration", "endif")),
            _ => None,
        };
        out.push_str(before);
        match replacement {
            Some((from, to)) => out.push_str(&tag.replacen(from, to, 1)),
            None => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &inner[length + 2..];
    }
    out.push_str(rest);
    out
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    let line = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}

/// A message of the template's own, carried through the engine's errors.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn raised(error: &Error) -> Option<String> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        source = error.source();
    }
    None
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let mut layout = Layout {
        indent: match indent.filter(|indent| !indent.is_none()) {
            Some(indent) => Some(usize::try_from(indent)?.min(16)),
            None => None,
        },
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..Layout::default()
    };
    if let Some(separators) = options.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = separators.try_into().map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "tojson: separators are two strings, for items and keys")
        })?;
        (layout.item, layout.key) = (item, key);
    }
    options.assert_all_used()?;
    Ok(Value::from_safe_string(to_json(&budget::to_json_value(value)?, &layout)))
}

/// The local time, by a format of `strftime`.
fn strftime_now(format: &str) -> Result<String, Error> {
    let fault = |problem| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {problem}"));
    if format.is_empty() {
        return Ok(String::new());
    }
    let format = std::ffi::CString::new(format).map_err(|_| fault("the format holds a NUL"))?;
    let mut buffer = [0u8; 1024];
    // SAFETY: `time` takes null for "only return it"; `localtime_r` fills the
    // zeroed `tm`, which is plain data, and returns null when it cannot, in
    // which case `tm` is not used; `strftime` writes at most the given length
    // into `buffer` and reads `format` to its NUL.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut tm: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut tm).is_null() {
            return Err(fault("the clock has no local time"));
        }
        libc::strftime(buffer.as_mut_ptr().cast(), buffer.len(), format.as_ptr(), &tm)
    };
    if length == 0 {
        return Err(fault("the text is longer than 1,023 bytes"));
    }
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, variables: serde_json::Value) -> Result<String, TemplateFault> {
        let template = ChatTemplate::compile(source).unwrap();
        template.render(variables.as_object().unwrap())
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = json!({ "v": { "z": "<Köln>", "a": [1, 2.0] } });
        assert_eq!(render("{{ v | tojson }}", value.clone()).unwrap(), r#"{"z": "<Köln>", "a": [1, 2.0]}"#);
        assert_eq!(render("{{ v.a | tojson(indent=1) }}", value.clone()).unwrap(), "[\n 1,\n 2.0\n]");
        let options = "{{ v | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}";
        assert_eq!(render(options, value).unwrap(), r#"{"a":[1,2.0],"z":"<K\u00f6ln>"}"#);
    }

    #[test]
    fn blocks_leave_no_blank_lines() {
        assert_eq!(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n", json!({})).unwrap(), "a\nb\nc");
    }

    #[test]
    fn python_methods_slices_and_neighbours_work() {
        let source = "{% for m in ms[::-1] %}{{ m.strip().split(' ')[0] }}\
            {% if loop.nextitem is defined %}<{{ loop.nextitem.startswith('a') }}>{% endif %}{% endfor %}";
        assert_eq!(render(source, json!({ "ms": ["a b ", " c d"] })).unwrap(), "c<True>a");
    }

    #[test]
    fn what_a_template_raises_is_told_as_it_is() {
        let source = "{% macro f() %}{{ raise_exception('no user message') }}{% endmacro %}{{ f() }}";
        let fault = render(source, json!({})).unwrap_err();
        assert_eq!(fault, TemplateFault::Raised("no user message".into()));
        let fault = render("\n{{ a.b.c }}", json!({})).unwrap_err();
        assert!(matches!(&fault, TemplateFault::Failed(message) if message.contains("line 2")), "{fault}");
    }

    #[test]
    fn bad_syntax_is_placed() {
        let error = ChatTemplate::compile("ok\n{% if %}").unwrap_err();
        assert!(error.contains("in line 2"), "{error}");
    }

    #[test]
    fn a_template_cannot_run_for_ever() {
        let source = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(matches!(render(source, json!({})), Err(TemplateFault::Failed(_))));
    }

    /// What a template says of a value that was put into itself, `times` times over.
    fn nested(times: usize, how: &str, say: &str) -> Result<String, TemplateFault> {
        let source = format!(
            "{{% set ns = namespace(x=[1], y={{}}) %}}{{% for i in range({times}) %}}{{% set ns.x = {how} %}}{{% endfor %}}{say}"
        );
        render(&source, json!({}))
    }

    #[test]
    fn values_that_lie_deep_in_each_other_end_without_a_fault() {
        // As deep as the steps allow, and deeper than an ordinary stack bears.
        let fortyfold = format!("{}ns.x{}", "[".repeat(40), "]".repeat(40));
        for (times, how) in [(40_000, "[ns.x]"), (6_000, &fortyfold)] {
            assert_eq!(nested(times, how, "{{ ns.x | length }}").unwrap(), "1");
            assert_ne!(nested(times, how, "{{ (ns.x ~ '') | length }}"), Ok(String::new()));
            assert_eq!(nested(times, how, "{{ [ns.x] == [ns.x, 1] }}").unwrap(), "False");
        }
        assert_eq!(nested(2, "[ns.x]", "{{ ns.x }}").unwrap(), "[[[1]]]");
        for say in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{% set y = ns.x %}{{ y }}"] {
            let fault = nested(9_000, "[ns.x]", say).unwrap_err().to_string();
            assert!(fault.contains("lies more than 128 deep in others"), "{fault}");
            let fault = nested(9_000, "{'k': ns.x}", say).unwrap_err().to_string();
            assert!(fault.contains("lies more than 128 deep in others"), "{fault}");
        }
    }

    #[test]
    fn values_that_hold_themselves_many_times_are_not_written_out() {
        assert_eq!(nested(2, "[ns.x, ns.x]", "{{ ns.x | tojson }}").unwrap(), "[[[1], [1]], [[1], [1]]]");
        for say in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ {'k': ns.x} }}"] {
            let fault = nested(60, "[ns.x, ns.x]", say).unwrap_err().to_string();
            assert!(fault.contains("holds more than 1048576 others"), "{fault}");
        }
        let fault = render("{{ ['x' * 999] * 99999 }}", json!({})).unwrap_err().to_string();
        assert!(fault.contains("is longer than 16777216 bytes as text"), "{fault}");
    }

    #[test]
    fn every_kind_of_key_and_value_has_its_json() {
        let source = "{{ {1: none, 'f': 1.0, 'k': (1, 2), 'm': [3] | map('string')} | tojson }}";
        let json = r#"{"1": null, "f": 1.0, "k": [1, 2], "m": ["3"]}"#;
        assert_eq!(render(source, json!({})).unwrap(), json);
    }

    #[test]
    fn a_long_conversation_has_more_steps() {
        let source =
            "{% for m in ms %}{% for i in range(40) %}{{ i }}{% endfor %}{{ m.t | trim }}{% endfor %}";
        let messages: Vec<_> = (0..5000).map(|_| json!({ "role": "user", "t": " a " })).collect();
        assert_eq!(render(source, json!({ "ms": messages })).unwrap().len(), 5000 * (70 + 1));
        assert!(matches!(render(source, json!({ "ms": vec![0; 20_000] })), Err(TemplateFault::Failed(_))));
    }

    #[test]
    fn training_marks_are_ignored() {
        let source = "a{%- generation -%} b {%- endgeneration %}{% if x %}c{% endif %}";
        assert_eq!(render(source, json!({ "x": true })).unwrap(), "abc");
        for broken in ["{%}", "{%", "{%%}", "{%{%}", "{%}{% generation %}"] {
            assert!(ChatTemplate::compile(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_clock_has_a_format() {
        let year = render("{{ strftime_now('%Y') }}", json!({})).unwrap();
        assert!(year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit()), "{year}");
        assert!(render("{{ strftime_now('%' ~ 'c' * 9 ~ '%c' * 200) }}", json!({})).is_err());
    }

    #[test]
    fn the_variables_that_a_template_reads_are_known() {
        let template = ChatTemplate::compile("{% if effort == 'low' %}{{ messages }}{% endif %}").unwrap();
        assert!(template.reads("effort") && template.reads("messages") && !template.reads("enable_thinking"));
        assert!(template.has_literal("low") && !template.has_literal("high"));
    }
}
