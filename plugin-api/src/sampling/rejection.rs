//! Speculative sampling by rejection, as the drafters' authors publish it.
//!
//! tensorfold's engines accept a draft when it equals the draw of the sampling rule, which is
//! exact and needs no second kind of randomness. This is the other way, kept as a reference: for
//! backends that compare themselves with published figures, and for whoever wants to see that
//! both give the same distribution.
//!
//! Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
//! (arXiv 2211.17192), Algorithm 1, with proposals on a few ids.

/// The distribution that a row of logits is drawn from: divided by the temperature, cut to the
/// `top_k` largest (0: all), then to those before which less than `top_p` of the mass lies.
///
/// Order among equal logits: the lower id first.
pub fn distribution(logits: &[f32], temperature: f64, top_p: f64, top_k: usize) -> Vec<f64> {
    let scaled: Vec<f64> = logits.iter().map(|&logit| f64::from(logit) / temperature).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| scaled[b].total_cmp(&scaled[a]).then(a.cmp(&b)));
    if top_k > 0 {
        order.truncate(top_k);
    }
    let mut out = vec![0.0; logits.len()];
    let Some(&first) = order.first() else { return out };
    let total: f64 = order.iter().map(|&id| (scaled[id] - scaled[first]).exp()).sum();
    let mut before = 0.0;
    for id in order {
        if before >= top_p {
            break;
        }
        out[id] = (scaled[id] - scaled[first]).exp() / total;
        before += out[id];
    }
    normalise(&mut out);
    out
}

/// Where a uniform number falls in a distribution over listed candidates: the first whose
/// cumulative probability exceeds it.
pub fn pick(probabilities: &[f64], uniform: f64) -> usize {
    let mut cumulative = 0.0;
    for (index, probability) in probabilities.iter().enumerate() {
        cumulative += probability;
        if uniform < cumulative {
            return index;
        }
    }
    probabilities.len().saturating_sub(1)
}

/// One draft and what it was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The draft.
    pub token: u32,
    /// Ids with their probabilities; all others have none.
    pub from: Vec<(u32, f64)>,
}

/// What became of a round's drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Drafts accepted.
    pub accepted: usize,
    /// The distribution that the next token has to be drawn from, with fresh randomness.
    pub next: Vec<f64>,
}

/// Accepts drafts from left to right, each while `uniform * q(draft) < p(draft)`.
///
/// `target` has a distribution for each draft and one for the token after the last; `uniforms`
/// one number in [0, 1) for each draft. At the first refusal the next token comes from what of
/// `p` lies above `q`.
///
/// # Panics
/// When there are fewer distributions or numbers than that.
pub fn verify(target: &[Vec<f64>], proposals: &[Proposal], uniforms: &[f64]) -> Verified {
    for (index, proposal) in proposals.iter().enumerate() {
        let p = &target[index];
        let own = proposal.from.iter().filter(|entry| entry.0 == proposal.token);
        let q: f64 = own.map(|entry| entry.1).sum();
        if uniforms[index] * q < p[proposal.token as usize] {
            continue;
        }
        let mut rest = p.clone();
        for &(id, q) in &proposal.from {
            rest[id as usize] -= q;
        }
        rest.iter_mut().for_each(|rest| *rest = rest.max(0.0));
        let empty = rest.iter().all(|&rest| rest == 0.0);
        let mut next = if empty { p.clone() } else { rest };
        normalise(&mut next);
        return Verified { accepted: index, next };
    }
    Verified { accepted: proposals.len(), next: target[proposals.len()].clone() }
}

fn normalise(distribution: &mut [f64]) {
    let total: f64 = distribution.iter().sum();
    if total > 0.0 {
        distribution.iter_mut().for_each(|probability| *probability /= total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampling, draw, uniform};

    /// Chi-square of counts against a distribution.
    fn chi_square(counts: &[u32], wanted: &[f64]) -> f64 {
        let total = f64::from(counts.iter().sum::<u32>());
        counts
            .iter()
            .zip(wanted)
            .filter(|(_, wanted)| **wanted > 0.0)
            .map(|(&count, wanted)| (f64::from(count) - total * wanted).powi(2) / (total * wanted))
            .sum()
    }

    /// The first token of a round that drafts one, over many rounds, whatever it was drawn from.
    fn first_tokens(q: &[f64], p: &[f64], rounds: u64) -> Vec<u32> {
        let mut counts = vec![0; p.len()];
        let from: Vec<(u32, f64)> = (0..).zip(q.iter().copied()).collect();
        for round in 0..rounds {
            let token = pick(q, uniform(1, round, 0)) as u32;
            let proposal = Proposal { token, from: from.clone() };
            let verified = verify(&[p.to_vec(), p.to_vec()], &[proposal], &[uniform(2, round, 0)]);
            let first = match verified.accepted {
                1 => token as usize,
                _ => pick(&verified.next, uniform(3, round, 0)),
            };
            counts[first] += 1;
        }
        counts
    }

    #[test]
    fn replies_have_the_targets_distribution_whatever_was_proposed() {
        let logits = [0.3f32, 1.2, -0.4, 0.9, -2.0];
        let p = distribution(&logits, 0.8, 1.0, 0);
        let proposals = [
            p.clone(),
            vec![0.0, 0.0, 1.0, 0.0, 0.0],
            vec![0.2; 5],
            distribution(&[3.0, -3.0, 2.0, 0.0, 2.5], 1.0, 1.0, 0),
        ];
        // 18.47: a chi-square of four degrees of freedom lies above it once in a thousand times.
        for q in proposals {
            let counts = first_tokens(&q, &p, 40_000);
            assert!(chi_square(&counts, &p) < 18.47, "{q:?}: {counts:?}");
        }
        // The keyed rule draws from the same one.
        let mut counts = vec![0; p.len()];
        for position in 0..40_000 {
            let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::GREEDY };
            counts[draw(&logits, 5, None, &sampling, position).unwrap() as usize] += 1;
        }
        assert!(chi_square(&counts, &p) < 18.47, "{counts:?}");
        // What draws the accepted tokens must not draw the rest: the check sees that.
        let wrong = first_tokens(&[0.2; 5], &distribution(&logits, 1.0, 1.0, 0), 40_000);
        assert!(chi_square(&wrong, &p) > 18.47);
    }

    #[test]
    fn cuts_keep_what_lies_before_the_mass() {
        let logits = [0.0f32, 0.0, 0.0, 0.0];
        assert_eq!(distribution(&logits, 1.0, 0.5, 0), [0.5, 0.5, 0.0, 0.0]);
        assert_eq!(distribution(&logits, 1.0, 1.0, 1), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(distribution(&[], 1.0, 1.0, 1), [0.0; 0]);
    }

    #[test]
    fn when_nothing_of_the_target_lies_above_the_proposal_it_is_drawn_from_itself() {
        let p = vec![0.5, 0.5];
        let proposal = Proposal { token: 0, from: vec![(0, 0.5), (1, 0.5)] };
        let verified = verify(&[p.clone(), p.clone()], &[proposal], &[1.0]);
        assert_eq!(verified, Verified { accepted: 0, next: p });
    }
}
