//! The CPU device: `f32` activations, weights used where they are mapped.
//!
//! Guarantees the contract of [`crate::device`] by bits, and more: results
//! depend neither on the number of threads nor on the instruction set.

mod attention;
mod block;
mod delta;
mod embed;
mod experts;
mod matmul;
mod pool;
mod rowwise;
mod select;
mod simd;
mod tiles;

use tensorfold_plugin_api::model_spec::{AttentionSpec, GatedDeltaSpec};
use tensorfold_plugin_api::sampling::{self, AllowedTokens};

pub use attention::KeyValues;
pub use delta::{DeltaState, DeltaTrace};
pub use experts::Routes;
pub use matmul::Activations;
pub use simd::InstructionSet;

use crate::device::{
    AttentionLane, DeltaInputs, DeltaLane, DeltaTarget, Device, DeviceError, DeviceLimits, DeviceResult,
    Draw, DrawRequest, ExpertInput, ExpertProduct, Product,
};
use crate::weights::MatrixView;
use attention::Heads;
use delta::Shape;
use matmul::Arithmetic;
use pool::Pool;
use tiles::Tiles;

/// Floats from which on other threads are woken for row-wise work.
const PARALLEL_FLOATS: usize = 1 << 16;

/// The machine's processors.
pub struct CpuDevice {
    set: InstructionSet,
    activations: Activations,
    pool: Pool,
}

impl CpuDevice {
    /// The shapes that every CPU device computes.
    pub const LIMITS: DeviceLimits =
        DeviceLimits { width_multiple: simd::LANES as u32, delta_key_sizes: &[16, 32, 64, 128, 256] };

    /// A device of `threads` threads, the calling one included, with the best
    /// instruction set of the machine.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<CpuDevice> {
        CpuDevice::with_instruction_set(threads, InstructionSet::best())
    }

    /// As [`CpuDevice::new`], with an instruction set of choice. One that the
    /// machine lacks is replaced by portable code.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn with_instruction_set(threads: usize, set: InstructionSet) -> std::io::Result<CpuDevice> {
        Ok(CpuDevice { set, activations: Activations::F32, pool: Pool::new(threads)? })
    }

    /// The same device, with products that take activations as `activations`.
    #[must_use]
    pub fn with_activations(self, activations: Activations) -> CpuDevice {
        CpuDevice { activations, ..self }
    }

    /// What products take activations as.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic { set: self.set, activations: self.activations }
    }

    /// Threads, the calling one included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set in use.
    pub fn instruction_set(&self) -> InstructionSet {
        self.set
    }

    /// Applies `work` to slices of whole rows, side by side when there are many.
    fn by_rows(
        &mut self,
        rows: usize,
        width: usize,
        x: &mut [f32],
        work: impl Fn(InstructionSet, std::ops::Range<usize>, &mut [f32]) + Sync,
    ) {
        let set = self.set;
        if rows * width < PARALLEL_FLOATS || self.pool.threads() == 1 {
            work(set, 0..rows, &mut x[..rows * width]);
            return;
        }
        const TASK_ROWS: usize = 8;
        // One tile row holds eight rows of activations.
        let tail = rows % TASK_ROWS;
        let (whole, rest) = x[..rows * width].split_at_mut((rows - tail) * width);
        let tiles = Tiles::new(whole, rows / TASK_ROWS, TASK_ROWS * width, 1, TASK_ROWS * width);
        self.pool.run(true, tiles.count(), |task| {
            work(set, task * TASK_ROWS..(task + 1) * TASK_ROWS, tiles.take(task).row(0));
        });
        work(set, rows - tail..rows, rest);
    }
}

fn heads(spec: &AttentionSpec) -> Heads {
    Heads { queries: spec.heads as usize, keys: spec.key_value_heads as usize, size: spec.head_size as usize }
}

fn delta_lanes<'a>(lanes: &'a mut [DeltaLane<'_, CpuDevice>]) -> Vec<delta::Lane<'a>> {
    lanes
        .iter_mut()
        .map(|lane| delta::Lane {
            rows: lane.rows.clone(),
            state: lane.state,
            target: match &mut lane.target {
                DeltaTarget::State(state) => delta::Target::State(state),
                DeltaTarget::Trace(trace) => delta::Target::Trace(trace),
            },
        })
        .collect()
}

/// A zeroed buffer, or an error instead of an abort when memory is short.
fn allocate(floats: usize) -> DeviceResult<Vec<f32>> {
    let mut buffer = Vec::new();
    buffer
        .try_reserve_exact(floats)
        .map_err(|_| DeviceError::OutOfMemory(format!("{} bytes could not be allocated", floats * 4)))?;
    buffer.resize(floats, 0.0);
    Ok(buffer)
}

impl Device for CpuDevice {
    type Matrix<'w> = MatrixView<'w>;
    type Vector = Vec<f32>;
    type Rows = Vec<f32>;
    type KeyValues = KeyValues;
    type DeltaState = DeltaState;
    type DeltaTrace = DeltaTrace;
    type Experts<'w> = Vec<MatrixView<'w>>;
    type Routes = Routes;

    fn limits(&self) -> DeviceLimits {
        CpuDevice::LIMITS
    }

    fn matrix<'w>(&mut self, view: MatrixView<'w>) -> DeviceResult<MatrixView<'w>> {
        Ok(view)
    }

    fn vector(&mut self, values: &[f32]) -> DeviceResult<Vec<f32>> {
        Ok(values.to_vec())
    }

    fn rows(&mut self, rows: usize, width: usize) -> DeviceResult<Vec<f32>> {
        allocate(rows * width)
    }

    fn key_values(&mut self, spec: &AttentionSpec) -> DeviceResult<KeyValues> {
        Ok(KeyValues::new(heads(spec)))
    }

    fn fork_key_values(&mut self, cache: &KeyValues) -> DeviceResult<KeyValues> {
        Ok(cache.clone())
    }

    fn truncate_key_values(&mut self, cache: &mut KeyValues, tokens: usize) -> DeviceResult {
        cache.truncate(tokens);
        Ok(())
    }

    fn delta_state(&mut self, spec: &GatedDeltaSpec) -> DeviceResult<DeltaState> {
        Ok(DeltaState::new(Shape::new(spec)))
    }

    fn delta_trace(&mut self, spec: &GatedDeltaSpec, rows: usize) -> DeviceResult<DeltaTrace> {
        Ok(DeltaTrace::new(Shape::new(spec), rows))
    }

    fn experts<'w>(&mut self, views: Vec<MatrixView<'w>>) -> DeviceResult<Vec<MatrixView<'w>>> {
        Ok(views)
    }

    fn routes(&mut self, rows: usize, experts: usize, per_row: usize) -> DeviceResult<Routes> {
        Ok(Routes::new(rows, experts, per_row))
    }

    fn embed(&mut self, table: &MatrixView<'_>, tokens: &[u32], out: &mut Vec<f32>) -> DeviceResult {
        embed::embed(table, tokens, out);
        Ok(())
    }

    fn multiply(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        products: &mut [Product<'_, '_, Self>],
    ) -> DeviceResult {
        let mut products: Vec<matmul::Product<'_, '_>> = products
            .iter_mut()
            .map(|product| matmul::Product {
                weights: product.matrix,
                bias: product.bias.map(Vec::as_slice),
                out: product.out,
            })
            .collect();
        matmul::multiply(self.arithmetic(), &mut self.pool, x, rows, &mut products);
        Ok(())
    }

    fn score_experts(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        router: &MatrixView<'_>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        let floats = Arithmetic { activations: Activations::F32, ..self.arithmetic() };
        let product = matmul::Product { weights: router, bias: None, out };
        matmul::multiply(floats, &mut self.pool, x, rows, &mut [product]);
        Ok(())
    }

    fn norm(
        &mut self,
        rows: usize,
        x: &Vec<f32>,
        weight: &Vec<f32>,
        epsilon: f32,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        let width = weight.len();
        self.by_rows(rows, width, out, |set, rows, out| {
            set.run(rowwise::Norm { x: &x[rows.start * width..rows.end * width], weight, epsilon, out });
        });
        Ok(())
    }

    fn norm_heads(
        &mut self,
        rows: usize,
        heads: u32,
        x: &mut Vec<f32>,
        weight: &Vec<f32>,
        epsilon: f32,
    ) -> DeviceResult {
        self.by_rows(rows, heads as usize * weight.len(), x, |set, _, x| {
            set.run(rowwise::NormHeads { x, weight, epsilon });
        });
        Ok(())
    }

    fn split_gate(
        &mut self,
        rows: usize,
        spec: &AttentionSpec,
        both: &Vec<f32>,
        queries: &mut Vec<f32>,
        gates: &mut Vec<f32>,
    ) -> DeviceResult {
        let size = spec.head_size as usize;
        let heads = both.chunks_exact(2 * size).take(rows * spec.heads as usize);
        for ((both, query), gate) in
            heads.zip(queries.chunks_exact_mut(size)).zip(gates.chunks_exact_mut(size))
        {
            query.copy_from_slice(&both[..size]);
            gate.copy_from_slice(&both[size..]);
        }
        Ok(())
    }

    fn rotary_angles(
        &mut self,
        positions: &[usize],
        frequencies: &[f64],
        angles: &mut Vec<f32>,
    ) -> DeviceResult {
        rowwise::rotary_angles(positions, frequencies, angles);
        Ok(())
    }

    fn rotate(
        &mut self,
        rows: usize,
        heads: u32,
        head_size: u32,
        half: usize,
        angles: &Vec<f32>,
        x: &mut Vec<f32>,
    ) -> DeviceResult {
        if half == 0 {
            return Ok(());
        }
        let width = (heads * head_size) as usize;
        self.by_rows(rows, width, x, |_, rows, x| {
            let angles = angles[rows.start * 2 * half..].chunks_exact(2 * half);
            for (x, angles) in x.chunks_exact_mut(width).zip(angles) {
                rowwise::rotate(x, head_size as usize, angles);
            }
        });
        Ok(())
    }

    fn attend(
        &mut self,
        lanes: &mut [AttentionLane<'_, Self>],
        queries: &Vec<f32>,
        keys: &Vec<f32>,
        values: &Vec<f32>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        let mut lanes: Vec<_> = lanes
            .iter_mut()
            .map(|lane| attention::AttentionLane { rows: lane.rows.clone(), cache: lane.cache })
            .collect();
        attention::attend(self.set, &mut self.pool, &mut lanes, queries, keys, values, out);
        Ok(())
    }

    fn gate(&mut self, rows: usize, width: usize, x: &mut Vec<f32>, gate: &Vec<f32>) -> DeviceResult {
        self.by_rows(rows, width, x, |set, rows, x| {
            set.run(rowwise::Gate { x, gate: &gate[rows.start * width..rows.end * width] });
        });
        Ok(())
    }

    fn convolve(
        &mut self,
        spec: &GatedDeltaSpec,
        lanes: &mut [DeltaLane<'_, Self>],
        x: &Vec<f32>,
        taps: &Vec<f32>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        let mut lanes = delta_lanes(lanes);
        delta::convolve(self.set, &mut self.pool, Shape::new(spec), &mut lanes, x, taps, out);
        Ok(())
    }

    fn delta_inputs(
        &mut self,
        rows: usize,
        spec: &GatedDeltaSpec,
        mixed: &mut Vec<f32>,
        a: &mut Vec<f32>,
        b: &mut Vec<f32>,
        a_log: &Vec<f32>,
        dt_bias: &Vec<f32>,
    ) -> DeviceResult {
        let (channels, size) = (spec.channels() as usize, spec.key_head_size as usize);
        let keys = (spec.key_heads * spec.key_head_size) as usize;
        self.by_rows(rows, channels, mixed, |set, _, mixed| {
            for row in mixed.chunks_exact_mut(channels) {
                let (queries, rest) = row.split_at_mut(keys);
                let factor = 1.0 / (size as f32).sqrt();
                set.run(rowwise::UnitHeads { x: queries, size, epsilon: 1e-6, factor });
                set.run(rowwise::UnitHeads { x: &mut rest[..keys], size, epsilon: 1e-6, factor: 1.0 });
            }
        });
        let heads = a_log.len();
        for a in a[..rows * heads].chunks_exact_mut(heads) {
            for ((a, a_log), dt_bias) in a.iter_mut().zip(a_log).zip(dt_bias) {
                *a = delta::log_decay(*a, *a_log, *dt_bias).exp();
            }
        }
        b[..rows * heads].iter_mut().for_each(|b| *b = delta::write_strength(*b));
        Ok(())
    }

    fn recur(
        &mut self,
        spec: &GatedDeltaSpec,
        lanes: &mut [DeltaLane<'_, Self>],
        inputs: DeltaInputs<'_, Self>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        let inputs =
            delta::Inputs { mixed: inputs.mixed, decays: inputs.decays, strengths: inputs.strengths };
        delta::recur(self.set, &mut self.pool, Shape::new(spec), &mut delta_lanes(lanes), inputs, out);
        Ok(())
    }

    fn replay(
        &mut self,
        spec: &GatedDeltaSpec,
        state: &DeltaState,
        trace: &DeltaTrace,
        rows: usize,
        next: &mut DeltaState,
    ) -> DeviceResult {
        delta::replay(self.set, &mut self.pool, Shape::new(spec), state, trace, rows, next);
        Ok(())
    }

    fn gated_norm(
        &mut self,
        rows: usize,
        heads: u32,
        x: &mut Vec<f32>,
        gate: &Vec<f32>,
        weight: &Vec<f32>,
        epsilon: f32,
    ) -> DeviceResult {
        let width = heads as usize * weight.len();
        self.by_rows(rows, width, x, |set, rows, x| {
            let gate = &gate[rows.start * width..rows.end * width];
            set.run(rowwise::GatedNorm { x, gate, weight, epsilon });
        });
        Ok(())
    }

    fn swiglu(&mut self, rows: usize, width: usize, gate: &mut Vec<f32>, up: &Vec<f32>) -> DeviceResult {
        self.by_rows(rows, width, gate, |set, rows, gate| {
            set.run(rowwise::SwiGlu { gate, up: &up[rows.start * width..rows.end * width] });
        });
        Ok(())
    }

    fn route(
        &mut self,
        rows: usize,
        experts: usize,
        per_row: usize,
        logits: &Vec<f32>,
        routes: &mut Routes,
    ) -> DeviceResult {
        routes.route(rows, experts, per_row, logits);
        Ok(())
    }

    fn multiply_experts(
        &mut self,
        routes: &Routes,
        x: ExpertInput<'_, Self>,
        products: &mut [ExpertProduct<'_, '_, Self>],
    ) -> DeviceResult {
        let x = match x {
            ExpertInput::Rows(x) => experts::Input::Rows(x),
            ExpertInput::Slots(x) => experts::Input::Slots(x),
        };
        let mut products: Vec<experts::Product<'_, '_>> = products
            .iter_mut()
            .map(|product| experts::Product { matrices: product.matrices, out: product.out })
            .collect();
        experts::multiply(self.arithmetic(), &mut self.pool, routes, x, &mut products);
        Ok(())
    }

    fn combine(
        &mut self,
        routes: &Routes,
        width: usize,
        slots: &Vec<f32>,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        self.by_rows(routes.rows(), width, out, |set, rows, out| {
            set.run(experts::Combine { routes, rows, slots, out });
        });
        Ok(())
    }

    fn add_gated(
        &mut self,
        rows: usize,
        width: usize,
        x: &mut Vec<f32>,
        y: &Vec<f32>,
        gate: &Vec<f32>,
    ) -> DeviceResult {
        self.by_rows(rows, width, x, |set, rows, x| {
            let (y, gate) = (&y[rows.start * width..rows.end * width], &gate[rows]);
            set.run(experts::AddGated { x, y, gate });
        });
        Ok(())
    }

    fn add(&mut self, rows: usize, width: usize, x: &mut Vec<f32>, y: &Vec<f32>) -> DeviceResult {
        self.by_rows(rows, width, x, |_, rows, x| rowwise::add(x, &y[rows.start * width..]));
        Ok(())
    }

    fn gather(&mut self, indices: &[usize], width: usize, x: &Vec<f32>, out: &mut Vec<f32>) -> DeviceResult {
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&x[index * width..(index + 1) * width]);
        }
        Ok(())
    }

    fn place(
        &mut self,
        rows: usize,
        width: usize,
        x: &Vec<f32>,
        column: usize,
        out_width: usize,
        out: &mut Vec<f32>,
    ) -> DeviceResult {
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(out_width)).take(rows) {
            out[column..column + width].copy_from_slice(x);
        }
        Ok(())
    }

    fn copy_rows(
        &mut self,
        width: usize,
        x: &Vec<f32>,
        from: std::ops::Range<usize>,
        out: &mut Vec<f32>,
        to: usize,
    ) -> DeviceResult {
        let count = from.len() * width;
        out[to * width..][..count].copy_from_slice(&x[from.start * width..][..count]);
        Ok(())
    }

    fn draw(
        &mut self,
        logits: &Vec<f32>,
        width: usize,
        selectable: u32,
        requests: &[DrawRequest<'_>],
    ) -> DeviceResult<Vec<Draw>> {
        let rows = logits.chunks_exact(width);
        let draws = rows.zip(requests).map(|(logits, request)| {
            let allowed = request.allowed.map(AllowedTokens::new);
            let token = sampling::draw(logits, selectable, allowed, &request.sampling, request.position);
            let log_probabilities = match (token, request.log_probabilities) {
                (Some(token), Some(count)) => {
                    sampling::log_probabilities(logits, selectable, token, count as usize)
                }
                _ => Vec::new(),
            };
            Draw { token, log_probabilities }
        });
        Ok(draws.collect())
    }

    fn read_routes(&mut self, routes: &Routes) -> DeviceResult<Vec<(u32, f32)>> {
        Ok(routes.chosen().to_vec())
    }

    fn read(&mut self, rows: usize, width: usize, x: &Vec<f32>) -> DeviceResult<Vec<f32>> {
        Ok(x[..rows * width].to_vec())
    }
}
