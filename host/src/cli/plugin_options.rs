//! How options of a plugin's own are shown: in the help of `serve` and in `plugins show`.

use tensorfold_plugin_api::manifest::{Manifest, OptionKind, OptionSpec};

/// Longest list of choices that stands for the value.
const CHOICES_SHOWN: usize = 40;

/// Every option of a plugin: what is typed after `--opt`, and what it means, with what is allowed and the default.
pub(super) fn of(manifest: &Manifest) -> impl Iterator<Item = (String, String)> {
    let backend = &manifest.plugin.backend;
    manifest.options.iter().map(move |(name, option)| {
        (format!("{backend}.{name}={}", value_name(&option.kind)), meaning(option))
    })
}

/// What stands for the value.
fn value_name(kind: &OptionKind) -> String {
    match kind {
        OptionKind::Integer { .. } => "INTEGER".to_owned(),
        OptionKind::Boolean => "true|false".to_owned(),
        OptionKind::Choice { choices } => {
            let all = choices.join("|");
            if all.len() > CHOICES_SHOWN { "CHOICE".to_owned() } else { all }
        }
        OptionKind::String => "TEXT".to_owned(),
        OptionKind::Path => "PATH".to_owned(),
    }
}

/// The help, the allowed values where the value's name does not tell them, and the default.
fn meaning(option: &OptionSpec) -> String {
    let allowed = match &option.kind {
        OptionKind::Integer { .. } => Some(option.kind.allowed()),
        OptionKind::Choice { .. } if value_name(&option.kind) == "CHOICE" => Some(option.kind.allowed()),
        _ => None,
    };
    let default = option.default.as_ref().map(|value| format!("default: {value}"));
    let notes: Vec<String> = allowed.into_iter().chain(default).collect();
    match notes.is_empty() {
        true => option.help.clone(),
        false => format!("{} [{}]", option.help, notes.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use tensorfold_plugin_api::manifest::OptionValue;

    use super::*;

    #[test]
    fn every_type_has_its_value_name() {
        let long: Vec<String> = (0..20).map(|number| format!("choice{number}")).collect();
        let integer = OptionKind::Integer { least: Some(0), most: Some(8) };
        for (kind, name, said) in [
            (integer, "INTEGER", "help [a whole number from 0 to 8]"),
            (OptionKind::Boolean, "true|false", "help"),
            (OptionKind::Choice { choices: vec!["f32".into(), "int8".into()] }, "f32|int8", "help"),
            (OptionKind::String, "TEXT", "help"),
            (OptionKind::Path, "PATH", "help"),
        ] {
            assert_eq!(value_name(&kind), name);
            assert_eq!(meaning(&OptionSpec { kind, default: None, help: "help".into() }), said);
        }
        let many = OptionKind::Choice { choices: long };
        assert_eq!(value_name(&many), "CHOICE");
        let option = OptionSpec {
            kind: many,
            default: Some(OptionValue::Text("choice3".into())),
            help: "help".into(),
        };
        assert!(meaning(&option).contains("choice18 or choice19; default: choice3]"), "{}", meaning(&option));
    }
}
