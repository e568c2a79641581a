//! Properties over random plugins and requests: what is accepted was declared, what was declared and is in reach is
//! accepted, and every check is needed for that.
//!
//! The judgement that admission is compared with is written down here a second time, from the random plugin's
//! description and not from its manifest, so that reader, queries and checks are all under test.

mod random;

use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tensorfold_plugin_api::vocabulary::{DrafterKind, FLAGS, FlagSpec, Neutral, Support};

use self::random::{Case, Common, External, Plugin, case, plugin};
use super::tests::{able_host, hardware};
use super::*;

/// Everything that admission takes, ready to be judged many times.
struct Ready {
    manifest: Manifest,
    flags: GivenFlags,
    host: HostFacts,
    case: Case,
}

impl Ready {
    /// None where the command line itself can not be read.
    fn new(case: Case) -> Option<Ready> {
        let pairs = case.given.iter().map(|(name, value)| (*name, value.as_deref()));
        let flags = GivenFlags::from_pairs(pairs).ok()?;
        let host =
            HostFacts { drafters: case.host_drafts.clone(), runs_ranks: case.host_runs_ranks, ..able_host() };
        Some(Ready { manifest: case.plugin.manifest(), flags, host, case })
    }

    fn is_served_by(&self, checks: &[Check]) -> bool {
        let hardware = hardware();
        let facts = Facts {
            host: &self.host,
            hardware: self.case.machine_known.then_some(&hardware),
            drafter: self.case.drafter.as_ref(),
            model: self.case.model.as_ref(),
        };
        let subject = Subject { manifest: &self.manifest, path: None, flags: &self.flags, facts: &facts };
        admit_by(checks, &subject).is_ok()
    }

    /// Whether everything that is asked for was declared and is in reach.
    fn should_be_served(&self) -> bool {
        self.machine_fits()
            && self.flags.iter().all(|given| given.is_neutral() || self.flag_is_served(given.flag))
            && self.drafter_is_served()
            && self.head_is_served()
            && self.ranks_are_served()
            && self.values_are_served()
            && self.model_is_served()
    }

    fn machine_fits(&self) -> bool {
        let plugin = &self.case.plugin;
        let engine = plugin.engine_interface || plugin.family.is_none();
        plugin.minor_fits && engine && (!self.case.machine_known || plugin.os_fits && plugin.arch_fits)
    }

    /// A flag that nobody serves is refused wherever it stands; only of its last use the value counts.
    fn flag_is_served(&self, flag: &FlagSpec) -> bool {
        let last_is_neutral = self.flags.last(flag.name).is_some_and(|last| last.is_neutral());
        flag.support != Support::NotYet || !flag.repeats && last_is_neutral
    }

    fn world(&self) -> u32 {
        u32::try_from(self.flags.world_size()).unwrap()
    }

    fn drafter_is_served(&self) -> bool {
        let plugin = &self.case.plugin;
        let asked = self.flags.text("--drafter").unwrap_or("auto");
        if ["auto", "none", ""].contains(&asked) || self.flags.has("--no-drafts") {
            return true;
        }
        let Some(drafter) = &self.case.drafter else {
            // Not read yet: some kind has to be in reach.
            return plugin.external.iter().any(|listed| self.case.host_drafts.contains(&listed.kind));
        };
        let fits = |listed: &External| {
            listed.kind == drafter.kind
                && (listed.revision.0..=listed.revision.1).contains(&drafter.revision)
                && drafter.block.is_none_or(|block| block <= listed.block_max)
                && drafter.taps.is_none_or(|taps| listed.taps_max.is_none_or(|most| taps <= most))
                && (listed.f16 || !drafter.dtypes.contains("f16"))
                && (listed.pruned || !drafter.pruned_vocabulary)
                && listed.worlds.contains(&self.world())
        };
        let family = self.case.model.is_none() || plugin.drafts_with_family(drafter.kind);
        plugin.external.iter().any(fits) && family && self.case.host_drafts.contains(&drafter.kind)
    }

    fn head_is_served(&self) -> bool {
        let plugin = &self.case.plugin;
        let depth = self.flags.integer("--mtp-drafts").unwrap_or(0);
        let confidence = self.flags.number("--mtp-confidence").unwrap_or(0.0);
        if depth == 0 && confidence == 0.0 || self.flags.has("--no-drafts") {
            return true;
        }
        let Some(head) = &plugin.head else { return false };
        let checkpoint = self.case.model.as_ref().is_none_or(|model| {
            plugin.drafts_with_family(DrafterKind::Mtp)
                && model.own_head.as_ref().is_some_and(|own| {
                    (head.revision.0..=head.revision.1).contains(&own.revision)
                        && (head.side_file || own.weights != "side-file")
                })
        });
        depth <= i64::from(head.depth_max)
            && (confidence == 0.0 || head.confidence)
            && head.worlds.contains(&self.world())
            && checkpoint
            && self.case.host_drafts.contains(&DrafterKind::Mtp)
    }

    fn ranks_are_served(&self) -> bool {
        let (world, rank) = (self.world(), self.flags.integer("--rank").unwrap_or(0));
        let master = self.flags.text("--master").unwrap_or("");
        let port = self.flags.integer("--master-port").unwrap_or(29551);
        let declared = self.case.plugin.alternatives().iter().any(|common| common.worlds.contains(&world));
        let alone = world == 1 && master.is_empty() && port == 29551;
        declared
            && (world == 1 || !master.is_empty())
            && (0..i64::from(world)).contains(&rank)
            && (alone || self.case.host_runs_ranks)
    }

    fn values_are_served(&self) -> bool {
        let plugin = &self.case.plugin;
        let within = |asked: i64, limit: fn(&Common) -> Option<u32>| {
            plugin
                .alternatives()
                .iter()
                .any(|common| limit(common).is_none_or(|limit| asked <= i64::from(limit)))
        };
        let lanes = self.flags.integer("--parallel").unwrap_or(1);
        let context = self.flags.integer("--context").unwrap_or(0);
        let kv = self.flags.text("--kv-dtype").map(manifest_spelling);
        let threads = self.flags.integer("--threads").unwrap_or(0);
        let option = |text: &str| match (text, plugin.threads_most) {
            ("hip.threads=3", Some(most)) => most >= 3,
            ("rocm.threads=7", Some(most)) => most >= 7,
            _ => false,
        };
        within(lanes, |common| common.lanes)
            && context >= 0
            && within(context, |common| common.context)
            && kv.is_none_or(|kv| plugin.alternatives().iter().any(|common| common.kv_dtypes.contains(&kv)))
            && self.flags.texts("--opt").all(option)
            && (threads == 0 || plugin.threads_most.is_some_and(|most| threads <= most))
    }

    fn model_is_served(&self) -> bool {
        let Some(model) = &self.case.model else { return true };
        let Some(common) = self.case.plugin.of_family().filter(|_| model.family == "fam") else {
            return false;
        };
        let context = self.flags.integer("--context").unwrap_or(0);
        let reads = |format: &String| {
            common.formats.contains(&format.as_str())
                || format.starts_with("mlx-q4g") && common.formats.contains(&"mlx-q4")
        };
        let lanes = self.flags.integer("--parallel").unwrap_or(1);
        let kv = self.flags.text("--kv-dtype").map(manifest_spelling);
        model.formats.iter().all(reads)
            && common.worlds.contains(&self.world())
            && common.lanes.is_none_or(|limit| lanes <= i64::from(limit))
            && kv.is_none_or(|kv| common.kv_dtypes.contains(&kv))
            && match model.context_window {
                Some(window) => context <= i64::from(window),
                None => context > 0,
            }
            && common.context.is_none_or(|limit| context <= i64::from(limit))
    }
}

fn manifest_spelling(value: &str) -> &str {
    match value {
        "int8" => "q8",
        "int4" => "q4",
        other => other,
    }
}

proptest! {
    #![proptest_config(Config { cases: 1500, ..Config::default() })]

    #[test]
    fn a_request_is_served_exactly_when_all_of_it_is_declared_and_in_reach(case in case()) {
        if let Some(ready) = Ready::new(case) {
            prop_assert_eq!(ready.is_served_by(CHECKS), ready.should_be_served());
        }
    }

    #[test]
    fn neutral_values_are_served_by_every_plugin_that_fits(plugin in plugin(), picks in subsequence(neutral(), 0..8)) {
        let plugin = Plugin { os_fits: true, minor_fits: true, engine_interface: true, arch_fits: true, ..plugin };
        let case = Case {
            plugin,
            given: picks,
            drafter: None,
            model: None,
            machine_known: true,
            host_drafts: Vec::new(),
            host_runs_ranks: false,
        };
        let ready = Ready::new(case).expect("a command line of neutral values can be read");
        prop_assert!(ready.is_served_by(CHECKS));
    }
}

/// Every flag with each of its neutral values.
fn neutral() -> Vec<(&'static str, Option<String>)> {
    let mut all = Vec::new();
    for flag in FLAGS {
        match flag.neutral {
            Neutral::None => {}
            Neutral::Itself => all.push((flag.name, None)),
            Neutral::Values(values) => {
                all.extend(values.iter().map(|value| (flag.name, Some((*value).to_owned()))))
            }
        }
    }
    all
}

#[test]
fn every_check_is_needed() {
    let mut runner = TestRunner::deterministic();
    let strategy = case();
    let cases: Vec<Ready> = std::iter::repeat_with(|| strategy.new_tree(&mut runner).unwrap().current())
        .take(10_000)
        .filter_map(Ready::new)
        .collect();
    let wanted: Vec<bool> = cases.iter().map(Ready::should_be_served).collect();
    let served = wanted.iter().filter(|served| **served).count();
    assert!(served * 10 > cases.len(), "{served} of {} are served: too few to tell anything", cases.len());
    let differs = |checks: &[Check]| {
        cases.iter().zip(&wanted).any(|(case, wanted)| case.is_served_by(checks) != *wanted)
    };
    assert!(!differs(CHECKS), "with every check nothing differs");
    let idle: Vec<&str> = CHECKS
        .iter()
        .filter(|dropped| {
            let rest: Vec<Check> =
                CHECKS.iter().filter(|check| check.name != dropped.name).copied().collect();
            !differs(&rest)
        })
        .map(|check| check.name)
        .collect();
    assert!(idle.is_empty(), "no request tells whether these checks are made: {idle:?}");
}
