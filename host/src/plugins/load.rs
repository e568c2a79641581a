//! From an admitted plugin to one that is initialised: open, cross-check, verify, init.
//!
//! Each step either completes or leaves the plugin in its previous state with the reason recorded. Nothing here falls
//! back to another plugin. After a failed `init` the plugin is shut down, and its library stays mapped.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::Status;
use tensorfold_plugin_api::host::{GAVE_UP, InitOptions, InterfaceError, PluginClient};
use tensorfold_plugin_api::manifest::Manifest;

use super::attest::{self, Layout};
use super::cross_check;
use super::image::Image;
use super::lifecycle::{Code, Finding, State, one_line};
use super::log_bridge::{LogBridge, MemoryReport};
use super::open;
use super::plugin::Plugin;

/// How long `init` may take while serving.
pub const INIT_LIMIT: Duration = Duration::from_secs(120);

/// How long `shutdown` may take.
pub const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// A plugin whose tables were checked. `init` has not been called.
pub struct Verified {
    /// Safe calls into the plugin.
    pub client: Arc<PluginClient>,
    /// How far its layouts are known.
    pub layout: Layout,
    /// What tells builds apart.
    pub build_id: String,
    /// What the plugin says about the memory it holds.
    pub memory: Arc<MemoryReport>,
}

impl std::fmt::Debug for Verified {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Verified")
            .field("layout", &self.layout)
            .field("build_id", &self.build_id)
            .finish_non_exhaustive()
    }
}

/// Opens and verifies an admitted plugin. `options` are the plugin's own options, as text; `reports` is a folder for
/// long reports. A finding `file-changed` must end the process.
///
/// # Errors
/// The finding that was also recorded with the plugin: `dlopen-failed`, `file-changed`, `not-a-plugin`, `bad-magic`,
/// `descriptor-mismatch`, `manifest-mismatch`, `layout-mismatch` or `interface-missing`.
pub fn open_and_verify(
    plugin: &mut Plugin,
    image: &Image,
    options: &[(String, String)],
    reports: Option<&Path>,
) -> Result<Verified, Box<Finding>> {
    let outcome = verify_steps(plugin, image, options, reports);
    if let Err(finding) = &outcome {
        plugin.record((**finding).clone());
        // With the plugin's name in it, as the user reads it.
        return Err(Box::new(plugin.life.error().unwrap_or(finding).clone()));
    }
    outcome
}

fn verify_steps(
    plugin: &mut Plugin,
    image: &Image,
    options: &[(String, String)],
    reports: Option<&Path>,
) -> Result<Verified, Box<Finding>> {
    let not_ready = || Box::new(Finding::error(Code::NotAPlugin, "it was not admitted, so it is not opened"));
    let manifest: Manifest = plugin.manifest.clone().ok_or_else(not_ready)?;
    let library = plugin.library.clone().ok_or_else(not_ready)?;
    if plugin.life.state() != State::Admitted {
        return Err(not_ready());
    }
    let opened = open::open(&library, image.identity)?;
    advance(plugin, State::Opened);
    let descriptor = cross_check::cross_check(opened.descriptor(), image, &manifest, &library)?;
    advance(plugin, State::CrossChecked);
    let layout = attest::attest(&opened, descriptor.table, &manifest, reports)?;
    let bridge = LogBridge::new(&manifest.plugin.id);
    let memory = bridge.memory();
    let offered: Vec<String> = manifest.abi.interfaces.iter().cloned().collect();
    // SAFETY: the descriptor is of a library that is never unloaded; that it follows the contract is what the checks
    // so far could show.
    let client = unsafe { PluginClient::new(descriptor.table, &offered, Box::new(bridge), options) }
        .map_err(|error| Box::new(interface_finding(&error)))?;
    advance(plugin, State::Verified);
    Ok(Verified { client, layout, build_id: descriptor.build_id, memory })
}

fn advance(plugin: &mut Plugin, state: State) {
    // The order of calls above is the order of states.
    let advanced = plugin.life.advance(state);
    debug_assert!(advanced.is_ok());
}

fn interface_finding(error: &InterfaceError) -> Finding {
    let code = match error {
        InterfaceError::Missing { .. } | InterfaceError::NoLookup => Code::InterfaceMissing,
        InterfaceError::NoThread(_) => Code::InitFailed,
        InterfaceError::TooSmall { .. } | InterfaceError::NullFunction { .. } => Code::LayoutMismatch,
    };
    Finding::error(code, error.to_string()).fix("reinstall the plugin, or report it to its vendor")
}

/// Calls `init`, on the plugin's control thread, and waits up to `limit`.
///
/// When time is up the plugin may still be inside: `init-timeout` must end the process.
///
/// # Errors
/// The finding that was also recorded: `init-failed`, `init-timeout`, `runtime-missing` or `stub-driver`.
pub fn init(
    plugin: &mut Plugin,
    verified: &Verified,
    options: InitOptions,
    limit: Duration,
) -> Result<(), Box<Finding>> {
    let finding = match verified.client.init(options, limit) {
        Ok(()) => {
            advance(plugin, State::Initialised);
            record_runtimes(plugin);
            return Ok(());
        }
        Err(error) if error.detail(GAVE_UP).is_some() => {
            Finding::error(Code::InitTimeout, "init did not return")
                .wanted(format!("an answer within {} seconds", limit.as_secs_f32()))
                .fix("see what the driver waits for, with `tensorfold plugins check`")
        }
        Err(error) => {
            // The contract makes this safe after a failed `init`; what it says then adds nothing.
            let _ = verified.client.shutdown_within(SHUTDOWN_LIMIT);
            init_finding(&error)
        }
    };
    plugin.record(finding);
    Err(Box::new(
        plugin.life.error().cloned().unwrap_or_else(|| Finding::error(Code::InitFailed, "init failed")),
    ))
}

/// The finding for an `init` that returned an error: the plugin's own words, with its status.
pub fn init_finding(error: &PluginError) -> Finding {
    // A plugin may state the code itself where the status is not precise enough, as for a stub of the driver.
    let stated = error.detail("code").and_then(|stated| {
        Code::ALL.iter().find(|code| code.as_str() == stated && code.state() == State::Initialised).copied()
    });
    let code = stated.unwrap_or(match error.status {
        Status::RuntimeMissing => Code::RuntimeMissing,
        Status::Timeout => Code::InitTimeout,
        _ => Code::InitFailed,
    });
    Finding::error(code, one_line(&error.message)).found(format!("status {}", error.status))
}

/// Warns when two majors of one run-time library are mapped.
fn record_runtimes(plugin: &mut Plugin) {
    let Some(manifest) = &plugin.manifest else { return };
    let mixed: Vec<Finding> = manifest
        .runtimes
        .iter()
        .filter_map(|runtime| {
            let mapped: Vec<(&String, Vec<std::path::PathBuf>)> = runtime
                .soname
                .iter()
                .map(|soname| (soname, open::mapped_runtimes(&[soname.as_str()])))
                .filter(|(_, paths)| !paths.is_empty())
                .collect();
            let paths: Vec<String> =
                mapped.iter().flat_map(|(_, paths)| paths).map(|path| path.display().to_string()).collect();
            (mapped.len() > 1).then(|| {
                Finding::warning(
                    Code::RuntimeMixed,
                    format!("two majors of {} are in the process", runtime.name),
                )
                .found(paths.join(", "))
                .fix("remove one of them from the library search path")
            })
        })
        .collect();
    for finding in mixed {
        plugin.record(finding);
    }
}

#[cfg(test)]
mod tests {
    use super::super::image;
    use super::super::search::{Kind, Place, Rank};
    use super::super::testing::{CPlugin, manifest_text};
    use super::*;
    use tensorfold_plugin_api::abi::ABI_MINOR;

    fn admitted(library: &Path, manifest: &str) -> Plugin {
        let place =
            Place { rank: Rank::Option, kind: Kind::File, path: library.into(), origin: "--plugin".into() };
        let mut plugin = Plugin::new(&place, library.into(), true);
        plugin.manifest = Some(Manifest::parse(manifest.as_bytes(), "test").unwrap().manifest);
        plugin.life.advance(State::ManifestRead).unwrap();
        plugin.life.advance(State::Admitted).unwrap();
        plugin
    }

    fn verify(build: CPlugin) -> (Plugin, Result<Verified, Box<Finding>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = build.build(folder.path());
        let image = image::read(&path).unwrap();
        let mut plugin = admitted(&path, &manifest_text("backend-test"));
        let verified = open_and_verify(&mut plugin, &image, &[], None);
        (plugin, verified)
    }

    fn init_options() -> InitOptions {
        InitOptions {
            host_version: "0.1.0".into(),
            agreed_abi_minor: ABI_MINOR,
            configuration: Vec::new(),
            log_level: 3,
        }
    }

    fn run(define: &str, limit: Duration) -> (Plugin, Result<(), Box<Finding>>) {
        let (mut plugin, verified) = verify(CPlugin::new("backend-test").define("IN_INIT", define));
        let outcome = init(&mut plugin, &verified.unwrap(), init_options(), limit);
        (plugin, outcome)
    }

    #[test]
    fn a_c_plugin_goes_from_admitted_to_initialised() {
        let (mut plugin, verified) = verify(CPlugin::new("backend-test"));
        let verified = verified.unwrap();
        assert_eq!(plugin.life.state(), State::Verified);
        assert_eq!((verified.layout, verified.build_id.as_str()), (Layout::Declared, "test-build"));
        init(&mut plugin, &verified, init_options(), INIT_LIMIT).unwrap();
        assert_eq!(plugin.life.state(), State::Initialised);
        assert_eq!(verified.client.list_devices().unwrap().len(), 1);
        verified.client.shutdown().unwrap();
    }

    #[test]
    fn a_plugin_that_was_not_admitted_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = CPlugin::new("backend-test").build(folder.path());
        let image = image::read(&path).unwrap();
        let mut plugin = admitted(&path, &manifest_text("backend-test"));
        plugin.life = super::super::lifecycle::Lifecycle::new();
        open_and_verify(&mut plugin, &image, &[], None).unwrap_err();
        assert_eq!(plugin.life.state(), State::Discovered);
    }

    #[test]
    fn a_failure_leaves_the_state_before_it_and_names_the_plugin() {
        let (plugin, outcome) = verify(CPlugin::new("backend-test").define("MAGIC", "0"));
        assert_eq!(plugin.life.state(), State::Opened);
        let finding = outcome.unwrap_err();
        assert_eq!(finding.code, Code::BadMagic);
        assert!(finding.to_string().starts_with("plugin backend-test 1.2.3 ("), "{finding}");
        assert_eq!(plugin.life.error(), Some(&*finding));
    }

    #[test]
    fn an_interface_that_is_declared_and_not_given_is_refused_before_init() {
        let (plugin, outcome) = verify(CPlugin::new("backend-test").define("ENGINE", "0"));
        assert_eq!(outcome.unwrap_err().code, Code::InterfaceMissing);
        assert_eq!(plugin.life.state(), State::CrossChecked);
    }

    #[test]
    fn an_init_that_fails_says_so_in_the_plugins_words() {
        let fail = "do { TfStr m = STR(\"no luck today\"); error->message = m; error->status = TF_STATUS_INTERNAL; return TF_STATUS_INTERNAL; } while (0)";
        let (plugin, outcome) = run(fail, INIT_LIMIT);
        let finding = outcome.unwrap_err();
        assert_eq!(finding.code, Code::InitFailed);
        assert!(finding.to_string().contains("no luck today"), "{finding}");
        assert_eq!(plugin.life.state(), State::Verified);
    }

    #[test]
    fn a_missing_runtime_library_has_its_own_code() {
        let (_, outcome) = run("return TF_STATUS_RUNTIME_MISSING", INIT_LIMIT);
        assert_eq!(outcome.unwrap_err().code, Code::RuntimeMissing);
    }

    #[test]
    fn a_code_that_the_plugin_states_is_kept_when_it_is_one_of_init() {
        let error = |code: &str| PluginError::new(Status::RuntimeMissing, "m").with("code", code);
        assert_eq!(init_finding(&error("stub-driver")).code, Code::StubDriver);
        assert_eq!(init_finding(&error("engine-failed")).code, Code::RuntimeMissing);
        assert_eq!(init_finding(&error("nonsense")).code, Code::RuntimeMissing);
    }

    #[test]
    fn an_init_that_hangs_is_left_when_time_is_up() {
        let (_, outcome) = run("for (;;) pause()", Duration::from_millis(100));
        assert_eq!(outcome.unwrap_err().code, Code::InitTimeout);
    }
}
