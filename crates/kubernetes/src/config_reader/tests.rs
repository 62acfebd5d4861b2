use serde_json::{Value, json};

use super::*;
use crate::changes::{ClusterChange, ClusterFiles, change};

fn difference(before: &Config, after: &Config) -> Option<ClusterChange> {
    let files = Arc::new(ClusterFiles::new());
    change((before, &files), (after, &files))
}

/// A base with two groups, and a site for each host, which uses the first group.
fn tree(hosts: &[&str], servers: &[&str]) -> Value {
    let site = |host: &&str| {
        json!({
            "hosts": [host],
            "listen": [{ "address": "127.0.0.1:8090", "tls": false }],
            "route": [{ "proxy": { "upstream": "one" } }],
        })
    };
    let own = json!({ "listen": [{ "address": "127.0.0.1:8091", "tls": false }], "route": [{ "respond": { "status": 200 } }] });
    let mut sites = vec![own];
    sites.extend(hosts.iter().map(site));
    json!({
        "site": sites,
        "upstreams": { "one": { "to": servers }, "two": { "to": ["http://10.0.0.9:80"] } },
    })
}

/// Places are those of the sites in the tree; the first is the base's.
fn placed(tree: &Value) -> Node {
    let mut node = Node::from(tree.clone());
    let sites = node.items("site").to_vec().into_iter().enumerate().map(|(at, site)| site.at(at)).collect();
    node.set_entry("site", Node::list(sites));
    node
}

/// Reads whole trees, part by part.
#[derive(Default)]
struct TreeReader {
    reader: ConfigReader,
    groups: BTreeSet<String>,
    sites: Vec<ReadSite>,
}

impl TreeReader {
    fn counts(&self) -> ReadCounts {
        self.reader.counts()
    }

    fn read(&mut self, mut node: Node) -> Result<Config, Vec<Finding>> {
        let mut take = |key: &str| {
            let NodeData::Table(entries) = &mut node.data else { return None };
            let at = entries.iter().position(|entry| entry.key == key)?;
            Some(entries.remove(at).value.data)
        };
        let Some(NodeData::Table(groups)) = take("upstreams") else { panic!("groups") };
        let Some(NodeData::List(sites)) = take("site") else { panic!("sites") };
        let (own, sites): (Vec<Node>, Vec<Node>) = sites.into_iter().partition(|site| site.span.start == 0);
        node.set_entry("site", Node::list(own));
        self.reader.read_base(node)?;
        let mut changed: Vec<(String, Option<Node>)> =
            std::mem::take(&mut self.groups).into_iter().map(|name| (name, None)).collect();
        changed.retain(|(name, _)| groups.iter().all(|entry| entry.key != *name));
        self.groups = groups.iter().map(|entry| entry.key.clone()).collect();
        changed.extend(groups.into_iter().map(|entry| (entry.key, Some(entry.value))));
        self.reader.read_groups(changed)?;
        self.reader.read_streams(Vec::new())?;
        let (mut read, mut findings) = (Vec::new(), Vec::new());
        let known = std::mem::take(&mut self.sites);
        let find = |_, id| known.iter().find(|site| site.is_of(id)).cloned();
        for site in self.reader.read_sites(sites, &find) {
            match site {
                Ok(site) => read.push(site),
                Err(found) => findings.extend(found),
            }
        }
        self.sites = known;
        if !findings.is_empty() {
            self.sites.extend(read);
            return Err(findings);
        }
        self.sites = read;
        Ok(self.reader.join(self.sites.iter().map(|site| site.site.clone()).collect()))
    }
}

fn counts(bases: u64, groups: u64, sites: u64) -> ReadCounts {
    ReadCounts { bases, groups, sites }
}

#[test]
fn only_parts_that_changed_are_read() {
    let mut reader = TreeReader::default();
    let mut read = |tree: &Value| {
        let config = reader.read(placed(tree)).unwrap();
        (config, reader.counts())
    };
    let first = tree(&["a.test", "b.test", "c.test"], &["http://10.0.0.1:80"]);
    let (before, read_so_far) = read(&first);
    assert_eq!(read_so_far, counts(1, 2, 3));
    let (same, read_so_far) = read(&first);
    assert_eq!(read_so_far, counts(1, 2, 3));
    assert!(difference(&before, &same).is_none());
    let (other_servers, read_so_far) =
        read(&tree(&["a.test", "b.test", "c.test"], &["http://10.0.0.1:80", "http://10.0.0.2:80"]));
    assert_eq!(read_so_far, counts(1, 3, 3));
    let Some(ClusterChange::Servers(changed)) = difference(&before, &other_servers) else {
        panic!("servers")
    };
    assert_eq!((changed.len(), changed[0].0.as_str(), changed[0].1.to.len()), (1, "one", 2));
    let (other_site, read_so_far) = read(&tree(&["a.test", "d.test", "c.test"], &["http://10.0.0.1:80"]));
    assert_eq!(read_so_far, counts(1, 4, 4));
    assert!(matches!(difference(&before, &other_site), Some(ClusterChange::Whole(..))));
    assert!(other_site.has_base_of(&before));
    let is_shared = |at: usize| Arc::ptr_eq(&before.sites[at], &other_site.sites[at]);
    assert_eq!([0, 1, 2, 3].map(is_shared), [true, true, false, true]);
}

#[test]
fn site_depends_on_the_groups_that_it_names() {
    let mut reader = TreeReader::default();
    let mut tree = tree(&["a.test"], &["http://10.0.0.1:80"]);
    let before = reader.read(placed(&tree)).unwrap();
    tree["upstreams"]["two"]["timeouts"] = json!({ "head": "3s" });
    let other = reader.read(placed(&tree)).unwrap();
    assert!(Arc::ptr_eq(&before.sites[1], &other.sites[1]));
    assert!(matches!(difference(&before, &other), Some(ClusterChange::Whole(..))));
    tree["upstreams"]["one"]["timeouts"] = json!({ "head": "3s" });
    let other = reader.read(placed(&tree)).unwrap();
    assert!(!Arc::ptr_eq(&before.sites[1], &other.sites[1]));
}

#[test]
fn faults_have_their_places_and_other_parts_stay_known() {
    let mut reader = TreeReader::default();
    let mut tree = tree(&["a.test", "b.test"], &["http://10.0.0.1:80"]);
    tree["site"][2]["route"][0]["method"] = json!("lower case");
    tree["site"][1]["route"][0]["proxy"]["upstream"] = json!("three");
    let findings = reader.read(placed(&tree)).unwrap_err();
    let places: BTreeSet<usize> = findings.iter().map(|finding| finding.span.start).collect();
    assert_eq!(places, BTreeSet::from([1, 2]));
    tree["site"][1]["route"][0]["proxy"]["upstream"] = json!("two");
    assert_eq!(reader.read(placed(&tree)).unwrap_err()[0].span.start, 2);
    tree["site"][2]["route"][0]["method"] = json!("GET");
    reader.read(placed(&tree)).unwrap();
    assert_eq!(reader.counts(), counts(1, 2, 5));
}

#[test]
fn joined_configuration_is_that_of_the_whole_tree() {
    let tree = tree(&["a.test", "b.test"], &["http://10.0.0.1:80", "http://10.0.0.2:80"]);
    let joined = TreeReader::default().read(placed(&tree)).unwrap();
    let (whole, _) = Config::from_node(placed(&tree), 9, "whole", Path::new("/")).unwrap();
    assert_eq!(joined.upstreams, whole.upstreams);
    assert_eq!(joined.listeners().collect::<Vec<_>>(), whole.listeners().collect::<Vec<_>>());
    let hosts = |config: &Config| config.sites.iter().map(|site| site.hosts.clone()).collect::<Vec<_>>();
    assert_eq!(hosts(&joined), hosts(&whole));
}
