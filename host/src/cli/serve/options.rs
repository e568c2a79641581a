//! What the flags of `serve` mean for text and server.

use std::path::{Path, PathBuf};

use tensorfold_plugin_api::sampling::Sampling;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use crate::checkpoint::{Checkpoint, GenerationDefaults};
use crate::cli::Failure;
use crate::server::ServeOptions;
use crate::text::TextModel;

/// The checkpoint's tokenizer and template, or the template that was named.
///
/// # Errors
/// When a file is missing or does not parse.
pub(super) fn text_model(flags: &GivenFlags, directory: &Path) -> Result<TextModel, Failure> {
    let text = TextModel::load(directory)?;
    match flags.text("--chat-template") {
        None => Ok(text),
        Some(file) => Ok(text.with_template_file(Path::new(file))?),
    }
}

/// The server's options: what was given, else what the checkpoint says, else the defaults.
pub(super) fn serve_options(flags: &GivenFlags, name: &str, checkpoint: &Checkpoint) -> ServeOptions {
    let defaults = ServeOptions::new(flags.text("--name").unwrap_or(name));
    let texts = |flag| flags.texts(flag).map(str::to_owned).collect();
    ServeOptions {
        host: flags.text("--host").map_or(defaults.host, str::to_owned),
        port: flags.integer("--port").and_then(|port| u16::try_from(port).ok()).unwrap_or(defaults.port),
        aliases: texts("--alias"),
        api_keys: texts("--api-key"),
        api_key_file: flags.text("--api-key-file").map(PathBuf::from),
        max_tokens: count(flags, "--max-tokens").unwrap_or(defaults.max_tokens),
        sampling: sampling(flags, &checkpoint.generation),
        thinking: flags.thinking().unwrap_or(defaults.thinking),
        reasoning_effort: flags.text("--reasoning-effort").map(str::to_owned),
        thinking_budget: count(flags, "--thinking-budget").unwrap_or(defaults.thinking_budget),
        name: defaults.name,
        body_limit_bytes: defaults.body_limit_bytes,
    }
}

/// Sampling of requests that say nothing about it.
fn sampling(flags: &GivenFlags, checkpoint: &GenerationDefaults) -> Sampling {
    // A negative count of tokens to draw from means all of them, as 0 does.
    let top_k = flags.integer("--top-k").map(|count| u32::try_from(count.max(0)).unwrap_or(u32::MAX));
    Sampling {
        temperature: flags.number("--temperature").unwrap_or(checkpoint.temperature),
        top_p: flags.number("--top-p").unwrap_or(checkpoint.top_p),
        top_k: top_k.unwrap_or(checkpoint.top_k),
        min_p: flags.number("--min-p").unwrap_or(checkpoint.min_p),
        seed: 0,
    }
}

/// A count; one that is too large for any model is as good as the largest.
fn count(flags: &GivenFlags, name: &str) -> Option<u32> {
    flags.integer(name).map(|count| u32::try_from(count.max(0)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(pairs: &[(&str, Option<&str>)]) -> GivenFlags {
        GivenFlags::from_pairs(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn sampling_comes_from_the_flags_then_from_the_checkpoint() {
        let checkpoint = GenerationDefaults { temperature: 0.7, top_p: 0.8, top_k: 20, min_p: 0.0 };
        let defaults = sampling(&flags(&[]), &checkpoint);
        assert_eq!((defaults.temperature, defaults.top_p, defaults.top_k), (0.7, 0.8, 20));
        let given = flags(&[("--temperature", Some("0")), ("--top-k", Some("-1")), ("--min-p", Some("0.1"))]);
        let sampling = sampling(&given, &checkpoint);
        assert_eq!(
            (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p),
            (0.0, 0.8, 0, 0.1)
        );
    }

    #[test]
    fn counts_beyond_any_model_are_the_largest_there_is() {
        assert_eq!(count(&flags(&[("--max-tokens", Some("99999999999"))]), "--max-tokens"), Some(u32::MAX));
        assert_eq!(count(&flags(&[]), "--max-tokens"), None);
    }
}
