//! A weight file or an index of weight files.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tensorfold_fuzz::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(Scratch::new);

fuzz_target!(|input: &[u8]| {
    let _ = tensorfold_fuzz::safetensors(&SCRATCH, input);
});
