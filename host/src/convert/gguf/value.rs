//! The values of a file's metadata.

use super::cursor::Cursor;
use super::error::GgufError;

/// Deepest nesting of arrays.
const MOST_DEPTH: u32 = 4;

/// A value. Numbers are widened to 64 bits.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A signed integer of any width.
    Signed(i64),
    /// A number of 32 bits, as it is stored.
    Float(f32),
    /// A number of 64 bits.
    Double(f64),
    /// True or false.
    Boolean(bool),
    /// Text.
    Text(&'a str),
    /// An array of text.
    Texts(Vec<&'a str>),
    /// An array of numbers or booleans.
    Numbers(Vec<Number>),
    /// An array of arrays, whose content is passed over.
    Nested,
}

/// An element of an array of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An unsigned integer, or a boolean as 0 or 1.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A float of either width.
    Float(f64),
}

impl Number {
    /// As an unsigned integer, where it is a whole number that is not negative.
    pub fn unsigned(self) -> Option<u64> {
        match self {
            Number::Unsigned(value) => Some(value),
            Number::Signed(value) => u64::try_from(value).ok(),
            Number::Float(_) => None,
        }
    }
}

impl Value<'_> {
    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) | Value::Signed(_) => "an integer",
            Value::Float(_) | Value::Double(_) => "a number",
            Value::Boolean(_) => "true or false",
            Value::Text(_) => "text",
            Value::Texts(_) => "a list of texts",
            Value::Numbers(_) => "a list of numbers",
            Value::Nested => "a list of lists",
        }
    }
}

/// The number of a type in the file.
mod kind {
    pub(super) const TEXT: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
}

/// Reads a value of the type with this number.
pub(super) fn read<'a>(cursor: &mut Cursor<'a>, kind: u32, key: &str) -> Result<Value<'a>, GgufError> {
    match kind {
        kind::TEXT => Ok(Value::Text(cursor.text(&format!("the value of {key}"))?)),
        kind::ARRAY => array(cursor, key, 1),
        _ => {
            let number = scalar(cursor, kind, key)?;
            Ok(match (number, kind) {
                (Number::Unsigned(value), 7) => Value::Boolean(value != 0),
                (Number::Unsigned(value), _) => Value::Unsigned(value),
                (Number::Signed(value), _) => Value::Signed(value),
                // Widening a 32-bit float and narrowing it again gives the same float.
                (Number::Float(value), 6) => Value::Float(value as f32),
                (Number::Float(value), _) => Value::Double(value),
            })
        }
    }
}

/// Bytes of a scalar of the type with this number.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

fn scalar(cursor: &mut Cursor<'_>, kind: u32, key: &str) -> Result<Number, GgufError> {
    let Some(width) = width(kind) else {
        return cursor.fault(format!("{key} has a value of type number {kind}, which is not known"));
    };
    let mut bytes = [0; 8];
    bytes[..width as usize].copy_from_slice(cursor.take(width, &format!("the value of {key}"))?);
    let raw = u64::from_le_bytes(bytes);
    let number = match kind {
        1 => Number::Signed((raw as u8 as i8).into()),
        3 => Number::Signed((raw as u16 as i16).into()),
        5 => Number::Signed((raw as u32 as i32).into()),
        11 => Number::Signed(raw as i64),
        6 => Number::Float(f32::from_bits(raw as u32).into()),
        12 => Number::Float(f64::from_bits(raw)),
        _ => Number::Unsigned(raw),
    };
    if kind == 7 && raw > 1 {
        return cursor.fault(format!("{key} is a boolean of value {raw}"));
    }
    Ok(number)
}

fn array<'a>(cursor: &mut Cursor<'a>, key: &str, depth: u32) -> Result<Value<'a>, GgufError> {
    let what = format!("the list of {key}");
    let kind = cursor.u32(&what)?;
    let count = cursor.u64(&what)?;
    cursor.keep_elements(count, &what)?;
    // Nothing is reserved for a count that the file only claims: lists grow by what was read.
    match kind {
        kind::TEXT => {
            let mut texts = Vec::new();
            for _ in 0..count {
                texts.push(cursor.text(&what)?);
            }
            Ok(Value::Texts(texts))
        }
        kind::ARRAY if depth == MOST_DEPTH => {
            cursor.fault(format!("{key} is nested more than {MOST_DEPTH} deep"))
        }
        kind::ARRAY => {
            for _ in 0..count {
                array(cursor, key, depth + 1)?;
            }
            Ok(Value::Nested)
        }
        _ => {
            let mut numbers = Vec::new();
            for _ in 0..count {
                numbers.push(scalar(cursor, kind, key)?);
            }
            Ok(Value::Numbers(numbers))
        }
    }
}
