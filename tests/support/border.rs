//! Plugins loaded into this process, and called as the host calls them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tensorfold::plugins::open::Opened;
use tensorfold::plugins::{image, open};
use tensorfold_plugin_api::PluginError;
use tensorfold_plugin_api::abi::{ABI_MINOR, TF_LOG_INFO, TfDescriptor};
use tensorfold_plugin_api::host::{
    EngineSetup, HostServices, InitOptions, LaneRequest, LogRecord, ModelSource, ModelTensor, PluginClient,
    TensorSource,
};
use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::model_spec::{
    AttentionSpec, FeedForwardSpec, LayerSpec, MODEL_SPEC_VERSION, MixerSpec, ModelSpec, RopeScaling,
    RopeSpec,
};
use tensorfold_plugin_api::plugin::{Dtype, NextDrafts};
use tensorfold_plugin_api::sampling::Sampling;

struct Quiet;

impl HostServices for Quiet {
    fn log_enabled(&self, _level: u32, _target: &str) -> bool {
        false
    }
    fn log(&self, _record: LogRecord) {}
    fn memory_report(&self, _kind: u32, _bytes: u64) {}
}

/// A plugin that was opened and whose manifest was read; nothing else was checked.
pub(crate) struct Loaded {
    pub(crate) opened: Opened,
    pub(crate) descriptor: &'static TfDescriptor,
    pub(crate) manifest: Manifest,
}

pub(crate) fn load(library: &Path) -> Loaded {
    let image = image::read(library).unwrap();
    let opened = open::open(library, image.identity).unwrap();
    // SAFETY: the descriptor of a plugin that this test had built; it is never unmapped.
    let descriptor = unsafe { opened.descriptor().as_ref() };
    let manifest = Manifest::parse(&image.manifest.unwrap(), "embedded").unwrap().manifest;
    Loaded { opened, descriptor, manifest }
}

impl Loaded {
    pub(crate) fn client(&self) -> Arc<PluginClient> {
        let offered: Vec<String> = self.manifest.abi.interfaces.iter().cloned().collect();
        // SAFETY: as in `load`.
        unsafe { PluginClient::new(self.descriptor, &offered, Box::new(Quiet), &[]) }.unwrap()
    }
}

pub(crate) struct OneTensor(ModelSpec, Vec<ModelTensor>);

impl TensorSource for OneTensor {
    fn tensors(&self) -> &[ModelTensor] {
        &self.1
    }
    fn bytes(&self, _tensor: usize) -> &[u8] {
        &[0; 4]
    }
}

impl ModelSource for OneTensor {
    fn spec(&self) -> &ModelSpec {
        &self.0
    }
}

/// The smallest model that can be described, with 20 tokens.
pub(crate) fn model() -> Arc<OneTensor> {
    let attention = AttentionSpec {
        heads: 1,
        key_value_heads: 1,
        head_size: 2,
        gated: false,
        head_norms: false,
        biases: false,
    };
    let spec = ModelSpec {
        version: MODEL_SPEC_VERSION,
        family: "qwen3_5".into(),
        hidden_size: 1,
        vocabulary_rows: 32,
        selectable_vocabulary: 20,
        context_window: 64,
        norm_epsilon: 1e-5,
        norm_weight_offset: 0.0,
        tied_head: true,
        rope: RopeSpec { theta: 1e4, rotary_dimensions: 2, scaling: RopeScaling::None },
        layers: vec![LayerSpec {
            mixer: MixerSpec::Attention(attention),
            feed_forward: FeedForwardSpec::Dense { intermediate_size: 1 },
        }],
        mtp: None,
        formats: vec!["f32".into()],
    };
    let tensor = ModelTensor {
        name: "embed".into(),
        dtype: Dtype::F32,
        shape: vec![1, 1],
        packed: None,
        file_offset: 0,
        file_descriptor: None,
    };
    Arc::new(OneTensor(spec, vec![tensor]))
}

pub(crate) fn setup() -> EngineSetup {
    EngineSetup {
        lanes: 2,
        context: 64,
        rows: 64,
        world: 1,
        rank: 0,
        kv_dtype: String::new(),
        memory_limit: None,
    }
}

/// Calls `init` with options that the plugin must know.
pub(crate) fn start(client: &Arc<PluginClient>, options: &[(&str, &str)]) -> Result<(), PluginError> {
    let configuration =
        options.iter().map(|&(key, value)| (key.to_owned(), value.to_owned(), true)).collect();
    let options = InitOptions {
        host_version: "0.1.0".into(),
        agreed_abi_minor: ABI_MINOR,
        configuration,
        log_level: TF_LOG_INFO,
    };
    client.init(options, Duration::from_secs(60))
}

/// Feeds tokens to a lane, the last `drafts` of them drafts, and wants a draw for the last `outputs`.
pub(crate) fn feed(
    lane: u64,
    position: u64,
    tokens: &[u32],
    drafts: usize,
    outputs: usize,
) -> LaneRequest<'_> {
    LaneRequest {
        lane,
        position,
        tokens,
        draft_count: drafts,
        output_count: outputs,
        sampling: Sampling { seed: 0, temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0 },
        allowed: None,
        logprobs: None,
        next_drafts: NextDrafts::default(),
        cancel: None,
    }
}
