//! From a request to the handler that answers it: made once on each core.

use std::cell::RefCell;
use std::rc::Rc;

use config::matcher::{self, Routes};
use config::{Level, Template, Variable};
use files::{Files, Outcome};
use http::{Fields, Method, Name, Status};
use net::{Compression, ErrorPages, Exchange, Fault, FieldEdits, Record, Service};
use proxy::Proxy;

use crate::access::Access;
use crate::clients::Introducers;
use crate::expand::{Values, expand};
use crate::hosting::Mounted;
use crate::notice::Notices;

/// What answers: the closed list of what this server can do.
pub(crate) enum Handler {
    Files(Box<Files>),
    Proxy(Proxy),
    App(Mounted),
    Redirect { to: Template, status: Status },
    Respond { status: Status, fields: Fields, body: Vec<u8> },
}

/// A route, ready to serve.
pub(crate) struct Route {
    pub(crate) handler: Handler,
    /// What answers where the files of `handler` do not.
    pub(crate) otherwise: Option<Handler>,
    /// Bytes taken off the front of the path for the handler.
    pub(crate) strip: Strip,
    /// What stands before the final `*` of its path, for `$rest`.
    pub(crate) prefix: Vec<u8>,
    pub(crate) body_bytes_max: u64,
    pub(crate) body_ms: u64,
    pub(crate) write_ms: u64,
    pub(crate) edits: Edits,
    /// Compression of its responses.
    pub(crate) compression: Option<Rc<Compression>>,
}

/// What to take off a path.
pub(crate) struct Strip(pub(crate) Vec<u8>);

impl Strip {
    /// The path below the prefix, empty for the prefix itself; the whole path where it does not lie below it.
    fn below<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        match path.strip_prefix(self.0.as_slice()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ => path,
        }
    }
}

/// Edits of response fields: most are the same for every request.
pub(crate) enum Edits {
    None,
    Fixed(Rc<FieldEdits>),
    /// In the order in which they are made.
    Templates(Vec<TemplateEdits>),
}

/// Edits with variables of the request.
pub(crate) struct TemplateEdits {
    pub(crate) remove: Vec<String>,
    pub(crate) set: Vec<(String, Template)>,
    pub(crate) add: Vec<(String, Template)>,
}

impl TemplateEdits {
    /// The edits for one request. A value that a request makes invalid is left out.
    pub(crate) fn resolve(all: &[TemplateEdits], values: &Values<'_>) -> FieldEdits {
        TemplateEdits::made(all, |fields, name, template| {
            let _ = fields.try_push(name.as_bytes(), &expand(template, values));
        })
    }

    /// The edits of all levels, one after the other; `push` adds a field with the value of a template.
    pub(crate) fn made(
        all: &[TemplateEdits],
        mut push: impl FnMut(&mut Fields, &str, &Template),
    ) -> FieldEdits {
        let mut edits = FieldEdits::default();
        for level in all {
            for name in &level.remove {
                edits.replace(name.as_bytes());
            }
            for (name, template) in &level.set {
                edits.replace(name.as_bytes());
                push(&mut edits.set, name, template);
            }
            for (name, template) in &level.add {
                push(&mut edits.add, name, template);
            }
        }
        edits
    }
}

/// Everything that a configuration says about requests.
pub(crate) struct Table {
    pub(crate) routes: Routes,
    /// By site, then by route.
    pub(crate) sites: Vec<Vec<Route>>,
    /// Error pages by site; the last are those of requests that no site takes.
    pub(crate) pages: Vec<Option<Rc<ErrorPages>>>,
    /// Edits of response fields where no route answers, likewise.
    pub(crate) edits: Vec<Edits>,
    /// Who may tell of clients.
    pub(crate) introducers: Option<Introducers>,
}

/// One core's router.
pub(crate) struct Router {
    table: RefCell<Rc<Table>>,
    renew: Box<dyn Fn() -> Option<Rc<Table>>>,
    access: Option<Access>,
    notices: Notices,
}

impl Router {
    /// A router whose table `renew` replaces: asked at each request.
    pub(crate) fn new(
        table: Rc<Table>,
        renew: Box<dyn Fn() -> Option<Rc<Table>>>,
        access: Option<Access>,
        notices: Notices,
    ) -> Router {
        Router { table: RefCell::new(table), renew, access, notices }
    }

    /// Hands over the access log's lines.
    pub(crate) fn flush(&self) {
        if let Some(access) = &self.access {
            access.flush();
        }
    }

    /// Takes a new configuration over, where there is one.
    pub(crate) fn renew(&self) {
        self.table();
    }

    fn table(&self) -> Rc<Table> {
        if let Some(table) = (self.renew)() {
            *self.table.borrow_mut() = table;
        }
        self.table.borrow().clone()
    }

    async fn answer(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let table = self.table();
        let site = table.routes.site(exchange.request().authority());
        let level = site.unwrap_or(table.sites.len());
        exchange.set_pages(table.pages[level].clone());
        let introduced = table.introducers.as_ref().map_or(Ok(()), |one| one.introduce(exchange));
        let (path, outcome) = match http::target::routed_path(exchange.request().path()) {
            Ok(path) => (path.into_owned(), introduced),
            Err(reject) => (Vec::new(), Err(reject.into())),
        };
        let request = exchange.request();
        let alone = request.method() == Method::Connect || request.path() == b"*";
        let route = site.filter(|_| !alone && outcome.is_ok()).and_then(|site| {
            let wanted = matcher::Request {
                host: request.authority(),
                method: request.method_name(),
                path: &path,
                query: request.query().unwrap_or_default(),
            };
            let header = |name: &str| {
                let same = |(_, other, value): (Name, &'_ [u8], _)| {
                    other.eq_ignore_ascii_case(name.as_bytes()).then_some(value)
                };
                request.fields().find_map(same)
            };
            Some(&table.sites[site][table.routes.find_in(site, &wanted, header)?])
        });
        if let Some(route) = route {
            return serve_route(route, exchange, &path).await;
        }
        table.edits[level].make(exchange, &path, b"");
        outcome?;
        match exchange.request().method() {
            Method::Connect => exchange.refuse(Status::NOT_IMPLEMENTED, "this server is no tunnel").await,
            Method::Options if alone => {
                let mut fields = Fields::new();
                fields.push(Name::Allow, b"GET, HEAD, OPTIONS");
                exchange.reply(Status::NO_CONTENT, &fields, b"").await
            }
            _ => exchange.refuse(Status::NOT_FOUND, "nothing here answers to this address").await,
        }
    }
}

impl Edits {
    /// Has the edits made to whatever is answered from now on.
    fn make(&self, exchange: &mut Exchange<'_>, path: &[u8], prefix: &[u8]) {
        match self {
            Edits::None => {}
            Edits::Fixed(edits) => exchange.set_edits(Some(edits.clone())),
            Edits::Templates(templates) => {
                let edits = TemplateEdits::resolve(templates, &values(exchange, prefix, path));
                exchange.set_edits(Some(Rc::new(edits)));
            }
        }
    }
}

async fn serve_route(route: &Route, exchange: &mut Exchange<'_>, path: &[u8]) -> Result<(), Fault> {
    route.edits.make(exchange, path, &route.prefix);
    exchange.set_compression(route.compression.clone());
    exchange.limit_body(route.body_bytes_max)?;
    exchange.set_timeouts(route.body_ms, route.write_ms);
    let Handler::Files(files) = &route.handler else {
        return serve_handler(&route.handler, route, exchange, path).await;
    };
    // Files are read; what is to be changed is the next one's. And no file has a slash in its name.
    let refused = http::target::normal_path(exchange.request().path()).err();
    let reads = matches!(exchange.request().method(), Method::Get | Method::Head);
    if let (Some(reject), None) = (refused, &route.otherwise) {
        return Err(reject.into());
    }
    match &route.otherwise {
        Some(otherwise) if !reads || refused.is_some() => {
            serve_handler(otherwise, route, exchange, path).await
        }
        otherwise => match (files.serve(exchange, route.strip.below(path)).await?, otherwise) {
            (Outcome::Done, _) => Ok(()),
            (Outcome::Declined, Some(otherwise)) => serve_handler(otherwise, route, exchange, path).await,
            (Outcome::Declined, None) => exchange.refuse(Status::NOT_FOUND, "there is no such file").await,
        },
    }
}

/// A handler to which nothing else can fall back.
async fn serve_handler(
    handler: &Handler,
    route: &Route,
    exchange: &mut Exchange<'_>,
    path: &[u8],
) -> Result<(), Fault> {
    match handler {
        Handler::Files(files) => match files.serve(exchange, route.strip.below(path)).await? {
            Outcome::Done => Ok(()),
            Outcome::Declined => exchange.refuse(Status::NOT_FOUND, "there is no such file").await,
        },
        Handler::Proxy(proxy) => proxy.serve(exchange).await,
        Handler::App(app) => app.serve(exchange, path).await,
        Handler::Redirect { to, status } => {
            let location = expand(to, &values(exchange, &route.prefix, path));
            let mut fields = Fields::new();
            let nameless = to.uses(Variable::Host) && exchange.request().authority().is_empty();
            if nameless || fields.try_push(b"Location", &location).is_err() {
                return exchange.refuse(Status::BAD_REQUEST, "this address makes no valid redirect").await;
            }
            exchange.refuse_with(*status, "the page is at another address", &fields).await
        }
        Handler::Respond { status, fields, body } => exchange.reply(*status, fields, body).await,
    }
}

fn values<'x>(exchange: &'x Exchange<'_>, prefix: &[u8], path: &'x [u8]) -> Values<'x> {
    let rest = path.strip_prefix(prefix).unwrap_or_default();
    Values { request: exchange.request(), path, rest }
}

/// One core's router, behind the pointer that its log flusher shares.
pub(crate) struct Shared(pub(crate) Rc<Router>);

impl Service for Shared {
    async fn serve(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        self.0.answer(exchange).await
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(access) = &self.0.access {
            access.log(record);
        }
        match record.fault {
            Some(fault @ (Fault::Io(_) | Fault::Broken(_))) => {
                let line = || told(record, fault);
                self.0.notices.once_a_second(Level::Error, fault.to_string(), line);
            }
            Some(fault) => self.0.notices.debug(&told(record, fault)),
            None => {}
        }
    }
}

fn told(record: &Record<'_>, fault: &Fault) -> String {
    let what = record
        .request
        .as_ref()
        .map_or(std::borrow::Cow::Borrowed("-"), |request| String::from_utf8_lossy(request.target()));
    format!("{} {what:?}: {fault}", record.client.address)
}
