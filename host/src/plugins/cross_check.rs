//! Does the descriptor of the opened library belong to the manifest that was admitted?
//!
//! The descriptor is data: reading it runs nothing of the plugin.

use std::path::Path;
use std::ptr::NonNull;

use tensorfold_plugin_api::abi::{TF_PLUGIN_MAGIC, TfDescriptor};
use tensorfold_plugin_api::manifest::{MANIFEST_BYTES_MAX, Manifest};

use super::image::Image;
use super::lifecycle::{Code, Finding, one_line};

/// A descriptor that agrees with its manifest.
#[derive(Clone)]
pub struct Descriptor {
    /// The table itself, valid to the end of the process.
    pub table: &'static TfDescriptor,
    /// What tells builds apart.
    pub build_id: String,
}

impl std::fmt::Debug for Descriptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Descriptor").field("build_id", &self.build_id).finish_non_exhaustive()
    }
}

/// Compares the descriptor with the manifest. `image` is what the file said about the symbol.
///
/// # Errors
/// `bad-magic` when the symbol is too small or does not begin as a descriptor; `descriptor-mismatch` or
/// `manifest-mismatch` with both values.
pub fn cross_check(
    descriptor: NonNull<TfDescriptor>,
    image: &Image,
    manifest: &Manifest,
    path: &Path,
) -> Result<Descriptor, Box<Finding>> {
    let named = |finding: Finding| {
        Box::new(finding.plugin(&manifest.plugin.id, manifest.plugin.version.to_string()).at(path))
    };
    let table = read(descriptor, image.descriptor_bytes).map_err(|finding| named(*finding))?;
    let mismatch = |what: &str, wanted: String, found: String| {
        named(
            Finding::error(
                Code::DescriptorMismatch,
                format!("file and manifest do not belong together: {what}"),
            )
            .wanted(wanted)
            .found(found)
            .fix("reinstall the plugin"),
        )
    };
    let abi = &manifest.abi;
    for (what, wanted, found) in [
        ("abi.major", abi.major, table.abi_major),
        ("abi.minor", abi.minor, table.abi_minor),
        ("abi.min_host_minor", abi.min_host_minor, table.min_host_minor),
    ] {
        if wanted != found {
            return Err(mismatch(what, wanted.to_string(), found.to_string()));
        }
    }
    if table.manifest.is_null() || table.manifest_length > MANIFEST_BYTES_MAX as u64 {
        let found =
            if table.manifest.is_null() { "none".into() } else { format!("{} bytes", table.manifest_length) };
        return Err(mismatch(
            "the descriptor's manifest",
            format!("at most {MANIFEST_BYTES_MAX} bytes"),
            found,
        ));
    }
    // SAFETY: the descriptor's magic and size were checked, and the contract says that these point to `length` bytes
    // that live to the end of the process.
    let (bytes, version, build_id) = unsafe {
        (
            std::slice::from_raw_parts(table.manifest, table.manifest_length as usize),
            table.version.to_string_lossy(),
            table.build_id.to_string_lossy(),
        )
    };
    let wanted = manifest.plugin.version.to_string();
    if version != wanted {
        return Err(mismatch("plugin.version", wanted, one_line(&version)));
    }
    match Manifest::parse(bytes, "the manifest in the opened library") {
        Err(errors) => Err(named(Finding::error(Code::ManifestMismatch, errors.first().to_string()))),
        Ok(parsed) => match manifest.first_difference(&parsed.manifest) {
            Some(difference) => Err(named(manifest_mismatch("the opened library", &difference))),
            None => Ok(Descriptor { table, build_id: one_line(&build_id) }),
        },
    }
}

/// The sentence for two copies of a manifest that differ; `there` is where the other copy stands.
pub fn manifest_mismatch(there: &str, difference: &tensorfold_plugin_api::manifest::Difference) -> Finding {
    let nothing = || "nothing".to_owned();
    Finding::error(
        Code::ManifestMismatch,
        format!("the manifest in {there} is another one: {}", difference.key),
    )
    .wanted(difference.left.clone().unwrap_or_else(nothing))
    .found(difference.right.clone().unwrap_or_else(nothing))
    .fix("reinstall the plugin; a vendor makes the sidecar with `tensorfold plugins manifest --from LIBRARY`")
}

fn read(descriptor: NonNull<TfDescriptor>, bytes: u64) -> Result<&'static TfDescriptor, Box<Finding>> {
    let bad = |wanted: String, found: String| {
        Box::new(Finding::error(Code::BadMagic, "the descriptor is not one").wanted(wanted).found(found))
    };
    let wanted = size_of::<TfDescriptor>();
    if bytes < wanted as u64 {
        return Err(bad(format!("a symbol of at least {wanted} bytes"), format!("{bytes} bytes")));
    }
    if !descriptor.is_aligned() {
        return Err(bad("an aligned symbol".into(), format!("the address {descriptor:p}")));
    }
    // SAFETY: the symbol has at least the size of a descriptor and is aligned; any bytes are valid integers, and
    // pointers are looked at only after the magic was found right.
    let magic = unsafe { descriptor.cast::<u64>().read() };
    if magic != TF_PLUGIN_MAGIC {
        return Err(bad(format!("{TF_PLUGIN_MAGIC:#018x}"), format!("{magic:#018x}")));
    }
    // SAFETY: as above; with the magic right the contract vouches for the rest, in particular that a function
    // pointer is null or one. The library is never closed.
    let table: &'static TfDescriptor = unsafe { descriptor.as_ref() };
    if (table.struct_size as usize) < wanted {
        return Err(bad(format!("struct_size of at least {wanted}"), table.struct_size.to_string()));
    }
    if table.get_interface.is_none() {
        return Err(bad("a function get_interface".into(), "null".into()));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{CPlugin, manifest_text};
    use super::super::{image, open};
    use super::*;

    fn check(plugin: CPlugin) -> Result<Descriptor, Box<Finding>> {
        check_against(plugin, &manifest_text("backend-test"))
    }

    fn check_against(plugin: CPlugin, manifest: &str) -> Result<Descriptor, Box<Finding>> {
        let folder = tempfile::tempdir().unwrap();
        let path = plugin.build(folder.path());
        let image = image::read(&path).unwrap();
        let manifest = Manifest::parse(manifest.as_bytes(), "test").unwrap().manifest;
        let opened = open::open(&path, image.identity).unwrap();
        cross_check(opened.descriptor(), &image, &manifest, &path)
    }

    fn plugin() -> CPlugin {
        CPlugin::new("backend-test")
    }

    #[test]
    fn a_plugin_written_in_c_from_the_header_belongs_together() {
        let descriptor = check(plugin()).unwrap();
        assert_eq!(descriptor.build_id, "test-build");
    }

    #[test]
    fn what_is_no_descriptor_is_bad_magic() {
        assert_eq!(check(plugin().define("MAGIC", "0")).unwrap_err().code, Code::BadMagic);
        assert_eq!(check(plugin().define("SIZE", "8")).unwrap_err().code, Code::BadMagic);
        assert_eq!(check(plugin().define("GET_INTERFACE", "0")).unwrap_err().code, Code::BadMagic);
        let small = plugin().source(
            "__attribute__((visibility(\"default\"))) const char tensorfold_plugin_v1[16] = \"TFPLUGIN\";",
        );
        let finding = check(small).unwrap_err();
        assert_eq!(finding.code, Code::BadMagic);
        assert!(finding.found.as_deref() == Some("16 bytes"), "{finding}");
    }

    #[test]
    fn a_larger_descriptor_of_a_later_contract_is_fine() {
        check(plugin().define("SIZE", "4096")).unwrap();
    }

    #[test]
    fn a_descriptor_of_another_build_is_named_with_both_values() {
        for (name, value, what) in [
            ("ABI_MAJOR", "7", "abi.major"),
            ("ABI_MINOR", "9", "abi.minor"),
            ("VERSION", "\"1.2.4\"", "plugin.version"),
        ] {
            let finding = check(plugin().define(name, value)).unwrap_err();
            assert_eq!(finding.code, Code::DescriptorMismatch);
            assert!(
                finding.what.contains(what) && finding.wanted.is_some() && finding.found.is_some(),
                "{finding}"
            );
        }
    }

    #[test]
    fn another_manifest_in_the_library_is_named_with_the_first_differing_key() {
        let other = manifest_text("backend-test").replace("\"bf16\"", "\"bf16\", \"f16\"");
        let finding = check_against(plugin(), &other).unwrap_err();
        assert_eq!(finding.code, Code::ManifestMismatch);
        assert!(finding.what.contains("caps.formats"), "{finding}");
    }
}
