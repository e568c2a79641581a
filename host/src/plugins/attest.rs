//! The Rust door: are the tables laid out as the host believes?
//!
//! A plugin may export a root module beside its descriptor. Then the layout of each of its tables is compared with
//! the host's, field by field, and through pointers. A plugin without a root module is fully valid: its layouts are
//! taken as declared.

use std::path::{Path, PathBuf};

use abi_stable::abi_stability::abi_checking::check_layout_compatibility;
use abi_stable::library::AbiHeaderRef;
use tensorfold_plugin_api::abi::{HOST_INTERFACE, TfDescriptor, TfStr};
use tensorfold_plugin_api::attest::{PluginRootRef, ROOT_MODULE_SYMBOL, expected_layout};
use tensorfold_plugin_api::manifest::Manifest;

use super::lifecycle::{Code, Finding, one_line};
use super::open::Opened;

/// How much is known about the layouts of a plugin's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Compared, field by field.
    Attested,
    /// Stated by the plugin's descriptor alone.
    Declared,
}

/// Compares the layouts of every interface that the manifest lists.
///
/// The long report about a difference is written to a file in `reports`, when that is given and can be written.
///
/// # Errors
/// `layout-mismatch` with the first differing field.
pub fn attest(
    opened: &Opened,
    descriptor: &TfDescriptor,
    manifest: &Manifest,
    reports: Option<&Path>,
) -> Result<Layout, Box<Finding>> {
    // SAFETY: abi_stable's loader symbol is a static that begins with its header, and `upgrade` checks that before it
    // believes the rest; the library is never closed.
    let header = unsafe { opened.library().get::<AbiHeaderRef>(ROOT_MODULE_SYMBOL.as_bytes()) };
    let Ok(header) = header else { return Ok(Layout::Declared) };
    let refuse = |id: &str, report: String| Box::new(difference(manifest, id, &report, reports));
    let root = header
        .upgrade()
        .and_then(|header| header.init_root_module::<PluginRootRef>())
        .map_err(|error| refuse("the root module", error.to_string()))?;

    let ids = manifest.abi.interfaces.iter().map(String::as_str).chain([HOST_INTERFACE]);
    for id in ids {
        let Some(expected) = expected_layout(id) else { continue };
        // SAFETY: the id is readable for the call.
        let given = unsafe { root.interface()(TfStr::new(id)) };
        let Some(found) = given.layout else { continue };
        // The host's table is made by the host, every other one by the plugin; published tables never grow, so
        // both directions must hold.
        check_layout_compatibility(expected, found)
            .and_then(|()| check_layout_compatibility(found, expected))
            .map_err(|error| refuse(id, error.to_string()))?;
        if id != HOST_INTERFACE && given.table != table_by_descriptor(descriptor, id) {
            let what = format!("{id}: the two doors of the plugin give different tables");
            return Err(Box::new(named(manifest, Finding::error(Code::LayoutMismatch, what))));
        }
    }
    Ok(Layout::Attested)
}

fn table_by_descriptor(descriptor: &TfDescriptor, id: &str) -> *const std::ffi::c_void {
    match descriptor.get_interface {
        // SAFETY: the contract: readable id, works before `init`.
        Some(get) => unsafe { get(id.as_ptr(), id.len() as u64) },
        None => std::ptr::null(),
    }
}

fn named(manifest: &Manifest, finding: Finding) -> Finding {
    finding.plugin(&manifest.plugin.id, manifest.plugin.version.to_string())
}

fn difference(manifest: &Manifest, id: &str, report: &str, reports: Option<&Path>) -> Finding {
    let mut what = format!("{id}: the tables are laid out differently: {}", first_difference(report));
    if let Some(file) = reports.and_then(|folder| write_report(folder, manifest, report)) {
        what.push_str(&format!(" (full report: {})", file.display()));
    }
    named(manifest, Finding::error(Code::LayoutMismatch, what))
        .fix("install a build of the plugin for this release of tensorfold")
}

fn write_report(folder: &Path, manifest: &Manifest, report: &str) -> Option<PathBuf> {
    let file = folder.join(format!("layout-{}-{}.txt", manifest.plugin.id, manifest.plugin.version));
    super::write_atomically(&file, report.as_bytes()).ok().map(|()| file)
}

/// The first block of the report that begins with `Error:`, as one line; the report has about 140 lines.
fn first_difference(report: &str) -> String {
    let mut lines = report.lines().map(str::trim).skip_while(|line| !line.starts_with("Error:"));
    let block: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).take(6).collect();
    let text = if block.is_empty() {
        report.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no detail").to_owned()
    } else {
        block.join(" ").trim_start_matches("Error:").trim().to_owned()
    };
    let mut line = one_line(&text);
    if let Some((end, _)) = line.char_indices().nth(300) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::testing::{CPlugin, manifest_text};
    use super::super::{image, open};
    use super::*;

    fn manifest() -> Manifest {
        Manifest::parse(manifest_text("backend-test").as_bytes(), "test").unwrap().manifest
    }

    #[test]
    fn a_plugin_without_a_root_module_is_declared() {
        let folder = tempfile::tempdir().unwrap();
        let path = CPlugin::new("backend-test").build(folder.path());
        let opened = open::open(&path, image::read(&path).unwrap().identity).unwrap();
        // SAFETY: a descriptor made by this test's plugin.
        let descriptor = unsafe { opened.descriptor().as_ref() };
        assert_eq!(attest(&opened, descriptor, &manifest(), None).unwrap(), Layout::Declared);
    }

    #[test]
    fn two_plugins_of_one_root_module_type_answer_each_for_itself() {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
        for name in ["cuda", "hip"] {
            let path = folder.join(format!("libtensorfold_backend_{name}.so"));
            let image = image::read(&path).unwrap();
            let manifest = Manifest::parse(image.manifest.as_deref().unwrap(), "test").unwrap().manifest;
            assert_eq!(manifest.plugin.backend, name);
            let opened = open::open(&path, image.identity).unwrap();
            let descriptor =
                super::super::cross_check::cross_check(opened.descriptor(), &image, &manifest, &path)
                    .unwrap();
            assert_eq!(attest(&opened, descriptor.table, &manifest, None).unwrap(), Layout::Attested);
        }
    }

    #[test]
    fn a_symbol_that_is_no_root_module_is_refused_and_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = CPlugin::new("backend-test")
            .extra(&format!(
                "__attribute__((visibility(\"default\"))) const char {ROOT_MODULE_SYMBOL}[512] = {{0}};"
            ))
            .build(folder.path());
        let opened = open::open(&path, image::read(&path).unwrap().identity).unwrap();
        // SAFETY: as above.
        let descriptor = unsafe { opened.descriptor().as_ref() };
        let reports = folder.path().join("reports");
        let finding = attest(&opened, descriptor, &manifest(), Some(&reports)).unwrap_err();
        assert_eq!(finding.code, Code::LayoutMismatch);
        let file = reports.join("layout-backend-test-1.2.3.txt");
        assert!(file.exists() && finding.what.contains(&file.display().to_string()), "{finding}");
    }

    #[test]
    fn the_first_difference_is_found_in_a_long_report() {
        let report = "\n0 error(s)inside:\n    <other>\n\nLayout of expected type:\n   lots\n\nError:mismatched type\nExpected:\n    u32\nFound:\n    u64\n\nmore\nError:second\n";
        assert_eq!(first_difference(report), "mismatched type Expected: u32 Found: u64");
        assert_eq!(first_difference("\n  plain words\n"), "plain words");
        assert!(first_difference(&"x".repeat(5000)).len() < 310);
    }

    #[test]
    fn a_changed_table_is_a_difference_in_both_directions() {
        use abi_stable::StableAbi;
        mod here {
            #[repr(C)]
            #[derive(abi_stable::StableAbi)]
            pub(crate) struct Table {
                pub(crate) struct_size: u32,
                pub(crate) call: extern "C" fn(u32) -> u32,
            }
        }
        mod there {
            #[repr(C)]
            #[derive(abi_stable::StableAbi)]
            pub(crate) struct Table {
                pub(crate) struct_size: u32,
                pub(crate) call: extern "C" fn(u32) -> u64,
            }
        }
        let (here, there) = (<here::Table as StableAbi>::LAYOUT, <there::Table as StableAbi>::LAYOUT);
        assert!(check_layout_compatibility(here, here).is_ok());
        for (expected, found) in [(here, there), (there, here)] {
            let report = check_layout_compatibility(expected, found).unwrap_err().to_string();
            let line = first_difference(&report);
            assert!(line.contains("u32") && line.contains("u64"), "{line}");
        }
    }
}
