//! The sentences in which a request is refused, one function each.
//!
//! House style: one line, no final period, the flag first. They are part of
//! the surface that scripts and people know, so they change only on purpose.

use std::fmt::Display;

use super::alternatives;

/// A plugin that runs no such drafter, in `serve`.
pub fn drafter_not_run(engine: &str, drafter: &str) -> String {
    format!("--drafter: the {engine} engine runs no {drafter} drafter yet; serve without --drafter")
}

/// The same in `benchmark`, for a drafter that was named. `backend` is the
/// name that the user typed.
pub fn drafter_not_run_in_benchmark(engine: &str, drafter: &str, backend: &str) -> String {
    format!(
        "--drafter: the {engine} engine runs no {drafter} drafter yet, so a {backend} run takes none; \
         --drafter none runs without it"
    )
}

/// What `benchmark` says once when the checkpoint has a drafter of its own that
/// is not passed. A line of progress: it ends with a period.
pub fn benchmark_passes_no_drafter(engine: &str, drafter: &str) -> String {
    format!("This run passes no drafter: the {engine} engine runs no {drafter} drafter yet.")
}

/// A drafter kind that the plugin runs, only not with this family.
pub fn drafter_not_run_with_family(engine: &str, drafter: &str, family: &str) -> String {
    format!(
        "--drafter: the {engine} engine runs no {drafter} drafter with {family} checkpoints yet; \
         serve without --drafter"
    )
}

/// A drafter of a kind that the plugin runs, outside its limits. All faults
/// stand in one line.
pub fn drafter_outside_limits(engine: &str, faults: &[String]) -> String {
    format!("--drafter: the {engine} engine {}; serve without --drafter", faults.join("; it "))
}

/// More drafts a round than the plugin makes.
pub fn mtp_too_deep(asked: i64, engine: &str, depth_max: u32) -> String {
    format!("--mtp-drafts {asked}: the {engine} engine drafts at most {depth_max}")
}

/// `--mtp-drafts` or `--mtp-confidence` with a plugin that drafts with no head.
pub fn mtp_not_run(flag: &str, engine: &str) -> String {
    format!("{flag}: the {engine} engine drafts with no MTP head yet; serve without {flag}")
}

/// The same for one family.
pub fn mtp_not_run_with_family(flag: &str, engine: &str, family: &str) -> String {
    format!(
        "{flag}: the {engine} engine drafts with no MTP head of {family} checkpoints yet; serve without {flag}"
    )
}

/// `--mtp-confidence` with a head whose drafts come without probabilities.
pub fn mtp_without_confidence(engine: &str) -> String {
    format!(
        "--mtp-confidence: the {engine} engine gives no draft probabilities; serve without --mtp-confidence"
    )
}

/// An own head that does not draft with so many ranks.
pub fn mtp_world(
    flag: &str,
    engine: &str,
    world: i64,
    worlds: impl IntoIterator<Item = impl Display>,
) -> String {
    format!(
        "{flag}: the {engine} engine drafts with no MTP head under --tp {world}; choose --tp {} or serve without {flag}",
        alternatives(worlds)
    )
}

/// A number of ranks that the plugin does not run.
pub fn world_size(asked: i64, platform: &str, worlds: impl IntoIterator<Item = impl Display>) -> String {
    format!("--tp {asked} is not a supported {platform} world size; choose {}", alternatives(worlds))
}

/// A number of ranks that the plugin does not run with this family.
pub fn world_size_with_family(
    asked: i64,
    platform: &str,
    family: &str,
    worlds: impl IntoIterator<Item = impl Display>,
) -> String {
    format!(
        "--tp {asked} is not a supported {platform} world size for {family} checkpoints; choose {}",
        alternatives(worlds)
    )
}

/// Several ranks without an address to meet at.
pub fn master_missing() -> String {
    "--tp > 1 needs --master: rank 0's address on the link between the machines".to_owned()
}

/// A rank besides 0 where there is only one.
pub fn rank_without_world() -> String {
    "--rank must be 0 when --tp 1".to_owned()
}

/// A rank outside its world.
pub fn rank_out_of_range(rank: i64, world: i64) -> String {
    format!("--rank {rank} not in [0, --tp {world})")
}

/// A context that is no token count.
pub fn context_not_a_count(asked: i64) -> String {
    format!("--context {asked}: a token count, or 0 for the model's window")
}

/// The model's window was asked for, and the model names none.
pub fn context_without_window() -> String {
    "--context 0 asks for the model's window, and its config.json names none: give a token count".to_owned()
}

/// More context than the model has.
pub fn context_beyond_window(asked: i64, window: u32) -> String {
    format!("--context {asked} exceeds this model's {window}-token window")
}

/// More context than the plugin runs.
pub fn context_beyond_engine(asked: i64, engine: &str, limit: u32) -> String {
    format!("--context {asked} exceeds the {engine} engine's {limit}-token limit")
}

/// Who does not serve a flag.
#[derive(Clone, Copy, Debug)]
pub enum Server<'a> {
    /// The engine of that name.
    Engine(&'a str),
    /// The host.
    Host,
}

impl Display for Server<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Server::Engine(name) => write!(formatter, "the {name} engine"),
            Server::Host => formatter.write_str("tensorfold"),
        }
    }
}

/// A flag that is not served.
pub fn flag_not_served(flag: &str, server: Server<'_>, advice: &str) -> String {
    format!("{flag} is not served by {server} yet; {advice}")
}

/// A value of a flag that is not served.
pub fn flag_value_not_served(flag: &str, value: &str, server: Server<'_>, advice: &str) -> String {
    format!("{flag} {value} is not served by {server}; {advice}")
}

/// A family that the plugin does not run.
pub fn family_not_run(engine: &str, family: &str, families: &[&str]) -> String {
    let advice = match families {
        [] => "it runs no family yet, serve with another --backend".to_owned(),
        families => format!("it runs {}", families.join(", ")),
    };
    format!("the {engine} engine has no backend for {family} checkpoints yet; {advice}")
}

/// Weights in forms that the plugin does not read.
pub fn format_not_read(engine: &str, family: &str, formats: &[&str], read: &[&str]) -> String {
    let read = match read {
        [] => "none".to_owned(),
        read => read.join(", "),
    };
    format!(
        "the {engine} engine reads no {} weights of {family} checkpoints yet; it reads {read}",
        alternatives(formats)
    )
}

/// `--kv-dtype` with a type that the plugin does not keep.
pub fn kv_dtype_not_kept(asked: &str, engine: &str, kept: &[&str]) -> String {
    let advice = match kept {
        [] => "serve without it".to_owned(),
        kept => format!("choose {}", alternatives(kept)),
    };
    flag_value_not_served("--kv-dtype", asked, Server::Engine(engine), &advice)
}

/// `--backend` with a name that no plugin answers to.
pub fn backend_unknown(asked: &str, known: &[&str]) -> String {
    let advice = match known {
        [] => "no plugin is installed".to_owned(),
        known => format!("choose auto, {}", known.join(", ")),
    };
    format!("--backend {asked}: no plugin answers to that name; {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_sentences_are_kept_to_the_letter() {
        for (sentence, wanted) in [
            (
                drafter_not_run("HIP", "DFlash2"),
                "--drafter: the HIP engine runs no DFlash2 drafter yet; serve without --drafter",
            ),
            (
                drafter_not_run_in_benchmark("HIP", "DFlash2", "rocm"),
                "--drafter: the HIP engine runs no DFlash2 drafter yet, so a rocm run takes none; --drafter none runs \
                 without it",
            ),
            (
                benchmark_passes_no_drafter("HIP", "DFlash2"),
                "This run passes no drafter: the HIP engine runs no DFlash2 drafter yet.",
            ),
            (
                world_size(3, "ROCm", [1, 2, 4, 8]),
                "--tp 3 is not a supported ROCm world size; choose 1, 2, 4 or 8",
            ),
            (master_missing(), "--tp > 1 needs --master: rank 0's address on the link between the machines"),
            (rank_without_world(), "--rank must be 0 when --tp 1"),
            (rank_out_of_range(-1, 2), "--rank -1 not in [0, --tp 2)"),
            (mtp_too_deep(4, "HIP", 3), "--mtp-drafts 4: the HIP engine drafts at most 3"),
            (context_not_a_count(-5), "--context -5: a token count, or 0 for the model's window"),
            (
                context_without_window(),
                "--context 0 asks for the model's window, and its config.json names none: give a token count",
            ),
            (
                context_beyond_window(300_000, 262_144),
                "--context 300000 exceeds this model's 262144-token window",
            ),
        ] {
            assert_eq!(sentence, wanted);
        }
    }

    #[test]
    fn a_flag_that_is_not_served_names_who_does_not_serve_it() {
        assert_eq!(
            flag_not_served("--policy", Server::Engine("CPU"), "serve without it"),
            "--policy is not served by the CPU engine yet; serve without it"
        );
        assert_eq!(
            flag_not_served("--dashboard", Server::Host, "serve without it"),
            "--dashboard is not served by tensorfold yet; serve without it"
        );
        assert_eq!(
            kv_dtype_not_kept("int8", "HIP", &["bf16", "q4"]),
            "--kv-dtype int8 is not served by the HIP engine; choose bf16 or q4"
        );
    }

    #[test]
    fn what_would_work_is_named() {
        assert_eq!(
            family_not_run("HIP", "llama", &[]),
            "the HIP engine has no backend for llama checkpoints yet; it runs no family yet, serve with another \
             --backend"
        );
        assert_eq!(
            family_not_run("CPU", "llama", &["qwen3_5"]),
            "the CPU engine has no backend for llama checkpoints yet; it runs qwen3_5"
        );
        assert_eq!(
            format_not_read("CPU", "qwen3_5", &["fp8", "mlx-q3g64"], &["bf16", "mlx-q4"]),
            "the CPU engine reads no fp8 or mlx-q3g64 weights of qwen3_5 checkpoints yet; it reads bf16, mlx-q4"
        );
        assert_eq!(
            backend_unknown("vulkan", &["cpu", "hip"]),
            "--backend vulkan: no plugin answers to that name; choose auto, cpu, hip"
        );
    }

    #[test]
    fn all_faults_of_a_drafter_stand_in_one_line() {
        let faults = [
            "drafts blocks of at most 8, this drafter's is 16".to_owned(),
            "reads 4 layers, not 5".to_owned(),
        ];
        assert_eq!(
            drafter_outside_limits("X", &faults),
            "--drafter: the X engine drafts blocks of at most 8, this drafter's is 16; it reads 4 layers, not 5; \
             serve without --drafter"
        );
    }
}
