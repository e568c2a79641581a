//! Does a plugin fit this host and this machine? Pure functions from manifest, file facts and hardware to findings.
//!
//! NVIDIA's architectures are not known without the driver, so they are never refused here. That the host sees no
//! device of the kind is a warning and not an error: virtual machines and emulated drivers have devices that no bus
//! shows, and the plugin's own list decides.

use semver::Version;
use tensorfold_plugin_api::abi::{ABI_MAJOR, ABI_MINOR};
use tensorfold_plugin_api::manifest::{Device as DeviceClaim, DottedNumber, Manifest, Target};
use tensorfold_plugin_api::negotiation::{
    AbiVersion, Agreement, Disagreement, HostSide, PluginSide, Remedy, negotiate,
};

use super::hardware::{Device, Hardware, Vendor, cpu};
use super::image::Image;
use super::lifecycle::{Code, Finding};

/// What the host states about itself.
#[derive(Clone, Debug)]
pub struct HostRelease {
    /// Its version.
    pub version: Version,
    /// The interface versions that it speaks.
    pub abi: Vec<AbiVersion>,
    /// `--allow-untested-host` was given.
    pub allow_untested: bool,
}

impl HostRelease {
    /// This build.
    pub fn current(allow_untested: bool) -> Self {
        let version = Version::parse(env!("CARGO_PKG_VERSION")).unwrap_or(Version::new(0, 0, 0));
        Self { version, abi: vec![AbiVersion { major: ABI_MAJOR, minor: ABI_MINOR }], allow_untested }
    }
}

/// Operating system, processor, C library and processor features.
pub fn target_findings(target: &Target, hardware: &Hardware) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (what, wanted, found) in [
        ("operating system", target.os.as_str(), std::env::consts::OS),
        ("processor", target.arch.as_str(), std::env::consts::ARCH),
    ] {
        if wanted != found {
            findings.push(
                Finding::error(Code::WrongArch, format!("built for another {what}"))
                    .wanted(wanted)
                    .found(found)
                    .fix("install the build for this machine"),
            );
        }
    }
    let own_libc = if cfg!(target_env = "gnu") {
        "gnu"
    } else if cfg!(target_env = "musl") {
        "musl"
    } else {
        "none"
    };
    if target.libc != "none" && target.libc != own_libc {
        findings.push(
            Finding::error(Code::LibcTooOld, "built for another C library")
                .wanted(target.libc.clone())
                .found(own_libc)
                .fix("install the build for this system"),
        );
    } else if let (Some(wanted), Some(found)) = (&target.libc_min, &hardware.libc)
        && DottedNumber::parse(found).is_some_and(|found| found < *wanted)
    {
        findings.push(libc_too_old(&wanted.to_string(), found));
    }
    let missing: Vec<&str> = target
        .cpu
        .iter()
        .map(String::as_str)
        .filter(|feature| !hardware.cpu_features.contains(feature))
        .collect();
    if !missing.is_empty() {
        let unknown = missing.iter().all(|feature| !cpu::is_known(feature));
        let found = if unknown { "features this host does not know" } else { "not usable here" };
        findings.push(
            Finding::error(Code::CpuFeature, "needs processor features")
                .wanted(missing.join(", "))
                .found(found)
                .fix("install a build for this processor"),
        );
    }
    findings
}

fn libc_too_old(wanted: &str, found: &str) -> Finding {
    Finding::error(Code::LibcTooOld, "the C library is too old")
        .wanted(format!("{wanted} or newer"))
        .found(found)
        .fix("install the plugin's build for this distribution")
}

/// Interface version and host release.
///
/// # Errors
/// `abi-mismatch`, which has no override, or `host-range`.
pub fn abi_agreement(manifest: &Manifest, host: &HostRelease) -> Result<Agreement, Box<Finding>> {
    let abi = &manifest.abi;
    let plugin = PluginSide {
        abi: AbiVersion { major: abi.major, minor: abi.minor },
        min_host_minor: abi.min_host_minor,
        host: abi.host.as_ref(),
    };
    let side = HostSide { release: &host.version, abi: &host.abi, allow_untested: host.allow_untested };
    negotiate(&side, &plugin).map_err(|disagreement| {
        let code = if matches!(disagreement, Disagreement::Untested(_)) {
            Code::HostRange
        } else {
            Code::AbiMismatch
        };
        let fix = match disagreement.remedy() {
            Remedy::UpgradeHost => "install a newer tensorfold",
            Remedy::UpgradePlugin => "install a newer release of the plugin",
            Remedy::OtherPluginOrPermission => {
                "install the plugin's release for this tensorfold, or add --allow-untested-host"
            }
        };
        Box::new(Finding::error(code, disagreement.to_string()).fix(fix))
    })
}

/// What the file needs from the dynamic linker and cannot have here.
pub fn linking_findings(image: &Image, hardware: &Hardware) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let (Some(needed), Some(found)) = (image.glibc_needed(), &hardware.libc) {
        let wanted = format!("{}.{}", needed.0, needed.1);
        if super::image::parse_dotted(found).is_some_and(|found| found < needed) {
            findings.push(libc_too_old(&wanted, found));
        }
    }
    let vendor = "report it to the plugin's vendor: the library has to be linked otherwise";
    if image.executable_stack {
        findings.push(Finding::error(Code::NeedsLibrary, "asks for an executable stack").fix(vendor));
    }
    if image.text_relocations {
        findings.push(Finding::error(Code::NeedsLibrary, "has relocations in its code").fix(vendor));
    }
    if image.static_tls {
        findings.push(Finding::warning(
            Code::NeedsLibrary,
            "uses static thread-local storage, of which a process has little",
        ));
    }
    findings
}

/// How well a device fits what a plugin claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// The architecture is not known to the host, or the plugin names none.
    Generic,
    /// The architecture is listed.
    Exact,
}

/// Whether a claim covers a device, and how well. `None`: another vendor or kind, or an architecture that is known
/// and not listed.
pub fn claim_fits(claim: &DeviceClaim, device: &Device) -> Option<Fit> {
    if !claims_device(claim, device) {
        return None;
    }
    match &device.arch {
        Some(arch) if claim.archs.contains(arch) => Some(Fit::Exact),
        Some(arch) if claim.archs.iter().any(|listed| covers_family(listed, arch)) => Some(Fit::Generic),
        Some(_) if !claim.archs.is_empty() => None,
        _ => Some(Fit::Generic),
    }
}

/// Whether a claim is about devices of this kind and vendor.
pub fn claims_device(claim: &DeviceClaim, device: &Device) -> bool {
    const DISPLAY: u32 = 0x03;
    let kind = match claim.kind.as_str() {
        "cpu" => false,
        // What drives a display is no neural processor of the same vendor.
        "npu" => device.class >> 16 != DISPLAY,
        _ => true,
    };
    kind && claim.vendor.as_ref().is_none_or(|claimed| *claimed == device.vendor.name())
}

/// `gfx11-generic` covers `gfx1151`, `gfx9-4-generic` covers `gfx942`.
fn covers_family(listed: &str, arch: &str) -> bool {
    listed.strip_suffix("-generic").is_some_and(|family| arch.starts_with(&family.replace('-', "")))
}

/// Whether the plugin works on the processor.
pub fn claims_cpu(manifest: &Manifest) -> bool {
    manifest.devices.iter().any(|claim| claim.kind == "cpu")
}

/// Devices of the machine that the plugin can use, as far as the host sees.
pub fn usable_devices<'a>(manifest: &Manifest, hardware: &'a Hardware) -> Vec<(&'a Device, Fit)> {
    let best = |device: &'a Device| {
        let fit = manifest.devices.iter().filter_map(|claim| claim_fits(claim, device)).max()?;
        Some((device, fit))
    };
    hardware.devices.iter().filter_map(best).collect()
}

/// Devices, nodes and drivers, without asking any driver.
pub fn device_findings(manifest: &Manifest, hardware: &Hardware) -> Vec<Finding> {
    if claims_cpu(manifest) {
        return Vec::new();
    }
    let claimed: Vec<&Device> = hardware
        .devices
        .iter()
        .filter(|device| manifest.devices.iter().any(|claim| claims_device(claim, device)))
        .collect();
    let wanted = claims_text(manifest);
    if claimed.is_empty() {
        return vec![
            Finding::warning(Code::NoDevice, "the host sees no device for it").wanted(wanted).found("none"),
        ];
    }
    let usable = usable_devices(manifest, hardware);
    if usable.is_empty() {
        let found: Vec<String> = claimed.iter().map(|device| device.describe()).collect();
        return vec![
            Finding::error(Code::NoDevice, "no device of this machine is one that it has code for")
                .wanted(wanted)
                .found(found.join(", "))
                .fix("install the plugin's build for this device"),
        ];
    }
    let mut findings = Vec::new();
    let mut vendors: Vec<Vendor> = usable.iter().map(|(device, _)| device.vendor).collect();
    vendors.dedup();
    for vendor in vendors {
        for node in hardware.closed_nodes(vendor) {
            findings.push(
                Finding::error(Code::DevicePermission, format!("{} cannot be opened", node.path.display()))
                    .wanted("read and write permission for this user")
                    .found(node.found())
                    .fix(node.fix()),
            );
        }
    }
    for (driver, floor) in &manifest.drivers {
        let Some(found) = hardware.drivers.version(driver) else { continue };
        // A kernel release ends in words: 6.18.0-arch1.
        let numbers: String =
            found.chars().take_while(|character| character.is_ascii_digit() || *character == '.').collect();
        if DottedNumber::parse(numbers.trim_end_matches('.')).is_some_and(|found| found < *floor) {
            findings.push(
                Finding::error(Code::DriverTooOld, format!("the driver {driver} is too old"))
                    .wanted(format!("{floor} or newer"))
                    .found(found)
                    .fix("update the driver"),
            );
        }
    }
    findings
}

fn claims_text(manifest: &Manifest) -> String {
    let claims: Vec<String> = manifest
        .devices
        .iter()
        .map(|claim| {
            let vendor = claim.vendor.as_deref().unwrap_or("any vendor's");
            let archs: Vec<&str> = claim.archs.iter().map(String::as_str).collect();
            let archs = if archs.is_empty() { String::new() } else { format!(" ({})", archs.join(", ")) };
            format!("{vendor} {}{archs}", claim.kind)
        })
        .collect();
    claims.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::super::hardware::tests::Machine;
    use super::super::hardware::{Access, Node};
    use super::super::testing::manifest_text;
    use super::*;

    fn manifest(change: impl FnOnce(String) -> String) -> Manifest {
        let text = change(manifest_text("backend-test"));
        Manifest::parse(text.as_bytes(), "test").unwrap_or_else(|errors| panic!("{errors}")).manifest
    }

    fn hip() -> Manifest {
        manifest(|text| {
            text.replace("kind = \"cpu\"", "kind = \"gpu\"\nvendor = \"amd\"\narchs = [\"gfx1151\"]")
                + "\n[driver]\namdgpu = \"6.10\"\n"
        })
    }

    fn codes(findings: &[Finding]) -> Vec<Code> {
        findings.iter().map(|finding| finding.code).collect()
    }

    fn here() -> Hardware {
        Machine::new().hardware()
    }

    #[test]
    fn the_plain_test_plugin_fits_this_machine() {
        let manifest = manifest(|text| text);
        assert_eq!(target_findings(&manifest.target, &here()), []);
        assert_eq!(device_findings(&manifest, &here()), []);
        abi_agreement(&manifest, &HostRelease::current(false)).unwrap();
    }

    #[test]
    fn another_system_processor_or_library_is_named_with_both_values() {
        let other = manifest(|text| {
            text.replace("os = \"linux\"", "os = \"macos\"")
                .replace(&format!("arch = \"{}\"", std::env::consts::ARCH), "arch = \"riscv64\"")
                .replace("libc = \"gnu\"", "libc = \"gnu\"\nlibc_min = \"99.1\"\ncpu = [\"avx2\", \"neon\"]")
        });
        let findings = target_findings(&other.target, &here());
        let expected = [Code::WrongArch, Code::WrongArch, Code::LibcTooOld, Code::CpuFeature];
        assert_eq!(codes(&findings), expected, "{findings:?}");
        assert!(findings.iter().all(|finding| finding.wanted.is_some() && finding.found.is_some()));
        let musl = manifest(|text| text.replace("libc = \"gnu\"", "libc = \"musl\""));
        assert_eq!(codes(&target_findings(&musl.target, &here())), [Code::LibcTooOld]);
        let none = manifest(|text| text.replace("libc = \"gnu\"", "libc = \"none\""));
        assert_eq!(codes(&target_findings(&none.target, &here())), []);
    }

    #[test]
    fn an_interface_mismatch_has_no_override_and_an_untested_host_has() {
        let other = manifest(|text| text.replace("minor = 1", "minor = 2"));
        for allow in [false, true] {
            let finding = abi_agreement(&other, &HostRelease::current(allow)).unwrap_err();
            assert_eq!(finding.code, Code::AbiMismatch);
        }
        let untested = manifest(|text| text.replace(">=0.1, <0.2", ">=7, <8"));
        assert_eq!(abi_agreement(&untested, &HostRelease::current(false)).unwrap_err().code, Code::HostRange);
        assert!(abi_agreement(&untested, &HostRelease::current(true)).unwrap().untested.is_some());
    }

    #[test]
    fn a_device_that_nobody_sees_is_a_warning_and_a_foreign_one_an_error() {
        let machine = Machine::new();
        let findings = device_findings(&hip(), &machine.hardware());
        assert_eq!(
            (findings[0].code, findings[0].level),
            (Code::NoDevice, super::super::lifecycle::Level::Warning)
        );
        machine.pci("0000:03:00.0", 0x1002, 0x744c, 0x03_0000).kfd(1, 0x0300, 110_000);
        let findings = device_findings(&hip(), &machine.hardware());
        assert_eq!(
            (findings[0].code, findings[0].level),
            (Code::NoDevice, super::super::lifecycle::Level::Error)
        );
        assert!(findings[0].to_string().contains("gfx1100"), "{}", findings[0]);
    }

    #[test]
    fn drivers_and_nodes_are_checked_once_a_device_fits() {
        let machine = Machine::new();
        machine
            .pci("0000:03:00.0", 0x1002, 0x1586, 0x03_8000)
            .kfd(1, 0x0300, 110_501)
            .write("sys/module/amdgpu/version", "6.9.8-custom\n");
        let mut hardware = machine.hardware();
        assert_eq!(usable_devices(&hip(), &hardware)[0].1, Fit::Exact);
        hardware.nodes.push(Node {
            path: "/dev/kfd".into(),
            vendor: Some(Vendor::Amd),
            mode: 0o660,
            uid: 0,
            gid: 44,
            group: Some("render".into()),
            access: Access::Denied,
        });
        let findings = device_findings(&hip(), &hardware);
        assert_eq!(codes(&findings), [Code::DevicePermission, Code::DriverTooOld]);
        assert!(findings[0].to_string().contains("render"), "{}", findings[0]);
        machine.write("sys/module/amdgpu/version", "6.10\n");
        assert_eq!(device_findings(&hip(), &machine.hardware()), []);
    }

    #[test]
    fn an_unknown_architecture_is_never_refused() {
        let machine = Machine::new();
        machine.pci("0000:04:00.0", 0x10de, 0x2330, 0x03_0200);
        let cuda = manifest(|text| {
            text.replace("kind = \"cpu\"", "kind = \"gpu\"\nvendor = \"nvidia\"\narchs = [\"sm_120\"]")
        });
        let hardware = machine.hardware();
        assert_eq!(device_findings(&cuda, &hardware), []);
        assert_eq!(usable_devices(&cuda, &hardware)[0].1, Fit::Generic);
    }

    #[test]
    fn generic_architectures_cover_their_family() {
        assert!(covers_family("gfx11-generic", "gfx1151"));
        assert!(covers_family("gfx9-4-generic", "gfx942"));
        assert!(!covers_family("gfx11-generic", "gfx1030"));
        assert!(!covers_family("gfx11", "gfx1151"));
    }
}
