//! Whether two copies of a manifest say the same.
//!
//! Copies are compared by what they mean: order within a set, spelling of
//! numbers, comments, defaults that are written out and keys that this host
//! does not know make no difference. The file name of the library, its digest
//! and the table for packagers may differ.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::Manifest;
use super::source::printable;

/// Keys that packagers may change.
const NOT_COMPARED: &[&str] = &["plugin.library", "plugin.sha256"];

/// The first key in which two manifests differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The key with its path, such as `drafters.mtp.depth_max`.
    pub key: String,
    /// What the first manifest says; none where it says nothing.
    pub left: Option<String>,
    /// What the second manifest says.
    pub right: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(formatter, "{}: {} here, {} there", self.key, side(&self.left), side(&self.right))
    }
}

impl Manifest {
    /// The first difference in meaning, by the order of the keys' paths.
    pub fn first_difference(&self, other: &Manifest) -> Option<Difference> {
        let (left, right) = (self.facts(), other.facts());
        let keys = left.keys().chain(right.keys()).collect::<std::collections::BTreeSet<_>>();
        let key = keys.into_iter().find(|key| left.get(*key) != right.get(*key))?;
        let shown = |facts: &BTreeMap<String, String>| facts.get(key).map(|value| printable(value));
        Some(Difference { key: key.clone(), left: shown(&left), right: shown(&right) })
    }

    /// Whether both say the same.
    pub fn means_the_same_as(&self, other: &Manifest) -> bool {
        self.first_difference(other).is_none()
    }

    /// Everything it says, as a path and a value each. Sets are sorted already.
    fn facts(&self) -> BTreeMap<String, String> {
        let mut facts = BTreeMap::new();
        let value = serde_json::to_value(self).expect("a manifest has string keys and finite numbers");
        flatten(String::new(), &value, &mut facts);
        for key in NOT_COMPARED {
            facts.remove(*key);
        }
        facts
    }
}

fn flatten(path: String, value: &Value, facts: &mut BTreeMap<String, String>) {
    match value {
        Value::Null => {}
        Value::Object(keys) => {
            // A table that is there and empty says something: `[drafters.copy]`.
            facts.extend((!path.is_empty()).then(|| (path.clone(), "a table".to_owned())));
            for (key, value) in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(path, value, facts);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (index, item) in items.iter().enumerate() {
                flatten(format!("{path}[{}]", index + 1), item, facts);
            }
        }
        other => {
            facts.insert(path, other.to_string());
        }
    }
}
