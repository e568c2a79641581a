//! `tensorfold serve MODEL`: from a typed request to a server that answers.
//!
//! The order of steps is the product's promise. What the command line and the manifest decide is
//! decided first; the model's metadata comes next, then its download where it is not here yet, then
//! the library, then the device, then the weights. Each step can end the command with one line, and
//! nothing of a later step has happened by then.

pub(super) mod admission;
mod auto;
pub(super) mod drafter;
mod drafting;
mod head_trial;
mod keeping;
mod opening;
mod options;
#[cfg(test)]
mod tests;
mod trial;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfold_plugin_api::host::{DeviceClient, GAVE_UP};
use tensorfold_plugin_api::vocabulary::GivenFlags;

use self::admission::Admitted;
use self::drafter::NamedDrafter;
use super::arguments::ModelArguments;
use super::{Failure, hint};
use crate::checkpoint::{Checkpoint, CheckpointSource, GenerationDefaults};
use crate::engine::{EngineHandle, EngineOptions, PluginEngine};
use crate::plugins::environment::Environment;
use crate::plugins::load;
use crate::server::{ServeEnvironment, ServedModel, Server};

/// How long the engine may take to end a round once the server has stopped.
const ENGINE_STOP_LIMIT: Duration = Duration::from_secs(5);

/// Serves until it is told to stop.
///
/// # Errors
/// One line: what was wanted, what was found, what to do.
pub(in crate::cli) fn run(
    arguments: &ModelArguments,
    environment: &Environment,
) -> Result<ExitCode, Failure> {
    let flags = &arguments.flags;
    // From the manifest and the command line alone, then from the model's metadata.
    let mut admitted = admission::admit(arguments, environment)?;
    for line in &admitted.lines {
        hint(line);
    }
    // Nothing that the metadata tells speaks against the model: now it is worth its download. Nobody should wait for
    // that only to hear that a file of the command line is missing, the port is taken, or the driver is too old.
    let mut prepared = None;
    let mut drafter = admitted.drafter.take();
    let mut remote = admitted.remote.take();
    let drafter_is_remote = drafter.as_ref().is_some_and(|drafter| drafter.is_remote());
    if remote.is_some() || drafter_is_remote {
        options::check_template_file(flags)?;
        match trial::run(&mut admitted, flags) {
            Err(failure) if !admitted.may_fall_back(flags) => return Err(failure),
            // A plugin that failed here fails once more below, where the processor takes its place.
            Err(_) | Ok(()) => {}
        }
        let serve_options = options::serve_options(flags, &admitted.name, &GenerationDefaults::default());
        prepared = Some(Server::prepare(serve_options, &ServeEnvironment::read())?);
    }
    // A signal ends a download at once: no metadata may be in the way by then.
    if let Some(remote) = &mut remote {
        remote.forget_metadata();
    }
    if let Some(drafter) = &mut drafter {
        drafter.forget_metadata();
    }
    // The smaller one first: what speaks against it is heard sooner.
    let drafter = drafter.map_or(Ok(None), |drafter| external(*drafter))?;
    if let Some(remote) = remote {
        admitted.directory = remote.download()?;
    }
    // Everything that can fail without the plugin: tokenizer, template, tensors, keys, address.
    let text = options::text_model(flags, &admitted.directory)?;
    for line in options::check_thinking(flags, &text)? {
        hint(&line);
    }
    let checkpoint = Checkpoint::open(&admitted.directory)?;
    let serve_options = options::serve_options(flags, &admitted.name, &checkpoint.generation);
    let stop_tokens = checkpoint.stop_tokens.iter().copied().collect();
    let server = match prepared {
        // Only now the checkpoint could say how it wants to be sampled.
        Some(server) => server.with_sampling(serve_options.sampling),
        None => Server::prepare(serve_options, &ServeEnvironment::read())?,
    };
    // Only now code of the plugin runs.
    // What was opened decides how the process ends, also when something else serves.
    let mut accelerator = admitted.accelerator;
    let mut started = Instant::now();
    let (plugin, device) = match open(&mut admitted, environment, flags) {
        Err(failure) if admitted.may_fall_back(flags) => {
            admitted = admission::fall_back(arguments, admitted, failure)?;
            for line in &admitted.lines {
                hint(line);
            }
            accelerator = true;
            started = Instant::now();
            open(&mut admitted, environment, flags)?
        }
        opened => opened?,
    };
    let source = Arc::new(CheckpointSource::new(checkpoint));
    let trial = text.encode(head_trial::TEXT, true)?;
    let engine = opening::open_engine(&mut admitted, &device, source.clone(), drafter, &trial, flags)?;
    let engine_options = EngineOptions {
        context: engine.context,
        lanes: engine.lanes,
        drafting: options::drafting(flags),
        prefixes: engine.prefixes,
        ..EngineOptions::default()
    };
    let rows = PluginEngine::new(
        engine.client,
        admitted.engine_name(),
        engine.rows,
        source.checkpoint().spec.selectable_vocabulary,
        engine.drafters,
    )?;
    let handle = EngineHandle::start(Box::new(rows), &engine_options)
        .map_err(|error| Failure::new(format!("no thread for the engine: {error}")))?;
    opening::advance(&mut admitted, crate::plugins::lifecycle::State::Serving);
    let model = ServedModel {
        text,
        stop_tokens,
        load_seconds: started.elapsed().as_secs_f64(),
        fallback: admitted.fallback.clone(),
    };
    let served = server.run(model, handle.clone());
    handle.stop(ENGINE_STOP_LIMIT);
    drop(handle);
    drop(device);
    let ended = finish(&admitted, &plugin);
    served?;
    // Exit handlers must not run while a thread is still inside of the plugin.
    if !ended || accelerator && !environment.set.contains_key("TENSORFOLD_NORMAL_EXIT") {
        opening::end_process(0);
    }
    Ok(ExitCode::SUCCESS)
}

/// Gets a drafter ready to be loaded. One that nobody named is left out with a line where it cannot be had.
fn external(drafter: NamedDrafter) -> Result<Option<drafting::External>, Failure> {
    let named = drafter.is_by_user();
    match drafter.open() {
        Ok(files) => Ok(Some(drafting::External { files: Arc::new(files), named })),
        Err(failure) if named => Err(failure),
        Err(failure) => {
            hint(&format!("no external drafter drafts: {}", failure.message));
            Ok(None)
        }
    }
}

/// Opens the plugin and a device of it: first in a child, where it can do no harm.
fn open(
    admitted: &mut Admitted,
    environment: &Environment,
    flags: &GivenFlags,
) -> Result<(opening::OpenPlugin, Arc<DeviceClient>), Failure> {
    trial::run(admitted, flags)?;
    let plugin = opening::open_plugin(admitted, environment)?;
    match opening::open_device(admitted, &plugin, flags) {
        Ok(device) => Ok((plugin, device)),
        Err(failure) => {
            finish(admitted, &plugin);
            Err(failure)
        }
    }
}

/// Ends the plugin and says whether it did end. One that does not end well is a line in the log: the work is done.
fn finish(admitted: &Admitted, plugin: &opening::OpenPlugin) -> bool {
    match plugin.client.shutdown_within(load::SHUTDOWN_LIMIT) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(plugin = admitted.plugin_name(), %error, "the plugin did not end well");
            error.detail(GAVE_UP).is_none()
        }
    }
}
