//! Plans and opens engines.

use tensorfold_kernels::cpu::{Activations, CpuDevice};
use tensorfold_kernels::device::DeviceError;
use tensorfold_kernels::executor::{
    self, CHAIN_DRAFTS, Executor, ExecutorError, MemoryPlan as Memory, OUTPUT_ROWS, Options,
};
use tensorfold_kernels::weights::{ElementType, Packing, TensorError, TensorView, Tensors};
use tensorfold_plugin_api::plugin::{
    Device, Drafter, DrafterPlan, Dtype, EngineInfo, EngineOptions, MemoryPlan, Model, OpenEngine,
    PluginError, Progress, Status, Tensor,
};

use crate::engine::CpuEngine;
use crate::system;

/// Rows of a prompt chunk: two passes of the executor, so that a request that
/// waits gets its turn soon.
const PREFILL_ROWS: u32 = 512;

/// The machine's processors, opened.
pub(crate) struct CpuPluginDevice {
    threads: usize,
    activations: Activations,
}

impl CpuPluginDevice {
    pub(crate) fn new(threads: usize, activations: Activations) -> Self {
        CpuPluginDevice { threads, activations }
    }
}

impl Device for CpuPluginDevice {
    fn plan(&self, model: &Model<'_>, options: &EngineOptions<'_>) -> Result<MemoryPlan, PluginError> {
        let memory = check(model, options, &described(&model.tensors)?)?;
        check_activations(self.activations, &model.spec.formats)?;
        let (mapped, copied) = weight_bytes(model);
        let available = system::available_memory();
        let usable = available.unwrap_or(u64::MAX).min(options.memory_limit.unwrap_or(u64::MAX));
        Ok(MemoryPlan {
            lanes: lanes_within(usable, &memory, copied, options.lanes),
            weight_bytes: copied,
            mapped_bytes: mapped,
            lane_bytes: memory.lane_bytes,
            scratch_bytes: memory.scratch_bytes,
            snapshot_bytes: memory.snapshot_bytes,
            snapshot_token_bytes: memory.snapshot_token_bytes,
            available_bytes: available.unwrap_or(tensorfold_plugin_api::abi::TF_UNKNOWN),
            ..MemoryPlan::default()
        })
    }

    fn plan_mtp(&self, model: &Model<'_>, options: &EngineOptions<'_>) -> Result<DrafterPlan, PluginError> {
        executor::check_head(&model.spec, &described(&model.tensors)?, CpuDevice::LIMITS)
            .map_err(|error| plugin_error(&error))?;
        Ok(drafter_plan(CHAIN_DRAFTS, head_weight_bytes(model), &head_plan(model, options)))
    }

    fn plan_dflash(
        &self,
        model: &Model<'_>,
        drafter: &Drafter<'_>,
        options: &EngineOptions<'_>,
    ) -> Result<DrafterPlan, PluginError> {
        let tensors = described(&drafter.tensors)?;
        executor::check_drafter(&model.spec, &drafter.spec, &tensors, CpuDevice::LIMITS)
            .map_err(|error| plugin_error(&error))?;
        let options = Options { lanes: options.lanes as usize, context: options.context as usize };
        let memory = executor::block_plan(&drafter.spec, options);
        let most = executor::most_block_drafts(&drafter.spec);
        Ok(drafter_plan(most, drafter_weight_bytes(drafter), &memory))
    }

    fn open_engine(
        &self,
        model: &Model<'_>,
        options: &EngineOptions<'_>,
        progress: &Progress<'_>,
    ) -> Result<OpenEngine, PluginError> {
        let tensors = mapped(&model.tensors)?;
        let memory = check(model, options, &tensors)?;
        check_activations(self.activations, &model.spec.formats)?;
        let (mapped, copied) = weight_bytes(model);
        let lanes = match options.memory_limit {
            Some(limit) => lanes_within(limit, &memory, copied, options.lanes),
            None => options.lanes,
        };
        if lanes == 0 {
            let needed = memory.scratch_bytes + copied + memory.lane_bytes;
            return Err(PluginError::new(
                Status::OutOfMemory,
                format!(
                    "one request of {} tokens needs {needed} bytes besides the mapped weights, the limit is {}; \
                     lower the context or raise the limit",
                    options.context,
                    options.memory_limit.unwrap_or_default()
                ),
            )
            .with("needed_bytes", needed));
        }
        progress.report(0, mapped, "using the weights where they are mapped")?;
        let device = CpuDevice::new(self.threads).map_err(|error| {
            PluginError::new(
                Status::OutOfMemory,
                format!("{} threads cannot be started: {error}", self.threads),
            )
        })?;
        let device = device.with_activations(self.activations);
        let description = format!(
            "{}, {} thread{}, {} activations, weights in place",
            device.instruction_set().name(),
            device.threads(),
            if device.threads() == 1 { "" } else { "s" },
            device.activations().name()
        );
        let opened = Options { lanes: lanes as usize, context: options.context as usize };
        let executor = Executor::open(device, model.spec.clone(), &tensors, opened)
            .map_err(|error| plugin_error(&error))?;
        progress.report(mapped, mapped, "using the weights where they are mapped")?;
        tracing::debug!(lanes, context = options.context, mapped, "opened an engine");
        let head = match model.spec.mtp {
            Some(_) => head_weight_bytes(model).1 + head_plan(model, options).scratch_bytes,
            None => 0,
        };
        let engine = CpuEngine::new(executor, tensors, lanes as usize, memory.scratch_bytes + copied, head);
        Ok(OpenEngine {
            monitor: engine.monitor(),
            engine: Box::new(engine),
            info: EngineInfo {
                lanes,
                context: options.context,
                prefill_rows: PREFILL_ROWS,
                output_rows: OUTPUT_ROWS as u32,
                description,
            },
        })
    }
}

/// A drafter that makes at most `drafts` for a lane in a round. `weights` are the bytes that stay mapped and those that
/// are copied.
fn drafter_plan(drafts: usize, weights: (u64, u64), memory: &Memory) -> DrafterPlan {
    let (mapped_bytes, weight_bytes) = weights;
    DrafterPlan {
        drafts: drafts as u32,
        weight_bytes,
        mapped_bytes,
        lane_bytes: memory.lane_bytes,
        scratch_bytes: memory.scratch_bytes,
        snapshot_bytes: memory.snapshot_bytes,
        snapshot_token_bytes: memory.snapshot_token_bytes,
        ..DrafterPlan::default()
    }
}

/// What drafting with the model's own head takes besides its weights.
fn head_plan(model: &Model<'_>, options: &EngineOptions<'_>) -> Memory {
    let options = Options { lanes: options.lanes as usize, context: options.context as usize };
    executor::head_plan(&model.spec, options)
}

/// Refuses rounded activations for a model none of whose weights they are multiplied with: the option would be
/// accepted and do nothing.
fn check_activations(activations: Activations, formats: &[String]) -> Result<(), PluginError> {
    let rounds = |format: &String| format.starts_with("mlx-q4") || format.starts_with("mlx-q8");
    match activations {
        Activations::Int8 if !formats.iter().any(rounds) => Err(PluginError::unsupported(format!(
            "the option activations is int8, which is for weights of 4 or 8 bits, and this model's are {}; \
             leave the option out, or pack the model with tensorfold convert",
            formats.join(", ")
        ))),
        Activations::Int8 | Activations::F32 => Ok(()),
    }
}

/// Everything that can be refused before anything is allocated.
fn check(
    model: &Model<'_>,
    options: &EngineOptions<'_>,
    tensors: &Tensors<'_>,
) -> Result<Memory, PluginError> {
    if options.world != 1 {
        return Err(PluginError::unsupported(format!(
            "the CPU engine runs on one rank, {} were asked for",
            options.world
        )));
    }
    if !matches!(options.kv_dtype, "" | "f32") {
        return Err(PluginError::unsupported(format!(
            "the CPU engine keeps keys and values as f32, {} was asked for",
            options.kv_dtype
        )));
    }
    // The limits do not depend on the device's threads.
    let limits = CpuDevice::LIMITS;
    executor::check(&model.spec, tensors, limits).map_err(|error| plugin_error(&error))?;
    let options = Options { lanes: options.lanes as usize, context: options.context as usize };
    Ok(executor::memory_plan(&model.spec, options))
}

/// Lanes at full context that fit into `bytes`, at most `wanted`.
fn lanes_within(bytes: u64, memory: &Memory, copied: u64, wanted: u32) -> u32 {
    let left = bytes.saturating_sub(memory.scratch_bytes + copied);
    left.checked_div(memory.lane_bytes).map_or(wanted, |lanes| lanes.min(u64::from(wanted)) as u32)
}

/// Bytes of weights that stay mapped, and of those that are copied: vectors,
/// as floats. Without the multi-token prediction head's.
fn weight_bytes(model: &Model<'_>) -> (u64, u64) {
    bytes_of(model.tensors.iter().filter(|tensor| !tensor.name.starts_with("mtp.")))
}

/// As [`weight_bytes`], of the multi-token prediction head.
fn head_weight_bytes(model: &Model<'_>) -> (u64, u64) {
    bytes_of(model.tensors.iter().filter(|tensor| tensor.name.starts_with("mtp.")))
}

/// As [`weight_bytes`], of a block drafter.
pub(crate) fn drafter_weight_bytes(drafter: &Drafter<'_>) -> (u64, u64) {
    bytes_of(drafter.tensors.iter())
}

fn bytes_of<'t>(tensors: impl Iterator<Item = &'t Tensor<'t>>) -> (u64, u64) {
    let (mut mapped, mut copied) = (0, 0);
    for tensor in tensors {
        // Kernels of convolutions have more axes and are vectors all the same.
        if tensor.shape.len() < 2 || tensor.name.ends_with(".conv") || tensor.name.ends_with("_conv.base") {
            copied += tensor.shape.iter().product::<u64>() * 4;
        } else {
            mapped += tensor.bytes;
        }
    }
    (mapped, copied)
}

/// The tensors without their bytes.
fn described(list: &[Tensor<'_>]) -> Result<Tensors<'static>, PluginError> {
    let mut tensors = Tensors::described();
    for tensor in list {
        insert(&mut tensors, tensor, &[])?;
    }
    Ok(tensors)
}

/// The tensors with their bytes, where the host mapped them. What is made of them belongs to the engine that they were
/// handed to, and ends with it at the latest.
pub(crate) fn mapped(list: &[Tensor<'_>]) -> Result<Tensors<'static>, PluginError> {
    let mut tensors = Tensors::new();
    for tensor in list {
        let data = tensor.data.ok_or_else(|| {
            PluginError::invalid(format!("tensor `{}` was handed over without its bytes", tensor.name))
        })?;
        // SAFETY: the bytes go into the executor, which the engine owns and drops when it is
        // closed, and nowhere else; a drafter's leave it when the drafter is closed; this list
        // itself stays in the engine or ends with the call that opens a drafter.
        insert(&mut tensors, tensor, unsafe { data.get() })?;
    }
    Ok(tensors)
}

fn insert(
    tensors: &mut Tensors<'static>,
    tensor: &Tensor<'_>,
    bytes: &'static [u8],
) -> Result<(), PluginError> {
    let element = match tensor.dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::F16 => ElementType::F16,
        Dtype::Bf16 => ElementType::Bf16,
        Dtype::U32 => ElementType::U32,
        // Nothing that the executor asks for is made of bytes: let it miss the tensor by name.
        Dtype::U8 => return Ok(()),
    };
    let shape = tensor
        .shape
        .iter()
        .map(|&extent| {
            usize::try_from(extent).map_err(|_| {
                PluginError::invalid(format!("tensor `{}` has an axis of {extent}", tensor.name))
            })
        })
        .collect::<Result<_, _>>()?;
    let packed = tensor.packed.map(|packed| Packing { bits: packed.bits, group: packed.group });
    tensors.insert(tensor.name, TensorView { element, shape, packed, bytes });
    Ok(())
}

/// The executor's error as the border's.
pub(crate) fn plugin_error(error: &ExecutorError) -> PluginError {
    let status = match error {
        ExecutorError::Unsupported(_) | ExecutorError::Tensor(TensorError::Format { .. }) => {
            Status::Unsupported
        }
        ExecutorError::Tensor(_) | ExecutorError::Invalid(_) => Status::InvalidArgument,
        ExecutorError::Device(DeviceError::OutOfMemory(_)) => Status::OutOfMemory,
        ExecutorError::Device(DeviceError::Lost(_)) => Status::DeviceLost,
        _ => Status::Internal,
    };
    PluginError::new(status, error.to_string())
}
