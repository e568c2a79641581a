//! What the tests share.

#![allow(dead_code, reason = "each test program uses its own part of this")]

pub(crate) mod client;
pub(crate) mod server;
