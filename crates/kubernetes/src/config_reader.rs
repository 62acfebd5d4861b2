//! Reads the tree of a configuration part by part, and only the parts that have changed.
//!
//! The parts are the groups of upstream servers, the streams, the sites, and everything else, the base. Each is read by the
//! engine of directives with what it depends on: a site with the base and with the groups that it names, but not with their
//! servers, so that a change of endpoints concerns no site. A part that is the same as before is the same object
//! as before (`Arc`), by which the server knows what it need not assemble again.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use config::{Config, Finding, Site, Stream};
use proxy::options::ProxyOptions;
use settings::node::{Entry, Node, NodeData};

/// Identity of a part: a hash with keys of this process, so that no object can be made to have that of another one.
type PartId = [u64; 2];

/// The parts that were read last.
#[derive(Default)]
pub struct ConfigReader {
    keys: [RandomState; 2],
    base: Option<(PartId, Arc<Config>)>,
    streams: Option<(PartId, Vec<Stream>)>,
    groups: HashMap<String, (PartId, Arc<ProxyOptions>)>,
    sites: HashMap<PartId, Arc<Site>>,
    counts: ReadCounts,
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

    /// Reads a tree. Sites at the place 0 belong to the base; all others have addresses of their own (`listen`).
    ///
    /// # Errors
    /// The findings in all parts, with their places ([`Node::at`]). The parts without fault stay known.
    pub fn read(&mut self, node: Node) -> Result<Config, Vec<Finding>> {
        let mut parts = Parts::of(node);
        let base_id = self.id_of(&parts.base);
        let base = match &self.base {
            Some((id, base)) if *id == base_id => base.clone(),
            _ => {
                self.counts.bases += 1;
                let base = Arc::new(read(parts.base.clone())?);
                (self.streams, self.base) = (None, Some((base_id, base.clone())));
                self.sites.clear();
                base
            }
        };
        let streams = self.read_streams(&parts)?;
        let groups = self.read_groups(&parts)?;
        let named: HashMap<&str, &Node> =
            parts.groups.iter().map(|entry| (entry.key.as_str(), &entry.value)).collect();
        // Of its servers, a site sees the first alone, and nothing looks at that.
        let shells: HashMap<&str, (Node, PartId)> = named
            .into_iter()
            .map(|(name, table)| {
                let shell = without_servers(table);
                let id = self.id_of(&shell);
                (name, (shell, id))
            })
            .collect();
        let (mut known, mut sites, mut findings) = (HashMap::new(), Vec::new(), Vec::new());
        for site in std::mem::take(&mut parts.sites) {
            let mut names = BTreeSet::new();
            add_group_names(&site, &mut names);
            let used: Vec<(&str, &(Node, PartId))> =
                names.iter().filter_map(|name| Some((name.as_str(), shells.get(name.as_str())?))).collect();
            let id = self.id_of_site(&site, base_id, &used);
            let read = match self.sites.get(&id) {
                Some(site) => Ok(site.clone()),
                None => {
                    self.counts.sites += 1;
                    read_site(&parts.base, &used, site)
                }
            };
            match read {
                Ok(site) => {
                    known.insert(id, site.clone());
                    sites.push(site);
                }
                Err(found) => findings.extend(found),
            }
        }
        if findings.is_empty() {
            self.sites = known;
            return Ok(Config::join(&base, groups, sites, streams));
        }
        self.sites.extend(known);
        Err(findings)
    }

    fn read_streams(&mut self, parts: &Parts) -> Result<Vec<Stream>, Vec<Finding>> {
        if parts.streams.is_empty() {
            return Ok(Vec::new());
        }
        let list = Node::list(parts.streams.clone());
        let id = self.id_of(&list);
        if let Some((_, streams)) = self.streams.as_ref().filter(|(known, _)| *known == id) {
            return Ok(streams.clone());
        }
        let mut node = parts.base.clone();
        node.set_entry("stream", list);
        let streams = read(node)?.streams;
        self.streams = Some((id, streams.clone()));
        Ok(streams)
    }

    fn read_groups(&mut self, parts: &Parts) -> Result<Vec<(String, Arc<ProxyOptions>)>, Vec<Finding>> {
        let ids: Vec<PartId> = parts.groups.iter().map(|entry| self.id_of(&entry.value)).collect();
        let is_new = |(entry, id): &(&Entry, &PartId)| {
            self.groups.get(&entry.key).is_none_or(|(known, _)| known != *id)
        };
        let new: Vec<Entry> =
            parts.groups.iter().zip(&ids).filter(is_new).map(|(entry, _)| entry.clone()).collect();
        let mut read_now: HashMap<String, Arc<ProxyOptions>> = HashMap::new();
        if !new.is_empty() {
            self.counts.groups += new.len() as u64;
            read_now.extend(read(table(vec![entry("upstreams", table(new))]))?.upstreams);
        }
        let mut known = HashMap::new();
        let mut groups = Vec::new();
        for (entry, id) in parts.groups.iter().zip(ids) {
            let read = read_now.remove(&entry.key);
            let Some(group) = read.or_else(|| Some(self.groups.get(&entry.key)?.1.clone())) else { continue };
            known.insert(entry.key.clone(), (id, group.clone()));
            groups.push((entry.key.clone(), group));
        }
        self.groups = known;
        Ok(groups)
    }

    fn id_of(&self, node: &Node) -> PartId {
        self.id(|hasher| hash_node(node, hasher))
    }

    fn id_of_site(&self, site: &Node, base: PartId, groups: &[(&str, &(Node, PartId))]) -> PartId {
        self.id(|mut hasher| {
            base.hash(&mut hasher);
            for (name, (_, id)) in groups {
                (name, id).hash(&mut hasher);
            }
            hash_node(site, hasher);
        })
    }

    fn id(&self, hash: impl Fn(&mut dyn Hasher)) -> PartId {
        self.keys.each_ref().map(|key| {
            let mut hasher = key.build_hasher();
            hash(&mut hasher);
            hasher.finish()
        })
    }
}

/// A tree, in its parts.
struct Parts {
    base: Node,
    groups: Vec<Entry>,
    streams: Vec<Node>,
    sites: Vec<Node>,
}

impl Parts {
    fn of(mut node: Node) -> Parts {
        let mut take = |key: &str| {
            let NodeData::Table(entries) = &mut node.data else { return None };
            let at = entries.iter().position(|entry| entry.key == key)?;
            Some(entries.remove(at).value.data)
        };
        let groups = match take("upstreams") {
            Some(NodeData::Table(entries)) => entries,
            _ => Vec::new(),
        };
        let streams = match take("stream") {
            Some(NodeData::List(items)) => items,
            _ => Vec::new(),
        };
        let sites = match take("site") {
            Some(NodeData::List(items)) => items,
            _ => Vec::new(),
        };
        let (own, sites): (Vec<Node>, Vec<Node>) = sites.into_iter().partition(|site| site.span.start == 0);
        if !own.is_empty() {
            node.set_entry("site", Node::list(own));
        }
        Parts { base: node, groups, streams, sites }
    }
}

fn read(node: Node) -> Result<Config, Vec<Finding>> {
    let lines = last_line(&node) + 1;
    match Config::from_node(node, lines, "kubernetes", Path::new("/")) {
        Ok((config, _)) => Ok(config),
        Err(report) => Err(report.findings().to_vec()),
    }
}

/// Reads a site with the base, and with the groups that it names.
fn read_site(base: &Node, groups: &[(&str, &(Node, PartId))], site: Node) -> Result<Arc<Site>, Vec<Finding>> {
    let mut node = base.clone();
    let shells = groups.iter().map(|(name, (shell, _))| entry(name, shell.clone()));
    node.set_entry("upstreams", table(shells.collect()));
    let mut sites = base.items("site").to_vec();
    sites.push(site);
    node.set_entry("site", Node::list(sites));
    let mut config = read(node)?;
    let mut site = config.sites.pop().unwrap_or_default();
    // Its place changes with other objects.
    let own = Arc::make_mut(&mut site);
    own.line = None;
    own.routes.iter_mut().for_each(|route| route.line = None);
    Ok(site)
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
