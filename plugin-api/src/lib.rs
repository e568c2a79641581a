//! The contract between tensorfold and its backend plugins.
//!
//! A plugin is a shared library with a capability manifest. The host reads the manifest from the
//! file, without loading it, and decides from it; only then does it open the library and talk to
//! it through the tables of [`abi`].
//!
//! * Vendors who write in Rust start at [`plugin`]; in C, C++ or Zig at
//!   `include/tensorfold_plugin.h`.
//! * The host's own half of the border is [`host`].

pub mod abi;
pub mod attest;
pub mod device;
pub mod drafter_spec;
mod error;
pub mod host;
pub mod manifest;
pub mod model_spec;
pub mod negotiation;
pub mod plugin;
#[cfg(all(unix, feature = "runtime-library"))]
pub mod runtime_library;
pub mod sampling;
pub mod vocabulary;

pub use error::PluginError;

// The code of the vendor guide compiles, or the tests fail.
#[cfg(all(doctest, unix, feature = "runtime-library"))]
#[doc = include_str!("../../docs/src/vendor/rust.md")]
#[doc = include_str!("../../docs/src/vendor/manifest.md")]
struct VendorGuide;
