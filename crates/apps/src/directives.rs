//! Directives of applications: how they are started, the number of workers, and their lifetimes.

use crate::php::PhpApp;
use crate::sandbox::{AppSandbox, share_written_paths};
use rustix::process::Resource;
use serde_json::json;
use settings::checker::{Checker, InvalidValue};
use settings::directive_table::{brief, table};
use settings::directives;
use settings::node::{Node, NodeData};
use settings::shape::{
    AccountName, Count, Flag, Map, Maybe, PathShape, Shape, ShapeKind, Size, Text, Time, Toggle, Word,
    plain_name,
};
use settings::units::{GIB, KIB, MIB, SPILL_MAX};
use shapes::client_abort::{CLIENT_ABORT, ClientAbort};
use shapes::prefix::{StripPrefix, parse_strip_prefix};
use std::path::PathBuf;
use std::time::Duration;
use times::Millis;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const WAIT: Time = Time { min: Duration::from_millis(10), max: DAY };
const WORKERS_MAX: u32 = 1024;
const ONE: Count<u32> = Count { min: 1, max: WORKERS_MAX };

/// Each application by its name.
type Apps = Vec<(String, AppSettings)>;

/// `[apps]`: the applications by their names.
pub struct AppMap;

impl Shape for AppMap {
    type Out = Apps;

    fn kind(&self) -> ShapeKind {
        named_apps().kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Apps> {
        let mut apps = named_apps().read(node, check)?;
        share_written_paths(apps.iter_mut().filter_map(|(_, app)| app.sandbox.as_mut()));
        Some(apps)
    }
}

fn named_apps() -> Map<String, settings::directive_table::TableShape<AppSettings>> {
    Map { what: "names of applications", key: name, value: table() }
}

directives! {
    /// An application, started by the server in worker processes of its own language's interpreter.
    ///
    /// ```toml
    /// [apps.shop]
    /// psgi = "shop/app.psgi"
    /// workers = { min = 2, max = 16 }
    /// recycle = { requests = 10_000, memory = "300MiB" }
    ///
    /// [[route]]
    /// app = "shop"
    /// ```
    ///
    /// The output of the processes goes to the error log; each line has the application's name and the
    /// process. SIGHUP loads the application again: the new workers take over when they are ready, and no
    /// request is lost.
    AppSettings named "App" in "`[apps.NAME]`", check app_agrees {}
    held {
        /// The application's kind; `None` in the configuration of no application.
        kind: Option<AppKind>;
    }
    also {
        /// A Perl application: a PSGI file.
        "psgi" absent("no PSGI application") = PathShape("a PSGI file") => |app, file| app.kind = Some(AppKind::Psgi(file));
        /// A Ruby application: a rackup file.
        "rack" absent("no Rack application") = PathShape("a rackup file") => |app, file| app.kind = Some(AppKind::Rack(file));
        /// A Python application: `MODULE:NAME`, `MODULE:FACTORY()`, or a file, with or without `:NAME`. The arguments
        /// of the callable show whether it is WSGI or ASGI.
        "python" absent("no Python application") = CALLABLE => |app, named| app.kind = AppKind::python(PythonInterface::Auto, named);
        /// A Python application that is WSGI.
        "wsgi" absent("no WSGI application") = CALLABLE => |app, named| app.kind = AppKind::python(PythonInterface::Wsgi, named);
        /// A Python application that is ASGI.
        "asgi" absent("no ASGI application") = CALLABLE => |app, named| app.kind = AppKind::python(PythonInterface::Asgi, named);
    }
    {
        /// More callables of a Python application, by the names that routes use (`app = { name = "shop", target =
        /// "admin" }`). They run in the same processes, and are of the same kind as the first.
        "targets" targets: Vec<(String, String)> = {}, Map { what: "names of targets", key: name, value: CALLABLE };
    }
    also {
        /// A PHP application: the folder of its scripts and files, or its front script (`"public/index.php"`). A text alone
        /// is shorthand for `root`.
        "php" absent("no PHP application") = brief::<PhpApp>("root") => |app, php| app.kind = Some(AppKind::Php(php));
        /// A native handler: a shared object, in C or in another language that supports the ABI of `komainu_handler.h`.
        "handler" absent("no native handler") = PathShape("a shared object") => |app, file| app.kind = Some(AppKind::Native(file));
    }
    {
        /// The program that runs it, such as another `perl`; for a native handler, a program that runs the worker, such
        /// as `valgrind`.
        "interpreter" interpreter: Option<String> = absent("the `perl`, `ruby` or `python3` that is found"),
            Maybe(Text { what: "a program", parse: plain_name });
        /// The virtual environment of a Python application.
        "virtualenv" virtualenv: Option<PathBuf> = absent("what VIRTUAL_ENV says, or `.venv` or `venv` in its folder"),
            Maybe(PathShape("a virtual environment"));
        /// Worker processes: a number, or a range; the server starts more when requests wait, and stops idle ones.
        "workers" workers: Option<Workers> = absent("one for each core, and at least 2"), Maybe(WorkerCount);
        /// Requests that one worker answers at once, each in its own thread. For Ruby, WSGI and native handlers.
        "threads" threads: u32 = 1, Count { min: 1, max: 256 };
        /// Requests that one worker runs at once in its event loop. For ASGI.
        "concurrency" concurrency: u32 = 1000, Count { min: 1, max: 10_000 };
        /// Lifespan of an ASGI application. `on`: a worker does not start if the lifespan fails or is not
        /// supported. `auto`: the worker serves without it. `off`: there is no lifespan.
        "lifespan" lifespan: Lifespan = "auto",
            Word(&[("auto", Lifespan::Auto), ("on", Lifespan::On), ("off", Lifespan::Off)]);
        /// Whether the application is loaded once, in a process from which the workers are forked. They share its
        /// memory.
        "preload" preload: bool = true, Flag;
        /// The folder in which it is started.
        "folder" folder: Option<PathBuf> = absent("the folder of its file"), Maybe(PathShape("a folder"));
        /// Environment variables, in addition to those of the server.
        "env" env: Vec<(String, String)> = {},
            Map { what: "variable names", key: variable, value: Text { what: "a text", parse: |text| Ok(text.to_owned()) } };
        /// The user it runs as: a name or a number. Only for a server that is started as root.
        "user" user: Option<String> = absent("the server's own"), Maybe(AccountName { is_group: false });
        /// The group it runs as, and the only one: a name or a number.
        "group" group: Option<String> = absent("that of `user`"), Maybe(AccountName { is_group: true });
        /// Requests that may wait for a worker; if there are more, the one that has waited longest is answered 503.
        "queue" queue_max: u32 = 1024, Count { min: 1, max: 65_536 };
        /// Timeouts of the application.
        "timeouts" timeouts: AppTimeouts = {}, table();
        /// Handling of requests whose client closes its side of the connection before it has the response.
        /// `"cancel"`: the request is cancelled, or not started if it still waits for a worker. A client that
        /// has asked to close the connection after the response (`Connection: close`, HTTP/1.0) still gets
        /// its response. `"ignore"`: the request is started and answered, because some clients close only
        /// their sending side (`nc -N`, some health checks); an ASGI application receives `http.disconnect`.
        /// If the client resets the connection, the request is always cancelled.
        "client_abort" client_abort: Option<ClientAbort> = absent("`\"cancel\"` for `asgi`, `\"ignore\"` for others"),
            Maybe(CLIENT_ABORT);
        /// Settings of WebSockets. For ASGI.
        "websockets" websockets: AppWebSockets = {}, table();
        /// Conditions for replacing workers by new ones; by default never.
        "recycle" recycle: Recycle = {}, table();
        /// Limits that the kernel enforces on each of its processes.
        "limits" limits: AppLimits = {}, table();
        /// Access restrictions of the application's processes. Without them, the processes can access all
        /// that their user can.
        "sandbox" sandbox: Option<AppSandbox> = absent("none"), Maybe(table());
        /// Whether the error page has the application's error message if it does not load. For development.
        "show_errors" show_errors: bool = false, Flag;
        /// Bytes of a request's body that are collected in memory before a worker gets the request, so that a slow
        /// client occupies no worker.
        "body_ahead" body_ahead_bytes: u64 = "128KiB", Size { min: 0, max: MIB };
        /// Whether a worker gets a request only after its whole body was read; bytes beyond `body_ahead` go
        /// to a temporary file. A slow upload then occupies no worker, and the length of a body without one
        /// (`Transfer-Encoding: chunked`) is known. With `false`, the application gets the body as it
        /// arrives.
        "request_buffering" request_buffering: Option<bool> =
            absent("`true`; `false` for `asgi` and `handler`, which handle slow bodies at little cost, or need them as they arrive"),
            Maybe(Flag);
        /// Bytes of a response's head: its fields, and four bytes for each of them; rounded up to a power of two. A larger
        /// head is an error of the application, and logged. A worker that sends a long body is also as many bytes ahead of the
        /// server.
        "response_head" response_head_bytes: u64 = "64KiB", Size { min: 4 * KIB, max: MIB };
        /// Bytes of a response that are kept in memory for a slow client, so that its worker is free earlier.
        "answer_ahead" answer_ahead_bytes: u64 = "256KiB", Size { min: 0, max: 64 * MIB };
        /// Bytes of temporary files (`temp_path`) for data beyond `answer_ahead` and `body_ahead`, of all
        /// clients together, so that slow clients occupy no workers; `spill` of `[limits]` limits those of
        /// all applications. 0 disables them. When the files are full, workers wait for slow clients. If more
        /// than half of the workers wait and requests are queued, the response that has waited longest for
        /// its client is cut off.
        "spill" spill_bytes_max: u64 = "1GiB", Size { min: 0, max: SPILL_MAX };
    }
}

/// Kind of an application: its language, and what is loaded.
#[derive(Clone, Debug, PartialEq)]
pub enum AppKind {
    /// A PSGI file, in Perl.
    Psgi(PathBuf),
    /// A rackup file, in Ruby.
    Rack(PathBuf),
    /// A callable in Python.
    Python {
        /// Interface of the callable.
        interface: PythonInterface,
        /// `MODULE:NAME`, `MODULE:FACTORY()`, or a file, with or without `:NAME`.
        callable: String,
    },
    /// Scripts in PHP.
    Php(PhpApp),
    /// A shared object.
    Native(PathBuf),
}

/// Interface of a Python application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonInterface {
    /// The arguments of the callable decide.
    Auto,
    /// WSGI.
    Wsgi,
    /// ASGI.
    Asgi,
}

impl AppKind {
    fn python(interface: PythonInterface, callable: String) -> Option<AppKind> {
        Some(AppKind::Python { interface, callable })
    }
}

impl AppSettings {
    /// An application of this kind, with default settings.
    #[must_use]
    pub fn of_kind(kind: AppKind) -> AppSettings {
        AppSettings { kind: Some(kind), ..AppSettings::default() }
    }

    /// Interface of the application, if it is one of Python.
    #[must_use]
    pub fn python_interface(&self) -> Option<PythonInterface> {
        match &self.kind {
            Some(AppKind::Python { interface, .. }) => Some(*interface),
            _ => None,
        }
    }

    /// Whether its workers run an event loop, as far as the configuration tells.
    #[must_use]
    pub fn runs_event_loop(&self) -> bool {
        self.python_interface().is_some_and(|interface| interface != PythonInterface::Wsgi)
    }

    /// Scripts of the application, if it is one of PHP.
    #[must_use]
    pub fn php(&self) -> Option<&PhpApp> {
        match &self.kind {
            Some(AppKind::Php(php)) => Some(php),
            _ => None,
        }
    }

    /// Requests that the event loop of a worker has in progress at once; 1 without one. Above 1, a request that
    /// takes too long is cancelled individually, and its worker is killed only if it does not end the request.
    pub(crate) fn concurrency_max(&self) -> usize {
        if self.runs_event_loop() { self.concurrency as usize } else { 1 }
    }

    /// Limits of WebSockets; `None` if the application does not support them, so that handshakes are passed on
    /// as ordinary requests.
    pub(crate) fn websocket_limits(&self) -> Option<&AppWebSockets> {
        self.runs_event_loop().then_some(&self.websockets)
    }

    /// Time without data in either direction on a connection that the application has taken over; `None` if it
    /// cannot take over connections.
    pub(crate) fn hijacked_idle(&self) -> Option<Millis> {
        matches!(self.kind, Some(AppKind::Rack(_))).then_some(self.timeouts.tunnel.into())
    }

    /// Whether the processes lead a session of their own even if the server has no terminal.
    pub(crate) fn leads_session(&self) -> bool {
        self.sandbox.is_some() || self.user.is_some()
    }

    /// Whether a worker gets a request only after its whole body was read.
    #[must_use]
    pub fn buffers_requests(&self) -> bool {
        let is_direct = self.python_interface() == Some(PythonInterface::Asgi)
            || matches!(self.kind, Some(AppKind::Native(_)));
        self.request_buffering.unwrap_or(!is_direct)
    }
}

/// Treatment of the lifespan of an ASGI application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifespan {
    /// Used if the application supports it.
    Auto,
    /// Required.
    On,
    /// Not used.
    Off,
}

impl Lifespan {
    /// The word in the configuration.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Lifespan::Auto => "auto",
            Lifespan::On => "on",
            Lifespan::Off => "off",
        }
    }
}

directives! {
    /// Number of worker processes.
    Workers in "`workers`" {
        /// Workers that are always running.
        "min" min: u32 = 1, ONE;
        /// Workers that run at most, when requests wait.
        "max" max: u32 = required(""), ONE;
    }
}

directives! {
    /// Timeouts of an application.
    AppTimeouts in "`timeouts` of an application" {
        /// Maximum time until a worker sends the head of its response. Then the client gets 504, and the
        /// worker is killed; the log has the request and the worker's stack. An event loop (ASGI) is killed
        /// only if it does not release the request within 1 s. The same time applies to work after the
        /// response, and to work for a client that has disconnected: then the worker is killed, with its
        /// stack in the log.
        "request" request: Duration = "60s", WAIT;
        /// Maximum pause between two pieces of a response while the client waits for more. Then the response
        /// is cut off, and the worker is killed.
        "between" between: Option<Duration> = absent("as long as `request`"), Maybe(WAIT);
        /// Maximum time that a request waits for a worker. Then it is answered 503.
        "queue" queue: Duration = "30s", WAIT;
        /// Maximum time for the application to load.
        "start" start: Duration = "60s", WAIT;
        /// Maximum time for a worker to exit after it was asked to stop. Then it is killed.
        "stop" stop: Duration = "30s", WAIT;
        /// Maximum time without a byte in either direction on a connection that a Ruby application has
        /// hijacked (`rack.hijack`, such as a WebSocket of Action Cable). Then the connection is closed.
        "tunnel" tunnel: Duration = "1h", WAIT;
        /// Time without work after which a worker above `min` is stopped.
        "idle" idle: Duration = "60s", Time { min: SECOND, max: HOUR };
    }
}

impl AppTimeouts {
    /// Maximum pause between two pieces of a response while the client waits.
    pub(crate) fn between_max(&self) -> Millis {
        self.between.unwrap_or(self.request).into()
    }
}

directives! {
    /// Settings of each WebSocket of an application. The server itself handles frames and pings.
    AppWebSockets in "`websockets` of an application" {
        /// The longest message from the client, with all its fragments and uncompressed; a longer one closes the socket
        /// with code 1009.
        "message" message_bytes_max: u64 = "16MiB", Size { min: KIB, max: GIB };
        /// Maximum time without data from the client before the socket is closed. The server sends a ping
        /// after half of that time.
        "idle" idle: Duration = "60s", Time { min: SECOND, max: DAY };
        /// Whether messages are compressed if the client offers it (permessage-deflate). Each message is compressed by
        /// itself, so that an idle socket needs no memory for it.
        "compress" compress: bool = true, Flag;
    }
}

directives! {
    /// Conditions for replacing a worker by a new one, which is ready before the old one exits. The limits
    /// vary by up to a tenth from worker to worker, so that they do not all exit at once.
    Recycle in "`recycle`" {
        /// Number of requests after which a worker is replaced.
        "requests" requests: Option<u64> = absent("never because of this"), Maybe(Requests);
        /// Private memory (not shared with other processes) above which a worker is replaced.
        "memory" memory_bytes: Option<u64> = absent("never because of this"), Maybe(Size { min: MIB, max: 1024 * GIB });
        /// Age at which a worker is replaced.
        "age" age: Option<Duration> = absent("never because of this"), Maybe(Time { min: SECOND, max: YEAR });
    }
}

directives! {
    /// Limits that the kernel enforces on each process of an application (see `setrlimit`).
    AppLimits in "`limits` of an application" {
        /// Address space, in addition to the memory that it shares with the server.
        "memory" memory_bytes: Option<u64> = absent("the server's own"), Maybe(Size { min: MIB, max: 1024 * GIB });
        /// Open files.
        "files" files: Option<u32> = absent("the server's own"), Maybe(Count { min: 16, max: 1_048_576 });
        /// Processes and threads of its user.
        "processes" processes: Option<u32> = absent("the server's own"), Maybe(Count { min: 1, max: 1_048_576 });
        /// The size of a core file.
        "core" core_bytes: Option<u64> = absent("the server's own"), Maybe(Size { min: 0, max: 1024 * GIB });
        /// The size of a file that it writes.
        "file_size" file_bytes: Option<u64> = absent("the server's own"), Maybe(Size { min: KIB, max: 1024 * GIB });
    }
}

impl AppLimits {
    /// Resource limits, both soft and hard. The one on address space, which is the last, does not include memory shared with the
    /// server.
    pub(crate) fn resources(&self) -> impl Iterator<Item = (Resource, u64)> {
        let given = [
            (Resource::Nofile, self.files.map(u64::from)),
            (Resource::Nproc, self.processes.map(u64::from)),
            (Resource::Core, self.core_bytes),
            (Resource::Fsize, self.file_bytes),
            (Resource::As, self.memory_bytes),
        ];
        given.into_iter().filter_map(|(resource, value)| Some((resource, value?)))
    }
}

directives! {
    /// Lets an application answer. A name alone is shorthand for `name`.
    ///
    /// ```toml
    /// [[route]]
    /// path = "/shop/*"
    /// app  = { name = "shop", strip_prefix = true }
    ///
    /// [apps.shop]
    /// rack = "shop/config.ru"
    /// ```
    Mounted in "`app`" {
        /// The application: the `NAME` of `[apps.NAME]`.
        "name" name: String = required(""), Text { what: "the name of an application", parse: name };
        /// Entry of the application's `targets` that handles the requests.
        "target" target: Option<String> = absent("the application's first callable"),
            Maybe(Text { what: "the name of a target", parse: name });
        /// The prefix to remove from the path; the application gets it as `SCRIPT_NAME`. `true` removes what the
        /// route's `path` has before its final `/*`, a text removes that text.
        "strip_prefix" strip_prefix: StripPrefix = false,
            Toggle {
                on: Some(|| StripPrefix::OfRoute),
                off: || StripPrefix::None,
                shape: Text { what: "the start of a path, such as \"/shop\"", parse: parse_strip_prefix },
            };
    }
}

/// The `app` directive of a route.
pub fn mounted() -> impl Shape<Out = Mounted> {
    brief::<Mounted>("name")
}

/// The directives that state the kind of an application: each application has one of them.
const KIND_DIRECTIVES: [&str; 7] = ["psgi", "rack", "python", "wsgi", "asgi", "php", "handler"];

const CALLABLE: Text<String> =
    Text { what: "a Python application, such as \"shop.wsgi:application\"", parse: parse_callable };

fn app_agrees(app: &mut AppSettings, node: &Node, check: &mut Checker) {
    let given: Vec<_> = KIND_DIRECTIVES.iter().filter_map(|name| node.entry(name)).collect();
    match given.as_slice() {
        [] => {
            let title = "an application without a kind".to_owned();
            let finding = check.error(&node.span, title, "nothing to start");
            finding.help(format!("add one of {}", KIND_DIRECTIVES.join(", ")));
        }
        [_] => resolve_python_paths(app, check),
        [first, second, ..] => {
            let finding =
                check.error(&second.key_span, "an application of two kinds".to_owned(), "a second kind");
            finding
                .related(first.key_span.clone(), "the first kind")
                .help("write two applications, or remove one");
        }
    }
    if let Some(entry) = node.entry("targets").filter(|_| app.python_interface().is_none()) {
        check.error(
            &entry.key_span,
            "`targets` of an application that is not Python".to_owned(),
            "write an `[apps.NAME]` for each",
        );
    }
    if let Some(entry) = node.entry("lifespan").filter(|_| !app.runs_event_loop()) {
        check.error(
            &entry.key_span,
            "`lifespan` of an application that is not ASGI".to_owned(),
            "remove it: only ASGI has lifespans",
        );
    }
    if let Some(entry) = node.entry("threads").filter(|_| app.php().is_some() && app.threads > 1) {
        let finding =
            check.error(&entry.key_span, "`threads` of a PHP application".to_owned(), "PHP has none");
        finding.help("a worker of PHP answers one request at a time: write `workers`");
    }
    if let Some(entry) = node.entry("group").filter(|_| app.user.is_none()) {
        check.error(&entry.key_span, "`group` without `user`".to_owned(), "there is no `user`");
    }
}

/// Relative paths in Python names are relative to the configuration file, as paths of files are.
fn resolve_python_paths(app: &mut AppSettings, check: &Checker) {
    let folder = check.resolve_path("");
    let more = app.targets.iter_mut().map(|(_, named)| named);
    let first = match &mut app.kind {
        Some(AppKind::Python { callable, .. }) => Some(callable),
        _ => None,
    };
    for named in first.into_iter().chain(more) {
        if named.ends_with(".py") || named.contains(".py:") {
            *named = folder.join(&*named).to_string_lossy().into_owned();
        } else if app.folder.is_none() {
            app.folder = Some(folder.clone());
        }
    }
}

fn parse_callable(text: &str) -> Result<String, InvalidValue> {
    match text.split(':').next().unwrap_or_default() {
        "" => Err(InvalidValue::new("the module is missing", "\"shop.wsgi:application\"")),
        _ if text.contains('\0') => Err(InvalidValue::new("a name must not contain NUL", "")),
        _ => Ok(text.to_owned()),
    }
}

fn name(text: &str) -> Result<String, InvalidValue> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match text.char_indices().find(|(_, c)| !fits(*c)) {
        Some((at, wrong)) => {
            let message = format!("an application's name must not contain {wrong:?}");
            Err(InvalidValue::new(message, "").within(at..at + wrong.len_utf8()))
        }
        None if text.is_empty() => Err(InvalidValue::new("the name is missing", "")),
        None => Ok(text.to_owned()),
    }
}

fn variable(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty name", "")),
        _ if text.contains(['=', '\0']) => {
            Err(InvalidValue::new("a variable's name must not contain `=` or NUL", ""))
        }
        _ => Ok(text.to_owned()),
    }
}

/// A number of workers, or a table with `min` and `max`.
struct WorkerCount;

impl Shape for WorkerCount {
    type Out = Workers;

    fn kind(&self) -> ShapeKind {
        let number = ONE.kind();
        let range = table::<Workers>().kind();
        let text = format!("{}, or {{ min = 2, max = 16 }}", number.text);
        let schema = json!({ "anyOf": [number.schema, range.schema] });
        ShapeKind { chapters: range.chapters, ..ShapeKind::new(text, schema) }
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<Workers> {
        if !matches!(node.data, NodeData::Table(_)) {
            return ONE.read(node, check).map(|count| Workers { min: count, max: count });
        }
        let errors = check.report.error_count();
        let range = table::<Workers>().read(node, check)?;
        if check.report.error_count() > errors {
            return None;
        }
        if range.min > range.max {
            check.report_invalid(&node.span, "`min` is more than `max`");
            return None;
        }
        Some(range)
    }
}

/// A number of requests.
struct Requests;

impl Shape for Requests {
    type Out = u64;

    fn kind(&self) -> ShapeKind {
        Count { min: 1u32, max: u32::MAX }.kind()
    }

    fn read(&self, node: &Node, check: &mut Checker) -> Option<u64> {
        Count { min: 1u32, max: u32::MAX }.read(node, check).map(u64::from)
    }
}
