//! Replaces the groups of one configuration by those of the next, preserving their state.

use std::collections::HashMap;
use std::sync::Arc;

use failure::Failure;

use crate::options::{GroupOptions, UpstreamServer};
use crate::shared::{GroupShared, Upstream};

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
    servers: KnownServers,
}

/// Servers of the groups in force, by URL; one entry for each way of connecting to them.
#[derive(Debug, Default)]
pub struct KnownServers(HashMap<String, Vec<(Arc<GroupShared>, usize)>>);

impl KnownServers {
    /// Builds the group that replaces `before`. Servers of `before` keep their health, and those of any group their
    /// connections and counters.
    ///
    /// # Errors
    /// See [`GroupShared::new`].
    pub fn replace(
        &mut self,
        before: &Arc<GroupShared>,
        options: GroupOptions,
    ) -> Result<Arc<GroupShared>, Failure> {
        let earlier: HashMap<&str, usize> =
            before.servers.iter().enumerate().map(|(at, one)| (one.display_name.as_str(), at)).collect();
        let mut group = GroupShared::build(options)?;
        let options = group.options.clone();
        for (server, upstream) in options.servers.iter().zip(&mut group.servers) {
            let earlier = earlier.get(upstream.display_name.as_str()).map(|at| (before, *at));
            let beside = self.0.get(&upstream.display_name).into_iter().flatten();
            let known = earlier.into_iter().chain(beside.map(|(group, at)| (group, *at)));
            take_over(upstream, server, &options, known, earlier);
        }
        let group = Arc::new(group);
        self.remove(before);
        self.add(&group);
        Ok(group)
    }

    /// Builds a new group. Its servers share connections and counters with those of other groups.
    ///
    /// # Errors
    /// See [`GroupShared::new`].
    pub fn build(&mut self, options: GroupOptions) -> Result<Arc<GroupShared>, Failure> {
        let mut group = GroupShared::build(options)?;
        let options = group.options.clone();
        for (server, upstream) in options.servers.iter().zip(&mut group.servers) {
            let beside = self.0.get(&upstream.display_name).into_iter().flatten();
            take_over(upstream, server, &options, beside.map(|(group, at)| (group, *at)), None);
        }
        let group = Arc::new(group);
        self.add(&group);
        Ok(group)
    }

    /// Adds the servers of a group.
    fn add(&mut self, group: &Arc<GroupShared>) {
        for (at, (server, upstream)) in group.options.servers.iter().zip(&group.servers).enumerate() {
            let known = self.0.entry(upstream.display_name.clone()).or_default();
            if !known.iter().any(|(other, at)| can_share_connections(&other.options.servers[*at], server)) {
                known.push((group.clone(), at));
            }
        }
    }

    /// Removes the servers of a group that is not in force any more.
    pub fn remove(&mut self, group: &Arc<GroupShared>) {
        for upstream in &group.servers {
            let Some(known) = self.0.get_mut(&upstream.display_name) else { continue };
            known.retain(|(other, _)| !Arc::ptr_eq(other, group));
            if known.is_empty() {
                self.0.remove(&upstream.display_name);
            }
        }
    }
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
        self.servers.add(&group);
        Ok(group)
    }

    /// Returns the servers of the groups that were built.
    #[must_use]
    pub fn finish(self) -> KnownServers {
        self.servers
    }

    fn build_changed(&mut self, options: GroupOptions) -> Result<Arc<GroupShared>, Failure> {
        let mut group = GroupShared::build(options)?;
        let options = group.options.clone();
        for (server, upstream) in options.servers.iter().zip(&mut group.servers) {
            let before = &self.previous;
            let places = self.previous_servers.get_mut(&upstream.display_name);
            let places = places.map_or(&[][..], |places| {
                while places.pop_if(|(group, _)| before[*group].is_none()).is_some() {}
                places
            });
            let mut earlier =
                places.iter().rev().filter_map(|(group, at)| Some((before[*group].as_ref()?, *at)));
            let beside = self.servers.0.get(&upstream.display_name).into_iter().flatten();
            let known = beside.map(|(group, at)| (group, *at)).chain(earlier.clone());
            take_over(upstream, server, &options, known, earlier.next());
        }
        Ok(Arc::new(group))
    }
}

/// Has a server of a new group take over connections and counters of one of the `known` ones with its URL, and weight and
/// health of the one that it replaces.
fn take_over<'g>(
    upstream: &mut Upstream,
    server: &UpstreamServer,
    options: &GroupOptions,
    known: impl Iterator<Item = (&'g Arc<GroupShared>, usize)> + Clone,
    earlier: Option<(&'g Arc<GroupShared>, usize)>,
) {
    let fits =
        |(other, at): &(&Arc<GroupShared>, usize)| can_share_connections(&other.options.servers[*at], server);
    if let Some((other, at)) = known.clone().find(fits) {
        upstream.idle = other.servers[at].idle.clone();
    }
    if let Some((other, at)) = known.clone().next() {
        upstream.counter_sets = other.servers[at].counter_sets.clone();
    }
    if let Some((other, at)) = earlier {
        upstream.resume_weight(other, at);
        let previous = &other.servers[at].health;
        upstream.health.copy_order(previous);
        if options.ejection.is_some() {
            upstream.health.copy_ejection(previous);
        }
        if options.check.is_some() && other.options.check == options.check {
            upstream.health.copy_checks(previous);
        }
    }
}
