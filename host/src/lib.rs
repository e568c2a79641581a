//! The tensorfold host.
