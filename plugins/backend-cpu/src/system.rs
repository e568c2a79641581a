//! What the machine says of itself. Reads `/proc`, changes nothing.

use tensorfold_kernels::cpu::InstructionSet;
use tensorfold_plugin_api::device::{DeviceIdentity, DeviceInfo, DeviceKind, DeviceMemory};

/// The machine's processors as one device.
pub(crate) fn device() -> DeviceInfo {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    DeviceInfo {
        identity: DeviceIdentity {
            kind: DeviceKind::Cpu,
            pci_address: String::new(),
            uuid: String::new(),
            name: model_name(&cpus).unwrap_or(std::env::consts::ARCH).to_owned(),
            index: 0,
        },
        memory: DeviceMemory::Unified,
        arch: InstructionSet::best().name().to_owned(),
        memory_bytes: kibibytes(&memory, "MemTotal"),
        free_memory_bytes: kibibytes(&memory, "MemAvailable"),
        driver: String::new(),
        facts: vec![(
            "processors".to_owned(),
            std::thread::available_parallelism().map_or(1, usize::from).to_string(),
        )],
    }
}

/// Memory that can be used now without swapping.
pub(crate) fn available_memory() -> Option<u64> {
    kibibytes(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

fn model_name(cpus: &str) -> Option<&str> {
    let line = cpus.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim()).filter(|name| !name.is_empty())
}

/// A line such as `MemTotal:  1024 kB`, in bytes.
fn kibibytes(memory: &str, key: &str) -> Option<u64> {
    let line = memory.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_name_are_read_from_what_linux_prints() {
        let memory = "MemTotal:       16308456 kB\nMemFree:          1024 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(kibibytes(memory, "MemTotal"), Some(16_308_456 * 1024));
        assert_eq!(kibibytes(memory, "MemAvailable"), Some(8_000_000 * 1024));
        assert_eq!(kibibytes(memory, "Mem"), None);
        assert_eq!(kibibytes("", "MemTotal"), None);
        assert_eq!(model_name("processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n"), Some("Some CPU @ 2GHz"));
        assert_eq!(model_name("model name\t: \n"), None);
    }
}
