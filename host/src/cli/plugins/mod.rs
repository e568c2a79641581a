//! `tensorfold plugins ...`: what is installed, what it can do, and what stands in its way.
//!
//! Only `check` lets plugin code run, and only in a child process. Output is sorted and stable, one fact a line; time
//! stamps stand in JSON alone. Documents carry `schema` and only ever grow.
//!
//! Ends with 0, with 1 for a refusal or a failure, and with 2 for a usage error.

mod check;
mod describe;
mod list;
mod lock;
mod show;
mod why;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use tensorfold_plugin_api::vocabulary::GivenFlags;

use crate::plugins::catalog::Catalog;
use crate::plugins::environment::Environment;
use crate::plugins::lifecycle::{one_line, show_path};
use crate::plugins::machine::HostRelease;
use crate::plugins::search::{self, SearchOptions};
use crate::plugins::{discover, probe};

/// Look after plugins.
#[derive(Clone, Debug, Parser)]
#[command(name = "plugins", about = "Look after plugins")]
pub struct PluginsCommand {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Where to look.
    #[command(flatten)]
    pub search: SearchArguments,
}

/// Where to look for plugins besides the standard places.
#[derive(Args, Clone, Debug, Default)]
pub struct SearchArguments {
    /// A plugin's sidecar or library; may be repeated.
    #[arg(long = "plugin", value_name = "FILE", global = true)]
    pub plugins: Vec<PathBuf>,
    /// A folder with plugins; may be repeated.
    #[arg(long = "plugin-path", value_name = "DIR", global = true)]
    pub plugin_paths: Vec<PathBuf>,
    /// Read this file in place of the user's and the system's plugins.toml.
    #[arg(long = "plugins-file", value_name = "FILE", global = true)]
    pub plugins_file: Option<PathBuf>,
    /// Accept plugins that were not tested with this release.
    #[arg(long = "allow-untested-host", global = true)]
    pub allow_untested_host: bool,
}

/// The verbs.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// List plugins: id, version, backend, state, reason, path.
    List {
        /// Also those that are shadowed, masked or switched off.
        #[arg(long)]
        all: bool,
        /// Print a JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Show everything that is known about one plugin.
    Show {
        /// Id, id/variant, backend or alias.
        id: String,
        /// Print a JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Check a plugin, and try it in a child process.
    Check {
        /// Id, id/variant, backend or alias; or a sidecar or library.
        target: String,
        /// Hold the manifest and the library to what vendors should keep to.
        #[arg(long)]
        strict: bool,
        /// Try again what crashed or hung before.
        #[arg(long)]
        retry: bool,
        /// Do not let plugin code run.
        #[arg(long)]
        no_probe: bool,
        /// Seconds that the child may take.
        #[arg(long, value_name = "SECONDS", default_value_t = probe::PROBE_LIMIT.as_secs(),
              value_parser = clap::value_parser!(u64).range(1..=86_400), allow_negative_numbers = true)]
        limit: u64,
        /// Print a JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Print the standard folders, one a line.
    Path {
        /// Only the folder that a vendor installs into.
        #[arg(long)]
        install: bool,
        /// Print a JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Say what `serve` would do with these flags, without doing it.
    Why(why::WhyArguments),
    /// Print a library's manifest, as its sidecar must be.
    Manifest {
        /// The library.
        #[arg(long = "from", value_name = "LIBRARY")]
        from: PathBuf,
        /// Print a JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Pin the plugins that are installed.
    Lock {
        /// Also replace pins that differ.
        #[arg(long)]
        update: bool,
        /// Print a JSON document.
        #[arg(long)]
        json: bool,
    },
    /// The child's side of `check`.
    #[command(hide = true)]
    ProbeChild {
        /// The sidecar or library that the parent found.
        manifest: PathBuf,
    },
}

/// Where output goes.
pub struct Output<'a> {
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
}

impl Output<'_> {
    /// A refusal or failure: one line in the program's shape, and status 1.
    fn fail(&mut self, message: impl std::fmt::Display) -> std::io::Result<u8> {
        writeln!(self.err, "tensorfold: {}", one_line(&message.to_string()))?;
        Ok(1)
    }

    /// A document.
    fn json(&mut self, document: &serde_json::Value) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(document).map_err(std::io::Error::from)?;
        writeln!(self.out, "{text}")
    }
}

/// Runs a verb and returns the exit status. A reader that went away ends it well.
pub fn run(command: PluginsCommand, environment: &Environment, output: &mut Output<'_>) -> u8 {
    match run_verb(command, environment, output, Path::new("/")) {
        Ok(status) => status,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            // Where standard error is gone as well there is nobody left to tell.
            let _ = writeln!(output.err, "tensorfold: cannot write: {error}");
            1
        }
    }
}

fn run_verb(
    command: PluginsCommand,
    environment: &Environment,
    output: &mut Output<'_>,
    root: &Path,
) -> std::io::Result<u8> {
    let mut options = SearchOptions {
        plugins: command.search.plugins,
        plugin_paths: command.search.plugin_paths,
        plugins_file: command.search.plugins_file,
    };
    match &command.verb {
        Verb::Path { install, json } => return print_paths(environment, *install, *json, output, root),
        Verb::Manifest { from, json } => return print_manifest(from, *json, output),
        Verb::Check { target, .. } if names_a_file(target) => options.plugins.push(target.into()),
        _ => {}
    }
    let host = HostRelease::current(command.search.allow_untested_host);
    let mut catalog = match Catalog::find(&options, environment, host, root) {
        Ok(catalog) => catalog,
        Err(error) => return output.fail(error),
    };
    // What was skipped and why; `list` has them in what it prints, and the child's parent has said them.
    if !matches!(command.verb, Verb::List { .. } | Verb::ProbeChild { .. }) {
        for note in catalog.notes() {
            writeln!(output.err, "[tensorfold] {note}")?;
        }
    }
    match command.verb {
        Verb::List { all, json } => list::run(&mut catalog, all, json, output),
        Verb::Show { id, json } => show::run(&mut catalog, &id, json, output),
        Verb::Check { target, strict, retry, no_probe, limit, json } => {
            let request = check::Request { target: &target, strict, retry, probe: !no_probe, limit, json };
            check::run(&mut catalog, &request, output)
        }
        Verb::Why(arguments) => why::run(&mut catalog, &arguments, output),
        Verb::Lock { update, json } => lock::run(&mut catalog, update, json, output),
        Verb::ProbeChild { manifest } => probe_child(&mut catalog, &manifest, output),
        Verb::Path { .. } | Verb::Manifest { .. } => Ok(0),
    }
}

/// `check` takes an id or a file; what holds a separator or ends as a plugin's files do is a file.
fn names_a_file(target: &str) -> bool {
    let ends = [".so", ".dylib", discover::SIDECAR_SUFFIX].iter().any(|end| target.ends_with(end));
    ends || (target.contains('/') && Path::new(target).exists())
}

fn print_paths(
    environment: &Environment,
    install: bool,
    json: bool,
    output: &mut Output<'_>,
    root: &Path,
) -> std::io::Result<u8> {
    let install_folder = search::install_folder(root);
    let folders = search::standard_folders(environment, root);
    if json {
        let folders: Vec<_> = folders
            .iter()
            .map(|(rank, path)| serde_json::json!({"rank": rank.as_str(), "path": path}))
            .collect();
        output.json(&serde_json::json!({
            "schema": "tensorfold.plugins.path/1", "install": install_folder, "folders": folders,
        }))?;
    } else if install {
        writeln!(output.out, "{}", install_folder.display())?;
    } else {
        for (_, folder) in folders {
            writeln!(output.out, "{}", folder.display())?;
        }
    }
    Ok(0)
}

fn print_manifest(library: &Path, json: bool, output: &mut Output<'_>) -> std::io::Result<u8> {
    let bytes = match discover::embedded_manifest(library, "name a plugin's library") {
        Ok(bytes) => bytes,
        Err(finding) => return output.fail(finding),
    };
    let parsed = match tensorfold_plugin_api::manifest::Manifest::parse(&bytes, &show_path(library)) {
        Ok(parsed) => parsed,
        Err(errors) => return output.fail(errors),
    };
    if json {
        output.json(&serde_json::json!({
            "schema": "tensorfold.plugins.manifest/1", "library": library, "manifest": parsed.manifest,
            "text": String::from_utf8_lossy(&bytes),
        }))?;
    } else {
        output.out.write_all(&bytes)?;
    }
    Ok(0)
}

fn probe_child(catalog: &mut Catalog, manifest: &Path, output: &mut Output<'_>) -> std::io::Result<u8> {
    let found = catalog.plugins().iter().position(|plugin| plugin.manifest_path == manifest);
    let Some(index) = found else {
        return output.fail(format!("{}: not among the plugins that are found", show_path(manifest)));
    };
    output.out.flush()?;
    let mut document = probe::keep_stdout()?;
    let report = probe::run_child(catalog, index);
    serde_json::to_writer(&mut document, &report).map_err(std::io::Error::from)?;
    Ok(0)
}

/// The plugin of this name, hidden ones included when only they answer; by id, id/variant, backend or alias.
fn find(catalog: &Catalog, name: &str) -> Result<usize, String> {
    match catalog.by_name(name) {
        Ok(index) => Ok(index),
        Err(error) => {
            let hidden = catalog.plugins().iter().position(|plugin| {
                plugin.name() == name
                    || plugin.manifest.as_ref().is_some_and(|manifest| manifest.plugin.answers_to(name))
                    || show_path(&plugin.manifest_path) == name
            });
            match (&error, hidden) {
                (crate::plugins::select::SelectError::Ambiguous { .. }, _) | (_, None) => {
                    // The name stood alone here, without the flag that the sentence names.
                    let sentence = error.to_string();
                    Err(sentence.strip_prefix("--backend ").unwrap_or(&sentence).to_owned())
                }
                (_, Some(index)) => Ok(index),
            }
        }
    }
}

/// The flags of a request that only names a backend.
fn no_flags() -> GivenFlags {
    GivenFlags::new()
}

#[cfg(test)]
mod tests;
