//! DFlash2's selector: the best candidates of a slot, and the walk over slots.

use tensorfold_plugin_api::sampling::{Candidate, draw_from};

use super::CpuDevice;
use super::embed::embed;
use crate::device::{SelectLane, Selector};

/// The `count` largest logits with their ids, largest first, the lower id first among equal ones.
pub(super) fn best(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut found: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (&logit, id) in logits.iter().zip(0u32..) {
        let worst = if found.len() < count { f32::NEG_INFINITY } else { found[found.len() - 1].1 };
        // Of equal logits the earlier id is there already. What is not a number never gets in.
        if logit > worst || found.len() < count && logit == worst {
            let at = found.partition_point(|kept| kept.1 >= logit);
            found.insert(at, (id, logit));
            found.truncate(count);
        }
    }
    found
}

/// Scores of a slot's candidates after token `before`.
pub(super) fn scores(
    selector: &Selector<'_, '_, CpuDevice>,
    before: u32,
    candidates: &[(u32, f32)],
    projected: &[f32],
) -> Vec<f32> {
    let mut left = vec![0.0; selector.rank];
    embed(selector.predecessor, &[before], &mut left);
    left.iter_mut().zip(projected).for_each(|(left, projected)| *left *= projected);
    let mut right = vec![0.0; selector.rank];
    let score = |&(id, logit): &(u32, f32)| {
        embed(selector.successor, &[id], &mut right);
        logit + left.iter().zip(&right).map(|(left, right)| left * right).sum::<f32>()
    };
    candidates.iter().map(score).collect()
}

/// The tokens of a lane's slots, from left to right, with their probabilities. Ends early at a slot without candidates.
pub(super) fn walk<'a>(
    selector: &Selector<'_, '_, CpuDevice>,
    lane: &SelectLane,
    slots: impl Iterator<Item = (Vec<(u32, f32)>, &'a [f32])>,
) -> Vec<(u32, f32)> {
    let mut before = lane.anchor;
    let mut path = Vec::new();
    for ((slot, projected), position) in slots.zip(lane.position..) {
        let (candidates, projected) = (slot, projected);
        let scores = scores(selector, before, &candidates, projected);
        let mut list: Vec<Candidate> =
            candidates.iter().zip(&scores).map(|(&(id, _), &logit)| Candidate { id, logit }).collect();
        let Some(token) = draw_from(&mut list, &lane.sampling, position) else { break };
        path.push((token, probability(&candidates, &scores, token)));
        before = token;
    }
    path
}

/// A candidate's share of the softmax over all.
fn probability(candidates: &[(u32, f32)], scores: &[f32], token: u32) -> f32 {
    let largest = scores.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let weights = scores.iter().map(|score| (score - largest).exp());
    let (mut own, mut all) = (0.0, 0.0);
    for (weight, &(id, _)) in weights.zip(candidates) {
        all += weight;
        own += if id == token { weight } else { 0.0 };
    }
    own / all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_in_order_with_ties_to_the_lower_id() {
        let logits = [1.0, 3.0, f32::NAN, 3.0, f32::NEG_INFINITY, 2.0, 3.0];
        assert_eq!(best(&logits, 3), [(1, 3.0), (3, 3.0), (6, 3.0)]);
        assert_eq!(best(&logits, 5)[3..], [(5, 2.0), (0, 1.0)]);
        let ids: Vec<u32> = best(&logits, 9).iter().map(|kept| kept.0).collect();
        assert_eq!(ids, [1, 3, 6, 5, 0, 4]);
    }

    #[test]
    fn probabilities_sum_to_one() {
        let candidates = [(4, 0.0), (9, 0.0), (2, 0.0)];
        let scores = [1.0, 2.5, -3.0];
        let sum: f32 = candidates.iter().map(|c| probability(&candidates, &scores, c.0)).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert!(probability(&candidates, &scores, 9) > 0.8);
    }
}
