//! Rotary positions, in all the spellings of `config.json`.
//!
//! The base stands flat as `rope_theta` in older files and in
//! `rope_parameters` in newer ones; the scaling in `rope_scaling` or in
//! `rope_parameters`, named by `rope_type` or by `type`. A scaling that is not
//! computed is refused: a model that runs without it would only look right.

use tensorfold_plugin_api::model_spec::{RopeScaling, RopeSpec};

use super::super::config::Section;
use super::super::error::CheckpointError;

/// What a family lets its configuration leave out or say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeRules {
    /// Base where none is named; `None`: one must be named.
    pub(crate) default_theta: Option<f64>,
    /// How much of each head turns.
    pub(crate) share: Share,
    /// Whether positions may be triples (`mrope`), which text has all equal.
    pub(crate) position_triples: bool,
}

/// How much of each head turns, and what `partial_rotary_factor` has to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All of it; another factor is refused.
    Whole,
    /// What the factor says.
    Named,
    /// All of it whatever the factor says: it was copied from another model.
    WholeRegardless,
}

const IMPLEMENTED: &str = "implemented: default, linear, llama3";

/// Scalings that are known and not computed, with what they would need.
const KNOWN_OTHERS: &[(&str, &str)] = &[
    ("yarn", "its blend of frequencies and its factor on the attention are not implemented"),
    ("dynamic", "frequencies that change with the length of the text are not implemented"),
    ("longrope", "its lists of a factor for each frequency are not implemented"),
    ("su", "its lists of a factor for each frequency are not implemented"),
    ("mrope", "position triples are not implemented for this family"),
    ("proportional", "its frequencies over a share of the head are not implemented"),
];

/// Reads the rotary positions of heads with `head_size` dimensions.
///
/// # Errors
/// When a value is missing, out of range or contradicts another one, or asks
/// for a scaling that is not computed.
pub(crate) fn read(
    text: &Section<'_>,
    head_size: u32,
    rules: RopeRules,
) -> Result<RopeSpec, CheckpointError> {
    let sections = [text.section("rope_parameters")?, text.section("rope_scaling")?];
    let sections: Vec<&Section<'_>> = sections.iter().flatten().collect();
    let mut scalings = Vec::new();
    for section in &sections {
        if let Some((key, _)) = section.entries().find(|(_, value)| value.is_object()) {
            return Err(
                section.fault(key, "is an object; rotary positions by kind of layer are not implemented")
            );
        }
        scalings.push(scaling(section, text, rules)?);
    }
    if let [first, second] = &scalings[..]
        && first != second
    {
        return Err(text.fault("rope_scaling", "contradicts rope_parameters; one of them must go"));
    }
    let number = |key: &str| -> Result<Option<f64>, CheckpointError> {
        for section in &sections {
            if let Some(value) = section.number(key)? {
                return Ok(Some(value));
            }
        }
        text.number(key)
    };
    let theta = match number("rope_theta")?.or(rules.default_theta) {
        Some(theta) if theta > 0.0 => theta,
        Some(theta) => {
            return Err(text.fault("rope_theta", format!("is {theta}; a positive number is needed")));
        }
        None => return Err(text.fault("rope_theta", "is missing; a number is needed")),
    };
    let share = match (number("partial_rotary_factor")?, rules.share) {
        (Some(share), Share::Named) if share > 0.0 && share <= 1.0 => share,
        (Some(share), Share::Named) => {
            return Err(text.fault("partial_rotary_factor", format!("is {share}; it is a share of the head")));
        }
        (None, Share::Named) => {
            return Err(text.fault("partial_rotary_factor", "is missing; a number is needed"));
        }
        (None | Some(1.0), Share::Whole) | (_, Share::WholeRegardless) => 1.0,
        (Some(share), Share::Whole) => {
            let problem = format!("is {share}; this family is implemented with whole heads turned (1)");
            return Err(text.fault("partial_rotary_factor", problem));
        }
    };
    let scaling = scalings.into_iter().next().unwrap_or_default();
    Ok(RopeSpec { theta, rotary_dimensions: (f64::from(head_size) * share) as u32, scaling })
}

fn scaling(
    section: &Section<'_>,
    text: &Section<'_>,
    rules: RopeRules,
) -> Result<RopeScaling, CheckpointError> {
    let (key, kind) = match (section.string("rope_type")?, section.string("type")?) {
        (Some(new), Some(old)) if new != old && !(new == "default" && old == "mrope") => {
            return Err(section.fault("type", format!("is {old:?}, but rope_type is {new:?}")));
        }
        (_, Some(kind)) => ("type", kind),
        (Some(kind), None) => ("rope_type", kind),
        (None, None) if section.get("factor").is_some() => {
            return Err(section.fault("rope_type", "is missing although there is a factor"));
        }
        (None, None) => return Ok(RopeScaling::None),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "mrope" if rules.position_triples => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: at_least_one(section, "factor")? }),
        "llama3" => {
            let factor = at_least_one(section, "factor")?;
            let low_frequency_factor = section.required_number("low_freq_factor")?;
            let high_frequency_factor = section.required_number("high_freq_factor")?;
            // The blend divides by their difference.
            if !(low_frequency_factor > 0.0 && high_frequency_factor > low_frequency_factor) {
                let problem = format!(
                    "is {high_frequency_factor}; it must be above low_freq_factor, {low_frequency_factor}, and that above 0"
                );
                return Err(section.fault("high_freq_factor", problem));
            }
            let original = "original_max_position_embeddings";
            let original_context = match section.integer(original)? {
                Some(context) => context,
                None => text
                    .integer(original)?
                    .ok_or_else(|| section.fault(original, "is missing; a positive integer is needed"))?,
            };
            Ok(RopeScaling::Llama3 { factor, low_frequency_factor, high_frequency_factor, original_context })
        }
        other => {
            let needed = KNOWN_OTHERS.iter().find(|(name, _)| *name == other).map(|(_, needed)| *needed);
            let needed = needed.unwrap_or("that scaling of positions is not implemented");
            Err(section.unsupported(key, format!("{needed}; {IMPLEMENTED}")))
        }
    }
}

fn at_least_one(section: &Section<'_>, key: &str) -> Result<f64, CheckpointError> {
    let factor = section.required_number(key)?;
    match factor >= 1.0 {
        true => Ok(factor),
        false => Err(section.fault(key, format!("is {factor}; a number from 1 up is needed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::config::Config;
    use super::*;

    const LLAMA: RopeRules =
        RopeRules { default_theta: Some(1e4), share: Share::Whole, position_triples: false };
    const HYBRID: RopeRules = RopeRules { default_theta: None, share: Share::Named, position_triples: true };

    fn rope(json: &str, rules: RopeRules) -> Result<RopeSpec, String> {
        let config = Config::parse("config.json".as_ref(), json.as_bytes()).unwrap();
        read(&config.top(), 128, rules).map_err(|error| error.to_string())
    }

    fn scaled(json: &str) -> RopeScaling {
        rope(json, LLAMA).unwrap().scaling
    }

    #[test]
    fn the_base_may_be_flat_nested_or_the_familys() {
        let theta = |json: &str| rope(json, LLAMA).unwrap().theta;
        assert_eq!(theta(r#"{"rope_theta": 5e5}"#), 5e5);
        assert_eq!(theta(r#"{"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}"#), 1e6);
        assert_eq!(theta(r#"{"rope_theta": 7.0, "rope_parameters": {"rope_theta": 1e6}}"#), 1e6);
        assert_eq!(theta("{}"), 1e4);
        let missing = rope("{}", RopeRules { default_theta: None, ..LLAMA }).unwrap_err();
        assert!(missing.contains("rope_theta is missing"), "{missing}");
        for zero in [r#"{"rope_theta": 0}"#, r#"{"rope_theta": -1}"#] {
            assert!(rope(zero, LLAMA).unwrap_err().contains("a positive number is needed"));
        }
    }

    #[test]
    fn scalings_are_read_in_both_spellings() {
        for key in ["rope_type", "type"] {
            for section in ["rope_scaling", "rope_parameters"] {
                let linear = format!(r#"{{"{section}": {{"{key}": "linear", "factor": 4}}}}"#);
                assert_eq!(scaled(&linear), RopeScaling::Linear { factor: 4.0 });
                let llama3 = format!(
                    r#"{{"{section}": {{"{key}": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}}}"#
                );
                let wanted = RopeScaling::Llama3 {
                    factor: 8.0,
                    low_frequency_factor: 1.0,
                    high_frequency_factor: 4.0,
                    original_context: 8192,
                };
                assert_eq!(scaled(&llama3), wanted);
            }
        }
        assert_eq!(scaled(r#"{"rope_scaling": null}"#), RopeScaling::None);
        assert_eq!(scaled(r#"{"rope_scaling": {"type": "default"}}"#), RopeScaling::None);
        let both = r#"{"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}"#;
        assert_eq!(scaled(both), RopeScaling::Linear { factor: 2.0 });
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (json, wanted) in [
            (
                r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4}}"#,
                r#"rope_scaling.rope_type is "yarn"; its blend"#,
            ),
            (r#"{"rope_scaling": {"type": "dynamic", "factor": 2}}"#, r#"rope_scaling.type is "dynamic""#),
            (
                r#"{"rope_parameters": {"rope_type": "longrope"}}"#,
                r#"rope_parameters.rope_type is "longrope""#,
            ),
            (r#"{"rope_scaling": {"type": "mrope"}}"#, "position triples"),
            (r#"{"rope_scaling": {"type": "new"}}"#, "implemented: default, linear, llama3"),
            (
                r#"{"rope_scaling": {"type": "linear", "rope_type": "llama3"}}"#,
                r#"is "linear", but rope_type is "llama3""#,
            ),
            (r#"{"rope_scaling": {"factor": 2}}"#, "rope_type is missing although"),
            (r#"{"rope_scaling": {"type": "linear"}}"#, "rope_scaling.factor is missing"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 0.5}}"#, "from 1 up"),
            (
                r#"{"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {}}"#,
                "contradicts rope_parameters",
            ),
            (
                r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                    "original_max_position_embeddings": 8192}}"#,
                "must be above low_freq_factor",
            ),
            (
                r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}}"#,
                "original_max_position_embeddings is missing",
            ),
            (r#"{"rope_parameters": {"full_attention": {"rope_type": "default"}}}"#, "by kind of layer"),
            (r#"{"partial_rotary_factor": 0.5}"#, "whole heads"),
        ] {
            let error = rope(json, LLAMA).unwrap_err();
            assert!(error.contains(wanted), "wanted {wanted:?} in {error:?}");
        }
        assert_eq!(rope(r#"{"partial_rotary_factor": 1.0}"#, LLAMA).unwrap().rotary_dimensions, 128);
    }

    #[test]
    fn a_factor_that_is_not_the_drafters_own_changes_nothing() {
        let rules = RopeRules { share: Share::WholeRegardless, ..LLAMA };
        let spec = rope(r#"{"partial_rotary_factor": 0.25}"#, rules).unwrap();
        assert_eq!(spec.rotary_dimensions, 128);
    }

    #[test]
    fn hybrids_turn_a_share_of_the_head_and_may_name_triples() {
        let spec = rope(
            r#"{"rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "type": "mrope", "rope_type": "default"}}"#,
            HYBRID,
        );
        assert_eq!(spec.unwrap(), RopeSpec { theta: 1e7, rotary_dimensions: 32, scaling: RopeScaling::None });
        for (json, wanted) in [
            (r#"{"rope_theta": 1e7}"#, "partial_rotary_factor is missing"),
            (r#"{"rope_theta": 1e7, "partial_rotary_factor": 1.5}"#, "a share of the head"),
            (r#"{"rope_theta": 1e7, "partial_rotary_factor": 0}"#, "a share of the head"),
        ] {
            assert!(rope(json, HYBRID).unwrap_err().contains(wanted), "{json}");
        }
    }
}
