//! tensorfold's CPU backend.
