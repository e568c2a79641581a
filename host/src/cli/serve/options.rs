//! What the flags of `serve` mean for text and server.

use std::path::{Path, PathBuf};

use tensorfold_plugin_api::sampling::Sampling;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use crate::checkpoint::{Folder, GenerationDefaults};
use crate::cli::Failure;
use crate::engine::DraftOptions;
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

/// Whether the template that was named can be read; what is in it is looked at together with the tokenizer.
///
/// # Errors
/// When it cannot.
pub(super) fn check_template_file(flags: &GivenFlags) -> Result<(), Failure> {
    if let Some(file) = flags.text("--chat-template") {
        Folder::read_named(Path::new(file), Folder::METADATA_LIMIT)?;
    }
    Ok(())
}

/// Holds the flags about thinking against what the template can do.
///
/// Gives the lines that tell where a flag changes less than it says.
///
/// # Errors
/// A flag that could change nothing at all.
pub(super) fn check_thinking(flags: &GivenFlags, text: &TextModel) -> Result<Vec<String>, Failure> {
    thinking_lines(flags, text.has_thinking_switch(), &text.effort_levels())
}

fn thinking_lines(flags: &GivenFlags, switch: bool, levels: &[&str]) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    if let Some(asked) = flags.text("--reasoning-effort") {
        if levels.is_empty() {
            return Err(Failure::new(format!(
                "--reasoning-effort {asked}: the model's chat template knows no level of effort; serve without \
                 --reasoning-effort"
            )));
        }
        if !levels.contains(&asked) {
            lines.push(format!(
                "--reasoning-effort {asked}: the model's chat template knows {}; the nearest is used",
                levels.join(", ")
            ));
        }
    }
    if flags.thinking() == Some(false) && !switch {
        lines.push(
            "--no-thinking: the model's chat template has no switch for thinking; nothing changes".to_owned(),
        );
    }
    Ok(lines)
}

/// The server's options: what was given, else what the checkpoint says, else the defaults.
pub(super) fn serve_options(flags: &GivenFlags, name: &str, checkpoint: &GenerationDefaults) -> ServeOptions {
    let defaults = ServeOptions::new(flags.text("--name").unwrap_or(name));
    let texts = |flag| flags.texts(flag).map(str::to_owned).collect();
    ServeOptions {
        host: flags.text("--host").map_or(defaults.host, str::to_owned),
        port: flags.integer("--port").and_then(|port| u16::try_from(port).ok()).unwrap_or(defaults.port),
        aliases: texts("--alias"),
        api_keys: texts("--api-key"),
        api_key_file: flags.text("--api-key-file").map(PathBuf::from),
        max_tokens: count(flags, "--max-tokens").unwrap_or(defaults.max_tokens),
        sampling: sampling(flags, checkpoint),
        thinking: flags.thinking().unwrap_or(defaults.thinking),
        reasoning_effort: flags.text("--reasoning-effort").map(str::to_owned),
        thinking_budget: count(flags, "--thinking-budget").unwrap_or(defaults.thinking_budget),
        name: defaults.name,
        body_limit_bytes: defaults.body_limit_bytes,
    }
}

/// How drafts are used.
pub(super) fn drafting(flags: &GivenFlags) -> DraftOptions {
    let defaults = DraftOptions::default();
    DraftOptions {
        enabled: !flags.has("--no-drafts"),
        mtp_drafts: count(flags, "--mtp-drafts"),
        mtp_confidence: flags
            .number("--mtp-confidence")
            .map_or(defaults.mtp_confidence, |confidence| confidence as f32),
        ..defaults
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
    fn a_flag_about_thinking_that_changes_nothing_is_refused_or_said() {
        let lines = |pairs: &[(&str, Option<&str>)], switch, levels: &[&str]| {
            thinking_lines(&flags(pairs), switch, levels).map_err(|failure| failure.message)
        };
        let effort = [("--reasoning-effort", Some("medium"))];
        assert_eq!(
            lines(&effort, true, &[]).unwrap_err(),
            "--reasoning-effort medium: the model's chat template knows no level of effort; serve without \
             --reasoning-effort"
        );
        assert_eq!(lines(&effort, true, &["low", "medium"]), Ok(Vec::new()));
        assert_eq!(
            lines(&effort, true, &["low", "high"]).unwrap(),
            ["--reasoning-effort medium: the model's chat template knows low, high; the nearest is used"]
        );
        let off = [("--no-thinking", None)];
        assert_eq!(lines(&off, true, &[]), Ok(Vec::new()));
        assert_eq!(lines(&off, false, &[]).unwrap().len(), 1);
        assert_eq!(lines(&[("--thinking", None)], false, &[]), Ok(Vec::new()));
    }

    #[test]
    fn flags_say_how_drafts_are_used() {
        assert_eq!(drafting(&flags(&[])), DraftOptions::default());
        let given = [("--mtp-drafts", Some("2")), ("--mtp-confidence", Some("0.5")), ("--no-drafts", None)];
        let wanted = DraftOptions {
            enabled: false,
            mtp_drafts: Some(2),
            mtp_confidence: 0.5,
            ..DraftOptions::default()
        };
        assert_eq!(drafting(&flags(&given)), wanted);
    }

    #[test]
    fn counts_beyond_any_model_are_the_largest_there_is() {
        assert_eq!(count(&flags(&[("--max-tokens", Some("99999999999"))]), "--max-tokens"), Some(u32::MAX));
        assert_eq!(count(&flags(&[]), "--max-tokens"), None);
    }
}
