//! Containers with labels to sites. A container sets values of a closed list of directives, and nothing else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value, json};
use shapes::host::HostPattern;

/// Beginning of the labels that concern this server.
const PREFIX: &str = "komainu.";
/// Maximum number of containers that are considered.
const CONTAINERS_MAX: usize = 1_000;
/// Maximum number of hosts of all containers, and of one.
const HOSTS_MAX: usize = 1_000;
const HOSTS_OF_ONE_MAX: usize = 20;
/// Maximum number of labels of a container that concern this server, and bytes of a value.
const LABELS_MAX: usize = 16;
const VALUE_BYTES_MAX: usize = 1_024;
/// Maximum length of a path, in bytes.
const PATH_BYTES_MAX: usize = 256;
/// Label of Compose with the name of the project.
const PROJECT: &str = "com.docker.compose.project";
/// Longest part of a container's name that messages show.
const SHOWN_CHARS_MAX: usize = 64;
/// The words after `komainu.`.
const WORDS: [&str; 12] = [
    "host",
    "path",
    "port",
    "scheme",
    "network",
    "weight",
    "backup",
    "connections",
    "balance",
    "health",
    "strip_prefix",
    "share",
];
const BALANCES: [&str; 6] =
    ["round-robin", "least-requests", "two-choices", "hash:client", "hash:uri", "sticky"];
const SCHEMES: [&str; 3] = ["http", "https", "h2c"];

/// The sites of all containers, and why containers are not served.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct LabelledSites {
    /// A table of `[[site]]` for each host.
    pub(crate) sites: Vec<Value>,
    /// Messages.
    pub(crate) problems: Vec<String>,
}

/// A container that is served.
#[derive(Debug)]
struct LabelledContainer {
    /// Time of its creation and its identifier: the first one of two that contradict each other counts.
    age: (i64, String),
    name: String,
    /// The application that it belongs to.
    application: Application,
    /// Whether other applications may have its hosts too, if they say so themselves.
    shares: bool,
    hosts: Vec<String>,
    path: String,
    server: Value,
    is_backup: bool,
    /// Directives of the route beside its servers.
    route: Map<String, Value>,
}

/// Containers that may have the same hosts: those of a Compose project, or those of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Application {
    Project(String),
    /// Name of the image, without its tag.
    Image(String),
}

/// Order of paths: exact ones first, then long ones before short ones.
type PathOrder = (bool, usize, String);

/// Translates the list of containers of Docker's API. `allowed` are the hosts that containers may have; empty for all.
pub(crate) fn labelled_sites(list: &Value, allowed: &[HostPattern]) -> LabelledSites {
    let mut found = LabelledSites::default();
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut labelled = all.iter().filter(|container| has_labels(container));
    let mut containers = Vec::new();
    for entry in labelled.by_ref().take(CONTAINERS_MAX) {
        match read_container(entry, allowed) {
            Ok(container) => containers.extend(container),
            Err(text) => {
                found.problems.push(format!("the container {} is not served: {text}", name_of(entry)))
            }
        }
    }
    if labelled.next().is_some() {
        found.problems.push(format!("only the first {CONTAINERS_MAX} containers are served"));
    }
    containers.sort_by(|one, other| one.age.cmp(&other.age));
    let mut routes: BTreeMap<String, BTreeMap<PathOrder, Vec<&LabelledContainer>>> = BTreeMap::new();
    let mut owners: BTreeMap<&String, &LabelledContainer> = BTreeMap::new();
    for container in &containers {
        for host in &container.hosts {
            let owner = *owners.entry(host).or_insert(container);
            if owner.application != container.application && !(owner.shares && container.shares) {
                found.problems.push(format!(
                    "the container {} is not served for {host}, which {} of another application has: both need the label \
                     `{PREFIX}share=true`, or another host",
                    container.name, owner.name
                ));
                continue;
            }
            if routes.len() >= HOSTS_MAX && !routes.contains_key(host) {
                found
                    .problems
                    .push(format!("only {HOSTS_MAX} hosts of containers are served: {host} is not"));
                continue;
            }
            let order =
                (container.path.ends_with('*'), usize::MAX - container.path.len(), container.path.clone());
            let group = routes.entry(host.clone()).or_default().entry(order).or_default();
            match group.first() {
                Some(first) if first.route != container.route => found.problems.push(format!(
                    "the container {} is not served for {host}{}: its labels contradict those of {}",
                    container.name, container.path, first.name
                )),
                _ => group.push(container),
            }
        }
    }
    found.sites = routes.into_iter().map(|(host, paths)| site(&host, paths.into_values())).collect();
    found
}

fn site<'c>(host: &str, groups: impl Iterator<Item = Vec<&'c LabelledContainer>>) -> Value {
    let routes = groups.map(|group| {
        let all_are_backups = group.iter().all(|container| container.is_backup);
        let servers = group.iter().map(|container| {
            let mut server = container.server.clone();
            if container.is_backup && !all_are_backups {
                server["backup"] = json!(true);
            }
            server
        });
        let mut servers: Vec<Value> = servers.collect();
        servers.dedup_by(|one, other| one["url"] == other["url"]);
        let mut proxy = group.first().map(|first| first.route.clone()).unwrap_or_default();
        proxy.insert("to".to_owned(), Value::Array(servers));
        let path = group.first().map_or("/*", |first| &first.path);
        json!({ "path": path, "proxy": proxy })
    });
    json!({ "hosts": [host], "route": routes.collect::<Vec<_>>() })
}

fn labels(container: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let labels = container.get("Labels").and_then(Value::as_object).into_iter().flatten();
    labels.filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)))
}

fn has_labels(container: &Value) -> bool {
    labels(container).next().is_some()
}

/// Returns the name of a container for messages.
fn name_of(container: &Value) -> String {
    let name = container.pointer("/Names/0").or_else(|| container.get("Id")).and_then(Value::as_str);
    shown(name.unwrap_or("without a name").trim_start_matches('/'))
}

/// Returns a text of Docker for messages.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS_MAX).collect()
}

/// Reads a container; `None` if it does not serve at present.
///
/// # Errors
/// Why it cannot be served.
fn read_container(container: &Value, allowed: &[HostPattern]) -> Result<Option<LabelledContainer>, String> {
    let text = |name: &str| container.get(name).and_then(Value::as_str).unwrap_or_default();
    let status = text("Status");
    let is_running = container.get("State").is_none_or(|state| state.as_str() == Some("running"));
    if !is_running || status.contains("(unhealthy)") || status.contains("(health: starting)") {
        return Ok(None);
    }
    let mut words = BTreeMap::new();
    for (word, value) in labels(container).take(LABELS_MAX + 1) {
        let value = value.as_str().filter(|value| value.len() <= VALUE_BYTES_MAX);
        let value = value.ok_or_else(|| format!("`{PREFIX}{}` is too long", shown(word)))?;
        if !WORDS.contains(&word) {
            let known: Vec<String> = WORDS.iter().map(|word| format!("{PREFIX}{word}")).collect();
            return Err(format!("there is no label `{PREFIX}{}`, but {}", shown(word), known.join(", ")));
        }
        words.insert(word, value.trim());
    }
    let hosts = hosts(words.get("host").copied(), allowed)?;
    let path = words.get("path").copied().unwrap_or("/*");
    check_path("path", path, true)?;
    let address = address(container, words.get("network").copied())?;
    let port = match words.get("port") {
        Some(text) => number("port", text, 1, 65_535)?,
        None => exposed_port(container)?,
    };
    let scheme = words.get("scheme").copied().unwrap_or("http");
    one_of("scheme", scheme, &SCHEMES)?;
    let address = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
    let mut server = json!({ "url": format!("{scheme}://{address}:{port}") });
    if let Some(text) = words.get("weight") {
        server["weight"] = json!(number("weight", text, 1, 1_000)?);
    }
    if let Some(text) = words.get("connections") {
        server["connections"] = json!(number("connections", text, 1, 1_000_000)?);
    }
    let mut route = Map::new();
    if let Some(text) = words.get("balance") {
        one_of("balance", text, &BALANCES)?;
        route.insert("balance".to_owned(), json!(text));
    }
    if let Some(text) = words.get("health") {
        check_path("health", text, false)?;
        route.insert("health".to_owned(), json!(text));
    }
    if let Some(text) = words.get("strip_prefix") {
        route.insert("strip_prefix".to_owned(), json!(flag("strip_prefix", text)?));
    }
    Ok(Some(LabelledContainer {
        age: (container.get("Created").and_then(Value::as_i64).unwrap_or(0), text("Id").to_owned()),
        name: name_of(container),
        application: application(container),
        shares: words.get("share").map_or(Ok(false), |text| flag("share", text))?,
        hosts,
        path: path.to_owned(),
        server,
        is_backup: words.get("backup").map_or(Ok(false), |text| flag("backup", text))?,
        route,
    }))
}

fn application(container: &Value) -> Application {
    let project = container.get("Labels").and_then(|labels| labels.get(PROJECT)).and_then(Value::as_str);
    if let Some(project) = project.filter(|project| !project.is_empty()) {
        return Application::Project(shown(project));
    }
    let image = container.get("Image").and_then(Value::as_str).unwrap_or_default();
    let image = image.split('@').next().unwrap_or_default();
    // A colon before a slash is that of a registry's port.
    let name = image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(name, _)| name);
    let is_id = name == "sha256";
    Application::Image(if is_id { image } else { name }.to_owned())
}

fn hosts(text: Option<&str>, allowed: &[HostPattern]) -> Result<Vec<String>, String> {
    let text = text.ok_or_else(|| format!("there is no label `{PREFIX}host`"))?;
    let mut hosts = Vec::new();
    for host in text.split(',').map(str::trim) {
        let pattern = HostPattern::parse(host).map_err(|_| format!("{:?} is not a host", shown(host)))?;
        let name = match &pattern {
            HostPattern::Exact(name) => name.clone(),
            HostPattern::Subdomains(suffix) => format!("*{suffix}"),
        };
        let is_allowed = allowed.is_empty()
            || allowed.iter().any(|allowed| match (allowed, &pattern) {
                (allowed, HostPattern::Exact(name)) => allowed.matches_authority(name.as_bytes()),
                (HostPattern::Subdomains(outer), HostPattern::Subdomains(inner)) => {
                    inner.ends_with(outer.as_str())
                }
                _ => false,
            });
        if !is_allowed {
            return Err(format!("containers may not have the host {name} (`hosts` of `[discover]`)"));
        }
        if !hosts.contains(&name) {
            hosts.push(name);
        }
    }
    if hosts.len() > HOSTS_OF_ONE_MAX {
        return Err(format!("it has more than {HOSTS_OF_ONE_MAX} hosts"));
    }
    Ok(hosts)
}

fn address(container: &Value, network: Option<&str>) -> Result<IpAddr, String> {
    let networks = container.pointer("/NetworkSettings/Networks").and_then(Value::as_object);
    let networks: BTreeMap<&String, &Value> = networks.into_iter().flatten().collect();
    let address = |of: &Value| {
        let parse = |name: &str| of.get(name)?.as_str()?.parse::<IpAddr>().ok();
        parse("IPAddress").or_else(|| parse("GlobalIPv6Address")).filter(|ip| is_usable(*ip))
    };
    let mut found = networks.iter().filter(|(name, _)| network.is_none_or(|wanted| **name == wanted));
    found.find_map(|(_, network)| address(network)).ok_or_else(|| match network {
        Some(network) => format!("it has no address in the network {}", shown(network)),
        None => "it has no address of its own".to_owned(),
    })
}

/// Whether a container can have the address.
fn is_usable(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !is_local && !address.is_unspecified() && !address.is_multicast()
}

/// Returns the only port that the container exposes.
fn exposed_port(container: &Value) -> Result<u32, String> {
    let ports = container.get("Ports").and_then(Value::as_array).into_iter().flatten();
    let tcp = ports.filter(|port| port.get("Type").and_then(Value::as_str) == Some("tcp"));
    let mut ports: Vec<u64> = tcp.filter_map(|port| port.get("PrivatePort")?.as_u64()).collect();
    ports.sort_unstable();
    ports.dedup();
    match ports[..] {
        [port] => u32::try_from(port).ok().filter(|port| (1..=65_535).contains(port)),
        _ => None,
    }
    .ok_or_else(|| format!("it exposes {} ports: set `{PREFIX}port`", ports.len()))
}

fn check_path(word: &str, path: &str, may_end_with_star: bool) -> Result<(), String> {
    let plain = if may_end_with_star { path.strip_suffix('*').unwrap_or(path) } else { path };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()+,;=:@".contains(&byte);
    if path.starts_with('/') && path.len() <= PATH_BYTES_MAX && plain.bytes().all(fits) {
        Ok(())
    } else {
        Err(format!("`{PREFIX}{word}` is not a path: {:?}", shown(path)))
    }
}

fn number(word: &str, text: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("`{PREFIX}{word}` is from {min} to {max}, not {:?}", shown(text)))
}

fn flag(word: &str, text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("`{PREFIX}{word}` is `true` or `false`, not {:?}", shown(text)))
}

fn one_of(word: &str, text: &str, words: &[&str]) -> Result<(), String> {
    if words.contains(&text) {
        return Ok(());
    }
    Err(format!("`{PREFIX}{word}` is one of {}, not {:?}", words.join(", "), shown(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str, address: &str, labels: &[(&str, &str)]) -> Value {
        let labels: Map<String, Value> =
            labels.iter().map(|(name, value)| (format!("komainu.{name}"), json!(value))).collect();
        json!({
            "Id": name, "Names": [format!("/{name}")], "Created": name.len(), "Labels": labels, "State": "running",
            "Status": "Up 2 minutes", "Ports": [{ "PrivatePort": 3000, "Type": "tcp" }, { "PrivatePort": 9, "Type": "udp" }],
            "NetworkSettings": { "Networks": { "b": { "IPAddress": address, "GlobalIPv6Address": "" } } },
        })
    }

    fn sites(containers: Vec<Value>) -> LabelledSites {
        labelled_sites(&Value::Array(containers), &[])
    }

    #[test]
    fn containers_of_a_host_share_its_routes() {
        let found = sites(vec![
            container("one", "172.17.0.2", &[("host", "shop.test, www.shop.test")]),
            container("two", "172.17.0.3", &[("host", "Shop.test."), ("weight", "5"), ("port", "80")]),
            container(
                "api",
                "fd00::2",
                &[
                    ("host", "shop.test"),
                    ("path", "/api/*"),
                    ("strip_prefix", "true"),
                    ("health", "/up"),
                    ("scheme", "h2c"),
                ],
            ),
            container("other", "172.17.0.9", &[]),
        ]);
        assert_eq!(found.problems, [""; 0]);
        let one = json!({ "url": "http://172.17.0.2:3000" });
        assert_eq!(
            found.sites,
            [
                json!({ "hosts": ["shop.test"], "route": [
                { "path": "/api/*", "proxy": {
                    "to": [{ "url": "h2c://[fd00::2]:3000" }], "health": "/up", "strip_prefix": true,
                } },
                { "path": "/*", "proxy": { "to": [one, { "url": "http://172.17.0.3:80", "weight": 5 }] } },
            ] }),
                json!({ "hosts": ["www.shop.test"], "route": [{ "path": "/*", "proxy": { "to": [one] } }] }),
            ]
        );
    }

    #[test]
    fn host_belongs_to_the_application_of_its_oldest_container() {
        let labelled = |name: &str, address: &str, labels: &[(&str, &str)], (key, value): (&str, &str)| {
            let mut one = container(name, address, labels);
            match key {
                "Image" => one["Image"] = json!(value),
                _ => one["Labels"][PROJECT] = json!(value),
            }
            one
        };
        let host = ("host", "a.test");
        let share = ("share", "true");
        let (image, project) = (|name| ("Image", name), |name| ("project", name));
        for (first, second, is_served) in [
            ((image("shop:1"), false), (image("shop:2@sha256:00"), false), true),
            ((image("r.test:5000/shop"), false), (image("r.test:5000/shop:2"), false), true),
            ((image("r.test:5000/shop"), false), (image("r.test:5000/other"), false), false),
            ((image("sha256:01"), false), (image("sha256:02"), false), false),
            ((image("shop"), false), (image("other"), false), false),
            ((image("shop"), true), (image("other"), false), false),
            ((image("shop"), false), (image("other"), true), false),
            ((image("shop"), true), (image("other"), true), true),
            ((project("shop"), false), (project("shop"), false), true),
            ((project("shop"), false), (project("other"), false), false),
            ((project("shop"), false), (image("shop"), false), false),
        ] {
            let labels = |shares: bool, path| {
                let mut labels = vec![host, ("path", path)];
                labels.extend(shares.then_some(share));
                labels
            };
            for path in ["/*", "/login"] {
                let found = sites(vec![
                    labelled("second", "172.17.0.3", &labels(second.1, path), second.0),
                    labelled("first", "172.17.0.2", &labels(first.1, "/*"), first.0),
                ]);
                let text = serde_json::to_string(&found.sites).unwrap();
                assert!(text.contains("172.17.0.2"), "{text}");
                assert_eq!(text.contains("172.17.0.3"), is_served, "{first:?} {second:?} {text}");
                assert_eq!(found.problems.is_empty(), is_served, "{:?}", found.problems);
                assert!(found.problems.iter().all(|text| text.contains("komainu.share=true")));
            }
        }
        // Another container has the other host of the one that is refused.
        let found = sites(vec![
            labelled("a", "172.17.0.2", &[host], image("shop")),
            labelled("bb", "172.17.0.3", &[("host", "a.test,b.test")], image("other")),
            labelled("ccc", "172.17.0.4", &[("host", "*.test")], image("third")),
        ]);
        let hosts: Vec<&str> = found.sites.iter().filter_map(|site| site["hosts"][0].as_str()).collect();
        assert_eq!((hosts, found.problems.len()), (vec!["*.test", "a.test", "b.test"], 1));
    }

    #[test]
    fn containers_that_do_not_serve_are_left_out() {
        let mut all = vec![];
        for (field, value) in
            [("State", "exited"), ("Status", "Up (unhealthy)"), ("Status", "Up (health: starting)")]
        {
            let mut one = container("one", "172.17.0.2", &[("host", "a.test")]);
            one[field] = json!(value);
            all.push(one);
        }
        assert_eq!(sites(all), LabelledSites::default());
    }

    #[test]
    fn labels_set_values_of_a_closed_list() {
        let refused = |labels: &[(&str, &str)], part: &str| {
            let found = sites(vec![container("one", "172.17.0.2", labels)]);
            assert!(found.sites.is_empty(), "{labels:?}");
            assert!(found.problems[0].contains(part), "{:?}", found.problems);
        };
        refused(&[("path", "/")], "no label `komainu.host`");
        let long = "a".repeat(VALUE_BYTES_MAX + 1);
        for (word, value, part) in [
            ("files", "/etc", "no label `komainu.files`"),
            ("host", "b.test", "is not a host"),
            ("path", "api", "is not a path"),
            ("path", "/a b", "is not a path"),
            ("path", "/a*b", "is not a path"),
            ("path", "/\"", "is not a path"),
            ("health", "/*", "is not a path"),
            ("port", "0", "from 1 to 65535"),
            ("port", "65536", "from 1 to 65535"),
            ("scheme", "unix", "one of"),
            ("network", "other", "no address in the network"),
            ("weight", "0", "from 1 to 1000"),
            ("connections", "-1", "from 1 to"),
            ("balance", "hash:header:X", "one of"),
            ("strip_prefix", "yes", "`true` or `false`"),
            ("backup", "1", "`true` or `false`"),
            ("path", &long, "too long"),
        ] {
            let host = if word == "host" { "a..test" } else { "a.test" };
            refused(&[("host", host), (word, if word == "host" { host } else { value })], part);
        }
    }

    #[test]
    fn hosts_are_those_that_the_configuration_allows() {
        let allowed = [HostPattern::parse("*.apps.test").unwrap(), HostPattern::parse("a.test").unwrap()];
        let served = |host: &str| {
            let list = json!([container("one", "172.17.0.2", &[("host", host)])]);
            labelled_sites(&list, &allowed).problems.is_empty()
        };
        assert!(
            served("a.test") && served("x.apps.test") && served("*.apps.test") && served("*.x.apps.test")
        );
        assert!(!served("b.test") && !served("apps.test") && !served("*.test") && !served("a.test,b.test"));
        assert!(!served("x.apps.test.evil.test"));
    }

    #[test]
    fn first_of_two_contradicting_containers_is_served() {
        let found = sites(vec![
            container("later", "172.17.0.3", &[("host", "a.test"), ("health", "/other")]),
            container("one", "172.17.0.2", &[("host", "a.test"), ("health", "/up"), ("backup", "true")]),
        ]);
        assert!(found.problems[0].contains("the container later is not served for a.test/*"), "{found:?}");
        let to = json!([{ "url": "http://172.17.0.2:3000" }]);
        assert_eq!(found.sites[0]["route"][0]["proxy"]["to"], to, "not a backup of nothing");
    }

    #[test]
    fn hostile_lists_are_bounded() {
        for list in [
            json!(null),
            json!({}),
            json!([1, null, [], {}]),
            json!([{ "Labels": [] }, { "Labels": { "komainu.host": 1 } }]),
        ] {
            assert!(labelled_sites(&list, &[]).sites.is_empty());
        }
        let many = |count: usize| (0..count).map(|at| format!("h{at}.test")).collect::<Vec<_>>().join(",");
        let found = sites(vec![container("one", "172.17.0.2", &[("host", &many(HOSTS_OF_ONE_MAX + 1))])]);
        assert!(found.problems[0].contains("more than 20 hosts"));
        let of = |at: usize| container(&format!("c{at}"), "172.17.0.2", &[("host", &format!("h{at}.test"))]);
        let found = sites((0..CONTAINERS_MAX + 5).map(of).collect());
        assert_eq!((found.sites.len(), found.problems.len()), (CONTAINERS_MAX, 1));
        for address in ["0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "x", ""] {
            assert!(
                sites(vec![container("one", address, &[("host", "a.test")])]).sites.is_empty(),
                "{address}"
            );
        }
        let name = format!("a\u{1b}[31m{}", "x".repeat(1_000));
        let found = sites(vec![container(&name, "172.17.0.2", &[("x", "")])]);
        assert!(found.problems[0].len() < 500 && !found.problems[0].contains('\u{1b}'));
    }
}
