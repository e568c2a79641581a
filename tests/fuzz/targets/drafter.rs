//! A drafter's `config.json`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tensorfold_fuzz::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|input: &[u8]| {
    let _ = tensorfold_fuzz::drafter(&SCRATCH, input);
});
