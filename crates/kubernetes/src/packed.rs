//! JSON that is kept as text, because a tree of it takes several times the memory.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A value as text. Copies share it, and equal values have equal texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackedJson(Option<Arc<str>>);

impl PackedJson {
    /// Packs a value.
    #[must_use]
    pub fn of(value: &Value) -> PackedJson {
        if value.is_null() { PackedJson(None) } else { PackedJson(Some(value.to_string().into())) }
    }

    /// Returns the length of the text, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |text| text.len())
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the value; null if there is none.
    #[must_use]
    pub fn value(&self) -> Value {
        let value = self.0.as_ref().map(|text| serde_json::from_str(text));
        value.and_then(Result::ok).unwrap_or_default()
    }

    /// Returns the value as a table; an empty one if it is none.
    #[must_use]
    pub fn table(&self) -> Map<String, Value> {
        match self.value() {
            Value::Object(table) => table,
            _ => Map::new(),
        }
    }
}

impl<'de> Deserialize<'de> for PackedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PackedJson, D::Error> {
        Value::deserialize(deserializer).map(|value| PackedJson::of(&value))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_packed_and_unpacked() {
        for value in [Value::Null, json!({ "b": [1, null], "a": "x\"y" }), json!([]), json!(1.5)] {
            let packed = PackedJson::of(&value);
            assert_eq!(packed.value(), value);
            assert_eq!(serde_json::from_value::<PackedJson>(value.clone()).unwrap(), packed);
        }
        assert_eq!(PackedJson::of(&json!({ "a": 1, "b": 2 })), PackedJson::of(&json!({ "b": 2, "a": 1 })));
        assert_eq!(PackedJson::of(&json!([1])).table(), Map::new());
    }
}
