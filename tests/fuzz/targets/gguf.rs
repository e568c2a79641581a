//! A GGUF file.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tensorfold_fuzz::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| {
    // The tokenizer library panics on some files; the program catches that. The
    // fuzzer's hook would end the process at once. Without it, only what nobody
    // catches ends it.
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    Scratch::new()
});

fuzz_target!(|input: &[u8]| {
    let _ = tensorfold_fuzz::gguf(&SCRATCH, input);
});
