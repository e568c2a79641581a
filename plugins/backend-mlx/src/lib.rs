//! tensorfold's MLX backend.

mod library;
