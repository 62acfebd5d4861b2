//! Groups of routes, of which Caddy enters the first alone, and routes after which it looks at no other.

use super::hosts::common_hosts;
use crate::data::DataNode;
use crate::draft::{TomlItem, TomlSection};

/// Requests that a group has entered without an answer: hosts and conditions.
type EnteredRequests = Vec<(Vec<String>, TomlSection)>;

/// Groups of a list of routes, with the requests that their first routes have entered without answering them. Routes of
/// the same group do not get these, but those of no group do.
#[derive(Debug, Default)]
pub(super) struct RouteGroups(Vec<(String, EnteredRequests)>);

impl RouteGroups {
    /// Returns the conditions of requests that a route does not get because another one of its group has entered them;
    /// `None` if these are all requests.
    pub(super) fn entered_before(&self, route: &DataNode) -> Option<Vec<TomlItem>> {
        let Some(group) = group_of(route) else { return Some(Vec::new()) };
        let entered = self.0.iter().filter(|(name, _)| name == group).flat_map(|(_, all)| all);
        let conditions = |(hosts, conditions): &(Vec<String>, TomlSection)| {
            let mut all = conditions.clone();
            if !hosts.is_empty() {
                all.set("host", TomlItem::text_or_list(hosts.clone()));
            }
            (!all.entries.is_empty()).then_some(TomlItem::Table(all.entries))
        };
        entered.map(conditions).collect()
    }

    /// Records the requests that a route has entered and not answered.
    pub(super) fn enter(&mut self, route: &DataNode, unanswered: EnteredRequests) {
        if let Some(group) = group_of(route) {
            self.0.push((group.to_owned(), unanswered));
        }
    }
}

fn group_of(route: &DataNode) -> Option<&str> {
    route.get("group").and_then(DataNode::text).filter(|group| !group.is_empty())
}

/// Whether one of these routes may get requests for the hosts.
pub(super) fn may_answer(routes: &[DataNode], hosts: &[String]) -> bool {
    routes.iter().any(|route| {
        let sets = route.get("match").map_or(&[][..], DataNode::items);
        let of_set = |set: &DataNode| set.get("host").map_or_else(Vec::new, DataNode::texts);
        sets.is_empty() || sets.iter().any(|set| common_hosts(hosts, &of_set(set)).is_some())
    })
}
