//! What a flag of `serve` is: its value, its help, its neutral value and who
//! answers for it. The list itself is [`FLAGS`].

use super::flag_table::FLAGS;
use super::names::Word;
use super::values::{FlagValue, ValueKind};

/// One flag of `serve`.
#[derive(Clone, Copy, Debug)]
pub struct FlagSpec {
    /// The flag with its dashes, such as `--top-p`.
    pub name: &'static str,
    /// What stands for the value in help; empty for switches.
    pub value_name: &'static str,
    /// How its value is read.
    pub value: ValueKind,
    /// Whether each further use adds a value. Otherwise the last use counts.
    pub repeats: bool,
    /// What its absence means, in words; empty when there is nothing to say.
    pub default: &'static str,
    /// The value that asks for nothing.
    pub neutral: Neutral,
    /// Heading in help.
    pub group: FlagGroup,
    /// One line of help.
    pub help: &'static str,
    /// Who can say whether it is served.
    pub answered_by: AnsweredBy,
    /// What this host does with it.
    pub support: Support,
    /// What to do where it is not served.
    pub advice: &'static str,
}

/// The value that asks for nothing. Every plugin is served with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neutral {
    /// Every value asks for something.
    None,
    /// These values.
    Values(&'static [&'static str]),
    /// The flag itself: a switch that turns something off.
    Itself,
}

/// Who can say whether a flag is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The host alone.
    Host,
    /// A key of the manifest.
    Capability(Capability),
    /// The manifest's `serve_flags`.
    ServeFlags,
}

/// Keys of a manifest that answer for flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// External kinds of `[drafters]`.
    Drafters,
    /// `[drafters.mtp]`.
    Mtp,
    /// `worlds`.
    Worlds,
    /// `kv_dtypes`.
    KvDtypes,
    /// `limits.lanes`.
    Lanes,
    /// `limits.context`.
    Context,
    /// `[options]`.
    Options,
    /// One option of `[options]`.
    Option(&'static str),
    /// A word of `features`.
    Feature(&'static str),
}

impl AnsweredBy {
    /// The manifest key as the reference writes it; none for the host.
    pub fn manifest_key(self) -> Option<String> {
        let key = match self {
            AnsweredBy::Host => return None,
            AnsweredBy::ServeFlags => "serve_flags",
            AnsweredBy::Capability(capability) => match capability {
                Capability::Drafters => "drafters",
                Capability::Mtp => "drafters.mtp",
                Capability::Worlds => "worlds",
                Capability::KvDtypes => "kv_dtypes",
                Capability::Lanes => "limits.lanes",
                Capability::Context => "limits.context",
                Capability::Options => "options",
                Capability::Option(name) => return Some(format!("options.{name}")),
                Capability::Feature(name) => return Some(format!("features: {name}")),
            },
        };
        Some(key.to_owned())
    }
}

/// What this host does with a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// Acts on it.
    Acts,
    /// Hands it to a plugin that declares it.
    HandsOn,
    /// Accepts it, with nothing to do.
    NothingToDo,
    /// Knows it and refuses it, but for its neutral value.
    NotYet,
}

/// Headings of the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagGroup {
    /// Address, names, keys.
    Server,
    /// Defaults of requests.
    Requests,
    /// Reasoning.
    Thinking,
    /// Where drafts come from.
    Drafting,
    /// Lanes, memory, caches.
    Memory,
    /// Which plugin, and how it is found.
    Plugins,
    /// Several processes for one model.
    Ranks,
    /// How numbers are stored and computed.
    Numbers,
    /// Images and video.
    Vision,
    /// Everything else.
    Other,
}

impl FlagGroup {
    /// Every heading, in the order of the help.
    pub const ALL: &'static [FlagGroup] = &[
        FlagGroup::Server,
        FlagGroup::Plugins,
        FlagGroup::Requests,
        FlagGroup::Thinking,
        FlagGroup::Drafting,
        FlagGroup::Memory,
        FlagGroup::Numbers,
        FlagGroup::Ranks,
        FlagGroup::Vision,
        FlagGroup::Other,
    ];

    /// The heading.
    pub const fn heading(self) -> &'static str {
        match self {
            FlagGroup::Server => "Server",
            FlagGroup::Requests => "Defaults of requests",
            FlagGroup::Thinking => "Thinking",
            FlagGroup::Drafting => "Drafting",
            FlagGroup::Memory => "Lanes and memory",
            FlagGroup::Plugins => "Backend and plugins",
            FlagGroup::Ranks => "Ranks",
            FlagGroup::Numbers => "Numbers",
            FlagGroup::Vision => "Images and video",
            FlagGroup::Other => "Other",
        }
    }
}

impl FlagSpec {
    /// Whether it takes no value.
    pub fn is_switch(&self) -> bool {
        self.value == ValueKind::Switch
    }

    /// Whether that value asks for nothing.
    pub fn is_neutral(&self, value: &FlagValue) -> bool {
        match self.neutral {
            Neutral::None => false,
            Neutral::Itself => true,
            Neutral::Values(values) => values
                .iter()
                .any(|neutral| self.value.read(self.name, neutral).is_ok_and(|neutral| neutral == *value)),
        }
    }

    /// Values that argument parsing accepts, where there is a list of them.
    pub fn choices(&self) -> &'static [&'static str] {
        match self.value {
            ValueKind::Choice(choices) | ValueKind::NumberChoice(choices) => choices,
            _ => &[],
        }
    }

    /// Whether help shows it: a flag that is refused is in the reference, not
    /// in the help.
    pub fn in_help(&self) -> bool {
        self.support != Support::NotYet
    }
}

/// The flag of that name, with its dashes.
pub fn flag(name: &str) -> Option<&'static FlagSpec> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Flags that a manifest's `serve_flags` may name.
pub(super) fn serve_flag_words() -> Vec<Word> {
    FLAGS
        .iter()
        .filter(|flag| flag.answered_by == AnsweredBy::ServeFlags)
        .map(|flag| Word { name: flag.name, meaning: flag.help })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_have_two_dashes() {
        for (index, flag) in FLAGS.iter().enumerate() {
            assert!(flag.name.starts_with("--"), "{}", flag.name);
            assert!(FLAGS[..index].iter().all(|other| other.name != flag.name), "{}", flag.name);
        }
    }

    #[test]
    fn help_is_one_line_without_a_final_period() {
        for flag in FLAGS {
            assert!(!flag.help.is_empty() && !flag.help.ends_with('.'), "{}", flag.name);
            assert!(!flag.help.contains('\n'), "{}", flag.name);
            assert_eq!(flag.is_switch(), flag.value_name.is_empty(), "{}", flag.name);
        }
    }

    #[test]
    fn neutral_values_can_be_typed() {
        for flag in FLAGS {
            let Neutral::Values(values) = flag.neutral else { continue };
            assert!(!values.is_empty(), "{}", flag.name);
            for text in values {
                let value = flag.value.read(flag.name, text).expect(flag.name);
                assert!(flag.is_neutral(&value), "{} {text}", flag.name);
            }
        }
    }

    #[test]
    fn numbers_are_neutral_however_they_are_written() {
        let flag = flag("--prompt-cache-gib").unwrap();
        for text in ["0", "0.0", "0e3", "+0"] {
            assert!(flag.is_neutral(&flag.value.read(flag.name, text).unwrap()), "{text}");
        }
        assert!(!flag.is_neutral(&flag.value.read(flag.name, "0.5").unwrap()));
    }

    #[test]
    fn a_flag_that_reaches_the_plugin_is_answered_for_by_the_manifest() {
        for flag in FLAGS.iter().filter(|flag| flag.support == Support::HandsOn) {
            assert_ne!(flag.answered_by, AnsweredBy::Host, "{}", flag.name);
        }
    }
}
