//! GGUF files, through the whole conversion.

use tensorfold::convert::gguf::Gguf;
use tensorfold::convert::{Options, Progress, Stop, convert};

use super::Scratch;

struct Nobody;

impl Progress for Nobody {
    fn begin(&self, _: u64) {}
    fn advance(&self, _: u64) {}
}

/// A whole file. A conversion opens what it wrote as the server opens it, and
/// fails when that cannot be opened.
pub fn gguf(scratch: &Scratch, input: &[u8]) -> Result<(), String> {
    if let Err(error) = Gguf::parse(input) {
        return Err(error.to_string());
    }
    let folder = scratch.fill(&[("model.gguf", input)]);
    let output = folder.join("out");
    let options = Options::default();
    let converted = convert(&folder.join("model.gguf"), &output, &options, &Nobody, &Stop::default());
    if let Err(error) = converted {
        assert!(!output.exists(), "{error}, and something is left behind");
        return Err(error.to_string());
    }
    assert!(output.is_dir(), "nothing was written");
    Ok(())
}
