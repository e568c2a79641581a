//! Speculative sampling by rejection against the authors' package.

mod support;

use support::*;
use tensorfold_plugin_api::sampling::argmax;
use tensorfold_plugin_api::sampling::rejection::{Proposal, distribution, pick, verify};

const PROBABILITIES: f64 = 1e-5;

#[test]
fn blocks_of_drafts_are_verified_as_published() {
    let mut accepted = Vec::new();
    for name in ["v1-full", "v1-swa", "v2-qwen", "v2-scaled"] {
        let golden = Vectors::open(&format!("goldens/dflash/{name}/golden.safetensors"));
        let case = json(&format!("goldens/dflash/{name}/case.json"));
        for (index, settings) in case["verify"].as_array().unwrap().iter().enumerate() {
            let at = |part: &str| format!("verify{index}.{part}");
            let drafts = golden.u32(&at("draft"));
            let logits = golden.f32(&at("target_logits"));
            let width = logits.len() / (drafts.len() + 1);
            let number = |key: &str| settings[key].as_f64().unwrap();
            let (temperature, top_p) = (number("temperature"), number("top_p"));
            let target: Vec<Vec<f64>> = logits
                .chunks(width)
                .map(|row| distribution(row, temperature, top_p, number("top_k") as usize))
                .collect();
            let q = golden.f32(&at("q"));
            let per_draft = q.len() / drafts.len();
            let ids = match name.starts_with("v2") {
                true => golden.u32(&at("q_ids")),
                false => (0..drafts.len()).flat_map(|_| 0..width as u32).collect(),
            };
            let proposals: Vec<Proposal> = drafts
                .iter()
                .zip(ids.chunks(per_draft).zip(q.chunks(per_draft)))
                .map(|(&token, (ids, q))| Proposal {
                    token,
                    from: ids.iter().copied().zip(q.iter().map(|&q| f64::from(q))).collect(),
                })
                .collect();
            let uniforms: Vec<f64> = golden.f32(&at("uniforms")).iter().map(|&u| f64::from(u)).collect();
            let verified = verify(&target, &proposals, &uniforms);
            assert_eq!(verified.accepted as u64, settings["accepted"].as_u64().unwrap(), "{name} {index}");
            for (got, wanted) in verified.next.iter().zip(golden.f32(&at("next_dist"))) {
                assert!((got - f64::from(wanted)).abs() < PROBABILITIES, "{name} {index}");
            }
            // The greedy rule on the same rows.
            let greedy: Vec<u32> = logits.chunks(width).map(|row| argmax(row).unwrap()).collect();
            let kept = drafts.iter().zip(&greedy).take_while(|(draft, drawn)| draft == drawn).count();
            assert_eq!(kept as u64, settings["greedy_accepted"].as_u64().unwrap());
            assert_eq!(u64::from(greedy[kept]), settings["greedy_next"].as_u64().unwrap());
            accepted.push(verified.accepted);
        }
    }
    assert!(accepted.contains(&0) && accepted.iter().any(|&count| count > 4), "{accepted:?}");
}

#[test]
fn candidates_are_walked_by_uniform_numbers_as_published() {
    for name in ["v2-qwen", "v2-scaled"] {
        let golden = Vectors::open(&format!("goldens/dflash/{name}/golden.safetensors"));
        for round in 0..5 {
            let at = |part: &str| format!("r{round}.{part}");
            let (ids, edges) = (golden.u32(&at("cand_ids")), golden.f32(&at("edges")));
            let uniforms = golden.f32(&at("uniforms"));
            let count = ids.len() / uniforms.len();
            let mut before = 0;
            let mut walked = Vec::new();
            let mut rows = Vec::new();
            for (slot, &uniform) in uniforms.iter().enumerate() {
                let scores = &edges[(slot * count + before) * count..][..count];
                let q = distribution(scores, 0.8, 1.0, 0);
                before = pick(&q, f64::from(uniform));
                walked.push(ids[slot * count + before]);
                rows.extend(q);
            }
            assert_eq!(walked, golden.u32(&at("walk_ids")), "{name} {round}");
            for (got, wanted) in rows.iter().zip(golden.f32(&at("walk_q"))) {
                assert!((got - f64::from(wanted)).abs() < PROBABILITIES, "{name} {round}");
            }
        }
    }
}
