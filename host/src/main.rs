//! The tensorfold program.
fn main() {}
