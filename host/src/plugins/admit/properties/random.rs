//! Random plugins and requests.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use tensorfold_plugin_api::vocabulary::{DrafterKind, FLAGS, FlagSpec, Support, ValueKind};

use crate::plugins::admit::tests::{HIP, manifest};
use crate::plugins::admit::*;

pub(super) const EXTERNAL: &[DrafterKind] =
    &[DrafterKind::Dflash, DrafterKind::Dflash2, DrafterKind::Dspark, DrafterKind::Eagle3];
pub(super) const FORMATS: &[&str] = &["bf16", "mlx-q4", "mlx-q4g64", "mlx-q8g32"];
pub(super) const KV_DTYPES: &[&str] = &["bf16", "f16", "q8", "q4"];

/// What of a plugin a family may say otherwise.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) worlds: Vec<u32>,
    pub(super) formats: Vec<&'static str>,
    pub(super) kv_dtypes: Vec<&'static str>,
    pub(super) lanes: Option<u32>,
    pub(super) context: Option<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) revision: (u32, u32),
    pub(super) depth_max: u32,
    pub(super) worlds: Vec<u32>,
    pub(super) confidence: bool,
    pub(super) side_file: bool,
}

#[derive(Clone, Debug)]
pub(super) struct External {
    pub(super) kind: DrafterKind,
    pub(super) revision: (u32, u32),
    pub(super) block_max: u32,
    pub(super) taps_max: Option<u32>,
    pub(super) f16: bool,
    pub(super) worlds: Vec<u32>,
    pub(super) pruned: bool,
}

/// A random plugin.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    pub(super) caps: Common,
    pub(super) features: Vec<&'static str>,
    pub(super) serve_flags: Vec<&'static str>,
    pub(super) head: Option<Head>,
    pub(super) external: Vec<External>,
    /// The family `fam`, with which of the kinds draft, and whether it replaces the common part.
    pub(super) family: Option<(Option<Vec<DrafterKind>>, Option<Common>)>,
    pub(super) threads_most: Option<i64>,
    // One chance in some for each of these to be wrong.
    pub(super) os_fits: bool,
    pub(super) minor_fits: bool,
    pub(super) engine_interface: bool,
    pub(super) arch_fits: bool,
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
    pub(super) fn manifest(&self) -> Manifest {
        let mut text = HIP[..HIP.find("[caps]").unwrap()].to_owned();
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
    pub(super) fn of_family(&self) -> Option<&Common> {
        self.family.as_ref().map(|(_, common)| common.as_ref().unwrap_or(&self.caps))
    }

    /// Common parts of which one may hold for a model that is not known yet.
    pub(super) fn alternatives(&self) -> Vec<&Common> {
        let own = self.family.as_ref().and_then(|(_, common)| common.as_ref());
        std::iter::once(&self.caps).chain(own).collect()
    }

    pub(super) fn drafts_with_family(&self, kind: DrafterKind) -> bool {
        let listed = self
            .family
            .as_ref()
            .is_some_and(|(kinds, _)| kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind)));
        listed && self.lists(kind)
    }
}

/// A random request with what is known beside it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) plugin: Plugin,
    pub(super) given: Vec<(&'static str, Option<String>)>,
    pub(super) drafter: Option<DrafterFacts>,
    pub(super) model: Option<ModelFacts>,
    pub(super) machine_known: bool,
    pub(super) host_drafts: Vec<DrafterKind>,
    pub(super) host_runs_ranks: bool,
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

pub(super) fn plugin() -> impl Strategy<Value = Plugin> {
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
        ("--threads", _) => some(words(&["0", "0", "3", "7"])),
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
        1 => select(vec!["bf16", "q8", "f16"]).prop_map(|kv| vec![("--kv-dtype", Some(kv.to_owned()))]),
    ];
    (extra, prop::collection::vec(one, 0..4))
        .prop_map(|(extra, more)| extra.into_iter().chain(more).collect())
}

pub(super) fn case() -> impl Strategy<Value = Case> {
    let drafter = (
        select(EXTERNAL.to_vec()),
        1_u32..4,
        proptest::option::of(2_u32..12),
        proptest::option::of(1_u32..8),
        subsequence(vec!["bf16".to_owned(), "f16".to_owned()], 0..=2),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(kind, revision, block, taps, dtypes, pruned_vocabulary)| DrafterFacts {
            kind,
            revision,
            block,
            taps,
            dtypes: dtypes.into_iter().collect(),
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
