//! From words to a typed command line.
//!
//! The flags of `serve` come from the one table of the vocabulary; nothing here lists them a
//! second time. Every usage error has the wording that front ends of this program know.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use tensorfold_hub::Reference;
use tensorfold_plugin_api::vocabulary::{FLAGS, FlagGroup, FlagSpec, GivenFlags};

use super::convert::{self, ConvertArguments};
use super::plugins::PluginsCommand;

/// A command line that can not be run: the command it was for, and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The subcommand, empty when there is none.
    pub command: &'static str,
    /// One line.
    pub message: String,
}

/// What the user asked for.
#[derive(Debug)]
pub enum Invocation {
    /// Serve a model.
    Serve(ModelArguments),
    /// List families, formats and drafters by backend.
    Models(ListArguments),
    /// Tell what a model is and who can run it.
    Info(ModelArguments),
    /// Download models.
    Pull(Vec<Reference>),
    /// The machine-readable list of what this program and its plugins can do.
    Capabilities(ListArguments),
    /// Make a checkpoint that can be served of one in another form.
    Convert(ConvertArguments),
    /// Look after plugins.
    Plugins(Box<PluginsCommand>),
    /// Print this text on stdout and end well.
    Print(String),
    /// Print the help of `serve`, for a backend when one was named.
    ServeHelp(GivenFlags),
}

/// A command about one model.
#[derive(Debug)]
pub struct ModelArguments {
    /// Folder or repository.
    pub model: String,
    /// Flags, in their order.
    pub flags: GivenFlags,
    /// Whether a JSON document was asked for.
    pub json: bool,
}

/// A command about everything that is installed.
#[derive(Debug)]
pub struct ListArguments {
    /// Flags, in their order.
    pub flags: GivenFlags,
    /// Whether a JSON document was asked for.
    pub json: bool,
}

const ABOUT: &str = "An LLM server whose compute backends are plugins";

/// Reads the words after the program's name.
///
/// # Errors
/// [`Usage`], for the user to read; the command ends with status 2.
pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Invocation, Usage> {
    let words: Vec<OsString> = words.into_iter().collect();
    let names = std::iter::once(OsString::from("tensorfold")).chain(words.iter().cloned());
    let matches = match command().try_get_matches_from(names) {
        Ok(matches) => matches,
        Err(error) => return explain(&error, &words),
    };
    if matches.get_flag("version") {
        return Ok(Invocation::Print(format!("tensorfold {}", env!("CARGO_PKG_VERSION"))));
    }
    let Some((name, found)) = matches.subcommand() else {
        if matches.get_flag("help") {
            return Ok(Invocation::Print(command().render_help().to_string().trim_end().to_owned()));
        }
        return Err(Usage {
            command: "",
            message: "the following arguments are required: command (try tensorfold --help)".into(),
        });
    };
    let usage = |message: String| Usage { command: known(name), message };
    if name == "plugins" {
        let before = given(&matches, found).map_err(|error| usage(error.0))?;
        return match plugins_command(found, &before) {
            Ok(command) => Ok(Invocation::Plugins(Box::new(command))),
            Err(error) => explain(&error, &words),
        };
    }
    if name == "convert" && !found.get_flag("help") {
        return convert::from_matches(found).map(Invocation::Convert).map_err(usage);
    }
    let flags = given(&matches, found).map_err(|error| usage(error.0))?;
    let help = found.get_flag("help");
    if help && name == "serve" {
        return Ok(Invocation::ServeHelp(flags));
    }
    if help {
        let mut root = command();
        root.build();
        let text = root.find_subcommand_mut(name).map(|found| found.render_help().to_string());
        return Ok(Invocation::Print(text.unwrap_or_default().trim_end().to_owned()));
    }
    flags.check_together().map_err(|error| usage(error.0))?;
    if name == "pull" {
        return repositories(found).map(Invocation::Pull).map_err(usage);
    }
    let json = name != "serve" && found.get_flag("json");
    match name {
        "models" => Ok(Invocation::Models(ListArguments { flags, json })),
        "capabilities" => Ok(Invocation::Capabilities(ListArguments { flags, json })),
        _ => {
            let Some(model) = found.get_one::<String>("model").cloned().filter(|model| !model.is_empty())
            else {
                return Err(usage("the following arguments are required: model".into()));
            };
            let arguments = ModelArguments { model, flags, json };
            Ok(if name == "serve" { Invocation::Serve(arguments) } else { Invocation::Info(arguments) })
        }
    }
}

/// The whole command, for parsing, help and completions.
pub fn command() -> Command {
    let help = || switch("help").short('h').help("this text");
    let json = || switch("json").help("print a JSON document");
    let model =
        || Arg::new("model").value_name("MODEL").help("folder, or repository as owner/name[@revision]");
    let plugin_flags = || arguments(|flag| flag.group == FlagGroup::Plugins && finds_plugins(flag));
    let base = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).disable_help_flag(true).disable_version_flag(true).arg(help())
    };
    base("tensorfold", ABOUT)
        .subcommand_required(false)
        .disable_help_subcommand(true)
        .arg(switch("version").short('V').help("print the version"))
        .args(arguments(finds_plugins))
        .subcommand(base("serve", "Serve a model over OpenAI's API").arg(model()).args(arguments(|_| true)))
        .subcommand(
            base("models", "List families, formats and drafters by backend").arg(json()).args(plugin_flags()),
        )
        .subcommand(
            base("info", "Tell what a model is and which backends can run it")
                .arg(model())
                .arg(json())
                .args(plugin_flags()),
        )
        .subcommand(
            base("convert", "Make a checkpoint that can be served of a GGUF file or of float weights")
                .args(convert::arguments()),
        )
        .subcommand(
            base("pull", "Download models from the Hugging Face Hub")
                .arg(
                    Arg::new("repository")
                        .value_name("REPOSITORY")
                        .action(ArgAction::Append)
                        .help("owner/name[@revision], one or more"),
                )
                .args(plugin_flags()),
        )
        .subcommand(
            base("capabilities", "What this program and its plugins can do, for other programs")
                .arg(json())
                .args(plugin_flags()),
        )
        .subcommand(
            <PluginsCommand as clap::CommandFactory>::command()
                .name("plugins")
                // Help is off for everything below the root, so the verbs get theirs from here.
                .arg(help().action(ArgAction::Help).global(true)),
        )
}

/// The repositories of `pull`.
fn repositories(found: &clap::ArgMatches) -> Result<Vec<Reference>, String> {
    let given = found.get_many::<String>("repository").into_iter().flatten();
    let read: Result<Vec<Reference>, _> = given.map(|text| text.parse()).collect();
    match read.map_err(|error: tensorfold_hub::Malformed| error.to_string())? {
        none if none.is_empty() => Err("the following arguments are required: repository".into()),
        some => Ok(some),
    }
}

/// The verbs read their flags themselves; those that were typed before `plugins` count as if they stood behind it.
fn plugins_command(found: &clap::ArgMatches, before: &GivenFlags) -> Result<PluginsCommand, clap::Error> {
    use clap::FromArgMatches as _;
    if before.has("--backend") {
        let mut error = clap::Error::new(ErrorKind::UnknownArgument);
        error.insert(ContextKind::InvalidArg, ContextValue::String("--backend".into()));
        return Err(error);
    }
    let mut command = PluginsCommand::from_arg_matches(found)?;
    let search = &mut command.search;
    search.plugins.splice(0..0, before.texts("--plugin").map(PathBuf::from));
    search.plugin_paths.splice(0..0, before.texts("--plugin-path").map(PathBuf::from));
    search.plugins_file =
        search.plugins_file.take().or_else(|| before.text("--plugins-file").map(PathBuf::from));
    Ok(command)
}

/// Flags that every command takes which looks at plugins.
fn finds_plugins(flag: &FlagSpec) -> bool {
    matches!(flag.name, "--backend" | "--plugin" | "--plugin-path" | "--plugins-file")
}

fn switch(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

fn arguments(which: impl Fn(&FlagSpec) -> bool) -> Vec<Arg> {
    FLAGS
        .iter()
        .filter(|flag| which(flag))
        .map(|flag| {
            let arg = Arg::new(flag.name)
                .long(flag.name.trim_start_matches('-'))
                .help(help_line(flag))
                .help_heading(flag.group.heading())
                .hide(!flag.in_help());
            if flag.is_switch() {
                arg.action(ArgAction::Count)
            } else {
                arg.action(ArgAction::Append).value_name(flag.value_name).allow_negative_numbers(true)
            }
        })
        .collect()
}

fn help_line(flag: &FlagSpec) -> String {
    match flag.default {
        "" => flag.help.to_owned(),
        default => format!("{} [default: {default}]", flag.help),
    }
}

/// The flags of both levels in the order in which they were typed.
fn given(
    root: &clap::ArgMatches,
    found: &clap::ArgMatches,
) -> Result<GivenFlags, tensorfold_plugin_api::vocabulary::UsageError> {
    let mut uses: Vec<(usize, usize, &str, Option<&str>)> = Vec::new();
    for (level, matches) in [root, found].into_iter().enumerate() {
        for flag in FLAGS {
            if !matches.try_contains_id(flag.name).unwrap_or(false) {
                continue;
            }
            let Some(mut indices) = matches.indices_of(flag.name) else { continue };
            if flag.is_switch() {
                if matches.get_count(flag.name) > 0 {
                    let last = indices.next_back().unwrap_or(0);
                    uses.push((level, last, flag.name, None));
                }
            } else {
                let values = matches.get_many::<String>(flag.name).into_iter().flatten();
                uses.extend(
                    indices.zip(values).map(|(at, value)| (level, at, flag.name, Some(value.as_str()))),
                );
            }
        }
    }
    uses.sort();
    let mut flags = GivenFlags::new();
    for (_, _, name, value) in uses {
        flags.push(name, value)?;
    }
    Ok(flags)
}

/// One of the names that [`command`] has, with a lifetime of its own.
fn known(name: &str) -> &'static str {
    ["serve", "models", "info", "pull", "convert", "capabilities", "plugins"]
        .into_iter()
        .find(|known| *known == name)
        .unwrap_or("")
}

/// Turns clap's errors into the wording of this program.
fn explain(error: &clap::Error, words: &[OsString]) -> Result<Invocation, Usage> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Ok(Invocation::Print(error.render().to_string().trim_end().to_owned()));
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(", ")),
        _ => None,
    };
    // clap writes arguments as `--port <PORT>` and `--flag...`; the wording names the flag alone.
    let argument = context(ContextKind::InvalidArg).unwrap_or_default();
    let flag = argument.split_whitespace().next().unwrap_or_default().trim_end_matches("...").to_owned();
    let value = context(ContextKind::InvalidValue).unwrap_or_default();
    let message = match error.kind() {
        ErrorKind::UnknownArgument => format!("unrecognized arguments: {argument}"),
        ErrorKind::InvalidSubcommand => {
            let given = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("argument command: invalid choice: '{given}'")
        }
        ErrorKind::TooManyValues => format!("argument {flag}: ignored explicit argument '{value}'"),
        ErrorKind::InvalidValue if value.is_empty() => format!("argument {flag}: expected one argument"),
        ErrorKind::InvalidValue => format!("argument {flag}: invalid choice: '{value}'"),
        ErrorKind::ValueValidation => format!("argument {flag}: invalid value: '{value}'"),
        ErrorKind::MissingRequiredArgument => format!("the following arguments are required: {argument}"),
        ErrorKind::InvalidUtf8 => "an argument is not valid UTF-8".to_owned(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            "the following arguments are required: command (try --help)".to_owned()
        }
        _ => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    };
    let command = words.iter().filter_map(|word| word.to_str()).map(known).find(|name| !name.is_empty());
    Err(Usage { command: command.unwrap_or(""), message })
}

impl Usage {
    /// What stands above the error: how the command is used.
    pub fn line(&self) -> &'static str {
        match self.command {
            "serve" => "usage: tensorfold [--backend NAME] serve MODEL [options]",
            "models" => "usage: tensorfold models [--json]",
            "info" => "usage: tensorfold info MODEL [--json]",
            "pull" => "usage: tensorfold pull REPOSITORY[@REVISION] ...",
            "convert" => {
                "usage: tensorfold convert SOURCE OUTPUT [--bits N] [--group-size N] [--dtype TYPE] [--force]"
            }
            "capabilities" => "usage: tensorfold capabilities --json",
            "plugins" => "usage: tensorfold plugins COMMAND [options]",
            _ => {
                "usage: tensorfold [--backend NAME] {serve,models,info,pull,convert,capabilities,plugins} ..."
            }
        }
    }

    /// The program's name and the command, as the error names them.
    pub fn program(&self) -> String {
        match self.command {
            "" => "tensorfold".to_owned(),
            command => format!("tensorfold {command}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation, Usage> {
        read(line.split_whitespace().map(OsString::from))
    }

    fn message(line: &str) -> String {
        match parse(line) {
            Err(usage) => usage.message,
            Ok(invocation) => panic!("{line} was taken as {invocation:?}"),
        }
    }

    fn serve(line: &str) -> ModelArguments {
        match parse(line) {
            Ok(Invocation::Serve(arguments)) => arguments,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_backend_may_stand_before_or_after_the_command() {
        for line in [
            "--backend rocm serve M",
            "serve M --backend rocm",
            "serve --backend=rocm M",
            "--backend rocm serve M --backend rocm",
        ] {
            assert_eq!(serve(line).flags.text("--backend"), Some("rocm"), "{line}");
        }
        assert_eq!(
            message("--backend cpu serve M --backend rocm"),
            "argument --backend: one backend at a time, not 'cpu' and 'rocm'"
        );
    }

    #[test]
    fn usage_errors_have_their_wording() {
        for (line, wanted) in [
            ("serve M --colour red", "unrecognized arguments: --colour"),
            ("serve M extra", "unrecognized arguments: extra"),
            ("serve M --port", "argument --port: expected one argument"),
            ("serve M --port --name x", "argument --port: expected one argument"),
            ("serve M --port x", "argument --port: invalid port: 'x'"),
            ("serve M --port 65536", "argument --port: invalid port: '65536'"),
            ("serve M --top-k x", "argument --top-k: invalid int value: 'x'"),
            ("serve M --temperature x", "argument --temperature: invalid float value: 'x'"),
            ("serve M --no-drafts=yes", "argument --no-drafts: ignored explicit argument 'yes'"),
            ("serve M --precision half", "argument --precision: invalid choice: 'half'"),
            ("serve", "the following arguments are required: model"),
            ("serve --port 1", "the following arguments are required: model"),
            ("serve M --tp 2 --rank 2", "argument --rank: 2 is not below --tp 2"),
            ("serve M --tp 3", "argument --tp: invalid choice: '3'"),
            ("serve M --policy x", "argument --policy: expected key=value: 'x'"),
            ("serve M --mtp-drafts 65", "argument --mtp-drafts: a count from 0 to 64: '65'"),
            ("serve M --mtp-confidence 2", "argument --mtp-confidence: a probability in [0, 1]: '2'"),
            ("serve M --checkpoint-slots -1", "argument --checkpoint-slots: a count from 0: '-1'"),
            ("serve M --compact-at 0", "argument --compact-at: expected auto or a fraction in (0, 1]: '0'"),
            ("serve M --vision-urls", "--vision-urls needs --vision"),
            ("convert", "the following arguments are required: source"),
            ("convert a", "the following arguments are required: output"),
            ("convert a b c", "unrecognized arguments: c"),
            ("convert a b --bits 7", "argument --bits: invalid choice: '7'"),
            ("convert a b --bits", "argument --bits: expected one argument"),
            ("convert a b --group-size 64", "--group-size needs --bits"),
            ("convert a b --bits 4 --group-size 48", "argument --group-size: invalid choice: '48'"),
            ("convert a b --dtype f64", "argument --dtype: invalid choice: 'f64'"),
            ("run M", "argument command: invalid choice: 'run'"),
            ("pull", "the following arguments are required: repository"),
            ("pull o/n --json", "unrecognized arguments: --json"),
        ] {
            assert_eq!(message(line), wanted, "{line}");
        }
    }

    #[test]
    fn repositories_are_read_before_anything_is_asked() {
        let pulled = |line: &str| match parse(line) {
            Ok(Invocation::Pull(references)) => {
                references.iter().map(ToString::to_string).collect::<Vec<_>>()
            }
            other => panic!("{line}: {other:?}"),
        };
        assert_eq!(pulled("pull o/n o/m@refs/pr/1"), ["o/n", "o/m@refs/pr/1"]);
        for line in ["pull name", "pull o/n/x", "pull o/n ../x"] {
            assert!(message(line).contains("is not a Hugging Face repo id: owner/name"), "{line}");
            assert_eq!(parse(line).unwrap_err().command, "pull");
        }
        assert!(message("pull o/n@a..b").starts_with("'a..b' is not a revision"));
    }

    #[test]
    fn values_that_begin_with_a_dash_or_are_empty_are_values() {
        assert_eq!(serve("serve M --temperature -1").flags.number("--temperature"), Some(-1.0));
        assert_eq!(serve("serve M --drafter=").flags.named_drafter(), None);
        let words = ["serve", "M", "--drafter", ""].map(OsString::from);
        assert!(
            matches!(read(words), Ok(Invocation::Serve(arguments)) if arguments.flags.named_drafter().is_none())
        );
    }

    #[test]
    fn the_last_use_counts_across_flags_too() {
        assert_eq!(serve("serve M --thinking --no-thinking").flags.thinking(), Some(false));
        assert_eq!(serve("serve M --no-thinking --thinking").flags.thinking(), Some(true));
        assert_eq!(serve("serve M --port 1 --port 2").flags.integer("--port"), Some(2));
        assert_eq!(
            serve("serve M --alias a --alias b").flags.texts("--alias").collect::<Vec<_>>(),
            ["a", "b"]
        );
    }

    #[test]
    fn help_and_version_are_printed_not_refused() {
        assert!(matches!(parse("--version"), Ok(Invocation::Print(text)) if text.starts_with("tensorfold ")));
        assert!(matches!(parse("--help"), Ok(Invocation::Print(text)) if text.contains("serve")));
        assert!(matches!(parse("info --help"), Ok(Invocation::Print(text)) if text.contains("MODEL")));
        assert!(matches!(parse("plugins --help"), Ok(Invocation::Print(text)) if text.contains("manifest")));
        assert!(
            matches!(parse("plugins check -h"), Ok(Invocation::Print(text)) if text.contains("--no-probe"))
        );
        assert!(
            matches!(parse("serve --help --backend rocm"), Ok(Invocation::ServeHelp(flags)) if flags.text("--backend") == Some("rocm"))
        );
    }

    #[test]
    fn a_conversion_takes_the_names_of_mlxs_converter_too() {
        let convert = |line: &str| match parse(line) {
            Ok(Invocation::Convert(arguments)) => arguments,
            other => panic!("{line}: {other:?}"),
        };
        let own = convert("convert m.gguf out --bits 8 --group-size 32 --dtype bf16 --force");
        assert_eq!((own.source.as_str(), own.output.to_str()), ("m.gguf", Some("out")));
        assert!(own.options.force);
        assert_eq!(own, convert("convert m.gguf out --q-bits 8 --q-group-size 32 --dtype bfloat16 --force"));
        let packing = convert("convert m out --bits 4").options.packing.unwrap();
        assert_eq!((packing.bits, packing.group_size), (4, 64));
        assert_eq!(convert("convert m out").options, crate::convert::Options::default());
        assert!(
            matches!(parse("convert --help"), Ok(Invocation::Print(text)) if text.contains("--group-size"))
        );
    }

    #[test]
    fn an_error_names_its_command() {
        let usage = parse("serve M --port x").unwrap_err();
        assert_eq!(usage.program(), "tensorfold serve");
        assert!(usage.line().starts_with("usage: tensorfold"));
        assert_eq!(parse("").unwrap_err().program(), "tensorfold");
    }

    #[test]
    fn every_flag_of_the_table_parses() {
        for flag in FLAGS {
            let value = match flag.choices().first() {
                Some(choice) => (*choice).to_owned(),
                None => "1".to_owned(),
            };
            let words =
                if flag.is_switch() { vec![flag.name.to_owned()] } else { vec![flag.name.to_owned(), value] };
            let line =
                ["serve", "M"].map(OsString::from).into_iter().chain(words.into_iter().map(OsString::from));
            // A value that does not read is a sentence about the value, never about the flag.
            if let Err(usage) = read(line) {
                assert!(!usage.message.starts_with("unrecognized"), "{}: {}", flag.name, usage.message);
            }
        }
    }

    #[test]
    fn the_command_is_consistent() {
        command().debug_assert();
    }
}
