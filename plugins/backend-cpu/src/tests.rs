//! The plugin through the traits that the border calls.

mod drafters;

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::model_spec::*;
use tensorfold_plugin_api::plugin::*;
use tensorfold_plugin_api::sampling::Sampling;
use tensorfold_plugin_api::vocabulary::DrafterKind;

use super::Cpu;

const HIDDEN: u64 = 32;
const VOCABULARY: u64 = 64;
const SAMPLING: Sampling = Sampling { temperature: 1.0, top_p: 0.9, top_k: 20, min_p: 0.0, seed: 5 };

fn spec() -> ModelSpec {
    let feed_forward = FeedForwardSpec::Dense { intermediate_size: 48 };
    ModelSpec {
        version: MODEL_SPEC_VERSION,
        family: "qwen3_5".into(),
        hidden_size: HIDDEN as u32,
        vocabulary_rows: VOCABULARY as u32,
        selectable_vocabulary: 60,
        context_window: 1024,
        norm_epsilon: 1e-6,
        norm_weight_offset: 1.0,
        tied_head: true,
        rope: RopeSpec { theta: 1e4, rotary_dimensions: 8, scaling: RopeScaling::None },
        layers: vec![
            LayerSpec {
                mixer: MixerSpec::GatedDelta(GatedDeltaSpec {
                    key_heads: 1,
                    value_heads: 2,
                    key_head_size: 16,
                    value_head_size: 16,
                    convolution_kernel: 4,
                }),
                feed_forward: feed_forward.clone(),
            },
            LayerSpec {
                mixer: MixerSpec::Attention(AttentionSpec {
                    heads: 2,
                    key_value_heads: 1,
                    head_size: 16,
                    gated: true,
                    head_norms: true,
                    biases: false,
                }),
                feed_forward,
            },
        ],
        mtp: None,
        formats: vec!["f32".into()],
    }
}

/// The same with a multi-token prediction head.
fn model_with_head(bytes: bool) -> Model<'static> {
    let mut spec = spec();
    let layers = vec![spec.layers[1].clone()];
    spec.mtp = Some(MtpSpec { layers, norm_weight_offset: 1.0, formats: vec!["f32".into()] });
    built(spec, bytes)
}

/// A small model of pseudo-random weights; without bytes for a plan.
fn model(bytes: bool) -> Model<'static> {
    built(spec(), bytes)
}

/// The same with four routed experts in its last layer, and a shared one.
fn model_of_experts(bytes: bool) -> Model<'static> {
    let mut spec = spec();
    spec.family = "qwen3_5_moe".into();
    spec.layers[1].feed_forward = FeedForwardSpec::MixtureOfExperts {
        experts: 4,
        experts_per_token: 2,
        intermediate_size: 32,
        shared_intermediate_size: 48,
    };
    built(spec, bytes)
}

/// Tensors of pseudo-random floats.
struct Maker {
    state: u64,
    bytes: bool,
    tensors: Vec<Tensor<'static>>,
}

impl Maker {
    fn new(bytes: bool) -> Maker {
        Maker { state: 1, bytes, tensors: Vec::new() }
    }

    fn add(&mut self, name: String, shape: &[u64]) {
        let count = shape.iter().product::<u64>();
        let data: Vec<u8> = (0..count)
            .flat_map(|_| {
                self.state = self
                    .state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (((self.state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 0.4).to_le_bytes()
            })
            .collect();
        self.tensors.push(Tensor {
            name: name.leak(),
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            packed: None,
            data: self.bytes.then(|| TensorBytes::from_static(data.leak())),
            bytes: count * 4,
            id: 0,
            file_offset: 0,
            file_descriptor: None,
        });
    }
}

fn built(spec: ModelSpec, bytes: bool) -> Model<'static> {
    let mut maker = Maker::new(bytes);
    let mut add = |name: String, shape: &[u64]| maker.add(name, shape);
    add("embed".into(), &[VOCABULARY, HIDDEN]);
    add("norm".into(), &[HIDDEN]);
    if spec.mtp.is_some() {
        for norm in ["embed_norm", "hidden_norm", "norm"] {
            add(format!("mtp.{norm}"), &[HIDDEN]);
        }
        add("mtp.fc".into(), &[HIDDEN, 2 * HIDDEN]);
    }
    let head =
        spec.mtp.iter().flat_map(|head| &head.layers).map(|layer| ("mtp.layers.0".to_owned(), 1, layer));
    let trunk =
        spec.layers.iter().enumerate().map(|(index, layer)| (format!("layers.{index}"), index, layer));
    for (prefix, layer, of) in trunk.chain(head) {
        let mut part = |name: &str, shape: &[u64]| add(format!("{prefix}.{name}"), shape);
        part("input_norm", &[HIDDEN]);
        part("post_norm", &[HIDDEN]);
        let dense = match of.feed_forward {
            FeedForwardSpec::Dense { .. } => "ffn",
            FeedForwardSpec::MixtureOfExperts { .. } => {
                part("moe.router", &[4, HIDDEN]);
                part("moe.experts.gate_up", &[4, 64, HIDDEN]);
                part("moe.experts.down", &[4, HIDDEN, 32]);
                part("moe.shared_gate", &[1, HIDDEN]);
                "moe.shared"
            }
        };
        part(&format!("{dense}.gate"), &[48, HIDDEN]);
        part(&format!("{dense}.up"), &[48, HIDDEN]);
        part(&format!("{dense}.down"), &[HIDDEN, 48]);
        if layer == 0 {
            part("delta.qkv", &[64, HIDDEN]);
            part("delta.z", &[32, HIDDEN]);
            part("delta.a", &[2, HIDDEN]);
            part("delta.b", &[2, HIDDEN]);
            part("delta.out", &[HIDDEN, 32]);
            part("delta.conv", &[64, 4]);
            part("delta.a_log", &[2]);
            part("delta.dt_bias", &[2]);
            part("delta.norm", &[16]);
        } else {
            part("attention.q", &[64, HIDDEN]);
            part("attention.k", &[16, HIDDEN]);
            part("attention.v", &[16, HIDDEN]);
            part("attention.o", &[HIDDEN, 32]);
            part("attention.q_norm", &[16]);
            part("attention.k_norm", &[16]);
        }
    }
    Model::new(spec, maker.tensors)
}

fn options() -> EngineOptions<'static> {
    EngineOptions { lanes: 2, context: 256, rows: 512, world: 1, rank: 0, kv_dtype: "", memory_limit: None }
}

fn device() -> Box<dyn Device> {
    let cpu = Cpu::init(Init::detached(&[("threads", "1")])).unwrap();
    let listed = cpu.list_devices().unwrap();
    assert!(cpu.fit_device(&listed[0].identity).unwrap().is_usable());
    cpu.open_device(&listed[0].identity).unwrap()
}

fn engine() -> OpenEngine {
    opened(&model(true))
}

fn opened(model: &Model<'_>) -> OpenEngine {
    device().open_engine(model, &options(), &Progress::silent()).unwrap()
}

/// Tokens drawn, drafts accepted and the position after one round of one lane.
fn round(
    engine: &mut dyn Engine,
    lane: u64,
    position: u64,
    tokens: &[u32],
    drafts: usize,
) -> Result<(Vec<u32>, usize, u64, Vec<Logprob>), PluginError> {
    let outputs = drafts + 1;
    let mut drawn = vec![u32::MAX; outputs];
    let mut logprobs = vec![Logprob::default(); outputs * 3];
    let input = LaneInput {
        lane,
        position,
        tokens,
        draft_count: drafts,
        output_count: outputs,
        sampling: SAMPLING,
        allowed: None,
        logprobs: Some(2),
        next_drafts: NextDrafts::default(),
        cancel: CancelToken::never(),
    };
    let mut output = [LaneOutput {
        cancelled: false,
        position,
        tokens: &mut drawn,
        token_count: 0,
        accepted: 0,
        drafts: &mut [],
        draft_probabilities: &mut [],
        draft_count: 0,
        draft_kind: DraftKind::None,
        logprobs: &mut logprobs,
        logprob_count: 0,
    }];
    let report = engine.round(&[input], &mut output)?;
    assert!(report.forward_nanoseconds.is_some_and(|time| time > 0));
    let [output] = output;
    let (count, accepted, position) = (output.token_count, output.accepted, output.position);
    let listed = output.logprob_count;
    drawn.truncate(count);
    logprobs.truncate(listed);
    Ok((drawn, accepted, position, logprobs))
}

/// Twenty tokens after a prompt, one a round.
fn serial(engine: &mut dyn Engine, lane: u64, mut position: u64, prompt: &[u32]) -> Vec<u32> {
    let mut feed = prompt.to_vec();
    let mut reply = Vec::new();
    for _ in 0..20 {
        let (drawn, _, now, _) = round(engine, lane, position, &feed, 0).unwrap();
        (feed, position) = (drawn.clone(), now);
        reply.extend(drawn);
    }
    reply
}

#[test]
fn the_manifest_is_whole_and_says_what_the_code_does() {
    let parsed =
        Manifest::parse(include_bytes!("../tensorfold_plugin.toml"), "tensorfold_plugin.toml").unwrap();
    assert!(parsed.notes.is_empty(), "{:?}", parsed.notes);
    let manifest = parsed.manifest;
    assert_eq!(manifest.plugin.version.to_string(), env!("CARGO_PKG_VERSION"));
    assert_eq!(
        manifest.mtp().map(|head| head.depth_max as usize),
        Some(tensorfold_kernels::executor::CHAIN_DRAFTS)
    );
    for kind in [DrafterKind::Dflash, DrafterKind::Dflash2] {
        let rows = manifest.external_drafter(kind).map(|drafter| drafter.block_max as usize);
        assert_eq!(rows, Some(tensorfold_kernels::executor::OUTPUT_ROWS), "{kind}");
    }
    assert!(manifest.options.contains_key("threads"));
    assert!(manifest.options.contains_key("activations"));
    let rows = manifest.capabilities.limits.verify_rows;
    assert_eq!(rows.map(|rows| rows as usize), Some(tensorfold_kernels::executor::OUTPUT_ROWS));
}

#[test]
fn a_plan_needs_no_bytes_and_counts_lanes_against_the_limit() {
    let plan = device().plan(&model(false), &options()).unwrap();
    assert_eq!(plan.lanes, 2);
    assert_eq!(plan.snapshot_token_bytes, 2 * 16 * 4);
    // Window of three rows of 64 channels, and two heads of 16 by 16.
    assert_eq!(plan.snapshot_bytes, (3 * 64 + 2 * 16 * 16) * 4);
    assert!(plan.mapped_bytes > plan.weight_bytes && plan.weight_bytes > 0);
    let tight = EngineOptions {
        memory_limit: Some(plan.scratch_bytes + plan.weight_bytes + plan.lane_bytes),
        ..options()
    };
    assert_eq!(device().plan(&model(false), &tight).unwrap().lanes, 1);
    let none = EngineOptions { memory_limit: Some(plan.scratch_bytes), ..options() };
    let error = device().open_engine(&model(true), &none, &Progress::silent()).err().unwrap();
    assert_eq!(error.status, Status::OutOfMemory);
    assert!(error.message.contains("one request of 256 tokens needs"), "{error}");
}

#[test]
fn what_it_cannot_run_is_refused_by_plan_and_open_alike() {
    let refused = |model: &dyn Fn(bool) -> Model<'static>, options: EngineOptions<'static>| {
        let planned = device().plan(&model(false), &options).unwrap_err();
        let opened = device().open_engine(&model(true), &options, &Progress::silent()).err().unwrap();
        assert_eq!(planned, opened);
        planned
    };
    let two = refused(&model, EngineOptions { world: 2, ..options() });
    assert_eq!((two.status, two.message.contains("one rank, 2")), (Status::Unsupported, true));
    let q8 = refused(&model, EngineOptions { kv_dtype: "q8", ..options() });
    assert!(q8.message.contains("as f32, q8 was asked for"), "{q8}");
    let lacking = |bytes| {
        let mut model = model(bytes);
        model.tensors.retain(|tensor| tensor.name != "layers.1.attention.o");
        model
    };
    assert_eq!(refused(&lacking, options()).message, "tensor `layers.1.attention.o` is missing");
    let narrow = |bytes| {
        let mut model = model_of_experts(bytes);
        if let FeedForwardSpec::MixtureOfExperts { intermediate_size, .. } =
            &mut model.spec.layers[1].feed_forward
        {
            *intermediate_size = 24;
        }
        model
    };
    let message = refused(&narrow, options()).message;
    assert_eq!(
        message,
        "layer 1: the experts' feed-forward size is 24; this engine computes multiples of 16"
    );
    let lacking = |bytes| {
        let mut model = model_of_experts(bytes);
        model.tensors.retain(|tensor| tensor.name != "layers.1.moe.experts.down");
        model
    };
    assert_eq!(refused(&lacking, options()).message, "tensor `layers.1.moe.experts.down` is missing");
    let no_bytes = device().open_engine(&model(false), &options(), &Progress::silent()).err().unwrap();
    assert!(no_bytes.message.contains("without its bytes"), "{no_bytes}");
}

#[test]
fn lanes_draft_fork_and_resume_to_the_same_reply() {
    lanes_draft_fork_and_resume(engine());
}

#[test]
fn lanes_of_a_mixture_of_experts_do_so_as_well() {
    lanes_draft_fork_and_resume(opened(&model_of_experts(true)));
}

fn lanes_draft_fork_and_resume(opened: OpenEngine) {
    let OpenEngine { mut engine, monitor, info } = opened;
    let engine = engine.as_mut();
    assert_eq!((info.lanes, info.context, info.prefill_rows % 64), (2, 256, 0));
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 60).collect();
    let lane = engine.lane_open().unwrap();
    let expected = serial(engine, lane, 0, &prompt);
    assert!(expected.iter().all(|&token| token < 60));
    engine.lane_close(lane).unwrap();

    let lane = engine.lane_open().unwrap();
    let (_, _, position, _) = round(engine, lane, 0, &prompt[..64], 0).unwrap();
    let kept = engine.snapshot(lane).unwrap();
    assert_eq!((kept.position, position), (64, 64));
    assert!(kept.bytes > 0 && monitor.memory().snapshot_bytes == kept.bytes);
    assert_eq!(serial(engine, lane, 64, &prompt[64..]), expected);

    engine.restore(lane, kept.snapshot).unwrap();
    let fork = engine.fork(lane).unwrap();
    assert_eq!(engine.lane_open().unwrap_err().status, Status::Busy);
    let (first, _, position, _) = round(engine, fork, 64, &prompt[64..], 0).unwrap();
    // Two right drafts and a wrong one.
    let feed = [first[0], expected[1], expected[2], (expected[3] + 1) % 60];
    let (drawn, accepted, now, logprobs) = round(engine, fork, position, &feed, 3).unwrap();
    assert_eq!((accepted, now), (2, position + 3));
    assert_eq!(drawn, expected[1..4]);
    assert_eq!(logprobs.len(), 9);
    assert_eq!(logprobs[3].token, drawn[1]);
    assert!(logprobs[4].logprob >= logprobs[5].logprob);
    let (next, ..) = round(engine, fork, now, &drawn[2..], 0).unwrap();
    assert_eq!(next, expected[4..5]);

    let stats = monitor.stats();
    assert_eq!((stats.verified, stats.accepted), (3, 2));
    engine.drop_snapshot(kept.snapshot).unwrap();
    assert_eq!(engine.restore(lane, kept.snapshot).unwrap_err().status, Status::NotFound);
    let memory = monitor.memory();
    assert_eq!(memory.snapshot_bytes, 0);
    assert!(memory.peak_bytes >= memory.used_bytes && memory.used_bytes > memory.lane_bytes);
}

#[test]
fn a_round_with_the_wrong_position_or_lane_changes_nothing() {
    let OpenEngine { mut engine, .. } = engine();
    let engine = engine.as_mut();
    let lane = engine.lane_open().unwrap();
    let error = round(engine, lane, 3, &[1], 0).unwrap_err();
    assert!(error.message.contains("holds 0 tokens, the round expects 3"), "{error}");
    assert_eq!(round(engine, lane + 1, 0, &[1], 0).unwrap_err().status, Status::NotFound);
    assert_eq!(round(engine, lane, 0, &[64], 0).unwrap_err().status, Status::InvalidArgument);
    assert_eq!(round(engine, lane, 0, &[1], 0).unwrap().2, 1);
}

#[test]
fn options_are_checked_by_name_and_value() {
    let error = Cpu::init(Init::detached(&[("threads", "many")])).err().unwrap();
    assert_eq!(error.message, "the option threads wants a whole number, found \"many\"");
    let error = Cpu::init(Init::detached(&[("activations", "int4")])).err().unwrap();
    assert_eq!(error.message, "the option activations wants f32 or int8, found \"int4\"");
    let error = Cpu::init(Init::detached(&[("colour", "red")])).err().unwrap();
    assert!(error.message.contains("colour"), "{error}");
    assert!(Cpu::init(Init::detached(&[])).unwrap().threads >= 1);
}

#[test]
fn what_activations_are_multiplied_as_is_said() {
    for (pairs, wanted) in [
        (&[("threads", "1")][..], "f32 activations"),
        (&[("threads", "1"), ("activations", "f32")], "f32 activations"),
        (&[("threads", "1"), ("activations", "int8")], "int8 activations"),
    ] {
        let cpu = Cpu::init(Init::detached(pairs)).unwrap();
        let device = cpu.open_device(&cpu.list_devices().unwrap()[0].identity).unwrap();
        let mut model = model(true);
        // Some of the weights, as far as the description says.
        model.spec.formats.push("mlx-q4g64".into());
        let opened = device.open_engine(&model, &options(), &Progress::silent()).unwrap();
        assert!(opened.info.description.contains(wanted), "{}", opened.info.description);
    }
}

#[test]
fn rounded_activations_are_refused_where_they_would_do_nothing() {
    let cpu = Cpu::init(Init::detached(&[("threads", "1"), ("activations", "int8")])).unwrap();
    let device = cpu.open_device(&cpu.list_devices().unwrap()[0].identity).unwrap();
    for format in ["f32", "mlx-q3g64"] {
        let mut model = model(true);
        model.spec.formats = vec![format.into()];
        let error = device.open_engine(&model, &options(), &Progress::silent()).err().unwrap();
        assert_eq!(device.plan(&model, &options()).unwrap_err().message, error.message);
        let wanted =
            format!("for weights of 4 or 8 bits, and this model's are {format}; leave the option out");
        assert!(error.message.contains(&wanted), "{error}");
    }
}
