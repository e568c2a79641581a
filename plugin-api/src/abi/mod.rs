//! The C tables: what crosses the border between host and plugin.
//!
//! Everything in here is data layout. A published table never changes: growth
//! is a new interface id. While [`ABI_MAJOR`] is 0 tables may still change in
//! place, and each change raises [`ABI_MINOR`].
//!
//! # Rules for every table
//!
//! * Structs passed by pointer begin with `struct_size`, the size that the
//!   sender knows. A receiver refuses a smaller one than it needs.
//! * Integers have fixed width, booleans are `u8` 0 or 1, enumerations are
//!   `u32` with named constants; an unknown value is treated as "other".
//! * Strings are pointer and length, UTF-8, without a terminating zero. A
//!   null pointer with length 0 is an empty string or list.
//! * Arguments are borrowed for the duration of the call unless the field says
//!   otherwise. Who allocates frees.
//! * Functions return a status of [`status`] and, when it is not
//!   [`TF_STATUS_OK`], fill the caller's [`TfError`], which the caller gives
//!   back through `release_error` of the table `tensorfold.backend/1`.
//! * No function unwinds. A panic or exception becomes
//!   [`TF_STATUS_PANICKED`].
//! * Every function has a thread class: **`[any]`** from any thread, also
//!   concurrently; **`[engine]`** the host makes one call at a time for each
//!   engine, the thread may change between calls; **`[control]`** one call at
//!   a time for the whole plugin, from one fixed thread.
//!
//! Nothing in this module allocates, opens or calls anything.

mod backend;
mod descriptor;
mod drafters;
mod engine;
mod host;
pub mod layout;
mod round;
pub mod status;
mod value;

pub use backend::*;
pub use descriptor::*;
pub use drafters::*;
pub use engine::*;
pub use host::*;
pub use round::*;
pub use status::*;
pub use value::*;

/// Major number of the contract. 0 until all four of tensorfold's own plugins
/// run on it; from then on it is frozen.
pub const ABI_MAJOR: u16 = 0;

/// Minor number of the contract; equal to the minor of this crate's version.
pub const ABI_MINOR: u16 = 1;

/// Id of [`TfBackendV1`].
pub const BACKEND_INTERFACE: &str = "tensorfold.backend/1";

/// Id of [`TfEngineV1`].
pub const ENGINE_INTERFACE: &str = "tensorfold.engine/1";

/// Id of [`TfMtpV1`].
pub const MTP_INTERFACE: &str = "tensorfold.mtp/1";

/// Id of [`TfDflashV1`].
pub const DFLASH_INTERFACE: &str = "tensorfold.dflash/1";

/// Id of [`TfHostV1`].
pub const HOST_INTERFACE: &str = "tensorfold.host/1";

#[cfg(test)]
mod tests {
    #[test]
    fn the_crate_version_states_the_abi() {
        let version = semver::Version::parse(env!("CARGO_PKG_VERSION")).unwrap();
        assert_eq!((version.major, version.minor), (super::ABI_MAJOR.into(), super::ABI_MINOR.into()));
    }
}
