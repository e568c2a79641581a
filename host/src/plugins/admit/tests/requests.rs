//! Requests judged by the manifest alone.

use super::*;

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
        dtypes: BTreeSet::from(["f16".to_owned(), "mlx-q4g64".to_owned()]),
        pruned_vocabulary: true,
        ..dflash2()
    };
    assert_eq!(
        judged(wrong, "--drafter=a/b --tp=2 --master=m"),
        "--drafter: the HIP engine drafts blocks of at most 8, this drafter's is 16; it gives a drafter at most 5 \
         layers to read, this one reads 6; it runs DFlash2 drafters in bf16, this one is in f16 and mlx-q4g64; it runs \
         DFlash2 drafters with the target's whole vocabulary, this one has a part of it; it drafts with DFlash2 under --tp \
         1, not 2; serve without --drafter"
    );
}

#[test]
fn a_packed_drafter_needs_a_plugin_that_runs_packed_ones() {
    let packed = DrafterFacts { dtypes: BTreeSet::from(["mlx-q4g64".to_owned()]), ..dflash2() };
    let judged = |text: &str| says(text, "--drafter=a/b", |facts| facts.drafter = Some(kept(packed.clone())));
    let (plain, able) = (drafting(), format!("{}dtypes = [\"bf16\", \"mlx-q4\"]\n", drafting()));
    assert_eq!(
        judged(&plain),
        "--drafter: the HIP engine runs DFlash2 drafters in bf16, this one is in mlx-q4g64; serve without --drafter"
    );
    assert_eq!(judged(&able), "served");
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
    // A later interface than this host speaks drives nothing here.
    let both = HostFacts { drafters: vec![DrafterKind::Mtp, DrafterKind::Dflash2], ..able_host() };
    let later = drafting().replace("tensorfold.mtp/1", "tensorfold.mtp/2");
    let later = later.replace("tensorfold.dflash/1", "tensorfold.dflash/2");
    for (text, told) in [(drafting(), "served".to_owned()), (later, not_yet("--drafter"))] {
        let (manifest, flags) = (manifest(&text), flags("--drafter=a/b"));
        let facts = Facts::of_host(&both);
        let said = admit_early(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts });
        assert_eq!(said.map_or_else(|refusal| refusal.to_string(), |()| "served".to_owned()), told);
    }
    assert_eq!(judged(HIP, "--tp=1 --rank=0 --master= --master-port=29551"), "served");
}

#[test]
fn a_flag_that_nobody_serves_is_a_usage_error_and_never_ignored() {
    for (line, wanted) in [
        ("--slide", "--slide is not served by the HIP engine yet; serve without it"),
        ("--decode-share=0.25", "--decode-share is not served by the HIP engine yet; serve without it"),
        ("--speed-up=f", "--speed-up is not served by the HIP engine yet; ranks come from --tp"),
        ("--spill-gib=1", "--spill-gib is not served by the HIP engine yet; serve without it"),
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
        ("--threads=99", "--threads 99: found 99; allowed: a whole number from 0 to 64"),
        ("--opt=hip.mode=slow", "--opt hip.mode=slow: found \"slow\"; allowed: exact or fast"),
    ] {
        assert_eq!(early(HIP, line), (wanted.to_owned(), 2), "{line}");
    }
}

#[test]
fn threads_go_to_the_option_of_that_name_or_nowhere() {
    let without = HIP.replace("[options.threads]", "[options.workers]");
    let wanted = "--threads is not served by the HIP engine, which has no option threads; serve without it";
    assert_eq!(early(&without, "--threads=4"), (wanted.to_owned(), 2));
    // Nothing is asked for, or the last word is another.
    assert_eq!(early(&without, "--threads=0"), ("served".to_owned(), 0));
    assert_eq!(early(&without, "--threads=4 --threads=0"), ("served".to_owned(), 0));
    assert_eq!(early(HIP, "--threads=99 --threads=4"), ("served".to_owned(), 0));
    // An option that takes no 0 is not given one.
    let from_one = HIP.replace("least = 0\n", "least = 1\n").replace("default = 0\n", "default = 2\n");
    assert_ne!(from_one, HIP);
    assert_eq!(early(&from_one, "--threads=0"), ("served".to_owned(), 0));
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
fn everything_wrong_is_found_by_the_one_who_reads_everything() {
    let (manifest, flags, host) =
        (manifest(HIP), flags("--drafter=a/b --dashboard --tp=8 --context=-1"), able_host());
    let old = Hardware { libc: Some("2.31".to_owned()), ..hardware() };
    let facts = Facts { hardware: Some(&old), ..Facts::of_host(&host) };
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
            "libc-too-old"
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
