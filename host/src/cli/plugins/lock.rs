//! `plugins lock`.

use serde_json::json;

use super::Output;
use crate::plugins::catalog::Catalog;
use crate::plugins::lifecycle::{Code, show_path};
use crate::plugins::lock::{self, Pin};

pub(super) fn run(
    catalog: &mut Catalog,
    update: bool,
    as_json: bool,
    output: &mut Output<'_>,
) -> std::io::Result<u8> {
    if catalog.environment.elevated {
        return output.fail(
            "plugins lock: not with the rights of another user; run it as the user whose pins they are",
        );
    }
    let Some(path) = lock::user_path(&catalog.environment) else {
        return output.fail(lock::LockError::NoPlace);
    };
    for index in 0..catalog.plugins().len() {
        catalog.inspect(index);
    }
    let mut pins = catalog.lock.pins.clone();
    let mut status = 0;
    let mut written = Vec::new();
    for plugin in catalog.plugins().iter().filter(|plugin| !plugin.is_hidden()) {
        let (Some(manifest), Some(library)) = (&plugin.manifest, &plugin.library) else { continue };
        // What cannot be used is not pinned, unless the pin itself is what speaks against it.
        if plugin.life.findings().iter().any(|finding| {
            matches!(
                finding.code,
                Code::LibraryMissing
                    | Code::NotAPlugin
                    | Code::UnsafePath
                    | Code::ManifestMismatch
                    | Code::Duplicate
            )
        }) {
            writeln!(
                output.err,
                "not pinned: {}",
                plugin.life.error().map(ToString::to_string).unwrap_or_default()
            )?;
            status = 1;
            continue;
        }
        let pin = match pin_of(manifest, library, plugin.embedded, &plugin.manifest_path) {
            Ok(pin) => pin,
            Err(error) => return output.fail(format!("{}: cannot be read: {error}", show_path(library))),
        };
        let key = (pin.id.clone(), pin.variant.clone());
        match pins.get(&key) {
            Some(old) if *old == pin => {}
            Some(old) if !update && old.library_sha256 != pin.library_sha256 => {
                let place = catalog.lock.path.clone().unwrap_or_else(|| path.clone());
                let finding = lock::mismatch(&place, "library", &old.library_sha256, &pin.library_sha256);
                writeln!(output.err, "tensorfold: {}", finding.plugin(&pin.id, &pin.version).at(library))?;
                status = 1;
            }
            Some(_) if !update => {
                writeln!(
                    output.err,
                    "tensorfold: plugin {}: its pin differs; replace it with `tensorfold plugins lock --update`",
                    pin.id
                )?;
                status = 1;
            }
            _ => {
                written.push(pin.clone());
                pins.insert(key, pin);
            }
        }
    }
    if !written.is_empty()
        && let Err(error) = lock::write(&path, pins.into_values())
    {
        return output.fail(error);
    }
    if as_json {
        output.json(&json!({"schema": "tensorfold.plugins.lock/1", "path": path, "written": written}))?;
    } else {
        for pin in &written {
            let digest: String = pin.library_sha256.chars().take(12).collect();
            writeln!(output.out, "{} {} {digest}", pin.id, pin.version)?;
        }
        writeln!(output.out, "{}", path.display())?;
    }
    Ok(status)
}

fn pin_of(
    manifest: &tensorfold_plugin_api::manifest::Manifest,
    library: &std::path::Path,
    embedded: bool,
    sidecar: &std::path::Path,
) -> std::io::Result<Pin> {
    Ok(Pin {
        id: manifest.plugin.id.clone(),
        variant: manifest.plugin.variant.clone(),
        version: manifest.plugin.version.to_string(),
        library_sha256: lock::digest_file(library)?,
        sidecar_sha256: if embedded { None } else { Some(lock::digest_file(sidecar)?) },
    })
}
