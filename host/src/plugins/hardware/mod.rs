//! What is in this machine, as far as the kernel tells without any driver library.
//!
//! Reads `/sys` and `/proc` and asks whether device nodes could be opened; never opens a device node and never loads
//! anything. Every path is below a root folder that is `/` except in tests. What a file does not tell is absent, not
//! an error: sandboxes hide parts of these trees.

pub mod cpu;
mod kfd;
mod nodes;
mod pci;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use kfd::gfx_name;
pub use nodes::{Access, Node};

/// A vendor of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vendor {
    /// AMD.
    Amd,
    /// NVIDIA.
    Nvidia,
    /// Intel.
    Intel,
    /// Apple.
    Apple,
    /// Any other, by its PCI number.
    Other(u16),
}

impl Vendor {
    /// From the PCI vendor number.
    pub fn from_pci(number: u16) -> Self {
        match number {
            0x1002 => Self::Amd,
            0x10de => Self::Nvidia,
            0x8086 => Self::Intel,
            0x106b => Self::Apple,
            other => Self::Other(other),
        }
    }

    /// The name that manifests use: `amd`, `nvidia`, `intel`, `apple`, or `0x1af4`.
    pub fn name(self) -> String {
        match self {
            Self::Amd => "amd".into(),
            Self::Nvidia => "nvidia".into(),
            Self::Intel => "intel".into(),
            Self::Apple => "apple".into(),
            Self::Other(number) => format!("0x{number:04x}"),
        }
    }
}

impl Serialize for Vendor {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

/// Whether a device has memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// A card or module with its own memory.
    Discrete,
    /// Part of the processor, sharing its memory.
    Integrated,
    /// The kernel does not tell, usually because no driver is loaded.
    Unknown,
}

/// An accelerator or display device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Device {
    /// PCI address, `0000:03:00.0`.
    pub address: String,
    /// Who made it.
    pub vendor: Vendor,
    /// PCI device number.
    pub device: u16,
    /// PCI class, 24 bits: `0x030000` is a display controller.
    pub class: u32,
    /// The kernel driver bound to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The architecture as plugins name it (`gfx1151`); NVIDIA's is not known without the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Own memory or the processor's.
    pub placement: Placement,
    /// Own memory in bytes, when the kernel tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Minor number of its `/dev/dri/renderD*` node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub render_minor: Option<u32>,
}

impl Device {
    /// One line for a reader: `AMD GPU 1002:1586 at 0000:03:00.0 (gfx1151)`.
    pub fn describe(&self) -> String {
        let vendor = match self.vendor {
            Vendor::Amd => "AMD".into(),
            Vendor::Nvidia => "NVIDIA".into(),
            Vendor::Intel => "Intel".into(),
            Vendor::Apple => "Apple".into(),
            Vendor::Other(_) => self.vendor.name(),
        };
        let arch = self.arch.as_ref().map(|arch| format!(" ({arch})")).unwrap_or_default();
        let number = match self.vendor {
            Vendor::Amd => 0x1002,
            Vendor::Nvidia => 0x10de,
            Vendor::Intel => 0x8086,
            Vendor::Apple => 0x106b,
            Vendor::Other(number) => number,
        };
        format!("{vendor} device {number:04x}:{:04x} at {}{arch}", self.device, self.address)
    }
}

/// Versions of the kernel's drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drivers {
    /// The kernel's release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// NVIDIA's kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvidia: Option<String>,
    /// AMD's kernel driver; the kernel's release where the driver came with the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amdgpu: Option<String>,
}

impl Drivers {
    /// The version of the driver that a manifest's `[driver]` table names; `None` when it is not loaded.
    pub fn version(&self, name: &str) -> Option<&str> {
        match name {
            "nvidia" => self.nvidia.as_deref(),
            "amdgpu" => self.amdgpu.as_deref(),
            "kernel" => self.kernel.as_deref(),
            _ => None,
        }
    }
}

/// Everything the host itself knows about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hardware {
    /// Accelerators and display devices, in order of PCI address.
    pub devices: Vec<Device>,
    /// Device nodes that GPU drivers use, and whether they could be opened.
    pub nodes: Vec<Node>,
    /// Driver versions.
    pub drivers: Drivers,
    /// Names of processor features that are usable, the operating system's part included.
    pub cpu_features: Vec<&'static str>,
    /// The C library's version, for example `2.36`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libc: Option<String>,
}

impl Hardware {
    /// Looks at the machine whose trees are below `root`.
    pub fn read(root: &Path) -> Self {
        let mut devices = pci::read(root);
        kfd::complete(root, &mut devices);
        Self {
            devices,
            nodes: nodes::read(root),
            drivers: read_drivers(root),
            cpu_features: cpu::usable_features(),
            libc: libc_version(),
        }
    }

    /// Devices of one vendor.
    pub fn of_vendor(&self, vendor: Vendor) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(move |device| device.vendor == vendor)
    }

    /// Nodes that a driver of this vendor needs and this user cannot open.
    pub fn closed_nodes(&self, vendor: Vendor) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.vendor == Some(vendor) && node.access == Access::Denied)
    }
}

fn read_drivers(root: &Path) -> Drivers {
    let kernel = read_line(&root.join("proc/sys/kernel/osrelease"));
    let amdgpu_folder = root.join("sys/module/amdgpu");
    Drivers {
        nvidia: read_text(&root.join("proc/driver/nvidia/version"))
            .as_deref()
            .and_then(nvidia_version)
            .or_else(|| read_line(&root.join("sys/module/nvidia/version"))),
        amdgpu: read_line(&amdgpu_folder.join("version"))
            .or_else(|| amdgpu_folder.is_dir().then(|| kernel.clone()).flatten()),
        kernel,
    }
}

/// The version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu ...`: the first word of its first
/// line that is made of numbers with dots.
fn nvidia_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace()
        .find(|word| {
            word.contains('.')
                && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(str::to_owned)
}

fn libc_version() -> Option<String> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: returns a pointer to a constant string of the C library.
        let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        Some(text.to_string_lossy().into_owned())
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

fn read_text(path: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut text = String::new();
    // These files are short; a bound keeps a made-up tree from filling the memory.
    std::fs::File::open(path).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
    Some(text)
}

fn read_line(path: &Path) -> Option<String> {
    let text = read_text(path)?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;

    /// A made tree of one machine.
    pub(crate) struct Machine {
        pub(crate) folder: tempfile::TempDir,
    }

    impl Machine {
        pub(crate) fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        pub(crate) fn write(&self, name: &str, text: &str) -> &Self {
            let path = self.folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        pub(crate) fn pci(&self, address: &str, vendor: u16, device: u16, class: u32) -> &Self {
            let folder = format!("sys/bus/pci/devices/{address}");
            self.write(&format!("{folder}/vendor"), &format!("0x{vendor:04x}\n"));
            self.write(&format!("{folder}/device"), &format!("0x{device:04x}\n"));
            self.write(&format!("{folder}/class"), &format!("0x{class:06x}\n"))
        }

        pub(crate) fn kfd(&self, node: u32, location: u32, gfx: u32) -> &Self {
            let text = format!(
                "cpu_cores_count 0\nsimd_count 80\ndomain 0\nlocation_id {location}\ndrm_render_minor 128\n\
                 gfx_target_version {gfx}\nvendor_id 4098\n"
            );
            self.write(&format!("sys/class/kfd/kfd/topology/nodes/{node}/properties"), &text)
        }

        pub(crate) fn hardware(&self) -> Hardware {
            Hardware::read(self.folder.path())
        }
    }

    #[test]
    fn an_empty_tree_is_a_machine_without_accelerators() {
        let hardware = Machine::new().hardware();
        assert!(hardware.devices.is_empty() && hardware.nodes.is_empty());
        assert_eq!(hardware.drivers, Drivers::default());
    }

    #[test]
    fn an_integrated_amd_gpu_gets_arch_and_render_node_from_the_topology() {
        let machine = Machine::new();
        machine
            .pci("0000:c5:00.0", 0x1002, 0x1586, 0x03_8000)
            .pci("0000:00:14.0", 0x8086, 0x1234, 0x0c_0330)
            .write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 32\nsimd_count 0\n")
            .kfd(1, 0xc500, 110_501)
            .write("sys/bus/pci/devices/0000:c5:00.0/mem_info_vram_total", "536870912\n");
        let hardware = machine.hardware();
        assert_eq!(hardware.devices.len(), 1);
        let device = &hardware.devices[0];
        assert_eq!(device.arch.as_deref(), Some("gfx1151"));
        assert_eq!(device.placement, Placement::Integrated);
        assert_eq!(device.render_minor, Some(128));
        assert_eq!(device.memory_bytes, Some(536_870_912));
        assert_eq!(device.describe(), "AMD device 1002:1586 at 0000:c5:00.0 (gfx1151)");
    }

    #[test]
    fn processing_accelerators_count_and_other_classes_do_not() {
        let machine = Machine::new();
        machine
            .pci("0000:03:00.0", 0x1002, 0x74a1, 0x12_0000)
            .pci("0000:04:00.0", 0x10de, 0x2330, 0x03_0200)
            .pci("0000:04:00.1", 0x10de, 0x22a3, 0x04_0300)
            .pci("0000:00:02.0", 0x8086, 0x9a49, 0x03_0000)
            .kfd(1, 0x0300, 90_402);
        let hardware = machine.hardware();
        let found: Vec<_> = hardware.devices.iter().map(|device| (device.vendor, device.placement)).collect();
        assert_eq!(
            found,
            [
                (Vendor::Intel, Placement::Integrated),
                (Vendor::Amd, Placement::Discrete),
                (Vendor::Nvidia, Placement::Discrete)
            ]
        );
        assert_eq!(hardware.devices[1].arch.as_deref(), Some("gfx942"));
        assert_eq!(hardware.devices[2].arch, None, "not known without the driver");
    }

    #[test]
    fn an_amd_card_without_its_driver_is_of_unknown_placement() {
        let machine = Machine::new();
        machine.pci("0000:03:00.0", 0x1002, 0x744c, 0x03_0000);
        assert_eq!(machine.hardware().devices[0].placement, Placement::Unknown);
    }

    #[test]
    fn malformed_trees_give_less_and_never_fail() {
        let machine = Machine::new();
        machine
            .write("sys/bus/pci/devices/0000:03:00.0/vendor", "nonsense")
            .write("sys/bus/pci/devices/0000:04:00.0/vendor", "0x1002\n")
            .write("sys/class/kfd/kfd/topology/nodes/1/properties", "gfx_target_version x\nlocation_id\n\n")
            .write("proc/driver/nvidia/version", "\n");
        let hardware = machine.hardware();
        assert!(hardware.devices.is_empty());
        assert_eq!(hardware.drivers.nvidia, None);
    }

    #[test]
    fn driver_versions_come_from_both_kinds_of_nvidia_text_and_the_kernel() {
        let machine = Machine::new();
        machine
            .write("proc/sys/kernel/osrelease", "6.18.0-x\n")
            .write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version:  gcc version 12.2.0\n")
            .write("sys/module/amdgpu/parameters/x", "1");
        let drivers = machine.hardware().drivers;
        assert_eq!(drivers.version("nvidia"), Some("550.54.14"));
        assert_eq!(drivers.version("amdgpu"), Some("6.18.0-x"));
        assert_eq!(drivers.version("other"), None);
        machine.write("sys/module/amdgpu/version", "6.12.12\n");
        assert_eq!(machine.hardware().drivers.version("amdgpu"), Some("6.12.12"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build\n";
        assert_eq!(nvidia_version(open).as_deref(), Some("565.57.01"));
    }
}
