//! What a status becomes, and whether it has to be written. Conditions of other controllers stay.

use serde_json::{Map, Value, json};

use crate::objects::Kind;
use crate::options::CONTROLLER_NAME;

/// Merges the wanted status into the present one. `now` is the time of conditions that change. `None` if nothing changes.
#[must_use]
pub(crate) fn merged_status(kind: Kind, present: &Value, wanted: &Value, now: &str) -> Option<Value> {
    let mut merged = match present {
        Value::Object(table) => table.clone(),
        _ => Map::new(),
    };
    if let Some((list, reference)) = shared_list(kind) {
        // Each controller has entries of its own.
        let known = present.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        let (ours, mut entries): (Vec<Value>, Vec<Value>) =
            known.into_iter().partition(|one| one.get("controllerName") == Some(&json!(CONTROLLER_NAME)));
        let wanted = wanted.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if ours.is_empty() && wanted.is_empty() {
            return None;
        }
        for entry in wanted {
            let before = ours.iter().find(|one| one.get(reference) == entry.get(reference));
            entries.push(with_conditions(before, entry, now));
        }
        merged.insert(list.to_owned(), Value::Array(entries));
    } else {
        let table = with_conditions(Some(present), wanted, now);
        if let Value::Object(table) = table {
            merged.extend(table);
        }
        if let Some(listeners) = wanted.get("listeners").and_then(Value::as_array) {
            let known = present.get("listeners").and_then(Value::as_array).cloned().unwrap_or_default();
            let listener = |wanted: &Value| {
                let before = known.iter().find(|one| one.get("name") == wanted.get("name"));
                with_conditions(before, wanted, now)
            };
            merged.insert("listeners".to_owned(), listeners.iter().map(listener).collect());
        }
    }
    let merged = Value::Object(merged);
    (merged != *present).then_some(merged)
}

/// Returns the list of a kind's status to which each controller adds its entries, and what an entry is about.
fn shared_list(kind: Kind) -> Option<(&'static str, &'static str)> {
    match kind {
        kind if kind.is_route() => Some(("parents", "parentRef")),
        Kind::BackendTlsPolicy | Kind::KomainuPolicy => Some(("ancestors", "ancestorRef")),
        _ => None,
    }
}

/// The status of an object that has nothing to do with this controller any more: the entries of others alone.
pub(crate) fn unrelated_status(kind: Kind) -> Option<Value> {
    shared_list(kind).map(|(list, _)| json!({ list: [] }))
}

/// Returns a table with its conditions, whose times are those of the present ones with the same status. Conditions of other kinds
/// stay.
fn with_conditions(present: Option<&Value>, wanted: &Value, now: &str) -> Value {
    let mut table = wanted.clone();
    let known = present
        .and_then(|present| present.get("conditions"))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let Some(conditions) = table.get_mut("conditions").and_then(Value::as_array_mut) else { return table };
    for condition in conditions.iter_mut() {
        let before = known.iter().find(|one| one.get("type") == condition.get("type"));
        let time = before
            .filter(|before| before.get("status") == condition.get("status"))
            .and_then(|before| before.get("lastTransitionTime"))
            .cloned();
        condition["lastTransitionTime"] = time.unwrap_or_else(|| json!(now));
    }
    let is_owned = |one: &Value| {
        let kind = one.get("type").and_then(Value::as_str).unwrap_or_default();
        matches!(
            kind,
            "Accepted"
                | "Programmed"
                | "ResolvedRefs"
                | "Conflicted"
                | "PartiallyInvalid"
                | "InsecureFrontendValidationMode"
        )
    };
    let is_wanted = |one: &Value| conditions.iter().any(|condition| condition.get("type") == one.get("type"));
    let others: Vec<Value> = known.iter().filter(|one| !is_owned(one) && !is_wanted(one)).cloned().collect();
    conditions.extend(others);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(kind: &str, status: &str, time: Option<&str>) -> Value {
        let mut value = json!({ "type": kind, "status": status, "reason": "R", "message": "m" });
        if let Some(time) = time {
            value["lastTransitionTime"] = json!(time);
        }
        value
    }

    #[test]
    fn times_of_conditions_change_with_their_status_alone() {
        let present = json!({ "conditions": [condition("Accepted", "True", Some("old")), condition("Theirs", "True", Some("old"))] });
        let same = json!({ "conditions": [condition("Accepted", "True", None)] });
        assert_eq!(merged_status(Kind::GatewayClass, &present, &same, "new"), None);
        let other = json!({ "conditions": [condition("Accepted", "False", None)] });
        let merged = merged_status(Kind::GatewayClass, &present, &other, "new").unwrap();
        assert_eq!(merged["conditions"][0]["lastTransitionTime"], "new");
        assert_eq!(merged["conditions"][1]["type"], "Theirs");
    }

    #[test]
    fn parents_of_other_controllers_stay() {
        let theirs = json!({ "controllerName": "example.com/other", "parentRef": { "name": "b" } });
        let stale = json!({ "controllerName": CONTROLLER_NAME, "parentRef": { "name": "gone" } });
        let present = json!({ "parents": [stale, theirs.clone()] });
        let wanted = json!({ "parents": [{ "controllerName": CONTROLLER_NAME, "parentRef": { "name": "a" }, "conditions": [] }] });
        let merged = merged_status(Kind::HttpRoute, &present, &wanted, "new").unwrap();
        assert_eq!(merged["parents"], json!([theirs, wanted["parents"][0]]));
    }

    #[test]
    fn policies_of_other_controllers_stay_as_they_are() {
        let wanted = json!({ "ancestors": [] });
        for present in [json!({}), json!({ "ancestors": [{ "controllerName": "example.com/other" }] })] {
            assert_eq!(merged_status(Kind::BackendTlsPolicy, &present, &wanted, "new"), None);
        }
        let stale = json!({ "ancestors": [{ "controllerName": CONTROLLER_NAME }] });
        let merged = merged_status(Kind::BackendTlsPolicy, &stale, &wanted, "new").unwrap();
        assert_eq!(merged["ancestors"], json!([]));
    }
}
