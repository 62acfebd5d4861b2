//! The results of a translation: statuses, files, addresses, warnings, and the whole tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use settings::document::plain_value;
use settings::node::Node;

use crate::allowance::excess_text;
use crate::changes::ClusterFiles;
use crate::gateway_services::service_addresses;
use crate::ingress::ObjectEvent;
use crate::listeners::{JudgedGateway, JudgedListener};
use crate::objects::{Kind, ObjectKey, Objects};
use crate::options::{StatusCondition, TranslateOptions, supported_features};
use crate::translate::known_statuses::KnownStatuses;
use crate::translate::news::News;
use crate::translate::world::{ChangedParts, World};

impl World {
    /// Sets the statuses of the objects that a change concerns.
    pub(super) fn set_statuses(
        &mut self,
        objects: &Objects,
        news: &News<'_>,
        work: &ChangedParts,
        statuses: &mut KnownStatuses,
    ) {
        if news.gateways {
            statuses.set_all(Kind::GatewayClass, self.class_statuses(objects));
        }
        self.set_gateway_statuses(objects, news, work, statuses);
        for ((kind, key), _) in &work.routes.gone {
            statuses.remove(*kind, key);
        }
        for id in &work.routes.touched {
            let route = &self.routes.get(*id).attached;
            let refusal = match (self.options.namespace_bytes, self.stream_excess.contains(id)) {
                (Some(limit), true) => Some((excess_text(&route.key.namespace, limit), true)),
                _ => self.sites.refusal(route),
            };
            statuses.set(route.kind, &route.key, route.status(refusal.as_ref()));
        }
        if news.tls_policies || news.gateways || work.uses_of_tls {
            self.tls_policies.set_uses(self.uses_of_tls());
            statuses.set_all(Kind::BackendTlsPolicy, self.tls_policies.statuses());
        }
        if work.ingresses {
            let status = ingress_status(&self.options);
            let keys = self.ingresses.set.iter().flat_map(|set| set.keys());
            statuses.set_all(Kind::Ingress, keys.map(|key| (key.clone(), status.clone())));
        }
        if news.policies {
            statuses.set_all(Kind::KomainuPolicy, self.policies.statuses.iter().cloned());
        }
        statuses.settle();
    }

    fn set_gateway_statuses(
        &mut self,
        objects: &Objects,
        news: &News<'_>,
        work: &ChangedParts,
        statuses: &mut KnownStatuses,
    ) {
        let concerned: BTreeSet<usize> = work.routes.listeners.iter().map(|(gateway, _)| *gateway).collect();
        let all = news.gateways || work.listeners || work.services;
        if all {
            self.gateways.count_sets();
        }
        let gateways = &self.gateways.gateways;
        let sets = &self.gateways.sets;
        if all {
            let of_gateways =
                gateways.iter().map(|gateway| (gateway.key.clone(), self.gateway_status(objects, gateway)));
            statuses.set_all(Kind::Gateway, of_gateways);
            let of_sets = sets.iter().map(|set| (set.key.clone(), set.status(gateways)));
            statuses.set_all(Kind::ListenerSet, of_sets);
            return;
        }
        for at in &concerned {
            statuses.set(Kind::Gateway, &gateways[*at].key, self.gateway_status(objects, &gateways[*at]));
        }
        for set in sets.iter().filter(|set| concerned.contains(&set.gateway)) {
            statuses.set(Kind::ListenerSet, &set.key, set.status(gateways));
        }
    }

    fn gateway_status(&self, objects: &Objects, gateway: &JudgedGateway) -> Value {
        match self.options.gateway_services {
            Some(_) => gateway.status(&service_addresses(objects, gateway)),
            None => gateway.status(&self.options.status_addresses),
        }
    }

    fn class_statuses(&self, objects: &Objects) -> Vec<(ObjectKey, Value)> {
        let accepted =
            StatusCondition::new("Accepted", true, "Accepted", "Komainu serves Gateways of this class");
        let features = supported_features(&self.options);
        let features: Vec<Value> = features.iter().map(|name| json!({ "name": name })).collect();
        let names = self.classes.iter().map(|name| ObjectKey::new("", name));
        let status = |key: ObjectKey| {
            let generation = objects.gateway_classes.get(&key)?.metadata.generation;
            let status = json!({
                "conditions": [accepted.json(generation)],
                "supportedFeatures": features,
            });
            Some((key, status))
        };
        names.filter_map(status).collect()
    }

    /// Returns the Gateways whose routes lead to the Services of BackendTLSPolicies.
    fn uses_of_tls(&self) -> BTreeMap<ObjectKey, BTreeSet<ObjectKey>> {
        let mut uses: BTreeMap<ObjectKey, BTreeSet<ObjectKey>> = BTreeMap::new();
        for service in self.tls_policies.targeted() {
            for id in self.routes.readers_of(service) {
                let route = self.routes.get(id);
                if !route.services.contains(service) {
                    continue;
                }
                let gateways = route.attached.listeners().into_iter().map(|(gateway, _)| gateway);
                let keys = gateways.map(|gateway| self.gateways.gateways[gateway].key.clone());
                uses.entry(service.clone()).or_default().extend(keys);
            }
        }
        uses
    }

    /// Gathers files, addresses and warnings, if they may be others.
    pub(super) fn gather(&mut self, news: &News<'_>, work: &ChangedParts) {
        if news.files {
            let parts =
                [&self.files.gateways, &self.files.tls_policies, &self.files.policies, &self.files.ingresses];
            let all =
                parts.into_iter().flatten().map(|(path, content)| (PathBuf::from(path), content.clone()));
            let all: ClusterFiles = all.collect();
            if *self.files.all != all {
                self.files.all = Arc::new(all);
            }
        }
        if news.gateways || work.listeners || work.ingresses {
            let listeners = self.gateways.listeners().map(|(_, listener)| listener);
            let served = listeners.filter(|listener| listener.is_served());
            let mut addresses: BTreeSet<String> = served.map(JudgedListener::bind_address).collect();
            addresses.extend(self.ingresses.set.iter().flat_map(|set| set.addresses()));
            self.addresses = Arc::new(addresses);
        }
        if work.ingresses || work.services {
            let of_ingresses = self.ingresses.set.iter().flat_map(|set| set.events());
            let events: Vec<ObjectEvent> = self.services.events.iter().cloned().chain(of_ingresses).collect();
            if *self.events != events {
                self.events = Arc::new(events);
            }
        }
    }

    /// Returns the names of all objects that have a status, in the order in which they were judged.
    pub(in crate::translate) fn status_names(&self) -> Vec<(Kind, ObjectKey)> {
        let mut names: Vec<(Kind, ObjectKey)> = Vec::new();
        names.extend(self.classes.iter().map(|name| (Kind::GatewayClass, ObjectKey::new("", name))));
        names.extend(self.gateways.gateways.iter().map(|gateway| (Kind::Gateway, gateway.key.clone())));
        names.extend(self.gateways.sets.iter().map(|set| (Kind::ListenerSet, set.key.clone())));
        names.extend(self.routes.names().cloned());
        names.extend(self.tls_policies.keys().map(|key| (Kind::BackendTlsPolicy, key.clone())));
        let ingresses = self.ingresses.set.iter().flat_map(|set| set.keys());
        names.extend(ingresses.map(|key| (Kind::Ingress, key.clone())));
        names.extend(self.policies.statuses.iter().map(|(key, _)| (Kind::KomainuPolicy, key.clone())));
        names
    }

    /// Returns the tree of the configuration.
    pub(in crate::translate) fn tree(&self) -> Value {
        let mut top = self.options.base.clone();
        if !self.gateways.gateways.is_empty() || self.ingresses.has_any() {
            let tables: Map<String, Value> =
                self.groups.tables().map(|(name, table)| (name.clone(), table.clone())).collect();
            top.insert("upstreams".to_owned(), Value::Object(tables));
        }
        let mut sites: Vec<Node> = Vec::new();
        if let Some(Value::Array(own)) = top.remove("site") {
            sites.extend(own.into_iter().map(Node::from));
        }
        sites.extend(self.sites.trees().chain(self.ingresses.trees()).cloned());
        let mut node = Node::from(Value::Object(top));
        node.set_entry("site", Node::list(sites));
        if !self.streams.is_empty() {
            node.set_entry("stream", Node::list(self.streams.clone()));
        }
        plain_value(&node)
    }
}

/// Returns the status of every Ingress: the addresses that are given for statuses, or else the one of `--ingress-http`.
fn ingress_status(options: &TranslateOptions) -> Value {
    let own = options.ingress.http.rsplit_once(':').map(|(host, _)| host.trim_matches(['[', ']']));
    let own =
        own.filter(|host| host.parse::<std::net::IpAddr>().is_ok_and(|address| !address.is_unspecified()));
    let addresses = match own {
        Some(own) if options.status_addresses.is_empty() => vec![own.to_owned()],
        _ => options.status_addresses.clone(),
    };
    let entry = |text: &String| match text.parse::<std::net::IpAddr>() {
        Ok(_) => json!({ "ip": text }),
        Err(_) => json!({ "hostname": text }),
    };
    json!({ "loadBalancer": { "ingress": addresses.iter().map(entry).collect::<Vec<_>>() } })
}
