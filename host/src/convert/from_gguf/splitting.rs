//! How a text is cut before its bytes are merged, by the name that a file gives it.

use serde_json::{Value as Json, json};

/// The rules of one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitting {
    /// What the file calls it.
    name: &'static str,
    /// Expressions that are applied one after another, each to the pieces of the one before. None leaves the cutting
    /// to the byte-level step, whose own expression is GPT-2's.
    expressions: &'static [&'static str],
    /// Whether each digit stands alone, before anything else.
    single_digits: bool,
    /// Whether text is composed first (NFC).
    composed: bool,
    /// Whether a piece that is a token is taken as it is, without merging.
    whole_tokens: bool,
    /// Whether a prompt begins with the model's first token where the file does not say.
    pub(super) begins: bool,
}

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// What llama.cpp does for models that it has no name for.
const DEFAULT: &[&str] = &[
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

const GPT2: Splitting = Splitting {
    name: "gpt-2",
    expressions: &[],
    single_digits: false,
    composed: false,
    whole_tokens: false,
    begins: false,
};

const ALL: &[Splitting] = &[
    GPT2,
    Splitting { name: "smollm", single_digits: true, ..GPT2 },
    Splitting { name: "default", expressions: DEFAULT, ..GPT2 },
    Splitting { name: "qwen2", expressions: &[QWEN2], composed: true, ..GPT2 },
    Splitting { name: "deepseek-r1-qwen", expressions: &[QWEN2], ..GPT2 },
    Splitting { name: "qwen35", expressions: &[QWEN35], composed: true, ..GPT2 },
    Splitting { name: "llama-bpe", expressions: &[LLAMA3], whole_tokens: true, begins: true, ..GPT2 },
    Splitting { name: "llama3", expressions: &[LLAMA3], whole_tokens: true, begins: true, ..GPT2 },
    Splitting { name: "llama-v3", expressions: &[LLAMA3], whole_tokens: true, begins: true, ..GPT2 },
];

impl Splitting {
    /// The rules of a name.
    ///
    /// # Errors
    /// When there are none of that name; other rules would give other ids.
    pub(super) fn named(name: Option<&str>) -> Result<Splitting, String> {
        let known = || ALL.iter().map(|splitting| splitting.name).collect::<Vec<_>>().join(", ");
        let Some(name) = name else {
            return Err(format!(
                "tokenizer.ggml.pre is missing, which says how text is cut; make the file again with a current llama.cpp (known: {})",
                known()
            ));
        };
        ALL.iter().find(|splitting| splitting.name == name).copied().ok_or_else(|| {
            format!(
                "tokenizer.ggml.pre is {name:?}; how it cuts text is not known, and a guess would give other ids (known: {})",
                known()
            )
        })
    }

    /// `normalizer` of `tokenizer.json`.
    pub(super) fn normalizer(self) -> Json {
        if self.composed { json!({ "type": "NFC" }) } else { Json::Null }
    }

    /// `pre_tokenizer` of `tokenizer.json`.
    pub(super) fn pre_tokenizer(self) -> Json {
        let mut steps = Vec::new();
        if self.single_digits {
            steps.push(json!({ "type": "Digits", "individual_digits": true }));
        }
        for expression in self.expressions {
            steps.push(json!({
                "type": "Split", "pattern": { "Regex": expression }, "behavior": "Isolated", "invert": false,
            }));
        }
        steps.push(json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": self.expressions.is_empty(),
        }));
        json!({ "type": "Sequence", "pretokenizers": steps })
    }

    /// `ignore_merges` of `tokenizer.json`.
    pub(super) fn takes_whole_tokens(self) -> bool {
        self.whole_tokens
    }
}
