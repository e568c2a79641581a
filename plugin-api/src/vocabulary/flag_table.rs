//! The list of the flags of `serve`.

use super::flags::{AnsweredBy, Capability, FlagGroup, FlagSpec, Neutral, Support};
use super::values::ValueKind;

/// A flag that takes a value once, acted on by the host, with no neutral value.
const fn takes(
    name: &'static str,
    value_name: &'static str,
    value: ValueKind,
    group: FlagGroup,
    help: &'static str,
) -> FlagSpec {
    FlagSpec {
        name,
        value_name,
        value,
        repeats: false,
        default: "",
        neutral: Neutral::None,
        group,
        help,
        answered_by: AnsweredBy::Host,
        support: Support::Acts,
        advice: "serve without it",
    }
}

/// The same without a value.
const fn switch(name: &'static str, group: FlagGroup, help: &'static str) -> FlagSpec {
    takes(name, "", ValueKind::Switch, group, help)
}

impl FlagSpec {
    const fn repeats(mut self) -> FlagSpec {
        self.repeats = true;
        self
    }

    const fn default(mut self, default: &'static str) -> FlagSpec {
        self.default = default;
        self
    }

    const fn neutral(mut self, values: &'static [&'static str]) -> FlagSpec {
        self.neutral = Neutral::Values(values);
        self
    }

    const fn turns_off(mut self) -> FlagSpec {
        self.neutral = Neutral::Itself;
        self
    }

    const fn by(mut self, capability: Capability) -> FlagSpec {
        self.answered_by = AnsweredBy::Capability(capability);
        self
    }

    const fn by_serve_flags(mut self) -> FlagSpec {
        self.answered_by = AnsweredBy::ServeFlags;
        self
    }

    const fn advice(mut self, advice: &'static str) -> FlagSpec {
        self.advice = advice;
        self
    }

    const fn not_yet(mut self) -> FlagSpec {
        self.support = Support::NotYet;
        self
    }

    const fn nothing_to_do(mut self) -> FlagSpec {
        self.support = Support::NothingToDo;
        self
    }
}

const ANY_COUNT: ValueKind = ValueKind::Count { least: 0, most: None };
const FROM_ONE: ValueKind = ValueKind::Count { least: 1, most: None };
const AUTO_ON_OFF: ValueKind = ValueKind::Choice(&["auto", "on", "off"]);
const ZERO: &[&str] = &["0"];

use FlagGroup::{Drafting, Memory, Numbers, Other, Plugins, Ranks, Requests, Server, Thinking, Vision};

/// Every flag of `serve`, in the order of the help within its group.
pub const FLAGS: &[FlagSpec] = &[
    takes("--host", "ADDRESS", ValueKind::Text, Server, "address to listen on").default("127.0.0.1"),
    takes("--port", "PORT", ValueKind::Port, Server, "port to listen on; 0 lets the system choose")
        .default("8080"),
    takes("--name", "ID", ValueKind::Text, Server, "model id to advertise")
        .default("last part of the model's id or folder"),
    takes("--alias", "ID", ValueKind::Text, Server, "further model id to answer to").repeats(),
    takes("--api-key", "KEY", ValueKind::Text, Server, "key that clients must send").repeats(),
    takes(
        "--api-key-file",
        "FILE",
        ValueKind::Path,
        Server,
        "file of keys, one a line, readable by its owner only",
    ),
    switch("--metrics-open", Server, "metrics without a key").not_yet(),
    switch("--dashboard", Server, "a built-in page").not_yet(),
    takes("--chat-template", "FILE", ValueKind::Path, Server, "chat template in place of the checkpoint's"),
    switch("--no-update-check", Other, "accepted, with nothing to do: no release is ever looked up")
        .nothing_to_do(),
    //
    takes(
        "--backend",
        "NAME",
        ValueKind::Text,
        Plugins,
        "backend to serve with: auto, or a name of `tensorfold plugins list`",
    )
    .default("auto"),
    takes(
        "--device",
        "DEVICE",
        ValueKind::Text,
        Plugins,
        "device: PCI address, uuid, or number in the host's order",
    )
    .default("the first that fits"),
    takes(
        "--opt",
        "BACKEND.NAME=VALUE",
        ValueKind::Assignment,
        Plugins,
        "option of the backend, as its manifest lists them",
    )
    .repeats()
    .by(Capability::Options),
    takes(
        "--threads",
        "N",
        ANY_COUNT,
        Plugins,
        "threads that compute, a short form of --opt BACKEND.threads=N; 0 leaves it to the backend",
    )
    .neutral(ZERO)
    .by(Capability::Option("threads")),
    takes(
        "--plugin",
        "FILE",
        ValueKind::Path,
        Plugins,
        "plugin to offer: its sidecar, or a library with a manifest inside",
    )
    .repeats(),
    takes("--plugin-path", "FOLDER", ValueKind::Path, Plugins, "folder to search for plugins first")
        .repeats(),
    takes(
        "--plugins-file",
        "FILE",
        ValueKind::Path,
        Plugins,
        "plugins.toml in place of the user's and the system's",
    ),
    switch("--allow-fallback", Plugins, "serve on the CPU when the accelerator can not be used, saying so"),
    switch(
        "--allow-untested-host",
        Plugins,
        "take a plugin whose vendor did not test this release, saying so",
    ),
    takes(
        "--probe",
        "WHEN",
        ValueKind::Choice(&["never", "auto", "always"]),
        Plugins,
        "try a plugin in a process of its own first",
    )
    .default("auto"),
    //
    takes("--max-tokens", "N", FROM_ONE, Requests, "reply limit when the request has none").default("4096"),
    takes("--temperature", "T", ValueKind::Number, Requests, "sampling temperature; 0 is greedy")
        .default("the checkpoint's, else greedy"),
    takes("--top-p", "P", ValueKind::Probability, Requests, "nucleus of this probability; 0 or 1 is off")
        .default("the checkpoint's, else off"),
    takes("--top-k", "N", ValueKind::Integer, Requests, "the most likely tokens to draw from; 0 is off")
        .default("the checkpoint's, else off"),
    takes(
        "--min-p",
        "P",
        ValueKind::Probability,
        Requests,
        "least probability, as a share of the greatest; 0 is off",
    )
    .default("the checkpoint's, else off"),
    takes(
        "--name-priority",
        "ID=background",
        ValueKind::Assignment,
        Requests,
        "model id that marks background work",
    )
    .repeats()
    .not_yet(),
    switch("--learn", Other, "shared prompt states on disk").by_serve_flags().not_yet(),
    takes("--learn-dir", "FOLDER", ValueKind::Path, Other, "folder of the shared prompt states")
        .by_serve_flags()
        .not_yet(),
    takes("--learn-gib", "GIB", ValueKind::Gibibytes, Other, "most of the shared prompt states")
        .default("32")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes("--learn-min-free-gib", "GIB", ValueKind::Gibibytes, Other, "what to leave free on that disk")
        .default("4")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes(
        "--compact-at",
        "auto|SHARE",
        ValueKind::AutoOrFraction,
        Other,
        "compact conversations from this share of the context",
    )
    .not_yet(),
    takes("--compact-keep", "N", ANY_COUNT, Other, "turns that compaction keeps").neutral(ZERO).not_yet(),
    takes("--compact-memory", "FOLDER", ValueKind::Path, Other, "where compacted turns are kept").not_yet(),
    switch("--slide", Other, "weight learning").by_serve_flags().not_yet(),
    takes("--slide-graph", "SHARE", ValueKind::Probability, Other, "share of the learned graph")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    //
    switch("--thinking", Thinking, "let the template think; this is the default"),
    switch("--no-thinking", Thinking, "do not let the template think"),
    takes(
        "--reasoning-effort",
        "LEVEL",
        ValueKind::Choice(&["low", "medium", "high", "xhigh"]),
        Thinking,
        "default effort",
    )
    .default("the template's own"),
    takes(
        "--thinking-budget",
        "N",
        ANY_COUNT,
        Thinking,
        "tokens before the think block is closed; 0 is none",
    )
    .default("0")
    .neutral(ZERO),
    switch("--loop-guard", Thinking, "end a short exact cycle inside a think block").not_yet(),
    //
    switch("--no-drafts", Drafting, "no drafts at all: one token a round, the serial reference").turns_off(),
    takes("--drafter", "auto|none|REPO|FOLDER", ValueKind::Text, Drafting, "external draft model")
        .default("auto")
        .neutral(&["auto", "none", ""])
        .by(Capability::Drafters),
    takes(
        "--drafter-bits",
        "BITS",
        ValueKind::NumberChoice(&["0", "4"]),
        Drafting,
        "bits of the draft model's weights; 0 is as they are",
    )
    .neutral(ZERO)
    .by_serve_flags()
    .not_yet(),
    takes(
        "--mtp-drafts",
        "N",
        ValueKind::Count { least: 0, most: Some(64) },
        Drafting,
        "most drafts of the checkpoint's own head a round; 0 is none",
    )
    .default("what the backend drafts at most")
    .neutral(ZERO)
    .by(Capability::Mtp),
    takes(
        "--mtp-confidence",
        "P",
        ValueKind::Probability,
        Drafting,
        "end a chain before a later draft under this probability; 0 never does",
    )
    .default("0.30")
    .neutral(ZERO)
    .by(Capability::Mtp),
    //
    takes(
        "--context",
        "N",
        ValueKind::Integer,
        Memory,
        "tokens of prompt and reply; 0 is the model's window",
    )
    .default("the model's window")
    .neutral(ZERO)
    .by(Capability::Context),
    takes("--parallel", "auto|N", ValueKind::AutoOrCount, Memory, "requests to run at once")
        .default("auto")
        .neutral(&["auto", "1"])
        .by(Capability::Lanes),
    takes("--prompt-cache-gib", "GIB", ValueKind::Gibibytes, Memory, "kept prompt states; 0 is off")
        .default("half of what is left, at most 4")
        .neutral(ZERO)
        .by(Capability::Feature("prompt-cache")),
    switch("--prompt-cache-over-cap", Memory, "accept a larger cache than fits the plan")
        .by(Capability::Feature("prompt-cache")),
    takes("--checkpoint-slots", "N", ANY_COUNT, Memory, "kept prompt entries")
        .default("32")
        .neutral(ZERO)
        .by(Capability::Feature("prompt-cache")),
    takes("--tail-checkpoint-tokens", "N", ANY_COUNT, Memory, "an extra prompt state so far before the end")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes("--spill-gib", "GIB", ValueKind::Gibibytes, Memory, "prompt states on disk")
        .default("0")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes("--snapshot-dir", "FOLDER|none", ValueKind::Path, Memory, "folder of the prompt states on disk")
        .neutral(&["none"])
        .by_serve_flags()
        .not_yet(),
    takes("--max-snapshots", "N", ANY_COUNT, Memory, "prompt states on disk at most")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes(
        "--decode-share",
        "SHARE",
        ValueKind::Probability,
        Memory,
        "share of a prompt chunk's time for running replies",
    )
    .neutral(ZERO)
    .by_serve_flags()
    .not_yet(),
    takes("--prefill-pass", "N", ANY_COUNT, Memory, "prompt passes of the MLX engine")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes("--pass-cache-gib", "GIB", ValueKind::Gibibytes, Memory, "cache of those passes")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes("--mlx-cache-gib", "GIB", ValueKind::Gibibytes, Memory, "buffer cache of the MLX engine")
        .neutral(ZERO)
        .by_serve_flags()
        .not_yet(),
    takes(
        "--ssd-experts",
        "GIB",
        ValueKind::Gibibytes,
        Memory,
        "stream experts from disk through a cache of this size",
    )
    .neutral(ZERO)
    .by_serve_flags()
    .not_yet(),
    switch("--ple-on-ssd", Memory, "keep n-gram tables on disk").by_serve_flags().not_yet(),
    takes("--segments", "N", FROM_ONE, Memory, "staggered prompt segments")
        .default("1")
        .neutral(&["1"])
        .by_serve_flags()
        .not_yet(),
    takes(
        "--load-limit-gib",
        "GIB",
        ValueKind::Gibibytes,
        Memory,
        "most that loading may take; 0 is no limit",
    )
    .neutral(ZERO)
    .by_serve_flags()
    .not_yet(),
    takes(
        "--keep-warm",
        "SECONDS",
        ValueKind::Seconds,
        Memory,
        "keep an idle device awake so long; 0 is not at all",
    )
    .neutral(ZERO)
    .by_serve_flags()
    .not_yet(),
    switch("--enable-sleep-mode", Memory, "give memory back on request")
        .by(Capability::Feature("sleep"))
        .not_yet(),
    takes(
        "--sleep-token-env",
        "NAME",
        ValueKind::Text,
        Memory,
        "variable that holds the secret for sleep and wake",
    )
    .by(Capability::Feature("sleep"))
    .not_yet(),
    takes(
        "--sleep-timeout",
        "SECONDS",
        ValueKind::Seconds,
        Memory,
        "longest wait for running replies before sleep",
    )
    .default("120")
    .by(Capability::Feature("sleep"))
    .not_yet(),
    //
    takes(
        "--kv-dtype",
        "TYPE",
        ValueKind::Choice(&["bf16", "f16", "f32", "fp8-e4m3", "int8", "int4", "q8", "q4"]),
        Numbers,
        "type of the key/value cache; int8 and int4 are q8 and q4",
    )
    .default("the backend's own")
    .by(Capability::KvDtypes),
    takes("--lane-kernels", "auto|on|off", AUTO_ON_OFF, Numbers, "tensor-unit kernels")
        .default("auto")
        .neutral(&["auto", "off"])
        .by_serve_flags()
        .not_yet(),
    switch("--prefill-fp8", Numbers, "e4m3 activations for prompts").by_serve_flags().not_yet(),
    switch("--no-prefill-fp8", Numbers, "bf16 activations for prompts; this is the default")
        .turns_off()
        .by_serve_flags()
        .not_yet(),
    takes(
        "--precision",
        "checkpoint|full",
        ValueKind::Choice(&["checkpoint", "full"]),
        Numbers,
        "mathematics of NVFP4 weights",
    )
    .default("checkpoint")
    .neutral(&["checkpoint"])
    .by_serve_flags()
    .not_yet(),
    takes(
        "--policy",
        "KEY=VALUE",
        ValueKind::Assignments,
        Numbers,
        "kernel policy, several joined by commas",
    )
    .repeats()
    .neutral(&[""])
    .by_serve_flags()
    .not_yet(),
    //
    takes("--tp", "N", ValueKind::NumberChoice(&["1", "2", "4", "8"]), Ranks, "ranks that share one model")
        .default("1")
        .neutral(&["1"])
        .by(Capability::Worlds),
    takes("--rank", "R", ValueKind::Integer, Ranks, "which of them this process is")
        .default("0")
        .neutral(ZERO)
        .by(Capability::Worlds),
    takes(
        "--master",
        "ADDRESS",
        ValueKind::Text,
        Ranks,
        "address of rank 0 on the link between the machines",
    )
    .neutral(&[""])
    .by(Capability::Worlds),
    takes("--master-port", "PORT", ValueKind::Port, Ranks, "port of rank 0 on that link")
        .default("29551")
        .neutral(&["29551"])
        .by(Capability::Worlds),
    takes("--speed-up", "FILE", ValueKind::Path, Ranks, "link settings of two Macs")
        .by_serve_flags()
        .advice("ranks come from --tp")
        .not_yet(),
    //
    switch("--vision", Vision, "take images and video").by(Capability::Feature("vision")).not_yet(),
    switch("--vision-urls", Vision, "fetch them from addresses").by(Capability::Feature("vision")).not_yet(),
    takes(
        "--vision-max-images",
        "N",
        ValueKind::Count { least: 1, most: Some(64) },
        Vision,
        "images in one request",
    )
    .default("4")
    .by(Capability::Feature("vision"))
    .not_yet(),
    takes(
        "--vision-image-tokens",
        "N",
        ValueKind::Count { least: 16, most: Some(16_384) },
        Vision,
        "tokens of one image",
    )
    .default("4096")
    .by(Capability::Feature("vision"))
    .not_yet(),
    takes(
        "--vision-video-tokens",
        "N",
        ValueKind::Count { least: 64, most: Some(262_144) },
        Vision,
        "tokens of one video",
    )
    .default("16384")
    .by(Capability::Feature("vision"))
    .not_yet(),
    switch("--vision-offload", Vision, "keep the image tower in main memory")
        .by(Capability::Feature("vision"))
        .not_yet(),
];
