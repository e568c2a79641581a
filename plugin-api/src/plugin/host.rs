//! The host, as a plugin sees it.

use crate::abi::{Status, TF_STATUS_OK, TfConfigurationEntry, TfHostV1, TfInit, TfStr};
use crate::plugin::PluginError;

/// The host's services. Cheap to copy, usable from any thread to the end of the process.
#[derive(Clone, Copy)]
pub struct Host {
    table: Option<&'static TfHostV1>,
}

impl Host {
    /// Checks the table that `init` got. A host without a table, or with an older and smaller
    /// one, is an error, so that no plugin has to remember the check.
    ///
    /// # Safety
    /// `table` must be null or point to a host table that lives to the end of the process.
    pub(super) unsafe fn from_raw(table: *const TfHostV1) -> Result<Host, PluginError> {
        if table.is_null() {
            return Err(PluginError::invalid(
                "the host passed no tensorfold.host/1 table, which this plugin needs; upgrade the host",
            ));
        }
        // SAFETY: not null; every host table begins with its size.
        let size = unsafe { (*table).struct_size };
        if (size as usize) < size_of::<TfHostV1>() {
            return Err(PluginError::invalid(format!(
                "the host's tensorfold.host/1 table has {size} bytes, this plugin needs {}; upgrade the host",
                size_of::<TfHostV1>()
            )));
        }
        // SAFETY: large enough, and the caller promises that it lives to the end of the process.
        Ok(Host { table: Some(unsafe { &*table }) })
    }

    /// A host that keeps no log and never cancels, for unit tests of plugins.
    pub const fn detached() -> Host {
        Host { table: None }
    }

    /// Whether a log record of this level (`TF_LOG_*`) and target would be kept.
    pub fn log_enabled(&self, level: u32, target: &str) -> bool {
        let Some((table, call)) = self.table.and_then(|table| Some((table, table.log_enabled?))) else {
            return false;
        };
        // SAFETY: the table's contract; `target` is borrowed for the call.
        unsafe { call(table.context, level, TfStr::new(target)) != 0 }
    }

    pub(super) fn log(&self, record: &crate::abi::TfLogRecord) {
        if let Some((table, call)) = self.table.and_then(|table| Some((table, table.log?))) {
            // SAFETY: the table's contract; the record is borrowed for the call.
            unsafe { call(table.context, record) };
        }
    }

    /// Tells the host how much memory of a kind (`TF_MEMORY_*`) the plugin holds now.
    pub fn memory_report(&self, kind: u32, bytes: u64) {
        if let Some((table, call)) = self.table.and_then(|table| Some((table, table.memory_report?))) {
            // SAFETY: the table's contract.
            unsafe { call(table.context, kind, bytes) };
        }
    }

    /// A value of the plugin's configuration, if it is set.
    pub fn configuration(&self, key: &str) -> Option<&'static str> {
        let table = self.table?;
        let call = table.config_get?;
        let mut value = TfStr::EMPTY;
        // SAFETY: the table's contract; `value` is writable.
        let status = unsafe { call(table.context, TfStr::new(key), &mut value) };
        if status != TF_STATUS_OK {
            return None;
        }
        // SAFETY: the host owns the value to the end of the process.
        std::str::from_utf8(unsafe { value.bytes() }).ok()
    }

    /// Copies bytes of a tensor of the engine that is being opened.
    ///
    /// # Errors
    /// When the range is outside the tensor or the file cannot be read.
    pub fn tensor_read(&self, tensor: u64, offset: u64, buffer: &mut [u8]) -> Result<(), PluginError> {
        let Some((table, call)) = self.table.and_then(|table| Some((table, table.tensor_read?))) else {
            return Err(PluginError::unsupported("this host reads no tensors"));
        };
        // SAFETY: the table's contract; the buffer is writable for its whole length.
        let status = unsafe { call(table.context, tensor, offset, buffer.as_mut_ptr(), buffer.len() as u64) };
        match Status::from_code(status) {
            Status::Ok => Ok(()),
            status => Err(PluginError::new(
                status,
                format!("the host could not read {} bytes at {offset} of tensor {tensor}", buffer.len()),
            )),
        }
    }
}

/// Says when work should stop. Cheap to ask between layers.
#[derive(Clone, Copy)]
pub struct CancelToken {
    host: Host,
    token: u64,
}

impl CancelToken {
    pub(super) fn new(host: Host, token: u64) -> CancelToken {
        CancelToken { host, token }
    }

    /// A token that never stops anything.
    pub const fn never() -> CancelToken {
        CancelToken { host: Host::detached(), token: 0 }
    }

    /// Whether the work should stop.
    pub fn is_cancelled(&self) -> bool {
        if self.token == 0 {
            return false;
        }
        let Some((table, call)) = self.host.table.and_then(|table| Some((table, table.cancel_poll?))) else {
            return false;
        };
        // SAFETY: the table's contract.
        unsafe { call(table.context, self.token) != 0 }
    }
}

/// What a backend is told at its start.
pub struct Init<'a> {
    /// The host's services.
    pub host: Host,
    /// The host's release, for logs.
    pub host_version: &'a str,
    /// The minor number of the contract that host and plugin work at.
    pub agreed_abi_minor: u16,
    /// The configuration: key, value, and whether the plugin must know the key.
    configuration: Vec<(&'a str, &'a str, bool)>,
}

impl<'a> Init<'a> {
    /// # Safety
    /// `raw` must follow the contract of [`TfInit`] for the duration of `'a`.
    pub(super) unsafe fn from_raw(raw: &'a TfInit, host: Host) -> Result<Init<'a>, PluginError> {
        // SAFETY: the caller's promise, here and below.
        let entries = unsafe { crate::abi::slice(raw.configuration, raw.configuration_count) };
        let mut configuration = Vec::with_capacity(entries.len());
        for TfConfigurationEntry { key, value, required, .. } in entries {
            // SAFETY: as above.
            let (key, value) = unsafe { (text(*key)?, text(*value)?) };
            configuration.push((key, value, *required != 0));
        }
        // SAFETY: as above.
        let host_version = unsafe { text(raw.host_version)? };
        Ok(Init { host, host_version, agreed_abi_minor: raw.agreed_abi_minor, configuration })
    }

    /// An `Init` for unit tests of plugins.
    pub fn detached(configuration: &[(&'a str, &'a str)]) -> Init<'a> {
        Init {
            host: Host::detached(),
            host_version: "0.0.0",
            agreed_abi_minor: crate::abi::ABI_MINOR,
            configuration: configuration.iter().map(|&(key, value)| (key, value, true)).collect(),
        }
    }

    /// The value of a configuration key.
    pub fn value(&self, key: &str) -> Option<&'a str> {
        self.configuration.iter().find(|entry| entry.0 == key).map(|entry| entry.1)
    }

    /// Refuses configuration that the host marked as required and the plugin does not know.
    ///
    /// # Errors
    /// [`Status::Unsupported`], naming the key.
    pub fn check_keys(&self, known: &[&str]) -> Result<(), PluginError> {
        match self.configuration.iter().find(|(key, _, required)| *required && !known.contains(key)) {
            None => Ok(()),
            Some((key, ..)) => Err(PluginError::unsupported(format!(
                "the option {key} is not known to this plugin; known: {}",
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            ))),
        }
    }
}

/// # Safety
/// As for [`TfStr::bytes`].
pub(super) unsafe fn text<'a>(raw: TfStr) -> Result<&'a str, PluginError> {
    // SAFETY: passed on to the caller.
    std::str::from_utf8(unsafe { raw.bytes() })
        .map_err(|_| PluginError::invalid("a text from the host is not UTF-8"))
}
