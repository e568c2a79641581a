//! From an admitted plugin to an open engine: the first steps that run a plugin's code.

use std::ops::ControlFlow;
use std::sync::Arc;

use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::{Status, TF_LOG_INFO, TF_UNKNOWN};
use tensorfold_plugin_api::device::DeviceInfo;
use tensorfold_plugin_api::host::{DeviceClient, EngineClient, EngineSetup, InitOptions, PluginClient};
use tensorfold_plugin_api::plugin::MemoryPlan;
use tensorfold_plugin_api::vocabulary::{GivenFlags, kv_dtype_name};

use super::admission::Admitted;
use super::drafting::{External, Planned, Unplanned};
use super::{head_trial, keeping};
use crate::checkpoint::CheckpointSource;
use crate::cli::{Failure, hint};
use crate::engine::{Drafters, PrefixOptions};
use crate::plugins::environment::Environment;
use crate::plugins::lifecycle::{Code, Finding, State, one_line};
use crate::plugins::load;

/// Requests that run at once where the user leaves it open and memory allows it.
const LANES: u32 = 8;

/// Rows of a prompt that go through the engine at once; a multiple of 64.
const PREFILL_ROWS: u32 = 512;

/// An initialised plugin.
pub(super) struct OpenPlugin {
    /// Safe calls into it.
    pub client: Arc<PluginClient>,
}

/// An engine, and what it was opened with.
pub(super) struct OpenEngine {
    /// Safe calls into it.
    pub client: EngineClient,
    /// Most rows that a lane may feed in a round.
    pub rows: u32,
    /// Tokens that a lane can hold.
    pub context: u32,
    /// Requests that can run at once.
    pub lanes: u32,
    /// The drafters that are open.
    pub drafters: Drafters,
    /// How much of computed prompts is kept.
    pub prefixes: PrefixOptions,
}

/// Notes a state that was reached.
pub(super) fn advance(admitted: &mut Admitted, state: State) {
    let plugin = admitted.catalog.plugin_mut(admitted.index);
    // The order of calls in `serve` is the order of states.
    let advanced = plugin.life.advance(state);
    debug_assert!(advanced.is_ok(), "{state:?} after {:?}", plugin.life.state());
}

/// Opens the library, checks it against its manifest and starts it.
///
/// # Errors
/// The finding, as one line. A library that changed while it was opened ends the process: its
/// constructors have run already.
pub(super) fn open_plugin(admitted: &mut Admitted, environment: &Environment) -> Result<OpenPlugin, Failure> {
    let not_admitted = || Failure::new("the plugin's library was not inspected");
    let image = admitted.inspection.image.clone().ok_or_else(not_admitted)?;
    let agreement = admitted.inspection.agreement.clone().ok_or_else(not_admitted)?;
    for (variable, value) in &environment.visibility {
        hint(&format!("{variable}={value} is set; it decides which devices drivers show"));
    }
    let options = admitted.admission.options.iter();
    let pairs: Vec<(String, String)> =
        options.map(|(name, value)| (name.clone(), value.to_string())).collect();
    let reports = admitted.catalog.reports_folder();
    let host_version = admitted.catalog.host().version.to_string();
    let plugin = admitted.catalog.plugin_mut(admitted.index);
    let verified = load::open_and_verify(plugin, &image, &pairs, reports.as_deref())
        .map_err(|finding| Failure::from_finding(&finding))?;
    let init = InitOptions {
        host_version,
        agreed_abi_minor: agreement.abi.minor,
        configuration: pairs.into_iter().map(|(name, value)| (name, value, true)).collect(),
        log_level: TF_LOG_INFO,
    };
    if let Err(finding) = load::init(plugin, &verified, init, load::INIT_LIMIT) {
        if finding.code == Code::InitTimeout {
            crate::cli::complain(&format!("tensorfold: {finding}"));
            end_process(1);
        }
        return Err(Failure::from_finding(&finding));
    }
    Ok(OpenPlugin { client: verified.client })
}

/// Opens the device that was asked for, or the first that the plugin can use.
///
/// # Errors
/// When there is none, with the reason for each that is there.
pub(super) fn open_device(
    admitted: &mut Admitted,
    plugin: &OpenPlugin,
    flags: &GivenFlags,
) -> Result<Arc<DeviceClient>, Failure> {
    let devices =
        plugin.client.list_devices().map_err(|error| failure(admitted, Code::DeviceGone, &error))?;
    let asked = flags.text("--device");
    let mut reasons = Vec::new();
    for device in &devices {
        if asked.is_some_and(|asked| !is_named(device, asked)) {
            continue;
        }
        let fit = plugin
            .client
            .fit_device(&device.identity)
            .map_err(|error| failure(admitted, Code::DeviceGone, &error))?;
        if fit.is_usable() {
            let opened = plugin
                .client
                .open_device(&device.identity)
                .map_err(|error| failure(admitted, device_code(&error), &error))?;
            advance(admitted, State::DeviceOpen);
            return Ok(opened);
        }
        reasons.push(format!("{}: {}", label(device), one_line(&fit.text)));
    }
    let there: Vec<String> = devices.iter().map(label).collect();
    let there = if there.is_empty() { "no device".to_owned() } else { there.join(", ") };
    let what = match (asked, reasons.as_slice()) {
        (Some(asked), []) => format!("--device {asked}: the plugin sees no such device; it sees {there}"),
        (None, []) => "the plugin sees no device".to_owned(),
        (_, reasons) => format!("no device can be used; {}", reasons.join("; ")),
    };
    Err(record(admitted, Finding::error(Code::DeviceGone, what)))
}

/// Whether `asked` names the device: its PCI address, uuid or number.
fn is_named(device: &DeviceInfo, asked: &str) -> bool {
    let identity = &device.identity;
    asked.parse() == Ok(identity.index)
        || (!identity.uuid.is_empty() && identity.uuid == asked)
        || (!identity.pci_address.is_empty() && identity.pci_address.eq_ignore_ascii_case(asked))
}

fn label(device: &DeviceInfo) -> String {
    let identity = &device.identity;
    let place = if identity.pci_address.is_empty() { &identity.uuid } else { &identity.pci_address };
    let place = if place.is_empty() { String::new() } else { format!(" at {place}") };
    format!("{} ({}{place})", identity.index, one_line(&identity.name))
}

/// Loads the model, and the drafter where there is one. A head that drafts is tried on the tokens of `trial`.
///
/// # Errors
/// When the plugin refuses the model after all, or it does not fit.
pub(super) fn open_engine(
    admitted: &mut Admitted,
    device: &Arc<DeviceClient>,
    source: Arc<CheckpointSource>,
    drafter: Option<External>,
    trial: &[u32],
    flags: &GivenFlags,
) -> Result<OpenEngine, Failure> {
    let window = source.checkpoint().spec.context_window;
    let context = admitted.admission.context.unwrap_or(window);
    let asked = flags.integer("--parallel").map(|lanes| u32::try_from(lanes).unwrap_or(u32::MAX));
    let limit =
        admitted.manifest.limits_for(&source.checkpoint().spec.family).and_then(|limits| limits.lanes);
    let mut setup = EngineSetup {
        lanes: asked.unwrap_or(LANES).min(limit.unwrap_or(u32::MAX)).max(1),
        context: context.into(),
        rows: PREFILL_ROWS,
        world: 1,
        rank: 0,
        kv_dtype: flags.text("--kv-dtype").map(kv_dtype_name).unwrap_or_default().to_owned(),
        memory_limit: None,
    };
    let plan =
        device.plan(&*source, &setup).map_err(|error| failure(admitted, engine_code(&error), &error))?;
    let fits = plan.lanes.min(setup.lanes);
    if fits == 0 || asked.is_some_and(|asked| fits < asked) {
        return Err(record(admitted, does_not_fit(&plan, &setup)));
    }
    setup.lanes = fits;
    let mut planned = Planned::new(admitted, device, &source, &setup, drafter, flags)
        .map_err(|unplanned| no_drafter(admitted, unplanned))?;
    let least = if asked.is_some() { setup.lanes } else { 1 };
    setup.lanes = planned.lanes(&plan, &setup, least).map_err(|unplanned| no_drafter(admitted, unplanned))?;
    let offered = admitted
        .manifest
        .features_for(&source.checkpoint().spec.family)
        .is_some_and(|features| features.contains("prompt-cache"));
    let prefixes = keeping::prefixes(flags, &plan, setup.lanes, offered)
        .map_err(|finding| record(admitted, *finding))?;
    let name = admitted.name.clone();
    let load = |source: Arc<CheckpointSource>| {
        let mut client = device.open_engine(source, &setup, |done, total, what| {
            tracing::info!(done, total, "{what} {name}");
            ControlFlow::Continue(())
        })?;
        let drafters = planned.open(&mut client, &name)?;
        Ok((client, drafters))
    };
    let tried = load(Arc::clone(&source))
        .and_then(|loaded| head_trial::settle(loaded, &source, trial, planned.head_is_asked_for(), load));
    let (client, drafters) = tried.map_err(|error| failure(admitted, engine_code(&error), &error))?;
    let info = client.info().map_err(|error| failure(admitted, Code::EngineFailed, &error))?;
    advance(admitted, State::EngineOpen);
    if !info.description.is_empty() {
        hint(&one_line(&info.description));
    }
    let context = u32::try_from(info.context).unwrap_or(u32::MAX).min(context);
    Ok(OpenEngine {
        client,
        lanes: setup.lanes.min(info.lanes),
        rows: PREFILL_ROWS.min(info.prefill_rows.max(64)),
        context,
        drafters,
        prefixes,
    })
}

/// A drafter that was asked for and cannot be had.
fn no_drafter(admitted: &mut Admitted, unplanned: Unplanned) -> Failure {
    match unplanned {
        Unplanned::Refused(error) => failure(admitted, engine_code(&error), &error),
        Unplanned::NoMemory(what) => {
            let finding = Finding::error(Code::MemoryPlan, what);
            let fix = "lower --parallel or --context, or serve with --drafter none and --mtp-drafts 0";
            record(admitted, finding.fix(fix))
        }
    }
}

fn does_not_fit(plan: &MemoryPlan, setup: &EngineSetup) -> Finding {
    const GIB: f64 = (1_u64 << 30) as f64;
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / GIB);
    let lanes = plan.lane_bytes.saturating_mul(setup.lanes.into());
    let wanted = plan.weight_bytes.saturating_add(plan.scratch_bytes).saturating_add(lanes);
    let (what, fix) = match plan.lanes {
        0 => ("the model does not fit into memory".to_owned(), "lower --context, or free memory"),
        fits => (
            format!("--parallel {}: {fits} requests of {} tokens fit", setup.lanes, setup.context),
            "lower --parallel or --context, or free memory",
        ),
    };
    let finding = Finding::error(Code::MemoryPlan, what)
        .wanted(format!(
            "{} ({} of weights, {} for each request of {} tokens)",
            gib(wanted),
            gib(plan.weight_bytes),
            gib(plan.lane_bytes),
            setup.context
        ))
        .fix(fix);
    match plan.available_bytes {
        TF_UNKNOWN => finding,
        available => finding.found(gib(available)),
    }
}

fn device_code(error: &PluginError) -> Code {
    match error.status {
        Status::Busy => Code::DeviceBusy,
        Status::Unsupported => Code::ArchUnsupported,
        Status::Permission => Code::DevicePermission,
        Status::OutOfMemory => Code::OutOfMemory,
        _ => Code::DeviceGone,
    }
}

fn engine_code(error: &PluginError) -> Code {
    match error.status {
        Status::Unsupported => Code::CapabilityLied,
        Status::InvalidArgument => Code::Checkpoint,
        Status::OutOfMemory => Code::MemoryPlan,
        _ => Code::EngineFailed,
    }
}

/// The plugin's own words, recorded with it.
fn failure(admitted: &mut Admitted, code: Code, error: &PluginError) -> Failure {
    record(admitted, Finding::error(code, one_line(&error.message)).found(format!("status {}", error.status)))
}

fn record(admitted: &mut Admitted, finding: Finding) -> Failure {
    let plugin = admitted.catalog.plugin_mut(admitted.index);
    plugin.record(finding.clone());
    Failure::from_finding(plugin.life.error().unwrap_or(&finding))
}

/// Ends the process without running exit handlers, which driver libraries are known to crash in.
/// Everything that must be on disk is there.
pub(super) fn end_process(code: i32) -> ! {
    use std::io::Write as _;
    // Nobody is left to hear of a failure.
    let _ = std::io::stdout().flush();
    // SAFETY: `_exit` ends the process at once; nothing is relied on afterwards.
    unsafe { libc::_exit(code) }
}
