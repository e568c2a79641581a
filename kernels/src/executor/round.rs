//! One round: feed, draw, verify, commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorfold_plugin_api::sampling::{AllowedTokens, Sampling};

use super::forward::{Effect, PassLane, Trace};
use super::lane::{Lane, LaneLayer};
use super::mtp::{CHAIN_DRAFTS, Committed, DraftRequest};
use super::observe::{Nobody, Observer, Point};
use super::trunk::Mixer;
use super::{Executor, ExecutorError, HEAD_ROWS, OUTPUT_ROWS, PASS_ROWS};
use crate::device::{BlockDevice, Device, Draw, DrawRequest, Product};

/// What one lane does in a round.
pub struct Step<'a, D: Device> {
    /// The lane.
    pub lane: &'a mut Lane<D>,
    /// Tokens to feed: a part of a prompt, or the pending token and drafts.
    pub tokens: &'a [u32],
    /// How many of the last tokens are drafts to verify.
    pub drafts: usize,
    /// How many of the last rows draw a token; with drafts, one more than those.
    pub outputs: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Bit masks of the ids that may be drawn, one after the other for each
    /// output; empty: all.
    pub allowed: &'a [u32],
    /// Whether log probabilities are wanted, and of how many likeliest tokens.
    pub log_probabilities: Option<u32>,
    /// Drafts to make for the round after, where a drafter is open.
    pub next_drafts: NextDrafts,
    /// Asked between layers: whether to stop working for this lane.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// Who makes drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftSource {
    /// The model's own multi-token prediction head.
    #[default]
    Head,
    /// The block drafter.
    Block,
}

/// Drafts that a lane wants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NextDrafts {
    /// Who is to make them.
    pub source: DraftSource,
    /// At most so many.
    pub count: usize,
    /// They end before one that is less likely than this, but for the first.
    pub confidence: f32,
}

/// What one lane got.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// A draw for each output row; with drafts, for the accepted ones and the
    /// token that follows them.
    pub draws: Vec<Draw>,
    /// Drafts accepted.
    pub accepted: usize,
    /// Drafts for the round after, with the drafter's probabilities.
    pub drafts: Vec<(u32, f32)>,
    /// Whether the lane was cancelled. It then holds a leading part of its
    /// tokens; its position says how many.
    pub cancelled: bool,
}

/// What a round gave.
#[derive(Clone, Debug, Default)]
pub struct RoundOutcome {
    /// In the order of the steps.
    pub lanes: Vec<StepOutcome>,
    /// Rows that went through the model.
    pub rows: usize,
    /// Time in the layers.
    pub forward: Duration,
    /// Time in the head, drawing and committing.
    pub draw: Duration,
    /// Time of drafting, and of bringing drafters up to date.
    pub drafting: Duration,
}

/// A step's rows in a pass.
#[derive(Clone, Copy)]
struct Share {
    step: usize,
    /// First token of the step.
    from: usize,
    count: usize,
}

impl<D: BlockDevice> Executor<'_, D> {
    /// Does one round for all lanes named.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before anything is done. After other errors
    /// each lane holds a leading part of its tokens; its position says which.
    pub fn round(&mut self, steps: &mut [Step<'_, D>]) -> Result<RoundOutcome, ExecutorError> {
        self.round_observed(steps, &mut Nobody)
    }

    /// As [`Executor::round`], with somebody looking.
    ///
    /// # Errors
    /// As [`Executor::round`].
    pub fn round_observed(
        &mut self,
        steps: &mut [Step<'_, D>],
        observer: &mut dyn Observer<D>,
    ) -> Result<RoundOutcome, ExecutorError> {
        for (index, step) in steps.iter().enumerate() {
            self.validate(step)
                .map_err(|what| ExecutorError::Invalid(format!("lane {index} of the round: {what}")))?;
        }
        let mut outcome = RoundOutcome {
            lanes: steps.iter().map(|_| StepOutcome::default()).collect(),
            ..RoundOutcome::default()
        };
        let mut fed = vec![0; steps.len()];
        loop {
            let shares = next_pass(steps, &fed, &outcome.lanes);
            if shares.is_empty() {
                break;
            }
            self.pass(steps, &shares, &mut outcome, observer)?;
            for share in shares {
                fed[share.step] += share.count;
            }
        }
        self.draft(steps, &mut outcome, observer)?;
        Ok(outcome)
    }

    /// Makes the drafts that steps want for the round after.
    fn draft(
        &mut self,
        steps: &mut [Step<'_, D>],
        outcome: &mut RoundOutcome,
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let started = Instant::now();
        let mut wanted = [Vec::new(), Vec::new()];
        let mut requests = [Vec::new(), Vec::new()];
        for (index, (step, got)) in steps.iter_mut().zip(&outcome.lanes).enumerate() {
            let drawn = got.draws.last().and_then(|draw| draw.token);
            if let (1.., false, Some(token)) = (step.next_drafts.count, got.cancelled, drawn) {
                let source = step.next_drafts.source as usize;
                wanted[source].push(index);
                requests[source].push(DraftRequest {
                    lane: &mut *step.lane,
                    token,
                    count: step.next_drafts.count,
                    confidence: step.next_drafts.confidence,
                    sampling: step.sampling,
                    drafts: Vec::new(),
                });
            }
        }
        self.draft_chains(&mut requests[DraftSource::Head as usize], observer)?;
        self.draft_blocks(&mut requests[DraftSource::Block as usize])?;
        for (index, request) in wanted.into_iter().flatten().zip(requests.into_iter().flatten()) {
            outcome.lanes[index].drafts = request.drafts;
        }
        outcome.drafting += started.elapsed();
        Ok(())
    }

    fn validate(&self, step: &Step<'_, D>) -> Result<(), String> {
        let (tokens, drafts, outputs) = (step.tokens.len(), step.drafts, step.outputs);
        if tokens == 0 {
            return Err("no tokens to feed".into());
        }
        if let Some(token) = step.tokens.iter().find(|&&token| token >= self.spec.vocabulary_rows) {
            return Err(format!("token {token} is not among the {} of the model", self.spec.vocabulary_rows));
        }
        if step.lane.position + tokens > self.options.context {
            return Err(format!(
                "{tokens} tokens after position {} exceed the context of {}",
                step.lane.position, self.options.context
            ));
        }
        if drafts >= tokens || (drafts > 0 && outputs != drafts + 1) || outputs > tokens {
            return Err(format!("{drafts} drafts and {outputs} outputs in {tokens} tokens"));
        }
        if step.next_drafts.count > CHAIN_DRAFTS {
            return Err(format!(
                "{} drafts are wanted; at most {CHAIN_DRAFTS} can be verified in a round",
                step.next_drafts.count
            ));
        }
        if outputs > OUTPUT_ROWS {
            return Err(format!("{outputs} outputs; at most {OUTPUT_ROWS} can be drawn in a round"));
        }
        let words = AllowedTokens::words_for(self.spec.selectable_vocabulary);
        if !step.allowed.is_empty()
            && (!step.allowed.len().is_multiple_of(outputs.max(1))
                || step.allowed.len() / outputs.max(1) < words)
        {
            return Err(format!("{} mask words for {outputs} outputs of {words} words", step.allowed.len()));
        }
        Ok(())
    }

    /// Feeds some rows of some steps and commits what stays of them.
    fn pass(
        &mut self,
        steps: &mut [Step<'_, D>],
        shares: &[Share],
        outcome: &mut RoundOutcome,
        observer: &mut dyn Observer<D>,
    ) -> Result<(), ExecutorError> {
        let started = Instant::now();
        let mut tokens = Vec::new();
        let mut requests = Vec::new();
        for share in shares {
            let step = &steps[share.step];
            // Rows of the pass that draw: (row, lane of the pass, request)
            let first_output = step.tokens.len() - step.outputs;
            let mask_words = step.allowed.len().checked_div(step.outputs).unwrap_or(0);
            for token in first_output.max(share.from)..share.from + share.count {
                let mask = (token - first_output) * mask_words;
                let request = DrawRequest {
                    sampling: step.sampling,
                    position: (step.lane.position + token - share.from + 1) as u64,
                    allowed: (mask_words > 0).then(|| &step.allowed[mask..mask + mask_words]),
                    log_probabilities: step.log_probabilities,
                };
                requests.push((tokens.len() + token - share.from, share.step, request));
            }
            tokens.extend_from_slice(&step.tokens[share.from..share.from + share.count]);
        }
        let mut lanes = Vec::with_capacity(shares.len());
        let mut first = 0;
        let mut by_step: Vec<Option<&mut Step<'_, D>>> = steps.iter_mut().map(Some).collect();
        let mut drafts = Vec::with_capacity(shares.len());
        let mut fed = Vec::with_capacity(shares.len());
        for share in shares {
            let step = by_step[share.step].take().expect("a step has one share in a pass");
            drafts.push(&step.tokens[step.tokens.len() - step.drafts..]);
            fed.push(&step.tokens[share.from..share.from + share.count]);
            lanes.push(PassLane {
                effects: self.effects(step.drafts > 0, share.count)?,
                lane: step.lane,
                rows: first..first + share.count,
                cancelled: step.cancelled,
                is_cancelled: false,
            });
            first += share.count;
        }
        let result = self.forward(&tokens, &mut lanes, observer);
        outcome.rows += tokens.len();
        outcome.forward += started.elapsed();
        let started = Instant::now();
        let all_cancelled = lanes.iter().all(|lane| lane.is_cancelled);
        let draws = match result {
            Ok(()) if all_cancelled => Ok(Vec::new()),
            Ok(()) => self.keep_states(tokens.len()).and_then(|()| self.draw(&requests, observer)),
            Err(error) => Err(error),
        };
        let draws = match draws {
            Ok(draws) => draws,
            Err(error) => {
                for lane in lanes {
                    // The first error is the one to report.
                    let _ = self.take_back(lane);
                }
                return Err(error);
            }
        };
        let mut draws = requests.iter().zip(draws).peekable();
        let mut followed = Vec::with_capacity(shares.len());
        for (((share, lane), drafts), fed) in shares.iter().zip(lanes).zip(drafts).zip(fed) {
            let got = &mut outcome.lanes[share.step];
            let mut drawn = Vec::new();
            while let Some((_, draw)) = draws.next_if(|((_, step, _), _)| *step == share.step) {
                drawn.push(draw);
            }
            if lane.is_cancelled {
                got.cancelled = true;
                self.take_back(lane)?;
                continue;
            }
            let accepted =
                drafts.iter().zip(&drawn).take_while(|(draft, draw)| draw.token == Some(**draft)).count();
            if !drafts.is_empty() {
                drawn.truncate(accepted + 1);
            }
            got.accepted = accepted;
            got.draws.extend(drawn);
            let kept = share.count - drafts.len() + accepted;
            let states = lane.rows.start..lane.rows.start + kept;
            let at_once = drafts.is_empty() && share.count > 1;
            followed.push((self.commit(lane, kept)?, Committed { states, tokens: &fed[..kept], at_once }));
        }
        outcome.draw += started.elapsed();
        let started = Instant::now();
        let mut tapped = Vec::with_capacity(followed.len());
        for (lane, committed) in followed {
            self.follow(lane, &committed)?;
            tapped.push((lane, committed.states, committed.at_once));
        }
        self.follow_with_block(&mut tapped)?;
        outcome.drafting += started.elapsed();
        Ok(())
    }

    /// Room for the effects of a lane's rows.
    fn effects(&mut self, may_roll_back: bool, rows: usize) -> Result<Vec<Effect<D>>, ExecutorError> {
        let Executor { device, trunk, spare, .. } = self;
        let mut effects = Vec::with_capacity(trunk.layers.len());
        for (index, layer) in trunk.layers.iter().enumerate() {
            effects.push(match &layer.mixer {
                Mixer::Attention(_) => Effect::None,
                Mixer::Delta(delta) if may_roll_back => Effect::Trace(match spare.traces[index].pop() {
                    Some(trace) if trace.capacity >= rows => trace,
                    _ => {
                        let capacity = rows.next_multiple_of(4);
                        Trace { capacity, trace: device.delta_trace(&delta.spec, capacity)? }
                    }
                }),
                Mixer::Delta(delta) => Effect::State(match spare.states[index].pop() {
                    Some(state) => state,
                    None => device.delta_state(&delta.spec)?,
                }),
            });
        }
        Ok(effects)
    }

    /// Draws for rows of the residual stream, a few at a time.
    fn draw(
        &mut self,
        requests: &[(usize, usize, DrawRequest<'_>)],
        observer: &mut dyn Observer<D>,
    ) -> Result<Vec<Draw>, ExecutorError> {
        let Executor { device, spec, trunk, workspace: w, .. } = self;
        let (hidden, width) = (spec.hidden_size as usize, spec.vocabulary_rows as usize);
        let head = trunk.head.as_ref().unwrap_or(&trunk.embed);
        let mut draws = Vec::with_capacity(requests.len());
        for part in requests.chunks(HEAD_ROWS) {
            let rows: Vec<usize> = part.iter().map(|request| request.0).collect();
            device.gather(&rows, hidden, &w.x, &mut w.chosen)?;
            device.norm(
                rows.len(),
                &w.chosen,
                &trunk.norm,
                spec.norm_epsilon as f32,
                &mut w.chosen_normed,
            )?;
            observer.observe(device, Point::FinalNorm, rows.len(), hidden, &w.chosen_normed)?;
            let product = Product { matrix: head, bias: None, out: &mut w.logits };
            device.multiply(rows.len(), &w.chosen_normed, &mut [product])?;
            observer.observe(device, Point::Logits, rows.len(), width, &w.logits)?;
            let asked: Vec<DrawRequest<'_>> = part.iter().map(|request| request.2).collect();
            draws.extend(device.draw(&w.logits, width, spec.selectable_vocabulary, &asked)?);
        }
        for ((_, lane, request), draw) in requests.iter().zip(&draws) {
            if draw.token.is_none() {
                return Err(ExecutorError::NothingToDraw {
                    lane: *lane,
                    position: request.position as usize,
                    reason: match request.allowed {
                        Some(_) => "the mask allows none, or the model gave no numbers",
                        None => "the model gave no numbers",
                    },
                });
            }
        }
        Ok(draws)
    }

    /// Makes a lane hold the first `kept` of its rows in the pass.
    fn commit<'l>(&mut self, lane: PassLane<'l, D>, kept: usize) -> Result<&'l mut Lane<D>, ExecutorError> {
        let PassLane { lane, effects, rows, .. } = lane;
        let Executor { device, trunk, spare, options, .. } = self;
        let layers = lane.layers.iter_mut().zip(&trunk.layers).zip(effects).enumerate();
        for (index, ((held, layer), effect)) in layers {
            let (next, state) = match (held, effect, &layer.mixer) {
                (LaneLayer::KeyValues(cache), _, _) => {
                    if kept < rows.len() {
                        device.truncate_key_values(cache, lane.position + kept)?;
                    }
                    continue;
                }
                (LaneLayer::Delta(state), Effect::State(next), _) => (next, state),
                (LaneLayer::Delta(state), Effect::Trace(trace), Mixer::Delta(delta)) => {
                    let mut next = match spare.states[index].pop() {
                        Some(next) => next,
                        None => device.delta_state(&delta.spec)?,
                    };
                    device.replay(&delta.spec, state, &trace.trace, kept, &mut next)?;
                    spare.traces[index].push(trace);
                    (next, state)
                }
                _ => continue,
            };
            let old = std::mem::replace(state, Arc::new(next));
            spare.keep(index, old, options.lanes);
        }
        lane.position += kept;
        Ok(lane)
    }

    /// Makes a lane hold what it held before the pass.
    fn take_back(&mut self, lane: PassLane<'_, D>) -> Result<(), ExecutorError> {
        let PassLane { lane, effects, .. } = lane;
        for (index, (held, effect)) in lane.layers.iter_mut().zip(effects).enumerate() {
            match (held, effect) {
                (LaneLayer::KeyValues(cache), _) => {
                    self.device.truncate_key_values(cache, lane.position)?;
                }
                (_, Effect::State(next)) => self.spare.keep(index, Arc::new(next), self.options.lanes),
                (_, Effect::Trace(trace)) => self.spare.traces[index].push(trace),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Which rows go next. Rows with drafts stay together, prompts may be cut.
fn next_pass<D: Device>(steps: &[Step<'_, D>], fed: &[usize], got: &[StepOutcome]) -> Vec<Share> {
    let mut room = PASS_ROWS;
    let mut shares = Vec::new();
    for (index, ((step, &from), got)) in steps.iter().zip(fed).zip(got).enumerate() {
        let left = step.tokens.len() - from;
        if left == 0 || room == 0 || got.cancelled || (step.drafts > 0 && left > room) {
            continue;
        }
        let count = left.min(room);
        room -= count;
        shares.push(Share { step: index, from, count });
    }
    shares
}
