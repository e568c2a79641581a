//! Flags that the plugin or the host does not serve, and options of the plugin's own.

use std::collections::BTreeMap;

use tensorfold_plugin_api::manifest::OptionValue;
use tensorfold_plugin_api::vocabulary::{
    AnsweredBy, Capability, Code, FlagSpec, Given, Support, sentences, sentences::Server,
};

use super::{Refusal, Subject};

/// Values of a plugin's own options, by name.
pub type PluginOptions = BTreeMap<String, OptionValue>;

/// Refuses every flag that asks for something which nobody here does.
pub(super) fn flags(subject: &Subject<'_>) -> Vec<Refusal> {
    let asking = subject.flags.iter().filter(|given| !given.is_neutral() && counts(subject, given));
    asking.filter_map(|given| judge(subject, given.flag)).collect()
}

/// Of a flag that does not repeat only the last use counts.
fn counts(subject: &Subject<'_>, given: &Given) -> bool {
    let last = subject.flags.last(given.flag.name);
    given.flag.repeats || last.is_some_and(|last| std::ptr::eq(last, given))
}

/// Judges one flag that is not neutral.
pub(super) fn judge(subject: &Subject<'_>, flag: &FlagSpec) -> Option<Refusal> {
    let server = match flag.support {
        Support::Acts | Support::NothingToDo => return None,
        Support::HandsOn if declares(subject, flag) => return None,
        Support::NotYet if declares(subject, flag) => Server::Host,
        Support::HandsOn | Support::NotYet => Server::Engine(subject.engine()),
    };
    let sentence = sentences::flag_not_served(flag.name, server, flag.advice);
    Some(unsupported(subject, sentence).found(flag.name).fix(flag.advice))
}

/// Whether the one who answers for a flag says that it is served.
fn declares(subject: &Subject<'_>, flag: &FlagSpec) -> bool {
    let manifest = subject.manifest;
    match flag.answered_by {
        AnsweredBy::Host => true,
        AnsweredBy::ServeFlags => manifest.lists_flag(flag.name),
        AnsweredBy::Capability(capability) => match capability {
            Capability::Feature(name) => manifest.has_feature(name),
            Capability::Mtp => manifest.mtp().is_some(),
            Capability::Drafters => manifest.external_kinds().next().is_some(),
            Capability::Options => !manifest.options.is_empty(),
            // Every plugin states these; their values are judged by checks of their own.
            Capability::Worlds | Capability::KvDtypes | Capability::Lanes | Capability::Context => true,
        },
    }
}

/// A fixed number of lanes stays within what the plugin runs at once.
pub(super) fn lanes(subject: &Subject<'_>) -> Vec<Refusal> {
    too_many_lanes(subject, subject.manifest.lanes_max()).into_iter().collect()
}

/// Refuses a fixed `--parallel` above a limit.
pub(super) fn too_many_lanes(subject: &Subject<'_>, limit: Option<u32>) -> Option<Refusal> {
    let (asked, limit) = (subject.flags.integer("--parallel")?, limit?);
    if asked <= i64::from(limit) {
        return None;
    }
    let advice = format!("it runs at most {limit} at once");
    let server = Server::Engine(subject.engine());
    let sentence = sentences::flag_value_not_served("--parallel", &asked.to_string(), server, &advice);
    Some(unsupported(subject, sentence).wanted(format!("at most {limit}")).found(asked.to_string()))
}

/// Every `--opt` names an option of this plugin and gives it a value that it allows.
pub(super) fn options(subject: &Subject<'_>) -> Vec<Refusal> {
    let given = subject.flags.texts("--opt");
    given
        .filter_map(|text| read_option(subject, text).err())
        .map(|sentence| unsupported(subject, sentence))
        .collect()
}

/// The values of every option: the given ones, and the defaults of the others.
pub(super) fn resolve(subject: &Subject<'_>) -> PluginOptions {
    let defaults = subject.manifest.options.iter();
    let mut options: PluginOptions =
        defaults.filter_map(|(name, option)| Some((name.clone(), option.default.clone()?))).collect();
    options.extend(subject.flags.texts("--opt").filter_map(|text| read_option(subject, text).ok()));
    options
}

/// Reads `BACKEND.NAME=VALUE`.
fn read_option(subject: &Subject<'_>, text: &str) -> Result<(String, OptionValue), String> {
    let plugin = &subject.manifest.plugin;
    let parts = text.split_once('=').and_then(|(path, value)| Some((path.rsplit_once('.')?, value)));
    let Some(((backend, name), value)) = parts else {
        return Err(format!("--opt {text}: expected BACKEND.NAME=VALUE"));
    };
    if !plugin.answers_to(backend) {
        return Err(format!("--opt {text}: the backend in use is {}, not {backend}", plugin.backend));
    }
    let Some(option) = subject.manifest.options.get(name) else {
        let names: Vec<&str> = subject.manifest.options.keys().map(String::as_str).collect();
        let known = match names.as_slice() {
            [] => "it has none".to_owned(),
            names => format!("it has {}", names.join(", ")),
        };
        return Err(format!("--opt {text}: the {} engine has no option {name}; {known}", subject.engine()));
    };
    match option.kind.read(value) {
        Ok(value) => Ok((name.to_owned(), value)),
        Err(error) => Err(format!("--opt {text}: {error}")),
    }
}

fn unsupported(subject: &Subject<'_>, sentence: String) -> Refusal {
    subject.refuse(Code::FlagUnsupported, sentence.clone()).saying(sentence)
}
