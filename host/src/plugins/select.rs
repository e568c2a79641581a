//! Which plugin runs: the one that was named, or the one that `auto` takes.
//!
//! Pure functions of what was discovered and of the host's look at the hardware. A named backend is that plugin or a
//! refusal, never another one. `auto` says for each candidate that it did not take why not, and takes the processor
//! only where no accelerator counts. Drafter, flags and model play no part.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use semver::Version;

use super::hardware::{Device, Hardware, Placement, Vendor};
use super::lifecycle::{Code, Finding, one_line};
use super::machine::{Fit, claims_cpu, claims_device, usable_devices};
use super::plugin::Plugin;

/// Why no plugin was chosen. Each ends the command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// No plugin answers to the name.
    #[error("--backend {name}: no plugin answers to this name; {}{}", known_text(.known), broken_text(.broken))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names that plugins answer to.
        known: Vec<String>,
        /// Files that could not be used, with the reason.
        broken: Vec<String>,
    },
    /// Two plugins answer to the name.
    #[error("--backend {name}: more than one plugin answers to this name: {}; name one of them by its id", .ids.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The ids.
        ids: Vec<String>,
    },
    /// The plugin is there and cannot be used.
    #[error("{0}")]
    Unusable(Box<Finding>),
    /// Hardware that counts is there and no plugin can use it.
    #[error("--backend auto: {}; {}", .reasons.join("; "), .advice)]
    AcceleratorUnused {
        /// Why, one reason each.
        reasons: Vec<String>,
        /// What to do.
        advice: String,
    },
    /// Nothing is installed that could run.
    #[error("{}", nothing_text(.searched, .broken))]
    Nothing {
        /// Places that were searched.
        searched: Vec<String>,
        /// Files that could not be used, with the reason.
        broken: Vec<String>,
    },
}

impl SelectError {
    /// A stable name for documents.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "backend-unknown",
            Self::Ambiguous { .. } => "backend-ambiguous",
            Self::Unusable(finding) => finding.code.as_str(),
            Self::AcceleratorUnused { .. } => "accelerator-unused",
            Self::Nothing { .. } => "no-plugins",
        }
    }
}

fn known_text(known: &[String]) -> String {
    if known.is_empty() {
        "none is installed; `tensorfold plugins path` lists the folders searched".into()
    } else {
        format!("known are auto, {}", known.join(", "))
    }
}

fn broken_text(broken: &[String]) -> String {
    if broken.is_empty() { String::new() } else { format!("; not usable: {}", broken.join("; ")) }
}

fn nothing_text(searched: &[String], broken: &[String]) -> String {
    format!(
        "no backend plugin is installed; searched {}{}; install one of the packages tensorfold (with the CPU plugin), \
         tensorfold-backend-hip, tensorfold-backend-cuda, or name a plugin with --plugin",
        searched.join(", "),
        broken_text(broken)
    )
}

/// The plugin that answers to `name`: a backend, an alias, an id, or `id/variant`.
///
/// Of several variants of one id the one that fits the hardware best is taken; `hardware` is asked for only then, so
/// that a name alone decides without a look at devices. What answers only by plugins that were
/// switched off or refused is an error with that reason.
///
/// # Errors
/// [`SelectError::Unknown`], [`SelectError::Ambiguous`] or [`SelectError::Unusable`].
pub fn by_name<'h>(
    plugins: &[Plugin],
    name: &str,
    hardware: impl FnOnce() -> &'h Hardware,
) -> Result<usize, SelectError> {
    let answers = |plugin: &&(usize, &Plugin)| {
        plugin.1.manifest.as_ref().is_some_and(|manifest| manifest.plugin.answers_to(name))
    };
    let all: Vec<(usize, &Plugin)> = plugins.iter().enumerate().collect();
    let matching: Vec<(usize, &Plugin)> = all.iter().filter(answers).copied().collect();
    let named_active =
        |plugin: &Plugin| plugin.manifest.is_some() && !plugin.is_hidden() && !is_duplicate(plugin);
    let active: Vec<(usize, &Plugin)> =
        matching.iter().copied().filter(|(_, plugin)| named_active(plugin)).collect();
    let ids: BTreeSet<&str> = active
        .iter()
        .filter_map(|(_, plugin)| plugin.manifest.as_ref())
        .map(|manifest| manifest.plugin.id.as_str())
        .collect();
    if ids.len() > 1 {
        return Err(SelectError::Ambiguous {
            name: one_line(name),
            ids: ids.into_iter().map(str::to_owned).collect(),
        });
    }
    if let [(index, _)] = active.as_slice() {
        return Ok(*index);
    }
    if active.is_empty() {
        if let Some(finding) = matching.iter().find_map(|(_, plugin)| plugin.life.findings().first()) {
            return Err(SelectError::Unusable(Box::new(finding.clone())));
        }
        return Err(SelectError::Unknown {
            name: one_line(name),
            known: known_names(plugins),
            broken: broken(plugins),
        });
    }
    let hardware = hardware();
    let order = |(_, plugin): &(usize, &Plugin)| {
        let manifest = plugin.manifest.as_ref();
        let usable = plugin.life.error().is_none();
        let strength = manifest.map(|manifest| strength(manifest, hardware));
        (Reverse(usable), Reverse(strength), plugin.rank, Reverse(version(plugin)), plugin.name())
    };
    let best = active.iter().min_by_key(|entry| order(entry)).map_or(active[0].0, |(index, _)| *index);
    Ok(best)
}

fn is_duplicate(plugin: &Plugin) -> bool {
    plugin.life.findings().iter().any(|finding| finding.code == Code::Duplicate)
}

fn version(plugin: &Plugin) -> Option<Version> {
    plugin.manifest.as_ref().map(|manifest| manifest.plugin.version.clone())
}

/// Backends and aliases that may be named, sorted, each once.
pub fn known_names(plugins: &[Plugin]) -> Vec<String> {
    let names: BTreeSet<String> = plugins
        .iter()
        .filter(|plugin| !plugin.is_hidden())
        .filter_map(|plugin| plugin.manifest.as_ref())
        .flat_map(|manifest| manifest.plugin.aliases.iter().chain([&manifest.plugin.backend]).cloned())
        .collect();
    names.into_iter().collect()
}

/// Files whose manifest could not be read, with the reason.
fn broken(plugins: &[Plugin]) -> Vec<String> {
    plugins
        .iter()
        .filter(|plugin| plugin.manifest.is_none())
        .filter_map(|plugin| plugin.life.error().map(ToString::to_string))
        .collect()
}

/// How much a plugin has to offer on this machine, greater is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Strength {
    accelerator: bool,
    fit: Option<Fit>,
    discrete: bool,
    memory_bytes: u64,
}

fn strength(manifest: &tensorfold_plugin_api::manifest::Manifest, hardware: &Hardware) -> Strength {
    let of = |(device, fit): (&Device, Fit)| Strength {
        accelerator: true,
        fit: Some(fit),
        discrete: device.placement != Placement::Integrated,
        memory_bytes: device.memory_bytes.unwrap_or(0),
    };
    let none = Strength { accelerator: false, fit: None, discrete: false, memory_bytes: 0 };
    usable_devices(manifest, hardware).into_iter().map(of).max().unwrap_or(none)
}

/// What `auto` decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoChoice {
    /// The plugin taken.
    pub index: usize,
    /// Why it was taken, as one line.
    pub reason: String,
    /// One line for each candidate that was not taken, and for hardware that was ignored.
    pub not_taken: Vec<String>,
    /// Whether the processor was taken although an accelerator is there.
    pub fallback: bool,
}

/// Chooses among plugins that were inspected, from manifests and the host's own look at the hardware.
///
/// `allow_fallback` takes the processor even where an accelerator counts and cannot be used. `searched` names the
/// places for the message when there is nothing.
///
/// # Errors
/// [`SelectError::AcceleratorUnused`] or [`SelectError::Nothing`].
pub fn auto(
    plugins: &[Plugin],
    hardware: &Hardware,
    allow_fallback: bool,
    searched: &[String],
) -> Result<AutoChoice, SelectError> {
    let installed: Vec<(usize, &Plugin)> = plugins
        .iter()
        .enumerate()
        .filter(|(_, plugin)| plugin.manifest.is_some() && !plugin.is_hidden())
        .collect();
    let mut candidates: Vec<(Strength, usize, &Plugin)> = Vec::new();
    let mut reasons = Vec::new();
    for (index, plugin) in &installed {
        let Some(manifest) = &plugin.manifest else { continue };
        let strength = strength(manifest, hardware);
        let name = format!("{} ({})", plugin.name(), manifest.plugin.engine_name);
        if let Some(error) = plugin.life.error() {
            reasons.push(format!("{name}: {}", error.reason()));
        } else if strength.accelerator || claims_cpu(manifest) {
            candidates.push((strength, *index, plugin));
        } else {
            reasons.push(format!("{name}: no device for it in this machine"));
        }
    }
    candidates.sort_by(|left, right| {
        let key = |entry: &(Strength, usize, &Plugin)| {
            (Reverse(entry.0), entry.2.rank, Reverse(version(entry.2)), entry.2.name())
        };
        key(left).cmp(&key(right))
    });
    let counting = counting_devices(&installed, hardware);
    let first = candidates.first().copied();
    if let Some((strength, ..)) = first
        && !strength.accelerator
        && !counting.is_empty()
        && !allow_fallback
    {
        return Err(unused(&counting, reasons));
    }
    let Some((strength, index, plugin)) = first else {
        if !counting.is_empty() && !installed.is_empty() {
            return Err(unused(&counting, reasons));
        }
        let mut all = broken(plugins);
        all.extend(reasons);
        return Err(SelectError::Nothing { searched: searched.to_vec(), broken: all });
    };
    let mut not_taken: Vec<String> = candidates[1..]
        .iter()
        .map(|(other, _, loser)| format!("{}: {}", loser.name(), why_behind(*other, strength, loser, plugin)))
        .collect();
    not_taken.extend(reasons);
    let ignored: Vec<String> =
        hardware.devices.iter().filter(|device| !counting.contains(device)).map(Device::describe).collect();
    if !ignored.is_empty() {
        not_taken.push(format!("ignored display hardware: {}", ignored.join(", ")));
    }
    let reason = if strength.accelerator {
        let device = plugin.manifest.as_ref().and_then(|manifest| {
            usable_devices(manifest, hardware).first().map(|(device, _)| device.describe())
        });
        device.unwrap_or_default()
    } else if counting.is_empty() {
        "no accelerator in this machine".into()
    } else {
        "fallback allowed: no accelerator can be used".into()
    };
    let fallback = !strength.accelerator && !counting.is_empty();
    Ok(AutoChoice { index, reason, not_taken, fallback })
}

/// The plugin for the processor that `auto` would take where there is no accelerator, of those that were inspected.
pub fn processor(plugins: &[Plugin]) -> Option<usize> {
    let runs = |plugin: &Plugin| {
        let manifest = plugin.manifest.as_ref()?;
        let usable = !plugin.is_hidden() && plugin.life.error().is_none();
        (usable && manifest.devices.iter().all(|claim| claim.kind == "cpu")).then_some(())
    };
    let candidates = plugins.iter().enumerate().filter(|(_, plugin)| runs(plugin).is_some());
    let best = candidates.min_by_key(|(_, plugin)| (plugin.rank, Reverse(version(plugin)), plugin.name()));
    best.map(|(index, _)| index)
}

/// Devices that count: what an installed accelerator plugin claims by vendor and kind, and every discrete AMD or
/// NVIDIA device.
fn counting_devices<'a>(installed: &[(usize, &Plugin)], hardware: &'a Hardware) -> Vec<&'a Device> {
    let claimed = |device: &Device| {
        installed
            .iter()
            .filter_map(|(_, plugin)| plugin.manifest.as_ref())
            .any(|manifest| manifest.devices.iter().any(|claim| claims_device(claim, device)))
    };
    // Without a driver the kernel cannot tell a card from a processor's own device; a card is the safer guess.
    let discrete = |device: &Device| {
        matches!(device.vendor, Vendor::Amd | Vendor::Nvidia) && device.placement != Placement::Integrated
    };
    hardware.devices.iter().filter(|device| claimed(device) || discrete(device)).collect()
}

fn unused(counting: &[&Device], reasons: Vec<String>) -> SelectError {
    let devices: Vec<String> = counting.iter().map(|device| device.describe()).collect();
    let mut packages: Vec<&str> = counting
        .iter()
        .filter_map(|device| match device.vendor {
            Vendor::Amd => Some("tensorfold-backend-hip"),
            Vendor::Nvidia => Some("tensorfold-backend-cuda"),
            _ => None,
        })
        .collect();
    packages.dedup();
    let mut all = vec![format!("{} is there and no plugin can use it", devices.join(", "))];
    all.extend(reasons);
    let install =
        if packages.is_empty() { String::new() } else { format!("install {}, or ", packages.join(" or ")) };
    SelectError::AcceleratorUnused {
        reasons: all,
        advice: format!("{install}run on the processor with --backend cpu"),
    }
}

/// The first rule by which a candidate stands behind the winner.
fn why_behind(this: Strength, winner: Strength, plugin: &Plugin, taken: &Plugin) -> String {
    let name = taken.name();
    if this.accelerator != winner.accelerator {
        format!("{name} uses an accelerator")
    } else if this.fit != winner.fit {
        format!("{name} is built for the device's architecture")
    } else if this.discrete != winner.discrete {
        format!("{name} has a device with memory of its own")
    } else if this.memory_bytes != winner.memory_bytes {
        format!("{name} has a device with more memory")
    } else if plugin.rank != taken.rank {
        format!("{name} comes from a higher place ({} before {})", taken.rank.as_str(), plugin.rank.as_str())
    } else if version(plugin) != version(taken) {
        format!("{name} is of a higher version")
    } else {
        format!("{name} comes first by name")
    }
}

#[cfg(test)]
mod tests {
    use super::super::hardware::tests::Machine;
    use super::super::lifecycle::{Lifecycle, State};
    use super::super::search::{Kind, Place, Rank};
    use super::super::testing::manifest_text;
    use super::*;
    use tensorfold_plugin_api::manifest::Manifest;

    fn plugin_with(id: &str, rank: Rank, change: impl FnOnce(String) -> String) -> Plugin {
        let place = Place { rank, kind: Kind::Folder, path: "/p".into(), origin: "x".into() };
        let mut plugin = Plugin::new(&place, format!("/p/{id}.tensorfold.toml").into(), false);
        let text = change(manifest_text(id));
        plugin.manifest = Some(
            Manifest::parse(text.as_bytes(), "test").unwrap_or_else(|errors| panic!("{errors}")).manifest,
        );
        plugin.life = Lifecycle::new();
        plugin.life.advance(State::ManifestRead).unwrap();
        plugin
    }

    fn cpu() -> Plugin {
        plugin_with("backend-cpu", Rank::System, |text| text)
    }

    fn hip() -> Plugin {
        gpu("backend-hip", "amd", "gfx1151", |text| {
            text.replace("backend = \"hip\"", "backend = \"hip\"\naliases = [\"rocm\"]")
        })
    }

    fn cuda() -> Plugin {
        gpu("backend-cuda", "nvidia", "sm_90", |text| text)
    }

    fn gpu(id: &str, vendor: &str, arch: &str, change: impl FnOnce(String) -> String) -> Plugin {
        plugin_with(id, Rank::System, |text| {
            change(text.replace(
                "kind = \"cpu\"",
                &format!("kind = \"gpu\"\nvendor = \"{vendor}\"\narchs = [\"{arch}\"]"),
            ))
        })
    }

    fn apu() -> Machine {
        let machine = Machine::new();
        machine.pci("0000:c5:00.0", 0x1002, 0x1586, 0x03_8000).kfd(1, 0xc500, 110_501);
        machine
    }

    fn choose(plugins: &[Plugin], machine: &Machine) -> Result<AutoChoice, SelectError> {
        auto(plugins, &machine.hardware(), false, &["/p".into()])
    }

    fn named(plugins: &[Plugin], name: &str) -> Result<usize, SelectError> {
        by_name(plugins, name, || panic!("a name alone decides"))
    }

    #[test]
    fn a_plugin_answers_to_backend_alias_and_id() {
        let plugins = [cpu(), hip()];
        for name in ["hip", "rocm", "backend-hip"] {
            assert_eq!(named(&plugins, name), Ok(1), "{name}");
        }
        let error = named(&plugins, "vulkan").unwrap_err().to_string();
        assert!(error.contains("vulkan") && error.contains("auto, cpu, hip, rocm"), "{error}");
    }

    #[test]
    fn a_name_that_two_ids_claim_is_an_error_that_lists_both() {
        let plugins = [
            hip(),
            gpu("backend-other", "amd", "gfx1151", |text| {
                text.replace("backend = \"other\"", "backend = \"rocm\"")
            }),
        ];
        let error = named(&plugins, "rocm").unwrap_err();
        assert_eq!(error.code(), "backend-ambiguous");
        assert!(error.to_string().contains("backend-hip, backend-other"), "{error}");
        assert_eq!(named(&plugins, "hip"), Ok(0));
    }

    #[test]
    fn a_variant_is_chosen_by_hardware_or_exactly_by_name() {
        let variant = |arch: &str| {
            gpu("backend-hip", "amd", arch, |text| {
                text.replace("version =", &format!("variant = \"{arch}\"\nversion ="))
            })
        };
        let plugins = [variant("gfx942"), variant("gfx1151")];
        let hardware = apu().hardware();
        assert_eq!(by_name(&plugins, "hip", || &hardware), Ok(1));
        assert_eq!(named(&plugins, "backend-hip/gfx942"), Ok(0));
        assert_eq!(named(&plugins, "backend-hip/gfx90a").unwrap_err().code(), "backend-unknown");
    }

    #[test]
    fn a_plugin_that_is_switched_off_is_named_with_the_reason() {
        let mut off = hip();
        off.record(Finding::note(Code::Disabled, "switched off by TENSORFOLD_PLUGIN_DISABLE"));
        let error = named(&[cpu(), off], "hip").unwrap_err();
        assert_eq!(error.code(), "disabled");
        assert!(error.to_string().contains("TENSORFOLD_PLUGIN_DISABLE"), "{error}");
    }

    #[test]
    fn a_refused_plugin_is_still_the_one_that_was_named() {
        let mut refused = hip();
        refused.record(Finding::error(Code::LibraryMissing, "gone"));
        assert_eq!(
            named(&[cpu(), refused], "hip"),
            Ok(1),
            "its own refusal is the answer, not another plugin"
        );
    }

    #[test]
    fn files_that_could_not_be_read_are_named_when_a_backend_is_unknown() {
        let place = Place { rank: Rank::System, kind: Kind::Folder, path: "/p".into(), origin: "x".into() };
        let mut broken = Plugin::new(&place, "/p/backend-hip.tensorfold.toml".into(), false);
        broken.record(Finding::error(Code::ManifestSyntax, "line 3"));
        let error = named(&[cpu(), broken], "hip").unwrap_err().to_string();
        assert!(error.contains("/p/backend-hip.tensorfold.toml"), "{error}");
    }

    #[test]
    fn auto_takes_the_accelerator_and_says_why_not_the_others() {
        let plugins = [cpu(), hip(), cuda()];
        let choice = choose(&plugins, &apu()).unwrap();
        assert_eq!(choice.index, 1);
        assert!(choice.reason.contains("gfx1151"), "{choice:?}");
        assert_eq!(choice.not_taken.len(), 2, "{choice:?}");
        assert!(choice.not_taken.iter().any(|line| line.starts_with("backend-cpu: backend-hip uses")));
        assert!(
            choice.not_taken.iter().any(|line| line.contains("backend-cuda") && line.contains("no device"))
        );
    }

    #[test]
    fn auto_takes_the_processor_only_where_no_accelerator_counts() {
        let machine = Machine::new();
        machine.pci("0000:00:02.0", 0x8086, 0x9a49, 0x03_0000);
        let choice = choose(&[cpu(), hip()], &machine).unwrap();
        assert_eq!(choice.index, 0);
        assert!(
            choice.not_taken.iter().any(|line| line.contains("ignored display hardware: Intel")),
            "{choice:?}"
        );
        let nvidia = Machine::new();
        nvidia.pci("0000:04:00.0", 0x10de, 0x2330, 0x03_0200);
        let error = choose(&[cpu()], &nvidia).unwrap_err();
        assert_eq!(error.code(), "accelerator-unused");
        let text = error.to_string();
        assert!(text.contains("tensorfold-backend-cuda") && text.contains("--backend cpu"), "{text}");
        let choice = auto(&[cpu()], &nvidia.hardware(), true, &[]).unwrap();
        assert_eq!((choice.index, choice.fallback), (0, true), "fallback was allowed");
    }

    #[test]
    fn an_integrated_device_counts_only_when_a_plugin_claims_it() {
        assert_eq!(choose(&[cpu()], &apu()).unwrap().index, 0);
        let mut refused = hip();
        refused.record(Finding::error(Code::DriverTooOld, "the driver amdgpu is too old"));
        let error = choose(&[cpu(), refused], &apu()).unwrap_err().to_string();
        assert!(error.contains("the driver amdgpu is too old"), "{error}");
    }

    #[test]
    fn the_order_of_auto_is_arch_place_memory_rank_version_name() {
        let machine = apu();
        machine
            .pci("0000:03:00.0", 0x10de, 0x2330, 0x03_0200)
            .write("sys/bus/pci/devices/0000:c5:00.0/mem_info_vram_total", "1000\n");
        assert_eq!(choose(&[cuda(), hip()], &machine).unwrap().index, 1, "exact before generic");
        let other = |id: &str| gpu(id, "amd", "gfx1151", |text| text);
        let higher = plugin_with("backend-zz", Rank::User, |text| {
            text.replace("kind = \"cpu\"", "kind = \"gpu\"\nvendor = \"amd\"\narchs = [\"gfx1151\"]")
        });
        assert_eq!(choose(&[other("backend-aa"), higher], &apu()).unwrap().index, 1, "higher rank");
        let newer = gpu("backend-bb", "amd", "gfx1151", |text| text.replace("1.2.3", "1.10.0"));
        assert_eq!(choose(&[other("backend-aa"), newer], &apu()).unwrap().index, 1, "higher version");
        assert_eq!(
            choose(&[other("backend-bb"), other("backend-aa")], &apu()).unwrap().index,
            1,
            "byte order"
        );
    }

    #[test]
    fn a_plugin_for_neural_processors_makes_no_display_count() {
        let npu = gpu("backend-xdna", "amd", "gfx1151", |text| {
            text.replace("kind = \"gpu\"", "kind = \"npu\"").replace("archs = [\"gfx1151\"]\n", "")
        });
        let choice = choose(&[npu, cpu()], &apu()).unwrap();
        assert_eq!((choice.index, choice.fallback), (1, false));
    }

    #[test]
    fn after_a_failure_the_processor_is_next_and_that_is_a_fallback() {
        let mut plugins = [hip(), cpu()];
        assert_eq!(choose(&plugins, &apu()).unwrap().index, 0);
        plugins[0].record(Finding::error(Code::InitFailed, "it did not start"));
        assert!(choose(&plugins, &apu()).is_err(), "never by itself");
        let choice = auto(&plugins, &apu().hardware(), true, &[]).unwrap();
        assert_eq!((choice.index, choice.fallback), (1, true));
        assert!(choice.not_taken.iter().any(|line| line.contains("it did not start")), "{choice:?}");
        assert_eq!(processor(&[cuda(), cpu(), hip()]), Some(1), "never another accelerator");
        assert_eq!(processor(&[cuda()]), None);
    }

    #[test]
    fn without_plugins_the_folders_and_packages_are_named() {
        let error = choose(&[], &Machine::new()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("searched /p") && text.contains("tensorfold-backend-hip"), "{text}");
    }
}
