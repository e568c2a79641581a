//! Tables: each sentence with the request that brings it up, and each order that matters.

use std::collections::BTreeSet;

use semver::Version;
use tensorfold_plugin_api::negotiation::AbiVersion;
use tensorfold_plugin_api::vocabulary::{
    AnsweredBy, Capability, DrafterKind, FLAGS, FlagGroup, FlagSpec, Neutral, Support, ValueKind,
};

use super::*;
use crate::plugins::hardware::{Access, Device, Hardware, Node, Placement, Vendor};

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
interfaces = ["tensorfold.backend/1", "tensorfold.engine/1"]
host_interfaces = ["tensorfold.host/1"]
[target]
os = "linux"
arch = "x86_64"
libc = "gnu"
libc_min = "2.35"
cpu = ["avx2", "sse2"]
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

pub(super) fn machine() -> MachineFacts {
    MachineFacts { os: "linux", arch: "x86_64", libc: "gnu" }
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
        cpu_features: vec!["avx", "avx2", "fma"],
        libc: Some("2.36".to_owned()),
        ..Hardware::default()
    };
    hardware.drivers.amdgpu = Some("6.10.5-generic".to_owned());
    hardware.nodes = vec![node("/dev/kfd", Access::Granted)];
    hardware
}

fn node(path: &str, access: Access) -> Node {
    let group = Some("render".to_owned());
    Node { path: path.into(), vendor: Some(Vendor::Amd), mode: 0o20660, uid: 0, gid: 105, group, access }
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
        dtype: Some("bf16".to_owned()),
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

#[test]
fn a_named_drafter_is_refused_at_once_by_a_plugin_that_runs_none() {
    let wanted = "--drafter: the HIP engine runs no DFlash2 drafter yet; serve without --drafter";
    for line in [
        "--drafter=z-lab/Qwen3.8-27B-DFlash2",
        "--drafter=/no/such/folder",
        "--drafter=z-lab/Qwen3.6-35B-A3B-DFlash",
        "--drafter=a/b --tp=2 --rank=1 --master=10.0.0.1",
        "--tp=8 --master=10.0.0.1 --rank=7 --drafter=a/b",
        "--drafter=a/b --mtp-drafts=60 --policy=a=1 --dashboard --context=-3 --kv-dtype=f32",
    ] {
        assert_eq!(early(HIP, line), (wanted.to_owned(), 1), "{line}");
    }
}

#[test]
fn what_asks_for_no_drafter_is_served_by_every_plugin() {
    let plain =
        HIP.replace("[drafters.mtp]\nrevision = { min = 1, max = 1 }\ndepth_max = 3\nworlds = [1, 2]\n", "");
    for text in [HIP, &plain, &drafting()] {
        for line in [
            "",
            "--drafter=auto",
            "--drafter=none",
            "--drafter=",
            "--no-drafts",
            "--no-drafts --drafter=a/b",
            "--no-drafts --mtp-drafts=60",
            "--mtp-drafts=0 --mtp-confidence=0",
        ] {
            assert_eq!(early(text, line).0, "served", "{line}");
        }
    }
}

#[test]
fn a_plugin_that_runs_some_kind_is_asked_about_the_kind_that_was_found() {
    let text = drafting();
    let with = |kind, line| {
        let drafter = DrafterFacts { kind, ..dflash2() };
        says(&text, line, |facts| facts.drafter = Some(kept(drafter.clone())))
    };
    assert_eq!(with(DrafterKind::Dflash2, "--drafter=a/b"), "served");
    assert_eq!(
        with(DrafterKind::Dflash, "--drafter=a/b"),
        "--drafter: the HIP engine runs no DFlash drafter yet; serve without --drafter"
    );
    assert_eq!(
        with(DrafterKind::Eagle3, "--drafter=a/b"),
        "--drafter: the HIP engine runs no EAGLE3 drafter yet; serve without --drafter"
    );
    assert_eq!(says(&text, "--drafter=a/b", |_| {}), "served", "before its config was read");
    assert!(wants_drafter_facts(&manifest(&text), &flags("--drafter=a/b")));
    assert!(!wants_drafter_facts(&manifest(&text), &flags("--drafter=none")));
    assert!(!wants_drafter_facts(&manifest(HIP), &flags("--drafter=a/b")));
}

/// Facts are borrowed for the whole test.
fn kept<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

#[test]
fn a_kind_that_only_the_plugin_knows_counts_as_none() {
    let text = format!("{HIP}[drafters.x-acme-tree]\nanything = 1\n");
    assert_eq!(
        early(&text, "--drafter=a/b").0,
        "--drafter: the HIP engine runs no DFlash2 drafter yet; serve without --drafter"
    );
}

#[test]
fn every_fault_of_a_drafter_stands_in_one_line() {
    let text = drafting();
    let judged =
        |drafter: DrafterFacts, line| says(&text, line, |facts| facts.drafter = Some(kept(drafter.clone())));
    assert_eq!(
        judged(DrafterFacts { revision: 3, ..dflash2() }, "--drafter=a/b"),
        "--drafter: the HIP engine runs DFlash2 revisions 1 to 2, this drafter's is 3; serve without --drafter"
    );
    let wrong = DrafterFacts {
        block: Some(16),
        taps: Some(6),
        dtype: Some("f16".to_owned()),
        pruned_vocabulary: true,
        ..dflash2()
    };
    assert_eq!(
        judged(wrong, "--drafter=a/b --tp=2 --master=m"),
        "--drafter: the HIP engine drafts blocks of at most 8, this drafter's is 16; it gives a drafter at most 5 \
         layers to read, this one reads 6; it runs DFlash2 drafters in bf16, this one is in f16; it runs DFlash2 \
         drafters with the target's whole vocabulary, this one has a part of it; it drafts with DFlash2 under --tp \
         1, not 2; serve without --drafter"
    );
}

#[test]
fn the_own_head_follows_its_table_and_nothing_else() {
    let headless = HIP
        .replace("[drafters.mtp]\nrevision = { min = 1, max = 1 }\ndepth_max = 3\nworlds = [1, 2]\n", "")
        .replace("\"--policy\"", "\"--policy\", \"--mtp-drafts\", \"--mtp-confidence\"");
    for (text, line, wanted) in [
        (HIP, "--mtp-drafts=3", "served"),
        (HIP, "--mtp-drafts=4", "--mtp-drafts 4: the HIP engine drafts at most 3"),
        (HIP, "--mtp-confidence=0.3", "served"),
        (
            HIP,
            "--mtp-drafts=2 --tp=4 --master=m",
            "--mtp-drafts: the HIP engine drafts with no MTP head under --tp 4; choose --tp 1 or 2 or serve without \
             --mtp-drafts",
        ),
        (
            &headless,
            "--mtp-drafts=2",
            "--mtp-drafts: the HIP engine drafts with no MTP head yet; serve without --mtp-drafts",
        ),
        (
            &headless,
            "--mtp-confidence=0.5",
            "--mtp-confidence: the HIP engine drafts with no MTP head yet; serve without --mtp-confidence",
        ),
        (
            &drafting(),
            "--mtp-confidence=0.5",
            "--mtp-confidence: the HIP engine gives no draft probabilities; serve without --mtp-confidence",
        ),
    ] {
        let (sentence, status) = early(text, line);
        assert_eq!(sentence, wanted);
        assert_eq!(status == 0, wanted == "served", "{line}");
        assert_ne!(status, 2, "{line}");
    }
}

#[test]
fn a_promise_that_this_host_can_not_keep_is_refused_and_not_left_unused() {
    let host = HostFacts { drafters: vec![DrafterKind::Dflash], runs_ranks: false, ..able_host() };
    let judged = |text: &str, line| {
        let (manifest, flags) = (manifest(text), flags(line));
        let facts = Facts::of_host(&host);
        admit(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts })
            .map_or_else(|refusal| refusal.to_string(), |_| "served".to_owned())
    };
    let not_yet = |flag| format!("{flag} is not served by tensorfold yet; serve without it");
    assert_eq!(judged(&drafting(), "--drafter=a/b"), not_yet("--drafter"));
    assert_eq!(judged(HIP, "--mtp-drafts=2"), not_yet("--mtp-drafts"));
    assert_eq!(judged(HIP, "--tp=2 --master=m"), not_yet("--tp"));
    assert_eq!(judged(HIP, "--master=m"), not_yet("--master"));
    assert_eq!(judged(HIP, "--tp=1 --rank=0 --master= --master-port=29551"), "served");
}

#[test]
fn a_flag_that_nobody_serves_is_a_usage_error_and_never_ignored() {
    for (line, wanted) in [
        ("--slide", "--slide is not served by the HIP engine yet; serve without it"),
        ("--decode-share=0.25", "--decode-share is not served by the HIP engine yet; serve without it"),
        ("--speed-up=f", "--speed-up is not served by the HIP engine yet; ranks come from --tp"),
        ("--prompt-cache-gib=1", "--prompt-cache-gib is not served by the HIP engine yet; serve without it"),
        // What the plugin declares, or what is the host's own.
        ("--policy=a=1", "--policy is not served by tensorfold yet; serve without it"),
        ("--vision", "--vision is not served by tensorfold yet; serve without it"),
        ("--dashboard", "--dashboard is not served by tensorfold yet; serve without it"),
        ("--parallel=9", "--parallel 9 is not served by the HIP engine; it runs at most 8 at once"),
        ("--opt=threads=8", "--opt threads=8: expected BACKEND.NAME=VALUE"),
        ("--opt=cpu.threads=8", "--opt cpu.threads=8: the backend in use is hip, not cpu"),
        (
            "--opt=rocm.thread=8",
            "--opt rocm.thread=8: the HIP engine has no option thread; it has mode, threads",
        ),
        ("--opt=hip.threads=99", "--opt hip.threads=99: found 99; allowed: a whole number from 0 to 64"),
        ("--opt=hip.mode=slow", "--opt hip.mode=slow: found \"slow\"; allowed: exact or fast"),
    ] {
        assert_eq!(early(HIP, line), (wanted.to_owned(), 2), "{line}");
    }
}

#[test]
fn every_flag_of_the_table_is_acted_on_or_refused() {
    let (manifest, host) = (manifest(HIP), able_host());
    let facts = Facts::of_host(&host);
    for flag in FLAGS.iter().filter(|flag| flag.support == Support::NotYet) {
        let text = match flag.value {
            ValueKind::Switch => None,
            ValueKind::Assignment | ValueKind::Assignments => Some("a=1"),
            ValueKind::Choice(choices) | ValueKind::NumberChoice(choices) => choices.last().copied(),
            ValueKind::Probability | ValueKind::AutoOrFraction | ValueKind::Gibibytes => Some("0.5"),
            ValueKind::Text | ValueKind::Path => Some("thing"),
            _ => Some("64"),
        };
        let text =
            if flag.name == "--lane-kernels" || flag.name == "--precision" { flag_value(flag) } else { text };
        let mut flags = GivenFlags::new();
        flags.push(flag.name, text).unwrap();
        let subject = Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts };
        let refusal = admit_early(&subject);
        if flag.neutral == Neutral::Itself {
            assert_eq!(refusal, Ok(()), "{}", flag.name);
        } else {
            let refusal = refusal.expect_err(flag.name);
            assert!(
                refusal.to_string().starts_with(&format!("{} is not served by ", flag.name)),
                "{refusal}"
            );
            assert_eq!(refusal.exit_code(), 2);
        }
    }
}

/// A value that asks for something.
fn flag_value(flag: &FlagSpec) -> Option<&'static str> {
    flag.choices()
        .iter()
        .copied()
        .find(|choice| flag.value.read(flag.name, choice).is_ok_and(|value| !flag.is_neutral(&value)))
}

#[test]
fn the_neutral_value_of_every_flag_is_served_by_the_barest_plugin() {
    let bare = manifest(&HIP[..HIP.find("[caps]").unwrap()]);
    let host = HostFacts { drafters: Vec::new(), runs_ranks: false, ..able_host() };
    let facts = Facts::of_host(&host);
    for flag in FLAGS {
        let values: Vec<Option<&str>> = match flag.neutral {
            Neutral::None => continue,
            Neutral::Itself => vec![None],
            Neutral::Values(values) => values.iter().copied().map(Some).collect(),
        };
        for text in values {
            let mut flags = GivenFlags::new();
            flags.push(flag.name, text).unwrap();
            let subject = Subject { manifest: &bare, path: None, flags: &flags, facts: &facts };
            assert_eq!(admit_early(&subject), Ok(()), "{} {text:?}", flag.name);
        }
    }
}

#[test]
fn a_flag_that_the_host_hands_on_is_served_exactly_when_it_is_declared() {
    let handed_on = FlagSpec {
        name: "--policy",
        value_name: "KEY=VALUE",
        value: ValueKind::Assignments,
        repeats: true,
        default: "",
        neutral: Neutral::None,
        group: FlagGroup::Numbers,
        help: "kernel policy",
        answered_by: AnsweredBy::ServeFlags,
        support: Support::HandsOn,
        advice: "serve without it",
    };
    let seeing = FlagSpec {
        name: "--vision",
        answered_by: AnsweredBy::Capability(Capability::Feature("vision")),
        ..handed_on
    };
    let (host, none) = (able_host(), GivenFlags::new());
    let facts = Facts::of_host(&host);
    let undeclared = HIP.replace("[\"--policy\"]", "[]").replace("[\"vision\"]", "[]");
    for (text, served) in [(HIP, true), (undeclared.as_str(), false)] {
        let manifest = manifest(text);
        let subject = Subject { manifest: &manifest, path: None, flags: &none, facts: &facts };
        for flag in [&handed_on, &seeing] {
            let refusal = flags::judge(&subject, flag).map(|refusal| refusal.to_string());
            let wanted = format!("{} is not served by the HIP engine yet; serve without it", flag.name);
            assert_eq!(refusal, (!served).then_some(wanted));
        }
    }
}

#[test]
fn the_hosts_own_sentences_are_filled_from_the_manifest() {
    for (line, wanted) in [
        ("--tp=8 --master=m", "--tp 8 is not a supported ROCm world size; choose 1, 2 or 4"),
        ("--tp=2", "--tp > 1 needs --master: rank 0's address on the link between the machines"),
        ("--tp=2 --master=", "--tp > 1 needs --master: rank 0's address on the link between the machines"),
        ("--rank=-1", "--rank must be 0 when --tp 1"),
        ("--rank=-1 --tp=2 --master=m", "--rank -1 not in [0, --tp 2)"),
        ("--context=-5", "--context -5: a token count, or 0 for the model's window"),
        ("--context=65537", "--context 65537 exceeds the HIP engine's 65536-token limit"),
        ("--kv-dtype=int4", "--kv-dtype int4 is not served by the HIP engine; choose bf16 or q8"),
        ("--kv-dtype=int8", "served"),
        ("--tp=4 --rank=3 --master=m --context=65536 --parallel=8", "served"),
    ] {
        let status = if wanted == "served" { 0 } else { 1 };
        assert_eq!(early(HIP, line), (wanted.to_owned(), status), "{line}");
    }
    let plain = HIP.replace("platform_name = \"ROCm\"\n", "");
    assert_eq!(
        early(&plain, "--tp=8 --master=m").0,
        "--tp 8 is not a supported HIP world size; choose 1, 2 or 4",
        "the engine's name where the platform has none"
    );
}

#[test]
fn checks_come_in_the_order_of_the_surface() {
    // Each line asks for one more wrong thing, which is found earlier.
    let mut line = "--kv-dtype=f32".to_owned();
    for (more, begins) in [
        ("", "--kv-dtype f32"),
        ("--context=-1", "--context -1"),
        ("--tp=8", "--tp 8 is not a supported"),
        ("--dashboard", "--dashboard is not served"),
        ("--mtp-confidence=0.5 --mtp-drafts=9", "--mtp-drafts: the HIP engine drafts with no MTP head under"),
        ("--drafter=a/b", "--drafter: the HIP engine runs no DFlash2"),
    ] {
        line = format!("{line} {more}");
        assert!(early(HIP, &line).0.starts_with(begins), "{line}: {}", early(HIP, &line).0);
    }
    assert!(CHECKS.windows(2).all(|pair| pair[0].stage <= pair[1].stage));
    let names: BTreeSet<&str> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(names.len(), CHECKS.len());
}

#[test]
fn drafting_comes_before_the_machine_and_the_machine_before_the_model() {
    let other = MachineFacts { os: "linux", arch: "aarch64", libc: "gnu" };
    let llama = model("llama", &["bf16"], Some(4096));
    let both = |facts: &mut Facts<'_>| {
        facts.machine = Some(kept(other.clone()));
        facts.model = Some(kept(llama.clone()));
    };
    assert!(says(HIP, "--drafter=a/b", both).starts_with("--drafter: "));
    assert!(says(HIP, "", both).contains("it is built for another machine"));
}

#[test]
fn a_library_for_another_machine_is_refused_with_what_was_wanted_and_found() {
    let judged = |text: &str, machine: MachineFacts, hardware: Hardware| {
        says(text, "", |facts| {
            facts.machine = Some(kept(machine.clone()));
            facts.hardware = Some(kept(hardware.clone()));
        })
    };
    assert_eq!(judged(HIP, machine(), hardware()), "served");
    assert_eq!(
        judged(HIP, MachineFacts { arch: "aarch64", ..machine() }, hardware()),
        "plugin backend-hip 0.4.2 (/p/hip.so): it is built for another machine; wanted linux on aarch64, found linux \
         on x86_64; install the build for this machine"
    );
    assert_eq!(
        judged(HIP, MachineFacts { libc: "musl", ..machine() }, hardware()),
        "plugin backend-hip 0.4.2 (/p/hip.so): it is built for another C library; wanted musl, found gnu; install \
         the build for musl"
    );
    assert_eq!(
        judged(HIP, machine(), Hardware { libc: Some("2.31".to_owned()), ..hardware() }),
        "plugin backend-hip 0.4.2 (/p/hip.so): the C library is too old; wanted 2.35 or later, found 2.31; install \
         the build for this distribution"
    );
    assert_eq!(
        judged(HIP, machine(), Hardware { cpu_features: vec!["fma"], ..hardware() }),
        "plugin backend-hip 0.4.2 (/p/hip.so): it needs processor features that can not be used here; wanted avx2, \
         sse2, found no avx2; install a build for this processor"
    );
    let static_build = HIP.replace("libc = \"gnu\"\nlibc_min = \"2.35\"\n", "");
    assert_eq!(judged(&static_build, MachineFacts { libc: "musl", ..machine() }, hardware()), "served");
}

#[test]
fn devices_are_judged_by_what_is_known_of_them() {
    let judged = |hardware: Hardware| says(HIP, "", |facts| facts.hardware = Some(kept(hardware.clone())));
    let with_arch = |arch: Option<&str>| {
        let mut hardware = hardware();
        hardware.devices[0].arch = arch.map(str::to_owned);
        hardware
    };
    assert_eq!(judged(with_arch(None)), "served", "unknown until probed");
    assert_eq!(
        judged(with_arch(Some("gfx1030"))),
        "plugin backend-hip 0.4.2 (/p/hip.so): it has no kernels for the devices of this machine; wanted amd gpu \
         (gfx1151), found AMD device 1002:1586 at 0000:c5:00.0 (gfx1030); install a build for this device"
    );
    assert_eq!(judged(Hardware { devices: Vec::new(), ..hardware() }), "served", "a sandbox may hide it");
    let mut closed = hardware();
    closed.nodes = vec![node("/dev/kfd", Access::Denied)];
    assert_eq!(
        judged(closed),
        "plugin backend-hip 0.4.2 (/p/hip.so): a device node may not be opened; wanted /dev/kfd readable and \
         writable, found mode 0660, owner 0, group render; add your user to the group `render` and log in again"
    );
    let mut old = hardware();
    old.drivers.amdgpu = Some("6.8.0-45-generic".to_owned());
    assert_eq!(
        judged(old),
        "plugin backend-hip 0.4.2 (/p/hip.so): the driver amdgpu is too old; wanted 6.10 or later, found \
         6.8.0-45-generic; upgrade the driver"
    );
    let mut unloaded = hardware();
    unloaded.drivers.amdgpu = None;
    assert_eq!(judged(unloaded), "served", "a driver that is not loaded is the plugin's to report");
}

#[test]
fn one_open_node_is_enough_where_each_device_has_its_own() {
    let judged = |nodes: Vec<Node>| {
        let hardware = Hardware { nodes, ..hardware() };
        says(HIP, "", |facts| facts.hardware = Some(kept(hardware.clone())))
    };
    let (open, closed) = (node("/dev/gpu0", Access::Granted), node("/dev/gpu1", Access::Denied));
    assert_eq!(judged(vec![open, closed.clone()]), "served");
    assert!(judged(vec![closed]).contains("/dev/gpu1"));
}

#[test]
fn a_missing_device_is_a_warning_for_the_one_who_reads_everything() {
    let (manifest, none, host) = (manifest(HIP), GivenFlags::new(), able_host());
    let bare = Hardware { devices: Vec::new(), ..hardware() };
    let facts = Facts { hardware: Some(&bare), ..Facts::of_host(&host) };
    let subject = Subject { manifest: &manifest, path: None, flags: &none, facts: &facts };
    let admission = admit(&subject).expect("served");
    assert_eq!(admission.warnings.len(), 1);
    assert_eq!(admission.warnings[0].code(), Code::NoDevice);
    assert_eq!(survey(&subject), admission.warnings);
}

#[test]
fn versions_that_do_not_meet_are_refused_with_the_side_to_replace() {
    let judged = |old: &str, new: &str, line: &str| says(&HIP.replace(old, new), line, |_| {});
    assert_eq!(
        judged("major = 1", "major = 2", ""),
        "plugin backend-hip 0.4.2 (/p/hip.so): built for ABI 2, this host speaks 1; install a later tensorfold than \
         0.4.0"
    );
    assert_eq!(
        judged("major = 1", "major = 0", ""),
        "plugin backend-hip 0.4.2 (/p/hip.so): built for ABI 0, this host speaks 1; install a later backend-hip than \
         0.4.2"
    );
    let range = "minor = 0\nhost = \">=0.5\"";
    assert_eq!(
        judged("minor = 0", range, ""),
        "plugin backend-hip 0.4.2 (/p/hip.so): tested with tensorfold >=0.5; this is 0.4.0; install another release \
         of backend-hip, or give --allow-untested-host to try this one"
    );
    assert_eq!(judged("minor = 0", range, "--allow-untested-host"), "served");
    assert_eq!(
        judged("\"tensorfold.engine/1\"", "\"tensorfold.engine/9\"", ""),
        "plugin backend-hip 0.4.2 (/p/hip.so): it offers no engine interface that this host speaks; wanted \
         tensorfold.engine/1, found tensorfold.backend/1 or tensorfold.engine/9; install a release of backend-hip \
         for this host"
    );
    assert!(
        judged("\"tensorfold.host/1\"", "\"tensorfold.host/2\"", "").contains("wanted tensorfold.host/2")
    );
}

#[test]
fn an_untested_host_is_recorded_when_it_is_allowed() {
    let manifest = manifest(&HIP.replace("minor = 0", "minor = 0\nhost = \">=0.5\""));
    let (flags, host) = (flags("--allow-untested-host"), able_host());
    let facts = Facts::of_host(&host);
    let admission =
        admit(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts }).unwrap();
    assert_eq!(admission.warnings[0].code(), Code::HostRange);
}

#[test]
fn a_model_is_judged_by_its_family() {
    let judged =
        |line: &str, model: ModelFacts| says(HIP, line, |facts| facts.model = Some(kept(model.clone())));
    let q4 = || model("qwen3_5", &["bf16", "mlx-q4g64"], Some(32_768));
    let dense = || model("qwen3", &["bf16"], Some(32_768));
    for (line, model, wanted) in [
        ("", q4(), "served"),
        ("", dense(), "served"),
        (
            "",
            model("llama", &["bf16"], None),
            "the HIP engine has no backend for llama checkpoints yet; it runs qwen3_5, qwen3",
        ),
        (
            "",
            model("qwen3", &["bf16", "mlx-q4g64"], Some(1)),
            "the HIP engine reads no mlx-q4g64 weights of qwen3 checkpoints yet; it reads bf16",
        ),
        (
            "--mtp-drafts=2",
            dense(),
            "--mtp-drafts: the HIP engine drafts with no MTP head of qwen3 checkpoints yet; serve without \
             --mtp-drafts",
        ),
        (
            "--mtp-drafts=2",
            ModelFacts { own_head: None, ..q4() },
            "--mtp-drafts: this checkpoint has no MTP head; serve without --mtp-drafts",
        ),
        (
            "--mtp-drafts=2",
            ModelFacts { own_head: Some(OwnHead { revision: 2, weights: "in-checkpoint" }), ..q4() },
            "--mtp-drafts: the HIP engine runs revisions 1 to 1 of MTP heads, this checkpoint's is 2",
        ),
        (
            "--mtp-drafts=2",
            ModelFacts { own_head: Some(OwnHead { revision: 1, weights: "side-file" }), ..q4() },
            "--mtp-drafts: the HIP engine reads no MTP head that lies in a side file; serve without --mtp-drafts",
        ),
        (
            "--tp=2 --master=m",
            dense(),
            "--tp 2 is not a supported ROCm world size for qwen3 checkpoints; choose 1",
        ),
        ("--kv-dtype=q8", dense(), "--kv-dtype q8 is not served by the HIP engine; choose bf16"),
        ("--parallel=3", dense(), "--parallel 3 is not served by the HIP engine; it runs at most 2 at once"),
        ("--context=8000", dense(), "--context 8000 exceeds the HIP engine's 4096-token limit"),
        ("--context=40000", q4(), "--context 40000 exceeds this model's 32768-token window"),
        (
            "--context=0",
            ModelFacts { context_window: None, ..q4() },
            "--context 0 asks for the model's window, and its config.json names none: give a token count",
        ),
        ("--context=1000", ModelFacts { context_window: None, ..q4() }, "served"),
    ] {
        assert_eq!(judged(line, model), wanted, "{line}");
    }
}

#[test]
fn a_drafter_runs_only_with_the_families_that_list_it() {
    let text = drafting();
    let judged = |family: &str| {
        let model = model(family, &["bf16"], Some(4096));
        says(&text, "--drafter=a/b", |facts| {
            facts.drafter = Some(kept(dflash2()));
            facts.model = Some(kept(model.clone()));
        })
    };
    assert_eq!(judged("qwen3_5"), "served");
    assert_eq!(
        judged("qwen3"),
        "--drafter: the HIP engine runs no DFlash2 drafter with qwen3 checkpoints yet; serve without --drafter"
    );
}

#[test]
fn an_admission_says_what_the_request_comes_to() {
    let admitted = |line: &str, window: Option<u32>| {
        let (manifest, flags, host) = (manifest(HIP), flags(line), able_host());
        let model = model("qwen3", &["bf16"], window);
        let facts = Facts { model: Some(&model), ..Facts::of_host(&host) };
        admit(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts }).unwrap()
    };
    let cut = admitted("", Some(32_768));
    assert_eq!((cut.context, cut.context_cut), (Some(4096), true), "cut to the limit, and said");
    let whole = admitted("", Some(2048));
    assert_eq!((whole.context, whole.context_cut), (Some(2048), false));
    let asked = admitted("--context=1000 --opt=rocm.threads=8", Some(2048));
    assert_eq!((asked.context, asked.context_cut), (Some(1000), false));
    let options: Vec<String> = asked.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(options, ["threads=8"], "and nothing for an option without a default");
    assert_eq!(cut.options["threads"].to_string(), "0");
}

#[test]
fn everything_wrong_is_found_by_the_one_who_reads_everything() {
    let (manifest, flags, host) =
        (manifest(HIP), flags("--drafter=a/b --dashboard --tp=8 --context=-1"), able_host());
    let machine = MachineFacts { arch: "aarch64", ..machine() };
    let facts = Facts { machine: Some(&machine), ..Facts::of_host(&host) };
    let found = survey(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts });
    let codes: Vec<&str> = found.iter().map(|refusal| refusal.code().as_str()).collect();
    assert_eq!(
        codes,
        [
            "drafter-unsupported",
            "flag-unsupported",
            "world-unsupported",
            "world-unsupported",
            "context-unsupported",
            "wrong-arch"
        ]
    );
}

#[test]
fn a_refusal_is_a_document_too() {
    let (manifest, flags, host) = (manifest(HIP), flags("--mtp-drafts=9"), able_host());
    let facts = Facts::of_host(&host);
    let path = Path::new("/p/hip.so");
    let refusal =
        admit(&Subject { manifest: &manifest, path: Some(path), flags: &flags, facts: &facts }).unwrap_err();
    let document = serde_json::to_value(&refusal).unwrap();
    let wanted = serde_json::json!({
        "code": "drafter-unsupported", "level": "error", "state": "admitted", "plugin": "backend-hip",
        "version": "0.4.2", "path": "/p/hip.so", "wanted": "at most 3", "found": "9", "fix": null,
        "message": "--mtp-drafts 9: the HIP engine drafts at most 3", "exit": 1
    });
    assert_eq!(document, wanted);
}

#[test]
fn the_vocabulary_knows_every_processor_feature_that_this_host_can_tell() {
    use crate::plugins::hardware::cpu::usable_features;
    use tensorfold_plugin_api::vocabulary::Words;
    for feature in usable_features() {
        assert!(Words::CpuFeatures.knows(feature), "{feature}");
    }
}
