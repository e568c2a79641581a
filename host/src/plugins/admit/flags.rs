//! Flags that the plugin or the host does not serve.

use tensorfold_plugin_api::vocabulary::{
    AnsweredBy, Capability, Code, FlagSpec, Given, GivenFlags, Support, sentences, sentences::Server,
};

use super::{Refusal, Subject};

/// Refuses every flag that asks for something which nobody here does.
pub(super) fn flags(subject: &Subject<'_>) -> Vec<Refusal> {
    let asking = subject.flags.iter().filter(|given| !given.is_neutral() && counts(subject.flags, given));
    asking.filter_map(|given| judge(subject, given.flag)).collect()
}

/// Of a flag that does not repeat only the last use counts.
pub(super) fn counts(flags: &GivenFlags, given: &Given) -> bool {
    let last = flags.last(given.flag.name);
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
            Capability::Option(name) => manifest.options.contains_key(name),
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

pub(super) fn unsupported(subject: &Subject<'_>, sentence: String) -> Refusal {
    subject.refuse(Code::FlagUnsupported, sentence.clone()).saying(sentence)
}
