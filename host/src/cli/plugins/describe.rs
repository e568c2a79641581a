//! Plugins and findings as JSON and as lines; every verb uses these.

use serde_json::{Value, json};

use crate::plugins::lifecycle::{Finding, Level, State};
use crate::plugins::plugin::Plugin;

/// The reason that a list shows: the first error, else what hides the plugin, else the first warning.
pub(super) fn reason(plugin: &Plugin) -> Option<&Finding> {
    let findings = plugin.life.findings();
    let hidden = findings.iter().find(|finding| finding.level == Level::Note);
    plugin.life.error().or(hidden).or_else(|| findings.iter().find(|finding| finding.level == Level::Warning))
}

/// The state that a list shows.
pub(super) fn state(plugin: &Plugin) -> State {
    match plugin.life.state() {
        // Nothing more happens to what cannot even be read.
        State::Discovered if plugin.life.error().is_some() => State::Refused,
        state => state,
    }
}

/// A finding with the state that was not reached.
pub(super) fn finding(finding: &Finding) -> Value {
    let mut value = serde_json::to_value(finding).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("state".into(), json!(finding.code.state()));
        fields.insert("message".into(), json!(finding.to_string()));
    }
    value
}

/// What every document says about a plugin.
pub(super) fn plugin(plugin: &Plugin) -> Value {
    let facts = plugin.manifest.as_ref().map(|manifest| &manifest.plugin);
    json!({
        "id": facts.map(|facts| &facts.id),
        "variant": facts.and_then(|facts| facts.variant.as_ref()),
        "version": facts.map(|facts| facts.version.to_string()),
        "backend": facts.map(|facts| &facts.backend),
        "aliases": facts.map(|facts| &facts.aliases),
        "engine_name": facts.map(|facts| &facts.engine_name),
        "state": state(plugin),
        "code": reason(plugin).map(|finding| finding.code),
        "reason": reason(plugin).map(Finding::reason),
        "path": plugin.manifest_path,
        "library": plugin.library,
        "rank": plugin.rank.as_str(),
        "origin": plugin.origin,
        "findings": plugin.life.findings().iter().map(finding).collect::<Vec<_>>(),
        "states": plugin.life.times(),
    })
}

/// Lines of columns, padded; the last column is not.
pub(super) fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let padding = width - cell.chars().count();
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', padding + 2));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
