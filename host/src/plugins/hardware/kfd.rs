//! AMD's compute topology from `/sys/class/kfd/kfd/topology/nodes`.

use std::collections::HashMap;
use std::path::Path;

use super::{Device, Placement, Vendor, read_text, sorted_entries};

/// Architectures of GPUs that are part of a processor.
const INTEGRATED: &[&str] = &[
    "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1037", "gfx1103",
    "gfx1150", "gfx1151", "gfx1152", "gfx1153",
];

/// Adds what the topology tells to the AMD devices.
pub(super) fn complete(root: &Path, devices: &mut [Device]) {
    for folder in sorted_entries(&root.join("sys/class/kfd/kfd/topology/nodes")) {
        let Some(text) = read_text(&folder.join("properties")) else { continue };
        let properties: HashMap<&str, u64> = text
            .lines()
            .filter_map(|line| {
                let (name, value) = line.split_once(' ')?;
                Some((name, value.trim().parse().ok()?))
            })
            .collect();
        let Some(arch) = properties.get("gfx_target_version").copied().and_then(gfx_name) else { continue };
        let Some(location) = properties.get("location_id").copied() else { continue };
        let domain = properties.get("domain").copied().unwrap_or(0);
        let address = format!(
            "{domain:04x}:{:02x}:{:02x}.{}",
            (location >> 8) & 0xff,
            (location >> 3) & 0x1f,
            location & 7
        );
        let Some(device) =
            devices.iter_mut().find(|device| device.vendor == Vendor::Amd && device.address == address)
        else {
            continue;
        };
        device.placement =
            if INTEGRATED.contains(&arch.as_str()) { Placement::Integrated } else { Placement::Discrete };
        device.arch = Some(arch);
        if let Some(minor) = properties.get("drm_render_minor").and_then(|minor| u32::try_from(*minor).ok()) {
            device.render_minor = Some(minor);
        }
    }
}

/// The name for a `gfx_target_version`, which is decimal `major * 10000 + minor * 100 + step`; minor and step are
/// one hexadecimal digit each in the name. Zero, as processors have it, has no name.
pub fn gfx_name(version: u64) -> Option<String> {
    let (major, minor, step) = (version / 10_000, version / 100 % 100, version % 100);
    (major > 0 && minor < 16 && step < 16).then(|| format!("gfx{major}{minor:x}{step:x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_named_as_compilers_do() {
        assert_eq!(gfx_name(110_501).as_deref(), Some("gfx1151"));
        assert_eq!(gfx_name(90_010).as_deref(), Some("gfx90a"));
        assert_eq!(gfx_name(90_402).as_deref(), Some("gfx942"));
        assert_eq!(gfx_name(100_300).as_deref(), Some("gfx1030"));
        assert_eq!(gfx_name(0), None);
        assert_eq!(gfx_name(99_999), None);
    }
}
