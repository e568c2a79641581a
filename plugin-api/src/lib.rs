//! The plugin contract.
