//! Objects to a configuration and to statuses, without I/O and clocks.
//!
//! Each listener of a Gateway has its sites, one for every host that its routes name. A site has the routes of its host, then those
//! of wider hosts, in the order that Gateway API asks for. Each route has a place of its own in the tree of its site, so that a fault
//! which the configuration's own checks find concerns the object of that place alone.
//!
//! A [`Translator`] keeps what it has made, with the objects that each part depends on, and makes anew only the parts that a change
//! concerns. A new one makes all of them: the result is the same.
//!
//! | Module | Owns |
//! |---|---|
//! | `changed_config` | the result of a translation |
//! | `news` | what has changed since the last translation |
//! | `known_routes` | routes, their listeners, and indexes of what they depend on |
//! | `known_groups` | groups of upstream servers, with their users |
//! | `site_tree` | a site as a tree of directives |
//! | `site_costs` | what the routes of each namespace take of the memory |
//! | `known_sites` | the sites of listeners |
//! | `known_streams` | the streams of listeners |
//! | `known_ingresses` | the sites of Ingresses |
//! | `known_statuses` | the statuses of all objects |
//! | `world` | all of these, and the order in which a change passes through them |
//!
//! Modules, from low to high; each imports only from those above it.

mod changed_config;
mod news;
mod known_routes;
mod known_groups;
mod site_tree;
mod site_costs;
mod known_sites;
mod known_streams;
mod known_ingresses;
mod known_statuses;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use config::Config;
use serde_json::Value;

use crate::changes::ClusterFiles;
use crate::config_reader::{ConfigReader, ReadCounts};
use crate::gateway_services::WantedObject;
use crate::ingress::ObjectEvent;
use crate::objects::{ChangedObjects, Kind, ObjectKey, Objects};
use crate::options::TranslateOptions;
use crate::packed::PackedJson;
pub use crate::translate::changed_config::TranslatedChange;
use crate::translate::known_sites::RememberedSites;
use crate::translate::known_statuses::KnownStatuses;
use crate::translate::news::News;
use crate::translate::world::World;

/// A status as it should be, without times.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredStatus {
    /// Kind of the object.
    pub kind: Kind,
    /// The object.
    pub key: ObjectKey,
    /// Fields of `status`. Of a route, only the `parents` of this controller.
    pub status: Value,
}

/// The result of a translation of all objects.
pub struct ClusterConfig {
    /// The configuration.
    pub config: Config,
    /// The configuration's directives.
    pub tree: Value,
    /// Contents of the files below [`crate::options::MEMORY_FOLDER`].
    pub files: Arc<ClusterFiles>,
    /// Statuses of all objects of this controller.
    pub statuses: Vec<DesiredStatus>,
    /// Addresses that the configuration listens on, except those of the base.
    pub addresses: Arc<BTreeSet<String>>,
    /// Warnings about objects that have no status for them.
    pub events: Arc<Vec<ObjectEvent>>,
    /// Objects that are absent or have another content.
    pub wanted: Arc<Vec<WantedObject>>,
    /// Addresses of the pool that Gateways have: [`TranslateOptions::assigned`] of the next translation.
    pub assigned: BTreeMap<ObjectKey, IpAddr>,
}

/// Translates objects, of which nothing is known.
///
/// # Errors
/// See [`Translator::translate`].
pub fn translate(objects: &Objects, options: &TranslateOptions) -> Result<ClusterConfig, String> {
    let mut translator = Translator::with_trees();
    let translation = translator.translate(objects, &ChangedObjects::new(), options)?;
    Ok(translator.described(translation))
}

/// Translates changes of objects.
#[derive(Default)]
pub struct Translator {
    /// What was made; `None` if nothing is known.
    world: Option<World>,
    reader: ConfigReader,
    statuses: KnownStatuses,
    /// Sites that were read before a translation that failed.
    sites: RememberedSites,
    keeps_trees: bool,
}

impl Translator {
    /// Creates a translator that keeps the tree of the configuration, for tests.
    #[must_use]
    pub fn with_trees() -> Translator {
        Translator { keeps_trees: true, ..Translator::default() }
    }

    /// Translates objects, of which these have changed since the last call ([`Objects::take_changed`]). The first call translates all of
    /// them.
    ///
    /// # Errors
    /// A fault of the base, or of what all objects share: a text for the log. Faults of objects are in their statuses. The next call
    /// translates all objects.
    pub fn translate(
        &mut self,
        objects: &Objects,
        changed: &ChangedObjects,
        options: &TranslateOptions,
    ) -> Result<TranslatedChange, String> {
        let known = self.world.take().filter(|world| world.has_options(options));
        let mut news = News::new(changed, known.is_none());
        let mut world = match known {
            Some(world) => world,
            None => {
                self.reader.begin();
                self.statuses.begin();
                World::new(objects, options, (self.keeps_trees, std::mem::take(&mut self.sites)))
            }
        };
        let outcome = world.update(objects, options, &mut news, (&mut self.reader, &mut self.statuses));
        match outcome {
            Ok(translation) => {
                self.world = Some(world);
                Ok(translation)
            }
            Err(fault) => {
                self.sites = world.into_sites();
                Err(fault)
            }
        }
    }

    /// Returns the statuses that have changed since the last call. Without a status, an object is not one of this controller any more.
    pub fn take_statuses(&mut self) -> Vec<(Kind, ObjectKey, Option<PackedJson>)> {
        self.statuses.take_changed()
    }

    /// Numbers of parts of configurations that were read so far.
    #[must_use]
    pub fn counts(&self) -> ReadCounts {
        self.reader.counts()
    }

    /// Returns a translation with its tree and all statuses, for tests.
    ///
    /// # Panics
    /// Nothing was translated.
    #[must_use]
    pub fn described(&self, translation: TranslatedChange) -> ClusterConfig {
        let world = self.world.as_ref().expect("a translation was made");
        let TranslatedChange { config, files, addresses, events, wanted, assigned } = translation;
        let status = |(kind, key): (Kind, ObjectKey)| {
            let status = self.statuses.get(kind, &key)?;
            Some(DesiredStatus { kind, key, status })
        };
        let statuses = world.status_names().into_iter().filter_map(status).collect();
        ClusterConfig { config, tree: world.tree(), files, statuses, addresses, events, wanted, assigned }
    }
}
