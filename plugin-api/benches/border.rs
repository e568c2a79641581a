//! What the border costs: rounds through the tables with an engine that computes nothing.
//!
//! `cargo bench -p tensorfold-plugin-api --bench border` prints microseconds a round by lanes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use tensorfold_plugin_api::abi::{
    ABI_MAJOR, ABI_MINOR, BACKEND_INTERFACE, ENGINE_INTERFACE, TF_PLUGIN_MAGIC, TfDescriptor, TfStr,
};
use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo, DeviceKind};
use tensorfold_plugin_api::host::{
    EngineSetup, HostServices, InitOptions, LaneRequest, LogRecord, ModelSource, ModelTensor, PluginClient,
    TensorSource,
};
use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, LayerSpec, MODEL_SPEC_VERSION, MixerSpec, ModelSpec, RopeScaling,
    RopeSpec,
};
use tensorfold_plugin_api::plugin::__private::{Exported, Runtime, Tables, interface, tables};
use tensorfold_plugin_api::plugin::{
    Backend, Device, Engine, EngineInfo, EngineMemory, EngineMonitor, EngineOptions, EngineStats, Handles,
    Init, LaneInput, LaneOutput, MemoryPlan, Model, NextDrafts, OpenEngine, PluginError, Progress,
    RoundReport,
};
use tensorfold_plugin_api::sampling::Sampling;

/// Rounds that are timed for each number of lanes.
const ROUNDS: u32 = 20_000;
/// Times that each is repeated; the median is printed.
const REPEATS: usize = 5;

struct Nothing;

impl Backend for Nothing {
    const OFFERS_ENGINE: bool = true;

    fn init(_: Init<'_>) -> Result<Self, PluginError> {
        Ok(Nothing)
    }
    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        Ok(Vec::new())
    }
    fn fit_device(&self, _: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        Ok(DeviceFit::usable())
    }
    fn open_device(&self, _: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        Ok(Box::new(Nothing))
    }
}

impl Device for Nothing {
    fn plan(&self, _: &Model<'_>, _: &EngineOptions<'_>) -> Result<MemoryPlan, PluginError> {
        Ok(MemoryPlan::default())
    }
    fn open_engine(
        &self,
        _: &Model<'_>,
        options: &EngineOptions<'_>,
        _: &Progress<'_>,
    ) -> Result<OpenEngine, PluginError> {
        Ok(OpenEngine {
            engine: Box::new(Idle { lanes: Handles::new(3) }),
            monitor: Arc::new(Nothing),
            info: EngineInfo {
                lanes: options.lanes,
                context: options.context,
                prefill_rows: 64,
                output_rows: 1,
                description: String::new(),
            },
        })
    }
}

impl EngineMonitor for Nothing {
    fn memory(&self) -> EngineMemory {
        EngineMemory::default()
    }
    fn stats(&self) -> EngineStats {
        unreachable!("the benchmark asks for no counts")
    }
}

struct Idle {
    lanes: Handles<u64>,
}

impl Engine for Idle {
    fn lane_open(&mut self) -> Result<u64, PluginError> {
        Ok(self.lanes.insert(0))
    }
    fn lane_close(&mut self, lane: u64) -> Result<(), PluginError> {
        self.lanes.remove(lane, "lane").map(drop)
    }
    fn round(
        &mut self,
        inputs: &[LaneInput<'_>],
        outputs: &mut [LaneOutput<'_>],
    ) -> Result<RoundReport, PluginError> {
        for (input, output) in inputs.iter().zip(outputs) {
            let position = self.lanes.get_mut(input.lane, "lane")?;
            *position += input.tokens.len() as u64;
            output.position = *position;
            output.tokens[0] = 1;
            output.token_count = 1;
        }
        Ok(RoundReport::default())
    }
}

static DESCRIPTOR: TfDescriptor = {
    static TABLES: Tables = tables::<Nothing>();
    unsafe extern "C" fn get(id: *const u8, length: u64) -> *const std::ffi::c_void {
        // SAFETY: the contract of `get_interface`.
        unsafe { interface::<Nothing>(id, length, &TABLES) }
    }
    TfDescriptor {
        magic: TF_PLUGIN_MAGIC,
        struct_size: size_of::<TfDescriptor>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        min_host_minor: ABI_MINOR,
        reserved: 0,
        flags: 0,
        manifest: std::ptr::null(),
        manifest_length: 0,
        get_interface: Some(get),
        version: TfStr::new("0"),
        build_id: TfStr::new("0"),
    }
};

static RUNTIME: Runtime<Nothing> = Runtime::new();

impl Exported for Nothing {
    fn runtime() -> &'static Runtime<Self> {
        &RUNTIME
    }
}

struct Silent;

impl HostServices for Silent {
    fn log_enabled(&self, _: u32, _: &str) -> bool {
        false
    }
    fn log(&self, _: LogRecord) {}
    fn memory_report(&self, _: u32, _: u64) {}
}

struct Tiny(ModelSpec);

impl TensorSource for Tiny {
    fn tensors(&self) -> &[ModelTensor] {
        &[]
    }
    fn bytes(&self, _: usize) -> &[u8] {
        &[]
    }
}

impl ModelSource for Tiny {
    fn spec(&self) -> &ModelSpec {
        &self.0
    }
}

fn tiny() -> Arc<Tiny> {
    let attention = AttentionSpec {
        heads: 1,
        key_value_heads: 1,
        head_size: 2,
        gated: false,
        head_norms: false,
        biases: false,
    };
    Arc::new(Tiny(ModelSpec {
        version: MODEL_SPEC_VERSION,
        family: "llama".into(),
        hidden_size: 2,
        vocabulary_rows: 8,
        selectable_vocabulary: 8,
        context_window: 64,
        norm_epsilon: 1e-5,
        norm_weight_offset: 0.0,
        tied_head: true,
        rope: RopeSpec { theta: 1e4, rotary_dimensions: 2, scaling: RopeScaling::None },
        layers: vec![LayerSpec {
            mixer: MixerSpec::Attention(attention),
            feed_forward: FeedForwardSpec::Dense { intermediate_size: 2 },
        }],
        mtp: None,
        formats: vec!["f32".into()],
    }))
}

fn main() {
    let offered = [BACKEND_INTERFACE.to_owned(), ENGINE_INTERFACE.to_owned()];
    // SAFETY: the tables are made by this program and live as long as it.
    let plugin =
        unsafe { PluginClient::new(&DESCRIPTOR, &offered, Box::new(Silent), &[]) }.expect("sound tables");
    let init = InitOptions {
        host_version: "0.1.0".into(),
        agreed_abi_minor: ABI_MINOR,
        configuration: Vec::new(),
        log_level: 0,
    };
    plugin.init(init, std::time::Duration::from_secs(10)).expect("init does nothing");
    let identity = DeviceIdentity {
        kind: DeviceKind::Cpu,
        pci_address: String::new(),
        uuid: String::new(),
        name: String::new(),
        index: 0,
    };
    let device = plugin.open_device(&identity).expect("the device is nothing");
    println!("lanes  microseconds a round (median of {REPEATS} times {ROUNDS} rounds)");
    for lanes in [1_usize, 8, 32, 64] {
        let setup = EngineSetup {
            lanes: lanes as u32,
            context: u64::MAX / 2,
            rows: 64,
            world: 1,
            rank: 0,
            kv_dtype: String::new(),
            memory_limit: None,
        };
        let mut engine = device
            .open_engine(tiny(), &setup, |_, _, _| ControlFlow::Continue(()))
            .expect("the engine is idle");
        let handles: Vec<u64> = (0..lanes).map(|_| engine.lane_open().expect("a free lane")).collect();
        let sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, min_p: 0.0, seed: 0 };
        let mut position = 0;
        let mut times: Vec<f64> = (0..REPEATS)
            .map(|_| {
                let begin = Instant::now();
                for _ in 0..ROUNDS {
                    let requests: Vec<LaneRequest<'_>> = handles
                        .iter()
                        .map(|&lane| LaneRequest {
                            lane,
                            position,
                            tokens: &[1],
                            draft_count: 0,
                            output_count: 1,
                            sampling,
                            allowed: None,
                            logprobs: None,
                            next_drafts: NextDrafts::default(),
                            cancel: None,
                        })
                        .collect();
                    engine.round(&requests).expect("a round of nothing");
                    position += 1;
                }
                begin.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS)
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{lanes:5}  {:.2}", times[REPEATS / 2]);
    }
}
