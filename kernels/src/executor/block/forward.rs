//! What a block drafter computes.

use std::ops::Range;

use super::weights::{Layer, MixWeights};
use super::{
    AbsorbLane, BlockContext, BlockDrafter, BlockObserver, BlockPoint, DraftLane, ExecutorError, HEAD_ROWS,
    PASS_ROWS, TargetEnds,
};
use crate::device::{
    AttentionLane, BlockDevice, BlockLane, DeviceResult, DrawRequest, Mix, Product, SelectLane, Selector,
    Sight,
};

/// A lane's drafts with their probabilities.
pub type Drafts = Vec<(u32, f32)>;

impl<D: BlockDevice> BlockDrafter<'_, D> {
    /// Takes in the tapped states of committed tokens: rows of one state after
    /// the other, in the order of the drafter's taps. At most
    /// [`PASS_ROWS`] rows. Lanes are in row order.
    ///
    /// # Errors
    /// From the device; the contexts may then hold a part.
    pub fn absorb(
        &mut self,
        device: &mut D,
        lanes: &mut [AbsorbLane<'_, D>],
        taps: &D::Rows,
        observer: BlockObserver<'_, D>,
    ) -> Result<(), ExecutorError> {
        let Some(rows) = lanes.iter().map(|lane| lane.rows.end).max() else { return Ok(()) };
        let BlockDrafter { spec, weights, frequencies, workspace: w, .. } = self;
        let (hidden, epsilon) = (spec.hidden_size as usize, spec.norm_epsilon as f32);
        let fused = Product { matrix: &weights.fc, bias: None, out: &mut w.x };
        device.multiply(rows, taps, &mut [fused])?;
        device.norm(rows, &w.x, &weights.hidden_norm, epsilon, &mut w.normed)?;
        observer(device, BlockPoint::Fused, rows, hidden, &w.normed)?;
        let mut positions = vec![0; rows];
        for lane in lanes.iter() {
            for (row, position) in lane.rows.clone().zip(lane.context.tokens..) {
                positions[row] = position;
            }
        }
        device.rotary_angles(&positions, frequencies, &mut w.angles)?;
        for (index, (layer, facts)) in weights.layers.iter().zip(&spec.layers).enumerate() {
            device.multiply(
                rows,
                &w.normed,
                &mut [
                    Product { matrix: &layer.k, bias: None, out: &mut w.key },
                    Product { matrix: &layer.v, bias: None, out: &mut w.value },
                ],
            )?;
            let (heads, half) = (spec.key_value_heads, frequencies.len());
            device.norm_heads(rows, heads, &mut w.key, &layer.k_norm, epsilon)?;
            device.rotate(rows, heads, spec.head_size, half, &w.angles, &mut w.key)?;
            let mut caches: Vec<_> = lanes
                .iter_mut()
                .map(|lane| AttentionLane { rows: lane.rows.clone(), cache: &mut lane.context.layers[index] })
                .collect();
            device.append(&mut caches, &w.key, &w.value)?;
            for lane in lanes.iter_mut() {
                let tokens = lane.context.tokens + lane.rows.len();
                if let Some(window) = facts.window {
                    // The next block's first row sees the fewest positions further on.
                    let unseen = (tokens + 1).saturating_sub(window as usize);
                    device.forget(&mut lane.context.layers[index], unseen)?;
                }
            }
        }
        for lane in lanes {
            lane.context.tokens += lane.rows.len();
        }
        Ok(())
    }

    /// Drafts for some lanes, one block each.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for a number of drafts that no block holds;
    /// from the device.
    pub fn draft(
        &mut self,
        device: &mut D,
        target: &TargetEnds<'_, '_, D>,
        lanes: &[DraftLane<'_, D>],
        observer: BlockObserver<'_, D>,
    ) -> Result<Vec<Drafts>, ExecutorError> {
        if let Some(lane) = lanes.iter().find(|lane| lane.drafts == 0 || lane.drafts > self.most_drafts()) {
            return Err(ExecutorError::Invalid(format!(
                "{} drafts of a block of {} rows",
                lane.drafts, self.spec.block_size
            )));
        }
        let mut out = Vec::with_capacity(lanes.len());
        let mut rest = lanes;
        while !rest.is_empty() {
            let mut rows = 0;
            let count = rest.iter().take_while(|lane| {
                rows += lane.drafts + 1;
                rows <= PASS_ROWS
            });
            let (part, later) = rest.split_at(count.count());
            out.extend(self.blocks(device, target, part, observer)?);
            rest = later;
        }
        Ok(out)
    }

    /// Drafts for lanes whose blocks fit into one pass.
    fn blocks(
        &mut self,
        device: &mut D,
        target: &TargetEnds<'_, '_, D>,
        lanes: &[DraftLane<'_, D>],
        observer: BlockObserver<'_, D>,
    ) -> Result<Vec<Drafts>, ExecutorError> {
        let BlockDrafter { spec, weights, frequencies, workspace: w, .. } = self;
        let (hidden, epsilon) = (spec.hidden_size as usize, spec.norm_epsilon as f32);
        let mut tokens = Vec::new();
        let mut positions = Vec::new();
        let mut blocks: Vec<Range<usize>> = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let first = tokens.len();
            tokens.push(lane.anchor);
            tokens.resize(first + lane.drafts + 1, spec.mask_token);
            positions.extend((0..=lane.drafts).map(|offset| lane.context.tokens + offset));
            blocks.push(first..tokens.len());
        }
        let rows = tokens.len();
        device.embed(target.embed, &tokens, &mut w.x)?;
        if spec.embedding_scale != 1.0 {
            device.adjust(rows, hidden, &mut w.x, spec.embedding_scale as f32, None)?;
        }
        device.rotary_angles(&positions, frequencies, &mut w.angles)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let mut pass =
                Pass { device, drafter: &*spec, half: frequencies.len(), w, rows, blocks: &blocks };
            pass.attention(index, layer, lanes, observer)?;
            pass.feed_forward(layer)?;
            observer(device, BlockPoint::Layer(index), rows, hidden, &w.x)?;
        }
        device.norm(rows, &w.x, &weights.norm, epsilon, &mut w.normed)?;
        observer(device, BlockPoint::FinalNorm, rows, hidden, &w.normed)?;
        let mut out = Vec::with_capacity(lanes.len());
        let mut from = 0;
        while from < lanes.len() {
            // The masks of as many lanes as go through the head together, at least of one.
            let mut slots = lanes[from].drafts;
            let mut to = from + 1;
            while to < lanes.len() && slots + lanes[to].drafts <= HEAD_ROWS {
                slots += lanes[to].drafts;
                to += 1;
            }
            out.extend(self.propose(device, target, &lanes[from..to], &blocks[from..to], observer)?);
            from = to;
        }
        Ok(out)
    }

    /// From final states to drafts.
    fn propose(
        &mut self,
        device: &mut D,
        target: &TargetEnds<'_, '_, D>,
        lanes: &[DraftLane<'_, D>],
        blocks: &[Range<usize>],
        observer: BlockObserver<'_, D>,
    ) -> Result<Vec<Drafts>, ExecutorError> {
        let BlockDrafter { spec, weights, workspace: w, .. } = self;
        let (hidden, width) = (spec.hidden_size as usize, spec.vocabulary_rows as usize);
        // Row 0 of a block is what is known; it proposes nothing.
        let masks: Vec<usize> = blocks.iter().flat_map(|block| block.start + 1..block.end).collect();
        device.gather(&masks, hidden, &w.normed, &mut w.chosen)?;
        let head = Product { matrix: target.head, bias: None, out: &mut w.logits };
        device.multiply(masks.len(), &w.chosen, &mut [head])?;
        if spec.output_multiplier != 1.0 || spec.logit_softcap.is_some() {
            let cap = spec.logit_softcap.map(|cap| cap as f32);
            device.adjust(masks.len(), width, &mut w.logits, spec.output_multiplier as f32, cap)?;
        }
        observer(device, BlockPoint::Logits, masks.len(), width, &w.logits)?;
        let (Some(selector), Some(refinement)) = (&weights.selector, spec.refinement) else {
            return draw_each(device, target, lanes, &w.logits, width);
        };
        let rank = refinement.selector_rank as usize;
        let projected = Product { matrix: &selector.hidden, bias: None, out: &mut w.projected };
        device.multiply(masks.len(), &w.chosen, &mut [projected])?;
        observer(device, BlockPoint::Projected, masks.len(), rank, &w.projected)?;
        let selector = Selector {
            predecessor: &selector.predecessor,
            successor: &selector.successor,
            rank,
            candidates: refinement.selector_candidates as usize,
        };
        let mut first = 0;
        let walks: Vec<SelectLane> = lanes
            .iter()
            .map(|lane| {
                first += lane.drafts;
                SelectLane {
                    rows: first - lane.drafts..first,
                    anchor: lane.anchor,
                    sampling: lane.sampling,
                    position: lane.context.tokens as u64 + 1,
                }
            })
            .collect();
        Ok(device.select(&walks, &selector, &w.logits, width, target.selectable, &w.projected)?)
    }
}

/// Draws every slot by itself.
fn draw_each<D: BlockDevice>(
    device: &mut D,
    target: &TargetEnds<'_, '_, D>,
    lanes: &[DraftLane<'_, D>],
    logits: &D::Rows,
    width: usize,
) -> Result<Vec<Drafts>, ExecutorError> {
    let requests: Vec<DrawRequest<'_>> = lanes
        .iter()
        .flat_map(|lane| {
            (0..lane.drafts).map(|slot| DrawRequest {
                sampling: lane.sampling,
                position: (lane.context.tokens + 1 + slot) as u64,
                allowed: None,
                log_probabilities: Some(0),
            })
        })
        .collect();
    let mut draws = device.draw(logits, width, target.selectable, &requests)?.into_iter();
    let own = |lane: &DraftLane<'_, D>| {
        let draws: Vec<_> = draws.by_ref().take(lane.drafts).collect();
        // A block ends where there is nothing to draw.
        draws
            .into_iter()
            .map_while(|draw| Some((draw.token?, draw.log_probabilities.first()?.1.exp())))
            .collect()
    };
    Ok(lanes.iter().map(own).collect())
}

/// Blocks on their way through the layers.
struct Pass<'a, D: BlockDevice> {
    device: &'a mut D,
    drafter: &'a tensorfold_plugin_api::drafter_spec::DrafterSpec,
    half: usize,
    w: &'a mut super::Workspace<D>,
    rows: usize,
    blocks: &'a [Range<usize>],
}

impl<D: BlockDevice> Pass<'_, D> {
    fn attention(
        &mut self,
        index: usize,
        layer: &Layer<D::Matrix<'_>, D::Vector>,
        lanes: &[DraftLane<'_, D>],
        observer: BlockObserver<'_, D>,
    ) -> DeviceResult {
        let spec = self.drafter;
        let (rows, hidden, epsilon) = (self.rows, spec.hidden_size as usize, spec.norm_epsilon as f32);
        let mixes = layer.mixes.as_ref().map(|mixes| &mixes[0]);
        self.device.norm(rows, &self.w.x, &layer.input_norm, epsilon, &mut self.w.normed)?;
        observer(self.device, BlockPoint::InputNorm(index), rows, hidden, &self.w.normed)?;
        self.mix_before(mixes)?;
        let (half, Pass { device, w, blocks, .. }) = (self.half, &mut *self);
        let input = if mixes.is_some() { &w.mixed } else { &w.normed };
        observer(device, BlockPoint::AttentionInput(index), rows, hidden, input)?;
        device.multiply(
            rows,
            input,
            &mut [
                Product { matrix: &layer.q, bias: None, out: &mut w.query },
                Product { matrix: &layer.k, bias: None, out: &mut w.key },
                Product { matrix: &layer.v, bias: None, out: &mut w.value },
            ],
        )?;
        device.norm_heads(rows, spec.heads, &mut w.query, &layer.q_norm, epsilon)?;
        device.norm_heads(rows, spec.key_value_heads, &mut w.key, &layer.k_norm, epsilon)?;
        device.rotate(rows, spec.heads, spec.head_size, half, &w.angles, &mut w.query)?;
        device.rotate(rows, spec.key_value_heads, spec.head_size, half, &w.angles, &mut w.key)?;
        let facts = spec.layers[index];
        let sight = Sight { window: facts.window.map(|window| window as usize), causal: facts.causal };
        let caches: Vec<BlockLane<'_, D>> = lanes
            .iter()
            .zip(blocks.iter())
            .map(|(lane, block)| BlockLane { rows: block.clone(), cache: cache(lane.context, index) })
            .collect();
        device.attend_block(&caches, sight, &w.query, &w.key, &w.value, &mut w.attended)?;
        let out = Product { matrix: &layer.o, bias: None, out: &mut w.joined };
        device.multiply(rows, &w.attended, &mut [out])?;
        observer(device, BlockPoint::Attention(index), rows, hidden, &w.joined)?;
        self.join(mixes)?;
        observer(self.device, BlockPoint::Middle(index), rows, hidden, &self.w.x)
    }

    fn feed_forward(&mut self, layer: &Layer<D::Matrix<'_>, D::Vector>) -> DeviceResult {
        let spec = self.drafter;
        let (rows, epsilon) = (self.rows, spec.norm_epsilon as f32);
        let mixes = layer.mixes.as_ref().map(|mixes| &mixes[1]);
        self.device.norm(rows, &self.w.x, &layer.post_norm, epsilon, &mut self.w.normed)?;
        self.mix_before(mixes)?;
        let Pass { device, w, .. } = &mut *self;
        let input = if mixes.is_some() { &w.mixed } else { &w.normed };
        device.multiply(
            rows,
            input,
            &mut [
                Product { matrix: &layer.gate, bias: None, out: &mut w.gate },
                Product { matrix: &layer.up, bias: None, out: &mut w.up },
            ],
        )?;
        device.swiglu(rows, spec.intermediate_size as usize, &mut w.gate, &w.up)?;
        let down = Product { matrix: &layer.down, bias: None, out: &mut w.joined };
        device.multiply(rows, &w.gate, &mut [down])?;
        self.join(mixes)
    }

    /// Mixes the normed rows, whose kernels, before and after the half, depend on them.
    fn mix_before(&mut self, mixes: Option<&MixWeights<D::Matrix<'_>, D::Vector>>) -> DeviceResult {
        let Some(mixes) = mixes else { return Ok(()) };
        let shape = self.shape(0);
        let Pass { device, drafter, w, rows, blocks, .. } = self;
        let added = Product { matrix: &mixes.projection, bias: None, out: &mut w.added };
        device.multiply(*rows, &w.normed, &mut [added])?;
        let hidden = drafter.hidden_size as usize;
        device.mix(blocks, hidden, shape, &w.normed, &w.added, &mixes.base, &mut w.mixed)
    }

    /// Adds what a half gave to the residual stream, mixed.
    fn join(&mut self, mixes: Option<&MixWeights<D::Matrix<'_>, D::Vector>>) -> DeviceResult {
        let shape = self.shape(1);
        let Pass { device, drafter, w, rows, blocks, .. } = self;
        let hidden = drafter.hidden_size as usize;
        let Some(mixes) = mixes else { return device.add(*rows, hidden, &mut w.x, &w.joined) };
        device.mix(blocks, hidden, shape, &w.joined, &w.added, &mixes.base, &mut w.mixed)?;
        device.add(*rows, hidden, &mut w.x, &w.mixed)
    }

    fn shape(&self, side: usize) -> Mix {
        let (kernel, group) = self.drafter.refinement.map_or((1, 1), |refinement| {
            (refinement.convolution_kernel as usize, refinement.convolution_group as usize)
        });
        Mix { kernel, group, side }
    }
}

fn cache<D: BlockDevice>(context: &BlockContext<D>, layer: usize) -> &D::KeyValues {
    &context.layers[layer]
}
