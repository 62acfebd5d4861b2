//! The order in which Ingresses become hosts and routes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, json};

use crate::backends::{BackendGroups, BackendSource};
use crate::ingress::classes::ServedClasses;
use crate::ingress::excess::IngressExcess;
use crate::ingress::faults::Faults;
use crate::ingress::host_claims::IngressJudge;
use crate::ingress::references::MemoryFolder;
use crate::ingress::settings::read_settings;
use crate::ingress::site_set::{IngressSet, JudgedIngress};
use crate::objects::{Ingress, ObjectKey, Objects};
use crate::options::TranslateOptions;

/// Returns when the oldest Ingress that is served was created; `None` if there is none.
pub(crate) fn oldest_ingress<'o>(objects: &'o Objects, options: &TranslateOptions) -> Option<&'o str> {
    let classes = ServedClasses::new(objects, options.ingress.class.as_deref());
    let ours = objects.ingresses.values().filter(|ingress| classes.serve(ingress));
    ours.map(|ingress| ingress.metadata.creation_timestamp.as_str()).min()
}

/// Judges all Ingresses, the oldest first. `files` gets the certificates and users.
pub(crate) fn judge_ingresses(
    objects: &Objects,
    options: &TranslateOptions,
    source: &BackendSource<'_>,
    groups: &mut BackendGroups,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> IngressSet {
    let classes = ServedClasses::new(objects, options.ingress.class.as_deref());
    let mut ours: Vec<(&ObjectKey, &Arc<Ingress>)> =
        objects.ingresses.iter().filter(|(_, ingress)| classes.serve(ingress)).collect();
    ours.sort_by_key(|(key, ingress)| (ingress.metadata.creation_timestamp.clone(), (*key).clone()));
    let mut folder = MemoryFolder(files);
    let ingresses = ours.into_iter().map(|(key, ingress)| {
        let mut faults = Faults::default();
        let settings = read_settings(objects, key, ingress, &mut faults, &mut folder);
        JudgedIngress { key: key.clone(), ingress: ingress.clone(), settings, faults }
    });
    let mut ingresses: Vec<JudgedIngress> = ingresses.collect();
    let excess = options
        .namespace_bytes
        .map_or_else(IngressExcess::default, |limit| IngressExcess::find(&mut ingresses, limit));
    let mut judge = IngressJudge {
        ingresses,
        excess,
        hosts: BTreeMap::new(),
        aliases: BTreeMap::new(),
        expression_hosts: BTreeSet::new(),
        exact_paths: BTreeSet::new(),
        refused_rules: BTreeSet::new(),
        objects,
        options,
        source,
        groups,
        files: folder.0,
    };
    judge.claim_hosts();
    judge.resolve_certificates();
    judge.resolve_host_settings();
    judge.find_expressions();
    let canaries = judge.find_canaries();
    judge.build_routes(&canaries);
    let IngressJudge { ingresses, mut hosts, excess, .. } = judge;
    excess.close(&ingresses, &mut hosts);
    for host in hosts.values_mut() {
        host.routes.sort_by(|one, other| one.rank.cmp(&other.rank));
        // Some faults are found after other routes of the Ingress were made.
        for route in host.routes.iter_mut().filter(|route| ingresses[route.ingress].faults.is_closed()) {
            route.action = Map::from_iter([("respond".to_owned(), json!({ "status": 403 }))]);
            (route.redirects, route.forces_tls) = (false, false);
        }
    }
    IngressSet {
        faults: ingresses.iter().map(|judged| judged.faults.clone()).collect(),
        ingresses,
        hosts,
        taken: BTreeSet::new(),
        kept: BTreeSet::new(),
        clashing: BTreeSet::new(),
        options: options.ingress.clone(),
    }
}
