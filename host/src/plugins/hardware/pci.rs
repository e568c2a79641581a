//! PCI devices from `/sys/bus/pci/devices`.

use std::path::Path;

use super::{Device, Placement, Vendor, read_line, sorted_entries};

/// Display controllers and processing accelerators, in order of address.
pub(super) fn read(root: &Path) -> Vec<Device> {
    sorted_entries(&root.join("sys/bus/pci/devices")).iter().filter_map(|folder| device(folder)).collect()
}

fn device(folder: &Path) -> Option<Device> {
    let number = |name: &str| hexadecimal(&read_line(&folder.join(name))?);
    let class = number("class")?;
    // Base class 03 is display, 12 is processing accelerators (data centre cards without a display output).
    if !matches!(class >> 16, 0x03 | 0x12) {
        return None;
    }
    let address = folder.file_name()?.to_str()?.to_owned();
    let vendor = Vendor::from_pci(u16::try_from(number("vendor")?).ok()?);
    Some(Device {
        placement: placement(vendor, &address),
        address,
        vendor,
        device: u16::try_from(number("device")?).ok()?,
        class,
        driver: std::fs::read_link(folder.join("driver"))
            .ok()
            .and_then(|link| Some(link.file_name()?.to_str()?.to_owned())),
        arch: None,
        memory_bytes: read_line(&folder.join("mem_info_vram_total")).and_then(|text| text.parse().ok()),
        render_minor: render_minor(folder),
    })
}

/// What can be said without a driver: NVIDIA makes no integrated PCI devices, Intel's integrated one is always
/// device 2 of the first bus, and AMD's are told apart by architecture alone.
fn placement(vendor: Vendor, address: &str) -> Placement {
    match vendor {
        Vendor::Nvidia => Placement::Discrete,
        Vendor::Intel if address == "0000:00:02.0" => Placement::Integrated,
        Vendor::Intel => Placement::Discrete,
        Vendor::Apple => Placement::Integrated,
        Vendor::Amd | Vendor::Other(_) => Placement::Unknown,
    }
}

fn render_minor(folder: &Path) -> Option<u32> {
    sorted_entries(&folder.join("drm"))
        .iter()
        .find_map(|path| path.file_name()?.to_str()?.strip_prefix("renderD")?.parse().ok())
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
