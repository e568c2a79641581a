//! `plugins list`.

use serde_json::json;

use super::{Output, describe};
use crate::plugins::catalog::Catalog;
use crate::plugins::lifecycle::{Finding, show_path};
use crate::plugins::trial;
use crate::plugins::verdicts::Verdicts;

pub(super) fn run(
    catalog: &mut Catalog,
    all: bool,
    as_json: bool,
    output: &mut Output<'_>,
) -> std::io::Result<u8> {
    let verdicts = Verdicts::read(&catalog.environment);
    for index in 0..catalog.plugins().len() {
        let inspection = catalog.inspect(index);
        if let Some(image) = &inspection.image {
            trial::recall(catalog, index, image, &verdicts);
        }
    }
    let mut shown: Vec<_> = catalog.plugins().iter().filter(|plugin| all || !plugin.is_hidden()).collect();
    shown.sort_by_key(|plugin| (plugin.name(), plugin.rank, plugin.manifest_path.clone()));
    if as_json {
        let document = json!({
            "schema": "tensorfold.plugins.list/1",
            "plugins": shown.iter().map(|plugin| describe::plugin(plugin)).collect::<Vec<_>>(),
            "notes": catalog.notes(),
        });
        output.json(&document)?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = shown
        .iter()
        .map(|plugin| {
            let facts = plugin.manifest.as_ref().map(|manifest| &manifest.plugin);
            let dash = || "-".to_owned();
            vec![
                plugin.name(),
                facts.map_or_else(dash, |facts| facts.version.to_string()),
                facts.map_or_else(dash, |facts| facts.backend.clone()),
                describe::state(plugin).as_str().to_owned(),
                describe::reason(plugin).map_or_else(dash, Finding::reason),
                show_path(&plugin.manifest_path),
            ]
        })
        .collect();
    output.out.write_all(describe::columns(&rows).as_bytes())?;
    for note in catalog.notes() {
        writeln!(output.err, "note: {note}")?;
    }
    if shown.is_empty() {
        writeln!(output.err, "no plugins; searched:")?;
        for place in catalog.searched() {
            writeln!(output.err, "  {place}")?;
        }
    }
    Ok(0)
}
