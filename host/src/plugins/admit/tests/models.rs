//! Requests judged with a machine, a host or a model beside the manifest.

use super::*;

#[test]
fn drafting_comes_before_the_machine_and_the_machine_before_the_model() {
    let text = HIP.replace("os = \"linux\"", "os = \"plan9\"");
    let llama = model("llama", &["bf16"], Some(4096));
    let both = |facts: &mut Facts<'_>| {
        facts.hardware = Some(kept(hardware()));
        facts.model = Some(kept(llama.clone()));
    };
    assert!(says(&text, "--drafter=a/b", both).starts_with("--drafter: "));
    assert!(says(&text, "", both).contains("built for another operating system"));
    assert!(says(HIP, "", both).starts_with("the HIP engine has no backend for llama"));
}

#[test]
fn what_does_not_fit_the_machine_is_refused_with_plugin_and_path() {
    let judged = |text: &str, hardware: Hardware| {
        says(text, "", |facts| facts.hardware = Some(kept(hardware.clone())))
    };
    assert_eq!(judged(HIP, hardware()), "served");
    assert_eq!(
        judged(HIP, Hardware { libc: Some("2.31".to_owned()), ..hardware() }),
        "plugin backend-hip 0.4.2 (/p/hip.so): the C library is too old; wanted 2.35 or newer, found 2.31; install \
         the plugin's build for this distribution"
    );
    let mut other = hardware();
    other.devices[0].arch = Some("gfx1030".to_owned());
    assert_eq!(
        judged(HIP, other),
        "plugin backend-hip 0.4.2 (/p/hip.so): no device of this machine is one that it has code for; wanted amd gpu \
         (gfx1151), found AMD device 1002:1586 at 0000:c5:00.0 (gfx1030); install the plugin's build for this device"
    );
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
        "plugin backend-hip 0.4.2 (/p/hip.so): built for ABI 2, this host speaks 1; install a newer tensorfold"
    );
    let range = "minor = 0\nhost = \">=0.5\"";
    assert!(judged("minor = 0", range, "").contains("tested with tensorfold >=0.5; this is 0.4.0"));
    assert_eq!(judged("minor = 0", range, "--allow-untested-host"), "served");
    assert_eq!(
        judged("\"tensorfold.engine/1\"", "\"tensorfold.engine/9\"", ""),
        "plugin backend-hip 0.4.2 (/p/hip.so): it offers no engine interface that this host speaks; wanted \
         tensorfold.engine/1, found tensorfold.backend/1, tensorfold.dflash/1, tensorfold.engine/9, \
         tensorfold.mtp/1; install the plugin's release for this \
         tensorfold"
    );
    assert!(
        judged("\"tensorfold.host/1\"", "\"tensorfold.host/2\"", "").contains("wanted tensorfold.host/2")
    );
}

#[test]
fn a_plugin_that_runs_no_family_needs_no_engine_interface() {
    let listing = HIP.replace(", \"tensorfold.engine/1\"", "");
    let listing = format!("{}{}", &listing[..listing.find("[[family]]").unwrap()], "");
    assert_eq!(says(&listing, "", |_| {}), "served");
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
fn the_vocabulary_knows_every_processor_feature_that_this_host_can_tell() {
    use crate::plugins::hardware::cpu::usable_features;
    use tensorfold_plugin_api::vocabulary::Words;
    for feature in usable_features() {
        assert!(Words::CpuFeatures.knows(feature), "{feature}");
    }
}
