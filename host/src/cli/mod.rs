//! Commands and options.

pub mod plugins;
