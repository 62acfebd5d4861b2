//! Which listeners a route is attached to, and its status.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use shapes::host::HostPattern;

use crate::http_route::{ListenerPort, RouteEntry, RouteFaults};
use crate::listeners::{ConditionFault, JudgedGateways, JudgedListener};
use crate::objects::{GATEWAY_GROUP, Kind, Metadata, ObjectKey, Objects, ParentReference};
use crate::options::{CONTROLLER_NAME, StatusCondition};

/// A route of any kind, before it is attached.
#[derive(Clone, Copy)]
pub(crate) struct OfferedRoute<'a> {
    pub(crate) kind: Kind,
    pub(crate) key: &'a ObjectKey,
    pub(crate) metadata: &'a Metadata,
    pub(crate) parents: &'a [ParentReference],
    pub(crate) hostnames: &'a [String],
}

/// A listener of a Gateway, and a host of it; empty for every host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttachedPlace {
    pub(crate) gateway: usize,
    pub(crate) listener: usize,
    pub(crate) host: String,
}

/// Verdicts by parent of this controller: places, or why there is none.
pub(crate) type ParentVerdicts = Vec<(ParentReference, Result<Vec<AttachedPlace>, ConditionFault>)>;

/// A route that names a Gateway or ListenerSet of this controller.
pub(crate) struct AttachedRoute {
    pub(crate) kind: Kind,
    pub(crate) key: ObjectKey,
    pub(crate) created: String,
    generation: i64,
    pub(crate) places: Vec<AttachedPlace>,
    /// Routes of sites, by what they depend on.
    pub(crate) entries: BTreeMap<ListenerPort, Arc<Vec<RouteEntry>>>,
    /// What its streams have in common.
    pub(crate) stream: Map<String, Value>,
    pub(crate) faults: RouteFaults,
    /// Verdicts by parent: `None` if attached.
    parents: Vec<(ParentReference, Option<ConditionFault>)>,
    /// Faults that the configuration's checks have found.
    pub(crate) rejected: Option<String>,
}

/// Hosts of a listener that routes have by now: HTTPRoutes and GRPCRoutes share none.
#[derive(Default)]
pub(crate) struct ClaimedHosts {
    http: BTreeSet<String>,
    grpc: BTreeSet<String>,
}

impl ClaimedHosts {
    /// Whether a route of another kind has a host in common with this one.
    pub(crate) fn is_taken(&self, host: &str, kind: Kind) -> bool {
        let taken = match kind {
            Kind::HttpRoute => &self.grpc,
            Kind::GrpcRoute => &self.http,
            _ => return false,
        };
        let is_below = |suffix: &str| {
            let start = reversed(suffix);
            taken.range(start.clone()..).next().is_some_and(|host| host.starts_with(&start))
        };
        wider_hosts(host).iter().any(|host| taken.contains(&reversed(host)))
            || (host.is_empty() && !taken.is_empty())
            || host.strip_prefix('*').is_some_and(is_below)
    }

    pub(crate) fn claim(&mut self, host: &str, kind: Kind) {
        match kind {
            Kind::HttpRoute => _ = self.http.insert(reversed(host)),
            Kind::GrpcRoute => _ = self.grpc.insert(reversed(host)),
            _ => {}
        }
    }
}

/// From the end to the start, so that hosts below another one stand together.
fn reversed(host: &str) -> String {
    host.chars().rev().collect()
}

/// Finds the listeners of a route, whatever hosts other routes have. `None` if it has no parent of this controller.
pub(crate) fn find_places(
    objects: &Objects,
    route: OfferedRoute<'_>,
    gateways: &JudgedGateways,
) -> Option<ParentVerdicts> {
    let mut verdicts = ParentVerdicts::new();
    for parent in route.parents {
        if parent.group.as_deref().is_some_and(|group| group != GATEWAY_GROUP) {
            continue;
        }
        let namespace = parent.namespace.as_deref().unwrap_or(&route.key.namespace);
        let key = ObjectKey::new(namespace, &parent.name);
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        let Some((at, listeners)) = gateways.parent(kind, &key) else { continue };
        let places = places_of(objects, route, gateways, (at, listeners), parent);
        verdicts.push((parent.clone(), places));
    }
    (!verdicts.is_empty()).then_some(verdicts)
}

impl AttachedRoute {
    /// Creates a route that is attached nowhere yet.
    pub(crate) fn new(route: OfferedRoute<'_>) -> AttachedRoute {
        AttachedRoute {
            kind: route.kind,
            key: route.key.clone(),
            created: route.metadata.creation_timestamp.clone(),
            generation: route.metadata.generation,
            places: Vec::new(),
            entries: BTreeMap::new(),
            stream: Map::new(),
            faults: RouteFaults::default(),
            parents: Vec::new(),
            rejected: None,
        }
    }

    /// Attaches the route to the places that were found, except those that routes of another kind have.
    pub(crate) fn attach(&mut self, verdicts: &ParentVerdicts, is_taken: impl Fn(&AttachedPlace) -> bool) {
        (self.places, self.parents) = (Vec::new(), Vec::new());
        for (parent, places) in verdicts {
            let free = places.as_ref().map_err(Clone::clone).and_then(|places| {
                let free: Vec<&AttachedPlace> = places.iter().filter(|place| !is_taken(place)).collect();
                let other = if self.kind == Kind::HttpRoute { "GRPCRoute" } else { "HTTPRoute" };
                let taken =
                    || ("HostnameConflict", format!("an older {other} has the same hosts at the listeners"));
                if free.is_empty() { Err(taken()) } else { Ok(free) }
            });
            let verdict = match free {
                Ok(places) => {
                    for place in places {
                        if !self.places.contains(place) {
                            self.places.push(place.clone());
                        }
                    }
                    None
                }
                Err(fault) => Some(fault),
            };
            self.parents.push((parent.clone(), verdict));
        }
    }

    /// Returns the listeners to which it is attached: Gateway and listener.
    pub(crate) fn listeners(&self) -> BTreeSet<(usize, usize)> {
        self.places.iter().map(|place| (place.gateway, place.listener)).collect()
    }
}

/// Returns the places of a route at the listeners of a parent.
fn places_of(
    objects: &Objects,
    route: OfferedRoute<'_>,
    gateways: &JudgedGateways,
    (gateway, listeners): (usize, Range<usize>),
    parent: &ParentReference,
) -> Result<Vec<AttachedPlace>, ConditionFault> {
    let all = &gateways.gateways[gateway].listeners;
    let is_named = |listener: &JudgedListener| {
        parent.section_name.as_deref().is_none_or(|name| name == listener.name)
            && parent.port.is_none_or(|port| port == listener.port)
    };
    let named: Vec<usize> = listeners.filter(|at| is_named(&all[*at])).collect();
    if named.is_empty() {
        return Err(("NoMatchingParent", "the parent has no listener of this name or port".to_owned()));
    }
    let takes = |at: &usize| all[*at].takes(objects, route.kind.name(), &route.key.namespace);
    let allowed: Vec<usize> = named.into_iter().filter(takes).collect();
    if allowed.is_empty() {
        return Err((
            "NotAllowedByListeners",
            "no listener takes routes of this kind and namespace (`protocol`, `allowedRoutes`)".to_owned(),
        ));
    }
    let mut places = Vec::new();
    for listener in allowed {
        let hosts = common_hosts(&all[listener].hostname, route.hostnames);
        places.extend(hosts.into_iter().map(|host| AttachedPlace { gateway, listener, host }));
    }
    if places.is_empty() {
        return Err((
            "NoMatchingListenerHostname",
            "no listener has a hostname that one of the route's fits".to_owned(),
        ));
    }
    Ok(places)
}

/// The hosts that a listener and a route have in common; empty texts are for every host.
fn common_hosts(listener: &str, hostnames: &[String]) -> Vec<String> {
    if hostnames.is_empty() {
        return vec![listener.to_owned()];
    }
    let mut hosts = Vec::new();
    for name in hostnames {
        let name = name.to_ascii_lowercase();
        if HostPattern::parse(&name).is_err() {
            continue;
        }
        let common = match () {
            () if listener.is_empty() || listener == name || covers(listener, &name) => Some(name),
            () if covers(&name, listener) => Some(listener.to_owned()),
            () => None,
        };
        hosts.extend(common.filter(|host| !hosts.contains(host)));
    }
    hosts
}

/// Whether a wildcard covers another host, which may be a wildcard.
fn covers(wide: &str, narrow: &str) -> bool {
    wide.strip_prefix('*').is_some_and(|suffix| {
        let narrow = narrow.strip_prefix('*').unwrap_or(narrow);
        narrow.len() > suffix.len() && narrow.ends_with(suffix)
    })
}

/// The hosts whose routes a site of this host has too, from narrow to wide, with itself.
pub(crate) fn wider_hosts(host: &str) -> Vec<String> {
    let mut hosts = vec![host.to_owned()];
    let mut rest = host.strip_prefix("*.").unwrap_or(host);
    while let Some((_, wider)) = rest.split_once('.') {
        hosts.push(format!("*.{wider}"));
        rest = wider;
    }
    if !host.is_empty() {
        hosts.push(String::new());
    }
    hosts
}

impl AttachedRoute {
    /// Returns the parents of this controller. `refusal` says why some places are not served, and whether none is.
    pub(crate) fn status(&self, refusal: Option<&(String, bool)>) -> Value {
        let resolved = match &self.faults.unresolved {
            Some((reason, message)) => StatusCondition::new("ResolvedRefs", false, reason, message),
            None => StatusCondition::new("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        };
        let refused_text = refusal.map(|(text, _)| text);
        let is_refused = refusal.is_some_and(|(_, is_whole)| *is_whole);
        // Whether a part that is not served was read is not known.
        let rejected = self.rejected.as_ref().filter(|_| refusal.is_none());
        let invalid = rejected.or(refused_text).or(self.faults.invalid.as_ref());
        // A filter of another kind is a reference that is not resolved.
        let invalid = invalid.filter(|_| {
            !(rejected.is_none()
                && refusal.is_none()
                && self.faults.unresolved.as_ref().is_some_and(|(reason, _)| *reason == "InvalidKind"))
        });
        let has_valid_rule = self.faults.has_valid_rule && rejected.is_none() && !is_refused;
        let parents = self.parents.iter().map(|(parent, refused)| {
            let accepted = match (refused, invalid) {
                (Some((reason, message)), _) => StatusCondition::new("Accepted", false, reason, message),
                (None, Some(fault)) if !has_valid_rule => {
                    StatusCondition::new("Accepted", false, "UnsupportedValue", fault)
                }
                (None, _) => StatusCondition::new("Accepted", true, "Accepted", "the route is accepted"),
            };
            let mut conditions = vec![accepted.json(self.generation), resolved.json(self.generation)];
            if let (None, Some(fault), true) = (refused, invalid, has_valid_rule) {
                let partly = match refusal {
                    Some(_) => format!("Some hosts are not served: {fault}"),
                    None => format!("Rules that cannot be followed are answered 500: {fault}"),
                };
                conditions.push(
                    StatusCondition::new("PartiallyInvalid", true, "UnsupportedValue", &partly)
                        .json(self.generation),
                );
            }
            json!({
                "parentRef": parent_json(parent),
                "controllerName": CONTROLLER_NAME,
                "conditions": conditions,
            })
        });
        json!({ "parents": parents.collect::<Vec<_>>() })
    }
}

fn parent_json(parent: &ParentReference) -> Value {
    let mut table = Map::new();
    table.insert("group".to_owned(), json!(parent.group.as_deref().unwrap_or(GATEWAY_GROUP)));
    table.insert("kind".to_owned(), json!(parent.kind.as_deref().unwrap_or("Gateway")));
    table.insert("name".to_owned(), json!(parent.name));
    for (key, value) in [("namespace", &parent.namespace), ("sectionName", &parent.section_name)] {
        if let Some(value) = value {
            table.insert(key.to_owned(), json!(value));
        }
    }
    if let Some(port) = parent.port {
        table.insert("port".to_owned(), json!(port));
    }
    Value::Object(table)
}
