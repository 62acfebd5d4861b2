//! Error pages that a server writes: it is asked for a page in place of a response that is held back.

use std::rc::Rc;

use config::ErrorServer;
use http::{Fields, Name, Reject, Status};
use net::{Exchange, Fault, Request};
use proxy::{FetchError, FetchLimits, FetchRequest, Proxy};

/// Memory charged while the server is asked, in bytes: its connection and a part of its response.
const WAITING_BYTES: usize = 32 * 1024;
/// Fields that the server gets from this one, and from no client.
const OWN_FIELDS: [&str; 3] = ["X-Code", "X-Format", "X-Original-URI"];

/// The server that writes error pages of a route, on one core.
pub struct RouteErrorServer {
    statuses: Rc<[Status]>,
    /// `None` if the server is not known.
    proxy: Option<Proxy>,
    limits: FetchLimits,
}

/// Response of the server.
struct WrittenPage {
    status: Status,
    fields: Fields,
    body: Vec<u8>,
}

impl RouteErrorServer {
    /// Creates the error server of a route. `proxy` is the proxy of its hidden route.
    #[must_use]
    pub fn new(server: &ErrorServer, proxy: Option<Proxy>) -> RouteErrorServer {
        RouteErrorServer {
            statuses: server.statuses.iter().filter_map(|code| Status::of(*code)).collect(),
            proxy,
            limits: FetchLimits { body_bytes_max: server.body_bytes_max, total: server.timeout.into() },
        }
    }

    /// Has the responses held back that are to be replaced.
    pub(crate) fn begin(&self, exchange: &mut Exchange<'_>) {
        // gRPC calls have their errors in `grpc-status`.
        if !exchange.request().is_grpc_call() {
            exchange.intercept_statuses(self.statuses.clone());
        }
    }

    /// Answers with the page of the server if a response was held back for it; with that of the site if the server has none.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) async fn answer(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        if !exchange.intercepted_status().is_some_and(|status| self.statuses.contains(&status)) {
            return Ok(());
        }
        let Some((status, kept)) = exchange.take_intercepted_error() else { return Ok(()) };
        exchange.hold(WAITING_BYTES);
        let page = match build_request(&exchange.request(), status) {
            Err(_) => None,
            Ok(question) => {
                // The proxy has logged why there is none.
                exchange.unless_disconnected(self.ask(&question)).await?.ok()
            }
        };
        exchange.hold(0);
        let Some(WrittenPage { status, mut fields, body }) = page else {
            let reason = exchange.notes().refusal.unwrap_or("there is no further information");
            return exchange.refuse_with(status, reason, &kept).await;
        };
        for (name, value) in kept.iter() {
            if fields.first(name).is_none() {
                fields.try_push(name, value).expect("a field that was read is valid");
            }
        }
        exchange.hold(body.len());
        exchange.reply(status, &fields, &body).await
    }

    async fn ask(&self, question: &FetchRequest) -> Result<WrittenPage, FetchError> {
        let unusable = |reason| FetchError { status: Status::BAD_GATEWAY, reason };
        let proxy = self.proxy.as_ref().ok_or(unusable("there is no server for error pages"))?.bind();
        let mut response = proxy.fetch(question, &self.limits).await?;
        let status = response.status();
        if matches!(status.code(), ..200 | 205 | 206 | 304) {
            return Err(unusable("a response that is no page"));
        }
        let mut fields = Fields::new();
        for (name, value) in response.fields().iter() {
            if !matches!(Name::of(name), Name::Server | Name::Date) && !http::is_internal(name) {
                fields.try_push(name, value).expect("a field that was read is valid");
            }
        }
        let mut body = Vec::new();
        while let Some(bytes) = response.read().await? {
            body.extend_from_slice(bytes);
        }
        Ok(WrittenPage { status, fields, body })
    }
}

/// Builds the request to the server: without the body of the client's request, and what asks for a part or another state of it.
///
/// # Errors
/// The request has fields or an authority that cannot be forwarded.
fn build_request(request: &Request<'_>, status: Status) -> Result<FetchRequest, Reject> {
    const REFUSED: Reject = Reject::bad_request("a request for which no error page can be asked");
    let mut fields = Fields::new();
    for (id, name, value) in request.fields() {
        let is_of_body = matches!(id, Name::Expect | Name::ContentType | Name::ContentEncoding);
        let is_partial = id == Name::Range || id.is_conditional();
        let is_own = OWN_FIELDS.iter().any(|own| http::is_confusable(name, own.as_bytes()));
        if !(is_of_body
            || is_partial
            || is_own
            || id == Name::Host
            || id.is_framing()
            || id.is_hop_by_hop()
            || http::is_internal(name))
        {
            fields.try_push(name, value).map_err(|_| REFUSED)?;
        }
    }
    let code = status.code().to_string();
    let values = [code.as_bytes(), request.field(Name::Accept).unwrap_or_default(), request.sent_target()];
    for (name, value) in OWN_FIELDS.into_iter().zip(values) {
        if !value.is_empty() {
            fields.try_push(name.as_bytes(), value).map_err(|_| REFUSED)?;
        }
    }
    let host = std::str::from_utf8(request.authority()).map_err(|_| REFUSED)?;
    let host = if host.is_empty() { "localhost" } else { host };
    Ok(FetchRequest::new("GET", host, "/", &fields, Vec::new())?.in_place_of(request))
}
