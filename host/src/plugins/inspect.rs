//! Everything about one plugin that can be decided without running its code, in the contract's order.
//!
//! Reads files with ordinary reads; maps nothing for execution and touches no device. Every finding is recorded with
//! the plugin, which then is `admitted` or `refused`.

use std::path::Path;

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::negotiation::Agreement;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::admit::{CHECKS, Facts, HostFacts, Subject};
use super::configuration::Configuration;
use super::cross_check::manifest_mismatch;
use super::hardware::Hardware;
use super::image::{self, Image, ImageError};
use super::lifecycle::{Code, Finding, State, show_path};
use super::lock::{self, Lock};
use super::machine::{self, HostRelease};
use super::plugin::Plugin;
use super::safety::Checker;

/// What inspection needs to know.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The configuration files.
    pub configuration: &'a Configuration,
    /// The pins.
    pub lock: &'a Lock,
    /// Judges paths.
    pub checker: &'a Checker,
    /// The machine.
    pub hardware: &'a Hardware,
    /// The host.
    pub host: &'a HostRelease,
}

/// What inspection found out besides findings.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// The library file, when it could be read.
    pub image: Option<Image>,
    /// SHA-256 of the library, when a pin asked for it.
    pub digest: Option<String>,
    /// The interface version agreed on.
    pub agreement: Option<Agreement>,
}

/// Inspects a plugin whose manifest was read; others are left as they are.
pub fn inspect(plugin: &mut Plugin, surroundings: &Surroundings<'_>) -> Inspection {
    let mut inspection = Inspection::default();
    if plugin.life.state() != State::ManifestRead || plugin.life.error().is_some() {
        return inspection;
    }
    let (Some(manifest), Some(library)) = (plugin.manifest.clone(), plugin.library.clone()) else {
        return inspection;
    };
    if library_is_there(plugin, &library, surroundings.checker) {
        check_pins(plugin, &manifest, &library, surroundings, &mut inspection);
        inspection.image = read_image(plugin, &manifest, &library);
    }
    let mut findings = machine::target_findings(&manifest.target, surroundings.hardware);
    match machine::abi_agreement(&manifest, surroundings.host) {
        Ok(agreement) => {
            if let Some(untested) = &agreement.untested {
                findings.push(Finding::warning(Code::HostRange, untested.to_string()));
            }
            inspection.agreement = Some(agreement);
        }
        Err(finding) => findings.push(*finding),
    }
    findings.extend(interface_findings(&manifest, &library));
    if let Some(image) = &inspection.image {
        findings.extend(machine::linking_findings(image, surroundings.hardware));
    }
    findings.extend(machine::device_findings(&manifest, surroundings.hardware));
    for finding in findings {
        plugin.record(finding);
    }
    let next = if plugin.life.error().is_some() { State::Refused } else { State::Admitted };
    // Both follow `manifest-read`, which was tested above.
    let advanced = plugin.life.advance(next);
    debug_assert!(advanced.is_ok());
    inspection
}

/// What the plugin offers and what the host calls, and the other way round.
fn interface_findings(manifest: &Manifest, library: &Path) -> Vec<Finding> {
    let host = HostFacts::of_this_program();
    let facts = Facts::of_host(&host);
    let flags = GivenFlags::new();
    let subject = Subject { manifest, path: Some(library), flags: &flags, facts: &facts };
    CHECKS
        .iter()
        .filter(|check| check.name == "interfaces")
        .flat_map(|check| (check.run)(&subject))
        .map(|refusal| refusal.finding)
        .collect()
}

fn library_is_there(plugin: &mut Plugin, library: &Path, checker: &Checker) -> bool {
    if std::fs::metadata(library).is_err() {
        let sidecar = show_path(&plugin.manifest_path);
        plugin.record(
            Finding::error(Code::LibraryMissing, "the library that the manifest names is not there")
                .at(library)
                .fix(format!("reinstall the plugin, or remove {sidecar}")),
        );
        return false;
    }
    match checker.check_file(library) {
        Ok(checked) => {
            for warning in checked.warnings {
                plugin.record(warning);
            }
            true
        }
        Err(finding) => {
            plugin.record(*finding);
            false
        }
    }
}

fn check_pins(
    plugin: &mut Plugin,
    manifest: &Manifest,
    library: &Path,
    surroundings: &Surroundings<'_>,
    inspection: &mut Inspection,
) {
    let key = (manifest.plugin.id.clone(), manifest.plugin.variant.clone());
    let pin = surroundings.lock.pins.get(&key);
    let setting = surroundings
        .configuration
        .plugins
        .get(&manifest.plugin.id)
        .and_then(|settings| settings.sha256.as_ref());
    let no_path = Path::new("plugins.lock");
    let lock_path = surroundings.lock.path.as_deref().unwrap_or(no_path);
    if pin.is_none()
        && let Some(rule) = surroundings.configuration.policy.require_lock.as_ref().filter(|rule| rule.value)
    {
        plugin.record(lock::not_pinned(&rule.file));
    }
    let wanted: Vec<(&str, &Path)> = pin
        .map(|pin| (pin.library_sha256.as_str(), lock_path))
        .into_iter()
        .chain(setting.map(|setting| (setting.value.as_str(), setting.file.as_path())))
        .chain(manifest.plugin.sha256.as_deref().map(|digest| (digest, plugin.manifest_path.as_path())))
        .collect();
    let mut mismatches = Vec::new();
    if !wanted.is_empty() {
        match lock::digest_file(library) {
            Ok(digest) => {
                for (pinned, place) in wanted.iter().filter(|(pinned, _)| *pinned != digest) {
                    mismatches.push(lock::mismatch(place, "library", pinned, &digest));
                }
                inspection.digest = Some(digest);
            }
            Err(error) => {
                mismatches
                    .push(Finding::error(Code::PinMismatch, format!("cannot be read: {error}")).at(library));
            }
        }
    }
    if let Some(pinned) = pin.and_then(|pin| pin.sidecar_sha256.as_ref())
        && !plugin.embedded
    {
        match lock::digest_file(&plugin.manifest_path) {
            Ok(digest) if digest == *pinned => {}
            Ok(digest) => mismatches.push(lock::mismatch(lock_path, "sidecar", pinned, &digest)),
            Err(error) => {
                mismatches.push(Finding::error(Code::PinMismatch, format!("cannot be read: {error}")))
            }
        }
    }
    for finding in mismatches {
        plugin.record(finding);
    }
}

fn read_image(plugin: &mut Plugin, manifest: &Manifest, library: &Path) -> Option<Image> {
    let reinstall = "reinstall the plugin";
    let wrong_arch = |found: String| {
        Finding::error(Code::WrongArch, "built for another machine")
            .wanted(format!("{} (64 bit)", std::env::consts::ARCH))
            .found(found)
            .fix("install the build for this machine")
    };
    let image = match image::read(library) {
        Ok(image) => image,
        Err(ImageError::Foreign(target)) => {
            plugin.record(wrong_arch(target.arch()));
            return None;
        }
        Err(error) => {
            plugin.record(Finding::error(Code::NotAPlugin, error.to_string()).fix(reinstall));
            return None;
        }
    };
    if !image.target.is_native() {
        plugin.record(wrong_arch(image.target.arch()));
        return None;
    }
    let lacks =
        |what: &str| Finding::error(Code::NotAPlugin, format!("the library has no {what}")).fix(reinstall);
    if !image.shared_object {
        plugin.record(Finding::error(Code::NotAPlugin, "not a shared library").fix(reinstall));
    }
    if !image.descriptor_symbol {
        plugin.record(lacks(&format!("symbol `{}`", image::DESCRIPTOR_SYMBOL)));
    }
    if !image.manifest_symbol {
        plugin.record(lacks(&format!("symbol `{}`", image::MANIFEST_SYMBOL)));
    }
    match &image.manifest {
        None => plugin.record(lacks(&format!("section `{}`", image::MANIFEST_SECTION))),
        Some(_) if plugin.embedded => {}
        Some(bytes) => {
            let file = format!("the library {}", show_path(library));
            match Manifest::parse(bytes, &file) {
                Err(errors) => {
                    plugin.record(
                        Finding::error(Code::ManifestMismatch, errors.first().to_string()).fix(reinstall),
                    );
                }
                Ok(parsed) => {
                    if let Some(difference) = manifest.first_difference(&parsed.manifest) {
                        plugin.record(manifest_mismatch("the library", &difference));
                    }
                }
            }
        }
    }
    Some(image)
}

#[cfg(test)]
mod tests {
    use super::super::discover::{SIDECAR_SUFFIX, discover};
    use super::super::globs::Globs;
    use super::super::lifecycle::Level;
    use super::super::safety::Process;
    use super::super::search::{Kind, Place, Rank, Search};
    use super::super::testing::{CPlugin, Library, manifest_text};
    use super::*;
    use std::fs;

    struct Case {
        folder: tempfile::TempDir,
        configuration: Configuration,
        lock: Lock,
    }

    impl Case {
        /// A folder with one sidecar; the library is left to the test.
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let sidecar = folder.path().join(format!("backend-test{SIDECAR_SUFFIX}"));
            fs::write(sidecar, manifest_text("backend-test")).unwrap();
            Self { folder, configuration: Configuration::default(), lock: Lock::default() }
        }

        fn path(&self) -> &Path {
            self.folder.path()
        }

        fn inspect(&self) -> (Plugin, Inspection) {
            let checker = Checker::new(Process::current(false));
            let place = Place {
                rank: Rank::System,
                kind: Kind::Folder,
                path: self.path().into(),
                origin: "x".into(),
            };
            let search = Search { places: vec![place], notes: Vec::new() };
            let mut discovery = discover(&search, &self.configuration, &Globs::default(), &checker).unwrap();
            let mut plugin = discovery.plugins.remove(0);
            let hardware = Hardware::read(&self.path().join("no-such-machine"));
            let surroundings = Surroundings {
                configuration: &self.configuration,
                lock: &self.lock,
                checker: &checker,
                hardware: &hardware,
                host: &HostRelease::current(false),
            };
            let inspection = inspect(&mut plugin, &surroundings);
            (plugin, inspection)
        }

        fn codes(&self) -> Vec<Code> {
            let (plugin, _) = self.inspect();
            let errors = plugin.life.findings().iter().filter(|finding| finding.level == Level::Error);
            errors.map(|finding| finding.code).collect()
        }
    }

    #[test]
    fn a_whole_plugin_is_admitted() {
        let case = Case::new();
        CPlugin::new("backend-test").build(case.path());
        let (plugin, inspection) = case.inspect();
        assert_eq!(plugin.life.state(), State::Admitted, "{:?}", plugin.life.findings());
        assert!(inspection.image.is_some() && inspection.agreement.is_some());
        assert_eq!(inspection.digest, None, "nothing asked for a digest");
    }

    #[test]
    fn a_manifest_without_its_library_is_named() {
        let case = Case::new();
        let (plugin, _) = case.inspect();
        assert_eq!(plugin.life.state(), State::Refused);
        assert_eq!(plugin.life.error().unwrap().code, Code::LibraryMissing);
        assert!(plugin.life.error().unwrap().to_string().contains("plugin backend-test 1.2.3"));
    }

    #[test]
    fn a_library_without_its_entry_points_is_no_plugin() {
        let case = Case::new();
        Library::new("backend-test").source("int nothing(void) { return 0; }").build(case.path());
        assert_eq!(case.codes(), [Code::NotAPlugin; 3]);
        fs::write(case.path().join("libtensorfold_backend_test.so"), "this is text and nothing else")
            .unwrap();
        assert_eq!(case.codes(), [Code::NotAPlugin]);
    }

    #[test]
    fn a_library_for_another_machine_is_told_from_its_header() {
        let case = Case::new();
        let path = CPlugin::new("backend-test").build(case.path());
        let mut bytes = fs::read(&path).unwrap();
        bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        let (plugin, _) = case.inspect();
        let finding = plugin.life.error().unwrap();
        assert_eq!(finding.code, Code::WrongArch);
        assert_eq!(finding.found.as_deref(), Some("riscv64"));
    }

    #[test]
    fn a_sidecar_that_differs_from_the_library_is_refused_and_not_merged() {
        let case = Case::new();
        CPlugin::new("backend-test")
            .manifest(&manifest_text("backend-test").replace("\"bf16\"", "\"f16\""))
            .build(case.path());
        let (plugin, _) = case.inspect();
        let finding = plugin.life.error().unwrap();
        assert_eq!(finding.code, Code::ManifestMismatch);
        assert!(finding.what.contains("caps.formats"), "{finding}");
    }

    #[test]
    fn what_packagers_may_change_makes_no_difference() {
        let case = Case::new();
        let path = CPlugin::new("backend-test").build(case.path());
        let digest = lock::digest_file(&path).unwrap();
        let text =
            manifest_text("backend-test").replace("library =", &format!("sha256 = \"{digest}\"\nlibrary ="));
        fs::write(case.path().join("backend-test.tensorfold.toml"), text).unwrap();
        assert_eq!(case.codes(), []);
        let text = manifest_text("backend-test")
            .replace("library =", &format!("sha256 = \"{}\"\nlibrary =", "0".repeat(64)));
        fs::write(case.path().join("backend-test.tensorfold.toml"), text).unwrap();
        assert_eq!(case.codes(), [Code::PinMismatch]);
    }

    #[test]
    fn pins_are_compared_and_missing_pins_matter_only_under_the_policy() {
        let mut case = Case::new();
        let path = CPlugin::new("backend-test").build(case.path());
        let pin = lock::Pin {
            id: "backend-test".into(),
            variant: None,
            version: "1.2.3".into(),
            library_sha256: lock::digest_file(&path).unwrap(),
            sidecar_sha256: Some("0".repeat(64)),
        };
        let key = ("backend-test".to_owned(), None);
        case.lock.pins.insert(key.clone(), lock::Pin { sidecar_sha256: None, ..pin.clone() });
        assert_eq!(case.codes(), []);
        case.lock.pins.insert(key.clone(), pin.clone());
        assert_eq!(case.codes(), [Code::PinMismatch], "the sidecar differs");
        let other = lock::Pin { library_sha256: "0".repeat(64), sidecar_sha256: None, ..pin };
        case.lock.pins.insert(key.clone(), other);
        assert_eq!(case.codes(), [Code::PinMismatch], "the library differs");
        case.lock.pins.clear();
        assert_eq!(case.codes(), []);
        case.configuration.policy.require_lock = Some(super::super::configuration::Sourced {
            value: true,
            file: "/etc/tensorfold/plugins.toml".into(),
            layer: super::super::configuration::Layer::System,
        });
        assert_eq!(case.codes(), [Code::PinMismatch], "not pinned");
    }

    #[test]
    fn inspecting_runs_no_constructor() {
        let case = Case::new();
        let marker = case.path().join("marker");
        CPlugin::new("backend-test")
            .extra(&format!(
                "#include <fcntl.h>\n__attribute__((constructor)) static void mark(void) {{ close(open({:?}, O_CREAT | O_WRONLY, 0600)); }}",
                marker.to_str().unwrap()
            ))
            .build(case.path());
        let (plugin, inspection) = case.inspect();
        assert_eq!(plugin.life.state(), State::Admitted);
        assert!(!marker.exists());
        let library = plugin.library.unwrap();
        super::super::open::open(&library, inspection.image.unwrap().identity).unwrap();
        assert!(marker.exists(), "the marker itself works");
    }

    #[test]
    fn an_executable_stack_is_refused_and_every_finding_is_kept() {
        let case = Case::new();
        CPlugin::new("backend-test")
            .manifest(&manifest_text("backend-test").replace("\"bf16\"", "\"f16\""))
            .extra("__asm__(\".section .note.GNU-stack,\\\"x\\\",@progbits\\n.text\");")
            .build(case.path());
        assert_eq!(case.codes(), [Code::ManifestMismatch, Code::NeedsLibrary]);
    }
}
