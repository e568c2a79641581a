//! The sampling rule: which token a row of logits and a key draw.
//!
//! The rule is part of the contract. Every engine must draw the token that
//! [`draw`] draws from the same logits, so that a reply depends on the seed and
//! on the model alone: not on the backend, not on what else is running, and not
//! on whether a token was first guessed by a drafter.
//!
//! For a row whose drawn token will have `position` tokens before it:
//!
//! 1. Candidates are the ids below the selectable vocabulary that the mask, if
//!    any, allows, ordered by logit descending, then id ascending. The first
//!    `top_k` stay (0: all).
//! 2. `s = logit / max(temperature, 1e-6)`, in `f64` as everything from here on.
//! 3. With `top_p` inside (0, 1): softmax over what is left, in order; kept are
//!    as many candidates as there are cumulative sums below `top_p`, and one.
//! 4. With `min_p` above 0: kept are those with `s >= s_first + ln(min_p)`.
//! 5. The token is the argmax of `s - ln(-ln(uniform(seed, position, id)))`.
//!
//! A temperature of 0 or less draws the largest logit, the lowest id on ties.
//!
//! Nothing here panics or allocates for a greedy row, and nothing here keeps
//! state: two calls with equal arguments give equal tokens.

pub mod rejection;

/// How a token is drawn from a row of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits; 0 or less: always the largest logit.
    pub temperature: f64,
    /// Mass of the nucleus; outside (0, 1): no cut.
    pub top_p: f64,
    /// Candidates that may be drawn at most; 0: no cut.
    pub top_k: u32,
    /// Least probability, relative to the most probable candidate's; 0: no cut.
    pub min_p: f64,
    /// Key of the noise.
    pub seed: u64,
}

impl Sampling {
    /// Always the largest logit.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0 };

    /// Whether the largest logit is drawn whatever the seed.
    pub fn is_greedy(&self) -> bool {
        // A temperature that is not a number asks for nothing sensible.
        self.temperature.is_nan() || self.temperature <= 0.0 || self.top_k == 1
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

/// The ids that a row may draw: bit `id % 32` of word `id / 32`.
///
/// Ids past the last word are not allowed.
#[derive(Clone, Copy, Debug)]
pub struct AllowedTokens<'a> {
    words: &'a [u32],
}

impl<'a> AllowedTokens<'a> {
    /// A mask over `words`.
    pub fn new(words: &'a [u32]) -> Self {
        AllowedTokens { words }
    }

    /// Words that a mask over `vocabulary` ids takes.
    pub fn words_for(vocabulary: u32) -> usize {
        vocabulary.div_ceil(32) as usize
    }

    /// Whether `id` may be drawn.
    #[inline]
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Logit of the token.
    pub logit: f32,
}

/// Draws a token from a row of logits.
///
/// `logits[id]` belongs to token `id`; ids from `selectable` on are padding and
/// are never drawn. `position` is the number of tokens before the drawn one.
/// `None` when nothing can be drawn: no id is allowed, or every allowed logit
/// is not a number, which only a broken model gives.
pub fn draw(
    logits: &[f32],
    selectable: u32,
    allowed: Option<AllowedTokens<'_>>,
    sampling: &Sampling,
    position: u64,
) -> Option<u32> {
    let logits = &logits[..logits.len().min(selectable as usize)];
    if sampling.is_greedy() {
        return match allowed {
            None => argmax(logits),
            Some(mask) => argmax_allowed(logits, mask),
        };
    }
    let mut candidates: Vec<Candidate> = logits
        .iter()
        .zip(0u32..)
        .filter(|&(logit, id)| !logit.is_nan() && allowed.is_none_or(|mask| mask.allows(id)))
        .map(|(&logit, id)| Candidate { id, logit })
        .collect();
    draw_from(&mut candidates, sampling, position)
}

/// Draws from an explicit list of candidates with distinct ids, in any order.
///
/// The list is used as working memory: its order and length afterwards mean
/// nothing. For engines whose head already yields only the best few: the result
/// is that of [`draw`] as long as the list holds the first `top_k`.
pub fn draw_from(candidates: &mut Vec<Candidate>, sampling: &Sampling, position: u64) -> Option<u32> {
    candidates.retain(|candidate| !candidate.logit.is_nan());
    let best = *candidates.iter().min_by(|a, b| before(a, b))?;
    // An infinite logit outweighs every other, and infinities cannot be subtracted.
    if sampling.is_greedy() || best.logit.is_infinite() {
        return Some(best.id);
    }
    let top_k = sampling.top_k as usize;
    if top_k > 0 && top_k < candidates.len() {
        candidates.select_nth_unstable_by(top_k - 1, before);
        candidates.truncate(top_k);
    }
    let temperature = sampling.temperature.max(1e-6);
    let scaled = |candidate: &Candidate| f64::from(candidate.logit) / temperature;
    let first = scaled(&best);
    if sampling.top_p > 0.0 && sampling.top_p < 1.0 {
        // Only the nucleus needs the order: sums in `f64` depend on it.
        candidates.sort_unstable_by(before);
        let keep = nucleus(candidates.iter().map(|candidate| scaled(candidate) - first), sampling.top_p);
        candidates.truncate(keep);
    }
    let floor = if sampling.min_p > 0.0 { first + sampling.min_p.ln() } else { f64::NEG_INFINITY };
    candidates
        .iter()
        .map(|candidate| (scaled(candidate), candidate))
        .filter(|(s, _)| *s >= floor)
        .map(|(s, candidate)| (s + gumbel(sampling.seed, position, candidate.id), candidate))
        .reduce(|kept, next| {
            let better = next.0 > kept.0 || (next.0 == kept.0 && before(next.1, kept.1).is_lt());
            if better { next } else { kept }
        })
        // A `min_p` above 1 keeps nobody: then the most probable token stands.
        .map_or(Some(best.id), |(_, candidate)| Some(candidate.id))
}

/// The largest logit's id, the lowest on ties; `None` when there is no number.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    // Independent lanes let the compiler use vectors; `>` passes over NaN.
    const LANES: usize = 16;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    logits.iter().position(|&logit| logit == largest).map(|index| index as u32)
}

/// Natural logarithms of probabilities at temperature 1 over all selectable
/// ids: of `token`, then of the `count` likeliest, likeliest first, the lower
/// id first on ties.
pub fn log_probabilities(logits: &[f32], selectable: u32, token: u32, count: usize) -> Vec<(u32, f32)> {
    let logits = &logits[..logits.len().min(selectable as usize)];
    let largest = argmax(logits).map_or(0.0, |id| f64::from(logits[id as usize]));
    let total: f64 =
        logits.iter().filter(|logit| !logit.is_nan()).map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let log_total = largest + total.ln();
    let entry = |candidate: Candidate| (candidate.id, (f64::from(candidate.logit) - log_total) as f32);
    let mut ranked: Vec<Candidate> = logits
        .iter()
        .zip(0u32..)
        .filter(|(logit, _)| !logit.is_nan())
        .map(|(&logit, id)| Candidate { id, logit })
        .collect();
    if count < ranked.len() {
        ranked.select_nth_unstable_by(count, before);
        ranked.truncate(count);
    }
    ranked.sort_unstable_by(before);
    let drawn = logits.get(token as usize).map(|&logit| Candidate { id: token, logit });
    drawn.into_iter().chain(ranked).map(entry).collect()
}

/// The 64 bits behind [`uniform`].
pub fn uniform_bits(seed: u64, position: u64, id: u32) -> u64 {
    let x = mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
    let x = mix(x ^ position.wrapping_mul(0xD1B5_4A32_D192_ED03));
    mix(x ^ u64::from(id))
}

/// The uniform number in (0, 1) that belongs to a seed, a position and a token.
pub fn uniform(seed: u64, position: u64, id: u32) -> f64 {
    const TWO_POW_MINUS_53: f64 = 1.0 / (1u64 << 53) as f64;
    (uniform_bits(seed, position, id) >> 11) as f64 * TWO_POW_MINUS_53 + TWO_POW_MINUS_53 / 2.0
}

fn argmax_allowed(logits: &[f32], mask: AllowedTokens<'_>) -> Option<u32> {
    let mut best: Option<Candidate> = None;
    for (&logit, id) in logits.iter().zip(0u32..) {
        let better = best.map_or(!logit.is_nan(), |kept| logit > kept.logit);
        if better && mask.allows(id) {
            best = Some(Candidate { id, logit });
        }
    }
    best.map(|candidate| candidate.id)
}

/// The order of candidates: logit descending, id ascending.
fn before(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    // Not `total_cmp`: that would put -0 after 0, which are ties.
    b.logit.partial_cmp(&a.logit).unwrap_or(std::cmp::Ordering::Equal).then(a.id.cmp(&b.id))
}

/// How many of the ordered candidates the nucleus keeps; `offsets` are the
/// scaled logits less the first one.
fn nucleus(offsets: impl Iterator<Item = f64> + Clone, top_p: f64) -> usize {
    let total: f64 = offsets.clone().map(f64::exp).sum();
    let mut cumulative = 0.0;
    let mut below = 0;
    for offset in offsets {
        cumulative += offset.exp() / total;
        if cumulative >= top_p {
            break;
        }
        below += 1;
    }
    below + 1
}

fn gumbel(seed: u64, position: u64, id: u32) -> f64 {
    -(-uniform(seed, position, id).ln()).ln()
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampling(temperature: f64, top_k: u32, top_p: f64, min_p: f64, seed: u64) -> Sampling {
        Sampling { temperature, top_p, top_k, min_p, seed }
    }

    #[test]
    fn the_uniform_has_its_published_values() {
        for (seed, position, id, bits, value) in [
            (1234, 10, 42, 0xce42_18c1_5581_e2f8_u64, 0.805_696_055_603_682_3_f64),
            (1234, 10, 43, 0x96fa_7fd0_5bb7_b8c7, 0.589_759_815_567_702_2),
            (1234, 11, 42, 0x6061_c8bd_84ad_9d82, 0.376_492_067_593_679_3),
            (0, 0, 0, 0x33fe_8bd4_f9c5_7863, 0.203_102_817_054_761_02),
            (u64::MAX, 262_143, 248_319, 0xff04_476a_f438_3607, 0.996_159_041_988_193_6),
            (1238, 17, 98_303, 0xb21d_cfdb_3ff0_daeb, 0.695_767_394_092_345_9),
        ] {
            assert_eq!(uniform_bits(seed, position, id), bits, "seed {seed}, position {position}, id {id}");
            assert_eq!(uniform(seed, position, id), value);
        }
    }

    #[test]
    fn the_published_example_draws_its_tokens() {
        let candidates: Vec<Candidate> =
            [(5, 2.0), (9, 1.5), (7, 1.5), (100, 0.25), (3, -1.0), (11, 3.0), (2, 2.75), (50_000, 0.0)]
                .map(|(id, logit)| Candidate { id, logit })
                .to_vec();
        let mut logits = vec![f32::NAN; 50_001];
        for candidate in &candidates {
            logits[candidate.id as usize] = candidate.logit;
        }
        let rule = sampling(1.0, 5, 0.95, 0.0, 1234);
        for (position, token) in (20..28).zip([11, 11, 11, 2, 5, 11, 7, 11]) {
            assert_eq!(draw_from(&mut candidates.clone(), &rule, position), Some(token));
            assert_eq!(draw(&logits, 50_001, None, &rule, position), Some(token));
        }
        let mut sorted = candidates.clone();
        sorted.sort_unstable_by(before);
        assert_eq!(sorted[..5].iter().map(|c| c.id).collect::<Vec<_>>(), [11, 2, 5, 7, 9]);
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_a_tie_and_never_padding() {
        let logits = [0.5, 2.0, -1.0, 2.0, 9.0];
        assert_eq!(draw(&logits, 4, None, &Sampling::GREEDY, 0), Some(1));
        assert_eq!(draw(&logits, 5, None, &Sampling::GREEDY, 0), Some(4));
        let mask = [0b1_1100];
        assert_eq!(draw(&logits, 4, Some(AllowedTokens::new(&mask)), &Sampling::GREEDY, 0), Some(3));
        assert_eq!(argmax(&[-0.0, 0.0]), Some(0), "zeros of either sign tie");
    }

    #[test]
    fn nothing_to_draw_is_said_and_does_not_panic() {
        let warm = sampling(1.0, 0, 0.9, 0.1, 7);
        for rule in [Sampling::GREEDY, warm] {
            assert_eq!(draw(&[], 10, None, &rule, 0), None);
            assert_eq!(draw(&[1.0, 2.0], 0, None, &rule, 0), None);
            assert_eq!(draw(&[f32::NAN; 40], 40, None, &rule, 0), None);
            assert_eq!(draw(&[1.0, 2.0], 2, Some(AllowedTokens::new(&[])), &rule, 0), None);
            assert_eq!(draw(&[f32::NAN, 1.0, f32::NAN], 3, None, &rule, 0), Some(1));
        }
    }

    #[test]
    fn odd_parameters_still_draw() {
        let logits = [1.0, 3.0, 2.0];
        for rule in [
            sampling(f64::NAN, 0, 0.5, 0.0, 1),
            sampling(-1.0, 0, 0.5, 0.0, 1),
            sampling(1e-300, 0, 0.5, 0.0, 1),
            sampling(1.0, 0, 0.5, 2.0, 1),
            sampling(1.0, 1, f64::NAN, f64::NAN, 1),
        ] {
            assert_eq!(draw(&logits, 3, None, &rule, 5), Some(1), "{rule:?}");
        }
        let hot = sampling(f64::INFINITY, 0, 1.0, 0.0, 1);
        assert!(draw(&logits, 3, None, &hot, 5).is_some());
        assert_eq!(draw(&[0.0, f32::INFINITY], 2, None, &hot, 5), Some(1));
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0];
        let rule = sampling(1.0, 0, 1.0, 0.0, 99);
        let mut counts = [0u32; 3];
        for position in 0..20_000 {
            counts[draw(&logits, 3, None, &rule, position).unwrap() as usize] += 1;
        }
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (count, logit) in counts.iter().zip(logits) {
            let expected = f64::from(logit).exp() / total;
            assert!((f64::from(*count) / 20_000.0 - expected).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_softmax_without_padding() {
        let logits = [1.0, 3.0, 2.0, 3.0, 50.0];
        let total: f64 = [1.0f64, 3.0, 2.0, 3.0].iter().map(|l| l.exp()).sum();
        let listed = log_probabilities(&logits, 4, 2, 3);
        assert_eq!(listed.iter().map(|entry| entry.0).collect::<Vec<_>>(), [2, 1, 3, 2]);
        for (id, value) in listed {
            assert!((f64::from(value) - (f64::from(logits[id as usize]) - total.ln())).abs() < 1e-6);
        }
        assert_eq!(log_probabilities(&logits, 4, 0, 9).len(), 5);
        assert_eq!(log_probabilities(&logits, 4, 0, 0).len(), 1);
    }

    /// The rule word by word: a full sort, then cut after cut.
    fn reference(
        logits: &[f32],
        selectable: u32,
        mask: Option<&[u32]>,
        rule: &Sampling,
        position: u64,
    ) -> u32 {
        let mut kept: Vec<(f32, u32)> = (0..selectable)
            .filter(|id| mask.is_none_or(|words| words[*id as usize / 32] >> (id % 32) & 1 == 1))
            .map(|id| (logits[id as usize], id))
            .collect();
        kept.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
        if rule.temperature <= 0.0 {
            return kept[0].1;
        }
        if rule.top_k > 0 {
            kept.truncate(rule.top_k as usize);
        }
        let s: Vec<f64> = kept.iter().map(|(l, _)| f64::from(*l) / rule.temperature.max(1e-6)).collect();
        let mut count = s.len();
        if rule.top_p > 0.0 && rule.top_p < 1.0 {
            let total: f64 = s.iter().map(|x| (x - s[0]).exp()).sum();
            let mut sum = 0.0;
            let sums = s.iter().map(|x| {
                sum += (x - s[0]).exp() / total;
                sum
            });
            count = (sums.filter(|c| *c < rule.top_p).count() + 1).min(s.len());
        }
        let mut best = (f64::NEG_INFINITY, kept[0].1);
        for i in 0..count {
            if rule.min_p > 0.0 && s[i] < s[0] + rule.min_p.ln() {
                continue;
            }
            let score = s[i] - (-uniform(rule.seed, position, kept[i].1).ln()).ln();
            if score > best.0 {
                best = (score, kept[i].1);
            }
        }
        best.1
    }

    proptest! {
        #[test]
        fn every_short_cut_draws_what_the_full_rule_draws(
            steps in prop::collection::vec(-20i8..20, 1..200),
            padding in 0usize..20,
            temperature in prop_oneof![Just(0.0), 0.05f64..3.0],
            top_k in 0u32..40,
            top_p in prop_oneof![Just(0.0), Just(1.0), 0.01f64..1.0],
            min_p in prop_oneof![Just(0.0), 0.0001f64..1.0],
            seed: u64,
            position in 0u64..1 << 40,
            mask_seed in prop::option::of(any::<u32>()),
        ) {
            // Few distinct values make many ties.
            let mut logits: Vec<f32> = steps.iter().map(|&step| f32::from(step) * 0.25).collect();
            let selectable = logits.len() as u32;
            logits.extend(std::iter::repeat_n(100.0, padding));
            let mask = mask_seed.map(|bits| {
                let mut words = vec![bits; AllowedTokens::words_for(selectable)];
                words[0] |= 1;
                words
            });
            let rule = Sampling { temperature, top_p, top_k, min_p, seed };
            let drawn = draw(&logits, selectable, mask.as_deref().map(AllowedTokens::new), &rule, position);
            prop_assert_eq!(drawn, Some(reference(&logits, selectable, mask.as_deref(), &rule, position)));
        }
    }
}
