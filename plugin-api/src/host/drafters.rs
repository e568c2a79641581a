//! A plugin's `tensorfold.mtp/1` and `tensorfold.dflash/1`, called safely.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::engine::{EngineClient, with_progress};
use super::model::RawModel;
use super::{DeviceClient, DrafterSource, EngineSetup, ModelSource};
use crate::PluginError;
use crate::abi::{TfDflashV1, TfDrafterPlan, TfMtpV1};

fn empty_plan() -> TfDrafterPlan {
    TfDrafterPlan { struct_size: size_of::<TfDrafterPlan>() as u32, ..TfDrafterPlan::default() }
}

/// A drafter that makes no drafts would be accepted and do nothing.
fn some(drafts: u32) -> Result<u32, PluginError> {
    match drafts {
        0 => Err(PluginError::internal("the plugin opened a drafter that makes no drafts")),
        drafts => Ok(drafts),
    }
}

impl DeviceClient {
    fn mtp_table(&self) -> Result<&'static TfMtpV1, PluginError> {
        self.plugin.mtp.ok_or_else(|| PluginError::unsupported("this plugin drafts with no head"))
    }

    fn dflash_table(&self) -> Result<&'static TfDflashV1, PluginError> {
        self.plugin.dflash.ok_or_else(|| PluginError::unsupported("this plugin runs no external drafter"))
    }

    /// What [`EngineClient::open_mtp`] would hold for this model.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn plan_mtp(
        &self,
        model: &dyn ModelSource,
        setup: &EngineSetup,
    ) -> Result<TfDrafterPlan, PluginError> {
        let call = self.mtp_table()?.plan.expect("checked in new");
        let raw = RawModel::of_model(model, false)?;
        let mut plan = empty_plan();
        // SAFETY: the table's contract; everything is borrowed for the call.
        self.plugin.call(|error| unsafe { call(self.handle, &raw.raw(), &setup.raw(), &mut plan, error) })?;
        Ok(plan)
    }

    /// What [`EngineClient::open_dflash`] would hold for this model and drafter.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn plan_dflash(
        &self,
        model: &dyn ModelSource,
        drafter: &dyn DrafterSource,
        setup: &EngineSetup,
    ) -> Result<TfDrafterPlan, PluginError> {
        let call = self.dflash_table()?.plan.expect("checked in new");
        let model = RawModel::of_model(model, false)?;
        let drafter = RawModel::of_drafter(drafter, false)?;
        let mut plan = empty_plan();
        // SAFETY: the table's contract; everything is borrowed for the call.
        self.plugin.call(|error| unsafe {
            call(self.handle, &model.raw(), &drafter.raw(), &setup.raw(), &mut plan, error)
        })?;
        Ok(plan)
    }
}

impl EngineClient {
    /// Makes the checkpoint's own head ready and says how many drafts it makes for a lane in a
    /// round, at most. `progress` hears how far it is and may break off.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open_mtp(
        &mut self,
        progress: impl FnMut(u64, u64, &str) -> ControlFlow<()> + Send,
    ) -> Result<u32, PluginError> {
        let call = self.shared.device.mtp_table()?.open.expect("checked in new");
        let mut drafts = 0;
        with_progress(progress, |raw| {
            // SAFETY: the table's contract.
            self.shared.call(|engine, error| unsafe { call(engine, raw, &mut drafts, error) })
        })?;
        some(drafts)
    }

    /// Frees what [`open_mtp`](EngineClient::open_mtp) took.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn close_mtp(&mut self) -> Result<(), PluginError> {
        let call = self.shared.device.mtp_table()?.close.expect("checked in new");
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, error) })
    }

    /// Loads an external block drafter and says how many drafts it makes for a lane in a round,
    /// at most. `progress` hears how far it is and may break off.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn open_dflash(
        &mut self,
        drafter: Arc<dyn DrafterSource>,
        progress: impl FnMut(u64, u64, &str) -> ControlFlow<()> + Send,
    ) -> Result<u32, PluginError> {
        let call = self.shared.device.dflash_table()?.open.expect("checked in new");
        let raw = RawModel::of_drafter(&*drafter, true)?;
        let mut drafts = 0;
        // Before the call: a call that fails may have kept a pointer that it only drops later.
        self.shared.keep(drafter.clone());
        let opening = self.shared.device.plugin.host.context.opening(drafter.clone());
        with_progress(progress, |progress| {
            // SAFETY: the table's contract; the bytes live as long as the engine, which keeps
            // their source.
            self.shared
                .call(|engine, error| unsafe { call(engine, &raw.raw(), progress, &mut drafts, error) })
        })?;
        drop(opening);
        some(drafts)
    }

    /// Frees what [`open_dflash`](EngineClient::open_dflash) took.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn close_dflash(&mut self) -> Result<(), PluginError> {
        let call = self.shared.device.dflash_table()?.close.expect("checked in new");
        // SAFETY: the table's contract.
        self.shared.call(|engine, error| unsafe { call(engine, error) })
    }
}
