//! GGUF files, through the whole conversion.

use tensorfold::checkpoint::Checkpoint;
use tensorfold::convert::gguf::Gguf;
use tensorfold::convert::{Options, Progress, Stop, convert};
use tensorfold::text::TextModel;

use super::Scratch;

struct Nobody;

impl Progress for Nobody {
    fn begin(&self, _: u64) {}
    fn advance(&self, _: u64) {}
}

/// A whole file. What is converted must open as the server opens it.
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
    Checkpoint::open(&output).expect("what was converted opens");
    TextModel::load(&output).expect("its texts do as well");
    Ok(())
}
