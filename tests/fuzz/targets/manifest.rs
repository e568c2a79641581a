//! A plugin's manifest, or a library file that holds one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = tensorfold_fuzz::manifest(input);
});
