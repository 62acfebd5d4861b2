//! Which namespaces may name which objects: ReferenceGrants, and the namespaces that a listener takes routes of.

use std::collections::BTreeMap;

use crate::objects::{LabelSelector, ObjectKey, Objects, RouteNamespaces};

/// A reference from an object to one of another namespace.
pub(crate) struct CrossReference<'a> {
    pub(crate) from_group: &'a str,
    pub(crate) from_kind: &'a str,
    pub(crate) from_namespace: &'a str,
    pub(crate) to_group: &'a str,
    pub(crate) to_kind: &'a str,
    pub(crate) to: &'a ObjectKey,
}

/// Whether a reference stays in its namespace, or a ReferenceGrant of the other namespace allows it.
pub(crate) fn is_reference_allowed(objects: &Objects, reference: &CrossReference<'_>) -> bool {
    if reference.from_namespace == reference.to.namespace {
        return true;
    }
    let first = ObjectKey::new(&reference.to.namespace, "");
    let grants = objects.reference_grants.range(first..);
    let mut of_namespace = grants.take_while(|(key, _)| key.namespace == reference.to.namespace);
    of_namespace.any(|(_, grant)| {
        let allows_from = grant.spec.from.iter().any(|from| {
            from.group == reference.from_group
                && from.kind == reference.from_kind
                && from.namespace == reference.from_namespace
        });
        let allows_to = |to: &crate::objects::GrantTo| {
            to.group == reference.to_group
                && to.kind == reference.to_kind
                && to.name.as_deref().is_none_or(|name| name.is_empty() || name == reference.to.name)
        };
        allows_from && grant.spec.to.iter().any(allows_to)
    })
}

/// Whether a listener of a Gateway takes routes of a namespace.
pub(crate) fn takes_namespace(
    objects: &Objects,
    rule: Option<&RouteNamespaces>,
    gateway_namespace: &str,
    route_namespace: &str,
) -> bool {
    match rule.and_then(|rule| rule.from.as_deref()).unwrap_or("Same") {
        "All" => true,
        "Same" => gateway_namespace == route_namespace,
        "Selector" => {
            let Some(selector) = rule.and_then(|rule| rule.selector.as_ref()) else { return false };
            let namespace = objects.namespaces.get(&ObjectKey::new("", route_namespace));
            namespace.is_some_and(|namespace| matches_labels(selector, &namespace.metadata.labels))
        }
        _ => false,
    }
}

fn matches_labels(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let has_all = selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    has_all
        && selector.match_expressions.iter().all(|expression| {
            let value = labels.get(&expression.key);
            match expression.operator.as_str() {
                "In" => value.is_some_and(|value| expression.values.contains(value)),
                "NotIn" => value.is_none_or(|value| !expression.values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                _ => false,
            }
        })
}
