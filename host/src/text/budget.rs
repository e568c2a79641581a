//! What one rendering of a chat template may take.
//!
//! The template engine counts steps and the bytes that they make. It does not
//! count how deep values lie in each other, nor what a value that holds itself
//! many times over comes to when it is written out. Here is what does.
//!
//! Not bounded is such a value where the engine makes text of it by itself, as
//! `~` and `join` do: that can take long, and all memory.

use std::fmt::{self, Write as _};
use std::{io, thread};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};
use serde_json::{Map, Value as Json};

/// Steps of a rendering, and what each unit of its input's size adds. Real
/// templates take some hundred steps a message, and pass over a text a few
/// times, for which the engine takes a step each 64 bytes.
const STEPS: u64 = 500_000;
const STEPS_PER_UNIT: u64 = 4;
const MOST_STEPS: u64 = 20_000_000;

/// Stack for each step: a step can put one more list around a list, and ending
/// or comparing those calls itself once for each.
const STACK_PER_STEP: u64 = 768;
const MOST_STACK: u64 = 1 << 30;

/// Bytes that one value may come to when it is written out.
const VALUE_BYTES: usize = 16 << 20;
/// Values that one value may hold when it is written out.
const MOST_VALUES: usize = 1 << 20;
/// How deep values may lie in each other when they are written out; JSON that
/// is read may be as deep.
const DEPTH: usize = 128;

/// Steps for a rendering of these variables.
pub(super) fn steps(variables: &Map<String, Json>) -> u64 {
    let size = variables.values().map(size).fold(0u64, u64::saturating_add);
    size.saturating_mul(STEPS_PER_UNIT).saturating_add(STEPS).min(MOST_STEPS)
}

/// Bytes of texts, and a few for every value.
fn size(value: &Json) -> u64 {
    const EACH: u64 = 8;
    EACH + match value {
        Json::String(text) => text.len() as u64,
        Json::Array(values) => values.iter().map(size).sum(),
        Json::Object(map) => map.iter().map(|(key, value)| key.len() as u64 + size(value)).sum(),
        _ => 0,
    }
}

/// Runs `work`, which takes so many steps, where its stack suffices for them.
///
/// # Errors
/// When no thread can be started.
pub(super) fn on_deep_stack<T: Send>(steps: u64, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    // Only what is touched of a stack takes memory.
    let stack = steps.saturating_mul(STACK_PER_STEP).min(MOST_STACK) as usize;
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("tensorfold-template".into()).stack_size(stack);
        match builder.spawn_scoped(scope, work)?.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn too_much(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value {what}"))
}

fn too_many() -> Error {
    too_much(format_args!("holds more than {MOST_VALUES} others"))
}

fn too_deep() -> Error {
    too_much(format_args!("lies more than {DEPTH} deep in others"))
}

/// Writes a value where a template says `{{ value }}`.
pub(super) fn write_value(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return escape_formatter(out, state, value);
    }
    check_depth(value, 0, &mut { MOST_VALUES })?;
    let mut bounded = Bounded { out, left: VALUE_BYTES };
    write!(bounded, "{value}")
        .map_err(|_| too_much(format_args!("is longer than {VALUE_BYTES} bytes as text")))
}

struct Bounded<'a, 'o> {
    out: &'a mut Output<'o>,
    left: usize,
}

impl fmt::Write for Bounded<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        self.out.write_str(text)
    }
}

/// Looks at what would be written out. Things of unknown length are not; to
/// look at them may use them up.
fn check_depth(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    let is_map = value.kind() == ValueKind::Map;
    if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) || value.len().is_none() {
        return Ok(());
    }
    if depth == DEPTH {
        return Err(too_deep());
    }
    for item in value.try_iter()? {
        if is_map {
            check_depth(&value.get_item(&item)?, depth + 1, left)?;
        }
        check_depth(&item, depth + 1, left)?;
    }
    Ok(())
}

/// A value as JSON.
///
/// # Errors
/// When it has no such form, or is too deep or too large for one.
pub(super) fn to_json_value(value: &Value) -> Result<Json, Error> {
    json(value, 0, &mut { MOST_VALUES })
}

fn json(value: &Value, depth: usize, left: &mut usize) -> Result<Json, Error> {
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    if depth == DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => Ok(Json::Array(
            value.try_iter()?.map(|item| json(&item, depth + 1, left)).collect::<Result<_, _>>()?,
        )),
        ValueKind::Map => {
            let mut map = Map::new();
            for key in value.try_iter()? {
                let item = json(&value.get_item(&key)?, depth + 1, left)?;
                map.insert(name(&key)?, item);
            }
            Ok(Json::Object(map))
        }
        _ => plain(value),
    }
}

/// A key of an object; numbers and the like become texts, as they do in Python.
fn name(key: &Value) -> Result<String, Error> {
    match key.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => match plain(key)? {
            key @ (Json::Null | Json::Bool(_) | Json::Number(_)) => Ok(key.to_string()),
            _ => Err(Error::new(ErrorKind::BadSerialization, "tojson: a key is no text")),
        },
    }
}

fn plain(value: &Value) -> Result<Json, Error> {
    serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::BadSerialization, "tojson: the value has no JSON form").with_source(error)
    })
}
