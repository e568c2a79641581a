//! Plain values that the tables share.

/// UTF-8 text: `length` bytes at `data`, without a terminating zero.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfStr {
    /// First byte; may be null when `length` is 0.
    pub data: *const u8,
    /// Bytes.
    pub length: u64,
}

/// A name and a value, both text.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfKeyValue {
    /// The name.
    pub key: TfStr,
    /// The value.
    pub value: TfStr,
}

/// What went wrong. The caller sets `struct_size` and zeroes the rest; a
/// function that fails fills it; the caller then passes it to `release_error`
/// of the table `tensorfold.backend/1` exactly once.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(feature = "attest", derive(abi_stable::StableAbi))]
pub struct TfError {
    /// Size of this struct in bytes.
    pub struct_size: u32,
    /// The status that the function also returned.
    pub status: i32,
    /// One line: what was wanted, what was found, what to do. Owned by the plugin.
    pub message: TfStr,
    /// Further facts, such as `free_bytes`. Owned by the plugin.
    pub details: *const TfKeyValue,
    /// Entries of `details`.
    pub detail_count: u64,
    /// The plugin's own pointer to what holds the above; null: nothing to free.
    pub owner: *mut std::ffi::c_void,
}

impl TfStr {
    /// The empty text.
    pub const EMPTY: TfStr = TfStr { data: std::ptr::null(), length: 0 };

    /// Borrows `text`, which must outlive every use of the result.
    pub const fn new(text: &str) -> TfStr {
        TfStr { data: text.as_ptr(), length: text.len() as u64 }
    }

    /// The text, with invalid UTF-8 replaced.
    ///
    /// # Safety
    /// `data` must point to `length` readable bytes, or `length` must be 0.
    pub unsafe fn to_string_lossy(self) -> String {
        // SAFETY: the caller promises what `bytes` asks for.
        String::from_utf8_lossy(unsafe { self.bytes() }).into_owned()
    }

    /// The bytes.
    ///
    /// # Safety
    /// `data` must point to `length` readable bytes that live as long as `'a`,
    /// or `length` must be 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: passed on to the caller.
        unsafe { slice(self.data, self.length) }
    }
}

/// A slice of `length` items at `data`; null or 0 items give an empty one.
///
/// # Safety
/// `data` must be aligned and point to `length` initialised items that live
/// as long as `'a` and are not written to meanwhile, or be null, or `length`
/// must be 0.
pub unsafe fn slice<'a, T>(data: *const T, length: u64) -> &'a [T] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: not null, and the caller promises length, alignment and lifetime.
    unsafe { std::slice::from_raw_parts(data, length as usize) }
}

/// As [`slice()`], writable.
///
/// # Safety
/// As for [`slice()`], and nothing else may access the items during `'a`.
pub unsafe fn slice_mut<'a, T>(data: *mut T, length: u64) -> &'a mut [T] {
    if data.is_null() || length == 0 {
        return &mut [];
    }
    // SAFETY: not null, and the caller promises length, alignment, lifetime and exclusivity.
    unsafe { std::slice::from_raw_parts_mut(data, length as usize) }
}

impl TfError {
    /// An empty error for a callee to fill.
    pub const fn empty() -> TfError {
        TfError {
            struct_size: size_of::<TfError>() as u32,
            status: super::TF_STATUS_OK,
            message: TfStr::EMPTY,
            details: std::ptr::null(),
            detail_count: 0,
            owner: std::ptr::null_mut(),
        }
    }
}
