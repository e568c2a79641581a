//! Builds a [`Manifest`] from a document whose keys were checked, and checks
//! what holds between keys.
//!
//! Where a value was already reported as wrong, something harmless takes its
//! place: the manifest is thrown away in that case.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use semver::{Version, VersionReq};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check::integer;
use super::options::build_option;
use super::source::{Report, printable};
use super::{
    Abi, Capabilities, CopyDrafter, Device, DottedNumber, Drafter, ExternalDrafter, Family, Limits, Manifest,
    MtpDrafter, Panics, Plugin, Revisions, Runtime, RuntimeLink, RuntimeNeed, Target,
};
use crate::vocabulary::DrafterKind;

/// A table, or none where the file has none.
#[derive(Clone, Copy)]
struct Keys<'d>(Option<&'d DeTable<'d>>);

impl<'d> Keys<'d> {
    fn value(self, key: &str) -> Option<&'d DeValue<'d>> {
        Some(self.spanned(key)?.get_ref())
    }

    fn spanned(self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.0?.get(key)
    }

    fn span(self, key: &str) -> Option<Range<usize>> {
        Some(self.spanned(key)?.span())
    }

    fn table(self, key: &str) -> Keys<'d> {
        Keys(self.value(key).and_then(DeValue::as_table))
    }

    fn tables(self, key: &str) -> Vec<Keys<'d>> {
        let items = self.value(key).and_then(DeValue::as_array);
        let tables = items.into_iter().flat_map(|items| items.iter()).map(|item| item.get_ref().as_table());
        tables.map(Keys).collect()
    }

    fn entries(self) -> impl Iterator<Item = (&'d str, &'d Spanned<DeValue<'d>>)> {
        self.0.into_iter().flat_map(|table| table.iter()).map(|(key, value)| (&**key.get_ref(), value))
    }

    fn optional_text(self, key: &str) -> Option<String> {
        self.value(key)?.as_str().map(str::to_owned)
    }

    fn text(self, key: &str) -> String {
        self.optional_text(key).unwrap_or_default()
    }

    fn texts(self, key: &str) -> Vec<String> {
        let items = self.value(key).and_then(DeValue::as_array);
        let items = items.into_iter().flat_map(|items| items.iter());
        items.filter_map(|item| item.get_ref().as_str()).map(str::to_owned).collect()
    }

    fn optional_set(self, key: &str) -> Option<BTreeSet<String>> {
        self.value(key).map(|_| self.texts(key).into_iter().collect())
    }

    fn set(self, key: &str) -> BTreeSet<String> {
        self.optional_set(key).unwrap_or_default()
    }

    fn set_or(self, key: &str, default: &str) -> BTreeSet<String> {
        self.optional_set(key).unwrap_or_else(|| BTreeSet::from([default.to_owned()]))
    }

    fn optional_number(self, key: &str) -> Option<u32> {
        integer(self.value(key)?)?.try_into().ok()
    }

    fn number(self, key: &str) -> u32 {
        self.optional_number(key).unwrap_or_default()
    }

    fn short_number(self, key: &str) -> u16 {
        self.number(key).try_into().unwrap_or_default()
    }

    fn optional_numbers(self, key: &str) -> Option<BTreeSet<u32>> {
        let items = self.value(key)?.as_array()?;
        Some(items.iter().filter_map(|item| integer(item.get_ref())?.try_into().ok()).collect())
    }

    /// Numbers of ranks; one rank where nothing is said.
    fn worlds(self) -> BTreeSet<u32> {
        self.optional_numbers("worlds").unwrap_or_else(|| BTreeSet::from([1]))
    }

    fn flag(self, key: &str, default: bool) -> bool {
        self.value(key).and_then(DeValue::as_bool).unwrap_or(default)
    }

    fn dotted(self, key: &str) -> Option<DottedNumber> {
        DottedNumber::parse(self.value(key)?.as_str()?)
    }
}

/// Builds the manifest and reports what does not go together.
pub(super) fn build(document: &DeTable<'_>, report: &mut Report<'_>) -> Manifest {
    let root = Keys(Some(document));
    let manifest = Manifest {
        format: root.number("manifest"),
        requires: root.set("requires"),
        plugin: plugin(root.table("plugin")),
        abi: abi(root.table("abi")),
        target: target(root.table("target")),
        devices: root.tables("device").into_iter().map(device).collect(),
        runtimes: root.tables("runtime").into_iter().map(runtime).collect(),
        drivers: drivers(root.table("driver")),
        capabilities: capabilities(root.table("caps")),
        drafters: drafters(root.table("drafters")),
        unsupported: root
            .table("unsupported")
            .entries()
            .filter_map(|(kind, value)| Some((kind.to_owned(), value.get_ref().as_str()?.to_owned())))
            .collect(),
        families: root.tables("family").into_iter().map(family).collect(),
        options: options(root.table("options"), report),
    };
    // Between keys nothing can be said while one of them is wrong by itself.
    if report.is_clean() {
        check_names(root, &manifest, report);
        check_versions(root, &manifest, report);
        check_drafters(root, &manifest, report);
        check_families(root, &manifest, report);
    }
    manifest
}

fn plugin(keys: Keys<'_>) -> Plugin {
    Plugin {
        id: keys.text("id"),
        variant: keys.optional_text("variant"),
        version: Version::parse(&keys.text("version")).unwrap_or(Version::new(0, 0, 0)),
        engine_name: keys.text("engine_name"),
        platform_name: keys.optional_text("platform_name"),
        backend: keys.text("backend"),
        aliases: keys.texts("aliases"),
        library: keys.text("library"),
        sha256: keys.optional_text("sha256").map(|digest| digest.to_ascii_lowercase()),
        vendor: keys.optional_text("vendor"),
        license: keys.optional_text("license"),
        report: keys.optional_text("report"),
        panics: match keys.optional_text("panics").as_deref() {
            Some("abort") => Panics::Abort,
            _ => Panics::Unwind,
        },
    }
}

fn abi(keys: Keys<'_>) -> Abi {
    let minor = keys.short_number("minor");
    Abi {
        major: keys.short_number("major"),
        minor,
        min_host_minor: keys.value("min_host_minor").map_or(minor, |_| keys.short_number("min_host_minor")),
        host: keys.optional_text("host").and_then(|range| VersionReq::parse(&range).ok()),
        interfaces: keys.set("interfaces"),
        host_interfaces: keys.set("host_interfaces"),
    }
}

fn target(keys: Keys<'_>) -> Target {
    Target {
        os: keys.text("os"),
        arch: keys.text("arch"),
        libc: keys.optional_text("libc").unwrap_or_else(|| "none".to_owned()),
        libc_min: keys.dotted("libc_min"),
        cpu: keys.set("cpu"),
    }
}

fn device(keys: Keys<'_>) -> Device {
    Device {
        kind: keys.text("kind"),
        vendor: keys.optional_text("vendor"),
        archs: keys.set("archs"),
        memory: keys.set("memory"),
    }
}

fn runtime(keys: Keys<'_>) -> Runtime {
    Runtime {
        name: keys.text("name"),
        soname: keys.texts("soname"),
        how: match keys.optional_text("how").as_deref() {
            Some("linked") => RuntimeLink::Linked,
            _ => RuntimeLink::Dlopen,
        },
        need: match keys.optional_text("need").as_deref() {
            Some("recommended") => RuntimeNeed::Recommended,
            Some("suggested") => RuntimeNeed::Suggested,
            _ => RuntimeNeed::Required,
        },
    }
}

fn drivers(keys: Keys<'_>) -> BTreeMap<String, DottedNumber> {
    keys.entries().filter_map(|(name, _)| Some((name.to_owned(), keys.dotted(name)?))).collect()
}

fn capabilities(keys: Keys<'_>) -> Capabilities {
    Capabilities {
        worlds: keys.worlds(),
        formats: keys.set("formats"),
        kv_dtypes: keys.set("kv_dtypes"),
        features: keys.set("features"),
        serve_flags: keys.set("serve_flags"),
        numerics: keys.set("numerics"),
        limits: limits(keys.table("limits")),
    }
}

fn limits(keys: Keys<'_>) -> Limits {
    Limits {
        lanes: keys.optional_number("lanes"),
        context: keys.optional_number("context"),
        verify_rows: keys.optional_number("verify_rows"),
    }
}

fn drafters(kinds: Keys<'_>) -> BTreeMap<String, Drafter> {
    let build = |(name, value): (&str, &Spanned<DeValue<'_>>)| {
        let keys = Keys(value.get_ref().as_table());
        let revision = keys.table("revision");
        let revision = Revisions { min: revision.number("min"), max: revision.number("max") };
        let drafter = match DrafterKind::from_id(name) {
            None => Drafter::Unknown,
            Some(DrafterKind::Mtp) => Drafter::Mtp(MtpDrafter {
                revision,
                depth_max: keys.number("depth_max"),
                worlds: keys.worlds(),
                weights: keys.set_or("weights", "in-checkpoint"),
                batched: keys.flag("batched", false),
                confidence: keys.flag("confidence", true),
            }),
            Some(DrafterKind::Copy) => Drafter::Copy(CopyDrafter {
                min_match: keys.optional_number("min_match"),
                rows_max: keys.optional_number("rows_max"),
            }),
            Some(_) => Drafter::External(ExternalDrafter {
                revision,
                block_max: keys.number("block_max"),
                taps_max: keys.optional_number("taps_max"),
                dtypes: keys.set_or("dtypes", "bf16"),
                worlds: keys.worlds(),
                lanes_max: keys.optional_number("lanes_max"),
                vocab_prune: keys.flag("vocab_prune", false),
            }),
        };
        (name.to_owned(), drafter)
    };
    kinds.entries().map(build).collect()
}

fn family(keys: Keys<'_>) -> Family {
    Family {
        model_type: keys.text("model_type"),
        drafters: keys.optional_set("drafters"),
        formats: keys.optional_set("formats"),
        kv_dtypes: keys.optional_set("kv_dtypes"),
        features: keys.optional_set("features"),
        numerics: keys.optional_set("numerics"),
        worlds: keys.optional_numbers("worlds"),
        limits: keys.value("limits").map(|_| limits(keys.table("limits"))),
    }
}

fn options(keys: Keys<'_>, report: &mut Report<'_>) -> BTreeMap<String, super::OptionSpec> {
    let mut options = BTreeMap::new();
    for (name, value) in keys.entries() {
        let Some(table) = value.get_ref().as_table() else { continue };
        if let Some(option) = build_option(&format!("options.{name}"), table, report) {
            options.insert(name.to_owned(), option);
        }
    }
    options
}

/// Names of one plugin differ from each other and from `auto`.
fn check_names(root: Keys<'_>, manifest: &Manifest, report: &mut Report<'_>) {
    let keys = root.table("plugin");
    let plugin = &manifest.plugin;
    let names = [("id", &plugin.id), ("backend", &plugin.backend)];
    let aliases = plugin.aliases.iter().map(|alias| ("aliases", alias));
    for (key, name) in names.into_iter().chain(aliases) {
        let path = format!("plugin.{key}");
        if name == "auto" {
            report.wrong(keys.span(key), &path, "\"auto\"", "another name: this one lets the host choose");
        } else if key == "aliases" && (*name == plugin.backend || *name == plugin.id) {
            let allowed = "names besides `backend` and `id`";
            report.wrong(keys.span(key), &path, format!("\"{name}\""), allowed);
        }
    }
}

fn check_versions(root: Keys<'_>, manifest: &Manifest, report: &mut Report<'_>) {
    let abi = &manifest.abi;
    if abi.min_host_minor > abi.minor {
        let allowed = format!("at most the `minor` it was built against, {}", abi.minor);
        let found = abi.min_host_minor.to_string();
        report.wrong(root.table("abi").span("min_host_minor"), "abi.min_host_minor", found, allowed);
    }
}

/// Ranges run upwards, one rank always works, and no kind is both listed and
/// excused.
fn check_drafters(root: Keys<'_>, manifest: &Manifest, report: &mut Report<'_>) {
    if !manifest.capabilities.worlds.contains(&1) {
        let found = format!("{:?}", manifest.capabilities.worlds);
        report.wrong(root.table("caps").span("worlds"), "caps.worlds", found, "a list with 1 in it");
    }
    for (kind, drafter) in &manifest.drafters {
        let keys = root.table("drafters").table(kind);
        if let Some(revision) = drafter.revision()
            && revision.min > revision.max
        {
            let found = format!("min {}, max {}", revision.min, revision.max);
            let path = format!("drafters.{kind}.revision");
            report.wrong(keys.span("revision"), &path, found, "a `min` not above `max`");
        }
        if manifest.unsupported.contains_key(kind) {
            let path = format!("unsupported.{kind}");
            let found = format!("`{}`, which `[drafters.{}]` lists", printable(kind), printable(kind));
            report.wrong(root.table("unsupported").span(kind), &path, found, "kinds that are not listed");
        }
    }
}

/// A family stands once and drafts with nothing that the plugin does not list.
fn check_families(root: Keys<'_>, manifest: &Manifest, report: &mut Report<'_>) {
    let mut seen = BTreeSet::new();
    for (index, (family, keys)) in manifest.families.iter().zip(root.tables("family")).enumerate() {
        let path = format!("family[{}]", index + 1);
        if !seen.insert(&family.model_type) {
            let found = format!("\"{}\" twice", family.model_type);
            report.wrong(keys.span("model_type"), &format!("{path}.model_type"), found, "each family once");
        }
        for kind in family.drafters.iter().flatten() {
            if !manifest.drafters.contains_key(kind) {
                let found =
                    format!("\"{}\" without a table `[drafters.{}]`", printable(kind), printable(kind));
                report.wrong(keys.span("drafters"), &format!("{path}.drafters"), found, "listed kinds");
            }
        }
    }
}
