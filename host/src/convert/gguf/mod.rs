//! GGUF files, versions 2 and 3, little-endian: metadata and where tensors lie.
//!
//! A file is a stranger's word. [`Gguf::parse`] takes its bytes, checks every
//! length, count and offset against them, and never panics; what it returns
//! points nowhere outside the file. Nothing is allocated for a number that the
//! file only claims.
//!
//! Layout: magic, version, counts of tensors and of metadata pairs; the pairs;
//! for each tensor its name, axes (the fastest first), type and offset; padding
//! to `general.alignment` (32 when absent); data.

mod cursor;
mod element;
mod error;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, HashSet};

pub use self::element::GgmlType;
pub use self::error::GgufError;
pub use self::value::{Number, Value};

use self::cursor::Cursor;

/// What a file begins with.
pub const MAGIC: &[u8; 4] = b"GGUF";

const MOST_PAIRS: u64 = 1 << 16;
const MOST_TENSORS: u64 = 1 << 20;
const LONGEST_NAME: usize = 1 << 10;
const MOST_AXES: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const LARGEST_ALIGNMENT: u64 = 1 << 16;
/// The fewest bytes that describe a pair or a tensor.
const LEAST_ENTRY: u64 = 8;

/// A parsed file. It borrows the bytes that it was parsed from.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf<'a> {
    /// 2 or 3.
    pub version: u32,
    /// Values by key.
    pub metadata: BTreeMap<&'a str, Value<'a>>,
    /// In the order of the file.
    pub tensors: Vec<TensorInfo<'a>>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo<'a> {
    /// Its name.
    pub name: &'a str,
    /// Row-major shape: the slowest axis first, which is the reverse of the file's order.
    pub shape: Vec<u64>,
    /// Its element type.
    pub element: GgmlType,
    /// Its bytes; empty where the type is not known, so that their number is not either.
    pub data: &'a [u8],
}

impl<'a> Gguf<'a> {
    /// Reads a whole file.
    ///
    /// # Errors
    /// [`GgufError`] for the first thing that is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Gguf<'a>, GgufError> {
        let mut cursor = Cursor::new(bytes);
        let version = read_start(&mut cursor)?;
        let tensor_count = cursor.u64("the number of tensors")?;
        let pair_count = cursor.u64("the number of metadata pairs")?;
        for (count, most, what) in
            [(tensor_count, MOST_TENSORS, "tensors"), (pair_count, MOST_PAIRS, "metadata pairs")]
        {
            if count > most || count > cursor.left() / LEAST_ENTRY {
                return cursor.fault(format!("the file claims {count} {what}, more than it can hold"));
            }
        }
        let metadata = read_metadata(&mut cursor, pair_count)?;
        let alignment = alignment(&metadata, &cursor)?;
        let mut described = Vec::new();
        let mut names = HashSet::new();
        for _ in 0..tensor_count {
            let tensor = Described::read(&mut cursor)?;
            if !names.insert(tensor.name) {
                return cursor.fault(format!("the tensor {} is there twice", tensor.name));
            }
            described.push(tensor);
        }
        // Far below overflow: the position is a length in memory.
        let data_start = cursor.position().next_multiple_of(alignment);
        check_overlap(&described, &cursor)?;
        let tensors = described
            .into_iter()
            .map(|tensor| tensor.locate(bytes, data_start, alignment))
            .collect::<Result<_, _>>()?;
        Ok(Gguf { version, metadata, tensors })
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo<'a>> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

fn read_start(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    if cursor.take(4, "the magic number")? != MAGIC {
        return cursor.fault("it does not begin with GGUF");
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        1 => cursor.fault("it is of version 1 of the format; versions 2 and 3 are read: make the file again"),
        version if matches!(version.swap_bytes(), 1..=3) => {
            cursor.fault("it is big-endian; little-endian files are read")
        }
        version => {
            cursor.fault(format!("it is of version {version} of the format; versions 2 and 3 are read"))
        }
    }
}

fn read_metadata<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<BTreeMap<&'a str, Value<'a>>, GgufError> {
    let mut metadata = BTreeMap::new();
    for _ in 0..count {
        let key = read_name(cursor, "a metadata key")?;
        let kind = cursor.u32(&format!("the type of {key}"))?;
        let value = value::read(cursor, kind, key)?;
        if metadata.insert(key, value).is_some() {
            return cursor.fault(format!("the metadata key {key} is there twice"));
        }
    }
    Ok(metadata)
}

/// A key or a tensor's name. It ends up in messages, so it has to be plain.
fn read_name<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a str, GgufError> {
    let name = cursor.text(what)?;
    if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return cursor.fault(format!("{what} is empty, longer than {LONGEST_NAME} bytes, or not plain text"));
    }
    Ok(name)
}

fn alignment(metadata: &BTreeMap<&str, Value<'_>>, cursor: &Cursor<'_>) -> Result<u64, GgufError> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::Unsigned(value)) if value.is_power_of_two() && value <= LARGEST_ALIGNMENT => Ok(value),
        Some(_) => {
            cursor.fault(format!("general.alignment is no power of two between 1 and {LARGEST_ALIGNMENT}"))
        }
    }
}

/// A tensor as the file describes it; the offset is from the start of the data.
#[derive(Debug)]
struct Described<'a> {
    name: &'a str,
    shape: Vec<u64>,
    element: GgmlType,
    offset: u64,
    /// In bytes; `None` where the type is not known.
    length: Option<u64>,
}

impl<'a> Described<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Described<'a>, GgufError> {
        let name = read_name(cursor, "a tensor's name")?;
        let axes = cursor.u32(&format!("the shape of {name}"))?;
        if !(1..=MOST_AXES).contains(&axes) {
            return cursor.fault(format!("{name} has {axes} axes; 1 to {MOST_AXES} are read"));
        }
        let mut shape = Vec::new();
        for _ in 0..axes {
            shape.push(cursor.u64(&format!("the shape of {name}"))?);
        }
        let element = GgmlType(cursor.u32(&format!("the type of {name}"))?);
        let offset = cursor.u64(&format!("the offset of {name}"))?;
        let columns = shape[0];
        shape.reverse();
        let elements = shape.iter().try_fold(1u64, |product, &axis| product.checked_mul(axis));
        let Some(elements @ 1..) = elements else {
            return cursor.fault(format!("{name} has the shape {shape:?}, which no file can hold"));
        };
        let length = match element.block() {
            None => None,
            Some((block, _)) if !columns.is_multiple_of(block) => {
                return cursor.fault(format!(
                    "{name} has {columns} columns, which blocks of {block} ({}) do not fill",
                    element.name()
                ));
            }
            Some((block, bytes)) => match (elements / block).checked_mul(bytes) {
                Some(length) => Some(length),
                None => {
                    return cursor.fault(format!("{name} has the shape {shape:?}, which no file can hold"));
                }
            },
        };
        Ok(Described { name, shape, element, offset, length })
    }

    fn locate(self, bytes: &'a [u8], data_start: u64, alignment: u64) -> Result<TensorInfo<'a>, GgufError> {
        let Described { name, shape, element, offset, length } = self;
        let fault = |problem: String| GgufError { problem, position: data_start };
        if !offset.is_multiple_of(alignment) {
            return Err(fault(format!(
                "{name} is at the offset {offset}, which is not aligned to {alignment}"
            )));
        }
        let start = data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(length.unwrap_or(0)));
        match (start, end) {
            (Some(start), Some(end)) if end <= bytes.len() as u64 => {
                Ok(TensorInfo { name, shape, element, data: &bytes[start as usize..end as usize] })
            }
            _ => Err(fault(format!(
                "{name} is said to end beyond the file's {} bytes; the file may be incomplete",
                bytes.len()
            ))),
        }
    }
}

/// Tensors that share bytes are of no honest file, and would let a small one unfold into a huge folder.
fn check_overlap(tensors: &[Described<'_>], cursor: &Cursor<'_>) -> Result<(), GgufError> {
    let mut ranges: Vec<_> =
        tensors.iter().filter_map(|tensor| Some((tensor.offset, tensor.length?, tensor.name))).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((start, length, first), (next, _, second)) = (pair[0], pair[1]);
        if start.checked_add(length).is_none_or(|end| end > next) {
            return cursor.fault(format!("the tensors {first} and {second} overlap"));
        }
    }
    Ok(())
}
