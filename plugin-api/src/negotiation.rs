//! Which versions of the contract a host and a plugin can work at.
//!
//! Everything in here is arithmetic on numbers that both sides state: nothing
//! is read, opened or guessed. An ABI that does not match has no override; a
//! host release that a vendor has not tested may be allowed, and is then
//! reported.

use std::collections::BTreeSet;
use std::fmt;

use semver::{BuildMetadata, Prerelease, Version, VersionReq};
use serde::Serialize;
use thiserror::Error;

/// A version of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct AbiVersion {
    /// Versions of different majors do not work together.
    pub major: u16,
    /// A later minor offers more, from major 1 on. Minors of major 0 do not
    /// work together.
    pub minor: u16,
}

impl fmt::Display for AbiVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// What a host states.
#[derive(Clone, Debug)]
pub struct HostSide<'a> {
    /// The host's release.
    pub release: &'a Version,
    /// One version for each major that it speaks: the latest minor of it.
    pub abi: &'a [AbiVersion],
    /// Whether a release that the vendor has not tested is taken all the same.
    pub allow_untested: bool,
}

/// What a plugin states.
#[derive(Clone, Copy, Debug)]
pub struct PluginSide<'a> {
    /// The ABI it was built against.
    pub abi: AbiVersion,
    /// The oldest minor of a host that it can live with.
    pub min_host_minor: u16,
    /// Host releases that its vendor has tested; none means all.
    pub host: Option<&'a VersionReq>,
}

/// What both agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The version to work at. Neither side asks for later interfaces.
    pub abi: AbiVersion,
    /// Set when the host release lies outside what the vendor has tested and
    /// the user allowed that.
    pub untested: Option<UntestedHost>,
}

/// A host release outside the range that a vendor has tested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tested with tensorfold {range}; this is {release}")]
pub struct UntestedHost {
    /// The range.
    pub range: String,
    /// The release, with its pre-release and build parts.
    pub release: String,
}

/// Why a host and a plugin do not work together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Disagreement {
    /// The host does not speak the plugin's major.
    #[error("built for ABI {}, this host speaks {}", plugin.major, majors(host))]
    Major {
        /// The plugin's version.
        plugin: AbiVersion,
        /// The host's versions.
        host: Vec<AbiVersion>,
    },
    /// Before the first stable ABI every minor stands alone.
    #[error("built for ABI {plugin}, this host speaks {host}; before ABI 1 the minors must be equal")]
    UnstableMinor {
        /// The plugin's version.
        plugin: AbiVersion,
        /// The host's version of that major.
        host: AbiVersion,
    },
    /// The host is older than the plugin can live with.
    #[error("needs a host of ABI {} or later, this host speaks {host}", oldest(*plugin, *min_host_minor))]
    HostTooOld {
        /// The plugin's version.
        plugin: AbiVersion,
        /// The oldest minor that it can live with.
        min_host_minor: u16,
        /// The host's version of that major.
        host: AbiVersion,
    },
    /// The vendor has not tested this host release.
    #[error(transparent)]
    Untested(#[from] UntestedHost),
}

/// Which side to replace to make a plugin and a host meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// A later host.
    UpgradeHost,
    /// A later plugin.
    UpgradePlugin,
    /// A plugin of another release, or the user's permission.
    OtherPluginOrPermission,
}

impl Disagreement {
    /// What helps.
    pub fn remedy(&self) -> Remedy {
        let by_age = |plugin: AbiVersion, host: Option<AbiVersion>| match host {
            Some(host) if plugin < host => Remedy::UpgradePlugin,
            _ => Remedy::UpgradeHost,
        };
        match self {
            Disagreement::Major { plugin, host } => by_age(*plugin, host.iter().copied().max()),
            Disagreement::UnstableMinor { plugin, host } => by_age(*plugin, Some(*host)),
            Disagreement::HostTooOld { .. } => Remedy::UpgradeHost,
            Disagreement::Untested(_) => Remedy::OtherPluginOrPermission,
        }
    }
}

/// Finds the version to work at.
pub fn negotiate(host: &HostSide<'_>, plugin: &PluginSide<'_>) -> Result<Agreement, Disagreement> {
    let abi = negotiate_abi(host.abi, plugin)?;
    let untested = match plugin.host {
        Some(range) if !release_is_within(range, host.release) => {
            let untested = UntestedHost { range: range.to_string(), release: host.release.to_string() };
            if !host.allow_untested {
                return Err(untested.into());
            }
            Some(untested)
        }
        _ => None,
    };
    Ok(Agreement { abi, untested })
}

fn negotiate_abi(host: &[AbiVersion], plugin: &PluginSide<'_>) -> Result<AbiVersion, Disagreement> {
    let built = plugin.abi;
    let same_major = host.iter().copied().filter(|version| version.major == built.major).max();
    let Some(host) = same_major else {
        return Err(Disagreement::Major { plugin: built, host: host.to_vec() });
    };
    if built.major == 0 {
        return match built.minor == host.minor {
            true => Ok(built),
            false => Err(Disagreement::UnstableMinor { plugin: built, host }),
        };
    }
    if host.minor < plugin.min_host_minor {
        let min_host_minor = plugin.min_host_minor;
        return Err(Disagreement::HostTooOld { plugin: built, min_host_minor, host });
    }
    Ok(AbiVersion { major: built.major, minor: built.minor.min(host.minor) })
}

/// A pre-release of a host counts as the release that it leads to: by the rules
/// of ranges `>=0.3` would not hold for `0.4.0-rc.1`.
fn release_is_within(range: &VersionReq, release: &Version) -> bool {
    let plain = Version { pre: Prerelease::EMPTY, build: BuildMetadata::EMPTY, ..release.clone() };
    range.matches(&plain)
}

/// Interfaces that a plugin needs of the host and the host does not offer.
pub fn missing_host_interfaces(needed: &BTreeSet<String>, offered: &[&str]) -> Vec<String> {
    needed.iter().filter(|id| !offered.contains(&id.as_str())).cloned().collect()
}

/// The latest id of an interface that both sides know, where `known` are the
/// host's, the one it likes best first: `tensorfold.engine/2` before
/// `tensorfold.engine/1`.
pub fn common_interface<'h>(offered: &BTreeSet<String>, known: &[&'h str]) -> Option<&'h str> {
    known.iter().copied().find(|id| offered.contains(*id))
}

fn majors(versions: &[AbiVersion]) -> String {
    let mut majors: Vec<u16> = versions.iter().map(|version| version.major).collect();
    majors.sort_unstable();
    crate::vocabulary::alternatives(majors)
}

fn oldest(plugin: AbiVersion, min_host_minor: u16) -> AbiVersion {
    AbiVersion { major: plugin.major, minor: min_host_minor }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abi(text: &str) -> AbiVersion {
        let (major, minor) = text.split_once('.').expect("major.minor");
        AbiVersion { major: major.parse().unwrap(), minor: minor.parse().unwrap() }
    }

    /// The outcome for a host that speaks these, and a plugin built against
    /// that one and content with that minor.
    fn outcome(host: &[&str], plugin: &str, min_host_minor: u16) -> Result<String, String> {
        let release = Version::new(3, 0, 0);
        let versions: Vec<AbiVersion> = host.iter().copied().map(abi).collect();
        let host = HostSide { release: &release, abi: &versions, allow_untested: false };
        let plugin = PluginSide { abi: abi(plugin), min_host_minor, host: None };
        negotiate(&host, &plugin).map(|agreed| agreed.abi.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_and_plugins_of_every_age_meet_or_say_why_not() {
        for (host, plugin, min_host_minor, wanted) in [
            // The same.
            (&["1.0"] as &[&str], "1.0", 0, Ok("1.0")),
            (&["2.7"], "2.7", 7, Ok("2.7")),
            // An older plugin.
            (&["1.5"], "1.2", 0, Ok("1.2")),
            (&["1.5"], "1.2", 2, Ok("1.2")),
            (&["2.9"], "2.0", 0, Ok("2.0")),
            // A newer plugin, content with an older host.
            (&["1.2"], "1.5", 0, Ok("1.2")),
            (&["1.2"], "1.5", 2, Ok("1.2")),
            (&["2.0"], "2.1", 0, Ok("2.0")),
            // A newer plugin that is not.
            (&["1.2"], "1.5", 3, Err("needs a host of ABI 1.3 or later, this host speaks 1.2")),
            (&["2.0"], "2.1", 1, Err("needs a host of ABI 2.1 or later, this host speaks 2.0")),
            // Other majors.
            (&["1.9"], "2.0", 0, Err("built for ABI 2, this host speaks 1")),
            (&["2.0"], "1.9", 0, Err("built for ABI 1, this host speaks 2")),
            (&["2.0"], "0.1", 0, Err("built for ABI 0, this host speaks 2")),
            (&["2.0", "3.0"], "1.9", 0, Err("built for ABI 1, this host speaks 2 or 3")),
            (&[], "1.0", 0, Err("built for ABI 1, this host speaks nothing")),
            // A host that speaks two majors.
            (&["2.0", "1.4"], "1.2", 0, Ok("1.2")),
            (&["2.0", "1.4"], "1.6", 5, Err("needs a host of ABI 1.5 or later, this host speaks 1.4")),
            (&["1.4", "2.0"], "2.3", 0, Ok("2.0")),
            // Before the first stable one.
            (&["0.1"], "0.1", 1, Ok("0.1")),
            (&["0.1"], "0.1", 0, Ok("0.1")),
            (
                &["0.2"],
                "0.1",
                0,
                Err("built for ABI 0.1, this host speaks 0.2; before ABI 1 the minors must be equal"),
            ),
            (
                &["0.1"],
                "0.2",
                0,
                Err("built for ABI 0.2, this host speaks 0.1; before ABI 1 the minors must be equal"),
            ),
            (&["1.0", "0.3"], "0.3", 0, Ok("0.3")),
        ] {
            let wanted = wanted.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(outcome(host, plugin, min_host_minor), wanted, "{host:?} {plugin} {min_host_minor}");
        }
    }

    #[test]
    fn the_remedy_is_the_older_side() {
        let remedy = |host: &str, plugin: &str, min_host_minor| {
            let release = Version::new(1, 0, 0);
            let versions = [abi(host)];
            let host = HostSide { release: &release, abi: &versions, allow_untested: false };
            negotiate(&host, &PluginSide { abi: abi(plugin), min_host_minor, host: None })
                .unwrap_err()
                .remedy()
        };
        assert_eq!(remedy("1.0", "2.0", 0), Remedy::UpgradeHost);
        assert_eq!(remedy("2.0", "1.0", 0), Remedy::UpgradePlugin);
        assert_eq!(remedy("0.1", "0.2", 0), Remedy::UpgradeHost);
        assert_eq!(remedy("0.2", "0.1", 0), Remedy::UpgradePlugin);
        assert_eq!(remedy("1.0", "1.4", 2), Remedy::UpgradeHost);
    }

    fn release(release: &str, range: &str, allow_untested: bool) -> Result<Option<String>, String> {
        let (release, range) = (Version::parse(release).unwrap(), VersionReq::parse(range).unwrap());
        let versions = [abi("1.0")];
        let host = HostSide { release: &release, abi: &versions, allow_untested };
        let plugin = PluginSide { abi: abi("1.0"), min_host_minor: 0, host: Some(&range) };
        negotiate(&host, &plugin)
            .map(|agreed| agreed.untested.map(|untested| untested.to_string()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_pre_release_counts_as_the_release_that_it_leads_to() {
        for (host, range, within) in [
            ("0.4.0", ">=0.3, <0.5", true),
            ("0.4.0-rc.1", ">=0.3, <0.5", true),
            ("0.4.0-rc.1+build.7", ">=0.3, <0.5", true),
            ("0.5.0-alpha", ">=0.3, <0.5", false),
            ("0.3.0-alpha", ">=0.3", true),
            ("0.2.9", ">=0.3", false),
            ("1.2.3", "^1.2", true),
            ("2.0.0", "^1.2", false),
        ] {
            assert_eq!(release(host, range, false).is_ok(), within, "{host} {range}");
        }
    }

    #[test]
    fn an_untested_release_is_named_whole_and_may_be_allowed() {
        let wanted = "tested with tensorfold >=0.3, <0.5; this is 0.5.0-rc.1+abc";
        assert_eq!(release("0.5.0-rc.1+abc", ">=0.3, <0.5", false), Err(wanted.to_owned()));
        assert_eq!(release("0.5.0-rc.1+abc", ">=0.3, <0.5", true), Ok(Some(wanted.to_owned())));
        assert_eq!(release("0.4.0", ">=0.3, <0.5", true), Ok(None));
    }

    #[test]
    fn permission_for_an_untested_release_does_not_bend_the_abi() {
        let (release, range) = (Version::new(9, 0, 0), VersionReq::parse("<1").unwrap());
        let versions = [abi("1.0")];
        let host = HostSide { release: &release, abi: &versions, allow_untested: true };
        let plugin = PluginSide { abi: abi("2.0"), min_host_minor: 0, host: Some(&range) };
        assert!(matches!(negotiate(&host, &plugin), Err(Disagreement::Major { .. })));
    }

    #[test]
    fn interfaces_meet_at_the_one_the_host_likes_best() {
        let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        let known = ["tensorfold.engine/2", "tensorfold.engine/1"];
        let both = set(&["tensorfold.engine/1", "tensorfold.engine/2", "tensorfold.engine/3"]);
        assert_eq!(common_interface(&both, &known), Some("tensorfold.engine/2"));
        assert_eq!(common_interface(&set(&["tensorfold.engine/1"]), &known), Some("tensorfold.engine/1"));
        assert_eq!(common_interface(&set(&["tensorfold.engine/3"]), &known), None);
        let needed = set(&["tensorfold.host/1", "tensorfold.host/2"]);
        assert_eq!(missing_host_interfaces(&needed, &["tensorfold.host/1"]), ["tensorfold.host/2"]);
    }
}
