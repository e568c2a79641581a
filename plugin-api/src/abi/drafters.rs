//! `tensorfold.mtp/1` and `tensorfold.dflash/1`: drafters of an engine.
//!
//! Both say what a drafter costs, open it and close it. Drafting itself happens inside of
//! `round`: the host asks for drafts of a kind there, and gets them there.
//!
//! A drafter is opened on an engine that has neither lanes nor snapshots. From then on lanes hold
//! the drafter's state beside the model's, snapshots and forks carry it, and each round keeps it
//! in step with the tokens that the lane holds. Drafts never change what is drawn: a lane holds
//! and draws, bit for bit, what it would without a drafter.

use super::{TfEngineOptions, TfError, TfModel, TfProgress};

/// What a drafter adds to the [`TfMemoryPlan`](super::TfMemoryPlan) of its engine, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfDrafterPlan {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Most drafts that it makes for a lane in a round.
    pub drafts: u32,
    /// Weights that are copied or repacked.
    pub weight_bytes: u64,
    /// Weights that stay in the mapped files.
    pub mapped_bytes: u64,
    /// One lane at the full context.
    pub lane_bytes: u64,
    /// Working memory, once an engine.
    pub scratch_bytes: u64,
    /// A snapshot of an empty lane.
    pub snapshot_bytes: u64,
    /// What a snapshot grows by with every token that it holds.
    pub snapshot_token_bytes: u64,
}

/// `tensorfold.mtp/1`: the checkpoint's own multi-token prediction head. Its tensors are part of
/// the model that `open_engine` was given.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfMtpV1 {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// `[any]` What `open` would hold. Pure arithmetic on the model's facts; tensors come without
    /// bytes. Fails where `open` would refuse the head.
    pub plan: Option<
        unsafe extern "C" fn(
            device: u64,
            model: *const TfModel,
            options: *const TfEngineOptions,
            plan: *mut TfDrafterPlan,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[engine]` Makes the head ready; `drafts` receives the most drafts that it makes for a
    /// lane in a round. `busy` while lanes or snapshots are there.
    pub open: Option<
        unsafe extern "C" fn(
            engine: u64,
            progress: *const TfProgress,
            drafts: *mut u32,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[engine]` Frees what `open` took. `busy` while lanes or snapshots are there.
    pub close: Option<unsafe extern "C" fn(engine: u64, error: *mut TfError) -> i32>,
}

/// `tensorfold.dflash/1`: an external block drafter, DFlash or DFlash2.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfDflashV1 {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// `[any]` What `open` would hold. `drafter` is a model whose `spec` is a drafter description
    /// (the crate's `DrafterSpec`). Pure arithmetic; tensors come without bytes. Fails where
    /// `open` would refuse the drafter.
    pub plan: Option<
        unsafe extern "C" fn(
            device: u64,
            model: *const TfModel,
            drafter: *const TfModel,
            options: *const TfEngineOptions,
            plan: *mut TfDrafterPlan,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[engine]` Loads a drafter; `drafts` receives the most drafts that it makes for a lane in
    /// a round. The tensors' bytes stay valid until `close` of the drafter or of the engine;
    /// `drafter` and `progress` are borrowed for the call. `busy` while lanes, snapshots or
    /// another drafter are there.
    pub open: Option<
        unsafe extern "C" fn(
            engine: u64,
            drafter: *const TfModel,
            progress: *const TfProgress,
            drafts: *mut u32,
            error: *mut TfError,
        ) -> i32,
    >,
    /// `[engine]` Frees the drafter. `busy` while lanes or snapshots are there.
    pub close: Option<unsafe extern "C" fn(engine: u64, error: *mut TfError) -> i32>,
}
