//! tensorfold's MLX backend.
