//! The command line: words in, lines and an exit code out.
//!
//! Every message that a user sees of a failure is one line, `tensorfold: MESSAGE` on stderr. Exit
//! codes: 0 done, 1 refused or failed, 2 usage error. Nothing here panics on a user's mistake.

pub mod arguments;
mod capabilities;
mod convert;
mod help;
mod hub;
mod info;
mod models;
mod plugin_options;
pub mod plugins;
mod serve;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tensorfold_plugin_api::vocabulary::GivenFlags;

use self::arguments::{Invocation, ListArguments, Usage};
use crate::plugins::admit::Refusal;
use crate::plugins::catalog::Catalog;
use crate::plugins::environment::Environment;
use crate::plugins::lifecycle::{Finding, one_line};
use crate::plugins::machine::HostRelease;
use crate::plugins::plugin::Plugin;
use crate::plugins::search::SearchOptions;

/// Why a command ends without having done what was asked.
#[derive(Debug)]
pub struct Failure {
    /// What the process ends with.
    pub exit_code: u8,
    /// One line, without the program's name.
    pub message: String,
}

impl Failure {
    /// A refusal or a failure at run time: status 1.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { exit_code: 1, message: message.into() }
    }

    /// A request that was not admitted.
    pub(crate) fn from_refusal(refusal: Box<Refusal>) -> Failure {
        Failure { exit_code: refusal.exit_code(), message: refusal.to_string() }
    }

    /// A plugin that cannot be used.
    pub(crate) fn from_finding(finding: &Finding) -> Failure {
        Failure { exit_code: finding.code.exit_code(), message: finding.to_string() }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    /// The error's own sentence. Errors of this crate say everything in one line.
    fn from(error: E) -> Failure {
        Failure::new(error.to_string())
    }
}

/// Runs the program: reads the process once, then does what its words say.
pub fn main() -> ExitCode {
    // Before any thread: nothing reads the environment later.
    let environment = Environment::read();
    start_logging();
    let invocation = match arguments::read(std::env::args_os().skip(1)) {
        Ok(invocation) => invocation,
        Err(usage) => return report_usage(&usage),
    };
    if !matches!(invocation, Invocation::Print(_)) {
        for name in &environment.unknown {
            hint(&format!("{name} is set and nothing reads it; is it misspelt?"));
        }
    }
    match run(invocation, &environment) {
        Ok(code) => code,
        // A flag that is not served is a usage error, and reads like one.
        Err(Failure { exit_code: 2, message }) => report_usage(&Usage { command: "serve", message }),
        Err(failure) => {
            complain(&format!("tensorfold: {}", failure.message));
            ExitCode::from(failure.exit_code)
        }
    }
}

fn run(invocation: Invocation, environment: &Environment) -> Result<ExitCode, Failure> {
    match invocation {
        Invocation::Print(text) => print(&format!("{text}\n")),
        Invocation::ServeHelp(flags) => print(&help::serve(&flags, environment)?),
        Invocation::Serve(arguments) => serve::run(&arguments, environment),
        Invocation::Convert(arguments) => print(&convert::run(&arguments)?),
        Invocation::Info(arguments) => print(&info::run(&arguments, environment)?),
        Invocation::Pull(references) => hub::pull(&references).map(|()| ExitCode::SUCCESS),
        Invocation::Models(arguments) => {
            let catalog = find_plugins(&arguments.flags, environment)?;
            let chosen = of_backend(&catalog, &arguments)?;
            print(&match arguments.json {
                true => format!("{:#}\n", models::document(chosen)),
                false => models::table(chosen),
            })
        }
        Invocation::Capabilities(arguments) => {
            if !arguments.json {
                return Ok(report_usage(&Usage {
                    command: "capabilities",
                    message: "the following arguments are required: --json".into(),
                }));
            }
            let catalog = find_plugins(&arguments.flags, environment)?;
            let chosen = of_backend(&catalog, &arguments)?;
            print(&format!("{:#}\n", capabilities::document(chosen)))
        }
        Invocation::Plugins(command) => {
            let (mut out, mut err) = (std::io::stdout().lock(), std::io::stderr());
            let mut output = plugins::Output { out: &mut out, err: &mut err };
            Ok(ExitCode::from(plugins::run(*command, environment, &mut output)))
        }
    }
}

/// The plugins that take part, or those of the backend that was named.
fn of_backend<'a>(catalog: &'a Catalog, arguments: &ListArguments) -> Result<Vec<&'a Plugin>, Failure> {
    let Some(name) = named_backend(&arguments.flags) else { return Ok(active(catalog).collect()) };
    let answering =
        |plugin: &&Plugin| plugin.manifest.as_ref().is_some_and(|manifest| manifest.plugin.answers_to(name));
    let chosen: Vec<_> = active(catalog).filter(answering).collect();
    if chosen.is_empty() {
        // Says which names there are, and why a plugin of that name cannot be used.
        catalog.by_name(name)?;
    }
    Ok(chosen)
}

/// The backend that was asked for by name; none for `auto`.
pub(crate) fn named_backend(flags: &GivenFlags) -> Option<&str> {
    flags.text("--backend").filter(|name| *name != "auto")
}

/// Looks for plugins as the flags and the environment say. Opens no library.
///
/// # Errors
/// When something that was named explicitly is missing, unsafe or does not parse.
pub(crate) fn find_plugins(flags: &GivenFlags, environment: &Environment) -> Result<Catalog, Failure> {
    let options = SearchOptions {
        plugins: flags.texts("--plugin").map(PathBuf::from).collect(),
        plugin_paths: flags.texts("--plugin-path").map(PathBuf::from).collect(),
        plugins_file: flags.text("--plugins-file").map(PathBuf::from),
    };
    let host = HostRelease::current(flags.has("--allow-untested-host"));
    let catalog = Catalog::find(&options, environment, host, Path::new("/"))?;
    for note in catalog.notes() {
        hint(note);
    }
    Ok(catalog)
}

/// The plugins that take part.
pub(crate) fn active(catalog: &Catalog) -> impl Iterator<Item = &Plugin> {
    catalog.plugins().iter().filter(|plugin| plugin.is_active())
}

fn report_usage(usage: &Usage) -> ExitCode {
    complain(usage.line());
    complain(&format!("{}: error: {}", usage.program(), usage.message));
    ExitCode::from(2)
}

/// Writes a line to stderr: one line, whatever names of files and arguments hold. When that fails there is nobody
/// left to tell.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", one_line(line));
}

/// Tells the user something in passing.
pub(crate) fn hint(line: &str) {
    complain(&format!("[tensorfold] {line}"));
}

/// Writes text to stdout. A reader that has gone, as in `tensorfold models | head -1`, is no failure.
fn print(text: &str) -> Result<ExitCode, Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::new(format!("cannot write to stdout: {error}"))),
    }
}

/// Logs go to stderr; `TENSORFOLD_LOG` filters them (`info`, `tensorfold=debug`), and
/// `TENSORFOLD_LOG_FORMAT=json` makes them documents.
fn start_logging() {
    use tracing_subscriber::{EnvFilter, fmt};
    let filter = EnvFilter::builder()
        .with_default_directive(tracing_subscriber::filter::LevelFilter::WARN.into())
        .with_env_var("TENSORFOLD_LOG")
        .from_env_lossy();
    let base = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let json = std::env::var_os("TENSORFOLD_LOG_FORMAT").is_some_and(|format| format == "json");
    let started = if json { base.json().try_init() } else { base.with_target(false).try_init() };
    // Only a test that starts logging itself gets here twice.
    drop(started);
}
