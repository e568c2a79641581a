//! Whether the library fits this machine and this host, as checks of an admission.
//!
//! The findings themselves are made in [`crate::plugins::machine`]; here they are put in their place.

use tensorfold_plugin_api::negotiation::{Agreement, common_interface, missing_host_interfaces};
use tensorfold_plugin_api::vocabulary::Code;

use super::{Refusal, Subject};
use crate::plugins::lifecycle::Finding;
use crate::plugins::machine::{HostRelease, abi_agreement, device_findings, target_findings};

/// The library is built for this system, C library and processor.
pub(super) fn target(subject: &Subject<'_>) -> Vec<Refusal> {
    let findings = subject.facts.hardware.map(|hardware| target_findings(&subject.manifest.target, hardware));
    about(subject, findings.unwrap_or_default())
}

/// Devices, nodes and drivers do not speak against the plugin.
pub(super) fn devices(subject: &Subject<'_>) -> Vec<Refusal> {
    let findings = subject.facts.hardware.map(|hardware| device_findings(subject.manifest, hardware));
    about(subject, findings.unwrap_or_default())
}

/// Host and plugin speak one version of the contract.
pub(super) fn abi(subject: &Subject<'_>) -> Vec<Refusal> {
    let findings = match agreement(subject) {
        Ok(agreement) => {
            let untested = agreement.untested.map(|untested| untested.to_string());
            untested.map(|untested| Finding::warning(Code::HostRange, untested)).into_iter().collect()
        }
        Err(finding) => vec![*finding],
    };
    about(subject, findings)
}

/// The version that host and plugin work at.
///
/// # Errors
/// The finding that says why there is none.
pub fn agreement(subject: &Subject<'_>) -> Result<Agreement, Box<Finding>> {
    let host = subject.facts.host;
    let release = HostRelease {
        version: host.release.clone(),
        abi: host.abi.clone(),
        allow_untested: subject.flags.has("--allow-untested-host"),
    };
    abi_agreement(subject.manifest, &release)
}

/// The plugin offers what the host calls, and the host offers what the plugin calls.
pub(super) fn interfaces(subject: &Subject<'_>) -> Vec<Refusal> {
    let (host, abi) = (subject.facts.host, &subject.manifest.abi);
    let mut findings = Vec::new();
    // A plugin that only lists its devices has no family and needs no engine.
    let engine = (!subject.manifest.families.is_empty()).then_some(("engine", &host.engine_interfaces));
    for (what, spoken) in [("backend", &host.backend_interfaces)].into_iter().chain(engine) {
        if common_interface(&abi.interfaces, spoken).is_none() {
            let offered: Vec<&str> = abi.interfaces.iter().map(String::as_str).collect();
            findings.push(
                Finding::error(
                    Code::AbiMismatch,
                    format!("it offers no {what} interface that this host speaks"),
                )
                .wanted(spoken.join(" or "))
                .found(if offered.is_empty() { "none".to_owned() } else { offered.join(", ") })
                .fix("install the plugin's release for this tensorfold"),
            );
        }
    }
    let missing = missing_host_interfaces(&abi.host_interfaces, &host.host_interfaces);
    if !missing.is_empty() {
        findings.push(
            Finding::error(Code::AbiMismatch, "it needs interfaces that this host does not offer")
                .wanted(missing.join(", "))
                .found(host.host_interfaces.join(", "))
                .fix("install a newer tensorfold"),
        );
    }
    about(subject, findings)
}

fn about(subject: &Subject<'_>, findings: Vec<Finding>) -> Vec<Refusal> {
    findings.into_iter().map(|finding| subject.about(finding)).collect()
}
