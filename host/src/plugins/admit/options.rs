//! Options of the plugin's own: `--opt BACKEND.NAME=VALUE`, `--threads N` and those of `plugins.toml`, all judged by
//! the types of its manifest.

use std::collections::BTreeMap;

use tensorfold_plugin_api::manifest::{Manifest, OptionValue};
use tensorfold_plugin_api::vocabulary::{Given, GivenFlags};

use super::flags::{counts, unsupported};
use super::{Refusal, Subject};

/// Values of a plugin's own options, by name.
pub type PluginOptions = BTreeMap<String, OptionValue>;

/// The option that `--threads` sets.
const THREADS: &str = "threads";

/// Every option that is set exists, and has a value that it allows.
pub(super) fn options(subject: &Subject<'_>) -> Vec<Refusal> {
    let given = set_by(subject.flags).filter(|given| !given.is_neutral());
    given
        .filter_map(|given| read(subject, given).err())
        .map(|sentence| unsupported(subject, sentence))
        .collect()
}

/// The values of every option: the given ones, and the defaults of the others.
pub(super) fn resolve(subject: &Subject<'_>) -> PluginOptions {
    let defaults = subject.manifest.options.iter();
    let mut options: PluginOptions =
        defaults.filter_map(|(name, option)| Some((name.clone(), option.default.clone()?))).collect();
    options.extend(set_by(subject.flags).filter_map(|given| read(subject, given).ok()));
    options
}

/// Names of the options that the command line sets.
fn names(flags: &GivenFlags) -> impl Iterator<Item = &str> {
    set_by(flags).filter_map(|given| match given.flag.name {
        "--threads" => Some(THREADS),
        _ => Some(given.text.split_once('=')?.0.rsplit_once('.')?.1),
    })
}

/// The uses of flags that set an option, in their order: a later one wins.
fn set_by(flags: &GivenFlags) -> impl Iterator<Item = &Given> {
    let sets = |given: &&Given| matches!(given.flag.name, "--opt" | "--threads") && counts(flags, given);
    flags.iter().filter(sets)
}

fn read(subject: &Subject<'_>, given: &Given) -> Result<(String, OptionValue), String> {
    match given.flag.name {
        "--threads" => threads(subject, &given.text),
        _ => assignment(subject, &given.text),
    }
}

/// Reads `N` of `--threads N`.
fn threads(subject: &Subject<'_>, text: &str) -> Result<(String, OptionValue), String> {
    let Some(option) = subject.manifest.options.get(THREADS) else {
        return Err(format!(
            "--threads is not served by the {} engine, which has no option {THREADS}; serve without it",
            subject.engine()
        ));
    };
    match option.kind.read(text) {
        Ok(value) => Ok((THREADS.to_owned(), value)),
        Err(error) => Err(format!("--threads {text}: {error}")),
    }
}

/// Reads `BACKEND.NAME=VALUE`.
fn assignment(subject: &Subject<'_>, text: &str) -> Result<(String, OptionValue), String> {
    let plugin = &subject.manifest.plugin;
    let parts = text.split_once('=').and_then(|(path, value)| Some((path.rsplit_once('.')?, value)));
    let Some(((backend, name), value)) = parts else {
        return Err(format!("--opt {text}: expected BACKEND.NAME=VALUE"));
    };
    if !plugin.answers_to(backend) {
        return Err(format!("--opt {text}: the backend in use is {}, not {backend}", plugin.backend));
    }
    let Some(option) = subject.manifest.options.get(name) else {
        let known = known(subject.manifest);
        return Err(format!("--opt {text}: the {} engine has no option {name}; {known}", subject.engine()));
    };
    match option.kind.read(value) {
        Ok(value) => Ok((name.to_owned(), value)),
        Err(error) => Err(format!("--opt {text}: {error}")),
    }
}

fn known(manifest: &Manifest) -> String {
    let names: Vec<&str> = manifest.options.keys().map(String::as_str).collect();
    match names.as_slice() {
        [] => "it has none".to_owned(),
        names => format!("it has {}", names.join(", ")),
    }
}

/// Puts options of `plugins.toml` below those that the command line sets and above defaults.
///
/// # Errors
/// One line about the first entry that the manifest does not allow. A value of another type is not taken for one that
/// it looks like: `"3"` is no number.
pub fn add_configured(
    options: &mut PluginOptions,
    manifest: &Manifest,
    configured: &BTreeMap<String, toml::Value>,
    flags: &GivenFlags,
) -> Result<(), String> {
    let id = &manifest.plugin.id;
    for (name, value) in configured {
        let Some(option) = manifest.options.get(name) else {
            return Err(format!("plugins.toml: plugin {id} has no option {name}; {}", known(manifest)));
        };
        let typed = match value {
            toml::Value::String(text) => Some(OptionValue::Text(text.clone())),
            toml::Value::Integer(number) => Some(OptionValue::Integer(*number)),
            toml::Value::Boolean(value) => Some(OptionValue::Boolean(*value)),
            _ => None,
        };
        let taken = match typed {
            Some(typed) => option.kind.take(typed).map_err(|error| error.to_string()),
            None => Err(format!("found {value}; allowed: {}", option.kind.allowed())),
        };
        let value = taken.map_err(|error| format!("plugins.toml: option {name} of plugin {id}: {error}"))?;
        if !names(flags).any(|given| given == name) {
            options.insert(name.clone(), value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HIP, able_host, flags, manifest};
    use super::super::{Facts, HostFacts, admit};
    use super::*;

    /// What `plugins.toml` and a command line come to together.
    fn merged(configured: &str, line: &str) -> Result<String, String> {
        let (manifest, flags, host): (_, _, HostFacts) = (manifest(HIP), flags(line), able_host());
        let facts = Facts::of_host(&host);
        let subject = Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts };
        let mut options = admit(&subject).map_err(|refusal| refusal.to_string())?.options;
        let configured = toml::from_str(configured).unwrap();
        add_configured(&mut options, &manifest, &configured, &flags)?;
        Ok(options.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_the_file_over_defaults() {
        assert_eq!(merged("", "").unwrap(), "threads=0");
        assert_eq!(merged("threads = 3\nmode = 'fast'", "").unwrap(), "mode=fast threads=3");
        assert_eq!(merged("threads = 3", "--opt=rocm.threads=5").unwrap(), "threads=5");
        assert_eq!(merged("threads = 3", "--threads=5").unwrap(), "threads=5");
        assert_eq!(merged("threads = 3", "--threads=0").unwrap(), "threads=0");
        assert_eq!(merged("threads = 3", "--opt=hip.mode=exact").unwrap(), "mode=exact threads=3");
    }

    #[test]
    fn of_two_uses_the_later_one_wins() {
        assert_eq!(merged("", "--threads=5 --opt=hip.threads=6").unwrap(), "threads=6");
        assert_eq!(merged("", "--opt=hip.threads=6 --threads=5").unwrap(), "threads=5");
    }

    #[test]
    fn an_entry_of_the_file_has_the_type_that_the_manifest_names() {
        let of = "plugins.toml: option threads of plugin backend-hip:";
        for (entry, wanted) in [
            ("threads = '3'", format!("{of} found \"3\"; allowed: a whole number from 0 to 64")),
            ("threads = 3.0", format!("{of} found 3.0; allowed: a whole number from 0 to 64")),
            ("threads = true", format!("{of} found true; allowed: a whole number from 0 to 64")),
            ("threads = 65", format!("{of} found 65; allowed: a whole number from 0 to 64")),
            (
                "thread = 1",
                "plugins.toml: plugin backend-hip has no option thread; it has mode, threads".into(),
            ),
            (
                "mode = 'slow'",
                "plugins.toml: option mode of plugin backend-hip: found \"slow\"; allowed: exact or fast"
                    .into(),
            ),
        ] {
            assert_eq!(merged(entry, ""), Err(wanted.clone()), "{entry}");
            // It is judged also where the command line has the last word.
            assert_eq!(merged(entry, "--threads=2"), Err(wanted), "{entry}");
        }
    }
}
