//! The statuses of all objects, and which of them have changed.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use crate::objects::{Kind, ObjectKey};
use crate::packed::PackedJson;

/// Kind and name of an object.
type StatusName = (Kind, ObjectKey);

/// Statuses by object.
#[derive(Default)]
pub(super) struct KnownStatuses {
    statuses: HashMap<StatusName, PackedJson>,
    changed: BTreeSet<StatusName>,
    /// Statuses of before that were not set again.
    stale: BTreeSet<StatusName>,
}

impl KnownStatuses {
    /// Returns the status of an object.
    pub(super) fn get(&self, kind: Kind, key: &ObjectKey) -> Option<Value> {
        self.statuses.get(&(kind, key.clone())).map(PackedJson::value)
    }

    /// Sets the status of an object.
    pub(super) fn set(&mut self, kind: Kind, key: &ObjectKey, status: Value) {
        let (name, status) = ((kind, key.clone()), PackedJson::of(&status));
        self.stale.remove(&name);
        if self.statuses.get(&name) != Some(&status) {
            self.changed.insert(name.clone());
            self.statuses.insert(name, status);
        }
    }

    /// Sets the statuses of all objects of a kind.
    pub(super) fn set_all(&mut self, kind: Kind, statuses: impl IntoIterator<Item = (ObjectKey, Value)>) {
        let mut gone: BTreeSet<StatusName> =
            self.statuses.keys().filter(|(of, _)| *of == kind).cloned().collect();
        for (key, status) in statuses {
            self.set(kind, &key, status);
            gone.remove(&(kind, key));
        }
        gone.into_iter().for_each(|(kind, key)| self.remove(kind, &key));
    }

    /// Removes the status of an object that is not one of this controller any more.
    pub(super) fn remove(&mut self, kind: Kind, key: &ObjectKey) {
        let name = (kind, key.clone());
        self.stale.remove(&name);
        if self.statuses.remove(&name).is_some() {
            self.changed.insert(name);
        }
    }

    /// Notes that all statuses will be set anew.
    pub(super) fn begin(&mut self) {
        self.stale = self.statuses.keys().cloned().collect();
    }

    /// Removes the statuses that were not set anew.
    pub(super) fn settle(&mut self) {
        for (kind, key) in std::mem::take(&mut self.stale) {
            self.remove(kind, &key);
        }
    }

    /// Returns what has changed since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<(Kind, ObjectKey, Option<PackedJson>)> {
        let changed = std::mem::take(&mut self.changed);
        let status = |name: StatusName| {
            let status = self.statuses.get(&name).cloned();
            (name.0, name.1, status)
        };
        changed.into_iter().map(status).collect()
    }
}
