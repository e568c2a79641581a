//! Properties over random plugins and requests: what is accepted was declared, what was declared and is in reach is
//! accepted, and every check is needed for that.
//!
//! The judgement that admission is compared with is written down here a second time, from the random plugin's
//! description and not from its manifest, so that reader, queries and checks are all under test.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tensorfold_plugin_api::vocabulary::{DrafterKind, FLAGS, FlagSpec, Neutral, Support, ValueKind};

use super::tests::{able_host, hardware, manifest};
use super::*;

const EXTERNAL: &[DrafterKind] =
    &[DrafterKind::Dflash, DrafterKind::Dflash2, DrafterKind::Dspark, DrafterKind::Eagle3];
const FORMATS: &[&str] = &["bf16", "mlx-q4", "mlx-q4g64", "mlx-q8g32"];
const KV_DTYPES: &[&str] = &["bf16", "f16", "q8", "q4"];

/// What of a plugin a family may say otherwise.
#[derive(Clone, Debug)]
struct Common {
    worlds: Vec<u32>,
    formats: Vec<&'static str>,
    kv_dtypes: Vec<&'static str>,
    lanes: Option<u32>,
    context: Option<u32>,
}

#[derive(Clone, Debug)]
struct Head {
    revision: (u32, u32),
    depth_max: u32,
    worlds: Vec<u32>,
    confidence: bool,
    side_file: bool,
}

#[derive(Clone, Debug)]
struct External {
    kind: DrafterKind,
    revision: (u32, u32),
    block_max: u32,
    taps_max: Option<u32>,
    f16: bool,
    worlds: Vec<u32>,
    pruned: bool,
}

/// A random plugin.
#[derive(Clone, Debug)]
struct Plugin {
    caps: Common,
    features: Vec<&'static str>,
    serve_flags: Vec<&'static str>,
    head: Option<Head>,
    external: Vec<External>,
    /// The family `fam`, with which of the kinds draft, and whether it replaces the common part.
    family: Option<(Option<Vec<DrafterKind>>, Option<Common>)>,
    threads_most: Option<i64>,
    // One chance in some for each of these to be wrong.
    os_fits: bool,
    minor_fits: bool,
    engine_interface: bool,
    arch_fits: bool,
}

fn list(items: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| format!("\"{item}\"")).collect();
    format!("[{}]", items.join(", "))
}

impl Common {
    fn keys(&self) -> String {
        let limits = [("lanes", self.lanes), ("context", self.context)];
        let limits: Vec<String> = limits
            .iter()
            .filter_map(|(name, limit)| limit.map(|limit| format!("{name} = {limit}")))
            .collect();
        format!(
            "worlds = {:?}\nformats = {}\nkv_dtypes = {}\nlimits = {{ {} }}\n",
            self.worlds,
            list(&self.formats),
            list(&self.kv_dtypes),
            limits.join(", ")
        )
    }
}

impl Plugin {
    fn manifest(&self) -> Manifest {
        let mut text = super::tests::HIP[..super::tests::HIP.find("[caps]").unwrap()].to_owned();
        if !self.os_fits {
            text = text.replace("os = \"linux\"", "os = \"plan9\"");
        }
        if !self.minor_fits {
            text = text.replace("minor = 0", "minor = 9");
        }
        if !self.engine_interface {
            text = text.replace("tensorfold.engine/1", "tensorfold.engine/7");
        }
        if !self.arch_fits {
            text = text.replace("gfx1151", "gfx1030");
        }
        text += &format!(
            "[caps]\n{}features = {}\nserve_flags = {}\n",
            self.caps.keys(),
            list(&self.features),
            list(&self.serve_flags)
        );
        if let Some(head) = &self.head {
            text += &format!(
                "[drafters.mtp]\nrevision = {{ min = {}, max = {} }}\ndepth_max = {}\nworlds = {:?}\nconfidence = \
                 {}\nweights = {}\n",
                head.revision.0,
                head.revision.1,
                head.depth_max,
                head.worlds,
                head.confidence,
                list(if head.side_file { vec!["in-checkpoint", "side-file"] } else { vec!["in-checkpoint"] })
            );
        }
        for drafter in &self.external {
            text += &format!(
                "[drafters.{}]\nrevision = {{ min = {}, max = {} }}\nblock_max = {}\ndtypes = {}\nworlds = \
                 {:?}\nvocab_prune = {}\n",
                drafter.kind.id(),
                drafter.revision.0,
                drafter.revision.1,
                drafter.block_max,
                list(if drafter.f16 { vec!["bf16", "f16"] } else { vec!["bf16"] }),
                drafter.worlds,
                drafter.pruned
            );
            text += &drafter.taps_max.map_or_else(String::new, |taps| format!("taps_max = {taps}\n"));
        }
        if let Some((kinds, common)) = &self.family {
            text += "[[family]]\nmodel_type = \"fam\"\n";
            if let Some(kinds) = kinds {
                let listed = kinds.iter().filter(|kind| self.lists(**kind));
                text += &format!("drafters = {}\n", list(listed.map(|kind| kind.id())));
            }
            text += &common.as_ref().map_or_else(String::new, Common::keys);
        }
        if let Some(most) = self.threads_most {
            text += &format!(
                "[options.threads]\ntype = \"integer\"\nleast = 0\nmost = {most}\nhelp = \"threads\"\n"
            );
        }
        manifest(&text)
    }

    fn lists(&self, kind: DrafterKind) -> bool {
        match kind {
            DrafterKind::Mtp => self.head.is_some(),
            kind => self.external.iter().any(|drafter| drafter.kind == kind),
        }
    }

    /// What holds for the family.
    fn of_family(&self) -> Option<&Common> {
        self.family.as_ref().map(|(_, common)| common.as_ref().unwrap_or(&self.caps))
    }

    /// Common parts of which one may hold for a model that is not known yet.
    fn alternatives(&self) -> Vec<&Common> {
        let own = self.family.as_ref().and_then(|(_, common)| common.as_ref());
        std::iter::once(&self.caps).chain(own).collect()
    }

    fn drafts_with_family(&self, kind: DrafterKind) -> bool {
        let listed = self
            .family
            .as_ref()
            .is_some_and(|(kinds, _)| kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind)));
        listed && self.lists(kind)
    }
}

/// A random request with what is known beside it.
#[derive(Clone, Debug)]
struct Case {
    plugin: Plugin,
    given: Vec<(&'static str, Option<String>)>,
    drafter: Option<DrafterFacts>,
    model: Option<ModelFacts>,
    machine_known: bool,
    host_drafts: Vec<DrafterKind>,
    host_runs_ranks: bool,
}

fn worlds(with_one: bool) -> impl Strategy<Value = Vec<u32>> {
    subsequence(vec![2_u32, 4, 8], 0..=3).prop_map(move |mut worlds| {
        if with_one || worlds.is_empty() {
            worlds.insert(0, 1);
        }
        worlds
    })
}

fn common(with_one: bool) -> impl Strategy<Value = Common> {
    (
        worlds(with_one),
        subsequence(FORMATS.to_vec(), 1..=FORMATS.len()),
        subsequence(KV_DTYPES.to_vec(), 0..=KV_DTYPES.len()),
        proptest::option::of(1_u32..6),
        proptest::option::of(1000_u32..6000),
    )
        .prop_map(|(worlds, formats, kv_dtypes, lanes, context)| Common {
            worlds,
            formats,
            kv_dtypes,
            lanes,
            context,
        })
}

fn revisions() -> impl Strategy<Value = (u32, u32)> {
    (1_u32..3, 0_u32..2).prop_map(|(min, more)| (min, min + more))
}

fn plugin() -> impl Strategy<Value = Plugin> {
    let head = (revisions(), 1_u32..6, worlds(true), any::<bool>(), any::<bool>()).prop_map(
        |(revision, depth_max, worlds, confidence, side_file)| Head {
            revision,
            depth_max,
            worlds,
            confidence,
            side_file,
        },
    );
    let external = subsequence(EXTERNAL.to_vec(), 0..=EXTERNAL.len()).prop_flat_map(|kinds| {
        let one = |kind| {
            let limits = (revisions(), 2_u32..12, proptest::option::of(2_u32..8));
            (limits, any::<bool>(), worlds(true), any::<bool>()).prop_map(
                move |((revision, block_max, taps_max), f16, worlds, pruned)| External {
                    kind,
                    revision,
                    block_max,
                    taps_max,
                    f16,
                    worlds,
                    pruned,
                },
            )
        };
        kinds.into_iter().map(one).collect::<Vec<_>>()
    });
    let kinds = subsequence([&[DrafterKind::Mtp], EXTERNAL].concat(), 0..=5);
    let family =
        proptest::option::weighted(0.9, (proptest::option::of(kinds), proptest::option::of(common(false))));
    let names = (
        subsequence(vec!["vision", "prompt-cache", "sleep"], 0..=3),
        subsequence(vec!["--policy", "--lane-kernels", "--decode-share", "--speed-up"], 0..=4),
    );
    let fits = (
        prop::bool::weighted(0.97),
        prop::bool::weighted(0.97),
        prop::bool::weighted(0.97),
        prop::bool::weighted(0.97),
    );
    let head = proptest::option::weighted(0.7, head);
    (common(true), names, head, external, family, proptest::option::of(0_i64..8), fits).prop_map(
        |(caps, (features, serve_flags), head, external, family, threads_most, fits)| Plugin {
            caps,
            features,
            serve_flags,
            head,
            external,
            family,
            threads_most,
            os_fits: fits.0,
            minor_fits: fits.1,
            engine_interface: fits.2,
            arch_fits: fits.3,
        },
    )
}

/// A value that the parser takes.
fn value(flag: &'static FlagSpec) -> BoxedStrategy<Option<String>> {
    let numbers = |least: i64, most: i64| (least..=most).prop_map(|number| number.to_string()).boxed();
    let some = |strategy: BoxedStrategy<String>| strategy.prop_map(Some).boxed();
    let words =
        |words: &[&str]| select(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).boxed();
    match (flag.name, flag.value) {
        (_, ValueKind::Switch) => Just(None).boxed(),
        ("--backend", _) => some(words(&["rocm"])),
        ("--drafter", _) => some(words(&["a/b", "/folder", "auto", "none", ""])),
        ("--opt", _) => {
            some(words(&["hip.threads=3", "rocm.threads=7", "hip.mode=a", "cpu.threads=1", "x=1"]))
        }
        ("--context", _) => some(prop_oneof![numbers(-2, 2), numbers(500, 9000)].boxed()),
        ("--rank", _) => some(numbers(-1, 3)),
        (_, ValueKind::Text | ValueKind::Path) => some(words(&["thing", "none", ""])),
        (_, ValueKind::Assignment) => some(words(&["a=1"])),
        (_, ValueKind::Assignments) => some(words(&["a=1", "", "a=1,b=2"])),
        (_, ValueKind::Choice(choices) | ValueKind::NumberChoice(choices)) => some(words(choices)),
        (_, ValueKind::Port) => some(words(&["0", "8080", "29551"])),
        (_, ValueKind::Integer) => some(numbers(-3, 50)),
        (_, ValueKind::Count { least, most }) => {
            some(numbers(least, most.unwrap_or(least + 9).min(least + 9)))
        }
        (_, ValueKind::AutoOrCount) => some(prop_oneof![words(&["auto"]), numbers(1, 8)].boxed()),
        (_, ValueKind::AutoOrFraction) => some(words(&["auto", "0.5"])),
        (_, ValueKind::Number | ValueKind::Probability | ValueKind::Gibibytes | ValueKind::Seconds) => {
            some(words(&["0", "0.5", "1"]))
        }
    }
}

/// Up to five flags, mostly those that a manifest answers for.
fn given() -> impl Strategy<Value = Vec<(&'static str, Option<String>)>> {
    let judged: Vec<&'static FlagSpec> = FLAGS
        .iter()
        .filter(|flag| flag.support == Support::Acts && flag.answered_by.manifest_key().is_some())
        .collect();
    let all: Vec<&'static FlagSpec> = FLAGS.iter().collect();
    let flag = prop_oneof![24 => select(judged), 2 => select(all)];
    let one = flag.prop_flat_map(|flag| value(flag).prop_map(move |value| (flag.name, value)));
    let drafter = Just(("--drafter", Some("a/b".to_owned())));
    let rank = (select(vec!["2", "4", "8"]), proptest::option::weighted(0.8, Just("10.0.0.1"))).prop_map(
        |(ranks, master)| {
            let master = master.map(|master| ("--master", Some(master.to_owned())));
            std::iter::once(("--tp", Some(ranks.to_owned()))).chain(master).collect::<Vec<_>>()
        },
    );
    let extra = prop_oneof![
        6 => Just(Vec::new()),
        2 => drafter.prop_map(|drafter| vec![drafter]),
        2 => rank,
        1 => Just(vec![("--no-drafts", None)]),
    ];
    (extra, prop::collection::vec(one, 0..4))
        .prop_map(|(extra, more)| extra.into_iter().chain(more).collect())
}

fn case() -> impl Strategy<Value = Case> {
    let drafter = (
        select(EXTERNAL.to_vec()),
        1_u32..4,
        proptest::option::of(2_u32..12),
        proptest::option::of(1_u32..8),
        proptest::option::of(select(vec!["bf16".to_owned(), "f16".to_owned()])),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(kind, revision, block, taps, dtype, pruned_vocabulary)| DrafterFacts {
            kind,
            revision,
            block,
            taps,
            dtype,
            pruned_vocabulary,
        });
    let head = (1_u32..4, prop::bool::weighted(0.3)).prop_map(|(revision, side_file)| OwnHead {
        revision,
        weights: if side_file { "side-file" } else { "in-checkpoint" },
    });
    let model = (
        prop_oneof![9 => Just("fam"), 1 => Just("other")],
        subsequence(FORMATS[..1].iter().chain(&FORMATS[2..]).copied().collect::<Vec<_>>(), 1..=2),
        proptest::option::weighted(0.9, 1000_u32..9000),
        proptest::option::weighted(0.8, head),
    )
        .prop_map(|(family, formats, context_window, own_head)| ModelFacts {
            family: family.to_owned(),
            formats: formats.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(),
            context_window,
            own_head,
        });
    let host = (
        prop_oneof![
            4 => Just(DrafterKind::ALL.to_vec()),
            1 => subsequence(DrafterKind::ALL.to_vec(), 0..=DrafterKind::ALL.len())
        ],
        prop::bool::weighted(0.85),
    );
    (plugin(), given(), proptest::option::of(drafter), proptest::option::of(model), any::<bool>(), host)
        .prop_map(|(plugin, given, drafter, model, machine_known, (host_drafts, host_runs_ranks))| Case {
            plugin,
            given,
            drafter,
            model,
            machine_known,
            host_drafts,
            host_runs_ranks,
        })
}

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
                && (listed.f16 || drafter.dtype.as_deref() != Some("f16"))
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
        .take(6000)
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
