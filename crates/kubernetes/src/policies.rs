//! KomainuPolicies: their targets, conflicts and references, and what they add to sites and routes.
//!
//! A policy reaches only objects of its own namespace. One that admits or refuses clients and cannot be followed closes its target:
//! a request is never served without its guard.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use admission::{JwtKeys, PasswordFile};
use data_encoding::BASE64;
use serde_json::{Map, Value, json};

use crate::allowance::text_bytes;
use crate::backends::{Backend, BackendGroups, BackendSource, BackendUser};
use crate::grants::{CrossReference, is_reference_allowed};
use crate::listeners::{JudgedGateway, JudgedGateways};
use crate::objects::{
    BackendReference, GATEWAY_GROUP, HttpRoute, KomainuPolicy, ObjectKey, Objects, POLICY_GROUP,
    POLICY_SECRET_TYPE,
};
use crate::options::{CONTROLLER_NAME, MEMORY_FOLDER, StatusCondition};
use crate::policy_spec::{PolicyTarget, TargetKind};
use crate::policy_words::{
    DIRECTIVES, DirectivePlace, PolicyReference, ReferenceTarget, SecretContent, page_extension,
};

/// Status of requests to a target whose guard cannot be followed.
const CLOSED: u16 = 500;
/// Status of requests whose authentication server has no endpoint.
const UNAVAILABLE: u16 = 503;

/// Files of a configuration that are in memory, by their paths.
type FileContents = BTreeMap<String, Vec<u8>>;

/// What the policies of a target add to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct AppliedPolicy {
    values: BTreeMap<&'static str, AppliedValue>,
    /// Status of every answer, if requests are not served.
    closed: Option<u16>,
}

#[derive(Debug, Clone, PartialEq)]
struct AppliedValue {
    value: Value,
    policy: ObjectKey,
}

/// A target that exists: an object, and the name of a part of it.
type TargetLevel = (TargetKind, ObjectKey, Option<String>);

/// All policies, by their targets.
#[derive(Default)]
pub(crate) struct PolicySet {
    levels: BTreeMap<TargetLevel, AppliedPolicy>,
    /// Namespaces with a policy that could not be read.
    closed_namespaces: BTreeSet<String>,
    /// Statuses of the policies with targets of this controller.
    pub(crate) statuses: Vec<(ObjectKey, Value)>,
}

/// What was found for a target.
enum TargetVerdict {
    /// The object, and its part if the target names one.
    Present,
    /// The object, without a part of that name.
    NoSection,
    /// No such object.
    Absent,
    /// An object of another controller.
    Foreign,
}

/// Values of a policy with its references resolved.
struct ResolvedPolicy {
    values: BTreeMap<&'static str, Value>,
    /// Whether a server that decides about requests has no endpoint.
    is_unavailable: bool,
}

/// Why a policy is not used: the reason of `Accepted`, that of `ResolvedRefs` if a reference is the reason, and the message.
struct PolicyFault {
    unresolved: Option<&'static str>,
    message: String,
}

/// Judges all policies, the oldest first. `groups` gets the Services that they name, `files` the contents of Secrets and pages.
pub(crate) fn judge_policies(
    objects: &Objects,
    gateways: &JudgedGateways,
    source: &BackendSource<'_>,
    groups: &mut BackendGroups,
    files: &mut FileContents,
) -> PolicySet {
    let mut set = PolicySet {
        closed_namespaces: objects.unread_policies.iter().map(|key| key.namespace.clone()).collect(),
        ..PolicySet::default()
    };
    let mut sorted: Vec<_> = objects.policies.iter().collect();
    sorted.sort_by_key(|(key, policy)| (&policy.metadata.creation_timestamp, *key));
    for (key, policy) in sorted {
        let resolved = match &policy.spec().fault {
            Some(fault) => Err(PolicyFault { unresolved: None, message: fault.clone() }),
            None => PolicyResolver { objects, source, key, policy }.resolve(groups, files),
        };
        let targets = policy.spec().targets.iter().filter_map(|target| {
            let verdict = find_target(objects, gateways, &key.namespace, target);
            let conditions = set.add_target(key, policy, target, &verdict, &resolved)?;
            let generation = policy.metadata.generation;
            Some(json!({
                "ancestorRef": target_json(&key.namespace, target),
                "controllerName": CONTROLLER_NAME,
                "conditions": conditions.iter().map(|one| one.json(generation)).collect::<Vec<_>>(),
            }))
        });
        let ancestors: Vec<Value> = targets.collect();
        let has_status = !ancestors.is_empty() || policy.status.get("ancestors").is_some();
        if has_status {
            set.statuses.push((key.clone(), json!({ "ancestors": ancestors })));
        }
    }
    set
}

fn target_json(namespace: &str, target: &PolicyTarget) -> Value {
    let mut reference = json!({
        "group": GATEWAY_GROUP, "kind": target.kind.name(), "namespace": namespace, "name": target.name,
    });
    if let Some(section) = &target.section {
        reference["sectionName"] = json!(section);
    }
    reference
}

fn find_target(
    objects: &Objects,
    gateways: &JudgedGateways,
    namespace: &str,
    target: &PolicyTarget,
) -> TargetVerdict {
    let key = ObjectKey::new(namespace, &target.name);
    let has_section = |mut names: Box<dyn Iterator<Item = &str> + '_>| match &target.section {
        Some(section) => names.any(|name| name == section),
        None => true,
    };
    let found = match target.kind {
        TargetKind::Gateway => match gateways.position(&key).map(|at| &gateways.gateways[at]) {
            Some(gateway) => {
                has_section(Box::new(gateway.own_listeners().iter().map(|own| own.name.as_str())))
            }
            None if objects.gateways.contains_key(&key) => return TargetVerdict::Foreign,
            None => return TargetVerdict::Absent,
        },
        TargetKind::HttpRoute => match objects.http_routes.get(&key) {
            Some(route) if !is_ours(route, namespace, gateways) => return TargetVerdict::Foreign,
            Some(route) => {
                has_section(Box::new(route.spec.rules.iter().filter_map(|rule| rule.name.as_deref())))
            }
            None => return TargetVerdict::Absent,
        },
    };
    if found { TargetVerdict::Present } else { TargetVerdict::NoSection }
}

/// Whether a route has a Gateway of this controller as parent, or a parent of another kind, which only a Gateway's listeners may be.
fn is_ours(route: &HttpRoute, namespace: &str, gateways: &JudgedGateways) -> bool {
    route.spec.parent_refs.iter().any(|parent| {
        let is_gateway = parent.kind.as_deref().is_none_or(|kind| kind == "Gateway");
        let key = ObjectKey::new(parent.namespace.as_deref().unwrap_or(namespace), &parent.name);
        !is_gateway || gateways.position(&key).is_some()
    })
}

impl PolicySet {
    /// Adds a policy to one of its targets. Returns the conditions; `None` if another controller has the target.
    fn add_target(
        &mut self,
        key: &ObjectKey,
        policy: &KomainuPolicy,
        target: &PolicyTarget,
        verdict: &TargetVerdict,
        resolved: &Result<ResolvedPolicy, PolicyFault>,
    ) -> Option<Vec<StatusCondition>> {
        let guards = policy.spec().guards;
        let object = ObjectKey::new(&key.namespace, &target.name);
        let refused = |reason: &str, message: &str, closes: bool| {
            let message = match closes {
                true => format!(
                    "{message}; the policy is a guard, so requests to its target are answered {CLOSED}"
                ),
                false => message.to_owned(),
            };
            StatusCondition::new("Accepted", false, reason, &message)
        };
        let level = (target.kind, object.clone(), target.section.clone());
        let mut conditions = match verdict {
            TargetVerdict::Foreign => return None,
            TargetVerdict::Absent => {
                let text = format!("there is no {} {object}", target.kind.name());
                vec![refused("TargetNotFound", &text, false)]
            }
            // Which part is meant is not known, so the whole object is closed.
            TargetVerdict::NoSection => {
                let part = if target.kind == TargetKind::Gateway { "listener" } else { "rule" };
                let section = target.section.as_deref().unwrap_or_default();
                let text = format!("the {} {object} has no {part} {section:?}", target.kind.name());
                if guards {
                    self.close((target.kind, object, None), CLOSED);
                }
                vec![refused("TargetNotFound", &text, guards)]
            }
            TargetVerdict::Present => match resolved {
                Err(fault) => {
                    if guards {
                        self.close(level, CLOSED);
                    }
                    vec![refused("Invalid", &fault.message, guards)]
                }
                Ok(resolved) => self.merge(key, level, resolved),
            },
        };
        match resolved {
            Err(PolicyFault { unresolved: Some(reason), message }) => {
                conditions.push(StatusCondition::new("ResolvedRefs", false, reason, message));
            }
            Ok(_) if !policy.spec().references.is_empty() => conditions.push(StatusCondition::new(
                "ResolvedRefs",
                true,
                "ResolvedRefs",
                "all references are resolved",
            )),
            _ => {}
        }
        Some(conditions)
    }

    fn close(&mut self, level: TargetLevel, status: u16) {
        self.levels.entry(level).or_default().closed.get_or_insert(status);
    }

    /// Adds the values of a policy to a target. The oldest policy that sets a directive wins.
    fn merge(
        &mut self,
        key: &ObjectKey,
        level: TargetLevel,
        resolved: &ResolvedPolicy,
    ) -> Vec<StatusCondition> {
        let kind = level.0;
        let applied = self.levels.entry(level).or_default();
        if resolved.is_unavailable {
            applied.closed.get_or_insert(UNAVAILABLE);
        }
        let mut lost: Vec<String> = Vec::new();
        for (name, value) in &resolved.values {
            match applied.values.get(name) {
                Some(known) => lost.push(format!("{name} (by {})", known.policy)),
                None => {
                    let mut value = value.clone();
                    if *name == "auth" && kind == TargetKind::HttpRoute {
                        keep_to_route(&mut value);
                    }
                    applied.values.insert(name, AppliedValue { value, policy: key.clone() });
                }
            }
        }
        let text = format!("older policies of the same target set: {}", lost.join(", "));
        if lost.is_empty() {
            let accepted = match resolved.is_unavailable {
                true => {
                    "the policy is in force, but its authentication server has no ready endpoint: requests are answered 503"
                }
                false => "the policy is in force",
            };
            vec![StatusCondition::new("Accepted", true, "Accepted", accepted)]
        } else if lost.len() == resolved.values.len() {
            vec![StatusCondition::new("Accepted", false, "Conflicted", &text)]
        } else {
            vec![
                StatusCondition::new("Accepted", true, "Accepted", "a part of the policy is in force"),
                StatusCondition::new("Conflicted", true, "Conflicted", &text),
            ]
        }
    }

    /// Returns the HTTPRoutes whose policies differ between two sets.
    pub(crate) fn changed_routes(&self, other: &PolicySet) -> BTreeSet<ObjectKey> {
        let differing = |one: &PolicySet, other: &PolicySet| -> Vec<ObjectKey> {
            let changed =
                one.levels.iter().filter(|(level, applied)| other.levels.get(level) != Some(applied));
            changed
                .filter(|((kind, ..), _)| *kind == TargetKind::HttpRoute)
                .map(|((_, key, _), _)| key.clone())
                .collect()
        };
        differing(self, other).into_iter().chain(differing(other, self)).collect()
    }

    /// Returns the namespaces that only one of two sets has closed.
    pub(crate) fn changed_namespaces(&self, other: &PolicySet) -> BTreeSet<String> {
        self.closed_namespaces.symmetric_difference(&other.closed_namespaces).cloned().collect()
    }

    /// Returns the policies of a listener. Those of ListenerSets have the ones of the whole Gateway.
    pub(crate) fn of_listener(&self, gateway: &JudgedGateway, listener: usize) -> AppliedPolicy {
        let own = gateway.own_listeners().get(listener).map(|own| own.name.as_str());
        self.of_levels(TargetKind::Gateway, &gateway.key, own)
    }

    /// Returns the policies of a rule of a route.
    pub(crate) fn of_rule(&self, route: &ObjectKey, rule: Option<&str>) -> AppliedPolicy {
        self.of_levels(TargetKind::HttpRoute, route, rule)
    }

    /// Merges the policies of an object and of its part, whose values win.
    fn of_levels(&self, kind: TargetKind, key: &ObjectKey, section: Option<&str>) -> AppliedPolicy {
        let mut applied = AppliedPolicy::default();
        if self.closed_namespaces.contains(&key.namespace) {
            applied.closed = Some(CLOSED);
        }
        if self.levels.is_empty() {
            return applied;
        }
        let sections = [None, section.map(str::to_owned)];
        for section in sections.into_iter().take(if section.is_some() { 2 } else { 1 }) {
            if let Some(level) = self.levels.get(&(kind, key.clone(), section)) {
                applied.closed = applied.closed.or(level.closed);
                applied.values.extend(level.values.iter().map(|(name, value)| (*name, value.clone())));
            }
        }
        applied
    }
}

/// Removes fields that identify clients from requests to the route alone: other routes of its hosts may belong to others.
fn keep_to_route(auth: &mut Value) {
    if auth.get("ask").is_some() || auth.get("jwt").is_some() {
        auth["remove_from"] = json!("route");
    }
}

impl AppliedPolicy {
    /// Adds the values of a Gateway's policies to a site.
    pub(crate) fn add_to_site(&self, site: &mut Map<String, Value>) {
        for directive in &DIRECTIVES {
            let is_of_site = matches!(directive.place, DirectivePlace::Site | DirectivePlace::SiteAndRoute);
            if let Some(applied) = self.values.get(directive.name).filter(|_| is_of_site) {
                site.insert(directive.name.to_owned(), applied.value.clone());
            }
        }
    }

    /// Length of the directives that each route gets, in bytes.
    pub(crate) fn route_bytes(&self) -> usize {
        self.values.values().map(|value| text_bytes(&value.value)).sum()
    }

    /// Adds the values of a Gateway's policies that sites do not have to one of its routes.
    pub(crate) fn add_defaults(&self, route: &mut Map<String, Value>) {
        self.add(route, &[DirectivePlace::Route, DirectivePlace::Proxy]);
    }

    /// Adds the values of a route's policies. Filters of the route itself win.
    pub(crate) fn add_to_route(&self, route: &mut Map<String, Value>) {
        self.add(route, &[DirectivePlace::SiteAndRoute, DirectivePlace::Route, DirectivePlace::Proxy]);
    }

    /// Whether requests are not served.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Replaces the action of a route whose guard cannot be followed.
    pub(crate) fn close(&self, route: &mut Map<String, Value>) {
        if let Some(status) = self.closed {
            *route = Map::from_iter([("respond".to_owned(), json!({ "status": status }))]);
        }
    }

    fn add(&self, route: &mut Map<String, Value>, places: &[DirectivePlace]) {
        for directive in DIRECTIVES.iter().filter(|directive| places.contains(&directive.place)) {
            let Some(applied) = self.values.get(directive.name) else { continue };
            if directive.place == DirectivePlace::Proxy {
                for proxy in proxies(route) {
                    add_value(proxy, directive.name, &applied.value);
                }
            } else {
                add_value(route, directive.name, &applied.value);
            }
        }
    }
}

/// The `proxy` of a route, or those of its branches.
fn proxies(route: &mut Map<String, Value>) -> Vec<&mut Map<String, Value>> {
    let mut found = Vec::new();
    for (name, value) in route.iter_mut() {
        match name.as_str() {
            "proxy" => found.extend(value.as_object_mut()),
            "split" => {
                let branches = value.get_mut("branches").and_then(Value::as_array_mut);
                for branch in branches.into_iter().flatten() {
                    found.extend(branch.get_mut("proxy").and_then(Value::as_object_mut));
                }
            }
            _ => {}
        }
    }
    found
}

/// Adds a value to a table that has none. Rules for header fields are added to those of the table, which win.
fn add_value(table: &mut Map<String, Value>, name: &str, value: &Value) {
    let is_rules = matches!(name, "request_headers" | "response_headers");
    match (table.get_mut(name), value) {
        (None, _) => _ = table.insert(name.to_owned(), value.clone()),
        (Some(Value::Object(known)), Value::Object(more)) if is_rules => {
            for (part, rules) in more {
                match (known.get_mut(part), rules) {
                    (None, _) => _ = known.insert(part.clone(), rules.clone()),
                    (Some(Value::Object(known)), Value::Object(rules)) => {
                        for (field, rule) in rules {
                            if !known.keys().any(|own| own.eq_ignore_ascii_case(field)) {
                                known.insert(field.clone(), rule.clone());
                            }
                        }
                    }
                    (Some(Value::Array(known)), Value::Array(rules)) => known.extend(rules.clone()),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

struct PolicyResolver<'a, 's> {
    objects: &'a Objects,
    source: &'a BackendSource<'s>,
    key: &'a ObjectKey,
    policy: &'a KomainuPolicy,
}

impl PolicyResolver<'_, '_> {
    fn resolve(
        &self,
        groups: &mut BackendGroups,
        files: &mut FileContents,
    ) -> Result<ResolvedPolicy, PolicyFault> {
        let mut resolved =
            ResolvedPolicy { values: self.policy.spec().directives.clone(), is_unavailable: false };
        for reference in &self.policy.spec().references {
            self.check_grant(reference)?;
            match &reference.target {
                ReferenceTarget::Secret { key, content } => {
                    let path = self.secret_file(reference, key, *content, files)?;
                    set_at(&mut resolved.values, reference, json!(path));
                }
                ReferenceTarget::Service { port, path } => {
                    self.add_service(reference, *port, path.as_deref(), groups, &mut resolved)?;
                }
            }
        }
        if let Some(Value::Object(pages)) = resolved.values.get_mut("error_pages") {
            for (status, path) in pages.iter_mut() {
                let text = self.policy.spec["error_pages"][status.as_str()].as_str().unwrap_or_default();
                let name = format!("{status}.{}", page_extension(text));
                let file = memory_path("page", self.key, &name, text.as_bytes());
                files.insert(file.clone(), text.as_bytes().to_vec());
                *path = json!(file);
            }
        }
        Ok(resolved)
    }

    fn object_key(&self, reference: &PolicyReference) -> ObjectKey {
        ObjectKey::new(reference.namespace.as_deref().unwrap_or(&self.key.namespace), &reference.name)
    }

    /// Checked first, so that a reference does not reveal whether the object exists.
    fn check_grant(&self, reference: &PolicyReference) -> Result<(), PolicyFault> {
        let to = self.object_key(reference);
        let to_kind = match reference.target {
            ReferenceTarget::Secret { .. } => "Secret",
            ReferenceTarget::Service { .. } => "Service",
        };
        let cross = CrossReference {
            from_group: POLICY_GROUP,
            from_kind: "KomainuPolicy",
            from_namespace: &self.key.namespace,
            to_group: "",
            to_kind,
            to: &to,
        };
        if is_reference_allowed(self.objects, &cross) {
            return Ok(());
        }
        let text = format!(
            "no ReferenceGrant in the namespace {} allows this policy the {to_kind} {}",
            to.namespace, to.name
        );
        Err(unresolved(reference, "RefNotPermitted", &text))
    }

    /// Returns the path of a Secret's content.
    fn secret_file(
        &self,
        reference: &PolicyReference,
        data_key: &str,
        content: SecretContent,
        files: &mut FileContents,
    ) -> Result<String, PolicyFault> {
        let invalid = |text: String| unresolved(reference, "InvalidSecret", &text);
        let key = self.object_key(reference);
        let secret = self.objects.secrets.get(&key).filter(|secret| secret.r#type == POLICY_SECRET_TYPE);
        let secret = secret
            .ok_or_else(|| invalid(format!("there is no Secret {key} of the type {POLICY_SECRET_TYPE}")))?;
        let text = secret
            .data
            .get(data_key)
            .ok_or_else(|| invalid(format!("the Secret {key} has no key {data_key:?}")))?;
        let bytes = BASE64
            .decode(text.as_bytes())
            .map_err(|_| invalid(format!("{data_key:?} of the Secret {key} is not base64")))?;
        check_content(&bytes, content)
            .map_err(|fault| invalid(format!("{data_key:?} of the Secret {key}: {fault}")))?;
        let path = memory_path("secret", &key, data_key, &bytes);
        files.insert(path.clone(), bytes);
        Ok(path)
    }

    fn add_service(
        &self,
        reference: &PolicyReference,
        port: u16,
        path: Option<&str>,
        groups: &mut BackendGroups,
        resolved: &mut ResolvedPolicy,
    ) -> Result<(), PolicyFault> {
        let key = self.object_key(reference);
        let backend =
            BackendReference { name: key.name.clone(), port: Some(port), ..BackendReference::default() };
        let user =
            BackendUser { kind: "KomainuPolicy", namespace: &key.namespace, client: None, session: None };
        let found = self.source.resolve(user, &backend, groups);
        let found = found.map_err(|(reason, text)| unresolved(reference, reason, &text))?;
        match (found, path) {
            (Backend::Group(name), Some(path)) => {
                let url = format!("http://{}.{}.svc{path}", key.name, key.namespace);
                set_at(&mut resolved.values, reference, json!(url));
                if let Some(auth) = resolved.values.get_mut(reference.directive) {
                    auth["upstream"] = json!(name);
                }
            }
            (Backend::Group(name), None) => {
                set_at(&mut resolved.values, reference, json!({ "upstream": name }));
            }
            (Backend::Refused, _) => {
                let text = format!("the BackendTLSPolicy of the Service {key} cannot be followed");
                return Err(unresolved(reference, "BackendNotFound", &text));
            }
            (Backend::Empty, Some(_)) => resolved.is_unavailable = true,
            // Copies have nobody to be sent to.
            (Backend::Empty, None) => _ = resolved.values.remove(reference.directive),
        }
        Ok(())
    }
}

fn unresolved(reference: &PolicyReference, reason: &'static str, text: &str) -> PolicyFault {
    let place = reference.pointer.replace('/', ".");
    PolicyFault { unresolved: Some(reason), message: format!("{}{place}: {text}", reference.directive) }
}

fn set_at(values: &mut BTreeMap<&'static str, Value>, reference: &PolicyReference, value: Value) {
    let place = values.get_mut(reference.directive).and_then(|table| table.pointer_mut(&reference.pointer));
    if let Some(place) = place {
        *place = value;
    }
}

/// Path of a content in memory. Another content has another path, so that a change is one of the configuration.
fn memory_path(kind: &str, key: &ObjectKey, name: &str, content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{MEMORY_FOLDER}/policy-{kind}/{}/{}/{:016x}/{name}", key.namespace, key.name, hasher.finish())
}

/// Checks the content of a Secret as the server reads it, because a file that it cannot read would stop the whole configuration.
fn check_content(bytes: &[u8], content: SecretContent) -> Result<(), String> {
    match content {
        SecretContent::Users => match PasswordFile::parse(bytes) {
            Ok(file) if !file.is_empty() => Ok(()),
            Ok(_) => Err("there is no user: `htpasswd -nB NAME` writes a line".to_owned()),
            Err(fault) => Err(fault.to_string()),
        },
        SecretContent::TokenKeys => match JwtKeys::parse(bytes, true) {
            Ok(keys) if keys.count() > 0 => Ok(()),
            Ok(_) => Err("there is no key for signatures that can be used".to_owned()),
            Err(fault) => Err(fault.to_string()),
        },
        SecretContent::UrlSecrets => {
            let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
            let mut lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).peekable();
            if lines.peek().is_none() {
                return Err("it has no secret: `openssl rand -hex 32` makes one".to_owned());
            }
            lines.try_for_each(|line| shapes::names::token(line).map(drop).map_err(|fault| fault.to_string()))
        }
    }
}
