//! `tensorfold convert SOURCE OUTPUT`: makes a checkpoint that can be served of one in another form.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgMatches};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use super::info::count;
use super::{Failure, complain, hint};
use crate::checkpoint::{self, ElementType, HubCache, Packing};
use crate::convert::{self, ConvertError, Options, Progress, Stop, Summary};

/// What to convert, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertArguments {
    /// A GGUF file, a folder, or a repository as owner/name.
    pub source: String,
    /// The folder to make.
    pub output: PathBuf,
    /// How.
    pub options: Options,
}

const BITS: [&str; 6] = ["2", "3", "4", "5", "6", "8"];
const GROUPS: [&str; 3] = ["32", "64", "128"];
const DEFAULT_GROUP: u32 = 64;

/// The arguments of the command. Names that users of MLX's converter know are taken as well.
pub(super) fn arguments() -> [Arg; 6] {
    [
        Arg::new("source").value_name("SOURCE").help("GGUF file, folder, or repository as owner/name"),
        Arg::new("output").value_name("OUTPUT").help("folder to make"),
        Arg::new("bits")
            .long("bits")
            .visible_alias("q-bits")
            .value_name("N")
            .value_parser(BITS)
            .help("quantize matrices to this many bits; without it they keep the form that they have"),
        Arg::new("group-size")
            .long("group-size")
            .visible_alias("q-group-size")
            .value_name("N")
            .value_parser(GROUPS)
            .help("neighbouring weights that share a scale, with --bits [default: 64]"),
        Arg::new("dtype")
            .long("dtype")
            .value_name("TYPE")
            .value_parser(clap::builder::PossibleValuesParser::new([
                clap::builder::PossibleValue::new("f16").alias("float16"),
                clap::builder::PossibleValue::new("bf16").alias("bfloat16"),
                clap::builder::PossibleValue::new("f32").alias("float32"),
            ]))
            .help("type of floats: norms, scales, and matrices without --bits [default: the source's]"),
        Arg::new("force")
            .long("force")
            .action(ArgAction::SetTrue)
            .help("replace OUTPUT where it is a checkpoint folder"),
    ]
}

/// The command from what was parsed.
///
/// # Errors
/// The message of a usage error.
pub(super) fn from_matches(found: &ArgMatches) -> Result<ConvertArguments, String> {
    let text = |name: &str| found.get_one::<String>(name).filter(|text| !text.is_empty()).cloned();
    let required = |name: &str| text(name).ok_or(format!("the following arguments are required: {name}"));
    let (source, output) = (required("source")?, required("output")?);
    // The parser has admitted numbers and names of the lists above alone.
    let number = |name: &str| text(name).and_then(|text| text.parse::<u32>().ok());
    let packing = match (number("bits"), number("group-size")) {
        (None, Some(_)) => return Err("--group-size needs --bits".into()),
        (None, None) => None,
        (Some(bits), group) => Some(Packing { bits, group_size: group.unwrap_or(DEFAULT_GROUP) }),
    };
    let element = text("dtype").map(|name| match name.as_str() {
        "f16" | "float16" => ElementType::F16,
        "bf16" | "bfloat16" => ElementType::Bf16,
        _ => ElementType::F32,
    });
    let options = Options { packing, element, force: found.get_flag("force") };
    Ok(ConvertArguments { source, output: output.into(), options })
}

/// Converts, and says on stderr how far it is. Gives the closing lines.
///
/// # Errors
/// When the source is no such thing, cannot be converted, or a signal came.
pub(super) fn run(arguments: &ConvertArguments) -> Result<String, Failure> {
    let ConvertArguments { source, output, options } = arguments;
    let path = find_source(source)?;
    let stop = Arc::new(Stop::default());
    end_on_signals(&stop)?;
    hint(&format!("converting {source} to {}", output.display()));
    let progress = Shown::default();
    let converted = convert::convert(&path, output, options, &progress, &stop);
    progress.end();
    match converted {
        Ok(summary) => Ok(closing_lines(output, options, &summary)),
        Err(error) => Err(Failure { exit_code: exit_code(&error), message: error.to_string() }),
    }
}

fn exit_code(error: &ConvertError) -> u8 {
    match error {
        ConvertError::Stopped { signal } => u8::try_from(128 + signal).unwrap_or(1),
        _ => 1,
    }
}

fn find_source(source: &str) -> Result<PathBuf, Failure> {
    let path = Path::new(source);
    if path.is_file() {
        return Ok(path.into());
    }
    if path.extension().is_some_and(|extension| extension == "gguf") && !path.exists() {
        return Err(Failure::new(format!("{source}: there is no such file")));
    }
    Ok(checkpoint::resolve(source, &HubCache::from_environment())?.directory)
}

/// Has the first interrupt, termination or hang-up end the conversion in its own time: it takes away what it wrote.
fn end_on_signals(stop: &Arc<Stop>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(_entered);
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let kind = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
                _ = hangup.recv() => SignalKind::hangup(),
            }
        });
        stop.request(kind.as_raw_value());
    });
    Ok(())
}

/// Progress for people: a bar in a terminal, else a line now and then.
#[derive(Default)]
struct Shown {
    bar: OnceLock<ProgressBar>,
    total: AtomicU64,
    done: AtomicU64,
    last_line: Mutex<Option<Instant>>,
}

impl Shown {
    const BETWEEN_LINES: Duration = Duration::from_secs(10);

    fn end(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Shown {
    fn begin(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(bytes);
            let style =
                ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            let _ = self.bar.set(bar);
        } else if let Ok(mut last) = self.last_line.lock() {
            *last = Some(Instant::now());
        }
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = self.bar.get() {
            return bar.inc(bytes);
        }
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Another thread that holds it is about to say the same.
        if let Ok(mut last) = self.last_line.try_lock()
            && last.is_some_and(|last| last.elapsed() >= Self::BETWEEN_LINES)
        {
            let total = self.total.load(Ordering::Relaxed);
            complain(&format!("[tensorfold] {} of {} MiB", done >> 20, total >> 20));
            *last = Some(Instant::now());
        }
    }
}

fn closing_lines(output: &Path, options: &Options, summary: &Summary) -> String {
    let files = match summary.files.len() {
        1 => "1 weight file".to_owned(),
        many => format!("{many} weight files"),
    };
    let mut text = format!(
        "{}: {}, {} parameters, {} bytes in {files}\n",
        output.display(),
        summary.family,
        count(summary.parameters),
        summary.bytes
    );
    text += &format!("lossless: {}\n", tensors(summary.lossless));
    if let (true, Some(packing)) = (summary.quantized > 0, options.packing) {
        text += &format!("quantized to {}: {}\n", packing.format(), tensors(summary.quantized));
    }
    if let (changed @ 1.., floats) = summary.rounded {
        text += &format!("rounded: {} ({floats} floats)\n", tensors(changed));
    }
    for note in &summary.notes {
        text += &format!("note: {note}\n");
    }
    text
}

fn tensors(count: usize) -> String {
    format!("{count} {}", if count == 1 { "tensor" } else { "tensors" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_lines_say_what_was_lost() {
        let summary = Summary {
            family: "llama".into(),
            files: vec!["model.safetensors".into()],
            bytes: 98_000_000,
            parameters: 134_000_000,
            lossless: 61,
            rounded: (1, 7),
            quantized: 211,
            notes: vec!["a note".into()],
        };
        let options = Options { packing: Some(Packing { bits: 4, group_size: 64 }), ..Options::default() };
        assert_eq!(
            closing_lines(Path::new("out"), &options, &summary),
            "out: llama, 134.0 million parameters, 98000000 bytes in 1 weight file\nlossless: 61 tensors\n\
             quantized to mlx-q4g64: 211 tensors\nrounded: 1 tensor (7 floats)\nnote: a note\n"
        );
    }

    #[test]
    fn a_signal_gives_the_shells_exit_code() {
        assert_eq!(exit_code(&ConvertError::Stopped { signal: 2 }), 130);
        assert_eq!(exit_code(&ConvertError::Check { problem: String::new() }), 1);
    }
}
