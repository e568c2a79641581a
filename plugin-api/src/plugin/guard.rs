//! The wall that no panic passes.
//!
//! Every function of a table runs its body in [`guard`]: a panic becomes
//! [`TF_STATUS_PANICKED`](crate::abi::TF_STATUS_PANICKED) with message, file and line. The panic
//! hook is the one of this library's own standard library, so setting it touches nobody else.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::PluginError;
use crate::abi::{Status, TF_STATUS_OK, TfError, TfKeyValue, TfStr};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body`, turns its outcome into a status and fills `error`.
///
/// # Safety
/// `error` must be null or point to a writable [`TfError`] whose `struct_size` is set.
pub(super) unsafe fn guard(error: *mut TfError, body: impl FnOnce() -> Result<(), PluginError>) -> i32 {
    match catch(body) {
        Ok(()) => TF_STATUS_OK,
        Err(failure) => {
            let code = failure.status.code();
            // SAFETY: passed on to the caller.
            unsafe { fill(error, failure) };
            code
        }
    }
}

/// Runs `body` and turns a panic into an error.
pub(super) fn catch<T>(body: impl FnOnce() -> Result<T, PluginError>) -> Result<T, PluginError> {
    install_hook();
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    DEPTH.set(DEPTH.get() - 1);
    match outcome {
        Ok(result) => result,
        Err(payload) => {
            let text = LAST_PANIC.take();
            // Some payloads panic when they are dropped; the first panic is the one to report.
            if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
                std::mem::forget(second);
            }
            let text = text.unwrap_or_else(|| "of unknown origin".into());
            Err(PluginError::new(Status::Panicked, format!("the plugin panicked {text}")))
        }
    }
}

fn install_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if DEPTH.get() == 0 {
                return previous(info);
            }
            let message = info.payload_as_str().unwrap_or("without a message");
            let place = info.location().map_or_else(String::new, |at| format!("at {at}: "));
            LAST_PANIC.set(Some(format!("{place}{message}")));
        }));
    });
}

/// What a filled [`TfError`] points to; `owner` is a box of it.
struct Owned {
    _failure: PluginError,
    _pairs: Vec<TfKeyValue>,
}

/// # Safety
/// As for [`guard`].
unsafe fn fill(error: *mut TfError, failure: PluginError) {
    if error.is_null() {
        return;
    }
    // SAFETY: not null, and the caller promises that it points to an error whose size is set.
    if unsafe { (*error).struct_size } < size_of::<TfError>() as u32 {
        return;
    }
    let pairs: Vec<TfKeyValue> = failure
        .details
        .iter()
        .map(|(key, value)| TfKeyValue { key: TfStr::new(key), value: TfStr::new(value) })
        .collect();
    let filled = TfError {
        struct_size: size_of::<TfError>() as u32,
        status: failure.status.code(),
        message: TfStr::new(&failure.message),
        details: pairs.as_ptr(),
        detail_count: pairs.len() as u64,
        owner: std::ptr::null_mut(),
    };
    // Moving the strings and the vector into the box does not move what they point to.
    let owner = Box::into_raw(Box::new(Owned { _failure: failure, _pairs: pairs }));
    // SAFETY: as above, and the size was checked.
    unsafe { error.write(TfError { owner: owner.cast(), ..filled }) };
}

/// Frees what [`guard`] put into `error` and empties it.
///
/// # Safety
/// `error` must be null, empty, or filled by this library and not released before.
pub(super) unsafe fn release(error: *mut TfError) {
    if error.is_null() {
        return;
    }
    // SAFETY: not null, and the caller promises that it points to an error.
    let owner = unsafe { (*error).owner };
    if !owner.is_null() {
        // SAFETY: a non-null owner came from `Box::into_raw` in `fill`, and is freed once.
        drop(unsafe { Box::from_raw(owner.cast::<Owned>()) });
    }
    // SAFETY: as above.
    unsafe { error.write(TfError::empty()) };
}
