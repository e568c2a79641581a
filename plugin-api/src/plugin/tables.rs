//! A backend's tables together, and how one is found by its id.

use super::export::{backend_table, engine_table};
use super::export_drafters::{dflash_table, mtp_table};
use super::guard::guard;
use super::runtime::Exported;
use crate::abi::{
    BACKEND_INTERFACE, DFLASH_INTERFACE, ENGINE_INTERFACE, MTP_INTERFACE, TF_STATUS_OK, TfBackendV1,
    TfDflashV1, TfEngineV1, TfMtpV1,
};

/// The tables of a backend, offered or not.
pub struct Tables {
    /// `tensorfold.backend/1`.
    pub backend: TfBackendV1,
    /// `tensorfold.engine/1`.
    pub engine: TfEngineV1,
    /// `tensorfold.mtp/1`.
    pub mtp: TfMtpV1,
    /// `tensorfold.dflash/1`.
    pub dflash: TfDflashV1,
}

/// All tables of a backend.
pub const fn tables<B: Exported>() -> Tables {
    Tables {
        backend: backend_table::<B>(),
        engine: engine_table::<B>(),
        mtp: mtp_table::<B>(),
        dflash: dflash_table::<B>(),
    }
}

/// Finds a table by id; null when it is not offered.
///
/// # Safety
/// `id` must point to `length` readable bytes, or `length` must be 0.
pub unsafe fn interface<B: Exported>(
    id: *const u8,
    length: u64,
    tables: &'static Tables,
) -> *const std::ffi::c_void {
    let mut found = std::ptr::null();
    let body = || {
        // SAFETY: the caller's promise.
        let id = unsafe { crate::abi::slice(id, length) };
        if id == BACKEND_INTERFACE.as_bytes() {
            found = std::ptr::from_ref(&tables.backend).cast();
        } else if id == ENGINE_INTERFACE.as_bytes() && B::OFFERS_ENGINE {
            found = std::ptr::from_ref(&tables.engine).cast();
        } else if id == MTP_INTERFACE.as_bytes() && B::OFFERS_ENGINE && B::OFFERS_MTP {
            found = std::ptr::from_ref(&tables.mtp).cast();
        } else if id == DFLASH_INTERFACE.as_bytes() && B::OFFERS_ENGINE && B::OFFERS_DFLASH {
            found = std::ptr::from_ref(&tables.dflash).cast();
        }
        Ok(())
    };
    // SAFETY: a null error is allowed.
    let status = unsafe { guard(std::ptr::null_mut(), body) };
    if status == TF_STATUS_OK { found } else { std::ptr::null() }
}

/// FNV-1a over bytes, as 16 hex digits: tells builds apart whose manifests or versions differ.
pub const fn fingerprint(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut part = 0;
    while part < parts.len() {
        let mut at = 0;
        while at < parts[part].len() {
            hash = (hash ^ parts[part][at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            at += 1;
        }
        part += 1;
    }
    let mut text = [0; 16];
    let mut digit = 0;
    while digit < 16 {
        text[digit] = b"0123456789abcdef"[(hash >> (60 - 4 * digit) & 15) as usize];
        digit += 1;
    }
    text
}
