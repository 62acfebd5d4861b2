//! The whole configuration: the server's own directives, and the sites.

use crate::control::{Control, check_separate_address};
use crate::error_pages::{ERROR_PAGES, ErrorPages, error_page};
use crate::geo::Geo;
use crate::hint;
use crate::response_headers::ResponseHeaders;
use crate::rewrite::route_table;
use crate::shared_limits::check_shared_limits;
use crate::site::{
    BODY, ENCODED_SLASHES, EncodedSlashes, PATIENCE, Route, Site, branch_nodes, warn_of_unreachable_routes,
};
use crate::site_listeners::{SiteListener, check_hosts, site_listeners, warn_of_unserved_addresses};
use crate::snippet::{self, Snippets};
use crate::stream::{Stream, check_http3_ports, check_streams};
use crate::trusted_proxies::TrustedProxies;
use crate::variable_map::{self, Maps, VariableMap};
use crate::warnings::warn_of_document;
use admission::auth::Auth;
use admission::crawlers::{self, Crawlers};
use admission::maintenance::{self, Maintenance};
use apps::AppSettings;
use apps::directives::AppMap;
use cache::CacheStore;
use certificates::certified_sites::{CertificateSettings, CertifiedSite};
use certificates::directives::{Acme, AcmeChallenge};
use cluster::ClusterTable;
use discovery::DiscoverTable;
use logging::{Log, RequestLog, RequestLogs, Sink};
use net::DictionaryStore;
use net::compress::{self, CompressResponses};
use net::tls::directives::{CertificateSource, ServerTlsShape, SiteTls, Tls};
use net::{ConfiguredListener, EarlyHints, Listen};
use otlp::CollectedMetrics;
use otlp::tracing::{ID_SOURCE, IdSource, Tracing};
use proxy::options::ProxyOptions;
use proxy::upstream_group::Groups;
use serde_json::Value;
use settings::checker::{Checker, shorten};
use settings::directive_table::{all_chapters, brief, table};
use settings::directives;
use settings::document::{self, EnvironmentLookup, TEXT_BYTES_MAX};
use settings::node::{Entry, Node, NodeData};
use settings::report::Report;
use settings::shape::{
    AccountName, Count, Flag, List, Maybe, OneOrMore, PathShape, Shape, Size, TableReference, Text, Time,
    Unlimited, Word,
};
use settings::spelling::nearest_name;
use settings::units::{GIB, KIB, MIB, SPILL_MAX};
use shapes::host::HostPattern;
use shapes::network::{SOURCE, TrustedSource};
use sharing::SharedLimits;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

directives! {
    /// Directives at the top of the file.
    ///
    /// ```toml
    /// listen = ":80"
    ///
    /// [[route]]
    /// files = "public"
    /// ```
    Config in "the file's top level", check config_agrees {
        /// Files to include, by name or by pattern (`"sites/*.toml"`, in the order of their names), relative
        /// to the folder of the file that names them. A name without `*`, `?` and `[` must exist. A pattern
        /// that matches no file causes a warning, unless its folder exists and is empty. Sites, routes and
        /// other lists of included files follow those of this file. A table may take directives from several
        /// files, and no directive may be given twice. Relative paths in included files are relative to the
        /// folder of the first file.
        "include" include: Vec<String> = absent("none"), OneOrMore(Text { what: "the name or pattern of a file", parse: |text| Ok(text.to_owned()) });
        /// Addresses to listen on, or tables with more settings. All sites answer at them, except those with
        /// a `listen` of their own.
        "listen" listen: Vec<ConfiguredListener> = ["127.0.0.1:8080"], OneOrMore(brief::<ConfiguredListener>("address").number("address"));
        /// The user of the server: a name or a number. Only for a server that is started as root: root binds its
        /// addresses and opens its logs; the process that reads from the network, and the applications, run as this
        /// user without capabilities. `"root"` keeps root's rights. A change needs a restart or an upgrade.
        "user" user: Option<String> = absent("the user that starts it; if that is root, `www-data` or, if there is none, `nobody`"),
            Maybe(AccountName { is_group: false });
        /// The group of the server: a name or a number. The groups that have `user` as a member are kept too.
        "group" group: Option<String> = absent("that of `user`"), Maybe(AccountName { is_group: true });
        /// Proxies in front of this server. The server takes the client's address and scheme from the fields that they send.
        "trusted_proxies" trusted_proxies: TrustedProxies = {}, brief::<TrustedProxies>("from");
        /// Clients whose responses have `Server-Timing`, by address. The field reveals which servers are
        /// behind this one, and the cost of requests.
        "server_timing" server_timing: Vec<TrustedSource> = absent("none"), OneOrMore(SOURCE);
        /// Ids of requests. Upstream servers and applications get them as `X-Request-Id`; templates and the access log
        /// have them as `$request_id`. `"trusted"` uses the id that a trusted
        /// proxy sends and makes a new one for all others; `"new"` makes one for every request; `"any"` uses
        /// the ids of all clients. Only ids of at most 128 letters, digits and `-_.~:+/=@` are used. With
        /// `"off"` there is no id, and the field is forwarded as any other.
        "request_ids" request_ids: IdSource = "trusted", ID_SOURCE;
        /// Traces.
        "tracing" tracing: Tracing = {}, table();
        /// Metrics for a collector.
        "metrics" metrics: CollectedMetrics = {}, table();
        /// Threads that serve requests; 0 for one per core that the server may use.
        "threads" threads: u32 = 0, Count { min: 0, max: 1024 };
        /// Whether a lone LF ends a line of a request head, as RFC 9112 section 2.2 allows. If not, such a request is refused:
        /// requests that two servers parse differently allow request smuggling.
        "lenient_bare_lf" lenient_bare_lf: bool = false, Flag;
        /// Encoded slashes and backslashes in paths (`%2F`, `%5C`, and a plain backslash, which some servers treat as a
        /// slash). `"refuse"` answers such requests 400. `"keep"` never decodes them: routes match `%2F` and `%5C`, and
        /// applications and upstream servers get them; `%252F` is another path, and stays `%252F`. An upstream server that
        /// decodes them then sees another path than the routes matched. `files` always refuses them.
        "encoded_slashes" encoded_slashes: EncodedSlashes = "refuse", ENCODED_SLASHES;
        /// Whether requests without TLS are redirected to `https://` (308), if their site has `tls` and an
        /// address speaks it. Not redirected: `/.well-known/acme-challenge/`, requests over Unix sockets, and
        /// requests that a trusted proxy has received through TLS. A site's own `redirect_https` takes
        /// precedence.
        "redirect_https" redirect_https: bool = true, Flag;
        /// Whether `//` in a path is one slash for routes and files; at the start it always is. If not, `/a//b` and
        /// `/a/b` are different paths, and `files` finds nothing at `/a//b`. Applications, upstream servers and
        /// redirects get the path with the slashes that were sent, at the start too, if it leads to the same route as
        /// the merged one, else the merged one.
        "merge_slashes" merge_slashes: bool = true, Flag;
        /// Whether upstream servers may be at loopback, link-local and unspecified addresses, by their names too. `false` leaves such
        /// addresses out: for a server whose upstream servers others name, so that they reach neither services of this machine
        /// nor the metadata of a cloud.
        "local_upstreams" local_upstreams: bool = true, Flag;
        /// Clients that receive the interim response 103 (Early Hints) of applications and upstream servers:
        /// `"http2"`, or `"all"`. Some clients of HTTP/1.1 mistake it for the final response (RFC 8297
        /// section 3).
        "early_hints" early_hints: EarlyHints = "http2", Word(&[("http2", EarlyHints::Http2), ("all", EarlyHints::All)]);
        /// Whether the threads that serve give up the rights to write outside of the folders of temporary files and of the
        /// service's state, to start programs, and to make system calls that serving does not need (Landlock and seccomp,
        /// as far as the kernel has them). A change needs a restart or an upgrade.
        "sandbox" sandbox: bool = true, Flag;
        /// TLS with clients: settings for all sites.
        "tls" tls: Tls = {}, ServerTlsShape;
        /// Certificates that the server obtains by itself.
        "acme" acme: Acme = {}, table();
        /// Servers that are found while this one runs.
        "discover" discover: Option<DiscoverTable> = absent("no containers; the DNS servers of the system"), Maybe(table::<DiscoverTable>());
        /// The set of servers that this one belongs to.
        "cluster" cluster: Option<ClusterTable> = absent("none: this server is by itself"), Maybe(table::<ClusterTable>());
        /// Limits on connections and requests.
        "limits" limits: Limits = {}, table();
        /// Timeouts for clients.
        "timeouts" timeouts: Timeouts = {}, table();
        /// The access log and the error log.
        "log" log: Log = {}, table();
        /// Further access logs.
        "logs" logs: Vec<RequestLog> = [], List(table());
        /// The control interface for administrators.
        "control" control: Control = {}, table();
        /// The cache of open files.
        "open_files" open_files: OpenFiles = {}, table();
        /// The store of cached responses.
        "cache" cache: CacheStore = {}, table();
        /// The store of dictionaries for compression.
        "dictionaries" dictionaries: DictionaryStore = {}, table();
        /// The folder of temporary files: for responses that slow clients have not read yet, and request bodies that are
        /// not complete (see `spill`). The files are unlinked. Choose a folder on a disk rather than in memory.
        "temp_path" temp_path: Option<PathBuf> = absent("TMPDIR, or /var/tmp"), Maybe(PathShape("a folder"));
        /// Groups of upstream servers that several routes share, by name.
        "upstreams" upstreams: Vec<(String, Arc<ProxyOptions>)> = {}, Groups;
        /// Directives shared by several sites or routes, by name: `[snippet.NAME]` has directives of a site
        /// or of a route, and applies to those with `use = "NAME"`. Directives of the site or route itself
        /// take precedence; tables are joined key by key, and lists of tables are concatenated. No directive
        /// may be in two snippets that are used together.
        ///
        /// ```toml
        /// [snippet.api]
        /// limit    = "100/s"
        /// timeouts = { body = "10s" }
        ///
        /// [[route]]
        /// path  = "/v1/*"
        /// use   = "api"
        /// proxy = "http://127.0.0.1:3000"
        /// ```
        "snippet" snippets: Vec<String> = {}, Snippets;
        /// Countries of clients.
        "geo" geo: Option<Geo> = absent("none"), Maybe(table::<Geo>());
        /// Variables whose values depend on those of others, by name.
        "maps" maps: Vec<(String, VariableMap)> = {}, Maps;
        /// Applications, by name.
        "apps" apps: Vec<(String, AppSettings)> = {}, AppMap;
        /// Files to send with errors, by status or by class; a status takes precedence over its class.
        "error_pages" error_pages: ErrorPages = {}, ERROR_PAGES;
        /// Changes to the header fields of every response.
        "response_headers" response_headers: ResponseHeaders = {}, table();
        /// A page in place of all others while every site is under maintenance.
        "maintenance" maintenance: Option<Option<Maintenance>> = absent("none"), maintenance::policy();
        /// Crawlers that every site refuses, and robots.txt. Each site counts for itself.
        "crawlers" crawlers: Option<Option<Crawlers>> = absent("none"), crawlers::policy();
        /// Compression of every response.
        "compress" compress: Option<Option<CompressResponses>> = absent("none"), compress::responses();
    }
    held {
        /// The sites, including the default site that has the routes at the top of the file.
        sites: Vec<Arc<Site>>;
        /// Streams.
        streams: Vec<Stream>;
        /// The addresses that sites have beside those of `listen`.
        site_listeners: Vec<ConfiguredListener>;
        /// The configuration that this one was joined to ([`Config::join`]); `None` if it was read as a whole.
        base: Option<Arc<Config>>;
    }
    also {
        /// Sites.
        "site" = List(table::<Site>()) => |config, sites| config.sites.extend::<Vec<Arc<Site>>>(shared(sites));
        /// Routes of the default site, which answers for every host that no `[[site]]` names.
        "route" = List(route_table::<Route>()) =>
            |config, routes| config.sites.push(Arc::new(Site { routes, ..Site::default() }));
        /// Streams: connections that are relayed as they are.
        "stream" = List(table::<Stream>()) => |config, streams| config.streams = streams;
    }
}

directives! {
    /// Limits on connections and requests.
    ///
    /// ```toml
    /// [limits]
    /// connections = 10_000
    /// body = "unlimited"
    /// ```
    Limits in "`[limits]`", check limits_agree {
        /// Open connections. At the limit, the server closes idle connections and those that have sent
        /// nothing for a second. If there are none, new connections wait in the kernel's queue.
        "connections" connections_max: Option<u32> = absent("what the limit on open files leaves, or half of that where requests are passed on"),
            Maybe(Count { min: 1, max: 10_000_000 });
        /// Open connections of one client: an IPv4 address, or an IPv6 network of 64 bits. Further ones are
        /// closed before a byte is read from them. Connections whose TLS handshake has not ended count too.
        /// Connections of `trusted_proxies` and of Unix sockets are not counted; those with a PROXY protocol
        /// header are counted by the client that it names. 0 for no limit.
        "connections_per_client" connections_per_client_max: u32 = 0, Count { min: 0, max: 1_000_000 };
        /// Bytes that the server may hold in memory for clients and upstream servers: buffers of connections, and
        /// responses that clients have not read yet. From half of it on, buffers stay small; from seven eighths on,
        /// requests are answered 503, and clients that read nothing for 5 seconds are disconnected; at the limit, new
        /// connections wait. Files in memory (`[open_files]`) and applications do not count.
        "memory" memory_bytes_max: Option<u64> = absent("a quarter of the machine's memory, or of its control group's where that is less"),
            Maybe(Size { min: 16 * MIB, max: 1 << 50 });
        /// Requests on one connection before it is closed.
        "requests_per_connection" requests_per_connection_max: Option<u32> = "unlimited",
            Unlimited(Count { min: 1, max: 1_000_000_000 });
        /// Bytes of a request head, including the request line; a longer one is answered 431.
        "head" head_bytes_max: u64 = "16KiB", Size { min: KIB, max: MIB };
        /// Bytes of a request line; a longer one is answered 414.
        "request_line" request_line_bytes_max: u64 = "8KiB", Size { min: 256, max: MIB };
        /// Number of header fields of a request; more are answered 431.
        "headers" headers_max: u32 = 100, Count { min: 1, max: 10_000 };
        /// Bytes of a request body; a longer one is answered 413. Bodies are streamed, so this protects applications
        /// and upstream servers rather than the server's memory.
        "body" body_bytes_max: Option<u64> = "16MiB", BODY;
        /// Bytes of all temporary files in `temp_path` together; see `spill` of `[apps.NAME]` and of `proxy`. 0 turns them
        /// off.
        "spill" spill_bytes_max: u64 = "4GiB", Size { min: 0, max: SPILL_MAX };
        /// The server in which several of these servers count limits together.
        "shared" shared: Option<SharedLimits> = absent("none"), Maybe(table::<SharedLimits>());
    }
}

directives! {
    /// Timeouts for clients.
    ///
    /// ```toml
    /// [timeouts]
    /// idle = "2m"
    /// ```
    Timeouts in "`[timeouts]`" {
        /// Maximum time for a client to send a whole request head, from its first byte, or from the start of
        /// the connection. Then the request is answered 408, or the connection is closed if nothing was sent.
        "head" head: Duration = "15s", PATIENCE;
        /// Maximum time without a byte of the request body from the client. Then the request is answered 408.
        "body" body: Duration = "30s", PATIENCE;
        /// Maximum time in which a client reads nothing of its response. Then the connection is closed.
        "write" write: Duration = "30s", PATIENCE;
        /// Maximum time that a kept-alive connection waits for its next request. Then it is closed.
        "idle" idle: Duration = "75s", Time { min: Duration::from_millis(10), max: DAY };
        /// Maximum time for running requests after SIGTERM. Then their connections are closed.
        "drain" drain: Duration = "30s", Time { min: Duration::ZERO, max: DAY };
    }
}

directives! {
    /// The cache of open files of each route with `files`; the threads share its limits evenly. Changes are noticed:
    /// after `recheck` a file is checked again, and so is the folder that `root` names, because a symbolic link to a
    /// release may be switched at any time. While a folder is missing, requests are answered 404.
    ///
    /// ```toml
    /// [open_files]
    /// entries = 10_000
    /// memory = "64MiB"
    /// ```
    OpenFiles in "`[open_files]`" {
        /// Open files in the cache of each route; 0 turns the cache off.
        "entries" entries_max: u32 = 1024, Count { min: 0, max: 1_000_000 };
        /// Bytes of small files in memory, for each route.
        "memory" memory_bytes_max: u64 = "32MiB", Size { min: 0, max: 64 * GIB };
        /// The largest file that is kept in memory; larger ones are kept open, and sent without copying them.
        "memory_per_file" memory_per_file_bytes_max: u64 = "32KiB", Size { min: 0, max: 16 * MIB };
        /// Time for which information about a file is used before the file is checked again.
        "recheck" recheck: Duration = "1s", Time { min: Duration::ZERO, max: MINUTE };
    }
}

impl Config {
    /// Returns the access logs of all requests, and those of each site.
    pub fn request_logs(&self) -> RequestLogs {
        RequestLogs::new(&self.log, &self.logs, self.sites.iter().map(|site| site.logs.as_slice()))
    }

    /// Returns what concerns the certificates of the server.
    pub fn certificate_settings(&self) -> CertificateSettings<'_> {
        let sites = self.sites.iter().map(|site| CertifiedSite {
            hosts: &site.hosts,
            tls: site.tls.as_ref(),
            line: site.line.as_ref(),
        });
        CertificateSettings {
            acme: &self.acme,
            tls: &self.tls,
            sites: sites.collect(),
            listeners: self.listeners().collect(),
        }
    }

    /// Returns the destinations of all access logs and of the audit log, without duplicates.
    pub fn log_destinations(&self) -> Vec<Sink> {
        logging::sink::destinations(&self.request_logs(), self.control.audit.as_ref())
    }

    /// Returns the files of the access logs, of the audit log and of the error log.
    pub fn log_files(&self) -> Vec<PathBuf> {
        logging::sink::files(self.log_destinations().into_iter().chain([self.log.errors.clone()]))
    }

    /// Reads a configuration. `name` is the name of the file in errors; relative paths are relative to `base`. Returns
    /// the configuration and its warnings, or all errors.
    pub fn parse(text: &str, name: &str, base: &Path) -> Result<(Self, Report), Report> {
        Self::parse_with(text, name, base, &|_| None)
    }

    /// The same for a text that names variables of this environment, and to which other files may be joined
    /// ([`join_files`](crate::join_files)).
    pub fn parse_with(
        text: &str,
        name: &str,
        base: &Path,
        environment: EnvironmentLookup<'_>,
    ) -> Result<(Self, Report), Report> {
        Self::parse_with_sites(text, name, base, environment, &[])
    }

    /// The same with further tables of `[[site]]`, as if they stood at the end of the text.
    pub fn parse_with_sites(
        text: &str,
        name: &str,
        base: &Path,
        environment: EnvironmentLookup<'_>,
        sites: &[Value],
    ) -> Result<(Self, Report), Report> {
        let mut check = Checker::new(text, name, base);
        check.advice = &crate::unknown_keys::ADVICE;
        check.tables_of_keys = tables_of_keys();
        if text.len() > TEXT_BYTES_MAX {
            let title = format!("a configuration of more than {} MiB", TEXT_BYTES_MAX >> 20);
            check.error(&(0..0), title, "this file is too large");
            return Err(Report::finish(check.report));
        }
        let sources = check.report.sources().clone();
        let mut document = document::read_document(&sources, environment, &mut check);
        if let Some(document) = &mut document {
            add_sites(document, sites, text.len().saturating_sub(1));
        }
        Self::read_tree(document, check)
    }

    /// Reads a configuration from a tree instead of a text. Each part of the tree has a line of its own, below `lines`
    /// ([`Node::at`]), which findings name; all of them are kept. Environment variables are not replaced.
    ///
    /// # Errors
    /// The findings.
    pub fn from_node(node: Node, lines: usize, name: &str, base: &Path) -> Result<(Self, Report), Report> {
        let text = "\n".repeat(lines);
        let mut check = Checker::new(&text, name, base);
        check.advice = &crate::unknown_keys::ADVICE;
        check.report.keep_all();
        Self::read_tree(Some(node), check)
    }

    fn read_tree(document: Option<Node>, mut check: Checker<'_>) -> Result<(Self, Report), Report> {
        let config = document.and_then(|mut node| {
            let levels = [table::<Site>().kind(), table::<Route>().kind()].map(|level| level.chapters[0]);
            snippet::apply_snippets(&mut node, &mut check, levels);
            variable_map::declare_maps(&node, &mut check);
            // Groups are read first, because routes name them, wherever they are written.
            if let NodeData::Table(entries) = &mut node.data {
                entries.sort_by_key(|entry| entry.key != "upstreams");
            }
            table::<Self>().read(&node, &mut check)
        });
        snippet::relate_findings_to_uses(&mut check);
        let report = check.report.finish();
        match config {
            Some(mut config) if report.error_count() == 0 => {
                config.sites.iter_mut().for_each(|site| Arc::make_mut(site).add_hidden_routes());
                Ok((config, report))
            }
            _ => Err(report),
        }
    }

    /// The file to send with an error of this status: the site's, or else the server's.
    pub fn error_page(&self, site: Option<usize>, status: u16) -> Option<&Path> {
        let site = site.and_then(|site| self.sites.get(site));
        let own = site.and_then(|site| error_page(&site.error_pages, status));
        own.or_else(|| error_page(&self.error_pages, status))
    }

    /// Returns the authentication rules of all sites and routes, including repetitions.
    pub fn auths(&self) -> impl Iterator<Item = &Auth> {
        self.sites.iter().flat_map(|site| site.auths())
    }
}

fn shared(sites: Vec<Site>) -> Vec<Arc<Site>> {
    sites.into_iter().map(Arc::new).collect()
}

impl Config {
    /// Joins sites, streams and groups of upstream servers that were read one by one to a configuration without them: of
    /// thousands of sites, only those that have changed are read. Each site was read together with `base`, so that it is
    /// checked against it, and has addresses of its own (`listen`).
    ///
    /// The caller ensures what concerns several sites: at each address a host belongs to one site, and an address has the
    /// same settings at all of its sites.
    #[must_use]
    pub fn join(
        base: &Arc<Config>,
        upstreams: Vec<(String, Arc<ProxyOptions>)>,
        sites: Vec<Arc<Site>>,
        streams: Vec<Stream>,
    ) -> Config {
        let mut config = (**base).clone();
        config.upstreams.extend(upstreams);
        let mut known: HashSet<&Listen> = base.listeners().map(|listener| &listener.address).collect();
        for listener in sites.iter().flat_map(|site| &site.listen) {
            if known.insert(&listener.address) {
                config.site_listeners.push(listener.clone());
            }
        }
        drop(known);
        config.sites.extend(sites);
        config.streams.extend(streams);
        config.base = Some(base.clone());
        config
    }

    /// Whether both were joined to the same configuration, so that an equal site has equal settings in both.
    #[must_use]
    pub fn has_base_of(&self, other: &Config) -> bool {
        self.base.as_ref().zip(other.base.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// Adds tables of `[[site]]` to a document, all of them at this place.
fn add_sites(document: &mut Node, sites: &[Value], place: usize) {
    let NodeData::Table(entries) = &mut document.data else { return };
    if sites.is_empty() {
        return;
    }
    let sites = sites.iter().map(|site| Node::from(site.clone()).at(place));
    match entries.iter_mut().find(|entry| entry.key == "site") {
        Some(Entry { value: Node { data: NodeData::List(items), .. }, .. }) => items.extend(sites),
        // Reported when it is read.
        Some(_) => {}
        None => {
            let span = place..place + 1;
            let value = Node { span: span.clone(), data: NodeData::List(sites.collect()) };
            entries.push(Entry { key: "site".to_owned(), key_span: span, value });
        }
    }
}

/// The table of each key.
fn tables_of_keys() -> Vec<(&'static str, &'static str)> {
    let keys = |chapter: TableReference| {
        chapter.directives.into_iter().map(move |article| (article.name, chapter.place))
    };
    all_chapters::<Config>().into_iter().flat_map(keys).collect()
}

/// Checks that the address for other servers of the set is no other listener's.
fn check_peers_address(cluster: Option<&ClusterTable>, others: &[&Listen], node: &Node, check: &mut Checker) {
    let written = node.entry("cluster").and_then(|entry| entry.value.entry("peers"));
    let (Some(own), Some(entry)) = (cluster.and_then(|cluster| cluster.peers), written) else { return };
    if let Some(other) = others.iter().find(|other| other.overlaps(&Listen::Tcp(own))) {
        let title = format!("other servers of the set are answered at `{own}`, where clients connect");
        let finding = check.error(&entry.value.span, title, format!("taken by `{other}` already"));
        finding.help("give `peers` a port of its own");
    }
}

/// Checks that a set of servers may prove its names in a way that does not depend on which of them is asked.
fn check_challenges_of_set(config: &Config, node: &Node, check: &mut Checker) {
    let challenges = &config.acme.challenges;
    let is_alone = !challenges.is_empty() && challenges.iter().all(|one| *one == AcmeChallenge::TlsAlpn01);
    let written = node.entry("acme").and_then(|entry| entry.value.entry("challenge"));
    if let Some(entry) = written.filter(|_| is_alone && config.cluster.is_some()) {
        let title = "only \"tls-alpn-01\" in `challenge`, which a set of servers does not use".to_owned();
        let finding = check.error(&entry.value.span, title, "any of the servers may be asked");
        finding.help("add \"http-01\", with an address for HTTP in `listen`, or \"dns-01\"");
    }
}

fn config_agrees(config: &mut Config, node: &Node, check: &mut Checker) {
    if let Some(entry) = node.entry("group").filter(|_| config.user.is_none()) {
        check.error(&entry.key_span, "`group` without `user`".to_owned(), "there is no `user`");
    }
    check_listeners(config, node, check);
    let sites_have_own = !config.sites.is_empty() && config.sites.iter().all(|site| !site.listen.is_empty());
    let streams_alone = !config.streams.is_empty() && config.sites.is_empty();
    if (streams_alone || sites_have_own) && node.entry("listen").is_none() {
        // There is nothing to serve at the default address.
        config.listen.clear();
    }
    for (listener, item) in config.listen.iter().zip(node.one_or_more("listen")) {
        warn_of_useless_http3(listener, item, check);
    }
    let proxies = config.trusted_proxies.from.clone();
    for (site, item) in config.sites.iter_mut().filter(|site| site.line.is_some()).zip(node.items("site")) {
        for (listener, item) in Arc::make_mut(site).listen.iter_mut().zip(item.one_or_more("listen")) {
            resolve_proxy_protocol(listener, &proxies, item, check);
            warn_of_useless_http3(listener, item, check);
        }
    }
    for (stream, item) in config.streams.iter_mut().zip(node.items("stream")) {
        for (listener, item) in stream.listen.iter_mut().zip(item.one_or_more("listen")) {
            resolve_proxy_protocol(listener, &proxies, item, check);
        }
    }
    let of_sites = site_listeners(&config.listen, &config.sites, node, check);
    check_hosts(&config.listen, &config.sites, node, check);
    config.site_listeners = of_sites.iter().map(|one| one.listener.clone()).collect();
    let all: Vec<ConfiguredListener> = config.listen.iter().chain(&config.site_listeners).cloned().collect();
    check_streams(&config.streams, &all, node, check);
    check_http3_ports(&config.streams, &all, config.tls.http3, node, check);
    set_default_tls(config, node);
    check_tls(config, &of_sites, node, check);
    let streams = config.streams.iter().filter(|stream| !stream.is_udp());
    let streams: Vec<&Listen> = streams.flat_map(|stream| &stream.listen).map(|one| &one.address).collect();
    warn_of_unserved_addresses(&config.listen, &config.sites, &streams, node, check);
    let others: Vec<&Listen> = all.iter().map(|one| &one.address).chain(streams).collect();
    check_separate_address(&config.control, &others, node, check);
    check_peers_address(config.cluster.as_ref(), &others, node, check);
    check_challenges_of_set(config, node, check);
    check_apps_exist(node, check);
    let has_store = config.cluster.is_some();
    if let Some(entry) = node.entry("limits").and_then(|limits| limits.value.entry("shared"))
        && config.limits.shared.as_ref().is_some_and(|shared| shared.redis.is_none())
        && !has_store
    {
        check
            .error(
                &entry.key_span,
                "`[limits.shared]` without `redis`".to_owned(),
                "no server to share them in",
            )
            .help("name a Redis server in `redis`, or the store of the set in `[cluster]`");
    }
    check_shared_limits(config.limits.shared.is_some() || has_store, node, check);
    warn_of_open_access(config, node, check);
    warn_of_document(node, check);
    let Some(routes) = node.entry("route") else { return };
    warn_of_unreachable_top_routes(config, node, check);
    let tables = config.sites.iter().filter(|site| site.line.is_some()).zip(node.items("site"));
    let mut defaults = tables.filter(|(_, table)| table.entry("hosts").is_none());
    if let Some((_, site)) =
        defaults.find(|(site, _)| config.listen.iter().any(|one| site.answers_at(&one.address)))
    {
        let finding =
            check.error(&routes.key_span, "two default sites".to_owned(), "routes of the default site");
        finding.related(site.span.clone(), "another default site: it has no `hosts`");
        finding.help("give the `[[site]]` its `hosts`, or move the routes below it as `[[site.route]]`");
    }
}

/// Warns if a resource meant for few clients is open to everybody.
fn warn_of_open_access(config: &Config, node: &Node, check: &mut Checker) {
    let is_all = config.trusted_proxies.from.iter().any(TrustedSource::includes_every_address);
    if let (true, Some(entry)) = (is_all, node.entry("trusted_proxies")) {
        let title = "every client may say which address and scheme it has".to_owned();
        let finding = check.warning(&entry.value.span, title, "this is every address");
        finding.help("name the networks that proxies are in: `trusted_proxies = [\"10.0.0.0/8\"]`");
    }
}

/// Warns of `http3 = true` at an address that cannot serve HTTP/3.
fn warn_of_useless_http3(listener: &ConfiguredListener, item: &Node, check: &mut Checker) {
    let Some(entry) = item.entry("http3").filter(|_| listener.http3 == Some(true)) else { return };
    let (reason, remedy) = if matches!(listener.address, Listen::Unix(_)) {
        ("HTTP/3 needs a UDP port", "remove it")
    } else if !listener.is_tls() {
        ("HTTP/3 needs TLS", "add `tls = true`, or remove it")
    } else if listener.proxy_protocol.is_some() {
        ("HTTP/3 is not served where `proxy_protocol` is expected", "remove it")
    } else {
        return;
    };
    check.warning(&entry.key_span, "`http3` has no effect here".to_owned(), reason).help(remedy);
}

/// Checks that addresses are unique and that `proxy_protocol = true` has trusted proxies.
fn check_listeners(config: &mut Config, node: &Node, check: &mut Checker) {
    let Some(entry) = node.entry("listen") else { return };
    let items = match node.items("listen") {
        [] => std::slice::from_ref(&entry.value),
        items => items,
    };
    if items.len() != config.listen.len() {
        return;
    }
    for (index, ConfiguredListener { address, .. }) in config.listen.iter().enumerate() {
        if *address == Listen::default() {
            continue; // reported already: it could not be read
        }
        let overlaps = |first: &ConfiguredListener| first.address.overlaps(address);
        let Some(first) = config.listen[..index].iter().position(overlaps) else { continue };
        let before = &config.listen[first].address;
        let title = if before == address {
            format!("`listen` has `{address}` twice")
        } else {
            format!("`listen` has `{address}` beside `{before}`")
        };
        let label = format!("taken by `{before}` already");
        check.error(&items[index].span, title, label).related(items[first].span.clone(), "first given here");
    }
    for (listener, item) in config.listen.iter_mut().zip(items) {
        resolve_proxy_protocol(listener, &config.trusted_proxies.from, item, check);
    }
}

/// Replaces `proxy_protocol = true` by the networks of `trusted_proxies`.
fn resolve_proxy_protocol(
    listener: &mut ConfiguredListener,
    trusted: &[TrustedSource],
    item: &Node,
    check: &mut Checker,
) {
    let Some(sources) = listener.proxy_protocol.as_mut().filter(|sources| sources.is_empty()) else { return };
    sources.extend_from_slice(trusted);
    if let (true, Some(entry)) = (sources.is_empty(), item.entry("proxy_protocol"))
        && !matches!(listener.address, Listen::Unix(_))
    {
        let title = "`proxy_protocol = true` without `trusted_proxies`".to_owned();
        let finding = check.error(&entry.value.span, title, "no proxy to accept it from");
        finding.help("name the networks that the proxy comes from: `proxy_protocol = [\"10.0.0.0/8\"]`");
    }
}

/// Sets the `tls` of sites without one: `[tls] default`, or else the server obtains certificates for sites
/// with names, if an address uses TLS.
fn set_default_tls(config: &mut Config, node: &Node) {
    let default = node.entry("tls").and_then(|entry| entry.value.entry("default"));
    let is_certifiable = |host: &HostPattern| match host {
        HostPattern::Exact(name) => name == "localhost" || name.contains(['.', ':']),
        // It takes a DNS hook.
        HostPattern::Subdomains(_) => false,
    };
    // Sites are in the order of the file, including the site of the top-level routes.
    let mut items = node.items("site").iter();
    for index in 0..config.sites.len() {
        let speaks_tls = config.site_listeners(&config.sites[index]).any(ConfiguredListener::is_tls);
        let is_automatic = default.is_none() && speaks_tls;
        let site = Arc::make_mut(&mut config.sites[index]);
        let says_itself = site.line.is_some() && items.next().is_some_and(|item| item.entry("tls").is_some());
        if says_itself {
            continue;
        }
        site.tls = if is_automatic && site.hosts.iter().any(is_certifiable) {
            Some(SiteTls { certificate: CertificateSource::Auto, ..SiteTls::default() })
        } else {
            config.tls.default_site.clone()
        };
    }
}

/// Checks that TLS addresses have a site with certificates, and that such sites have a TLS address.
fn check_tls(config: &Config, of_sites: &[SiteListener], node: &Node, check: &mut Checker) {
    if check.report.error_count() > 0 {
        return;
    }
    let has_tls = |at: &ConfiguredListener| {
        let mut sites = config.sites.iter().filter(|site| site.tls.is_some());
        sites.any(|site| config.site_listeners(site).any(|listener| listener.address == at.address))
    };
    let top = node.one_or_more("listen").iter().map(|item| &item.span);
    let places = top.chain(of_sites.iter().map(|one| &one.span));
    let mut without = config.listeners().zip(places).filter(|(one, _)| one.is_tls() && !has_tls(one));
    if let Some((listener, at)) = without.next() {
        let title = if config.sites.iter().any(|site| site.tls.is_some()) {
            format!("`{}` speaks TLS, and no site that answers there has `tls`", listener.address)
        } else {
            format!("`{}` speaks TLS, and no site has `tls`", listener.address)
        };
        let finding = check.error(at, title, "with which certificate?");
        finding.help(format!(
            "give a site its certificate: `tls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}`; \
             or write `{{ address = \"{}\", tls = false }}`",
            listener.address
        ));
    }
    let tables = config.sites.iter().filter(|site| site.line.is_some()).zip(node.items("site"));
    let mut unused = tables.filter_map(|(site, table)| Some((site, table.entry("tls")?)));
    let speaks_none =
        |site: &Site| site.tls.is_some() && !config.site_listeners(site).any(ConfiguredListener::is_tls);
    if let Some((site, entry)) = unused.find(|(site, _)| speaks_none(site)) {
        let title = "`tls` without an address that speaks it".to_owned();
        let place = if site.listen.is_empty() { "" } else { " of the site" };
        let finding = check.warning(&entry.key_span, title, "nobody uses this");
        finding.help(format!("add \":443\" to `listen`{place}, or `{{ address = \":8443\", tls = true }}`"));
    }
}

/// Every application that a route names exists.
fn check_apps_exist(node: &Node, check: &mut Checker) {
    let entries = match node.entry("apps").map(|entry| &entry.value.data) {
        Some(NodeData::Table(entries)) => entries.as_slice(),
        _ => &[],
    };
    let names = || entries.iter().map(|entry| entry.key.as_str());
    let sites = node.items("site").iter().flat_map(|site| site.items("route"));
    let routes = node.items("route").iter().chain(sites);
    for route in routes.flat_map(|route| std::iter::once(route).chain(branch_nodes(route))) {
        let Some(entry) = route.entry("app") else { continue };
        let at = entry.value.entry("name").map_or(&entry.value, |entry| &entry.value);
        let NodeData::Text(name) = &at.data else { continue };
        if let Some(app) = entries.iter().find(|entry| entry.key == *name) {
            check_target_exists(&entry.value, &app.value, name, check);
            continue;
        }
        let label = match nearest_name(name, names()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "no such application".to_owned(),
        };
        let title = format!("there is no `[apps.{}]`", shorten(name));
        let finding = check.error(&at.span, title, label);
        if let Some(table) = hint::app_hint(&shorten(name)) {
            finding.help(table);
        }
    }
}

/// The target that a route names exists in the application.
fn check_target_exists(mounted: &Node, app: &Node, name: &str, check: &mut Checker) {
    let Some(Entry { value: Node { span: at, data: NodeData::Text(target) }, .. }) = mounted.entry("target")
    else {
        return;
    };
    let targets = match app.entry("targets").map(|entry| &entry.value.data) {
        Some(NodeData::Table(entries)) => entries.as_slice(),
        _ => &[],
    };
    let names = || targets.iter().map(|entry| entry.key.as_str());
    if names().any(|known| known == target) {
        return;
    }
    let label = match nearest_name(target, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "no such target".to_owned(),
    };
    let title = format!("`[apps.{}]` has no target `{}`", shorten(name), shorten(target));
    check.error(at, title, label);
}

fn warn_of_unreachable_top_routes(config: &Config, node: &Node, check: &mut Checker) {
    let default = config.sites.iter().find(|site| site.hosts.is_empty() && site.line.is_none());
    if let Some(site) = default {
        warn_of_unreachable_routes(&site.routes, node.items("route"), check);
    }
}

fn limits_agree(limits: &mut Limits, node: &Node, check: &mut Checker) {
    if limits.request_line_bytes_max <= limits.head_bytes_max {
        return;
    }
    let Some(entry) = ["request_line", "head"].iter().find_map(|key| node.entry(key)) else { return };
    let title = "`request_line` is larger than `head` in `[limits]`".to_owned();
    check
        .error(&entry.value.span, title, "does not fit")
        .help("the request line is part of the head: raise `head`");
}
