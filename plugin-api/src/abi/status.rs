//! Status codes. An unknown negative status is treated as
//! [`TF_STATUS_INTERNAL`].

/// The call did what was asked.
pub const TF_STATUS_OK: i32 = 0;
/// An argument breaks the contract: null, too small, out of range.
pub const TF_STATUS_INVALID_ARGUMENT: i32 = -1;
/// The plugin does not do this.
pub const TF_STATUS_UNSUPPORTED: i32 = -2;
/// A handle, name or device does not exist.
pub const TF_STATUS_NOT_FOUND: i32 = -3;
/// The operating system denies access.
pub const TF_STATUS_PERMISSION: i32 = -4;
/// Not enough memory, of the device or of the machine.
pub const TF_STATUS_OUT_OF_MEMORY: i32 = -5;
/// The device is gone or no longer answers.
pub const TF_STATUS_DEVICE_LOST: i32 = -6;
/// Something took longer than its limit.
pub const TF_STATUS_TIMEOUT: i32 = -7;
/// The host asked to stop.
pub const TF_STATUS_CANCELLED: i32 = -8;
/// The object is in use, or a call of class `[engine]` overlapped another.
pub const TF_STATUS_BUSY: i32 = -9;
/// A defect or an unforeseen state.
pub const TF_STATUS_INTERNAL: i32 = -10;
/// A panic or exception was caught inside the plugin. The object that was
/// called must not be used again, except to close it.
pub const TF_STATUS_PANICKED: i32 = -11;
/// A library that the plugin opens at run time is missing, too old or a stub.
pub const TF_STATUS_RUNTIME_MISSING: i32 = -12;

/// A status as a Rust value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant is the constant of the same name")]
pub enum Status {
    Ok,
    InvalidArgument,
    Unsupported,
    NotFound,
    Permission,
    OutOfMemory,
    DeviceLost,
    Timeout,
    Cancelled,
    Busy,
    Internal,
    Panicked,
    RuntimeMissing,
}

const TABLE: [(Status, i32, &str); 13] = [
    (Status::Ok, TF_STATUS_OK, "ok"),
    (Status::InvalidArgument, TF_STATUS_INVALID_ARGUMENT, "invalid-argument"),
    (Status::Unsupported, TF_STATUS_UNSUPPORTED, "unsupported"),
    (Status::NotFound, TF_STATUS_NOT_FOUND, "not-found"),
    (Status::Permission, TF_STATUS_PERMISSION, "permission"),
    (Status::OutOfMemory, TF_STATUS_OUT_OF_MEMORY, "out-of-memory"),
    (Status::DeviceLost, TF_STATUS_DEVICE_LOST, "device-lost"),
    (Status::Timeout, TF_STATUS_TIMEOUT, "timeout"),
    (Status::Cancelled, TF_STATUS_CANCELLED, "cancelled"),
    (Status::Busy, TF_STATUS_BUSY, "busy"),
    (Status::Internal, TF_STATUS_INTERNAL, "internal"),
    (Status::Panicked, TF_STATUS_PANICKED, "panicked"),
    (Status::RuntimeMissing, TF_STATUS_RUNTIME_MISSING, "runtime-missing"),
];

impl Status {
    /// The status of a raw code; unknown codes, positive ones too, are internal errors.
    pub fn from_code(code: i32) -> Status {
        TABLE.iter().find(|row| row.1 == code).map_or(Status::Internal, |row| row.0)
    }

    /// The raw code.
    pub fn code(self) -> i32 {
        TABLE.iter().find(|row| row.0 == self).map_or(TF_STATUS_INTERNAL, |row| row.1)
    }

    /// The name used in logs and JSON, such as `out-of-memory`.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|row| row.0 == self).map_or("internal", |row| row.2)
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_statuses_agree_and_unknown_codes_are_internal() {
        for (status, code, name) in TABLE {
            assert_eq!(Status::from_code(code), status);
            assert_eq!(status.code(), code);
            assert_eq!(status.name(), name);
        }
        assert_eq!(Status::from_code(-99), Status::Internal);
        assert_eq!(Status::from_code(7), Status::Internal);
    }
}
