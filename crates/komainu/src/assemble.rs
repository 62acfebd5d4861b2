//! From a checked configuration to what serves: the one place where both are known.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use config::matcher::Routes;
use config::{Action, Config, StatusPattern, Template};
use files::Files;
use http::{Coding, Fields, Name, Status};
use net::{Bind, Cidr, Core, ErrorPages, FieldEdits, Listen, Page, Sources};
use proxy::{Group, News};

use crate::clients::Introducers;
use crate::hosting::{self, Handles, Mounted};
use crate::memory;
use crate::notice::Notices;
use crate::router::{Edits, Handler, Route, Strip, Table, TemplateEdits};
use crate::upstreams::Groups;

/// Error pages are held in memory; a larger one is refused when the server starts.
const PAGE_BYTES_MAX: u64 = 1024 * 1024;
/// Descriptors kept at most for what is not a connection: listeners, logs, epolls, workers, files on their way. Of a small
/// limit it is an eighth, but never fewer than [`Descriptors::new`] counts.
const DESCRIPTORS_KEPT_MAX: u64 = 256;
/// Of those, what every server needs.
const DESCRIPTORS_BASE: u64 = 24;
/// What a core and a process of an application need.
const DESCRIPTORS_PER_CORE: u64 = 2;
const DESCRIPTORS_PER_PROCESS: u64 = 6;
/// So many connections are tried for at least, whatever the limit.
const CONNECTIONS_MIN: u64 = 16;
/// A limit that leaves fewer connections than this is worth a warning.
const CONNECTIONS_FEW: u64 = 1024;

/// How the descriptors that the process may have are shared out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// The limit on open files.
    limit: u64,
    /// Kept for the server itself.
    kept: u64,
    /// Kept for files that are held open.
    files: u64,
    /// What a connection needs: two where requests are passed on.
    per_connection: u64,
}

impl Descriptors {
    /// Shares out `limit` descriptors.
    pub(crate) fn new(config: &Config, limit: u64) -> Descriptors {
        let routes = || config.sites.iter().flat_map(|site| &site.routes);
        let of_files = routes().filter(|route| matches!(route.action, Action::Files(_))).count() as u64;
        let files_open = u64::from(config.open_files.entries_max).saturating_mul(of_files);
        let cores = threads(config) as u64;
        let processes = |app: &config::App| {
            app.workers.as_ref().map_or(cores.max(2), |workers| u64::from(workers.max)) + 1
        };
        let processes: u64 = config.apps.iter().map(|(_, app)| processes(app)).sum();
        let needed = DESCRIPTORS_BASE
            + cores * (DESCRIPTORS_PER_CORE + listens(config).len() as u64)
            + processes * DESCRIPTORS_PER_PROCESS;
        // A request that is passed on needs a second connection.
        let passes_on = |action: &Action| matches!(action, Action::Proxy(_));
        let passing_on =
            routes().any(|route| passes_on(&route.action) || route.otherwise.iter().any(passes_on));
        Descriptors {
            limit,
            kept: needed.max((limit / 8).min(DESCRIPTORS_KEPT_MAX)),
            files: files_open.min(limit / 8),
            per_connection: if passing_on { 2 } else { 1 },
        }
    }

    /// The connections that there is room for.
    fn connections(&self) -> u64 {
        self.limit.saturating_sub(self.kept + self.files) / self.per_connection
    }

    /// What to say of it at the start.
    pub(crate) fn notice(&self, config: &Config) -> (config::Level, String) {
        let Descriptors { limit, kept, files, .. } = self;
        let room = self.connections();
        let twice = if self.per_connection == 2 { ", two for each connection that is passed on" } else { "" };
        let wanted = config.limits.connections_max.map(u64::from);
        let room_for = match wanted {
            Some(wanted) if wanted > room => {
                format!("has room for {room} connections, fewer than `limits.connections` = {wanted}")
            }
            _ => format!("has room for {room} connections"),
        };
        let text = format!(
            "the limit on open files, {limit}, {room_for} ({kept} are kept for the server, {files} for files{twice})"
        );
        if room >= wanted.unwrap_or(CONNECTIONS_FEW) {
            return (config::Level::Info, text);
        }
        let remedy = "raise it with `LimitNOFILE=` in the systemd unit, or `ulimit -n`";
        (config::Level::Warn, format!("{text}: {remedy}"))
    }
}

/// The engine's options.
pub(crate) fn engine(config: &Config, descriptors: &Descriptors) -> net::Options {
    let limits = &config.limits;
    let room = descriptors.connections().max(CONNECTIONS_MIN) as usize;
    let connections_max = limits.connections_max.map_or(room, |max| max as usize);
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 4);
    net::Options {
        threads: threads(config),
        limits: net::Limits {
            connections_max,
            requests_per_connection_max: limits.requests_per_connection_max.unwrap_or(0),
            head: http::Limits {
                head_bytes_max: limits.head_bytes_max as usize,
                start_line_bytes_max: limits.request_line_bytes_max as usize,
                fields_max: limits.headers_max as usize,
                bare_lf: config.lenient_bare_lf,
            },
            body_bytes_max: limits.body_bytes_max.unwrap_or(u64::MAX),
        },
        timeouts: net::Timeouts {
            head_ms: ms(config.timeouts.head),
            body_ms: ms(config.timeouts.body),
            write_ms: ms(config.timeouts.write),
            idle_ms: ms(config.timeouts.idle),
            drain_ms: ms(config.timeouts.drain),
        },
        memory: net::MemoryBudget::new(limits.memory_bytes_max.unwrap_or_else(memory::share)),
        release_memory: Some(memory::release),
        ..net::Options::default()
    }
}

/// How many threads serve. Beside applications too, one for each processor: on two of them a single one was measured to
/// cost a request no less, and to answer fewer of them.
pub(crate) fn threads(config: &Config) -> usize {
    match config.threads {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        threads => threads as usize,
    }
}

/// What to listen on.
pub(crate) fn listens(config: &Config) -> Vec<Listen> {
    let listens = |listener: &config::Listener| {
        let sources = listener.proxy_protocol.as_ref().map(|from| Sources {
            // Who may open the socket's file may speak.
            unix: matches!(listener.address, config::Listen::Unix(_)),
            ..sources(from)
        });
        let listen = move |at| Listen { at, proxy_protocol: sources.clone() };
        binds(&listener.address).into_iter().map(listen)
    };
    config.listen.iter().flat_map(listens).collect()
}

fn binds(address: &config::Listen) -> Vec<Bind> {
    match address {
        config::Listen::Tcp(address) => vec![Bind::Tcp(*address)],
        config::Listen::Any(port) => vec![Bind::Any(*port)],
        config::Listen::Unix(path) => vec![Bind::Unix(path.clone())],
        config::Listen::Localhost(port) => {
            let mut binds = vec![Bind::Tcp((std::net::Ipv4Addr::LOCALHOST, *port).into())];
            let v6 = std::net::SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, *port));
            // Where the machine has IPv6; and with port 0 one port is enough.
            if *port != 0 && std::net::TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_ok() {
                binds.push(Bind::Tcp(v6));
            }
            binds
        }
    }
}

fn sources(from: &[config::Source]) -> Sources {
    let mut sources = Sources::default();
    for source in from {
        match source {
            config::Source::Unix => sources.unix = true,
            config::Source::Network(network) => sources.networks.push(
                Cidr::parse(&network.to_string()).expect("the configuration holds networks that are valid"),
            ),
        }
    }
    sources
}

/// Who may tell of clients; `None` where nobody may.
fn introducers(trusted: &config::TrustedProxies) -> Option<Introducers> {
    let dialect = match trusted.fields {
        config::ForwardedFields::XForwarded => http::Dialect::XForwarded,
        config::ForwardedFields::Standard => http::Dialect::Standard,
    };
    (!trusted.from.is_empty()).then(|| Introducers { sources: sources(&trusted.from), dialect })
}

/// A configuration, and the state of its upstream groups: what all cores share.
pub(crate) struct Plan {
    pub(crate) config: Config,
    groups: Groups,
}

impl Plan {
    /// Prepares a configuration, which may follow another one.
    ///
    /// # Errors
    /// A folder, an error page or a certificate that cannot be opened, by name.
    pub(crate) fn new(config: Config, before: Option<&Plan>, cores: usize) -> io::Result<Plan> {
        let before = before.map(|plan| plan.groups.shared.as_slice()).unwrap_or_default();
        let plan = Plan { groups: Groups::new(&config, before)?, config };
        for (name, app) in &plan.config.apps {
            hosting::options(name, app)?;
        }
        // What the cores will do again: here it can still be told.
        table(&plan, None, cores)?;
        Ok(plan)
    }
}

/// Where a table serves: a core with its ways to the applications, and the error log.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub(crate) core: &'a Core,
    pub(crate) handles: &'a Handles,
    pub(crate) notices: &'a Notices,
    /// The core's part of the groups that it serves by now.
    pub(crate) groups: &'a RefCell<Vec<Group>>,
}

/// What one core serves by. Without a seat it only shows whether it can be made: its proxies and applications answer nothing.
///
/// # Errors
/// A folder or an error page that cannot be opened, by name.
pub(crate) fn table(plan: &Plan, seat: Option<Seat<'_>>, cores: usize) -> io::Result<Table> {
    let config = &plan.config;
    let mut sites = Vec::new();
    let mut pages = Vec::new();
    let mut edits = Vec::new();
    let groups = seat.map(|seat| groups(plan, seat)).unwrap_or_default();
    if let Some(seat) = seat {
        seat.handles.let_go();
    }
    for (site_index, site) in config.sites.iter().enumerate() {
        let route = |index| self::route(plan, seat, &groups, (site_index, index), cores);
        let routes = (0..site.routes.len()).map(route);
        sites.push(routes.collect::<io::Result<Vec<Route>>>()?);
        pages.push(error_pages([&site.error_pages, &config.error_pages])?);
        edits.push(self::edits(&config.settings(Some(site_index), None).response_headers));
    }
    pages.push(error_pages([&config.error_pages])?);
    edits.push(self::edits(&config.settings(None, None).response_headers));
    let introducers = introducers(&config.trusted_proxies);
    Ok(Table { routes: Routes::compile(&config.sites), sites, pages, edits, introducers })
}

/// This core's part of each group of upstream servers; those that are there already are kept.
fn groups(plan: &Plan, seat: Seat<'_>) -> Vec<Group> {
    let before = seat.groups.take();
    let group = |shared| {
        if let Some(group) = before.iter().find(|group| group.is_of(shared)) {
            return group.clone();
        }
        let notices = seat.notices.clone();
        let tell = Box::new(move |news: &News<'_>| notices.upstream(news));
        Group::telling(seat.core, shared, tell)
    };
    let groups: Vec<Group> = plan.groups.shared.iter().map(group).collect();
    seat.groups.replace(groups.clone());
    groups
}

fn route(
    plan: &Plan,
    seat: Option<Seat<'_>>,
    groups: &[Group],
    (site, index): (usize, usize),
    cores: usize,
) -> io::Result<Route> {
    let config = &plan.config;
    let route = &config.sites[site].routes[index];
    let settings = config.settings(Some(site), Some(index));
    let mut strip = Vec::new();
    let not_found =
        || Handler::Respond { status: Status::NOT_FOUND, fields: Fields::new(), body: Vec::new() };
    let proxy = || {
        let way = plan.groups.of(site, index);
        let group = way.and_then(|way| Some(groups.get(way.group)?.proxy(&way.options)));
        group.map_or_else(not_found, Handler::Proxy)
    };
    let stripped = |prefix: &config::StripPrefix| match prefix {
        config::StripPrefix::None => Vec::new(),
        config::StripPrefix::OfRoute => route.prefix().unwrap_or_default().as_bytes().to_vec(),
        config::StripPrefix::Text(text) => text.as_bytes().to_vec(),
    };
    let app = |app: &config::Mounted| {
        let prefix = stripped(&app.strip_prefix);
        let target = app.target.clone().unwrap_or_default().into_bytes();
        let handle = seat.and_then(|seat| seat.handles.of(&app.name));
        handle.map_or_else(not_found, |app| Handler::App(Mounted { app, prefix, target }))
    };
    let handler = match &route.action {
        Action::NotFound => not_found(),
        Action::Proxy(_) => proxy(),
        Action::App(mounted) => app(mounted),
        Action::Files(files) => {
            strip = stripped(&files.strip_prefix);
            let mut options = file_options(config, files, cores);
            options.root_report = seat.map(|seat| {
                let notices = seat.notices.clone();
                files::RootReport(Arc::new(move |path, state| notices.root(path, state)))
            });
            Handler::Files(Box::new(Files::new(options)?))
        }
        Action::Redirect(redirect) => {
            Handler::Redirect { to: redirect.to.clone(), status: status(redirect.status) }
        }
        Action::Respond(respond) => {
            let mut fields = Fields::new();
            fields.push(Name::ContentType, respond.media_type.as_bytes());
            Handler::Respond {
                status: status(respond.status),
                fields,
                body: respond.body.clone().into_bytes(),
            }
        }
    };
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 4);
    Ok(Route {
        handler,
        otherwise: route.otherwise.as_ref().map(|action| match action {
            Action::App(mounted) => app(mounted),
            _ => proxy(),
        }),
        strip: Strip(strip),
        prefix: route.prefix().map(|prefix| [prefix.as_bytes(), b"/"].concat()).unwrap_or_default(),
        body_bytes_max: settings.body_bytes_max.unwrap_or(u64::MAX),
        body_ms: ms(settings.body_timeout),
        write_ms: ms(settings.write_timeout),
        edits: edits(&settings.response_headers),
    })
}

fn status(code: u16) -> Status {
    Status::of(code).expect("the configuration holds statuses of three digits")
}

fn edits(levels: &[&config::ResponseHeaders]) -> Edits {
    if levels.is_empty() {
        return Edits::None;
    }
    let templates: Vec<TemplateEdits> = levels
        .iter()
        .map(|level| TemplateEdits {
            remove: level.remove.clone(),
            set: level.set.clone(),
            add: level.add.clone(),
        })
        .collect();
    match fixed(&templates) {
        Some(edits) => Edits::Fixed(Rc::new(edits)),
        None => Edits::Templates(templates),
    }
}

/// The edits, where no value depends on the request.
fn fixed(levels: &[TemplateEdits]) -> Option<FieldEdits> {
    let mut depends = false;
    let edits = TemplateEdits::made(levels, |fields, name, template| {
        let text = match template.parts.as_slice() {
            [] => "",
            [config::Part::Text(text)] => text,
            _ => return depends = true,
        };
        fields.try_push(name.as_bytes(), text.as_bytes()).expect("the configuration checked it");
    });
    (!depends).then_some(edits)
}

fn file_options(config: &Config, files: &config::Files, cores: usize) -> files::Options {
    let coding = |coding: &config::Coding| match coding {
        config::Coding::Brotli => Coding::Brotli,
        config::Coding::Zstd => Coding::Zstd,
        config::Coding::Gzip => Coding::Gzip,
    };
    let open = &config.open_files;
    files::Options {
        roots: files.root.clone(),
        index: files.index.clone(),
        candidates: files.candidates.iter().map(candidate).collect(),
        fallback: files.fallback.clone(),
        listing: files.listing,
        hidden: files.hidden,
        symlinks: match files.symlinks {
            config::Symlinks::Off => files::Symlinks::Inside,
            config::Symlinks::OwnerMatch => files::Symlinks::OwnerMatch,
            config::Symlinks::On => files::Symlinks::Follow,
        },
        cache_control: files.cache_control.iter().map(cache_rule).collect(),
        precompressed: files.precompressed.iter().map(coding).collect(),
        compression: files.compress.as_ref().map(|compress| files::Compression {
            codings: compress.codings.iter().map(coding).collect(),
            bytes_min: compress.min_bytes,
            bytes_max: compress.max_bytes,
            effort: match compress.effort {
                config::Effort::Fast => files::Effort::Fast,
                config::Effort::Balanced => files::Effort::Balanced,
                config::Effort::Small => files::Effort::Small,
            },
            media: compress.types.clone(),
        }),
        charset: files.charset.clone(),
        ranges_max: files.ranges_max as usize,
        cache: files::CacheLimits {
            // Fewer than there are threads must not turn it off.
            entries_max: (open.entries_max as usize).div_ceil(cores),
            bytes_max: open.memory_bytes_max / cores as u64,
            file_bytes_max: open.memory_per_file_bytes_max,
            revalidate_ms: u64::try_from(open.recheck.as_millis()).unwrap_or(u64::MAX),
            ..files::CacheLimits::default()
        },
        ..files::Options::default()
    }
}

/// `$path` is the one variable that a candidate may name.
fn candidate(template: &Template) -> String {
    let part = |part: &config::Part| match part {
        config::Part::Text(text) => text.clone(),
        config::Part::Variable(variable) => format!("${}", variable.name()),
    };
    template.parts.iter().map(part).collect()
}

fn cache_rule((applies, value): &(config::FileMatch, String)) -> files::CacheRule {
    let applies = match applies {
        config::FileMatch::All => files::Applies::All,
        config::FileMatch::Type(media) => files::Applies::Media(media.clone()),
        config::FileMatch::Path(pattern) => {
            let pattern = pattern.clone();
            files::Applies::Path(Arc::new(move |path| pattern.matches(path)))
        }
    };
    files::CacheRule { applies, value: value.clone() }
}

/// The pages of several levels, the nearest first.
fn error_pages<const N: usize>(levels: [&config::ErrorPages; N]) -> io::Result<Option<Rc<ErrorPages>>> {
    let mut pages = ErrorPages::default();
    let mut any = false;
    for level in levels.into_iter().rev() {
        for (pattern, path) in level {
            let page = page(path)?;
            any = true;
            match pattern {
                StatusPattern::One(code) => pages.insert(*code, page),
                StatusPattern::Class(class) => pages.insert_class(u16::from(*class), page),
            }
        }
    }
    Ok(any.then(|| Rc::new(pages)))
}

fn page(path: &Path) -> io::Result<Page> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot read the error page {}: {error}", path.display()))
    };
    if std::fs::metadata(path).map_err(named)?.len() > PAGE_BYTES_MAX {
        return Err(named(io::Error::other("larger than 1 MiB")));
    }
    let body = std::fs::read(path).map_err(named)?;
    let content_type = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => "text/html; charset=utf-8",
    };
    Ok(Page { content_type: content_type.into(), body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_kept_for_the_open_files_of_every_route() {
        let route = || config::Route { action: Action::Files(Box::default()), ..config::Route::default() };
        let with = |routes: usize| {
            let routes = (0..routes).map(|_| route()).collect();
            let site = config::Site { routes, ..config::Site::default() };
            let config = Config { sites: vec![site], ..Config::default() };
            engine(&config, &Descriptors::new(&config, 100_000)).limits.connections_max
        };
        assert_eq!([0, 1, 3].map(with), [99_744, 98_720, 96_672]);
        assert_eq!(with(1_000), 100_000 - 256 - 12_500);
    }

    #[test]
    fn descriptors_are_kept_for_connections_to_upstream_servers() {
        let with = |action: Action, otherwise: Option<Action>| {
            let route = config::Route { action, otherwise, ..config::Route::default() };
            let site = config::Site { routes: vec![route], ..config::Site::default() };
            let config = Config { sites: vec![site], ..Config::default() };
            engine(&config, &Descriptors::new(&config, 100_256)).limits.connections_max
        };
        let proxy = || Action::Proxy(Box::default());
        assert_eq!(with(proxy(), None), 50_000);
        assert_eq!(with(Action::Files(Box::default()), Some(proxy())), 49_488);
        assert_eq!(with(Action::Files(Box::default()), None), 98_976);
    }

    #[test]
    fn a_small_limit_on_descriptors_is_shared_in_proportion_and_said() {
        let route = config::Route { action: Action::Files(Box::default()), ..config::Route::default() };
        let site = config::Site { routes: vec![route], ..config::Site::default() };
        let mut config = Config { sites: vec![site], threads: 1, ..Config::default() };
        let room = |config: &Config, limit| Descriptors::new(config, limit).connections();
        assert_eq!([256, 1_024, 4_096].map(|limit| room(&config, limit)), [192, 768, 3_328]);
        let notice = |config: &Config, limit| Descriptors::new(config, limit).notice(config);
        let (level, text) = notice(&config, 256);
        assert_eq!(level, config::Level::Warn);
        assert!(["256", "192", "LimitNOFILE", "ulimit -n"].iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(notice(&config, 4_096).0, config::Level::Info);
        config.limits.connections_max = Some(5_000);
        let (level, text) = notice(&config, 4_096);
        assert!(level == config::Level::Warn && text.contains("`limits.connections` = 5000"), "{text}");
        config.limits.connections_max = Some(100);
        assert_eq!(notice(&config, 256).0, config::Level::Info);
        // Even next to nothing leaves a server that answers.
        assert_eq!(
            engine(&config::Config::default(), &Descriptors::new(&config, 8)).limits.connections_max,
            16
        );
    }

    #[test]
    fn fewer_open_files_than_threads_are_some() {
        let mut config = Config::default();
        for (entries_max, each) in [(0, 0), (3, 1), (1024, 128)] {
            config.open_files.entries_max = entries_max;
            assert_eq!(file_options(&config, &config::Files::default(), 8).cache.entries_max, each);
        }
    }
}
