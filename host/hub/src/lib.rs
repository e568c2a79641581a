//! The Hugging Face Hub: its cache, and downloads into it that resume and are verified.
//!
//! [`Reference`] reads `OWNER/NAME[@REVISION]`; [`Cache`] finds what is on disk, in the layout that Python's
//! `huggingface_hub` made. With the feature `download`, `Hub` looks up revisions, lists files, reads a model's
//! metadata without storing it, and downloads.
//!
//! # Why not the `hf-hub` crate
//!
//! It would have been natural to leave revisions and listings to it. Version 1.0.0 does three things that a program
//! which holds a user's token and reads strangers' answers must not do: it sends the token to whatever host the
//! `Link` header of a listing names, it reads answers of any size into memory, and it waits without limit for a
//! server that went silent. Its downloads neither resume nor verify. What is left of it, the look-up in the cache, is
//! no reason to build twice as many packages. So everything here uses one HTTP client with one set of rules:
//!
//! - The token goes to the endpoint's own origin and nowhere else.
//! - Nothing is sized by the network: every answer has a limit, and downloads pass through buffers of fixed size.
//! - A server that stalls, or sends so slowly that it might as well, is given up and tried again.
//! - What has a digest is checked against it before it gets its name in the cache.
//! - Paths of a listing are checked before anything is made on disk.
//!
//! The cache is the same one all the same, and `tests/peer.rs` holds that against `hf-hub` itself, which only tests
//! depend on: it finds what was downloaded here, what it downloaded is not downloaded again, and what it began is gone
//! on with, or thrown away where the digest says so.

mod cache;
mod reference;

#[cfg(feature = "download")]
mod blob;
#[cfg(feature = "download")]
mod digest;
#[cfg(feature = "download")]
mod error;
#[cfg(feature = "download")]
mod http;
#[cfg(feature = "download")]
mod hub;
#[cfg(feature = "download")]
mod listing;
#[cfg(feature = "download")]
mod path;
#[cfg(feature = "download")]
mod preview;
#[cfg(feature = "download")]
mod retry;
#[cfg(feature = "download")]
mod select;
#[cfg(feature = "download")]
mod settings;
#[cfg(feature = "download")]
mod transfer;

pub use self::cache::{Cache, RepositoryFolder};
pub use self::reference::{Commit, Malformed, Reference, RepoId, Revision};

#[cfg(feature = "download")]
pub use self::digest::Digest;
#[cfg(feature = "download")]
pub use self::error::HubError;
#[cfg(feature = "download")]
pub use self::hub::{Event, Hub, Watch};
#[cfg(feature = "download")]
pub use self::listing::{Listing, RemoteFile};
#[cfg(feature = "download")]
pub use self::path::RepoPath;
#[cfg(feature = "download")]
pub use self::settings::{Limits, Settings};
