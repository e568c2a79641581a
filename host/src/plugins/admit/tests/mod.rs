//! Tables: each sentence with the request that brings it up, and each order that matters.

mod in_tree;
mod models;
mod requests;

use std::collections::BTreeSet;

use semver::Version;
use tensorfold_plugin_api::negotiation::AbiVersion;
use tensorfold_plugin_api::vocabulary::{
    AnsweredBy, Capability, DrafterKind, FLAGS, FlagGroup, FlagSpec, Neutral, Support, ValueKind,
};

use super::*;
use crate::plugins::hardware::{Device, Hardware, Placement, Vendor};

/// A GPU plugin that drafts with the own head and with nothing else.
pub(super) const HIP: &str = r#"
manifest = 1
[plugin]
id = "backend-hip"
version = "0.4.2"
engine_name = "HIP"
platform_name = "ROCm"
backend = "hip"
aliases = ["rocm"]
library = "libtensorfold_backend_hip.so"
[abi]
major = 1
minor = 0
interfaces = ["tensorfold.backend/1", "tensorfold.engine/1", "tensorfold.mtp/1", "tensorfold.dflash/1"]
host_interfaces = ["tensorfold.host/1"]
[target]
os = "linux"
arch = "x86_64"
libc = "gnu"
libc_min = "2.35"
cpu = ["avx2"]
[[device]]
kind = "gpu"
vendor = "amd"
archs = ["gfx1151"]
[driver]
amdgpu = "6.10"
[caps]
worlds = [1, 2, 4]
formats = ["mlx-q4", "bf16"]
kv_dtypes = ["bf16", "q8"]
features = ["vision"]
serve_flags = ["--policy"]
limits = { lanes = 8, context = 65536 }
[drafters.mtp]
revision = { min = 1, max = 1 }
depth_max = 3
worlds = [1, 2]
[[family]]
model_type = "qwen3_5"
[[family]]
model_type = "qwen3"
drafters = []
formats = ["bf16"]
kv_dtypes = ["bf16"]
worlds = [1]
limits = { lanes = 2, context = 4096 }
[options.threads]
type = "integer"
least = 0
most = 64
default = 0
help = "threads"
[options.mode]
type = "choice"
choices = ["exact", "fast"]
help = "mode"
"#;

/// The same with a DFlash2 drafter, and with a head that gives no probabilities.
fn drafting() -> String {
    HIP.replace("worlds = [1, 2]\n[[family]]", "worlds = [1, 2]\nconfidence = false\n[[family]]")
        + "[drafters.dflash2]\nrevision = { min = 1, max = 2 }\nblock_max = 8\ntaps_max = 5\nworlds = [1]\n"
}

pub(super) fn manifest(text: &str) -> Manifest {
    // The tests run where the library would not.
    let text = text.replace("arch = \"x86_64\"", &format!("arch = \"{}\"", std::env::consts::ARCH));
    match Manifest::parse(text.as_bytes(), "test.toml") {
        Ok(parsed) => parsed.manifest,
        Err(errors) => panic!("{errors}\n{text}"),
    }
}

pub(super) fn flags(line: &str) -> GivenFlags {
    let pairs = line.split_whitespace().map(|word| match word.split_once('=') {
        Some((name, text)) => (name, Some(text)),
        None => (word, None),
    });
    GivenFlags::from_pairs(pairs).expect(line)
}

/// A host that can do everything that plugins can.
pub(super) fn able_host() -> HostFacts {
    HostFacts {
        release: Version::new(0, 4, 0),
        abi: vec![AbiVersion { major: 1, minor: 0 }],
        drafters: DrafterKind::ALL.to_vec(),
        runs_ranks: true,
        ..HostFacts::of_this_program()
    }
}

pub(super) fn hardware() -> Hardware {
    let mut hardware = Hardware {
        devices: vec![Device {
            address: "0000:c5:00.0".to_owned(),
            vendor: Vendor::Amd,
            device: 0x1586,
            class: 0x03_8000,
            driver: Some("amdgpu".to_owned()),
            arch: Some("gfx1151".to_owned()),
            placement: Placement::Integrated,
            memory_bytes: None,
            render_minor: Some(128),
        }],
        cpu_features: vec!["avx", "avx2", "fma", "sse2"],
        libc: Some("2.36".to_owned()),
        ..Hardware::default()
    };
    hardware.drivers.amdgpu = Some("6.10.5-generic".to_owned());
    hardware
}

fn model(family: &str, formats: &[&str], context_window: Option<u32>) -> ModelFacts {
    ModelFacts {
        family: family.to_owned(),
        formats: formats.iter().map(|format| (*format).to_owned()).collect(),
        context_window,
        own_head: Some(OwnHead { revision: 1, weights: "in-checkpoint" }),
    }
}

fn dflash2() -> DrafterFacts {
    DrafterFacts {
        kind: DrafterKind::Dflash2,
        revision: 1,
        block: Some(8),
        taps: Some(5),
        dtypes: BTreeSet::from(["bf16".to_owned()]),
        pruned_vocabulary: false,
    }
}

/// What `serve` prints, or `served`.
fn says(text: &str, line: &str, change: impl Fn(&mut Facts<'_>)) -> String {
    let (manifest, flags, host) = (manifest(text), flags(line), able_host());
    let mut facts = Facts::of_host(&host);
    change(&mut facts);
    let subject =
        Subject { manifest: &manifest, path: Some(Path::new("/p/hip.so")), flags: &flags, facts: &facts };
    match admit(&subject) {
        Ok(_) => "served".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

/// The same from the manifest and the command line alone, with the status.
fn early(text: &str, line: &str) -> (String, u8) {
    let (manifest, flags, host) = (manifest(text), flags(line), able_host());
    let facts = Facts::of_host(&host);
    match admit_early(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts }) {
        Ok(()) => ("served".to_owned(), 0),
        Err(refusal) => (refusal.to_string(), refusal.exit_code()),
    }
}

/// Facts are borrowed for the whole test.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
