//! Every table and key of a manifest: what it may hold, and what it means.
//!
//! The manifest reader checks a file against these tables, the nearest known
//! name of a slip is looked up in them, and the reference page is printed from
//! them.

use super::names::Words;

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableShape {
    /// The top of the file.
    Root,
    /// `[name]`, at most once.
    Single,
    /// `[[name]]`, any number of times.
    List,
    /// `[name.WORD]`, one for each word.
    Named,
    /// `name = { ... }` inside another table.
    Inline,
    /// `[name]` with free keys, all of one kind.
    Free(KeyKind),
    /// `[name]`, never read.
    Ignored,
}

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// One line of text, without control characters, of at most so many bytes.
    Text {
        /// The most bytes.
        longest: usize,
    },
    /// `[a-z][a-z0-9-]{1,31}`.
    Identifier,
    /// Identifiers in an order that matters, without repeats.
    Identifiers,
    /// A semantic version.
    Version,
    /// A range of semantic versions.
    VersionRange,
    /// Numbers joined by dots, such as `2.35`.
    DottedNumber,
    /// The name of a file, without any folder.
    FileName,
    /// File names in an order that matters, without repeats.
    FileNames,
    /// 64 hexadecimal digits.
    Digest,
    /// One of a closed list.
    Choice(Words),
    /// One of an open list: an unknown word is kept and never matches.
    Word(Words),
    /// A set from an open list.
    WordSet(Words),
    /// A set of interface ids, `name/number`.
    Interfaces,
    /// A set of numbers within these bounds.
    Numbers {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// A number within these bounds.
    Number {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// `true` or `false`.
    Boolean,
    /// An inline table, described under this name.
    Inline(&'static str),
    /// A value of the option's own type.
    OptionValue,
    /// Any number within 64 bits.
    Wide,
    /// A list of texts without repeats, in an order that matters.
    Texts,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// Its name.
    pub name: &'static str,
    /// What it may hold.
    pub kind: KeyKind,
    /// Whether a manifest without it is refused.
    pub required: bool,
    /// What its absence means, in words; empty for required keys.
    pub default: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

/// One table.
#[derive(Clone, Copy, Debug)]
pub struct TableSpec {
    /// Its name, without brackets; drafter tables have the whole path.
    pub name: &'static str,
    /// How it is written, as a heading.
    pub heading: &'static str,
    /// Its shape.
    pub shape: TableShape,
    /// Whether a manifest without it is refused.
    pub required: bool,
    /// What it is for.
    pub meaning: &'static str,
    /// Its keys.
    pub keys: &'static [KeySpec],
}

impl TableSpec {
    /// The key of that name.
    pub fn key(&self, name: &str) -> Option<&'static KeySpec> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The table of that name.
pub fn table(name: &str) -> Option<&'static TableSpec> {
    TABLES.iter().find(|table| table.name == name)
}

const fn required(name: &'static str, kind: KeyKind, meaning: &'static str) -> KeySpec {
    KeySpec { name, kind, required: true, default: "", meaning }
}

const fn optional(
    name: &'static str,
    kind: KeyKind,
    default: &'static str,
    meaning: &'static str,
) -> KeySpec {
    KeySpec { name, kind, required: false, default, meaning }
}

const COUNT: KeyKind = KeyKind::Number { least: 1, most: i32::MAX as u32 };
const RANKS: KeyKind = KeyKind::Numbers { least: 1, most: 1024 };

const REVISION: KeySpec =
    required("revision", KeyKind::Inline("revision"), "revisions of the drafter that the plugin runs");
const DRAFTER_WORLDS: KeySpec =
    optional("worlds", RANKS, "`[1]`", "numbers of ranks with which this drafter runs");

/// Every table of a manifest, in the order of the reference page.
pub const TABLES: &[TableSpec] = &[
    TableSpec {
        name: "",
        heading: "Top of the file",
        shape: TableShape::Root,
        required: true,
        meaning: "",
        keys: &[
            required(
                "manifest",
                KeyKind::Number { least: 1, most: i32::MAX as u32 },
                "number of this file format; a host refuses a later one than it knows",
            ),
            optional(
                "requires",
                KeyKind::WordSet(Words::Requirable),
                "`[]`",
                "parts of this format that a host must understand, or refuse the plugin",
            ),
        ],
    },
    TableSpec {
        name: "plugin",
        heading: "`[plugin]`",
        shape: TableShape::Single,
        required: true,
        meaning: "Who it is.",
        keys: &[
            required("id", KeyKind::Identifier, "name of the plugin, the same in every release"),
            optional(
                "variant",
                KeyKind::Identifier,
                "none",
                "tells builds of one plugin apart, for example by device",
            ),
            required("version", KeyKind::Version, "release of the plugin"),
            required("engine_name", KeyKind::Text { longest: 32 }, "name of the engine in sentences"),
            optional(
                "platform_name",
                KeyKind::Text { longest: 32 },
                "`engine_name`",
                "name of the platform in sentences",
            ),
            required("backend", KeyKind::Identifier, "value of `--backend`; `auto` is taken"),
            optional(
                "aliases",
                KeyKind::Identifiers,
                "`[]`",
                "further values of `--backend`; the first is used in sentences under `--backend auto`",
            ),
            required(
                "library",
                KeyKind::FileName,
                "file name of the library, beside the sidecar; not compared between copies",
            ),
            optional(
                "sha256",
                KeyKind::Digest,
                "not checked",
                "digest of the library; not compared between copies",
            ),
            optional("vendor", KeyKind::Text { longest: 200 }, "not stated", "who makes it"),
            optional("license", KeyKind::Text { longest: 200 }, "not stated", "SPDX expression"),
            optional("report", KeyKind::Text { longest: 200 }, "not stated", "where users file problems"),
            optional("panics", KeyKind::Choice(Words::Panics), "`\"unwind\"`", "what a panic inside it does"),
        ],
    },
    TableSpec {
        name: "abi",
        heading: "`[abi]`",
        shape: TableShape::Single,
        required: true,
        meaning: "Which hosts it works with.",
        keys: &[
            required(
                "major",
                KeyKind::Number { least: 0, most: u16::MAX as u32 },
                "ABI major it was built against",
            ),
            required(
                "minor",
                KeyKind::Number { least: 0, most: u16::MAX as u32 },
                "ABI minor it was built against",
            ),
            optional(
                "min_host_minor",
                KeyKind::Number { least: 0, most: u16::MAX as u32 },
                "`minor`",
                "oldest ABI minor of a host that it can live with",
            ),
            optional("host", KeyKind::VersionRange, "any", "host releases that the vendor has tested"),
            required("interfaces", KeyKind::Interfaces, "interfaces that it offers"),
            optional(
                "host_interfaces",
                KeyKind::Interfaces,
                "`[]`",
                "interfaces that it needs from the host",
            ),
        ],
    },
    TableSpec {
        name: "target",
        heading: "`[target]`",
        shape: TableShape::Single,
        required: true,
        meaning: "Where the library can be loaded.",
        keys: &[
            required("os", KeyKind::Word(Words::OperatingSystems), "operating system"),
            required("arch", KeyKind::Word(Words::Architectures), "processor architecture"),
            optional(
                "libc",
                KeyKind::Word(Words::CLibraries),
                "`\"none\"`",
                "C library it is linked against",
            ),
            optional("libc_min", KeyKind::DottedNumber, "not stated", "oldest version of it"),
            optional(
                "cpu",
                KeyKind::WordSet(Words::CpuFeatures),
                "`[]`",
                "processor features needed outside kernels that choose at run time",
            ),
        ],
    },
    TableSpec {
        name: "device",
        heading: "`[[device]]`",
        shape: TableShape::List,
        required: false,
        meaning: "Devices that it drives, one table for each kind.",
        keys: &[
            required("kind", KeyKind::Word(Words::DeviceKinds), "kind of device"),
            optional("vendor", KeyKind::Word(Words::DeviceVendors), "any", "its maker, or a PCI vendor id"),
            optional(
                "archs",
                KeyKind::WordSet(Words::DeviceArchs),
                "any",
                "architectures with kernels, such as `gfx1151` or `sm_90`",
            ),
            optional("memory", KeyKind::WordSet(Words::DeviceMemory), "any", "kinds of memory it can use"),
        ],
    },
    TableSpec {
        name: "runtime",
        heading: "`[[runtime]]`",
        shape: TableShape::List,
        required: false,
        meaning: "Libraries of the vendor's runtime.",
        keys: &[
            required("name", KeyKind::Identifier, "name of the library in messages"),
            required("soname", KeyKind::FileNames, "file names, tried in this order"),
            optional("how", KeyKind::Choice(Words::RuntimeLink), "`\"dlopen\"`", "how it is reached"),
            optional("need", KeyKind::Choice(Words::RuntimeNeed), "`\"required\"`", "how much it is needed"),
        ],
    },
    TableSpec {
        name: "driver",
        heading: "`[driver]`",
        shape: TableShape::Free(KeyKind::DottedNumber),
        required: false,
        meaning: "Oldest kernel driver, by its name: `nvidia = \"550.54\"`. None stated, none checked.",
        keys: &[],
    },
    TableSpec {
        name: "caps",
        heading: "`[caps]`",
        shape: TableShape::Single,
        required: false,
        meaning: "What it can do, for every family that does not say otherwise. What is not listed it can not do.",
        keys: &[
            optional("worlds", RANKS, "`[1]`", "numbers of ranks; 1 must be among them"),
            optional("formats", KeyKind::WordSet(Words::Formats), "`[]`", "how weights may be stored"),
            optional(
                "kv_dtypes",
                KeyKind::WordSet(Words::KvDtypes),
                "`[]`",
                "how the key/value cache may be stored",
            ),
            optional("features", KeyKind::WordSet(Words::Features), "`[]`", "what the engine can do besides"),
            optional(
                "serve_flags",
                KeyKind::WordSet(Words::ServeFlags),
                "`[]`",
                "flags of `serve` that reach the plugin and that no other key answers for",
            ),
            optional("numerics", KeyKind::WordSet(Words::Numerics), "`[]`", "what a receipt may claim"),
            optional("limits", KeyKind::Inline("limits"), "no limits of its own", "largest numbers"),
        ],
    },
    TableSpec {
        name: "drafters.mtp",
        heading: "`[drafters.mtp]`",
        shape: TableShape::Single,
        required: false,
        meaning: "It drafts with the checkpoint's own multi-token prediction head.",
        keys: &[
            REVISION,
            required(
                "depth_max",
                KeyKind::Number { least: 1, most: 64 },
                "most drafts a round, the limit of `--mtp-drafts`",
            ),
            DRAFTER_WORLDS,
            optional(
                "weights",
                KeyKind::WordSet(Words::HeadWeights),
                "`[\"in-checkpoint\"]`",
                "where the head may lie",
            ),
            optional("batched", KeyKind::Boolean, "`false`", "several lanes draft in one call"),
            optional(
                "confidence",
                KeyKind::Boolean,
                "`true`",
                "drafts come with probabilities, so that `--mtp-confidence` can end a chain",
            ),
        ],
    },
    TableSpec {
        name: "drafters.copy",
        heading: "`[drafters.copy]`",
        shape: TableShape::Single,
        required: false,
        meaning: "Copies from the context may be given to it as drafts.",
        keys: &[
            optional("min_match", COUNT, "the host's", "shortest match that is worth a copy, in tokens"),
            optional("rows_max", COUNT, "`limits.verify_rows`", "most tokens of a copy"),
        ],
    },
    TableSpec {
        name: "drafters.EXTERNAL",
        heading: "`[drafters.dflash]`, `[drafters.dflash2]` and other kinds",
        shape: TableShape::Named,
        required: false,
        meaning: "It drafts with a checkpoint of its own, the one that `--drafter` names.",
        keys: &[
            REVISION,
            required("block_max", KeyKind::Number { least: 2, most: 1024 }, "longest block, in tokens"),
            optional("taps_max", COUNT, "no limit of its own", "most layers of the target that are read"),
            optional(
                "dtypes",
                KeyKind::WordSet(Words::DrafterDtypes),
                "`[\"bf16\"]`",
                "number types of its weights",
            ),
            DRAFTER_WORLDS,
            optional("lanes_max", COUNT, "`limits.lanes`", "most lanes that draft at once"),
            optional(
                "vocab_prune",
                KeyKind::Boolean,
                "`false`",
                "runs drafters whose vocabulary is a part of the target's",
            ),
        ],
    },
    TableSpec {
        name: "unsupported",
        heading: "`[unsupported]`",
        shape: TableShape::Free(KeyKind::Text { longest: 200 }),
        required: false,
        meaning: "Why a drafter kind is not listed: `dflash2 = \"not qualified yet\"`. Only adds to what \
                  `plugins show` says; a kind can not stand here and in `[drafters]`.",
        keys: &[],
    },
    TableSpec {
        name: "family",
        heading: "`[[family]]`",
        shape: TableShape::List,
        required: false,
        meaning: "A model family that it runs. Each key but `model_type` replaces the one of `[caps]`, without merging.",
        keys: &[
            required("model_type", KeyKind::Text { longest: 64 }, "family, as `model_type` of `config.json`"),
            optional(
                "drafters",
                KeyKind::WordSet(Words::Drafters),
                "every kind of `[drafters]`",
                "drafters that run with it; each must have its table",
            ),
            optional(
                "formats",
                KeyKind::WordSet(Words::Formats),
                "`caps.formats`",
                "how weights may be stored",
            ),
            optional(
                "kv_dtypes",
                KeyKind::WordSet(Words::KvDtypes),
                "`caps.kv_dtypes`",
                "how the key/value cache may be stored",
            ),
            optional(
                "features",
                KeyKind::WordSet(Words::Features),
                "`caps.features`",
                "what the engine can do",
            ),
            optional(
                "numerics",
                KeyKind::WordSet(Words::Numerics),
                "`caps.numerics`",
                "what a receipt may claim",
            ),
            optional("worlds", RANKS, "`caps.worlds`", "numbers of ranks"),
            optional("limits", KeyKind::Inline("limits"), "`caps.limits`", "largest numbers"),
        ],
    },
    TableSpec {
        name: "options",
        heading: "`[options.NAME]`",
        shape: TableShape::Named,
        required: false,
        meaning: "An option of the plugin's own, set by `--opt BACKEND.NAME=VALUE` or in `plugins.toml`.",
        keys: &[
            required("type", KeyKind::Choice(Words::OptionTypes), "type of its value"),
            optional("default", KeyKind::OptionValue, "the plugin's own choice", "value when nothing is set"),
            optional("least", KeyKind::Wide, "no bound", "least value of an integer"),
            optional("most", KeyKind::Wide, "no bound", "greatest value of an integer"),
            optional("choices", KeyKind::Texts, "none", "values of a choice"),
            required("help", KeyKind::Text { longest: 200 }, "one line for the help"),
        ],
    },
    TableSpec {
        name: "distro",
        heading: "`[distro]`",
        shape: TableShape::Ignored,
        required: false,
        meaning: "For packagers. Never read, not compared between copies.",
        keys: &[],
    },
    TableSpec {
        name: "revision",
        heading: "`revision = { min, max }`",
        shape: TableShape::Inline,
        required: false,
        meaning: "A range of drafter revisions, both ends included.",
        keys: &[required("min", COUNT, "first revision"), required("max", COUNT, "last revision")],
    },
    TableSpec {
        name: "limits",
        heading: "`limits = { ... }`",
        shape: TableShape::Inline,
        required: false,
        meaning: "Largest numbers. An absent one is no limit of the plugin's own.",
        keys: &[
            optional("lanes", COUNT, "no limit of its own", "requests that run at once"),
            optional("context", COUNT, "no limit of its own", "tokens of prompt and reply"),
            optional("verify_rows", COUNT, "no limit of its own", "rows of a lane in one round"),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_says_what_its_absence_means() {
        for table in TABLES {
            for key in table.keys {
                assert_eq!(key.required, key.default.is_empty(), "{}.{}", table.name, key.name);
                assert!(!key.meaning.is_empty(), "{}.{}", table.name, key.name);
            }
        }
    }

    #[test]
    fn names_are_unique_and_inline_tables_are_described() {
        for (index, table) in TABLES.iter().enumerate() {
            assert!(TABLES[..index].iter().all(|other| other.name != table.name), "{}", table.name);
            for (position, key) in table.keys.iter().enumerate() {
                assert!(table.keys[..position].iter().all(|other| other.name != key.name), "{}", key.name);
                if let KeyKind::Inline(name) = key.kind {
                    assert!(super::table(name).is_some_and(|found| found.shape == TableShape::Inline));
                }
            }
        }
    }
}
