//! The model's own head, and block drafters.

use tensorfold_plugin_api::drafter_spec::*;

use super::*;

#[test]
fn a_head_is_planned_opened_and_drafts_without_changing_the_reply() {
    let refused = device().plan_mtp(&model(false), &options()).unwrap_err();
    assert_eq!(
        (refused.status, refused.message.as_str()),
        (Status::Unsupported, "the model has no multi-token prediction head")
    );
    let plan = device().plan_mtp(&model_with_head(false), &options()).unwrap();
    assert_eq!(plan.snapshot_token_bytes, 2 * 16 * 4);
    assert!(plan.mapped_bytes > 0 && plan.weight_bytes > 0 && plan.lane_bytes > plan.snapshot_bytes);

    let OpenEngine { mut engine, monitor, .. } = opened(&model_with_head(true));
    let engine = engine.as_mut();
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 60).collect();
    let lane = engine.lane_open().unwrap();
    let expected = serial(engine, lane, 0, &prompt);
    let busy = engine.open_mtp(&Progress::silent()).unwrap_err();
    assert_eq!((busy.status, busy.message.as_str()), (Status::Busy, "1 lanes and 0 snapshots are there"));
    engine.lane_close(lane).unwrap();
    let before = monitor.memory().used_bytes;
    let most = engine.open_mtp(&Progress::silent()).unwrap();
    assert_eq!(most, plan.drafts);
    assert!(monitor.memory().used_bytes > before);

    let lane = engine.lane_open().unwrap();
    let reply = drafted_reply(engine, lane, &prompt, expected.len(), DraftKind::Mtp);
    assert_eq!(reply, expected);
    assert_eq!(engine.close_mtp().unwrap_err().status, Status::Busy);
    engine.lane_close(lane).unwrap();
    engine.close_mtp().unwrap();
    assert_eq!(monitor.memory().used_bytes, before);
}

/// The first tokens of a reply whose rounds test three drafts; there are some.
fn drafted_reply(
    engine: &mut dyn Engine,
    lane: u64,
    prompt: &[u32],
    length: usize,
    kind: DraftKind,
) -> Vec<u32> {
    let (mut feed, mut drafts, mut position) = (prompt.to_vec(), Vec::new(), 0);
    let mut reply = Vec::new();
    let mut drafted = 0;
    while reply.len() < length {
        let tokens = [&feed[..], &drafts[..]].concat();
        let (drawn, now, next) = drafting_round(engine, lane, position, &tokens, drafts.len(), (kind, 3));
        (feed, drafts, position) = (drawn[drawn.len() - 1..].to_vec(), next, now);
        assert!(drafts.iter().all(|&token| token < 60));
        drafted += drafts.len();
        reply.extend(drawn);
    }
    assert!(drafted > 0);
    reply.truncate(length);
    reply
}

/// Feeds a lane and asks for drafts: what was drawn, the lane's position, and the drafts.
fn drafting_round(
    engine: &mut dyn Engine,
    lane: u64,
    position: u64,
    tokens: &[u32],
    draft_count: usize,
    wanted: (DraftKind, usize),
) -> (Vec<u32>, u64, Vec<u32>) {
    let (kind, count) = wanted;
    let (mut drawn, mut drafts, mut probabilities) =
        (vec![0; draft_count + 1], vec![0; count], vec![0.0; count]);
    let input = LaneInput {
        lane,
        position,
        tokens,
        draft_count,
        output_count: draft_count + 1,
        sampling: SAMPLING,
        allowed: None,
        logprobs: None,
        next_drafts: NextDrafts { kind, count, confidence: 0.0 },
        cancel: CancelToken::never(),
    };
    let output = LaneOutput {
        cancelled: false,
        position,
        tokens: &mut drawn,
        token_count: 0,
        accepted: 0,
        drafts: &mut drafts,
        draft_probabilities: &mut probabilities,
        draft_count: 0,
        draft_kind: DraftKind::None,
        logprobs: &mut [],
        logprob_count: 0,
    };
    let mut outputs = [output];
    engine.round(&[input], &mut outputs).unwrap();
    let [output] = outputs;
    let (position, token_count, made) = (output.position, output.token_count, output.draft_count);
    assert!(made == 0 || output.draft_kind == kind);
    drawn.truncate(token_count);
    drafts.truncate(made);
    (drawn, position, drafts)
}

/// A DFlash2 drafter of the small model; without bytes for a plan.
fn block_drafter(hidden: u64, bytes: bool) -> Drafter<'static> {
    let layers = vec![
        DrafterLayerSpec { window: Some(32), causal: false },
        DrafterLayerSpec { window: None, causal: false },
    ];
    let refinement = RefinementSpec {
        convolution_kernel: 2,
        convolution_group: 16,
        selector_rank: 16,
        selector_candidates: 4,
    };
    let spec = DrafterSpec {
        version: DRAFTER_SPEC_VERSION,
        hidden_size: hidden as u32,
        vocabulary_rows: VOCABULARY as u32,
        block_size: 8,
        mask_token: 63,
        taps: vec![0, 1],
        norm_epsilon: 1e-6,
        rope: RopeSpec { theta: 1e4, rotary_dimensions: 16, scaling: RopeScaling::None },
        embedding_scale: 1.0,
        output_multiplier: 1.0,
        logit_softcap: None,
        heads: 2,
        key_value_heads: 1,
        head_size: 16,
        intermediate_size: 48,
        layers,
        refinement: Some(refinement),
        formats: vec!["f32".into()],
    };
    let mut maker = Maker::new(bytes);
    maker.add("fc".into(), &[hidden, 2 * hidden]);
    maker.add("hidden_norm".into(), &[hidden]);
    maker.add("norm".into(), &[hidden]);
    for layer in 0..2 {
        let mut part = |name: &str, shape: &[u64]| maker.add(format!("layers.{layer}.{name}"), shape);
        part("input_norm", &[hidden]);
        part("post_norm", &[hidden]);
        part("attention.q", &[32, hidden]);
        part("attention.k", &[16, hidden]);
        part("attention.v", &[16, hidden]);
        part("attention.o", &[hidden, 32]);
        part("attention.q_norm", &[16]);
        part("attention.k_norm", &[16]);
        part("ffn.gate", &[48, hidden]);
        part("ffn.up", &[48, hidden]);
        part("ffn.down", &[hidden, 48]);
        for half in ["attention_conv", "ffn_conv"] {
            part(&format!("{half}.base"), &[2, 2, hidden]);
            part(&format!("{half}.projection"), &[2 * 2 * hidden / 16, hidden]);
        }
    }
    maker.add("selector.hidden".into(), &[16, hidden]);
    maker.add("selector.predecessor".into(), &[VOCABULARY, 16]);
    maker.add("selector.successor".into(), &[VOCABULARY, 16]);
    Drafter::new(spec, maker.tensors)
}

#[test]
fn a_block_drafter_is_planned_opened_and_drafts_without_changing_the_reply() {
    let plan = device().plan_dflash(&model(false), &block_drafter(HIDDEN, false), &options()).unwrap();
    assert_eq!(plan.drafts, 7);
    // The layer without a window keeps a key and a value of 16 floats for each token.
    assert!(plan.snapshot_token_bytes >= 2 * 16 * 4 && plan.mapped_bytes > 0 && plan.lane_bytes > 0);
    // Norms of both layers and of the whole, and the kernels of four mixes.
    assert_eq!(plan.weight_bytes, 4 * (2 * (2 * HIDDEN + 2 * 16) + 2 * HIDDEN + 4 * 4 * HIDDEN));

    let OpenEngine { mut engine, monitor, .. } = opened(&model(true));
    let engine = engine.as_mut();
    let prompt: Vec<u32> = (0..70).map(|i| i * 7 % 60).collect();
    let lane = engine.lane_open().unwrap();
    let expected = serial(engine, lane, 0, &prompt);
    let drafter = block_drafter(HIDDEN, true);
    let busy = engine.open_dflash(&drafter, &Progress::silent()).unwrap_err();
    assert_eq!((busy.status, busy.message.as_str()), (Status::Busy, "1 lanes and 0 snapshots are there"));
    engine.lane_close(lane).unwrap();
    let before = monitor.memory().used_bytes;
    assert_eq!(engine.open_dflash(&drafter, &Progress::silent()).unwrap(), plan.drafts);
    // Opened once more, it takes its own place.
    engine.open_dflash(&drafter, &Progress::silent()).unwrap();
    assert_eq!(monitor.memory().used_bytes, before + plan.weight_bytes + plan.scratch_bytes);

    let lane = engine.lane_open().unwrap();
    assert_eq!(drafted_reply(engine, lane, &prompt, expected.len(), DraftKind::Block), expected);
    assert!(monitor.memory().lane_bytes > plan.snapshot_bytes);
    assert_eq!(engine.close_dflash().unwrap_err().status, Status::Busy);
    engine.lane_close(lane).unwrap();
    engine.close_dflash().unwrap();
    assert_eq!(monitor.memory().used_bytes, before);
}

#[test]
fn a_block_drafter_of_another_model_is_refused_by_plan_and_open() {
    let planned = device().plan_dflash(&model(false), &block_drafter(48, false), &options()).unwrap_err();
    let OpenEngine { mut engine, .. } = opened(&model(true));
    let opened = engine.open_dflash(&block_drafter(48, true), &Progress::silent()).unwrap_err();
    for refused in [planned, opened] {
        assert_eq!(
            (refused.status, refused.message.as_str()),
            (Status::Unsupported, "the drafter's hidden size is 48, the model's 32")
        );
    }
}

#[test]
fn drafts_of_what_is_not_open_are_refused() {
    let OpenEngine { mut engine, .. } = opened(&model(true));
    for (kind, what) in [(DraftKind::Mtp, "head"), (DraftKind::Block, "block drafter")] {
        let lane = engine.lane_open().unwrap();
        let input = LaneInput {
            lane,
            position: 0,
            tokens: &[1],
            draft_count: 0,
            output_count: 1,
            sampling: SAMPLING,
            allowed: None,
            logprobs: None,
            next_drafts: NextDrafts { kind, count: 1, confidence: 0.0 },
            cancel: CancelToken::never(),
        };
        let error = engine.round(&[input], &mut []).unwrap_err();
        assert!(error.status == Status::InvalidArgument && error.message.contains(what), "{error}");
        engine.lane_close(lane).unwrap();
    }
}
