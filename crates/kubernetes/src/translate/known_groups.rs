//! The groups of upstream servers that routes, policies and Ingresses use, and the tables that they have by their endpoints.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::backends::{BackendGroup, BackendSource};
use crate::objects::ObjectKey;

/// A group, with the number of objects that use it.
struct KnownGroup {
    users: usize,
    group: BackendGroup,
    /// `None` if it has no servers.
    table: Option<Value>,
}

/// Groups by name.
#[derive(Default)]
pub(super) struct KnownGroups {
    groups: BTreeMap<String, KnownGroup>,
    by_service: BTreeMap<ObjectKey, BTreeSet<String>>,
    /// Groups whose table has to be made anew.
    due: BTreeSet<String>,
}

impl KnownGroups {
    /// Adds a user of groups, and removes those that it had.
    pub(super) fn replace(&mut self, before: &BTreeSet<String>, after: &BTreeMap<String, BackendGroup>) {
        for (name, group) in after {
            self.by_service.entry(group.service.clone()).or_default().insert(name.clone());
            match self.groups.get_mut(name) {
                Some(known) => {
                    known.users += 1;
                    if known.group != *group {
                        known.group = group.clone();
                        self.due.insert(name.clone());
                    }
                }
                None => {
                    let group = group.clone();
                    self.groups.insert(name.clone(), KnownGroup { users: 1, group, table: None });
                    self.due.insert(name.clone());
                }
            }
        }
        for name in before {
            let Some(known) = self.groups.get_mut(name) else { continue };
            known.users -= 1;
            if known.users == 0 {
                let service = &known.group.service;
                if let Some(names) = self.by_service.get_mut(service) {
                    names.remove(name);
                    if names.is_empty() {
                        self.by_service.remove(service);
                    }
                }
                self.groups.remove(name);
                self.due.insert(name.clone());
            }
        }
    }

    /// Notes that the endpoints of a Service have changed. Returns whether one of its groups has servers where it had none, or the other
    /// way round.
    pub(super) fn note_endpoints(&mut self, source: &BackendSource<'_>, service: &ObjectKey) -> bool {
        let Some(names) = self.by_service.get(service) else { return false };
        let mut is_other = false;
        for name in names {
            let known = &self.groups[name];
            is_other |= source.has_servers(&known.group) != known.table.is_some();
            self.due.insert(name.clone());
        }
        is_other
    }

    /// Makes the tables that are due. Returns those that have changed; `None` for groups without servers, or that are gone.
    pub(super) fn take_changed(&mut self, source: &BackendSource<'_>) -> Vec<(String, Option<Value>)> {
        let mut changed = Vec::new();
        for name in std::mem::take(&mut self.due) {
            let Some(known) = self.groups.get_mut(&name) else {
                changed.push((name, None));
                continue;
            };
            let table = source.group_table(&known.group);
            if known.table != table {
                known.table.clone_from(&table);
                changed.push((name, table));
            }
        }
        changed
    }

    /// Returns the tables of the groups that have servers.
    pub(super) fn tables(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.groups.iter().filter_map(|(name, known)| Some((name, known.table.as_ref()?)))
    }
}
