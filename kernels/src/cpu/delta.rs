//! Gated DeltaNet: the convolution and the recurrence, with rollback.
//!
//! A lane's state is what is left of its text: the last rows before the
//! convolution, and per value head a matrix `S` of `[value, key]`. Row by row
//! `S` decays, is read with the key, corrected by an outer product, and read
//! with the query. There is one way to do that, row after row, whatever the
//! number of rows; so every split of a text into calls gives the same bits.
//!
//! A state is read and never written to: rows either leave a new state in
//! another place, or, when some of them may have to be taken back, leave a
//! [`DeltaTrace`] of keys, corrections and decays. [`replay`] then repeats for
//! the rows that stay what the recurrence did to the state: the same multiply
//! and the same fused multiply-add in the same order.

#![expect(clippy::needless_range_loop, reason = "loops over registers by index stay parallel to each other")]

use std::ops::Range;

use tensorfold_plugin_api::model_spec::GatedDeltaSpec;

use super::pool::Pool;
use super::simd::{InstructionSet, Kernel, LANES, Simd};
use super::tiles::{Tile, Tiles};

/// Multiply-adds from which on other threads are woken.
const PARALLEL_WORK: usize = 1 << 19;
/// Channels that one task convolves.
const TASK_CHANNELS: usize = 512;

/// Sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    key_heads: usize,
    value_heads: usize,
    key_size: usize,
    value_size: usize,
    taps: usize,
}

impl Shape {
    pub(crate) fn new(spec: &GatedDeltaSpec) -> Shape {
        Shape {
            key_heads: spec.key_heads as usize,
            value_heads: spec.value_heads as usize,
            key_size: spec.key_head_size as usize,
            value_size: spec.value_head_size as usize,
            taps: spec.convolution_kernel as usize,
        }
    }

    /// Width of the queries, and of the keys.
    fn keys(self) -> usize {
        self.key_heads * self.key_size
    }

    fn values(self) -> usize {
        self.value_heads * self.value_size
    }

    fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    fn window(self) -> usize {
        (self.taps - 1) * self.channels()
    }
}

/// What a lane keeps of its text in one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaState {
    /// The last rows before the convolution, `[kernel - 1, channels]`.
    window: Vec<f32>,
    /// `[value_heads, value_size, key_size]`.
    memory: Vec<f32>,
}

impl DeltaState {
    pub(crate) fn new(shape: Shape) -> DeltaState {
        DeltaState { window: vec![0.0; shape.window()], memory: vec![0.0; shape.values() * shape.key_size] }
    }

    /// The last rows before the convolution, `[kernel - 1, channels]`.
    pub fn window(&self) -> &[f32] {
        &self.window
    }

    /// `[value_heads, value_head_size, key_head_size]`.
    pub fn memory(&self) -> &[f32] {
        &self.memory
    }

    /// Replaces the matrices.
    ///
    /// # Panics
    /// When their number of floats is another.
    pub fn set_memory(&mut self, memory: &[f32]) {
        self.memory.copy_from_slice(memory);
    }
}

/// What is needed to put some rows into a state later.
#[derive(Clone, Debug)]
pub struct DeltaTrace {
    /// Rows before the convolution, `[rows, channels]`.
    inputs: Vec<f32>,
    /// Normalised keys, `[rows, key_heads, key_size]`.
    keys: Vec<f32>,
    /// Corrections `beta (v - S k)`, `[rows, value_heads, value_size]`.
    corrections: Vec<f32>,
    /// Decays, `[rows, value_heads]`.
    decays: Vec<f32>,
}

impl DeltaTrace {
    pub(crate) fn new(shape: Shape, rows: usize) -> DeltaTrace {
        DeltaTrace {
            inputs: vec![0.0; rows * shape.channels()],
            keys: vec![0.0; rows * shape.keys()],
            corrections: vec![0.0; rows * shape.values()],
            decays: vec![0.0; rows * shape.value_heads],
        }
    }
}

/// Where the effect of a lane's rows goes.
pub(crate) enum Target<'a> {
    State(&'a mut DeltaState),
    Trace(&'a mut DeltaTrace),
}

/// One lane's rows.
pub(crate) struct Lane<'a> {
    pub(crate) rows: Range<usize>,
    pub(crate) state: &'a DeltaState,
    pub(crate) target: Target<'a>,
}

/// Cuts `data` into the lanes' rows.
fn by_lane<'d>(mut data: &'d mut [f32], lanes: &[Lane<'_>], width: usize) -> Vec<&'d mut [f32]> {
    let mut parts = Vec::new();
    let mut at = 0;
    for lane in lanes {
        let (_, rest) = data.split_at_mut((lane.rows.start - at) * width);
        let (part, rest) = rest.split_at_mut(lane.rows.len() * width);
        (data, at) = (rest, lane.rows.end);
        parts.push(part);
    }
    parts
}

/// Convolves each channel over the rows of each lane, then `silu`.
///
/// `taps` is `[kernel, channels]`; lanes are in the order of their rows.
pub(crate) fn convolve(
    set: InstructionSet,
    pool: &mut Pool,
    shape: Shape,
    lanes: &mut [Lane<'_>],
    inputs: &[f32],
    taps: &[f32],
    out: &mut [f32],
) {
    let channels = shape.channels();
    for lane in lanes.iter_mut() {
        let rows = &inputs[lane.rows.start * channels..lane.rows.end * channels];
        match &mut lane.target {
            Target::State(next) => slide(shape, &lane.state.window, rows, &mut next.window),
            Target::Trace(trace) => trace.inputs[..rows.len()].copy_from_slice(rows),
        }
    }
    let parts = by_lane(out, lanes, channels);
    let jobs: Vec<_> = lanes
        .iter()
        .zip(parts)
        .map(|(lane, out)| {
            let rows = lane.rows.len();
            (lane, Tiles::new(out, rows, channels, rows.max(1), TASK_CHANNELS))
        })
        .collect();
    let across = channels.div_ceil(TASK_CHANNELS);
    let rows: usize = lanes.iter().map(|lane| lane.rows.len()).sum();
    pool.run(rows * channels * 8 >= PARALLEL_WORK, jobs.len() * across, |task| {
        let ((lane, tiles), part) = (&jobs[task / across], task % across);
        if part >= tiles.count() {
            return;
        }
        set.run(Convolve {
            inputs: &inputs[lane.rows.start * channels..lane.rows.end * channels],
            window: &lane.state.window,
            taps,
            channels,
            first: part * TASK_CHANNELS,
            out: &mut tiles.take(part),
        });
    });
}

/// The window after `rows`: the last rows of the old window and `rows`.
fn slide(shape: Shape, old: &[f32], rows: &[f32], new: &mut [f32]) {
    let kept = old.len().saturating_sub(rows.len());
    new[..kept].copy_from_slice(&old[old.len() - kept..]);
    let fresh = shape.window() - kept;
    new[kept..].copy_from_slice(&rows[rows.len() - fresh..]);
}

struct Convolve<'a, 'o> {
    inputs: &'a [f32],
    window: &'a [f32],
    taps: &'a [f32],
    channels: usize,
    first: usize,
    out: &'a mut Tile<'o>,
}

impl Kernel for Convolve<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (rows, taps) = (self.inputs.len() / self.channels, self.taps.len() / self.channels);
        for row in 0..rows {
            let out = self.out.row(row).as_chunks_mut::<LANES>().0;
            for (vector, out) in out.iter_mut().enumerate() {
                let channel = self.first + vector * LANES;
                let mut sum = s.zero();
                for tap in 0..taps {
                    let source = row + tap;
                    let x = if source < taps - 1 {
                        &self.window[source * self.channels + channel..]
                    } else {
                        &self.inputs[(source + 1 - taps) * self.channels + channel..]
                    };
                    let x = x.first_chunk().expect("channels are a multiple of sixteen");
                    let weight = self.taps[tap * self.channels + channel..]
                        .first_chunk()
                        .expect("channels are a multiple of sixteen");
                    sum = s.fma(s.load(weight), s.load(x), sum);
                }
                s.store(s.silu(sum), out);
            }
        }
    }
}

/// Log decay of a row and head: `-exp(a_log) softplus(a + dt_bias)`.
pub(crate) fn log_decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    let x = a + dt_bias;
    // Beyond this, the exponential swallows the one.
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    -a_log.exp() * softplus
}

/// `1 / (1 + e^-b)`.
pub(crate) fn write_strength(b: f32) -> f32 {
    1.0 / (1.0 + (-b).exp())
}

/// What the recurrence reads: convolved and normalised queries and keys and
/// values, `[rows, channels]`; decays and strengths, `[rows, value_heads]`.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) mixed: &'a [f32],
    pub(crate) decays: &'a [f32],
    pub(crate) strengths: &'a [f32],
}

/// Runs the recurrence over the rows of each lane; `out` is
/// `[rows, value_heads, value_size]`.
pub(crate) fn recur(
    set: InstructionSet,
    pool: &mut Pool,
    shape: Shape,
    lanes: &mut [Lane<'_>],
    inputs: Inputs<'_>,
    out: &mut [f32],
) {
    let (channels, heads, size) = (shape.channels(), shape.value_heads, shape.value_size);
    for lane in lanes.iter_mut() {
        if let Target::Trace(trace) = &mut lane.target {
            let first = lane.rows.start;
            for row in 0..lane.rows.len() {
                let keys = &inputs.mixed[(first + row) * channels + shape.keys()..][..shape.keys()];
                trace.keys[row * shape.keys()..][..shape.keys()].copy_from_slice(keys);
            }
            let decays = &inputs.decays[first * heads..lane.rows.end * heads];
            trace.decays[..decays.len()].copy_from_slice(decays);
        }
    }
    let parts = by_lane(out, lanes, shape.values());
    let jobs: Vec<_> = lanes
        .iter_mut()
        .zip(parts)
        .map(|(lane, out)| {
            let rows = lane.rows.len();
            let out = Tiles::new(out, rows, shape.values(), rows.max(1), size);
            let memory = size * shape.key_size;
            let (next, corrections) = match &mut lane.target {
                Target::State(next) => (Some(Tiles::new(&mut next.memory, heads, memory, 1, memory)), None),
                Target::Trace(trace) => {
                    (None, Some(Tiles::new(&mut trace.corrections, rows, shape.values(), rows.max(1), size)))
                }
            };
            (lane.rows.clone(), lane.state, out, next, corrections)
        })
        .collect();
    let rows: usize = jobs.iter().map(|job| job.0.len()).sum();
    let work = rows * shape.values() * shape.key_size * 4;
    pool.run(work >= PARALLEL_WORK, jobs.len() * heads, |task| {
        let ((rows, state, out, next, corrections), head) = (&jobs[task / heads], task % heads);
        if rows.is_empty() {
            return;
        }
        set.run(Recur {
            shape,
            head,
            rows: rows.clone(),
            inputs,
            memory: &state.memory[head * size * shape.key_size..][..size * shape.key_size],
            next: next.as_ref().map(|tiles| tiles.take(head)),
            corrections: corrections.as_ref().map(|tiles| tiles.take(head)),
            out: out.take(head),
        });
    });
}

/// One value head of one lane.
struct Recur<'a, 'o> {
    shape: Shape,
    head: usize,
    rows: Range<usize>,
    inputs: Inputs<'a>,
    memory: &'a [f32],
    next: Option<Tile<'o>>,
    corrections: Option<Tile<'o>>,
    out: Tile<'o>,
}

impl Kernel for Recur<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        // A few rows of `S` stay in registers over all rows of the text.
        let mut value = 0;
        while value < self.shape.value_size {
            value += match self.shape.key_size / LANES {
                1 => recur::<S, 1, 4>(s, &mut self, value),
                2 => recur::<S, 2, 4>(s, &mut self, value),
                4 => recur::<S, 4, 4>(s, &mut self, value),
                8 => recur::<S, 8, 2>(s, &mut self, value),
                _ => recur::<S, 16, 1>(s, &mut self, value),
            };
        }

        /// `N` rows of `S`, of `V` vectors each; returns `N`.
        #[inline(always)]
        fn recur<S: Simd, const V: usize, const N: usize>(
            s: S,
            job: &mut Recur<'_, '_>,
            value: usize,
        ) -> usize {
            let shape = job.shape;
            let key_head = job.head / (shape.value_heads / shape.key_heads);
            let mut memory = [[s.zero(); V]; N];
            for n in 0..N {
                let row = job.memory[(value + n) * V * LANES..][..V * LANES].as_chunks().0;
                for v in 0..V {
                    memory[n][v] = s.load(&row[v]);
                }
            }
            for row in 0..job.rows.len() {
                let at = job.rows.start + row;
                let mixed = &job.inputs.mixed[at * shape.channels()..][..shape.channels()];
                let query = mixed[key_head * V * LANES..][..V * LANES].as_chunks().0;
                let key = mixed[shape.keys() + key_head * V * LANES..][..V * LANES].as_chunks().0;
                let target = &mixed[2 * shape.keys() + job.head * shape.value_size + value..][..N];
                let decay = s.splat(job.inputs.decays[at * shape.value_heads + job.head]);
                let strength = job.inputs.strengths[at * shape.value_heads + job.head];
                let mut read = [s.zero(); N];
                for v in 0..V {
                    let key = s.load(&key[v]);
                    for n in 0..N {
                        memory[n][v] = s.mul(memory[n][v], decay);
                        read[n] = s.fma(memory[n][v], key, read[n]);
                    }
                }
                let mut corrections = [0.0; N];
                let mut spread = [s.zero(); N];
                for n in 0..N {
                    corrections[n] = strength * (target[n] - s.sum(read[n]));
                    spread[n] = s.splat(corrections[n]);
                }
                let mut answer = [s.zero(); N];
                for v in 0..V {
                    let (key, query) = (s.load(&key[v]), s.load(&query[v]));
                    for n in 0..N {
                        memory[n][v] = s.fma(spread[n], key, memory[n][v]);
                        answer[n] = s.fma(memory[n][v], query, answer[n]);
                    }
                }
                let out = &mut job.out.row(row)[value..value + N];
                for n in 0..N {
                    out[n] = s.sum(answer[n]);
                }
                if let Some(trace) = &mut job.corrections {
                    trace.row(row)[value..value + N].copy_from_slice(&corrections);
                }
            }
            if let Some(next) = &mut job.next {
                for n in 0..N {
                    let row = next.row(0)[(value + n) * V * LANES..][..V * LANES].as_chunks_mut().0;
                    for v in 0..V {
                        s.store(memory[n][v], &mut row[v]);
                    }
                }
            }
            N
        }
    }
}

/// Puts the first `rows` rows of a trace into a state: `next` becomes what
/// `state` would be had only they been fed.
pub(crate) fn replay(
    set: InstructionSet,
    pool: &mut Pool,
    shape: Shape,
    state: &DeltaState,
    trace: &DeltaTrace,
    rows: usize,
    next: &mut DeltaState,
) {
    slide(shape, &state.window, &trace.inputs[..rows * shape.channels()], &mut next.window);
    let head_floats = shape.value_size * shape.key_size;
    let tiles = Tiles::new(&mut next.memory, shape.value_heads, head_floats, 1, head_floats);
    let work = rows * shape.values() * shape.key_size * 2;
    pool.run(work >= PARALLEL_WORK, shape.value_heads, |head| {
        let memory = &state.memory[head * head_floats..][..head_floats];
        set.run(Replay { shape, head, rows, trace, memory, next: tiles.take(head) });
    });
}

struct Replay<'a, 'o> {
    shape: Shape,
    head: usize,
    rows: usize,
    trace: &'a DeltaTrace,
    memory: &'a [f32],
    next: Tile<'o>,
}

impl Kernel for Replay<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let shape = self.shape;
        let key_head = self.head / (shape.value_heads / shape.key_heads);
        let next = self.next.row(0);
        next.copy_from_slice(self.memory);
        for row in 0..self.rows {
            let key = &self.trace.keys[row * shape.keys() + key_head * shape.key_size..][..shape.key_size];
            let decay = s.splat(self.trace.decays[row * shape.value_heads + self.head]);
            let corrections = &self.trace.corrections[row * shape.values() + self.head * shape.value_size..];
            for (memory, &correction) in next.chunks_exact_mut(shape.key_size).zip(corrections) {
                let correction = s.splat(correction);
                for (memory, key) in memory.as_chunks_mut().0.iter_mut().zip(key.as_chunks().0) {
                    let decayed = s.mul(s.load(memory), decay);
                    s.store(s.fma(correction, s.load(key), decayed), memory);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { key_heads: 2, value_heads: 4, key_size: 32, value_size: 16, taps: 4 };

    struct Text {
        inputs: Vec<f32>,
        taps: Vec<f32>,
        decays: Vec<f32>,
        strengths: Vec<f32>,
        rows: usize,
    }

    impl Text {
        fn new(rows: usize) -> Text {
            let wave = |count: usize, step: f32| (0..count).map(move |i| (i as f32 * step).sin());
            Text {
                inputs: wave(rows * SHAPE.channels(), 0.77).collect(),
                taps: wave(4 * SHAPE.channels(), 1.3).collect(),
                decays: wave(rows * 4, 0.5).map(|x| 0.75 + 0.2 * x).collect(),
                strengths: wave(rows * 4, 0.9).map(|x| 0.5 + 0.4 * x).collect(),
                rows,
            }
        }

        /// Feeds some rows to a lane.
        fn feed(
            &self,
            set: InstructionSet,
            threads: usize,
            rows: Range<usize>,
            state: &DeltaState,
            target: Target<'_>,
        ) -> Vec<f32> {
            let mut pool = Pool::new(threads).unwrap();
            let cut = |data: &[f32], width: usize| data[rows.start * width..rows.end * width].to_vec();
            let mut lanes = [Lane { rows: 0..rows.len(), state, target }];
            let inputs = cut(&self.inputs, SHAPE.channels());
            let mut mixed = vec![0.0; inputs.len()];
            convolve(set, &mut pool, SHAPE, &mut lanes, &inputs, &self.taps, &mut mixed);
            let (decays, strengths) = (cut(&self.decays, 4), cut(&self.strengths, 4));
            let inputs = Inputs { mixed: &mixed, decays: &decays, strengths: &strengths };
            let mut out = vec![0.0; rows.len() * SHAPE.values()];
            recur(set, &mut pool, SHAPE, &mut lanes, inputs, &mut out);
            out
        }

        fn all(&self, set: InstructionSet, threads: usize, step: usize) -> (Vec<f32>, DeltaState) {
            let mut state = DeltaState::new(SHAPE);
            let mut out = Vec::new();
            let mut row = 0;
            while row < self.rows {
                let end = (row + step).min(self.rows);
                let mut next = DeltaState::new(SHAPE);
                out.extend(self.feed(set, threads, row..end, &state, Target::State(&mut next)));
                (state, row) = (next, end);
            }
            (out, state)
        }
    }

    #[test]
    fn no_split_of_rows_or_threads_changes_a_bit() {
        let text = Text::new(if cfg!(miri) { 9 } else { 70 });
        let expected = text.all(InstructionSet::best(), 1, text.rows);
        for step in [1, 2, 3, 5, 64] {
            for threads in [1, 3] {
                assert!(text.all(InstructionSet::best(), threads, step) == expected, "{step} {threads}");
            }
        }
        for set in InstructionSet::available() {
            assert!(text.all(set, 1, 16) == expected, "{set:?}");
        }
    }

    #[test]
    fn a_replay_of_any_number_of_rows_leaves_the_state_of_feeding_only_them() {
        let text = Text::new(20);
        let set = InstructionSet::best();
        let mut start = DeltaState::new(SHAPE);
        text.feed(set, 1, 0..5, &DeltaState::new(SHAPE), Target::State(&mut start));
        let mut trace = DeltaTrace::new(SHAPE, 8);
        let untouched = start.clone();
        let verified = text.feed(set, 2, 5..13, &start, Target::Trace(&mut trace));
        assert!(start == untouched, "verifying writes nothing");
        for kept in 1..=8 {
            let mut fed = DeltaState::new(SHAPE);
            let out = text.feed(set, 1, 5..5 + kept, &start, Target::State(&mut fed));
            assert!(out[..] == verified[..kept * SHAPE.values()]);
            let mut replayed = DeltaState::new(SHAPE);
            replay(set, &mut Pool::new(2).unwrap(), SHAPE, &start, &trace, kept, &mut replayed);
            assert!(replayed == fed, "{kept} rows");
            // The check can fail: another count gives another state.
            replay(set, &mut Pool::new(1).unwrap(), SHAPE, &start, &trace, kept % 8 + 1, &mut replayed);
            assert!(replayed != fed);
        }
    }

    #[test]
    fn lanes_of_one_call_do_not_see_each_other() {
        let text = Text::new(12);
        let set = InstructionSet::best();
        let fresh = DeltaState::new(SHAPE);
        let mut pool = Pool::new(2).unwrap();
        let mut next = [fresh.clone(), fresh.clone()];
        let [a, b] = &mut next;
        let mut lanes = [
            Lane { rows: 0..5, state: &fresh, target: Target::State(a) },
            Lane { rows: 5..12, state: &fresh, target: Target::State(b) },
        ];
        let mut mixed = vec![0.0; 12 * SHAPE.channels()];
        convolve(set, &mut pool, SHAPE, &mut lanes, &text.inputs, &text.taps, &mut mixed);
        let inputs = Inputs { mixed: &mixed, decays: &text.decays, strengths: &text.strengths };
        let mut out = vec![0.0; 12 * SHAPE.values()];
        recur(set, &mut pool, SHAPE, &mut lanes, inputs, &mut out);
        let mut alone = fresh.clone();
        let expected = text.feed(set, 1, 5..12, &fresh, Target::State(&mut alone));
        assert!(out[5 * SHAPE.values()..] == expected && next[1] == alone);
    }
}
