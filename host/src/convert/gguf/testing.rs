//! Writes GGUF files for tests. It follows the format's description on its own, so that a mistake of the reader is
//! not repeated here.

/// A file in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct GgufWriter {
    pairs: Vec<u8>,
    pair_count: u64,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl GgufWriter {
    pub(crate) fn new(architecture: &str) -> GgufWriter {
        GgufWriter::default().text("general.architecture", architecture)
    }

    /// A pair whose value is given as type number and bytes.
    pub(crate) fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> GgufWriter {
        push_text(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        self.pairs.extend(value);
        self.pair_count += 1;
        self
    }

    pub(crate) fn text(self, key: &str, value: &str) -> GgufWriter {
        let mut bytes = Vec::new();
        push_text(&mut bytes, value);
        self.raw(key, 8, &bytes)
    }

    pub(crate) fn integer(self, key: &str, value: u32) -> GgufWriter {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn float(self, key: &str, value: f32) -> GgufWriter {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn boolean(self, key: &str, value: bool) -> GgufWriter {
        self.raw(key, 7, &[u8::from(value)])
    }

    pub(crate) fn texts<S: AsRef<str>>(self, key: &str, values: &[S]) -> GgufWriter {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            push_text(&mut bytes, value.as_ref());
        }
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn integers(self, key: &str, values: &[i32]) -> GgufWriter {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    pub(crate) fn floats(self, key: &str, values: &[f32]) -> GgufWriter {
        let mut bytes = 6u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.raw(key, 9, &bytes)
    }

    /// A tensor of a row-major shape.
    pub(crate) fn tensor(mut self, name: &str, kind: u32, shape: &[u64], data: Vec<u8>) -> GgufWriter {
        self.tensors.push((name.into(), shape.into(), kind, data));
        self
    }

    /// Gives a key another name of the same length.
    pub(crate) fn renamed(mut self, key: &str, other: &str) -> GgufWriter {
        let at = self.place(key) - key.len();
        self.pairs[at..at + key.len()].copy_from_slice(other.as_bytes());
        self
    }

    /// Gives a key another boolean.
    pub(crate) fn replaced_boolean(mut self, key: &str, value: bool) -> GgufWriter {
        let at = self.place(key) + 4;
        self.pairs[at] = u8::from(value);
        self
    }

    /// Where the type of a key's value stands.
    fn place(&self, key: &str) -> usize {
        let mut wanted = Vec::new();
        push_text(&mut wanted, key);
        let found = self.pairs.windows(wanted.len()).position(|window| window == wanted);
        found.unwrap_or_else(|| panic!("no key {key}")) + wanted.len()
    }

    /// The file, aligned to 32.
    pub(crate) fn finish(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend(self.pair_count.to_le_bytes());
        file.extend(&self.pairs);
        let mut offset = 0u64;
        for (name, shape, kind, data) in &self.tensors {
            push_text(&mut file, name);
            file.extend((shape.len() as u32).to_le_bytes());
            for axis in shape.iter().rev() {
                file.extend(axis.to_le_bytes());
            }
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset += data.len().next_multiple_of(32) as u64;
        }
        for (.., data) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(data);
        }
        file
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}
