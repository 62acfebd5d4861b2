//! Reads the tree of a configuration part by part, and only the parts that have changed.
//!
//! The parts are the groups of upstream servers, the streams, the sites, and everything else, the base. Each is read by the
//! engine of directives with what it depends on: a site with the base and with the groups that it names, but not with their
//! servers, so that a change of endpoints concerns no site. A part that is the same as before is the same object
//! as before (`Arc`), by which the server knows what it need not assemble again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use config::{Config, Finding, Site, Stream};
use proxy::options::ProxyOptions;
use settings::node::{Entry, Node, NodeData};

/// Identity of a part: a hash with keys of this process, so that no object can be made to have that of another one.
type PartId = [u64; 2];

/// Sites that are read together.
const TOGETHER_MAX: usize = 32;

/// The base, the groups and the streams that were read last.
#[derive(Default)]
pub struct ConfigReader {
    keys: [RandomState; 2],
    base: Option<ReadBase>,
    streams: Option<(PartId, Vec<Stream>)>,
    groups: BTreeMap<String, ReadGroup>,
    /// Groups of a configuration that is read anew.
    groups_before: BTreeMap<String, ReadGroup>,
    counts: ReadCounts,
}

/// The base.
struct ReadBase {
    id: PartId,
    node: Node,
    config: Arc<Config>,
}

/// A group of upstream servers.
struct ReadGroup {
    id: PartId,
    options: Arc<ProxyOptions>,
    /// The group as sites see it: without servers.
    shell: Node,
    shell_id: PartId,
}

/// A site that was read.
#[derive(Clone)]
pub(crate) struct ReadSite {
    id: PartId,
    pub(crate) site: Arc<Site>,
    /// The groups that it names, with the identities of their shells.
    groups: Vec<(String, PartId)>,
}

/// Numbers of parts that were read, rather than known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// The base.
    pub bases: u64,
    /// Groups of upstream servers.
    pub groups: u64,
    /// Sites.
    pub sites: u64,
}

impl ConfigReader {
    /// Numbers of parts that were read so far.
    #[must_use]
    pub fn counts(&self) -> ReadCounts {
        self.counts
    }

    /// Reads the base: all but groups, streams and sites of objects. If it differs from the known one, nothing else is known any more.
    pub(crate) fn read_base(&mut self, node: Node) -> Result<(), Vec<Finding>> {
        let id = self.id_of(&node);
        if self.base.as_ref().is_some_and(|known| known.id == id) {
            return Ok(());
        }
        self.counts.bases += 1;
        let config = Arc::new(read(node.clone())?);
        self.streams = None;
        self.groups.clear();
        self.base = Some(ReadBase { id, node, config });
        Ok(())
    }

    /// Begins a configuration of which all groups will be read.
    pub(crate) fn begin(&mut self) {
        self.groups_before = std::mem::take(&mut self.groups);
    }

    /// Reads the tables of groups, or forgets those without a table. Returns the groups that are other ones to sites.
    pub(crate) fn read_groups(
        &mut self,
        changed: Vec<(String, Option<Node>)>,
    ) -> Result<BTreeSet<String>, Vec<Finding>> {
        let (mut others, mut new) = (BTreeSet::new(), Vec::new());
        for (name, node) in changed {
            let Some(node) = node else {
                self.groups.remove(&name);
                others.insert(name);
                continue;
            };
            let id = self.id_of(&node);
            if let Some(known) = self.groups_before.remove(&name).filter(|known| known.id == id) {
                others.insert(name.clone());
                self.groups.insert(name.clone(), known);
            }
            if self.groups.get(&name).is_none_or(|known| known.id != id) {
                new.push((name, id, node));
            }
        }
        if new.is_empty() {
            return Ok(others);
        }
        self.counts.groups += new.len() as u64;
        let tables = new.iter().map(|(name, _, node)| entry(name, node.clone())).collect();
        let read = read(table(vec![entry("upstreams", table(tables))]))?.upstreams;
        let mut read: HashMap<String, Arc<ProxyOptions>> = read.into_iter().collect();
        for (name, id, node) in new {
            let Some(options) = read.remove(&name) else { continue };
            let shell = without_servers(&node);
            let shell_id = self.id_of(&shell);
            if self.groups.get(&name).is_none_or(|known| known.shell_id != shell_id) {
                others.insert(name.clone());
            }
            self.groups.insert(name, ReadGroup { id, options, shell, shell_id });
        }
        Ok(others)
    }

    /// Reads sites that have addresses of their own (`listen`), after the base and the groups that they name. `known` returns the one
    /// that is the same as before. Sites of one listener may be read together: what is alike in all of them is read once.
    ///
    /// # Errors
    /// The findings of a site, with their places ([`Node::at`]).
    pub(crate) fn read_sites(
        &mut self,
        nodes: Vec<Node>,
        known: &dyn Fn(usize, PartId) -> Option<ReadSite>,
    ) -> Vec<Result<ReadSite, Vec<Finding>>> {
        let named: Vec<(PartId, Vec<&String>)> = nodes.iter().map(|node| self.identify(node)).collect();
        let mut read: Vec<Option<ReadSite>> =
            named.iter().enumerate().map(|(at, (id, _))| known(at, *id)).collect();
        let mut together = Vec::new();
        let unknown: Vec<usize> = (0..nodes.len()).filter(|at| read[*at].is_none()).collect();
        for some in unknown.chunks(TOGETHER_MAX).filter(|some| some.len() > 1) {
            let names: BTreeSet<&String> = some.iter().flat_map(|at| &named[*at].1).copied().collect();
            let sites = some.iter().map(|at| nodes[*at].clone()).collect();
            // Faults are found again in one of them alone.
            let sites = self.read_together(names, sites).unwrap_or_default();
            together.extend(some.iter().copied().zip(sites));
        }
        for (at, site) in together {
            read[at] = Some(self.read_site(&named[at], site));
        }
        let mut outcomes = Vec::new();
        for ((node, named), read) in nodes.into_iter().zip(&named).zip(read) {
            outcomes.push(match read {
                Some(site) => Ok(site),
                None => {
                    let names = named.1.iter().copied().collect();
                    let site = self.read_together(names, vec![node]);
                    site.map(|mut sites| self.read_site(named, sites.pop().unwrap_or_default()))
                }
            });
        }
        self.counts.sites += unknown.len() as u64;
        outcomes
    }

    /// Returns the identity of a site, and the groups that it names.
    fn identify(&self, node: &Node) -> (PartId, Vec<&String>) {
        let base = self.base.as_ref().expect("the base is read first");
        let mut names = BTreeSet::new();
        add_group_names(node, &mut names);
        let used: Vec<(&String, &ReadGroup)> =
            names.iter().filter_map(|name| self.groups.get_key_value(name)).collect();
        let id = self.id(|mut hasher| {
            base.id.hash(&mut hasher);
            for (name, group) in &used {
                (name, group.shell_id).hash(&mut hasher);
            }
            hash_node(node, hasher);
        });
        (id, used.into_iter().map(|(name, _)| name).collect())
    }

    fn read_site(&self, (id, names): &(PartId, Vec<&String>), site: Arc<Site>) -> ReadSite {
        let groups = names.iter().map(|name| ((*name).clone(), self.groups[*name].shell_id));
        ReadSite { id: *id, site, groups: groups.collect() }
    }

    /// Reads sites with the base, and with the groups that they name.
    fn read_together(
        &self,
        names: BTreeSet<&String>,
        sites: Vec<Node>,
    ) -> Result<Vec<Arc<Site>>, Vec<Finding>> {
        let base = self.base.as_ref().expect("the base is read first");
        let count = sites.len();
        let mut node = base.node.clone();
        let shells = names.into_iter().map(|name| entry(name, self.groups[name].shell.clone()));
        node.set_entry("upstreams", table(shells.collect()));
        let mut all = base.node.items("site").to_vec();
        all.extend(sites);
        node.set_entry("site", Node::list(all));
        let mut config = read(node)?;
        let mut sites = config.sites.split_off(config.sites.len().saturating_sub(count));
        for site in &mut sites {
            // Its place changes with other objects.
            let own = Arc::make_mut(site);
            own.line = None;
            own.routes.iter_mut().for_each(|route| route.line = None);
        }
        Ok(sites)
    }

    /// Reads the streams, after the base.
    pub(crate) fn read_streams(&mut self, nodes: Vec<Node>) -> Result<(), Vec<Finding>> {
        let list = Node::list(nodes);
        let id = self.id_of(&list);
        if self.streams.as_ref().is_some_and(|(known, _)| *known == id) {
            return Ok(());
        }
        let base = self.base.as_ref().expect("the base is read first");
        let mut streams = Vec::new();
        if matches!(&list.data, NodeData::List(items) if !items.is_empty()) {
            let mut node = base.node.clone();
            node.set_entry("stream", list);
            streams = read(node)?.streams;
        }
        self.streams = Some((id, streams));
        Ok(())
    }

    /// Joins the base, the groups and the streams to a configuration with these sites.
    pub(crate) fn join(&self, sites: Vec<Arc<Site>>) -> Config {
        let base = self.base.as_ref().expect("the base is read first");
        let groups = self.groups.iter().map(|(name, group)| (name.clone(), group.options.clone()));
        let streams = self.streams.iter().flat_map(|(_, streams)| streams).cloned();
        Config::join(&base.config, groups.collect(), sites, streams.collect())
    }

    fn id_of(&self, node: &Node) -> PartId {
        self.id(|hasher| hash_node(node, hasher))
    }

    fn id(&self, hash: impl Fn(&mut dyn Hasher)) -> PartId {
        self.keys.each_ref().map(|key| {
            let mut hasher = key.build_hasher();
            hash(&mut hasher);
            hasher.finish()
        })
    }
}

impl ReadSite {
    /// Whether two are the same as the configuration sees them.
    pub(crate) fn is_of(&self, id: PartId) -> bool {
        self.id == id
    }

    /// Whether the site names one of these groups.
    pub(crate) fn names_any(&self, groups: &BTreeSet<String>) -> bool {
        self.groups.iter().any(|(name, _)| groups.contains(name))
    }

    /// The identity, by which a site is found again.
    pub(crate) fn id(&self) -> PartId {
        self.id
    }
}

fn read(node: Node) -> Result<Config, Vec<Finding>> {
    let lines = last_line(&node) + 1;
    match Config::from_node(node, lines, "kubernetes", Path::new("/")) {
        Ok((config, _)) => Ok(config),
        Err(report) => Err(report.findings().to_vec()),
    }
}

fn last_line(node: &Node) -> usize {
    let below = match &node.data {
        NodeData::List(items) => items.iter().map(last_line).max(),
        NodeData::Table(entries) => entries.iter().map(|entry| last_line(&entry.value)).max(),
        _ => None,
    };
    node.span.end.max(below.unwrap_or(0))
}

fn entry(key: &str, value: Node) -> Entry {
    Entry { key: key.to_owned(), key_span: 0..0, value }
}

fn table(entries: Vec<Entry>) -> Node {
    Node { span: 0..0, data: NodeData::Table(entries) }
}

/// Returns a group's table with its first server alone.
fn without_servers(group: &Node) -> Node {
    let NodeData::Table(entries) = &group.data else { return group.clone() };
    let shell = |one: &Entry| match &one.value.data {
        NodeData::List(items) if one.key == "to" => {
            let first = items.first().map(|server| Node::from(serde_json::Value::from(scheme_of(server))));
            entry("to", Node::list(first.into_iter().collect()))
        }
        _ => one.clone(),
    };
    table(entries.iter().map(shell).collect())
}

/// Returns a URL of no server with the scheme of this one.
fn scheme_of(server: &Node) -> String {
    let url = match &server.data {
        NodeData::Text(text) => Some(text),
        _ => server.entry("url").and_then(|entry| match &entry.value.data {
            NodeData::Text(text) => Some(text),
            _ => None,
        }),
    };
    let scheme = url.and_then(|url| url.split_once("://")).map_or("http", |(scheme, _)| scheme);
    format!("{scheme}://192.0.2.1:1")
}

/// Adds the names of groups that a site uses.
fn add_group_names(node: &Node, names: &mut BTreeSet<String>) {
    match &node.data {
        NodeData::List(items) => items.iter().for_each(|item| add_group_names(item, names)),
        NodeData::Table(entries) => {
            for entry in entries {
                match &entry.value.data {
                    NodeData::Text(name) if entry.key == "upstream" => _ = names.insert(name.clone()),
                    _ => add_group_names(&entry.value, names),
                }
            }
        }
        _ => {}
    }
}

/// Hashes a node without its places.
fn hash_node(node: &Node, mut hasher: &mut dyn Hasher) {
    std::mem::discriminant(&node.data).hash(&mut hasher);
    match &node.data {
        NodeData::Text(text) => text.hash(&mut hasher),
        NodeData::Integer(number) => number.hash(&mut hasher),
        NodeData::Float(number) => number.to_bits().hash(&mut hasher),
        NodeData::Flag(flag) => flag.hash(&mut hasher),
        NodeData::Date => {}
        NodeData::List(items) => {
            items.len().hash(&mut hasher);
            items.iter().for_each(|item| hash_node(item, hasher));
        }
        NodeData::Table(entries) => {
            entries.len().hash(&mut hasher);
            for entry in entries {
                entry.key.hash(&mut hasher);
                hash_node(&entry.value, hasher);
            }
        }
    }
}

#[cfg(test)]
mod tests;
