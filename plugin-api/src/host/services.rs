//! `tensorfold.host/1`, as the host fills it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::TensorSource;
use crate::abi::{
    TF_LOG_ERROR, TF_LOG_TRACE, TF_STATUS_INTERNAL, TF_STATUS_INVALID_ARGUMENT, TF_STATUS_NOT_FOUND,
    TF_STATUS_OK, TfHostV1, TfLogRecord, TfStr,
};

/// One log record of a plugin. Unknown levels arrive as `TF_LOG_ERROR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// `TF_LOG_ERROR` to `TF_LOG_TRACE`.
    pub level: u32,
    /// Which part of the plugin speaks.
    pub target: String,
    /// The message.
    pub message: String,
    /// Source file; may be empty.
    pub file: String,
    /// Source line; 0: unknown.
    pub line: u32,
    /// Structured values.
    pub fields: Vec<(String, String)>,
}

/// What the host does for one plugin. Calls come from any thread.
pub trait HostServices: Send + Sync {
    /// Whether a record of this level and target would be kept.
    fn log_enabled(&self, level: u32, target: &str) -> bool;
    /// Takes a record.
    fn log(&self, record: LogRecord);
    /// The plugin holds this much memory of a kind (`TF_MEMORY_*`) now.
    fn memory_report(&self, kind: u32, bytes: u64);
}

/// Stops work that was started with it.
#[derive(Clone, Debug)]
pub struct CancelHandle {
    token: u64,
    flag: Arc<AtomicBool>,
    registry: Arc<CancelRegistry>,
    /// Shared by all clones; the last one to go forgets the token.
    _last: Arc<Forget>,
}

#[derive(Debug)]
struct Forget {
    token: u64,
    registry: Arc<CancelRegistry>,
}

impl Drop for Forget {
    fn drop(&mut self) {
        let mut flags = self.registry.flags.write().unwrap_or_else(PoisonError::into_inner);
        flags.remove(&self.token);
    }
}

impl CancelHandle {
    /// Asks the work to stop.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Whether it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// The token that crosses the border; `None` when the handle belongs to another plugin.
    pub(super) fn token_for(&self, registry: &Arc<CancelRegistry>) -> Option<u64> {
        Arc::ptr_eq(&self.registry, registry).then_some(self.token)
    }
}

/// The cancel tokens that are alive.
#[derive(Debug, Default)]
pub(super) struct CancelRegistry {
    next: AtomicU64,
    flags: RwLock<HashMap<u64, Arc<AtomicBool>>>,
}

impl CancelRegistry {
    pub(super) fn handle(self: &Arc<Self>) -> CancelHandle {
        let token = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let flag = Arc::new(AtomicBool::new(false));
        let mut flags = self.flags.write().unwrap_or_else(PoisonError::into_inner);
        flags.insert(token, flag.clone());
        let last = Arc::new(Forget { token, registry: self.clone() });
        CancelHandle { token, flag, registry: self.clone(), _last: last }
    }

    fn is_cancelled(&self, token: u64) -> bool {
        let flags = self.flags.read().unwrap_or_else(PoisonError::into_inner);
        flags.get(&token).is_some_and(|flag| flag.load(Ordering::Acquire))
    }
}

/// What `context` of the table points to. Leaked: the contract keeps it to the process's end.
pub(super) struct HostContext {
    services: Box<dyn HostServices>,
    configuration: HashMap<String, String>,
    pub(super) cancels: Arc<CancelRegistry>,
    /// The model or drafter that is being opened.
    opening: RwLock<Option<Arc<dyn TensorSource>>>,
}

impl HostContext {
    /// Lets the plugin read these tensors through the host table until the result is dropped.
    /// Models and drafters of one plugin are opened one at a time.
    pub(super) fn opening(&self, source: Arc<dyn TensorSource>) -> Opening<'_> {
        *self.opening.write().unwrap_or_else(PoisonError::into_inner) = Some(source);
        Opening(self)
    }
}

/// While it lives, a plugin can read what it opens.
pub(super) struct Opening<'a>(&'a HostContext);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        *self.0.opening.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A host table that lives to the end of the process.
#[derive(Clone, Copy)]
pub(super) struct HostTable {
    pub(super) table: &'static TfHostV1,
    pub(super) context: &'static HostContext,
}

// SAFETY: the table is shared as its own `Sync` says, and the context is `Sync` by its fields.
unsafe impl Send for HostTable {}

/// Every table that was made, so that leak checkers can tell them from what was forgotten.
static TABLES: Mutex<Vec<HostTable>> = Mutex::new(Vec::new());

impl HostTable {
    pub(super) fn leak(services: Box<dyn HostServices>, configuration: &[(String, String)]) -> HostTable {
        let context: &'static HostContext = Box::leak(Box::new(HostContext {
            services,
            configuration: configuration.iter().cloned().collect(),
            cancels: Arc::default(),
            opening: RwLock::new(None),
        }));
        let table = Box::leak(Box::new(TfHostV1 {
            struct_size: size_of::<TfHostV1>() as u32,
            reserved: 0,
            context: std::ptr::from_ref(context).cast_mut().cast(),
            log_enabled: Some(log_enabled),
            log: Some(log),
            memory_report: Some(memory_report),
            cancel_poll: Some(cancel_poll),
            config_get: Some(config_get),
            tensor_read: Some(tensor_read),
            get_interface: Some(get_interface),
        }));
        let made = HostTable { table, context };
        TABLES.lock().unwrap_or_else(PoisonError::into_inner).push(made);
        made
    }
}

/// Runs a callback: a panic of the host never reaches the plugin.
fn shielded<T>(fallback: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(fallback)
}

/// # Safety
/// `context` must be the one of a table made by [`HostTable::leak`].
unsafe fn of<'a>(context: *mut c_void) -> &'a HostContext {
    // SAFETY: the caller's promise; the context is never freed and only shared.
    unsafe { &*context.cast::<HostContext>() }
}

fn known_level(level: u32) -> u32 {
    if (TF_LOG_ERROR..=TF_LOG_TRACE).contains(&level) { level } else { TF_LOG_ERROR }
}

unsafe extern "C" fn log_enabled(context: *mut c_void, level: u32, target: TfStr) -> u8 {
    shielded(0, || {
        // SAFETY: the contract of the host table, here and below.
        let (context, target) = unsafe { (of(context), target.to_string_lossy()) };
        u8::from(context.services.log_enabled(known_level(level), &target))
    })
}

unsafe extern "C" fn log(context: *mut c_void, record: *const TfLogRecord) {
    shielded((), || {
        // SAFETY: the contract of the host table, here and below.
        let Some(record) = (unsafe { record.as_ref() }) else { return };
        if (record.struct_size as usize) < size_of::<TfLogRecord>() {
            return;
        }
        // SAFETY: as above.
        let (context, owned) = unsafe {
            let fields = crate::abi::slice(record.fields, record.field_count.into());
            let owned = LogRecord {
                level: known_level(record.level),
                target: record.target.to_string_lossy(),
                message: record.message.to_string_lossy(),
                file: record.file.to_string_lossy(),
                line: record.line,
                fields: fields
                    .iter()
                    .map(|pair| (pair.key.to_string_lossy(), pair.value.to_string_lossy()))
                    .collect(),
            };
            (of(context), owned)
        };
        context.services.log(owned);
    });
}

unsafe extern "C" fn memory_report(context: *mut c_void, kind: u32, bytes: u64) {
    // SAFETY: the contract of the host table.
    shielded((), || unsafe { of(context) }.services.memory_report(kind, bytes));
}

unsafe extern "C" fn cancel_poll(context: *mut c_void, token: u64) -> u8 {
    // SAFETY: the contract of the host table.
    shielded(0, || u8::from(unsafe { of(context) }.cancels.is_cancelled(token)))
}

unsafe extern "C" fn config_get(context: *mut c_void, key: TfStr, value: *mut TfStr) -> i32 {
    shielded(TF_STATUS_INTERNAL, || {
        if value.is_null() {
            return TF_STATUS_INVALID_ARGUMENT;
        }
        // SAFETY: the contract of the host table.
        let (context, key) = unsafe { (of(context), key.to_string_lossy()) };
        match context.configuration.get(&key) {
            None => TF_STATUS_NOT_FOUND,
            Some(text) => {
                // SAFETY: not null, and the contract says it is writable. The text lives in the
                // leaked context, so to the end of the process.
                unsafe { value.write(TfStr::new(text)) };
                TF_STATUS_OK
            }
        }
    })
}

unsafe extern "C" fn tensor_read(
    context: *mut c_void,
    tensor: u64,
    offset: u64,
    buffer: *mut u8,
    length: u64,
) -> i32 {
    shielded(TF_STATUS_INTERNAL, || {
        // SAFETY: the contract of the host table.
        let opening = unsafe { of(context) }.opening.read().unwrap_or_else(PoisonError::into_inner);
        let Some(model) = opening.as_ref() else { return TF_STATUS_NOT_FOUND };
        let index = tensor as usize;
        if index >= model.tensors().len() {
            return TF_STATUS_NOT_FOUND;
        }
        let bytes = model.bytes(index);
        let Some(range) = offset
            .checked_add(length)
            .filter(|&end| end <= bytes.len() as u64)
            .map(|end| &bytes[offset as usize..end as usize])
        else {
            return TF_STATUS_INVALID_ARGUMENT;
        };
        if buffer.is_null() && length > 0 {
            return TF_STATUS_INVALID_ARGUMENT;
        }
        if length > 0 {
            // SAFETY: the contract says that `buffer` has room for `length` bytes, and a
            // plugin's buffer does not overlap a mapped file.
            unsafe { std::ptr::copy_nonoverlapping(range.as_ptr(), buffer, range.len()) };
        }
        TF_STATUS_OK
    })
}

unsafe extern "C" fn get_interface(_: *mut c_void, _: *const u8, _: u64) -> *const c_void {
    // This host offers no further tables.
    std::ptr::null()
}
