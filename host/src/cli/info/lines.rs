//! The facts of a model for people: one a line.

use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, GatedDeltaSpec, LayerSpec, MixerSpec, ModelSpec, RopeScaling, RopeSpec,
};

use super::Answer;
use crate::checkpoint::{CheckpointError, Facts, Kind};
use crate::plugins::lifecycle::one_line;

/// All lines. `place` says where a model is that is not on this machine.
pub(super) fn text(
    facts: &Facts,
    place: Option<&str>,
    problem: Option<&CheckpointError>,
    answers: &[Answer],
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| text += &format!("{name:<12}{}\n", one_line(value));
    line("model", &facts.name);
    match place {
        Some(place) => line("place", place),
        None => line("folder", &facts.directory.display().to_string()),
    }
    line("licence", facts.licence.as_deref().unwrap_or("not stated"));
    match &facts.kind {
        Kind::Model => {}
        Kind::Drafter => line("holds", "a drafter, for --drafter beside the model that it was made for"),
        Kind::PredictionHead { family } => {
            line("holds", &format!("the multi-token prediction head of a {family} model, without the model"));
        }
    }
    line("family", &facts.family);
    if let Some(spec) = &facts.spec {
        describe(&mut line, spec, facts.tokenizer_size);
    }
    line("formats", &formats(facts));
    let head = match (facts.mtp, facts.mtp_in_side_file) {
        (false, _) => "none".to_owned(),
        (true, true) => format!("in a side file, {}", listed(&facts.mtp_formats)),
        (true, false) => format!("in the checkpoint, {}", listed(&facts.mtp_formats)),
    };
    line("own head", &head);
    line(
        "context",
        &facts.context_window.map_or_else(|| "not stated".into(), |tokens| format!("{tokens} tokens")),
    );
    line("parameters", &count(facts.parameters));
    line("weights", &format!("{} bytes", facts.weight_bytes));
    if let Some(problem) = problem {
        line("problem", &problem.to_string());
    }
    for answer in answers {
        let verdict = answer.refusal.as_deref().map_or("can run it".into(), |why| format!("no: {why}"));
        line(&answer.backend, &verdict);
    }
    if answers.is_empty() {
        text += "no plugin is installed that could run it; see tensorfold plugins list --all\n";
    }
    text
}

/// What a description tells besides.
fn describe(line: &mut impl FnMut(&str, &str), spec: &ModelSpec, tokenizer_size: Option<u32>) {
    line("layers", &layers(spec));
    if let Some(attention) = first(spec, |layer| match &layer.mixer {
        MixerSpec::Attention(attention) => Some(attention),
        MixerSpec::GatedDelta(_) => None,
    }) {
        line("attention", &attention_heads(attention));
        line("rope", &rope(&spec.rope, attention));
    }
    if let Some(delta) = first(spec, |layer| match &layer.mixer {
        MixerSpec::GatedDelta(delta) => Some(delta),
        MixerSpec::Attention(_) => None,
    }) {
        line("delta", &delta_heads(delta));
    }
    if let Some(feed_forward) = first(spec, |layer| Some(&layer.feed_forward)) {
        let (name, value) = feed_forward_line(feed_forward);
        line(name, &value);
    }
    let known = match tokenizer_size {
        Some(known) => format!("{known} ids in {} rows", spec.vocabulary_rows),
        None => format!("{} rows; no tokenizer.json says how many ids", spec.vocabulary_rows),
    };
    let head = if spec.tied_head { "the head is the embedding" } else { "a head of its own" };
    line("vocabulary", &format!("{known}; {head}"));
}

/// The first layer that has what is asked for; layers of one kind are alike.
fn first<'a, T>(spec: &'a ModelSpec, of: impl Fn(&'a LayerSpec) -> Option<T>) -> Option<T> {
    spec.layers.iter().find_map(of)
}

fn layers(spec: &ModelSpec) -> String {
    let all = spec.layers.len();
    let attention = spec.layers.iter().filter(|layer| matches!(layer.mixer, MixerSpec::Attention(_))).count();
    let mixers = match all - attention {
        0 => "attention".to_owned(),
        delta => format!("{delta} Gated DeltaNet, {attention} attention"),
    };
    format!("{all} of width {}: {mixers}", spec.hidden_size)
}

fn attention_heads(attention: &AttentionSpec) -> String {
    let mut text = format!(
        "{} heads of {}, keys and values {}",
        attention.heads, attention.head_size, attention.key_value_heads
    );
    for (has, what) in [
        (attention.gated, ", gated"),
        (attention.head_norms, ", normed per head"),
        (attention.biases, ", with biases"),
    ] {
        if has {
            text += what;
        }
    }
    text
}

fn rope(rope: &RopeSpec, attention: &AttentionSpec) -> String {
    let scaling = match rope.scaling {
        RopeScaling::None => "not scaled".to_owned(),
        RopeScaling::Linear { factor } => format!("linear, by {factor}"),
        RopeScaling::Llama3 { factor, original_context, .. } => {
            format!("llama3, by {factor} from {original_context} tokens")
        }
    };
    let turned = match rope.rotary_dimensions == attention.head_size {
        true => "all dimensions".to_owned(),
        false => format!("{} of {} dimensions", rope.rotary_dimensions, attention.head_size),
    };
    format!("theta {}, {turned}, {scaling}", rope.theta)
}

fn delta_heads(delta: &GatedDeltaSpec) -> String {
    format!(
        "keys {} of {}, values {} of {}",
        delta.key_heads, delta.key_head_size, delta.value_heads, delta.value_head_size
    )
}

fn feed_forward_line(feed_forward: &FeedForwardSpec) -> (&'static str, String) {
    match *feed_forward {
        FeedForwardSpec::Dense { intermediate_size } => ("mlp", format!("{intermediate_size} wide")),
        FeedForwardSpec::MixtureOfExperts {
            experts,
            experts_per_token,
            intermediate_size,
            shared_intermediate_size,
        } => {
            let shared = match shared_intermediate_size {
                0 => String::new(),
                width => format!(", and a shared one {width} wide"),
            };
            (
                "experts",
                format!("{experts}, {experts_per_token} for each token, {intermediate_size} wide{shared}"),
            )
        }
    }
}

/// The formats, with their shares of the bytes where there are several.
fn formats(facts: &Facts) -> String {
    let all: u64 = facts.format_bytes.values().sum();
    if facts.formats.len() < 2 || all == 0 {
        return listed(&facts.formats);
    }
    let share = |format: &String| {
        let bytes = facts.format_bytes.get(format).copied().unwrap_or(0);
        format!("{format} {:.1}%", 100.0 * bytes as f64 / all as f64)
    };
    facts.formats.iter().map(share).collect::<Vec<_>>().join(", ")
}

pub(super) fn listed(items: &[String]) -> String {
    if items.is_empty() { "none".into() } else { items.join(" ") }
}

/// A count of parameters as people say it.
pub(in crate::cli) fn count(parameters: u64) -> String {
    let value = parameters as f64;
    match parameters {
        0..1_000_000 => parameters.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", value / 1e6),
        _ => format!("{:.2} billion", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_as_people_say_them() {
        assert_eq!(count(999), "999");
        assert_eq!(count(22_570_000), "22.6 million");
        assert_eq!(count(27_000_000_000), "27.00 billion");
    }

    #[test]
    fn scalings_say_what_they_stretch() {
        let attention = AttentionSpec {
            heads: 8,
            key_value_heads: 2,
            head_size: 128,
            gated: false,
            head_norms: true,
            biases: true,
        };
        let with = |scaling, rotary_dimensions| {
            rope(&RopeSpec { theta: 5e5, rotary_dimensions, scaling }, &attention)
        };
        let llama3 = RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        };
        assert_eq!(with(llama3, 128), "theta 500000, all dimensions, llama3, by 8 from 8192 tokens");
        assert_eq!(
            with(RopeScaling::Linear { factor: 2.5 }, 32),
            "theta 500000, 32 of 128 dimensions, linear, by 2.5"
        );
        assert_eq!(
            attention_heads(&attention),
            "8 heads of 128, keys and values 2, normed per head, with biases"
        );
    }
}
