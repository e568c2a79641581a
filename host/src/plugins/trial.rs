//! Trying a plugin where it can do no harm, and remembering how that went.
//!
//! Before a plugin's code runs in this process it has run once in a child: a crash, a hang or an `exit` there ends the
//! child and becomes a finding here. What crashed is not tried again by itself; any change of the file, the driver or
//! the machine makes it a new plugin.

use std::path::Path;
use std::time::Duration;

use tensorfold_plugin_api::abi::{ABI_MAJOR, ABI_MINOR};

use super::catalog::Catalog;
use super::image::Image;
use super::lifecycle::{Code, Finding, Level, State};
use super::probe::{self, Probe};
use super::verdicts::{Key, Verdict, Verdicts, boot_id};

/// When a plugin is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Unless it was tried before and nothing spoke against it.
    Unknown,
    /// Each time.
    Always,
    /// Each time, also when it is in quarantine.
    Again,
}

/// What became of a trial.
#[derive(Clone, Debug)]
pub enum Trial {
    /// It was tried before, and nothing spoke against it.
    Known,
    /// It crashed or hung before and was not tried again.
    Quarantined,
    /// It ran.
    Ran(Box<Probe>),
}

/// Tries a plugin that was admitted. Findings are recorded with the plugin. `name` is what the user calls it.
///
/// # Errors
/// What the system said when the library could not be read or no child could be started.
pub fn try_plugin(
    catalog: &mut Catalog,
    index: usize,
    image: &Image,
    when: When,
    limit: Duration,
    name: &str,
) -> std::io::Result<Trial> {
    let plugin = &catalog.plugins()[index];
    let Some(library) = plugin.library.clone() else { return Err(std::io::ErrorKind::NotFound.into()) };
    let manifest = plugin.manifest_path.clone();
    let mut verdicts = Verdicts::read(&catalog.environment);
    if when == When::Again {
        verdicts.clear(&library);
    }
    let sha256 = verdicts.digest(&library, image.identity)?;
    let key = key(catalog, &library, image, sha256);
    if let Some(finding) = quarantine(&verdicts, &key, name) {
        record_quarantine(catalog, index, finding);
        return Ok(Trial::Quarantined);
    }
    if when == When::Unknown
        && let Some((Verdict::Answered { report }, _)) = verdicts.get(&key)
        && !report.findings().iter().any(|finding| finding.level == Level::Error)
    {
        return Ok(Trial::Known);
    }
    let allow_untested = catalog.host().allow_untested;
    let tried = probe::probe(&catalog.environment, &catalog.options, &manifest, allow_untested, limit)?;
    verdicts.put(&key, tried.verdict.clone());
    verdicts.save();
    let plugin = catalog.plugin_mut(index);
    for finding in tried.findings() {
        // What the child found by inspecting is known already.
        let known =
            plugin.life.findings().iter().any(|old| old.code == finding.code && old.what == finding.what);
        if !known {
            plugin.record(finding);
        }
    }
    Ok(Trial::Ran(Box::new(tried)))
}

/// How the last trial of a plugin ended, and when, in seconds since 1970. Hashes nothing, as [`recall`].
pub fn last_verdict(
    catalog: &Catalog,
    index: usize,
    image: &Image,
    verdicts: &Verdicts,
) -> Option<(Verdict, u64)> {
    let library = catalog.plugins()[index].library.clone()?;
    let sha256 = verdicts.known_digest(&library, image.identity)?;
    let (verdict, since) = verdicts.get(&key(catalog, &library, image, sha256))?;
    Some((verdict.clone(), since))
}

/// Puts a plugin that crashed or hung before into quarantine. Hashes nothing: a library whose digest is not in the
/// cache was not tried.
pub fn recall(catalog: &mut Catalog, index: usize, image: &Image, verdicts: &Verdicts) {
    let plugin = &catalog.plugins()[index];
    let Some(library) = plugin.library.clone() else { return };
    let Some(sha256) = verdicts.known_digest(&library, image.identity) else { return };
    let name = plugin.name();
    let key = key(catalog, &library, image, sha256);
    if let Some(finding) = quarantine(verdicts, &key, &name) {
        record_quarantine(catalog, index, finding);
    }
}

fn record_quarantine(catalog: &mut Catalog, index: usize, finding: Finding) {
    let plugin = catalog.plugin_mut(index);
    plugin.record(finding);
    // An admitted plugin may be quarantined; one in another state keeps it.
    let _ = plugin.life.advance(State::Quarantined);
}

fn quarantine(verdicts: &Verdicts, key: &Key, name: &str) -> Option<Finding> {
    let (verdict, since) = verdicts.get(key)?;
    let what = verdict.quarantine()?;
    let finding = Finding::error(Code::Quarantined, format!("it failed before: {what}"))
        .found(ago(since))
        .fix(format!("try it again with `tensorfold plugins check {name} --retry`"));
    Some(finding)
}

/// Everything that could change the outcome of a trial.
fn key(catalog: &Catalog, library: &Path, image: &Image, sha256: String) -> Key {
    let drivers = &catalog.hardware().drivers;
    Key {
        library: library.to_path_buf(),
        identity: image.identity,
        sha256,
        host_version: env!("CARGO_PKG_VERSION").into(),
        abi: format!("{ABI_MAJOR}.{ABI_MINOR}"),
        kernel: drivers.kernel.clone(),
        drivers: [&drivers.nvidia, &drivers.amdgpu].into_iter().flatten().cloned().collect(),
        boot_id: boot_id(catalog.root()),
        visibility: catalog.environment.visibility.clone(),
    }
}

/// How long ago a moment was, given in seconds since 1970.
fn ago(since: u64) -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match now.saturating_sub(since) {
        0..60 => "less than a minute ago".to_owned(),
        seconds @ 60..3600 => format!("{} minutes ago", seconds / 60),
        seconds @ 3600..86_400 => format!("{} hours ago", seconds / 3600),
        seconds => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::tests::{find, installed};
    use super::*;

    #[test]
    fn moments_are_told_as_people_tell_them() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert_eq!(ago(now + 5), "less than a minute ago");
        assert_eq!(ago(now - 121), "2 minutes ago");
        assert_eq!(ago(now - 7300), "2 hours ago");
        assert_eq!(ago(now - 3 * 86_400 - 60), "3 days ago");
    }

    /// A catalog whose child is this shell script instead of the program.
    fn with_child(script: &str) -> (tempfile::TempDir, Catalog, Image) {
        use std::os::unix::fs::PermissionsExt as _;
        let (root, _) = installed(&["backend-one"]);
        let child = root.path().join("child");
        std::fs::write(&child, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&child, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (catalog, image) = again(root.path());
        (root, catalog, image)
    }

    /// The same as a new process finds it.
    fn again(root: &Path) -> (Catalog, Image) {
        let mut catalog = find(root);
        catalog.environment.executable = Some(root.join("child"));
        let image = catalog.inspect(0).image.unwrap();
        (catalog, image)
    }

    fn run(catalog: &mut Catalog, image: &Image, when: When) -> Trial {
        try_plugin(catalog, 0, image, when, Duration::from_secs(20), "one").unwrap()
    }

    #[test]
    fn a_crash_is_recorded_remembered_and_tried_again_only_on_request() {
        let (root, mut catalog, image) = with_child("kill -SEGV $$");
        assert!(matches!(run(&mut catalog, &image, When::Unknown), Trial::Ran(_)));
        assert!(catalog.refusal(0).unwrap().to_string().contains("signal 11"));
        let (mut catalog, image) = again(root.path());
        assert!(matches!(run(&mut catalog, &image, When::Always), Trial::Quarantined));
        assert_eq!(catalog.plugins()[0].life.state(), State::Quarantined);
        assert!(catalog.refusal(0).unwrap().to_string().contains("--retry"));
        let (mut catalog, image) = again(root.path());
        let verdicts = Verdicts::read(&catalog.environment);
        let (verdict, since) = last_verdict(&catalog, 0, &image, &verdicts).unwrap();
        assert!(matches!(verdict, Verdict::Crashed { .. }) && since > 0);
        recall(&mut catalog, 0, &image, &verdicts);
        assert_eq!(catalog.plugins()[0].life.state(), State::Quarantined);
        let (mut catalog, image) = again(root.path());
        assert!(matches!(run(&mut catalog, &image, When::Again), Trial::Ran(_)));
    }

    #[test]
    fn a_good_verdict_is_not_asked_for_twice() {
        let good = r#"echo '{"schema":"tensorfold.plugins.probe/1","state":"initialised","layout":null,"build_id":null,"devices":[],"runtimes":[],"findings":[],"milliseconds":1}'"#;
        let (root, mut catalog, image) = with_child(good);
        assert!(matches!(run(&mut catalog, &image, When::Unknown), Trial::Ran(_)));
        assert_eq!(catalog.refusal(0), None);
        let (mut catalog, image) = again(root.path());
        assert!(matches!(run(&mut catalog, &image, When::Unknown), Trial::Known));
        assert!(matches!(run(&mut catalog, &image, When::Always), Trial::Ran(_)));
    }

    #[test]
    fn recalling_makes_no_file() {
        let (root, mut catalog, image) = with_child("exit 0");
        let verdicts = Verdicts::read(&catalog.environment);
        recall(&mut catalog, 0, &image, &verdicts);
        assert_eq!(catalog.plugins()[0].life.state(), State::Admitted);
        assert!(!root.path().join("cache").exists());
    }
}
