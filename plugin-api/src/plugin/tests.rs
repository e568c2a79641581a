//! A small backend that both sides' tests talk through, over the real tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

use crate::device::{DeviceKind, DeviceMemory};

/// Makes a descriptor over its own statics for one more type of backend.
macro_rules! test_plugin {
    ($name:ident, $backend:ty) => {
        #[allow(non_local_definitions, reason = "each test needs statics of its own")]
        pub(crate) static $name: TfDescriptor = {
            static RUNTIME: Runtime<$backend> = Runtime::new();
            static TABLES: Tables = tables::<$backend>();
            impl Exported for $backend {
                fn runtime() -> &'static Runtime<Self> {
                    &RUNTIME
                }
            }
            unsafe extern "C" fn get(id: *const u8, length: u64) -> *const std::ffi::c_void {
                // SAFETY: the contract of `get_interface`.
                unsafe { interface::<$backend>(id, length, &TABLES) }
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
                version: TfStr::new("1.2.3"),
                build_id: TfStr::new("test"),
            }
        };
    };
}
pub(crate) use test_plugin;

/// Draws the successor of each token that it is fed; a token 13 makes it panic.
pub(crate) struct Successor {
    pub(crate) fail_shutdown: bool,
}

pub(crate) const VOCABULARY: u32 = 20;

impl Backend for Successor {
    const OFFERS_ENGINE: bool = true;
    const OFFERS_MTP: bool = true;
    const OFFERS_DFLASH: bool = true;

    fn init(init: Init<'_>) -> Result<Self, PluginError> {
        init.check_keys(&["fail"])?;
        match init.value("fail") {
            Some("panic") => panic!("asked to panic"),
            Some("error") => {
                Err(PluginError::new(Status::RuntimeMissing, "no driver").with("tried", "libx.so.1"))
            }
            Some("shutdown") => Ok(Successor { fail_shutdown: true }),
            _ => Ok(Successor { fail_shutdown: false }),
        }
    }

    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        tracing::info!(devices = 70, "listing");
        Ok((0..70).map(device).collect())
    }

    fn fit_device(&self, device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        if device.index == 0 {
            Ok(DeviceFit::usable())
        } else {
            Ok(DeviceFit::unusable(crate::abi::TF_UNFIT_DEVICE, format!("device {} is taken", device.index)))
        }
    }

    fn open_device(&self, device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        if device.index == 0 {
            Ok(Box::new(OnlyDevice))
        } else {
            Err(PluginError::new(Status::NotFound, "no such device"))
        }
    }

    fn shutdown(&self) -> Result<(), PluginError> {
        if self.fail_shutdown { Err(PluginError::internal("would not end")) } else { Ok(()) }
    }
}

fn device(index: u32) -> DeviceInfo {
    DeviceInfo {
        identity: DeviceIdentity {
            kind: DeviceKind::Cpu,
            pci_address: String::new(),
            uuid: String::new(),
            name: "successor".into(),
            index,
        },
        memory: DeviceMemory::Unified,
        arch: "any".into(),
        memory_bytes: Some(1024),
        free_memory_bytes: None,
        driver: String::new(),
        facts: vec![("threads".into(), "1".into())],
    }
}

struct OnlyDevice;

impl Device for OnlyDevice {
    fn plan(&self, model: &Model<'_>, options: &EngineOptions<'_>) -> Result<MemoryPlan, PluginError> {
        assert!(model.tensors.iter().all(|tensor| tensor.data.is_none()), "a plan sees no bytes");
        Ok(MemoryPlan { lanes: options.lanes, lane_bytes: 8 * options.context, ..MemoryPlan::default() })
    }

    fn plan_mtp(&self, model: &Model<'_>, options: &EngineOptions<'_>) -> Result<DrafterPlan, PluginError> {
        if model.spec.mtp.is_none() {
            return Err(PluginError::unsupported("the model has no head"));
        }
        Ok(DrafterPlan { drafts: 3, lane_bytes: options.context, ..DrafterPlan::default() })
    }

    fn plan_dflash(
        &self,
        model: &Model<'_>,
        drafter: &Drafter<'_>,
        options: &EngineOptions<'_>,
    ) -> Result<DrafterPlan, PluginError> {
        if model.spec.hidden_size != drafter.spec.hidden_size {
            return Err(PluginError::unsupported("another hidden size"));
        }
        let drafts = drafter.spec.block_size - 1;
        Ok(DrafterPlan { drafts, lane_bytes: 2 * options.context, ..DrafterPlan::default() })
    }

    fn open_engine(
        &self,
        model: &Model<'_>,
        options: &EngineOptions<'_>,
        progress: &Progress<'_>,
    ) -> Result<OpenEngine, PluginError> {
        progress.report(1, 2, "loading")?;
        let embed = model.tensor("embed").ok_or_else(|| PluginError::invalid("no tensor embed"))?;
        let bytes = embed.data.ok_or_else(|| PluginError::invalid("embed has no bytes"))?;
        let counts = Arc::new(Counts::default());
        Ok(OpenEngine {
            engine: Box::new(Succession {
                lanes: Handles::new(3),
                snapshots: Handles::new(4),
                bytes,
                drafter: None,
                vocabulary: model.spec.selectable_vocabulary,
                counts: counts.clone(),
            }),
            monitor: counts,
            info: EngineInfo {
                lanes: options.lanes,
                context: options.context,
                prefill_rows: 64,
                output_rows: 16,
                description: "counts upwards".into(),
            },
        })
    }
}

#[derive(Default)]
struct Counts {
    rounds: AtomicU64,
}

impl EngineMonitor for Counts {
    fn memory(&self) -> EngineMemory {
        EngineMemory { used_bytes: 7, ..EngineMemory::default() }
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            struct_size: 0,
            reserved: 0,
            rounds: self.rounds.load(Ordering::Relaxed),
            rows: crate::abi::TF_UNKNOWN,
            drawn: crate::abi::TF_UNKNOWN,
            verified: crate::abi::TF_UNKNOWN,
            accepted: crate::abi::TF_UNKNOWN,
        }
    }
}

struct Succession {
    lanes: Handles<Vec<u32>>,
    snapshots: Handles<Vec<u32>>,
    bytes: TensorBytes,
    drafter: Option<TensorBytes>,
    vocabulary: u32,
    counts: Arc<Counts>,
}

impl Succession {
    fn idle(&self) -> Result<(), PluginError> {
        match self.lanes.is_empty() && self.snapshots.is_empty() {
            true => Ok(()),
            false => Err(PluginError::new(Status::Busy, "lanes or snapshots are there")),
        }
    }
}

impl Engine for Succession {
    fn lane_open(&mut self) -> Result<u64, PluginError> {
        // SAFETY: the engine is open, since it is being called.
        assert_eq!(unsafe { self.bytes.get() }.len(), 4);
        Ok(self.lanes.insert(Vec::new()))
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
            let held = self.lanes.get_mut(input.lane, "lane")?;
            if held.len() as u64 != input.position {
                return Err(PluginError::invalid("the lane stands elsewhere"));
            }
            assert!(!input.tokens.contains(&13), "an unlucky token");
            if input.cancel.is_cancelled() {
                output.cancelled = true;
                continue;
            }
            let draws: Vec<u32> = input.tokens.iter().map(|token| (token + 1) % self.vocabulary).collect();
            let first = input.tokens.len() - input.output_count;
            let mut kept = input.tokens.len() - input.draft_count;
            if input.draft_count > 0 {
                while output.accepted < input.draft_count && input.tokens[kept] == draws[kept - 1] {
                    kept += 1;
                    output.accepted += 1;
                }
                output.token_count = output.accepted + 1;
            } else {
                output.token_count = input.output_count;
            }
            output.tokens[..output.token_count].copy_from_slice(&draws[first..first + output.token_count]);
            held.extend(&input.tokens[..kept]);
            output.position = held.len() as u64;
            for draft in 0..input.next_drafts.count {
                output.drafts[draft] = draft as u32;
                output.draft_probabilities[draft] = 0.5;
            }
            output.draft_count = input.next_drafts.count;
            output.draft_kind = input.next_drafts.kind;
        }
        self.counts.rounds.fetch_add(1, Ordering::Relaxed);
        Ok(RoundReport { forward_nanoseconds: Some(5), degraded: "slow".into(), ..RoundReport::default() })
    }

    fn snapshot(&mut self, lane: u64) -> Result<Snapshot, PluginError> {
        let held = self.lanes.get(lane, "lane")?.clone();
        let position = held.len() as u64;
        Ok(Snapshot {
            snapshot: self.snapshots.insert(held),
            position,
            bytes: 4 * position,
            ..Snapshot::default()
        })
    }

    fn restore(&mut self, lane: u64, snapshot: u64) -> Result<(), PluginError> {
        let kept = self.snapshots.get(snapshot, "snapshot")?.clone();
        *self.lanes.get_mut(lane, "lane")? = kept;
        Ok(())
    }

    fn drop_snapshot(&mut self, snapshot: u64) -> Result<(), PluginError> {
        self.snapshots.remove(snapshot, "snapshot").map(drop)
    }

    fn open_mtp(&mut self, progress: &Progress<'_>) -> Result<u32, PluginError> {
        self.idle()?;
        progress.report(1, 1, "the head")?;
        Ok(3)
    }

    fn close_mtp(&mut self) -> Result<(), PluginError> {
        self.idle()
    }

    fn open_dflash(&mut self, drafter: &Drafter<'_>, progress: &Progress<'_>) -> Result<u32, PluginError> {
        self.idle()?;
        progress.report(1, 1, "the drafter")?;
        self.drafter = drafter.tensors[0].data;
        // A block of two rows is a drafter that this one cannot run, but does not refuse.
        Ok(drafter.spec.block_size - 2)
    }

    fn close_dflash(&mut self) -> Result<(), PluginError> {
        self.idle()?;
        let bytes = self.drafter.take().ok_or_else(|| PluginError::invalid("no drafter is open"))?;
        // SAFETY: the drafter is open until this call ends.
        assert_eq!(unsafe { bytes.get() }, [9, 8]);
        Ok(())
    }
}

#[test]
fn handles_are_never_zero_never_reused_and_differ_by_kind() {
    let mut lanes = Handles::new(3);
    let mut snapshots = Handles::new(4);
    let (a, s) = (lanes.insert('a'), snapshots.insert('s'));
    assert_ne!(a, 0);
    assert_ne!(a, s);
    lanes.remove(a, "lane").unwrap();
    let b = lanes.insert('b');
    assert_ne!(a, b);
    assert_eq!(lanes.get(a, "lane").unwrap_err().status, Status::NotFound);
    assert_eq!(lanes.get(s, "lane").unwrap_err().status, Status::NotFound);
}

#[test]
fn builds_with_another_manifest_or_version_have_another_fingerprint() {
    let one = super::__private::fingerprint(&[b"manifest", b"1.0.0"]);
    assert_eq!(one, super::__private::fingerprint(&[b"manifest", b"1.0.0"]));
    assert_ne!(one, super::__private::fingerprint(&[b"manifest", b"1.0.1"]));
    assert!(one.iter().all(u8::is_ascii_hexdigit));
}
