//! The result of a translation of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config::Config;

use crate::changes::ClusterFiles;
use crate::gateway_services::WantedObject;
use crate::ingress::ObjectEvent;
use crate::objects::ObjectKey;

/// The result of a translation of changes.
pub struct TranslatedChange {
    /// The configuration, whose unchanged parts are those of the one before.
    pub config: Config,
    /// Contents of the files below [`crate::options::MEMORY_FOLDER`].
    pub files: Arc<ClusterFiles>,
    /// Addresses that the configuration listens on, except those of the base.
    pub addresses: Arc<BTreeSet<String>>,
    /// Warnings about objects that have no status for them.
    pub events: Arc<Vec<ObjectEvent>>,
    /// Objects that are absent or have another content.
    pub wanted: Arc<Vec<WantedObject>>,
    /// Addresses of the pool that Gateways have: [`crate::options::TranslateOptions::assigned`] of the next translation.
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
}
