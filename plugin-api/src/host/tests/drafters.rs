//! Drafters over the border.

use super::*;
use crate::abi::{DFLASH_INTERFACE, MTP_INTERFACE};
use crate::drafter_spec::{DRAFTER_SPEC_VERSION, DrafterLayerSpec, DrafterSpec};
use crate::model_spec::MtpSpec;
use crate::plugin::DraftKind;

struct TinyDrafter {
    spec: DrafterSpec,
    tensors: Vec<ModelTensor>,
}

impl TensorSource for TinyDrafter {
    fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }
    fn bytes(&self, _tensor: usize) -> &[u8] {
        &[9, 8]
    }
}

impl DrafterSource for TinyDrafter {
    fn spec(&self) -> &DrafterSpec {
        &self.spec
    }
}

fn drafter(block_size: u32, hidden_size: u32) -> Arc<TinyDrafter> {
    Arc::new(TinyDrafter {
        spec: DrafterSpec {
            version: DRAFTER_SPEC_VERSION,
            hidden_size,
            vocabulary_rows: 32,
            block_size,
            mask_token: 31,
            taps: vec![0],
            norm_epsilon: 1e-6,
            rope: RopeSpec { theta: 1e4, rotary_dimensions: 2, scaling: RopeScaling::None },
            embedding_scale: 1.0,
            output_multiplier: 1.0,
            logit_softcap: None,
            heads: 1,
            key_value_heads: 1,
            head_size: 2,
            intermediate_size: 1,
            layers: vec![DrafterLayerSpec { window: None, causal: false }],
            refinement: None,
            formats: vec!["bf16".into()],
        },
        tensors: vec![ModelTensor {
            name: "fc".into(),
            dtype: Dtype::Bf16,
            shape: vec![1, 1],
            packed: None,
            file_offset: 0,
            file_descriptor: None,
        }],
    })
}

fn with_head() -> Arc<TinyModel> {
    let mut model = Arc::into_inner(tiny_model()).unwrap();
    let layers = model.spec.layers.clone();
    model.spec.mtp = Some(MtpSpec { layers, norm_weight_offset: 0.0, formats: vec!["f32".into()] });
    Arc::new(model)
}

fn started(descriptor: &'static TfDescriptor, offered: &[&str]) -> Arc<DeviceClient> {
    let offered: Vec<String> = offered.iter().map(|&id| id.to_owned()).collect();
    // SAFETY: the tables are made by this crate in this process.
    let plugin =
        unsafe { PluginClient::new(descriptor, &offered, Box::new(Recorder::default()), &[]) }.unwrap();
    assert_eq!(plugin.offers_mtp(), offered.iter().any(|id| id == MTP_INTERFACE));
    assert_eq!(plugin.offers_dflash(), offered.iter().any(|id| id == DFLASH_INTERFACE));
    plugin.init(init_with(&[]), LIMIT).unwrap();
    plugin.open_device(&first_device()).unwrap()
}

const EVERYTHING: [&str; 4] = [BACKEND_INTERFACE, ENGINE_INTERFACE, MTP_INTERFACE, DFLASH_INTERFACE];

#[test]
fn drafters_are_planned_opened_used_and_closed() {
    own_plugin!(PLUGIN, Own, drafters);
    let device = started(&PLUGIN, &EVERYTHING);
    let plan = device.plan_mtp(&*with_head(), &setup()).unwrap();
    assert_eq!((plan.drafts, plan.lane_bytes), (3, 64));
    assert_eq!(device.plan_mtp(&*tiny_model(), &setup()).unwrap_err().message, "the model has no head");
    let plan = device.plan_dflash(&*tiny_model(), &*drafter(8, 1), &setup()).unwrap();
    assert_eq!((plan.drafts, plan.lane_bytes), (7, 128));
    let unfit = device.plan_dflash(&*tiny_model(), &*drafter(8, 2), &setup()).unwrap_err();
    assert_eq!(unfit.message, "another hidden size");

    let mut engine = device.open_engine(tiny_model(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap();
    let mut heard = Vec::new();
    let mut hear = |_, _, what: &str| {
        heard.push(what.to_owned());
        ControlFlow::Continue(())
    };
    assert_eq!(engine.open_mtp(&mut hear).unwrap(), 3);
    assert_eq!(engine.open_dflash(drafter(8, 1), &mut hear).unwrap(), 6);
    assert_eq!(heard, ["the head", "the drafter"]);
    let running = engine.lane_open().unwrap();
    assert_eq!(engine.close_mtp().unwrap_err().status, Status::Busy);
    assert_eq!(engine.close_dflash().unwrap_err().status, Status::Busy);
    let mut request = lane(running, 0, &[1, 2], 0, 1);
    request.next_drafts = NextDrafts { kind: DraftKind::Block, count: 2, confidence: 0.0 };
    let outcome = engine.round(&[request]).unwrap();
    assert_eq!(outcome.lanes[0].drafts, [(0, 0.5), (1, 0.5)]);
    assert_eq!(outcome.lanes[0].draft_kind, DraftKind::Block);
    engine.lane_close(running).unwrap();
    // The plugin looks at the drafter's bytes, which nothing else keeps any more.
    engine.close_dflash().unwrap();
    engine.close_mtp().unwrap();
}

#[test]
fn what_the_manifest_does_not_offer_is_not_called() {
    own_plugin!(PLUGIN, Own, drafters);
    let device = started(&PLUGIN, &EVERYTHING[..2]);
    let mut engine = device.open_engine(with_head(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap();
    for refused in [
        device.plan_mtp(&*with_head(), &setup()).map(drop),
        device.plan_dflash(&*with_head(), &*drafter(8, 1), &setup()).map(drop),
        engine.open_mtp(|_, _, _| ControlFlow::Continue(())).map(drop),
        engine.open_dflash(drafter(8, 1), |_, _, _| ControlFlow::Continue(())).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().status, Status::Unsupported);
    }
}

#[test]
fn what_the_manifest_offers_and_the_library_lacks_is_refused() {
    own_plugin!(PLUGIN, Own);
    for id in [MTP_INTERFACE, DFLASH_INTERFACE] {
        let offered = [BACKEND_INTERFACE.to_owned(), ENGINE_INTERFACE.to_owned(), id.to_owned()];
        // SAFETY: the tables are made by this crate in this process.
        let outcome = unsafe { PluginClient::new(&PLUGIN, &offered, Box::new(Recorder::default()), &[]) };
        assert_eq!(outcome.err(), Some(InterfaceError::Missing { id: id.to_owned() }));
    }
}

#[test]
fn a_drafter_that_makes_no_drafts_or_that_is_called_off_is_an_error() {
    own_plugin!(PLUGIN, Own, drafters);
    let device = started(&PLUGIN, &EVERYTHING);
    let mut engine = device.open_engine(tiny_model(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap();
    let useless = engine.open_dflash(drafter(2, 1), |_, _, _| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(useless.message, "the plugin opened a drafter that makes no drafts");
    let off = engine.open_mtp(|_, _, _| ControlFlow::Break(())).unwrap_err();
    assert_eq!(off.status, Status::Cancelled);
}
