//! A plugin for tests that panics in the call that its option `panic-in` names.
//!
//! Without the option it is sound: its engine answers every token with the next one. It shows that no panic crosses
//! the border, whichever call it happens in.

use std::sync::Arc;

use tensorfold_plugin_api::device::{DeviceFit, DeviceIdentity, DeviceInfo, DeviceKind, DeviceMemory};
use tensorfold_plugin_api::plugin::{
    Backend, Device, Engine, EngineInfo, EngineMemory, EngineMonitor, EngineOptions, EngineStats, Handles,
    Init, LaneInput, LaneOutput, MemoryPlan, Model, OpenEngine, PluginError, Progress, RoundReport, Snapshot,
};

/// Where the panic is due.
#[derive(Clone)]
struct Fuse(Arc<str>);

impl Fuse {
    fn burn(&self, call: &str) {
        assert!(*self.0 != *call, "asked to panic in {call}");
    }
}

struct Panicking(Fuse);

tensorfold_plugin_api::export_plugin! {
    backend: Panicking,
    manifest: "../tensorfold_plugin.toml",
}

impl Backend for Panicking {
    const OFFERS_ENGINE: bool = true;

    fn init(init: Init<'_>) -> Result<Self, PluginError> {
        init.check_keys(&["panic-in"])?;
        let fuse = Fuse(init.value("panic-in").unwrap_or_default().into());
        fuse.burn("init");
        Ok(Panicking(fuse))
    }

    fn list_devices(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        self.0.burn("list_devices");
        let identity = DeviceIdentity {
            kind: DeviceKind::Cpu,
            pci_address: String::new(),
            uuid: String::new(),
            name: "a nervous one".to_owned(),
            index: 0,
        };
        Ok(vec![DeviceInfo {
            identity,
            memory: DeviceMemory::Unified,
            arch: "any".to_owned(),
            memory_bytes: None,
            free_memory_bytes: None,
            driver: String::new(),
            facts: Vec::new(),
        }])
    }

    fn fit_device(&self, _device: &DeviceIdentity) -> Result<DeviceFit, PluginError> {
        self.0.burn("fit_device");
        Ok(DeviceFit::usable())
    }

    fn open_device(&self, _device: &DeviceIdentity) -> Result<Box<dyn Device>, PluginError> {
        self.0.burn("open_device");
        Ok(Box::new(Nervous(self.0.clone())))
    }

    fn shutdown(&self) -> Result<(), PluginError> {
        self.0.burn("shutdown");
        Ok(())
    }
}

struct Nervous(Fuse);

impl Drop for Nervous {
    fn drop(&mut self) {
        self.0.burn("close_device");
    }
}

impl Device for Nervous {
    fn plan(&self, _model: &Model<'_>, options: &EngineOptions<'_>) -> Result<MemoryPlan, PluginError> {
        self.0.burn("plan");
        Ok(MemoryPlan { lanes: options.lanes, ..MemoryPlan::default() })
    }

    fn open_engine(
        &self,
        model: &Model<'_>,
        options: &EngineOptions<'_>,
        _progress: &Progress<'_>,
    ) -> Result<OpenEngine, PluginError> {
        self.0.burn("open_engine");
        Ok(OpenEngine {
            engine: Box::new(Counting {
                fuse: self.0.clone(),
                lanes: Handles::new(3),
                snapshots: Handles::new(4),
                vocabulary: model.spec.selectable_vocabulary,
            }),
            monitor: Arc::new(Monitor(self.0.clone())),
            info: EngineInfo {
                lanes: options.lanes,
                context: options.context,
                prefill_rows: 64,
                output_rows: 1,
                description: "counts, nervously".to_owned(),
            },
        })
    }
}

struct Monitor(Fuse);

impl EngineMonitor for Monitor {
    fn memory(&self) -> EngineMemory {
        self.0.burn("memory");
        EngineMemory::default()
    }

    fn stats(&self) -> EngineStats {
        self.0.burn("stats");
        EngineStats { struct_size: 0, reserved: 0, rounds: 0, rows: 0, drawn: 0, verified: 0, accepted: 0 }
    }
}

struct Counting {
    fuse: Fuse,
    lanes: Handles<u64>,
    snapshots: Handles<u64>,
    vocabulary: u32,
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.fuse.burn("close");
    }
}

impl Engine for Counting {
    fn lane_open(&mut self) -> Result<u64, PluginError> {
        self.fuse.burn("lane_open");
        Ok(self.lanes.insert(0))
    }

    fn lane_close(&mut self, lane: u64) -> Result<(), PluginError> {
        self.fuse.burn("lane_close");
        self.lanes.remove(lane, "lane").map(drop)
    }

    fn round(
        &mut self,
        inputs: &[LaneInput<'_>],
        outputs: &mut [LaneOutput<'_>],
    ) -> Result<RoundReport, PluginError> {
        self.fuse.burn("round");
        for (input, output) in inputs.iter().zip(outputs) {
            if input.draft_count > 0 {
                return Err(PluginError::unsupported("no drafts are verified here"));
            }
            let held = self.lanes.get_mut(input.lane, "lane")?;
            *held += input.tokens.len() as u64;
            let first = input.tokens.len() - input.output_count;
            for (drawn, token) in output.tokens.iter_mut().zip(&input.tokens[first..]) {
                *drawn = (token + 1) % self.vocabulary;
            }
            output.position = *held;
            output.token_count = input.output_count;
        }
        Ok(RoundReport::default())
    }

    fn snapshot(&mut self, lane: u64) -> Result<Snapshot, PluginError> {
        self.fuse.burn("snapshot");
        let position = *self.lanes.get(lane, "lane")?;
        Ok(Snapshot { snapshot: self.snapshots.insert(position), position, ..Snapshot::default() })
    }

    fn restore(&mut self, lane: u64, snapshot: u64) -> Result<(), PluginError> {
        self.fuse.burn("restore");
        *self.lanes.get_mut(lane, "lane")? = *self.snapshots.get(snapshot, "snapshot")?;
        Ok(())
    }

    fn fork(&mut self, lane: u64) -> Result<u64, PluginError> {
        self.fuse.burn("fork");
        let position = *self.lanes.get(lane, "lane")?;
        Ok(self.lanes.insert(position))
    }

    fn drop_snapshot(&mut self, snapshot: u64) -> Result<(), PluginError> {
        self.fuse.burn("drop_snapshot");
        self.snapshots.remove(snapshot, "snapshot").map(drop)
    }

    fn sleep(&mut self, _level: u32) -> Result<(), PluginError> {
        self.fuse.burn("sleep");
        Ok(())
    }

    fn wake(&mut self, _progress: &Progress<'_>) -> Result<(), PluginError> {
        self.fuse.burn("wake");
        Ok(())
    }
}
