//! Whether the library fits this machine and this host: system, C library, processor, ABI, devices.

use tensorfold_plugin_api::manifest::{Device as DeviceTable, DottedNumber};
use tensorfold_plugin_api::negotiation::{
    AbiVersion, Agreement, Disagreement, HostSide, PluginSide, Remedy, common_interface,
    missing_host_interfaces, negotiate,
};
use tensorfold_plugin_api::vocabulary::Code;

use super::{Refusal, Subject};
use crate::plugins::hardware::{Access, Device, Hardware, Node};

/// The library is built for this operating system and processor.
pub(super) fn system(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(machine) = subject.facts.machine else { return Vec::new() };
    let target = &subject.manifest.target;
    if target.os == machine.os && target.arch == machine.arch {
        return Vec::new();
    }
    let refusal = subject.refuse(Code::WrongArch, "it is built for another machine");
    vec![
        refusal
            .wanted(format!("{} on {}", machine.os, machine.arch))
            .found(format!("{} on {}", target.os, target.arch))
            .fix("install the build for this machine"),
    ]
}

/// The library is built for this C library, and not for a later version of it.
pub(super) fn libc(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(machine), target) = (subject.facts.machine, &subject.manifest.target) else {
        return Vec::new();
    };
    if target.libc == "none" {
        return Vec::new();
    }
    if target.libc != machine.libc {
        let refusal = subject.refuse(Code::LibcTooOld, "it is built for another C library");
        let fix = format!("install the build for {}", machine.libc);
        return vec![refusal.wanted(machine.libc).found(&*target.libc).fix(fix)];
    }
    let found = subject.facts.hardware.and_then(|hardware| hardware.libc.as_deref());
    let (Some(needed), Some(found)) = (&target.libc_min, found) else { return Vec::new() };
    match DottedNumber::parse(found) {
        Some(version) if version < *needed => {
            let refusal = subject.refuse(Code::LibcTooOld, "the C library is too old");
            let fix = "install the build for this distribution";
            vec![refusal.wanted(format!("{needed} or later")).found(found).fix(fix)]
        }
        _ => Vec::new(),
    }
}

/// The processor has every feature that the library needs, and the system lets it be used.
pub(super) fn cpu_features(subject: &Subject<'_>) -> Vec<Refusal> {
    let (Some(hardware), Some(machine)) = (subject.facts.hardware, subject.facts.machine) else {
        return Vec::new();
    };
    let usable = |feature: &str| {
        hardware.cpu_features.contains(&feature) || (feature == "sse2" && machine.arch == "x86_64")
    };
    let missing: Vec<&str> =
        subject.manifest.target.cpu.iter().map(String::as_str).filter(|feature| !usable(feature)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let refusal = subject.refuse(Code::CpuFeature, "it needs processor features that can not be used here");
    let wanted: Vec<&str> = subject.manifest.target.cpu.iter().map(String::as_str).collect();
    let fix = "install a build for this processor";
    vec![refusal.wanted(wanted.join(", ")).found(format!("no {}", missing.join(", no "))).fix(fix)]
}

/// Host and plugin speak one version of the contract.
pub(super) fn abi(subject: &Subject<'_>) -> Vec<Refusal> {
    match agreement(subject) {
        Ok(Agreement { untested: None, .. }) => Vec::new(),
        Ok(Agreement { untested: Some(untested), .. }) => {
            vec![subject.refuse(Code::HostRange, untested.to_string()).as_warning()]
        }
        Err(disagreement) => vec![disagree(subject, &disagreement)],
    }
}

/// The version that host and plugin work at.
pub fn agreement(subject: &Subject<'_>) -> Result<Agreement, Disagreement> {
    let (host, abi) = (subject.facts.host, &subject.manifest.abi);
    let host_side = HostSide {
        release: &host.release,
        abi: &host.abi,
        allow_untested: subject.flags.has("--allow-untested-host"),
    };
    let plugin_side = PluginSide {
        abi: AbiVersion { major: abi.major, minor: abi.minor },
        min_host_minor: abi.min_host_minor,
        host: abi.host.as_ref(),
    };
    negotiate(&host_side, &plugin_side)
}

fn disagree(subject: &Subject<'_>, disagreement: &Disagreement) -> Refusal {
    let code = match disagreement {
        Disagreement::Untested(_) => Code::HostRange,
        _ => Code::AbiMismatch,
    };
    let plugin = &subject.manifest.plugin;
    let fix = match disagreement.remedy() {
        Remedy::UpgradeHost => format!("install a later tensorfold than {}", subject.facts.host.release),
        Remedy::UpgradePlugin => format!("install a later {} than {}", plugin.id, plugin.version),
        Remedy::OtherPluginOrPermission => {
            format!("install another release of {}, or give --allow-untested-host to try this one", plugin.id)
        }
    };
    subject.refuse(code, disagreement.to_string()).fix(fix)
}

/// The plugin offers what the host calls, and the host offers what the plugin calls.
pub(super) fn interfaces(subject: &Subject<'_>) -> Vec<Refusal> {
    let (host, abi) = (subject.facts.host, &subject.manifest.abi);
    let list = |ids: &[&str]| ids.join(" or ");
    let mut refusals = Vec::new();
    for (what, spoken) in [("backend", &host.backend_interfaces), ("engine", &host.engine_interfaces)] {
        if common_interface(&abi.interfaces, spoken).is_none() {
            let refusal = subject
                .refuse(Code::AbiMismatch, format!("it offers no {what} interface that this host speaks"));
            let offered: Vec<&str> = abi.interfaces.iter().map(String::as_str).collect();
            let fix = format!("install a release of {} for this host", subject.manifest.plugin.id);
            refusals.push(refusal.wanted(list(spoken)).found(list(&offered)).fix(fix));
        }
    }
    let missing = missing_host_interfaces(&abi.host_interfaces, &host.host_interfaces);
    if !missing.is_empty() {
        let refusal = subject.refuse(Code::AbiMismatch, "it needs interfaces that this host does not offer");
        let fix = format!("install a later tensorfold than {}", host.release);
        refusals.push(refusal.wanted(missing.join(", ")).found(list(&host.host_interfaces)).fix(fix));
    }
    refusals
}

/// Devices of the machine that the plugin claims by their maker. A plugin for the processor claims none.
fn claimed<'h>(subject: &Subject<'_>, hardware: &'h Hardware) -> Vec<(&'h Device, Vec<DeviceTable>)> {
    let tables = &subject.manifest.devices;
    let claims = |device: &'h Device| {
        let vendor = device.vendor.name();
        let claims: Vec<DeviceTable> = tables
            .iter()
            .filter(|table| table.kind != "cpu" && table.vendor.as_ref() == Some(&vendor))
            .cloned()
            .collect();
        (!claims.is_empty()).then_some((device, claims))
    };
    hardware.devices.iter().filter_map(claims).collect()
}

/// There is a device that the plugin has kernels for.
///
/// A device that the kernel does not show may still be there: sandboxes and virtual machines hide them. So a missing
/// one is only a warning; one whose architecture is known and not listed is a refusal.
pub(super) fn device(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(hardware) = subject.facts.hardware else { return Vec::new() };
    let tables = &subject.manifest.devices;
    if tables.iter().any(|table| table.kind == "cpu") || tables.iter().all(|table| table.vendor.is_none()) {
        return Vec::new();
    }
    let claimed = claimed(subject, hardware);
    if claimed.is_empty() {
        let refusal = subject.refuse(Code::NoDevice, "the system shows no device that it drives");
        return vec![refusal.wanted(wanted_devices(tables)).found(shown_devices(hardware)).as_warning()];
    }
    let runs = |(device, tables): &(&Device, Vec<DeviceTable>)| match &device.arch {
        Some(arch) => tables.iter().any(|table| table.archs.is_empty() || table.archs.contains(arch)),
        None => true,
    };
    if claimed.iter().any(runs) {
        return Vec::new();
    }
    let found: Vec<String> = claimed.iter().map(|(device, _)| device.describe()).collect();
    let refusal = subject.refuse(Code::NoDevice, "it has no kernels for the devices of this machine");
    let fix = "install a build for this device";
    vec![refusal.wanted(wanted_devices(tables)).found(found.join(", ")).fix(fix)]
}

fn wanted_devices(tables: &[DeviceTable]) -> String {
    let describe = |table: &DeviceTable| {
        let archs: Vec<&str> = table.archs.iter().map(String::as_str).collect();
        let archs = if archs.is_empty() { String::new() } else { format!(" ({})", archs.join(", ")) };
        format!("{} {}{archs}", table.vendor.as_deref().unwrap_or("any"), table.kind)
    };
    tables.iter().map(describe).collect::<Vec<_>>().join(" or ")
}

fn shown_devices(hardware: &Hardware) -> String {
    match hardware.devices.as_slice() {
        [] => "none".to_owned(),
        devices => devices.iter().map(Device::describe).collect::<Vec<_>>().join(", "),
    }
}

/// This user may open the nodes that the driver needs: every one that all devices share, and one of the others.
pub(super) fn device_nodes(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(hardware) = subject.facts.hardware else { return Vec::new() };
    let mut vendors: Vec<_> =
        claimed(subject, hardware).into_iter().map(|(device, _)| device.vendor).collect();
    vendors.dedup();
    let refuse = |node: &Node| {
        let refusal = subject.refuse(Code::DevicePermission, "a device node may not be opened");
        let path = node.path.display();
        refusal.wanted(format!("{path} readable and writable")).found(node.found()).fix(node.fix())
    };
    let mut refusals = Vec::new();
    for vendor in vendors {
        let nodes: Vec<&Node> = hardware.nodes.iter().filter(|node| node.vendor == Some(vendor)).collect();
        let numbered =
            |node: &&Node| node.path.to_string_lossy().ends_with(|last: char| last.is_ascii_digit());
        let (own, shared): (Vec<&Node>, Vec<&Node>) = nodes.into_iter().partition(numbered);
        let closed = |node: &&&Node| node.access == Access::Denied;
        refusals.extend(shared.iter().find(closed).map(|node| refuse(node)));
        if own.iter().all(|node| node.access == Access::Denied) {
            refusals.extend(own.first().map(|node| refuse(node)));
        }
    }
    refusals
}

/// The kernel's drivers are not older than the plugin's floors. A driver that is not loaded is left to the plugin.
pub(super) fn driver(subject: &Subject<'_>) -> Vec<Refusal> {
    let Some(hardware) = subject.facts.hardware else { return Vec::new() };
    let too_old = |(name, floor): (&String, &DottedNumber)| {
        let found = hardware.drivers.version(name)?;
        let version = leading_number(found)?;
        (version < *floor).then(|| {
            let refusal = subject.refuse(Code::DriverTooOld, format!("the driver {name} is too old"));
            refusal.wanted(format!("{floor} or later")).found(found).fix("upgrade the driver")
        })
    };
    subject.manifest.drivers.iter().filter_map(too_old).collect()
}

/// The number that a version begins with: `6.8.0` of `6.8.0-45-generic`.
fn leading_number(text: &str) -> Option<DottedNumber> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    DottedNumber::parse(text[..end].trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_release_begins_with_its_number() {
        assert_eq!(leading_number("6.8.0-45-generic"), DottedNumber::parse("6.8"));
        assert_eq!(leading_number("550.54.14"), DottedNumber::parse("550.54.14"));
        assert_eq!(leading_number("unknown"), None);
    }
}
