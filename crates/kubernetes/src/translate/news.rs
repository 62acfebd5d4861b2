//! What has changed since the last translation.

use std::collections::BTreeSet;

use crate::objects::{ChangedObjects, Kind, ObjectKey};

/// Changed objects, and what they have changed so far.
pub(super) struct News<'c> {
    pub(super) changed: &'c ChangedObjects,
    /// Whether nothing is known, so that all is new.
    pub(super) is_first: bool,
    /// Services whose endpoints have changed.
    pub(super) endpoints: BTreeSet<ObjectKey>,
    /// Those of them that have endpoints where they had none, or the other way round.
    pub(super) emptied: BTreeSet<ObjectKey>,
    /// Whether the listeners are others.
    pub(super) gateways: bool,
    /// Whether the KomainuPolicies were judged again.
    pub(super) policies: bool,
    /// Services that a BackendTLSPolicy concerns, or did.
    pub(super) tls_targets: BTreeSet<ObjectKey>,
    /// Whether BackendTLSPolicies were judged again.
    pub(super) tls_policies: bool,
    /// Whether the contents of files may be others.
    pub(super) files: bool,
}

impl<'c> News<'c> {
    pub(super) fn new(changed: &'c ChangedObjects, is_first: bool) -> News<'c> {
        News {
            changed,
            is_first,
            endpoints: BTreeSet::new(),
            emptied: BTreeSet::new(),
            gateways: false,
            policies: false,
            tls_targets: BTreeSet::new(),
            tls_policies: false,
            files: false,
        }
    }

    /// Returns the changed objects of a kind.
    pub(super) fn of(&self, kind: Kind) -> impl Iterator<Item = &'c ObjectKey> + use<'c> {
        let changed = self.changed.range((kind, ObjectKey::default())..);
        changed.take_while(move |(found, _)| *found == kind).map(|(_, key)| key)
    }

    /// Whether an object of one of these kinds has changed.
    pub(super) fn has(&self, kinds: &[Kind]) -> bool {
        self.is_first || kinds.iter().any(|kind| self.of(*kind).next().is_some())
    }

    /// Whether one of these objects has changed.
    pub(super) fn names(&self, kind: Kind, keys: &BTreeSet<ObjectKey>) -> bool {
        !keys.is_empty() && self.of(kind).any(|key| keys.contains(key))
    }
}
