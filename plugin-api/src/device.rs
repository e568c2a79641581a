//! Devices, as both sides of the border talk of them.

use crate::abi;

/// Kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// A CPU.
    Cpu,
    /// A GPU.
    Gpu,
    /// A neural processing unit.
    Npu,
    /// Any other accelerator, also kinds that this build does not know.
    Accelerator,
}

impl DeviceKind {
    /// From the raw constant; unknown ones are [`DeviceKind::Accelerator`].
    pub fn from_code(code: u32) -> DeviceKind {
        match code {
            abi::TF_DEVICE_CPU => DeviceKind::Cpu,
            abi::TF_DEVICE_GPU => DeviceKind::Gpu,
            abi::TF_DEVICE_NPU => DeviceKind::Npu,
            _ => DeviceKind::Accelerator,
        }
    }

    /// The raw constant.
    pub fn code(self) -> u32 {
        match self {
            DeviceKind::Cpu => abi::TF_DEVICE_CPU,
            DeviceKind::Gpu => abi::TF_DEVICE_GPU,
            DeviceKind::Npu => abi::TF_DEVICE_NPU,
            DeviceKind::Accelerator => abi::TF_DEVICE_ACCELERATOR,
        }
    }

    /// The name used in manifests and JSON.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
            DeviceKind::Npu => "npu",
            DeviceKind::Accelerator => "accel",
        }
    }
}

/// Who a device is. Empty fields are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceIdentity {
    /// What kind of device.
    pub kind: DeviceKind,
    /// PCI address, `0000:c1:00.0`.
    pub pci_address: String,
    /// The vendor's unique id.
    pub uuid: String,
    /// Name for people.
    pub name: String,
    /// Position in the plugin's list.
    pub index: u32,
}

impl DeviceIdentity {
    /// Whether both name one physical device: by PCI address, else by uuid, else by kind, name
    /// and position.
    pub fn same_device(&self, other: &DeviceIdentity) -> bool {
        if !self.pci_address.is_empty() && !other.pci_address.is_empty() {
            return self.pci_address.eq_ignore_ascii_case(&other.pci_address);
        }
        if !self.uuid.is_empty() && !other.uuid.is_empty() {
            return self.uuid == other.uuid;
        }
        (self.kind, &self.name, self.index) == (other.kind, &other.name, other.index)
    }
}

/// Where a device's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceMemory {
    /// Nobody knows.
    Unknown,
    /// On the device.
    Dedicated,
    /// Shared with the CPU.
    Unified,
}

impl DeviceMemory {
    /// From the raw constant.
    pub fn from_code(code: u32) -> DeviceMemory {
        match code {
            abi::TF_DEVICE_MEMORY_DEDICATED => DeviceMemory::Dedicated,
            abi::TF_DEVICE_MEMORY_UNIFIED => DeviceMemory::Unified,
            _ => DeviceMemory::Unknown,
        }
    }

    /// The raw constant; 0 for unknown.
    pub fn code(self) -> u32 {
        match self {
            DeviceMemory::Unknown => 0,
            DeviceMemory::Dedicated => abi::TF_DEVICE_MEMORY_DEDICATED,
            DeviceMemory::Unified => abi::TF_DEVICE_MEMORY_UNIFIED,
        }
    }
}

/// One device that a plugin sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Who it is.
    pub identity: DeviceIdentity,
    /// Where its memory is.
    pub memory: DeviceMemory,
    /// Architecture as spelt in manifests.
    pub arch: String,
    /// All memory in bytes; `None`: unknown.
    pub memory_bytes: Option<u64>,
    /// Free memory in bytes; `None`: unknown.
    pub free_memory_bytes: Option<u64>,
    /// Version of the driver; may be empty.
    pub driver: String,
    /// Further facts, by name.
    pub facts: Vec<(String, String)>,
}

/// Whether a plugin can use a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFit {
    /// 0: it can; else a sum of the `TF_UNFIT_*` constants.
    pub reasons: u32,
    /// One line for people.
    pub text: String,
}

impl DeviceFit {
    /// The device can be used.
    pub fn usable() -> DeviceFit {
        DeviceFit::default()
    }

    /// The device cannot be used; `reasons` is a sum of `TF_UNFIT_*`.
    pub fn unusable(reasons: u32, text: impl Into<String>) -> DeviceFit {
        DeviceFit { reasons, text: text.into() }
    }

    /// Whether the device can be used.
    pub fn is_usable(&self) -> bool {
        self.reasons == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pci: &str, uuid: &str, index: u32) -> DeviceIdentity {
        DeviceIdentity {
            kind: DeviceKind::Gpu,
            pci_address: pci.into(),
            uuid: uuid.into(),
            name: "card".into(),
            index,
        }
    }

    #[test]
    fn a_device_is_one_by_pci_address_then_uuid_then_position() {
        assert!(named("0000:C1:00.0", "a", 0).same_device(&named("0000:c1:00.0", "b", 1)));
        assert!(!named("0000:c1:00.0", "a", 0).same_device(&named("0000:c2:00.0", "a", 0)));
        assert!(named("", "a", 0).same_device(&named("0000:c1:00.0", "a", 1)));
        assert!(!named("", "", 0).same_device(&named("", "", 1)));
    }
}
