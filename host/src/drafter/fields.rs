//! Fields of a drafter's `config.json`, wherever they stand.
//!
//! Newer checkpoints keep what is the drafter's own in `dflash_config`, older ones at the top level. Where a field
//! stands twice the nested value wins, as in every published loader.

use serde_json::Value;

use super::fault::{Fault, FaultCode};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::parts::{Config, Section, brief};

/// A configuration that is being read, and what was found wrong with it so far.
pub(super) struct Fields<'a> {
    /// The top level.
    pub(super) top: Section<'a>,
    nested: Option<Section<'a>>,
    faults: Vec<Fault>,
    missing: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(config: &'a Config) -> Fields<'a> {
        let top = config.top();
        // Recognising it has looked at this already.
        let nested = top.section("dflash_config").ok().flatten();
        Fields { top, nested, faults: Vec::new(), missing: Vec::new() }
    }

    pub(super) fn fault(&mut self, code: FaultCode, text: impl Into<String>) {
        self.faults.push(Fault::new(code, text));
    }

    /// The section that decides about a field.
    fn place(&self, key: &str) -> &Section<'a> {
        self.nested.as_ref().filter(|nested| nested.get(key).is_some()).unwrap_or(&self.top)
    }

    /// A field as it is.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.place(key).get(key)
    }

    fn read<T>(
        &mut self,
        key: &str,
        code: FaultCode,
        read: impl FnOnce(&Section<'a>, &str) -> Result<Option<T>, CheckpointError>,
    ) -> Option<T> {
        match read(self.place(key), key) {
            Ok(value) => value,
            Err(error) => {
                self.faults.push(Fault { code, ..Fault::of_config(error) });
                None
            }
        }
    }

    /// A positive integer. A value of another kind is a fault of this code.
    pub(super) fn integer(&mut self, key: &str, code: FaultCode) -> Option<u32> {
        self.read(key, code, Section::integer)
    }

    /// A positive integer without a default.
    pub(super) fn required(&mut self, key: &'static str, code: FaultCode) -> Option<u32> {
        self.need(key);
        self.integer(key, code)
    }

    /// An integer from 0 up, without a default.
    pub(super) fn required_index(&mut self, key: &'static str, code: FaultCode) -> Option<u32> {
        self.need(key);
        let value = self.get(key)?;
        let index = value.as_u64().and_then(|index| u32::try_from(index).ok());
        if index.is_none() {
            self.fault(code, format!("{key} is {}; a number from 0 up is needed", brief(value)));
        }
        index
    }

    /// A positive number.
    pub(super) fn positive(&mut self, key: &str) -> Option<f64> {
        let value = self.read(key, FaultCode::BadField, Section::number)?;
        if value <= 0.0 {
            self.fault(FaultCode::BadField, format!("{key} is {value}; a number above 0 is needed"));
            return None;
        }
        Some(value)
    }

    /// A positive number without a default.
    pub(super) fn required_positive(&mut self, key: &'static str) -> Option<f64> {
        self.need(key);
        self.positive(key)
    }

    /// A number from 0 up, where 0 is as good as none.
    pub(super) fn number_or_none(&mut self, key: &str) -> Option<f64> {
        match self.get(key).and_then(Value::as_f64) {
            Some(0.0) => None,
            _ => self.positive(key),
        }
    }

    /// True or false.
    pub(super) fn boolean(&mut self, key: &str) -> Option<bool> {
        self.read(key, FaultCode::BadField, Section::boolean)
    }

    /// True or false at the top level, whatever stands nested.
    pub(super) fn top_boolean(&mut self, key: &str) -> Option<bool> {
        self.kept(|fields| fields.top.boolean(key))
    }

    /// True or false in `dflash_config` alone.
    pub(super) fn nested_boolean(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.nested.as_ref().map_or(Ok(None), |nested| nested.boolean(key))
    }

    /// What was read, or else a fault of the configuration.
    pub(super) fn kept<T: Default>(&mut self, read: impl FnOnce(&Self) -> Result<T, CheckpointError>) -> T {
        read(self).unwrap_or_else(|error| {
            self.faults.push(Fault::of_config(error));
            T::default()
        })
    }

    /// Refuses a switch that stands otherwise than in everything that is computed.
    pub(super) fn refuse(&mut self, key: &str, refused: bool, needed: &str) {
        if self.boolean(key) == Some(refused) {
            self.fault(FaultCode::Unsupported, format!("{key} is {refused}; {needed}"));
        }
    }

    /// Notes the absence of a field, under the name that tells what to add.
    pub(super) fn need(&mut self, key: &'static str) {
        if self.get(key).is_none() {
            self.missing.push(key);
        }
    }

    /// Notes that none of several fields is there.
    pub(super) fn need_any(&mut self, any: &'static str) {
        self.missing.push(any);
    }

    /// All faults; the fields that are missing are one of them.
    pub(super) fn end(mut self, drafter: &str) -> Vec<Fault> {
        if !self.missing.is_empty() {
            let text = format!("a {drafter} config without {}", self.missing.join(", "));
            self.faults.push(Fault::new(FaultCode::MissingField, text));
        }
        self.faults
    }
}
