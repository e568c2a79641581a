//! The words that manifests use, with their meaning.
//!
//! A word that is not in here is kept when a manifest holds it, and never
//! matches anything: a plugin may know more than this host.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::abi::{DFLASH_INTERFACE, MTP_INTERFACE};

/// One name and what it means.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The name as it is written in a manifest.
    pub name: &'static str,
    /// What it means, in a few words.
    pub meaning: &'static str,
}

const fn word(name: &'static str, meaning: &'static str) -> Word {
    Word { name, meaning }
}

/// A kind of drafter, as `[drafters.KIND]` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrafterKind {
    /// The checkpoint's own multi-token prediction head.
    Mtp,
    /// Copies from the context, matched by the host.
    Copy,
    /// A DFlash block drafter, first version.
    Dflash,
    /// A DFlash2 block drafter.
    Dflash2,
    /// A DSpark drafter.
    Dspark,
    /// An EAGLE drafter, first or second version.
    Eagle,
    /// An EAGLE3 drafter.
    Eagle3,
}

/// Where a drafter's weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterOrigin {
    /// From the target's checkpoint.
    OwnHead,
    /// It has none.
    Context,
    /// From a checkpoint of its own, the one that `--drafter` names.
    External,
}

impl DrafterKind {
    /// Every kind that this host can tell apart.
    pub const ALL: &'static [DrafterKind] = &[
        DrafterKind::Mtp,
        DrafterKind::Copy,
        DrafterKind::Dflash,
        DrafterKind::Dflash2,
        DrafterKind::Dspark,
        DrafterKind::Eagle,
        DrafterKind::Eagle3,
    ];

    /// The interface by which a plugin's drafters of this kind are driven;
    /// `None` for what the host does by itself, and for kinds that have none
    /// yet.
    pub fn interface(self) -> Option<&'static str> {
        match self {
            DrafterKind::Mtp => Some(MTP_INTERFACE),
            DrafterKind::Dflash | DrafterKind::Dflash2 => Some(DFLASH_INTERFACE),
            DrafterKind::Copy | DrafterKind::Dspark | DrafterKind::Eagle | DrafterKind::Eagle3 => None,
        }
    }

    /// The name in manifests and JSON.
    pub const fn id(self) -> &'static str {
        match self {
            DrafterKind::Mtp => "mtp",
            DrafterKind::Copy => "copy",
            DrafterKind::Dflash => "dflash",
            DrafterKind::Dflash2 => "dflash2",
            DrafterKind::Dspark => "dspark",
            DrafterKind::Eagle => "eagle",
            DrafterKind::Eagle3 => "eagle3",
        }
    }

    /// The name in sentences.
    pub const fn display_name(self) -> &'static str {
        match self {
            DrafterKind::Mtp => "MTP",
            DrafterKind::Copy => "copy",
            DrafterKind::Dflash => "DFlash",
            DrafterKind::Dflash2 => "DFlash2",
            DrafterKind::Dspark => "DSpark",
            DrafterKind::Eagle => "EAGLE",
            DrafterKind::Eagle3 => "EAGLE3",
        }
    }

    /// What it is.
    pub const fn meaning(self) -> &'static str {
        match self {
            DrafterKind::Mtp => "the checkpoint's own multi-token prediction head",
            DrafterKind::Copy => "copies from the context, matched by the host",
            DrafterKind::Dflash => "a DFlash block drafter, first version",
            DrafterKind::Dflash2 => "a DFlash2 block drafter",
            DrafterKind::Dspark => "a DSpark drafter",
            DrafterKind::Eagle => "an EAGLE drafter, first or second version",
            DrafterKind::Eagle3 => "an EAGLE3 drafter",
        }
    }

    /// Where its weights come from.
    pub const fn origin(self) -> DrafterOrigin {
        match self {
            DrafterKind::Mtp => DrafterOrigin::OwnHead,
            DrafterKind::Copy => DrafterOrigin::Context,
            _ => DrafterOrigin::External,
        }
    }

    /// The kind of that name in manifests.
    pub fn from_id(id: &str) -> Option<DrafterKind> {
        DrafterKind::ALL.iter().copied().find(|kind| kind.id() == id)
    }
}

impl fmt::Display for DrafterKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.display_name())
    }
}

impl Serialize for DrafterKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
    }
}

/// One list of words that manifests draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// How weights are stored.
    Formats,
    /// How the key/value cache is stored.
    KvDtypes,
    /// What an engine can do besides computing.
    Features,
    /// What a receipt may claim.
    Numerics,
    /// Kinds of drafters.
    Drafters,
    /// Number types of a drafter's weights.
    DrafterDtypes,
    /// Where a prediction head's weights lie.
    HeadWeights,
    /// Flags of `serve`.
    ServeFlags,
    /// Processor features.
    CpuFeatures,
    /// Kinds of devices.
    DeviceKinds,
    /// Makers of devices.
    DeviceVendors,
    /// Kinds of device memory.
    DeviceMemory,
    /// Names of device architectures: free, compared as text.
    DeviceArchs,
    /// Operating systems.
    OperatingSystems,
    /// Processor architectures.
    Architectures,
    /// C libraries.
    CLibraries,
    /// What `requires` may ask for.
    Requirable,
    /// What a panic inside the plugin does.
    Panics,
    /// How a runtime library is reached.
    RuntimeLink,
    /// How much a runtime library is needed.
    RuntimeNeed,
    /// Types of a plugin's own options.
    OptionTypes,
}

impl Words {
    /// The names of the list, in the order in which they are documented. For
    /// formats these are the plain names; [`Words::knows`] also takes the ones
    /// with a group size.
    pub fn words(self) -> Vec<Word> {
        match self {
            Words::Drafters => DrafterKind::ALL.iter().map(|kind| word(kind.id(), kind.meaning())).collect(),
            Words::ServeFlags => super::flags::serve_flag_words(),
            Words::Formats => FORMATS.to_vec(),
            Words::KvDtypes => KV_DTYPES.to_vec(),
            Words::Features => FEATURES.to_vec(),
            Words::Numerics => NUMERICS.to_vec(),
            Words::DrafterDtypes => DRAFTER_DTYPES.to_vec(),
            Words::HeadWeights => HEAD_WEIGHTS.to_vec(),
            Words::CpuFeatures => CPU_FEATURES.to_vec(),
            Words::DeviceKinds => DEVICE_KINDS.to_vec(),
            Words::DeviceVendors => DEVICE_VENDORS.to_vec(),
            Words::DeviceMemory => DEVICE_MEMORY.to_vec(),
            Words::DeviceArchs => Vec::new(),
            Words::OperatingSystems => OPERATING_SYSTEMS.to_vec(),
            Words::Architectures => ARCHITECTURES.to_vec(),
            Words::CLibraries => C_LIBRARIES.to_vec(),
            Words::Requirable => REQUIRABLE.to_vec(),
            Words::Panics => PANICS.to_vec(),
            Words::RuntimeLink => RUNTIME_LINK.to_vec(),
            Words::RuntimeNeed => RUNTIME_NEED.to_vec(),
            Words::OptionTypes => OPTION_TYPES.to_vec(),
        }
    }

    /// Whether this host knows the word.
    pub fn knows(self, name: &str) -> bool {
        match self {
            Words::DeviceArchs => true,
            Words::DeviceVendors if is_pci_vendor(name) => true,
            Words::Formats if affine_format(name).is_some() || is_gguf_format(name) => true,
            _ => self.words().iter().any(|word| word.name == name),
        }
    }
}

const FORMATS: &[Word] = &[
    word("f32", "32-bit floats"),
    word("f16", "16-bit floats"),
    word("bf16", "16-bit brain floats"),
    word("mlx-q2", "MLX affine, 2 bits, any group size"),
    word("mlx-q3", "MLX affine, 3 bits, any group size"),
    word("mlx-q4", "MLX affine, 4 bits, any group size"),
    word("mlx-q5", "MLX affine, 5 bits, any group size"),
    word("mlx-q6", "MLX affine, 6 bits, any group size"),
    word("mlx-q8", "MLX affine, 8 bits, any group size"),
    word("fp8", "8-bit floats, e4m3 with scales"),
    word("nvfp4", "4-bit floats, e2m1 with e4m3 scales for 16 values"),
    word("exl3", "ExLlamaV3"),
];

const KV_DTYPES: &[Word] = &[
    word("bf16", "16-bit brain floats"),
    word("f16", "16-bit floats"),
    word("f32", "32-bit floats"),
    word("fp8-e4m3", "8-bit floats"),
    word("q8", "8-bit integers with a scale for 32 values"),
    word("q4", "4-bit integers with a scale for 32 values"),
];

const FEATURES: &[Word] = &[
    word("sampling-on-device", "tokens are drawn by the plugin"),
    word("logprobs", "log probabilities of drawn and likely tokens"),
    word("grammar", "allowed-token masks"),
    word("vision", "image and video input"),
    word("prompt-cache", "prompt states can be kept and resumed"),
    word("cancel-in-prefill", "a prompt can be given up between its chunks"),
    word("graph-capture", "rounds are recorded and replayed"),
    word("multi-gpu", "one engine over several devices"),
    word("plain-guard", "can tell when drafting does not pay"),
    word("deterministic", "the same call gives the same bits"),
    word("one-thread", "engine calls must come from one thread"),
    word("sleep", "memory can be given back and taken again"),
];

const NUMERICS: &[Word] = &[
    word("exact-greedy", "a drafted greedy reply equals the serial one, by bits"),
    word("exact-sampled", "a drafted sampled reply equals the serial one, by bits"),
];

const DRAFTER_DTYPES: &[Word] = &[
    word("bf16", "16-bit brain floats"),
    word("f16", "16-bit floats"),
    word("f32", "32-bit floats"),
    word("mlx-q2", "MLX affine, 2 bits, any group size"),
    word("mlx-q3", "MLX affine, 3 bits, any group size"),
    word("mlx-q4", "MLX affine, 4 bits, any group size"),
    word("mlx-q5", "MLX affine, 5 bits, any group size"),
    word("mlx-q6", "MLX affine, 6 bits, any group size"),
    word("mlx-q8", "MLX affine, 8 bits, any group size"),
];

const HEAD_WEIGHTS: &[Word] = &[
    word("in-checkpoint", "among the checkpoint's own tensors"),
    word("side-file", "in a file of its own beside them"),
];

const CPU_FEATURES: &[Word] = &[
    word("sse2", "x86"),
    word("sse3", "x86"),
    word("ssse3", "x86"),
    word("sse4.1", "x86"),
    word("sse4.2", "x86"),
    word("popcnt", "x86"),
    word("f16c", "x86"),
    word("fma", "x86"),
    word("bmi1", "x86"),
    word("bmi2", "x86"),
    word("lzcnt", "x86"),
    word("movbe", "x86"),
    word("aes", "x86 and ARM"),
    word("pclmulqdq", "x86"),
    word("sha", "x86"),
    word("avx", "x86, with the system saving its registers"),
    word("avx2", "x86, with the system saving its registers"),
    word("avxvnni", "x86, with the system saving its registers"),
    word("avx512f", "x86, with the system saving its registers"),
    word("avx512bw", "x86, with the system saving its registers"),
    word("avx512cd", "x86, with the system saving its registers"),
    word("avx512dq", "x86, with the system saving its registers"),
    word("avx512vl", "x86, with the system saving its registers"),
    word("avx512ifma", "x86, with the system saving its registers"),
    word("avx512vbmi", "x86, with the system saving its registers"),
    word("avx512vbmi2", "x86, with the system saving its registers"),
    word("avx512vnni", "x86, with the system saving its registers"),
    word("avx512bitalg", "x86, with the system saving its registers"),
    word("avx512vpopcntdq", "x86, with the system saving its registers"),
    word("avx512bf16", "x86, with the system saving its registers"),
    word("avx512fp16", "x86, with the system saving its registers"),
    word("gfni", "x86"),
    word("vaes", "x86"),
    word("vpclmulqdq", "x86"),
    word("neon", "ARM"),
    word("fp16", "ARM"),
    word("bf16", "ARM"),
    word("dotprod", "ARM"),
    word("i8mm", "ARM"),
    word("sve", "ARM"),
    word("sve2", "ARM"),
    word("fhm", "ARM"),
    word("rdm", "ARM"),
    word("lse", "ARM"),
    word("sha2", "ARM"),
];

const DEVICE_KINDS: &[Word] = &[
    word("cpu", "the processor itself"),
    word("gpu", "a graphics processor"),
    word("npu", "a neural processor"),
    word("accel", "another accelerator"),
];

const DEVICE_VENDORS: &[Word] =
    &[word("amd", "0x1002"), word("nvidia", "0x10de"), word("apple", "0x106b"), word("intel", "0x8086")];

const DEVICE_MEMORY: &[Word] =
    &[word("unified", "shared with the processor"), word("dedicated", "the device's own")];

const OPERATING_SYSTEMS: &[Word] = &[word("linux", "Linux"), word("macos", "macOS")];

const ARCHITECTURES: &[Word] = &[word("x86_64", "64-bit x86"), word("aarch64", "64-bit ARM")];

const C_LIBRARIES: &[Word] =
    &[word("gnu", "glibc"), word("musl", "musl"), word("none", "no C library, or the system's only one")];

const REQUIRABLE: &[Word] = &[
    word("options", "the tables `[options.NAME]`"),
    word("unsupported", "the table `[unsupported]`"),
    word("numerics", "the key `numerics`"),
];

const PANICS: &[Word] = &[
    word("unwind", "panics are caught inside the plugin and become a status"),
    word("abort", "a panic ends the server"),
];

const RUNTIME_LINK: &[Word] =
    &[word("dlopen", "opened by the plugin inside `init`"), word("linked", "opened by the dynamic loader")];

const RUNTIME_NEED: &[Word] = &[
    word("required", "nothing works without it"),
    word("recommended", "works without it, less well"),
    word("suggested", "adds something"),
];

const OPTION_TYPES: &[Word] = &[
    word("integer", "a whole number, within `least` and `most`"),
    word("boolean", "`true` or `false`"),
    word("choice", "one of `choices`"),
    word("string", "any text of one line"),
    word("path", "a file or folder"),
];

/// Bits and group size of a name of the form `mlx-qB` or `mlx-qBgG`.
fn affine_format(name: &str) -> Option<(u32, Option<u32>)> {
    let rest = name.strip_prefix("mlx-q")?;
    let (bits, group) = match rest.split_once('g') {
        Some((bits, group)) => (bits, Some(group)),
        None => (rest, None),
    };
    let bits = match bits {
        "2" => 2,
        "3" => 3,
        "4" => 4,
        "5" => 5,
        "6" => 6,
        "8" => 8,
        _ => return None,
    };
    let group = match group {
        None => None,
        Some("32") => Some(32),
        Some("64") => Some(64),
        Some("128") => Some(128),
        Some(_) => return None,
    };
    Some((bits, group))
}

fn is_gguf_format(name: &str) -> bool {
    name.strip_prefix("gguf-").is_some_and(|kind| {
        !kind.is_empty()
            && kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    })
}

fn is_pci_vendor(name: &str) -> bool {
    name.strip_prefix("0x")
        .is_some_and(|digits| digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a manifest that lists `declared` covers weights stored as
/// `present`: the same name, or the same bits with the group size left open.
/// Names that this host does not know cover nothing.
pub fn format_covers(declared: &str, present: &str) -> bool {
    if !Words::Formats.knows(declared) {
        return false;
    }
    if declared == present {
        return true;
    }
    match (affine_format(declared), affine_format(present)) {
        (Some((wanted, None)), Some((found, Some(_)))) => wanted == found,
        _ => false,
    }
}

/// The manifest's name of a `--kv-dtype` value, which also has the spellings
/// `int8` and `int4`.
pub fn kv_dtype_name(value: &str) -> &str {
    match value {
        "int8" => "q8",
        "int4" => "q4",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_group_size_covers_every_group_and_a_named_one_only_itself() {
        assert!(format_covers("mlx-q4", "mlx-q4g64"));
        assert!(format_covers("mlx-q4", "mlx-q4g32"));
        assert!(format_covers("mlx-q4g64", "mlx-q4g64"));
        assert!(format_covers("bf16", "bf16"));
        assert!(!format_covers("mlx-q4g64", "mlx-q4g32"));
        assert!(!format_covers("mlx-q4g64", "mlx-q4"));
        assert!(!format_covers("mlx-q4", "mlx-q8g64"));
        assert!(!format_covers("bf16", "f16"));
    }

    #[test]
    fn a_word_that_this_host_does_not_know_covers_nothing() {
        assert!(!format_covers("x-acme-q5", "x-acme-q5"));
        assert!(!format_covers("mlx-q7", "mlx-q7"));
        assert!(!format_covers("mlx-q4g48", "mlx-q4g48"));
    }

    #[test]
    fn families_of_names_are_known_by_their_form() {
        for known in ["mlx-q6g32", "gguf-q4_0", "mlx-q2"] {
            assert!(Words::Formats.knows(known), "{known}");
        }
        for unknown in ["mlx-q4g", "mlx-q", "gguf-", "gguf-Q4_0", "q4"] {
            assert!(!Words::Formats.knows(unknown), "{unknown}");
        }
        assert!(Words::DeviceVendors.knows("0x1ed5"));
        assert!(!Words::DeviceVendors.knows("0x1ed"));
    }

    #[test]
    fn kv_spellings_of_the_command_line_have_one_name() {
        assert_eq!(kv_dtype_name("int8"), "q8");
        assert_eq!(kv_dtype_name("int4"), "q4");
        assert_eq!(kv_dtype_name("bf16"), "bf16");
        assert!(Words::KvDtypes.knows(kv_dtype_name("int8")));
    }

    #[test]
    fn drafter_kinds_are_found_by_their_name() {
        for kind in DrafterKind::ALL {
            assert_eq!(DrafterKind::from_id(kind.id()), Some(*kind));
        }
        assert_eq!(DrafterKind::from_id("x-acme-medusa"), None);
    }
}
