//! The manifests of the plugins in this tree.
//!
//! When one of them gains an ability, the test that expects its refusal has to be changed on purpose.

use super::*;

const IN_TREE: [(&str, &str); 4] = [
    ("CPU", include_str!("../../../../../plugins/backend-cpu/tensorfold_plugin.toml")),
    ("CUDA", include_str!("../../../../../plugins/backend-cuda/tensorfold_plugin.toml")),
    ("HIP", include_str!("../../../../../plugins/backend-hip/tensorfold_plugin.toml")),
    ("MLX", include_str!("../../../../../plugins/backend-mlx/tensorfold_plugin.toml")),
];

/// What this very program says, from manifest and command line.
fn this_program_says(text: &str, line: &str) -> String {
    let manifest =
        Manifest::parse(text.as_bytes(), "tensorfold_plugin.toml").expect("a whole manifest").manifest;
    let (flags, host) = (flags(line), HostFacts::of_this_program());
    let facts = Facts::of_host(&host);
    match admit_early(&Subject { manifest: &manifest, path: None, flags: &flags, facts: &facts }) {
        Ok(()) => "served".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn manifests_in_the_tree_hold_no_name_that_is_unknown() {
    for (engine, text) in IN_TREE {
        let parsed = Manifest::parse(text.as_bytes(), engine).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(parsed.strict(), Ok(()));
        assert_eq!(parsed.manifest.plugin.engine_name, engine);
    }
}

#[test]
fn plugins_in_the_tree_meet_this_program() {
    let host = HostFacts::of_this_program();
    for (engine, text) in IN_TREE {
        let manifest = Manifest::parse(text.as_bytes(), engine).expect(engine).manifest;
        let (none, facts) = (GivenFlags::new(), Facts::of_host(&host));
        let subject = Subject { manifest: &manifest, path: None, flags: &none, facts: &facts };
        assert_eq!(survey(&subject), [], "{engine}");
        assert!(agreement(&subject).is_ok(), "{engine}");
    }
}

#[test]
fn only_the_cpu_plugin_takes_a_drafter_and_the_others_say_so_in_their_names() {
    for (engine, text) in IN_TREE {
        for line in
            ["--drafter=z-lab/Qwen3.8-27B-DFlash2", "--drafter=/folder --tp=2 --rank=1 --master=10.0.0.1"]
        {
            let (wanted, ranks) = match engine {
                "CPU" => ("served".to_owned(), line.contains("--tp")),
                _ => (
                    format!(
                        "--drafter: the {engine} engine runs no DFlash2 drafter yet; serve without --drafter"
                    ),
                    false,
                ),
            };
            let said = this_program_says(text, line);
            match ranks {
                true => assert!(said.contains("--tp 2"), "{said}"),
                false => assert_eq!(said, wanted),
            }
        }
        assert_eq!(this_program_says(text, "--drafter=auto --mtp-drafts=0"), "served");
    }
}
