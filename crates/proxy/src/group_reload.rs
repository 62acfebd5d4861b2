//! Replaces the groups of one configuration by those of the next, preserving their state.

use std::collections::HashMap;
use std::sync::Arc;

use failure::Failure;

use crate::options::{GroupOptions, UpstreamServer};
use crate::shared::GroupShared;

/// Builds the groups of a new configuration one after the other, reusing those of the previous one.
///
/// A group whose options are unchanged is reused. Otherwise servers that were in a previous group keep their
/// health. Idle connections and counters are shared by all groups that use the same server. Groups and
/// servers are looked up by hash, because there may be tens of thousands.
#[derive(Debug, Default)]
pub struct GroupReload {
    /// The previous groups; `None` for those already reused.
    previous: Vec<Option<Arc<GroupShared>>>,
    by_options: HashMap<Arc<GroupOptions>, Vec<usize>>,
    /// Servers of the previous groups by URL: indices of the group and the server, in reverse order.
    previous_servers: HashMap<String, Vec<(usize, usize)>>,
    /// Servers of the groups built so far, by URL; one entry for each way of connecting to them.
    servers: HashMap<String, Vec<(Arc<GroupShared>, usize)>>,
}

/// Whether connections to `one` can be used for `other`.
fn can_share_connections(one: &UpstreamServer, other: &UpstreamServer) -> bool {
    one.address == other.address && one.tls == other.tls && one.protocol == other.protocol
}

impl GroupReload {
    /// Creates a succession to these groups.
    #[must_use]
    pub fn new(previous: &[Arc<GroupShared>]) -> GroupReload {
        let mut all = GroupReload::default();
        // Filled in reverse, because entries are popped from the end and the first of several comes first.
        for (at, group) in previous.iter().enumerate().rev() {
            all.by_options.entry(group.options.clone()).or_default().push(at);
            for (server, upstream) in group.servers.iter().enumerate().rev() {
                all.previous_servers.entry(upstream.display_name.clone()).or_default().push((at, server));
            }
        }
        all.previous = previous.iter().cloned().map(Some).collect();
        all
    }

    /// Returns the group with these options, reused if possible.
    ///
    /// # Errors
    /// See [`GroupShared::new`].
    pub fn build(&mut self, options: GroupOptions) -> Result<Arc<GroupShared>, Failure> {
        let same = self.by_options.get_mut(&options).and_then(Vec::pop);
        let group = match same.and_then(|at| self.previous[at].take()) {
            Some(group) => group,
            None => self.build_changed(options)?,
        };
        for (at, (server, upstream)) in group.options.servers.iter().zip(&group.servers).enumerate() {
            let known = self.servers.entry(upstream.display_name.clone()).or_default();
            if !known.iter().any(|(other, at)| can_share_connections(&other.options.servers[*at], server)) {
                known.push((group.clone(), at));
            }
        }
        Ok(group)
    }

    fn build_changed(&mut self, options: GroupOptions) -> Result<Arc<GroupShared>, Failure> {
        let mut group = GroupShared::build(options)?;
        for (server, upstream) in group.options.servers.iter().zip(&mut group.servers) {
            let before = &self.previous;
            let places = self.previous_servers.get_mut(&upstream.display_name);
            let places = places.map_or(&[][..], |places| {
                while places.pop_if(|(group, _)| before[*group].is_none()).is_some() {}
                places
            });
            let earlier =
                || places.iter().rev().filter_map(|(group, at)| Some((before[*group].as_ref()?, *at)));
            let beside = self.servers.get(&upstream.display_name).into_iter().flatten();
            let known = || beside.clone().map(|(group, at)| (group, *at)).chain(earlier());
            if let Some((other, at)) =
                known().find(|(other, at)| can_share_connections(&other.options.servers[*at], server))
            {
                upstream.idle = other.servers[at].idle.clone();
            }
            if let Some((other, at)) = known().next() {
                upstream.counter_sets = other.servers[at].counter_sets.clone();
            }
            if let Some((other, at)) = earlier().next() {
                upstream.resume_weight(other, at);
                let previous = &other.servers[at].health;
                upstream.health.copy_order(previous);
                if group.options.ejection.is_some() {
                    upstream.health.copy_ejection(previous);
                }
                if group.options.check.is_some() && other.options.check == group.options.check {
                    upstream.health.copy_checks(previous);
                }
            }
        }
        Ok(Arc::new(group))
    }
}
