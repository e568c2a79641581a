//! The functions behind the tables of drafters.

use super::export::{not_null, put, sized, sized_mut, with_engine};
use super::guard::guard;
use super::model::{Drafter, EngineOptions, Model, Progress};
use super::runtime::Exported;
use crate::abi::{TfDflashV1, TfDrafterPlan, TfEngineOptions, TfError, TfModel, TfMtpV1, TfProgress};

unsafe extern "C" fn plan_mtp<B: Exported>(
    device: u64,
    model: *const TfModel,
    options: *const TfEngineOptions,
    plan: *mut TfDrafterPlan,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `plan`, here and below.
        let model = unsafe { Model::from_raw(sized(model, "the model")?)? };
        // SAFETY: as above.
        let options = unsafe { EngineOptions::from_raw(sized(options, "the engine options")?)? };
        // SAFETY: as above.
        let out = unsafe { sized_mut(plan, "the drafter's plan")? };
        let planned = B::runtime().device(device)?.plan_mtp(&model, &options)?;
        *out = TfDrafterPlan { struct_size: size_of::<TfDrafterPlan>() as u32, ..planned };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn open_mtp<B: Exported>(
    engine: u64,
    progress: *const TfProgress,
    drafts: *mut u32,
    error: *mut TfError,
) -> i32 {
    let body = || {
        not_null(drafts, "the number of drafts")?;
        // SAFETY: the contract of `open`.
        let progress = unsafe { Progress::from_raw(progress) };
        let most = with_engine::<B, _>(engine, |inner, _| inner.engine.open_mtp(&progress))?;
        // SAFETY: checked above.
        unsafe { put(drafts, most, "the number of drafts") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn close_mtp<B: Exported>(engine: u64, error: *mut TfError) -> i32 {
    let body = || with_engine::<B, _>(engine, |inner, _| inner.engine.close_mtp());
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn plan_dflash<B: Exported>(
    device: u64,
    model: *const TfModel,
    drafter: *const TfModel,
    options: *const TfEngineOptions,
    plan: *mut TfDrafterPlan,
    error: *mut TfError,
) -> i32 {
    let body = || {
        // SAFETY: the contract of `plan`, here and below.
        let model = unsafe { Model::from_raw(sized(model, "the model")?)? };
        // SAFETY: as above.
        let drafter = unsafe { Drafter::from_raw(sized(drafter, "the drafter")?)? };
        // SAFETY: as above.
        let options = unsafe { EngineOptions::from_raw(sized(options, "the engine options")?)? };
        // SAFETY: as above.
        let out = unsafe { sized_mut(plan, "the drafter's plan")? };
        let planned = B::runtime().device(device)?.plan_dflash(&model, &drafter, &options)?;
        *out = TfDrafterPlan { struct_size: size_of::<TfDrafterPlan>() as u32, ..planned };
        Ok(())
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn open_dflash<B: Exported>(
    engine: u64,
    drafter: *const TfModel,
    progress: *const TfProgress,
    drafts: *mut u32,
    error: *mut TfError,
) -> i32 {
    let body = || {
        not_null(drafts, "the number of drafts")?;
        // SAFETY: the contract of `open`, here and below.
        let drafter = unsafe { Drafter::from_raw(sized(drafter, "the drafter")?)? };
        // SAFETY: as above.
        let progress = unsafe { Progress::from_raw(progress) };
        let most = with_engine::<B, _>(engine, |inner, _| inner.engine.open_dflash(&drafter, &progress))?;
        // SAFETY: checked above.
        unsafe { put(drafts, most, "the number of drafts") }
    };
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

unsafe extern "C" fn close_dflash<B: Exported>(engine: u64, error: *mut TfError) -> i32 {
    let body = || with_engine::<B, _>(engine, |inner, _| inner.engine.close_dflash());
    // SAFETY: the contract of the error argument.
    unsafe { guard(error, body) }
}

/// The table `tensorfold.mtp/1` of a backend.
pub(super) const fn mtp_table<B: Exported>() -> TfMtpV1 {
    TfMtpV1 {
        struct_size: size_of::<TfMtpV1>() as u32,
        reserved: 0,
        plan: Some(plan_mtp::<B>),
        open: Some(open_mtp::<B>),
        close: Some(close_mtp::<B>),
    }
}

/// The table `tensorfold.dflash/1` of a backend.
pub(super) const fn dflash_table<B: Exported>() -> TfDflashV1 {
    TfDflashV1 {
        struct_size: size_of::<TfDflashV1>() as u32,
        reserved: 0,
        plan: Some(plan_dflash::<B>),
        open: Some(open_dflash::<B>),
        close: Some(close_dflash::<B>),
    }
}
