//! Both halves of the border against each other, through the real tables.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use super::*;
use crate::abi::{
    ABI_MINOR, BACKEND_INTERFACE, ENGINE_INTERFACE, Status, TF_LOG_INFO, TF_STATUS_INVALID_ARGUMENT,
    TF_UNKNOWN, TfBackendV1, TfDescriptor, TfError, TfHostV1, TfInit, TfStr,
};
use crate::device::{DeviceIdentity, DeviceKind};
use crate::model_spec::{
    AttentionSpec, FeedForwardSpec, LayerSpec, MODEL_SPEC_VERSION, MixerSpec, ModelSpec, RopeScaling,
    RopeSpec,
};
use crate::plugin::__private::{Exported, Runtime, Tables, interface, tables};
use crate::plugin::tests::{Successor, VOCABULARY, test_plugin};
use crate::plugin::{Backend, Device, Dtype, Init, NextDrafts, PluginError};

/// Each test needs statics of its own, so each names its own type of backend.
macro_rules! own_plugin {
    ($descriptor:ident, $backend:ident $(, $drafters:ident)?) => {
        struct $backend(Successor);
        impl Backend for $backend {
            const OFFERS_ENGINE: bool = true;
            const OFFERS_MTP: bool = {
                let drafters: &[&str] = &[$(stringify!($drafters)),*];
                drafters.len() == 1
            };
            const OFFERS_DFLASH: bool = Self::OFFERS_MTP;
            fn init(init: Init<'_>) -> Result<Self, PluginError> {
                Successor::init(init).map($backend)
            }
            fn list_devices(&self) -> Result<Vec<crate::device::DeviceInfo>, PluginError> {
                self.0.list_devices()
            }
            fn fit_device(&self, device: &DeviceIdentity) -> Result<crate::device::DeviceFit, PluginError> {
                self.0.fit_device(device)
            }
            fn open_device(&self, device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
                self.0.open_device(device)
            }
            fn shutdown(&self) -> Result<(), PluginError> {
                self.0.shutdown()
            }
        }
        use crate::abi::{ABI_MAJOR, TF_PLUGIN_MAGIC};
        test_plugin!($descriptor, $backend);
    };
}

mod drafters;

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<LogRecord>>>);

impl HostServices for Recorder {
    fn log_enabled(&self, level: u32, _target: &str) -> bool {
        level <= TF_LOG_INFO
    }
    fn log(&self, record: LogRecord) {
        self.0.lock().unwrap().push(record);
    }
    fn memory_report(&self, _kind: u32, _bytes: u64) {}
}

struct TinyModel {
    spec: ModelSpec,
    tensors: Vec<ModelTensor>,
}

impl TensorSource for TinyModel {
    fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }
    fn bytes(&self, _tensor: usize) -> &[u8] {
        &[1, 2, 3, 4]
    }
}

impl ModelSource for TinyModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }
}

fn tiny_model() -> Arc<TinyModel> {
    Arc::new(TinyModel {
        spec: ModelSpec {
            version: MODEL_SPEC_VERSION,
            family: "llama".into(),
            hidden_size: 1,
            vocabulary_rows: 32,
            selectable_vocabulary: VOCABULARY,
            context_window: 64,
            norm_epsilon: 1e-5,
            norm_weight_offset: 0.0,
            tied_head: true,
            rope: RopeSpec { theta: 1e4, rotary_dimensions: 2, scaling: RopeScaling::None },
            layers: vec![LayerSpec {
                mixer: MixerSpec::Attention(AttentionSpec {
                    heads: 1,
                    key_value_heads: 1,
                    head_size: 2,
                    gated: false,
                    head_norms: false,
                    biases: false,
                }),
                feed_forward: FeedForwardSpec::Dense { intermediate_size: 1 },
            }],
            mtp: None,
            formats: vec!["f32".into()],
        },
        tensors: vec![ModelTensor {
            name: "embed".into(),
            dtype: Dtype::F32,
            shape: vec![1, 1],
            packed: None,
            file_offset: 0,
            file_descriptor: None,
        }],
    })
}

fn setup() -> EngineSetup {
    EngineSetup {
        lanes: 4,
        context: 64,
        rows: 64,
        world: 1,
        rank: 0,
        kv_dtype: String::new(),
        memory_limit: None,
    }
}

fn client(descriptor: &'static TfDescriptor, recorder: &Recorder) -> Arc<PluginClient> {
    let offered = [BACKEND_INTERFACE.to_owned(), ENGINE_INTERFACE.to_owned()];
    // SAFETY: the tables are made by this crate in this process.
    unsafe { PluginClient::new(descriptor, &offered, Box::new(recorder.clone()), &[]) }.unwrap()
}

fn init_with(configuration: &[(&str, &str, bool)]) -> InitOptions {
    InitOptions {
        host_version: "0.1.0".into(),
        agreed_abi_minor: ABI_MINOR,
        configuration: configuration.iter().map(|&(k, v, r)| (k.into(), v.into(), r)).collect(),
        log_level: TF_LOG_INFO,
    }
}

const LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

fn first_device() -> DeviceIdentity {
    DeviceIdentity {
        kind: DeviceKind::Cpu,
        pci_address: String::new(),
        uuid: String::new(),
        name: "successor".into(),
        index: 0,
    }
}

fn lane(lane: u64, position: u64, tokens: &[u32], drafts: usize, outputs: usize) -> LaneRequest<'_> {
    LaneRequest {
        lane,
        position,
        tokens,
        draft_count: drafts,
        output_count: outputs,
        sampling: crate::sampling::Sampling { seed: 0, temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0 },
        allowed: None,
        logprobs: None,
        next_drafts: NextDrafts::default(),
        cancel: None,
    }
}

#[test]
fn a_model_runs_over_the_border_from_init_to_shutdown() {
    own_plugin!(PLUGIN, Own);
    let recorder = Recorder::default();
    let plugin = client(&PLUGIN, &recorder);
    plugin.init(init_with(&[]), LIMIT).unwrap();
    let devices = plugin.list_devices().unwrap();
    assert_eq!(devices.len(), 70, "a list longer than the first guess arrives whole");
    assert_eq!(devices[69].identity.index, 69);
    assert_eq!(devices[0].facts, [("threads".to_owned(), "1".to_owned())]);
    assert!(plugin.fit_device(&devices[0].identity).unwrap().is_usable());
    assert_eq!(plugin.fit_device(&devices[1].identity).unwrap().text, "device 1 is taken");
    let device = plugin.open_device(&devices[0].identity).unwrap();
    assert_eq!(device.plan(&*tiny_model(), &setup()).unwrap().lane_bytes, 512);
    let mut seen = Vec::new();
    let mut engine = device
        .open_engine(tiny_model(), &setup(), |done, total, what| {
            seen.push((done, total, what.to_owned()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, [(1, 2, "loading".to_owned())]);
    assert_eq!(engine.info().unwrap().description, "counts upwards");
    let monitor = engine.monitor();
    let (a, b) = (engine.lane_open().unwrap(), engine.lane_open().unwrap());
    let outcome = engine.round(&[lane(a, 0, &[1, 2, 3], 0, 1), lane(b, 0, &[7], 0, 0)]).unwrap();
    assert_eq!(outcome.lanes[0].tokens, [4]);
    assert!(outcome.lanes[1].tokens.is_empty());
    assert_eq!((outcome.forward_nanoseconds, outcome.draft_nanoseconds), (Some(5), None));
    assert_eq!(outcome.degraded, "slow");
    let kept = engine.snapshot(a).unwrap();
    assert_eq!(kept.position, 3);
    let mut verify = lane(a, 3, &[4, 5, 6, 9], 3, 4);
    verify.next_drafts = NextDrafts { kind: crate::plugin::DraftKind::Mtp, count: 2, confidence: 0.3 };
    let outcome = engine.round(&[verify]).unwrap();
    assert_eq!(outcome.lanes[0].accepted, 2);
    assert_eq!(outcome.lanes[0].tokens, [5, 6, 7]);
    assert_eq!(outcome.lanes[0].position, 6);
    assert_eq!(outcome.lanes[0].drafts, [(0, 0.5), (1, 0.5)]);
    engine.restore(a, kept.snapshot).unwrap();
    engine.round(&[lane(a, 3, &[8], 0, 1)]).unwrap();
    engine.drop_snapshot(kept.snapshot).unwrap();
    assert_eq!(engine.fork(a).unwrap_err().status, Status::Unsupported);
    assert_eq!(monitor.stats().unwrap().rounds, 3);
    assert_eq!(monitor.stats().unwrap().rows, TF_UNKNOWN);
    assert_eq!(monitor.memory().unwrap().used_bytes, 7);
    engine.lane_close(a).unwrap();
    drop((engine, monitor, device));
    plugin.shutdown().unwrap();
    plugin.shutdown().unwrap();
    plugin.init(init_with(&[]), LIMIT).unwrap();
    plugin.shutdown().unwrap();
}

#[test]
fn a_panic_is_a_status_and_spoils_only_its_engine() {
    own_plugin!(PLUGIN, Own);
    let plugin = client(&PLUGIN, &Recorder::default());
    let failure = plugin.init(init_with(&[("fail", "panic", true)]), LIMIT).unwrap_err();
    assert_eq!(failure.status, Status::Panicked);
    assert!(failure.message.contains("tests.rs") && failure.message.ends_with("asked to panic"), "{failure}");
    plugin.init(init_with(&[]), LIMIT).unwrap();
    let device = plugin.open_device(&first_device()).unwrap();
    let mut engine = device.open_engine(tiny_model(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap();
    let a = engine.lane_open().unwrap();
    let failure = engine.round(&[lane(a, 0, &[13], 0, 1)]).unwrap_err();
    assert_eq!(failure.status, Status::Panicked);
    assert!(failure.message.contains("an unlucky token"), "{failure}");
    assert_eq!(engine.lane_open().unwrap_err().status, Status::Panicked);
    let mut second = device.open_engine(tiny_model(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap();
    let b = second.lane_open().unwrap();
    assert_eq!(second.round(&[lane(b, 0, &[1], 0, 1)]).unwrap().lanes[0].tokens, [2]);
    drop((engine, second, device));
    plugin.shutdown().unwrap();
}

#[test]
fn failures_arrive_with_status_text_and_facts() {
    own_plugin!(PLUGIN, Own);
    let plugin = client(&PLUGIN, &Recorder::default());
    let failure = plugin.init(init_with(&[("fail", "error", true)]), LIMIT).unwrap_err();
    assert_eq!(failure.status, Status::RuntimeMissing);
    assert_eq!((failure.to_string().as_str(), failure.detail("tried")), ("no driver", Some("libx.so.1")));
    let failure = plugin.init(init_with(&[("colour", "red", true)]), LIMIT).unwrap_err();
    assert_eq!(failure.status, Status::Unsupported);
    assert!(failure.message.contains("colour"), "{failure}");
    plugin.init(init_with(&[("colour", "red", false)]), LIMIT).unwrap();
    assert_eq!(plugin.init(init_with(&[]), LIMIT).unwrap_err().status, Status::Busy);
    let missing = DeviceIdentity { index: 5, ..first_device() };
    assert_eq!(plugin.open_device(&missing).err().unwrap().status, Status::NotFound);
    let device = plugin.open_device(&first_device()).unwrap();
    let cancelled = device.open_engine(tiny_model(), &setup(), |_, _, _| ControlFlow::Break(()));
    assert_eq!(cancelled.err().unwrap().status, Status::Cancelled);
    drop(device);
    plugin.shutdown().unwrap();
    plugin.init(init_with(&[("fail", "shutdown", true)]), LIMIT).unwrap();
    assert_eq!(plugin.shutdown().unwrap_err().message, "would not end");
}

#[test]
fn a_round_that_makes_no_sense_is_refused_and_changes_nothing() {
    own_plugin!(PLUGIN, Own);
    let plugin = client(&PLUGIN, &Recorder::default());
    plugin.init(init_with(&[]), LIMIT).unwrap();
    let device = plugin.open_device(&first_device()).unwrap();
    let mut engine = device.open_engine(tiny_model(), &setup(), |_, _, _| ControlFlow::Continue(())).unwrap();
    let a = engine.lane_open().unwrap();
    let mut refuse = |lanes: &[LaneRequest<'_>]| engine.round(lanes).unwrap_err().status;
    assert_eq!(refuse(&[]), Status::InvalidArgument);
    assert_eq!(refuse(&[lane(a, 0, &[], 0, 0)]), Status::InvalidArgument);
    assert_eq!(refuse(&[lane(a, 0, &[1], 0, 2)]), Status::InvalidArgument);
    assert_eq!(refuse(&[lane(a, 0, &[1, 2], 1, 1)]), Status::InvalidArgument);
    assert_eq!(refuse(&[lane(a, 0, &[1], 0, 1), lane(a, 0, &[1], 0, 1)]), Status::InvalidArgument);
    assert_eq!(refuse(&[lane(a, 9, &[1], 0, 1)]), Status::InvalidArgument);
    assert_eq!(refuse(&[lane(a + 1, 0, &[1], 0, 1)]), Status::NotFound);
    let cancel = engine.cancel_handle();
    cancel.cancel();
    let mut request = lane(a, 0, &[1], 0, 1);
    request.cancel = Some(cancel);
    let outcome = engine.round(&[request]).unwrap();
    assert!(outcome.lanes[0].cancelled && outcome.lanes[0].position == 0);
    assert_eq!(engine.round(&[lane(a, 0, &[1], 0, 1)]).unwrap().lanes[0].tokens, [2]);
    drop((engine, device));
    plugin.shutdown().unwrap();
}

#[test]
fn log_records_of_a_plugin_reach_the_host() {
    own_plugin!(PLUGIN, Own);
    let recorder = Recorder::default();
    let plugin = client(&PLUGIN, &recorder);
    plugin.init(init_with(&[]), LIMIT).unwrap();
    plugin.list_devices().unwrap();
    // In one process the subscriber is installed by whichever plugin starts first, so the record
    // may have gone to another test's host; sending one directly always reaches this one.
    let table = plugin.host.table;
    let record = crate::abi::TfLogRecord {
        struct_size: size_of::<crate::abi::TfLogRecord>() as u32,
        level: 99,
        target: TfStr::new("driver"),
        message: TfStr::new("hello"),
        file: TfStr::EMPTY,
        line: 0,
        field_count: 0,
        fields: std::ptr::null(),
    };
    // SAFETY: the table's contract.
    unsafe { table.log.unwrap()(table.context, &record) };
    let records = recorder.0.lock().unwrap();
    let direct = records.iter().find(|record| record.target == "driver").unwrap();
    assert_eq!((direct.message.as_str(), direct.level), ("hello", crate::abi::TF_LOG_ERROR));
    drop(records);
    plugin.shutdown().unwrap();
}

#[test]
fn a_plugin_refuses_a_host_that_is_null_or_too_small() {
    own_plugin!(PLUGIN, Own);
    // SAFETY: the id is readable.
    let table =
        unsafe { PLUGIN.get_interface.unwrap()(BACKEND_INTERFACE.as_ptr(), BACKEND_INTERFACE.len() as u64) };
    // SAFETY: the id names this type.
    let backend = unsafe { &*table.cast::<TfBackendV1>() };
    let plugin = client(&PLUGIN, &Recorder::default());
    let small = TfHostV1 { struct_size: 16, ..*plugin.host.table };
    for host in [std::ptr::null(), &raw const small] {
        let init = TfInit {
            struct_size: size_of::<TfInit>() as u32,
            host_abi_major: 0,
            agreed_abi_minor: ABI_MINOR,
            host_version: TfStr::new("0"),
            host,
            configuration: std::ptr::null(),
            configuration_count: 0,
            log_level: 0,
            reserved: 0,
        };
        let mut error = TfError::empty();
        // SAFETY: the table's contract, but for the host table that is under test.
        let status = unsafe { backend.init.unwrap()(&init, &mut error) };
        assert_eq!(status, TF_STATUS_INVALID_ARGUMENT);
        // SAFETY: filled by the plugin.
        assert!(unsafe { error.message.to_string_lossy() }.contains("tensorfold.host/1"));
        // SAFETY: filled by the plugin, released once; the second call finds it empty.
        unsafe {
            backend.release_error.unwrap()(&mut error);
            backend.release_error.unwrap()(&mut error);
        }
    }
    // SAFETY: null arguments are refused, a null error is allowed.
    let status = unsafe { backend.init.unwrap()(std::ptr::null(), std::ptr::null_mut()) };
    assert_eq!(status, TF_STATUS_INVALID_ARGUMENT);
}

#[test]
fn ids_that_are_unknown_empty_or_long_are_not_offered() {
    own_plugin!(PLUGIN, Own);
    let get = PLUGIN.get_interface.unwrap();
    let long = "x".repeat(4096);
    for id in ["", "tensorfold.engine/2", "tensorfold.engine/", &long] {
        // SAFETY: the id is readable.
        assert!(unsafe { get(id.as_ptr(), id.len() as u64) }.is_null(), "{id}");
    }
    // SAFETY: null with length 0 is the empty id.
    assert!(unsafe { get(std::ptr::null(), 0) }.is_null());
    let offered = ["tensorfold.backend/1".to_owned()];
    // SAFETY: the tables are made by this crate.
    let plugin = unsafe { PluginClient::new(&PLUGIN, &offered, Box::new(Recorder::default()), &[]) }.unwrap();
    assert!(!plugin.offers_engine(), "what the manifest does not list is not used");
}
