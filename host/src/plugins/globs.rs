//! File name patterns of `TENSORFOLD_PLUGIN_SELECT` and `TENSORFOLD_PLUGIN_DISABLE`.
//!
//! Patterns are separated by commas; `*` stands for any bytes and `?` for one. Disabling comes first.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::environment::Environment;

/// The two variables, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Globs {
    disable: Vec<Vec<u8>>,
    select: Option<Vec<Vec<u8>>>,
}

impl Globs {
    /// From the environment; both are ignored in a process with borrowed rights, with one line each.
    pub fn read(environment: &Environment, notes: &mut Vec<String>) -> Self {
        let mut value = |name: &str, value: &Option<std::ffi::OsString>| {
            let value = value.as_deref()?;
            if environment.elevated {
                notes.push(format!("{name} is ignored: the process runs with the rights of another user"));
                return None;
            }
            Some(patterns(value))
        };
        Self {
            disable: value("TENSORFOLD_PLUGIN_DISABLE", &environment.plugin_disable).unwrap_or_default(),
            select: value("TENSORFOLD_PLUGIN_SELECT", &environment.plugin_select),
        }
    }

    /// The variable that switches off the file of this name, if one does.
    pub fn switched_off_by(&self, name: &OsStr) -> Option<&'static str> {
        let any = |list: &[Vec<u8>]| list.iter().any(|pattern| matches(pattern, name.as_bytes()));
        if any(&self.disable) {
            return Some("TENSORFOLD_PLUGIN_DISABLE");
        }
        self.select.as_deref().is_some_and(|select| !any(select)).then_some("TENSORFOLD_PLUGIN_SELECT")
    }
}

fn patterns(value: &OsStr) -> Vec<Vec<u8>> {
    value
        .as_bytes()
        .split(|byte| *byte == b',')
        .map(|pattern| pattern.trim_ascii().to_vec())
        .filter(|pattern| !pattern.is_empty())
        .collect()
}

/// Whether the whole of `text` fits `pattern`. Linear in memory, at worst quadratic in time.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at_pattern, mut at_text) = (0, 0);
    // Where to go on when what follows the last star did not fit.
    let mut retry: Option<(usize, usize)> = None;
    while at_text < text.len() {
        match pattern.get(at_pattern) {
            Some(b'*') => {
                retry = Some((at_pattern + 1, at_text));
                at_pattern += 1;
            }
            Some(expected) if *expected == b'?' || *expected == text[at_text] => {
                at_pattern += 1;
                at_text += 1;
            }
            _ => {
                let Some((after_star, from)) = retry else { return false };
                retry = Some((after_star, from + 1));
                at_pattern = after_star;
                at_text = from + 1;
            }
        }
    }
    pattern[at_pattern..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(disable: Option<&str>, select: Option<&str>) -> Globs {
        let environment = Environment {
            plugin_disable: disable.map(Into::into),
            plugin_select: select.map(Into::into),
            ..Environment::default()
        };
        Globs::read(&environment, &mut Vec::new())
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*hip*", "backend-hip.tensorfold.toml", true),
            ("backend-???.tensorfold.toml", "backend-hip.tensorfold.toml", true),
            ("backend-hip", "backend-hip.tensorfold.toml", false),
            ("*.toml*a", "b.toml.toml", false),
            ("a*b*c", "aXbYbZc", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn disabling_comes_first_and_names_its_variable() {
        let both = globs(Some("*hip*"), Some("*hip*, *cpu*"));
        assert_eq!(
            both.switched_off_by(OsStr::new("backend-hip.tensorfold.toml")),
            Some("TENSORFOLD_PLUGIN_DISABLE")
        );
        assert_eq!(both.switched_off_by(OsStr::new("backend-cpu.tensorfold.toml")), None);
        assert_eq!(
            both.switched_off_by(OsStr::new("backend-mlx.tensorfold.toml")),
            Some("TENSORFOLD_PLUGIN_SELECT")
        );
        assert_eq!(globs(None, None).switched_off_by(OsStr::new("x")), None);
    }

    #[test]
    fn with_borrowed_rights_both_are_ignored_with_a_line_each() {
        let environment = Environment {
            elevated: true,
            plugin_disable: Some("*".into()),
            plugin_select: Some("x".into()),
            ..Environment::default()
        };
        let mut notes = Vec::new();
        assert_eq!(Globs::read(&environment, &mut notes), Globs::default());
        assert_eq!(notes.len(), 2);
    }
}
