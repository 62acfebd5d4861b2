//! `komainu kubernetes`: serves Gateways and routes of a Kubernetes cluster.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use config::Config;
use engine::memory;
use failure::Failure;
use kubernetes::account::ApiAccount;
use kubernetes::changes::ClusterChange;
use kubernetes::controller_status::SharedStatus;
use kubernetes::objects::ObjectKey;
use kubernetes::options::{GatewayServiceOptions, IngressOptions, TranslateOptions};
use kubernetes::run::{self, ControllerOptions};
use kubernetes::zones::ReplicaPlace;
use net::Listen;
use operator::server_info::ReloadEffect;
use process::config_files::MemoryFiles;
use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value, json};
use settings::node::Node;

use crate::check::reading::{ReadConfig, RereadConfig};
use crate::cli::serve::{InheritedState, run_server};
use crate::cli::values::{LogLevel, count_parser, parse_listen};
use crate::run::lifecycle::PartChange;
use crate::run::start::{ConfigSource, ServerStart};

/// Addresses of `--addresses`.
const ADDRESSES_MAX: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct KubernetesArguments {
    /// Watch this namespace alone [default: all]
    #[arg(long, value_name = "NAMESPACE", default_value = "")]
    pub(crate) namespace: String,
    /// Serve Gateways of this class alone [default: of every class of the controller komainu.dev/gateway-controller]
    #[arg(long, value_name = "NAME")]
    pub(crate) gateway_class: Option<String>,
    /// Serve Ingresses of this IngressClass alone, which need not exist as an object [default: of every class of the controller
    /// komainu.dev/ingress-controller]
    #[arg(long, value_name = "NAME")]
    pub(crate) ingress_class: Option<String>,
    /// Address at which Ingresses are served without TLS
    #[arg(long, value_name = "ADDR", default_value = ":80", value_parser = parse_listen)]
    pub(crate) ingress_http: Listen,
    /// Address at which Ingresses are served through TLS
    #[arg(long, value_name = "ADDR", default_value = ":443", value_parser = parse_listen)]
    pub(crate) ingress_https: Listen,
    /// Secret with the certificate for hosts of Ingresses that name none: NAMESPACE/NAME
    #[arg(long, value_name = "SECRET", value_parser = parse_object)]
    pub(crate) default_certificate: Option<ObjectKey>,
    /// `Strict-Transport-Security` of Ingresses with TLS; `off` for none
    #[arg(long, value_name = "VALUE", default_value = "max-age=31536000; includeSubDomains")]
    pub(crate) ingress_hsts: String,
    /// Network of proxies in front, which say who a client is and whether it uses TLS (X-Forwarded-For, X-Forwarded-Proto). May be
    /// repeated
    #[arg(long, value_name = "NETWORK", value_parser = parse_network)]
    pub(crate) trusted_proxy: Vec<String>,
    /// Credentials for the API server [default: those of the pod, $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Addresses of which each Gateway gets one: FIRST-LAST, or one alone. May be repeated [default: Gateways share all addresses]
    #[arg(long, value_name = "RANGE", value_parser = parse_range)]
    pub(crate) addresses: Vec<AddressRange>,
    /// Address in the status of Gateways that share all addresses: that of the load balancer. May be repeated
    #[arg(long, value_name = "ADDRESS", conflicts_with = "addresses")]
    pub(crate) status_address: Vec<String>,
    /// Make a Service of this type for each Gateway, in its namespace, with the labels and annotations of its `infrastructure`
    #[arg(long, value_name = "TYPE", value_parser = ["ClusterIP", "NodePort", "LoadBalancer"])]
    pub(crate) gateway_services: Option<String>,
    /// Service of these pods, whose endpoints the Services of Gateways get where Gateways share all addresses: NAMESPACE/NAME
    #[arg(long, value_name = "SERVICE", value_parser = parse_object, requires = "gateway_services", conflicts_with = "addresses")]
    pub(crate) own_service: Option<ObjectKey>,
    /// Directives of the server itself, such as [limits], [control] and [cluster]; sites come from the cluster alone
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address of /live and /ready
    #[arg(long, value_name = "ADDR", default_value = ":8081", value_parser = parse_listen)]
    pub(crate) ready: Listen,
    /// Memory that the routes of a namespace may take, and again its Ingresses, by an estimate; what does not fit is answered 500.
    /// `off` for any [default: a quarter of the memory that the server may have]
    #[arg(long, value_name = "SIZE", value_parser = parse_namespace_memory)]
    pub(crate) namespace_memory: Option<NamespaceMemory>,
    /// Zone of this replica, for endpoints with hints [default: $ZONE]
    #[arg(long, value_name = "NAME")]
    pub(crate) zone: Option<String>,
    /// Node of this replica, for endpoints with hints [default: $NODE_NAME]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Use endpoints at loopback addresses: for tests
    #[arg(long, hide = true)]
    pub(crate) loopback_endpoints: bool,
    /// Threads that serve, at most 1024; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count_parser(0..=1024))]
    pub(crate) threads: u32,
    /// Log messages of this level and those above it to stderr
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
    /// Write an access log to stdout
    #[arg(long)]
    pub(crate) access_log: bool,
    /// Serve the dashboard (in a browser), /metrics (for Prometheus) and /v1/status on this address too: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    pub(crate) control: Option<Listen>,
}

fn parse_object(text: &str) -> Result<ObjectKey, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectKey::new(namespace, name))
        }
        _ => Err(format!("{text:?} is not NAMESPACE/NAME")),
    }
}

fn parse_network(text: &str) -> Result<String, String> {
    shapes::network::network(text).map(|_| text.to_owned()).map_err(|fault| fault.message)
}

/// Bytes of `--namespace-memory`; `None` for any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamespaceMemory(Option<u64>);

fn parse_namespace_memory(text: &str) -> Result<NamespaceMemory, String> {
    if text == "off" {
        return Ok(NamespaceMemory(None));
    }
    match config::parse_size(text).map_err(|fault| fault.message)? {
        bytes if bytes < 1 << 20 => Err(format!("{text} is too little: at least 1MiB")),
        bytes => Ok(NamespaceMemory(Some(bytes))),
    }
}

/// First and last address of a range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressRange(IpAddr, IpAddr);

fn parse_range(text: &str) -> Result<AddressRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| format!("{text:?} is not an address"));
    let range = AddressRange(parse(first)?, parse(last)?);
    match range.addresses() {
        Some(addresses) if addresses.len() <= ADDRESSES_MAX => Ok(range),
        _ => Err(format!("a range goes up, and has at most {ADDRESSES_MAX} addresses of one family")),
    }
}

impl AddressRange {
    /// Returns all addresses; `None` if the range goes down, or has too many.
    fn addresses(self) -> Option<Vec<IpAddr>> {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => (false, u128::from(u32::from(address))),
            IpAddr::V6(address) => (true, u128::from(address)),
        };
        let ((is_v6, first), (is_last_v6, last)) = (bits(self.0), bits(self.1));
        if is_v6 != is_last_v6 || last < first || last - first >= ADDRESSES_MAX as u128 {
            return None;
        }
        let address = |bits: u128| match u32::try_from(bits) {
            Ok(bits) if !is_v6 => IpAddr::V4(bits.into()),
            _ => IpAddr::V6(bits.into()),
        };
        Some((first..=last).map(address).collect())
    }
}

/// Returns for how many addresses of Gateways there are descriptors: half of those that the process may have. Each thread has one for an
/// address, and one for its datagrams.
fn addresses_max(config: &Config) -> usize {
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20);
    let threads = engine::options::thread_count(config) as u64;
    usize::try_from(limit / 2 / (2 * threads)).unwrap_or(usize::MAX).max(2)
}

/// The newest configuration that was made of the cluster's objects, and the contents of its files.
type NewestConfig = Arc<Mutex<Option<(Config, MemoryFiles)>>>;

/// Runs `komainu kubernetes`.
pub(crate) fn serve_cluster(
    given: &KubernetesArguments,
    inherited_state: InheritedState,
) -> Result<(), Failure> {
    let InheritedState { inherited, predecessor, inherited_sockets } = inherited_state;
    let account = ApiAccount::find(given.kubeconfig.as_deref())?;
    let own = given.config.as_deref().map_or_else(|| Ok(Map::new()), own_directives)?;
    let config = read_base(base(given, own.clone(), false))?;
    let newest = NewestConfig::default();
    let taken = newest.clone();
    let reread: RereadConfig = Box::new(move || {
        let newest = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (config, files) = newest.ok_or("the cluster's objects have not changed")?;
        Ok(ReadConfig { config, warnings: Vec::new(), text: None, files: Some(files) })
    });
    let status = SharedStatus::default();
    let shown = status.clone();
    let options = ControllerOptions {
        account,
        status,
        namespace: given.namespace.clone(),
        identity: identity(),
        translate: TranslateOptions {
            gateway_class: given.gateway_class.clone(),
            pool: given.addresses.iter().filter_map(|range| range.addresses()).flatten().collect(),
            status_addresses: status_addresses(given),
            namespace_bytes: given.namespace_memory.map_or_else(|| Some(memory::quarter()), |given| given.0),
            addresses_max: Some(addresses_max(&config)),
            allows_loopback: given.loopback_endpoints,
            place: place(given),
            ingress: IngressOptions {
                class: given.ingress_class.clone(),
                http: given.ingress_http.to_string(),
                https: given.ingress_https.to_string(),
                default_certificate: given.default_certificate.clone(),
                hsts: Some(given.ingress_hsts.clone()).filter(|value| value != "off"),
                trusts_proxies: !given.trusted_proxy.is_empty(),
            },
            gateway_services: given
                .gateway_services
                .clone()
                .map(|kind| GatewayServiceOptions { kind, pods: given.own_service.clone() }),
            base: base(given, own, true),
            ..TranslateOptions::default()
        },
    };
    let source: ConfigSource = Box::new(move |server, log| {
        let apply = Box::new(move |change| {
            let outcome = match change {
                ClusterChange::Whole(config, files) => {
                    let files = Arc::unwrap_or_clone(files);
                    *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some((*config, files));
                    (server.reload)()
                }
                ClusterChange::Servers(groups) => (server.change_part)(PartChange::Servers(groups)),
                ClusterChange::Certificates(files) => {
                    (server.change_part)(PartChange::Certificates(Arc::unwrap_or_clone(files)))
                }
            };
            match outcome.effect {
                ReloadEffect::Active | ReloadEffect::PartlyActive => Ok(()),
                ReloadEffect::Unchanged | ReloadEffect::NotBegun => Err(outcome.message),
            }
        });
        run::start(options, apply, log)
    });
    run_server(ServerStart {
        config,
        reread: Some(reread),
        text: None,
        watch: false,
        inherited,
        predecessor,
        inherited_sockets,
        warning: None,
        source: Some(source),
        source_status: Some(Box::new(move || shown.get())),
    })
}

/// Name of this replica: that of the pod.
fn identity() -> String {
    let name = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_default();
    format!("{name}_{}", std::process::id())
}

/// Returns where this replica runs.
fn place(given: &KubernetesArguments) -> ReplicaPlace {
    let named = |flag: &Option<String>, variable: &str| {
        flag.clone().or_else(|| std::env::var(variable).ok()).unwrap_or_default()
    };
    ReplicaPlace { zone: named(&given.zone, "ZONE"), node: named(&given.node, "NODE_NAME") }
}

fn status_addresses(given: &KubernetesArguments) -> Vec<String> {
    if !given.status_address.is_empty() {
        return given.status_address.clone();
    }
    std::env::var("POD_IP").ok().filter(|text| text.parse::<IpAddr>().is_ok()).into_iter().collect()
}

/// Directives that objects of the cluster become.
const OF_THE_CLUSTER: [&str; 6] = ["site", "route", "upstreams", "stream", "listen", "include"];

/// Reads the file of `--config`.
///
/// # Errors
/// The file cannot be read, is not TOML, or has directives that objects of the cluster become.
fn own_directives(path: &Path) -> Result<Map<String, Value>, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("cannot read {name}: {error}")))?;
    let tree = config::directive_tree(&text, &|name| std::env::var(name).ok());
    let Some(Value::Object(table)) = tree else {
        return Err(Failure::new(format!("{name} is not valid TOML"))
            .help(format!("`komainu check -c {name}` shows where")));
    };
    if let Some(foreign) = OF_THE_CLUSTER.iter().find(|key| table.contains_key(**key)) {
        let title = format!("{name} has `{foreign}`, which comes from objects of the cluster");
        return Err(Failure::new(title).help("write a Gateway and routes, and leave it out of this file"));
    }
    Ok(table)
}

/// Returns the directives that do not come from objects: those of `--config`, and those of flags.
fn base(given: &KubernetesArguments, own: Map<String, Value>, is_ready: bool) -> Map<String, Value> {
    let level = match given.log_level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
    };
    let ready = if is_ready { 200 } else { 503 };
    let mut table = own;
    if given.threads > 0 {
        table.insert("threads".to_owned(), json!(given.threads));
    }
    table.insert("redirect_https".to_owned(), json!(false));
    // Tenants name upstream servers: none of them leads to this machine.
    table.insert("local_upstreams".to_owned(), json!(given.loopback_endpoints));
    if !given.trusted_proxy.is_empty() {
        table.insert("trusted_proxies".to_owned(), json!(given.trusted_proxy));
    }
    let access = if given.access_log { "combined" } else { "off" };
    let mut section = |name: &str| match table.entry(name).or_insert_with(|| json!({})) {
        Value::Object(section) => std::mem::take(section),
        _ => Map::new(),
    };
    let mut log = section("log");
    log.entry("level").or_insert_with(|| json!(level));
    log.entry("access").or_insert_with(|| json!(access));
    let mut control = section("control");
    if let Some(listen) = &given.control {
        control.insert("listen".to_owned(), json!(listen.to_string()));
    }
    table.insert("log".to_owned(), Value::Object(log));
    table.insert("control".to_owned(), Value::Object(control));
    let site = json!({
        "listen": [{ "address": given.ready.to_string(), "tls": false }],
        "route": [
            { "path": "/live", "respond": { "body": "live\n" } },
            { "path": "/ready", "respond": { "status": ready, "body": if is_ready { "ready\n" } else { "no configuration yet\n" } } },
        ],
    });
    table.insert("site".to_owned(), json!([site]));
    table
}

fn read_base(table: Map<String, Value>) -> Result<Config, Failure> {
    let read = Config::from_node(Node::from(Value::Object(table)), 1, "kubernetes", Path::new("/"));
    read.map(|(config, _)| config).map_err(|report| Failure::new(report.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_of_the_server_come_from_a_file_and_sites_do_not() {
        let path = std::env::temp_dir().join(format!("komainu-own-{}.toml", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            own_directives(&path)
        };
        let own = read("[limits]\nheaders = 50\n[log]\nlevel = \"warn\"\n").unwrap();
        assert!(read("listen = \":80\"").unwrap_err().to_string().contains("has `listen`"));
        assert!(read("[[site]]\n").unwrap_err().to_string().contains("has `site`"));
        assert!(read("[").unwrap_err().to_string().contains("is not valid TOML"));
        std::fs::remove_file(&path).unwrap();
        assert!(own_directives(&path).is_err());
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            given: KubernetesArguments,
        }
        let given = <Command as clap::Parser>::parse_from(["x", "--control", "127.0.0.1:9090"]).given;
        let config = read_base(base(&given, own, true)).unwrap();
        assert_eq!(config.limits.headers_max, 50);
        assert!(config.control.listen.is_some());
        assert_eq!(base(&given, Map::new(), true)["log"]["level"], "info");
    }

    #[test]
    fn ranges_of_addresses_are_bounded() {
        let all = |text: &str| parse_range(text).ok().and_then(AddressRange::addresses);
        assert_eq!(all("192.0.2.1"), Some(vec!["192.0.2.1".parse().unwrap()]));
        assert_eq!(all("192.0.2.254-192.0.3.1").unwrap().len(), 4);
        assert_eq!(all("2001:db8::1-2001:db8::3").unwrap().len(), 3);
        for refused in ["192.0.2.2-192.0.2.1", "10.0.0.0-10.255.255.255", "10.0.0.1-2001:db8::1", "x"] {
            assert!(parse_range(refused).is_err(), "{refused}");
        }
    }
}
