//! The capability manifest of a plugin: what it is, where it can be loaded,
//! and everything it can do.
//!
//! [`Manifest::parse`] guarantees that a manifest it returns is whole: every
//! required key is there, every value is within its bounds, and no two parts
//! contradict each other. Every error names the file, the line, the key, what
//! was found and what is allowed. Tables, keys and words that this host does
//! not know are kept out of the way and reported as notes, so that a plugin may
//! say more than its host understands; vendors turn those notes into errors
//! with [`Parsed::strict`].
//!
//! A manifest is a closed world: what it does not list, the plugin can not do.
//!
//! Nothing in here reads a file or opens a library.

mod build;
mod check;
mod compare;
mod error;
mod options;
mod query;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use semver::{Version, VersionReq};
use serde::{Serialize, Serializer};

pub(crate) use check::allowed;
pub use compare::Difference;
pub use error::{ManifestError, ManifestErrors, Note, NoteKind};
pub use options::{OptionError, OptionKind, OptionSpec, OptionValue};

/// The manifest format that this crate reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// The most bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 64 * 1024;

/// A manifest that was read.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// What it says.
    pub manifest: Manifest,
    /// What in it this host does not know.
    pub notes: Vec<Note>,
}

/// A whole manifest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Manifest {
    /// Number of the file format.
    #[serde(rename = "manifest")]
    pub format: u32,
    /// Parts of the format that a host must understand.
    pub requires: BTreeSet<String>,
    /// Who it is.
    pub plugin: Plugin,
    /// Which hosts it works with.
    pub abi: Abi,
    /// Where the library can be loaded.
    pub target: Target,
    /// Devices that it drives.
    #[serde(rename = "device")]
    pub devices: Vec<Device>,
    /// Libraries of the vendor's runtime.
    #[serde(rename = "runtime")]
    pub runtimes: Vec<Runtime>,
    /// Oldest kernel drivers, by their name.
    #[serde(rename = "driver")]
    pub drivers: BTreeMap<String, DottedNumber>,
    /// What it can do, for every family that does not say otherwise.
    #[serde(rename = "caps")]
    pub capabilities: Capabilities,
    /// Drafter kinds it runs, by their name; unknown ones among them.
    pub drafters: BTreeMap<String, Drafter>,
    /// Why a drafter kind is not listed.
    pub unsupported: BTreeMap<String, String>,
    /// Model families it runs, in the order of the file.
    #[serde(rename = "family")]
    pub families: Vec<Family>,
    /// Options of its own.
    pub options: BTreeMap<String, OptionSpec>,
}

/// `[plugin]`: who it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plugin {
    /// Name of the plugin, the same in every release.
    pub id: String,
    /// Tells builds of one plugin apart.
    pub variant: Option<String>,
    /// Release of the plugin.
    #[serde(serialize_with = "as_text")]
    pub version: Version,
    /// Name of the engine in sentences.
    pub engine_name: String,
    /// Name of the platform in sentences.
    pub platform_name: Option<String>,
    /// Value of `--backend`.
    pub backend: String,
    /// Further values of `--backend`, in the order of the file.
    pub aliases: Vec<String>,
    /// File name of the library, without any folder.
    pub library: String,
    /// Digest of the library, 64 lower-case hexadecimal digits.
    pub sha256: Option<String>,
    /// Who makes it.
    pub vendor: Option<String>,
    /// SPDX expression.
    pub license: Option<String>,
    /// Where users file problems.
    pub report: Option<String>,
    /// What a panic inside it does.
    pub panics: Panics,
}

/// What a panic inside a plugin does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Panics {
    /// It is caught inside and becomes a status.
    #[default]
    Unwind,
    /// It ends the process.
    Abort,
}

/// `[abi]`: which hosts it works with.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Abi {
    /// ABI major it was built against.
    pub major: u16,
    /// ABI minor it was built against.
    pub minor: u16,
    /// Oldest ABI minor of a host that it can live with.
    pub min_host_minor: u16,
    /// Host releases that the vendor has tested; all, where it says none.
    #[serde(serialize_with = "as_optional_text")]
    pub host: Option<VersionReq>,
    /// Interfaces that it offers, `name/number`.
    pub interfaces: BTreeSet<String>,
    /// Interfaces that it needs from the host.
    pub host_interfaces: BTreeSet<String>,
}

/// `[target]`: where the library can be loaded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// Operating system.
    pub os: String,
    /// Processor architecture.
    pub arch: String,
    /// C library it is linked against.
    pub libc: String,
    /// Oldest version of that C library.
    pub libc_min: Option<DottedNumber>,
    /// Processor features it needs.
    pub cpu: BTreeSet<String>,
}

/// `[[device]]`: devices that it drives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Kind of device.
    pub kind: String,
    /// Its maker; any, where it says none.
    pub vendor: Option<String>,
    /// Architectures; any, where it lists none.
    pub archs: BTreeSet<String>,
    /// Kinds of memory; any, where it lists none.
    pub memory: BTreeSet<String>,
}

/// `[[runtime]]`: a library of the vendor's runtime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Runtime {
    /// Name in messages.
    pub name: String,
    /// File names, tried in this order.
    pub soname: Vec<String>,
    /// How it is reached.
    pub how: RuntimeLink,
    /// How much it is needed.
    pub need: RuntimeNeed,
}

/// How a runtime library is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeLink {
    /// The plugin opens it inside `init`.
    #[default]
    Dlopen,
    /// The dynamic loader opens it with the plugin.
    Linked,
}

/// How much a runtime library is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeNeed {
    /// Nothing works without it.
    #[default]
    Required,
    /// Works without it, less well.
    Recommended,
    /// Adds something.
    Suggested,
}

/// `[caps]`: what it can do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Capabilities {
    /// Numbers of ranks; 1 is among them.
    pub worlds: BTreeSet<u32>,
    /// How weights may be stored.
    pub formats: BTreeSet<String>,
    /// How the key/value cache may be stored.
    pub kv_dtypes: BTreeSet<String>,
    /// What the engine can do besides.
    pub features: BTreeSet<String>,
    /// Flags of `serve` that reach the plugin.
    pub serve_flags: BTreeSet<String>,
    /// What a receipt may claim.
    pub numerics: BTreeSet<String>,
    /// Largest numbers.
    pub limits: Limits,
}

/// Largest numbers; an absent one is no limit of the plugin's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Requests that run at once.
    pub lanes: Option<u32>,
    /// Tokens of prompt and reply.
    pub context: Option<u32>,
    /// Rows of a lane in one round.
    pub verify_rows: Option<u32>,
}

/// Drafter revisions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Revisions {
    /// The first.
    pub min: u32,
    /// The last.
    pub max: u32,
}

/// One table of `[drafters]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Drafter {
    /// The checkpoint's own head.
    Mtp(MtpDrafter),
    /// Copies from the context.
    Copy(CopyDrafter),
    /// A checkpoint of its own.
    External(ExternalDrafter),
    /// A kind that this host does not know. It never matches.
    Unknown,
}

/// `[drafters.mtp]`: the checkpoint's own multi-token prediction head.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MtpDrafter {
    /// Revisions of the head.
    pub revision: Revisions,
    /// Most drafts a round.
    pub depth_max: u32,
    /// Numbers of ranks with which it runs.
    pub worlds: BTreeSet<u32>,
    /// Where the head may lie.
    pub weights: BTreeSet<String>,
    /// Whether several lanes draft in one call.
    pub batched: bool,
    /// Whether drafts come with probabilities.
    pub confidence: bool,
}

/// `[drafters.copy]`: copies from the context.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CopyDrafter {
    /// Shortest match, in tokens; the host's choice where it says none.
    pub min_match: Option<u32>,
    /// Most tokens of a copy.
    pub rows_max: Option<u32>,
}

/// `[drafters.KIND]` of a kind with a checkpoint of its own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExternalDrafter {
    /// Revisions of the drafter.
    pub revision: Revisions,
    /// Longest block, in tokens.
    pub block_max: u32,
    /// Most layers of the target that are read.
    pub taps_max: Option<u32>,
    /// Number types of its weights.
    pub dtypes: BTreeSet<String>,
    /// Numbers of ranks with which it runs.
    pub worlds: BTreeSet<u32>,
    /// Most lanes that draft at once.
    pub lanes_max: Option<u32>,
    /// Whether a part of the target's vocabulary is enough.
    pub vocab_prune: bool,
}

/// `[[family]]`: a model family. What is `None` is as in `[caps]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Family {
    /// The family, as `model_type` of `config.json`.
    pub model_type: String,
    /// Drafter kinds that run with it; every listed kind, where it names none.
    pub drafters: Option<BTreeSet<String>>,
    /// How weights may be stored.
    pub formats: Option<BTreeSet<String>>,
    /// How the key/value cache may be stored.
    pub kv_dtypes: Option<BTreeSet<String>>,
    /// What the engine can do.
    pub features: Option<BTreeSet<String>>,
    /// What a receipt may claim.
    pub numerics: Option<BTreeSet<String>>,
    /// Numbers of ranks.
    pub worlds: Option<BTreeSet<u32>>,
    /// Largest numbers.
    pub limits: Option<Limits>,
}

/// Numbers joined by dots, such as a version of a C library or of a driver.
///
/// Compared number by number, where a missing one is 0: `2.9 < 2.35`,
/// `6.10 == 6.10.0`. Zeros at the end are therefore not kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DottedNumber(Vec<u32>);

impl DottedNumber {
    /// Reads `text`: one to eight numbers, joined by dots.
    pub fn parse(text: &str) -> Option<DottedNumber> {
        let mut numbers = Vec::new();
        for part in text.split('.') {
            if numbers.len() == 8 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            numbers.push(part.parse().ok()?);
        }
        while numbers.len() > 1 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        Some(DottedNumber(numbers))
    }
}

impl std::fmt::Display for DottedNumber {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        formatter.write_str(&parts.join("."))
    }
}

impl Serialize for DottedNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn as_text<T: std::fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn as_optional_text<T: std::fmt::Display, S: Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().map(T::to_string).serialize(serializer)
}

impl Manifest {
    /// Reads a manifest. `file` is what errors call it.
    ///
    /// On failure every error is returned, in the order of the lines, except
    /// where an early one makes the rest meaningless: text that is not TOML, a
    /// later format, a requirement that this host does not know.
    pub fn parse(bytes: &[u8], file: &str) -> Result<Parsed, ManifestErrors> {
        let source = source::Source::new(bytes, file)?;
        let document = source.document()?;
        let mut report = source.report();
        check::check_document(&document, &mut report)?;
        let manifest = build::build(&document, &mut report);
        let notes = report.finish()?;
        Ok(Parsed { manifest, notes })
    }
}

impl Parsed {
    /// What vendors want of their own manifests: every name known, or in the
    /// vendors' own space. Each error names the nearest known name.
    pub fn strict(&self) -> Result<(), ManifestErrors> {
        ManifestErrors::none_or(self.notes.iter().filter_map(Note::as_error).collect())
    }
}

#[cfg(test)]
mod tests;
